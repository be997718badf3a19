//! A queue whose changes one thread writes to a file. Changes that arrive together share a commit.
//!
//! A store defines what a queued change is, when the change is due, and which SQL statements write it: see
//! [`WriteQueue`] and the closure `commit` of [`GroupCommit::start`]. This module implements the rest for all stores:
//!
//! - **Order.** A change is made and queued under one lock, so the file gets changes in the order in which they were
//!   made.
//! - **Batching.** Changes that are due wait at most [`Pace::window`] for more changes, unless [`Pace::enough`] changes
//!   are queued or a change is urgent. The thread is woken only if it must act earlier than planned, because each
//!   wake-up is a system call.
//! - **Acknowledging.** A waiting caller is answered after the commit that contains its change and all earlier changes.
//!   If the commit fails, the caller's sender is dropped, and the caller finds the reason in [`Fault`].
//! - **Failing.** A commit is written completely or not at all. A store may take a failed batch back, which is then
//!   retried every [`Pace::retry`]. If the store does not take it back, or if the thread panics, nothing more is
//!   written until the process is restarted.
//! - **Closing.** New changes are refused, the queue is written, the connection is closed, and the lock is released.
//!   The lock comes last, because otherwise the next gateway could open a file that is still in use.

use std::{
    io, mem,
    sync::{Arc, Condvar, LockResult, Mutex, MutexGuard, PoisonError},
    thread::{self, JoinHandle},
    time::Duration,
};

use rusqlite::{Connection, Result};
use tokio::sync::oneshot;

use super::file::FileLock;
use crate::BoxError;

/// The thread uses real time, so a test that pauses tokio's clock does not stop it.
#[expect(
    clippy::disallowed_types,
    reason = "the writer thread must use real time, even if a test pauses tokio's clock"
)]
pub(crate) type Moment = std::time::Instant;

/// Resolves when the caller's change and all earlier changes are in the file.
pub(crate) type Committed = oneshot::Receiver<()>;

/// The changes that wait to be written. The lock of the writer protects them.
pub(crate) trait WriteQueue: Send + 'static {
    /// The changes that one commit writes.
    type Batch: Send;

    /// The name of the writer thread.
    const THREAD: &'static str;
    /// How long, and for how many changes, the thread waits before it commits.
    const PACE: Pace;

    fn len(&self) -> usize;

    /// Returns when the queued changes must be written even if no caller waits for them; `None` if no such time is set.
    fn due(&self, now: Moment) -> Option<Moment>;

    /// Takes the changes that are due at the time `due`, or all changes if `due` is `None`.
    fn take(&mut self, due: Option<Moment>) -> Self::Batch;

    fn size(batch: &Self::Batch) -> usize;

    /// Drops the changes of a written batch. Called without the lock, after waiting callers were answered.
    fn empty(batch: &mut Self::Batch);

    /// Takes back an emptied batch, to reuse its buffers or to continue the work that it still contains.
    fn reuse(&mut self, batch: Self::Batch);

    /// Takes back a batch that could not be written, if a retry may succeed. Returns whether the batch was taken back.
    /// The default treats every fault as permanent.
    fn put_back(&mut self, batch: Self::Batch, cause: &rusqlite::Error) -> bool {
        let _ = (batch, cause);
        false
    }

    /// Called after the first successful commit since a batch was taken back.
    fn recovered(&mut self) {}

    /// Returns the error text for callers while nothing is written.
    fn explain(fault: &Fault) -> String;

    /// Writes an incident to the log.
    fn report(incident: &Incident<'_>);
}

/// How long, and for how many changes, a writer thread waits before it commits.
#[derive(Debug)]
pub(crate) struct Pace {
    /// How long changes that are due wait for more changes, to share a commit.
    pub(crate) window: Duration,
    /// If this many changes are queued, a commit does not wait for more.
    pub(crate) enough: usize,
    /// The largest number of queued changes (see [`WriterState::is_full`]).
    pub(crate) queue_max: usize,
    /// How often a batch that was taken back is retried.
    pub(crate) retry: Duration,
}

/// How soon the thread must handle the changes that a caller has queued.
#[cfg_attr(
    not(feature = "outbox"),
    allow(
        dead_code,
        reason = "only the outbox has changes that are due at a later time"
    )
)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Urgency {
    /// The caller has queued nothing.
    None,
    /// Commit at this time.
    At(Moment),
    /// Commit soon, but wait for more changes to share the commit.
    Batch,
    /// Commit immediately, together with all queued changes.
    Immediate,
}

/// The reason why no changes are written.
#[derive(Clone, Debug)]
pub(crate) enum Fault {
    /// A commit failed and will be retried.
    Passing(Arc<str>),
    /// A commit failed permanently.
    Broken(Arc<str>),
    /// The writer thread panicked.
    Stopped,
    /// The queue was closed.
    Closed,
}

