//! The body of a chat request to a vendor, to be serialized.

use std::{borrow::Cow, mem};

use bytes::{Bytes, BytesMut};
use serde::Serialize;
use serde_json::value::RawValue;

use crate::{
    formats::{
        chat::state::{Field, Reasoning},
        text::{Json, inner, made, quoted, string},
        wire::{RequestCx, StreamOptions, write_json},
    },
    model::OutputField,
};

#[derive(Debug, Default, Serialize)]
pub(crate) struct Body<'a> {
    pub(crate) model: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) max_completion_tokens: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) max_tokens: Option<u64>,
    pub(crate) messages: Vec<Message<'a>>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(crate) stop: Vec<&'a RawValue>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) temperature: Option<&'a RawValue>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) top_p: Option<&'a RawValue>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(crate) tools: Vec<Tool<'a>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) tool_choice: Option<Json<'a>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) parallel_tool_calls: Option<bool>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) reasoning_effort: Option<Cow<'a, str>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) verbosity: Option<&'a RawValue>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) response_format: Option<ResponseFormat<'a>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) user: Option<&'a RawValue>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) safety_identifier: Option<&'a RawValue>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) prompt_cache_key: Option<Json<'a>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) metadata: Option<&'a RawValue>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) stream: Option<bool>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) stream_options: Option<StreamOptions>,
}

impl<'a> Body<'a> {
    /// Creates a request with these messages and without settings.
    pub(crate) fn new(cx: &RequestCx<'a>, messages: Vec<Message<'a>>, stream: bool) -> Self {
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
    pub(crate) fn json(&self, requested: usize) -> Bytes {
        let mut out = BytesMut::with_capacity(requested + requested / 8 + 256);
        write_json(&mut out, self);
        out.freeze()
    }
}

#[derive(Debug, Serialize)]
#[serde(tag = "type", rename_all = "lowercase")]
pub(crate) enum Tool<'a> {
    Function { function: Function<'a> },
}

#[derive(Debug, Serialize)]
pub(crate) struct Function<'a> {
    pub(crate) name: Json<'a>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) description: Option<Json<'a>>,
    pub(crate) parameters: Json<'a>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) strict: Option<bool>,
}

#[derive(Debug, Serialize)]
#[serde(tag = "type", rename_all = "snake_case")]
pub(crate) enum ResponseFormat<'a> {
    JsonObject,
    JsonSchema { json_schema: Schema<'a> },
}

#[derive(Debug, Serialize)]
pub(crate) struct Schema<'a> {
    name: Json<'a>,
    #[serde(skip_serializing_if = "Option::is_none")]
    description: Option<&'a RawValue>,
    schema: &'a RawValue,
    strict: bool,
}

impl<'a> ResponseFormat<'a> {
    /// Creates a format that requires this schema. The chat format requires a name, which other formats may omit.
    pub(crate) fn schema(
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
pub(crate) fn choose(name: &RawValue) -> Json<'static> {
    let name = name.get();
    made(format!(
        "{{\"type\":\"function\",\"function\":{{\"name\":{name}}}}}"
    ))
}

/// A message of the chat format.
#[derive(Debug, Serialize)]
#[serde(tag = "role", rename_all = "lowercase")]
pub(crate) enum Message<'a> {
    System {
        content: Json<'a>,
    },
    Developer {
        content: Json<'a>,
    },
    User {
        content: Content<'a>,
    },
    Assistant {
        /// The content; null if the message consists of tool calls.
        content: Option<Json<'a>>,
        #[serde(skip_serializing_if = "Option::is_none")]
        reasoning_content: Option<Json<'a>>,
        #[serde(skip_serializing_if = "Option::is_none")]
        reasoning: Option<Json<'a>>,
        #[serde(skip_serializing_if = "Vec::is_empty")]
        reasoning_details: Vec<Box<RawValue>>,
        #[serde(skip_serializing_if = "Vec::is_empty")]
        tool_calls: Vec<ToolCall<'a>>,
    },
    Tool {
        tool_call_id: Json<'a>,
        content: Json<'a>,
    },
}

impl<'a> Message<'a> {
    /// Creates a message of the assistant with its text and tool calls. Reasoning is sent only if tool calls follow it.
    pub(crate) fn assistant(
        content: Option<Json<'a>>,
        tool_calls: Vec<ToolCall<'a>>,
        reasoning: Reasoning<'a>,
    ) -> Self {
        let reasoning = Some(reasoning).filter(|_| !tool_calls.is_empty());
        let reasoning = reasoning.unwrap_or_default();
        Self::Assistant {
            content,
            reasoning_content: reasoning.text(Field::ReasoningContent),
            reasoning: reasoning.text(Field::Reasoning),
            reasoning_details: reasoning.details,
            tool_calls,
        }
    }
}

#[derive(Debug, Serialize)]
#[serde(untagged)]
pub(crate) enum Content<'a> {
    Text(Json<'a>),
    Parts(Vec<Part<'a>>),
}

impl<'a> Content<'a> {
    /// Returns a single text as a string, which every vendor accepts, and anything else as a list of parts.
    pub(crate) fn of(parts: Vec<Part<'a>>) -> Self {
        match <[Part<'a>; 1]>::try_from(parts) {
            Ok([Part::Text { text }]) => Self::Text(text),
            Ok([part]) => Self::Parts(vec![part]),
            Err(parts) if parts.is_empty() => Self::Text(quoted(&[])),
            Err(parts) => Self::Parts(parts),
        }
    }

    /// Appends more parts to this content.
    pub(crate) fn extend(&mut self, more: Vec<Part<'a>>) {
        let mut parts = match mem::replace(self, Self::Parts(Vec::new())) {
            Self::Text(text) if inner(&text) == Some("") => Vec::new(),
            Self::Text(text) => vec![Part::Text { text }],
            Self::Parts(parts) => parts,
        };
        parts.extend(more);
        *self = Self::of(parts);
    }
}

#[derive(Debug, Serialize)]
#[serde(tag = "type", rename_all = "snake_case")]
pub(crate) enum Part<'a> {
    Text { text: Json<'a> },
    ImageUrl { image_url: Address<'a> },
    File { file: FileData<'a> },
}

#[derive(Debug, Serialize)]
pub(crate) struct Address<'a> {
    pub(crate) url: Json<'a>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) detail: Option<Json<'a>>,
}

#[derive(Debug, Serialize)]
pub(crate) struct FileData<'a> {
    pub(crate) filename: Json<'a>,
    pub(crate) file_data: Json<'a>,
}

#[derive(Debug, Serialize)]
pub(crate) struct ToolCall<'a> {
    pub(crate) id: Json<'a>,
    #[serde(rename = "type")]
    pub(crate) kind: &'static str,
    pub(crate) function: CalledFunction<'a>,
    /// The signature of the tool call, as the vendor wrote it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) extra_content: Option<Box<RawValue>>,
}

#[derive(Debug, Serialize)]
pub(crate) struct CalledFunction<'a> {
    pub(crate) name: Json<'a>,
    pub(crate) arguments: Json<'a>,
}
