//! A ledger in memory, for tests, benchmarks and a first try. It is lost when the process ends.
//!
//! The state is shared code with the SQLite store: the two stores differ only in durability.

mod events;
mod journal;
mod rollup;

use std::{
    collections::VecDeque,
    fmt,
    sync::{Arc, Mutex, MutexGuard},
    time::Duration,
};

use self::journal::Journal;
pub use self::journal::RECEIPTS_MAX;
use super::{
    contract::{
        AccountBooks, AccountView, Adjusted, Adjustment, Audit, BookError, Booked, Entry,
        GroupChange, GroupRecord, GroupView, Hold, JournalLine, JournalPage, JournalPart,
        KeyChange, KeyView, Ledger, LedgerAdmin, LedgerError, Receipt, Reserved, Settled,
        Settlement, TariffVersion,
    },
    embedded::{EXPIRE_MAX, Journaled, Record, State, Torn, UnknownNumber, first_result, now_ms},
};
use crate::{
    BoxError,
    account::{AccountId, GroupId, KeyDigest, KeyId, KeyRecord, KeyStore},
    ceiling::Ceilings,
    happening::Event,
    number::RequestNumber,
};

/// A ledger without a file or a server. Clones share one book.
#[derive(Clone, Default)]
pub struct MemoryLedger {
    inner: Arc<Mutex<Inner>>,
}

#[derive(Default)]
struct Inner {
    state: State,
    journal: Journal,
    events: VecDeque<Event>,
}

impl MemoryLedger {
    /// Creates an empty ledger.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    fn charge(&self, settlement: &Settlement) -> Result<Settled, LedgerError> {
        let mut inner = self.for_call()?;
        let Inner {
            state,
            journal,
            events,
        } = &mut *inner;
        let now = now_ms();
        let (settled, record) = match state.settle(settlement, now) {
            Ok(booked) => booked,
            Err(UnknownNumber) => match journal.receipt(settlement.number) {
                Some(first) if first.booked != Booked::Stale => return Ok(first_result(first)),
                _ => state.settle_unknown(settlement, now),
            },
        };
        if let Some(Record::Settled {
            receipt,
            events: reported,
            ..
        }) = record
        {
            journal.call(receipt);
            events::add(events, reported);
        }
        Ok(settled)
    }

    fn for_call(&self) -> Result<MutexGuard<'_, Inner>, LedgerError> {
        self.inner
            .lock()
            .map_err(|_| LedgerError::Unavailable(Torn.into()))
    }

    fn for_books(&self) -> Result<MutexGuard<'_, Inner>, BookError> {
        self.inner
            .lock()
            .map_err(|_| BookError::Unavailable(Torn.into()))
    }
}

impl fmt::Debug for MemoryLedger {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("MemoryLedger").finish_non_exhaustive()
    }
}

impl Ledger for MemoryLedger {
    async fn reserve(&self, hold: &Hold) -> Result<Reserved, LedgerError> {
        self.for_call()?
            .state
            .book
            .reserve(hold, now_ms())
            .map_err(LedgerError::Refused)
    }

    async fn settle(&self, settlement: &Settlement) -> Result<Settled, LedgerError> {
        self.charge(settlement)
    }

    async fn settle_all(&self, settlements: &[Settlement]) -> Vec<Result<Settled, LedgerError>> {
        settlements.iter().map(|call| self.charge(call)).collect()
    }

    async fn release(
        &self,
        number: RequestNumber,
        account: &AccountId,
        _key: &KeyId,
    ) -> Result<(), LedgerError> {
        self.for_call()?
            .state
            .book
            .release(number, account, now_ms());
        Ok(())
    }

    async fn extend(
        &self,
        number: RequestNumber,
        account: &AccountId,
        ttl: Duration,
    ) -> Result<bool, LedgerError> {
        Ok(self
            .for_call()?
            .state
            .book
            .extend(number, account, ttl, now_ms()))
    }

    async fn adjust(&self, adjustment: &Adjustment) -> Result<Adjusted, LedgerError> {
        self.for_call()?
            .state
            .book
            .adjust(adjustment, now_ms())
            .map_err(LedgerError::Refused)
    }

    async fn probe(&self, account: &AccountId, key: &KeyId) -> Result<(), LedgerError> {
        self.for_call()?
            .state
            .book
            .probe(account, key, now_ms())
            .map_err(LedgerError::Refused)
    }

    async fn expire(&self) -> Result<usize, LedgerError> {
        Ok(self.for_call()?.state.book.expire(EXPIRE_MAX, now_ms()))
    }
}

impl LedgerAdmin for MemoryLedger {
    async fn create_account(&self, id: &AccountId, name: &str) -> Result<AccountView, BookError> {
        self.for_books()?.state.create_account(id, name).map(answer)
    }

    async fn change_account(
        &self,
        id: &AccountId,
        name: Option<&str>,
        suspended: Option<bool>,
    ) -> Result<AccountView, BookError> {
        self.for_books()?
            .state
            .change_account(id, name, suspended)
            .map(answer)
    }

