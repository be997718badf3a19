//! Parses JSON without building values: a strict [`Reader`], and a fast scan for strings in bytes that may not be JSON.

mod bytes;
mod reader;
mod scan;
#[cfg(test)]
mod tests;

pub use self::{
    reader::{NotJson, Reader, Str, Value, members},
    scan::{Found, decoded_len, string},
};
