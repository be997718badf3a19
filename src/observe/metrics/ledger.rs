//! Measures the ledger: how long its answers take, and how often requests to it fail.

use std::{sync::Arc, time::Duration};

use prometheus_client::{
    encoding::EncodeLabelSet,
    metrics::{counter::Counter, family::Family, histogram::Histogram},
    registry::Registry,
};
use tokio::time::Instant;
use tollgate_ledger::{
    BoxError,
    account::{AccountId, KeyDigest, KeyId, KeyRecord, KeyStore},
    contract::{
        Adjusted, Adjustment, Hold, Ledger, LedgerError, Refusal, Reserved, Settled, Settlement,
    },
    number::RequestNumber,
};

use super::histograms::histograms;

/// Bucket bounds in seconds, from a map in memory to a server that does not answer.
const SECONDS: [f64; 14] = [
    0.00001, 0.00005, 0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.5,
    1.0,
];

/// The operations of a call on the ledger.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Operation {
    FindKey,
    Probe,
    Reserve,
    Settle,
    Release,
    Extend,
    Adjust,
    Expire,
    Checkpoint,
}

impl Operation {
    const ALL: [Self; 9] = [
        Self::FindKey,
        Self::Probe,
        Self::Reserve,
        Self::Settle,
        Self::Release,
        Self::Extend,
        Self::Adjust,
        Self::Expire,
        Self::Checkpoint,
    ];

    const fn as_str(self) -> &'static str {
        match self {
            Self::FindKey => "find_key",
            Self::Probe => "probe",
            Self::Reserve => "reserve",
            Self::Settle => "settle",
            Self::Release => "release",
            Self::Extend => "extend",
            Self::Adjust => "adjust",
            Self::Expire => "expire",
            Self::Checkpoint => "checkpoint",
        }
    }
}

#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
struct Label {
    operation: &'static str,
}

/// Counters of the ledger's operations.
#[derive(Debug)]
pub(crate) struct LedgerTimes {
    /// The counters, in the order of [`Operation::ALL`].
    operations: [(Histogram, Counter); Operation::ALL.len()],
    refused_by_holds: Counter,
}

impl LedgerTimes {
    pub(super) fn register(registry: &mut Registry) -> Self {
        let seconds: Family<Label, Histogram> = histograms(|| Histogram::new(SECONDS));
        let errors = Family::<Label, Counter>::default();
        let operations = Operation::ALL.map(|operation| {
            let label = Label {
                operation: operation.as_str(),
            };
            (
                seconds.get_or_create(&label).clone(),
                errors.get_or_create(&label).clone(),
            )
        });
        registry.register(
            "tollgate_ledger_seconds",
            "Time from a request to the ledger to its answer or failure",
            seconds,
        );
        registry.register(
            "tollgate_ledger_errors",
            "Requests to the ledger that failed; a refusal is an answer, not a failure",
            errors,
        );
        let refused_by_holds = Counter::default();
        registry.register(
            "tollgate_hold_refusals",
            "Calls refused only because running calls held the money",
            refused_by_holds.clone(),
        );
        Self {
            operations,
            refused_by_holds,
        }
    }

    fn answered(&self, operation: Operation, time: Duration, failed: bool) {
        let (seconds, errors) = &self.operations[operation as usize];
        seconds.observe(time.as_secs_f64());
        if failed {
            errors.inc();
        }
    }
}

/// A ledger that measures the time of its operations.
#[derive(Clone, Debug)]
pub(crate) struct Measured<L> {
    ledger: L,
    times: Arc<LedgerTimes>,
}

impl<L> Measured<L> {
    pub(crate) const fn new(ledger: L, times: Arc<LedgerTimes>) -> Self {
        Self { ledger, times }
    }

    fn ask(&self, operation: Operation) -> TimedRequest<'_> {
        TimedRequest {
            times: &self.times,
            operation,
            began: Instant::now(),
        }
    }
}

/// An operation that is in progress.
struct TimedRequest<'a> {
    times: &'a LedgerTimes,
    operation: Operation,
    began: Instant,
}

impl TimedRequest<'_> {
    /// Records the operation and returns its result. Its argument is the result and not the future, because a large
    /// future would be moved.
    fn answered<T, E>(
        self,
        answer: Result<T, E>,
        has_failed: impl FnOnce(&E) -> bool,
    ) -> Result<T, E> {
        let failed = answer.as_ref().is_err_and(has_failed);
        let time = self.began.elapsed();
        self.times.answered(self.operation, time, failed);
        answer
    }
}

/// Returns whether the ledger failed; a refusal is an answer.
const fn is_away(error: &LedgerError) -> bool {
    !matches!(error, LedgerError::Refused(_))
}

/// Implements methods by the same methods of the ledger, and measures them.
macro_rules! measured {
    ($($operation:ident: fn $name:ident($($arg:ident: $kind:ty),*) -> $answer:ty;)*) => {
        $(async fn $name(&self, $($arg: $kind),*) -> Result<$answer, LedgerError> {
            let requested = self.ask(Operation::$operation);
            requested.answered(self.ledger.$name($($arg),*).await, is_away)
        })*
    };
}

impl<L: Ledger> Ledger for Measured<L> {
    async fn reserve(&self, hold: &Hold) -> Result<Reserved, LedgerError> {
        let requested = self.ask(Operation::Reserve);
        let answer = self.ledger.reserve(hold).await;
        if let Err(LedgerError::Refused(Refusal::DoesNotFit { free, held, .. })) = &answer
            && hold.least <= free.plus_or_max(*held)
        {
            self.times.refused_by_holds.inc();
        }
        requested.answered(answer, is_away)
    }

    /// All settlements of a batch are answered together.
    async fn settle_all(&self, settlements: &[Settlement]) -> Vec<Result<Settled, LedgerError>> {
        let began = Instant::now();
        let answers = self.ledger.settle_all(settlements).await;
        let took = began.elapsed();
        for answer in &answers {
            let failed = answer.as_ref().is_err_and(is_away);
            self.times.answered(Operation::Settle, took, failed);
        }
        answers
    }

    measured! {
        Settle: fn settle(settlement: &Settlement) -> Settled;
        Release: fn release(number: RequestNumber, account: &AccountId, key: &KeyId) -> ();
        Extend: fn extend(number: RequestNumber, account: &AccountId, ttl: Duration) -> bool;
        Adjust: fn adjust(adjustment: &Adjustment) -> Adjusted;
        Probe: fn probe(account: &AccountId, key: &KeyId) -> ();
        Expire: fn expire() -> usize;
        Checkpoint: fn checkpoint(running: &[Settlement]) -> ();
    }
}

impl<L: KeyStore> KeyStore for Measured<L> {
    async fn find_key(&self, digest: &KeyDigest) -> Result<Option<Arc<KeyRecord>>, BoxError> {
        let requested = self.ask(Operation::FindKey);
        requested.answered(self.ledger.find_key(digest).await, |_| true)
    }

    fn find_key_now(&self, digest: &KeyDigest) -> Option<Result<Option<Arc<KeyRecord>>, BoxError>> {
        let requested = self.ask(Operation::FindKey);
        let found = self.ledger.find_key_now(digest)?;
        Some(requested.answered(found, |_| true))
    }
}
