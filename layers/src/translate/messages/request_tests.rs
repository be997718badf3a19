//! Numbered cases of a Messages request that is translated for a Chat Completions vendor.

use serde_json::{Value as Tree, json};

use super::thinking_asked;
use crate::{
    call::Format,
    error::{Error, Problem},
    formats::{
        capsule,
        turn::request::translate,
        wire::{CacheCx, RequestCx},
    },
    model::{Dialect, OutputField, SystemRole},
};

fn request(body: &[u8], vendor: &str, cx: &RequestCx<'_>) -> Result<bytes::Bytes, Error> {
    translate(Format::Messages, Format::Chat, body, vendor, cx)
}

fn with(dialect: &Dialect, body: &Tree) -> Result<Tree, Error> {
    let cx = RequestCx {
        model: "vendor-model",
        output_tokens: 77,
        dialect,
        cache: CacheCx::default(),
    };
    let chat = request(body.to_string().as_bytes(), "deep", &cx)?;
    Ok(serde_json::from_slice(&chat).unwrap())
}

/// Returns a request with these fields and the required fields.
fn requested(fields: &Tree) -> Tree {
    let mut body = json!({
        "model": "catalog-model",
        "max_tokens": 99,
        "messages": [{"role": "user", "content": "hi"}],
    });
    for (name, value) in fields.as_object().unwrap() {
        body[name] = value.clone();
    }
    body
}

fn chat(fields: &Tree) -> Tree {
    with(&Dialect::default(), &requested(fields)).unwrap()
}

fn refused(fields: &Tree) -> (String, Problem) {
    match with(&Dialect::default(), &requested(fields)) {
        Err(Error::Invalid { field, problem }) => (field.into_owned(), problem),
        other => panic!("{fields}: {other:?}"),
    }
}

/// Returns the Chat Completions messages to which these messages are translated.
fn reported(messages: &Tree) -> Tree {
    chat(&json!({ "messages": messages }))["messages"].take()
}

fn tool(name: &str) -> Tree {
    json!({"name": name, "input_schema": {"type": "object", "properties": {}}})
}

#[test]
fn case_32_system_blocks_become_one_message_with_separators() {
    for (system, text) in [
        (json!("be brief"), "be brief"),
        (json!([{"type": "text", "text": "one"}]), "one"),
        (
            json!([{"type": "text", "text": "one"}, {"type": "text", "text": ""},
                   {"type": "text", "text": "\"two\""}]),
            "one\n\"two\"",
        ),
        // The billing line is meant for the Messages vendor, and it changes from call to call. So it is left out.
        (
            json!([{"type": "text", "text": "x-anthropic-billing-header: cch=1;"}, {"type": "text", "text": "one"}]),
            "one",
        ),
        (
            json!("x-anthropic-billing-header: cch=1;\none\ntwo"),
            "one\ntwo",
        ),
        (
            json!("of x-anthropic-billing-header: cch=1;"),
            "of x-anthropic-billing-header: cch=1;",
        ),
    ] {
        assert_eq!(
            chat(&json!({ "system": system }))["messages"],
            json!([{"role": "system", "content": text}, {"role": "user", "content": "hi"}])
        );
    }
    let billing = json!("x-anthropic-billing-header: cch=1;\n");
    for nothing in [json!(""), json!([]), json!(null), billing] {
        assert_eq!(
            chat(&json!({ "system": nothing }))["messages"],
            json!([{"role": "user", "content": "hi"}])
        );
    }
    let dialect = Dialect {
        system_role: Some(SystemRole::Developer),
        ..Dialect::default()
    };
    let chat = with(&dialect, &requested(&json!({"system": "s"}))).unwrap();
    assert_eq!(chat["messages"][0]["role"], "developer");
}

#[test]
fn case_33_assistant_text_and_tool_use_become_content_and_tool_calls() {
    assert_eq!(
        reported(&json!([{"role": "assistant", "content": [
            {"type": "text", "text": "Let me "},
            {"type": "tool_use", "id": "toolu_1", "name": "f", "input": {"a": 1}},
            {"type": "text", "text": "see."},
            {"type": "tool_use", "id": "toolu_2", "name": "g", "input": {}},
        ]}])),
        json!([{"role": "assistant", "content": "Let me see.", "tool_calls": [
            {"id": "toolu_1", "type": "function", "function": {"name": "f", "arguments": "{\"a\":1}"}},
            {"id": "toolu_2", "type": "function", "function": {"name": "g", "arguments": "{}"}},
        ]}])
    );
    let alone = reported(&json!([{"role": "assistant", "content": [
        {"type": "tool_use", "id": "t", "name": "f", "input": {}},
    ]}]));
    assert_eq!(alone[0].get("content"), Some(&Tree::Null));
}

