//! Tests that hold for every format: a request stays the same if it is written and read again, and if it is translated.

use std::borrow::Cow;

use bytes::Bytes;
use proptest::prelude::*;
use serde_json::{Value, json};

use super::{
    chat, messages, responses,
    tests::escaped,
    toy_tests::{self, ToyRequest},
    turn::request::{Choice, Effort, Named, RequestWriter, Settings, Vendor, translate},
};
use crate::{
    call::Format,
    formats::wire::{self, CacheCx, Object, RequestCx},
    model::Dialect,
    path::Path,
};

const FORMATS: [Format; 3] = [Format::Chat, Format::Messages, Format::Responses];

fn fields(body: &[u8]) -> Object<'_, 'static> {
    let (path, raw) = (Path::Root, serde_json::from_slice(body).unwrap());
    wire::Value { path, raw }.object().unwrap()
}

fn cx(dialect: &Dialect) -> RequestCx<'_> {
    RequestCx {
        model: "m",
        output_tokens: 99,
        dialect,
        cache: CacheCx::default(),
    }
}

/// Adds these settings to the settings that the toy format has.
fn with_settings<'a>(fields: &Object<'a, '_>, settings: Settings<'a>) -> Settings<'a> {
    let get = |name: &'static str| fields.get(name).unwrap().map(|value| value.raw);
    Settings {
        choice: get("choice").map(|choice| match choice.get() {
            "\"Auto\"" => Choice::Auto,
            "\"None\"" => Choice::None,
            "\"Required\"" => Choice::Required,
            _ => Choice::Tool(Named {
                name: Cow::Borrowed(choice),
                custom: false,
            }),
        }),
        parallel: get("parallel").map(|_| false),
        effort: get("effort").map(|word| Effort {
            field: "effort",
            word: serde_json::from_str(word.get()).unwrap(),
        }),
        user: get("user"),
        ..settings
    }
}

/// Returns the settings that are missing in the toy format.
fn settings_json(settings: &Settings<'_>) -> Value {
    json!({
        "choice": settings.choice.as_ref().map(|choice| match choice {
            Choice::Tool(tool) => json!(tool.name),
            choice => json!(format!("{choice:?}")),
        }),
        "parallel": settings.parallel,
        "effort": settings.effort.as_ref().map(|effort| &effort.word),
        "temperature": settings.temperature,
        "user": settings.safety_identifier.or(settings.user).or(settings.user_id),
    })
}

/// Translates a request of the toy format.
fn written(vendor: Format, toy: &Value) -> Bytes {
    fn pass<'a, W: RequestWriter<'a>>(fields: &Object<'a, '_>, mut writer: W) -> Bytes {
        let settings = toy_tests::read_request(fields, &mut writer).unwrap();
        writer.finish(with_settings(fields, settings), 0).unwrap()
    }
    let (body, dialect) = (toy.to_string(), Dialect::default());
    let (fields, cx) = (fields(body.as_bytes()), cx(&dialect));
    match vendor {
        Format::Chat => pass(&fields, chat::RequestWriter::new(&cx, false)),
        Format::Messages => pass(&fields, messages::RequestWriter::new(&cx)),
        Format::Responses => pass(&fields, responses::RequestWriter::new(&cx, false)),
    }
}

/// Translates a request to the toy format.
fn read(caller: Format, body: &[u8]) -> Value {
    let (fields, mut writer) = (fields(body), ToyRequest::default());
    let to = Vendor {
        name: "v",
        dialect: &Dialect::default(),
        turns: caller == Format::Messages,
        requested: body.len(),
    };
    let settings = match caller {
        Format::Chat => chat::read_request(&fields, &to, &mut writer),
        Format::Messages => messages::read_request(&fields, &to, &mut writer),
        Format::Responses => responses::read_request(&fields, &to, &mut writer),
    };
    let settings = settings.unwrap();
    let mut request = settings_json(&settings);
    let toy = writer.finish(settings, 0).unwrap();
    let toy: Value = serde_json::from_slice(&toy).unwrap();
    for (name, value) in toy.as_object().unwrap() {
        request[name] = value.clone();
    }
    request
}

/// Generates a text that is not blank, because some formats leave out blank texts.
fn texts() -> impl Strategy<Value = Value> {
    escaped().prop_map(|text| serde_json::from_str(&format!("\"{text}x\"")).unwrap())
}

