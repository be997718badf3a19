//! The parts of a Messages request to a vendor, in the form in which they are serialized.

use std::borrow::Cow;

use serde::Serialize;
use serde_json::value::RawValue;

use crate::formats::{text::Json, turn::request::Mark};

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
    /// The tool results, which must precede all other blocks of the turn.
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

/// A content block of a turn. A block with a mark is where the vendor should end a cached prompt.
#[derive(Debug, Serialize)]
#[serde(tag = "type", rename_all = "snake_case")]
pub(crate) enum Block<'a> {
    Text {
        text: Cow<'a, str>,
        #[serde(skip_serializing_if = "Option::is_none")]
        cache_control: Option<Mark>,
    },
    Image {
        source: Source<'a>,
        #[serde(skip_serializing_if = "Option::is_none")]
        cache_control: Option<Mark>,
    },
    Document {
        source: Source<'a>,
        #[serde(skip_serializing_if = "Option::is_none")]
        title: Option<Cow<'a, str>>,
        #[serde(skip_serializing_if = "Option::is_none")]
        cache_control: Option<Mark>,
    },
    ToolUse {
        id: Cow<'a, str>,
        name: Cow<'a, str>,
        input: Box<RawValue>,
        #[serde(skip_serializing_if = "Option::is_none")]
        cache_control: Option<Mark>,
    },
    ToolResult {
        tool_use_id: Cow<'a, str>,
        #[serde(skip_serializing_if = "Vec::is_empty")]
        content: Vec<Self>,
        #[serde(skip_serializing_if = "Option::is_none")]
        cache_control: Option<Mark>,
    },
    /// A block of thinking, exactly as the vendor wrote it.
    #[serde(untagged)]
    Raw(Box<RawValue>),
}

impl<'a> Block<'a> {
    pub(crate) fn text(text: impl Into<Cow<'a, str>>) -> Self {
        Self::Text {
            text: text.into(),
            cache_control: None,
        }
    }

    /// Turns an instruction into a text of the user, inside tags. The tags have fewer tokens than a hold adds for each
    /// message.
    pub(crate) fn reminder(mut self) -> Self {
        if let Self::Text { text, .. } = &mut self {
            *text = format!("<system>\n{text}\n</system>").into();
        }
        self
    }

    /// Returns whether the block is a text of only white space, which vendors reject.
    pub(crate) fn is_blank(&self) -> bool {
        matches!(self, Self::Text { text, .. } if text.trim().is_empty())
    }

    /// Returns the place of the block's cache mark. `None` for thinking, which cannot have a mark.
    pub(crate) const fn mark_mut(&mut self) -> Option<&mut Option<Mark>> {
        match self {
            Self::Text { cache_control, .. }
            | Self::Image { cache_control, .. }
            | Self::Document { cache_control, .. }
            | Self::ToolUse { cache_control, .. }
            | Self::ToolResult { cache_control, .. } => Some(cache_control),
            Self::Raw(_) => None,
        }
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
