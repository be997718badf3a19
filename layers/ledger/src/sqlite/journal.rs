//! Journals in the ledger file: the entries and receipts of an account in one order, read in pages.
//!
//! The lines of a journal are ordered by time. Within one millisecond, entries come before calls; entries are ordered
//! by id, and calls by row number. `State::journal_time` and `State::entry_time` choose the times of new lines so that
//! no new line comes before an existing one. Therefore a reader that has read a page never misses a line.

use std::{fmt, str::FromStr};

use rusqlite::{Connection, OptionalExtension, Params, Result, params};

use super::rows::{
    COUNTED, COUNTED_COLUMNS, RECEIPT, amount, count, count_receipt, integer, read_receipt,
};
use crate::{
    BoxError,
    account::AccountId,
    contract::{
        BookError, Booked, Entry, JOURNAL_LINES_MAX, JournalLine, JournalPage, JournalPart, Receipt,
    },
    number::RequestNumber,
    rollup::{Tally, UnrolledLines},
};

const CALLS_FORWARD: &str =
    "account = ?1 AND (at_ms, rowid) > (?2, ?3) AND at_ms < ?4 ORDER BY at_ms, rowid LIMIT ?5";
const CALLS_BACKWARD: &str = "account = ?1 AND (at_ms, rowid) < (?2, ?3) AND at_ms >= ?4 ORDER BY at_ms DESC, rowid DESC LIMIT ?5";

pub(super) fn entry(conn: &Connection, account: &AccountId, id: String) -> Result<Option<Entry>> {
    let sql = "SELECT amount, reason FROM entries WHERE account = ?1 AND id = ?2";
    let mut select = conn.prepare_cached(sql)?;
    let found = select.query_row(params![&**account, id], |row| {
        Ok((amount(row, 0)?, row.get(1)?))
    });
    let found = found.optional()?;
    Ok(found.map(|(amount, reason)| Entry { id, amount, reason }))
}

/// A validated request for a part of a journal.
#[derive(Debug)]
pub(super) struct JournalRange {
    account: AccountId,
    since: i64,
    until: i64,
    after: Option<JournalCursor>,
    behind: Option<JournalCursor>,
    newest_first: bool,
    limit: usize,
}

impl JournalRange {
    pub(super) fn for_part(account: &AccountId, part: &JournalPart<'_>) -> Result<Self, BookError> {
        let unreadable =
            |text: &str| BookError::Unavailable(format!("{text:?} is not a journal cursor").into());
        let end = match part.end {
            None => u64::MAX,
            Some(end) => end.parse::<u64>().map_err(|_| unreadable(end))?,
        };
        let place = |text: Option<&str>| {
            let parsed =
                text.map(|text| text.parse::<JournalCursor>().map_err(|_| unreadable(text)));
            parsed.transpose()
        };
        let (after, behind) = (place(part.after)?, place(part.behind)?);
        let behind = behind.filter(|_| part.newest_first);
        let since = integer(part.since_ms);
        Ok(Self {
            account: account.clone(),
            since: (behind.as_ref()).map_or(since, |behind| since.max(behind.at_ms)),
            until: integer(part.until_ms.min(end.saturating_add(1))),
            after,
            behind,
            newest_first: part.newest_first,
            limit: part.limit.clamp(1, JOURNAL_LINES_MAX),
        })
    }

    /// Reads one page from a single snapshot of the file.
    pub(super) fn read(&self, conn: &Connection) -> Result<JournalPage> {
        let lines = self.placed(conn)?;
        let next = match lines.last() {
            Some((place, _)) if lines.len() == self.limit => Some(place.to_string()),
            _ => None,
        };
        Ok(JournalPage {
            lines: lines.into_iter().map(|(_, line)| line).collect(),
            next,
        })
    }

    /// Sums the calls of a page, oldest first, and returns the position at the end of the page. Reads only the columns
    /// that the sums need.
    pub(super) fn unrolled(&self, conn: &Connection) -> Result<UnrolledLines> {
        let entries = self.entries(conn)?;
        let mut calls = Tally::default();
        let (mut count, mut last) = (0, None);
        let sql = format!("SELECT {COUNTED}, rowid FROM receipts WHERE {CALLS_FORWARD}");
        let mut select = conn.prepare_cached(&sql)?;
        let mut rows = select.query(self.calls_params())?;
        while let Some(row) = rows.next()? {
            count_receipt(row, &mut calls)?;
            count += 1;
            last = Some(JournalCursor {
                at_ms: row.get(0)?,
                line: Line::Call(row.get(COUNTED_COLUMNS)?),
            });
        }
        let is_full = count == self.limit;
        // Sums contain no entries, but the position at the end of the page must also be after the page's entries. If
        // the page is full, entries after its last call belong to the next page.
        if !is_full {
            let newest = entries.last().map(|(place, _)| place.clone());
            last = last.max(newest);
        }
        let read = entries
            .iter()
            .filter(|(place, _)| Some(place) <= last.as_ref());
        Ok(UnrolledLines {
            calls,
            lines: count + read.count(),
            place: last.map(|place| place.to_string()),
            more: is_full || entries.len() == self.limit,
            entries: Vec::new(),
        })
    }

