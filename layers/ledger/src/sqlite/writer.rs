//! The book with the queue behind it, and the one thread that writes the queue to the file.
//!
//! A change is applied to the book and queued under one lock, so records reach the file in the order
//! in which they were applied. The thread takes all that is queued, commits it in one transaction
//! and only then tells those who wait.

use std::{
    fs::File,
    io, mem,
    sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError},
    thread::{self, JoinHandle},
    time::Duration,
};

use rusqlite::Connection;
use tokio::sync::oneshot;

use super::batch;
use crate::{
    BoxError,
    book::Millis,
    embedded::{Record, State, Torn, now_ms},
};

/// How many changes may wait for the file; then no more are taken.
const QUEUE_MAX: usize = 16_384;
/// How long a settlement may wait for others to share its commit.
const GATHER: Duration = Duration::from_millis(5);
/// So many in the queue are commit enough.
const GATHER_ENOUGH: usize = 256;

/// Resolves once the change is in the file, and everything before it.
pub(super) type Committed = oneshot::Receiver<()>;

/// Who waits for a commit.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Haste {
    /// The settler: a shared commit is worth a few milliseconds.
    Gather,
    /// An operator.
    Now,
}

/// Why nothing is served.
#[derive(Clone, Debug, thiserror::Error)]
pub(super) enum Fault {
    #[error("the ledger is closed")]
    Closed,
    /// The book is ahead of the file, by charges that would be lost.
    #[error("the ledger file could not be written ({0}); nothing more is served until a restart")]
    Broken(Arc<str>),
    #[error(
        "the thread that writes the ledger file has stopped; nothing more is served until a restart"
    )]
    Stopped,
    #[error("too many changes wait for the ledger file")]
    Behind,
}

/// What the ledger's handles and its writer share.
pub(super) struct Shared {
    desk: Mutex<WriterState>,
    news: Condvar,
}

struct WriterState {
    state: State,
    queue: Queue,
    hurry: bool,
    /// The writer waits for news: nobody else has to be told of them, and each time asks the system.
    writer_waits: bool,
    fault: Option<Fault>,
}

/// What one commit is to write, and who waits for it. Without a record of his own one waits for those
/// before.
#[derive(Default)]
struct Queue {
    records: Vec<Record>,
    waiting: Vec<oneshot::Sender<()>>,
}

impl Queue {
    const fn is_empty(&self) -> bool {
        self.waiting.is_empty()
    }

    fn len(&self) -> usize {
        self.records.len().max(self.waiting.len())
    }

    /// Tells those who wait, and keeps the room.
    fn written(&mut self) {
        for committed in self.waiting.drain(..) {
            // Nobody may be waiting any more; it is done all the same.
            let _ = committed.send(());
        }
        self.records.clear();
        // What once was long need not stay so.
        self.waiting.shrink_to(4 * GATHER_ENOUGH);
        self.records.shrink_to(4 * GATHER_ENOUGH);
    }
}

impl Shared {
    pub(super) fn new(state: State) -> Self {
        let desk = WriterState {
            state,
            queue: Queue::default(),
            hurry: false,
            writer_waits: false,
            fault: None,
        };
        Self {
            desk: Mutex::new(desk),
            news: Condvar::new(),
        }
    }

    /// Looks at the book.
    pub(super) fn look<T>(&self, look: impl FnOnce(&State) -> T) -> Result<T, BoxError> {
        Ok(look(&self.serving()?.state))
    }

    /// Changes what lives in memory alone.
    pub(super) fn touch<T>(
        &self,
        change: impl FnOnce(&mut State, Millis) -> T,
    ) -> Result<T, BoxError> {
        Ok(change(&mut self.serving()?.state, now_ms()))
    }

    /// Ends or prolongs holds, which is harmless in a ledger that serves nothing more.
    pub(super) fn wind_down<T>(
        &self,
        change: impl FnOnce(&mut State, Millis) -> T,
    ) -> Result<T, BoxError> {
        let mut desk = self.desk.lock().map_err(|_| Torn)?;
        Ok(change(&mut desk.state, now_ms()))
    }

