//! The conversation: a chat request's messages as instructions and turns of the messages format.

use std::{borrow::Cow, collections::HashSet};

use serde::Serialize;
use serde_json::value::RawValue;

use crate::{
    error::{Error, Problem},
    path::Path,
    translate::wire::{Object, Value},
};

const ROLES: &str = "system, developer, user, assistant, tool";
pub(in crate::translate) const IMAGES: &str = "data:image/(jpeg|png|gif|webp);base64,…, https:…";
const FILES: &str = "data:application/pdf;base64,…";

/// A conversation of the messages format.
///
/// Turns of one role in a row are one turn, its blocks in their order but for tool results, which come
/// first. The first turn may be the assistant's, as in the request: nothing is put in its place.
#[derive(Debug, Default)]
pub(in crate::translate) struct Conversation<'a> {
    /// Instructions, wherever they stood.
    pub(in crate::translate) system: Vec<Block<'a>>,
    /// The turns.
    pub(in crate::translate) turns: Vec<Turn<'a>>,
    /// Calls of the last assistant's turn without a result so far.
    open_calls: HashSet<Cow<'a, str>>,
}

/// A turn.
#[derive(Debug, Serialize)]
pub(in crate::translate) struct Turn<'a> {
    role: Role,
    content: Vec<Block<'a>>,
    /// Results go before everything else of their turn.
    #[serde(skip)]
    results: Vec<Block<'a>>,
    #[serde(skip)]
    has_results: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
enum Role {
    User,
    Assistant,
}

/// A block of a turn.
#[derive(Debug, Serialize)]
#[serde(tag = "type", rename_all = "snake_case")]
pub(in crate::translate) enum Block<'a> {
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
    /// A block as the vendor wrote it: its thinking.
    #[serde(untagged)]
    Raw(Box<RawValue>),
}

/// Where an image or a document is.
#[derive(Debug, Serialize)]
#[serde(tag = "type", rename_all = "snake_case")]
pub(in crate::translate) enum Source<'a> {
    Base64 {
        media_type: &'static str,
        data: Cow<'a, str>,
    },
    Url {
        url: Cow<'a, str>,
    },
}

impl<'a> Conversation<'a> {
    /// Reads `messages`.
    pub(in crate::translate) fn read(messages: &Value<'a, '_>) -> Result<Self, Error> {
        let mut conversation = Self::default();
        for (index, fields) in messages.objects()?.into_iter().enumerate() {
            let path = Path::Index(&messages.path, index);
            conversation.message(&Object { path, fields })?;
        }
        conversation.finish(messages)?;
        Ok(conversation)
    }

    /// Puts each turn's blocks into their order, if there is any turn: `messages` is what they came of.
    pub(in crate::translate) fn finish(&mut self, messages: &Value<'a, '_>) -> Result<(), Error> {
        if self.turns.is_empty() {
            return Err(messages.refuse(Problem::NothingSaid));
        }
        for turn in &mut self.turns {
            turn.has_results = !turn.results.is_empty();
            turn.results.append(&mut turn.content);
            std::mem::swap(&mut turn.results, &mut turn.content);
        }
        Ok(())
    }

    /// Whether the assistant's last turn begins with its vendor's own thinking.
    pub(in crate::translate) fn thought(&self) -> bool {
        let last = self
            .turns
            .iter()
            .rev()
            .find(|turn| turn.role == Role::Assistant);
        last.is_some_and(|turn| matches!(turn.content.first(), Some(Block::Raw(_))))
    }

    /// Blocks of the user's.
    pub(in crate::translate) fn user(&mut self, blocks: Vec<Block<'a>>) {
        self.say(Role::User, blocks);
    }

    /// Blocks of the assistant's, and the ids of the calls among them.
    pub(in crate::translate) fn answered(
        &mut self,
        blocks: Vec<Block<'a>>,
        calls: Vec<Cow<'a, str>>,
    ) {
        if blocks.is_empty() {
            return;
        }
        if self
            .turns
            .last()
            .is_none_or(|turn| turn.role != Role::Assistant)
        {
            self.open_calls.clear();
        }
        self.open_calls.extend(calls);
        self.say(Role::Assistant, blocks);
    }

    /// Whether the answer goes on with a turn of the assistant's that began without thinking: between
    /// a tool's call and what follows its result, or behind a prefilled turn. Vendors refuse thinking
    /// there, since the chat format cannot carry the thinking that came before.
    pub(in crate::translate) fn within_a_turn(&self) -> bool {
        self.turns
            .last()
            .is_some_and(|turn| turn.role == Role::Assistant || turn.has_results)
    }

    fn message(&mut self, message: &Object<'a, '_>) -> Result<(), Error> {
        let role = message.need("role")?;
        match &*role.string()? {
            "system" | "developer" => self.system.extend(blocks(message, Speaker::Instructor)?),
            "user" => self.say(Role::User, blocks(message, Speaker::User)?),
            "assistant" => self.assistant(message)?,
            "tool" => self.tool(message)?,
            _ => return Err(role.refuse(Problem::NotOneOf(ROLES))),
        }
        Ok(())
    }

