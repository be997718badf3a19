//! Parses a request of the Messages format.

use crate::{
    call::{Ask, Call, Format},
    error::{Error, Problem},
    formats::reading::{
        cache::{CACHE_MARK, MARK},
        common::Common,
        content::{Content, Turns, check_message, tools},
        fields::{self, Of},
        json::{
            ArrayWith, At, Cx, Each, Field, Object, ObjectWith, Once, OrNull, StringWith, Text,
            Word,
        },
    },
    json::Str,
};

/// The fields of the Messages format that may occur only once in a body.
const NAMES: &[&str] = &fields::names::<{ fields::count(Of::Messages) }>(Of::Messages);

pub(crate) fn call(body: &[u8], messages_max: u64) -> Result<Call, Error> {
    let call = count(body, messages_max)?;
    match call.output_tokens {
        Some(_) => Ok(call),
        None => Err(Error::invalid("max_tokens", Problem::Missing)),
    }
}

/// Parses a request to count tokens. Such a request is a Messages request without a maximum of output tokens.
pub(crate) fn count(body: &[u8], messages_max: u64) -> Result<Call, Error> {
    Cx::new(messages_max).read(body, ObjectWith(read))
}

fn read(at: At<'_>, mut object: Object<'_, '_>) -> Result<Call, Error> {
    let mut once = const { Once::new(NAMES) };
    let mut body = Common::new(Of::Messages, object.offset());
    while let Some(key) = once.next_key(at, &mut object)? {
        match &*key {
            "messages" => body.conversation(&key, &mut object, Turns(|| ObjectWith(message)))?,
            "system" => {
                object.field(&key, Content)?;
            }
            "max_tokens" => {
                (body.spans.max_tokens, body.output_tokens) = object.tokens_span(&key)?;
            }
            "tools" => object.field(&key, OrNull(ArrayWith(tools))).map(drop)?,
            "speed" => {
                let (usual, ask) = (&["standard"], Ask::Speed);
                object.field(&key, Word { usual, ask })?;
            }
            "inference_geo" => {
                let (usual, ask) = (&["global", "not_available"], Ask::InferenceGeo);
                object.field(&key, Word { usual, ask })?;
            }
            "context_management" => {
                let edit = || Field(const { Once::new(&["type"]) }, StringWith(edit_type));
                let edits = OrNull(Each(edit));
                let place = Field(const { Once::new(&["edits"]) }, edits);
                object.weigh_and_read(&key, OrNull(place))?;
            }
            _ => body.field(&key, &mut object)?,
        }
    }
    body.spans.has_thinking = at.cx.has_thinking();
    let call = body.call(at, Format::Messages, "messages")?;
    // The Messages format has no sound. So sound is refused even if a vendor would accept it.
    match call.asks.as_ref().and_then(|asks| asks.of_chat_alone()) {
        Some(field) => Err(Error::invalid(field.to_owned(), Problem::Unsupported)),
        None => Ok(call),
    }
}

/// The beginning of the type of an edit that summarizes the conversation.
const COMPACT: &str = "compact";
/// The beginning of the type of an edit that removes thinking. This does not count as shortening, because later calls
/// of the conversation lack the thinking too.
const CLEAR: &str = "clear_thinking";

/// Reads the type of an edit in `context_management`. With such edits, the vendor may shorten a long conversation.
fn edit_type(at: At<'_>, text: &Str<'_>) -> Result<(), Error> {
    let kind = text.decoded();
    if kind.starts_with(COMPACT) {
        return Err(at.refuse(Problem::Unsupported));
    }
    if !kind.starts_with(CLEAR) {
        at.cx.shortens();
    }
    Ok(())
}

