//! Translates a responses vendor's answer, plain or streamed, to the chat format.

use std::fmt;

use bytes::{Bytes, BytesMut};

use super::{
    reading::{Call, Reading, Sink},
    usage::Counts,
};
use crate::{
    error::Error,
    sse::Event,
    translate::{
        messages::{Stop, put},
        origin::Origin,
        wire::AnswerCx,
    },
};

/// Translates a responses answer to a chat answer.
///
/// # Errors
/// [`Error::VendorBroken`] if the body is not a complete answer; [`Error::VendorUnavailable`] if it is an error.
pub fn into_chat(body: &[u8], origin: &Origin, cx: &AnswerCx) -> Result<Bytes, Error> {
    let mut out = BytesMut::with_capacity(body.len() + 256);
    Reading::new(Plain::new(*cx), origin.clone()).answer(body, &mut out)?;
    Ok(out.freeze())
}

/// Translates each event of a responses stream as it arrives. No event is delayed, and no text is stored.
#[derive(Debug)]
pub struct IntoChat {
    reading: Reading<Chunks>,
}

impl IntoChat {
    /// Creates the state of a stream that has not begun. `origin` has the vendor's name and the names of tools.
    #[must_use]
    pub fn new(origin: Origin, cx: AnswerCx) -> Self {
        let chunks = Chunks {
            cx,
            ..Chunks::default()
        };
        Self {
            reading: Reading::new(chunks, origin),
        }
    }

    /// Translates the next event, and appends the result to `out`, perhaps nothing.
    ///
    /// # Errors
    /// [`Error::VendorBroken`] if the event is not of the responses format or comes out of order,
    /// [`Error::VendorUnavailable`] if it is an error of the vendor.
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

/// Joins the texts of several items to one text, with blank lines between them.
#[derive(Debug, Default)]
struct Joined {
    last: Option<u64>,
}

impl Joined {
    /// Returns the separator to write before the next piece of this item.
    fn between(&mut self, item: u64) -> &'static str {
        match self.last.replace(item) {
            Some(last) if last != item => "\\n\\n",
            _ => "",
        }
    }
}

#[derive(Debug, Default)]
struct Chunks {
    cx: AnswerCx,
    /// The beginning of every chunk, up to `choices`.
    head: String,
    messages: Joined,
    thoughts: Joined,
    /// The items that are tool calls, in order. The chat format numbers tool calls separately from other content, from
    /// 0.
    calls: Vec<(u64, bool, bool)>,
}

impl Chunks {
    fn chunk(&self, delta: fmt::Arguments<'_>, finish_reason: &str, out: &mut BytesMut) {
        let end = if self.cx.usage_asked {
            "}],\"usage\":null}"
        } else {
            "}]}"
        };
        put(
            out,
            format_args!(
                "{}{{\"index\":0,\"delta\":{{{delta}}},\"logprobs\":null,\"finish_reason\":{finish_reason}{end}\n\n",
                self.head
            ),
        );
    }

    fn number(&self, item: u64) -> Option<usize> {
        self.calls.iter().position(|call| call.0 == item)
    }
}

impl Sink for Chunks {
    fn begin(&mut self, id: &str, model: &str, out: &mut BytesMut) {
        let created = self.cx.created;
        self.head = format!(
            "data: {{\"id\":{id},\"object\":\"chat.completion.chunk\",\"created\":{created},\
             \"model\":{model},\"choices\":["
        );
        let delta = format_args!("\"role\":\"assistant\",\"content\":\"\"");
        self.chunk(delta, "null", out);
    }

    fn text(
        &mut self,
        item: u64,
        refusal: bool,
        piece: &str,
        out: &mut BytesMut,
    ) -> Result<(), Error> {
        if refusal {
            self.chunk(format_args!("\"refusal\":\"{piece}\""), "null", out);
        } else {
            let between = self.messages.between(item);
            let delta = format_args!("\"content\":\"{between}{piece}\"");
            self.chunk(delta, "null", out);
        }
        Ok(())
    }

