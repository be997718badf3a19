//! A chat answer as a messages answer, and what of the chat format answers and streams have in common.

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
    json::decoded_len,
    translate::wire::{AnswerCx, broken, compact, write_json},
    vendor_usage::is_error,
};

/// Characters of a vendor's error that go to the log.
const ERROR_CHARS_MAX: usize = 500;

/// Puts a chat answer into the messages format.
///
/// # Errors
/// [`Error::VendorBroken`]: it is no answer; [`Error::VendorUnavailable`]: it is an error.
pub fn answer(body: &[u8], cx: &AnswerCx) -> Result<Bytes, Error> {
    let mut answer: Answer<'_> = serde_json::from_slice(body).map_err(broken)?;
    answer.check(body)?;
    let tally = answer.tally();
    let choice = answer.choice().ok_or_else(|| broken("no choices"))?;
    let stop = stop(choice.finish_reason)?;
    let said = choice
        .message
        .or(choice.delta)
        .ok_or_else(|| broken("a choice without a message"))?;

    let (mut thinking, mut text, mut refusal) = (String::new(), String::new(), String::new());
    let mut text_bytes = 0;
    said.each_text(|kind, piece| {
        text_bytes += decoded_len(piece.as_bytes());
        let whole = match kind {
            Kind::Thinking => &mut thinking,
            Kind::Text => &mut text,
            Kind::Refusal => &mut refusal,
        };
        whole.push_str(piece);
        Ok(())
    })?;
    let refused = !refusal.is_empty();
    let id = message_id(answer.id, body, cx.created);
    let mut content = Vec::new();
    if cx.thinking_asked && !thinking.is_empty() {
        content.push(Block::Thinking {
            thinking: quoted(&[&thinking]),
            signature: "",
        });
    }
    for text in [text, refusal] {
        if !text.is_empty() {
            let text = quoted(&[&text]);
            content.push(Block::Text { text });
        }
    }
    let calls = said.calls();
    let called = !calls.is_empty();
    for (index, call) in calls.into_iter().enumerate() {
        text_bytes += call.argument_bytes();
        content.push(tool_use(call, index, &id)?);
    }
    let message = Message {
        id,
        kind: "message",
        role: "assistant",
        model: model(answer.model),
        content,
        stop_reason: stop_reason(stop, called, refused),
        stop_sequence: None,
        usage: tally.unwrap_or_else(|| Tally::estimated(text_bytes)),
    };
    let mut out = BytesMut::with_capacity(body.len() + 256);
    write_json(&mut out, &message);
    Ok(out.freeze())
}

/// A messages answer as it is written.
#[derive(Debug, Serialize)]
struct Message<'a> {
    id: Json<'a>,
    #[serde(rename = "type")]
    kind: &'static str,
    role: &'static str,
    model: Json<'a>,
    content: Vec<Block<'a>>,
    stop_reason: &'static str,
    /// Chat vendors do not say which one it was: always null.
    stop_sequence: Option<&'static str>,
    usage: Tally,
}

#[derive(Debug, Serialize)]
#[serde(tag = "type", rename_all = "snake_case")]
enum Block<'a> {
    Thinking {
        thinking: Json<'a>,
        signature: &'static str,
    },
    Text {
        text: Json<'a>,
    },
    ToolUse {
        id: Json<'a>,
        name: &'a RawValue,
        input: Json<'a>,
    },
}

fn tool_use<'a>(
    call: ToolCall<'a>,
    index: usize,
    message_id: &RawValue,
) -> Result<Block<'a>, Error> {
    let function = call
        .function
        .ok_or_else(|| broken("a tool call without a function"))?;
    let name = function.name.filter(|name| given(Some(*name)).is_some());
    let id = match call.id {
        Some(id) if given(Some(id)).is_some() => Cow::Borrowed(id),
        _ => quoted(&[&tool_id(hash(message_id.get().as_bytes()), index)]),
    };
    Ok(Block::ToolUse {
        id,
        name: name.ok_or_else(|| broken("a tool call without a name"))?,
        input: input(function.arguments),
    })
}

/// The arguments as an object. What a model wrote and is none, as when it was cut off, is kept in one.
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

/// An error by the vendor's own words, which go to the log alone.
pub(in crate::translate) fn vendor_error(words: &str) -> Error {
    let words: String = words.chars().take(ERROR_CHARS_MAX).collect();
    Error::VendorUnavailable(crate::scrub::scrubbed(&words).into())
}

/// A chat answer, or one chunk of it.
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

/// What some servers write in an answer's place: an error itself, or what may be one.
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

/// A chunk whose choices cannot be read.
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
    /// It without them, if it has usage or an error and nothing else that a caller would miss.
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

