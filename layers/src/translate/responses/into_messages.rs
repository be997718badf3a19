//! Translates a responses vendor's answer, plain or streamed, to the messages format.

use std::{collections::VecDeque, sync::Arc};

use bytes::{Bytes, BytesMut};

use super::{
    capsule,
    reading::{Call, Reading, Sink},
    usage::Counts,
};
use crate::{
    error::Error,
    sse::Event,
    translate::{
        arguments::Lead,
        messages::{Stop, put},
        origin::Origin,
        wire::{AnswerCx, too_much},
    },
};

/// The maximum bytes of content that waits until the open block ends.
const WAITING_BYTES_MAX: usize = 4 << 20;
const PING: &[u8] = b"event: ping\ndata: {\"type\":\"ping\"}\n\n";

/// Translates a responses answer to a messages answer. Reasoning that only the vendor can read is sent to the caller in
/// a capsule.
///
/// # Errors
/// [`Error::VendorBroken`] if the body is not a complete answer; [`Error::VendorUnavailable`] if it is an error.
pub fn into_messages(body: &[u8], origin: &Origin, cx: &AnswerCx) -> Result<Bytes, Error> {
    let mut out = BytesMut::with_capacity(body.len() + 256);
    let blocks = Blocks::new(origin, *cx, true);
    Reading::new(blocks, origin.clone()).answer(body, &mut out)?;
    Ok(out.freeze())
}

/// Translates each event of a responses stream as it arrives, unless items interleave: the messages format has one open
/// block at a time, so an item waits until the item before it has ended. At most 4 MiB may wait.
#[derive(Debug)]
pub struct IntoMessages {
    reading: Reading<Blocks>,
}

impl IntoMessages {
    /// Creates the state of a stream that has not begun. `origin` has the vendor's name and the names of tools.
    #[must_use]
    pub fn new(origin: Origin, cx: AnswerCx) -> Self {
        Self {
            reading: Reading::new(Blocks::new(&origin, cx, false), origin),
        }
    }

    /// Translates the next event, and appends the result to `out`, perhaps nothing.
    ///
    /// # Errors
    /// [`Error::VendorBroken`] if the event is not of the responses format, [`Error::AnswerTooLong`] if too much
    /// content would have to wait, [`Error::VendorUnavailable`] if the event is an error of the vendor.
    pub fn event(&mut self, event: &Event, out: &mut BytesMut) -> Result<(), Error> {
        self.reading.event(event, out)
    }

    /// Handles the end of the vendor's bytes.
    ///
    /// # Errors
    /// [`Error::VendorBroken`] if the stream was truncated.
    pub fn end(&mut self, _out: &mut BytesMut) -> Result<(), Error> {
        self.reading.end()
    }
}

/// Writes the blocks of a messages answer, one block for each item. The first item of the queue is open.
#[derive(Debug)]
struct Blocks {
    vendor: Arc<str>,
    thinking_asked: bool,
    /// Whether a plain answer is written and not the events of a stream.
    plain: bool,
    id: String,
    model: String,
    items: VecDeque<Item>,
    /// The number of blocks that were opened so far.
    opened: usize,
    content: String,
    waiting_bytes: usize,
    refused: bool,
    /// Capsules with reasoning that the caller does not see, by item. A capsule is written before the tool call that
    /// follows the item.
    hidden: Vec<(u64, String)>,
}

#[derive(Debug)]
struct Item {
    index: u64,
    kind: Kind,
    open: bool,
    /// Content that has arrived and was not written yet.
    waiting: String,
    capsule: Option<String>,
    done: bool,
}

#[derive(Debug)]
enum Kind {
    Text,
    Thinking,
    /// A tool call: its id, its name, and what is known of the beginning of its arguments.
    Call(String, String, Lead),
}

impl Blocks {
    fn new(origin: &Origin, cx: AnswerCx, plain: bool) -> Self {
        Self {
            vendor: Arc::clone(&origin.vendor),
            thinking_asked: cx.thinking_asked,
            plain,
            id: String::new(),
            model: String::new(),
            items: VecDeque::new(),
            opened: 0,
            content: String::new(),
            waiting_bytes: 0,
            refused: false,
            hidden: Vec::new(),
        }
    }

    /// Adds a piece to an item of the queue.
    fn piece(&mut self, index: u64, piece: &str, out: &mut BytesMut) -> Result<(), Error> {
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
        // The size of a plain answer was limited when it was read, and a plain answer writes an item only when the item
        // is complete.
        if self.waiting_bytes > WAITING_BYTES_MAX && !self.plain {
            let why = format!("more than {WAITING_BYTES_MAX} bytes would have to be buffered");
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

    /// Marks an item of the queue as complete.
    fn end(&mut self, index: u64, capsule: Option<String>) {
        if let Some(item) = self.items.iter_mut().find(|item| item.index == index) {
            item.done = true;
            item.capsule = capsule;
        }
    }

    /// Writes the content of the first item. When an item is complete, continues with the next.
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
        // The caller does not see this reasoning. If it has a capsule, the capsule is written as redacted thinking.
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
                let signature = item.capsule.take().unwrap_or_else(|| self.mark());
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
                capsule.unwrap_or_else(|| self.mark())
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

    /// Returns the signature for thinking that the vendor did not sign: an empty capsule. Messages vendors reject
    /// thinking without their signature, and blocks with a capsule are removed before a request is sent to one.
    fn mark(&self) -> String {
        capsule::seal(&self.vendor, "{}")
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
        // A messages caller cannot have tools with free text, so calls of such tools are left out.
        if !call.custom {
            for (item, capsule) in std::mem::take(&mut self.hidden) {
                self.queue(item, Kind::Thinking);
                self.end(item, Some(capsule));
            }
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
        match capsule {
            Some(capsule) if !self.thinking_asked => {
                let hidden: usize = self.hidden.iter().map(|(_, capsule)| capsule.len()).sum();
                if hidden + capsule.len() <= WAITING_BYTES_MAX {
                    self.hidden.push((item, capsule));
                }
            }
            capsule => self.end(item, capsule),
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
        let usage = usage(counts.unwrap_or_default());
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

/// Returns the arguments as a JSON object. If the model wrote something else, such as truncated JSON, that is put into
/// an object.
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
