//! Adds journal lines to the roll-up's sums.

use std::{
    collections::{BTreeMap, HashMap},
    mem,
};

use super::{Change, KEPT_MS, Marks, Rollup, RowId, STANDS_MS, Scope, Sums, Tally, now_ms};
use crate::{
    account::AccountId,
    calendar::{month_begins_ms, month_of},
    contract::{BookError, JournalLine},
    money::MicroRub,
};

/// The largest number of rows in one write. Calls wait while the store writes.
const ROWS_AT_ONCE: usize = 1000;
/// The largest number of journal lines in one write. If the write fails, these lines are read again.
const LINES_AT_ONCE: usize = 100_000;
/// Every account is read once in this many rounds, even if its spending has not changed.
const ROUNDS_TO_ALL: u32 = 60;
/// After its spending has changed, an account is read in every round for this time, in milliseconds. The time is longer
/// than the account's last lines need to become final.
const QUIET_MS: u64 = 3 * STANDS_MS;

/// Adds new journal lines to the sums, in rounds. Skips accounts whose spending has not changed for a while.
#[derive(Debug, Default)]
pub struct Roller {
    rounds: u32,
    /// The spending and the losses of each account, and when they last changed (Unix milliseconds).
    seen: HashMap<AccountId, (MicroRub, MicroRub, u64)>,
}

impl Roller {
    /// Adds the lines that are final now to the sums. Returns their number.
    ///
    /// # Errors
    /// A [`BookError`] if the ledger does not answer.
    pub async fn round<L: Rollup + ?Sized>(&mut self, ledger: &L) -> Result<u64, BookError> {
        let now_ms = now_ms();
        if self.rounds == 0 {
            // Usually only accounts whose spending has changed are read. Free calls do not change the spending, so from
            // time to time all accounts are read.
            self.seen.clear();
        }
        self.rounds = (self.rounds + 1) % ROUNDS_TO_ALL;
        let mut accounts = Vec::new();
        let views = ledger.accounts().await?;
        let count = views.len();
        for view in views {
            let (spent, lost) = (view.spent_rub, view.loss_rub);
            let before = self.seen.get(&view.id).copied();
            let since_ms = match before {
                Some((was, had_lost, since_ms)) if (was, had_lost) == (spent, lost) => since_ms,
                _ => now_ms,
            };
            if now_ms.saturating_sub(since_ms) < QUIET_MS {
                self.seen.insert(view.id.clone(), (spent, lost, since_ms));
                accounts.push(view.id);
            }
        }
        let before_ms = now_ms.saturating_sub(STANDS_MS);
        let (rolled, marks) = roll(ledger, &accounts, before_ms).await?;
        match marks {
            None => self.seen.clear(),
            Some(marks) if accounts.len() == count => {
                add_up_months(ledger, &marks, before_ms).await?
            }
            Some(_) => {}
        }
        Ok(rolled)
    }
}

/// Adds all lines that are older than `before_ms` to the sums. Returns their number.
///
/// # Errors
/// A [`BookError`] if the ledger does not answer.
pub async fn roll_up<L: Rollup + ?Sized>(ledger: &L, before_ms: u64) -> Result<u64, BookError> {
    let accounts = ledger.account_ids().await?;
    let (rolled, marks) = roll(ledger, &accounts, before_ms).await?;
    if let Some(marks) = marks {
        add_up_months(ledger, &marks, before_ms).await?;
    }
    Ok(rolled)
}

