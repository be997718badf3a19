//! Two versions on one Redis: a gateway beside one of the release before classes, which is there by the scripts that it
//! sent and by what it wrote on receipts. See `layers/ledger/tests/before_classes`.

use std::collections::BTreeMap;

use http::Method;
use serde::Deserialize;
use serde_json::{Value, json};
use tollgate_layers::facts::RequestNumber;

use crate::{
    checks::micro,
    harness::{Key, RedisServer, Setup, World, with},
    ops::Op,
    price_rules::{ask, says, usage, with_rules},
    replies::Running,
    usage_report::{said, tollgate},
};

const RESERVE: &str = include_str!("../../layers/ledger/tests/before_classes/reserve.lua");
const SETTLE: &str = include_str!("../../layers/ledger/tests/before_classes/settle.lua");
/// So long it keeps receipts, in milliseconds.
const RETENTION: &str = "34560000000";

/// The other gateway.
struct Former<'a> {
    redis: &'a RedisServer,
    key: &'a Key,
}

impl Former<'_> {
    /// Runs a script with the first of its keys, and these arguments.
    async fn run(&self, script: &str, keys: usize, number: &str, args: &[&str]) -> Vec<String> {
        let of_account = |end: &str| format!("tg:{{{}}}{end}", self.key.account);
        let names = ["", ":x", ":e", ":ex"].map(of_account);
        let all = [
            names.as_slice(),
            &[
                of_account(&format!(":d:{number}")),
                of_account(":j"),
                of_account(&format!(":r:{number}")),
            ],
        ]
        .concat();
        let count = keys.to_string();
        let mut words = vec!["EVAL", script, &count];
        words.extend(all[..keys].iter().map(String::as_str));
        words.extend([number, &self.key.id]);
        words.extend(args);
        let answer: redis::Value = self.redis.ask(&words).await.unwrap();
        match answer {
            redis::Value::Array(values) => values.iter().map(text).collect(),
            value => vec![text(&value)],
        }
    }

    async fn reserve(&self, number: &str, micro: i64) -> i64 {
        let want = micro.to_string();
        let answer = self
            .run(RESERVE, 5, number, &[&want, &want, "960000"])
            .await;
        assert_eq!(answer.len(), 2, "{answer:?}");
        answer[0].parse().unwrap()
    }

    /// What it answers: the charge alone in the usual case.
    async fn settle(&self, number: &str, cost: i64, held: i64) -> Vec<String> {
        let item = json!({
            "model": "chat", "vendor": "chat-vendor",
            "usage": { "input": 40, "cached_input": 30, "cache_write": 0, "output": 10 },
            "price": {
                "input": "50.00", "cached_input": "5.00", "output": "100.00", "cache_write": "50.00", "version": 1,
                "exchange_rate": "100",
            },
            "estimated": false, "bounded": false, "end": "finished",
        })
        .to_string();
        let (cost, held) = (cost.to_string(), held.to_string());
        let args = [&cost, "1", &held, item.as_str(), RETENTION];
        self.run(SETTLE, 7, number, &args).await
    }
}

fn text(value: &redis::Value) -> String {
    match value {
        redis::Value::Int(number) => number.to_string(),
        redis::Value::BulkString(bytes) => String::from_utf8(bytes.clone()).unwrap(),
        redis::Value::SimpleString(text) => text.clone(),
        value => panic!("{value:?}"),
    }
}

fn new_number() -> String {
    RequestNumber::now_v7().to_string()
}

/// The number, charge, and item of each receipt, as they stand in Redis.
async fn journal(redis: &RedisServer, account: &str) -> Vec<(String, i64, String)> {
    let journal = format!("tg:{{{account}}}:j");
    let lines: Vec<(String, BTreeMap<String, String>)> =
        redis.ask(&["XRANGE", &journal, "-", "+"]).await.unwrap();
    let calls = lines.into_iter().filter(|(_, line)| line["kind"] == "call");
    calls
        .map(|(_, line)| {
            let charged = line["charged"].parse().unwrap();
            (line["number"].clone(), charged, line["item"].clone())
        })
        .collect()
}

/// An item as that release read it: what it does not know is passed over.
#[derive(Debug, Deserialize)]
struct FormerItem {
    model: String,
    usage: FormerUsage,
    price: Option<BTreeMap<String, Value>>,
}

#[derive(Debug, Deserialize)]
struct FormerUsage {
    input: u64,
    cached_input: u64,
    cache_write: u64,
    output: u64,
}

async fn balance(world: &World, key: &Key) -> i64 {
    micro(&world.account(key).await["balance_rub"])
}

