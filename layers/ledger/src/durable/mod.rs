//! What the stores that write files share.

#[cfg(feature = "sqlite")]
pub(crate) mod file;
#[cfg(feature = "sqlite")]
pub(crate) mod group_commit;
