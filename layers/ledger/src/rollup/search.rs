//! Limits a search for calls to the days whose sums contain matching calls. The journals of other days are not read.

use std::{
    collections::{BTreeSet, HashMap},
    ops::Range,
};

use super::{DAY_MS, Rollup, Scope, Sums, Words, now_ms};
use crate::{
    account::{AccountId, KeyId},
    contract::BookError,
};

/// The length of the time range whose sums are read in one request, in milliseconds.
const STEP_MS: u64 = 32 * DAY_MS;
/// How far a server's clock may be ahead of this machine's clock, in milliseconds.
const CLOCK_AHEAD_MS: u64 = DAY_MS;

/// Which calls to find. A field that is `None` matches every call.
#[derive(Clone, Copy, Debug, Default)]
pub struct Sought<'a> {
    /// Finds calls that were made with this key.
    pub key: Option<&'a KeyId>,
    /// Finds calls of this model, by its name in the catalog.
    pub model: Option<&'a str>,
    /// Finds calls that this vendor served.
    pub vendor: Option<&'a str>,
    /// `true` finds calls whose response broke off at the vendor or contained an error of the vendor. `false` finds all
    /// other calls.
    pub failed: Option<bool>,
}

impl Sought<'_> {
    const fn is_all(&self) -> bool {
        self.key.is_none() && self.model.is_none() && self.vendor.is_none() && self.failed.is_none()
    }

    fn may_be_in(&self, words: &Words, sums: &Sums) -> bool {
        let of_key = |key: &KeyId| words.key.as_ref().is_none_or(|of| of == key);
        self.key.is_none_or(of_key)
            && self.model.is_none_or(|model| words.model == model)
            && self.vendor.is_none_or(|vendor| words.vendor == vendor)
            && match self.failed {
                None => true,
                Some(true) => sums.failed_calls > 0,
                Some(false) => sums.calls > sums.failed_calls,
            }
    }
}

/// A search that goes backwards through a time range, part by part.
#[derive(Debug)]
pub struct Search<'a> {
    scope: Scope,
    sought: Sought<'a>,
    time: Range<u64>,
    /// The beginning of the part that was returned last: the end of the range that remains to be searched.
    end_ms: u64,
    /// The beginning of the oldest stored sums. There are no sums of earlier times.
    oldest_ms: u64,
    /// For each account, the time and the position of its last summed line, as of the first read. Sums that are read
    /// later can only contain more lines, so these positions remain correct.
    rolled: HashMap<AccountId, (u64, String)>,
}

/// A part of the time range of a search.
#[derive(Debug)]
pub struct SearchPart {
    /// The time range of this part.
    pub time: Range<u64>,
    /// The days of this part whose sums contain matching calls, oldest first.
    days: Vec<Range<u64>>,
}

/// The ranges of an account's journal that must be read for a part.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Times<'a> {
    /// The ranges in Unix milliseconds, oldest first. No two ranges adjoin.
    pub times: Vec<Range<u64>>,
    /// The journal position after which the last range is read; `None` if all of the last range is read.
    pub behind: Option<&'a str>,
}

impl SearchPart {
    /// Returns the ranges of an account's journal that must be read for this part.
    #[must_use]
    pub fn times<'a>(&self, search: &'a Search<'_>, account: &AccountId) -> Times<'a> {
        let mut times: Vec<Range<u64>> = Vec::new();
        for day in &self.days {
            match times.last_mut() {
                Some(before) if before.end == day.start => before.end = day.end,
                _ => times.push(day.clone()),
            }
        }
        let rolled = search.rolled.get(account);
        let open_since_ms = rolled.map_or(0, |(at_ms, _)| *at_ms);
        let Range { start, end } = self.time;
        if open_since_ms >= end {
            return Times {
                times,
                behind: None,
            };
        }
        let mut open = open_since_ms.max(start)..end;
        let mut behind = rolled.map(|(_, place)| place.as_str());
        while let Some(before) = times.pop_if(|before| before.end >= open.start) {
            open.start = open.start.min(before.start);
            behind = None;
        }
        // If the ledger's clock was set back, lines after the position may have earlier times than the line at the
        // position.
        if behind.is_some() {
            open.start = times.last().map_or(start, |before| before.end);
        }
        times.push(open);
        Times { times, behind }
    }
}

