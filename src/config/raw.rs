//! The shape of the file, and nothing about what its values mean.
//!
//! Every field may be absent. So a field of the wrong shape can be taken out and the rest read
//! again, which is how all mistakes of shape are found and not only the first.
//!
//! Nothing here is `Debug`: a secret may stand where none should.

use std::ops::Range;

use serde::Deserialize;
use toml::{
    Spanned,
    de::{DeTable, DeValue, Deserializer},
};

use super::error::Errors;
use crate::similar::nearest;

/// `tollgate.toml`.
#[derive(Default, Deserialize)]
#[serde(default, deny_unknown_fields, expecting = "a table")]
pub(super) struct RawConfig {
    pub(super) listen: Option<String>,
    pub(super) service: Option<String>,
    pub(super) base_url: Option<String>,
    pub(super) language: Option<String>,
    pub(super) trusted_proxies: Vec<String>,
    pub(super) admin: Option<RawAdmin>,
    pub(super) ledger: RawLedger,
    pub(super) limits: RawLimits,
    pub(super) rate: RawRate,
    pub(super) tariff: RawTariff,
    pub(super) vendor: Vec<RawVendor>,
    pub(super) model: Vec<RawModel>,
}

/// `[admin]`
#[derive(Default, Deserialize)]
#[serde(default, deny_unknown_fields, expecting = "a table")]
pub(super) struct RawAdmin {
    pub(super) listen: Option<String>,
    pub(super) key: Option<String>,
}

/// `[ledger]`
#[derive(Default, Deserialize)]
#[serde(default, deny_unknown_fields, expecting = "a table")]
pub(super) struct RawLedger {
    pub(super) url: Option<String>,
    pub(super) hold: Option<String>,
    pub(super) image_tokens: Option<u64>,
    pub(super) document_tokens: Option<u64>,
    pub(super) hold_grace_seconds: Option<u64>,
    pub(super) outbox: Option<String>,
    pub(super) outbox_calls_max: Option<u64>,
    pub(super) outbox_age_max_seconds: Option<u64>,
}

/// `[limits]`
#[derive(Default, Deserialize)]
#[serde(default, deny_unknown_fields, expecting = "a table")]
pub(super) struct RawLimits {
    pub(super) catalog_requests_per_second: Option<u64>,
    pub(super) requests_per_second: Option<u64>,
    pub(super) unknown_keys_per_second: Option<u64>,
    pub(super) unknown_keys_burst: Option<u64>,
    pub(super) in_flight_max: Option<u64>,
    pub(super) body_bytes_max: Option<u64>,
    pub(super) body_bytes_in_flight_max: Option<u64>,
    pub(super) body_seconds: Option<u64>,
    pub(super) body_bytes_per_second_min: Option<u64>,
    pub(super) answer_bytes_max: Option<u64>,
    pub(super) messages_max: Option<u64>,
    pub(super) call_seconds: Option<u64>,
    pub(super) request_seconds: Option<u64>,
    pub(super) connections_max: Option<u64>,
    pub(super) connections_per_address_max: Option<u64>,
    pub(super) connection_age_seconds: Option<u64>,
    pub(super) first_byte_seconds: Option<u64>,
    pub(super) head_seconds: Option<u64>,
    pub(super) idle_seconds: Option<u64>,
    pub(super) write_seconds: Option<u64>,
    pub(super) uri_bytes_max: Option<u64>,
    pub(super) headers_max: Option<u64>,
    pub(super) head_bytes_max: Option<u64>,
    pub(super) h2_streams_max: Option<u64>,
    pub(super) h2_stream_window_bytes: Option<u64>,
    pub(super) h2_connection_window_bytes: Option<u64>,
    pub(super) h2_ping_seconds: Option<u64>,
    pub(super) h2_ping_timeout_seconds: Option<u64>,
    pub(super) drain_seconds: Option<u64>,
}

/// `[rate]`
#[derive(Default, Deserialize)]
#[serde(default, deny_unknown_fields, expecting = "a table")]
pub(super) struct RawRate {
    pub(super) max_age_seconds: Option<u64>,
    pub(super) refresh_seconds: Option<u64>,
    pub(super) step_max_percent: Option<String>,
    pub(super) source: Vec<RawSource>,
}

