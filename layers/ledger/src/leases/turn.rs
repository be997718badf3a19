//! Turns of leases: requests about a lease that a gateway sends to the ledger, and the ledger's answers.

use std::{future::Future, sync::Arc, time::Duration};

use uuid::Uuid;

use crate::{
    account::{AccountId, KeyId},
    contract::{Adjusted, Adjustment, Hold, LedgerError, Refusal, Reserved, Settled, Settlement},
    money::MicroRub,
    number::RequestNumber,
};

/// The time after a recall during which no lease is enlarged. `turn.lua` has the same constant.
pub const RECALLED_FOR: Duration = Duration::from_secs(1);

/// The operations of a remote ledger that leases need.
pub trait LeaseLedger: Send + Sync {
    /// Carries out a turn of a lease. A turn that is sent several times is carried out once.
    fn turn(&self, turn: &Turn) -> impl Future<Output = Result<TurnAnswer, LedgerError>> + Send;

    /// Recalls the account's leased money that no call holds. Returns how many leases may still grant holds.
    fn recall(&self, account: &AccountId) -> impl Future<Output = Result<u64, LedgerError>> + Send;

    /// Makes a hold in the ledger itself, without a lease.
    fn hold(&self, hold: &Hold) -> impl Future<Output = Result<Reserved, LedgerError>> + Send;

    /// Changes the amount of a hold in the ledger itself. By default this is [unsupported](Adjusted::Unsupported): only
    /// holds that calls have from a lease can be changed.
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
    /// The turn continues the lease: it adds money, or gives some back.
    GoOn,
    /// The turn gives all of the lease's money back.
    Close,
    /// The turn only reports ends of calls. Its sender is a process that grants no holds from the lease.
    Tell,
}

/// A turn of a lease: a request to the ledger. If it is sent again, it is still carried out once. A gateway that
/// continues its lease reports each end in one turn only, so the turn's name identifies these ends. Ends that other
/// processes report, possibly twice, are identified by their call numbers.
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
    /// The name of the lease's previous turn. It fences the lease: another gateway does not have this name, so it
    /// cannot continue the lease.
    pub before: String,
    /// The name of this turn, unique.
    pub this: String,
    /// The amount that the turn gives back.
    pub give: MicroRub,
    /// The amount that the turn requests for the lease. The ledger grants all of it, a part, or nothing while money is
    /// short.
    pub more: MicroRub,
    /// The amount by which the holds of running calls are to grow. The ledger grants as much of this amount as is free
    /// on the account.
    pub raise: MicroRub,
    /// If less money than this is free outside the lease, the ledger adds nothing to the lease.
    pub short_of: MicroRub,
    /// The time for which the ledger keeps the lease if no further turn arrives, in milliseconds.
    pub ttl_ms: u64,
    /// The time for which the owner may grant holds after this turn, in milliseconds; zero if it may not grant.
    pub grants_ms: u64,
    /// The ends of calls that the turn reports, each once.
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

/// The outcome of a turn of a lease.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Word {
    /// The turn was carried out.
    Done,
    /// The turn was carried out, but the lease's owner may grant no more holds on this key.
    Refused,
    /// Too little money is free to open a lease.
    Short,
    /// Another gateway has continued the lease.
    Fenced,
    /// The ledger does not have the lease, or has ended it.
    Gone,
}

/// The ledger's answer to a turn of a lease.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TurnAnswer {
    /// The outcome of the turn.
    pub word: Word,
    /// The amount that is in the lease after the turn.
    pub left: MicroRub,
    /// The amount that is free outside the lease.
    pub free: MicroRub,
    /// Whether money is short, so that leases should be given back.
    pub short: bool,
    /// Whether money is short because a recall was made.
    pub recalled: bool,
    /// The reason why the holds of running calls did not grow by all of [`Turn::raise`].
    pub refusal: Option<Refusal>,
    /// If the lease is [fenced](Word::Fenced): the name of its last turn in the ledger. Otherwise empty.
    pub last: String,
    /// The results of the reported ends, in the same order.
    pub ends: Vec<Settled>,
}

impl Turn {
    /// A turn that reports the end of one call, from a process that does not own the lease.
    #[must_use]
    pub fn report(lease: RequestNumber, settlement: &Settlement) -> Self {
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
    /// A turn that gives back a lease whose gateway no longer exists. The turn succeeds if the lease's last turn has
    /// the name `before`.
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
    /// Creates the end of a call for a turn from a process that does not own the lease. The lease pays at most the
    /// amount that the call held.
    #[must_use]
    pub fn of(settlement: &Settlement) -> Self {
        Self {
            settlement: Arc::new(settlement.clone()),
            cover: settlement.held_at_end().min(settlement.cost),
        }
    }
}
