//! The fields of a chat answer and of the chunks of a chat stream, as vendors send them.

use serde::Deserialize;
use serde_json::value::RawValue;

use super::super::turn::{Counts, Stop, vendor_error};
use crate::{
    error::Error,
    formats::{
        chat::state::Field,
        text::{given, inner},
        wire::{broken, compact},
    },
    vendor_usage::{VendorUsage, chat_usage, is_error},
};

/// The fields of a chat answer, or of one chunk of a chat stream.
#[derive(Debug, Deserialize)]
pub(super) struct Answer<'a> {
    #[serde(borrow)]
    pub(super) id: Option<&'a RawValue>,
    #[serde(borrow)]
    pub(super) model: Option<&'a RawValue>,
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
pub(super) struct Choice<'a> {
    index: Option<u64>,
    #[serde(borrow)]
    pub(super) message: Option<Said<'a>>,
    #[serde(borrow)]
    pub(super) delta: Option<Said<'a>>,
    #[serde(borrow)]
    pub(super) finish_reason: Option<&'a RawValue>,
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
        let tells = answer.check(json).is_err() || (silent && answer.counts().is_some());
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
        let mut reported = [choice.message, choice.delta].into_iter().flatten();
        given(choice.finish_reason).is_none()
            && reported
                .all(|reported| !reported.get().starts_with('{') || compact(reported) == "{}")
    })
}

impl<'a> Answer<'a> {
    /// Reads a chunk. If it has usage or an error, choices without content are ignored even if they are malformed.
    pub(super) fn chunk(json: &'a [u8]) -> Result<Self, Error> {
        serde_json::from_slice(json).or_else(|error| {
            let odd = serde_json::from_slice::<Odd<'a>>(json).ok();
            odd.and_then(|odd| odd.without_choices(json))
                .ok_or_else(|| broken(error))
        })
    }

    /// Returns an error if the body is an error in the form of an answer. `json` is the whole body.
    pub(super) fn check(&self, json: &[u8]) -> Result<(), Error> {
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
    pub(super) fn complaint(&self, json: &[u8]) -> Option<Error> {
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
    pub(super) fn choice(&mut self) -> Option<Choice<'a>> {
        let mut choices = self.choices.take().into_iter().flatten();
        choices.find(|choice| choice.index.unwrap_or(0) == 0)
    }

    /// Returns the message of a plain answer, and why it ended. If an answer has usage but no message, the message is
    /// empty.
    ///
    /// # Errors
    /// [`Error::VendorBroken`] if the answer has neither a message nor usage.
    pub(super) fn whole(&mut self) -> Result<(Said<'a>, Option<Stop>), Error> {
        let counted = self.counts().is_some();
        let choice = self.choice();
        let reason = choice.as_ref().and_then(|choice| choice.finish_reason);
        let reported = choice.and_then(|choice| choice.message.or(choice.delta));
        let reported = reported.or_else(|| counted.then(Said::default));
        Ok((reported.ok_or_else(|| broken("no message"))?, stop(reason)?))
    }

    /// Returns the usage, which some vendors send in other fields. Must be called before [`choice`](Self::choice),
    /// which takes the choices.
    pub(super) fn counts(&self) -> Option<Counts> {
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
            let mut choices = self.choices.iter().flatten();
            choices.find_map(|choice| choice.usage)
        };
        let usage = self.usage.or_else(groq).or_else(of_choice)?;
        let VendorUsage {
            usage, reasoning, ..
        } = chat_usage(usage.get())?;
        Some(Counts::new(&usage, reasoning))
    }
}

/// The model's output: a whole message, or a piece of one.
#[derive(Debug, Default, Deserialize)]
pub(super) struct Said<'a> {
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
pub(super) enum Kind {
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
    /// Returns the field of the reasoning, and its details. `None` if the output has neither, and no reasoning within
    /// its content.
    pub(super) fn state(&self) -> Option<(Option<Field>, Option<&'a RawValue>)> {
        let usual = given(self.reasoning_content).map(|_| Field::ReasoningContent);
        let field = usual.or_else(|| given(self.reasoning).map(|_| Field::Reasoning));
        let list = self.content.is_some_and(|content| inner(content).is_none());
        let some = field.is_some() || self.reasoning_details.is_some() || list;
        some.then_some((field, self.reasoning_details))
    }

    /// Passes every text that is not empty to `each`, in order, JSON-escaped and without quotes.
    pub(super) fn each_text(
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
    pub(super) fn calls(self) -> Vec<ToolCall<'a>> {
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
pub(super) struct ToolCall<'a> {
    pub(super) index: Option<u64>,
    #[serde(borrow)]
    pub(super) id: Option<&'a RawValue>,
    #[serde(borrow)]
    pub(super) function: Option<Function<'a>>,
    #[serde(borrow)]
    extra_content: Option<&'a RawValue>,
}

#[derive(Debug, Deserialize)]
pub(super) struct Function<'a> {
    #[serde(borrow)]
    pub(super) name: Option<&'a RawValue>,
    #[serde(borrow)]
    pub(super) arguments: Option<&'a RawValue>,
}

impl<'a> ToolCall<'a> {
    /// Returns the signature of the tool call, if it is an object.
    pub(super) fn signature(&self) -> Option<&'a RawValue> {
        let signature = self.extra_content;
        signature.filter(|it| it.get().starts_with('{') && compact(it) != "{}")
    }
}

/// Reads a finish reason. Before the end, vendors send null or `""`.
pub(super) fn stop(finish_reason: Option<&RawValue>) -> Result<Option<Stop>, Error> {
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
