use proptest::prelude::*;
use serde_json::value::RawValue;

use super::*;

/// Skips one value, and checks that nothing follows it.
fn whole(json: &str) -> Result<u64, NotJson> {
    let mut json = Reader::new(json);
    let bytes = json.skip(usize::MAX)?;
    json.end()?;
    Ok(bytes.expect("nothing is too deep"))
}

#[test]
fn json_reader_accepts_exactly_what_serde_accepts() {
    for json in [
        "",
        " ",
        "{",
        "}",
        "[",
        "]",
        "{}",
        "[]",
        " { } ",
        "[ ]",
        "[1,2]",
        "[1,]",
        "[,1]",
        "[1 2]",
        "[,]",
        r#"{"a":1}"#,
        r#"{"a":1,}"#,
        r#"{,"a":1}"#,
        r#"{"a" 1}"#,
        r#"{"a":}"#,
        r#"{a:1}"#,
        r#"{"a":1 "b":2}"#,
        r#"{"a":1,"b":[{},[],"]",{"c":null}]}"#,
        "[}",
        "{]",
        "[[]",
        "{}{}",
        "1 2",
        "null",
        "nul",
        "nulL",
        "true",
        "false",
        "fals",
        "tru e",
        "0",
        "-0",
        "00",
        "01",
        "-",
        "-01",
        "1.",
        "1.5",
        ".5",
        "1.e5",
        "1e",
        "1e+",
        "1E-07",
        "1e400",
        "1.5e+3x",
        "+1",
        "123456789012345678901234567890",
        r#""""#,
        r#"""#,
        r#""a"#,
        r#""\"#,
        r#""\""#,
        r#""\"""#,
        r#""\x""#,
        r#""\/\b\f\n\r\t\\""#,
        r#""\u12""#,
        r#""\u12g4""#,
        r#""\u+123""#,
        r#""\u00e9""#,
        r#""\ud83e\udd80""#,
        r#""\ud83e""#,
        "\"\u{1f}\"",
        "\"\u{7f}\"",
        "\"\n\"",
        "\"ж🦀\"",
        "\u{feff}{}",
        "\u{c}{}",
        "{\"a\"\t:\r\n1}",
        "\u{a0}1",
    ] {
        let known = serde_json::from_str::<&RawValue>(json).is_ok();
        assert_eq!(whole(json).is_ok(), known, "{json:?}");
    }
}

#[test]
fn invalid_byte_in_a_string_is_found_at_any_position() {
    for length in 0..200 {
        for (byte, ok) in [
            ("\"", false),
            ("\\n", true),
            ("\u{0}", false),
            ("\u{1f}", false),
            (" ", true),
            ("!", true),
            ("#", true),
            ("\u{7f}", true),
        ] {
            for at in [0, length / 2, length] {
                let text = format!("\"{}{byte}{}\"", "ж".repeat(at), "x".repeat(length - at));
                assert_eq!(whole(&text).is_ok(), ok, "{byte:?} at {at} of {length}");
                let quoted = string(text.as_bytes(), 0).map(|found| found.text.len());
                let expected = if byte == "\"" { at * 2 } else { text.len() - 2 };
                assert_eq!(quoted, Some(expected), "{byte:?} at {at} of {length}");
            }
        }
    }
}

