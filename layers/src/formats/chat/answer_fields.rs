//! The fields of Chat Completions responses and of stream chunks, as vendors send them.

use serde_json::value::RawValue;

use super::{
    super::turn::{Counts, Stop},
    chunk::{Chunk, groq_usage},
};
use crate::{
    error::Error,
    formats::{
        chat::state::Field,
        errors::unavailable,
        text::{given, inner},
        wire::{broken, compact},
    },
    vendor_usage::{VendorUsage, chat_usage, is_error},
};

raw_fields! {
    /// The fields of a Chat Completions response, or of one chunk of a Chat Completions stream.
    pub(super) struct Answer<'a> {
        id, model, usage, error, x_groq;
        #[serde(borrow)] choices: Option<Vec<Choice<'a>>>,
    }

    /// The fields of an error object, or of another body that some servers send instead of a response and that may be
    /// an error.
    struct Complaint<'a> { object, message, detail }

    pub(super) struct Choice<'a> {
        finish_reason, usage;
        index: Option<u64>,
        #[serde(borrow)] message: Option<Said<'a>>,
        #[serde(borrow)] delta: Option<Said<'a>>,
    }
}

impl<'a> Chunk<'a> {
    /// Returns the chunk without its choices. `None` if the chunk has neither usage nor an error, or if its choices
    /// contain something that a caller would miss.
    fn without_choices(self, json: &[u8]) -> Option<Answer<'a>> {
        raw_fields! { struct Outer<'a> { choices } }
        let outer = serde_json::from_slice::<Outer<'_>>(json).ok()?;
        let silent = outer.choices.is_none_or(say_nothing);
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

/// Returns whether these choices, in any form, contain neither text nor a finish reason.
fn say_nothing(choices: &RawValue) -> bool {
    raw_fields! {
        struct Any<'a> { message, delta, finish_reason }
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
    /// Reads a chunk. If the chunk has usage or an error, choices without content are ignored, even malformed ones.
    pub(super) fn chunk(json: &'a [u8]) -> Result<Self, Error> {
        serde_json::from_slice(json).or_else(|error| {
            let outer = serde_json::from_slice::<Chunk<'a>>(json).ok();
            outer
                .and_then(|outer| outer.without_choices(json))
                .ok_or_else(|| broken(error))
        })
    }

    /// Returns the error if the body reports an error in the form of a response. `json` is the whole body.
    pub(super) fn check(&self, json: &[u8]) -> Result<(), Error> {
        let named = self.error.filter(|error| is_error(error.get()));
        let itself = || {
            let complaint = self.complaint_in(json)?;
            let object = complaint.object?;
            (inner(object) == Some("error")).then(|| complaint.message.unwrap_or(object))
        };
        match named.or_else(itself) {
            Some(error) => Err(unavailable(error.get())),
            None => Ok(()),
        }
    }

    /// Returns an error for a body that has an error text (`message` or `detail`) instead of a response, but that is
    /// not marked as an error.
    pub(super) fn complaint(&self, json: &[u8]) -> Option<Error> {
        let complaint = self.complaint_in(json)?;
        let words = complaint.message.or(complaint.detail)?;
        Some(unavailable(words.get()))
    }

    fn complaint_in<'j>(&self, json: &'j [u8]) -> Option<Complaint<'j>> {
        if self.choices.is_some() || self.usage.is_some() {
            return None;
        }
        serde_json::from_slice(json).ok()
    }

    /// Takes the first choice, because only one was requested. `None` if the chunk has no choice.
    pub(super) fn choice(&mut self) -> Option<Choice<'a>> {
        let mut choices = self.choices.take().into_iter().flatten();
        choices.find(|choice| choice.index.unwrap_or(0) == 0)
    }

    /// Returns the message of a plain response, and why it ended. The message is empty if the response has usage but no
    /// message.
    ///
    /// # Errors
    /// [`Error::VendorBroken`] if the response has neither a message nor usage.
    pub(super) fn whole(&mut self) -> Result<(Said<'a>, Option<Stop>), Error> {
        let counted = self.counts().is_some();
        let choice = self.choice();
        let reason = choice.as_ref().and_then(|choice| choice.finish_reason);
        let reported = choice.and_then(|choice| choice.message.or(choice.delta));
        let reported = reported.or_else(|| counted.then(Said::default));
        Ok((reported.ok_or_else(|| broken("no message"))?, stop(reason)?))
    }

