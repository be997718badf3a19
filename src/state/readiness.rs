//! Whether this node should get traffic, and the reason if it should not. A task watches the node's ledger and its
//! settler.

use std::{
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use tollgate_layers::{error::BoxError, reserve::ledger::Ledger};

use crate::{edge::panics::catch_round, ledger::AnyLedger, text::causes::chain};

/// The interval at which the ledger is checked.
const LOOK_EVERY: Duration = Duration::from_secs(1);
/// Expired holds are swept on every fifth check of the ledger.
const LOOKS_PER_EXPIRY: u32 = 5;

/// The reasons why this node must not serve. If there is no reason, the node is ready.
#[derive(Clone, Debug)]
pub struct Readiness(Arc<Mutex<Reasons>>);

#[derive(Debug)]
struct Reasons {
    serving: bool,
    broken: Option<&'static str>,
    ledger: Option<String>,
}

impl Default for Readiness {
    fn default() -> Self {
        let reasons = Reasons {
            serving: false,
            broken: None,
            ledger: None,
        };
        Self(Arc::new(Mutex::new(reasons)))
    }
}

impl Readiness {
    /// Returns `Ok` if the node should get traffic.
    ///
    /// # Errors
    /// An error with the reason why the node should not get traffic.
    pub fn check(&self) -> Result<(), String> {
        let reasons = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        match (&reasons.broken, &reasons.ledger) {
            _ if !reasons.serving => Err("starting or draining".to_owned()),
            (Some(reason), _) => Err((*reason).to_owned()),
            (None, Some(reason)) => Err(reason.clone()),
            (None, None) => Ok(()),
        }
    }

    pub(crate) fn serving(&self, serving: bool) {
        self.0
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .serving = serving;
    }

    /// Marks the process as unable to serve until it is restarted.
    pub(crate) fn broken(&self, reason: &'static str) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).broken = Some(reason);
    }

    pub(crate) fn is_broken(&self) -> bool {
        self.0
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .broken
            .is_some()
    }

    /// Sets or clears the reason that concerns the ledger. Returns whether this changed the readiness.
    fn ledger(&self, reason: Option<String>) -> bool {
        let mut reasons = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let news = reasons.ledger.is_some() != reason.is_some();
        reasons.ledger = reason;
        news
    }

    /// Updates the readiness with the result of a check of the ledger.
    fn looked(&self, looked: Result<(), BoxError>) {
        let reason = looked.err().map(|error| chain(&*error));
        if self.ledger(reason.clone()) {
            match reason {
                Some(reason) => tracing::error!(reason, "not ready"),
                None => tracing::info!("ready: the ledger is well"),
            }
        }
    }
}

/// Checks periodically whether the ledger answers, whether it is the same ledger as before, and whether charges wait
/// too long to be sent to it. Also sweeps expired holds.
pub(crate) async fn watch(store: AnyLedger, ledger: impl Ledger, readiness: Readiness) {
    let mut looks = 0;
    loop {
        looks += 1;
        let looked = look(store.check()).await;
        if looks % LOOKS_PER_EXPIRY == 0
            && looked.is_ok()
            && let Some(Err(error)) =
                catch_round("the sweep of expired holds", sweep(&ledger)).await
        {
            // Perhaps only one server of a Redis Cluster is out of reach. Calls on accounts of the other servers
            // continue, so the node stays ready.
            tracing::warn!(reason = chain(&*error), "expired holds could not be swept");
        }
        readiness.looked(looked);
        tokio::time::sleep(LOOK_EVERY).await;
    }
}

/// Makes one check of the ledger. If the check panics, the ledger's state is unknown, so the node is not ready until a
/// check completes again.
async fn look(check: impl Future<Output = Result<(), BoxError>>) -> Result<(), BoxError> {
    let looked = catch_round("the check of the ledger", check).await;
    looked.unwrap_or_else(|| Err("the check of the ledger panicked: see the log".into()))
}

/// Runs the settler. If the settler panics, this node can charge no call and must get no more calls.
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

    /// A ledger whose `reserve` succeeds and whose other methods panic.
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

    /// A tariff that holds this amount for each request.
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
    async fn panicked_settler_makes_the_node_unready_and_admits_no_calls() {
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
    async fn next_expiry_sweep_runs_after_one_that_panicked() {
        let (ledger, readiness) = (Brittle::default(), Readiness::default());
        readiness.serving(true);
        let store = AnyLedger::Memory(ledger.books.clone());
        let mut tasks = JoinSet::new();
        tasks.spawn(watch(store, ledger.clone(), readiness.clone()));
        tokio::time::sleep(LOOK_EVERY * LOOKS_PER_EXPIRY * 10).await;
        assert!(ledger.swept.load(Ordering::Relaxed) >= 9);
        assert!(tasks.try_join_next().is_none());
        assert_eq!(readiness.check(), Ok(()));
    }

    #[tokio::test]
    async fn panic_in_a_ledger_check_makes_the_node_unready_until_a_check_succeeds() {
        let readiness = Readiness::default();
        readiness.serving(true);
        readiness.looked(look(async { panic!("panicked on purpose") }).await);
        let reason = readiness.check().unwrap_err();
        assert_eq!(reason, "the check of the ledger panicked: see the log");
        readiness.looked(look(async { Ok(()) }).await);
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
