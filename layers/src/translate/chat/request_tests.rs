use serde_json::{Value, json};

use crate::{
    call::Format,
    error::{Error, Problem},
    formats::{
        turn::request::{EFFORT_NAMES, translate},
        wire::{CacheCx, RequestCx},
    },
    model::{Dialect, Thinking},
};

const OUTPUT_TOKENS: u64 = 4096;

fn dialect() -> Dialect {
    Dialect::default()
}

fn budget() -> Dialect {
    Dialect {
        thinking: Thinking::Budget,
        ..dialect()
    }
}

fn request(body: &[u8], cx: &RequestCx<'_>) -> Result<bytes::Bytes, Error> {
    translate(Format::Chat, Format::Messages, body, "v", cx)
}

fn with(dialect: &Dialect, body: &Value) -> Result<Value, Error> {
    let cx = RequestCx {
        model: "vendor-model",
        output_tokens: OUTPUT_TOKENS,
        dialect,
        cache: CacheCx::default(),
    };
    request(body.to_string().as_bytes(), &cx)
        .map(|body| serde_json::from_slice(&body).expect("what is written is JSON"))
}

fn translated(body: &Value) -> Value {
    with(&dialect(), body).unwrap_or_else(|error| panic!("{error}: {body}"))
}

fn refused(body: &Value) -> (String, Problem) {
    match with(&dialect(), body) {
        Err(Error::Invalid { field, problem }) => (field.into_owned(), problem),
        other => panic!("{other:?}: {body}"),
    }
}

/// Returns the name of the field in the refusal of this request.
fn named(body: &Value) -> String {
    refused(body).0
}

/// Builds a request with one turn and these additional fields.
fn plus(fields: Value) -> Value {
    let mut body = json!({"model": "m", "messages": [{"role": "user", "content": "hi"}]});
    let Value::Object(fields) = fields else {
        panic!("fields are an object")
    };
    body.as_object_mut().unwrap().extend(fields);
    body
}

fn messages(messages: Value) -> Value {
    json!({"model": "m", "messages": messages})
}

/// Returns the turns of the conversation after translation.
fn turns(list: Value) -> Value {
    translated(&messages(list))["messages"].clone()
}

/// Returns the content blocks of a user message after translation.
fn user(content: Value) -> Value {
    turns(json!([{"role": "user", "content": content}]))[0]["content"].clone()
}

fn text(text: &str) -> Value {
    json!({"type": "text", "text": text})
}

fn function(name: &str) -> Value {
    json!({"type": "function", "function": {"name": name, "parameters": {"type": "object"}}})
}

fn call(id: &str, arguments: &str) -> Value {
    json!({"id": id, "type": "function", "function": {"name": "f", "arguments": arguments}})
}

fn tool_use(id: &str, input: Value) -> Value {
    json!({"type": "tool_use", "id": id, "name": "f", "input": input})
}

fn result(id: &str, content: &str) -> Value {
    json!({"type": "tool_result", "tool_use_id": id, "content": [text(content)]})
}

#[test]
fn plain_request_becomes_a_minimal_messages_request() {
    assert_eq!(
        translated(&plus(json!({}))),
        json!({
            "model": "vendor-model",
            "max_tokens": OUTPUT_TOKENS,
            "messages": [{"role": "user", "content": [text("hi")]}],
        })
    );
    assert_eq!(translated(&plus(json!({"stream": true})))["stream"], true);
    assert!(
        translated(&plus(json!({"stream": false})))
            .get("stream")
            .is_none()
    );
}

#[test]
fn case_01_instructions_before_the_first_turn_go_to_system_and_later_ones_stay_in_place() {
    let body = translated(&messages(json!([
        {"role": "system", "content": "one"},
        {"role": "developer", "content": "one more"},
        {"role": "user", "content": "a"},
        {"role": "developer", "content": "two"},
        {"role": "user", "content": "b"},
        {"role": "system", "content": "three"},
    ])));
    assert_eq!(body["system"], json!([text("one"), text("one more")]));
    let late = |words: &str| text(&format!("<system>\n{words}\n</system>"));
    assert_eq!(
        body["messages"],
        json!([{"role": "user", "content": [text("a"), late("two"), text("b"), late("three")]}])
    );
}

