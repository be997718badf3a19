//! The conversation: instructions, turns and their blocks, as chat messages.

use std::{borrow::Cow, mem};

use serde::Serialize;
use serde_json::value::RawValue;

use super::text::{Json, given, hash, inner, joined, literal, optional, quoted, string};
use crate::{
    error::{Error, Problem},
    model::SystemRole,
    path::Path,
    translate::wire::{Object, Value, compact},
};

/// Chat vendors refuse longer ids of tool calls.
const TOOL_ID_CHARS_MAX: usize = 64;
/// What is kept of a longer one, beside a dash and a hash of 16 digits.
const TOOL_ID_CHARS_KEPT: usize = TOOL_ID_CHARS_MAX - 17;

/// A line feed as JSON has it.
const LINE_FEED: &str = "\\n";

/// A message of the chat format.
#[derive(Debug, Serialize)]
#[serde(tag = "role", rename_all = "lowercase")]
pub(in crate::translate) enum Message<'a> {
    System {
        content: Json<'a>,
    },
    Developer {
        content: Json<'a>,
    },
    User {
        content: Content<'a>,
    },
    Assistant {
        /// Null beside tool calls.
        content: Option<Json<'a>>,
        #[serde(skip_serializing_if = "Vec::is_empty")]
        tool_calls: Vec<ToolCall<'a>>,
    },
    Tool {
        tool_call_id: Json<'a>,
        content: Json<'a>,
    },
}

#[derive(Debug, Serialize)]
#[serde(untagged)]
pub(in crate::translate) enum Content<'a> {
    Text(Json<'a>),
    Parts(Vec<Part<'a>>),
}

impl<'a> Content<'a> {
    /// One text as a string, as every vendor takes it; anything else as parts.
    pub(in crate::translate) fn of(parts: Vec<Part<'a>>) -> Self {
        match <[Part<'a>; 1]>::try_from(parts) {
            Ok([Part::Text { text }]) => Self::Text(text),
            Ok([part]) => Self::Parts(vec![part]),
            Err(parts) if parts.is_empty() => Self::Text(quoted(&[])),
            Err(parts) => Self::Parts(parts),
        }
    }

    /// With more of the same message.
    fn extend(&mut self, more: Vec<Part<'a>>) {
        let mut parts = match mem::replace(self, Self::Parts(Vec::new())) {
            Self::Text(text) if inner(&text) == Some("") => Vec::new(),
            Self::Text(text) => vec![Part::Text { text }],
            Self::Parts(parts) => parts,
        };
        parts.extend(more);
        *self = Self::of(parts);
    }
}

#[derive(Debug, Serialize)]
#[serde(tag = "type", rename_all = "snake_case")]
pub(in crate::translate) enum Part<'a> {
    Text { text: Json<'a> },
    ImageUrl { image_url: Address<'a> },
    File { file: File<'a> },
}

#[derive(Debug, Serialize)]
pub(in crate::translate) struct Address<'a> {
    pub(in crate::translate) url: Json<'a>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(in crate::translate) detail: Option<Json<'a>>,
}

#[derive(Debug, Serialize)]
pub(in crate::translate) struct File<'a> {
    pub(in crate::translate) filename: Json<'a>,
    pub(in crate::translate) file_data: Json<'a>,
}

#[derive(Debug, Serialize)]
pub(in crate::translate) struct ToolCall<'a> {
    pub(in crate::translate) id: Json<'a>,
    #[serde(rename = "type")]
    pub(in crate::translate) kind: &'static str,
    pub(in crate::translate) function: Called<'a>,
}

#[derive(Debug, Serialize)]
pub(in crate::translate) struct Called<'a> {
    pub(in crate::translate) name: Json<'a>,
    pub(in crate::translate) arguments: Json<'a>,
}

