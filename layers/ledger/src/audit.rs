//! Checks the books of accounts against the ledger's invariants. All stores and exports use the same checks.
//!
//! [`AccountAudit`] checks one account: first its books, as a store or an export returns them, and then its journal,
//! line by line. [`audit()`] checks a whole ledger through [its contract](crate::contract::LedgerAdmin), and is the
//! default of [`LedgerAdmin::audit`](crate::contract::LedgerAdmin::audit). A store with further data passes it to the
//! audit instead of checking it: holds that no sweep would end
//! ([`OpenHold::due_ms`](crate::contract::OpenHold::due_ms)), [the spending of a key before its current day or
//! month](KeySnapshot::before_rub), calls that have [ended](AccountAudit::ended) or were [settled
//! twice](AccountAudit::settled_twice), and the [sum of the account's entries](AccountAudit::entries_kept).
//!
//! A receipt contains the usage and the prices from which its cost was computed. The audit computes the cost again
//! ([`Price::cost`]) and compares it with the receipt, so it finds changes to the usage, the rates or the cost. The
//! cost of a receipt without prices cannot be checked.
//!
//! Invariant I1 (holds are granted only within the ceilings) cannot be checked afterwards: a key that has spent more
//! than its ceiling may have had a higher ceiling when its holds were granted.
//!
//! [`Price::cost`]: crate::price::Price::cost

mod breaches;
mod call_money;
mod ledger;
mod snapshot;
#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, HashSet};

use self::breaches::Breaches;
use crate::{
    account::{AccountId, GroupId, KeyId},
    contract::{Booked, JournalLine, Receipt},
    money::MicroRub,
    number::RequestNumber,
    price::Misfit,
};

pub(crate) use self::call_money::CallMoney;
#[cfg(feature = "redis")]
pub(crate) use self::ledger::{AccountState, Source, over};
pub use self::{
    ledger::audit,
    snapshot::{GroupSnapshot, KeySnapshot, Snapshot},
};

/// The audit of one account. Its memory does not grow with the number of calls, unless it [stores the call
/// numbers](AccountAudit::keeping_numbers).
#[derive(Debug)]
pub struct AccountAudit {
    books: Snapshot,
    open: HashSet<RequestNumber>,
    /// Calls that have ended although their hold is still open.
    ended: Vec<RequestNumber>,
    /// Calls that moved money, stored to find those that were settled twice. `None` if the store itself reports those.
    settled: Option<HashSet<RequestNumber>>,
    /// The sum of the charges in the journal so far, by key, in micro-rubles.
    charged: BTreeMap<KeyId, i128>,
    lost: i128,
    entered: i128,
    entries: HashSet<String>,
    breaches: Breaches,
}

impl AccountAudit {
    /// Checks everything that needs no journal: I2, I4 and I8, and the account's sums against its keys and entries
    /// (I3).
    #[must_use]
    pub fn new(books: Snapshot) -> Self {
        let mut audit = Self {
            open: books.holds.iter().map(|hold| hold.number).collect(),
            ended: Vec::new(),
            settled: None,
            charged: BTreeMap::new(),
            lost: 0,
            entered: 0,
            entries: HashSet::new(),
            breaches: Breaches::default(),
            books,
        };
        audit.holds();
        audit.sums();
        audit.groups();
        audit
    }

    /// Makes the audit itself find calls that were settled twice. It then stores 16 bytes per call of the journal. A
    /// store with an index of calls reports such calls through [`AccountAudit::settled_twice`] instead.
    #[must_use]
    pub fn keeping_numbers(mut self) -> Self {
        self.settled = Some(HashSet::new());
        self
    }

    /// Checks one line of the journal. The line must have been written before the books were read.
    pub fn line(&mut self, line: &JournalLine) {
        match line {
            JournalLine::Entry { id, amount_rub, .. } => self.entry(id, *amount_rub),
            JournalLine::Call(receipt) => self.call(receipt),
        }
    }

    /// Checks a payment or a correction of the journal.
    pub fn entry(&mut self, id: &str, amount: MicroRub) {
        self.entered += micro(amount);
        if !self.entries.insert(id.to_owned()) {
            let breach = format!(
                "I10 account {}: entry {id:?} was booked twice",
                self.books.id
            );
            self.breaches.push(breach);
        }
    }

