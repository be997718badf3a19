//! Reads the bodies of requests in one pass. The parser of each format says what its fields mean; this module has what
//! the formats have in common: the kinds of values, contents, tools, cache marks, and the table of all fields.

mod base64;
pub(crate) mod cache;
pub(crate) mod common;
pub(crate) mod content;
pub(crate) mod fields;
pub(crate) mod json;
pub(crate) mod media;
mod pdf;
mod shapes;
mod sound;

#[cfg(test)]
pub(crate) use self::base64::encode;

/// The maximum nesting of JSON in an accepted body.
pub const DEPTH_MAX: usize = 64;
