//! The log of an outbox: the steps that the outbox writes for each call, and the trait of the storage.

use std::{collections::BTreeMap, future::Future, sync::Arc};

use crate::{
    BoxError,
    account::{AccountId, KeyId},
    contract::Settlement,
    durable::crash_log::CallNote,
    number::RequestNumber,
};
pub use crate::{durable::crash_log::Pending, settle::Ending};

/// Stores the steps of calls on this machine. The steps survive the process.
pub trait Log: Send + Sync + 'static {
    /// Queues a step without waiting. The steps of one call are written in order, so only a call's last steps can be
    /// lost. Some milliseconds after it was queued, a step survives the end of the process; an intent takes longer than
    /// other steps. After [`Log::sync`], a step also survives a power cut. This method is called under a lock, so it
    /// must be quick.
    fn append(&self, step: CallStep);

    /// Resolves when all steps appended so far are stored durably: they survive a power cut.
    ///
    /// # Errors
    /// An error if the log cannot be written; [`Log::fault`] returns the reason.
    fn sync(&self) -> impl Future<Output = Result<(), BoxError>> + Send;

    /// Returns the calls that an earlier process left. Calls that are done come first; done calls and other calls are
    /// each in order of arrival.
    ///
    /// # Errors
    /// An error if the log cannot be read.
    fn load(&self) -> impl Future<Output = Result<Vec<Pending>, BoxError>> + Send;

    /// Returns the reason why no step can be written now, or `None` if steps can be written. While there is a reason,
    /// no call may be admitted.
    fn fault(&self) -> Option<String>;

    /// Allows the log to delete calls that were done before `until_ms` (Unix milliseconds). Called rarely.
    fn forget(&self, until_ms: u64) {
        let _ = until_ms;
    }
}

/// A step of a call. A call has these steps in this order: an intent, any number of checkpoints, one settlement or
/// release, and `Done`. Each of them may be missing.
#[derive(Clone, Debug, PartialEq, Eq)]
#[allow(missing_docs, reason = "the fields have descriptive names")]
pub enum CallStep {
    /// The gateway is about to request a hold for the call from the ledger.
    Intent {
        number: RequestNumber,
        account: AccountId,
        key: KeyId,
        at_ms: u64,
    },
    /// The settlement that the call would have if it ended now. If the process dies, the next process sends this
    /// settlement to the ledger. The log adds the time of the step.
    Checkpoint(Arc<Settlement>),
    /// The call has ended with this settlement. The number is the Unix time in milliseconds at which the gateway first
    /// sent the settlement.
    Settle(Arc<Settlement>, u64),
    /// The call has ended without a charge.
    Release {
        number: RequestNumber,
        account: AccountId,
        key: KeyId,
        /// Unix time in milliseconds at which the gateway first sent the release to the ledger.
        at_ms: u64,
    },
    /// The ledger has acknowledged the settlement or release, or has refused the hold. Nothing of the call is left to
    /// send. The call's steps are kept until [`Log::forget`].
    Done { number: RequestNumber, at_ms: u64 },
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

/// Merges the steps of each call into one [`Pending`] call, for a log that stores every step. A checkpoint has no time
/// of its own here, so its call gets the time of the intent.
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
            } => CallNote::end(Ending::release(number, account, key), at_ms),
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