/// Computes the monthly sums of each month that is over, once. A month is over when the sums contain a line that is
/// later than the month. If a clock of the ledger is set back after that, a new line may still be dated into the month;
/// it is then added to the sums of both its day and its month.
pub(super) async fn add_up_months<L: Rollup + ?Sized>(
    ledger: &L,
    marks: &Marks,
    before_ms: u64,
) -> Result<(), BookError> {
    // The newest time is read from the journals: calls have the time of the ledger's clock, not of this machine's
    // clock.
    let places = marks.places.values();
    let newest_ms = places.map(|place| ledger.place_ms(place)).max();
    let newest_ms = newest_ms.unwrap_or_default().min(before_ms);
    let end_ms = Scope::Months.begin_ms(newest_ms);
    let since_ms = marks.months_end_ms.max(newest_ms.saturating_sub(KEPT_MS));
    if marks.months_end_ms >= end_ms {
        return Ok(());
    }
    let mut rows: BTreeMap<RowId, Sums> = BTreeMap::new();
    let mut month = Scope::Months.begin_ms(since_ms);
    while month < end_ms {
        let next = month_begins_ms(month_of(month) + 1);
        let rolled = ledger.rolled(&[(Scope::Days, month..next)]).await?;
        for (_, words, sums) in rolled.rows {
            let id = RowId {
                scope: Scope::Months,
                at_ms: month,
                words,
            };
            rows.entry(id).or_default().add(&sums);
        }
        month = next;
    }
    let change = Change {
        version: marks.version,
        rows: rows.into_iter().collect(),
        months_end_ms: Some(end_ms),
        ..Change::default()
    };
    // If another task has changed the sums meanwhile, this write has no effect, and the next round repeats it.
    ledger.change_sums(&change).await?;
    Ok(())
}

/// Returns the number of lines that were added to the sums, and the new marks; `None` if another task has changed the
/// sums meanwhile.
async fn roll<L: Rollup + ?Sized>(
    ledger: &L,
    accounts: &[AccountId],
    before_ms: u64,
) -> Result<(u64, Option<Marks>), BookError> {
    let mut batch = Batch::new(ledger.marks().await?);
    let read = read_into(&mut batch, ledger, accounts, before_ms).await;
    // If a journal cannot be read, the sums of the accounts that were read before it are still written.
    let lines = batch.lines as u64;
    let alone = batch.write(ledger).await?;
    let (rolled, still_alone) = read?;
    let marks = (still_alone && alone).then_some(batch.marks);
    Ok((rolled + lines, marks))
}

/// Adds final lines to the batch, and writes the batch whenever it is full. Returns the number of lines written, and
/// false if another task has changed the sums meanwhile.
async fn read_into<L: Rollup + ?Sized>(
    batch: &mut Batch,
    ledger: &L,
    accounts: &[AccountId],
    before_ms: u64,
) -> Result<(u64, bool), BookError> {
    let mut rolled = 0;
    for account in accounts {
        if !catch_up(ledger, batch, account, before_ms).await? {
            return Ok((rolled, false));
        }
        loop {
            let after = batch.marks.places.get(account).map(String::as_str);
            let unrolled = ledger.unrolled_lines(account, after, before_ms).await?;
            let Some(place) = unrolled.place else { break };
            // If the stored entries ended at another position than the sums, `catch_up` has stored all entries, so none
            // are added here.
            if batch.is_even(account) {
                batch.note(account, unrolled.entries, place.clone());
            }
            batch.add(account, &unrolled.calls, unrolled.lines, place);
            if batch.is_full() {
                rolled += batch.lines as u64;
                if !batch.write(ledger).await? {
                    return Ok((rolled, false));
                }
            }
            if !unrolled.more {
                break;
            }
            // Embedded ledgers answer without waiting, so this task yields to let other tasks run.
            tokio::task::yield_now().await;
        }
    }
    Ok((rolled, true))
}

/// Stores missing entries of an account. They are missing if an earlier version made the sums without storing the
/// entries next to them. Returns false if another task has changed the sums meanwhile.
async fn catch_up<L: Rollup + ?Sized>(
    ledger: &L,
    batch: &mut Batch,
    account: &AccountId,
    before_ms: u64,
) -> Result<bool, BookError> {
    if batch.is_even(account) {
        return Ok(true);
    }
    loop {
        let after = batch.marks.entries.as_ref();
        let after = after.and_then(|entries| entries.get(account)).cloned();
        let after = after.as_deref();
        let unrolled = ledger.unrolled_lines(account, after, before_ms).await?;
        let Some(place) = unrolled.place else { break };
        batch.note(account, unrolled.entries, place);
        if !batch.write(ledger).await? {
            return Ok(false);
        }
        if !unrolled.more {
            break;
        }
        tokio::task::yield_now().await;
    }
    Ok(true)
}

