//! Numbered cases of a Chat Completions stream that is translated for a Messages caller.

use bytes::BytesMut;
use serde_json::{Value, json};

use super::testing::{CX, Heard, events, received, translated};
use crate::{
    call::Format,
    error::Error,
    formats::{chat::CALLS_MAX, turn::KEPT_BYTES_MAX, wire::AnswerCx},
    translate::{Origin, Translator},
};

const DONE: &str = "data: [DONE]\n\n";

fn data(chunk: &Value) -> String {
    format!("data: {chunk}\n\n")
}

fn delta(delta: &Value) -> String {
    data(
        &json!({"id": "chatcmpl-1", "object": "chat.completion.chunk", "created": 1, "model": "gpt",
        "choices": [{"index": 0, "delta": delta, "finish_reason": null}], "usage": null}),
    )
}

fn text(text: &str) -> String {
    delta(&json!({ "content": text }))
}

fn finish(reason: &str) -> String {
    data(&json!({"id": "chatcmpl-1", "model": "gpt",
        "choices": [{"index": 0, "delta": {}, "finish_reason": reason}]}))
}

fn usage(prompt: u64, completion: u64) -> String {
    data(
        &json!({"id": "chatcmpl-1", "model": "gpt", "choices": [], "usage":
        {"prompt_tokens": prompt, "completion_tokens": completion, "total_tokens": prompt + completion}}),
    )
}

/// Builds a chunk that contains the first piece of a tool call.
fn call(index: u64, id: &str, name: &str, arguments: &str) -> String {
    delta(
        &json!({"tool_calls": [{"index": index, "id": id, "type": "function",
        "function": {"name": name, "arguments": arguments}}]}),
    )
}

/// Builds a chunk that contains a further piece of a tool call's arguments.
fn more(index: u64, arguments: &str) -> String {
    delta(&json!({"tool_calls": [{"index": index, "function": {"arguments": arguments}}]}))
}

fn tool_use(id: &str, name: &str, input: Value) -> Value {
    json!({"type": "tool_use", "id": id, "name": name, "input": input})
}

fn reported(text: &str) -> Value {
    json!({"type": "text", "text": text})
}

fn stream(chunks: &[String]) -> Heard {
    let bytes = chunks.concat();
    let (out, end) = translated(CX, &[bytes.as_bytes()]);
    end.unwrap();
    let received = received(&out);
    assert!(received.whole);
    received
}

fn broken_stream(chunks: &[String]) -> (Heard, Error) {
    let bytes = chunks.concat();
    let (out, end) = translated(CX, &[bytes.as_bytes()]);
    let received = received(&out);
    assert!(
        !received.whole && received.stop_reason.is_none(),
        "it must look broken"
    );
    (received, end.unwrap_err())
}

#[test]
fn plain_stream_has_the_events_of_the_messages_format() {
    let received = stream(&[
        delta(&json!({"role": "assistant", "content": ""})),
        text("Hel"),
        text("lo \u{1f980}\n\"\\"),
        finish("stop"),
        usage(9, 4),
        DONE.into(),
    ]);
    assert_eq!(
        received.names,
        [
            "message_start",
            "content_block_start",
            "content_block_delta",
            "content_block_delta",
            "content_block_stop",
            "message_delta",
            "message_stop"
        ]
    );
    assert_eq!(received.content, [reported("Hello \u{1f980}\n\"\\")]);
    assert_eq!(
        (received.id.as_str(), received.model.as_str()),
        ("chatcmpl-1", "gpt")
    );
    assert_eq!(received.stop_reason.as_deref(), Some("end_turn"));
}

#[test]
fn each_piece_of_text_is_written_at_once() {
    let mut translation = Translator::to_messages(Format::Chat, Origin::default(), CX, false);
    for (chunk, begins) in [
        (
            delta(&json!({"role": "assistant"})),
            "event: message_start\n",
        ),
        (text("a"), "event: content_block_start\n"),
        (text("b"), "event: content_block_delta\n"),
        (call(0, "c", "f", ""), "event: content_block_stop\n"),
        (more(0, "{}"), "event: content_block_delta\n"),
    ] {
        let mut out = BytesMut::new();
        for event in events(&[chunk.as_bytes()]) {
            translation.event(&event, &mut out).unwrap();
        }
        assert!(out.starts_with(begins.as_bytes()), "{chunk}: {out:?}");
    }
}

