//! Leader election among processes that share a ledger. For example, one process at a time may send events to a
//! receiver.

use std::{future::Future, time::Duration};

use super::BookError;

/// Leader leases: named exclusive rights, each of which at most one process has at a time.
pub trait LeaderLease: Send + Sync + 'static {
    /// Acquires or renews the right `name` for the process `owner`. Returns whether `owner` has the right now. The
    /// right expires after `ttl` unless `owner` renews it.
    ///
    /// # Errors
    /// A [`BookError`] if the ledger refuses the request or is unreachable.
    fn lead(
        &self,
        name: &str,
        owner: &str,
        ttl: Duration,
    ) -> impl Future<Output = Result<bool, BookError>> + Send;
}
