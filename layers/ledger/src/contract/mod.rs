//! The contract of a ledger: the types that all stores share, and its traits.
//!
//! [`Ledger`] is what a call needs; [`LedgerAdmin`] is what an operator needs. [`EventStore`], [`Documents`] and
//! [`LeaderLease`] are for consumers of events and for other background tasks. [`super::book`] is the state machine
//! that defines every answer.

mod documents;
mod events;
mod groups;
mod journal;
mod leader;
mod views;

use std::{fmt, future::Future, sync::Arc, time::Duration};

use futures_util::future::join_all;
use serde::{Deserialize, Serialize};

#[cfg(feature = "redis")]
pub(crate) use self::journal::entry_of;
pub use self::{
    documents::{Document, Documents, Update, Updating, Versioned},
    events::{EVENTS_AT_ONCE_MAX, EVENTS_MAX, EventStore, ONCE_MS, OnceEvent},
    groups::{GroupChange, GroupRecord, GroupView},
    journal::{JOURNAL_LINES_MAX, JournalLine, JournalPage, JournalPages, JournalPart, Receipt},
    leader::LeaderLease,
    views::{AccountBooks, AccountView, KeyChange, KeyView, OpenHold, PeriodView},
};
use crate::{
    BoxError,
    account::{AccountId, GroupId, KeyId, KeyRecord},
    ceiling::{Ceiling, Ceilings},
    endpoint::{self, Endpoint},
    money::MicroRub,
    number::RequestNumber,
    price::Price,
    session::{self, SessionId},
    timeline::{self, Timeline},
    usage::{End, StoppedBy, Usage},
};

/// A request to hold money for a call.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Hold {
    /// The call's number, which is also the hold's id.
    pub number: RequestNumber,
    /// The account that pays.
    pub account: AccountId,
    /// The key that the call is made with.
    pub key: KeyId,
    /// The most that the call can cost.
    pub want: MicroRub,
    /// The smallest acceptable hold: if less than `want` is free, all that is free is held, but at least this amount.
    pub least: MicroRub,
    /// The time after which the hold expires unless it is settled, released or extended.
    pub ttl: Duration,
}

impl Hold {
    /// Creates a request to hold `amount`, all or nothing.
    #[must_use]
    pub const fn new(
        number: RequestNumber,
        account: AccountId,
        key: KeyId,
        amount: MicroRub,
        ttl: Duration,
    ) -> Self {
        Self {
            number,
            account,
            key,
            want: amount,
            least: amount,
            ttl,
        }
    }

    /// Returns the request with `least` equal to `want`, so that the hold is granted in full or refused.
    #[cfg(feature = "redis")]
    pub(crate) fn whole(&self) -> Self {
        Self {
            least: self.want,
            ..self.clone()
        }
    }
}

/// The answer to a request for a hold that was granted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Reserved {
    /// The amount held: `min(want, free)`.
    pub held: MicroRub,
    /// The amount that this key can still hold after this hold.
    pub free: MicroRub,
}

/// The reason why nothing was held. The enum is exhaustive on purpose: code that converts a refusal to an answer must
/// handle every reason.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Refusal {
    /// The account or the key does not exist.
    Unknown,
    /// The account is suspended.
    Suspended,
    /// The key is disabled or deleted.
    Disabled,
    /// The account has no balance left.
    AccountEmpty,
    /// A ceiling of the key, or of its group, is used up.
    CeilingUsedUp(Ceiling),
    /// The free money is less than the smallest acceptable hold, although neither the balance nor a ceiling is used up.
    DoesNotFit {
        /// The amount that this key can still hold now.
        free: MicroRub,
        /// The amount that the key's running calls hold.
        held: MicroRub,
        /// The ceiling of the key or its group that limits `free`; `None` if the account's balance limits it.
        ceiling: Option<Ceiling>,
    },
    /// The key has reached the limit of its open calls.
    TooManyCalls {
        /// The limit of the key's open calls.
        most: u32,
    },
    /// The call was settled or released before.
    Gone,
    /// The call already has a hold with another amount, account or key.
    Conflict,
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let word = match self {
            Self::Unknown => "unknown",
            Self::Suspended => "suspended",
            Self::Disabled => "disabled",
            Self::AccountEmpty => "account_empty",
            Self::CeilingUsedUp(_) => "ceiling_used_up",
            Self::TooManyCalls { most } => return write!(f, "too_many_calls: {most} at once"),
            Self::DoesNotFit { free, held, .. } => {
                return write!(f, "does_not_fit: {free} free, {held} held");
            }
            Self::Gone => "gone",
            Self::Conflict => "conflict",
        };
        f.write_str(word)
    }
}

