//! docs/prices.md, docs/money.md: a vendor that says anything of its usage, with every class priced. Nothing is free,
//! nothing is charged that a receipt does not explain, and the books add up.

use http::Method;
use rust_decimal::Decimal;
use serde_json::{Map, Value, json};
use tollgate::demo::vendor::Reply;

use crate::{
    checks::{decimal, micro},
    ops::{BOTH, Op},
    price_rules::with_rules,
    replies::{answer, events},
    support::random::{Random, seed},
};

const CALLS: u64 = 120;
const SEED: u64 = 3;

/// A field's value that no honest vendor says, and honest ones between.
fn odd(random: &mut Random) -> Value {
    match random.between(0, 13) {
        0 => Value::Null,
        1 => json!(-1),
        2 => json!(i64::MIN),
        3 => json!(u64::MAX),
        4 => json!(1e30),
        5 => json!("12"),
        6 => json!([7]),
        7 => json!({ "tokens": 7 }),
        8 => json!(0.5),
        9 => json!(0),
        _ => json!(random.between(1, 90)),
    }
}

/// An object of some of these fields.
fn some(random: &mut Random, fields: &[&str]) -> Value {
    if random.chance(100) {
        return odd(random);
    }
    let mut object = Map::new();
    for field in fields {
        if random.chance(600) {
            object.insert((*field).to_owned(), odd(random));
        }
    }
    object.into()
}

fn usage(op: Op, random: &mut Random) -> Value {
    let (four, details): (&[&str], &[(&str, &[&str])]) = match op {
        Op::Chat => (
            &["prompt_tokens", "completion_tokens", "total_tokens"],
            &[
                (
                    "prompt_tokens_details",
                    &[
                        "cached_tokens",
                        "cache_write_tokens",
                        "audio_tokens",
                        "image_tokens",
                    ],
                ),
                (
                    "completion_tokens_details",
                    &["reasoning_tokens", "audio_tokens", "image_tokens"],
                ),
                ("server_side_tool_usage_details", &["web_search_calls"]),
            ],
        ),
        Op::Messages => (
            &[
                "input_tokens",
                "output_tokens",
                "cache_read_input_tokens",
                "cache_creation_input_tokens",
            ],
            &[
                (
                    "cache_creation",
                    &["ephemeral_5m_input_tokens", "ephemeral_1h_input_tokens"],
                ),
                (
                    "server_tool_use",
                    &["web_search_requests", "web_fetch_requests"],
                ),
            ],
        ),
    };
    let mut said = some(random, four);
    if let Some(said) = said.as_object_mut() {
        for (name, fields) in details {
            if random.chance(500) {
                said.insert((*name).to_owned(), some(random, fields));
            }
        }
        if random.chance(300) {
            let tiers = ["priority", "flex", "standard", "what is this", ""];
            said.insert("service_tier".into(), json!(tiers[random.index(5)]));
        }
    }
    said
}

/// What a receipt's usage costs by its price, in micro-rubles: rounded up once.
fn reckoned(receipt: &Value) -> Decimal {
    let (usage, price) = (&receipt["usage"], &receipt["price"]);
    let million = Decimal::from(1_000_000);
    let mut sum = Decimal::ZERO;
    for class in ["input", "cached_input", "cache_write", "output"] {
        let count = usage[class].as_u64().expect("a count");
        sum += Decimal::from(count) * decimal(&price[class]);
    }
    for (class, count) in usage["classes"].as_object().into_iter().flatten() {
        let each = match class.as_str() {
            "web_search_call" => million,
            _ => Decimal::ONE,
        };
        let count = Decimal::from(count.as_u64().expect("a count"));
        sum += count * decimal(&price["classes"][class]) * each;
    }
    sum.ceil()
}

#[tokio::test]
async fn whatever_a_vendor_says_it_used_nothing_is_free_and_the_books_add_up() {
    let seed = seed(SEED);
    let world = with_rules().start().await;
    let key = world.key_with("odd", "100000", json!({})).await;
    let mut charged_in_all = 0;
    for call in 0..CALLS {
        for (index, op) in (0..).zip(BOTH) {
            let mut random = Random::of(seed, &[call, index]);
            let said = usage(op, &mut random);
            let what = format!("seed {seed}, call {call}, {op:?}: {said}");
            let streamed = random.chance(400);
            let mut body = op.body("вопрос");
            if streamed {
                body["stream"] = json!(true);
                // The last usage of a stream is the one that says everything.
                let mut parts = events(op, &["да", " и нет"], 9, 5);
                let last = parts
                    .iter()
                    .rposition(|event| event.contains("\"usage\""))
                    .unwrap();
                let (head, data) = parts[last].split_once("data: ").unwrap();
                let mut event: Value = serde_json::from_str(data.trim_end()).unwrap();
                event["usage"] = said;
                parts[last] = format!("{head}data: {event}\n\n");
                world.vendor.script(move |_| Reply::stream(parts.clone()));
            } else {
                let said = answer(op, "да и нет", &said);
                world.vendor.script(move |_| Reply::json(200, &said));
            }
            let answered = op.call(&world, &key, &body).await;
            assert_eq!(answered.status, 200, "{what}: {answered:?}");
            let number = answered.number();
            let receipt = world.receipt(&number).await;
            let what = format!("{what}: {receipt}");
            let cost = micro(&receipt["cost_rub"]);
            let charged = micro(&receipt["charged_rub"]);
            assert_eq!(Decimal::from(cost), reckoned(&receipt), "{what}");
            assert_eq!(charged + micro(&receipt["loss_rub"]), cost, "{what}");
            assert!(charged > 0, "{what}");
            charged_in_all += charged;
        }
    }
    let account = world.settled(&key).await;
    let funds = 100_000_000_000;
    assert_eq!(micro(&account["balance_rub"]), funds - charged_in_all);
    assert_eq!(micro(&account["spent_rub"]), charged_in_all);
    let audit = world.admin(Method::POST, "/admin/v1/audit", None).await;
    assert_eq!(audit.json()["breaches"], json!([]), "{audit:?}");
}
