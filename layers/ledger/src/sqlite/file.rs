//! The ledger file: its lock, its tables, and the checks before it is used.
//!
//! ```text
//! accounts   id, name, suspended, balance, loss
//! keys       id, account, digest, ceilings, used and before the current month and day, record (JSON)
//! groups     account, id, name, ceilings, used and before the current month and day, carried
//! entries    account, id, amount, reason, at_ms                  payments and corrections, kept for ever
//! receipts   number, at_ms, account, key, tokens, money, price…  one for each settled call
//! tariff     id, effective_from_ms, fingerprint
//! running    number, settlement (JSON)                           checkpoints of calls that are not settled yet
//! forgotten  account                                             came from a ledger without its oldest receipts
//! events     number, at_ms, account, key, what (JSON), once      the newest events
//! levels     account, key, levels                                at which an event reports that money runs low
//! group_levels  account, id, levels                             the same for groups
//! notes      name, version, text                                 documents of consumers of events
//! sums       scope, at_ms, words (JSON), sums (JSON)             the roll-up: derived, computed again if lost;
//!                                                                a row without words: the end of the added-up months
//! sums_places  account, place                                    up to where each journal is included; '' the version
//! ```
//! Amounts in the file are micro-rubles, and times are Unix milliseconds.

use std::{
    collections::HashMap,
    io,
    path::{Path, PathBuf},
};

use rusqlite::{Connection, OpenFlags, OptionalExtension, Result, Transaction};

use super::{
    audit::{self, CheckPoint},
    batch, events, rollup,
    rows::{amount, count, optional_amount, period},
};
use crate::{
    BoxError,
    account::{AccountId, KeyId, KeyRecord},
    book::{Account, GroupBook, KeyBook},
    ceiling::Ceilings,
    contract::TariffVersion,
    durable::{
        crash_log,
        file::{BUSY_TIMEOUT, FileLock, Kind, NotOpened, each_row, from_json, parsed, unreadable},
    },
    embedded::{State, now_ms},
    money::MicroRub,
};

/// The header of a ledger file has the application id `tgl1` and the schema version 1.
pub(super) const LEDGER: Kind = Kind {
    application_id: 0x7467_6c31,
    schema_version: 1,
    schema: SCHEMA,
    // SQLite's foreign key check is switched off. It would check each receipt, while a batch checks only once that the
    // account exists.
    pragmas: "PRAGMA synchronous = FULL; PRAGMA foreign_keys = OFF;",
};

const SCHEMA: &str = "
CREATE TABLE accounts (
    id TEXT PRIMARY KEY NOT NULL,
    name TEXT NOT NULL,
    suspended INTEGER NOT NULL CHECK (suspended IN (0, 1)),
    balance INTEGER NOT NULL CHECK (balance >= 0),
    loss INTEGER NOT NULL CHECK (loss >= 0)
) STRICT, WITHOUT ROWID;
CREATE TABLE keys (
    id TEXT PRIMARY KEY NOT NULL,
    account TEXT NOT NULL REFERENCES accounts (id),
    digest TEXT NOT NULL UNIQUE,
    ceiling INTEGER,
    used INTEGER NOT NULL CHECK (used >= 0),
    record TEXT NOT NULL
) STRICT;
CREATE TABLE entries (
    account TEXT NOT NULL REFERENCES accounts (id),
    id TEXT NOT NULL,
    amount INTEGER NOT NULL,
    reason TEXT,
    at_ms INTEGER NOT NULL,
    PRIMARY KEY (account, id)
) STRICT, WITHOUT ROWID;
CREATE TABLE receipts (
    number TEXT PRIMARY KEY NOT NULL,
    at_ms INTEGER NOT NULL,
    account TEXT NOT NULL REFERENCES accounts (id),
    key TEXT NOT NULL,
    model TEXT NOT NULL,
    vendor TEXT NOT NULL,
    input INTEGER NOT NULL,
    cached_input INTEGER NOT NULL,
    cache_write INTEGER NOT NULL,
    output INTEGER NOT NULL,
    held INTEGER NOT NULL,
    cost INTEGER NOT NULL,
    charged INTEGER NOT NULL CHECK (charged >= 0),
    loss INTEGER NOT NULL CHECK (loss >= 0),
    ended TEXT NOT NULL,
    booked TEXT NOT NULL,
    estimated INTEGER NOT NULL CHECK (estimated IN (0, 1)),
    price TEXT,
    bounded INTEGER NOT NULL DEFAULT 0 CHECK (bounded IN (0, 1))
) STRICT;
CREATE TABLE tariff (
    id INTEGER PRIMARY KEY NOT NULL,
    effective_from_ms INTEGER NOT NULL,
    fingerprint TEXT NOT NULL
) STRICT;
";

