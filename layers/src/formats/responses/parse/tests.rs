use super::*;
use crate::call::InputSize;

fn read(body: &str) -> Result<Call, Error> {
    call(body.as_bytes(), 5)
}

/// Returns a body with a model and these fields. If the fields do not include `input`, the body gets an `input`.
fn with(fields: &str) -> String {
    let input = match fields.contains("\"input\"") {
        true => "",
        false => r#","input":"hi""#,
    };
    format!(r#"{{"model":"m"{input},{fields}}}"#)
}

fn refused(body: &str) -> (String, Problem) {
    match read(body) {
        Err(Error::Invalid { field, problem }) => (field.into_owned(), problem),
        other => panic!("{body}: {other:?}"),
    }
}

fn size(fields: &str) -> InputSize {
    read(&with(fields)).unwrap().input
}

/// Returns the body as it is sent to a Responses vendor, that is, without the parts that are cut out.
fn sent(fields: &str) -> String {
    let body = with(fields);
    let spans = *read(&body).unwrap().spans.responses.unwrap();
    let (mut rest, mut at) = (String::new(), 0);
    for cut in &spans.cut {
        rest.push_str(&body[at..cut.start]);
        at = cut.end;
    }
    rest.push_str(&body[at..]);
    rest
}

#[test]
fn fields_of_a_responses_request_and_their_positions_are_found() {
    let body = r#"{ "model" : "gpt", "input":"hi","max_output_tokens": 7 ,"stream":true,
        "store": null,"include":[ "a", "reasoning.encrypted_content" ]}"#;
    let call = read(body).unwrap();
    assert_eq!(
        (call.format, call.model.as_str(), call.stream, call.choices),
        (Format::Responses, "gpt", true, 1)
    );
    assert_eq!((call.output_tokens, call.usage_asked), (Some(7), true));
    assert_eq!(&body[call.spans.model.clone()], "\"gpt\"");
    assert_eq!(&body[call.spans.max_tokens.clone().unwrap()], "7");
    let own = call.spans.responses.unwrap();
    assert_eq!(&body[own.store.unwrap()], "null");
    assert!(body[own.include.unwrap()].starts_with("[ \"a\""));
    assert!(own.encrypted_reasoning_asked && own.cut.is_empty());
}

