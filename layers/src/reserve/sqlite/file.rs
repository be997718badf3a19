//! The file: its lock, its tables, what is checked before it is trusted.
//!
//! ```text
//! accounts   id, name, suspended, balance, loss
//! keys       id, account, digest, ceiling, used, record (JSON)
//! entries    account, id, amount, reason, at_ms                  payments and corrections, kept for ever
//! receipts   number, at_ms, account, key, tokens, money, price   one for each settled call
//! tariff     id, effective_from_ms, fingerprint
//! ```
//! Money is in micro-rubles, times are Unix milliseconds.

use std::{
    collections::HashMap,
    ffi::OsString,
    fs::{File, OpenOptions, TryLockError},
    io,
    path::{Path, PathBuf},
    str::FromStr,
    time::Duration,
};

use rusqlite::{
    Connection, ErrorCode, MAIN_DB, OpenFlags, OptionalExtension, Row, Transaction,
    TransactionBehavior, params, types::Type,
};
use serde::{Serialize, de::DeserializeOwned};

use crate::{
    error::BoxError,
    facts::RequestNumber,
    key::{AccountId, KeyId, KeyRecord},
    money::MicroRub,
    reserve::{
        book::Account,
        ledger::{Item, Receipt, TariffVersion},
        state::{Record, State},
    },
    usage::Usage,
};

/// `tgl1`: what `file(1)` and we know a ledger by.
const APPLICATION_ID: i64 = 0x7467_6c31;
const SCHEMA_VERSION: i64 = 1;

/// How long a statement waits for somebody else's lock, a backup's or a console's.
const BUSY_TIMEOUT: Duration = Duration::from_secs(10);

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
    price TEXT
) STRICT;
CREATE TABLE tariff (
    id INTEGER PRIMARY KEY NOT NULL,
    effective_from_ms INTEGER NOT NULL,
    fingerprint TEXT NOT NULL
) STRICT;
";

/// Receipts may be trimmed by age one day, so their sums bound the books from below.
const BREACHES: &str = "
WITH by_key AS MATERIALIZED (
         SELECT account, key, sum(charged) AS charged_sum, sum(loss) AS loss_sum,
                sum(booked IN ('held', 'late', 'forced') AND cost <> charged + loss) AS torn
         FROM receipts GROUP BY account, key),
     lost AS (SELECT account, sum(loss_sum) AS total FROM by_key GROUP BY account),
     entered AS (SELECT account, sum(amount) AS total FROM entries GROUP BY account),
     spent AS (SELECT account, sum(used) AS total FROM keys GROUP BY account)
SELECT format('I3 account %s: balance %d, entered %d less used %d µ₽',
              a.id, a.balance, coalesce(entered.total, 0), coalesce(spent.total, 0))
FROM accounts a LEFT JOIN entered ON entered.account = a.id LEFT JOIN spent ON spent.account = a.id
WHERE a.balance <> coalesce(entered.total, 0) - coalesce(spent.total, 0)
UNION ALL
SELECT format('I3 key %s: used %d, but its receipts sum to %d µ₽',
              by_key.key, coalesce(k.used, 0), by_key.charged_sum)
FROM by_key LEFT JOIN keys k ON k.id = by_key.key AND k.account = by_key.account
WHERE by_key.charged_sum > coalesce(k.used, 0)
UNION ALL
SELECT format('I3 account %s: loss %d, but its receipts sum to %d µ₽', a.id, a.loss, lost.total)
FROM accounts a JOIN lost ON lost.account = a.id WHERE lost.total > a.loss
UNION ALL
SELECT format('I3 key %s: on %d receipts the cost is not charge and loss', by_key.key, by_key.torn)
FROM by_key WHERE by_key.torn > 0
UNION ALL
SELECT format('I3 key %s: there is no account %s', k.id, k.account)
FROM keys k LEFT JOIN accounts a ON a.id = k.account WHERE a.id IS NULL
UNION ALL
SELECT format('I3 account %s: there are entries but no account', entered.account)
FROM entered LEFT JOIN accounts a ON a.id = entered.account WHERE a.id IS NULL
UNION ALL
SELECT format('I4 account %s: balance %d, loss %d µ₽', id, balance, loss)
FROM accounts WHERE balance < 0 OR loss < 0
UNION ALL
SELECT format('I4 key %s: used %d µ₽', id, used) FROM keys WHERE used < 0
LIMIT 100
";

