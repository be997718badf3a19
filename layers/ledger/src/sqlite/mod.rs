//! A ledger in one SQLite file: the embedded default, for one gateway on one machine.
//!
//! The book is in memory. RESERVE, ADJUST, RELEASE, EXTEND and EXPIRE change memory alone: if the process dies, its
//! holds and its calls end with it. Changes of holds (ADJUST) need not be durable either: after a restart there are no
//! holds, and a call that was running is charged from free money, at the cost in its last checkpoint. That cost fits
//! into the call's hold at the time of the checkpoint, and the sum of all holds fits into the balance.
//!
//! Charges, payments, keys and tariff versions are acknowledged after they are committed (write-ahead log, `synchronous
//! = FULL`). Changes that arrive together share a commit. No caller waits for a charge, so its commit waits up to 5 ms
//! for other changes. In the book the charge counts at once, so it also counts for the next call.
//!
//! SQLite flushes with `fsync`, unless it is built with `LIBSQLITE3_FLAGS=-DHAVE_FDATASYNC=1`, as it is for the
//! gateway. A commit then does not wait for the inode's timestamp, which does not affect the contents of the file.
//!
//! When a file is opened, its books are checked (I3, I4); a file that does not balance is not served. A lock on
//! `<path>.lock` keeps a second gateway away from the file, but not a backup or a console. If another program keeps the
//! file locked for more than ten seconds, [`LedgerError::Unavailable`] is returned to each reserve, and to each caller
//! that waits for a commit, until the lock is released. The queue is written then.
//!
//! If a commit fails for another reason (disk full, file system read-only), callers that wait for it get
//! [`LedgerError::Unavailable`]. So does every later reserve, settlement and operator's request, until the gateway is
//! restarted: the book in memory is ahead of the file, so the gateway must serve no more calls. Acknowledged changes
//! are in the file. At the next start, calls that were running are charged by their last
//! [checkpoint](Ledger::checkpoint).

mod audit;
mod batch;
mod copy;
mod events;
mod file;
mod journal;
mod rollup;
mod rows;
mod writer;

