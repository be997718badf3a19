//! The wire formats: each has a folder with a reader, which reads a vendor's answer as neutral [`turn::Event`]s, and a
//! writer, which writes such events for a caller. A reader does not depend on the caller's format, nor a writer on the
//! vendor's.

pub(super) mod chat;
pub(super) mod messages;
#[cfg(test)]
mod request_tests;
pub(super) mod responses;
#[cfg(test)]
mod tests;
#[cfg(test)]
mod toy_tests;
pub(super) mod turn;
