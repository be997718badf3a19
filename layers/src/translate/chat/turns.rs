//! Translates the messages of a chat request to the instructions and turns of the messages format.

use std::{borrow::Cow, collections::HashSet, mem};

use serde::Serialize;
use serde_json::value::RawValue;

use super::marks::{Mark, Markable, Marked};
use crate::{
    error::{Error, Problem},
    path::Path,
    translate::wire::{Object, Value},
};

const ROLES: &str = "system, developer, user, assistant, tool";
pub(in crate::translate) const IMAGES: &str = "data:image/(jpeg|png|gif|webp);base64,…, https:…";
const FILES: &str = "data:application/pdf;base64,…";

/// A conversation in the messages format.
///
/// Consecutive turns of the same role are merged. Their blocks keep their order, except that tool results come first.
/// If the request begins with a turn of the assistant, the conversation does, too: no turn is inserted before it.
#[derive(Debug, Default)]
pub(in crate::translate) struct Conversation<'a> {
    /// The instructions before the first turn.
    pub(in crate::translate) system: Vec<Block<'a>>,
    /// The turns of the conversation, in order.
    pub(in crate::translate) turns: Vec<Turn<'a>>,
    /// The ids of tool calls in the assistant's last turn that have no result yet.
    open_calls: HashSet<Cow<'a, str>>,
    /// Later instructions, which will be added to the user's next turn.
    late: Vec<Block<'a>>,
}

/// A turn of the user or the assistant.
#[derive(Debug, Serialize)]
pub(in crate::translate) struct Turn<'a> {
    role: Role,
    content: Vec<Block<'a>>,
    /// Tool results, which must come before all other blocks of the turn.
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

