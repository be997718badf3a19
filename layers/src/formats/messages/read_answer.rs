//! Reads the answer of a messages vendor.

use std::borrow::Cow;

use serde::Deserialize;
use serde_json::value::RawValue;

use super::super::turn::{Call, Counts, Emit, Event, Proof, Reader as Read, Stop, arguments};
use crate::{
    error::Error,
    formats::{
        arguments::Lead,
        text::{inner, string},
        wire::{broken, compact, too_much},
    },
    json::members,
    sse,
    vendor_usage::{MessagesUsage, counts},
};

/// The item of all text: several blocks are one text.
const TEXT: u64 = 0;
const THINKING: u64 = 1;
/// The item of the first tool call.
const CALLS: u64 = 2;
/// The largest number of tool calls in one answer.
const CALLS_MAX: u64 = 4_096;

/// Reads a messages answer. No event is delayed, and no text is stored.
#[derive(Debug, Default)]
pub(crate) struct Reader {
    begun: bool,
    open: Open,
    index: Option<u64>,
    /// The number of tool calls so far.
    calls: u64,
    /// Counts are cumulative: those of a later event replace those of an earlier event. Invalid counts are ignored
    /// here; the meter has marked them as suspect.
    usage: MessagesUsage,
    /// The reasoning within the output, which has no price of its own.
    thinking: Option<u64>,
    stop: Option<Stop>,
    ended: bool,
}

/// The content block that is open: deltas belong to it.
#[derive(Clone, Copy, Debug, Default)]
enum Open {
    #[default]
    None,
    Text,
    Thinking,
    /// A call of the client's tool: its item, and what is known of the beginning of its arguments. `None` if they
    /// arrived completely in its first event.
    Call(u64, Option<Lead>),
    /// A block that has no deltas, or no counterpart in other formats: a call of the vendor's own tools, or its result.
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
            _ => Err(broken("the answer's id or model is not a string")),
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
                self.text(block.text, emit)?;
                Open::Text
            }
            "thinking" => {
                self.reasoning(block.thinking, emit)?;
                signature(block.signature, emit)?;
                Open::Thinking
            }
            "redacted_thinking" => {
                let data = block.data.and_then(inner).unwrap_or_default();
                emit(Event::Proof {
                    item: THINKING,
                    proof: Proof::Redacted(data),
                })?;
                Open::Dropped
            }
            "tool_use" => self.call(block, emit)?,
            _ => {
                self.text(None, emit)?;
                Open::Dropped
            }
        };
        Ok(())
    }

    fn text(&self, text: Option<&RawValue>, emit: Emit<'_>) -> Result<(), Error> {
        emit(Event::Text {
            item: TEXT,
            refusal: false,
            piece: match text {
                Some(text) => json_string(Some(text))?,
                None => "",
            },
        })
    }

    fn reasoning(&self, text: Option<&RawValue>, emit: Emit<'_>) -> Result<(), Error> {
        emit(Event::Reasoning {
            item: THINKING,
            summary: true,
            piece: match text {
                Some(text) => json_string(Some(text))?,
                None => "",
            },
        })
    }

    fn call(&mut self, block: &Block<'_>, emit: Emit<'_>) -> Result<Open, Error> {
        let (id, name) = (json_string(block.id)?, json_string(block.name)?);
        if self.calls == CALLS_MAX {
            return Err(too_much(format!("more than {CALLS_MAX} tool calls")));
        }
        let item = CALLS + self.calls;
        self.calls += 1;
        let custom = false;
        let call = Call { id, name, custom };
        emit(Event::Call { item, call })?;
        // A missing input is the empty object; some vendors send `""` instead.
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
        // The messages format never interleaves blocks. A delta for another block would be added to the wrong tool
        // call.
        if matches!((self.index, index), (Some(open), Some(index)) if open != index) {
            return Err(broken("a delta for a block that is not open"));
        }
        match (&mut self.open, &*delta.kind) {
            (Open::Dropped, _) => Ok(()),
            (_, "text_delta") => {
                json_string(delta.text)?;
                self.text(delta.text, emit)
            }
            (_, "thinking_delta") => {
                json_string(delta.thinking)?;
                self.reasoning(delta.thinking, emit)
            }
            (Open::Thinking, "signature_delta") => signature(delta.signature, emit),
            (Open::Call(_, None), "input_json_delta") => Ok(()),
            (Open::Call(item, Some(lead)), "input_json_delta") => {
                let (item, (stored, rest)) = (*item, lead.take(json_string(delta.partial_json)?));
                arguments(item, stored, emit)?;
                arguments(item, rest, emit)
            }
            (_, "input_json_delta") => Err(broken("arguments outside a tool")),
            // Citations and unknown deltas have no counterpart.
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
        let implied = false;
        emit(Event::Done { item, implied })
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
            // `end_turn`, `stop_sequence`, `pause_turn`, and unknown reasons: the answer is complete.
            _ => Stop::EndTurn,
        };
        self.stop = Some(stop);
        emit(Event::Stop(stop))
    }

    fn finish(&mut self, emit: Emit<'_>) -> Result<(), Error> {
        // An event with the stop reason was lost, and the gateway must not invent one.
        if self.stop.is_none() {
            return Err(broken("message_stop without a stop_reason"));
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
            return Err(broken("an event before message_start"));
        }
        match kind {
            "message_start" => {
                let message = wire.message;
                let message = message.ok_or_else(|| broken("a message_start without a message"))?;
                self.begin((message.id, message.model), message.usage, emit)
            }
            "content_block_start" => {
                self.close_block(emit)?;
                let block = wire.content_block;
                let block = block.ok_or_else(|| broken("a content_block_start without a block"))?;
                self.index = wire.index;
                self.open_block(&block, emit)
            }
            "content_block_delta" => {
                let delta = wire.delta;
                let delta = delta.ok_or_else(|| broken("a content_block_delta without a delta"))?;
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
            "error" => Err(broken("an error inside the stream")),
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
        // An answer that has usage and no content has no blocks.
        if answer.content.is_none() && answer.usage.is_none() {
            return Err(broken("an answer without content"));
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
        // A plain answer is never truncated, so an answer without a stop reason is complete.
        self.stop(answer.stop_reason.as_deref().unwrap_or("tool_use"), emit)?;
        self.finish(emit)
    }
}

fn signature(signature: Option<&RawValue>, emit: Emit<'_>) -> Result<(), Error> {
    match signature.and_then(inner) {
        None | Some("") => Ok(()),
        Some(piece) => emit(Event::Proof {
            item: THINKING,
            proof: Proof::Signature(piece),
        }),
    }
}

/// Returns the thinking tokens within the output, if the vendor reports them.
fn thinking(usage: &str) -> Option<u64> {
    let [details] = members(usage, &["output_tokens_details"]).ok()?;
    let [thinking] = counts(details?, &["thinking_tokens"])?;
    thinking.tokens
}

/// Returns the text between the quotes of a JSON string, still escaped.
fn json_string(value: Option<&RawValue>) -> Result<&str, Error> {
    let text = value.and_then(inner);
    text.ok_or_else(|| broken("a string is missing"))
}

#[derive(Deserialize)]
struct Answer<'a> {
    #[serde(borrow)]
    id: Option<&'a RawValue>,
    #[serde(borrow)]
    model: Option<&'a RawValue>,
    #[serde(borrow)]
    content: Option<Vec<Block<'a>>>,
    stop_reason: Option<String>,
    #[serde(borrow)]
    usage: Option<&'a RawValue>,
}

/// A content block of an answer, or the block with which an event begins. Fields that the block's type does not define
/// may contain anything.
#[derive(Deserialize)]
struct Block<'a> {
    #[serde(borrow, rename = "type")]
    kind: Cow<'a, str>,
    #[serde(borrow)]
    text: Option<&'a RawValue>,
    #[serde(borrow)]
    thinking: Option<&'a RawValue>,
    #[serde(borrow)]
    signature: Option<&'a RawValue>,
    /// The vendor's encrypted data, which only blocks of redacted thinking have.
    #[serde(borrow)]
    data: Option<&'a RawValue>,
    #[serde(borrow)]
    id: Option<&'a RawValue>,
    #[serde(borrow)]
    name: Option<&'a RawValue>,
    #[serde(borrow)]
    input: Option<&'a RawValue>,
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

/// The fields of an event, parsed leniently: used if the event does not parse as [`Wire`].
#[derive(Deserialize)]
struct Odd<'a> {
    #[serde(borrow, rename = "type")]
    kind: Cow<'a, str>,
    #[serde(borrow)]
    delta: Option<&'a RawValue>,
    #[serde(borrow)]
    usage: Option<&'a RawValue>,
}

