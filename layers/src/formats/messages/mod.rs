//! The Messages wire format.

#[cfg(feature = "respond")]
pub(crate) mod errors;
#[cfg(feature = "passthrough")]
pub(crate) mod meter;
#[cfg(feature = "parse")]
pub(crate) mod parse;
#[cfg(any(feature = "passthrough", feature = "translate"))]
pub(crate) mod usage;

#[cfg(feature = "translate")]
mod marks;
#[cfg(feature = "translate")]
mod read_answer;
#[cfg(feature = "translate")]
mod read_request;
#[cfg(feature = "translate")]
mod request_body;
#[cfg(feature = "translate")]
mod write_answer;
#[cfg(feature = "translate")]
mod write_request;

#[cfg(feature = "translate")]
pub use self::read_request::thinking_asked;
#[cfg(feature = "translate")]
pub(crate) use self::{
    read_answer::Reader, read_request::read_request, write_answer::Writer,
    write_request::RequestWriter,
};

/// A keep-alive of the Messages format, which clients ignore.
#[cfg(any(feature = "passthrough", feature = "translate"))]
const PING: &[u8] = b"event: ping\ndata: {\"type\":\"ping\"}\n\n";
