//! What a ledger promises: the words that all stores share, and the two traits.
//!
//! [`Ledger`] is what a call needs; [`Bookkeeping`] is what an operator needs. [`super::book`] is
//! the state machine that says what every answer means.

use std::{fmt, future::Future, sync::Arc, time::Duration};

use futures_util::future::join_all;
use serde::{Deserialize, Serialize};

use crate::{
    ceiling::{Ceiling, Ceilings},
    error::BoxError,
    facts::RequestNumber,
    key::{AccountId, KeyId, KeyRecord, KeyStatus},
    money::MicroRub,
    price::Price,
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

/// A hold that stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Reserved {
    /// What is held: `min(want, free)`.
    pub held: MicroRub,
    /// What is left free beside it.
    pub free: MicroRub,
}

/// Why nothing was held.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub enum Refusal {
    /// No such account or key.
    Unknown,
    /// The account is suspended.
    Suspended,
    /// The key is disabled or deleted.
    Disabled,
    /// The account's posted balance is spent.
    AccountEmpty,
    /// A ceiling of the key is used up.
    CeilingUsedUp(Ceiling),
    /// It does not fit beside what is held.
    DoesNotFit {
        /// Free on this key now.
        free: MicroRub,
        /// Held by the key's running calls.
        held: MicroRub,
        /// The key's ceiling that leaves no more; `None` where the account's money does.
        ceiling: Option<Ceiling>,
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
#[non_exhaustive]
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
    /// What stands on the receipt beside the money.
    pub item: Item,
}

/// What was bought.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Item {
    /// The catalog name, or whatever is sold.
    pub model: String,
    /// Who answered.
    pub vendor: String,
    /// Tokens by class.
    pub usage: Usage,
    /// The prices that the cost was computed with.
    pub price: Option<Arc<Price>>,
    /// The usage was estimated or repaired: the vendor's own was missing or absurd.
    pub estimated: bool,
    /// The vendor's counts were beyond what is possible, and were cut to what was held for.
    #[serde(default)]
    pub bounded: bool,
    /// How the call ended.
    pub end: End,
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

/// A call's receipt.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Receipt {
    /// The call's number.
    pub number: RequestNumber,
    /// Unix time in milliseconds when it was booked.
    pub at_ms: u64,
    /// Who paid.
    pub account: AccountId,
    /// On which key.
    pub key: KeyId,
    /// What was held.
    pub held_rub: MicroRub,
    /// What it cost.
    pub cost_rub: MicroRub,
    /// What was charged.
    pub charged_rub: MicroRub,
    /// Cost beyond the charge.
    pub loss_rub: MicroRub,
    /// How it was booked.
    pub booked: Booked,
    /// What was bought.
    #[serde(flatten)]
    pub item: Item,
}

/// One line of an account's journal: what moved its money, and what was disputed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case")]
pub enum JournalLine {
    /// A payment or a correction.
    Entry {
        /// The operator's id for it.
        id: String,
        /// Unix time in milliseconds when it was booked.
        at_ms: u64,
        /// Whose it is.
        account: AccountId,
        /// How much, signed.
        amount_rub: MicroRub,
        /// Why, for a correction.
        reason: Option<String>,
    },
    /// A call.
    Call(Receipt),
}

impl JournalLine {
    /// Unix time in milliseconds when it was booked.
    #[must_use]
    pub const fn at_ms(&self) -> u64 {
        match self {
            Self::Entry { at_ms, .. } => *at_ms,
            Self::Call(receipt) => receipt.at_ms,
        }
    }
}

/// How many lines a page of a journal has at most.
pub const JOURNAL_LINES_MAX: usize = 1000;

/// Which part of an account's journal is asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct JournalPart<'a> {
    /// From this time on, in Unix milliseconds.
    pub since_ms: u64,
    /// Before this time.
    pub until_ms: u64,
    /// Behind what a page called [`JournalPage::next`].
    pub after: Option<&'a str>,
    /// Nothing that came later than these books: their [`AccountBooks::journal_end`].
    pub end: Option<&'a str>,
    /// How many lines at most; no more than [`JOURNAL_LINES_MAX`] come.
    pub limit: usize,
}

