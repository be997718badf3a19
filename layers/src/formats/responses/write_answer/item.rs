//! The items of a response in the Responses format, with their JSON.

use std::fmt;

use uuid::fmt::Simple;

use crate::formats::text::inner;

/// An item that is being written, or the JSON of an item that has ended.
#[derive(Debug)]
pub(super) enum Item {
    Message(Vec<Part>),
    Reasoning(Reasoning),
    Call(Call),
    Done(String),
}

#[derive(Debug)]
pub(super) struct Part {
    pub(super) refusal: bool,
    pub(super) text: String,
}

#[derive(Debug, Default)]
pub(super) struct Reasoning {
    /// Whether the text is a summary of the reasoning instead of the reasoning itself.
    pub(super) summary: bool,
    /// Whether the text is visible to the caller.
    pub(super) shown: bool,
    pub(super) text: String,
    /// The part of a Messages vendor's signature that has arrived so far.
    pub(super) signature: String,
    pub(super) capsule: Option<String>,
}

#[derive(Debug, Default)]
pub(super) struct Call {
    /// The id, name and namespace of the tool call, as members of the item's JSON object.
    pub(super) head: String,
    /// The name of the tool, as a JSON string.
    pub(super) name: String,
    pub(super) custom: bool,
    pub(super) arguments: String,
}

impl Item {
    /// Returns the prefix of the ids of items of this kind.
    pub(super) const fn prefix(&self) -> &'static str {
        match self {
            Self::Message(_) => "msg",
            Self::Reasoning(_) => "rs",
            Self::Call(call) if call.custom => "ctc",
            Self::Call(_) | Self::Done(_) => "fc",
        }
    }

    /// Returns the JSON of the item with its content so far.
    pub(super) fn json(&self, id: ItemId, status: &str) -> String {
        match self {
            Self::Done(json) => json.clone(),
            Self::Message(parts) => {
                let parts = parts.iter().map(|part| part_json(part.refusal, &part.text));
                let parts = parts.collect::<Vec<_>>().join(",");
                format!(
                    "{{\"id\":\"{id}\",\"type\":\"message\",\"status\":\"{status}\",\"role\":\"assistant\",\
                     \"content\":[{parts}]}}"
                )
            }
            Self::Reasoning(reasoning) => reasoning.json(id, status),
            Self::Call(call) => {
                let (kind, field) = if call.custom {
                    ("custom_tool_call", "input")
                } else {
                    ("function_call", "arguments")
                };
                // While the item is in progress, its arguments are empty, even if some have already arrived.
                let arguments = match status {
                    "in_progress" => "",
                    _ => &call.arguments,
                };
                let head = &call.head;
                format!(
                    "{{\"id\":\"{id}\",\"type\":\"{kind}\",\"status\":\"{status}\",{head},\
                     \"{field}\":\"{arguments}\"}}"
                )
            }
        }
    }
}

impl Reasoning {
    fn json(&self, id: ItemId, status: &str) -> String {
        let mut text = String::new();
        if self.shown && !self.text.is_empty() && status != "in_progress" {
            let part = ReasoningNames::of(self.summary).part;
            text = format!("{{\"type\":\"{part}\",\"text\":\"{}\"}}", self.text);
        }
        // An item with a summary has no field `content`.
        let lists = match self.summary {
            true => format!("\"summary\":[{text}]"),
            false => format!("\"summary\":[],\"content\":[{text}]"),
        };
        let capsule = match &self.capsule {
            Some(capsule) => format!("\"{capsule}\""),
            None => "null".to_owned(),
        };
        format!(
            "{{\"id\":\"{id}\",\"type\":\"reasoning\",\"status\":\"{status}\",{lists},\
             \"encrypted_content\":{capsule}}}"
        )
    }
}

/// The id of an item. It consists of the item's kind, the request's number and the item's index.
#[derive(Clone, Copy, Debug)]
pub(super) struct ItemId {
    pub(super) prefix: &'static str,
    pub(super) number: Simple,
    pub(super) index: usize,
}

impl fmt::Display for ItemId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}_{}_{}", self.prefix, self.number, self.index)
    }
}

/// The names of the events and fields for reasoning. There is one set for summaries, and one for the reasoning itself.
pub(super) struct ReasoningNames {
    pub(super) part_added: &'static str,
    pub(super) delta: &'static str,
    pub(super) done: &'static str,
    pub(super) part_done: &'static str,
    pub(super) index: &'static str,
    pub(super) part: &'static str,
}

impl ReasoningNames {
    pub(super) const fn of(summary: bool) -> &'static Self {
        const SUMMARY: ReasoningNames = ReasoningNames {
            part_added: "response.reasoning_summary_part.added",
            delta: "response.reasoning_summary_text.delta",
            done: "response.reasoning_summary_text.done",
            part_done: "response.reasoning_summary_part.done",
            index: "summary_index",
            part: "summary_text",
        };
        const CONTENT: ReasoningNames = ReasoningNames {
            part_added: "response.content_part.added",
            delta: "response.reasoning_text.delta",
            done: "response.reasoning_text.done",
            part_done: "response.content_part.done",
            index: "content_index",
            part: "reasoning_text",
        };
        if summary { &SUMMARY } else { &CONTENT }
    }
}

pub(super) fn part_json(refusal: bool, text: &str) -> String {
    if refusal {
        format!("{{\"type\":\"refusal\",\"refusal\":\"{text}\"}}")
    } else {
        format!(
            "{{\"type\":\"output_text\",\"text\":\"{text}\",\"annotations\":[],\"logprobs\":[]}}"
        )
    }
}

/// Returns the free text of a tool call, which is the only string in the arguments. If the arguments have another form,
/// returns them unchanged.
pub(super) fn free_text(arguments: String) -> String {
    raw_fields! { struct Wrapped<'a> { input } }
    let decoded: Option<String> = serde_json::from_str(&format!("\"{arguments}\"")).ok();
    let found = decoded.as_deref().and_then(|json| {
        let wrapped: Wrapped<'_> = serde_json::from_str(json).ok()?;
        Some(inner(wrapped.input?)?.to_owned())
    });
    found.unwrap_or(arguments)
}
