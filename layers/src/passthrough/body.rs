use std::{
    future::poll_fn,
    mem,
    pin::Pin,
    task::{Context, Poll},
    time::Duration,
};

use bytes::{Buf, Bytes, BytesMut};
use http_body::{Body, Frame, SizeHint};
use pin_project_lite::pin_project;
use serde::de::IgnoredAny;
use tokio::time::{Instant, Sleep, sleep_until, timeout_at};

use super::{
    broken,
    usage::{Reader, Seen},
};
use crate::{
    error::Error,
    sse::{Event, SILENCE_MAX, Splitter},
    usage::{End, Meter},
};

/// Comments that come before the first event are kept up to this.
const HELD_BYTES_MAX: usize = 64 * 1024;

/// A vendor's answer on its way through: an event stream, or a plain answer that was read whole.
#[derive(Debug)]
pub struct ResponseBody<A>(Inner<A>);

#[derive(Debug)]
enum Inner<A> {
    /// Boxed: answers are moved from layer to layer, and this is most of one.
    Stream(Pin<Box<Stream<A>>>),
    /// Empty once it was taken.
    Whole(Bytes),
}

pin_project! {
    #[derive(Debug)]
    struct Stream<A> {
        #[pin]
        inner: A,
        tap: Tap,
        // What was waited for before the head went out.
        first: Bytes,
    }
}

impl<A> ResponseBody<A> {
    pub(super) fn stream(inner: A, reader: Reader, strip_usage: bool, meter: Meter) -> Self {
        let tap = Tap {
            splitter: Splitter::default(),
            reader,
            meter,
            strip_usage,
            failure: None,
            too_long: false,
            ended: false,
            quiet: None,
            alarm: None,
            held: false,
        };
        Self(Inner::Stream(Box::pin(Stream {
            inner,
            tap,
            first: Bytes::new(),
        })))
    }

    /// Waits for the first event, and keeps it: an error that comes before everything else still has
    /// the choice of its status, and of another vendor. After `patience` it is not waited for any
    /// longer: whoever stands between us and the caller may think that we are dead.
    pub(super) async fn begun(mut self, patience: Duration) -> Result<Self, Error>
    where
        A: Body<Data = Bytes, Error = Error>,
    {
        let until = Instant::now() + patience;
        let (mut held, mut bytes) = (Pieces::default(), 0);
        self.hold(true);
        while !self.spoke() && bytes < HELD_BYTES_MAX {
            let next = poll_fn(|cx| Pin::new(&mut self).poll_frame(cx));
            let Ok(frame) = timeout_at(until, next).await else {
                break;
            };
            let Some(frame) = frame.transpose()? else {
                break;
            };
            let piece = frame.into_data().unwrap_or_default();
            bytes += piece.len();
            held.push(piece);
        }
        self.hold(false);
        if let Inner::Stream(stream) = &mut self.0 {
            let stream = stream.as_mut().project();
            let (tap, mut held) = (stream.tap, held.joined());
            if held.is_empty() && !tap.ended {
                held = tap.reader.keep_alive();
            }
            *stream.first = held;
        }
        Ok(self)
    }

    fn hold(&mut self, held: bool) {
        if let Inner::Stream(stream) = &mut self.0 {
            let tap = stream.as_mut().project().tap;
            tap.held = held;
            tap.quiet = None;
        }
    }

    pub(super) fn spoke(&self) -> bool {
        match &self.0 {
            Inner::Stream(stream) => stream.tap.reader.spoke(),
            Inner::Whole(_) => true,
        }
    }

    pub(super) const fn whole(bytes: Bytes) -> Self {
        Self(Inner::Whole(bytes))
    }
}

