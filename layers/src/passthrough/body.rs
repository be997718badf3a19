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
    usage::{Reader, Seen, ceiling},
};
use crate::{
    error::{BoxError, Error},
    sse::{Event, SILENCE_MAX, Splitter},
    usage::{End, Meter},
};

/// The maximum number of consecutive bytes without data, such as comments and blank lines; enough for hours of
/// keep-alives.
const NOTHING_BYTES_MAX: usize = 1024 * 1024;

/// The maximum bytes of comments before the first event that are kept until the head is sent.
const HELD_BYTES_MAX: usize = 64 * 1024;

/// A vendor's answer: an event stream, or a plain answer that was read completely.
#[derive(Debug)]
pub struct ResponseBody<A>(Inner<A>);

#[derive(Debug)]
enum Inner<A> {
    /// Boxed, because the layers above move the answer, and the stream's state is most of its size.
    Stream(Pin<Box<Stream<A>>>),
    /// A plain answer, complete; empty after it was returned.
    Whole(Bytes),
}

pin_project! {
    #[derive(Debug)]
    struct Stream<A> {
        // `None` once the gateway has stopped the call, which cancels it at the vendor.
        #[pin]
        inner: Option<A>,
        tap: Tap,
        // Bytes to return first: events that arrived before the head was sent, or a keep-alive.
        first: Bytes,
    }
}

impl<A> ResponseBody<A> {
    pub(super) fn stream(inner: A, reader: Reader, strip_usage: bool, meter: Meter) -> Self {
        let grows = meter
            .bounds()
            .is_some_and(|bounds| bounds.growing.is_some());
        let tap = Tap {
            last: grows.then(Bytes::new),
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
            nothing_bytes: 0,
        };
        Self(Inner::Stream(Box::pin(Stream {
            inner: Some(inner),
            tap,
            first: Bytes::new(),
        })))
    }

    /// Waits for the first event of the stream, and keeps it. If the first event is an error, the head of the answer is
    /// not sent yet. So the error can determine the status of the answer, or the call can be retried at another vendor.
    /// Waits at most `patience`, because a proxy between the gateway and the caller may otherwise treat the gateway as
    /// dead.
    pub(super) async fn begun(mut self, patience: Duration) -> Result<Self, Error>
    where
        A: Body<Data = Bytes, Error: Into<BoxError> + 'static>,
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
    A: Body<Data = Bytes, Error: Into<BoxError> + 'static>,
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
            if tap.must_stop() {
                inner.set(None);
                return Poll::Ready(Some(Ok(Frame::data(tap.stop()))));
            }
            let Some(vendor) = inner.as_mut().as_pin_mut() else {
                return Poll::Ready(None);
            };
            let Poll::Ready(frame) = vendor.poll_frame(cx) else {
                // Before the head is sent and after the last event, no keep-alive is sent.
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
                    // The vendor's trailers are not forwarded.
                    Err(_) => continue,
                },
                Some(Err(error)) => tap.end(Some(Error::from_below(error))),
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

/// Reads the usage and the end of a stream from the bytes that are forwarded.
#[derive(Debug)]
struct Tap {
    splitter: Splitter,
    reader: Reader,
    meter: Meter,
    strip_usage: bool,
    /// The last event with data that is not a ping, if the gateway may have to stop the call.
    last: Option<Bytes>,
    failure: Option<Error>,
    /// Whether the vendor sent an event that is too long to forward, for which the call is charged.
    too_long: bool,
    ended: bool,
    /// The time since which nothing was forwarded; `None` until the stream waits for the vendor for the first time.
    quiet: Option<Instant>,
    /// Timer for keep-alives, created at the first wait. A frame does not reset it: when it fires too early, it is set
    /// to the current deadline.
    alarm: Option<Pin<Box<Sleep>>>,
    /// Whether the answer's head is still held back; until it is sent, no keep-alives are needed.
    held: bool,
    /// The number of bytes that have arrived since the last event with data.
    nothing_bytes: usize,
}

impl Tap {
    /// Returns a keep-alive if nothing was forwarded for a while, so that no proxy treats the stream as dead. Only
    /// whole events are forwarded, so a keep-alive is never in the middle of an event.
    fn keep_alive(&mut self, cx: &mut Context<'_>) -> Poll<Bytes> {
        let due = *self.quiet.get_or_insert_with(Instant::now) + SILENCE_MAX;
        let alarm = self.alarm.get_or_insert_with(|| Box::pin(sleep_until(due)));
        while alarm.as_mut().poll(cx).is_ready() {
            let now = Instant::now();
            if now < due {
                // Frames were forwarded after the timer was set.
                alarm.as_mut().reset(due);
                continue;
            }
            self.quiet = Some(now);
            alarm.as_mut().reset(now + SILENCE_MAX);
            // Polls the alarm again so that it wakes the task the next time.
            let _ = alarm.as_mut().poll(cx);
            return Poll::Ready(self.reader.keep_alive());
        }
        Poll::Pending
    }

