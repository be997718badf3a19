//! A connection to Redis. Each call on it is answered or fails before a deadline. Redis may be one server, a server
//! behind Sentinels, or a Cluster.
//!
//! The Redis ledger and the Redis rate limiter share this connection. Each server has its own multiplexed connections,
//! its own breaker, and a deadline per call. So a failed primary delays only calls whose slots it owns.
//!
//! The cluster connection of the `redis` crate (`cluster-async`, as in version 1.8.1) would need less code, but it
//! behaves worse in these cases:
//!
//! - **A server is gone.** The `redis` crate sends calls for the lost server's slots to another server. After MOVED the
//!   crate looks up all slots, and polls no call to any server until it has connected to every server or given up
//!   (`poll_flush`, `refresh_connections_locked`). In this module, calls for the lost server's slots fail or look for
//!   the new owner, and calls to other servers are not affected.
//! - **A server hangs.** The `redis` crate has no breaker: each call waits until its deadline, and until then it is
//!   sent again up to 16 times. This module refuses calls immediately after three late responses, and probes the
//!   server every 250 ms.
//! - **The owner of a slot.** The `redis` crate believes the first node that answers, even if that node is cut off
//!   (`refresh_slots`). This module believes the answer that most nodes give.
//! - **ASK.** The `redis` crate sends ASKING and the command separately on a shared connection, so another command may
//!   come between them. For several commands it sends one ASKING, which applies only to the first. This module sends
//!   each command together with its own ASKING.
//! - **WAIT for a replica.** The `redis` crate sends WAIT to all primaries. If WAIT is routed to one server, it blocks
//!   all users of the server's only connection. In this module, WAIT has its own connection and is sent together with
//!   the write.
//! - **Sentinels, or one server.** The `redis` crate has separate clients for these two cases, and these clients retry
//!   in other ways. This module uses the same code as for a Cluster, without slots.
//!
//! The `redis` crate and this module behave alike in other respects: on MOVED, on TRYAGAIN, on READONLY after a
//! failover, and for repeated commands. Neither of them reads from replicas. In both, EVALSHA commands of many callers
//! share the connection to a server, so the crate would not be faster.
//!
//! ```text
//! url        the kind of deployment (one of these three) and its addresses
//! directory  the current primaries: requests them from Sentinels or nodes, after a failure and once a second
//! map        slot → primary
//! fault      the reason why a call failed
//! node       one server: connections, deadline; breaker
//! script     EVALSHA; EVAL if the server has not cached the script
//! ```
//!
//! Every command may be sent twice, so it must be harmless to repeat. No command is sent to a replica.

mod breaker;
mod directory;
mod fault;
mod map;
mod node;
mod script;
mod url;

use std::{fmt, sync::Arc, time::Duration};

use futures_util::future::join_all;
use redis::{Cmd, ErrorKind, RedisError, ServerErrorKind};
use tokio::time::{Instant, sleep_until, timeout_at};

pub use self::fault::RedisFault;
pub(crate) use self::fault::Result;
pub(crate) use self::node::{Lane, ServerInfo};
pub use self::script::RedisScript;
pub use self::url::RedisUrl;
use self::{
    directory::{Directory, Patience},
    map::Map,
    node::{CONNECT_TIMEOUT, Failure, Limit, Node, Parcel},
    url::Kind,
};

/// The types of a reply, of an unparsed reply, and of a script's arguments.
pub(crate) use redis::{FromRedisValue as Reply, ToRedisArgs as Args, Value};

/// The deadline of calls for which no caller's request waits: operators' commands and sweeps.
pub(crate) const OPERATOR_TIMEOUT: Duration = Duration::from_secs(5);
/// How long an operator's write waits for the acknowledgement of a replica.
const REPLICA_WAIT: Duration = Duration::from_secs(1);
/// After this many redirections, a call pauses before each further redirection.
const DETOURS_MAX: u32 = 4;
/// The pause before a further redirection, and between attempts while a slot moves to another server.
const PAUSE: Duration = Duration::from_millis(20);

