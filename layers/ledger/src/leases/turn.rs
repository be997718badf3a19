//! What a ledger is told of leases, and what it answers.

use std::{future::Future, sync::Arc, time::Duration};

use crate::{
    account::{AccountId, KeyId},
    contract::{Hold, LedgerError, Reserved, Settled, Settlement},
    money::MicroRub,
    number::RequestNumber,
};

/// For how long a recall keeps leases from getting more; `turn.lua` has the same.
pub const RECALLED_FOR: Duration = Duration::from_secs(1);

/// A ledger elsewhere, as leases need it.
pub trait LeaseLedger: Send + Sync {
    /// Does a turn, once however often it is told.
    fn turn(&self, turn: &Turn) -> impl Future<Output = Result<TurnAnswer, LedgerError>> + Send;

    /// Asks for what leases have of the account and no call holds. Says how many may still grant something.
    fn recall(&self, account: &AccountId) -> impl Future<Output = Result<u64, LedgerError>> + Send;

    /// RESERVE, by the ledger itself.
    fn hold(&self, hold: &Hold) -> impl Future<Output = Result<Reserved, LedgerError>> + Send;
}

/// What is done with a lease.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    /// It is opened.
    Open,
    /// It gets more, or gives back some.
    GoOn,
    /// All is given back.
    Close,
    /// Ends are told, and nothing else: by whoever does not grant from it.
    Tell,
}

/// One turn of a lease. Sent again it is done once. An owner that goes on with its lease tells each end in one turn, which is
/// known by its word; what anybody else tells, and tells twice, is known by the numbers.
#[derive(Clone, Debug)]
pub struct Turn {
    /// Its number.
    pub lease: RequestNumber,
    /// Whose money.
    pub account: AccountId,
    /// On which key.
    pub key: KeyId,
    /// What is done.
    pub step: Step,
    /// The word of the turn before it: a second owner of the lease does not know it.
    pub before: String,
    /// Its own word.
    pub this: String,
    /// What is given back.
    pub give: MicroRub,
    /// What is asked for.
    pub more: MicroRub,
    /// With less than this free beside it nobody gets more.
    pub short_of: MicroRub,
    /// How long the lease lives unless there is another turn.
    pub ttl_ms: u64,
    /// For how long more may be granted from it; zero where nothing is.
    pub grants_ms: u64,
    /// Each once.
    pub ends: Vec<TurnEnd>,
}

/// The end of a call that a lease held money for.
#[derive(Clone, Debug)]
pub struct TurnEnd {
    /// The end.
    pub settlement: Arc<Settlement>,
    /// What the lease pays of it.
    pub cover: MicroRub,
}

/// How a turn went.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Word {
    /// Done.
    Done,
    /// Done, and nothing more may be granted on this key.
    Refused,
    /// There is too little free money for a lease.
    Short,
    /// Another one goes on with the lease.
    Fenced,
    /// The ledger has no such lease, or has ended it.
    Gone,
}

/// What a ledger answers to a turn.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TurnAnswer {
    /// How it went.
    pub word: Word,
    /// What the lease has now.
    pub left: MicroRub,
    /// What is free beside it.
    pub free: MicroRub,
    /// Money is short: leases are to be given back.
    pub short: bool,
    /// That is since somebody asks for it.
    pub recalled: bool,
    /// To one that is fenced: the word of the lease's last turn, as far as the ledger knows. Empty otherwise.
    pub last: String,
    /// Of each end, in their order.
    pub ends: Vec<Settled>,
}

impl Turn {
    /// A turn that tells one end, by whoever has no part in its lease any more.
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
            short_of: MicroRub::ZERO,
            ttl_ms: 0,
            grants_ms: 0,
            ends: vec![TurnEnd::of(settlement)],
        }
    }
}

impl TurnEnd {
    /// As it is told by whoever has no part in its lease any more: what was held for it is the lease's.
    #[must_use]
    pub fn of(settlement: &Settlement) -> Self {
        Self {
            settlement: Arc::new(settlement.clone()),
            cover: settlement.held.min(settlement.cost),
        }
    }
}
