//! Translates a chat request to a messages request.

use std::borrow::Cow;

use bytes::Bytes;
use serde_json::value::RawValue;

use super::{
    tools::Tools,
    turns::{Block, Conversation},
};
use crate::{
    error::{Error, Problem},
    model::{Dialect, Thinking},
    path::Path,
    translate::{
        formats::messages::body::{Parts, ThinkingField},
        wire::{Object, RequestCx, Value},
    },
};

/// Fields that are translated. Any field that is neither here nor in [`DROPPED`] is rejected, so that nothing is lost
/// silently.
const READ: &[&str] = &[
    "model",
    "messages",
    "max_tokens",
    "max_completion_tokens",
    "temperature",
    "top_p",
    "top_k",
    "n",
    "stop",
    "stream",
    "tools",
    "tool_choice",
    "parallel_tool_calls",
    "response_format",
    "reasoning_effort",
    "user",
    "safety_identifier",
    "logprobs",
];

/// Fields that control the vendor's cache; they are translated to cache marks.
pub(in crate::translate) const CACHE: &[&str] = &["cache_control", "prompt_cache_options"];

/// Fields without a counterpart that are left out, because the caller cannot notice their loss in the answer.
pub(in crate::translate) const DROPPED: &[&str] = &[
    "stream_options",
    "top_logprobs",
    "metadata",
    "store",
    "seed",
    "logit_bias",
    "frequency_penalty",
    "presence_penalty",
    "prediction",
    "modalities",
    "audio",
    "verbosity",
    "prompt_cache_key",
    "prompt_cache_retention",
    "moderation",
    // `parse` has already rejected these two, unless their value changes nothing.
    "service_tier",
    "speed",
    "web_search_options",
    "container",
    "mcp_servers",
    "previous_response_id",
    "thread",
];

/// For each value of `reasoning_effort`: the effort of the messages format, and the thinking budget in tokens for
/// models that accept a budget instead.
const EFFORTS: &[(&str, &str, u64)] = &[
    ("minimal", "low", 1024),
    ("low", "low", 2048),
    ("medium", "medium", 8192),
    ("high", "high", 16_384),
    ("xhigh", "xhigh", 32_768),
    ("max", "max", u64::MAX),
];
const EFFORT_NAMES: &str = "none, minimal, low, medium, high, xhigh, max";
/// The smallest thinking budget that vendors accept.
const BUDGET_MIN: u64 = 1024;

/// The instruction that replaces `response_format: json_object`, which the messages format does not have.
pub(in crate::translate) const JSON_OBJECT: &str = "Answer with one JSON object and nothing else.";

/// Translates the body of a chat request to the body of a messages request.
///
/// # Errors
/// [`Error::Invalid`], which names a field that has the wrong type or that the messages format cannot express.
pub fn request(body: &[u8], cx: &RequestCx<'_>) -> Result<Bytes, Error> {
    let raw: &RawValue = serde_json::from_slice(body).map_err(|error| {
        let place = format!("{}:{}", error.line(), error.column());
        Error::invalid("", Problem::NotJson(place))
    })?;
    let path = Path::Root;
    let fields = Value { path, raw }.object()?;
    check_names(&fields)?;
    check_choices(&fields)?;
    check_modalities(&fields)?;

    let mut conversation = Conversation::read(&fields.need("messages")?)?;
    let tools = Tools::read(&fields)?;
    let max_tokens = max_tokens(&fields, cx.output_tokens)?;
    let may_think = !tools.forced() && !conversation.within_a_turn();
    let reasoning = Reasoning::read(&fields, cx.dialect.thinking, max_tokens, may_think)?;
    let schema = response_format(&fields, cx.dialect, &mut conversation.system)?;
    let parts = Parts {
        max_tokens,
        conversation,
        tools: tools.list,
        tool_choice: tools.choice,
        stop_sequences: stop_sequences(&fields)?,
        reasoning,
        schema,
        stream: fields
            .get("stream")?
            .map_or(Ok(false), |stream| stream.flag())?,
    };
    parts.json(&fields, body.len(), cx)
}

