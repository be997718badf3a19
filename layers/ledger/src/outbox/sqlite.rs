//! Stores an outbox's steps in one SQLite file, with one row per call.
//!
//! One thread writes. Each step waits for further steps of its call: an end for 5 ms, a checkpoint for 7.5 ms, an
//! intent for 100 ms. Then it waits at most 2.5 ms for other calls' steps to share the commit. The steps of one call
//! become one row, or no row if the ledger has acknowledged the end before the first step is written. The number of
//! waiting steps is limited by the number of running calls. The thread sleeps until a step is due, and is woken by a
//! step that is due sooner. A commit survives the process, but not a power cut (write-ahead log,
//! `synchronous = NORMAL`); [`Log::sync`] writes immediately, in a commit that survives a power cut too.
//!
//! A full disk or a locked file is a temporary fault: the queued steps are kept, and the write is retried every second.
//! Any other fault lasts until the gateway is restarted.

mod queue;
mod rows;

use std::{
    fmt, mem,
    path::{Path, PathBuf},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use rusqlite::{Connection, ErrorCode};

use self::queue::Queue;
pub use self::rows::LogError;
use super::log::{CallStep, Log, Pending};
use crate::{
    BoxError,
    durable::{
        file::SqliteFile,
        group_commit::{
            Fault, GroupCommit, Incident, Moment, Pace, Urgency, WriteQueue, WriterState,
        },
    },
};

/// The time for which a due step waits for steps of other calls, so that they share a commit.
const TURN: Duration = Duration::from_micros(2_500);
/// The interval at which a write is retried after a temporary fault.
const RETRY: Duration = Duration::from_secs(1);

/// A log that stores its steps in one SQLite file. Clones share the file, which is closed by [`SqliteLog::close`] or
/// when the last clone is dropped.
#[derive(Clone)]
pub struct SqliteLog {
    inner: Arc<Inner>,
}

struct Inner {
    path: PathBuf,
    /// Calls that an earlier process left, until `load` returns them.
    left: Mutex<Vec<Pending>>,
    writer: GroupCommit<Work>,
}

impl SqliteLog {
    /// Opens a file, or creates an empty file. Blocks while the steps of an earlier process are read and checked.
    ///
    /// # Errors
    /// [`LogError`] if the file cannot be opened, is not an outbox, or is damaged.
    pub fn open(path: &Path) -> Result<Self, LogError> {
        Self::start(rows::open(path)?)
    }

    /// Opens the outbox of one ledger, named by its data set. Charges for another ledger are not sent to this ledger.
    ///
    /// # Errors
    /// [`LogError`] as for [`Self::open`], and [`LogError::OtherBooks`] if it has charges for another ledger.
    pub fn open_for(path: &Path, books: &str) -> Result<Self, LogError> {
        let (file, left) = rows::open(path)?;
        let unfinished = left.iter().any(|call| !call.done);
        let left = if rows::claim(&file, books, unfinished)? {
            left
        } else {
            // The previous owner of the file was another ledger, so this ledger has nothing to replay.
            Vec::new()
        };
        Self::start((file, left))
    }

    fn start((file, left): (SqliteFile, Vec<Pending>)) -> Result<Self, LogError> {
        let mut unsynced = false;
        let commit = move |conn: &mut Connection, work: &mut Work, synced: bool| {
            let writes = Work::size(work) > 0;
            let committed = work.write(conn, synced, unsynced);
            unsynced = committed.is_err() || (writes && !synced);
            committed
        };
        let writer = GroupCommit::start(Work::default(), file.conn, file.lock, commit).map_err(
            |source| LogError::Io {
                path: file.path.clone(),
                source,
            },
        )?;
        Ok(Self {
            inner: Arc::new(Inner {
                path: file.path,
                left: Mutex::new(left),
                writer,
            }),
        })
    }

    /// Writes the queue and closes the file. Steps appended later are not written. If called twice, only the first call
    /// waits.
    pub async fn close(&self) {
        self.inner.writer.stop();
        self.inner.writer.close(|| {}).await;
    }
}

impl Log for SqliteLog {
    fn append(&self, step: CallStep) {
        append(&self.inner.writer, step);
    }

    async fn sync(&self) -> Result<(), BoxError> {
        let writer = &self.inner.writer;
        let synced = {
            let mut state = locked(writer);
            state.takes_more()?;
            let synced = state.wait();
            writer.submit(state, Urgency::Hurry);
            synced
        };
        writer.committed(synced).await
    }

    /// Returns the calls of the earlier process to the first caller; later callers get none.
    async fn load(&self) -> Result<Vec<Pending>, BoxError> {
        let mut left = self
            .inner
            .left
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        Ok(mem::take(&mut *left))
    }

    fn fault(&self) -> Option<String> {
        let fault = self.inner.writer.fault();
        fault.as_ref().map(Work::explain)
    }

    fn forget(&self, until_ms: u64) {
        let mut state = locked(&self.inner.writer);
        if state.takes_more().is_ok() {
            state.queue.forget(Some(until_ms));
            self.inner.writer.submit(state, Urgency::Gather);
        }
    }
}

fn append(writer: &GroupCommit<Work>, step: CallStep) {
    let mut state = locked(writer);
    if state.takes_more().is_ok() {
        let due = state.queue.calls.add(step, Moment::now());
        writer.submit(state, due.map_or(Urgency::None, Urgency::Due));
    }
}

/// A panic while this lock is held loses at most one step, so poisoning is ignored.
fn locked(writer: &GroupCommit<Work>) -> MutexGuard<'_, WriterState<Work>> {
    writer.lock().unwrap_or_else(PoisonError::into_inner)
}

