//! Translates a messages vendor's answer, plain or streamed, to the responses format.

use bytes::{Bytes, BytesMut};
use serde_json::value::RawValue;

use super::{
    asked::Asked,
    usage::Counts,
    writer::{Thought, Writer},
};
use crate::{
    error::Error,
    sse::Event,
    stream_progress::StreamProgress,
    translate::{
        chat::{
            answer::{Answer, Block, arguments, json_string},
            stream::{Delta, Message, Wire, between_quotes},
            usage::Counts as VendorCounts,
        },
        messages::Stop,
        wire::broken,
    },
};

/// Translates a messages answer to a responses answer.
///
/// # Errors
/// [`Error::VendorBroken`] if the body is not an answer of the messages format.
pub fn messages_answer(body: &[u8], asked: Asked) -> Result<Bytes, Error> {
    let answer: Answer<'_> = serde_json::from_slice(body).map_err(broken)?;
    let mut reading = Reading::new(asked, true);
    let mut out = BytesMut::with_capacity(body.len() + 512);
    let model = serde_json::Value::from(&*answer.model).to_string();
    reading.writer.begin(&model, &mut out);
    // The last block is left open, as in a stream, because only the stop reason shows whether it was truncated.
    for block in answer.blocks()? {
        reading.close_block(&mut out)?;
        reading.open_block(block, &mut out)?;
    }
    reading.end_thinking()?;
    if let Some(usage) = answer.usage {
        reading.counts.replace_by(usage);
    }
    reading.finish(
        answer.stop_reason.as_deref().unwrap_or("end_turn"),
        &mut out,
    );
    Ok(out.freeze())
}

/// Translates each event of a messages stream as it arrives, except for the end of a block: only the event after it
/// shows whether the block was truncated.
///
/// The last events repeat the whole answer, so a stream stores it, at most 4 MiB. A stream that would need more fails.
#[derive(Debug)]
pub struct MessagesEvents {
    reading: Reading,
    index: Option<u64>,
    stop_reason: Option<String>,
    stopped: bool,
}

impl MessagesEvents {
    /// Creates the state of a stream that has not begun.
    #[must_use]
    pub fn new(asked: Asked) -> Self {
        Self {
            reading: Reading::new(asked, false),
            index: None,
            stop_reason: None,
            stopped: false,
        }
    }

    /// Returns the position of the stream, for code that must end it early.
    pub(crate) fn progress(&self) -> StreamProgress {
        self.reading.writer.progress()
    }

    /// Translates the next event, and appends the result to `out`, perhaps nothing.
    ///
    /// # Errors
    /// [`Error::VendorBroken`] if the event is not of the messages format or comes out of order,
    /// [`Error::AnswerTooLong`] if the stream would have to store too much.
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
        let begins = wire.kind == "message_start";
        let tells = begins || matches!(&*wire.kind, "ping" | "error");
        let known = wire.kind.starts_with("content_block_") || wire.kind.starts_with("message_");
        if known && !tells && !self.reading.writer.begun() {
            return Err(broken("an event before message_start"));
        }
        match &*wire.kind {
            "message_start" => {
                let message = wire
                    .message
                    .ok_or_else(|| broken("a message_start without a message"))?;
                self.reading.start(&message, out);
                Ok(())
            }
            "content_block_start" => {
                let block = wire
                    .content_block
                    .ok_or_else(|| broken("a content_block_start without a block"))?;
                self.index = wire.index;
                self.reading.close_block(out)?;
                self.reading.open_block(&block, out)
            }
            "content_block_delta" => {
                let delta = wire
                    .delta
                    .ok_or_else(|| broken("a content_block_delta without a delta"))?;
                // The messages format never interleaves blocks. A delta for another block would be added to the wrong
                // tool call.
                if matches!((self.index, wire.index), (Some(open), Some(index)) if open != index) {
                    return Err(broken("a delta for a block that is not open"));
                }
                self.reading.delta(&delta, out)
            }
            "message_delta" => {
                if let Some(usage) = wire.usage {
                    self.reading.counts.replace_by(usage);
                }
                let reason = wire.delta.and_then(|delta| delta.stop_reason);
                self.stop_reason = reason.or(self.stop_reason.take());
                Ok(())
            }
            "message_stop" => self.stop(out),
            "ping" => {
                self.reading.writer.alive(out);
                Ok(())
            }
            "error" => Err(broken("an error inside the stream")),
            _ => Ok(()),
        }
    }

    fn stop(&mut self, out: &mut BytesMut) -> Result<(), Error> {
        // An event with the stop reason was lost, and the gateway must not invent one.
        let reason = self
            .stop_reason
            .take()
            .ok_or_else(|| broken("message_stop without a stop_reason"))?;
        self.reading.end_thinking()?;
        self.reading.finish(&reason, out);
        self.stopped = true;
        Ok(())
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
}

#[derive(Debug)]
struct Reading {
    writer: Writer,
    open: Open,
    counts: VendorCounts,
}

/// The content block that is open: deltas belong to it.
#[derive(Debug, Default)]
enum Open {
    /// No block, or a block that has no counterpart in the responses format.
    #[default]
    Dropped,
    Text,
    /// Thinking, with the part of its signature that has arrived.
    Thinking(String),
    Redacted,
    /// A tool call: the number of its item, and whether its arguments arrived completely in the first event.
    Tool(usize, bool),
}

