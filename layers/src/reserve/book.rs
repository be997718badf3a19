//! The ledger's state machine, pure: commands and a time in, outcomes out. No clock, no socket.
//!
//! It is the memory store, the working state of the SQLite store, the oracle that the Redis scripts
//! are tested against, and the auditor. Account A has a posted balance `b` and held `h`; its key k
//! has a ceiling `l`, used `u` and held `h_k`. It may have a ceiling for the day and one for the month
//! besides: for them `u` is what was charged in the current day or month of UTC, and `h_k` is all that it
//! holds, since nobody knows on which day a call will be charged. What always holds:
//!
//! - **I1** a hold is granted only within `min(b − h, l − u − h_k)` for each `l`, in one step;
//! - **I2** `h` and `h_k` are the sums of the open holds;
//! - **I3** `b = Σ entries − Σ u`, and `Σ cost = Σ charged + loss` over settled calls;
//! - **I4** `0 ≤ h ≤ b`;
//! - **I5** a hold ends once: settled, released or expired; an expired one is settled late at most
//!   once; a repeat is answered with the first result.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap, VecDeque},
    mem,
    time::Duration,
};

use foldhash::fast::FixedState;

use super::ledger::{
    Audit, BookError, Booked, Entry, Hold, KeyView, PeriodView, Refusal, Reserved, Settled,
};
use crate::{
    calendar::{day_begins_ms, day_of, month_begins_ms, month_of},
    ceiling::{Ceiling, Ceilings, Period},
    facts::RequestNumber,
    key::{AccountId, KeyId, KeyRecord},
    money::MicroRub,
};

/// Unix time in milliseconds.
pub type Millis = u64;

/// How long the result of an ended hold answers repeats.
pub const TOMBSTONE_MS: Millis = 600_000;
/// How long an expired hold can still be settled.
pub const EXPIRED_MS: Millis = 7 * 24 * 3_600_000;
/// How many due holds one RESERVE that does not fit ends on its way.
pub const EXPIRE_ON_RESERVE_MAX: usize = 32;

/// Of ids that operators choose and numbers that we make. The same each time, so that a run can be
/// repeated.
pub(super) type Hashing = FixedState;

/// All accounts.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Book {
    accounts: HashMap<AccountId, Account, Hashing>,
    /// When to look for holds that are past their time: at the latest when an account's first one is.
    watched: BTreeSet<(Millis, AccountId)>,
}

/// One account with its keys and holds.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Account {
    /// No call is admitted while true.
    pub suspended: bool,
    /// `b`: entries less charges.
    pub balance: MicroRub,
    /// `h`: the sum of the open holds.
    pub held: MicroRub,
    /// Costs that could not be charged.
    pub loss: MicroRub,
    keys: BTreeMap<KeyId, KeyBook>,
    entries: HashMap<String, MicroRub>,
    entered: i128,
    open: HashMap<RequestNumber, Open, Hashing>,
    due: BTreeSet<(Millis, RequestNumber)>,
    /// Its place among the watched ones.
    watched: Option<Millis>,
    expired: HashMap<RequestNumber, Expired, Hashing>,
    tombstones: HashMap<RequestNumber, Settled, Hashing>,
    tombstones_by_age: VecDeque<(Millis, RequestNumber)>,
}

/// The money of one key.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct KeyBook {
    /// Whether it gets new holds.
    pub enabled: bool,
    /// `l`, where there is one.
    pub ceilings: Ceilings,
    /// `u`: charged so far.
    pub used: MicroRub,
    /// `h_k`: the sum of its open holds.
    pub held: MicroRub,
    /// The month of its last charge.
    pub month: Period,
    /// The day of its last charge.
    pub day: Period,
}

#[derive(Clone, Debug, PartialEq, Eq)]
struct Open {
    key: KeyId,
    held: MicroRub,
    want: MicroRub,
    least: MicroRub,
    due: Millis,
}

#[derive(Clone, Debug, PartialEq, Eq)]
struct Expired {
    key: KeyId,
    held: MicroRub,
    at: Millis,
}

