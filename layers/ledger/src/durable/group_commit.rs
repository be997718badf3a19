//! Writes a file from one thread, through a queue. Changes that arrive together share a commit.
//!
//! A store defines what a queued change is, when it is due, and which statements it becomes ([`WriteQueue`], and the
//! closure that the thread is started with). This module implements the rest for all stores:
//!
//! - **Order.** A change is made and queued under one lock, so that changes reach the file in the order in which they
//!   were made.
//! - **Gathering.** Due changes wait at most [`Pace::window`] for more changes, unless [`Pace::enough`] are queued or a
//!   change is urgent. The thread is woken only if the time at which it must act has changed, since each wake-up is a
//!   system call.
//! - **Acknowledging.** A waiting caller is answered after the commit that contains its change and all earlier changes.
//!   If the commit fails, the caller's sender is dropped; the [`Fault`] is set by then.
//! - **Failing.** A commit is written whole or not at all. A store may take a failed batch back, to be retried every
//!   [`Pace::retry`]. Otherwise nothing more is written until a restart. A panic of the thread has the same effect.
//! - **Closing.** New changes are refused, the queue is written, the connection is closed, and the lock is released.
//!   The lock is last, since otherwise the next gateway would find an open file.

use std::{
    fs::File,
    io, mem,
    sync::{Arc, Condvar, LockResult, Mutex, MutexGuard, PoisonError},
    thread::{self, JoinHandle},
    time::Duration,
};

use rusqlite::Connection;
use tokio::sync::oneshot;

use crate::BoxError;

/// Real time: a test that pauses tokio's clock does not stop the thread.
#[expect(
    clippy::disallowed_types,
    reason = "the writer's thread must use real time, even if tests pause tokio's clock"
)]
pub(crate) type Moment = std::time::Instant;

/// Resolves when the change, and every earlier change, is in the file.
pub(crate) type Committed = oneshot::Receiver<()>;

/// The changes that wait to be written. The writer's lock protects them.
pub(crate) trait WriteQueue: Send + 'static {
    /// The changes that are written in one commit.
    type Batch: Send;

    /// The name of the writer's thread.
    const THREAD: &'static str;
    /// How soon, and with how many changes, the thread commits.
    const PACE: Pace;

    /// The number of queued changes.
    fn len(&self) -> usize;

    /// Returns when a queued change must be written although no caller waits for it; `None` if there is no such
    /// change.
    fn due(&self, now: Moment) -> Option<Moment>;

    /// Takes the changes that are due at this time; `None` takes all changes.
    fn take(&mut self, due: Option<Moment>) -> Self::Batch;

    /// Returns the number of changes in a batch.
    fn size(batch: &Self::Batch) -> usize;

    /// Drops the changes of a written batch. Called without the lock, after waiting callers were answered.
    fn empty(batch: &mut Self::Batch);

    /// Takes back an emptied batch, to reuse its buffers or to queue further work that it contains.
    fn reuse(&mut self, batch: Self::Batch);

    /// Takes back a batch that could not be written, if a retry may succeed. Returns whether the queue took it back. By
    /// default every fault is permanent.
    fn put_back(&mut self, batch: Self::Batch, cause: &rusqlite::Error) -> bool {
        let _ = (batch, cause);
        false
    }

    /// Called at the first successful commit after a batch was put back.
    fn recovered(&mut self) {}

    /// Returns the error text that callers get while nothing is written.
    fn explain(fault: &Fault) -> String;

    /// Writes an incident to the log.
    fn report(incident: &Incident<'_>);
}

/// How soon, and with how many changes, a writer commits.
#[derive(Debug)]
pub(crate) struct Pace {
    /// The time for which due changes wait for more changes, to share a commit.
    pub(crate) window: Duration,
    /// With this many changes queued, a commit does not wait for more.
    pub(crate) enough: usize,
    /// The largest number of queued changes ([`WriterState::is_full`]).
    pub(crate) queue_max: usize,
    /// The interval at which a batch that was put back is retried.
    pub(crate) retry: Duration,
}

/// How soon the thread must act on what a caller has queued.
#[cfg_attr(
    not(feature = "outbox"),
    allow(dead_code, reason = "only the outbox has changes that may wait")
)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Urgency {
    /// Nothing is queued.
    None,
    /// Commit at this time.
    Due(Moment),
    /// Commit soon; may wait for more changes to share the commit.
    Gather,
    /// Commit immediately, with all queued changes.
    Hurry,
}

