//! The body of a chat request to a vendor, to be serialized.

use std::{borrow::Cow, mem};

use bytes::{Bytes, BytesMut};
use serde::Serialize;
use serde_json::value::RawValue;

use crate::{
    model::OutputField,
    translate::{
        chat_state::{Field, Reasoning},
        messages::text::{Json, inner, made, quoted, string},
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
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(in crate::translate) stop: Vec<&'a RawValue>,
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

/// A message of the chat format.
#[derive(Debug, Serialize)]
#[serde(tag = "role", rename_all = "lowercase")]
pub(in crate::translate) enum Message<'a> {
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
    pub(in crate::translate) fn assistant(
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
pub(in crate::translate) enum Content<'a> {
    Text(Json<'a>),
    Parts(Vec<Part<'a>>),
}

impl<'a> Content<'a> {
    /// Returns a single text as a string, which every vendor accepts, and anything else as a list of parts.
    pub(in crate::translate) fn of(parts: Vec<Part<'a>>) -> Self {
        match <[Part<'a>; 1]>::try_from(parts) {
            Ok([Part::Text { text }]) => Self::Text(text),
            Ok([part]) => Self::Parts(vec![part]),
            Err(parts) if parts.is_empty() => Self::Text(quoted(&[])),
            Err(parts) => Self::Parts(parts),
        }
    }

    /// Appends more parts to this content.
    pub(in crate::translate) fn extend(&mut self, more: Vec<Part<'a>>) {
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
pub(in crate::translate) enum Part<'a> {
    Text { text: Json<'a> },
    ImageUrl { image_url: Address<'a> },
    File { file: FileData<'a> },
}

#[derive(Debug, Serialize)]
pub(in crate::translate) struct Address<'a> {
    pub(in crate::translate) url: Json<'a>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(in crate::translate) detail: Option<Json<'a>>,
}

#[derive(Debug, Serialize)]
pub(in crate::translate) struct FileData<'a> {
    pub(in crate::translate) filename: Json<'a>,
    pub(in crate::translate) file_data: Json<'a>,
}

#[derive(Debug, Serialize)]
pub(in crate::translate) struct ToolCall<'a> {
    pub(in crate::translate) id: Json<'a>,
    #[serde(rename = "type")]
    pub(in crate::translate) kind: &'static str,
    pub(in crate::translate) function: CalledFunction<'a>,
    /// The signature of the tool call, as the vendor wrote it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(in crate::translate) extra_content: Option<Box<RawValue>>,
}

#[derive(Debug, Serialize)]
pub(in crate::translate) struct CalledFunction<'a> {
    pub(in crate::translate) name: Json<'a>,
    pub(in crate::translate) arguments: Json<'a>,
}
