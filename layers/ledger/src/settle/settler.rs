//! The settler: sends settlements and releases to the ledger without delaying callers. It has one bounded queue and one
//! task, which retries until the ledger answers.
//!
//! The settler sends a settlement immediately, together with all others that are in the queue. The delay must be short:
//! the hold counts until the ledger has the settlement, and a caller with little money left may make its next call
//! right away.

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
    task::{SettlerTask, TaskContext},
};
use crate::contract::{Ledger, Settled, Settlement};
use crate::{BoxError, number::RequestNumber};

/// The limits and intervals of a settler.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub struct SettlerSettings {
    /// The largest number of calls that are in flight or wait to be settled. A call gets its permit before its hold is
    /// made.
    pub calls_max: usize,
    /// The largest number of settlements and releases that are sent but not acknowledged.
    pub under_way_max: usize,
    /// The largest number of calls that continue after their client has disconnected. Each further call is dropped,
    /// which settles it.
    pub without_client_max: usize,
    /// The wait before the first retry if the ledger did not answer. The wait doubles with each retry.
    pub retry_min: Duration,
    /// The longest wait between two retries.
    pub retry_max: Duration,
    /// How often the settler extends holds that have used up half of their time to live, and records
    /// [checkpoints](Ledger::checkpoint): what in-flight calls have cost so far.
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

/// An event that a settler reports.
#[derive(Debug)]
#[non_exhaustive]
#[allow(missing_docs, reason = "the fields have descriptive names")]
pub enum Event<'a> {
    /// A call was charged.
    Settled {
        settlement: &'a Settlement,
        settled: &'a Settled,
    },
    /// A hold was released, because the call was free.
    Released { number: RequestNumber },
    /// The ledger did not acknowledge a settlement or release. The settler retries it.
    Unavailable {
        number: RequestNumber,
        cause: &'a BoxError,
    },
    /// Holds of in-flight calls could not be extended, or checkpoints could not be recorded. The next round retries.
    Untended { cause: &'a BoxError },
}

pub(super) type Unfinished = Pin<Box<dyn Future<Output = ()> + Send>>;

/// A handle to a settler's queue. After the last handle is dropped, the settler's task sends everything in the queue
/// and then ends.
#[derive(Clone)]
pub struct Settler {
    endings: mpsc::Sender<Ending>,
    unfinished: mpsc::Sender<Unfinished>,
    running: Running,
    unacknowledged: Unacknowledged,
}

impl Settler {
    /// Creates a settler for `ledger`, and the task that the caller must run. A panic of `report` loses only that
    /// report. A panic of the ledger ends the task, and no further call gets a permit.
    pub fn new<L: Ledger>(
        ledger: L,
        settings: SettlerSettings,
        report: impl Fn(&Event<'_>) + Send + Sync + 'static,
    ) -> (Self, SettlerTask<L>) {
        let (endings, endings_in) = mpsc::channel(settings.calls_max.max(1));
        let (unfinished, unfinished_in) = mpsc::channel(settings.without_client_max.max(1));
        let (running, unacknowledged) = (Running::default(), Unacknowledged::default());
        let report = move |event: &Event<'_>| {
            // A panic of `report` is caught, so that later reports are still made. The panic hook has already printed
            // it.
            drop(catch_unwind(AssertUnwindSafe(|| report(event))));
        };
        let task = SettlerTask {
            context: TaskContext {
                ledger,
                settings,
                report: Box::new(report),
                running: running.clone(),
                unacknowledged: unacknowledged.clone(),
            },
            endings: endings_in,
            unfinished: unfinished_in,
        };
        let settler = Self {
            endings,
            unfinished,
            running,
            unacknowledged,
        };
        (settler, task)
    }

    /// Returns a permit for one place in the queue, or `None` if the queue is full.
    #[must_use]
    pub fn permit(&self) -> Option<QueuePermit> {
        self.endings
            .clone()
            .try_reserve_owned()
            .ok()
            .map(QueuePermit)
    }

    /// Adds an in-flight call to the list. Until the returned entry is dropped, the settler extends the call's hold and
    /// records its checkpoints.
    #[must_use]
    pub fn tend<T: Bill>(&self, call: Arc<Granted<T>>) -> RunningEntry {
        self.running.enter(call)
    }

    /// Signals all in-flight calls, and calls that start later, that they must end now. Each call reports to its client
    /// that the gateway is shutting down: as part of the response if the response has begun. It is charged for the
    /// output that was delivered.
    pub fn cut_running(&self) {
        self.running.cut();
    }

    /// Returns the number of calls that have a hold now.
    #[must_use]
    pub fn running(&self) -> usize {
        self.running.count()
    }

    /// Returns the list of in-flight calls. It does not keep the settler alive.
    #[must_use]
    pub fn calls(&self) -> Running {
        self.running.clone()
    }

    /// Returns the counter of calls whose settlement or release is not acknowledged. It does not keep the settler
    /// alive.
    #[must_use]
    pub fn unacknowledged(&self) -> Unacknowledged {
        self.unacknowledged.clone()
    }

    /// Continues a call whose client has disconnected. If the limit of such calls is reached, the call is dropped,
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

/// Counts the calls that have ended and whose settlement or release the ledger has not acknowledged.
#[derive(Clone, Debug, Default)]
pub struct Unacknowledged(pub(super) Arc<AtomicUsize>);

impl Unacknowledged {
    /// Returns the number of calls whose settlement or release is not acknowledged. After the settler's task was
    /// dropped, this is the number of calls that the task had not settled.
    #[must_use]
    pub fn count(&self) -> usize {
        self.0.load(Ordering::Relaxed)
    }
}

/// A permit for one place in the settler's queue. With a permit, sending neither waits nor fails.
#[derive(Debug)]
pub struct QueuePermit(mpsc::OwnedPermit<Ending>);

impl QueuePermit {
    /// Puts the settlement or release into the queue.
    pub fn send(self, ending: Ending) {
        self.0.send(ending);
    }
}

#[cfg(test)]
mod tests;
