//! The client's body with only the spans changed that must change: the model's name, the wish for
//! usage, a ceiling where the client named none. Every other byte stays.

use std::{borrow::Cow, ops::Range};

use bytes::{Bytes, BytesMut};

use crate::{
    call::{Call, Format, Priced},
    model::{OutputField, Route},
};

/// The body for a vendor of the client's own format.
#[must_use]
pub fn body(priced: &Priced, route: &Route) -> Bytes {
    let call = &*priced.call;
    let mut edits: Vec<(Range<usize>, Cow<'static, str>)> = Vec::with_capacity(3);
    if route.model != call.model {
        let name = serde_json::Value::from(route.model.as_str()).to_string();
        edits.push((call.spans.model.clone(), name.into()));
    }
    if call.format == Format::Chat {
        edits.extend(usage_wish(call));
        if call.output_tokens.is_none() {
            edits.push(ceiling(
                call,
                priced.model.dialect.output_field,
                priced.output_tokens,
            ));
        }
    }
    apply(&call.body, edits)
}

/// A stream's usage is what it is charged by: it is asked for whether or not the client did.
fn usage_wish(call: &Call) -> Option<(Range<usize>, Cow<'static, str>)> {
    if !call.stream || call.usage_asked {
        return None;
    }
    let spans = &call.spans;
    Some(match (&spans.include_usage, &spans.stream_options) {
        (Some(value), _) => (value.clone(), "true".into()),
        (None, Some(options)) if call.body[options.clone()].starts_with(b"{") => {
            let inside = options.start + 1;
            let rest = call.body[inside..options.end].trim_ascii_start();
            let field = if rest.starts_with(b"}") {
                "\"include_usage\":true"
            } else {
                "\"include_usage\":true,"
            };
            (inside..inside, field.into())
        }
        (None, Some(null)) => (null.clone(), "{\"include_usage\":true}".into()),
        (None, None) => (
            spans.start..spans.start,
            "\"stream_options\":{\"include_usage\":true},".into(),
        ),
    })
}

/// Our ceiling where the client named none. One of null says as much, and must not stand beside ours.
fn ceiling(call: &Call, field: OutputField, tokens: u64) -> (Range<usize>, Cow<'static, str>) {
    let there = match field {
        OutputField::MaxTokens => &call.spans.max_tokens,
        OutputField::MaxCompletionTokens => &call.spans.max_completion_tokens,
    };
    match there {
        Some(null) => (null.clone(), tokens.to_string().into()),
        None => {
            let start = call.spans.start;
            (
                start..start,
                format!("\"{}\":{tokens},", field.name()).into(),
            )
        }
    }
}

fn apply(body: &Bytes, mut edits: Vec<(Range<usize>, Cow<'static, str>)>) -> Bytes {
    if edits.is_empty() {
        return body.clone();
    }
    edits.sort_by_key(|(span, _)| span.start);
    let grown: usize = edits.iter().map(|(_, text)| text.len()).sum();
    let mut spliced = BytesMut::with_capacity(body.len() + grown);
    let mut at = 0;
    for (span, text) in edits {
        spliced.extend_from_slice(&body[at..span.start]);
        spliced.extend_from_slice(text.as_bytes());
        at = span.end;
    }
    spliced.extend_from_slice(&body[at..]);
    spliced.freeze()
}
