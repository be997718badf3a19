//! A responses request as a chat request.

use std::{borrow::Cow, collections::HashMap};

use bytes::{Bytes, BytesMut};
use serde::Serialize;
use serde_json::value::RawValue;

use super::{
    items::{self, Arguments, Called, Target},
    tools::{Choice, Tools},
    wishes::{self, Format},
};
use crate::{
    error::{Error, Problem},
    model::{OutputField, SystemRole},
    translate::{
        messages::{
            text::{Json, inner, joined, literal, made, optional, quoted, string},
            turns::{
                Address, Called as CalledFunction, Content, File, Message, Part, ToolCall, tool_id,
            },
        },
        wire::{Object, RequestCx, StreamOptions, Value, write_json},
    },
};

const LINE_FEED: &str = "\\n";

/// Puts a responses request into the chat format.
///
/// # Errors
/// [`Error::Invalid`] that names the field: it has another shape than the format gives it, or the chat
/// format has nothing like it.
pub fn to_chat(body: &[u8], cx: &RequestCx<'_>) -> Result<Bytes, Error> {
    let raw: &RawValue = serde_json::from_slice(body)
        .map_err(|error| Error::invalid("", Problem::NotJson(error.to_string())))?;
    let fields = wishes::body(raw)?;
    let dialect = cx.dialect;
    let tools = Tools::read(&fields)?;
    let mut conversation = Conversation::new(dialect.system_role);
    items::read(&fields, &mut conversation)?;
    let messages = conversation.finish();
    if messages.is_empty() {
        return Err(fields.refuse("input", Problem::Empty));
    }
    let stream = wishes::stream(&fields)?;
    let chat = Chat {
        model: cx.model,
        max_completion_tokens: cx.ceiling(OutputField::MaxCompletionTokens),
        max_tokens: cx.ceiling(OutputField::MaxTokens),
        messages,
        temperature: cx.sampling(&fields, "temperature")?,
        top_p: cx.sampling(&fields, "top_p")?,
        tool_choice: tools.choice.as_ref().map(choice),
        parallel_tool_calls: tools.parallel,
        tools: tools.list.into_iter().map(Tool::of).collect(),
        reasoning_effort: wishes::effort(&fields)?.filter(|_| dialect.reasoning_effort),
        verbosity: wishes::verbosity(&fields)?.filter(|_| dialect.verbosity),
        response_format: wishes::format(&fields, dialect)?.map(response_format),
        user: wishes::text(&fields, "user")?,
        safety_identifier: wishes::text(&fields, "safety_identifier")?,
        prompt_cache_key: wishes::text(&fields, "prompt_cache_key")?,
        metadata: fields.get("metadata")?.map(|metadata| metadata.raw),
        stream: stream.then_some(true),
        stream_options: StreamOptions::of(stream),
    };
    let mut out = BytesMut::with_capacity(body.len() + body.len() / 8 + 256);
    write_json(&mut out, &chat);
    Ok(out.freeze())
}

/// A chat request as it is written.
#[derive(Debug, Serialize)]
struct Chat<'a> {
    model: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    max_completion_tokens: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    max_tokens: Option<u64>,
    messages: Vec<Message<'a>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    temperature: Option<&'a RawValue>,
    #[serde(skip_serializing_if = "Option::is_none")]
    top_p: Option<&'a RawValue>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    tools: Vec<Tool<'a>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    tool_choice: Option<Json<'static>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    parallel_tool_calls: Option<bool>,
    #[serde(skip_serializing_if = "Option::is_none")]
    reasoning_effort: Option<Cow<'a, str>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    verbosity: Option<&'a RawValue>,
    #[serde(skip_serializing_if = "Option::is_none")]
    response_format: Option<ResponseFormat<'a>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    user: Option<&'a RawValue>,
    #[serde(skip_serializing_if = "Option::is_none")]
    safety_identifier: Option<&'a RawValue>,
    #[serde(skip_serializing_if = "Option::is_none")]
    prompt_cache_key: Option<&'a RawValue>,
    #[serde(skip_serializing_if = "Option::is_none")]
    metadata: Option<&'a RawValue>,
    #[serde(skip_serializing_if = "Option::is_none")]
    stream: Option<bool>,
    #[serde(skip_serializing_if = "Option::is_none")]
    stream_options: Option<StreamOptions>,
}