fn check_names(fields: &Object<'_, '_>) -> Result<(), Error> {
    let mut names = fields
        .fields
        .0
        .iter()
        .filter(|(_, raw)| raw.get() != "null");
    let known = |name: &str| {
        [READ, CACHE, DROPPED]
            .iter()
            .any(|list| list.contains(&name))
    };
    match names.find(|(name, _)| !known(name)) {
        None => Ok(()),
        Some((name, _)) => Err(fields.refuse(name, Problem::Unsupported)),
    }
}

/// Refuses requests for kinds of output other than text, because messages vendors answer only in text.
fn check_modalities(fields: &Object<'_, '_>) -> Result<(), Error> {
    if let Some(audio) = fields.get("audio")? {
        return Err(audio.refuse(Problem::Unsupported));
    }
    let Some(modalities) = fields.get("modalities")? else {
        return Ok(());
    };
    let words = match modalities.string() {
        Ok(word) => vec![word],
        Err(_) => serde_json::from_str(modalities.raw.get()).unwrap_or_else(|_| vec!["".into()]),
    };
    match words.iter().all(|word| word == "text") {
        true => Ok(()),
        false => Err(modalities.refuse(Problem::Unsupported)),
    }
}

/// Refuses requests for several choices or for log probabilities, which the answer would not contain.
pub(in crate::translate) fn check_choices(fields: &Object<'_, '_>) -> Result<(), Error> {
    if let Some(n) = fields.get("n")?
        && n.count()? > 1
    {
        return Err(n.refuse(Problem::AboveMax(1)));
    }
    if let Some(logprobs) = fields.get("logprobs")?
        && logprobs.flag()?
    {
        return Err(logprobs.refuse(Problem::Unsupported));
    }
    Ok(())
}

/// Returns the maximum of output tokens, which the messages format requires: the requested one, or the one that the
/// hold pays for if that is lower.
fn max_tokens(fields: &Object<'_, '_>, paid_for: u64) -> Result<u64, Error> {
    let (old, new) = (
        count(fields, "max_tokens")?,
        count(fields, "max_completion_tokens")?,
    );
    if let (Some(old), Some(new)) = (old, new)
        && old != new
    {
        return Err(fields.refuse("max_tokens", Problem::Contradicts("max_completion_tokens")));
    }
    Ok(new.or(old).map_or(paid_for, |asked| asked.min(paid_for)))
}

fn count(fields: &Object<'_, '_>, name: &str) -> Result<Option<u64>, Error> {
    fields.get(name)?.map(|value| value.count()).transpose()
}

/// Returns a number: its text as it is written, and its value.
fn number<'a>(fields: &Object<'a, '_>, name: &str) -> Result<Option<(&'a RawValue, f64)>, Error> {
    let Some(value) = fields.get(name)? else {
        return Ok(None);
    };
    Ok(Some((value.raw, value.number()?)))
}

/// How much reasoning the caller requests.
#[derive(Default)]
pub(in crate::translate) struct Reasoning {
    pub(in crate::translate) thinking: Option<ThinkingField>,
    pub(in crate::translate) effort: Option<&'static str>,
}

impl Reasoning {
    fn read(
        fields: &Object<'_, '_>,
        model: Thinking,
        max_tokens: u64,
        may_think: bool,
    ) -> Result<Self, Error> {
        let Some(wish) = fields.get("reasoning_effort")? else {
            return Ok(Self::default());
        };
        Self::of(&wish.string()?, model, max_tokens, may_think)
            .ok_or_else(|| wish.refuse(Problem::NotOneOf(EFFORT_NAMES)))
    }

    /// Returns the reasoning for the name of an effort; `None` if the name is unknown.
    pub(in crate::translate) fn of(
        name: &str,
        model: Thinking,
        max_tokens: u64,
        may_think: bool,
    ) -> Option<Self> {
        let known = EFFORTS.iter().find(|(effort, ..)| *effort == name);
        let Some(&(_, effort, budget)) = known else {
            return match (name, model) {
                ("none", Thinking::None) => Some(Self::default()),
                ("none", _) => Some(Self {
                    thinking: Some(ThinkingField::Disabled),
                    effort: None,
                }),
                _ => None,
            };
        };
        Some(match model {
            Thinking::None => Self::default(),
            Thinking::Effort => Self {
                thinking: None,
                effort: Some(effort),
            },
            Thinking::Budget => {
                // Leaves at least half of the output tokens for the answer, unless the smallest budget is larger than
                // half.
                let budget_tokens = budget.min(max_tokens / 2).max(BUDGET_MIN);
                let room = may_think && budget_tokens < max_tokens;
                Self {
                    thinking: room.then_some(ThinkingField::Enabled { budget_tokens }),
                    effort: None,
                }
            }
        })
    }
}

