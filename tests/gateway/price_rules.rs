//! docs/prices.md: a call is held by the dearest that it may bring about, charged by what the vendor says that it served,
//! and anyone can compute the charge again from its receipt.

use serde_json::{Value, json};
use tollgate::demo::vendor::Reply;

use crate::{
    checks::{INVALID, micro, refused},
    harness::{Answer, Key, Setup, World, with},
    ops::{BOTH, Op},
    replies::answer,
};

/// Rates are easy to reckon with: a million tokens cost 100 ₽ for each USDT.
fn with_rules() -> Setup {
    let rules = |input: u32, output: u32| {
        let rule = |condition: &str, times: u32, search: &str| {
            format!(
                "[[model.price_rules]]\n{condition}\nusdt_mtok = {{ input = \"{}\", cached_input = \"{}\", \
                 output = \"{}\", cache_write = \"{}\", cache_write_1h = \"{}\", web_search_call = \"{search}\" }}\n",
                input * times,
                input * times,
                output * times,
                input * times,
                input * times * 2
            )
        };
        [
            rule("above_input_tokens = 1000", 2, "0.01"),
            rule("service_tier = \"priority\"", 3, "0.02"),
            rule(
                "service_tier = \"priority\"\nabove_input_tokens = 1000",
                6,
                "0.02",
            ),
        ]
        .concat()
    };
    let more = |write: &str, hour: &str| {
        (
            format!("cache_write = \"{write}\" }}"),
            format!(
                "cache_write = \"{write}\", cache_write_1h = \"{hour}\", web_search_call = \"0.01\" }}"
            ),
        )
    };
    let routes = |vendor: &str, cost: u32| {
        let route = format!("model = \"{vendor}\" }} ]");
        (
            route.clone(),
            format!(
                "model = \"{vendor}\", cost_usdt_mtok = {{ input = \"{cost}\", cached_input = \"{cost}\", \
                 output = \"{cost}\", cache_write = \"{cost}\" }} }} ]\n{}",
                rules(cost, cost * 2)
            ),
        )
    };
    [
        more("0.5", "2"),
        more("5", "20"),
        routes("vendor-chat-1", 1),
        routes("vendor-messages-1", 10),
    ]
    .iter()
    .fold(Setup::default(), |setup, (from, to)| setup.edit(from, to))
}

/// What the receipt says, computed again: counts by rates, calls whole, rounded up once.
fn computed(receipt: &Value) -> i64 {
    let (usage, price) = (&receipt["usage"], &receipt["price"]);
    let tokens = ["input", "cached_input", "cache_write", "output"]
        .map(|class| (usage[class].clone(), price[class].clone()));
    let none = serde_json::Map::new();
    let classes = usage["classes"].as_object().unwrap_or(&none);
    let others = classes
        .iter()
        .map(|(class, count)| (class.as_str(), count, &price["classes"][class]));
    let mut sum = 0_i128;
    for (count, rate) in tokens {
        sum += i128::from(count.as_u64().unwrap()) * i128::from(micro(&rate));
    }
    for (class, count, rate) in others {
        let unit = if class.ends_with("_call") {
            1_000_000
        } else {
            1
        };
        sum += i128::from(count.as_u64().unwrap()) * i128::from(micro(rate)) * unit;
    }
    i64::try_from((sum + 999_999) / 1_000_000).unwrap()
}

async fn receipt(world: &World, answer: &Answer) -> Value {
    assert_eq!(answer.status, 200, "{answer:?}");
    let receipt = world.receipt(&answer.number()).await;
    assert_eq!(
        micro(&receipt["charged_rub"]),
        computed(&receipt),
        "{receipt}"
    );
    assert!(
        micro(&receipt["held_rub"]) >= micro(&receipt["charged_rub"]),
        "{receipt}"
    );
    receipt
}

fn says(world: &World, op: Op, usage: Value, beside: Value) {
    let said = with(answer(op, "да", &usage), beside);
    world.vendor.script(move |_| Reply::json(200, &said));
}

fn usage(op: Op, input: u64, more: Value) -> Value {
    match op {
        Op::Chat => with(
            json!({ "prompt_tokens": input, "completion_tokens": 10 }),
            more,
        ),
        Op::Messages => with(json!({ "input_tokens": input, "output_tokens": 10 }), more),
    }
}

/// A request that is held for so much input.
async fn ask(world: &World, key: &Key, op: Op, text: usize, more: Value) -> Answer {
    let body = with(op.body(&"x ".repeat(text)), more);
    op.call(world, key, &body).await
}

#[tokio::test]
async fn a_long_call_costs_more_in_every_class_and_was_held_for_it() {
    let world = with_rules().start().await;
    let key = world.key().await;
    for op in BOTH {
        for (input, condition) in [
            (1000, Value::Null),
            (1001, json!({ "above_input_tokens": 1000 })),
        ] {
            says(&world, op, usage(op, input, json!({})), json!({}));
            let answer = ask(&world, &key, op, 1000, json!({})).await;
            let receipt = receipt(&world, &answer).await;
            assert_eq!(receipt["price"]["condition"], condition, "{receipt}");
            assert_eq!(receipt.get("unpriced"), None);
        }
    }
}

