//! One Redis server: a few multiplexed connections, a deadline per call, and a breaker. Calls take the connections in
//! rotation.

use std::{
    sync::{
        Arc, PoisonError, RwLock,
        atomic::{AtomicU32, AtomicUsize, Ordering},
    },
    time::Duration,
};

use redis::{
    Client, Cmd, ConnectionInfo, ErrorKind, RedisError, RedisResult, ServerErrorKind, Value,
    aio::{ConnectionManager, ConnectionManagerConfig},
    io::tcp::TcpSettings,
};
use tokio::time::{Instant, timeout_at};

use super::{RedisFault, breaker::Breaker, url::Address};

/// The deadline of one attempt to connect.
pub(super) const CONNECT_TIMEOUT: Duration = Duration::from_secs(1);
/// The largest number of commands that may wait for a connection's socket. With the crate's default of 50, a burst of
/// commands would wait for a place in this queue.
const PIPELINE_MAX: usize = 4096;

/// A server's connections, its breaker, and the number of its replicas.
pub(super) struct Node {
    address: Address,
    shown: Arc<str>,
    client: Client,
    config: ConnectionManagerConfig,
    /// The shared connections, followed by one connection for each other [`Lane`].
    links: Box<[RwLock<Link>]>,
    turn: AtomicUsize,
    breaker: Breaker,
    /// The number of replicas; [`UNKNOWN`] before the first INFO.
    replicas: AtomicU32,
}

const UNKNOWN: u32 = u32::MAX;

/// A connection, and the number of times that it has been replaced.
#[derive(Clone)]
struct Link {
    generation: u64,
    manager: ConnectionManager,
}

/// Selects the connection that a command uses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Lane {
    /// One of the connections that all calls share.
    Shared,
    /// The connection for commands that delay the commands after them, such as WAIT.
    Waiting,
    /// The connection for leases only. It is opened on the runtime of the lease keeper, which polls it.
    Apart,
}

/// The number of lanes that have only one connection.
const LANES_OF_ONE: usize = 2;

/// A deadline, with the whole time allowed, for error texts.
#[derive(Clone, Copy, Debug)]
pub(super) struct Limit {
    pub(super) at: Instant,
    whole: Duration,
}

impl Limit {
    /// Starts a deadline `whole` from now.
    pub(super) fn begin(whole: Duration) -> Self {
        Self {
            at: Instant::now() + whole,
            whole,
        }
    }
}

/// The reason why a call failed, before it becomes a [`RedisFault`].
#[derive(Debug)]
pub(super) enum Failure {
    /// An error that the server returned, with its address.
    Reply(Arc<str>, RedisError),
    Fault(RedisFault),
}

impl From<Failure> for RedisFault {
    fn from(failure: Failure) -> Self {
        match failure {
            Failure::Reply(address, error) => Self::Refused {
                address,
                cause: error.into(),
            },
            Failure::Fault(fault) => fault,
        }
    }
}

/// Commands that are sent together on one connection, with no other command between them.
#[derive(Debug)]
pub(super) struct Parcel(Vec<Cmd>);

impl Parcel {
    pub(super) fn one(command: Cmd) -> Self {
        Self(vec![command])
    }

    pub(super) fn words(words: &[impl AsRef<str>]) -> Self {
        Self::one(command(words))
    }

    pub(super) fn several(commands: Vec<Cmd>) -> Self {
        Self(commands)
    }

    /// Returns these commands, each preceded by ASKING. They are for a slot that the server is taking over.
    pub(super) fn asking(&self) -> Self {
        let both = |command: &Cmd| [redis::cmd("ASKING"), command.clone()];
        Self(self.0.iter().flat_map(both).collect())
    }

    async fn over(&self, manager: &mut ConnectionManager) -> RedisResult<Vec<Value>> {
        if let [command] = self.0.as_slice() {
            let value = manager.send_packed_command(command).await?;
            return Ok(vec![value.extract_error()?]);
        }
        let mut pipeline = redis::pipe();
        for command in &self.0 {
            pipeline.add_command(command.clone());
        }
        let values = manager
            .send_packed_commands(&pipeline, 0, self.0.len())
            .await?;
        values.into_iter().map(Value::extract_error).collect()
    }
}

pub(super) fn command(words: &[impl AsRef<str>]) -> Cmd {
    let mut command = Cmd::new();
    for word in words {
        command.arg(word.as_ref());
    }
    command
}

/// Facts about the server, parsed from INFO.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ServerInfo {
    pub(crate) version: (u32, u32),
    /// Run id and replication id: another value means another process or another history of data.
    pub(crate) identity: String,
    /// The number of connected replicas.
    pub(crate) replicas: u32,
    /// Whether the server is a node of a Cluster.
    pub(crate) in_cluster: bool,
}