/// The conversation of a messages request.
pub(in crate::translate) fn messages<'a>(
    body: &Object<'a, '_>,
    role: SystemRole,
) -> Result<Vec<Message<'a>>, Error> {
    let mut conversation = Conversation::default();
    if let Some(system) = body.get("system")? {
        conversation.said.extend(instruction(&system, role)?);
    }
    let turns = body.need("messages")?;
    for (index, raw) in turns.array()?.into_iter().enumerate() {
        let path = Path::Index(&turns.path, index);
        let turn = Value { path, raw }.object()?;
        let content = turn.need("content")?;
        match &*turn.need("role")?.string()? {
            "user" => conversation.user(&content)?,
            "assistant" => conversation.assistant(&content)?,
            // In its place: what it says holds from there on.
            "system" => conversation.behind.extend(instruction(&content, role)?),
            _ => return Err(turn.refuse("role", Problem::NotOneOf("user, assistant"))),
        }
    }
    conversation.flush();
    Ok(conversation.said)
}

/// Turns as they come. Those of one role in a row are one message, as the messages format has it, and results stand
/// right behind their calls, as the chat format wants it, whatever was said in between.
#[derive(Debug, Default)]
struct Conversation<'a> {
    /// What nothing comes to any more.
    said: Vec<Message<'a>>,
    /// The assistant's turn that goes on.
    texts: Vec<Json<'a>>,
    tool_calls: Vec<ToolCall<'a>>,
    /// Results of its calls.
    results: Vec<Message<'a>>,
    /// Everything else behind it: instructions, and what the user says.
    behind: Vec<Message<'a>>,
    /// The user's turn has begun, so that the assistant's next one is another.
    user_spoke: bool,
}

impl<'a> Conversation<'a> {
    /// Results first; then everything else in one message, led by what the results could not hold.
    fn user(&mut self, content: &Value<'a, '_>) -> Result<(), Error> {
        let (mut attached, mut parts) = (Vec::new(), Vec::new());
        let results = self.results.len();
        blocks(content, |block| match block {
            Block::Other("tool_result", block) => {
                self.results.push(tool_result(block, &mut attached)?);
                Ok(())
            }
            block => part(&block, &mut parts),
        })?;
        attached.append(&mut parts);
        self.user_spoke = true;
        match self.behind.last_mut() {
            Some(Message::User { content }) => content.extend(attached),
            _ if attached.is_empty() && self.results.len() > results => {}
            _ => {
                let content = Content::of(attached);
                self.behind.push(Message::User { content });
            }
        }
        Ok(())
    }

    /// What was thought stays with the model that thought it: it is never put into text, and a turn of nothing else
    /// is none.
    fn assistant(&mut self, content: &Value<'a, '_>) -> Result<(), Error> {
        let (mut texts, mut tool_calls) = (Vec::new(), Vec::new());
        blocks(content, |block| {
            match block {
                Block::Text(text) => texts.push(Cow::Borrowed(text)),
                Block::Other("tool_use", block) => tool_calls.push(tool_call(block)?),
                Block::Other("thinking" | "redacted_thinking", _) => {}
                Block::Other(_, block) => return Err(block.refuse("type", Problem::NotTranslated)),
            }
            Ok(())
        })?;
        if texts.is_empty() && tool_calls.is_empty() {
            return Ok(());
        }
        // An instruction keeps its place between two texts, but not between calls and their results.
        if self.user_spoke || (self.tool_calls.is_empty() && !self.behind.is_empty()) {
            self.flush();
        }
        self.texts.append(&mut texts);
        self.tool_calls.append(&mut tool_calls);
        Ok(())
    }

    fn flush(&mut self) {
        let (texts, tool_calls) = (mem::take(&mut self.texts), mem::take(&mut self.tool_calls));
        if !texts.is_empty() || !tool_calls.is_empty() {
            // The blocks of one answer are one text that something came in between of.
            let content = (!texts.is_empty()).then(|| joined(texts, ""));
            self.said.push(Message::Assistant {
                content,
                tool_calls,
            });
        }
        self.said.append(&mut self.results);
        self.said.append(&mut self.behind);
        self.user_spoke = false;
    }
}

pub(in crate::translate) fn instruction<'a>(
    content: &Value<'a, '_>,
    role: SystemRole,
) -> Result<Option<Message<'a>>, Error> {
    let mut texts = Vec::new();
    blocks(content, |block| match block {
        Block::Text(text) => {
            texts.push(Cow::Borrowed(text));
            Ok(())
        }
        Block::Other(_, block) => Err(block.refuse("type", Problem::NotOneOf("text"))),
    })?;
    if texts.is_empty() {
        return Ok(None);
    }
    // One string: many vendors of the family take no parts here.
    let content = joined(texts, LINE_FEED);
    Ok(Some(match role {
        SystemRole::System => Message::System { content },
        SystemRole::Developer => Message::Developer { content },
    }))
}

