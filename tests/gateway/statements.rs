//! Tests of statements, the documents about a month of an account for its accountant, from the admin API and from the
//! command.

use std::{collections::BTreeMap, path::Path};

use crate::{
    ledger::folder,
    prelude::*,
    support::process::TOLLGATE,
    usage_report::{complained, reported, tollgate, typed},
};

const SELLER: &str =
    "[seller]\nname = \"ООО «Ромашка»\"\ninn = \"7701234567\"\nvat_percent = \"20\"\n[tariff]";

/// Returns the UTC month of a time.
fn month_of(at: &str) -> String {
    at[..7].to_owned()
}

async fn ask(world: &World, month: &str, format: &str) -> Answer {
    let path = format!("/admin/v1/accounts/acme/statements/{month}?format={format}");
    world.admin_get(&path).await
}

async fn statement(world: &World, month: &str) -> Value {
    let answer = ask(world, month, "json").await.expect(200);
    answer.json()
}

async fn correct(world: &World, id: &str, rubles: &str) {
    let path = "/admin/v1/accounts/acme/adjustments";
    let body = json!({ "id": id, "amount_rub": rubles, "reason": "возврат, по письму" });
    let answer = world.admin_post(path, body).await;
    assert!(answer.status.is_success(), "{answer:?}");
}

/// Makes calls of both models and one correction. Returns their month, or `None` if a month ended meanwhile.
async fn busy(world: &World, key: &Key) -> Option<String> {
    let mut months = Vec::new();
    for op in BOTH {
        for _ in 0..3 {
            let answer = op.call(world, key, &op.body("Привет")).await;
            let receipt = world.receipt(&answer.number()).await;
            months.push(month_of(receipt["at"].as_str().unwrap()));
        }
    }
    correct(world, "c-1", "-12.5").await;
    months.dedup();
    world.settled(key).await;
    (months.len() == 1).then(|| months.remove(0))
}

/// Parses an amount such as `12.50`. Returns kopecks.
fn kopecks(value: &Value) -> i64 {
    micro(value) / 10_000
}

/// Checks that the sums of a statement agree with each other.
fn adds_up(statement: &Value) {
    let of = |name: &str| {
        let amounts = &statement[name];
        [kopecks(&amounts["rub"]), micro(&amounts["exact_rub"])]
    };
    let parts = ["opening", "payments", "corrections", "spending", "closing"];
    let [opening, payments, corrections, spending, closing] = parts.map(of);
    for unit in [0, 1] {
        let sum = opening[unit] + payments[unit] + corrections[unit] - spending[unit];
        assert_eq!(sum, closing[unit], "{statement}");
    }
    let models = statement["spending"]["models"].as_array().unwrap();
    let rounding = kopecks(&statement["spending"]["models_rounding_rub"]);
    let sum: i64 = models.iter().map(|line| kopecks(&line["rub"])).sum();
    assert_eq!(sum + rounding, spending[0], "{statement}");
    let exact: i64 = models.iter().map(|line| micro(&line["exact_rub"])).sum();
    assert_eq!(exact, spending[1], "{statement}");
}

