//! The messages format: answers, and the body of a request.

pub(in crate::translate) mod body;
mod read;
mod write;

pub(in crate::translate) use self::{read::Reader, write::Writer};
