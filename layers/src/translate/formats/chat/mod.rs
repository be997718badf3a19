//! The chat format.

mod body;
mod calls;
mod fields;
mod read;
mod read_request;
mod write;
mod write_request;

#[cfg(test)]
pub(in crate::translate) use self::{calls::CALLS_MAX, write::NAME_BYTES_MAX};
pub(in crate::translate) use self::{
    read::Reader, read_request::read_request, write::Writer, write_request::RequestWriter,
};
