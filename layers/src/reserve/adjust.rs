//! Changes the hold of an in-flight call. Lowers it when the vendor has counted the input. Raises it slice by slice if
//! it grows with the output.

use std::{
    fmt,
    future::poll_fn,
    pin::{Pin, pin},
    sync::Arc,
    task::{Context, Poll},
    time::Duration,
};

use tokio::time::{Instant, Sleep, sleep_until};

use tollgate_ledger::settle::Granted;

use super::{
    Bill, Shared,
    growth::{Growth, Move},
    ledger::{Adjusted, Adjustment, Ledger, LedgerError, Refusal},
    refusal,
};
use crate::{
    error::{BoxError, Error},
    money::MicroRub,
    usage::{End, StoppedBy},
};

/// The smallest amount by which a hold is lowered. A smaller reduction does not justify another request to the ledger,
/// nor does a reduction by less than an eighth of the hold.
const REDUCTION_MIN: MicroRub = MicroRub::rubles(1);

type Adjusting = Pin<Box<dyn Future<Output = (Adjustment, Result<Adjusted, LedgerError>)> + Send>>;

/// Adjusts holds in a ledger, so that the body of a response needs no type parameter for the ledger.
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

/// Changes the hold of one call. The response's body polls the adjuster, and waits for it only if a growing hold is
/// used up. If the adjuster is dropped before the ledger has answered, the hold has either its old amount or the new
/// one. Either amount suffices for the call.
pub(super) struct Adjuster {
    ledger: Arc<dyn AdjustHolds>,
    /// Whether the hold may still be lowered, because the vendor has not reported usage yet.
    is_watching: bool,
    running: Option<Adjusting>,
    /// The growth of the hold; `None` if the hold covers the whole call from the start.
    growing: Option<Box<Growing>>,
}

/// A hold that grows with the output of its call.
struct Growing {
    growth: Growth,
    since: Instant,
    /// Wakes the call's task when the hold must be raised.
    timer: Pin<Box<Sleep>>,
    /// The ledger's error, if it did not grant the last request for a larger hold.
    error: Option<LedgerError>,
}

impl Adjuster {
    pub(super) fn new(ledger: Arc<dyn AdjustHolds>) -> Self {
        Self {
            ledger,
            is_watching: true,
            running: None,
            growing: None,
        }
    }