impl ServerInfo {
    /// Parses the sections `server` and `replication` of INFO.
    fn read(info: &str) -> Option<Self> {
        let field = |name: &str| {
            let mut lines = info.lines();
            lines.find_map(|line| line.strip_prefix(name)?.strip_prefix(':'))
        };
        let mut numbers = field("redis_version")?.trim().split('.').map(str::parse);
        Some(Self {
            version: (numbers.next()?.ok()?, numbers.next()?.ok()?),
            identity: format!(
                "{} {}",
                field("run_id").unwrap_or_default().trim(),
                field("master_replid").unwrap_or_default().trim()
            ),
            replicas: field("connected_slaves")
                .and_then(|count| count.trim().parse().ok())
                .unwrap_or(0),
            in_cluster: field("redis_mode").is_some_and(|mode| mode.trim() == "cluster"),
        })
    }
}

impl Node {
    /// Creates the server without connecting; the first command connects.
    pub(super) fn new(
        address: Address,
        info: ConnectionInfo,
        connections: usize,
    ) -> Result<Self, RedisFault> {
        let shown: Arc<str> = address.to_string().into();
        let unusable = |error: RedisError| RedisFault::OutOfReach {
            address: Arc::clone(&shown),
            cause: error.into(),
        };
        let tcp = TcpSettings::default().set_nodelay(true);
        // A peer that vanished without closing the connection is detected by data that it does not acknowledge.
        #[cfg(target_os = "linux")]
        let tcp = tcp.set_user_timeout(super::OPERATOR_TIMEOUT);
        let client = Client::open(info.set_tcp_settings(tcp)).map_err(unusable)?;
        let config = ConnectionManagerConfig::new()
            // No retries by the crate: with them, every call would wait for the whole series of attempts.
            .set_number_of_retries(0)
            .set_connection_timeout(Some(CONNECT_TIMEOUT))
            // The caller has a deadline already; a second timer per command would only cost time.
            .set_response_timeout(None)
            .set_pipeline_buffer_size(PIPELINE_MAX);
        let links = (0..connections.max(1) + LANES_OF_ONE)
            .map(|_| {
                let manager =
                    ConnectionManager::new_lazy_with_config(client.clone(), config.clone())?;
                Ok(RwLock::new(Link {
                    generation: 0,
                    manager,
                }))
            })
            .collect::<RedisResult<_>>()
            .map_err(unusable)?;
        Ok(Self {
            address,
            shown,
            client,
            config,
            links,
            turn: AtomicUsize::new(0),
            breaker: Breaker::new(),
            replicas: AtomicU32::new(UNKNOWN),
        })
    }

    pub(super) const fn address(&self) -> &Address {
        &self.address
    }

    /// Returns the server's address as text.
    pub(super) const fn shown(&self) -> &Arc<str> {
        &self.shown
    }

    /// Returns the number of replicas as of the last INFO; `None` before the first.
    pub(super) fn replicas(&self) -> Option<u32> {
        Some(self.replicas.load(Ordering::Relaxed)).filter(|count| *count != UNKNOWN)
    }

    /// Sends commands that may run twice: if the connection breaks, they are sent once more.
    pub(super) async fn send(
        &self,
        parcel: &Parcel,
        lane: Lane,
        limit: Limit,
    ) -> Result<Vec<Value>, Failure> {
        let address = || Arc::clone(&self.shown);
        if !self.breaker.admits() {
            return Err(Failure::Fault(RedisFault::Down { address: address() }));
        }
        let place = self.place(lane);
        let link = self.link(place);
        let generation = link.generation;
        match timeout_at(limit.at, self.attempt(parcel, place, link)).await {
            Ok(Ok(values)) => {
                self.breaker.answered();
                Ok(values)
            }
            Ok(Err(error)) if is_reply(&error) => {
                self.breaker.answered();
                Err(Failure::Reply(address(), error))
            }
            Ok(Err(error)) => {
                self.breaker.open();
                self.replace(place, generation);
                Err(Failure::Fault(RedisFault::OutOfReach {
                    address: address(),
                    cause: error.into(),
                }))
            }
            Err(_) => {
                // A late answer in this lane does not mean that the server is down, since WAIT also waits for replicas.
                let is_silent = lane != Lane::Waiting && self.breaker.timed_out();
                // If a lane has only one connection, answers on other connections do not prove that this connection
                // works.
                if is_silent || lane != Lane::Shared {
                    self.replace(place, generation);
                }
                Err(Failure::Fault(RedisFault::TooSlow {
                    address: address(),
                    limit: limit.whole,
                }))
            }
        }
    }

    /// Sends commands even if the breaker is open, and does not report the result to the breaker. Used to look the
    /// primaries up, with several servers at once.
    pub(super) async fn ask_anyway(&self, parcel: &Parcel) -> RedisResult<Vec<Value>> {
        let place = self.place(Lane::Shared);
        let link = self.link(place);
        let generation = link.generation;
        let answer = self.attempt(parcel, place, link).await;
        if answer.as_ref().is_err_and(|error| !is_reply(error)) {
            self.replace(place, generation);
        }
        answer
    }