/// Why a ledger file was not opened.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum OpenError {
    /// Another process, or this one, has it open.
    #[error("the ledger {} is in use by another gateway: stop it first, or name another file", .path.display())]
    InUse {
        /// The file.
        path: PathBuf,
    },
    /// The file, its folder or its lock could not be opened.
    #[error("cannot open {}: check that the folder is there and may be written to", .path.display())]
    Io {
        /// What could not be opened.
        path: PathBuf,
        /// Why.
        #[source]
        source: io::Error,
    },
    /// It is something else.
    #[error("{} is not a ledger of this gateway: name another file", .path.display())]
    NotALedger {
        /// The file.
        path: PathBuf,
    },
    /// Another version of the gateway made it.
    #[error(
        "the ledger {} has schema version {found}, this gateway knows {known}: run the version that wrote it",
        .path.display()
    )]
    Version {
        /// The file.
        path: PathBuf,
        /// Its version.
        found: i64,
        /// Ours.
        known: i64,
    },
    /// It may not be written to.
    #[error("the ledger {} may be read but not written to: check its owner and permissions", .path.display())]
    ReadOnly {
        /// The file.
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
        /// The file.
        path: PathBuf,
        /// Every breach of an invariant, in words that begin with its name.
        breaches: Vec<String>,
    },
    /// SQLite failed.
    #[error("cannot use the ledger {}", .path.display())]
    Sqlite {
        /// The file.
        path: PathBuf,
        /// Why.
        #[source]
        source: rusqlite::Error,
    },
}

/// An open file and what stood in it.
pub(super) struct Opened {
    pub(super) path: PathBuf,
    pub(super) writer: Connection,
    pub(super) reader: Connection,
    /// To be kept until the writer is closed.
    pub(super) lock: File,
    pub(super) state: State,
}