/// In every store, the statement agrees with the usage report, the account and the audit.
#[tokio::test]
async fn statement_agrees_with_the_books() {
    let (server, folder) = (RedisServer::start().await, folder());
    let file = format!("sqlite:{}", folder.path().join("books.db").display());
    for ledger in ["memory:", &file, &server.url()] {
        let setup = Setup::default().ledger(ledger).edit("[tariff]", SELLER);
        let (world, key) = setup.start_with_key().await;
        let Some(month) = busy(&world, &key).await else {
            return;
        };
        let returned = statement(&world, &month).await;
        adds_up(&returned);
        assert_eq!(returned["closed"], false, "{ledger}");
        assert_eq!(returned["number"], format!("acme-{month}"), "{ledger}");
        assert_eq!(returned["opening"]["exact_rub"], "0.000000");
        assert_eq!(returned["payments"]["rub"], "1000.00");
        assert_eq!(returned["payments"]["entries"][0]["id"], "first");
        assert_eq!(returned["corrections"]["rub"], "-12.50");
        let correction = &returned["corrections"]["entries"][0];
        assert_eq!(correction["reason"], "возврат, по письму");
        let account = world.account(&key).await;
        let closing = micro(&returned["closing"]["exact_rub"]);
        assert_eq!(closing, micro(&account["balance_rub"]), "{ledger}");
        let (since, until) = (&returned["since"], &returned["until"]);
        let (since, until) = (since.as_str().unwrap(), until.as_str().unwrap());
        let path = format!("/admin/v1/usage?group=model&account=acme&since={since}&until={until}");
        let usage = world.admin_get(&path).await.json();
        let of_usage: Vec<_> = usage["rows"].as_array().unwrap().iter().collect();
        let of_statement = returned["spending"]["models"].as_array().unwrap();
        assert_eq!(of_usage.len(), 2, "{ledger}: {usage}");
        assert_eq!(of_statement.len(), 2, "{ledger}: {usage}");
        for (row, line) in of_usage.iter().zip(of_statement) {
            assert_eq!(row["model"], line["model"]);
            assert_eq!(row["calls"], line["calls"]);
            assert_eq!(row["usage"], line["usage"]);
            assert_eq!(micro(&row["charged_rub"]), micro(&line["exact_rub"]));
        }
        assert_eq!(
            micro(&usage["total"]["charged_rub"]),
            micro(&returned["spending"]["exact_rub"])
        );
        let vat = kopecks(&returned["spending"]["rub"]) as f64 / 6.0;
        assert_eq!(kopecks(&returned["vat"]["rub"]), vat.round() as i64);
        typed(&world, "audit", 0).await;

        // The statement of a month before the account existed contains zeros. A future month has no statement.
        let before = statement(&world, "2020-01").await;
        adds_up(&before);
        assert_eq!(before["closing"]["exact_rub"], "0.000000");
        assert_eq!(before["closed"], true);

        let args = ["statement", "acme", "--month", &month];
        let summary = reported(&tollgate(&world, &args, "").await, 0);
        let shown = |label: &str, value: &str| {
            let line = summary.lines().find(|line| line.starts_with(label));
            assert!(line.unwrap().ends_with(value), "{label}: {summary}");
        };
        shown("payments", " 1000.00 ₽");
        shown("corrections", " -12.50 ₽");
        shown(
            "closing balance",
            &format!(" {} ₽", returned["closing"]["rub"].as_str().unwrap()),
        );
    }
}

#[tokio::test]
async fn statement_is_available_in_each_format() {
    let (world, key) = Setup::default()
        .edit("[tariff]", SELLER)
        .start_with_key()
        .await;
    busy(&world, &key).await;
    for (format, kind, begins) in [
        (
            "json",
            "application/json",
            "{\"version\":1,\"number\":\"acme-2020-01\"",
        ),
        ("csv", "text/csv; charset=utf-8", "section,item,at,calls,"),
        (
            "html",
            "text/html; charset=utf-8",
            "<!doctype html>\n<html lang=\"ru\">",
        ),
    ] {
        let answer = ask(&world, "2020-01", format).await.expect(200);
        assert_eq!(answer.headers["content-type"], kind);
        let file = format!("attachment; filename=\"acme-2020-01.{format}\"");
        assert_eq!(answer.headers["content-disposition"], file.as_str());
        assert!(answer.text().starts_with(begins), "{answer:?}");
        assert!(answer.text().contains("ООО «Ромашка»"));
        // The command writes the same bytes as the API returns, to a file or to standard output.
        let path = world.dir.path().join(format!("made.{format}"));
        let path = path.to_str().unwrap();
        let command = ["statement", "acme", "--month", "2020-01"];
        let to_file = [&command[..], &["--output", path]].concat();
        reported(&tollgate(&world, &to_file, "").await, 0);
        assert_eq!(std::fs::read(path).unwrap(), answer.body);
        let to_stdout = [&command[..], &["--format", format]].concat();
        assert_eq!(
            reported(&tollgate(&world, &to_stdout, "").await, 0),
            answer.text()
        );
    }
    let english = top("language = \"en\"").start().await;
    english.key().await;
    let page = ask(&english, "2020-01", "html").await.text();
    has(&page, "Statement acme-2020-01 for January 2020");
}

