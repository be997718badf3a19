//! Reads the calls of a time range: from the roll-up's sums, and from the journals as far as calls are not in a sum.

use std::ops::{ControlFlow, Range};

use super::{DAY_MS, KEPT_MS, Rolled, Rollup, Scope, Sums, now_ms, sums::counted};
use crate::{
    account::{AccountId, GroupId, KeyId},
    contract::{BookError, JournalPart, Receipt, if_found},
    endpoint::Endpoint,
};

/// How many accounts' journals are read at the same time.
const ACCOUNTS_AT_ONCE: usize = 256;
/// How many lines of each account the first request reads. Most accounts have no lines after the summed ones.
const LINES_FIRST: usize = 64;

/// Selects the calls to read.
#[derive(Clone, Copy, Debug)]
pub enum CallScope<'a> {
    /// The calls of one account. Each part of the result names a key, and a group if one was charged.
    Account(&'a AccountId),
    /// The calls of all accounts, from daily sums. The parts of the result name no account.
    All,
    /// The calls of all accounts, from hourly sums, for a result that needs hours.
    AllByHour,
    /// The calls of all accounts, from monthly sums where whole months are requested.
    AllByMonth,
}

/// A part of the result: the sum of many calls, or a single call.
#[derive(Clone, Copy, Debug)]
pub struct Part<'a> {
    /// A time in the hour, day or month in which the calls were charged, in Unix milliseconds.
    pub at_ms: u64,
    /// The key, if the calls of one account were requested.
    pub key: Option<&'a KeyId>,
    /// The group that was charged. `None` if no group was charged, or if the calls of all accounts were requested.
    pub group: Option<&'a GroupId>,
    /// The model's name in the catalog.
    pub model: &'a str,
    /// The vendor that served the calls.
    pub vendor: &'a str,
    /// The endpoint that the callers used.
    pub endpoint: Option<Endpoint>,
    /// The sums of the calls in this part.
    pub sums: &'a Sums,
}

impl<'a> Part<'a> {
    /// Creates the part for a single call with the given sums.
    #[must_use]
    pub fn from_receipt(receipt: &'a Receipt, sums: &'a Sums) -> Self {
        Self {
            at_ms: receipt.at_ms,
            key: Some(&receipt.key),
            group: receipt.group.as_ref(),
            model: &receipt.item.model,
            vendor: &receipt.item.vendor,
            endpoint: receipt.item.endpoint,
            sums,
        }
    }
}