/// The settings of the connection to Redis.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RedisSettings {
    /// The deadline of a Redis call for which a caller's request waits.
    pub response_timeout: Duration,
    /// The number of shared connections to each server; commands use them in turn. Each server has two further
    /// connections: one for commands that wait for replicas, and one for leases. More connections do not make scripts
    /// run in parallel, because a Redis server runs one script at a time.
    pub connections: usize,
    /// Certificate authorities to trust for TLS, as PEM. `None` means Mozilla's list.
    pub authorities: Option<Arc<[u8]>>,
}

impl Default for RedisSettings {
    fn default() -> Self {
        Self {
            response_timeout: Duration::from_millis(500),
            // There are few connections, so that concurrent commands are sent together. There is more than one, because
            // a late answer delays all commands on its connection.
            connections: 2,
            authorities: None,
        }
    }
}

/// The connections to a Redis deployment of one or many servers. Clones share them.
#[derive(Clone)]
pub struct RedisConn(Arc<Inner>);

struct Inner {
    /// The hosts in the URL, for error texts.
    address: Arc<str>,
    directory: Directory,
    version: (u32, u32),
    response_timeout: Duration,
    mark: RedisScript,
}

impl RedisConn {
    /// Connects to the address, which [`RedisUrl`] describes. Fails after a few seconds if the server is unreachable.
    ///
    /// # Errors
    /// [`RedisFault::Url`] if the address is invalid; otherwise the [`RedisFault`] of the first connection.
    pub async fn connect(url: &str, settings: RedisSettings) -> Result<Self, RedisFault> {
        let url = RedisUrl::parse(url)?;
        let url = match &settings.authorities {
            None => url,
            Some(pem) => url.trusting(pem)?,
        };
        let address: Arc<str> = url.to_string().into();
        let is_single = url.kind == Kind::Single;
        let limit = 2 * CONNECT_TIMEOUT;
        let directory = Directory::begin(url, settings.connections, limit).await?;
        let version = oldest(&directory, is_single, limit).await?;
        Ok(Self(Arc::new(Inner {
            address,
            directory,
            version,
            response_timeout: settings.response_timeout,
            mark: RedisScript::new("", MARK, version >= FLAGS_SINCE),
        })))
    }

    /// Returns the hosts and ports of the Redis URL.
    #[must_use]
    pub fn address(&self) -> &str {
        &self.0.address
    }

    /// Returns the major and minor version of the oldest primary, as read when connecting.
    #[must_use]
    pub fn version(&self) -> (u32, u32) {
        self.0.version
    }

    /// Returns whether the Redis keys are distributed over several servers.
    #[must_use]
    pub fn is_cluster(&self) -> bool {
        self.0.directory.is_cluster()
    }

    /// Returns whether another server can take over from a failed primary.
    pub(crate) fn is_replicated(&self) -> bool {
        !self.0.directory.is_single()
    }

    /// Returns the deadline of a Redis call for which a caller's request waits.
    #[must_use]
    pub fn response_timeout(&self) -> Duration {
        self.0.response_timeout
    }

    /// Builds a script from `prelude`, followed by `script`. If the first line of `script` is `#!lua flags=...`, it
    /// becomes the first line of the built script. This line is removed for servers that do not support it (before
    /// Redis 7.0).
    #[must_use]
    pub fn script(&self, prelude: &str, script: &str) -> RedisScript {
        RedisScript::new(prelude, script, self.0.version >= FLAGS_SINCE)
    }

    /// Runs a script whose arguments and result are integers, with the response timeout as the deadline.
    ///
    /// # Errors
    /// A [`RedisFault`] if Redis is unreachable or the script failed.
    pub async fn eval_integers(
        &self,
        script: &RedisScript,
        keys: &[String],
        args: &[u64],
    ) -> Result<i64, RedisFault> {
        self.eval(script, keys, args, self.response_timeout()).await
    }

