//! Pending rate-limit decisions. `rate_limit` requests them from the ledger, and a layer further down awaits them, so
//! that the layers in between work during the round trip to the ledger.

use std::{
    pin::Pin,
    sync::{Arc, Mutex, PoisonError},
};

use http::Extensions;

use crate::error::Error;

/// The future of a rate limit's decision.
pub(crate) type Verdict = Pin<Box<dyn Future<Output = Result<(), Error>> + Send>>;

/// Request extension with the pending decisions; `rate_limit` inserts it. The first layer that does limited work must
/// take the decisions and await them. That is the layer that holds money, or a layer above it that answers requests
/// itself.
#[derive(Clone, Default)]
struct Undecided(Arc<Mutex<Vec<Verdict>>>);

/// Adds a pending rate-limit decision.
#[cfg(any(test, feature = "rate-limit"))]
pub(crate) fn add(extensions: &mut Extensions, verdict: Verdict) {
    let undecided = extensions.get_or_insert_with(Undecided::default);
    let mut undecided = undecided.0.lock().unwrap_or_else(PoisonError::into_inner);
    undecided.push(verdict);
}

/// Takes all pending decisions; `None` if there are none. Each decision can be taken only once, so the caller of this
/// function must await it.
pub(crate) fn take(extensions: &mut Extensions) -> Option<Vec<Verdict>> {
    let undecided = extensions.remove::<Undecided>()?;
    let mut undecided = undecided.0.lock().unwrap_or_else(PoisonError::into_inner);
    Some(std::mem::take(&mut *undecided))
}

/// Waits until all pending rate limits have decided about the request.
///
/// # Errors
/// The error of the first limit that refuses the request, in the order in which the limits were added.
pub(crate) async fn decided(verdicts: Option<Vec<Verdict>>) -> Result<(), Error> {
    for verdict in verdicts.into_iter().flatten() {
        verdict.await?;
    }
    Ok(())
}
