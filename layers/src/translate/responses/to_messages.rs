//! A responses request as a messages request.

use std::borrow::Cow;

use bytes::{Bytes, BytesMut};
use serde::Serialize;
use serde_json::value::RawValue;

use super::{
    capsule,
    items::{self, Arguments, Called, Target},
    tools::{Choice, Tools},
    wishes::{self, Format},
};
use crate::{
    error::{Error, Problem},
    translate::{
        chat::{
            request::{
                JSON_OBJECT, Metadata, OutputConfig, OutputFormat, Reasoning, Sampling,
                ThinkingField, user_id,
            },
            turns::{Block, Conversation, Turn, image_source, input, pdf, vendor_id},
        },
        messages::text::Json,
        wire::{Object, RequestCx, Value, write_json},
    },
};

/// Puts a responses request into the messages format, for the vendor of this name: its own thinking, which
/// the caller sends back in capsules, is put in its place.
///
/// # Errors
/// [`Error::Invalid`] that names the field: it has another shape than the format gives it, or the
/// messages format has nothing like it.
pub fn to_messages(body: &[u8], vendor: &str, cx: &RequestCx<'_>) -> Result<Bytes, Error> {
    let raw: &RawValue = serde_json::from_slice(body)
        .map_err(|error| Error::invalid("", Problem::NotJson(error.to_string())))?;
    let fields = wishes::body(raw)?;
    let (dialect, max_tokens) = (cx.dialect, cx.output_tokens);
    let tools = Tools::read(&fields)?;
    let mut turns = Turns {
        conversation: Conversation::default(),
        thoughts: Vec::new(),
        vendor,
    };
    items::read(&fields, &mut turns)?;
    let mut conversation = turns.conversation;
    conversation.finish(&fields.need("input")?)?;
    let may_think = !tools.forced() && (!conversation.within_a_turn() || conversation.thought());
    let effort = wishes::effort(&fields)?;
    let reasoning = effort
        .and_then(|word| Reasoning::of(&word, dialect.thinking, max_tokens, may_think))
        .unwrap_or_default();
    let thinks = matches!(reasoning.thinking, Some(ThinkingField::Enabled { .. }));
    let sampling = Sampling::read(&fields, dialect, thinks)?;
    let format = match wishes::format(&fields, dialect)? {
        None => None,
        Some(Format::Object) => {
            let text = JSON_OBJECT.into();
            conversation.system.push(Block::Text { text });
            None
        }
        Some(Format::Schema { schema, .. }) => Some(OutputFormat::JsonSchema { schema }),
    };
    let output_config = OutputConfig {
        effort: reasoning.effort,
        format,
    };
    let messages = Body {
        model: cx.model,
        max_tokens,
        system: conversation.system,
        messages: conversation.turns,
        tool_choice: tool_choice(&tools),
        tools: tools.list.into_iter().map(Tool::of).collect(),
        thinking: reasoning.thinking,
        output_config: (!output_config.is_empty()).then_some(output_config),
        temperature: sampling.temperature,
        top_p: sampling.top_p,
        metadata: user_id(&fields)?.map(|user_id| Metadata { user_id }),
        stream: wishes::stream(&fields)?,
    };
    let mut out = BytesMut::with_capacity(body.len() + 256);
    write_json(&mut out, &messages);
    Ok(out.freeze())
}

/// A messages request as it is written.
#[derive(Serialize)]
struct Body<'a> {
    model: &'a str,
    max_tokens: u64,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    system: Vec<Block<'a>>,
    messages: Vec<Turn<'a>>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    tools: Vec<Tool<'a>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    tool_choice: Option<ToolChoice>,
    #[serde(skip_serializing_if = "Option::is_none")]
    thinking: Option<ThinkingField>,
    #[serde(skip_serializing_if = "Option::is_none")]
    output_config: Option<OutputConfig<'a>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    temperature: Option<&'a RawValue>,
    #[serde(skip_serializing_if = "Option::is_none")]
    top_p: Option<&'a RawValue>,
    #[serde(skip_serializing_if = "Option::is_none")]
    metadata: Option<Metadata<'a>>,
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    stream: bool,
}

#[derive(Debug, Serialize)]
struct Tool<'a> {
    name: Json<'a>,
    #[serde(skip_serializing_if = "Option::is_none")]
    description: Option<Json<'a>>,
    input_schema: Json<'a>,
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    strict: bool,
}

impl<'a> Tool<'a> {
    fn of(tool: super::tools::Tool<'a>) -> Self {
        Self {
            name: tool.flat,
            description: tool.description,
            input_schema: tool.parameters,
            strict: tool.strict,
        }
    }
}

