//! Sets the cache marks of a request to a Messages vendor: the caller's marks or, if the caller's format has none,
//! marks of the gateway.
//!
//! The vendor reads the tools, then the instructions, then the turns, and caches everything before a mark. It accepts
//! at most four marks. A mark with a longer lifetime must precede marks with a shorter one.

use super::write_request::{Block, Conversation, Tool};
use crate::{
    formats::{
        turn::request::{CacheSettings, Mark},
        wire::RequestCx,
    },
    model::CacheMarks,
};

/// The maximum number of marks in a request that vendors accept.
const MARKS_MAX: usize = 4;
/// The minimum size of a request, in bytes, to which the gateway adds marks. No vendor caches fewer than 1024 tokens,
/// and a token has about four bytes.
const PROMPT_BYTES_MIN: usize = 4096;
impl CacheSettings {
    /// Adds marks if the caller left caching to the vendor, and removes marks that the vendor would reject.
    pub(crate) fn place<'a>(
        self,
        tools: &mut [Tool<'a>],
        conversation: &mut Conversation<'a>,
        request_bytes: usize,
        cx: &RequestCx<'_>,
    ) {
        let marks = places(tools, conversation).filter_map(|place| *place);
        let (mut breakpoints, mut own) = (false, self.explicit);
        for mark in marks {
            breakpoints |= mark.breakpoint;
            own |= !mark.breakpoint;
        }
        if let Some(end) = self.end {
            conversation.mark_users_turns(1, end);
        } else if !own
            && cx.dialect.cache_marks == CacheMarks::Auto
            && request_bytes >= PROMPT_BYTES_MIN
        {
            place_ours(tools, conversation, breakpoints);
        }
        keep_last(tools, conversation, cx.cache.hour_priced);
    }
}

/// Marks the ends of the parts that later calls of the conversation repeat: the tools, the instructions, and each of
/// the user's last two turns. If the conversation is a single question without tools, no mark follows the question. If
/// the caller set breakpoints, only the user's last turn is marked, because OpenAI also does this.
fn place_ours<'a>(tools: &mut [Tool<'a>], conversation: &mut Conversation<'a>, breakpoints: bool) {
    let goes_on = !tools.is_empty() || conversation.is_answered();
    if !breakpoints {
        let tool = tools.last_mut().map(|tool| &mut tool.cache_control);
        let instruction = conversation.system.last_mut().and_then(Block::mark_mut);
        for place in tool.into_iter().chain(instruction) {
            *place = Some(Mark::default());
        }
    }
    if goes_on {
        let turns = if breakpoints { 1 } else { 2 };
        conversation.mark_users_turns(turns, Mark::default());
    }
}

/// If there are too many marks, keeps the last ones, because the longest prompts precede them. A one-hour mark after a
/// five-minute mark becomes a five-minute mark. If the model has no price for one-hour marks, all of them become
/// five-minute marks.
fn keep_last<'a>(tools: &mut [Tool<'a>], conversation: &mut Conversation<'a>, mut hours: bool) {
    let marked = places(tools, conversation).filter(|place| place.is_some());
    let mut marked: Vec<_> = marked.collect();
    let surplus = marked.len().saturating_sub(MARKS_MAX);
    for place in marked.drain(..surplus) {
        *place = None;
    }
    for mark in marked.into_iter().flatten() {
        hours &= mark.ttl.is_some();
        mark.ttl = mark.ttl.filter(|_| hours);
    }
}

