//! The items of a responses answer, and their JSON.

use std::fmt;

use uuid::fmt::Simple;

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
    /// Whether the text is a summary of the reasoning, and not the reasoning itself.
    pub(super) summary: bool,
    /// Whether the caller gets the text.
    pub(super) shown: bool,
    pub(super) text: String,
    /// The signature of a messages vendor, as far as it has arrived.
    pub(super) signature: String,
    pub(super) capsule: Option<String>,
}

#[derive(Debug, Default)]
pub(super) struct Call {
    /// The call's id, name and namespace, as members of the item's JSON object.
    pub(super) head: String,
    pub(super) custom: bool,
    pub(super) arguments: String,
}

impl Item {
    /// Returns the prefix of the item's id.
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
                let parts: Vec<String> = parts
                    .iter()
                    .map(|part| part_json(part.refusal, &part.text))
                    .collect();
                format!(
                    "{{\"id\":\"{id}\",\"type\":\"message\",\"status\":\"{status}\",\"role\":\"assistant\",\
                     \"content\":[{}]}}",
                    parts.join(",")
                )
            }
            Self::Reasoning(reasoning) => reasoning.json(id, status),
            Self::Call(call) => {
                let (kind, field) = if call.custom {
                    ("custom_tool_call", "input")
                } else {
                    ("function_call", "arguments")
                };
                // While the item is in progress, its arguments are empty, even if some have arrived.
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
        let (mut summary, mut content) = (String::new(), String::new());
        if self.shown && !self.text.is_empty() && status != "in_progress" {
            let names = ReasoningNames::of(self.summary);
            let list = if self.summary {
                &mut summary
            } else {
                &mut content
            };
            *list = format!("{{\"type\":\"{}\",\"text\":\"{}\"}}", names.part, self.text);
        }
        // An item with a summary has no `content`.
        let content = if self.summary {
            String::new()
        } else {
            format!("\"content\":[{content}],")
        };
        let capsule = match &self.capsule {
            Some(capsule) => format!("\"{capsule}\""),
            None => "null".to_owned(),
        };
        format!(
            "{{\"id\":\"{id}\",\"type\":\"reasoning\",\"status\":\"{status}\",\"summary\":[{summary}],\
             {content}\"encrypted_content\":{capsule}}}"
        )
    }
}

impl Call {
    /// Returns the name of the tool, as a JSON string.
    pub(super) fn name(&self) -> &str {
        let (_, name) = self
            .head
            .split_once("\"name\":")
            .expect("a call's item has a name");
        name.split_once(",\"namespace\":")
            .map_or(name, |(name, _)| name)
    }
}

/// The id of an item, which consists of the item's kind, the request's number and the item's index.
#[derive(Clone, Copy, Debug)]
pub(super) struct ItemId {
    pub(super) prefix: &'static str,
    pub(super) number: Simple,
    pub(super) index: usize,
}

impl fmt::Display for ItemId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            prefix,
            number,
            index,
        } = self;
        write!(f, "{prefix}_{number}_{index}")
    }
}

/// The names of events and fields for reasoning: one set for summaries, one for the reasoning itself.
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

/// Returns the free text of a call: the only string in the arguments. If the arguments have another form, returns them
/// unchanged.
pub(super) fn free_text(arguments: String) -> String {
    #[derive(serde::Deserialize)]
    struct Wrapped<'a> {
        #[serde(borrow)]
        input: &'a serde_json::value::RawValue,
    }
    let decoded: Option<String> = serde_json::from_str(&format!("\"{arguments}\"")).ok();
    let found = decoded.as_deref().and_then(|json| {
        let wrapped: Wrapped<'_> = serde_json::from_str(json).ok()?;
        let text = wrapped.input.get();
        Some(text.strip_prefix('"')?.strip_suffix('"')?.to_owned())
    });
    found.unwrap_or(arguments)
}
