//! Translates a responses request to a chat request.

use std::{borrow::Cow, collections::HashMap};

use bytes::Bytes;
use serde_json::value::RawValue;

use super::{
    items::{self, Arguments, Called, Target},
    tools::{Choice, Tools},
    wishes::{self, Format},
};
use crate::{
    error::{Error, Problem},
    model::SystemRole,
    path::Path,
    translate::{
        chat_state::{Reasoning, Returned},
        formats::chat::body::{Body, Function, ResponseFormat, Tool, choose},
        messages::{
            text::{Json, inner, joined, literal, optional, quoted, string},
            turns::{
                Address, Called as CalledFunction, Content, File, Message, Part, ToolCall, tool_id,
            },
        },
        wire::{Object, RequestCx, Value},
    },
};

const LINE_FEED: &str = "\\n";

/// Translates the body of a responses request to the body of a chat request, for the vendor of this name. Puts the
/// state that this vendor needs back, which the caller returns in capsules, into the messages.
///
/// # Errors
/// [`Error::Invalid`], which names a field that has the wrong type or that the chat format cannot express.
pub fn to_chat(body: &[u8], vendor: &str, cx: &RequestCx<'_>) -> Result<Bytes, Error> {
    let raw: &RawValue = serde_json::from_slice(body)
        .map_err(|error| Error::invalid("", Problem::NotJson(error.to_string())))?;
    let fields = wishes::body(raw)?;
    let dialect = cx.dialect;
    let tools = Tools::read(&fields)?;
    let role = dialect.system_role.unwrap_or_default();
    let mut conversation = Conversation::new(role, vendor);
    items::read(&fields, &mut conversation)?;
    let messages = conversation.finish();
    if messages.is_empty() {
        return Err(fields.refuse("input", Problem::Empty));
    }
    let stream = wishes::stream(&fields)?;
    let chat = Body {
        temperature: cx.sampling(&fields, "temperature")?,
        top_p: cx.sampling(&fields, "top_p")?,
        tool_choice: tools.choice.as_ref().map(choice),
        parallel_tool_calls: tools.parallel,
        tools: tools.list.into_iter().map(tool).collect(),
        reasoning_effort: wishes::effort(&fields)?.filter(|_| dialect.reasoning_effort),
        verbosity: wishes::verbosity(&fields)?.filter(|_| dialect.verbosity),
        response_format: wishes::format(&fields, dialect)?.map(response_format),
        user: wishes::text(&fields, "user")?,
        safety_identifier: wishes::text(&fields, "safety_identifier")?,
        prompt_cache_key: cx.cache_key(&fields, crate::call::Format::Chat)?,
        metadata: fields.get("metadata")?.map(|metadata| metadata.raw),
        ..Body::new(cx, messages, stream)
    };
    Ok(chat.json(body.len()))
}

