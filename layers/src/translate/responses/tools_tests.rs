use serde_json::{Value, json};

use super::request_tests::{both_refuse, chat, messages};

fn function(name: &str) -> Value {
    json!({"type": "function", "name": name, "parameters": {"type": "object", "properties": {}}})
}

#[test]
fn r30_free_text_tool_becomes_a_function() {
    let body = json!({
        "tools": [{"type": "custom", "name": "patch", "description": "Edits.",
            "format": {"type": "grammar", "syntax": "lark", "definition": "start: \"x\"\n"}}],
        "input": [{"role": "user", "content": "q"},
            {"type": "custom_tool_call", "call_id": "a", "name": "patch", "input": "*** Begin\n\"x\""},
            {"type": "custom_tool_call_output", "call_id": "a", "output": "ok"}]});
    let schema = json!({"type": "object", "properties": {"input": {"type": "string"}},
        "required": ["input"], "additionalProperties": false});
    let description =
        "Edits.\nInput is free text.\nIt must match this lark grammar:\nstart: \"x\"\n";
    let sent = chat(body.clone());
    assert_eq!(
        sent["tools"],
        json!([{"type": "function", "function": {"name": "patch", "description": description, "parameters": schema}}])
    );
    let arguments = sent["messages"][1]["tool_calls"][0]["function"]["arguments"]
        .as_str()
        .unwrap();
    assert_eq!(
        serde_json::from_str::<Value>(arguments).unwrap(),
        json!({"input": "*** Begin\n\"x\""})
    );
    assert_eq!(
        sent["messages"][2],
        json!({"role": "tool", "tool_call_id": "a", "content": "ok"})
    );
    let sent = messages(body);
    assert_eq!(
        sent["tools"],
        json!([{"name": "patch", "description": description, "input_schema": schema}])
    );
    assert_eq!(
        sent["messages"][1]["content"][0]["input"],
        json!({"input": "*** Begin\n\"x\""})
    );
    assert_eq!(sent["messages"][2]["content"][0]["type"], "tool_result");
}

#[test]
fn r31_namespace_becomes_the_prefix_of_its_functions_names() {
    let space = |name: &str| json!({"type": "namespace", "name": name, "description": "About.", "tools": [function("a"), function("b")]});
    let body = json!({"tools": [space("ns"), space("other")], "input": [{"role": "user", "content": "q"},
        {"type": "function_call", "call_id": "c", "namespace": "ns", "name": "a", "arguments": "{}"}]});
    let sent = chat(body.clone());
    let names: Vec<&Value> = sent["tools"]
        .as_array()
        .unwrap()
        .iter()
        .map(|tool| &tool["function"]["name"])
        .collect();
    assert_eq!(names, ["ns__a", "ns__b", "other__a", "other__b"]);
    assert_eq!(sent["tools"][0]["function"]["description"], "About.");
    assert_eq!(
        sent["messages"][1]["tool_calls"][0]["function"]["name"],
        "ns__a"
    );
    assert_eq!(messages(body)["messages"][1]["content"][0]["name"], "ns__a");
    let long = "n".repeat(60);
    let sent = chat(
        json!({"tools": [{"type": "namespace", "name": long, "tools": [function("first"), function("second")]}]}),
    );
    let name = |place: usize| {
        sent["tools"][place]["function"]["name"]
            .as_str()
            .unwrap()
            .to_owned()
    };
    assert!(name(0).len() == 64 && name(0) != name(1), "{}", name(0));
}

