//! Ends holds off the callers' way: one bounded queue, one task, retries until the ledger answers.
//!
//! An end is told to the ledger at once, with all that have come meanwhile: until it is told its hold stands, and a
//! caller who has little left makes the next call right behind it.

use std::{
    fmt,
    panic::{AssertUnwindSafe, catch_unwind},
    pin::Pin,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use futures_util::{
    FutureExt, StreamExt,
    future::{join, join_all},
    stream::FuturesUnordered,
};
use tokio::{
    sync::mpsc,
    time::{Instant, Interval, MissedTickBehavior},
};

use super::{
    Bill,
    ending::{Ending, FRESH, cause_of, jittered},
    running::{Granted, Running, RunningEntry},
};
use crate::contract::{Hold, Ledger, LedgerError, Settled, Settlement};
use crate::{BoxError, number::RequestNumber};

/// How much a settler takes on.
#[derive(Clone, Copy, Debug)]
pub struct SettlerSettings {
    /// Calls that may be running or waiting to be settled. Each takes its place before its hold.
    pub calls_max: usize,
    /// Settlements under way at a time.
    pub under_way_max: usize,
    /// Calls that go on without their client at a time; further ones are cut.
    pub without_client_max: usize,
    /// First wait after the ledger was out of reach; doubled each time.
    pub retry_min: Duration,
    /// Longest wait.
    pub retry_max: Duration,
    /// How often running calls are looked at: holds past half their time are extended, and what
    /// calls have cost so far is noted in the ledger's [checkpoint](Ledger::checkpoint).
    pub tend_every: Duration,
}

impl Default for SettlerSettings {
    fn default() -> Self {
        Self {
            calls_max: 10_000,
            under_way_max: 256,
            without_client_max: 1000,
            retry_min: Duration::from_millis(50),
            retry_max: Duration::from_secs(2),
            tend_every: Duration::from_secs(1),
        }
    }
}

/// A call that cannot be settled is reported once, and then so often.
const REPORT_AGAIN: Duration = Duration::from_secs(60);

/// So many ends are told to the ledger together.
const TOGETHER_MAX: usize = 256;

/// Holds that one round asks to extend at the same time.
const EXTENSIONS_AT_ONCE: usize = 64;

/// What a settler reports.
#[derive(Debug)]
#[non_exhaustive]
pub enum Event<'a> {
    /// A call was charged.
    Settled {
        /// What was asked.
        settlement: &'a Settlement,
        /// What was booked.
        settled: &'a Settled,
    },
    /// A hold was released: the call cost nothing.
    Released {
        /// The call's number.
        number: RequestNumber,
    },
    /// The ledger was out of reach; it will be asked again.
    Unavailable {
        /// The call's number.
        number: RequestNumber,
        /// Why.
        cause: &'a BoxError,
    },
    /// Running calls could not be tended: they will be in the next round.
    Untended {
        /// Why.
        cause: &'a BoxError,
    },
}

type Unfinished = Pin<Box<dyn Future<Output = ()> + Send>>;

/// The way into a settler's queue. When the last one is dropped, the task ends after its work.
#[derive(Clone)]
pub struct Settler {
    endings: mpsc::Sender<Ending>,
    unfinished: mpsc::Sender<Unfinished>,
    running: Running,
    unacknowledged: Unacknowledged,
}