/// What a book can be told to do.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Command {
    /// Opens an account, or changes whether it is suspended.
    SetAccount {
        /// Its id.
        account: AccountId,
        /// Whether calls are refused.
        suspended: bool,
    },
    /// Adds a key, or changes its ceilings and whether it is enabled.
    SetKey {
        /// Its account.
        account: AccountId,
        /// Its id.
        key: KeyId,
        /// The most it may spend, where limited.
        ceilings: Ceilings,
        /// Whether it gets new holds.
        enabled: bool,
    },
    /// A payment or a correction.
    Enter {
        /// The account.
        account: AccountId,
        /// The entry.
        entry: Entry,
    },
    /// RESERVE.
    Reserve(Hold),
    /// SETTLE.
    Settle {
        /// The call's number.
        number: RequestNumber,
        /// Who pays.
        account: AccountId,
        /// On which key.
        key: KeyId,
        /// What the call cost.
        cost: MicroRub,
        /// See [`super::ledger::Settlement::fresh`].
        fresh: bool,
    },
    /// RELEASE.
    Release {
        /// The call's number.
        number: RequestNumber,
        /// Who would have paid.
        account: AccountId,
    },
    /// EXTEND.
    Extend {
        /// The call's number.
        number: RequestNumber,
        /// Who pays.
        account: AccountId,
        /// From now.
        ttl: Duration,
    },
    /// PROBE.
    Probe {
        /// Who would pay.
        account: AccountId,
        /// On which key.
        key: KeyId,
    },
    /// EXPIRE.
    Expire {
        /// Whose holds.
        account: AccountId,
        /// How many at most.
        most: usize,
    },
}

/// What a book answers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// Done, or the entry had been booked before.
    Done,
    /// An operator's command was refused.
    Refused(Rejection),
    /// RESERVE's answer, PROBE's without the amounts.
    Reserve(Result<Reserved, Refusal>),
    /// PROBE's answer.
    Probe(Result<(), Refusal>),
    /// SETTLE's answer.
    Settled(Settled),
    /// Whether the hold stood.
    Extended(bool),
    /// How many holds were ended.
    Expired(usize),
}

/// Why an operator's command was refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Rejection {
    /// No such account.
    NotFound,
    /// The entry's id came with another amount before.
    Exists,
    /// The balance would fall below what is held.
    BelowHeld,
    /// The balance would exceed [`MicroRub::MAX`].
    AboveMax,
}

impl From<Rejection> for BookError {
    fn from(rejection: Rejection) -> Self {
        match rejection {
            Rejection::NotFound => Self::NotFound,
            Rejection::Exists => Self::Exists,
            Rejection::BelowHeld => Self::BelowHeld,
            Rejection::AboveMax => Self::AboveMax,
        }
    }
}

/// Carries out one command at the time `now`.
pub fn apply(book: &mut Book, command: &Command, now: Millis) -> Outcome {
    match command {
        Command::SetAccount { account, suspended } => {
            book.accounts.entry(account.clone()).or_default().suspended = *suspended;
            Outcome::Done
        }
        Command::SetKey {
            account,
            key,
            ceilings,
            enabled,
        } => match book.accounts.get_mut(account) {
            None => Outcome::Refused(Rejection::NotFound),
            Some(account) => {
                account.set_key(key, *ceilings, *enabled);
                Outcome::Done
            }
        },
        Command::Enter { account, entry } => match book.enter(account, entry) {
            Ok(()) => Outcome::Done,
            Err(rejection) => Outcome::Refused(rejection),
        },
        Command::Reserve(hold) => Outcome::Reserve(book.reserve(hold, now)),
        Command::Settle {
            number,
            account,
            key,
            cost,
            fresh,
        } => Outcome::Settled(book.settle(*number, account, key, *cost, *fresh, now)),
        Command::Release { number, account } => {
            book.release(*number, account, now);
            Outcome::Done
        }
        Command::Extend {
            number,
            account,
            ttl,
        } => Outcome::Extended(book.extend(*number, account, *ttl, now)),
        Command::Probe { account, key } => Outcome::Probe(book.probe(account, key, now)),
        Command::Expire { account, most } => Outcome::Expired(
            book.accounts
                .get_mut(account)
                .map_or(0, |account| account.expire(*most, now)),
        ),
    }
}

