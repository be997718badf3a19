//! An outbox's lines in one SQLite file, one row for each call.
//!
//! One thread writes. Each line waits for others of its call, the end of a call for 5 ms, a note for 10,
//! an intent for 100: those of one call come to one row, and to nothing when the ledger has acknowledged
//! the end before the thread gets to the first. What waits is bounded by the calls that run. The thread
//! sleeps until a line is due, and is woken by one that is due sooner. A commit outlives the process, not
//! a power cut (write-ahead log, `synchronous = NORMAL`); [`Log::sync`] waits for nothing and makes
//! everything outlive that too.
//!
//! A full disk or a locked file is a fault that passes: what could not be written waits, and is tried
//! again each second. Any other fault lasts until the gateway is started anew.

mod queue;
mod rows;

use std::{
    fmt,
    fs::File,
    mem,
    path::{Path, PathBuf},
    sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError},
    thread::{self, JoinHandle},
    time::Duration,
};

use rusqlite::{Connection, ErrorCode};
use tokio::sync::oneshot;

use self::queue::Queue;
pub use self::rows::LogError;
use super::log::{Line, Log, Pending};
use crate::{BoxError, durable::file::SqliteFile};

/// Real time: a paused test does not stop the thread.
#[expect(
    clippy::disallowed_types,
    reason = "lines come from where tokio's clock may be paused, the thread waits outside of it"
)]
type Moment = std::time::Instant;

/// So long what is due waits for more that is, to share a commit.
const TURN: Duration = Duration::from_micros(2_500);
/// The longest sleep. Nothing depends on it.
const SILENCE: Duration = Duration::from_secs(60);
/// How often a fault that may pass is tried.
const RETRY: Duration = Duration::from_secs(1);

/// Lines in one file. Clones share it; it is closed by [`SqliteLog::close`] or with the last of them.
#[derive(Clone)]
pub struct SqliteLog {
    inner: Arc<Inner>,
}

struct Inner {
    path: PathBuf,
    shared: Arc<Shared>,
    /// Until they are loaded.
    left: Mutex<Vec<Pending>>,
    writer: Mutex<Option<JoinHandle<()>>>,
}

/// Why nothing is written.
#[derive(Clone, Debug, thiserror::Error)]
enum Fault {
    #[error("{0}; it is tried again each second")]
    Passing(Arc<str>),
    #[error("{0}; nothing more is written until a restart")]
    Broken(Arc<str>),
    #[error("the thread that writes it has stopped; nothing more is written until a restart")]
    Stopped,
    #[error("it is closed")]
    Closed,
}

impl SqliteLog {
    /// Opens a file, or makes an empty one. Blocks while what an earlier process left is read and
    /// checked.
    ///
    /// # Errors
    /// See [`LogError`].
    pub fn open(path: &Path) -> Result<Self, LogError> {
        Self::start(rows::open(path)?)
    }

    /// Opens the outbox of one ledger, named by its data set: what is kept for another one is not told
    /// to this one.
    ///
    /// # Errors
    /// See [`LogError`].
    pub fn open_for(path: &Path, books: &str) -> Result<Self, LogError> {
        let (file, left) = rows::open(path)?;
        let unfinished = left.iter().any(|call| !call.done);
        let left = if rows::claim(&file, books, unfinished)? {
            left
        } else {
            // What another ledger has acknowledged is no news for this one.
            Vec::new()
        };
        Self::start((file, left))
    }

    fn start((file, left): (SqliteFile, Vec<Pending>)) -> Result<Self, LogError> {
        let shared = Arc::new(Shared::default());
        let for_writer = Arc::clone(&shared);
        let writer = thread::Builder::new()
            .name("outbox-writer".into())
            .spawn(move || run(&for_writer, file.conn, file.lock))
            .map_err(|source| LogError::Io {
                path: file.path.clone(),
                source,
            })?;
        Ok(Self {
            inner: Arc::new(Inner {
                path: file.path,
                shared,
                left: Mutex::new(left),
                writer: Mutex::new(Some(writer)),
            }),
        })
    }

    /// Writes what waits and lets go of the file. What is appended later is not written. When it is
    /// called twice, the first call alone waits.
    pub async fn close(&self) {
        self.inner.shared.close();
        let writer = self
            .inner
            .writer
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .take();
        let closing = tokio::task::spawn_blocking(move || writer.map(JoinHandle::join));
        if !matches!(closing.await, Ok(None | Some(Ok(())))) {
            tracing::error!("the thread that writes the outbox panicked");
        }
    }
}

impl Log for SqliteLog {
    fn append(&self, line: Line) {
        self.inner.shared.append(line);
    }

    async fn sync(&self) -> Result<(), BoxError> {
        self.inner.shared.sync().await
    }

    /// The first call gets them.
    async fn load(&self) -> Result<Vec<Pending>, BoxError> {
        let mut left = self
            .inner
            .left
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        Ok(mem::take(&mut *left))
    }