fn message(at: At<'_>, mut object: Object<'_, '_>) -> Result<(), Error> {
    let mut once = const { Once::new(&["role", "content", MARK]) };
    let (mut role_known, mut content) = (None, None);
    while let Some(key) = once.next_key(at, &mut object)? {
        match &*key {
            // The role `system` is accepted inside a conversation, because client tools for this format send turns with
            // this role.
            "role" => {
                let known = |role: &str| matches!(role, "user" | "assistant" | "system");
                role_known = Some(object.field(&key, Text(known))?);
            }
            "content" => content = Some(object.field(&key, Content)?),
            MARK => object.weigh_and_read(&key, CACHE_MARK)?,
            _ => object.weigh_field(&key)?,
        }
    }
    check_message(at, role_known, "user, assistant", content)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::price::{Class, Extras, Label, Unpriced};

    fn read(body: &str) -> Result<Call, Error> {
        call(body.as_bytes(), 100)
    }

    #[test]
    fn request_of_claude_code_is_accepted() {
        let body = r#"{"model":"claude","max_tokens":32000,"stream":true,"thinking":{"type":"adaptive"},
            "context_management":{"edits":[{"type":"clear_thinking_20251015","keep":"all"}]},
            "output_config":{"effort":"high"},"metadata":{"user_id":"{}"},
            "system":[{"type":"text","text":"abc","cache_control":{"type":"ephemeral"}}],
            "tools":[{"name":"Bash","description":"d","input_schema":{"$schema":"x","type":"object"}}],
            "messages":[{"role":"user","content":[{"type":"text","text":"hi"}]},{"role":"system","content":"mid"},
            {"role":"assistant","content":[{"type":"tool_use","id":"t","name":"Bash","input":{"data":"abc"}}]},
            {"role":"user","content":[{"type":"tool_result","tool_use_id":"t","content":[{"type":"image",
            "source":{"type":"base64","media_type":"image/png","data":"AAAA"}}]}]}]}"#;
        let call = read(body).unwrap();
        assert_eq!(
            (call.output_tokens, call.input.messages, call.input.tools),
            (Some(32000), 4, 1)
        );
        assert_eq!(call.input.images, 1);
        assert_eq!(&body[call.spans.model], "\"claude\"");
    }

    #[test]
    fn invalid_messages_field_is_refused_by_name() {
        let message = r#""messages":[{"role":"user","content":"x"}]"#;
        for (body, field, problem) in [
            (format!(r#"{{"model":"m",{message}}}"#), "max_tokens", Problem::Missing),
            (format!(r#"{{"model":"m","max_tokens":null,{message}}}"#), "max_tokens", Problem::Missing),
            (format!(r#"{{"model":"m","max_tokens":0,{message}}}"#), "max_tokens", Problem::BelowMin(1)),
            (format!(r#"{{"model":"m","max_tokens":1,"system":7,{message}}}"#), "system", Problem::WrongType("string or array")),
            (format!(r#"{{"model":"m","max_tokens":1,"thread":{{"type":"create"}},{message}}}"#), "thread", Problem::ThreadUnsupported),
            (format!(r#"{{"model":"m","max_tokens":1,"mcp_servers":[{{}}],{message}}}"#), "mcp_servers[0]", Problem::Unsupported),
            (
                format!(r#"{{"model":"m","max_tokens":1,"compaction":{{"type":"summarize"}},{message}}}"#),
                "compaction",
                Problem::Unsupported,
            ),
            (
                format!(
                    r#"{{"model":"m","max_tokens":1,"context_management":{{"edits":[{{"type":"clear_thinking_20251015"}},{{"type":"compact_20260112"}}]}},{message}}}"#
                ),
                "context_management.edits[1].type",
                Problem::Unsupported,
            ),
            (
                format!(r#"{{"model":"m","max_tokens":1,"tools":[{{"type":"code_execution_20250522","name":"w"}}],{message}}}"#),
                "tools[0].type",
                Problem::Unsupported,
            ),
            (
                r#"{"model":"m","max_tokens":1,"messages":[{"role":"tool","content":"x"}]}"#.to_owned(),
                "messages[0].role",
                Problem::NotOneOf("user, assistant"),
            ),
            (
                r#"{"model":"m","max_tokens":1,"messages":[{"role":"user","content":[{"text":"x"}]}]}"#.to_owned(),
                "messages[0].content[0].type",
                Problem::Missing,
            ),
        ] {
            match read(&body) {
                Err(Error::Invalid { field: named, problem: why }) => assert_eq!((&*named, why), (field, problem), "{body}"),
                other => panic!("{body}: {other:?}"),
            }
        }
    }

    #[test]
    fn requested_feature_with_a_separate_price_is_recorded_with_the_field_that_requests_it() {
        let body = r#"{"model":"m","max_tokens":1,"speed":"fast","service_tier":"priority","inference_geo":"us",
            "tools":[{"name":"f"},{"type":"web_search_20250305","name":"w","max_uses":3},
            {"max_uses":2,"type":"web_search_20260209","name":"w"}],
            "messages":[{"role":"user","content":"x"}]}"#;
        let asks = read(body).unwrap().asks.unwrap();
        let Extras {
            served, classes, ..
        } = *asks.extras();
        assert_eq!(
            [served.speed, served.service_tier, served.inference_geo],
            ["fast", "priority", "us"].map(Label::new)
        );
        assert_eq!(classes.get(Class::WebSearchCall), 5);
        for (kind, field) in [
            (Unpriced::Speed, "speed"),
            (Unpriced::ServiceTier, "service_tier"),
            (Unpriced::InferenceGeo, "inference_geo"),
            (Unpriced::Class(Class::WebSearchCall), "tools[1].type"),
        ] {
            assert_eq!(asks.field(kind), Some(field));
        }
        let usual = r#"{"model":"m","max_tokens":1,"speed":"standard","service_tier":"auto","inference_geo":null,
            "messages":[{"role":"user","content":"x"}]}"#;
        assert_eq!(read(usual).unwrap().asks, None);
    }

    /// A vendor of another format gets the whole search result as text, so all of it counts as text.
    #[test]
    fn search_result_counts_as_text_including_its_source() {
        let body = r#"{"model":"m","max_tokens":1,"messages":[{"role":"user","content":[{"type":"search_result",
            "source":"abcdef","title":"gh","content":[{"type":"text","text":"i"}]}]}]}"#;
        let input = read(body).unwrap().input;
        assert_eq!((input.documents, input.images), (0, 0));
        assert!(input.text_bytes >= 9, "{input:?}");
    }

    #[test]
    fn text_document_counts_as_text() {
        let body = r#"{"model":"m","max_tokens":1,"messages":[{"role":"user","content":[{"type":"document",
            "source":{"data":"abcdef","type":"text","media_type":"text/plain"}}]}]}"#;
        let call = read(body).unwrap();
        assert_eq!(call.input.documents, 0);
        assert!(call.input.text_bytes >= 6);
        assert!(call.texts.milli() > 0);
    }

    #[test]
    fn tool_call_arguments_count_by_their_bytes_in_the_request() {
        let of = |input: &str| {
            let block = format!(r#"{{"type":"tool_use","id":"t","name":"f","input":{input}}}"#);
            let body = format!(
                r#"{{"model":"m","max_tokens":1,"messages":[{{"role":"assistant","content":[{block}]}}]}}"#
            );
            read(&body).unwrap().input.text_bytes
        };
        let nothing = of("{}");
        // Other formats put the arguments into a string, in which the characters of an escape are text.
        let escapes = format!(r#"{{"a":"{}"}}"#, "\\u0001".repeat(100));
        assert_eq!(of(&escapes), nothing + escapes.len() as u64 - 2);
    }
}
