//! The configuration file as TOML. Reading the file reports all mistakes in the names and types of fields, not only the
//! first, and each with its line.
//!
//! No type here implements `Debug`, because an operator may have written a secret into a field that should not contain
//! one.

use std::ops::Range;

use serde::{Deserialize, de::DeserializeOwned};
use toml::{
    Spanned,
    de::{DeTable, DeValue, Deserializer},
};

use super::{
    error::{ConfigError, ConfigErrors, Errors},
    preset_merge::{self, Origins},
    presets,
    raw::RawConfig,
};
use crate::text::similar::nearest;

/// A configuration file with valid TOML syntax.
pub(super) struct Document<'t> {
    text: &'t str,
    root: Spanned<DeTable<'t>>,
    /// The values of the file, completed by the values of its presets for settings that the file does not have.
    merged: Spanned<DeTable<'t>>,
    origins: Origins,
}

impl<'t> Document<'t> {
    /// Parses `text`. If it is not valid TOML, records each syntax error and returns `None`.
    pub(super) fn parse(text: &'t str, errors: &mut Errors) -> Option<Self> {
        let (root, mistakes) = DeTable::parse_recoverable(text);
        for mistake in &mistakes {
            let start = mistake.span().map_or(0, |span| span.start);
            // The TOML parser's own message is not used: it quotes the line, which may contain a secret.
            errors.add_at(
                line(text, start),
                "",
                format!("not TOML: {}", mistake.message()),
            );
        }
        if !mistakes.is_empty() {
            return None;
        }
        let mut merged = root.clone();
        let origins = preset_merge::lay_under(merged.get_mut(), errors);
        Some(Self {
            text,
            root,
            merged,
            origins,
        })
    }

    /// Parses `text` like [`parse`](Self::parse), and ignores mistakes in the use of presets.
    ///
    /// # Errors
    /// Returns the syntax errors if the text is not valid TOML.
    pub(super) fn open(text: &'t str) -> Result<Self, ConfigErrors> {
        let mut errors = Errors::default();
        let document = Self::parse(text, &mut errors);
        document.ok_or_else(|| errors.finish(|_| None))
    }

    /// Returns the settings of the file. Each field of a wrong type is recorded as a mistake and omitted.
    pub(super) fn read(&self, errors: &mut Errors) -> RawConfig {
        let mut rest = self.merged.clone();
        loop {
            let mistake = match RawConfig::deserialize(Deserializer::from(rest.clone())) {
                Ok(raw) => return raw,
                Err(mistake) => mistake,
            };
            let span = mistake.span().unwrap_or_default();
            let path = take_out(rest.get_mut(), &span);
            let found = path.is_some();
            errors.add_at(
                line(self.text, span.start),
                path.unwrap_or_default(),
                plain(mistake.message()),
            );
            if !found {
                return RawConfig::default();
            }
        }
    }

    /// Returns the tables of the file, completed by the values of its presets. A value from a preset has an empty span.
    pub(super) fn merged(&self) -> &DeTable<'t> {
        self.merged.get_ref()
    }

    /// Returns the presets from which the file takes values.
    pub(super) fn presets(&self) -> Vec<&'static presets::Preset> {
        self.origins.presets()
    }

    /// Adds to each mistake the line in the file, and the name of the preset if the value comes from a preset.
    pub(super) fn locate(&self, mut errors: Errors) -> Vec<ConfigError> {
        errors.name_origins(|path| self.origins.preset_at(path));
        errors.list(|path| self.line_of(path))
    }

    /// Returns the line of the field at `path`. If the file does not have the field, returns the line of the deepest
    /// table on its path.
    fn line_of(&self, path: &str) -> Option<usize> {
        let mut table = self.root.get_ref();
        let mut start = None;
        for segment in path.split('.') {
            let (name, index) = match segment.split_once('[') {
                Some((name, index)) => (name, index.trim_end_matches(']').parse::<usize>().ok()),
                None => (segment, None),
            };
            let Some((key, mut value)) = table.get_key_value(name) else {
                break;
            };
            start = Some(key.span().start);
            if let Some(item) = index.and_then(|index| value.get_ref().as_array()?.get(index)) {
                start = Some(item.span().start);
                value = item;
            }
            let Some(inner) = value.get_ref().as_table() else {
                break;
            };
            table = inner;
        }
        start.map(|start| line(self.text, start))
    }
}

/// Deserializes a part of a configuration, completed by the values of presets. Does not check the values, and resolves
/// no secrets.
///
/// # Errors
/// Returns the mistakes in the TOML syntax, in the use of presets, and in the types of this part's fields.
pub(crate) fn read_part<T: DeserializeOwned>(text: &str) -> Result<T, String> {
    let mut errors = Errors::default();
    let document = Document::parse(text, &mut errors);
    let Some(document) = document.filter(|_| errors.is_empty()) else {
        return Err(errors.finish(|_| None).to_string().replace('\n', "; "));
    };
    T::deserialize(Deserializer::from(document.merged)).map_err(|mistake| {
        let start = mistake.span().map_or(0, |span| span.start);
        format!("line {}: {}", line(text, start), plain(mistake.message()))
    })
}