#[derive(Debug, Serialize)]
#[serde(tag = "type", rename_all = "lowercase")]
enum Tool<'a> {
    Function { function: Function<'a> },
}

#[derive(Debug, Serialize)]
struct Function<'a> {
    name: Json<'a>,
    #[serde(skip_serializing_if = "Option::is_none")]
    description: Option<Json<'a>>,
    parameters: Json<'a>,
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    strict: bool,
}

impl<'a> Tool<'a> {
    fn of(tool: super::tools::Tool<'a>) -> Self {
        Self::Function {
            function: Function {
                name: tool.flat,
                description: tool.description,
                parameters: tool.parameters,
                strict: tool.strict,
            },
        }
    }
}

#[derive(Debug, Serialize)]
#[serde(tag = "type", rename_all = "snake_case")]
enum ResponseFormat<'a> {
    JsonObject,
    JsonSchema { json_schema: Schema<'a> },
}

#[derive(Debug, Serialize)]
struct Schema<'a> {
    name: Json<'a>,
    #[serde(skip_serializing_if = "Option::is_none")]
    description: Option<&'a RawValue>,
    schema: &'a RawValue,
    strict: bool,
}

fn response_format(format: Format<'_>) -> ResponseFormat<'_> {
    match format {
        Format::Object => ResponseFormat::JsonObject,
        Format::Schema {
            name,
            description,
            schema,
            strict,
        } => ResponseFormat::JsonSchema {
            json_schema: Schema {
                name: name.map_or_else(|| string("answer"), Cow::Borrowed),
                description,
                schema,
                strict,
            },
        },
    }
}

fn choice(choice: &Choice<'_>) -> Json<'static> {
    match choice {
        Choice::Auto => string("auto"),
        Choice::None => string("none"),
        Choice::Required => string("required"),
        Choice::Named(name) => made(format!(
            "{{\"type\":\"function\",\"function\":{{\"name\":\"{name}\"}}}}"
        )),
    }
}

/// The messages, each with the results that stand right behind it.
struct Conversation<'a> {
    role: SystemRole,
    turns: Vec<(Message<'a>, Vec<Message<'a>>)>,
    /// Calls without a result so far, and their messages.
    open_calls: HashMap<String, usize>,
    /// What results hold that tool messages cannot: it leads the next user's message.
    attached: Vec<Part<'a>>,
}

impl<'a> Conversation<'a> {
    fn new(role: SystemRole) -> Self {
        Self {
            role,
            turns: Vec::new(),
            open_calls: HashMap::new(),
            attached: Vec::new(),
        }
    }

    fn push(&mut self, message: Message<'a>) {
        self.turns.push((message, Vec::new()));
    }

    /// Before the model speaks again.
    fn say_attached(&mut self) {
        if !self.attached.is_empty() {
            self.user(Vec::new());
        }
    }

    fn finish(mut self) -> Vec<Message<'a>> {
        self.say_attached();
        let turns = self.turns.into_iter();
        turns
            .flat_map(|(message, results)| std::iter::once(message).chain(results))
            .collect()
    }
}