use std::{
    convert::Infallible,
    fmt,
    path::{Path, PathBuf},
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use rusqlite::Connection;
use tokio::sync::Semaphore;

use self::{
    audit::Occasion,
    journal::JournalRange,
    writer::{Haste, WrittenBook},
};
pub use self::{copy::SqliteCopy, file::OpenError};
use super::{
    contract::{
        AccountBooks, AccountView, Adjusted, Adjustment, Audit, BookError, Booked, Entry,
        GroupChange, GroupRecord, GroupView, Hold, JournalPage, JournalPart, KeyChange, KeyView,
        Ledger, LedgerAdmin, LedgerError, Receipt, Reserved, Settled, Settlement, TariffVersion,
    },
    embedded::{EXPIRE_MAX, Journaled, Record, State, UnknownNumber, first_result, now_ms},
};
use crate::{
    BoxError,
    account::{AccountId, GroupId, KeyDigest, KeyId, KeyRecord, KeyStore},
    ceiling::Ceilings,
    durable::group_commit::Committed,
    number::RequestNumber,
};

/// A ledger in one file. Clones share the file, which is closed by [`SqliteLedger::close`] or with the last clone.
///
/// Receipts are read on tokio's blocking threads, so a tokio runtime is needed.
#[derive(Clone)]
pub struct SqliteLedger {
    inner: Arc<Inner>,
}

struct Inner {
    path: PathBuf,
    reader: Arc<Mutex<Option<Connection>>>,
    /// Permits one read at a time. Further reads wait for the permit, so that they do not occupy blocking threads,
    /// which tokio also uses for name look-ups.
    reading: Arc<Semaphore>,
    /// The book and its writer. Dropping it does not wait for the writer: changes that no caller waited for may be
    /// lost.
    book: WrittenBook,
}

impl SqliteLedger {
    /// Opens a ledger, or creates an empty one. Blocks while the books are read and checked.
    ///
    /// # Errors
    /// [`OpenError`] if the file cannot be opened, is not a ledger, or does not balance.
    pub fn open(path: &Path) -> Result<Self, OpenError> {
        let opened = file::open(path)?;
        let book =
            WrittenBook::start(opened.state, opened.writer, opened.lock).map_err(|source| {
                OpenError::Io {
                    path: opened.path.clone(),
                    source,
                }
            })?;
        Ok(Self {
            inner: Arc::new(Inner {
                path: opened.path,
                reader: Arc::new(Mutex::new(Some(opened.reader))),
                reading: Arc::new(Semaphore::new(1)),
                book,
            }),
        })
    }

    /// Writes the queue and closes the file. Later calls get [`LedgerError::Unavailable`]. If called twice, only the
    /// first call waits.
    pub async fn close(&self) {
        let reader = Arc::clone(&self.inner.reader);
        // The writer is closed last, because the last connection moves the write-ahead log into the file, and a reader
        // cannot.
        let no_reader = move || drop(reader.lock().unwrap_or_else(PoisonError::into_inner).take());
        self.inner.book.close(no_reader).await;
    }

    /// Returns whether calls may be served on this ledger.
    ///
    /// # Errors
    /// An error if the ledger is closed, if a write has failed permanently, or if the file cannot be written at the
    /// moment.
    pub fn check(&self) -> Result<(), BoxError> {
        self.inner.book.check()
    }

    fn queue<T>(
        &self,
        change: impl FnOnce(&mut State, u64) -> Result<Journaled<T>, BookError>,
    ) -> Result<(T, Committed), BookError> {
        self.inner
            .book
            .queue(Haste::Now, change)
            .map_err(BookError::Unavailable)?
    }

    async fn durable<T>(&self, queued: Result<(T, Committed), BookError>) -> Result<T, BookError> {
        let (answer, committed) = queued?;
        self.inner
            .book
            .committed(committed)
            .await
            .map_err(BookError::Unavailable)?;
        Ok(answer)
    }

    fn look<T>(&self, look: impl FnOnce(&State) -> T) -> Result<T, BookError> {
        self.inner.book.read(look).map_err(BookError::Unavailable)
    }

    async fn read<T: Send + 'static>(
        &self,
        query: impl FnOnce(&Connection) -> rusqlite::Result<T> + Send + 'static,
    ) -> Result<T, BoxError> {
        let reader = Arc::clone(&self.inner.reader);
        // The permit moves into the blocking task, which continues even if its caller has gone.
        let permit = Arc::clone(&self.inner.reading).acquire_owned().await?;
        let read = tokio::task::spawn_blocking(move || -> Result<T, BoxError> {
            let _permit = permit;
            let reader = reader.lock().unwrap_or_else(PoisonError::into_inner);
            let conn = reader.as_ref().ok_or_else(WrittenBook::closed)?;
            Ok(query(conn)?)
        });
        read.await?
    }

    /// Charges the calls that have a hold in the book, together and in one commit.
    async fn charge_known(
        &self,
        settlements: &[Settlement],
    ) -> Result<Vec<Option<Settled>>, BoxError> {
        self.commit(Haste::Gather, |state, now| {
            let mut records = Vec::with_capacity(settlements.len());
            let charged = settlements.iter().map(|call| {
                let (settled, record) = state.settle(call, now).ok()?;
                records.extend(record);
                Some(settled)
            });
            let charged: Vec<_> = charged.collect();
            (charged, records)
        })
        .await
    }

    /// Makes a change that the book cannot refuse, and waits for its commit.
    async fn commit<T, R: IntoIterator<Item = Record>>(
        &self,
        haste: Haste,
        change: impl FnOnce(&mut State, u64) -> (T, R),
    ) -> Result<T, BoxError> {
        let book = &self.inner.book;
        let Ok((answer, committed)) =
            book.queue(haste, |state, now| Ok::<_, Infallible>(change(state, now)))?;
        book.committed(committed).await?;
        Ok(answer)
    }

    async fn find_receipt(&self, number: RequestNumber) -> Result<Option<Receipt>, BoxError> {
        self.read(move |conn| rows::receipt(conn, number)).await
    }
}

impl fmt::Debug for SqliteLedger {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SqliteLedger")
            .field("path", &self.inner.path)
            .finish_non_exhaustive()
    }
}

impl Ledger for SqliteLedger {
    async fn reserve(&self, hold: &Hold) -> Result<Reserved, LedgerError> {
        let reserved = self
            .inner
            .book
            .begin(|state, now| state.book.reserve(hold, now));
        reserved
            .map_err(LedgerError::Unavailable)?
            .map_err(LedgerError::Refused)
    }

