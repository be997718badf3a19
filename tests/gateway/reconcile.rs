//! Tests of `tollgate reconcile`, which compares the books with a vendor's own export: agreement, differences that the
//! receipts explain, and unreadable files.

use std::{fs, path::Path};

use crate::{
    ledger::folder,
    prelude::*,
    replies,
    usage_report::{complained, reported, tollgate, typed},
};

/// The usage that the vendor reports for each call.
const TOKENS: Tokens = Tokens {
    input: 40,
    cached_input: 30,
    cache_write: 20,
    output: 10,
};

/// Makes three calls. Returns the day on which all of them were charged.
async fn three_calls(world: &World, op: Op, key: &Key) -> String {
    world.vendor_sends(Reply::json(
        200,
        &replies::answer(op, "ответ", &TOKENS.usage(op)),
    ));
    let mut days = Vec::new();
    for _ in 0..3 {
        let answer = op.call(world, key, &op.body("вопрос")).await;
        days.push(day_of(&world.receipt(&answer.number()).await));
    }
    days.dedup();
    assert_eq!(days.len(), 1, "midnight of UTC; run it again");
    days.remove(0)
}

fn day_of(receipt: &Value) -> String {
    receipt["at"].as_str().unwrap()[..10].to_owned()
}

/// Returns the day that follows `day`.
fn next_day(day: &str) -> String {
    let begins = |text: &str| text.parse::<i64>().unwrap();
    let days = tollgate_layers::calendar::day_of_date(
        begins(&day[..4]),
        begins(&day[5..7]),
        begins(&day[8..]),
    );
    let (year, month, day) = tollgate_layers::calendar::date_of_day(days + 1);
    format!("{year:04}-{month:02}-{day:02}")
}

fn unix(day: &str) -> i64 {
    let number = |text: &str| text.parse::<i64>().unwrap();
    86_400
        * tollgate_layers::calendar::day_of_date(
            number(&day[..4]),
            number(&day[5..7]),
            number(&day[8..]),
        )
}

/// Returns a page of OpenAI's usage API with this number of calls, and with `more_output` additional output tokens.
fn openai(day: &str, calls: u64, more_output: u64) -> Value {
    json!({
        "object": "page",
        "data": [{
            "object": "bucket", "start_time": unix(day), "end_time": unix(&next_day(day)),
            "results": [{
                "object": "organization.usage.completions.result",
                "input_tokens": calls * (TOKENS.input + TOKENS.cached_input + TOKENS.cache_write),
                "input_cached_tokens": calls * TOKENS.cached_input,
                "input_cache_write_tokens": calls * TOKENS.cache_write,
                "output_tokens": calls * TOKENS.output + more_output,
                "input_audio_tokens": 0, "output_audio_tokens": 0, "num_model_requests": calls,
                "model": "vendor-chat-1", "project_id": null, "user_id": null, "api_key_id": null, "batch": null,
            }],
        }],
        "has_more": false, "next_page": null,
    })
}

/// Returns a page of Anthropic's usage report with this number of calls.
fn anthropic(day: &str, calls: u64) -> Value {
    json!({
        "data": [{
            "starting_at": format!("{day}T00:00:00Z"), "ending_at": format!("{}T00:00:00Z", next_day(day)),
            "results": [{
                "uncached_input_tokens": calls * TOKENS.input, "cache_read_input_tokens": calls * TOKENS.cached_input,
                "cache_creation": {
                    "ephemeral_5m_input_tokens": calls * TOKENS.cache_write, "ephemeral_1h_input_tokens": 0,
                },
                "output_tokens": calls * TOKENS.output, "server_tool_use": {"web_search_requests": 0},
                "model": "vendor-messages-1", "service_tier": "standard", "context_window": "0-200k",
            }],
        }],
        "has_more": false, "next_page": null,
    })
}