    /// Checks a call's receipt.
    pub fn call(&mut self, receipt: &Receipt) {
        let (number, key) = (receipt.number, &receipt.key);
        self.call_money(number, key, &CallMoney::from(receipt));
        if let Some(price) = &receipt.item.price {
            let cost = receipt.cost_rub;
            if let Err(misfit) = price.comes_to(cost, &receipt.item.usage) {
                self.call_misfits(number, key, cost, misfit);
            }
        }
        if let Some(settled) = &mut self.settled
            && receipt.booked != Booked::Stale
            && !settled.insert(receipt.number)
        {
            self.settled_twice(receipt.number);
        }
    }

    /// Checks that the amounts of a call agree with each other.
    pub(crate) fn call_money(&mut self, number: RequestNumber, key: &KeyId, money: &CallMoney) {
        if !money.adds_up() {
            let (cost, charged, loss) = (money.cost, money.charged, money.loss);
            self.breaches.push(format!(
                "I3 key {key}: call {number} cost {cost}, was charged {charged} and lost {loss} µ₽"
            ));
        }
        if !money.moved() {
            return;
        }
        if self.open.contains(&number) {
            self.breaches.push(open_and_ended(&self.books.id, number));
        }
        self.charged_in_all(key, money.charged, money.loss);
    }

    /// Reports a receipt whose cost does not follow from its usage and prices (I3).
    pub(crate) fn call_misfits(
        &mut self,
        number: RequestNumber,
        key: &KeyId,
        cost: MicroRub,
        misfit: Misfit,
    ) {
        let cost = micro(cost);
        self.breaches.push(match misfit {
            Misfit::Cost(computed) => format!(
                "I3 key {key}: call {number} cost {cost} µ₽, but its usage at its prices comes to {}",
                micro(computed)
            ),
            Misfit::NoRate(class) => {
                format!("I3 key {key}: call {number} cost {cost} µ₽ without a price of {class}")
            }
        });
    }

    /// Reports a receipt whose usage or prices cannot be parsed (I3).
    #[cfg(feature = "sqlite")]
    pub(crate) fn unreadable_price(&mut self, number: RequestNumber, key: &KeyId) {
        self.breaches.push(format!(
            "I3 key {key}: call {number} has usage or prices that cannot be read"
        ));
    }

    /// Adds to the audit the sums of a key's charges and losses, in micro-rubles, for a store that sums its own
    /// journal. The sums must include only calls whose amounts [agree](CallMoney::adds_up) and that have no open hold.
    pub(crate) fn charged_in_all(&mut self, key: &KeyId, charged: i128, lost: i128) {
        *self.charged.entry(key.clone()).or_default() += charged;
        self.lost += lost;
    }

    /// Adds to the audit the sum of all payments and corrections in the journal, in micro-rubles, for a store that sums
    /// its own journal.
    #[cfg(feature = "sqlite")]
    pub(crate) fn entered_in_all(&mut self, sum: i128) {
        self.entered += sum;
        self.entries_kept(sum);
    }

    /// Reports a call that moved money more than once.
    pub fn settled_twice(&mut self, number: RequestNumber) {
        self.breaches.push(format!(
            "I5 account {}: call {number} was settled twice",
            self.books.id
        ));
    }

    /// Reports that `lost` journal lines are missing although they were not old enough to be dropped (I3).
    #[cfg(feature = "redis")]
    pub(crate) fn lines_lost(&mut self, lost: u64) {
        self.breaches.push(format!(
            "I3 account {}: {lost} lines of its journal are lost, which were not old enough to be dropped",
            self.books.id
        ));
    }

    /// Reports that the store dropped all lines before this time (Unix milliseconds) too early, because a server's
    /// clock was ahead (I3).
    #[cfg(feature = "redis")]
    pub(crate) fn dropped_early(&mut self, before_ms: u64) {
        self.breaches.push(format!(
            "I3 account {}: lines of its journal before {before_ms} (Unix ms) were dropped too early, by a server's clock \
             that was ahead",
            self.books.id
        ));
    }

    /// Reports a call that has ended although its hold is open. The store has found the call's end outside the journal.
    pub fn ended(&mut self, number: RequestNumber) {
        self.ended.push(number);
    }

    /// Compares the books with a sum of all payments and corrections that the store keeps separately from the journal.
    /// `sum` is exact and in micro-rubles, while the sum in the books is capped at the largest amount.
    pub fn entries_kept(&mut self, sum: i128) {
        if is_capped(self.books.entered_rub) {
            self.balance_is(sum);
        } else {
            self.entered_is(sum);
        }
    }

