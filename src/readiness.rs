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
}

/// Looks at the ledger again and again: whether it answers and is the one we know, whether charges
/// wait too long for it, and whether holds are past their time.
pub(crate) async fn watch(store: Store, ledger: impl Ledger, readiness: Readiness) {
    let mut looks = 0;
    loop {
        looks += 1;
        let looked = store.check().await;
        if looks % LOOKS_PER_EXPIRY == 0
            && looked.is_ok()
            && let Err(error) = sweep(&ledger).await
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

async fn sweep(ledger: &impl Ledger) -> Result<(), BoxError> {
    match ledger.expire().await? {
        0 => {}
        count => tracing::warn!(count, "holds expired"),
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

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
