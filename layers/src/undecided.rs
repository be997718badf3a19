//! What limits have been asked for a request and have not answered: asked at one place, waited for at another, so that what
//! stands between them takes its time meanwhile.

use std::{
    pin::Pin,
    sync::{Arc, Mutex, PoisonError},
};

use http::Extensions;

use crate::error::Error;

/// A limit's answer, which is on its way.
pub(crate) type Verdict = Pin<Box<dyn Future<Output = Result<(), Error>> + Send>>;

/// An extension of the request. Inserted by `rate_limit`, taken by whoever is first to do what the limits are for: the
/// layer below what they need not wait for, or one that answers above it.
#[derive(Clone, Default)]
struct Undecided(Arc<Mutex<Vec<Verdict>>>);

/// One more has been asked.
#[cfg(any(test, feature = "rate-limit"))]
pub(crate) fn add(extensions: &mut Extensions, verdict: Verdict) {
    let undecided = extensions.get_or_insert_with(Undecided::default);
    let mut undecided = undecided.0.lock().unwrap_or_else(PoisonError::into_inner);
    undecided.push(verdict);
}

/// All that have been asked; `None`: nobody need wait. They are asked once: whoever takes them waits.
pub(crate) fn take(extensions: &mut Extensions) -> Option<Vec<Verdict>> {
    let undecided = extensions.remove::<Undecided>()?;
    let mut undecided = undecided.0.lock().unwrap_or_else(PoisonError::into_inner);
    Some(std::mem::take(&mut *undecided))
}

/// Waits for all of them.
///
/// # Errors
/// What the first limit refuses with that does.
pub(crate) async fn decided(verdicts: Option<Vec<Verdict>>) -> Result<(), Error> {
    for verdict in verdicts.into_iter().flatten() {
        verdict.await?;
    }
    Ok(())
}
