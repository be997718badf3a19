//! Calls of all kinds, many at a time.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicUsize, Ordering},
    },
    time::Duration,
};

use tokio::{task::JoinSet, time::sleep};
use tollgate_layers::call::Format;

use crate::{
    client::{Client, Outcome},
    vendor_log::Call,
    world::World,
};

impl World {
    /// So many calls of all kinds over all gateways, so many at a time, to their ends.
    pub async fn load(&self, parallel: usize, calls: usize) -> Loaded {
        self.load_in_background(parallel, calls).await_all().await
    }

    /// The same, while the case goes on, until [`Load::end`].
    pub fn load_until_told(&self, parallel: usize) -> Load {
        self.load_in_background(parallel, usize::MAX)
    }

    /// The same, while the case goes on.
    pub fn load_in_background(&self, parallel: usize, calls: usize) -> Load {
        let next = Arc::new(AtomicUsize::new(0));
        let enough = Arc::new(AtomicBool::new(false));
        let mut tasks = JoinSet::new();
        for _ in 0..parallel {
            let clients: Vec<Client> = (0..self.gateways.len())
                .map(|index| self.client(index))
                .collect();
            let (next, enough) = (Arc::clone(&next), Arc::clone(&enough));
            tasks.spawn(async move {
                let mut outcomes = Vec::new();
                loop {
                    let turn = next.fetch_add(1, Ordering::SeqCst);
                    if turn >= calls || enough.load(Ordering::SeqCst) {
                        return outcomes;
                    }
                    let client = &clients[turn % clients.len()];
                    let outcome = client.ask(&any_call(client, turn / clients.len())).await;
                    if !outcome.answered() {
                        // Where nobody answers, the rest would be over in no time.
                        sleep(Duration::from_millis(20)).await;
                    }
                    outcomes.push(outcome);
                }
            });
        }
        Load { tasks, enough }
    }
}

/// A load that goes on beside the case.
pub struct Load {
    tasks: JoinSet<Vec<Outcome>>,
    enough: Arc<AtomicBool>,
}

impl Load {
    /// Begins no more calls.
    pub async fn end(self) -> Loaded {
        self.enough.store(true, Ordering::SeqCst);
        self.await_all().await
    }

    pub async fn await_all(mut self) -> Loaded {
        let mut loaded = Loaded::default();
        while let Some(outcomes) = self.tasks.join_next().await {
            for outcome in outcomes.unwrap() {
                if outcome.answered() {
                    loaded.answered += 1;
                } else if outcome.refused() {
                    loaded.refused += 1;
                } else {
                    loaded.broken += 1;
                }
            }
        }
        loaded
    }
}

/// What became of a load's calls.
#[derive(Clone, Copy, Debug, Default)]
pub struct Loaded {
    pub answered: usize,
    pub refused: usize,
    pub broken: usize,
}

/// A call of a kind that depends on its turn: both formats, streams and others, short and longer.
pub fn any_call(client: &Client, turn: usize) -> Call {
    let format = [Format::Chat, Format::Messages][turn % 2];
    let call = client.call(format).tokens(3 + turn as u64 % 20);
    match turn % 6 {
        0 | 1 => call.plain(),
        2 | 3 => call.gap(Duration::from_millis(2)),
        _ => call.gap(Duration::from_millis(5)),
    }
}
