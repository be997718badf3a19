//! Ends holds without delaying callers: one bounded queue, one task, retries until the ledger answers.
//!
//! The settler sends an end to the ledger at once, together with all other ends that have arrived. The delay must be
//! short: until then the hold still counts, and a caller with little money left may make its next call right away.

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

/// The limits and intervals of a settler.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub struct SettlerSettings {
    /// The largest number of calls that are running or wait to be settled. A call gets its permit before its hold is
    /// made.
    pub calls_max: usize,
    /// The largest number of settlements in flight.
    pub under_way_max: usize,
    /// The largest number of calls that continue after their client has disconnected. Further such calls are dropped
    /// and settled.
    pub without_client_max: usize,
    /// The wait before the first retry if the ledger did not answer. The wait doubles with each retry.
    pub retry_min: Duration,
    /// The longest wait before a retry.
    pub retry_max: Duration,
    /// The interval at which the settler extends holds that have passed half of their time to live, and records the
    /// costs so far of running calls as [checkpoints](Ledger::checkpoint).
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

/// The events that a settler reports.
#[derive(Debug)]
#[non_exhaustive]
pub enum Event<'a> {
    /// A call was charged.
    Settled {
        /// The settlement that was sent to the ledger.
        settlement: &'a Settlement,
        /// The ledger's answer.
        settled: &'a Settled,
    },
    /// A hold was released, because the call was free.
    Released {
        /// The call's number.
        number: RequestNumber,
    },
    /// The ledger did not acknowledge an end; the settler retries it.
    Unavailable {
        /// The call's number.
        number: RequestNumber,
        /// The reason why the ledger did not acknowledge the end.
        cause: &'a BoxError,
    },
    /// Holds of running calls could not be extended, or checkpoints could not be recorded; the next round retries.
    Untended {
        /// The error that the ledger returned.
        cause: &'a BoxError,
    },
}

pub(super) type Unfinished = Pin<Box<dyn Future<Output = ()> + Send>>;

/// A handle to a settler's queue. When the last handle is dropped, the task finishes its work and ends.
#[derive(Clone)]
pub struct Settler {
    endings: mpsc::Sender<Ending>,
    unfinished: mpsc::Sender<Unfinished>,
    running: Running,
    unacknowledged: Unacknowledged,
}

impl Settler {
    /// Creates a settler for `ledger`, and the task that the caller must run. If `report` panics, only that report is
    /// lost. If the ledger panics, the task ends, and no further call gets a permit.
    pub fn new<L: Ledger>(
        ledger: L,
        settings: SettlerSettings,
        report: impl Fn(&Event<'_>) + Send + Sync + 'static,
    ) -> (Self, SettlerTask<L>) {
        let (endings, endings_in) = mpsc::channel(settings.calls_max.max(1));
        let (unfinished, unfinished_in) = mpsc::channel(settings.without_client_max.max(1));
        let (running, unacknowledged) = (Running::default(), Unacknowledged::default());
        let report = move |event: &Event<'_>| {
            // The panic hook has printed the panic. The other calls must still be settled.
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

    /// Returns a permit for one end in the queue; `None` if the queue is full.
    #[must_use]
    pub fn permit(&self) -> Option<QueuePermit> {
        self.endings
            .clone()
            .try_reserve_owned()
            .ok()
            .map(QueuePermit)
    }

    /// Extends the hold of a running call and records its checkpoints until the entry is dropped.
    #[must_use]
    pub fn tend<T: Bill>(&self, call: Arc<Granted<T>>) -> RunningEntry {
        self.running.enter(call)
    }

    /// Orders all running calls to end now, and also calls that start later. Each call reports to its client that the
    /// gateway is draining, inside the answer if that has begun, and is charged for what was delivered.
    pub fn cut_running(&self) {
        self.running.cut();
    }

    /// Returns the number of calls that hold money now.
    #[must_use]
    pub fn running(&self) -> usize {
        self.running.count()
    }

    /// Returns the list of running calls. It does not keep the settler alive.
    #[must_use]
    pub fn calls(&self) -> Running {
        self.running.clone()
    }

    /// Returns the counter of calls whose end the ledger has not acknowledged. It does not keep the settler alive.
    #[must_use]
    pub fn unacknowledged(&self) -> Unacknowledged {
        self.unacknowledged.clone()
    }

    /// Continues a call whose client has disconnected. If too many calls continue this way already, the call is
    /// dropped, which settles it.
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

/// Counts the calls that have ended and whose charge or release the ledger has not acknowledged.
#[derive(Clone, Debug, Default)]
pub struct Unacknowledged(pub(super) Arc<AtomicUsize>);

impl Unacknowledged {
    /// Returns the number of calls whose end is not acknowledged. After the settler's task was dropped, it is the
    /// number of calls that the task had not settled.
    #[must_use]
    pub fn count(&self) -> usize {
        self.0.load(Ordering::Relaxed)
    }
}

/// A permit for one end in the settler's queue. Sending the end then neither waits nor fails.
pub struct QueuePermit(mpsc::OwnedPermit<Ending>);

impl QueuePermit {
    /// Adds the end to the queue.
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
