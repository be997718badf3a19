//! A connection to Redis that answers or refuses in time.
//!
//! Shared by the Redis ledger and the Redis rate limiter: a few multiplexed connections used in
//! turn, a deadline on each call, a breaker that refuses at once while the server is down, and
//! scripts by EVALSHA with EVAL as the way back.

use std::{
    fmt,
    sync::{
        Arc, PoisonError, RwLock,
        atomic::{AtomicU32, AtomicU64, AtomicUsize, Ordering},
    },
    time::Duration,
};

use redis::{
    Client, Cmd, ErrorKind, FromRedisValue, IntoConnectionInfo, RedisError, RedisResult, Script,
    ServerErrorKind, Value,
    aio::{ConnectionManager, ConnectionManagerConfig},
    io::tcp::TcpSettings,
};
use tokio::time::{Instant, timeout, timeout_at};

use crate::error::BoxError;

/// A reply's shape.
pub(crate) use redis::FromRedisValue as Reply;

/// For one attempt to connect.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(1);
/// For what no caller waits for: operators' requests, sweeps.
pub(crate) const OPERATOR_TIMEOUT: Duration = Duration::from_secs(5);
/// How often a server that is down is asked again.
const PROBE_EVERY: Duration = Duration::from_millis(250);
/// So many calls in a row without an answer mean that the server is down.
const TIMEOUTS_MAX: u32 = 3;
/// Commands that wait for the socket, each connection. The crate's 50 queues callers in a burst.
const PIPELINE_MAX: usize = 4096;

/// How the gateway talks to Redis.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RedisSettings {
    /// How long a call waits for an answer on the way of a request.
    pub response_timeout: Duration,
    /// Connections, used in turn.
    pub connections: usize,
}

impl Default for RedisSettings {
    fn default() -> Self {
        Self {
            response_timeout: Duration::from_millis(500),
            connections: 2,
        }
    }
}

/// Why Redis did not do what was asked. Unless it replied, it may have done it.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum RedisFault {
    /// The address is no Redis URL. The text is not repeated: it may hold a password.
    #[error(
        "not a Redis URL: write redis://user:password@host:port/database, or rediss:// for TLS"
    )]
    Url,
    /// No connection, or it broke.
    #[error("Redis at {address} is out of reach")]
    OutOfReach {
        /// Host and port.
        address: Arc<str>,
        /// What went wrong.
        #[source]
        cause: BoxError,
    },
    /// No answer in time.
    #[error("Redis at {address} gave no answer in {} ms", .limit.as_millis())]
    TooSlow {
        /// Host and port.
        address: Arc<str>,
        /// How long it was waited for.
        limit: Duration,
    },
    /// It failed a moment ago and was not asked.
    #[error("Redis at {address} is down; it is asked again every {} ms", PROBE_EVERY.as_millis())]
    Down {
        /// Host and port.
        address: Arc<str>,
    },
    /// It answered an error.
    #[error("Redis at {address} answered an error")]
    Refused {
        /// Host and port.
        address: Arc<str>,
        /// The error.
        #[source]
        cause: BoxError,
    },
    /// It answered something that we do not understand, or holds data that we did not write.
    #[error("unexpected from Redis: {0}")]
    Unexpected(String),
}

/// Connections to one Redis. Clones share them.
#[derive(Clone)]
pub struct RedisConn(Arc<Inner>);

struct Inner {
    address: Arc<str>,
    client: Client,
    config: ConnectionManagerConfig,
    slots: Box<[RwLock<Slot>]>,
    turn: AtomicUsize,
    breaker: Breaker,
    version: (u32, u32),
    response_timeout: Duration,
}

/// A connection and how often it has been replaced.
#[derive(Clone)]
struct Slot {
    generation: u64,
    link: Link,
}

/// What commands go out on: here Cluster and Sentinel will stand beside the one server.
#[derive(Clone)]
enum Link {
    Single(ConnectionManager),
}

impl Link {
    async fn send(&mut self, command: &Cmd) -> RedisResult<Value> {
        match self {
            Self::Single(connection) => command.query_async(connection).await,
        }
    }
}

