//! Traits by which `passthrough` reads the usage, the errors and the end of a response. Each format implements
//! [`Plain`] for plain responses, and [`Metered`] with a [`Stream`] for event streams.

use std::{borrow::Cow, fmt, ops::Range};

use bytes::Bytes;

use super::scan::Texts;
use crate::{
    error::Error, price::Label, sse::Event, stream_progress::StreamProgress, text_size::TextSize,
    usage::Usage, vendor_usage::VendorUsage,
};

/// A kind of plain response, with the fields from which its usage, text and errors are read.
pub(crate) trait Plain {
    /// The name of the field with the content, which is an array.
    const CONTENT: &'static str;
    /// Whether the content may be an empty array.
    const MAY_BE_EMPTY: bool = true;
    /// Whether the response has output tokens, which vendors may fail to count.
    const HAS_OUTPUT: bool = true;

    /// Reads the usage object of this response. Both are given as JSON.
    fn usage(usage: &str, response: &str) -> Option<VendorUsage>;

    /// Writes the usage in the form of the format's usage object.
    fn write_usage(usage: &Usage) -> String;

    /// Returns the size of the text that the model generated.
    fn text(response: &str) -> TextSize;

    /// Returns an error that the response reports outside its field `error`.
    fn refused(_response: &str, _content: Option<&str>) -> Option<Error> {
        None
    }

    /// Returns whether the vendor ran tools that it bills.
    fn ran_tools(_response: &str) -> bool {
        false
    }
}

/// A format of plain responses and event streams.
pub(crate) trait Metered: Plain + Texts {
    /// A keep-alive of the format, which clients ignore.
    const KEEP_ALIVE: &'static [u8];
    /// The reader's state in one stream of the format.
    type Stream: Stream + Default + 'static;
}

/// Reads the events of one stream, in one format.
pub(crate) trait Stream: fmt::Debug + Send + Sync {
    /// Reads the next event, which has this name and this data, and records in `state` what it contains.
    fn event(&mut self, state: &mut StreamState, event: &Event, name: &[u8], data: &[u8]) -> Seen;

    /// Returns the event with this usage object added to it. `event` must not have usage yet.
    fn with_usage(&self, event: &Event, usage: &str) -> Option<Bytes>;

    /// Returns the events with which a vendor ends a stream at the request's output limit, without usage. `last` is the
    /// last event that has a position in the stream, or is empty if there was none.
    fn ceiling(&self, last: &Event) -> Bytes;

    /// Returns the events that are missing at the end of a stream that may end without them. If `usage` is set, the
    /// events include this usage object, which the stream lacks.
    fn closing(&self, _usage: Option<&str>) -> Bytes {
        Bytes::new()
    }

    /// Returns how far the stream has got, for code that must end it early.
    fn progress(&self) -> Option<StreamProgress> {
        None
    }
}

/// The findings in a stream so far.
#[derive(Debug, Default)]
pub(crate) struct StreamState {
    /// The number of requested choices minus one.
    pub(crate) more_choices: u64,
    pub(crate) text: TextSize,
    /// The latest usage that the vendor reported.
    pub(crate) usage: Option<VendorUsage>,
    /// The service tier, if the vendor reported it outside the usage.
    pub(crate) tier: Label,
    /// The number of text bytes up to which the vendor has counted the output.
    pub(crate) counted_at: Option<u64>,
    /// Whether reported counts are missing or contradict each other.
    pub(crate) suspect: bool,
    /// Whether the vendor ran tools without reporting usage.
    pub(crate) unknown: bool,
    /// The byte range of the usage in the data of the latest event; `None` if that event has no usage.
    pub(crate) usage_at: Option<Range<usize>>,
    /// Whether the latest event should have stated usage, and no event has stated it yet.
    pub(crate) lacks_usage: bool,
    /// Whether usage that arrives from now on is the vendor's final usage.
    pub(crate) is_final: bool,
    /// Whether all text seems to have arrived.
    pub(crate) usage_due: bool,
    /// Whether an event of the response itself has arrived: not an error, a keep-alive or an announcement.
    pub(crate) spoke: bool,
    /// Whether the stream is complete even if its last event is missing.
    pub(crate) may_end: bool,
    /// Whether the last event of the stream has arrived.
    pub(crate) finished: bool,
}

/// The kind of an event. It decides whether the event is forwarded.
#[derive(Debug)]
pub enum Seen {
    /// An event of any other kind. It is forwarded.
    Other,
    /// An event without data, for example a comment or a blank line.
    Nothing,
    /// An event that announces a response but contains no part of it.
    Announced,
    /// A Chat Completions chunk that contains usage but no choices.
    UsageAlone,
    /// A comment with the cost of the call at another gateway of this kind. It is removed, because callers get the cost
    /// at this gateway.
    CostComment,
    /// An error that the vendor reports within the stream.
    Failure(Error),
}

/// Returns whether the newer usage has fewer input tokens, and whether it has fewer output tokens.
pub(crate) fn shrinks(older: &VendorUsage, newer: &VendorUsage) -> (bool, bool) {
    let (older, newer) = (&older.usage, &newer.usage);
    (
        newer.input_total() < older.input_total(),
        newer.output_total() < older.output_total(),
    )
}

/// Returns this JSON object with `usage` as the value of its field `usage`. The value replaces the range `old`; if that
/// is `None`, the field is added at the end.
pub(crate) fn with_member(object: &[u8], old: Option<&Range<usize>>, usage: &str) -> Bytes {
    if let Some(&Range { start, end }) = old {
        return Bytes::from([&object[..start], usage.as_bytes(), &object[end..]].concat());
    }
    let end = object.trim_ascii_end().len().saturating_sub(1);
    let members = object[..end].trim_ascii_end();
    let comma: &[u8] = if members.ends_with(b"{") { b"" } else { b"," };
    let rest = &object[members.len()..];
    Bytes::from([members, comma, b"\"usage\":", usage.as_bytes(), rest].concat())
}

/// Returns the bytes as text of the same length, with invalid UTF-8 replaced. Invalid UTF-8, for example a character
/// that the vendor truncated, does not make the response invalid and is forwarded to the caller.
pub(crate) fn as_text(bytes: &[u8]) -> Cow<'_, str> {
    if let Ok(text) = std::str::from_utf8(bytes) {
        return Cow::Borrowed(text);
    }
    let mut text = String::with_capacity(bytes.len());
    for chunk in bytes.utf8_chunks() {
        text.push_str(chunk.valid());
        text.extend(chunk.invalid().iter().map(|_| '?'));
    }
    text.into()
}
