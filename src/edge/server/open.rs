//! Counts open connections. The metrics and the drain read the count.

use std::sync::{
    Arc,
    atomic::{AtomicUsize, Ordering},
};

/// The number of open connections. Clones share the count.
#[derive(Clone, Debug, Default)]
pub struct OpenConnections(Arc<AtomicUsize>);

impl OpenConnections {
    /// Returns the number of connections that are open now.
    #[must_use]
    pub fn count(&self) -> usize {
        self.0.load(Ordering::Relaxed)
    }

    /// Counts one more open connection, until the returned guard is dropped.
    pub(super) fn another(&self) -> Open {
        self.0.fetch_add(1, Ordering::Relaxed);
        Open(self.clone())
    }
}

/// Guard of an open connection. The connection is counted until the guard is dropped.
#[derive(Debug)]
pub(super) struct Open(OpenConnections);

impl Drop for Open {
    fn drop(&mut self) {
        self.0.0.fetch_sub(1, Ordering::Relaxed);
    }
}
