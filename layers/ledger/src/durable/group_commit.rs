//! Writes a file from one thread, through a queue: changes that arrive together share a commit.
//!
//! A store defines what is queued, which of it is due, and which statements it becomes ([`WriteQueue`], and the closure
//! that the thread is started with). Everything else is here, once:
//!
//! - **Order.** A change is made and queued under one lock, so that changes reach the file in the order in which they
//!   were made.
//! - **Gathering.** Due changes wait at most [`Pace::window`] for more, unless [`Pace::enough`] are queued or a change
//!   is urgent. The thread is woken only if the time at which it must act has changed, since each wake-up is a system
//!   call.
//! - **Acknowledging.** A waiting caller is answered after the commit that contains its change and all before it. If
//!   the commit fails, the caller's sender is dropped; the [`Fault`] is set by then.
//! - **Failing.** A commit is written whole or not at all. A store may take a batch back, to be retried every
//!   [`Pace::retry`]; otherwise nothing more is written until a restart. A panic of the thread is such a fault, too.
//! - **Closing.** New changes are refused; the queue is written; then the connection is closed, and the lock is
//!   released last, or the next gateway would find an open file.

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

/// Real time: pausing the clock in a test does not stop the thread.
#[expect(
    clippy::disallowed_types,
    reason = "the writer's thread must use real time, even if tests pause tokio's clock"
)]
pub(crate) type Moment = std::time::Instant;

/// Resolves once the change, and everything before it, is in the file.
pub(crate) type Committed = oneshot::Receiver<()>;

/// The changes that wait to be written, under the writer's lock.
pub(crate) trait WriteQueue: Send + 'static {
    /// The changes that are written in one commit.
    type Batch: Send;

    /// The name of the writer's thread.
    const THREAD: &'static str;
    /// The time at which the thread commits.
    const PACE: Pace;

    /// The number of queued changes.
    fn len(&self) -> usize;

    /// Returns when a queued change must be written although no caller waits for it; `None` if there is no such
    /// change.
    fn due(&self, now: Moment) -> Option<Moment>;

    /// Takes the changes that are due at this time, or all of them.
    fn take(&mut self, due: Option<Moment>) -> Self::Batch;

    /// The number of changes in a batch.
    fn size(batch: &Self::Batch) -> usize;

    /// Drops changes that have been written. Called outside of the lock, after waiting callers were answered.
    fn empty(batch: &mut Self::Batch);

    /// Takes back an emptied batch, to reuse its buffers or for further work in it.
    fn reuse(&mut self, batch: Self::Batch);

    /// Takes back a batch that could not be written, if writing it may succeed later. Returns whether it was taken
    /// back. By default no fault is temporary.
    fn put_back(&mut self, batch: Self::Batch, cause: &rusqlite::Error) -> bool {
        let _ = (batch, cause);
        false
    }

    /// Called at the first commit after a batch was put back.
    fn recovered(&mut self) {}

    /// The error text for callers while nothing is written.
    fn explain(fault: &Fault) -> String;

    /// Writes an incident to the log.
    fn report(incident: &Incident<'_>);
}

/// The times at which a writer commits.
#[derive(Debug)]
pub(crate) struct Pace {
    /// The time for which due changes wait for more, to share a commit.
    pub(crate) window: Duration,
    /// With this many changes queued, a commit does not wait for more.
    pub(crate) enough: usize,
    /// The largest number of queued changes ([`WriterState::is_full`]).
    pub(crate) queue_max: usize,
    /// The interval at which a batch that was put back is retried.
    pub(crate) retry: Duration,
}

/// How soon the thread must act on what was queued.
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
    /// Commit soon; may wait for a batch.
    Gather,
    /// Commit immediately, with everything queued.
    Hurry,
}

/// The reason why nothing is written.
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

/// A queue with its thread. The thread ends when this is closed or dropped.
pub(crate) struct GroupCommit<Q: WriteQueue> {
    shared: Arc<Shared<Q>>,
    thread: Mutex<Option<JoinHandle<()>>>,
}

struct Shared<Q: WriteQueue> {
    state: Mutex<WriterState<Q>>,
    news: Condvar,
}