/// A fault that is reported to operators.
#[derive(Debug)]
pub(crate) enum Incident<'a> {
    /// A commit failed permanently.
    Broken {
        cause: &'a rusqlite::Error,
        /// The number of changes in the failed commit.
        changes: usize,
    },
    /// The file could not be closed cleanly.
    NotClosed(&'a rusqlite::Error),
    /// The writer thread panicked.
    Panicked,
}

/// A queue and its writer thread. The thread ends when the queue is closed or dropped.
pub(crate) struct GroupCommit<Q: WriteQueue> {
    shared: Arc<Shared<Q>>,
    thread: Mutex<Option<JoinHandle<()>>>,
}

struct Shared<Q: WriteQueue> {
    state: Mutex<WriterState<Q>>,
    news: Condvar,
}

/// The writer's state, protected by its lock.
pub(crate) struct WriterState<Q> {
    pub(crate) queue: Q,
    waiting: Vec<oneshot::Sender<()>>,
    /// An empty buffer that takes the place of `waiting` while the list of waiting callers is part of a batch.
    waiting_spare: Vec<oneshot::Sender<()>>,
    is_urgent: bool,
    asleep: Asleep,
    closing: bool,
    fault: Option<Fault>,
}

/// The condition under which the writer thread must be woken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Asleep {
    /// The thread need not be woken: it is running, or will wake up by itself.
    No,
    /// The thread must be woken if a change becomes due before this time. If the time is `None`, every change that
    /// becomes due must wake the thread.
    Until(Option<Moment>),
    /// The thread must be woken if enough changes are queued for a commit.
    Batching,
}

struct Batch<Q: WriteQueue> {
    work: Q::Batch,
    waiting: Vec<oneshot::Sender<()>>,
}

impl<Q: WriteQueue> GroupCommit<Q> {
    /// Starts the writer thread. `commit` writes a batch completely or not at all; it may leave unfinished work in the
    /// batch for a later commit. The `bool` passed to it is true if a caller waits for the commit.
    pub(crate) fn start(
        queue: Q,
        conn: Connection,
        lock: FileLock,
        commit: impl FnMut(&mut Connection, &mut Q::Batch, bool) -> Result<()> + Send + 'static,
    ) -> io::Result<Self> {
        let shared = Arc::new(Shared::new(queue));
        let for_thread = Arc::clone(&shared);
        let thread = thread::Builder::new()
            .name(Q::THREAD.into())
            .spawn(move || for_thread.run(conn, lock, commit))?;
        Ok(Self {
            shared,
            thread: Mutex::new(Some(thread)),
        })
    }

    /// Creates a queue without a writer thread, for tests.
    #[cfg(test)]
    pub(crate) fn without_thread(queue: Q) -> Self {
        Self {
            shared: Arc::new(Shared::new(queue)),
            thread: Mutex::new(None),
        }
    }

    /// Marks the thread as asleep until `until`, so that a test can check which changes would wake it.
    #[cfg(test)]
    pub(crate) fn pretend_asleep(&self, until: Moment) {
        self.shared.lock().asleep = Asleep::Until(Some(until));
    }

    #[cfg(test)]
    pub(crate) fn is_awake(&self) -> bool {
        self.shared.lock().asleep == Asleep::No
    }

    /// Locks the queue. Fails if a caller has panicked while it had the lock; the store decides whether the queue is
    /// still valid.
    pub(crate) fn lock(&self) -> LockResult<MutexGuard<'_, WriterState<Q>>> {
        self.shared.state.lock()
    }

    /// Unlocks the queue. Wakes the thread if it must now act earlier than planned.
    pub(crate) fn submit(&self, mut state: MutexGuard<'_, WriterState<Q>>, urgency: Urgency) {
        state.is_urgent |= urgency == Urgency::Immediate;
        let wakes = match (state.asleep, urgency) {
            (Asleep::No, _) | (_, Urgency::None) => false,
            (Asleep::Until(until), Urgency::At(due)) => until.is_none_or(|until| due < until),
            (Asleep::Until(_), Urgency::Batch | Urgency::Immediate) => true,
            (Asleep::Batching, _) => !state.waits_for_more(),
        };
        if wakes {
            state.asleep = Asleep::No;
        }
        drop(state);
        if wakes {
            self.shared.news.notify_one();
        }
    }

    /// Waits for a commit. If the commit fails, returns the store's error text.
    pub(crate) async fn committed(&self, committed: Committed) -> Result<(), BoxError> {
        match committed.await {
            Ok(()) => Ok(()),
            Err(_) => {
                let fault = self.fault().unwrap_or(Fault::Stopped);
                Err(Q::explain(&fault).into())
            }
        }
    }

    /// Returns the reason why no changes are written now; `None` if changes are written.
    pub(crate) fn fault(&self) -> Option<Fault> {
        self.shared.lock().fault.clone()
    }

    /// Refuses new changes. The thread writes the queue and then ends.
    #[cfg(feature = "outbox")]
    pub(crate) fn stop(&self) {
        self.shared.stop();
    }

    /// Calls `first`, refuses new changes, and waits until the file is closed. Only the first call of this method
    /// waits.
    pub(crate) async fn close(&self, first: impl FnOnce() + Send + 'static) {
        let thread = self.thread.lock();
        let thread = thread.unwrap_or_else(PoisonError::into_inner).take();
        let shared = Arc::clone(&self.shared);
        let closing = tokio::task::spawn_blocking(move || {
            first();
            shared.stop();
            thread.map(JoinHandle::join)
        });
        if !matches!(closing.await, Ok(None | Some(Ok(())))) {
            Q::report(&Incident::Panicked);
        }
    }
}

