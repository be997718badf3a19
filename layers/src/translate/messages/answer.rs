//! Translates a plain chat answer to a messages answer. Also parses the fields that chat answers and chat streams have
//! in common.

use std::borrow::Cow;

use bytes::{Bytes, BytesMut};
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;

use super::{
    text::{Json, given, hash, inner, made, quoted, string},
    usage::Tally,
};
use crate::{
    error::Error,
    translate::{
        chat_state::{Field, Kept},
        origin::Origin,
        wire::{AnswerCx, broken, compact, write_json},
    },
    vendor_usage::is_error,
};

/// The longest part of a vendor's error message that is logged, in characters.
const ERROR_CHARS_MAX: usize = 500;

/// Translates a chat answer to a messages answer. The state that the vendor needs back is added in capsules.
///
/// # Errors
/// [`Error::VendorBroken`] if the body is not a chat answer; [`Error::VendorUnavailable`] if it is an error.
pub fn answer(body: &[u8], origin: &Origin, cx: &AnswerCx) -> Result<Bytes, Error> {
    let mut answer = Answer::chunk(body)?;
    answer.check(body)?;
    let tally = answer.tally();
    let (said, stop) = answer.whole()?;

    let mut kept = Kept::default();
    let [thinking, text, refusal] = texts(&said, cx, &mut kept)?;
    let refused = !refusal.is_empty();
    let id = message_id(answer.id, body, cx.created);
    let calls = said.calls();
    let called = !calls.is_empty();
    let made = hash(id.get().as_bytes());
    for (index, call) in calls.iter().enumerate() {
        if let Some(signature) = call.signature() {
            let made = tool_id(made, index);
            kept.sign(given(call.id).unwrap_or(&made), signature);
        }
    }
    let mut content = Vec::new();
    content.extend(thought(&thinking, called, kept, origin));
    for text in [text, refusal].iter().filter(|text| !text.is_empty()) {
        let text = quoted(&[text]);
        content.push(Block::Text { text });
    }
    for (index, call) in calls.into_iter().enumerate() {
        content.push(tool_use(call, &tool_id(made, index), origin)?);
    }
    let message = Message {
        id,
        kind: "message",
        role: "assistant",
        model: model(answer.model),
        content,
        stop_reason: stop_reason(stop, called, refused),
        stop_sequence: None,
        usage: tally.unwrap_or_default(),
    };
    let mut out = BytesMut::with_capacity(body.len() + 256);
    write_json(&mut out, &message);
    Ok(out.freeze())
}

/// Returns the text of each [`Kind`] that the caller sees, JSON-escaped and without quotes. Hidden text goes to `kept`.
fn texts(said: &Said<'_>, cx: &AnswerCx, kept: &mut Kept) -> Result<[String; 3], Error> {
    let mut texts = <[String; 3]>::default();
    said.keep(kept);
    said.each_text(|kind, piece| {
        if kind == Kind::Thinking && !cx.thinking_asked {
            kept.hide(piece);
        } else {
            texts[kind as usize].push_str(piece);
        }
        Ok(())
    })?;
    Ok(texts)
}

/// Returns the block with the visible reasoning. If there is none but the tool calls need state, returns a block with
/// that state, which only the vendor can read.
fn thought(
    thinking: &str,
    called: bool,
    mut kept: Kept,
    origin: &Origin,
) -> Option<Block<'static>> {
    if !thinking.is_empty() {
        return Some(Block::Thinking {
            thinking: quoted(&[thinking]),
            signature: kept.seal(&origin.vendor),
        });
    }
    (called && kept.needs_block()).then(|| Block::RedactedThinking {
        data: kept.seal(&origin.vendor),
    })
}

/// A messages answer, ready to be serialized.
#[derive(Debug, Serialize)]
struct Message<'a> {
    id: Json<'a>,
    #[serde(rename = "type")]
    kind: &'static str,
    role: &'static str,
    model: Json<'a>,
    content: Vec<Block<'a>>,
    stop_reason: &'static str,
    /// Always null, because chat vendors do not report which stop sequence matched.
    stop_sequence: Option<&'static str>,
    usage: Tally,
}

#[derive(Debug, Serialize)]
#[serde(tag = "type", rename_all = "snake_case")]
enum Block<'a> {
    Thinking {
        thinking: Json<'a>,
        signature: String,
    },
    RedactedThinking {
        data: String,
    },
    Text {
        text: Json<'a>,
    },
    ToolUse {
        id: Json<'a>,
        name: Json<'a>,
        input: Json<'a>,
    },
}

