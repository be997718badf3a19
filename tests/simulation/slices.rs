//! A call whose hold covers its output slice by slice. The hold shrinks when the response begins, and grows before a
//! slice is used up. If the hold cannot grow, the response ends.

use std::{
    pin::Pin,
    sync::Arc,
    task::{Context, Poll},
};

use tollgate_layers::{
    key::{AccountId, KeyId},
    money::MicroRub,
    reserve::{
        ledger::{Adjusted, Adjustment, Ledger, LedgerError},
        outbox::Outbox,
    },
};

use crate::{
    disk::SimLog,
    ledger::SimLedger,
    plan::CallPlan,
    vendor::{Short, cost},
    world::Sim,
};

/// The ledger that a gateway uses: an outbox over the simulated ledger.
pub(crate) type GatewayLedger = Outbox<SimLedger, SimLog>;

type Answered = Pin<Box<dyn Future<Output = Result<Adjusted, LedgerError>> + Send>>;

/// The hold of a call in flight.
pub(crate) struct Slices {
    sim: Arc<Sim>,
    ledger: GatewayLedger,
    first: Adjustment,
    input_tokens: u64,
    /// The number of output tokens per slice; `None` if the hold is not changed.
    slice: Option<u64>,
    /// The maximum number of output tokens that the call may have.
    most: u64,
    /// The number of output tokens that the hold certainly covers.
    covered: u64,
    sequence: u32,
    /// The last requested change of the hold, until the ledger has responded to it, and the number of output tokens
    /// that the changed hold covers.
    under_way: Option<(u64, Answered)>,
}

impl Slices {
    pub(crate) fn new(
        sim: &Arc<Sim>,
        ledger: &GatewayLedger,
        plan: &CallPlan,
        paid_tokens: u64,
    ) -> Self {
        let (account, key): (AccountId, KeyId) = (plan.account.clone(), plan.key.clone());
        Self {
            sim: Arc::clone(sim),
            ledger: ledger.clone(),
            first: Adjustment {
                number: plan.number,
                account,
                key,
                sequence: 0,
                amount: MicroRub::ZERO,
            },
            input_tokens: plan.order.input_tokens,
            slice: plan.order.slice_tokens,
            most: paid_tokens,
            covered: paid_tokens,
            sequence: 0,
            under_way: None,
        }
    }

    /// Shrinks the hold to the first slice. Called when the response begins.
    pub(crate) fn begin(&mut self) {
        if let Some(slice) = self.slice.filter(|slice| *slice < self.covered) {
            self.adjust(slice);
            // From now on, the ledger may apply the smaller hold at any time.
            self.covered = slice;
            let held = cost(self.input_tokens + slice);
            self.sim.log(self.first.number, |call| call.held = held);
        }
    }

    /// Returns the maximum output that the call may have if `served` tokens were served. Is pending if the last slice
    /// is used up and the next slice is not granted yet.
    pub(crate) fn poll_covered(&mut self, cx: &mut Context<'_>, served: u64) -> Poll<u64> {
        let slice = self.slice.unwrap_or_default();
        loop {
            let needs_more = self.covered < self.most && served + slice / 2 >= self.covered;
            let shrinks = |target: u64| target <= self.covered;
            match &mut self.under_way {
                // A request for a larger hold does not wait for the response to an earlier request for a smaller hold.
                Some((target, _)) if needs_more && shrinks(*target) => self.grow(slice),
                None if needs_more => self.grow(slice),
                None => return Poll::Ready(self.covered),
                Some((target, answer)) => match answer.as_mut().poll(cx) {
                    Poll::Ready(answer) => {
                        let target = *target;
                        self.under_way = None;
                        self.answered(target, &answer);
                    }
                    Poll::Pending if served < self.covered || !needs_more => {
                        return Poll::Ready(self.covered);
                    }
                    Poll::Pending => return Poll::Pending,
                },
            }
        }
    }

    /// Returns the number of output tokens from which on no further slice is requested.
    pub(crate) const fn most(&self) -> u64 {
        self.most
    }

    fn grow(&mut self, slice: u64) {
        self.adjust(self.most.min(self.covered + slice.max(1)));
    }

    fn adjust(&mut self, output: u64) {
        self.sequence += 1;
        let adjustment = Adjustment {
            sequence: self.sequence,
            amount: cost(self.input_tokens + output),
            ..self.first.clone()
        };
        let ledger = self.ledger.clone();
        let answer = Box::pin(async move { ledger.adjust(&adjustment).await });
        self.under_way = Some((output, answer));
    }

    fn answered(&mut self, output: u64, answer: &Result<Adjusted, LedgerError>) {
        let number = self.first.number;
        self.sim
            .note(|| format!("adjusted {} to {output} tokens: {answer:?}", Short(number)));
        if output <= self.covered {
            return;
        }
        match answer {
            Ok(Adjusted::Held(held)) => {
                self.covered = output;
                let held = *held;
                self.sim.log(number, |call| call.held = held);
            }
            // The hold cannot grow, so the response ends at the output that the hold covers.
            _ => self.most = self.covered,
        }
    }
}