    /// Returns the bytes to forward now: the events that this chunk completes, except those that must be removed. An
    /// incomplete event is kept back: its end may prove that it is an error, and the caller must not get its beginning.
    fn pass(&mut self, chunk: &Bytes) -> Bytes {
        let Self {
            splitter,
            reader,
            meter,
            strip_usage,
            last,
            failure,
            too_long,
            nothing_bytes,
            ..
        } = self;
        // The end of the events to forward, and the ranges of events to remove or replace.
        let (mut end, mut replaced) = (0, Vec::new());
        let split = splitter.push(chunk, |event| {
            // Bytes after the last event are not part of the answer.
            if failure.is_some() || reader.finished() {
                return;
            }
            let place = end..end + event.raw().len();
            let seen = reader.event(&event);
            *nothing_bytes = match seen {
                Seen::Nothing | Seen::CostComment => *nothing_bytes + event.raw().len(),
                _ => 0,
            };
            if *nothing_bytes > NOTHING_BYTES_MAX {
                *failure = Some(broken("a stream of comments and blank lines"));
                return;
            }
            match seen {
                Seen::Failure(error) => {
                    *failure = Some(error);
                    return;
                }
                Seen::UsageAlone if *strip_usage => replaced.push((place.clone(), Bytes::new())),
                Seen::CostComment => replaced.push((place.clone(), Bytes::new())),
                _ => {
                    if let Some(last) = last
                        && ceiling::is_position(&event)
                    {
                        *last = event.raw().clone();
                    }
                    // A caller that did not request usage gets no usage, even if the gateway ends the stream.
                    let charged = match *strip_usage && reader.lacks_usage() {
                        true => None,
                        false => reader.charged(&event, meter),
                    };
                    replaced.extend(charged.map(|charged| (place.clone(), charged)));
                }
            }
            end = place.end;
        });
        let mut rest = match split {
            Ok(whole) => whole,
            Err(error) => {
                // The call is charged as answered: some events repeat the request, so a caller could otherwise avoid
                // payment by a very long request.
                *too_long = failure.is_none();
                failure.get_or_insert_with(|| Error::AnswerTooLong(error.into()));
                replaced.clear();
                Bytes::new()
            }
        };
        rest.truncate(end);
        let mut pieces = Pieces::default();
        let mut at = 0;
        for (place, event) in replaced {
            pieces.push(rest.split_to(place.start - at));
            rest.advance(place.len());
            pieces.push(event);
            at = place.end;
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

    /// Returns whether the gateway must end the stream before the vendor does.
    fn must_stop(&self) -> bool {
        self.last.is_some()
            && !self.reader.finished()
            && self.meter.look(|reading| reading.stopped_by.is_some())
    }

    /// Ends the stream like a vendor that has reached the request's ceiling of output. Returns the bytes to forward
    /// last.
    fn stop(&mut self) -> Bytes {
        // The beginning of an event whose end has not arrived is dropped.
        self.splitter = Splitter::default();
        let last = self.last.take().unwrap_or_default();
        let events = self.reader.ceiling(last);
        let bytes = self.pass(&events);
        self.ended = true;
        bytes
    }

    /// Handles the end of the vendor's stream; `error` if the stream failed. Returns the bytes to forward last.
    fn end(&mut self, error: Option<Error>) -> Bytes {
        self.ended = true;
        let mut rest = Bytes::new();
        // Some vendors omit the blank line after the last event.
        if let Some(event) = self.splitter.finish().filter(is_whole)
            && !self.reader.finished()
        {
            match self.reader.event(&event) {
                Seen::Failure(error) => self.failure = Some(error),
                Seen::UsageAlone if self.strip_usage => {}
                _ => {
                    let charged = self.reader.charged(&event, &self.meter);
                    rest = closed(charged.as_ref().unwrap_or_else(|| event.raw()));
                }
            }
        }
        // An error after the last event is only the way in which the vendor closes the connection.
        if self.failure.is_none() && !self.reader.may_end() {
            self.failure = Some(error.unwrap_or_else(|| broken("the stream ended in the middle")));
        }
        if self.failure.is_none() && !self.reader.finished() {
            // Clients expect this line at the end of a chat stream, so it is added if the vendor omits it.
            let usage = self.reader.missing_usage(&self.meter).unwrap_or_default();
            rest = [&rest[..], &usage[..], b"data: [DONE]\n\n"].concat().into();
        }
        self.record();
        rest
    }

    fn record(&self) {
        let reader = &self.reader;
        let end = match &self.failure {
            // The caller's request may have caused the vendor's error, so the error must not open the route's breaker
            // for other callers.
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

/// Returns whether an event at the end of the stream, which has no blank line, is complete. A truncated event is
/// ignored.
fn is_whole(event: &Event) -> bool {
    event.data().is_some_and(|data| {
        let data = data.trim_ascii();
        data == b"[DONE]" || serde_json::from_slice::<IgnoredAny>(data).is_ok()
    })
}

/// Returns the event with the blank line that it lacks.
fn closed(event: &Bytes) -> Bytes {
    let blank: &[u8] = if event.ends_with(b"\n") {
        b"\n"
    } else {
        b"\n\n"
    };
    [event, blank].concat().into()
}

/// Byte slices that are forwarded as one frame. They are copied only if there are several.
#[derive(Debug, Default)]
pub(super) struct Pieces {
    only: Bytes,
    more: BytesMut,
}

impl Pieces {
    pub(super) fn push(&mut self, piece: Bytes) {
        self.push_within(piece, 0);
    }

    pub(super) fn len(&self) -> usize {
        self.only.len() + self.more.len()
    }

    /// As [`Pieces::push`], but allocates at least `least` bytes if a second piece makes a copy necessary.
    pub(super) fn push_within(&mut self, piece: Bytes, least: usize) {
        if piece.is_empty() {
            return;
        }
        if self.only.is_empty() && self.more.is_empty() {
            self.only = piece;
            return;
        }
        if self.more.capacity() < least {
            self.more.reserve(least - self.more.len());
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