/// Iterates over the places of all marks, in the order in which the vendor reads them.
fn places<'p, 'a: 'p>(
    tools: &'p mut [Tool<'a>],
    conversation: &'p mut Conversation<'a>,
) -> impl Iterator<Item = &'p mut Option<Mark>> {
    let tools = tools.iter_mut().map(|tool| &mut tool.cache_control);
    tools.chain(conversation.blocks_mut().filter_map(Block::mark_mut))
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use crate::{
        call::Format,
        formats::{
            turn::request::translate,
            wire::{CacheCx, RequestCx},
        },
        model::{CacheMarks, Dialect},
    };

    fn cx(dialect: &Dialect, hour_priced: bool) -> RequestCx<'_> {
        RequestCx {
            model: "m",
            output_tokens: 100,
            dialect,
            cache: CacheCx {
                hour_priced,
                ..CacheCx::default()
            },
        }
    }

    fn of_chat(dialect: &Dialect, hour_priced: bool, body: &Value) -> Value {
        let (body, cx) = (body.to_string(), cx(dialect, hour_priced));
        let body = translate(Format::Chat, Format::Messages, body.as_bytes(), "v", &cx);
        serde_json::from_slice(&body.unwrap()).unwrap()
    }

    fn of_responses(dialect: &Dialect, body: &Value) -> Value {
        let (body, cx) = (body.to_string(), cx(dialect, true));
        let body = translate(
            Format::Responses,
            Format::Messages,
            body.as_bytes(),
            "v",
            &cx,
        );
        serde_json::from_slice(&body.unwrap()).unwrap()
    }

    /// Returns the paths of the marks, such as `system.0`, each with its lifetime.
    fn marks(value: &Value) -> Vec<String> {
        fn walk(value: &Value, path: &str, found: &mut Vec<String>) {
            match value {
                Value::Object(fields) => {
                    if let Some(mark) = fields.get("cache_control") {
                        assert_eq!(mark["type"], "ephemeral");
                        let ttl = mark["ttl"].as_str().unwrap_or("5m");
                        found.push(format!("{path}:{ttl}"));
                    }
                    for (name, value) in fields {
                        walk(value, &format!("{path}.{name}"), found);
                    }
                }
                Value::Array(list) => {
                    for (index, value) in list.iter().enumerate() {
                        walk(value, &format!("{path}.{index}"), found);
                    }
                }
                _ => {}
            }
        }
        let mut found = Vec::new();
        for part in ["tools", "system", "messages"] {
            walk(&value[part], part, &mut found);
        }
        found
    }

    fn text(text: &str) -> Value {
        json!({ "type": "text", "text": text })
    }

    fn marked(mut value: Value, ttl: &str) -> Value {
        value["cache_control"] = match ttl {
            "" => json!({ "type": "ephemeral" }),
            ttl => json!({ "type": "ephemeral", "ttl": ttl }),
        };
        value
    }

    fn tool() -> Value {
        json!({ "type": "function", "function": { "name": "f" } })
    }

    fn called() -> Value {
        json!({ "role": "assistant", "content": null, "tool_calls": [
            { "id": "c", "type": "function", "function": { "name": "f", "arguments": "{}" } }] })
    }

    fn long() -> String {
        "word ".repeat(1000)
    }

    #[test]
    fn cache_marks_of_a_chat_caller_reach_a_messages_vendor_wherever_they_are() {
        let user = json!({ "role": "user", "content": "q" });
        let result =
            |content: Value| json!({ "role": "tool", "tool_call_id": "c", "content": content });
        let says = |role: &str, content: Value| json!({ "role": role, "content": content });
        let cases = [
            (vec![], vec![user.clone()], vec![]),
            (
                vec![marked(tool(), "")],
                vec![user.clone()],
                vec!["tools.0:5m"],
            ),
            (
                vec![json!({ "type": "function", "function": marked(json!({ "name": "f" }), "") })],
                vec![user.clone()],
                vec!["tools.0:5m"],
            ),
            (
                vec![],
                vec![
                    says("system", json!([marked(text("a"), ""), text("b")])),
                    user.clone(),
                ],
                vec!["system.0:5m"],
            ),
            (
                vec![],
                vec![marked(says("system", json!("a")), ""), user.clone()],
                vec!["system.0:5m"],
            ),
            (
                vec![],
                vec![says("user", json!([marked(text("a"), ""), text("b")]))],
                vec!["messages.0.content.0:5m"],
            ),
            (
                vec![],
                vec![says(
                    "user",
                    json!([{ "type": "text", "text": "a", "prompt_cache_breakpoint": { "mode": "explicit" } }]),
                )],
                vec!["messages.0.content.0:5m"],
            ),
            // A text of only white space is removed. Its mark moves to the text before it.
            (
                vec![],
                vec![says("user", json!([text("a"), marked(text(" "), "")]))],
                vec!["messages.0.content.0:5m"],
            ),
            (
                vec![],
                vec![says(
                    "user",
                    json!([marked(
                        json!({ "type": "image_url", "image_url": { "url": "https://h/i" } }),
                        ""
                    )]),
                )],
                vec!["messages.0.content.0:5m"],
            ),
            (
                vec![tool()],
                vec![user.clone(), marked(called(), ""), result(json!("x"))],
                vec!["messages.1.content.0:5m"],
            ),
            // A mark inside the content of a tool result moves to the whole result.
            (
                vec![tool()],
                vec![
                    user.clone(),
                    called(),
                    result(json!([marked(text("x"), ""), text("y")])),
                ],
                vec!["messages.2.content.0:5m"],
            ),
            (
                vec![tool()],
                vec![user.clone(), called(), marked(result(json!("x")), "")],
                vec!["messages.2.content.0:5m"],
            ),
        ];
        for (tools, messages, expected) in cases {
            let body = json!({ "model": "m", "tools": tools, "messages": messages });
            let sent = of_chat(&Dialect::default(), true, &body);
            assert_eq!(marks(&sent), expected, "{body}");
        }
        let body = json!({ "model": "m", "cache_control": { "type": "ephemeral", "ttl": "1h" },
            "messages": [user, { "role": "assistant", "content": "a" }, { "role": "user", "content": [text("b"), text("c")] }] });
        let sent = of_chat(&Dialect::default(), true, &body);
        assert_eq!(marks(&sent), ["messages.2.content.1:1h"]);
        assert!(sent.get("cache_control").is_none());
    }

    #[test]
    fn last_four_cache_marks_are_kept_and_longer_lifetimes_precede_shorter_ones() {
        let parts = |ttls: &[&str]| -> Value {
            ttls.iter()
                .map(|ttl| marked(text("a"), ttl))
                .collect::<Vec<_>>()
                .into()
        };
        let cases: [(&[&str], bool, &[&str]); 6] = [
            (
                &["", "", "", "", "", ""][..],
                true,
                &["2:5m", "3:5m", "4:5m", "5:5m"],
            ),
            (
                &["1h", "1h", "", "5m"],
                true,
                &["0:1h", "1:1h", "2:5m", "3:5m"],
            ),
            (&["1h", "", "1h"], true, &["0:1h", "1:5m", "2:5m"]),
            (
                &["", "1h", "1h", "1h", "1h"],
                true,
                &["1:1h", "2:1h", "3:1h", "4:1h"],
            ),
            // A mark becomes a five-minute mark if the model has no price for an hour, or if the mark's lifetime is
            // unknown.
            (&["1h", "2h"], false, &["0:5m", "1:5m"]),
            (&["2h"], true, &["0:5m"]),
        ];
        for (ttls, hours, expected) in cases {
            let body =
                json!({ "model": "m", "messages": [{ "role": "user", "content": parts(ttls) }] });
            let sent = of_chat(&Dialect::default(), hours, &body);
            let expected: Vec<_> = expected
                .iter()
                .map(|place| format!("messages.0.content.{place}"))
                .collect();
            assert_eq!(marks(&sent), expected, "{ttls:?}");
        }
    }

    #[test]
    fn responses_cache_breakpoints_become_marks_and_the_prompts_end_is_marked_unless_disabled() {
        let point = json!({ "mode": "explicit" });
        let part = |text: &str| json!({ "type": "input_text", "text": text });
        let pointed = |text: &str| json!({ "type": "input_text", "text": text, "prompt_cache_breakpoint": point });
        let say = |role: &str, content: Value| json!({ "role": role, "content": content });
        let input = json!([
            say("developer", json!([pointed("rules")])),
            say("user", json!([pointed(&long()), part("q")])),
            { "type": "function_call", "call_id": "c", "name": "f", "arguments": "{}" },
            { "type": "function_call_output", "call_id": "c", "output": [pointed("x"), part("y")] },
            say("user", json!([part("go on")])),
        ]);
        let own = [
            "system.0:5m",
            "messages.0.content.0:5m",
            "messages.2.content.0:5m",
        ];
        let with_end = [own.as_slice(), &["messages.2.content.1:5m"]].concat();
        for (mode, setting, expected) in [
            (json!(null), CacheMarks::Auto, with_end.as_slice()),
            (
                json!({ "mode": "implicit" }),
                CacheMarks::Auto,
                with_end.as_slice(),
            ),
            (
                json!({ "mode": "explicit" }),
                CacheMarks::Auto,
                own.as_slice(),
            ),
            (json!(null), CacheMarks::Never, own.as_slice()),
        ] {
            let body = json!({ "model": "m", "input": input, "prompt_cache_options": mode });
            let dialect = Dialect::default().cache_marks(setting);
            assert_eq!(marks(&of_responses(&dialect, &body)), expected, "{mode}");
        }
    }

    #[test]
    fn caller_without_cache_marks_gets_the_marks_that_the_vendors_guide_recommends() {
        let auto = Dialect::default();
        let says = |role: &str, text: &str| json!({ "role": role, "content": text });
        let conversation = json!([
            says("system", &long()),
            says("user", "one"),
            says("assistant", "two"),
            says("user", "three"),
        ]);
        let chat = |messages: &Value| json!({ "model": "m", "messages": messages });
        let tail = [
            "system.0:5m",
            "messages.0.content.0:5m",
            "messages.2.content.0:5m",
        ];
        assert_eq!(marks(&of_chat(&auto, true, &chat(&conversation))), tail);
        // A single question gets no mark, because writing to the cache costs money and the conversation may never be
        // continued.
        let lone = json!([says("system", &long()), says("user", "one")]);
        assert_eq!(marks(&of_chat(&auto, true, &chat(&lone))), ["system.0:5m"]);
        let mut with_tools = chat(&lone);
        with_tools["tools"] = json!([tool(), { "type": "function", "function": { "name": "g" } }]);
        assert_eq!(
            marks(&of_chat(&auto, true, &with_tools)),
            ["tools.1:5m", "system.0:5m", "messages.0.content.0:5m"]
        );
        let codex = json!({ "model": "m", "instructions": long(),
            "tools": [{ "type": "function", "name": "f" }],
            "input": [says("user", "q"), { "type": "function_call", "call_id": "c", "name": "f", "arguments": "{}" },
                { "type": "function_call_output", "call_id": "c", "output": "x" }] });
        assert_eq!(
            marks(&of_responses(&auto, &codex)),
            [
                "tools.0:5m",
                "system.0:5m",
                "messages.0.content.0:5m",
                "messages.2.content.0:5m"
            ]
        );
        // No marks are added if the conversation is too short to be cached, if the caller has disabled or set marks, or
        // if the operator has disabled them.
        let short = json!([
            says("system", "s"),
            says("user", "a"),
            says("assistant", "b"),
            says("user", "c")
        ]);
        assert!(marks(&of_chat(&auto, true, &chat(&short))).is_empty());
        let mut explicit = chat(&conversation);
        explicit["prompt_cache_options"] = json!({ "mode": "explicit" });
        assert!(marks(&of_chat(&auto, true, &explicit)).is_empty());
        let mut own = chat(&conversation);
        own["messages"][1] = json!({ "role": "user", "content": [marked(text("one"), "")] });
        assert_eq!(
            marks(&of_chat(&auto, true, &own)),
            ["messages.0.content.0:5m"]
        );
        let never = Dialect::default().cache_marks(CacheMarks::Never);
        assert!(marks(&of_chat(&never, true, &chat(&conversation))).is_empty());
        assert!(marks(&of_responses(&never, &codex)).is_empty());
    }

    #[test]
    fn growing_conversation_keeps_its_cache_marked_prefix() {
        let says = |role: &str, text: &str| json!({ "role": role, "content": text });
        let all = [
            says("system", "rules"),
            says("user", "one"),
            says("assistant", "two"),
            says("developer", "in verse"),
            says("user", "three"),
            says("assistant", "four"),
            says("system", "in prose"),
            says("assistant", "five"),
            says("user", "six"),
        ];
        let whole = of_chat(
            &Dialect::default(),
            true,
            &json!({ "model": "m", "messages": all }),
        );
        for length in [2, 3, 5, 6, 9] {
            let body = json!({ "model": "m", "messages": all[..length] });
            let sent = of_chat(&Dialect::default(), true, &body);
            assert_eq!(sent["system"], whole["system"], "{length}");
            let turns = sent["messages"].as_array().unwrap();
            assert_eq!(
                turns[..],
                whole["messages"].as_array().unwrap()[..turns.len()],
                "{length}"
            );
            let body = json!({ "model": "m", "input": all[..length] });
            assert_eq!(
                of_responses(&Dialect::default(), &body)["messages"],
                sent["messages"],
                "{length}"
            );
        }
        assert_eq!(
            whole["messages"][2]["content"][0]["text"],
            "<system>\nin verse\n</system>"
        );
        assert_eq!(
            whole["messages"][4]["content"][0]["text"],
            "<system>\nin prose\n</system>"
        );
    }
}