#[test]
fn instructions_never_separate_tool_calls_from_their_results() {
    let call = |id: &str| {
        json!({"role": "assistant", "content": null, "tool_calls": [
            {"id": id, "type": "function", "function": {"name": "f", "arguments": "{}"}}]})
    };
    let result = |id: &str| json!({"role": "tool", "tool_call_id": id, "content": "x"});
    let reported = json!({"role": "developer", "content": "d"});
    let user = json!({"role": "user", "content": "q"});
    for turns in [
        json!([
            user,
            call("a"),
            reported,
            call("b"),
            result("a"),
            result("b")
        ]),
        json!([
            user,
            call("a"),
            call("b"),
            reported,
            result("a"),
            result("b")
        ]),
        json!([
            user,
            call("a"),
            call("b"),
            result("a"),
            reported,
            result("b")
        ]),
        json!([
            user,
            call("a"),
            call("b"),
            result("a"),
            result("b"),
            reported
        ]),
    ] {
        let body = translated(&messages(turns.clone()));
        let kinds = |turn: &Value| -> Value {
            let blocks = turn["content"].as_array().unwrap();
            blocks.iter().map(|block| block["type"].clone()).collect()
        };
        let kinds: Value = body["messages"]
            .as_array()
            .unwrap()
            .iter()
            .map(kinds)
            .collect();
        let expected = json!([
            ["text"],
            ["tool_use", "tool_use"],
            ["tool_result", "tool_result", "text"]
        ]);
        assert_eq!(kinds, expected, "{turns}");
        assert!(body.get("system").is_none());
    }
}

#[test]
fn case_02_parts_of_instructions_become_blocks() {
    let parts = json!([text("one\n"), text(" two")]);
    let body = translated(&messages(json!([
        {"role": "system", "content": parts},
        {"role": "user", "content": "a"},
    ])));
    assert_eq!(body["system"], parts);
    let image = json!([{"type": "image_url", "image_url": {"url": "https://x"}}]);
    let body =
        messages(json!([{"role": "system", "content": image}, {"role": "user", "content": "a"}]));
    assert_eq!(named(&body), "messages[0].content[0].type");
}

#[test]
fn case_03_missing_output_limit_becomes_the_limit_that_the_hold_covers() {
    for (fields, max_tokens) in [
        (json!({}), OUTPUT_TOKENS),
        (json!({"max_tokens": null}), OUTPUT_TOKENS),
        (json!({"max_tokens": 7}), 7),
        (json!({"max_completion_tokens": 8}), 8),
        (json!({"max_tokens": 1_000_000}), OUTPUT_TOKENS),
    ] {
        assert_eq!(translated(&plus(fields))["max_tokens"], max_tokens);
    }
}

#[test]
fn case_04_two_output_limits_must_be_equal() {
    let agreed = plus(json!({"max_tokens": 9, "max_completion_tokens": 9}));
    assert_eq!(translated(&agreed)["max_tokens"], 9);
    assert_eq!(
        refused(&plus(json!({"max_tokens": 9, "max_completion_tokens": 10}))),
        (
            "max_tokens".to_owned(),
            Problem::Contradicts("max_completion_tokens")
        )
    );
}

#[test]
fn case_05_temperature_above_1_is_refused() {
    for temperature in [json!(1.01), json!(2), json!(1.5e3)] {
        assert_eq!(
            refused(&plus(json!({"temperature": temperature}))),
            ("temperature".to_owned(), Problem::AboveMax(1))
        );
    }
    for temperature in [json!(0), json!(0.7), json!(1), json!(1.0)] {
        let body = plus(json!({"temperature": temperature, "top_p": 0.9, "top_k": 5}));
        let translated = translated(&body);
        assert_eq!(translated["temperature"], temperature);
        assert_eq!(
            (&translated["top_p"], &translated["top_k"]),
            (&json!(0.9), &json!(5))
        );
    }
    assert_eq!(named(&plus(json!({"temperature": "hot"}))), "temperature");
    // For a model that accepts no sampling parameters, they are removed whatever their values are.
    let dialect = Dialect {
        sampling: false,
        ..dialect()
    };
    let body = with(
        &dialect,
        &plus(json!({"temperature": 2, "top_p": 0.5, "top_k": 1})),
    )
    .unwrap();
    for name in ["temperature", "top_p", "top_k"] {
        assert!(body.get(name).is_none(), "{name}");
    }
}

#[test]
fn case_06_stop_becomes_stop_sequences() {
    for (stop, sequences) in [
        (json!("END"), json!(["END"])),
        (json!(["a", " b "]), json!(["a", " b "])),
        (json!(["a", "", " ", "\n"]), json!(["a"])),
        (
            json!(["1", "2", "3", "4", "5"]),
            json!(["1", "2", "3", "4", "5"]),
        ),
        (json!([]), Value::Null),
        (json!(" "), Value::Null),
        (Value::Null, Value::Null),
    ] {
        assert_eq!(
            translated(&plus(json!({"stop": stop})))["stop_sequences"],
            sequences,
            "{stop}"
        );
    }
    assert_eq!(named(&plus(json!({"stop": 7}))), "stop");
    assert_eq!(named(&plus(json!({"stop": ["a", 7]}))), "stop[1]");
}

#[test]
fn case_07_more_than_one_choice_is_refused() {
    assert_eq!(
        refused(&plus(json!({"n": 2}))),
        ("n".to_owned(), Problem::AboveMax(1))
    );
    for n in [json!(1), Value::Null] {
        assert!(translated(&plus(json!({"n": n}))).get("n").is_none());
    }
}

