//! Lowers the hold of a running call once its vendor has counted its input.

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

/// A smaller reduction is not worth a step of the ledger; nor is one of less than an eighth of the hold.
const REDUCTION_MIN: MicroRub = MicroRub::rubles(1);

type Adjusting = Pin<Box<dyn Future<Output = (Adjustment, Result<Adjusted, LedgerError>)> + Send>>;

/// The ledger of a call, whose type the call's body does not have.
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

/// Adjusts the hold of one call. It runs in the polls of the answer's body, which never wait for it, and is dropped with
/// the hold's owner: a reduction that is lost leaves the hold as it was.
pub(super) struct Adjuster {
    ledger: Arc<dyn AdjustHolds>,
    /// The vendor has not reported usage yet.
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

    /// Sends a lower amount to the ledger, once, when the vendor has counted the input.
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
            // If no answer arrived, the hold may have been lowered or not; either amount covers the call.
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
        // A vendor that sends text before its first count of usage counts only at the end.
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
