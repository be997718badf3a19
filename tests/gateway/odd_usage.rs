//! Tests of arbitrary usage that a vendor may report (docs/prices.md), for a model with a price for every rate class.
//! No call is free, every receipt explains its charge, and the books balance.

use rust_decimal::Decimal;
use serde_json::Map;

use crate::{
    prelude::*,
    responses,
    sound::sound,
    support::random::{Random, seed},
};

const CALLS: u64 = 120;
const SEED: u64 = 3;
const FUNDS_RUB: &str = "100000000";

/// Returns a random value of a usage field. It may be a value that no honest vendor would report.
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

/// Returns an object that has some of these fields, with random values.
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

/// The format of a request and of its response.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Form {
    Of(Op),
    Responses,
}

const FORMS: [Form; 3] = [Form::Of(Op::Chat), Form::Of(Op::Messages), Form::Responses];

/// Returns a setup with prices for every rate class, and with price rules for every combination of conditions. One of
/// the vendors speaks two formats.
fn with_all_priced() -> Setup {
    let classes = |times: u32| {
        format!(
            "cache_write_1h = \"{}\", cache_write_12h = \"{}\", input_audio = \"{}\", input_image = \"{}\", \
             output_audio = \"{}\", output_image = \"{}\", web_search_call = \"0.0{times:02}\"",
            2 * times,
            3 * times,
            5 * times,
            7 * times,
            11 * times,
            13 * times
        )
    };
    let rule = |set: u32| {
        let chosen = [
            ("above_input_tokens = 1000", 2),
            ("service_tier = \"priority\"", 3),
            ("speed = \"fast\"", 5),
            ("inference_geo = \"us\"", 1),
        ];
        let chosen: Vec<_> = (0_u32..)
            .zip(chosen)
            .filter(|(bit, _)| set >> bit & 1 > 0)
            .collect();
        let times = chosen.iter().map(|(_, (_, times))| times).product::<u32>();
        let conditions: Vec<_> = chosen
            .iter()
            .map(|(_, (condition, _))| *condition)
            .collect();
        format!(
            "[[model.price_rules]]\n{}\nusdt_mtok = {{ input = \"{times}\", cached_input = \"{times}\", \
             output = \"{}\", cache_write = \"{times}\", {} }}\n",
            conditions.join("\n"),
            2 * times,
            classes(times)
        )
    };
    let rules: String = (1..16).map(rule).collect();
    let mut setup =
        Setup::default().edit("format = \"chat\"", "formats = [\"chat\", \"responses\"]");
    for write in ["0.5", "5"] {
        let four = format!("cache_write = \"{write}\"");
        setup = setup.edit(&format!("{four} }}"), &format!("{four}, {} }}", classes(1)));
    }
    for model in ["vendor-chat-1", "vendor-messages-1"] {
        let route = format!("model = \"{model}\" }} ]");
        setup = setup.edit(&route, &format!("{route}\n{rules}"));
    }
    setup
}

