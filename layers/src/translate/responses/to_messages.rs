//! Translates a responses request to a messages request.

use std::borrow::Cow;

use bytes::Bytes;
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
            marks::{Mark, Markable},
            request::{JSON_OBJECT, Reasoning},
            turns::{Block, Conversation, image_source, input, pdf, vendor_id},
        },
        formats::messages::body::Parts,
        messages::text::Json,
        wire::{Object, RequestCx, Value},
    },
};

/// Translates the body of a responses request to the body of a messages request, for the vendor of this name. Puts this
/// vendor's thinking, which the caller returns in capsules, into the turns.
///
/// # Errors
/// [`Error::Invalid`], which names a field that has the wrong type or that the messages format cannot express.
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
    let schema = match wishes::format(&fields, dialect)? {
        None => None,
        Some(Format::Object) => {
            let text = JSON_OBJECT.into();
            conversation.system.push(Block::Text { text });
            None
        }
        Some(Format::Schema { schema, .. }) => Some(schema),
    };
    let parts = Parts {
        max_tokens,
        conversation,
        tool_choice: tool_choice(&tools),
        tools: tools.list.into_iter().map(Tool::of).collect(),
        stop_sequences: Vec::new(),
        reasoning,
        schema,
        stream: wishes::stream(&fields)?,
    };
    parts.json(&fields, body.len(), cx)
}

#[derive(Debug, Serialize)]
struct Tool<'a> {
    name: Json<'a>,
    #[serde(skip_serializing_if = "Option::is_none")]
    description: Option<Json<'a>>,
    input_schema: Json<'a>,
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    strict: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    cache_control: Option<Mark>,
}

impl Markable for Tool<'_> {
    fn mark(&self) -> Option<Mark> {
        self.cache_control
    }

    fn set_mark(&mut self, mark: Option<Mark>) {
        self.cache_control = mark;
    }
}

impl<'a> Tool<'a> {
    fn of(tool: super::tools::Tool<'a>) -> Self {
        Self {
            name: tool.flat,
            description: tool.description,
            input_schema: tool.parameters,
            strict: tool.strict,
            cache_control: None,
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
        // Vendors reject this field if `tool_choice` forbids tool calls.
        disable_parallel_tool_use: one_at_a_time && kind != "none",
    })
}

struct Turns<'a, 'v> {
    conversation: Conversation<'a>,
    /// Thinking that waits for the rest of its turn, because vendors reject a turn that ends with thinking.
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

    fn mark(&self, part: &mut Block<'a>) {
        part.set_mark(Some(Mark::BREAKPOINT));
    }

    fn instruct(&mut self, texts: Vec<Block<'a>>) {
        self.conversation.instruct(said(texts));
    }

    fn user(&mut self, parts: Vec<Block<'a>>) {
        self.thoughts.clear();
        self.conversation.user(said(parts));
    }

    fn assistant(&mut self, texts: Vec<Block<'a>>) {
        self.answered(said(texts), Vec::new());
    }

    /// The vendor's own thinking is sent back byte for byte. A capsule of another vendor, or content that is not a
    /// capsule, is left out.
    fn reasoning(&mut self, encrypted: &str, _item: &Object<'a, '_>) -> Result<(), Error> {
        let blocks = capsule::open(encrypted, self.vendor)
            .and_then(|json| serde_json::from_str::<Vec<Box<RawValue>>>(&json).ok());
        let thinking = blocks
            .unwrap_or_default()
            .into_iter()
            .filter(|block| capsule::is_of(block.get(), &["thinking", "redacted_thinking"]));
        self.thoughts.extend(thinking.map(Block::Raw));
        Ok(())
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

/// Removes texts of blanks from the blocks, because vendors reject them.
fn said(mut blocks: Vec<Block<'_>>) -> Vec<Block<'_>> {
    blocks.retain(|block| !block.is_blank());
    blocks
}