#[test]
fn case_79_and_80_message_start_is_empty_and_message_delta_reports_the_input() {
    let bytes = [text("x"), finish("stop"), usage(9, 4), DONE.into()].concat();
    let (out, _) = translated(CX, &[bytes.as_bytes()]);
    let written = events(&[&out]);
    let start: Value = serde_json::from_slice(&written[0].data().unwrap()).unwrap();
    assert_eq!(
        start,
        json!({"type": "message_start", "message": {"id": "chatcmpl-1", "type": "message",
            "role": "assistant", "model": "gpt", "content": [], "stop_reason": null,
            "stop_sequence": null, "usage": {"input_tokens": 0, "cache_creation_input_tokens": 0,
            "cache_read_input_tokens": 0, "output_tokens": 0}}})
    );
    assert_eq!(
        received(&out).usage,
        json!({"input_tokens": 9, "cache_creation_input_tokens": 0,
               "cache_read_input_tokens": 0, "output_tokens": 4})
    );
}

#[test]
fn case_81_text_block_ends_before_a_tool_call_starts() {
    let received = stream(&[
        text("Let me see."),
        call(0, "call_1", "f", ""),
        more(0, "{\"a\":"),
        more(0, "1}"),
        finish("tool_calls"),
        DONE.into(),
    ]);
    assert_eq!(
        received.content,
        [
            reported("Let me see."),
            tool_use("call_1", "f", json!({"a": 1}))
        ]
    );
    assert_eq!(received.stop_reason.as_deref(), Some("tool_use"));
}

#[test]
fn case_82_text_after_a_tool_call_is_a_block_of_its_own() {
    for arguments in ["{}", "{\"a\": [1, \"}\"]}", ""] {
        let received = stream(&[
            text("a"),
            call(0, "c", "f", arguments),
            text("b"),
            text("c"),
            finish("stop"),
            DONE.into(),
        ]);
        let input = serde_json::from_str(arguments).unwrap_or_else(|_| json!({}));
        assert_eq!(
            received.content,
            [reported("a"), tool_use("c", "f", input), reported("bc")]
        );
    }
}

#[test]
fn case_83_interleaved_tool_calls_are_written_one_by_one() {
    let (one, two, three) = (json!({"a": "x}"}), json!({"b": {"c": []}}), json!({}));
    let expected = [
        tool_use("c0", "f", one),
        tool_use("c1", "g", two),
        tool_use("c2", "h", three),
    ];
    for mut chunks in [
        // The pieces of two tool calls alternate: tool call 0, tool call 1, tool call 0.
        vec![
            call(0, "c0", "f", "{\"a\":"),
            call(1, "c1", "g", "{\"b\":{\"c\":[]}}"),
            more(0, "\"x}\"}"),
            call(2, "c2", "h", ""),
        ],
        // The names of all tool calls arrive first, then the arguments in reverse order.
        vec![
            call(0, "c0", "f", ""),
            call(1, "c1", "g", ""),
            call(2, "c2", "h", ""),
            more(2, "{}"),
            more(1, "{\"b\":"),
            more(0, "{\"a\":\"x"),
            more(1, "{\"c\":[]"),
            more(0, "}\"}"),
            more(1, "}}"),
        ],
        // The tool calls arrive one after another, as from most vendors. Their indices begin at 1.
        vec![
            call(1, "c0", "f", "{\"a\":"),
            more(1, "\"x}\"}"),
            call(2, "c1", "g", ""),
            more(2, "{\"b\":{\"c\":[]}}"),
            call(3, "c2", "h", "{}"),
        ],
        // Each tool call arrives in one piece, and all tool calls have the same index.
        vec![
            call(0, "c0", "f", "{\"a\":\"x}\"}"),
            call(0, "c1", "g", "{\"b\":{\"c\":[]}}"),
            call(0, "c2", "h", "{}"),
        ],
        // All tool calls arrive in one chunk, without an index.
        vec![delta(&json!({"tool_calls": [
            {"id": "c0", "function": {"name": "f", "arguments": "{\"a\":\"x}\"}"}},
            {"id": "c1", "function": {"name": "g", "arguments": "{\"b\":{\"c\":[]}}"}},
            {"id": "c2", "function": {"name": "h", "arguments": "{}"}},
        ]}))],
    ] {
        chunks.extend([finish("tool_calls"), DONE.into()]);
        let received = stream(&chunks);
        assert_eq!(received.content, expected, "{chunks:#?}");
        assert_eq!(received.stop_reason.as_deref(), Some("tool_use"));
    }
}