    fn assistant(&mut self, message: &Object<'a, '_>) -> Result<(), Error> {
        for name in ["function_call", "audio"] {
            if let Some(value) = message.get(name)? {
                return Err(value.refuse(Problem::Unsupported));
            }
        }
        let mut content = blocks(message, Speaker::Assistant)?;
        let calls = match message.get("tool_calls")? {
            None => Vec::new(),
            Some(calls) => {
                let mut ids = Vec::new();
                for (index, fields) in calls.objects()?.into_iter().enumerate() {
                    let path = Path::Index(&calls.path, index);
                    let (id, block) = tool_use(&Object { path, fields })?;
                    ids.push(id);
                    content.push(block);
                }
                ids
            }
        };
        self.answered(content, calls);
        Ok(())
    }

    fn tool(&mut self, message: &Object<'a, '_>) -> Result<(), Error> {
        let id = message.need("tool_call_id")?.string()?;
        let content = blocks(message, Speaker::Tool)?;
        self.result(id, content);
        Ok(())
    }

    /// A result that answers no call of the turn before is the user's text: vendors refuse it as a
    /// result (case 14).
    pub(in crate::translate) fn result(&mut self, id: Cow<'a, str>, content: Vec<Block<'a>>) {
        if self.open_calls.remove(&*id) {
            let tool_use_id = vendor_id(id);
            self.turn(Role::User).results.push(Block::ToolResult {
                tool_use_id,
                content,
            });
        } else {
            self.say(Role::User, content);
        }
    }

    fn say(&mut self, role: Role, mut blocks: Vec<Block<'a>>) {
        if !blocks.is_empty() {
            self.turn(role).content.append(&mut blocks);
        }
    }

    /// The turn that goes on, or a new one.
    fn turn(&mut self, role: Role) -> &mut Turn<'a> {
        if self.turns.last().is_none_or(|turn| turn.role != role) {
            self.turns.push(Turn {
                role,
                content: Vec::new(),
                results: Vec::new(),
                has_results: false,
            });
        }
        self.turns.last_mut().expect("there is one by now")
    }
}

/// Whose content is read.
#[derive(Clone, Copy, Debug)]
enum Speaker {
    Instructor,
    User,
    Assistant,
    Tool,
}

/// A message's content. Blocks without text are left out: vendors refuse them.
fn blocks<'a>(message: &Object<'a, '_>, speaker: Speaker) -> Result<Vec<Block<'a>>, Error> {
    let mut blocks = Vec::new();
    let Some(content) = message.get("content")? else {
        return Ok(blocks);
    };
    let mut push = |block: Block<'a>| {
        if !matches!(&block, Block::Text { text } if text.trim().is_empty()) {
            blocks.push(block);
        }
    };
    if !content.raw.get().starts_with('[') {
        let text = content
            .string()
            .map_err(|_| content.wrong_type("string or array"))?;
        push(Block::Text { text });
        return Ok(blocks);
    }
    for (index, fields) in content.objects()?.into_iter().enumerate() {
        let path = Path::Index(&content.path, index);
        push(block(&Object { path, fields }, speaker)?);
    }
    Ok(blocks)
}

fn block<'a>(part: &Object<'a, '_>, speaker: Speaker) -> Result<Block<'a>, Error> {
    let kind = part.need("type")?;
    match (&*kind.string()?, speaker) {
        ("text", _) => Ok(Block::Text {
            text: part.need("text")?.string()?,
        }),
        ("refusal", Speaker::Assistant) => Ok(Block::Text {
            text: part.need("refusal")?.string()?,
        }),
        ("image_url", Speaker::User | Speaker::Tool) => image(part),
        ("file", Speaker::User | Speaker::Tool) => document(part),
        _ => Err(kind.refuse(Problem::Unsupported)),
    }
}

/// An image by its address, which goes to the vendor as it is: it is never fetched here.
fn image<'a>(part: &Object<'a, '_>) -> Result<Block<'a>, Error> {
    let image = part.need("image_url")?;
    // Some clients write the address itself in the object's place.
    if image.raw.get().starts_with('"') {
        return Ok(Block::Image {
            source: image_source(&image)?,
        });
    }
    let image = image.object()?;
    Ok(Block::Image {
        source: image_source(&image.need("url")?)?,
    })
}

pub(in crate::translate) fn image_source<'a>(value: &Value<'a, '_>) -> Result<Source<'a>, Error> {
    let url = value.string()?;
    if let Some(data) = DataUrl::read(&url) {
        let media_type = match data.media_type.as_str() {
            "image/jpeg" | "image/jpg" => "image/jpeg",
            "image/png" => "image/png",
            "image/gif" => "image/gif",
            "image/webp" => "image/webp",
            _ => return Err(value.refuse(Problem::NotOneOf(IMAGES))),
        };
        return data.source(media_type, url, value);
    }
    if starts_with(&url, "https://") || starts_with(&url, "http://") {
        return Ok(Source::Url { url });
    }
    Err(value.refuse(Problem::NotOneOf(IMAGES)))
}

