//! Events, alert levels and documents in the ledger file.

use std::{collections::HashMap, time::Duration};

use rusqlite::{Connection, Result, Row, params};

use super::{
    SqliteLedger,
    rows::{count, integer, optional_parsed},
};
use crate::{
    account::AccountId,
    contract::{
        BookError, Document, Documents, EVENTS_AT_ONCE_MAX, EVENTS_MAX, EventStore, LeaderLease,
        OnceEvent,
    },
    durable::file::{each_row, from_json, parsed, to_json},
    embedded::{State, admin},
    happening::{Event, Levels, Watched},
};

/// Adds events to the file, and deletes the oldest events if there are more than the limit.
pub(super) fn write(conn: &Connection, events: &[Event], once: Option<&String>) -> Result<()> {
    let Some(last) = events.last() else {
        return Ok(());
    };
    let sql = "INSERT INTO events (number, at_ms, account, key, what, once) VALUES (?1, ?2, ?3, ?4, ?5, ?6)
               ON CONFLICT DO NOTHING";
    let mut insert = conn.prepare_cached(sql)?;
    for event in events {
        insert.execute(params![
            integer(event.number),
            integer(event.at_ms),
            event.account.as_deref(),
            event.key.as_deref(),
            to_json(&event.what)?,
            once,
        ])?;
    }
    let sql = "DELETE FROM events WHERE number <= ?1";
    let oldest = integer(last.number.saturating_sub(EVENTS_MAX));
    conn.prepare_cached(sql)?.execute([oldest])?;
    Ok(())
}

const KEY_LEVELS: &str = "INSERT INTO levels (account, key, levels) VALUES (?1, ?2, ?3)
    ON CONFLICT (account, key) DO UPDATE SET levels = excluded.levels";
const GROUP_LEVELS: &str = "INSERT INTO group_levels (account, id, levels) VALUES (?1, ?2, ?3)
    ON CONFLICT (account, id) DO UPDATE SET levels = excluded.levels";

pub(super) fn write_levels(
    conn: &Connection,
    account: &AccountId,
    of: &Watched,
    levels: Levels,
) -> Result<()> {
    // Alert levels of groups are in a separate table, which was added later: an earlier version treats every row of
    // `levels` as alert levels of the account or of one of its keys.
    let (sql, id) = match of {
        Watched::Balance => (KEY_LEVELS, ""),
        Watched::Key(key) => (KEY_LEVELS, &**key),
        Watched::Group(group) => (GROUP_LEVELS, &**group),
    };
    let row = params![&**account, id, levels.to_string()];
    conn.prepare_cached(sql)?.execute(row)?;
    Ok(())
}

pub(super) fn write_document(conn: &Connection, document: &Document) -> Result<()> {
    if document.text.is_empty() {
        let sql = "DELETE FROM notes WHERE name = ?1";
        conn.prepare_cached(sql)?.execute([&document.name])?;
        return Ok(());
    }
    let sql = "INSERT INTO notes (name, version, text) VALUES (?1, ?2, ?3)
               ON CONFLICT (name) DO UPDATE SET version = excluded.version, text = excluded.text";
    let row = params![document.name, integer(document.version), document.text];
    conn.prepare_cached(sql)?.execute(row)?;
    Ok(())
}

/// Restores the event numbers, alert levels and documents into memory. Accounts, keys and groups must be restored
/// first.
pub(super) fn load(conn: &Connection, state: &mut State) -> Result<()> {
    let last = "SELECT coalesce(max(number), 0) FROM events";
    let last = conn.query_row(last, [], |row| count(row, 0))?;
    let reported = conn
        .prepare("SELECT once, at_ms FROM events WHERE once IS NOT NULL")?
        .query_map([], |row| Ok((row.get(0)?, count(row, 1)?)))?
        .collect::<Result<HashMap<_, _>>>()?;
    state.restore_feed(last, reported);
    each_row(conn, "SELECT account, key, levels FROM levels", |row| {
        let key: String = row.get(1)?;
        let of = match key.as_str() {
            "" => Watched::Balance,
            _ => Watched::Key(parsed(row, 1)?),
        };
        // Alert levels whose account, key or group does not exist are ignored.
        let _ = state.put_levels(&parsed(row, 0)?, &of, parsed(row, 2)?);
        Ok(())
    })?;
    each_row(
        conn,
        "SELECT account, id, levels FROM group_levels",
        |row| {
            let of = Watched::Group(parsed(row, 1)?);
            let _ = state.put_levels(&parsed(row, 0)?, &of, parsed(row, 2)?);
            Ok(())
        },
    )?;
    each_row(conn, "SELECT name, version, text FROM notes", |row| {
        state.restore_document(Document {
            name: row.get(0)?,
            version: count(row, 1)?,
            text: row.get(2)?,
        });
        Ok(())
    })
}

fn read_event(row: &Row<'_>) -> Result<Event> {
    Ok(Event {
        number: count(row, 0)?,
        at_ms: count(row, 1)?,
        account: optional_parsed(row, 2)?,
        key: optional_parsed(row, 3)?,
        what: from_json(row, 4)?,
    })
}

impl EventStore for SqliteLedger {
    admin::event_store!();

    /// Returns only events that are committed to the file.
    async fn events(&self, after: u64, limit: usize) -> Result<Vec<Event>, BookError> {
        let read = self.read(move |conn| {
            let sql = "SELECT number, at_ms, account, key, what FROM events
                       WHERE number > ?1 ORDER BY number LIMIT ?2";
            let limit = integer(limit.clamp(1, EVENTS_AT_ONCE_MAX) as u64);
            conn.prepare_cached(sql)?
                .query_map(params![integer(after), limit], read_event)?
                .collect()
        });
        Ok(read.await?)
    }
}

admin::documents!(SqliteLedger);