    fn thought(&mut self, item: u64, piece: &str, out: &mut BytesMut) -> Result<(), Error> {
        let between = self.thoughts.between(item);
        let delta = format_args!("\"reasoning_content\":\"{between}{piece}\"");
        self.chunk(delta, "null", out);
        Ok(())
    }

    fn call(&mut self, item: u64, call: Call<'_>, out: &mut BytesMut) -> Result<(), Error> {
        let number = self.calls.len();
        self.calls.push((item, call.custom, false));
        let Call { id, name, custom } = call;
        let (kind, field) = kind(custom);
        let delta = format_args!(
            "\"tool_calls\":[{{\"index\":{number},\"id\":\"{id}\",\"type\":\"{kind}\",\
             \"{kind}\":{{\"name\":\"{name}\",\"{field}\":\"\"}}}}]"
        );
        self.chunk(delta, "null", out);
        Ok(())
    }

    fn arguments(&mut self, item: u64, piece: &str, out: &mut BytesMut) -> Result<(), Error> {
        if let Some(number) = self.number(item) {
            self.calls[number].2 = true;
            let (kind, field) = kind(self.calls[number].1);
            let delta = format_args!(
                "\"tool_calls\":[{{\"index\":{number},\"{kind}\":{{\"{field}\":\"{piece}\"}}}}]"
            );
            self.chunk(delta, "null", out);
        }
        Ok(())
    }

    /// A tool call without arguments gets the empty object, because callers parse the arguments.
    fn done(&mut self, item: u64, _sealed: Option<&str>, out: &mut BytesMut) -> Result<(), Error> {
        match self.number(item) {
            Some(number) if !self.calls[number].1 && !self.calls[number].2 => {
                self.arguments(item, "{}", out)
            }
            _ => Ok(()),
        }
    }

    fn finish(
        &mut self,
        stop: Stop,
        counts: Option<Counts>,
        out: &mut BytesMut,
    ) -> Result<(), Error> {
        let reason = finish_reason(stop);
        self.chunk(format_args!(""), &format!("\"{reason}\""), out);
        if self.cx.usage_asked {
            let usage = usage(counts);
            put(out, format_args!("{}],\"usage\":{usage}}}\n\n", self.head));
        }
        out.extend_from_slice(b"data: [DONE]\n\n");
        Ok(())
    }

    fn alive(&mut self, out: &mut BytesMut) {
        out.extend_from_slice(b": keep-alive\n\n");
    }
}

/// A plain chat answer while its content is collected.
#[derive(Debug)]
struct Plain {
    cx: AnswerCx,
    id: String,
    model: String,
    messages: Joined,
    thoughts: Joined,
    text: String,
    refusal: String,
    reasoning: String,
    calls: Vec<PlainCall>,
}

#[derive(Debug)]
struct PlainCall {
    item: u64,
    custom: bool,
    id: String,
    name: String,
    arguments: String,
}

impl Plain {
    const fn new(cx: AnswerCx) -> Self {
        Self {
            cx,
            id: String::new(),
            model: String::new(),
            messages: Joined { last: None },
            thoughts: Joined { last: None },
            text: String::new(),
            refusal: String::new(),
            reasoning: String::new(),
            calls: Vec::new(),
        }
    }

    fn write_calls(&self, out: &mut BytesMut) {
        for (number, call) in self.calls.iter().enumerate() {
            let PlainCall {
                custom,
                id,
                name,
                arguments,
                ..
            } = call;
            let (kind, field) = kind(*custom);
            let arguments = if arguments.is_empty() && !custom {
                "{}"
            } else {
                arguments
            };
            let before = if number == 0 {
                ",\"tool_calls\":["
            } else {
                ","
            };
            put(
                out,
                format_args!(
                    "{before}{{\"id\":\"{id}\",\"type\":\"{kind}\",\"{kind}\":{{\"name\":\"{name}\",\
                     \"{field}\":\"{arguments}\"}}}}"
                ),
            );
        }
        if !self.calls.is_empty() {
            out.extend_from_slice(b"]");
        }
    }
}

