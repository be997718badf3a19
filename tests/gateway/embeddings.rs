//! Tests of `POST /v1/embeddings`: the request is forwarded unchanged, the hold is an upper bound, and the charge
//! follows the vendor's count.

use futures_util::future::join_all;
use http::Request;
use http_body_util::Full;
use tollgate::demo::vendor::ScriptedVendor;
use tollgate_layers::text_size::TextSize;

use crate::prelude::*;

/// The price of an input token, in micro-rubles.
const RATE: i64 = 20;
/// The number of tokens that the hold adds to each input, for text that the vendor may add around it.
const AROUND: i64 = 32;
const FIRST_MODEL: &str = "[[model]]\nid = \"chat\"";

/// Returns the usual configuration with an additional model `vectors`, which has these routes.
fn setup(routes: &str) -> Setup {
    let model = format!(
        "[[model]]\nid = \"vectors\"\nfamily = \"Test\"\nkind = \"embedding\"\n\
         usdt_mtok = {{ input = \"0.2\" }}\nroutes = [ {routes} ]\n{FIRST_MODEL}"
    );
    Setup::default().edit(FIRST_MODEL, &model)
}

/// Returns the setup of a gateway whose embedding model has the vendor `chat-vendor`.
fn usual() -> Setup {
    setup("{ vendor = \"chat-vendor\", model = \"vectors-1\" }")
}

fn post(world: &World, path: &str, key: &Key, body: impl Into<Bytes>) -> Request<Full<Bytes>> {
    let headers = [
        ("x-api-key", key.secret.as_str()),
        ("content-type", "application/json"),
    ];
    request(Method::POST, &world.url(path), &headers, body.into())
}

async fn embed(world: &World, key: &Key, body: &Value) -> Answer {
    world
        .ask(post(world, "/v1/embeddings", key, body.to_string()))
        .await
}

fn body(input: Value) -> Value {
    json!({ "model": "vectors", "input": input })
}

/// Returns a response with vectors and this usage. Its JSON is formatted unusually and must reach the caller unchanged.
fn vectors(usage: &str) -> String {
    format!(
        "{{ \"object\" : \"list\",\n\"data\":[{{\"object\":\"embedding\",\"index\":0,\"embedding\":[ 0.10, -1e-3,0.0]}},\
         {{\"index\":1,\"embedding\":\"AACAPwAAAEA=\"}}],\"model\":\"vectors-1\",\"usage\":{usage},\"x\":\"ё\" }}\n"
    )
}

fn answers(text: String) -> Reply {
    Reply::raw(200, "application/json", vec![Step::Send(text.into())])
}

