//! A responses vendor's answer as a messages answer, plain and streamed.

use std::collections::VecDeque;

use bytes::{Bytes, BytesMut};

use super::{
    capsule,
    into_chat::estimated,
    reading::{Call, Reading, Sink},
    usage::Counts,
};
use crate::{
    error::Error,
    json::decoded_len,
    sse::Event,
    translate::{
        arguments::Lead,
        messages::{Stop, put},
        wire::{AnswerCx, too_much},
    },
};

/// Bytes that may wait behind the open block.
const WAITING_BYTES_MAX: usize = 4 << 20;
const PING: &[u8] = b"event: ping\ndata: {\"type\":\"ping\"}\n\n";

/// Puts a responses answer into the messages format. What only the vendor of this name can read of its
/// reasoning goes along in a capsule.
///
/// # Errors
/// [`Error::VendorBroken`]: it is no whole answer; [`Error::VendorUnavailable`]: it is an error.
pub fn into_messages(body: &[u8], vendor: &str, cx: &AnswerCx) -> Result<Bytes, Error> {
    let mut out = BytesMut::with_capacity(body.len() + 256);
    Reading::new(Blocks::new(vendor, *cx, true)).answer(body, &mut out)?;
    Ok(out.freeze())
}

/// Turns a responses stream's events into those of a messages stream, each as it comes, but for what
/// interleaves: the messages format has one block open at a time, so that an item waits for the one before.
/// What waits is at most 4 MiB.
#[derive(Debug)]
pub struct IntoMessages {
    reading: Reading<Blocks>,
}

impl IntoMessages {
    /// For one stream of the vendor of this name.
    #[must_use]
    pub fn new(vendor: &str, cx: AnswerCx) -> Self {
        Self {
            reading: Reading::new(Blocks::new(vendor, cx, false)),
        }
    }

    /// Takes the next event and writes what it comes to, which may be nothing.
    ///
    /// # Errors
    /// [`Error::VendorBroken`]: it is none of the responses format, or more would have to wait than may;
    /// [`Error::VendorUnavailable`]: it is the vendor's error.
    pub fn event(&mut self, event: &Event, out: &mut BytesMut) -> Result<(), Error> {
        self.reading.event(event, out)
    }

    /// The vendor's stream has ended.
    ///
    /// # Errors
    /// [`Error::VendorBroken`]: it ended in the middle.
    pub fn end(&mut self, _out: &mut BytesMut) -> Result<(), Error> {
        self.reading.end()
    }
}

/// The blocks of a messages answer: of each item one. The first of them is open.
#[derive(Debug)]
struct Blocks {
    vendor: String,
    thinking_asked: bool,
    /// A plain answer: the content instead of events.
    plain: bool,
    id: String,
    model: String,
    items: VecDeque<Item>,
    /// Blocks that have been opened.
    opened: usize,
    content: String,
    waiting_bytes: usize,
    text_bytes: u64,
    refused: bool,
}

#[derive(Debug)]
struct Item {
    index: u64,
    kind: Kind,
    open: bool,
    /// What has come of it and is not written.
    waiting: String,
    capsule: Option<String>,
    done: bool,
}

#[derive(Debug)]
enum Kind {
    Text,
    Thinking,
    /// A call: its id and name, and how its arguments begin.
    Call(String, String, Lead),
}

impl Blocks {
    fn new(vendor: &str, cx: AnswerCx, plain: bool) -> Self {
        Self {
            vendor: vendor.to_owned(),
            thinking_asked: cx.thinking_asked,
            plain,
            id: String::new(),
            model: String::new(),
            items: VecDeque::new(),
            opened: 0,
            content: String::new(),
            waiting_bytes: 0,
            text_bytes: 0,
            refused: false,
        }
    }

    /// A piece of an item that is in the queue.
    fn piece(&mut self, index: u64, piece: &str, out: &mut BytesMut) -> Result<(), Error> {
        self.text_bytes += decoded_len(piece.as_bytes());
        let Some(item) = self.items.iter_mut().find(|item| item.index == index) else {
            return Ok(());
        };
        let (kept, piece) = match &mut item.kind {
            Kind::Call(_, _, lead) => lead.take(piece),
            Kind::Text | Kind::Thinking => ("", piece),
        };
        item.waiting.push_str(kept);
        item.waiting.push_str(piece);
        self.waiting_bytes += kept.len() + piece.len();
        self.advance(out);
        // A plain answer was bounded when it came, and nothing in it goes on before its item is whole.
        if self.waiting_bytes > WAITING_BYTES_MAX && !self.plain {
            let why = format!("more than {WAITING_BYTES_MAX} bytes would have to wait");
            return Err(too_much(why));
        }
        Ok(())
    }