impl<'a> Odd<'a> {
    /// Keeps the fields that can be read; the others become absent.
    fn read(self) -> Wire<'a> {
        let delta = self.delta.map(RawValue::get);
        Wire {
            kind: self.kind,
            index: None,
            message: None,
            content_block: None,
            delta: delta.and_then(|delta| serde_json::from_str(delta).ok()),
            usage: self.usage,
        }
    }
}

/// Any event of a messages stream, with the fields that are translated.
#[derive(Deserialize)]
struct Wire<'a> {
    #[serde(borrow, rename = "type")]
    kind: Cow<'a, str>,
    index: Option<u64>,
    #[serde(borrow)]
    message: Option<Message<'a>>,
    #[serde(borrow)]
    content_block: Option<Block<'a>>,
    #[serde(borrow)]
    delta: Option<Delta<'a>>,
    #[serde(borrow)]
    usage: Option<&'a RawValue>,
}

impl<'a> Wire<'a> {
    /// Reads an event; `None` if it does not parse and its type is unknown. If a `message_delta` does not
    /// parse but has usage, its other fields are read as far as possible.
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

#[derive(Deserialize)]
struct Message<'a> {
    #[serde(borrow)]
    id: Option<&'a RawValue>,
    #[serde(borrow)]
    model: Option<&'a RawValue>,
    #[serde(borrow)]
    usage: Option<&'a RawValue>,
}

#[derive(Deserialize)]
struct Delta<'a> {
    /// The type of the block or delta; empty in a `message_delta`.
    #[serde(borrow, default, rename = "type")]
    kind: Cow<'a, str>,
    #[serde(borrow)]
    text: Option<&'a RawValue>,
    #[serde(borrow)]
    thinking: Option<&'a RawValue>,
    #[serde(borrow)]
    signature: Option<&'a RawValue>,
    #[serde(borrow)]
    partial_json: Option<&'a RawValue>,
    stop_reason: Option<String>,
}
