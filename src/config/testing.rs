//! Helpers for the tests of `config`: a small valid configuration file, and assertions about mistakes in changed copies
//! of it.

use std::cell::RefCell;

use serde_json::Value;

use super::{Config, ConfigErrors, check::Check, error::Errors, secret::Env};

pub(super) const EXAMPLE: &str = include_str!("../../deploy/tollgate.toml");

pub(super) const SMALL: &str = r#"
[admin]
key = "${ADMIN_KEY}"
[[rate.source]]
fixed = "90.50"
[[vendor]]
name = "v"
format = "chat"
url = "http://127.0.0.1:9/v1/"
key = "${VENDOR_KEY}"
[[model]]
id = "m"
family = "M"
usdt_mtok = { input = "0.25", cached_input = "0.025", output = "2.00", cache_write = "0.25" }
output_tokens_max = 128000
routes = [ { vendor = "v", model = "m-1" } ]
"#;

fn env(name: &str) -> Option<String> {
    let value = match name {
        "ADMIN_KEY" | "TOLLGATE_ADMIN_KEY" => "admin-7Kq2vW9xT4mZ8rB3",
        "VENDOR_KEY" | "OPENAI_API_KEY" | "ANTHROPIC_API_KEY" => "sk-vendor-secret",
        "SHORT_KEY" => "0123456789abcde",
        "LEDGER_URL" => "redis://:hunter2@db:6379/0",
        "PROXY_URL" => "http://user:hunter2@proxy:3128",
        "WEBHOOK_SECRET" => "whsec_MDEyMzQ1Njc4OWFiY2RlZmdoaWprbG1ub3BxcnN0dXY=",
        "WEBHOOK_SECRET_2" => "whsec_dnV0c3JxcG9ubWxramloZ2ZlZGNiYTk4NzY1NDMyMTA=",
        "SMTP_URL" => "smtps://me:hunter2@mail.example:465",
        "SMTP_PLAIN_URL" => "smtp://me:hunter2@mail.example",
        "BOT_TOKEN" => "123456:AAbbCCddEEffGGhh",
        "BOT_TOKEN_2" => "123456:hhGGffEEddCCbbAA",
        _ => return None,
    };
    Some(value.to_owned())
}

pub(super) fn parse(text: &str) -> Result<Config, ConfigErrors> {
    Config::parse(text, &env)
}

/// Checks a configuration that is given as JSON.
pub(super) fn check(file: Value) -> Result<Config, ConfigErrors> {
    let raw = serde_json::from_value(file).map_err(|problem| {
        let mut errors = Errors::default();
        errors.add("", problem.to_string());
        errors.finish(|_| None)
    })?;
    let files = RefCell::default();
    let mut check = Check {
        errors: Errors::default(),
        warnings: Errors::default(),
        env: Env::new(&env, &files),
    };
    let config = check.config(raw).filter(|_| check.errors.is_empty());
    config.ok_or_else(|| check.errors.finish(|_| None))
}

/// Returns `SMALL` with the text `from` replaced by `to`.
pub(super) fn changed(from: &str, to: &str) -> String {
    assert!(SMALL.contains(from), "{from}");
    SMALL.replacen(from, to, 1)
}

/// Returns the rows of a table. A line is a row, and ` | ` separates its cells. `\n` in a cell means a line break.
pub(crate) fn rows<const N: usize>(table: &str) -> Vec<[&'static str; N]> {
    let lines = table.lines().filter(|line| !line.trim().is_empty());
    lines
        .map(|line| {
            let cells = line.split('|');
            let cells = cells.map(|cell| &*cell.trim().replace("\\n", "\n").leak());
            let cells: Vec<_> = cells.collect();
            cells.try_into().unwrap_or_else(|_| panic!("{line}"))
        })
        .collect()
}

/// Asserts for each row that `SMALL` is refused after a replacement. A row has the text to replace (if it is empty, the
/// new text is inserted before the file), the new text, the path of the reported field, and words of the reported
/// message.
pub(super) fn assert_mistakes(table: &str) {
    for [from, to, path, words] in rows(table) {
        assert_mistake(from, to, path, words);
    }
}

/// Asserts that `SMALL` with `from` replaced by `to` is refused because of the field `path`, with a message that
/// contains `words` and no secret.
pub(super) fn assert_mistake(from: &str, to: &str, path: &str, words: &str) {
    let errors = parse(&changed(from, to)).expect_err(to);
    let found = errors.iter().find(|error| error.path == path);
    let found = found.unwrap_or_else(|| panic!("{to}: no {path} in\n{errors}"));
    assert!(found.problem.contains(words), "{to}: {found}");
    assert!(found.line.is_some(), "{to}: {found}");
    let shown = format!("{errors} {errors:?}");
    for secret in ["hunter2", "0123456789abcdef", "sk-vendor-secret"] {
        assert!(!shown.contains(secret), "{shown}");
    }
}
