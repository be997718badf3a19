//! The Chat Completions wire format.

#[cfg(any(feature = "passthrough", feature = "translate"))]
mod chunk;
#[cfg(feature = "parse")]
pub(crate) mod embeddings;
#[cfg(feature = "respond")]
pub(crate) mod errors;
#[cfg(feature = "passthrough")]
pub(crate) mod meter;
#[cfg(feature = "parse")]
pub(crate) mod parse;
pub(crate) mod usage;

#[cfg(feature = "translate")]
mod answer_fields;
#[cfg(feature = "translate")]
mod calls;
#[cfg(feature = "translate")]
mod read_answer;
#[cfg(feature = "translate")]
mod read_request;
#[cfg(feature = "translate")]
pub(crate) mod state;
#[cfg(feature = "translate")]
mod write_answer;
#[cfg(feature = "translate")]
mod write_request;

#[cfg(all(test, feature = "translate"))]
pub(crate) use self::{calls::CALLS_MAX, write_answer::NAME_BYTES_MAX};
#[cfg(feature = "translate")]
pub(crate) use self::{
    read_answer::Reader, read_request::read_request, write_answer::Writer,
    write_request::RequestWriter,
};

/// The last event of a Chat Completions stream.
#[cfg(any(feature = "passthrough", feature = "translate"))]
const DONE: &[u8] = b"data: [DONE]\n\n";
/// A keep-alive: a comment, which clients ignore.
#[cfg(any(feature = "passthrough", feature = "translate"))]
pub(crate) const KEEP_ALIVE: &[u8] = b": keep-alive\n\n";
