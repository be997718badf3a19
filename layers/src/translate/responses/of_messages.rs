//! Translates a messages request to a responses request.

use std::borrow::Cow;

use bytes::{Bytes, BytesMut};
use serde_json::value::RawValue;

use super::{
    body::{Body, Content, ENCRYPTED_REASONING, Format, Item, Output, Reasoning, Text, Tool},
    capsule,
    of_chat::is_empty_array,
};
use crate::{
    error::{Error, Problem},
    model::SystemRole,
    path::Path,
    translate::{
        messages::{
            request as messages,
            text::{Json, inner, joined, literal, made, optional, quoted, shortened, string},
            turns::{Block, Message, Part, blocks, instruction, part, result_part, tool_id},
        },
        wire::{Object, RequestCx, Value, compact, write_json},
    },
};

const LINE_FEED: &str = "\\n";

/// Translates the body of a messages request to the body of a responses request, for the vendor of this name. Puts this
/// vendor's reasoning, which the caller returns in capsules, into the input.
///
/// # Errors
/// [`Error::Invalid`], which names a field that has the wrong type or that the responses format cannot express.
pub fn of_messages(body: &[u8], vendor: &str, cx: &RequestCx<'_>) -> Result<Bytes, Error> {
    let raw: &RawValue = serde_json::from_slice(body)
        .map_err(|error| Error::invalid("", Problem::NotJson(error.to_string())))?;
    let path = Path::Root;
    let fields = Value { path, raw }.object()?;
    messages::every_field_is_known(&fields)?;
    // The format has no stop sequences, and the answer would not stop where the caller expects it to.
    if let Some(stop) = fields.get("stop_sequences")?
        && !is_empty_array(stop.raw)
    {
        return Err(stop.refuse(Problem::NotTranslated));
    }
    let dialect = cx.dialect;
    let tools = tools(&fields)?;
    let (tool_choice, parallel) = choice(&fields, tools.is_empty())?;
    let thinks = thinks(&fields)?;
    let reasoning = Reasoning {
        effort: messages::effort(&fields)?
            .filter(|_| dialect.reasoning_effort)
            .map(string),
        summary: (thinks && dialect.reasoning_summary).then_some("auto"),
    };
    let system = fields.get("system")?;
    let system = system.map(|system| instruction(&system, SystemRole::System));
    let stream = fields
        .get("stream")?
        .map_or(Ok(false), |flag| flag.flag())?;
    let responses = Body {
        model: cx.model,
        instructions: system.transpose()?.flatten().and_then(told),
        input: conversation(&fields.need("messages")?, vendor)?,
        max_output_tokens: cx
            .output_tokens
            .max(crate::call::Format::Responses.output_tokens_min()),
        temperature: cx.sampling(&fields, "temperature")?,
        top_p: cx.sampling(&fields, "top_p")?,
        tools,
        tool_choice,
        parallel_tool_calls: parallel,
        text: messages::schema(&fields, dialect)?.map(|schema| Text {
            format: Some(Format::JsonSchema {
                name: string("answer"),
                description: None,
                schema,
                strict: true,
            }),
            verbosity: None,
        }),
        reasoning: (reasoning.effort.is_some() || reasoning.summary.is_some()).then_some(reasoning),
        include: (thinks && dialect.encrypted_reasoning).then_some([ENCRYPTED_REASONING]),
        store: false,
        user: None,
        safety_identifier: messages::user(&fields)?,
        prompt_cache_key: cx.cache_key(&fields, crate::call::Format::Responses)?,
        metadata: None,
        stream: stream.then_some(true),
    };
    let mut out = BytesMut::with_capacity(body.len() + body.len() / 8 + 256);
    write_json(&mut out, &responses);
    Ok(out.freeze())
}