fn write(dir: &Path, name: &str, text: impl ToString) -> String {
    let path = dir.join(name);
    fs::write(&path, text.to_string()).unwrap();
    path.to_str().unwrap().to_owned()
}

/// Writes the gateway's configuration to a file. Its secrets refer to environment variables that are not set, which the
/// command must accept.
fn config(world: &World, dir: &Path) -> String {
    write(
        dir,
        "tollgate.toml",
        config_text(world.vendor.address(), "memory:", "outbox.db"),
    )
}

/// Runs `tollgate reconcile` for this vendor and this file, with these additional arguments.
async fn run(world: &World, vendor: &str, file: &str, more: &[&str]) -> std::process::Output {
    let args = ["reconcile", "--vendor", vendor, "--file", file];
    tollgate(world, &[&args, more].concat(), "").await
}

/// Returns the rows that the command reports as drift: the rate class, the gateway's count and the vendor's count.
fn drifts(answer: &str) -> Vec<(String, u64, u64)> {
    let answer: Value = serde_json::from_str(answer).unwrap();
    let rows = answer["rows"].as_array().unwrap().iter();
    rows.filter(|row| row["drift"] == true)
        .map(|row| {
            let count = |field: &str| row[field].as_u64().unwrap();
            (
                row["class"].as_str().unwrap().to_owned(),
                count("ours"),
                count("vendors"),
            )
        })
        .collect()
}

async fn on_a_ledger(ledger: &str) {
    let (world, dir) = (Setup::default().ledger(ledger).start().await, folder());
    let key = world.key().await;
    let config = config(&world, dir.path());
    let day = three_calls(&world, Op::Chat, &key).await;
    three_calls(&world, Op::Messages, &key).await;

    // The books agree with the files of both vendors, each of which has its own format.
    let chat = write(dir.path(), "openai.json", openai(&day, 3, 0));
    let messages = write(dir.path(), "anthropic.json", anthropic(&day, 3));
    for (vendor, file, rows) in [("chat-vendor", &chat, 4), ("messages-vendor", &messages, 4)] {
        let output = run(&world, vendor, file, &["--config", &config]).await;
        let text = reported(&output, 0);
        let last = format!("ok: {rows} rows, no difference above 0 %\n");
        assert!(text.ends_with(&last), "{text}");
        assert!(text.contains(&format!("{day}  vendor-")), "{text}");
    }

    // Without the configuration, the arguments must name the vendor's models.
    let named = ["--route", "chat=vendor-chat-1"];
    reported(&run(&world, "chat-vendor", &chat, &named).await, 0);
    reported(&run(&world, "chat-vendor", &chat, &[]).await, 1);

    // The client of this stream disconnects. So the gateway estimates the output, and the vendor reports more.
    let running = Running::start(&world, Op::Chat, &key, &Op::Chat.body("вопрос")).await;
    let number = running.number.clone();
    drop(running);
    let receipt = world.receipt(&number).await;
    assert_eq!(receipt["end"], "client_left");
    assert_eq!(receipt["estimated"], true);
    let ours = receipt["usage"]["output"].as_u64().unwrap();
    let input = receipt["usage"]["input"].as_u64().unwrap();
    let mut drifted = openai(&day, 3, ours + 90);
    let result = &mut drifted["data"][0]["results"][0];
    result["input_tokens"] = json!(result["input_tokens"].as_u64().unwrap() + input);
    let drifted = write(dir.path(), "drift.json", drifted);
    let json = reported(
        &run(
            &world,
            "chat-vendor",
            &drifted,
            &["--config", &config, "--json"],
        )
        .await,
        1,
    );
    assert_eq!(
        drifts(&json),
        [("output".to_owned(), 30 + ours, 120 + ours)]
    );
    let answer: Value = serde_json::from_str(&json).unwrap();
    let explained = &answer["explained"][0];
    assert_eq!(explained["classes"], json!(["output"]));
    assert_eq!(explained["receipts"][0]["number"], number.as_str());
    assert_eq!(
        explained["receipts"][0]["reasons"],
        json!(["estimated", "client_left"])
    );
    assert_eq!(explained["calls"], 1);
    assert_eq!(explained["more"], 0);
    let text = reported(
        &run(&world, "chat-vendor", &drifted, &["--config", &config]).await,
        1,
    );
    assert!(text.contains("1 receipt may explain the drift: "), "{text}");
    has(&text, &format!("  {number}  estimated, client_left: "));
    assert!(
        text.ends_with("1 of 4 rows differ by more than 0 %\n"),
        "{text}"
    );

    // Books that are read from an export give the same result as books read from the admin API. With a larger
    // tolerance, the drift is not reported.
    let books = dir.path().join("books.ndjson").to_str().unwrap().to_owned();
    typed(&world, &format!("export --output {books}"), 0).await;
    let from_export = ["--config", &config, "--json", "--export", &books];
    let of_export = run(&world, "chat-vendor", &drifted, &from_export).await;
    assert_eq!(
        serde_json::from_str::<Value>(&reported(&of_export, 1)).unwrap(),
        answer
    );
    reported(
        &run(
            &world,
            "chat-vendor",
            &drifted,
            &["--config", &config, "--tolerance", "90"],
        )
        .await,
        0,
    );
}

