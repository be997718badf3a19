//! Stores the steps of an outbox in one SQLite file, with one row per call.
//!
//! One thread writes. Each step first waits for further steps of its call: a settlement or release 5 ms, a checkpoint
//! 7.5 ms, an intent 100 ms. Then it waits at most 2.5 ms for steps of other calls, to share their commit. The waiting
//! steps of one call become one row. They become no row if the ledger acknowledges the call before its first step is
//! written. The number of in-flight calls limits the number of waiting steps. The thread sleeps until a step is due,
//! and is woken if a new step is due sooner. A commit survives the process but not a power cut (write-ahead log,
//! `synchronous = NORMAL`). [`Log::sync`] makes a commit immediately that also survives a power cut.
//!
//! A full disk and a locked file are temporary faults: the steps stay queued, and the thread retries the write every
//! second. Every other fault lasts until the gateway is restarted.

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

/// How long a step that is due waits for steps of other calls, so that they share a commit.
const TURN: Duration = Duration::from_micros(2_500);
/// How often a write is retried after a temporary fault.
const RETRY: Duration = Duration::from_secs(1);

/// A log in one SQLite file. Clones share the file. It is closed by [`SqliteLog::close`], or when the last clone is
/// dropped.
#[derive(Clone)]
pub struct SqliteLog {
    inner: Arc<Inner>,
}

struct Inner {
    path: PathBuf,
    /// The calls that an earlier process left, until `load` takes them.
    left: Mutex<Vec<Pending>>,
    writer: GroupCommit<Work>,
}

impl SqliteLog {
    /// Opens an outbox file, or creates it if it does not exist. Blocks while it reads and checks the steps of an
    /// earlier process.
    ///
    /// # Errors
    /// [`LogError`] if the file cannot be opened, is not an outbox, or is damaged.
    pub fn open(path: &Path) -> Result<Self, LogError> {
        Self::start(rows::open(path)?)
    }

    /// Opens the outbox of the ledger whose data set is named `books`. An outbox is bound to one data set: its charges
    /// must never be sent to another ledger.
    ///
    /// # Errors
    /// A [`LogError`] as for [`Self::open`]; [`LogError::OtherBooks`] if the file contains charges for another data
    /// set.
    pub fn open_for(path: &Path, books: &str) -> Result<Self, LogError> {
        let (file, left) = rows::open(path)?;
        let unfinished = left.iter().any(|call| !call.done);
        let left = if rows::claim(&file, books, unfinished)? {
            left
        } else {
            // The file belonged to another ledger before and has no open charges, so nothing in it concerns this
            // ledger.
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

    /// Writes all queued steps and closes the file. Steps that are appended later are not written. Only the first call
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
            writer.submit(state, Urgency::Immediate);
            synced
        };
        writer.committed(synced).await
    }

    /// Returns the calls that an earlier process left. Only the first call of this method returns them.
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
            self.inner.writer.submit(state, Urgency::Batch);
        }
    }
}

fn append(writer: &GroupCommit<Work>, step: CallStep) {
    let mut state = locked(writer);
    if state.takes_more().is_ok() {
        let due = state.queue.calls.add(step, Moment::now());
        writer.submit(state, due.map_or(Urgency::None, Urgency::At));
    }
}

/// Locks the queue and ignores poisoning: a panic under this lock loses at most one step.
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

/// The steps and deletions that one commit writes.
#[derive(Default)]
struct Work {
    calls: Queue,
    forget_until_ms: Option<u64>,
    /// Whether an earlier write of some of the steps failed.
    put_back: bool,
    /// Only in tests of a full disk: the largest number of pages that the file may have after the next commit.
    #[cfg(test)]
    pages_max: Option<u32>,
}

impl Work {
    fn forget(&mut self, until_ms: Option<u64>) {
        self.forget_until_ms = self.forget_until_ms.max(until_ms);
    }

    /// Writes one commit. If a caller waits for [`Log::sync`], this commit and all earlier commits must survive a power
    /// cut.
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
        // A large queue does not cause an early commit: each step that is due has already waited for further steps of
        // its call.
        enough: usize::MAX,
        // No step may be refused. The number of in-flight calls limits the size of the queue.
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

    /// Takes the steps that are due. Other steps stay in the queue, because a later step of the same call may replace
    /// them.
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

    /// If a commit could not delete all calls that are to be deleted, the next commit continues.
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
                tracing::error!(%cause, "the outbox cannot be written; no call is admitted until it can be written");
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
        const WRITTEN: &str = "the outbox writes nothing more until the gateway is restarted";
        match fault {
            Fault::Passing(cause) => format!("{cause}; the outbox retries the write every second"),
            Fault::Broken(cause) => format!("{cause}; {WRITTEN}"),
            Fault::Stopped => format!("the outbox's writer thread has stopped; {WRITTEN}"),
            Fault::Closed => "the outbox file is closed".into(),
        }
    }

    fn report(incident: &Incident<'_>) {
        match incident {
            Incident::Broken { cause, .. } => {
                tracing::error!(
                    %cause,
                    "the outbox could not be written; no call is admitted until the gateway is restarted"
                );
            }
            Incident::NotClosed(cause) => {
                tracing::warn!(%cause, "the outbox was not closed cleanly");
            }
            Incident::Panicked => tracing::error!("the outbox's writer thread panicked"),
        }
    }
}

#[cfg(test)]
mod tests;