/// Generates settings that every format can carry. In the Messages format, calls can be forbidden to be parallel only
/// together with a tool choice.
fn settings() -> impl Strategy<Value = Value> {
    let choices = prop_oneof![
        Just((json!(null), json!(null))),
        Just((json!("None"), json!(null))),
        Just((json!("Auto"), json!(false))),
        Just((json!("Required"), json!(null))),
        Just((json!("f"), json!(false))),
    ];
    let efforts = prop_oneof![Just(json!(null)), Just(json!("low")), Just(json!("max"))];
    let schema = json!({"type": "object", "properties": {"a": {"const": 1.0}}});
    (choices, efforts, any::<bool>(), any::<bool>()).prop_map(
        move |((choice, parallel), effort, stream, some)| {
            let with_tools = |value: Value| if some { value } else { Value::Null };
            json!({
                "tools": if some { json!([["f", schema], ["g", schema]]) } else { json!([]) },
                "choice": with_tools(choice),
                "parallel": with_tools(parallel),
                "effort": effort,
                "stream": stream,
                "temperature": if some { json!(0.5) } else { Value::Null },
                "user": if stream { json!("u-1") } else { Value::Null },
            })
        },
    )
}

fn requests() -> impl Strategy<Value = Value> {
    let calls = prop::collection::vec(("[a-z]{1,8}", texts(), texts()), 0..3);
    let rounds = prop::collection::vec((texts(), prop::option::of(texts()), calls), 1..4);
    (prop::option::of(texts()), rounds, settings()).prop_map(
        |(instructions, rounds, mut request)| {
            let mut pieces: Vec<Value> = instructions
                .into_iter()
                .map(|text| json!(["instruct", text]))
                .collect();
            for (round, (question, answer, calls)) in rounds.into_iter().enumerate() {
                pieces.push(json!(["user", question]));
                // Some formats merge two texts of the user if no response is between these texts.
                let answer = answer.or_else(|| calls.is_empty().then(|| json!("so")));
                pieces.extend(answer.map(|text| json!(["assistant", text])));
                let mut results = Vec::new();
                for (index, (name, argument, result)) in calls.into_iter().enumerate() {
                    let id = format!("c{round}_{index}");
                    pieces.push(json!(["call", id, name, {"a": argument}]));
                    results.push(json!(["result", id, result]));
                }
                pieces.append(&mut results);
            }
            request["pieces"] = json!(pieces);
            request
        },
    )
}

proptest! {
    #[test]
    fn request_is_unchanged_after_it_is_written_and_read_again(toy in requests()) {
        for format in FORMATS {
            prop_assert_eq!(&read(format, &written(format, &toy)), &toy, "{:?}", format);
        }
    }

    #[test]
    fn request_is_unchanged_after_every_translation(toy in requests()) {
        let dialect = Dialect::default();
        for caller in FORMATS {
            let requested = written(caller, &toy);
            for vendor in FORMATS {
                let sent = translate(caller, vendor, &requested, "v", &cx(&dialect)).unwrap();
                prop_assert_eq!(&read(vendor, &sent), &toy, "{:?} {:?}", caller, vendor);
            }
        }
    }
}

#[test]
fn tool_schema_whose_member_name_has_a_lone_surrogate_is_forwarded_unchanged() {
    let schema = r#"{"\ud800a":{}}"#;
    let dialect = Dialect::default();
    for (caller, input, tool) in [
        (
            Format::Chat,
            r#""messages":[{"role":"user","content":"x"}]"#,
            format!(r#"{{"type":"function","function":{{"name":"f","parameters":{schema}}}}}"#),
        ),
        (
            Format::Messages,
            r#""messages":[{"role":"user","content":"x"}]"#,
            format!(r#"{{"name":"f","input_schema":{schema}}}"#),
        ),
        (
            Format::Responses,
            r#""input":"x""#,
            format!(r#"{{"type":"function","name":"f","parameters":{schema}}}"#),
        ),
    ] {
        let body = format!(r#"{{"model":"m",{input},"tools":[{tool}]}}"#);
        for vendor in FORMATS.into_iter().filter(|vendor| *vendor != caller) {
            let cx = cx(&dialect);
            let translated =
                crate::translate::request(caller, vendor, body.as_bytes(), "v", &cx).unwrap();
            let text = String::from_utf8(translated.to_vec()).unwrap();
            assert!(text.contains(schema), "{caller:?} to {vendor:?}: {text}");
        }
    }
}
