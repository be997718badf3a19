//! Tests of requests of the Responses format: what the gateway forwards, what it changes, and what it refuses before it
//! calls a vendor.

use super::{answer, ask, ask_raw, body, charged, cost, says, sent, setup, usage, world};
use crate::prelude::*;

const COUNTS: [u64; 4] = [9, 3, 2, 5];

#[tokio::test]
async fn responses_body_and_answer_pass_unchanged_except_fields_that_the_gateway_sets() {
    let (world, key) = setup().start_with_key().await;
    let reported = answer("Да.\n", &usage(COUNTS));
    says(&world, Reply::json(200, &reported));
    let body = r#"{ "model" : "chat","input":"\u043fривет", "temperature":0.70 ,"x":1e400}"#;
    let answer = ask_raw(&world, &key, body).await;
    assert_eq!(answer.status.as_u16(), 200);
    assert_eq!(answer.text(), reported.to_string());
    let received = world.vendor.received().pop().unwrap();
    assert_eq!(received.path, "/v1/responses");
    assert!(
        received.headers["authorization"]
            .to_str()
            .unwrap()
            .starts_with("Bearer ")
    );
    let expected = body.replace("\"chat\"", "\"vendor-chat-1\"").replacen(
        '{',
        r#"{"store":false,"include":["reasoning.encrypted_content"],"max_output_tokens":4000,"#,
        1,
    );
    assert_eq!(received.body, expected);
    charged("plain", &world, &answer, cost(COUNTS), false).await;
}

#[tokio::test]
async fn responses_call_with_an_invalid_key_is_refused_as_in_other_formats() {
    let (world, key) = setup().start_with_key().await;
    let unknown = Key {
        secret: format!("tg-{}", "x".repeat(40)),
        ..key.clone()
    };
    let answer = ask(&world, &unknown, &body(json!({}))).await;
    refused("unknown", &answer, 401, AUTHENTICATION, "invalid_api_key");
    let headers = [("content-type", "application/json")];
    let url = world.url("/v1/responses");
    let bare = request(
        Method::POST,
        &url,
        &headers,
        body(json!({})).to_string().into(),
    );
    let answer = world.ask(bare).await;
    refused("no key", &answer, 401, AUTHENTICATION, "invalid_api_key");
    let empty = world.key_with("empty", "0", json!({})).await;
    let answer = ask(&world, &empty, &body(json!({}))).await;
    refused("empty", &answer, 401, AUTHENTICATION, "account_empty");
    let poor = world.key_with("poor", "0.01", json!({})).await;
    let answer = ask(&world, &poor, &body(json!({ "max_output_tokens": 4000 }))).await;
    refused("poor", &answer, 403, PERMISSION, "insufficient_balance");
    let bound = world
        .another_key("acme", json!({ "models": ["messages"] }))
        .await;
    let answer = ask(&world, &bound, &body(json!({}))).await;
    refused("bound", &answer, 403, PERMISSION, "model_not_allowed");
    let answer = ask(&world, &key, &body(json!({ "model": "chit" }))).await;
    refused("no model", &answer, 503, NOT_FOUND, "model_not_found");
    assert!(world.vendor.received().is_empty());
}

#[tokio::test]
async fn invalid_responses_field_is_named_and_no_vendor_is_called() {
    let (world, key) = setup().start_with_key().await;
    let deep = format!(
        r#"{{"model":"chat","input":"x","x":{}}}"#,
        "[".repeat(65) + &"]".repeat(65)
    );
    let no_input = json!({ "model": "chat", "messages": [{ "role": "user", "content": "x" }] });
    let twice = r#"{"model":"chat","model":"chat","input":"x"}"#;
    let mut cases = vec![
        (no_input.to_string(), "input", ""),
        (twice.to_owned(), "model", ""),
        (deep, "x", ""),
    ];
    let (state, tool) = ("state_unsupported", "tool_unsupported");
    for (fields, field, code) in [
        (json!({ "input": null }), "input", ""),
        (json!({ "input": [] }), "input", ""),
        (json!({ "input": "" }), "input", ""),
        (json!({ "input": 7 }), "input", ""),
        (json!({ "max_output_tokens": 0 }), "max_output_tokens", ""),
        (json!({ "max_output_tokens": 1.5 }), "max_output_tokens", ""),
        (
            json!({ "previous_response_id": "resp_1" }),
            "previous_response_id",
            state,
        ),
        (
            json!({ "conversation": { "id": "c" } }),
            "conversation",
            state,
        ),
        (json!({ "prompt": { "id": "p" } }), "prompt", state),
        (json!({ "background": true }), "background", state),
        (json!({ "store": true }), "store", state),
        (json!({ "service_tier": "flex" }), "service_tier", ""),
        (
            json!({ "reasoning": { "mode": "pro" } }),
            "reasoning.mode",
            "",
        ),
        (
            json!({ "input": [{ "id": "rs_1" }] }),
            "input[0].type",
            state,
        ),
        (
            json!({ "tools": [{ "type": "mcp" }] }),
            "tools[0].type",
            tool,
        ),
        (
            json!({ "tools": [{ "type": "web_search" }] }),
            "tools[0].type",
            tool,
        ),
    ] {
        cases.push((body(fields).to_string(), field, code));
    }
    for (raw, field, code) in cases {
        let answer = ask_raw(&world, &key, &raw).await;
        let text = refused(&raw, &answer, 400, INVALID, code);
        assert!(text.contains(&format!("«{field}»")), "{raw}: {text}");
        if code == "state_unsupported" && !field.starts_with("input") {
            assert!(text.contains("уберите поле"), "{raw}: {text}");
        }
        cost_nothing(&raw, &world, &key, &answer).await;
    }
    let no_json = ask_raw(&world, &key, "{").await;
    refused("{", &no_json, 400, INVALID, "");
    assert!(world.vendor.received().is_empty());
}

