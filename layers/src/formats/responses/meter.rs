//! Meters responses of the Responses format. The usage is in the last event, errors have two shapes, and texts are sent
//! several times.

use std::{borrow::Cow, collections::BTreeMap};

use bytes::Bytes;
use serde::Deserialize;
use serde_json::{Value, json, value::RawValue};

use super::{
    ending::Ending,
    tool_calls::ToolCalls,
    usage::{responses_usage, write},
};
use crate::{
    error::Error,
    formats::{
        chat,
        counts::Counts,
        errors::{broken, vendor_error},
        metering::{Metered, Plain, Seen, Stream, StreamState, with_member},
        scan::{Strings, Texts, text_behind},
    },
    json::{Found, members, string, within},
    sse::Event,
    stream_progress::{Created, StreamProgress},
    text_size::TextSize,
    usage::Usage,
    vendor_usage::{VendorUsage, is_error, tier},
};

/// The Responses format, as metered by `passthrough`.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Responses;

impl Texts for Responses {
    fn is_text(name: &[u8]) -> bool {
        matches!(
            name,
            b"delta" | b"text" | b"refusal" | b"arguments" | b"input"
        )
    }
}

impl Plain for Responses {
    const CONTENT: &'static str = "output";

    fn usage(usage: &str, response: &str) -> Option<VendorUsage> {
        Some(ToolCalls::of(response).within(responses_usage(usage)?))
    }

    fn write_usage(usage: &Usage) -> String {
        write(&Counts::new(usage, None))
    }

    /// Counts the text in the output items. All other fields repeat the request.
    fn text(response: &str) -> TextSize {
        let mut size = TextSize::default();
        let Ok([Some(output)]) = members(response, &["output"]) else {
            return size;
        };
        let Ok(items) = serde_json::from_str::<Vec<&RawValue>>(output) else {
            return text_of(output);
        };
        for item in items.into_iter().map(RawValue::get) {
            size.add(&call_size(&kind_of(item), item).unwrap_or_else(|| text_of(item)));
        }
        size
    }

    /// Returns the error of a response that failed or has not ended.
    fn refused(response: &str, _: Option<&str>) -> Option<Error> {
        let [status, error] = members(response, &["status", "error"]).ok()?;
        if let Some(error) = error.filter(|error| is_error(error)) {
            return Some(vendor_error(error));
        }
        match status? {
            "\"failed\"" | "\"cancelled\"" => Some(Error::VendorUnavailable(
                format!("the vendor's response has the status {}", status?).into(),
            )),
            // An unfinished response is an error, because no caller would fetch the rest of it later.
            "\"queued\"" | "\"in_progress\"" => {
                Some(broken("the vendor returned a response that has not ended"))
            }
            _ => None,
        }
    }

    fn ran_tools(response: &str) -> bool {
        ToolCalls::of(response).any()
    }
}

impl Metered for Responses {
    /// A keep-alive: a comment, because an event of the gateway would need a `sequence_number` that the vendor uses
    /// too.
    const KEEP_ALIVE: &'static [u8] = chat::KEEP_ALIVE;
    type Stream = ResponsesStream;
}

/// The state of a Responses stream.
#[derive(Debug, Default)]
pub(crate) struct ResponsesStream {
    /// The text in events that contain a piece of a text (deltas).
    pieces: TextSize,
    /// The text in completed items. It repeats the text of the pieces; some vendors send no pieces.
    items: TextSize,
    /// The arguments in completed calls of tools that have item types of their own, for example a shell.
    calls: TextSize,
    /// The arguments that were sent in pieces for calls whose items are not complete yet. Complete items are counted in
    /// `calls`.
    calls_pieces: TextSize,
    /// The text of the whole output in the last event. It is read only if the vendor did not count the output.
    output: TextSize,
    items_open: u64,
    /// Whether the last completed item may be the last one of the response.
    may_end: bool,
    /// The completed calls of tools that the vendor itself runs.
    tool_calls: ToolCalls,
    progress: StreamProgress,
}