/// `[[rate.source]]`
#[derive(Default, Deserialize)]
#[serde(default, deny_unknown_fields, expecting = "a table")]
pub(super) struct RawSource {
    pub(super) fixed: Option<String>,
    pub(super) url: Option<String>,
    pub(super) select: Option<String>,
    pub(super) method: Option<String>,
    pub(super) body: Option<String>,
    pub(super) min: Option<String>,
    pub(super) max: Option<String>,
}

/// `[tariff]`
#[derive(Default, Deserialize)]
#[serde(default, deny_unknown_fields, expecting = "a table")]
pub(super) struct RawTariff {
    pub(super) sell_rate_multiplier: Option<String>,
}

/// `[[vendor]]`
#[derive(Default, Deserialize)]
#[serde(default, deny_unknown_fields, expecting = "a table")]
pub(super) struct RawVendor {
    pub(super) name: Option<String>,
    pub(super) format: Option<String>,
    pub(super) url: Option<String>,
    pub(super) key: Option<String>,
    pub(super) keys: Option<Vec<String>>,
    pub(super) on_disconnect: Option<String>,
    pub(super) betas_removed: Option<Vec<String>>,
    pub(super) proxy: Option<String>,
    pub(super) ca_file: Option<String>,
    pub(super) http2: Option<bool>,
    pub(super) connections_max: Option<u64>,
    pub(super) connect_seconds: Option<u64>,
    pub(super) first_byte_seconds: Option<u64>,
    pub(super) plain_seconds: Option<u64>,
    pub(super) head_seconds: Option<u64>,
    pub(super) idle_seconds: Option<u64>,
    pub(super) idle_connection_seconds: Option<u64>,
}

/// `[[model]]`
#[derive(Default, Deserialize)]
#[serde(default, deny_unknown_fields, expecting = "a table")]
pub(super) struct RawModel {
    pub(super) id: Option<String>,
    pub(super) family: Option<String>,
    pub(super) usdt_mtok: Option<RawUsdt>,
    pub(super) output_tokens_max: Option<u64>,
    pub(super) output_tokens_min: Option<u64>,
    pub(super) input_tokens_max: Option<u64>,
    pub(super) output_field: Option<String>,
    pub(super) system_role: Option<String>,
    pub(super) reasoning_effort: Option<bool>,
    pub(super) sampling: Option<bool>,
    pub(super) thinking: Option<String>,
    pub(super) json_schema: Option<bool>,
    pub(super) sticky: Option<bool>,
    pub(super) routes: Vec<RawRoute>,
}

/// `model.usdt_mtok`
#[derive(Default, Deserialize)]
#[serde(default, deny_unknown_fields, expecting = "a table")]
pub(super) struct RawUsdt {
    pub(super) input: Option<String>,
    pub(super) cached_input: Option<String>,
    pub(super) output: Option<String>,
    pub(super) cache_write: Option<String>,
}

/// `model.routes[]`
#[derive(Default, Deserialize)]
#[serde(default, deny_unknown_fields, expecting = "a table")]
pub(super) struct RawRoute {
    pub(super) vendor: Option<String>,
    pub(super) model: Option<String>,
    pub(super) weight: Option<u64>,
    pub(super) priority: Option<u64>,
    pub(super) output_field: Option<String>,
    pub(super) system_role: Option<String>,
    pub(super) reasoning_effort: Option<bool>,
    pub(super) sampling: Option<bool>,
    pub(super) thinking: Option<String>,
    pub(super) json_schema: Option<bool>,
}

/// The switches of a dialect, of a model or a route: `serde(flatten)` would let unknown fields pass.
pub(super) struct RawDialect<'a> {
    pub(super) output_field: Option<&'a str>,
    pub(super) system_role: Option<&'a str>,
    pub(super) reasoning_effort: Option<bool>,
    pub(super) sampling: Option<bool>,
    pub(super) thinking: Option<&'a str>,
    pub(super) json_schema: Option<bool>,
}

