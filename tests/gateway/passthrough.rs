//! Tests of the headers and bodies that the gateway forwards between caller and vendor (docs/architecture.md, rule 4).

use http::HeaderMap;

use crate::prelude::*;

/// Returns many headers that a caller may send. Some of them must not reach the vendor.
fn talkative(key: &str) -> Vec<(&'static str, &str)> {
    vec![
        ("authorization", key),
        ("anthropic-version", "2023-06-01"),
        ("anthropic-beta", "one-2025-01-01,two-2025-02-02"),
        ("user-agent", "caller/1.0"),
        ("accept", "text/html"),
        ("accept-encoding", "gzip, br"),
        ("cookie", "session=secret"),
        ("openai-organization", "org-caller"),
        ("x-stainless-os", "Linux"),
        ("x-forwarded-for", "203.0.113.7"),
        ("x-request-id", "mine"),
        ("idempotency-key", "mine"),
        ("te", "trailers"),
        ("x-api-version", "7"),
        ("x-claude-code-session-id", "s-1"),
        ("x-claude-code-agent-id", "a-1"),
        ("x-claude-code-parent-agent-id", "a-0"),
        ("x-claude-code-request-class", "main"),
        ("x-claude-code-prompt-id", "p-1"),
        ("x-session-id", "s-2"),
        ("x-session-affinity", "s-3"),
    ]
}

fn names(headers: &HeaderMap) -> Vec<&str> {
    let mut names: Vec<_> = headers.keys().map(|name| name.as_str()).collect();
    names.sort_unstable();
    names
}

#[tokio::test]
async fn vendor_gets_only_headers_that_the_gateway_sets() {
    let (world, key) = World::start_with_key().await;
    let bearer = bearer(&key);
    for (op, credential, forwarded) in [
        (Op::Chat, "authorization", &[] as &[&str]),
        (
            Op::Messages,
            "x-api-key",
            &["anthropic-beta", "anthropic-version"],
        ),
    ] {
        for stream in [false, true] {
            let body = with(op.body("x"), json!({ "stream": stream })).to_string();
            let answer = op.post(&world, &talkative(&bearer), body).await.expect(200);
            let headers = world.vendor.received().pop().unwrap().headers;
            let mut expected = vec![
                "accept",
                "accept-encoding",
                "content-length",
                "content-type",
                "host",
                "user-agent",
                credential,
            ];
            expected.extend(forwarded);
            expected.sort_unstable();
            assert_eq!(names(&headers), expected, "{op:?}");
            assert_eq!(headers["content-type"], "application/json");
            assert_eq!(headers["accept-encoding"], "identity");
            let accept = ["application/json", "text/event-stream"][usize::from(stream)];
            assert_eq!(headers["accept"], accept);
            let agent = headers["user-agent"].to_str().unwrap();
            assert!(agent.starts_with("tollgate/"), "{agent}");
            let host = world.vendor.address().to_string();
            assert_eq!(headers["host"], host.as_str());
            // The caller's header names a session, which the gateway stores in the receipt.
            let receipt = world.receipt(&answer.number()).await;
            assert_eq!(receipt["session"], "s-1");
        }
    }
}

#[tokio::test]
async fn anthropic_version_and_beta_headers_are_forwarded_unchanged() {
    let (world, key) = World::start_with_key().await;
    let bearer = bearer(&key);
    let body = Op::Messages.body("x").to_string();
    let mut headers = talkative(&bearer);
    headers.push(("anthropic-beta", "three-2025-03-03"));
    assert_eq!(Op::Messages.post(&world, &headers, body).await.status, 200);
    let received = world.vendor.received().pop().unwrap().headers;
    assert_eq!(received["anthropic-version"], "2023-06-01");
    let betas: Vec<_> = received
        .get_all("anthropic-beta")
        .iter()
        .map(|value| value.to_str().unwrap())
        .collect();
    assert_eq!(
        betas.join(","),
        "one-2025-01-01,two-2025-02-02,three-2025-03-03"
    );
}

