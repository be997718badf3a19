//! Counters of payments at providers, by outcome.

use prometheus_client::{
    metrics::{counter::Counter, family::Family},
    registry::Registry,
};

use super::families::WordLabel;
use crate::text::words::words;

/// Counts payments at providers by outcome. Clones share the counters.
#[derive(Clone, Debug, Default)]
pub(crate) struct Payments(Family<WordLabel, Counter>);

words! {
    /// The outcome of a payment.
    pub(crate) enum Outcome {
        /// The money was received and booked.
        Paid = "paid",
        /// The payment ended without any money being received.
        Canceled = "canceled",
        /// The received money differs from the requested amount, so it was not booked.
        Refused = "refused",
        /// The payment was refunded.
        Refunded = "refunded",
        /// The payment was refunded, but the account had already spent a part of the money.
        Owed = "owed",
        /// A refund failed, or a dispute was won, so the money was credited to the account again.
        Returned = "returned",
        /// The payer's bank reported a dispute about the payment.
        Disputed = "disputed",
        /// The provider canceled a payment after reporting it as successful.
        Reversed = "reversed",
        /// The provider or the ledger did not answer; the request will be retried.
        Failed = "failed",
    }
}

impl Payments {
    pub(super) fn register(registry: &mut Registry) -> Self {
        let payments = Self::default();
        for outcome in Outcome::ALL {
            drop(payments.counter(outcome));
        }
        series! { registry, payments:
            0 "tollgate_payments" "Results of payments at providers, as seen by this node";
        }
        payments
    }

    pub(crate) fn count(&self, outcome: Outcome) {
        self.counter(outcome).inc();
    }

    fn counter(&self, outcome: Outcome) -> Counter {
        self.0.get_or_create_owned(&[("result", outcome.as_str())])
    }
}