    /// Reads all entries of this part of the journal, without a limit.
    pub(super) fn all_entries(mut self, conn: &Connection) -> Result<Vec<JournalLine>> {
        self.limit = usize::MAX;
        let entries = self.entries(conn)?.into_iter();
        Ok(entries.map(|(_, line)| line).collect())
    }

    fn placed(&self, conn: &Connection) -> Result<Vec<(JournalCursor, JournalLine)>> {
        let mut lines = self.entries(conn)?;
        lines.extend(self.calls(conn)?);
        lines.sort_by(|(a, _), (b, _)| a.cmp(b));
        if self.newest_first {
            lines.reverse();
        }
        lines.truncate(self.limit);
        // The bound `behind` can be between two lines of the same millisecond, but the query selects full milliseconds.
        // So the lines up to the bound are removed here.
        if let Some(behind) = &self.behind {
            lines.retain(|(place, _)| place > behind);
        }
        Ok(lines)
    }

    fn entries(&self, conn: &Connection) -> Result<Vec<(JournalCursor, JournalLine)>> {
        // In the comparison, an id of NULL means the end of the millisecond, because no id compares as greater or
        // less than NULL.
        let (at_ms, id) = match &self.after {
            None => (self.first_ms(), None),
            Some(JournalCursor { at_ms, line }) => match line {
                Line::Entry(id) => (*at_ms, Some(id)),
                Line::Call(_) if self.newest_first => (at_ms.saturating_add(1), None),
                Line::Call(_) => (*at_ms, None),
            },
        };
        let sql = if self.newest_first {
            "SELECT id, at_ms, amount, reason FROM entries
             WHERE account = ?1 AND (at_ms, id) < (?2, ?3) AND at_ms >= ?4 ORDER BY at_ms DESC, id DESC LIMIT ?5"
        } else {
            "SELECT id, at_ms, amount, reason FROM entries
             WHERE account = ?1 AND (at_ms, id) > (?2, ?3) AND at_ms < ?4 ORDER BY at_ms, id LIMIT ?5"
        };
        conn.prepare_cached(sql)?
            .query_map(
                params![
                    &*self.account,
                    at_ms,
                    id,
                    self.last_ms(),
                    self.limit_for_sql()
                ],
                |row| {
                    let id: String = row.get(0)?;
                    let place = JournalCursor {
                        at_ms: row.get(1)?,
                        line: Line::Entry(id.clone()),
                    };
                    let line = JournalLine::Entry {
                        id,
                        at_ms: count(row, 1)?,
                        account: self.account.clone(),
                        amount_rub: amount(row, 2)?,
                        reason: row.get(3)?,
                    };
                    Ok((place, line))
                },
            )?
            .collect()
    }

    fn calls(&self, conn: &Connection) -> Result<Vec<(JournalCursor, JournalLine)>> {
        let part = if self.newest_first {
            CALLS_BACKWARD
        } else {
            CALLS_FORWARD
        };
        let sql = format!("SELECT {RECEIPT}, rowid AS place FROM receipts WHERE {part}");
        conn.prepare_cached(&sql)?
            .query_map(self.calls_params(), |row| {
                let place = JournalCursor {
                    at_ms: row.get(1)?,
                    line: Line::Call(row.get("place")?),
                };
                Ok((place, JournalLine::Call(read_receipt(row)?)))
            })?
            .collect()
    }

