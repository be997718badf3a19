//! Shared code for all SQLite files of this crate: the lock, the checks before a file is used, and the parsing of
//! columns.

use std::{
    ffi::OsString,
    fs::{File, OpenOptions, TryLockError},
    io,
    path::{Path, PathBuf},
    str::FromStr,
    time::Duration,
};

use rusqlite::{Connection, ErrorCode, MAIN_DB, OpenFlags, Result, Row, types::Type};
use serde::{Serialize, de::DeserializeOwned};
use uuid::fmt::Hyphenated;

use crate::{BoxError, number::RequestNumber};

/// How long a statement waits if another connection has locked the file, for example for a backup.
pub(crate) const BUSY_TIMEOUT: Duration = Duration::from_secs(10);

/// A kind of SQLite file: its identification, and the settings and tables that a new file gets.
pub(crate) struct Kind {
    /// Identifies the kind of file, for this crate and for the command `file(1)`.
    pub(crate) application_id: i64,
    pub(crate) schema_version: i64,
    pub(crate) schema: &'static str,
    /// The SQL that configures the connection that writes.
    pub(crate) pragmas: &'static str,
}

/// A file that was opened and locked.
pub(crate) struct SqliteFile {
    /// The absolute path of the file, with symbolic links resolved.
    pub(crate) path: PathBuf,
    pub(crate) conn: Connection,
    /// The file's lock. It must be kept until the connection is closed.
    pub(crate) lock: FileLock,
}

/// A lock on a file. Dropping it unlocks the file.
#[derive(Debug)]
pub(crate) struct FileLock(pub(super) File);

impl Drop for FileLock {
    /// Unlocks the file explicitly. Closing it would not be enough: a child process that is started at this moment has
    /// a copy of the handle, and the copy keeps the file locked.
    fn drop(&mut self) {
        let _ = self.0.unlock();
    }
}

/// The size in bytes of the smallest SQLite page, which contains the file header. Every SQLite file has at least this
/// size.
const HEADER_BYTES: u64 = 512;

/// The reason why a file was not opened. Each store converts it to an error text for operators.
#[derive(Debug)]
pub(crate) enum NotOpened {
    InUse {
        path: PathBuf,
    },
    Io {
        path: PathBuf,
        source: io::Error,
    },
    Foreign {
        path: PathBuf,
    },
    Version {
        path: PathBuf,
        found: i64,
        known: i64,
    },
    ReadOnly {
        path: PathBuf,
    },
    Sqlite {
        path: PathBuf,
        source: rusqlite::Error,
    },
}

impl Kind {
    /// Opens a file of this kind for writing, or creates it. No other process can open it this way at the same time.
    pub(crate) fn open(&self, path: &Path) -> Result<SqliteFile, NotOpened> {
        // The path is made absolute, because SQLite treats some relative names specially. Links are resolved, so that
        // all paths of a file lead to the same lock.
        let path = std::path::absolute(path).map_err(|source| NotOpened::Io {
            path: path.to_owned(),
            source,
        })?;
        let path = path.canonicalize().unwrap_or(path);
        let lock = lock(&path)?;
        // SQLite treats a truncated file as an empty file and would overwrite it.
        let length = std::fs::metadata(&path).map_or(0, |file| file.len());
        if (1..HEADER_BYTES).contains(&length) {
            return Err(NotOpened::Foreign { path });
        }

        let failed = |source: rusqlite::Error| match source.sqlite_error_code() {
            Some(ErrorCode::NotADatabase) => NotOpened::Foreign { path: path.clone() },
            _ => NotOpened::Sqlite {
                path: path.clone(),
                source,
            },
        };
        let flags = OpenFlags::SQLITE_OPEN_READ_WRITE
            | OpenFlags::SQLITE_OPEN_CREATE
            | OpenFlags::SQLITE_OPEN_NO_MUTEX;
        // The file is created here with restricted permissions, because SQLite would create a file that all users can
        // read. SQLite gives the files next to it the same permissions.
        #[cfg(unix)]
        {
            use std::os::unix::fs::OpenOptionsExt;
            let made = OpenOptions::new()
                .write(true)
                .create(true)
                .truncate(false)
                .mode(0o600)
                .open(&path);
            // A file that cannot be written to is refused before SQLite opens it. Otherwise SQLite would create files
            // next to it that cannot be written to either.
            if let Err(error) = made
                && path.exists()
                && matches!(
                    error.kind(),
                    io::ErrorKind::PermissionDenied | io::ErrorKind::ReadOnlyFilesystem
                )
            {
                return Err(NotOpened::ReadOnly { path });
            }
        }
        let mut conn = Connection::open_with_flags(&path, flags).map_err(failed)?;
        conn.busy_timeout(BUSY_TIMEOUT).map_err(failed)?;
        let fresh = self.is_fresh(&conn, &path, failed)?;
        // SQLite opens a file that is not writable as read-only, without an error.
        if conn.is_readonly(MAIN_DB).map_err(failed)? {
            return Err(NotOpened::ReadOnly { path });
        }
        self.prepare(&mut conn, fresh).map_err(failed)?;
        Ok(SqliteFile { path, conn, lock })
    }

    /// Returns whether nothing has been written to the file yet. Fails if the file contains data of another kind.
    fn is_fresh(
        &self,
        conn: &Connection,
        path: &Path,
        failed: impl Fn(rusqlite::Error) -> NotOpened + Copy,
    ) -> Result<bool, NotOpened> {
        let number = |sql: &str| {
            conn.query_row(sql, [], |row| row.get::<_, i64>(0))
                .map_err(failed)
        };
        let application = number("PRAGMA application_id")?;
        let found = number("PRAGMA user_version")?;
        if application == self.application_id {
            return if found == self.schema_version {
                Ok(false)
            } else {
                Err(NotOpened::Version {
                    path: path.to_owned(),
                    found,
                    known: self.schema_version,
                })
            };
        }
        if (application, found) == (0, 0) && number("SELECT count(*) FROM sqlite_schema")? == 0 {
            return Ok(true);
        }
        Err(NotOpened::Foreign {
            path: path.to_owned(),
        })
    }

