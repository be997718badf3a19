//! Writes a response in the Chat Completions format.

use bytes::BytesMut;

use super::{
    super::turn::{Call as NewCall, Counts, Event, Stop, Writer as Write, put},
    DONE, KEEP_ALIVE,
    usage::write,
};
use crate::{
    error::Error,
    formats::{
        origin::Origin,
        wire::{AnswerCx, broken},
    },
    price::Counts as ClassCounts,
};

/// The maximum number of bytes of a response's id, and of a model's name, that a vendor may send in a stream. Both are
/// stored and repeated in every chunk.
pub(crate) const NAME_BYTES_MAX: usize = 512;

/// The fields of a message that contain text, in the order of [`Writer::texts`].
const FIELDS: [&str; 3] = ["content", "refusal", "reasoning_content"];
const CONTENT: usize = 0;
const REFUSAL: usize = 1;
const REASONING: usize = 2;

/// Writes Chat Completions chunks, or a plain Chat Completions response.
///
/// No event of a stream is delayed. A stream stores the beginning of its chunks, which contains the vendor's id of the
/// response and the model's name (at most 512 bytes each), and a few bytes for each tool call.
#[derive(Debug, Default)]
pub(crate) struct Writer {
    cx: AnswerCx,
    origin: Origin,
    /// Whether the writer writes a plain response instead of the chunks of a stream.
    plain: bool,
    /// The beginning of every chunk up to `choices`, or the beginning of the plain response.
    head: String,
    /// For each text: the item to which its last piece belongs. Texts of several items are separated by blank lines.
    last: [Option<u64>; 3],
    /// The texts of a plain response so far.
    texts: [String; 3],
    /// The tool calls so far. The Chat Completions format numbers them from 0, separately from other content.
    calls: Vec<Call>,
    stop: Option<Stop>,
}

#[derive(Debug, Default)]
struct Call {
    item: u64,
    custom: bool,
    begun: bool,
    /// The beginning of every delta of the tool call. In a plain response, the whole tool call up to its arguments.
    head: String,
    arguments: String,
}

impl Writer {
    /// Creates the writer of one response. `origin` has the names of the tools.
    pub(crate) fn new(origin: Origin, cx: AnswerCx, plain: bool) -> Self {
        Self {
            cx,
            origin,
            plain,
            ..Self::default()
        }
    }

    fn begin(&mut self, id: &str, model: &str, out: &mut BytesMut) -> Result<(), Error> {
        let created = self.cx.created;
        if self.plain {
            self.head = format!(
                "{{\"id\":{id},\"object\":\"chat.completion\",\"created\":{created},\"model\":{model},\
                 \"choices\":[{{\"index\":0,\"message\":{{\"role\":\"assistant\""
            );
            return Ok(());
        }
        if id.len().max(model.len()) > NAME_BYTES_MAX {
            let why = "the id or the model name of the response is too long";
            return Err(broken(why));
        }
        self.head = format!(
            "data: {{\"id\":{id},\"object\":\"chat.completion.chunk\",\"created\":{created},\
             \"model\":{model},\"choices\":["
        );
        self.chunk(&["\"role\":\"assistant\",\"content\":\"\""], "null", out);
        Ok(())
    }

    fn text(&mut self, field: usize, item: u64, piece: &str, out: &mut BytesMut) {
        if piece.is_empty() {
            return;
        }
        let between = match self.last[field].replace(item) {
            Some(last) if last != item && field != REFUSAL => "\\n\\n",
            _ => "",
        };
        if self.plain {
            self.texts[field].push_str(between);
            self.texts[field].push_str(piece);
            return;
        }
        let delta = ["\"", FIELDS[field], "\":\"", between, piece, "\""];
        self.chunk(&delta, "null", out);
    }

    fn call(&mut self, item: u64, call: NewCall<'_>, out: &mut BytesMut) {
        let NewCall { id, name, custom } = call;
        let name = self.origin.name(name);
        let (number, (kind, field)) = (self.calls.len(), kind(custom));
        let call = format_args!(
            "\"id\":\"{id}\",\"type\":\"{kind}\",\"{kind}\":{{\"name\":\"{name}\",\"{field}\":\""
        );
        let head = if self.plain {
            format!("{{{call}")
        } else {
            let delta = format!("\"tool_calls\":[{{\"index\":{number},{call}\"}}}}]");
            self.chunk(&[&delta], "null", out);
            format!("\"tool_calls\":[{{\"index\":{number},\"{kind}\":{{\"{field}\":\"")
        };
        self.calls.push(Call {
            item,
            custom,
            head,
            ..Call::default()
        });
    }

    fn arguments(&mut self, item: u64, piece: &str, out: &mut BytesMut) {
        let Some(number) = self.calls.iter().rposition(|call| call.item == item) else {
            return;
        };
        let call = &mut self.calls[number];
        call.begun = true;
        if self.plain {
            call.arguments.push_str(piece);
            return;
        }
        let call = &self.calls[number];
        self.chunk(&[&call.head, piece, "\"}}]"], "null", out);
    }

