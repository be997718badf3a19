//! The body of a responses request to a vendor, to be serialized.

use std::borrow::Cow;

use serde::Serialize;
use serde_json::value::RawValue;

use crate::translate::messages::text::Json;

/// The value of `include` that requests encrypted reasoning. If the vendor stores nothing, the caller must send it
/// back.
pub(in crate::translate) const ENCRYPTED_REASONING: &str = "reasoning.encrypted_content";

#[derive(Debug, Serialize)]
pub(in crate::translate) struct Body<'a> {
    pub(in crate::translate) model: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(in crate::translate) instructions: Option<Json<'a>>,
    pub(in crate::translate) input: Vec<Item<'a>>,
    pub(in crate::translate) max_output_tokens: u64,
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
    pub(in crate::translate) text: Option<WishedText<'a>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(in crate::translate) reasoning: Option<Reasoning<'a>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(in crate::translate) include: Option<[&'static str; 1]>,
    /// Always false: if the vendor stored the answer, a request of another caller could refer to it.
    pub(in crate::translate) store: bool,
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
}

/// An item of the field `input`.
#[derive(Debug, Serialize)]
#[serde(tag = "type", rename_all = "snake_case")]
pub(in crate::translate) enum Item<'a> {
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
pub(in crate::translate) enum Output<'a> {
    Text(Json<'a>),
    Parts(Vec<Content<'a>>),
}

#[derive(Debug, Serialize)]
#[serde(tag = "type", rename_all = "snake_case")]
pub(in crate::translate) enum Content<'a> {
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
    pub(in crate::translate) fn into_text(self) -> Option<Json<'a>> {
        match self {
            Self::InputText { text } | Self::OutputText { text } => Some(text),
            _ => None,
        }
    }
}

#[derive(Debug, Serialize)]
#[serde(tag = "type", rename_all = "snake_case")]
pub(in crate::translate) enum Tool<'a> {
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
pub(in crate::translate) struct WishedText<'a> {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(in crate::translate) format: Option<Format<'a>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(in crate::translate) verbosity: Option<&'a RawValue>,
}

#[derive(Debug, Serialize)]
#[serde(tag = "type", rename_all = "snake_case")]
pub(in crate::translate) enum Format<'a> {
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
pub(in crate::translate) struct Reasoning<'a> {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(in crate::translate) effort: Option<Cow<'a, str>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(in crate::translate) summary: Option<&'static str>,
}