    /// Compares the sums of the journal with the books (I3), and returns all breaches. Each breach begins with the name
    /// of its invariant.
    #[must_use]
    pub fn finish(mut self) -> Vec<String> {
        self.journal_sums();
        self.without_journal()
    }

    /// Returns all breaches that were found without the journal. Each breach begins with the name of its invariant.
    #[must_use]
    pub fn without_journal(mut self) -> Vec<String> {
        self.periods();
        for number in std::mem::take(&mut self.ended) {
            (self.breaches).push_once(open_and_ended(&self.books.id, number));
        }
        self.breaches.listed(&self.books.id)
    }

    fn journal_sums(&mut self) {
        let (books, id) = (&self.books, &self.books.id);
        // If the store has dropped the oldest lines of the journal, the sum of the remaining lines is at most the sum
        // in the books.
        let agrees = |in_books: i128, journal: i128| match books.journal_complete {
            true => in_books == journal,
            false => in_books >= journal,
        };
        for key in &books.keys {
            let used = micro(key.spent_rub);
            let charged = self.charged.remove(&key.id).unwrap_or_default();
            if !agrees(used, charged) && !is_capped(key.spent_rub) {
                self.breaches.push(format!(
                    "I3 key {}: used {used}, but its receipts sum to {charged} µ₽",
                    key.id
                ));
            }
        }
        for (key, charged) in &self.charged {
            self.breaches.push(format!(
                "I3 key {key}: account {id} has no such key, but its receipts sum to {charged} µ₽"
            ));
        }
        let (loss, lost) = (micro(books.loss_rub), self.lost);
        if !agrees(loss, lost) && !is_capped(books.loss_rub) {
            self.breaches.push(format!(
                "I3 account {id}: loss {loss}, but its receipts sum to {lost} µ₽"
            ));
        }
        // Entries can be negative, so the sum of an incomplete journal may be more or less than the sum in the books.
        if books.journal_complete {
            self.entered_is(self.entered);
        }
    }

    fn entered_is(&mut self, sum: i128) {
        let (id, entered) = (&self.books.id, micro(self.books.entered_rub));
        if entered != sum && !is_capped(self.books.entered_rub) {
            self.breaches.push(format!(
                "I3 account {id}: entered {entered}, but its entries sum to {sum} µ₽"
            ));
        }
    }

    /// Checks that the spending of each key before its current day and month is at most its present spending. Otherwise
    /// the spending in the day or month would be negative, and the ceiling would not limit the key.
    fn periods(&mut self) {
        for key in &self.books.keys {
            let used = micro(key.spent_rub);
            if let Some(before) = key.before_rub.map(micro)
                && before > used
            {
                self.breaches.push(format!(
                    "I3 key {}: used {used}, but {before} µ₽ before its day or month began",
                    key.id
                ));
            }
        }
    }

    /// Checks that the open holds add up to the held amounts of the account and of its keys (I2), and that each hold
    /// can end (I5, I8).
    fn holds(&mut self) {
        let (id, holds) = (&self.books.id, &self.books.holds);
        let (balance, held) = (micro(self.books.balance_rub), micro(self.books.held_rub));
        let mut by_key = HoldsByKey::new();
        for hold in holds {
            let (sum, calls) = by_key.entry(&hold.key).or_default();
            *sum += micro(hold.held_rub);
            *calls += 1;
            if hold.due_ms.is_none() {
                self.breaches.push(format!(
                    "I8 account {id}: hold {} would never expire",
                    hold.number
                ));
            }
            if micro(hold.held_rub) < 0 {
                self.breaches.push(format!(
                    "I2 account {id}: hold {} is of {} µ₽",
                    hold.number,
                    micro(hold.held_rub)
                ));
            }
        }
        if self.open.len() != holds.len() {
            self.breaches
                .push(format!("I5 account {id}: one number holds twice"));
        }
        let sum: i128 = by_key.values().map(|(sum, _)| sum).sum();
        if sum != held {
            self.breaches.push(format!(
                "I2 account {id}: held {held} but its holds sum to {sum} µ₽"
            ));
        }
        check_held_by_keys(&self.books, by_key, &mut self.breaches);
        if held < 0 || held > balance {
            self.breaches.push(format!(
                "I4 account {id}: held {held} of a balance of {balance} µ₽"
            ));
        }
    }