impl<'a> Search<'a> {
    /// Starts a search for calls of one account, or of all accounts, in the time range `time` (Unix milliseconds).
    ///
    /// # Errors
    /// A [`BookError`] if the ledger does not answer.
    pub async fn begin<L: Rollup + ?Sized>(
        ledger: &L,
        account: Option<&AccountId>,
        sought: Sought<'a>,
        time: Range<u64>,
    ) -> Result<Self, BookError> {
        let scope = account.map_or(Scope::Days, |id| Scope::Account(id.clone()));
        let oldest_ms = match sought.is_all() {
            true => None,
            false => ledger.oldest_sums_ms(&scope).await?,
        };
        Ok(Self {
            scope,
            end_ms: time.end,
            // If there are no sums, the full time range is one part.
            oldest_ms: oldest_ms.unwrap_or(u64::MAX),
            sought,
            time,
            rolled: HashMap::new(),
        })
    }

    /// Returns the next part, which is earlier than the part before; `None` after the last part.
    ///
    /// # Errors
    /// A [`BookError`] if the ledger does not answer.
    pub async fn next<L: Rollup + ?Sized>(
        &mut self,
        ledger: &L,
    ) -> Result<Option<SearchPart>, BookError> {
        let end_ms = self.end_ms;
        if end_ms <= self.time.start {
            return Ok(None);
        }
        let last_ms = (end_ms - 1).min(now_ms().saturating_add(CLOCK_AHEAD_MS));
        let mut begin_ms = (last_ms - last_ms % STEP_MS).max(self.time.start);
        if begin_ms <= self.oldest_ms {
            begin_ms = self.time.start;
        }
        self.end_ms = begin_ms;
        let time = begin_ms..end_ms;
        if self.oldest_ms == u64::MAX {
            let days = vec![time.clone()];
            return Ok(Some(SearchPart { time, days }));
        }
        // The sums of the day in which the part begins must be read too.
        let rolled = ledger
            .rolled(&[(self.scope.clone(), begin_ms - begin_ms % DAY_MS..end_ms)])
            .await?;
        if end_ms == self.time.end {
            let places = rolled.places.into_iter();
            let places = places.map(|(id, place)| (id, (ledger.place_ms(&place), place)));
            self.rolled = places.collect();
        }
        let rows = rolled.rows.iter();
        let found = rows.filter(|(_, words, sums)| self.sought.may_be_in(words, sums));
        let days: BTreeSet<u64> = found.map(|(at_ms, _, _)| *at_ms).collect();
        let days = days.into_iter().map(|day| {
            let end = day.saturating_add(DAY_MS).min(time.end);
            day.max(time.start)..end
        });
        Ok(Some(SearchPart {
            days: days.collect(),
            time,
        }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    #[expect(
        clippy::single_range_in_vec_init,
        reason = "a list of time ranges that may have a single element"
    )]
    fn adjoining_days_are_read_as_one_range_and_unsummed_lines_are_always_read() {
        let account: AccountId = "acme".parse().unwrap();
        let place = "how far it is";
        for (rolled_ms, times, behind) in [
            (None, vec![5..100], None),
            (Some(100), vec![10..30, 50..60], None),
            (Some(70), vec![10..30, 50..60, 60..100], Some(place)),
            (Some(60), vec![10..30, 50..100], None),
            (Some(20), vec![10..100], None),
            (Some(3), vec![5..100], None),
        ] {
            let rolled = rolled_ms.map(|ms| (account.clone(), (ms, place.to_owned())));
            let search = Search {
                scope: Scope::Days,
                sought: Sought::default(),
                time: 0..100,
                end_ms: 5,
                oldest_ms: 0,
                rolled: rolled.into_iter().collect(),
            };
            let stretch = SearchPart {
                time: 5..100,
                days: vec![10..20, 20..30, 50..60],
            };
            let times = Times { times, behind };
            assert_eq!(stretch.times(&search, &account), times, "{rolled_ms:?}");
        }
    }
}
