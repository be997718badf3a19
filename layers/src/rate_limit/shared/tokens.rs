use std::{fmt::Display, hash::Hash, mem, sync::Arc, time::Duration};

use quick_cache::sync::Cache;
use tokio::{
    sync::oneshot,
    time::{Instant, sleep_until},
};

use super::{Batch, Begun, RateStore, SharedRates, Slot, Verdict, add};
use crate::rate_limit::{
    Limiter, Quota, get_or_insert,
    post_paid::{Bucket, UNIT},
};

/// The maximum age of the store's last response for a caller that has used more than half of the quota's burst.
pub const NEAR_FRESH: Duration = Duration::from_millis(25);
/// The maximum age of the store's last response for a caller that has used at most half of the quota's burst.
const FAR_FRESH: Duration = Duration::from_millis(100);
/// The maximum age of the store's last response if [`FEW`] calls could use up the whole burst.
const EXACT_FRESH: Duration = Duration::from_millis(2);
/// If this number of calls, each as large as the largest call so far, could use up the whole burst, the usage must be
/// known almost exactly.
const FEW: u128 = 16;
/// If the store's last response is older than its maximum age, the store is queried. The call waits for the new
/// response only if the age of the last one is at least this many times the maximum age.
const STALE: u32 = 4;

/// Limits usage over all gateways as [`PostPaid`](crate::rate_limit::PostPaid) limits it at one gateway; see [the
/// module](super).
#[derive(Clone)]
pub struct SharedPostPaid<K, S>(Arc<Inner<K, S>>);

struct Inner<K, S> {
    rates: SharedRates<S>,
    name: Box<str>,
    begin: Instant,
    slots: Cache<K, Arc<Slot<K, State>>>,
}

struct State {
    /// The usage over all gateways in the store's last response, plus this gateway's usage since then.
    bucket: Bucket,
    /// The units that were used at this gateway and are not in a batch yet.
    unreported: u64,
    /// The batch that is being reported to the store. It is kept until the store answers, so that it can be sent again.
    batch: Batch,
    /// The time at which the latest answered command was sent. `None` if the store has not answered yet.
    known: Option<Instant>,
    /// The time at which the latest command was sent.
    sent_at: Option<Instant>,
    /// The largest number of units that one call has used.
    largest: u64,
    waiting: Vec<oneshot::Sender<Verdict>>,
    report_state: ReportState,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum ReportState {
    No,
    /// A report to the store is scheduled for later, so that it includes calls that end until then.
    Soon,
    /// A report to the store is due now, or was sent and is not answered yet.
    Now,
}

impl<K, S> SharedPostPaid<K, S>
where
    K: Eq + Hash + Clone + Display + Send + Sync + 'static,
    S: RateStore,
{
    /// Creates a limiter whose counts are stored under `name`. All gateways must use the same name for the same limit.
    /// This process remembers at most `callers_max` callers.
    #[must_use]
    pub fn new(rates: SharedRates<S>, name: &str, callers_max: usize) -> Self {
        Self(Arc::new(Inner {
            rates,
            name: name.into(),
            begin: Instant::now(),
            slots: Cache::new(callers_max),
        }))
    }

    /// Takes the units that a request of the caller `id` has used. Does nothing if this limiter has admitted no request
    /// of the caller.
    pub fn take(&self, id: &K, units: u64) {
        let Some(slot) = self.0.slots.get(id) else {
            return;
        };
        let mut state = slot.lock();
        state.bucket.fill(self.0.nanos());
        state.bucket.take(units);
        state.unreported = state.unreported.saturating_add(units);
        state.largest = state.largest.max(units);
        if state.report_state == ReportState::No {
            state.report_state = ReportState::Soon;
            let due = state.due();
            drop(state);
            let (limiter, reported) = (self.clone(), Arc::clone(&slot));
            let began = self.0.rates.begin(async move {
                sleep_until(due).await;
                limiter.report_if_due(&reported).await;
            });
            if !began {
                slot.lock().report_state = ReportState::No;
            }
        }
    }

    fn slot(&self, id: &K, quota: Quota) -> Arc<Slot<K, State>> {
        let new = || Slot::new(id.clone(), State::new(quota, self.0.nanos()));
        get_or_insert(&self.0.slots, id, new)
    }

    /// Decides from memory. Returns `None` if the store must be queried and the call must wait for its response.
    fn look(&self, slot: &Arc<Slot<K, State>>, quota: Quota) -> Option<Verdict> {
        let now = Instant::now();
        let mut state = slot.lock();
        state.bucket.fill(self.0.nanos());
        state.bucket.quota = quota;
        let (age, fresh) = (now - state.known?, state.fresh());
        if age >= fresh {
            if fresh <= EXACT_FRESH || age >= fresh * STALE {
                return None;
            }
            let verdict = state.bucket.debt_paid_in();
            drop(state);
            self.ask(slot);
            return Some(verdict);
        }
        Some(state.bucket.debt_paid_in())
    }

    /// Sends a report to the store now, unless one is already being sent. The response contains the usage over all
    /// gateways.
    fn ask(&self, slot: &Arc<Slot<K, State>>) {
        if mem::replace(&mut slot.lock().report_state, ReportState::Now) == ReportState::Now {
            return;
        }
        let (limiter, sent_at) = (self.clone(), Arc::clone(slot));
        let ask = async move {
            if let Some(due) = limiter.report(&sent_at).await {
                sleep_until(due).await;
                limiter.report_if_due(&sent_at).await;
            }
        };
        if !self.0.rates.begin(ask) {
            let mut state = slot.lock();
            state.report_state = ReportState::No;
            state.decide_all();
        }
    }

    fn begin(&self, id: &K, quota: Quota) -> Begun {
        let slot = self.slot(id, quota);
        if let Some(verdict) = self.look(&slot, quota) {
            return Begun::Decided(verdict);
        }
        add(&self.0.rates.counters.waited, 1);
        let (report, reported) = oneshot::channel();
        slot.lock().waiting.push(report);
        self.ask(&slot);
        Begun::Sent(reported)
    }

    /// Reports the usage of calls that have ended, and then of calls that end during the report, unless another task
    /// already does so.
    async fn report_if_due(&self, slot: &Slot<K, State>) {
        while slot.lock().take_due() {
            match self.report(slot).await {
                Some(due) => sleep_until(due).await,
                None => break,
            }
        }
    }

    /// Sends a report to the store. If more calls have ended meanwhile, returns the time at which the next report is
    /// due.
    async fn report(&self, slot: &Slot<K, State>) -> Option<Instant> {
        let Inner { rates, name, .. } = &*self.0;
        let began = Instant::now();
        let (quota, batch) = {
            let mut state = slot.lock();
            if state.batch.units == 0 {
                state.batch = Batch {
                    number: rates.next_batch(),
                    units: mem::take(&mut state.unreported),
                };
            }
            state.sent_at = Some(began);
            (state.bucket.quota, state.batch)
        };
        add(&rates.counters.spends, 1);
        let id = format!("{name}:{}", slot.id);
        let answer = rates.store.spend(rates.node, &id, quota, batch).await;
        let mut state = slot.lock();
        let was_heard = answer.is_ok();
        match answer {
            Ok(thousandths) => {
                // This response may be late: the batch may have been sent again and acknowledged in the meantime.
                if state.batch.number == batch.number {
                    state.batch.units = 0;
                }
                state.known = Some(began);
                state.bucket.at = self.0.nanos();
                state.bucket.taken = u128::from(thousandths) * (UNIT / 1000);
                let unreported = state.unreported;
                state.bucket.take(unreported);
            }
            // The next command sends the same batch again. Until then, this gateway decides alone, from the store's
            // last response.
            Err(_) => add(&rates.counters.failures, 1),
        }
        state.bucket.fill(self.0.nanos());
        state.decide_all();
        let is_left = was_heard && state.unreported > 0;
        state.report_state = if is_left {
            ReportState::Soon
        } else {
            ReportState::No
        };
        is_left.then(|| state.due())
    }
}

impl<K, S> Inner<K, S> {
    fn nanos(&self) -> u128 {
        self.begin.elapsed().as_nanos()
    }
}

impl State {
    fn new(quota: Quota, now: u128) -> Self {
        Self {
            bucket: Bucket::new(quota, now),
            unreported: 0,
            batch: Batch::default(),
            known: None,
            sent_at: None,
            largest: 0,
            waiting: Vec::new(),
            report_state: ReportState::No,
        }
    }

