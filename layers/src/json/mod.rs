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

/// Returns the byte range of `part`, which must be a slice of `whole`.
#[cfg(any(feature = "passthrough", feature = "translate"))]
pub(crate) fn within(whole: &[u8], part: &str) -> std::ops::Range<usize> {
    let start = part.as_ptr().addr() - whole.as_ptr().addr();
    start..start + part.len()
}