/// The separately billed parts of a request: names of rate classes, and fields that choose the service.
#[derive(Debug, Default)]
struct Asked(Vec<&'static str>);

impl Asked {
    /// Returns whether the caller has requested every rate class and condition on this receipt.
    fn covers(&self, receipt: &Value) -> bool {
        let of = |object: &Value| -> Vec<String> {
            let names = object.as_object().into_iter().flatten();
            names.map(|(name, _)| name.clone()).collect()
        };
        let returned = [
            of(&receipt["usage"]["classes"]),
            of(&receipt["price"]["condition"]),
        ];
        returned
            .concat()
            .iter()
            .all(|name| self.0.contains(&name.as_str()))
    }
}

/// Returns a random body that requests some separately billed parts, and the list of these parts.
fn body(form: Form, random: &mut Random) -> (Value, Asked) {
    let mut requested = Asked::default();
    let mut fields = Map::new();
    let mut parts = vec![match form {
        Form::Responses => json!({ "type": "input_text", "text": "вопрос" }),
        Form::Of(_) => json!({ "type": "text", "text": "вопрос" }),
    }];
    let mut wanted = |requested: &mut Asked, name: &'static str| {
        let wished = random.chance(400);
        if wished {
            requested.0.push(name);
        }
        wished
    };
    if form != Form::Responses && wanted(&mut requested, "cache_write_1h") {
        parts[0]["cache_control"] = json!({ "type": "ephemeral", "ttl": "1h" });
    }
    if wanted(&mut requested, "input_image") {
        let png = "data:image/png;base64,AAAA";
        parts.push(match form {
            Form::Of(Op::Chat) => json!({ "type": "image_url", "image_url": { "url": png } }),
            Form::Of(Op::Messages) => json!({ "type": "image",
                "source": { "type": "base64", "media_type": "image/png", "data": "AAAA" } }),
            Form::Responses => json!({ "type": "input_image", "image_url": png }),
        });
    }
    if wanted(&mut requested, "service_tier") {
        fields.insert("service_tier".into(), json!("priority"));
    }
    if form != Form::Of(Op::Messages) && wanted(&mut requested, "cache_write_12h") {
        fields.insert("prompt_cache_options".into(), json!({ "ttl": "12h" }));
    }
    if form == Form::Of(Op::Chat) {
        if wanted(&mut requested, "input_audio") {
            let received = json!({ "data": sound(), "format": "wav" });
            parts.push(json!({ "type": "input_audio", "input_audio": received }));
        }
        let mut modalities = vec!["text"];
        for (class, modality) in [("output_audio", "audio"), ("output_image", "image")] {
            if wanted(&mut requested, class) {
                modalities.push(modality);
            }
        }
        fields.insert("modalities".into(), json!(modalities));
    }
    if form == Form::Of(Op::Messages) {
        for (field, word) in [("speed", "fast"), ("inference_geo", "us")] {
            if wanted(&mut requested, field) {
                fields.insert(field.into(), json!(word));
            }
        }
        if wanted(&mut requested, "web_search_call") {
            let tool =
                json!({ "type": "web_search_20250305", "name": "web_search", "max_uses": 100 });
            fields.insert("tools".into(), json!([tool]));
        }
    }
    let turns = json!([{ "role": "user", "content": parts }]);
    let body = match form {
        Form::Of(op) => with(op.body(""), json!({ "messages": turns })),
        Form::Responses => json!({ "model": "chat", "max_output_tokens": 100, "input": turns }),
    };
    (with(body, fields.into()), requested)
}

