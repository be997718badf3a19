//! Turns: the requests about a lease that a gateway sends to the ledger, and their answers.

use std::{future::Future, sync::Arc, time::Duration};

use uuid::Uuid;

use crate::{
    account::{AccountId, KeyId},
    contract::{Adjusted, Adjustment, Hold, LedgerError, Reserved, Settled, Settlement},
    money::MicroRub,
    number::RequestNumber,
};

/// The time for which a recall keeps leases from being enlarged. `turn.lua` has the same constant.
pub const RECALLED_FOR: Duration = Duration::from_secs(1);

/// The operations of a remote ledger that leases need.
pub trait LeaseLedger: Send + Sync {
    /// Carries out a turn, once, however often it is sent.
    fn turn(&self, turn: &Turn) -> impl Future<Output = Result<TurnAnswer, LedgerError>> + Send;

    /// Recalls the account's leased money that no call holds. Returns how many leases may still grant holds.
    fn recall(&self, account: &AccountId) -> impl Future<Output = Result<u64, LedgerError>> + Send;

    /// Makes a hold directly in the ledger, without a lease.
    fn hold(&self, hold: &Hold) -> impl Future<Output = Result<Reserved, LedgerError>> + Send;

    /// ADJUST by the ledger itself; the default cannot adjust holds that no lease has.
    fn adjust_hold(
        &self,
        adjustment: &Adjustment,
    ) -> impl Future<Output = Result<Adjusted, LedgerError>> + Send {
        let _ = adjustment;
        std::future::ready(Ok(Adjusted::Unsupported))
    }
}

/// The action that a turn carries out on the lease.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    /// The turn opens the lease.
    Open,
    /// Continues the lease: adds money, or gives some back.
    GoOn,
    /// The turn gives all of the lease's money back.
    Close,
    /// Only reports ends; sent by a process that does not grant from the lease.
    Tell,
}

/// One turn of a lease. Sent again, it is carried out once. An owner that continues its lease reports each end in one
/// turn, and the turn is identified by its word. Ends that others report, possibly twice, are identified by their call
/// numbers.
#[derive(Clone, Debug)]
pub struct Turn {
    /// The number of the lease.
    pub lease: RequestNumber,
    /// The account whose money is in the lease.
    pub account: AccountId,
    /// The key whose calls the lease pays for.
    pub key: KeyId,
    /// The action of the turn on the lease.
    pub step: Step,
    /// The word of the turn before it. A second owner of the lease does not know it.
    pub before: String,
    /// The name of this turn, unique.
    pub this: String,
    /// The amount that the turn gives back.
    pub give: MicroRub,
    /// Requested amount, of which a part may be granted, or nothing while money is short.
    pub more: MicroRub,
    /// The amount by which running calls are to hold more. As much of it is granted as is free.
    pub raise: MicroRub,
    /// With less free money than this next to the lease, nothing is added.
    pub short_of: MicroRub,
    /// The time for which the lease lives if no further turn arrives.
    pub ttl_ms: u64,
    /// The time for which holds may be granted after this turn; zero if none may.
    pub grants_ms: u64,
    /// The ends that the turn reports, each once.
    pub ends: Vec<TurnEnd>,
}

/// The end of a call that a lease held money for.
#[derive(Clone, Debug)]
pub struct TurnEnd {
    /// The settlement of the call.
    pub settlement: Arc<Settlement>,
    /// The part of the cost that the lease pays.
    pub cover: MicroRub,
}

/// The outcome of a turn.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Word {
    /// The turn was carried out.
    Done,
    /// The turn was carried out, but nothing more may be granted on this key.
    Refused,
    /// There is too little free money for a lease.
    Short,
    /// Another gateway has continued the lease.
    Fenced,
    /// The ledger does not have the lease, or has ended it.
    Gone,
}

/// The ledger's answer to a turn.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TurnAnswer {
    /// The outcome of the turn.
    pub word: Word,
    /// The amount that is in the lease now.
    pub left: MicroRub,
    /// The amount that is free next to the lease.
    pub free: MicroRub,
    /// Money is short, so leases should be given back.
    pub short: bool,
    /// Money is short, because another gateway has recalled leases.
    pub recalled: bool,
    /// If fenced: the word of the lease's last turn in the ledger. Otherwise empty.
    pub last: String,
    /// The results of the reported ends, in the same order.
    pub ends: Vec<Settled>,
}

impl Turn {
    /// A turn that reports one end, from a process that does not own the lease.
    #[must_use]
    pub fn tell(lease: RequestNumber, settlement: &Settlement) -> Self {
        Self {
            lease,
            account: settlement.account.clone(),
            key: settlement.key.clone(),
            step: Step::Tell,
            before: String::new(),
            this: String::new(),
            give: MicroRub::ZERO,
            more: MicroRub::ZERO,
            raise: MicroRub::ZERO,
            short_of: MicroRub::ZERO,
            ttl_ms: 0,
            grants_ms: 0,
            ends: vec![TurnEnd::of(settlement)],
        }
    }
}

impl Turn {
    /// A turn that gives a lease back whose owner is gone: done if the lease's last turn had the word `before`.
    #[must_use]
    pub fn close(
        lease: RequestNumber,
        account: &AccountId,
        key: &KeyId,
        before: &str,
        this: Uuid,
    ) -> Self {
        Self {
            lease,
            account: account.clone(),
            key: key.clone(),
            step: Step::Close,
            before: before.to_owned(),
            this: this.simple().to_string(),
            give: MicroRub::ZERO,
            more: MicroRub::ZERO,
            raise: MicroRub::ZERO,
            short_of: MicroRub::ZERO,
            ttl_ms: 0,
            grants_ms: 0,
            ends: Vec::new(),
        }
    }
}

impl TurnEnd {
    /// Creates an end as reported by a process that does not own the lease: the lease pays up to the amount that was
    /// held.
    #[must_use]
    pub fn of(settlement: &Settlement) -> Self {
        Self {
            settlement: Arc::new(settlement.clone()),
            cover: settlement.held_at_end().min(settlement.cost),
        }
    }
}
