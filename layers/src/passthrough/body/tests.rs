//! Tests which events of a stream are forwarded, and what the meter records for them.

use std::sync::Arc;

use futures_util::{FutureExt, StreamExt};
use http_body_util::{BodyExt, StreamBody};
use serde_json::json;

use super::*;
use crate::call::Format;
use crate::usage::{Bounds, CoveredOutput, InputEstimate, Reading, StoppedBy, Usage};

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
    let chunks = chunks.iter().map(|chunk| Bytes::copy_from_slice(chunk));
    through_as_they_are(chunks.collect(), format, strip).await
}

async fn through_as_they_are(
    chunks: Vec<Bytes>,
    format: Format,
    strip: bool,
) -> (Vec<Bytes>, Option<Error>, Reading) {
    let frames = chunks
        .into_iter()
        .map(|chunk| Ok::<_, Error>(Frame::data(chunk)));
    let meter = Meter::default();
    let inner = StreamBody::new(futures_util::stream::iter(frames));
    let mut body = std::pin::pin!(ResponseBody::stream(
        inner,
        Reader::new(format),
        strip,
        meter.clone()
    ));
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
async fn frame_of_whole_events_is_forwarded_without_a_copy() {
    let chunks = [
        chat("привет"),
        [chat("мир"), FINISH.into()].concat(),
        USAGE.into(),
        DONE.into(),
    ];
    let chunks = chunks.map(Bytes::from);
    let (out, failure, reading) = through_as_they_are(chunks.to_vec(), Format::Chat, false).await;
    assert_eq!(out, chunks);
    for (out, chunk) in out.iter().zip(&chunks) {
        assert_eq!(out.as_ptr(), chunk.as_ptr(), "the bytes are not copied");
    }
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
async fn vendor_that_only_sends_blank_lines_or_comments_is_disconnected() {
    for nothing in ["\n", "\r\n", ": on it\n\n"] {
        let piece = Bytes::from(nothing.repeat((64 << 10) / nothing.len()));
        let mut chunks = vec![Bytes::from(chat("мир"))];
        chunks.extend(std::iter::repeat_n(piece, 100));
        let (out, failure, reading) = through_as_they_are(chunks, Format::Chat, false).await;
        assert!(
            matches!(failure, Some(Error::VendorBroken(_))),
            "{failure:?}"
        );
        assert_eq!(reading.end, Some(End::VendorCut));
        let bytes: usize = out.iter().map(Bytes::len).sum();
        assert!(bytes < NOTHING_BYTES_MAX + (128 << 10), "{bytes}");
        // Comments between events are not added up, because each event resets the count.
        let mut chunks = Vec::new();
        for _ in 0..40 {
            chunks.push(Bytes::from(nothing.repeat((64 << 10) / nothing.len())));
            chunks.push(Bytes::from(chat("мир")));
        }
        chunks.extend([FINISH, DONE].map(Bytes::from));
        let (_, failure, _) = through_as_they_are(chunks, Format::Chat, false).await;
        assert!(failure.is_none(), "{failure:?}");
    }
}

#[tokio::test]
async fn incomplete_event_is_withheld_while_complete_events_are_forwarded() {
    let (one, two) = (chat("раз"), chat("два"));
    let (begun, rest) = two.split_at(40);
    for strip in [false, true] {
        let chunks = [
            [&one, begun].concat(),
            rest[..9].to_owned(),
            [&rest[9..], FINISH].concat(),
            DONE.to_owned(),
        ];
        let chunks = chunks.map(Bytes::from);
        let at = chunks[0].as_ptr();
        let (out, failure, reading) =
            through_as_they_are(chunks.to_vec(), Format::Chat, strip).await;
        assert_eq!(out, [one.clone(), [&two, FINISH].concat(), DONE.into()]);
        assert_eq!(out[0].as_ptr(), at, "complete events are not copied");
        assert!(failure.is_none());
        assert_eq!(reading.text_bytes, 12);
    }
}

#[tokio::test]
async fn response_text_is_counted_when_it_is_forwarded() {
    let (one, two) = (chat("раз"), chat("два"));
    let (begun, rest) = two.split_at(two.len() - 1);
    let frames = [[&one, begun].concat(), rest.to_owned()];
    let frames = frames.map(|frame| Ok::<_, Error>(Frame::data(Bytes::from(frame))));
    let meter = Meter::default();
    let inner = StreamBody::new(futures_util::stream::iter(frames));
    let body = ResponseBody::stream(inner, Reader::new(Format::Chat), true, meter.clone());
    let mut body = std::pin::pin!(body);
    for (event, bytes) in [(one, 6), (two, 12)] {
        let frame = body.frame().await.unwrap().unwrap().into_data().unwrap();
        assert_eq!((frame, meter.read().text_bytes), (event.into(), bytes));
    }
}

#[tokio::test]
async fn usage_is_read_despite_malformed_fields_around_it() {
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
async fn usage_chunk_that_only_the_gateway_requested_is_removed_however_the_stream_is_split() {
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
async fn truncated_stream_fails_and_keeps_the_usage_reported_so_far() {
    let one = chat("abcd");
    for chunks in [vec![one.as_bytes()], vec![one.as_bytes(), b"data: {\"choi"]] {
        let (_, failure, reading) = through(&chunks, Format::Chat, true).await;
        assert!(matches!(failure, Some(Error::VendorBroken(_))));
        assert_eq!(reading.end, Some(End::VendorCut));
        assert_eq!((reading.usage, reading.text_bytes), (None, 4));
    }
}

#[tokio::test]
async fn chat_stream_ends_with_done_even_if_its_vendor_omits_it() {
    let text = chat("a");
    let expected = [&text, FINISH, DONE].concat();
    for end in [
        "",
        "data: [DONE]",
        "data: [DONE]\n",
        "data: [DONE]\r\n",
        "data: [DONE]\n\n",
        "data: [DO",
        "data: {\"choices\":[",
        ": bye",
        "data: [DONE]\n\n: bye\n\n",
        "data: [DONE]\n\ndata: {\"error\":{\"message\":\"x\"}}\n\n",
        "data: [DONE]\n\ndata: [DONE]\n\ndata: {\"x\":1}",
    ] {
        let stream = [&text, FINISH, end].concat();
        for cut in 0..=stream.len() {
            let (a, b) = stream.as_bytes().split_at(cut);
            let (out, failure, reading) = through(&[a, b], Format::Chat, true).await;
            let out = String::from_utf8(out.concat()).unwrap();
            assert_eq!(out.replace('\r', ""), expected, "{end:?} cut at {cut}");
            assert!(failure.is_none(), "{end:?} cut at {cut}: {failure:?}");
            assert_eq!(reading.end, Some(End::Finished));
            assert_eq!(reading.text_bytes, 1);
        }
    }
}

#[tokio::test]
async fn last_event_is_forwarded_even_without_its_blank_line() {
    let text = chat("a");
    let stream = [&text, FINISH.trim_end()].concat();
    let (out, failure, _) = through(&[stream.as_bytes()], Format::Chat, true).await;
    assert_eq!(out.concat(), [&text, FINISH, DONE].concat().as_bytes());
    assert!(failure.is_none());

    let cut = &stream[..stream.len() - 3];
    let (out, failure, reading) = through(&[cut.as_bytes()], Format::Chat, true).await;
    assert_eq!(out.concat(), text.as_bytes());
    assert!(matches!(failure, Some(Error::VendorBroken(_))));
    assert_eq!(reading.end, Some(End::VendorCut));

    let start = "event: message_start\ndata: {\"type\":\"message_start\"}\n\n";
    let stop = "event: message_stop\ndata: {\"type\":\"message_stop\"}";
    let stream = [start, stop].concat();
    let (out, failure, _) = through(&[stream.as_bytes()], Format::Messages, false).await;
    assert_eq!(out.concat(), [start, stop, "\n\n"].concat().as_bytes());
    assert!(failure.is_none());
}

#[tokio::test]
async fn a_stream_of_two_choices_ends_when_both_have_finished() {
    let finish = |index: u8| {
        format!(
            "data: {{\"choices\":[{{\"index\":{index},\"delta\":{{}},\"finish_reason\":\"stop\"}}]}}\n\n"
        )
    };
    let stream = [chat("a"), finish(0), chat("b")].concat();
    for (stream, end) in [
        (stream.clone(), End::VendorCut),
        (stream + &finish(1), End::Finished),
    ] {
        let frames = [Ok::<_, Error>(Frame::data(Bytes::from(stream)))];
        let inner = StreamBody::new(futures_util::stream::iter(frames));
        let (reader, meter) = (Reader::new(Format::Chat).choices(2), Meter::default());
        let body = ResponseBody::stream(inner, reader, false, meter.clone());
        let mut body = std::pin::pin!(body);
        while let Some(Ok(_)) = body.frame().await {}
        assert_eq!(meter.read().end, Some(end));
    }
}

#[tokio::test]
async fn another_gateways_cost_comment_is_removed() {
    let stream = [
        &chat("a"),
        ": cost_rub 7.00\n\n",
        ": a comment\n\n",
        FINISH,
        DONE,
    ]
    .concat();
    let (out, failure, _) = through(&[stream.as_bytes()], Format::Chat, false).await;
    let out = String::from_utf8(out.concat()).unwrap();
    assert_eq!(out, stream.replace(": cost_rub 7.00\n\n", ""));
    assert!(failure.is_none(), "{failure:?}");
}

#[tokio::test]
async fn no_byte_of_a_vendors_error_is_forwarded_however_it_is_split() {
    let (text, behind) = (chat("a"), chat("b"));
    let delta = "event: content_block_delta\ndata: {\"type\":\"content_block_delta\",\"index\":0,\
                     \"delta\":{\"type\":\"text_delta\",\"text\":\"a\"}}\n\n";
    let chat_error = "data: {\"error\":{\"message\":\"org-secret overloaded\",\"code\":503}}";
    let error = "event: error\ndata: {\"type\":\"error\",\"error\":{\"message\":\"org-secret\"}}";
    let untyped = "event: error\ndata: {\"error\":{\"message\":\"org-secret\"}}";
    let no_json = "event: error\ndata: org-secret: connection reset";
    for (format, text, error, behind) in [
        (Format::Chat, &*text, chat_error, &*behind),
        (Format::Messages, delta, error, delta),
        (Format::Messages, delta, untyped, delta),
        (Format::Messages, delta, no_json, delta),
    ] {
        // Some vendors close the connection after the error's last byte, without a blank line.
        for end in ["\n\n", "\r\n\r\n", ""] {
            if end.is_empty() && error == no_json {
                // Without a blank line, these bytes may be the beginning of an event. They need not be recognized as an
                // error.
                continue;
            }
            let behind = if end.is_empty() { "" } else { behind };
            let stream = [text, error, end, behind].concat();
            let bytes = stream.as_bytes();
            let whole_and_one_by_one = [bytes.chunks(bytes.len()), bytes.chunks(1)];
            let mut ways: Vec<Vec<&[u8]>> = whole_and_one_by_one.map(Iterator::collect).to_vec();
            for a in 0..=bytes.len() {
                let b = (a + 9).min(bytes.len());
                ways.push(vec![&bytes[..a], &bytes[a..]]);
                ways.push(vec![&bytes[..a], &bytes[a..b], &bytes[b..]]);
            }
            for (way, strip) in ways.iter().zip([false, true].into_iter().cycle()) {
                let (out, failure, reading) = through(way, format, strip).await;
                let out = String::from_utf8(out.concat()).unwrap();
                assert_eq!(out, text, "{way:?}");
                assert!(
                    matches!(failure, Some(Error::VendorUnavailable(_))),
                    "{failure:?}"
                );
                assert_eq!(reading.end, Some(End::VendorError));
                assert_eq!(
                    reading.text_bytes, 1,
                    "text that was not forwarded is not charged"
                );
            }
        }
    }
}

#[tokio::test(start_paused = true)]
async fn keep_alive_is_sent_after_ten_seconds_of_silence_but_never_within_an_event() {
    use futures_util::StreamExt;
    for (format, comment) in [
        (Format::Chat, ": keep-alive\n\n"),
        (
            Format::Messages,
            "event: ping\ndata: {\"type\":\"ping\"}\n\n",
        ),
        (Format::Responses, ": keep-alive\n\n"),
    ] {
        let pieces = [": a\n\n", "data: {\"", "x\":1}\n\n", ": b\n\n"];
        let frames = futures_util::stream::iter(pieces).then(async |piece: &'static str| {
            tokio::time::sleep(Duration::from_secs(25)).await;
            Ok::<_, Error>(Frame::data(Bytes::from_static(piece.as_bytes())))
        });
        let inner = StreamBody::new(Box::pin(frames));
        let mut body = std::pin::pin!(ResponseBody::stream(
            inner,
            Reader::new(format),
            false,
            Meter::default()
        ));
        let mut out = String::new();
        while let Some(Ok(frame)) = body.frame().await {
            out.push_str(std::str::from_utf8(&frame.into_data().unwrap()).unwrap());
        }
        // A comment is forwarded at once. An event is forwarded only when it is complete.
        let two = comment.repeat(2);
        let four = comment.repeat(4);
        let expected = [
            &two, pieces[0], &four, pieces[1], pieces[2], &two, pieces[3],
        ]
        .concat();
        assert_eq!(out, expected);
    }
}

#[tokio::test(start_paused = true)]
async fn no_keep_alive_follows_the_last_event() {
    use futures_util::StreamExt;
    let last = format!("{FINISH}{DONE}");
    let frames = futures_util::stream::iter([(0, last.clone()), (25, ": bye\n\n".to_owned())]);
    let frames = frames.then(async |(wait, piece)| {
        tokio::time::sleep(Duration::from_secs(wait)).await;
        Ok::<_, Error>(Frame::data(Bytes::from(piece)))
    });
    let inner = StreamBody::new(Box::pin(frames));
    let body = ResponseBody::stream(inner, Reader::new(Format::Chat), false, Meter::default());
    assert_eq!(body.collect().await.unwrap().to_bytes(), last);
}

/// Returns the stream as the client gets it, beginning with its head. Each piece arrives this number of seconds after
/// the previous one.
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
    let body = ResponseBody::stream(inner, Reader::new(format), true, Meter::default());
    let body = body.begun(Duration::from_secs(30)).await;
    (began.elapsed().as_secs(), body)
}

const ERROR: &str = "event: error\ndata: {\"type\":\"error\",\"error\":{\"message\":\"x\"}}\n\n";
const CHAT_ERROR: &str = "data: {\"error\":{\"message\":\"x\"}}\n\n";
const PING: &str = "event: ping\ndata: {\"type\":\"ping\"}\n\n";

#[tokio::test(start_paused = true)]
async fn keep_alives_do_not_hide_the_status_of_a_later_error() {
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
async fn response_head_is_sent_with_the_first_event_or_after_thirty_seconds() {
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
async fn usage_of_a_messages_stream_is_metered() {
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
            output: 3,
            ..Usage::default()
        })
    );
    assert_eq!(reading.text_bytes, 5);
}

#[tokio::test]
async fn usage_of_a_responses_stream_is_expected_next_after_its_last_message_or_tool_call_item() {
    let added = |kind: &str| {
        format!(
            "data: {{\"type\":\"response.output_item.added\",\"item\":{{\"type\":\"{kind}\"}}}}\n\n"
        )
    };
    let done = |kind: &str| {
        format!(
            "data: {{\"type\":\"response.output_item.done\",\"item\":{{\"type\":\"{kind}\"}}}}\n\n"
        )
    };
    let last = "data: {\"type\":\"response.completed\",\"response\":{}}\n\n".to_owned();
    for (events, due) in [
        (vec![added("message")], false),
        (vec![added("message"), done("message")], true),
        (vec![added("reasoning"), done("reasoning")], false),
        (vec![done("function_call")], true),
        (vec![added("shell_call"), done("shell_call")], true),
        (
            vec![added("message"), added("function_call"), done("message")],
            false,
        ),
        (vec![done("message"), added("message")], false),
        (vec![added("message"), done("message"), last], false),
    ] {
        let stream = events.concat();
        let (_, _, reading) = through(&[stream.as_bytes()], Format::Responses, false).await;
        assert_eq!(reading.usage_due, due, "{stream}");
    }
}

fn bounds() -> Bounds {
    Bounds {
        input_bound: 100,
        input_limit: 150,
        input_estimate: Some(Arc::new(InputEstimate {
            tokens: 20,
            ..InputEstimate::default()
        })),
        output_bound: 50,
        output_limit: 60,
        ..Bounds::default()
    }
}

/// Returns the stream as it is forwarded to a caller, and the usage that is charged within [`bounds`].
async fn charged(format: Format, events: &[String]) -> (String, Usage) {
    charged_to(format, false, events).await
}

/// Returns the stream as it is forwarded, and the usage that is charged. If `translated`, a layer above translates the
/// response.
async fn charged_to(format: Format, translated: bool, events: &[String]) -> (String, Usage) {
    let frames = events
        .iter()
        .map(|event| Ok::<_, Error>(Frame::data(Bytes::from(event.clone()))));
    let frames: Vec<_> = frames.collect();
    let meter = Meter::default();
    meter.charge_within(bounds());
    meter.update(|reading| reading.translated = translated);
    let inner = StreamBody::new(futures_util::stream::iter(frames));
    let body = ResponseBody::stream(inner, Reader::new(format), false, meter.clone());
    let out = body.collect().await.unwrap().to_bytes();
    let usage = meter.counted().unwrap().usage;
    (String::from_utf8(out.to_vec()).unwrap(), usage)
}

/// Stops the call after this number of the vendor's events. Returns what the caller gets, and what the meter recorded.
/// If `breaks`, the vendor has also sent a part of the next event.
async fn stopped_after(
    format: Format,
    (strip, breaks): (bool, bool),
    events: &[String],
    count: usize,
) -> (String, Reading) {
    let meter = Meter::default();
    let covered = Arc::new(CoveredOutput::new(100, 50));
    meter.charge_within(Bounds {
        growing: Some(covered),
        ..bounds()
    });
    let frames = events[..count].iter().cloned().map(Bytes::from);
    let part = events.get(count).filter(|_| breaks);
    let part = part.map(|event| Bytes::copy_from_slice(&event.as_bytes()[..event.len() / 2]));
    let frames = frames
        .chain(part)
        .map(|event| Ok::<_, Error>(Frame::data(event)));
    let frames: Vec<_> = frames.collect();
    // The vendor sends nothing more, and stopping the call must not wait for the vendor.
    let vendor = futures_util::stream::iter(frames).chain(futures_util::stream::pending());
    let inner = StreamBody::new(vendor);
    let mut body = ResponseBody::stream(inner, Reader::new(format), strip, meter.clone());
    let mut out = String::new();
    while let Some(Some(frame)) = body.frame().now_or_never() {
        let frame = frame.unwrap().into_data().unwrap();
        out.push_str(std::str::from_utf8(&frame).unwrap());
    }
    assert_eq!(out, events[..count].concat());
    meter.update(|reading| reading.stopped_by = Some(StoppedBy::Balance));
    let rest = body.collect().await.unwrap().to_bytes();
    out.push_str(std::str::from_utf8(&rest).unwrap());
    (out, meter.read())
}

#[tokio::test]
async fn stopped_call_ends_like_a_call_at_its_output_limit_wherever_it_is_stopped() {
    let named = |data: serde_json::Value| {
        format!(
            "event: {}\ndata: {data}\n\n",
            data["type"].as_str().unwrap()
        )
    };
    let chunk = |delta: serde_json::Value| {
        format!(
            "data: {}\n\n",
            json!({ "id": "c-1", "object": "chat.completion.chunk", "created": 7, "model": "x",
            "choices": [{ "index": 0, "delta": delta, "finish_reason": null }] })
        )
    };
    let chat = vec![
        chunk(json!({ "role": "assistant", "content": "" })),
        chunk(json!({ "content": "Hello " })),
        chunk(json!({ "content": "there" })),
    ];
    let message = json!({ "id": "m", "type": "message", "role": "assistant", "model": "x", "content": [],
        "usage": { "input_tokens": 9, "output_tokens": 1 } });
    let messages = vec![
        named(json!({ "type": "message_start", "message": message })),
        named(json!({ "type": "ping" })),
        named(
            json!({ "type": "content_block_start", "index": 0, "content_block": { "type": "text", "text": "" } }),
        ),
        named(
            json!({ "type": "content_block_delta", "index": 0, "delta": { "type": "text_delta", "text": "Hello there" } }),
        ),
        named(json!({ "type": "ping" })),
        named(json!({ "type": "content_block_stop", "index": 0 })),
        named(
            json!({ "type": "content_block_start", "index": 1, "content_block": { "type": "text", "text": "" } }),
        ),
    ];
    let created = json!({ "id": "r", "created_at": 7, "model": "x", "status": "in_progress" });
    let responses = vec![
        named(json!({ "type": "response.created", "sequence_number": 0, "response": created })),
        named(
            json!({ "type": "response.output_item.added", "sequence_number": 1, "item": { "type": "message" } }),
        ),
        named(
            json!({ "type": "response.output_text.delta", "sequence_number": 2, "delta": "Hello there" }),
        ),
    ];
    for (format, events) in [
        (Format::Chat, chat),
        (Format::Messages, messages),
        (Format::Responses, responses),
    ] {
        for count in 0..=events.len() {
            for (strip, breaks) in [(false, false), (false, true), (true, false)] {
                if strip && format != Format::Chat {
                    continue;
                }
                let case = format!("{format:?} {count} {strip} {breaks}");
                let (out, reading) = stopped_after(format, (strip, breaks), &events, count).await;
                assert_eq!(reading.end, Some(End::Finished), "{case}");
                let added = &out[events[..count].concat().len()..];
                let data = added.lines().filter_map(|line| line.strip_prefix("data: "));
                let data: Vec<&str> = data.collect();
                let ceiling = match format {
                    Format::Chat => r#""finish_reason":"length""#,
                    Format::Messages => r#""stop_reason":"max_tokens""#,
                    Format::Responses => r#""reason":"max_output_tokens""#,
                };
                assert_eq!(added.matches(ceiling).count(), 1, "{case}: {added}");
                let opened = out.matches("event: content_block_start").count();
                assert_eq!(
                    out.matches("event: content_block_stop").count(),
                    opened,
                    "{case}: {out}"
                );
                assert_eq!(
                    out.matches("event: message_start").count(),
                    usize::from(format == Format::Messages)
                );
                let last = match format {
                    Format::Chat => "[DONE]",
                    Format::Messages => r#"{"type":"message_stop"}"#,
                    Format::Responses => "response.incomplete",
                };
                assert!(data.last().unwrap().contains(last), "{case}: {added}");
                // A reader of the caller's format must find a complete response with the charged usage.
                let (_, failure, read) = through(&[out.as_bytes()], format, false).await;
                assert!(failure.is_none(), "{case}: {failure:?} {out}");
                assert_eq!(read.end, Some(End::Finished), "{case}");
                let charged = Bounds { ..bounds() }.count(&reading).usage;
                let stated = read.usage.map(|usage| (usage.input, usage.output));
                let expected = (!strip).then_some((charged.input, charged.output));
                assert_eq!(stated, expected, "{case}: {out}");
                if format == Format::Chat && count > 0 {
                    assert!(data[0].contains(r#""id":"c-1""#), "{case}: {added}");
                }
                if format == Format::Responses {
                    let number = format!(r#""sequence_number":{}"#, count.max(1));
                    assert!(data.last().unwrap().contains(&number), "{case}: {added}");
                }
            }
        }
    }
}

#[tokio::test]
async fn charged_usage_is_added_only_to_a_translated_stream_without_usage() {
    const PIECE: &str = "event: content_block_delta\ndata: {\"type\":\"content_block_delta\",\"delta\":{\"text\":\"Hello there\"}}\n\n";
    const LAST: &str = "event: message_delta\ndata: {\"type\":\"message_delta\",\"delta\":{\"stop_reason\":\"end_turn\"}}\n\n";
    const STOP: &str = "event: message_stop\ndata: {\"type\":\"message_stop\"}\n\n";
    const DELTA: &str = "event: response.output_text.delta\ndata: {\"type\":\"response.output_text.delta\",\"delta\":\"Hello there\"}\n\n";
    const COMPLETED: &str = "event: response.completed\ndata: {\"type\":\"response.completed\",\"response\":{\"id\":\"r\",\"usage\":null,\"output\":[]}}\n\n";
    for (format, events) in [
        (
            Format::Chat,
            vec![chat("Hello there"), FINISH.to_owned(), DONE.to_owned()],
        ),
        (Format::Chat, vec![chat("Hello there"), FINISH.to_owned()]),
        (
            Format::Messages,
            vec![PIECE.to_owned(), LAST.to_owned(), STOP.to_owned()],
        ),
        (
            Format::Responses,
            vec![DELTA.to_owned(), COMPLETED.to_owned()],
        ),
    ] {
        let (out, usage) = charged_to(format, true, &events).await;
        assert!(usage.input == 20 && usage.output > 0, "{usage:?}");
        let stated = out.lines().filter_map(|line| line.strip_prefix("data: {"));
        let stated =
            stated.map(|data| serde_json::from_str::<serde_json::Value>(&format!("{{{data}")));
        let stated: Vec<_> = stated
            .filter_map(|data| {
                let data = data.unwrap();
                let usage = data
                    .pointer("/response/usage")
                    .or_else(|| data.get("usage"))?;
                let count = |names: [&str; 2]| names.iter().find_map(|name| usage[name].as_u64());
                let input = count(["prompt_tokens", "input_tokens"])?;
                Some((input, count(["completion_tokens", "output_tokens"])?))
            })
            .collect();
        assert_eq!(stated, [(usage.input, usage.output)], "{out}");
        let (out, _) = charged_to(format, false, &events).await;
        let end = if events.len() == 2 && format == Format::Chat {
            DONE
        } else {
            ""
        };
        assert_eq!(out, events.concat() + end);
    }
}

#[tokio::test]
async fn stream_reports_the_charged_usage_and_is_otherwise_unchanged() {
    let responses = |usage: &str| {
        format!(
            "event: response.completed\ndata: {{\"type\":\"response.completed\",\"response\":{{\"id\":\"r\",\"usage\": {usage} ,\"output\":[]}}}}\n\n"
        )
    };
    let messages = |usage: &str| {
        format!(
            "event: message_delta\ndata: {{\"type\":\"message_delta\",\"delta\":{{}}, \"usage\":{usage}}}\n\n"
        )
    };
    let start = "event: message_start\ndata: {\"type\":\"message_start\",\"message\":{\"usage\":{\"input_tokens\":9,\"output_tokens\":1}}}\n\n";
    let stop = "event: message_stop\ndata: {\"type\":\"message_stop\"}\n\n";
    let chunk =
        |usage: &str| format!("id: 7\ndata: {{\"choices\":[],\"usage\":{usage}, \"x\":1.0}}\n\n");
    let in_choice = |usage: &str| {
        format!(
            "data: {{\"choices\":[{{\"delta\":{{}},\"finish_reason\":\"stop\",\"usage\":{usage}}}]}}\n\n"
        )
    };
    let in_groq =
        |usage: &str| format!("data: {{\"x_groq\":{{\"usage\":{usage}}},\"choices\":[]}}\n\n");
    let chat_shown = |prompt: u64, cached: u64, output: u64| {
        let total = prompt + output;
        format!(
            "{{\"prompt_tokens\":{prompt},\"completion_tokens\":{output},\"total_tokens\":{total},\"prompt_tokens_details\":{{\"cached_tokens\":{cached},\"cache_write_tokens\":0}}}}"
        )
    };
    let messages_shown = |input: u64, output: u64| {
        format!(
            "{{\"input_tokens\":{input},\"cache_creation_input_tokens\":0,\"cache_read_input_tokens\":0,\"output_tokens\":{output}}}"
        )
    };
    type Event<'a> = &'a dyn Fn(&str) -> String;
    let chat_events: [(Event<'_>, [String; 2]); 3] = [
        (&chunk, [chat("a") + FINISH, DONE.to_owned()]),
        (&in_groq, [chat("a") + FINISH, DONE.to_owned()]),
        (&in_choice, [chat("a"), DONE.to_owned()]),
    ];
    for (event, [before, after]) in chat_events {
        for (usage, shown) in [
            (
                r#"{"prompt_tokens":9,"completion_tokens":4,"total_tokens":13}"#,
                None,
            ),
            (
                r#"{"prompt_tokens":9,"completion_tokens":51,"total_tokens":60}"#,
                Some((9, 0, 50)),
            ),
            (
                r#"{"prompt_tokens":9,"completion_tokens":4,"total_tokens":93,"prompt_tokens_details":{"cached_tokens":80}}"#,
                Some((89, 80, 4)),
            ),
            (
                r#"{"prompt_tokens":9,"completion_tokens":4,"total_tokens":93}"#,
                Some((89, 0, 4)),
            ),
            (
                r#"{"prompt_tokens":0,"completion_tokens":4}"#,
                Some((20, 0, 4)),
            ),
            (r#""x""#, Some((20, 0, 2))),
        ] {
            let reported = [before.clone(), event(usage), after.clone()];
            let (out, charged) = charged(Format::Chat, &reported).await;
            let shown = shown.map(|(prompt, cached, output)| {
                assert_eq!(
                    (charged.input_total(), charged.cached_input, charged.output),
                    (prompt, cached, output)
                );
                chat_shown(prompt, cached, output)
            });
            let expected = event(shown.as_deref().unwrap_or(usage));
            assert_eq!(
                out,
                [before.clone(), expected, after.clone()].concat(),
                "{usage}"
            );
        }
    }
    for (usage, shown) in [
        (r#"{"output_tokens":4}"#, None),
        (r#"{"output_tokens":51}"#, Some((9, 50))),
        (r#"{"input_tokens":1000,"output_tokens":4}"#, Some((100, 4))),
        // The last event counts fewer tokens than `message_start` did.
        (r#"{"input_tokens":8,"output_tokens":4}"#, Some((8, 4))),
    ] {
        let reported = [start.to_owned(), messages(usage), stop.to_owned()];
        let (out, charged) = charged(Format::Messages, &reported).await;
        let shown = shown.map(|(input, output)| {
            assert_eq!((charged.input, charged.output), (input, output), "{usage}");
            messages_shown(input, output)
        });
        let expected = messages(shown.as_deref().unwrap_or(usage));
        assert_eq!(out, [start, &expected, stop].concat(), "{usage}");
    }
    for (usage, shown) in [
        (
            r#"{"input_tokens":9,"output_tokens":4,"total_tokens":13}"#,
            None,
        ),
        (
            r#"{"input_tokens":9,"output_tokens":51,"total_tokens":60}"#,
            Some((9, 50)),
        ),
        (
            r#"{"input_tokens":9,"output_tokens":4,"total_tokens":93}"#,
            Some((89, 4)),
        ),
    ] {
        let (out, charged) = charged(Format::Responses, &[responses(usage)]).await;
        let shown = shown.map(|(input, output)| {
            assert_eq!((charged.input, charged.output), (input, output), "{usage}");
            let total = input + output;
            format!(
                "{{\"input_tokens\":{input},\"input_tokens_details\":{{\"cached_tokens\":0,\"cache_write_tokens\":0}},\"output_tokens\":{output},\"output_tokens_details\":{{\"reasoning_tokens\":0}},\"total_tokens\":{total}}}"
            )
        });
        assert_eq!(out, responses(shown.as_deref().unwrap_or(usage)), "{usage}");
    }
    // An event with several lines of data is forwarded with one line of data.
    let lines = "data: {\"choices\":[],\ndata: \"usage\":{\"prompt_tokens\":9,\"completion_tokens\":51}}\n\n";
    let (out, _) = charged(
        Format::Chat,
        &[chat("a") + FINISH, lines.to_owned(), DONE.to_owned()],
    )
    .await;
    let shown = chat_shown(9, 0, 50);
    assert!(
        out.contains(&format!("data: {{\"choices\":[], \"usage\":{shown}}}\n\n")),
        "{out}"
    );
}

#[tokio::test]
async fn stream_whose_reported_usage_decreases_is_flagged() {
    let usage = |input: u64, output: u64| {
        format!(
            "data: {{\"choices\":[],\"usage\":{{\"prompt_tokens\":{input},\"completion_tokens\":{output}}}}}\n\n"
        )
    };
    let delta = |input: u64, output: u64| {
        format!(
            "data: {{\"type\":\"message_delta\",\"usage\":{{\"input_tokens\":{input},\"output_tokens\":{output}}}}}\n\n"
        )
    };
    let start = "data: {\"type\":\"message_start\",\"message\":{\"usage\":{\"input_tokens\":9,\"output_tokens\":8}}}\n\n";
    for (format, events, suspect) in [
        (Format::Chat, [usage(9, 4), usage(9, 4), usage(9, 5)], false),
        (Format::Chat, [usage(9, 4), usage(0, 0), usage(9, 5)], false),
        (Format::Chat, [usage(9, 4), usage(9, 3), usage(9, 5)], true),
        (Format::Chat, [usage(9, 4), usage(8, 4), usage(9, 5)], true),
        // The first count of the output is only an estimate, so a lower count later is not suspect.
        (
            Format::Messages,
            [start.to_owned(), delta(9, 4), delta(9, 5)],
            false,
        ),
        (
            Format::Messages,
            [start.to_owned(), delta(9, 4), delta(9, 3)],
            true,
        ),
        (
            Format::Messages,
            [start.to_owned(), delta(8, 9), delta(9, 9)],
            true,
        ),
    ] {
        let chunks: Vec<_> = events.iter().map(|event| event.as_bytes()).collect();
        let (_, _, reading) = through(&chunks, format, false).await;
        assert_eq!(reading.suspect, suspect, "{events:?}");
    }
}
