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

/// The time for which a lost lease is left in a ledger that fell back. Meanwhile the ends that the ledger has lost are
/// reported again, and the lease pays for them.
const LEFT_BEHIND: Duration = Duration::from_secs(30);
/// The interval at which giving it back is tried after that, each time after the same wait. Then the lease expires in
/// the ledger.
const LEFT_BEHIND_TRIES: u32 = 10;

impl Leases {
    /// Sends turns to the ledger. Never returns; run it on the owner's runtime. While it is not run, no lease is taken,
    /// and existing ones expire.
    pub async fn tend<L: LeaseLedger>(&self, ledger: &L) {
        let mut new = self.slots_in.lock().await;
        // An earlier run of this task may have been dropped: discard its queue and start from all slots with a lease.
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

/// Tends a key's lease until it is closed. Returns the turn to send some time later, if any.
async fn tend<L: LeaseLedger>(ledger: &L, leases: &Leases, slot: Arc<Slot>) -> Option<Box<Turn>> {
    let counters = &leases.counters;
    loop {
        match slot.due(leases, leases.now()) {
            Due::Done(left) => return left,
            Due::Wait(time) => {
                // Timed out or woken: in both cases, run the turns that are due.
                let _ = timeout(time, slot.woken()).await;
            }
            Due::Turn(turn) => match ledger.turn(&turn).await {
                Ok(answer) => {
                    counters.turns.fetch_add(1, Ordering::Relaxed);
                    let ends = answer.ends.len() as u64;
                    counters.ends.fetch_add(ends, Ordering::Relaxed);
                    let heard = slot.answered(&turn, &answer, leases.now());
                    for (counter, more) in [
                        (&counters.lost, heard.lost.into()),
                        (&counters.recalls_heard, heard.recalled.into()),
                        (&counters.ends_waited_ms, heard.waited),
                    ] {
                        counter.fetch_add(more, Ordering::Relaxed);
                    }
                }
                Err(error) => slot.unanswered(cause_of(error)),
            },
        }
    }
}

/// Gives a lease back to a ledger that fell back. The answer does not matter: nothing more needs to be done.
async fn give_back<L: LeaseLedger>(ledger: &L, turn: Box<Turn>) {
    for _ in 0..LEFT_BEHIND_TRIES {
        sleep(LEFT_BEHIND).await;
        if ledger.turn(&turn).await.is_ok() {
            return;
        }
    }
}
