//! Reads a response in the Messages format.

use std::borrow::Cow;

use serde_json::value::RawValue;

use super::{
    super::turn::{Call, Counts, Emit, Event, Proof, Reader as Read, Stop, arguments},
    usage::MessagesUsage,
};
use crate::{
    error::Error,
    formats::{
        arguments::Lead,
        text::{inner, string},
        wire::{broken, compact, too_many},
    },
    json::members,
    sse,
    vendor_usage::counts,
};

/// The item number of all text. Several text blocks are one text.
const TEXT: u64 = 0;
const THINKING: u64 = 1;
/// The item number of the first tool call.
const CALLS: u64 = 2;
/// The maximum number of tool calls in one response.
const CALLS_MAX: u64 = 4_096;

/// Reads a Messages response. No event is delayed, and no text is stored.
#[derive(Debug, Default)]
pub(crate) struct Reader {
    begun: bool,
    open: Open,
    index: Option<u64>,
    /// The number of tool calls that have begun so far.
    calls: u64,
    /// The usage so far. Counts are cumulative: a later event replaces those of an earlier event. Invalid counts are
    /// ignored here; the meter has marked them as suspect.
    usage: MessagesUsage,
    /// The reasoning tokens within the output. They have no price of their own.
    thinking: Option<u64>,
    stop: Option<Stop>,
    ended: bool,
}

/// The open content block, to which deltas belong.
#[derive(Clone, Copy, Debug, Default)]
enum Open {
    #[default]
    None,
    Text,
    Thinking,
    /// A tool call for the client: its item number, and the state of the beginning of its arguments. The state is
    /// `None` if all arguments arrived in the first event of the tool call.
    Call(u64, Option<Lead>),
    /// A block without deltas, or without a counterpart in other formats: a call of one of the vendor's own tools, or
    /// the result of such a call.
    Dropped,
}

impl Reader {
    fn begin(
        &mut self,
        (id, model): (Option<&RawValue>, Option<&RawValue>),
        usage: Option<&RawValue>,
        emit: Emit<'_>,
    ) -> Result<(), Error> {
        self.count(usage);
        if std::mem::replace(&mut self.begun, true) {
            return Ok(());
        }
        let name = |value: Option<&'_ RawValue>| match value.map_or("\"\"", RawValue::get) {
            name if name.starts_with('"') => Ok(name.to_owned()),
            _ => Err(broken(
                "the id or the model name of the response is not a string",
            )),
        };
        let (id, model) = (&name(id)?, &name(model)?);
        emit(Event::Begin { id, model })
    }

    fn count(&mut self, usage: Option<&RawValue>) {
        let Some(usage) = usage.map(RawValue::get) else {
            return;
        };
        if let Some(newer) = MessagesUsage::of(usage) {
            self.usage.replace_by(newer);
        }
        self.thinking = thinking(usage).or(self.thinking);
    }

    fn open_block(&mut self, block: &Block<'_>, emit: Emit<'_>) -> Result<(), Error> {
        self.open = match &*block.kind {
            "text" => {
                emit(Event::Text(TEXT, false, optional_string(block.text)?))?;
                Open::Text
            }
            "thinking" => {
                let piece = optional_string(block.thinking)?;
                emit(Event::Reasoning(THINKING, true, piece))?;
                signature(block.signature, emit)?;
                Open::Thinking
            }
            "redacted_thinking" => {
                let data = block.data.and_then(inner).unwrap_or_default();
                emit(Event::Proof(THINKING, Proof::Redacted(data)))?;
                Open::Dropped
            }
            "tool_use" => self.call(block, emit)?,
            _ => {
                emit(Event::Text(TEXT, false, ""))?;
                Open::Dropped
            }
        };
        Ok(())
    }

    fn call(&mut self, block: &Block<'_>, emit: Emit<'_>) -> Result<Open, Error> {
        let (id, name) = (json_string(block.id)?, json_string(block.name)?);
        if self.calls == CALLS_MAX {
            return Err(too_many(CALLS_MAX, "tool calls"));
        }
        let item = CALLS + self.calls;
        self.calls += 1;
        let custom = false;
        let call = Call { id, name, custom };
        emit(Event::Call { item, call })?;
        // A missing input means the empty object. Some vendors send `""` instead.
        let input = block.input.filter(|input| input.get() != "\"\"");
        let input = input.map_or(Cow::Borrowed("{}"), compact);
        // Some vendors send the whole input in the first event of the block.
        if input == "{}" {
            return Ok(Open::Call(item, Some(Lead::default())));
        }
        let json = string(&input);
        arguments(item, inner(&json).unwrap_or_default(), emit)?;
        Ok(Open::Call(item, None))
    }

    fn delta(
        &mut self,
        index: Option<u64>,
        delta: &Delta<'_>,
        emit: Emit<'_>,
    ) -> Result<(), Error> {
        // The Messages format never interleaves blocks. A delta of a block that is not open is an error, because it
        // would be added to the wrong tool call.
        if matches!((self.index, index), (Some(open), Some(index)) if open != index) {
            let why = "a content_block_delta belongs to a block that is not open";
            return Err(broken(why));
        }
        match (&mut self.open, &*delta.kind) {
            (Open::Dropped, _) => Ok(()),
            (_, "text_delta") => emit(Event::Text(TEXT, false, json_string(delta.text)?)),
            (_, "thinking_delta") => {
                let piece = json_string(delta.thinking)?;
                emit(Event::Reasoning(THINKING, true, piece))
            }
            (Open::Thinking, "signature_delta") => signature(delta.signature, emit),
            (Open::Call(_, None), "input_json_delta") => Ok(()),
            (Open::Call(item, Some(lead)), "input_json_delta") => {
                let (item, (stored, rest)) = (*item, lead.take(json_string(delta.partial_json)?));
                arguments(item, stored, emit)?;
                arguments(item, rest, emit)
            }
            (_, "input_json_delta") => Err(broken(
                "an input_json_delta belongs to a block that is not a tool call",
            )),
            // Citations and unknown deltas have no counterpart in other formats.
            _ => Ok(()),
        }
    }

    fn close_block(&mut self, emit: Emit<'_>) -> Result<(), Error> {
        self.index = None;
        let item = match std::mem::take(&mut self.open) {
            Open::None | Open::Text | Open::Dropped => return Ok(()),
            Open::Thinking => THINKING,
            Open::Call(item, lead) => {
                arguments(item, lead.map_or("", Lead::cut), emit)?;
                item
            }
        };
        emit(Event::Done(item, false))
    }

    fn stop(&mut self, reason: &str, emit: Emit<'_>) -> Result<(), Error> {
        self.close_block(emit)?;
        // Vendors may report usage again after the stop reason.
        if self.stop.is_some() {
            return Ok(());
        }
        let stop = match reason {
            "max_tokens" | "model_context_window_exceeded" => Stop::MaxTokens,
            "refusal" => Stop::Refusal,
            "tool_use" => Stop::ToolUse,
            // For `end_turn`, `stop_sequence`, `pause_turn` and unknown reasons, the response is complete.
            _ => Stop::EndTurn,
        };
        self.stop = Some(stop);
        emit(Event::Stop(stop))
    }

    fn finish(&mut self, emit: Emit<'_>) -> Result<(), Error> {
        // If the event with the stop reason was lost, the stream is an error, because the gateway must not invent a
        // reason.
        if self.stop.is_none() {
            let why = "the stream reported no stop_reason before message_stop";
            return Err(broken(why));
        }
        self.ended = true;
        let usage = self.usage.counts().unwrap_or_default().usage;
        emit(Event::End(Counts::new(&usage, self.thinking)))
    }
}