#[test]
fn case_08_messages_of_one_role_become_one_turn_with_unchanged_bytes() {
    let turns = turns(json!([
        {"role": "user", "content": " a \"quoted\" \n", "name": "ann"},
        {"role": "user", "content": [text("b"), text("\tc")]},
        {"role": "assistant", "content": "d "},
        {"role": "assistant", "content": " e"},
        {"role": "user", "content": "f"},
    ]));
    let expected = json!([
        {"role": "user", "content": [text(" a \"quoted\" \n"), text("b"), text("\tc")]},
        {"role": "assistant", "content": [text("d "), text(" e")]},
        {"role": "user", "content": [text("f")]},
    ]);
    assert_eq!(turns, expected);
}

#[test]
fn case_09_empty_content_is_dropped() {
    let turns = turns(json!([
        {"role": "system", "content": " "},
        {"role": "user", "content": "a"},
        {"role": "assistant", "content": ""},
        {"role": "assistant", "content": null},
        {"role": "user", "content": [text(""), text(" \n"), text("b")]},
        {"role": "user", "content": []},
    ]));
    assert_eq!(
        turns,
        json!([{"role": "user", "content": [text("a"), text("b")]}])
    );
    for list in [
        json!([{"role": "user", "content": " "}]),
        json!([{"role": "system", "content": "only this"}]),
    ] {
        assert_eq!(
            refused(&messages(list)),
            ("messages".to_owned(), Problem::NothingSaid)
        );
    }
}

#[test]
fn case_10_tool_calls_without_text_have_no_text_block() {
    let turns = turns(json!([
        {"role": "user", "content": "a"},
        {"role": "assistant", "content": null, "tool_calls": [call("c1", "{\"x\":1}"), call("c2", "{}")]},
    ]));
    let calls = json!([tool_use("c1", json!({"x": 1})), tool_use("c2", json!({}))]);
    assert_eq!(turns[1], json!({"role": "assistant", "content": calls}));
}

#[test]
fn case_11_text_precedes_the_tool_calls_of_its_turn() {
    let turns = turns(json!([
        {"role": "user", "content": "a"},
        {"role": "assistant", "tool_calls": [call("c1", "{}")], "content": "let me look"},
    ]));
    assert_eq!(
        turns[1]["content"],
        json!([text("let me look"), tool_use("c1", json!({}))])
    );
}

#[test]
fn case_12_tool_results_become_one_turn_and_precede_the_turns_text() {
    let turns = turns(json!([
        {"role": "user", "content": "a"},
        {"role": "assistant", "tool_calls": [call("c1", "{}"), call("c2", "{}")]},
        {"role": "tool", "tool_call_id": "c1", "content": "one"},
        {"role": "user", "content": "meanwhile"},
        {"role": "tool", "tool_call_id": "c2", "content": ""},
        {"role": "user", "content": "and now"},
    ]));
    let empty = json!({"type": "tool_result", "tool_use_id": "c2"});
    let expected = json!([
        result("c1", "one"),
        empty,
        text("meanwhile"),
        text("and now")
    ]);
    assert_eq!(turns.as_array().unwrap().len(), 3);
    assert_eq!(turns[2], json!({"role": "user", "content": expected}));
}

#[test]
fn case_13_parts_of_a_tool_result_become_one_result() {
    let turns = turns(json!([
        {"role": "assistant", "tool_calls": [call("c1", "{}")]},
        {"role": "tool", "tool_call_id": "c1", "content": [text("one"), text("two")]},
    ]));
    let expected = json!([{"type": "tool_result", "tool_use_id": "c1", "content": [text("one"), text("two")]}]);
    assert_eq!(turns[1]["content"], expected);
}

#[test]
fn case_14_tool_result_without_a_tool_call_becomes_text() {
    let turns = turns(json!([
        {"role": "user", "content": "a"},
        {"role": "tool", "tool_call_id": "gone", "content": "orphan"},
        {"role": "tool", "tool_call_id": "gone", "content": ""},
        {"role": "assistant", "tool_calls": [call("c1", "{}")]},
        {"role": "tool", "tool_call_id": "c1", "content": "one"},
        {"role": "tool", "tool_call_id": "c1", "content": "twice"},
        {"role": "assistant", "content": "b"},
        {"role": "tool", "tool_call_id": "c1", "content": "late"},
    ]));
    assert_eq!(turns[0]["content"], json!([text("a"), text("orphan")]));
    assert_eq!(
        turns[2]["content"],
        json!([result("c1", "one"), text("twice")])
    );
    assert_eq!(turns[4]["content"], json!([text("late")]));
}

fn with_arguments(arguments: &Value) -> Value {
    let function = json!({"name": "f", "arguments": arguments});
    messages(json!([
        {"role": "user", "content": "a"},
        {"role": "assistant", "content": "b"},
        {"role": "assistant", "tool_calls": [call("c0", "{}"), {"id": "c1", "type": "function", "function": function}]},
    ]))
}