/// Tables and indexes that later versions have added: for journals, for copies without the oldest receipts, for
/// checkpoints. A file of an earlier version gets them when it is opened.
const ADDITIONS: &str = "
CREATE TABLE IF NOT EXISTS forgotten (
    account TEXT PRIMARY KEY NOT NULL REFERENCES accounts (id)
) STRICT, WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS events (
    number INTEGER PRIMARY KEY NOT NULL,
    at_ms INTEGER NOT NULL,
    account TEXT,
    key TEXT,
    what TEXT NOT NULL,
    once TEXT UNIQUE
) STRICT;
CREATE TABLE IF NOT EXISTS levels (
    account TEXT NOT NULL REFERENCES accounts (id),
    key TEXT NOT NULL,
    levels TEXT NOT NULL,
    PRIMARY KEY (account, key)
) STRICT, WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS group_levels (
    account TEXT NOT NULL REFERENCES accounts (id),
    id TEXT NOT NULL,
    levels TEXT NOT NULL,
    PRIMARY KEY (account, id)
) STRICT, WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS groups (
    account TEXT NOT NULL REFERENCES accounts (id),
    id TEXT NOT NULL,
    name TEXT NOT NULL,
    removed INTEGER NOT NULL CHECK (removed IN (0, 1)),
    ceiling INTEGER,
    ceiling_month INTEGER,
    ceiling_day INTEGER,
    carried INTEGER NOT NULL,
    used INTEGER NOT NULL CHECK (used >= 0),
    month INTEGER NOT NULL,
    month_before INTEGER NOT NULL,
    day INTEGER NOT NULL,
    day_before INTEGER NOT NULL,
    PRIMARY KEY (account, id)
) STRICT, WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS notes (
    name TEXT PRIMARY KEY NOT NULL,
    version INTEGER NOT NULL,
    text TEXT NOT NULL
) STRICT, WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS sums (
    scope TEXT NOT NULL,
    at_ms INTEGER NOT NULL,
    words TEXT NOT NULL,
    sums TEXT NOT NULL,
    PRIMARY KEY (scope, at_ms, words)
) STRICT, WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS sums_places (
    account TEXT PRIMARY KEY NOT NULL,
    place TEXT NOT NULL
) STRICT, WITHOUT ROWID;
CREATE INDEX IF NOT EXISTS entries_by_time ON entries (account, at_ms);
CREATE INDEX IF NOT EXISTS receipts_by_time ON receipts (account, at_ms);
";

