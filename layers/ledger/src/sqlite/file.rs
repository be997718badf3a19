//! The file: its lock, its tables, and the checks before it is used.
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
//! Money is in micro-rubles, times are Unix milliseconds.

use std::{
    collections::HashMap,
    fs::File,
    io,
    path::{Path, PathBuf},
};

use rusqlite::{Connection, OpenFlags, OptionalExtension, Transaction};

use super::{
    audit::{self, Occasion},
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
        file::{BUSY_TIMEOUT, Kind, NotOpened, SqliteFile, from_json, parsed, unreadable},
    },
    embedded::{State, now_ms},
    money::MicroRub,
};

/// The ledger file: application id `tgl1`, schema version 1.
pub(super) const LEDGER: Kind = Kind {
    application_id: 0x7467_6c31,
    schema_version: 1,
    schema: SCHEMA,
    // Foreign keys must be switched off explicitly. A batch checks once that an account exists; SQLite would check it
    // for each receipt.
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

/// Tables and indexes that later versions added: for journals, for copies without the oldest receipts, for checkpoints.
/// A file of an earlier version gets them when it is opened.
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

/// Columns of `receipts` that later versions added, with their types. All may be NULL, so that an earlier version that
/// is started on the file again can write rows without them.
const RECEIPT_COLUMNS: [(&str, &str); 13] = [
    (
        "bounded",
        "INTEGER NOT NULL DEFAULT 0 CHECK (bounded IN (0, 1))",
    ),
    ("session", "TEXT"),
    // Counts of rate classes other than the four usual classes, as JSON; NULL if there are none.
    ("classes", "TEXT"),
    (
        "unpriced",
        "INTEGER NOT NULL DEFAULT 0 CHECK (unpriced IN (0, 1))",
    ),
    ("vendor_cost", "INTEGER"),
    ("endpoint", "TEXT"),
    // The column has the call's timeline, in one line.
    ("timeline", "TEXT"),
    // The group that was charged; NULL if the key was in no group.
    ("key_group", "TEXT"),
    // The usage that the vendor reported, as JSON, if it was cut; and the price of the usage that was cut.
    ("vendor_usage", "TEXT"),
    ("bounded_loss", "INTEGER"),
    // The largest amount and the last amount of a hold that was changed while its call ran.
    ("held_max", "INTEGER"),
    ("held_at_end", "INTEGER"),
    // Why the gateway stopped the call, if it did.
    ("stopped_by", "TEXT"),
];
/// Columns of `keys` that later versions added: the ceilings per month and per day, the month and the day of the last
/// charge, and the key's usage before that month and before that day.
const KEY_COLUMNS: [&str; 6] = [
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
pub enum OpenError {
    /// Another process, or this one, has the file open.
    #[error("the ledger {} is in use by another gateway: stop it first, or name another file", .path.display())]
    InUse {
        /// The path of the file.
        path: PathBuf,
    },
    /// The file, its folder or its lock could not be opened.
    #[error("cannot open {}: check that the folder is there and may be written to", .path.display())]
    Io {
        /// The path that could not be opened.
        path: PathBuf,
        /// The file system's error.
        #[source]
        source: io::Error,
    },
    /// The file is not a ledger.
    #[error("{} is not a ledger of this gateway: name another file", .path.display())]
    NotALedger {
        /// The path of the file.
        path: PathBuf,
    },
    /// Another version of the gateway wrote the file.
    #[error(
        "the ledger {} has schema version {found}, this gateway uses {known}: run the version that wrote it",
        .path.display()
    )]
    Version {
        /// The path of the file.
        path: PathBuf,
        /// The schema version of the file.
        found: i64,
        /// The schema version of this gateway.
        known: i64,
    },
    /// The file is read-only.
    #[error("the ledger {} may be read but not written to: check its owner and permissions", .path.display())]
    ReadOnly {
        /// The path of the file.
        path: PathBuf,
    },
    /// The books do not balance.
    #[error(
        "the books in {} do not balance, so nothing is served from them: {}. Keep a copy of the file, then restore a \
         backup",
        .path.display(),
        .breaches.join("; ")
    )]
    Mismatch {
        /// The path of the file.
        path: PathBuf,
        /// Every breach of an invariant; each text begins with the invariant's name.
        breaches: Vec<String>,
    },
    /// SQLite failed.
    #[error("cannot use the ledger {}", .path.display())]
    Sqlite {
        /// The path of the file.
        path: PathBuf,
        /// SQLite's error.
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

/// An open file and its contents.
pub(super) struct Opened {
    pub(super) path: PathBuf,
    pub(super) writer: Connection,
    pub(super) reader: Connection,
    /// The file's lock, which must be kept until the writer is closed.
    pub(super) lock: File,
    pub(super) state: State,
}

pub(super) fn open(path: &Path) -> Result<Opened, OpenError> {
    let SqliteFile {
        path,
        conn: mut writer,
        lock,
    } = LEDGER.open(path)?;
    let failed = |source: rusqlite::Error| OpenError::Sqlite {
        path: path.clone(),
        source: source.into(),
    };
    add_what_came_later(&writer).map_err(failed)?;
    let books = writer.transaction().map_err(failed)?;
    count_groups_anew(&books).map_err(failed)?;
    let breaches = audit::breaches(&books, Occasion::Opening).map_err(failed)?;
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

/// Adds the tables, indexes and columns that a file of an earlier version lacks.
pub(super) fn add_what_came_later(conn: &Connection) -> rusqlite::Result<()> {
    conn.execute_batch(crash_log::SCHEMA)?;
    conn.execute_batch(ADDITIONS)?;
    add_columns(conn, "receipts", &RECEIPT_COLUMNS)?;
    add_columns(conn, "keys", &KEY_COLUMNS.map(|name| (name, "INTEGER")))
}

fn add_columns(conn: &Connection, table: &str, added: &[(&str, &str)]) -> rusqlite::Result<()> {
    let there = columns(conn, table)?;
    for (name, kind) in added {
        if !there.iter().any(|column| column == name) {
            conn.execute_batch(&format!("ALTER TABLE {table} ADD COLUMN {name} {kind}"))?;
        }
    }
    Ok(())
}

fn columns(conn: &Connection, table: &str) -> rusqlite::Result<Vec<String>> {
    conn.prepare("SELECT name FROM pragma_table_info(?1)")?
        .query_map([table], |row| row.get(0))?
        .collect()
}

/// Computes the carried amounts of groups again. A version without groups may have charged keys of a group on this
/// file; these charges do not count as the group's spending.
fn count_groups_anew(books: &Transaction<'_>) -> rusqlite::Result<()> {
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
            "keys in groups were charged by a version without groups: those charges do not count in their groups"
        );
    }
    Ok(())
}