#[test]
fn case_15_tool_call_arguments_are_decoded_from_their_json_string() {
    const PATH: &str = "messages[2].tool_calls[1].function.arguments";
    for arguments in ["", " ", "{}", " { } "] {
        let body = translated(&with_arguments(&json!(arguments)));
        assert_eq!(
            body["messages"][1]["content"][2]["input"],
            json!({}),
            "{arguments:?}"
        );
    }
    for (arguments, problem) in [
        (json!("{\"x\":"), Problem::NotJson("1:5".into())),
        (json!("{} {}"), Problem::NotJson("1:4".into())),
        (json!({"x": 1}), Problem::WrongType("string")),
    ] {
        assert_eq!(
            refused(&with_arguments(&arguments)),
            (PATH.to_owned(), problem),
            "{arguments}"
        );
    }
    // Repeated names, and numbers outside the range of every numeric type, are forwarded. The tool decides what they
    // mean.
    let odd = r#"{"n":123456789012345678901234567890,"f":1e400,"n":0.1000,"s":"\ud83e"}"#;
    let cx = RequestCx {
        model: "m",
        output_tokens: 1,
        dialect: &dialect(),
        cache: CacheCx::default(),
    };
    let body = request(with_arguments(&json!(odd)).to_string().as_bytes(), &cx).unwrap();
    assert!(
        String::from_utf8(body.to_vec())
            .unwrap()
            .contains(&format!("\"input\":{odd}"))
    );
}

#[test]
fn case_16_tool_call_arguments_other_than_an_object_are_refused() {
    for arguments in ["[]", "null", "7", "\"{}\""] {
        assert_eq!(
            refused(&with_arguments(&json!(arguments))),
            (
                "messages[2].tool_calls[1].function.arguments".to_owned(),
                Problem::WrongType("string with a JSON object in it")
            )
        );
    }
}

/// Returns the schema to which the `parameters` of a tool are translated.
fn schema(parameters: Value) -> Value {
    let tool = json!({"type": "function", "function": {"name": "f", "parameters": parameters}});
    translated(&plus(json!({"tools": [tool]})))["tools"][0]["input_schema"].clone()
}

#[test]
fn case_17_schema_of_every_tool_gets_a_type() {
    let empty = json!({"type": "object", "properties": {}});
    assert_eq!(schema(Value::Null), empty);
    assert_eq!(schema(json!({})), empty);
    let properties = json!({"x": {"type": "string"}});
    assert_eq!(
        schema(json!({"properties": properties})),
        json!({"type": "object", "properties": properties})
    );
    let whole = json!({"type": "object", "properties": properties, "required": ["x"], "additionalProperties": false});
    assert_eq!(schema(whole.clone()), whole);
    let tool = json!({"type": "function", "function": {"name": "f", "parameters": []}});
    assert_eq!(
        named(&plus(json!({"tools": [tool]}))),
        "tools[0].function.parameters"
    );
}

#[test]
fn case_18_schema_keeps_its_oneof_anyof_and_allof() {
    for name in ["oneOf", "anyOf", "allOf"] {
        let parameters =
            json!({name: [{"type": "object"}, {"$ref": "#/$defs/a"}], "$defs": {"a": {}}});
        let mut expected = parameters.clone();
        expected["type"] = json!("object");
        assert_eq!(schema(parameters), expected);
    }
}

#[test]
fn tools_keep_the_fields_that_the_messages_format_has() {
    let body = plus(json!({"tools": [
        {"type": "function", "function": {"name": "a", "description": "does", "strict": true, "parameters": {"type": "object"}}},
        {"type": "function", "function": {"name": "b", "strict": false}},
    ]}));
    assert_eq!(
        translated(&body)["tools"],
        json!([
            {"name": "a", "description": "does", "input_schema": {"type": "object"}, "strict": true},
            {"name": "b", "input_schema": {"type": "object", "properties": {}}},
        ])
    );
    for kind in [json!({"type": null}), json!({})] {
        let mut tool = function("a");
        tool["type"] = kind["type"].clone();
        assert_eq!(
            translated(&plus(json!({"tools": [tool]})))["tools"],
            json!([{"name": "a", "input_schema": {"type": "object"}}])
        );
    }
    let custom = json!({"type": "custom", "custom": {"name": "c"}});
    assert_eq!(
        named(&plus(json!({"tools": [function("a"), custom]}))),
        "tools[1].type"
    );
    let nameless = json!({"type": "function", "function": {}});
    assert_eq!(
        refused(&plus(json!({"tools": [nameless]}))),
        ("tools[0].function.name".to_owned(), Problem::Missing)
    );
}

fn choice(fields: Value) -> Value {
    let mut body = plus(fields);
    body["tools"] = json!([function("f"), function("g")]);
    translated(&body)["tool_choice"].clone()
}

