//! Translates the fields of a messages request, such as limits, tools and settings. `turns` translates the
//! conversation.

use std::borrow::Cow;

use bytes::Bytes;
use serde_json::value::RawValue;

use super::{
    text::{Json, literal, made, optional, shortened, string},
    turns,
};
use crate::{
    call::Format,
    error::{Error, Problem},
    model::Dialect,
    path::Path,
    translate::{
        formats::chat::body::{Body, Function, ResponseFormat, Tool, choose},
        wire::{Object, RequestCx, Value},
    },
};

/// Fields that are translated, or that are read only to refuse them with a reason.
const MAPPED: [&str; 14] = [
    "model",
    "max_tokens",
    "messages",
    "system",
    "stop_sequences",
    "stream",
    "temperature",
    "top_p",
    "tools",
    "tool_choice",
    "thinking",
    "output_config",
    "output_format",
    "metadata",
];

/// Fields that are left out: they affect how a messages vendor works, bills or caches, but not the answer. `parse` has
/// already refused values that could raise the price.
const DROPPED: [&str; 14] = [
    "top_k",
    "cache_control",
    "context_management",
    "compaction",
    "service_tier",
    "speed",
    "inference_geo",
    "diagnostics",
    "user_profile_id",
    "container",
    "mcp_servers",
    "fallbacks",
    "thread",
    "previous_message_id",
];

/// The largest number of stop sequences that chat vendors accept.
const STOPS_MAX: usize = 4;
/// The strictest limit on the length of `user` among chat vendors.
const USER_CHARS_MAX: usize = 64;

/// Translates the body of a messages request to the body of a chat request, for the vendor of this name. Puts the state
/// that this vendor needs back, which the caller returns in capsules, into the messages.
///
/// # Errors
/// [`Error::Invalid`], which names a field that has the wrong type or that the chat format cannot express.
pub fn request(body: &[u8], vendor: &str, cx: &RequestCx<'_>) -> Result<Bytes, Error> {
    let raw: &RawValue = serde_json::from_slice(body).map_err(|error| {
        let place = format!("{}:{}", error.line(), error.column());
        Error::invalid("", Problem::NotJson(place))
    })?;
    let path = Path::Root;
    let fields = Value { path, raw }.object()?;
    every_field_is_known(&fields)?;
    let dialect = cx.dialect;
    let tools = tools(&fields)?;
    let (tool_choice, parallel_tool_calls) = tool_choice(&fields, &tools)?;
    let stream = match fields.get("stream")? {
        Some(flag) => flag.flag()?,
        None => false,
    };
    let role = dialect.system_role.unwrap_or_default();
    let chat = Body {
        stop: stop(&fields)?,
        temperature: cx.sampling(&fields, "temperature")?,
        top_p: cx.sampling(&fields, "top_p")?,
        tools,
        tool_choice,
        parallel_tool_calls,
        reasoning_effort: effort(&fields)?
            .filter(|_| dialect.reasoning_effort)
            .map(Cow::Borrowed),
        response_format: schema(&fields, dialect)?
            .map(|schema| ResponseFormat::schema(None, None, schema, true)),
        user: user(&fields)?,
        prompt_cache_key: cx.cache_key(&fields, Format::Chat)?,
        ..Body::new(cx, turns::messages(&fields, vendor, role)?, stream)
    };
    Ok(chat.json(body.len()))
}

/// Returns whether the request enables thinking and does not omit it from the answer.
#[must_use]
pub fn thinking_asked(body: &[u8]) -> bool {
    let asked = || {
        let raw: &RawValue = serde_json::from_slice(body).ok()?;
        let path = Path::Root;
        let fields = Value { path, raw }.object().ok()?;
        let thinking = fields.get("thinking").ok()??.object().ok()?;
        let kind = thinking.get("type").ok()??.string().ok()?;
        let display = match thinking.get("display").ok()? {
            Some(display) => display.string().ok()?,
            None => Cow::Borrowed(""),
        };
        Some(kind != "disabled" && display != "omitted")
    };
    asked().unwrap_or(false)
}

