//! Measures how late this machine runs processes. The bounds on what a killed gateway may lose are given as times. If
//! other work occupies the cores and the disk, a process runs later than expected. This delay is measured during the
//! case, not guessed.

use std::{
    fs::File,
    io::{Seek, Write},
    path::Path,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    thread::{self, JoinHandle},
    time::Duration,
};

use tokio::time::Instant;

const EVERY: Duration = Duration::from_millis(10);

/// A thread that waits, writes and flushes as a gateway does, and measures how long this takes.
pub(crate) struct Machine {
    longest_us: Arc<AtomicU64>,
    enough: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Machine {
    /// Starts the thread. It writes to a file in the folder of the gateways' files.
    pub(crate) fn watch(dir: &Path) -> Self {
        let (longest_us, enough) = (Arc::<AtomicU64>::default(), Arc::<AtomicBool>::default());
        let mut file = File::create(dir.join("machine")).unwrap();
        let (longest, reported) = (Arc::clone(&longest_us), Arc::clone(&enough));
        let thread = thread::spawn(move || {
            while !reported.load(Ordering::Relaxed) {
                let began = Instant::now();
                thread::sleep(EVERY);
                let flushed = file.rewind().and_then(|()| file.write_all(&[0; 4096]));
                let _ = flushed.and_then(|()| file.sync_data());
                let late = began.elapsed().saturating_sub(EVERY).as_micros();
                longest.fetch_max(u64::try_from(late).unwrap_or(u64::MAX), Ordering::Relaxed);
            }
        });
        Self {
            longest_us,
            enough,
            thread: Some(thread),
        }
    }

    /// Returns the longest delay of one iteration.
    pub(crate) fn late(&self) -> Duration {
        Duration::from_micros(self.longest_us.load(Ordering::Relaxed))
    }
}

impl Drop for Machine {
    fn drop(&mut self) {
        self.enough.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}
