//! Tests of what the gateway returns to the caller if a vendor fails (docs/decisions.md, "Status table"). Such calls
//! cost the caller nothing.

use tokio::net::TcpListener;

use crate::prelude::*;

/// Makes the vendor respond with `reply`. Checks that both operations are refused with this status, type and code,
/// plain and streamed. Returns the text of the refusal.
async fn reported(what: &str, reply: Reply, status: u16, kind: &str, code: &str) -> String {
    let (world, key) = World::start_with_key().await;
    world.vendor_sends(reply);
    let mut text = String::new();
    for op in BOTH {
        for stream in [false, true] {
            let body = with(op.body("x"), json!({ "stream": stream }));
            let answer = op.call(&world, &key, &body).await;
            text = refused(what, &answer, status, kind, code);
            cost_nothing(what, &world, &key, &answer).await;
        }
    }
    assert_eq!(
        world.vendor.received().len(),
        4,
        "{what}: asked once a call"
    );
    text
}

#[tokio::test]
async fn status_400_or_413_or_422_of_a_vendor_is_returned_with_its_text() {
    for status in [400, 413, 422] {
        let reply = refusal(status, "max_tokens: 99 is more than 64");
        let text = reported("refused", reply, status, INVALID, "").await;
        assert!(text.contains("max_tokens: 99 is more than 64"), "{text}");
    }
}

#[tokio::test]
async fn status_409_or_451_of_a_vendor_and_flagged_input_are_returned_without_a_retry() {
    for (status, returned, words) in [
        (409, 409, "the file is still being written"),
        (451, 451, "unavailable for legal reasons"),
        (403, 400, "the input was flagged by moderation"),
    ] {
        let text = reported(words, refusal(status, words), returned, INVALID, "").await;
        assert!(text.contains(words), "{text}");
    }
    for (status, words) in [
        (403, "your account was flagged"),
        (451, "Incorrect API key provided: x"),
        (409, "This organization has been disabled."),
    ] {
        let text = reported(
            words,
            refusal(status, words),
            503,
            API,
            "vendor_unavailable",
        )
        .await;
        assert!(!text.contains(words), "{text}");
    }
}

/// If coding agents find the code `context_length_exceeded`, or the words of `LONG` at the beginning of the message,
/// they shorten the conversation.
#[tokio::test]
async fn error_message_of_a_vendor_reaches_the_caller_from_any_json_shape() {
    const LONG: &str = "prompt is too long: 201234 tokens > 200000 maximum";
    let (world, key) = World::start_with_key().await;
    let raw = json!({ "error": { "message": LONG, "type": "invalid_request_error" } }).to_string();
    let json = |body: serde_json::Value| Reply::json(400, &body);
    let plain = Step::Send(Bytes::from_static(LONG.as_bytes()));
    let faults = json!({ "detail": [{ "loc": ["body"], "msg": LONG }] });
    let object = json!({ "object": "error", "message": { "detail": [{ "msg": LONG }] } });
    let proxy =
        json!({ "code": 400, "message": "Provider returned error", "metadata": { "raw": raw } });
    let message = json!({ "error": { "message": LONG } });
    for (what, reply) in [
        ("a list of faults", json(faults)),
        ("a message that is an object", json(object)),
        ("plain text", Reply::raw(400, "text/plain", vec![plain])),
        ("a proxy's", json(json!({ "error": proxy }))),
        ("5xx", Reply::json(500, &message)),
    ] {
        world.vendor_sends(reply);
        for op in BOTH {
            let answer = op.call(&world, &key, &op.body("x")).await;
            let text = refused(what, &answer, 400, INVALID, "context_length_exceeded");
            assert!(text.starts_with(LONG), "{what}: {text}");
            assert_eq!(answer.json()["error"]["vendor"]["message"], LONG, "{what}");
        }
    }
}