impl Stream for ResponsesStream {
    fn event(&mut self, state: &mut StreamState, event: &Event, name: &[u8], data: &[u8]) -> Seen {
        let seen = self.read(state, name, data);
        // Errors of the vendor are not forwarded, so they do not advance the position in the stream.
        if !matches!(seen, Seen::Failure(_)) {
            self.progress.passed(event);
        }
        state.text = self.text();
        state.unknown = state.usage.is_none() && self.tool_calls.any();
        state.usage_due = self.may_end && self.items_open == 0;
        (state.may_end, state.is_final) = (state.finished, state.finished);
        state.lacks_usage = state.finished && state.usage.is_none();
        seen
    }

    fn with_usage(&self, event: &Event, usage: &str) -> Option<Bytes> {
        let data = event.data()?;
        let [response] = members(std::str::from_utf8(&data).ok()?, &["response"]).ok()?;
        let response = response?;
        let [old] = members(response, &["usage"]).ok()?;
        let old = old.map(|old| within(response.as_bytes(), old));
        let stated = with_member(response.as_bytes(), old.as_ref(), usage);
        let at = within(&data, response);
        Some(event.with_data(&[&data[..at.start], &stated[..], &data[at.end..]].concat()))
    }

    fn ceiling(&self, _: &Event) -> Bytes {
        let mut ending = Ending::new(self.progress.reached(), || "resp_stopped".to_owned());
        let reason = json!({ "reason": "max_output_tokens" });
        ending.push_response("incomplete", &Value::Null, &reason);
        ending.written().into()
    }

    fn progress(&self) -> Option<StreamProgress> {
        Some(self.progress.clone())
    }
}

impl ResponsesStream {
    /// Returns the size of the text so far. Text that was sent several times counts once.
    fn text(&self) -> TextSize {
        let larger = |one: TextSize, other: TextSize| {
            if one.bytes() >= other.bytes() {
                one
            } else {
                other
            }
        };
        let mut reported = larger(self.pieces, self.items);
        reported.add(&self.calls);
        reported.add(&self.calls_pieces);
        larger(reported, self.output)
    }