    /// Runs a script on the primary that owns the script's first key. All keys of the script must be in one slot. If
    /// the connection breaks, the call is sent a second time, so the script must be harmless to run twice.
    pub(crate) async fn eval<T: Reply>(
        &self,
        script: &RedisScript,
        keys: &[String],
        args: impl Args,
        limit: Duration,
    ) -> Result<T> {
        self.eval_in(Lane::Shared, script, keys, args, limit).await
    }

    /// Runs a script as [`Self::eval`] does, on the connection of the lane `lane`.
    pub(crate) async fn eval_in<T: Reply>(
        &self,
        lane: Lane,
        script: &RedisScript,
        keys: &[String],
        args: impl Args,
        limit: Duration,
    ) -> Result<T> {
        let slot = self.0.slot(keys.first());
        let limit = Limit::begin(limit);
        let by_name = Parcel(vec![script.by_name(keys, &args)]);
        let values = match self.0.send(slot, &by_name, lane, limit).await {
            Err(Failure::Reply(_, error)) if is(&error, ServerErrorKind::NoScript) => {
                let by_text = Parcel(vec![script.by_text(keys, args)]);
                self.0.send(slot, &by_text, lane, limit).await?
            }
            values => values?,
        };
        only(values)
    }

    /// Runs a script without arguments once for each list of keys, and returns the results in the order of these lists.
    /// Calls to the same server are sent together.
    pub(crate) async fn eval_each<T: Reply>(
        &self,
        script: &RedisScript,
        each: &[Vec<String>],
        limit: Duration,
    ) -> Result<Vec<T>> {
        // The first call makes the server cache the script, so that the other calls need to send only its SHA-1.
        let Some((first, others)) = each.split_first() else {
            return Ok(Vec::new());
        };
        let none = || -> &[String] { &[] };
        let mut answers = vec![self.eval(script, first, none(), limit).await?];
        if self.is_cluster() {
            let others = others
                .iter()
                .map(|keys| self.eval(script, keys, none(), limit));
            for answer in join_all(others).await {
                answers.push(answer?);
            }
        } else {
            let commands = others.iter().map(|keys| script.by_name(keys, none()));
            answers.extend(self.together(commands.collect(), limit).await?);
        }
        Ok(answers)
    }

    /// Runs a script. If the primary has replicas, returns only after a replica has acknowledged the script's writes.
    pub(crate) async fn eval_durably<T: Reply>(
        &self,
        script: &RedisScript,
        keys: &[String],
        args: &[String],
        limit: Duration,
    ) -> Result<T> {
        let key = keys.first().map_or("", String::as_str);
        let command = script.by_text(keys, args);
        self.0.durably(key, command, Limit::begin(limit)).await
    }

    /// Sends one command. Its second word must be its key, and it must be harmless to send twice.
    pub(crate) async fn command<T: Reply>(
        &self,
        words: &[impl AsRef<str>],
        limit: Duration,
    ) -> Result<T> {
        let slot = self.0.slot(words.get(1));
        let parcel = Parcel::words(words);
        let limit = Limit::begin(limit);
        only(self.0.send(slot, &parcel, Lane::Shared, limit).await?)
    }

    /// Sends several commands, and returns the results in the order of the commands. Each command must be harmless to
    /// send twice. Commands to the same server are sent together.
    pub(crate) async fn commands<T: Reply>(
        &self,
        commands: &[Vec<String>],
        limit: Duration,
    ) -> Result<Vec<T>> {
        if self.is_cluster() {
            let answers = commands.iter().map(|words| self.command(words, limit));
            return join_all(answers).await.into_iter().collect();
        }
        let commands = commands.iter().map(|words| node::command(words));
        self.together(commands.collect(), limit).await
    }

    /// Sends several commands together to the only server.
    async fn together<T: Reply>(&self, commands: Vec<Cmd>, limit: Duration) -> Result<Vec<T>> {
        if commands.is_empty() {
            return Ok(Vec::new());
        }
        let (parcel, limit) = (Parcel(commands), Limit::begin(limit));
        let values = self.0.send(0, &parcel, Lane::Shared, limit).await?;
        values.into_iter().map(read).collect()
    }