    fn queue(&mut self, index: u64, kind: Kind) {
        if self.items.iter().all(|item| item.index != index) {
            self.items.push_back(Item {
                index,
                kind,
                open: false,
                waiting: String::new(),
                capsule: None,
                done: false,
            });
        }
    }

    /// Writes what need not wait: of the first item all, and of the next where that is done.
    fn advance(&mut self, out: &mut BytesMut) {
        while let Some(mut item) = self.items.pop_front() {
            if self.plain && !item.done {
                self.items.push_front(item);
                return;
            }
            self.write(&mut item, out);
            if !item.done {
                self.items.push_front(item);
                return;
            }
        }
    }

    fn write(&mut self, item: &mut Item, out: &mut BytesMut) {
        let waiting = std::mem::take(&mut item.waiting);
        self.waiting_bytes -= waiting.len();
        if self.plain {
            self.write_plain(item, &waiting);
            return;
        }
        // Reasoning that nobody but the vendor can read, if it can be.
        let silent = matches!(item.kind, Kind::Thinking) && !item.open && waiting.is_empty();
        if silent {
            if let Some(capsule) = item.capsule.take().filter(|_| item.done) {
                let redacted = format!("{{\"type\":\"redacted_thinking\",\"data\":\"{capsule}\"}}");
                self.start(&redacted, out);
                self.stop(out);
            }
            return;
        }
        if !std::mem::replace(&mut item.open, true) {
            let block = match &item.kind {
                Kind::Text => r#"{"type":"text","text":""}"#.to_owned(),
                Kind::Thinking => r#"{"type":"thinking","thinking":"","signature":""}"#.to_owned(),
                Kind::Call(id, name, _) => format!(
                    "{{\"type\":\"tool_use\",\"id\":\"{id}\",\"name\":\"{name}\",\"input\":{{}}}}"
                ),
            };
            self.start(&block, out);
        }
        let (kind, field) = match &item.kind {
            Kind::Text => ("text_delta", "text"),
            Kind::Thinking => ("thinking_delta", "thinking"),
            Kind::Call(..) => ("input_json_delta", "partial_json"),
        };
        self.delta(kind, field, &waiting, out);
        if !item.done {
            return;
        }
        match &item.kind {
            Kind::Call(_, _, lead) if !lead.begun() => self.delta(kind, field, lead.end(), out),
            Kind::Thinking => {
                let signature = item.capsule.take().unwrap_or_default();
                self.delta("signature_delta", "signature", &signature, out);
            }
            Kind::Text | Kind::Call(..) => {}
        }
        self.stop(out);
    }

    fn write_plain(&mut self, item: &mut Item, waiting: &str) {
        let capsule = item.capsule.take();
        let block = match (&item.kind, capsule) {
            (Kind::Text, _) => format!("{{\"type\":\"text\",\"text\":\"{waiting}\"}}"),
            (Kind::Thinking, None) if waiting.is_empty() => return,
            (Kind::Thinking, Some(capsule)) if waiting.is_empty() => {
                format!("{{\"type\":\"redacted_thinking\",\"data\":\"{capsule}\"}}")
            }
            (Kind::Thinking, capsule) => format!(
                "{{\"type\":\"thinking\",\"thinking\":\"{waiting}\",\"signature\":\"{}\"}}",
                capsule.unwrap_or_default()
            ),
            (Kind::Call(id, name, lead), _) => {
                let input = if lead.begun() {
                    object(waiting)
                } else {
                    "{}".to_owned()
                };
                format!(
                    "{{\"type\":\"tool_use\",\"id\":\"{id}\",\"name\":\"{name}\",\"input\":{input}}}"
                )
            }
        };
        if !self.content.is_empty() {
            self.content.push(',');
        }
        self.content.push_str(&block);
    }

    fn start(&mut self, block: &str, out: &mut BytesMut) {
        let index = self.opened;
        self.opened += 1;
        put(
            out,
            format_args!(
                "event: content_block_start\ndata: {{\"type\":\"content_block_start\",\"index\":{index},\
                 \"content_block\":{block}}}\n\n"
            ),
        );
    }

    fn delta(&self, kind: &str, field: &str, piece: &str, out: &mut BytesMut) {
        if piece.is_empty() {
            return;
        }
        let index = self.opened - 1;
        put(
            out,
            format_args!(
                "event: content_block_delta\ndata: {{\"type\":\"content_block_delta\",\"index\":{index},\
                 \"delta\":{{\"type\":\"{kind}\",\"{field}\":\"{piece}\"}}}}\n\n"
            ),
        );
    }

    fn stop(&self, out: &mut BytesMut) {
        let index = self.opened - 1;
        put(
            out,
            format_args!(
                "event: content_block_stop\ndata: {{\"type\":\"content_block_stop\",\"index\":{index}}}\n\n"
            ),
        );
    }
}

