//! Translates a messages stream to a chat stream. Each event is translated at once, without waiting for the next.

use std::borrow::Cow;

use bytes::BytesMut;
use serde::Deserialize;
use serde_json::value::RawValue;

use super::{
    answer::{Block, arguments, json_string},
    finish_reason,
    usage::Counts,
};
use crate::{
    error::Error,
    sse::Event,
    translate::{
        arguments::Lead,
        wire::{AnswerCx, broken, write_json},
    },
};

/// The longest id of an answer, and the longest model name, that a vendor may send. Both are stored and repeated in
/// every chunk.
const NAME_BYTES_MAX: usize = 512;

/// The beginning of a text delta, up to the text.
const CONTENT: &str = "{\"content\":";
const REASONING: &str = "{\"reasoning_content\":";

/// Translates messages events to chat chunks.
///
/// A stream stores the beginning of its chunks, with the vendor's id of the answer and the model's name (at most 512
/// bytes each), and counts: less than 1.5 KiB. Text and arguments are not stored.
#[derive(Debug)]
pub struct Events {
    cx: AnswerCx,
    /// The beginning of every chunk, up to `choices`; empty until the answer begins.
    head: BytesMut,
    counts: Counts,
    open: Open,
    index: Option<u64>,
    /// The number of tool calls so far. The chat format numbers tool calls separately from other content, from 0.
    tools: u64,
    /// The beginning of a delta for the last tool call.
    tool_head: String,
    finished: bool,
    stopped: bool,
}

/// The content block that is open: deltas belong to it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Open {
    /// No block, or a block of text or thinking.
    Shown,
    /// A call of the client's tool whose arguments arrive in pieces. Contains what is known of their beginning.
    ToolInPieces(Lead),
    /// A call of the client's tool whose arguments arrived completely in its first event.
    ToolWhole,
    /// A block that has no counterpart in the chat format: a call of the vendor's own tools, or its result.
    Dropped,
}

impl Events {
    /// Creates the state of a stream that has not begun.
    #[must_use]
    pub fn new(cx: AnswerCx) -> Self {
        Self {
            cx,
            head: BytesMut::new(),
            counts: Counts::default(),
            open: Open::Shown,
            index: None,
            tools: 0,
            tool_head: String::new(),
            finished: false,
            stopped: false,
        }
    }

    /// Translates the vendor's next event, and appends the result to `out`, often nothing.
    ///
    /// # Errors
    /// [`Error::VendorBroken`] if the event is not of the messages format or comes out of order.
    pub fn event(&mut self, event: &Event, out: &mut BytesMut) -> Result<(), Error> {
        let Some(data) = event.data().filter(|data| !data.trim_ascii().is_empty()) else {
            return Ok(());
        };
        if self.stopped {
            return Ok(());
        }
        let Some(wire) = Wire::read(&data)? else {
            return Ok(());
        };
        match &*wire.kind {
            "message_start" => self.start(wire.message, out),
            "content_block_start" => {
                self.close_block(out);
                let block = wire
                    .content_block
                    .ok_or_else(|| broken("a content_block_start without a block"))?;
                self.index = wire.index;
                self.open_block(&block, out)
            }
            "content_block_delta" => {
                let delta = wire
                    .delta
                    .ok_or_else(|| broken("a content_block_delta without a delta"))?;
                self.delta(wire.index, &delta, out)
            }
            "content_block_stop" => {
                self.close_block(out);
                Ok(())
            }
            "message_delta" => {
                if let Some(usage) = wire.usage {
                    self.counts.replace_by(usage);
                }
                match wire.delta.and_then(|delta| delta.stop_reason) {
                    Some(stop_reason) => self.finish(&stop_reason, out),
                    None => Ok(()),
                }
            }
            "message_stop" => self.stop(out),
            "ping" => {
                out.extend_from_slice(b": keep-alive\n\n");
                Ok(())
            }
            "error" => Err(broken("an error inside the stream")),
            _ => Ok(()),
        }
    }

    /// Handles the end of the vendor's bytes.
    ///
    /// # Errors
    /// [`Error::VendorBroken`] if the stream was truncated, because it must not look complete to the caller.
    pub fn end(&mut self, _out: &mut BytesMut) -> Result<(), Error> {
        if self.stopped {
            Ok(())
        } else {
            Err(broken("the stream ended before message_stop"))
        }
    }

