//! Translates a chat stream to a messages stream.

use bytes::BytesMut;

use super::{
    answer::{Answer, Kind, Stop, message_id, model, stop, stop_reason, vendor_error},
    blocks::{BlockId, Blocks, put},
    text::{given, hash},
    usage::Tally,
};
use crate::{
    error::Error,
    sse::Event,
    translate::{
        origin::Origin,
        wire::{AnswerCx, broken, write_json},
    },
};

const PING: &[u8] = b"event: ping\ndata: {\"type\":\"ping\"}\n\n";

/// Translates each event of a chat stream as it arrives.
///
/// Only three things are delayed. A block after an incomplete tool call, because the messages format never interleaves
/// blocks; a tool call until its name arrives; and the stop reason until the usage, which arrives last. A stream stores
/// at most 4 MiB, and at most 1 024 tool calls of about 100 bytes each in addition to their ids and names; a stream
/// that would need more fails. An ordinary stream stores a few hundred bytes.
#[derive(Debug)]
pub struct Events {
    created: u64,
    thinking_asked: bool,
    begun: bool,
    blocks: Blocks,
    refused: bool,
    stop: Option<Stop>,
    usage: Option<Tally>,
    /// An error message that the vendor sent instead of a chunk. If the stream has no finish reason, this is the error
    /// with which it ended.
    complaint: Option<Error>,
    done: bool,
    ended: bool,
}

impl Events {
    /// Creates the state of a stream that has not begun. `origin` has the vendor's name and the names of tools.
    #[must_use]
    pub fn new(origin: Origin, cx: AnswerCx) -> Self {
        Self {
            created: cx.created,
            thinking_asked: cx.thinking_asked,
            begun: false,
            blocks: Blocks::new(origin),
            refused: false,
            stop: None,
            usage: None,
            complaint: None,
            done: false,
            ended: false,
        }
    }

    /// Translates the next event, and appends the result to `out`, perhaps nothing.
    ///
    /// # Errors
    /// [`Error::VendorBroken`] if the event is not a chunk, [`Error::AnswerTooLong`] if the stream would have to store
    /// too much, [`Error::VendorUnavailable`] if the event is an error of the vendor.
    pub fn event(&mut self, event: &Event, out: &mut BytesMut) -> Result<(), Error> {
        if self.ended {
            return Ok(());
        }
        let (name, data) = event.parts();
        let Some(data) = data else {
            if is_comment(event) {
                out.extend_from_slice(PING);
            }
            return Ok(());
        };
        match data.trim_ascii() {
            b"" => Ok(()),
            b"[DONE]" => {
                self.done = true;
                self.end(out)
            }
            data if name == b"error" => Err(vendor_error(&String::from_utf8_lossy(data))),
            data => self.chunk(data, out),
        }
    }

    /// Handles the end of the vendor's stream: writes the events that are still missing, once.
    ///
    /// # Errors
    /// [`Error::VendorBroken`] if the stream was truncated.
    pub fn end(&mut self, out: &mut BytesMut) -> Result<(), Error> {
        if self.ended {
            return Ok(());
        }
        if self.stop.is_none()
            && let Some(error) = self.complaint.take()
        {
            return Err(error);
        }
        if !self.done && self.stop.is_none() {
            return Err(broken("the stream ended in the middle"));
        }
        if !self.begun {
            return Err(broken("a stream without an answer"));
        }
        if !self.stop.is_some_and(Stop::was_cut) && !self.blocks.whole() {
            return Err(broken("tool arguments that end in the middle"));
        }
        self.ended = true;
        self.blocks.finish(out)?;
        let usage = self.usage.unwrap_or_default();
        let reason = stop_reason(self.stop, self.blocks.called(), self.refused);
        put(
            out,
            format_args!(
                "event: message_delta\ndata: {{\"type\":\"message_delta\",\"delta\":\
                 {{\"stop_reason\":\"{reason}\",\"stop_sequence\":null}},\"usage\":"
            ),
        );
        write_json(out, &usage);
        out.extend_from_slice(b"}\n\nevent: message_stop\ndata: {\"type\":\"message_stop\"}\n\n");
        Ok(())
    }

    fn chunk(&mut self, data: &[u8], out: &mut BytesMut) -> Result<(), Error> {
        let mut chunk = Answer::chunk(data)?;
        chunk.check(data)?;
        self.usage = Tally::latest(self.usage, chunk.tally());
        self.complaint = chunk.complaint(data).or(self.complaint.take());
        let choice = chunk.choice();
        // One vendor begins with a chunk about the prompt, which has neither a choice nor an id.
        if !self.begun && (choice.is_some() || given(chunk.id).is_some()) {
            self.begin(&chunk, data, out);
        }
        let Some(choice) = choice else {
            return Ok(());
        };
        let said = choice.delta.or(choice.message).unwrap_or_default();
        let Self {
            blocks,
            refused,
            thinking_asked,
            ..
        } = self;
        said.keep(blocks.state());
        said.each_text(|kind, piece| {
            *refused |= kind == Kind::Refusal;
            match kind {
                Kind::Thinking if !*thinking_asked => {
                    blocks.state().hide(piece);
                    Ok(())
                }
                Kind::Thinking => blocks.text(BlockId::Thinking, piece, out),
                Kind::Text | Kind::Refusal => blocks.text(BlockId::Text, piece, out),
            }
        })?;
        for call in said.calls() {
            blocks.call(&call, out)?;
        }
        // Some vendors send two finish reasons; a specific reason replaces the plain end of the answer.
        let newer = stop(choice.finish_reason)?;
        if matches!(self.stop, None | Some(Stop::EndTurn)) {
            self.stop = newer.or(self.stop);
        }
        Ok(())
    }

    /// Writes `message_start`. Its input count is 0, because the vendor has not reported usage yet; the last event has
    /// the count.
    fn begin(&mut self, chunk: &Answer<'_>, data: &[u8], out: &mut BytesMut) {
        self.begun = true;
        let id = message_id(chunk.id, data, self.created);
        self.blocks.begin(hash(id.get().as_bytes()));
        put(
            out,
            format_args!(
                "event: message_start\ndata: {{\"type\":\"message_start\",\"message\":{{\"id\":{id},\
                 \"type\":\"message\",\"role\":\"assistant\",\"model\":{model},\"content\":[],\
                 \"stop_reason\":null,\"stop_sequence\":null,\"usage\":{{\"input_tokens\":0,\
                 \"cache_creation_input_tokens\":0,\"cache_read_input_tokens\":0,\"output_tokens\":0}}}}}}\n\n",
                model = model(chunk.model),
            ),
        );
    }
}

/// Returns whether an event without data is a comment, which vendors send as a keep-alive.
pub(in crate::translate) fn is_comment(event: &Event) -> bool {
    let mut lines = event.raw().split(|byte| matches!(byte, b'\n' | b'\r'));
    lines.any(|line| line.first() == Some(&b':'))
}

#[cfg(test)]
mod tests;
