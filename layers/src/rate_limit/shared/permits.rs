use std::{fmt::Display, hash::Hash, mem, sync::Arc, time::Duration};

use quick_cache::sync::Cache;
use tokio::{
    sync::oneshot,
    time::{Instant, sleep_until},
};

use super::{Begun, RateStore, SharedRates, Slot, Take, Verdict, add};
use crate::rate_limit::{Gcra, Limiter, Quota, get_or_insert};

/// A gateway takes permits in advance for the calls that it expects within this time.
pub const SLICE: Duration = Duration::from_millis(200);
/// A gateway returns permits to the store if it has used none of them for this time.
pub const IDLE: Duration = Duration::from_millis(250);
/// A gateway has at most 1/300 of the quota in memory. So three gateways together have at most a hundredth of the
/// quota.
const QUOTA_PARTS: u64 = 300;
/// If a gateway sends no command for this time, the store takes back the permits that it has recorded for the gateway.
/// The gateway discards these permits earlier, by its own clock (see [`VALID`]).
const NOTED: Duration = Duration::from_millis(1000);
const VALID: Duration = Duration::from_millis(750);
/// If the store had no permit, the gateway queries the store again when a permit should be available, but at the latest
/// after this time, because another gateway may have returned permits.
const ASK_AGAIN: Duration = Duration::from_millis(100);
/// If the quota is large and the store had no permit, the gateway queries the store again when at least this number of
/// permits should be available.
const WORTH_ASKING: u32 = 16;

/// Limits requests over all gateways (see [the module](super)). The number of callers in this process's memory is
/// bounded. The next request of an evicted caller queries the store again.
#[derive(Clone)]
pub struct SharedGcra<K, S>(Arc<Inner<K, S>>);

struct Inner<K, S> {
    rates: SharedRates<S>,
    name: Box<str>,
    slots: Cache<K, Arc<Slot<K, State>>>,
    /// Counts the calls that this gateway admits, and decides alone while the store cannot be reached.
    alone: Gcra<K>,
}

struct State {
    quota: Quota,
    permits: u64,
    valid_until: Instant,
    last_used: Instant,
    demand: Demand,
    /// Set if the store had no permit: first the time at which a permit should be available, then the time until which
    /// the store is not queried.
    none: Option<(Instant, Instant)>,
    /// The calls that wait for a command which is queued but not sent yet.
    next: Option<Vec<oneshot::Sender<Verdict>>>,
    sent: Vec<SentRequest>,
    number: u64,
    /// Whether the store may have recorded permits for this gateway.
    is_noted: bool,
    is_tended: bool,
}

/// A command that was sent to the store and is not answered yet.
struct SentRequest {
    number: u64,
    permits: u64,
    waiting: Vec<oneshot::Sender<Verdict>>,
}

/// The number of calls in the current and the previous [`SLICE`], from which the calls of the next slice are predicted.
struct Demand {
    before: u64,
    now: u64,
    since: Instant,
}

