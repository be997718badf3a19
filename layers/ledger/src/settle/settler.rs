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

use tokio::sync::mpsc;

use super::{
    Bill,
    ending::Ending,
    running::{Granted, Running, RunningEntry},
    task::SettlerTask,
};
use crate::contract::{Ledger, Settled, Settlement};
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

pub(super) type Unfinished = Pin<Box<dyn Future<Output = ()> + Send>>;

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
pub struct Unacknowledged(pub(super) Arc<AtomicUsize>);

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

#[cfg(test)]
mod tests;