impl<Q: WriteQueue> Drop for GroupCommit<Q> {
    fn drop(&mut self) {
        // The writer's thread is not joined, because this drop may run on an async thread. The writer's thread writes
        // the queue and then ends by itself.
        self.shared.stop();
    }
}

impl<Q: WriteQueue> WriterState<Q> {
    /// Fails if nothing will be written any more. A temporary fault does not count.
    pub(crate) fn takes_more(&self) -> Result<(), BoxError> {
        match &self.fault {
            None | Some(Fault::Passing(_)) => Ok(()),
            Some(fault) => Err(Q::explain(fault).into()),
        }
    }

    /// Fails while the queue cannot be written, whether temporarily or permanently.
    pub(crate) fn can_write(&self) -> Result<(), BoxError> {
        match &self.fault {
            None => Ok(()),
            Some(fault) => Err(Q::explain(fault).into()),
        }
    }

    /// Returns whether the queue is full. Callers should then make no more changes.
    pub(crate) fn is_full(&self) -> bool {
        self.len() >= Q::PACE.queue_max
    }

    /// Returns a receiver that resolves when everything queued so far is written. The caller must submit its change
    /// with [`Urgency::Batch`] or a higher urgency.
    pub(crate) fn wait(&mut self) -> Committed {
        let (sender, committed) = oneshot::channel();
        self.waiting.push(sender);
        committed
    }

    fn len(&self) -> usize {
        self.queue.len().max(self.waiting.len())
    }

    fn waits_for_more(&self) -> bool {
        !self.is_urgent && !self.closing && self.fault.is_none() && self.len() < Q::PACE.enough
    }

    fn due(&self, now: Moment) -> Option<Moment> {
        if self.closing || !self.waiting.is_empty() {
            Some(now)
        } else {
            self.queue.due(now)
        }
    }

    /// Takes the changes that are due, or all changes if a caller waits.
    fn take(&mut self) -> Batch<Q> {
        let all =
            self.is_urgent || self.closing || self.fault.is_some() || !self.waiting.is_empty();
        self.is_urgent = false;
        Batch {
            work: self.queue.take((!all).then(Moment::now)),
            waiting: mem::replace(&mut self.waiting, mem::take(&mut self.waiting_spare)),
        }
    }

    /// Takes back a written batch. If the queue is closing, the work that remains in the batch is dropped.
    fn take_back(&mut self, done: Batch<Q>) {
        self.waiting_spare = done.waiting;
        if !self.closing {
            self.queue.reuse(done.work);
        }
    }
}

impl<Q: WriteQueue> Batch<Q> {
    fn is_empty(&self) -> bool {
        self.waiting.is_empty() && Q::size(&self.work) == 0
    }

    /// Answers the callers that wait for this commit.
    fn acknowledge(&mut self) {
        for committed in self.waiting.drain(..) {
            // The caller may have stopped waiting. Its change was written anyway.
            let _ = committed.send(());
        }
        Q::empty(&mut self.work);
        // Frees the memory of an unusually long list.
        self.waiting.shrink_to(WAITING_SPARE_MAX);
    }
}

/// The largest capacity that an empty list of waiting callers keeps.
const WAITING_SPARE_MAX: usize = 1_024;

impl<Q: WriteQueue> Shared<Q> {
    fn new(queue: Q) -> Self {
        let state = WriterState {
            queue,
            waiting: Vec::new(),
            waiting_spare: Vec::new(),
            is_urgent: false,
            asleep: Asleep::No,
            closing: false,
            fault: None,
        };
        Self {
            state: Mutex::new(state),
            news: Condvar::new(),
        }
    }

