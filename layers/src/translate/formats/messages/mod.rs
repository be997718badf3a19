//! The messages format.

mod marks;
mod read;
mod read_request;
mod request_body;
mod write;
mod write_request;

pub use self::read_request::thinking_asked;
pub(in crate::translate) use self::{
    read::Reader, read_request::read_request, write::Writer, write_request::RequestWriter,
};