fn document<'a>(part: &Object<'a, '_>) -> Result<Block<'a>, Error> {
    let file = part.need("file")?.object()?;
    if let Some(id) = file.get("file_id")? {
        return Err(id.refuse(Problem::Unsupported));
    }
    pdf(&file)
}

/// A PDF in `file_data`, and its name.
pub(in crate::translate) fn pdf<'a>(file: &Object<'a, '_>) -> Result<Block<'a>, Error> {
    let value = file.need("file_data")?;
    let url = value.string()?;
    let Some(data) = DataUrl::read(&url).filter(|data| data.media_type == "application/pdf") else {
        return Err(value.refuse(Problem::NotOneOf(FILES)));
    };
    let title = match file.get("filename")? {
        None => None,
        Some(name) => Some(name.string()?).filter(|name| !name.trim().is_empty()),
    };
    Ok(Block::Document {
        source: data.source("application/pdf", url, &value)?,
        title,
    })
}

/// What stands before the data of a `data:` address (RFC 2397) with base64.
struct DataUrl {
    /// In lower case, without parameters.
    media_type: String,
    /// Where the data begins.
    start: usize,
}

impl DataUrl {
    fn read(url: &str) -> Option<Self> {
        let comma = url.find(',').filter(|_| starts_with(url, "data:"))?;
        let head = url["data:".len()..comma].to_ascii_lowercase();
        let kind = head.strip_suffix(";base64")?;
        let media_type = kind.split(';').next().unwrap_or_default().trim().to_owned();
        Some(Self {
            media_type,
            start: comma + 1,
        })
    }

    fn source<'a>(
        &self,
        media_type: &'static str,
        url: Cow<'a, str>,
        value: &Value<'a, '_>,
    ) -> Result<Source<'a>, Error> {
        let data = match url {
            Cow::Borrowed(url) => Cow::Borrowed(&url[self.start..]),
            Cow::Owned(mut url) => {
                url.drain(..self.start);
                Cow::Owned(url)
            }
        };
        if data.is_empty() {
            return Err(value.refuse(Problem::Empty));
        }
        Ok(Source::Base64 { media_type, data })
    }
}

fn starts_with(text: &str, scheme: &str) -> bool {
    text.get(..scheme.len())
        .is_some_and(|head| head.eq_ignore_ascii_case(scheme))
}

/// A call of a tool, and its id as the client wrote it.
fn tool_use<'a>(call: &Object<'a, '_>) -> Result<(Cow<'a, str>, Block<'a>), Error> {
    if let Some(kind) = call.get("type")?
        && kind.string()? != "function"
    {
        return Err(kind.refuse(Problem::Unsupported));
    }
    let id = call.need("id")?;
    let id = match id.string()? {
        empty if empty.is_empty() => return Err(id.refuse(Problem::Empty)),
        id => id,
    };
    let function = call.need("function")?.object()?;
    let name = function.need("name")?.string()?;
    let input = match function.get("arguments")? {
        None => None,
        Some(arguments) => {
            let text = arguments.string()?;
            let blank = text.trim().is_empty();
            (!blank).then(|| input(&arguments, text)).transpose()?
        }
    };
    let block = Block::ToolUse {
        id: vendor_id(id.clone()),
        name,
        input: input.unwrap_or_else(|| RawValue::from_string("{}".to_owned()).expect("JSON")),
    };
    Ok((id, block))
}

/// Arguments are JSON inside a string: taken out as they are written, since no type of ours holds
/// every number that may be in them.
pub(in crate::translate) fn input(
    value: &Value<'_, '_>,
    arguments: Cow<'_, str>,
) -> Result<Box<RawValue>, Error> {
    match RawValue::from_string(arguments.into_owned()) {
        Ok(json) if json.get().trim_start().starts_with('{') => Ok(json),
        Ok(_) => Err(value.wrong_type("string with a JSON object in it")),
        Err(error) => {
            let place = format!("{}:{}", error.line(), error.column());
            Err(value.refuse(Problem::NotJson(place)))
        }
    }
}

/// Messages vendors take letters, digits, `_` and `-` in ids. A conversation begun with another vendor
/// may have others: they are written as their codes, in call and result alike.
pub(in crate::translate) fn vendor_id(id: Cow<'_, str>) -> Cow<'_, str> {
    let taken = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'_' | b'-');
    if id.bytes().all(taken) {
        return id;
    }
    let mut written = String::with_capacity(id.len() + 8);
    for byte in id.bytes() {
        if taken(byte) {
            written.push(char::from(byte));
        } else {
            written.push_str(&format!("_{byte:02x}"));
        }
    }
    Cow::Owned(written)
}
