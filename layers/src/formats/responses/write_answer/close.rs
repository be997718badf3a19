//! Writes the events that end an item.

use bytes::BytesMut;

use super::{
    Writer,
    item::{Item, Part, ReasoningNames, free_text, part_json},
};
use crate::formats::capsule;

impl Writer {
    /// Writes the events that end the item. Does nothing if the item has already ended.
    pub(super) fn close(&mut self, index: usize, status: &str, out: &mut BytesMut) {
        match &mut self.items[index] {
            Item::Done(_) => return,
            Item::Message(parts) => {
                if let Some(last) = parts.len().checked_sub(1) {
                    self.part_done(index, last, out);
                }
            }
            Item::Reasoning(_) => self.reasoning_done(index, out),
            Item::Call(_) => self.call_done(index, out),
        }
        let json = self.items[index].json(self.item_id(index), status);
        self.event(
            "response.output_item.done",
            format_args!(",\"output_index\":{index},\"item\":{json}"),
            out,
        );
        self.items[index] = Item::Done(json);
    }

    pub(super) fn part_done(&mut self, index: usize, content_index: usize, out: &mut BytesMut) {
        let Item::Message(parts) = &mut self.items[index] else {
            return;
        };
        let Part { refusal, text } = &mut parts[content_index];
        let (refusal, text) = (*refusal, std::mem::take(text));
        let (kind, field, logprobs) = if refusal {
            ("response.refusal.done", "refusal", "")
        } else {
            ("response.output_text.done", "text", ",\"logprobs\":[]")
        };
        self.of_item(
            kind,
            index,
            format_args!(",\"content_index\":{content_index},\"{field}\":\"{text}\"{logprobs}"),
            out,
        );
        if !self.silent {
            let part = part_json(refusal, &text);
            self.of_item(
                "response.content_part.done",
                index,
                format_args!(",\"content_index\":{content_index},\"part\":{part}"),
                out,
            );
        }
        if let Item::Message(parts) = &mut self.items[index] {
            parts[content_index].text = text;
        }
    }

    fn reasoning_done(&mut self, index: usize, out: &mut BytesMut) {
        let Item::Reasoning(reasoning) = &mut self.items[index] else {
            return;
        };
        let vendor = &self.requested.vendor;
        let mut capsule = None;
        if !reasoning.summary && (self.requested.encrypted || self.state.is_more_than_text()) {
            capsule = Some(self.state.seal(vendor));
        } else if self.requested.encrypted && !reasoning.signature.is_empty() {
            let (thinking, signature) = (&reasoning.text, &reasoning.signature);
            let json = format!(
                "[{{\"type\":\"thinking\",\"thinking\":\"{thinking}\",\"signature\":\"{signature}\"}}]"
            );
            capsule = Some(capsule::seal(vendor, &json));
        }
        if let Some(capsule) = capsule {
            self.kept_bytes += capsule.len();
            reasoning.capsule = Some(capsule);
        }
        if !reasoning.shown || reasoning.text.is_empty() {
            return;
        }
        let (text, names) = (
            std::mem::take(&mut reasoning.text),
            ReasoningNames::of(reasoning.summary),
        );
        self.of_item(
            names.done,
            index,
            format_args!(",\"{}\":0,\"text\":\"{text}\"", names.index),
            out,
        );
        self.of_item(
            names.part_done,
            index,
            format_args!(
                ",\"{}\":0,\"part\":{{\"type\":\"{}\",\"text\":\"{text}\"}}",
                names.index, names.part
            ),
            out,
        );
        if let Item::Reasoning(reasoning) = &mut self.items[index] {
            reasoning.text = text;
        }
    }

    fn call_done(&mut self, index: usize, out: &mut BytesMut) {
        let Item::Call(call) = &mut self.items[index] else {
            return;
        };
        let mut arguments = std::mem::take(&mut call.arguments);
        if call.custom {
            arguments = free_text(arguments);
            if !arguments.is_empty() {
                self.of_item(
                    "response.custom_tool_call_input.delta",
                    index,
                    format_args!(",\"delta\":\"{arguments}\""),
                    out,
                );
            }
            self.of_item(
                "response.custom_tool_call_input.done",
                index,
                format_args!(",\"input\":\"{arguments}\""),
                out,
            );
        } else {
            if arguments.is_empty() {
                arguments.push_str("{}");
                self.of_item(
                    "response.function_call_arguments.delta",
                    index,
                    format_args!(",\"delta\":\"{arguments}\""),
                    out,
                );
            }
            let name = match &self.items[index] {
                Item::Call(call) => call.name().to_owned(),
                _ => String::new(),
            };
            self.of_item(
                "response.function_call_arguments.done",
                index,
                format_args!(",\"name\":{name},\"arguments\":\"{arguments}\""),
                out,
            );
        }
        if let Item::Call(call) = &mut self.items[index] {
            call.arguments = arguments;
        }
    }
}