    /// Locks the state and ignores poisoning, for code that does not use the store's queue. All other fields are
    /// consistent after a caller's panic.
    fn lock(&self) -> MutexGuard<'_, WriterState<Q>> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn stop(&self) {
        {
            let mut state = self.lock();
            state.closing = true;
            state.fault.get_or_insert(Fault::Closed);
        }
        self.news.notify_one();
    }

    fn run(
        &self,
        mut conn: Connection,
        lock: FileLock,
        mut commit: impl FnMut(&mut Connection, &mut Q::Batch, bool) -> Result<()>,
    ) {
        // When this guard is dropped, even by a panic, further changes are refused.
        let stopped = StopGuard(self);
        let (mut done, mut failing) = (None, false);
        while let Some(mut batch) = self.next_batch(done.take()) {
            let awaited = !batch.waiting.is_empty();
            match commit(&mut conn, &mut batch.work, awaited) {
                Ok(()) => {
                    if mem::take(&mut failing) {
                        self.recover();
                    }
                    batch.acknowledge();
                    done = Some(batch);
                }
                Err(cause) => {
                    failing = self.fail(batch, &cause);
                    if !failing {
                        break;
                    }
                }
            }
        }
        drop(stopped);
        if let Err((_, cause)) = conn.close() {
            Q::report(&Incident::NotClosed(&cause));
        }
        drop(lock);
    }

    /// Returns the next batch: the changes that are due, or all changes if a caller waits. `None` after the queue is
    /// closed and written. The batch may be empty while a failed commit is retried.
    fn next_batch(&self, done: Option<Batch<Q>>) -> Option<Batch<Q>> {
        let mut state = self.lock();
        if let Some(done) = done {
            state.take_back(done);
        }
        if matches!(state.fault, Some(Fault::Passing(_))) {
            (state, _) = self
                .news
                .wait_timeout_while(state, Q::PACE.retry, |state| !state.closing)
                .unwrap_or_else(PoisonError::into_inner);
            let batch = state.take();
            return (!(batch.is_empty() && state.closing)).then_some(batch);
        }
        loop {
            state = self.wait_until_due(state);
            if state.waits_for_more() {
                let more = |state: &mut WriterState<Q>| {
                    let more = state.waits_for_more();
                    state.asleep = if more { Asleep::Batching } else { Asleep::No };
                    more
                };
                (state, _) = self
                    .news
                    .wait_timeout_while(state, Q::PACE.window, more)
                    .unwrap_or_else(PoisonError::into_inner);
                state.asleep = Asleep::No;
            }
            let batch = state.take();
            if !batch.is_empty() {
                return Some(batch);
            }
            if state.closing {
                return None;
            }
        }
    }

    /// Waits until a change is due. Each wake-up computes the time again, because changes may have been added or taken.
    fn wait_until_due<'a>(
        &self,
        mut state: MutexGuard<'a, WriterState<Q>>,
    ) -> MutexGuard<'a, WriterState<Q>> {
        loop {
            let now = Moment::now();
            let due = state.due(now);
            if due.is_some_and(|due| due <= now) {
                return state;
            }
            state.asleep = Asleep::Until(due);
            state = match due {
                Some(due) => {
                    let waited = self.news.wait_timeout(state, due - now);
                    waited.unwrap_or_else(PoisonError::into_inner).0
                }
                None => (self.news.wait(state)).unwrap_or_else(PoisonError::into_inner),
            };
            state.asleep = Asleep::No;
        }
    }

    fn recover(&self) {
        let mut state = self.lock();
        state.fault = state.closing.then_some(Fault::Closed);
        state.queue.recovered();
    }

    /// Handles a failed commit, and returns whether it will be retried. Drops the senders of waiting callers, so their
    /// wait fails.
    fn fail(&self, batch: Batch<Q>, cause: &rusqlite::Error) -> bool {
        let Batch { work, waiting } = batch;
        let changes = Q::size(&work).max(waiting.len());
        {
            let mut state = self.lock();
            if !state.closing && state.queue.put_back(work, cause) {
                state.fault = Some(Fault::Passing(cause.to_string().into()));
                drop(state);
                drop(waiting);
                return true;
            }
        }
        Q::report(&Incident::Broken { cause, changes });
        self.break_down(Fault::Broken(cause.to_string().into()));
        drop(waiting);
        false
    }

    fn break_down(&self, fault: Fault) {
        let lost = {
            let mut state = self.lock();
            if !matches!(state.fault, Some(Fault::Broken(_))) {
                state.fault = Some(fault);
            }
            state.take()
        };
        drop(lost);
    }
}

struct StopGuard<'a, Q: WriteQueue>(&'a Shared<Q>);

impl<Q: WriteQueue> Drop for StopGuard<'_, Q> {
    fn drop(&mut self) {
        if thread::panicking() || self.0.lock().fault.is_none() {
            self.0.break_down(Fault::Stopped);
        }
    }
}

#[cfg(test)]
mod tests;