impl RedisConn {
    /// Connects. Gives up within a few seconds when the server is out of reach.
    ///
    /// # Errors
    /// See [`RedisFault`].
    pub async fn connect(url: &str, settings: RedisSettings) -> Result<Self, RedisFault> {
        let info = url.into_connection_info().map_err(|_| RedisFault::Url)?;
        let address: Arc<str> = info.addr().to_string().into();
        let out_of_reach = |cause: BoxError| RedisFault::OutOfReach {
            address: Arc::clone(&address),
            cause,
        };
        let tcp = TcpSettings::default().set_nodelay(true);
        // A peer that vanished without a word is noticed by what it does not acknowledge.
        #[cfg(target_os = "linux")]
        let tcp = tcp.set_user_timeout(OPERATOR_TIMEOUT);
        let client =
            Client::open(info.set_tcp_settings(tcp)).map_err(|error| out_of_reach(error.into()))?;
        let config = ConnectionManagerConfig::new()
            // One attempt at a time: with the crate's own series every call waits for its end.
            .set_number_of_retries(0)
            .set_connection_timeout(Some(CONNECT_TIMEOUT))
            .set_response_timeout(Some(OPERATOR_TIMEOUT))
            .set_pipeline_buffer_size(PIPELINE_MAX);

        let first = ConnectionManager::new_with_config(client.clone(), config.clone());
        let first = match timeout(2 * CONNECT_TIMEOUT, first).await {
            Ok(Ok(first)) => first,
            Ok(Err(error)) => return Err(out_of_reach(error.into())),
            Err(elapsed) => return Err(out_of_reach(elapsed.into())),
        };
        let mut links = vec![Link::Single(first)];
        while links.len() < settings.connections.max(1) {
            let lazy = ConnectionManager::new_lazy_with_config(client.clone(), config.clone());
            links.push(Link::Single(
                lazy.map_err(|error| out_of_reach(error.into()))?,
            ));
        }
        let slots = links
            .into_iter()
            .map(|link| {
                RwLock::new(Slot {
                    generation: 0,
                    link,
                })
            })
            .collect();

        let mut inner = Inner {
            address: Arc::clone(&address),
            client,
            config,
            slots,
            turn: AtomicUsize::new(0),
            breaker: Breaker::new(),
            version: (7, 0),
            response_timeout: settings.response_timeout,
        };
        inner.version = inner.server_version().await?;
        Ok(Self(Arc::new(inner)))
    }

    /// Host and port.
    #[must_use]
    pub fn address(&self) -> &str {
        &self.0.address
    }

    /// Major and minor version of the server, as it was at the start.
    #[must_use]
    pub fn version(&self) -> (u32, u32) {
        self.0.version
    }

    /// How long a call on the way of a request waits.
    pub(crate) fn response_timeout(&self) -> Duration {
        self.0.response_timeout
    }

    /// A script of two parts. Its first line may be `#!lua flags=...`, which goes on top, or away
    /// for a server that does not know it (before 7.0).
    pub(crate) fn script(&self, prelude: &str, script: &str) -> RedisScript {
        RedisScript::new(prelude, script, self.0.version >= (7, 0))
    }

    /// Runs a script. All scripts are idempotent or may as well run twice: where the connection
    /// broke, the call is sent once more.
    pub(crate) async fn eval<T: Reply>(
        &self,
        script: &RedisScript,
        keys: &[String],
        args: &[String],
        limit: Duration,
    ) -> Result<T, RedisFault> {
        let deadline = Instant::now() + limit;
        let command = |name: &str, text: &str| {
            let mut command = redis::cmd(name);
            command.arg(text).arg(keys.len()).arg(keys).arg(args);
            command
        };
        let value = match self
            .0
            .send(&command("EVALSHA", &script.sha), deadline, limit)
            .await
        {
            Err(Failure::Reply(error))
                if error.kind() == ErrorKind::Server(ServerErrorKind::NoScript) =>
            {
                self.0
                    .send(&command("EVAL", &script.code), deadline, limit)
                    .await
            }
            answer => answer,
        };
        self.0.read(value)
    }

    /// Sends one command. It must bear to be sent twice.
    pub(crate) async fn command<T: Reply>(
        &self,
        words: &[&str],
        limit: Duration,
    ) -> Result<T, RedisFault> {
        self.0.command(words, limit).await
    }
}

impl fmt::Debug for RedisConn {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RedisConn")
            .field("address", &self.0.address)
            .finish_non_exhaustive()
    }
}

/// A script's text and its SHA-1, which is its name on the server.
pub(crate) struct RedisScript {
    code: String,
    sha: String,
}

impl RedisScript {
    fn new(prelude: &str, script: &str, flags_known: bool) -> Self {
        let code = match script.split_once('\n') {
            Some((flags, body)) if flags.starts_with("#!") && flags_known => {
                format!("{flags}\n{prelude}{body}")
            }
            Some((flags, body)) if flags.starts_with("#!") => format!("{prelude}{body}"),
            _ => format!("{prelude}{script}"),
        };
        let sha = Script::new(&code).get_hash().to_owned();
        Self { code, sha }
    }
}

/// What came of a command, before it has words.
enum Failure {
    Reply(RedisError),
    Fault(RedisFault),
}