impl Sink for Blocks {
    fn begin(&mut self, id: &str, model: &str, out: &mut BytesMut) {
        if self.plain {
            id.clone_into(&mut self.id);
            model.clone_into(&mut self.model);
            return;
        }
        put(
            out,
            format_args!(
                "event: message_start\ndata: {{\"type\":\"message_start\",\"message\":{{\"id\":{id},\
                 \"type\":\"message\",\"role\":\"assistant\",\"model\":{model},\"content\":[],\
                 \"stop_reason\":null,\"stop_sequence\":null,\"usage\":{{\"input_tokens\":0,\
                 \"cache_creation_input_tokens\":0,\"cache_read_input_tokens\":0,\"output_tokens\":0}}}}}}\n\n"
            ),
        );
    }

    fn text(
        &mut self,
        item: u64,
        refusal: bool,
        piece: &str,
        out: &mut BytesMut,
    ) -> Result<(), Error> {
        self.refused |= refusal;
        self.queue(item, Kind::Text);
        self.piece(item, piece, out)
    }

    fn thought(&mut self, item: u64, piece: &str, out: &mut BytesMut) -> Result<(), Error> {
        if self.thinking_asked {
            self.queue(item, Kind::Thinking);
        }
        self.piece(item, piece, out)
    }

    fn call(&mut self, item: u64, call: Call<'_>, out: &mut BytesMut) -> Result<(), Error> {
        // A messages caller has no tools of free text.
        if !call.custom {
            let kind = Kind::Call(call.id.to_owned(), call.name.to_owned(), Lead::default());
            self.queue(item, kind);
            self.advance(out);
        }
        Ok(())
    }

    fn arguments(&mut self, item: u64, piece: &str, out: &mut BytesMut) -> Result<(), Error> {
        self.piece(item, piece, out)
    }

    fn done(&mut self, item: u64, sealed: Option<&str>, out: &mut BytesMut) -> Result<(), Error> {
        if sealed.is_some() && self.thinking_asked {
            self.queue(item, Kind::Thinking);
        }
        let capsule = sealed.map(|item| capsule::seal(&self.vendor, item));
        if let Some(found) = self.items.iter_mut().find(|one| one.index == item) {
            found.done = true;
            found.capsule = capsule;
        }
        self.advance(out);
        Ok(())
    }

    fn finish(
        &mut self,
        stop: Stop,
        counts: Option<Counts>,
        out: &mut BytesMut,
    ) -> Result<(), Error> {
        for item in &mut self.items {
            item.done = true;
        }
        self.advance(out);
        let reason = match stop {
            _ if self.refused => "refusal",
            Stop::EndTurn => "end_turn",
            Stop::ToolUse => "tool_use",
            Stop::MaxTokens => "max_tokens",
            Stop::Refusal => "refusal",
        };
        let usage = usage(counts.unwrap_or_else(|| estimated(self.text_bytes)));
        if self.plain {
            let Self {
                id, model, content, ..
            } = self;
            put(
                out,
                format_args!(
                    "{{\"id\":{id},\"type\":\"message\",\"role\":\"assistant\",\"model\":{model},\
                     \"content\":[{content}],\"stop_reason\":\"{reason}\",\"stop_sequence\":null,\
                     \"usage\":{usage}}}"
                ),
            );
            return Ok(());
        }
        put(
            out,
            format_args!(
                "event: message_delta\ndata: {{\"type\":\"message_delta\",\"delta\":\
                 {{\"stop_reason\":\"{reason}\",\"stop_sequence\":null}},\"usage\":{usage}}}\n\n\
                 event: message_stop\ndata: {{\"type\":\"message_stop\"}}\n\n"
            ),
        );
        Ok(())
    }

    fn alive(&mut self, out: &mut BytesMut) {
        out.extend_from_slice(PING);
    }
}

/// Arguments as an object. What a model wrote and is none, as when it was cut off, is kept in one.
fn object(escaped: &str) -> String {
    let quoted = format!("\"{escaped}\"");
    let text: Option<String> = serde_json::from_str(&quoted).ok();
    let json = text.filter(|text| {
        let value = serde_json::from_str::<&serde_json::value::RawValue>(text);
        value.is_ok_and(|value| value.get().starts_with('{'))
    });
    json.unwrap_or_else(|| format!("{{\"arguments\":{quoted}}}"))
}

fn usage(counts: Counts) -> String {
    let fresh = counts.fresh();
    let Counts {
        cached,
        written,
        output,
        reasoning,
        ..
    } = counts;
    let details = if reasoning > 0 {
        format!(",\"output_tokens_details\":{{\"thinking_tokens\":{reasoning}}}")
    } else {
        String::new()
    };
    format!(
        "{{\"input_tokens\":{fresh},\"cache_creation_input_tokens\":{written},\
         \"cache_read_input_tokens\":{cached},\"output_tokens\":{output}{details}}}"
    )
}
