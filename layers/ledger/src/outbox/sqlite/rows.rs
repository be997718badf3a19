//! The outbox file: the checks before it is used, and its rows.
//!
//! ```text
//! calls   number, account, key, at_ms, kind, settlement (JSON), check_sum, done_at_ms
//! synced  times: changed by a commit that must be synced but has nothing else to write
//! ```
//! Times are Unix milliseconds. The charges in this file are later taken from balances, so each row has a check sum: a
//! flipped bit is reported as an error instead of changing a charge.

use std::{
    io,
    path::{Path, PathBuf},
    sync::Arc,
};

use rusqlite::{Connection, ErrorCode, OptionalExtension, Result, Row, params};

use super::queue::{Queue, Waiting};
use crate::{
    BoxError,
    contract::Settlement,
    durable::{
        crash_log::CallNote,
        file::{
            Kind, NotOpened, SqliteFile, count, each_row, from_json, in_one_commit, integer,
            parsed, to_json, unreadable,
        },
    },
    number::RequestNumber,
    outbox::log::{Ending, Pending},
};

/// The file header has the application id `tgo1` and the schema version 1. The pragma is for ordinary commits. A commit
/// that must survive a power cut sets a stricter pragma.
const OUTBOX: Kind = Kind {
    application_id: 0x7467_6f31,
    schema_version: 1,
    schema: "
CREATE TABLE calls (
    number TEXT PRIMARY KEY NOT NULL,
    account TEXT NOT NULL,
    key TEXT NOT NULL,
    at_ms INTEGER NOT NULL,
    kind TEXT NOT NULL CHECK (kind IN ('intent', 'checkpoint', 'settle', 'release')),
    settlement TEXT,
    check_sum INTEGER NOT NULL,
    done_at_ms INTEGER
) STRICT;
CREATE INDEX calls_done ON calls (done_at_ms) WHERE done_at_ms IS NOT NULL;
CREATE TABLE synced (times INTEGER NOT NULL) STRICT;
INSERT INTO synced VALUES (0);
",
    pragmas: "PRAGMA synchronous = NORMAL;",
};

/// The largest number of calls that one commit deletes. It is small, because a settlement may be waiting for the same
/// commit.
const FORGET_MAX: u16 = 1_000;

/// The reason why an outbox was not opened.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
#[allow(missing_docs, reason = "the fields have descriptive names")]
pub enum LogError {
    /// A process has the file open already; it may be this process.
    #[error(
        "the outbox {} is in use by another gateway: give each gateway a file of its own, or stop the other gateway first",
        .path.display()
    )]
    InUse { path: PathBuf },
    /// The file, its folder or its lock file could not be opened.
    #[error("cannot open {}: check that the folder exists and that the gateway may write to it", .path.display())]
    Io {
        path: PathBuf,
        #[source]
        source: io::Error,
    },
    /// The file is not an outbox.
    #[error("{} is not an outbox file: name another file", .path.display())]
    NotAnOutbox { path: PathBuf },
    /// A gateway version with another schema wrote the file.
    #[error(
        "the outbox {} has schema version {found}, but this gateway uses {known}: run the version that wrote it until its \
         calls are settled",
        .path.display()
    )]
    Version {
        path: PathBuf,
        found: i64,
        known: i64,
    },
    /// The file cannot be written to.
    #[error("the gateway may read the outbox {} but not write to it: check its owner and permissions", .path.display())]
    ReadOnly { path: PathBuf },
    /// The file contains charges for another data set.
    #[error(
        "{} has charges for a data set other than the one at ledger.url: restore that data set, or move the \
         file away to abandon the charges",
        .path.display()
    )]
    OtherBooks { path: PathBuf },
    /// The file is damaged; `found` is what the check reported.
    #[error(
        "the outbox {} is damaged ({found}): move it away together with the files next to it (-wal, -shm) and keep them, \
         then start again. Calls recorded only in this outbox will not be charged; their holds expire by themselves",
        .path.display()
    )]
    Damaged { path: PathBuf, found: String },
    /// SQLite failed with another error.
    #[error("cannot use the outbox {}", .path.display())]
    Sqlite {
        path: PathBuf,
        #[source]
        source: BoxError,
    },
}

impl LogError {
    fn from_sqlite(path: &Path, source: rusqlite::Error) -> Self {
        use rusqlite::Error as E;
        let path = path.to_owned();
        // These SQLite errors mean that the file contains values or tables that the gateway never writes.
        let damaged = matches!(
            source,
            E::SqlInputError { .. }
                | E::FromSqlConversionFailure(..)
                | E::IntegralValueOutOfRange(..)
                | E::InvalidColumnType(..)
                | E::Utf8Error(..)
        );
        match source.sqlite_error_code() {
            Some(ErrorCode::NotADatabase) => Self::NotAnOutbox { path },
            Some(ErrorCode::DatabaseCorrupt | ErrorCode::Unknown) => Self::Damaged {
                path,
                found: source.to_string(),
            },
            _ if damaged => Self::Damaged {
                path,
                found: source.to_string(),
            },
            _ => Self::Sqlite {
                path,
                source: source.into(),
            },
        }
    }
}

