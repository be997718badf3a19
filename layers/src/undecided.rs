//! Pending rate-limit decisions: `rate_limit` starts them and a layer further down awaits them, so that the ledger
//! round trip overlaps the layers in between.

use std::{
    pin::Pin,
    sync::{Arc, Mutex, PoisonError},
};

use http::Extensions;

use crate::error::Error;

/// The pending decision of a rate limit.
pub(crate) type Verdict = Pin<Box<dyn Future<Output = Result<(), Error>> + Send>>;

/// Request extension that holds pending decisions. `rate_limit` inserts it. The first layer that does limited work
/// takes it: the layer below everything that may run before the decision, or a layer above that which answers by
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

/// Takes all pending decisions; `None` if there are none. They can be taken once, so the taker must await them.
pub(crate) fn take(extensions: &mut Extensions) -> Option<Vec<Verdict>> {
    let undecided = extensions.remove::<Undecided>()?;
    let mut undecided = undecided.0.lock().unwrap_or_else(PoisonError::into_inner);
    Some(std::mem::take(&mut *undecided))
}

/// Waits until all limits have decided.
///
/// # Errors
/// The error of the first limit, in order, that refuses.
pub(crate) async fn decided(verdicts: Option<Vec<Verdict>>) -> Result<(), Error> {
    for verdict in verdicts.into_iter().flatten() {
        verdict.await?;
    }
    Ok(())
}