/// Removes the innermost entry whose key or value is at `span`, and returns the entry's path.
fn take_out(table: &mut DeTable<'_>, span: &Range<usize>) -> Option<String> {
    let mut culprit = None;
    for (key, value) in table.iter_mut() {
        let name = key.get_ref();
        let place = value.span();
        let deeper = match value.get_mut() {
            DeValue::Table(inner) => take_out(inner, span).map(|path| format!("{name}.{path}")),
            DeValue::Array(items) => {
                let mut items = items.iter_mut().enumerate();
                items.find_map(|(index, item)| match item.get_mut() {
                    DeValue::Table(inner) => {
                        take_out(inner, span).map(|path| format!("{name}[{index}].{path}"))
                    }
                    _ => None,
                })
            }
            _ => None,
        };
        if deeper.is_some() {
            return deeper;
        }
        if key.span() == *span || (place.start <= span.start && span.end <= place.end) {
            culprit = Some(name.to_string());
        }
    }
    let culprit = culprit?;
    table.remove(culprit.as_str());
    Some(culprit)
}

const WHOLE: &str = "a whole number, 0 or more";

/// Returns serde's message without the value that it quotes from the file, because the value may be a secret.
fn plain(message: &str) -> String {
    let message = message.trim();
    if let Some(unknown) = message.strip_prefix("unknown field ") {
        return unknown_field(unknown);
    }
    let wrong = message
        .strip_prefix("invalid type: ")
        .or_else(|| message.strip_prefix("invalid value: "));
    let Some((found, expected)) = wrong.and_then(|rest| rest.rsplit_once(", expected ")) else {
        return message.to_owned();
    };
    let kind = found.split(' ').next().unwrap_or_default();
    if expected == "u64" && matches!(kind, "floating" | "integer") {
        // A number in a numeric field is never a secret: the message may quote it.
        let number = found.split('`').nth(1).unwrap_or(found);
        return format!("must be {WHOLE}, found {number}");
    }
    let (kind, advice) = match kind {
        "floating" => ("a number", "; put it in quotes, like \"0.25\""),
        "integer" => ("a number", "; put it in quotes"),
        "string" => ("text", "; remove the quotes"),
        "boolean" => ("true or false", ""),
        "map" => ("a table", ""),
        "sequence" => ("a list", ""),
        other => (other, ""),
    };
    let expected = match expected {
        "a string" => "text",
        "u64" => WHOLE,
        "a boolean" => "true or false",
        "a sequence" => "a list",
        other => other,
    };
    let advice = if expected == "text" || kind == "text" && expected == WHOLE {
        advice
    } else {
        ""
    };
    format!("must be {expected}, found {kind}{advice}")
}

/// Turns serde's message about an unknown field into advice: the most similar known field, or the list of all known
/// fields.
fn unknown_field(reported: &str) -> String {
    let mut words = reported.split('`').skip(1).step_by(2);
    let (name, known) = (words.next().unwrap_or_default(), words.collect::<Vec<_>>());
    match nearest(name, known.iter().copied()) {
        Some(meant) => format!("unknown field; did you mean {meant}?"),
        None => format!(
            "unknown field; the fields of this table are {}",
            known.join(", ")
        ),
    }
}

fn line(text: &str, position: usize) -> usize {
    let before = text.bytes().take(position);
    1 + before.filter(|byte| *byte == b'\n').count()
}

#[cfg(test)]
mod tests {
    use crate::config::testing::{assert_mistakes, changed, parse};

    #[test]
    fn error_about_an_unknown_field_or_a_wrong_type_names_the_field() {
        assert_mistakes(
            r#"
             | listen = 8080 | listen | text
             | lisen = "127.0.0.1:80" | lisen | unknown field
             | trusted_proxies = [1] | trusted_proxies | text
             | [limits]\nin_flight_max = "9" | limits.in_flight_max | whole number
             | [limits]\nin_flight_max = 1.5 | limits.in_flight_max | whole number, 0 or more, found 1.5
             | [tariff]\nsell_rate_multiplier = 1.15 | tariff.sell_rate_multiplier | quotes
            key = "${VENDOR_KEY}" | key = 5 | vendor[0].key | text
            name = "v" | name = "v"\nhttp2 = "yes" | vendor[0].http2 | true or false
            name = "v" | name = "v"\nconnect_seconds = -3 | vendor[0].connect_seconds | must be a whole number, 0 or more, found -3
            input = "0.25" | input = 0.25 | model[0].usdt_mtok.input | quotes
            input = "0.25" | inputs = "0.25" | model[0].usdt_mtok.inputs | unknown field
             | [limits]\nin_fligt_max = 1 | limits.in_fligt_max | did you mean in_flight_max?
        "#,
        );
    }

    #[test]
    fn invalid_toml_is_refused_with_the_line_number_but_not_the_lines_text() {
        let errors = parse("listen = \"127.0.0.1:80\"\nkey = sk-literal oops\n").unwrap_err();
        let shown = errors.to_string();
        assert!(shown.starts_with("line 2: not TOML: "), "{shown}");
        assert!(!shown.contains("sk-literal"), "{shown}");
    }

    #[test]
    fn field_of_the_wrong_type_is_reported_once() {
        for (from, to, path) in [
            ("fixed = \"90.50\"", "fixed = 90.50", "rate.source[0].fixed"),
            ("fixed = \"90.50\"", "url = 5", "rate.source[0].url"),
            ("key = \"${VENDOR_KEY}\"", "keys = [1]", "vendor[0].keys"),
        ] {
            let errors = parse(&changed(from, to)).unwrap_err();
            let paths: Vec<_> = errors.iter().map(|error| error.path.as_str()).collect();
            assert_eq!(paths, [path], "{errors}");
        }
    }
}
