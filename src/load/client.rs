//! Sends calls at a given pace. If its runtime has one thread, the load generator uses one core and leaves the others
//! to the measured server.

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

/// Maximum number of calls in flight with [`Pace::PerSecond`]. It is reached only if the server does not keep up.
const UNDER_WAY_MAX: usize = 512;
/// Pause before the next call is sent, if a connection could not be opened.
const RECONNECT_PAUSE: Duration = Duration::from_millis(100);

/// The requests that a load sends, and an optional measurement of the responses.
#[derive(Debug)]
pub struct Call {
    /// The requests to send in this order. After the last request, the first is sent again. There must be at least one.
    pub prepared: Vec<Prepared>,
    /// If set, this function gets each piece of a response's body, and adds its own measurements. They are recorded in
    /// [`super::Results::own`].
    pub each: Option<fn(&Bytes, &mut Vec<Duration>)>,
}

/// When a load sends its next call.
#[derive(Clone, Copy, Debug)]
pub enum Pace {
    /// Each connection sends its next call when its previous call has ended.
    WhenAnswered,
    /// The load sends this many calls per second, whether or not earlier calls have been answered.
    PerSecond(u32),
}

/// The effect of a failed call on the load.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Failures {
    /// The load ends with the first failed call.
    EndIt,
    /// Failed calls are counted, and the load continues.
    AreCounted,
}

/// The limits of a load: how many calls it may send, and how long each may take.
#[derive(Clone, Debug)]
pub struct Terms {
    failures: Failures,
    /// How many calls may still be sent.
    left: Arc<AtomicU64>,
    /// The maximum time that a call may take.
    timeout: Duration,
}

impl Terms {
    /// Creates limits: at most `calls_max` calls are sent, and each must end within `timeout`.
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

    /// Takes one of the calls that may still be sent. Returns `false` if there are none left.
    fn take(&self) -> bool {
        let less = |left: u64| left.checked_sub(1);
        let order = Ordering::Relaxed;
        self.left.fetch_update(order, order, less).is_ok()
    }
}

/// A client that sends the calls of a load.
#[derive(Debug)]
pub struct Client {
    sender: Sender,
    /// Open connections that no call uses now.
    connections: Vec<Connection>,
}

/// The state that all tasks of a load share: the server, the call, the limits and the results.
#[derive(Clone, Debug)]
struct Sender {
    origin: Origin,
    call: Arc<Call>,
    turn: Arc<AtomicUsize>,
    terms: Terms,
    record: Record,
}

impl Client {
    /// Creates a client without open connections. It writes its results into `record`.
    #[must_use]
    pub fn new(origin: Origin, call: Arc<Call>, terms: Terms, record: Record) -> Self {
        let sender = Sender {
            origin,
            call,
            turn: Arc::default(),
            terms,
            record,
        };
        Self {
            sender,
            connections: Vec::new(),
        }
    }

    /// Opens this many connections and sends a call over each. These calls are not recorded.
    ///
    /// # Errors
    /// [`CallError`] if a connection cannot be opened or a call fails.
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

    /// Sends calls for `time`, and after that waits for the calls in flight. With [`Pace::WhenAnswered`], at most
    /// `connections` calls are in flight at once.
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

    /// Sends each call when it is due, on an idle connection, whether or not earlier calls have been answered. If a
    /// call had to wait for the responses to earlier calls, a slow server would reduce the load on itself, and the
    /// latency of the delayed calls would not be measured.
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
                    // The latency is measured from this moment, so it includes the time in which the call waits for a
                    // connection.
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
    /// Sends a call that was due at `due`, and records the result. Returns the connection, if it can be used again.
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
        // If the server has closed the idle connection, the call does not fail, but a new connection is opened for it.
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

/// Returns the result of a task. If the task panicked, this function panics as well.
fn ended<T>(done: Result<T, tokio::task::JoinError>) -> T {
    done.unwrap_or_else(|error| std::panic::resume_unwind(error.into_panic()))
}

/// Returns `calls` moments per second, evenly spaced, until `time` has passed. Calls that are overdue by then are not
/// sent.
fn evenly(calls: u32, time: Duration) -> impl Iterator<Item = Instant> {
    let (began, every) = (Instant::now(), Duration::from_secs(1) / calls);
    (0_u32..)
        .map(move |number| began + every * number)
        .take_while(move |due| Instant::now().max(*due) < began + time)
}