    fn fault(&self) -> Option<String> {
        let fault = &self.inner.shared.lock().fault;
        fault.as_ref().map(ToString::to_string)
    }

    fn forget(&self, until_ms: u64) {
        self.inner.shared.forget(until_ms);
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        // Not joined: a drop may stand on an async thread. The thread writes what waits, and ends.
        self.shared.close();
    }
}

impl fmt::Debug for SqliteLog {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SqliteLog")
            .field("path", &self.inner.path)
            .finish_non_exhaustive()
    }
}

/// What the log's handles and its writer share.
#[derive(Default)]
struct Shared {
    desk: Mutex<WriterState>,
    news: Condvar,
}

#[derive(Default)]
struct WriterState {
    work: Work,
    /// Somebody waits for all of it.
    hurry: bool,
    /// The writer sleeps until then: a line that is due before has to wake it.
    sleeps_until: Option<Moment>,
    closing: bool,
    fault: Option<Fault>,
    /// The file may grow to so many pages from now on.
    #[cfg(test)]
    pages_max: Option<u32>,
}

/// What one commit is to do.
#[derive(Default)]
struct Work {
    queue: Queue,
    /// They wait for a commit that survives a power cut. On a fault they are told by its loss.
    syncs: Vec<oneshot::Sender<()>>,
    forget_until_ms: Option<u64>,
}

impl Shared {
    fn append(&self, line: Line) {
        let mut desk = self.lock();
        if !desk.takes_lines() {
            return;
        }
        let now = Moment::now();
        let due = desk.work.queue.add(line, now);
        let sooner = |until: &mut Moment| due.is_some_and(|due| due < *until);
        let wakes = desk.sleeps_until.take_if(sooner).is_some();
        drop(desk);
        // Each time asks the system, even where nobody waits.
        if wakes {
            self.news.notify_one();
        }
    }

    async fn sync(&self) -> Result<(), BoxError> {
        let synced = {
            let mut desk = self.lock();
            if !desk.takes_lines() {
                return Err(desk.fault.clone().unwrap_or(Fault::Stopped).into());
            }
            let (sender, synced) = oneshot::channel();
            desk.work.syncs.push(sender);
            desk.hurry = true;
            synced
        };
        self.news.notify_one();
        match synced.await {
            Ok(()) => Ok(()),
            Err(_) => Err(self.lock().fault.clone().unwrap_or(Fault::Stopped).into()),
        }
    }

    fn forget(&self, until_ms: u64) {
        let mut desk = self.lock();
        if desk.takes_lines() {
            let until = &mut desk.work.forget_until_ms;
            *until = (*until).max(Some(until_ms));
            self.news.notify_one();
        }
    }

    /// Takes no more; the writer ends once what waits is written.
    fn close(&self) {
        {
            let mut desk = self.lock();
            desk.closing = true;
            desk.fault.get_or_insert(Fault::Closed);
        }
        self.news.notify_one();
    }

    fn lock(&self) -> MutexGuard<'_, WriterState> {
        // A panic under this lock leaves at most a line out, and the guard below tells of it.
        self.desk.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// What is due, all of it if somebody waits for that, or `None` once there will be no more. There
    /// may be nothing in it while a fault is to be tried.
    fn next_work(&self) -> Option<Work> {
        let mut desk = self.lock();
        if desk.fault.is_some() {
            (desk, _) = self
                .news
                .wait_timeout_while(desk, RETRY, |desk| !desk.closing)
                .unwrap_or_else(PoisonError::into_inner);
            let work = desk.take_all();
            return (!(work.is_empty() && desk.closing)).then_some(work);
        }
        loop {
            desk = self.wait_until_due(desk);
            (desk, _) = self
                .news
                .wait_timeout_while(desk, TURN, |desk| !desk.hurry && !desk.closing)
                .unwrap_or_else(PoisonError::into_inner);
            let work = if desk.hurry || desk.closing {
                desk.take_all()
            } else {
                desk.work.take_due(Moment::now())
            };
            if !work.is_empty() {
                return Some(work);
            }
            if desk.closing {
                return None;
            }
        }
    }

