//! The ledger's state machine. It is pure: its inputs are commands and times, its outputs are results, and it uses no
//! clock and no socket.
//!
//! The memory store consists of this book, the SQLite store uses it as its working state, and tests compare the Redis
//! scripts with it.
//!
//! The invariants use these names. Account A has a balance `b` and holds the amount `h`. Its key k has a ceiling `l`,
//! has spent `u`, and holds `h_k`. A key may also have ceilings per day and per month. For these, `u` is what was
//! charged in the current day or month (UTC), but `h_k` is still everything that the key holds, because it is unknown
//! on which day a call will be charged. A key may be in a group, which has the same kinds of ceilings. For the group's
//! ceilings, `u` is what its keys were charged while they were in the group, and `h_k` is what its keys hold. The
//! invariants:
//!
//! - **I1** A hold is granted or enlarged only up to `min(b − h, l − u − h_k)`, for every ceiling `l`, in one atomic
//!   step.
//! - **I2** `h` and `h_k` are the sums of the open holds.
//! - **I3** `b = Σ entries − Σ u`, and `Σ cost = Σ charged + loss` over all settled calls. The cost in each receipt
//!   follows from its usage and prices.
//! - **I4** `0 ≤ h ≤ b`.
//! - **I5** A hold ends once: it is settled, released or expires. An expired hold is settled late at most once. A
//!   repeated settlement or release gets the first result.

mod audit;
mod charge;
mod events;
mod expiry;
mod group;
mod hold;
#[cfg(all(feature = "redis", any(test, feature = "testing")))]
mod lease;

use std::{
    collections::{BTreeMap, BTreeSet, HashMap, VecDeque},
    time::Duration,
};

use foldhash::fast::FixedState;

use super::contract::{Adjusted, Adjustment, BookError, Entry, Hold, Refusal, Reserved, Settled};
use crate::{
    account::{AccountId, GroupId, KeyId},
    ceiling::{Ceilings, Period},
    happening::{Happening, Levels},
    money::MicroRub,
    number::RequestNumber,
};

/// Unix time in milliseconds.
pub type Millis = u64;

/// Returns the whole milliseconds of a duration.
pub(crate) fn millis(duration: Duration) -> Millis {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}

/// How long the result of an ended hold (its tombstone) is kept to answer repeated commands, in milliseconds.
pub const TOMBSTONE_MS: Millis = 600_000;
/// How long after its expiry a hold can still be settled, in milliseconds.
pub const EXPIRED_MS: Millis = 7 * 24 * 3_600_000;
/// The largest number of expired holds that a RESERVE ends if there is too little free money.
pub const EXPIRE_ON_RESERVE_MAX: usize = 32;

/// The hasher for ids and request numbers. It has no random seed, so that a simulation can be repeated.
pub(crate) type Hashing = FixedState;

/// All accounts, and when each of them must be checked for expired holds.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Book {
    accounts: HashMap<AccountId, Account, Hashing>,
    /// Accounts, sorted by the time of their next check for expired holds. An account's first hold never expires before
    /// this time.
    watched: BTreeSet<(Millis, AccountId)>,
}

/// An account with its keys and holds.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Account {
    /// Whether the account is suspended; all calls of a suspended account are refused.
    pub suspended: bool,
    /// The balance (`b` in the invariants): payments and corrections minus charges.
    pub balance: MicroRub,
    /// The sum of the open holds (`h` in the invariants).
    pub held: MicroRub,
    /// The sum of costs that could not be charged.
    pub loss: MicroRub,
    /// The alert levels of the balance: at each of them an event is emitted.
    pub levels: Levels,
    /// Events that [`Account::happened`] has not returned yet.
    happened: Vec<(Option<KeyId>, Happening)>,
    keys: BTreeMap<KeyId, KeyBook>,
    groups: BTreeMap<GroupId, GroupBook>,
    /// The group of each key; keys without a group are left out.
    group_of: BTreeMap<KeyId, GroupId>,
    /// Whether any key has a limit of open calls.
    limits_calls: bool,
    entries: HashMap<String, MicroRub>,
    entered: i128,
    open: HashMap<RequestNumber, Open, Hashing>,
    due: BTreeSet<(Millis, RequestNumber)>,
    /// The account's time in [`Book::watched`]; `None` if the account is not in it.
    watched: Option<Millis>,
    expired: HashMap<RequestNumber, Expired, Hashing>,
    tombstones: HashMap<RequestNumber, Settled, Hashing>,
    tombstones_by_age: VecDeque<(Millis, RequestNumber)>,
}

