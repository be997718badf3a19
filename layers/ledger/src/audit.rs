//! The auditor: the rules that books are judged by stand here, once, for every store and for exports.
//!
//! [`AccountAudit`] judges one account: its books as a store or an export shows them, then its journal, line by line.
//! [`audit()`] goes through a whole ledger, over the books and journals of [its contract](crate::contract::LedgerAdmin),
//! and is what [`audit`](crate::contract::LedgerAdmin::audit) does there unless a store says otherwise. A store that sees
//! more of itself tells that and judges nothing: holds that nothing would end ([`OpenHold::due_ms`]), [what a key had
//! used before its day or month began](KeySnapshot::before_rub), numbers that [ended](AccountAudit::ended) or were
//! [settled twice](AccountAudit::settled_twice), what its entries [sum to](AccountAudit::entries_kept).
//!
//! A receipt tells what was counted and at which prices, so its cost is computed again ([`Price::cost`]) and must be what
//! it says, with a rate for all of it: the usage, the classes, the rates or the cost of one that was altered no longer fit together. One without a
//! price says nothing of how its cost came about.
//!
//! I1 cannot be seen: a key that has used more than its ceiling may have had a higher one then.
//!
//! [`Price::cost`]: crate::price::Price::cost

mod ledger;

use std::collections::{BTreeMap, HashSet};

use serde::Deserialize;

use super::contract::{AccountBooks, Booked, JournalLine, OpenHold, Receipt};
use crate::{
    account::{AccountId, GroupId, KeyId},
    money::MicroRub,
    number::RequestNumber,
    price::Misfit,
};

pub use self::ledger::audit;
#[cfg(feature = "redis")]
pub(crate) use self::ledger::{Source, Standing, over};

/// The money of an account at one moment: of [`AccountBooks`] what an audit needs.
#[derive(Clone, Debug, Deserialize)]
pub struct Snapshot {
    /// Whose it is.
    pub id: AccountId,
    /// `b`.
    pub balance_rub: MicroRub,
    /// `h`.
    pub held_rub: MicroRub,
    /// `Σ u` as the account is shown to have it.
    pub spent_rub: MicroRub,
    /// Costs that could not be charged.
    pub loss_rub: MicroRub,
    /// The sum of all entries.
    pub entered_rub: MicroRub,
    /// Its keys.
    pub keys: Vec<KeySnapshot>,
    /// Its groups of keys.
    #[serde(default)]
    pub groups: Vec<GroupSnapshot>,
    /// Its open holds.
    pub holds: Vec<OpenHold>,
    /// The journal has forgotten nothing.
    pub journal_complete: bool,
}

/// The money of a key.
#[derive(Clone, Debug, Deserialize)]
pub struct KeySnapshot {
    /// Which one.
    pub id: KeyId,
    /// `u`.
    pub spent_rub: MicroRub,
    /// `h_k`.
    pub held_rub: MicroRub,
    /// What it had used before the day or the month of its last charge began, whichever is more; `None` where that is
    /// not shown.
    #[serde(skip)]
    pub before_rub: Option<MicroRub>,
    /// The group that it is in.
    #[serde(default)]
    pub group: Option<GroupId>,
    /// How many of its calls are counted as open; `None` where they are not counted.
    #[serde(skip)]
    pub calls: Option<u64>,
}

/// The money of a group of keys.
#[derive(Clone, Debug, Deserialize)]
pub struct GroupSnapshot {
    /// Which one.
    pub id: GroupId,
    /// `u`: of its keys while they were in it.
    pub spent_rub: MicroRub,
    /// `h_k` of its keys.
    pub held_rub: MicroRub,
    /// What it has spent beyond what its keys have.
    pub carried_rub: MicroRub,
    /// As a key's.
    #[serde(skip)]
    pub before_rub: Option<MicroRub>,
}

impl From<&AccountBooks> for Snapshot {
    fn from(books: &AccountBooks) -> Self {
        Self {
            id: books.view.id.clone(),
            balance_rub: books.view.balance_rub,
            held_rub: books.view.held_rub,
            spent_rub: books.view.spent_rub,
            loss_rub: books.view.loss_rub,
            entered_rub: books.entered_rub,
            keys: books
                .keys
                .iter()
                .map(|key| KeySnapshot {
                    id: key.record.id.clone(),
                    spent_rub: key.spent_rub,
                    held_rub: key.held_rub,
                    before_rub: None,
                    group: key.record.group.clone(),
                    calls: None,
                })
                .collect(),
            groups: books
                .groups
                .iter()
                .map(|group| GroupSnapshot {
                    id: group.record.id.clone(),
                    spent_rub: group.spent_rub,
                    held_rub: group.held_rub,
                    carried_rub: group.carried_rub,
                    before_rub: None,
                })
                .collect(),
            holds: books.holds.clone(),
            journal_complete: books.journal_complete,
        }
    }
}

