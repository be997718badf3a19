//! A ledger in one SQLite file: the default ledger of a single gateway on one machine.
//!
//! The book is in memory. RESERVE, ADJUST, RELEASE, EXTEND and EXPIRE change only memory: if the process dies, its
//! holds and its calls end with it. After a restart there are no holds. A call that was in flight is charged from free
//! money, at the cost in its last checkpoint. Free money suffices, because that cost fitted into the call's hold, and
//! the sum of all holds fitted into the balance.
//!
//! Charges, payments, keys and tariff versions are acknowledged only after they are committed (write-ahead log,
//! `synchronous = FULL`). Changes that arrive together share a commit. No caller waits for a charge, so the commit of a
//! charge waits up to 5 ms for other changes. In memory a charge takes effect immediately, so the next call cannot
//! spend the same money.
//!
//! SQLite syncs the file with `fsync`, unless it is built with `LIBSQLITE3_FLAGS=-DHAVE_FDATASYNC=1`. The gateway's
//! SQLite is built with this flag, so that a commit does not wait until the file's modification time is written, which
//! is not needed to read the file.
//!
//! When a file is opened, its books are checked (invariants I3 and I4), and a file that breaks them is not served. A
//! lock on `<path>.lock` keeps a second gateway away from the file, but allows backups and SQLite consoles. If another
//! program keeps the file locked for more than ten seconds, every new hold and every caller that waits for a commit
//! gets [`LedgerError::Unavailable`]. When the file is unlocked, the queue is written.
//!
//! If a commit fails for another reason, for example because the disk is full, the book in memory is ahead of the file,
//! so the gateway must serve no more calls. Callers that wait for the commit get [`LedgerError::Unavailable`]. So does
//! every later hold, settlement and operator's request, until the gateway is restarted. Acknowledged changes are in the
//! file. At the next start, calls that were in flight are charged according to their last
//! [checkpoint](Ledger::checkpoint).

mod audit;
mod batch;
mod copy;
mod events;
mod file;
mod journal;
mod rollup;
mod rows;
pub(crate) mod side_file;
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

use self::{audit::CheckPoint, journal::JournalRange, writer::WrittenBook};
pub use self::{copy::SqliteCopy, file::OpenError};
use super::{
    contract::{
        AccountBooks, AccountView, Adjusted, Adjustment, Audit, BookError, Booked, Entry,
        GroupChange, GroupRecord, GroupView, Hold, JournalPage, JournalPart, KeyChange, KeyView,
        Ledger, LedgerAdmin, LedgerError, Receipt, Reserved, Settled, Settlement, TariffVersion,
    },
    embedded::{EXPIRE_MAX, Journaled, Record, State, UnknownNumber, admin, first_result, now_ms},
};
use crate::{
    BoxError,
    account::{AccountId, GroupId, KeyDigest, KeyId, KeyRecord, KeyStore},
    ceiling::Ceilings,
    durable::group_commit::Urgency,
    number::RequestNumber,
};

/// A ledger in one SQLite file. Clones share the file. It is closed by [`SqliteLedger::close`], or when the last clone
/// is dropped.
///
/// A tokio runtime is needed, because receipts are read on its blocking threads.
#[derive(Clone)]
pub struct SqliteLedger {
    inner: Arc<Inner>,
}

struct Inner {
    path: PathBuf,
    reader: Arc<Mutex<Option<Connection>>>,
    /// Permits one read at a time. Further reads wait for the permit here instead of on a blocking thread, because
    /// tokio also needs these threads for DNS look-ups.
    reading: Arc<Semaphore>,
    /// The book and the writer of its changes. Dropping it does not wait for the writer, so changes that no caller
    /// waits for may be lost.
    book: WrittenBook,
}

impl SqliteLedger {
    /// Opens a ledger file, or creates an empty one. Blocks while it reads and checks the books.
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

