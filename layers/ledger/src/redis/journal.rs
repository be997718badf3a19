//! Reads pages of an account's journal from Redis.

use std::{collections::HashMap, fmt, ops::Range, str::FromStr};

use super::{
    RedisLedger,
    lines::{CALLS, lines_of},
    names::account_key,
};
use crate::{
    account::AccountId,
    conn::{OPERATOR_TIMEOUT, RedisFault, Result},
    contract::{BookError, JOURNAL_LINES_MAX, JournalLine, JournalPage, JournalPart},
};

/// The largest difference, in milliseconds, by which an entry's id may be later than the time of its lines. It occurs
/// after a failover to a server whose clock is behind: ids never decrease, so they are ahead of that clock.
const ID_LATER_MS_MAX: u64 = 3_600_000;

/// The number of entries that the first command reads. It is small, because an entry may be a lease turn with many
/// calls.
pub(super) const ENTRIES_FIRST: usize = 64;
const ENTRIES_MAX: usize = 500;
/// The largest number of entries that are searched for lines whose time is earlier than the time in their entry's id.
const YOUNGEST_ENTRIES_MAX: usize = 10_000;
/// The largest difference, in milliseconds, by which an entry's id may be later than the time of its lines although no
/// clock was set back. The difference is the run time of the script that writes the entry.
const ID_LATER_MS_USUAL: u64 = 1_000;

/// A range of a journal's stream. Its first and last position are included; the position `after` is not.
#[derive(Clone, Copy, Debug)]
pub(super) struct JournalRange {
    pub(super) after: Option<JournalCursor>,
    /// For reading backwards: this position and all earlier positions are excluded.
    pub(super) behind: Option<JournalCursor>,
    pub(super) newest_first: bool,
    pub(super) since_ms: u64,
    pub(super) end: StreamId,
    pub(super) limit: usize,
}

/// The id that the server has given to a stream entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct StreamId {
    ms: u64,
    sequence: u64,
}

/// A position in a journal, from which a reader continues.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct JournalCursor {
    pub(super) place: StreamId,
    /// How many lines of the entry were read, in the reading direction; `None` if all lines were read.
    pub(super) read: Option<usize>,
}

/// The position up to which the stored sums contain a journal. It also records whether ids before this position are
/// later than the times of their lines.
///
/// The text form, which is stored in [`UnrolledLines::place`](crate::rollup::UnrolledLines), is `<cursor>`. If a clock
/// was set back, the text `~<first>-<last>` follows (in milliseconds). It is about the lines whose ids are later than
/// their times: `<first>` is the earliest time of these lines, and `<last>` is the latest time in their ids.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct RolledPlace {
    pub(super) cursor: JournalCursor,
    later: Option<(u64, u64)>,
}

impl RolledPlace {
    /// Returns whether this position makes it cheaper to read `part` of a journal. It does if the part is read
    /// backwards and ends in the past.
    pub(super) const fn helps(part: &JournalPart<'_>) -> bool {
        part.newest_first && part.after.is_none() && part.until_ms < u64::MAX - ID_LATER_MS_MAX
    }

    /// Returns the position after one more summed line.
    pub(super) fn with(before: Option<Self>, place: &str, at_ms: u64) -> Result<Self> {
        let cursor: JournalCursor = place.parse()?;
        let mut later = before.and_then(|before| before.later);
        if cursor.place.ms > at_ms.saturating_add(ID_LATER_MS_USUAL) {
            let (first, last) = later.unwrap_or((u64::MAX, 0));
            later = Some((first.min(at_ms), last.max(cursor.place.ms)));
        }
        Ok(Self { cursor, later })
    }

    /// Returns an id after which no summed line has one of these times. `None` if no such id is known, or if the id is
    /// not before the end of the summed lines.
    fn end(&self, times: &Range<u64>) -> Option<StreamId> {
        let end_ms = times.end.saturating_add(ID_LATER_MS_USUAL);
        let is_known = self
            .later
            .is_none_or(|(first, last)| times.end <= first || end_ms >= last);
        (is_known && self.cursor.place.ms > end_ms).then(|| StreamId::last_of(end_ms))
    }
}