#[tokio::test]
async fn unavailable_statement_is_refused_with_the_reason() {
    let world = World::start().await;
    world.key().await;
    for (account, month, status, says) in [
        (
            "acme",
            "/2026-13",
            400,
            "month: must be a month like 2026-11",
        ),
        (
            "acme",
            "/9999-12",
            400,
            "month: this month has not begun yet",
        ),
        (
            "acme",
            "/2020-01?format=doc",
            400,
            "format: must be json, csv",
        ),
        ("acme", "/2020-01?form=csv", 400, "form: unknown parameter"),
        ("nobody", "/2020-01", 404, "no account nobody"),
        ("acme", "", 404, "no such path"),
    ] {
        let path = format!("/admin/v1/accounts/{account}/statements{month}");
        let answer = world.admin_get(&path).await;
        let text = answer.json()["error"]["message"].to_string();
        assert_eq!(answer.status, status, "{path}: {text}");
        assert!(text.contains(says), "{path}: {text}");
    }
    let line = "statement acme --month 2020-01 --output x.txt";
    let args: Vec<_> = line.split(' ').collect();
    let errors = complained(&tollgate(&world, &args, "").await, 64);
    has(&errors, "does not end in");
}

/// Appends a line to a journal in Redis.
async fn append(redis: &RedisServer, journal: &str, id: &str, fields: &BTreeMap<String, String>) {
    let mut command = vec!["XADD", journal, id];
    let fields = fields.iter();
    command.extend(fields.flat_map(|(name, value)| [name.as_str(), value]));
    let _: String = redis.ask(&command).await.unwrap();
}

/// Moves all journal lines of the account to an earlier time, as if they had been written at that time.
async fn date_back(redis: &RedisServer, account: &str, by_ms: u64) {
    let journal = format!("tg:{{{account}}}:j");
    let lines: Vec<(String, BTreeMap<String, String>)> =
        redis.ask(&["XRANGE", &journal, "-", "+"]).await.unwrap();
    let _: i64 = redis.ask(&["DEL", &journal]).await.unwrap();
    for (number, (_, mut fields)) in lines.into_iter().enumerate() {
        let at: u64 = fields["at"].parse().unwrap();
        fields.insert("at".into(), (at - by_ms).to_string());
        let id = format!("{}-{number}", at - by_ms);
        append(redis, &journal, &id, &fields).await;
        if let Some(call) = fields.get("number") {
            let receipt = format!("tg:{{{account}}}:r:{call}");
            let _: String = redis.ask(&["SET", &receipt, &id]).await.unwrap();
        }
    }
}

/// Appends `-changed` to the id of the account's first entry in Redis, as an attacker might do. Returns the changed id.
async fn change_line(redis: &RedisServer, account: &str) -> String {
    let journal = format!("tg:{{{account}}}:j");
    let lines: Vec<(String, BTreeMap<String, String>)> =
        redis.ask(&["XRANGE", &journal, "-", "+"]).await.unwrap();
    let _: i64 = redis.ask(&["DEL", &journal]).await.unwrap();
    let mut changed = String::new();
    for (place, mut fields) in lines {
        if changed.is_empty() && fields["kind"] == "entry" {
            changed = format!("{}-changed", fields["id"]);
            fields.insert("id".into(), changed.clone());
        }
        append(redis, &journal, &place, &fields).await;
    }
    changed
}

async fn rename(world: &World, name: &str) {
    let path = "/admin/v1/accounts/acme";
    let renamed = Some(json!({ "name": name }));
    let answer = world.admin(Method::PATCH, path, renamed).await;
    assert!(answer.status.is_success(), "{answer:?}");
}

fn said_sha256(made: &[u8]) -> String {
    let made: Value = serde_json::from_slice(made).unwrap();
    made["sha256"].as_str().unwrap().to_owned()
}

/// Runs `statement --verify` without a file. Returns its JSON.
async fn verified(world: &World, month: &str, code: i32) -> Value {
    let args = ["statement", "acme", "--month", month, "--verify", "--json"];
    let returned = reported(&tollgate(world, &args, "").await, code);
    serde_json::from_str(&returned).unwrap_or_default()
}

async fn verify(world: &World, month: &str, file: &Path, code: i32) -> String {
    let file = file.to_str().unwrap();
    let args = ["statement", "acme", "--month", month, "--verify", file];
    reported(&tollgate(world, &args, "").await, code)
}

/// Deletes the sums of calls. On a slow machine the calls may have been summed before a test changes their lines, and a
/// statement does not read summed lines.
async fn forget_sums(world: &World) {
    world
        .admin(Method::POST, "/admin/v1/usage/rebuild", None)
        .await
        .expect(200);
}

