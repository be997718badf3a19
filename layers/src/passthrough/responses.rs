//! Reads answers of the responses format. They have the usage in the last event, errors in two shapes, and texts that
//! are sent several times.

use std::{borrow::Cow, collections::BTreeMap, ops::Range};

use serde::Deserialize;
use serde_json::value::RawValue;

use super::{
    broken,
    text::{text_behind, text_size},
    tool_calls::ToolCalls,
    usage::{Seen, within},
    vendor_error::vendor_error,
};
use crate::{
    call::Format,
    error::Error,
    json::{Found, members, string},
    price::Label,
    stream_progress::{Created, StreamProgress},
    text_size::TextSize,
    vendor_usage::{VendorUsage, is_error, responses_usage, tier},
};

/// The state of a stream of the responses format after the events that were read so far.
#[derive(Debug, Default)]
pub(super) struct ResponsesState {
    pub(super) usage: Option<VendorUsage>,
    /// The byte range of the usage in the data of the latest event that has usage.
    pub(super) usage_at: Option<Range<usize>>,
    /// The service tier that the vendor has reported so far.
    pub(super) tier: Label,
    pub(super) suspect: bool,
    pub(super) finished: bool,
    /// The text of events that have a piece of a text (a delta).
    pieces: TextSize,
    /// The text of completed items. It repeats the text of the pieces; some vendors send no pieces.
    items: TextSize,
    /// Arguments in completed calls of tools that have item types of their own, such as a shell.
    calls: TextSize,
    /// Arguments of calls of such tools that were sent in pieces, as long as the call's item is not complete.
    calls_pieces: TextSize,
    /// The text of the whole output in the last event, read only if the vendor did not count the output.
    output: TextSize,
    items_open: u64,
    /// Whether the last completed item may be the last item of the answer.
    may_end: bool,
    /// The completed calls of tools that the vendor itself runs.
    tool_calls: ToolCalls,
    pub(super) progress: StreamProgress,
}

/// The kind of an event, as far as it matters for usage and errors.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    /// The event announces an answer without containing a part of it.
    Announces,
    Piece,
    /// The event has a piece of the arguments of a tool with an item type of its own.
    CallPiece,
    ItemAdded,
    ItemDone,
    Last,
    Failed,
    /// The event has no type; some vendors send errors without a type.
    Unnamed,
    Other,
}

impl Kind {
    fn of(name: &str) -> Self {
        match name {
            "response.created" | "response.in_progress" | "response.queued" | "keepalive" => {
                Self::Announces
            }
            "response.output_item.added" => Self::ItemAdded,
            "response.output_item.done" => Self::ItemDone,
            "response.completed" | "response.incomplete" => Self::Last,
            "response.failed" | "error" => Self::Failed,
            "" => Self::Unnamed,
            // The most frequent event by far, so it is compared before the others.
            "response.output_text.delta" => Self::Piece,
            _ if name.ends_with(".delta") && name.contains("_call_") => match name {
                "response.function_call_arguments.delta"
                | "response.custom_tool_call_input.delta" => Self::Piece,
                _ => Self::CallPiece,
            },
            _ if name.ends_with(".delta") => Self::Piece,
            _ => Self::Other,
        }
    }
}

impl ResponsesState {
    /// Returns the size of the text so far. Text that was sent several times counts once.
    pub(super) fn text(&self) -> TextSize {
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

    /// Returns whether the vendor ran tools without reporting usage so far.
    pub(super) fn ran_uncounted(&self) -> bool {
        self.usage.is_none() && self.tool_calls.any()
    }

    /// Returns whether the answer seems to be complete, but its usage has not arrived.
    pub(super) const fn usage_due(&self) -> bool {
        self.may_end && self.items_open == 0 && !self.finished
    }

    /// Reads the data of an event. `name` is the event's name; empty if the event has no name.
    pub(super) fn event(&mut self, name: &[u8], data: &[u8]) -> Seen {
        if name.ends_with(b".delta") {
            let kind = Kind::of(std::str::from_utf8(name).unwrap_or_default());
            self.piece(kind, data);
            return Seen::Other;
        }
        let Ok(event) = serde_json::from_slice::<Typed<'_>>(data) else {
            // The data cannot be parsed. If the event is an error, it may contain text of the vendor, so it is not
            // forwarded.
            return match Kind::of(std::str::from_utf8(name).unwrap_or("?")) {
                Kind::Failed => Seen::Failure(vendor_error(&String::from_utf8_lossy(data))),
                _ => Seen::Other,
            };
        };
        match Kind::of(event.kind.as_deref().unwrap_or_default()) {
            Kind::Announces => {
                self.announced(data);
                Seen::Announced
            }
            kind @ (Kind::Piece | Kind::CallPiece) => {
                self.piece(kind, data);
                Seen::Other
            }
            Kind::ItemAdded => {
                self.items_open += 1;
                self.may_end = false;
                Seen::Other
            }
            Kind::ItemDone => {
                self.item_done(data);
                Seen::Other
            }
            Kind::Last => self.last(data),
            Kind::Failed => {
                self.count(data);
                Seen::Failure(failure(data))
            }
            Kind::Unnamed if event.has_error() => Seen::Failure(failure(data)),
            Kind::Unnamed | Kind::Other => Seen::Other,
        }
    }