#[test]
fn case_83_tool_call_waits_only_while_the_call_before_it_is_incomplete() {
    let mut translation = Translator::to_messages(Format::Chat, Origin::default(), CX, false);
    let mut names = Vec::new();
    for chunk in [
        call(0, "c0", "f", "{\"a\":1"),
        call(1, "c1", "g", "{"),
        more(0, "}"),
        more(1, "}"),
    ] {
        let mut out = BytesMut::new();
        for event in events(&[chunk.as_bytes()]) {
            translation.event(&event, &mut out).unwrap();
        }
        let written = events(&[&out]);
        names.push(
            written
                .iter()
                .map(|event| event.name().to_vec())
                .collect::<Vec<_>>(),
        );
    }
    let count: Vec<_> = names.iter().map(Vec::len).collect();
    // The number of events for each chunk: start, start and delta; none; delta, stop, start and delta; delta.
    assert_eq!(count, [3, 0, 4, 1]);
}

#[test]
fn stream_that_needs_too_large_a_buffer_is_refused() {
    let piece = "x".repeat(64 * 1024);
    let mut chunks = vec![call(0, "c0", "f", "{"), call(1, "c1", "g", "{\"a\":\"")];
    chunks.extend((0..=KEPT_BYTES_MAX / piece.len()).map(|_| more(1, &piece)));
    let (_, error) = broken_stream(&chunks);
    assert!(matches!(error, Error::AnswerTooLong(_)), "{error:?}");

    let open = chunks.split_off(1);
    let received = stream(&[
        chunks.concat(),
        more(0, "}"),
        open.concat(),
        more(1, "\"}"),
        finish("tool_calls"),
        DONE.into(),
    ]);
    assert_eq!(
        received.content.len(),
        2,
        "what need not wait may be of any length"
    );

    let many: Vec<_> = (0..=CALLS_MAX as u64)
        .map(|index| call(index, "", "f", "{}"))
        .collect();
    assert!(matches!(broken_stream(&many).1, Error::AnswerTooLong(_)));
}

#[test]
fn case_84_tool_call_arguments_wait_for_the_tools_name_and_missing_ids_are_created() {
    let received = stream(&[
        more(0, "{\"a\":"),
        delta(&json!({"tool_calls": [{"index": 0, "id": "c0"}]})),
        delta(&json!({"tool_calls": [{"index": 0, "function": {"name": "f", "arguments": "1"}}]})),
        more(0, "}"),
        finish("tool_calls"),
        DONE.into(),
    ]);
    assert_eq!(received.content, [tool_use("c0", "f", json!({"a": 1}))]);

    let nameless = || {
        stream(&[
            delta(
                &json!({"tool_calls": [{"index": 0, "function": {"name": "f", "arguments": "{}"}}]}),
            ),
            delta(
                &json!({"tool_calls": [{"index": 1, "id": "", "function": {"name": "g", "arguments": "{}"}}]}),
            ),
            finish("tool_calls"),
            DONE.into(),
        ])
    };
    let received = nameless();
    let ids: Vec<_> = received
        .content
        .iter()
        .map(|block| block["id"].as_str().unwrap())
        .collect();
    assert!(ids[0].starts_with("toolu_") && ids[0] != ids[1], "{ids:?}");
    assert_eq!(received, nameless(), "the same stream gets the same ids");

    let (_, error) = broken_stream(&[more(0, "{}"), finish("tool_calls"), DONE.into()]);
    assert!(matches!(error, Error::VendorBroken(_)));
}

