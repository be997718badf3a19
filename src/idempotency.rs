//! Stores answers for calls with an idempotency key, and reads from the ledger the charges of these calls.

use std::{ffi::OsString, path::Path};

use tollgate_layers::{
    error::BoxError,
    idempotency::{Event, Fate, Money},
};
use tollgate_ledger::{
    account::{AccountId, KeyId},
    contract::{BookError, Ledger, LedgerAdmin, LedgerError, Refusal},
    idempotency::{
        AnswerStore, Bounds, Claim, Claimed, Finished, MemoryAnswers, Outcome, RedisAnswers,
        SqliteAnswers,
    },
    number::RequestNumber,
};

use crate::{
    config::{Config, LedgerUrl},
    ledger::AnyLedger,
    observe::metrics::idempotency::Idempotency,
};

/// A store of answers, of the same kind as the ledger. Clones share it.
#[derive(Clone, Debug)]
pub(crate) enum AnyAnswers {
    Memory(MemoryAnswers),
    Sqlite(SqliteAnswers),
    Redis(RedisAnswers),
}

impl AnyAnswers {
    pub(crate) fn beside(store: &AnyLedger, config: &Config) -> Self {
        let bounds: Bounds = config.idempotency.bounds;
        match (store, &config.ledger.url) {
            (AnyLedger::Redis(outbox), _) => {
                Self::Redis(RedisAnswers::new(outbox.ledger().conn().clone(), bounds))
            }
            (AnyLedger::Sqlite(_), LedgerUrl::Sqlite(path)) => {
                Self::Sqlite(SqliteAnswers::new(beside(path).as_ref(), bounds))
            }
            (AnyLedger::Memory(_) | AnyLedger::Sqlite(_), _) => {
                Self::Memory(MemoryAnswers::new(bounds))
            }
        }
    }
}

/// Returns the path of the ledger's file with `.answers` appended.
fn beside(path: &Path) -> OsString {
    let mut path = path.as_os_str().to_owned();
    path.push(".answers");
    path
}

impl AnswerStore for AnyAnswers {
    async fn claim(&self, claim: &Claim, from: Option<RequestNumber>) -> Result<Claimed, BoxError> {
        match self {
            Self::Memory(store) => store.claim(claim, from).await,
            Self::Sqlite(store) => store.claim(claim, from).await,
            Self::Redis(store) => store.claim(claim, from).await,
        }
    }

    async fn renew(&self, claim: &Claim) -> Result<bool, BoxError> {
        match self {
            Self::Memory(store) => store.renew(claim).await,
            Self::Sqlite(store) => store.renew(claim).await,
            Self::Redis(store) => store.renew(claim).await,
        }
    }

    async fn finish(&self, claim: &Claim, outcome: Outcome<'_>) -> Result<Finished, BoxError> {
        match self {
            Self::Memory(store) => store.finish(claim, outcome).await,
            Self::Sqlite(store) => store.finish(claim, outcome).await,
            Self::Redis(store) => store.finish(claim, outcome).await,
        }
    }
}

/// The ledger, which determines the outcome of a call with an idempotency key.
#[derive(Clone, Debug)]
pub(crate) struct Books {
    pub(crate) store: AnyLedger,
    /// Whether gateways grant holds from leases. If so, a call that a lease of another gateway pays for may still be
    /// charged when that gateway is back.
    pub(crate) leased: bool,
}

impl Money for Books {
    async fn abandon(
        &self,
        number: RequestNumber,
        account: &AccountId,
        key: &KeyId,
    ) -> Result<Fate, BoxError> {
        // The release decides the outcome: a hold that it ends is never charged, and a hold that was charged before
        // stays charged. The release bypasses the outbox, which would send it later.
        let mut leased = self.leased;
        match &self.store {
            AnyLedger::Memory(ledger) => ledger.release(number, account, key).await?,
            AnyLedger::Sqlite(ledger) => ledger.release(number, account, key).await?,
            AnyLedger::Redis(outbox) => {
                let ledger = outbox.ledger();
                // Another gateway may use leases even if this gateway does not.
                leased = leased || !ledger.leases_of(account).await?.is_empty();
                if leased {
                    // A call with a hold of its own is paid by no lease.
                    leased = !ledger.forbid_held(number, account).await?;
                } else {
                    ledger.forbid(number, account).await?;
                }
            }
        }
        match self.store.receipt_of(account, number).await {
            Ok(receipt) if receipt.charged_rub.micro() > 0 => Ok(Fate::Charged),
            Ok(_) | Err(BookError::NotFound) if leased => Ok(Fate::Open),
            Ok(_) | Err(BookError::NotFound) => Ok(Fate::Free),
            Err(error) => Err(error.into()),
        }
    }

    async fn permits(&self, account: &AccountId, key: &KeyId) -> Result<bool, BoxError> {
        match self.store.probe(account, key).await {
            Err(LedgerError::Refused(Refusal::Unknown | Refusal::Disabled)) => Ok(false),
            // An answer that was paid for is sent again even if the key has no money left for another call.
            Ok(()) | Err(LedgerError::Refused(_)) => Ok(true),
            Err(LedgerError::Unavailable(cause)) => Err(cause),
        }
    }
}

/// Counts outcomes of calls with an idempotency key, and logs the outcomes that no receipt shows.
pub(crate) fn report(metrics: &Idempotency) -> impl Fn(Event) + Send + Sync + use<> {
    let metrics = metrics.clone();
    move |event| {
        metrics.count(event);
        match event {
            Event::Replayed(number, of) => {
                tracing::info!(%number, %of, "an answer was repeated; nothing was charged");
            }
            Event::Joined(number, of) => {
                tracing::info!(%number, %of, "a running answer was joined; nothing was charged");
            }
            Event::NotWritten => {
                tracing::warn!("the end of a call with an idempotency key could not be recorded");
            }
            _ => {}
        }
    }
}