/// Columns of the table `receipts` that later versions have added, with their types. An earlier version that uses the
/// file again writes rows without them, so each of them may be NULL or has a default.
const RECEIPT_COLUMNS: [(&str, &str); 13] = [
    (
        "bounded",
        "INTEGER NOT NULL DEFAULT 0 CHECK (bounded IN (0, 1))",
    ),
    ("session", "TEXT"),
    // The counts of rate classes in addition to the four basic classes, as JSON; NULL if there are none.
    ("classes", "TEXT"),
    (
        "unpriced",
        "INTEGER NOT NULL DEFAULT 0 CHECK (unpriced IN (0, 1))",
    ),
    ("vendor_cost", "INTEGER"),
    ("endpoint", "TEXT"),
    // The call's timeline, as one text.
    ("timeline", "TEXT"),
    // The id of the group that was charged; NULL if the key was in no group.
    ("key_group", "TEXT"),
    // If the charged usage was reduced: the usage that the vendor reported, as JSON, and the price of the part that was
    // cut off.
    ("vendor_usage", "TEXT"),
    ("bounded_loss", "INTEGER"),
    // If the hold was changed while its call was in flight: the largest amount held, and the amount held at the end.
    ("held_max", "INTEGER"),
    ("held_at_end", "INTEGER"),
    // Why the gateway stopped the call, if it did.
    ("stopped_by", "TEXT"),
];
/// Columns of the table `keys` that later versions have added: the ceilings per month and per day, the month and the
/// day of the last charge, and the key's spending before that month and before that day.
pub(super) const KEY_COLUMNS: [&str; 6] = [
    "ceiling_month",
    "ceiling_day",
    "month",
    "month_before",
    "day",
    "day_before",
];

/// The reason why a ledger file was not opened.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
#[allow(missing_docs, reason = "the fields have descriptive names")]
pub enum OpenError {
    /// A process has the file open already; it may be this process.
    #[error("the ledger {} is in use by another gateway: stop that gateway first, or name another file", .path.display())]
    InUse { path: PathBuf },
    /// The file, its folder or its lock file could not be opened.
    #[error("cannot open {}: check that the folder exists and that the gateway may write to it", .path.display())]
    Io {
        path: PathBuf,
        #[source]
        source: io::Error,
    },
    /// The file is not a ledger file.
    #[error("{} is not a ledger file: name another file", .path.display())]
    NotALedger { path: PathBuf },
    /// A gateway version with another schema wrote the file.
    #[error(
        "the ledger {} has schema version {found}, but this gateway uses {known}: run the version that wrote it",
        .path.display()
    )]
    Version {
        path: PathBuf,
        found: i64,
        known: i64,
    },
    /// The file cannot be written to.
    #[error("the gateway may read the ledger {} but not write to it: check its owner and permissions", .path.display())]
    ReadOnly { path: PathBuf },
    /// The books in the file break an invariant.
    #[error(
        "the books in {} do not balance, so nothing is served from them: {}. Keep a copy of the file, then restore a \
         backup",
        .path.display(),
        .breaches.join("; ")
    )]
    Mismatch {
        path: PathBuf,
        /// One text per breach of an invariant. Each text begins with the invariant's name.
        breaches: Vec<String>,
    },
    /// SQLite failed with another error.
    #[error("cannot use the ledger {}", .path.display())]
    Sqlite {
        path: PathBuf,
        #[source]
        source: BoxError,
    },
}

impl From<NotOpened> for OpenError {
    fn from(why: NotOpened) -> Self {
        match why {
            NotOpened::InUse { path } => Self::InUse { path },
            NotOpened::Io { path, source } => Self::Io { path, source },
            NotOpened::Foreign { path } => Self::NotALedger { path },
            NotOpened::Version { path, found, known } => Self::Version { path, found, known },
            NotOpened::ReadOnly { path } => Self::ReadOnly { path },
            NotOpened::Sqlite { path, source } => Self::Sqlite {
                path,
                source: source.into(),
            },
        }
    }
}

pub(super) struct Opened {
    pub(super) path: PathBuf,
    pub(super) writer: Connection,
    pub(super) reader: Connection,
    /// The file's lock. It must be kept until the writer is closed.
    pub(super) lock: FileLock,
    pub(super) state: State,
}

