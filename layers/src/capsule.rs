//! The prefix of a capsule. A capsule carries a vendor's proof of its reasoning through a caller that speaks another
//! format. The `translate` layer defines the contents.

/// The text with which every capsule begins.
pub(crate) const PREFIX: &str = "tg1.";