impl Inner {
    async fn send(
        &self,
        command: &Cmd,
        deadline: Instant,
        limit: Duration,
    ) -> Result<Value, Failure> {
        if !self.breaker.admits() {
            return Err(Failure::Fault(RedisFault::Down {
                address: Arc::clone(&self.address),
            }));
        }
        let turn = self.turn.fetch_add(1, Ordering::Relaxed) % self.slots.len();
        let Slot {
            generation,
            mut link,
        } = self.slot(turn);
        let answer = timeout_at(deadline, async {
            match link.send(command).await {
                // An idle connection was closed, or the server is back, or another one stands behind the
                // name. After a drop the manager connects again by itself; other failures of connecting
                // (TLS, AUTH, LOADING) it would keep for ever.
                Err(error) if !is_reply(&error) => {
                    if !error.is_connection_dropped() {
                        self.replace(turn, generation);
                        link = self.slot(turn).link;
                    }
                    link.send(command).await
                }
                answer => answer,
            }
        });
        match answer.await {
            Ok(Ok(value)) => {
                self.breaker.answered();
                Ok(value)
            }
            Ok(Err(error)) if is_reply(&error) => {
                self.breaker.answered();
                Err(Failure::Reply(error))
            }
            Ok(Err(error)) => {
                self.breaker.open();
                self.replace(turn, generation);
                let address = Arc::clone(&self.address);
                Err(Failure::Fault(RedisFault::OutOfReach {
                    address,
                    cause: error.into(),
                }))
            }
            Err(_) => {
                if self.breaker.timed_out() {
                    self.replace(turn, generation);
                }
                Err(Failure::Fault(RedisFault::TooSlow {
                    address: Arc::clone(&self.address),
                    limit,
                }))
            }
        }
    }

    async fn command<T: Reply>(&self, words: &[&str], limit: Duration) -> Result<T, RedisFault> {
        let mut command = Cmd::new();
        for word in words {
            command.arg(*word);
        }
        let value = self.send(&command, Instant::now() + limit, limit).await;
        self.read(value)
    }

    fn read<T: FromRedisValue>(&self, answer: Result<Value, Failure>) -> Result<T, RedisFault> {
        match answer {
            Ok(value) => redis::from_redis_value(value)
                .map_err(|error| RedisFault::Unexpected(error.to_string())),
            Err(Failure::Reply(error)) => Err(RedisFault::Refused {
                address: Arc::clone(&self.address),
                cause: error.into(),
            }),
            Err(Failure::Fault(fault)) => Err(fault),
        }
    }

    fn slot(&self, turn: usize) -> Slot {
        self.slots[turn]
            .read()
            .unwrap_or_else(PoisonError::into_inner)
            .clone()
    }

    /// Puts a fresh connection in the place of a failed one, unless somebody else has.
    fn replace(&self, turn: usize, failed: u64) {
        let mut slot = self.slots[turn]
            .write()
            .unwrap_or_else(PoisonError::into_inner);
        if slot.generation != failed {
            return;
        }
        if let Ok(fresh) =
            ConnectionManager::new_lazy_with_config(self.client.clone(), self.config.clone())
        {
            *slot = Slot {
                generation: failed + 1,
                link: Link::Single(fresh),
            };
        }
    }

    async fn server_version(&self) -> Result<(u32, u32), RedisFault> {
        match self
            .command::<String>(&["INFO", "server"], OPERATOR_TIMEOUT)
            .await
        {
            Ok(info) => version_of(&info)
                .ok_or_else(|| RedisFault::Unexpected("INFO without a version".into())),
            // Some hosts forbid INFO. They run something recent.
            Err(RedisFault::Refused { .. }) => Ok((7, 0)),
            Err(fault) => Err(fault),
        }
    }
}

fn version_of(info: &str) -> Option<(u32, u32)> {
    let version = info
        .lines()
        .find_map(|line| line.strip_prefix("redis_version:"))?;
    let mut numbers = version.trim().split('.').map(str::parse);
    Some((numbers.next()?.ok()?, numbers.next()?.ok()?))
}

/// Whether the server answered, and can answer others: an error in a script, out of memory.
fn is_reply(error: &RedisError) -> bool {
    use ServerErrorKind::{BusyLoading, ClusterDown, MasterDown, ReadOnly};
    match error.kind() {
        // It cannot serve anybody now, and after a failover another server may stand behind the name.
        ErrorKind::Server(BusyLoading | ClusterDown | MasterDown | ReadOnly) => false,
        ErrorKind::Server(_) | ErrorKind::Extension => true,
        _ => false,
    }
}

