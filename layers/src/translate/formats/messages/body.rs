//! The body of a messages request to a vendor, to be serialized.

use std::borrow::Cow;

use bytes::{Bytes, BytesMut};
use serde::Serialize;
use serde_json::value::RawValue;

use crate::{
    error::Error,
    translate::{
        chat::{
            marks::{CacheWishes, Markable},
            request::{Reasoning, Sampling, user_id},
            turns::{Block, Conversation, Turn},
        },
        wire::{Object, RequestCx, write_json},
    },
};

#[derive(Serialize)]
struct Body<'a, T, C> {
    model: &'a str,
    max_tokens: u64,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    system: Vec<Block<'a>>,
    messages: Vec<Turn<'a>>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    tools: Vec<T>,
    #[serde(skip_serializing_if = "Option::is_none")]
    tool_choice: Option<C>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    stop_sequences: Vec<Cow<'a, str>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    thinking: Option<ThinkingField>,
    #[serde(skip_serializing_if = "Option::is_none")]
    output_config: Option<OutputConfig<'a>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    temperature: Option<&'a RawValue>,
    #[serde(skip_serializing_if = "Option::is_none")]
    top_p: Option<&'a RawValue>,
    #[serde(skip_serializing_if = "Option::is_none")]
    top_k: Option<&'a RawValue>,
    #[serde(skip_serializing_if = "Option::is_none")]
    metadata: Option<Metadata<'a>>,
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    stream: bool,
}

/// A request in parts.
pub(in crate::translate) struct Parts<'a, T, C> {
    pub(in crate::translate) max_tokens: u64,
    pub(in crate::translate) conversation: Conversation<'a>,
    pub(in crate::translate) tools: Vec<T>,
    pub(in crate::translate) tool_choice: Option<C>,
    pub(in crate::translate) stop_sequences: Vec<Cow<'a, str>>,
    pub(in crate::translate) reasoning: Reasoning,
    /// The schema that the answer must follow.
    pub(in crate::translate) schema: Option<&'a RawValue>,
    pub(in crate::translate) stream: bool,
}

impl<'a, T: Markable + Serialize, C: Serialize> Parts<'a, T, C> {
    /// Returns the JSON of the request. `fields`: those of the caller's request, from which the settings are read that
    /// the other formats have in common; `asked`: its length in bytes.
    pub(in crate::translate) fn json(
        mut self,
        fields: &Object<'a, '_>,
        asked: usize,
        cx: &RequestCx<'a>,
    ) -> Result<Bytes, Error> {
        let thinks = matches!(self.reasoning.thinking, Some(ThinkingField::Enabled { .. }));
        let sampling = Sampling::read(fields, cx.dialect, thinks)?;
        let wishes = CacheWishes::read(fields)?;
        wishes.place(&mut self.tools, &mut self.conversation, asked, cx);
        let output_config = OutputConfig {
            effort: self.reasoning.effort,
            format: self
                .schema
                .map(|schema| OutputFormat::JsonSchema { schema }),
        };
        let body = Body {
            model: cx.model,
            max_tokens: self.max_tokens,
            system: self.conversation.system,
            messages: self.conversation.turns,
            tools: self.tools,
            tool_choice: self.tool_choice,
            stop_sequences: self.stop_sequences,
            thinking: self.reasoning.thinking,
            output_config: (!output_config.is_empty()).then_some(output_config),
            temperature: sampling.temperature,
            top_p: sampling.top_p,
            top_k: sampling.top_k,
            metadata: user_id(fields)?.map(|user_id| Metadata { user_id }),
            stream: self.stream,
        };
        let mut out = BytesMut::with_capacity(asked + 256);
        write_json(&mut out, &body);
        Ok(out.freeze())
    }
}

#[derive(Serialize)]
struct Metadata<'a> {
    user_id: Cow<'a, str>,
}

#[derive(Serialize)]
#[serde(tag = "type", rename_all = "snake_case")]
pub(in crate::translate) enum ThinkingField {
    Enabled { budget_tokens: u64 },
    Disabled,
}

#[derive(Serialize)]
struct OutputConfig<'a> {
    #[serde(skip_serializing_if = "Option::is_none")]
    effort: Option<&'static str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    format: Option<OutputFormat<'a>>,
}

impl OutputConfig<'_> {
    const fn is_empty(&self) -> bool {
        self.effort.is_none() && self.format.is_none()
    }
}

#[derive(Serialize)]
#[serde(tag = "type", rename_all = "snake_case")]
enum OutputFormat<'a> {
    JsonSchema { schema: &'a RawValue },
}