    /// Sends a command as [`Self::command`] does. If the primary has replicas, returns only after a replica has
    /// acknowledged the write.
    pub(crate) async fn command_durably<T: Reply>(
        &self,
        words: &[&str],
        limit: Duration,
    ) -> Result<T> {
        let key = words.get(1).copied().unwrap_or_default();
        let command = node::command(words);
        self.0.durably(key, command, Limit::begin(limit)).await
    }

    /// Looks the primaries up and returns them. If the look-up fails, returns the primaries of the last successful
    /// look-up.
    pub(crate) async fn look(&self) -> Vec<Primary> {
        let directory = &self.0.directory;
        let map = directory.look(&directory.map(), None, Patience::Wait).await;
        map.primaries().into_iter().map(Primary).collect()
    }
}

impl fmt::Debug for RedisConn {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RedisConn")
            .field("address", &self.0.address)
            .finish_non_exhaustive()
    }
}

/// One primary, for commands that are sent to each primary.
pub(crate) struct Primary(Arc<Node>);

impl Primary {
    /// Returns the host and port of the server.
    pub(crate) fn address(&self) -> Arc<str> {
        Arc::clone(self.0.shown())
    }

    /// Sends a command without a key to this server.
    pub(crate) async fn command<T: Reply>(&self, words: &[&str], limit: Duration) -> Result<T> {
        let (parcel, limit) = (Parcel::words(words), Limit::begin(limit));
        only(self.0.send(&parcel, Lane::Shared, limit).await?)
    }

    /// Returns the server's INFO; `None` if the hosting provider forbids this command.
    pub(crate) async fn info(&self, limit: Duration) -> Result<Option<ServerInfo>> {
        self.0.info(limit).await
    }
}

/// Where and how failed commands are sent again.
struct Retry {
    /// The server to which the commands are sent; `None` if no other server can execute them.
    target: Option<Arc<Node>>,
    /// Whether to send the command ASKING before each of the commands.
    asking: bool,
    /// Whether to pause before the commands are sent again.
    pauses: bool,
}

/// A script that runs in the same slot after an operator's write, so that WAIT always has a write to wait for. The
/// operator's write may be a repeat that changes nothing. The script writes a Redis key that expires after one second.
const MARK: &str = "#!lua flags=allow-oom\nredis.call('SET', KEYS[1], '1', 'PX', 1000)\nreturn 1\n";
/// The first Redis version that supports script flags.
const FLAGS_SINCE: (u32, u32) = (7, 0);

impl Inner {
    /// Sends commands to the owner of the slot, and follows redirections, until there is an answer or the deadline has
    /// passed.
    async fn send(
        &self,
        slot: u16,
        parcel: &Parcel,
        lane: Lane,
        limit: Limit,
    ) -> Result<Vec<Value>, Failure> {
        let mut map = self.directory.map();
        let mut target = map.owner(slot).cloned();
        let (mut asking, mut detours) = (false, 0);
        loop {
            let Some(node) = target else {
                map = self.look(&map, None, Patience::Wait, limit).await;
                target = map.owner(slot).cloned();
                if target.is_some() {
                    continue;
                }
                let text = format!("no server owns slot {slot} now");
                let fault = RedisFault::out_of_reach(&self.address, text);
                return Err(Failure::Fault(fault));
            };
            let answer = if asking {
                let answers = node.send(&parcel.asking(), lane, limit).await;
                answers.map(|values| values.into_iter().skip(1).step_by(2).collect())
            } else {
                node.send(parcel, lane, limit).await
            };
            let failure = match answer {
                Ok(values) => return Ok(values),
                Err(failure) => failure,
            };
            if Instant::now() >= limit.at || !self.leads_on(&failure) {
                return Err(failure);
            }
            let retry = self.retry_at(slot, &failure, &node, &mut map, limit).await;
            target = retry.target;
            asking = retry.asking;
            if target.is_none() {
                return Err(failure);
            }
            detours += 1;
            if retry.pauses || detours > DETOURS_MAX {
                sleep_until((Instant::now() + PAUSE).min(limit.at)).await;
            }
        }
    }