pub(super) fn open(path: &Path) -> Result<Opened, OpenError> {
    // An absolute path is never one of SQLite's special names, and a link leads to one lock.
    let path = std::path::absolute(path).map_err(|source| OpenError::Io {
        path: path.to_owned(),
        source,
    })?;
    let path = path.canonicalize().unwrap_or(path);
    let lock = lock(&path)?;

    let failed = |source: rusqlite::Error| match source.sqlite_error_code() {
        Some(ErrorCode::NotADatabase) => OpenError::NotALedger { path: path.clone() },
        _ => OpenError::Sqlite {
            path: path.clone(),
            source,
        },
    };
    let flags = OpenFlags::SQLITE_OPEN_READ_WRITE
        | OpenFlags::SQLITE_OPEN_CREATE
        | OpenFlags::SQLITE_OPEN_NO_MUTEX;
    // SQLite would make it readable for everybody; what it makes beside it takes the file's own mode.
    #[cfg(unix)]
    {
        use std::os::unix::fs::OpenOptionsExt;
        drop(
            OpenOptions::new()
                .write(true)
                .create(true)
                .truncate(false)
                .mode(0o600)
                .open(&path),
        );
    }
    let mut writer = Connection::open_with_flags(&path, flags).map_err(failed)?;
    writer.busy_timeout(BUSY_TIMEOUT).map_err(failed)?;
    let fresh = is_fresh(&writer, &path, failed)?;
    // SQLite falls back to reading alone without a word.
    if writer.is_readonly(MAIN_DB).map_err(failed)? {
        return Err(OpenError::ReadOnly { path });
    }
    prepare(&mut writer, fresh).map_err(failed)?;

    let books = writer.transaction().map_err(failed)?;
    let breaches = breaches(&books).map_err(failed)?;
    if !breaches.is_empty() {
        return Err(OpenError::Mismatch {
            path: path.clone(),
            breaches,
        });
    }
    let state = load(&books).map_err(failed)?;
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

/// Takes the lock that keeps a second gateway away. It is a file of its own: SQLite's exclusive mode
/// would keep our reader and the operator's backup away too, and a lock on the file itself would be
/// let go when any other handle on it is closed.
fn lock(path: &Path) -> Result<File, OpenError> {
    let mut lock_path = OsString::from(path);
    lock_path.push(".lock");
    let failed = |source| OpenError::Io {
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
        Err(TryLockError::WouldBlock) => Err(OpenError::InUse {
            path: path.to_owned(),
        }),
        Err(TryLockError::Error(source)) => Err(failed(source)),
    }
}

/// Whether nothing has been written to the file yet; an error if what was written is not ours.
fn is_fresh(
    conn: &Connection,
    path: &Path,
    failed: impl Fn(rusqlite::Error) -> OpenError + Copy,
) -> Result<bool, OpenError> {
    let number = |sql: &str| {
        conn.query_row(sql, [], |row| row.get::<_, i64>(0))
            .map_err(failed)
    };
    let application = number("PRAGMA application_id")?;
    let found = number("PRAGMA user_version")?;
    match (application, found) {
        (APPLICATION_ID, SCHEMA_VERSION) => Ok(false),
        (APPLICATION_ID, _) => Err(OpenError::Version {
            path: path.to_owned(),
            found,
            known: SCHEMA_VERSION,
        }),
        (0, 0) if number("SELECT count(*) FROM sqlite_schema")? == 0 => Ok(true),
        _ => Err(OpenError::NotALedger {
            path: path.to_owned(),
        }),
    }
}

fn prepare(conn: &mut Connection, fresh: bool) -> rusqlite::Result<()> {
    let mode: String = conn.query_row("PRAGMA journal_mode = WAL", [], |row| row.get(0))?;
    if mode != "wal" {
        // What is acknowledged must be in the log; no other mode is tested.
        let why = format!("the file system allows no write-ahead log (journal mode {mode})");
        return Err(rusqlite::Error::ToSqlConversionFailure(why.into()));
    }
    conn.execute_batch("PRAGMA synchronous = FULL; PRAGMA foreign_keys = ON;")?;
    if fresh {
        let schema = conn.transaction()?;
        schema.execute_batch(SCHEMA)?;
        schema.pragma_update(None, "application_id", APPLICATION_ID)?;
        schema.pragma_update(None, "user_version", SCHEMA_VERSION)?;
        schema.commit()?;
    }
    Ok(())
}

/// Breaches of the invariants in the file, in words that begin with the invariant's name.
pub(super) fn breaches(conn: &Connection) -> rusqlite::Result<Vec<String>> {
    conn.prepare(BREACHES)?
        .query_map([], |row| row.get(0))?
        .collect()
}

fn load(conn: &Connection) -> rusqlite::Result<State> {
    let mut entries: HashMap<String, HashMap<String, MicroRub>> = HashMap::new();
    let mut select = conn.prepare("SELECT account, id, amount FROM entries")?;
    let mut rows = select.query([])?;
    while let Some(row) = rows.next()? {
        entries
            .entry(row.get(0)?)
            .or_default()
            .insert(row.get(1)?, amount(row, 2)?);
    }

    let mut state = State::default();
    let mut select = conn.prepare("SELECT id, name, suspended, balance, loss FROM accounts")?;
    let mut rows = select.query([])?;
    while let Some(row) = rows.next()? {
        let entries = entries
            .remove(&row.get::<_, String>(0)?)
            .unwrap_or_default();
        let account = Account::restored(row.get(2)?, amount(row, 3)?, amount(row, 4)?, entries);
        state.put_account(parsed(row, 0)?, row.get(1)?, account);
    }

    let mut select = conn.prepare("SELECT id, account, record, ceiling, used FROM keys")?;
    let mut rows = select.query([])?;
    while let Some(row) = rows.next()? {
        let record: KeyRecord = from_json(row, 2)?;
        if record.id != parsed::<KeyId>(row, 0)? || record.account != parsed::<AccountId>(row, 1)? {
            return Err(unreadable(2, "the record is another key's".into()));
        }
        let ceiling = row
            .get::<_, Option<i64>>(3)?
            .map(|_| amount(row, 3))
            .transpose()?;
        state.restore_key(record, ceiling, amount(row, 4)?);
    }

    let select = "SELECT id, effective_from_ms, fingerprint FROM tariff ORDER BY id DESC LIMIT 1";
    let newest = conn.query_row(select, [], |row| {
        Ok((
            TariffVersion {
                id: count(row, 0)?,
                effective_from_ms: count(row, 1)?,
            },
            row.get::<_, String>(2)?,
        ))
    });
    if let Some((version, fingerprint)) = newest.optional()? {
        state.restore_tariff(version, fingerprint);
    }
    Ok(state)
}

/// Writes records in their order, all or none.
pub(super) fn commit<'a>(
    conn: &mut Connection,
    records: impl Iterator<Item = &'a Record>,
) -> rusqlite::Result<()> {
    let mut records = records.peekable();
    if records.peek().is_none() {
        return Ok(());
    }
    let batch = conn.transaction_with_behavior(TransactionBehavior::Immediate)?;
    for record in records {
        write(&batch, record)?;
    }
    batch.commit()
}