    /// Applies a change and queues its records. An answer without a record is queued too: what it
    /// repeats may itself not be in the file yet.
    pub(super) fn queue<T, R, E>(
        &self,
        haste: Haste,
        change: impl FnOnce(&mut State, Millis) -> Result<(T, R), E>,
    ) -> Result<Result<(T, Committed), E>, BoxError>
    where
        R: IntoIterator<Item = Record>,
    {
        let mut desk = self.serving()?;
        // Before it is applied: what is in the book must get into the file.
        if desk.queue.len() >= QUEUE_MAX {
            return Err(Fault::Behind.into());
        }
        let (answer, records) = match change(&mut desk.state, now_ms()) {
            Ok(journaled) => journaled,
            Err(refusal) => return Ok(Err(refusal)),
        };
        let is_first = desk.queue.is_empty();
        let (sender, committed) = oneshot::channel();
        desk.queue.records.extend(records);
        desk.queue.waiting.push(sender);
        desk.hurry |= haste == Haste::Now;
        let wakes = desk.writer_waits && (is_first || !desk.waits_for_more());
        if wakes {
            desk.writer_waits = false;
        }
        drop(desk);
        if wakes {
            self.news.notify_one();
        }
        Ok(Ok((answer, committed)))
    }

    /// Waits for a commit.
    pub(super) async fn committed(&self, committed: Committed) -> Result<(), BoxError> {
        match committed.await {
            Ok(()) => Ok(()),
            Err(_) => Err(self.lock().fault.clone().unwrap_or(Fault::Stopped).into()),
        }
    }

    /// Takes no more; the writer ends once the queue is written.
    pub(super) fn close(&self) {
        self.lock().fault.get_or_insert(Fault::Closed);
        self.news.notify_one();
    }

    fn serving(&self) -> Result<MutexGuard<'_, WriterState>, BoxError> {
        let desk = self.desk.lock().map_err(|_| Torn)?;
        if let Some(fault) = &desk.fault {
            return Err(fault.clone().into());
        }
        Ok(desk)
    }

    /// For what a half-made step in the book cannot have spoiled: the queue and the fault.
    fn lock(&self) -> MutexGuard<'_, WriterState> {
        self.desk.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// All that is queued, or `None` once there will be no more. The queue goes on in the room of what
    /// is written.
    fn next_batch(&self, written: Queue) -> Option<Queue> {
        let idle = |desk: &mut WriterState| {
            desk.writer_waits = desk.queue.is_empty() && desk.fault.is_none();
            desk.writer_waits
        };
        let mut desk = self
            .news
            .wait_while(self.lock(), idle)
            .unwrap_or_else(PoisonError::into_inner);
        if desk.waits_for_more() {
            let more = |desk: &mut WriterState| {
                desk.writer_waits = desk.waits_for_more();
                desk.writer_waits
            };
            (desk, _) = self
                .news
                .wait_timeout_while(desk, GATHER, more)
                .unwrap_or_else(PoisonError::into_inner);
        }
        (desk.hurry, desk.writer_waits) = (false, false);
        let batch = mem::replace(&mut desk.queue, written);
        (!batch.is_empty()).then_some(batch)
    }

    fn break_down(&self, fault: Fault) {
        let waiting = {
            let mut desk = self.lock();
            if !matches!(desk.fault, Some(Fault::Broken(_))) {
                desk.fault = Some(fault);
            }
            mem::take(&mut desk.queue)
        };
        // They are told by the loss of their senders.
        drop(waiting);
    }
}

impl WriterState {
    fn waits_for_more(&self) -> bool {
        self.fault.is_none() && !self.hurry && self.queue.len() < GATHER_ENOUGH
    }
}

/// Starts the thread. It ends after [`Shared::close`], or when a commit fails.
pub(super) fn start(
    shared: Arc<Shared>,
    conn: Connection,
    lock: File,
) -> io::Result<JoinHandle<()>> {
    thread::Builder::new()
        .name("ledger-writer".into())
        .spawn(move || run(&shared, conn, lock))
}

fn run(shared: &Shared, mut conn: Connection, lock: File) {
    // A panic too must stop the serving.
    let stopped = StopGuard(shared);
    let mut written = Queue::default();
    while let Some(mut queued) = shared.next_batch(written) {
        if let Err(cause) = batch::commit(&mut conn, queued.records.iter()) {
            tracing::error!(%cause, changes = queued.len(), "ledger file could not be written; serving nothing more");
            shared.break_down(Fault::Broken(cause.to_string().into()));
            break;
        }
        queued.written();
        written = queued;
    }
    drop(stopped);
    if let Err((_, cause)) = conn.close() {
        tracing::warn!(%cause, "ledger file was not closed cleanly");
    }
    // Last, or the next gateway would meet an open file.
    drop(lock);
}

struct StopGuard<'a>(&'a Shared);

impl Drop for StopGuard<'_> {
    fn drop(&mut self) {
        if thread::panicking() || self.0.lock().fault.is_none() {
            self.0.break_down(Fault::Stopped);
        }
    }
}