impl Book {
    /// An account.
    #[must_use]
    pub fn account(&self, id: &AccountId) -> Option<&Account> {
        self.accounts.get(id)
    }

    /// An account, to change its keys.
    pub fn account_mut(&mut self, id: &AccountId) -> Option<&mut Account> {
        self.accounts.get_mut(id)
    }

    /// All accounts, by id.
    pub fn accounts(&self) -> impl Iterator<Item = (&AccountId, &Account)> {
        let mut accounts: Vec<_> = self.accounts.iter().collect();
        accounts.sort_unstable_by_key(|(id, _)| *id);
        accounts.into_iter()
    }

    /// Opens an account as a store remembers it: what was entered and what its keys have used.
    pub fn restore(&mut self, id: &AccountId, account: Account) {
        self.accounts.insert(id.clone(), account);
        self.watch(id);
    }

    /// Books a payment or a correction, once for each id.
    ///
    /// # Errors
    /// See [`Rejection`].
    pub fn enter(&mut self, account: &AccountId, entry: &Entry) -> Result<(), Rejection> {
        let account = self.accounts.get_mut(account).ok_or(Rejection::NotFound)?;
        match account.entries.get(&entry.id) {
            Some(amount) if *amount == entry.amount => return Ok(()),
            Some(_) => return Err(Rejection::Exists),
            None => {}
        }
        let balance = account
            .balance
            .checked_add(entry.amount)
            .ok_or(Rejection::AboveMax)?;
        if entry.amount < MicroRub::ZERO && balance < account.held {
            return Err(Rejection::BelowHeld);
        }
        account.remember_entry(&entry.id, entry.amount);
        account.balance = balance;
        Ok(())
    }

    /// Holds money for a call (I1).
    ///
    /// # Errors
    /// See [`Refusal`].
    pub fn reserve(&mut self, hold: &Hold, now: Millis) -> Result<Reserved, Refusal> {
        let account = self
            .accounts
            .get_mut(&hold.account)
            .ok_or(Refusal::Unknown)?;
        account.forget_tombstones(now);
        if account.tombstones.contains_key(&hold.number)
            || account.expired.contains_key(&hold.number)
        {
            return Err(Refusal::Gone);
        }
        if let Some(open) = account.open.get(&hold.number) {
            let same = open.key == hold.key && open.want == hold.want && open.least == hold.least;
            let held = open.held;
            return if same {
                Ok(Reserved {
                    held,
                    free: account.free(&hold.key, now),
                })
            } else {
                Err(Refusal::Conflict)
            };
        }
        account.admits(&hold.key, now)?;
        let (mut free, mut ceiling) = account.room(&hold.key, now);
        if free < hold.want && account.expire(EXPIRE_ON_RESERVE_MAX, now) > 0 {
            (free, ceiling) = account.room(&hold.key, now);
        }
        let held = hold.want.min(free);
        let key = account.keys.get_mut(&hold.key).ok_or(Refusal::Unknown)?;
        if held < hold.least {
            return Err(Refusal::DoesNotFit {
                free,
                held: key.held,
                ceiling,
            });
        }
        let due = now.saturating_add(millis(hold.ttl));
        key.held = key.held.plus_or_max(held);
        account.held = account.held.plus_or_max(held);
        account.due.insert((due, hold.number));
        let open = Open {
            key: hold.key.clone(),
            held,
            want: hold.want,
            least: hold.least,
            due,
        };
        account.open.insert(hold.number, open);
        if account.watched.is_none_or(|at| due < at) {
            self.watch(&hold.account);
        }
        Ok(Reserved {
            held,
            free: free.minus_or_zero(held),
        })
    }

