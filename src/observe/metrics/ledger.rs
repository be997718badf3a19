//! Measures how long ledger operations take, and how often they fail.

use std::{sync::Arc, time::Duration};

use prometheus_client::{
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

use super::families::{WordLabel, histograms};
use crate::text::words::words;

/// Upper bounds of the histogram's buckets, in seconds. They cover all ledgers, from a map in memory to a server that
/// does not answer.
const SECONDS: [f64; 14] = [
    0.00001, 0.00005, 0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.5,
    1.0,
];

words! {
    /// The ledger operations that calls use.
    enum Operation {
        FindKey = "find_key",
        Probe = "probe",
        Reserve = "reserve",
        Settle = "settle",
        Release = "release",
        Extend = "extend",
        Adjust = "adjust",
        Expire = "expire",
        Checkpoint = "checkpoint",
    }
}

/// Durations and failures of ledger operations.
#[derive(Debug)]
pub(crate) struct LedgerTimes {
    /// Duration and failures of each operation, in the order of [`Operation::ALL`].
    operations: [(Histogram, Counter); Operation::ALL.len()],
    refused_by_holds: Counter,
}

impl LedgerTimes {
    pub(super) fn register(registry: &mut Registry) -> Self {
        let seconds: Family<WordLabel, Histogram> = histograms(|| Histogram::new(SECONDS));
        let errors = Family::<WordLabel, Counter>::default();
        let operations = Operation::ALL.map(|operation| {
            let label = [("operation", operation.as_str())];
            (
                seconds.get_or_create_owned(&label),
                errors.get_or_create_owned(&label),
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
        let times = Self {
            operations,
            refused_by_holds: Counter::default(),
        };
        series! { registry, times:
            refused_by_holds "tollgate_hold_refusals" "Calls refused only because calls in flight held the money";
        }
        times
    }

    fn answered(&self, operation: Operation, time: Duration, failed: bool) {
        let (seconds, errors) = &self.operations[operation as usize];
        seconds.observe(time.as_secs_f64());
        if failed {
            errors.inc();
        }
    }
}

/// Wraps a ledger and measures its operations.
#[derive(Clone, Debug)]
pub(crate) struct InstrumentedLedger<L> {
    ledger: L,
    times: Arc<LedgerTimes>,
}

impl<L> InstrumentedLedger<L> {
    pub(crate) const fn new(ledger: L, times: Arc<LedgerTimes>) -> Self {
        Self { ledger, times }
    }

    fn begin(&self, operation: Operation) -> TimedRequest<'_> {
        TimedRequest {
            times: &self.times,
            operation,
            began: Instant::now(),
        }
    }
}

/// A ledger operation in progress, with the time at which it began.
struct TimedRequest<'a> {
    times: &'a LedgerTimes,
    operation: Operation,
    began: Instant,
}

impl TimedRequest<'_> {
    /// Records the result of an operation and returns it. Takes the result instead of the future, because moving a
    /// large future is slow.
    fn answered<T, E>(
        self,
        answer: Result<T, E>,
        is_failure: impl FnOnce(&E) -> bool,
    ) -> Result<T, E> {
        let failed = answer.as_ref().is_err_and(is_failure);
        let time = self.began.elapsed();
        self.times.answered(self.operation, time, failed);
        answer
    }
}

/// Returns whether the error means that the ledger failed. A refusal, for example for lack of money, is not a failure.
const fn has_failed(error: &LedgerError) -> bool {
    !matches!(error, LedgerError::Refused(_))
}

/// Implements each method: calls the same method of the wrapped ledger, and measures how long it takes and whether it
/// fails.
macro_rules! measured {
    ($($operation:ident: fn $name:ident($($arg:ident: $kind:ty),*) -> $answer:ty;)*) => {
        $(async fn $name(&self, $($arg: $kind),*) -> Result<$answer, LedgerError> {
            let request = self.begin(Operation::$operation);
            request.answered(self.ledger.$name($($arg),*).await, has_failed)
        })*
    };
}

impl<L: Ledger> Ledger for InstrumentedLedger<L> {
    async fn reserve(&self, hold: &Hold) -> Result<Reserved, LedgerError> {
        let request = self.begin(Operation::Reserve);
        let answer = self.ledger.reserve(hold).await;
        if let Err(LedgerError::Refused(Refusal::DoesNotFit { free, held, .. })) = &answer
            && hold.least <= free.plus_or_max(*held)
        {
            self.times.refused_by_holds.inc();
        }
        request.answered(answer, has_failed)
    }

    /// Each settlement of a batch is recorded with the time that the whole batch took.
    async fn settle_all(&self, settlements: &[Settlement]) -> Vec<Result<Settled, LedgerError>> {
        let began = Instant::now();
        let answers = self.ledger.settle_all(settlements).await;
        let took = began.elapsed();
        for answer in &answers {
            let failed = answer.as_ref().is_err_and(has_failed);
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

impl<L: KeyStore> KeyStore for InstrumentedLedger<L> {
    async fn find_key(&self, digest: &KeyDigest) -> Result<Option<Arc<KeyRecord>>, BoxError> {
        let request = self.begin(Operation::FindKey);
        request.answered(self.ledger.find_key(digest).await, |_| true)
    }

    fn find_key_now(&self, digest: &KeyDigest) -> Option<Result<Option<Arc<KeyRecord>>, BoxError>> {
        let request = self.begin(Operation::FindKey);
        let found = self.ledger.find_key_now(digest)?;
        Some(request.answered(found, |_| true))
    }
}
