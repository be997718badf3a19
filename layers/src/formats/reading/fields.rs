//! The table that decides what happens to each field of a body, in each format. docs/fields.md shows it.
//!
//! A vendor may also read fields of other formats, and a proxy of several vendors reads many of them. So a field that
//! requests something without a price is rejected in every format, under each name that vendors give it. A field that
//! is not in the table is forwarded unchanged.

use super::{
    cache::CACHE_OPTIONS,
    json::{At, Count, Object, Off, OnlyDefault, Refused, Shape, folds_to},
};
use crate::error::{Error, Problem};

/// The kind of body: a column of [`FIELDS`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Of {
    Chat,
    Messages,
    Responses,
    Embeddings,
}

/// How the gateway treats a field: reads it, forwards it or refuses it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fate {
    /// The format's own parser reads the field, because the field decides the call or its price.
    Read,
    /// The field is forwarded unchanged, and counted as input.
    Passed,
    /// The field is rejected, unless its value is null, false or an empty array.
    Refused,
    /// The field is rejected, unless it has one of these values, which do not change the price.
    Only(&'static [&'static str]),
    /// The field is rejected if its number is above 1.
    One,
    /// The field is rejected, unless its value is null or false.
    Off,
    /// The field is rejected, because it names a conversation that the vendor stores.
    Thread,
    /// The field is rejected, because it names state that is stored between calls.
    State,
    /// The field is rejected, unless its value is null or false. The error text then names state that is stored between
    /// calls.
    StateOff,
    /// The field is read because it requests a cache lifetime, which has a price.
    CacheOptions,
    /// The field may contain only fields that the table forwards, because some proxies move its fields into the body.
    Extra,
}

use Fate::{CacheOptions, Extra, Off as False, One, Only, Passed, Read, Refused as Bought, State};

const STANDARD: Fate = Only(&["standard"]);
const GLOBAL: Fate = Only(&["global", "not_available"]);
const TEXT: Fate = Only(&["text"]);

/// The fields, each with its treatment in Chat Completions, Messages, Responses and embeddings bodies.
#[rustfmt::skip]
const FIELDS: &[(&str, [Fate; 4])] = &[
    ("model", [Read; 4]),
    ("messages", [Read, Read, Passed, Bought]),
    ("system", [Passed, Read, Passed, Passed]),
    ("input", [Passed, Passed, Read, Read]),
    ("instructions", [Passed, Passed, Read, Passed]),
    ("max_tokens", [Read, Read, Passed, Passed]),
    ("max_completion_tokens", [Read, Passed, Passed, Passed]),
    ("max_output_tokens", [Passed, Passed, Read, Passed]),
    ("n", [Read, One, One, Passed]),
    ("stream", [Read; 4]),
    ("stream_options", [Read, Passed, Passed, Passed]),
    ("tools", [Read, Read, Read, Passed]),
    ("tool_choice", [Passed, Passed, Read, Passed]),
    ("include", [Passed, Passed, Read, Passed]),
    ("store", [Passed, Passed, Read, Passed]),
    ("client_metadata", [Passed, Passed, Read, Passed]),
    ("reasoning", [Passed, Passed, Read, Passed]),
    ("context_management", [Passed, Read, State, Passed]),
    ("service_tier", [Read; 4]),
    ("speed", [STANDARD, Read, STANDARD, STANDARD]),
    ("inference_geo", [GLOBAL, Read, GLOBAL, GLOBAL]),
    ("modalities", [Read, TEXT, TEXT, TEXT]),
    ("audio", [Read, Bought, Bought, Bought]),
    ("cache_control", [Read, Read, Read, Passed]),
    ("prompt_cache_options", [CacheOptions, CacheOptions, CacheOptions, Passed]),
    ("extra_body", [Extra; 4]),
    // The following fields select another model, more responses, or features that vendors bill at other rates.
    ("anthropic_beta", [Bought; 4]),
    ("best_of", [Bought; 4]),
    ("betas", [Bought; 4]),
    ("cache_control_injection_points", [Bought; 4]),
    ("compaction", [Bought; 4]),
    ("container", [Bought; 4]),
    ("enable_search", [Bought; 4]),
    ("fallback_credit_token", [Bought; 4]),
    ("fallbacks", [Bought; 4]),
    ("mcp_servers", [Bought; 4]),
    ("models", [Bought; 4]),
    ("plugins", [Bought; 4]),
    ("preset", [Bought; 4]),
    ("provider", [Bought; 4]),
    ("route", [Bought; 4]),
    ("search_parameters", [Bought; 4]),
    ("web_search_options", [Bought; 4]),
    // The following fields name state that the vendor stores, whose size the gateway cannot determine.
    ("background", [False, False, Fate::StateOff, False]),
    ("prewarm", [False; 4]),
    ("conversation", [Passed, Passed, State, Passed]),
    ("previous_message_id", [Passed, Bought, Passed, Passed]),
    ("previous_response_id", [Bought, Bought, State, Bought]),
    ("prompt", [Passed, Passed, State, Passed]),
    ("thread", [Fate::Thread, Fate::Thread, Passed, Passed]),
];

