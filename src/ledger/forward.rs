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
    rollup::{Change, Marks, Rolled, Rollup, RowId, Scope, StandingLines, Sums},
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

/// Calls a method of [`Ledger`] on the concrete ledger. The future of a request to Redis is large and would enlarge
/// this future for every ledger, so it is boxed.
macro_rules! ask {
    ($store:expr, $ledger:ident => $call:expr) => {
        match $store {
            AnyLedger::Memory($ledger) => $call,
            AnyLedger::Sqlite($ledger) => $call,
            AnyLedger::Redis($ledger) => Box::pin(async { $call }).await,
        }
    };
}

impl Ledger for AnyLedger {
    async fn reserve(&self, hold: &Hold) -> Result<Reserved, LedgerError> {
        ask!(self, ledger => ledger.reserve(hold).await)
    }

    async fn settle(&self, settlement: &Settlement) -> Result<Settled, LedgerError> {
        ask!(self, ledger => ledger.settle(settlement).await)
    }

    async fn settle_all(&self, settlements: &[Settlement]) -> Vec<Result<Settled, LedgerError>> {
        ask!(self, ledger => ledger.settle_all(settlements).await)
    }

    async fn release(
        &self,
        number: RequestNumber,
        account: &AccountId,
        key: &KeyId,
    ) -> Result<(), LedgerError> {
        ask!(self, ledger => ledger.release(number, account, key).await)
    }

    async fn extend(
        &self,
        number: RequestNumber,
        account: &AccountId,
        ttl: Duration,
    ) -> Result<bool, LedgerError> {
        ask!(self, ledger => ledger.extend(number, account, ttl).await)
    }

    async fn adjust(&self, adjustment: &Adjustment) -> Result<Adjusted, LedgerError> {
        ask!(self, ledger => ledger.adjust(adjustment).await)
    }

    async fn probe(&self, account: &AccountId, key: &KeyId) -> Result<(), LedgerError> {
        ask!(self, ledger => ledger.probe(account, key).await)
    }

    async fn expire(&self) -> Result<usize, LedgerError> {
        ask!(self, ledger => ledger.expire().await)
    }

    async fn checkpoint(&self, running: &[Settlement]) -> Result<(), LedgerError> {
        ask!(self, ledger => ledger.checkpoint(running).await)
    }
}

impl LedgerAdmin for AnyLedger {
    async fn create_account(&self, id: &AccountId, name: &str) -> Result<AccountView, BookError> {
        books!(self, ledger => ledger.create_account(id, name).await)
    }

    async fn change_account(
        &self,
        id: &AccountId,
        name: Option<&str>,
        suspended: Option<bool>,
    ) -> Result<AccountView, BookError> {
        books!(self, ledger => ledger.change_account(id, name, suspended).await)
    }

    async fn account(&self, id: &AccountId) -> Result<AccountView, BookError> {
        books!(self, ledger => ledger.account(id).await)
    }

    async fn accounts(&self) -> Result<Vec<AccountView>, BookError> {
        books!(self, ledger => ledger.accounts().await)
    }

    async fn enter(&self, account: &AccountId, entry: &Entry) -> Result<AccountView, BookError> {
        books!(self, ledger => ledger.enter(account, entry).await)
    }

    async fn entry(&self, account: &AccountId, id: &str) -> Result<Option<Entry>, BookError> {
        books!(self, ledger => ledger.entry(account, id).await)
    }

    async fn create_key(
        &self,
        record: &KeyRecord,
        ceilings: Ceilings,
    ) -> Result<KeyView, BookError> {
        books!(self, ledger => ledger.create_key(record, ceilings).await)
    }

    async fn change_key(&self, id: &KeyId, change: &KeyChange) -> Result<KeyView, BookError> {
        books!(self, ledger => ledger.change_key(id, change).await)
    }

    async fn key(&self, id: &KeyId) -> Result<KeyView, BookError> {
        books!(self, ledger => ledger.key(id).await)
    }

    async fn keys(&self, account: &AccountId) -> Result<Vec<KeyView>, BookError> {
        books!(self, ledger => ledger.keys(account).await)
    }

    async fn create_group(
        &self,
        account: &AccountId,
        record: &GroupRecord,
        ceilings: Ceilings,
    ) -> Result<GroupView, BookError> {
        books!(self, ledger => ledger.create_group(account, record, ceilings).await)
    }

    async fn change_group(
        &self,
        account: &AccountId,
        id: &GroupId,
        change: &GroupChange,
    ) -> Result<GroupView, BookError> {
        books!(self, ledger => ledger.change_group(account, id, change).await)
    }

    async fn groups(&self, account: &AccountId) -> Result<Vec<GroupView>, BookError> {
        books!(self, ledger => ledger.groups(account).await)
    }

    async fn receipt(&self, number: RequestNumber) -> Result<Receipt, BookError> {
        books!(self, ledger => ledger.receipt(number).await)
    }

    async fn receipt_of(
        &self,
        account: &AccountId,
        number: RequestNumber,
    ) -> Result<Receipt, BookError> {
        books!(self, ledger => ledger.receipt_of(account, number).await)
    }

