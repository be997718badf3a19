//! Drains a gateway: accepts no more calls, gives running calls some time, and settles every charge or keeps it in the
//! outbox.

use std::time::Duration;

use tokio::{task::JoinSet, time::Instant};

use super::Gateway;

/// The time in which calls that were cut may send an error to their clients.
const FAREWELL: Duration = Duration::from_secs(5);
/// The time limit for releasing this gateway's leader leases for deliveries to event receivers.
const LET_GO: Duration = Duration::from_secs(1);
/// The interval of checks whether calls whose clients have disconnected have ended.
const FAREWELL_LOOK: Duration = Duration::from_millis(20);
/// The additional time, after the drain's timeout, in which the ledger may acknowledge the charges of calls that were
/// cut.
const CUT_CHARGES: Duration = Duration::from_secs(5);
/// The minimum time in which the ledger may acknowledge the charges of calls that ended by themselves, even if the
/// drain's timeout has passed.
const LAST_CHARGES: Duration = Duration::from_secs(1);

impl Gateway {
    /// Accepts no more calls, gives running calls time to finish, settles all calls, and closes the ledger. This takes
    /// at most [`Gateway::drain_timeout`], and a few seconds more if calls had to be cut.
    ///
    /// # Errors
    /// An error if some calls could not be settled and no outbox keeps their charges, because the ledger stayed out of
    /// reach or the settler panicked.
    pub async fn drain(mut self) -> anyhow::Result<()> {
        self.readiness.serving(false);
        self.draining.send_replace(true);
        let patience = self.drain_timeout();
        let until = Instant::now() + patience;
        let mut done = ended(&mut self.servers, patience).await;
        // Calls that continue after their clients have disconnected get the same time as other running calls.
        while done && self.calls.running() > 0 {
            tokio::time::sleep(FAREWELL_LOOK).await;
            done = Instant::now() < until;
        }
        if !done {
            tracing::warn!(
                calls = self.calls.running(),
                "cutting calls that did not finish in time"
            );
            self.calls.cut_running();
            ended(&mut self.servers, FAREWELL).await;
            self.servers.shutdown().await;
        }
        let unacknowledged = self.calls.unacknowledged();
        drop(self.calls);
        // When the last answer has ended, no more ends of calls are added to the settler's queue.
        let patience = patience_for_charges(until, Instant::now(), !done);
        let settled = ended(&mut self.settler, patience).await && !self.readiness.is_broken();
        if !settled {
            // A settler that is still running is stopped, because it could write to an outbox that is closed.
            self.settler.shutdown().await;
        }
        self.feed.shutdown().await;
        self.deliveries.shutdown().await;
        // If the ledger is out of reach, the leader leases expire by themselves.
        let _ = tokio::time::timeout(LET_GO, self.dispatcher.let_go()).await;
        self.store.give_back().await;
        self.loops.shutdown().await;
        let stored = self.store.close().await;
        if let Some(exporter) = self.exporter {
            exporter.flush().await;
        }
        if settled {
            return Ok(());
        }
        // If the ledger has not acknowledged a charge, the charge is on this machine's disk, or lost.
        let calls = unacknowledged.count();
        // If the settler has panicked, the calls in its queue are neither in the ledger nor in the outbox.
        anyhow::ensure!(
            stored && !self.readiness.is_broken(),
            "the ledger did not acknowledge the end of {calls} calls in time; the next start charges the recorded \
             checkpoints"
        );
        tracing::warn!(
            calls,
            outbox = %self.outbox.display(),
            "the ledger did not acknowledge the end of these calls: their charges are kept in the outbox, and \
             the next start sends them"
        );
        Ok(())
    }
}

/// Returns how long to wait for the acknowledgement of the last charges, if the drain's timeout passes at `until`.
fn patience_for_charges(until: Instant, now: Instant, calls_were_cut: bool) -> Duration {
    let least = if calls_were_cut {
        CUT_CHARGES
    } else {
        LAST_CHARGES
    };
    until.saturating_duration_since(now).max(least)
}

/// Returns whether all tasks end within `patience`.
async fn ended(tasks: &mut JoinSet<()>, patience: Duration) -> bool {
    let all = async { while tasks.join_next().await.is_some() {} };
    tokio::time::timeout(patience, all).await.is_ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn last_charges_may_take_the_remaining_drain_time() {
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
