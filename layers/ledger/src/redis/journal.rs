//! An account's journal in Redis, read in pages.

use std::{collections::HashMap, fmt, str::FromStr};

use super::{RedisLedger, booked_of, books::receipt_of, names::account_key};
use crate::{
    account::{AccountId, KeyId},
    conn::{OPERATOR_TIMEOUT, RedisFault},
    contract::{BookError, JOURNAL_LINES_MAX, JournalLine, JournalPage, JournalPart, Receipt},
    money::MicroRub,
    number::RequestNumber,
};

/// A line's id may tell a later time than the line: by an hour, after a failover to a server whose clock
/// is so far behind, since ids never go back.
const ID_LATER_MS_MAX: u64 = 3_600_000;

/// How many entries are asked for first: one may be a turn of a lease, with many calls.
const ENTRIES_FIRST: usize = 64;
const ENTRIES_MAX: usize = 500;

/// Which lines of a stream, both ends among them; `after` alone is not.
#[derive(Clone, Copy, Debug)]
pub(super) struct JournalRange {
    pub(super) after: Option<JournalCursor>,
    pub(super) newest_first: bool,
    pub(super) since_ms: u64,
    pub(super) end: StreamId,
    pub(super) limit: usize,
}

/// The id that the server gave an entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct StreamId {
    ms: u64,
    sequence: u64,
}

/// How far somebody has read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct JournalCursor {
    place: StreamId,
    /// So many lines of the entry, in the direction of the reader; `None`: all of it.
    read: Option<usize>,
}

/// An entry as it stands in the stream.
type RawEntry = (String, HashMap<String, String>);

/// A line, and the entry that it is in.
#[derive(Debug)]
pub(super) struct Placed {
    pub(super) place: String,
    /// It was charged with others, in a turn of a lease.
    pub(super) of_turn: bool,
    pub(super) line: JournalLine,
}

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
        let (placed, next) = self.placed_lines(account, stretch).await?;
        if placed.is_empty() {
            self.must_exist(account).await?;
        }
        let times = part.since_ms..part.until_ms;
        let lines = placed.into_iter().map(|placed| placed.line);
        let lines = lines.filter(|line| times.contains(&line.at_ms()));
        Ok(JournalPage {
            lines: lines.collect(),
            next,
        })
    }

    /// The lines of a stretch, as many as it may have, and where to go on; `None` at the end.
    pub(super) async fn placed_lines(
        &self,
        account: &AccountId,
        mut stretch: JournalRange,
    ) -> Result<(Vec<Placed>, Option<String>), RedisFault> {
        let mut placed: Vec<Placed> = Vec::new();
        let mut count = ENTRIES_FIRST;
        loop {
            let left = stretch.limit - placed.len();
            let asked = count.min(left);
            let entries = self.entries(account, &stretch, asked).await?;
            let before = placed.len();
            for (place, fields) in &entries {
                let of_turn = fields.get("kind").is_some_and(|kind| kind == CALLS);
                let mut lines = lines_of(account, place, fields)?;
                if stretch.newest_first {
                    lines.reverse();
                }
                let entry: StreamId = place.parse()?;
                let read = stretch.read_of(entry);
                for (n, line) in lines.into_iter().enumerate().skip(read) {
                    if placed.len() == stretch.limit {
                        let read = Some(n);
                        return Ok((
                            placed,
                            Some(JournalCursor { place: entry, read }.to_string()),
                        ));
                    }
                    let place = place.clone();
                    placed.push(Placed {
                        place,
                        of_turn,
                        line,
                    });
                }
                stretch.after = Some(JournalCursor {
                    place: entry,
                    read: None,
                });
            }
            if entries.len() < asked {
                return Ok((placed, None));
            }
            if placed.len() >= stretch.limit {
                return Ok((placed, stretch.after.map(|after| after.to_string())));
            }
            let many = placed.len() - before > entries.len();
            count = if many {
                ENTRIES_FIRST
            } else {
                (4 * count).min(ENTRIES_MAX)
            };
        }
    }

    async fn entries(
        &self,
        account: &AccountId,
        stretch: &JournalRange,
        count: usize,
    ) -> Result<Vec<RawEntry>, RedisFault> {
        let (since, end) = (stretch.since_ms.to_string(), stretch.end.to_string());
        let behind = stretch
            .after
            .map(|JournalCursor { place, read }| match read {
                Some(_) => place.to_string(),
                None => format!("({place}"),
            });
        let (command, from, to) = if stretch.newest_first {
            ("XREVRANGE", behind.unwrap_or(end), since)
        } else {
            ("XRANGE", behind.unwrap_or(since), end)
        };
        let (key, count) = (account_key(account, ":j"), count.to_string());
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
        let mut end = StreamId::last_of(part.until_ms.saturating_add(ID_LATER_MS_MAX));
        if let Some(books) = part.end {
            end = end.min(books.parse()?);
        }
        let after: Option<JournalCursor> = match part.after {
            None => None,
            Some(after) => Some(after.parse()?),
        };
        let stretch = Self {
            after,
            newest_first: part.newest_first,
            since_ms: part.since_ms,
            end,
            limit: part.limit.clamp(1, JOURNAL_LINES_MAX),
        };
        // Backwards, the place of a page before lies within the books unless it was asked for without them.
        let starts_behind = match after {
            Some(after) if part.newest_first => after.place.ms < part.since_ms || after.place > end,
            _ => stretch.is_behind(),
        };
        Ok((!starts_behind).then_some(stretch))
    }

    /// Forwards: whether whoever read so far has read all of it.
    pub(super) fn is_behind(&self) -> bool {
        match self.after {
            Some(after) if after.read.is_some() => after.place > self.end,
            Some(after) => after.place >= self.end,
            None => self.since_ms > self.end.ms,
        }
    }

    /// How many lines of an entry the reader has had.
    fn read_of(&self, entry: StreamId) -> usize {
        let after = self.after.filter(|after| after.place == entry);
        after.and_then(|after| after.read).unwrap_or_default()
    }
}