/// A change of the amount that a running call holds.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Adjustment {
    /// The call's number.
    pub number: RequestNumber,
    /// The account that pays.
    pub account: AccountId,
    /// The key that the call is made with.
    pub key: KeyId,
    /// The number of this change among the changes of the call's hold, from 1. If the ledger has already carried out a
    /// change with the same or a higher number, this change has no effect.
    pub sequence: u32,
    /// The amount that is held from now on.
    pub amount: MicroRub,
}

/// The answer to an [`Adjustment`] that was not refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Adjusted {
    /// The call holds this amount now: the requested amount, or that of a change with a higher number.
    Held(MicroRub),
    /// The call holds nothing: it has ended, its hold has expired or was lost, or it was never held.
    Gone,
    /// This ledger cannot change holds; the hold is as before.
    Unsupported,
}

/// The reason why a ledger operation failed.
#[derive(Debug, thiserror::Error)]
pub enum LedgerError {
    /// The ledger refused the request.
    #[error("refused: {0}")]
    Refused(Refusal),
    /// The ledger did not answer, or its answer was lost. The operation may have been carried out.
    #[error("ledger out of reach")]
    Unavailable(#[source] BoxError),
}

/// The end of a call that cost something: what it used and what it cost.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct Settlement {
    /// The call's number.
    pub number: RequestNumber,
    /// The account that pays.
    pub account: AccountId,
    /// The key that the call was made with.
    pub key: KeyId,
    /// The amount that was held at first. If the hold was changed, the item has the later amounts.
    pub held: MicroRub,
    /// The cost of the call.
    pub cost: MicroRub,
    /// Whether the first attempt to settle was so recent that the tombstone of an earlier settlement would still exist.
    /// If so, and the ledger finds neither hold nor tombstone, then it has lost the hold and may charge the call
    /// without it.
    pub fresh: bool,
    /// The lease that held the call's money, if the call is settled by another process than the lease's owner.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub lease: Option<RequestNumber>,
    /// The content of the receipt in addition to the money.
    pub item: Item,
}

impl Settlement {
    /// Creates the settlement of a call that has just ended and cost `cost`. `held` is the amount granted for `hold`.
    #[must_use]
    pub fn new(hold: &Hold, held: MicroRub, cost: MicroRub, item: Item) -> Self {
        Self {
            number: hold.number,
            account: hold.account.clone(),
            key: hold.key.clone(),
            held,
            cost,
            fresh: true,
            lease: None,
            item,
        }
    }

    /// The amount that was held when the call ended.
    #[must_use]
    pub fn held_at_end(&self) -> MicroRub {
        self.item.held_at_end_rub.unwrap_or(self.held)
    }
}