#[test]
fn case_34_tool_input_becomes_compact_arguments_and_numbers_are_unchanged() {
    for (input, arguments) in [
        ("{}", "{}"),
        ("{ }", "{}"),
        (
            r#"{ "n" : 12345678901234567890123, "e": 1.50e+400, "b": [ 1 , 2 ], "a": "x y\n\"" }"#,
            r#"{"n":12345678901234567890123,"e":1.50e+400,"b":[1,2],"a":"x y\n\""}"#,
        ),
    ] {
        let body = format!(
            r#"{{"model":"m","max_tokens":1,"messages":[{{"role":"assistant","content":
            [{{"type":"tool_use","id":"t","name":"f","input":{input}}}]}}]}}"#
        );
        let cx = RequestCx {
            model: "v",
            output_tokens: 1,
            dialect: &Dialect::default(),
            cache: CacheCx::default(),
        };
        let chat: Tree =
            serde_json::from_slice(&request(body.as_bytes(), "deep", &cx).unwrap()).unwrap();
        assert_eq!(
            chat["messages"][0]["tool_calls"][0]["function"]["arguments"],
            arguments
        );
    }
}

#[test]
fn case_35_tool_results_precede_the_users_content() {
    let expected = json!([
        {"role": "tool", "tool_call_id": "a", "content": "1"},
        {"role": "tool", "tool_call_id": "b", "content": "2"},
        {"role": "user", "content": "and now?"},
    ]);
    let results = [
        json!({"type": "tool_result", "tool_use_id": "a", "content": "1"}),
        json!({"type": "tool_result", "tool_use_id": "b", "content": "2"}),
    ];
    let text = json!({"type": "text", "text": "and now?"});
    for order in [
        json!([results[0], results[1], text]),
        json!([results[0], text, results[1]]),
        json!([text, results[0], results[1]]),
    ] {
        assert_eq!(
            reported(&json!([{"role": "user", "content": order}])),
            expected
        );
    }
    assert_eq!(
        reported(&json!([{"role": "user", "content": results}])),
        json!([expected[0], expected[1]]),
        "nothing is said where the user said nothing"
    );
}

fn result(fields: &Tree) -> Tree {
    let mut block = json!({"type": "tool_result", "tool_use_id": "t"});
    for (name, value) in fields.as_object().unwrap() {
        block[name] = value.clone();
    }
    reported(&json!([{"role": "user", "content": [block]}]))
}

#[test]
fn case_36_tool_result_becomes_text_whatever_its_shape() {
    for (fields, text) in [
        (json!({"content": "x"}), "x"),
        (json!({"content": [{"type": "text", "text": "x"}]}), "x"),
        (
            json!({"content": [{"type": "text", "text": "x"}, {"type": "text", "text": "y"}]}),
            "x\ny",
        ),
        (json!({"content": []}), ""),
        (json!({"content": ""}), ""),
        (json!({"content": null}), ""),
        (json!({}), ""),
    ] {
        assert_eq!(
            result(&fields),
            json!([{"role": "tool", "tool_call_id": "t", "content": text}])
        );
    }
}

#[test]
fn case_37_image_in_a_tool_result_follows_in_a_user_message() {
    let image = json!({"type": "image",
        "source": {"type": "base64", "media_type": "image/png", "data": "AAAA"}});
    let url = json!({"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA"}});
    assert_eq!(
        result(&json!({"content": [{"type": "text", "text": "seen"}, image]})),
        json!([
            {"role": "tool", "tool_call_id": "t", "content": "seen"},
            {"role": "user", "content": [url]},
        ])
    );
    assert_eq!(
        result(&json!({"content": [image]}))[0]["content"],
        "See the next message."
    );
    assert_eq!(
        reported(&json!([{"role": "user", "content": [
            {"type": "tool_result", "tool_use_id": "a", "content": [image]},
            {"type": "tool_result", "tool_use_id": "b", "content": "text"},
            {"type": "text", "text": "look"},
        ]}]))[2],
        json!({"role": "user", "content": [url, {"type": "text", "text": "look"}]})
    );
}

#[test]
fn case_38_failed_tool_result_is_still_marked_as_an_error() {
    for (fields, text) in [
        (
            json!({"is_error": true, "content": "no such file"}),
            "Error: no such file",
        ),
        (json!({"is_error": true}), "Error"),
        (json!({"is_error": false, "content": "fine"}), "fine"),
    ] {
        assert_eq!(result(&fields)[0]["content"], text);
    }
}