/// Sampling parameters, which are forwarded as they are written if the model accepts them.
#[derive(Default)]
pub(in crate::translate) struct Sampling<'a> {
    pub(in crate::translate) temperature: Option<&'a RawValue>,
    pub(in crate::translate) top_p: Option<&'a RawValue>,
    pub(in crate::translate) top_k: Option<&'a RawValue>,
}

impl<'a> Sampling<'a> {
    pub(in crate::translate) fn read(
        fields: &Object<'a, '_>,
        dialect: &Dialect,
        thinks: bool,
    ) -> Result<Self, Error> {
        if !dialect.sampling {
            return Ok(Self::default());
        }
        let temperature = number(fields, "temperature")?;
        // In the messages format, temperatures above 1 have another meaning, so they are neither forwarded nor scaled.
        if temperature.is_some_and(|(_, temperature)| temperature > 1.0) {
            return Err(fields.refuse("temperature", Problem::AboveMax(1)));
        }
        let sampling = Self {
            temperature: temperature.map(|(raw, _)| raw),
            top_p: number(fields, "top_p")?.map(|(raw, _)| raw),
            top_k: number(fields, "top_k")?.map(|(raw, _)| raw),
        };
        // Vendors reject sampling parameters together with thinking, so thinking requests have none.
        Ok(if thinks { Self::default() } else { sampling })
    }
}

/// Reads `stop`: one string or several. Vendors reject sequences of blanks, so these are left out.
fn stop_sequences<'a>(fields: &Object<'a, '_>) -> Result<Vec<Cow<'a, str>>, Error> {
    let Some(stop) = fields.get("stop")? else {
        return Ok(Vec::new());
    };
    let mut sequences = Vec::new();
    if stop.raw.get().starts_with('[') {
        for (index, raw) in stop.array()?.into_iter().enumerate() {
            let path = Path::Index(&stop.path, index);
            sequences.push(Value { path, raw }.string()?);
        }
    } else {
        let one = stop.string();
        sequences.push(one.map_err(|_| stop.wrong_type("string or array of strings"))?);
    }
    sequences.retain(|sequence| !sequence.trim().is_empty());
    Ok(sequences)
}

/// Returns the schema that the answer must follow. A request for any JSON object is translated to an instruction.
fn response_format<'a>(
    fields: &Object<'a, '_>,
    dialect: &Dialect,
    system: &mut Vec<Block<'a>>,
) -> Result<Option<&'a RawValue>, Error> {
    let Some(format) = fields.get("response_format")? else {
        return Ok(None);
    };
    let format = format.object()?;
    let kind = format.need("type")?;
    match &*kind.string()? {
        "text" => Ok(None),
        "json_object" => {
            system.push(Block::Text {
                text: JSON_OBJECT.into(),
            });
            Ok(None)
        }
        "json_schema" if dialect.json_schema => {
            let named = format.need("json_schema")?.object()?;
            let schema = named.need("schema")?;
            if schema.raw.get().starts_with('{') {
                Ok(Some(schema.raw))
            } else {
                Err(schema.wrong_type("object"))
            }
        }
        "json_schema" => Err(kind.refuse(Problem::Unsupported)),
        _ => Err(kind.refuse(Problem::NotOneOf("text, json_object, json_schema"))),
    }
}

/// Returns the id of the end user, from the newer of the two fields if both are present.
pub(in crate::translate) fn user_id<'a>(
    fields: &Object<'a, '_>,
) -> Result<Option<Cow<'a, str>>, Error> {
    for name in ["safety_identifier", "user"] {
        if let Some(value) = fields.get(name)? {
            let id = value.string()?;
            if !id.is_empty() {
                return Ok(Some(id));
            }
        }
    }
    Ok(None)
}

#[cfg(test)]
mod tests;
