//! Counters of payments at providers.

use prometheus_client::{
    encoding::EncodeLabelSet,
    metrics::{counter::Counter, family::Family},
    registry::Registry,
};

/// Counts the outcomes of payments. Clones share the counters.
#[derive(Clone, Debug, Default)]
pub(crate) struct Payments(Family<Came, Counter>);

#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
struct Came {
    result: &'static str,
}

/// The outcome of a payment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Outcome {
    /// The money was booked.
    Paid,
    /// The payment ended without money.
    Canceled,
    /// The received money differs from the request.
    Refused,
    /// The payment was refunded.
    Refunded,
    /// The payment was refunded, and the account had already spent some of it.
    Owed,
    /// A refund failed, or a dispute was won: the money was credited back.
    Returned,
    /// The payer's bank disputes the payment.
    Disputed,
    /// The provider revoked a payment's success.
    Reversed,
    /// The provider or the ledger did not answer; the request is retried.
    Failed,
}

impl Outcome {
    const ALL: [Self; 9] = [
        Self::Paid,
        Self::Canceled,
        Self::Refused,
        Self::Refunded,
        Self::Owed,
        Self::Returned,
        Self::Disputed,
        Self::Reversed,
        Self::Failed,
    ];

    const fn label(self) -> Came {
        let result = match self {
            Self::Paid => "paid",
            Self::Canceled => "canceled",
            Self::Refused => "refused",
            Self::Refunded => "refunded",
            Self::Owed => "owed",
            Self::Returned => "returned",
            Self::Disputed => "disputed",
            Self::Reversed => "reversed",
            Self::Failed => "failed",
        };
        Came { result }
    }
}

impl Payments {
    pub(super) fn register(registry: &mut Registry) -> Self {
        let payments = Self::default();
        for outcome in Outcome::ALL {
            drop(payments.0.get_or_create(&outcome.label()));
        }
        series! { registry, payments:
            0 "tollgate_payments" "Results of payments at providers, as seen by this node";
        }
        payments
    }

    pub(crate) fn count(&self, outcome: Outcome) {
        self.0.get_or_create(&outcome.label()).inc();
    }
}
