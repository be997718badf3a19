//! The body of a responses request to a vendor, to be serialized.

use std::borrow::Cow;

use serde::Serialize;
use serde_json::value::RawValue;

use crate::formats::text::Json;

/// The value of `include` that requests encrypted reasoning. If the vendor stores nothing, the caller must send it
/// back.
pub(crate) const ENCRYPTED_REASONING: &str = "reasoning.encrypted_content";

#[derive(Debug, Serialize)]
pub(crate) struct Body<'a> {
    pub(crate) model: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) instructions: Option<Json<'a>>,
    pub(crate) input: Vec<Item<'a>>,
    pub(crate) max_output_tokens: u64,
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
    pub(crate) text: Option<WishedText<'a>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) reasoning: Option<Reasoning<'a>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) include: Option<[&'static str; 1]>,
    /// Always false: if the vendor stored the answer, a request of another caller could refer to it.
    pub(crate) store: bool,
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
}

/// An item of the field `input`.
#[derive(Debug, Serialize)]
#[serde(tag = "type", rename_all = "snake_case")]
pub(crate) enum Item<'a> {
    Message {
        role: &'static str,
        content: Vec<Content<'a>>,
    },
    FunctionCall {
        call_id: Json<'a>,
        name: Json<'a>,
        arguments: Json<'a>,
    },
    CustomToolCall {
        call_id: Json<'a>,
        name: Json<'a>,
        input: Json<'a>,
    },
    FunctionCallOutput {
        call_id: Json<'a>,
        output: Output<'a>,
    },
    CustomToolCallOutput {
        call_id: Json<'a>,
        output: Output<'a>,
    },
    /// A reasoning item, exactly as the vendor wrote it.
    #[serde(untagged)]
    Raw(Box<RawValue>),
}

/// The output of a tool call: a text, or parts.
#[derive(Debug, Serialize)]
#[serde(untagged)]
pub(crate) enum Output<'a> {
    Text(Json<'a>),
    Parts(Vec<Content<'a>>),
}

#[derive(Debug, Serialize)]
#[serde(tag = "type", rename_all = "snake_case")]
pub(crate) enum Content<'a> {
    InputText {
        text: Json<'a>,
    },
    OutputText {
        text: Json<'a>,
    },
    Refusal {
        refusal: Json<'a>,
    },
    InputImage {
        image_url: Json<'a>,
        #[serde(skip_serializing_if = "Option::is_none")]
        detail: Option<Json<'a>>,
    },
    InputFile {
        filename: Json<'a>,
        file_data: Json<'a>,
    },
}

impl<'a> Content<'a> {
    pub(crate) fn into_text(self) -> Option<Json<'a>> {
        match self {
            Self::InputText { text } | Self::OutputText { text } => Some(text),
            _ => None,
        }
    }
}

#[derive(Debug, Serialize)]
#[serde(tag = "type", rename_all = "snake_case")]
pub(crate) enum Tool<'a> {
    Function {
        name: Json<'a>,
        #[serde(skip_serializing_if = "Option::is_none")]
        description: Option<Json<'a>>,
        parameters: Json<'a>,
        /// Always sent, because the default is true in this format and false in the others.
        strict: bool,
    },
    Custom {
        name: Json<'a>,
        #[serde(skip_serializing_if = "Option::is_none")]
        description: Option<Json<'a>>,
        #[serde(skip_serializing_if = "Option::is_none")]
        format: Option<Json<'a>>,
    },
}

#[derive(Debug, Default, Serialize)]
pub(crate) struct WishedText<'a> {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) format: Option<Format<'a>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) verbosity: Option<&'a RawValue>,
}

#[derive(Debug, Serialize)]
#[serde(tag = "type", rename_all = "snake_case")]
pub(crate) enum Format<'a> {
    JsonObject,
    JsonSchema {
        name: Json<'a>,
        #[serde(skip_serializing_if = "Option::is_none")]
        description: Option<&'a RawValue>,
        schema: &'a RawValue,
        strict: bool,
    },
}

#[derive(Debug, Default, Serialize)]
pub(crate) struct Reasoning<'a> {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) effort: Option<Cow<'a, str>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) summary: Option<&'static str>,
}
