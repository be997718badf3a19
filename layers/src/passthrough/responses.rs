//! What stands in the answers of the responses format: the usage in its last event, errors in two shapes, and each
//! text several times.

use std::{borrow::Cow, collections::BTreeMap};

use serde::Deserialize;
use serde_json::value::RawValue;

use super::{
    broken,
    text::{Strings, text_bytes},
    tool_calls::ToolCalls,
    usage::Seen,
    vendor_error::vendor_error,
};
use crate::{
    call::Format,
    error::Error,
    json::{Found, decoded_len, members, string},
    price::Label,
    stream_progress::{Created, StreamProgress},
    vendor_usage::{VendorUsage, is_error, responses_usage, tier},
};

/// What a stream has told so far.
#[derive(Debug, Default)]
pub(super) struct Told {
    pub(super) usage: Option<VendorUsage>,
    /// At which tier it is served, as far as the stream has said.
    pub(super) tier: Label,
    pub(super) suspect: bool,
    pub(super) finished: bool,
    /// Bytes of the texts that came in pieces.
    pieces_bytes: u64,
    /// Bytes of the items that are done: they say it all again, and of some vendors for the first time.
    items_bytes: u64,
    /// Bytes of what tools of the vendor's own types are called with, whose items are done.
    calls_bytes: u64,
    /// Bytes of such calls that came in pieces and whose items are not done.
    calls_pieces_bytes: u64,
    /// Bytes of the whole output, where the last event said it and nothing else counts it.
    output_bytes: u64,
    items_open: u64,
    /// The item that was done last may be the answer's last one.
    may_end: bool,
    /// Calls of the vendor's own tools whose items are done.
    tool_calls: ToolCalls,
    pub(super) progress: StreamProgress,
}

/// What may end an answer, or begin it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    /// Says that there will be an answer.
    Announces,
    Piece,
    /// A piece of what a tool of the vendor's own types is called with.
    CallPiece,
    ItemAdded,
    ItemDone,
    Last,
    Failed,
    /// Has no type: some say an error so.
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
            // Nearly all events are this one.
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

impl Told {
    /// Bytes of text, however often it was said.
    pub(super) fn text_bytes(&self) -> u64 {
        let said = self.pieces_bytes.max(self.items_bytes);
        (said + self.calls_bytes + self.calls_pieces_bytes).max(self.output_bytes)
    }

    /// The vendor ran tools, and has not said what the call used.
    pub(super) fn ran_uncounted(&self) -> bool {
        self.usage.is_none() && self.tool_calls.any()
    }

    /// All of the answer seems to have come, but for its usage.
    pub(super) const fn usage_due(&self) -> bool {
        self.may_end && self.items_open == 0 && !self.finished
    }

    /// Takes note of the data of an event of this name, if it has one.
    pub(super) fn event(&mut self, name: &[u8], data: &[u8]) -> Seen {
        if name.ends_with(b".delta") {
            let kind = Kind::of(std::str::from_utf8(name).unwrap_or_default());
            self.piece(kind, data);
            return Seen::Other;
        }
        let Ok(event) = serde_json::from_slice::<Typed<'_>>(data) else {
            // Whatever its shape, an error's words are the vendor's own.
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
        let bytes = Strings::of(Format::Responses, data).text_bytes;
        match kind {
            Kind::CallPiece => self.calls_pieces_bytes += bytes,
            _ => self.pieces_bytes += bytes,
        }
    }

    fn item_done(&mut self, data: &[u8]) {
        self.items_open = self.items_open.saturating_sub(1);
        let item = serde_json::from_slice::<Done<'_>>(data).ok();
        let Some(item) = item.and_then(|done| done.item) else {
            self.items_bytes += text_bytes(Format::Responses, data);
            return;
        };
        let kind = kind_of(item.get());
        self.may_end = kind == "message" || kind.ends_with("_call");
        self.tool_calls.item(&kind, item.get());
        match call_bytes(&kind, item.get()) {
            // It says again what came in pieces, and of some vendors for the first time.
            Some(bytes) => {
                self.calls_bytes += bytes;
                self.calls_pieces_bytes = self.calls_pieces_bytes.saturating_sub(bytes);
            }
            None => self.items_bytes += text_bytes(Format::Responses, item.get().as_bytes()),
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

    /// The end, unless it says that there was no answer.
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
            self.output_bytes = output_bytes(answer.get());
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
        let (counted, served_at) = counted(answer.get());
        self.tier = served_at.unwrap_or(self.tier);
        match counted {
            Counted::Nothing => {}
            Counted::Nonsense => self.suspect = true,
            Counted::Usage(usage) => {
                let calls = ToolCalls::of(answer.get()).after(self.tool_calls);
                self.usage = Some(calls.within(usage));
            }
        }
    }
}

/// What an answer says about its usage.
pub(super) enum Counted {
    Nothing,
    Nonsense,
    Usage(VendorUsage),
}

/// That, and the tier, if it says one.
fn counted(answer: &str) -> (Counted, Option<Label>) {
    let Ok([usage, served_at]) = members(answer, &["usage", "service_tier"]) else {
        return (Counted::Nonsense, None);
    };
    let counted = match usage.filter(|usage| *usage != "null") {
        None => Counted::Nothing,
        Some(usage) => responses_usage(usage).map_or(Counted::Nonsense, Counted::Usage),
    };
    (counted, served_at.map(tier))
}

/// UTF-8 bytes of text in an answer's items. The rest of it repeats the request.
pub(super) fn output_bytes(answer: &str) -> u64 {
    let Ok([Some(output)]) = members(answer, &["output"]) else {
        return 0;
    };
    let Ok(items) = serde_json::from_str::<Vec<&RawValue>>(output) else {
        return text_bytes(Format::Responses, output.as_bytes());
    };
    let bytes = items.into_iter().map(RawValue::get).map(|item| {
        call_bytes(&kind_of(item), item)
            .unwrap_or_else(|| text_bytes(Format::Responses, item.as_bytes()))
    });
    bytes.sum()
}

/// An item's type, as far as it says one.
pub(super) fn kind_of(item: &str) -> Cow<'_, str> {
    match members(item, &["type"]) {
        Ok([Some(kind)]) => {
            serde_json::from_str::<Typing<'_>>(kind).map_or(Cow::Borrowed(""), |kind| kind.0)
        }
        _ => Cow::Borrowed(""),
    }
}