fn tool_call<'a>(block: &Object<'a, '_>) -> Result<ToolCall<'a>, Error> {
    let input = block.need("input")?;
    if !input.raw.get().starts_with('{') {
        return Err(input.wrong_type("object"));
    }
    Ok(ToolCall {
        id: tool_id(&block.need("id")?)?,
        kind: "function",
        function: Called {
            name: Cow::Borrowed(literal(&block.need("name")?)?),
            arguments: string(&compact(input.raw)),
        },
    })
}

/// The text of a result; images and documents, which the chat format's tool messages cannot hold, go
/// to `attached`.
fn tool_result<'a>(
    block: &Object<'a, '_>,
    attached: &mut Vec<Part<'a>>,
) -> Result<Message<'a>, Error> {
    let mut parts = Vec::new();
    if let Some(content) = block.get("content")? {
        blocks(&content, |block| part(&block, &mut parts))?;
    }
    let failed = match block.get("is_error")? {
        Some(flag) => flag.flag()?,
        None => false,
    };
    let (mut texts, before) = (Vec::new(), attached.len());
    for part in parts {
        match part {
            Part::Text { text } => texts.push(text),
            part => attached.push(part),
        }
    }
    let text = joined(texts, LINE_FEED);
    let said = inner(&text).unwrap_or_default();
    let content = match (said.is_empty(), failed) {
        (false, true) => quoted(&["Error: ", said]),
        (true, true) => quoted(&["Error"]),
        (true, false) if attached.len() > before => quoted(&["See the next message."]),
        (_, false) => text,
    };
    Ok(Message::Tool {
        tool_call_id: tool_id(&block.need("tool_use_id")?)?,
        content,
    })
}

/// The id as it is, so that it comes back as it went. One that is too long is shortened, in a call
/// and in its result alike.
pub(in crate::translate) fn tool_id<'a>(id: &Value<'a, '_>) -> Result<Json<'a>, Error> {
    let raw = literal(id)?;
    if raw.get().len() - 2 <= TOOL_ID_CHARS_MAX {
        return Ok(Cow::Borrowed(raw));
    }
    let text = id.string()?;
    if text.chars().count() <= TOOL_ID_CHARS_MAX {
        return Ok(Cow::Borrowed(raw));
    }
    let kept: String = text.chars().take(TOOL_ID_CHARS_KEPT).collect();
    Ok(string(&format!("{kept}-{:016x}", hash(text.as_bytes()))))
}

/// A block of a content.
#[derive(Debug)]
pub(in crate::translate) enum Block<'a, 'b> {
    /// A text that is not empty.
    Text(&'a RawValue),
    /// One of another type.
    Other(&'b str, &'b Object<'a, 'b>),
}

/// Hands each block to `each`; a bare string is a text. Empty texts, which say nothing, are left out.
pub(in crate::translate) fn blocks<'a>(
    content: &Value<'a, '_>,
    mut each: impl FnMut(Block<'a, '_>) -> Result<(), Error>,
) -> Result<(), Error> {
    match inner(content.raw) {
        Some("") => return Ok(()),
        Some(_) => return each(Block::Text(content.raw)),
        None => {}
    }
    let blocks = content
        .array()
        .map_err(|_| content.wrong_type("string or array"))?;
    for (index, raw) in blocks.into_iter().enumerate() {
        let path = Path::Index(&content.path, index);
        let block = Value { path, raw }.object()?;
        let kind = block.need("type")?.string()?;
        if kind != "text" {
            each(Block::Other(&kind, &block))?;
            continue;
        }
        let text = literal(&block.need("text")?)?;
        if inner(text) != Some("") {
            each(Block::Text(text))?;
        }
    }
    Ok(())
}