pub(super) fn open(path: &Path) -> Result<Opened, OpenError> {
    let file = LEDGER.open(path)?;
    let (path, mut writer, lock) = (file.path, file.conn, file.lock);
    let failed = |source: rusqlite::Error| OpenError::Sqlite {
        path: path.clone(),
        source: source.into(),
    };
    add_what_came_later(&writer).map_err(failed)?;
    let books = writer.transaction().map_err(failed)?;
    count_groups_anew(&books).map_err(failed)?;
    let breaches = audit::breaches(&books, CheckPoint::Opening).map_err(failed)?;
    if !breaches.is_empty() {
        return Err(OpenError::Mismatch {
            path: path.clone(),
            breaches,
        });
    }
    let mut state = load(&books).map_err(failed)?;
    settle_left(&books, &mut state).map_err(failed)?;
    books.commit().map_err(failed)?;

    let flags = OpenFlags::SQLITE_OPEN_READ_ONLY | OpenFlags::SQLITE_OPEN_NO_MUTEX;
    let reader = Connection::open_with_flags(&path, flags).map_err(failed)?;
    reader.busy_timeout(BUSY_TIMEOUT).map_err(failed)?;
    Ok(Opened {
        path,
        writer,
        reader,
        lock,
        state,
    })
}

/// Adds the tables, indexes and columns that are missing in a file of an earlier version.
pub(super) fn add_what_came_later(conn: &Connection) -> Result<()> {
    conn.execute_batch(crash_log::SCHEMA)?;
    conn.execute_batch(ADDITIONS)?;
    add_columns(conn, "receipts", &RECEIPT_COLUMNS)?;
    add_columns(conn, "keys", &KEY_COLUMNS.map(|name| (name, "INTEGER")))
}

fn add_columns(conn: &Connection, table: &str, added: &[(&str, &str)]) -> Result<()> {
    let there = columns(conn, table)?;
    for (name, kind) in added {
        if !there.iter().any(|column| column == name) {
            conn.execute_batch(&format!("ALTER TABLE {table} ADD COLUMN {name} {kind}"))?;
        }
    }
    Ok(())
}

fn columns(conn: &Connection, table: &str) -> Result<Vec<String>> {
    conn.prepare("SELECT name FROM pragma_table_info(?1)")?
        .query_map([table], |row| row.get(0))?
        .collect()
}

/// Computes the carried amounts of groups again. A version without groups may have used this file and charged keys that
/// are in a group; these charges do not count as spending of the group.
fn count_groups_anew(books: &Transaction<'_>) -> Result<()> {
    let sql = "WITH reckoned AS (
                   SELECT account, id, used - (SELECT coalesce(sum(used), 0) FROM keys
                       WHERE keys.account = groups.account AND keys.record ->> 'group' = groups.id) AS carried
                   FROM groups)
               UPDATE groups SET carried = reckoned.carried FROM reckoned
               WHERE groups.account = reckoned.account AND groups.id = reckoned.id
                   AND groups.carried <> reckoned.carried";
    let changed = books.execute(sql, [])?;
    if changed > 0 {
        tracing::warn!(
            groups = changed,
            "a gateway version without groups has charged keys in groups: these charges do not count in the groups"
        );
    }
    Ok(())
}

/// Settles the calls that were in flight when an earlier process died. Each is charged the cost in its last checkpoint.
fn settle_left(books: &Transaction<'_>, state: &mut State) -> Result<()> {
    let mut records = Vec::new();
    for settlement in &crash_log::left(books)? {
        // Holds ended with the earlier process, so the new book has no hold of this call.
        let (settled, record) = state.settle_unknown(settlement, now_ms());
        records.extend(record);
        tracing::warn!(
            number = %settlement.number,
            charged_rub = %settled.charged,
            loss_rub = %settled.loss,
            "a call that ran when the gateway was killed is charged up to its last checkpoint"
        );
    }
    batch::write(books, records.iter())?;
    crash_log::forget_all(books)
}