    /// Returns the maximum age of the store's last response. If the response is older, the store is queried.
    fn fresh(&self) -> Duration {
        let burst = u128::from(self.bucket.quota.burst.max(1)) * UNIT;
        if self.largest == 0 || u128::from(self.largest) * UNIT * FEW > burst {
            EXACT_FRESH
        } else if self.bucket.taken > burst / 2 {
            NEAR_FRESH
        } else {
            FAR_FRESH
        }
    }

    /// Returns the time at which the next report to the store is due.
    fn due(&self) -> Instant {
        let now = Instant::now();
        self.sent_at
            .map_or(now, |sent_at| sent_at + self.fresh() * 4 / 5)
    }

    /// Returns whether a report is scheduled that no task has started yet. If so, marks it as started by the calling
    /// task.
    fn take_due(&mut self) -> bool {
        let is_due = self.report_state == ReportState::Soon;
        if is_due {
            self.report_state = ReportState::Now;
        }
        is_due
    }

    fn decide_all(&mut self) {
        let verdict = self.bucket.debt_paid_in();
        for waits in self.waiting.drain(..) {
            let _ = waits.send(verdict);
        }
    }
}

impl<K, S> Limiter<K> for SharedPostPaid<K, S>
where
    K: Eq + Hash + Clone + Display + Send + Sync + 'static,
    S: RateStore,
{
    async fn admit(&self, id: K, quota: Quota) -> Result<(), Duration> {
        if let Some(verdict) = self.begin(&id, quota).verdict().await {
            return verdict;
        }
        // The task that sends commands has stopped, so this gateway decides alone.
        let slot = self.slot(&id, quota);
        let mut state = slot.lock();
        state.report_state = ReportState::No;
        state.bucket.fill(self.0.nanos());
        state.decide_all();
        state.bucket.debt_paid_in()
    }

    fn admit_now(&self, id: &K, quota: Quota) -> Option<Result<(), Duration>> {
        self.look(&self.slot(id, quota), quota)
    }
}

debug_fields!(impl[K, S] SharedPostPaid<K, S> { name: 0.name });
