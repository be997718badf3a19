//! The one thread that writes a file, and the queue before it: what comes together shares a commit.
//!
//! A store says what waits, what of it is due and what statements it comes to ([`WriteQueue`], and the closure that
//! the thread is started with). The rest is here, once:
//!
//! - **Order.** A change is made and queued under one lock, so changes reach the file in the order in which they
//!   were made.
//! - **Gathering.** What is due waits up to [`Pace::window`] for more, unless there is [`Pace::enough`] or somebody
//!   is in a hurry. The thread is woken only where that changes when it has to act: each time asks the system.
//! - **Acknowledging.** Whoever waits is answered after the commit with his change and all before it. One whose
//!   commit failed is answered by the loss of his sender, and finds the [`Fault`] set by then.
//! - **Failing.** A commit is written whole or not at all. A store may take a batch back, to be tried again each
//!   [`Pace::retry`]; otherwise nothing more is written until a restart. A panic of the thread is such a fault, too.
//! - **Closing.** Nothing more is taken; what waits is written; then the connection is closed, and the lock let go
//!   of last, or the next gateway would meet an open file.

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

/// Real time: a paused test does not stop the thread.
#[expect(
    clippy::disallowed_types,
    reason = "changes come from where tokio's clock may be paused, the thread waits outside of it"
)]
pub(crate) type Moment = std::time::Instant;

/// Resolves once the change is in the file, and everything before it.
pub(crate) type Committed = oneshot::Receiver<()>;

/// What waits for the file, under the writer's lock.
pub(crate) trait WriteQueue: Send + 'static {
    /// What one commit writes.
    type Batch: Send;

    /// How the thread is called.
    const THREAD: &'static str;
    /// How it gathers.
    const PACE: Pace;

    /// How much waits.
    fn len(&self) -> usize;

    /// When something of it is to be written though nobody waits for that; `None` where nothing is.
    fn due(&self, now: Moment) -> Option<Moment>;

    /// Takes what is due by then, or everything.
    fn take(&mut self, due: Option<Moment>) -> Self::Batch;

    /// How much there is in a batch.
    fn size(batch: &Self::Batch) -> usize;

    /// Drops what has been written. Called outside of the lock, after those who wait were answered.
    fn empty(batch: &mut Self::Batch);

    /// Takes back what is left of an emptied batch: its room, or further work.
    fn reuse(&mut self, batch: Self::Batch);

    /// Takes back a batch that could not be written, if it may be the next time: says whether it has. By default
    /// no fault is one that passes.
    fn put_back(&mut self, batch: Self::Batch, cause: &rusqlite::Error) -> bool {
        let _ = (batch, cause);
        false
    }

    /// The first commit since a batch was put back.
    fn recovered(&mut self) {}

    /// Why nothing is written, for whoever asked for it.
    fn explain(fault: &Fault) -> String;

    /// Writes an incident to the log.
    fn report(incident: &Incident<'_>);
}

/// How a writer gathers.
#[derive(Debug)]
pub(crate) struct Pace {
    /// So long what is due waits for more, to share a commit.
    pub(crate) window: Duration,
    /// So many are commit enough.
    pub(crate) enough: usize,
    /// So many may wait ([`WriterState::is_full`]).
    pub(crate) queue_max: usize,
    /// How often a batch that was put back is tried.
    pub(crate) retry: Duration,
}

/// How soon the thread has to act on what was queued.
#[cfg_attr(
    not(feature = "outbox"),
    allow(dead_code, reason = "a ledger's file has nothing that may wait")
)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Urgency {
    /// Nothing came of it.
    None,
    /// Not before then.
    Due(Moment),
    /// Now, but a shared commit is worth the wait.
    Gather,
    /// Now, with all that waits.
    Hurry,
}

/// Why nothing is written.
#[derive(Clone, Debug)]
pub(crate) enum Fault {
    /// It is tried again.
    Passing(Arc<str>),
    /// A commit failed, for good.
    Broken(Arc<str>),
    /// The thread panicked.
    Stopped,
    /// Somebody closed it.
    Closed,
}

/// What an operator has to know.
#[derive(Debug)]
pub(crate) enum Incident<'a> {
    /// A commit failed, for good.
    Broken {
        cause: &'a rusqlite::Error,
        /// How many changes it had.
        changes: usize,
    },
    /// The file was not closed cleanly.
    NotClosed(&'a rusqlite::Error),
    /// The thread panicked.
    Panicked,
}

/// A queue with its thread, which ends when this is closed or dropped.
pub(crate) struct GroupCommit<Q: WriteQueue> {
    shared: Arc<Shared<Q>>,
    thread: Mutex<Option<JoinHandle<()>>>,
}

struct Shared<Q: WriteQueue> {
    state: Mutex<WriterState<Q>>,
    news: Condvar,
}

