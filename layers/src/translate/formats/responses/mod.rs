//! The responses format.

mod read;
mod read_request;
mod request_body;
pub(in crate::translate) mod tools;
mod write;
mod write_request;

pub(in crate::translate) use self::{
    read::Reader, read_request::read_request, write::Writer, write_request::RequestWriter,
};
