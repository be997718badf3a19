//! The settler's task. It sends settlements and releases until the ledger acknowledges them, extends holds, and records
//! checkpoints.

use std::{
    fmt,
    panic::AssertUnwindSafe,
    sync::{Arc, atomic::Ordering},
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
    ending::{Ending, FRESH, cause_of, jittered},
    running::Running,
    settler::{Event, SettlerSettings, Unacknowledged, Unfinished},
};
use crate::{
    BoxError,
    contract::{Ledger, LedgerError, Settlement},
};

/// How often a call that cannot be settled is reported. The first failure is reported immediately.
const REPORT_AGAIN: Duration = Duration::from_secs(60);

/// The largest number of settlements and releases that are sent to the ledger together.
const TOGETHER_MAX: usize = 256;

/// The largest number of holds that are extended at the same time.
const EXTENSIONS_AT_ONCE: usize = 64;

/// The task of a [`Settler`](super::Settler). The caller spawns its `run` on a runtime of its choice.
pub struct SettlerTask<L> {
    pub(super) context: TaskContext<L>,
    pub(super) endings: mpsc::Receiver<Ending>,
    pub(super) unfinished: mpsc::Receiver<Unfinished>,
}

/// State that all futures of a [`SettlerTask`] use.
pub(super) struct TaskContext<L> {
    pub(super) ledger: L,
    pub(super) settings: SettlerSettings,
    pub(super) report: Box<dyn Fn(&Event<'_>) + Send + Sync>,
    pub(super) running: Running,
    pub(super) unacknowledged: Unacknowledged,
}

impl<L> fmt::Debug for SettlerTask<L> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SettlerTask")
            .field("settings", &self.context.settings)
            .finish_non_exhaustive()
    }
}

impl<L: Ledger> SettlerTask<L> {
    /// Sends settlements and releases until every [`Settler`](super::Settler) is dropped and the ledger has
    /// acknowledged everything in the queue.
    pub async fn run(mut self) {
        let context = &self.context;
        let (mut ending, mut retrying) = (FuturesUnordered::new(), FuturesUnordered::new());
        let mut without_client = FuturesUnordered::new();
        // Extensions and checkpoints have a separate set of futures, so that they are polled only when their timers are
        // due and not whenever a call ends.
        let mut tending = FuturesUnordered::new();
        // Checkpoints and extensions have separate loops: a ledger that does not answer delays the extensions, but must
        // not delay the checkpoints.
        tending.push(join(context.write_checkpoints(), context.extend()));
        let mut together = Vec::new();
        let mut under_way = 0_usize;
        let (mut queue_open, mut unfinished_open) = (true, true);
        loop {
            context.unacknowledged.0.store(under_way, Ordering::Relaxed);
            if !(queue_open || unfinished_open || under_way > 0 || !without_client.is_empty()) {
                return;
            }
            // While the ledger is unreachable, the number of unacknowledged settlements reaches its limit, then the
            // queue fills up, then no call gets a permit. So the gateway serves no call that it could not charge.
            let room = context.settings.under_way_max.saturating_sub(under_way);
            let takes_more = queue_open && room > 0;
            let adopts_more =
                unfinished_open && without_client.len() < context.settings.without_client_max;
            tokio::select! {
                biased;
                // The timers are polled first, because a busy queue must not delay them. They are rarely ready.
                Some(_) = tending.next() => {}
                Some(answered) = ending.next(), if !ending.is_empty() => {
                    let (ended, unended): (usize, Vec<Unended>) = answered;
                    under_way -= ended;
                    retrying.extend(unended.into_iter().map(|unended| context.retry(unended)));
                }
                Some(()) = retrying.next(), if !retrying.is_empty() => under_way -= 1,
                count = self.endings.recv_many(&mut together, room.min(TOGETHER_MAX)), if takes_more => {
                    if count == 0 {
                        queue_open = false;
                    } else {
                        under_way += count;
                        let (settlements, releases) = Ending::sorted(together.drain(..));
                        ending.push(context.end_all(settlements, releases, Instant::now()));
                    }
                }
                call = self.unfinished.recv(), if adopts_more => match call {
                    // If the call panics, its guard settles it during the unwinding, and the settler continues.
                    Some(call) => without_client.push(AssertUnwindSafe(call).catch_unwind()),
                    None => unfinished_open = false,
                },
                Some(_) = without_client.next(), if !without_client.is_empty() => {}
            }
        }
    }
}

impl<L: Ledger> TaskContext<L> {
    /// Returns the timer for the rounds of checkpoints or extensions. The first round is due immediately. A late round
    /// delays the following rounds.
    fn rounds(&self) -> Interval {
        let mut rounds =
            tokio::time::interval(self.settings.tend_every.max(Duration::from_millis(1)));
        rounds.set_missed_tick_behavior(MissedTickBehavior::Delay);
        rounds
    }

