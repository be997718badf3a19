//! The ledger's state machine, pure: commands and a time in, outcomes out. No clock, no socket.
//!
//! It is the memory store, the working state of the SQLite store, the oracle that the Redis scripts
//! are tested against. Account A has a posted balance `b` and held `h`; its key k
//! has a ceiling `l`, used `u` and held `h_k`. It may have a ceiling for the day and one for the month
//! besides: for them `u` is what was charged in the current day or month of UTC, and `h_k` is all that it
//! holds, since nobody knows on which day a call will be charged. A key may be in a group, which has ceilings of the same
//! kinds: for them `u` is what its keys were charged while they were in it, and `h_k` is what they hold. What always
//! holds:
//!
//! - **I1** a hold is granted only within `min(b − h, l − u − h_k)` for each `l`, in one step;
//! - **I2** `h` and `h_k` are the sums of the open holds;
//! - **I3** `b = Σ entries − Σ u`, and `Σ cost = Σ charged + loss` over settled calls, each at what its receipt comes to;
//! - **I4** `0 ≤ h ≤ b`;
//! - **I5** a hold ends once: settled, released or expired; an expired one is settled late at most
//!   once; a repeat is answered with the first result.

mod audit;
mod charge;
mod expiry;
mod group;
mod hold;
#[cfg(all(feature = "redis", any(test, feature = "testing")))]
mod lease;
mod telling;

use std::{
    collections::{BTreeMap, BTreeSet, HashMap, VecDeque},
    time::Duration,
};

use foldhash::fast::FixedState;

use super::contract::{BookError, Entry, Hold, Refusal, Reserved, Settled};
use crate::{
    account::{AccountId, GroupId, KeyId},
    ceiling::{Ceilings, Period},
    happening::{Happening, Levels},
    money::MicroRub,
    number::RequestNumber,
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
pub(crate) type Hashing = FixedState;

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
    /// At which balances it tells that it runs low.
    pub levels: Levels,
    /// What has happened since somebody asked.
    happened: Vec<(Option<KeyId>, Happening)>,
    keys: BTreeMap<KeyId, KeyBook>,
    groups: BTreeMap<GroupId, GroupBook>,
    /// The groups of those keys that are in one.
    group_of: BTreeMap<KeyId, GroupId>,
    /// Of some key the number of open calls is limited.
    limits_calls: bool,
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
    /// What is left under a ceiling when it tells that it runs low.
    pub levels: Levels,
    /// How many of its calls may be open at once, where that is limited.
    pub concurrency: Option<u32>,
    /// How many are.
    pub calls: u32,
}

/// The money of a group of keys.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct GroupBook {
    /// Its name.
    pub name: String,
    /// It was removed.
    pub removed: bool,
    /// What its keys may spend together, have spent in it and hold.
    pub money: KeyBook,
    /// What it has used beyond what its keys have: that of keys that left it, less what keys had used when they came.
    pub carried: MicroRub,
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
    /// Makes a group of keys, or changes its ceilings.
    SetGroup {
        /// Its account.
        account: AccountId,
        /// Its id.
        group: GroupId,
        /// The most that its keys may spend together, where limited.
        ceilings: Ceilings,
    },
    /// Puts a key into a group, or takes it out of the one it is in, and says how many of its calls may be open at once.
    Bind {
        /// Its account.
        account: AccountId,
        /// The key.
        key: KeyId,
        /// Its group from here on.
        group: Option<GroupId>,
        /// How many calls, where that is limited.
        concurrency: Option<u32>,
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
        /// See [`super::contract::Settlement::fresh`].
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
    /// No such group, or it was removed.
    NoGroup,
}

impl From<Rejection> for BookError {
    fn from(rejection: Rejection) -> Self {
        match rejection {
            Rejection::NotFound => Self::NotFound,
            Rejection::Exists => Self::Exists,
            Rejection::BelowHeld => Self::BelowHeld,
            Rejection::AboveMax => Self::AboveMax,
            Rejection::NoGroup => Self::NoGroup,
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
        Command::SetGroup {
            account,
            group,
            ceilings,
        } => match book.accounts.get_mut(account) {
            None => Outcome::Refused(Rejection::NotFound),
            Some(account) => {
                account.set_group(group, "", *ceilings, false);
                Outcome::Done
            }
        },
        Command::Bind {
            account,
            key,
            group,
            concurrency,
        } => {
            let account = book.accounts.get_mut(account).ok_or(Rejection::NotFound);
            match account.and_then(|account| account.bind(key, group.as_ref(), *concurrency)) {
                Ok(()) => Outcome::Done,
                Err(rejection) => Outcome::Refused(rejection),
            }
        }
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
        self.limits_calls |= key.concurrency.is_some();
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

    /// The money of a key, to change its levels.
    pub fn key_mut(&mut self, id: &KeyId) -> Option<&mut KeyBook> {
        self.keys.get_mut(id)
    }

    /// Its keys.
    pub fn keys(&self) -> impl ExactSizeIterator<Item = (&KeyId, &KeyBook)> {
        self.keys.iter()
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

    /// Whether the number holds money, or did until its time was over.
    #[cfg(feature = "redis")]
    pub(crate) fn knows(&self, number: RequestNumber) -> bool {
        self.is_open(number) || self.expired.contains_key(&number)
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
}
