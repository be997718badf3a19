//! The chat format.

mod answer_fields;
mod calls;
mod read_answer;
mod read_request;
mod request_body;
pub(crate) mod state;
mod write_answer;
mod write_request;

#[cfg(test)]
pub(crate) use self::{calls::CALLS_MAX, write_answer::NAME_BYTES_MAX};
pub(crate) use self::{
    read_answer::Reader, read_request::read_request, write_answer::Writer,
    write_request::RequestWriter,
};
