//! Translates the conversation of a messages request (instructions, turns, blocks) to chat messages.

use std::{borrow::Cow, mem};

use serde::Serialize;
use serde_json::value::RawValue;

use super::text::{Json, given, inner, joined, literal, optional, quoted, shortened, string};
use crate::{
    error::{Error, Problem},
    format::BILLING_LINE,
    model::SystemRole,
    path::Path,
    translate::{
        chat_state::{Field, Reasoning, Returned},
        wire::{Object, Value, compact},
    },
};

/// A line feed as an escape in a JSON string.
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
        /// The content; null if the message consists of tool calls.
        content: Option<Json<'a>>,
        #[serde(skip_serializing_if = "Option::is_none")]
        reasoning_content: Option<Json<'a>>,
        #[serde(skip_serializing_if = "Option::is_none")]
        reasoning: Option<Json<'a>>,
        #[serde(skip_serializing_if = "Vec::is_empty")]
        reasoning_details: Vec<Box<RawValue>>,
        #[serde(skip_serializing_if = "Vec::is_empty")]
        tool_calls: Vec<ToolCall<'a>>,
    },
    Tool {
        tool_call_id: Json<'a>,
        content: Json<'a>,
    },
}

impl<'a> Message<'a> {
    /// Creates a message of the assistant with its text and tool calls. Reasoning is sent only if tool calls follow it.
    pub(in crate::translate) fn assistant(
        content: Option<Json<'a>>,
        tool_calls: Vec<ToolCall<'a>>,
        reasoning: Reasoning<'a>,
    ) -> Self {
        let reasoning = Some(reasoning).filter(|_| !tool_calls.is_empty());
        let reasoning = reasoning.unwrap_or_default();
        Self::Assistant {
            content,
            reasoning_content: reasoning.text(Field::ReasoningContent),
            reasoning: reasoning.text(Field::Reasoning),
            reasoning_details: reasoning.details,
            tool_calls,
        }
    }
}

#[derive(Debug, Serialize)]
#[serde(untagged)]
pub(in crate::translate) enum Content<'a> {
    Text(Json<'a>),
    Parts(Vec<Part<'a>>),
}

impl<'a> Content<'a> {
    /// Returns a single text as a string, which every vendor accepts, and anything else as a list of parts.
    pub(in crate::translate) fn of(parts: Vec<Part<'a>>) -> Self {
        match <[Part<'a>; 1]>::try_from(parts) {
            Ok([Part::Text { text }]) => Self::Text(text),
            Ok([part]) => Self::Parts(vec![part]),
            Err(parts) if parts.is_empty() => Self::Text(quoted(&[])),
            Err(parts) => Self::Parts(parts),
        }
    }

    /// Appends more parts to this content.
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
    /// The signature of the tool call, as the vendor wrote it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(in crate::translate) extra_content: Option<Box<RawValue>>,
}

#[derive(Debug, Serialize)]
pub(in crate::translate) struct Called<'a> {
    pub(in crate::translate) name: Json<'a>,
    pub(in crate::translate) arguments: Json<'a>,
}

/// Translates the conversation of a messages request, for the vendor of this name.
pub(in crate::translate) fn messages<'a>(
    body: &Object<'a, '_>,
    vendor: &str,
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
            "assistant" => conversation.assistant(&content, vendor)?,
            // Instructions stay in their place, because they apply from there on.
            "system" => conversation.behind.extend(instruction(&content, role)?),
            _ => return Err(turn.refuse("role", Problem::NotOneOf("user, assistant"))),
        }
    }
    conversation.flush();
    Ok(conversation.said)
}

/// Collects the turns of a conversation. Consecutive turns of the same role become one message, as the messages format
/// treats them. Tool results are put directly after their calls, as the chat format requires, even if the caller put
/// something between them.
#[derive(Debug, Default)]
struct Conversation<'a> {
    /// The chat messages that are complete.
    said: Vec<Message<'a>>,
    /// The texts of the assistant's turn that is being collected.
    texts: Vec<Json<'a>>,
    tool_calls: Vec<ToolCall<'a>>,
    reasoning: Reasoning<'a>,
    /// State for the calls of a turn that is not complete yet.
    returned: Returned<'a>,
    /// The results of the tool calls in the assistant's turn.
    results: Vec<Message<'a>>,
    /// Other messages that follow the assistant's turn: instructions, and the user's content.
    behind: Vec<Message<'a>>,
    /// Whether the user's turn has begun. If so, the next text of the assistant begins another turn.
    user_spoke: bool,
}