    fn piece(&mut self, kind: Kind, data: &[u8]) {
        let before = match kind {
            Kind::CallPiece => &mut self.calls_pieces,
            _ => &mut self.pieces,
        };
        before.add(&text_behind(before, Format::Responses, data));
    }

    fn item_done(&mut self, data: &[u8]) {
        self.items_open = self.items_open.saturating_sub(1);
        let item = serde_json::from_slice::<Done<'_>>(data).ok();
        let Some(item) = item.and_then(|done| done.item) else {
            self.items.add(&text_size(Format::Responses, data));
            return;
        };
        let kind = kind_of(item.get());
        self.may_end = kind == "message" || kind.ends_with("_call");
        self.tool_calls.item(&kind, item.get());
        match call_size(&kind, item.get()) {
            // The completed item repeats the arguments that were sent in pieces, so these are subtracted.
            Some(call) => {
                self.calls.add(&call);
                self.calls_pieces = self.calls_pieces.less(call.bytes());
            }
            None => self
                .items
                .add(&text_size(Format::Responses, item.get().as_bytes())),
        }
    }

    fn announced(&mut self, data: &[u8]) {
        let Ok(Announced { response }) = serde_json::from_slice(data) else {
            return;
        };
        self.tier = response
            .service_tier
            .map_or(self.tier, |json| tier(json.get()));
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

    /// Handles the last event. Its answer may have failed, or may not have ended.
    fn last(&mut self, data: &[u8]) -> Seen {
        self.count(data);
        let answer = serde_json::from_slice::<Ending<'_>>(data).ok();
        let answer = answer.and_then(|ending| ending.response);
        if let Some(error) = answer.and_then(|answer| refused(answer.get())) {
            return Seen::Failure(error);
        }
        self.finished = true;
        let counts_output = |usage: VendorUsage| usage.usage.output_total() > 0;
        if !self.usage.is_some_and(counts_output)
            && let Some(answer) = answer
        {
            self.output = output_size(answer.get());
        }
        Seen::Other
    }

    fn count(&mut self, data: &[u8]) {
        let Ok(Ending {
            response: Some(answer),
        }) = serde_json::from_slice(data)
        else {
            return;
        };
        let Ok([usage, served_at]) = members(answer.get(), &["usage", "service_tier"]) else {
            self.suspect = true;
            return;
        };
        let usage = usage.filter(|usage| *usage != "null");
        self.usage_at = usage.map(|usage| within(data, usage));
        self.tier = served_at.map_or(self.tier, tier);
        match usage.map(responses_usage) {
            None => {}
            Some(None) => self.suspect = true,
            Some(Some(usage)) => {
                let calls = ToolCalls::of(answer.get()).after(self.tool_calls);
                self.usage = Some(calls.within(usage));
            }
        }
    }
}

/// Returns the size of the text in the output items of an answer. Other fields repeat the request.
pub(super) fn output_size(answer: &str) -> TextSize {
    let mut size = TextSize::default();
    let Ok([Some(output)]) = members(answer, &["output"]) else {
        return size;
    };
    let Ok(items) = serde_json::from_str::<Vec<&RawValue>>(output) else {
        return text_size(Format::Responses, output.as_bytes());
    };
    for item in items.into_iter().map(RawValue::get) {
        let call = call_size(&kind_of(item), item);
        size.add(&call.unwrap_or_else(|| text_size(Format::Responses, item.as_bytes())));
    }
    size
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

/// Returns the size of the text that the model wrote into a call of a tool with an item type of its own; `None` for
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

/// Adds all strings in this JSON, except the names of fields.
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

/// Returns the error of an answer that failed or has not ended; `None` if the answer is valid.
pub(super) fn refused(answer: &str) -> Option<Error> {
    let [status, error] = members(answer, &["status", "error"]).ok()?;
    if let Some(error) = error.filter(|error| is_error(error)) {
        return Some(vendor_error(error));
    }
    match status? {
        "\"failed\"" | "\"cancelled\"" => Some(Error::VendorUnavailable(
            format!("answered with the status {}", status?).into(),
        )),
        // An unfinished answer is an error, because no caller would fetch the rest of it later.
        "\"queued\"" | "\"in_progress\"" => Some(broken("an answer that has not ended")),
        _ => None,
    }
}

/// Returns the error of an event, which may be at the top level, under `error`, or under `response.error`.
fn failure(data: &[u8]) -> Error {
    let whole = String::from_utf8_lossy(data);
    let Ok([error, response]) = members(&whole, &["error", "response"]) else {
        return vendor_error(&whole);
    };
    let of_response = response
        .and_then(|response| members(response, &["error"]).ok())
        .and_then(|[error]| error);
    let error = [error, of_response]
        .into_iter()
        .flatten()
        .find(|error| is_error(error));
    vendor_error(error.unwrap_or(&whole))
}

#[derive(Deserialize)]
struct Typed<'a> {
    #[serde(borrow, rename = "type")]
    kind: Option<Cow<'a, str>>,
    #[serde(borrow)]
    error: Option<&'a RawValue>,
}

impl Typed<'_> {
    fn has_error(&self) -> bool {
        self.error.is_some_and(|error| is_error(error.get()))
    }
}