    /// Returns the server's INFO; `None` if the hosting provider forbids the command.
    pub(super) async fn info(&self, limit: Duration) -> Result<Option<ServerInfo>, RedisFault> {
        let sections = ["server", "replication"].map(|section| command(&["INFO", section]));
        let parcel = Parcel::several(sections.into());
        let values = match self.send(&parcel, Lane::Shared, Limit::begin(limit)).await {
            Err(Failure::Reply(..)) => return Ok(None),
            values => values?,
        };
        let sections = values
            .into_iter()
            .map(redis::from_redis_value)
            .collect::<Result<Vec<String>, _>>()
            .map_err(|error| RedisFault::Unexpected(error.to_string()))?;
        let info = ServerInfo::read(&sections.join("\n"))
            .ok_or_else(|| RedisFault::Unexpected("INFO without a version".into()))?;
        self.replicas.store(info.replicas, Ordering::Relaxed);
        Ok(Some(info))
    }

    async fn attempt(&self, parcel: &Parcel, place: usize, link: Link) -> RedisResult<Vec<Value>> {
        let Link {
            generation,
            mut manager,
        } = link;
        match parcel.over(&mut manager).await {
            // The server closed an idle connection, has restarted, or its name now belongs to another server. The
            // crate's connection manager reconnects by itself after a dropped connection. After other failures to
            // connect (TLS, AUTH, LOADING) the manager would retry for ever, so it is replaced.
            Err(error) if !is_reply(&error) => {
                if !error.is_connection_dropped() {
                    self.replace(place, generation);
                    manager = self.link(place).manager;
                }
                parcel.over(&mut manager).await
            }
            answer => answer,
        }
    }

    fn place(&self, lane: Lane) -> usize {
        let shared = self.links.len() - LANES_OF_ONE;
        match lane {
            Lane::Shared => self.turn.fetch_add(1, Ordering::Relaxed) % shared,
            Lane::Waiting => shared,
            Lane::Apart => shared + 1,
        }
    }

    fn link(&self, place: usize) -> Link {
        self.links[place]
            .read()
            .unwrap_or_else(PoisonError::into_inner)
            .clone()
    }

    /// Replaces a failed connection, unless another task has done so.
    fn replace(&self, place: usize, failed: u64) {
        let mut link = self.links[place]
            .write()
            .unwrap_or_else(PoisonError::into_inner);
        if link.generation != failed {
            return;
        }
        if let Ok(fresh) =
            ConnectionManager::new_lazy_with_config(self.client.clone(), self.config.clone())
        {
            *link = Link {
                generation: failed + 1,
                manager: fresh,
            };
        }
    }
}

/// Returns whether the error is a reply of a server that can serve other calls, such as an error in a script or a lack
/// of memory.
fn is_reply(error: &RedisError) -> bool {
    use ServerErrorKind::{BusyLoading, ClusterDown, MasterDown, ReadOnly};
    match error.kind() {
        // The server cannot serve any call now. After a failover its name may belong to another server.
        ErrorKind::Server(BusyLoading | ClusterDown | MasterDown | ReadOnly) => false,
        ErrorKind::Server(_) | ErrorKind::Extension => true,
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn server_is_identified_by_run_id_and_replication_id() {
        let info = "# Server\r\nredis_version:7.0.15\r\nredis_mode:cluster\r\nrun_id:aa\r\n\
                    # Replication\r\nrole:master\r\nconnected_slaves:2\r\nmaster_replid:bb\r\n\
                    master_replid2:cc\r\n";
        let read = ServerInfo::read(info).unwrap();
        let expected = ServerInfo {
            version: (7, 0),
            identity: "aa bb".into(),
            replicas: 2,
            in_cluster: true,
        };
        assert_eq!(read, expected);
        let other = ServerInfo::read(&info.replace("run_id:aa", "run_id:dd")).unwrap();
        assert_ne!(other.identity, read.identity);
        assert_eq!(ServerInfo::read("# Server\r\n"), None);
    }

    #[test]
    fn asking_is_sent_before_each_redirected_command() {
        let parcel = Parcel::several(vec![command(&["GET", "a"]), command(&["WAIT", "1"])]);
        let names: Vec<String> = parcel
            .asking()
            .0
            .iter()
            .map(|command| {
                let mut args = command.args_iter();
                match args.next() {
                    Some(redis::Arg::Simple(name)) => String::from_utf8_lossy(name).into_owned(),
                    _ => String::new(),
                }
            })
            .collect();
        assert_eq!(names, ["ASKING", "GET", "ASKING", "WAIT"]);
    }
}
