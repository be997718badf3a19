//! Whether this node should get traffic, and why not: the watch over its ledger and its settler.

use std::{
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use tollgate_layers::{error::BoxError, reserve::ledger::Ledger};

use crate::{edge::panics::catch_round, ledger::AnyLedger, text::causes::chain};

/// How often the ledger is looked at.
const LOOK_EVERY: Duration = Duration::from_secs(1);
/// Holds past their time are looked for every so many looks.
const LOOKS_PER_EXPIRY: u32 = 5;

/// What keeps this node from serving; ready when nothing does.
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
    /// `Ok` if it should get traffic.
    ///
    /// # Errors
    /// Why not.
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

    /// This process cannot serve any more.
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

    /// Says whether that is news.
    fn ledger(&self, reason: Option<String>) -> bool {
        let mut reasons = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let news = reasons.ledger.is_some() != reason.is_some();
        reasons.ledger = reason;
        news
    }

    /// Takes what a look at the ledger came to.
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

/// Looks at the ledger again and again: whether it answers and is the one we know, whether charges
/// wait too long for it, and whether holds are past their time.
pub(crate) async fn watch(store: AnyLedger, ledger: impl Ledger, readiness: Readiness) {
    let mut looks = 0;
    loop {
        looks += 1;
        let looked = look(store.check()).await;
        if looks % LOOKS_PER_EXPIRY == 0
            && looked.is_ok()
            && let Some(Err(error)) = catch_round("the sweep of due holds", sweep(&ledger)).await
        {
            // Of a Cluster one shard may be away: the others are sold on all the same.
            tracing::warn!(reason = chain(&*error), "due holds could not be ended");
        }
        readiness.looked(looked);
        tokio::time::sleep(LOOK_EVERY).await;
    }
}

/// One look. Until one has come to its end again, nobody knows how the ledger is.
async fn look(check: impl Future<Output = Result<(), BoxError>>) -> Result<(), BoxError> {
    let looked = catch_round("the look at the ledger", check).await;
    looked.unwrap_or_else(|| Err("the look at the ledger panicked: see the log".into()))
}

/// Runs the settler. One that panics leaves a node that can charge nothing: it must get no more calls.
pub(crate) async fn settle(settling: impl Future<Output = ()>, readiness: Readiness) {
    if catch_round("the settler", settling).await.is_none() {
        readiness.broken("the settler has died and no call can be charged: restart this node");
        tracing::error!("not ready any more: the settler has died, restart this node");
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
        usage::{Meter, Reading},
    };
    use tower::{Layer, ServiceExt, service_fn};

    use super::*;

    /// Makes holds, and panics over all else.
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
            panic!("a panic of the test's");
        }

        async fn release(
            &self,
            _: RequestNumber,
            _: &AccountId,
            _: &KeyId,
        ) -> Result<(), LedgerError> {
            panic!("a panic of the test's");
        }

        async fn extend(
            &self,
            _: RequestNumber,
            _: &AccountId,
            _: Duration,
        ) -> Result<bool, LedgerError> {
            panic!("a panic of the test's");
        }

        async fn probe(&self, account: &AccountId, key: &KeyId) -> Result<(), LedgerError> {
            self.books.probe(account, key).await
        }

        async fn expire(&self) -> Result<usize, LedgerError> {
            self.swept.fetch_add(1, Ordering::Relaxed);
            panic!("a panic of the test's");
        }
    }

    /// So much for each request.
    #[derive(Clone)]
    struct Fee;

    impl<B> Tariff<B> for Fee {
        type Bill = Self;

        fn quote(&self, _: &Request<B>) -> Result<Quote<Self>, Error> {
            Ok(Quote {
                account: acme(),
                key: key("k1"),
                want: micro(100),
                least: micro(100),
                meter: Meter::default(),
                finish_without_client: false,
                tells_cost: false,
                has_output: false,
                bill: Self,
            })
        }

        fn granted(&self, _: &mut Request<B>, _: &mut Self, _: MicroRub) {}
    }

    impl Bill for Fee {
        fn charge(&self, _: &Reading) -> Option<(MicroRub, Item)> {
            Some((micro(100), item(100)))
        }
    }

    #[tokio::test]
    async fn a_settler_that_panics_takes_no_more_calls_and_its_node_is_not_ready() {
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
        assert!(reason.contains("the settler has died"), "{reason}");
        assert!(readiness.is_broken());
        let refused = service.oneshot(Request::new(())).await;
        assert!(matches!(refused, Err(Error::Overloaded)));
    }

    #[tokio::test(start_paused = true)]
    async fn a_sweep_that_panics_is_followed_by_the_next_one() {
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
    async fn a_look_that_panics_keeps_the_node_from_calls_until_one_has_found_the_ledger_well() {
        let readiness = Readiness::default();
        readiness.serving(true);
        readiness.looked(look(async { panic!("a panic of the test's") }).await);
        let reason = readiness.check().unwrap_err();
        assert_eq!(reason, "the look at the ledger panicked: see the log");
        readiness.looked(look(async { Ok(()) }).await);
        assert_eq!(readiness.check(), Ok(()));
    }

    #[test]
    fn what_is_broken_stays_so_whatever_the_ledger_says() {
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
