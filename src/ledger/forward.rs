//! Implements the ledger's traits for [`AnyLedger`]: each call goes to the store that the configuration names.

use std::{ops::Range, sync::Arc, time::Duration};

use tollgate_ledger::{
    BoxError,
    account::{AccountId, GroupId, KeyDigest, KeyId, KeyRecord, KeyStore},
    ceiling::Ceilings,
    contract::{
        AccountBooks, AccountView, Adjusted, Adjustment, Audit, BookError, Document, Documents,
        Entry, EventStore, GroupChange, GroupRecord, GroupView, Hold, JournalLine, JournalPage,
        JournalPart, KeyChange, KeyView, LeaderLease, Ledger, LedgerAdmin, LedgerError, OnceEvent,
        Receipt, Reserved, Settled, Settlement, TariffVersion,
    },
    happening,
    number::RequestNumber,
    rollup::{Change, Marks, Rolled, Rollup, RowId, Scope, Sums, UnrolledLines},
};

use super::AnyLedger;

/// Calls a method of [`LedgerAdmin`] on the concrete ledger.
macro_rules! books {
    ($store:expr, $ledger:ident => $call:expr) => {
        match $store {
            AnyLedger::Memory($ledger) => $call,
            AnyLedger::Sqlite($ledger) => $call,
            AnyLedger::Redis(outbox) => {
                let $ledger = outbox.ledger();
                $call
            }
        }
    };
}

/// Calls a method of [`Ledger`] on the concrete ledger. The future of a request to Redis is boxed, because it is large
/// and would enlarge this future for every kind of ledger.
macro_rules! ask {
    ($store:expr, $ledger:ident => $call:expr) => {
        match $store {
            AnyLedger::Memory($ledger) => $call,
            AnyLedger::Sqlite($ledger) => $call,
            AnyLedger::Redis($ledger) => Box::pin(async { $call }).await,
        }
    };
}

/// Implements methods by the same methods of the concrete ledger.
macro_rules! forward {
    ($call:ident: $(async fn $name:ident(&self $(, $arg:ident: $kind:ty)*) -> $answer:ty;)*) => {
        $(async fn $name(&self $(, $arg: $kind)*) -> $answer {
            $call!(self, ledger => ledger.$name($($arg),*).await)
        })*
    };
}

impl Ledger for AnyLedger {
    forward! { ask:
        async fn reserve(&self, hold: &Hold) -> Result<Reserved, LedgerError>;
        async fn settle(&self, settlement: &Settlement) -> Result<Settled, LedgerError>;
        async fn settle_all(&self, settlements: &[Settlement]) -> Vec<Result<Settled, LedgerError>>;
        async fn release(&self, number: RequestNumber, account: &AccountId, key: &KeyId) -> Result<(), LedgerError>;
        async fn extend(&self, number: RequestNumber, account: &AccountId, ttl: Duration) -> Result<bool, LedgerError>;
        async fn adjust(&self, adjustment: &Adjustment) -> Result<Adjusted, LedgerError>;
        async fn probe(&self, account: &AccountId, key: &KeyId) -> Result<(), LedgerError>;
        async fn expire(&self) -> Result<usize, LedgerError>;
        async fn checkpoint(&self, running: &[Settlement]) -> Result<(), LedgerError>;
    }
}

