//! What a ledger promises: the words that all stores share, and the two traits.
//!
//! [`Ledger`] is what a call needs; [`LedgerAdmin`] is what an operator needs. [`super::book`] is
//! the state machine that says what every answer means.

mod feed;
mod groups;
mod journal;
mod views;

use std::{fmt, future::Future, sync::Arc, time::Duration};

use futures_util::future::join_all;
use serde::{Deserialize, Serialize};

#[cfg(feature = "redis")]
pub(crate) use self::journal::entry_of;
pub use self::{
    feed::{EVENTS_AT_ONCE_MAX, EVENTS_MAX, Feed, Note, TOLD_MS, Telling},
    groups::{GroupChange, GroupRecord, GroupView},
    journal::{JOURNAL_LINES_MAX, JournalLine, JournalPage, JournalPages, JournalPart, Receipt},
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
    usage::{End, Usage},
};

/// A wish to hold money for a call.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Hold {
    /// The call's number, which is the hold's id.
    pub number: RequestNumber,
    /// Who pays.
    pub account: AccountId,
    /// On which key.
    pub key: KeyId,
    /// What the call can cost.
    pub want: MicroRub,
    /// What it must at least hold: less is held when funds are short, down to this.
    pub least: MicroRub,
    /// How long the hold lives unless settled, released or extended.
    pub ttl: Duration,
}

impl Hold {
    /// All or nothing of it.
    #[cfg(feature = "redis")]
    pub(crate) fn whole(&self) -> Self {
        Self {
            least: self.want,
            ..self.clone()
        }
    }
}

/// A hold that stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Reserved {
    /// What is held: `min(want, free)`.
    pub held: MicroRub,
    /// What is left free beside it.
    pub free: MicroRub,
}

/// Why nothing was held. Exhaustive on purpose: whoever turns it into an answer has to know of a new one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Refusal {
    /// No such account or key.
    Unknown,
    /// The account is suspended.
    Suspended,
    /// The key is disabled or deleted.
    Disabled,
    /// The account's posted balance is spent.
    AccountEmpty,
    /// A ceiling of the key, or of its group, is used up.
    CeilingUsedUp(Ceiling),
    /// It does not fit beside what is held.
    DoesNotFit {
        /// Free on this key now.
        free: MicroRub,
        /// Held by the key's running calls.
        held: MicroRub,
        /// The ceiling that leaves no more, of the key or of its group; `None` where the account's money does.
        ceiling: Option<Ceiling>,
    },
    /// As many of the key's calls are open as may be at once.
    TooManyCalls {
        /// How many that are.
        most: u32,
    },
    /// The number was settled or released already.
    Gone,
    /// The number holds something else already.
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

/// Why a ledger did not do what was asked.
#[derive(Debug, thiserror::Error)]
pub enum LedgerError {
    /// It said no.
    #[error("refused: {0}")]
    Refused(Refusal),
    /// It could not be asked, or its answer was lost: it may have done it.
    #[error("ledger out of reach")]
    Unavailable(#[source] BoxError),
}

/// The end of a call: what it used and cost.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Settlement {
    /// The call's number.
    pub number: RequestNumber,
    /// Who pays.
    pub account: AccountId,
    /// On which key.
    pub key: KeyId,
    /// What was held.
    pub held: MicroRub,
    /// What the call cost.
    pub cost: MicroRub,
    /// The first attempt to settle was made so recently that its tombstone would still be there:
    /// a hold that the ledger has never heard of was lost by it, not settled before.
    pub fresh: bool,
    /// The lease that held the money for it, if one did: where it is settled by another process than the one that
    /// held it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub lease: Option<RequestNumber>,
    /// What stands on the receipt beside the money.
    pub item: Item,
}

