//! The wire formats. Each has a folder with a reader and a writer of requests, and a reader and a writer of answers. They
//! translate to and from the neutral form in [`turn`]. A reader does not depend on the format of the writer, nor a writer
//! on that of the reader.

pub(crate) mod arguments;
pub(crate) mod capsule;
pub(crate) mod chat;
pub(crate) mod messages;
pub(crate) mod origin;
#[cfg(test)]
mod request_tests;
pub(crate) mod responses;
#[cfg(test)]
mod tests;
pub(crate) mod text;
#[cfg(test)]
mod toy_tests;
pub(crate) mod turn;
pub(crate) mod wire;
