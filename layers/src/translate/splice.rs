//! Edits the body of a call to a vendor that uses the caller's format. Only these parts are changed: the model's name
//! (or its field, if the body has a version instead), the request for usage, a missing output limit, a role that the
//! vendor does not accept, and content that no vendor of the format can read. Every other byte is forwarded unchanged.

use std::{borrow::Cow, ops::Range};

use bytes::Bytes;

use super::{capsules, roles};
use crate::{
    call::{Call, Format, Priced, ResponsesSpans, Segments},
    model::{ModelKind, OutputField, Route},
};

/// Bodies of at least this size are sent in segments. Copying a smaller body costs less than sending it in segments.
const SHARED_BYTES_MIN: usize = 16 * 1024;

/// Returns the body for a vendor that uses the caller's format. A large body shares the memory of the caller's body.
#[must_use]
pub fn body(priced: &Priced, route: &Route) -> Segments {
    let call = &*priced.call;
    let mut edits = Vec::with_capacity(3);
    match route.vendor.anthropic_version {
        Some(version) => {
            let value = &call.spans.model;
            let member = name_before(&call.body, value.start)..value.end;
            edits.push((member, versioned_member(version).into()));
        }
        None if route.model != call.model => edits.push(named(call, &route.model)),
        None => {}
    }
    if call.format == Format::Chat {
        edits.extend(usage_wish(call));
    }
    if call.spans.has_thinking {
        edits.extend(capsules::left_out(&call.body));
    }
    if let Some(spans) = &call.spans.responses {
        kept_nowhere(call, spans, route, &mut edits);
    }
    if let Some(role) = route.dialect.system_role {
        edits.extend(roles::renamed(call.format, &call.body, role));
    }
    ceiling(priced, route, &mut edits);
    apply(&call.body, edits)
}

/// Returns a translated body with `version` in the place of the model, which is the first field that translation
/// writes.
pub(super) fn versioned(body: Bytes, model: &str, version: &str) -> Bytes {
    let model = serde_json::to_string(model).expect("every string can be written as JSON");
    match body.strip_prefix(format!("{{\"model\":{model}").as_bytes()) {
        Some(rest) => {
            let begin = format!("{{{}", versioned_member(version));
            [begin.as_bytes(), rest].concat().into()
        }
        None => body,
    }
}

fn versioned_member(version: &str) -> String {
    format!("\"anthropic_version\":\"{version}\"")
}

/// A byte range of the caller's body, and the text that replaces it.
type Edit<'a> = (Range<usize>, Cow<'a, str>);

/// Replaces the model's name by the vendor's name for the model.
fn named<'a>(call: &Call, name: &'a str) -> Edit<'a> {
    let value = call.spans.model.clone();
    let is_plain = |byte: u8| !matches!(byte, ..b' ' | b'"' | b'\\');
    if call.body[value.clone()].starts_with(b"\"") && name.bytes().all(is_plain) {
        // Usually only the text between the quotes changes.
        return (value.start + 1..value.end - 1, name.into());
    }
    let name = serde_json::to_string(name).expect("every string can be written as JSON");
    (value, name.into())
}

/// Requests the usage in a stream even if the caller did not, because streams are charged by it.
fn usage_wish(call: &Call) -> Option<Edit<'static>> {
    if !call.stream || call.usage_asked {
        return None;
    }
    let spans = &call.spans;
    Some(match (&spans.include_usage, &spans.stream_options) {
        (Some(value), _) => (value.clone(), "true".into()),
        (None, Some(options)) if call.body[options.clone()].starts_with(b"{") => {
            inserted(call, options, "\"include_usage\":true")
        }
        (None, Some(null)) => (null.clone(), "{\"include_usage\":true}".into()),
        (None, None) => (
            spans.start..spans.start,
            "\"stream_options\":{\"include_usage\":true},".into(),
        ),
    })
}

/// Inserts `text` at the beginning of the object or the array in this range of the body.
fn inserted(call: &Call, span: &Range<usize>, text: &str) -> Edit<'static> {
    let inside = span.start + 1;
    let rest = call.body[inside..span.end].trim_ascii_start();
    let comma = match rest.first() {
        Some(b'}' | b']') => "",
        _ => ",",
    };
    (inside..inside, format!("{text}{comma}").into())
}

