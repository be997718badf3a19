//! Answers in the responses format.

mod read;
mod write;

pub(in crate::translate) use self::{read::Reader, write::Writer};
