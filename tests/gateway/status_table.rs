//! Tests of the gateway's own refusals (docs/decisions.md, "Status table"). `spec_auth` tests the rows 401 and 403,
//! `limits` the row 429, and `status_vendor` the failures of vendors.

use std::io::Write as _;

use tollgate::demo::script::polite;

use crate::prelude::*;

#[tokio::test]
async fn a_body_that_is_not_json_is_400() {
    let (world, key) = World::start_with_key().await;
    let bearer = bearer(&key);
    for op in BOTH {
        let good = op.body("x").to_string();
        for body in [
            "",
            " ",
            "{",
            "null",
            "[]",
            "\"x\"",
            "model=chat",
            &format!("{good}{good}"),
            &format!("{good},"),
            &good.replace(',', ",,"),
            &good.replace('"', "'"),
            &good.replace('x', "\u{1}"),
        ] {
            let headers = [("authorization", bearer.as_str())];
            let answer = op.post(&world, &headers, body.to_owned()).await;
            refused(body, &answer, 400, INVALID, "");
        }
        let headers = [("authorization", bearer.as_str())];
        let text = good.find("\"x\"").unwrap() + 1;
        let mut not_utf8 = good.clone().into_bytes();
        not_utf8[text] = 0xff;
        let answer = op.post(&world, &headers, not_utf8).await;
        refused("not UTF-8", &answer, 400, INVALID, "");
    }
    assert!(world.vendor.received().is_empty());
}