    async fn account(&self, id: &AccountId) -> Result<AccountView, BookError> {
        self.for_books()?.state.account(id)
    }

    async fn accounts(&self) -> Result<Vec<AccountView>, BookError> {
        Ok(self.for_books()?.state.accounts())
    }

    async fn enter(&self, account: &AccountId, entry: &Entry) -> Result<AccountView, BookError> {
        let mut inner = self.for_books()?;
        let Inner {
            state,
            journal,
            events,
        } = &mut *inner;
        let known = state
            .book
            .account(account)
            .is_some_and(|account| account.has_entry(&entry.id));
        let (view, record) = state.enter(account, entry, now_ms())?;
        if let (
            false,
            Some(Record::Entry {
                at_ms,
                events: reported,
                ..
            }),
        ) = (known, record)
        {
            events::add(events, reported);
            let Entry { id, amount, reason } = entry.clone();
            let line = JournalLine::Entry {
                id,
                at_ms,
                account: account.clone(),
                amount_rub: amount,
                reason,
            };
            journal.add(account, line);
        }
        Ok(view)
    }

    async fn create_key(
        &self,
        record: &KeyRecord,
        ceilings: Ceilings,
    ) -> Result<KeyView, BookError> {
        self.for_books()?
            .state
            .create_key(record, ceilings, now_ms())
            .map(answer)
    }

    async fn change_key(&self, id: &KeyId, change: &KeyChange) -> Result<KeyView, BookError> {
        self.for_books()?
            .state
            .change_key(id, change, now_ms())
            .map(answer)
    }

    async fn key(&self, id: &KeyId) -> Result<KeyView, BookError> {
        self.for_books()?.state.key(id, now_ms())
    }

    async fn keys(&self, account: &AccountId) -> Result<Vec<KeyView>, BookError> {
        self.for_books()?.state.keys_of(account, now_ms())
    }

    async fn create_group(
        &self,
        account: &AccountId,
        record: &GroupRecord,
        ceilings: Ceilings,
    ) -> Result<GroupView, BookError> {
        let state = &mut self.for_books()?.state;
        let created = state.create_group(account, record, ceilings, now_ms());
        created.map(answer)
    }

    async fn change_group(
        &self,
        account: &AccountId,
        id: &GroupId,
        change: &GroupChange,
    ) -> Result<GroupView, BookError> {
        let state = &mut self.for_books()?.state;
        let changed = state.change_group(account, id, change, now_ms());
        changed.map(answer)
    }

    async fn groups(&self, account: &AccountId) -> Result<Vec<GroupView>, BookError> {
        self.for_books()?.state.groups_of(account, now_ms())
    }

    async fn receipt(&self, number: RequestNumber) -> Result<Receipt, BookError> {
        self.for_books()?
            .journal
            .receipt(number)
            .cloned()
            .ok_or(BookError::NotFound)
    }

    async fn journal(
        &self,
        account: &AccountId,
        part: &JournalPart<'_>,
    ) -> Result<JournalPage, BookError> {
        let inner = self.for_books()?;
        inner.state.account(account)?;
        inner.journal.page(account, part)
    }

    async fn books(&self, account: &AccountId) -> Result<AccountBooks, BookError> {
        self.for_books()?.books(account)
    }

    async fn tariff_version(&self, fingerprint: &str) -> Result<TariffVersion, BookError> {
        Ok(answer(
            self.for_books()?
                .state
                .tariff_version(fingerprint, now_ms()),
        ))
    }

    async fn audit(&self) -> Result<Audit, BookError> {
        let inner = self.for_books()?;
        let Inner { state, journal, .. } = &*inner;
        let mut audit = Audit::default();
        for (id, account) in state.book.accounts() {
            let mut found = account.audit(id, !journal.has_forgotten);
            for line in journal.lines.get(id).into_iter().flatten() {
                found.line(line.1);
            }
            audit.add(account.keys().len(), account.holds_open(), found.finish());
        }
        Ok(audit)
    }
}

impl KeyStore for MemoryLedger {
    async fn find_key(&self, digest: &KeyDigest) -> Result<Option<Arc<KeyRecord>>, BoxError> {
        let inner = self.inner.lock().map_err(|_| Torn)?;
        Ok(inner.state.find_key(digest))
    }

    fn find_key_now(&self, digest: &KeyDigest) -> Option<Result<Option<Arc<KeyRecord>>, BoxError>> {
        let inner = self.inner.lock().map_err(|_| BoxError::from(Torn));
        Some(inner.map(|inner| inner.state.find_key(digest)))
    }
}

fn answer<T>((answer, _): Journaled<T>) -> T {
    answer
}

impl Inner {
    fn books(&mut self, account: &AccountId) -> Result<AccountBooks, BookError> {
        let books = self.state.books(account, now_ms())?;
        Ok(AccountBooks {
            // The position is the number of the journal's last line, which is more exact than a time.
            journal_end: self.journal.last.to_string(),
            journal_complete: !self.journal.has_forgotten,
            ..books
        })
    }
}

#[cfg(test)]
mod tests;
