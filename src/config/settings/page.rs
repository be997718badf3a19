//! Renders `docs/settings.md`: names, types and descriptions from the JSON schema, ranges from the messages of the
//! checks.

use std::fmt::Write as _;

use serde_json::{Value, json};

use super::{OnReload, SETTINGS};
use crate::config::{ConfigError, schema, testing::check};

const HEAD: &str = r#"# Settings

Every setting of `tollgate.toml`, by table and in alphabetical order. [`deploy/tollgate.toml`](../deploy/tollgate.toml)
shows how settings work together, with examples. A text editor that supports JSON schemas can complete and check the
file by [its schema](../deploy/tollgate.schema.json). `tollgate check` reports every mistake in the file.

- The column **default** shows the value that applies if the setting is absent. A – means that there is no such value:
  the description explains after `Absent:` what happens then. Without `Absent:`, an absent setting is empty or not used.
- *must be given* in the column **default** means that the setting is required if its table is present. A preset can
  supply it too.
- The column **range** shows the smallest and the largest valid number. A decimal must be above 0. If the range depends
  on other settings, the column shows the widest range.
- The column **reload** shows when a running gateway applies a changed setting: *at once*, after a **restart**, or *at
  the next start*. The gateway checks the file for changes every `reload_poll_seconds`, and after SIGHUP. If the file has
  a mistake, the gateway applies no change at all.
- If a setting with **restart** changes, the gateway logs its name (`needs_restart`) and applies all other changes at
  once. A change to a setting with *at the next start* is not logged.
- A secret is written in one of two forms: `${NAME}` is the value of an environment variable, `file:/path` the content
  of a file. If the description requires a secret, any other form is invalid.
- Decimal numbers are written in quotes, as texts.

This page is generated from the code: `SETTINGS_WRITE=1 cargo test --lib --all-features config::settings` writes it.
"#;

/// A setting, as a row of the page.
pub(super) struct Setting {
    /// Header of the setting's table, for example `[[model.routes]]`. Empty for settings at the top level.
    table: String,
    /// Description of the setting's table. Empty for settings at the top level.
    about_table: String,
    /// Path of the setting from the top of the file, for example `model.routes.weight`.
    pub(super) path: String,
    /// Type of the setting's value as the page shows it, for example "whole number".
    kind: &'static str,
    /// Default of the setting. `None` if the setting is required, or if only the description states what its absence
    /// means.
    pub(super) default: Option<Value>,
    /// Description of the setting, without the default at its end.
    sentence: String,
}

/// Returns all settings in alphabetical order, each table before the tables in it.
pub(super) fn settings() -> Vec<Setting> {
    let mut found = Vec::new();
    of_table(&schema(), "", "", "", &mut found);
    found
}

fn of_table(table: &Value, path: &str, head: &str, about: &str, found: &mut Vec<Setting>) {
    let fields = table["properties"]
        .as_object()
        .expect("a table of settings has fields");
    let join = |name: &str| match path {
        "" => name.to_owned(),
        path => format!("{path}.{name}"),
    };
    for (name, field) in fields {
        if kind(field).is_none() {
            continue;
        }
        let (sentence, default) = sentence_and_default(&description(field));
        found.push(Setting {
            table: head.to_owned(),
            about_table: about.to_owned(),
            path: join(name),
            kind: kind(field).expect("the field has a type"),
            default,
            sentence,
        });
    }
    for (name, field) in fields {
        let (path, about) = (join(name), description(field));
        if !field["properties"].is_null() {
            of_table(field, &path, &format!("[{path}]"), &about, found);
        } else if !field["items"]["properties"].is_null() {
            of_table(
                &field["items"],
                &path,
                &format!("[[{path}]]"),
                &about,
                found,
            );
        }
    }
}

/// Returns the description of a setting in one line, because a row of a Markdown table is one line.
fn description(field: &Value) -> String {
    let described = field["description"].as_str().unwrap_or_default();
    described.replace('\n', " ")
}

/// Returns the type of a setting in words; `None` for a table of settings.
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

/// Splits a description into its sentences and the default: the JSON value after "Default: " at the end, if there is
/// one.
fn sentence_and_default(described: &str) -> (String, Option<Value>) {
    let described = described.trim_end_matches('.');
    let parts = described.rsplit_once(" Default: ");
    let default = parts.and_then(|(_, last)| serde_json::from_str(last).ok());
    match (parts, default) {
        (Some((sentence, _)), Some(default)) => (sentence.to_owned(), Some(default)),
        _ => (format!("{described}."), None),
    }
}

