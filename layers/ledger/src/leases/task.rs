//! The task that sends the turns of all leases to the ledger.

use std::{
    sync::{Arc, atomic::Ordering},
    time::Duration,
};

use futures_util::{StreamExt, stream::FuturesUnordered};
use tokio::time::{sleep, timeout};

use super::{
    LeaseLedger, Leases, Turn,
    slot::{Due, Slot},
};
use crate::settle::cause_of;

/// How long a gateway waits before it gives a lost lease back to a ledger that fell back to older data. In this time
/// the gateway reports again the settlements that the ledger has lost, and the lease pays for them.
const LEFT_BEHIND: Duration = Duration::from_secs(30);
/// How often a gateway attempts to give back a lost lease, each time after a wait of [`LEFT_BEHIND`]. After the last
/// attempt, the lease stays in the ledger until it expires.
const LEFT_BEHIND_TRIES: u32 = 10;

impl Leases {
    /// Sends the turns of all leases to the ledger, and never returns. Run it on the runtime of the ledger's
    /// connection. While it does not run, the gateway takes no lease, and existing leases expire.
    pub async fn tend<L: LeaseLedger>(&self, ledger: &L) {
        let mut new = self.slots_in.lock().await;
        // An earlier run of this task may have been dropped. Its queue is discarded: this run starts with every key
        // that has a lease.
        while new.try_recv().is_ok() {}
        let (mut tended, mut left_behind) = (FuturesUnordered::new(), FuturesUnordered::new());
        for slot in self.slots_with_leases() {
            tended.push(tend(ledger, self, slot));
        }
        loop {
            tokio::select! {
                Some(left) = tended.next(), if !tended.is_empty() => {
                    left_behind.extend(left.map(|turn| give_back(ledger, turn)));
                }
                Some(()) = left_behind.next(), if !left_behind.is_empty() => {}
                slot = new.recv() => match slot {
                    Some(slot) => tended.push(tend(ledger, self, slot)),
                    None => return,
                },
            }
        }
    }
}

/// Sends the turns of one lease until the lease is closed. Returns a turn if one must be sent later.
async fn tend<L: LeaseLedger>(ledger: &L, leases: &Leases, slot: Arc<Slot>) -> Option<Box<Turn>> {
    let counters = &leases.counters;
    loop {
        match slot.due(leases, leases.now()) {
            Due::Done(left) => return left,
            Due::Wait(time) => {
                // Both a time-out and a wake-up continue the loop, which sends the turn that is due.
                let _ = timeout(time, slot.woken()).await;
            }
            Due::Turn(turn) => match ledger.turn(&turn).await {
                Ok(answer) => {
                    counters.turns.fetch_add(1, Ordering::Relaxed);
                    let ends = answer.ends.len() as u64;
                    counters.ends.fetch_add(ends, Ordering::Relaxed);
                    let answered_to = slot.answered(&turn, &answer, leases.now());
                    for (counter, more) in [
                        (&counters.lost, answered_to.lost.into()),
                        (&counters.recalls_heard, answered_to.recalled.into()),
                        (&counters.ends_waited_ms, answered_to.waited),
                    ] {
                        counter.fetch_add(more, Ordering::Relaxed);
                    }
                }
                Err(error) => slot.unanswered(cause_of(error)),
            },
        }
    }
}

/// Gives a lost lease back to a ledger that fell back to older data. Stops after any answer: whatever the ledger
/// answered, nothing more can be done.
async fn give_back<L: LeaseLedger>(ledger: &L, turn: Box<Turn>) {
    for _ in 0..LEFT_BEHIND_TRIES {
        sleep(LEFT_BEHIND).await;
        if ledger.turn(&turn).await.is_ok() {
            return;
        }
    }
}