    /// Charges a call and ends its hold, once.
    pub fn settle(
        &mut self,
        number: RequestNumber,
        account: &AccountId,
        key: &KeyId,
        cost: MicroRub,
        fresh: bool,
        now: Millis,
    ) -> Settled {
        let nothing = |booked| Settled {
            booked,
            charged: MicroRub::ZERO,
            loss: MicroRub::ZERO,
            repeated: false,
        };
        let Some(account) = self.accounts.get_mut(account) else {
            return nothing(Booked::NoAccount);
        };
        account.forget_tombstones(now);
        if let Some(first) = account.tombstones.get(&number) {
            return Settled {
                repeated: true,
                ..*first
            };
        }
        let open = account.open.get(&number).map(|open| &open.key);
        let expired = account.expired.get(&number).map(|expired| &expired.key);
        let (held, booked) = match (open, expired) {
            // A settlement on another key than its hold's is nobody's.
            (Some(other), _) | (None, Some(other)) if other != key => {
                return nothing(Booked::Stale);
            }
            (Some(_), _) => (
                account
                    .close(number)
                    .map_or(MicroRub::ZERO, |open| open.held),
                Booked::Held,
            ),
            (None, Some(_)) => {
                account.expired.remove(&number);
                (MicroRub::ZERO, Booked::Late)
            }
            (None, None) if fresh && account.keys.contains_key(key) => {
                (MicroRub::ZERO, Booked::Forced)
            }
            (None, None) => return nothing(Booked::Stale),
        };
        let settled = account.charge(key, cost, held, booked, now);
        account.bury(number, settled, now);
        settled
    }

    /// Ends a hold without a charge; a RESERVE that comes later finds it gone.
    pub fn release(&mut self, number: RequestNumber, account: &AccountId, now: Millis) {
        let Some(account) = self.accounts.get_mut(account) else {
            return;
        };
        account.forget_tombstones(now);
        if account.tombstones.contains_key(&number) {
            return;
        }
        account.close(number);
        account.expired.remove(&number);
        let released = Settled {
            booked: Booked::Released,
            charged: MicroRub::ZERO,
            loss: MicroRub::ZERO,
            repeated: false,
        };
        account.bury(number, released, now);
    }

    /// Lets a hold live for `ttl` from now. Says whether it still stood.
    pub fn extend(
        &mut self,
        number: RequestNumber,
        account: &AccountId,
        ttl: Duration,
        now: Millis,
    ) -> bool {
        let Some(book) = self.accounts.get_mut(account) else {
            return false;
        };
        let Some(open) = book.open.get_mut(&number) else {
            return false;
        };
        book.due.remove(&(open.due, number));
        open.due = now.saturating_add(millis(ttl));
        book.due.insert((open.due, number));
        if book.watched.is_none_or(|at| open.due < at) {
            self.watch(account);
        }
        true
    }

    /// Whether the key could hold anything at all.
    ///
    /// # Errors
    /// See [`Refusal`].
    pub fn probe(&self, account: &AccountId, key: &KeyId, now: Millis) -> Result<(), Refusal> {
        self.accounts
            .get(account)
            .ok_or(Refusal::Unknown)?
            .admits(key, now)
    }

    /// Ends up to `most` holds of each account that are past their time; says how many.
    pub fn expire(&mut self, most: usize, now: Millis) -> usize {
        let (mut count, mut seen) = (0, Vec::new());
        while let Some((at, id)) = self.watched.pop_first() {
            if at > now {
                self.watched.insert((at, id));
                break;
            }
            if let Some(account) = self.accounts.get_mut(&id) {
                account.watched = None;
                count += account.expire(most, now);
            }
            seen.push(id);
        }
        for id in &seen {
            self.watch(id);
        }
        count
    }

    /// Looks at an account again when its first hold is past its time.
    fn watch(&mut self, id: &AccountId) {
        let Some(account) = self.accounts.get_mut(id) else {
            return;
        };
        let due = account.due.first().map(|(due, _)| *due);
        if let Some(at) = mem::replace(&mut account.watched, due) {
            self.watched.remove(&(at, id.clone()));
        }
        if let Some(due) = due {
            self.watched.insert((due, id.clone()));
        }
    }