    async fn journal(
        &self,
        account: &AccountId,
        part: &JournalPart<'_>,
    ) -> Result<JournalPage, BookError> {
        books!(self, ledger => ledger.journal(account, part).await)
    }

    async fn books(&self, account: &AccountId) -> Result<AccountBooks, BookError> {
        books!(self, ledger => ledger.books(account).await)
    }

    async fn tariff_version(&self, fingerprint: &str) -> Result<TariffVersion, BookError> {
        books!(self, ledger => ledger.tariff_version(fingerprint).await)
    }

    async fn audit(&self) -> Result<Audit, BookError> {
        books!(self, ledger => ledger.audit().await)
    }
}

impl EventStore for AnyLedger {
    async fn set_levels(
        &self,
        account: &AccountId,
        of: &happening::Watched,
        levels: happening::Levels,
    ) -> Result<(), BookError> {
        books!(self, ledger => ledger.set_levels(account, of, levels).await)
    }

    async fn levels(
        &self,
        account: &AccountId,
    ) -> Result<Vec<(happening::Watched, happening::Levels)>, BookError> {
        books!(self, ledger => ledger.levels(account).await)
    }

    async fn gather(&self) -> Result<u64, BookError> {
        books!(self, ledger => ledger.gather().await)
    }

    async fn events(&self, after: u64, limit: usize) -> Result<Vec<happening::Event>, BookError> {
        books!(self, ledger => ledger.events(after, limit).await)
    }

    async fn emit_once(&self, event: &OnceEvent) -> Result<bool, BookError> {
        books!(self, ledger => ledger.emit_once(event).await)
    }
}

impl Documents for AnyLedger {
    async fn document(&self, name: &str) -> Result<Option<Document>, BookError> {
        books!(self, ledger => ledger.document(name).await)
    }

    async fn documents(&self, begins: &str) -> Result<Vec<Document>, BookError> {
        books!(self, ledger => ledger.documents(begins).await)
    }

    async fn compare_and_swap(
        &self,
        name: &str,
        version: u64,
        text: &str,
    ) -> Result<bool, BookError> {
        books!(self, ledger => ledger.compare_and_swap(name, version, text).await)
    }
}

impl LeaderLease for AnyLedger {
    async fn lead(&self, name: &str, owner: &str, ttl: Duration) -> Result<bool, BookError> {
        books!(self, ledger => ledger.lead(name, owner, ttl).await)
    }
}

impl Rollup for AnyLedger {
    async fn account_ids(&self) -> Result<Vec<AccountId>, BookError> {
        books!(self, ledger => Rollup::account_ids(ledger).await)
    }

    async fn journals(
        &self,
        parts: &[(&AccountId, JournalPart<'_>)],
    ) -> Result<Vec<Option<JournalPage>>, BookError> {
        books!(self, ledger => ledger.journals(parts).await)
    }

    async fn newest_ms(
        &self,
        parts: &[(&AccountId, JournalPart<'_>)],
    ) -> Result<Option<Vec<Option<u64>>>, BookError> {
        books!(self, ledger => ledger.newest_ms(parts).await)
    }

    async fn marks(&self) -> Result<Marks, BookError> {
        books!(self, ledger => ledger.marks().await)
    }

    async fn rolled(&self, parts: &[(Scope, Range<u64>)]) -> Result<Rolled, BookError> {
        books!(self, ledger => ledger.rolled(parts).await)
    }

    async fn oldest_sums_ms(&self, scope: &Scope) -> Result<Option<u64>, BookError> {
        books!(self, ledger => ledger.oldest_sums_ms(scope).await)
    }

    fn place_ms(&self, place: &str) -> u64 {
        books!(self, ledger => ledger.place_ms(place))
    }

    async fn sums_at(&self, ids: &[RowId]) -> Result<Vec<Option<Sums>>, BookError> {
        books!(self, ledger => ledger.sums_at(ids).await)
    }

    async fn standing_lines(
        &self,
        account: &AccountId,
        after: Option<&str>,
        before_ms: u64,
    ) -> Result<StandingLines, BookError> {
        books!(self, ledger => ledger.standing_lines(account, after, before_ms).await)
    }

    async fn entries(
        &self,
        account: &AccountId,
        end: &str,
    ) -> Result<Option<Vec<JournalLine>>, BookError> {
        books!(self, ledger => ledger.entries(account, end).await)
    }

    async fn change_sums(&self, change: &Change) -> Result<Option<u64>, BookError> {
        books!(self, ledger => ledger.change_sums(change).await)
    }

    async fn clear_sums(&self) -> Result<(), BookError> {
        books!(self, ledger => ledger.clear_sums().await)
    }
}

impl KeyStore for AnyLedger {
    async fn find_key(&self, digest: &KeyDigest) -> Result<Option<Arc<KeyRecord>>, BoxError> {
        books!(self, ledger => ledger.find_key(digest).await)
    }

    fn find_key_now(&self, digest: &KeyDigest) -> Option<Result<Option<Arc<KeyRecord>>, BoxError>> {
        books!(self, ledger => ledger.find_key_now(digest))
    }
}