#[derive(Debug, Serialize)]
struct ToolChoice {
    #[serde(rename = "type")]
    kind: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    name: Option<Json<'static>>,
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    disable_parallel_tool_use: bool,
}

fn tool_choice(tools: &Tools<'_>) -> Option<ToolChoice> {
    let one_at_a_time = tools.parallel == Some(false);
    let (kind, name) = match &tools.choice {
        None if one_at_a_time => ("auto", None),
        None => return None,
        Some(Choice::Auto) => ("auto", None),
        Some(Choice::None) => ("none", None),
        Some(Choice::Required) => ("any", None),
        Some(Choice::Named(name)) => {
            let name = crate::translate::messages::text::quoted(&[name]);
            ("tool", Some(name))
        }
    };
    Some(ToolChoice {
        kind,
        name,
        // Where no tool may be called, vendors refuse the word.
        disable_parallel_tool_use: one_at_a_time && kind != "none",
    })
}

struct Turns<'a, 'v> {
    conversation: Conversation<'a>,
    /// Thinking until it is known what it led to: vendors refuse a turn that ends in it.
    thoughts: Vec<Block<'a>>,
    vendor: &'v str,
}

impl<'a> Turns<'a, '_> {
    fn answered(&mut self, mut blocks: Vec<Block<'a>>, calls: Vec<Cow<'a, str>>) {
        if !blocks.is_empty() {
            blocks.splice(..0, self.thoughts.drain(..));
            self.conversation.answered(blocks, calls);
        }
    }
}

impl<'a> Target<'a> for Turns<'a, '_> {
    type Part = Block<'a>;

    fn text(&self, text: &Value<'a, '_>) -> Result<Block<'a>, Error> {
        let text = text.string()?;
        Ok(Block::Text { text })
    }

    fn image(&self, part: &Object<'a, '_>) -> Result<Block<'a>, Error> {
        let source = image_source(&part.need("image_url")?)?;
        Ok(Block::Image { source })
    }

    fn file(&self, part: &Object<'a, '_>) -> Result<Block<'a>, Error> {
        pdf(part)
    }

    fn instruct(&mut self, texts: Vec<Block<'a>>) {
        self.conversation.system.extend(said(texts));
    }

    fn user(&mut self, parts: Vec<Block<'a>>) {
        self.thoughts.clear();
        self.conversation.user(said(parts));
    }

    fn assistant(&mut self, texts: Vec<Block<'a>>) {
        self.answered(said(texts), Vec::new());
    }

    /// Its own thinking goes back byte for byte; whose it is not, or that is not of ours, is left out.
    fn reasoning(&mut self, encrypted: &str) {
        let blocks = capsule::open(encrypted, self.vendor)
            .and_then(|json| serde_json::from_str::<Vec<Box<RawValue>>>(&json).ok());
        let thinking = blocks
            .unwrap_or_default()
            .into_iter()
            .filter(|block| capsule::is_of(block.get(), &["thinking", "redacted_thinking"]));
        self.thoughts.extend(thinking.map(Block::Raw));
    }

    fn call(&mut self, call: &Called<'a, '_>) -> Result<(), Error> {
        let id = call.id.string()?;
        let name: String =
            serde_json::from_str(call.name.get()).map_err(|_| call.id.wrong_type("string"))?;
        let given = match &call.arguments {
            Arguments::Json(None) => None,
            Arguments::Free(text) => RawValue::from_string(Arguments::wrapped(text)).ok(),
            Arguments::Json(Some(value)) => {
                let text = value.string()?;
                let blank = text.trim().is_empty();
                (!blank).then(|| input(value, text)).transpose()?
            }
        };
        let block = Block::ToolUse {
            id: vendor_id(id.clone()),
            name: Cow::Owned(name),
            input: given
                .unwrap_or_else(|| RawValue::from_string("{}".to_owned()).expect("it is JSON")),
        };
        self.answered(vec![block], vec![id]);
        Ok(())
    }

    fn result(&mut self, id: &Value<'a, '_>, parts: Vec<Block<'a>>) -> Result<(), Error> {
        self.thoughts.clear();
        self.conversation.result(id.string()?, said(parts));
        Ok(())
    }
}

/// Without texts of blanks alone: vendors refuse them.
fn said(mut blocks: Vec<Block<'_>>) -> Vec<Block<'_>> {
    blocks.retain(|block| !matches!(block, Block::Text { text } if text.trim().is_empty()));
    blocks
}
