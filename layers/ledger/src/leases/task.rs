//! Turns: when the ledger is told of leases.

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

/// How long what a ledger that fell back has in a lease is left there: ends that it forgot are told again meanwhile, and it
/// pays for them.
const LEFT_BEHIND: Duration = Duration::from_secs(30);
/// How often it is tried then, once in so long; after that the lease's own time ends it.
const LEFT_BEHIND_TRIES: u32 = 10;

impl Leases {
    /// Tells the ledger of leases. Does not end; whoever owns the runtime runs it. While nobody does, no lease is got,
    /// and those that there are end when their time is over.
    pub async fn tend<L: LeaseLedger>(&self, ledger: &L) {
        let mut new = self.slots_in.lock().await;
        // An earlier run may have been dropped: all that have a lease are looked after, each once.
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

/// Looks after a key's lease until it is over. Says what is to be told after that.
async fn tend<L: LeaseLedger>(ledger: &L, leases: &Leases, slot: Arc<Slot>) -> Option<Box<Turn>> {
    let counters = &leases.counters;
    loop {
        match slot.due(leases, leases.now()) {
            Due::Done(left) => return left,
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

/// Tells a ledger that fell back that a lease is over. Whatever it answers, there is nothing more to do.
async fn give_back<L: LeaseLedger>(ledger: &L, turn: Box<Turn>) {
    for _ in 0..LEFT_BEHIND_TRIES {
        sleep(LEFT_BEHIND).await;
        if ledger.turn(&turn).await.is_ok() {
            return;
        }
    }
}