/// A string that is borrowed from the JSON if it has no escapes.
#[derive(Deserialize)]
struct Typing<'a>(#[serde(borrow)] Cow<'a, str>);

#[derive(Deserialize)]
struct Done<'a> {
    #[serde(borrow)]
    item: Option<&'a RawValue>,
}

#[derive(Deserialize)]
struct Ending<'a> {
    #[serde(borrow)]
    response: Option<&'a RawValue>,
}

#[derive(Deserialize)]
struct Announced<'a> {
    #[serde(borrow)]
    response: AnnouncedAnswer<'a>,
}

#[derive(Deserialize)]
struct AnnouncedAnswer<'a> {
    #[serde(borrow)]
    id: Option<&'a RawValue>,
    #[serde(borrow)]
    created_at: Option<&'a RawValue>,
    #[serde(borrow)]
    model: Option<&'a RawValue>,
    #[serde(borrow)]
    service_tier: Option<&'a RawValue>,
}

#[cfg(test)]
mod tests {
    use super::*;

    fn returned(events: &[&str]) -> (ResponsesState, Option<Error>) {
        let (mut returned, mut failure) = (ResponsesState::default(), None);
        for data in events {
            if let Seen::Failure(error) = returned.event(b"", data.as_bytes()) {
                failure.get_or_insert(error);
            }
        }
        (returned, failure)
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
            // A vendor that sends a call's arguments completely, without deltas.
            (&[ARGUMENTS, CALL], 7),
        ] {
            assert_eq!(returned(events).0.text().bytes(), bytes, "{events:?}");
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
            // The deltas of a call's arguments come before the event with all arguments, which is not counted again.
            (&[piece, &*patch], 5),
            (&[&*local, piece], 9),
            (&[&*local, DELTA], 8),
            (&[&*listed, &*image, &*output], 0),
            (&[&*last(action)], 5),
            (&[&*local, &*last(action)], 5),
        ] {
            assert_eq!(returned(events).0.text().bytes(), bytes, "{events:?}");
        }
        let answer = format!(
            r#"{{"output":[{action},{{"content":[{{"type":"output_text","text":"abc"}}]}}]}}"#
        );
        assert_eq!(output_size(&answer).bytes(), 8);
    }

    #[test]
    fn text_of_the_last_event_counts_if_its_usage_has_no_output_tokens() {
        for output in ["", r#","output_tokens":null"#] {
            let last = format!(
                r#"{{"type":"response.completed","response":{{"output":[{{"content":[{{"type":"output_text","text":"abc"}}]}}],"usage":{{"input_tokens":2{output}}}}}}}"#
            );
            let (returned, failure) = returned(&[&last]);
            assert!(failure.is_none() && returned.usage.is_some());
            assert_eq!(returned.text().bytes(), 3, "{output}");
        }
    }

    #[test]
    fn event_type_is_read_from_the_event_data() {
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
    fn error_event_is_found_in_every_shape_and_classified_by_its_code() {
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