#[test]
fn invalid_responses_field_is_refused_by_name() {
    let deep = format!("\"x\":{}{}", "[".repeat(65), "]".repeat(65));
    for (fields, field, problem) in [
        (
            r#""input":null"#,
            "input",
            Problem::WrongType("string or array"),
        ),
        (r#""input":[]"#, "input", Problem::Empty),
        (r#""input":"""#, "input", Problem::Empty),
        (
            r#""input":7"#,
            "input",
            Problem::WrongType("string or array"),
        ),
        (r#""input":["x"]"#, "input[0]", Problem::WrongType("object")),
        (
            r#""max_output_tokens":0"#,
            "max_output_tokens",
            Problem::BelowMin(1),
        ),
        (
            r#""max_output_tokens":-1"#,
            "max_output_tokens",
            Problem::WrongType("integer"),
        ),
        (
            r#""max_output_tokens":1.5"#,
            "max_output_tokens",
            Problem::WrongType("integer"),
        ),
        (
            r#""max_output_tokens":"5""#,
            "max_output_tokens",
            Problem::WrongType("integer"),
        ),
        (r#""model":"n""#, "model", Problem::Duplicate),
        (
            r#""instructions":[]"#,
            "instructions",
            Problem::WrongType("string"),
        ),
        (&deep, "x", Problem::TooDeep(64)),
        (
            r#""input":[{"content":"x"}]"#,
            "input[0].type",
            Problem::Missing,
        ),
        (
            r#""input":[{"role":"king","content":"x"}]"#,
            "input[0].role",
            Problem::NotOneOf("system, developer, user, assistant"),
        ),
        (
            r#""input":[{"role":"user"}]"#,
            "input[0].content",
            Problem::Missing,
        ),
        (
            r#""input":[{"role":"user","content":[{"text":"x"}]}]"#,
            "input[0].content[0].type",
            Problem::Missing,
        ),
        (
            r#""input":[{"role":"user","content":[{"type":"input_audio","input_audio":{}}]}]"#,
            "input[0].content[0].input_audio",
            Problem::Unsupported,
        ),
        (
            r#""input":[{"type":"song"}]"#,
            "input[0].type",
            Problem::Unsupported,
        ),
        (
            r#""input":[{"type":"function_call_output","output":[{"stdout":"x"},{"type":"input_video","video_url":"https://h/v"}]}]"#,
            "input[0].output[1].type",
            Problem::Unsupported,
        ),
        (
            r#""input":[{"type":"computer_call_output","output":{"type":"input_audio","url":"https://h/a"}}]"#,
            "input[0].output.type",
            Problem::Unsupported,
        ),
        (
            r#""tools":[{"name":"f"}]"#,
            "tools[0].type",
            Problem::Missing,
        ),
        (
            r#""tools":[{"type":"hammer"}]"#,
            "tools[0].type",
            Problem::Unsupported,
        ),
    ] {
        assert_eq!(
            refused(&with(fields)),
            (field.to_owned(), problem),
            "{fields}"
        );
    }
    let messages = r#"{"model":"m","messages":[{"role":"user","content":"x"}]}"#;
    assert_eq!(refused(messages), ("input".to_owned(), Problem::Missing));
    assert_eq!(
        refused(r#"{"input":"x"}"#),
        ("model".to_owned(), Problem::Missing)
    );
    assert!(matches!(refused("{").1, Problem::NotJson(_)));
    let many = [r#"{"role":"user","content":"x"}"#; 6].join(",");
    assert_eq!(
        refused(&with(&format!(r#""input":[{many}]"#))),
        ("input".to_owned(), Problem::AboveMax(5))
    );
    assert_eq!(
        read(&with(r#""max_output_tokens":1"#))
            .unwrap()
            .output_tokens,
        Some(1)
    );
}

#[test]
fn features_with_their_own_price_and_references_to_stored_state_are_refused() {
    let state = Problem::StateUnsupported;
    for (fields, field, problem) in [
        (
            r#""previous_response_id":"resp_1""#,
            "previous_response_id",
            &state,
        ),
        (r#""conversation":"conv_1""#, "conversation", &state),
        (r#""conversation":{"id":"conv_1"}"#, "conversation", &state),
        (r#""prompt":{"id":"p"}"#, "prompt", &state),
        (r#""background":true"#, "background", &state),
        (
            r#""context_management":[{"type":"compaction"}]"#,
            "context_management",
            &state,
        ),
        (
            r#""input":[{"type":"compaction_trigger"}]"#,
            "input[0].type",
            &state,
        ),
        (r#""store":true"#, "store", &Problem::StoreUnsupported),
        (
            r#""reasoning":{"effort":"high","mode":"pro"}"#,
            "reasoning.mode",
            &Problem::Unsupported,
        ),
        (
            r#""prompt_cache_options":{"prewarm":true}"#,
            "prompt_cache_options.prewarm",
            &Problem::Unsupported,
        ),
        (r#""models":["a"]"#, "models[0]", &Problem::Unsupported),
        (
            r#""modalities":["text","audio"]"#,
            "modalities[1]",
            &Problem::Unsupported,
        ),
        (r#""audio":{"voice":"v"}"#, "audio", &Problem::Unsupported),
        (r#""speed":"fast""#, "speed", &Problem::Unsupported),
        (
            r#""inference_geo":"us""#,
            "inference_geo",
            &Problem::Unsupported,
        ),
        (r#""n":2"#, "n", &Problem::AboveMax(1)),
    ] {
        assert_eq!(
            refused(&with(fields)),
            (field.to_owned(), problem.clone()),
            "{fields}"
        );
    }
    let usual = r#""previous_response_id":null,"conversation":null,"prompt":null,"background":false,
        "context_management":null,"store":false,"service_tier":"auto","truncation":"auto",
        "reasoning":{"mode":"standard","summary":"auto"},"prompt_cache_options":{"ttl":"30m"},
        "modalities":["text"],"audio":null,"speed":"standard","inference_geo":"global","n":1"#;
    assert_eq!(read(&with(usual)).unwrap().asks, None);
    for (fields, field) in [
        (r#""service_tier":"flex""#, "service_tier"),
        (
            r#""prompt_cache_options":{"ttl":"12h"}"#,
            "prompt_cache_options.ttl",
        ),
    ] {
        let asks = read(&with(fields)).unwrap().asks.unwrap();
        let kinds = [
            crate::price::Unpriced::ServiceTier,
            crate::price::Unpriced::Class(crate::price::Class::CacheWrite12h),
        ];
        assert!(
            kinds.iter().any(|kind| asks.field(*kind) == Some(field)),
            "{asks:?}"
        );
    }
}

#[test]
fn reference_to_stored_content_is_refused_with_its_path() {
    for (fields, field, problem) in [
        (
            r#""input":[{"role":"user","content":"x"},{"type":"item_reference","id":"rs_1"}]"#,
            "input[1].type",
            Problem::ReferenceUnsupported,
        ),
        (
            r#""input":[{"id":"rs_1"}]"#,
            "input[0].type",
            Problem::ReferenceUnsupported,
        ),
        (
            r#""input":[{"role":"user","content":[{"type":"input_text","text":"x"},{"type":"input_image","file_id":"f"}]}]"#,
            "input[0].content[1].file_id",
            Problem::SizeUnseen,
        ),
        (
            r#""input":[{"role":"user","content":[{"type":"input_file","file_id":"f"}]}]"#,
            "input[0].content[0].file_id",
            Problem::SizeUnseen,
        ),
        (
            r#""input":[{"role":"user","content":[{"type":"input_file","file_url":"https://h/f"}]}]"#,
            "input[0].content[0].file_url",
            Problem::SizeUnseen,
        ),
        (
            r#""input":[{"type":"function_call_output","call_id":"c","output":[{"type":"input_image","file_id":"f"}]}]"#,
            "input[0].output[0].file_id",
            Problem::SizeUnseen,
        ),
        (
            r#""input":[{"type":"computer_call_output","output":{"type":"computer_screenshot","file_id":"f"}}]"#,
            "input[0].output.file_id",
            Problem::SizeUnseen,
        ),
        (
            r#""input":[{"type":"image_generation_call","result":"AAAA"}]"#,
            "input[0].type",
            Problem::ToolUnsupported,
        ),
        (
            r#""input":[{"type":"mcp_call"}]"#,
            "input[0].type",
            Problem::ToolUnsupported,
        ),
    ] {
        assert_eq!(
            refused(&with(fields)),
            (field.to_owned(), problem),
            "{fields}"
        );
    }
    let inline = r#""input":[{"role":"user","content":[{"type":"input_image","image_url":"https://h/i","file_id":null},
        {"type":"input_file","file_data":"data:application/pdf;base64,AAAA","filename":"a"}]}]"#;
    let InputSize {
        images, documents, ..
    } = size(inline);
    assert_eq!((images, documents), (1, 1));
    // In a text file, every byte may be a token. An image at its original size counts as two images.
    let of = |part: &str| {
        size(&format!(
            r#""input":[{{"role":"user","content":[{part}]}}]"#
        ))
    };
    let text = |kind: &str| {
        let data = "A".repeat(4000);
        let part = format!(
            r#"{{"type":"input_file","file_data":"data:{kind};base64,{data}","filename":"a"}}"#
        );
        of(&part).text_bytes
    };
    assert_eq!(text("text/plain") - text("application/pdf"), 3000);
    let image = |detail: &str| {
        of(&format!(
            r#"{{"type":"input_image","image_url":"https://h/i","detail":{detail}}}"#
        ))
        .images
    };
    assert_eq!(["null", "\"high\"", "\"original\""].map(image), [1, 1, 2]);
}

const FUNCTION: &str = r#"{"type":"function","name":"f"}"#;
const SEARCH: &str = r#"{"type":"web_search"}"#;

#[test]
fn web_search_that_the_request_does_not_require_is_removed() {
    let function = FUNCTION;
    for (tools, left) in [
        (format!("[{function},{SEARCH}]"), format!("[{function}]")),
        (
            format!("[{SEARCH}, {function} ]"),
            format!("[ {function} ]"),
        ),
        (
            format!(
                r#"[{function} , {{"type":"web_search_preview_2025_03_11"}} ,{SEARCH}, {function}]"#
            ),
            format!("[{function}, {function}]"),
        ),
        (
            format!(r#"[{SEARCH},{SEARCH},{{"type":"custom","name":"c"}}]"#),
            r#"[{"type":"custom","name":"c"}]"#.to_owned(),
        ),
        (
            format!(r#"[{SEARCH},{{"type":"namespace","name":"n","tools":[{function}]}}]"#),
            format!(r#"[{{"type":"namespace","name":"n","tools":[{function}]}}]"#),
        ),
    ] {
        for choice in [
            "",
            r#","tool_choice":"auto""#,
            r#","tool_choice":null"#,
            r#","tool_choice":"none""#,
        ] {
            let fields = format!(r#""tools":{tools}{choice}"#);
            assert_eq!(sent(&fields), with(&format!(r#""tools":{left}{choice}"#)));
        }
    }
    let elsewhere = format!(
        r#""tools":[{SEARCH}],"input":[{{"type":"additional_tools","role":"developer","tools":[{function}]}}]"#
    );
    assert!(sent(&elsewhere).contains(r#""tools":[],"#));
    for (tools, choice, index) in [
        (format!("[{SEARCH}]"), "", 0),
        (
            format!("[{function},{SEARCH}]"),
            r#","tool_choice":"required""#,
            1,
        ),
        (
            format!("[{function},{SEARCH}]"),
            r#","tool_choice":{"type":"web_search"}"#,
            1,
        ),
        (
            format!("[{function},{SEARCH}]"),
            r#","tool_choice":{"type":"allowed_tools","mode":"auto","tools":[{"type":"web_search"}]}"#,
            1,
        ),
        (format!(r#"[{{"type":"apply_patch"}},{SEARCH}]"#), "", 1),
    ] {
        let fields = format!(r#""tools":{tools}{choice}"#);
        let expected = (format!("tools[{index}].type"), Problem::SearchUnsupported);
        assert_eq!(refused(&with(&fields)), expected, "{fields}");
    }
}

#[test]
fn tool_that_a_vendor_runs_is_refused_even_if_the_request_also_has_functions() {
    for kind in [
        "file_search",
        "code_interpreter",
        "image_generation",
        "mcp",
        "programmatic_tool_calling",
    ] {
        let fields = format!(r#""tools":[{FUNCTION},{{"type":"{kind}"}}]"#);
        assert_eq!(
            refused(&with(&fields)),
            ("tools[1].type".to_owned(), Problem::ToolUnsupported)
        );
        let fields = format!(
            r#""input":[{{"role":"user","content":"x"}},{{"type":"additional_tools","tools":[{{"type":"{kind}"}}]}}]"#
        );
        let field = "input[1].tools[0].type".to_owned();
        assert_eq!(refused(&with(&fields)), (field, Problem::ToolUnsupported));
    }
    let shell = |environment: &str| with(&format!(r#""tools":[{{"type":"shell"{environment}}}]"#));
    for container in ["container_auto", "container_reference"] {
        let body = shell(&format!(r#","environment":{{"type":"{container}"}}"#));
        assert_eq!(
            refused(&body),
            ("tools[0].environment".to_owned(), Problem::ToolUnsupported)
        );
    }
    for local in [
        "",
        r#","environment":null"#,
        r#","environment":{"type":"local"}"#,
    ] {
        assert_eq!(read(&shell(local)).unwrap().input.tools, 1);
    }
}

#[test]
fn comma_of_a_removed_field_is_removed_too() {
    let reasoning = r#"{"type":"reasoning","id":"rs_1","summary":[]}"#;
    let stored = r#"{"type":"reasoning","id":"rs_1","summary":[],"encrypted_content":"AAAA"}"#;
    let raw = r#"{"type":"reasoning","content":[{"type":"reasoning_text","text":"x"}]}"#;
    let user = r#"{"role":"user","content":"x"}"#;
    for (fields, left) in [
        (
            r#""client_metadata":{"a":"b,\"c"},"x":1"#.to_owned(),
            r#""x":1"#.to_owned(),
        ),
        (
            r#""x":1 , "client_metadata" : {"a":[1]} "#.to_owned(),
            r#""x":1  "#.to_owned(),
        ),
        (
            format!(r#""input":[{user},{reasoning},{stored},{raw},{reasoning}]"#),
            format!(r#""input":[{user},{stored},{raw}]"#),
        ),
        (
            format!(r#""input":[{reasoning},{user}]"#),
            format!(r#""input":[{user}]"#),
        ),
    ] {
        assert_eq!(sent(&fields), with(&left), "{fields}");
    }
    let nothing = format!(r#""input":[{reasoning}]"#);
    assert_eq!(
        refused(&with(&nothing)),
        ("input".to_owned(), Problem::Empty)
    );
}

#[test]
fn reasoning_of_a_translated_response_is_not_sent_to_a_responses_vendor() {
    let capsule = r#"{"type":"reasoning","summary":[{"type":"summary_text","text":"s"}],"content":[],"encrypted_content":"tg1.YQ.W10"}"#;
    let user = r#"{"role":"user","content":"tg1."}"#;
    let call = r#"{"type":"function_call","call_id":"c","name":"f","arguments":"{}"}"#;
    let fields = format!(r#""input":[{user},{capsule},{call},{capsule}]"#);
    assert_eq!(
        sent(&fields),
        with(&format!(r#""input":[{user},{call}]"#)),
        "the translations have the body with it"
    );
    let alone = with(&format!(r#""input":[{capsule}]"#));
    assert_eq!(refused(&alone), ("input".to_owned(), Problem::Empty));
}

#[test]
fn text_of_a_responses_request_is_counted_in_every_field() {
    let alone = size(r#""x":"""#).text_bytes;
    for (fields, bytes) in [
        (r#""instructions":"abc""#, 3),
        (r#""reasoning":{"effort":"low"}"#, 11),
        (r#""text":{"format":{"type":"json_schema"}}"#, 23),
    ] {
        assert!(size(fields).text_bytes >= alone - 1 + bytes, "{fields}");
    }
    let of_input = |items: &str| {
        let InputSize {
            text_bytes,
            messages,
            tools,
            ..
        } = size(&format!(r#""input":[{items}]"#));
        (text_bytes, messages, tools)
    };
    assert_eq!(of_input(r#"{"role":"user","content":"\u043f"}"#), (2, 1, 0));
    assert_eq!(
        of_input(r#"{"role":"user","content":[{"type":"input_text","text":"abc"}]}"#),
        (3, 1, 0)
    );
    let call = r#"{"type":"function_call","call_id":"c","name":"f","arguments":"{\"a\":1}"}"#;
    assert_eq!(of_input(call), (1 + 1 + 7, 1, 0));
    let output = r#"{"type":"function_call_output","call_id":"c","output":"abcd"}"#;
    assert_eq!(of_input(output), (1 + 4, 1, 0));
    let encrypted = r#"{"type":"reasoning","summary":[],"encrypted_content":"AAAAAAAA"}"#;
    assert_eq!(of_input(encrypted), (2 + 8, 1, 0));
    let tools = r#"{"type":"additional_tools","tools":[{"type":"namespace","name":"ns","tools":[
        {"type":"function","name":"f"},{"type":"function","name":"g"}]}]}"#;
    let names = 3 * "type".len() + 3 * "name".len() + "tools".len();
    assert_eq!(of_input(tools), (4 + names as u64, 1, 3));
}

proptest::proptest! {
    /// Whatever is cut out, and with any white space, the rest of the body is valid JSON and has all other tools and
    /// fields.
    #[test]
    fn body_without_its_removed_fields_is_valid_json(
        stays in proptest::collection::vec(proptest::bool::ANY, 1..7),
        blank in "[ \n\t]{0,2}",
        client in 0..3,
    ) {
        let tools = stays.iter().map(|stays| if *stays { FUNCTION } else { SEARCH });
        let tools: Vec<_> = tools.chain([FUNCTION]).collect();
        let tools = tools.join(&format!("{blank},{blank}"));
        let tools = format!("\"tools\"{blank}:{blank}[{blank}{tools}{blank}]");
        let metadata = format!("\"client_metadata\"{blank}:{blank}{{\"a\":\",\"}}");
        let fields = match client {
            0 => tools,
            1 => format!("{metadata}{blank},{blank}{tools}"),
            _ => format!("{tools}{blank},{blank}{metadata}{blank}"),
        };
        let left: serde_json::Value = serde_json::from_str(&sent(&fields)).unwrap();
        let stored = 1 + stays.iter().filter(|stays| **stays).count();
        let function: serde_json::Value = serde_json::from_str(FUNCTION).unwrap();
        proptest::prop_assert_eq!(&left["tools"], &serde_json::Value::from(vec![function; stored]));
        proptest::prop_assert!(left.get("client_metadata").is_none());
    }
}

#[test]
fn cache_control_is_found_in_every_part_of_a_responses_request() {
    use crate::price::{Class, Unpriced};
    for (fields, name) in [
        ("MARK", "cache_control"),
        (
            r#""input":[{"role":"user","content":"x",MARK}]"#,
            "input[0].cache_control",
        ),
        (
            r#""input":[{"type":"function_call","name":"f",MARK}]"#,
            "input[0].cache_control",
        ),
        (
            r#""input":[{"role":"user","content":[{"type":"input_text","text":"x",MARK}]}]"#,
            "input[0].content[0].cache_control",
        ),
        (
            r#""input":[{"type":"function_call_output","output":[{"type":"input_text","text":"x",MARK}]}]"#,
            "input[0].output[0].cache_control",
        ),
        (
            r#""tools":[{"type":"function","name":"f",MARK}]"#,
            "tools[0].cache_control",
        ),
        (
            r#""tools":[{"type":"namespace","name":"n","tools":[{"type":"function","name":"f",MARK}]}]"#,
            "tools[0].tools[0].cache_control",
        ),
    ] {
        let of = |ttl: &str| {
            let mark = format!(r#""cache_control":{{"type":"ephemeral","ttl":"{ttl}"}}"#);
            with(&fields.replace("MARK", &mark))
        };
        assert_eq!(read(&of("5m")).unwrap().asks, None, "{fields}");
        let asks = read(&of("1h")).unwrap().asks.unwrap();
        let field = format!("{name}.ttl");
        assert_eq!(
            asks.field(Unpriced::Class(Class::CacheWrite1h)),
            Some(&*field)
        );
        let asks = read(&of("9h")).unwrap().asks.unwrap();
        assert_eq!(asks.unknown(), Some(&*field));
        // A cache mark counts as input, like a field that the parser does not read.
        let unread = of("1h").replace("cache_", "cache-");
        assert_eq!(
            read(&of("1h")).unwrap().input,
            read(&unread).unwrap().input,
            "{fields}"
        );
    }
}

#[test]
fn custom_tool_input_counts_by_its_bytes_in_the_request() {
    let of = |text: &str| {
        let call =
            format!(r#""input":[{{"type":"custom_tool_call","name":"f","input":"{text}"}}]"#);
        size(&call).text_bytes
    };
    let nothing = of("");
    assert_eq!(of("abc"), nothing + 3);
    // Another format puts this text into the arguments of a tool call, in which the characters of an escape are text.
    assert_eq!(of(&"\\u0001".repeat(100)), nothing + 600);
    assert_eq!(of(&"\\n\\\"".repeat(100)), nothing + 400);
}