/// Additions to the sums that are not written yet.
struct Batch {
    marks: Marks,
    rows: BTreeMap<RowId, Sums>,
    places: BTreeMap<AccountId, String>,
    entries: Vec<(String, JournalLine)>,
    entry_places: BTreeMap<AccountId, String>,
    lines: usize,
}

impl Batch {
    const fn new(marks: Marks) -> Self {
        Self {
            marks,
            rows: BTreeMap::new(),
            places: BTreeMap::new(),
            entries: Vec::new(),
            entry_places: BTreeMap::new(),
            lines: 0,
        }
    }

    /// Returns whether the batch has enough rows or lines to be written.
    fn is_full(&self) -> bool {
        let rows = self.rows.len() + self.entries.len() + self.places.len();
        rows >= ROWS_AT_ONCE || self.lines >= LINES_AT_ONCE
    }

    fn add(&mut self, account: &AccountId, calls: &Tally, lines: usize, place: String) {
        let scopes = [
            Scope::Account(account.clone()),
            Scope::Days,
            Scope::Hours,
            Scope::Months,
        ];
        for (hour_ms, words, sums) in calls.rows() {
            let in_month = *hour_ms < self.marks.months_end_ms;
            let scopes = scopes
                .iter()
                .filter(|scope| in_month || **scope != Scope::Months);
            for scope in scopes {
                let id = RowId {
                    at_ms: scope.begin_ms(*hour_ms),
                    words: words.clone().within(scope),
                    scope: scope.clone(),
                };
                self.rows.entry(id).or_default().add(sums);
            }
        }
        self.lines += lines;
        self.places.insert(account.clone(), place.clone());
        self.marks.places.insert(account.clone(), place);
    }

    /// Returns whether the entries of an account are stored up to the same position as its sums.
    fn is_even(&self, account: &AccountId) -> bool {
        let marks = &self.marks;
        let entries = marks.entries.as_ref();
        entries.is_none_or(|entries| entries.get(account) == marks.places.get(account))
    }

    /// Adds entries up to a position. An entry that is stored already is written again unchanged.
    fn note(&mut self, account: &AccountId, entries: Vec<(String, JournalLine)>, place: String) {
        let Some(places) = &mut self.marks.entries else {
            return;
        };
        self.entries.extend(entries);
        self.entry_places.insert(account.clone(), place.clone());
        places.insert(account.clone(), place);
    }

    /// Writes the batch. Returns false if another task has changed the sums meanwhile.
    async fn write<L: Rollup + ?Sized>(&mut self, ledger: &L) -> Result<bool, BookError> {
        if self.places.is_empty() && self.entry_places.is_empty() {
            return Ok(true);
        }
        let (ids, added): (Vec<RowId>, Vec<Sums>) = mem::take(&mut self.rows).into_iter().unzip();
        let known = ledger.sums_at(&ids).await?;
        let rows = ids.into_iter().zip(added).zip(known);
        let rows = rows.map(|((id, mut sums), known)| {
            if let Some(known) = known {
                sums.add(&known);
            }
            (id, sums)
        });
        let change = Change {
            version: self.marks.version,
            rows: rows.collect(),
            places: mem::take(&mut self.places).into_iter().collect(),
            entries: mem::take(&mut self.entries),
            entry_places: mem::take(&mut self.entry_places).into_iter().collect(),
            months_end_ms: None,
        };
        self.lines = 0;
        let written = ledger.change_sums(&change).await?;
        self.marks.version = written.unwrap_or(self.marks.version);
        Ok(written.is_some())
    }
}
