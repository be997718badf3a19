//! The neutral form of an answer: the events between the reader of a vendor's format and the writer of a caller's.
//!
//! A plain answer is read as the events of a stream of which each text arrives in one piece.

mod cache;
pub(crate) mod request;

use std::fmt;

use bytes::{Bytes, BytesMut};
use serde_json::value::RawValue;

use super::{chat, messages, responses};
use crate::{
    call::Format,
    error::Error,
    formats::{
        chat::state::Field,
        wire::{broken, too_much},
    },
    price::Class,
    sse,
    stream_progress::StreamProgress,
    usage::Usage,
};

/// The longest part of a vendor's error message that is logged, in characters.
const ERROR_CHARS_MAX: usize = 500;
/// The maximum bytes of an answer that a stream may store.
pub(crate) const KEPT_BYTES_MAX: usize = 4 << 20;

/// A piece of an answer. Texts are JSON-escaped and without quotes, unless stated otherwise.
///
/// `item` identifies the message, the reasoning or the call to which a piece belongs. The pieces of several items may
/// alternate.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Event<'a> {
    /// The answer begins. Both are JSON strings with their quotes. The first event, and only once.
    Begin { id: &'a str, model: &'a str },
    /// A piece of text. If it is empty, only the item before it is known to be complete.
    Text {
        item: u64,
        refusal: bool,
        piece: &'a str,
    },
    /// A piece of reasoning that people can read. If it is empty, the reasoning begins.
    Reasoning {
        item: u64,
        /// Whether this is a summary, or reasoning that the vendor shows only on request.
        summary: bool,
        piece: &'a str,
    },
    /// The proof with which reasoning must be sent back to its vendor.
    Proof { item: u64, proof: Proof<'a> },
    /// A tool call begins.
    Call { item: u64, call: Call<'a> },
    /// A piece of a call's arguments or free text, never empty. `fault`: why the arguments are not one JSON object.
    Arguments {
        item: u64,
        piece: &'a str,
        fault: Option<&'static str>,
    },
    /// An item has ended. `implied`: the vendor did not report it, but the item has all of its content, and another item
    /// may follow.
    Done { item: u64, implied: bool },
    /// Why the answer ended. Only usage follows.
    Stop(Stop),
    /// The answer is complete.
    End(Counts),
    /// The vendor sent a keep-alive.
    Alive,
}

/// A tool call in an answer.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Call<'a> {
    pub(crate) id: &'a str,
    /// The name that the vendor was given.
    pub(crate) name: &'a str,
    /// Whether the tool takes free text and not arguments.
    pub(crate) custom: bool,
}

