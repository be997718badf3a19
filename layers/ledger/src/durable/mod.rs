//! What the stores that write files share.

#[cfg(feature = "sqlite")]
pub(crate) mod file;
