//! Implements the ledger's traits for [`AnyLedger`] by forwarding each method to the configured store.

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

/// Calls a method on the ledger that the enum contains. With Redis, bypasses the outbox; the macro `ask` does not.
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

/// Calls a method of [`Ledger`] on the ledger that the enum contains. With Redis, the call goes through the outbox, and
/// its future is boxed: this future is large, and would enlarge the combined future for the other ledgers too.
macro_rules! ask {
    ($store:expr, $ledger:ident => $call:expr) => {
        match $store {
            AnyLedger::Memory($ledger) => $call,
            AnyLedger::Sqlite($ledger) => $call,
            AnyLedger::Redis($ledger) => Box::pin(async { $call }).await,
        }
    };
}

/// Implements trait methods by forwarding them to the contained ledger. `$call` is the macro that calls a method:
/// `books` or `ask`. `$error` is the error type of the methods.
macro_rules! forward {
    ($call:ident, $error:ty: $(fn $name:ident($($arg:ident: $kind:ty),*) -> $answer:ty;)*) => {
        $(async fn $name(&self, $($arg: $kind),*) -> Result<$answer, $error> {
            $call!(self, ledger => ledger.$name($($arg),*).await)
        })*
    };
}

impl Ledger for AnyLedger {
    async fn settle_all(&self, settlements: &[Settlement]) -> Vec<Result<Settled, LedgerError>> {
        ask!(self, ledger => ledger.settle_all(settlements).await)
    }

    forward! { ask, LedgerError:
        fn reserve(hold: &Hold) -> Reserved;
        fn settle(settlement: &Settlement) -> Settled;
        fn release(number: RequestNumber, account: &AccountId, key: &KeyId) -> ();
        fn extend(number: RequestNumber, account: &AccountId, ttl: Duration) -> bool;
        fn adjust(adjustment: &Adjustment) -> Adjusted;
        fn probe(account: &AccountId, key: &KeyId) -> ();
        fn expire() -> usize;
        fn checkpoint(running: &[Settlement]) -> ();
    }
}

impl LedgerAdmin for AnyLedger {
    forward! { books, BookError:
        fn create_account(id: &AccountId, name: &str) -> AccountView;
        fn change_account(id: &AccountId, name: Option<&str>, suspended: Option<bool>) -> AccountView;
        fn account(id: &AccountId) -> AccountView;
        fn accounts() -> Vec<AccountView>;
        fn enter(account: &AccountId, entry: &Entry) -> AccountView;
        fn entry(account: &AccountId, id: &str) -> Option<Entry>;
        fn create_key(record: &KeyRecord, ceilings: Ceilings) -> KeyView;
        fn change_key(id: &KeyId, change: &KeyChange) -> KeyView;
        fn key(id: &KeyId) -> KeyView;
        fn keys(account: &AccountId) -> Vec<KeyView>;
        fn create_group(account: &AccountId, record: &GroupRecord, ceilings: Ceilings) -> GroupView;
        fn change_group(account: &AccountId, id: &GroupId, change: &GroupChange) -> GroupView;
        fn groups(account: &AccountId) -> Vec<GroupView>;
        fn receipt(number: RequestNumber) -> Receipt;
        fn receipt_of(account: &AccountId, number: RequestNumber) -> Receipt;
        fn journal(account: &AccountId, part: &JournalPart<'_>) -> JournalPage;
        fn books(account: &AccountId) -> AccountBooks;
        fn tariff_version(fingerprint: &str) -> TariffVersion;
        fn audit() -> Audit;
    }
}

impl EventStore for AnyLedger {
    forward! { books, BookError:
        fn set_levels(account: &AccountId, of: &happening::Watched, levels: happening::Levels) -> ();
        fn levels(account: &AccountId) -> Vec<(happening::Watched, happening::Levels)>;
        fn gather() -> u64;
        fn events(after: u64, limit: usize) -> Vec<happening::Event>;
        fn emit_once(event: &OnceEvent) -> bool;
    }
}

impl Documents for AnyLedger {
    forward! { books, BookError:
        fn document(name: &str) -> Option<Document>;
        fn documents(begins: &str) -> Vec<Document>;
        fn compare_and_swap(name: &str, version: u64, text: &str) -> bool;
    }
}

impl LeaderLease for AnyLedger {
    forward! { books, BookError:
        fn lead(name: &str, owner: &str, ttl: Duration) -> bool;
    }
}

impl Rollup for AnyLedger {
    async fn account_ids(&self) -> Result<Vec<AccountId>, BookError> {
        books!(self, ledger => Rollup::account_ids(ledger).await)
    }

    forward! { books, BookError:
        fn journals(parts: &[(&AccountId, JournalPart<'_>)]) -> Vec<Option<JournalPage>>;
        fn newest_ms(parts: &[(&AccountId, JournalPart<'_>)]) -> Option<Vec<Option<u64>>>;
        fn marks() -> Marks;
        fn rolled(parts: &[(Scope, Range<u64>)]) -> Rolled;
        fn oldest_sums_ms(scope: &Scope) -> Option<u64>;
    }

    fn place_ms(&self, place: &str) -> u64 {
        books!(self, ledger => ledger.place_ms(place))
    }

    forward! { books, BookError:
        fn sums_at(ids: &[RowId]) -> Vec<Option<Sums>>;
        fn unrolled_lines(account: &AccountId, after: Option<&str>, before_ms: u64) -> UnrolledLines;
        fn entries(account: &AccountId, end: &str) -> Option<Vec<JournalLine>>;
        fn change_sums(change: &Change) -> Option<u64>;
        fn clear_sums() -> ();
    }
}

impl KeyStore for AnyLedger {
    forward! { books, BoxError:
        fn find_key(digest: &KeyDigest) -> Option<Arc<KeyRecord>>;
    }

    fn find_key_now(&self, digest: &KeyDigest) -> Option<Result<Option<Arc<KeyRecord>>, BoxError>> {
        books!(self, ledger => ledger.find_key_now(digest))
    }
}