/// Error texts that Claude Code 2.1.332 searches for, in order to retry without the part that caused the error. Some of
/// them must be at the beginning of the message.
const ACTED_ON: [&str; 40] = [
    "prompt is too long: 210000 tokens > 200000 maximum",
    "Input is too long.",
    "Input is too long for requested model.",
    "This model's maximum context length is 128000 tokens. However, you requested 130000 tokens.",
    "input length and `max_tokens` exceed context limit: 190000 + 32000 > 200000, decrease input length or `max_tokens` and try again",
    "max_tokens: 64000 > 32000, which is the maximum allowed number of output tokens for this model",
    "Unexpected value(s) `context-management-2025-06-27` for the `anthropic-beta` header. Please consult our documentation.",
    "Unexpected value(s) `mid-conversation-system-clear-at-2026-08-21`, `interleaved-thinking-2025-05-14` for the `anthropic-beta` header.",
    "Unexpected value(s) `advanced-tool-use-2025-11-20` for the `anthropic_beta` field",
    "invalid beta flag",
    "The long context beta is not yet available for this subscription.",
    "context_management: Extra inputs are not permitted",
    "context_management.edits.0: Input tag 'clear_tool_uses_20250919' found using 'type' does not match any of the expected tags",
    "messages.3.content.1: Input tag 'tool_reference' found using 'type' does not match any of the expected tags: 'text', 'image'",
    "`clear_thinking_20251015` strategy requires `thinking` to be enabled or adaptive",
    "messages.1.content.0: Invalid `signature` in `thinking` block",
    "messages.5.content.0: Invalid `data` in `redacted_thinking` block",
    "messages.1.content.0.thinking.signature: Field required",
    "messages.7.content.0: `thinking` or `redacted_thinking` blocks in the latest assistant message cannot be modified.",
    "\"thinking.type.enabled\" is not supported for this model. Use \"thinking.type.adaptive\" and \"output_config.effort\".",
    "adaptive thinking is not supported on this model",
    "thinking.adaptive.display: Input should be 'summarized' or 'omitted'",
    "thinking.adaptive.block_binding.prefix_mismatch_behavior: Extra inputs are not permitted",
    "effort 'max' is not supported when thinking is disabled",
    "This model does not support the effort parameter.",
    "output_config.effort: Extra inputs are not permitted",
    "output_config.format: Extra inputs are not permitted",
    "messages.4: output_config.effort requires a model that supports per-turn effort",
    "messages.2.content.0: `tool_addition` is not supported on this model",
    "'claude-opus-4-5-20251101' does not support the `speed` parameter",
    "tools.0.custom.ownership_metadata: Extra inputs are not permitted",
    "messages.2: Unexpected role \"system\". Allowed input message roles are: user, assistant",
    "messages.6: role 'system' must follow a user message",
    "messages.0.content.2.cache_control.evict_on_complete: Extra inputs are not permitted without the beta",
    "messages.0.content.1.image.source.base64: image exceeds 5 MB maximum: 6291456 bytes > 5242880 bytes",
    "messages.9.content.0.image.source.base64.data: At least one of the image dimensions exceed max allowed size for many-image requests: 2000 pixels",
    "A maximum of 100 PDF pages may be provided.",
    "messages.0.content.0.document.source: The PDF specified is password protected.",
    "Too much media: 90 document pages + 20 images > 100",
    "messages.3: `tool_use` ids were found without `tool_result` blocks immediately after: `tool_use` blocks must come first",
];

#[tokio::test]
async fn error_phrases_that_clients_search_for_are_kept() {
    let (world, key) = World::start_with_key().await;
    for text in ACTED_ON {
        world.vendor_sends(refusal(400, text));
        for op in BOTH {
            for stream in [false, true] {
                let body = with(op.body("x"), json!({ "stream": stream }));
                let answer = op.call(&world, &key, &body).await;
                let error = &answer.json()["error"];
                let message = error["message"].as_str().unwrap();
                let number = answer.number();
                // The message is one line: the vendor's text, then the gateway's text, then the request number.
                assert!(message.starts_with(&format!("{text} — ")), "{message}");
                assert!(message.ends_with(&format!(" ({number})")), "{message}");
                assert!(!message.contains('\n'), "{message}");
                // The field `error.vendor` contains only the vendor's text, for clients that search in it.
                assert_eq!(error["vendor"], json!({ "message": text }));
                assert_eq!(error["type"], INVALID);
            }
        }
    }
}

/// Clients recognise a request beyond the context window by this code. So the refusal must have it, whichever vendor
/// refuses.
#[tokio::test]
async fn request_beyond_the_context_window_has_its_own_error_code() {
    let (world, key) = World::start_with_key().await;
    let (long, own) = (
        "prompt is too long: 201234 tokens > 200000 maximum",
        "context_length_exceeded",
    );
    let longest = "This model's maximum context length is 65536 tokens.";
    for (text, code) in [(long, own), (longest, own), ("max_tokens: 99 > 64", "")] {
        world.vendor_sends(refusal(400, text));
        for op in BOTH {
            let answer = op.call(&world, &key, &op.body("x")).await;
            assert_eq!(answer.status, 400, "{text}");
            assert_eq!(answer.json()["error"]["code"], code, "{text}");
        }
    }
}

