//! The book, with the queue of records that must be written.
//!
//! A change is applied to the book and queued under the same lock, so that records reach the file in the order in which
//! they were applied.

use std::{fs::File, io, mem, sync::MutexGuard, time::Duration};

use rusqlite::{Connection, ErrorCode};

use super::batch;
use crate::{
    BoxError,
    book::Millis,
    durable::group_commit::{
        Committed, Fault, GroupCommit, Incident, Moment, Pace, Urgency, WriteQueue, WriterState,
    },
    embedded::{Record, State, Torn, now_ms},
};

/// With this many records queued, a commit does not wait for more records.
const GATHER_ENOUGH: usize = 256;

/// How soon a change is committed.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Haste {
    /// For the settler's changes: the commit waits a few milliseconds for other changes.
    Gather,
    /// For an operator's change: committed immediately.
    Now,
}

/// The book, and the thread that writes its changes. While another program has locked the file, no call is admitted,
/// and the queue is written when the lock is released. If a commit fails for another reason, no further call is served:
/// the book has charges that the file does not have.
pub(super) struct WrittenBook(GroupCommit<Bookings>);

/// The book and the queued records, protected by the writer's lock.
struct Bookings {
    state: State,
    records: Vec<Record>,
    /// An empty buffer that replaces `records` while they are written.
    spare: Vec<Record>,
    /// Whether another program has locked the file and this was logged.
    put_back: bool,
}

impl WrittenBook {
    /// Starts the thread. It ends after [`WrittenBook::close`], or when a commit fails.
    pub(super) fn start(state: State, conn: Connection, lock: File) -> io::Result<Self> {
        let bookings = Bookings {
            state,
            records: Vec::new(),
            spare: Vec::new(),
            put_back: false,
        };
        let commit = |conn: &mut Connection, records: &mut Vec<Record>, _: bool| {
            batch::commit(conn, records.iter())
        };
        GroupCommit::start(bookings, conn, lock, commit).map(Self)
    }

    /// Runs a function with the book, under the lock.
    pub(super) fn read<T>(&self, read: impl FnOnce(&State) -> T) -> Result<T, BoxError> {
        Ok(read(&self.serving()?.queue.state))
    }

    /// Starts a hold or another change that is in memory only. Its end is written later. Fails if calls may not be
    /// served.
    pub(super) fn begin<T>(
        &self,
        change: impl FnOnce(&mut State, Millis) -> T,
    ) -> Result<T, BoxError> {
        Ok(change(&mut self.selling()?.queue.state, now_ms()))
    }

    /// Fails while the ledger must not serve calls.
    pub(super) fn check(&self) -> Result<(), BoxError> {
        self.selling().map(drop)
    }

    /// Ends or extends holds, which is harmless even after the ledger has stopped serving calls.
    pub(super) fn wind_down<T>(
        &self,
        change: impl FnOnce(&mut State, Millis) -> T,
    ) -> Result<T, BoxError> {
        let mut writer = self.0.lock().map_err(|_| Torn)?;
        Ok(change(&mut writer.queue.state, now_ms()))
    }

    /// Applies a change and queues its records. The caller waits for a commit even if there is no record, because the
    /// result may be that of an earlier change that is not in the file yet.
    pub(super) fn queue<T, R, E>(
        &self,
        haste: Haste,
        change: impl FnOnce(&mut State, Millis) -> Result<(T, R), E>,
    ) -> Result<Result<(T, Committed), E>, BoxError>
    where
        R: IntoIterator<Item = Record>,
    {
        let mut writer = self.serving()?;
        // Checked before the change is applied, since every change in the book must get into the file.
        if writer.is_full() {
            return Err("too many changes wait for the ledger file".into());
        }
        let (answer, records) = match change(&mut writer.queue.state, now_ms()) {
            Ok(journaled) => journaled,
            Err(refusal) => return Ok(Err(refusal)),
        };
        writer.queue.records.extend(records);
        let committed = writer.wait();
        let urgency = match haste {
            Haste::Gather => Urgency::Gather,
            Haste::Now => Urgency::Hurry,
        };
        self.0.submit(writer, urgency);
        Ok(Ok((answer, committed)))
    }