#[test]
fn case_85_repeated_tool_name_starts_no_new_call() {
    let received = stream(&[
        call(0, "c0", "f", ""),
        call(0, "c0", "f", "{\"a\""),
        call(0, "", "f", ":1"),
        call(0, "c0", "", "}"),
        call(0, "c0", "f", ""),
        finish("tool_calls"),
        DONE.into(),
    ]);
    assert_eq!(received.content, [tool_use("c0", "f", json!({"a": 1}))]);
}

#[test]
fn case_86_tool_call_without_arguments_has_an_empty_object() {
    for arguments in [
        json!(""),
        json!("{}"),
        json!(null),
        json!("null"),
        json!(" "),
        json!({}),
    ] {
        let received = stream(&[
            delta(&json!({"tool_calls": [{"index": 0, "id": "c0",
                "function": {"name": "f", "arguments": arguments}}]})),
            finish("tool_calls"),
            DONE.into(),
        ]);
        assert_eq!(
            received.content,
            [tool_use("c0", "f", json!({}))],
            "{arguments}"
        );
    }
}

#[test]
fn null_means_empty_tool_arguments_only_if_nothing_else_arrives() {
    let pieces = |pieces: &[&str]| {
        let mut chunks = vec![call(0, "c0", "f", pieces[0])];
        chunks.extend(pieces[1..].iter().map(|piece| more(0, piece)));
        chunks.extend([finish("tool_calls"), DONE.into()]);
        stream(&chunks).content
    };
    for (arguments, input) in [
        (&["{\"a\":[1,", "null", "]}"][..], json!({"a": [1, null]})),
        (&["", "{", "\"a\":", "nu", "ll", "}"], json!({"a": null})),
        (&["null"], json!({})),
        (&["", "nu", "ll"], json!({})),
        (&["null", "{\"a\":1}"], json!({"a": 1})),
    ] {
        assert_eq!(
            pieces(arguments),
            [tool_use("c0", "f", input)],
            "{arguments:?}"
        );
    }
    // A tool call without arguments is not lost if another tool call has the same index.
    for none in ["null", "", " "] {
        let received = stream(&[
            call(0, "", "f", none),
            call(0, "", "g", "{\"a\":1}"),
            finish("tool_calls"),
            DONE.into(),
        ]);
        let reported = received
            .content
            .iter()
            .map(|block| (&block["name"], &block["input"]));
        let expected = [(&json!("f"), &json!({})), (&json!("g"), &json!({"a": 1}))];
        assert!(reported.eq(expected), "{received:?}");
    }
}

#[test]
fn malformed_tool_call_arguments_end_the_stream_with_an_error() {
    for chunks in [
        vec![call(0, "c0", "f", "null"), more(0, "1")],
        vec![call(0, "c0", "f", "{}"), more(0, "null")],
        vec![call(0, "c0", "f", "[1]")],
        vec![call(0, "c0", "f", "{}"), more(0, "{}")],
        vec![delta(
            &json!({"tool_calls": [{"index": 0, "id": "c", "function": {"name": "f", "arguments": 7}}]}),
        )],
    ] {
        assert!(matches!(broken_stream(&chunks).1, Error::VendorBroken(_)));
    }
}

#[test]
fn truncated_tool_call_arguments_are_an_error_unless_the_finish_reason_explains_them() {
    let cuts = ["{\"path\":\"/tmp/a\",\"dry_run\":tr", "{", "nu"];
    for cut in cuts {
        for end in [
            vec![usage(9, 4), DONE.into()],
            vec![DONE.into()],
            vec![finish("tool_calls"), usage(9, 4), DONE.into()],
            vec![finish("stop"), DONE.into()],
            vec![finish("stop")],
            vec![],
        ] {
            let open = [call(0, "c0", "f", cut)];
            let waiting = [
                call(0, "c0", "f", "{"),
                call(1, "c1", "g", cut),
                more(0, "}"),
            ];
            for calls in [&open[..], &waiting] {
                let (_, error) = broken_stream(&[calls, &end].concat());
                assert!(matches!(error, Error::VendorBroken(_)), "{error:?}");
            }
        }
        // The caller gets the part of the arguments that arrived, and a stop reason that shows that the response is
        // incomplete.
        for (reason, stop) in [("length", "max_tokens"), ("content_filter", "refusal")] {
            let received = stream(&[call(0, "c0", "f", cut), finish(reason), DONE.into()]);
            assert_eq!(received.content[0]["input"], cut);
            assert_eq!(received.stop_reason.as_deref(), Some(stop));
        }
    }
}

