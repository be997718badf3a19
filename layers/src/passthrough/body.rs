use std::{
    future::poll_fn,
    mem,
    pin::Pin,
    task::{Context, Poll},
    time::Duration,
};

use bytes::{Bytes, BytesMut};
use http_body::{Body, Frame, SizeHint};
use pin_project_lite::pin_project;
use tokio::time::{Instant, Sleep, sleep_until, timeout_at};

use super::{
    broken,
    usage::{Reader, Seen},
};
use crate::{
    call::Format,
    error::Error,
    sse::Splitter,
    usage::{End, Meter},
};

/// Silence of this length is broken.
const KEEP_ALIVE: Duration = Duration::from_secs(10);
/// Comments that come before the first event are kept up to this.
const HELD_BYTES_MAX: usize = 64 * 1024;
/// A chunk with usage and nothing else is never longer: what is longer is not held back, nor searched again
/// with each piece that comes.
const USAGE_BYTES_MAX: usize = 16 * 1024;

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
    pub(super) fn stream(inner: A, format: Format, strip_usage: bool, meter: Meter) -> Self {
        let tap = Tap {
            splitter: Splitter::default(),
            reader: Reader::new(format),
            meter,
            strip_usage,
            passed: 0,
            failure: None,
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
            if held.is_empty() && !tap.ended && tap.splitter.unfinished().is_empty() {
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

    fn spoke(&self) -> bool {
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
                if tap.held {
                    return Poll::Pending;
                }
                return tap
                    .keep_alive(cx)
                    .map(|comment| Some(Ok(Frame::data(comment))));
            };
            let bytes = match frame {
                Some(Ok(frame)) => match frame.into_data() {
                    Ok(chunk) => tap.pass(chunk),
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
    /// Bytes of the unfinished event that have been passed on already.
    passed: usize,
    failure: Option<Error>,
    ended: bool,
    /// Since when nothing goes on; `None` until it was asked for.
    quiet: Option<Instant>,
    /// Set when nothing is there, and not moved by every frame: when it goes off it looks.
    alarm: Option<Pin<Box<Sleep>>>,
    /// Nobody is there yet to be kept awake.
    held: bool,
}

impl Tap {
    /// What is sent while the vendor thinks, so that nobody on the way takes the stream for dead. Never
    /// inside an event.
    fn keep_alive(&mut self, cx: &mut Context<'_>) -> Poll<Bytes> {
        let due = *self.quiet.get_or_insert_with(Instant::now) + KEEP_ALIVE;
        let alarm = self.alarm.get_or_insert_with(|| Box::pin(sleep_until(due)));
        while alarm.as_mut().poll(cx).is_ready() {
            let now = Instant::now();
            if now >= due && self.splitter.unfinished().is_empty() {
                self.quiet = Some(now);
                alarm.as_mut().reset(now + KEEP_ALIVE);
                // The alarm's next time must be known to the task.
                let _ = alarm.as_mut().poll(cx);
                return Poll::Ready(self.reader.keep_alive());
            }
            // Something came since, or an event is half sent.
            alarm
                .as_mut()
                .reset(if now < due { due } else { now + KEEP_ALIVE });
        }
        Poll::Pending
    }

    /// What goes on now: the chunk itself, unless something in it must not.
    fn pass(&mut self, chunk: Bytes) -> Bytes {
        self.quiet = None;
        let Self {
            splitter,
            reader,
            strip_usage,
            passed,
            failure,
            ..
        } = self;
        let (begun, already) = (splitter.unfinished().len(), *passed);
        let mut pieces = Pieces::default();
        // Up to where the chunk has gone on, and where in it the last complete event ends.
        let (mut from, mut end, mut first) = (0, 0, true);
        let split = splitter.push(&chunk, |event| {
            if failure.is_some() {
                return;
            }
            let start = end;
            end += event.raw().len() - if first { begun } else { 0 };
            match reader.event(&event) {
                Seen::Failure(error) => {
                    pieces.push(chunk.slice(from..start));
                    from = chunk.len();
                    *failure = Some(error);
                }
                // What has begun to go on goes on.
                Seen::UsageAlone if *strip_usage && !(first && already > 0) => {
                    pieces.push(chunk.slice(from..start));
                    from = end;
                }
                _ if first => pieces.push(event.raw().slice(already..begun)),
                _ => {}
            }
            first = false;
        });
        if split.is_err() {
            *failure = Some(broken("an endless event"));
        }
        let already = if first { already } else { 0 };
        if failure.is_some() {
            self.ended = true;
        } else if *strip_usage && already == 0 && may_be_usage_alone(splitter.unfinished()) {
            // Only what may have to be taken out waits for its end.
            pieces.push(chunk.slice(from..end));
            *passed = 0;
        } else {
            if first {
                pieces.push(Bytes::copy_from_slice(
                    &splitter.unfinished()[already..begun],
                ));
            }
            // The usual chunk goes on as it is.
            pieces.push(match from {
                0 => chunk,
                from => chunk.slice(from..),
            });
            *passed = splitter.unfinished().len();
        }
        self.record();
        pieces.joined()
    }

    /// The vendor's stream has ended, or failed; what was held back goes on.
    fn end(&mut self, error: Option<Error>) -> Bytes {
        self.ended = true;
        let mut rest = Bytes::new();
        if let Some(event) = self.splitter.finish() {
            match self.reader.event(&event) {
                Seen::Failure(error) => self.failure = Some(error),
                Seen::UsageAlone if self.strip_usage && self.passed == 0 => {}
                // An event that was cut is no event: it would look like one.
                _ if self.reader.finished() => rest = event.raw().slice(self.passed..),
                _ => {}
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
            Some(Error::VendorUnavailable(_)) => Some(End::VendorError),
            Some(_) => Some(End::VendorCut),
            None => (reader.finished() || self.ended).then_some(End::Finished),
        };
        self.meter.update(|reading| {
            reading.usage = reader.usage();
            reading.output_counted = reader.output_counted();
            reading.suspect = reader.suspect();
            reading.text_bytes = reader.text_bytes();
            reading.usage_due = reader.may_end() && !reader.finished();
            reading.end = end;
        });
    }
}

/// Whether the beginning of an event could be that of a chunk with usage and without choices.
fn may_be_usage_alone(begun: &[u8]) -> bool {
    if begun.is_empty() || begun.len() > USAGE_BYTES_MAX {
        return false;
    }
    let Some(at) = memchr::memmem::find(begun, b"\"choices\"") else {
        return true;
    };
    let mut rest = begun[at + b"\"choices\"".len()..]
        .iter()
        .filter(|byte| !byte.is_ascii_whitespace());
    !matches!((rest.next(), rest.next(), rest.next()), (_, _, Some(byte)) if *byte != b']')
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
mod tests {
    use http_body_util::{BodyExt, StreamBody};

    use super::*;
    use crate::usage::{Reading, Usage};

    fn chat(text: &str) -> String {
        format!(
            "data: {{\"choices\":[{{\"index\":0,\"delta\":{{\"content\":\"{text}\"}}}}],\"usage\":null}}\n\n"
        )
    }

    const FINISH: &str = "data: {\"choices\":[{\"delta\":{},\"finish_reason\":\"stop\"}]}\n\n";
    const USAGE: &str = "data: {\"choices\": [], \"usage\":{\"prompt_tokens\":9,\"completion_tokens\":4,\"total_tokens\":13}}\n\n";
    const DONE: &str = "data: [DONE]\n\n";

    async fn through(
        chunks: &[&[u8]],
        format: Format,
        strip: bool,
    ) -> (Vec<Bytes>, Option<Error>, Reading) {
        let frames: Vec<_> = chunks
            .iter()
            .map(|chunk| Ok(Frame::data(Bytes::copy_from_slice(chunk))))
            .collect();
        let meter = Meter::default();
        let inner = StreamBody::new(futures_util::stream::iter(frames));
        let mut body = std::pin::pin!(ResponseBody::stream(inner, format, strip, meter.clone()));
        let (mut out, mut failure) = (Vec::new(), None);
        while let Some(frame) = body.frame().await {
            match frame {
                Ok(frame) => out.push(frame.into_data().unwrap()),
                Err(error) => failure = Some(error),
            }
        }
        (out, failure, meter.read())
    }

    #[tokio::test]
    async fn frames_pass_as_they_come() {
        let (one, two) = (chat("привет"), chat("мир"));
        let chunks = [
            one.as_bytes(),
            &two.as_bytes()[..7],
            &two.as_bytes()[7..],
            USAGE.as_bytes(),
            DONE.as_bytes(),
        ];
        let (out, failure, reading) = through(&chunks, Format::Chat, false).await;
        assert_eq!(
            out, chunks,
            "each frame by itself, cut where the vendor cut it"
        );
        assert!(failure.is_none());
        assert_eq!(reading.end, Some(End::Finished));
        assert_eq!(
            reading.usage,
            Some(Usage {
                input: 9,
                output: 4,
                ..Usage::default()
            })
        );
        assert_eq!(reading.text_bytes, 18);
    }

    #[tokio::test]
    async fn usage_is_believed_whatever_stands_beside_it() {
        for beside in [
            r#""id":"x""#,
            r#""choices":null"#,
            r#""choices":{}"#,
            r#""choices":"none""#,
            r#""choices":7"#,
            r#""choices":[],"choices":[]"#,
            r#""choices":[],"x_groq":"x""#,
        ] {
            let usage = r#""usage":{"prompt_tokens":9,"completion_tokens":4}"#;
            let usage = format!("data: {{{beside},{usage}}}\n\n");
            let stream = [chat("a"), FINISH.into(), usage, DONE.into()].concat();
            let (_, failure, reading) = through(&[stream.as_bytes()], Format::Chat, false).await;
            assert!(failure.is_none(), "{beside}");
            let counts = reading.usage.map(|usage| (usage.input, usage.output));
            assert_eq!(
                (counts, reading.output_counted, reading.suspect),
                (Some((9, 4)), true, false),
                "{beside}"
            );
        }
        let stream = concat!(
            "event: message_start\ndata: {\"type\":\"message_start\",\"message\":{\"usage\":{\"input_tokens\":5}}}\n\n",
            "event: message_delta\ndata: {\"type\":\"message_delta\",\"message\":\"x\",\"usage\":{\"output_tokens\":3}}\n\n",
            "event: message_stop\ndata: {\"type\":\"message_stop\"}\n\n",
        );
        let (_, failure, reading) = through(&[stream.as_bytes()], Format::Messages, false).await;
        assert!(failure.is_none());
        let counts = reading.usage.map(|usage| (usage.input, usage.output));
        assert_eq!((counts, reading.suspect), (Some((5, 3)), false));
    }

    #[tokio::test]
    async fn our_usage_chunk_is_taken_out_wherever_the_stream_is_cut() {
        let stream = [
            chat("a"),
            chat("b\\\"choices\\\":[]"),
            FINISH.into(),
            USAGE.into(),
            DONE.into(),
        ]
        .concat();
        let expected = stream.replace(USAGE, "");
        for a in 0..=stream.len() {
            for b in [a, (a + 5).min(stream.len()), stream.len()] {
                let bytes = stream.as_bytes();
                let (out, failure, reading) = through(
                    &[&bytes[..a], &bytes[a..b], &bytes[b..]],
                    Format::Chat,
                    true,
                )
                .await;
                assert_eq!(
                    String::from_utf8(out.concat()).unwrap(),
                    expected,
                    "cut at {a} and {b}"
                );
                assert!(failure.is_none());
                assert_eq!(reading.usage.unwrap().output, 4);
            }
        }
    }

    #[tokio::test]
    async fn text_is_not_held_back_for_the_usage_chunk() {
        let one = chat("a long text that is cut here and there");
        let (out, ..) = through(
            &[&one.as_bytes()[..60], &one.as_bytes()[60..]],
            Format::Chat,
            true,
        )
        .await;
        assert_eq!(out.first().map(Bytes::len), Some(60));
    }

    #[tokio::test]
    async fn a_stream_that_breaks_off_fails_and_keeps_what_was_seen() {
        let one = chat("abcd");
        for chunks in [vec![one.as_bytes()], vec![one.as_bytes(), b"data: {\"choi"]] {
            let (_, failure, reading) = through(&chunks, Format::Chat, true).await;
            assert!(matches!(failure, Some(Error::VendorBroken(_))));
            assert_eq!(reading.end, Some(End::VendorCut));
            assert_eq!((reading.usage, reading.text_bytes), (None, 4));
        }
    }

    #[tokio::test]
    async fn a_finish_without_the_last_line_is_an_end() {
        let (_, failure, reading) = through(
            &[chat("a").as_bytes(), FINISH.as_bytes()],
            Format::Chat,
            true,
        )
        .await;
        assert!(failure.is_none() && reading.end == Some(End::Finished));
    }

    #[tokio::test]
    async fn an_error_event_ends_the_stream_and_does_not_pass() {
        let one = chat("a");
        let error = "data: {\"error\":{\"message\":\"org-secret overloaded\",\"code\":503}}\n\n";
        let (out, failure, reading) = through(
            &[format!("{one}{error}").as_bytes(), DONE.as_bytes()],
            Format::Chat,
            true,
        )
        .await;
        assert_eq!(out, [one.as_bytes()]);
        assert!(
            matches!(failure, Some(Error::VendorUnavailable(_))),
            "{failure:?}"
        );
        assert_eq!(reading.end, Some(End::VendorError));
    }

    #[tokio::test(start_paused = true)]
    async fn ten_seconds_of_silence_are_broken_between_events_only() {
        use futures_util::StreamExt;
        for (format, comment) in [
            (Format::Chat, ": keep-alive\n\n"),
            (
                Format::Messages,
                "event: ping\ndata: {\"type\":\"ping\"}\n\n",
            ),
        ] {
            let pieces = [": a\n\n", "data: {\"", "x\":1}\n\n", ": b\n\n"];
            let frames = futures_util::stream::iter(pieces).then(async |piece: &'static str| {
                tokio::time::sleep(Duration::from_secs(25)).await;
                Ok::<_, Error>(Frame::data(Bytes::from_static(piece.as_bytes())))
            });
            let inner = StreamBody::new(Box::pin(frames));
            let mut body =
                std::pin::pin!(ResponseBody::stream(inner, format, false, Meter::default()));
            let mut out = String::new();
            while let Some(Ok(frame)) = body.frame().await {
                out.push_str(std::str::from_utf8(&frame.into_data().unwrap()).unwrap());
            }
            let two = comment.repeat(2);
            let expected = [&two, pieces[0], &two, pieces[1], pieces[2], &two, pieces[3]].concat();
            assert_eq!(out, expected);
        }
    }

    /// The stream from its head on, where each piece comes after so many seconds.
    async fn begun(
        format: Format,
        pieces: Vec<(u64, &'static str)>,
    ) -> (
        u64,
        Result<ResponseBody<impl Body<Data = Bytes, Error = Error>>, Error>,
    ) {
        use futures_util::StreamExt;
        let frames =
            futures_util::stream::iter(pieces).then(async |(wait, piece): (u64, &'static str)| {
                tokio::time::sleep(Duration::from_secs(wait)).await;
                Ok::<_, Error>(Frame::data(Bytes::from_static(piece.as_bytes())))
            });
        let inner = StreamBody::new(Box::pin(frames));
        let began = Instant::now();
        let body = ResponseBody::stream(inner, format, true, Meter::default());
        let body = body.begun(Duration::from_secs(30)).await;
        (began.elapsed().as_secs(), body)
    }

    const ERROR: &str =
        "event: error\ndata: {\"type\":\"error\",\"error\":{\"message\":\"x\"}}\n\n";
    const CHAT_ERROR: &str = "data: {\"error\":{\"message\":\"x\"}}\n\n";
    const PING: &str = "event: ping\ndata: {\"type\":\"ping\"}\n\n";

    #[tokio::test(start_paused = true)]
    async fn signs_of_life_do_not_take_the_status_from_the_error_behind_them() {
        for (format, pieces) in [
            (Format::Chat, vec![(0, ": working\n\n"), (29, CHAT_ERROR)]),
            (
                Format::Chat,
                vec![(0, ": work"), (20, "ing\n\n"), (9, CHAT_ERROR)],
            ),
            (Format::Messages, vec![(0, PING), (29, ERROR)]),
        ] {
            let (_, body) = begun(format, pieces.clone()).await;
            assert!(body.is_err(), "{pieces:?}");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn the_head_waits_for_the_first_event_and_thirty_seconds_at_most() {
        const EVENT: &str = "data: {\"choices\":[{\"delta\":{\"content\":\"a\"}}]}\n\n";
        for (pieces, seconds, held) in [
            (vec![(3, EVENT)], 3, EVENT.to_owned()),
            (
                vec![(1, ": a\n\n"), (28, EVENT)],
                29,
                format!(": a\n\n{EVENT}"),
            ),
            (vec![(31, EVENT)], 30, ": keep-alive\n\n".to_owned()),
            (vec![(1, ": a\n\n"), (31, EVENT)], 30, ": a\n\n".to_owned()),
        ] {
            let (waited, body) = begun(Format::Chat, pieces).await;
            let mut body = std::pin::pin!(body.unwrap());
            let first = body.frame().await.unwrap().unwrap().into_data().unwrap();
            assert_eq!(
                (waited, String::from_utf8(first.to_vec()).unwrap()),
                (seconds, held)
            );
        }
    }

    #[tokio::test]
    async fn messages_streams_are_metered_too() {
        let stream = concat!(
            "event: message_start\ndata: {\"type\":\"message_start\",\"message\":{\"usage\":{\"input_tokens\":5,",
            "\"cache_read_input_tokens\":7,\"cache_creation_input_tokens\":2,\"output_tokens\":1}}}\n\n",
            "event: ping\ndata: {\"type\": \"ping\"}\n\n",
            "event: content_block_delta\ndata: {\"type\":\"content_block_delta\",\"index\":0,\"delta\":",
            "{\"type\":\"text_delta\",\"text\":\"hello\"}}   \n\n",
            "event: message_delta\ndata: {\"type\":\"message_delta\",\"delta\":{},\"usage\":{\"output_tokens\":3}}\n\n",
            "event: message_stop\ndata: {\"type\":\"message_stop\"}\n\n",
        );
        let (out, failure, reading) = through(&[stream.as_bytes()], Format::Messages, false).await;
        assert_eq!(out.concat(), stream.as_bytes());
        assert!(failure.is_none() && reading.end == Some(End::Finished));
        assert_eq!(
            reading.usage,
            Some(Usage {
                input: 5,
                cached_input: 7,
                cache_write: 2,
                output: 3
            })
        );
        assert_eq!(reading.text_bytes, 5);
    }
}
