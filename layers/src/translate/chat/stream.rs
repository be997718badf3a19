//! A messages stream as a chat stream: each event becomes its chunks at once, none waits for another.

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

/// A vendor's id of an answer or name of a model may be this long: both are kept, and stand in every
/// chunk.
const NAME_BYTES_MAX: usize = 512;

/// Deltas of text, up to the text.
const CONTENT: &str = "{\"content\":";
const REASONING: &str = "{\"reasoning_content\":";

/// Messages events → chat chunks.
///
/// Memory per stream: the beginning of a chunk, with the answer's id and model as the vendor wrote them
/// (512 bytes each at most), and counts; under 1.5 KiB. No text and no arguments are kept.
#[derive(Debug)]
pub struct Events {
    cx: AnswerCx,
    /// Every chunk up to its choices; empty until the answer has begun.
    head: BytesMut,
    counts: Counts,
    open: Open,
    index: Option<u64>,
    /// Tools so far: the chat format counts them by themselves, from 0.
    tools: u64,
    /// The beginning of a delta for the last tool.
    tool_head: String,
    finished: bool,
    stopped: bool,
}

/// The block that the next deltas belong to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Open {
    /// None, or one of text or thinking.
    Shown,
    /// A tool of the client's whose arguments come in pieces, and how they begin.
    ToolInPieces(Lead),
    /// A tool of the client's whose arguments came with its beginning.
    ToolWhole,
    /// What the chat format has no place for: the vendor's own tools and their results.
    Dropped,
}

impl Events {
    /// A stream that has not begun.
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

