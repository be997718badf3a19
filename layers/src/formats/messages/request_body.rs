//! The body of a messages request to a vendor, to be serialized.

use std::{borrow::Cow, mem};

use serde::Serialize;
use serde_json::value::RawValue;

use super::marks::{Markable, Marked};
use crate::formats::{text::Json, turn::request::Mark};

#[derive(Serialize)]
pub(crate) struct Body<'a> {
    pub(crate) model: &'a str,
    pub(crate) max_tokens: u64,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(crate) system: Vec<Block<'a>>,
    pub(crate) messages: Vec<Turn<'a>>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(crate) tools: Vec<Tool<'a>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) tool_choice: Option<ToolChoice<'a>>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(crate) stop_sequences: Vec<&'a RawValue>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) thinking: Option<ThinkingField>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) output_config: Option<OutputConfig<'a>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) temperature: Option<&'a RawValue>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) top_p: Option<&'a RawValue>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) top_k: Option<&'a RawValue>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) metadata: Option<Metadata<'a>>,
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub(crate) stream: bool,
}

#[derive(Serialize)]
pub(crate) struct Metadata<'a> {
    pub(crate) user_id: &'a RawValue,
}

#[derive(Serialize)]
#[serde(tag = "type", rename_all = "snake_case")]
pub(crate) enum ThinkingField {
    Enabled { budget_tokens: u64 },
    Disabled,
}

#[derive(Serialize)]
pub(crate) struct OutputConfig<'a> {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) effort: Option<&'static str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) format: Option<OutputFormat<'a>>,
}

impl OutputConfig<'_> {
    pub(crate) const fn is_empty(&self) -> bool {
        self.effort.is_none() && self.format.is_none()
    }
}

#[derive(Serialize)]
#[serde(tag = "type", rename_all = "snake_case")]
pub(crate) enum OutputFormat<'a> {
    JsonSchema { schema: &'a RawValue },
}

/// A tool that the client runs.
#[derive(Debug, Serialize)]
pub(crate) struct Tool<'a> {
    pub(crate) name: Json<'a>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) description: Option<Json<'a>>,
    pub(crate) input_schema: Json<'a>,
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub(crate) strict: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) cache_control: Option<Mark>,
}

impl Markable for Tool<'_> {
    fn mark(&self) -> Option<Mark> {
        self.cache_control
    }

    fn set_mark(&mut self, mark: Option<Mark>) {
        self.cache_control = mark;
    }
}

#[derive(Debug, Serialize)]
pub(crate) struct ToolChoice<'a> {
    #[serde(rename = "type")]
    pub(crate) kind: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) name: Option<Json<'a>>,
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub(crate) disable_parallel_tool_use: bool,
}

/// A turn of the user or the assistant.
#[derive(Debug, Serialize)]
pub(crate) struct Turn<'a> {
    pub(crate) role: Role,
    pub(crate) content: Vec<Block<'a>>,
    /// Tool results, which must come before all other blocks of the turn.
    #[serde(skip)]
    pub(crate) results: Vec<Block<'a>>,
    #[serde(skip)]
    pub(crate) has_results: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Role {
    User,
    Assistant,
}

/// A content block of a turn.
#[derive(Debug, Serialize)]
#[serde(tag = "type", rename_all = "snake_case")]
pub(crate) enum Block<'a> {
    Text {
        text: Cow<'a, str>,
    },
    Image {
        source: Source<'a>,
    },
    Document {
        source: Source<'a>,
        #[serde(skip_serializing_if = "Option::is_none")]
        title: Option<Cow<'a, str>>,
    },
    ToolUse {
        id: Cow<'a, str>,
        name: Cow<'a, str>,
        input: Box<RawValue>,
    },
    ToolResult {
        tool_use_id: Cow<'a, str>,
        #[serde(skip_serializing_if = "Vec::is_empty")]
        content: Vec<Self>,
    },
    /// A content block with a mark: the vendor should cache the prompt up to its end.
    #[serde(untagged)]
    Marked(Marked<'a>),
    /// A block of thinking, exactly as the vendor wrote it.
    #[serde(untagged)]
    Raw(Box<RawValue>),
}

impl Block<'_> {
    /// Turns an instruction into a text of the user, in tags. The tags have fewer tokens than a hold adds for each
    /// message.
    pub(crate) fn reminder(self) -> Self {
        match self {
            Self::Text { text } => Self::Text {
                text: format!("<system>\n{text}\n</system>").into(),
            },
            Self::Marked(Marked { block, mark }) => Self::Marked(Marked {
                block: Box::new(block.reminder()),
                mark,
            }),
            block => block,
        }
    }

    /// Returns whether the block is a text of blanks, which vendors reject.
    pub(crate) fn is_blank(&self) -> bool {
        match self {
            Self::Text { text } => text.trim().is_empty(),
            Self::Marked(marked) => marked.block.is_blank(),
            _ => false,
        }
    }
}

impl Markable for Block<'_> {
    fn mark(&self) -> Option<Mark> {
        match self {
            Self::Marked(marked) => Some(marked.mark),
            _ => None,
        }
    }

    fn set_mark(&mut self, mark: Option<Mark>) {
        let text = Cow::Borrowed("");
        let block = match mem::replace(self, Self::Text { text }) {
            Self::Marked(marked) => *marked.block,
            block => block,
        };
        *self = match (block, mark) {
            (Self::Raw(raw), _) => Self::Raw(raw),
            (block, None) => block,
            (block, Some(mark)) => Self::Marked(Marked {
                block: Box::new(block),
                mark,
            }),
        };
    }
}

/// The bytes or the URL of an image or a document.
#[derive(Debug, Serialize)]
#[serde(tag = "type", rename_all = "snake_case")]
pub(crate) enum Source<'a> {
    Base64 {
        media_type: &'static str,
        data: Cow<'a, str>,
    },
    Url {
        url: Cow<'a, str>,
    },
}
