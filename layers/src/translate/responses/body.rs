//! The body of a responses request to a vendor, to be serialized.

use serde::Serialize;
use serde_json::value::RawValue;

use crate::translate::messages::{text::Json, turns::Part};

/// The value of `include` that requests encrypted reasoning. If the vendor stores nothing, the caller must send it
/// back.
pub(super) const ENCRYPTED_REASONING: &str = "reasoning.encrypted_content";

#[derive(Debug, Serialize)]
pub(super) struct Body<'a> {
    pub(super) model: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) instructions: Option<Json<'a>>,
    pub(super) input: Vec<Item<'a>>,
    pub(super) max_output_tokens: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) temperature: Option<&'a RawValue>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) top_p: Option<&'a RawValue>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(super) tools: Vec<Tool<'a>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) tool_choice: Option<Json<'a>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) parallel_tool_calls: Option<bool>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) text: Option<Text<'a>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) reasoning: Option<Reasoning<'a>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) include: Option<[&'static str; 1]>,
    /// Always false: if the vendor stored the answer, a request of another caller could refer to it.
    pub(super) store: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) user: Option<&'a RawValue>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) safety_identifier: Option<&'a RawValue>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) prompt_cache_key: Option<Json<'a>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) metadata: Option<&'a RawValue>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) stream: Option<bool>,
}

/// An item of the field `input`.
#[derive(Debug, Serialize)]
#[serde(tag = "type", rename_all = "snake_case")]
pub(super) enum Item<'a> {
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
pub(super) enum Output<'a> {
    Text(Json<'a>),
    Parts(Vec<Content<'a>>),
}

#[derive(Debug, Serialize)]
#[serde(tag = "type", rename_all = "snake_case")]
pub(super) enum Content<'a> {
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
    /// Translates a part of a chat message.
    pub(super) fn of(part: Part<'a>) -> Self {
        match part {
            Part::Text { text } => Self::InputText { text },
            Part::ImageUrl { image_url } => Self::InputImage {
                image_url: image_url.url,
                detail: image_url.detail,
            },
            Part::File { file } => Self::InputFile {
                filename: file.filename,
                file_data: file.file_data,
            },
        }
    }
}

#[derive(Debug, Serialize)]
#[serde(tag = "type", rename_all = "snake_case")]
pub(super) enum Tool<'a> {
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
pub(super) struct Text<'a> {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) format: Option<Format<'a>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) verbosity: Option<&'a RawValue>,
}

#[derive(Debug, Serialize)]
#[serde(tag = "type", rename_all = "snake_case")]
pub(super) enum Format<'a> {
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
pub(super) struct Reasoning<'a> {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) effort: Option<Json<'a>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) summary: Option<&'static str>,
}
