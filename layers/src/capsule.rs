//! How a capsule is known, in which a vendor's proof of its reasoning goes through a caller of another format.
//! What is in it stands in `translate`.

/// What it begins with.
pub(crate) const PREFIX: &str = "tg1.";
