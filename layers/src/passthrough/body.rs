use std::{
    future::poll_fn,
    mem,
    pin::Pin,
    task::{Context, Poll},
    time::Duration,
};

use bytes::{Buf, Bytes};
use http_body::{Body, Frame, SizeHint};
use pin_project_lite::pin_project;
use serde::de::IgnoredAny;
use tokio::time::{Instant, Sleep, sleep_until, timeout_at};

use super::usage::{Reader, Seen};
use crate::{
    body::PolledFrame,
    error::{BoxError, Error},
    formats::errors::broken,
    pieces::Pieces,
    sse::{Event, SILENCE_MAX, Splitter},
    usage::{End, Meter},
};

/// The maximum number of consecutive bytes without data, such as comments and blank lines. It suffices for hours of
/// keep-alives.
const NOTHING_BYTES_MAX: usize = 1024 * 1024;

/// The maximum number of bytes of comments before the first event that are kept until the response's head is sent.
const HELD_BYTES_MAX: usize = 64 * 1024;

/// A vendor's response: an event stream, or a plain response that has been read completely.
#[derive(Debug)]
pub struct ResponseBody<A>(Inner<A>);

#[derive(Debug)]
enum Inner<A> {
    /// The stream is boxed, because its state is large and the layers above move the response.
    Stream(Pin<Box<Stream<A>>>),
    /// A complete plain response. Empty after its bytes were returned.
    Whole(Bytes),
}