fn write(batch: &Transaction<'_>, record: &Record) -> rusqlite::Result<()> {
    match record {
        Record::Account {
            id,
            name,
            suspended,
        } => {
            let sql = "INSERT INTO accounts (id, name, suspended, balance, loss) VALUES (?1, ?2, ?3, 0, 0)
                       ON CONFLICT (id) DO UPDATE SET name = excluded.name, suspended = excluded.suspended";
            one(batch
                .prepare_cached(sql)?
                .execute(params![&**id, name, suspended])?)
        }
        Record::Entry {
            account,
            entry,
            at_ms,
            balance,
        } => {
            let sql = "INSERT INTO entries (account, id, amount, reason, at_ms) VALUES (?1, ?2, ?3, ?4, ?5)
                       ON CONFLICT (account, id) DO NOTHING";
            let row = params![
                &**account,
                entry.id,
                entry.amount.micro(),
                entry.reason,
                integer(*at_ms)
            ];
            batch.prepare_cached(sql)?.execute(row)?;
            let sql = "UPDATE accounts SET balance = ?2 WHERE id = ?1";
            one(batch
                .prepare_cached(sql)?
                .execute(params![&**account, balance.micro()])?)
        }
        Record::Key { record, ceiling } => {
            let sql = "INSERT INTO keys (id, account, digest, ceiling, used, record) VALUES (?1, ?2, ?3, ?4, 0, ?5)
                       ON CONFLICT (id) DO UPDATE SET ceiling = excluded.ceiling, record = excluded.record";
            let (digest, ceiling) = (record.digest.to_string(), ceiling.map(MicroRub::micro));
            let row = params![
                &*record.id,
                &*record.account,
                digest,
                ceiling,
                to_json(record)?
            ];
            one(batch.prepare_cached(sql)?.execute(row)?)
        }
        Record::Settled {
            receipt,
            balance,
            loss,
            used,
        } => {
            write_receipt(batch, receipt)?;
            let sql = "UPDATE accounts SET balance = ?2, loss = ?3 WHERE id = ?1";
            let row = params![&*receipt.account, balance.micro(), loss.micro()];
            one(batch.prepare_cached(sql)?.execute(row)?)?;
            let Some(used) = used else { return Ok(()) };
            let sql = "UPDATE keys SET used = ?2 WHERE id = ?1";
            one(batch
                .prepare_cached(sql)?
                .execute(params![&*receipt.key, used.micro()])?)
        }
        Record::Tariff {
            version,
            fingerprint,
        } => {
            let sql = "INSERT INTO tariff (id, effective_from_ms, fingerprint) VALUES (?1, ?2, ?3)";
            let row = params![
                integer(version.id),
                integer(version.effective_from_ms),
                fingerprint
            ];
            one(batch.prepare_cached(sql)?.execute(row)?)
        }
    }
}

fn write_receipt(batch: &Transaction<'_>, receipt: &Receipt) -> rusqlite::Result<()> {
    // A dispute moved nothing: what is booked later takes its place. Anything else stands.
    let sql = "INSERT INTO receipts (number, at_ms, account, key, model, vendor, input, cached_input, cache_write,
                   output, held, cost, charged, loss, ended, booked, estimated, price)
               VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11, ?12, ?13, ?14, ?15, ?16, ?17, ?18)
               ON CONFLICT (number) DO UPDATE SET
                   at_ms = excluded.at_ms, account = excluded.account, key = excluded.key,
                   model = excluded.model, vendor = excluded.vendor, input = excluded.input,
                   cached_input = excluded.cached_input, cache_write = excluded.cache_write,
                   output = excluded.output, held = excluded.held, cost = excluded.cost,
                   charged = excluded.charged, loss = excluded.loss, ended = excluded.ended,
                   booked = excluded.booked, estimated = excluded.estimated, price = excluded.price
               WHERE receipts.booked = 'stale' AND excluded.booked <> 'stale'";
    let Item {
        model,
        vendor,
        usage,
        price,
        estimated,
        end,
    } = &receipt.item;
    let row = params![
        receipt.number.to_string(),
        integer(receipt.at_ms),
        &*receipt.account,
        &*receipt.key,
        model,
        vendor,
        integer(usage.input),
        integer(usage.cached_input),
        integer(usage.cache_write),
        integer(usage.output),
        receipt.held_rub.micro(),
        receipt.cost_rub.micro(),
        receipt.charged_rub.micro(),
        receipt.loss_rub.micro(),
        word(end)?,
        word(&receipt.booked)?,
        estimated,
        price.as_ref().map(to_json).transpose()?,
    ];
    batch.prepare_cached(sql)?.execute(row)?;
    Ok(())
}

