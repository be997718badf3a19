//! The latest calls that ended without a receipt: refused before money was held, or released. The ledger does not know
//! them, so this gateway can report them for a while by their number.

use std::{
    collections::VecDeque,
    sync::{Arc, Mutex, PoisonError},
    time::{SystemTime, UNIX_EPOCH},
};

use tollgate_ledger::{account::KeyRecord, number::RequestNumber};

use super::{Answered, CallRecord, Facts, line::shortened, millis};

/// The largest number of calls that are remembered.
pub(crate) const UNBOOKED_MAX: usize = 2000;

/// A call that has no receipt.
#[derive(Clone, Debug)]
pub(crate) struct Unbooked {
    pub(crate) number: RequestNumber,
    /// The time at which the call arrived, in Unix milliseconds.
    pub(crate) came_ms: u64,
    pub(crate) path: String,
    /// The account; `None` if the key was not known yet.
    pub(crate) key: Option<Arc<KeyRecord>>,
    pub(crate) model: Option<String>,
    /// The vendor of the last attempt.
    pub(crate) vendor: Option<Arc<str>>,
    pub(crate) how: How,
    pub(crate) whole_ms: u32,
}

/// The state of the call.
#[derive(Clone, Debug)]
pub(crate) enum How {
    /// The call holds money and is running.
    Running,
    /// The call has ended; `code` and `text` are set if it was refused.
    Ended {
        status: u16,
        code: Option<&'static str>,
        text: Option<String>,
        /// Whether money was held and released.
        released: bool,
    },
}

/// The latest calls that have no receipt.
#[derive(Debug, Default)]
pub(super) struct Latest(Mutex<VecDeque<Unbooked>>);

impl Latest {
    pub(super) fn push(&self, call: Unbooked) {
        let mut calls = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if calls.len() >= UNBOOKED_MAX {
            calls.pop_front();
        }
        calls.push_back(call);
    }

    pub(super) fn find(&self, number: RequestNumber) -> Option<Unbooked> {
        let calls = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let found = calls.iter().rev().find(|call| call.number == number);
        found.cloned()
    }
}

impl Unbooked {
    pub(super) fn ended(record: &CallRecord, facts: &Facts, answered: &Answered) -> Self {
        let failure = answered.failure.as_deref();
        let how = How::Ended {
            status: answered.status,
            code: failure.map(|failure| failure.code),
            text: failure.map(|failure| failure.text.clone()),
            released: facts.held,
        };
        Self::of(record, facts, how, millis(answered.whole))
    }

    pub(super) fn running(record: &CallRecord, facts: &Facts) -> Self {
        let whole_ms = millis(record.0.began.elapsed());
        Self::of(record, facts, How::Running, whole_ms)
    }

    fn of(record: &CallRecord, facts: &Facts, how: How, whole_ms: u32) -> Self {
        let now = SystemTime::now().duration_since(UNIX_EPOCH);
        let now = now.unwrap_or_default().as_millis();
        let now_ms = u64::try_from(now).unwrap_or(u64::MAX);
        Self {
            number: record.0.number,
            came_ms: now_ms.saturating_sub(whole_ms.into()),
            path: record.metrics().requests.path(record.0.path).to_owned(),
            key: facts.key.clone(),
            model: facts
                .model
                .as_deref()
                .map(|model| shortened(model).to_owned()),
            vendor: facts.vendor.clone(),
            how,
            whole_ms,
        }
    }
}
