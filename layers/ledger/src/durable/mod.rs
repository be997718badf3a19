//! Code shared by the stores that write files.

#[cfg(any(feature = "sqlite", feature = "outbox"))]
pub(crate) mod crash_log;
#[cfg(feature = "sqlite")]
pub(crate) mod file;
#[cfg(feature = "sqlite")]
pub(crate) mod group_commit;