#[test]
fn case_87_reasoning_is_a_thinking_block_before_the_text() {
    for name in ["reasoning_content", "reasoning"] {
        let bytes = [
            delta(&json!({"content": "", name: "h"})),
            delta(&json!({"content": null, name: "m"})),
            text("4"),
            finish("stop"),
            DONE.into(),
        ]
        .concat();
        let (out, _) = translated(CX, &[bytes.as_bytes()]);
        let thought = json!({"type": "thinking", "thinking": "hm", "signature": ""});
        assert_eq!(received(&out).content, [thought, reported("4")]);

        let not_asked = AnswerCx {
            thinking_asked: false,
            ..CX
        };
        let (out, _) = translated(not_asked, &[bytes.as_bytes()]);
        assert_eq!(received(&out).content, [reported("4")]);
    }
}

#[test]
fn case_88_89_and_91_usage_anywhere_in_the_stream_is_written_once() {
    let with_usage_of = |prompt: u64, reason: Value, completion: u64| {
        data(
            &json!({"id": "chatcmpl-1", "model": "gpt", "choices": [{"index": 0, "delta": {},
            "finish_reason": reason}], "usage": {"prompt_tokens": prompt, "completion_tokens": completion}}),
        )
    };
    let with_usage = |reason: Value, completion: u64| with_usage_of(9, reason, completion);
    let groq = data(&json!({"id": "chatcmpl-1", "model": "gpt",
        "choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}],
        "x_groq": {"id": "r", "usage": {"prompt_tokens": 9, "completion_tokens": 4}}}));
    for chunks in [
        vec![text("x"), finish("stop"), usage(9, 4), DONE.into()],
        vec![text("x"), with_usage(json!("stop"), 4), DONE.into()],
        vec![
            text("x"),
            with_usage(json!(null), 1),
            with_usage(json!(null), 3),
            with_usage(json!("stop"), 4),
            DONE.into(),
        ],
        vec![text("x"), finish("stop"), usage(9, 2), usage(9, 4)],
        // If an earlier usage object had counts, a later one whose counts are all 0 is ignored.
        vec![
            text("x"),
            usage(9, 4),
            with_usage_of(0, json!("stop"), 0),
            DONE.into(),
        ],
        vec![
            text("x"),
            usage(0, 0),
            finish("stop"),
            usage(9, 4),
            DONE.into(),
        ],
        vec![text("x"), groq, DONE.into()],
    ] {
        let received = stream(&chunks);
        assert_eq!(received.usage["input_tokens"], 9, "{chunks:#?}");
        assert_eq!(received.usage["output_tokens"], 4, "{chunks:#?}");
        let last = &received.names[received.names.len() - 2..];
        assert_eq!(last, ["message_delta", "message_stop"]);
    }
}

#[test]
fn invalid_choices_are_skipped_only_if_they_are_empty_and_the_chunk_has_usage() {
    let odd = |choices: Value, more: Value| {
        let mut chunk = json!({"id": "chatcmpl-1", "model": "gpt", "choices": choices});
        let more = more.as_object().unwrap().clone();
        chunk.as_object_mut().unwrap().extend(more);
        data(&chunk)
    };
    let used = json!({"usage": {"prompt_tokens": 9, "completion_tokens": 4}});
    for choices in [
        json!({}),
        json!("x"),
        json!([7]),
        json!([{"index": "0", "delta": {}}]),
        json!([{"index": 0, "delta": 7, "finish_reason": null}]),
    ] {
        let received = stream(&[
            text("x"),
            finish("stop"),
            odd(choices.clone(), used.clone()),
        ]);
        assert_eq!(received.usage["output_tokens"], 4, "{choices}");
        let (_, error) = broken_stream(&[text("x"), odd(choices, json!({"usage": null}))]);
        assert!(matches!(error, Error::VendorBroken(_)), "{error:?}");
    }
    for choices in [
        json!([{"index": "0", "delta": {"content": "lost"}}]),
        json!([7, {"index": 0, "delta": {"tool_calls": "lost"}}]),
        json!([{"index": 0, "delta": 7, "finish_reason": "length"}]),
    ] {
        let (_, error) = broken_stream(&[text("x"), odd(choices.clone(), used.clone())]);
        assert!(matches!(error, Error::VendorBroken(_)), "{error:?}");
        let failed = odd(choices, json!({"error": {"message": "overloaded"}}));
        let (_, error) = broken_stream(&[text("x"), failed]);
        assert!(matches!(error, Error::VendorUnavailable(_)), "{error:?}");
    }
}