impl LedgerAdmin for AnyLedger {
    forward! { books:
        async fn create_account(&self, id: &AccountId, name: &str) -> Result<AccountView, BookError>;
        async fn change_account(&self, id: &AccountId, name: Option<&str>, suspended: Option<bool>)
            -> Result<AccountView, BookError>;
        async fn account(&self, id: &AccountId) -> Result<AccountView, BookError>;
        async fn accounts(&self) -> Result<Vec<AccountView>, BookError>;
        async fn enter(&self, account: &AccountId, entry: &Entry) -> Result<AccountView, BookError>;
        async fn entry(&self, account: &AccountId, id: &str) -> Result<Option<Entry>, BookError>;
        async fn create_key(&self, record: &KeyRecord, ceilings: Ceilings) -> Result<KeyView, BookError>;
        async fn change_key(&self, id: &KeyId, change: &KeyChange) -> Result<KeyView, BookError>;
        async fn key(&self, id: &KeyId) -> Result<KeyView, BookError>;
        async fn keys(&self, account: &AccountId) -> Result<Vec<KeyView>, BookError>;
        async fn create_group(&self, account: &AccountId, record: &GroupRecord, ceilings: Ceilings)
            -> Result<GroupView, BookError>;
        async fn change_group(&self, account: &AccountId, id: &GroupId, change: &GroupChange)
            -> Result<GroupView, BookError>;
        async fn groups(&self, account: &AccountId) -> Result<Vec<GroupView>, BookError>;
        async fn receipt(&self, number: RequestNumber) -> Result<Receipt, BookError>;
        async fn receipt_of(&self, account: &AccountId, number: RequestNumber) -> Result<Receipt, BookError>;
        async fn journal(&self, account: &AccountId, part: &JournalPart<'_>) -> Result<JournalPage, BookError>;
        async fn books(&self, account: &AccountId) -> Result<AccountBooks, BookError>;
        async fn tariff_version(&self, fingerprint: &str) -> Result<TariffVersion, BookError>;
        async fn audit(&self) -> Result<Audit, BookError>;
    }
}

impl EventStore for AnyLedger {
    forward! { books:
        async fn set_levels(&self, account: &AccountId, of: &happening::Watched, levels: happening::Levels)
            -> Result<(), BookError>;
        async fn levels(&self, account: &AccountId) -> Result<Vec<(happening::Watched, happening::Levels)>, BookError>;
        async fn gather(&self) -> Result<u64, BookError>;
        async fn events(&self, after: u64, limit: usize) -> Result<Vec<happening::Event>, BookError>;
        async fn emit_once(&self, event: &OnceEvent) -> Result<bool, BookError>;
    }
}

impl Documents for AnyLedger {
    forward! { books:
        async fn document(&self, name: &str) -> Result<Option<Document>, BookError>;
        async fn documents(&self, begins: &str) -> Result<Vec<Document>, BookError>;
        async fn compare_and_swap(&self, name: &str, version: u64, text: &str) -> Result<bool, BookError>;
    }
}

impl LeaderLease for AnyLedger {
    forward! { books:
        async fn lead(&self, name: &str, owner: &str, ttl: Duration) -> Result<bool, BookError>;
    }
}

impl Rollup for AnyLedger {
    async fn account_ids(&self) -> Result<Vec<AccountId>, BookError> {
        books!(self, ledger => Rollup::account_ids(ledger).await)
    }

    forward! { books:
        async fn journals(&self, parts: &[(&AccountId, JournalPart<'_>)])
            -> Result<Vec<Option<JournalPage>>, BookError>;
        async fn newest_ms(&self, parts: &[(&AccountId, JournalPart<'_>)])
            -> Result<Option<Vec<Option<u64>>>, BookError>;
        async fn marks(&self) -> Result<Marks, BookError>;
        async fn rolled(&self, parts: &[(Scope, Range<u64>)]) -> Result<Rolled, BookError>;
        async fn oldest_sums_ms(&self, scope: &Scope) -> Result<Option<u64>, BookError>;
    }

    fn place_ms(&self, place: &str) -> u64 {
        books!(self, ledger => ledger.place_ms(place))
    }

    forward! { books:
        async fn sums_at(&self, ids: &[RowId]) -> Result<Vec<Option<Sums>>, BookError>;
        async fn unrolled_lines(&self, account: &AccountId, after: Option<&str>, before_ms: u64)
            -> Result<UnrolledLines, BookError>;
        async fn entries(&self, account: &AccountId, end: &str) -> Result<Option<Vec<JournalLine>>, BookError>;
        async fn change_sums(&self, change: &Change) -> Result<Option<u64>, BookError>;
        async fn clear_sums(&self) -> Result<(), BookError>;
    }
}

impl KeyStore for AnyLedger {
    forward! { books:
        async fn find_key(&self, digest: &KeyDigest) -> Result<Option<Arc<KeyRecord>>, BoxError>;
    }

    fn find_key_now(&self, digest: &KeyDigest) -> Option<Result<Option<Arc<KeyRecord>>, BoxError>> {
        books!(self, ledger => ledger.find_key_now(digest))
    }
}