impl fmt::Display for RolledPlace {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(&self.cursor, f)?;
        match self.later {
            Some((first, last)) => write!(f, "~{first}-{last}"),
            None => Ok(()),
        }
    }
}

impl FromStr for RolledPlace {
    type Err = RedisFault;

    fn from_str(text: &str) -> Result<Self> {
        let later = text.split_once('~').map(|(_, later)| {
            let parsed: Result<StreamId> = later.parse();
            parsed.map(|StreamId { ms, sequence }| (ms, sequence))
        });
        Ok(Self {
            cursor: text.parse()?,
            later: later.transpose()?,
        })
    }
}

/// A stream entry, which contains one or more journal lines.
type RawEntry = (String, HashMap<String, String>);

/// Journal lines, and the position from which to continue; `None` at the end of the range.
type PlacedLines = (Vec<Placed>, Option<String>);

/// A journal line, and the position of its stream entry.
#[derive(Debug)]
pub(super) struct Placed {
    pub(super) place: String,
    /// Whether a lease turn charged the line's call, so that the entry contains other calls too.
    pub(super) of_turn: bool,
    pub(super) line: JournalLine,
}

impl RedisLedger {
    /// Returns a page of the journal. Fails if the account does not exist.
    pub(super) async fn journal_page(
        &self,
        account: &AccountId,
        part: &JournalPart<'_>,
    ) -> Result<JournalPage, BookError> {
        let rolled = match RolledPlace::helps(part) {
            true => self.rolled_places(&[account]).await?.pop().flatten(),
            false => None,
        };
        let page = self.page_of(account, part, rolled.as_ref()).await?;
        if page.lines.is_empty() && page.next.is_none() {
            let key = account_key(account, "");
            let there: bool = self.command(&["HEXISTS", &key, "b"]).await?;
            return there.then_some(page).ok_or(BookError::NotFound);
        }
        Ok(page)
    }

    /// Returns a page of the journal of an account that is known to exist.
    pub(super) async fn page_of(
        &self,
        account: &AccountId,
        part: &JournalPart<'_>,
        rolled: Option<&RolledPlace>,
    ) -> Result<JournalPage, BookError> {
        let Some(mut wanted) = Wanted::for_part(part, rolled)? else {
            return Ok(JournalPage::default());
        };
        if let Some(nearer) = &wanted.nearer
            && (nearer.is_known
                || !(self.has_some_of(account, nearer.youngest, &wanted.times)).await?)
        {
            wanted.stretch.end = nearer.end;
        }
        let placed = self.placed_lines(account, wanted.stretch).await?;
        Ok(wanted.page(placed))
    }