impl Settler {
    /// A settler for `ledger`, and the task that must be run for it. A `report` that panics is the loss of
    /// that report; a ledger that does ends the task, and from then on no call finds a place.
    pub fn new<L: Ledger>(
        ledger: L,
        settings: SettlerSettings,
        report: impl Fn(&Event<'_>) + Send + Sync + 'static,
    ) -> (Self, SettlerTask<L>) {
        let (endings, endings_in) = mpsc::channel(settings.calls_max.max(1));
        let (unfinished, unfinished_in) = mpsc::channel(settings.without_client_max.max(1));
        let (running, unacknowledged) = (Running::default(), Unacknowledged::default());
        let report = move |event: &Event<'_>| {
            // What a report panics over is printed; the other calls have to be settled all the same.
            drop(catch_unwind(AssertUnwindSafe(|| report(event))));
        };
        let task = SettlerTask {
            ledger: Arc::new(ledger),
            running: running.clone(),
            settings,
            report: Arc::new(report),
            endings: endings_in,
            unfinished: unfinished_in,
            unacknowledged: unacknowledged.clone(),
        };
        (
            Self {
                endings,
                unfinished,
                running,
                unacknowledged,
            },
            task,
        )
    }

    /// A permit for one ending in the queue; `None` when the queue is full.
    #[must_use]
    pub fn permit(&self) -> Option<QueuePermit> {
        self.endings
            .clone()
            .try_reserve_owned()
            .ok()
            .map(QueuePermit)
    }

    /// Tends a granted call until the entry is dropped.
    #[must_use]
    pub fn tend<T: Bill>(&self, call: Arc<Granted<T>>) -> RunningEntry {
        self.running.enter(call)
    }

    /// Ends all running calls now, and those that come later: each answers
    /// that the gateway is draining, inside its answer where that has begun, and pays for what
    /// was delivered.
    pub fn cut_running(&self) {
        self.running.cut();
    }

    /// Calls that hold money now.
    #[must_use]
    pub fn running(&self) -> usize {
        self.running.count()
    }

    /// Calls that have ended and whose end the ledger has not acknowledged. Keeps no settler from ending.
    #[must_use]
    pub fn unacknowledged(&self) -> Unacknowledged {
        self.unacknowledged.clone()
    }

    /// Goes on with a call whose client has left, unless too many do already: then it is dropped,
    /// which settles it.
    pub fn finish_without_client(&self, call: Unfinished) {
        drop(self.unfinished.try_send(call));
    }
}

impl fmt::Debug for Settler {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Settler")
            .field("places_left", &self.endings.capacity())
            .finish_non_exhaustive()
    }
}

/// Counts the calls that have ended and whose end, a charge or a release, the ledger has not acknowledged.
#[derive(Clone, Debug, Default)]
pub struct Unacknowledged(Arc<AtomicUsize>);

impl Unacknowledged {
    /// How many there are. Once its settler's task was dropped, how many it has left so.
    #[must_use]
    pub fn count(&self) -> usize {
        self.0.load(Ordering::Relaxed)
    }
}

/// A permit for one ending in the settler's queue: using it neither waits nor fails.
pub struct QueuePermit(mpsc::OwnedPermit<Ending>);

impl QueuePermit {
    /// Queues the ending.
    pub fn send(self, ending: Ending) {
        self.0.send(ending);
    }
}

impl fmt::Debug for QueuePermit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("QueuePermit")
    }
}

/// The work of a [`Settler`]: whoever owns the runtime runs it.
pub struct SettlerTask<L> {
    ledger: Arc<L>,
    settings: SettlerSettings,
    report: Arc<dyn Fn(&Event<'_>) + Send + Sync>,
    endings: mpsc::Receiver<Ending>,
    unfinished: mpsc::Receiver<Unfinished>,
    running: Running,
    unacknowledged: Unacknowledged,
}

impl<L> fmt::Debug for SettlerTask<L> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SettlerTask")
            .field("settings", &self.settings)
            .finish_non_exhaustive()
    }
}

