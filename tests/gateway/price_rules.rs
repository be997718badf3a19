//! Tests of docs/prices.md: the hold uses the highest price that a call may have. The charge uses the price of the
//! service that the vendor reports. The receipt contains everything that is needed to compute the charge.

use crate::{
    prelude::*,
    usage_report::{reported, tollgate, typed},
};

/// Returns a setup with price rules. At its exchange rate, one USDT per million tokens is 100 ₽ per million tokens, or
/// 100 µ₽ per token.
pub fn with_rules() -> Setup {
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

/// Computes the charge from the receipt: tokens and tool calls, each multiplied by its price. The sum is rounded up
/// once.
pub fn computed(receipt: &Value) -> i64 {
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

/// Returns the receipt of an answered call. Checks the receipt's charge and hold.
pub async fn receipt(world: &World, answer: &Answer) -> Value {
    assert_eq!(answer.status, 200, "{answer:?}");
    let receipt = world.receipt(&answer.number()).await;
    assert_eq!(
        micro(&receipt["charged_rub"]),
        computed(&receipt),
        "{receipt}"
    );
    hold_covers_charge(&receipt);
    receipt
}

pub fn says(world: &World, op: Op, usage: Value, beside: Value) {
    world.vendor_sends(Reply::json(200, &with(answer(op, "да", &usage), beside)));
}

pub fn usage(op: Op, input: u64, more: Value) -> Value {
    match op {
        Op::Chat => with(
            json!({ "prompt_tokens": input, "completion_tokens": 10 }),
            more,
        ),
        Op::Messages => with(json!({ "input_tokens": input, "output_tokens": 10 }), more),
    }
}

/// Makes a call with about `text` input tokens and with these additional fields.
pub async fn ask(world: &World, key: &Key, op: Op, text: usize, more: Value) -> Answer {
    let body = with(op.body(&"x ".repeat(text)), more);
    op.call(world, key, &body).await
}

#[tokio::test]
async fn call_with_long_input_is_held_and_charged_at_the_long_input_price_in_every_class() {
    let (world, key) = with_rules().start_with_key().await;
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
async fn service_tier_without_a_price_is_refused_and_the_served_tier_is_charged() {
    let (world, key) = with_rules().start_with_key().await;
    for op in BOTH {
        let tier = |word: &str| json!({ "service_tier": word });
        for (served, condition) in [
            ("priority", json!({ "service_tier": "priority" })),
            ("default", Value::Null),
            // If the vendor reports no service tier, the gateway assumes that the vendor served the requested tier.
            ("", json!({ "service_tier": "priority" })),
        ] {
            let returned = match served {
                "" => json!({}),
                served => tier(served),
            };
            match op {
                Op::Chat => says(&world, op, usage(op, 7, json!({})), returned),
                Op::Messages => says(&world, op, usage(op, 7, returned), json!({})),
            }
            let answer = ask(&world, &key, op, 1, tier("priority")).await;
            let receipt = receipt(&world, &answer).await;
            assert_eq!(receipt["price"]["condition"], condition, "{receipt}");
        }
        world.vendor_sends(Reply::stream(events(op, &["да"], 7, 10)));
        let streamed = with(tier("priority"), json!({ "stream": true }));
        let answer = ask(&world, &key, op, 1, streamed).await;
        let receipt = receipt(&world, &answer).await;
        assert_eq!(receipt["price"]["condition"], tier("priority"), "{receipt}");
        // The service tier is not sent to a vendor of another format. So the tier does not change the price of this
        // call.
        let vendor = if op == Op::Chat {
            Op::Messages
        } else {
            Op::Chat
        };
        says(&world, vendor, usage(vendor, 7, json!({})), json!({}));
        let translated = with(tier("priority"), json!({ "model": vendor.model() }));
        let answer = ask(&world, &key, op, 1, translated).await;
        let receipt = world.receipt(&answer.number()).await;
        assert_eq!(receipt["price"]["condition"], Value::Null, "{receipt}");
        let answer = ask(&world, &key, op, 1, tier("flex")).await;
        let text = refused("flex", &answer, 400, INVALID, "");
        assert!(text.contains("«service_tier»"), "{text}");
    }
    let geo = json!({ "inference_geo": "us" });
    let answer = ask(&world, &key, Op::Messages, 1, geo).await;
    let text = refused("us", &answer, 400, INVALID, "");
    assert!(text.contains("«inference_geo»"), "{text}");
}

/// Tests a worked example of docs/prices.md, with the rates that are given there.
#[tokio::test]
async fn speed_and_region_are_refused_if_no_price_covers_them() {
    let rule = |condition: &str, input: &str, output: &str| {
        format!(
            "[[model.price_rules]]\n{condition}\nusdt_mtok = {{ input = \"{input}\", cached_input = \"1\", \
             output = \"{output}\", cache_write = \"5\" }}\n"
        )
    };
    let rules = [
        rule("speed = \"fast\"", "8", "40"),
        rule("inference_geo = \"us\"", "4.40", "22"),
        rule("speed = \"fast\"\ninference_geo = \"us\"", "8.80", "44"),
    ];
    let route = "model = \"vendor-messages-1\" } ]";
    let (world, key) = Setup::default()
        .edit("input = \"10\"", "input = \"4\"")
        .edit(route, &format!("{route}\n{}", rules.concat()))
        .start_with_key()
        .await;
    let op = Op::Messages;
    let both = json!({ "speed": "fast", "inference_geo": "us" });
    let body = with(
        with(op.body(&"x ".repeat(1000)), both.clone()),
        json!({ "max_tokens": 600 }),
    );
    for (served, condition, charged) in [
        (both.clone(), both.clone(), "3.08"),
        (
            json!({ "speed": "fast" }),
            json!({ "speed": "fast" }),
            "2.80",
        ),
        (
            json!({ "speed": "standard", "inference_geo": "us" }),
            json!({ "inference_geo": "us" }),
            "1.54",
        ),
        (
            json!({ "speed": "standard", "inference_geo": "global" }),
            Value::Null,
            "1.40",
        ),
        // If the response reports neither a tier nor a speed, the call is charged at the requested ones.
        (json!({}), both.clone(), "3.08"),
    ] {
        for stream in [false, true] {
            let used = with(
                json!({ "input_tokens": 1000, "output_tokens": 500 }),
                served.clone(),
            );
            let reported = match stream {
                false => Reply::json(200, &answer(op, "да", &used)),
                // The first event of the stream contains the service tier, and the last event contains the usage.
                true => {
                    let mut reported = events(op, &["да"], 1000, 500);
                    let (head, data) = reported[0].split_once("data: ").unwrap();
                    let mut start: Value = serde_json::from_str(data.trim_end()).unwrap();
                    start["message"]["usage"] = with(used, json!({ "output_tokens": 1 }));
                    reported[0] = format!("{head}data: {start}\n\n");
                    Reply::stream(reported)
                }
            };
            world.vendor_sends(reported);
            let body = with(body.clone(), json!({ "stream": stream }));
            let answered = op.call(&world, &key, &body).await;
            let sent = world.vendor.received().pop().unwrap().json();
            assert_eq!(sent["speed"], both["speed"]);
            assert_eq!(sent["inference_geo"], both["inference_geo"]);
            let receipt = receipt(&world, &answered).await;
            assert_eq!(receipt["price"]["condition"], condition, "{receipt}");
            assert_eq!(receipt["charged_rub"], charged, "{receipt}");
            assert_eq!(receipt.get("unpriced"), None, "{receipt}");
        }
    }
    for (field, word) in [("speed", "slow"), ("inference_geo", "eu")] {
        let answered = op
            .call(&world, &key, &with(body.clone(), json!({ field: word })))
            .await;
        let text = refused(word, &answered, 400, INVALID, "");
        assert!(text.contains(&format!("«{field}»")), "{text}");
    }
}

#[tokio::test]
async fn unpriced_tier_above_the_requested_one_is_charged_at_the_highest_rate_and_flagged() {
    let (world, key) = with_rules().start_with_key().await;
    for op in BOTH {
        let tier = json!({ "service_tier": "ultrafast" });
        match op {
            Op::Chat => says(&world, op, usage(op, 7, json!({})), tier),
            Op::Messages => says(&world, op, usage(op, 7, tier), json!({})),
        }
        let answer = ask(&world, &key, op, 1, json!({})).await.expect(200);
        let receipt = world.receipt(&answer.number()).await;
        assert_eq!(receipt["unpriced"], true, "{receipt}");
        // No price covers the tier that the vendor reports. So the most expensive price rule applies, with six times
        // the price without a rule.
        let dearest = if op == Op::Chat { "600.00" } else { "6000.00" };
        assert_eq!(receipt["price"]["input"], dearest, "{receipt}");
        assert_eq!(micro(&receipt["cost_rub"]), computed(&receipt), "{receipt}");
    }
}

#[tokio::test]
async fn hold_covers_the_maximum_number_of_web_searches_and_only_actual_ones_are_charged() {
    let (world, key) = with_rules().start_with_key().await;
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

/// Tests a worked example of docs/prices.md, with the rates that are given there.
#[tokio::test]
async fn tokens_of_search_results_are_covered_by_the_hold_and_charged_by_the_vendors_count() {
    let setup = Setup::default().edit(
        "output = \"20\", cache_write = \"5\" }",
        "output = \"50\", cache_write = \"5\", web_search_call = \"0.01\" }",
    );
    let (world, key) = setup.start_with_key().await;
    let tool = json!({ "type": "web_search_20250305", "name": "web_search", "max_uses": 5 });
    let body = with(
        Op::Messages.body("x"),
        json!({ "max_tokens": 1000, "tools": [tool] }),
    );
    let used = json!({ "input_tokens": 6039, "output_tokens": 931,
        "server_tool_use": { "web_search_requests": 2 } });
    world.vendor_sends(Reply::json(200, &answer(Op::Messages, "да", &used)));
    let answered = Op::Messages.call(&world, &key, &body).await;
    let receipt = receipt(&world, &answered).await;
    assert_eq!(receipt["usage"]["input"], 6039, "{receipt}");
    assert_eq!(receipt["charged_rub"], "12.694", "{receipt}");
    for field in ["bounded", "estimated"] {
        assert_eq!(receipt[field], false, "{receipt}");
    }
    // A vendor may count the input again after each search. The account pays for the count that the vendor reports.
    let used = with(used, json!({ "input_tokens": 90_000 }));
    world.vendor_sends(Reply::json(200, &answer(Op::Messages, "да", &used)));
    let answered = Op::Messages.call(&world, &key, &body).await;
    let receipt = world.receipt(&answered.number()).await;
    assert_eq!(receipt["usage"]["input"], 90_000, "{receipt}");
    assert_eq!(receipt["bounded"], false, "{receipt}");
    assert_eq!(micro(&receipt["charged_rub"]), computed(&receipt));
}

#[tokio::test]
async fn call_whose_searches_may_lengthen_its_input_is_held_at_the_long_input_price() {
    let (world, key) = with_rules().start_with_key().await;
    let tool = json!({ "type": "web_search_20250305", "name": "web_search", "max_uses": 2 });
    let body = with(Op::Messages.body("x"), json!({ "tools": [tool] }));
    for (input, condition) in [
        (900, Value::Null),
        (14_573, json!({ "above_input_tokens": 1000 })),
    ] {
        let searched = json!({ "server_tool_use": { "web_search_requests": 1 } });
        says(
            &world,
            Op::Messages,
            usage(Op::Messages, input, searched),
            json!({}),
        );
        let answered = Op::Messages.call(&world, &key, &body).await;
        let receipt = receipt(&world, &answered).await;
        assert_eq!(receipt["price"]["condition"], condition, "{receipt}");
        assert_eq!(receipt["bounded"], false, "{receipt}");
    }
}

#[tokio::test]
async fn vendor_cost_is_visible_to_operators_and_not_to_callers() {
    let (world, key) = with_rules().start_with_key().await;
    for op in BOTH {
        says(&world, op, usage(op, 7, json!({})), json!({}));
        let answer = ask(&world, &key, op, 1, json!({})).await;
        let seen = receipt(&world, &answer).await;
        let path = format!("/v1/tollgate/receipts/{}", answer.number());
        let bearer = [("x-api-key", key.secret.as_str())];
        let own = world.get(&path, &bearer).await.expect(200);
        assert_eq!(own.json().get("vendor_cost_rub"), None, "{own:?}");
        let cost = if op == Op::Chat { 1700 } else { 17_000 };
        assert_eq!(micro(&seen["vendor_cost_rub"]), cost, "{seen}");
    }
}

#[tokio::test]
async fn vendor_costs_follow_their_own_price_rules_and_margins_are_summed() {
    let cost = |rate: u32| {
        format!(
            "cost_usdt_mtok = {{ input = \"{rate}\", cached_input = \"{rate}\", output = \"{rate}\", cache_write = \"{rate}\" }}"
        )
    };
    let rule = |condition: &str, rate: u32| {
        format!(
            "{{ {condition}, {} }}",
            cost(rate).replace("cost_usdt_mtok", "usdt_mtok")
        )
    };
    let rules = [
        rule("above_input_tokens = 1000", 3),
        rule("service_tier = \"priority\"", 2),
        rule("service_tier = \"priority\", above_input_tokens = 1000", 5),
    ];
    let with_cost_rules = format!("{}, cost_rules = [ {} ]", cost(1), rules.join(", "));
    let setup = with_rules()
        .edit(&cost(1), &with_cost_rules)
        // The model `messages` has no configured `cost`, so its margin is unknown.
        .edit(&format!(", {}", cost(10)), "");
    let (world, key) = setup.start_with_key().await;
    let (mut charged, mut costs) = (0, 0);
    let tier = json!({ "service_tier": "priority" });
    for (input, beside, cost) in [
        (7, json!({}), 17 * 100),
        (1001, json!({}), 1011 * 300),
        (7, tier.clone(), 17 * 200),
        (1001, tier, 1011 * 500),
    ] {
        says(
            &world,
            Op::Chat,
            usage(Op::Chat, input, json!({})),
            beside.clone(),
        );
        let answer = ask(&world, &key, Op::Chat, 1000, beside).await;
        let receipt = receipt(&world, &answer).await;
        assert_eq!(micro(&receipt["vendor_cost_rub"]), cost, "{receipt}");
        let left = micro(&receipt["charged_rub"]) - cost;
        assert_eq!(micro(&receipt["margin_rub"]), left, "{receipt}");
        charged += micro(&receipt["charged_rub"]);
        costs += cost;
    }
    says(
        &world,
        Op::Messages,
        usage(Op::Messages, 7, json!({})),
        json!({}),
    );
    let answer = ask(&world, &key, Op::Messages, 1, json!({})).await;
    let unknown = receipt(&world, &answer).await;
    assert_eq!(unknown.get("vendor_cost_rub"), None);
    assert_eq!(unknown.get("margin_rub"), None);

    let report = world.admin_get("/admin/v1/usage?group=model").await.json();
    let (of_chat, of_messages) = (&report["rows"][0], &report["rows"][1]);
    assert_eq!(of_messages["vendor_cost_rub"], Value::Null);
    assert_eq!(of_messages["margin_rub"], Value::Null);
    assert_eq!(of_messages["cost_known_calls"], 0);
    for row in [of_chat, &report["total"]] {
        assert_eq!(row["cost_known_calls"], 4, "{row}");
        assert_eq!(micro(&row["vendor_cost_rub"]), costs, "{row}");
        assert_eq!(micro(&row["margin_rub"]), charged - costs, "{row}");
    }
    assert!(micro(&report["total"]["charged_rub"]) > charged, "{report}");
    let table = typed(&world, "usage --by model", 0).await;
    assert!(table.contains("cost known for 4 of 5 calls"), "{table}");
    let shown = reported(
        &tollgate(&world, &["receipt", &answer.number()], "").await,
        0,
    );
    assert!(!shown.contains("margin"), "{shown}");

    // Callers cannot see costs or margins at any endpoint.
    let bearer = [("x-api-key", key.secret.as_str())];
    let own = format!("/v1/tollgate/receipts/{}", answer.number());
    for path in [
        "/",
        "/v1/models",
        "/v1/models/chat",
        "/v1/tollgate/models",
        "/v1/tollgate/key",
        &own,
    ] {
        let returned = world.get(path, &bearer).await;
        assert_eq!(returned.status, 200, "{path}: {returned:?}");
        let text = returned.text();
        assert!(!text.contains("margin"), "{path}: {text}");
        assert!(!text.contains("vendor_cost"), "{path}: {text}");
    }
    assert!(
        !answer.text().contains("cost_rub") && answer.headers.get("x-vendor-cost-rub").is_none()
    );
}

#[tokio::test]
async fn estimate_lists_all_prices_that_may_apply() {
    let (world, key) = with_rules().start_with_key().await;
    let bearer = [
        ("x-api-key", key.secret.as_str()),
        ("content-type", "application/json"),
    ];
    let url = world.url("/v1/tollgate/estimate");
    let long = json!({ "above_input_tokens": 1000 });
    let tier = json!({ "service_tier": "priority" });
    let both = with(long.clone(), tier.clone());
    for (text, more, expected) in [
        (1, json!({}), vec![]),
        (2000, json!({}), vec![&long]),
        (1, tier.clone(), vec![&tier]),
        (2000, tier.clone(), vec![&long, &tier, &both]),
    ] {
        let body = with(Op::Chat.body(&"x ".repeat(text)), more).to_string();
        let requested = request(Method::POST, &url, &bearer, body.into());
        let reported = world.ask(requested).await.json();
        let rules = reported["price_rules"]
            .as_array()
            .cloned()
            .unwrap_or_default();
        let conditions: Vec<&Value> = rules.iter().map(|price| &price["condition"]).collect();
        assert_eq!(conditions, expected, "{reported}");
        assert_eq!(
            reported.get("price_rules").is_some(),
            !expected.is_empty(),
            "{reported}"
        );
        assert_eq!(reported["price"]["input"], "100.00");
        assert_eq!(reported["price"].get("condition"), None);
        // The hold uses the highest of these prices, and the response lists all of them.
        let prices = rules.iter().chain([&reported["price"]]);
        let count = |field: &str| reported[field].as_i64().unwrap();
        let most = |class: &str| {
            prices
                .clone()
                .map(|price| micro(&price[class]))
                .max()
                .unwrap()
        };
        let hold =
            count("input_tokens_max") * most("input") + count("output_tokens_max") * most("output");
        assert_eq!(
            micro(&reported["hold_rub"]),
            (hold + 999_999) / 1_000_000,
            "{reported}"
        );
    }
}

#[tokio::test]
async fn catalog_lists_conditional_prices_only_for_models_that_have_them() {
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

#[test]
fn documented_price_examples_are_correct() {
    /// Parses a decimal number. Returns billionths.
    fn number(text: &str) -> i128 {
        let text: String = text
            .chars()
            .filter(|letter| !letter.is_whitespace())
            .collect();
        let (whole, fraction) = text.split_once('.').unwrap_or((&text, ""));
        let digits = format!("{whole}{fraction:0<9}");
        digits.parse().unwrap_or_else(|_| panic!("{text}"))
    }
    const UNIT: i128 = 1_000_000_000;
    let page = include_str!("../../docs/prices.md");
    let (_, examples) = page.split_once("## Worked examples").unwrap();
    let (examples, _) = examples.split_once("\n## ").unwrap();
    let (mut sum, mut charges) = (0, 0);
    for line in examples.lines().filter(|line| line.starts_with("| ")) {
        let cells: Vec<_> = line.trim_matches('|').split('|').map(str::trim).collect();
        let [what, count, rate, amount] = cells[..] else {
            panic!("{line}");
        };
        if count == "count" {
            sum = 0;
        } else if what == "**charged**" {
            let charged = number(amount.trim_matches('*'));
            assert_eq!(charged, (sum + 999) / 1000 * 1000, "{line}");
            charges += 1;
        } else {
            let (rate, unit) = match rate.strip_suffix(" each") {
                Some(rate) => (rate, 1),
                None => (rate.strip_suffix(" a million").unwrap(), 1_000_000),
            };
            let exact = number(count) / UNIT * number(rate);
            assert_eq!(exact, number(amount) * unit, "{line}");
            sum += number(amount);
        }
    }
    assert!(charges >= 9, "{charges}");
}