#[test]
fn case_39_images_become_data_urls_and_image_urls_stay() {
    let image = |source: Tree| {
        reported(&json!([{"role": "user", "content": [{"type": "image", "source": source}]}]))
    };
    assert_eq!(
        image(json!({"type": "base64", "media_type": "image/webp", "data": "aGk="})),
        json!([{"role": "user", "content": [
            {"type": "image_url", "image_url": {"url": "data:image/webp;base64,aGk="}}]}])
    );
    assert_eq!(
        image(json!({"type": "url", "url": "https://example.com/a?b=c"}))[0]["content"][0]["image_url"],
        json!({"url": "https://example.com/a?b=c"})
    );
    let refused = |source: Tree| {
        refused(&json!({"messages": [{"role": "user",
            "content": [{"type": "image", "source": source}]}]}))
    };
    let field = |name: &str| format!("messages[0].content[0].source.{name}");
    assert_eq!(
        refused(json!({"type": "base64", "media_type": "image/tiff", "data": "x"})).0,
        field("media_type")
    );
    assert_eq!(
        refused(json!({"type": "file", "file_id": "f"})),
        (field("type"), Problem::NotOneOf("base64, url"))
    );
    assert_eq!(
        refused(json!({"type": "base64", "media_type": "image/png", "data": 5})),
        (field("data"), Problem::WrongType("string"))
    );
}

#[test]
fn case_40_documents_become_files_or_text() {
    let document = |fields: Tree| {
        let mut block = json!({"type": "document"});
        for (name, value) in fields.as_object().unwrap() {
            block[name] = value.clone();
        }
        requested(&json!({"messages": [{"role": "user", "content": [block]}]}))
    };
    let reported = |fields: Tree| {
        let body = document(fields);
        with(&Dialect::default(), &body).unwrap()["messages"][0]["content"].take()
    };
    let pdf = json!({"type": "base64", "media_type": "application/pdf", "data": "JVBE"});
    let file = |name: &str| {
        json!({"type": "file", "file":
            {"filename": name, "file_data": "data:application/pdf;base64,JVBE"}})
    };
    assert_eq!(
        reported(json!({"source": pdf})),
        json!([file("document.pdf")])
    );
    assert_eq!(
        reported(
            json!({"source": pdf, "title": "Report", "context": "of May",
                    "citations": {"enabled": true}})
        ),
        json!([{"type": "text", "text": "of May"}, file("Report.pdf")])
    );
    assert_eq!(
        reported(json!({"source": pdf, "title": "a.PDF"})),
        json!([file("a.PDF")])
    );
    let text = json!({"type": "text", "media_type": "text/plain", "data": "body"});
    assert_eq!(reported(json!({"source": text})), json!("body"));
    assert_eq!(
        reported(json!({"source": text, "title": "T", "context": "C"})),
        json!("T\nC\nbody")
    );
    assert_eq!(
        reported(
            json!({"title": "T", "source": {"type": "content", "content": [
            {"type": "text", "text": "a"}, {"type": "text", "text": "b"}]}})
        ),
        json!([{"type": "text", "text": "T"}, {"type": "text", "text": "a"},
               {"type": "text", "text": "b"}])
    );
    let body = document(json!({"source": {"type": "url", "url": "https://example.com/a.pdf"}}));
    assert!(matches!(
        with(&Dialect::default(), &body),
        Err(Error::Invalid { field, .. }) if field == "messages[0].content[0].source.type"
    ));
}

#[test]
fn search_result_becomes_text() {
    assert_eq!(
        reported(
            &json!([{"role": "user", "content": [{"type": "search_result",
            "source": "https://example.com", "title": "T",
            "content": [{"type": "text", "text": "found"}]}]}])
        ),
        json!([{"role": "user", "content": "T\nhttps://example.com\nfound"}])
    );
}

#[test]
fn case_41_thinking_in_the_conversation_never_becomes_text() {
    let thought = json!({"type": "thinking", "thinking": "hm", "signature": "s"});
    let redacted = json!({"type": "redacted_thinking", "data": "d"});
    assert_eq!(
        reported(&json!([
            {"role": "assistant", "content": [thought, redacted, {"type": "text", "text": "4"}]},
            {"role": "assistant", "content": [thought]},
            {"role": "user", "content": "why?"},
        ])),
        json!([{"role": "assistant", "content": "4"}, {"role": "user", "content": "why?"}])
    );
}