impl JournalPart<'_> {
    /// All of it, in pages as large as they get.
    #[must_use]
    pub const fn whole() -> Self {
        Self {
            since_ms: 0,
            until_ms: u64::MAX,
            after: None,
            end: None,
            limit: JOURNAL_LINES_MAX,
        }
    }
}

/// Lines of a journal, oldest first.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct JournalPage {
    /// The lines.
    pub lines: Vec<JournalLine>,
    /// Where to go on; `None` at the end.
    pub next: Option<String>,
}

/// A hold that stands, as operators see it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct OpenHold {
    /// The call's number.
    pub number: RequestNumber,
    /// On which key.
    pub key: KeyId,
    /// How much.
    pub held_rub: MicroRub,
    /// Unix time in milliseconds when it ends by itself; `None` would be never (a breach of I8).
    pub due_ms: Option<u64>,
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

/// An account as operators see it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct AccountView {
    /// Its id.
    pub id: AccountId,
    /// Its name.
    pub name: String,
    /// No call is admitted while true.
    #[serde(rename = "status", with = "status")]
    pub suspended: bool,
    /// Posted balance: top-ups and adjustments less charges.
    pub balance_rub: MicroRub,
    /// Held by running calls.
    pub held_rub: MicroRub,
    /// Balance less holds.
    pub free_rub: MicroRub,
    /// Charged so far.
    pub spent_rub: MicroRub,
    /// Costs that could not be charged.
    pub loss_rub: MicroRub,
    /// How many holds stand.
    #[serde(default)]
    pub holds_open: u64,
}

mod status {
    use serde::{Deserialize, Deserializer, Serializer};

    #[expect(clippy::trivially_copy_pass_by_ref, reason = "serde's signature")]
    pub(super) fn serialize<S: Serializer>(
        suspended: &bool,
        serializer: S,
    ) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(if *suspended { "suspended" } else { "active" })
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(
        deserializer: D,
    ) -> Result<bool, D::Error> {
        Ok(String::deserialize(deserializer)? == "suspended")
    }
}

/// A key as operators see it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct KeyView {
    /// What it may do.
    #[serde(flatten)]
    pub record: KeyRecord,
    /// The most it may spend, if limited.
    pub ceiling_rub: Option<MicroRub>,
    /// Spent so far.
    pub spent_rub: MicroRub,
    /// Held by its running calls.
    pub held_rub: MicroRub,
    /// What it can spend now: the least of the account's free money and the rests of its ceilings.
    pub free_rub: MicroRub,
    /// The current month.
    pub month: PeriodView,
    /// The current day.
    pub day: PeriodView,
}

#[cfg(any(feature = "redis", feature = "sqlite"))]
impl KeyView {
    /// Its month and its day, as a ledger keeps them.
    pub(super) fn periods(&self) -> (crate::ceiling::Period, crate::ceiling::Period) {
        use crate::{
            calendar::{day_of, month_of},
            ceiling::Period,
        };
        let period = |view: &PeriodView, index: fn(u64) -> u64| Period {
            index: index(view.resets_at_ms.saturating_sub(1)),
            before: self.spent_rub.minus_or_zero(view.spent_rub),
        };
        (period(&self.month, month_of), period(&self.day, day_of))
    }
}

/// What a key may spend and has spent in a day or a month of UTC.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PeriodView {
    /// The most it may spend in it, if limited.
    pub ceiling_rub: Option<MicroRub>,
    /// Spent in it so far.
    pub spent_rub: MicroRub,
    /// When the next one begins, in Unix milliseconds.
    pub resets_at_ms: u64,
}