fn tool_use<'a>(call: ToolCall<'a>, made_id: &str, origin: &Origin) -> Result<Block<'a>, Error> {
    let function = call
        .function
        .ok_or_else(|| broken("a tool call without a function"))?;
    let name = function.name.filter(|name| given(Some(*name)).is_some());
    let name = name.ok_or_else(|| broken("a tool call without a name"))?;
    let id = match call.id {
        Some(id) if given(Some(id)).is_some() => Cow::Borrowed(id),
        _ => quoted(&[made_id]),
    };
    Ok(Block::ToolUse {
        id,
        name: match inner(name).map(|short| (short, origin.name(short))) {
            Some((short, name)) if short != name => quoted(&[name]),
            _ => Cow::Borrowed(name),
        },
        input: input(function.arguments),
    })
}

/// Returns the arguments as a JSON object. If the model wrote something else, such as truncated JSON, that is put into
/// an object.
fn input(arguments: Option<&RawValue>) -> Json<'_> {
    let Some(raw) = arguments else {
        return made("{}".to_owned());
    };
    if raw.get().starts_with('{') {
        return Cow::Borrowed(raw);
    }
    let wrapped = |json: &str| made(format!("{{\"arguments\":{json}}}"));
    let Ok(text) = serde_json::from_str::<String>(raw.get()) else {
        return wrapped(raw.get());
    };
    if matches!(text.trim(), "" | "null") {
        return made("{}".to_owned());
    }
    match serde_json::from_str::<&RawValue>(&text) {
        Ok(value) if value.get().starts_with('{') => Cow::Owned(value.to_owned()),
        Ok(value) => wrapped(value.get()),
        Err(_) => wrapped(raw.get()),
    }
}

/// Creates an error with the vendor's own message, which is only logged.
pub(in crate::translate) fn vendor_error(words: &str) -> Error {
    let words: String = words.chars().take(ERROR_CHARS_MAX).collect();
    Error::VendorUnavailable(crate::scrub::scrubbed(&words).into())
}

/// The fields of a chat answer, or of one chunk of a chat stream.
#[derive(Debug, Deserialize)]
pub(in crate::translate) struct Answer<'a> {
    #[serde(borrow)]
    pub(in crate::translate) id: Option<&'a RawValue>,
    #[serde(borrow)]
    pub(in crate::translate) model: Option<&'a RawValue>,
    #[serde(borrow)]
    choices: Option<Vec<Choice<'a>>>,
    #[serde(borrow)]
    usage: Option<&'a RawValue>,
    #[serde(borrow)]
    error: Option<&'a RawValue>,
    #[serde(borrow)]
    x_groq: Option<&'a RawValue>,
}

/// A body that some servers send instead of an answer: an error object, or a body that may be one.
#[derive(Deserialize)]
struct Complaint<'a> {
    #[serde(borrow)]
    object: Option<&'a RawValue>,
    #[serde(borrow)]
    message: Option<&'a RawValue>,
    #[serde(borrow)]
    detail: Option<&'a RawValue>,
}

#[derive(Debug, Deserialize)]
pub(in crate::translate) struct Choice<'a> {
    index: Option<u64>,
    #[serde(borrow)]
    pub(in crate::translate) message: Option<Said<'a>>,
    #[serde(borrow)]
    pub(in crate::translate) delta: Option<Said<'a>>,
    #[serde(borrow)]
    pub(in crate::translate) finish_reason: Option<&'a RawValue>,
    #[serde(borrow)]
    usage: Option<&'a RawValue>,
}

/// The fields of a chunk, parsed leniently: used if its choices do not parse.
#[derive(Debug, Deserialize)]
struct Odd<'a> {
    #[serde(borrow)]
    id: Option<&'a RawValue>,
    #[serde(borrow)]
    model: Option<&'a RawValue>,
    #[serde(borrow)]
    choices: Option<&'a RawValue>,
    #[serde(borrow)]
    usage: Option<&'a RawValue>,
    #[serde(borrow)]
    error: Option<&'a RawValue>,
    #[serde(borrow)]
    x_groq: Option<&'a RawValue>,
}