/// The statement of a closed month stays the same after later changes. If names or the books were changed, the
/// verification reports it.
#[tokio::test]
async fn closed_month_does_not_change_and_later_edits_of_its_data_are_reported() {
    const FORTY_DAYS_MS: u64 = 40 * 86_400_000;
    let redis = RedisServer::start().await;
    let (world, key) = Setup::default()
        .ledger(&redis.url())
        .edit("[tariff]", SELLER)
        .start_with_key()
        .await;
    busy(&world, &key).await;
    date_back(&redis, "acme", FORTY_DAYS_MS).await;
    let lines: Vec<(String, BTreeMap<String, String>)> = redis
        .ask(&["XRANGE", "tg:{acme}:j", "-", "+"])
        .await
        .unwrap();
    let months: Vec<String> = lines
        .iter()
        .map(|(_, fields)| {
            let days = fields["at"].parse::<i64>().unwrap() / 86_400_000;
            let (year, month, _) = tollgate_layers::calendar::date_of_day(days);
            format!("{year:04}-{month:02}")
        })
        .collect();
    let month = months.last().unwrap();
    if months.iter().any(|other| other != month) {
        return; // A month ended between two of them.
    }

    let returned = statement(&world, month).await;
    adds_up(&returned);
    assert_eq!(returned["closed"], true, "{returned}");
    assert_eq!(returned["payments"]["rub"], "1000.00");
    let mut stored = Vec::new();
    for format in ["json", "csv", "html", "pdf"] {
        let file = world.dir.path().join(format!("kept.{format}"));
        let made = ask(&world, month, format).await.body;
        std::fs::write(&file, &made).unwrap();
        stored.push((format, file, made));
    }
    // Later calls, payments and corrections belong to later months.
    busy_again(&world, &key).await;
    for (format, file, made) in &stored {
        assert_eq!(ask(&world, month, format).await.body, *made);
        let returned = verify(&world, month, file, 0).await;
        assert!(
            returned.starts_with("ok: the file is statement acme-"),
            "{returned}"
        );
    }
    typed(&world, "audit", 0).await;

    // A statement file that was edited fails the verification.
    let (_, csv, made) = &stored[1];
    let text = String::from_utf8(made.to_vec()).unwrap();
    std::fs::write(
        csv,
        text.replace(
            "payments,,,,,,1000.000000,1000.00,",
            "payments,,,,,,1000.000000,9.00,",
        ),
    )
    .unwrap();
    let returned = verify(&world, month, csv, 1).await;
    has(&returned, "contains the sha256 of statement");
    has(
        &returned,
        "- payments,,,,,,1000.000000,9.00,\n+ payments,,,,,,1000.000000,1000.00,\n",
    );
    std::fs::write(csv, made).unwrap();

    // The statement keeps the name that the customer had in the statement's month, even if the customer was renamed
    // later.
    rename(&world, "ООО «Акме»").await;
    for (format, file, made) in &stored {
        assert_eq!(ask(&world, month, format).await.body, *made);
        verify(&world, month, file, 0).await;
    }
    let returned = verified(&world, month, 0).await;
    let sha256 = returned["sha256"].as_str().unwrap();
    assert_eq!(returned["same_sha256"], true);
    assert_eq!(said_sha256(&stored[0].2), sha256);

    // This file is a statement from another gateway, with another name of the customer.
    let (_, json, made) = &stored[0];
    let text = String::from_utf8(made.to_vec()).unwrap();
    let other = text.replace("\"name\":\"acme\"", "\"name\":\"Acme\"");
    std::fs::write(json, other.replace(sha256, "5eed")).unwrap();
    let returned = verify(&world, month, json, 1).await;
    has(&returned, "the file is not statement");
    has(&returned, "- /name: \"Acme\"\n");
    has(&returned, "+ /name: \"acme\"\n");

    // This simulates the manipulation of a journal line.
    let spoiled = change_line(&redis, "acme").await;
    forget_sums(&world).await;
    let answer = ask(&world, month, "json").await;
    assert_eq!(answer.status, 409, "{spoiled}: {answer:?}");
    let message = answer.json()["error"]["message"].to_string();
    has(&message, sha256);
    has(&message, "no longer yields a statement");
    verified(&world, month, 1).await;
    verify(&world, month, &stored[1].1, 1).await;
    let lines: Vec<(String, BTreeMap<String, String>)> = redis
        .ask(&["XRANGE", "tg:{acme}:j", "-", "+"])
        .await
        .unwrap();

    // This simulates the removal of a journal line.
    let (line, _) = lines
        .iter()
        .find(|(_, fields)| fields["kind"] == "call")
        .unwrap();
    let _: i64 = redis.ask(&["XDEL", "tg:{acme}:j", line]).await.unwrap();
    forget_sums(&world).await;
    let answer = ask(&world, month, "json").await;
    assert_eq!(
        answer.status, 409,
        "a journal that is not whole: {answer:?}"
    );
    let message = answer.json()["error"]["message"].to_string();
    assert!(message.contains(sha256), "{message}");

    // The current month has not ended, so its statement cannot be verified.
    let open = typed(&world, "usage --by day --format csv", 0).await;
    let today = month_of(open.lines().last().unwrap());
    let args = [
        "statement",
        "acme",
        "--month",
        &today,
        "--verify",
        csv.to_str().unwrap(),
    ];
    complained(&tollgate(&world, &args, "").await, 64);
}