impl Sink for Plain {
    fn begin(&mut self, id: &str, model: &str, _out: &mut BytesMut) {
        id.clone_into(&mut self.id);
        model.clone_into(&mut self.model);
    }

    fn text(
        &mut self,
        item: u64,
        refusal: bool,
        piece: &str,
        _out: &mut BytesMut,
    ) -> Result<(), Error> {
        if refusal {
            self.refusal.push_str(piece);
        } else {
            self.text.push_str(self.messages.between(item));
            self.text.push_str(piece);
        }
        Ok(())
    }

    fn thought(&mut self, item: u64, piece: &str, _out: &mut BytesMut) -> Result<(), Error> {
        self.reasoning.push_str(self.thoughts.between(item));
        self.reasoning.push_str(piece);
        Ok(())
    }

    fn call(&mut self, item: u64, call: Call<'_>, _out: &mut BytesMut) -> Result<(), Error> {
        self.calls.push(PlainCall {
            item,
            custom: call.custom,
            id: call.id.to_owned(),
            name: call.name.to_owned(),
            arguments: String::new(),
        });
        Ok(())
    }

    fn arguments(&mut self, item: u64, piece: &str, _out: &mut BytesMut) -> Result<(), Error> {
        let call = self.calls.iter_mut().find(|call| call.item == item);
        if let Some(call) = call {
            call.arguments.push_str(piece);
        }
        Ok(())
    }

    fn done(
        &mut self,
        _item: u64,
        _sealed: Option<&str>,
        _out: &mut BytesMut,
    ) -> Result<(), Error> {
        Ok(())
    }

    fn finish(
        &mut self,
        stop: Stop,
        counts: Option<Counts>,
        out: &mut BytesMut,
    ) -> Result<(), Error> {
        let Self {
            cx,
            id,
            model,
            text,
            refusal,
            reasoning,
            ..
        } = self;
        let created = cx.created;
        let nothing_else = self.calls.is_empty() && refusal.is_empty();
        let content = if !text.is_empty() || nothing_else {
            format!("\"{text}\"")
        } else {
            "null".to_owned()
        };
        let refusal = if refusal.is_empty() {
            "null".to_owned()
        } else {
            format!("\"{refusal}\"")
        };
        put(
            out,
            format_args!(
                "{{\"id\":{id},\"object\":\"chat.completion\",\"created\":{created},\"model\":{model},\
                 \"choices\":[{{\"index\":0,\"message\":{{\"role\":\"assistant\",\"content\":{content},\
                 \"refusal\":{refusal}"
            ),
        );
        if !reasoning.is_empty() {
            put(out, format_args!(",\"reasoning_content\":\"{reasoning}\""));
        }
        self.write_calls(out);
        let (reason, usage) = (finish_reason(stop), usage(counts));
        put(
            out,
            format_args!(
                "}},\"logprobs\":null,\"finish_reason\":\"{reason}\"}}],\"usage\":{usage}}}"
            ),
        );
        Ok(())
    }

    fn alive(&mut self, _out: &mut BytesMut) {}
}

/// Returns the chat format's type of a tool, and the name of its field for the arguments.
const fn kind(custom: bool) -> (&'static str, &'static str) {
    if custom {
        ("custom", "input")
    } else {
        ("function", "arguments")
    }
}

const fn finish_reason(stop: Stop) -> &'static str {
    match stop {
        Stop::EndTurn => "stop",
        Stop::ToolUse => "tool_calls",
        Stop::MaxTokens => "length",
        Stop::Refusal => "content_filter",
    }
}

fn usage(counts: Option<Counts>) -> String {
    let Counts {
        input,
        cached,
        written,
        output,
        reasoning,
    } = counts.unwrap_or_default();
    let total = input.saturating_add(output);
    format!(
        "{{\"prompt_tokens\":{input},\"completion_tokens\":{output},\"total_tokens\":{total},\
         \"prompt_tokens_details\":{{\"cached_tokens\":{cached},\"cache_write_tokens\":{written}}},\
         \"completion_tokens_details\":{{\"reasoning_tokens\":{reasoning}}}}}"
    )
}