/// The audit of one account. What it keeps does not grow with the number of calls, unless it is told to [keep their
/// numbers](AccountAudit::keeping_numbers).
#[derive(Debug)]
pub struct AccountAudit {
    books: Snapshot,
    open: HashSet<RequestNumber>,
    /// Open holds that have ended.
    ended: Vec<RequestNumber>,
    /// The calls that moved money, where nobody else knows them.
    settled: Option<HashSet<RequestNumber>>,
    /// What the journal has charged so far, by key.
    charged: BTreeMap<KeyId, i128>,
    lost: i128,
    entered: i128,
    entries: HashSet<String>,
    breaches: Breaches,
}

impl AccountAudit {
    /// Checks the books by themselves: I2, I4, I8, and the account against its keys and entries (I3).
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

    /// Finds by itself what was settled twice, from the lines: keeps 16 bytes of each call. A store that has an index
    /// of them tells ([`AccountAudit::settled_twice`]).
    #[must_use]
    pub fn keeping_numbers(mut self) -> Self {
        self.settled = Some(HashSet::new());
        self
    }

    /// Checks a line, which must not be later than the books.
    pub fn line(&mut self, line: &JournalLine) {
        match line {
            JournalLine::Entry { id, amount_rub, .. } => self.entry(id, *amount_rub),
            JournalLine::Call(receipt) => self.call(receipt),
        }
    }

    /// A payment or a correction.
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

    /// A call.
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

