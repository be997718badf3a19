//! Reads the marks with which a request controls the vendor's prompt cache. The parser of each field decides whether a
//! mark is allowed there. This module reads the lifetime that the mark requests, because the price depends on it.

use super::json::{At, Field, Object, Off, Once, Shape, elements};
use crate::{
    call::Ask,
    error::{Error, Problem},
    json::{Reader, Str},
    price::Class,
};

/// The name of the field that holds a cache mark.
pub(crate) const MARK: &str = "cache_control";
/// The name of the field that holds a part's cache mark in OpenAI's formats.
pub(crate) const BREAKPOINT: &str = "prompt_cache_breakpoint";

/// Reads an object with a lifetime in its field `ttl`: a cache mark, or options for the cache.
#[derive(Clone, Copy, Debug)]
pub(crate) struct CacheObject(Lifetime);

/// Reads a cache mark: `{"type":"ephemeral"}`, optionally with a `ttl`. Without a `ttl`, the cache entry lives for five
/// minutes.
pub(crate) const CACHE_MARK: CacheObject =
    CacheObject(Lifetime(&[("5m", None), ("1h", Some(Class::CacheWrite1h))]));

/// Reads `prompt_cache_options` of OpenAI's formats, whose `ttl` applies to everything that the call writes to the
/// cache. A part's [`BREAKPOINT`] has the same fields.
pub(crate) const CACHE_OPTIONS: CacheObject = CacheObject(Lifetime(&[
    ("30m", None),
    ("12h", Some(Class::CacheWrite12h)),
]));

impl Shape for CacheObject {
    type Value = ();
    const EXPECTED: &'static str = "object";
    const NULL: Option<Self::Value> = Some(());

    fn object(self, at: At<'_>, mut object: Object<'_, '_>) -> Result<(), Error> {
        let mut once = const { Once::new(&["ttl", "prewarm"]) };
        while let Some(key) = once.next_key(at, &mut object)? {
            match &*key {
                "ttl" => object.field(&key, self.0)?,
                // The field `prewarm` makes the vendor cache the input without a response.
                "prewarm" => object.field(&key, Off(Problem::Unsupported))?,
                _ => object.weigh_field(&key)?,
            }
        }
        Ok(())
    }
}

/// Reads an object that may have a cache mark, or an array of such objects. Ignores values of other types.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Marked;

impl Shape for Marked {
    type Value = ();
    const EXPECTED: &'static str = "object";
    const NULL: Option<Self::Value> = Some(());

    fn unexpected(self, _: At<'_>) -> Result<(), Error> {
        Ok(())
    }
    fn array(self, at: At<'_>, json: &mut Reader<'_>) -> Result<(), Error> {
        elements(at, json, || Self).map(drop)
    }
    fn object(self, at: At<'_>, object: Object<'_, '_>) -> Result<(), Error> {
        let mark = Field(const { Once::new(&[MARK]) }, CACHE_MARK);
        mark.object(at, object).map(drop)
    }
}

/// The known values of `ttl`, each with the rate class that it requests. The rate class of the default lifetime is
/// `None`.
#[derive(Clone, Copy, Debug)]
struct Lifetime(&'static [(&'static str, Option<Class>)]);

impl Shape for Lifetime {
    type Value = ();
    const EXPECTED: &'static str = "string";
    const NULL: Option<Self::Value> = Some(());

