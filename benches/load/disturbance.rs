//! A task that wants a core now and then: what a program beside the gateway does to its callers' waits, whatever
//! that program is.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    thread::{self, JoinHandle},
    time::Duration,
};

use tokio::time::Instant;

/// A gateway with leases tells Redis of what it has done so often where few calls end: the 32 ms that
/// `gathers` of `layers/ledger/src/leases/slot.rs` waits.
const EVERY: Duration = Duration::from_millis(32);
/// So long Redis works each time, at 500 calls a second: `ledger -- leases`, `Redis µs a call` times `ends a turn`.
const WORKS: Duration = Duration::from_micros(700);

/// Goes on until it is dropped.
#[derive(Debug)]
pub(crate) struct Disturbance {
    ends: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Disturbance {
    pub(crate) fn begin() -> Self {
        let ends = Arc::new(AtomicBool::new(false));
        let told = Arc::clone(&ends);
        let thread = thread::spawn(move || {
            while !told.load(Ordering::Relaxed) {
                thread::sleep(EVERY.saturating_sub(WORKS));
                let begun = Instant::now();
                while begun.elapsed() < WORKS {}
            }
        });
        Self {
            ends,
            thread: Some(thread),
        }
    }
}

impl Drop for Disturbance {
    fn drop(&mut self) {
        self.ends.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            // It only sleeps and works.
            drop(thread.join());
        }
    }
}