pub(super) fn load(conn: &Connection) -> Result<State> {
    let mut state = State::default();
    load_accounts(conn, &mut state)?;
    load_groups(conn, &mut state)?;
    load_keys(conn, &mut state)?;
    each_row(conn, "SELECT account FROM forgotten", |row| {
        state.forgotten.insert(parsed(row, 0)?);
        Ok(())
    })?;
    let select = "SELECT max((SELECT coalesce(max(at_ms), 0) FROM entries),
                             (SELECT coalesce(max(at_ms), 0) FROM receipts))";
    let newest = conn.query_row(select, [], |row| count(row, 0))?;
    state.restore_newest(newest, now_ms());
    state.tariff = tariff(conn)?;
    events::load(conn, &mut state)?;
    state.sums_version = rollup::version(conn)?;
    Ok(state)
}

fn load_accounts(conn: &Connection, state: &mut State) -> Result<()> {
    let mut entries: HashMap<String, HashMap<String, MicroRub>> = HashMap::new();
    each_row(conn, "SELECT account, id, amount FROM entries", |row| {
        let of_account = entries.entry(row.get(0)?).or_default();
        of_account.insert(row.get(1)?, amount(row, 2)?);
        Ok(())
    })?;
    let sql = "SELECT id, name, suspended, balance, loss FROM accounts";
    each_row(conn, sql, |row| {
        let entries = entries
            .remove(&row.get::<_, String>(0)?)
            .unwrap_or_default();
        let account = Account::restored(row.get(2)?, amount(row, 3)?, amount(row, 4)?, entries);
        state.put_account(parsed(row, 0)?, row.get(1)?, account);
        Ok(())
    })
}

/// Loads groups into the book. Their accounts must be loaded first.
fn load_groups(conn: &Connection, state: &mut State) -> Result<()> {
    let select =
        "SELECT account, id, name, removed, ceiling, ceiling_month, ceiling_day, carried, used,
                         month, month_before, day, day_before FROM groups";
    each_row(conn, select, |row| {
        let removed: bool = row.get(3)?;
        let money = KeyBook {
            enabled: !removed,
            ceilings: Ceilings {
                total: optional_amount(row, 4)?,
                month: optional_amount(row, 5)?,
                day: optional_amount(row, 6)?,
            },
            used: amount(row, 8)?,
            month: period(row, 9)?,
            day: period(row, 11)?,
            ..KeyBook::default()
        };
        let group = GroupBook {
            name: row.get(2)?,
            removed,
            money,
            carried: amount(row, 7)?,
        };
        if let Some(account) = state.book.account_mut(&parsed(row, 0)?) {
            account.restore_group(parsed(row, 1)?, group);
        }
        Ok(())
    })
}

/// Loads keys into the book. Their accounts and groups must be loaded first.
fn load_keys(conn: &Connection, state: &mut State) -> Result<()> {
    let select = "SELECT id, account, record, used, ceiling, ceiling_month, ceiling_day,
                         month, month_before, day, day_before FROM keys";
    each_row(conn, select, |row| {
        let record: KeyRecord = from_json(row, 2)?;
        if record.id != parsed::<KeyId>(row, 0)? || record.account != parsed::<AccountId>(row, 1)? {
            let text = "the key's record contains the id of another key";
            return Err(unreadable(2, text.into()));
        }
        let money = KeyBook {
            ceilings: Ceilings {
                total: optional_amount(row, 4)?,
                month: optional_amount(row, 5)?,
                day: optional_amount(row, 6)?,
            },
            used: amount(row, 3)?,
            month: period(row, 7)?,
            day: period(row, 9)?,
            ..KeyBook::default()
        };
        state.restore_key(record, money);
        Ok(())
    })
}

/// Returns the tariff version in force, and its fingerprint.
fn tariff(conn: &Connection) -> Result<Option<(TariffVersion, String)>> {
    let select = "SELECT id, effective_from_ms, fingerprint FROM tariff ORDER BY id DESC LIMIT 1";
    let newest = conn.query_row(select, [], |row| {
        let version = TariffVersion {
            id: count(row, 0)?,
            effective_from_ms: count(row, 1)?,
        };
        Ok((version, row.get(2)?))
    });
    newest.optional()
}