impl fmt::Display for StreamId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}-{}", self.ms, self.sequence)
    }
}

impl FromStr for StreamId {
    type Err = RedisFault;

    fn from_str(text: &str) -> Result<Self, RedisFault> {
        let (ms, sequence) = text.split_once('-').ok_or_else(|| no_place(text))?;
        Ok(Self {
            ms: ms.parse().map_err(|_| no_place(text))?,
            sequence: sequence.parse().map_err(|_| no_place(text))?,
        })
    }
}

impl StreamId {
    /// Behind all entries of this millisecond.
    pub(super) const fn last_of(ms: u64) -> Self {
        Self {
            ms,
            sequence: u64::MAX,
        }
    }
}

impl fmt::Display for JournalCursor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(&self.place, f)?;
        match self.read {
            Some(read) => write!(f, "/{read}"),
            None => Ok(()),
        }
    }
}

impl FromStr for JournalCursor {
    type Err = RedisFault;

    fn from_str(text: &str) -> Result<Self, RedisFault> {
        let (place, read) = match text.split_once('/') {
            Some((place, read)) => (place, Some(read)),
            None => (text, None),
        };
        Ok(Self {
            place: place.parse().map_err(|_| no_place(text))?,
            read: read
                .map(str::parse)
                .transpose()
                .map_err(|_| no_place(text))?,
        })
    }
}

fn no_place(text: &str) -> RedisFault {
    RedisFault::Unexpected(format!("{text:?} is no place in a journal"))
}

/// The kind of an entry that is a turn of a lease.
const CALLS: &str = "calls";

/// The lines of an entry: one, but for a turn of a lease.
fn lines_of(
    account: &AccountId,
    place: &str,
    fields: &HashMap<String, String>,
) -> Result<Vec<JournalLine>, RedisFault> {
    if fields.get("kind").is_none_or(|kind| kind != CALLS) {
        return Ok(vec![line_of(account, place, fields)?]);
    }
    let receipts = receipts_of_turn(account, place, fields)?;
    Ok(receipts.into_iter().map(JournalLine::Call).collect())
}

/// The receipt of a call in the entry that its number leads to.
pub(super) fn receipt_in_entry(
    account: &AccountId,
    number: RequestNumber,
    fields: &HashMap<String, String>,
) -> Result<Option<Receipt>, RedisFault> {
    if fields.get("kind").is_none_or(|kind| kind != CALLS) {
        return receipt_of(account, number, fields).map(Some);
    }
    let place = number.to_string();
    let mut receipts = receipts_of_turn(account, &place, fields)?.into_iter();
    Ok(receipts.find(|receipt| receipt.number == number))
}

/// What `turn.lua` has written: a line for each call, and beside them what they share.
fn receipts_of_turn(
    account: &AccountId,
    place: &str,
    fields: &HashMap<String, String>,
) -> Result<Vec<Receipt>, RedisFault> {
    let unexpected = |name: &str| {
        RedisFault::Unexpected(format!("journal of {account} at {place}: field {name}"))
    };
    let field = |name: &str| fields.get(name).ok_or_else(|| unexpected(name));
    let at_ms = field("at")?.parse().map_err(|_| unexpected("at"))?;
    let key: KeyId = field("key")?.parse().map_err(|_| unexpected("key"))?;
    let receipts = field(CALLS)?.split('\n').map(|line| {
        let mut words = line.splitn(7, ' ');
        let mut word = || words.next();
        let number = word()?.parse().ok()?;
        let mut amounts = [MicroRub::ZERO; 4];
        for amount in &mut amounts {
            *amount = MicroRub::new(word()?.parse().ok()?);
        }
        let [held_rub, cost_rub, charged_rub, loss_rub] = amounts;
        Some(Receipt {
            number,
            at_ms,
            account: account.clone(),
            key: key.clone(),
            held_rub,
            cost_rub,
            charged_rub,
            loss_rub,
            booked: booked_of(word()?).ok()?,
            item: serde_json::from_str(word()?).ok()?,
        })
    });
    let receipts: Option<Vec<Receipt>> = receipts.collect();
    receipts.ok_or_else(|| unexpected(CALLS))
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
        for after in ["", "7", "7-", "x-1", "7-1/", "7-1/x", "7/1"] {
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
