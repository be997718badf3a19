//! The Responses wire format.

#[cfg(any(feature = "passthrough", feature = "respond"))]
mod ending;
#[cfg(feature = "respond")]
pub(crate) mod errors;
#[cfg(feature = "passthrough")]
pub(crate) mod meter;
#[cfg(feature = "parse")]
pub(crate) mod parse;
#[cfg(feature = "passthrough")]
mod tool_calls;
pub(crate) mod usage;

#[cfg(feature = "translate")]
mod read_answer;
#[cfg(feature = "translate")]
mod read_request;
#[cfg(feature = "translate")]
pub(crate) mod requested;
#[cfg(feature = "translate")]
pub(crate) mod tools;
#[cfg(feature = "translate")]
mod write_answer;
#[cfg(feature = "translate")]
mod write_request;

#[cfg(feature = "translate")]
pub(crate) use self::{
    read_answer::Reader, read_request::read_request, write_answer::Writer,
    write_request::RequestWriter,
};
