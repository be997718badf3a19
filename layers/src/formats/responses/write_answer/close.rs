//! Writes the events that end an item.

use bytes::BytesMut;

use super::{
    Events, Writer,
    item::{Call, Item, ItemId, Part, ReasoningNames, free_text, part_json},
};
use crate::formats::capsule;

impl Writer {
    /// Writes the events that end the item. Does nothing if the item has already ended.
    pub(super) fn close(&mut self, index: usize, status: &str, out: &mut BytesMut) {
        let id = self.item_id(index);
        match &mut self.items[index] {
            Item::Done(_) => return,
            Item::Message(parts) => self.events.part_done(id, parts, out),
            Item::Reasoning(_) => self.reasoning_done(id, out),
            Item::Call(call) => self.events.call_done(id, call, out),
        }
        let json = self.items[index].json(id, status);
        let rest = format_args!(",\"output_index\":{index},\"item\":{json}");
        self.events.write("response.output_item.done", rest, out);
        self.items[index] = Item::Done(json);
    }

    fn reasoning_done(&mut self, id: ItemId, out: &mut BytesMut) {
        let Item::Reasoning(reasoning) = &mut self.items[id.index] else {
            return;
        };
        let (vendor, mut sealed) = (&self.requested.vendor, None);
        if !reasoning.summary && (self.requested.encrypted || self.state.is_more_than_text()) {
            sealed = Some(self.state.seal(vendor));
        } else if self.requested.encrypted && !reasoning.signature.is_empty() {
            let (thinking, signature) = (&reasoning.text, &reasoning.signature);
            let json = format!(
                "[{{\"type\":\"thinking\",\"thinking\":\"{thinking}\",\"signature\":\"{signature}\"}}]"
            );
            sealed = Some(capsule::seal(vendor, &json));
        }
        if let Some(capsule) = sealed {
            self.kept_bytes += capsule.len();
            reasoning.capsule = Some(capsule);
        }
        if !reasoning.shown || reasoning.text.is_empty() {
            return;
        }
        let names = ReasoningNames::of(reasoning.summary);
        let (text, place) = (&reasoning.text, names.index);
        let rest = format_args!(",\"{place}\":0,\"text\":\"{text}\"");
        self.events.of_item(names.done, id, rest, out);
        let part = format_args!("{{\"type\":\"{}\",\"text\":\"{text}\"}}", names.part);
        let rest = format_args!(",\"{place}\":0,\"part\":{part}");
        self.events.of_item(names.part_done, id, rest, out);
    }
}

impl Events {
    /// Ends the last part of a message, if the message has a part.
    pub(super) fn part_done(&mut self, id: ItemId, parts: &[Part], out: &mut BytesMut) {
        let Some((Part { refusal, text }, before)) = parts.split_last() else {
            return;
        };
        let (kind, field, logprobs) = if *refusal {
            ("response.refusal.done", "refusal", "")
        } else {
            ("response.output_text.done", "text", ",\"logprobs\":[]")
        };
        let content_index = before.len();
        let rest =
            format_args!(",\"content_index\":{content_index},\"{field}\":\"{text}\"{logprobs}");
        self.of_item(kind, id, rest, out);
        if !self.silent {
            let part = part_json(*refusal, text);
            let rest = format_args!(",\"content_index\":{content_index},\"part\":{part}");
            self.of_item("response.content_part.done", id, rest, out);
        }
    }

    fn call_done(&mut self, id: ItemId, call: &mut Call, out: &mut BytesMut) {
        let Call {
            name, arguments, ..
        } = call;
        if call.custom {
            *arguments = free_text(std::mem::take(arguments));
            if !arguments.is_empty() {
                let rest = format_args!(",\"delta\":\"{arguments}\"");
                self.of_item("response.custom_tool_call_input.delta", id, rest, out);
            }
            let rest = format_args!(",\"input\":\"{arguments}\"");
            self.of_item("response.custom_tool_call_input.done", id, rest, out);
            return;
        }
        if arguments.is_empty() {
            arguments.push_str("{}");
            let rest = format_args!(",\"delta\":\"{arguments}\"");
            self.of_item("response.function_call_arguments.delta", id, rest, out);
        }
        let rest = format_args!(",\"name\":{name},\"arguments\":\"{arguments}\"");
        self.of_item("response.function_call_arguments.done", id, rest, out);
    }
}