    async fn settle(&self, settlement: &Settlement) -> Result<Settled, LedgerError> {
        let book = &self.inner.book;
        let known = book
            .queue(Haste::Gather, |state, now| state.settle(settlement, now))
            .map_err(LedgerError::Unavailable)?;
        let (settled, committed) = match known {
            Ok(queued) => queued,
            // The tombstone may have been lost with an earlier process, but the receipt is in the file.
            Err(UnknownNumber) => {
                let first = self
                    .find_receipt(settlement.number)
                    .await
                    .map_err(LedgerError::Unavailable)?;
                if let Some(first) = first.filter(|first| first.booked != Booked::Stale) {
                    return Ok(first_result(&first));
                }
                let Ok(queued) = book
                    .queue(Haste::Gather, |state, now| {
                        Ok::<_, Infallible>(state.settle_unknown(settlement, now))
                    })
                    .map_err(LedgerError::Unavailable)?;
                queued
            }
        };
        book.committed(committed)
            .await
            .map_err(LedgerError::Unavailable)?;
        Ok(settled)
    }

    async fn settle_all(&self, settlements: &[Settlement]) -> Vec<Result<Settled, LedgerError>> {
        // If this fails, each call is settled individually, and gets its own error.
        let charged = self.charge_known(settlements).await.unwrap_or_default();
        let mut charged = charged.into_iter();
        let mut answers = Vec::with_capacity(settlements.len());
        for settlement in settlements {
            answers.push(match charged.next().flatten() {
                Some(settled) => Ok(settled),
                None => self.settle(settlement).await,
            });
        }
        answers
    }

    async fn release(
        &self,
        number: RequestNumber,
        account: &AccountId,
        _key: &KeyId,
    ) -> Result<(), LedgerError> {
        let book = &self.inner.book;
        let noted = book
            .wind_down(|state, now| state.release(number, account, now))
            .map_err(LedgerError::Unavailable)?;
        if !noted {
            return Ok(());
        }
        // The checkpoint must be deleted before the release is acknowledged. Otherwise the next start would charge the
        // call.
        self.commit(Haste::Gather, |state, _| state.forget(number))
            .await
            .map_err(LedgerError::Unavailable)
    }

    async fn checkpoint(&self, running: &[Settlement]) -> Result<(), LedgerError> {
        self.commit(Haste::Gather, |state, _| state.note(running))
            .await
            .map_err(LedgerError::Unavailable)
    }

    async fn extend(
        &self,
        number: RequestNumber,
        account: &AccountId,
        ttl: Duration,
    ) -> Result<bool, LedgerError> {
        let extended = self
            .inner
            .book
            .wind_down(|state, now| state.book.extend(number, account, ttl, now));
        extended.map_err(LedgerError::Unavailable)
    }

    async fn adjust(&self, adjustment: &Adjustment) -> Result<Adjusted, LedgerError> {
        let adjusted = self
            .inner
            .book
            .begin(|state, now| state.book.adjust(adjustment, now));
        adjusted
            .map_err(LedgerError::Unavailable)?
            .map_err(LedgerError::Refused)
    }

    async fn probe(&self, account: &AccountId, key: &KeyId) -> Result<(), LedgerError> {
        let probed = self
            .inner
            .book
            .read(|state| state.book.probe(account, key, now_ms()));
        probed
            .map_err(LedgerError::Unavailable)?
            .map_err(LedgerError::Refused)
    }

    async fn expire(&self) -> Result<usize, LedgerError> {
        let expired = self
            .inner
            .book
            .wind_down(|state, now| state.book.expire(EXPIRE_MAX, now));
        expired.map_err(LedgerError::Unavailable)
    }
}

impl LedgerAdmin for SqliteLedger {
    async fn create_account(&self, id: &AccountId, name: &str) -> Result<AccountView, BookError> {
        self.durable(self.queue(|state, _| state.create_account(id, name)))
            .await
    }

    async fn change_account(
        &self,
        id: &AccountId,
        name: Option<&str>,
        suspended: Option<bool>,
    ) -> Result<AccountView, BookError> {
        self.durable(self.queue(|state, _| state.change_account(id, name, suspended)))
            .await
    }

    async fn account(&self, id: &AccountId) -> Result<AccountView, BookError> {
        self.look(|state| state.account(id))?
    }

    async fn accounts(&self) -> Result<Vec<AccountView>, BookError> {
        self.look(State::accounts)
    }

    async fn enter(&self, account: &AccountId, entry: &Entry) -> Result<AccountView, BookError> {
        self.durable(self.queue(|state, now| state.enter(account, entry, now)))
            .await
    }

    async fn entry(&self, account: &AccountId, id: &str) -> Result<Option<Entry>, BookError> {
        let (account, id) = (account.clone(), id.to_owned());
        let read = self
            .read(move |conn| journal::entry(conn, &account, id))
            .await;
        read.map_err(BookError::Unavailable)
    }