#[test]
fn thinking_returns_to_the_vendor_with_the_tool_calls_after_it() {
    let thinking = |fields: Tree| {
        let mut block = json!({"type": "thinking", "thinking": "hm"});
        block
            .as_object_mut()
            .unwrap()
            .extend(fields.as_object().unwrap().clone());
        block
    };
    let unmarked = thinking(json!({"signature": ""}));
    let call = json!({"type": "tool_use", "id": "c", "name": "f", "input": {}});
    let text = json!({"type": "text", "text": "x"});
    let state = r#"{"type":"chat_state","field":"reasoning","calls":{"c":{"s":1}}}"#;
    let ours = |vendor| thinking(json!({"signature": capsule::seal(vendor, state)}));
    let none = json!([null, null, null]);
    for (content, expected) in [
        (json!([unmarked, call]), json!(["hm", null, null])),
        (
            json!([thinking(json!({})), text, call]),
            json!(["hm", null, null]),
        ),
        (
            json!([thinking(json!({"signature": "EqQB"})), call]),
            none.clone(),
        ),
        (json!([ours("deep"), call]), json!([null, "hm", {"s": 1}])),
        // The capsule with the signature of a tool call may follow the tool call.
        (json!([call, ours("deep")]), json!([null, "hm", {"s": 1}])),
        (json!([ours("other"), call]), none.clone()),
        (json!([unmarked, text]), none.clone()),
    ] {
        let message =
            reported(&json!([{"role": "assistant", "content": content}])).take()[0].take();
        let back = [
            &message["reasoning_content"],
            &message["reasoning"],
            &message["tool_calls"][0]["extra_content"],
        ];
        assert_eq!(json!(back), expected, "{content}");
    }
    // Reasoning that is alone in a turn belongs to the assistant's next turn, unless a turn of the user is before that
    // turn.
    let turn = |role: &str, content: Tree| json!({"role": role, "content": content});
    let apart = reported(&json!([
        turn("assistant", json!([unmarked])),
        turn("assistant", json!([call]))
    ]));
    assert_eq!(apart[0]["reasoning_content"], "hm");
    let before = reported(&json!([
        turn("assistant", json!([unmarked])),
        turn("user", json!("x")),
        turn("assistant", json!([call]))
    ]));
    assert_eq!(before[1].get("reasoning_content"), None);
}

#[test]
fn names_over_64_characters_are_shortened_wherever_they_occur() {
    let long = "n".repeat(65);
    let sent = chat(&json!({
        "tools": [tool(&long)], "tool_choice": {"type": "tool", "name": long},
        "messages": [
            {"role": "assistant", "content": [{"type": "tool_use", "id": "c", "name": long, "input": {}}]},
            {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "c", "content": [
                {"type": "tool_reference", "tool_name": long}, {"type": "tool_reference", "tool_name": "f"}]}]}],
    }));
    let short = sent["tools"][0]["function"]["name"].as_str().unwrap();
    assert_eq!(
        (short.len(), &short[..48]),
        (64, &*format!("{}-", &long[..47]))
    );
    assert_eq!(sent["tool_choice"]["function"]["name"], short);
    assert_eq!(
        sent["messages"][0]["tool_calls"][0]["function"]["name"],
        short
    );
    assert_eq!(sent["messages"][1]["content"], format!("{short}\nf"));
}

#[test]
fn case_42_tools_that_a_messages_vendor_defines_are_refused_by_name() {
    for kind in [
        "bash_20250124",
        "text_editor_20250728",
        "computer_20250124",
        "memory_20250818",
        "web_search_20250305",
        "tool_search_tool_regex_20251119",
    ] {
        assert_eq!(
            refused(&json!({"tools": [tool("f"), {"type": kind, "name": "x"}]})),
            ("tools[1].type".to_owned(), Problem::NotTranslated)
        );
    }
    assert_eq!(
        refused(&json!({"messages": [{"role": "assistant", "content": [
            {"type": "server_tool_use", "id": "s", "name": "web_search", "input": {}}]}]})),
        (
            "messages[0].content[0].type".to_owned(),
            Problem::NotTranslated
        )
    );
}

#[test]
fn tools_become_functions_with_the_schema_as_written() {
    let schema = json!({"$schema": "https://json-schema.org/draft/2020-12/schema",
        "type": "object", "properties": {"a": {"type": "string"}}, "required": ["a"],
        "additionalProperties": false});
    assert_eq!(
        chat(
            &json!({"tools": [{"type": "custom", "name": "f", "description": "d", "strict": true,
            "input_schema": schema, "cache_control": {"type": "ephemeral"},
            "eager_input_streaming": true, "defer_loading": false, "allowed_callers": ["direct"],
            "input_examples": [{"a": "x"}]}]})
        )["tools"],
        json!([{"type": "function", "function":
            {"name": "f", "description": "d", "parameters": schema, "strict": true}}])
    );
    for (schema, parameters) in [
        (json!(null), json!({"type": "object", "properties": {}})),
        (json!({}), json!({"type": "object", "properties": {}})),
        (
            json!({"type": "object"}),
            json!({"type": "object", "properties": {}}),
        ),
        (
            json!({"oneOf": [{"type": "object"}]}),
            json!({"type": "object", "properties": {}, "oneOf": [{"type": "object"}]}),
        ),
    ] {
        assert_eq!(
            chat(&json!({"tools": [{"name": "f", "input_schema": schema}]}))["tools"][0]["function"]
                ["parameters"],
            parameters
        );
    }
    assert!(chat(&json!({"tools": []})).get("tools").is_none());
}

