//! The chat format: answers, and the body of a request.

pub(in crate::translate) mod body;
mod calls;
mod fields;
mod read;
mod write;

#[cfg(test)]
pub(in crate::translate) use self::{calls::CALLS_MAX, write::NAME_BYTES_MAX};
pub(in crate::translate) use self::{read::Reader, write::Writer};