impl From<NotOpened> for LogError {
    fn from(why: NotOpened) -> Self {
        match why {
            NotOpened::InUse { path } => Self::InUse { path },
            NotOpened::Io { path, source } => Self::Io { path, source },
            NotOpened::Foreign { path } => Self::NotAnOutbox { path },
            NotOpened::Version { path, found, known } => Self::Version { path, found, known },
            NotOpened::ReadOnly { path } => Self::ReadOnly { path },
            NotOpened::Sqlite { path, source } => Self::from_sqlite(&path, source),
        }
    }
}

/// Opens the file, and reads the calls that an earlier process left in it.
pub(super) fn open(path: &Path) -> Result<(SqliteFile, Vec<Pending>), LogError> {
    let file = OUTBOX.open(path)?;
    let damage = damage(&file.conn).map_err(|source| LogError::from_sqlite(&file.path, source))?;
    if let Some(found) = damage {
        return Err(LogError::Damaged {
            path: file.path,
            found,
        });
    }
    let left = read(&file.conn).map_err(|source| LogError::from_sqlite(&file.path, source))?;
    Ok((file, left))
}

/// Binds the file to the data set `books`. Returns whether it was bound to this data set before. Fails if the file
/// contains charges for another data set.
pub(super) fn claim(file: &SqliteFile, books: &str, unfinished: bool) -> Result<bool, LogError> {
    let failed = |source| LogError::from_sqlite(&file.path, source);
    let schema = "CREATE TABLE IF NOT EXISTS books (name TEXT NOT NULL) STRICT";
    file.conn.execute_batch(schema).map_err(failed)?;
    let known: Option<String> = file
        .conn
        .query_row("SELECT name FROM books", [], |row| row.get(0))
        .optional()
        .map_err(failed)?;
    match &known {
        Some(known) if known == books => return Ok(true),
        Some(_) if unfinished => {
            return Err(LogError::OtherBooks {
                path: file.path.clone(),
            });
        }
        _ => {}
    }
    let stale = known.is_some();
    let sql = if stale {
        "DELETE FROM calls; DELETE FROM books;"
    } else {
        ""
    };
    file.conn
        .execute_batch(sql)
        .and_then(|()| {
            let sql = "INSERT INTO books (name) VALUES (?1)";
            file.conn.execute(sql, [books])
        })
        .map_err(failed)?;
    Ok(!stale)
}

/// Runs SQLite's integrity check. Returns the first damage that it finds.
fn damage(conn: &Connection) -> Result<Option<String>> {
    let found: String = conn.query_row("PRAGMA integrity_check(1)", [], |row| row.get(0))?;
    Ok((found != "ok").then_some(found))
}

fn read(conn: &Connection) -> Result<Vec<Pending>> {
    let sql =
        "SELECT number, account, key, at_ms, kind, settlement, check_sum, done_at_ms FROM calls
               ORDER BY done_at_ms IS NULL, done_at_ms, at_ms, number";
    let mut left = Vec::new();
    each_row(conn, sql, |row| {
        left.extend(read_call(row)?);
        Ok(())
    })?;
    // The table `synced` has one row, which a commit changes if it has nothing else to write: SQLite syncs the file
    // only if something has changed.
    let times = conn.query_row("SELECT times FROM synced", [], |row| row.get::<_, i64>(0));
    if times.optional()?.is_none() {
        return Err(unreadable(0, "the table `synced` is empty".into()));
    }
    Ok(left)
}

/// Reads a call. Returns `None` for a call whose hold was refused, since nothing of it is left to send.
fn read_call(row: &Row<'_>) -> Result<Option<Pending>> {
    let (number, account, key): (String, String, String) = (row.get(0)?, row.get(1)?, row.get(2)?);
    let (at_ms, kind): (u64, String) = (count(row, 3)?, row.get(4)?);
    let settlement: Option<String> = row.get(5)?;
    let json = settlement.as_deref().unwrap_or_default();
    let sum = check_sum([&number, &account, &key, &at_ms.to_string(), &kind, json]);
    if sum != row.get::<_, i64>(6)? {
        let text = format!("the row of call {number} was changed after it was written");
        return Err(unreadable(6, text.into()));
    }
    let done = match row.get::<_, Option<i64>>(7)? {
        None => false,
        // The times 0 and 1 are refused, because a single flipped bit could turn a missing time into one of them.
        Some(0 | 1) => {
            let text = format!("the row of call {number} has no time");
            return Err(unreadable(7, text.into()));
        }
        Some(_) => true,
    };
    let number: RequestNumber = parsed(row, 0)?;
    let ending = if settlement.is_some() {
        let settlement: Settlement = from_json(row, 5)?;
        if settlement.number != number || *settlement.account != *account {
            return Err(unreadable(
                5,
                format!("the row of call {number} contains a settlement of another call").into(),
            ));
        }
        Ending::Settle(Arc::new(settlement))
    } else {
        Ending::release(number, parsed(row, 1)?, parsed(row, 2)?)
    };
    let note = CallNote {
        ending,
        ended: kind == "settle" || kind == "release",
        at_ms,
    };
    Ok(note.pending(done))
}