impl Read for Reader {
    fn event(&mut self, event: &sse::Event, emit: Emit<'_>) -> Result<(), Error> {
        let data = event.data().filter(|data| !data.trim_ascii().is_empty());
        let Some(data) = data.filter(|_| !self.ended) else {
            return Ok(());
        };
        let Some(wire) = Wire::read(&data)? else {
            return Ok(());
        };
        let kind = &*wire.kind;
        let of_message = kind.starts_with("message_") || kind.starts_with("content_block_");
        if !self.begun && of_message && kind != "message_start" {
            return Err(broken("an event precedes message_start"));
        }
        match kind {
            "message_start" => {
                let message = wire.message;
                let message = message.ok_or_else(|| broken("message_start has no message"))?;
                self.begin((message.id, message.model), message.usage, emit)
            }
            "content_block_start" => {
                self.close_block(emit)?;
                let block = wire.content_block;
                let block = block.ok_or_else(|| broken("content_block_start has no block"))?;
                self.index = wire.index;
                self.open_block(&block, emit)
            }
            "content_block_delta" => {
                let delta = wire.delta;
                let delta = delta.ok_or_else(|| broken("content_block_delta has no delta"))?;
                self.delta(wire.index, &delta, emit)
            }
            "content_block_stop" => self.close_block(emit),
            "message_delta" => {
                self.count(wire.usage);
                match wire.delta.and_then(|delta| delta.stop_reason) {
                    Some(reason) => self.stop(&reason, emit),
                    None => Ok(()),
                }
            }
            "message_stop" => self.finish(emit),
            "ping" => emit(Event::Alive),
            "error" => Err(broken("the stream contains an error event")),
            _ => Ok(()),
        }
    }

    fn end(&mut self, _: Emit<'_>) -> Result<(), Error> {
        if self.ended {
            Ok(())
        } else {
            Err(broken("the stream ended before message_stop"))
        }
    }