    /// Checks I1–I5 as far as a state can show them. I1 leaves no trace: a key that has used more than
    /// its ceiling may have had a higher one then.
    #[must_use]
    pub fn audit(&self) -> Audit {
        let mut audit = Audit {
            accounts: self.accounts.len() as u64,
            ..Audit::default()
        };
        for (id, account) in self.accounts() {
            audit.keys += account.keys.len() as u64;
            audit.holds_open += account.open.len() as u64;
            account.audit(id, &mut audit.breaches);
        }
        audit
    }
}

impl Account {
    /// An account as a store remembers it, without holds. `entered` is the sum of its entries.
    #[must_use]
    pub fn restored(
        suspended: bool,
        balance: MicroRub,
        loss: MicroRub,
        entries: HashMap<String, MicroRub>,
    ) -> Self {
        let entered = entries
            .values()
            .map(|amount| i128::from(amount.micro()))
            .sum();
        Self {
            suspended,
            balance,
            loss,
            entries,
            entered,
            ..Self::default()
        }
    }

    /// Adds a key as a store remembers it.
    pub fn restore_key(&mut self, id: KeyId, key: KeyBook) {
        self.keys.insert(id, key);
    }

    /// Adds a key, or changes its ceilings and whether it is enabled.
    pub fn set_key(&mut self, id: &KeyId, ceilings: Ceilings, enabled: bool) {
        let key = self.keys.entry(id.clone()).or_default();
        key.ceilings = ceilings;
        key.enabled = enabled;
    }

    /// The money of a key.
    #[must_use]
    pub fn key(&self, id: &KeyId) -> Option<&KeyBook> {
        self.keys.get(id)
    }

    /// The open holds: number, key, amount, and when each ends by itself.
    pub fn holds(&self) -> impl Iterator<Item = (RequestNumber, &KeyId, MicroRub, Millis)> {
        self.open
            .iter()
            .map(|(number, open)| (*number, &open.key, open.held, open.due))
    }

    /// How many holds are open.
    #[must_use]
    pub fn holds_open(&self) -> usize {
        self.open.len()
    }

    /// Whether the number holds money now.
    #[must_use]
    pub fn is_open(&self, number: RequestNumber) -> bool {
        self.open.contains_key(&number)
    }

    /// Whether an entry of this id has been booked.
    #[must_use]
    pub fn has_entry(&self, id: &str) -> bool {
        self.entries.contains_key(id)
    }

    /// The sum of all entries, in micro-rubles.
    #[must_use]
    pub const fn entered(&self) -> i128 {
        self.entered
    }

    /// What a key can still hold: `max(0, min(b − h, l − u − h_k))`, over all its ceilings.
    #[must_use]
    pub fn free(&self, key: &KeyId, now: Millis) -> MicroRub {
        self.room(key, now).0
    }

    /// The same, and the ceiling that leaves no more, if one does.
    fn room(&self, key: &KeyId, now: Millis) -> (MicroRub, Option<Ceiling>) {
        let account = self.balance.minus_or_zero(self.held);
        match self.keys.get(key) {
            None => (MicroRub::ZERO, None),
            Some(key) => key.room(account, MicroRub::ZERO, now),
        }
    }

    /// Charged so far, over all keys.
    #[must_use]
    pub fn spent(&self) -> MicroRub {
        self.keys
            .values()
            .fold(MicroRub::ZERO, |sum, key| sum.plus_or_max(key.used))
    }

    /// The refusals that do not depend on an amount. Empty is judged by posted money alone, so that
    /// a key whose money is merely held is told that the call does not fit.
    fn admits(&self, key: &KeyId, now: Millis) -> Result<(), Refusal> {
        let key = self.keys.get(key).ok_or(Refusal::Unknown)?;
        if !key.enabled {
            Err(Refusal::Disabled)
        } else if self.suspended {
            Err(Refusal::Suspended)
        } else if self.balance <= MicroRub::ZERO {
            Err(Refusal::AccountEmpty)
        } else if let Some(bound) = key.bounds(now).find(Bound::is_used_up) {
            Err(Refusal::CeilingUsedUp(bound.ceiling))
        } else {
            Ok(())
        }
    }