/// Settles the calls that were running when an earlier process died, at the costs of their last checkpoints.
fn settle_left(books: &Transaction<'_>, state: &mut State) -> rusqlite::Result<()> {
    let mut records = Vec::new();
    for settlement in &crash_log::left(books)? {
        // The book is new and has no hold of this call, because holds ended with the earlier process.
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

pub(super) fn load(conn: &Connection) -> rusqlite::Result<State> {
    let mut state = State::default();
    load_accounts(conn, &mut state)?;
    load_groups(conn, &mut state)?;
    load_keys(conn, &mut state)?;
    let mut select = conn.prepare("SELECT account FROM forgotten")?;
    let mut rows = select.query([])?;
    while let Some(row) = rows.next()? {
        state.restore_forgotten(parsed(row, 0)?);
    }
    let select = "SELECT max((SELECT coalesce(max(at_ms), 0) FROM entries),
                             (SELECT coalesce(max(at_ms), 0) FROM receipts))";
    let newest = conn.query_row(select, [], |row| count(row, 0))?;
    state.restore_newest(newest, now_ms());
    if let Some((version, fingerprint)) = tariff(conn)? {
        state.restore_tariff(version, fingerprint);
    }
    events::load(conn, &mut state)?;
    state.sums_version = rollup::version(conn)?;
    Ok(state)
}

fn load_accounts(conn: &Connection, state: &mut State) -> rusqlite::Result<()> {
    let mut entries: HashMap<String, HashMap<String, MicroRub>> = HashMap::new();
    let mut select = conn.prepare("SELECT account, id, amount FROM entries")?;
    let mut rows = select.query([])?;
    while let Some(row) = rows.next()? {
        entries
            .entry(row.get(0)?)
            .or_default()
            .insert(row.get(1)?, amount(row, 2)?);
    }
    let mut select = conn.prepare("SELECT id, name, suspended, balance, loss FROM accounts")?;
    let mut rows = select.query([])?;
    while let Some(row) = rows.next()? {
        let entries = entries
            .remove(&row.get::<_, String>(0)?)
            .unwrap_or_default();
        let account = Account::restored(row.get(2)?, amount(row, 3)?, amount(row, 4)?, entries);
        state.put_account(parsed(row, 0)?, row.get(1)?, account);
    }
    Ok(())
}

/// Loads groups. Their accounts must be loaded before.
fn load_groups(conn: &Connection, state: &mut State) -> rusqlite::Result<()> {
    let select =
        "SELECT account, id, name, removed, ceiling, ceiling_month, ceiling_day, carried, used,
                         month, month_before, day, day_before FROM groups";
    let mut select = conn.prepare(select)?;
    let mut rows = select.query([])?;
    while let Some(row) = rows.next()? {
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
    }
    Ok(())
}

/// Loads keys. Their accounts and groups must be loaded before.
fn load_keys(conn: &Connection, state: &mut State) -> rusqlite::Result<()> {
    let select = "SELECT id, account, record, used, ceiling, ceiling_month, ceiling_day,
                         month, month_before, day, day_before FROM keys";
    let mut select = conn.prepare(select)?;
    let mut rows = select.query([])?;
    while let Some(row) = rows.next()? {
        let record: KeyRecord = from_json(row, 2)?;
        if record.id != parsed::<KeyId>(row, 0)? || record.account != parsed::<AccountId>(row, 1)? {
            return Err(unreadable(2, "the record names another key".into()));
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
    }
    Ok(())
}

/// Returns the tariff's version in force and its fingerprint.
fn tariff(conn: &Connection) -> rusqlite::Result<Option<(TariffVersion, String)>> {
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
