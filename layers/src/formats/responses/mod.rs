//! The responses format.

pub(crate) mod asked;
mod read_answer;
mod read_request;
mod request_body;
pub(crate) mod tools;
mod write_answer;
mod write_request;

pub(crate) use self::{
    read_answer::Reader, read_request::read_request, write_answer::Writer,
    write_request::RequestWriter,
};