    /// Returns pages of many accounts, in the order of the accounts. Sends the commands together where possible.
    pub(super) async fn pages_of(
        &self,
        parts: &[(&AccountId, JournalPart<'_>)],
        rolled: &[Option<RolledPlace>],
    ) -> Result<Vec<JournalPage>, BookError> {
        let wanted = parts.iter().zip(rolled);
        let wanted = wanted.map(|((account, part), rolled)| {
            let wanted = Wanted::for_part(part, rolled.as_ref())?;
            Ok(wanted.map(|wanted| (*account, wanted)))
        });
        let mut wanted: Vec<Option<(&AccountId, Wanted)>> =
            wanted.collect::<Result<_, BookError>>()?;
        let youngest = wanted.iter().flatten().filter_map(|(account, wanted)| {
            let nearer = wanted.nearer.as_ref().filter(|nearer| !nearer.is_known)?;
            Some(entries_command(account, &nearer.youngest, ENTRIES_FIRST))
        });
        let youngest: Vec<Vec<String>> = youngest.collect();
        let mut youngest = self.many_entries(&youngest).await?.into_iter();
        for (account, wanted) in wanted.iter_mut().flatten() {
            let Some(nearer) = &wanted.nearer else {
                continue;
            };
            let has_none = nearer.is_known || {
                let entries = youngest.next().unwrap_or_default();
                match entries.len() < ENTRIES_FIRST {
                    true => !are_some_of(&entries, &wanted.times),
                    false => !(self.has_some_of(account, nearer.youngest, &wanted.times)).await?,
                }
            };
            if has_none {
                wanted.stretch.end = nearer.end;
            }
        }
        let first = wanted.iter().flatten().map(|(account, wanted)| {
            let count = ENTRIES_FIRST.min(wanted.stretch.limit);
            entries_command(account, &wanted.stretch, count)
        });
        let first: Vec<Vec<String>> = first.collect();
        let mut first = self.many_entries(&first).await?.into_iter();
        let mut pages = Vec::with_capacity(parts.len());
        for wanted in wanted {
            let Some((account, wanted)) = wanted else {
                pages.push(JournalPage::default());
                continue;
            };
            let entries = first.next();
            let placed = (self.placed_lines_behind(account, wanted.stretch, entries)).await?;
            pages.push(wanted.page(placed));
        }
        Ok(pages)
    }

    async fn many_entries(&self, commands: &[Vec<String>]) -> Result<Vec<Vec<RawEntry>>> {
        self.0.conn.commands(commands, OPERATOR_TIMEOUT).await
    }

    /// Returns whether a range may contain lines of these times. If the range is long, returns true without reading all
    /// of it.
    async fn has_some_of(
        &self,
        account: &AccountId,
        mut stretch: JournalRange,
        times: &Range<u64>,
    ) -> Result<bool> {
        for _ in 0..YOUNGEST_ENTRIES_MAX / ENTRIES_MAX {
            let entries = self.entries(account, &stretch, ENTRIES_MAX).await?;
            if are_some_of(&entries, times) {
                return Ok(true);
            }
            let Some((place, _)) = entries.last().filter(|_| entries.len() == ENTRIES_MAX) else {
                return Ok(false);
            };
            stretch.after = Some(place.parse::<StreamId>()?.into());
        }
        Ok(true)
    }

    /// Returns the lines of a range, up to its limit, and the position from which to continue; `None` at the end of the
    /// range.
    pub(super) async fn placed_lines(
        &self,
        account: &AccountId,
        stretch: JournalRange,
    ) -> Result<PlacedLines> {
        self.placed_lines_behind(account, stretch, None).await
    }

    /// Returns lines as [`Self::placed_lines`] does. If the caller has already read the first entries, it can pass
    /// them.
    async fn placed_lines_behind(
        &self,
        account: &AccountId,
        mut stretch: JournalRange,
        mut first: Option<Vec<RawEntry>>,
    ) -> Result<PlacedLines> {
        let mut placed: Vec<Placed> = Vec::new();
        let mut count = ENTRIES_FIRST;
        loop {
            let left = stretch.limit - placed.len();
            let requested = count.min(left);
            let entries = match first.take() {
                Some(entries) => entries,
                None => self.entries(account, &stretch, requested).await?,
            };
            let before = placed.len();
            for (place, fields) in &entries {
                let of_turn = fields.get("kind").is_some_and(|kind| kind == CALLS);
                let mut lines = lines_of(account, place, fields)?;
                let entry: StreamId = place.parse()?;
                if stretch.newest_first {
                    lines.drain(..stretch.not_of(entry).min(lines.len()));
                    lines.reverse();
                }
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
                stretch.after = Some(entry.into());
            }
            if entries.len() < requested {
                return Ok((placed, None));
            }
            if placed.len() >= stretch.limit {
                return Ok((placed, stretch.after.map(|after| after.to_string())));
            }
            count = entries_next(count, entries.len(), placed.len() - before);
        }
    }

    pub(super) async fn entries(
        &self,
        account: &AccountId,
        stretch: &JournalRange,
        count: usize,
    ) -> Result<Vec<RawEntry>> {
        let words = entries_command(account, stretch, count);
        let words: Vec<&str> = words.iter().map(String::as_str).collect();
        self.command(&words).await
    }
}

/// Returns how many entries the next command should read. The last command requested `count` entries and got `entries`
/// entries, which contain `lines` lines.
pub(super) fn entries_next(count: usize, entries: usize, lines: usize) -> usize {
    match lines > entries {
        true => ENTRIES_FIRST,
        false => (4 * count).min(ENTRIES_MAX),
    }
}

fn entries_command(account: &AccountId, stretch: &JournalRange, count: usize) -> Vec<String> {
    let (since, end) = (stretch.since_ms.to_string(), stretch.end.to_string());
    let behind = stretch
        .after
        .map(|JournalCursor { place, read }| match read {
            Some(_) => place.to_string(),
            None => format!("({place}"),
        });
    let (command, from, to) = if stretch.newest_first {
        (
            "XREVRANGE",
            behind.unwrap_or(end),
            stretch.first().unwrap_or(since),
        )
    } else {
        ("XRANGE", behind.unwrap_or(since), end)
    };
    let key = account_key(account, ":j");
    vec![
        command.to_owned(),
        key,
        from,
        to,
        "COUNT".to_owned(),
        count.to_string(),
    ]
}

/// Returns whether one of the entries may contain a line of these times.
fn are_some_of(entries: &[RawEntry], times: &Range<u64>) -> bool {
    let at_ms = |fields: &HashMap<String, String>| fields.get("at")?.parse().ok();
    let mut ats = entries.iter().map(|(_, fields)| at_ms(fields));
    ats.any(|at_ms| at_ms.is_none_or(|at_ms: u64| times.contains(&at_ms)))
}

/// A plan for reading a part of a journal.
#[derive(Debug)]
struct Wanted {
    stretch: JournalRange,
    times: Range<u64>,
    /// If set, the part is in the past and can be read without reading the newer lines first.
    nearer: Option<Nearer>,
}

/// A possible end of the range that is earlier than the actual end. Reading may begin there if no later line has one of
/// the wanted times.
#[derive(Debug)]
struct Nearer {
    end: StreamId,
    /// The range of lines that are not summed yet. Their ids may be later than their times.
    youngest: JournalRange,
    /// Whether the sums contain every line of the wanted range.
    is_known: bool,
}

impl Wanted {
    /// Plans how to read a part of a journal. `None` if the part is empty.
    fn for_part(
        part: &JournalPart<'_>,
        rolled: Option<&RolledPlace>,
    ) -> Result<Option<Self>, BookError> {
        let Some(stretch) = JournalRange::for_part(part)? else {
            return Ok(None);
        };
        let times = part.since_ms..part.until_ms;
        let rolled = rolled.filter(|_| RolledPlace::helps(part));
        let nearer = rolled.and_then(|rolled| {
            let end = rolled.end(&times).filter(|end| *end < stretch.end)?;
            Some(Nearer {
                end,
                youngest: JournalRange {
                    behind: Some(rolled.cursor),
                    ..stretch
                },
                is_known: stretch.end <= rolled.cursor.place,
            })
        });
        Ok(Some(Self {
            stretch,
            times,
            nearer,
        }))
    }

    fn page(&self, (placed, next): PlacedLines) -> JournalPage {
        let lines = placed.into_iter().map(|placed| placed.line);
        let lines = lines.filter(|line| self.times.contains(&line.at_ms()));
        JournalPage {
            lines: lines.collect(),
            next,
        }
    }
}

impl JournalRange {
    /// Returns the stream range of a part of a journal. `None` if the part is empty.
    pub(super) fn for_part(part: &JournalPart<'_>) -> Result<Option<Self>, BookError> {
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
            behind: part.behind.map(str::parse).transpose()?,
            newest_first: part.newest_first,
            since_ms: part.since_ms,
            end,
            limit: part.limit.clamp(1, JOURNAL_LINES_MAX),
        };
        // When reading backwards, a continued page starts within the range, unless the previous page was requested with
        // another `part.end`.
        let starts_behind = match after {
            Some(after) if part.newest_first => after.place.ms < part.since_ms || after.place > end,
            _ => stretch.is_behind(),
        };
        Ok((!starts_behind).then_some(stretch))
    }

    /// For reading forwards: whether the reader has reached the end of the range.
    pub(super) fn is_behind(&self) -> bool {
        match self.after {
            Some(after) if after.read.is_some() => after.place > self.end,
            Some(after) => after.place >= self.end,
            None => self.since_ms > self.end.ms,
        }
    }

    /// For reading backwards: the id at which to stop, if it follows from `behind` and not from the time.
    fn first(&self) -> Option<String> {
        let JournalCursor { place, read } = self.behind?;
        let begins_behind = place.ms >= self.since_ms;
        begins_behind.then(|| match read {
            Some(_) => place.to_string(),
            None => format!("({place}"),
        })
    }

    /// For reading backwards: returns how many of the entry's oldest lines are excluded.
    fn not_of(&self, entry: StreamId) -> usize {
        let behind = self.behind.filter(|behind| behind.place == entry);
        behind.and_then(|behind| behind.read).unwrap_or_default()
    }

    /// Returns how many lines of this entry the reader has read before.
    pub(super) fn read_of(&self, entry: StreamId) -> usize {
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

    fn from_str(text: &str) -> Result<Self> {
        let (ms, sequence) = text.split_once('-').ok_or_else(|| no_place(text))?;
        Ok(Self {
            ms: ms.parse().map_err(|_| no_place(text))?,
            sequence: sequence.parse().map_err(|_| no_place(text))?,
        })
    }
}

impl StreamId {
    /// Returns an id that is at least as high as the id of any entry of this millisecond.
    pub(super) const fn last_of(ms: u64) -> Self {
        Self {
            ms,
            sequence: u64::MAX,
        }
    }
}

/// The position after a whole entry.
impl From<StreamId> for JournalCursor {
    fn from(place: StreamId) -> Self {
        Self { place, read: None }
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

    fn from_str(text: &str) -> Result<Self> {
        // A reader that continues from this cursor needs only the part before the `~`.
        let text = text.split_once('~').map_or(text, |(cursor, _)| cursor);
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

/// Returns a time such that every line after this position has this time or a later one; 0 if the position is invalid.
pub(super) fn place_ms(place: &str) -> u64 {
    let cursor: Option<JournalCursor> = place.parse().ok();
    cursor.map_or(0, |cursor| cursor.place.ms)
}

fn no_place(text: &str) -> RedisFault {
    RedisFault::Unexpected(format!("{text:?} is not a journal cursor"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn line_id_and_line_time_differ_only_after_the_clock_was_set_back() {
        let mut rolled = None;
        for (place, at_ms, text) in [
            ("5000-0", 5000, "5000-0"),
            ("8000-0", 7500, "8000-0"),
            // The clock was set back by four seconds before this line, and is correct again later.
            ("8000-1", 4100, "8000-1~4100-8000"),
            ("8000-2/3", 6000, "8000-2/3~4100-8000"),
            ("9500-0", 9500, "9500-0~4100-8000"),
        ] {
            let now = RolledPlace::with(rolled, place, at_ms).unwrap();
            assert_eq!(now.to_string(), text);
            assert_eq!(text.parse::<RolledPlace>().unwrap(), now);
            assert_eq!(text.parse::<JournalCursor>().unwrap(), now.cursor);
            rolled = Some(now);
        }
        let rolled = rolled.unwrap();
        for (until_ms, end) in [
            (4100, Some("5100-18446744073709551615")),
            (4101, None),
            (6999, None),
            (7000, Some("8000-18446744073709551615")),
            (8400, Some("9400-18446744073709551615")),
            // The sums end before this time, so they do not help to find an earlier end.
            (8500, None),
        ] {
            let found = rolled.end(&(0..until_ms)).map(|end| end.to_string());
            assert_eq!(found.as_deref(), end, "{until_ms}");
        }
    }

    #[test]
    fn journal_range_ends_at_the_earlier_of_its_end_time_and_its_end_position() {
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
            let found = JournalRange::for_part(&part).unwrap();
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
            assert!(JournalRange::for_part(&part).is_err(), "{after}");
        }
    }
}