impl<L: Ledger> SettlerTask<L> {
    /// Settles until every [`Settler`] is gone and all that was queued is booked.
    pub async fn run(mut self) {
        let (mut ending, mut retrying) = (FuturesUnordered::new(), FuturesUnordered::new());
        let mut without_client = FuturesUnordered::new();
        // In a set of its own, so that its timers are looked at when they are due and not at each end.
        let mut tending = FuturesUnordered::new();
        // A ledger that is away holds the extensions up, and must not hold up the notes.
        tending.push(join(self.note(), self.extend()));
        let mut together = Vec::new();
        let mut under_way = 0_usize;
        let (mut queue_open, mut unfinished_open) = (true, true);
        loop {
            self.unacknowledged.0.store(under_way, Ordering::Relaxed);
            if !(queue_open || unfinished_open || under_way > 0 || !without_client.is_empty()) {
                return;
            }
            // While the ledger is out of reach, what is under way fills up, then the queue does, and
            // then no new call finds a place: nothing is served that could not be charged.
            let room = self.settings.under_way_max.saturating_sub(under_way);
            let takes_more = queue_open && room > 0;
            let adopts_more =
                unfinished_open && without_client.len() < self.settings.without_client_max;
            tokio::select! {
                biased;
                // Seldom ready, so first: a busy queue must not keep them waiting.
                Some(_) = tending.next() => {}
                Some(answered) = ending.next(), if !ending.is_empty() => {
                    let (ended, unended): (usize, Vec<Unended>) = answered;
                    under_way -= ended;
                    retrying.extend(unended.into_iter().map(|unended| self.retry(unended)));
                }
                Some(()) = retrying.next(), if !retrying.is_empty() => under_way -= 1,
                count = self.endings.recv_many(&mut together, room.min(TOGETHER_MAX)), if takes_more => {
                    if count == 0 {
                        queue_open = false;
                    } else {
                        under_way += count;
                        ending.push(self.end_all(&mut together));
                    }
                }
                call = self.unfinished.recv(), if adopts_more => match call {
                    // Whatever it panics over, its guard has settled it; the settler lives on.
                    Some(call) => without_client.push(AssertUnwindSafe(call).catch_unwind()),
                    None => unfinished_open = false,
                },
                Some(_) = without_client.next(), if !without_client.is_empty() => {}
            }
        }
    }

    /// The first round is now; one that comes late puts off those behind it.
    fn rounds(&self) -> Interval {
        let mut rounds =
            tokio::time::interval(self.settings.tend_every.max(Duration::from_millis(1)));
        rounds.set_missed_tick_behavior(MissedTickBehavior::Delay);
        rounds
    }

    /// Notes, round by round, what running calls have cost. Does not end.
    fn note(&self) -> impl Future<Output = ()> + use<L> {
        let (ledger, report, running) = (
            Arc::clone(&self.ledger),
            Arc::clone(&self.report),
            self.running.clone(),
        );
        let mut rounds = self.rounds();
        async move {
            loop {
                rounds.tick().await;
                // What is noted is looked up and handed to the ledger in one step: a call that ends from
                // here on is settled by this same task, thus after its note.
                let notes = running.notes();
                if !notes.is_empty()
                    && let Err(error) = ledger.checkpoint(&notes).await
                {
                    report(&Event::Untended {
                        cause: &cause_of(error),
                    });
                }
            }
        }
    }

    /// Extends, round by round, holds that have lived half their time. Does not end.
    fn extend(&self) -> impl Future<Output = ()> + use<L> {
        let (ledger, report, running) = (
            Arc::clone(&self.ledger),
            Arc::clone(&self.report),
            self.running.clone(),
        );
        let mut rounds = self.rounds();
        async move {
            loop {
                rounds.tick().await;
                let mut failed = Vec::new();
                let mut cause = None;
                for some in running.due_extensions().chunks(EXTENSIONS_AT_ONCE) {
                    let asked = some.iter().map(|hold| {
                        let Hold {
                            number,
                            account,
                            ttl,
                            ..
                        } = hold;
                        ledger.extend(*number, account, *ttl)
                    });
                    for (hold, answer) in some.iter().zip(join_all(asked).await) {
                        // A hold that stands no more is settled late or by force: nothing to do here.
                        if let Err(error) = answer {
                            failed.push(hold.number);
                            cause = Some(cause_of(error));
                        }
                    }
                }
                running.not_extended(&failed);
                if let Some(cause) = cause {
                    report(&Event::Untended { cause: &cause });
                }
            }
        }
    }