    fn remember_entry(&mut self, id: &str, amount: MicroRub) {
        self.entries.insert(id.to_owned(), amount);
        self.entered += i128::from(amount.micro());
    }

    /// Takes an open hold off the books.
    fn close(&mut self, number: RequestNumber) -> Option<Open> {
        let open = self.open.remove(&number)?;
        self.due.remove(&(open.due, number));
        self.held = self.held.minus_or_zero(open.held);
        if let Some(key) = self.keys.get_mut(&open.key) {
            key.held = key.held.minus_or_zero(open.held);
        }
        Some(open)
    }

    /// Charges what the hold and the free money allow; the rest is loss. The hold itself was
    /// promised: it pays even where a ceiling has been lowered since.
    fn charge(
        &mut self,
        key: &KeyId,
        cost: MicroRub,
        held: MicroRub,
        booked: Booked,
        now: Millis,
    ) -> Settled {
        let account = self.balance.minus_or_zero(self.held.plus_or_max(held));
        let key = self.keys.get_mut(key);
        let free_beside_hold = match &key {
            None => MicroRub::ZERO,
            Some(key) => key.room(account, held, now).0,
        };
        let charged = cost.min(held.plus_or_max(free_beside_hold));
        let loss = cost.minus_or_zero(charged);
        self.balance = self.balance.minus_or_zero(charged);
        self.loss = self.loss.plus_or_max(loss);
        if let Some(key) = key {
            (key.month, key.day) = (key.month_at(now), key.day_at(now));
            key.used = key.used.plus_or_max(charged);
        }
        Settled {
            booked,
            charged,
            loss,
            repeated: false,
        }
    }

    fn expire(&mut self, most: usize, now: Millis) -> usize {
        let mut count = 0;
        while count < most {
            let Some(&(due, number)) = self.due.first() else {
                break;
            };
            if due > now {
                break;
            }
            let Some(open) = self.close(number) else {
                break;
            };
            self.expired.insert(
                number,
                Expired {
                    key: open.key,
                    held: open.held,
                    at: now,
                },
            );
            count += 1;
        }
        if count > 0 {
            self.expired
                .retain(|_, expired| now.saturating_sub(expired.at) <= EXPIRED_MS);
        }
        count
    }

    fn bury(&mut self, number: RequestNumber, result: Settled, now: Millis) {
        self.tombstones.insert(number, result);
        self.tombstones_by_age.push_back((now, number));
    }

    fn forget_tombstones(&mut self, now: Millis) {
        while let Some(&(at, number)) = self.tombstones_by_age.front() {
            if now.saturating_sub(at) < TOMBSTONE_MS {
                break;
            }
            self.tombstones_by_age.pop_front();
            self.tombstones.remove(&number);
        }
    }

