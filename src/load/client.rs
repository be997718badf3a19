//! Sends calls at a given pace. On a runtime with one thread, the load generator uses one core and leaves the other
//! cores to the measured server.

use std::{
    pin::pin,
    sync::{
        Arc,
        atomic::{AtomicU64, AtomicUsize, Ordering},
    },
    time::Duration,
};

use bytes::Bytes;
use tokio::{
    task::JoinSet,
    time::{Instant, sleep, sleep_until, timeout},
};

use super::{
    connection::{CallError, Connection, Origin, Prepared},
    record::{Chunks, Record},
};

/// The maximum number of open calls of a paced load, in case the server does not keep up.
const UNDER_WAY_MAX: usize = 512;
/// The pause after a failed attempt to open a connection, before the next call is sent.
const RECONNECT_PAUSE: Duration = Duration::from_millis(100);

/// The calls that a load run sends.
#[derive(Debug)]
pub struct Call {
    /// The requests, which are sent one after the other; at least one.
    pub prepared: Vec<Prepared>,
    /// If set, this function measures each piece of the body. Its measurements are recorded in [`super::Results::own`].
    pub each: Option<fn(&Bytes, &mut Vec<Duration>)>,
}

/// The pace: when the next call is sent.
#[derive(Clone, Copy, Debug)]
pub enum Pace {
    /// Each connection sends its next call when its previous call has ended.
    WhenAnswered,
    /// The load sends this many calls per second, whether or not earlier calls are answered.
    PerSecond(u32),
}

/// The effect of a failed call on the load.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Failures {
    /// The first failed call ends the load.
    EndIt,
    /// Failed calls are counted, and the load continues.
    AreCounted,
}

/// The limits of a load.
#[derive(Clone, Debug)]
pub struct Terms {
    failures: Failures,
    /// The number of calls that may still begin.
    left: Arc<AtomicU64>,
    /// The longest time that a call may take.
    timeout: Duration,
}

impl Terms {
    /// Allows at most `calls_max` calls. Each call must end within `timeout` after it was sent.
    #[must_use]
    pub fn new(failures: Failures, calls_max: u64, timeout: Duration) -> Self {
        Self {
            failures,
            left: Arc::new(AtomicU64::new(calls_max)),
            timeout,
        }
    }

    fn left(&self) -> u64 {
        self.left.load(Ordering::Relaxed)
    }

    /// Takes one of the calls that may still begin; `false` if there are none.
    fn take(&self) -> bool {
        let less = |left: u64| left.checked_sub(1);
        let taken = self
            .left
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, less);
        taken.is_ok()
    }
}

/// Sends the calls of a load.
#[derive(Debug)]
pub struct Client {
    sender: Sender,
    /// Connections that are open and have no running call.
    connections: Vec<Connection>,
}

/// The state that all tasks of a load share.
#[derive(Clone, Debug)]
struct Sender {
    origin: Origin,
    call: Arc<Call>,
    turn: Arc<AtomicUsize>,
    terms: Terms,
    record: Record,
}

impl Client {
    /// Creates a client without open connections, which writes its results into `record`.
    #[must_use]
    pub fn new(origin: Origin, call: Arc<Call>, terms: Terms, record: Record) -> Self {
        let turn = Arc::default();
        Self {
            sender: Sender {
                origin,
                call,
                turn,
                terms,
                record,
            },
            connections: Vec::new(),
        }
    }

    /// Opens connections and sends a call over each. Neither the connections nor the calls are recorded.
    ///
    /// # Errors
    /// [`CallError`] if a connection cannot be opened, or if a call fails.
    pub async fn warm_up(&mut self, connections: u32) -> Result<(), CallError> {
        let mut warming = JoinSet::new();
        for _ in 0..connections {
            let sender = self.sender.clone();
            warming.spawn(async move {
                let mut connection = Connection::open(&sender.origin).await?;
                connection.send(sender.next(), |_| {}).await?;
                Ok(connection)
            });
        }
        while let Some(warmed) = warming.join_next().await {
            self.connections.push(ended(warmed)?);
        }
        Ok(())
    }

    /// Sends calls for `time`, and then waits for the running calls. At [`Pace::WhenAnswered`], at most `connections`
    /// calls run concurrently.
    ///
    /// # Errors
    /// [`CallError`] if a call fails and [`Failures::EndIt`] is set.
    pub async fn run(self, pace: Pace, connections: u32, time: Duration) -> Result<(), CallError> {
        match pace {
            Pace::WhenAnswered => self.when_answered(connections, time).await,
            Pace::PerSecond(calls) => self.when_due(evenly(calls, time)).await,
        }
    }