/// The fields that allow the vendor to leave out turns of a long conversation.
const SHORTENING: [&str; 2] = ["transforms", "truncation"];

/// Returns how many fields of the format may occur only once, which is all fields except those that are forwarded.
pub(crate) const fn count(of: Of) -> usize {
    let (mut count, mut row) = (0, 0);
    while row < FIELDS.len() {
        if !matches!(FIELDS[row].1[of as usize], Passed) {
            count += 1;
        }
        row += 1;
    }
    count
}

/// Returns the names of the fields of the format that may occur only once.
pub(crate) const fn names<const COUNT: usize>(of: Of) -> [&'static str; COUNT] {
    let (mut names, mut found, mut row) = ([""; COUNT], 0, 0);
    while row < FIELDS.len() {
        let (name, fates) = FIELDS[row];
        if !matches!(fates[of as usize], Passed) {
            names[found] = name;
            found += 1;
        }
        row += 1;
    }
    names
}

/// Reads a field that the format's own parser does not read, as the table defines.
///
/// # Errors
/// [`Error::Invalid`] if the table rejects the value.
pub(crate) fn read(of: Of, key: &str, object: &mut Object<'_, '_>) -> Result<(), Error> {
    let row = FIELDS.iter().find(|(name, _)| *name == key);
    match row.map_or(Passed, |(_, fates)| fates[of as usize]) {
        Read | Passed => {
            if SHORTENING.contains(&key) {
                object.at.cx.shortens();
            }
            object.weigh_field(key)
        }
        Bought => object.field(key, OnlyDefault::of(&[])),
        Only(words) => object.field(key, OnlyDefault::of(words)),
        One => object.field(key, Count { max: 1 }).map(drop),
        False => object.field(key, Off(Problem::Unsupported)),
        Fate::StateOff => object.field(key, Off(Problem::StateUnsupported)),
        State => object.field(key, Refused(Problem::StateUnsupported)),
        Fate::Thread => {
            let place = OnlyDefault {
                allowed: &[],
                otherwise: Problem::ThreadUnsupported,
            };
            object.field(key, place)
        }
        CacheOptions => object.weigh_and_read(key, CACHE_OPTIONS),
        Extra => object.weigh_and_read(key, ExtraBody(of)),
    }
}

/// Reads the body's field `extra_body`. SDKs have an argument of this name, but they do not send it as a field.
#[derive(Clone, Copy, Debug)]
struct ExtraBody(Of);

impl Shape for ExtraBody {
    type Value = ();
    const EXPECTED: &'static str = "object";
    const NULL: Option<Self::Value> = Some(());