impl Reading {
    fn new(asked: Asked, silent: bool) -> Self {
        Self {
            writer: Writer::new(asked, silent),
            open: Open::Dropped,
            counts: VendorCounts::default(),
        }
    }

    fn start(&mut self, message: &Message<'_>, out: &mut BytesMut) {
        if let Some(usage) = message.usage {
            self.counts.replace_by(usage);
        }
        let model = message.model.map(RawValue::get);
        let model = model.filter(|model| model.starts_with('"'));
        self.writer.begin(model.unwrap_or("\"\""), out);
    }

    fn open_block(&mut self, block: &Block<'_>, out: &mut BytesMut) -> Result<(), Error> {
        self.open = match &*block.kind {
            "text" => {
                // Consecutive text blocks become one message; a block of another type between them ends the message.
                if let Some(text) = block.text {
                    self.text(Some(text), out)?;
                }
                Open::Text
            }
            "thinking" => {
                self.writer.begin_thinking(out)?;
                if let Some(thinking) = block.thinking {
                    let piece = between_quotes(json_string(Some(thinking))?.get());
                    self.writer.thinking(piece, out)?;
                }
                let signature = block.signature.filter(|it| it.get() != "\"\"");
                match signature {
                    None => Open::Thinking(String::new()),
                    Some(it) => {
                        Open::Thinking(between_quotes(json_string(Some(it))?.get()).to_owned())
                    }
                }
            }
            "redacted_thinking" => {
                let data = block.data.map_or("\"\"", RawValue::get);
                if self.writer.begin_redacted(out)? && data.starts_with('"') {
                    let data = between_quotes(data);
                    self.writer.end_thinking(Thought::Redacted(data))?;
                }
                Open::Redacted
            }
            "tool_use" => {
                let id = between_quotes(json_string(block.id)?.get());
                let name = between_quotes(json_string(block.name)?.get());
                let index = self.writer.begin_call(id, name, out)?;
                let whole = arguments(block.input);
                // Some vendors send the whole input in the first event of the block.
                if whole == "{}" {
                    Open::Tool(index, false)
                } else {
                    let whole = serde_json::Value::from(whole).to_string();
                    self.writer.arguments(index, between_quotes(&whole), out)?;
                    Open::Tool(index, true)
                }
            }
            // The vendor's own tools and their results, and unknown blocks, have no counterpart.
            _ => Open::Dropped,
        };
        Ok(())
    }

    fn delta(&mut self, delta: &Delta<'_>, out: &mut BytesMut) -> Result<(), Error> {
        match (&mut self.open, &*delta.kind) {
            (Open::Text, "text_delta") => self.text(delta.text, out),
            (Open::Thinking(_), "thinking_delta") => {
                let piece = json_string(delta.thinking)?.get();
                self.writer.thinking(between_quotes(piece), out)
            }
            (Open::Thinking(signature), "signature_delta") => {
                let piece = between_quotes(json_string(delta.signature)?.get());
                signature.push_str(piece);
                self.writer.keep(piece.len())
            }
            (Open::Tool(_, true), "input_json_delta") => Ok(()),
            (Open::Tool(index, false), "input_json_delta") => {
                let piece = json_string(delta.partial_json)?.get();
                self.writer.arguments(*index, between_quotes(piece), out)
            }
            (Open::Text | Open::Thinking(_), "input_json_delta") => {
                Err(broken("arguments outside a tool"))
            }
            // Citations and unknown deltas have no counterpart.
            _ => Ok(()),
        }
    }

    fn text(&mut self, text: Option<&RawValue>, out: &mut BytesMut) -> Result<(), Error> {
        match between_quotes(json_string(text)?.get()) {
            "" => Ok(()),
            piece => self.writer.text(false, piece, out),
        }
    }

    /// Ends the content block when the next one begins.
    fn close_block(&mut self, out: &mut BytesMut) -> Result<(), Error> {
        self.end_thinking()?;
        match std::mem::take(&mut self.open) {
            Open::Thinking(_) | Open::Redacted => self.writer.close_open(out),
            Open::Tool(index, _) => self.writer.close_item(index, out),
            // A text block may continue in the next block as the same message; blocks without a counterpart have no
            // item to end.
            Open::Text | Open::Dropped => {}
        }
        Ok(())
    }

    fn end_thinking(&mut self) -> Result<(), Error> {
        match &mut self.open {
            Open::Thinking(signature) => {
                let signature = std::mem::take(signature);
                self.writer.end_thinking(Thought::Signed(&signature))
            }
            _ => Ok(()),
        }
    }

    fn finish(&mut self, stop_reason: &str, out: &mut BytesMut) {
        let [fresh, written, cached, output, reasoning] = self.counts.parts();
        let counts = Counts {
            input: fresh.saturating_add(written).saturating_add(cached),
            cached,
            written,
            output,
            reasoning: reasoning.min(output),
        };
        let stop = match stop_reason {
            "max_tokens" | "model_context_window_exceeded" => Stop::MaxTokens,
            "refusal" => Stop::Refusal,
            "tool_use" => Stop::ToolUse,
            // `end_turn`, `stop_sequence`, `pause_turn`, and unknown reasons.
            _ => Stop::EndTurn,
        };
        self.writer.finish(stop, &counts, out);
    }
}