/// Refuses at once while the server is down; lets one call through every [`PROBE_EVERY`].
#[derive(Debug)]
struct Breaker {
    begin: Instant,
    /// In milliseconds since `begin`, when the next call may try; 0 while all may.
    next_probe_ms: AtomicU64,
    timeouts: AtomicU32,
}

impl Breaker {
    fn new() -> Self {
        Self {
            begin: Instant::now(),
            next_probe_ms: AtomicU64::new(0),
            timeouts: AtomicU32::new(0),
        }
    }

    fn admits(&self) -> bool {
        let due = self.next_probe_ms.load(Ordering::Relaxed);
        if due == 0 {
            return true;
        }
        let now = self.now_ms();
        // Of all that find the probe due, one moves it on and goes.
        now >= due
            && self
                .next_probe_ms
                .compare_exchange(
                    due,
                    now + probe_every_ms(),
                    Ordering::Relaxed,
                    Ordering::Relaxed,
                )
                .is_ok()
    }

    fn answered(&self) {
        // Read first: in good times nothing is written to a line that all cores share.
        if self.timeouts.load(Ordering::Relaxed) != 0 {
            self.timeouts.store(0, Ordering::Relaxed);
        }
        if self.next_probe_ms.load(Ordering::Relaxed) != 0 {
            self.next_probe_ms.store(0, Ordering::Relaxed);
        }
    }

    fn open(&self) {
        self.next_probe_ms
            .store(self.now_ms() + probe_every_ms(), Ordering::Relaxed);
    }

    /// Says whether it is open now. One late answer is no reason to refuse everybody.
    fn timed_out(&self) -> bool {
        let count = self
            .timeouts
            .fetch_add(1, Ordering::Relaxed)
            .saturating_add(1);
        let down = count >= TIMEOUTS_MAX || self.next_probe_ms.load(Ordering::Relaxed) != 0;
        if down {
            self.open();
        }
        down
    }

    fn now_ms(&self) -> u64 {
        u64::try_from(self.begin.elapsed().as_millis()).unwrap_or(u64::MAX / 2)
    }
}

fn probe_every_ms() -> u64 {
    u64::try_from(PROBE_EVERY.as_millis()).unwrap_or(u64::MAX / 2)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_server_that_is_down_is_asked_once_every_quarter_second() {
        let breaker = Breaker::new();
        assert!(breaker.admits() && breaker.admits());
        breaker.open();
        assert!(!breaker.admits());
        tokio::time::advance(PROBE_EVERY).await;
        assert_eq!([(); 3].map(|()| breaker.admits()), [true, false, false]);
        breaker.answered();
        assert_eq!([(); 3].map(|()| breaker.admits()), [true; 3]);
    }

    #[tokio::test(start_paused = true)]
    async fn a_few_late_answers_in_a_row_mean_down() {
        let breaker = Breaker::new();
        assert!(!breaker.timed_out() && !breaker.timed_out());
        breaker.answered();
        assert_eq!([(); 3].map(|()| breaker.timed_out()), [false, false, true]);
        assert!(!breaker.admits());
    }

    #[test]
    fn flags_stand_on_top_or_nowhere() {
        let script = "#!lua flags=allow-oom\nreturn 1";
        assert_eq!(
            RedisScript::new("local a = 1\n", script, true).code,
            "#!lua flags=allow-oom\nlocal a = 1\nreturn 1"
        );
        assert_eq!(
            RedisScript::new("local a = 1\n", script, false).code,
            "local a = 1\nreturn 1"
        );
        assert_eq!(RedisScript::new("", "return 1\n", true).code, "return 1\n");
    }

    #[test]
    fn the_version_is_read_from_info() {
        assert_eq!(
            version_of("# Server\r\nredis_version:7.0.15\r\nredis_mode:standalone\r\n"),
            Some((7, 0))
        );
        assert_eq!(version_of("# Server\r\n"), None);
    }

    #[tokio::test]
    async fn a_url_that_is_none_is_not_repeated() {
        let error = RedisConn::connect("postgres://u:secret@h/1", RedisSettings::default())
            .await
            .unwrap_err();
        assert!(
            matches!(error, RedisFault::Url) && !error.to_string().contains("secret"),
            "{error}"
        );
    }

    #[tokio::test]
    async fn a_server_out_of_reach_is_said_so_at_once() {
        // Port 1 is nobody's.
        let error = RedisConn::connect("redis://:secret@127.0.0.1:1", RedisSettings::default())
            .await
            .unwrap_err();
        assert_eq!(error.to_string(), "Redis at 127.0.0.1:1 is out of reach");
        assert!(!format!("{error:?}").contains("secret"), "{error:?}");
    }
}