impl<K, S> SharedGcra<K, S>
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
            slots: Cache::new(callers_max),
            alone: Gcra::new(callers_max),
        }))
    }

    fn slot(&self, id: &K, quota: Quota) -> Arc<Slot<K, State>> {
        get_or_insert(&self.0.slots, id, || {
            Slot::new(id.clone(), State::new(quota))
        })
    }

    /// Decides from memory. Returns `None` if the store must be queried.
    fn look(&self, slot: &Arc<Slot<K, State>>, quota: Quota) -> Option<Verdict> {
        let mut state = slot.lock();
        let now = Instant::now();
        state.follow(quota, now);
        if state.permits > 0 {
            state.permits -= 1;
            state.used(now, 1);
            let target = state.target(now);
            if state.permits <= target / 4 && state.is_quiet(now) && target > 0 {
                state.next = Some(Vec::new());
                drop(state);
                // No call waits for this command. If the queue is full, the next call queues the command.
                if !self.ask(slot) {
                    slot.lock().next = None;
                }
            }
            // This gateway's own limiter also counts the request, so that its count is correct if the store cannot be
            // reached later.
            let _ = self.0.alone.count(&slot.id, quota);
            return Some(Ok(()));
        }
        let (permit_at, ask_at) = state.none?;
        let until = permit_at.max(ask_at);
        (now < ask_at).then(|| Err(until - now))
    }

    fn begin(&self, id: &K, quota: Quota) -> Begun {
        let slot = self.slot(id, quota);
        if let Some(verdict) = self.look(&slot, quota) {
            return Begun::Decided(verdict);
        }
        add(&self.0.rates.counters.waited, 1);
        let (tell, reported) = oneshot::channel();
        let mut state = slot.lock();
        let has_room = |sent: &&mut SentRequest| (sent.waiting.len() as u64) < sent.permits;
        if let Some(sent) = state.sent.iter_mut().find(has_room) {
            sent.waiting.push(tell);
        } else if let Some(next) = &mut state.next {
            next.push(tell);
        } else {
            state.next = Some(vec![tell]);
            drop(state);
            if !self.ask(&slot) {
                // The queue of commands is full, so this gateway decides without the store.
                slot.lock().next = None;
                return Begun::Decided(self.0.alone.count(id, quota));
            }
        }
        Begun::Sent(reported)
    }

    fn ask(&self, slot: &Arc<Slot<K, State>>) -> bool {
        let (limiter, slot) = (self.clone(), Arc::clone(slot));
        self.0.rates.begin(async move {
            limiter.take(&slot).await;
            limiter.tend(&slot).await;
        })
    }

    async fn take(&self, slot: &Slot<K, State>) {
        let Inner { rates, name, .. } = &*self.0;
        let began = Instant::now();
        let (number, quota, take) = {
            let mut state = slot.lock();
            let Some(waiting) = state.next.take() else {
                return;
            };
            state.begin(waiting, began)
        };
        add(&rates.counters.takes, 1);
        let id = format!("{name}:{}", slot.id);
        let answer = rates.store.take(rates.node, &id, quota, take, NOTED).await;
        let mut state = slot.lock();
        let Some(at) = state.sent.iter().position(|sent| sent.number == number) else {
            return;
        };
        let SentRequest {
            permits, waiting, ..
        } = state.sent.swap_remove(at);
        let now = Instant::now();
        let Ok(answer) = answer else {
            drop(state);
            add(&rates.counters.failures, 1);
            for waits in waiting {
                let _ = waits.send(self.0.alone.count(&slot.id, quota));
            }
            return;
        };
        let (granted, wait) = match answer {
            Ok(granted) => (granted, quota.interval()),
            Err(wait) => (0, wait),
        };
        add(&rates.counters.permits, granted);
        let let_in = granted.min(waiting.len() as u64);
        state.used(now, let_in);
        state.permits += granted - let_in;
        if granted > let_in {
            state.valid_until = began + VALID;
            state.is_noted = true;
        }
        state.none = (granted < permits).then(|| (now + wait, now + quota.pause(wait)));
        drop(state);
        let mut granted = let_in;
        for waits in waiting {
            // A waiting call may have been dropped. It is still counted, like a call that a layer below refuses.
            let verdict = if granted > 0 {
                granted -= 1;
                let _ = self.0.alone.count(&slot.id, quota);
                Ok(())
            } else {
                Err(wait)
            };
            let _ = waits.send(verdict);
        }
    }

    /// Returns unused permits to the store after they were not used for a while.
    async fn tend(&self, slot: &Slot<K, State>) {
        let Inner { rates, name, .. } = &*self.0;
        {
            let mut state = slot.lock();
            if state.is_tended || !state.is_noted {
                return;
            }
            state.is_tended = true;
        }
        loop {
            let due = slot.lock().due();
            sleep_until(due).await;
            let (quota, back) = {
                let mut state = slot.lock();
                let now = Instant::now();
                state.expire(now);
                if now < state.due() {
                    continue;
                }
                (state.is_tended, state.is_noted) = (false, false);
                (state.quota, mem::take(&mut state.permits))
            };
            add(&rates.counters.takes, 1);
            add(&rates.counters.given_back, back);
            let id = format!("{name}:{}", slot.id);
            let take = Take {
                back,
                ..Take::default()
            };
            // This command is sent even if no permit is left, so that the store deletes its record of this gateway's
            // permits. Otherwise the store would later take back permits that were used. If this command is lost, the
            // record expires by itself.
            let _ = rates.store.take(rates.node, &id, quota, take, NOTED).await;
            return;
        }
    }
}