/// Returns the text of an instruction.
fn told(message: Message<'_>) -> Option<Json<'_>> {
    match message {
        Message::System { content } => Some(content),
        _ => None,
    }
}

/// Returns whether the request enables thinking.
fn thinks(fields: &Object<'_, '_>) -> Result<bool, Error> {
    let Some(thinking) = fields.get("thinking")? else {
        return Ok(false);
    };
    Ok(thinking.object()?.need("type")?.string()? != "disabled")
}

fn conversation<'a>(messages: &Value<'a, '_>, vendor: &str) -> Result<Vec<Item<'a>>, Error> {
    let mut items = Vec::new();
    for (index, raw) in messages.array()?.into_iter().enumerate() {
        let path = Path::Index(&messages.path, index);
        let turn = Value { path, raw }.object()?;
        let content = turn.need("content")?;
        match &*turn.need("role")?.string()? {
            "user" => user(&content, &mut items)?,
            "assistant" => assistant(&content, vendor, &mut items)?,
            // Instructions stay in their place, because they apply from there on.
            "system" => {
                if let Some(text) = instruction(&content, SystemRole::System)?.and_then(told) {
                    items.push(Item::Message {
                        role: "developer",
                        content: vec![Content::InputText { text }],
                    });
                }
            }
            _ => return Err(turn.refuse("role", Problem::NotOneOf("user, assistant"))),
        }
    }
    if items.is_empty() {
        return Err(messages.refuse(Problem::Empty));
    }
    Ok(items)
}

/// Adds a turn of the user: first the tool results, which must follow their calls directly; then everything else as one
/// message.
fn user<'a>(content: &Value<'a, '_>, items: &mut Vec<Item<'a>>) -> Result<(), Error> {
    let mut parts = Vec::new();
    blocks(content, |block| match block {
        Block::Other("tool_result", block) => {
            items.push(result(block)?);
            Ok(())
        }
        block => part(&block, &mut parts),
    })?;
    if !parts.is_empty() {
        items.push(Item::Message {
            role: "user",
            content: parts.into_iter().map(Content::of).collect(),
        });
    }
    Ok(())
}

fn result<'a>(block: &Object<'a, '_>) -> Result<Item<'a>, Error> {
    let mut parts = Vec::new();
    if let Some(content) = block.get("content")? {
        blocks(&content, |block| result_part(&block, &mut parts))?;
    }
    let failed = block
        .get("is_error")?
        .map_or(Ok(false), |flag| flag.flag())?;
    let only_text = parts.iter().all(|part| matches!(part, Part::Text { .. }));
    let output = if only_text {
        let texts = parts.into_iter().filter_map(|part| match part {
            Part::Text { text } => Some(text),
            _ => None,
        });
        let text = joined(texts.collect(), LINE_FEED);
        let said = inner(&text).unwrap_or_default();
        Output::Text(match (failed, said.is_empty()) {
            (false, _) => text,
            (true, true) => string("Error"),
            (true, false) => quoted(&["Error: ", said]),
        })
    } else {
        let mut list: Vec<Content<'a>> = parts.into_iter().map(Content::of).collect();
        if failed {
            let text = string("Error:");
            list.insert(0, Content::InputText { text });
        }
        Output::Parts(list)
    };
    Ok(Item::FunctionCallOutput {
        call_id: tool_id(&block.need("tool_use_id")?)?,
        output,
    })
}

/// Adds a turn of the assistant: texts, calls, and the vendor's own reasoning, in order. Consecutive texts become one
/// message.
fn assistant<'a>(
    content: &Value<'a, '_>,
    vendor: &str,
    items: &mut Vec<Item<'a>>,
) -> Result<(), Error> {
    let mut texts = Vec::new();
    blocks(content, |block| {
        let (kind, block) = match block {
            Block::Text(text) => {
                let text = Cow::Borrowed(text);
                texts.push(Content::OutputText { text });
                return Ok(());
            }
            Block::Other(kind, block) => (kind, block),
        };
        let item = match kind {
            "tool_use" => Some(call(block)?),
            "thinking" => reasoning(block, "signature", vendor)?,
            "redacted_thinking" => reasoning(block, "data", vendor)?,
            _ => return Err(block.refuse("type", Problem::NotTranslated)),
        };
        if let Some(item) = item {
            say(&mut texts, items);
            items.push(item);
        }
        Ok(())
    })?;
    say(&mut texts, items);
    Ok(())
}