/// The money of one key.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct KeyBook {
    /// Whether new holds of the key are granted.
    pub enabled: bool,
    /// The ceilings (`l` in the invariants): in total, per month and per day.
    pub ceilings: Ceilings,
    /// The sum of the key's charges (`u` in the invariants).
    pub used: MicroRub,
    /// The sum of the key's open holds (`h_k` in the invariants).
    pub held: MicroRub,
    /// The month of the key's last charge, and the key's spending before that month.
    pub month: Period,
    /// The day of the key's last charge, and the key's spending before that day.
    pub day: Period,
    /// The alert levels: an event is emitted when the remainder under a ceiling falls to one of them.
    pub levels: Levels,
    /// The limit of the key's open calls; `None` if there is no limit.
    pub concurrency: Option<u32>,
    /// The number of the key's open calls.
    pub calls: u32,
}

/// The money of a group of keys.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct GroupBook {
    /// The group's display name.
    pub name: String,
    /// Whether the group was removed.
    pub removed: bool,
    /// The group's ceilings, the spending of its keys while they were in the group, and the sum of their holds.
    pub money: KeyBook,
    /// The spending of keys that have left the group, minus the amount that the present keys had spent before they
    /// joined. This equals the group's spending minus the total spending of its present keys.
    pub carried: MicroRub,
}

#[derive(Clone, Debug, PartialEq, Eq)]
struct Open {
    key: KeyId,
    held: MicroRub,
    want: MicroRub,
    least: MicroRub,
    due: Millis,
    /// The sequence number of the last change of this hold (ADJUST); 0 if it was never changed.
    adjusted: u32,
}

#[derive(Clone, Debug, PartialEq, Eq)]
struct Expired {
    key: KeyId,
    held: MicroRub,
    at: Millis,
}

/// A command that a book carries out.
#[derive(Clone, Debug, PartialEq, Eq)]
#[allow(missing_docs, reason = "the fields have descriptive names")]
pub enum Command {
    /// Opens an account, suspends it, or resumes it.
    SetAccount {
        account: AccountId,
        /// Whether all calls of the account are refused.
        suspended: bool,
    },
    /// Adds a key, or changes its ceilings and whether it is enabled.
    SetKey {
        account: AccountId,
        key: KeyId,
        /// The most that the key may spend, in total and per period.
        ceilings: Ceilings,
        /// Whether new holds of the key are granted.
        enabled: bool,
    },
    /// Creates a group of keys, or changes its ceilings.
    SetGroup {
        account: AccountId,
        group: GroupId,
        /// The most that the group's keys may spend together, in total and per period.
        ceilings: Ceilings,
    },
    /// Moves a key into a group or out of its group, and sets the limit of the key's open calls.
    Bind {
        account: AccountId,
        key: KeyId,
        /// The key's new group; `None` for no group.
        group: Option<GroupId>,
        /// The limit of the key's open calls; `None` for no limit.
        concurrency: Option<u32>,
    },
    /// Adds a payment or a correction to the balance.
    Enter { account: AccountId, entry: Entry },
    /// RESERVE: holds money for a call.
    Reserve(Hold),
    /// SETTLE: charges a call and ends its hold.
    Settle {
        number: RequestNumber,
        account: AccountId,
        key: KeyId,
        cost: MicroRub,
        /// Whether a tombstone of an earlier settlement would still be stored (see
        /// [`super::contract::Settlement::fresh`]).
        fresh: bool,
    },
    /// RELEASE: ends a hold without a charge.
    Release {
        number: RequestNumber,
        account: AccountId,
    },
    /// EXTEND: sets a new expiry time for a hold.
    Extend {
        number: RequestNumber,
        account: AccountId,
        /// The time from now until the hold expires.
        ttl: Duration,
    },
    /// ADJUST: changes the amount of a hold.
    Adjust(Adjustment),
    /// PROBE: checks whether a key could hold any money at all.
    Probe { account: AccountId, key: KeyId },
    /// EXPIRE: ends the expired holds of an account.
    Expire {
        account: AccountId,
        /// The largest number of holds to end.
        most: usize,
    },
}

/// The outcome of a command.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// The command was carried out, or its entry was already booked.
    Done,
    /// An operator's command was refused.
    Refused(Rejection),
    /// The result of RESERVE.
    Reserve(Result<Reserved, Refusal>),
    /// The result of ADJUST.
    Adjust(Result<Adjusted, Refusal>),
    /// The result of PROBE.
    Probe(Result<(), Refusal>),
    /// The result of SETTLE.
    Settled(Settled),
    /// The result of EXTEND: whether the hold existed.
    Extended(bool),
    /// The result of EXPIRE: the number of holds that were ended.
    Expired(usize),
}

