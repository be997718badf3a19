//! The book, and the queue of its changes that must be written to the file.
//!
//! A change is applied to the book and queued under the same lock. So the file gets the changes in the order in which
//! they were applied.

use std::{io, mem, sync::MutexGuard, time::Duration};

use rusqlite::{Connection, ErrorCode};

use super::batch;
use crate::{
    BoxError,
    book::Millis,
    durable::{
        file::FileLock,
        group_commit::{
            Committed, Fault, GroupCommit, Incident, Moment, Pace, Urgency, WriteQueue, WriterState,
        },
    },
    embedded::{Record, State, Torn, now_ms},
};

/// If this many records are queued, a commit does not wait for further records.
const BATCH_ENOUGH: usize = 256;

/// The book, and the thread that writes its changes. While another program keeps the file locked, no call is admitted;
/// the queue is written when the file is unlocked. If a commit fails for another reason, no call is served any more:
/// the book then contains charges that the file does not have.
pub(super) struct WrittenBook(GroupCommit<Bookings>);

/// The book and its queued records. The writer's lock protects both.
struct Bookings {
    state: State,
    records: Vec<Record>,
    /// An empty buffer that takes the place of `records` while they are written.
    spare: Vec<Record>,
    /// Whether the log already reports that another program keeps the file locked.
    put_back: bool,
}

impl WrittenBook {
    /// Starts the writer thread. It ends after [`WrittenBook::close`], or when a commit fails permanently.
    pub(super) fn start(state: State, conn: Connection, lock: FileLock) -> io::Result<Self> {
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

    /// Runs a function on the book, under the lock.
    pub(super) fn read<T>(&self, read: impl FnOnce(&State) -> T) -> Result<T, BoxError> {
        Ok(read(&self.serving()?.queue.state))
    }

    /// Makes a hold, or another change that only memory needs. Fails if no calls may be served.
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

    /// Ends or extends holds. This is allowed even after the ledger has stopped serving calls.
    pub(super) fn wind_down<T>(
        &self,
        change: impl FnOnce(&mut State, Millis) -> T,
    ) -> Result<T, BoxError> {
        let mut writer = self.0.lock().map_err(|_| Torn)?;
        Ok(change(&mut writer.queue.state, now_ms()))
    }

    /// Applies a change and queues its records. Changes of the settler have the urgency `Batch`: they may wait a few
    /// milliseconds for other changes. Changes of operators are `Immediate`. The caller waits for a commit even if the
    /// change has no records, because the result of the change may depend on an earlier change that is not in the file
    /// yet.
    pub(super) fn queue<T, R, E>(
        &self,
        urgency: Urgency,
        change: impl FnOnce(&mut State, Millis) -> Result<(T, R), E>,
    ) -> Result<Result<(T, Committed), E>, BoxError>
    where
        R: IntoIterator<Item = Record>,
    {
        let mut writer = self.serving()?;
        // If the queue is full, the change is refused before it is applied, because every change of the book must be
        // written to the file.
        if writer.is_full() {
            return Err("too many changes are waiting to be written to the ledger file".into());
        }
        let (answer, records) = match change(&mut writer.queue.state, now_ms()) {
            Ok(journaled) => journaled,
            Err(refusal) => return Ok(Err(refusal)),
        };
        writer.queue.records.extend(records);
        let committed = writer.wait();
        self.0.submit(writer, urgency);
        Ok(Ok((answer, committed)))
    }

    /// Waits for a commit. If the commit fails, returns the error for callers.
    pub(super) async fn committed(&self, committed: Committed) -> Result<(), BoxError> {
        self.0.committed(committed).await
    }

    pub(super) fn closed() -> BoxError {
        Bookings::explain(&Fault::Closed).into()
    }

    /// Calls `first`, refuses new changes, and writes all queued changes.
    pub(super) async fn close(&self, first: impl FnOnce() + Send + 'static) {
        self.0.close(first).await;
    }

    fn selling(&self) -> Result<MutexGuard<'_, WriterState<Bookings>>, BoxError> {
        let writer = self.serving()?;
        writer.can_write()?;
        Ok(writer)
    }

    /// Locks the state. Fails if the file cannot be written any more, or if a panic may have left the book half
    /// changed.
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
        enough: BATCH_ENOUGH,
        queue_max: 16_384,
        retry: Duration::from_secs(1),
    };

    fn len(&self) -> usize {
        self.records.len()
    }

    /// A record has no due time of its own, because a caller waits for each record.
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
        // Frees the memory of an unusually large batch.
        records.shrink_to(4 * BATCH_ENOUGH);
    }

    fn reuse(&mut self, records: Vec<Record>) {
        self.spare = records;
    }

    /// Keeps the records for a retry if another program has locked the file, which is a temporary fault. The fault
    /// occurs at the beginning of a commit, before any record is written.
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
        const SERVED: &str = "no call is served until the gateway is restarted";
        match fault {
            Fault::Closed => "the ledger is closed".into(),
            Fault::Passing(cause) => {
                format!(
                    "another program keeps the ledger file locked ({cause}); the gateway retries the write every second"
                )
            }
            Fault::Broken(cause) => {
                format!("the ledger file could not be written ({cause}); {SERVED}")
            }
            Fault::Stopped => {
                format!("the ledger's writer thread has stopped; {SERVED}")
            }
        }
    }

    fn report(incident: &Incident<'_>) {
        match incident {
            Incident::Broken { cause, changes } => {
                tracing::error!(
                    %cause,
                    changes,
                    "the ledger file could not be written; no call is served until the gateway is restarted"
                );
            }
            Incident::NotClosed(cause) => {
                tracing::warn!(%cause, "the ledger file was not closed cleanly");
            }
            Incident::Panicked => {
                tracing::error!("the ledger's writer thread panicked");
            }
        }
    }
}