    /// Creates the adjuster of a growing hold; `None` if the hold of this call does not grow.
    pub(super) fn growing<L: Ledger, T: Send + Sync + 'static, B: Bill>(
        ledger: &Arc<Shared<L, T>>,
        call: &Granted<B>,
    ) -> Option<Self> {
        let bounds = call.meter.bounds()?;
        let covered = bounds.growing.as_ref()?;
        let since = call.held_at.unwrap_or_else(Instant::now);
        let rate = covered.tokens_per_second_max;
        Some(Self {
            growing: Some(Box::new(Growing {
                growth: Growth::new(rate, bounds.output_bound, covered.tokens()),
                since,
                timer: Box::pin(sleep_until(since)),
                error: None,
            })),
            ..Self::new(Arc::<Shared<L, T>>::clone(ledger))
        })
    }

    /// Polls `work` until the response begins, and raises the hold meanwhile.
    pub(super) async fn while_growing<T: Bill, R, E: Into<BoxError> + 'static>(
        &mut self,
        call: Arc<Granted<T>>,
        work: impl Future<Output = Result<R, E>>,
    ) -> Result<R, Error> {
        let mut work = pin!(work);
        poll_fn(|cx| {
            // Before the response begins, nothing is forwarded, so a hold that is used up need not delay anything.
            let _ = self.grow(&call, cx);
            if call.meter.look(|reading| reading.stopped_by.is_some()) {
                call.meter.update(|reading| {
                    reading.end.get_or_insert(End::Finished);
                });
                return Poll::Ready(Err(self.refused(&call)));
            }
            work.as_mut().poll(cx).map_err(Error::from_below)
        })
        .await
    }

    /// Returns the error of a call that is stopped before its response has begun.
    fn refused<T: Bill>(&mut self, call: &Granted<T>) -> Error {
        let error = self.growing.as_mut().and_then(|it| it.error.take());
        let error = error.unwrap_or_else(|| {
            LedgerError::Unavailable("the ledger did not answer in time".into())
        });
        refusal(error, call.held_now().unwrap_or_default(), true)
    }

    /// Lowers the hold when the vendor has counted the input, at most once.
    pub(super) fn poll<T: Bill>(&mut self, call: &Granted<T>, cx: &mut Context<'_>) {
        if self.is_watching
            && self.running.is_none()
            && let Some(amount) = self.lower_amount(call)
            && let Some(adjustment) = call.adjustment(amount)
        {
            self.running = Some(Arc::clone(&self.ledger).adjust(adjustment));
        }
        self.poll_running(call, cx);
    }

    fn poll_running<T: Bill>(&mut self, call: &Granted<T>, cx: &mut Context<'_>) {
        let Some(running) = &mut self.running else {
            return;
        };
        let Poll::Ready((adjustment, answer)) = running.as_mut().poll(cx) else {
            return;
        };
        self.running = None;
        // If the ledger did not answer, the hold has either its old amount or the new one. Either amount suffices for
        // the call, so nothing is recorded.
        if let Ok(answer) = &answer {
            call.adjusted(&adjustment, *answer);
        }
        if let Some(growing) = &mut self.growing {
            growing.answered(call, answer);
        }
    }

    /// Raises a growing hold ahead of need. Pending while the covered output may be used up and the ledger has not
    /// answered; nothing may be forwarded during that time. If the hold cannot be raised, records in the meter that the
    /// call must stop.
    pub(super) fn grow<T: Bill>(&mut self, call: &Granted<T>, cx: &mut Context<'_>) -> Poll<()> {
        if self.growing.is_none() {
            return Poll::Ready(());
        }
        let (seen, is_over) = call.meter.look(|reading| {
            let counted = reading.usage.map_or(0, |usage| usage.output_total());
            let is_over =
                reading.end.is_some() || reading.usage_due || reading.stopped_by.is_some();
            (reading.text_tokens.max(counted), is_over)
        });
        if is_over {
            return Poll::Ready(());
        }
        loop {
            self.poll_running(call, cx);
            let Some(growing) = &mut self.growing else {
                return Poll::Ready(());
            };
            let now = growing.since.elapsed();
            match growing.growth.next(now, seen) {
                Move::Finished => {
                    if self.running.is_none() {
                        self.growing = None;
                    }
                    return Poll::Ready(());
                }
                Move::WaitUntil(at) if growing.is_pending_until(at, cx) => return Poll::Ready(()),
                Move::BlockUntil(at) if growing.is_pending_until(at, cx) => return Poll::Pending,
                Move::WaitUntil(_) | Move::BlockUntil(_) => {}
                Move::Raise(tokens) => {
                    let amount = call.bill.cost_within(&call.meter.read(), tokens);
                    let Some(adjustment) = amount.and_then(|amount| call.adjustment(amount)) else {
                        self.growing = None;
                        return Poll::Ready(());
                    };
                    growing.growth.requested(now, seen, tokens);
                    // A reduction that the ledger has not answered yet is replaced: this adjustment has a higher
                    // number.
                    self.running = Some(Arc::clone(&self.ledger).adjust(adjustment));
                }
                Move::Stop(why) => {
                    call.meter.update(|reading| reading.stopped_by = Some(why));
                    return Poll::Ready(());
                }
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
        // If text arrives before any usage, the vendor reports usage only at the end of the stream, when lowering the
        // hold is useless.
        self.is_watching = !has_usage && !has_text;
        if !has_usage {
            return None;
        }
        let amount = call.bill.cost_max(&call.meter.read())?;
        let worth = REDUCTION_MIN.max(MicroRub::new(held.micro() / 8));
        (held.minus_or_zero(amount) >= worth).then_some(amount)
    }
}

impl Growing {
    /// Records the ledger's answer to the last request for a larger hold. Until the ledger has granted it, the meter
    /// charges at most the output that was covered before.
    fn answered<T: Bill>(&mut self, call: &Granted<T>, answer: Result<Adjusted, LedgerError>) {
        if !self.growth.is_requested() {
            // The ledger answered a reduction, which does not change the covered output.
            return;
        }
        let now = self.since.elapsed();
        match answer {
            Ok(Adjusted::Held(_)) => {
                let covered = self.growth.granted();
                let bounds = call.meter.bounds();
                if let Some(output) = bounds.and_then(|bounds| bounds.growing.as_ref()) {
                    output.raise_to(covered);
                }
            }
            Ok(Adjusted::Gone | Adjusted::Unsupported) => {
                self.growth.refused(now, StoppedBy::Ledger);
            }
            Err(error) => {
                self.growth.refused(now, reason(&error));
                self.error = Some(error);
            }
        }
    }

    fn is_pending_until(&mut self, at: Duration, cx: &mut Context<'_>) -> bool {
        let at = self.since + at;
        if self.timer.deadline() != at {
            self.timer.as_mut().reset(at);
        }
        self.timer.as_mut().poll(cx).is_pending()
    }
}

/// Returns the reason for stopping a call whose larger hold the ledger did not grant.
const fn reason(error: &LedgerError) -> StoppedBy {
    match error {
        LedgerError::Unavailable(_) => StoppedBy::Ledger,
        LedgerError::Refused(refusal) => match refusal {
            Refusal::Unknown | Refusal::Disabled => StoppedBy::KeyDisabled,
            Refusal::Suspended => StoppedBy::AccountSuspended,
            Refusal::AccountEmpty | Refusal::DoesNotFit { ceiling: None, .. } => StoppedBy::Balance,
            Refusal::CeilingUsedUp(_) | Refusal::DoesNotFit { .. } => StoppedBy::Ceiling,
            Refusal::TooManyCalls { .. } | Refusal::Gone | Refusal::Conflict => StoppedBy::Ledger,
        },
    }
}

impl fmt::Debug for Adjuster {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Adjuster")
            .field("is_watching", &self.is_watching)
            .field("is_running", &self.running.is_some())
            .field("growth", &self.growing.as_ref().map(|it| &it.growth))
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests;