impl<'a> Odd<'a> {
    /// Returns the chunk without its choices, if the chunk has usage or an error and nothing in the choices that a
    /// caller would miss.
    fn without_choices(self, json: &[u8]) -> Option<Answer<'a>> {
        let silent = self.choices.is_none_or(say_nothing);
        let answer = Answer {
            id: self.id,
            model: self.model,
            choices: None,
            usage: self.usage,
            error: self.error,
            x_groq: self.x_groq,
        };
        let tells = answer.check(json).is_err() || (silent && answer.tally().is_some());
        tells.then_some(answer)
    }
}

/// Returns whether these choices, in whatever form, contain neither text nor a finish reason.
fn say_nothing(choices: &RawValue) -> bool {
    #[derive(Deserialize)]
    struct Any<'a> {
        #[serde(borrow)]
        message: Option<&'a RawValue>,
        #[serde(borrow)]
        delta: Option<&'a RawValue>,
        #[serde(borrow)]
        finish_reason: Option<&'a RawValue>,
    }
    let choices: Vec<&RawValue> = serde_json::from_str(choices.get()).unwrap_or_default();
    let mut choices = choices
        .iter()
        .filter_map(|choice| serde_json::from_str::<Any<'_>>(choice.get()).ok());
    choices.all(|choice| {
        let mut said = [choice.message, choice.delta].into_iter().flatten();
        given(choice.finish_reason).is_none()
            && said.all(|said| !said.get().starts_with('{') || compact(said) == "{}")
    })
}

impl<'a> Answer<'a> {
    /// Reads a chunk. If it has usage or an error, choices without content are ignored even if they are malformed.
    pub(in crate::translate) fn chunk(json: &'a [u8]) -> Result<Self, Error> {
        serde_json::from_slice(json).or_else(|error| {
            let odd = serde_json::from_slice::<Odd<'a>>(json).ok();
            odd.and_then(|odd| odd.without_choices(json))
                .ok_or_else(|| broken(error))
        })
    }

    /// Returns an error if the body is an error in the form of an answer. `json` is the whole body.
    pub(in crate::translate) fn check(&self, json: &[u8]) -> Result<(), Error> {
        let named = self.error.filter(|error| is_error(error.get()));
        let itself = || {
            let complaint = self.complaint_in(json)?;
            let object = complaint.object?;
            (inner(object) == Some("error")).then(|| complaint.message.unwrap_or(object))
        };
        match named.or_else(itself) {
            Some(error) => Err(vendor_error(error.get())),
            None => Ok(()),
        }
    }

    /// Returns an error for a body that has a message and no answer, but is not marked as an error.
    pub(in crate::translate) fn complaint(&self, json: &[u8]) -> Option<Error> {
        let complaint = self.complaint_in(json)?;
        let words = complaint.message.or(complaint.detail)?;
        Some(vendor_error(words.get()))
    }

    fn complaint_in<'j>(&self, json: &'j [u8]) -> Option<Complaint<'j>> {
        if self.choices.is_some() || self.usage.is_some() {
            return None;
        }
        serde_json::from_slice(json).ok()
    }

    /// Takes the first choice, because only one was requested. Some chunks have no choice.
    pub(in crate::translate) fn choice(&mut self) -> Option<Choice<'a>> {
        let mut choices = self.choices.take().into_iter().flatten();
        choices.find(|choice| choice.index.unwrap_or(0) == 0)
    }

    /// Returns the message of a plain answer, and why it ended. If an answer has usage but no message, the message is
    /// empty.
    ///
    /// # Errors
    /// [`Error::VendorBroken`] if the answer has neither a message nor usage.
    pub(in crate::translate) fn whole(&mut self) -> Result<(Said<'a>, Option<Stop>), Error> {
        let counted = self.tally().is_some();
        let choice = self.choice();
        let reason = choice.as_ref().and_then(|choice| choice.finish_reason);
        let said = choice.and_then(|choice| choice.message.or(choice.delta));
        let said = said.or_else(|| counted.then(Said::default));
        Ok((said.ok_or_else(|| broken("no message"))?, stop(reason)?))
    }

    /// Returns the usage, which some vendors send in other fields. Must be called before [`choice`](Self::choice),
    /// which takes the choices.
    pub(in crate::translate) fn tally(&self) -> Option<Tally> {
        #[derive(Deserialize)]
        struct Groq<'a> {
            #[serde(borrow)]
            usage: Option<&'a RawValue>,
        }
        let groq = || {
            let groq = serde_json::from_str::<Groq<'a>>(self.x_groq?.get());
            groq.ok()?.usage
        };
        let of_choice = || {
            self.choices
                .iter()
                .flatten()
                .find_map(|choice| choice.usage)
        };
        Tally::read(self.usage.or_else(groq).or_else(of_choice)?)
    }
}