    async fn create_key(
        &self,
        record: &KeyRecord,
        ceilings: Ceilings,
    ) -> Result<KeyView, BookError> {
        self.durable(self.queue(|state, now| state.create_key(record, ceilings, now)))
            .await
    }

    async fn change_key(&self, id: &KeyId, change: &KeyChange) -> Result<KeyView, BookError> {
        self.durable(self.queue(|state, now| state.change_key(id, change, now)))
            .await
    }

    async fn key(&self, id: &KeyId) -> Result<KeyView, BookError> {
        self.look(|state| state.key(id, now_ms()))?
    }

    async fn keys(&self, account: &AccountId) -> Result<Vec<KeyView>, BookError> {
        self.look(|state| state.keys_of(account, now_ms()))?
    }

    async fn create_group(
        &self,
        account: &AccountId,
        record: &GroupRecord,
        ceilings: Ceilings,
    ) -> Result<GroupView, BookError> {
        let queued = self.queue(|state, now| state.create_group(account, record, ceilings, now));
        self.durable(queued).await
    }

    async fn change_group(
        &self,
        account: &AccountId,
        id: &GroupId,
        change: &GroupChange,
    ) -> Result<GroupView, BookError> {
        let queued = self.queue(|state, now| state.change_group(account, id, change, now));
        self.durable(queued).await
    }

    async fn groups(&self, account: &AccountId) -> Result<Vec<GroupView>, BookError> {
        self.look(|state| state.groups_of(account, now_ms()))?
    }

    async fn receipt(&self, number: RequestNumber) -> Result<Receipt, BookError> {
        self.find_receipt(number)
            .await
            .map_err(BookError::Unavailable)?
            .ok_or(BookError::NotFound)
    }

    async fn journal(
        &self,
        account: &AccountId,
        part: &JournalPart<'_>,
    ) -> Result<JournalPage, BookError> {
        self.look(|state| state.account(account))??;
        let stretch = JournalRange::of(account, part)?;
        self.read(move |conn| stretch.read(conn))
            .await
            .map_err(BookError::Unavailable)
    }

    /// Returns when the file has every change that is in these books, so that a journal read afterwards includes it.
    async fn books(&self, account: &AccountId) -> Result<AccountBooks, BookError> {
        self.durable(self.queue(|state, now| Ok((state.books(account, now)?, None))))
            .await
    }

    async fn tariff_version(&self, fingerprint: &str) -> Result<TariffVersion, BookError> {
        self.durable(self.queue(|state, now| Ok(state.tariff_version(fingerprint, now))))
            .await
    }

    /// Audits the book in memory, then the file.
    async fn audit(&self) -> Result<Audit, BookError> {
        let (mut audit, open) = self.look(|state| (state.book.audit(), open_holds(state)))?;
        let numbers = open.iter().map(|(_, number)| *number).collect::<Vec<_>>();
        let (breaches, settled) = self
            .read(move |conn| {
                let moment = conn.unchecked_transaction()?;
                Ok((
                    audit::breaches(&moment, Occasion::Audit)?,
                    journal::settled_among(&moment, &numbers)?,
                ))
            })
            .await
            .map_err(BookError::Unavailable)?;
        audit.breaches.extend(breaches);
        // A hold ends before its receipt is in the file. So if a hold is open and its call has a receipt, that is a
        // breach, and not a call that was settled between the two reads.
        let both = self.look(|state| {
            open.into_iter()
                .filter(|(_, number)| settled.contains(number))
                .find(|(id, number)| {
                    state
                        .book
                        .account(id)
                        .is_some_and(|account| account.is_open(*number))
                })
        })?;
        if let Some((id, number)) = both {
            audit.breaches.push(format!(
                "I5 account {id}: hold {number} is both open and ended"
            ));
        }
        Ok(audit)
    }
}

fn open_holds(state: &State) -> Vec<(AccountId, RequestNumber)> {
    state
        .book
        .accounts()
        .flat_map(|(id, account)| {
            account
                .holds()
                .map(move |(number, ..)| (id.clone(), number))
        })
        .collect()
}

impl KeyStore for SqliteLedger {
    async fn find_key(&self, digest: &KeyDigest) -> Result<Option<Arc<KeyRecord>>, BoxError> {
        self.inner.book.read(|state| state.find_key(digest))
    }

    fn find_key_now(&self, digest: &KeyDigest) -> Option<Result<Option<Arc<KeyRecord>>, BoxError>> {
        Some(self.inner.book.read(|state| state.find_key(digest)))
    }
}

#[cfg(test)]
mod tests;