/// Data that a vendor needs back together with the tool calls that followed.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Proof<'a> {
    /// A piece of the signature of a messages vendor's thinking.
    Signature(&'a str),
    /// The data of a messages vendor's thinking that only the vendor can read.
    Redacted(&'a str),
    /// A responses vendor's item of reasoning, as JSON.
    Item(&'a str),
    /// The state of a chat vendor: the field of its reasoning, and its `reasoning_details`.
    State(Option<Field>, Option<&'a RawValue>),
    /// The signature of a chat vendor's tool call, with the id of the call.
    CallSignature(&'a str, &'a RawValue),
}

/// Why an answer ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Stop {
    EndTurn,
    MaxTokens,
    ToolUse,
    Refusal,
}

impl Stop {
    /// Returns whether the answer may be incomplete according to this reason. If not, clients run a tool call with the
    /// arguments that arrived, so truncated arguments must make the answer an error.
    pub(super) const fn was_cut(self) -> bool {
        matches!(self, Self::MaxTokens | Self::Refusal)
    }
}

/// The usage of an answer, in tokens.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Counts {
    /// Input that was neither read from the cache nor written to it.
    pub(super) fresh: u64,
    pub(super) written: u64,
    pub(super) cached: u64,
    /// All output, including reasoning.
    pub(super) output: u64,
    /// The reasoning within the output, if the vendor reports it.
    pub(super) reasoning: Option<u64>,
}

impl Counts {
    /// Converts a usage by rate class. The formats count sound and images as ordinary input, and do not distinguish
    /// the lifetimes of cache writes.
    pub(super) fn new(usage: &Usage, reasoning: Option<u64>) -> Self {
        let class = |class| usage.classes.get(class);
        let output = usage.output_total();
        Self {
            fresh: usage
                .input
                .saturating_add(class(Class::InputAudio))
                .saturating_add(class(Class::InputImage)),
            written: usage
                .cache_write
                .saturating_add(class(Class::CacheWrite1h))
                .saturating_add(class(Class::CacheWrite12h)),
            cached: usage
                .cached_input
                .saturating_add(class(Class::CachedInputAudio))
                .saturating_add(class(Class::CachedInputImage)),
            output,
            reasoning: reasoning.map(|reasoning| reasoning.min(output)),
        }
    }

    /// Returns all input tokens.
    pub(super) const fn input(&self) -> u64 {
        self.fresh
            .saturating_add(self.written)
            .saturating_add(self.cached)
    }

    /// Returns the input and output tokens.
    pub(super) const fn total(&self) -> u64 {
        self.input().saturating_add(self.output)
    }
}

/// Receives the events that a reader reads.
pub(crate) type Emit<'e> = &'e mut dyn FnMut(Event<'_>) -> Result<(), Error>;

/// Reads the answer of a vendor.
pub(crate) trait Reader: fmt::Debug + Send + Sync {
    /// Reads the next event of a stream.
    ///
    /// # Errors
    /// [`Error::VendorBroken`] if the event is not of the format or comes out of order, [`Error::AnswerTooLong`] if
    /// the stream would have to store too much, [`Error::VendorUnavailable`] if it is an error of the vendor. Errors
    /// of `emit`.
    fn event(&mut self, event: &sse::Event, emit: Emit<'_>) -> Result<(), Error>;

    /// Handles the end of the vendor's bytes.
    ///
    /// # Errors
    /// [`Error::VendorBroken`] if the stream was truncated, because it must not look complete to the caller.
    fn end(&mut self, emit: Emit<'_>) -> Result<(), Error>;

    /// Reads a plain answer.
    ///
    /// # Errors
    /// As for the events of a stream.
    fn answer(&mut self, body: &[u8], emit: Emit<'_>) -> Result<(), Error>;
}

/// Writes an answer for a caller.
pub(crate) trait Writer: fmt::Debug + Send + Sync {
    /// Appends what this event adds to the answer to `out`, perhaps nothing.
    ///
    /// # Errors
    /// [`Error::VendorBroken`] if the format cannot express the event, [`Error::AnswerTooLong`] if the stream would
    /// have to store too much.
    fn write(&mut self, event: Event<'_>, out: &mut BytesMut) -> Result<(), Error>;

    /// Returns the position of the stream, for code that must end it early.
    fn progress(&self) -> Option<StreamProgress> {
        None
    }
}

/// Translates the answer of a vendor for a caller.
#[derive(Debug)]
pub(crate) struct Translator {
    reader: Box<dyn Reader>,
    writer: Box<dyn Writer>,
}

impl Translator {
    /// Creates the translation of an answer in the format `vendor`. `created`: the current time in Unix seconds.
    pub(crate) fn new(vendor: Format, created: u64, writer: impl Writer + 'static) -> Self {
        let reader: Box<dyn Reader> = match vendor {
            Format::Chat => Box::new(chat::Reader::new(created)),
            Format::Messages => Box::<messages::Reader>::default(),
            Format::Responses => Box::<responses::Reader>::default(),
        };
        Self {
            reader,
            writer: Box::new(writer),
        }
    }

    /// Translates the next event of a stream, and appends the result to `out`, perhaps nothing.
    pub(crate) fn event(&mut self, event: &sse::Event, out: &mut BytesMut) -> Result<(), Error> {
        let Self { reader, writer } = self;
        reader.event(event, &mut |event| writer.write(event, out))
    }

    /// Handles the end of the vendor's stream: writes what is still missing, once.
    pub(crate) fn end(&mut self, out: &mut BytesMut) -> Result<(), Error> {
        let Self { reader, writer } = self;
        reader.end(&mut |event| writer.write(event, out))
    }

    /// Writes a keep-alive.
    pub(crate) fn alive(&mut self, out: &mut BytesMut) -> Result<(), Error> {
        self.writer.write(Event::Alive, out)
    }

    /// Translates a plain answer.
    pub(crate) fn answer(mut self, body: &[u8]) -> Result<Bytes, Error> {
        let mut out = BytesMut::with_capacity(body.len() + 512);
        let Self { reader, writer } = &mut self;
        reader.answer(body, &mut |event| writer.write(event, &mut out))?;
        Ok(out.freeze())
    }

    pub(crate) fn progress(&self) -> Option<StreamProgress> {
        self.writer.progress()
    }
}

/// Defines the public type of a stream's translation.
macro_rules! stream {
    ($(#[$docs:meta])* $name:ident($($argument:ident: $type:ty),*) => $translator:expr) => {
        $(#[$docs])*
        #[derive(Debug)]
        pub struct $name($crate::formats::turn::Translator);

        impl $name {
            /// Creates the state of a stream that has not begun.
            #[must_use]
            pub fn new($($argument: $type),*) -> Self {
                Self($translator)
            }

            /// Translates the next event, and appends the result to `out`, perhaps nothing.
            ///
            /// # Errors
            /// [`Error::VendorBroken`](crate::Error::VendorBroken) if the event is not of the vendor's format or comes
            /// out of order, [`Error::AnswerTooLong`](crate::Error::AnswerTooLong) if the stream would have to store
            /// too much, [`Error::VendorUnavailable`](crate::Error::VendorUnavailable) if it is an error of the vendor.
            pub fn event(
                &mut self,
                event: &$crate::sse::Event,
                out: &mut bytes::BytesMut,
            ) -> Result<(), $crate::error::Error> {
                self.0.event(event, out)
            }

            /// Handles the end of the vendor's bytes: writes what is still missing, once.
            ///
            /// # Errors
            /// [`Error::VendorBroken`](crate::Error::VendorBroken) if the stream was truncated, because it must not
            /// look complete to the caller.
            pub fn end(&mut self, out: &mut bytes::BytesMut) -> Result<(), $crate::error::Error> {
                self.0.end(out)
            }
        }
    };
}
pub(crate) use stream;

/// Emits a piece of arguments, unless it is empty.
pub(super) fn arguments(item: u64, piece: &str, emit: Emit<'_>) -> Result<(), Error> {
    if piece.is_empty() {
        return Ok(());
    }
    let fault = None;
    emit(Event::Arguments { item, piece, fault })
}

/// Creates an error with the vendor's own message, which is only logged.
pub(super) fn vendor_error(words: &str) -> Error {
    let words: String = words.chars().take(ERROR_CHARS_MAX).collect();
    Error::VendorUnavailable(crate::scrub::scrubbed(&words).into())
}

/// Returns whether an event without data is a comment, which vendors send as a keep-alive.
pub(super) fn is_comment(event: &sse::Event) -> bool {
    let mut lines = event.raw().split(|byte| matches!(byte, b'\n' | b'\r'));
    lines.any(|line| line.first() == Some(&b':'))
}

/// Creates the error of a stream that ended too early.
pub(super) fn truncated() -> Error {
    broken("the stream ended in the middle")
}

/// Refuses a stream that stores more than [`KEPT_BYTES_MAX`].
pub(super) fn check_kept(bytes: usize) -> Result<(), Error> {
    if bytes > KEPT_BYTES_MAX {
        let why = format!("more than {KEPT_BYTES_MAX} bytes would have to be buffered");
        return Err(too_much(why));
    }
    Ok(())
}

/// Appends formatted text to the output.
pub(crate) fn put(out: &mut BytesMut, text: fmt::Arguments<'_>) {
    fmt::Write::write_fmt(out, text).expect("writing to memory does not fail");
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_hour_cache_writes_are_part_of_the_input() {
        let mut usage = Usage {
            input: 1000,
            ..Usage::default()
        };
        *usage.classes.get_mut(Class::CacheWrite1h) = 4000;
        let counts = Counts::new(&usage, None);
        assert_eq!((counts.input(), counts.written), (5000, 4000));
    }
}
