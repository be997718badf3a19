//! Shared code for stores that write SQLite files.

#[cfg(any(feature = "sqlite", feature = "outbox"))]
pub(crate) mod crash_log;
#[cfg(feature = "sqlite")]
pub(crate) mod file;
#[cfg(feature = "sqlite")]
pub(crate) mod group_commit;
#[cfg(test)]
#[cfg(feature = "sqlite")]
pub(crate) mod test_files;