    fn audit(&self, id: &AccountId, breaches: &mut Vec<String>) {
        let micro = |amount: MicroRub| i128::from(amount.micro());
        let held: i128 = self.open.values().map(|open| micro(open.held)).sum();
        if held != micro(self.held) {
            breaches.push(format!(
                "I2 account {id}: held {} but its holds sum to {held} µ₽",
                self.held.micro()
            ));
        }
        let mut held_by_key: HashMap<&KeyId, i128> = HashMap::new();
        for open in self.open.values() {
            *held_by_key.entry(&open.key).or_default() += micro(open.held);
        }
        for (key_id, key) in &self.keys {
            let held = held_by_key.get(key_id).copied().unwrap_or(0);
            if held != micro(key.held) {
                breaches.push(format!(
                    "I2 key {key_id}: held {} but its holds sum to {held} µ₽",
                    key.held.micro()
                ));
            }
        }
        breaches.extend(self.keys.iter().filter_map(|(id, key)| key.breach(id)));
        if let Some((number, open)) = self
            .open
            .iter()
            .find(|(_, open)| !self.keys.contains_key(&open.key))
        {
            breaches.push(format!(
                "I2 account {id}: hold {number} is on key {}, which is not there",
                open.key
            ));
        }
        let entered: i128 = self.entries.values().map(|amount| micro(*amount)).sum();
        if entered != self.entered {
            breaches.push(format!(
                "I3 account {id}: entered {} but its entries sum to {entered} µ₽",
                self.entered
            ));
        }
        let used: i128 = self.keys.values().map(|key| micro(key.used)).sum();
        if micro(self.balance) != self.entered - used {
            let balance = self.balance.micro();
            breaches.push(format!(
                "I3 account {id}: balance {balance}, entered {} less used {used} µ₽",
                self.entered
            ));
        }
        if self.held < MicroRub::ZERO || self.held > self.balance {
            let (held, balance) = (self.held.micro(), self.balance.micro());
            breaches.push(format!(
                "I4 account {id}: held {held} of a balance of {balance} µ₽"
            ));
        }
        let ended = |number: &RequestNumber| {
            self.tombstones.contains_key(number) || self.expired.contains_key(number)
        };
        if let Some(number) = self.open.keys().find(|number| ended(number)) {
            breaches.push(format!(
                "I5 account {id}: hold {number} is both open and ended"
            ));
        }
        if let Some((number, _)) = self.open.iter().find(|(number, open)| {
            !self.due.contains(&(open.due, **number)) || self.watched.is_none_or(|at| at > open.due)
        }) {
            breaches.push(format!("I8 account {id}: hold {number} would never expire"));
        }
    }
}

/// A ceiling of a key, and what has been spent under it.
struct Bound {
    ceiling: Ceiling,
    limit: MicroRub,
    spent: MicroRub,
}

impl Bound {
    fn is_used_up(&self) -> bool {
        self.spent >= self.limit
    }
}

impl KeyBook {
    /// The key as operators see it, where its account has so much free.
    #[must_use]
    pub fn view(&self, record: KeyRecord, account: MicroRub, now: Millis) -> KeyView {
        let (month, day) = (self.month_at(now), self.day_at(now));
        KeyView {
            record,
            ceiling_rub: self.ceilings.total,
            spent_rub: self.used,
            held_rub: self.held,
            free_rub: self.room(account, MicroRub::ZERO, now).0,
            month: PeriodView {
                ceiling_rub: self.ceilings.month,
                spent_rub: month.spent(self.used),
                resets_at_ms: month_begins_ms(month.index.saturating_add(1)),
            },
            day: PeriodView {
                ceiling_rub: self.ceilings.day,
                spent_rub: day.spent(self.used),
                resets_at_ms: day_begins_ms(day.index.saturating_add(1)),
            },
        }
    }

    /// What the key can hold beside its open holds and `beside`, where its account has so much free; and
    /// the ceiling that leaves no more, if one does.
    fn room(
        &self,
        account: MicroRub,
        beside: MicroRub,
        now: Millis,
    ) -> (MicroRub, Option<Ceiling>) {
        let held = self.held.plus_or_max(beside);
        let mut room = (account, None);
        for bound in self.bounds(now) {
            let left = bound.limit.minus_or_zero(bound.spent.plus_or_max(held));
            if left < room.0 {
                room = (left, Some(bound.ceiling));
            }
        }
        room
    }

    /// Its ceilings: the one that begins anew last comes first.
    fn bounds(&self, now: Millis) -> impl Iterator<Item = Bound> {
        let Ceilings { total, month, day } = self.ceilings;
        let total = total.map(|limit| Bound {
            ceiling: Ceiling::Total,
            limit,
            spent: self.used,
        });
        let month = month.map(|limit| {
            let period = self.month_at(now);
            Bound {
                ceiling: Ceiling::of_month(period.index),
                limit,
                spent: period.spent(self.used),
            }
        });
        let day = day.map(|limit| {
            let period = self.day_at(now);
            Bound {
                ceiling: Ceiling::of_day(period.index),
                limit,
                spent: period.spent(self.used),
            }
        });
        [total, month, day].into_iter().flatten()
    }