/// Sets the output limit that the hold covers, if the body has a different limit. This is so if the caller set none (or
/// null), set more than the model allows, or used a field that the vendor does not accept.
fn ceiling(priced: &Priced, route: &Route, edits: &mut Vec<Edit<'_>>) {
    let (call, tokens) = (&*priced.call, priced.output_tokens);
    let spans = &call.spans;
    // The values are compared as numbers. If they are equal, the body has the same digits and stays unchanged.
    let differs = |value: &Range<usize>| {
        let written = std::str::from_utf8(&call.body[value.clone()]).ok();
        written.and_then(|written| written.parse::<u64>().ok()) != Some(tokens)
    };
    let field = match call.format {
        // An embeddings call has no output.
        _ if call.kind == ModelKind::Embedding => return,
        // The request only counts tokens, so it needs no output limit.
        Format::Messages if spans.max_tokens.is_none() => return,
        Format::Messages => OutputField::MaxTokens,
        Format::Responses => return output_ceiling(call, tokens, edits),
        Format::Chat => route.dialect.output_field,
    };
    let number = |value: &Range<usize>| (value.clone(), Cow::Owned(tokens.to_string()));
    let renamed = |value: &Range<usize>| {
        let member = name_before(&call.body, value.start)..value.end;
        (member, Cow::Owned(format!("\"{}\":{tokens}", field.name())))
    };
    match (field, &spans.max_tokens, &spans.max_completion_tokens) {
        (OutputField::MaxTokens, None, Some(value)) => edits.push(renamed(value)),
        // Every vendor accepts the older field `max_tokens`, or refuses it with an error that names it. So the field is
        // renamed only if its value is null.
        (OutputField::MaxCompletionTokens, Some(value), None) if call.output_tokens.is_none() => {
            edits.push(renamed(value));
        }
        (_, None, None) => {
            let member = format!("\"{}\":{tokens},", field.name());
            edits.push((spans.start..spans.start, member.into()));
        }
        (_, Some(old), Some(new)) => {
            let is_null = |value: &Range<usize>| &call.body[value.clone()] == b"null";
            // A vendor may reject a request with both fields. A field whose value is null does not count.
            let (by_old, by_new) = match (is_null(old), is_null(new)) {
                (false, new_is_null) => (true, !new_is_null),
                (true, _) => (
                    field == OutputField::MaxTokens,
                    field == OutputField::MaxCompletionTokens,
                ),
            };
            for (value, names_it) in [(old, by_old), (new, by_new)] {
                if names_it && differs(value) {
                    edits.push(number(value));
                } else if !names_it && !is_null(value) {
                    edits.push((value.clone(), "null".into()));
                }
            }
        }
        (_, Some(value), None) | (_, None, Some(value)) => {
            edits.extend(differs(value).then(|| number(value)));
        }
    }
}

/// Sets the output limit in a request of the Responses format, which has only one field for it.
fn output_ceiling(call: &Call, tokens: u64, edits: &mut Vec<Edit<'_>>) {
    let start = call.spans.start;
    match &call.spans.max_tokens {
        Some(_) if call.output_tokens == Some(tokens) => {}
        Some(value) => edits.push((value.clone(), tokens.to_string().into())),
        None => edits.push((
            start..start,
            format!("\"max_output_tokens\":{tokens},").into(),
        )),
    }
}

/// Makes the vendor not store the response. Requests encrypted reasoning instead, which the caller can send back.
/// Removes content that is meant only for the gateway.
fn kept_nowhere(call: &Call, spans: &ResponsesSpans, route: &Route, edits: &mut Vec<Edit<'_>>) {
    const ENCRYPTED: &str = "\"reasoning.encrypted_content\"";
    let start = call.spans.start;
    match &spans.store {
        None => edits.push((start..start, "\"store\":false,".into())),
        Some(value) if &call.body[value.clone()] != b"false" => {
            edits.push((value.clone(), "false".into()));
        }
        Some(_) => {}
    }
    if route.dialect.encrypted_reasoning && !spans.encrypted_reasoning_asked {
        match &spans.include {
            None => edits.push((start..start, format!("\"include\":[{ENCRYPTED}],").into())),
            Some(value) if call.body[value.clone()].starts_with(b"[") => {
                edits.push(inserted(call, value, ENCRYPTED));
            }
            Some(null) => edits.push((null.clone(), format!("[{ENCRYPTED}]").into())),
        }
    }
    edits.extend(spans.cut.iter().map(|cut| (cut.clone(), "".into())));
}