/// Text, images, documents: what a user's message may consist of.
pub(in crate::translate) fn part<'a>(
    block: &Block<'a, '_>,
    parts: &mut Vec<Part<'a>>,
) -> Result<(), Error> {
    let (kind, block) = match *block {
        Block::Text(text) => {
            let text = Cow::Borrowed(text);
            parts.push(Part::Text { text });
            return Ok(());
        }
        Block::Other(kind, block) => (kind, block),
    };
    match kind {
        "image" => parts.push(image(block)?),
        "document" => document(block, parts)?,
        "search_result" => parts.push(search_result(block)?),
        _ => return Err(block.refuse("type", Problem::NotTranslated)),
    }
    Ok(())
}

fn image<'a>(block: &Object<'a, '_>) -> Result<Part<'a>, Error> {
    const KINDS: [&str; 4] = ["image/jpeg", "image/png", "image/gif", "image/webp"];
    let source = block.need("source")?.object()?;
    let url = match &*source.need("type")?.string()? {
        "base64" => {
            let kind = source.need("media_type")?;
            let text = kind.string()?;
            if !KINDS.contains(&&*text) {
                let kinds = "image/jpeg, image/png, image/gif, image/webp";
                return Err(kind.refuse(Problem::NotOneOf(kinds)));
            }
            data_url(&text, &source)?
        }
        // The vendor fetches it, if anybody does.
        "url" => Cow::Borrowed(literal(&source.need("url")?)?),
        _ => return Err(source.refuse("type", Problem::NotOneOf("base64, url"))),
    };
    Ok(Part::ImageUrl {
        image_url: Address { url, detail: None },
    })
}

fn document<'a>(block: &Object<'a, '_>, parts: &mut Vec<Part<'a>>) -> Result<(), Error> {
    let source = block.need("source")?.object()?;
    let (title, context) = (optional(block, "title")?, optional(block, "context")?);
    let heading = |texts: [Option<&'a RawValue>; 2]| -> Vec<Json<'a>> {
        let texts = texts.into_iter().flatten();
        texts.map(Cow::Borrowed).collect()
    };
    match &*source.need("type")?.string()? {
        "base64" => {
            let kind = source.need("media_type")?;
            if kind.string()? != "application/pdf" {
                return Err(kind.refuse(Problem::NotOneOf("application/pdf")));
            }
            let texts = heading([context, None]);
            parts.extend(texts.into_iter().map(|text| Part::Text { text }));
            let file = File {
                filename: file_name(title),
                file_data: data_url("application/pdf", &source)?,
            };
            parts.push(Part::File { file });
        }
        "text" => {
            let mut texts = heading([title, context]);
            texts.push(Cow::Borrowed(literal(&source.need("data")?)?));
            let text = joined(texts, LINE_FEED);
            parts.push(Part::Text { text });
        }
        "content" => {
            let texts = heading([title, context]);
            if !texts.is_empty() {
                let text = joined(texts, LINE_FEED);
                parts.push(Part::Text { text });
            }
            blocks(&source.need("content")?, |block| part(&block, parts))?;
        }
        _ => return Err(source.refuse("type", Problem::NotOneOf("base64, text, content"))),
    }
    Ok(())
}

/// Vendors go by the name's ending.
fn file_name(title: Option<&RawValue>) -> Json<'_> {
    let name = given(title).unwrap_or("document");
    let ending = if name.to_ascii_lowercase().ends_with(".pdf") {
        ""
    } else {
        ".pdf"
    };
    quoted(&[name, ending])
}

fn search_result<'a>(block: &Object<'a, '_>) -> Result<Part<'a>, Error> {
    let heading = [optional(block, "title")?, optional(block, "source")?];
    let mut texts: Vec<Json<'a>> = heading.into_iter().flatten().map(Cow::Borrowed).collect();
    blocks(&block.need("content")?, |block| match block {
        Block::Text(text) => {
            texts.push(Cow::Borrowed(text));
            Ok(())
        }
        Block::Other(_, block) => Err(block.refuse("type", Problem::NotOneOf("text"))),
    })?;
    let text = joined(texts, LINE_FEED);
    Ok(Part::Text { text })
}

fn data_url(kind: &str, source: &Object<'_, '_>) -> Result<Json<'static>, Error> {
    let data = source.need("data")?;
    let data = inner(data.raw).ok_or_else(|| data.wrong_type("string"))?;
    Ok(quoted(&["data:", kind, ";base64,", data]))
}