/// The model's output: a whole message, or a piece of one.
#[derive(Debug, Default, Deserialize)]
pub(in crate::translate) struct Said<'a> {
    #[serde(borrow)]
    content: Option<&'a RawValue>,
    #[serde(borrow)]
    refusal: Option<&'a RawValue>,
    #[serde(borrow)]
    reasoning_content: Option<&'a RawValue>,
    #[serde(borrow)]
    reasoning: Option<&'a RawValue>,
    #[serde(borrow)]
    reasoning_details: Option<&'a RawValue>,
    #[serde(borrow)]
    tool_calls: Option<Vec<ToolCall<'a>>>,
    #[serde(borrow)]
    function_call: Option<Function<'a>>,
}

/// The kind of a text in the model's output.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::translate) enum Kind {
    Thinking,
    Text,
    Refusal,
}

/// A part of a content or of reasoning that is sent as a list.
#[derive(Debug, Deserialize)]
struct Part<'a> {
    #[serde(borrow)]
    text: Option<&'a RawValue>,
    #[serde(borrow)]
    refusal: Option<&'a RawValue>,
    /// The thinking: a text, or a list of parts.
    #[serde(borrow)]
    thinking: Option<&'a RawValue>,
    #[serde(borrow)]
    summary: Option<&'a RawValue>,
}

impl<'a> Said<'a> {
    /// Adds the state that the vendor needs back to `kept`, except for texts and the signatures of calls.
    pub(in crate::translate) fn keep(&self, kept: &mut Kept) {
        let usual = given(self.reasoning_content).map(|_| Field::ReasoningContent);
        let field = usual.or_else(|| given(self.reasoning).map(|_| Field::Reasoning));
        kept.fields(field, self.reasoning_details);
    }

    /// Passes every text that is not empty to `each`, in order, JSON-escaped and without quotes.
    pub(in crate::translate) fn each_text(
        &self,
        mut each: impl FnMut(Kind, &'a str) -> Result<(), Error>,
    ) -> Result<(), Error> {
        // If a vendor sends both fields, they have the same text, so only one is read.
        let reasoning = given(self.reasoning_content).or_else(|| given(self.reasoning));
        match (reasoning, self.reasoning_details) {
            (Some(text), _) => each(Kind::Thinking, text)?,
            (None, Some(details)) => each_thought(details, &mut each)?,
            (None, None) => {}
        }
        match self.content {
            None => {}
            Some(content) => match inner(content) {
                Some("") => {}
                Some(text) => each(Kind::Text, text)?,
                None => each_part(content, &mut each)?,
            },
        }
        match given(self.refusal) {
            Some(text) => each(Kind::Refusal, text),
            None => Ok(()),
        }
    }

    /// Returns the tool calls. A call in the deprecated field `function_call` is the first of them.
    pub(in crate::translate) fn calls(self) -> Vec<ToolCall<'a>> {
        let mut calls = self.tool_calls.unwrap_or_default();
        if calls.is_empty()
            && let Some(function) = self.function_call
            && (given(function.name).is_some() || given(function.arguments).is_some())
        {
            calls.push(ToolCall {
                index: Some(0),
                id: None,
                function: Some(function),
                extra_content: None,
            });
        }
        calls
    }
}

/// Reads the parts of a content that is sent as a list. Parts other than text and thinking, such as references, have no
/// counterpart and are left out.
fn each_part<'a>(
    content: &'a RawValue,
    each: &mut impl FnMut(Kind, &'a str) -> Result<(), Error>,
) -> Result<(), Error> {
    let parts: Vec<Part<'a>> = serde_json::from_str(content.get()).map_err(broken)?;
    for part in parts {
        if let Some(thinking) = part.thinking {
            each_thought(thinking, each)?;
        }
        if let Some(text) = given(part.text) {
            each(Kind::Text, text)?;
        }
        if let Some(text) = given(part.refusal) {
            each(Kind::Refusal, text)?;
        }
    }
    Ok(())
}