impl fmt::Debug for SqliteLog {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SqliteLog")
            .field("path", &self.inner.path)
            .finish_non_exhaustive()
    }
}

/// The queued steps and deletions, written in one commit.
#[derive(Default)]
struct Work {
    calls: Queue,
    forget_until_ms: Option<u64>,
    /// Whether a write of some of these steps has failed before.
    put_back: bool,
    /// For tests of a full disk: the largest number of pages that the file may have from the next commit on.
    #[cfg(test)]
    pages_max: Option<u32>,
}

impl Work {
    fn forget(&mut self, until_ms: Option<u64>) {
        self.forget_until_ms = self.forget_until_ms.max(until_ms);
    }

    /// Writes one commit. If a caller waits for it, this commit and all earlier commits must survive a power cut.
    fn write(
        &mut self,
        conn: &mut Connection,
        synced: bool,
        unsynced: bool,
    ) -> rusqlite::Result<()> {
        #[cfg(test)]
        if let Some(pages_max) = self.pages_max {
            conn.pragma_update_and_check(None, "max_page_count", pages_max, |_| Ok(()))?;
        }
        let (calls, until_ms) = (&self.calls, self.forget_until_ms);
        if !synced && Self::size(self) > 0 {
            self.forget_until_ms = rows::commit(conn, calls, until_ms)?;
        } else if !calls.is_empty() || unsynced {
            self.forget_until_ms = rows::commit_durably(conn, calls, until_ms)?;
        }
        Ok(())
    }
}

impl WriteQueue for Work {
    type Batch = Self;

    const THREAD: &'static str = "outbox-writer";
    const PACE: Pace = Pace {
        window: TURN,
        // However many steps are queued, they are not committed early: a due step has already waited for further steps
        // of its call.
        enough: usize::MAX,
        // No step may be refused. The number of running calls limits the number of steps.
        queue_max: usize::MAX,
        retry: RETRY,
    };

    fn len(&self) -> usize {
        self.calls.len()
    }

    fn due(&self, now: Moment) -> Option<Moment> {
        match self.forget_until_ms {
            Some(_) => Some(now),
            None => self.calls.first_due(),
        }
    }

    /// Takes the due steps. Steps that a later step may still replace stay in the queue.
    fn take(&mut self, due: Option<Moment>) -> Self {
        match due {
            None => mem::take(self),
            Some(due) => Self {
                calls: self.calls.take_due(due),
                forget_until_ms: self.forget_until_ms.take(),
                ..Self::default()
            },
        }
    }

    fn size(work: &Self) -> usize {
        work.calls.len() + usize::from(work.forget_until_ms.is_some())
    }

    fn empty(work: &mut Self) {
        work.calls = Queue::default();
    }

    /// If a commit could not delete all calls that may be deleted, the next commit deletes more of them.
    fn reuse(&mut self, work: Self) {
        self.forget(work.forget_until_ms);
    }

    /// Keeps the steps for a retry if the fault may be temporary: a full disk or a locked file.
    fn put_back(&mut self, work: Self, cause: &rusqlite::Error) -> bool {
        let passes = matches!(
            cause.sqlite_error_code(),
            Some(ErrorCode::DiskFull | ErrorCode::DatabaseBusy | ErrorCode::DatabaseLocked)
        );
        if passes {
            if !work.put_back {
                tracing::error!(%cause, "the outbox cannot be written; no call is admitted until it can");
            }
            self.put_back = true;
            self.calls.put_back(work.calls, Moment::now());
            self.forget(work.forget_until_ms);
        }
        passes
    }

    fn recovered(&mut self) {
        tracing::info!("the outbox can be written again");
    }

    fn explain(fault: &Fault) -> String {
        const WRITTEN: &str = "nothing more is written until a restart";
        match fault {
            Fault::Passing(cause) => format!("{cause}; writing is retried every second"),
            Fault::Broken(cause) => format!("{cause}; {WRITTEN}"),
            Fault::Stopped => format!("the thread that writes it has stopped; {WRITTEN}"),
            Fault::Closed => "it is closed".into(),
        }
    }

    fn report(incident: &Incident<'_>) {
        match incident {
            Incident::Broken { cause, .. } => {
                tracing::error!(%cause, "the outbox could not be written; no call is admitted any more");
            }
            Incident::NotClosed(cause) => {
                tracing::warn!(%cause, "the outbox was not closed cleanly");
            }
            Incident::Panicked => tracing::error!("the thread that writes the outbox panicked"),
        }
    }
}

#[cfg(test)]
mod tests;