    /// Writes what the vendor's next event becomes; often nothing.
    ///
    /// # Errors
    /// [`Error::VendorBroken`]: the event is not one of the messages format, or not in its place.
    pub fn event(&mut self, event: &Event, out: &mut BytesMut) -> Result<(), Error> {
        let Some(data) = event.data().filter(|data| !data.trim_ascii().is_empty()) else {
            return Ok(());
        };
        if self.stopped {
            return Ok(());
        }
        let wire = match serde_json::from_slice::<Wire<'_>>(&data) {
            Ok(wire) => wire,
            // What is not known yet may have any shape, and so may what stands beside usage.
            Err(error) => match serde_json::from_slice::<Odd<'_>>(&data) {
                Ok(odd) if !KNOWN.contains(&&*odd.kind) => return Ok(()),
                Ok(odd) if odd.kind == "message_delta" && odd.usage.is_some() => odd.read(),
                _ => return Err(broken(error)),
            },
        };
        match &*wire.kind {
            "message_start" => self.start(wire.message, out),
            "content_block_start" => {
                self.close_block(out);
                let block = wire
                    .content_block
                    .ok_or_else(|| broken("a block start without a block"))?;
                self.index = wire.index;
                self.open_block(&block, out)
            }
            "content_block_delta" => {
                let delta = wire
                    .delta
                    .ok_or_else(|| broken("a delta without a delta"))?;
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

    /// The vendor's stream has ended.
    ///
    /// # Errors
    /// [`Error::VendorBroken`]: something is missing. A stream that was cut must not look finished.
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
                Err(broken("the answer's id or model is no short string"))
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
            // Most begin empty, some without the field.
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
                // Some vendors send the input with the block, not in pieces.
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
        // Blocks never interleave. What came for another block would be put into the wrong tool.
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
            // Signatures, citations, and what is not known yet.
            _ => Ok(()),
        }
    }

    /// A tool without arguments has the empty object: callers parse what they get (case 70).
    fn close_block(&mut self, out: &mut BytesMut) {
        if let Open::ToolInPieces(lead) = self.open
            && !lead.begun()
        {
            // A tool was opened, so the answer has begun and the chunk cannot fail.
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
        self.chunk(&["{}"], Some(finish_reason(stop_reason)), out)
    }

    fn stop(&mut self, out: &mut BytesMut) -> Result<(), Error> {
        // A reason would have to be invented: an event was lost.
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

    /// A piece of the last tool's arguments, in two parts as they stand between quotes.
    fn arguments(&self, kept: &str, piece: &str, out: &mut BytesMut) -> Result<(), Error> {
        let (head, name) = (self.tool_head.as_str(), "\"function\":{\"arguments\":\"");
        self.chunk(&[head, name, kept, piece, "\"}}]}"], None, out)
    }

    /// One chunk. JSON strings go from event to chunk as they are written: no line end can stand in one.
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
            // The last chunk has it: the others say that it is not forgotten.
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

/// What is between the quotes of a JSON string.
fn between_quotes(string: &str) -> &str {
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

/// An event that cannot be read as one.
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
    /// What can be read of it.
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

/// Any event.
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
    /// Empty in a `message_delta`.
    #[serde(borrow, default, rename = "type")]
    kind: Cow<'a, str>,
    #[serde(borrow)]
    text: Option<&'a RawValue>,
    #[serde(borrow)]
    thinking: Option<&'a RawValue>,
    #[serde(borrow)]
    partial_json: Option<&'a RawValue>,
    stop_reason: Option<String>,
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;
    use serde_json::{Value, json};

    use super::*;
    use crate::sse::Splitter;

    const CX: AnswerCx = AnswerCx {
        created: 1_790_000_000,
        usage_asked: false,
        thinking_asked: false,
    };

    const START: &str = r#"{"type":"message_start","message":{"id":"msg_1","model":"opus","content":[],
        "usage":{"input_tokens":5,"cache_read_input_tokens":7,"cache_creation_input_tokens":2,"output_tokens":1}}}"#;
    const STOP: &str = r#"{"type":"message_stop"}"#;

    fn stop_reason(reason: &str) -> String {
        format!(
            r#"{{"type":"message_delta","delta":{{"stop_reason":"{reason}","stop_sequence":null}},"usage":{{"output_tokens":9}}}}"#
        )
    }

    fn block(index: u64, block: &str) -> String {
        format!(r#"{{"type":"content_block_start","index":{index},"content_block":{block}}}"#)
    }

    fn delta(index: u64, delta: &str) -> String {
        format!(r#"{{"type":"content_block_delta","index":{index},"delta":{delta}}}"#)
    }

    fn block_stop(index: u64) -> String {
        format!(r#"{{"type":"content_block_stop","index":{index}}}"#)
    }

    /// What the events become, and how the stream ends.
    fn run<E: AsRef<str>>(cx: AnswerCx, events: &[E]) -> (String, Result<(), Error>) {
        let (mut stream, mut out, mut result) = (Events::new(cx), BytesMut::new(), Ok(()));
        let mut splitter = Splitter::default();
        let text: String = events
            .iter()
            .map(|data| {
                format!(
                    "event: any\ndata: {}\n\n",
                    data.as_ref().replace('\n', "\ndata: ")
                )
            })
            .collect();
        splitter
            .push(&Bytes::from(text), |event| {
                if result.is_ok() {
                    result = stream.event(&event, &mut out);
                }
            })
            .unwrap();
        let result = result.and_then(|()| stream.end(&mut out));
        (String::from_utf8(out.to_vec()).unwrap(), result)
    }

    /// The data of a whole stream's chunks, `[DONE]` checked and left out.
    fn chunks<E: AsRef<str>>(cx: AnswerCx, events: &[E]) -> Vec<Value> {
        let (text, result) = run(cx, events);
        result.unwrap();
        let text = text
            .strip_suffix("data: [DONE]\n\n")
            .expect("[DONE] is last");
        text.split_terminator("\n\n")
            .filter(|event| !event.starts_with(':'))
            .map(|event| serde_json::from_str(event.strip_prefix("data: ").unwrap()).unwrap())
            .collect()
    }

    fn deltas<E: AsRef<str>>(events: &[E]) -> Vec<Value> {
        let chunks = chunks(CX, events);
        chunks
            .iter()
            .map(|chunk| chunk["choices"][0]["delta"].clone())
            .collect()
    }

    /// A whole stream around some events.
    fn whole(events: &[String], reason: &str) -> Vec<String> {
        [
            &[START.to_owned()][..],
            events,
            &[stop_reason(reason), STOP.to_owned()][..],
        ]
        .concat()
    }

    fn text(index: u64, text: &str) -> [String; 3] {
        [
            block(index, r#"{"type":"text","text":""}"#),
            delta(
                index,
                &format!(r#"{{"type":"text_delta","text":"{text}"}}"#),
            ),
            block_stop(index),
        ]
    }

    fn tool(index: u64, pieces: &[&str]) -> Vec<String> {
        let start =
            format!(r#"{{"type":"tool_use","id":"toolu_{index}","name":"f{index}","input":{{}}}}"#);
        let mut events = vec![block(index, &start)];
        events.extend(pieces.iter().map(|piece| {
            delta(
                index,
                &json!({"type": "input_json_delta", "partial_json": piece}).to_string(),
            )
        }));
        events.push(block_stop(index));
        events
    }

    #[test]
    fn case_67_the_role_comes_once_and_names_stay_the_same() {
        let events = whole(&[text(0, "a"), text(1, "b")].concat(), "end_turn");
        let chunks = chunks(CX, &events);
        assert_eq!(
            chunks[0],
            json!({
                "id": "msg_1", "object": "chat.completion.chunk", "created": CX.created, "model": "opus",
                "choices": [{"index": 0, "delta": {"role": "assistant", "content": ""}, "logprobs": null, "finish_reason": null}],
            })
        );
        assert_eq!(chunks.len(), 4);
        for chunk in &chunks[1..] {
            for name in ["id", "object", "created", "model"] {
                assert_eq!(chunk[name], chunks[0][name]);
            }
            assert!(chunk["choices"][0]["delta"].get("role").is_none());
        }
    }

    #[test]
    fn case_68_tools_are_counted_by_themselves() {
        let dropped = block(
            2,
            r#"{"type":"server_tool_use","id":"srvtoolu_1","name":"web_fetch","input":{}}"#,
        );
        let search = delta(
            2,
            r#"{"type":"input_json_delta","partial_json":"{\"url\":1}"}"#,
        );
        let result = block(
            3,
            r#"{"type":"web_fetch_tool_result","tool_use_id":"srvtoolu_1","content":{"type":"x"}}"#,
        );
        let events = [
            &text(0, "x")[..],
            &tool(1, &["{}"])[..],
            &[dropped, search, block_stop(2), result, block_stop(3)][..],
            &tool(4, &["{}"])[..],
        ]
        .concat();
        let calls: Vec<_> = deltas(&whole(&events, "tool_use"))
            .into_iter()
            .filter(|delta| delta.get("tool_calls").is_some())
            .map(|delta| {
                (
                    delta["tool_calls"][0]["index"].clone(),
                    delta["tool_calls"][0]["id"].clone(),
                )
            })
            .collect();
        let expected = [
            (json!(0), json!("toolu_1")),
            (json!(0), Value::Null),
            (json!(1), json!("toolu_4")),
            (json!(1), Value::Null),
        ];
        assert_eq!(calls, expected);
    }

    #[test]
    fn case_69_a_tool_begins_with_its_name_and_goes_on_without() {
        let events = whole(&tool(0, &["", "{\"city\"", ": \"Омск\"}"]), "tool_use");
        let expected = [
            json!({"role": "assistant", "content": ""}),
            json!({"tool_calls": [{"index": 0, "id": "toolu_0", "type": "function",
                "function": {"name": "f0", "arguments": ""}}]}),
            json!({"tool_calls": [{"index": 0, "function": {"arguments": "{\"city\""}}]}),
            json!({"tool_calls": [{"index": 0, "function": {"arguments": ": \"Омск\"}"}}]}),
            json!({}),
        ];
        assert_eq!(deltas(&events), expected);
    }

    #[test]
    fn case_70_a_tool_without_arguments_has_the_empty_object() {
        for (name, events) in [
            ("no delta", tool(0, &[])),
            ("empty delta", tool(0, &["", ""])),
            ("blanks", tool(0, &[" ", "\n"])),
            ("null", tool(0, &["nu", "ll "])),
            ("no block stop", tool(0, &[])[..1].to_vec()),
        ] {
            let deltas = deltas(&whole(&events, "tool_use"));
            assert_eq!(deltas.len(), 4, "{name}");
            let call = json!({"tool_calls": [{"index": 0, "function": {"arguments": "{}"}}]});
            assert_eq!(deltas[2], call, "{name}");
        }
    }

    #[test]
    fn a_null_in_arguments_is_one_of_them() {
        for input in ["{}", "null", r#""""#] {
            let start = format!(r#"{{"type":"tool_use","id":"t","name":"f","input":{input}}}"#);
            let pieces = ["{\"a\":[1,", "null", "]}"];
            let mut events = tool(0, &pieces);
            events[0] = block(0, &start);
            let deltas = deltas(&whole(&events, "tool_use"));
            let said = deltas[2..5]
                .iter()
                .map(|delta| &delta["tool_calls"][0]["function"]["arguments"]);
            assert!(said.eq(&pieces), "{input}: {deltas:?}");
        }
    }

    #[test]
    fn usage_is_taken_whatever_stands_beside_it() {
        let cx = AnswerCx {
            usage_asked: true,
            ..CX
        };
        let odd = |delta: &str, usage: &str| {
            format!(r#"{{"type":"message_delta","delta":{delta},"usage":{usage}}}"#)
        };
        for delta in ["7", "[]", r#"{"stop_reason":7}"#] {
            let mut events = whole(&text(0, "a"), "end_turn");
            events.insert(events.len() - 1, odd(delta, r#"{"output_tokens":11}"#));
            let chunks = chunks(cx, &events);
            assert_eq!(chunks.last().unwrap()["usage"]["completion_tokens"], 11);
            // Without any it is no event, and a reason that cannot be read is none.
            let at = events.len() - 2;
            events[at] = odd(delta, "null");
            assert!(run(cx, &events).1.is_err(), "{delta}");
            let mut lost = whole(&text(0, "a"), "end_turn");
            let at = lost.len() - 2;
            lost[at] = odd(delta, r#"{"output_tokens":11}"#);
            assert!(run(cx, &lost).1.is_err(), "{delta}");
        }
    }

    #[test]
    fn an_input_that_comes_with_the_block_is_sent_once() {
        let start =
            r#"{"type":"tool_use","id":"t","name":"f","input":{"n": 12345678901234567890123}}"#;
        for pieces in [
            &[][..],
            &[r#"{"type":"input_json_delta","partial_json":"{\"n\":1}"}"#][..],
        ] {
            let mut events = vec![block(0, start)];
            events.extend(pieces.iter().map(|piece| delta(0, piece)));
            events.push(block_stop(0));
            let deltas = deltas(&whole(&events, "tool_use"));
            assert_eq!(deltas.len(), 4);
            assert_eq!(
                deltas[2]["tool_calls"][0]["function"]["arguments"],
                r#"{"n":12345678901234567890123}"#
            );
        }
    }

    #[test]
    fn case_71_thinking_is_reasoning_and_signatures_are_nothing() {
        let events = [
            block(0, r#"{"type":"thinking","thinking":"","signature":""}"#),
            delta(0, r#"{"type":"thinking_delta","thinking":"hm\n\u0436"}"#),
            delta(0, r#"{"type":"signature_delta","signature":"EqkB"}"#),
            block_stop(0),
            block(1, r#"{"type":"redacted_thinking","data":"secret"}"#),
            block_stop(1),
            block(2, r#"{"type":"text","text":"be"}"#),
            delta(2, r#"{"type":"citations_delta","citation":{"text":7}}"#),
            delta(2, r#"{"type":"text_delta","text":"gun"}"#),
            block_stop(2),
        ];
        let expected = [
            json!({"role": "assistant", "content": ""}),
            json!({"reasoning_content": "hm\nж"}),
            json!({"content": "be"}),
            json!({"content": "gun"}),
            json!({}),
        ];
        assert_eq!(deltas(&whole(&events, "end_turn")), expected);
    }

    #[test]
    fn case_72_a_ping_is_a_comment() {
        let events = whole(&[r#"{"type": "ping"}"#.to_owned()], "end_turn");
        let (out, result) = run(CX, &events);
        assert!(
            result.is_ok() && out.contains("\n\n: keep-alive\n\n"),
            "{out}"
        );
    }

    #[test]
    fn case_73_the_reason_has_a_chunk_of_its_own() {
        for (reason, expected) in [
            ("end_turn", "stop"),
            ("max_tokens", "length"),
            ("tool_use", "tool_calls"),
            ("refusal", "content_filter"),
        ] {
            let mut events = whole(&text(0, "a"), reason);
            // Usage may come again behind the reason.
            events.insert(events.len() - 1, stop_reason(reason));
            let chunks = chunks(CX, &events);
            let reasons: Vec<_> = chunks
                .iter()
                .map(|chunk| chunk["choices"][0]["finish_reason"].clone())
                .collect();
            assert_eq!(reasons, [Value::Null, Value::Null, json!(expected)]);
            assert_eq!(chunks[2]["choices"][0]["delta"], json!({}));
        }
    }

    #[test]
    fn case_74_usage_is_replaced_not_added() {
        let later = r#"{"type":"message_delta","delta":{"stop_reason":null},"usage":{"input_tokens":6,"cache_creation_input_tokens":null,
            "output_tokens":4,"output_tokens_details":{"thinking_tokens":3}}}"#;
        let cx = AnswerCx {
            usage_asked: true,
            ..CX
        };
        let chunks = chunks(cx, &whole(&[later.to_owned()], "end_turn"));
        assert_eq!(
            chunks.last().unwrap()["usage"],
            json!({
                "prompt_tokens": 15, "completion_tokens": 9, "total_tokens": 24,
                "prompt_tokens_details": {"cached_tokens": 7, "cache_write_tokens": 2},
                "completion_tokens_details": {"reasoning_tokens": 3},
            })
        );
    }

    #[test]
    fn case_75_the_usage_chunk_comes_when_it_was_asked_for() {
        let events = whole(&text(0, "a"), "end_turn");
        let chunks = |usage_asked| chunks(AnswerCx { usage_asked, ..CX }, &events);
        let asked = chunks(true);
        let (last, before) = asked.split_last().unwrap();
        assert_eq!(last["choices"], json!([]));
        assert_eq!(last["usage"]["total_tokens"], 23);
        assert_eq!(
            (&last["id"], &last["model"]),
            (&json!("msg_1"), &json!("opus"))
        );
        assert!(
            before
                .iter()
                .all(|chunk| chunk.get("usage") == Some(&Value::Null))
        );
        let not_asked = chunks(false);
        assert_eq!(not_asked.len(), before.len());
        assert!(not_asked.iter().all(|chunk| chunk.get("usage").is_none()));
    }

    #[test]
    fn case_76_an_error_event_ends_the_stream_without_done() {
        // The layer below makes a body error of it; here nothing may be written for it.
        let error = r#"{"type":"error","error":{"type":"overloaded_error","message":"org-1"}}"#;
        let events = [
            &[START.to_owned()][..],
            &text(0, "a")[..],
            &[error.to_owned()][..],
        ]
        .concat();
        let (out, result) = run(CX, &events);
        assert!(matches!(result, Err(Error::VendorBroken(_))));
        assert!(!out.contains("[DONE]") && !out.contains("org-1"), "{out}");
    }

    #[test]
    fn case_77_a_cut_stream_never_looks_finished() {
        let events = whole(
            &[&text(0, "a")[..], &tool(1, &["{\"a\":"])[..]].concat(),
            "tool_use",
        );
        let reason_at = events.len() - 2;
        for end in 0..events.len() {
            let (out, result) = run(CX, &events[..end]);
            assert!(
                matches!(result, Err(Error::VendorBroken(_))),
                "{end} events"
            );
            assert!(!out.contains("[DONE]"), "{out}");
            assert_eq!(
                out.contains("\"finish_reason\":\""),
                end > reason_at,
                "{out}"
            );
        }
        let mut no_reason = events;
        no_reason.remove(reason_at);
        let (out, result) = run(CX, &no_reason);
        assert!(matches!(result, Err(Error::VendorBroken(_))));
        assert!(
            !out.contains("[DONE]") && !out.contains("\"finish_reason\":\""),
            "{out}"
        );
    }

    #[test]
    fn case_78_an_error_as_the_first_event_writes_nothing() {
        // So that the status can still be one of an error.
        let (out, result) = run(
            CX,
            &[r#"{"type":"error","error":{"type":"api_error","message":"x"}}"#],
        );
        assert!(out.is_empty() && matches!(result, Err(Error::VendorBroken(_))));
    }

    #[test]
    fn case_78a_input_is_taken_from_the_start_where_the_end_has_none() {
        let cx = AnswerCx {
            usage_asked: true,
            ..CX
        };
        let chunks = chunks(cx, &whole(&[], "end_turn"));
        let usage = &chunks.last().unwrap()["usage"];
        assert_eq!(
            (&usage["prompt_tokens"], &usage["completion_tokens"]),
            (&json!(14), &json!(9))
        );
    }

    #[test]
    fn what_is_not_known_is_passed_over_and_what_is_wrong_is_broken() {
        let unknown = [
            r#"{"type":"tomorrow","delta":"any shape","index":"x"}"#.to_owned(),
            delta(0, r#"{"type":"compaction_delta","text":{"a":1}}"#),
            block(0, r#"{"type":"compaction","text":{"a":1}}"#),
        ];
        assert_eq!(deltas(&whole(&unknown, "end_turn")).len(), 2);
        let long = START.replace("msg_1", &"x".repeat(NAME_BYTES_MAX));
        for events in [
            vec!["nonsense".to_owned()],
            vec![r#"{"no":"type"}"#.to_owned()],
            vec![r#"{"type":"message_start"}"#.to_owned()],
            vec![START.replace("\"msg_1\"", "7")],
            vec![long],
            text(0, "before the start").to_vec(),
            whole(
                &[r#"{"type":"content_block_start","index":0}"#.to_owned()],
                "end_turn",
            ),
            whole(
                &[block(0, r#"{"type":"tool_use","name":"f","input":{}}"#)],
                "tool_use",
            ),
            whole(
                &[
                    block(0, r#"{"type":"text"}"#),
                    delta(0, r#"{"type":"text_delta"}"#),
                ],
                "end_turn",
            ),
            whole(
                &[delta(
                    0,
                    r#"{"type":"input_json_delta","partial_json":"{}"}"#,
                )],
                "tool_use",
            ),
            // Of two tools at once, the arguments would end up in one.
            whole(
                &[
                    block(0, r#"{"type":"tool_use","id":"a","name":"f","input":{}}"#),
                    block(1, r#"{"type":"tool_use","id":"b","name":"f","input":{}}"#),
                    delta(0, r#"{"type":"input_json_delta","partial_json":"{}"}"#),
                ],
                "tool_use",
            ),
        ] {
            let (_, result) = run(CX, &events);
            assert!(matches!(result, Err(Error::VendorBroken(_))), "{events:?}");
        }
    }

    #[test]
    fn a_stream_keeps_little_however_long_it_is() {
        let (mut stream, mut out) = (Events::new(CX), BytesMut::new());
        let long = delta(
            0,
            &format!(r#"{{"type":"text_delta","text":"{}"}}"#, "x".repeat(10_000)),
        );
        let text: String = [START.to_owned(), block(0, r#"{"type":"text","text":""}"#)]
            .into_iter()
            .chain(std::iter::repeat_n(long, 100))
            .map(|data| format!("data: {}\n\n", data.replace('\n', " ")))
            .collect();
        Splitter::default()
            .push(&Bytes::from(text), |event| {
                stream.event(&event, &mut out).unwrap();
                assert!(stream.head.capacity() + stream.tool_head.capacity() <= 1536);
                out.clear();
            })
            .unwrap();
    }
}