#[test]
fn case_43_tool_choice_and_the_inverted_parallel_flag_are_translated() {
    for (choice, expected, parallel) in [
        (json!({"type": "auto"}), json!("auto"), Tree::Null),
        (json!({"type": "any"}), json!("required"), Tree::Null),
        (json!({"type": "none"}), json!("none"), Tree::Null),
        (
            json!({"type": "tool", "name": "f"}),
            json!({"type": "function", "function": {"name": "f"}}),
            Tree::Null,
        ),
        (
            json!({"type": "auto", "disable_parallel_tool_use": true}),
            json!("auto"),
            json!(false),
        ),
        (
            json!({"type": "any", "disable_parallel_tool_use": false}),
            json!("required"),
            Tree::Null,
        ),
    ] {
        let chat = chat(&json!({"tools": [tool("f")], "tool_choice": choice}));
        assert_eq!(chat["tool_choice"], expected);
        assert_eq!(chat["parallel_tool_calls"], parallel);
    }
    let alone = json!({"tool_choice": {"type": "auto", "disable_parallel_tool_use": true}});
    let chat = chat(&alone);
    assert!(chat.get("tool_choice").is_none() && chat.get("parallel_tool_calls").is_none());
    assert_eq!(
        refused(&json!({"tool_choice": {"type": "any"}})),
        ("tool_choice".to_owned(), Problem::Contradicts("tools"))
    );
}

#[test]
fn case_44_up_to_four_stop_sequences_are_sent_and_top_k_is_not() {
    let chat = chat(&json!({"stop_sequences": ["a", "\n\nb"], "top_k": 5}));
    assert_eq!(chat["stop"], json!(["a", "\n\nb"]));
    assert!(chat.get("top_k").is_none() && chat.get("stop_sequences").is_none());
    assert_eq!(
        refused(&json!({"stop_sequences": ["a", "b", "c", "d", "e"]})),
        ("stop_sequences".to_owned(), Problem::AboveMax(4))
    );
    assert_eq!(
        refused(&json!({"stop_sequences": ["a", 1]})).0,
        "stop_sequences[1]"
    );
}

#[test]
fn case_45_cache_control_is_not_sent() {
    let mark = json!({"type": "ephemeral", "ttl": "1h"});
    let chat = chat(&json!({
        "cache_control": mark,
        "system": [{"type": "text", "text": "s", "cache_control": mark}],
        "tools": [{"name": "f", "input_schema": {"type": "object"}, "cache_control": mark}],
        "messages": [
            {"role": "user", "content": [{"type": "text", "text": "u", "cache_control": mark}]},
            {"role": "assistant", "content": [{"type": "tool_use", "id": "t", "name": "f",
                "input": {}, "cache_control": mark}]},
            {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "t",
                "content": [{"type": "text", "text": "r", "cache_control": mark}],
                "cache_control": mark}]},
        ],
    }));
    assert!(!chat.to_string().contains("cache_control"), "{chat}");
}

#[test]
fn case_46_stream_request_always_requests_usage() {
    let streamed = chat(&json!({"stream": true}));
    assert_eq!(streamed["stream"], true);
    assert_eq!(streamed["stream_options"], json!({"include_usage": true}));
    for fields in [json!({}), json!({"stream": false})] {
        let plain = chat(&fields);
        assert!(plain.get("stream").is_none() && plain.get("stream_options").is_none());
    }
}

#[test]
fn case_47_user_and_output_limit_get_the_chat_formats_field_names() {
    let user = |id: &str| chat(&json!({"metadata": {"user_id": id}}))["user"].take();
    assert_eq!(user("u-1"), "u-1");
    assert_eq!(user(&"é".repeat(64)), "é".repeat(64));
    assert_eq!(user(&"u".repeat(65)), Tree::Null, "no vendor takes it");
    assert_eq!(
        chat(&json!({"metadata": {"user_id": null}}))["user"],
        Tree::Null
    );
    for (output_field, name, other) in [
        (
            OutputField::MaxCompletionTokens,
            "max_completion_tokens",
            "max_tokens",
        ),
        (
            OutputField::MaxTokens,
            "max_tokens",
            "max_completion_tokens",
        ),
    ] {
        let dialect = Dialect {
            output_field,
            ..Dialect::default()
        };
        let chat = with(&dialect, &requested(&json!({}))).unwrap();
        assert_eq!(chat[name], 77, "what the hold pays for");
        assert!(chat.get(other).is_none());
        assert_eq!(chat["model"], "vendor-model");
    }
}

#[test]
fn case_49_system_turn_stays_in_its_place() {
    assert_eq!(
        reported(&json!([
            {"role": "user", "content": "a"},
            {"role": "system", "content": [{"type": "text", "text": "be"}, {"type": "text", "text": "brief"}]},
            {"role": "user", "content": "b"},
        ])),
        json!([
            {"role": "user", "content": "a"},
            {"role": "system", "content": "be\nbrief"},
            {"role": "user", "content": "b"},
        ])
    );
}