    fn string(self, at: At<'_>, text: &Str<'_>) -> Result<(), Error> {
        let text = text.decoded();
        match self.0.iter().find(|(word, _)| *word == text) {
            Some((_, None)) => {}
            Some((_, Some(class))) => at.ask(Ask::Class(*class, 1)),
            None => at.ask(Ask::UnknownLifetime),
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        call::InputSize,
        formats::{chat::parse as chat, messages::parse as messages},
        price::Unpriced,
    };

    /// The lifetime that a request names, unless it is the default: its rate class (`None` if the lifetime is unknown),
    /// and the field that requests it.
    type Extras = Option<(Option<Class>, String)>;

    fn extras(asks: Option<Box<crate::call::Asks>>) -> Extras {
        let asks = asks?;
        if let Some(field) = asks.unknown() {
            return Some((None, field.to_owned()));
        }
        let class = asks.cache_write()?;
        let field = asks.field(Unpriced::Class(class))?;
        Some((Some(class), field.to_owned()))
    }

    fn of_messages(fields: &str) -> Result<(Extras, InputSize), Error> {
        let body = format!(r#"{{"model":"m","max_tokens":1,{fields}}}"#);
        messages::call(body.as_bytes(), 100).map(|call| (extras(call.asks), call.input))
    }

    fn of_chat(fields: &str) -> Result<(Extras, InputSize), Error> {
        let body = format!(r#"{{"model":"m",{fields}}}"#);
        chat::call(body.as_bytes(), 100).map(|call| (extras(call.asks), call.input))
    }

    const USER: &str = r#""messages":[{"role":"user","content":"x"}]"#;
    const HOUR: &str = r#""cache_control":{"type":"ephemeral","ttl":"1h"}"#;

    /// Returns all places in the formats where a cache mark is allowed. For each: whether only the Chat Completions
    /// format has it, the request's fields with `MARK` where the mark goes, and the path of the mark's field.
    fn places() -> Vec<(bool, String, &'static str)> {
        let user = |part: &str| {
            format!(
                r#""messages":[{{"role":"user","content":"a"}},{{"role":"user","content":[{part}]}}]"#
            )
        };
        let both = [
            (format!("MARK,{USER}"), "cache_control"),
            (
                r#""messages":[{"role":"user","content":"x",MARK}]"#.to_owned(),
                "messages[0].cache_control",
            ),
            (
                user(r#"{"type":"text","text":"a"},{"type":"text","text":"b",MARK}"#),
                "messages[1].content[1].cache_control",
            ),
            (
                format!(r#""tools":[{{"name":"f"}},{{"name":"g",MARK}}],{USER}"#),
                "tools[1].cache_control",
            ),
        ];
        let of_messages = [
            (
                format!(r#""system":[{{"type":"text","text":"s",MARK}}],{USER}"#),
                "system[0].cache_control",
            ),
            (
                user(r#"{"type":"tool_result","tool_use_id":"t","content":"r",MARK}"#),
                "messages[1].content[0].cache_control",
            ),
            (
                user(
                    r#"{"type":"tool_result","tool_use_id":"t","content":[{"type":"text","text":"r",MARK}]}"#,
                ),
                "messages[1].content[0].content[0].cache_control",
            ),
            (
                user(
                    r#"{"type":"document","source":{"type":"content","content":[{"type":"text","text":"d",MARK}]}}"#,
                ),
                "messages[1].content[0].source.content[0].cache_control",
            ),
            (
                user(r#"{"type":"image","source":{"type":"url","url":"https://h/i"},MARK}"#),
                "messages[1].content[0].cache_control",
            ),
        ];
        let of_chat = [
            (
                format!(r#""tools":[{{"type":"function","function":{{"name":"f",MARK}}}}],{USER}"#),
                "tools[0].function.cache_control",
            ),
            (
                r#""messages":[{"role":"assistant","tool_calls":[{"id":"t","function":{"name":"f"},MARK}]}]"#
                    .to_owned(),
                "messages[0].tool_calls[0].cache_control",
            ),
        ];
        let mut places = Vec::new();
        for (fields, name) in both {
            places.push((false, fields.clone(), name));
            places.push((true, fields, name));
        }
        places.extend(of_messages.map(|(fields, name)| (false, fields, name)));
        places.extend(of_chat.map(|(fields, name)| (true, fields, name)));
        places
    }

    #[test]
    fn cache_lifetime_is_recorded_with_its_field_wherever_cache_control_is_allowed() {
        for (is_chat, fields, name) in places() {
            let read = |mark: &str| {
                let fields = fields.replace("MARK", mark);
                let read = if is_chat {
                    of_chat(&fields)
                } else {
                    of_messages(&fields)
                };
                read.unwrap_or_else(|error| panic!("{fields}: {error}"))
            };
            let ttl = |class| Some((class, format!("{name}.ttl")));
            let escaped = HOUR
                .replace("cache_c", "cache\\u005fc")
                .replace("1h", "\\u0031h");
            for (mark, extras) in [
                (r#""cache_control":null"#, None),
                (r#""cache_control":{"type":"ephemeral"}"#, None),
                (r#""cache_control":{"type":"ephemeral","ttl":null}"#, None),
                (r#""cache_control":{"ttl":"5m","type":"ephemeral"}"#, None),
                (HOUR, ttl(Some(Class::CacheWrite1h))),
                (&escaped, ttl(Some(Class::CacheWrite1h))),
                (
                    r#""cache_control":{"type":"ephemeral","ttl":"12h"}"#,
                    ttl(None),
                ),
                (
                    r#""cache_control":{"type":"ephemeral","ttl":""}"#,
                    ttl(None),
                ),
            ] {
                let (asks, size) = read(mark);
                assert_eq!(asks, extras, "{fields} with {mark}");
                // The mark counts as input, like a field that the parser does not read.
                let (_, unread) =
                    read(&mark.replacen("cache_", "cache-", 1).replace("\\u005f", "-"));
                let unread = InputSize {
                    text_bytes: unread.text_bytes,
                    ..size
                };
                assert_eq!(size, unread, "{fields} with {mark}");
            }
        }
    }

    #[test]
    fn cache_control_within_arguments_or_schemas_or_text_is_ignored() {
        for (is_chat, fields) in [
            (
                false,
                r#""messages":[{"role":"assistant","content":[{"type":"tool_use","id":"t","name":"f","input":{MARK}}]}]"#,
            ),
            (
                false,
                r#""tools":[{"name":"f","input_schema":{"properties":{MARK}}}],"messages":[{"role":"user","content":"x"}]"#,
            ),
            (
                true,
                r#""tools":[{"type":"function","function":{"name":"f","parameters":{MARK}}}],"messages":[{"role":"user","content":"x"}]"#,
            ),
            (
                true,
                r#""metadata":{MARK},"messages":[{"role":"user","content":"\"cache_control\":{\"ttl\":\"1h\"}"}]"#,
            ),
        ] {
            let fields = fields.replace("MARK", HOUR);
            let read = if is_chat {
                of_chat(&fields)
            } else {
                of_messages(&fields)
            };
            assert_eq!(read.unwrap().0, None, "{fields}");
        }
    }

    #[test]
    fn first_cache_control_with_a_lifetime_above_the_default_is_recorded_with_its_field() {
        let part = |ttl: &str| match ttl {
            "" => r#"{"type":"text","text":"a","cache_control":{"type":"ephemeral"}}"#.to_owned(),
            ttl => format!(r#"{{"type":"text","text":"a","cache_control":{{"ttl":"{ttl}"}}}}"#),
        };
        let field = |index: usize, class| {
            let field = format!("messages[0].content[{index}].cache_control.ttl");
            Some((class, field))
        };
        for (ttls, extras) in [
            (&["", "5m", ""][..], None),
            (&["1h", "1h"], field(0, Some(Class::CacheWrite1h))),
            (&["1h", "5m"], field(0, Some(Class::CacheWrite1h))),
            (&["", "", "1h", "1h"], field(2, Some(Class::CacheWrite1h))),
            (&["1h", "", "1h"], field(0, Some(Class::CacheWrite1h))),
            (&["1h", "", "2h", "3h"], field(2, None)),
        ] {
            let parts: Vec<_> = ttls.iter().map(|ttl| part(ttl)).collect();
            let parts = parts.join(",");
            let fields = format!(r#""messages":[{{"role":"user","content":[{parts}]}}]"#);
            assert_eq!(of_messages(&fields).unwrap().0, extras, "{ttls:?}");
        }
    }

    #[test]
    fn prompt_cache_options_of_a_chat_request_set_the_lifetime_of_all_cache_writes() {
        for (options, extras) in [
            ("null", None),
            ("{}", None),
            (r#"{"mode":"explicit"}"#, None),
            (r#"{"ttl":"30m"}"#, None),
            (r#"{"ttl":null}"#, None),
            (
                r#"{"mode":"implicit","ttl":"12h"}"#,
                Some((
                    Some(Class::CacheWrite12h),
                    "prompt_cache_options.ttl".to_owned(),
                )),
            ),
            (
                r#"{"ttl":"1h"}"#,
                Some((None, "prompt_cache_options.ttl".to_owned())),
            ),
        ] {
            let fields = format!(r#""prompt_cache_options":{options},{USER}"#);
            assert_eq!(of_chat(&fields).unwrap().0, extras, "{options}");
            // The options may also be in a part of the conversation.
            let part = format!(r#"{{"type":"text","text":"x","{BREAKPOINT}":{options}}}"#);
            let fields = format!(r#""messages":[{{"role":"user","content":[{part}]}}]"#);
            let at = "messages[0].content[0].prompt_cache_breakpoint.ttl".to_owned();
            let extras = extras.map(|(class, _)| (class, at));
            assert_eq!(of_chat(&fields).unwrap().0, extras, "{options}");
        }
    }

    #[test]
    fn cache_control_inside_a_function_is_refused_in_any_letter_case() {
        const HOUR: &str = r#"{"type":"ephemeral","ttl":"1h"}"#;
        for (function, mark) in [
            ("function", "Cache_Control"),
            ("function", "CACHE_CONTROL"),
            ("Function", "cache_control"),
        ] {
            let tool = format!(
                r#""tools":[{{"type":"function","{function}":{{"name":"f","{mark}":{HOUR}}}}}],{USER}"#
            );
            let read = of_chat(&tool);
            assert!(
                matches!(
                    read,
                    Err(Error::Invalid {
                        problem: Problem::Unsupported,
                        ..
                    })
                ),
                "{tool}"
            );
        }
    }

    #[test]
    fn ambiguous_cache_control_is_refused() {
        for (field, fields, problem) in [
            (
                "cache_control",
                format!("{HOUR},{HOUR},{USER}"),
                Problem::Duplicate,
            ),
            (
                "cache_control.ttl",
                format!(r#""cache_control":{{"ttl":"1h","ttl":"5m"}},{USER}"#),
                Problem::Duplicate,
            ),
            (
                "cache_control.TTL",
                format!(r#""cache_control":{{"TTL":"1h"}},{USER}"#),
                Problem::Unsupported,
            ),
            (
                "Cache_Control",
                format!(r#""Cache_Control":{{"ttl":"1h"}},{USER}"#),
                Problem::Unsupported,
            ),
            (
                "cache_control.ttl",
                format!(r#""cache_control":{{"ttl":3600}},{USER}"#),
                Problem::WrongType("string"),
            ),
            (
                "cache_control",
                format!(r#""cache_control":["1h"],{USER}"#),
                Problem::WrongType("object"),
            ),
        ] {
            for read in [of_messages(&fields), of_chat(&fields)] {
                match read {
                    Err(Error::Invalid {
                        field: named,
                        problem: why,
                    }) => {
                        assert_eq!((&*named, why), (field, problem.clone()), "{fields}");
                    }
                    other => panic!("{fields}: {other:?}"),
                }
            }
        }
    }
}