/// The content of a receipt in addition to the money: what was sold, at which price, and how the call ran.
///
/// Ledgers store it as JSON, in files and streams that gateways of several versions read. So fields of later versions
/// may be missing, empty fields are left out, and unknown fields are ignored. The order of fields is fixed: first the
/// fields that many calls have in common, then, from `usage` on, the fields that differ between calls.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Item {
    /// The catalog's name of the model, or of another thing that is sold.
    pub model: String,
    /// The vendor that answered.
    pub vendor: String,
    /// The prices that the cost was computed with.
    pub price: Option<Arc<Price>>,
    /// Whether the usage was estimated or repaired, because the vendor's usage was missing or implausible.
    pub estimated: bool,
    /// Whether the vendor's counts were impossible and were cut to what the hold covers.
    #[serde(default)]
    pub bounded: bool,
    /// Whether the vendor reported tokens or units that have no price. They were charged at the highest rate that
    /// covers them.
    #[serde(default, skip_serializing_if = "is_false")]
    pub unpriced: bool,
    /// The way in which the call ended.
    pub end: End,
    /// The endpoint that the call was made to; `None` if the gateway did not record it.
    #[serde(
        default,
        skip_serializing_if = "Option::is_none",
        deserialize_with = "endpoint::kept"
    )]
    pub endpoint: Option<Endpoint>,
    /// The tokens of the call, by class.
    pub usage: Usage,
    /// The vendor's price of the call, if the vendor's rates are configured: in rubles, at the exchange rate on which
    /// the call's own price is based. Only the operator sees it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub vendor_cost_rub: Option<MicroRub>,
    /// The usage that the vendor reported, if the charged usage was cut (`bounded`). Only the operator sees it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub vendor_usage: Option<Usage>,
    /// The vendor's price of the usage that was cut, as far as the vendor may bill it. It is a loss of the operator and
    /// not part of the call's cost. Only the operator sees it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub bounded_loss_rub: Option<MicroRub>,
    /// The largest amount that the call held, if its hold was changed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub held_max_rub: Option<MicroRub>,
    /// The amount that the call held when it ended, if its hold was changed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub held_at_end_rub: Option<MicroRub>,
    /// Why the gateway stopped the call, if it did: its growing hold could not be raised.
    #[serde(
        default,
        skip_serializing_if = "Option::is_none",
        deserialize_with = "StoppedBy::kept"
    )]
    pub stopped_by: Option<StoppedBy>,
    /// The session that the caller's request names, if any.
    #[serde(
        default,
        skip_serializing_if = "Option::is_none",
        deserialize_with = "session::kept"
    )]
    pub session: Option<SessionId>,
    /// The call's timing; `None` if it was not recorded.
    #[serde(
        rename = "times",
        default,
        skip_serializing_if = "Option::is_none",
        deserialize_with = "timeline::kept"
    )]
    pub timeline: Option<Timeline>,
}

impl Item {
    /// Creates an item with the mandatory fields: no usage, and all other fields empty. Code that fills in the other
    /// fields with `..Item::new(…)` keeps compiling when fields are added.
    #[must_use]
    pub fn new(model: impl Into<String>, vendor: impl Into<String>, end: End) -> Self {
        Self {
            model: model.into(),
            vendor: vendor.into(),
            usage: Usage::default(),
            price: None,
            estimated: false,
            bounded: false,
            unpriced: false,
            vendor_cost_rub: None,
            vendor_usage: None,
            bounded_loss_rub: None,
            held_max_rub: None,
            held_at_end_rub: None,
            stopped_by: None,
            end,
            session: None,
            endpoint: None,
            timeline: None,
        }
    }
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde's signature")]
const fn is_false(flag: &bool) -> bool {
    !*flag
}

/// How a settlement was booked.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum Booked {
    /// The call was charged from its hold.
    Held,
    /// The call was charged from free money, because its hold had expired.
    Late,
    /// The call was charged from free money, because the ledger had lost its hold.
    Forced,
    /// The call was not charged: it never had a hold, or it ended too long ago to rule out an earlier settlement.
    Stale,
    /// The call was not charged: the account does not exist any more.
    NoAccount,
    /// The call was not charged, because its hold had been released.
    Released,
}

impl Booked {
    /// Returns the name of this result in receipts and logs.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Held => "held",
            Self::Late => "late",
            Self::Forced => "forced",
            Self::Stale => "stale",
            Self::NoAccount => "no_account",
            Self::Released => "released",
        }
    }
}

/// The result of a settlement.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Settled {
    /// How the call was booked at its first settlement.
    pub booked: Booked,
    /// The amount that was charged.
    pub charged: MicroRub,
    /// The part of the cost that could not be charged; the operator bears it.
    pub loss: MicroRub,
    /// Whether the call had been booked before. The other fields then have the result of its first settlement.
    pub repeated: bool,
}

impl Settled {
    /// Returns whether this settlement moved money. A repeat of an earlier settlement does not.
    #[must_use]
    pub const fn moved(&self) -> bool {
        !self.repeated && matches!(self.booked, Booked::Held | Booked::Late | Booked::Forced)
    }
}

