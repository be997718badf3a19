//! Turns: when the ledger is told of leases.

use std::sync::{Arc, atomic::Ordering};

use futures_util::{StreamExt, stream::FuturesUnordered};
use tokio::time::timeout;

use super::{
    Leases,
    slot::{Due, Slot},
};
use crate::{redis::RedisLedger, settle::cause_of};

impl RedisLedger {
    /// Looks after leases: tells the ledger of them. Does not end; whoever owns the runtime runs it. While nobody does,
    /// no lease is got, and those that there are end when their time is over. Without leases there is nothing to do.
    pub async fn tend_leases(&self) {
        let Some(leases) = self.leases() else {
            return std::future::pending().await;
        };
        let mut new = leases.slots_in.lock().await;
        // An earlier run may have been dropped: all that have a lease are looked after, each once.
        while new.try_recv().is_ok() {}
        let mut tended = FuturesUnordered::new();
        for slot in leases.slots_with_leases() {
            tended.push(tend(self, leases, slot));
        }
        loop {
            tokio::select! {
                Some(()) = tended.next(), if !tended.is_empty() => {}
                slot = new.recv() => match slot {
                    Some(slot) => tended.push(tend(self, leases, slot)),
                    None => return,
                },
            }
        }
    }
}

/// Looks after a key's lease until it is over.
async fn tend(ledger: &RedisLedger, leases: &Leases, slot: Arc<Slot>) {
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
