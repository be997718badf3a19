//! The list of in-flight calls. From it the settler finds the holds to extend, the costs to record as checkpoints, and
//! the calls to stop when the gateway must exit.
//!
//! A call is in this list from the moment its hold is granted until the owner of the hold ends it. So the settler
//! extends and records exactly the holds that are alive.

use std::{
    collections::HashSet,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
    task::Context,
    time::Duration,
};

use futures_util::task::AtomicWaker;
use tokio::time::Instant;

use super::Bill;
use crate::contract::{Adjusted, Adjustment, Hold, Settlement};
use crate::{
    account::AccountId,
    money::MicroRub,
    number::RequestNumber,
    timeline::Timeline,
    usage::{End, Meter, Reading, Usage},
};

/// A call with a granted hold. The owner of the hold and the settler, which extends it, share this value.
#[derive(Debug)]
pub struct Granted<T> {
    /// The hold that was requested for the call.
    pub hold: Hold,
    /// The amount that the ledger granted; `None` until the ledger has answered.
    pub held: Option<MicroRub>,
    /// When the hold was granted; `None` until then.
    pub held_at: Option<Instant>,
    /// The amounts of the hold, if it is changed while the call is in flight.
    pub adjusted: AdjustedHold,
    /// The call's usage so far.
    pub meter: Meter,
    /// Computes the cost of the usage.
    pub bill: T,
    /// Signals that the call must end now.
    pub cut: Cut,
}

/// The amounts of a hold that is changed while its call is in flight.
#[derive(Debug, Default)]
pub struct AdjustedHold(Mutex<Amounts>);

#[derive(Debug, Default)]
struct Amounts {
    /// The sequence number of the last requested change.
    requested: u32,
    /// The last hold change that the ledger has answered: its sequence number, and the amount held after it.
    answered: Option<(u32, MicroRub)>,
    /// The largest amount that the call held after any answered change.
    max: MicroRub,
}

impl AdjustedHold {
    fn lock(&self) -> MutexGuard<'_, Amounts> {
        // A panic cannot leave the amounts half changed, because a change is only a few assignments.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A signal to a call that it must end now.
#[derive(Debug, Default)]
pub struct Cut {
    ordered: AtomicBool,
    owner: AtomicWaker,
}

impl Cut {
    fn order(&self) {
        self.ordered.store(true, Ordering::Release);
        self.owner.wake();
    }

    /// Returns whether the call must end now. Registers the waker of `cx`, which is woken when the answer becomes true.
    pub fn is_ordered(&self, cx: &Context<'_>) -> bool {
        self.owner.register(cx.waker());
        self.ordered.load(Ordering::Acquire)
    }
}

trait Call: Send + Sync {
    fn hold(&self) -> &Hold;

    /// Returns a value that changes whenever the call's cost may have changed.
    fn progress(&self) -> Progress;

    /// Returns the settlement that the call would have if it ended now, or `None` while the call is free.
    fn settlement(&self) -> Option<Settlement>;

    fn cut(&self);
}

/// Progress of a call: the bytes of text that the meter has read, and the usage that the vendor has reported.
type Progress = (u64, Option<Usage>);

impl<T> Granted<T> {
    /// Returns the request to change the hold to `amount`; `None` if the call holds nothing.
    #[must_use]
    pub fn adjustment(&self, amount: MicroRub) -> Option<Adjustment> {
        self.held?;
        let mut amounts = self.adjusted.lock();
        amounts.requested = amounts.requested.saturating_add(1);
        Some(Adjustment {
            number: self.hold.number,
            account: self.hold.account.clone(),
            key: self.hold.key.clone(),
            sequence: amounts.requested,
            amount,
        })
    }

    /// Records the ledger's answer to a hold change. An answer that arrives after the answer to a later change is
    /// ignored.
    pub fn adjusted(&self, adjustment: &Adjustment, answer: Adjusted) {
        let Adjusted::Held(held) = answer else {
            return;
        };
        let mut amounts = self.adjusted.lock();
        let before = amounts.answered.map_or(0, |(sequence, _)| sequence);
        if adjustment.sequence > before {
            amounts.answered = Some((adjustment.sequence, held));
            amounts.max = amounts.max.max(held);
        }
    }

    /// Returns the amount that the call holds according to the ledger's last answer; `None` if it holds nothing.
    #[must_use]
    pub fn held_now(&self) -> Option<MicroRub> {
        let first = self.held?;
        let answered = self.adjusted.lock().answered;
        Some(answered.map_or(first, |(_, held)| held))
    }
}

impl<T: Bill> Granted<T> {
    /// Returns the settlement of a call that ends with `reading`; `None` if the call holds nothing or is free.
    #[must_use]
    pub fn ended(&self, reading: &Reading) -> Option<Settlement> {
        let held = self.held?;
        let (cost, mut item) = self.bill.charge(reading)?;
        item.timeline = self.timeline(reading);
        let amounts = self.adjusted.lock();
        if let Some((_, held_at_end)) = amounts.answered {
            item.held_max_rub = Some(amounts.max.max(held));
            item.held_at_end_rub = Some(held_at_end);
        }
        drop(amounts);
        Some(Settlement::new(&self.hold, held, cost, item))
    }

