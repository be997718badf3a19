//! The roll-up's sums in the ledger file. The writer thread changes them in short transactions.

use std::{collections::HashMap, ops::Range};

use rusqlite::{Connection, OptionalExtension, Result, Row, params};

use super::{
    SqliteLedger,
    journal::{self, JournalRange},
    rows::{count, integer},
};
use crate::{
    account::AccountId,
    contract::{BookError, JournalLine, JournalPage, JournalPart},
    durable::file::{from_json, parsed, to_json},
    rollup::{Change, Marks, Rolled, Rollup, RowId, Scope, Sums, UnrolledLines},
};

/// The name of the row in `sums_places` that contains the version. It cannot collide with an account, because no
/// account has an empty name.
const VERSION: &str = "";
/// The scope of a row without words and sums. The row's time is the end of the last month that is summed. Earlier
/// versions neither use nor change this row.
const MONTHS_END: &str = "=months end";

pub(super) fn version(conn: &Connection) -> Result<u64> {
    let sql = "SELECT CAST(place AS INTEGER) FROM sums_places WHERE account = ?1";
    let version = conn.query_row(sql, [VERSION], |row| count(row, 0));
    Ok(version.optional()?.unwrap_or_default())
}

pub(super) fn write(conn: &Connection, change: &Change, version: u64) -> Result<()> {
    let sql = "INSERT INTO sums (scope, at_ms, words, sums) VALUES (?1, ?2, ?3, ?4)
               ON CONFLICT (scope, at_ms, words) DO UPDATE SET sums = excluded.sums";
    let mut insert = conn.prepare_cached(sql)?;
    for (id, sums) in &change.rows {
        insert.execute(params![
            id.scope.word(),
            integer(id.at_ms),
            to_json(&id.words)?,
            to_json(sums)?
        ])?;
    }
    for (account, place) in &change.places {
        write_place(conn, account, place)?;
    }
    if let Some(end_ms) = change.months_end_ms {
        let sql = "INSERT OR IGNORE INTO sums (scope, at_ms, words, sums) VALUES (?1, ?2, '', '')";
        conn.execute(sql, params![MONTHS_END, integer(end_ms)])?;
    }
    write_place(conn, VERSION, &version.to_string())
}

fn months_end_ms(conn: &Connection) -> Result<u64> {
    let sql = "SELECT at_ms FROM sums WHERE scope = ?1 ORDER BY at_ms DESC LIMIT 1";
    let mut select = conn.prepare_cached(sql)?;
    let end_ms = select.query_row([MONTHS_END], |row| count(row, 0));
    Ok(end_ms.optional()?.unwrap_or_default())
}

fn write_place(conn: &Connection, account: &str, place: &str) -> Result<()> {
    let sql = "INSERT INTO sums_places (account, place) VALUES (?1, ?2)
               ON CONFLICT (account) DO UPDATE SET place = excluded.place";
    conn.prepare_cached(sql)?.execute([account, place])?;
    Ok(())
}

pub(super) fn clear(conn: &Connection, version: u64) -> Result<()> {
    conn.execute_batch("DELETE FROM sums; DELETE FROM sums_places;")?;
    write_place(conn, VERSION, &version.to_string())
}

fn places(conn: &Connection, of: Option<&AccountId>) -> Result<HashMap<AccountId, String>> {
    let read = |row: &Row<'_>| Ok((parsed(row, 0)?, row.get(1)?));
    match of {
        Some(id) => conn
            .prepare_cached("SELECT account, place FROM sums_places WHERE account = ?1")?
            .query_map([&**id], read)?
            .collect(),
        None => conn
            .prepare_cached("SELECT account, place FROM sums_places WHERE account <> ?1")?
            .query_map([VERSION], read)?
            .collect(),
    }
}

fn rolled(conn: &Connection, parts: &[(Scope, Range<u64>)]) -> Result<Rolled> {
    // One transaction, so that everything is read at one moment.
    let moment = conn.unchecked_transaction()?;
    let of = parts.iter().find_map(|(scope, _)| scope.account());
    let mut rolled = Rolled {
        rows: Vec::new(),
        places: places(&moment, of)?,
        months_end_ms: months_end_ms(&moment)?,
    };
    let sql = "SELECT at_ms, words, sums FROM sums WHERE scope = ?1 AND at_ms >= ?2 AND at_ms < ?3";
    let mut select = moment.prepare_cached(sql)?;
    for (scope, time) in parts {
        let times = params![scope.word(), integer(time.start), integer(time.end)];
        let found = select.query_map(times, |row| {
            Ok((count(row, 0)?, from_json(row, 1)?, from_json(row, 2)?))
        })?;
        for row in found {
            rolled.rows.push(row?);
        }
    }
    Ok(rolled)
}

