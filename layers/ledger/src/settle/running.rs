//! The holds of running calls: what must be extended, what must be noted down should this process die,
//! and what is cut when it has to stop.
//!
//! A hold is here from its grant until its owner ends it, so what is tended is exactly what lives.

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
use crate::contract::{Hold, Settlement};
use crate::{
    money::MicroRub,
    number::RequestNumber,
    timeline::Timeline,
    usage::{End, Meter, Reading, Usage},
};

/// A granted call, shared by the owner of its hold and the settler that tends it.
#[derive(Debug)]
pub struct Granted<T> {
    /// What the ledger was asked for.
    pub hold: Hold,
    /// What it holds; `None` until it has answered.
    pub held: Option<MicroRub>,
    /// When that was, if it was.
    pub held_at: Option<Instant>,
    /// What the call has used so far.
    pub meter: Meter,
    /// What that costs.
    pub bill: T,
    /// Whether the call is told to end.
    pub cut: Cut,
}

/// Whether a call is told to end now.
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

    /// Whoever asks is woken when it becomes true.
    pub fn is_ordered(&self, cx: &Context<'_>) -> bool {
        self.owner.register(cx.waker());
        self.ordered.load(Ordering::Acquire)
    }
}

trait Call: Send + Sync {
    fn hold(&self) -> &Hold;

    /// What tells whether its cost may have changed.
    fn progress(&self) -> Progress;

    /// Its end, were it now; `None` while it costs nothing.
    fn settlement(&self) -> Option<Settlement>;

    fn cut(&self);
}

/// Text seen, and usage told.
type Progress = (u64, Option<Usage>);

impl<T: Bill> Granted<T> {
    /// Its end by this reading; `None` where nothing is held, or it cost nothing.
    #[must_use]
    pub fn ended(&self, reading: &Reading) -> Option<Settlement> {
        let held = self.held?;
        let (cost, mut item) = self.bill.charge(reading)?;
        item.timeline = self.timeline(reading);
        Some(Settlement {
            number: self.hold.number,
            account: self.hold.account.clone(),
            key: self.hold.key.clone(),
            held,
            cost,
            fresh: true,
            lease: None,
            item,
        })
    }

    /// How it went to its end, which is now.
    fn timeline(&self, reading: &Reading) -> Option<Timeline> {
        let mut line = reading.timeline.clone()?;
        let since = self.held_at?.elapsed().as_millis();
        let since = u32::try_from(since).unwrap_or(u32::MAX);
        // Parts of a millisecond are left out twice.
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

/// All running calls of one settler. Clones share them.
#[derive(Clone, Default)]
pub(super) struct Running(Arc<Mutex<Calls>>);

#[derive(Default)]
struct Calls {
    places: Vec<Option<Tended>>,
    /// Places that are empty.
    spare: Vec<usize>,
    /// Whatever comes now is cut at once.
    cut: bool,
}

struct Tended {
    call: Arc<dyn Call>,
    extend_at: Instant,
    noted: Progress,
}

/// A call's entry among the running ones; dropped, it is gone from there.
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

    /// Calls whose cost has changed since they were noted last, as if they ended now.
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

    /// Holds that have lived half their time. They are due again after half of it, or after
    /// [`Running::not_extended`].
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

    /// The ledger could not be asked: these are due again in the next round.
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

    /// Ends all calls now, and those that come later.
    pub(super) fn cut(&self) {
        let mut calls = self.lock();
        calls.cut = true;
        for tended in calls.places.iter().flatten() {
            tended.call.cut();
        }
    }

    /// How many there are.
    pub(super) fn count(&self) -> usize {
        let calls = self.lock();
        calls.places.len() - calls.spare.len()
    }

    fn lock(&self) -> MutexGuard<'_, Calls> {
        // A bill that panics leaves the list as it was.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for RunningEntry {
    fn drop(&mut self) {
        let mut calls = self.running.lock();
        let tended = calls.places[self.place].take();
        calls.spare.push(self.place);
        drop(calls);
        // Outside the lock: it may be the last to hold the call.
        drop(tended);
    }
}

impl std::fmt::Debug for RunningEntry {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("RunningEntry")
    }
}

fn half_time(ttl: Duration) -> Instant {
    // A year and more is never: an instant so far may not exist.
    Instant::now() + (ttl / 2).min(Duration::from_secs(365 * 24 * 3600))
}

#[cfg(test)]
mod tests {
    use tokio::{task::JoinSet, time::advance};

    use super::*;
    use crate::{
        account::{AccountId, KeyId},
        contract::{Item, Ledger, LedgerError, Reserved, Settled},
        settle::{Settler, SettlerSettings},
    };

    const TTL: Duration = Duration::from_secs(60);

    /// Writes down what it is asked; `down` while it should not answer.
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

    /// A byte of text costs a micro-ruble.
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
            meter: meter.clone(),
            bill: ByText,
            cut: Cut::default(),
        };
        (meter, Arc::new(call))
    }

    /// Lets so many seconds go by, one by one.
    async fn pass(seconds: u64) {
        for _ in 0..seconds {
            advance(Duration::from_secs(1)).await;
            for _ in 0..10 {
                tokio::task::yield_now().await;
            }
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_hold_is_extended_at_half_its_time_for_as_long_as_its_call_runs() {
        let (ledger, settler, _tasks) = started();
        let entry = settler.tend(granted().1);
        let extended = || ledger.0.lock().unwrap().extended.len();
        pass(29).await;
        assert_eq!(extended(), 0);
        pass(63).await;
        assert_eq!(extended(), 3);

        // A ledger that is away is asked in each round until it answers.
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
    async fn what_a_call_has_cost_is_noted_when_it_has_changed() {
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
    async fn tending_ends_with_the_last_settler() {
        let (_, settler, mut tasks) = started();
        pass(1).await;
        drop(settler);
        pass(1).await;
        assert!(tasks.try_join_next().is_some());
    }
}