impl State {
    fn new(quota: Quota) -> Self {
        let now = Instant::now();
        Self {
            quota,
            permits: 0,
            valid_until: now,
            last_used: now,
            demand: Demand {
                before: 0,
                now: 0,
                since: now,
            },
            none: None,
            next: None,
            sent: Vec::new(),
            number: 0,
            is_noted: false,
            is_tended: false,
        }
    }

    fn follow(&mut self, quota: Quota, now: Instant) {
        if self.quota != quota {
            self.quota = quota;
            self.none = None;
        }
        self.expire(now);
    }

    fn expire(&mut self, now: Instant) {
        if now >= self.valid_until {
            self.permits = 0;
        }
    }

    fn used(&mut self, now: Instant, calls: u64) {
        self.demand.count(now, calls);
        self.last_used = now;
    }

    /// Returns the time at which unused permits are to be returned to the store.
    fn due(&self) -> Instant {
        (self.last_used + IDLE).min(self.valid_until - (VALID - IDLE) / 4)
    }

    /// Returns whether the store may have free permits and no query to the store is pending.
    fn is_quiet(&self, now: Instant) -> bool {
        let has_some = self.none.is_none_or(|(_, ask_at)| now >= ask_at);
        has_some && self.sent.is_empty() && self.next.is_none()
    }

    /// Returns how many permits this gateway should have in memory for later calls.
    fn target(&mut self, now: Instant) -> u64 {
        let most = u64::from(self.quota.count) / QUOTA_PARTS;
        self.demand.count(now, 0);
        most.min(self.demand.before.max(self.demand.now))
    }

    fn begin(
        &mut self,
        waiting: Vec<oneshot::Sender<Verdict>>,
        now: Instant,
    ) -> (u64, Quota, Take) {
        self.expire(now);
        let calls = waiting.len() as u64;
        let spare = |sent: &SentRequest| sent.permits.saturating_sub(sent.waiting.len() as u64);
        let under_way: u64 = self.sent.iter().map(spare).sum();
        let take = Take {
            calls,
            spare: self.target(now).saturating_sub(self.permits + under_way),
            has: self.permits,
            back: 0,
        };
        self.number += 1;
        self.sent.push(SentRequest {
            number: self.number,
            permits: calls + take.spare,
            waiting,
        });
        (self.number, self.quota, take)
    }
}

impl Demand {
    fn count(&mut self, now: Instant, calls: u64) {
        let elapsed = now - self.since;
        if elapsed >= SLICE {
            let slices = elapsed.as_millis() / SLICE.as_millis();
            self.before = self.now / u64::try_from(slices).unwrap_or(u64::MAX);
            (self.now, self.since) = (0, now);
        }
        self.now += calls;
    }
}

impl Quota {
    fn interval(self) -> Duration {
        self.per / self.count.max(1)
    }

    /// Returns how long the store is not queried after it answered that no permit will be free for `wait`.
    fn pause(self, wait: Duration) -> Duration {
        let some = if u64::from(self.count) < QUOTA_PARTS {
            Duration::ZERO
        } else {
            self.interval() * WORTH_ASKING
        };
        wait.max(some).min(ASK_AGAIN)
    }
}

impl<K, S> Limiter<K> for SharedGcra<K, S>
where
    K: Eq + Hash + Clone + Display + Send + Sync + 'static,
    S: RateStore,
{
    async fn admit(&self, id: K, quota: Quota) -> Result<(), Duration> {
        if let Some(verdict) = self.begin(&id, quota).verdict().await {
            return verdict;
        }
        // The task that sends commands has stopped, so its unsent commands are dropped.
        let slot = self.slot(&id, quota);
        let mut state = slot.lock();
        (state.next, state.sent) = (None, Vec::new());
        drop(state);
        self.0.alone.count(&id, quota)
    }

    fn admit_now(&self, id: &K, quota: Quota) -> Option<Result<(), Duration>> {
        self.look(&self.slot(id, quota), quota)
    }
}

debug_fields!(impl[K, S] SharedGcra<K, S> { name: 0.name });