    /// Tells the ledger of these ends together, and leaves their vector empty for the next ones. Says how many
    /// it has acknowledged, and which it has not.
    fn end_all(
        &self,
        together: &mut Vec<Ending>,
    ) -> impl Future<Output = (usize, Vec<Unended>)> + use<L> {
        let (ledger, report) = (Arc::clone(&self.ledger), Arc::clone(&self.report));
        let (count, began) = (together.len(), Instant::now());
        let (mut settlements, mut releases) = (Vec::with_capacity(count), Vec::new());
        for ending in together.drain(..) {
            match ending {
                Ending::Settle(settlement) => settlements.push(Arc::unwrap_or_clone(settlement)),
                release @ Ending::Release { .. } => releases.push(release),
            }
        }
        async move {
            let (settled, released) = if releases.is_empty() {
                (ledger.settle_all(&settlements).await, Vec::new())
            } else {
                let settling = async {
                    if settlements.is_empty() {
                        return Vec::new();
                    }
                    ledger.settle_all(&settlements).await
                };
                let releasing = join_all(releases.iter().map(|release| release.submit(&*ledger)));
                join(settling, releasing).await
            };

            let mut unended = Vec::new();
            let mut settled = settled.into_iter();
            for settlement in settlements {
                // A ledger that leaves one out is asked for it again.
                let answer = settled.next().unwrap_or_else(|| {
                    let cause = "the ledger did not say what became of it".into();
                    Err(LedgerError::Unavailable(cause))
                });
                match answer {
                    Ok(settled) => report(&Event::Settled {
                        settlement: &settlement,
                        settled: &settled,
                    }),
                    Err(error) => unended.push(Unended {
                        ending: Ending::Settle(Arc::new(settlement)),
                        began,
                        cause: cause_of(error),
                    }),
                }
            }
            for (release, answer) in releases.into_iter().zip(released) {
                match answer {
                    Ok(_) => report(&release.acknowledged(None)),
                    Err(error) => unended.push(Unended {
                        ending: release,
                        began,
                        cause: cause_of(error),
                    }),
                }
            }
            (count - unended.len(), unended)
        }
    }

    /// Tells the ledger of an end again, until it is acknowledged.
    fn retry(&self, unended: Unended) -> impl Future<Output = ()> + use<L> {
        let (ledger, report, settings) = (
            Arc::clone(&self.ledger),
            Arc::clone(&self.report),
            self.settings,
        );
        async move {
            let Unended {
                mut ending,
                began,
                cause,
            } = unended;
            let number = ending.number();
            report(&Event::Unavailable {
                number,
                cause: &cause,
            });
            let (mut reported, mut wait) = (Instant::now(), settings.retry_min);
            loop {
                tokio::time::sleep(jittered(wait, number)).await;
                wait = settings.retry_max.min(wait * 2);
                if let Ending::Settle(settlement) = &mut ending {
                    Arc::make_mut(settlement).fresh = began.elapsed() < FRESH;
                }
                match ending.submit(&*ledger).await {
                    Ok(settled) => return report(&ending.acknowledged(settled.as_ref())),
                    Err(error) if reported.elapsed() >= REPORT_AGAIN => {
                        reported = Instant::now();
                        report(&Event::Unavailable {
                            number,
                            cause: &cause_of(error),
                        });
                    }
                    Err(_) => {}
                }
            }
        }
    }
}

/// An end that the ledger has not acknowledged.
struct Unended {
    ending: Ending,
    /// When the ledger was told first.
    began: Instant,
    /// Why it did not answer.
    cause: BoxError,
}

#[cfg(test)]
mod tests {
    use std::sync::{
        Mutex,
        atomic::{AtomicUsize, Ordering},
    };

    use tokio::task::JoinSet;