/// Refuses fields that are unknown here: leaving one out silently could change the answer.
pub(in crate::translate) fn every_field_is_known(body: &Object<'_, '_>) -> Result<(), Error> {
    for (name, value) in &body.fields.0 {
        let known = MAPPED.contains(&&**name) || DROPPED.contains(&&**name);
        if !known && value.get() != "null" {
            return Err(body.refuse(name, Problem::NotTranslated));
        }
    }
    Ok(())
}

fn stop<'a>(body: &Object<'a, '_>) -> Result<Option<&'a RawValue>, Error> {
    let Some(stops) = body.get("stop_sequences")? else {
        return Ok(None);
    };
    let list = stops.array()?;
    if list.len() > STOPS_MAX {
        return Err(stops.refuse(Problem::AboveMax(STOPS_MAX as u64)));
    }
    for (index, raw) in list.iter().copied().enumerate() {
        let path = Path::Index(&stops.path, index);
        literal(&Value { path, raw })?;
    }
    Ok((!list.is_empty()).then_some(stops.raw))
}

fn tools<'a>(body: &Object<'a, '_>) -> Result<Vec<Tool<'a>>, Error> {
    let Some(tools) = body.get("tools")? else {
        return Ok(Vec::new());
    };
    let list = tools.array()?.into_iter().enumerate();
    list.map(|(index, raw)| {
        let path = Path::Index(&tools.path, index);
        tool(&Value { path, raw }.object()?)
    })
    .collect()
}

fn tool<'a>(tool: &Object<'a, '_>) -> Result<Tool<'a>, Error> {
    // Only models of the messages format were trained on the typed tools (`bash_…`, `computer_…`) and their arguments.
    if let Some(kind) = tool.get("type")?
        && kind.string()? != "custom"
    {
        return Err(kind.refuse(Problem::NotTranslated));
    }
    let strict = match tool.get("strict")? {
        Some(flag) => Some(flag.flag()?),
        None => None,
    };
    let function = Function {
        name: shortened(Cow::Borrowed(literal(&tool.need("name")?)?)),
        description: optional(tool, "description")?.map(Cow::Borrowed),
        parameters: parameters(tool)?,
        strict,
    };
    Ok(Tool::Function { function })
}

