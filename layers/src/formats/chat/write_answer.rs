//! Writes an answer in the chat format.

use bytes::BytesMut;

use super::super::turn::{Call as NewCall, Counts, Event, Stop, Writer as Write, put};
use crate::{
    error::Error,
    formats::{
        origin::Origin,
        wire::{AnswerCx, broken},
    },
};

/// The longest id of an answer, and the longest model name, that a vendor may send in a stream. Both are stored and
/// repeated in every chunk.
pub(crate) const NAME_BYTES_MAX: usize = 512;

/// The fields of a message that have a text, in the order of [`Writer::texts`].
const FIELDS: [&str; 3] = ["content", "refusal", "reasoning_content"];
const CONTENT: usize = 0;
const REFUSAL: usize = 1;
const REASONING: usize = 2;

/// Writes chat chunks, or a plain chat answer.
///
/// No event of a stream is delayed. A stream stores the beginning of its chunks, with the vendor's id of the answer and
/// the model's name (at most 512 bytes each), and a few bytes for each tool call.
#[derive(Debug)]
pub(crate) struct Writer {
    cx: AnswerCx,
    origin: Origin,
    /// Whether a plain answer is written and not the chunks of a stream.
    plain: bool,
    /// The beginning of every chunk, up to `choices`, or of the plain answer.
    head: String,
    /// The item of the last piece of each text. Texts of several items are separated by blank lines.
    last: [Option<u64>; 3],
    /// The texts of a plain answer.
    texts: [String; 3],
    /// The tool calls. The chat format numbers them separately from other content, from 0.
    calls: Vec<Call>,
    stop: Option<Stop>,
}

#[derive(Debug)]
struct Call {
    item: u64,
    custom: bool,
    begun: bool,
    /// The beginning of every delta of the call, or the call of a plain answer, up to the arguments.
    head: String,
    arguments: String,
}

impl Writer {
    /// Creates the writer of one answer. `origin` has the names of tools.
    pub(crate) fn new(origin: Origin, cx: AnswerCx, plain: bool) -> Self {
        Self {
            cx,
            origin,
            plain,
            head: String::new(),
            last: [None; 3],
            texts: Default::default(),
            calls: Vec::new(),
            stop: None,
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
            return Err(broken("the answer's id or model is too long"));
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
            begun: false,
            head,
            arguments: String::new(),
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

    /// A tool call without arguments gets the empty object, because callers parse the arguments.
    fn done(&mut self, item: u64, out: &mut BytesMut) {
        let call = self.calls.iter().rfind(|call| call.item == item);
        if call.is_some_and(|call| !call.begun && !call.custom) {
            self.arguments(item, "{}", out);
        }
    }

    fn chunk(&self, delta: &[&str], finish_reason: &str, out: &mut BytesMut) {
        let before = [&*self.head, "{\"index\":0,\"delta\":{"];
        // Only the last chunk has usage. The other chunks have null, if the caller requested usage.
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

    /// Returns the finish reason. `tool_calls` without a tool call would make agents wait for ever for a call.
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
        out.extend_from_slice(b"data: [DONE]\n\n");
    }

    fn end_plain(&self, counts: &Counts, out: &mut BytesMut) {
        let nothing_else = self.calls.is_empty() && self.texts[REFUSAL].is_empty();
        put(out, format_args!("{}", self.head));
        for (field, text) in self.texts.iter().enumerate() {
            let name = FIELDS[field];
            // According to the specification, `content` is a string, but the tool loops of SDKs expect null here
            // (case 55).
            if !text.is_empty() || (field == CONTENT && nothing_else) {
                put(out, format_args!(",\"{name}\":\"{text}\""));
            } else if field != REASONING {
                put(out, format_args!(",\"{name}\":null"));
            }
        }
        let mut before = ",\"tool_calls\":[";
        for call in &self.calls {
            let Call {
                custom,
                head,
                arguments,
                ..
            } = call;
            let arguments = match &**arguments {
                "" if !custom => "{}",
                arguments => arguments,
            };
            put(out, format_args!("{before}{head}{arguments}\"}}}}"));
            before = ",";
        }
        if !self.calls.is_empty() {
            out.extend_from_slice(b"]");
        }
        let (reason, usage) = (self.finish_reason(), usage(counts));
        put(
            out,
            format_args!(
                "}},\"logprobs\":null,\"finish_reason\":\"{reason}\"}}],\"usage\":{usage}}}"
            ),
        );
    }
}

impl Write for Writer {
    fn write(&mut self, event: Event<'_>, out: &mut BytesMut) -> Result<(), Error> {
        match event {
            Event::Begin { id, model } => return self.begin(id, model, out),
            Event::Text {
                item,
                refusal,
                piece,
            } => {
                let field = if refusal { REFUSAL } else { CONTENT };
                self.text(field, item, piece, out);
            }
            Event::Reasoning { item, piece, .. } => self.text(REASONING, item, piece, out),
            Event::Call { item, call } => self.call(item, call, out),
            Event::Arguments { item, piece, .. } => self.arguments(item, piece, out),
            Event::Done { item, .. } if !self.plain => self.done(item, out),
            Event::Stop(stop) => self.stop(stop, out),
            Event::End(counts) => self.end(&counts, out),
            Event::Alive if !self.plain => out.extend_from_slice(b": keep-alive\n\n"),
            // The format has no field for a proof.
            Event::Proof { .. } | Event::Done { .. } | Event::Alive => {}
        }
        Ok(())
    }
}

/// Returns the format's type of a tool, and the name of its field for the arguments.
const fn kind(custom: bool) -> (&'static str, &'static str) {
    if custom {
        ("custom", "input")
    } else {
        ("function", "arguments")
    }
}

/// Returns the usage: the prompt includes cached tokens, and the completion includes reasoning.
fn usage(counts: &Counts) -> String {
    let Counts {
        written,
        cached,
        output,
        ..
    } = counts;
    let (input, total) = (counts.input(), counts.total());
    let reasoning = counts.reasoning.unwrap_or(0);
    format!(
        "{{\"prompt_tokens\":{input},\"completion_tokens\":{output},\"total_tokens\":{total},\
         \"prompt_tokens_details\":{{\"cached_tokens\":{cached},\"cache_write_tokens\":{written}}},\
         \"completion_tokens_details\":{{\"reasoning_tokens\":{reasoning}}}}}"
    )
}