    use super::*;
    use crate::{
        account::{AccountId, KeyId},
        contract::{Item, LedgerAdmin, Reserved},
        memory::MemoryLedger,
        money::MicroRub,
        usage::End,
    };

    /// Writes down how many ends it is told of at a time. Of one, the first time, it loses the answer.
    #[derive(Clone, Default)]
    struct Recorder {
        ledger: MemoryLedger,
        submitted: Arc<Mutex<Vec<usize>>>,
        loses: Arc<Mutex<Option<RequestNumber>>>,
    }

    impl Ledger for Recorder {
        async fn reserve(&self, hold: &Hold) -> Result<Reserved, LedgerError> {
            self.ledger.reserve(hold).await
        }

        async fn settle(&self, settlement: &Settlement) -> Result<Settled, LedgerError> {
            self.submitted.lock().unwrap().push(1);
            self.ledger.settle(settlement).await
        }

        async fn settle_all(&self, calls: &[Settlement]) -> Vec<Result<Settled, LedgerError>> {
            self.submitted.lock().unwrap().push(calls.len());
            let lost = self.loses.lock().unwrap().take();
            let mut answers = self.ledger.settle_all(calls).await;
            for (call, answer) in calls.iter().zip(&mut answers) {
                if Some(call.number) == lost {
                    *answer = Err(LedgerError::Unavailable("no way back".into()));
                }
            }
            answers
        }

        async fn release(
            &self,
            number: RequestNumber,
            account: &AccountId,
            key: &KeyId,
        ) -> Result<(), LedgerError> {
            self.ledger.release(number, account, key).await
        }

        async fn extend(
            &self,
            number: RequestNumber,
            account: &AccountId,
            ttl: Duration,
        ) -> Result<bool, LedgerError> {
            self.ledger.extend(number, account, ttl).await
        }

        async fn probe(&self, account: &AccountId, key: &KeyId) -> Result<(), LedgerError> {
            self.ledger.probe(account, key).await
        }

        async fn expire(&self) -> Result<usize, LedgerError> {
            self.ledger.expire().await
        }
    }

    /// Answers nothing.
    struct Away;

    impl Ledger for Away {
        async fn reserve(&self, _: &Hold) -> Result<Reserved, LedgerError> {
            Err(LedgerError::Unavailable("away".into()))
        }

        async fn settle(&self, _: &Settlement) -> Result<Settled, LedgerError> {
            Err(LedgerError::Unavailable("away".into()))
        }

        async fn release(
            &self,
            _: RequestNumber,
            _: &AccountId,
            _: &KeyId,
        ) -> Result<(), LedgerError> {
            Err(LedgerError::Unavailable("away".into()))
        }

        async fn extend(
            &self,
            _: RequestNumber,
            _: &AccountId,
            _: Duration,
        ) -> Result<bool, LedgerError> {
            Err(LedgerError::Unavailable("away".into()))
        }

        async fn probe(&self, _: &AccountId, _: &KeyId) -> Result<(), LedgerError> {
            Err(LedgerError::Unavailable("away".into()))
        }

        async fn expire(&self) -> Result<usize, LedgerError> {
            Err(LedgerError::Unavailable("away".into()))
        }
    }

    fn settle(number: RequestNumber) -> Ending {
        let item = Item::new("m", "v", End::Finished);
        Ending::Settle(Arc::new(Settlement {
            number,
            account: "acme".parse().unwrap(),
            key: "k1".parse().unwrap(),
            held: MicroRub::ZERO,
            cost: MicroRub::ZERO,
            fresh: true,
            item,
        }))
    }

    fn release(number: RequestNumber) -> Ending {
        Ending::Release {
            number,
            account: "acme".parse().unwrap(),
            key: "k1".parse().unwrap(),
        }
    }

