//! The log of an outbox: the steps of calls that the outbox writes, and the trait for storing them.

use std::{collections::BTreeMap, future::Future, sync::Arc};

use crate::{
    BoxError,
    account::{AccountId, KeyId},
    contract::Settlement,
    durable::crash_log::CallNote,
    number::RequestNumber,
};
pub use crate::{durable::crash_log::Pending, settle::Ending};

/// Stores steps of calls on this machine, where they survive the process.
pub trait Log: Send + Sync + 'static {
    /// Queues a step and does not wait. Steps of one call are written in order. A step survives the process after some
    /// milliseconds (a call's intent somewhat later), and a power cut after [`Log::sync`]. If steps of a call are lost,
    /// they are the call's last steps. Called under a lock, so it must be quick.
    fn append(&self, step: CallStep);

    /// Resolves when all steps appended so far would survive a power cut.
    ///
    /// # Errors
    /// An error if the log cannot be written; [`Log::fault`] returns the reason.
    fn sync(&self) -> impl Future<Output = Result<(), BoxError>> + Send;

    /// Returns the calls that an earlier process left: first those that are done, then the others, each in order of
    /// arrival.
    ///
    /// # Errors
    /// An error if the log cannot be read.
    fn load(&self) -> impl Future<Output = Result<Vec<Pending>, BoxError>> + Send;

    /// Returns why no step can be written now; `None` if steps can be written. No call may be admitted while there is a
    /// fault.
    fn fault(&self) -> Option<String>;

    /// Allows the log to delete calls that were done before this time, in Unix milliseconds. Called rarely.
    fn forget(&self, until_ms: u64) {
        let _ = until_ms;
    }
}

/// A step of a call. The steps of one call are in this order: an intent, checkpoints, one settlement or release, done.
/// Any of these steps may be missing.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum CallStep {
    /// The gateway is about to request a hold for a call from the ledger.
    Intent {
        /// The call's number.
        number: RequestNumber,
        /// The account that pays.
        account: AccountId,
        /// The key that the call is made with.
        key: KeyId,
        /// The time of the step, in Unix milliseconds.
        at_ms: u64,
    },
    /// A settlement with the cost of a running call so far. It is sent to the ledger if the process dies. The log adds
    /// the time of the step.
    Checkpoint(Arc<Settlement>),
    /// A call ended with this charge. The number is the time at which the gateway first sent the charge, in Unix
    /// milliseconds.
    Settle(Arc<Settlement>, u64),
    /// A call ended without a charge.
    Release {
        /// The call's number.
        number: RequestNumber,
        /// The account that would have paid.
        account: AccountId,
        /// The key that the call was made with.
        key: KeyId,
        /// The time at which the gateway first sent the release to the ledger, in Unix milliseconds.
        at_ms: u64,
    },
    /// The ledger has acknowledged the end, or refused the hold, so nothing of the call is left to send. Kept until
    /// [`Log::forget`].
    Done {
        /// The call's number.
        number: RequestNumber,
        /// The time of the step, in Unix milliseconds.
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

/// Returns the calls that these steps leave, for a log that stores single steps. A checkpoint has no time of its own
/// here, so the call gets the time of its intent.
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