    async fn when_answered(mut self, connections: u32, time: Duration) -> Result<(), CallError> {
        let began = Instant::now();
        let mut callers = JoinSet::new();
        for _ in 0..connections {
            let (sender, mut connection) = (self.sender.clone(), self.connections.pop());
            callers.spawn(async move {
                while began.elapsed() < time && sender.terms.take() {
                    connection = sender.send(Instant::now(), connection).await?;
                    if connection.is_none() {
                        sleep(RECONNECT_PAUSE).await;
                    }
                }
                Ok(())
            });
        }
        while let Some(done) = callers.join_next().await {
            ended(done)?;
        }
        Ok(())
    }

    /// Sends each call when it is due, on an idle connection, whether or not earlier calls are answered. If calls
    /// waited for earlier answers, slow answers would reduce the load and so hide their own latency.
    ///
    /// # Errors
    /// [`CallError`] if a call fails and [`Failures::EndIt`] is set.
    pub async fn when_due(self, mut due: impl Iterator<Item = Instant>) -> Result<(), CallError> {
        let mut idle = self.connections;
        let mut under_way = JoinSet::new();
        let mut next = due.next();
        let mut timer = pin!(sleep_until(next.unwrap_or_else(Instant::now)));
        loop {
            let takes_more =
                next.is_some() && under_way.len() < UNDER_WAY_MAX && self.sender.terms.left() > 0;
            tokio::select! {
                biased;
                Some(done) = under_way.join_next(), if !under_way.is_empty() => {
                    idle.extend(ended(done)?);
                }
                () = &mut timer, if takes_more => {
                    self.sender.terms.take();
                    // The latency is measured from this time, so it includes the wait for a connection.
                    let now = Instant::now();
                    let (sender, free) = (self.sender.clone(), idle.pop());
                    under_way.spawn(async move { sender.send(now, free).await });
                    next = due.next();
                    if let Some(next) = next {
                        timer.as_mut().reset(next);
                    }
                }
                else => break,
            }
        }
        Ok(())
    }
}

impl Sender {
    /// Sends a call that was due at `due` and records the result. Returns the connection if it can be used again.
    async fn send(
        &self,
        due: Instant,
        mut connection: Option<Connection>,
    ) -> Result<Option<Connection>, CallError> {
        let mut chunks = Chunks::default();
        let limit = self.terms.timeout;
        let sent = timeout(limit, self.exchange(&mut connection, &mut chunks)).await;
        match sent.unwrap_or(Err(CallError::TimedOut(limit))) {
            Ok(()) => self.record.answered(due, &chunks),
            Err(error) if self.terms.failures == Failures::EndIt => return Err(error),
            Err(error) => {
                self.record.failed(&error);
                let is_whole = matches!(error, CallError::Status(..) | CallError::Event(_));
                connection = connection.filter(|_| is_whole);
            }
        }
        Ok(connection)
    }

    async fn exchange(
        &self,
        connection: &mut Option<Connection>,
        chunks: &mut Chunks,
    ) -> Result<(), CallError> {
        // If the server has closed the idle connection, the call does not fail: a new connection is opened for it.
        if let Some(open) = connection
            && !open.is_ready().await
        {
            *connection = None;
        }
        let connection = match connection {
            Some(open) => open,
            closed => closed.insert(Connection::open(&self.origin).await?),
        };
        let each = |data: &Bytes| {
            chunks.arrived();
            if let Some(each) = self.call.each {
                each(data, &mut chunks.own);
            }
        };
        connection.send(self.next(), each).await
    }

    fn next(&self) -> &Prepared {
        let calls = &self.call.prepared;
        &calls[self.turn.fetch_add(1, Ordering::Relaxed) % calls.len()]
    }
}

/// Returns the result of a task; if it panicked, this task panics, too.
fn ended<T>(done: Result<T, tokio::task::JoinError>) -> T {
    done.unwrap_or_else(|error| std::panic::resume_unwind(error.into_panic()))
}

/// Returns `calls` moments per second, evenly spaced. If the server cannot keep up, the remaining moments are dropped
/// at the end of `time`.
fn evenly(calls: u32, time: Duration) -> impl Iterator<Item = Instant> {
    let (began, every) = (Instant::now(), Duration::from_secs(1) / calls);
    (0_u32..)
        .map(move |number| began + every * number)
        .take_while(move |due| Instant::now().max(*due) < began + time)
}