/// The writer's state, behind its lock.
pub(crate) struct WriterState<Q> {
    pub(crate) queue: Q,
    waiting: Vec<oneshot::Sender<()>>,
    /// A spare buffer for the next waiting callers.
    waiting_spare: Vec<oneshot::Sender<()>>,
    hurry: bool,
    asleep: Asleep,
    closing: bool,
    fault: Option<Fault>,
}

/// The condition under which the thread must be woken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Asleep {
    /// Never: it is running, or wakes up by itself.
    No,
    /// Wake the thread if something becomes due before this time.
    Until(Option<Moment>),
    /// Wake the thread if enough changes are queued for a commit.
    Gathering,
}

struct Batch<Q: WriteQueue> {
    work: Q::Batch,
    waiting: Vec<oneshot::Sender<()>>,
}

impl<Q: WriteQueue> GroupCommit<Q> {
    /// Starts the thread. `commit` writes a batch, whole or not at all, and leaves in it what is still to be done. Its
    /// flag is whether a caller waits for the commit.
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

    /// Makes the thread look asleep until `until` to those who submit.
    #[cfg(test)]
    pub(crate) fn pretend_asleep(&self, until: Moment) {
        self.shared.lock().asleep = Asleep::Until(Some(until));
    }

    #[cfg(test)]
    pub(crate) fn is_awake(&self) -> bool {
        self.shared.lock().asleep == Asleep::No
    }

    /// Fails if a step under the lock has panicked. Whether that spoils the queue depends on the store.
    pub(crate) fn lock(&self) -> LockResult<MutexGuard<'_, WriterState<Q>>> {
        self.shared.state.lock()
    }

    /// Unlocks the queue, and wakes the thread if the change affects when it must act.
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

    /// A future that waits for a commit.
    pub(crate) async fn committed(&self, committed: Committed) -> Result<(), BoxError> {
        match committed.await {
            Ok(()) => Ok(()),
            Err(_) => {
                let fault = self.fault().unwrap_or(Fault::Stopped);
                Err(Q::explain(&fault).into())
            }
        }
    }

    /// Returns the reason why nothing is written now, if there is one.
    pub(crate) fn fault(&self) -> Option<Fault> {
        self.shared.lock().fault.clone()
    }

    /// Refuses new changes; the thread ends once the queue is written.
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
    /// Fails once nothing more will be written. A temporary fault is not an error here.
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

    /// Returns whether the queue is full and no more changes should be made.
    pub(crate) fn is_full(&self) -> bool {
        self.len() >= Q::PACE.queue_max
    }

    /// Waits for everything queued by now. The change must be submitted with [`Urgency::Gather`] or more.
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

    /// Takes due changes, or all of them if a caller waits.
    fn take(&mut self) -> Batch<Q> {
        let all = self.hurry || self.closing || self.fault.is_some() || !self.waiting.is_empty();
        self.hurry = false;
        Batch {
            work: self.queue.take((!all).then(Moment::now)),
            waiting: mem::replace(&mut self.waiting, mem::take(&mut self.waiting_spare)),
        }
    }

    /// Takes back a written batch. Once the queue is closing, no further work is started.
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

    /// Sends the result of a commit to the callers that wait for it.
    fn acknowledge(&mut self) {
        for committed in self.waiting.drain(..) {
            // A caller may have stopped waiting; the change is written all the same.
            let _ = committed.send(());
        }
        Q::empty(&mut self.work);
        // A buffer that was large once need not stay large.
        self.waiting.shrink_to(WAITING_SPARE_MAX);
    }
}

/// Capacity that is kept for waiting callers, at most.
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

    /// Ignores poisoning, for fields that a panicking step cannot have spoiled: everything but the store's queue.
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
        // Stops serving after a panic, too.
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

    /// Returns the next batch: what is due, or everything if a caller waits; `None` once the queue is closed and
    /// written. May be empty while a fault is retried.
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

    /// Waits until something is due. Each wake-up computes the due time again, since it may have moved or disappeared.
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

    /// Handles a failed commit and returns whether it will be retried. Waiting callers see their senders dropped.
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