#[test]
fn case_19_tool_choice_is_translated() {
    for (wanted, expected) in [
        (json!("auto"), json!({"type": "auto"})),
        (json!("required"), json!({"type": "any"})),
        (json!("none"), json!({"type": "none"})),
        (
            json!({"type": "function", "function": {"name": "f"}}),
            json!({"type": "tool", "name": "f"}),
        ),
        (Value::Null, Value::Null),
    ] {
        assert_eq!(choice(json!({"tool_choice": wanted})), expected);
    }
    for (wanted, field) in [
        (json!("any"), "tool_choice"),
        (json!(7), "tool_choice"),
        (json!({"type": "function"}), "tool_choice.function"),
        (
            json!({"type": "custom", "custom": {"name": "c"}}),
            "tool_choice.type",
        ),
    ] {
        assert_eq!(
            named(&plus(
                json!({"tools": [function("f")], "tool_choice": wanted})
            )),
            field
        );
    }
}

#[test]
fn only_tools_that_tool_choice_allows_are_sent() {
    let wanted = |mode: &str, names: &[&str]| {
        let tools: Vec<_> = names.iter().map(|name| function(name)).collect();
        plus(json!({
            "tools": [function("f"), function("g"), function("h")],
            "tool_choice": {"type": "allowed_tools", "allowed_tools": {"mode": mode, "tools": tools}},
        }))
    };
    let body = translated(&wanted("required", &["h", "f"]));
    let names: Vec<_> = body["tools"]
        .as_array()
        .unwrap()
        .iter()
        .map(|tool| &tool["name"])
        .collect();
    assert_eq!(names, ["f", "h"]);
    assert_eq!(body["tool_choice"], json!({"type": "any"}));
    let none = translated(&wanted("auto", &[]));
    assert!(none.get("tools").is_none() && none.get("tool_choice").is_none());
    assert_eq!(
        named(&wanted("auto", &["f", "x"])),
        "tool_choice.allowed_tools.tools[1].function.name"
    );
    assert_eq!(
        named(&wanted("never", &["f"])),
        "tool_choice.allowed_tools.mode"
    );
}

#[test]
fn case_20_parallel_tool_calls_becomes_disable_parallel_tool_use() {
    for (fields, expected) in [
        (
            json!({"parallel_tool_calls": false}),
            json!({"type": "auto", "disable_parallel_tool_use": true}),
        ),
        (
            json!({"parallel_tool_calls": false, "tool_choice": "required"}),
            json!({"type": "any", "disable_parallel_tool_use": true}),
        ),
        (
            json!({"parallel_tool_calls": false, "tool_choice": {"type": "function", "function": {"name": "f"}}}),
            json!({"type": "tool", "name": "f", "disable_parallel_tool_use": true}),
        ),
        (
            json!({"parallel_tool_calls": false, "tool_choice": "none"}),
            json!({"type": "none"}),
        ),
        (json!({"parallel_tool_calls": true}), Value::Null),
        (
            json!({"parallel_tool_calls": true, "tool_choice": "auto"}),
            json!({"type": "auto"}),
        ),
    ] {
        assert_eq!(choice(fields.clone()), expected, "{fields}");
    }
    assert!(
        translated(&plus(json!({"parallel_tool_calls": false})))
            .get("tool_choice")
            .is_none()
    );
}

#[test]
fn case_21_tool_choice_without_tools_is_omitted() {
    for tools in [json!([]), Value::Null] {
        let body = translated(&plus(json!({"tools": tools, "tool_choice": "required"})));
        assert!(body.get("tool_choice").is_none() && body.get("tools").is_none());
    }
}

fn image(url: &str) -> Value {
    json!([{"type": "image_url", "image_url": {"url": url, "detail": "high"}}])
}

#[test]
fn case_22_inline_images_become_blocks() {
    for (kind, media_type) in [
        ("image/jpeg", "image/jpeg"),
        ("image/jpg", "image/jpeg"),
        ("IMAGE/PNG", "image/png"),
        ("image/gif;name=a", "image/gif"),
        ("image/webp", "image/webp"),
    ] {
        assert_eq!(
            user(image(&format!("data:{kind};base64,AAA/+="))),
            json!([{"type": "image", "source": {"type": "base64", "media_type": media_type, "data": "AAA/+="}}])
        );
    }
    for url in [
        "data:image/svg+xml;base64,AAAA",
        "data:image/png,AAAA",
        "data:image/png;base64",
        "data:;base64,AAAA",
        "ftp://example.com/a.png",
        "file:///etc/passwd",
        "",
        "я",
    ] {
        let body = messages(json!([{"role": "user", "content": image(url)}]));
        assert_eq!(
            refused(&body),
            (
                "messages[0].content[0].image_url.url".to_owned(),
                Problem::NotOneOf("data:image/(jpeg|png|gif|webp);base64,…, https:…")
            ),
            "{url}"
        );
    }
    let empty = messages(json!([{"role": "user", "content": image("data:image/png;base64,")}]));
    assert_eq!(refused(&empty).1, Problem::Empty);
}