    /// Writes all queued changes and closes the file. Later calls get [`LedgerError::Unavailable`]. Only the first call
    /// of this method waits.
    pub async fn close(&self) {
        let reader = Arc::clone(&self.inner.reader);
        // The writer is closed after the reader. The last connection to close moves the write-ahead log into the file,
        // and the reader's connection cannot do this.
        let no_reader = move || drop(reader.lock().unwrap_or_else(PoisonError::into_inner).take());
        self.inner.book.close(no_reader).await;
    }

    /// Returns whether calls may be served on this ledger.
    ///
    /// # Errors
    /// An error if the ledger is closed, if a write has failed permanently, or if the file cannot be written now.
    pub fn check(&self) -> Result<(), BoxError> {
        self.inner.book.check()
    }

    async fn change<T>(
        &self,
        change: impl FnOnce(&mut State, u64) -> Result<Journaled<T>, BookError>,
    ) -> Result<T, BookError> {
        let book = &self.inner.book;
        let (answer, committed) = book.queue(Urgency::Immediate, change)??;
        book.committed(committed).await?;
        Ok(answer)
    }

    fn look<T>(&self, look: impl FnOnce(&State) -> T) -> Result<T, BookError> {
        Ok(self.inner.book.read(look)?)
    }

    async fn read<T: Send + 'static>(
        &self,
        query: impl FnOnce(&Connection) -> rusqlite::Result<T> + Send + 'static,
    ) -> Result<T, BoxError> {
        let reader = Arc::clone(&self.inner.reader);
        // The permit moves into the blocking task, which runs on even if the caller is dropped.
        let permit = Arc::clone(&self.inner.reading).acquire_owned().await?;
        let read = tokio::task::spawn_blocking(move || -> Result<T, BoxError> {
            let _permit = permit;
            let reader = reader.lock().unwrap_or_else(PoisonError::into_inner);
            let conn = reader.as_ref().ok_or_else(WrittenBook::closed)?;
            Ok(query(conn)?)
        });
        read.await?
    }

    /// Charges the calls that have a hold in the book, in one change and one commit.
    async fn charge_known(
        &self,
        settlements: &[Settlement],
    ) -> Result<Vec<Option<Settled>>, BoxError> {
        self.commit(Urgency::Batch, |state, now| {
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

    /// Makes a change that cannot be refused, and waits until it is committed.
    async fn commit<T, R: IntoIterator<Item = Record>>(
        &self,
        urgency: Urgency,
        change: impl FnOnce(&mut State, u64) -> (T, R),
    ) -> Result<T, BoxError> {
        let book = &self.inner.book;
        let Ok((answer, committed)) = book.queue(urgency, |state, now| {
            Ok::<_, Infallible>(change(state, now))
        })?;
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
        let book = &self.inner.book;
        let reserved = book.begin(|state, now| state.book.reserve(hold, now))?;
        reserved.map_err(LedgerError::Refused)
    }

    async fn settle(&self, settlement: &Settlement) -> Result<Settled, LedgerError> {
        let book = &self.inner.book;
        let known = book.queue(Urgency::Batch, |state, now| state.settle(settlement, now))?;
        let (settled, committed) = match known {
            Ok(queued) => queued,
            // An earlier process may have charged the call. Its tombstone was lost with that process, but its receipt
            // is in the file.
            Err(UnknownNumber) => {
                let first = self.find_receipt(settlement.number).await?;
                if let Some(first) = first.filter(|first| first.booked != Booked::Stale) {
                    return Ok(first_result(&first));
                }
                let Ok(queued) = book.queue(Urgency::Batch, |state, now| {
                    Ok::<_, Infallible>(state.settle_unknown(settlement, now))
                })?;
                queued
            }
        };
        book.committed(committed).await?;
        Ok(settled)
    }

    async fn settle_all(&self, settlements: &[Settlement]) -> Vec<Result<Settled, LedgerError>> {
        // If the calls cannot be charged together, each of them is settled alone and gets its own error.
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
        if book.wind_down(|state, now| state.release(number, account, now))? {
            // The checkpoint must be deleted before the release is acknowledged. Otherwise the next start would charge
            // the call.
            self.commit(Urgency::Batch, |state, _| state.forget(number))
                .await?;
        }
        Ok(())
    }

    async fn checkpoint(&self, running: &[Settlement]) -> Result<(), LedgerError> {
        let noted = self.commit(Urgency::Batch, |state, _| state.note(running));
        Ok(noted.await?)
    }

    async fn extend(
        &self,
        number: RequestNumber,
        account: &AccountId,
        ttl: Duration,
    ) -> Result<bool, LedgerError> {
        let book = &self.inner.book;
        Ok(book.wind_down(|state, now| state.book.extend(number, account, ttl, now))?)
    }

    async fn adjust(&self, adjustment: &Adjustment) -> Result<Adjusted, LedgerError> {
        let book = &self.inner.book;
        let adjusted = book.begin(|state, now| state.book.adjust(adjustment, now))?;
        adjusted.map_err(LedgerError::Refused)
    }

    async fn probe(&self, account: &AccountId, key: &KeyId) -> Result<(), LedgerError> {
        let book = &self.inner.book;
        let probed = book.read(|state| state.book.probe(account, key, now_ms()))?;
        probed.map_err(LedgerError::Refused)
    }

    async fn expire(&self) -> Result<usize, LedgerError> {
        let book = &self.inner.book;
        Ok(book.wind_down(|state, now| state.book.expire(EXPIRE_MAX, now))?)
    }
}

impl LedgerAdmin for SqliteLedger {
    admin::ledger_admin!();

    async fn entry(&self, account: &AccountId, id: &str) -> Result<Option<Entry>, BookError> {
        let (account, id) = (account.clone(), id.to_owned());
        let read = self.read(move |conn| journal::entry(conn, &account, id));
        Ok(read.await?)
    }

    async fn receipt(&self, number: RequestNumber) -> Result<Receipt, BookError> {
        let found = self.find_receipt(number).await?;
        found.ok_or(BookError::NotFound)
    }

    async fn journal(
        &self,
        account: &AccountId,
        part: &JournalPart<'_>,
    ) -> Result<JournalPage, BookError> {
        self.look(|state| state.account(account))??;
        let stretch = JournalRange::for_part(account, part)?;
        Ok(self.read(move |conn| stretch.read(conn)).await?)
    }

    /// Waits until the file contains every change in these books, so that a journal that is read afterwards includes
    /// these changes.
    async fn books(&self, account: &AccountId) -> Result<AccountBooks, BookError> {
        self.change(|state, now| Ok((state.books(account, now)?, None)))
            .await
    }

    /// Audits the book in memory, and then the file.
    async fn audit(&self) -> Result<Audit, BookError> {
        let (mut audit, open) = self.look(|state| (state.book.audit(), open_holds(state)))?;
        let numbers = open.iter().map(|(_, number)| *number).collect::<Vec<_>>();
        let (breaches, settled) = self
            .read(move |conn| {
                let moment = conn.unchecked_transaction()?;
                Ok((
                    audit::breaches(&moment, CheckPoint::Audit)?,
                    journal::settled_among(&moment, &numbers)?,
                ))
            })
            .await?;
        audit.breaches.extend(breaches);
        // A hold always ends before its receipt is written to the file. So a call with an open hold and a receipt is a
        // breach; it cannot be a call that was settled between the two reads.
        let mut ended = open.into_iter();
        let both = self.look(|state| {
            ended.find(|(id, number)| {
                let account = state.book.account(id);
                settled.contains(number) && account.is_some_and(|it| it.is_open(*number))
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
    let accounts = state.book.accounts();
    let holds = accounts.flat_map(|(id, account)| {
        let numbers = account.holds().map(|(number, ..)| number);
        numbers.map(move |number| (id.clone(), number))
    });
    holds.collect()
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