/// The ledger operations that a call needs. Every operation is idempotent by the call's number.
pub trait Ledger: Send + Sync + 'static {
    /// Holds money, atomically over the account and the key.
    ///
    /// # Errors
    /// [`LedgerError::Refused`] with the reason. [`LedgerError::Unavailable`]: the money may be held nevertheless, so
    /// release the hold.
    fn reserve(&self, hold: &Hold) -> impl Future<Output = Result<Reserved, LedgerError>> + Send;

    /// Charges a call and ends its hold.
    ///
    /// # Errors
    /// [`LedgerError::Unavailable`]: the call may have been charged; settle it again.
    fn settle(
        &self,
        settlement: &Settlement,
    ) -> impl Future<Output = Result<Settled, LedgerError>> + Send;

    /// Charges calls that ended at about the same time. Returns the results of [`Ledger::settle`] in the same order. A
    /// ledger overrides this method if settling many calls together is cheaper.
    fn settle_all(
        &self,
        settlements: &[Settlement],
    ) -> impl Future<Output = Vec<Result<Settled, LedgerError>>> + Send {
        join_all(settlements.iter().map(|call| self.settle(call)))
    }

    /// Ends a hold without a charge. A request for a hold under this number that arrives later is refused.
    ///
    /// # Errors
    /// [`LedgerError::Unavailable`]: the hold may have ended; release it again.
    fn release(
        &self,
        number: RequestNumber,
        account: &AccountId,
        key: &KeyId,
    ) -> impl Future<Output = Result<(), LedgerError>> + Send;

    /// Sets a hold's expiry to `ttl` from now. Returns whether the hold still existed.
    ///
    /// # Errors
    /// [`LedgerError::Unavailable`] if the ledger does not answer.
    fn extend(
        &self,
        number: RequestNumber,
        account: &AccountId,
        ttl: Duration,
    ) -> impl Future<Output = Result<bool, LedgerError>> + Send;

    /// Changes the amount that a running call holds, atomically over the account and the key. A smaller amount is
    /// always granted. A larger one is granted in full or refused, by the same rules as a new hold.
    ///
    /// The default changes nothing and returns [`Adjusted::Unsupported`], so that calls keep the amount of their first
    /// hold.
    ///
    /// # Errors
    /// [`LedgerError::Refused`] if a larger amount is refused: the hold is unchanged. [`LedgerError::Unavailable`]: the
    /// hold may have changed. Repeat the request, or make another change with a higher number.
    fn adjust(
        &self,
        adjustment: &Adjustment,
    ) -> impl Future<Output = Result<Adjusted, LedgerError>> + Send {
        let _ = adjustment;
        std::future::ready(Ok(Adjusted::Unsupported))
    }

    /// Returns whether the key could hold any amount. Checks for the refusals of [`Ledger::reserve`] that do not depend
    /// on an amount.
    ///
    /// # Errors
    /// [`LedgerError::Refused`] with the reason, or [`LedgerError::Unavailable`].
    fn probe(
        &self,
        account: &AccountId,
        key: &KeyId,
    ) -> impl Future<Output = Result<(), LedgerError>> + Send;

    /// Ends expired holds, a limited number per call, and returns how many it ended.
    ///
    /// # Errors
    /// [`LedgerError::Unavailable`] if the ledger does not answer.
    fn expire(&self) -> impl Future<Output = Result<usize, LedgerError>> + Send;

    /// Returns the lease from which this process holds the call's money, if any. If another process settles the call,
    /// it must pass this number in the settlement. `None` for a ledger without leases.
    fn lease_of(&self, number: RequestNumber, key: &KeyId) -> Option<RequestNumber> {
        let _ = (number, key);
        None
    }

    /// Records on this machine what running calls would cost if the process died now. After a crash, the next process
    /// settles each call at that cost. A later checkpoint of a call replaces the earlier one; settling or releasing the
    /// call deletes it.
    /// Does nothing for a ledger that cannot store checkpoints.
    ///
    /// # Errors
    /// The checkpoint was not stored.
    fn checkpoint(
        &self,
        running: &[Settlement],
    ) -> impl Future<Output = Result<(), LedgerError>> + Send {
        let _ = running;
        std::future::ready(Ok(()))
    }
}

/// Makes a ledger type shareable whose clones do not share the money.
impl<L: Ledger> Ledger for Arc<L> {
    fn reserve(&self, hold: &Hold) -> impl Future<Output = Result<Reserved, LedgerError>> + Send {
        L::reserve(self, hold)
    }