/// The reason why no changes are written.
#[derive(Clone, Debug)]
pub(crate) enum Fault {
    /// A commit failed and is retried.
    Passing(Arc<str>),
    /// A commit failed permanently.
    Broken(Arc<str>),
    /// The thread panicked.
    Stopped,
    /// The queue was closed.
    Closed,
}

/// A fault that operators must see.
#[derive(Debug)]
pub(crate) enum Incident<'a> {
    /// A commit failed permanently.
    Broken {
        cause: &'a rusqlite::Error,
        /// The number of changes in the commit.
        changes: usize,
    },
    /// The file was not closed cleanly.
    NotClosed(&'a rusqlite::Error),
    /// The writer's thread panicked.
    Panicked,
}

/// A queue with its thread. The thread ends when the queue is closed or dropped.
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
    /// An empty buffer that replaces `waiting` while the list of waiting callers is in a batch.
    waiting_spare: Vec<oneshot::Sender<()>>,
    hurry: bool,
    asleep: Asleep,
    closing: bool,
    fault: Option<Fault>,
}

/// The condition under which the thread must be woken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Asleep {
    /// Never: the thread is running, or wakes up by itself.
    No,
    /// If a change becomes due before this time. `None` means at any due change.
    Until(Option<Moment>),
    /// If enough changes are queued for a commit.
    Gathering,
}

struct Batch<Q: WriteQueue> {
    work: Q::Batch,
    waiting: Vec<oneshot::Sender<()>>,
}

impl<Q: WriteQueue> GroupCommit<Q> {
    /// Starts the thread. `commit` writes a batch, whole or not at all, and leaves further work in the batch, if any.
    /// The flag that `commit` gets is whether a caller waits for this commit.
    pub(crate) fn start(
        queue: Q,
        conn: Connection,
        lock: File,
        commit: impl FnMut(&mut Connection, &mut Q::Batch, bool) -> rusqlite::Result<()>
        + Send
        + 'static,
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

    /// Creates a queue without a thread, for tests.
    #[cfg(test)]
    pub(crate) fn without_thread(queue: Q) -> Self {
        Self {
            shared: Arc::new(Shared::new(queue)),
            thread: Mutex::new(None),
        }
    }

    /// Makes the state say that the thread sleeps until `until`, for callers that submit changes.
    #[cfg(test)]
    pub(crate) fn pretend_asleep(&self, until: Moment) {
        self.shared.lock().asleep = Asleep::Until(Some(until));
    }

    #[cfg(test)]
    pub(crate) fn is_awake(&self) -> bool {
        self.shared.lock().asleep == Asleep::No
    }

    /// Locks the queue. Fails if a caller has panicked under the lock; the store decides whether its queue is still
    /// valid.
    pub(crate) fn lock(&self) -> LockResult<MutexGuard<'_, WriterState<Q>>> {
        self.shared.state.lock()
    }

    /// Unlocks the queue, and wakes the thread if the change affects when the thread must act.
    pub(crate) fn submit(&self, mut state: MutexGuard<'_, WriterState<Q>>, urgency: Urgency) {
        state.hurry |= urgency == Urgency::Hurry;
        let wakes = match (state.asleep, urgency) {
            (Asleep::No, _) | (_, Urgency::None) => false,
            (Asleep::Until(until), Urgency::Due(due)) => until.is_none_or(|until| due < until),
            (Asleep::Until(_), Urgency::Gather | Urgency::Hurry) => true,
            (Asleep::Gathering, _) => !state.waits_for_more(),
        };
        if wakes {
            state.asleep = Asleep::No;
        }
        drop(state);
        if wakes {
            self.shared.news.notify_one();
        }
    }

    /// Waits for a commit. Fails with the store's error text if it failed.
    pub(crate) async fn committed(&self, committed: Committed) -> Result<(), BoxError> {
        match committed.await {
            Ok(()) => Ok(()),
            Err(_) => {
                let fault = self.fault().unwrap_or(Fault::Stopped);
                Err(Q::explain(&fault).into())
            }
        }
    }