    /// Chooses the server to which commands are sent again after `node` has failed or redirected them. Looks the
    /// primaries up if `map` may be outdated.
    async fn retry_at(
        &self,
        slot: u16,
        failure: &Failure,
        node: &Arc<Node>,
        map: &mut Arc<Map>,
        limit: Limit,
    ) -> Retry {
        let (mut asking, mut pauses) = (false, false);
        let target = match failure {
            Failure::Reply(_, error) if is(error, ServerErrorKind::Moved) => {
                *map = self.look(map, None, Patience::Wait, limit).await;
                self.redirected(error, node)
            }
            Failure::Reply(_, error) if is(error, ServerErrorKind::Ask) => {
                asking = true;
                self.redirected(error, node)
            }
            // TRYAGAIN: Redis keys of this slot are being moved to another node, and some of them have not arrived
            // there yet. A retry will soon succeed.
            Failure::Reply(..) => {
                pauses = true;
                map.owner(slot).cloned()
            }
            Failure::Fault(fault) => {
                let patience = match fault {
                    RedisFault::Down { .. } => Patience::None,
                    _ => Patience::Wait,
                };
                *map = self.look(map, Some(node), patience, limit).await;
                let owner = map.owner(slot);
                owner.filter(|owner| !Arc::ptr_eq(owner, node)).cloned()
            }
        };
        Retry {
            target,
            asking,
            pauses,
        }
    }

    /// Returns whether a retry may succeed, at another server or a little later.
    fn leads_on(&self, failure: &Failure) -> bool {
        match failure {
            Failure::Reply(_, error) => self.directory.is_cluster() && error.is_cluster_error(),
            Failure::Fault(_) => true,
        }
    }

    /// Runs a command durably, as [`RedisConn::eval_durably`] does.
    async fn durably<T: Reply>(&self, key: &str, command: Cmd, limit: Limit) -> Result<T> {
        let slot = self.slot(Some(key));
        if !self.has_replicas(slot).await {
            let parcel = Parcel(vec![command]);
            return only(self.send(slot, &parcel, Lane::Shared, limit).await?);
        }
        let mark = [format!("tg:w:{{{}}}", map::hash_tag(key))];
        let patience_ms = REPLICA_WAIT.as_millis().to_string();
        let wait = node::command(&["WAIT", "1", &patience_ms]);
        let parcel = Parcel(vec![command, self.mark.by_text(&mark, None::<&str>), wait]);
        let values = self.send(slot, &parcel, Lane::Waiting, limit).await?;
        let [answer, _, replicas] = <[Value; 3]>::try_from(values)
            .map_err(|_| RedisFault::Unexpected("expected three replies from Redis".into()))?;
        if read::<u32>(replicas)? == 0 {
            return Err(RedisFault::NotReplicated {
                address: Arc::clone(&self.address),
            });
        }
        read(answer)
    }

    async fn has_replicas(&self, slot: u16) -> bool {
        let Some(owner) = self.directory.map().owner(slot).cloned() else {
            return false;
        };
        if owner.replicas().is_none() {
            // The server has just become the primary, so its number of replicas is unknown. If INFO fails, the write
            // reports that error.
            let _ = owner.info(self.response_timeout).await;
        }
        owner.replicas().is_some_and(|count| count > 0)
    }

    async fn look(
        &self,
        seen: &Arc<Map>,
        except: Option<&Arc<Node>>,
        patience: Patience,
        limit: Limit,
    ) -> Arc<Map> {
        timeout_at(limit.at, self.directory.look(seen, except, patience))
            .await
            .unwrap_or_else(|_| self.directory.map())
    }

    fn redirected(&self, error: &RedisError, by: &Node) -> Option<Arc<Node>> {
        let (address, _) = error.redirect_node()?;
        self.directory.named(address, by)
    }

    fn slot(&self, key: Option<impl AsRef<str>>) -> u16 {
        match key {
            Some(key) if self.directory.is_cluster() => map::slot_of(key.as_ref()),
            _ => 0,
        }
    }
}

