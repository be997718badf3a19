//! Tests of requests that the vendor would bill at a rate that the model does not have (docs/decisions.md, "Money").
//! The gateway refuses them. If the model has the rate, the hold, the charge and the receipt use it.

use crate::prelude::*;

/// Returns a setup whose models have a price for cache writes of one hour: four times the price for five minutes.
fn with_an_hour() -> Setup {
    Setup::default()
        .edit(
            "cache_write = \"0.5\"",
            "cache_write = \"0.5\", cache_write_1h = \"2\"",
        )
        .edit(
            "cache_write = \"5\"",
            "cache_write = \"5\", cache_write_1h = \"20\"",
        )
}

/// Returns a body with one part for each of these cache lifetimes. For an empty lifetime, the part has a
/// `cache_control` without a `ttl`.
fn marked(op: Op, lifetimes: &[&str]) -> Value {
    let parts: Vec<_> = lifetimes
        .iter()
        .map(|ttl| {
            let mut mark = json!({ "type": "ephemeral" });
            if !ttl.is_empty() {
                mark["ttl"] = (*ttl).into();
            }
            json!({ "type": "text", "text": "x", "cache_control": mark })
        })
        .collect();
    with(
        op.body(""),
        json!({ "messages": [{ "role": "user", "content": parts }] }),
    )
}

const ESTIMATE: &str = "/v1/tollgate/estimate";
const COUNT: &str = "/v1/messages/count_tokens";

#[tokio::test]
async fn cache_lifetime_without_a_price_is_refused_and_its_field_is_named() {
    for op in BOTH {
        let ttl = "messages[0].content[0].cache_control.ttl";
        refuses(
            op,
            ttl,
            ["1h", "12h", "30m", "x"].map(|ttl| marked(op, &[ttl])),
        )
        .await;
        let top = json!({ "cache_control": { "type": "ephemeral", "ttl": "1h" } });
        refuses(op, "cache_control.ttl", [with(op.body("x"), top)]).await;
        let tools = json!({ "tools": [{ "name": "f", "input_schema": { "type": "object" },
            "cache_control": { "type": "ephemeral", "ttl": "1h" } }] });
        refuses(
            op,
            "tools[0].cache_control.ttl",
            [with(op.body("x"), tools)],
        )
        .await;
        // One of the two cache lifetimes has no price, so the request is refused.
        let second = "messages[0].content[1].cache_control.ttl";
        refuses(op, second, [marked(op, &["", "1h"])]).await;
    }
    let options = json!({ "prompt_cache_options": { "mode": "implicit", "ttl": "12h" } });
    let body = with(Op::Chat.body("x"), options);
    refuses(Op::Chat, "prompt_cache_options.ttl", [body]).await;
    let points = json!({ "cache_control_injection_points": [{ "location": "message" }] });
    let body = with(Op::Chat.body("x"), points);
    refuses(Op::Chat, "cache_control_injection_points[0]", [body]).await;
}

#[tokio::test]
async fn default_cache_lifetimes_are_forwarded_unchanged() {
    let (world, key) = World::start_with_key().await;
    for op in BOTH {
        for body in [marked(op, &[""]), marked(op, &["5m", "", "5m"])] {
            op.call(&world, &key, &body).await.expect(200);
            let sent = world.vendor.received().pop().unwrap().json();
            assert_eq!(sent["messages"], body["messages"]);
        }
    }
    let options =
        json!({ "prompt_cache_options": { "ttl": "30m" }, "prompt_cache_retention": "24h" });
    let body = with(Op::Chat.body("x"), options);
    assert_eq!(world.chat(&key, &body).await.status, 200);
}

#[tokio::test]
async fn estimate_and_token_count_are_refused_if_the_call_would_be_refused() {
    let (world, key) = World::start_with_key().await;
    for (op, path) in [
        (Op::Chat, ESTIMATE),
        (Op::Messages, ESTIMATE),
        (Op::Messages, COUNT),
    ] {
        let answer = op.call_at(path, &world, &key, &marked(op, &["1h"])).await;
        let text = refused(path, &answer, 400, INVALID, "");
        has(&text, "«messages[0].content[0].cache_control.ttl»");
        cost_nothing(path, &world, &key, &answer).await;
    }
    assert!(world.vendor.received().is_empty());
}