/// What was bought.
///
/// Ledgers keep it as JSON, in files and streams that gateways of several versions read: what came later may be
/// missing, is left out where there is nothing to say, and what is not known is passed over. Its members stand in this order:
/// what many calls share comes first, and from `usage` on what is each call's own.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Item {
    /// The catalog name, or whatever is sold.
    pub model: String,
    /// Who answered.
    pub vendor: String,
    /// The prices that the cost was computed with.
    pub price: Option<Arc<Price>>,
    /// The usage was estimated or repaired: the vendor's own was missing or absurd.
    pub estimated: bool,
    /// The vendor's counts were beyond what is possible, and were cut to what was held for.
    #[serde(default)]
    pub bounded: bool,
    /// The vendor told of something that has no price: it was charged at the dearest rate that covers it.
    #[serde(default, skip_serializing_if = "is_false")]
    pub unpriced: bool,
    /// How the call ended.
    pub end: End,
    /// Where the call came in; `None` where the gateway that took it did not say.
    #[serde(
        default,
        skip_serializing_if = "Option::is_none",
        deserialize_with = "endpoint::kept"
    )]
    pub endpoint: Option<Endpoint>,
    /// Tokens by class.
    pub usage: Usage,
    /// What the vendor takes for the call, in rubles at the exchange rate of its price, where that is known. The
    /// operator's alone.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub vendor_cost_rub: Option<MicroRub>,
    /// The session that the caller named.
    #[serde(
        default,
        skip_serializing_if = "Option::is_none",
        deserialize_with = "session::kept"
    )]
    pub session: Option<SessionId>,
    /// How it went in time; `None` where nobody watched.
    #[serde(
        rename = "times",
        default,
        skip_serializing_if = "Option::is_none",
        deserialize_with = "timeline::kept"
    )]
    pub timeline: Option<Timeline>,
}

impl Item {
    /// What every receipt says; nothing was counted, and there is nothing more to say. Whoever fills in the rest of it
    /// by `..Item::new(…)` need not know what comes later.
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
    /// From its hold.
    Held,
    /// The hold had expired: from what was free.
    Late,
    /// The ledger had lost the hold: from what was free.
    Forced,
    /// Not at all: a number that was never held, or so long ago that it may have been settled.
    Stale,
    /// Not at all: the account is gone.
    NoAccount,
    /// Not at all: the hold was released.
    Released,
}

impl Booked {
    /// The word that receipts and logs have for it.
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

/// What a settlement moved.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Settled {
    /// How it was booked, the first time.
    pub booked: Booked,
    /// What was charged.
    pub charged: MicroRub,
    /// What it cost beyond what could be charged: ours to bear.
    pub loss: MicroRub,
    /// It had been booked before; this is the first result.
    pub repeated: bool,
}

impl Settled {
    /// Whether this settlement, and no earlier one, moved the money.
    #[must_use]
    pub const fn moved(&self) -> bool {
        !self.repeated && matches!(self.booked, Booked::Held | Booked::Late | Booked::Forced)
    }
}

/// What a call needs of a ledger. Every operation is idempotent by the call's number.
pub trait Ledger: Send + Sync + 'static {
    /// Holds money: one atomic step over the account and the key.
    ///
    /// # Errors
    /// The refusal, or that the ledger is out of reach (and may have held it: release it).
    fn reserve(&self, hold: &Hold) -> impl Future<Output = Result<Reserved, LedgerError>> + Send;

    /// Charges a call and ends its hold.
    ///
    /// # Errors
    /// The ledger is out of reach: ask again.
    fn settle(
        &self,
        settlement: &Settlement,
    ) -> impl Future<Output = Result<Settled, LedgerError>> + Send;

    /// Charges calls that ended at about the same time: what [`Ledger::settle`] says to each, in their
    /// order. Worth an implementation of its own where telling them together is cheaper.
    fn settle_all(
        &self,
        settlements: &[Settlement],
    ) -> impl Future<Output = Vec<Result<Settled, LedgerError>>> + Send {
        join_all(settlements.iter().map(|call| self.settle(call)))
    }

    /// Ends a hold without a charge. A hold that comes later under this number is refused.
    ///
    /// # Errors
    /// The ledger is out of reach: ask again.
    fn release(
        &self,
        number: RequestNumber,
        account: &AccountId,
        key: &KeyId,
    ) -> impl Future<Output = Result<(), LedgerError>> + Send;

    /// Lets a hold live for `ttl` from now. Says whether it still stood.
    ///
    /// # Errors
    /// The ledger is out of reach.
    fn extend(
        &self,
        number: RequestNumber,
        account: &AccountId,
        ttl: Duration,
    ) -> impl Future<Output = Result<bool, LedgerError>> + Send;

    /// Whether the key could hold anything at all: the refusals of [`Ledger::reserve`] that do not
    /// depend on an amount.
    ///
    /// # Errors
    /// The refusal, or that the ledger is out of reach.
    fn probe(
        &self,
        account: &AccountId,
        key: &KeyId,
    ) -> impl Future<Output = Result<(), LedgerError>> + Send;

    /// Ends holds that are past their time, some at a call; says how many.
    ///
    /// # Errors
    /// The ledger is out of reach.
    fn expire(&self) -> impl Future<Output = Result<usize, LedgerError>> + Send;

    /// The lease from which this process holds money for a call, where it does: another process that settles the call
    /// has to name it. A ledger without leases has none.
    fn lease_of(&self, number: RequestNumber, key: &KeyId) -> Option<RequestNumber> {
        let _ = (number, key);
        None
    }

    /// Keeps, on this machine, what running calls would cost should this process die now: the next
    /// process settles them so. A later checkpoint of a number replaces the earlier one; its settling
    /// or releasing ends it. A ledger that keeps nothing does nothing.
    ///
    /// # Errors
    /// It could not be kept.
    fn checkpoint(
        &self,
        running: &[Settlement],
    ) -> impl Future<Output = Result<(), LedgerError>> + Send {
        let _ = running;
        std::future::ready(Ok(()))
    }
}