#[tokio::test]
async fn duplicate_field_is_400_however_it_is_escaped() {
    let (world, key) = World::start_with_key().await;
    let bearer = bearer(&key);
    for op in BOTH {
        let good = op.body("x").to_string();
        let turn = r#""role":"user""#;
        assert!(good.contains(turn), "{good}");
        for (field, body) in [
            ("model", good.replacen('{', r#"{"model":"other","#, 1)),
            ("model", good.replacen('{', r#"{"mod\u0065l":"other","#, 1)),
            ("max_tokens", good.replacen('{', r#"{"max_tokens":1,"#, 1)),
            (
                "stream",
                good.replacen('{', r#"{"stream":true,"stream":false,"#, 1),
            ),
            (
                "messages[0].role",
                good.replacen(turn, r#""role":"user","r\u006fle":"user""#, 1),
            ),
        ] {
            let headers = [("authorization", bearer.as_str())];
            let answer = op.post(&world, &headers, body.clone()).await;
            let text = refused(&body, &answer, 400, INVALID, "");
            assert!(text.contains(field), "{body}: {text}");
        }
    }
    assert!(world.vendor.received().is_empty());
}

#[tokio::test]
async fn untranslatable_field_is_refused_with_400_and_named() {
    let (world, key) = World::start_with_key().await;
    // The field `n` requests several responses, which the Messages format does not support.
    let body = with(Op::Chat.body("x"), json!({ "model": "messages", "n": 2 }));
    let answer = world.chat(&key, &body).await;
    let text = refused("n", &answer, 400, INVALID, "");
    assert!(text.contains('«'), "{text}");
    assert!(world.vendor.received().is_empty());
    assert_eq!(world.settled(&key).await["balance_rub"], "1000.00");
}

#[tokio::test]
async fn an_unknown_path_is_404() {
    let (world, key) = World::start_with_key().await;
    let bearer = bearer(&key);
    for path in [
        "/v1",
        "/v1/",
        "/v1/images",
        "/v1/models/",
        "/v1/chat/completions/",
        "/v1/%6dessages",
    ] {
        for method in [Method::GET, Method::POST] {
            let headers = [("authorization", bearer.as_str())];
            let answer = world
                .ask(request(method, &world.url(path), &headers, "".into()))
                .await;
            refused(path, &answer, 404, NOT_FOUND, "path_not_found");
        }
    }
}

#[tokio::test]
async fn wrong_method_is_refused_with_405_and_the_allowed_methods() {
    let world = World::start().await;
    for (path, allow) in [
        ("/v1/chat/completions", "POST"),
        ("/v1/messages", "POST"),
        ("/v1/embeddings", "POST"),
        ("/v1/models", "GET"),
        ("/v1/models/chat", "GET"),
        ("/v1/tollgate/key", "GET"),
        ("/v1/tollgate/models", "GET, HEAD"),
        ("/", "GET, HEAD"),
    ] {
        for method in [Method::GET, Method::POST, Method::PUT, Method::DELETE] {
            if allow.contains(method.as_str()) {
                continue;
            }
            let answer = world
                .ask(request(method.clone(), &world.url(path), &[], "".into()))
                .await;
            let what = format!("{method} {path}");
            refused(&what, &answer, 405, INVALID, "method_not_allowed");
            assert_eq!(answer.headers["allow"], allow, "{what}");
        }
    }
}

#[tokio::test]
async fn body_that_arrives_too_slowly_is_408() {
    let (world, key) = limits("body_seconds = 1").start_with_key().await;
    let head = |op| head(op, Some(&key.secret), "content-length: 1000\r\n") + "{\"model";
    let (chat, messages) = (head(Op::Chat), head(Op::Messages));
    let (chat, messages) = tokio::join!(raw(&world, &chat), raw(&world, &messages));
    for answer in [chat, messages] {
        refused("slow", &answer, 408, INVALID, "request_timeout");
    }
    assert!(world.vendor.received().is_empty());
}

#[tokio::test]
async fn body_that_is_too_large_is_413_whether_or_not_its_length_is_declared() {
    let (world, key) = limits("body_bytes_max = 1000").start_with_key().await;
    let large = "x".repeat(1001);
    for op in BOTH {
        let declared = head(op, Some(&key.secret), "content-length: 1001\r\n");
        let answer = raw(&world, &declared).await;
        let text = refused("declared", &answer, 413, INVALID, "request_too_large");
        assert!(text.contains("1000"), "{text}");
        let counted = head(op, Some(&key.secret), "transfer-encoding: chunked\r\n");
        let answer = raw(&world, &format!("{counted}3e9\r\n{large}\r\n0\r\n\r\n")).await;
        refused("counted", &answer, 413, INVALID, "request_too_large");
    }
    assert!(world.vendor.received().is_empty());
}

#[tokio::test]
async fn body_of_exactly_32_mib_is_accepted_by_default() {
    let body = Op::Chat.body("x").to_string();
    let (world, key) = limits(&format!("body_bytes_max = {}", body.len()))
        .start_with_key()
        .await;
    let bearer = bearer(&key);
    let headers = [("authorization", bearer.as_str())];
    let chunked = head(
        Op::Chat,
        Some(&key.secret),
        "transfer-encoding: chunked\r\n",
    );
    let chunked = format!("{chunked}{:x}\r\n{body}\r\n0\r\n\r\n", body.len());
    assert_eq!(Op::Chat.post(&world, &headers, body).await.status, 200);
    assert_eq!(raw(&world, &chunked).await.status, 200);

    let (world, key) = World::start_with_key().await;
    let declared = head(Op::Chat, Some(&key.secret), "content-length: 33554433\r\n");
    let answer = raw(&world, &declared).await;
    let text = refused("32 MiB + 1", &answer, 413, INVALID, "request_too_large");
    assert!(text.contains("33554432"), "{text}");
}

#[tokio::test]
async fn content_that_is_not_plain_json_is_415() {
    let (world, key) = World::start_with_key().await;
    let bearer = bearer(&key);
    for op in BOTH {
        for (name, value, status) in [
            ("content-type", "text/plain", 415),
            ("content-type", "application/x-www-form-urlencoded", 415),
            ("content-type", "application/jsonlines", 415),
            ("content-encoding", "gzip, gzip", 415),
            ("content-encoding", "br", 415),
            ("content-encoding", "zstd", 415),
            ("content-type", "application/json; charset=utf-8", 200),
            ("content-type", "Application/JSON", 200),
            ("content-encoding", "identity", 200),
        ] {
            let headers = [("authorization", bearer.as_str()), (name, value)];
            let answer = op.post(&world, &headers, op.body("x").to_string()).await;
            assert_eq!(answer.status, status, "{name}: {value}");
            if status == 415 {
                refused(value, &answer, 415, INVALID, "unsupported_media_type");
            }
        }
    }
}

#[tokio::test]
async fn gzip_body_is_decompressed_and_limited_by_its_decompressed_size() {
    let (world, key) = limits("body_bytes_max = 100000").start_with_key().await;
    let bearer = bearer(&key);
    let headers = [
        ("authorization", bearer.as_str()),
        ("content-encoding", "gzip"),
    ];
    for op in BOTH {
        let plain = op.body("x").to_string();
        op.post(&world, &headers, packed(&plain)).await.expect(200);
        let received = world.vendor.received();
        let sent = received.last().unwrap();
        assert!(!sent.headers.contains_key("content-encoding"));
        assert!(sent.json()["messages"].is_array(), "{sent:?}");

        let answer = op.post(&world, &headers, plain.clone()).await;
        let text = refused("plain", &answer, 400, INVALID, "");
        assert!(text.contains("gzip"), "{text}");
        let bomb = packed(&plain.replace('x', &"x".repeat(1 << 20)));
        assert!(bomb.len() < 10_000);
        let answer = op.post(&world, &headers, bomb).await;
        let text = refused("bomb", &answer, 413, INVALID, "request_too_large");
        assert!(text.contains("100000"), "{text}");
    }
    assert_eq!(world.vendor.received().len(), 2);
}

#[tokio::test]
async fn request_with_more_than_64_header_lines_is_refused_with_431() {
    let world = World::start().await;
    let many: String = (0..65).map(|n| format!("x-{n}: x\r\n")).collect();
    for op in BOTH {
        assert_eq!(raw(&world, &head(op, None, &many)).await.status, 431);
    }
}

#[tokio::test]
async fn request_with_headers_of_more_than_32_kb_is_refused_with_431() {
    let world = World::start().await;
    let large = format!("x-large: {}\r\n", "x".repeat(33 * 1024));
    for op in BOTH {
        assert_eq!(raw(&world, &head(op, None, &large)).await.status, 431);
    }
}

#[tokio::test]
async fn unknown_model_is_503_and_not_retryable() {
    let (world, key) = World::start_with_key().await;
    for op in BOTH {
        for model in ["gpt-nothing", "", "CHAT", " chat", "vendor-chat-1"] {
            let body = with(op.body("x"), json!({ "model": model }));
            let answer = op.call(&world, &key, &body).await;
            let text = refused(model, &answer, 503, NOT_FOUND, "model_not_found");
            assert!(text.contains(&format!("«{model}»")), "{text}");
        }
        let body = with(op.body("x"), json!({ "model": "chta" }));
        let answer = op.call(&world, &key, &body).await;
        let text = refused("chta", &answer, 503, NOT_FOUND, "model_not_found");
        assert!(text.contains("Похожее имя: «chat»"), "{text}");
    }
    assert!(world.vendor.received().is_empty());
}

#[tokio::test]
async fn model_without_a_current_price_is_503() {
    let closed = "url = \"http://127.0.0.1:1/rate\"\nselect = \"/price\"";
    let (world, key) = Setup::default()
        .edit("fixed = \"100\"", closed)
        .start_with_key()
        .await;
    for op in BOTH {
        let answer = op.call(&world, &key, &op.body("x")).await;
        let text = refused(op.path(), &answer, 503, API, "price_unavailable");
        assert!(text.contains("Цены"), "{text}");
    }
    assert!(world.vendor.received().is_empty());
}

#[tokio::test]
async fn calls_are_refused_with_503_while_the_ledger_is_unreachable() {
    let redis = RedisServer::start().await;
    let (world, key) = Setup::default().ledger(&redis.url()).start_with_key().await;
    assert_eq!(world.chat(&key, &Op::Chat.body("x")).await.status, 200);
    redis.kill();
    for op in BOTH {
        let answer = op.call(&world, &key, &op.body("x")).await;
        refused(op.path(), &answer, 503, API, "ledger_unavailable");
    }
    assert_eq!(world.vendor.received().len(), 1);
}

#[tokio::test]
async fn overload_is_refused_with_503_until_a_call_in_flight_has_ended() {
    let (world, key) = limits("in_flight_max = 1").start_with_key().await;
    for op in BOTH {
        let running = Running::start(&world, op, &key, &op.body("x")).await;
        let answer = op.call(&world, &key, &op.body("x")).await;
        refused(op.path(), &answer, 503, OVERLOADED, "overloaded");
        running.finish().await;
        world.vendor.script(polite);
        eventually("a call is let in", async || {
            let answer = op.call(&world, &key, &op.body("x")).await;
            (answer.status == 200).then_some(())
        })
        .await;
        world.settled(&key).await;
    }
}

#[tokio::test]
async fn error_texts_are_russian_or_english_as_configured() {
    for (setup, russian) in [
        (Setup::default(), true),
        (top("language = \"ru\""), true),
        (top("language = \"en\""), false),
    ] {
        let (world, key) = setup.start_with_key().await;
        let poor = world.key_with("poor", "0.000001", json!({})).await;
        for op in BOTH {
            let bad = with(op.body("x"), json!({ "stream": 1 }));
            let nothing = with(op.body("x"), json!({ "model": "nothing" }));
            for (answer, status, kind, code) in [
                (
                    world.get(op.path(), &[]).await,
                    405,
                    INVALID,
                    "method_not_allowed",
                ),
                (op.call(&world, &key, &bad).await, 400, INVALID, ""),
                (
                    op.call(&world, &poor, &op.body("x")).await,
                    403,
                    PERMISSION,
                    "insufficient_balance",
                ),
                (
                    op.call(&world, &key, &nothing).await,
                    503,
                    NOT_FOUND,
                    "model_not_found",
                ),
            ] {
                let text = shape(code, &answer, status, kind, code);
                assert_eq!(is_russian(&text), russian, "{text}");
                assert_eq!(text.is_ascii(), !russian, "{text}");
            }
        }
    }
}

#[tokio::test]
async fn answer_to_a_call_must_not_be_cached() {
    let (world, key) = World::start_with_key().await;
    for op in BOTH {
        for fields in [
            json!({}),
            json!({ "stream": true }),
            json!({ "stream": 1 }),
            json!({ "model": "nothing" }),
        ] {
            let answer = op.call(&world, &key, &with(op.body("x"), fields)).await;
            let control = answer.headers["cache-control"].to_str().unwrap();
            assert!(control.contains("no-store"), "{control}");
            assert!(!answer.headers.contains_key("access-control-allow-origin"));
        }
    }
}

/// Compresses the text with gzip.
fn packed(text: &str) -> Vec<u8> {
    let mut encoder = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::best());
    encoder.write_all(text.as_bytes()).unwrap();
    encoder.finish().unwrap()
}
