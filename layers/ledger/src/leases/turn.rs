//! Lease turns: requests about a lease that a gateway sends to the ledger, and the ledger's answers.

use std::{future::Future, sync::Arc, time::Duration};

use uuid::Uuid;

use crate::{
    account::{AccountId, KeyId},
    contract::{Adjusted, Adjustment, Hold, LedgerError, Refusal, Reserved, Settled, Settlement},
    money::MicroRub,
    number::RequestNumber,
};

/// The time after a recall during which no lease of the account is enlarged. `turn.lua` has the same constant.
pub const RECALLED_FOR: Duration = Duration::from_secs(1);

/// The operations of a remote ledger that leases use.
pub trait LeaseLedger: Send + Sync {
    /// Carries out a turn. A turn that is sent several times is carried out once.
    fn turn(&self, turn: &Turn) -> impl Future<Output = Result<TurnAnswer, LedgerError>> + Send;

    /// Recalls the leased money of the account that no call holds. Returns how many leases may still grant holds.
    fn recall(&self, account: &AccountId) -> impl Future<Output = Result<u64, LedgerError>> + Send;

    /// Makes a hold directly in the ledger, without a lease.
    fn hold(&self, hold: &Hold) -> impl Future<Output = Result<Reserved, LedgerError>> + Send;

    /// Changes the amount of a hold that was made directly in the ledger. The default is
    /// [unsupported](Adjusted::Unsupported): then only holds against a lease can be changed.
    fn adjust_hold(
        &self,
        adjustment: &Adjustment,
    ) -> impl Future<Output = Result<Adjusted, LedgerError>> + Send {
        let _ = adjustment;
        std::future::ready(Ok(Adjusted::Unsupported))
    }
}

/// The effect of a turn on its lease.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    /// The turn opens the lease.
    Open,
    /// The turn continues the lease: it adds money, gives money back, or leaves the amount unchanged.
    GoOn,
    /// The turn closes the lease and gives all its money back.
    Close,
    /// The turn only reports settlements. Its sender is a process that grants no holds from the lease.
    Tell,
}

/// A turn: one request about a lease to the ledger. A turn that is sent again is still carried out once. A gateway that
/// continues its lease reports each settlement in exactly one turn, so the turn's name identifies these settlements.
/// Another process may report a settlement twice, so its settlements are identified by their call numbers.
#[derive(Clone, Debug)]
pub struct Turn {
    /// The number of the lease.
    pub lease: RequestNumber,
    /// The account whose money is in the lease.
    pub account: AccountId,
    /// The key whose calls the lease pays for.
    pub key: KeyId,
    /// The effect of the turn on its lease.
    pub step: Step,
    /// The name of the lease's previous turn. The ledger accepts the turn only with this name: another gateway does not
    /// know it, so it cannot continue the lease.
    pub before: String,
    /// The unique name of this turn.
    pub this: String,
    /// The amount that the lease gives back.
    pub give: MicroRub,
    /// The amount by which the gateway wants to enlarge the lease. The ledger grants all of it, a part, or nothing if
    /// money is short.
    pub more: MicroRub,
    /// The total amount by which the holds of in-flight calls are to grow. The ledger grants as much of it as is free
    /// on the account.
    pub raise: MicroRub,
    /// If less money than this is free outside the lease, the ledger does not enlarge the lease.
    pub short_of: MicroRub,
    /// How long the ledger keeps the lease after this turn, in milliseconds.
    pub ttl_ms: u64,
    /// How long the owner may grant holds after this turn, in milliseconds; zero if it may not grant.
    pub grants_ms: u64,
    /// The settlements that the turn reports.
    pub ends: Vec<TurnEnd>,
}

/// A settlement of a call that had a hold against a lease.
#[derive(Clone, Debug)]
pub struct TurnEnd {
    /// The settlement of the call.
    pub settlement: Arc<Settlement>,
    /// The part of the cost that is paid from the lease.
    pub cover: MicroRub,
}

/// The outcome of a turn.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Word {
    /// The turn was carried out.
    Done,
    /// The turn was carried out, but the owner may grant no more holds for this key.
    Refused,
    /// The lease was not opened, because too little money is free.
    Short,
    /// The turn was rejected, because another gateway has continued the lease.
    Fenced,
    /// The turn was rejected, because the ledger does not have the lease any more.
    Gone,
}

/// The ledger's answer to a turn.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TurnAnswer {
    /// The outcome of the turn.
    pub word: Word,
    /// The lease's money after the turn.
    pub left: MicroRub,
    /// The money that is free outside the lease.
    pub free: MicroRub,
    /// Whether money is short: the gateway should then give its lease back.
    pub short: bool,
    /// Whether money is short because leases were recalled.
    pub recalled: bool,
    /// Why the holds of in-flight calls grew by less than [`Turn::raise`], if they did.
    pub refusal: Option<Refusal>,
    /// The name of the lease's last turn in the ledger if the outcome is [fenced](Word::Fenced); otherwise empty.
    pub last: String,
    /// The results of the reported settlements, in the order of the turn's settlements.
    pub ends: Vec<Settled>,
}

impl Turn {
    /// Creates a turn that reports one settlement, for a process that does not own the lease.
    #[must_use]
    pub fn report(lease: RequestNumber, settlement: &Settlement) -> Self {
        Self {
            ends: vec![TurnEnd::from_settlement(settlement)],
            ..Self::empty(lease, &settlement.account, &settlement.key)
        }
    }

    /// Creates a turn that gives back a lease whose gateway no longer exists. The turn succeeds if the lease's last
    /// turn has the name `before`.
    #[must_use]
    pub fn close(
        lease: RequestNumber,
        account: &AccountId,
        key: &KeyId,
        before: &str,
        this: Uuid,
    ) -> Self {
        Self {
            step: Step::Close,
            before: before.to_owned(),
            this: this.simple().to_string(),
            ..Self::empty(lease, account, key)
        }
    }

    /// Creates a turn without a name that has no effect on the lease and reports no settlements.
    pub(super) fn empty(lease: RequestNumber, account: &AccountId, key: &KeyId) -> Self {
        Self {
            lease,
            account: account.clone(),
            key: key.clone(),
            step: Step::Tell,
            before: String::new(),
            this: String::new(),
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
    /// Creates the report of a settlement by a process that does not own the lease. The lease pays at most the amount
    /// that the call held.
    #[must_use]
    pub fn from_settlement(settlement: &Settlement) -> Self {
        Self {
            settlement: Arc::new(settlement.clone()),
            cover: settlement.held_at_end().min(settlement.cost),
        }
    }
}
