//! The client: on one thread, so that the cores are left to what is measured.

use std::{
    pin::pin,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use bytes::Bytes;
use tokio::{
    task::JoinSet,
    time::{Instant, sleep_until},
};

use crate::{
    fixtures::{
        caller::{Connection, Origin, Prepared},
        support::random::Random,
        vendor::unix_ns,
    },
    scenario::{Measure, Pace},
};

/// Connections that are open before a load with a pace begins; more are opened if it needs them.
const PACED_CONNECTIONS: u32 = 16;
/// Calls with a pace that may be under way: who cannot keep up is not asked for ever more.
const UNDER_WAY_MAX: usize = 512;

/// What is sent again and again, and what is taken down of it.
#[derive(Debug)]
pub(crate) struct Call {
    pub(crate) prepared: Prepared,
    pub(crate) measure: Measure,
}

/// How far a load may go.
#[derive(Clone, Debug)]
pub(crate) struct Terms {
    /// Calls that may still be begun.
    left: Arc<AtomicU64>,
    failures: Failures,
}

#[derive(Clone, Copy, Debug)]
enum Failures {
    EndIt,
    AreCounted,
}

impl Terms {
    /// As many calls as go through; all must be answered.
    pub(crate) fn of_a_bench() -> Self {
        Self {
            left: Arc::new(AtomicU64::new(u64::MAX)),
            failures: Failures::EndIt,
        }
    }

    /// So many calls; those that fail are counted.
    pub(crate) fn bounded(calls: u64) -> Self {
        Self {
            left: Arc::new(AtomicU64::new(calls)),
            failures: Failures::AreCounted,
        }
    }

    fn left(&self) -> u64 {
        self.left.load(Ordering::Relaxed)
    }

    /// Takes one of the calls that are left.
    fn take(&self) -> bool {
        let less = |left: u64| left.checked_sub(1);
        let taken = self
            .left
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, less);
        taken.is_ok()
    }
}

/// What a load has seen.
#[derive(Debug, Default)]
pub(crate) struct Seen {
    pub(crate) answered: u64,
    pub(crate) failed: u64,
    /// Why the first one failed.
    pub(crate) failure: Option<String>,
    pub(crate) elapsed: Duration,
    pub(crate) samples: Vec<Duration>,
}

impl Seen {
    /// Of two loads at the same time, or one after another.
    pub(crate) fn add(&mut self, mut other: Self) {
        self.answered += other.answered;
        self.failed += other.failed;
        self.failure = self.failure.take().or(other.failure);
        self.elapsed = self.elapsed.max(other.elapsed);
        self.samples.append(&mut other.samples);
    }

    fn fail(&mut self, error: anyhow::Error, terms: &Terms) -> anyhow::Result<()> {
        match terms.failures {
            Failures::EndIt => Err(error),
            Failures::AreCounted => {
                self.failed += 1;
                self.failure.get_or_insert_with(|| format!("{error:#}"));
                Ok(())
            }
        }
    }
}

/// Open connections.
pub(crate) struct Client {
    origin: Origin,
    call: Arc<Call>,
    terms: Terms,
    connections: Vec<Connection>,
}

impl Client {
    /// Opens connections: so many for a load without a pace.
    pub(crate) async fn open(
        origin: Origin,
        call: Arc<Call>,
        terms: Terms,
        pace: Pace,
        connections: u32,
    ) -> anyhow::Result<Self> {
        let wanted = match pace {
            Pace::WhenAnswered => connections,
            Pace::PerSecond(calls) | Pace::AtRandom(calls) => calls.min(PACED_CONNECTIONS),
        };
        let mut opening = JoinSet::new();
        for _ in 0..wanted {
            let origin = origin.clone();
            opening.spawn(async move { Connection::open(&origin).await });
        }
        let mut connections = Vec::new();
        while let Some(opened) = opening.join_next().await {
            connections.push(opened??);
        }
        Ok(Self {
            origin,
            call,
            terms,
            connections,
        })
    }

    /// Sends a call over each connection; says how many that were.
    pub(crate) async fn warm_up(&mut self) -> anyhow::Result<u64> {
        let calls = self.connections.len() as u64;
        let mut warming = JoinSet::new();
        for mut connection in self.connections.drain(..) {
            let call = Arc::clone(&self.call);
            warming.spawn(async move {
                connection.send(&call.prepared, |_| {}).await?;
                anyhow::Ok(connection)
            });
        }
        while let Some(warmed) = warming.join_next().await {
            self.connections.push(warmed??);
        }
        Ok(calls)
    }

    pub(crate) async fn run(self, pace: Pace, time: Duration) -> anyhow::Result<Seen> {
        match pace {
            Pace::WhenAnswered => self.when_answered(time).await,
            Pace::PerSecond(calls) => self.when_due(evenly(calls, time)).await,
            Pace::AtRandom(calls) => self.when_due(at_random(calls, time)).await,
        }
    }

