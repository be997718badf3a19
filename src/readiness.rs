//! Whether this node should get traffic, and why not: the watch over its ledger.

use std::{
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use tollgate_layers::{error::BoxError, reserve::ledger::Ledger};

use crate::{causes::chain, store::Store};

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
    ledger: Option<String>,
}

impl Default for Readiness {
    fn default() -> Self {
        let reasons = Reasons {
            serving: false,
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
        match &reasons.ledger {
            _ if !reasons.serving => Err("starting or draining".to_owned()),
            Some(reason) => Err(reason.clone()),
            None => Ok(()),
        }
    }

    pub(crate) fn serving(&self, serving: bool) {
        self.0
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .serving = serving;
    }

    /// Says whether that is news.
    fn ledger(&self, reason: Option<String>) -> bool {
        let mut reasons = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let news = reasons.ledger.is_some() != reason.is_some();
        reasons.ledger = reason;
        news
    }
}

/// Looks at the ledger again and again: whether it answers and is the one we know, whether charges
/// wait too long for it, and whether holds are past their time.
pub(crate) async fn watch(store: Store, readiness: Readiness) {
    let mut looks = 0;
    loop {
        looks += 1;
        let looked = store.check().await;
        if looks % LOOKS_PER_EXPIRY == 0
            && looked.is_ok()
            && let Err(error) = sweep(&store).await
        {
            // Of a Cluster one shard may be away: the others are sold on all the same.
            tracing::warn!(reason = chain(&*error), "due holds could not be ended");
        }
        let reason = looked.err().map(|error| chain(&*error));
        if readiness.ledger(reason.clone()) {
            match reason {
                Some(reason) => tracing::error!(reason, "not ready"),
                None => tracing::info!("ready: the ledger is well"),
            }
        }
        tokio::time::sleep(LOOK_EVERY).await;
    }
}

async fn sweep(store: &Store) -> Result<(), BoxError> {
    match store.expire().await? {
        0 => {}
        count => tracing::warn!(count, "holds expired"),
    }
    Ok(())
}