/// Returns a random usage, and the random fields that a response has outside its usage.
fn usage(form: Form, random: &mut Random) -> (Value, Value) {
    const OF_INPUT: &[&str] = &[
        "cached_tokens",
        "cache_write_tokens",
        "audio_tokens",
        "image_tokens",
    ];
    const OF_OUTPUT: &[&str] = &["reasoning_tokens", "audio_tokens", "image_tokens"];
    const OF_XAI: (&str, &[&str]) = ("server_side_tool_usage_details", &["web_search_calls"]);
    let (four, details): (&[&str], &[(&str, &[&str])]) = match form {
        Form::Of(Op::Chat) => (
            &["prompt_tokens", "completion_tokens", "total_tokens"],
            &[
                ("prompt_tokens_details", OF_INPUT),
                ("completion_tokens_details", OF_OUTPUT),
                OF_XAI,
            ],
        ),
        Form::Responses => (
            &["input_tokens", "output_tokens", "total_tokens"],
            &[
                ("input_tokens_details", OF_INPUT),
                ("output_tokens_details", OF_OUTPUT),
                OF_XAI,
            ],
        ),
        Form::Of(Op::Messages) => (
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
    let mut reported = some(random, four);
    let mut beside = Map::new();
    if let Some(reported) = reported.as_object_mut() {
        for (name, fields) in details {
            if random.chance(500) {
                let mut details = some(random, fields);
                if fields.contains(&"cached_tokens") && details.is_object() && random.chance(500) {
                    let lives = some(random, &["ttl_30m_tokens", "ttl_12h_tokens"]);
                    details["cache_write_tokens_details"] = lives;
                }
                reported.insert((*name).to_owned(), details);
            }
        }
        for (field, words) in [
            (
                "service_tier",
                ["priority", "flex", "standard", "what is this", ""],
            ),
            ("speed", ["fast", "fast", "standard", "slow", ""]),
            (
                "inference_geo",
                ["us", "us", "global", "not_available", "eu"],
            ),
        ] {
            if random.chance(300) {
                let word = json!(words[random.index(5)]);
                // In the Messages format, this field is inside the usage object. In the other formats, it is outside.
                match form {
                    Form::Of(Op::Messages) => drop(reported.insert(field.into(), word)),
                    _ => drop(beside.insert(field.into(), word)),
                }
            }
        }
    }
    if form == Form::Responses && random.chance(300) {
        let searches = some(random, &["num_requests"]);
        beside.insert("tool_usage".into(), json!({ "web_search": searches }));
    }
    (reported, beside.into())
}

/// Returns the vendor's response with this usage, plain or streamed. The fields in `beside` are added outside the
/// usage.
fn reply(form: Form, streamed: bool, reported: &Value, beside: Value) -> Reply {
    match (form, streamed) {
        (Form::Of(op), false) => Reply::json(200, &with(answer(op, "да и нет", reported), beside)),
        (Form::Of(op), true) => {
            // Only the last usage of a stream is complete, so the last one is replaced.
            let mut parts = events(op, &["да", " и нет"], 9, 5);
            let last = parts
                .iter()
                .rposition(|event| event.contains("\"usage\""))
                .unwrap();
            let (head, data) = parts[last].split_once("data: ").unwrap();
            let event: Value = serde_json::from_str(data.trim_end()).unwrap();
            let event = with(with(event, json!({ "usage": reported })), beside);
            parts[last] = format!("{head}data: {event}\n\n");
            Reply::stream(parts)
        }
        (Form::Responses, false) => {
            Reply::json(200, &with(responses::answer("да и нет", reported), beside))
        }
        (Form::Responses, true) => {
            let mut parts = responses::beginning();
            parts.push(responses::delta(2, "да и нет"));
            let answer = with(responses::answer("да и нет", reported), beside);
            parts.push(responses::last(3, answer));
            Reply::stream(parts)
        }
    }
}

async fn call(world: &World, key: &Key, form: Form, body: &Value) -> Answer {
    match form {
        Form::Of(op) => op.call(world, key, body).await,
        Form::Responses => responses::ask(world, key, body).await,
    }
}

/// Returns the usage in a response. In a stream, later events override earlier events.
fn stated(answer: &Answer, streamed: bool) -> Value {
    if !streamed {
        return answer.json()["usage"].clone();
    }
    let mut usage = json!({});
    let text = answer.text();
    for data in text.lines().filter_map(|line| line.strip_prefix("data: ")) {
        let event: Value = serde_json::from_str(data).unwrap_or_default();
        for place in ["/usage", "/message/usage", "/response/usage"] {
            if let Some(newer) = event.pointer(place).filter(|usage| usage.is_object()) {
                usage = with(usage, newer.clone());
            }
        }
    }
    usage
}

/// Returns the input and output counts in a usage of this format.
fn totals(form: Form, usage: &Value) -> (u64, u64) {
    let count = |name: &str| usage[name].as_u64().unwrap_or_default();
    match form {
        Form::Of(Op::Chat) => (count("prompt_tokens"), count("completion_tokens")),
        Form::Responses => (count("input_tokens"), count("output_tokens")),
        Form::Of(Op::Messages) => {
            let cached = count("cache_read_input_tokens") + count("cache_creation_input_tokens");
            (count("input_tokens") + cached, count("output_tokens"))
        }
    }
}

/// Returns the input and output counts in a receipt.
fn charged_tokens(receipt: &Value) -> (u64, u64) {
    let usage = &receipt["usage"];
    let count = |name: &str| usage[name].as_u64().expect("a count");
    let (mut input, mut output) = (
        count("input") + count("cached_input") + count("cache_write"),
        count("output"),
    );
    for (class, count) in usage["classes"].as_object().into_iter().flatten() {
        let count = count.as_u64().expect("a count");
        match class.as_str() {
            "web_search_call" => {}
            "output_audio" | "output_image" => output += count,
            _ => input += count,
        }
    }
    (input, output)
}

/// Returns what the usage of a receipt costs at the receipt's prices, in micro-rubles, rounded up once.
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
async fn books_stay_balanced_whatever_usage_a_vendor_reports() {
    let seed = seed(SEED);
    let world = with_all_priced().start().await;
    let key = world.key_with("odd", FUNDS_RUB, json!({})).await;
    let (mut charged_in_all, mut within) = (0, 0);
    for round in 0..CALLS {
        for (index, form) in (0..).zip(FORMS) {
            let mut random = Random::of(seed, &[round, index]);
            let (reported, beside) = usage(form, &mut random);
            let (mut body, requested) = body(form, &mut random);
            let what =
                format!("seed {seed}, call {round}, {form:?}: {reported} {beside} {requested:?}");
            let streamed = random.chance(400);
            body["stream"] = streamed.into();
            if streamed && form == Form::Of(Op::Chat) {
                body["stream_options"] = json!({ "include_usage": true });
            }
            world.vendor_sends(reply(form, streamed, &reported, beside));
            let answered = call(&world, &key, form, &body).await;
            assert_eq!(answered.status, 200, "{what}: {answered:?}");
            let receipt = world.receipt(&answered.number()).await;
            let what = format!("{what}: {receipt}");
            let cost = micro(&receipt["cost_rub"]);
            let charged = micro(&receipt["charged_rub"]);
            assert_eq!(Decimal::from(cost), reckoned(&receipt), "{what}");
            assert_eq!(charged + micro(&receipt["loss_rub"]), cost, "{what}");
            assert!(charged > 0, "{what}");
            let tokens = charged_tokens(&receipt);
            assert!(tokens.1 <= 100, "{what}");
            for field in ["vendor_usage", "bounded_loss_rub"] {
                assert_eq!(
                    receipt.get(field).is_some(),
                    receipt["bounded"] == true,
                    "{what}"
                );
            }
            // If the usage was estimated, the response has the charged counts, unless the stream of the vendor had no
            // usage.
            if receipt["estimated"] == true && (!streamed || !reported.is_null()) {
                let stated = stated(&answered, streamed);
                assert_eq!(totals(form, &stated), tokens, "{what}: {stated}");
            }
            // If the vendor provided only what the caller requested, the hold has covered the cost.
            if receipt["bounded"] == false
                && receipt.get("unpriced").is_none()
                && requested.covers(&receipt)
            {
                assert!(micro(&receipt["held_rub"]) >= cost, "{what}");
                within += 1;
            }
            charged_in_all += charged;
        }
    }
    assert!(within > CALLS / 4, "{within}");
    let account = world.settled(&key).await;
    let funds = micro(&json!(FUNDS_RUB));
    assert_eq!(micro(&account["balance_rub"]), funds - charged_in_all);
    assert_eq!(micro(&account["spent_rub"]), charged_in_all);
    let audit = world.admin(Method::POST, "/admin/v1/audit", None).await;
    assert_eq!(audit.json()["breaches"], json!([]), "{audit:?}");
}

/// Returns a usage with 400 cached tokens, which cannot be a part of its prompt of 30 tokens.
fn beside_the_prompt(vendor: Form) -> Value {
    let cached = json!({ "cached_tokens": 400 });
    match vendor {
        Form::Responses => json!({ "input_tokens": 30, "output_tokens": 5, "total_tokens": 435,
            "input_tokens_details": cached }),
        Form::Of(_) => json!({ "prompt_tokens": 30, "completion_tokens": 5, "total_tokens": 435,
            "prompt_tokens_details": cached }),
    }
}

#[tokio::test]
async fn cached_tokens_that_the_vendors_prompt_count_excludes_are_charged_and_reported_as_cached() {
    for vendor in [Form::Of(Op::Chat), Form::Responses] {
        let format = match vendor {
            Form::Responses => "format = \"responses\"",
            Form::Of(_) => "format = \"chat\"",
        };
        let (world, key) = Setup::default()
            .edit("format = \"chat\"", format)
            .start_with_key()
            .await;
        for form in FORMS {
            for streamed in [false, true] {
                world.vendor_sends(reply(
                    vendor,
                    streamed,
                    &beside_the_prompt(vendor),
                    json!({}),
                ));
                let text = "x".repeat(100);
                let mut body = match form {
                    Form::Of(op) => with(op.body(&text), json!({ "model": "chat" })),
                    Form::Responses => {
                        json!({ "model": "chat", "max_output_tokens": 100, "input": text })
                    }
                };
                body["stream"] = streamed.into();
                if streamed && form == Form::Of(Op::Chat) {
                    body["stream_options"] = json!({ "include_usage": true });
                }
                let answered = call(&world, &key, form, &body).await.expect(200);
                let receipt = world.receipt(&answered.number()).await;
                let what = format!("{form:?} {vendor:?} {streamed}: {receipt}");
                // The charge is 30 × 100 + 400 × 10 + 5 × 200 µ₽. The tokens by which the total exceeds its parts are
                // cached input, not output.
                assert_eq!(micro(&receipt["charged_rub"]), 8000, "{what}");
                assert_eq!(receipt["usage"]["cached_input"], 400, "{what}");
                assert_eq!(receipt["estimated"], true, "{what}");
                assert_eq!(receipt["bounded"], false, "{what}");
                let stated = stated(&answered, streamed);
                assert_eq!(totals(form, &stated), (430, 5), "{what}: {stated}");
            }
        }
    }
}

#[tokio::test]
async fn usage_beyond_the_bounds_of_a_request_is_shown_on_the_operators_receipt_as_a_loss() {
    let (world, key) = World::start_with_key().await;
    // The request allows 100 output tokens, and the vendor reports 700. The model can generate 4000, so a larger report
    // would count as 4000 in the loss.
    for (count, loss) in [(700, 600 * 200), (1_000_000, 3900 * 200)] {
        let used = json!({ "prompt_tokens": 9, "completion_tokens": count });
        world.vendor_sends(reply(Form::Of(Op::Chat), false, &used, json!({})));
        let answered = world.chat(&key, &Op::Chat.body("x")).await;
        let receipt = world.receipt(&answered.number()).await;
        assert_eq!(receipt["usage"]["output"], 100, "{receipt}");
        assert_eq!(receipt["vendor_usage"]["output"], count, "{receipt}");
        assert_eq!(receipt["vendor_usage"]["input"], 9, "{receipt}");
        assert_eq!(micro(&receipt["bounded_loss_rub"]), loss, "{receipt}");
        assert_eq!(micro(&receipt["charged_rub"]), 900 + 100 * 200, "{receipt}");
        assert_eq!(receipt["loss_rub"], "0.00", "{receipt}");
        hold_covers_charge(&receipt);
        // The receipt that the caller sees is marked as `bounded`, but does not show the vendor's count.
        let own = format!("/v1/tollgate/receipts/{}", answered.number());
        let own = world
            .get(&own, &[("x-api-key", key.secret.as_str())])
            .await
            .json();
        assert_eq!(own["bounded"], true, "{own}");
        assert!(!own.to_string().contains("vendor"), "{own}");
        assert!(!own.to_string().contains("bounded_loss"), "{own}");
    }
    let account = world.settled(&key).await;
    assert_eq!(
        account["loss_rub"], "0.00",
        "the account could pay: {account}"
    );
    let report = world.admin_get("/admin/v1/usage?group=model").await.json();
    assert_eq!(micro(&report["total"]["loss_rub"]), 4500 * 200, "{report}");
    let audit = world.admin(Method::POST, "/admin/v1/audit", None).await;
    assert_eq!(audit.json()["breaches"], json!([]), "{audit:?}");
}

/// Returns a response of this format with a usage of 20 input tokens and 5 output tokens.
fn counted(form: Form) -> Value {
    match form {
        Form::Of(op) => answer(op, "да и нет", &crate::replies::usage(op, 20, 5)),
        Form::Responses => {
            let used = json!({ "input_tokens": 20, "output_tokens": 5, "total_tokens": 25 });
            responses::answer("да и нет", &used)
        }
    }
}

/// Returns the name of the field that contains the content of a response in this format.
const fn place(form: Form) -> &'static str {
    match form {
        Form::Of(Op::Chat) => "choices",
        Form::Of(Op::Messages) => "content",
        Form::Responses => "output",
    }
}

/// Returns several responses of this format that have no content, or whose text is invalid.
fn wordless(form: Form) -> Vec<(&'static str, Vec<u8>)> {
    let with_words = |words: Option<Value>| {
        let mut answer = counted(form);
        let fields = answer.as_object_mut().unwrap();
        fields.remove(place(form));
        if let Some(words) = words {
            fields.insert(place(form).to_owned(), words);
        }
        answer.to_string().into_bytes()
    };
    let text = counted(form).to_string();
    let mut cut = text.replace("нет", "#").into_bytes();
    let at = cut.iter().position(|byte| *byte == b'#').unwrap();
    drop(cut.splice(at..=at, *b"\xed\xa0\xbd"));
    let id = text.split("\"id\":\"").nth(1).unwrap();
    let id = id.split('"').next().unwrap();
    vec![
        ("an empty list", with_words(Some(json!([])))),
        ("null", with_words(Some(Value::Null))),
        ("nothing", with_words(None)),
        ("half a pair", text.replace("нет", "\\ud83d").into_bytes()),
        (
            "half a pair in an id",
            text.replace(id, "\\ud83d").into_bytes(),
        ),
        ("bytes that are no text", cut),
    ]
}

#[tokio::test]
async fn answer_with_odd_usage_counts_is_delivered_and_charged_by_these_counts() {
    for vendor in FORMS {
        let (format, model) = match vendor {
            Form::Of(op) => ("format = \"chat\"", op.model()),
            Form::Responses => ("format = \"responses\"", "chat"),
        };
        let (world, key) = Setup::default()
            .edit("format = \"chat\"", format)
            .start_with_key()
            .await;
        for form in FORMS {
            let body = |streamed: bool| {
                let body = match form {
                    Form::Of(op) => with(op.body("вопрос"), json!({ "model": model })),
                    Form::Responses => {
                        json!({ "model": model, "max_output_tokens": 100, "input": "вопрос" })
                    }
                };
                with(body, json!({ "stream": streamed }))
            };
            for (reported, bytes) in wordless(vendor) {
                world.vendor.script(move |_| {
                    let steps = vec![Step::Send(bytes.clone().into())];
                    Reply::raw(200, "application/json", steps)
                });
                let answered = call(&world, &key, form, &body(false)).await;
                let what = format!("{form:?} of {vendor:?}, {reported}: {answered:?}");
                assert_eq!(answered.status, 200, "{what}");
                let receipt = world.receipt(&answered.number()).await;
                assert_eq!(charged_tokens(&receipt), (20, 5), "{what}: {receipt}");
                assert_eq!(receipt["end"], "finished", "{what}: {receipt}");
            }
            let reported = counted(vendor)["usage"].clone();
            world.vendor_sends(reply(vendor, true, &reported, json!({})));
            let answered = call(&world, &key, form, &body(true)).await.expect(200);
            let receipt = world.receipt(&answered.number()).await;
            assert_eq!(charged_tokens(&receipt), (20, 5), "{receipt}");
        }
    }
}