/// Writes the waiting steps in one transaction, and deletes some of the calls that were done before `forget_until_ms`.
/// Returns `forget_until_ms` if more calls are left to delete.
pub(super) fn commit(
    conn: &mut Connection,
    queue: &Queue,
    forget_until_ms: Option<u64>,
) -> Result<Option<u64>> {
    in_one_commit(conn, |batch| write_all(batch, queue, forget_until_ms))
}

/// Commits as [`commit`] does, and then syncs the file, so that this commit and all earlier commits survive a power
/// cut.
pub(super) fn commit_durably(
    conn: &mut Connection,
    queue: &Queue,
    forget_until_ms: Option<u64>,
) -> Result<Option<u64>> {
    conn.execute_batch("PRAGMA synchronous = FULL")?;
    let committed = in_one_commit(conn, |batch| {
        let sql = "UPDATE synced SET times = times + 1";
        batch.prepare_cached(sql)?.execute([])?;
        write_all(batch, queue, forget_until_ms)
    });
    conn.execute_batch("PRAGMA synchronous = NORMAL")?;
    committed
}

fn write_all(
    batch: &Connection,
    queue: &Queue,
    forget_until_ms: Option<u64>,
) -> Result<Option<u64>> {
    for (number, waiting) in queue.iter() {
        write(batch, number, waiting)?;
    }
    forget(batch, forget_until_ms)
}

fn write(batch: &Connection, number: RequestNumber, waiting: &Waiting) -> Result<()> {
    let (number, done_at_ms) = (number.to_string(), waiting.done_at_ms.map(integer));
    let Some(note) = &waiting.note else {
        let sql = "UPDATE calls SET done_at_ms = ?2 WHERE number = ?1";
        batch
            .prepare_cached(sql)?
            .execute(params![number, done_at_ms])?;
        return Ok(());
    };
    let kind = match (&note.ending, note.ended) {
        (Ending::Release { .. }, false) => "intent",
        (Ending::Settle(_), false) => "checkpoint",
        (Ending::Settle(_), true) => "settle",
        (Ending::Release { .. }, true) => "release",
    };
    let (account, key, settlement) = match &note.ending {
        Ending::Settle(call) => (&call.account, &call.key, Some(to_json(&**call)?)),
        Ending::Release { account, key, .. } => (account, key, None),
    };
    let at_ms = integer(note.at_ms);
    let json = settlement.as_deref().unwrap_or_default();
    let sum = check_sum([&number, account, key, &at_ms.to_string(), kind, json]);
    let sql = "INSERT INTO calls (number, account, key, at_ms, kind, settlement, check_sum, done_at_ms)
               VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8)
               ON CONFLICT (number) DO UPDATE SET
                   account = excluded.account, key = excluded.key, at_ms = excluded.at_ms, kind = excluded.kind,
                   settlement = excluded.settlement, check_sum = excluded.check_sum, done_at_ms = excluded.done_at_ms";
    let row = params![
        number,
        &account[..],
        &key[..],
        at_ms,
        kind,
        settlement,
        sum,
        done_at_ms
    ];
    batch.prepare_cached(sql)?.execute(row)?;
    Ok(())
}

fn forget(batch: &Connection, until_ms: Option<u64>) -> Result<Option<u64>> {
    let Some(until_ms) = until_ms else {
        return Ok(None);
    };
    let sql = "DELETE FROM calls WHERE number IN (
                   SELECT number FROM calls WHERE done_at_ms IS NOT NULL AND done_at_ms <= ?1 LIMIT ?2)";
    let forgotten = batch
        .prepare_cached(sql)?
        .execute(params![integer(until_ms), FORGET_MAX])?;
    Ok((forgotten == usize::from(FORGET_MAX)).then_some(until_ms))
}

/// Computes a 64-bit FNV-1a check sum of the columns. A change of any single byte changes the check sum.
fn check_sum(columns: [&str; 6]) -> i64 {
    let mut sum: u64 = 0xcbf2_9ce4_8422_2325;
    for column in columns {
        // The byte 0xff separates the columns, because UTF-8 text never contains it.
        for byte in column.bytes().chain([0xff]) {
            sum = (sum ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3);
        }
    }
    sum.cast_signed()
}