fn say<'a>(texts: &mut Vec<Content<'a>>, items: &mut Vec<Item<'a>>) {
    if !texts.is_empty() {
        items.push(Item::Message {
            role: "assistant",
            content: std::mem::take(texts),
        });
    }
}

fn call<'a>(block: &Object<'a, '_>) -> Result<Item<'a>, Error> {
    let input = block.need("input")?;
    if !input.raw.get().starts_with('{') {
        return Err(input.wrong_type("object"));
    }
    Ok(Item::FunctionCall {
        call_id: tool_id(&block.need("id")?)?,
        name: shortened(Cow::Borrowed(literal(&block.need("name")?)?)),
        arguments: string(&compact(input.raw)),
    })
}

/// Returns the vendor's own reasoning item, byte for byte. A capsule of another vendor, or a signature that is not a
/// capsule, is left out.
fn reasoning<'a>(
    block: &Object<'_, '_>,
    field: &str,
    vendor: &str,
) -> Result<Option<Item<'a>>, Error> {
    let Some(sealed) = block.get(field)? else {
        return Ok(None);
    };
    let item = capsule::open(&sealed.string()?, vendor);
    let item = item.filter(|json| capsule::is_of(json, &["reasoning"]));
    let raw = item.and_then(|json| RawValue::from_string(json).ok());
    Ok(raw.map(Item::Raw))
}

fn tools<'a>(fields: &Object<'a, '_>) -> Result<Vec<Tool<'a>>, Error> {
    let Some(list) = fields.get("tools")? else {
        return Ok(Vec::new());
    };
    let mut tools = Vec::new();
    for (index, raw) in list.array()?.into_iter().enumerate() {
        let path = Path::Index(&list.path, index);
        let tool = Value { path, raw }.object()?;
        if let Some(kind) = tool.get("type")?
            && kind.string()? != "custom"
        {
            return Err(kind.refuse(Problem::NotTranslated));
        }
        tools.push(Tool::Function {
            name: shortened(Cow::Borrowed(literal(&tool.need("name")?)?)),
            description: optional(&tool, "description")?.map(Cow::Borrowed),
            parameters: messages::parameters(&tool)?,
            strict: tool.get("strict")?.map_or(Ok(false), |flag| flag.flag())?,
        });
    }
    Ok(tools)
}

fn choice<'a>(
    fields: &Object<'a, '_>,
    no_tools: bool,
) -> Result<(Option<Json<'a>>, Option<bool>), Error> {
    let Some(choice) = fields.get("tool_choice")? else {
        return Ok((None, None));
    };
    let choice = choice.object()?;
    let chosen = match &*choice.need("type")?.string()? {
        "any" | "tool" if no_tools => {
            return Err(fields.refuse("tool_choice", Problem::Contradicts("tools")));
        }
        "auto" => string("auto"),
        "none" => string("none"),
        "any" => string("required"),
        "tool" => {
            let name = choice.need("name")?;
            let name = shortened(Cow::Borrowed(literal(&name)?));
            made(format!("{{\"type\":\"function\",\"name\":{name}}}"))
        }
        _ => {
            let kinds = "auto, any, tool, none";
            return Err(choice.refuse("type", Problem::NotOneOf(kinds)));
        }
    };
    let flag = choice.get("disable_parallel_tool_use")?;
    let one_at_a_time = flag.map_or(Ok(false), |flag| flag.flag())?;
    if no_tools {
        return Ok((None, None));
    }
    Ok((Some(chosen), one_at_a_time.then_some(false)))
}