/// Calls `add` with each sum and each single call in the time range `time` (Unix milliseconds), until `add` returns
/// `Break`.
///
/// # Errors
/// A [`BookError`] if the ledger does not answer.
pub async fn read<L: Rollup + ?Sized>(
    ledger: &L,
    call_scope: CallScope<'_>,
    time: Range<u64>,
    mut add: impl FnMut(&Part<'_>) -> ControlFlow<()> + Send,
) -> Result<(), BookError> {
    if time.is_empty() {
        return Ok(());
    }
    let (scopes, accounts) = match call_scope {
        CallScope::Account(id) => (vec![Scope::Account(id.clone())], vec![id.clone()]),
        CallScope::All => (vec![Scope::Days, Scope::Hours], ledger.account_ids().await?),
        CallScope::AllByHour => (vec![Scope::Hours], ledger.account_ids().await?),
        CallScope::AllByMonth => {
            let scopes = vec![Scope::Months, Scope::Days, Scope::Hours];
            (scopes, ledger.account_ids().await?)
        }
    };
    let finest = scopes
        .last()
        .expect("at least one scope was selected above");
    let whole = finest.whole_within(&time);
    if whole.is_empty() {
        return lines(ledger, &accounts, |_| None, &time, &mut add).await;
    }
    let rolled = rolled(ledger, &scopes, &whole).await?;
    for (at_ms, words, sums) in &rolled.rows {
        let part = Part {
            at_ms: *at_ms,
            key: words.key.as_ref(),
            group: words.group.as_ref(),
            model: &words.model,
            vendor: &words.vendor,
            endpoint: words.endpoint,
            sums,
        };
        if add(&part).is_break() {
            return Ok(());
        }
    }
    let place = |id: &AccountId| rolled.places.get(id).cloned();
    lines(ledger, &accounts, place, &whole, &mut add).await?;
    for edge in [time.start..whole.start, whole.end..time.end] {
        if !edge.is_empty() {
            lines(ledger, &accounts, |_| None, &edge, &mut add).await?;
        }
    }
    Ok(())
}

/// Returns the stored sums of a time range. Uses the sums of the longest periods that fit into the range.
async fn rolled<L: Rollup + ?Sized>(
    ledger: &L,
    scopes: &[Scope],
    time: &Range<u64>,
) -> Result<Rolled, BookError> {
    let now_ms = now_ms();
    let mut months = now_ms.saturating_sub(KEPT_MS - DAY_MS)..Scope::Months.begin_ms(now_ms);
    loop {
        let mut parts = Vec::new();
        cover(scopes, time.clone(), &months, &mut parts);
        let rolled = ledger.rolled(&parts).await?;
        // The last month may have no monthly sums yet. After all sums were deleted, no month has monthly sums.
        let by_month = parts.iter().filter(|(scope, _)| *scope == Scope::Months);
        if by_month.map(|(_, time)| time.end).max() <= Some(rolled.months_end_ms) {
            return Ok(rolled);
        }
        months.end = rolled.months_end_ms;
    }
}

/// Divides a time range into periods of `scopes`, the longest first. Monthly sums are used only within `months`.
fn cover(
    scopes: &[Scope],
    time: Range<u64>,
    months: &Range<u64>,
    parts: &mut Vec<(Scope, Range<u64>)>,
) {
    let Some((scope, finer)) = scopes.split_first().filter(|_| !time.is_empty()) else {
        return;
    };
    let within = match scope {
        Scope::Months => time.start.max(months.start)..time.end.min(months.end),
        _ => time.clone(),
    };
    let whole = scope.whole_within(&within);
    if whole.is_empty() {
        return cover(finer, time, months, parts);
    }
    cover(finer, time.start..whole.start, months, parts);
    cover(finer, whole.end..time.end, months, parts);
    parts.push((scope.clone(), whole));
}

/// Returns the part of a time range that consists of whole intervals of `step_ms`. If the range has no end, the result
/// has none either.
pub(crate) fn whole_within(step_ms: u64, time: &Range<u64>) -> Range<u64> {
    let end = match time.end {
        u64::MAX => u64::MAX,
        end => end - end % step_ms,
    };
    time.start.div_ceil(step_ms).saturating_mul(step_ms)..end
}

/// Calls `add` with each receipt in the time range `time` that comes after the given position in its account's journal.
async fn lines<L: Rollup + ?Sized>(
    ledger: &L,
    accounts: &[AccountId],
    place: impl Fn(&AccountId) -> Option<String>,
    time: &Range<u64>,
    add: &mut (impl FnMut(&Part<'_>) -> ControlFlow<()> + Send),
) -> Result<(), BookError> {
    for some in accounts.chunks(ACCOUNTS_AT_ONCE) {
        let places: Vec<Option<String>> = some.iter().map(&place).collect();
        let some = some.iter().zip(&places);
        let mut some: Vec<(&AccountId, Option<&str>)> =
            some.map(|(id, after)| (id, after.as_deref())).collect();
        // Usually no account has a receipt after the given position. So accounts without such a receipt are excluded
        // first.
        let newest = some.iter().map(|(id, behind)| {
            let part = JournalPart {
                newest_first: true,
                behind: *behind,
                ..part(time, None)
            };
            (*id, part)
        });
        let newest: Vec<(&AccountId, JournalPart<'_>)> = newest.collect();
        if let Some(newest) = ledger.newest_ms(&newest).await? {
            let mut newest = newest.into_iter();
            some.retain(|_| newest.next().flatten().is_some());
        }
        let first = some.iter();
        let first = first.map(|(id, after)| {
            let part = JournalPart {
                limit: LINES_FIRST,
                ..part(time, *after)
            };
            (*id, part)
        });
        let first: Vec<(&AccountId, JournalPart<'_>)> = first.collect();
        let pages = ledger.journals(&first).await?;
        for ((id, _), first) in some.iter().zip(pages) {
            // The account may have been removed after the accounts were listed.
            let Some(mut found) = first else { continue };
            loop {
                for receipt in found.lines.iter().filter_map(counted) {
                    let requested = time.contains(&receipt.at_ms);
                    if requested
                        && add(&Part::from_receipt(receipt, &Sums::from_receipt(receipt)))
                            .is_break()
                    {
                        return Ok(());
                    }
                }
                let Some(next) = found.next else { break };
                // Embedded ledgers answer without waiting, so this task yields to let other tasks run.
                tokio::task::yield_now().await;
                let page = ledger.journal(id, &part(time, Some(&next))).await;
                found = if_found(page)?.unwrap_or_default();
            }
        }
    }
    Ok(())
}

fn part<'a>(time: &Range<u64>, after: Option<&'a str>) -> JournalPart<'a> {
    JournalPart {
        since_ms: time.start,
        until_ms: time.end,
        after,
        ..JournalPart::whole()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rollup::HOUR_MS;

    #[test]
    fn time_range_is_rounded_inwards_to_whole_hours_or_days_or_months() {
        for (time, whole) in [
            (0..10, 0..10),
            (0..u64::MAX, 0..u64::MAX),
            (1..29, 10..20),
            (10..19, 10..10),
            // A range whose end is before its beginning is empty, and so is the result.
            (11..19, Range { start: 20, end: 10 }),
            (11..u64::MAX, 20..u64::MAX),
        ] {
            assert_eq!(whole_within(10, &time), whole, "{time:?}");
        }
    }

    /// In 1970, the first months begin on the days 0, 31, 59, 90 and 120.
    #[test]
    fn sums_of_a_time_range_are_read_in_the_largest_units_that_fit() {
        let hour = |hour: u64| hour * HOUR_MS;
        let day = |day: u64| day * DAY_MS;
        let (months, days, hours) = (Scope::Months, Scope::Days, Scope::Hours);
        for (time, summed, parts) in [
            (
                day(31)..day(90),
                0..day(90),
                vec![(&months, day(31)..day(90))],
            ),
            (
                day(30)..day(91),
                0..day(120),
                vec![
                    (&days, day(30)..day(31)),
                    (&months, day(31)..day(90)),
                    (&days, day(90)..day(91)),
                ],
            ),
            (
                day(31) + hour(1)..day(120) + hour(2),
                day(1)..day(90),
                vec![
                    (&hours, day(31) + hour(1)..day(32)),
                    (&days, day(32)..day(59)),
                    (&months, day(59)..day(90)),
                    (&days, day(90)..day(120)),
                    (&hours, day(120)..day(120) + hour(2)),
                ],
            ),
            (
                0..u64::MAX,
                day(1)..day(59),
                vec![
                    (&days, 0..day(31)),
                    (&months, day(31)..day(59)),
                    (&days, day(59)..u64::MAX),
                ],
            ),
            (
                day(31)..day(90),
                day(31)..day(31),
                vec![(&days, day(31)..day(90))],
            ),
            (hour(1)..hour(3), 0..0, vec![(&hours, hour(1)..hour(3))]),
        ] {
            let mut found = Vec::new();
            let scopes = [Scope::Months, Scope::Days, Scope::Hours];
            cover(&scopes, time.clone(), &summed, &mut found);
            found.sort_by_key(|(_, time)| time.start);
            let parts: Vec<(Scope, Range<u64>)> = parts
                .into_iter()
                .map(|(scope, time)| (scope.clone(), time))
                .collect();
            assert_eq!(found, parts, "{time:?} {summed:?}");
        }
    }
}