    /// Reads the data of an event. `name` is the event's name, or empty if it has none.
    fn read(&mut self, state: &mut StreamState, name: &[u8], data: &[u8]) -> Seen {
        // Pieces of text are by far the most frequent events. If the event has a name, its data is not parsed.
        if name.ends_with(b".delta") {
            self.piece(std::str::from_utf8(name).unwrap_or_default(), data);
            return Seen::Other;
        }
        let Ok(event) = serde_json::from_slice::<Typed<'_>>(data) else {
            // The data cannot be parsed. If the event is an error, it may contain text of the vendor that is not meant
            // for the caller, so it is not forwarded.
            return match name {
                b"response.failed" | b"error" => {
                    Seen::Failure(vendor_error(&String::from_utf8_lossy(data)))
                }
                _ => Seen::Other,
            };
        };
        match event.kind.as_deref().unwrap_or_default() {
            "response.created" | "response.in_progress" | "response.queued" | "keepalive" => {
                self.announced(state, data);
                return Seen::Announced;
            }
            "response.output_item.added" => {
                self.items_open += 1;
                self.may_end = false;
            }
            "response.output_item.done" => self.item_done(data),
            "response.completed" | "response.incomplete" => return self.last(state, data),
            "response.failed" | "error" => {
                self.count(state, data);
                return Seen::Failure(failure(data));
            }
            // Some vendors send errors without a type.
            "" if event.error.is_some_and(|error| is_error(error.get())) => {
                return Seen::Failure(failure(data));
            }
            kind if kind.ends_with(".delta") => self.piece(kind, data),
            _ => {}
        }
        Seen::Other
    }

    /// Counts the text in an event of this type, which contains a piece of a text.
    fn piece(&mut self, kind: &str, data: &[u8]) {
        let is_text = match kind {
            "response.output_text.delta"
            | "response.function_call_arguments.delta"
            | "response.custom_tool_call_input.delta" => true,
            // The piece belongs to the arguments of a tool with an item type of its own.
            _ => !kind.contains("_call_"),
        };
        let before = match is_text {
            true => &mut self.pieces,
            false => &mut self.calls_pieces,
        };
        before.add(&text_behind::<Responses>(before, data));
    }

    fn item_done(&mut self, data: &[u8]) {
        self.items_open = self.items_open.saturating_sub(1);
        let item = serde_json::from_slice::<Done<'_>>(data).ok();
        let Some(item) = item.and_then(|done| done.item) else {
            self.items.add(&Strings::of::<Responses>(data).text);
            return;
        };
        let kind = kind_of(item.get());
        self.may_end = kind == "message" || kind.ends_with("_call");
        self.tool_calls.item(&kind, item.get());
        match call_size(&kind, item.get()) {
            // The completed item repeats the arguments that were sent in pieces. So the pieces are subtracted.
            Some(call) => {
                self.calls.add(&call);
                self.calls_pieces = self.calls_pieces.less(call.bytes());
            }
            None => self.items.add(&text_of(item.get())),
        }
    }

    fn announced(&mut self, state: &mut StreamState, data: &[u8]) {
        let Ok(Announced { response }) = serde_json::from_slice(data) else {
            return;
        };
        if let Some(json) = response.service_tier {
            state.tier = tier(json.get());
        }
        let text = |json: Option<&RawValue>| {
            let text = json.and_then(|json| serde_json::from_str::<Typing<'_>>(json.get()).ok());
            text.map(|text| text.0.into_owned()).unwrap_or_default()
        };
        let created_at = response.created_at.map(|json| json.get().parse());
        self.progress.created(Created {
            id: text(response.id),
            created_at: created_at.and_then(Result::ok).unwrap_or_default(),
            model: text(response.model),
        });
    }

    /// Handles the last event. The response in it may have failed, or may not have ended.
    fn last(&mut self, state: &mut StreamState, data: &[u8]) -> Seen {
        let response = self.count(state, data);
        if let Some(error) = response.and_then(|response| Responses::refused(response, None)) {
            return Seen::Failure(error);
        }
        state.finished = true;
        let counts_output = |usage: VendorUsage| usage.usage.output_total() > 0;
        if !state.usage.is_some_and(counts_output)
            && let Some(response) = response
        {
            self.output = Responses::text(response);
        }
        Seen::Other
    }

    /// Records the usage of the response in the event, and returns the response as JSON.
    fn count<'d>(&self, state: &mut StreamState, data: &'d [u8]) -> Option<&'d str> {
        let event = serde_json::from_slice::<LastEvent<'_>>(data).ok()?;
        let response = event.response?.get();
        let Ok([usage, served_at]) = members(response, &["usage", "service_tier"]) else {
            state.suspect = true;
            return Some(response);
        };
        let usage = usage.filter(|usage| *usage != "null");
        state.usage_at = usage.map(|usage| within(data, usage));
        state.tier = served_at.map_or(state.tier, tier);
        match usage.map(responses_usage) {
            None => {}
            Some(None) => state.suspect = true,
            Some(Some(usage)) => {
                let calls = ToolCalls::of(response).after(self.tool_calls);
                state.usage = Some(calls.within(usage));
                // This is the last event, so its counts are complete.
                state.counted_at = Some(u64::MAX);
            }
        }
        Some(response)
    }
}

fn text_of(json: &str) -> TextSize {
    Strings::of::<Responses>(json.as_bytes()).text
}

/// Returns the type of an item; empty if it has no type.
pub(super) fn kind_of(item: &str) -> Cow<'_, str> {
    match members(item, &["type"]) {
        Ok([Some(kind)]) => {
            serde_json::from_str::<Typing<'_>>(kind).map_or(Cow::Borrowed(""), |kind| kind.0)
        }
        _ => Cow::Borrowed(""),
    }
}

/// Returns the size of the text that the model wrote into a call of a tool with an item type of its own. `None` for
/// other items. The names of the fields depend on the tool. Text that the tool returned does not count as output.
fn call_size(kind: &str, item: &str) -> Option<TextSize> {
    let is_text = matches!(
        kind,
        "function_call" | "custom_tool_call" | "image_generation_call"
    );
    if is_text || !kind.ends_with("_call") {
        return None;
    }
    let members = serde_json::from_str::<BTreeMap<Cow<'_, str>, &RawValue>>(item).ok()?;
    let written = members.iter().filter(|(name, _)| {
        !matches!(
            &***name,
            "type"
                | "id"
                | "call_id"
                | "status"
                | "output"
                | "outputs"
                | "result"
                | "results"
                | "error"
        )
    });
    let mut size = TextSize::default();
    for (_, value) in written {
        push_strings(value.get().as_bytes(), &mut size);
    }
    Some(size)
}

