use std::{
    pin::Pin,
    task::{Context, Poll, ready},
};

use bytes::{Bytes, BytesMut};
use http_body::{Body, Frame, SizeHint};
use pin_project_lite::pin_project;
use tokio::time::Instant;

use super::pair::Translator;
use crate::{
    error::Error,
    sse::{SILENCE_MAX, Splitter},
    usage::{End, Meter},
};

pin_project! {
    /// An answer in the caller's format: as it came, or translated as it comes.
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
        Self {
            inner: Inner::Same { inner },
        }
    }

    pub(super) const fn whole(bytes: Bytes) -> Self {
        Self {
            inner: Inner::Whole { bytes: Some(bytes) },
        }
    }

    /// What is translated event by event. Where that fails the meter is told how the answer ended.
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
    A: Body<Data = Bytes, Error = Error>,
{
    type Data = Bytes;
    type Error = Error;

    fn poll_frame(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Error>>> {
        let (mut inner, stream) = match self.project().inner.project() {
            Projected::Same { inner } => return inner.poll_frame(cx),
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
                    return Poll::Ready(Some(Err(error)));
                }
                None => stream.end(),
            };
            // Events that mean nothing in the caller's format make no frame.
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
    /// Since when the vendor says what its caller is not told.
    quiet: Option<Instant>,
    failure: Option<Error>,
    ended: bool,
}

impl Stream {
    /// All events that the chunk completes, in one frame: none waits for another.
    fn chunk(&mut self, chunk: &Bytes) -> Bytes {
        let Self {
            splitter,
            translator,
            quiet,
            failure,
            ..
        } = self;
        let mut out = BytesMut::new();
        let split = splitter.push(chunk, |event| {
            if failure.is_none() {
                *failure = translator.event(&event, &mut out).err();
            }
        });
        if let Err(error) = split {
            failure.get_or_insert_with(|| Error::VendorBroken(error.into()));
        }
        if !out.is_empty() {
            *quiet = None;
        } else if failure.is_none() && told_nothing_for_long(quiet) {
            // The vendor's own silence is broken where its bytes are passed on.
            *failure = translator.alive(&mut out).err();
        }
        self.ended = self.failure.is_some();
        self.tell_failure();
        out.freeze()
    }

    fn end(&mut self) -> Bytes {
        self.ended = true;
        let mut out = BytesMut::new();
        let last = self
            .splitter
            .finish()
            .map_or(Ok(()), |event| self.translator.event(&event, &mut out));
        self.failure = last.and_then(|()| self.translator.end(&mut out)).err();
        self.tell_failure();
        out.freeze()
    }

    /// Whoever meters the vendor's bytes takes an answer that cannot be translated for one that goes on, or is
    /// whole. Its caller gets an error, and it is charged and booked as one.
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
        translate::{chat, messages, wire::AnswerCx},
    };

    const CHUNK: &str = "data: {\"id\":\"1\",\"model\":\"m\",\"choices\":[{\"index\":0,\"delta\":{\"content\":\"a\"}}]}\n\n";
    const START: &str =
        "data: {\"type\":\"message_start\",\"message\":{\"id\":\"1\",\"model\":\"m\"}}\n\n";

    /// How a stream ends for its caller, and by the meter; each frame is told to that as it comes.
    async fn ended(caller: Format, frames: &[(&'static str, Option<End>)]) -> (bool, Option<End>) {
        let meter = Meter::default();
        let (frames, told) = (frames.to_vec(), meter.clone());
        let frames = frames.into_iter().map(move |(frame, end)| {
            told.update(|reading| reading.end = end);
            Ok(Frame::data(Bytes::from_static(frame.as_bytes())))
        });
        let inner = StreamBody::new(futures_util::stream::iter(frames));
        let cx = AnswerCx {
            created: 1,
            usage_asked: false,
            thinking_asked: false,
        };
        let translator = match caller {
            Format::Messages => Translator::MessagesToChat(messages::Events::new(cx)),
            _ => Translator::ChatToMessages(chat::Events::new(cx)),
        };
        let body = ResponseBody::events(inner, translator, meter.clone());
        let whole = body.collect().await.is_ok();
        (whole, meter.read().end)
    }

    /// Reasoning that the caller has not asked for, say.
    #[tokio::test(start_paused = true)]
    async fn what_is_said_and_not_told_for_ten_seconds_is_told_as_a_sign_of_life() {
        const THOUGHT: &str = "data: {\"id\":\"1\",\"model\":\"m\",\"choices\":[{\"index\":0,\"delta\":{\"reasoning_content\":\"a\"}}]}\n\n";
        let begun = Instant::now();
        let chunks = std::iter::once(CHUNK).chain(std::iter::repeat_n(THOUGHT, 12));
        let inner = futures_util::stream::iter(chunks);
        let inner = futures_util::StreamExt::then(inner, async |chunk| {
            tokio::time::sleep(std::time::Duration::from_secs(3)).await;
            Ok(Frame::data(Bytes::from_static(chunk.as_bytes())))
        });
        let cx = AnswerCx {
            created: 1,
            usage_asked: false,
            thinking_asked: false,
        };
        let translator = Translator::MessagesToChat(messages::Events::new(cx));
        let inner = Box::pin(StreamBody::new(inner));
        let mut body = ResponseBody::events(inner, translator, Meter::default());
        let mut told = Vec::new();
        while let Some(Ok(frame)) = body.frame().await {
            let data = frame.into_data().unwrap();
            let is_ping = data.starts_with(b"event: ping");
            told.push((begun.elapsed().as_secs(), is_ping));
        }
        // What is said first is told; twelve seconds behind the first that is not, the caller is told of it.
        assert_eq!(told, [(3, false), (18, true), (30, true)]);
    }

    #[tokio::test]
    async fn a_stream_that_cannot_be_translated_ends_by_the_vendors_fault() {
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
