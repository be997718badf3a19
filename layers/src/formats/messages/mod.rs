//! The messages format.

mod marks;
mod read_answer;
mod read_request;
mod request_body;
mod write_answer;
mod write_request;

pub use self::read_request::thinking_asked;
pub(crate) use self::{
    read_answer::Reader, read_request::read_request, write_answer::Writer,
    write_request::RequestWriter,
};