    fn answer(&mut self, body: &[u8], emit: Emit<'_>) -> Result<(), Error> {
        let answer: Answer<'_> = serde_json::from_slice(body).map_err(broken)?;
        // A response that has usage but no content counts as a response without blocks.
        if answer.content.is_none() && answer.usage.is_none() {
            return Err(broken("the response has no content"));
        }
        self.begin((answer.id, answer.model), answer.usage, emit)?;
        for block in answer.content.iter().flatten() {
            match &*block.kind {
                "text" => json_string(block.text)?,
                "thinking" => json_string(block.thinking)?,
                _ => "",
            };
            self.close_block(emit)?;
            self.open_block(block, emit)?;
        }
        // A plain response is never truncated, so it is complete even without a stop reason.
        self.stop(answer.stop_reason.as_deref().unwrap_or("tool_use"), emit)?;
        self.finish(emit)
    }
}

fn signature(signature: Option<&RawValue>, emit: Emit<'_>) -> Result<(), Error> {
    match signature.and_then(inner) {
        None | Some("") => Ok(()),
        Some(piece) => emit(Event::Proof(THINKING, Proof::Signature(piece))),
    }
}

/// Returns the thinking tokens within the output, if the vendor reports them.
fn thinking(usage: &str) -> Option<u64> {
    let [details] = members(usage, &["output_tokens_details"]).ok()?;
    let [thinking] = counts(details?, &["thinking_tokens"])?;
    thinking.tokens
}

/// Returns the text between the quotes of a JSON string, with its escapes.
fn json_string(value: Option<&RawValue>) -> Result<&str, Error> {
    let text = value.and_then(inner);
    text.ok_or_else(|| broken("a block or a delta lacks its text"))
}

/// Returns the text of a field that a block may lack.
fn optional_string(value: Option<&RawValue>) -> Result<&str, Error> {
    value.map_or(Ok(""), |value| json_string(Some(value)))
}

raw_fields! {
    struct Answer<'a> {
        id, model, usage;
        #[serde(borrow)] content: Option<Vec<Block<'a>>>,
        stop_reason: Option<String>,
    }

    /// A content block of a response, or the block in an event that begins a block. Fields that the block's type does
    /// not define may contain anything.
    struct Block<'a> {
        text, thinking, signature, id, name, input;
        #[serde(borrow, rename = "type")] kind: Cow<'a, str>,
        /// The vendor's encrypted data, which only blocks of redacted thinking have.
        #[serde(borrow)] data: Option<&'a RawValue>,
    }
}

const KNOWN: [&str; 8] = [
    "message_start",
    "content_block_start",
    "content_block_delta",
    "content_block_stop",
    "message_delta",
    "message_stop",
    "ping",
    "error",
];

raw_fields! {
    /// The fields of an event that does not parse as [`Wire`]. They are parsed leniently.
    struct Odd<'a> {
        delta, usage;
        #[serde(borrow, rename = "type")] kind: Cow<'a, str>,
    }
}

impl<'a> Odd<'a> {
    /// Keeps the fields that can be read. The others count as absent.
    fn read(self) -> Wire<'a> {
        let delta = self.delta.map(RawValue::get);
        Wire {
            kind: self.kind,
            delta: delta.and_then(|delta| serde_json::from_str(delta).ok()),
            usage: self.usage,
            ..Wire::default()
        }
    }
}

raw_fields! {
    /// Any event of a Messages stream, reduced to the fields that are translated.
    struct Wire<'a> {
        usage;
        #[serde(borrow, rename = "type")] kind: Cow<'a, str>,
        index: Option<u64>,
        #[serde(borrow)] message: Option<Message<'a>>,
        #[serde(borrow)] content_block: Option<Block<'a>>,
        #[serde(borrow)] delta: Option<Delta<'a>>,
    }
}

impl<'a> Wire<'a> {
    /// Reads an event. `None` if it does not parse and its type is unknown. If a `message_delta` does not parse but has
    /// usage, its other fields are read as far as possible.
    fn read(data: &'a [u8]) -> Result<Option<Self>, Error> {
        match serde_json::from_slice::<Self>(data) {
            Ok(wire) => Ok(Some(wire)),
            Err(error) => match serde_json::from_slice::<Odd<'_>>(data) {
                Ok(odd) if !KNOWN.contains(&&*odd.kind) => Ok(None),
                Ok(odd) if odd.kind == "message_delta" && odd.usage.is_some() => {
                    Ok(Some(odd.read()))
                }
                _ => Err(broken(error)),
            },
        }
    }
}

raw_fields! {
    struct Message<'a> { id, model, usage }

    struct Delta<'a> {
        text, thinking, signature, partial_json;
        /// The type of the block or delta; empty in a `message_delta`.
        #[serde(borrow, default, rename = "type")] kind: Cow<'a, str>,
        stop_reason: Option<String>,
    }
}