    fn settle(
        &self,
        settlement: &Settlement,
    ) -> impl Future<Output = Result<Settled, LedgerError>> + Send {
        L::settle(self, settlement)
    }

    fn settle_all(
        &self,
        settlements: &[Settlement],
    ) -> impl Future<Output = Vec<Result<Settled, LedgerError>>> + Send {
        L::settle_all(self, settlements)
    }

    fn release(
        &self,
        number: RequestNumber,
        account: &AccountId,
        key: &KeyId,
    ) -> impl Future<Output = Result<(), LedgerError>> + Send {
        L::release(self, number, account, key)
    }

    fn extend(
        &self,
        number: RequestNumber,
        account: &AccountId,
        ttl: Duration,
    ) -> impl Future<Output = Result<bool, LedgerError>> + Send {
        L::extend(self, number, account, ttl)
    }

    fn adjust(
        &self,
        adjustment: &Adjustment,
    ) -> impl Future<Output = Result<Adjusted, LedgerError>> + Send {
        L::adjust(self, adjustment)
    }

    fn probe(
        &self,
        account: &AccountId,
        key: &KeyId,
    ) -> impl Future<Output = Result<(), LedgerError>> + Send {
        L::probe(self, account, key)
    }

    fn expire(&self) -> impl Future<Output = Result<usize, LedgerError>> + Send {
        L::expire(self)
    }

    fn lease_of(&self, number: RequestNumber, key: &KeyId) -> Option<RequestNumber> {
        L::lease_of(self, number, key)
    }

    fn checkpoint(
        &self,
        running: &[Settlement],
    ) -> impl Future<Output = Result<(), LedgerError>> + Send {
        L::checkpoint(self, running)
    }
}

/// A payment into an account, or a correction.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Entry {
    /// The operator's id of the entry. Booking an entry with the same id again changes nothing.
    pub id: String,
    /// The signed amount of the entry.
    pub amount: MicroRub,
    /// The reason of a correction; `None` for a payment.
    pub reason: Option<String>,
}

/// The reason why an operator's request failed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum BookError {
    /// The account, key or receipt does not exist.
    #[error("not found")]
    NotFound,
    /// An account, key or entry with this id already exists with other contents.
    #[error("this name or number exists already, with other contents")]
    Exists,
    /// The balance would fall below the held amount, or below zero.
    #[error("the balance would fall below what is held")]
    BelowHeld,
    /// The balance would exceed [`MicroRub::MAX`].
    #[error("the balance would exceed the largest amount")]
    AboveMax,
    /// The group does not exist in the account, or was removed.
    #[error("the account has no such group, or it was removed")]
    NoGroup,
    /// The group still has keys that are not deleted.
    #[error("the group has keys that are not deleted")]
    GroupInUse,
    /// The ledger did not answer, or its answer was lost: retry with the same id.
    #[error("ledger out of reach")]
    Unavailable(#[source] BoxError),
}

/// A version of the tariff. Its number increases by one whenever the tariff changes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct TariffVersion {
    /// The number of the version, from 1.
    pub id: u64,
    /// Unix time in milliseconds from which this version is in force.
    pub effective_from_ms: u64,
}

/// The result of an audit.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Audit {
    /// The number of accounts that were checked.
    pub accounts: u64,
    /// The number of keys that were checked.
    pub keys: u64,
    /// The number of open holds that were found.
    pub holds_open: u64,
    /// Every breach of an invariant; the text begins with the invariant's name.
    pub breaches: Vec<String>,
}