impl<'a> Target<'a> for Conversation<'a> {
    type Part = Part<'a>;

    fn text(&self, text: &Value<'a, '_>) -> Result<Part<'a>, Error> {
        let text = Cow::Borrowed(literal(text)?);
        Ok(Part::Text { text })
    }

    fn image(&self, part: &Object<'a, '_>) -> Result<Part<'a>, Error> {
        let url = Cow::Borrowed(literal(&part.need("image_url")?)?);
        let detail = optional(part, "detail")?.map(|detail| match detail.get() {
            "\"original\"" => string("high"),
            _ => Cow::Borrowed(detail),
        });
        Ok(Part::ImageUrl {
            image_url: Address { url, detail },
        })
    }

    fn file(&self, part: &Object<'a, '_>) -> Result<Part<'a>, Error> {
        let data = literal(&part.need("file_data")?)?;
        let filename = optional(part, "filename")?;
        Ok(Part::File {
            file: File {
                filename: filename.map_or_else(|| string("document.pdf"), Cow::Borrowed),
                file_data: Cow::Borrowed(data),
            },
        })
    }

    fn instruct(&mut self, texts: Vec<Part<'a>>) {
        if texts.is_empty() {
            return;
        }
        // One string: many vendors of the family take no parts here, and no other role than one.
        let content = joined(texts_of(texts), LINE_FEED);
        self.push(match self.role {
            SystemRole::Developer => Message::Developer { content },
            SystemRole::System => Message::System { content },
        });
    }

    fn user(&mut self, mut parts: Vec<Part<'a>>) {
        if !self.attached.is_empty() {
            let mut attached = std::mem::take(&mut self.attached);
            attached.append(&mut parts);
            parts = attached;
        }
        self.push(Message::User {
            content: Content::of(parts),
        });
    }

    fn assistant(&mut self, texts: Vec<Part<'a>>) {
        if texts.is_empty() {
            return;
        }
        self.say_attached();
        self.push(Message::Assistant {
            content: Some(joined(texts_of(texts), "")),
            tool_calls: Vec::new(),
        });
    }

    /// What was thought stays with the model that thought it.
    fn reasoning(&mut self, _encrypted: &str) {}

    fn call(&mut self, call: &Called<'a, '_>) -> Result<(), Error> {
        self.say_attached();
        let arguments = match &call.arguments {
            Arguments::Json(None) => string("{}"),
            Arguments::Json(Some(arguments)) => Cow::Borrowed(literal(arguments)?),
            Arguments::Free(text) => string(&Arguments::wrapped(text)),
        };
        let written = ToolCall {
            id: tool_id(&call.id)?,
            kind: "function",
            function: CalledFunction {
                name: call.name.clone(),
                arguments,
            },
        };
        let going_on = match self.turns.last_mut() {
            Some((Message::Assistant { tool_calls, .. }, results)) if results.is_empty() => {
                Some(tool_calls)
            }
            _ => None,
        };
        match going_on {
            Some(tool_calls) => tool_calls.push(written),
            None => self.push(Message::Assistant {
                content: None,
                tool_calls: vec![written],
            }),
        }
        let message = self.turns.len() - 1;
        let id = call.id.string()?.into_owned();
        self.open_calls.insert(id, message);
        Ok(())
    }

    fn result(&mut self, id: &Value<'a, '_>, parts: Vec<Part<'a>>) -> Result<(), Error> {
        let Some(message) = self.open_calls.remove(&*id.string()?) else {
            // Vendors refuse a result without its call.
            self.user(parts);
            return Ok(());
        };
        let (mut texts, before) = (Vec::new(), self.attached.len());
        for part in parts {
            match part {
                Part::Text { text } => texts.push(text),
                part => self.attached.push(part),
            }
        }
        let mut content = joined(texts, LINE_FEED);
        if inner(&content) == Some("") && self.attached.len() > before {
            content = quoted(&["See the next message."]);
        }
        self.turns[message].1.push(Message::Tool {
            tool_call_id: tool_id(id)?,
            content,
        });
        Ok(())
    }
}

fn texts_of(parts: Vec<Part<'_>>) -> Vec<Json<'_>> {
    let parts = parts.into_iter();
    parts
        .filter_map(|part| match part {
            Part::Text { text } => Some(text),
            Part::ImageUrl { .. } | Part::File { .. } => None,
        })
        .collect()
}