#[tokio::test]
async fn two_versions_hold_and_charge_side_by_side_and_the_books_add_up() {
    let redis = RedisServer::start().await;
    let world = with_rules().ledger(&redis.url()).start().await;
    let key = world.key().await;
    let former = Former {
        redis: &redis,
        key: &key,
    };
    let before = balance(&world, &key).await;

    // Each has a hold open while the other one holds, and charges.
    let (first, second) = (new_number(), new_number());
    assert_eq!(former.reserve(&first, 36_200).await, 36_200);
    let searches = json!({ "server_tool_use": { "web_search_requests": 2 } });
    says(
        &world,
        Op::Messages,
        usage(Op::Messages, 7, searches),
        json!({}),
    );
    let tool = json!({ "tools": [{ "type": "web_search_20250305", "name": "web_search", "max_uses": 5 }] });
    let answer = ask(&world, &key, Op::Messages, 1, tool).await;
    let with_classes = world.receipt(&answer.number()).await;
    assert_eq!(
        with_classes["usage"]["classes"],
        json!({ "web_search_call": 2 })
    );
    world.vendor.script(tollgate::demo::script::polite);
    let running = Running::start(&world, Op::Chat, &key, &Op::Chat.body("вопрос")).await;
    assert_eq!(former.reserve(&second, 36_200).await, 36_200);
    // The first one of the day is not its usual case, the second one is.
    for number in [&first, &second] {
        let answer = former.settle(number, 3150, 36_200).await;
        let usual = answer == ["3150"];
        assert!(usual || answer == ["held", "3150", "0", "0"], "{answer:?}");
    }
    let streamed = running.number.clone();
    running.finish().await;
    let streamed = world.receipt(&streamed).await;

    // What that release wrote reads as it was; margins and classes are not made up.
    for number in [&first, &second] {
        let receipt = world.receipt(number).await;
        assert_eq!(receipt["charged_rub"], "0.00315", "{receipt}");
        assert_eq!(
            receipt["usage"],
            json!({ "input": 40, "cached_input": 30, "cache_write": 0, "output": 10 })
        );
        for field in ["unpriced", "vendor_cost_rub", "margin_rub", "endpoint"] {
            assert_eq!(receipt.get(field), None, "{receipt}");
        }
    }

    // It reads what this one wrote: all four counts, and a charge that it has no say in.
    let journal = journal(&redis, &key.account).await;
    assert_eq!(journal.len(), 4, "{journal:?}");
    for (number, charged, item) in &journal {
        let read: FormerItem =
            serde_json::from_str(item).unwrap_or_else(|error| panic!("{error}: {item}"));
        let receipt = world.receipt(number).await;
        assert_eq!(*charged, micro(&receipt["charged_rub"]));
        let usage = &receipt["usage"];
        assert_eq!(
            json!({
                "input": read.usage.input, "cached_input": read.usage.cached_input,
                "cache_write": read.usage.cache_write, "output": read.usage.output,
            }),
            with(
                json!({}),
                json!({
                    "input": usage["input"], "cached_input": usage["cached_input"],
                    "cache_write": usage["cache_write"], "output": usage["output"],
                })
            )
        );
        assert!(
            !read.model.is_empty()
                && read
                    .price
                    .is_some_and(|price| price.contains_key("exchange_rate"))
        );
    }

    // A call with classes that it tells again, at what it would have charged, stays as it is.
    let again = former.settle(&answer.number(), 1, 36_200).await;
    let charged = micro(&with_classes["charged_rub"]).to_string();
    assert_eq!(again, ["held", &charged, "0", "1"]);
    assert_eq!(world.receipt(&answer.number()).await, with_classes);

    let all = 2 * 3150 + micro(&with_classes["charged_rub"]) + micro(&streamed["charged_rub"]);
    let settled = world.settled(&key).await;
    assert_eq!(micro(&settled["balance_rub"]), before - all);
    assert_eq!(settled["held_rub"], "0.00");
    let report = world
        .admin(Method::GET, "/admin/v1/usage?group=account", None)
        .await
        .json();
    assert_eq!(micro(&report["total"]["charged_rub"]), all);
    assert_eq!(
        (
            &report["total"]["calls"],
            &report["total"]["cost_known_calls"]
        ),
        (&json!(4), &json!(2))
    );
    // Where the other gateway's calls came in nobody knows.
    let args = ["usage", "--by", "endpoint", "--format", "csv"];
    let csv = said(&tollgate(&world, &args, "").await, 0);
    let rows: Vec<_> = csv
        .lines()
        .map(|line| &line[..line.find(",").unwrap() + 2])
        .collect();
    assert_eq!(
        rows,
        ["endpoint,c", ",2", "chat/completions,1", "messages,1"]
    );
    let audited = said(&tollgate(&world, &["audit"], "").await, 0);
    assert!(audited.starts_with("ok: "), "{audited}");
}

/// The usual gateway, and no price beside the four rates: what it writes is what that release wrote, where the call came
/// in and how it went.
#[tokio::test]
async fn a_model_with_four_rates_leaves_the_receipts_of_the_release_before_classes() {
    let redis = RedisServer::start().await;
    let world = Setup::default().ledger(&redis.url()).start().await;
    let key = world.key().await;
    let answer = Op::Chat.call(&world, &key, &Op::Chat.body("вопрос")).await;
    world.receipt(&answer.number()).await;
    let journal = journal(&redis, &key.account).await;
    let item: BTreeMap<String, Value> = serde_json::from_str(&journal[0].2).unwrap();
    let fields: Vec<&str> = item.keys().map(String::as_str).collect();
    assert_eq!(
        fields,
        [
            "bounded",
            "end",
            "endpoint",
            "estimated",
            "model",
            "price",
            "times",
            "usage",
            "vendor"
        ]
    );
    let fields = |value: &Value| {
        value
            .as_object()
            .unwrap()
            .keys()
            .cloned()
            .collect::<Vec<_>>()
    };
    assert_eq!(
        fields(&item["price"]),
        [
            "cache_write",
            "cached_input",
            "exchange_rate",
            "input",
            "output",
            "version"
        ]
    );
    assert_eq!(
        fields(&item["usage"]),
        ["cache_write", "cached_input", "input", "output"]
    );
}
