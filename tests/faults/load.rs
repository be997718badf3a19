//! Concurrent calls of all kinds, which put load on the gateways while a fault occurs.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicUsize, Ordering},
    },
    time::Duration,
};

use tokio::{
    sync::watch,
    task::JoinSet,
    time::{sleep, timeout},
};
use tollgate_layers::call::Format;

use crate::{
    client::{Client, Outcome},
    vendor_log::Call,
    world::World,
};

impl World {
    /// Makes `calls` calls of all kinds at all gateways, `parallel` at a time. Waits until they have ended.
    pub async fn load(&self, parallel: usize, calls: usize) -> Loaded {
        self.load_in_background(parallel, calls).await_all().await
    }

    /// Makes calls in tasks while the case continues, until [`Load::end`] is called.
    pub fn load_until_told(&self, parallel: usize) -> Load {
        self.load_in_background(parallel, usize::MAX)
    }

    /// Makes at most `calls` calls in tasks while the case continues.
    pub fn load_in_background(&self, parallel: usize, calls: usize) -> Load {
        let next = Arc::new(AtomicUsize::new(0));
        let enough = Arc::new(AtomicBool::new(false));
        let loaded = watch::channel(Loaded::default()).0;
        let mut tasks = JoinSet::new();
        for _ in 0..parallel {
            let clients: Vec<Client> = (0..self.gateways.len())
                .map(|index| self.client(index))
                .collect();
            let (next, enough) = (Arc::clone(&next), Arc::clone(&enough));
            let loaded = loaded.clone();
            tasks.spawn(async move {
                loop {
                    let turn = next.fetch_add(1, Ordering::SeqCst);
                    if turn >= calls || enough.load(Ordering::SeqCst) {
                        return;
                    }
                    let client = &clients[turn % clients.len()];
                    let outcome = client.ask(&any_call(client, turn / clients.len())).await;
                    loaded.send_modify(|loaded| loaded.count(&outcome));
                    if !outcome.answered() {
                        // If no gateway answers, all remaining calls would fail at once. So the load waits for a
                        // moment.
                        sleep(Duration::from_millis(20)).await;
                    }
                }
            });
        }
        Load {
            tasks,
            enough,
            loaded,
        }
    }
}

/// A load whose calls are made by tasks while the case continues.
pub struct Load {
    tasks: JoinSet<()>,
    enough: Arc<AtomicBool>,
    loaded: watch::Sender<Loaded>,
}

impl Load {
    /// Starts no more calls, and waits until the calls in flight have ended.
    pub async fn end(self) -> Loaded {
        self.enough.store(true, Ordering::SeqCst);
        self.await_all().await
    }

    pub async fn await_all(mut self) -> Loaded {
        while let Some(ended) = self.tasks.join_next().await {
            ended.unwrap();
        }
        *self.loaded.borrow()
    }

    /// Waits until this number of calls has been answered.
    pub async fn has_answered(&self, calls: usize) {
        self.wait_for(|loaded| loaded.answered >= calls).await;
    }

    /// Waits until this number of calls has been refused.
    pub async fn has_refused(&self, calls: usize) {
        self.wait_for(|loaded| loaded.refused >= calls).await;
    }

    async fn wait_for(&self, is_so: impl Fn(&Loaded) -> bool) {
        let mut news = self.loaded.subscribe();
        let so = timeout(Duration::from_secs(60), news.wait_for(is_so)).await;
        if so.is_err() {
            panic!("a minute, and no more than {:?}", *self.loaded.borrow());
        }
    }
}

/// The numbers of a load's calls by their result.
#[derive(Clone, Copy, Debug, Default)]
pub struct Loaded {
    pub answered: usize,
    pub refused: usize,
    pub broken: usize,
}

impl Loaded {
    fn count(&mut self, outcome: &Outcome) {
        let counter = if outcome.answered() {
            &mut self.answered
        } else if outcome.refused() {
            &mut self.refused
        } else {
            &mut self.broken
        };
        *counter += 1;
    }
}

/// Creates a call whose kind depends on its number: in one of the two formats, streamed or not streamed, short or
/// longer.
pub fn any_call(client: &Client, turn: usize) -> Call {
    let format = [Format::Chat, Format::Messages][turn % 2];
    let call = client.call(format).tokens(3 + turn as u64 % 20);
    match turn % 6 {
        0 | 1 => call.plain(),
        2 | 3 => call.gap(Duration::from_millis(2)),
        _ => call.gap(Duration::from_millis(5)),
    }
}
