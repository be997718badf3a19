//! Counts open connections, for metrics and shutdown.

use std::sync::{
    Arc,
    atomic::{AtomicUsize, Ordering},
};

/// The count of open connections. Clones share it.
#[derive(Clone, Debug, Default)]
pub struct OpenConnections(Arc<AtomicUsize>);

impl OpenConnections {
    /// Returns the number of open connections.
    #[must_use]
    pub fn count(&self) -> usize {
        self.0.load(Ordering::Relaxed)
    }

    /// Counts one more connection until the returned value is dropped.
    pub(super) fn another(&self) -> Open {
        self.0.fetch_add(1, Ordering::Relaxed);
        Open(self.clone())
    }
}

/// An open connection, which counts until it is dropped.
#[derive(Debug)]
pub(super) struct Open(OpenConnections);

impl Drop for Open {
    fn drop(&mut self) {
        self.0.0.fetch_sub(1, Ordering::Relaxed);
    }
}