    /// Sends the next call on each connection when the last one is answered. Every call that was
    /// begun in time is waited for and counts.
    async fn when_answered(self, time: Duration) -> anyhow::Result<Seen> {
        let began = Instant::now();
        let mut callers = JoinSet::new();
        for mut connection in self.connections {
            let (origin, call, terms) = (
                self.origin.clone(),
                Arc::clone(&self.call),
                self.terms.clone(),
            );
            callers.spawn(async move {
                let mut seen = Seen::default();
                while began.elapsed() < time && terms.take() {
                    let sent = Instant::now();
                    match measured(&mut connection, &call, sent, &mut seen.samples).await {
                        Ok(()) => seen.answered += 1,
                        Err(error) => {
                            seen.fail(error, &terms)?;
                            connection = Connection::open(&origin).await?;
                        }
                    }
                }
                anyhow::Ok(seen)
            });
        }
        let mut seen = Seen::default();
        while let Some(done) = callers.join_next().await {
            seen.add(done??);
        }
        seen.elapsed = began.elapsed();
        Ok(seen)
    }

    /// Sends each call when it is due, on a free connection, answered or not: slow answers do not
    /// slow the calls down, or they would hide themselves.
    async fn when_due(self, mut due: impl Iterator<Item = Instant>) -> anyhow::Result<Seen> {
        let mut idle = self.connections;
        let mut under_way = JoinSet::new();
        let mut seen = Seen::default();
        let began = Instant::now();
        let mut next = due.next();
        let mut timer = pin!(sleep_until(next.unwrap_or(began)));
        loop {
            let takes_more =
                next.is_some() && under_way.len() < UNDER_WAY_MAX && self.terms.left() > 0;
            tokio::select! {
                biased;
                Some(done) = under_way.join_next(), if !under_way.is_empty() => {
                    let (connection, one): (Option<Connection>, Seen) = done??;
                    seen.add(one);
                    idle.extend(connection);
                }
                () = &mut timer, if takes_more => {
                    self.terms.take();
                    // From here on the caller waits, also for a connection.
                    let sent = Instant::now();
                    let (origin, call, terms, free) = (
                        self.origin.clone(),
                        Arc::clone(&self.call),
                        self.terms.clone(),
                        idle.pop(),
                    );
                    under_way.spawn(async move {
                        let mut connection = match free {
                            Some(connection) => connection,
                            None => Connection::open(&origin).await?,
                        };
                        let mut one = Seen::default();
                        match measured(&mut connection, &call, sent, &mut one.samples).await {
                            Ok(()) => one.answered = 1,
                            Err(error) => {
                                one.fail(error, &terms)?;
                                return Ok((None, one));
                            }
                        }
                        anyhow::Ok((Some(connection), one))
                    });
                    next = due.next();
                    if let Some(next) = next {
                        timer.as_mut().reset(next);
                    }
                }
                else => break,
            }
        }
        seen.elapsed = began.elapsed();
        Ok(seen)
    }
}

/// So many calls each second. Who cannot keep up is not asked for the rest when the time is over.
fn evenly(calls: u32, time: Duration) -> impl Iterator<Item = Instant> {
    let (began, every) = (Instant::now(), Duration::from_secs(1) / calls);
    (0_u32..)
        .map(move |number| began + every * number)
        .take_while(move |due| Instant::now().max(*due) < began + time)
}

/// As many calls, at moments that are those of Poisson arrivals of this number. They are the same
/// each time: every target gets the same load.
fn at_random(calls: u32, time: Duration) -> impl Iterator<Item = Instant> {
    let began = Instant::now();
    let count = (f64::from(calls) * time.as_secs_f64()).round() as usize;
    let mut random = Random::of(0, &[]);
    let mut due: Vec<Instant> = (0..count)
        .map(|_| began + time.mul_f64(random.bits() as f64 / u64::MAX as f64))
        .collect();
    due.sort_unstable();
    due.into_iter()
}

/// Sends a call that its caller waits for since `sent`, and takes down what is measured.
async fn measured(
    connection: &mut Connection,
    call: &Call,
    sent: Instant,
    samples: &mut Vec<Duration>,
) -> anyhow::Result<()> {
    let prepared = &call.prepared;
    match call.measure {
        Measure::Whole => {
            connection.send(prepared, |_| {}).await?;
            samples.push(sent.elapsed());
        }
        Measure::FirstByte => {
            let mut first = None;
            let each = |_: &Bytes| {
                first.get_or_insert_with(|| sent.elapsed());
            };
            connection.send(prepared, each).await?;
            samples.extend(first);
        }
        Measure::ChunkDelay => {
            let each = |data: &Bytes| take_down_delays(data, samples);
            connection.send(prepared, each).await?;
        }
    }
    Ok(())
}

/// Reads when the vendor sent the chunks that are in `data`.
fn take_down_delays(data: &[u8], samples: &mut Vec<Duration>) {
    const STAMP: &[u8] = b"\"sent\":";
    let now = unix_ns();
    for (at, window) in data.windows(STAMP.len()).enumerate() {
        if window != STAMP {
            continue;
        }
        let digits = data[at + STAMP.len()..]
            .iter()
            .take_while(|byte| byte.is_ascii_digit());
        let sent = digits.fold(0, |sent: u64, digit| {
            sent.wrapping_mul(10).wrapping_add(u64::from(digit - b'0'))
        });
        samples.push(Duration::from_nanos(now.saturating_sub(sent)));
    }
}