#[test]
fn string_with_escapes_at_any_position_is_decoded_as_serde_decodes_it() {
    // With text after the string, the last machine word that is read contains bytes beyond the string.
    for behind in ["", ",\"0123456789\""] {
        let places = (0..40).flat_map(|length| (0..=length).map(move |at| (length, at)));
        for (length, at) in places {
            for what in [
                "x",
                "ж",
                "🦀",
                "\u{7f}",
                "\u{1}",
                "\u{1f}",
                "\n",
                "\"",
                "\\",
                "\\n",
                "\\\"",
                "\\\\",
                "\\u0436",
                "\\u043",
                "\\ud83e",
                "\\ud83e\\udd80",
            ] {
                let text = format!("\"{}{what}{}\"", "x".repeat(at), "y".repeat(length - at));
                let known = serde_json::from_str::<String>(&text).ok();

                let json = format!("[{text}{behind}]");
                let raw = serde_json::from_str::<&RawValue>(&json).is_ok();
                assert_eq!(whole(&json).is_ok(), raw, "{json}");

                let mut reader = Reader { text: &json, at: 1 };
                let read = match reader.begin() {
                    Ok(Value::String(text)) if text.is_text() && known.is_some() => {
                        Some(text.decoded().into_owned())
                    }
                    _ => None,
                };
                assert_eq!(read, known, "{json}");

                let json = format!("{{{text}:1{}}}", behind.replace("9\"", "9\":2"));
                let named = match &known {
                    Some(name) => members(&json, &[name.as_str()]) == Ok([Some("1")]),
                    None => members(&json, &["none"]).is_ok(),
                };
                assert_eq!(named, known.is_some(), "{json}");
            }
        }
    }
}

#[test]
fn string_with_escapes_at_any_position_ends_where_serde_ends_it() {
    let places = (0..=130).flat_map(|at| [0, 1, 7, 40, 130].map(|behind| (at, behind)));
    for (at, behind) in places {
        for what in [
            "", "ж", "🦀", "\u{7f}", "\u{0}", "\u{1f}", "\n", "\"", "\\n", "\\\"", "\\\\",
            "\\u0436", "\\x",
        ] {
            let text = format!("\"{}{what}{}\"", "x".repeat(at), "ж".repeat(behind));
            for json in [
                text.clone(),
                format!("[{text}\n,\"0123456789\"]"),
                format!("{{{text}\t:1}}"),
            ] {
                let read = whole(&json);
                let known = serde_json::from_str::<&RawValue>(&json);
                assert_eq!(read.is_ok(), known.is_ok(), "{json:?}");
                if what.starts_with(|first: char| first < ' ') {
                    let fault = NotJson::at(json.as_bytes(), json.find(what).unwrap());
                    assert_eq!(read, Err(fault), "{json:?}");
                }
            }
        }
    }
}

#[test]
fn string_with_many_escapes_is_decoded_like_serde() {
    for gap in 0..=130 {
        for escape in ["\\n", "\\\"", "\\\\", "\\u0436", "\\ud83e\\udd80"] {
            let plain = "x".repeat(gap % 2) + &"ж".repeat(gap / 2);
            let text = format!("\"{}\"", format!("{plain}{escape}").repeat(4));
            let known: String = serde_json::from_str(&text).unwrap();
            let Ok(Value::String(read)) = Reader::new(&text).begin() else {
                panic!("{text}");
            };
            assert!(read.is_text(), "{text}");
            assert_eq!(read.decoded(), known, "{text}");
            assert_eq!(read.decoded_len(), known.len() as u64, "{text}");

            let end = text.len() - 1;
            let broken = format!("{}{plain}\u{1}\"", &text[..end]);
            let fault = NotJson::at(broken.as_bytes(), end + plain.len());
            assert_eq!(whole(&broken), Err(fault), "{broken}");
        }
    }
}

#[test]
fn syntax_error_has_line_and_column_of_its_byte() {
    for (json, line, column) in [
        ("", 1, 0),
        ("{\"a\":1,}", 1, 8),
        ("{\n \"a\" 1}", 2, 6),
        ("[1,\n2", 2, 1),
        ("[nulx]", 1, 5),
        ("{} x", 1, 4),
        ("[1 2]", 1, 4),
        ("[1,]", 1, 4),
        ("[01]", 1, 3),
        ("[1.x]", 1, 4),
        ("{\"a\":1 \"b\":2}", 1, 8),
        ("{1:2}", 1, 2),
        ("[\"a\u{1}\"]", 1, 4),
        ("[\"a\\x\"]", 1, 5),
        ("[\"a\\u12g4\"]", 1, 8),
        ("[\"a", 1, 3),
    ] {
        assert_eq!(whole(json), Err(NotJson { line, column }), "{json:?}");
    }
}