    fn start(&mut self, message: Option<Message<'_>>, out: &mut BytesMut) -> Result<(), Error> {
        let message = message.ok_or_else(|| broken("a message_start without a message"))?;
        if let Some(usage) = message.usage {
            self.counts.replace_by(usage);
        }
        if !self.head.is_empty() {
            return Ok(());
        }
        let name = |value: Option<&RawValue>| {
            let name = value.map_or("\"\"", RawValue::get);
            if name.starts_with('"') && name.len() <= NAME_BYTES_MAX {
                Ok(name.to_owned())
            } else {
                Err(broken(
                    "the answer's id or model is not a string, or too long",
                ))
            }
        };
        let (id, model) = (name(message.id)?, name(message.model)?);
        let created = self.cx.created;
        self.head.extend_from_slice(
            format!(
                "data: {{\"id\":{id},\"object\":\"chat.completion.chunk\",\"created\":{created},\
                 \"model\":{model},\"choices\":["
            )
            .as_bytes(),
        );
        self.chunk(&["{\"role\":\"assistant\",\"content\":\"\"}"], None, out)
    }

    fn open_block(&mut self, block: &Block<'_>, out: &mut BytesMut) -> Result<(), Error> {
        self.open = Open::Shown;
        match &*block.kind {
            // Most text blocks begin with an empty text; some have no text field.
            "text" if block.text.is_some() => self.text(CONTENT, block.text, out),
            "thinking" if block.thinking.is_some() => self.text(REASONING, block.thinking, out),
            "text" | "thinking" => Ok(()),
            "tool_use" => {
                let (id, name) = (json_string(block.id)?.get(), json_string(block.name)?.get());
                self.tool_head = format!("{{\"tool_calls\":[{{\"index\":{},", self.tools);
                self.tools += 1;
                self.open = Open::ToolInPieces(Lead::default());
                let head = self.tool_head.as_str();
                let function = ",\"type\":\"function\",\"function\":{\"name\":";
                let delta = [
                    head,
                    "\"id\":",
                    id,
                    function,
                    name,
                    ",\"arguments\":\"\"}}]}",
                ];
                self.chunk(&delta, None, out)?;
                let whole = arguments(block.input);
                if whole == "{}" {
                    return Ok(());
                }
                // Some vendors send the whole input in the first event of the block.
                self.open = Open::ToolWhole;
                let whole = serde_json::Value::from(whole).to_string();
                self.arguments("", between_quotes(&whole), out)
            }
            _ => {
                self.open = Open::Dropped;
                Ok(())
            }
        }
    }

    fn delta(
        &mut self,
        index: Option<u64>,
        delta: &Delta<'_>,
        out: &mut BytesMut,
    ) -> Result<(), Error> {
        // The messages format never interleaves blocks. A delta for another block would be added to the wrong tool
        // call.
        if matches!((self.index, index), (Some(open), Some(index)) if open != index) {
            return Err(broken("a delta for a block that is not open"));
        }
        match &*delta.kind {
            _ if self.open == Open::Dropped => Ok(()),
            "text_delta" => self.text(CONTENT, delta.text, out),
            "thinking_delta" => self.text(REASONING, delta.thinking, out),
            "input_json_delta" => {
                let piece = json_string(delta.partial_json)?.get();
                match &mut self.open {
                    Open::Shown => Err(broken("arguments outside a tool")),
                    Open::ToolWhole | Open::Dropped => Ok(()),
                    Open::ToolInPieces(lead) => match lead.take(between_quotes(piece)) {
                        (_, "") => Ok(()),
                        (kept, rest) => self.arguments(kept, rest, out),
                    },
                }
            }
            // Signatures, citations and unknown deltas have no counterpart.
            _ => Ok(()),
        }
    }

    /// Closes the block. A tool call without arguments gets the empty object, because callers parse the arguments (case
    /// 70).
    fn close_block(&mut self, out: &mut BytesMut) {
        if let Open::ToolInPieces(lead) = self.open
            && !lead.begun()
        {
            // The answer has begun, because a tool call is open; so writing the chunk cannot fail.
            let _ = self.arguments("", lead.end(), out);
        }
        self.open = Open::Shown;
        self.index = None;
    }

    fn finish(&mut self, stop_reason: &str, out: &mut BytesMut) -> Result<(), Error> {
        self.close_block(out);
        if std::mem::replace(&mut self.finished, true) {
            return Ok(());
        }
        let reason = finish_reason(stop_reason, self.tools > 0);
        self.chunk(&["{}"], Some(reason), out)
    }