    /// Records checkpoints in each round: what in-flight calls have cost so far. Never returns.
    async fn write_checkpoints(&self) {
        let mut rounds = self.rounds();
        loop {
            rounds.tick().await;
            // No await separates computing the checkpoints from passing them to the ledger. A call that ends later
            // is settled by this same task, so its settlement always comes after its checkpoint.
            let notes = self.running.notes();
            if !notes.is_empty()
                && let Err(error) = self.ledger.checkpoint(&notes).await
            {
                let cause = &cause_of(error);
                (self.report)(&Event::Untended { cause });
            }
        }
    }

    /// In each round, extends the holds that have used up half of their time to live. Never returns.
    async fn extend(&self) {
        let mut rounds = self.rounds();
        loop {
            rounds.tick().await;
            let mut failed = Vec::new();
            let mut cause = None;
            for some in self.running.due_extensions().chunks(EXTENSIONS_AT_ONCE) {
                let requested = some.iter();
                let requested =
                    requested.map(|hold| self.ledger.extend(hold.number, &hold.account, hold.ttl));
                for (hold, answer) in some.iter().zip(join_all(requested).await) {
                    // A hold that no longer exists needs no extension: its call will be charged from free money.
                    if let Err(error) = answer {
                        failed.push(hold.number);
                        cause = Some(cause_of(error));
                    }
                }
            }
            self.running.not_extended(&failed);
            if let Some(cause) = &cause {
                (self.report)(&Event::Untended { cause });
            }
        }
    }

    /// Sends settlements and releases. Returns how many the ledger acknowledged, and the settlements and releases that it
    /// did not acknowledge.
    async fn end_all(
        &self,
        settlements: Vec<Settlement>,
        releases: Vec<Ending>,
        began: Instant,
    ) -> (usize, Vec<Unended>) {
        let count = settlements.len() + releases.len();
        let (settled, released) = if releases.is_empty() {
            (self.ledger.settle_all(&settlements).await, Vec::new())
        } else {
            let settling = async {
                if settlements.is_empty() {
                    return Vec::new();
                }
                self.ledger.settle_all(&settlements).await
            };
            let releasing = releases.iter().map(|release| release.submit(&self.ledger));
            join(settling, join_all(releasing)).await
        };

        let unended = |ending, error| Unended {
            ending,
            began,
            cause: cause_of(error),
        };
        let mut left = Vec::new();
        let mut settled = settled.into_iter();
        for settlement in settlements {
            // A settlement for which the ledger returns no result is retried.
            let answer = settled.next().unwrap_or_else(|| {
                let cause = "the ledger returned no result for the settlement".into();
                Err(LedgerError::Unavailable(cause))
            });
            match answer {
                Ok(settled) => (self.report)(&Event::Settled {
                    settlement: &settlement,
                    settled: &settled,
                }),
                Err(error) => left.push(unended(Ending::Settle(Arc::new(settlement)), error)),
            }
        }
        for (release, answer) in releases.into_iter().zip(released) {
            match answer {
                Ok(_) => (self.report)(&release.acknowledged(None)),
                Err(error) => left.push(unended(release, error)),
            }
        }
        (count - left.len(), left)
    }

    /// Retries a settlement or release until the ledger acknowledges it.
    async fn retry(&self, unended: Unended) {
        let (mut ending, cause) = (unended.ending, &unended.cause);
        let number = ending.number();
        (self.report)(&Event::Unavailable { number, cause });
        let (mut reported, mut wait) = (Instant::now(), self.settings.retry_min);
        loop {
            tokio::time::sleep(jittered(wait, number)).await;
            wait = self.settings.retry_max.min(wait * 2);
            if let Ending::Settle(settlement) = &mut ending {
                Arc::make_mut(settlement).fresh = unended.began.elapsed() < FRESH;
            }
            match ending.submit(&self.ledger).await {
                Ok(settled) => return (self.report)(&ending.acknowledged(settled.as_ref())),
                Err(error) if reported.elapsed() >= REPORT_AGAIN => {
                    reported = Instant::now();
                    let cause = &cause_of(error);
                    (self.report)(&Event::Unavailable { number, cause });
                }
                Err(_) => {}
            }
        }
    }
}

/// A settlement or release that the ledger has not acknowledged.
struct Unended {
    ending: Ending,
    /// When the settlement or release was first sent to the ledger.
    began: Instant,
    /// Why the ledger did not acknowledge the settlement or release.
    cause: BoxError,
}
