//! Every setting, as the schema describes it and the checks take it; and `docs/settings.md`, which is made of that.

use std::fmt::Write as _;

use serde_json::{Value, json};

use super::{OnReload, SETTINGS};
use crate::config::{ConfigError, schema, testing::check};

const HEAD: &str = r#"# Settings

Every setting of `tollgate.toml`, by table and in alphabetical order. How they go together, with examples, is told in
[`deploy/tollgate.toml`](../deploy/tollgate.toml); editors complete and check the file by
[its schema](../deploy/tollgate.schema.json); `tollgate check` says every mistake in it.

- A **default** of – is told by the sentence, where there is one; *must be given*: its table is a
  mistake without it.
- A **range** is what whole numbers may be, bounds included. Where one depends on other settings, it is the widest.
- **reload** is what SIGHUP, or a change of the file, does on a running gateway: what is new is in force at once, or
  after a restart; then the log says so (`needs_restart`).
- A secret is `"${NAME}"` of the environment or `"file:/path"`. Decimal numbers stand in quotes, as texts.

This page is made from the program: `SETTINGS_WRITE=1 cargo test --lib --all-features config::settings` writes it.
"#;

/// One setting.
pub(super) struct Setting {
    /// Its table, like `[[model.routes]]`; empty at the top.
    table: String,
    /// Like `model.routes.weight`.
    pub(super) path: String,
    /// In words.
    kind: &'static str,
    /// What it is without being given, where that is a value.
    pub(super) default: Option<Value>,
    /// What it is for.
    sentence: String,
}

/// All of them, in the schema's order.
pub(super) fn settings() -> Vec<Setting> {
    let mut found = Vec::new();
    of_table(&schema(), "", "", &mut found);
    found
}

fn of_table(table: &Value, path: &str, head: &str, found: &mut Vec<Setting>) {
    let fields = table["properties"].as_object().expect("a table has fields");
    let join = |name: &str| match path {
        "" => name.to_owned(),
        path => format!("{path}.{name}"),
    };
    for (name, field) in fields {
        if kind(field).is_none() {
            continue;
        }
        // A row is one line; a comment may be several.
        let described = field["description"].as_str().unwrap_or_default();
        let (sentence, default) = sentence_and_default(&described.replace('\n', " "));
        found.push(Setting {
            table: head.to_owned(),
            path: join(name),
            kind: kind(field).expect("it was found above"),
            default,
            sentence,
        });
    }
    for (name, field) in fields {
        let path = join(name);
        if !field["properties"].is_null() {
            of_table(field, &path, &format!("[{path}]"), found);
        } else if !field["items"]["properties"].is_null() {
            of_table(&field["items"], &path, &format!("[[{path}]]"), found);
        }
    }
}

/// `None` for a table of settings.
fn kind(field: &Value) -> Option<&'static str> {
    let of_tables = !field["properties"].is_null() || !field["items"]["properties"].is_null();
    match field["type"].as_str() {
        _ if of_tables => None,
        Some("string") => Some("text"),
        Some("integer") => Some("whole number"),
        Some("boolean") => Some("true or false"),
        Some("array") => Some("list of texts"),
        Some("object") => Some("table of texts"),
        other => {
            panic!("docs/settings.md has no word for the type {other:?}: give it one in page.rs")
        }
    }
}

/// What is behind the last semicolon is the default, where it is a value and not words.
fn sentence_and_default(described: &str) -> (String, Option<Value>) {
    let described = described.trim_end_matches('.');
    let parts = described.rsplit_once("; ");
    let default = parts.and_then(|(_, last)| serde_json::from_str(last).ok());
    match (parts, default) {
        (Some((sentence, _)), Some(default)) => (format!("{sentence}."), Some(default)),
        _ => (format!("{described}."), None),
    }
}

/// What a reload does with a setting: the row of it or of the nearest table around it.
pub(super) fn on_reload(path: &str) -> &'static (&'static str, OnReload) {
    let holds = |row: &str| {
        let rest = path.strip_prefix(row);
        rest.is_some_and(|rest| rest.is_empty() || rest.starts_with('.'))
    };
    let rows = SETTINGS.iter().filter(|(row, _)| holds(row));
    rows.max_by_key(|(row, _)| row.len()).unwrap_or_else(|| {
        panic!("{path} has no row in SETTINGS of src/config/settings/mod.rs: say what a reload does with it")
    })
}

/// What need not be given, though it must be in `base()`: where a setting's name ends so, and beside what.
const UNLESS: &[(&str, &str)] = &[
    ("rate.source.select", "with `url`"),
    ("vendor.format", "or `formats`"),
    ("vendor.key", "or `keys`"),
    ("model.output_tokens_max", "but of an embedding"),
    ("usdt_mtok.cached_input", "but of an embedding"),
    ("usdt_mtok.output", "but of an embedding"),
    ("usdt_mtok.cache_write", "but of an embedding"),
];