#[tokio::test]
async fn reconcile_on_sqlite_finds_agreement_or_the_receipts_that_differ() {
    let folder = folder();
    on_a_ledger(&format!(
        "sqlite:{}",
        folder.path().join("books.db").display()
    ))
    .await;
}

#[tokio::test]
async fn reconcile_on_redis_finds_agreement_or_the_receipts_that_differ() {
    let server = RedisServer::start().await;
    on_a_ledger(&server.url()).await;
}

#[tokio::test]
async fn reconcile_compares_costs_with_the_configured_prices() {
    let (world, dir) = (World::start().await, folder());
    let key = world.key().await;
    // The vendor costs two USDT for input and four for output, so that a difference is more than a cent.
    let big = json!({ "prompt_tokens": 2_000_000, "completion_tokens": 2_000_000, "total_tokens": 4_000_000 });
    let config = config(&world, dir.path());
    world.vendor_sends(Reply::json(200, &replies::answer(Op::Chat, "ответ", &big)));
    let body = with(Op::Chat.body("вопрос"), json!({ "max_tokens": 4000 }));
    let answer = Op::Chat.call(&world, &key, &body).await;
    let receipt = world.receipt(&answer.number()).await;
    // The request allows fewer tokens than the vendor reports. The receipt contains the allowed count, but the vendor
    // bills for the reported count.
    assert_eq!(receipt["bounded"], true, "{receipt}");
    let day = day_of(&receipt);
    let item = |direction: &str, value: f64| {
        json!({
            "object": "organization.costs.result", "amount": { "value": value, "currency": "usd" },
            "line_item": format!("vendor-chat-1, {direction}"), "project_id": null,
        })
    };
    let costs = json!({
        "object": "page", "has_more": false, "next_page": null,
        "data": [{
            "object": "bucket", "start_time": unix(&day), "end_time": unix(&next_day(&day)),
            "results": [item("input", 2.0), item("output", 4.0)],
        }],
    });
    let file = write(dir.path(), "costs.json", costs);
    let json = reported(
        &run(
            &world,
            "chat-vendor",
            &file,
            &["--config", &config, "--json"],
        )
        .await,
        1,
    );
    let report: Value = serde_json::from_str(&json).unwrap();
    let explained = &report["explained"][0];
    assert_eq!(explained["classes"], json!(["input", "output"]), "{report}");
    assert_eq!(explained["receipts"][0]["number"], answer.number().as_str());
    assert_eq!(
        explained["receipts"][0]["reasons"],
        json!(["estimated", "bounded"])
    );
    let row = &report["rows"][1];
    let output = receipt["usage"]["output"].as_u64().unwrap();
    assert_eq!(row["class"], "output");
    assert_eq!(row["ours"], json!(output));
    assert_eq!(row["vendors"], Value::Null);
    assert_eq!(row["our_cost_usdt"], "0.008");
    assert_eq!(row["vendors_cost_usd"], "4.00");
}