    /// Returns the call's timeline as if the call ended now.
    fn timeline(&self, reading: &Reading) -> Option<Timeline> {
        let mut line = reading.timeline.clone()?;
        let since = self.held_at?.elapsed().as_millis();
        let since = u32::try_from(since).unwrap_or(u32::MAX);
        // `held_ms` (until the hold) and `since` (after the hold) were each rounded down to milliseconds, so their sum
        // may be less than the time of the first byte.
        let least = line.first_byte_ms.unwrap_or_default();
        line.whole_ms = line.held_ms.saturating_add(since).max(least);
        Some(line)
    }
}

impl<T: Bill> Call for Granted<T> {
    fn hold(&self) -> &Hold {
        &self.hold
    }

    fn progress(&self) -> Progress {
        self.meter
            .look(|reading| (reading.text_bytes, reading.usage))
    }

    fn settlement(&self) -> Option<Settlement> {
        let mut reading = self.meter.read();
        reading.end.get_or_insert(End::GatewayStopped);
        self.ended(&reading)
    }

    fn cut(&self) {
        self.cut.order();
    }
}

/// The list of all in-flight calls of a settler. Clones share the list, and do not keep the settler alive.
#[derive(Clone, Default)]
pub struct Running(Arc<Mutex<Calls>>);

#[derive(Default)]
struct Calls {
    places: Vec<Option<Tended>>,
    /// The indexes of unused elements of `places`.
    spare: Vec<usize>,
    /// Whether calls that are added from now on must end immediately.
    cut: bool,
}

struct Tended {
    call: Arc<dyn Call>,
    extend_at: Instant,
    noted: Progress,
}

/// A call's entry in the list of in-flight calls. Dropping the entry removes the call from the list.
pub struct RunningEntry {
    running: Running,
    place: usize,
}

impl Running {
    pub(super) fn enter<T: Bill>(&self, call: Arc<Granted<T>>) -> RunningEntry {
        let tended = Tended {
            extend_at: half_time(call.hold.ttl),
            call,
            noted: Progress::default(),
        };
        let mut calls = self.lock();
        if calls.cut {
            tended.call.cut();
        }
        let place = calls.spare.pop().unwrap_or_else(|| {
            calls.places.push(None);
            calls.places.len() - 1
        });
        calls.places[place] = Some(tended);
        RunningEntry {
            running: self.clone(),
            place,
        }
    }

    /// Returns a checkpoint for each call whose cost has changed since its last checkpoint: the settlement that the
    /// call would have if it ended now.
    pub(super) fn notes(&self) -> Vec<Settlement> {
        let mut notes = Vec::new();
        for tended in self.lock().places.iter_mut().flatten() {
            let progress = tended.call.progress();
            if progress != tended.noted {
                notes.extend(tended.call.settlement());
                tended.noted = progress;
            }
        }
        notes
    }

    /// Returns the holds that have used up half of their time to live. Each of them is due again after another half, or
    /// in the next round after [`Running::not_extended`].
    pub(super) fn due_extensions(&self) -> Vec<Hold> {
        let now = Instant::now();
        let mut due = Vec::new();
        for tended in self.lock().places.iter_mut().flatten() {
            let hold = tended.call.hold();
            if tended.extend_at <= now {
                tended.extend_at = half_time(hold.ttl);
                due.push(hold.clone());
            }
        }
        due
    }

    /// Makes the holds of these calls due again in the next round, because the ledger did not answer.
    pub(super) fn not_extended(&self, numbers: &[RequestNumber]) {
        if numbers.is_empty() {
            return;
        }
        let (now, numbers) = (Instant::now(), numbers.iter().collect::<HashSet<_>>());
        for tended in self.lock().places.iter_mut().flatten() {
            if numbers.contains(&tended.call.hold().number) {
                tended.extend_at = now;
            }
        }
    }

    /// Signals all in-flight calls, and every call that is added later, that they must end now.
    pub(super) fn cut(&self) {
        let mut calls = self.lock();
        calls.cut = true;
        for tended in calls.places.iter().flatten() {
            tended.call.cut();
        }
    }