    /// Returns the reason why no changes are written now, if there is one.
    pub(crate) fn fault(&self) -> Option<Fault> {
        self.shared.lock().fault.clone()
    }

    /// Refuses new changes. The thread ends after it has written the queue.
    #[cfg(feature = "outbox")]
    pub(crate) fn stop(&self) {
        self.shared.stop();
    }

    /// Calls `first`, refuses new changes, and waits until the file is closed. If called twice, only the first call
    /// waits.
    pub(crate) async fn close(&self, first: impl FnOnce() + Send + 'static) {
        let thread = self
            .thread
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .take();
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
        // The thread is not joined, since the drop may happen on an async thread. It writes the queue and ends.
        self.shared.stop();
    }
}

impl<Q: WriteQueue> WriterState<Q> {
    /// Fails if nothing more will be written. A temporary fault does not count.
    pub(crate) fn takes_more(&self) -> Result<(), BoxError> {
        match &self.fault {
            None | Some(Fault::Passing(_)) => Ok(()),
            Some(fault) => Err(Q::explain(fault).into()),
        }
    }

    /// Fails as long as the queue cannot be written.
    pub(crate) fn can_write(&self) -> Result<(), BoxError> {
        match &self.fault {
            None => Ok(()),
            Some(fault) => Err(Q::explain(fault).into()),
        }
    }

    /// Returns whether the queue is full, so that callers should make no more changes.
    pub(crate) fn is_full(&self) -> bool {
        self.len() >= Q::PACE.queue_max
    }

    /// Waits until everything queued by now is written. The change must be submitted with [`Urgency::Gather`] or more.
    pub(crate) fn wait(&mut self) -> Committed {
        let (sender, committed) = oneshot::channel();
        self.waiting.push(sender);
        committed
    }

    fn len(&self) -> usize {
        self.queue.len().max(self.waiting.len())
    }

    fn waits_for_more(&self) -> bool {
        !self.hurry && !self.closing && self.fault.is_none() && self.len() < Q::PACE.enough
    }

    fn due(&self, now: Moment) -> Option<Moment> {
        if self.closing || !self.waiting.is_empty() {
            Some(now)
        } else {
            self.queue.due(now)
        }
    }

    /// Takes due changes, or all changes if a caller waits.
    fn take(&mut self) -> Batch<Q> {
        let all = self.hurry || self.closing || self.fault.is_some() || !self.waiting.is_empty();
        self.hurry = false;
        Batch {
            work: self.queue.take((!all).then(Moment::now)),
            waiting: mem::replace(&mut self.waiting, mem::take(&mut self.waiting_spare)),
        }
    }

    /// Takes back a written batch. While the queue is closing, the batch's further work is dropped.
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

    /// Reports a commit to the callers that wait for it.
    fn acknowledge(&mut self) {
        for committed in self.waiting.drain(..) {
            // A caller may have stopped waiting; its change is written all the same.
            let _ = committed.send(());
        }
        Q::empty(&mut self.work);
        // Gives memory back after an unusually large batch.
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
            hurry: false,
            asleep: Asleep::No,
            closing: false,
            fault: None,
        };
        Self {
            state: Mutex::new(state),
            news: Condvar::new(),
        }
    }

    /// Locks the state and ignores poisoning, to use all fields except the store's queue. A caller that panics leaves
    /// these fields consistent.
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
        lock: File,
        mut commit: impl FnMut(&mut Connection, &mut Q::Batch, bool) -> rusqlite::Result<()>,
    ) {
        // When dropped, refuses further changes, also after a panic.
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

    /// Returns the next batch: the due changes, or all changes if a caller waits; `None` after the queue is closed and
    /// written. The batch may be empty while a failed commit is retried.
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
                    state.asleep = if more { Asleep::Gathering } else { Asleep::No };
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

    /// Waits until a change is due. Each wake-up computes the due time again, since it may have moved or disappeared.
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
                None => self
                    .news
                    .wait(state)
                    .unwrap_or_else(PoisonError::into_inner),
            };
            state.asleep = Asleep::No;
        }
    }

    fn recover(&self) {
        let mut state = self.lock();
        state.fault = state.closing.then_some(Fault::Closed);
        state.queue.recovered();
    }

    /// Handles a failed commit and returns whether it will be retried. Drops the senders of waiting callers, which
    /// makes their wait fail.
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
