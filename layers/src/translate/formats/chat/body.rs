//! The body of a chat request to a vendor, to be serialized.

use std::borrow::Cow;

use bytes::{Bytes, BytesMut};
use serde::Serialize;
use serde_json::value::RawValue;

use crate::{
    model::OutputField,
    translate::{
        messages::{
            text::{Json, made, string},
            turns::Message,
        },
        wire::{RequestCx, StreamOptions, write_json},
    },
};

#[derive(Debug, Default, Serialize)]
pub(in crate::translate) struct Body<'a> {
    pub(in crate::translate) model: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(in crate::translate) max_completion_tokens: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(in crate::translate) max_tokens: Option<u64>,
    pub(in crate::translate) messages: Vec<Message<'a>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(in crate::translate) stop: Option<&'a RawValue>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(in crate::translate) temperature: Option<&'a RawValue>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(in crate::translate) top_p: Option<&'a RawValue>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(in crate::translate) tools: Vec<Tool<'a>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(in crate::translate) tool_choice: Option<Json<'a>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(in crate::translate) parallel_tool_calls: Option<bool>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(in crate::translate) reasoning_effort: Option<Cow<'a, str>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(in crate::translate) verbosity: Option<&'a RawValue>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(in crate::translate) response_format: Option<ResponseFormat<'a>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(in crate::translate) user: Option<&'a RawValue>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(in crate::translate) safety_identifier: Option<&'a RawValue>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(in crate::translate) prompt_cache_key: Option<Json<'a>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(in crate::translate) metadata: Option<&'a RawValue>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(in crate::translate) stream: Option<bool>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(in crate::translate) stream_options: Option<StreamOptions>,
}

impl<'a> Body<'a> {
    /// Creates a request with these messages and without settings.
    pub(in crate::translate) fn new(
        cx: &RequestCx<'a>,
        messages: Vec<Message<'a>>,
        stream: bool,
    ) -> Self {
        Self {
            model: cx.model,
            max_completion_tokens: cx.ceiling(OutputField::MaxCompletionTokens),
            max_tokens: cx.ceiling(OutputField::MaxTokens),
            messages,
            stream: stream.then_some(true),
            stream_options: StreamOptions::of(stream),
            ..Self::default()
        }
    }

    /// Returns the JSON of the request. `asked`: the length of the caller's request in bytes.
    pub(in crate::translate) fn json(&self, asked: usize) -> Bytes {
        let mut out = BytesMut::with_capacity(asked + asked / 8 + 256);
        write_json(&mut out, self);
        out.freeze()
    }
}

#[derive(Debug, Serialize)]
#[serde(tag = "type", rename_all = "lowercase")]
pub(in crate::translate) enum Tool<'a> {
    Function { function: Function<'a> },
}

#[derive(Debug, Serialize)]
pub(in crate::translate) struct Function<'a> {
    pub(in crate::translate) name: Json<'a>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(in crate::translate) description: Option<Json<'a>>,
    pub(in crate::translate) parameters: Json<'a>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(in crate::translate) strict: Option<bool>,
}

#[derive(Debug, Serialize)]
#[serde(tag = "type", rename_all = "snake_case")]
pub(in crate::translate) enum ResponseFormat<'a> {
    JsonObject,
    JsonSchema { json_schema: Schema<'a> },
}

#[derive(Debug, Serialize)]
pub(in crate::translate) struct Schema<'a> {
    name: Json<'a>,
    #[serde(skip_serializing_if = "Option::is_none")]
    description: Option<&'a RawValue>,
    schema: &'a RawValue,
    strict: bool,
}

impl<'a> ResponseFormat<'a> {
    /// Creates a format that requires this schema. The chat format requires a name, which other formats may omit.
    pub(in crate::translate) fn schema(
        name: Option<&'a RawValue>,
        description: Option<&'a RawValue>,
        schema: &'a RawValue,
        strict: bool,
    ) -> Self {
        Self::JsonSchema {
            json_schema: Schema {
                name: name.map_or_else(|| string("answer"), Cow::Borrowed),
                description,
                schema,
                strict,
            },
        }
    }
}

/// Returns the value of `tool_choice` for the tool of this name, which is a JSON string.
pub(in crate::translate) fn choose(name: &RawValue) -> Json<'static> {
    let name = name.get();
    made(format!(
        "{{\"type\":\"function\",\"function\":{{\"name\":{name}}}}}"
    ))
}