    /// Returns what the in-flight calls of an account have cost so far. Each call counts with at most the amount that
    /// it holds.
    #[must_use]
    pub fn used(&self, account: &AccountId) -> MicroRub {
        let calls = self.lock();
        let calls = calls.places.iter().flatten().map(|tended| &tended.call);
        let ends = calls
            .filter(|call| call.hold().account == *account)
            .filter_map(|call| call.settlement());
        let costs = ends.map(|end| end.cost.min(end.held_at_end()));
        costs.fold(MicroRub::ZERO, MicroRub::plus_or_max)
    }

    pub(super) fn count(&self) -> usize {
        let calls = self.lock();
        calls.places.len() - calls.spare.len()
    }

    fn lock(&self) -> MutexGuard<'_, Calls> {
        // If computing a call's bill panics while this lock is held, the list stays unchanged.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for RunningEntry {
    fn drop(&mut self) {
        let mut calls = self.running.lock();
        let tended = calls.places[self.place].take();
        calls.spare.push(self.place);
        drop(calls);
        // The call is dropped after the lock is released: its own drop may be slow, or may use this list.
        drop(tended);
    }
}

impl std::fmt::Debug for Running {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("Running").field(&self.count()).finish()
    }
}

impl std::fmt::Debug for RunningEntry {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("RunningEntry")
    }
}

fn half_time(ttl: Duration) -> Instant {
    // Limited to one year, because a much later `Instant` may not be representable. The hold is extended long before
    // that.
    Instant::now() + (ttl / 2).min(Duration::from_secs(365 * 24 * 3600))
}

#[cfg(test)]
mod tests {
    use tokio::{task::JoinSet, time::advance};

    use super::*;
    use crate::{
        account::KeyId,
        contract::{Item, Ledger, LedgerError, Reserved, Settled},
        settle::{Settler, SettlerSettings},
    };

    const TTL: Duration = Duration::from_secs(60);

    /// A ledger that records its requests, and fails while `down` is set.
    #[derive(Clone, Default)]
    struct Recorder(Arc<Mutex<Recorded>>);

    #[derive(Default)]
    struct Recorded {
        extended: Vec<RequestNumber>,
        noted: Vec<(MicroRub, End)>,
        down: bool,
    }

    impl Ledger for Recorder {
        async fn reserve(&self, _: &Hold) -> Result<Reserved, LedgerError> {
            unreachable!("the calls are granted by hand")
        }

        async fn settle(&self, _: &Settlement) -> Result<Settled, LedgerError> {
            unreachable!("no call ends")
        }

        async fn release(
            &self,
            _: RequestNumber,
            _: &AccountId,
            _: &KeyId,
        ) -> Result<(), LedgerError> {
            unreachable!("no call ends")
        }

        async fn extend(
            &self,
            number: RequestNumber,
            _: &AccountId,
            ttl: Duration,
        ) -> Result<bool, LedgerError> {
            assert_eq!(ttl, TTL);
            let mut recorded = self.0.lock().unwrap();
            if recorded.down {
                return Err(LedgerError::Unavailable("down".into()));
            }
            recorded.extended.push(number);
            Ok(true)
        }

        async fn probe(&self, _: &AccountId, _: &KeyId) -> Result<(), LedgerError> {
            Ok(())
        }

        async fn expire(&self) -> Result<usize, LedgerError> {
            Ok(0)
        }

        async fn checkpoint(&self, running: &[Settlement]) -> Result<(), LedgerError> {
            let noted = running.iter().map(|it| (it.cost, it.item.end));
            self.0.lock().unwrap().noted.extend(noted);
            Ok(())
        }
    }

    /// A bill that charges one micro-ruble per byte of text.
    struct ByText;

    impl Bill for ByText {
        fn charge(&self, reading: &Reading) -> Option<(MicroRub, Item)> {
            let cost = i64::try_from(reading.text_bytes).unwrap();
            let item = Item {
                usage: reading.usage.unwrap_or_default(),
                estimated: true,
                ..Item::new("m", "v", reading.end.unwrap())
            };
            (cost > 0).then(|| (MicroRub::new(cost), item))
        }
    }

    fn started() -> (Recorder, Settler, JoinSet<()>) {
        let ledger = Recorder::default();
        let (settler, task) = Settler::new(ledger.clone(), SettlerSettings::default(), |_| {});
        let mut tasks = JoinSet::new();
        tasks.spawn(task.run());
        (ledger, settler, tasks)
    }

    fn granted() -> (Meter, Arc<Granted<ByText>>) {
        let meter = Meter::default();
        let call = Granted {
            hold: Hold {
                number: RequestNumber::now_v7(),
                account: "acme".parse().unwrap(),
                key: "k1".parse().unwrap(),
                want: MicroRub::new(100),
                least: MicroRub::new(100),
                ttl: TTL,
            },
            held: Some(MicroRub::new(100)),
            held_at: None,
            adjusted: AdjustedHold::default(),
            meter: meter.clone(),
            bill: ByText,
            cut: Cut::default(),
        };
        (meter, Arc::new(call))
    }