/// What is under the lock.
pub(crate) struct WriterState<Q> {
    pub(crate) queue: Q,
    waiting: Vec<oneshot::Sender<()>>,
    /// Room for those who wait next.
    waiting_spare: Vec<oneshot::Sender<()>>,
    hurry: bool,
    asleep: Asleep,
    closing: bool,
    fault: Option<Fault>,
}

/// What the thread waits for, if it has to be woken for that.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Asleep {
    /// It acts, or looks again by itself.
    No,
    /// For something to be due, before then.
    Until(Option<Moment>),
    /// For enough to share its commit.
    Gathering,
}

struct Batch<Q: WriteQueue> {
    work: Q::Batch,
    waiting: Vec<oneshot::Sender<()>>,
}

impl<Q: WriteQueue> GroupCommit<Q> {
    /// Starts the thread. `commit` writes a batch, whole or not at all, and leaves in it what is still to be done;
    /// the flag is whether anybody waits for it.
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

    /// A queue that nobody writes.
    #[cfg(test)]
    pub(crate) fn without_thread(queue: Q) -> Self {
        Self {
            shared: Arc::new(Shared::new(queue)),
            thread: Mutex::new(None),
        }
    }

    /// Has the thread asleep until then, for all that those who submit can see.
    #[cfg(test)]
    pub(crate) fn pretend_asleep(&self, until: Moment) {
        self.shared.lock().asleep = Asleep::Until(Some(until));
    }

    #[cfg(test)]
    pub(crate) fn is_awake(&self) -> bool {
        self.shared.lock().asleep == Asleep::No
    }

    /// Poisoned when a step under the lock has panicked, which spoils the queue or not, as the store knows.
    pub(crate) fn lock(&self) -> LockResult<MutexGuard<'_, WriterState<Q>>> {
        self.shared.state.lock()
    }

    /// Lets go of the queue, and wakes the thread if what was done to it is any news.
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

    /// Waits for a commit.
    pub(crate) async fn committed(&self, committed: Committed) -> Result<(), BoxError> {
        match committed.await {
            Ok(()) => Ok(()),
            Err(_) => {
                let fault = self.fault().unwrap_or(Fault::Stopped);
                Err(Q::explain(&fault).into())
            }
        }
    }

    /// Why nothing is written now, if so.
    pub(crate) fn fault(&self) -> Option<Fault> {
        self.shared.lock().fault.clone()
    }

    /// Takes no more; the thread ends once what waits is written.
    #[cfg(feature = "outbox")]
    pub(crate) fn stop(&self) {
        self.shared.stop();
    }

    /// Does what has to be done first, takes no more, and waits until the file is let go of. When it is called
    /// twice, the first call alone waits.
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
        // Not joined: a drop may stand on an async thread. The thread writes what waits, and ends.
        self.shared.stop();
    }
}

impl<Q: WriteQueue> WriterState<Q> {
    /// An error once nothing more will be written. A fault that passes is none.
    pub(crate) fn takes_more(&self) -> Result<(), BoxError> {
        match &self.fault {
            None | Some(Fault::Passing(_)) => Ok(()),
            Some(fault) => Err(Q::explain(fault).into()),
        }
    }

    /// An error while what waits cannot be written.
    pub(crate) fn can_write(&self) -> Result<(), BoxError> {
        match &self.fault {
            None => Ok(()),
            Some(fault) => Err(Q::explain(fault).into()),
        }
    }

    /// Whether so much waits that no more should be taken.
    pub(crate) fn is_full(&self) -> bool {
        self.len() >= Q::PACE.queue_max
    }

    /// Waits for all that is queued by now. To be submitted with [`Urgency::Gather`] or more.
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

    /// All of it if somebody waits for that.
    fn take(&mut self) -> Batch<Q> {
        let all = self.hurry || self.closing || self.fault.is_some() || !self.waiting.is_empty();
        self.hurry = false;
        Batch {
            work: self.queue.take((!all).then(Moment::now)),
            waiting: mem::replace(&mut self.waiting, mem::take(&mut self.waiting_spare)),
        }
    }

    /// What is left of a batch that was written. Once it is closing nothing more is begun.
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

    /// Answers those who wait.
    fn acknowledge(&mut self) {
        for committed in self.waiting.drain(..) {
            // Nobody may be waiting any more; it is done all the same.
            let _ = committed.send(());
        }
        Q::empty(&mut self.work);
        // What once was long need not stay so.
        self.waiting.shrink_to(WAITING_SPARE_MAX);
    }
}

/// So much room is kept for those who wait.
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

    /// For what a step that panicked cannot have spoiled: all but what the store keeps in its queue.
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
        // A panic too must stop the serving.
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

    /// What is due, all of it if somebody waits for that, or `None` once there will be no more. There may be
    /// nothing in it while a fault is to be tried.
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

    /// What is due may be later, or nothing, by the time.
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

    /// Says whether it will be tried again. Those who wait are answered by the loss of their senders.
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