#[tokio::test]
async fn subpaths_and_websockets_of_responses_are_refused() {
    let (world, key) = setup().start_with_key().await;
    let bearer = format!("Bearer {}", key.secret);
    let key = ("authorization", bearer.as_str());
    let upgrade = [
        key,
        ("connection", "upgrade"),
        ("upgrade", "websocket"),
        ("sec-websocket-version", "13"),
        ("sec-websocket-key", "dGhlIHNhbXBsZSBub25jZQ=="),
    ];
    for headers in [&[key][..], &upgrade] {
        let answer = world.get("/v1/responses", headers).await;
        refused("GET", &answer, 405, INVALID, "method_not_allowed");
        assert_eq!(answer.headers["allow"], "POST");
    }
    for path in [
        "resp_1",
        "resp_1/cancel",
        "resp_1/input_items",
        "compact",
        "input_tokens",
        "",
    ] {
        for method in [Method::GET, Method::POST, Method::DELETE] {
            let url = world.url(&format!("/v1/responses/{path}"));
            let answer = world.ask(request(method, &url, &[key], "{}".into())).await;
            refused(path, &answer, 404, NOT_FOUND, "path_not_found");
        }
    }
}

#[tokio::test]
async fn responses_are_never_stored_at_the_vendor_and_reasoning_is_encrypted() {
    let encrypted = "reasoning.encrypted_content";
    for (switch, fields, include) in [
        (true, json!({}), json!([encrypted])),
        (
            true,
            json!({ "store": null, "include": null }),
            json!([encrypted]),
        ),
        (
            true,
            json!({ "store": false, "include": [] }),
            json!([encrypted]),
        ),
        (
            true,
            json!({ "include": ["a", "b"] }),
            json!([encrypted, "a", "b"]),
        ),
        (
            true,
            json!({ "include": ["a", encrypted] }),
            json!(["a", encrypted]),
        ),
        (false, json!({}), Value::Null),
        (false, json!({ "include": ["a"] }), json!(["a"])),
    ] {
        let setup = match switch {
            true => setup(),
            false => setup().edit(
                "output_tokens_max = 4000",
                "output_tokens_max = 4000\nencrypted_reasoning = false",
            ),
        };
        let (world, key) = setup.start_with_key().await;
        let usual = json!({ "previous_response_id": null, "conversation": null, "prompt": null, "background": false,
            "context_management": null, "service_tier": "auto", "truncation": "auto", "max_output_tokens": null });
        says(&world, Reply::json(200, &answer("да", &usage(COUNTS))));
        let body = crate::harness::with(body(usual), fields.clone());
        let answer = ask(&world, &key, &body).await;
        assert_eq!(answer.status, 200, "{fields}: {answer:?}");
        let sent = sent(&world);
        assert_eq!(sent["store"], false, "{fields}");
        assert_eq!(sent["include"], include, "{fields}");
        assert_eq!(sent["max_output_tokens"], 4000);
    }
}

#[tokio::test]
async fn optional_search_tool_and_caller_identity_reach_no_vendor() {
    let (world, key) = setup().start_with_key().await;
    let function = json!({ "type": "function", "name": "f", "parameters": null });
    says(&world, Reply::json(200, &answer("да", &usage(COUNTS))));
    let body = body(
        json!({ "tools": [{ "type": "web_search" }, function], "tool_choice": "auto",
        "client_metadata": { "machine": "secret" } }),
    );
    assert_eq!(ask(&world, &key, &body).await.status, 200);
    let sent = sent(&world);
    assert_eq!(sent["tools"], json!([function]));
    assert!(sent.get("client_metadata").is_none(), "{sent}");
}

#[tokio::test]
async fn balance_limits_the_output_of_a_responses_call_without_a_maximum() {
    let world = world().await;
    let key = world.key_with("small", "0.2", json!({})).await;
    says(
        &world,
        Reply::json(200, &answer("да", &usage([20, 0, 0, 900]))),
    );
    ask(&world, &key, &body(json!({}))).await.expect(200);
    let ceiling = sent(&world)["max_output_tokens"].as_u64().unwrap();
    assert!((256..1000).contains(&ceiling), "{ceiling}");
    let account = world.settled(&key).await;
    assert!(micro(&account["balance_rub"]) >= 0, "{account}");
}

#[tokio::test]
async fn estimate_accepts_a_body_of_the_responses_format() {
    let (world, key) = setup().start_with_key().await;
    let estimate = async |body: Value| {
        let headers = [
            ("x-api-key", key.secret.as_str()),
            ("content-type", "application/json"),
        ];
        let url = world.url("/v1/tollgate/estimate");
        world
            .ask(request(
                Method::POST,
                &url,
                &headers,
                body.to_string().into(),
            ))
            .await
    };
    let answer = estimate(body(
        json!({ "max_output_tokens": 50, "background": false }),
    ))
    .await
    .expect(200);
    let reported = answer.json();
    assert_eq!(reported["model"], "chat");
    assert_eq!(reported["output_tokens_max"], 50);
    let answer = estimate(body(json!({ "store": true }))).await;
    refused("kept", &answer, 400, INVALID, "state_unsupported");
    assert!(world.vendor.received().is_empty());
}