/// Before translation, `passthrough` has added the charged usage to a stream without usage.
#[test]
fn case_90_missing_usage_is_translated_to_zeros() {
    let received = stream(&[
        text("12345"),
        call(0, "c", "f", "{\"a\":1}"),
        finish("stop"),
        DONE.into(),
    ]);
    assert_eq!(received.usage["output_tokens"], 0);
    assert_eq!(received.usage["input_tokens"], 0);
}

#[test]
fn case_92_stop_after_a_tool_call_becomes_tool_use() {
    for (reason, stop) in [
        ("stop", "tool_use"),
        ("tool_calls", "tool_use"),
        ("length", "max_tokens"),
    ] {
        let received = stream(&[call(0, "c", "f", "{}"), finish(reason), DONE.into()]);
        assert_eq!(received.stop_reason.as_deref(), Some(stop));
    }
}

#[test]
fn case_93_truncated_stream_never_looks_finished() {
    let (received, error) = broken_stream(&[text("x")]);
    assert_eq!(received.content, [reported("x")]);
    assert!(matches!(error, Error::VendorBroken(_)));
    broken_stream(&[text("x"), usage(9, 4)]);
    broken_stream(&[]);
    broken_stream(&[DONE.into()]);
    // The response ends with a finish reason but without `[DONE]`, or with `[DONE]` but without a finish reason.
    stream(&[text("x"), finish("stop")]);
    stream(&[text("x"), DONE.into()]);
}

#[test]
fn case_94_error_chunk_ends_the_stream_with_an_error() {
    let error = data(&json!({"error": {"message": "overloaded", "code": 503}}));
    let (received, error) = broken_stream(&[text("x"), error, DONE.into()]);
    assert_eq!(received.content, [reported("x")]);
    assert!(matches!(error, Error::VendorUnavailable(_)), "{error:?}");
    let (_, error) = broken_stream(&[text("x"), finish("error"), DONE.into()]);
    assert!(matches!(error, Error::VendorBroken(_)), "{error:?}");
    let (_, error) = broken_stream(&[text("x"), "data: <html>\n\n".into()]);
    assert!(matches!(error, Error::VendorBroken(_)), "{error:?}");
}

#[test]
fn case_95_empty_content_writes_no_event_and_a_function_call_counts_as_the_first_tool_call() {
    let received = stream(&[
        delta(&json!({"role": "assistant", "content": null, "refusal": null, "tool_calls": null})),
        delta(&json!({"content": "", "refusal": "", "reasoning": "", "tool_calls": []})),
        finish("stop"),
        DONE.into(),
    ]);
    assert_eq!(
        received.names,
        ["message_start", "message_delta", "message_stop"]
    );
    let received = stream(&[
        delta(&json!({"function_call": {"name": "f", "arguments": ""}})),
        delta(&json!({"function_call": {"arguments": "{\"a\":"}})),
        delta(&json!({"function_call": {"arguments": "1}"}})),
        finish("function_call"),
        DONE.into(),
    ]);
    assert_eq!(received.content[0]["input"], json!({"a": 1}));
    assert_eq!(received.stop_reason.as_deref(), Some("tool_use"));
}

#[test]
fn case_61_refusal_becomes_text_and_a_stop_reason() {
    let received = stream(&[
        delta(&json!({"refusal": "I can"})),
        delta(&json!({"refusal": "not."})),
        finish("stop"),
        DONE.into(),
    ]);
    assert_eq!(received.content, [reported("I cannot.")]);
    assert_eq!(received.stop_reason.as_deref(), Some("refusal"));
}