    fn prepare(&self, conn: &mut Connection, fresh: bool) -> Result<()> {
        let mode: String = conn.query_row("PRAGMA journal_mode = WAL", [], |row| row.get(0))?;
        if mode != "wal" {
            // Acknowledged changes must be in the write-ahead log. No other journal mode is tested.
            let why = format!(
                "the file system does not support SQLite's write-ahead log: the journal mode is {mode}"
            );
            return Err(rusqlite::Error::ToSqlConversionFailure(why.into()));
        }
        conn.execute_batch(self.pragmas)?;
        if fresh {
            let schema = conn.transaction()?;
            schema.execute_batch(self.schema)?;
            schema.pragma_update(None, "application_id", self.application_id)?;
            schema.pragma_update(None, "user_version", self.schema_version)?;
            schema.commit()?;
        }
        Ok(())
    }
}

/// Runs `write` in one transaction, which is committed completely or not at all. `BEGIN` and `COMMIT` are cached as
/// prepared statements, because `Connection::transaction` would parse them for each commit.
pub(crate) fn in_one_commit<T>(
    conn: &mut Connection,
    write: impl FnOnce(&Connection) -> Result<T>,
) -> Result<T> {
    let conn = &*conn;
    conn.prepare_cached("BEGIN IMMEDIATE")?.execute([])?;
    let written = write(conn).and_then(|written| {
        conn.prepare_cached("COMMIT")?.execute([])?;
        Ok(written)
    });
    // After some errors, for example a full disk, SQLite has already rolled the transaction back.
    if written.is_err() && !conn.is_autocommit() {
        // An error of the rollback is ignored, because the error of the write is reported.
        let _ = conn.execute_batch("ROLLBACK");
    }
    written
}

/// Takes the lock that excludes a second gateway. A separate file is locked, for two reasons: SQLite's exclusive mode
/// would also block this process's reader and the operator's backup, and a lock on the database file would be released
/// when any other handle of that file is closed.
fn lock(path: &Path) -> Result<FileLock, NotOpened> {
    let mut lock_path = OsString::from(path);
    lock_path.push(".lock");
    let failed = |source| NotOpened::Io {
        path: PathBuf::from(&lock_path),
        source,
    };
    let file = OpenOptions::new()
        .read(true)
        .write(true)
        .create(true)
        .truncate(false)
        .open(&lock_path)
        .map_err(failed)?;
    match file.try_lock() {
        Ok(()) => Ok(FileLock(file)),
        Err(TryLockError::WouldBlock) => Err(NotOpened::InUse {
            path: path.to_owned(),
        }),
        Err(TryLockError::Error(source)) => Err(failed(source)),
    }
}

/// Calls `visit` with each row that a statement selects.
pub(crate) fn each_row(
    conn: &Connection,
    sql: &str,
    mut visit: impl FnMut(&Row<'_>) -> Result<()>,
) -> Result<()> {
    let mut select = conn.prepare(sql)?;
    let mut rows = select.query([])?;
    while let Some(row) = rows.next()? {
        visit(row)?;
    }
    Ok(())
}

/// Fails unless the statement has changed exactly one row.
pub(crate) fn one(changed: usize) -> Result<()> {
    if changed == 1 {
        Ok(())
    } else {
        Err(rusqlite::Error::StatementChangedRows(changed))
    }
}

/// Returns a call number in the form in which files store it.
pub(crate) fn number_text(number: RequestNumber, buffer: &mut [u8; Hyphenated::LENGTH]) -> &str {
    number.uuid().as_hyphenated().encode_lower(buffer)
}

/// Converts a count to SQLite's integer type. A count of 2⁶³ or more cannot be stored and becomes the largest integer.
pub(crate) fn integer(count: u64) -> i64 {
    i64::try_from(count).unwrap_or(i64::MAX)
}

pub(crate) fn count(row: &Row<'_>, index: usize) -> Result<u64> {
    let stored: i64 = row.get(index)?;
    u64::try_from(stored).map_err(|_| rusqlite::Error::IntegralValueOutOfRange(index, stored))
}

pub(crate) fn parsed<T>(row: &Row<'_>, index: usize) -> Result<T>
where
    T: FromStr,
    T::Err: Into<BoxError>,
{
    row.get::<_, String>(index)?
        .parse()
        .map_err(|error: T::Err| unreadable(index, error.into()))
}

pub(crate) fn to_json<T: Serialize>(value: &T) -> Result<String> {
    serde_json::to_string(value)
        .map_err(|error| rusqlite::Error::ToSqlConversionFailure(error.into()))
}

pub(crate) fn from_json<T: DeserializeOwned>(row: &Row<'_>, index: usize) -> Result<T> {
    let json: String = row.get(index)?;
    serde_json::from_str(&json).map_err(|error| unreadable(index, error.into()))
}

pub(crate) fn unreadable(index: usize, why: BoxError) -> rusqlite::Error {
    rusqlite::Error::FromSqlConversionFailure(index, Type::Text, why)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dropped_lock_is_free_even_if_a_child_process_has_a_copy_of_its_handle() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("ledger.db");
        let held = lock(&path).unwrap();
        let inherited = held.0.try_clone().unwrap();
        assert!(matches!(lock(&path), Err(NotOpened::InUse { .. })));
        drop(held);
        lock(&path).unwrap();
        drop(inherited);
    }
}
