//! Parses a request of the Chat Completions format.

use crate::{
    call::{Ask, Call, Format},
    error::{Error, Problem},
    formats::reading::{
        cache::{CACHE_MARK, MARK, Marked},
        common::Common,
        content::{Content, Turns, check_message, tools},
        fields::{self, Of},
        json::{
            ArrayWith, At, Count, Cx, Field, Flag, Object, ObjectWith, Once, OnlyDefault, OrNull,
            Shape, Text, elements,
        },
    },
    json::{Reader, Str},
    price::Class,
};

/// The fields of the Chat Completions format that may occur only once in a body.
const NAMES: &[&str] = &fields::names::<{ fields::count(Of::Chat) }>(Of::Chat);

pub(crate) fn call(body: &[u8], messages_max: u64) -> Result<Call, Error> {
    Cx::new(messages_max).read(body, ObjectWith(read))
}

fn read(at: At<'_>, mut object: Object<'_, '_>) -> Result<Call, Error> {
    let mut once = const { Once::new(NAMES) };
    let mut body = Common::new(Of::Chat, object.offset());
    let (mut choices, mut max_tokens, mut max_completion_tokens) = (None, None, None);
    let mut usage_asked = None;
    while let Some(key) = once.next_key(at, &mut object)? {
        let spans = &mut body.spans;
        match &*key {
            "messages" => body.conversation(&key, &mut object, Turns(|| ObjectWith(message)))?,
            "max_tokens" => {
                (spans.max_tokens, max_tokens) = object.tokens_span(&key)?;
            }
            "max_completion_tokens" => {
                (spans.max_completion_tokens, max_completion_tokens) = object.tokens_span(&key)?;
            }
            "stream_options" => {
                let place = Field(const { Once::new(&["include_usage"]) }, Flag);
                let (span, value) = object.field_span(&key, OrNull(place))?;
                spans.stream_options = Some(span);
                usage_asked = value.flatten();
            }
            "n" => choices = object.field(&key, Count { max: 128 })?,
            "tools" => object.field(&key, OrNull(ArrayWith(tools))).map(drop)?,
            "modalities" => object.field(&key, Modalities)?,
            "audio" => object.weigh_and_read(&key, OrNull(ObjectWith(voice)))?,
            _ => body.field(&key, &mut object)?,
        }
    }
    body.output_tokens = max_completion_tokens.or(max_tokens);
    let (include_usage, usage_asked) = usage_asked.unzip();
    body.spans.include_usage = include_usage;
    let call = body.call(at, Format::Chat, "messages")?;
    if let (Some(old), Some(new)) = (max_tokens, max_completion_tokens)
        && old != new
    {
        let problem = Problem::Contradicts("max_completion_tokens");
        return Err(at.refuse_field("max_tokens", problem));
    }
    Ok(Call {
        choices: choices.unwrap_or(1),
        usage_asked: usage_asked.unwrap_or(false),
        ..call
    })
}

/// Reads `modalities`, the requested kinds of output. Only some models have a price for kinds other than text.
struct Modalities;

impl Shape for Modalities {
    type Value = ();
    const EXPECTED: &'static str = "array";
    const NULL: Option<Self::Value> = Some(());

    fn string(self, at: At<'_>, text: &Str<'_>) -> Result<(), Error> {
        match &*text.decoded() {
            "text" => {}
            "audio" => at.ask(Ask::Class(Class::OutputAudio, 1)),
            "image" => at.ask(Ask::Class(Class::OutputImage, 1)),
            _ => return Err(at.refuse(Problem::Unsupported)),
        }
        Ok(())
    }
    fn array(self, at: At<'_>, json: &mut Reader<'_>) -> Result<(), Error> {
        elements(at, json, || Self).map(drop)
    }
}

