//! Decides whether this node is ready to get traffic, and gives the reason if it is not. A task checks the node's
//! ledger, and another runs its settler.

use std::{sync::Arc, time::Duration};

use parking_lot::Mutex;
use tollgate_layers::{error::BoxError, reserve::ledger::Ledger};

use crate::{edge::panics::catch_round, ledger::AnyLedger, text::causes::chain};

/// The interval between checks of the ledger.
const CHECK_EVERY: Duration = Duration::from_secs(1);
/// The number of ledger checks per sweep of expired holds.
const CHECKS_PER_SWEEP: u32 = 5;

/// The reasons why this node must not get traffic. If there are none, the node is ready.
#[derive(Clone, Debug, Default)]
pub struct Readiness(Arc<Mutex<Reasons>>);

#[derive(Debug, Default)]
struct Reasons {
    serving: bool,
    broken: Option<&'static str>,
    ledger: Option<String>,
}

impl Readiness {
    /// Returns `Ok` if the node should get traffic.
    ///
    /// # Errors
    /// The reason why the node must not get traffic.
    pub fn check(&self) -> Result<(), String> {
        let reasons = self.0.lock();
        match (&reasons.broken, &reasons.ledger) {
            _ if !reasons.serving => Err("the node is starting or draining".to_owned()),
            (Some(reason), _) => Err((*reason).to_owned()),
            (None, Some(reason)) => Err(reason.clone()),
            (None, None) => Ok(()),
        }
    }

    pub(crate) fn serving(&self, serving: bool) {
        self.0.lock().serving = serving;
    }

    /// Marks the node as not ready until the process is restarted.
    pub(crate) fn broken(&self, reason: &'static str) {
        self.0.lock().broken = Some(reason);
    }

    pub(crate) fn is_broken(&self) -> bool {
        self.0.lock().broken.is_some()
    }

    /// Sets or removes the reason that concerns the ledger. Returns whether the node has become ready, or has stopped
    /// being ready.
    fn ledger(&self, reason: Option<String>) -> bool {
        let mut reasons = self.0.lock();
        let has_changed = reasons.ledger.is_some() != reason.is_some();
        reasons.ledger = reason;
        has_changed
    }

    /// Updates the readiness after a check of the ledger.
    fn checked(&self, result: Result<(), BoxError>) {
        let reason = result.err().map(|error| chain(&*error));
        if self.ledger(reason.clone()) {
            match reason {
                Some(reason) => tracing::error!(reason, "not ready"),
                None => tracing::info!("ready: the ledger responds"),
            }
        }
    }
}

/// Periodically checks whether the ledger responds, whether it is still the same ledger, and whether charges have
/// waited too long to be sent to it. Also sweeps expired holds.
pub(crate) async fn watch(store: AnyLedger, ledger: impl Ledger, readiness: Readiness) {
    let mut checks = 0;
    loop {
        checks += 1;
        let result = check(store.check()).await;
        if checks % CHECKS_PER_SWEEP == 0
            && result.is_ok()
            && let Some(Err(error)) =
                catch_round("the task that sweeps expired holds", sweep(&ledger)).await
        {
            // The sweep can fail because one server of a Redis Cluster is unreachable. Calls of accounts on the other
            // servers continue, so the node stays ready.
            tracing::warn!(reason = chain(&*error), "expired holds could not be swept");
        }
        readiness.checked(result);
        tokio::time::sleep(CHECK_EVERY).await;
    }
}

/// Checks the ledger once. If the check panics, the ledger's state is unknown, so the node is not ready until a later
/// check succeeds.
async fn check(check: impl Future<Output = Result<(), BoxError>>) -> Result<(), BoxError> {
    let result = catch_round("the ledger check", check).await;
    result.unwrap_or_else(|| Err("the ledger check panicked: see the log".into()))
}

/// Runs the settler. If the settler panics, no call can be charged, so the node must not get any more calls.
pub(crate) async fn settle(settling: impl Future<Output = ()>, readiness: Readiness) {
    if catch_round("the settler", settling).await.is_none() {
        readiness.broken("the settler has stopped and no call can be charged: restart this node");
        tracing::error!("no longer ready: the settler has stopped, restart this node");
    }
}

