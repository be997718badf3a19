//! Compares the gateway's translations of requests by real tools with stored translations. Each request is in a file
//! `fixtures/golden/DIRECTION/NAME.in.json`, and its translation in `NAME.out.json`.
//!
//! With `UPDATE_GOLDEN=1`, the test overwrites the stored translations. Check every difference afterwards.

use std::{fs, path::Path};

use serde_json::Value;
use tollgate_layers::{
    call::Format,
    model::{Dialect, Thinking},
    translate::{
        self,
        wire::{CacheCx, RequestCx},
    },
};

/// The output maximum that the gateway sets if a request contains none.
const OUTPUT_TOKENS: u64 = 4000;

#[test]
fn chat_requests_are_translated_to_the_stored_messages_requests() {
    golden("chat_to_messages", Format::Chat, Format::Messages);
}

#[test]
fn messages_requests_are_translated_to_the_stored_chat_requests() {
    golden("messages_to_chat", Format::Messages, Format::Chat);
}

fn golden(direction: &str, caller: Format, vendor: Format) {
    let dir = Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("tests/gateway/fixtures/golden")
        .join(direction);
    let mut names: Vec<String> = fs::read_dir(&dir)
        .unwrap()
        .filter_map(|entry| {
            let name = entry.unwrap().file_name().into_string().unwrap();
            Some(name.strip_suffix(".in.json")?.to_owned())
        })
        .collect();
    names.sort_unstable();
    assert!(names.len() >= 6, "{direction}: {names:?}");

    let update = std::env::var_os("UPDATE_GOLDEN").is_some();
    let mut problems = Vec::new();
    for name in names {
        let requested = fs::read(dir.join(format!("{name}.in.json"))).unwrap();
        let became = translated(&name, &requested, caller, vendor);
        let out = dir.join(format!("{name}.out.json"));
        if update {
            let mut pretty = serde_json::to_string_pretty(&became).unwrap();
            pretty.push('\n');
            fs::write(&out, pretty).unwrap();
            continue;
        }
        let expected = fs::read(&out)
            .ok()
            .map(|json| serde_json::from_slice::<Value>(&json).unwrap());
        if expected.as_ref() != Some(&became) {
            let why = match &expected {
                Some(expected) => differences(expected, &became),
                None => "there is no out file".to_owned(),
            };
            problems.push(format!("{direction}/{name}: {why}\ncame out: {became:#}"));
        }
    }
    assert!(problems.is_empty(), "{}", problems.join("\n\n"));
}

fn translated(name: &str, requested: &[u8], caller: Format, vendor: Format) -> Value {
    let fields: Value = serde_json::from_slice(requested).unwrap();
    let ceiling = ["max_completion_tokens", "max_tokens"]
        .iter()
        .find_map(|field| fields[field].as_u64());
    // The field with which the gateway requests thinking depends on the vendor's model.
    let dialect = Dialect::default().thinking(if name.contains("budget") {
        Thinking::Budget
    } else {
        Thinking::Effort
    });
    let cx = RequestCx {
        model: "vendor-model",
        output_tokens: ceiling.unwrap_or(OUTPUT_TOKENS),
        dialect: &dialect,
        cache: CacheCx::default(),
    };
    let became = translate::request(caller, vendor, requested, "v", &cx);
    let became = became.unwrap_or_else(|error| panic!("{name}: {error}"));
    serde_json::from_slice(&became).unwrap()
}

/// Returns the paths at which two values differ.
fn differences(expected: &Value, became: &Value) -> String {
    let mut found = Vec::new();
    differ("", expected, became, &mut found);
    found.join("\n")
}

fn differ(place: &str, expected: &Value, became: &Value, found: &mut Vec<String>) {
    match (expected, became) {
        (Value::Object(a), Value::Object(b)) => {
            let more = b.keys().filter(|name| !a.contains_key(*name));
            for name in a.keys().chain(more) {
                let place = format!("{place}/{name}");
                differ(&place, &expected[name], &became[name], found);
            }
        }
        (Value::Array(a), Value::Array(b)) if a.len() == b.len() => {
            for (index, (a, b)) in a.iter().zip(b).enumerate() {
                differ(&format!("{place}/{index}"), a, b, found);
            }
        }
        _ if expected == became => {}
        _ => found.push(format!("{place}: expected {expected}, became {became}")),
    }
}
