use std::{
    pin::Pin,
    task::{Context, Poll, ready},
};

use bytes::{Bytes, BytesMut};
use http_body::{Body, Frame, SizeHint};
use pin_project_lite::pin_project;
use tokio::time::Instant;

use crate::{
    body::PolledFrame,
    error::{BoxError, Error},
    formats::{turn::Translator, wire::mended},
    sse::{Event, SILENCE_MAX, Splitter},
    usage::{End, Meter},
};

pin_project! {
    /// The body of a response in the caller's format: the vendor's body, unchanged or translated.
    #[derive(Debug)]
    pub struct ResponseBody<A> {
        #[pin]
        inner: Inner<A>,
    }
}

pin_project! {
    #[derive(Debug)]
    #[project = Projected]
    enum Inner<A> {
        Same { #[pin] inner: A },
        Whole { bytes: Option<Bytes> },
        Events { #[pin] inner: A, stream: Box<Stream> },
    }
}

impl<A> ResponseBody<A> {
    pub(super) const fn same(inner: A) -> Self {
        let inner = Inner::Same { inner };
        Self { inner }
    }

    pub(super) const fn whole(bytes: Bytes) -> Self {
        let inner = Inner::Whole { bytes: Some(bytes) };
        Self { inner }
    }

    /// Translates each event of the vendor's stream. If the translation fails, the meter records this as the end of the
    /// response.
    pub(super) fn events(inner: A, translator: Translator, meter: Meter) -> Self {
        let stream = Stream {
            splitter: Splitter::default(),
            translator,
            meter,
            quiet: None,
            failure: None,
            ended: false,
        };
        Self {
            inner: Inner::Events {
                inner,
                stream: Box::new(stream),
            },
        }
    }
}

impl<A> Body for ResponseBody<A>
where
    A: Body<Data = Bytes, Error: Into<BoxError> + 'static>,
{
    type Data = Bytes;
    type Error = Error;

    fn poll_frame(self: Pin<&mut Self>, cx: &mut Context<'_>) -> PolledFrame {
        let (mut inner, stream) = match self.project().inner.project() {
            Projected::Same { inner } => {
                let frame = ready!(inner.poll_frame(cx));
                return Poll::Ready(frame.map(|frame| frame.map_err(Error::from_below)));
            }
            Projected::Whole { bytes } => {
                return Poll::Ready(bytes.take().map(|bytes| Ok(Frame::data(bytes))));
            }
            Projected::Events { inner, stream } => (inner, stream),
        };
        loop {
            if stream.ended {
                return Poll::Ready(stream.failure.take().map(Err));
            }
            let translated = match ready!(inner.as_mut().poll_frame(cx)) {
                Some(Ok(frame)) => match frame.into_data() {
                    Ok(chunk) => stream.chunk(&chunk),
                    Err(_) => continue,
                },
                Some(Err(error)) => {
                    stream.ended = true;
                    return Poll::Ready(Some(Err(Error::from_below(error))));
                }
                None => stream.end(),
            };
            // An event that has no counterpart in the caller's format produces no frame.
            if !translated.is_empty() {
                return Poll::Ready(Some(Ok(Frame::data(translated))));
            }
        }
    }

    fn is_end_stream(&self) -> bool {
        match &self.inner {
            Inner::Same { inner } => inner.is_end_stream(),
            Inner::Whole { bytes } => bytes.is_none(),
            Inner::Events { stream, .. } => stream.ended && stream.failure.is_none(),
        }
    }

    fn size_hint(&self) -> SizeHint {
        match &self.inner {
            Inner::Same { inner } => inner.size_hint(),
            Inner::Whole { bytes } => {
                SizeHint::with_exact(bytes.as_ref().map_or(0, |bytes| bytes.len() as u64))
            }
            Inner::Events { .. } => SizeHint::default(),
        }
    }
}

#[derive(Debug)]
struct Stream {
    splitter: Splitter,
    translator: Translator,
    meter: Meter,
    /// The time since which the vendor has sent only events without output for the caller.
    quiet: Option<Instant>,
    failure: Option<Error>,
    ended: bool,
}

impl Stream {
    /// Translates the events that this chunk completes, and returns their output as one frame. No event waits for a
    /// later event.
    fn chunk(&mut self, chunk: &Bytes) -> Bytes {
        let mut out = BytesMut::new();
        let split = self.splitter.push(chunk, |event| {
            if self.failure.is_none() {
                self.failure = translated(&mut self.translator, &event, &mut out).err();
            }
        });
        if let Err(error) = split {
            self.failure
                .get_or_insert_with(|| Error::VendorBroken(error.into()));
        }
        if !out.is_empty() {
            self.quiet = None;
        } else if self.failure.is_none() && told_nothing_for_long(&mut self.quiet) {
            // The vendor's events produce no output, so the caller needs a keep-alive. If the vendor sends nothing,
            // `passthrough` sends the keep-alive.
            self.failure = self.translator.alive(&mut out).err();
        }
        self.ended = self.failure.is_some();
        self.tell_failure();
        out.freeze()
    }

    fn end(&mut self) -> Bytes {
        self.ended = true;
        let mut out = BytesMut::new();
        let last = self.splitter.finish().map_or(Ok(()), |event| {
            translated(&mut self.translator, &event, &mut out)
        });
        self.failure = last.and_then(|()| self.translator.end(&mut out)).err();
        self.tell_failure();
        out.freeze()
    }

    /// Records the failure in the meter. Without this, the meter would have only what the layer below reads from the
    /// vendor's bytes: that the response is running or complete. But the caller gets an error, so the call must be
    /// recorded as failed and charged.
    fn tell_failure(&self) {
        let end = match &self.failure {
            None => return,
            Some(Error::VendorUnavailable(_)) => End::VendorError,
            Some(_) => End::VendorCut,
        };
        let is_too_long = matches!(self.failure, Some(Error::AnswerTooLong(_)));
        self.meter.update(|reading| {
            reading.end = Some(end);
            reading.answered |= is_too_long;
        });
    }
}

/// Translates an event. If the translation fails, replaces invalid characters in the event and translates it again.
fn translated(translator: &mut Translator, event: &Event, out: &mut BytesMut) -> Result<(), Error> {
    let written = out.len();
    translator.event(event, out).or_else(|error| {
        let mended = mended(event.raw()).ok_or(error)?;
        out.truncate(written);
        translator.event(&Event::of(mended), out)
    })
}

fn told_nothing_for_long(quiet: &mut Option<Instant>) -> bool {
    let now = Instant::now();
    let since = quiet.get_or_insert(now);
    let is_long = now.saturating_duration_since(*since) >= SILENCE_MAX;
    if is_long {
        *since = now;
    }
    is_long
}

#[cfg(test)]
mod tests {
    use http_body_util::{BodyExt, StreamBody};

    use super::*;
    use crate::{
        call::Format,
        formats::{origin::Origin, wire::AnswerCx},
    };

    const CHUNK: &str = "data: {\"id\":\"1\",\"model\":\"m\",\"choices\":[{\"index\":0,\"delta\":{\"content\":\"a\"}}]}\n\n";
    const START: &str =
        "data: {\"type\":\"message_start\",\"message\":{\"id\":\"1\",\"model\":\"m\"}}\n\n";

    /// Returns whether the caller gets a complete stream, and the end that the meter has recorded. Each frame comes
    /// with the end that the layer below records before the frame.
    async fn ended(caller: Format, frames: &[(&'static str, Option<End>)]) -> (bool, Option<End>) {
        let meter = Meter::default();
        let (frames, reported) = (frames.to_vec(), meter.clone());
        let frames = frames.into_iter().map(move |(frame, end)| {
            reported.update(|reading| reading.end = end);
            Ok::<_, Error>(Frame::data(Bytes::from_static(frame.as_bytes())))
        });
        let inner = StreamBody::new(futures_util::stream::iter(frames));
        let cx = AnswerCx {
            created: 1,
            usage_asked: false,
            thinking_asked: false,
        };
        let translator = match caller {
            Format::Messages => Translator::to_messages(Format::Chat, Origin::default(), cx, false),
            _ => Translator::to_chat(Format::Messages, Origin::default(), cx, false),
        };
        let body = ResponseBody::events(inner, translator, meter.clone());
        let whole = body.collect().await.is_ok();
        (whole, meter.read().end)
    }

    /// Output can be hidden from the caller: for example, reasoning that the caller did not request.
    #[tokio::test(start_paused = true)]
    async fn keep_alive_is_sent_after_ten_seconds_of_output_hidden_from_the_caller() {
        const THOUGHT: &str = "data: {\"id\":\"1\",\"model\":\"m\",\"choices\":[{\"index\":0,\"delta\":{\"reasoning_content\":\"a\"}}]}\n\n";
        let begun = Instant::now();
        let chunks = std::iter::once(CHUNK).chain(std::iter::repeat_n(THOUGHT, 12));
        let inner = futures_util::stream::iter(chunks);
        let inner = futures_util::StreamExt::then(inner, async |chunk| {
            tokio::time::sleep(std::time::Duration::from_secs(3)).await;
            Ok::<_, Error>(Frame::data(Bytes::from_static(chunk.as_bytes())))
        });
        let cx = AnswerCx {
            created: 1,
            usage_asked: false,
            thinking_asked: false,
        };
        let translator = Translator::to_messages(Format::Chat, Origin::default(), cx, false);
        let inner = Box::pin(StreamBody::new(inner));
        let mut body = ResponseBody::events(inner, translator, Meter::default());
        let mut reported = Vec::new();
        while let Some(Ok(frame)) = body.frame().await {
            let data = frame.into_data().unwrap();
            let is_ping = data.starts_with(b"event: ping");
            reported.push((begun.elapsed().as_secs(), is_ping));
        }
        // At 3 s, the first text is forwarded. The caller gets a keep-alive twelve seconds after the first hidden
        // event, and another one twelve seconds later.
        assert_eq!(reported, [(3, false), (18, true), (30, true)]);
    }

    #[tokio::test]
    async fn stream_that_cannot_be_translated_counts_as_the_vendors_failure() {
        let (finish, done) = (
            "data: {\"choices\":[{\"delta\":{},\"finish_reason\":\"stop\"}]}\n\n",
            "data: [DONE]\n\n",
        );
        let (running, over) = (None, Some(End::Finished));
        let cut = (false, Some(End::VendorCut));
        for (what, caller, frames, expected) in [
            (
                "whole",
                Format::Messages,
                vec![(CHUNK, running), (finish, running), (done, over)],
                (true, over),
            ),
            ("no answer", Format::Messages, vec![(done, over)], cut),
            (
                "no chunk",
                Format::Messages,
                vec![(CHUNK, running), ("data: {\"choices\":7}\n\n", running)],
                cut,
            ),
            (
                "no reason",
                Format::Messages,
                vec![(CHUNK, running), ("data: {}\n\n", over)],
                cut,
            ),
            (
                "no event",
                Format::Chat,
                vec![(START, running), ("data: 7\n\n", running)],
                cut,
            ),
            (
                "no stop reason",
                Format::Chat,
                vec![
                    (START, running),
                    ("data: {\"type\":\"message_stop\"}\n\n", over),
                ],
                cut,
            ),
        ] {
            assert_eq!(ended(caller, &frames).await, expected, "{what}");
        }
    }
}
