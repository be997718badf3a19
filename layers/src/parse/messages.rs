//! Parses the messages request.

use bytes::Bytes;

use super::{
    cache::{MARK, Mark},
    content::{Content, Tools, Turns},
    fields::{self, Of},
    json::{At, Count, Cx, Flag, Object, Once, Shape, Text, Word, elements},
};
use crate::{
    call::{Ask, Call, Format, Spans},
    error::{Error, Problem},
    json::Reader,
    model::ModelKind,
};

/// The fields of the messages format that may occur only once in a body.
const NAMES: &[&str] = &fields::names::<{ fields::count(Of::Messages) }>(Of::Messages);

pub(super) fn call(body: &[u8], messages_max: u64) -> Result<Call, Error> {
    let call = count(body, messages_max)?;
    match call.output_tokens {
        Some(_) => Ok(call),
        None => Err(Error::invalid("max_tokens", Problem::Missing)),
    }
}

/// Parses a request to count tokens: like a messages request, but without a maximum of output tokens.
pub(super) fn count(body: &[u8], messages_max: u64) -> Result<Call, Error> {
    Cx::new(messages_max).read(body, Body)
}

struct Body;

impl Shape for Body {
    type Value = Call;
    const EXPECTED: &'static str = "object";

    fn object(self, at: At<'_>, mut object: Object<'_, '_>) -> Result<Call, Error> {
        let mut once = const { Once::new(NAMES) };
        let (mut model, mut messages, mut stream, mut max_tokens) = (None, false, false, None);
        let mut spans = Spans {
            start: object.at(),
            ..Spans::default()
        };
        while let Some(key) = object.next_key()? {
            once.check(at, &key)?;
            match &*key {
                "model" => {
                    let (span, value) = at.field_span(&key, &mut object, Text(str::to_owned))?;
                    spans.model = span;
                    model = Some(value);
                }
                "messages" => {
                    let (span, ()) = at.field_span(&key, &mut object, Turns(|| Message))?;
                    spans.turns.all = span;
                    messages = true;
                }
                "system" => {
                    at.field(&key, &mut object, Content)?;
                }
                "max_tokens" => {
                    let (span, value) = at.field_span(&key, &mut object, Count::TOKENS)?;
                    spans.max_tokens = Some(span);
                    max_tokens = value;
                }
                "stream" => stream = at.field(&key, &mut object, Flag)?,
                "tools" => at.field(&key, &mut object, Tools)?,
                "service_tier" => {
                    let usual = &["auto", "standard_only"];
                    let ask = Ask::ServiceTier;
                    at.field(&key, &mut object, Word { usual, ask })?;
                }
                "speed" => {
                    let usual = &["standard"];
                    let ask = Ask::Speed;
                    at.field(&key, &mut object, Word { usual, ask })?;
                }
                "inference_geo" => {
                    let usual = &["global", "not_available"];
                    let ask = Ask::InferenceGeo;
                    at.field(&key, &mut object, Word { usual, ask })?;
                }
                "context_management" => at.weigh_and_read(&key, &mut object, ContextManagement)?,
                MARK => at.weigh_and_read(&key, &mut object, Mark)?,
                _ => fields::read(Of::Messages, at, &key, &mut object)?,
            }
        }
        let Some(model) = model else {
            return Err(at.refuse_field("model", Problem::Missing));
        };
        if !messages {
            return Err(at.refuse_field("messages", Problem::Missing));
        }
        spans.has_thinking = at.cx.has_thinking();
        spans.turns = at.cx.turns(spans.turns.all);
        let asks = at.cx.asks();
        // The messages format has no sound, so it is refused even if a vendor would accept it.
        if let Some(field) = asks.as_ref().and_then(|asks| asks.of_chat_alone()) {
            return Err(Error::invalid(field.to_owned(), Problem::Unsupported));
        }
        Ok(Call {
            format: Format::Messages,
            kind: ModelKind::Chat,
            body: Bytes::new(),
            model,
            stream,
            output_tokens: max_tokens,
            choices: 1,
            usage_asked: true,
            input: at.cx.size(),
            texts: at.cx.texts(),
            asks,
            spans,
            session: None,
        })
    }
}

/// Types of edits that summarize the conversation begin with this text.
const COMPACT: &str = "compact";
/// Types of edits that remove thinking begin with this text. Thinking that was removed is also missing in later calls
/// of the conversation.
const CLEAR: &str = "clear_thinking";

