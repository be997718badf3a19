//! docs/prices.md, docs/money.md: a vendor that says anything of its usage, with every class priced. Nothing is free,
//! nothing is charged that a receipt does not explain, and the books add up.

use http::Method;
use rust_decimal::Decimal;
use serde_json::{Map, Value, json};
use tollgate::demo::vendor::Reply;

use crate::{
    checks::{decimal, micro},
    harness::{Answer, Key, Setup, World, with},
    ops::Op,
    replies::{answer, events},
    responses,
    sound::sound,
    support::random::{Random, seed},
};

const CALLS: u64 = 120;
const SEED: u64 = 3;
const FUNDS_RUB: &str = "100000000";

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

/// The formats that are called and answered alike.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Form {
    Of(Op),
    Responses,
}

const FORMS: [Form; 3] = [Form::Of(Op::Chat), Form::Of(Op::Messages), Form::Responses];

/// Every class has a price, and so has every set of conditions. One vendor speaks two of the formats.
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

/// What a request asks for that is billed apart: classes, and words of how it is to be served.
#[derive(Debug, Default)]
struct Asked(Vec<&'static str>);

impl Asked {
    /// All that the vendor told was asked for.
    fn covers(&self, receipt: &Value) -> bool {
        let of = |object: &Value| -> Vec<String> {
            let names = object.as_object().into_iter().flatten();
            names.map(|(name, _)| name.clone()).collect()
        };
        let told = [
            of(&receipt["usage"]["classes"]),
            of(&receipt["price"]["condition"]),
        ];
        told.concat()
            .iter()
            .all(|name| self.0.contains(&name.as_str()))
    }
}

/// A body that asks for some of what there is.
fn body(form: Form, random: &mut Random) -> (Value, Asked) {
    let mut asked = Asked::default();
    let mut fields = Map::new();
    let mut parts = vec![match form {
        Form::Responses => json!({ "type": "input_text", "text": "вопрос" }),
        Form::Of(_) => json!({ "type": "text", "text": "вопрос" }),
    }];
    let mut wish = |asked: &mut Asked, name: &'static str| {
        let wished = random.chance(400);
        if wished {
            asked.0.push(name);
        }
        wished
    };
    if form != Form::Responses && wish(&mut asked, "cache_write_1h") {
        parts[0]["cache_control"] = json!({ "type": "ephemeral", "ttl": "1h" });
    }
    if wish(&mut asked, "input_image") {
        let png = "data:image/png;base64,AAAA";
        parts.push(match form {
            Form::Of(Op::Chat) => json!({ "type": "image_url", "image_url": { "url": png } }),
            Form::Of(Op::Messages) => json!({ "type": "image",
                "source": { "type": "base64", "media_type": "image/png", "data": "AAAA" } }),
            Form::Responses => json!({ "type": "input_image", "image_url": png }),
        });
    }
    if wish(&mut asked, "service_tier") {
        fields.insert("service_tier".into(), json!("priority"));
    }
    if form != Form::Of(Op::Messages) && wish(&mut asked, "cache_write_12h") {
        fields.insert("prompt_cache_options".into(), json!({ "ttl": "12h" }));
    }
    if form == Form::Of(Op::Chat) {
        if wish(&mut asked, "input_audio") {
            let heard = json!({ "data": sound(), "format": "wav" });
            parts.push(json!({ "type": "input_audio", "input_audio": heard }));
        }
        let mut modalities = vec!["text"];
        for (class, modality) in [("output_audio", "audio"), ("output_image", "image")] {
            if wish(&mut asked, class) {
                modalities.push(modality);
            }
        }
        fields.insert("modalities".into(), json!(modalities));
    }
    if form == Form::Of(Op::Messages) {
        for (field, word) in [("speed", "fast"), ("inference_geo", "us")] {
            if wish(&mut asked, field) {
                fields.insert(field.into(), json!(word));
            }
        }
        if wish(&mut asked, "web_search_call") {
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
    (with(body, fields.into()), asked)
}

/// The usage, and what a vendor says beside it.
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
    let mut said = some(random, four);
    let mut beside = Map::new();
    if let Some(said) = said.as_object_mut() {
        for (name, fields) in details {
            if random.chance(500) {
                let mut details = some(random, fields);
                if fields.contains(&"cached_tokens") && details.is_object() && random.chance(500) {
                    let lives = some(random, &["ttl_30m_tokens", "ttl_12h_tokens"]);
                    details["cache_write_tokens_details"] = lives;
                }
                said.insert((*name).to_owned(), details);
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
                // Messages have it in the usage, the others beside it.
                match form {
                    Form::Of(Op::Messages) => drop(said.insert(field.into(), word)),
                    _ => drop(beside.insert(field.into(), word)),
                }
            }
        }
    }
    if form == Form::Responses && random.chance(300) {
        let searches = some(random, &["num_requests"]);
        beside.insert("tool_usage".into(), json!({ "web_search": searches }));
    }
    (said, beside.into())
}

/// The vendor says so, at once or in a stream.
fn reply(form: Form, streamed: bool, said: &Value, beside: Value) -> Reply {
    match (form, streamed) {
        (Form::Of(op), false) => Reply::json(200, &with(answer(op, "да и нет", said), beside)),
        (Form::Of(op), true) => {
            // The last usage of a stream is the one that says everything.
            let mut parts = events(op, &["да", " и нет"], 9, 5);
            let last = parts
                .iter()
                .rposition(|event| event.contains("\"usage\""))
                .unwrap();
            let (head, data) = parts[last].split_once("data: ").unwrap();
            let event: Value = serde_json::from_str(data.trim_end()).unwrap();
            let event = with(with(event, json!({ "usage": said })), beside);
            parts[last] = format!("{head}data: {event}\n\n");
            Reply::stream(parts)
        }
        (Form::Responses, false) => {
            Reply::json(200, &with(responses::answer("да и нет", said), beside))
        }
        (Form::Responses, true) => {
            let mut parts = responses::beginning();
            parts.push(responses::delta(2, "да и нет"));
            let answer = with(responses::answer("да и нет", said), beside);
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
    let world = with_all_priced().start().await;
    let key = world.key_with("odd", FUNDS_RUB, json!({})).await;
    let (mut charged_in_all, mut within) = (0, 0);
    for round in 0..CALLS {
        for (index, form) in (0..).zip(FORMS) {
            let mut random = Random::of(seed, &[round, index]);
            let (said, beside) = usage(form, &mut random);
            let (mut body, asked) = body(form, &mut random);
            let what = format!("seed {seed}, call {round}, {form:?}: {said} {beside} {asked:?}");
            let streamed = random.chance(400);
            body["stream"] = streamed.into();
            let reply = reply(form, streamed, &said, beside);
            world.vendor.script(move |_| reply.clone());
            let answered = call(&world, &key, form, &body).await;
            assert_eq!(answered.status, 200, "{what}: {answered:?}");
            let receipt = world.receipt(&answered.number()).await;
            let what = format!("{what}: {receipt}");
            let cost = micro(&receipt["cost_rub"]);
            let charged = micro(&receipt["charged_rub"]);
            assert_eq!(Decimal::from(cost), reckoned(&receipt), "{what}");
            assert_eq!(charged + micro(&receipt["loss_rub"]), cost, "{what}");
            assert!(charged > 0, "{what}");
            // Of what was asked for enough was held.
            if receipt["bounded"] == false
                && receipt.get("unpriced").is_none()
                && asked.covers(&receipt)
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