    /// What is due may be later, or nothing, by the time: lines come to less.
    fn wait_until_due<'a>(
        &self,
        mut desk: MutexGuard<'a, WriterState>,
    ) -> MutexGuard<'a, WriterState> {
        loop {
            let now = Moment::now();
            let due = desk.due(now);
            if due <= now {
                return desk;
            }
            desk.sleeps_until = Some(due);
            (desk, _) = self
                .news
                .wait_timeout(desk, due - now)
                .unwrap_or_else(PoisonError::into_inner);
            desk.sleeps_until = None;
        }
    }

    /// It was written. Where there was more to forget than one commit takes, that is still to be done.
    fn written(&self, forget_until_ms: Option<u64>) {
        let mut desk = self.lock();
        if matches!(desk.fault, Some(Fault::Passing(_))) {
            desk.fault = None;
            tracing::info!("the outbox is written again");
        }
        if !desk.closing {
            let until = &mut desk.work.forget_until_ms;
            *until = (*until).max(forget_until_ms);
        }
    }

    /// It was not written, but may be yet. Says whether it will be tried again.
    fn put_back(&self, work: Work, cause: &rusqlite::Error) -> bool {
        let mut desk = self.lock();
        if desk.closing {
            return false;
        }
        if desk.fault.is_none() {
            tracing::error!(%cause, "the outbox cannot be written; no call is admitted until it can");
        }
        desk.fault = Some(Fault::Passing(cause.to_string().into()));
        desk.work.queue.put_back(work.queue, Moment::now());
        let until = &mut desk.work.forget_until_ms;
        *until = (*until).max(work.forget_until_ms);
        true
    }

    /// Lets the file grow so far from the next commit on.
    #[cfg(test)]
    fn limit_pages(&self, conn: &Connection) {
        if let Some(pages_max) = self.lock().pages_max.take() {
            conn.pragma_update_and_check(None, "max_page_count", pages_max, |_| Ok(()))
                .expect("a limit of pages");
        }
    }

    fn break_down(&self, fault: Fault) {
        let waiting = {
            let mut desk = self.lock();
            desk.fault = Some(fault);
            mem::take(&mut desk.work)
        };
        // Those who wait for a sync are told by the loss of their senders.
        drop(waiting);
    }
}

impl WriterState {
    fn takes_lines(&self) -> bool {
        matches!(self.fault, None | Some(Fault::Passing(_)))
    }

    /// When there is something to do.
    fn due(&self, now: Moment) -> Moment {
        let work = &self.work;
        if self.closing || !work.syncs.is_empty() || work.forget_until_ms.is_some() {
            return now;
        }
        work.queue.first_due().unwrap_or(now + SILENCE)
    }

    fn take_all(&mut self) -> Work {
        self.hurry = false;
        mem::take(&mut self.work)
    }
}

impl Work {
    fn is_empty(&self) -> bool {
        self.queue.is_empty() && self.syncs.is_empty() && self.forget_until_ms.is_none()
    }

    /// Without the lines that may yet come to less.
    fn take_due(&mut self, now: Moment) -> Self {
        Self {
            queue: self.queue.take_due(now),
            syncs: mem::take(&mut self.syncs),
            forget_until_ms: self.forget_until_ms.take(),
        }
    }
}

fn run(shared: &Shared, mut conn: Connection, lock: File) {
    // A panic too must stop the serving.
    let stopped = StopGuard(shared);
    let mut unsynced = false;
    while let Some(work) = shared.next_work() {
        #[cfg(test)]
        shared.limit_pages(&conn);
        match write(&mut conn, &work, unsynced) {
            Ok(forget_until_ms) => {
                unsynced = work.syncs.is_empty() && !work.is_empty();
                shared.written(forget_until_ms);
                for synced in work.syncs {
                    // Nobody may be waiting any more; it is done all the same.
                    let _ = synced.send(());
                }
            }
            Err(cause) => {
                unsynced = true;
                if passes(&cause) && shared.put_back(work, &cause) {
                    continue;
                }
                tracing::error!(%cause, "the outbox could not be written; no call is admitted any more");
                shared.break_down(Fault::Broken(cause.to_string().into()));
                break;
            }
        }
    }
    drop(stopped);
    if let Err((_, cause)) = conn.close() {
        tracing::warn!(%cause, "the outbox was not closed cleanly");
    }
    // Last, or the next gateway would meet an open file.
    drop(lock);
}

/// One commit. Says what is still to be forgotten.
fn write(conn: &mut Connection, work: &Work, unsynced: bool) -> rusqlite::Result<Option<u64>> {
    let Work {
        queue,
        syncs,
        forget_until_ms,
    } = work;
    if syncs.is_empty() && !work.is_empty() {
        rows::commit(conn, queue, *forget_until_ms)
    } else if queue.is_empty() && !unsynced {
        Ok(*forget_until_ms)
    } else {
        rows::commit_durably(conn, queue, *forget_until_ms)
    }
}

/// Whether it may be gone the next time.
fn passes(cause: &rusqlite::Error) -> bool {
    matches!(
        cause.sqlite_error_code(),
        Some(ErrorCode::DiskFull | ErrorCode::DatabaseBusy | ErrorCode::DatabaseLocked)
    )
}

struct StopGuard<'a>(&'a Shared);

impl Drop for StopGuard<'_> {
    fn drop(&mut self) {
        if thread::panicking() || self.0.lock().fault.is_none() {
            self.0.break_down(Fault::Stopped);
        }
    }
}

#[cfg(test)]
mod tests;