/// Adds the size of all strings in this JSON, except names of fields.
fn push_strings(json: &[u8], size: &mut TextSize) {
    let mut at = 0;
    while let Some(Found { text, end, .. }) = string(json, at) {
        at = end;
        let behind = json[end..].trim_ascii_start();
        if !behind.starts_with(b":") {
            size.push_json(text);
        }
    }
}

/// Returns the error that an event reports at its top level, under `error`, or under `response.error`.
fn failure(data: &[u8]) -> Error {
    let whole = String::from_utf8_lossy(data);
    let Ok([error, response]) = members(&whole, &["error", "response"]) else {
        return vendor_error(&whole);
    };
    let of_response = response
        .and_then(|response| members(response, &["error"]).ok())
        .and_then(|[error]| error);
    let mut errors = [error, of_response].into_iter().flatten();
    let error = errors.find(|error| is_error(error));
    vendor_error(error.unwrap_or(&whole))
}

/// A string that is borrowed from the JSON if it has no escapes.
#[derive(Deserialize)]
struct Typing<'a>(#[serde(borrow)] Cow<'a, str>);

raw_fields! {
    struct AnnouncedAnswer<'a> { id, created_at, model, service_tier }
    struct Announced<'a> {
        ;
        #[serde(borrow)] response: AnnouncedAnswer<'a>,
    }
    struct Typed<'a> {
        error;
        #[serde(borrow, rename = "type")] kind: Option<Cow<'a, str>>,
    }
    struct Done<'a> { item }
    struct LastEvent<'a> { response }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn returned(events: &[&str]) -> (StreamState, Option<Error>) {
        let (mut stream, mut state, mut failure) =
            (ResponsesStream::default(), StreamState::default(), None);
        for data in events {
            let event = Event::of(Bytes::new());
            if let Seen::Failure(error) = stream.event(&mut state, &event, b"", data.as_bytes()) {
                failure.get_or_insert(error);
            }
        }
        (state, failure)
    }

    const ADDED: &str =
        r#"{"type":"response.output_item.added","item":{"type":"message","content":[]}}"#;
    const DELTA: &str = r#"{"type":"response.output_text.delta","delta":"abc","logprobs":[]}"#;
    const DONE: &str = r#"{"type":"response.output_text.done","text":"abc"}"#;
    const ITEM: &str = r#"{"type":"response.output_item.done","item":{"content":[{"type":"output_text","text":"abc"}]}}"#;
    const ARGUMENTS: &str =
        r#"{"type":"response.function_call_arguments.done","arguments":"{\"a\":1}"}"#;
    const CALL: &str = r#"{"type":"response.output_item.done","item":{"type":"function_call","arguments":"{\"a\":1}"}}"#;

    #[test]
    fn text_repeated_in_later_events_is_counted_once() {
        let last = r#"{"type":"response.completed","response":{"status":"completed","instructions":"no",
            "output":[{"content":[{"type":"output_text","text":"abc"}]}],"usage":null}}"#;
        for (events, bytes) in [
            (&[ADDED, DELTA][..], 3),
            (&[DELTA, DELTA], 6),
            (&[ADDED, DELTA, DONE, ITEM], 3),
            (&[DELTA, DONE, ITEM, last], 3),
            (&[last], 3),
            // This vendor sends the arguments of a tool call completely, without deltas.
            (&[ARGUMENTS, CALL], 7),
        ] {
            assert_eq!(returned(events).0.text.bytes(), bytes, "{events:?}");
        }
    }

    #[test]
    fn tool_call_arguments_count_as_text_and_only_once() {
        let done = |item: &str| format!(r#"{{"type":"response.output_item.done","item":{item}}}"#);
        let local = done(
            r#"{"type":"local_shell_call","id":"lsh_1","call_id":"c","status":"completed","action":{"command":["abc","de"],"env":{}}}"#,
        );
        let shell = done(
            r#"{"type":"shell_call","id":"sh_1","call_id":"c","status":"completed","action":{"commands":["abcde"],"timeout_ms":null}}"#,
        );
        let patch = done(
            r#"{"type":"apply_patch_call","id":"p","call_id":"c","status":"completed","operation":{"diff":"\u0436bcd"}}"#,
        );
        let piece =
            r#"{"type":"response.apply_patch_call_operation_diff.delta","delta":"\u0436bc"}"#;
        let listed = done(r#"{"type":"mcp_list_tools","tools":[{"description":"abcdef"}]}"#);
        let image = done(r#"{"type":"image_generation_call","result":"AAAA"}"#);
        let output = done(r#"{"type":"shell_call_output","output":[{"stdout":"abcdef"}]}"#);
        let last = |item: &str| {
            format!(
                r#"{{"type":"response.completed","response":{{"output":[{item}],"usage":null}}}}"#
            )
        };
        let action = r#"{"type":"local_shell_call","action":{"command":["abc","de"]}}"#;
        for (events, bytes) in [
            (&[&*local][..], 5),
            (&[&*shell], 5),
            (&[&*patch], 5),
            (&[DELTA, ITEM, &*local, &*shell], 13),
            // The deltas of a tool call's arguments precede the event with all arguments, which is not counted in
            // addition.
            (&[piece, &*patch], 5),
            (&[&*local, piece], 9),
            (&[&*local, DELTA], 8),
            (&[&*listed, &*image, &*output], 0),
            (&[&*last(action)], 5),
            (&[&*local, &*last(action)], 5),
        ] {
            assert_eq!(returned(events).0.text.bytes(), bytes, "{events:?}");
        }
        let answer = format!(
            r#"{{"output":[{action},{{"content":[{{"type":"output_text","text":"abc"}}]}}]}}"#
        );
        assert_eq!(Responses::text(&answer).bytes(), 8);
    }

    #[test]
    fn text_of_the_last_event_counts_if_its_usage_has_no_output_tokens() {
        for output in ["", r#","output_tokens":null"#] {
            let last = format!(
                r#"{{"type":"response.completed","response":{{"output":[{{"content":[{{"type":"output_text","text":"abc"}}]}}],"usage":{{"input_tokens":2{output}}}}}}}"#
            );
            let (returned, failure) = returned(&[&last]);
            assert!(failure.is_none() && returned.usage.is_some());
            assert_eq!(returned.text.bytes(), 3, "{output}");
        }
    }

    #[test]
    fn type_of_an_event_is_read_from_its_data() {
        let usage = r#""usage":{"input_tokens":2,"output_tokens":3}"#;
        let last = format!(
            r#"{{"response":{{{usage},"status":"incomplete"}},"type":"response.incomplete"}}"#
        );
        let (told_of, failure) = returned(&[&last]);
        assert!(told_of.finished && failure.is_none());
        assert_eq!(told_of.usage.unwrap().usage.output, 3);
        let early = format!(r#"{{"type":"response.in_progress","response":{{{usage}}}}}"#);
        let (early, _) = returned(&[&early]);
        assert!(early.usage.is_none() && !early.finished);
    }

    #[test]
    fn error_event_is_found_in_every_form_and_classified_by_its_code() {
        let shapes = |code: &str| {
            [
                format!(r#"{{"type":"error","code":"{code}","message":"words"}}"#),
                format!(r#"{{"type":"error","error":{{"code":"{code}","message":"words"}}}}"#),
                format!(r#"{{"error":{{"code":"{code}","message":"words"}}}}"#),
                format!(
                    r#"{{"type":"response.failed","response":{{"error":{{"code":"{code}","message":"words"}}}}}}"#
                ),
                format!(
                    r#"{{"type":"response.completed","response":{{"status":"failed","error":{{"code":"{code}","message":"words"}}}}}}"#
                ),
            ]
        };
        for (code, status) in [
            ("server_error", 503),
            ("rate_limit_exceeded", 429),
            ("context_length_exceeded", 400),
            ("image_too_small", 400),
        ] {
            for event in shapes(code) {
                let (_, failure) = returned(&[DELTA, &event]);
                let found = match failure {
                    Some(Error::VendorUnavailable(_)) => 503,
                    Some(Error::VendorLimit { .. }) => 429,
                    Some(Error::VendorRefused { text, .. }) if text == "words" => 400,
                    other => panic!("{event}: {other:?}"),
                };
                assert_eq!(found, status, "{event}");
            }
        }
        let (_, failure) =
            returned(&[r#"{"type":"response.output_text.delta","delta":"a","error":null}"#]);
        assert!(failure.is_none());
    }
}