#[tokio::test]
async fn vendor_error_text_is_scrubbed_of_keys_addresses_and_organisations() {
    let secrets = [
        VENDOR_KEY,
        "sk-proj-AbC123",
        "org-XyZ123",
        "https://vendor.example/keys",
        "billing@vendor.example",
    ];
    let reply = refusal(
        400,
        &format!("temperature is too high, see {}", secrets.join(" and ")),
    );
    let text = reported("secrets", reply, 400, INVALID, "").await;
    assert!(text.contains("temperature is too high"), "{text}");
    for secret in secrets {
        assert!(!text.contains(secret), "{secret}: {text}");
    }
}

#[tokio::test]
async fn vendor_refusal_of_the_gateways_key_becomes_503_and_never_401() {
    for status in [401, 402, 403] {
        let reply = refusal(status, "Incorrect API key provided: sk-proj-AbC123");
        let text = reported("our key", reply, 503, API, "vendor_unavailable").await;
        assert!(!text.contains("sk-"), "{text}");
        assert!(!text.contains("Incorrect"), "{text}");
        assert!(!text.to_lowercase().contains("ключ"), "{text}");
    }
}

#[tokio::test]
async fn rate_limit_of_a_vendor_becomes_429_with_the_vendors_retry_after() {
    let (world, key) = World::start_with_key().await;
    for op in BOTH {
        for (reply, wait) in [
            (refusal(429, "slow down"), "1"),
            (refusal(429, "slow down").header("retry-after", "7"), "7"),
            (
                refusal(429, "slow down").header("retry-after-ms", "1500"),
                "2",
            ),
        ] {
            world.vendor_sends(reply);
            let answer = op.call(&world, &key, &op.body("x")).await;
            let text = refused(op.path(), &answer, 429, LIMIT, "vendor_rate_limit");
            assert_eq!(answer.headers["retry-after"], wait);
            assert!(!text.contains("slow down"), "{text}");
            cost_nothing("429", &world, &key, &answer).await;
        }
    }
}

#[tokio::test]
async fn status_404_or_408_or_5xx_of_a_vendor_becomes_503() {
    for status in [404, 408, 500, 502, 503, 504, 529] {
        let reply = refusal(status, "engine-7 of org-XyZ123 is down");
        let text = reported(&status.to_string(), reply, 503, API, "vendor_unavailable").await;
        assert!(!text.contains("engine-7"), "{text}");
    }
}

#[tokio::test]
async fn call_gets_503_if_its_vendor_cannot_be_reached() {
    let (world, key) = vendors_at("127.0.0.1:1", "").start_with_key().await;
    for op in BOTH {
        let answer = op.call(&world, &key, &op.body("x")).await;
        refused(op.path(), &answer, 503, API, "vendor_unavailable");
        cost_nothing(op.path(), &world, &key, &answer).await;
    }
}

#[tokio::test]
async fn html_page_in_place_of_a_vendors_answer_becomes_502() {
    for kind in ["text/html", "application/octet-stream", ""] {
        let page = Step::Send(Bytes::from_static(b"<html>maintenance</html>"));
        let reply = Reply::raw(200, kind, vec![page]);
        let text = reported(kind, reply, 502, API, "vendor_broken").await;
        assert!(!text.contains("maintenance"), "{text}");
    }
}

#[tokio::test]
async fn redirect_of_a_vendor_becomes_502_and_is_never_followed() {
    for status in [301, 302, 307, 308] {
        let reply = refusal(status, "moved").header("location", "/v1/elsewhere");
        reported("redirect", reply, 502, API, "vendor_broken").await;
    }
}

#[tokio::test]
async fn vendor_answer_with_invalid_or_incomplete_json_becomes_502() {
    let (world, key) = World::start_with_key().await;
    let send = |text: &'static str| Step::Send(Bytes::from_static(text.as_bytes()));
    for op in BOTH {
        for steps in [
            vec![send("<html>")],
            vec![send("{\"id\":\"1\",\"choices\":[")],
            vec![],
            vec![send("{\"id\":\"1\","), Step::Cut],
        ] {
            world.vendor_sends(Reply::raw(200, "application/json", steps));
            let answer = op.call(&world, &key, &op.body("x")).await;
            refused(op.path(), &answer, 502, API, "vendor_broken");
            cost_nothing(op.path(), &world, &key, &answer).await;
        }
    }
}

