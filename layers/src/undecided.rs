//! Pending rate-limit decisions: `rate_limit` requests them from the ledger, and a layer further down awaits them, so
//! that the ledger round trip overlaps the work of the layers in between.

use std::{
    pin::Pin,
    sync::{Arc, Mutex, PoisonError},
};

use http::Extensions;

use crate::error::Error;

/// The decision of a rate limit, which may not be made yet.
pub(crate) type Verdict = Pin<Box<dyn Future<Output = Result<(), Error>> + Send>>;

/// Request extension that holds pending decisions. `rate_limit` inserts it. The first layer that does the limited work
/// must take and await the decisions: for example the layer that holds money, or a layer above it that answers by
/// itself.
#[derive(Clone, Default)]
struct Undecided(Arc<Mutex<Vec<Verdict>>>);

/// Adds a pending decision.
#[cfg(any(test, feature = "rate-limit"))]
pub(crate) fn add(extensions: &mut Extensions, verdict: Verdict) {
    let undecided = extensions.get_or_insert_with(Undecided::default);
    let mut undecided = undecided.0.lock().unwrap_or_else(PoisonError::into_inner);
    undecided.push(verdict);
}

/// Takes all pending decisions; `None` if there are none. They can be taken only once, so the caller of this function
/// must await them.
pub(crate) fn take(extensions: &mut Extensions) -> Option<Vec<Verdict>> {
    let undecided = extensions.remove::<Undecided>()?;
    let mut undecided = undecided.0.lock().unwrap_or_else(PoisonError::into_inner);
    Some(std::mem::take(&mut *undecided))
}

/// Waits until all limits have decided about the request.
///
/// # Errors
/// The error of the first limit that refuses, in the order in which the limits were added.
pub(crate) async fn decided(verdicts: Option<Vec<Verdict>>) -> Result<(), Error> {
    for verdict in verdicts.into_iter().flatten() {
        verdict.await?;
    }
    Ok(())
}