pin_project! {
    #[derive(Debug)]
    struct Stream<A> {
        // `None` once the gateway has stopped the call; dropping the inner body cancels the call at the vendor.
        #[pin]
        inner: Option<A>,
        tap: Tap,
        // The bytes to return first: a keep-alive, or events that arrived before the head was sent.
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

    /// Waits for the stream's first event and keeps it. The response's head is sent only after that. If the first event
    /// is an error, the error can therefore determine the response's status, or the call can be retried at another
    /// vendor. The wait is at most `patience`, because a proxy between the gateway and the caller may otherwise treat
    /// the gateway as dead.
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

    fn poll_frame(self: Pin<&mut Self>, cx: &mut Context<'_>) -> PolledFrame {
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
                // No keep-alive is sent before the head is sent, and none after the last event.
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

/// Reads the usage of a stream, and whether it has ended, from the bytes that are forwarded.
#[derive(Debug)]
struct Tap {
    splitter: Splitter,
    reader: Reader,
    meter: Meter,
    strip_usage: bool,
    /// The last event that has data and is not a ping. It is kept only if the gateway may have to stop the call.
    last: Option<Bytes>,
    failure: Option<Error>,
    /// Whether the vendor sent an event that is too long to forward. The call is then charged.
    too_long: bool,
    ended: bool,
    /// The time since which nothing was forwarded. `None` until the stream waits for the vendor for the first time.
    quiet: Option<Instant>,
    /// The timer for keep-alives, created at the first wait. Frames do not reset it. If it fires before the current
    /// deadline, it is set to that deadline.
    alarm: Option<Pin<Box<Sleep>>>,
    /// Whether the response's head is still held back. Until it is sent, no keep-alives are needed.
    held: bool,
    /// The number of bytes that have arrived since the last event with data.
    nothing_bytes: usize,
}

impl Tap {
    /// Returns a keep-alive if nothing was forwarded for a while, so that no proxy treats the stream as dead. The
    /// keep-alive is never inside an event, because only whole events are forwarded.
    fn keep_alive(&mut self, cx: &mut Context<'_>) -> Poll<Bytes> {
        let due = *self.quiet.get_or_insert_with(Instant::now) + SILENCE_MAX;
        let alarm = self.alarm.get_or_insert_with(|| Box::pin(sleep_until(due)));
        while alarm.as_mut().poll(cx).is_ready() {
            let now = Instant::now();
            if now < due {
                // Frames were forwarded after the timer was set, so it is set to a later time.
                alarm.as_mut().reset(due);
                continue;
            }
            self.quiet = Some(now);
            alarm.as_mut().reset(now + SILENCE_MAX);
            // The alarm is polled again so that it wakes the task the next time.
            let _ = alarm.as_mut().poll(cx);
            return Poll::Ready(self.reader.keep_alive());
        }
        Poll::Pending
    }

    /// Returns the bytes to forward now: the events that this chunk completes, without those that must be removed. An
    /// incomplete event is kept back, because its end may prove that it is an error, of which the caller must not get
    /// the beginning.
    fn pass(&mut self, chunk: &Bytes) -> Bytes {
        // `end` is where the events to forward end. `replaced` has the ranges of events to remove or replace.
        let (mut end, mut replaced) = (0, Vec::new());
        let split = self.splitter.push(chunk, |event| {
            // Bytes after the last event are not part of the response.
            if self.failure.is_some() || self.reader.finished() {
                return;
            }
            let place = end..end + event.raw().len();
            let seen = self.reader.event(&event);
            self.nothing_bytes = match seen {
                Seen::Nothing | Seen::CostComment => self.nothing_bytes + event.raw().len(),
                _ => 0,
            };
            if self.nothing_bytes > NOTHING_BYTES_MAX {
                self.failure = Some(broken("the stream has only comments and blank lines"));
                return;
            }
            match seen {
                Seen::Failure(error) => {
                    self.failure = Some(error);
                    return;
                }
                Seen::UsageAlone if self.strip_usage => {
                    replaced.push((place.clone(), Bytes::new()))
                }
                Seen::CostComment => replaced.push((place.clone(), Bytes::new())),
                _ => {
                    if let Some(last) = &mut self.last
                        && is_position(&event)
                    {
                        *last = event.raw().clone();
                    }
                    // A caller that did not request the usage does not get it, even if the gateway ends the stream.
                    let charged = match self.strip_usage && self.reader.lacks_usage() {
                        true => None,
                        false => self.reader.charged(&event, &self.meter),
                    };
                    replaced.extend(charged.map(|charged| (place.clone(), charged)));
                }
            }
            end = place.end;
        });
        let mut rest = match split {
            Ok(whole) => whole,
            Err(error) => {
                // The call is charged as if it was answered. Otherwise a caller could avoid payment by a very long
                // request, because some events repeat the request.
                self.too_long = self.failure.is_none();
                self.failure
                    .get_or_insert_with(|| Error::AnswerTooLong(error.into()));
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

    /// Ends the stream as a vendor does at the request's output limit. Returns the bytes to forward last.
    fn stop(&mut self) -> Bytes {
        // If the end of an event has not arrived, its beginning is dropped.
        self.splitter = Splitter::default();
        let last = self.last.take().unwrap_or_default();
        let events = self.reader.ceiling(last);
        let bytes = self.pass(&events);
        self.ended = true;
        bytes
    }

    /// Handles the end of the vendor's stream. `error` is set if the stream failed. Returns the bytes to forward last.
    fn end(&mut self, error: Option<Error>) -> Bytes {
        self.ended = true;
        let mut rest = Bytes::new();
        // Some vendors omit the blank line after the last event, so that the event seems incomplete.
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
        // An error after the last event is ignored: it is only the vendor's way to close the connection.
        if self.failure.is_none() && !self.reader.may_end() {
            self.failure =
                Some(error.unwrap_or_else(|| broken("the stream ended before its last event")));
        }
        if self.failure.is_none() && !self.reader.finished() {
            rest = [rest, self.reader.closing(&self.meter)].concat().into();
        }
        self.record();
        rest
    }

    fn record(&self) {
        let reader = &self.reader;
        let end = match &self.failure {
            // The caller's request may have caused the vendor's error. So the error must not open the route's breaker
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

/// Returns whether an event has a position in its stream, that is, has data and is not a ping.
fn is_position(event: &Event) -> bool {
    let (name, data) = event.parts();
    name != b"ping" && data.is_some()
}

/// Returns whether the last bytes of a stream, without a blank line at their end, are a complete event. A truncated
/// event is ignored.
fn is_whole(event: &Event) -> bool {
    event.data().is_some_and(|data| {
        let data = data.trim_ascii();
        data == b"[DONE]" || serde_json::from_slice::<IgnoredAny>(data).is_ok()
    })
}

/// Returns the event with the blank line that its vendor omitted.
fn closed(event: &Bytes) -> Bytes {
    let blank: &[u8] = if event.ends_with(b"\n") {
        b"\n"
    } else {
        b"\n\n"
    };
    [event, blank].concat().into()
}

#[cfg(test)]
mod tests;