#[test]
fn thinking_and_effort_become_reasoning_effort() {
    let effort = |fields: Tree| chat(&fields)["reasoning_effort"].take();
    for (fields, expected) in [
        (json!({}), Tree::Null),
        (json!({"output_config": {"effort": "max"}}), json!("max")),
        (json!({"thinking": {"type": "adaptive"}}), Tree::Null),
        (
            json!({"thinking": {"type": "adaptive"}, "output_config": {"effort": "high"}}),
            json!("high"),
        ),
        (
            json!({"thinking": {"type": "enabled", "budget_tokens": 1024}}),
            json!("low"),
        ),
        (
            json!({"thinking": {"type": "enabled", "budget_tokens": 10000}}),
            json!("medium"),
        ),
        (
            json!({"thinking": {"type": "enabled", "budget_tokens": 31999}}),
            json!("high"),
        ),
        (
            json!({"thinking": {"type": "disabled"}, "output_config": {"effort": "high"}}),
            Tree::Null,
        ),
    ] {
        assert_eq!(effort(fields.clone()), expected, "{fields}");
    }
    let dialect = Dialect {
        reasoning_effort: false,
        ..Dialect::default()
    };
    let chat = with(
        &dialect,
        &requested(&json!({"output_config": {"effort": "low"}})),
    )
    .unwrap();
    assert!(chat.get("reasoning_effort").is_none() && chat.get("output_config").is_none());
    assert_eq!(
        refused(&json!({"output_config": {"effort": "hardest"}})).0,
        "output_config.effort"
    );
}