fn tool(tool: super::tools::Tool<'_>) -> Tool<'_> {
    Tool::Function {
        function: Function {
            name: tool.flat,
            description: tool.description,
            parameters: tool.parameters,
            strict: tool.strict.then_some(true),
        },
    }
}

fn response_format(format: Format<'_>) -> ResponseFormat<'_> {
    match format {
        Format::Object => ResponseFormat::JsonObject,
        Format::Schema {
            name,
            description,
            schema,
            strict,
        } => ResponseFormat::schema(name, description, schema, strict),
    }
}

fn choice(choice: &Choice<'_>) -> Json<'static> {
    match choice {
        Choice::Auto => string("auto"),
        Choice::None => string("none"),
        Choice::Required => string("required"),
        Choice::Named(name) => choose(&quoted(&[name])),
    }
}

/// Collects the messages of a conversation. Results are put directly after the assistant's message with their calls.
struct Conversation<'a, 'v> {
    role: SystemRole,
    vendor: &'v str,
    turns: Vec<Turn<'a>>,
    /// Tool calls that have no result yet: by id, the index of the turn with the call.
    open_calls: HashMap<String, usize>,
    /// Images and documents of tool results, which tool messages cannot contain; the user's next message begins with
    /// them.
    attached: Vec<Part<'a>>,
    /// State for the calls that follow.
    returned: Returned<'a>,
}

enum Turn<'a> {
    Said(Message<'a>),
    Assistant(Assistant<'a>),
}

/// A turn of the assistant: its text, its calls and their results.
#[derive(Default)]
struct Assistant<'a> {
    content: Option<Json<'a>>,
    reasoning: Reasoning<'a>,
    tool_calls: Vec<ToolCall<'a>>,
    /// The ids of the calls, as the caller gave them.
    ids: Vec<String>,
    results: Vec<Message<'a>>,
}

impl<'a, 'v> Conversation<'a, 'v> {
    fn new(role: SystemRole, vendor: &'v str) -> Self {
        Self {
            role,
            vendor,
            turns: Vec::new(),
            open_calls: HashMap::new(),
            attached: Vec::new(),
            returned: Returned::default(),
        }
    }

    fn push(&mut self, message: Message<'a>) {
        self.turns.push(Turn::Said(message));
    }

    /// Adds a message of the user with the images and documents of tool results, if there are any. Called before the
    /// assistant's next turn.
    fn say_attached(&mut self) {
        if !self.attached.is_empty() {
            self.say(Vec::new());
        }
    }

    fn say(&mut self, mut parts: Vec<Part<'a>>) {
        if !self.attached.is_empty() {
            let mut attached = std::mem::take(&mut self.attached);
            attached.append(&mut parts);
            parts = attached;
        }
        self.push(Message::User {
            content: Content::of(parts),
        });
    }

    fn finish(mut self) -> Vec<Message<'a>> {
        self.say_attached();
        let mut messages = Vec::with_capacity(self.turns.len());
        for turn in self.turns {
            match turn {
                Turn::Said(message) => messages.push(message),
                Turn::Assistant(Assistant {
                    content,
                    reasoning,
                    tool_calls,
                    results,
                    ..
                }) => {
                    messages.push(Message::assistant(content, tool_calls, reasoning));
                    messages.extend(results);
                }
            }
        }
        messages
    }

    /// Returns the assistant's last turn, if it has no results yet and can be continued.
    fn going_on(&mut self) -> Option<&mut Assistant<'a>> {
        match self.turns.last_mut() {
            Some(Turn::Assistant(turn)) if turn.results.is_empty() => Some(turn),
            _ => None,
        }
    }
}

impl<'a> Target<'a> for Conversation<'a, '_> {
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
        // Sent as one string and with one role, because many chat vendors accept neither a list of parts nor two roles
        // here.
        let content = joined(texts_of(texts), LINE_FEED);
        self.push(match self.role {
            SystemRole::Developer => Message::Developer { content },
            SystemRole::System => Message::System { content },
        });
    }

    fn user(&mut self, parts: Vec<Part<'a>>) {
        // Reasoning that is followed by a message of the user was not followed by a tool call, so it is not sent.
        drop(self.returned.reasoning());
        self.say(parts);
    }

    fn assistant(&mut self, texts: Vec<Part<'a>>) {
        if texts.is_empty() {
            return;
        }
        self.say_attached();
        self.turns.push(Turn::Assistant(Assistant {
            content: Some(joined(texts_of(texts), "")),
            ..Assistant::default()
        }));
    }

    fn reasoning(&mut self, encrypted: &str, item: &Object<'a, '_>) -> Result<(), Error> {
        let mut texts = Vec::new();
        if let Some(content) = item.get("content")? {
            let list = content.objects()?.into_iter();
            for (index, fields) in list.enumerate() {
                let path = Path::Index(&content.path, index);
                let part = Object { path, fields };
                texts.extend(optional(&part, "text")?.map(Cow::Borrowed));
            }
        }
        self.returned.take(encrypted, self.vendor, texts);
        // The capsule with the signature of a call may come after the call.
        if let Some(Turn::Assistant(turn)) = self.turns.last_mut() {
            for (call, id) in turn.tool_calls.iter_mut().zip(&turn.ids) {
                if call.extra_content.is_none() {
                    call.extra_content = self.returned.signature(id);
                }
            }
        }
        Ok(())
    }

    fn call(&mut self, call: &Called<'a, '_>) -> Result<(), Error> {
        self.say_attached();
        let arguments = match &call.arguments {
            Arguments::Json(None) => string("{}"),
            Arguments::Json(Some(arguments)) => Cow::Borrowed(literal(arguments)?),
            Arguments::Free(text) => string(&Arguments::wrapped(text)),
        };
        let id = call.id.string()?.into_owned();
        let written = ToolCall {
            id: tool_id(&call.id)?,
            extra_content: self.returned.signature(&id),
            kind: "function",
            function: CalledFunction {
                name: call.name.clone(),
                arguments,
            },
        };
        let reasoning = self.returned.reasoning();
        if self.going_on().is_none() {
            self.turns.push(Turn::Assistant(Assistant::default()));
        }
        if let Some(turn) = self.going_on() {
            turn.reasoning.append(reasoning);
            turn.tool_calls.push(written);
            turn.ids.push(id.clone());
        }
        self.open_calls.insert(id, self.turns.len() - 1);
        Ok(())
    }

    fn result(&mut self, id: &Value<'a, '_>, parts: Vec<Part<'a>>) -> Result<(), Error> {
        let Some(message) = self.open_calls.remove(&*id.string()?) else {
            // Vendors reject a result without its call, so it becomes a text of the user.
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
        if let Turn::Assistant(turn) = &mut self.turns[message] {
            turn.results.push(Message::Tool {
                tool_call_id: tool_id(id)?,
                content,
            });
        }
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
