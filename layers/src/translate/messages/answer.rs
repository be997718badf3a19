//! Translates a plain chat answer to a messages answer, and reads what chat answers and streams have in common.

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

/// Chat answer → messages answer. State that the vendor needs back is added in capsules.
///
/// # Errors
/// [`Error::VendorBroken`]: the body is not a chat answer; [`Error::VendorUnavailable`]: it is an error.
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

/// Returns the visible text of each [`Kind`], as written between quotes.
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

/// Returns the block with the visible reasoning; without any, a block with the state that the tool calls need,
/// readable only by the vendor.
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
    /// Chat vendors do not report which sequence matched: always null.
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

/// Returns the arguments as an object. If a model wrote anything else, such as truncated JSON, it is wrapped in an
/// object.
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

/// An error with the vendor's own message, which is only logged.
pub(in crate::translate) fn vendor_error(words: &str) -> Error {
    let words: String = words.chars().take(ERROR_CHARS_MAX).collect();
    Error::VendorUnavailable(crate::scrub::scrubbed(&words).into())
}

/// A chat answer, or one chunk of it, as parsed.
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

/// A body that some servers send instead of an answer: an error object, or what may be one.
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

/// Fallback for a chunk whose choices do not parse.
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
    /// The chunk without its choices, if it has usage or an error, and the choices have nothing that a caller would
    /// miss.
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

/// Returns whether these choices, whatever their shape, contain neither text nor a finish reason.
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
    /// Reads a chunk. If it has usage or an error, malformed choices without any content are ignored.
    pub(in crate::translate) fn chunk(json: &'a [u8]) -> Result<Self, Error> {
        serde_json::from_slice(json).or_else(|error| {
            let odd = serde_json::from_slice::<Odd<'a>>(json).ok();
            odd.and_then(|odd| odd.without_choices(json))
                .ok_or_else(|| broken(error))
        })
    }

    /// Detects an error in the form of an answer. `json` is the whole body.
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

    /// A body that may be an error although it is not marked as one: it has a message and no answer.
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

    /// Takes the first choice, the only one requested. Some chunks have no choice.
    pub(in crate::translate) fn choice(&mut self) -> Option<Choice<'a>> {
        let mut choices = self.choices.take().into_iter().flatten();
        choices.find(|choice| choice.index.unwrap_or(0) == 0)
    }

    /// The message of a plain answer, and why it ended. An answer without a message is empty if it has a usage.
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

    /// Returns the usage, including two vendors' non-standard fields. To be read before [`choice`](Self::choice) takes
    /// the choices.
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

/// Output of a model: a whole message, or a piece.
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

/// The kind of a text.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::translate) enum Kind {
    Thinking,
    Text,
    Refusal,
}

/// A part of a content, or of reasoning, that is a list.
#[derive(Debug, Deserialize)]
struct Part<'a> {
    #[serde(borrow)]
    text: Option<&'a RawValue>,
    #[serde(borrow)]
    refusal: Option<&'a RawValue>,
    /// A text, or a list of parts.
    #[serde(borrow)]
    thinking: Option<&'a RawValue>,
    #[serde(borrow)]
    summary: Option<&'a RawValue>,
}

impl<'a> Said<'a> {
    /// Keeps the state that the vendor needs back, except for texts and the signatures of calls.
    pub(in crate::translate) fn keep(&self, kept: &mut Kept) {
        let usual = given(self.reasoning_content).map(|_| Field::ReasoningContent);
        let field = usual.or_else(|| given(self.reasoning).map(|_| Field::Reasoning));
        kept.fields(field, self.reasoning_details);
    }

    /// Passes every text that is not empty to `each`, in order, as written between its quotes.
    pub(in crate::translate) fn each_text(
        &self,
        mut each: impl FnMut(Kind, &'a str) -> Result<(), Error>,
    ) -> Result<(), Error> {
        // Vendors that send both fields repeat the same text.
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

    /// Returns the tool calls. A call in the deprecated field `function_call` counts as the first.
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

/// Reads the parts of a content that is a list. Parts other than text and thinking, such as references, have no
/// counterpart and are dropped.
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

/// Reads reasoning: a text, or a list of parts with a text or a summary each. Anything else that vendors send here only
/// they can read, so it is skipped.
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
    /// Returns the signature of the tool call, an object.
    pub(in crate::translate) fn signature(&self) -> Option<&'a RawValue> {
        let signature = self.extra_content;
        signature.filter(|it| it.get().starts_with('{') && compact(it) != "{}")
    }
}

/// The reason why a chat answer ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::translate) enum Stop {
    EndTurn,
    MaxTokens,
    ToolUse,
    Refusal,
}

impl Stop {
    /// Returns whether the reason states that something may be missing. If it does not, clients run a call with
    /// whatever arguments arrived, so truncated arguments make the answer broken.
    pub(in crate::translate) const fn was_cut(self) -> bool {
        matches!(self, Self::MaxTokens | Self::Refusal)
    }
}

/// Reads a finish reason. Vendors send null or `""` before the end.
pub(in crate::translate) fn stop(finish_reason: Option<&RawValue>) -> Result<Option<Stop>, Error> {
    Ok(match finish_reason.and_then(inner).unwrap_or_default() {
        "" => None,
        "length" | "model_length" | "max_tokens" => Some(Stop::MaxTokens),
        "tool_calls" | "function_call" => Some(Stop::ToolUse),
        "content_filter" => Some(Stop::Refusal),
        // The vendor broke the answer off; the messages format has no reason for that.
        reason @ ("error" | "insufficient_system_resource") => {
            return Err(broken(format!("finish_reason {reason:?}")));
        }
        _ => Some(Stop::EndTurn),
    })
}

/// Returns the messages format's stop reason. Many vendors send `stop` after a tool call, and some send `tool_calls`
/// without one, on which agents would loop for ever.
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

/// Returns the vendor's id; if it sent none, an id derived from the answer.
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

/// Returns the name that the vendor gives the model that answered.
pub(in crate::translate) fn model(model: Option<&RawValue>) -> Json<'_> {
    match model {
        Some(model) if inner(model).is_some() => Cow::Borrowed(model),
        _ => quoted(&[]),
    }
}

/// Id of a call to which the vendor gave none: stable for one message, and different in another.
pub(in crate::translate) fn tool_id(message_hash: u64, index: usize) -> String {
    format!("toolu_{message_hash:016x}_{index}")
}

#[cfg(test)]
mod tests;