    /// The money of a call.
    pub(crate) fn call_money(&mut self, number: RequestNumber, key: &KeyId, money: &CallMoney) {
        if !money.adds_up() {
            let CallMoney {
                cost,
                charged,
                loss,
                ..
            } = money;
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

    /// A call cost something else by its receipt than by the usage and the prices there (I3).
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

    /// A call's receipt has usage or prices that cannot be read (I3).
    #[cfg(feature = "sqlite")]
    pub(crate) fn unreadable_price(&mut self, number: RequestNumber, key: &KeyId) {
        self.breaches.push(format!(
            "I3 key {key}: call {number} has usage or prices that cannot be read"
        ));
    }

    /// What calls of a key were charged and lost, in micro-rubles: of a store that adds up by itself those that
    /// [add up](CallMoney::adds_up), beside no open hold.
    pub(crate) fn charged_in_all(&mut self, key: &KeyId, charged: i128, lost: i128) {
        *self.charged.entry(key.clone()).or_default() += charged;
        self.lost += lost;
    }

    /// What the journal's entries sum to, in micro-rubles, for a store that adds up by itself.
    #[cfg(feature = "sqlite")]
    pub(crate) fn entered_in_all(&mut self, sum: i128) {
        self.entered += sum;
        self.entries_kept(sum);
    }

    /// A number that moved money has done so before.
    pub fn settled_twice(&mut self, number: RequestNumber) {
        self.breaches.push(format!(
            "I5 account {}: call {number} was settled twice",
            self.books.id
        ));
    }

    /// An open hold has ended, as the store knows beside the journal.
    pub fn ended(&mut self, number: RequestNumber) {
        self.ended.push(number);
    }

    /// What the entries sum to that the store keeps beside the journal, in micro-rubles: exactly, also where books
    /// can only say that it is the largest amount or more.
    pub fn entries_kept(&mut self, sum: i128) {
        if is_capped(self.books.entered_rub) {
            self.balance_is(sum);
        } else {
            self.entered_is(sum);
        }
    }

    /// Checks the journal's sums against the books (I3): every breach, in words that begin with the
    /// invariant's name.
    #[must_use]
    pub fn finish(mut self) -> Vec<String> {
        self.journal_sums();
        self.without_journal()
    }

    /// Every breach that the books show by themselves, in the same words.
    #[must_use]
    pub fn without_journal(mut self) -> Vec<String> {
        self.periods();
        let Self {
            books,
            ended,
            breaches,
            ..
        } = &mut self;
        for number in std::mem::take(ended) {
            breaches.push_once(open_and_ended(&books.id, number));
        }
        self.breaches.listed(&self.books.id)
    }

    fn journal_sums(&mut self) {
        let Snapshot {
            id,
            loss_rub,
            keys,
            journal_complete,
            ..
        } = &self.books;
        // A journal that has forgotten its oldest lines bounds the books from below.
        let agrees = |books: i128, journal: i128| {
            if *journal_complete {
                books == journal
            } else {
                books >= journal
            }
        };
        for key in keys {
            let (used, charged) = (
                micro(key.spent_rub),
                self.charged.remove(&key.id).unwrap_or_default(),
            );
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
        let (loss, lost) = (micro(*loss_rub), self.lost);
        if !agrees(loss, lost) && !is_capped(*loss_rub) {
            self.breaches.push(format!(
                "I3 account {id}: loss {loss}, but its receipts sum to {lost} µ₽"
            ));
        }
        // Entries have two signs, so a part of them bounds nothing.
        if *journal_complete {
            self.entered_is(self.entered);
        }
    }

    fn entered_is(&mut self, sum: i128) {
        let Snapshot {
            id, entered_rub, ..
        } = &self.books;
        let entered = micro(*entered_rub);
        if entered != sum && !is_capped(*entered_rub) {
            self.breaches.push(format!(
                "I3 account {id}: entered {entered}, but its entries sum to {sum} µ₽"
            ));
        }
    }

    /// No day or month began with more than the key has used: its ceiling would not bound anything.
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

    fn holds(&mut self) {
        let Snapshot {
            id,
            balance_rub,
            held_rub,
            keys,
            holds,
            ..
        } = &self.books;
        let (balance, held) = (micro(*balance_rub), micro(*held_rub));
        let mut by_key: BTreeMap<&KeyId, (i128, u64)> = BTreeMap::new();
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
        for key in keys {
            let held = micro(key.held_rub);
            let (sum, calls) = by_key.remove(&key.id).unwrap_or_default();
            if let Some(counted) = key.calls
                && counted != calls
            {
                self.breaches.push(format!(
                    "I2 key {}: {counted} calls are counted as open, but it has {calls} holds",
                    key.id
                ));
            }
            if sum != held {
                self.breaches.push(format!(
                    "I2 key {}: held {held} but its holds sum to {sum} µ₽",
                    key.id
                ));
            }
        }
        for key in by_key.keys() {
            self.breaches.push(format!(
                "I2 account {id}: there are holds on key {key}, which is not there"
            ));
        }
        if held < 0 || held > balance {
            self.breaches.push(format!(
                "I4 account {id}: held {held} of a balance of {balance} µ₽"
            ));
        }
    }

    /// What a group has is what its keys have (I2, I3).
    fn groups(&mut self) {
        let Snapshot {
            id, keys, groups, ..
        } = &self.books;
        let mut of_keys: BTreeMap<&GroupId, (i128, i128)> = BTreeMap::new();
        for key in keys {
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
        let Snapshot {
            id,
            spent_rub,
            loss_rub,
            keys,
            ..
        } = &self.books;
        let spent = micro(*spent_rub);
        if spent != used && !is_capped(*spent_rub) {
            self.breaches.push(format!(
                "I3 account {id}: spent {spent} but its keys used {used} µ₽"
            ));
        }
        for key in keys.iter().filter(|key| micro(key.spent_rub) < 0) {
            self.breaches.push(format!(
                "I4 key {}: used {} µ₽",
                key.id,
                micro(key.spent_rub)
            ));
        }
        if micro(*loss_rub) < 0 {
            self.breaches
                .push(format!("I4 account {id}: loss {} µ₽", micro(*loss_rub)));
        }
    }
}

/// What a receipt says of money, in micro-rubles.
#[derive(Clone, Copy, Debug)]
pub(crate) struct CallMoney {
    pub(crate) booked: Booked,
    pub(crate) cost: i128,
    pub(crate) charged: i128,
    pub(crate) loss: i128,
}

impl From<&Receipt> for CallMoney {
    fn from(receipt: &Receipt) -> Self {
        Self {
            booked: receipt.booked,
            cost: micro(receipt.cost_rub),
            charged: micro(receipt.charged_rub),
            loss: micro(receipt.loss_rub),
        }
    }
}

impl CallMoney {
    /// Whether it moved money: what is stale did not.
    pub(crate) const fn moved(&self) -> bool {
        matches!(self.booked, Booked::Held | Booked::Late | Booked::Forced)
    }

    /// Whether what was charged and lost is what it cost, and nothing where no money moved (I3).
    pub(crate) const fn adds_up(&self) -> bool {
        let (charged, loss) = (self.charged, self.loss);
        let sum = if self.moved() {
            charged + loss == self.cost
        } else {
            charged == 0 && loss == 0
        };
        sum && charged >= 0 && loss >= 0
    }
}

/// So many of one account are listed, the rest is counted.
const BREACHES_MAX: usize = 100;

#[derive(Debug, Default)]
struct Breaches {
    listed: Vec<String>,
    more: usize,
}

impl Breaches {
    fn push(&mut self, breach: String) {
        if self.listed.len() < BREACHES_MAX {
            self.listed.push(breach);
        } else {
            self.more += 1;
        }
    }

    fn push_once(&mut self, breach: String) {
        if !self.listed.contains(&breach) {
            self.push(breach);
        }
    }

    fn listed(self, account: &AccountId) -> Vec<String> {
        let mut listed = self.listed;
        if self.more > 0 {
            listed.push(format!(
                "I1–I5 account {account}: {} more breaches are not listed",
                self.more
            ));
        }
        listed
    }
}

fn open_and_ended(account: &AccountId, number: RequestNumber) -> String {
    format!("I5 account {account}: hold {number} is both open and ended")
}

fn micro(amount: MicroRub) -> i128 {
    i128::from(amount.micro())
}

/// A sum that stands at the largest amount may be more: nothing can be said of it.
fn is_capped(sum: MicroRub) -> bool {
    sum.micro().abs() >= MicroRub::MAX.micro()
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use uuid::Uuid;

    use super::*;
    use crate::{
        contract::Item,
        price::{Class, Counts, Price, Rate, Rates},
        usage::{End, Usage},
    };

    fn number(n: u128) -> RequestNumber {
        RequestNumber::from_uuid(Uuid::from_u128(n))
    }

    fn key(id: &str) -> KeyId {
        id.parse().unwrap()
    }

    fn snapshot(id: &str, spent: i64, held: i64) -> KeySnapshot {
        KeySnapshot {
            id: key(id),
            spent_rub: MicroRub::new(spent),
            held_rub: MicroRub::new(held),
            before_rub: None,
            group: None,
            calls: None,
        }
    }

    /// 150 were entered, 10 charged, 30 are held.
    pub(super) fn books() -> Snapshot {
        Snapshot {
            id: "acme".parse().unwrap(),
            balance_rub: MicroRub::new(140),
            held_rub: MicroRub::new(30),
            spent_rub: MicroRub::new(10),
            loss_rub: MicroRub::new(2),
            entered_rub: MicroRub::new(150),
            keys: vec![snapshot("k1", 10, 30), snapshot("k2", 0, 0)],
            groups: Vec::new(),
            holds: vec![hold(1, "k1", 20), hold(2, "k1", 10)],
            journal_complete: true,
        }
    }

    fn hold(n: u128, id: &str, held: i64) -> OpenHold {
        OpenHold {
            number: number(n),
            key: key(id),
            held_rub: MicroRub::new(held),
            due_ms: Some(1),
        }
    }

    fn call(n: u128, cost: i64, charged: i64, loss: i64, booked: Booked) -> JournalLine {
        JournalLine::Call(Receipt {
            number: number(n),
            at_ms: 5,
            account: "acme".parse().unwrap(),
            key: key("k1"),
            group: None,
            held_rub: MicroRub::new(cost),
            cost_rub: MicroRub::new(cost),
            charged_rub: MicroRub::new(charged),
            loss_rub: MicroRub::new(loss),
            booked,
            item: Item::new("m", "v", End::Finished),
        })
    }

    fn entry(id: &str, amount: i64) -> JournalLine {
        JournalLine::Entry {
            id: id.into(),
            at_ms: 1,
            account: "acme".parse().unwrap(),
            amount_rub: MicroRub::new(amount),
            reason: None,
        }
    }

    pub(super) fn journal() -> Vec<JournalLine> {
        vec![
            entry("p1", 200),
            call(7, 9, 7, 2, Booked::Held),
            call(8, 3, 0, 0, Booked::Stale),
            entry("c1", -50),
            call(8, 3, 3, 0, Booked::Late),
        ]
    }

    fn found(books: Snapshot, journal: &[JournalLine]) -> Vec<String> {
        let mut audit = AccountAudit::new(books);
        journal.iter().for_each(|line| audit.line(line));
        audit.finish()
    }

    #[test]
    fn sound_books_have_no_breach() {
        assert_eq!(found(books(), &journal()), Vec::<String>::new());
        // What was trimmed off the journal is missing in its sums alone.
        let trimmed = Snapshot {
            journal_complete: false,
            ..books()
        };
        assert_eq!(found(trimmed, &journal()[2..]), Vec::<String>::new());
    }

    #[test]
    fn every_breach_has_its_name() {
        type Edit = fn(&mut Snapshot, &mut Vec<JournalLine>);
        let cases: [(Edit, &str); 18] = [
            (
                |books, _| books.held_rub = MicroRub::new(31),
                "I2 account acme: held 31",
            ),
            (
                |books, _| books.keys[0].held_rub = MicroRub::new(29),
                "I2 key k1: held 29",
            ),
            (
                |books, _| books.holds[1].key = key("k3"),
                "I2 account acme: there are holds on key k3",
            ),
            (
                |books, _| books.holds.truncate(1),
                "I2 account acme: held 30 but its holds sum to 20",
            ),
            (
                |books, _| books.holds[1].number = number(1),
                "I5 account acme: one number holds twice",
            ),
            (
                |books, _| books.holds[1].due_ms = None,
                "I8 account acme: hold",
            ),
            (
                |books, _| books.balance_rub = MicroRub::new(141),
                "I3 account acme: balance 141",
            ),
            (
                |books, _| books.entered_rub = MicroRub::new(149),
                "I3 account acme: balance 140",
            ),
            (
                |books, _| books.keys[1].spent_rub = MicroRub::new(1),
                "I3 account acme: balance 140",
            ),
            (
                |books, _| books.spent_rub = MicroRub::new(9),
                "I3 account acme: spent 9",
            ),
            (
                |books, _| books.loss_rub = MicroRub::new(1),
                "I3 account acme: loss 1",
            ),
            (
                |books, _| {
                    books.balance_rub = MicroRub::new(29);
                    books.entered_rub = MicroRub::new(39);
                },
                "I4 account acme: held 30 of a balance of 29",
            ),
            (
                |_, lines| lines[1] = call(7, 10, 7, 2, Booked::Held),
                "I3 key k1: call",
            ),
            (
                |_, lines| lines[2] = call(8, 3, 1, 2, Booked::Stale),
                "I3 key k1: call",
            ),
            (
                |_, lines| lines[1] = call(1, 9, 7, 2, Booked::Held),
                "I5 account acme: hold",
            ),
            (
                |_, lines| drop(lines.remove(4)),
                "I3 key k1: used 10, but its receipts sum to 7",
            ),
            (
                |_, lines| drop(lines.remove(3)),
                "I3 account acme: entered 150, but its entries sum to 200",
            ),
            (
                |_, lines| lines.push(entry("c1", -50)),
                "I10 account acme: entry \"c1\"",
            ),
        ];
        for (index, (edit, says)) in cases.into_iter().enumerate() {
            let (mut books, mut journal) = (books(), journal());
            edit(&mut books, &mut journal);
            let breaches = found(books, &journal);
            assert!(
                breaches.iter().any(|breach| breach.starts_with(says)),
                "{index}: {says}: {breaches:?}"
            );
        }
    }

    fn receipt_of(cost: i64) -> Receipt {
        let rate = |micro| Rate::new(micro);
        let price = Price {
            input: rate(1_000_000),
            cached_input: rate(100_000),
            output: rate(4_000_000),
            cache_write: rate(1_250_000),
            classes: Rates::default()
                .with(Class::CacheWrite1h, Some(rate(2_000_000)))
                .with(Class::WebSearchCall, Some(rate(9))),
            ..Price::default()
        };
        let mut item = Item::new("m", "v", End::ClientLeft);
        item.price = Some(price.into());
        item.usage = Usage {
            input: 3,
            cached_input: 1,
            cache_write: 2,
            output: 5,
            classes: Counts::default()
                .with(Class::CacheWrite1h, 7)
                .with(Class::WebSearchCall, 2),
        };
        (item.estimated, item.bounded, item.unpriced) = (true, true, true);
        match call(7, cost, cost, 0, Booked::Held) {
            JournalLine::Call(receipt) => Receipt { item, ..receipt },
            JournalLine::Entry { .. } => unreachable!(),
        }
    }

    /// 3 · 1 + 1 · 0.1 + 2 · 1.25 + 5 · 4 + 7 · 2 + 2 · 9 = 57.6 µ₽, rounded up once.
    const COST: i64 = 58;

    #[test]
    fn a_receipt_that_does_not_come_to_its_cost_is_named() {
        type Edit = fn(&mut Receipt);
        let says = |receipt: &Receipt| {
            let cost = receipt.charged_rub.micro();
            let mut audit = AccountAudit::new(Snapshot {
                balance_rub: MicroRub::new(150 - cost),
                spent_rub: MicroRub::new(cost),
                loss_rub: MicroRub::ZERO,
                keys: vec![snapshot("k1", cost, 30)],
                ..books()
            });
            audit.line(&entry("p1", 150));
            audit.call(receipt);
            audit.finish()
        };
        assert_eq!(says(&receipt_of(COST)), Vec::<String>::new());
        let number = number(7);
        for cost in [COST - 1, COST + 1] {
            let breach = format!(
                "I3 key k1: call {number} cost {cost} µ₽, but its usage at its prices comes to 58"
            );
            assert_eq!(says(&receipt_of(cost)), [breach]);
        }
        let price = |receipt: &mut Receipt, edit: fn(&mut Price)| {
            edit(Arc::make_mut(receipt.item.price.as_mut().unwrap()));
        };
        let rewritten = |edit: &dyn Fn(&mut Receipt)| {
            let mut receipt = receipt_of(COST);
            edit(&mut receipt);
            says(&receipt)
        };
        let edits: [Edit; 4] = [
            |receipt| receipt.item.usage.output = 4,
            |receipt| receipt.item.usage.input += 1,
            |receipt| *receipt.item.usage.classes.get_mut(Class::CacheWrite1h) = 6,
            |receipt| receipt.item.usage.classes = Counts::default(),
        ];
        for edit in edits {
            let found = rewritten(&edit);
            assert!(found[0].contains("58 µ₽, but its usage"), "{found:?}");
        }
        let found = rewritten(&|receipt| price(receipt, |it| it.output = Rate::new(4_500_000)));
        assert!(found[0].ends_with("comes to 61"), "{found:?}");
        let found = rewritten(&|receipt| price(receipt, |it| it.classes = Rates::default()));
        let free = format!("I3 key k1: call {number} cost 58 µ₽ without a price of cache_write_1h");
        assert_eq!(found, [free]);
        // It says nothing of how its cost came about.
        assert_eq!(
            rewritten(&|receipt| receipt.item.price = None),
            Vec::<String>::new()
        );
    }

    #[test]
    fn what_a_store_knows_beside_its_books_is_judged_too() {
        type Tell = fn(&mut AccountAudit);
        let cases: [(Tell, &str); 4] = [
            (
                |audit| audit.books.keys[0].before_rub = Some(MicroRub::new(11)),
                "I3 key k1: used 10, but 11 µ₽ before its day or month began",
            ),
            (
                |audit| audit.ended(number(1)),
                "I5 account acme: hold 00000000-0000-0000-0000-000000000001 is both open and ended",
            ),
            (
                |audit| audit.entries_kept(151),
                "I3 account acme: entered 150, but its entries sum to 151 µ₽",
            ),
            (
                |audit| audit.settled_twice(number(7)),
                "I5 account acme: call 00000000-0000-0000-0000-000000000007 was settled twice",
            ),
        ];
        for (tell, says) in cases {
            let mut audit = AccountAudit::new(books());
            tell(&mut audit);
            assert_eq!(audit.without_journal(), [says]);
        }
        // Once, although the journal shows it too.
        let mut audit = AccountAudit::new(books());
        audit.line(&call(1, 0, 0, 0, Booked::Held));
        audit.ended(number(1));
        assert_eq!(audit.without_journal().len(), 1);
        // Beyond the largest amount only the store knows the sum.
        let largest = Snapshot {
            entered_rub: MicroRub::MAX,
            ..books()
        };
        let mut audit = AccountAudit::new(largest);
        audit.entries_kept(i128::from(MicroRub::MAX.micro()) + 7);
        let breaches = audit.without_journal();
        assert!(
            breaches[0].starts_with("I3 account acme: balance 140"),
            "{breaches:?}"
        );
    }

    /// A store that adds up by itself is told the same.
    #[cfg(feature = "sqlite")]
    #[test]
    fn a_journal_in_sums_is_judged_as_line_by_line() {
        let in_sums = |books: Snapshot, lines: &[JournalLine]| {
            let mut audit = AccountAudit::new(books);
            let (mut entered, mut sums) = (0, BTreeMap::<KeyId, (i128, i128)>::new());
            for line in lines {
                let receipt = match line {
                    JournalLine::Entry { amount_rub, .. } => {
                        entered += micro(*amount_rub);
                        continue;
                    }
                    JournalLine::Call(receipt) => receipt,
                };
                let money = CallMoney::from(receipt);
                if !money.adds_up() {
                    audit.call_money(receipt.number, &receipt.key, &money);
                } else if money.moved() {
                    let (charged, lost) = sums.entry(receipt.key.clone()).or_default();
                    *charged += money.charged;
                    *lost += money.loss;
                }
            }
            audit.entered_in_all(entered);
            for (key, (charged, lost)) in &sums {
                audit.charged_in_all(key, *charged, *lost);
            }
            audit.finish()
        };
        let no_holds = || Snapshot {
            held_rub: MicroRub::ZERO,
            keys: vec![snapshot("k1", 10, 0), snapshot("k2", 0, 0)],
            holds: Vec::new(),
            ..books()
        };
        assert_eq!(in_sums(no_holds(), &journal()), Vec::<String>::new());
        let booked = [
            Booked::Held,
            Booked::Late,
            Booked::Forced,
            Booked::Stale,
            Booked::NoAccount,
            Booked::Released,
        ];
        for (n, booked) in (10..).zip(booked) {
            for (cost, charged, loss) in [
                (0, 0, 0),
                (3, 3, 0),
                (3, 1, 2),
                (3, 0, 0),
                (3, 3, 3),
                (3, 4, -1),
                (0, -1, 1),
            ] {
                for complete in [true, false] {
                    let books = Snapshot {
                        journal_complete: complete,
                        ..no_holds()
                    };
                    let mut lines = journal();
                    lines.push(call(n, cost, charged, loss, booked));
                    let says = found(books.clone(), &lines);
                    assert_eq!(
                        in_sums(books, &lines),
                        says,
                        "{booked:?} {cost} {charged} {loss}"
                    );
                }
            }
        }
    }

    #[test]
    fn an_audit_that_keeps_numbers_finds_by_itself_what_was_settled_twice() {
        let mut lines = journal();
        lines.push(call(8, 0, 0, 0, Booked::Late));
        assert_eq!(found(books(), &lines), Vec::<String>::new());
        let mut audit = AccountAudit::new(books()).keeping_numbers();
        lines.iter().for_each(|line| audit.line(line));
        let twice = "I5 account acme: call 00000000-0000-0000-0000-000000000008 was settled twice";
        assert_eq!(audit.finish(), [twice]);
    }

    #[test]
    fn an_export_is_read_whatever_else_it_says() {
        let json = r#"{"kind":"account","id":"acme","name":"Acme","status":"active","balance_rub":"1.00",
            "held_rub":"0.00","free_rub":"1.00","spent_rub":"0.00","loss_rub":"0.00","entered_rub":"1.00",
            "keys":[{"id":"k1","spent_rub":"0.00","held_rub":"0.00","prefix":"tg-"}],"holds":[],
            "journal_end":"5","journal_complete":true}"#;
        let books: Snapshot = serde_json::from_str(json).unwrap();
        assert_eq!(books.balance_rub, MicroRub::rubles(1));
        assert_eq!(AccountAudit::new(books).finish().len(), 1, "no entry");
    }

    #[test]
    fn a_list_of_breaches_has_an_end() {
        let mut audit = AccountAudit::new(books());
        for n in 0..500 {
            audit.settled_twice(number(n));
        }
        let breaches = audit.finish();
        assert_eq!(breaches.len(), BREACHES_MAX + 1);
        assert!(
            breaches[BREACHES_MAX].ends_with("more breaches are not listed"),
            "{breaches:?}"
        );
    }
}
