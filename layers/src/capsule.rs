//! The prefix of a capsule, which carries a vendor's proof of its reasoning through a caller of another format.
//! `translate` defines the contents.

/// The text with which every capsule begins.
pub(crate) const PREFIX: &str = "tg1.";