/// UTF-8 bytes of what a model has written into the item of a call whose members depend on the tool; `None` of any
/// other item. What the tool said is not the model's output.
fn call_bytes(kind: &str, item: &str) -> Option<u64> {
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
    Some(
        written
            .map(|(_, value)| strings_bytes(value.get().as_bytes()))
            .sum(),
    )
}

/// UTF-8 bytes of all strings in this JSON that are no names.
fn strings_bytes(json: &[u8]) -> u64 {
    let (mut at, mut bytes) = (0, 0);
    while let Some(Found { text, end, .. }) = string(json, at) {
        at = end;
        let behind = json[end..].trim_ascii_start();
        if !behind.starts_with(b":") {
            bytes += decoded_len(text);
        }
    }
    bytes
}

/// Why what has come as an answer is none.
pub(super) fn refused(answer: &str) -> Option<Error> {
    let [status, error] = members(answer, &["status", "error"]).ok()?;
    if let Some(error) = error.filter(|error| is_error(error)) {
        return Some(vendor_error(error));
    }
    match status? {
        "\"failed\"" | "\"cancelled\"" => Some(Error::VendorUnavailable(
            format!("answered with the status {}", status?).into(),
        )),
        // Nobody would come back for the rest.
        "\"queued\"" | "\"in_progress\"" => Some(broken("an answer that has not ended")),
        _ => None,
    }
}

/// The error of an event, wherever it stands: at the top, under `error`, or under `response.error`.
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

/// A string that borrows where it can.
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

    fn told(events: &[&str]) -> (Told, Option<Error>) {
        let (mut told, mut failure) = (Told::default(), None);
        for data in events {
            if let Seen::Failure(error) = told.event(b"", data.as_bytes()) {
                failure.get_or_insert(error);
            }
        }
        (told, failure)
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
    fn a_text_counts_once_however_often_it_is_said() {
        let last = r#"{"type":"response.completed","response":{"status":"completed","instructions":"no",
            "output":[{"content":[{"type":"output_text","text":"abc"}]}],"usage":null}}"#;
        for (events, bytes) in [
            (&[ADDED, DELTA][..], 3),
            (&[DELTA, DELTA], 6),
            (&[ADDED, DELTA, DONE, ITEM], 3),
            (&[DELTA, DONE, ITEM, last], 3),
            (&[last], 3),
            // A vendor that sends arguments whole.
            (&[ARGUMENTS, CALL], 7),
        ] {
            assert_eq!(told(events).0.text_bytes(), bytes, "{events:?}");
        }
    }

    #[test]
    fn what_is_written_for_a_tool_counts_as_text_does_and_once() {
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
            // Pieces of it came before.
            (&[piece, &*patch], 5),
            (&[&*local, piece], 9),
            (&[&*local, DELTA], 8),
            (&[&*listed, &*image, &*output], 0),
            (&[&*last(action)], 5),
            (&[&*local, &*last(action)], 5),
        ] {
            assert_eq!(told(events).0.text_bytes(), bytes, "{events:?}");
        }
        let answer = format!(
            r#"{{"output":[{action},{{"content":[{{"type":"output_text","text":"abc"}}]}}]}}"#
        );
        assert_eq!(output_bytes(&answer), 8);
    }

    #[test]
    fn the_text_of_the_last_event_counts_where_its_usage_counts_no_output() {
        for output in ["", r#","output_tokens":null"#] {
            let last = format!(
                r#"{{"type":"response.completed","response":{{"output":[{{"content":[{{"type":"output_text","text":"abc"}}]}}],"usage":{{"input_tokens":2{output}}}}}}}"#
            );
            let (told, failure) = told(&[&last]);
            assert!(failure.is_none() && told.usage.is_some());
            assert_eq!(told.text_bytes(), 3, "{output}");
        }
    }

    #[test]
    fn what_an_event_is_stands_in_its_data_wherever_that_says_it() {
        let usage = r#""usage":{"input_tokens":2,"output_tokens":3}"#;
        let last = format!(
            r#"{{"response":{{{usage},"status":"incomplete"}},"type":"response.incomplete"}}"#
        );
        let (told_of, failure) = told(&[&last]);
        assert!(told_of.finished && failure.is_none());
        assert_eq!(told_of.usage.unwrap().usage.output, 3);
        let early = format!(r#"{{"type":"response.in_progress","response":{{{usage}}}}}"#);
        let (early, _) = told(&[&early]);
        assert!(early.usage.is_none() && !early.finished);
    }

    #[test]
    fn an_error_is_found_in_every_shape_and_told_by_its_code() {
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
                let (_, failure) = told(&[DELTA, &event]);
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
            told(&[r#"{"type":"response.output_text.delta","delta":"a","error":null}"#]);
        assert!(failure.is_none());
    }
}
