//! An account's journal in Redis, read in pages.

use std::{collections::HashMap, fmt, str::FromStr};

use super::{RedisLedger, books::receipt_of, names::account_key};
use crate::{
    account::AccountId,
    conn::{OPERATOR_TIMEOUT, RedisFault},
    contract::{BookError, JOURNAL_LINES_MAX, JournalLine, JournalPage, JournalPart},
    money::MicroRub,
    number::RequestNumber,
};

/// A line's id may tell a later time than the line: by an hour, after a failover to a server whose clock
/// is so far behind, since ids never go back.
const ID_LATER_MS_MAX: u64 = 3_600_000;

/// Which lines of a stream, both ends among them; `after` alone is not.
#[derive(Clone, Copy, Debug)]
pub(super) struct JournalRange {
    pub(super) after: Option<JournalCursor>,
    pub(super) newest_first: bool,
    pub(super) since_ms: u64,
    pub(super) end: JournalCursor,
    pub(super) limit: usize,
}

/// A line's place: the id that the server gave it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct JournalCursor {
    ms: u64,
    sequence: u64,
}

/// A line as it stands in the stream.
pub(super) type RawLine = (String, HashMap<String, String>);

impl RedisLedger {
    /// A page of the journal. An account that has no line yet must at least be there.
    pub(super) async fn journal_page(
        &self,
        account: &AccountId,
        part: &JournalPart<'_>,
    ) -> Result<JournalPage, BookError> {
        let Some(stretch) = JournalRange::of(part)? else {
            return Ok(JournalPage::default());
        };
        let raw = self.raw_lines(account, &stretch).await?;
        if raw.is_empty() {
            self.must_exist(account).await?;
        }
        let next = stretch.next(&raw);
        let times = part.since_ms..part.until_ms;
        let mut lines = Vec::with_capacity(raw.len());
        for (place, fields) in &raw {
            let line = line_of(account, place, fields)?;
            if times.contains(&line.at_ms()) {
                lines.push(line);
            }
        }
        Ok(JournalPage { lines, next })
    }

    pub(super) async fn raw_lines(
        &self,
        account: &AccountId,
        stretch: &JournalRange,
    ) -> Result<Vec<RawLine>, RedisFault> {
        let (since, end) = (stretch.since_ms.to_string(), stretch.end.to_string());
        let behind = stretch.after.map(|place| format!("({place}"));
        let (command, from, to) = if stretch.newest_first {
            ("XREVRANGE", behind.unwrap_or(end), since)
        } else {
            ("XRANGE", behind.unwrap_or(since), end)
        };
        let (key, count) = (account_key(account, ":j"), stretch.limit.to_string());
        self.0
            .conn
            .command(
                &[command, &key, &from, &to, "COUNT", &count],
                OPERATOR_TIMEOUT,
            )
            .await
    }

    async fn must_exist(&self, account: &AccountId) -> Result<(), BookError> {
        let key = account_key(account, "");
        let there: bool = self
            .0
            .conn
            .command(&["HEXISTS", &key, "b"], OPERATOR_TIMEOUT)
            .await?;
        if there {
            Ok(())
        } else {
            Err(BookError::NotFound)
        }
    }
}

impl JournalRange {
    /// `None` where nothing can lie.
    pub(super) fn of(part: &JournalPart<'_>) -> Result<Option<Self>, BookError> {
        if part.since_ms >= part.until_ms {
            return Ok(None);
        }
        let mut end = JournalCursor {
            ms: part.until_ms.saturating_add(ID_LATER_MS_MAX),
            sequence: u64::MAX,
        };
        if let Some(books) = part.end {
            end = end.min(books.parse()?);
        }
        let after: Option<JournalCursor> = match part.after {
            None => None,
            Some(after) => Some(after.parse()?),
        };
        // Backwards, the place of a page before lies within the books unless it was asked for without them.
        let starts_behind = match after {
            Some(after) if part.newest_first => after.ms < part.since_ms || after > end,
            Some(after) => after >= end,
            None => part.since_ms > end.ms,
        };
        Ok((!starts_behind).then(|| Self {
            after,
            newest_first: part.newest_first,
            since_ms: part.since_ms,
            end,
            limit: part.limit.clamp(1, JOURNAL_LINES_MAX),
        }))
    }

