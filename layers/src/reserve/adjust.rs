//! Lowers the hold of a running call when its vendor has counted the input.

use std::{
    fmt,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll},
};

use tollgate_ledger::settle::Granted;

use super::{
    Bill, Shared,
    ledger::{Adjusted, Adjustment, Ledger, LedgerError},
};
use crate::money::MicroRub;

/// A smaller reduction does not justify another call of the ledger; nor does a reduction by less than an eighth of the
/// hold.
const REDUCTION_MIN: MicroRub = MicroRub::rubles(1);

type Adjusting = Pin<Box<dyn Future<Output = (Adjustment, Result<Adjusted, LedgerError>)> + Send>>;

/// Adjusts holds in a ledger whose type the body of the answer does not have as a parameter.
pub(super) trait AdjustHolds: Send + Sync {
    fn adjust(self: Arc<Self>, adjustment: Adjustment) -> Adjusting;
}

impl<L: Ledger, T: Send + Sync + 'static> AdjustHolds for Shared<L, T> {
    fn adjust(self: Arc<Self>, adjustment: Adjustment) -> Adjusting {
        Box::pin(async move {
            let answer = self.ledger.adjust(&adjustment).await;
            (adjustment, answer)
        })
    }
}

/// Lowers the hold of one call. The answer's body polls it and never waits for it. If it is dropped before the ledger
/// has answered, the hold keeps its amount or has the lower one; both cover the call.
pub(super) struct Adjuster {
    ledger: Arc<dyn AdjustHolds>,
    /// Whether the vendor has not reported usage yet, so that a reduction may still follow.
    is_watching: bool,
    running: Option<Adjusting>,
}

impl Adjuster {
    pub(super) fn new(ledger: Arc<dyn AdjustHolds>) -> Self {
        Self {
            ledger,
            is_watching: true,
            running: None,
        }
    }

    /// Sends a lower amount to the ledger, at most once, when the vendor has counted the input.
    pub(super) fn poll<T: Bill>(&mut self, call: &Granted<T>, cx: &mut Context<'_>) {
        if self.is_watching
            && let Some(amount) = self.lower_amount(call)
            && let Some(adjustment) = call.adjustment(amount)
        {
            self.running = Some(Arc::clone(&self.ledger).adjust(adjustment));
        }
        if let Some(running) = &mut self.running
            && let Poll::Ready((adjustment, answer)) = running.as_mut().poll(cx)
        {
            self.running = None;
            // Without an answer, the hold may have either amount; both cover the call, so nothing is recorded.
            if let Ok(answer) = answer {
                call.adjusted(&adjustment, answer);
            }
        }
    }

    fn lower_amount<T: Bill>(&mut self, call: &Granted<T>) -> Option<MicroRub> {
        let held = call.held_now()?;
        if held < REDUCTION_MIN {
            self.is_watching = false;
            return None;
        }
        let (has_usage, has_text) = call
            .meter
            .look(|reading| (reading.usage.is_some(), reading.text_bytes > 0));
        // If text arrives before any usage, the vendor counts only at the end, when a reduction has no use.
        self.is_watching = !has_usage && !has_text;
        if !has_usage {
            return None;
        }
        let amount = call.bill.cost_max(&call.meter.read())?;
        let worth = REDUCTION_MIN.max(MicroRub::new(held.micro() / 8));
        (held.minus_or_zero(amount) >= worth).then_some(amount)
    }
}

impl fmt::Debug for Adjuster {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Adjuster")
            .field("is_watching", &self.is_watching)
            .field("is_running", &self.running.is_some())
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests;