/// Reads reasoning: a text, or a list of parts that have a text or a summary. Anything else is readable only for the
/// vendor, and is skipped.
fn each_thought<'a>(
    thinking: &'a RawValue,
    each: &mut impl FnMut(Kind, &'a str) -> Result<(), Error>,
) -> Result<(), Error> {
    if let Some(text) = given(Some(thinking)) {
        return each(Kind::Thinking, text);
    }
    let parts = serde_json::from_str::<Vec<Part<'a>>>(thinking.get());
    for part in parts.unwrap_or_default() {
        if let Some(text) = given(part.text).or_else(|| given(part.summary)) {
            each(Kind::Thinking, text)?;
        }
    }
    Ok(())
}

#[derive(Debug, Deserialize)]
pub(in crate::translate) struct ToolCall<'a> {
    pub(in crate::translate) index: Option<u64>,
    #[serde(borrow)]
    pub(in crate::translate) id: Option<&'a RawValue>,
    #[serde(borrow)]
    pub(in crate::translate) function: Option<Function<'a>>,
    #[serde(borrow)]
    extra_content: Option<&'a RawValue>,
}

#[derive(Debug, Deserialize)]
pub(in crate::translate) struct Function<'a> {
    #[serde(borrow)]
    pub(in crate::translate) name: Option<&'a RawValue>,
    #[serde(borrow)]
    pub(in crate::translate) arguments: Option<&'a RawValue>,
}

impl<'a> ToolCall<'a> {
    /// Returns the signature of the tool call, if it is an object.
    pub(in crate::translate) fn signature(&self) -> Option<&'a RawValue> {
        let signature = self.extra_content;
        signature.filter(|it| it.get().starts_with('{') && compact(it) != "{}")
    }
}

/// Why a chat answer ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::translate) enum Stop {
    EndTurn,
    MaxTokens,
    ToolUse,
    Refusal,
}

impl Stop {
    /// Returns whether the answer may be incomplete according to this reason. If not, clients run a tool call with the
    /// arguments that arrived, so truncated arguments must make the answer an error.
    pub(in crate::translate) const fn was_cut(self) -> bool {
        matches!(self, Self::MaxTokens | Self::Refusal)
    }
}

/// Reads a finish reason. Before the end, vendors send null or `""`.
pub(in crate::translate) fn stop(finish_reason: Option<&RawValue>) -> Result<Option<Stop>, Error> {
    Ok(match finish_reason.and_then(inner).unwrap_or_default() {
        "" => None,
        "length" | "model_length" | "max_tokens" => Some(Stop::MaxTokens),
        "tool_calls" | "function_call" => Some(Stop::ToolUse),
        "content_filter" => Some(Stop::Refusal),
        // The vendor broke the answer off, for which the messages format has no stop reason.
        reason @ ("error" | "insufficient_system_resource") => {
            return Err(broken(format!("finish_reason {reason:?}")));
        }
        _ => Some(Stop::EndTurn),
    })
}

/// Returns the messages format's stop reason. It depends on the tool calls, too: many vendors send `stop` after a tool
/// call, and some send `tool_calls` without one, which would make agents wait for ever.
pub(in crate::translate) fn stop_reason(
    stop: Option<Stop>,
    called: bool,
    refused: bool,
) -> &'static str {
    match stop {
        _ if refused => "refusal",
        Some(Stop::Refusal) => "refusal",
        Some(Stop::MaxTokens) => "max_tokens",
        Some(Stop::ToolUse | Stop::EndTurn) | None if called => "tool_use",
        Some(Stop::ToolUse | Stop::EndTurn) | None => "end_turn",
    }
}

/// Returns the vendor's id or, if there is none, an id that is derived from the answer.
pub(in crate::translate) fn message_id<'a>(
    id: Option<&'a RawValue>,
    answer: &[u8],
    created: u64,
) -> Json<'a> {
    match id {
        Some(id) if given(Some(id)).is_some() => Cow::Borrowed(id),
        _ => string(&format!("msg_{created:x}{:016x}", hash(answer))),
    }
}

/// Returns the vendor's name of the model that answered.
pub(in crate::translate) fn model(model: Option<&RawValue>) -> Json<'_> {
    match model {
        Some(model) if inner(model).is_some() => Cow::Borrowed(model),
        _ => quoted(&[]),
    }
}

/// Returns the id of a tool call without one: the same in every translation of this message, and another in other
/// messages.
pub(in crate::translate) fn tool_id(message_hash: u64, index: usize) -> String {
    format!("toolu_{message_hash:016x}_{index}")
}

#[cfg(test)]
mod tests;