#[tokio::test]
async fn vendor_gets_the_gateways_key_and_never_the_callers_key() {
    let (world, key) = World::start_with_key().await;
    let bearer = bearer(&key);
    let both = [
        ("authorization", bearer.as_str()),
        ("x-api-key", key.secret.as_str()),
    ];
    for op in BOTH {
        op.post(&world, &both, op.body("x").to_string())
            .await
            .expect(200);
    }
    let received = world.vendor.received();
    let ours = format!("Bearer {VENDOR_KEY}");
    assert_eq!(received[0].headers["authorization"], ours.as_str());
    assert_eq!(received[1].headers["x-api-key"], VENDOR_KEY);
    for received in received {
        let all = format!("{received:?}");
        assert!(!all.contains(&key.secret), "{all}");
    }
}

/// Adds headers to a vendor's response that the gateway must not forward.
fn gossip(reply: Reply) -> Reply {
    reply
        .header("openai-organization", "org-secret")
        .header("x-request-id", "req-of-the-vendor")
        .header("request-id", "req-of-the-vendor")
        .header("set-cookie", "session=secret")
        .header("server", "vendor/1.0")
        .header("x-ratelimit-remaining-requests", "7")
        .header("cache-control", "public, max-age=1000")
        .header("access-control-allow-origin", "*")
        .header("www-authenticate", "Basic")
        .header("x-should-retry", "true")
        .header("location", "https://vendor.example/")
        .header("x-our-key", VENDOR_KEY)
}

fn only_ours(what: &str, answer: &Answer, key: &Key) {
    for name in names(&answer.headers) {
        let ours = [
            "cache-control",
            "content-length",
            "content-type",
            "date",
            "request-id",
            "retry-after",
            "transfer-encoding",
            "x-accel-buffering",
            "x-cost-rub",
            "x-request-id",
            "x-should-retry",
        ];
        assert!(ours.contains(&name), "{what}: {name}");
    }
    let all = format!("{answer:?} {}", answer.text());
    let retry = answer.headers.get("x-should-retry");
    assert!(retry.is_none_or(|retry| retry == "false"), "{what}");
    for secret in ["req-of-the-vendor", "org-secret", VENDOR_KEY, &key.secret] {
        assert!(!all.contains(secret), "{what}: {secret} in {all}");
    }
    let control = answer.headers["cache-control"].to_str().unwrap();
    assert!(control.contains("no-store"), "{what}: {control}");
}

#[tokio::test]
async fn client_gets_only_headers_that_the_gateway_sets() {
    let (world, key) = World::start_with_key().await;
    for op in BOTH {
        let plain = plain_reply(op, "да", 9, 1);
        let stream = Reply::stream(events(op, &["да"], 9, 1));
        for (what, reply, requested) in [
            ("plain", plain, false),
            ("stream", stream, true),
            ("refused", refusal(400, "no"), false),
            ("limited", refusal(429, "no"), false),
            ("down", refusal(500, "no"), true),
        ] {
            world.vendor_sends(gossip(reply));
            let body = with(op.body("x"), json!({ "stream": requested }));
            let answer = op.call(&world, &key, &body).await;
            only_ours(what, &answer, &key);
            let buffering = answer.headers.get("x-accel-buffering");
            let expected = (what == "stream").then_some("no");
            assert_eq!(buffering.map(|v| v.to_str().unwrap()), expected, "{what}");
        }
    }
}

#[tokio::test]
async fn a_plain_answer_reaches_the_client_byte_for_byte() {
    let (world, key) = World::start_with_key().await;
    for op in BOTH {
        let mut reported = answer(op, "да", &usage(op, 9, 1)).to_string();
        reported.insert_str(
            1,
            " \"new\" : [1.0000000000000000001, 1e400, \"\\u0416\"] ,\n",
        );
        reported.push_str("  \n");
        let expected = reported.clone();
        world.vendor.script(move |_| {
            let step = Step::Send(reported.clone().into());
            Reply::raw(200, "application/json; charset=utf-8", vec![step])
        });
        let answer = op.call(&world, &key, &op.body("x")).await;
        assert_eq!(answer.text(), expected, "{op:?}");
    }
}