    /// Where to go on behind these lines; `None` at the end.
    pub(super) fn next(&self, lines: &[RawLine]) -> Option<String> {
        let (last, _) = lines.last()?;
        (lines.len() == self.limit).then(|| last.clone())
    }
}

impl fmt::Display for JournalCursor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}-{}", self.ms, self.sequence)
    }
}

impl FromStr for JournalCursor {
    type Err = RedisFault;

    fn from_str(text: &str) -> Result<Self, RedisFault> {
        let no_place = || RedisFault::Unexpected(format!("{text:?} is no place in a journal"));
        let (ms, sequence) = text.split_once('-').ok_or_else(no_place)?;
        Ok(Self {
            ms: ms.parse().map_err(|_| no_place())?,
            sequence: sequence.parse().map_err(|_| no_place())?,
        })
    }
}

pub(super) fn line_of(
    account: &AccountId,
    place: &str,
    fields: &HashMap<String, String>,
) -> Result<JournalLine, RedisFault> {
    let unexpected = |name: &str| {
        RedisFault::Unexpected(format!("journal of {account} at {place}: field {name}"))
    };
    let field = |name: &str| fields.get(name).ok_or_else(|| unexpected(name));
    match field("kind")?.as_str() {
        "call" => {
            let number: RequestNumber =
                field("number")?.parse().map_err(|_| unexpected("number"))?;
            receipt_of(account, number, fields).map(JournalLine::Call)
        }
        "entry" => Ok(JournalLine::Entry {
            id: field("id")?.clone(),
            at_ms: field("at")?.parse().map_err(|_| unexpected("at"))?,
            account: account.clone(),
            amount_rub: field("amount")?
                .parse()
                .map(MicroRub::new)
                .map_err(|_| unexpected("amount"))?,
            reason: Some(field("reason")?.clone()).filter(|reason| !reason.is_empty()),
        }),
        _ => Err(unexpected("kind")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_stretch_ends_with_its_time_or_with_the_books() {
        let part = JournalPart::whole();
        for (part, end) in [
            (part, Some("18446744073709551615-18446744073709551615")),
            (
                JournalPart {
                    until_ms: 0,
                    ..part
                },
                None,
            ),
            (
                JournalPart {
                    until_ms: 8,
                    ..part
                },
                Some("3600008-18446744073709551615"),
            ),
            (
                JournalPart {
                    end: Some("7-3"),
                    ..part
                },
                Some("7-3"),
            ),
            (
                JournalPart {
                    end: Some("7200000-3"),
                    until_ms: 7,
                    ..part
                },
                Some("3600007-18446744073709551615"),
            ),
            (
                JournalPart {
                    end: Some("7-3"),
                    after: Some("7-2"),
                    ..part
                },
                Some("7-3"),
            ),
            (
                JournalPart {
                    end: Some("7-3"),
                    after: Some("7-3"),
                    ..part
                },
                None,
            ),
            (
                JournalPart {
                    since_ms: 9,
                    until_ms: 9,
                    ..part
                },
                None,
            ),
        ] {
            let found = JournalRange::of(&part).unwrap();
            assert_eq!(
                found.map(|found| found.end.to_string()).as_deref(),
                end,
                "{part:?}"
            );
        }
        for after in ["", "7", "7-", "x-1"] {
            let part = JournalPart {
                after: Some(after),
                ..part
            };
            assert!(JournalRange::of(&part).is_err(), "{after}");
        }
    }

    #[test]
    fn lines_are_read_as_they_were_written() {
        let id: AccountId = "acme".parse().unwrap();
        let fields = |reason: &str| {
            [
                ("kind", "entry"),
                ("at", "5"),
                ("id", "p-1"),
                ("amount", "-7"),
                ("reason", reason),
            ]
            .map(|(name, value)| (name.to_owned(), value.to_owned()))
            .into()
        };
        for (given, read) in [("", None), ("paid twice", Some("paid twice".to_owned()))] {
            let line = line_of(&id, "5-0", &fields(given)).unwrap();
            let JournalLine::Entry {
                amount_rub, reason, ..
            } = line
            else {
                panic!("{line:?}")
            };
            assert_eq!((amount_rub, reason), (MicroRub::new(-7), read));
        }
        let mut other: HashMap<String, String> = fields("");
        other.insert("kind".into(), "loan".into());
        let error = line_of(&id, "5-0", &other).unwrap_err();
        assert!(error.to_string().ends_with("at 5-0: field kind"), "{error}");
    }
}