    fn object(self, at: At<'_>, mut object: Object<'_, '_>) -> Result<(), Error> {
        while let Some(key) = object.next_key()? {
            let is_passed = |(name, fates): &(&str, [Fate; 4])| {
                fates[self.0 as usize] == Passed || !folds_to(&key, name)
            };
            if !FIELDS.iter().all(is_passed) {
                return Err(at.refuse_field(&key, Problem::Unsupported));
            }
            object.weigh_field(&key)?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::{fmt::Write, path::PathBuf};

    use bytes::Bytes;
    use serde_json::{Value, json};

    use super::*;
    use crate::{call::Operation, parse};

    const FORMATS: [(Of, Operation); 4] = [
        (Of::Chat, Operation::Chat),
        (Of::Messages, Operation::Messages),
        (Of::Responses, Operation::Responses),
        (Of::Embeddings, Operation::Embeddings),
    ];

    /// The fields that vendors document for these formats and that change neither the call nor its price.
    const PASSED: [(Of, &[&str]); 4] = [
        (
            Of::Chat,
            &[
                "chat_template_kwargs",
                "enable_thinking",
                "frequency_penalty",
                "function_call",
                "functions",
                "include_reasoning",
                "logit_bias",
                "logprobs",
                "metadata",
                "min_p",
                "parallel_tool_calls",
                "prediction",
                "presence_penalty",
                "prompt_cache_key",
                "prompt_cache_retention",
                "reasoning",
                "reasoning_effort",
                "repetition_penalty",
                "response_format",
                "safety_identifier",
                "seed",
                "stop",
                "store",
                "temperature",
                "thinking",
                "thinking_budget",
                "tool_choice",
                "top_k",
                "top_logprobs",
                "top_p",
                "transforms",
                "user",
                "verbosity",
            ],
        ),
        (
            Of::Messages,
            &[
                "diagnostics",
                "metadata",
                "output_config",
                "output_format",
                "stop_sequences",
                "temperature",
                "thinking",
                "tool_choice",
                "top_k",
                "top_p",
            ],
        ),
        (
            Of::Responses,
            &[
                "max_tool_calls",
                "metadata",
                "parallel_tool_calls",
                "prompt_cache_key",
                "prompt_cache_retention",
                "safety_identifier",
                "stream_options",
                "temperature",
                "text",
                "top_logprobs",
                "top_p",
                "truncation",
                "user",
            ],
        ),
        (
            Of::Embeddings,
            &[
                "dimensions",
                "encoding_format",
                "input_type",
                "task",
                "truncate",
                "user",
            ],
        ),
    ];

    /// Parses a small body that contains this field.
    fn with(operation: Operation, name: &str, value: &Value) -> Result<(), Error> {
        let mut body = match operation {
            Operation::Responses | Operation::Embeddings => json!({"model": "m", "input": "x"}),
            _ => {
                json!({"model": "m", "max_tokens": 1, "messages": [{"role": "user", "content": "x"}]})
            }
        };
        body[name] = value.clone();
        parse::call(operation, &Bytes::from(body.to_string()), 10).map(drop)
    }

    fn is_refused(read: Result<(), Error>, name: &str) -> bool {
        matches!(read, Err(Error::Invalid { field, .. }) if field.starts_with(name))
    }

    /// Returns a value by which the field requests something.
    fn wanted(name: &str) -> Value {
        match name {
            "background" | "prewarm" | "enable_search" => json!(true),
            "n" | "best_of" => json!(2),
            "provider" | "thread" | "audio" | "search_parameters" | "web_search_options" => {
                json!({"a": 1})
            }
            "models" | "fallbacks" | "plugins" | "mcp_servers" | "betas" | "anthropic_beta" => {
                json!(["a"])
            }
            _ => json!("a"),
        }
    }

    #[test]
    fn field_that_the_field_table_refuses_is_refused_by_name_in_each_format() {
        for (of, operation) in FORMATS {
            for (name, fates) in FIELDS {
                let fate = fates[of as usize];
                let read = |value: &Value| with(operation, name, value);
                let what = format!("{of:?} {name} {fate:?}");
                let harmless: Vec<Value> = match fate {
                    Read => continue,
                    Passed => {
                        assert!(read(&wanted(name)).is_ok(), "{what}");
                        continue;
                    }
                    CacheOptions => vec![json!({"ttl": "30m"})],
                    Extra => vec![json!({"google": {"thinking_config": {}}})],
                    Only(words) => words.iter().map(|word| json!(word)).collect(),
                    One => vec![json!(1)],
                    False | Fate::StateOff => vec![json!(false)],
                    Bought => vec![json!(false), json!([])],
                    Fate::Thread | State => vec![],
                };
                for value in harmless.iter().chain([&Value::Null]) {
                    read(value).unwrap_or_else(|error| panic!("{what} {value}: {error}"));
                }
                if !matches!(fate, CacheOptions | Extra) {
                    assert!(is_refused(read(&wanted(name)), name), "{what}");
                }
            }
        }
    }

    #[test]
    fn field_that_the_field_table_passes_or_does_not_contain_is_forwarded() {
        for (of, names) in PASSED {
            let (_, operation) = FORMATS[of as usize];
            for name in names.iter().chain(&["some_new_field"]) {
                for value in [json!("a"), json!({"provider": 1}), json!([{"models": []}])] {
                    let read = with(operation, name, &value);
                    assert!(read.is_ok(), "{of:?} {name}: {read:?}");
                }
            }
        }
    }

    #[test]
    fn extra_body_with_a_field_that_is_refused_in_the_body_itself_is_refused() {
        for (of, operation) in FORMATS {
            for inner in ["provider", "model", "BETAS", "service_tier"] {
                let read = with(operation, "extra_body", &json!({inner: "a"}));
                let field = format!("extra_body.{inner}");
                assert!(is_refused(read, &field), "{of:?} {inner}");
            }
            let read = with(
                operation,
                "extra_body",
                &json!({"top_k": 5, "google": {"provider": 1}}),
            );
            assert!(read.is_ok(), "{of:?}: {read:?}");
        }
    }

    /// Returns the table as `docs/fields.md` shows it.
    fn page_table() -> String {
        let mut table = String::from(
            "| field | chat | messages | responses | embeddings |\n|---|---|---|---|---|\n",
        );
        for (name, fates) in FIELDS {
            write!(table, "| `{name}` |").unwrap();
            for fate in fates {
                match fate {
                    Read | CacheOptions => table.push_str(" read |"),
                    Passed => table.push_str(" passed |"),
                    Bought | State | Fate::Thread => table.push_str(" **refused** |"),
                    One => table.push_str(" only 1 |"),
                    False | Fate::StateOff => table.push_str(" only `false` |"),
                    Extra => table.push_str(" read inside |"),
                    Only(words) => {
                        let words: Vec<_> = words.iter().map(|word| format!("`{word}`")).collect();
                        write!(table, " only {} |", words.join(", ")).unwrap();
                    }
                }
            }
            table.push('\n');
        }
        for (of, names) in PASSED {
            let names: Vec<_> = names.iter().map(|name| format!("`{name}`")).collect();
            let names = names.join(", ");
            write!(
                table,
                "\n{of:?} fields that the gateway passes on purpose: {names}.\n"
            )
            .unwrap();
        }
        table
    }

    /// Compares `docs/fields.md` with the table. With `FIELDS_WRITE=1`, this test rewrites the page instead.
    #[test]
    fn documented_field_table_equals_the_table_in_the_code() {
        let package = PathBuf::from(env!("CARGO_MANIFEST_DIR"));
        // The published package does not contain the page, so this test does nothing there.
        if package.join("Cargo.toml.orig").exists() {
            return;
        }
        let file = package.join("../docs/fields.md");
        let page = std::fs::read_to_string(&file).unwrap();
        let begins = page.find("| field |").unwrap();
        let (head, shown) = page.split_at(begins);
        let table = page_table();
        if std::env::var_os("FIELDS_WRITE").is_some() {
            std::fs::write(&file, format!("{head}{table}")).unwrap();
        } else {
            assert!(shown == table, "run this test with FIELDS_WRITE=1");
        }
    }
}