/// Returns the offset of the quote before the name of the field whose value begins at `value`. The search is safe,
/// because the names that are read here contain no quotes.
fn name_before(body: &[u8], value: usize) -> usize {
    let end = memchr::memrchr(b'"', &body[..value]).unwrap_or(0);
    memchr::memrchr(b'"', &body[..end]).unwrap_or(end)
}

fn apply(body: &Bytes, mut edits: Vec<Edit<'_>>) -> Segments {
    if edits.is_empty() {
        return body.clone().into();
    }
    // At the same offset, an insertion precedes a replacement.
    edits.sort_by_key(|(span, _)| (span.start, span.end));
    if body.len() < SHARED_BYTES_MIN {
        copied(body, &edits).into()
    } else {
        shared(body, &edits)
    }
}

/// Copies the body into a new buffer, with the edits.
fn copied(body: &[u8], edits: &[Edit<'_>]) -> Bytes {
    let grown: usize = edits.iter().map(|(_, text)| text.len()).sum();
    let gone: usize = edits.iter().map(|(span, _)| span.len()).sum();
    let mut spliced = Vec::with_capacity(body.len() + grown - gone);
    let mut at = 0;
    for (span, text) in edits {
        spliced.extend_from_slice(&body[at..span.start]);
        spliced.extend_from_slice(text.as_bytes());
        at = span.end;
    }
    spliced.extend_from_slice(&body[at..]);
    spliced.into()
}

/// Returns the body with the edits as segments. Only the replacements are in new memory.
fn shared(body: &Bytes, edits: &[Edit<'_>]) -> Segments {
    let mut spliced = Segments::default();
    let mut at = 0;
    for (span, text) in edits {
        spliced.push(body.slice(at..span.start));
        spliced.push(Bytes::copy_from_slice(text.as_bytes()));
        at = span.end;
    }
    spliced.push(body.slice(at..));
    spliced
}

#[cfg(test)]
mod tests {
    use proptest::{collection::vec, prelude::*};

    use super::*;
    use crate::call::{InputSize, Spans};
    #[cfg(feature = "parse")]
    use crate::model::Dialect;

    /// Returns a call of the model `m` with a text of this length.
    fn call(text_bytes: usize) -> Call {
        let text = "x".repeat(text_bytes);
        Call {
            format: Format::Chat,
            kind: ModelKind::Chat,
            body: format!(r#"{{"model":"m","text":"{text}"}}"#).into(),
            model: "m".to_owned(),
            stream: false,
            output_tokens: None,
            choices: 1,
            usage_asked: false,
            input: InputSize::default(),
            texts: crate::text_sample::TextSample::default(),
            asks: None,
            spans: Spans {
                start: 1,
                model: 9..12,
                ..Spans::default()
            },
            session: None,
        }
    }

    #[test]
    fn any_name_of_a_model_is_written_as_valid_json() {
        for text_bytes in [1, SHARED_BYTES_MIN] {
            let call = call(text_bytes);
            for name in ["gpt-5-mini", "vendor/ёж:2", "", r#"a"b\c"#, "a\nb\u{0}"] {
                let body = apply(&call.body, vec![named(&call, name)]).to_bytes();
                let body: serde_json::Value = serde_json::from_slice(&body).unwrap();
                let text = "x".repeat(text_bytes);
                assert_eq!(body, serde_json::json!({"model": name, "text": text}));
            }
        }
    }

    #[test]
    fn large_body_is_not_copied_and_small_body_is_one_segment() {
        let large = call(SHARED_BYTES_MIN);
        let unchanged = apply(&large.body, Vec::new());
        assert_eq!(unchanged.to_bytes().as_ptr(), large.body.as_ptr());
        let memory = large.body.as_ptr_range();
        let body = apply(&large.body, vec![named(&large, "other")]);
        let own = body.iter().filter(|part| !memory.contains(&part.as_ptr()));
        assert!(own.eq(["other"]));
        let small = call(1);
        let body = apply(&small.body, vec![named(&small, "other")]);
        assert_eq!(body.iter().count(), 1);
    }

    /// Returns the body that is sent to a vendor of the caller's format.
    #[cfg(feature = "parse")]
    fn sent(operation: crate::call::Operation, body: &'static str, dialect: Dialect) -> Bytes {
        use std::sync::Arc;

        use crate::{
            model::{Model, Vendor},
            parse,
            price::{Price, PriceList},
            usage::Meter,
        };

        let call = parse::call(operation, &Bytes::from(body), 100).unwrap();
        let endpoint = http::Uri::from_static("https://vendor.example/v1");
        let key = call.format.credential("our key").unwrap();
        let vendor = Vendor::new("a", call.format, endpoint, key);
        let route = Route::new(vendor, "m").dialect(dialect);
        let priced = Priced {
            call: Arc::new(call),
            model: Arc::new(Model::new("m", 4096)),
            prices: PriceList::from(Price::default()),
            output_tokens: 9,
            meter: Meter::default(),
        };
        super::body(&priced, &route).to_bytes()
    }

    #[cfg(feature = "parse")]
    #[test]
    fn instructions_get_the_role_that_the_route_requires() {
        use crate::{call::Operation, model::SystemRole};

        const SENT: &str =
            r#"{"model":"m","max_tokens":9,"messages":[{"role":"developer","content":"x"}]}"#;
        let system = SENT.replace("developer", "system");
        for (role, expected) in [
            (None, SENT),
            (Some(SystemRole::Developer), SENT),
            (Some(SystemRole::System), system.as_str()),
        ] {
            let dialect = Dialect::default().system_role(role);
            assert_eq!(sent(Operation::Chat, SENT, dialect), expected);
        }
    }

    #[cfg(feature = "parse")]
    #[test]
    fn capsules_are_removed_for_a_vendor_of_the_callers_format() {
        use crate::call::Operation;

        for (operation, body, left) in [
            (
                Operation::Messages,
                r#"{"model":"m","max_tokens":9,"messages":[{"role":"user","content":"x"},{"role":"assistant","content":[{"type":"thinking","thinking":"t","signature":"tg1.YQ.W10"},{"type":"text","text":"a"}]}]}"#,
                r#"{"model":"m","max_tokens":9,"messages":[{"role":"user","content":"x"},{"role":"assistant","content":[{"type":"text","text":"a"}]}]}"#,
            ),
            (
                Operation::Responses,
                r#"{"store":false,"include":["reasoning.encrypted_content"],"model":"m","max_output_tokens":9,"input":[{"role":"user","content":"x"},{"type":"reasoning","summary":[],"encrypted_content":"tg1.YQ.W10"}]}"#,
                r#"{"store":false,"include":["reasoning.encrypted_content"],"model":"m","max_output_tokens":9,"input":[{"role":"user","content":"x"}]}"#,
            ),
        ] {
            assert_eq!(sent(operation, body, Dialect::default()), left);
        }
    }

    proptest! {
        /// Each of `parts` is unchanged text, a text to remove, and its replacement. Each of the three may be empty,
        /// even at the beginning and at the end of the body.
        #[test]
        fn edited_body_has_the_same_bytes_whether_copied_or_shared(
            parts in vec((".{0,9}", ".{0,9}", ".{0,9}"), 0..5),
            end in ".{0,9}",
        ) {
            let (mut body, mut expected, mut edits) = (String::new(), String::new(), Vec::new());
            for (stays, goes, comes) in &parts {
                body.push_str(stays);
                edits.push((body.len()..body.len() + goes.len(), Cow::Borrowed(comes.as_str())));
                body.push_str(goes);
                expected.push_str(stays);
                expected.push_str(comes);
            }
            body.push_str(&end);
            expected.push_str(&end);
            let body = Bytes::from(body);
            prop_assert_eq!(copied(&body, &edits), &expected);
            prop_assert_eq!(shared(&body, &edits).to_bytes(), &expected);
        }
    }
}