#[test]
fn case_23_image_urls_stay_urls() {
    for url in [
        "https://example.com/a.png?x=1,2",
        "http://169.254.169.254/",
        "HTTPS://x",
    ] {
        let expected = json!([{"type": "image", "source": {"type": "url", "url": url}}]);
        assert_eq!(user(image(url)), expected);
        assert_eq!(
            user(json!([{"type": "image_url", "image_url": url}])),
            expected
        );
    }
}

#[test]
fn case_24_documents_are_translated_and_audio_is_refused() {
    let file = |file: Value| {
        messages(json!([{"role": "user", "content": [{"type": "file", "file": file}]}]))
    };
    let pdf = "data:application/pdf;base64,JVBE";
    let source = json!({"type": "base64", "media_type": "application/pdf", "data": "JVBE"});
    let content = |body: &Value| translated(body)["messages"][0]["content"].clone();
    assert_eq!(
        content(&file(json!({"file_data": pdf, "filename": "a.pdf"}))),
        json!([{"type": "document", "source": source, "title": "a.pdf"}])
    );
    assert_eq!(
        content(&file(json!({"file_data": pdf}))),
        json!([{"type": "document", "source": source}])
    );
    for (body, field) in [
        (
            file(json!({"file_data": "data:text/plain;base64,AAAA"})),
            "file.file_data",
        ),
        (file(json!({"file_data": "JVBE"})), "file.file_data"),
        (file(json!({"file_id": "file-1"})), "file.file_id"),
        (file(json!({})), "file.file_data"),
    ] {
        assert_eq!(named(&body), format!("messages[0].content[0].{field}"));
    }
    let sound = json!([text("a"), {"type": "input_audio", "input_audio": {"data": "AAAA", "format": "wav"}}]);
    let body = messages(json!([{"role": "user", "content": sound}]));
    assert_eq!(
        refused(&body),
        (
            "messages[0].content[1].type".to_owned(),
            Problem::Unsupported
        )
    );
}

#[test]
fn case_25_reasoning_effort_is_translated() {
    let effort = |dialect: &Dialect, effort: &str, max_tokens: u64| {
        let fields = json!({"reasoning_effort": effort, "max_tokens": max_tokens, "temperature": 0.5, "top_p": 0.5});
        with(dialect, &plus(fields)).unwrap()
    };
    // A model that accepts an effort gets the closest level.
    for (wanted, word) in [
        ("minimal", "low"),
        ("low", "low"),
        ("medium", "medium"),
        ("high", "high"),
        ("xhigh", "xhigh"),
        ("max", "max"),
    ] {
        let body = effort(&dialect(), wanted, 100);
        assert_eq!(body["output_config"], json!({"effort": word}));
        assert!(body.get("thinking").is_none() && body["temperature"] == 0.5);
    }
    // A model that accepts a budget gets a number of tokens.
    for (wanted, max_tokens, budget_tokens) in [
        ("minimal", 4096, Some(1024)),
        ("low", 4096, Some(2048)),
        ("high", 4096, Some(2048)),
        ("max", 4096, Some(2048)),
        ("max", 1500, Some(1024)),
        ("max", 1025, Some(1024)),
        ("max", 1024, None),
        ("low", 1, None),
    ] {
        let body = effort(&budget(), wanted, max_tokens);
        assert!(body.get("output_config").is_none());
        let thinking = budget_tokens
            .map(|budget_tokens: u64| json!({"type": "enabled", "budget_tokens": budget_tokens}));
        assert_eq!(
            body.get("thinking"),
            thinking.as_ref(),
            "{wanted} of {max_tokens}"
        );
        for name in ["temperature", "top_p"] {
            assert_eq!(
                body.get(name).is_some(),
                thinking.is_none(),
                "{name}, {wanted} of {max_tokens}"
            );
        }
    }
    // A request to a model that does not reason has no field for reasoning.
    let none = Dialect {
        thinking: Thinking::None,
        ..dialect()
    };
    for dialect in [dialect(), budget()] {
        assert_eq!(
            effort(&dialect, "none", 4096)["thinking"],
            json!({"type": "disabled"})
        );
    }
    for wanted in ["none", "high"] {
        let body = effort(&none, wanted, 4096);
        assert!(body.get("thinking").is_none() && body.get("output_config").is_none());
    }
    assert_eq!(
        refused(&plus(json!({"reasoning_effort": "very"}))),
        (
            "reasoning_effort".to_owned(),
            Problem::NotOneOf(EFFORT_NAMES)
        )
    );
}

#[test]
fn case_26_forced_tool_call_has_no_thinking() {
    for (choice, thinks) in [("required", false), ("auto", true), ("none", true)] {
        let fields =
            json!({"reasoning_effort": "low", "tools": [function("f")], "tool_choice": choice});
        let body = with(&budget(), &plus(fields)).unwrap();
        assert_eq!(body.get("thinking").is_some(), thinks, "{choice}");
    }
}

