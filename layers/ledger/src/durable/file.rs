//! Code that all SQLite files of this crate share: the lock, the checks before a file is used, and the reading of
//! columns.

use std::{
    ffi::OsString,
    fs::{File, OpenOptions, TryLockError},
    io,
    path::{Path, PathBuf},
    str::FromStr,
    time::Duration,
};

use rusqlite::{Connection, ErrorCode, MAIN_DB, OpenFlags, Row, types::Type};
use serde::{Serialize, de::DeserializeOwned};
use uuid::fmt::Hyphenated;

use crate::{BoxError, number::RequestNumber};

/// The time for which a statement waits for another connection's lock, such as a backup's or a console's.
pub(crate) const BUSY_TIMEOUT: Duration = Duration::from_secs(10);

/// A kind of SQLite file, with the settings and the tables that a new file of this kind gets.
pub(crate) struct Kind {
    /// Identifies the kind of file, for this crate and for `file(1)`.
    pub(crate) application_id: i64,
    pub(crate) schema_version: i64,
    pub(crate) schema: &'static str,
    /// The settings of the connection that writes.
    pub(crate) pragmas: &'static str,
}

/// A file that was opened and locked.
pub(crate) struct SqliteFile {
    /// The absolute path, with symbolic links resolved.
    pub(crate) path: PathBuf,
    pub(crate) conn: Connection,
    /// The file's lock, which must be kept until the connection is closed.
    pub(crate) lock: File,
}

/// The size of the smallest page, which contains the file's header. Every SQLite file has at least this size.
const HEADER_BYTES: u64 = 512;

/// The reason why a file was not opened. Each store turns it into an error text for its operator.
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
    /// Opens a file of this kind for writing, exclusively, or creates it.
    pub(crate) fn open(&self, path: &Path) -> Result<SqliteFile, NotOpened> {
        // An absolute path is never one of SQLite's special names. Links are resolved, so that all paths of a file lead
        // to one lock.
        let path = std::path::absolute(path).map_err(|source| NotOpened::Io {
            path: path.to_owned(),
            source,
        })?;
        let path = path.canonicalize().unwrap_or(path);
        let lock = lock(&path)?;
        // SQLite treats a truncated file as an empty file, and would overwrite it.
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
        // SQLite would create a file that everybody can read. The files that SQLite creates next to it get the same
        // mode.
        #[cfg(unix)]
        {
            use std::os::unix::fs::OpenOptionsExt;
            let made = OpenOptions::new()
                .write(true)
                .create(true)
                .truncate(false)
                .mode(0o600)
                .open(&path);
            // This is checked before SQLite creates further files next to this file: those files would not be writable
            // either.
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
        // If the file is not writable, SQLite opens it read-only without an error.
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

    fn prepare(&self, conn: &mut Connection, fresh: bool) -> rusqlite::Result<()> {
        let mode: String = conn.query_row("PRAGMA journal_mode = WAL", [], |row| row.get(0))?;
        if mode != "wal" {
            // Acknowledged changes must be in the write-ahead log; no other journal mode is tested.
            let why = format!("the file system allows no write-ahead log (journal mode {mode})");
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

/// Writes in one transaction, which is committed completely or not at all. `BEGIN` and `COMMIT` are cached as prepared
/// statements; `Connection::transaction` would parse them for each commit.
pub(crate) fn in_one_commit<T>(
    conn: &mut Connection,
    write: impl FnOnce(&Connection) -> rusqlite::Result<T>,
) -> rusqlite::Result<T> {
    let conn = &*conn;
    conn.prepare_cached("BEGIN IMMEDIATE")?.execute([])?;
    let written = write(conn).and_then(|written| {
        conn.prepare_cached("COMMIT")?.execute([])?;
        Ok(written)
    });
    // After some errors, such as a full disk, SQLite has rolled back already.
    if written.is_err() && !conn.is_autocommit() {
        // The error of the write is reported, so an error of the rollback is ignored.
        let _ = conn.execute_batch("ROLLBACK");
    }
    written
}

/// Takes the lock that excludes a second gateway. The lock is a separate file, for two reasons. SQLite's exclusive mode
/// would also block this process's reader and the operator's backup. And a lock on the database file is released when
/// any other handle on that file is closed.
fn lock(path: &Path) -> Result<File, NotOpened> {
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
        Ok(()) => Ok(file),
        Err(TryLockError::WouldBlock) => Err(NotOpened::InUse {
            path: path.to_owned(),
        }),
        Err(TryLockError::Error(source)) => Err(failed(source)),
    }
}

/// Fails unless the statement has changed exactly one row.
pub(crate) fn one(changed: usize) -> rusqlite::Result<()> {
    if changed == 1 {
        Ok(())
    } else {
        Err(rusqlite::Error::StatementChangedRows(changed))
    }
}

/// Converts a call number to the form that files store.
pub(crate) fn number_text(number: RequestNumber, buffer: &mut [u8; Hyphenated::LENGTH]) -> &str {
    number.uuid().as_hyphenated().encode_lower(buffer)
}

/// Converts a count to SQLite's integers. Counts above 2⁶³ cannot be stored; they are clamped.
pub(crate) fn integer(count: u64) -> i64 {
    i64::try_from(count).unwrap_or(i64::MAX)
}

pub(crate) fn count(row: &Row<'_>, index: usize) -> rusqlite::Result<u64> {
    let stored: i64 = row.get(index)?;
    u64::try_from(stored).map_err(|_| rusqlite::Error::IntegralValueOutOfRange(index, stored))
}

pub(crate) fn parsed<T>(row: &Row<'_>, index: usize) -> rusqlite::Result<T>
where
    T: FromStr,
    T::Err: Into<BoxError>,
{
    row.get::<_, String>(index)?
        .parse()
        .map_err(|error: T::Err| unreadable(index, error.into()))
}

pub(crate) fn to_json<T: Serialize>(value: &T) -> rusqlite::Result<String> {
    serde_json::to_string(value)
        .map_err(|error| rusqlite::Error::ToSqlConversionFailure(error.into()))
}

pub(crate) fn from_json<T: DeserializeOwned>(row: &Row<'_>, index: usize) -> rusqlite::Result<T> {
    let json: String = row.get(index)?;
    serde_json::from_str(&json).map_err(|error| unreadable(index, error.into()))
}

pub(crate) fn unreadable(index: usize, why: BoxError) -> rusqlite::Error {
    rusqlite::Error::FromSqlConversionFailure(index, Type::Text, why)
}