/// The reason why an operator's command was refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Rejection {
    /// The account does not exist.
    NotFound,
    /// An entry with this id was booked with another amount.
    Exists,
    /// The change would leave the account with less money than its open holds reserve.
    BelowHeld,
    /// The change would raise the balance above [`MicroRub::MAX`].
    AboveMax,
    /// The group does not exist, or was removed.
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
        } => {
            done(account_in(book, account).map(|account| account.set_key(key, *ceilings, *enabled)))
        }
        Command::SetGroup {
            account,
            group,
            ceilings,
        } => done(
            account_in(book, account).map(|account| account.set_group(group, "", *ceilings, false)),
        ),
        Command::Bind {
            account,
            key,
            group,
            concurrency,
        } => {
            let account = account_in(book, account);
            done(account.and_then(|account| account.bind(key, group.as_ref(), *concurrency)))
        }
        Command::Enter { account, entry } => done(book.enter(account, entry)),
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
        Command::Adjust(adjustment) => Outcome::Adjust(book.adjust(adjustment, now)),
        Command::Probe { account, key } => Outcome::Probe(book.probe(account, key, now)),
        Command::Expire { account, most } => {
            let expired = account_in(book, account).map(|account| account.expire(*most, now));
            Outcome::Expired(expired.unwrap_or(0))
        }
    }
}

fn account_in<'a>(book: &'a mut Book, account: &AccountId) -> Result<&'a mut Account, Rejection> {
    book.accounts.get_mut(account).ok_or(Rejection::NotFound)
}

fn done(result: Result<(), Rejection>) -> Outcome {
    match result {
        Ok(()) => Outcome::Done,
        Err(rejection) => Outcome::Refused(rejection),
    }
}

impl Book {
    /// Returns the account with this id.
    #[must_use]
    pub fn account(&self, id: &AccountId) -> Option<&Account> {
        self.accounts.get(id)
    }

    /// Returns the account with this id, to change its keys.
    pub fn account_mut(&mut self, id: &AccountId) -> Option<&mut Account> {
        self.accounts.get_mut(id)
    }

    /// Iterates over all accounts, sorted by id.
    pub fn accounts(&self) -> impl Iterator<Item = (&AccountId, &Account)> {
        let mut accounts: Vec<_> = self.accounts.iter().collect();
        accounts.sort_unstable_by_key(|(id, _)| *id);
        accounts.into_iter()
    }

    /// Adds an account that was read from a store. Replaces an account with the same id.
    pub fn restore(&mut self, id: &AccountId, account: Account) {
        self.accounts.insert(id.clone(), account);
        self.watch(id);
    }
}

impl Account {
    /// Creates an account without holds from a store's data. `entries` are the ids and amounts of the account's stored
    /// entries.
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

    /// Adds a key that was read from a store.
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

    /// Returns the money of a key.
    #[must_use]
    pub fn key(&self, id: &KeyId) -> Option<&KeyBook> {
        self.keys.get(id)
    }

    /// Returns the money of a key, to change its alert levels.
    pub fn key_mut(&mut self, id: &KeyId) -> Option<&mut KeyBook> {
        self.keys.get_mut(id)
    }

    /// Iterates over all keys with their ids.
    pub fn keys(&self) -> impl ExactSizeIterator<Item = (&KeyId, &KeyBook)> {
        self.keys.iter()
    }

    /// Iterates over the open holds: call number, key, amount and expiry time.
    pub fn holds(&self) -> impl Iterator<Item = (RequestNumber, &KeyId, MicroRub, Millis)> {
        self.open
            .iter()
            .map(|(number, open)| (*number, &open.key, open.held, open.due))
    }

    /// Returns the number of open holds.
    #[must_use]
    pub fn holds_open(&self) -> usize {
        self.open.len()
    }

    /// Returns whether the call has an open hold.
    #[must_use]
    pub fn is_open(&self, number: RequestNumber) -> bool {
        self.open.contains_key(&number)
    }

    /// Returns whether the book has a hold of this call, either open or expired.
    #[cfg(feature = "redis")]
    pub(crate) fn has_hold(&self, number: RequestNumber) -> bool {
        self.is_open(number) || self.expired.contains_key(&number)
    }

    /// Returns whether the books have an entry with this id.
    #[must_use]
    pub fn has_entry(&self, id: &str) -> bool {
        self.entries.contains_key(id)
    }

    /// Returns the sum of all payments and corrections, in micro-rubles.
    #[must_use]
    pub const fn entered(&self) -> i128 {
        self.entered
    }
}