/// A payment into an account, or a correction (signed).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Entry {
    /// The operator's id for it: the same id again changes nothing.
    pub id: String,
    /// How much.
    pub amount: MicroRub,
    /// Why, for a correction; `None` for a payment.
    pub reason: Option<String>,
}

/// Why an operator's request was not carried out.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum BookError {
    /// No such account, key or receipt.
    #[error("not found")]
    NotFound,
    /// It exists already, with other contents.
    #[error("it exists already, with other contents")]
    Exists,
    /// The balance would fall below what is held, or below zero.
    #[error("the balance would fall below what is held")]
    BelowHeld,
    /// The balance would exceed the largest amount.
    #[error("the balance would exceed the largest amount")]
    AboveMax,
    /// The account has no such group, or it was removed.
    #[error("the account has no such group, or it was removed")]
    NoGroup,
    /// The group has keys that are not deleted.
    #[error("the group has keys that are not deleted")]
    GroupInUse,
    /// The ledger is out of reach, or its answer was lost: ask again with the same id.
    #[error("ledger out of reach")]
    Unavailable(#[source] BoxError),
}

/// A tariff version: grows by one whenever the tariff changes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct TariffVersion {
    /// Its number, from 1.
    pub id: u64,
    /// Unix time in milliseconds since when it is in force.
    pub effective_from_ms: u64,
}

/// What an audit found.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Audit {
    /// Accounts looked at.
    pub accounts: u64,
    /// Keys looked at.
    pub keys: u64,
    /// Holds that stand.
    pub holds_open: u64,
    /// Every breach of an invariant, in words that begin with its name.
    pub breaches: Vec<String>,
}