/// Returns the lowest version among the primaries that answer.
async fn oldest(directory: &Directory, is_single: bool, limit: Duration) -> Result<(u32, u32)> {
    let primaries = directory.map().primaries();
    let (mut oldest, mut silent) = (None::<(u32, u32)>, None::<RedisFault>);
    for answer in join_all(primaries.iter().map(|node| node.info(limit))).await {
        let version = match answer {
            Ok(Some(info)) if is_single && info.in_cluster => {
                return Err(RedisFault::Unexpected(
                    "the server is part of a Cluster: write redis-cluster:// in the address".into(),
                ));
            }
            Ok(Some(info)) => info.version,
            // Some hosting providers forbid INFO. Their servers are assumed to run a recent version.
            Ok(None) => FLAGS_SINCE,
            Err(fault) => {
                silent.get_or_insert(fault);
                continue;
            }
        };
        oldest = oldest.min(Some(version)).or(Some(version));
    }
    oldest.ok_or_else(|| {
        silent.unwrap_or_else(|| RedisFault::Unexpected("no primary was found".into()))
    })
}

fn is(error: &RedisError, kind: ServerErrorKind) -> bool {
    error.kind() == ErrorKind::Server(kind)
}

/// Parses the reply to a single command.
fn only<T: Reply>(mut values: Vec<Value>) -> Result<T> {
    read(values.pop().unwrap_or(Value::Nil))
}

pub(crate) fn read<T: Reply>(value: Value) -> Result<T> {
    redis::from_redis_value(value).map_err(|error| RedisFault::Unexpected(error.to_string()))
}

#[cfg(test)]
mod tests {
    use std::error::Error;

    use super::*;
    use crate::redis::test_server::Server;

    /// Each lane is a connection for one purpose, for example leases. If the connection of a lane fails, it is replaced
    /// even if the server still answers on other connections.
    #[tokio::test]
    async fn hanging_connection_is_replaced_even_if_connections_for_other_purposes_answer() {
        let server = Server::start().await;
        let ledger = server.ledger().await;
        let send = async |words: &[&str], lane, ms| {
            let limit = Limit::begin(Duration::from_millis(ms));
            let parcel = Parcel::words(words);
            ledger.conn().0.send(0, &parcel, lane, limit).await
        };
        let hangs = send(&["BLPOP", "nothing", "0"], Lane::Leases, 100).await;
        assert!(
            matches!(hangs, Err(Failure::Fault(RedisFault::TooSlow { .. }))),
            "{hangs:?}"
        );
        for lane in [Lane::Shared, Lane::Leases] {
            let answer = send(&["GET", "nothing"], lane, 2_000).await;
            assert!(answer.is_ok(), "{lane:?}: {answer:?}");
        }
    }

    #[tokio::test]
    async fn error_for_an_invalid_url_does_not_contain_the_url() {
        let error = RedisConn::connect("postgres://u:secret@h/1", RedisSettings::default())
            .await
            .unwrap_err();
        assert!(
            matches!(error, RedisFault::Url(_)) && !error.to_string().contains("secret"),
            "{error}"
        );
    }

    #[tokio::test]
    async fn connecting_to_an_unreachable_server_fails_immediately() {
        // No server listens on port 1.
        for (url, message) in [
            (
                "redis://:secret@127.0.0.1:1",
                "Redis at 127.0.0.1:1 is out of reach",
            ),
            (
                "redis-cluster://:secret@127.0.0.1:1,127.0.0.1:2",
                "Redis at 127.0.0.1:1 is out of reach",
            ),
            (
                "redis-sentinel://:secret@127.0.0.1:1/mymaster",
                "Redis at 127.0.0.1:1 is out of reach",
            ),
        ] {
            let error = RedisConn::connect(url, RedisSettings::default())
                .await
                .unwrap_err();
            assert_eq!(error.to_string(), message);
            let cause = error.source().map(ToString::to_string);
            assert!(
                !format!("{error:?} {cause:?}").contains("secret"),
                "{error:?}"
            );
        }
    }
}