fn sums_at(conn: &Connection, ids: &[RowId]) -> Result<Vec<Option<Sums>>> {
    let sql = "SELECT sums FROM sums WHERE scope = ?1 AND at_ms = ?2 AND words = ?3";
    let mut select = conn.prepare_cached(sql)?;
    ids.iter()
        .map(|id| {
            let row = params![id.scope.word(), integer(id.at_ms), to_json(&id.words)?];
            select.query_row(row, |row| from_json(row, 0)).optional()
        })
        .collect()
}

impl Rollup for SqliteLedger {
    async fn journals(
        &self,
        parts: &[(&AccountId, JournalPart<'_>)],
    ) -> Result<Vec<Option<JournalPage>>, BookError> {
        let there = self.look(|state| {
            let ids = parts.iter().map(|(id, _)| state.account(id).is_ok());
            ids.collect::<Vec<bool>>()
        })?;
        let stretches = parts.iter().zip(there);
        let stretches = stretches
            .map(|((id, part), there)| there.then(|| JournalRange::for_part(id, part)).transpose());
        let stretches = stretches.collect::<Result<Vec<_>, BookError>>()?;
        let pages = self.read(move |conn| {
            let stretches = stretches.iter();
            let pages = stretches.map(|some| some.as_ref().map(|some| some.read(conn)).transpose());
            pages.collect()
        });
        Ok(pages.await?)
    }

    async fn newest_ms(
        &self,
        parts: &[(&AccountId, JournalPart<'_>)],
    ) -> Result<Option<Vec<Option<u64>>>, BookError> {
        let stretches = parts
            .iter()
            .map(|(id, part)| JournalRange::for_part(id, part));
        let stretches = stretches.collect::<Result<Vec<_>, BookError>>()?;
        let newest = self.read(move |conn| journal::newest_ms(conn, &stretches));
        Ok(Some(newest.await?))
    }

    async fn marks(&self) -> Result<Marks, BookError> {
        // Marks and sums are read from the file and not from memory, because sums do not contain queued changes.
        let marks = self.read(|conn| {
            let moment = conn.unchecked_transaction()?;
            Ok(Marks {
                version: version(&moment)?,
                places: places(&moment, None)?,
                entries: None,
                months_end_ms: months_end_ms(&moment)?,
            })
        });
        Ok(marks.await?)
    }

    async fn rolled(&self, parts: &[(Scope, Range<u64>)]) -> Result<Rolled, BookError> {
        let parts = parts.to_vec();
        Ok(self.read(move |conn| rolled(conn, &parts)).await?)
    }

    async fn oldest_sums_ms(&self, scope: &Scope) -> Result<Option<u64>, BookError> {
        let scope = scope.clone();
        let oldest = self.read(move |conn| {
            let sql = "SELECT at_ms FROM sums WHERE scope = ?1 ORDER BY at_ms LIMIT 1";
            let mut select = conn.prepare_cached(sql)?;
            select
                .query_row([scope.word()], |row| count(row, 0))
                .optional()
        });
        Ok(oldest.await?)
    }

    fn place_ms(&self, place: &str) -> u64 {
        journal::place_ms(place)
    }

    async fn sums_at(&self, ids: &[RowId]) -> Result<Vec<Option<Sums>>, BookError> {
        let ids = ids.to_vec();
        Ok(self.read(move |conn| sums_at(conn, &ids)).await?)
    }

    async fn unrolled_lines(
        &self,
        account: &AccountId,
        after: Option<&str>,
        before_ms: u64,
    ) -> Result<UnrolledLines, BookError> {
        let part = JournalPart {
            until_ms: before_ms,
            after,
            ..JournalPart::whole()
        };
        let stretch = JournalRange::for_part(account, &part)?;
        Ok(self.read(move |conn| stretch.unrolled(conn)).await?)
    }

    /// Reads payments and corrections from their own table. Unlike other stores, this one has no copy of them next to
    /// the sums.
    async fn entries(
        &self,
        account: &AccountId,
        end: &str,
    ) -> Result<Option<Vec<JournalLine>>, BookError> {
        let part = JournalPart {
            end: Some(end),
            ..JournalPart::whole()
        };
        let stretch = JournalRange::for_part(account, &part)?;
        Ok(Some(
            self.read(move |conn| stretch.all_entries(conn)).await?,
        ))
    }

    async fn change_sums(&self, change: &Change) -> Result<Option<u64>, BookError> {
        self.change(|state, _| Ok(state.change_sums(change))).await
    }

    async fn clear_sums(&self) -> Result<(), BookError> {
        self.change(|state, _| Ok(state.clear_sums())).await
    }
}