    fn month_at(&self, now: Millis) -> Period {
        self.month.at(month_of(now), self.used)
    }

    fn day_at(&self, now: Millis) -> Period {
        self.day.at(day_of(now), self.used)
    }

    /// No period began with more than the key has used: its ceiling would not bound anything.
    pub(super) fn breach(&self, id: &KeyId) -> Option<String> {
        let before = self.month.before.max(self.day.before);
        (before > self.used).then(|| {
            let (used, before) = (self.used.micro(), before.micro());
            format!("I3 key {id}: used {used}, but {before} µ₽ before its day or month began")
        })
    }
}

fn millis(duration: Duration) -> Millis {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use uuid::Uuid;

    use super::*;

    const MINUTE: Duration = Duration::from_secs(60);

    fn id(index: u64) -> AccountId {
        format!("a{index}").parse().unwrap()
    }

    fn hold(account: u64, number: u128, ttl: Duration) -> Hold {
        Hold {
            number: RequestNumber::from_uuid(Uuid::from_u128(number)),
            account: id(account),
            key: "k".parse().unwrap(),
            want: MicroRub::new(10),
            least: MicroRub::new(10),
            ttl,
        }
    }

    fn funded(accounts: u64) -> Book {
        let mut book = Book::default();
        for index in 0..accounts {
            let mut account = Account::default();
            account.set_key(&"k".parse().unwrap(), Ceilings::NONE, true);
            book.restore(&id(index), account);
            let entry = Entry {
                id: "t".into(),
                amount: MicroRub::new(1_000),
                reason: None,
            };
            book.enter(&id(index), &entry).unwrap();
        }
        book
    }

    #[test]
    fn every_hold_ends_by_itself_whatever_came_before_it() {
        let mut book = funded(4);
        // Account 0: a late one, then an earlier one. 1: ended at once. 2: prolonged. 3: cut short.
        book.reserve(&hold(0, 1, 3 * MINUTE), 0).unwrap();
        book.reserve(&hold(0, 2, MINUTE), 0).unwrap();
        book.reserve(&hold(1, 3, MINUTE), 0).unwrap();
        book.release(hold(1, 3, MINUTE).number, &id(1), 0);
        book.reserve(&hold(2, 4, MINUTE), 0).unwrap();
        assert!(book.extend(hold(2, 4, MINUTE).number, &id(2), 2 * MINUTE, 0));
        book.reserve(&hold(3, 5, 3 * MINUTE), 0).unwrap();
        assert!(book.extend(hold(3, 5, MINUTE).number, &id(3), MINUTE, 0));
        let ended = |now: Millis, book: &mut Book| {
            let ended = book.expire(256, now);
            assert_eq!(book.audit().breaches, Vec::<String>::new(), "{now}");
            ended
        };
        assert_eq!(ended(59_999, &mut book), 0);
        assert_eq!(ended(60_000, &mut book), 2);
        assert_eq!(ended(120_000, &mut book), 1);
        // Account 1 is looked at again once it holds something again.
        book.reserve(&hold(1, 6, MINUTE), 120_000).unwrap();
        assert_eq!(ended(180_000, &mut book), 2);
        assert_eq!(ended(u64::MAX, &mut book), 0);
        assert!(book.watched.is_empty());
    }

    #[test]
    fn what_one_round_leaves_of_an_account_the_next_one_ends() {
        let mut book = funded(1);
        for number in 0..5 {
            book.reserve(&hold(0, number, MINUTE), 0).unwrap();
        }
        let rounds = [0; 4].map(|_| book.expire(2, 60_000));
        assert_eq!(rounds, [2, 2, 1, 0]);
    }

    #[test]
    fn accounts_without_holds_are_not_looked_at() {
        let mut book = funded(100);
        book.reserve(&hold(7, 1, MINUTE), 0).unwrap();
        book.reserve(&hold(7, 2, 2 * MINUTE), 0).unwrap();
        assert_eq!(book.watched.iter().collect::<Vec<_>>(), [&(60_000, id(7))]);
    }
}