/// Returns the statement of a month in every format.
async fn all_forms(world: &World, month: &str) -> Vec<Bytes> {
    let mut forms = Vec::new();
    for format in ["json", "csv", "html", "pdf"] {
        let answer = ask(world, month, format).await.expect(200);
        forms.push(answer.body);
    }
    forms
}

/// In every store, and in a copy of the ledger, the statement uses the names that were stored with it, not the current
/// names.
#[tokio::test]
async fn closed_month_keeps_its_first_customer_and_seller_names() {
    let (server, folder) = (RedisServer::start().await, folder());
    let path = |name: &str| format!("sqlite:{}", folder.path().join(name).display());
    let (file, copy) = (path("books.db"), path("copy.db"));
    let start = async |ledger: &str, seller: &str| {
        let setup = Setup::default().ledger(ledger).edit("[tariff]", seller);
        setup.start().await
    };
    let other = "[seller]\nname = \"ИП Василёк\"\nvat_note = \"НДС не облагается\"\nutc_offset = \"+03:00\"\n[tariff]";
    for ledger in ["memory:", &file, &server.url()] {
        let world = start(ledger, SELLER).await;
        world.key().await;
        let first = all_forms(&world, "2020-01").await;
        rename(&world, "ООО «Акме»").await;
        assert_eq!(all_forms(&world, "2020-01").await, first, "{ledger}");
        let returned = verified(&world, "2020-01", 0).await;
        assert_eq!(returned["sha256"], *said_sha256(&first[0]));
        let later = statement(&world, "2020-02").await;
        assert_eq!(later["name"], "ООО «Акме»", "{ledger}");
        world.gateway.drain().await.unwrap();
        if ledger == "memory:" {
            continue;
        }
        let mut ledgers = vec![ledger];
        if ledger == file {
            copied(&file, &copy).await;
            ledgers.push(&copy);
        }
        for ledger in ledgers {
            let world = start(ledger, other).await;
            assert_eq!(all_forms(&world, "2020-01").await, first, "{ledger}");
            let later = statement(&world, "2020-03").await;
            assert_eq!(later["seller"]["name"], "ИП Василёк");
            assert_eq!(later["utc_offset"], "+03:00");
            world.gateway.drain().await.unwrap();
        }
    }
}

/// Copies all books with `tollgate ledger copy`.
async fn copied(from: &str, to: &str) {
    let mut command = std::process::Command::new(TOLLGATE);
    command.args(["ledger", "copy", "--from", from, "--to", to]);
    let output = tokio::task::spawn_blocking(move || command.output().unwrap());
    reported(&output.await.unwrap(), 0);
}

/// Two gateways with different seller settings receive the first requests for a statement at the same time.
#[tokio::test]
async fn statement_has_the_same_hash_on_all_gateways() {
    let server = RedisServer::start().await;
    let mut gateways = Vec::new();
    for seller in [
        SELLER,
        "[seller]\nname = \"ИП Василёк\"\nutc_offset = \"-05:00\"\n[tariff]",
    ] {
        let setup = Setup::default().ledger(&server.url());
        gateways.push(setup.edit("[tariff]", seller).start().await);
    }
    gateways[0].key().await;
    let months: Vec<String> = (1..=12).map(|month| format!("2021-{month:02}")).collect();
    for month in &months {
        let requested = (0..6).map(|turn| statement(&gateways[turn % 2], month));
        let made = futures_util::future::join_all(requested).await;
        for other in &made {
            assert_eq!(other, &made[0], "{month}");
        }
    }
}

async fn busy_again(world: &World, key: &Key) {
    for op in BOTH {
        op.call(world, key, &op.body("Привет")).await;
    }
    correct(world, "c-2", "7").await;
    world.settled(key).await;
}
