//! Calls without a receipt, in a SQLite file next to the ledger file or in memory. The file is not part of the books:
//! it may be deleted while no gateway runs.

use std::{ops::Range, path::Path};

use futures_util::future::BoxFuture;
use rusqlite::{Result, Transaction, params, params_from_iter, types::Value};

use super::{REMOVED_MAX, UnbookedBounds, UnbookedCall, UnbookedIndex, UnbookedStore};
use crate::{BoxError, number::RequestNumber, sqlite::side_file::SideFile};

/// A commit survives the death of the process, but the last commits may be lost in a power failure. Triggers maintain
/// the number of calls per account.
const SCHEMA: &str = "
PRAGMA journal_mode = WAL;
PRAGMA synchronous = NORMAL;
CREATE TABLE IF NOT EXISTS calls (
  number BLOB PRIMARY KEY, account TEXT NOT NULL, key TEXT NOT NULL, code TEXT NOT NULL, call TEXT NOT NULL
) STRICT, WITHOUT ROWID;
CREATE INDEX IF NOT EXISTS calls_of_account ON calls (account, number);
CREATE INDEX IF NOT EXISTS calls_of_key ON calls (key, number);
CREATE INDEX IF NOT EXISTS calls_of_code ON calls (code, number);
CREATE TABLE IF NOT EXISTS counts (account TEXT PRIMARY KEY, calls INTEGER NOT NULL) STRICT, WITHOUT ROWID;
CREATE INDEX IF NOT EXISTS counts_by_calls ON counts (calls);
CREATE TRIGGER IF NOT EXISTS calls_made AFTER INSERT ON calls BEGIN
  INSERT INTO counts VALUES (new.account, 1) ON CONFLICT DO UPDATE SET calls = calls + 1;
END;
CREATE TRIGGER IF NOT EXISTS calls_gone AFTER DELETE ON calls BEGIN
  UPDATE counts SET calls = calls - 1 WHERE account = old.account;
  DELETE FROM counts WHERE account = old.account AND calls = 0;
END;
";

/// A store of calls without a receipt in one SQLite file, which the first request creates. Clones share this file.
///
/// A tokio runtime is needed, because queries run on its blocking threads.
#[derive(Clone, Debug)]
pub struct SqliteUnbooked {
    file: SideFile,
    bounds: UnbookedBounds,
}

impl SqliteUnbooked {
    /// Creates a store in the file `path`.
    #[must_use]
    pub fn new(path: &Path, bounds: UnbookedBounds) -> Self {
        let file = SideFile::new(Some(path), SCHEMA);
        Self { file, bounds }
    }

    /// Creates a store in memory, which is lost when the process ends.
    #[must_use]
    pub fn in_memory(bounds: UnbookedBounds) -> Self {
        let file = SideFile::new(None, SCHEMA);
        Self { file, bounds }
    }
}

impl UnbookedStore for SqliteUnbooked {
    fn bounds(&self) -> UnbookedBounds {
        self.bounds
    }

    fn write<'a>(&'a self, calls: &'a [UnbookedCall]) -> BoxFuture<'a, Result<(), BoxError>> {
        Box::pin(async move {
            let rows = calls.iter().map(row_of).collect::<Result<Vec<_>, _>>()?;
            let bounds = self.bounds;
            let written = self.file.transact(move |step| {
                let mut insert = step.prepare_cached(
                    "INSERT INTO calls VALUES (?1, ?2, ?3, ?4, ?5) ON CONFLICT DO NOTHING",
                )?;
                for row in &rows {
                    insert.execute(params_from_iter(row))?;
                }
                remove_beyond(step, &bounds, rows.len() + REMOVED_MAX)
            });
            written.await
        })
    }

    fn read<'a>(
        &'a self,
        index: UnbookedIndex<'a>,
        numbers: Range<RequestNumber>,
        limit: usize,
    ) -> BoxFuture<'a, Result<Vec<UnbookedCall>, BoxError>> {
        let (condition, value) = match index {
            UnbookedIndex::All => ("?1 = ''", ""),
            UnbookedIndex::Account(account) => ("account = ?1", &**account),
            UnbookedIndex::Key(key) => ("key = ?1", &**key),
            UnbookedIndex::Code(code) => ("code = ?1", code),
        };
        let value = value.to_owned();
        Box::pin(async move {
            let rows = self.file.transact(move |step| {
                step.prepare_cached(&format!(
                    "SELECT call FROM calls WHERE {condition} AND number >= ?2 AND number < ?3
                     ORDER BY number DESC LIMIT ?4"
                ))?
                .query_map(
                    params![
                        value,
                        numbers.start.uuid().as_bytes(),
                        numbers.end.uuid().as_bytes(),
                        integer(limit)
                    ],
                    |row| row.get(0),
                )?
                .collect::<Result<Vec<String>>>()
            });
            let rows = rows.await?;
            let calls = rows.iter().map(|json| serde_json::from_str(json));
            Ok(calls.collect::<Result<_, _>>()?)
        })
    }
}

fn row_of(call: &UnbookedCall) -> Result<[Value; 5], BoxError> {
    let text = |text: Option<&str>| Value::Text(text.unwrap_or_default().to_owned());
    Ok([
        Value::Blob(call.number.uuid().as_bytes().to_vec()),
        text(call.account.as_deref()),
        text(call.key.as_deref()),
        text(call.code.as_deref()),
        Value::Text(serde_json::to_string(call)?),
    ])
}

/// Removes at most `most` of the calls that are older or more than the limits allow.
fn remove_beyond(step: &Transaction<'_>, bounds: &UnbookedBounds, most: usize) -> Result<()> {
    let old = step
        .prepare_cached(
            "DELETE FROM calls WHERE number IN
             (SELECT number FROM calls WHERE number < ?1 ORDER BY number LIMIT ?2)",
        )?
        .execute(params![
            bounds.first_number().uuid().as_bytes(),
            integer(most)
        ])?;
    let stored: i64 = step
        .prepare_cached("SELECT coalesce(sum(calls), 0) FROM counts")?
        .query_row([], |row| row.get(0))?;
    let calls_max = i64::try_from(bounds.calls_max).unwrap_or(i64::MAX);
    let mut left = (stored - calls_max).min(integer(most - old));
    while left > 0 {
        let counts = step
            .prepare_cached("SELECT account, calls FROM counts ORDER BY calls DESC LIMIT 2")?
            .query_map([], |row| Ok((row.get(0)?, row.get(1)?)))?
            .collect::<Result<Vec<(String, i64)>>>()?;
        let [(largest, calls), others @ ..] = counts.as_slice() else {
            return Ok(());
        };
        // The account with the most calls has its oldest calls removed, until it has as many as the account with the
        // second most.
        let more = calls - others.first().map_or(0, |(_, calls)| *calls);
        let removed = step
            .prepare_cached(
                "DELETE FROM calls WHERE number IN
                 (SELECT number FROM calls WHERE account = ?1 ORDER BY number LIMIT ?2)",
            )?
            .execute(params![largest, more.clamp(1, left)])?;
        if removed == 0 {
            return Ok(());
        }
        left -= integer(removed);
    }
    Ok(())
}

fn integer(count: usize) -> i64 {
    i64::try_from(count).unwrap_or(i64::MAX)
}