    /// Checks that the sums of each group equal the sums of its keys (I2, I3).
    fn groups(&mut self) {
        let (id, groups) = (&self.books.id, &self.books.groups);
        let mut of_keys: BTreeMap<&GroupId, (i128, i128)> = BTreeMap::new();
        for key in &self.books.keys {
            let Some(group) = &key.group else { continue };
            if groups.iter().all(|known| known.id != *group) {
                self.breaches.push(format!(
                    "I2 account {id}: key {} is in group {group}, which is not there",
                    key.id
                ));
            }
            let (held, used) = of_keys.entry(group).or_default();
            *held += micro(key.held_rub);
            *used += micro(key.spent_rub);
        }
        for group in groups {
            let (held, used) = of_keys.remove(&group.id).unwrap_or_default();
            let (has_held, has_used) = (micro(group.held_rub), micro(group.spent_rub));
            if has_held != held {
                self.breaches.push(format!(
                    "I2 group {}: held {has_held} but its keys hold {held} µ₽",
                    group.id
                ));
            }
            let carried = micro(group.carried_rub);
            let capped = is_capped(group.spent_rub) || is_capped(group.carried_rub);
            if (has_used != used + carried || has_used < 0) && !capped {
                self.breaches.push(format!(
                    "I3 group {}: used {has_used}, but its keys used {used} and {carried} µ₽ are carried",
                    group.id
                ));
            }
            if let Some(before) = group.before_rub.map(micro)
                && before > has_used
            {
                self.breaches.push(format!(
                    "I3 group {}: used {has_used}, but {before} µ₽ before its day or month began",
                    group.id
                ));
            }
        }
    }

    fn used(&self) -> i128 {
        let keys = self.books.keys.iter();
        keys.map(|key| micro(key.spent_rub)).sum()
    }

    fn balance_is(&mut self, entered: i128) {
        let (id, balance, used) = (&self.books.id, micro(self.books.balance_rub), self.used());
        if balance != entered - used {
            self.breaches.push(format!(
                "I3 account {id}: balance {balance}, entered {entered} less used {used} µ₽"
            ));
        }
    }

    fn sums(&mut self) {
        if !is_capped(self.books.entered_rub) {
            self.balance_is(micro(self.books.entered_rub));
        }
        let used = self.used();
        let (books, id) = (&self.books, &self.books.id);
        let (spent, loss) = (micro(books.spent_rub), micro(books.loss_rub));
        if spent != used && !is_capped(books.spent_rub) {
            self.breaches.push(format!(
                "I3 account {id}: spent {spent} but its keys used {used} µ₽"
            ));
        }
        for key in &books.keys {
            let used = micro(key.spent_rub);
            if used < 0 {
                (self.breaches).push(format!("I4 key {}: used {used} µ₽", key.id));
            }
        }
        if loss < 0 {
            (self.breaches).push(format!("I4 account {id}: loss {loss} µ₽"));
        }
    }
}

fn open_and_ended(account: &AccountId, number: RequestNumber) -> String {
    format!("I5 account {account}: hold {number} is both open and ended")
}

fn micro(amount: MicroRub) -> i128 {
    i128::from(amount.micro())
}

/// For each key, the sum and the number of its open holds.
type HoldsByKey<'a> = BTreeMap<&'a KeyId, (i128, u64)>;

/// Checks that the held amount and the number of open calls of each key follow from its open holds (I2).
fn check_held_by_keys(books: &Snapshot, mut by_key: HoldsByKey<'_>, breaches: &mut Breaches) {
    for key in &books.keys {
        let held = micro(key.held_rub);
        let (sum, calls) = by_key.remove(&key.id).unwrap_or_default();
        if let Some(counted) = key.calls
            && counted != calls
        {
            breaches.push(format!(
                "I2 key {}: {counted} calls are counted as open, but it has {calls} holds",
                key.id
            ));
        }
        if sum != held {
            breaches.push(format!(
                "I2 key {}: held {held} but its holds sum to {sum} µ₽",
                key.id
            ));
        }
    }
    for key in by_key.keys() {
        breaches.push(format!(
            "I2 account {}: there are holds on key {key}, which is not there",
            books.id
        ));
    }
}

/// Returns whether a sum equals the largest amount. The true sum may be larger, so such a sum cannot be checked.
fn is_capped(sum: MicroRub) -> bool {
    sum.micro().abs() >= MicroRub::MAX.micro()
}