#[tokio::test]
async fn fields_that_the_gateway_does_not_read_reach_the_vendor_byte_for_byte() {
    let (world, key) = World::start_with_key().await;
    let bearer = bearer(&key);
    let headers = [("authorization", bearer.as_str())];
    for op in BOTH {
        let (model, vendor_model) = (op.model(), op.vendor_model());
        for body in [
            r#"{"model":"MODEL","max_tokens":5,"messages":[{"role":"user","content":"x"}]}"#,
            " {\n\t\"x\" : 1.0000000000000000001 , \"y\":1e400,\"z\":-0.0,\"model\" : \"MODEL\" ,\r\n \"max_tokens\" : 5,
              \"metadata\":{\"a\":[ 1 , {\"model\":\"MODEL\"}, null ],\"a\":2}, \"messages\":[ {\"content\":\"\\u0416\\n\\/\",
              \"role\":\"user\",\"name\":\"ж\"} ],\"temperature\":0.70000 }\n ",
            r#"{"m\u0061x_tokens":5,"messages":[{"role":"user","content":"\"model\":\"MODEL\""}],"mod\u0065l":"MODEL","q":18446744073709551617}"#,
        ] {
            let body = body.replace("MODEL", model);
            let answer = op.post(&world, &headers, body.clone()).await;
            assert_eq!(answer.status, 200, "{body}: {answer:?}");
            // The gateway may change only the value of the top-level field `model`. All other bytes stay unchanged.
            let name = if body.contains("mod\\u0065l") { "\"mod\\u0065l\"" } else { "\"model\"" };
            let at = body
                .match_indices(name)
                .map(|(at, _)| at + name.len())
                .find(|at| {
                    let before = &body[..*at];
                    before.matches('{').count() - before.matches('}').count() == 1
                })
                .unwrap();
            let (before, behind) = body.split_at(at);
            let expected = [before, &behind.replacen(model, vendor_model, 1)].concat();
            let sent = world.vendor.received().pop().unwrap().body;
            assert_eq!(String::from_utf8(sent.to_vec()).unwrap(), expected);
        }
    }
}

#[tokio::test]
async fn large_body_reaches_the_vendor_unchanged_except_its_model() {
    let (world, key) = World::start_with_key().await;
    let bearer = bearer(&key);
    let headers = [("authorization", bearer.as_str())];
    let text = "x".repeat(90_000);
    for op in BOTH {
        for body in [
            r#"{"model":"MODEL","max_tokens":5,"messages":[{"role":"user","content":"TEXT"}]}"#,
            r#"{"messages":[{"role":"user","content":"TEXT"}],"max_tokens":5,"model":"MODEL"}"#,
        ] {
            let of = |model: &str| body.replace("MODEL", model).replace("TEXT", &text);
            let answer = op.post(&world, &headers, of(op.model())).await;
            assert_eq!(answer.status, 200, "{body}: {answer:?}");
            let sent = world.vendor.received().pop().unwrap();
            let expected = of(op.vendor_model());
            let length = expected.len().to_string();
            assert_eq!(sent.headers["content-length"], length.as_str());
            assert!(sent.body == expected, "{op:?} {body}");
        }
    }
}

#[tokio::test]
async fn parameters_unknown_to_the_gateway_are_forwarded_to_the_vendor() {
    let (world, key) = World::start_with_key().await;
    for op in BOTH {
        let fields = json!({
            "temperature": 0.5, "top_p": 1, "stop": ["x"], "user": "u-1", "seed": 7,
            "metadata": { "k": "v" }, "something_of_tomorrow": { "deep": [1, 2, { "x": null }] },
        });
        let body = with(op.body("x"), fields);
        assert_eq!(op.call(&world, &key, &body).await.status, 200, "{op:?}");
        let sent = world.vendor.received().pop().unwrap().json();
        assert_eq!(sent, with(body, json!({ "model": op.vendor_model() })));
    }
}
