//! JSON without building anything: a [`Reader`] that checks what it reads, and a quick look at the strings
//! in bytes that may be no JSON at all.

mod bytes;
mod reader;
mod scan;
#[cfg(test)]
mod tests;

pub use self::{
    reader::{NotJson, Reader, Str, Value, members},
    scan::{Found, decoded_len, string},
};