/// Returns the row of `SETTINGS` that decides what a reload does with a setting: the setting's own row, or the row of
/// the nearest table that contains the setting.
pub(super) fn on_reload(path: &str) -> &'static (&'static str, OnReload) {
    let holds = |row: &str| {
        let rest = path.strip_prefix(row);
        rest.is_some_and(|rest| rest.is_empty() || rest.starts_with('.'))
    };
    let rows = SETTINGS.iter().filter(|(row, _)| holds(row));
    rows.max_by_key(|(row, _)| row.len()).unwrap_or_else(|| {
        panic!("{path} has no row in SETTINGS of src/config/settings/mod.rs: add one with the effect of a reload")
    })
}

/// Settings of `base()` that are required except in one case. Each row has the end of the setting's path, and the
/// exception as the page shows it.
const UNLESS: &[(&str, &str)] = &[
    ("rate.source.select", "with `url`"),
    ("vendor.format", "or `formats`"),
    ("vendor.key", "or `keys`"),
    ("model.output_tokens_max", "except for embeddings"),
    ("usdt_mtok.cached_input", "except for embeddings"),
    ("usdt_mtok.output", "except for embeddings"),
    ("usdt_mtok.cache_write", "except for embeddings"),
];

/// Settings that are required only together with another setting, or unless another setting is given. Each row has the
/// setting's path, the condition as the page shows it, and the fields of the setting's table that create the condition.
const CASES: &[(&str, &str, &str)] = &[
    (
        "rate.source.fixed",
        "or `url`",
        r#"{ "url": null, "select": null }"#,
    ),
    ("rate.source.url", "or `fixed`", r#"{ "select": null }"#),
    ("price_rule.accounts", "or `groups`", r#"{ "groups": [] }"#),
    ("price_rule.groups", "or `accounts`", "{}"),
    ("price_rule.sell_rate_multiplier", "or `usdt_mtok`", "{}"),
    (
        "model.output_tokens_per_second_max",
        r#"with `hold = "growing"`"#,
        r#"{ "hold": "growing" }"#,
    ),
    (
        "payments.yookassa.receipt_email",
        "with `receipt_vat_code`",
        r#"{ "receipt_vat_code": 1 }"#,
    ),
    (
        "vendor.login.command",
        r#"with `kind = "command"`"#,
        r#"{ "kind": "command" }"#,
    ),
    (
        "vendor.login.url",
        r#"with `kind = "oauth"`"#,
        r#"{ "kind": "oauth", "basic": "${VENDOR_KEY}" }"#,
    ),
    (
        "vendor.login.basic",
        r#"with `kind = "oauth"`, unless `client_id` is given"#,
        r#"{ "kind": "oauth", "url": "https://login.example/token" }"#,
    ),
    (
        "vendor.login.client_id",
        r#"with `kind = "oauth"`, unless `basic` is given"#,
        r#"{ "kind": "oauth", "url": "https://login.example/token" }"#,
    ),
    (
        "vendor.login.client_secret",
        "with `client_id`",
        r#"{ "kind": "oauth", "url": "https://login.example/token", "client_id": "a" }"#,
    ),
    (
        "vendor.login.key_file",
        r#"with `kind = "service_account"`"#,
        r#"{ "kind": "service_account" }"#,
    ),
    (
        "vendor.login.region",
        r#"with `kind = "aws"`"#,
        r#"{ "kind": "aws" }"#,
    ),
    (
        "vendor.login.secret_access_key",
        "with `access_key_id`",
        r#"{ "kind": "aws", "region": "eu-west-1", "access_key_id": "AKIA1" }"#,
    ),
];

/// Returns a valid configuration file with every required setting and at least one entry of each table.
pub(super) fn base() -> Value {
    let prices = json!({
        "input": "1", "cached_input": "0.1", "output": "2", "cache_write": "1", "cache_write_1h": "2",
        "cache_write_12h": "3", "input_image": "1", "input_audio": "1", "output_audio": "2", "output_image": "2", "web_search_call": "0.01", "request_call": "0.001",
        "cached_input_audio": "1", "cached_input_image": "0.1", "output_reasoning": "3",
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
        "cabinet": { "server": "smtp://127.0.0.1:25", "from": "a@example.com" },
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

/// Returns the table that contains a setting, and the setting's name in that table. If a list of tables is on the path,
/// its first table is taken.
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

/// Returns `base()` with one setting replaced or added.
pub(super) fn given(path: &str, value: Value) -> Value {
    let mut file = base();
    let (table, name) = place(&mut file, path);
    table[name] = value;
    file
}

/// Returns `base()` without one setting.
pub(super) fn without(path: &str) -> Value {
    let mut file = base();
    let (table, name) = place(&mut file, path);
    match table.as_object_mut() {
        Some(table) => table.remove(name),
        // The file does not contain the table of the setting, so nothing is removed.
        None => return base(),
    };
    file
}

/// Returns the mistake reported for a setting, if there is one.
fn mistake(file: Value, path: &str) -> Option<ConfigError> {
    let mistakes = check(file).err()?;
    let found = mistakes
        .iter()
        .find(|error| error.path.replace("[0]", "") == path);
    found.cloned()
}

/// Returns the bounds of a setting that is a whole number, read from the message for a number that is too large.
pub(super) fn bounds(path: &str) -> Option<(u64, u64)> {
    let mistake = mistake(given(path, json!(i64::MAX)), path)?;
    let (least, most) = mistake
        .problem
        .strip_prefix("must be ")?
        .split_once(" to ")?;
    Some((least.parse().ok()?, most.parse().ok()?))
}

/// Returns the largest valid value of a setting that is a decimal, read from the message for a value that is too large.
fn decimal_max(path: &str) -> Option<String> {
    let mistake = mistake(given(path, json!("99999999999")), path)?;
    let most = mistake.problem.strip_prefix("must be at most ")?;
    Some(most.to_owned())
}

/// Returns whether a file without this setting, and with these other fields in its table, is invalid.
fn is_required_with(path: &str, fields: &str) -> bool {
    let mut file = without(path);
    let table = place(&mut file, path).0;
    let fields: Value = serde_json::from_str(fields).expect("CASES contains JSON");
    for (name, value) in fields.as_object().into_iter().flatten() {
        table[name] = value.clone();
    }
    check(file).is_err()
}

/// Returns whether a setting must be given if its table is present.
fn is_required(path: &str) -> bool {
    let mut file = base();
    match place(&mut file, path) {
        (Value::Object(table), name) => drop(table.remove(name)),
        (table, _) => *table = json!({}),
    }
    mistake(file, path).is_some_and(|mistake| mistake.problem.starts_with("missing"))
}

/// Returns what the page shows in the column "default" for a setting that has no default.
pub(super) fn need(path: &str) -> String {
    let case = CASES.iter().find(|(of, ..)| *of == path);
    if let Some((_, case, _)) = case.filter(|(.., fields)| is_required_with(path, fields)) {
        return format!("must be given, {case}");
    }
    if !is_required(path) {
        return "–".to_owned();
    }
    let unless = UNLESS.iter().find(|(ending, _)| path.ends_with(ending));
    match unless {
        Some((_, unless)) => format!("must be given, {unless}"),
        None => "must be given".to_owned(),
    }
}

/// Renders `docs/settings.md`.
pub(super) fn page() -> String {
    let mut page = HEAD.to_owned();
    let mut table = None;
    for setting in settings() {
        if table.as_ref() != Some(&setting.table) {
            let title = match setting.table.as_str() {
                "" => "At the top".to_owned(),
                table => format!("`{table}`"),
            };
            let about = match setting.about_table.as_str() {
                "" => String::new(),
                about => format!("{}\n\n", cell(about)),
            };
            write!(
                page,
                "\n## {title}\n\n{about}| setting | what it is | type | default | range | reload |\n|---|---|---|---|---|---|\n"
            )
            .expect("writing to a String cannot fail");
            table = Some(setting.table.clone());
        }
        writeln!(page, "{}", line(&setting)).expect("writing to a String cannot fail");
    }
    page
}

/// Returns the path of a setting in `base()` that has the same checks as the given setting. The prices of a
/// `[[price_rule]]` are checked like those of a model, and prices in rubles like prices in USDT.
fn checked_as(path: &str) -> String {
    let path = &path.replace("rub_mtok.", "usdt_mtok.");
    let prices = path.strip_prefix("price_rule.");
    let prices =
        prices.filter(|rest| rest.contains("usdt_mtok.") || rest.starts_with("price_rules."));
    prices.map_or_else(|| path.to_owned(), |rest| format!("model.{rest}"))
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
        None => need(&checked_as(path)),
    };
    let bounds = match *kind {
        "whole number" => {
            bounds(&checked_as(path)).map(|(least, most)| format!("{least} to {most}"))
        }
        "text" => decimal_max(&checked_as(path)).map(|most| format!("at most {most}")),
        _ => None,
    };
    let bounds = bounds.unwrap_or_else(|| "–".to_owned());
    let reload = match on_reload(path).1 {
        OnReload::Taken => "at once",
        OnReload::Restart(_) => "**restart**",
        OnReload::Start => "at the next start",
    };
    let sentence = cell(sentence);
    format!("| `{name}` | {sentence} | {kind} | {default} | {bounds} | {reload} |")
}

/// Escapes a text for a cell of a Markdown table, and turns "docs/events.md" into a link.
fn cell(text: &str) -> String {
    text.replace('|', "\\|")
        .replace('<', "&lt;")
        .replace("docs/events.md", "[docs/events.md](events.md#kinds)")
}