    /// Advances the paused clock by `seconds`, one second at a time.
    async fn pass(seconds: u64) {
        for _ in 0..seconds {
            advance(Duration::from_secs(1)).await;
            for _ in 0..10 {
                tokio::task::yield_now().await;
            }
        }
    }

    #[tokio::test(start_paused = true)]
    async fn hold_of_a_running_call_is_extended_after_half_of_its_time_to_live() {
        let (ledger, settler, _tasks) = started();
        let entry = settler.tend(granted().1);
        let extended = || ledger.0.lock().unwrap().extended.len();
        pass(29).await;
        assert_eq!(extended(), 0);
        pass(63).await;
        assert_eq!(extended(), 3);

        // While the ledger is down, each round attempts the extensions again.
        ledger.0.lock().unwrap().down = true;
        pass(40).await;
        assert_eq!(extended(), 3);
        ledger.0.lock().unwrap().down = false;
        pass(2).await;
        assert_eq!(extended(), 4);

        assert_eq!(settler.running(), 1);
        drop(entry);
        assert_eq!(settler.running(), 0);
        pass(300).await;
        assert_eq!(extended(), 4);
    }

    #[tokio::test(start_paused = true)]
    async fn checkpoint_is_recorded_only_if_the_cost_has_changed() {
        let (ledger, settler, _tasks) = started();
        let noted = || ledger.0.lock().unwrap().noted.clone();
        let (meter, call) = granted();
        let entry = settler.tend(call);
        pass(3).await;
        assert_eq!(noted(), []);
        let stopped = |cost| (MicroRub::new(cost), End::GatewayStopped);
        for (bytes, expected) in [
            (7, vec![stopped(7)]),
            (9, vec![stopped(7), stopped(9)]),
            (9, vec![stopped(7), stopped(9)]),
        ] {
            meter.update(|reading| reading.text_bytes = bytes);
            pass(2).await;
            assert_eq!(noted(), expected);
        }
        meter.update(|reading| reading.text_bytes = 20);
        drop(entry);
        pass(3).await;
        assert_eq!(noted().len(), 2);
    }

    #[tokio::test(start_paused = true)]
    async fn money_used_by_a_running_call_is_its_cost_so_far_but_at_most_its_hold() {
        let (_ledger, settler, _tasks) = started();
        let calls = settler.calls();
        let used = |account: &str| calls.used(&account.parse().unwrap()).micro();
        let (meter, call) = granted();
        let entry = settler.tend(call);
        assert_eq!(used("acme"), 0);
        for (bytes, expected) in [(7, 7), (100, 100), (900, 100)] {
            meter.update(|reading| reading.text_bytes = bytes);
            assert_eq!((used("acme"), used("other")), (expected, 0));
        }
        drop(entry);
        assert_eq!(used("acme"), 0);
    }

    #[test]
    fn settlement_records_the_largest_and_the_last_amount_of_a_changed_hold() {
        let (meter, call) = granted();
        meter.update(|reading| reading.text_bytes = 30);
        let amounts = || {
            let reading = Reading {
                end: Some(End::Finished),
                ..meter.read()
            };
            let Settlement { held, item, .. } = call.ended(&reading).unwrap();
            [Some(held), item.held_max_rub, item.held_at_end_rub].map(|it| it.map(MicroRub::micro))
        };
        assert_eq!(amounts(), [Some(100), None, None]);
        let adjust = |amount| call.adjustment(MicroRub::new(amount)).unwrap();
        let answered = |adjustment: &Adjustment| {
            call.adjusted(adjustment, Adjusted::Held(adjustment.amount));
        };
        let [shrunk, grown, last, refused] = [40, 120, 60, 900].map(adjust);
        assert_eq!([shrunk.sequence, refused.sequence], [1, 4]);
        call.adjusted(&refused, Adjusted::Unsupported);
        assert_eq!(amounts(), [Some(100), None, None]);
        answered(&shrunk);
        assert_eq!(amounts(), [Some(100), Some(100), Some(40)]);
        answered(&grown);
        assert_eq!(amounts(), [Some(100), Some(120), Some(120)]);
        answered(&last);
        // The answer to an earlier change arrives late and is ignored.
        answered(&grown);
        assert_eq!(amounts(), [Some(100), Some(120), Some(60)]);
        assert_eq!(call.held_now().map(MicroRub::micro), Some(60));
    }

    #[tokio::test(start_paused = true)]
    async fn settler_task_ends_when_the_last_settler_is_dropped() {
        let (_, settler, mut tasks) = started();
        pass(1).await;
        drop(settler);
        pass(1).await;
        assert!(tasks.try_join_next().is_some());
    }
}