    /// Returns the usage, which some vendors send in other fields. Must be called before [`choice`](Self::choice),
    /// because that takes the choices.
    pub(super) fn counts(&self) -> Option<Counts> {
        let of_choice = || {
            let mut choices = self.choices.iter().flatten();
            choices.find_map(|choice| choice.usage)
        };
        let groq = || groq_usage(self.x_groq?);
        let usage = self.usage.or_else(groq).or_else(of_choice)?;
        let VendorUsage {
            usage, reasoning, ..
        } = chat_usage(usage.get())?;
        Some(Counts::new(&usage, reasoning))
    }
}

raw_fields! {
    /// The output of the model: a whole message, or a piece of a message.
    pub(super) struct Said<'a> {
        content, refusal, reasoning_content, reasoning, reasoning_details;
        #[serde(borrow)] tool_calls: Option<Vec<ToolCall<'a>>>,
        #[serde(borrow)] function_call: Option<Function<'a>>,
    }
}

/// The kind of a text in the model's output.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    Thinking,
    Text,
    Refusal,
}

raw_fields! {
    /// A part of content or reasoning, if it is sent as a list of parts.
    struct Part<'a> {
        text, refusal, summary;
        /// The thinking in the part: a text, or a list of parts.
        #[serde(borrow)] thinking: Option<&'a RawValue>,
    }
}

impl<'a> Said<'a> {
    /// Returns the field that contains the reasoning, and the reasoning's details. `None` if the output has neither,
    /// and its content has no reasoning.
    pub(super) fn state(&self) -> Option<(Option<Field>, Option<&'a RawValue>)> {
        let usual = given(self.reasoning_content).map(|_| Field::ReasoningContent);
        let field = usual.or_else(|| given(self.reasoning).map(|_| Field::Reasoning));
        let list = self.content.is_some_and(|content| inner(content).is_none());
        let some = field.is_some() || self.reasoning_details.is_some() || list;
        some.then_some((field, self.reasoning_details))
    }

    /// Passes every text that is not empty to `each`, in order. The texts are JSON-escaped and without quotes.
    pub(super) fn each_text(
        &self,
        mut each: impl FnMut(Kind, &'a str) -> Result<(), Error>,
    ) -> Result<(), Error> {
        // If a vendor sends both fields, both have the same text. So only one of them is read.
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

    /// Returns the tool calls. A call in the deprecated field `function_call` comes first.
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

/// Reads content that is sent as a list of parts. Parts other than text and thinking, for example references, have no
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

/// Reads reasoning that is a text, or a list of parts with a text or a summary. All other parts are readable only for
/// the vendor, and are skipped.
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

raw_fields! {
    pub(super) struct ToolCall<'a> {
        id, extra_content;
        index: Option<u64>,
        #[serde(borrow)] function: Option<Function<'a>>,
    }

    pub(super) struct Function<'a> { name, arguments }
}

impl<'a> ToolCall<'a> {
    /// Returns the signature of the tool call. `None` if it is not an object.
    pub(super) fn signature(&self) -> Option<&'a RawValue> {
        let signature = self.extra_content;
        signature.filter(|it| it.get().starts_with('{') && compact(it) != "{}")
    }
}

/// Reads a finish reason. Until the response ends, vendors send null or `""`.
pub(super) fn stop(finish_reason: Option<&RawValue>) -> Result<Option<Stop>, Error> {
    Ok(match finish_reason.and_then(inner).unwrap_or_default() {
        "" => None,
        "length" | "model_length" | "max_tokens" => Some(Stop::MaxTokens),
        "tool_calls" | "function_call" => Some(Stop::ToolUse),
        "content_filter" => Some(Stop::Refusal),
        // The vendor broke off the response. The Messages format has no stop reason for this.
        reason @ ("error" | "insufficient_system_resource") => {
            return Err(broken(format!("finish_reason {reason:?}")));
        }
        _ => Some(Stop::EndTurn),
    })
}