impl<A> Body for ResponseBody<A>
where
    A: Body<Data = Bytes, Error = Error>,
{
    type Data = Bytes;
    type Error = Error;

    fn poll_frame(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Error>>> {
        let (stream, ready) = match &mut self.get_mut().0 {
            Inner::Whole(bytes) => (None, bytes),
            Inner::Stream(stream) => {
                let stream = stream.as_mut().project();
                (Some((stream.inner, stream.tap)), stream.first)
            }
        };
        if !ready.is_empty() {
            return Poll::Ready(Some(Ok(Frame::data(mem::take(ready)))));
        }
        let Some((mut inner, tap)) = stream else {
            return Poll::Ready(None);
        };
        loop {
            if tap.ended {
                return Poll::Ready(tap.failure.take().map(Err));
            }
            let Poll::Ready(frame) = inner.as_mut().poll_frame(cx) else {
                // Nothing comes behind the last event.
                if tap.held || tap.reader.finished() {
                    return Poll::Pending;
                }
                return tap
                    .keep_alive(cx)
                    .map(|comment| Some(Ok(Frame::data(comment))));
            };
            let bytes = match frame {
                Some(Ok(frame)) => match frame.into_data() {
                    Ok(chunk) => tap.pass(&chunk),
                    // Trailers are the vendor's own business.
                    Err(_) => continue,
                },
                Some(Err(error)) => tap.end(Some(error)),
                None => tap.end(None),
            };
            if !bytes.is_empty() {
                return Poll::Ready(Some(Ok(Frame::data(bytes))));
            }
        }
    }

    fn is_end_stream(&self) -> bool {
        match &self.0 {
            Inner::Stream(stream) => {
                stream.tap.ended && stream.tap.failure.is_none() && stream.first.is_empty()
            }
            Inner::Whole(bytes) => bytes.is_empty(),
        }
    }

    fn size_hint(&self) -> SizeHint {
        match &self.0 {
            Inner::Stream(_) => SizeHint::default(),
            Inner::Whole(bytes) => SizeHint::with_exact(bytes.len() as u64),
        }
    }
}

/// What looks at the bytes of a stream.
#[derive(Debug)]
struct Tap {
    splitter: Splitter,
    reader: Reader,
    meter: Meter,
    strip_usage: bool,
    failure: Option<Error>,
    /// The vendor sends an event that no caller can be given.
    too_long: bool,
    ended: bool,
    /// Since when nothing goes on; `None` until it was asked for.
    quiet: Option<Instant>,
    /// Set when nothing is there, and not moved by every frame: when it goes off it looks.
    alarm: Option<Pin<Box<Sleep>>>,
    /// Nobody is there yet to be kept awake.
    held: bool,
}

impl Tap {
    /// What is sent while the vendor thinks, so that nobody on the way takes the stream for dead. Only whole
    /// events have gone on, so it never stands inside one.
    fn keep_alive(&mut self, cx: &mut Context<'_>) -> Poll<Bytes> {
        let due = *self.quiet.get_or_insert_with(Instant::now) + SILENCE_MAX;
        let alarm = self.alarm.get_or_insert_with(|| Box::pin(sleep_until(due)));
        while alarm.as_mut().poll(cx).is_ready() {
            let now = Instant::now();
            if now < due {
                // Something went on since.
                alarm.as_mut().reset(due);
                continue;
            }
            self.quiet = Some(now);
            alarm.as_mut().reset(now + SILENCE_MAX);
            // The alarm's next time must be known to the task.
            let _ = alarm.as_mut().poll(cx);
            return Poll::Ready(self.reader.keep_alive());
        }
        Poll::Pending
    }

    /// What goes on now: the events that the chunk completes, but for those that must not. An event that is not
    /// whole waits: its end may say that it is an error, of which the caller must not see the beginning.
    fn pass(&mut self, chunk: &Bytes) -> Bytes {
        let Self {
            splitter,
            reader,
            strip_usage,
            failure,
            too_long,
            ..
        } = self;
        // How far the events go on, and where those are that do not.
        let (mut end, mut taken_out) = (0, Vec::new());
        let split = splitter.push(chunk, |event| {
            // What stands behind the last event is no part of the answer.
            if failure.is_some() || reader.finished() {
                return;
            }
            let start = end;
            match reader.event(&event) {
                Seen::Failure(error) => {
                    *failure = Some(error);
                    return;
                }
                Seen::UsageAlone if *strip_usage => {
                    taken_out.push(start..start + event.raw().len())
                }
                Seen::CostComment => taken_out.push(start..start + event.raw().len()),
                _ => {}
            }
            end += event.raw().len();
        });
        let mut rest = match split {
            Ok(whole) => whole,
            Err(error) => {
                // Some events repeat the request: were this free, its length would be a way not to pay.
                *too_long = failure.is_none();
                failure.get_or_insert_with(|| Error::AnswerTooLong(error.into()));
                taken_out.clear();
                Bytes::new()
            }
        };
        rest.truncate(end);
        let mut pieces = Pieces::default();
        let mut at = 0;
        for usage in taken_out {
            pieces.push(rest.split_to(usage.start - at));
            rest.advance(usage.len());
            at = usage.end;
        }
        pieces.push(rest);
        let passed = pieces.joined();
        if !passed.is_empty() {
            self.quiet = None;
        }
        self.ended = self.failure.is_some();
        self.record();
        passed
    }

    /// The vendor's stream has ended, or failed.
    fn end(&mut self, error: Option<Error>) -> Bytes {
        self.ended = true;
        let mut rest = Bytes::new();
        // Some vendors leave out the blank line behind the last event.
        if let Some(event) = self.splitter.finish().filter(is_whole)
            && !self.reader.finished()
        {
            match self.reader.event(&event) {
                Seen::Failure(error) => self.failure = Some(error),
                Seen::UsageAlone if self.strip_usage => {}
                _ => rest = closed(event.raw()),
            }
        }
        // An error behind the last event is the vendor's way to hang up.
        if self.failure.is_none() && !self.reader.may_end() {
            self.failure = Some(error.unwrap_or_else(|| broken("the stream ended in the middle")));
        }
        if self.failure.is_none() && !self.reader.finished() {
            // A chat stream ends with this line (specification 6.1), whatever its vendor leaves out.
            rest = [&rest[..], b"data: [DONE]\n\n"].concat().into();
        }
        self.record();
        rest
    }

    fn record(&self) {
        let reader = &self.reader;
        let end = match &self.failure {
            // What it says of one caller's request is no reason to shut its route for others.
            Some(
                Error::VendorUnavailable(_)
                | Error::VendorLimit { .. }
                | Error::VendorRefused { .. },
            ) => Some(End::VendorError),
            Some(_) => Some(End::VendorCut),
            None => (reader.finished() || self.ended).then_some(End::Finished),
        };
        self.meter.update(|reading| {
            reader.note(reading);
            reading.usage_due = reader.usage_due();
            reading.answered |= self.too_long;
            reading.end = end;
        });
    }
}

/// Whether the last event of a stream, without its blank line, is all there: one that was cut is no event.
fn is_whole(event: &Event) -> bool {
    event.data().is_some_and(|data| {
        let data = data.trim_ascii();
        data == b"[DONE]" || serde_json::from_slice::<IgnoredAny>(data).is_ok()
    })
}

/// An event with the blank line that was left out.
fn closed(event: &Bytes) -> Bytes {
    let blank: &[u8] = if event.ends_with(b"\n") {
        b"\n"
    } else {
        b"\n\n"
    };
    [event, blank].concat().into()
}

/// Slices that go on as one frame.
#[derive(Debug, Default)]
pub(super) struct Pieces {
    only: Bytes,
    more: BytesMut,
}

impl Pieces {
    pub(super) fn push(&mut self, piece: Bytes) {
        if piece.is_empty() {
            return;
        }
        if self.only.is_empty() && self.more.is_empty() {
            self.only = piece;
            return;
        }
        self.more.extend_from_slice(&std::mem::take(&mut self.only));
        self.more.extend_from_slice(&piece);
    }

    pub(super) fn joined(self) -> Bytes {
        if self.more.is_empty() {
            self.only
        } else {
            self.more.freeze()
        }
    }
}

#[cfg(test)]
mod tests;