    /// Ends a tool call. A call without arguments gets the empty object as arguments, because callers parse them.
    fn done(&mut self, item: u64, out: &mut BytesMut) {
        let call = self.calls.iter().rfind(|call| call.item == item);
        if call.is_some_and(|call| !call.begun && !call.custom) {
            self.arguments(item, "{}", out);
        }
    }

    fn chunk(&self, delta: &[&str], finish_reason: &str, out: &mut BytesMut) {
        let before = [&*self.head, "{\"index\":0,\"delta\":{"];
        // Only the last chunk has usage. If the caller requested usage, the other chunks have null.
        let end = if self.cx.usage_asked {
            "}],\"usage\":null}\n\n"
        } else {
            "}]}\n\n"
        };
        let after = ["},\"logprobs\":null,\"finish_reason\":", finish_reason, end];
        for piece in before.iter().chain(delta).chain(&after) {
            out.extend_from_slice(piece.as_bytes());
        }
    }

    fn stop(&mut self, stop: Stop, out: &mut BytesMut) {
        self.stop = Some(stop);
        if !self.plain {
            let reason = self.finish_reason();
            self.chunk(&[], &format!("\"{reason}\""), out);
        }
    }

    /// Returns the finish reason. It is never `tool_calls` without a tool call, because agents would wait for the call
    /// for ever.
    fn finish_reason(&self) -> &'static str {
        match self.stop {
            Some(Stop::ToolUse) if !self.calls.is_empty() => "tool_calls",
            Some(Stop::MaxTokens) => "length",
            Some(Stop::Refusal) => "content_filter",
            Some(Stop::EndTurn | Stop::ToolUse) | None => "stop",
        }
    }

    fn end(&self, counts: &Counts, out: &mut BytesMut) {
        if self.plain {
            self.end_plain(counts, out);
            return;
        }
        if self.cx.usage_asked {
            let usage = usage(counts);
            put(out, format_args!("{}],\"usage\":{usage}}}\n\n", self.head));
        }
        out.extend_from_slice(DONE);
    }

    fn end_plain(&self, counts: &Counts, out: &mut BytesMut) {
        let nothing_else = self.calls.is_empty() && self.texts[REFUSAL].is_empty();
        put(out, format_args!("{}", self.head));
        for (field, text) in self.texts.iter().enumerate() {
            let name = FIELDS[field];
            // According to the specification, `content` is a string. But the tool loops of SDKs expect null next to
            // tool calls, see the test of case 55.
            if !text.is_empty() || (field == CONTENT && nothing_else) {
                put(out, format_args!(",\"{name}\":\"{text}\""));
            } else if field != REASONING {
                put(out, format_args!(",\"{name}\":null"));
            }
        }
        let mut before = ",\"tool_calls\":[";
        for call in &self.calls {
            let arguments = match &*call.arguments {
                "" if !call.custom => "{}",
                arguments => arguments,
            };
            put(out, format_args!("{before}{}{arguments}\"}}}}", call.head));
            before = ",";
        }
        if !self.calls.is_empty() {
            out.extend_from_slice(b"]");
        }
        let (reason, usage) = (self.finish_reason(), usage(counts));
        let end = format_args!(
            "}},\"logprobs\":null,\"finish_reason\":\"{reason}\"}}],\"usage\":{usage}}}"
        );
        put(out, end);
    }
}

impl Write for Writer {
    fn write(&mut self, event: Event<'_>, out: &mut BytesMut) -> Result<(), Error> {
        match event {
            Event::Begin { id, model } => return self.begin(id, model, out),
            Event::Text(item, refusal, piece) => {
                let field = if refusal { REFUSAL } else { CONTENT };
                self.text(field, item, piece, out);
            }
            Event::Reasoning(item, _, piece) => self.text(REASONING, item, piece, out),
            Event::Call { item, call } => self.call(item, call, out),
            Event::Arguments { item, piece, .. } => self.arguments(item, piece, out),
            Event::Done(item, _) if !self.plain => self.done(item, out),
            Event::Stop(stop) => self.stop(stop, out),
            Event::End(counts) => self.end(&counts, out),
            Event::Alive if !self.plain => out.extend_from_slice(KEEP_ALIVE),
            // The format has no field for proofs of reasoning.
            Event::Proof(..) | Event::Done(..) | Event::Alive => {}
        }
        Ok(())
    }
}

/// Returns the format's type of a tool, and the name of the field that has its arguments.
const fn kind(custom: bool) -> (&'static str, &'static str) {
    if custom {
        ("custom", "input")
    } else {
        ("function", "arguments")
    }
}

/// Writes the usage. The reasoning tokens are always stated, because clients of this format expect them.
fn usage(counts: &Counts) -> String {
    let mut counts = *counts;
    counts.reasoning.get_or_insert(0);
    write(&counts, &ClassCounts::default())
}