/// A content block of a turn.
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
    fn reminder(self) -> Self {
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
    pub(in crate::translate) fn is_blank(&self) -> bool {
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
    /// Reads the field `messages`.
    pub(in crate::translate) fn read(messages: &Value<'a, '_>) -> Result<Self, Error> {
        let mut conversation = Self::default();
        for (index, fields) in messages.objects()?.into_iter().enumerate() {
            let path = Path::Index(&messages.path, index);
            conversation.message(&Object { path, fields })?;
        }
        conversation.finish(messages)?;
        Ok(conversation)
    }

    /// Puts the blocks of each turn in order. Refuses `messages` if there is no turn.
    pub(in crate::translate) fn finish(&mut self, messages: &Value<'a, '_>) -> Result<(), Error> {
        self.say_late();
        if self.turns.is_empty() {
            return Err(messages.refuse(Problem::NothingSaid));
        }
        for turn in &mut self.turns {
            turn.has_results = !turn.results.is_empty();
            turn.results.append(&mut turn.content);
            mem::swap(&mut turn.results, &mut turn.content);
        }
        Ok(())
    }

    /// Returns whether the last turn of the assistant begins with thinking that the vendor wrote.
    pub(in crate::translate) fn thought(&self) -> bool {
        let last = self
            .turns
            .iter()
            .rev()
            .find(|turn| turn.role == Role::Assistant);
        last.is_some_and(|turn| matches!(turn.content.first(), Some(Block::Raw(_))))
    }

    /// Iterates over all blocks, in the order in which the vendor reads them.
    pub(super) fn blocks_mut(&mut self) -> impl Iterator<Item = &mut Block<'a>> {
        let turns = self.turns.iter_mut().flat_map(|turn| &mut turn.content);
        self.system.iter_mut().chain(turns)
    }

    /// Returns whether the conversation has a turn of the assistant.
    pub(super) fn is_answered(&self) -> bool {
        let mut turns = self.turns.iter();
        turns.any(|turn| turn.role == Role::Assistant)
    }

    /// Sets this mark at the ends of the last turns of the user, at most `most` of them.
    pub(super) fn mark_users_turns(&mut self, most: usize, mark: Mark) {
        let turns = self.turns.iter_mut().rev();
        let users = turns.filter(|turn| turn.role == Role::User).take(most);
        for end in users.filter_map(|turn| turn.content.last_mut()) {
            end.set_mark(end.mark().or(Some(mark)));
        }
    }

    /// Adds instructions. Before the first turn, they become the request's instructions. Later ones stay in their place
    /// as a text of the user: moving them to the front would change the beginning of the prompt, which the vendor has
    /// cached.
    pub(in crate::translate) fn instruct(&mut self, blocks: Vec<Block<'a>>) {
        let Some(last) = self.turns.last() else {
            return self.system.extend(blocks);
        };
        let goes_on = last.role == Role::User;
        self.late.extend(blocks.into_iter().map(Block::reminder));
        if goes_on {
            self.say_late();
        }
    }

    /// Adds blocks to a turn of the user.
    pub(in crate::translate) fn user(&mut self, blocks: Vec<Block<'a>>) {
        self.say(Role::User, blocks);
    }

    /// Adds blocks to a turn of the assistant. `calls` are the ids of the tool calls among them.
    pub(in crate::translate) fn answered(
        &mut self,
        blocks: Vec<Block<'a>>,
        calls: Vec<Cow<'a, str>>,
    ) {
        if blocks.is_empty() {
            return;
        }
        // Instructions must not be put between tool calls and their results, so they wait if a result is missing.
        if self.open_calls.is_empty() {
            self.say_late();
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

    /// Returns whether the answer will continue a turn of the assistant that began without thinking: after a tool
    /// result, or after a text that the caller wrote for the model. Vendors reject thinking there, and the chat format
    /// cannot carry the thinking with which the turn began.
    pub(in crate::translate) fn within_a_turn(&self) -> bool {
        self.turns
            .last()
            .is_some_and(|turn| turn.role == Role::Assistant || turn.has_results)
    }

    fn message(&mut self, message: &Object<'a, '_>) -> Result<(), Error> {
        let role = message.need("role")?;
        match &*role.string()? {
            "system" | "developer" => self.instruct(marked(message, Speaker::Instructor)?),
            "user" => self.say(Role::User, marked(message, Speaker::User)?),
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
        mark_end(message, &mut content)?;
        self.answered(content, calls);
        Ok(())
    }

    fn tool(&mut self, message: &Object<'a, '_>) -> Result<(), Error> {
        let id = message.need("tool_call_id")?.string()?;
        let content = marked(message, Speaker::Tool)?;
        self.result(id, content);
        Ok(())
    }

    /// Adds a tool result. If the turn before has no such tool call, the result becomes a text of the user, because
    /// vendors reject it as a result (case 14).
    pub(in crate::translate) fn result(&mut self, id: Cow<'a, str>, mut content: Vec<Block<'a>>) {
        if self.open_calls.remove(&*id) {
            // Vendors accept a mark only on the whole tool result, not within it.
            let mark = content.iter().rev().find_map(Markable::mark);
            content.iter_mut().for_each(|block| block.set_mark(None));
            let tool_use_id = vendor_id(id);
            let mut block = Block::ToolResult {
                tool_use_id,
                content,
            };
            block.set_mark(mark);
            self.turn(Role::User).results.push(block);
            self.say_late();
        } else {
            self.say(Role::User, content);
        }
    }

    fn say(&mut self, role: Role, mut blocks: Vec<Block<'a>>) {
        if role == Role::User {
            self.say_late();
        }
        if !blocks.is_empty() {
            self.turn(role).content.append(&mut blocks);
        }
    }

    fn say_late(&mut self) {
        if !self.late.is_empty() {
            let mut late = mem::take(&mut self.late);
            self.turn(Role::User).content.append(&mut late);
        }
    }

    /// Returns the current turn if it has this role; otherwise begins a new turn.
    fn turn(&mut self, role: Role) -> &mut Turn<'a> {
        if self.turns.last().is_none_or(|turn| turn.role != role) {
            self.turns.push(Turn {
                role,
                content: Vec::new(),
                results: Vec::new(),
                has_results: false,
            });
        }
        self.turns.last_mut().expect("there is at least one turn")
    }
}

/// The author of a message's content.
#[derive(Clone, Copy, Debug)]
enum Speaker {
    Instructor,
    User,
    Assistant,
    Tool,
}

/// Returns the blocks of a message. The mark of the message is put on the last of them.
fn marked<'a>(message: &Object<'a, '_>, speaker: Speaker) -> Result<Vec<Block<'a>>, Error> {
    let mut blocks = blocks(message, speaker)?;
    mark_end(message, &mut blocks)?;
    Ok(blocks)
}

/// Puts the mark of an object on the last of these blocks.
fn mark_end(object: &Object<'_, '_>, blocks: &mut [Block<'_>]) -> Result<(), Error> {
    if let (Some(mark), Some(last)) = (Mark::read(object)?, blocks.last_mut()) {
        last.set_mark(Some(mark));
    }
    Ok(())
}

/// Returns the content of a message. Blank texts are left out, because vendors reject them.
fn blocks<'a>(message: &Object<'a, '_>, speaker: Speaker) -> Result<Vec<Block<'a>>, Error> {
    let mut blocks = Vec::new();
    let Some(content) = message.get("content")? else {
        return Ok(blocks);
    };
    if !content.raw.get().starts_with('[') {
        let text = content
            .string()
            .map_err(|_| content.wrong_type("string or array"))?;
        blocks.extend(Some(Block::Text { text }).filter(|block| !block.is_blank()));
        return Ok(blocks);
    }
    for (index, fields) in content.objects()?.into_iter().enumerate() {
        let path = Path::Index(&content.path, index);
        let part = Object { path, fields };
        blocks.extend(Some(block(&part, speaker)?).filter(|block| !block.is_blank()));
        mark_end(&part, &mut blocks)?;
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

/// Translates an image with a URL. The URL is forwarded: the gateway never fetches it.
fn image<'a>(part: &Object<'a, '_>) -> Result<Block<'a>, Error> {
    let image = part.need("image_url")?;
    // Some clients send the URL instead of the object that contains it.
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

/// Translates a PDF in `file_data`, with its file name.
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

/// The beginning of a base64 `data:` URL (RFC 2397).
struct DataUrl {
    /// The media type, in lower case and without parameters.
    media_type: String,
    /// The offset at which the data begins.
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

/// Translates a tool call; also returns its id as the client wrote it.
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
    let mut block = Block::ToolUse {
        id: vendor_id(id.clone()),
        name,
        input: input.unwrap_or_else(|| RawValue::from_string("{}".to_owned()).expect("JSON")),
    };
    block.set_mark(Mark::read(call)?);
    Ok((id, block))
}

/// Takes the JSON out of a string without parsing its values, because no numeric type holds every number in it.
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

/// Returns an id that messages vendors accept: with letters, digits, `_` and `-`. If the conversation began at another
/// vendor, ids may have other bytes; these are replaced by hex codes, in the call and in its result alike.
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