#[test]
fn first_chunk_with_only_prompt_filter_results_does_not_begin_the_response() {
    let about = data(&json!({"id": "", "model": "", "choices": [], "prompt_filter_results": []}));
    let received = stream(&[about, text("x"), finish("stop"), DONE.into()]);
    assert_eq!(
        (received.id.as_str(), received.model.as_str()),
        ("chatcmpl-1", "gpt")
    );
}

#[test]
fn comments_become_pings_and_blank_events_are_dropped() {
    let received = stream(&[
        ": PROCESSING\n\n".into(),
        text("x"),
        ":\r\n\r\n".into(),
        "\n\nid: 7\n\ndata:\n\n".into(),
        finish("stop"),
        DONE.into(),
        DONE.into(),
        ": late\n\n".into(),
    ]);
    assert_eq!(received.pings, 2, "none behind the end");
}

#[test]
fn more_specific_of_two_finish_reasons_is_used() {
    for (first, second, stop) in [
        ("length", "length", "max_tokens"),
        ("length", "stop", "max_tokens"),
        ("stop", "length", "max_tokens"),
        ("stop", "", "end_turn"),
    ] {
        let received = stream(&[text("x"), finish(first), finish(second), DONE.into()]);
        assert_eq!(
            received.stop_reason.as_deref(),
            Some(stop),
            "{first}, {second}"
        );
    }
}

#[test]
fn content_lists_are_parsed_and_further_choices_are_ignored() {
    let other = data(
        &json!({"id": "chatcmpl-1", "model": "gpt", "obfuscation": "xyz",
        "choices": [{"index": 1, "delta": {"content": "no"}}, {"index": 0, "delta": {"content": "yes"}}]}),
    );
    let received = stream(&[
        delta(
            &json!({"content": [{"type": "thinking", "thinking": [{"type": "text", "text": "hm"}]}]}),
        ),
        delta(
            &json!({"content": [{"type": "text", "text": "a"}, {"type": "reference", "reference_ids": [1]}]}),
        ),
        other,
        finish("stop"),
        DONE.into(),
    ]);
    let thought = json!({"type": "thinking", "thinking": "hm", "signature": ""});
    assert_eq!(received.content, [thought, reported("ayes")]);
}

#[test]
fn error_message_outside_an_error_field_is_an_error_only_without_a_finish_reason() {
    let named = [
        data(
            &json!({"object": "error", "message": "boom", "type": "BadRequestError", "code": 400}),
        ),
        format!("event: error\n{}", data(&json!({"message": "boom"}))),
    ];
    let complaints = [
        data(&json!({"message": "boom", "code": 500})),
        data(&json!({"detail": "boom"})),
        data(&json!({"detail": [{"msg": "boom"}], "choices": null})),
    ];
    for error in named.iter().chain(&complaints) {
        for end in [vec![DONE.to_owned()], vec![]] {
            for begin in [vec![text("a")], vec![]] {
                let chunks = [begin, vec![error.clone()], end.clone()].concat();
                let (_, failed) = broken_stream(&chunks);
                assert!(matches!(failed, Error::VendorUnavailable(_)), "{failed:?}");
                assert!(format!("{failed:?}").contains("boom"), "{failed:?}");
            }
        }
    }
    // A response with a finish reason is complete, even if an error message came before the reason. A response without
    // a finish reason is complete if no error message came.
    for complaint in &complaints {
        stream(&[text("a"), complaint.clone(), finish("stop"), DONE.into()]);
    }
    for nothing in [
        json!({}),
        json!({"message": null}),
        json!({"object": "keep-alive"}),
    ] {
        stream(&[text("a"), data(&nothing), DONE.into()]);
    }
    broken_stream(&[text("a"), named[0].clone(), finish("stop"), DONE.into()]);
}

#[test]
fn tool_use_reason_without_a_tool_call_becomes_end_turn() {
    for reason in ["tool_calls", "function_call"] {
        let received = stream(&[text("a"), finish(reason), DONE.into()]);
        assert_eq!(received.stop_reason.as_deref(), Some("end_turn"));
    }
}