#[test]
fn lone_surrogate_cannot_be_decoded_as_text() {
    for (json, decoded) in [
        (r#""\ud83e\udd80""#, Some("🦀")),
        (r#""a\ud83e\udd80\ud83e\udd80b""#, Some("a🦀🦀b")),
        (r#""\ud83e""#, None),
        (r#""\udd80""#, None),
        (r#""\ud83e\ud83e\udd80""#, None),
        (r#""\ud83e\udd80\udd80""#, None),
        (r#""\ud83e\n\udd80""#, None),
        (r#""\ud83ex\udd80""#, None),
        (r#""\ud83e\u0061""#, None),
        (r#""\ud83ex""#, None),
    ] {
        let Ok(Value::String(text)) = Reader::new(json).begin() else {
            panic!("{json}");
        };
        assert_eq!(
            text.is_text().then(|| text.decoded()).as_deref(),
            decoded,
            "{json}"
        );
        assert_eq!(
            serde_json::from_str::<String>(json).ok().as_deref(),
            decoded,
            "{json}"
        );
    }
}

#[test]
fn json_value_is_skipped_only_up_to_the_allowed_depth() {
    for depth in [1, 2, 63, 64, 65, 127, 128, 129, 200, 100_000] {
        let mixed =
            |begin: &str, end: &str| format!("{}{}", begin.repeat(depth), end.repeat(depth));
        for json in [
            mixed("[", "]"),
            mixed("[{\"a\":", "}]").replace(":}", ":1}"),
        ] {
            let nested = json.matches(['[', '{']).count();
            assert!(
                matches!(Reader::new(&json).skip(nested), Ok(Some(_))),
                "{nested}"
            );
            assert_eq!(Reader::new(&json).skip(nested - 1), Ok(None), "{nested}");
            assert!(whole(&json[..json.len() - 1]).is_err());
            assert!(whole(&json.replacen(']', "}", 1)).is_err());
        }
    }
}

#[test]
fn field_is_found_by_its_decoded_name_and_a_duplicate_is_refused() {
    let json = r#"{"x":{"a":0},"\u0061" : [1, 2] ,"b":null}"#;
    assert_eq!(
        members(json, &["a", "b", "c"]),
        Ok([Some("[1, 2]"), Some("null"), None])
    );
    for json in [
        r#"{"a":1,"\u0061":2}"#,
        r#"{"\ud800":1}"#,
        r#"{"a":1"#,
        r#"{"a":1} x"#,
        "[1]",
        "null",
    ] {
        assert!(members(json, &["a"]).is_err(), "{json}");
    }
}

proptest! {
    #[test]
    fn length_of_a_json_text_counts_its_strings_as_decoded(texts in proptest::collection::vec(".{0,60}", 0..4)) {
        let json = serde_json::json!({ "texts": texts }).to_string();
        let bytes: usize = texts.iter().map(String::len).sum();
        // The number of bytes of everything except the texts: brackets, name, colon and commas.
        let around = 10 + texts.len().saturating_sub(1);
        prop_assert_eq!(whole(&json), Ok((bytes + around) as u64));
    }

    #[test]
    fn json_that_serde_refuses_is_refused(json in "[\\[\\]{},:\"\\\\u0-9a-fe.+\\- \n\u{1}ж]{0,12}") {
        let known = serde_json::from_str::<&RawValue>(&json).is_ok();
        prop_assert_eq!(whole(&json).is_ok(), known);
    }

    #[test]
    fn strings_are_decoded_like_serde(text in "(\\\\u[0-9a-f]{4}|\\\\n|\\\\ud83e|\\\\udd80|[a-zж\"]){0,12}") {
        let json = format!("\"{text}\"");
        let mut reader = Reader::new(&json);
        let read = match reader.begin() {
            Ok(Value::String(text)) if reader.end().is_ok() && text.is_text() => Some(text),
            _ => None,
        };
        let known = serde_json::from_str::<String>(&json).ok();
        prop_assert_eq!(read.map(|text| text.decoded().into_owned()), known.clone());
        prop_assert_eq!(read.map(|text| text.decoded_len()), known.map(|text| text.len() as u64));
    }
}