#[tokio::test]
async fn one_hour_cache_write_is_held_and_charged_at_its_own_rate() {
    let (world, key) = with_an_hour().start_with_key().await;
    let catalog = world.get("/v1/tollgate/models", &[]).await.json();
    for (op, model) in BOTH.into_iter().zip(catalog["models"].as_array().unwrap()) {
        let used = Tokens {
            input: 3,
            cached_input: 5,
            cache_write: 400,
            output: 7,
        };
        world.vendor_sends(Reply::json(200, &answer(op, "да", &used.usage(op))));
        for (lifetimes, class) in [
            (&["1h", "1h"][..], "cache_write_1h_rub_mtok"),
            (&["5m", ""], "cache_write_rub_mtok"),
            (&[], "cache_write_rub_mtok"),
        ] {
            let body = match lifetimes {
                [] => op.body("x"),
                lifetimes => marked(op, lifetimes),
            };
            let reported = op.call_at(ESTIMATE, &world, &key, &body).await.json();
            let called = op.call(&world, &key, &body).await.expect(200);
            let receipt = world.receipt(&called.number()).await;

            let (rate_of, count_of) = match class {
                "cache_write_rub_mtok" => ("/price/cache_write", "/usage/cache_write"),
                _ => (
                    "/price/classes/cache_write_1h",
                    "/usage/classes/cache_write_1h",
                ),
            };
            assert_eq!(receipt.pointer(rate_of), Some(&model[class]), "{receipt}");
            assert_eq!(receipt.pointer(count_of), Some(&json!(400)), "{receipt}");
            assert_eq!(receipt["price"], reported["price"]);
            assert_eq!(receipt["held_rub"], reported["hold_rub"]);
            // Rubles per million tokens are equal to micro-rubles per token.
            let rate = |class: &str| micro(&model[class]) / 1_000_000;
            let charge = 3 * rate("input_rub_mtok")
                + 5 * rate("cached_input_rub_mtok")
                + 400 * rate(class)
                + 7 * rate("output_rub_mtok");
            assert_eq!(micro(&receipt["charged_rub"]), charge, "{receipt}");
            assert_eq!(
                called.headers["x-cost-rub"],
                receipt["charged_rub"].as_str().unwrap()
            );
            let dearest = rate("input_rub_mtok").max(rate(class));
            let hold = reported["input_tokens_max"].as_i64().unwrap() * dearest
                + reported["output_tokens_max"].as_i64().unwrap() * rate("output_rub_mtok");
            assert_eq!(micro(&receipt["held_rub"]), hold, "{receipt}");
        }
    }
    let audit = world
        .admin(Method::POST, "/admin/v1/audit", None)
        .await
        .json();
    assert_eq!(audit["breaches"], json!([]), "{audit}");
}