async fn sweep(ledger: &impl Ledger) -> Result<(), BoxError> {
    match ledger.expire().await? {
        0 => {}
        count => tracing::warn!(count, "holds expired"),
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use http::{Request, Response};
    use tokio::task::JoinSet;
    use tollgate_layers::{
        Error,
        body::full,
        facts::RequestNumber,
        key::{AccountId, KeyId},
        money::MicroRub,
        reserve::{
            Bill, Quote, ReserveLayer, Settler, SettlerSettings, Tariff,
            ledger::{Hold, Item, LedgerError, Reserved, Settled, Settlement},
            memory::MemoryLedger,
            testing::{
                given::{HOUR, acme, item, key, micro},
                open,
            },
        },
        usage::Reading,
    };
    use tower::{Layer, ServiceExt, service_fn};

    use super::*;

    /// A ledger whose `reserve` succeeds, and whose other methods panic.
    #[derive(Clone, Default)]
    struct Brittle {
        books: MemoryLedger,
        swept: Arc<AtomicUsize>,
    }

    impl Ledger for Brittle {
        async fn reserve(&self, hold: &Hold) -> Result<Reserved, LedgerError> {
            self.books.reserve(hold).await
        }

        async fn settle(&self, _: &Settlement) -> Result<Settled, LedgerError> {
            panic!("panicked on purpose");
        }

        async fn release(
            &self,
            _: RequestNumber,
            _: &AccountId,
            _: &KeyId,
        ) -> Result<(), LedgerError> {
            panic!("panicked on purpose");
        }

        async fn extend(
            &self,
            _: RequestNumber,
            _: &AccountId,
            _: Duration,
        ) -> Result<bool, LedgerError> {
            panic!("panicked on purpose");
        }

        async fn probe(&self, account: &AccountId, key: &KeyId) -> Result<(), LedgerError> {
            self.books.probe(account, key).await
        }

        async fn expire(&self) -> Result<usize, LedgerError> {
            self.swept.fetch_add(1, Ordering::Relaxed);
            panic!("panicked on purpose");
        }
    }

    /// A tariff that quotes and charges 100 micro-rubles for every request.
    #[derive(Clone)]
    struct Fee;

    impl<B> Tariff<B> for Fee {
        type Bill = Self;

        fn quote(&self, _: &Request<B>) -> Result<Quote<Self>, Error> {
            Ok(Quote::new(acme(), key("k1"), micro(100), Self))
        }

        fn granted(&self, _: &mut Request<B>, _: &mut Self, _: MicroRub) {}
    }

    impl Bill for Fee {
        fn charge(&self, _: &Reading) -> Option<(MicroRub, Item)> {
            Some((micro(100), item(100)))
        }
    }

    #[tokio::test]
    async fn node_whose_settler_panicked_is_unready_and_admits_no_calls() {
        let ledger = Brittle::default();
        open(&ledger.books, 1000).await;
        let (settler, settling) = Settler::new(ledger.clone(), SettlerSettings::default(), |_| {});
        let readiness = Readiness::default();
        readiness.serving(true);
        let mut tasks = JoinSet::new();
        tasks.spawn(settle(settling.run(), readiness.clone()));
        let inner =
            service_fn(|_: Request<()>| async { Ok::<_, Error>(Response::new(full("good"))) });
        let service = ReserveLayer::new(ledger, Fee, settler, HOUR).layer(inner);
        let served = service.clone().oneshot(Request::new(())).await.unwrap();
        assert_eq!(readiness.check(), Ok(()));
        drop(served);
        tasks.join_next().await.unwrap().unwrap();
        let reason = readiness.check().unwrap_err();
        assert!(reason.contains("the settler has stopped"), "{reason}");
        assert!(readiness.is_broken());
        let refused = service.oneshot(Request::new(())).await;
        assert!(matches!(refused, Err(Error::Overloaded)));
    }

    #[tokio::test(start_paused = true)]
    async fn expiry_sweeps_continue_after_one_of_them_panicked() {
        let (ledger, readiness) = (Brittle::default(), Readiness::default());
        readiness.serving(true);
        let store = AnyLedger::Memory(ledger.books.clone());
        let mut tasks = JoinSet::new();
        tasks.spawn(watch(store, ledger.clone(), readiness.clone()));
        tokio::time::sleep(CHECK_EVERY * CHECKS_PER_SWEEP * 10).await;
        assert!(ledger.swept.load(Ordering::Relaxed) >= 9);
        assert!(tasks.try_join_next().is_none());
        assert_eq!(readiness.check(), Ok(()));
    }

    #[tokio::test]
    async fn panic_in_a_ledger_check_makes_the_node_unready_until_a_check_succeeds() {
        let readiness = Readiness::default();
        readiness.serving(true);
        readiness.checked(check(async { panic!("panicked on purpose") }).await);
        let reason = readiness.check().unwrap_err();
        assert_eq!(reason, "the ledger check panicked: see the log");
        readiness.checked(check(async { Ok(()) }).await);
        assert_eq!(readiness.check(), Ok(()));
    }

    #[test]
    fn broken_node_stays_unready_when_the_ledger_recovers() {
        let readiness = Readiness::default();
        readiness.serving(true);
        assert_eq!(readiness.check(), Ok(()));
        readiness.ledger(Some("away".into()));
        assert_eq!(readiness.check(), Err("away".into()));
        readiness.broken("beyond repair");
        readiness.ledger(None);
        assert_eq!(readiness.check(), Err("beyond repair".into()));
    }
}