/// Whether in these choices, whatever they are, is neither a word nor a reason.
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
    /// Reads a chunk. Beside usage or an error, choices may be anything that says nothing.
    pub(in crate::translate) fn chunk(json: &'a [u8]) -> Result<Self, Error> {
        serde_json::from_slice(json).or_else(|error| {
            let odd = serde_json::from_slice::<Odd<'a>>(json).ok();
            odd.and_then(|odd| odd.without_choices(json))
                .ok_or_else(|| broken(error))
        })
    }

    /// An error in the clothes of an answer is an error. `json` is all of it.
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

    /// What may be an error, though nothing says so: words in the place of an answer.
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

    /// Takes the one choice that was asked for. Some chunks have none.
    pub(in crate::translate) fn choice(&mut self) -> Option<Choice<'a>> {
        let mut choices = self.choices.take().into_iter().flatten();
        choices.find(|choice| choice.index.unwrap_or(0) == 0)
    }

    /// The usage, where it is: two vendors have their own places for it. Before [`choice`](Self::choice) is taken.
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

/// What a model says: all of it, or a piece.
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

/// What a text is of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::translate) enum Kind {
    Thinking,
    Text,
    Refusal,
}

/// A part of a content or of reasoning that comes as a list.
#[derive(Debug, Deserialize)]
struct Part<'a> {
    #[serde(borrow)]
    text: Option<&'a RawValue>,
    #[serde(borrow)]
    refusal: Option<&'a RawValue>,
    /// A text, or parts again.
    #[serde(borrow)]
    thinking: Option<&'a RawValue>,
    #[serde(borrow)]
    summary: Option<&'a RawValue>,
}

impl<'a> Said<'a> {
    /// Hands on every text that is not empty, in order, as it stands between its quotes.
    pub(in crate::translate) fn each_text(
        &self,
        mut each: impl FnMut(Kind, &'a str) -> Result<(), Error>,
    ) -> Result<(), Error> {
        // Vendors that have both fields say the same in both.
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

    /// The tool calls. The oldest way to call one counts as the first.
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
            });
        }
        calls
    }
}

/// The parts of a content that comes as a list. What is neither text nor thinking, as references are,
/// has no counterpart.
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

/// A text, or a list of parts, each with a text or a summary. Vendors write much else here, which only
/// they can read.
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
}

#[derive(Debug, Deserialize)]
pub(in crate::translate) struct Function<'a> {
    #[serde(borrow)]
    pub(in crate::translate) name: Option<&'a RawValue>,
    #[serde(borrow)]
    pub(in crate::translate) arguments: Option<&'a RawValue>,
}

impl ToolCall<'_> {
    /// UTF-8 bytes of its arguments.
    pub(in crate::translate) fn argument_bytes(&self) -> u64 {
        let function = self.function.as_ref();
        let arguments = function.and_then(|function| function.arguments);
        arguments.map_or(0, |raw| {
            decoded_len(inner(raw).unwrap_or(raw.get()).as_bytes())
        })
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
    /// It says itself that something may be missing. Where it does not, clients run a call with as much of its arguments
    /// as came: such an answer is broken.
    pub(in crate::translate) const fn was_cut(self) -> bool {
        matches!(self, Self::MaxTokens | Self::Refusal)
    }
}

/// Reads a finish reason. Vendors write null and `""` for none yet.
pub(in crate::translate) fn stop(finish_reason: Option<&RawValue>) -> Result<Option<Stop>, Error> {
    Ok(match finish_reason.and_then(inner).unwrap_or_default() {
        "" => None,
        "length" | "model_length" | "max_tokens" => Some(Stop::MaxTokens),
        "tool_calls" | "function_call" => Some(Stop::ToolUse),
        "content_filter" => Some(Stop::Refusal),
        // The answer broke off at the vendor; no reason of the other format says so.
        reason @ ("error" | "insufficient_system_resource") => {
            return Err(broken(format!("finish_reason {reason:?}")));
        }
        _ => Some(Stop::EndTurn),
    })
}

/// The messages format's stop reason. Many vendors end on `stop` where a tool was called, and some on `tool_calls` where
/// none was: agents would go on with nothing, for ever.
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

/// The vendor's id; where it gave none, one made of the answer itself.
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

/// The model that answered, as the vendor calls it.
pub(in crate::translate) fn model(model: Option<&RawValue>) -> Json<'_> {
    match model {
        Some(model) if inner(model).is_some() => Cow::Borrowed(model),
        _ => quoted(&[]),
    }
}

/// An id for a call that the vendor gave none: the same however often it is asked for, and another
/// one in another message.
pub(in crate::translate) fn tool_id(message_hash: u64, index: usize) -> String {
    format!("toolu_{message_hash:016x}_{index}")
}

#[cfg(test)]
mod tests;
