//! The latest calls that ended without a receipt: refused before money was held, or released. The ledger has no record
//! of these calls. So this gateway keeps a record of each for a while, which can be found by the call's number.

use std::{
    collections::VecDeque,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::{SystemTime, UNIX_EPOCH},
};

use tollgate_ledger::{account::KeyRecord, number::RequestNumber, session::SessionId};

use super::{Answered, CallRecord, Facts, line::shortened, millis};

/// The maximum number of remembered calls with known keys, and the maximum number with unknown keys.
pub(crate) const UNBOOKED_MAX: usize = 2000;

/// A call that has no receipt, because it is running or ended without a charge.
#[derive(Clone, Debug)]
pub(crate) struct Unbooked {
    pub(crate) number: RequestNumber,
    /// The time at which the call arrived, in Unix milliseconds.
    pub(crate) came_ms: u64,
    pub(crate) path: String,
    /// The key, which also names the account; `None` if the key was not looked up yet.
    pub(crate) key: Option<Arc<KeyRecord>>,
    pub(crate) model: Option<String>,
    pub(crate) session: Option<SessionId>,
    /// The vendor of the last attempt.
    pub(crate) vendor: Option<Arc<str>>,
    pub(crate) how: How,
    pub(crate) whole_ms: u32,
}

/// Whether the call is running, or how it ended.
#[derive(Clone, Debug)]
pub(crate) enum How {
    /// The call holds money and is running.
    Running,
    /// The call has ended; `code` and `text` are set if the call was refused.
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
pub(super) struct Latest(Mutex<Queues>);

/// Separate queues, so that a flood of requests with unknown keys does not evict the calls of customers.
#[derive(Debug, Default)]
struct Queues {
    of_keys: VecDeque<Unbooked>,
    of_strangers: VecDeque<Unbooked>,
}

impl Queues {
    fn iter(&self) -> impl Iterator<Item = &Unbooked> {
        self.of_keys
            .iter()
            .rev()
            .chain(self.of_strangers.iter().rev())
    }
}

impl Latest {
    pub(super) fn push(&self, call: Unbooked) {
        let mut queues = self.lock();
        let calls = match call.key {
            Some(_) => &mut queues.of_keys,
            None => &mut queues.of_strangers,
        };
        if calls.len() >= UNBOOKED_MAX {
            calls.pop_front();
        }
        calls.push_back(call);
    }

    pub(super) fn find(&self, number: RequestNumber) -> Option<Unbooked> {
        let queues = self.lock();
        queues.iter().find(|call| call.number == number).cloned()
    }

    /// Returns the calls that pass `is_wanted`, in no order.
    pub(super) fn list(&self, is_wanted: impl Fn(&Unbooked) -> bool) -> Vec<Unbooked> {
        let queues = self.lock();
        queues
            .iter()
            .filter(|call| is_wanted(call))
            .cloned()
            .collect()
    }

    fn lock(&self) -> MutexGuard<'_, Queues> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
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
            session: facts.session.clone(),
            vendor: facts.vendor.clone(),
            how,
            whole_ms,
        }
    }
}

#[cfg(test)]
mod tests {
    use tollgate_ledger::account::KeyDigest;

    use super::*;

    #[test]
    fn refused_calls_of_unknown_keys_do_not_evict_those_of_known_keys() {
        let latest = Latest::default();
        let record = KeyRecord::new(
            "k1".parse().unwrap(),
            "acme".parse().unwrap(),
            KeyDigest::new([1; 32]),
        );
        let call = |key: Option<Arc<KeyRecord>>| Unbooked {
            number: RequestNumber::now_v7(),
            came_ms: 1,
            path: "/v1/messages".into(),
            key,
            model: None,
            session: None,
            vendor: None,
            how: How::Running,
            whole_ms: 0,
        };
        let mine = call(Some(Arc::new(record)));
        latest.push(mine.clone());
        for _ in 0..2 * UNBOOKED_MAX {
            latest.push(call(None));
        }
        assert!(latest.find(mine.number).is_some());
        assert_eq!(latest.list(|_| true).len(), UNBOOKED_MAX + 1);
        assert_eq!(latest.list(|call| call.key.is_some()).len(), 1);
    }
}
