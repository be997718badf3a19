//! Stores the responses of calls with an idempotency key, and reads from the ledger what such a call was charged.

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
    ledger::{AnyLedger, side::side_file},
    observe::metrics::idempotency::Idempotency,
};

/// Stores the responses of calls with an idempotency key in the same kind of store as the ledger: memory, SQLite or
/// Redis. Clones share it.
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
                Self::Sqlite(SqliteAnswers::new(&side_file(path, "answers"), bounds))
            }
            (AnyLedger::Memory(_) | AnyLedger::Sqlite(_), _) => {
                Self::Memory(MemoryAnswers::new(bounds))
            }
        }
    }
}

/// Calls a method on the store that the enum contains.
macro_rules! answers {
    ($answers:expr, $store:ident => $call:expr) => {
        match $answers {
            AnyAnswers::Memory($store) => $call,
            AnyAnswers::Sqlite($store) => $call,
            AnyAnswers::Redis($store) => $call,
        }
    };
}

impl AnswerStore for AnyAnswers {
    async fn claim(&self, claim: &Claim, from: Option<RequestNumber>) -> Result<Claimed, BoxError> {
        answers!(self, store => store.claim(claim, from).await)
    }

    async fn renew(&self, claim: &Claim) -> Result<bool, BoxError> {
        answers!(self, store => store.renew(claim).await)
    }

    async fn finish(&self, claim: &Claim, outcome: Outcome<'_>) -> Result<Finished, BoxError> {
        answers!(self, store => store.finish(claim, outcome).await)
    }
}

/// Looks up in the ledger whether a call with an idempotency key was charged.
#[derive(Clone, Debug)]
pub(crate) struct Books {
    pub(crate) store: AnyLedger,
    /// Whether any gateway grants holds from leases. If so, a call that was paid from another gateway's lease may still
    /// be charged when that gateway is reachable again.
    pub(crate) leased: bool,
}

impl Money for Books {
    async fn abandon(
        &self,
        number: RequestNumber,
        account: &AccountId,
        key: &KeyId,
    ) -> Result<Fate, BoxError> {
        // This release decides the outcome: if it ends the hold, the call can never be charged; if the call was charged
        // before, it stays charged. The release bypasses the outbox, which would send it only later.
        let mut leased = self.leased;
        match &self.store {
            AnyLedger::Memory(ledger) => ledger.release(number, account, key).await?,
            AnyLedger::Sqlite(ledger) => ledger.release(number, account, key).await?,
            AnyLedger::Redis(outbox) => {
                let ledger = outbox.ledger();
                // If this gateway uses no leases, another gateway may still use some.
                leased = leased || !ledger.leases_of(account).await?.is_empty();
                if leased {
                    // If the call has its own hold, it is not paid from a lease.
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
            // A response that was already paid for is sent again, even if the key has no money left for another call.
            Ok(()) | Err(LedgerError::Refused(_)) => Ok(true),
            Err(LedgerError::Unavailable(cause)) => Err(cause),
        }
    }
}

/// Counts the outcomes of calls with an idempotency key, and logs the outcomes that leave no receipt.
pub(crate) fn report(metrics: &Idempotency) -> impl Fn(Event) + Send + Sync + use<> {
    let metrics = metrics.clone();
    move |event| {
        metrics.count(event);
        match event {
            Event::Replayed(number, of) => {
                tracing::info!(%number, %of, "repeated call: sent the stored response again, charged nothing");
            }
            Event::Joined(number, of) => {
                tracing::info!(%number, %of, "repeated call: joined the earlier, running call; charged nothing");
            }
            Event::NotWritten => {
                tracing::warn!("the outcome of a call with an idempotency key could not be stored");
            }
            _ => {}
        }
    }
}
