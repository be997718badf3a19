//! Chat chunks as messages events.

use bytes::BytesMut;

use super::{
    answer::{Answer, Kind, Stop, message_id, model, stop, stop_reason, vendor_error},
    blocks::{BlockId, Blocks, put},
    text::{given, hash},
    usage::Tally,
};
use crate::{
    error::Error,
    json::decoded_len,
    sse::Event,
    translate::wire::{AnswerCx, broken, write_json},
};

const PING: &[u8] = b"event: ping\ndata: {\"type\":\"ping\"}\n\n";

/// Turns a chat stream's events into those of a messages stream, each as it comes.
///
/// Only three things wait: a block behind a tool call that is not complete, because the messages
/// format never interleaves blocks; a tool call for its name; and the stop reason for the usage, which
/// comes last. What is kept of a stream is at most 4 MiB, and 1 024 tool calls of about 100 bytes
/// beside their ids and names; a stream that would need more is refused as broken. An ordinary one
/// keeps some hundred bytes.
#[derive(Debug)]
pub struct Events {
    created: u64,
    thinking_asked: bool,
    begun: bool,
    blocks: Blocks,
    refused: bool,
    stop: Option<Stop>,
    usage: Option<Tally>,
    text_bytes: u64,
    /// What the vendor said in an answer's place. An answer without a reason has ended for this one.
    complaint: Option<Error>,
    done: bool,
    ended: bool,
}

impl Events {
    /// For one stream.
    #[must_use]
    pub fn new(cx: AnswerCx) -> Self {
        Self {
            created: cx.created,
            thinking_asked: cx.thinking_asked,
            begun: false,
            blocks: Blocks::default(),
            refused: false,
            stop: None,
            usage: None,
            text_bytes: 0,
            complaint: None,
            done: false,
            ended: false,
        }
    }

    /// Takes the next event and writes what it comes to, which may be nothing.
    ///
    /// # Errors
    /// [`Error::VendorBroken`]: it is no chunk, or more would have to wait than may;
    /// [`Error::VendorUnavailable`]: it is the vendor's error.
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

    /// The vendor's stream has ended: writes what is still owed, once.
    ///
    /// # Errors
    /// [`Error::VendorBroken`]: it ended in the middle.
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
        let usage = self
            .usage
            .unwrap_or_else(|| Tally::estimated(self.text_bytes));
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
        // One vendor's first chunk has neither a choice nor an id: it is about the prompt.
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
            text_bytes,
            thinking_asked,
            ..
        } = self;
        said.each_text(|kind, piece| {
            *text_bytes += decoded_len(piece.as_bytes());
            *refused |= kind == Kind::Refusal;
            match kind {
                Kind::Thinking if !*thinking_asked => Ok(()),
                Kind::Thinking => blocks.text(BlockId::Thinking, piece, out),
                Kind::Text | Kind::Refusal => blocks.text(BlockId::Text, piece, out),
            }
        })?;
        for call in said.calls() {
            *text_bytes += call.argument_bytes();
            blocks.call(&call, out)?;
        }
        // Some vendors say it twice; the one that says more than that it is over is believed.
        let newer = stop(choice.finish_reason)?;
        if matches!(self.stop, None | Some(Stop::EndTurn)) {
            self.stop = newer.or(self.stop);
        }
        Ok(())
    }

    /// The input is not known yet, so it is 0 here; the last event tells.
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

/// Whether an event without data says that the vendor is still there.
pub(in crate::translate) fn is_comment(event: &Event) -> bool {
    let mut lines = event.raw().split(|byte| matches!(byte, b'\n' | b'\r'));
    lines.any(|line| line.first() == Some(&b':'))
}

#[cfg(test)]
mod tests;
