//! Drains a gateway: stops accepting calls, gives calls in flight some time to end, and makes sure that every charge is
//! in the ledger or in the outbox.

use std::time::Duration;

use tokio::{task::JoinSet, time::Instant};

use super::gateway::Gateway;

/// The maximum time that a drain waits until each call that it cuts short has sent an error to its client.
const FAREWELL: Duration = Duration::from_secs(5);
/// The maximum time that a drain spends on releasing this gateway's leader leases for event deliveries, and on storing
/// the records of the last refused calls.
const LET_GO: Duration = Duration::from_secs(1);
/// During a drain, some calls continue although their clients have disconnected. At this interval, the drain checks
/// whether these calls have ended.
const FAREWELL_LOOK: Duration = Duration::from_millis(20);
/// If calls were cut short, the minimum time that the ledger gets to acknowledge the charges, even if the drain's
/// timeout has passed.
const CUT_CHARGES: Duration = Duration::from_secs(5);
/// If all calls ended by themselves, the minimum time that the ledger gets to acknowledge the charges, even if the
/// drain's timeout has passed.
const LAST_CHARGES: Duration = Duration::from_secs(1);

impl Gateway {
    /// Stops accepting calls, waits for calls in flight to end, settles all calls, and closes the ledger. This takes at
    /// most [`Gateway::drain_timeout`], plus a few seconds if calls had to be cut short.
    ///
    /// # Errors
    /// An error if some calls could not be settled and no outbox keeps their charges. Either the ledger was unreachable
    /// until the end of the drain, or the settler panicked.
    pub async fn drain(mut self) -> anyhow::Result<()> {
        self.readiness.serving(false);
        self.draining.send_replace(true);
        let patience = self.drain_timeout();
        let until = Instant::now() + patience;
        let mut done = ended(&mut self.servers, patience).await;
        // If a client has disconnected, its call may continue. Such calls get as much time as other calls in flight.
        while done && self.calls.running() > 0 {
            tokio::time::sleep(FAREWELL_LOOK).await;
            done = Instant::now() < until;
        }
        if !done {
            tracing::warn!(
                calls = self.calls.running(),
                "cutting calls that did not end within the drain's timeout"
            );
            self.calls.cut_running();
            ended(&mut self.servers, FAREWELL).await;
            self.servers.shutdown().await;
        }
        let unacknowledged = self.calls.unacknowledged();
        drop(self.calls);
        // When the last response has ended, no more settlements are queued. So the settler ends when all are
        // acknowledged.
        let patience = patience_for_charges(until, Instant::now(), !done);
        let settled = ended(&mut self.settler, patience).await && !self.readiness.is_broken();
        if !settled {
            // If the settler is still running, it is stopped: it must not write to the outbox after the outbox is
            // closed.
            self.settler.shutdown().await;
        }
        self.feed.shutdown().await;
        self.deliveries.shutdown().await;
        // If the ledger is unreachable, the leader leases are not released now and expire later.
        let _ = tokio::time::timeout(LET_GO, self.dispatcher.let_go()).await;
        self.store.give_back().await;
        self.loops.shutdown().await;
        self.records.store_last_unbooked(LET_GO).await;
        let stored = self.store.close().await;
        if let Some(exporter) = self.exporter {
            exporter.flush().await;
        }
        if settled {
            return Ok(());
        }
        // A charge that the ledger has not acknowledged is either in the outbox on this machine's disk, or lost.
        let calls = unacknowledged.count();
        // If the settler has panicked, the settlements in its queue are neither in the ledger nor in the outbox.
        anyhow::ensure!(
            stored && !self.readiness.is_broken(),
            "the ledger did not acknowledge the settlements of {calls} calls in time; the next start charges the \
             costs recorded at their last checkpoints"
        );
        tracing::warn!(
            calls,
            outbox = %self.outbox.display(),
            "the ledger did not acknowledge the settlements of some calls: the outbox keeps their charges, and the \
             next start sends them"
        );
        Ok(())
    }
}

/// Returns how long to wait for the ledger to acknowledge the last charges. The drain's timeout passes at `until`.
fn patience_for_charges(until: Instant, now: Instant, calls_were_cut: bool) -> Duration {
    let least = match calls_were_cut {
        true => CUT_CHARGES,
        false => LAST_CHARGES,
    };
    until.saturating_duration_since(now).max(least)
}

/// Waits for the tasks to end, for at most `patience`. Returns whether all of them have ended.
async fn ended(tasks: &mut JoinSet<()>, patience: Duration) -> bool {
    let all = async { while tasks.join_next().await.is_some() {} };
    tokio::time::timeout(patience, all).await.is_ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn settlements_of_drained_calls_may_take_the_remaining_drain_time() {
        let now = Instant::now();
        for (left, cut, patience) in [(60, false, 60), (2, false, 2), (0, false, 1), (0, true, 5)] {
            let until = now + Duration::from_secs(left);
            let found = patience_for_charges(until, now, cut);
            assert_eq!(found, Duration::from_secs(patience), "{left} {cut}");
        }
        let over = patience_for_charges(now, now + Duration::from_secs(5), true);
        assert_eq!(over, CUT_CHARGES);
    }
}