    /// Returns the parameters of the queries [`CALLS_FORWARD`] and [`CALLS_BACKWARD`].
    fn calls_params(&self) -> impl Params + use<'_> {
        let (at_ms, row) = match &self.after {
            None => (self.first_ms(), None),
            Some(JournalCursor { at_ms, line }) => match line {
                Line::Entry(_) if self.newest_first => (*at_ms, None),
                Line::Entry(_) => (at_ms.saturating_sub(1), None),
                Line::Call(row) => (*at_ms, Some(*row)),
            },
        };
        (
            &*self.account,
            at_ms,
            row,
            self.last_ms(),
            self.limit_for_sql(),
        )
    }

    /// Returns the time at which reading starts. Lines at this time itself are not read.
    fn first_ms(&self) -> i64 {
        if self.newest_first {
            self.until
        } else {
            self.since - 1
        }
    }

    /// Returns the time at which reading ends.
    fn last_ms(&self) -> i64 {
        if self.newest_first {
            self.since
        } else {
            self.until
        }
    }

    fn limit_for_sql(&self) -> i64 {
        i64::try_from(self.limit).unwrap_or(i64::MAX)
    }
}

/// Returns the time of the newest call in each range. The query needs only the index. The ranges must be read
/// backwards.
pub(super) fn newest_ms(conn: &Connection, stretches: &[JournalRange]) -> Result<Vec<Option<u64>>> {
    let sql = "SELECT at_ms FROM receipts WHERE account = ?1 AND at_ms < ?2 AND at_ms >= ?3
                   AND (at_ms > ?3 OR rowid > ?4) ORDER BY at_ms DESC LIMIT 1";
    let mut select = conn.prepare_cached(sql)?;
    let newest = stretches.iter().map(|stretch| {
        let behind = stretch.behind.as_ref();
        let behind = behind.filter(|behind| behind.at_ms == stretch.since);
        let row = match behind.map(|behind| &behind.line) {
            Some(Line::Call(row)) => *row,
            // Within a millisecond, entries come before calls. So every call of this millisecond comes after the
            // position.
            Some(Line::Entry(_)) | None => i64::MIN,
        };
        let requested = params![&*stretch.account, stretch.until, stretch.since, row];
        let at_ms: Option<i64> = select.query_row(requested, |row| row.get(0)).optional()?;
        Ok(at_ms.and_then(|at_ms| u64::try_from(at_ms).ok()))
    });
    newest.collect()
}

/// Returns the time of the line at a position; 0 if the position is invalid.
pub(super) fn place_ms(place: &str) -> u64 {
    let cursor: Option<JournalCursor> = place.parse().ok();
    cursor.map_or(0, |cursor| u64::try_from(cursor.at_ms).unwrap_or_default())
}

/// The position of a line in its journal: its time, and its place within the millisecond.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct JournalCursor {
    at_ms: i64,
    line: Line,
}

/// The place of a line within its millisecond. The variants are in the order of the journal: entries, then calls.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Line {
    Entry(String),
    Call(i64),
}

impl fmt::Display for JournalCursor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.line {
            Line::Entry(id) => write!(f, "{}:entry:{id}", self.at_ms),
            Line::Call(row) => write!(f, "{}:call:{row}", self.at_ms),
        }
    }
}

impl FromStr for JournalCursor {
    type Err = BoxError;

    fn from_str(text: &str) -> Result<Self, BoxError> {
        let mut parts = text.splitn(3, ':');
        let (Some(at_ms), Some(kind), Some(line)) = (parts.next(), parts.next(), parts.next())
        else {
            return Err("a journal cursor must have three parts".into());
        };
        let line = match kind {
            "entry" => Line::Entry(line.to_owned()),
            "call" => Line::Call(line.parse()?),
            _ => return Err("a journal cursor must name an entry or a call".into()),
        };
        Ok(Self {
            at_ms: at_ms.parse()?,
            line,
        })
    }
}

/// Returns the calls in `numbers` that have a receipt of a charge. A disputed receipt does not count.
pub(super) fn settled_among(
    conn: &Connection,
    numbers: &[RequestNumber],
) -> Result<Vec<RequestNumber>> {
    let mut settled = Vec::new();
    for number in numbers {
        let receipt: Option<Receipt> = super::rows::receipt(conn, *number)?;
        if receipt.is_some_and(|receipt| receipt.booked != Booked::Stale) {
            settled.push(*number);
        }
    }
    Ok(settled)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn journal_cursor_round_trips_and_sorts_entries_before_calls() {
        let places = [
            "4:call:9",
            "5:entry:a",
            "5:entry:invoice: 1/2026",
            "5:call:2",
            "5:call:10",
            "6:entry:",
        ];
        let read = places.map(|text| text.parse::<JournalCursor>().unwrap());
        for (place, text) in read.iter().zip(places) {
            assert_eq!(place.to_string(), text);
        }
        assert!(read.is_sorted());
        for text in ["", "5", "5:call", "5:call:a", "x:call:1", "5:other:1"] {
            assert!(text.parse::<JournalCursor>().is_err(), "{text}");
        }
    }
}