#[test]
fn r31_description_of_a_namespace_is_sent_once() {
    let about = "About.".repeat(500);
    let tools: Vec<Value> = (0..50).map(|at| function(&format!("f{at}"))).collect();
    let body = json!({"tools": [
        {"type": "namespace", "name": "ns", "description": about, "tools": tools},
        {"type": "namespace", "name": "other", "description": "Else.", "tools": [
            {"type": "function", "name": "a", "description": "First."}, function("b")]}]});
    let sent = chat(body.clone());
    assert_eq!(sent["tools"][0]["function"]["description"], about);
    assert_eq!(sent["tools"][1]["function"].get("description"), None);
    assert_eq!(
        sent["tools"][50]["function"]["description"],
        "Else.\nFirst."
    );
    for sent in [sent, messages(body.clone())] {
        assert_eq!(sent["tools"].as_array().unwrap().len(), 52);
        assert_eq!(sent.to_string().matches(&about).count(), 1);
    }
    // The description of the namespace is sent with the first of its remaining tools, wherever that tool is in the
    // list.
    let mut allowed = body;
    allowed["tool_choice"] = json!({"type": "allowed_tools", "mode": "auto",
        "tools": [{"type": "function", "namespace": "ns", "name": "f7"}]});
    let sent = chat(allowed);
    assert_eq!(sent["tools"].as_array().unwrap().len(), 1);
    assert_eq!(sent["tools"][0]["function"]["description"], about);
}

#[test]
fn r32_last_of_several_tools_with_the_same_name_is_used() {
    let of = |reported: &str| -> Vec<Value> {
        let tool =
            |at: u32| json!({"type": "custom", "name": format!("f{at}"), "description": reported});
        (0..3).map(tool).collect()
    };
    let all = [of("a"), of("b")].concat();
    let sent = chat(json!({ "tools": all }));
    let tools = sent["tools"].as_array().unwrap();
    assert_eq!(tools.len(), 3);
    for (at, tool) in tools.iter().enumerate() {
        assert_eq!(tool["function"]["name"], format!("f{at}"));
        let description = tool["function"]["description"].as_str().unwrap();
        assert!(description.starts_with("b\n"), "{description}");
    }
}

#[test]
fn r32_r33_tools_listed_in_the_conversation_are_added_and_search_tools_are_dropped() {
    let body = json!({"tools": [function("a"), {"type": "tool_search", "execution": "client"}], "input": [
        {"type": "additional_tools", "role": "developer", "tools": [
            {"type": "function", "name": "a", "description": "later"}, {"type": "custom", "name": "c"}]},
        {"role": "user", "content": "q"}]});
    let sent = chat(body.clone());
    assert_eq!(sent["tools"][0]["function"]["description"], "later");
    assert_eq!(sent["tools"].as_array().unwrap().len(), 2);
    assert_eq!(sent["messages"].as_array().unwrap().len(), 1);
    assert_eq!(messages(body)["tools"].as_array().unwrap().len(), 2);
    let searched = json!({"input": [{"type": "tool_search_call", "call_id": "a"}]});
    assert_eq!(both_refuse(searched), "input[0].type");
}

#[test]
fn two_tools_with_the_same_flat_name_are_refused() {
    let space = json!({"type": "namespace", "name": "n", "tools": [function("a"), function("b")]});
    assert_eq!(
        both_refuse(json!({"tools": [space, function("n__a")]})),
        "tools[1].name"
    );
    assert_eq!(
        both_refuse(json!({"tools": [function("n__b"), space]})),
        "tools[1].tools[1].name"
    );
    // A tool that the request lists twice is sent once.
    let mut again = function("a");
    again["description"] = json!("again");
    let body = json!({"tools": [space, function("a"), again]});
    let sent = messages(body);
    let tools = sent["tools"].as_array().unwrap();
    assert_eq!(tools.len(), 3);
    assert_eq!(
        (&tools[2]["name"], &tools[2]["description"]),
        (&json!("a"), &json!("again"))
    );
}