#[test]
fn request_for_visible_thinking_is_recognised() {
    for (thinking, requested) in [
        (r#"{"type":"enabled","budget_tokens":1024}"#, true),
        (r#"{"type":"adaptive"}"#, true),
        (r#"{"type":"adaptive","display":"summarized"}"#, true),
        (r#"{"type":"adaptive","display":"omitted"}"#, false),
        (r#"{"type":"disabled"}"#, false),
        ("null", false),
        ("7", false),
    ] {
        let body = format!(r#"{{"messages":[],"thinking":{thinking}}}"#);
        assert_eq!(thinking_asked(body.as_bytes()), requested, "{thinking}");
    }
    assert!(!thinking_asked(b"{}") && !thinking_asked(b"no JSON"));
}

#[test]
fn structured_output_has_the_chat_formats_field_name() {
    let schema = json!({"type": "object", "properties": {}, "additionalProperties": false});
    let format = json!({"type": "json_schema", "schema": schema});
    for fields in [
        json!({"output_config": {"format": format}}),
        json!({"output_format": format}),
    ] {
        assert_eq!(
            chat(&fields)["response_format"],
            json!({"type": "json_schema", "json_schema":
                {"name": "answer", "strict": true, "schema": schema}})
        );
    }
    let dialect = Dialect {
        json_schema: false,
        ..Dialect::default()
    };
    let body = requested(&json!({"output_config": {"format": format}}));
    assert!(matches!(
        with(&dialect, &body),
        Err(Error::Invalid { field, problem: Problem::Unsupported }) if field == "output_config.format"
    ));
}

#[test]
fn sampling_parameters_are_sent_only_to_models_that_accept_them() {
    let fields = json!({"temperature": 0.5, "top_p": 0.9});
    let taken = chat(&fields);
    assert_eq!(
        (&taken["temperature"], &taken["top_p"]),
        (&json!(0.5), &json!(0.9))
    );
    let dialect = Dialect {
        sampling: false,
        ..Dialect::default()
    };
    let not = with(&dialect, &requested(&fields)).unwrap();
    assert!(not.get("temperature").is_none() && not.get("top_p").is_none());
}

#[test]
fn long_ids_are_shortened_in_the_same_way_in_a_tool_call_and_its_result() {
    let (long, fits) = ("x".repeat(65), "й".repeat(64));
    for (id, same) in [(&long, false), (&fits, true)] {
        let reported = reported(&json!([
            {"role": "assistant", "content": [{"type": "tool_use", "id": id, "name": "f", "input": {}}]},
            {"role": "user", "content": [{"type": "tool_result", "tool_use_id": id}]},
        ]));
        let called = reported[0]["tool_calls"][0]["id"].as_str().unwrap();
        assert_eq!(reported[1]["tool_call_id"], called);
        assert_eq!(called == id, same);
        assert_eq!(called.chars().count(), 64);
    }
}

#[test]
fn empty_user_turn_remains_a_user_turn() {
    for content in [json!(""), json!([]), json!([{"type": "text", "text": ""}])] {
        assert_eq!(
            reported(&json!([{"role": "user", "content": content}])),
            json!([{"role": "user", "content": ""}])
        );
    }
    assert_eq!(
        reported(&json!([{"role": "user", "content": [
            {"type": "text", "text": "a"}, {"type": "text", "text": "b"}]}])),
        json!([{"role": "user", "content": [
            {"type": "text", "text": "a"}, {"type": "text", "text": "b"}]}])
    );
}

#[test]
fn invalid_and_unknown_fields_are_named() {
    for (fields, field, problem) in [
        (json!({"tomorrow": 1}), "tomorrow", Problem::NotTranslated),
        (
            json!({"system": 5}),
            "system",
            Problem::WrongType("string or array"),
        ),
        (
            json!({"messages": [{"role": "user", "content": ["x"]}]}),
            "messages[0].content[0]",
            Problem::WrongType("object"),
        ),
        (
            json!({"messages": [{"role": "user", "content": [{"type": "image"}]}]}),
            "messages[0].content[0].source",
            Problem::Missing,
        ),
        (
            json!({"messages": [{"role": "user", "content": [{"type": "image", "source": "x"}]}]}),
            "messages[0].content[0].source",
            Problem::WrongType("object"),
        ),
        (
            json!({"messages": [{"role": "assistant", "content": [
                {"type": "tool_use", "id": "t", "name": "f", "input": "x"}]}]}),
            "messages[0].content[0].input",
            Problem::WrongType("object"),
        ),
        (
            json!({"messages": [{"role": "user", "content": [
                {"type": "tool_result", "tool_use_id": "t", "content": [{"type": "tool_reference"}]}]}]}),
            "messages[0].content[0].content[0].tool_name",
            Problem::Missing,
        ),
        (
            json!({"tools": [{"name": 5}]}),
            "tools[0].name",
            Problem::WrongType("string"),
        ),
        (
            json!({"tools": [{"name": "f", "input_schema": []}]}),
            "tools[0].input_schema",
            Problem::WrongType("object"),
        ),
        (
            json!({"temperature": "hot"}),
            "temperature",
            Problem::WrongType("number"),
        ),
        (
            json!({"thinking": {"type": "enabled"}}),
            "thinking.budget_tokens",
            Problem::Missing,
        ),
        (
            json!({"metadata": {"user_id": 7}}),
            "metadata.user_id",
            Problem::WrongType("string"),
        ),
    ] {
        assert_eq!(refused(&fields), (field.to_owned(), problem), "{fields}");
    }
    assert!(chat(&json!({"tomorrow": null})).get("tomorrow").is_none());
}

#[test]
fn request_of_claude_code_is_translated() {
    let user_id = json!({"user": "0".repeat(64), "account": "", "session": "0".repeat(36)});
    let long = "word ".repeat(12_000);
    let chat = chat(&json!({
        "max_tokens": 32000,
        "stream": true,
        "thinking": {"type": "adaptive"},
        "context_management": {"edits": [{"type": "clear_thinking_20251015", "keep": "all"}]},
        "output_config": {"effort": "high"},
        "metadata": {"user_id": user_id.to_string()},
        "system": [
            {"type": "text", "text": "x-anthropic-billing-header: cc_version=2.1.197"},
            {"type": "text", "text": "You are a coding agent.", "cache_control": {"type": "ephemeral"}},
            {"type": "text", "text": long, "cache_control": {"type": "ephemeral", "ttl": "1h"}},
        ],
        "tools": [{"name": "Bash", "description": "Runs a command", "input_schema": {
            "$schema": "https://json-schema.org/draft/2020-12/schema", "type": "object",
            "properties": {"command": {"type": "string"}}, "required": ["command"],
            "additionalProperties": false}}],
        "messages": [
            {"role": "user", "content": [
                {"type": "text", "text": "<system-reminder>\nbe kind\n</system-reminder>"},
                {"type": "text", "text": "list the files", "cache_control": {"type": "ephemeral"}}]},
            {"role": "system", "content": "The date has changed."},
            {"role": "assistant", "content": [
                {"type": "thinking", "thinking": "", "signature": ""},
                {"type": "tool_use", "id": "call_1", "name": "Bash", "input": {"command": "ls"},
                 "caller": {"type": "direct"}}]},
            {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "call_1",
                "content": "a\nb", "is_error": false}]},
        ],
    }));
    let roles: Vec<_> = chat["messages"]
        .as_array()
        .unwrap()
        .iter()
        .map(|m| &m["role"])
        .collect();
    assert_eq!(roles, ["system", "user", "system", "assistant", "tool"]);
    assert_eq!(chat["reasoning_effort"], "high");
    assert_eq!(
        chat["tools"][0]["function"]["parameters"]["$schema"],
        "https://json-schema.org/draft/2020-12/schema"
    );
    for gone in [
        "thinking",
        "output_config",
        "context_management",
        "metadata",
        "user",
        "system",
    ] {
        assert!(chat.get(gone).is_none(), "{gone}");
    }
}

/// Translates a conversation, and summarizes each message as its role and its content.
fn outline(turns: &[(&str, Tree)]) -> Vec<String> {
    let turns: Vec<_> = turns
        .iter()
        .map(|(role, content)| json!({"role": role, "content": content}))
        .collect();
    let reported = reported(&json!(turns));
    let reported = reported.as_array().unwrap().iter().map(|message| {
        let calls = message["tool_calls"].as_array().into_iter().flatten();
        let calls = calls.map(|call| format!(" {}", call["id"].as_str().unwrap()));
        let content = match &message["content"] {
            Tree::String(text) => format!(" {text:?}"),
            Tree::Array(parts) => parts
                .iter()
                .map(|part| match &part["text"] {
                    Tree::String(text) => format!(" {text:?}"),
                    _ => " image".into(),
                })
                .collect(),
            _ => String::new(),
        };
        let id = message["tool_call_id"].as_str();
        let id = id.map_or(String::new(), |id| format!(" {id}"));
        let role = message["role"].as_str().unwrap();
        format!("{role}{content}{}{id}", calls.collect::<String>())
    });
    reported.collect()
}

#[test]
fn turns_of_one_role_are_merged_and_tool_results_directly_follow_their_calls() {
    let text = |text: &str| json!([{"type": "text", "text": text}]);
    let calls = |ids: &[&str]| -> Tree {
        let call = |id: &&str| json!({"type": "tool_use", "id": id, "name": "f", "input": {}});
        ids.iter().map(call).collect()
    };
    let result = |id: &str| json!([{"type": "tool_result", "tool_use_id": id, "content": "r"}]);
    let with = |mut blocks: Tree, more: Tree| {
        let more = more.as_array().unwrap().iter().cloned();
        blocks.as_array_mut().unwrap().extend(more);
        blocks
    };
    let image = json!({"type": "image", "source": {"type": "url", "url": "https://x"}});
    let mut seen = result("x1");
    seen[0]["content"] = json!([{"type": "text", "text": "r"}, image]);
    let called = ("assistant", calls(&["x1"]));
    let answered = ("user", result("x1"));
    for (turns, expected) in [
        (
            vec![
                ("assistant", calls(&["x1", "x2"])),
                ("user", seen),
                ("user", result("x2")),
            ],
            &[
                "assistant x1 x2",
                "tool \"r\" x1",
                "tool \"r\" x2",
                "user image",
            ][..],
        ),
        (
            vec![
                ("assistant", calls(&["x1", "x2"])),
                ("user", with(result("x1"), text("so"))),
                ("user", with(result("x2"), text("and"))),
            ],
            &[
                "assistant x1 x2",
                "tool \"r\" x1",
                "tool \"r\" x2",
                "user \"so\" \"and\"",
            ],
        ),
        (
            vec![
                called.clone(),
                ("assistant", calls(&["x2"])),
                ("user", with(result("x1"), result("x2"))),
            ],
            &["assistant x1 x2", "tool \"r\" x1", "tool \"r\" x2"],
        ),
        (
            vec![
                called.clone(),
                ("assistant", text("more")),
                answered.clone(),
            ],
            &["assistant \"more\" x1", "tool \"r\" x1"],
        ),
        (
            vec![called.clone(), ("system", text("s")), answered.clone()],
            &["assistant x1", "tool \"r\" x1", "system \"s\""],
        ),
        (
            vec![
                called.clone(),
                ("system", text("s")),
                ("assistant", calls(&["x2"])),
                ("user", with(result("x1"), with(result("x2"), text("so")))),
                ("system", text("t")),
                ("assistant", text("well")),
            ],
            &[
                "assistant x1 x2",
                "tool \"r\" x1",
                "tool \"r\" x2",
                "system \"s\"",
                "user \"so\"",
                "system \"t\"",
                "assistant \"well\"",
            ],
        ),
        // Text between other blocks stays in its place.
        (
            vec![
                ("user", text("a")),
                (
                    "assistant",
                    json!([{"type": "thinking", "thinking": "hm", "signature": "s"}]),
                ),
                ("user", text("")),
                ("user", text("b")),
                ("system", text("s")),
                ("user", text("c")),
                ("assistant", text("d")),
                ("system", text("t")),
                ("assistant", text("e")),
                ("assistant", text("f")),
            ],
            &[
                "user \"a\" \"b\"",
                "system \"s\"",
                "user \"c\"",
                "assistant \"d\"",
                "system \"t\"",
                "assistant \"ef\"",
            ],
        ),
    ] {
        assert_eq!(outline(&turns), expected, "{turns:?}");
    }
}