impl RawModel {
    pub(super) fn dialect(&self) -> RawDialect<'_> {
        RawDialect {
            output_field: self.output_field.as_deref(),
            system_role: self.system_role.as_deref(),
            reasoning_effort: self.reasoning_effort,
            sampling: self.sampling,
            thinking: self.thinking.as_deref(),
            json_schema: self.json_schema,
        }
    }
}

impl RawRoute {
    pub(super) fn dialect(&self) -> RawDialect<'_> {
        RawDialect {
            output_field: self.output_field.as_deref(),
            system_role: self.system_role.as_deref(),
            reasoning_effort: self.reasoning_effort,
            sampling: self.sampling,
            thinking: self.thinking.as_deref(),
            json_schema: self.json_schema,
        }
    }
}

/// A file that is TOML.
pub(super) struct Document<'t> {
    text: &'t str,
    root: Spanned<DeTable<'t>>,
}

impl<'t> Document<'t> {
    /// Parses `text`, or notes each mistake of syntax.
    pub(super) fn parse(text: &'t str, errors: &mut Errors) -> Option<Self> {
        let (root, mistakes) = DeTable::parse_recoverable(text);
        for mistake in &mistakes {
            let start = mistake.span().map_or(0, |span| span.start);
            // Not the error's own text: it quotes the line, and a secret may stand there.
            errors.add_at(
                line(text, start),
                "",
                format!("not TOML: {}", mistake.message()),
            );
        }
        mistakes.is_empty().then_some(Self { text, root })
    }

    /// What the file says, less the fields whose shape is wrong: each of them is noted.
    pub(super) fn read(&self, errors: &mut Errors) -> RawConfig {
        let mut rest = self.root.clone();
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

    /// The line where a field stands, or what of its path is there.
    pub(super) fn line_of(&self, path: &str) -> Option<usize> {
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

/// Takes the entry out whose key stands at `span` or whose value, and no deeper one, covers it.
/// Returns its path.
fn take_out(table: &mut DeTable<'_>, span: &Range<usize>) -> Option<String> {
    let mut culprit = None;
    for (key, value) in table.iter_mut() {
        let name = key.get_ref();
        let place = value.span();
        let deeper = match value.get_mut() {
            DeValue::Table(inner) => take_out(inner, span).map(|path| format!("{name}.{path}")),
            DeValue::Array(items) => {
                items
                    .iter_mut()
                    .enumerate()
                    .find_map(|(index, item)| match item.get_mut() {
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

/// serde's words without the value that stands in the file, which may be a secret.
fn plain(message: &str) -> String {
    let message = message.trim();
    if let Some(unknown) = message.strip_prefix("unknown field ") {
        return unknown_field(unknown);
    }
    let Some((found, expected)) = message
        .strip_prefix("invalid type: ")
        .and_then(|rest| rest.rsplit_once(", expected "))
    else {
        return message.to_owned();
    };
    let (kind, advice) = match found.split(' ').next().unwrap_or_default() {
        "floating" => ("a number", "; put it in quotes, like \"0.25\""),
        "integer" => ("a number", "; put it in quotes"),
        "string" => ("text", "; take the quotes away"),
        "boolean" => ("true or false", ""),
        "map" => ("a table", ""),
        "sequence" => ("a list", ""),
        other => (other, ""),
    };
    let expected = match expected {
        "a string" => "text",
        "u64" => "a whole number, 0 or more",
        "a boolean" => "true or false",
        "a sequence" => "a list",
        other => other,
    };
    let advice = if expected == "text" || kind == "text" && expected.starts_with("a whole") {
        advice
    } else {
        ""
    };
    format!("must be {expected}, found {kind}{advice}")
}

/// serde's ``a`, expected one of `b`, `c``, or "there are no fields" in place of the list.
fn unknown_field(said: &str) -> String {
    let mut words = said.split('`').skip(1).step_by(2);
    let (name, known) = (words.next().unwrap_or_default(), words.collect::<Vec<_>>());
    match nearest(name, known.iter().copied()) {
        Some(meant) => format!("unknown field; did you mean {meant}?"),
        None => format!("unknown field; there are {}", known.join(", ")),
    }
}

fn line(text: &str, position: usize) -> usize {
    1 + text
        .bytes()
        .take(position)
        .filter(|byte| *byte == b'\n')
        .count()
}
