//! The end of a gateway: no more calls, some time for those that run, and every charge told or kept.

use std::time::Duration;

use tokio::{task::JoinSet, time::Instant};

use super::Gateway;

/// How long answers that are cut may take to say so.
const FAREWELL: Duration = Duration::from_secs(5);
/// How long it may take to say that others may send events now.
const LET_GO: Duration = Duration::from_secs(1);
/// How often it is looked whether calls without clients have ended.
const FAREWELL_LOOK: Duration = Duration::from_millis(20);
/// How long the charges of cut calls may take to be told, beyond the drain's own time.
const CUT_CHARGES: Duration = Duration::from_secs(5);
/// How long those of calls that have ended by themselves may at least, be it beyond that time.
const LAST_CHARGES: Duration = Duration::from_secs(1);

impl Gateway {
    /// Takes no more calls, lets the running ones finish for a while, settles all, closes the ledger. It has
    /// [`Gateway::drain_timeout`] for all of that, and a few seconds more where calls had to be cut.
    ///
    /// # Errors
    /// Some calls could not be settled, and nothing keeps them: the ledger was out of reach to the end.
    pub async fn drain(mut self) -> anyhow::Result<()> {
        self.readiness.serving(false);
        self.draining.send_replace(true);
        let patience = self.drain_timeout();
        let until = Instant::now() + patience;
        let mut done = ended(&mut self.servers, patience).await;
        // Calls that go on without their clients have the same time.
        while done && self.calls.running() > 0 {
            tokio::time::sleep(FAREWELL_LOOK).await;
            done = Instant::now() < until;
        }
        if !done {
            tracing::warn!(
                calls = self.calls.running(),
                "cutting what did not finish in time"
            );
            self.calls.cut_running();
            ended(&mut self.servers, FAREWELL).await;
            self.servers.shutdown().await;
        }
        let unacknowledged = self.calls.unacknowledged();
        drop(self.calls);
        // With the last answer the last way into the settler's queue is gone.
        let patience = patience_for_charges(until, Instant::now(), !done);
        let settled = ended(&mut self.settler, patience).await && !self.readiness.is_broken();
        if !settled {
            // Or it would write into an outbox that is closed.
            self.settler.shutdown().await;
        }
        self.feed.shutdown().await;
        self.deliveries.shutdown().await;
        // Where the ledger is away, their leases end by themselves.
        let _ = tokio::time::timeout(LET_GO, self.dispatcher.let_go()).await;
        self.store.give_back().await;
        self.loops.shutdown().await;
        let kept = self.store.close().await;
        if let Some(exporter) = self.exporter {
            exporter.flush().await;
        }
        if settled {
            return Ok(());
        }
        // What could not be told to the ledger is on this machine's disk, or lost.
        let calls = unacknowledged.count();
        // What a settler that has died was told is neither in the ledger nor in the outbox.
        anyhow::ensure!(
            kept && !self.readiness.is_broken(),
            "the ledger could not be told of the end of {calls} calls in time; the next start charges what was \
             noted of them"
        );
        tracing::warn!(
            calls,
            outbox = %self.outbox.display(),
            "the ledger could not be told of the end of these calls: their charges are kept in the outbox, and \
             the next start on it tells them"
        );
        Ok(())
    }
}

/// How long the last charges may take to be told, where a drain has time `until` then.
fn patience_for_charges(until: Instant, now: Instant, calls_were_cut: bool) -> Duration {
    let least = if calls_were_cut {
        CUT_CHARGES
    } else {
        LAST_CHARGES
    };
    until.saturating_duration_since(now).max(least)
}

/// Whether all tasks end within a time.
async fn ended(tasks: &mut JoinSet<()>, patience: Duration) -> bool {
    let all = async { while tasks.join_next().await.is_some() {} };
    tokio::time::timeout(patience, all).await.is_ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn the_last_charges_have_what_the_drain_has_left() {
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