    #[tokio::test(start_paused = true)]
    async fn ends_are_told_together_and_one_that_fails_is_told_again_alone() {
        let ledger = Recorder::default();
        let numbers: [RequestNumber; 4] = std::array::from_fn(|_| RequestNumber::now_v7());
        *ledger.loses.lock().unwrap() = Some(numbers[1]);
        let reports = Arc::new(Mutex::new(Vec::new()));
        let reported = Arc::clone(&reports);
        let report = move |event: &Event<'_>| {
            let line = match event {
                Event::Settled { settlement, .. } => ("settled", settlement.number),
                Event::Released { number } => ("released", *number),
                Event::Unavailable { number, .. } => ("unavailable", *number),
                Event::Untended { .. } => unreachable!("no call runs"),
            };
            reported.lock().unwrap().push(line);
        };
        let (settler, task) = Settler::new(ledger.clone(), SettlerSettings::default(), report);
        let mut tasks = JoinSet::new();
        tasks.spawn(task.run());
        for number in &numbers[..3] {
            settler.permit().unwrap().send(settle(*number));
        }
        settler.permit().unwrap().send(release(numbers[3]));
        drop(settler);
        tasks.join_next().await.unwrap().unwrap();
        assert_eq!(*ledger.submitted.lock().unwrap(), [3, 1]);
        let reports = reports.lock().unwrap();
        assert_eq!(
            *reports,
            [
                ("settled", numbers[0]),
                ("settled", numbers[2]),
                ("released", numbers[3]),
                ("unavailable", numbers[1]),
                ("settled", numbers[1]),
            ]
        );
    }

    #[tokio::test(start_paused = true)]
    async fn no_more_ends_are_under_way_than_is_set() {
        let ledger = Recorder::default();
        let settings = SettlerSettings {
            under_way_max: 2,
            ..SettlerSettings::default()
        };
        let (settler, task) = Settler::new(ledger.clone(), settings, |_| {});
        for _ in 0..5 {
            let place = settler.permit().unwrap();
            place.send(settle(RequestNumber::now_v7()));
        }
        drop(settler);
        task.run().await;
        assert_eq!(*ledger.submitted.lock().unwrap(), [2, 2, 1]);
    }

    #[tokio::test(start_paused = true)]
    async fn ends_that_the_ledger_has_not_acknowledged_are_counted() {
        let (settler, task) = Settler::new(Away, SettlerSettings::default(), |_| {});
        let unacknowledged = settler.unacknowledged();
        assert_eq!(unacknowledged.count(), 0);
        settler
            .permit()
            .unwrap()
            .send(settle(RequestNumber::now_v7()));
        settler
            .permit()
            .unwrap()
            .send(release(RequestNumber::now_v7()));
        drop(settler);
        let stopped = tokio::time::timeout(Duration::from_secs(60), task.run()).await;
        assert!(stopped.is_err(), "it goes on until all is told");
        assert_eq!(unacknowledged.count(), 2);

        let (settler, task) = Settler::new(Recorder::default(), SettlerSettings::default(), |_| {});
        let unacknowledged = settler.unacknowledged();
        settler
            .permit()
            .unwrap()
            .send(settle(RequestNumber::now_v7()));
        drop(settler);
        task.run().await;
        assert_eq!(unacknowledged.count(), 0);
    }

    #[tokio::test]
    async fn a_report_that_panics_costs_itself_alone() {
        let ledger = MemoryLedger::new();
        let account: AccountId = "acme".parse().unwrap();
        ledger.create_account(&account, "Acme").await.unwrap();
        let reports = Arc::new(AtomicUsize::new(0));
        let counted = Arc::clone(&reports);
        let (settler, task) = Settler::new(ledger, SettlerSettings::default(), move |_| {
            counted.fetch_add(1, Ordering::Relaxed);
            panic!("a panic of the test's");
        });
        for _ in 0..2 {
            let place = settler.permit().unwrap();
            place.send(release(RequestNumber::now_v7()));
        }
        drop(settler);
        task.run().await;
        assert_eq!(reports.load(Ordering::Relaxed), 2);
    }
}