#[test]
fn turn_that_began_without_thinking_continues_without_it() {
    let loops = json!([
        {"role": "user", "content": "a"},
        {"role": "assistant", "tool_calls": [call("c1", "{}")]},
        {"role": "tool", "tool_call_id": "c1", "content": "one"},
    ]);
    let prefilled =
        json!([{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]);
    let mut ended = loops.clone();
    ended.as_array_mut().unwrap().extend([
        json!({"role": "assistant", "content": "done"}),
        json!({"role": "user", "content": "next"}),
    ]);
    for (list, thinks) in [(loops, false), (prefilled, false), (ended, true)] {
        let mut body = messages(list);
        body["reasoning_effort"] = json!("low");
        let translated = with(&budget(), &body).unwrap();
        assert_eq!(translated.get("thinking").is_some(), thinks, "{body}");
    }
}

#[test]
fn case_27_structured_output_is_translated() {
    let schema = json!({"type": "object", "properties": {"x": {"type": "integer"}}});
    let wanted = json!({"response_format": {"type": "json_schema", "json_schema":
        {"name": "n", "strict": true, "description": "d", "schema": schema}}});
    let body = translated(&plus(wanted.clone()));
    assert_eq!(
        body["output_config"],
        json!({"format": {"type": "json_schema", "schema": schema}})
    );
    let unable = Dialect {
        json_schema: false,
        ..dialect()
    };
    assert!(matches!(
        with(&unable, &plus(wanted)),
        Err(Error::Invalid { field, problem: Problem::Unsupported }) if field == "response_format.type"
    ));

    let mut body = plus(json!({"response_format": {"type": "json_object"}}));
    body["messages"] =
        json!([{"role": "system", "content": "a"}, {"role": "user", "content": "b"}]);
    let body = translated(&body);
    assert_eq!(
        body["system"],
        json!([
            text("a"),
            text("Answer with one JSON object and nothing else.")
        ])
    );
    assert!(body.get("output_config").is_none());

    let text = translated(&plus(json!({"response_format": {"type": "text"}})));
    assert!(text.get("output_config").is_none() && text.get("system").is_none());
    for (format, field) in [
        (json!({"type": "grammar"}), "response_format.type"),
        (
            json!({"type": "json_schema"}),
            "response_format.json_schema",
        ),
        (
            json!({"type": "json_schema", "json_schema": {"name": "n"}}),
            "response_format.json_schema.schema",
        ),
        (json!("json"), "response_format"),
    ] {
        assert_eq!(named(&plus(json!({"response_format": format}))), field);
    }
}

#[test]
fn case_28_user_field_is_kept_and_fields_without_a_counterpart_are_dropped() {
    for (fields, user_id) in [
        (json!({"user": "ann"}), json!({"user_id": "ann"})),
        (
            json!({"user": "ann", "safety_identifier": "h4sh"}),
            json!({"user_id": "h4sh"}),
        ),
        (json!({"user": ""}), Value::Null),
    ] {
        assert_eq!(translated(&plus(fields))["metadata"], user_id);
    }
    let dropped = json!({
        "stream_options": {"include_usage": true}, "logprobs": false, "top_logprobs": 0, "seed": 1,
        "frequency_penalty": 0.5, "presence_penalty": -1, "logit_bias": {"1": 2}, "metadata": {"a": "b"},
        "store": true, "prediction": {"type": "content", "content": "x"}, "verbosity": "low",
        "modalities": ["text"], "prompt_cache_key": "k", "prompt_cache_retention": "24h",
        "service_tier": "auto", "moderation": {}, "unheard_of": null,
    });
    assert_eq!(translated(&plus(dropped)), translated(&plus(json!({}))));
    // These fields are refused, because the response would not contain what the caller expects.
    for fields in [
        json!({"logprobs": true}),
        json!({"unheard_of": 1}),
        json!({"unheard_of": []}),
        json!({"modalities": ["text", "audio"]}),
        json!({"audio": {"voice": "a", "format": "wav"}}),
    ] {
        let name = fields.as_object().unwrap().keys().next().unwrap().clone();
        assert_eq!(refused(&plus(fields)), (name, Problem::Unsupported));
    }
}

#[test]
fn case_29_a_conversation_may_begin_with_the_assistant() {
    let welcome = json!({"role": "assistant", "content": [text("welcome")]});
    let question = json!({"role": "user", "content": [text("a")]});
    for (list, expected) in [
        (
            json!([
                {"role": "assistant", "content": "welcome"},
                {"role": "user", "content": "a"},
            ]),
            json!([welcome, question]),
        ),
        // Instructions are not a turn, and the blank text is left out, so no turn remains.
        (
            json!([
                {"role": "system", "content": "be short"},
                {"role": "user", "content": " "},
                {"role": "assistant", "content": "welcome"},
                {"role": "user", "content": "a"},
            ]),
            json!([welcome, question]),
        ),
        // The caller has cut off the conversation between a tool call and its results.
        (
            json!([
                {"role": "assistant", "tool_calls": [call("c1", "{}")]},
                {"role": "tool", "tool_call_id": "c1", "content": "one"},
            ]),
            json!([
                {"role": "assistant", "content": [tool_use("c1", json!({}))]},
                {"role": "user", "content": [result("c1", "one")]},
            ]),
        ),
        (
            json!([{"role": "assistant", "content": "welcome"}]),
            json!([welcome]),
        ),
    ] {
        assert_eq!(turns(list), expected);
    }
}

#[test]
fn case_30_refusals_in_the_conversation_become_text() {
    let turns = turns(json!([
        {"role": "user", "content": "a"},
        {"role": "assistant", "content": [text("well"), {"type": "refusal", "refusal": "no"}], "refusal": null},
        {"role": "user", "content": "b"},
        {"role": "assistant", "content": "c", "refusal": "dropped", "reasoning_content": "dropped", "annotations": []},
    ]));
    assert_eq!(turns[1]["content"], json!([text("well"), text("no")]));
    assert_eq!(turns[3]["content"], json!([text("c")]));
}

#[test]
fn case_31_legacy_functions_are_refused() {
    let turn = json!({"role": "user", "content": "a"});
    for (body, field) in [
        (plus(json!({"functions": [{"name": "f"}]})), "functions"),
        (plus(json!({"function_call": "auto"})), "function_call"),
        (
            messages(
                json!([turn, {"role": "assistant", "function_call": {"name": "f", "arguments": "{}"}}]),
            ),
            "messages[1].function_call",
        ),
        (
            messages(json!([turn, {"role": "function", "name": "f", "content": "x"}])),
            "messages[1].role",
        ),
        (
            messages(json!([turn, {"role": "assistant", "audio": {"id": "a"}}])),
            "messages[1].audio",
        ),
    ] {
        assert_eq!(named(&body), field);
    }
}

#[test]
fn invalid_tool_call_id_is_encoded_in_the_same_way_in_call_and_result() {
    for (id, written) in [
        ("toolu_01-Ab", "toolu_01-Ab"),
        ("call_9", "call_9"),
        ("functions.f:0", "functions_2ef_3a0"),
        ("ё", "_d1_91"),
    ] {
        let turns = turns(json!([
            {"role": "assistant", "tool_calls": [call(id, "{}")]},
            {"role": "tool", "tool_call_id": id, "content": "x"},
        ]));
        assert_eq!(turns[0]["content"][0]["id"], written);
        assert_eq!(turns[1]["content"][0]["tool_use_id"], written);
    }
}

#[test]
fn requests_of_unusual_shape_are_refused_by_name_without_a_panic() {
    for (list, field) in [
        (json!("x"), "messages"),
        (json!([7]), "messages"),
        (json!([{"content": "x"}]), "messages[0].role"),
        (json!([{"role": 7}]), "messages[0].role"),
        (
            json!([{"role": "user", "content": 7}]),
            "messages[0].content",
        ),
        (
            json!([{"role": "user", "content": [7]}]),
            "messages[0].content",
        ),
        (
            json!([{"role": "user", "content": [{"text": "x"}]}]),
            "messages[0].content[0].type",
        ),
        (
            json!([{"role": "user", "content": [{"type": "text"}]}]),
            "messages[0].content[0].text",
        ),
        (
            json!([{"role": "user", "content": [{"type": "video"}]}]),
            "messages[0].content[0].type",
        ),
        (
            json!([{"role": "user", "content": [{"type": "image_url", "image_url": 7}]}]),
            "messages[0].content[0].image_url",
        ),
        (
            json!([{"role": "assistant", "tool_calls": {}}]),
            "messages[0].tool_calls",
        ),
        (
            json!([{"role": "assistant", "tool_calls": [{}]}]),
            "messages[0].tool_calls[0].id",
        ),
        (
            json!([{"role": "assistant", "tool_calls": [{"id": ""}]}]),
            "messages[0].tool_calls[0].id",
        ),
        (
            json!([{"role": "assistant", "tool_calls": [{"id": "a", "type": "custom"}]}]),
            "messages[0].tool_calls[0].type",
        ),
        (
            json!([{"role": "assistant", "tool_calls": [{"id": "a", "function": {}}]}]),
            "messages[0].tool_calls[0].function.name",
        ),
        (
            json!([{"role": "tool", "content": "x"}]),
            "messages[0].tool_call_id",
        ),
    ] {
        assert_eq!(named(&messages(list.clone())), field, "{list}");
    }
    let cx = RequestCx {
        model: "m",
        output_tokens: 1,
        dialect: &dialect(),
        cache: CacheCx::default(),
    };
    for body in ["", "[]", "7", "{\"messages\":", "\u{feff}{}"] {
        assert!(
            matches!(request(body.as_bytes(), &cx), Err(Error::Invalid { .. })),
            "{body}"
        );
    }
}