/// Reads `context_management`: edits with which the vendor may shorten a long conversation.
struct ContextManagement;

impl Shape for ContextManagement {
    type Value = ();
    const EXPECTED: &'static str = "object";

    fn null(self, _: At<'_>) -> Result<(), Error> {
        Ok(())
    }
    fn object(self, at: At<'_>, mut object: Object<'_, '_>) -> Result<(), Error> {
        let mut once = const { Once::new(&["edits"]) };
        while let Some(key) = object.next_key()? {
            once.check(at, &key)?;
            match &*key {
                "edits" => at.field(&key, &mut object, Edits)?,
                _ => at.weigh_field(&key, &mut object)?,
            }
        }
        Ok(())
    }
}

struct Edits;

impl Shape for Edits {
    type Value = ();
    const EXPECTED: &'static str = "array";

    fn null(self, _: At<'_>) -> Result<(), Error> {
        Ok(())
    }
    fn array(self, at: At<'_>, json: &mut Reader<'_>) -> Result<(), Error> {
        elements(at, json, || Edit).map(drop)
    }
}

struct Edit;

impl Shape for Edit {
    type Value = ();
    const EXPECTED: &'static str = "object";

    fn object(self, at: At<'_>, mut object: Object<'_, '_>) -> Result<(), Error> {
        let mut once = const { Once::new(&["type"]) };
        while let Some(key) = object.next_key()? {
            once.check(at, &key)?;
            match &*key {
                "type" => {
                    let read = |kind: &str| (kind.starts_with(COMPACT), kind.starts_with(CLEAR));
                    let (compacts, clears) = at.field(&key, &mut object, Text(read))?;
                    if compacts {
                        return Err(at.refuse_field(&key, Problem::Unsupported));
                    }
                    if !clears {
                        at.cx.shortens();
                    }
                }
                _ => at.weigh_field(&key, &mut object)?,
            }
        }
        Ok(())
    }
}

struct Message;

impl Shape for Message {
    type Value = ();
    const EXPECTED: &'static str = "object";

    fn object(self, at: At<'_>, mut object: Object<'_, '_>) -> Result<(), Error> {
        let mut once = const { Once::new(&["role", "content", MARK]) };
        let (mut role_known, mut content) = (None, None);
        while let Some(key) = object.next_key()? {
            once.check(at, &key)?;
            match &*key {
                // `system` inside a conversation is accepted, because tools for this format send such turns.
                "role" => {
                    let known = |role: &str| matches!(role, "user" | "assistant" | "system");
                    role_known = Some(at.field(&key, &mut object, Text(known))?);
                }
                "content" => content = Some(at.field(&key, &mut object, Content)?),
                MARK => at.weigh_and_read(&key, &mut object, Mark)?,
                _ => at.weigh_field(&key, &mut object)?,
            }
        }
        match (role_known, content) {
            (None, _) => Err(at.refuse_field("role", Problem::Missing)),
            (Some(false), _) => Err(at.refuse_field("role", Problem::NotOneOf("user, assistant"))),
            (_, None) => Err(at.refuse_field("content", Problem::Missing)),
            (_, Some(false)) => {
                Err(at.refuse_field("content", Problem::WrongType(Content::EXPECTED)))
            }
            (Some(true), Some(true)) => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::price::{Class, Extras, Label, Unpriced};

    fn read(body: &str) -> Result<Call, Error> {
        call(body.as_bytes(), 100)
    }

    #[test]
    fn claude_codes_request_is_accepted() {
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
    fn requested_feature_with_its_own_price_is_recorded_with_its_field() {
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

    /// A vendor of another format receives the whole search result as text, so all of it counts as text.
    #[test]
    fn search_result_counts_as_text_including_its_source() {
        let body = r#"{"model":"m","max_tokens":1,"messages":[{"role":"user","content":[{"type":"search_result",
            "source":"abcdef","title":"gh","content":[{"type":"text","text":"i"}]}]}]}"#;
        let input = read(body).unwrap().input;
        assert_eq!((input.documents, input.images), (0, 0));
        assert!(input.text_bytes >= 9, "{input:?}");
    }

    #[test]
    fn a_text_document_counts_as_text() {
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
        // The other formats put arguments into a string, in which the characters of an escape are text.
        let escapes = format!(r#"{{"a":"{}"}}"#, "\\u0001".repeat(100));
        assert_eq!(of(&escapes), nothing + escapes.len() as u64 - 2);
    }
}