/// A file that has a value for all that must be there, and each table in it.
pub(super) fn base() -> Value {
    let prices = json!({
        "input": "1", "cached_input": "0.1", "output": "2", "cache_write": "1", "cache_write_1h": "2",
        "cache_write_12h": "3", "input_image": "1", "input_audio": "1", "output_audio": "2", "output_image": "2", "web_search_call": "0.01",
    });
    json!({
        "admin": {
            "key": "${ADMIN_KEY}",
            "oidc": {
                "issuer": "https://login.example",
                "client_id": "tollgate",
                "redirect_url": "https://console.example/console/oidc/back",
                "roles": { "admin": ["tollgate-admins"] },
            },
        },
        "traces": { "url": "http://127.0.0.1:4318/v1/traces" },
        "seller": { "name": "Acme" },
        "webhook": [{ "name": "w", "url": "https://hooks.example/", "secrets": ["${WEBHOOK_SECRET}"] }],
        "payments": {
            "yookassa": {
                "shop_id": "1", "secret_key": "${VENDOR_KEY}", "return_url": "https://pay.example/usage",
                "receipt_vat_code": 12, "receipt_email": "buh@example.com",
            },
            "cloudpayments": {
                "public_id": "1", "api_secret": "${VENDOR_KEY}", "return_url": "https://pay.example/usage",
            },
            "stripe": {
                "secret_key": "${VENDOR_KEY}", "webhook_secret": "${VENDOR_KEY}",
                "return_url": "https://pay.example/usage",
            },
        },
        "mail": [{ "name": "m", "server": "smtp://127.0.0.1:25", "from": "a@example.com", "to": ["b@example.com"] }],
        "telegram": [{ "name": "t", "token": "${BOT_TOKEN}", "chat": "@c" }],
        "rate": { "source": [{ "url": "https://rates.example/now", "select": "/rate" }] },
        "vendor": [{
            "name": "v", "format": "chat", "url": "http://127.0.0.1:9/v1", "key": "${VENDOR_KEY}",
        }],
        "model": [{
            "id": "m", "family": "M", "output_tokens_max": 1_000_000_000, "output_tokens_min": 1,
            "usdt_mtok": prices,
            "price_rules": [{ "above_input_tokens": 1000, "usdt_mtok": prices }],
            "routes": [{
                "vendor": "v", "model": "m-1", "cost_usdt_mtok": prices,
                "cost_rules": [{ "above_input_tokens": 1000, "usdt_mtok": prices }],
            }],
        }],
        "account_group": [{ "name": "g", "accounts": ["a-1"] }],
        "price_rule": [{
            "name": "r", "groups": ["g"], "models": ["m"], "sell_rate_multiplier": "1.1",
        }],
    })
}

/// The table that a setting is in, and its name there. Of several tables it is the first.
pub(super) fn place<'a>(file: &'a mut Value, path: &'a str) -> (&'a mut Value, &'a str) {
    let (tables, name) = path.rsplit_once('.').unwrap_or(("", path));
    let mut at = file;
    for table in tables.split('.').filter(|table| !table.is_empty()) {
        at = &mut at[table];
        if at.is_array() {
            at = &mut at[0];
        }
    }
    (at, name)
}

/// `base()` with one value given.
pub(super) fn given(path: &str, value: Value) -> Value {
    let mut file = base();
    let (table, name) = place(&mut file, path);
    table[name] = value;
    file
}

/// `base()` without one value.
pub(super) fn without(path: &str) -> Value {
    let mut file = base();
    let (table, name) = place(&mut file, path);
    match table.as_object_mut() {
        Some(table) => table.remove(name),
        // Its table is not in the file at all.
        None => return base(),
    };
    file
}

/// The mistake that a file has in a setting, if it has one there.
fn mistake(file: Value, path: &str) -> Option<ConfigError> {
    let mistakes = check(file).err()?;
    let found = mistakes
        .iter()
        .find(|error| error.path.replace("[0]", "") == path);
    found.cloned()
}

/// The least and the most that a whole number may be, by the words of the mistake.
pub(super) fn bounds(path: &str) -> Option<(u64, u64)> {
    let mistake = mistake(given(path, json!(i64::MAX)), path)?;
    let (least, most) = mistake
        .problem
        .strip_prefix("must be ")?
        .split_once(" to ")?;
    Some((least.parse().ok()?, most.parse().ok()?))
}

/// Whether its table, which may be empty, is a mistake without it.
fn is_required(path: &str) -> bool {
    let mut file = base();
    match place(&mut file, path) {
        (Value::Object(table), name) => drop(table.remove(name)),
        (table, _) => *table = json!({}),
    }
    mistake(file, path).is_some_and(|mistake| mistake.problem.starts_with("missing"))
}

/// What the page says of a setting without a default.
pub(super) fn need(path: &str) -> String {
    if !is_required(path) {
        return "–".to_owned();
    }
    let unless = UNLESS.iter().find(|(ending, _)| path.ends_with(ending));
    match unless {
        Some((_, unless)) => format!("must be given, {unless}"),
        None => "must be given".to_owned(),
    }
}

/// `docs/settings.md`.
pub(super) fn page() -> String {
    let mut page = HEAD.to_owned();
    let mut table = None;
    for setting in settings() {
        if table.as_ref() != Some(&setting.table) {
            let title = match setting.table.as_str() {
                "" => "At the top".to_owned(),
                table => format!("`{table}`"),
            };
            write!(
                page,
                "\n## {title}\n\n| setting | what it is | type | default | range | reload |\n|---|---|---|---|---|---|\n"
            )
            .expect("a String takes all");
            table = Some(setting.table.clone());
        }
        writeln!(page, "{}", line(&setting)).expect("a String takes all");
    }
    page
}

fn line(setting: &Setting) -> String {
    let Setting {
        path,
        kind,
        sentence,
        ..
    } = setting;
    let name = path.rsplit('.').next().unwrap_or(path);
    let default = match &setting.default {
        Some(value) => format!("`{value}`"),
        None => need(path),
    };
    let bounds = match *kind {
        "whole number" => bounds(path),
        _ => None,
    };
    let bounds = bounds.map_or("–".to_owned(), |(least, most)| {
        format!("{least} to {most}")
    });
    let reload = match on_reload(path).1 {
        OnReload::Taken => "at once",
        OnReload::Restart(_) => "**restart**",
        OnReload::Start => "at the next start",
    };
    let sentence = sentence.replace('|', "\\|").replace('<', "&lt;");
    format!("| `{name}` | {sentence} | {kind} | {default} | {bounds} | {reload} |")
}