#[test]
fn r13_web_search_is_removed_if_it_is_only_offered() {
    let both = json!({"tools": [{"type": "web_search"}, function("a")], "tool_choice": "auto"});
    assert_eq!(chat(both.clone())["tools"].as_array().unwrap().len(), 1);
    assert_eq!(messages(both)["tools"].as_array().unwrap().len(), 1);
    let allowed = json!({"type": "allowed_tools", "mode": "required", "tools": [{"type": "function", "name": "a"}]});
    for choice in [
        json!({"type": "function", "name": "a"}),
        allowed.clone(),
        json!("none"),
        Value::Null,
    ] {
        let body = json!({"tools": [function("a"), {"type": "web_search"}], "tool_choice": choice});
        for sent in [chat(body.clone()), messages(body)] {
            assert_eq!(sent["tools"].as_array().unwrap().len(), 1, "{choice}");
        }
    }
    let mut listed = allowed;
    listed["tools"] = json!([{"type": "function", "name": "a"}, {"type": "web_search"}]);
    for meant in [
        json!({"tools": [{"type": "web_search"}]}),
        json!({"tools": [{"type": "web_search"}, function("a")], "tool_choice": listed}),
        json!({"tools": [{"type": "web_search_preview"}, function("a")], "tool_choice": "required"}),
        json!({"tools": [{"type": "web_search"}, function("a")], "tool_choice": {"type": "web_search"}}),
    ] {
        assert_eq!(both_refuse(meant), "tools[0].type");
    }
}

#[test]
fn r34_tools_field_is_omitted_if_there_are_no_tools() {
    let body = json!({"tools": [], "tool_choice": "auto", "parallel_tool_calls": true});
    for sent in [chat(body.clone()), messages(body)] {
        for field in ["tools", "tool_choice", "parallel_tool_calls"] {
            assert!(sent.get(field).is_none(), "{sent}");
        }
    }
    assert_eq!(
        both_refuse(json!({"tools": [], "tool_choice": "required"})),
        "tool_choice"
    );
}

#[test]
fn r35_tool_choice_is_translated() {
    let tools = json!([function("a"), {"type": "custom", "name": "c"}, {"type": "namespace", "name": "n", "tools": [function("x")]}]);
    let named = |name: &str| json!({"type": "function", "function": {"name": name}});
    for (choice, to_chat, to_messages) in [
        (json!("auto"), json!("auto"), json!({"type": "auto"})),
        (json!("none"), json!("none"), json!({"type": "none"})),
        (json!("required"), json!("required"), json!({"type": "any"})),
        (
            json!({"type": "function", "name": "a"}),
            named("a"),
            json!({"type": "tool", "name": "a"}),
        ),
        (
            json!({"type": "custom", "name": "c"}),
            named("c"),
            json!({"type": "tool", "name": "c"}),
        ),
        (
            json!({"type": "function", "name": "x", "namespace": "n"}),
            named("n__x"),
            json!({"type": "tool", "name": "n__x"}),
        ),
    ] {
        let body = json!({"tools": tools, "tool_choice": choice});
        assert_eq!(chat(body.clone())["tool_choice"], to_chat, "{choice}");
        assert_eq!(messages(body)["tool_choice"], to_messages, "{choice}");
    }
    let body = json!({"tools": tools, "tool_choice": {"type": "allowed_tools", "mode": "required",
        "tools": [{"type": "function", "name": "a"}]}, "parallel_tool_calls": false});
    let sent = chat(body.clone());
    assert_eq!(sent["tools"].as_array().unwrap().len(), 1);
    assert_eq!(
        (&sent["tool_choice"], &sent["parallel_tool_calls"]),
        (&json!("required"), &json!(false))
    );
    assert_eq!(
        messages(body)["tool_choice"],
        json!({"type": "any", "disable_parallel_tool_use": true})
    );
}

#[test]
fn r36_r37_strict_flag_and_tool_schemas_are_translated() {
    for (strict, stored) in [
        (Value::Null, false),
        (json!(false), false),
        (json!(true), true),
    ] {
        let body = json!({"tools": [{"type": "function", "name": "f", "strict": strict, "parameters": null}]});
        let sent = chat(body.clone());
        let function = &sent["tools"][0]["function"];
        assert_eq!(function.get("strict"), stored.then_some(&json!(true)));
        assert_eq!(
            function["parameters"],
            json!({"type": "object", "properties": {}})
        );
        assert_eq!(
            messages(body)["tools"][0].get("strict"),
            stored.then_some(&json!(true))
        );
    }
}