/// Cache writes of one hour are compared as a separate class. Costs are computed at the prices of the day of the call,
/// even if the configuration has changed since then.
#[tokio::test]
async fn reconcile_compares_rate_classes_separately_and_uses_the_costs_of_the_day_of_the_call() {
    let rates = |input: &str, hour: &str| {
        format!(
            "input = \"{input}\", cached_input = \"{input}\", output = \"{input}\", cache_write = \"{input}\", \
             cache_write_1h = \"{hour}\""
        )
    };
    let route = "model = \"vendor-messages-1\" }";
    let at_cost = |input: &str, hour: &str| {
        format!(
            "model = \"vendor-messages-1\", cost_usdt_mtok = {{ {} }} }}",
            rates(input, hour)
        )
    };
    let priced = (
        "cache_write = \"5\" }",
        "cache_write = \"5\", cache_write_1h = \"8\" }",
    );
    let setup = Setup::default()
        .edit(route, &at_cost("4", "7"))
        .edit(priced.0, priced.1);
    let (world, dir) = (setup.start().await, folder());
    let key = world.key().await;
    let usage = json!({
        "input_tokens": 40, "output_tokens": 10, "cache_read_input_tokens": 0, "cache_creation_input_tokens": 6000,
        "cache_creation": { "ephemeral_5m_input_tokens": 2000, "ephemeral_1h_input_tokens": 4000 },
    });
    world.vendor_sends(Reply::json(
        200,
        &replies::answer(Op::Messages, "ответ", &usage),
    ));
    let text = json!([{
        "type": "text", "text": "вопрос ".repeat(2000), "cache_control": { "type": "ephemeral", "ttl": "1h" },
    }]);
    let requested = json!({ "messages": [{ "role": "user", "content": text }] });
    let body = with(Op::Messages.body("вопрос"), requested);
    let answer = Op::Messages.call(&world, &key, &body).await;
    let receipt = world.receipt(&answer.number()).await;
    assert_eq!(
        receipt["usage"]["classes"],
        json!({ "cache_write_1h": 4000 }),
        "{receipt}"
    );
    let day = day_of(&receipt);

    let text =
        config_text(world.vendor.address(), "memory:", "outbox.db").replace(priced.0, priced.1);
    let of_then = write(
        dir.path(),
        "then.toml",
        text.replace(route, &at_cost("4", "7")),
    );
    let of_today = write(
        dir.path(),
        "today.toml",
        text.replace(route, &at_cost("400", "700")),
    );
    let mut said_so = anthropic(&day, 0);
    let result = &mut said_so["data"][0]["results"][0];
    for (field, count) in [("uncached_input_tokens", 40), ("output_tokens", 10)] {
        result[field] = json!(count);
    }
    let writes = |short: u64, long: u64| json!({ "ephemeral_5m_input_tokens": short, "ephemeral_1h_input_tokens": long });
    result["cache_creation"] = writes(2000, 4000);
    let same = write(dir.path(), "same.json", &said_so);
    // The vendor reports the same total of cache writes, but counts more of them as writes of one hour.
    said_so["data"][0]["results"][0]["cache_creation"] = writes(1000, 5000);
    let moved = write(dir.path(), "moved.json", &said_so);
    let costs = |total: &str| {
        let line = |token_type: &str, amount: &str| {
            json!({
                "amount": amount, "currency": "USD", "cost_type": "tokens", "token_type": token_type,
                "model": "vendor-messages-1", "description": "Usage", "context_window": "0-200k",
            })
        };
        json!({
            "data": [{
                "starting_at": format!("{day}T00:00:00Z"), "ending_at": format!("{}T00:00:00Z", next_day(&day)),
                "results": [line("cache_creation.ephemeral_1h_input_tokens", total)],
            }],
            "has_more": false, "next_page": null,
        })
    };
    // (40 + 10 + 2000) × 4 + 4000 × 7 USDT per million tokens are 3.62 cents.
    let (right, wrong) = (
        write(dir.path(), "right.json", costs("3.62")),
        write(dir.path(), "wrong.json", costs("9.62")),
    );
    let returned = async |file: &str, config: &str, code: i32| {
        let args = ["--config", config, "--json"];
        reported(&run(&world, "messages-vendor", file, &args).await, code)
    };
    assert_eq!(drifts(&returned(&same, &of_then, 0).await), []);
    assert_eq!(
        drifts(&returned(&moved, &of_then, 1).await),
        [
            ("cache_write".to_owned(), 2000, 1000),
            ("cache_write_1h".to_owned(), 4000, 5000)
        ]
    );
    for (file, config, code, cost) in [
        (&right, &of_then, 0, "0.0362"),
        (&right, &of_today, 0, "0.0362"),
        (&wrong, &of_today, 1, "0.0362"),
    ] {
        let report: Value = serde_json::from_str(&returned(file, config, code).await).unwrap();
        let total = report["rows"].as_array().unwrap().last().unwrap();
        assert_eq!(total["class"], "total", "{report}");
        assert_eq!(total["our_cost_usdt"], json!(cost), "{report}");
        assert_eq!(total["drift"], code == 1, "{report}");
        assert_eq!(report["drifts"], u64::from(code == 1), "{report}");
    }
}

