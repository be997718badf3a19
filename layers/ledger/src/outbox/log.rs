//! What an outbox writes down, and where.

use std::{collections::BTreeMap, future::Future, sync::Arc};

use crate::{
    BoxError,
    account::{AccountId, KeyId},
    contract::Settlement,
    durable::crash_log::CallNote,
    number::RequestNumber,
};
pub use crate::{durable::crash_log::Pending, settle::Ending};

/// Steps on this machine that outlive the process.
pub trait Log: Send + Sync + 'static {
    /// Takes a step without waiting; those of one call are written in this order. They outlive the
    /// process within some milliseconds, a call's intent somewhat later, a power cut after [`Log::sync`].
    /// What is lost of a call is lost from the end. Called under a lock: it must be quick.
    fn append(&self, step: CallStep);

    /// Resolves when all that was appended would survive a power cut.
    ///
    /// # Errors
    /// It cannot be written; see [`Log::fault`].
    fn sync(&self) -> impl Future<Output = Result<(), BoxError>> + Send;

    /// What an earlier process left, what is done first, each in the order in which it came.
    ///
    /// # Errors
    /// It cannot be read.
    fn load(&self) -> impl Future<Output = Result<Vec<Pending>, BoxError>> + Send;

    /// Why nothing can be written now, if so: then nothing more may be sold.
    fn fault(&self) -> Option<String>;

    /// What was done until then, in Unix milliseconds, need not be kept any more. Called seldom.
    fn forget(&self, until_ms: u64) {
        let _ = until_ms;
    }
}

/// A step of a call. Those of one number come in this order: an intent, checkpoints, one settlement or release,
/// done; some of them may be missing.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum CallStep {
    /// The ledger is being asked to hold money for a call.
    Intent {
        /// The call's number.
        number: RequestNumber,
        /// Who pays.
        account: AccountId,
        /// On which key.
        key: KeyId,
        /// Unix time in milliseconds.
        at_ms: u64,
    },
    /// What a running call is settled with should the process die now. The log dates it.
    Checkpoint(Arc<Settlement>),
    /// A call ended and costs this; since when the ledger is being told, in Unix milliseconds.
    Settle(Arc<Settlement>, u64),
    /// A call ended and costs nothing.
    Release {
        /// The call's number.
        number: RequestNumber,
        /// Who would have paid.
        account: AccountId,
        /// On which key.
        key: KeyId,
        /// Unix time in milliseconds since when the ledger is being told.
        at_ms: u64,
    },
    /// The ledger has acknowledged the end, or refused the hold: nothing is left to be told. Kept
    /// until [`Log::forget`].
    Done {
        /// The call's number.
        number: RequestNumber,
        /// Unix time in milliseconds.
        at_ms: u64,
    },
}

impl Ending {
    pub(super) fn step(&self, at_ms: u64) -> CallStep {
        match self {
            Self::Settle(settlement) => CallStep::Settle(Arc::clone(settlement), at_ms),
            Self::Release {
                number,
                account,
                key,
            } => CallStep::Release {
                number: *number,
                account: account.clone(),
                key: key.clone(),
                at_ms,
            },
        }
    }
}

/// What steps come to, for a log that keeps them as they are. A checkpoint has no date here: it takes
/// that of its intent.
#[must_use]
pub fn pending(steps: impl IntoIterator<Item = CallStep>) -> Vec<Pending> {
    struct Call {
        note: CallNote,
        done_at_ms: Option<u64>,
    }
    let mut calls: BTreeMap<RequestNumber, Call> = BTreeMap::new();
    for step in steps {
        let note = match step {
            CallStep::Done { number, at_ms } => {
                if let Some(call) = calls.get_mut(&number) {
                    call.done_at_ms = Some(at_ms);
                }
                continue;
            }
            CallStep::Checkpoint(settlement) => {
                let known = calls.get(&settlement.number);
                let at_ms = known.map_or(0, |call| call.note.at_ms);
                CallNote::checkpoint(settlement, at_ms)
            }
            CallStep::Intent {
                number,
                account,
                key,
                at_ms,
            } => CallNote::intent(number, account, key, at_ms),
            CallStep::Settle(settlement, at_ms) => CallNote::end(Ending::Settle(settlement), at_ms),
            CallStep::Release {
                number,
                account,
                key,
                at_ms,
            } => {
                let release = Ending::Release {
                    number,
                    account,
                    key,
                };
                CallNote::end(release, at_ms)
            }
        };
        let call = Call {
            note,
            done_at_ms: None,
        };
        calls.insert(call.note.ending.number(), call);
    }
    let mut calls: Vec<Call> = calls.into_values().collect();
    calls.sort_by_key(|call| (call.done_at_ms.is_none(), call.done_at_ms, call.note.at_ms));
    calls
        .into_iter()
        .filter_map(|call| call.note.pending(call.done_at_ms.is_some()))
        .collect()
}
