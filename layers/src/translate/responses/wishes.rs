//! Reads the settings of a responses request: all fields except the conversation and the tools.

use std::borrow::Cow;

use serde_json::value::RawValue;

use crate::{
    error::{Error, Problem},
    model::Dialect,
    path::Path,
    translate::{
        messages::text::{literal, optional},
        wire::{Object, Value},
    },
};

/// Fields that are translated. Any field that is neither here nor in [`DROPPED`] is refused, so that nothing is lost
/// silently.
const READ: [&str; 22] = [
    "model",
    "input",
    "instructions",
    "max_output_tokens",
    "stream",
    "temperature",
    "top_p",
    "tools",
    "tool_choice",
    "parallel_tool_calls",
    "text",
    "reasoning",
    "include",
    "top_logprobs",
    "user",
    "safety_identifier",
    "metadata",
    "prompt_cache_key",
    "prompt_cache_options",
    "cache_control",
    "max_tool_calls",
    "truncation",
];

/// Fields without a counterpart that are left out, because the caller cannot notice their loss in the answer. `parse`
/// has already refused values that store something or raise the price.
const DROPPED: [&str; 14] = [
    "stream_options",
    "image",
    "access_programs",
    "client_metadata",
    "prompt_cache_retention",
    "moderation",
    "service_tier",
    "store",
    "background",
    "previous_response_id",
    "conversation",
    "prompt",
    "context_management",
    "prewarm",
];

const EFFORTS: [&str; 7] = ["none", "minimal", "low", "medium", "high", "xhigh", "max"];
const EFFORT_NAMES: &str = "none, minimal, low, medium, high, xhigh, max";

/// Returns the fields of a request; refuses unknown fields.
pub(super) fn body(raw: &RawValue) -> Result<Object<'_, 'static>, Error> {
    let path = Path::Root;
    let fields = Value { path, raw }.object()?;
    for (name, value) in &fields.fields.0 {
        let known = READ.contains(&&**name) || DROPPED.contains(&&**name);
        if !known && value.get() != "null" {
            return Err(fields.refuse(name, Problem::NotTranslated));
        }
    }
    check_logprobs(&fields)?;
    Ok(fields)
}

/// Refuses a request for log probabilities, which the answer would not contain.
fn check_logprobs(fields: &Object<'_, '_>) -> Result<(), Error> {
    if let Some(top) = fields.get("top_logprobs")?
        && top.count()? > 0
    {
        return Err(top.refuse(Problem::NotTranslated));
    }
    if let Some(include) = fields.get("include")? {
        for (index, raw) in include.array()?.into_iter().enumerate() {
            if raw.get() == "\"message.output_text.logprobs\"" {
                let path = Path::Index(&include.path, index);
                return Err(path.refuse(Problem::NotTranslated));
            }
        }
    }
    Ok(())
}

/// Returns `reasoning.effort`, if its value is a known one.
pub(super) fn effort<'a>(fields: &Object<'a, '_>) -> Result<Option<Cow<'a, str>>, Error> {
    let Some(reasoning) = fields.get("reasoning")? else {
        return Ok(None);
    };
    let reasoning = reasoning.object()?;
    let Some(effort) = reasoning.get("effort")? else {
        return Ok(None);
    };
    let word = effort.string()?;
    if !EFFORTS.contains(&&*word) {
        return Err(effort.refuse(Problem::NotOneOf(EFFORT_NAMES)));
    }
    Ok(Some(word))
}

/// The format of the answer that `text.format` requires.
#[derive(Clone, Copy, Debug)]
pub(super) enum Format<'a> {
    Object,
    Schema {
        name: Option<&'a RawValue>,
        description: Option<&'a RawValue>,
        schema: &'a RawValue,
        strict: bool,
    },
}

pub(super) fn format<'a>(
    fields: &Object<'a, '_>,
    dialect: &Dialect,
) -> Result<Option<Format<'a>>, Error> {
    let Some(text) = fields.get("text")? else {
        return Ok(None);
    };
    let text = text.object()?;
    let Some(format) = text.get("format")? else {
        return Ok(None);
    };
    let format = format.object()?;
    let kind = format.need("type")?;
    match &*kind.string()? {
        "text" => Ok(None),
        "json_object" => Ok(Some(Format::Object)),
        "json_schema" if dialect.json_schema => {
            let schema = format.need("schema")?;
            if !schema.raw.get().starts_with('{') {
                return Err(schema.wrong_type("object"));
            }
            let strict = format
                .get("strict")?
                .map_or(Ok(false), |flag| flag.flag())?;
            Ok(Some(Format::Schema {
                name: optional(&format, "name")?,
                description: optional(&format, "description")?,
                schema: schema.raw,
                strict,
            }))
        }
        "json_schema" => Err(kind.refuse(Problem::NotTranslated)),
        _ => Err(kind.refuse(Problem::NotOneOf("text, json_object, json_schema"))),
    }
}

/// Returns `text.verbosity`, as it is written.
pub(super) fn verbosity<'a>(fields: &Object<'a, '_>) -> Result<Option<&'a RawValue>, Error> {
    match fields.get("text")? {
        None => Ok(None),
        Some(value) => text(&value.object()?, "verbosity"),
    }
}

/// Returns a string of the request, as it is written.
pub(super) fn text<'a>(fields: &Object<'a, '_>, name: &str) -> Result<Option<&'a RawValue>, Error> {
    let value = fields.get(name)?;
    value.map(|value| literal(&value)).transpose()
}

pub(super) fn stream(fields: &Object<'_, '_>) -> Result<bool, Error> {
    fields.get("stream")?.map_or(Ok(false), |flag| flag.flag())
}