#[tokio::test]
async fn each_shape_of_embedding_input_is_forwarded_unchanged_and_charged_by_the_vendors_count() {
    let (world, key) = usual().start_with_key().await;
    let mut spent = 0;
    // The columns are: the input, and the tokens held for it. Three bytes of text count as two tokens, and a token id
    // as one.
    for (input, tokens) in [
        (r#""привет, мир""#, 14 + AROUND),
        (r#" [ "a" ,"bc", "\u0041" ] "#, 3 + 3 * AROUND),
        ("[1, 22 ,333]", 3 + AROUND),
        ("[[1],[2,3 ] ]", 3 + 2 * AROUND),
    ] {
        for more in [
            "",
            r#","encoding_format":"float""#,
            r#","encoding_format" : "base64","dimensions":256,"user":"u-1""#,
        ] {
            let sent = format!(r#"{{ "input":{input},"model":"vectors"{more} }}"#);
            let reported = vectors(r#"{"prompt_tokens":5,"total_tokens":5}"#);
            let reply = reported.clone();
            world.vendor_sends(answers(reply.clone()));
            let answer = world
                .ask(post(&world, "/v1/embeddings", &key, sent.clone()))
                .await
                .expect(200);
            assert_eq!(answer.text(), reported);

            let received = world.vendor.received().pop().unwrap();
            assert_eq!(received.path, "/v1/embeddings");
            let requested = sent.replace("\"vectors\"", "\"vectors-1\"");
            assert_eq!(std::str::from_utf8(&received.body).unwrap(), requested);

            let receipt = world.receipt(&answer.number()).await;
            assert_eq!(micro(&receipt["charged_rub"]), 5 * RATE, "{receipt}");
            let weighs = sent.matches("base64").count() > 0;
            // The values `base64`, `256` and `u-1` of these fields have twelve bytes in total, which the hold counts as
            // eight tokens.
            let more = if weighs {
                8
            } else {
                3 * i64::from(!more.is_empty())
            };
            let held = micro(&receipt["held_rub"]);
            let odd = (held - (tokens + more) * RATE).abs();
            assert!(odd <= RATE, "{sent}: {receipt}");
            assert_eq!(receipt["usage"]["input"], 5, "{receipt}");
            assert_eq!(receipt["usage"]["output"], 0, "{receipt}");
            assert_eq!(receipt["estimated"], false, "{receipt}");
            assert_eq!(receipt["end"], "finished", "{receipt}");
            spent += 5 * RATE;
        }
    }
    assert_eq!(micro(&world.settled(&key).await["spent_rub"]), spent);
}

#[tokio::test]
async fn all_usage_of_an_embedding_call_is_input() {
    let (world, key) = usual().start_with_key().await;
    for usage in [
        r#"{"prompt_tokens":7,"completion_tokens":0,"total_tokens":7}"#,
        r#"{"prompt_tokens":7,"total_tokens":7,"prompt_tokens_details":{"cached_tokens":7}}"#,
        r#"{"total_tokens":7}"#,
    ] {
        let reported = vectors(usage);
        world.vendor_sends(answers(reported.clone()));
        let answer = embed(&world, &key, &body(json!("слово"))).await;
        assert_eq!(answer.text(), reported);
        let receipt = world.receipt(&answer.number()).await;
        assert_eq!(micro(&receipt["charged_rub"]), 7 * RATE, "{receipt}");
        assert_eq!(receipt["estimated"], false, "{receipt}");
    }
}

#[tokio::test]
async fn missing_embedding_usage_is_estimated_and_excessive_usage_is_limited_by_the_hold() {
    let (world, key) = usual().start_with_key().await;
    let estimated = |times: usize| TextSize::of(&"x".repeat(times)).milli();
    let whole = |milli: u64| i64::try_from(milli / 1000).unwrap();
    // The columns are: the usage that the vendor reports, the input, the tokens charged, and whether the receipt is
    // marked as `bounded`.
    let two_lists = json!([[1, 2, 3, 4, 5], [6, 7, 8, 9, 10]]);
    let two_texts = json!(["x".repeat(20), "x".repeat(20)]);
    let nothing = r#"{"prompt_tokens":0,"total_tokens":0}"#;
    let million = r#"{"prompt_tokens":1000000,"total_tokens":1000000}"#;
    for (usage, input, tokens, bounded) in [
        ("null", json!("x".repeat(40)), whole(estimated(40)), false),
        ("{}", json!([1, 2, 3, 4, 5, 6, 7, 8, 9, 10]), 10, false),
        ("\"y\"", two_lists, 10, false),
        (nothing, two_texts, whole(2 * estimated(20)), false),
        (million, json!([1, 2]), 2 + AROUND, true),
    ] {
        let reported = vectors(usage);
        world.vendor_sends(answers(reported.clone()));
        let answer = embed(&world, &key, &body(input)).await;
        // In the response, the gateway replaces the vendor's usage with the charged usage, and changes nothing else.
        let charged = format!(r#"{{"prompt_tokens":{tokens},"total_tokens":{tokens}}}"#);
        assert_eq!(answer.text(), reported.replace(usage, &charged));
        let receipt = world.receipt(&answer.number()).await;
        assert_eq!(micro(&receipt["charged_rub"]), tokens * RATE, "{receipt}");
        assert!(micro(&receipt["held_rub"]) >= tokens * RATE, "{receipt}");
        assert_eq!(receipt["estimated"], true, "{receipt}");
        assert_eq!(receipt["bounded"], bounded, "{receipt}");
    }
}

#[tokio::test]
async fn embedding_estimate_equals_the_hold_of_the_running_call() {
    let (world, key) = usual().start_with_key().await;
    let body = body(json!(["слово ".repeat(100), "x"]));
    let path = "/v1/tollgate/estimate?path=%2Fv1%2Fembeddings";
    let estimate = post(&world, path, &key, body.to_string());
    let reported = world.ask(estimate).await.expect(200).json();
    assert_eq!(reported["model"], "vectors");
    assert_eq!(reported["fits"], true);
    assert_eq!(reported["output_tokens_max"], 0, "{reported}");
    let tokens = reported["input_tokens_max"].as_i64().unwrap();
    assert_eq!(micro(&reported["hold_rub"]), tokens * RATE, "{reported}");

    let go = Arc::new(Notify::new());
    let hold = Step::Hold(Arc::clone(&go));
    let reply = answers(vectors(r#"{"prompt_tokens":300,"total_tokens":300}"#));
    world.vendor_sends(reply.with_step(0, hold));
    let held = async {
        let held = eventually("it is held for", async || {
            let held = world.account(&key).await["held_rub"].clone();
            (held != "0.00").then_some(held)
        });
        let held = held.await;
        go.notify_one();
        held
    };
    let (answer, held) = tokio::join!(embed(&world, &key, &body), held);
    assert_eq!(answer.status, 200, "{answer:?}");
    assert_eq!(held, reported["hold_rub"]);

    // A path at which no model is called has no estimate.
    let path = "/v1/tollgate/estimate?path=/v1/models";
    let estimate = post(&world, path, &key, body.to_string());
    world.ask(estimate).await.expect(404);
}

#[tokio::test]
async fn refusal_of_an_invalid_embedding_request_names_the_field_and_costs_nothing() {
    let (world, key) = usual().start_with_key().await;
    for (fields, field) in [
        (json!({ "input": null }), "input"),
        (json!({ "input": [] }), "input"),
        (json!({ "input": ["a", 1] }), "input[1]"),
        (json!({ "input": [[1, -1]] }), "input[0][1]"),
        (json!({ "input": [{ "image": "x" }] }), "input[0]"),
        (json!({ "stream": true }), "stream"),
        (json!({ "model": 7 }), "model"),
        (json!({ "provider": { "order": [] } }), "provider"),
        (json!({ "service_tier": "flex" }), "service_tier"),
    ] {
        let answer = embed(&world, &key, &with(body(json!("x")), fields)).await;
        let text = refused(field, &answer, 400, INVALID, "");
        assert!(text.contains(&format!("«{field}»")), "{text}");
        cost_nothing(field, &world, &key, &answer).await;
    }
    assert!(world.vendor.received().is_empty());
}

#[tokio::test]
async fn embedding_and_chat_models_are_callable_only_on_their_own_paths() {
    let (world, key) = usual().start_with_key().await;
    let to_chat = with(body(json!("x")), json!({ "model": "chat" }));
    let embeddings = embed(&world, &key, &to_chat).await;
    let of = json!({ "model": "vectors" });
    let chat = world.chat(&key, &with(chat_body("x"), of.clone())).await;
    let messages = world.messages(&key, &with(messages_body("x"), of)).await;
    let not_for =
        "не для эмбеддингов, её адреса: POST /v1/chat/completions, /v1/messages или /v1/responses";
    let only_for = "только для эмбеддингов, её адрес: POST /v1/embeddings";
    for (answer, says) in [
        (embeddings, not_for),
        (chat, only_for),
        (messages, only_for),
    ] {
        let text = refused(says, &answer, 400, INVALID, "");
        assert!(text.contains("«model»") && text.contains(says), "{text}");
    }
    assert!(world.vendor.received().is_empty());
    // If the key may not call the model, this is the only fault that the refusal reports.
    world.only_for(&key, &["chat"]).await;
    let answer = embed(&world, &key, &body(json!("x"))).await;
    refused("not allowed", &answer, 403, PERMISSION, "model_not_allowed");
    cost_nothing("a refusal", &world, &key, &answer).await;
}

#[tokio::test]
async fn embedding_call_is_answered_by_the_next_vendor_if_the_first_fails() {
    let first = ScriptedVendor::start().await.unwrap();
    let vendor = format!(
        "[[vendor]]\nname = \"first\"\nformat = \"chat\"\nurl = \"http://{}/api\"\nkey = \"${{VENDOR_KEY}}\"\n",
        first.address()
    );
    let routes = "{ vendor = \"first\", model = \"f\" }, { vendor = \"chat-vendor\", model = \"vectors-1\", priority = 1 }";
    let (world, key) = setup(routes)
        .edit(FIRST_MODEL, &format!("{vendor}{FIRST_MODEL}"))
        .start_with_key()
        .await;
    for (number, reply) in [
        Reply::json(500, &json!({ "error": { "message": "x" } })),
        Reply::json(200, &json!({ "error": { "message": "x" } })),
        answers("<html>".to_owned()),
    ]
    .into_iter()
    .enumerate()
    {
        first.script(move |_| reply.clone());
        let answer = embed(&world, &key, &body(json!("x"))).await.expect(200);
        assert_eq!(first.received()[number].path, "/api/embeddings");
        let receipt = world.receipt(&answer.number()).await;
        assert_eq!(receipt["vendor"], "chat-vendor", "{receipt}");
    }
    assert_eq!(micro(&world.settled(&key).await["spent_rub"]), 3 * RATE);

    // If a vendor refuses the request, the gateway does not try another vendor.
    let reply = Reply::json(400, &json!({ "error": { "message": "too long" } }));
    first.script(move |_| reply.clone());
    let answer = embed(&world, &key, &body(json!("x"))).await;
    let text = refused("the vendor's", &answer, 400, INVALID, "");
    assert!(text.starts_with("too long"), "{text}");
    assert_eq!(world.vendor.received().len(), 3);
    assert_eq!(micro(&world.settled(&key).await["spent_rub"]), 3 * RATE);
}

#[tokio::test]
async fn embedding_call_is_charged_by_the_vendors_count_after_a_client_disconnect() {
    let (world, key) = usual().start_with_key().await;
    let go = Arc::new(Notify::new());
    let hold = Step::Hold(Arc::clone(&go));
    let reply = answers(vectors(r#"{"prompt_tokens":5,"total_tokens":5}"#));
    world.vendor_sends(reply.with_step(0, hold));
    let sent = body(json!("x".repeat(100)));
    {
        let call = embed(&world, &key, &sent);
        let requested = eventually("the vendor is asked", async || {
            (world.vendor.open() > 0).then_some(())
        });
        tokio::select! {
            answer = call => panic!("it is answered: {answer:?}"),
            () = requested => {}
        }
    }
    go.notify_one();
    let account = world.settled(&key).await;
    assert_eq!(micro(&account["spent_rub"]), 5 * RATE, "{account}");
}

#[tokio::test]
async fn parallel_embedding_calls_never_overdraw_the_balance() {
    let world = usual().start().await;
    let funds = 100 * RATE;
    let key = world.key_with("poor", &rubles(funds), json!({})).await;
    // Each call holds 42 tokens and costs ten tokens. The money covers 100 tokens, which is two concurrent calls.
    let sent = body(json!([1, 2, 3, 4, 5, 6, 7, 8, 9, 10]));
    let mut answered = 0;
    for _ in 0..5 {
        let calls = (0..8).map(|_| embed(&world, &key, &sent));
        for answer in join_all(calls).await {
            match answer.status.as_u16() {
                200 => answered += 1,
                401 | 403 => {}
                status => panic!("{status}: {answer:?}"),
            }
        }
        let account = world.settled(&key).await;
        assert!(micro(&account["balance_rub"]) >= 0, "{account}");
        assert_eq!(micro(&account["balance_rub"]), funds - answered * 10 * RATE);
    }
    assert!((5..=6).contains(&answered), "{answered}");
}

#[tokio::test]
async fn refusal_of_an_embedding_call_does_not_advise_to_lower_the_output_maximum() {
    let world = usual().start().await;
    let key = world.key_with("poor", &rubles(10 * RATE), json!({})).await;
    let answer = embed(&world, &key, &body(json!("привет"))).await;
    let text = refused("vectors", &answer, 403, PERMISSION, "insufficient_balance");
    let advice = "Сократите запрос либо пополните баланс.";
    assert!(text.ends_with(advice), "{text}");
    assert!(!text.contains("max_"), "{text}");
    let answer = world.chat(&key, &chat_body("привет")).await;
    let text = refused("chat", &answer, 403, PERMISSION, "insufficient_balance");
    assert!(text.contains("(max_tokens, max_output_tokens)"), "{text}");
}

#[tokio::test]
async fn model_lists_show_the_kind_of_each_model_and_the_paths_at_which_it_is_called() {
    let (world, key) = usual().start_with_key().await;
    for headers in [vec![], vec![("anthropic-version", "2023-06-01")]] {
        let headers = [vec![("x-api-key", key.secret.as_str())], headers].concat();
        let list = world.get("/v1/models", &headers).await.json();
        let models = list["data"].as_array().unwrap();
        let returned: Vec<_> = models
            .iter()
            .map(|model| json!([model["id"], model["kind"], model["surfaces"]]))
            .collect();
        let chat = ["/v1/chat/completions", "/v1/messages", "/v1/responses"];
        let expected = [
            json!(["vectors", "embedding", ["/v1/embeddings"]]),
            json!(["chat", "chat", chat]),
            json!(["messages", "chat", chat]),
        ];
        assert_eq!(returned, expected);
        let reported = models[0]["description"].as_str().unwrap();
        assert!(!reported.to_lowercase().contains("выход"), "{reported}");
    }
    let catalog = world.get("/v1/tollgate/models", &[]).await.json();
    let sold = &catalog["models"];
    assert_eq!(sold[0]["kind"], "embedding");
    assert_eq!(sold[0]["input_rub_mtok"], "20.00");
    for rate in [
        "cached_input_rub_mtok",
        "output_rub_mtok",
        "cache_write_rub_mtok",
    ] {
        assert_eq!(sold[0][rate], Value::Null);
        assert_ne!(sold[1][rate], Value::Null);
    }
    assert!(sold[1].get("kind").is_none(), "{catalog}");
    // Configurations that the gateway generates for chat clients do not contain the embedding model.
    let opencode = world.get("/v1/tollgate/connect/opencode", &[]).await.text();
    has(&opencode, "messages");
    assert!(!opencode.contains("vectors"), "{opencode}");
    let page = world.get("/", &[("accept", "text/html")]).await.text();
    has(&page, "<code>vectors</code><br><small>эмбеддинги</small>");
    // The page's example is a chat.
    assert!(!page.contains("\"vectors\""), "{page}");
}

#[tokio::test]
async fn metrics_count_embedding_calls_under_their_path() {
    let (world, key) = usual().start_with_key().await;
    embed(&world, &key, &body(json!("x"))).await.expect(200);
    world.settled(&key).await;
    let scrape = world.admin_get("/metrics").await.text();
    let counted = scrape.lines().find(|line| {
        line.starts_with("tollgate_requests_total{") && line.contains("path=\"/v1/embeddings\"")
    });
    assert!(counted.is_some_and(|line| line.ends_with(" 1")), "{scrape}");
}

#[tokio::test]
async fn demo_vendor_fails_an_embedding_call_if_the_input_text_requests_a_failure() {
    let (world, key) = usual().start_with_key().await;
    for (input, status, says) in [
        (json!("vendor-400"), 400, "the script refuses"),
        (json!(["Привет", "vendor-400"]), 400, "the script refuses"),
        (json!(["vendor-500"]), 503, "vendor_unavailable"),
        (json!("vendor-429"), 429, "vendor_rate_limit"),
    ] {
        let answer = embed(&world, &key, &body(input.clone())).await;
        assert_eq!(answer.status, status, "{input}: {answer:?}");
        assert!(answer.text().contains(says), "{input}: {answer:?}");
    }
}

#[tokio::test]
async fn empty_text_or_invalid_token_in_embedding_input_is_refused_with_its_position() {
    let (world, key) = usual().start_with_key().await;
    for (input, field, says) in [
        (json!(""), "input", "значение пустое"),
        (json!(["Привет", ""]), "input[1]", "значение пустое"),
        (json!([0, -1]), "input[1]", "целое число от 0"),
    ] {
        let answer = embed(&world, &key, &body(input.clone())).await;
        let text = refused(says, &answer, 400, INVALID, "");
        assert!(text.contains(&format!("«{field}»")), "{input}: {text}");
        assert!(text.contains(says), "{input}: {text}");
        cost_nothing(field, &world, &key, &answer).await;
    }
    assert!(world.vendor.received().is_empty());
}
