//! Payments that customers make at providers.

use prometheus_client::{
    encoding::EncodeLabelSet,
    metrics::{counter::Counter, family::Family},
    registry::Registry,
};

/// What came of payments; clones count together.
#[derive(Clone, Debug, Default)]
pub(crate) struct Payments(Family<Came, Counter>);

#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
struct Came {
    result: &'static str,
}

/// What came of one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Outcome {
    /// The money is on the account.
    Paid,
    /// There will be none.
    Canceled,
    /// It was not what was asked for.
    Refused,
    /// It went back.
    Refunded,
    /// It went back, and the account had spent some of it.
    Owed,
    /// The provider or the ledger did not answer: it is asked again.
    Failed,
}

impl Outcome {
    const ALL: [Self; 6] = [
        Self::Paid,
        Self::Canceled,
        Self::Refused,
        Self::Refunded,
        Self::Owed,
        Self::Failed,
    ];

    const fn label(self) -> Came {
        let result = match self {
            Self::Paid => "paid",
            Self::Canceled => "canceled",
            Self::Refused => "refused",
            Self::Refunded => "refunded",
            Self::Owed => "owed",
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
        registry.register(
            "tollgate_payments",
            "What came of payments at providers, as this node has seen it",
            payments.0.clone(),
        );
        payments
    }

    pub(crate) fn count(&self, outcome: Outcome) {
        self.0.get_or_create(&outcome.label()).inc();
    }
}
