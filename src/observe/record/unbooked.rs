//! Calls without a receipt: calls in flight, and ended calls that were refused, failed or cost nothing. An ended call
//! with a known key waits in memory until a task stores it, so that every gateway finds it. An ended call with an
//! unknown key stays only in this gateway's memory, so that strangers cannot fill the store.

use std::{
    collections::{HashMap, VecDeque},
    sync::Arc,
};

use parking_lot::Mutex;
use prometheus_client::metrics::counter::Counter;
use tollgate_ledger::{
    BoxError,
    account::AccountId,
    number::RequestNumber,
    unbooked::{UnbookedCall, UnbookedState, UnbookedStore},
};

use super::{
    facts::{EndedCall, Facts, millis},
    line::{MODEL_CHARS_MAX, shortened},
};

/// Maximum number of calls with unknown keys that stay in memory.
pub(crate) const STRANGERS_MAX: usize = 2000;
/// Maximum number of calls that wait to be stored; one account may have at most half of them. Further calls are
/// dropped.
pub(super) const WAITING_MAX: usize = 10_000;
/// Maximum number of calls that are stored in one request. Together with the interval between requests, it limits the
/// load on the store, which may be the server that also holds money.
const STORED_AT_ONCE: usize = 100;
/// Maximum length, in characters, of the cause and the field that are stored with a call.
const TEXT_CHARS_MAX: usize = 300;

/// Ended calls without a receipt that are in a gateway's memory.
#[derive(Debug)]
pub(super) struct Unbooked {
    pub(super) queues: Mutex<Queues>,
    pub(super) store: Option<Arc<dyn UnbookedStore>>,
    pub(super) dropped: Counter,
}

#[derive(Debug, Default)]
pub(super) struct Queues {
    /// Calls with known keys that are not stored yet, oldest first. Empty if no store is configured.
    pub(super) waiting: VecDeque<UnbookedCall>,
    /// The number of waiting calls, by account.
    waiting_of: HashMap<AccountId, usize>,
    of_strangers: VecDeque<UnbookedCall>,
}

impl Unbooked {
    pub(super) fn push(&self, call: UnbookedCall) {
        let queues = &mut *self.queues.lock();
        let Some(account) = &call.account else {
            if queues.of_strangers.len() >= STRANGERS_MAX {
                queues.of_strangers.pop_front();
            }
            queues.of_strangers.push_back(call);
            return;
        };
        if self.store.is_none() {
            return;
        }
        let of_account = queues.waiting_of.entry(account.clone()).or_default();
        if queues.waiting.len() >= WAITING_MAX || *of_account >= WAITING_MAX / 2 {
            self.dropped.inc();
            return;
        }
        *of_account += 1;
        queues.waiting.push_back(call);
    }

    /// Returns the calls in memory that `is_selected` accepts, in any order.
    pub(super) fn select(&self, is_selected: impl Fn(&UnbookedCall) -> bool) -> Vec<UnbookedCall> {
        let queues = self.queues.lock();
        let calls = queues.waiting.iter().chain(&queues.of_strangers);
        calls.filter(|call| is_selected(call)).cloned().collect()
    }

    /// Stores the calls that have waited longest, and returns the number of stored calls. Each call stays in memory
    /// until it is stored, so that it can be found at any time.
    pub(super) async fn store_some(&self, store: &dyn UnbookedStore) -> Result<usize, BoxError> {
        let some: Vec<UnbookedCall> = {
            let queues = self.queues.lock();
            (queues.waiting.iter().take(STORED_AT_ONCE).cloned()).collect()
        };
        if !some.is_empty() {
            store.write(&some).await?;
        }
        // Only this task removes waiting calls, so the calls that were stored are still the first ones.
        let mut queues = self.queues.lock();
        queues.waiting.drain(..some.len());
        if queues.waiting.is_empty() {
            queues.waiting_of.clear();
        } else {
            for account in some.iter().filter_map(|call| call.account.as_ref()) {
                let left = queues.waiting_of.get_mut(account);
                left.into_iter().for_each(|left| *left -= 1);
            }
        }
        Ok(some.len())
    }
}

pub(super) fn ended(call: &EndedCall<'_>) -> UnbookedCall {
    let (facts, answered) = (call.facts, call.answered);
    let failure = answered.failure.as_deref();
    let error = failure.map(|it| it.without_quotes.as_deref().unwrap_or(&it.text));
    let field = failure.and_then(|failure| failure.field.as_deref());
    let bounded = |text: &str| shortened(text, TEXT_CHARS_MAX).to_owned();
    UnbookedCall {
        state: match facts.held {
            true => UnbookedState::Released,
            false => UnbookedState::Refused,
        },
        status: Some(answered.status),
        code: failure.map(|failure| failure.code.to_owned()),
        field: field.map(bounded),
        error: error.map(bounded),
        ..call_of(call.number, call.path, facts, millis(answered.whole))
    }
}

/// Returns the description of a call in flight.
pub(super) fn call_of(
    number: RequestNumber,
    path: &str,
    facts: &Facts,
    whole_ms: u32,
) -> UnbookedCall {
    let model = facts.model.as_deref();
    UnbookedCall {
        number,
        state: UnbookedState::Running,
        path: path.to_owned(),
        account: facts.key.as_ref().map(|key| key.account.clone()),
        key: facts.key.as_ref().map(|key| key.id.clone()),
        model: model.map(|model| shortened(model, MODEL_CHARS_MAX).to_owned()),
        session: facts.session.clone(),
        vendor: facts.vendor.as_deref().map(str::to_owned),
        status: None,
        code: None,
        field: None,
        error: None,
        whole_ms,
    }
}