/// The receipt of a call.
pub(super) fn receipt(
    conn: &Connection,
    number: RequestNumber,
) -> rusqlite::Result<Option<Receipt>> {
    let sql = "SELECT number, at_ms, account, key, model, vendor, input, cached_input, cache_write, output,
                      held, cost, charged, loss, ended, booked, estimated, price
               FROM receipts WHERE number = ?1";
    conn.prepare_cached(sql)?
        .query_row([number.to_string()], read_receipt)
        .optional()
}

fn read_receipt(row: &Row<'_>) -> rusqlite::Result<Receipt> {
    let price = row
        .get::<_, Option<String>>(17)?
        .map(|_| from_json(row, 17))
        .transpose()?;
    Ok(Receipt {
        number: parsed(row, 0)?,
        at_ms: count(row, 1)?,
        account: parsed(row, 2)?,
        key: parsed(row, 3)?,
        held_rub: amount(row, 10)?,
        cost_rub: amount(row, 11)?,
        charged_rub: amount(row, 12)?,
        loss_rub: amount(row, 13)?,
        booked: from_word(row, 15)?,
        item: Item {
            model: row.get(4)?,
            vendor: row.get(5)?,
            usage: Usage {
                input: count(row, 6)?,
                cached_input: count(row, 7)?,
                cache_write: count(row, 8)?,
                output: count(row, 9)?,
            },
            price,
            estimated: row.get(16)?,
            end: from_word(row, 14)?,
        },
    })
}

/// A statement that must have met its row.
fn one(changed: usize) -> rusqlite::Result<()> {
    if changed == 1 {
        Ok(())
    } else {
        Err(rusqlite::Error::StatementChangedRows(changed))
    }
}

/// Counts beyond 2⁶³ cannot be stored and mean nothing more.
fn integer(count: u64) -> i64 {
    i64::try_from(count).unwrap_or(i64::MAX)
}

fn count(row: &Row<'_>, index: usize) -> rusqlite::Result<u64> {
    let stored: i64 = row.get(index)?;
    u64::try_from(stored).map_err(|_| rusqlite::Error::IntegralValueOutOfRange(index, stored))
}

fn amount(row: &Row<'_>, index: usize) -> rusqlite::Result<MicroRub> {
    let stored: i64 = row.get(index)?;
    let amount = MicroRub::new(stored);
    if amount.micro() == stored {
        Ok(amount)
    } else {
        Err(rusqlite::Error::IntegralValueOutOfRange(index, stored))
    }
}

fn parsed<T>(row: &Row<'_>, index: usize) -> rusqlite::Result<T>
where
    T: FromStr,
    T::Err: Into<BoxError>,
{
    row.get::<_, String>(index)?
        .parse()
        .map_err(|error: T::Err| unreadable(index, error.into()))
}

fn to_json<T: Serialize>(value: &T) -> rusqlite::Result<String> {
    serde_json::to_string(value)
        .map_err(|error| rusqlite::Error::ToSqlConversionFailure(error.into()))
}

fn from_json<T: DeserializeOwned>(row: &Row<'_>, index: usize) -> rusqlite::Result<T> {
    let json: String = row.get(index)?;
    serde_json::from_str(&json).map_err(|error| unreadable(index, error.into()))
}

/// A variant's name, as JSON has it, without the quotes.
fn word<T: Serialize>(variant: &T) -> rusqlite::Result<String> {
    Ok(to_json(variant)?.trim_matches('"').to_owned())
}

fn from_word<T: DeserializeOwned>(row: &Row<'_>, index: usize) -> rusqlite::Result<T> {
    let word = serde_json::Value::String(row.get(index)?);
    serde_json::from_value(word).map_err(|error| unreadable(index, error.into()))
}

fn unreadable(index: usize, why: BoxError) -> rusqlite::Error {
    rusqlite::Error::FromSqlConversionFailure(index, Type::Text, why)
}