/// Returns the schema as it is written. If it has no `type` or `properties`, these are added at its beginning, because
/// some chat vendors require them.
pub(in crate::translate) fn parameters<'a>(tool: &Object<'a, '_>) -> Result<Json<'a>, Error> {
    const ASKED_FOR: [(&str, &str); 2] = [
        ("type", r#""type":"object""#),
        ("properties", r#""properties":{}"#),
    ];
    let Some(schema) = tool.get("input_schema")? else {
        return Ok(made(r#"{"type":"object","properties":{}}"#.to_owned()));
    };
    let fields = schema.object()?.fields.0;
    let has = |name: &str| fields.iter().any(|(field, _)| field == name);
    let missing: Vec<&str> = ASKED_FOR
        .into_iter()
        .filter(|asked| !has(asked.0))
        .map(|asked| asked.1)
        .collect();
    if missing.is_empty() {
        return Ok(Cow::Borrowed(schema.raw));
    }
    let comma = if fields.is_empty() { "" } else { "," };
    let rest = &schema.raw.get()[1..];
    Ok(made(format!("{{{}{comma}{rest}", missing.join(","))))
}

/// Returns which tool must be called, and whether calls may be parallel. Without tools, both are left out, because the
/// chat format does not allow them then.
fn tool_choice<'a>(
    body: &Object<'a, '_>,
    tools: &[Tool<'_>],
) -> Result<(Option<Json<'a>>, Option<bool>), Error> {
    let Some(choice) = body.get("tool_choice")? else {
        return Ok((None, None));
    };
    let choice = choice.object()?;
    let chosen = match &*choice.need("type")?.string()? {
        "auto" => string("auto"),
        "none" => string("none"),
        "any" | "tool" if tools.is_empty() => {
            return Err(body.refuse("tool_choice", Problem::Contradicts("tools")));
        }
        "any" => string("required"),
        "tool" => {
            let name = shortened(Cow::Borrowed(literal(&choice.need("name")?)?));
            choose(&name)
        }
        _ => {
            return Err(choice.refuse("type", Problem::NotOneOf("auto, any, tool, none")));
        }
    };
    let one_at_a_time = match choice.get("disable_parallel_tool_use")? {
        Some(flag) => flag.flag()?,
        None => false,
    };
    if tools.is_empty() {
        return Ok((None, None));
    }
    Ok((Some(chosen), one_at_a_time.then_some(false)))
}

/// Returns the reasoning effort: the requested one, or one that is derived from the thinking budget.
pub(in crate::translate) fn effort(body: &Object<'_, '_>) -> Result<Option<&'static str>, Error> {
    const EFFORTS: [&str; 5] = ["low", "medium", "high", "xhigh", "max"];
    let mut asked = None;
    if let Some(config) = body.get("output_config")?
        && let Some(effort) = config.object()?.get("effort")?
    {
        let text = effort.string()?;
        asked = EFFORTS.into_iter().find(|known| *known == text);
        if asked.is_none() {
            let efforts = "low, medium, high, xhigh, max";
            return Err(effort.refuse(Problem::NotOneOf(efforts)));
        }
    }
    let Some(thinking) = body.get("thinking")? else {
        return Ok(asked);
    };
    let thinking = thinking.object()?;
    let kind = thinking.need("type")?;
    match &*kind.string()? {
        "enabled" if asked.is_none() => {
            Ok(Some(match thinking.need("budget_tokens")?.count()? {
                0..4_096 => "low",
                4_096..16_384 => "medium",
                _ => "high",
            }))
        }
        "enabled" | "adaptive" | "between_tools" => Ok(asked),
        // Few chat models accept the effort `none`, so the field is left out.
        "disabled" => Ok(None),
        _ => Err(kind.refuse(Problem::NotOneOf("enabled, adaptive, disabled"))),
    }
}

/// Returns the schema that the answer must follow, if the request has one.
pub(in crate::translate) fn schema<'a>(
    body: &Object<'a, '_>,
    dialect: &Dialect,
) -> Result<Option<&'a RawValue>, Error> {
    let config = match body.get("output_config")? {
        Some(config) => Some(config.object()?),
        None => None,
    };
    let mut format = match &config {
        Some(config) => config.get("format")?,
        None => None,
    };
    if format.is_none() {
        // During the beta of structured outputs, the field had this name.
        format = body.get("output_format")?;
    }
    let Some(format) = format else {
        return Ok(None);
    };
    if !dialect.json_schema {
        return Err(format.refuse(Problem::Unsupported));
    }
    let format = format.object()?;
    let kind = format.need("type")?;
    if kind.string()? != "json_schema" {
        return Err(kind.refuse(Problem::NotOneOf("json_schema")));
    }
    let schema = format.need("schema")?;
    if !schema.raw.get().starts_with('{') {
        return Err(schema.wrong_type("object"));
    }
    Ok(Some(schema.raw))
}

/// Returns the id of the end user. If it is longer than vendors accept, it is left out, because a truncated id could be
/// that of another user.
pub(in crate::translate) fn user<'a>(body: &Object<'a, '_>) -> Result<Option<&'a RawValue>, Error> {
    let Some(metadata) = body.get("metadata")? else {
        return Ok(None);
    };
    let metadata = metadata.object()?;
    let Some(id) = metadata.get("user_id")? else {
        return Ok(None);
    };
    let chars = id.string()?.chars().count();
    Ok((1..=USER_CHARS_MAX).contains(&chars).then_some(id.raw))
}

#[cfg(test)]
mod tests;
