//! Leader election: exclusive rights, each of which one process at a time has. An example is the right to send events
//! to a receiver.

use std::{future::Future, time::Duration};

use super::BookError;

/// Leader leases: named exclusive rights of processes that share a ledger.
pub trait LeaderLease: Send + Sync + 'static {
    /// Acquires or renews the exclusive right named `name` for `owner`. Returns whether `owner` has the right now. The
    /// right expires unless `owner` renews it.
    ///
    /// # Errors
    /// A [`BookError`] if the ledger refuses or is out of reach.
    fn lead(
        &self,
        name: &str,
        owner: &str,
        ttl: Duration,
    ) -> impl Future<Output = Result<bool, BookError>> + Send;
}