    /// Waits for a commit. Fails with the error text for callers if it failed.
    pub(super) async fn committed(&self, committed: Committed) -> Result<(), BoxError> {
        self.0.committed(committed).await
    }

    /// Returns the error of a ledger that was closed.
    pub(super) fn closed() -> BoxError {
        Bookings::explain(&Fault::Closed).into()
    }

    /// Calls `first`, refuses new changes, and writes the queue.
    pub(super) async fn close(&self, first: impl FnOnce() + Send + 'static) {
        self.0.close(first).await;
    }

    fn selling(&self) -> Result<MutexGuard<'_, WriterState<Bookings>>, BoxError> {
        let writer = self.serving()?;
        writer.can_write()?;
        Ok(writer)
    }

    /// Locks the state. Fails if the file cannot be written any more, or if a panic may have left a change of the book
    /// half made.
    fn serving(&self) -> Result<MutexGuard<'_, WriterState<Bookings>>, BoxError> {
        let writer = self.0.lock().map_err(|_| Torn)?;
        writer.takes_more()?;
        Ok(writer)
    }
}

impl WriteQueue for Bookings {
    type Batch = Vec<Record>;

    const THREAD: &'static str = "ledger-writer";
    const PACE: Pace = Pace {
        window: Duration::from_millis(5),
        enough: GATHER_ENOUGH,
        queue_max: 16_384,
        retry: Duration::from_secs(1),
    };

    fn len(&self) -> usize {
        self.records.len()
    }

    /// No record is due by itself: a caller waits for every record.
    fn due(&self, _: Moment) -> Option<Moment> {
        None
    }

    fn take(&mut self, _: Option<Moment>) -> Vec<Record> {
        mem::replace(&mut self.records, mem::take(&mut self.spare))
    }

    fn size(records: &Vec<Record>) -> usize {
        records.len()
    }

    fn empty(records: &mut Vec<Record>) {
        records.clear();
        // Gives memory back after an unusually large batch.
        records.shrink_to(4 * GATHER_ENOUGH);
    }

    fn reuse(&mut self, records: Vec<Record>) {
        self.spare = records;
    }

    /// Keeps the records for a retry if another program has locked the file, which is temporary. The lock is found at
    /// the beginning of a commit, before any record is written.
    fn put_back(&mut self, mut records: Vec<Record>, cause: &rusqlite::Error) -> bool {
        let passes = matches!(
            cause.sqlite_error_code(),
            Some(ErrorCode::DatabaseBusy | ErrorCode::DatabaseLocked)
        );
        if passes {
            if !mem::replace(&mut self.put_back, true) {
                tracing::error!(
                    %cause,
                    "another program keeps the ledger file locked; no call is admitted until the file is unlocked"
                );
            }
            records.append(&mut self.records);
            self.records = records;
        }
        passes
    }

    fn recovered(&mut self) {
        self.put_back = false;
        tracing::info!("the ledger file can be written again");
    }

    fn explain(fault: &Fault) -> String {
        const SERVED: &str = "no call is served until a restart";
        match fault {
            Fault::Closed => "the ledger is closed".into(),
            Fault::Passing(cause) => {
                format!(
                    "another program keeps the ledger file locked ({cause}); writing is retried every second"
                )
            }
            Fault::Broken(cause) => {
                format!("the ledger file could not be written ({cause}); {SERVED}")
            }
            Fault::Stopped => {
                format!("the thread that writes the ledger file has stopped; {SERVED}")
            }
        }
    }

    fn report(incident: &Incident<'_>) {
        match incident {
            Incident::Broken { cause, changes } => {
                tracing::error!(%cause, changes, "the ledger file could not be written; no call is served until a restart");
            }
            Incident::NotClosed(cause) => {
                tracing::warn!(%cause, "ledger file was not closed cleanly");
            }
            Incident::Panicked => {
                tracing::error!("the thread that writes the ledger file panicked");
            }
        }
    }
}
