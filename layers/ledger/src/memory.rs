//! A ledger in memory, for tests, benchmarks and first experiments. It is lost when the process ends.
//!
//! This store uses the same code for its state as the SQLite store. The two stores differ only in durability.

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
    embedded::{
        EXPIRE_MAX, Journaled, Record, State, Torn, UnknownNumber, admin, first_result, now_ms,
    },
};
use crate::{
    BoxError,
    account::{AccountId, GroupId, KeyDigest, KeyId, KeyRecord, KeyStore},
    book::{Book, Millis},
    ceiling::Ceilings,
    happening::Event,
    number::RequestNumber,
};

/// A ledger that needs neither a file nor a server. Clones share one book.
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
        let mut inner = self.lock()?;
        let Inner { state, journal, .. } = &mut *inner;
        let now = now_ms();
        let (settled, record) = match state.settle(settlement, now) {
            Ok(booked) => booked,
            Err(UnknownNumber) => match journal.receipt(settlement.number) {
                Some(first) if first.booked != Booked::Stale => return Ok(first_result(first)),
                _ => state.settle_unknown(settlement, now),
            },
        };
        inner.store(record);
        Ok(settled)
    }

    fn lock(&self) -> Result<MutexGuard<'_, Inner>, BoxError> {
        self.inner.lock().map_err(|_| Torn.into())
    }

    fn book<T>(&self, command: impl FnOnce(&mut Book, Millis) -> T) -> Result<T, LedgerError> {
        Ok(command(&mut self.lock()?.state.book, now_ms()))
    }

    fn look<T>(&self, look: impl FnOnce(&State) -> T) -> Result<T, BookError> {
        Ok(look(&self.lock()?.state))
    }

    async fn change<T>(
        &self,
        change: impl FnOnce(&mut State, Millis) -> Result<Journaled<T>, BookError>,
    ) -> Result<T, BookError> {
        let mut inner = self.lock()?;
        let (answer, record) = change(&mut inner.state, now_ms())?;
        inner.store(record);
        Ok(answer)
    }
}

impl Inner {
    /// Adds the journal lines and the events of a change.
    fn store(&mut self, record: Option<Record>) {
        let events = match record {
            Some(Record::Settled(settled)) => {
                self.journal.call(settled.receipt);
                settled.events
            }
            Some(Record::Entry {
                account,
                entry,
                at_ms,
                events,
                ..
            }) => {
                let line = JournalLine::Entry {
                    id: entry.id,
                    at_ms,
                    account: account.clone(),
                    amount_rub: entry.amount,
                    reason: entry.reason,
                };
                self.journal.add(&account, line);
                events
            }
            Some(Record::EmittedOnce { event, .. }) => vec![event],
            _ => Vec::new(),
        };
        events::add(&mut self.events, events);
    }
}

impl fmt::Debug for MemoryLedger {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("MemoryLedger").finish_non_exhaustive()
    }
}

impl Ledger for MemoryLedger {
    async fn reserve(&self, hold: &Hold) -> Result<Reserved, LedgerError> {
        (self.book(|book, now| book.reserve(hold, now))?).map_err(LedgerError::Refused)
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
        self.book(|book, now| book.release(number, account, now))
    }

    async fn extend(
        &self,
        number: RequestNumber,
        account: &AccountId,
        ttl: Duration,
    ) -> Result<bool, LedgerError> {
        self.book(|book, now| book.extend(number, account, ttl, now))
    }

    async fn adjust(&self, adjustment: &Adjustment) -> Result<Adjusted, LedgerError> {
        (self.book(|book, now| book.adjust(adjustment, now))?).map_err(LedgerError::Refused)
    }

    async fn probe(&self, account: &AccountId, key: &KeyId) -> Result<(), LedgerError> {
        (self.book(|book, now| book.probe(account, key, now))?).map_err(LedgerError::Refused)
    }

    async fn expire(&self) -> Result<usize, LedgerError> {
        self.book(|book, now| book.expire(EXPIRE_MAX, now))
    }
}

impl LedgerAdmin for MemoryLedger {
    admin::ledger_admin!();

    async fn receipt(&self, number: RequestNumber) -> Result<Receipt, BookError> {
        let inner = self.lock()?;
        let receipt = inner.journal.receipt(number);
        receipt.cloned().ok_or(BookError::NotFound)
    }

    async fn journal(
        &self,
        account: &AccountId,
        part: &JournalPart<'_>,
    ) -> Result<JournalPage, BookError> {
        let inner = self.lock()?;
        inner.state.account(account)?;
        inner.journal.page(account, part)
    }

    async fn books(&self, account: &AccountId) -> Result<AccountBooks, BookError> {
        let mut inner = self.lock()?;
        let books = inner.state.books(account, now_ms())?;
        Ok(AccountBooks {
            // The position is the number of the journal's last line, which is more precise than its time.
            journal_end: inner.journal.last.to_string(),
            journal_complete: !inner.journal.has_forgotten,
            ..books
        })
    }

    async fn audit(&self) -> Result<Audit, BookError> {
        let inner = self.lock()?;
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
        Ok(self.lock()?.state.find_key(digest))
    }

    fn find_key_now(&self, digest: &KeyDigest) -> Option<Result<Option<Arc<KeyRecord>>, BoxError>> {
        Some(self.lock().map(|inner| inner.state.find_key(digest)))
    }
}

#[cfg(test)]
mod tests;
