//! The task that sends the turns of leases to the ledger.

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

/// How long a gateway leaves a lost lease in a ledger that fell back to older data, before the gateway gives the lease
/// back. Meanwhile the gateway reports again the ends of calls that the ledger has lost, and the lease pays for these
/// calls.
const LEFT_BEHIND: Duration = Duration::from_secs(30);
/// The number of attempts to give back a lost lease, each after a wait of [`LEFT_BEHIND`]. After the last attempt, the
/// lease expires in the ledger.
const LEFT_BEHIND_TRIES: u32 = 10;

impl Leases {
    /// Sends the turns of all leases to the ledger. Never returns; run it on the runtime of the ledger's connection.
    /// While it does not run, the gateway takes no lease, and existing leases expire.
    pub async fn tend<L: LeaseLedger>(&self, ledger: &L) {
        let mut new = self.slots_in.lock().await;
        // An earlier run of this task may have been dropped. So discard its queue, and start with all keys that have a
        // lease.
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

/// Sends the turns of a key's lease until the lease is closed. Returns the turn to send some time later, if any.
async fn tend<L: LeaseLedger>(ledger: &L, leases: &Leases, slot: Arc<Slot>) -> Option<Box<Turn>> {
    let counters = &leases.counters;
    loop {
        match slot.due(leases, leases.now()) {
            Due::Done(left) => return left,
            Due::Wait(time) => {
                // If the wait has timed out or the task was woken, the turns of the lease that are due are sent.
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

/// Gives a lost lease back to a ledger that fell back to older data. Stops after any answer, since nothing more can be
/// done.
async fn give_back<L: LeaseLedger>(ledger: &L, turn: Box<Turn>) {
    for _ in 0..LEFT_BEHIND_TRIES {
        sleep(LEFT_BEHIND).await;
        if ledger.turn(&turn).await.is_ok() {
            return;
        }
    }
}
