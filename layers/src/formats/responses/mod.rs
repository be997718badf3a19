//! The responses format.

mod read_answer;
mod read_request;
mod request_body;
pub(crate) mod requested;
pub(crate) mod tools;
mod write_answer;
mod write_request;

pub(crate) use self::{
    read_answer::Reader, read_request::read_request, write_answer::Writer,
    write_request::RequestWriter,
};