#[tokio::test]
async fn reconcile_exits_with_65_and_reports_the_position_of_an_unreadable_line() {
    let (world, dir) = (World::start().await, folder());
    let day = "2026-11-20";
    let typo = openai(day, 1, 0)
        .to_string()
        .replace("\"output_tokens\"", "\"output_tokenz\"");
    let mut more = openai(day, 1, 0);
    more["has_more"] = json!(true);
    let good = write(dir.path(), "good.json", openai(day, 1, 0));
    for (name, text, says) in [
        (
            "typo.json",
            typo,
            "data[0].results[0].output_tokens: the field is missing; did you mean output_tokenz?",
        ),
        (
            "more.json",
            more.to_string(),
            "has_more is true, but the next page is missing",
        ),
        (
            "cut.json",
            openai(day, 1, 0).to_string()[..50].to_owned(),
            "not JSON: EOF while parsing",
        ),
        (
            "bill.csv",
            "day,model,class,count\n2026-11-20,m,inptu,1\n".into(),
            "line 2: class: must be one of",
        ),
    ] {
        let file = write(dir.path(), name, text);
        let errors = complained(&run(&world, "chat-vendor", &file, &[]).await, 65);
        let expected = format!("error: {file}: {says}");
        assert!(errors.starts_with(&expected), "{errors}");
    }
    complained(&run(&world, "chat-vendor", "no-such-file", &[]).await, 74);
    let cut = write(
        dir.path(),
        "books.ndjson",
        "{\"kind\":\"header\",\"format\":\"tollgate-export\",\"version\":1}\n",
    );
    let errors = complained(
        &run(&world, "chat-vendor", &good, &["--export", &cut]).await,
        65,
    );
    assert!(errors.contains("it was cut off"), "{errors}");
    let config = config(&world, dir.path());
    let errors = complained(
        &run(&world, "chat-vendr", &good, &["--config", &config]).await,
        64,
    );
    assert!(errors.contains("did you mean chat-vendor?"), "{errors}");
    // Exit code 1 always means drift. If the gateway is unreachable, the exit code is another one.
    let away = ["--admin-url", "http://127.0.0.1:1"];
    complained(&run(&world, "chat-vendor", &good, &away).await, 69);
}