/// The ledger operations that an operator needs. Each change that is acknowledged here is durable.
pub trait LedgerAdmin: Send + Sync + 'static {
    /// Opens an account. Opening it again with the same name changes nothing.
    ///
    /// # Errors
    /// A [`BookError`] if the ledger refuses or is out of reach.
    fn create_account(
        &self,
        id: &AccountId,
        name: &str,
    ) -> impl Future<Output = Result<AccountView, BookError>> + Send;

    /// Renames an account, suspends it or resumes it. `None` leaves a field unchanged.
    ///
    /// # Errors
    /// A [`BookError`] if the ledger refuses or is out of reach.
    fn change_account(
        &self,
        id: &AccountId,
        name: Option<&str>,
        suspended: Option<bool>,
    ) -> impl Future<Output = Result<AccountView, BookError>> + Send;

    /// Returns one account.
    ///
    /// # Errors
    /// A [`BookError`] if the ledger refuses or is out of reach.
    fn account(
        &self,
        id: &AccountId,
    ) -> impl Future<Output = Result<AccountView, BookError>> + Send;

    /// Returns all accounts by id.
    ///
    /// # Errors
    /// A [`BookError`] if the ledger refuses or is out of reach.
    fn accounts(&self) -> impl Future<Output = Result<Vec<AccountView>, BookError>> + Send;

    /// Books a payment or a correction, once per id. A repeat is accepted if its amount is the same, even if its reason
    /// differs; [`LedgerAdmin::entry`] returns the reason that was booked.
    ///
    /// # Errors
    /// [`BookError::Exists`] if the id was booked with another amount, or another [`BookError`].
    fn enter(
        &self,
        account: &AccountId,
        entry: &Entry,
    ) -> impl Future<Output = Result<AccountView, BookError>> + Send;

    /// Returns the entry with this id, if the journal still has it. A ledger overrides this method if it can find the
    /// entry without reading the journal.
    ///
    /// # Errors
    /// A [`BookError`] if the ledger refuses or is out of reach.
    fn entry(
        &self,
        account: &AccountId,
        id: &str,
    ) -> impl Future<Output = Result<Option<Entry>, BookError>> + Send {
        journal::entry_of(self, account, id)
    }

    /// Adds a key to its account.
    ///
    /// # Errors
    /// A [`BookError`] if the ledger refuses or is out of reach.
    fn create_key(
        &self,
        record: &KeyRecord,
        ceilings: Ceilings,
    ) -> impl Future<Output = Result<KeyView, BookError>> + Send;

    /// Changes a key. Once disabling a key is acknowledged, no new hold is made on it.
    ///
    /// # Errors
    /// A [`BookError`] if the ledger refuses or is out of reach.
    fn change_key(
        &self,
        id: &KeyId,
        change: &KeyChange,
    ) -> impl Future<Output = Result<KeyView, BookError>> + Send;

    /// Returns one key.
    ///
    /// # Errors
    /// A [`BookError`] if the ledger refuses or is out of reach.
    fn key(&self, id: &KeyId) -> impl Future<Output = Result<KeyView, BookError>> + Send;

    /// Returns all keys of an account, by id, including deleted ones.
    ///
    /// # Errors
    /// A [`BookError`] if the ledger refuses or is out of reach.
    fn keys(
        &self,
        account: &AccountId,
    ) -> impl Future<Output = Result<Vec<KeyView>, BookError>> + Send;

    /// Creates a group of an account's keys. Creating it again with the same name and ceilings changes nothing. The id
    /// of a removed group cannot be used again.
    ///
    /// # Errors
    /// A [`BookError`] if the ledger refuses or is out of reach.
    fn create_group(
        &self,
        account: &AccountId,
        record: &GroupRecord,
        ceilings: Ceilings,
    ) -> impl Future<Output = Result<GroupView, BookError>> + Send;

    /// Changes a group, or removes it. A group can be removed only after its last key has left or was deleted.
    ///
    /// # Errors
    /// A [`BookError`] if the ledger refuses or is out of reach.
    fn change_group(
        &self,
        account: &AccountId,
        id: &GroupId,
        change: &GroupChange,
    ) -> impl Future<Output = Result<GroupView, BookError>> + Send;

    /// Returns all groups of an account, by id, including removed ones.
    ///
    /// # Errors
    /// A [`BookError`] if the ledger refuses or is out of reach.
    fn groups(
        &self,
        account: &AccountId,
    ) -> impl Future<Output = Result<Vec<GroupView>, BookError>> + Send;

    /// Returns the receipt of a call.
    ///
    /// # Errors
    /// A [`BookError`] if the ledger refuses or is out of reach.
    fn receipt(
        &self,
        number: RequestNumber,
    ) -> impl Future<Output = Result<Receipt, BookError>> + Send;

    /// Returns the receipt of a call of this account; [`BookError::NotFound`] for a call of another account. Unlike
    /// [`LedgerAdmin::receipt`], this method may serve callers: a store with separate data per account reads no other
    /// account.
    ///
    /// # Errors
    /// A [`BookError`] if the ledger refuses or is out of reach.
    fn receipt_of(
        &self,
        account: &AccountId,
        number: RequestNumber,
    ) -> impl Future<Output = Result<Receipt, BookError>> + Send {
        let found = self.receipt(number);
        async move {
            let receipt = found.await?;
            if receipt.account != *account {
                return Err(BookError::NotFound);
            }
            Ok(receipt)
        }
    }

    /// Returns a part of an account's journal, oldest line first unless `part` requests the newest first. Pages that
    /// are read one after another by their `next` contain every line once, even if lines are booked meanwhile.
    ///
    /// # Errors
    /// A [`BookError`] if the ledger refuses or is out of reach.
    fn journal(
        &self,
        account: &AccountId,
        part: &JournalPart<'_>,
    ) -> impl Future<Output = Result<JournalPage, BookError>> + Send;

    /// Returns an account with its keys and holds at one moment, and the position of its journal's end at that moment.
    ///
    /// # Errors
    /// A [`BookError`] if the ledger refuses or is out of reach.
    fn books(
        &self,
        account: &AccountId,
    ) -> impl Future<Output = Result<AccountBooks, BookError>> + Send;

    /// Returns the tariff's version. Creates a new version if `fingerprint` differs from that of the version in force.
    ///
    /// # Errors
    /// A [`BookError`] if the ledger refuses or is out of reach.
    fn tariff_version(
        &self,
        fingerprint: &str,
    ) -> impl Future<Output = Result<TariffVersion, BookError>> + Send;

    /// Checks the invariants I1 to I5 over the whole ledger. The default checks what [`audit`](crate::audit::audit) can
    /// read from books and journals; a store that can check more data overrides it.
    ///
    /// # Errors
    /// A [`BookError`] if the ledger refuses or is out of reach.
    fn audit(&self) -> impl Future<Output = Result<Audit, BookError>> + Send {
        crate::audit::audit(self)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// An item as versions without sessions and endpoints write it.
    const PLAIN: &str = r#"{"model":"m","vendor":"v","usage":{"input":1,"cached_input":0,"cache_write":0,"output":2},"price":null,"estimated":false,"bounded":false,"end":"finished"}"#;

    fn value(json: &str) -> serde_json::Value {
        serde_json::from_str(json).unwrap_or_else(|error| panic!("{json}: {error}"))
    }

    fn plain() -> Item {
        Item {
            usage: Usage {
                input: 1,
                output: 2,
                ..Usage::default()
            },
            ..Item::new("m", "v", End::Finished)
        }
    }

    #[test]
    fn receipt_without_session_and_endpoint_keeps_its_old_format() {
        assert_eq!(serde_json::to_value(plain()).unwrap(), value(PLAIN));
        assert_eq!(serde_json::from_str::<Item>(PLAIN).unwrap(), plain());
    }

    #[test]
    fn item_with_fields_of_another_version_is_read() {
        let with = |more: &str| {
            let json = format!("{},{more}}}", PLAIN.strip_suffix('}').unwrap());
            serde_json::from_str::<Item>(&json).unwrap_or_else(|error| panic!("{json}: {error}"))
        };
        let session = Some("s-1".parse().unwrap());
        let named = Item { session, ..plain() };
        let endpoint = Some(Endpoint::ChatCompletions);
        let placed = Item {
            endpoint,
            ..plain()
        };
        for (item, more) in [
            (&named, r#""session":"s-1""#),
            (&placed, r#""endpoint":"chat/completions""#),
        ] {
            let expected = PLAIN.replace("\"finished\"", &format!("\"finished\",{more}"));
            assert_eq!(serde_json::to_value(item).unwrap(), value(&expected));
        }
        for (more, expected) in [
            (r#""session":"s-1""#, &named),
            (r#""session":null"#, &plain()),
            (
                r#""session":"what only a later version takes for one""#,
                &plain(),
            ),
            (r#""cache_class":{"five":[1,2]},"session":"s-1""#, &named),
            (r#""endpoint":"chat/completions""#, &placed),
            (r#""endpoint":null"#, &plain()),
            (r#""endpoint":"what only a later version has""#, &plain()),
            (r#""endpoint":"\u0063hat/completions""#, &placed),
        ] {
            assert_eq!(with(more), *expected, "{more}");
        }
    }
}
