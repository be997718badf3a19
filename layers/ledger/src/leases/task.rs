//! Turns: when the ledger is told of leases.

use std::sync::{Arc, atomic::Ordering};

use futures_util::{StreamExt, stream::FuturesUnordered};
use tokio::time::timeout;

use super::{
    LeaseLedger, Leases,
    slot::{Due, Slot},
};
use crate::settle::cause_of;

impl Leases {
    /// Tells the ledger of leases. Does not end; whoever owns the runtime runs it. While nobody does, no lease is got,
    /// and those that there are end when their time is over.
    pub async fn tend<L: LeaseLedger>(&self, ledger: &L) {
        let mut new = self.slots_in.lock().await;
        // An earlier run may have been dropped: all that have a lease are looked after, each once.
        while new.try_recv().is_ok() {}
        let mut tended = FuturesUnordered::new();
        for slot in self.slots_with_leases() {
            tended.push(tend(ledger, self, slot));
        }
        loop {
            tokio::select! {
                Some(()) = tended.next(), if !tended.is_empty() => {}
                slot = new.recv() => match slot {
                    Some(slot) => tended.push(tend(ledger, self, slot)),
                    None => return,
                },
            }
        }
    }
}

/// Looks after a key's lease until it is over.
async fn tend<L: LeaseLedger>(ledger: &L, leases: &Leases, slot: Arc<Slot>) {
    let counters = &leases.counters;
    loop {
        match slot.due(leases, leases.now()) {
            Due::Done => return,
            Due::Wait(time) => {
                // Over, or woken: it is looked again in both cases.
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
