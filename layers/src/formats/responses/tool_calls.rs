//! Counts the calls of tools that the vendor ran. Responses report them as a number next to the usage, and as items.
//! The gateway refuses requests for such tools, so any such call that nevertheless occurs is reported.

use memchr::memmem;
use serde_json::{Value, value::RawValue};

use super::meter::kind_of;
use crate::{json::members, price::Class, vendor_usage::VendorUsage};

/// The calls of the vendor's tools in a response that have been counted so far.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct ToolCalls {
    /// The number of web searches that the vendor states. `None` if it states none.
    searches_told: Option<u64>,
    /// The number of output items that are web searches.
    searches_seen: u64,
    /// Whether the vendor ran a tool that has no price.
    unknown: bool,
}

impl ToolCalls {
    /// Reads a complete response, given as JSON.
    pub(super) fn of(answer: &str) -> Self {
        let mut calls = Self::default();
        // Most responses have neither the field `tool_usage` nor a tool call. Such responses need not be parsed.
        let has = |text: &str| memmem::find(answer.as_bytes(), text.as_bytes()).is_some();
        if !has("\"tool_usage\"") && !has("_call\"") {
            return calls;
        }
        let Ok([reported, output]) = members(answer, &["tool_usage", "output"]) else {
            return calls;
        };
        calls.count(reported);
        let items = output.and_then(|output| serde_json::from_str::<Vec<&RawValue>>(output).ok());
        for item in items.into_iter().flatten() {
            calls.item(&kind_of(item.get()), item.get());
        }
        calls
    }

    /// Records an output item of this type if it is a call of a vendor's tool.
    pub(super) fn item(&mut self, kind: &str, item: &str) {
        match kind {
            // Only searches are billed. Opening a page that a search has found is free.
            "web_search_call" if is_of_a_page(item) => {}
            "web_search_call" => self.searches_seen += 1,
            "file_search_call"
            | "code_interpreter_call"
            | "image_generation_call"
            | "x_search_call"
            | "document_search_call" => self.unknown = true,
            _ => {}
        }
    }

    /// Combines the tool calls in earlier items of the stream with the tool calls in the last event.
    pub(super) fn after(mut self, earlier: Self) -> Self {
        self.searches_seen = self.searches_seen.max(earlier.searches_seen);
        self.unknown |= earlier.unknown;
        self
    }

    /// Returns whether the vendor ran any tool that is billed.
    pub(super) fn any(self) -> bool {
        self.unknown || self.searches() > 0
    }

    /// Adds these tool calls to the usage that the vendor reported.
    pub(super) fn within(self, mut usage: VendorUsage) -> VendorUsage {
        let searches = usage.usage.classes.get_mut(Class::WebSearchCall);
        *searches = (*searches).max(self.searches());
        usage.unknown |= self.unknown;
        usage
    }

    fn searches(self) -> u64 {
        self.searches_told.unwrap_or(self.searches_seen)
    }

    /// Reads `tool_usage`, which has one object per tool.
    fn count(&mut self, reported: Option<&str>) {
        let Some(reported) = reported.filter(|reported| *reported != "null") else {
            return;
        };
        let Ok(Value::Object(mut tools)) = serde_json::from_str(reported) else {
            self.unknown = true;
            return;
        };
        if let Some(search) = tools.remove("web_search").filter(|it| !it.is_null()) {
            self.searches_told = search["num_requests"].as_u64();
            self.unknown |= self.searches_told.is_none();
        }
        self.unknown |= tools.values().any(counts_something);
    }
}

/// Returns whether the value contains a number other than zero, at any depth.
fn counts_something(value: &Value) -> bool {
    match value {
        Value::Number(number) => number.as_f64() != Some(0.0),
        Value::Array(values) => values.iter().any(counts_something),
        Value::Object(fields) => fields.values().any(counts_something),
        _ => false,
    }
}

/// Returns whether a search call only opened a page that was found, or only searched within such a page.
fn is_of_a_page(item: &str) -> bool {
    let action = members(item, &["action"]).ok().and_then(|[action]| action);
    action.is_some_and(|action| matches!(&*kind_of(action), "open_page" | "find_in_page"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn calls_of_tools_that_the_vendor_runs_are_counted_in_every_form() {
        let item = |kind: &str| format!(r#"{{"type":"{kind}","id":"x"}}"#);
        let search = item("web_search_call");
        let opened =
            r#"{"type":"web_search_call","action":{"type":"open_page","url":"https://x"}}"#;
        let searched = r#"{"type":"web_search_call","action":{"type":"search","query":"x"}}"#;
        let nothing = r#"{"image_gen":{"input_tokens":0,"input_tokens_details":{"text_tokens":0}},"web_search":{"num_requests":0}}"#;
        let reported = |count: &str| format!(r#"{{"web_search":{{"num_requests":{count}}}}}"#);
        // Columns: the `tool_usage`; the output items; the number of searches; whether the vendor ran a tool without a
        // price.
        for (tools, output, searches, unknown) in [
            ("null", "", 0, false),
            (nothing, &*item("message"), 0, false),
            ("null", &*item("function_call"), 0, false),
            ("null", &*item("shell_call"), 0, false),
            ("null", &*search, 1, false),
            ("null", &*format!("{search},{searched},{opened}"), 2, false),
            (&*reported("3"), "", 3, false),
            // The number that the vendor states takes precedence over the number of items.
            (&*reported("1"), &*format!("{search},{searched}"), 1, false),
            (&*reported("\"3\""), "", 0, true),
            (&*reported("-1"), &*search, 1, true),
            ("7", "", 0, true),
            (r#"{"image_gen":{"output_tokens":7}}"#, "", 0, true),
            (r#"{"file_search":{"num_requests":1}}"#, "", 0, true),
            ("null", &*item("file_search_call"), 0, true),
            ("null", &*item("code_interpreter_call"), 0, true),
        ] {
            let answer = format!(r#"{{"output":[{output}],"tool_usage":{tools}}}"#);
            let calls = ToolCalls::of(&answer);
            let read = (calls.searches(), calls.unknown);
            assert_eq!(read, (searches, unknown), "{answer}");
        }
        assert!(!ToolCalls::of("{}").any());
        assert!(!ToolCalls::of("no JSON, and a \"tool_usage\"").any());
    }

    #[test]
    fn tool_calls_in_stream_items_count_if_the_last_event_does_not_repeat_them() {
        let mut earlier = ToolCalls::default();
        earlier.item("web_search_call", "{}");
        earlier.item("code_interpreter_call", "{}");
        let last = ToolCalls::of("{}").after(earlier);
        assert_eq!((last.searches(), last.unknown), (1, true));
        let last = ToolCalls::of(r#"{"output":[{"type":"web_search_call"}]}"#).after(earlier);
        assert_eq!(last.searches(), 1);
    }
}