impl<'a> Conversation<'a> {
    /// Adds a turn of the user. Tool results come first. Everything else becomes one message, which begins with the
    /// images and documents of the results, because tool messages cannot contain them.
    fn user(&mut self, content: &Value<'a, '_>) -> Result<(), Error> {
        let (mut attached, mut parts) = (Vec::new(), Vec::new());
        // Thinking that is followed by a turn of the user was not followed by a tool call, so it is not sent.
        drop(self.returned.reasoning());
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

    /// Adds a turn of the assistant. Thinking never becomes text. If a turn has only thinking, the thinking becomes a
    /// part of the assistant's next turn.
    fn assistant(&mut self, content: &Value<'a, '_>, vendor: &str) -> Result<(), Error> {
        let (mut texts, mut tool_calls, mut ids) = (Vec::new(), Vec::new(), Vec::new());
        let returned = &mut self.returned;
        blocks(content, |block| {
            match block {
                Block::Text(text) => texts.push(Cow::Borrowed(text)),
                Block::Other("tool_use", block) => {
                    tool_calls.push(tool_call(block)?);
                    ids.push(block.need("id")?.string()?.into_owned());
                }
                Block::Other("thinking", block) => {
                    let text = optional(block, "thinking")?.map(Cow::Borrowed);
                    let proof = proof(block, "signature")?;
                    returned.take(&proof, vendor, text.into_iter().collect());
                }
                Block::Other("redacted_thinking", block) => {
                    returned.take(&proof(block, "data")?, vendor, Vec::new());
                }
                Block::Other(_, block) => return Err(block.refuse("type", Problem::NotTranslated)),
            }
            Ok(())
        })?;
        if texts.is_empty() && tool_calls.is_empty() {
            return Ok(());
        }
        // The capsule with the signature of a call may come after the call.
        for (call, id) in tool_calls.iter_mut().zip(&ids) {
            call.extra_content = returned.signature(id);
        }
        // Instructions may be put between two texts of the assistant, but not between calls and their results.
        if self.user_spoke || (self.tool_calls.is_empty() && !self.behind.is_empty()) {
            self.flush();
        }
        self.texts.append(&mut texts);
        self.tool_calls.append(&mut tool_calls);
        self.reasoning.append(self.returned.reasoning());
        Ok(())
    }

    fn flush(&mut self) {
        let (texts, tool_calls) = (mem::take(&mut self.texts), mem::take(&mut self.tool_calls));
        let reasoning = mem::take(&mut self.reasoning);
        if !texts.is_empty() || !tool_calls.is_empty() {
            // Several text blocks of one turn were one text in the answer, interrupted by other blocks.
            let content = (!texts.is_empty()).then(|| joined(texts, ""));
            self.said
                .push(Message::assistant(content, tool_calls, reasoning));
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
            texts.extend(without_billing_line(text));
            Ok(())
        }
        Block::Other(_, block) => Err(block.refuse("type", Problem::NotOneOf("text"))),
    })?;
    if texts.is_empty() {
        return Ok(None);
    }
    // Sent as one string, because many chat vendors do not accept a list of parts here.
    let content = joined(texts, LINE_FEED);
    Ok(Some(match role {
        SystemRole::System => Message::System { content },
        SystemRole::Developer => Message::Developer { content },
    }))
}

/// Removes the billing line with which Claude Code begins its instructions. The line is meant for the messages vendor,
/// and it changes from call to call, so that another vendor could not find anything after it in its cache.
fn without_billing_line(text: &RawValue) -> Option<Json<'_>> {
    let Some(line) = inner(text).filter(|text| text.starts_with(BILLING_LINE)) else {
        return Some(Cow::Borrowed(text));
    };
    let (_, rest) = line.split_once(LINE_FEED)?;
    (!rest.is_empty()).then(|| quoted(&[rest]))
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
            name: shortened(Cow::Borrowed(literal(&block.need("name")?)?)),
            arguments: string(&compact(input.raw)),
        },
        extra_content: None,
    })
}

/// Returns the signature or the data of a block of thinking; empty if it has none.
fn proof<'a>(block: &Object<'a, '_>, field: &str) -> Result<Cow<'a, str>, Error> {
    let proof = block.get(field)?;
    proof.map_or(Ok(Cow::Borrowed("")), |proof| proof.string())
}

/// Returns the tool message for a tool result. Images and documents, which tool messages of the chat format cannot
/// contain, are added to `attached`.
fn tool_result<'a>(
    block: &Object<'a, '_>,
    attached: &mut Vec<Part<'a>>,
) -> Result<Message<'a>, Error> {
    let mut parts = Vec::new();
    if let Some(content) = block.get("content")? {
        blocks(&content, |block| result_part(&block, &mut parts))?;
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

/// Translates a part of a tool result. If it refers to a tool that a tool search found, only the tool's name is sent,
/// because the vendor gets all tools anyway.
pub(in crate::translate) fn result_part<'a>(
    block: &Block<'a, '_>,
    parts: &mut Vec<Part<'a>>,
) -> Result<(), Error> {
    if let Block::Other("tool_reference", block) = block {
        let name = literal(&block.need("tool_name")?)?;
        let text = shortened(Cow::Borrowed(name));
        parts.push(Part::Text { text });
        return Ok(());
    }
    part(block, parts)
}

/// Returns the id of a call as it is written, so that the caller gets it back unchanged. If it is too long, it is
/// shortened in the call and in the result in the same way.
pub(in crate::translate) fn tool_id<'a>(id: &Value<'a, '_>) -> Result<Json<'a>, Error> {
    Ok(shortened(Cow::Borrowed(literal(id)?)))
}

/// A content block of a turn.
#[derive(Debug)]
pub(in crate::translate) enum Block<'a, 'b> {
    /// A text, which is not empty.
    Text(&'a RawValue),
    /// A block of another type.
    Other(&'b str, &'b Object<'a, 'b>),
}

/// Passes each block to `each`. A content that is a string counts as one text block. Empty texts are left out.
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

/// Translates a text, image or document of a user's message.
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
        // The URL is forwarded: only the vendor fetches it.
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

/// Returns a file name with an extension, from which vendors detect the type of the document.
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