/// Reads `audio`, the voice and the file format of spoken output.
fn voice(at: At<'_>, mut object: Object<'_, '_>) -> Result<(), Error> {
    at.ask(Ask::Class(Class::OutputAudio, 1));
    while let Some(key) = object.next_key()? {
        object.weigh_field(&key)?;
    }
    Ok(())
}

const ROLES: &str = "system, developer, user, assistant, tool";

fn message(at: At<'_>, mut object: Object<'_, '_>) -> Result<(), Error> {
    let mut once = const { Once::new(&["role", "content", "tool_calls", "audio", MARK]) };
    let (mut role_known, mut is_answer, mut content) = (None, false, None);
    while let Some(key) = once.next_key(at, &mut object)? {
        match &*key {
            "role" => {
                let read = |role: &str| {
                    is_answer = role == "assistant";
                    let others = ["system", "developer", "user", "tool", "function"];
                    is_answer || others.contains(&role)
                };
                role_known = Some(object.field(&key, Text(read))?);
            }
            "content" => content = Some(object.field(&key, Content)?),
            "audio" => object.field(&key, OnlyDefault::of(&[]))?,
            // Chat Completions requests may have cache marks, because some vendors of this format forward the marks
            // to a Messages vendor.
            MARK => object.weigh_and_read(&key, CACHE_MARK)?,
            "tool_calls" => {
                object.weigh_and_read_if_it_names(MARK, &key, Marked)?;
            }
            _ => object.weigh_field(&key)?,
        }
    }
    // The content of the assistant's messages may be null or missing.
    let content = if is_answer { Some(true) } else { content };
    check_message(at, role_known, ROLES, content)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(body: &str) -> Result<Call, Error> {
        call(body.as_bytes(), 3)
    }

    fn refused(body: &str) -> (String, Problem) {
        match read(body) {
            Err(Error::Invalid { field, problem }) => (field.into_owned(), problem),
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn fields_of_a_chat_request_and_their_positions_are_found() {
        let body = r#"{ "model" : "gpt", "max_tokens":7,"stream":true,"n":2,
            "stream_options":{"include_usage": false}, "messages":[{"role":"user","content":"привет\n"}],"x":1e400}"#;
        let call = read(body).unwrap();
        assert_eq!(
            (
                call.model.as_str(),
                call.stream,
                call.output_tokens,
                call.choices
            ),
            ("gpt", true, Some(7), 2)
        );
        assert_eq!(&body[call.spans.model.clone()], "\"gpt\"");
        assert_eq!(&body[call.spans.include_usage.clone().unwrap()], "false");
        assert_eq!(
            &body[call.spans.stream_options.clone().unwrap()],
            r#"{"include_usage": false}"#
        );
        assert_eq!((call.input.messages, call.usage_asked), (1, false));
    }

    #[test]
    fn text_file_counts_by_its_size_and_an_image_whose_detail_is_original_counts_as_two_images() {
        let size = |part: &str| {
            let body =
                format!(r#"{{"model":"m","messages":[{{"role":"user","content":[{part}]}}]}}"#);
            read(&body).unwrap().input
        };
        let data = "A".repeat(4000);
        let text = |head: &str| {
            size(&format!(
                r#"{{"type":"file","file":{{"file_data":"{head}{data}","filename":"a"}}}}"#
            ))
            .text_bytes
        };
        let pdf = text("data:application/PDF;base64,");
        for (head, bytes) in [
            ("data:text/plain;base64,", 3000),
            ("data:application/octet-stream;base64,", 3000),
            ("", 3000),
            ("JVBER", 0),
        ] {
            assert_eq!(text(head) - pdf, bytes, "{head}");
        }
        let image = |detail: &str| {
            size(&format!(
                r#"{{"type":"image_url","image_url":{{"url":"https://h/i","detail":{detail}}}}}"#
            ))
            .images
        };
        assert_eq!(["null", "\"high\"", "\"original\""].map(image), [1, 1, 2]);
    }

    #[test]
    fn input_text_is_counted_after_decoding_and_without_image_data() {
        let size = |content: &str| {
            read(&format!(
                r#"{{"model":"m","messages":[{{"role":"user","content":{content}}}]}}"#
            ))
            .unwrap()
            .input
        };
        assert_eq!(size(r#""привет""#).text_bytes, 12);
        assert_eq!(
            size(r#""\u043f\u0440\u0438\u0432\u0435\u0442""#).text_bytes,
            12
        );
        let data = "A".repeat(1000);
        let image = size(&format!(
            r#"[{{"type":"text","text":"abc"}},{{"type":"image_url","image_url":{{"url":"data:image/png;base64,{data}"}}}}]"#
        ));
        assert_eq!(
            (image.text_bytes, image.images, image.image_shares),
            (3, 1, crate::call::IMAGE_SHARES)
        );
    }

    #[test]
    fn unknown_field_counts_by_its_bytes_without_quotes() {
        let weight = |value: &str| {
            read(&format!(
                r#"{{"model":"m","messages":[{{"role":"user","content":""}}],"x": {value} }}"#
            ))
            .unwrap()
            .input
            .text_bytes
        };
        for (value, bytes) in [
            ("0.7", 3),
            (r#""a\n\u0436""#, 4),
            ("[ ]", 3),
            ("{}", 2),
            ("[[[[]]],[]]", 11),
            (r#"{"a b":[1, true],"c":"\n"}"#, 19),
            // Values that cannot be decoded count by their bytes.
            (r#"[1e400,"\ud83e"]"#, 10),
        ] {
            assert_eq!(weight(value), bytes, "{value}");
        }
    }

    #[test]
    fn text_of_a_parsed_request_is_forwarded_unchanged() {
        for (content, at) in [
            (&b"\xff"[..], "1:53"),
            (b"\\ud83e", "1:60"),
            (b"\\ud83e\\u0061", "1:66"),
            (b"\x01", "1:53"),
        ] {
            let head = br#"{"model":"m","messages":[{"role":"user","content": ""#;
            let body = [&head[..], content, br#""}]}"#].concat();
            assert!(
                matches!(
                    call(&body, 3),
                    Err(Error::Invalid { problem: Problem::NotJson(column), .. }) if column == at
                ),
                "{}",
                content.escape_ascii()
            );
        }
    }

    #[test]
    fn invalid_chat_field_is_refused_by_name() {
        let message = r#""messages":[{"role":"user","content":"x"}]"#;
        for (body, field, problem) in [
            ("", "", Problem::NotJson("1:0".into())),
            ("{\"model\":\"m\",}", "", Problem::NotJson("1:14".into())),
            ("[]", "", Problem::WrongType("object")),
            (&format!("{{{message}}}"), "model", Problem::Missing),
            (r#"{"model":"m"}"#, "messages", Problem::Missing),
            (
                &format!(r#"{{"model":7,{message}}}"#),
                "model",
                Problem::WrongType("string"),
            ),
            (
                &format!(r#"{{"model":"m","mod\u0065l":"n",{message}}}"#),
                "model",
                Problem::Duplicate,
            ),
            (
                &format!(r#"{{"model":"m","max_tokens":0,{message}}}"#),
                "max_tokens",
                Problem::BelowMin(1),
            ),
            (
                &format!(r#"{{"model":"m","max_tokens":-1,{message}}}"#),
                "max_tokens",
                Problem::WrongType("integer"),
            ),
            (
                &format!(r#"{{"model":"m","max_tokens":1.5,{message}}}"#),
                "max_tokens",
                Problem::WrongType("integer"),
            ),
            (
                &format!(r#"{{"model":"m","max_tokens":"1",{message}}}"#),
                "max_tokens",
                Problem::WrongType("integer"),
            ),
            (
                &format!(r#"{{"model":"m","stream":1,{message}}}"#),
                "stream",
                Problem::WrongType("boolean"),
            ),
            (
                &format!(r#"{{"model":"m","stream_options":[],{message}}}"#),
                "stream_options",
                Problem::WrongType("object"),
            ),
            (
                &format!(r#"{{"model":"m","stream_options":{{"include_usage":1}},{message}}}"#),
                "stream_options.include_usage",
                Problem::WrongType("boolean"),
            ),
            (
                &format!(r#"{{"model":"m","max_tokens":1,"max_completion_tokens":2,{message}}}"#),
                "max_tokens",
                Problem::Contradicts("max_completion_tokens"),
            ),
            (
                &format!(r#"{{"model":"m","thread":{{}},{message}}}"#),
                "thread",
                Problem::ThreadUnsupported,
            ),
            (
                &format!(r#"{{"model":"m","service_tier":["flex"],{message}}}"#),
                "service_tier",
                Problem::WrongType("string"),
            ),
            (
                &format!(r#"{{"model":"m","modalities":["text","video"],{message}}}"#),
                "modalities[1]",
                Problem::Unsupported,
            ),
            (
                &format!(r#"{{"model":"m","tools":[{{"type":"web_search"}}],{message}}}"#),
                "tools[0].type",
                Problem::Unsupported,
            ),
            (r#"{"model":"m","messages":[]}"#, "messages", Problem::Empty),
            (
                r#"{"model":"m","messages":"x"}"#,
                "messages",
                Problem::WrongType("array"),
            ),
            (
                r#"{"model":"m","messages":["x"]}"#,
                "messages[0]",
                Problem::WrongType("object"),
            ),
            (
                r#"{"model":"m","messages":[{"content":"x"}]}"#,
                "messages[0].role",
                Problem::Missing,
            ),
            (
                r#"{"model":"m","messages":[{"role":"user"}]}"#,
                "messages[0].content",
                Problem::Missing,
            ),
            (
                r#"{"model":"m","messages":[{"role":"user","content":5}]}"#,
                "messages[0].content",
                Problem::WrongType("string or array"),
            ),
            (
                r#"{"model":"m","messages":[{"role":"king","content":"x"}]}"#,
                "messages[0].role",
                Problem::NotOneOf("system, developer, user, assistant, tool"),
            ),
            (
                r#"{"model":"m","messages":[{"role":"user","content":[{"type":"file","file":{"file_id":"f"}}]}]}"#,
                "messages[0].content[0].file.file_id",
                Problem::Unsupported,
            ),
        ] {
            assert_eq!(refused(body), (field.to_owned(), problem), "{body}");
        }
        let many = [r#"{"role":"user","content":"x"}"#; 4].join(",");
        assert_eq!(
            refused(&format!(r#"{{"model":"m","messages":[{many}]}}"#)).1,
            Problem::AboveMax(3)
        );
    }

    #[test]
    fn json_nesting_is_limited_to_64_levels_in_every_field() {
        let nested = |levels: usize| {
            let value = format!("{}{}", "[".repeat(levels), "]".repeat(levels));
            read(&format!(
                r#"{{"model":"m","messages":[{{"role":"user","content":"x"}}],"x":{value}}}"#
            ))
        };
        assert!(nested(63).is_ok());
        for levels in [64, 100, 100_000] {
            assert!(
                matches!(
                    nested(levels),
                    Err(Error::Invalid {
                        problem: Problem::TooDeep(64),
                        ..
                    })
                ),
                "{levels} levels"
            );
        }
    }

    #[test]
    fn assistant_turn_without_content_is_accepted() {
        let body = r#"{"model":"m","messages":[{"role":"assistant","content":null,"tool_calls":[{"id":"1","type":
            "function","function":{"name":"f","arguments":"{}"}}]},{"role":"tool","tool_call_id":"1","content":"ok"}]}"#;
        assert_eq!(read(body).unwrap().input.messages, 2);
    }
}
