//! The neutral form of a response: the events that the reader of a vendor's format passes to the writer of a caller's
//! format.
//!
//! A plain response is read as a stream of events in which each text arrives in one piece.

mod answer_format;
mod cache;
mod fields;
pub(crate) mod request;

use std::fmt;

use bytes::{Bytes, BytesMut};
use serde_json::value::RawValue;

pub(crate) use super::counts::Counts;
use super::{chat, messages, responses};
use crate::{
    call::Format,
    error::Error,
    formats::{
        chat::state::Field,
        errors::broken,
        origin::Origin,
        responses::requested::RequestEcho,
        wire::{AnswerCx, too_much},
    },
    sse,
    stream_progress::StreamProgress,
};

/// The maximum number of bytes of a response that a stream may store.
pub(crate) const KEPT_BYTES_MAX: usize = 4 << 20;

/// A piece of a response. Texts are JSON-escaped and without quotes, unless stated otherwise.
///
/// `item` identifies the message, the reasoning or the tool call that a piece belongs to. Pieces of several items may
/// alternate.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Event<'a> {
    /// The response begins. This is the first event, and it occurs once. `id` and `model` are JSON strings with their
    /// quotes.
    Begin { id: &'a str, model: &'a str },
    /// The item, whether the text is a refusal, and a piece of the text. If the piece is empty, it only shows that the
    /// item before it is complete.
    Text(u64, bool, &'a str),
    /// The item, whether this is a summary of reasoning or reasoning that the vendor shows only on request, and a piece
    /// of the reasoning that people can read. If the piece is empty, it only shows that the reasoning begins.
    Reasoning(u64, bool, &'a str),
    /// The item, and the proof that must accompany reasoning when it is sent back to its vendor.
    Proof(u64, Proof<'a>),
    /// A tool call begins.
    Call { item: u64, call: Call<'a> },
    /// A piece of a tool call's arguments or of its free text; never empty. `fault` is the reason why the arguments are
    /// not one JSON object.
    Arguments {
        item: u64,
        piece: &'a str,
        fault: Option<&'static str>,
    },
    /// An item has ended. The flag is whether the end is implied: the vendor did not report it, but the item has all of
    /// its content, and another item may follow.
    Done(u64, bool),
    /// The reason why the response ended. After this event, only usage follows.
    Stop(Stop),
    /// The response is complete, with this usage.
    End(Counts),
    /// The vendor sent a keep-alive.
    Alive,
}

/// A tool call in a response.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Call<'a> {
    pub(crate) id: &'a str,
    /// The name of the tool as it was sent to the vendor.
    pub(crate) name: &'a str,
    /// Whether the tool takes free text instead of arguments.
    pub(crate) custom: bool,
}

/// Data that a vendor needs back, together with the tool calls that followed it.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Proof<'a> {
    /// A piece of the signature of thinking in the Messages format.
    Signature(&'a str),
    /// Thinking in the Messages format that only the vendor can read.
    Redacted(&'a str),
    /// An item of reasoning in the Responses format, as JSON.
    Item(&'a str),
    /// The state of a vendor that uses the Chat Completions format: the field with its reasoning, and its
    /// `reasoning_details`.
    State(Option<Field>, Option<&'a RawValue>),
    /// The signature of a tool call in the Chat Completions format. The call's id comes first.
    CallSignature(&'a str, &'a RawValue),
}

/// The reason why a response ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Stop {
    EndTurn,
    MaxTokens,
    ToolUse,
    Refusal,
}

impl Stop {
    /// Returns whether a response that ended for this reason may be incomplete. If a response ends for any other
    /// reason, clients run a tool call with the arguments that arrived, so truncated arguments must make the response
    /// an error.
    pub(super) const fn was_cut(self) -> bool {
        matches!(self, Self::MaxTokens | Self::Refusal)
    }
}

/// The function to which a reader passes each event.
pub(crate) type Emit<'e> = &'e mut dyn FnMut(Event<'_>) -> Result<(), Error>;

/// Reads the response of a vendor, in one format.
pub(crate) trait Reader: fmt::Debug + Send + Sync {
    /// Reads the next event of a vendor's stream.
    ///
    /// # Errors
    /// [`Error::VendorBroken`] if the event is not of the format or is out of order, [`Error::AnswerTooLong`] if the
    /// stream would have to store too much, [`Error::VendorUnavailable`] if the event is an error of the vendor. Also
    /// any error of `emit`.
    fn event(&mut self, event: &sse::Event, emit: Emit<'_>) -> Result<(), Error>;

    /// Handles the end of the vendor's stream.
    ///
    /// # Errors
    /// [`Error::VendorBroken`] if the stream was truncated, because it must not look complete to the caller.
    fn end(&mut self, emit: Emit<'_>) -> Result<(), Error>;

    /// Reads a vendor's plain response.
    ///
    /// # Errors
    /// The same errors as for the events of a stream.
    fn answer(&mut self, body: &[u8], emit: Emit<'_>) -> Result<(), Error>;
}

/// Writes a response for a caller, in one format.
pub(crate) trait Writer: fmt::Debug + Send + Sync {
    /// Appends to `out` what this event adds to the response, which may be nothing.
    ///
    /// # Errors
    /// [`Error::VendorBroken`] if the format cannot express the event, [`Error::AnswerTooLong`] if the stream would
    /// have to store too much.
    fn write(&mut self, event: Event<'_>, out: &mut BytesMut) -> Result<(), Error>;

    /// Returns how far the stream has got, for code that must end it early.
    fn progress(&self) -> Option<StreamProgress> {
        None
    }
}

/// Translates one response of a vendor, plain or streamed, for a caller of another format.
///
/// No piece of a response waits for a later piece, with these exceptions: a tool call of a Chat Completions vendor waits
/// for its name, and the stop reason of such a vendor for the usage; the end of a block of a Messages vendor waits for
/// the event after it, if the caller uses the Responses format.
#[derive(Debug)]
pub struct Translator {
    reader: Box<dyn Reader>,
    writer: Box<dyn Writer>,
}

impl Translator {
    /// Creates the translation of a response in the format `vendor`. `created` is the current time in Unix seconds.
    pub(crate) fn new(vendor: Format, created: u64, writer: impl Writer + 'static) -> Self {
        let reader: Box<dyn Reader> = match vendor {
            Format::Chat => Box::new(chat::Reader::new(created)),
            Format::Messages => Box::<messages::Reader>::default(),
            Format::Responses => Box::<responses::Reader>::default(),
        };
        let writer = Box::new(writer);
        Self { reader, writer }
    }

    /// Translates a response for a caller of the Chat Completions format. `origin` has the names of tools. If `plain`,
    /// the response is not a stream.
    ///
    /// A stream stores the beginning of its chunks, with the vendor's id of the response and the model's name (at most
    /// 512 bytes each), and counts: less than 1.5 KiB. Text and arguments are not stored.
    #[must_use]
    pub fn to_chat(vendor: Format, origin: Origin, cx: AnswerCx, plain: bool) -> Self {
        Self::new(vendor, cx.created, chat::Writer::new(origin, cx, plain))
    }

    /// Translates a response for a caller of the Messages format. The state that the vendor needs back, and reasoning
    /// that only the vendor can read, are sent to the caller in capsules. `origin` has the vendor's name and the names
    /// of tools. If `plain`, the response is not a stream.
    ///
    /// The Messages format has one open block at a time, so a block waits until the block before it has ended. At most
    /// 4 MiB may wait; a stream that would need more fails. An ordinary stream stores a few hundred bytes.
    #[must_use]
    pub fn to_messages(vendor: Format, origin: Origin, cx: AnswerCx, plain: bool) -> Self {
        Self::new(vendor, cx.created, messages::Writer::new(origin, cx, plain))
    }

    /// Translates a response for a caller of the Responses format. If `plain`, the response is not a stream.
    ///
    /// Several items may be open at once, so no item waits for another. The input of a tool with free text waits until
    /// the arguments that contain the text are complete. The last events repeat the whole response, so a stream stores
    /// it, at most 4 MiB. A stream that would need more fails.
    #[must_use]
    pub fn to_responses(vendor: Format, requested: RequestEcho, plain: bool) -> Self {
        let created = requested.created;
        Self::new(vendor, created, responses::Writer::new(requested, plain))
    }

    /// Translates the next event of a stream, and appends the result to `out`. The result may be empty.
    ///
    /// # Errors
    /// [`Error::VendorBroken`] if the event is not of the vendor's format or is out of order, [`Error::AnswerTooLong`]
    /// if the stream would have to store too much, [`Error::VendorUnavailable`] if the event is an error of the vendor.
    pub fn event(&mut self, event: &sse::Event, out: &mut BytesMut) -> Result<(), Error> {
        let writer = &mut self.writer;
        self.reader
            .event(event, &mut |event| writer.write(event, out))
    }

    /// Handles the end of the vendor's stream. Writes what is still missing. A second call writes nothing.
    ///
    /// # Errors
    /// [`Error::VendorBroken`] if the stream was truncated, because it must not look complete to the caller.
    pub fn end(&mut self, out: &mut BytesMut) -> Result<(), Error> {
        let Self { reader, writer } = self;
        reader.end(&mut |event| writer.write(event, out))
    }

    /// Writes a keep-alive in the caller's format.
    pub(crate) fn alive(&mut self, out: &mut BytesMut) -> Result<(), Error> {
        self.writer.write(Event::Alive, out)
    }

    /// Translates a plain response of a vendor.
    ///
    /// # Errors
    /// [`Error::VendorBroken`] if the body is not a complete response of the vendor's format,
    /// [`Error::VendorUnavailable`] if it is an error of the vendor.
    pub fn answer(mut self, body: &[u8]) -> Result<Bytes, Error> {
        let mut out = BytesMut::with_capacity(body.len() + 512);
        let Self { reader, writer } = &mut self;
        reader.answer(body, &mut |event| writer.write(event, &mut out))?;
        Ok(out.freeze())
    }

    pub(crate) fn progress(&self) -> Option<StreamProgress> {
        self.writer.progress()
    }
}

/// Emits a piece of a tool call's arguments, unless the piece is empty.
pub(super) fn arguments(item: u64, piece: &str, emit: Emit<'_>) -> Result<(), Error> {
    if piece.is_empty() {
        return Ok(());
    }
    let fault = None;
    emit(Event::Arguments { item, piece, fault })
}

/// Handles an event without data. Emits a keep-alive if the event is a comment, which vendors send as a keep-alive.
pub(super) fn without_data(event: &sse::Event, emit: Emit<'_>) -> Result<(), Error> {
    let mut lines = event.raw().split(|byte| matches!(byte, b'\n' | b'\r'));
    match lines.any(|line| line.first() == Some(&b':')) {
        true => emit(Event::Alive),
        false => Ok(()),
    }
}

/// Creates the error of a stream that ended too early.
pub(super) fn truncated() -> Error {
    broken("the stream ended before its last event")
}

/// Refuses a stream that has to store more than [`KEPT_BYTES_MAX`].
pub(super) fn check_kept(bytes: usize) -> Result<(), Error> {
    if bytes > KEPT_BYTES_MAX {
        let why = format!(
            "the gateway would have to buffer more than {KEPT_BYTES_MAX} bytes of the response"
        );
        return Err(too_much(why));
    }
    Ok(())
}

/// Appends formatted text to the output.
pub(crate) fn put(out: &mut BytesMut, text: fmt::Arguments<'_>) {
    fmt::Write::write_fmt(out, text).expect("writing to memory does not fail");
}