#[tokio::test]
async fn vendor_answer_that_is_json_but_not_an_object_becomes_502() {
    for text in ["[]", "[null,null]", "null", "7", "\"x\""] {
        let (world, key) = World::start_with_key().await;
        world.vendor.script(move |_| {
            let step = Step::Send(Bytes::from_static(text.as_bytes()));
            Reply::raw(200, "application/json", vec![step])
        });
        for op in BOTH {
            let answer = op.call(&world, &key, &op.body("x")).await;
            refused(text, &answer, 502, API, "vendor_broken");
            cost_nothing(text, &world, &key, &answer).await;
        }
    }
}

#[tokio::test]
async fn json_in_place_of_a_stream_or_a_stream_in_place_of_json_becomes_502() {
    let (world, key) = World::start_with_key().await;
    for op in BOTH {
        let json = plain_reply(op, "да", 9, 1);
        let stream = Reply::stream(events(op, &["да"], 9, 1));
        for (requested, reply) in [(true, json), (false, stream)] {
            world.vendor_sends(reply);
            let body = with(op.body("x"), json!({ "stream": requested }));
            let answer = op.call(&world, &key, &body).await;
            refused(op.path(), &answer, 502, API, "vendor_broken");
            cost_nothing(op.path(), &world, &key, &answer).await;
        }
    }
}

#[tokio::test]
async fn vendor_error_with_status_200_is_still_an_error() {
    let (world, key) = World::start_with_key().await;
    for op in BOTH {
        world.vendor_sends(refusal(200, "org-Secret has no credit"));
        let answer = op.call(&world, &key, &op.body("x")).await;
        let text = refused(op.path(), &answer, 503, API, "vendor_unavailable");
        assert!(!text.contains("Secret"), "{text}");
        cost_nothing(op.path(), &world, &key, &answer).await;
    }
}

#[tokio::test]
async fn call_gets_504_if_its_vendor_accepts_the_request_and_sends_nothing() {
    // The listener never accepts these connections. They wait in its queue, so the gateway gets no response.
    let silent = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = silent.local_addr().unwrap().to_string();
    let (world, key) = vendors_at(&address, "first_byte_seconds = 1\nplain_seconds = 1")
        .start_with_key()
        .await;
    let (chat, messages) = (Op::Chat.body("x"), Op::Messages.body("x"));
    let (chat, messages) = tokio::join!(
        Op::Chat.call(&world, &key, &chat),
        Op::Messages.call(&world, &key, &messages)
    );
    for answer in [chat, messages] {
        refused("silent", &answer, 504, API, "vendor_timeout");
        cost_nothing("silent", &world, &key, &answer).await;
    }
}

#[tokio::test]
async fn call_gets_504_if_its_vendor_stops_sending_within_a_plain_answer() {
    let (world, key) = vendors("idle_seconds = 1").start_with_key().await;
    let never = Step::Hold(Arc::new(Notify::new()));
    let steps = vec![Step::Send(Bytes::from_static(b"{\"id\":")), never];
    world.vendor_sends(Reply::raw(200, "application/json", steps));
    let answer = world.chat(&key, &Op::Chat.body("x")).await;
    refused("falls silent", &answer, 504, API, "vendor_timeout");
    cost_nothing("falls silent", &world, &key, &answer).await;
}

/// If the first event contains an error, the caller gets a refusal, even if the event also contains content or usage.
#[tokio::test]
async fn stream_that_begins_with_an_error_costs_nothing() {
    let (world, key) = World::start_with_key().await;
    let error = json!({ "message": "overloaded", "type": "server_error" });
    for event in [
        json!({ "choices": [{ "index": 0, "delta": { "content": "x".repeat(400) } }], "error": error }),
        json!({ "error": error, "usage": { "prompt_tokens": 900, "completion_tokens": 3 } }),
    ] {
        world.vendor_sends(Reply::stream([format!("data: {event}\n\n")]));
        let body = with(chat_body("x"), json!({ "stream": true }));
        let answer = world.chat(&key, &body).await;
        assert!(answer.status.is_server_error(), "{answer:?}");
        let account = world.settled(&key).await;
        assert_eq!(account["spent_rub"], "0.00", "{account}");
    }
}