/// An account with all that belongs to it, at one moment.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct AccountBooks {
    /// Its money.
    #[serde(flatten)]
    pub view: AccountView,
    /// The sum of all its entries, those among them that the journal may have forgotten.
    pub entered_rub: MicroRub,
    /// Its keys, by id; deleted ones too.
    pub keys: Vec<KeyView>,
    /// Its holds, by number.
    pub holds: Vec<OpenHold>,
    /// How far the journal went at that moment.
    pub journal_end: String,
    /// The journal has forgotten nothing: its sums are those of the books.
    pub journal_complete: bool,
}

/// A change of a key. `None` leaves a field alone.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct KeyChange {
    /// The operator's name for it.
    pub name: Option<String>,
    /// Enabled, disabled or deleted. A deleted key stays deleted.
    pub status: Option<KeyStatus>,
    /// The ceiling; `Some(None)` takes it away.
    pub ceiling: Option<Option<MicroRub>>,
    /// The ceiling of a month; `Some(None)` takes it away.
    pub ceiling_month: Option<Option<MicroRub>>,
    /// The ceiling of a day; `Some(None)` takes it away.
    pub ceiling_day: Option<Option<MicroRub>>,
    /// Catalog names it may call.
    pub models: Option<Vec<String>>,
    /// Addresses it may be used from.
    pub addresses: Option<Vec<ipnet::IpNet>>,
    /// Requests per second; `Some(None)` takes the limit away.
    pub requests_per_second: Option<Option<u32>>,
    /// Requests per minute; `Some(None)` takes the limit away.
    pub requests_per_minute: Option<Option<u32>>,
    /// Tokens per minute; `Some(None)` takes the limit away.
    pub tokens_per_minute: Option<Option<u32>>,
    /// When it expires; `Some(None)` means never.
    pub expires_at_ms: Option<Option<u64>>,
    /// When it was changed.
    pub changed_at_ms: Option<u64>,
}

impl KeyChange {
    /// What the change makes of a key's ceilings.
    #[must_use]
    pub fn ceilings(&self, before: Ceilings) -> Ceilings {
        Ceilings {
            total: self.ceiling.unwrap_or(before.total),
            month: self.ceiling_month.unwrap_or(before.month),
            day: self.ceiling_day.unwrap_or(before.day),
        }
    }

    /// Writes the change into a record, its ceilings apart.
    pub fn apply(self, record: &mut KeyRecord) {
        fn set<T>(field: &mut T, value: Option<T>) {
            if let Some(value) = value {
                *field = value;
            }
        }
        set(&mut record.name, self.name);
        set(&mut record.models, self.models);
        set(&mut record.addresses, self.addresses);
        set(&mut record.requests_per_second, self.requests_per_second);
        set(&mut record.requests_per_minute, self.requests_per_minute);
        set(&mut record.tokens_per_minute, self.tokens_per_minute);
        set(&mut record.expires_at_ms, self.expires_at_ms);
        set(&mut record.changed_at_ms, self.changed_at_ms);
        if record.status != KeyStatus::Deleted {
            set(&mut record.status, self.status);
        }
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
pub trait Bookkeeping: Send + Sync + 'static {
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

    /// Books a payment or a correction, once for each id.
    ///
    /// # Errors
    /// See [`BookError`]; [`BookError::Exists`] when the id came with another amount before.
    fn enter(
        &self,
        account: &AccountId,
        entry: &Entry,
    ) -> impl Future<Output = Result<AccountView, BookError>> + Send;

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

    /// The receipt of a call.
    ///
    /// # Errors
    /// See [`BookError`].
    fn receipt(
        &self,
        number: RequestNumber,
    ) -> impl Future<Output = Result<Receipt, BookError>> + Send;

    /// The receipt of a call of this account; of another one's there is none. Unlike [`Bookkeeping::receipt`] it
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

    /// Checks I1–I5 over the whole ledger.
    ///
    /// # Errors
    /// See [`BookError`].
    fn audit(&self) -> impl Future<Output = Result<Audit, BookError>> + Send;
}