/// What an operator needs of a ledger. Whatever is acknowledged here is durable.
pub trait LedgerAdmin: Send + Sync + 'static {
    /// Opens an account. The same id and name again changes nothing.
    ///
    /// # Errors
    /// See [`BookError`].
    fn create_account(
        &self,
        id: &AccountId,
        name: &str,
    ) -> impl Future<Output = Result<AccountView, BookError>> + Send;

    /// Renames an account, suspends it or lets it run again.
    ///
    /// # Errors
    /// See [`BookError`].
    fn change_account(
        &self,
        id: &AccountId,
        name: Option<&str>,
        suspended: Option<bool>,
    ) -> impl Future<Output = Result<AccountView, BookError>> + Send;

    /// One account.
    ///
    /// # Errors
    /// See [`BookError`].
    fn account(
        &self,
        id: &AccountId,
    ) -> impl Future<Output = Result<AccountView, BookError>> + Send;

    /// All accounts, by id.
    ///
    /// # Errors
    /// See [`BookError`].
    fn accounts(&self) -> impl Future<Output = Result<Vec<AccountView>, BookError>> + Send;

    /// Books a payment or a correction, once for each id. Whether what was booked under it is of the same kind and reason,
    /// [`LedgerAdmin::entry`] says.
    ///
    /// # Errors
    /// See [`BookError`]; [`BookError::Exists`] when the id came with another amount before.
    fn enter(
        &self,
        account: &AccountId,
        entry: &Entry,
    ) -> impl Future<Output = Result<AccountView, BookError>> + Send;

    /// What was booked under an entry's id, as far as the journal still tells it. Worth an implementation of its own where
    /// it can be found without reading the journal.
    ///
    /// # Errors
    /// See [`BookError`].
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
    /// See [`BookError`].
    fn create_key(
        &self,
        record: &KeyRecord,
        ceilings: Ceilings,
    ) -> impl Future<Output = Result<KeyView, BookError>> + Send;

    /// Changes a key. Once a disabling is acknowledged, the key gets no new hold.
    ///
    /// # Errors
    /// See [`BookError`].
    fn change_key(
        &self,
        id: &KeyId,
        change: &KeyChange,
    ) -> impl Future<Output = Result<KeyView, BookError>> + Send;

    /// One key.
    ///
    /// # Errors
    /// See [`BookError`].
    fn key(&self, id: &KeyId) -> impl Future<Output = Result<KeyView, BookError>> + Send;

    /// All keys of an account, by id; deleted ones too.
    ///
    /// # Errors
    /// See [`BookError`].
    fn keys(
        &self,
        account: &AccountId,
    ) -> impl Future<Output = Result<Vec<KeyView>, BookError>> + Send;

    /// Makes a group of an account's keys. The same id, name and ceilings again change nothing; the id of a removed one is
    /// not used again.
    ///
    /// # Errors
    /// See [`BookError`].
    fn create_group(
        &self,
        account: &AccountId,
        record: &GroupRecord,
        ceilings: Ceilings,
    ) -> impl Future<Output = Result<GroupView, BookError>> + Send;

    /// Changes a group, or removes it, which takes that none of its keys is left.
    ///
    /// # Errors
    /// See [`BookError`].
    fn change_group(
        &self,
        account: &AccountId,
        id: &GroupId,
        change: &GroupChange,
    ) -> impl Future<Output = Result<GroupView, BookError>> + Send;

    /// All groups of an account, by id; removed ones too.
    ///
    /// # Errors
    /// See [`BookError`].
    fn groups(
        &self,
        account: &AccountId,
    ) -> impl Future<Output = Result<Vec<GroupView>, BookError>> + Send;

    /// The receipt of a call.
    ///
    /// # Errors
    /// See [`BookError`].
    fn receipt(
        &self,
        number: RequestNumber,
    ) -> impl Future<Output = Result<Receipt, BookError>> + Send;

    /// The receipt of a call of this account; of another one's there is none. Unlike [`LedgerAdmin::receipt`] it
    /// may be asked by callers: where accounts are kept apart, no other one is looked into.
    ///
    /// # Errors
    /// See [`BookError`].
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

    /// Part of an account's journal, oldest first. Pages that follow each other by their `next` have
    /// every line once, whatever is booked in between.
    ///
    /// # Errors
    /// See [`BookError`].
    fn journal(
        &self,
        account: &AccountId,
        part: &JournalPart<'_>,
    ) -> impl Future<Output = Result<JournalPage, BookError>> + Send;

    /// An account with its keys and holds, at one moment, and how far its journal went then.
    ///
    /// # Errors
    /// See [`BookError`].
    fn books(
        &self,
        account: &AccountId,
    ) -> impl Future<Output = Result<AccountBooks, BookError>> + Send;

    /// The tariff's version: a new one if `fingerprint` differs from that of the version in force.
    ///
    /// # Errors
    /// See [`BookError`].
    fn tariff_version(
        &self,
        fingerprint: &str,
    ) -> impl Future<Output = Result<TariffVersion, BookError>> + Send;

    /// Checks I1–I5 over the whole ledger: what [`audit`](crate::audit::audit) sees in its books and journals, and more
    /// where a store sees more.
    ///
    /// # Errors
    /// See [`BookError`].
    fn audit(&self) -> impl Future<Output = Result<Audit, BookError>> + Send {
        crate::audit::audit(self)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// As versions without sessions and endpoints write it.
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
    fn an_item_without_a_session_or_an_endpoint_is_written_as_before_there_were_any() {
        assert_eq!(serde_json::to_value(plain()).unwrap(), value(PLAIN));
        assert_eq!(serde_json::from_str::<Item>(PLAIN).unwrap(), plain());
    }

    #[test]
    fn an_item_is_read_whatever_another_version_says_beside_it() {
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