#[tokio::test]
async fn a_tier_is_sold_where_it_has_a_price_and_billed_as_it_was_served() {
    let world = with_rules().start().await;
    let key = world.key().await;
    for op in BOTH {
        let tier = |word: &str| json!({ "service_tier": word });
        for (served, condition) in [
            ("priority", json!({ "service_tier": "priority" })),
            ("default", Value::Null),
        ] {
            match op {
                Op::Chat => says(&world, op, usage(op, 7, json!({})), tier(served)),
                Op::Messages => says(&world, op, usage(op, 7, tier(served)), json!({})),
            }
            let answer = ask(&world, &key, op, 1, tier("priority")).await;
            let receipt = receipt(&world, &answer).await;
            assert_eq!(receipt["price"]["condition"], condition, "{receipt}");
        }
        let answer = ask(&world, &key, op, 1, tier("flex")).await;
        let text = refused("flex", &answer, 400, INVALID, "");
        assert!(text.contains("«service_tier»"), "{text}");
    }
    let geo = json!({ "inference_geo": "us" });
    let answer = ask(&world, &key, Op::Messages, 1, geo).await;
    let text = refused("us", &answer, 400, INVALID, "");
    assert!(text.contains("«inference_geo»"), "{text}");
}

#[tokio::test]
async fn what_was_served_better_than_asked_for_is_never_cheap_and_is_seen() {
    let world = with_rules().start().await;
    let key = world.key().await;
    for op in BOTH {
        let tier = json!({ "service_tier": "ultrafast" });
        match op {
            Op::Chat => says(&world, op, usage(op, 7, json!({})), tier),
            Op::Messages => says(&world, op, usage(op, 7, tier), json!({})),
        }
        let answer = ask(&world, &key, op, 1, json!({})).await;
        assert_eq!(answer.status, 200, "{answer:?}");
        let receipt = world.receipt(&answer.number()).await;
        assert_eq!(receipt["unpriced"], true, "{receipt}");
        // The dearest rule there is: six times the usual.
        let dearest = if op == Op::Chat { "600.00" } else { "6000.00" };
        assert_eq!(receipt["price"]["input"], dearest, "{receipt}");
        assert_eq!(micro(&receipt["cost_rub"]), computed(&receipt), "{receipt}");
    }
}

#[tokio::test]
async fn searches_that_the_vendor_runs_are_held_up_to_their_end_and_charged_by_their_number() {
    let world = with_rules().start().await;
    let key = world.key().await;
    let op = Op::Messages;
    let tool = |more: Value| json!({ "tools": [with(json!({ "type": "web_search_20250305", "name": "web_search" }), more)] });
    let searches = |count: u64| json!({ "server_tool_use": { "web_search_requests": count } });
    for count in [0, 2, 5] {
        says(&world, op, usage(op, 7, searches(count)), json!({}));
        let answer = ask(&world, &key, op, 1, tool(json!({ "max_uses": 5 }))).await;
        let receipt = receipt(&world, &answer).await;
        let counted = &receipt["usage"]["classes"]["web_search_call"];
        assert_eq!(counted.as_u64().unwrap_or(0), count, "{receipt}");
    }
    let before = world.vendor.received().len();
    let answer = ask(&world, &key, op, 1, tool(json!({}))).await;
    let text = refused("without an end", &answer, 400, INVALID, "");
    assert!(text.contains("«tools[0].max_uses»"), "{text}");
    let usual = World::start().await;
    let usual_key = usual.key().await;
    let answer = ask(&usual, &usual_key, op, 1, tool(json!({ "max_uses": 5 }))).await;
    let text = refused("without a price", &answer, 400, INVALID, "");
    assert!(text.contains("«tools[0].type»"), "{text}");
    assert_eq!(world.vendor.received().len(), before);
}

#[tokio::test]
async fn operators_see_what_the_vendor_takes_and_callers_do_not() {
    let world = with_rules().start().await;
    let key = world.key().await;
    for op in BOTH {
        says(&world, op, usage(op, 7, json!({})), json!({}));
        let answer = ask(&world, &key, op, 1, json!({})).await;
        let seen = receipt(&world, &answer).await;
        let path = format!("/v1/tollgate/receipts/{}", answer.number());
        let bearer = [("x-api-key", key.secret.as_str())];
        let own = world.get(&path, &bearer).await;
        assert_eq!(own.status, 200, "{own:?}");
        assert_eq!(own.json().get("vendor_cost_rub"), None, "{own:?}");
        let cost = if op == Op::Chat { 1700 } else { 17_000 };
        assert_eq!(micro(&seen["vendor_cost_rub"]), cost, "{seen}");
    }
}

#[tokio::test]
async fn the_catalog_says_all_of_it_and_nothing_of_models_with_four_rates() {
    let world = with_rules().start().await;
    let catalog = world.get("/v1/tollgate/models", &[]).await.json();
    let rules = &catalog["models"][0]["price_rules"];
    assert_eq!(rules["usual"]["web_search_call"], "1.00", "{catalog}");
    assert_eq!(
        rules["rules"][0]["condition"],
        json!({ "above_input_tokens": 1000 })
    );
    assert_eq!(rules["rules"][2]["input_rub_mtok"], "600.00");
    assert!(!catalog.to_string().contains("cost_"), "{catalog}");
    let usual = World::start().await;
    let catalog = usual.get("/v1/tollgate/models", &[]).await.json();
    assert_eq!(catalog["models"][0].get("price_rules"), None, "{catalog}");
}