    fn stop(&mut self, out: &mut BytesMut) -> Result<(), Error> {
        // An event with the stop reason was lost, and the gateway must not invent one.
        if !self.finished {
            return Err(broken("message_stop without a stop_reason"));
        }
        if self.cx.usage_asked {
            out.extend_from_slice(&self.head);
            out.extend_from_slice(b"],\"usage\":");
            write_json(out, &self.counts.chat());
            out.extend_from_slice(b"}\n\n");
        }
        out.extend_from_slice(b"data: [DONE]\n\n");
        self.stopped = true;
        Ok(())
    }

    fn text(&self, head: &str, text: Option<&RawValue>, out: &mut BytesMut) -> Result<(), Error> {
        match json_string(text)?.get() {
            "\"\"" => Ok(()),
            text => self.chunk(&[head, text, "}"], None, out),
        }
    }

    /// Writes a piece of the last tool call's arguments. Both parts are JSON-escaped and have no quotes.
    fn arguments(&self, kept: &str, piece: &str, out: &mut BytesMut) -> Result<(), Error> {
        let (head, name) = (self.tool_head.as_str(), "\"function\":{\"arguments\":\"");
        self.chunk(&[head, name, kept, piece, "\"}}]}"], None, out)
    }

    /// Writes one chunk. JSON strings are copied from the event to the chunk as they are written, because they contain
    /// no raw line end.
    fn chunk(
        &self,
        delta: &[&str],
        finish_reason: Option<&'static str>,
        out: &mut BytesMut,
    ) -> Result<(), Error> {
        if self.head.is_empty() {
            return Err(broken("an event before message_start"));
        }
        let quote = if finish_reason.is_some() { "\"" } else { "" };
        let before = [",\"logprobs\":null,\"finish_reason\":", quote];
        let after = [
            finish_reason.unwrap_or("null"),
            quote,
            // Only the last chunk has usage. The other chunks have null, if the caller requested usage.
            if self.cx.usage_asked {
                "}],\"usage\":null}\n\n"
            } else {
                "}]}\n\n"
            },
        ];
        out.extend_from_slice(&self.head);
        out.extend_from_slice(b"{\"index\":0,\"delta\":");
        for piece in delta.iter().chain(&before).chain(&after) {
            out.extend_from_slice(piece.as_bytes());
        }
        Ok(())
    }
}

/// Returns the text between the quotes of a JSON string, still escaped.
pub(in crate::translate) fn between_quotes(string: &str) -> &str {
    &string[1..string.len() - 1]
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
pub(in crate::translate) struct Wire<'a> {
    #[serde(borrow, rename = "type")]
    pub(in crate::translate) kind: Cow<'a, str>,
    pub(in crate::translate) index: Option<u64>,
    #[serde(borrow)]
    pub(in crate::translate) message: Option<Message<'a>>,
    #[serde(borrow)]
    pub(in crate::translate) content_block: Option<Block<'a>>,
    #[serde(borrow)]
    pub(in crate::translate) delta: Option<Delta<'a>>,
    #[serde(borrow)]
    pub(in crate::translate) usage: Option<&'a RawValue>,
}

impl<'a> Wire<'a> {
    /// Reads an event; `None` if its type is unknown, whatever its other fields are. If a `message_delta` does not
    /// parse but has usage, its other fields are read as far as possible.
    pub(in crate::translate) fn read(data: &'a [u8]) -> Result<Option<Self>, Error> {
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
pub(in crate::translate) struct Message<'a> {
    #[serde(borrow)]
    id: Option<&'a RawValue>,
    #[serde(borrow)]
    pub(in crate::translate) model: Option<&'a RawValue>,
    #[serde(borrow)]
    pub(in crate::translate) usage: Option<&'a RawValue>,
}

#[derive(Deserialize)]
pub(in crate::translate) struct Delta<'a> {
    /// The type of the block or delta; empty in a `message_delta`.
    #[serde(borrow, default, rename = "type")]
    pub(in crate::translate) kind: Cow<'a, str>,
    #[serde(borrow)]
    pub(in crate::translate) text: Option<&'a RawValue>,
    #[serde(borrow)]
    pub(in crate::translate) thinking: Option<&'a RawValue>,
    #[serde(borrow)]
    pub(in crate::translate) signature: Option<&'a RawValue>,
    #[serde(borrow)]
    pub(in crate::translate) partial_json: Option<&'a RawValue>,
    pub(in crate::translate) stop_reason: Option<String>,
}

#[cfg(test)]
mod tests;
