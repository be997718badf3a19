//! One Redis server: a few multiplexed connections, a breaker, and a deadline per call. Calls use the connections in
//! turn.

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

use super::{RedisFault, Result, breaker::Breaker, url::Address};

/// The deadline of one attempt to connect.
pub(super) const CONNECT_TIMEOUT: Duration = Duration::from_secs(1);
/// How many commands may wait for the socket of a connection. The `redis` crate's default of 50 would delay commands in
/// a burst.
const PIPELINE_MAX: usize = 4096;

/// A server's connections, its breaker, and how many replicas it has.
pub(super) struct Node {
    address: Address,
    shown: Arc<str>,
    client: Client,
    config: ConnectionManagerConfig,
    /// The connections of [`Lane::Shared`], and after them one connection for each of the other lanes.
    links: Box<[RwLock<Link>]>,
    turn: AtomicUsize,
    breaker: Breaker,
    /// The number of replicas; [`UNKNOWN`] before the first INFO.
    replicas: AtomicU32,
}

const UNKNOWN: u32 = u32::MAX;

/// A connection, and how often it has been replaced.
#[derive(Clone)]
struct Link {
    generation: u64,
    manager: ConnectionManager,
}

/// The purpose of a command, which selects its connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Lane {
    /// Ordinary calls. They share several connections.
    Shared,
    /// Commands such as WAIT, which delay all later commands on their connection.
    Waiting,
    /// Lease turns only. The connection is opened on the runtime of the lease task, so that this runtime polls it.
    Leases,
}

/// The number of lanes that have only one connection each.
const LANES_OF_ONE: usize = 2;

/// A deadline, and the total time that a call has until then, which error texts name.
#[derive(Clone, Copy, Debug)]
pub(super) struct Limit {
    pub(super) at: Instant,
    whole: Duration,
}

impl Limit {
    /// Starts a deadline that ends `whole` from now.
    pub(super) fn begin(whole: Duration) -> Self {
        Self {
            at: Instant::now() + whole,
            whole,
        }
    }
}

/// The reason why a call failed, before the reason is converted to a [`RedisFault`].
#[derive(Debug)]
pub(super) enum Failure {
    /// An error that the server returned, and the server's address.
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

/// Commands that are sent together on one connection, without other commands between them.
#[derive(Debug)]
pub(super) struct Parcel(pub(super) Vec<Cmd>);

impl Parcel {
    pub(super) fn words(words: &[impl AsRef<str>]) -> Self {
        Self(vec![command(words)])
    }

    /// Returns the same commands with the command ASKING before each of them, for a slot that the server is taking
    /// over.
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

/// Facts about a server, parsed from its INFO.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ServerInfo {
    pub(crate) version: (u32, u32),
    /// The run id and the replication id. Another value means that the process was restarted or replaced, or has
    /// another history of data.
    pub(crate) identity: String,
    /// The number of connected replicas.
    pub(crate) replicas: u32,
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
    /// Creates the server without connecting. The first command connects.
    pub(super) fn new(address: Address, info: ConnectionInfo, connections: usize) -> Result<Self> {
        let shown: Arc<str> = address.to_string().into();
        let unusable = |error: RedisError| RedisFault::out_of_reach(&shown, error);
        let tcp = TcpSettings::default().set_nodelay(true);
        // This option detects a peer that disappeared without closing the connection: such a peer does not acknowledge
        // data.
        #[cfg(target_os = "linux")]
        let tcp = tcp.set_user_timeout(super::OPERATOR_TIMEOUT);
        let client = Client::open(info.set_tcp_settings(tcp)).map_err(unusable)?;
        let config = ConnectionManagerConfig::new()
            // The `redis` crate must not retry, because a call would then wait for the whole series of attempts.
            .set_number_of_retries(0)
            .set_connection_timeout(Some(CONNECT_TIMEOUT))
            // The caller already has a deadline, so another timer per command would only cost time.
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

    pub(super) const fn shown(&self) -> &Arc<str> {
        &self.shown
    }

    /// Returns the number of replicas according to the last INFO; `None` before the first INFO.
    pub(super) fn replicas(&self) -> Option<u32> {
        Some(self.replicas.load(Ordering::Relaxed)).filter(|count| *count != UNKNOWN)
    }

    /// Sends commands that are harmless to run twice: if the connection breaks, they are sent a second time.
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
                let fault = RedisFault::out_of_reach(&self.shown, error);
                Err(Failure::Fault(fault))
            }
            Err(_) => {
                // On the lane `Waiting`, a late answer does not mean that the server is down, because WAIT also waits
                // for replicas.
                let is_silent = lane != Lane::Waiting && self.breaker.timed_out();
                // Every lane except `Shared` has only one connection, and answers on other lanes do not prove that this
                // connection works.
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

    /// Sends commands even if the breaker is open, and does not report the result to the breaker. Used for look-ups of
    /// the primaries, which are sent to several servers at once.
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

    /// Returns the server's INFO; `None` if the hosting provider forbids this command.
    pub(super) async fn info(&self, limit: Duration) -> Result<Option<ServerInfo>> {
        let sections = ["server", "replication"].map(|section| command(&["INFO", section]));
        let parcel = Parcel(sections.into());
        let values = match self.send(&parcel, Lane::Shared, Limit::begin(limit)).await {
            Err(Failure::Reply(..)) => return Ok(None),
            values => values?,
        };
        let sections = values
            .into_iter()
            .map(redis::from_redis_value)
            .collect::<Result<Vec<String>, _>>()
            .map_err(|error| RedisFault::Unexpected(error.to_string()))?;
        let info = ServerInfo::read(&sections.join("\n")).ok_or_else(|| {
            RedisFault::Unexpected("the reply to INFO contains no version".into())
        })?;
        self.replicas.store(info.replicas, Ordering::Relaxed);
        Ok(Some(info))
    }

    async fn attempt(&self, parcel: &Parcel, place: usize, link: Link) -> RedisResult<Vec<Value>> {
        let Link {
            generation,
            mut manager,
        } = link;
        match parcel.over(&mut manager).await {
            // The server closed an idle connection or was restarted, or its host name now belongs to another server.
            // The crate's connection manager reconnects by itself only after a dropped connection. After other failures
            // (TLS, AUTH, LOADING), the manager would retry for ever, so the manager is replaced.
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
            Lane::Leases => shared + 1,
        }
    }

    fn link(&self, place: usize) -> Link {
        self.links[place]
            .read()
            .unwrap_or_else(PoisonError::into_inner)
            .clone()
    }

    /// Replaces a failed connection, unless another task has already replaced it.
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

/// Returns whether the error is the reply of a server that can serve other calls. Examples are an error in a script and
/// a lack of memory.
fn is_reply(error: &RedisError) -> bool {
    use ServerErrorKind::{BusyLoading, ClusterDown, MasterDown, ReadOnly};
    match error.kind() {
        // With these errors the server cannot serve any call, so the connection is replaced: after a failover, the
        // server's host name may belong to another server.
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
    fn asking_command_is_sent_before_each_redirected_command() {
        let parcel = Parcel(vec![command(&["GET", "a"]), command(&["WAIT", "1"])]);
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