#[tokio::test]
async fn each_cache_lifetime_is_charged_by_the_vendors_count() {
    let (world, key) = with_an_hour().start_with_key().await;
    let body = marked(Op::Messages, &["1h", "5m"]);
    let usage = |creation: &str| -> Value {
        let usage = format!(
            r#"{{"input_tokens":3,"cache_creation_input_tokens":400,"cache_read_input_tokens":0,"output_tokens":7{creation}}}"#
        );
        serde_json::from_str(&usage).unwrap()
    };
    // The vendor reports the lifetimes of all cache writes, of some, or of none. Cache writes without a reported
    // lifetime are charged at the most expensive lifetime that was requested.
    for (creation, five, hour) in [
        (
            r#","cache_creation":{"ephemeral_5m_input_tokens":300,"ephemeral_1h_input_tokens":100}"#,
            300,
            100,
        ),
        (
            r#","cache_creation":{"ephemeral_5m_input_tokens":300}"#,
            300,
            100,
        ),
        (
            r#","cache_creation":{"ephemeral_1h_input_tokens":100}"#,
            0,
            400,
        ),
        (r#","cache_creation":null"#, 0, 400),
        ("", 0, 400),
    ] {
        let usage = usage(creation);
        world.vendor_sends(Reply::json(200, &answer(Op::Messages, "да", &usage)));
        let called = Op::Messages.call(&world, &key, &body).await.expect(200);
        let receipt = world.receipt(&called.number()).await;
        let used = &receipt["usage"];
        assert_eq!(used["cache_write"], five, "{receipt}");
        assert_eq!(used["classes"]["cache_write_1h"], hour, "{receipt}");
        let rate = |pointer: &str| micro(receipt.pointer(pointer).unwrap()) / 1_000_000;
        let charge = 3 * rate("/price/input")
            + five * rate("/price/cache_write")
            + hour * rate("/price/classes/cache_write_1h")
            + 7 * rate("/price/output");
        assert_eq!(micro(&receipt["charged_rub"]), charge, "{receipt}");
    }
    // The price for one hour does not apply to another lifetime.
    for op in BOTH {
        let before = world.vendor.received().len();
        let answer = op.call(&world, &key, &marked(op, &["2h"])).await;
        refused("2h", &answer, 400, INVALID, "");
        assert_eq!(world.vendor.received().len(), before);
    }
}

#[tokio::test]
async fn one_hour_cache_lifetime_is_translated_only_if_the_model_has_a_price_for_it() {
    for (setup, hour_priced) in [(Setup::default(), false), (with_an_hour(), true)] {
        let (world, key) = setup.start_with_key().await;
        for (op, model) in [(Op::Messages, Op::Chat), (Op::Chat, Op::Messages)] {
            let model = model.model();
            for lifetimes in [&["1h"][..], &["1h", "5m"], &["12h"]] {
                let body = with(marked(op, lifetimes), json!({ "model": model }));
                let answer = op.call(&world, &key, &body).await.expect(200);
                let sent = world.vendor.received().pop().unwrap().json();
                let sent = sent.to_string();
                let to_messages = model == "messages";
                assert_eq!(sent.contains("cache_control"), to_messages, "{sent}");
                let hour = to_messages && hour_priced && lifetimes[0] == "1h";
                assert_eq!(sent.contains("\"ttl\":\"1h\""), hour, "{sent}");
                assert!(!sent.contains("12h") && !sent.contains("5m"), "{sent}");
                let receipt = world.receipt(&answer.number()).await;
                let usual = if model == "chat" { "50.00" } else { "500.00" };
                assert_eq!(receipt["price"]["cache_write"], usual, "{receipt}");
            }
        }
    }
}

#[tokio::test]
async fn rate_of_one_hour_cache_writes_is_shown_only_if_configured() {
    let setup = Setup::default().edit(
        "cache_write = \"5\"",
        "cache_write = \"5\", cache_write_1h = \"20.5\"",
    );
    let world = setup.start().await;
    let usual = World::start().await;
    let browser = [("accept", "text/html")];
    let (catalog, page) = (
        world.get("/v1/tollgate/models", &[]).await.json(),
        world.get("/", &browser).await.text(),
    );
    assert_eq!(catalog["models"][0].get("cache_write_1h_rub_mtok"), None);
    let rate = &catalog["models"][1]["cache_write_1h_rub_mtok"];
    assert_eq!(decimal(rate), decimal(&json!("2050")));
    let shown = format!(
        "на час: <data value=\"{}\">2\u{202f}050,00",
        rate.as_str().unwrap()
    );
    assert_eq!(page.matches(&shown).count(), 1, "{page}");

    // Without the additional price, the catalog is the same as with the usual configuration.
    let mut known = catalog.clone();
    let model = known["models"][1].as_object_mut().unwrap();
    model.remove("cache_write_1h_rub_mtok").unwrap();
    let without = usual.get("/v1/tollgate/models", &[]).await;
    let mut without_it = without.json();
    without_it["price_version"] = known["price_version"].clone();
    assert_eq!(known, without_it);
    let page = usual.get("/", &browser).await.text();
    assert!(!page.contains("на час"), "{page}");
    assert!(!page.contains("<small>"), "{page}");
}

/// Returns a chat body whose hold counts this number of input tokens: 512 for the call, 8 for its message, and one for
/// each 1.5 bytes of text.
fn held_as(tokens: usize) -> Value {
    Op::Chat.body(&"x".repeat((tokens - 520) / 2 * 3))
}

#[tokio::test]
async fn call_with_more_input_than_has_a_price_is_refused_with_its_length_and_the_maximum() {
    let setup = Setup::default().edit(
        "output_tokens_max = 4000\nroutes = [ { vendor = \"chat-vendor\"",
        "output_tokens_max = 4000\ninput_tokens_priced_max = 1000\nroutes = [ { vendor = \"chat-vendor\"",
    );
    let (world, key) = setup.start_with_key().await;
    let (fits, long) = (held_as(1000), held_as(1002));
    let reported = Op::Chat.call_at(ESTIMATE, &world, &key, &fits).await.json();
    assert_eq!(reported["input_tokens_max"], 1000, "{reported}");
    assert_eq!(world.chat(&key, &fits).await.status, 200);
    world.settled(&key).await;
    let received = world.vendor.received().len();
    for answer in [
        world.chat(&key, &long).await,
        Op::Chat.call_at(ESTIMATE, &world, &key, &long).await,
    ] {
        let text = refused("long", &answer, 400, INVALID, "");
        for reported in ["«messages»", "1002", "1000"] {
            assert!(text.contains(reported), "{text}");
        }
    }
    assert_eq!(world.vendor.received().len(), received);
    assert_eq!(world.account(&key).await["held_rub"], "0.00");
    // A token-counting request is free, so the limit on input does not apply to it.
    let count = with(long, json!({ "max_tokens": null }));
    Op::Messages
        .call_at(COUNT, &world, &key, &count)
        .await
        .expect(200);
    // The model `messages` has no limit on input.
    let long = Op::Messages.body(&"x".repeat(30_000));
    assert_eq!(world.messages(&key, &long).await.status, 200);
}
