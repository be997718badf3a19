//! A connection to Redis that answers or fails in time: one server, a server behind Sentinels, or a Cluster.
//!
//! Shared by the Redis ledger and the Redis rate limiter. Each server has its own multiplexed connections, a deadline
//! per call, and a breaker, so that a failed primary delays only calls whose slots it owns.
//!
//! The cluster connection of the `redis` crate (`cluster-async`, as in 1.8.1) would need less code, but behaves
//! differently in these cases of failure:
//!
//! | | the `redis` crate | this module |
//! |---|---|---|
//! | a server is gone | calls for its slots are sent to another server; after MOVED all slots are looked up again, and until every server has been connected to or given up, no call to any server is polled (`poll_flush`, `refresh_connections_locked`) | calls for its slots fail or look for the new owner; other calls go on |
//! | a server hangs | no breaker: each call waits for its whole limit, and is sent again up to 16 times within it | refused at once after three late answers, probed every 250 ms |
//! | owner of a slot | as reported by the first node that answers, even if it is cut off (`refresh_slots`) | as reported by most nodes |
//! | ASK | ASKING and the command are sent separately on a shared connection: another command may come between. Several commands get one ASKING, which applies to the first only | each command is sent together with its own ASKING |
//! | WAIT for a replica | sent to all primaries; if routed to one, it blocks all users of the server's only connection | has its own connection, and is sent together with the write |
//! | Sentinels, one server | separate clients with other retries | the same code, without slots |
//!
//! The crate and this module handle MOVED, TRYAGAIN, READONLY after a failover, and repeated commands in the same way.
//! Neither reads from replicas. In both, EVALSHA commands of many callers share a server's connection, so the crate
//! would not be faster.
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
pub(crate) use self::node::{Lane, ServerInfo};
pub use self::script::RedisScript;
pub use self::url::RedisUrl;
use self::{
    directory::{Directory, Patience},
    map::Map,
    node::{CONNECT_TIMEOUT, Failure, Limit, Node, Parcel},
    url::Kind,
};

/// The type of a reply, an unparsed reply, and a script's arguments.
pub(crate) use redis::{FromRedisValue as Reply, ToRedisArgs as Args, Value};

/// Deadline of calls that do not delay a caller's request: operators' requests, sweeps.
pub(crate) const OPERATOR_TIMEOUT: Duration = Duration::from_secs(5);
/// The time for which an operator's write waits for a replica to acknowledge it.
const REPLICA_WAIT: Duration = Duration::from_secs(1);
/// After this number of redirections, a call pauses before each further redirection.
const DETOURS_MAX: u32 = 4;
/// The pause before a further redirection, and between attempts while a slot is being moved to another server.
const PAUSE: Duration = Duration::from_millis(20);

/// The settings of the connection to Redis.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RedisSettings {
    /// Deadline of a Redis call while a caller's request waits for it.
    pub response_timeout: Duration,
    /// The number of shared connections to each server; commands take them in rotation. Each server has two more
    /// connections: one for commands that wait for replicas, and one for leases. A larger number does not run scripts
    /// in parallel: a Redis server runs one script at a time.
    pub connections: usize,
    /// Trusted certificate authorities as PEM, instead of Mozilla's list; for addresses with TLS.
    pub authorities: Option<Arc<[u8]>>,
}

impl Default for RedisSettings {
    fn default() -> Self {
        Self {
            response_timeout: Duration::from_millis(500),
            // Few connections, so that concurrent commands are sent together. There are two connections, so that a late
            // answer delays only the commands on its own connection.
            connections: 2,
            authorities: None,
        }
    }
}

/// Connections to one Redis, which may be one server or many. Clones share them.
#[derive(Clone)]
pub struct RedisConn(Arc<Inner>);

struct Inner {
    /// The hosts of the URL, for error texts.
    address: Arc<str>,
    directory: Directory,
    version: (u32, u32),
    response_timeout: Duration,
    mark: RedisScript,
}

impl RedisConn {
    /// Connects; [`RedisUrl`] describes the address. Gives up after a few seconds if the server is out of reach.
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

    /// Hosts and ports of the Redis URL.
    #[must_use]
    pub fn address(&self) -> &str {
        &self.0.address
    }

    /// Major and minor version of the oldest primary, as read at the start.
    #[must_use]
    pub fn version(&self) -> (u32, u32) {
        self.0.version
    }

    /// Returns whether keys are distributed over several servers.
    #[must_use]
    pub fn is_cluster(&self) -> bool {
        self.0.directory.is_cluster()
    }

    /// Returns whether other servers can take over from a failed primary.
    pub(crate) fn is_replicated(&self) -> bool {
        !self.0.directory.is_single()
    }

    /// The deadline of a Redis call while a caller's request waits for it.
    #[must_use]
    pub fn response_timeout(&self) -> Duration {
        self.0.response_timeout
    }

    /// Builds a script from two parts. If the first line of `script` is `#!lua flags=...`, it becomes the first line of
    /// the combined text. For a server that does not support such a line (before 7.0) it is removed.
    #[must_use]
    pub fn script(&self, prelude: &str, script: &str) -> RedisScript {
        RedisScript::new(prelude, script, self.0.version >= FLAGS_SINCE)
    }

    /// Runs a script whose arguments and result are integers, within the response timeout.
    ///
    /// # Errors
    /// [`RedisFault`] if Redis is out of reach, or if the script failed.
    pub async fn eval_integers(
        &self,
        script: &RedisScript,
        keys: &[String],
        args: &[u64],
    ) -> Result<i64, RedisFault> {
        self.eval(script, keys, args, self.response_timeout()).await
    }

    /// Runs a script on the primary of its first key; its other keys must be in the same slot. The script must be
    /// idempotent or harmless to run twice: if the connection breaks, the call is sent once more.
    pub(crate) async fn eval<T: Reply>(
        &self,
        script: &RedisScript,
        keys: &[String],
        args: impl Args,
        limit: Duration,
    ) -> Result<T, RedisFault> {
        self.eval_in(Lane::Shared, script, keys, args, limit).await
    }

    /// Runs a script as [`Self::eval`] does, over the connection of this lane.
    pub(crate) async fn eval_in<T: Reply>(
        &self,
        lane: Lane,
        script: &RedisScript,
        keys: &[String],
        args: impl Args,
        limit: Duration,
    ) -> Result<T, RedisFault> {
        let slot = self.0.slot(keys.first());
        let limit = Limit::begin(limit);
        let by_name = Parcel::one(script.by_name(keys, &args));
        let values = match self.0.send(slot, &by_name, lane, limit).await {
            Err(Failure::Reply(_, error)) if is(&error, ServerErrorKind::NoScript) => {
                let by_text = Parcel::one(script.by_text(keys, args));
                self.0.send(slot, &by_text, lane, limit).await?
            }
            values => values?,
        };
        only(values)
    }

    /// Runs a script without arguments for each of these key lists, and returns the results in their order. Calls to
    /// one server are sent together.
    pub(crate) async fn eval_each<T: Reply>(
        &self,
        script: &RedisScript,
        each: &[Vec<String>],
        limit: Duration,
    ) -> Result<Vec<T>, RedisFault> {
        // After the first call, the server has cached the script, so that the other calls can use its SHA-1 alone.
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

    /// Runs a script. Returns after a replica has acknowledged its writes, if the primary has replicas.
    pub(crate) async fn eval_durably<T: Reply>(
        &self,
        script: &RedisScript,
        keys: &[String],
        args: &[String],
        limit: Duration,
    ) -> Result<T, RedisFault> {
        let key = keys.first().map_or("", String::as_str);
        let command = script.by_text(keys, args);
        self.0.durably(key, command, Limit::begin(limit)).await
    }

    /// Sends one command, whose second word is its key. The command must be harmless to send twice.
    pub(crate) async fn command<T: Reply>(
        &self,
        words: &[impl AsRef<str>],
        limit: Duration,
    ) -> Result<T, RedisFault> {
        let slot = self.0.slot(words.get(1));
        let parcel = Parcel::words(words);
        let limit = Limit::begin(limit);
        only(self.0.send(slot, &parcel, Lane::Shared, limit).await?)
    }

    /// Sends several commands, each harmless to send twice, and returns the results in their order. Commands to one
    /// server are sent together.
    pub(crate) async fn commands<T: Reply>(
        &self,
        commands: &[Vec<String>],
        limit: Duration,
    ) -> Result<Vec<T>, RedisFault> {
        if self.is_cluster() {
            let answers = commands.iter().map(|words| self.command(words, limit));
            return join_all(answers).await.into_iter().collect();
        }
        let commands = commands.iter().map(|words| node::command(words));
        self.together(commands.collect(), limit).await
    }

    /// Sends commands to the only server.
    async fn together<T: Reply>(
        &self,
        commands: Vec<Cmd>,
        limit: Duration,
    ) -> Result<Vec<T>, RedisFault> {
        if commands.is_empty() {
            return Ok(Vec::new());
        }
        let (parcel, limit) = (Parcel::several(commands), Limit::begin(limit));
        let values = self.0.send(0, &parcel, Lane::Shared, limit).await?;
        values.into_iter().map(read).collect()
    }

    /// Sends a command as [`Self::command`] does. Returns after a replica has acknowledged the write, if the primary
    /// has replicas.
    pub(crate) async fn command_durably<T: Reply>(
        &self,
        words: &[&str],
        limit: Duration,
    ) -> Result<T, RedisFault> {
        let key = words.get(1).copied().unwrap_or_default();
        let command = node::command(words);
        self.0.durably(key, command, Limit::begin(limit)).await
    }

    /// Looks the primaries up and returns them. If the look-up fails, returns the primaries of the last look-up.
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

/// A primary, for commands that are sent to every primary.
pub(crate) struct Primary(Arc<Node>);

impl Primary {
    /// Host and port of the server.
    pub(crate) fn address(&self) -> Arc<str> {
        Arc::clone(self.0.shown())
    }

    /// Sends this server a command that has no key.
    pub(crate) async fn command<T: Reply>(
        &self,
        words: &[&str],
        limit: Duration,
    ) -> Result<T, RedisFault> {
        let (parcel, limit) = (Parcel::words(words), Limit::begin(limit));
        only(self.0.send(&parcel, Lane::Shared, limit).await?)
    }

    /// Returns the server's INFO; `None` if the hosting provider forbids the command.
    pub(crate) async fn info(&self, limit: Duration) -> Result<Option<ServerInfo>, RedisFault> {
        self.0.info(limit).await
    }
}

/// A script that is sent to the same slot after an operator's write. So WAIT has a write to wait for, even if the
/// operator's write was a repeat and changed nothing. The Redis key that the script writes expires after a second.
const MARK: &str = "#!lua flags=allow-oom\nredis.call('SET', KEYS[1], '1', 'PX', 1000)\nreturn 1\n";
/// The first version of Redis that supports script flags.
const FLAGS_SINCE: (u32, u32) = (7, 0);

impl Inner {
    /// Sends commands to the owner of the slot and follows redirections, until there is an answer or the time is up.
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
                return Err(Failure::Fault(RedisFault::OutOfReach {
                    address: Arc::clone(&self.address),
                    cause: format!("no server has slot {slot} now").into(),
                }));
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
            asking = false;
            let mut pauses = detours >= DETOURS_MAX;
            target = match &failure {
                Failure::Reply(_, error) if is(error, ServerErrorKind::Moved) => {
                    map = self.look(&map, None, Patience::Wait, limit).await;
                    self.redirected(error, &node)
                }
                Failure::Reply(_, error) if is(error, ServerErrorKind::Ask) => {
                    asking = true;
                    self.redirected(error, &node)
                }
                // TRYAGAIN: the account's Redis keys are being moved to another node, and some of them have not arrived
                // there. A retry will soon succeed.
                Failure::Reply(..) => {
                    pauses = true;
                    map.owner(slot).cloned()
                }
                Failure::Fault(fault) => {
                    let patience = match fault {
                        RedisFault::Down { .. } => Patience::None,
                        _ => Patience::Wait,
                    };
                    map = self.look(&map, Some(&node), patience, limit).await;
                    let owner = map.owner(slot);
                    owner.filter(|owner| !Arc::ptr_eq(owner, &node)).cloned()
                }
            };
            if target.is_none() {
                return Err(failure);
            }
            detours += 1;
            if pauses {
                sleep_until((Instant::now() + PAUSE).min(limit.at)).await;
            }
        }
    }

    /// Returns whether a retry may succeed: at another server, or at the same server a little later.
    fn leads_on(&self, failure: &Failure) -> bool {
        match failure {
            Failure::Reply(_, error) => self.directory.is_cluster() && error.is_cluster_error(),
            Failure::Fault(_) => true,
        }
    }

    /// Runs a command durably: see [`RedisConn::eval_durably`].
    async fn durably<T: Reply>(
        &self,
        key: &str,
        command: Cmd,
        limit: Limit,
    ) -> Result<T, RedisFault> {
        let slot = self.slot(Some(key));
        if !self.has_replicas(slot).await {
            let parcel = Parcel::one(command);
            return only(self.send(slot, &parcel, Lane::Shared, limit).await?);
        }
        let mark = [format!("tg:w:{{{}}}", map::hash_tag(key))];
        let patience_ms = REPLICA_WAIT.as_millis().to_string();
        let wait = node::command(&["WAIT", "1", &patience_ms]);
        let parcel = Parcel::several(vec![command, self.mark.by_text(&mark, None::<&str>), wait]);
        let values = self.send(slot, &parcel, Lane::Waiting, limit).await?;
        let [answer, _, replicas] = <[Value; 3]>::try_from(values)
            .map_err(|_| RedisFault::Unexpected("expected three answers".into()))?;
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
            // The server has just become the primary. If INFO fails, the write fails too, and reports the error.
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

/// Returns the oldest version among the primaries that answer.
async fn oldest(
    directory: &Directory,
    is_single: bool,
    limit: Duration,
) -> Result<(u32, u32), RedisFault> {
    let primaries = directory.map().primaries();
    let (mut oldest, mut silent) = (None::<(u32, u32)>, None::<RedisFault>);
    for answer in join_all(primaries.iter().map(|node| node.info(limit))).await {
        let version = match answer {
            Ok(Some(info)) if is_single && info.in_cluster => {
                return Err(RedisFault::Unexpected(
                    "the server is a part of a Cluster: write redis-cluster:// in the address"
                        .into(),
                ));
            }
            Ok(Some(info)) => info.version,
            // Some hosting providers forbid INFO. They run a recent version.
            Ok(None) => FLAGS_SINCE,
            Err(fault) => {
                silent.get_or_insert(fault);
                continue;
            }
        };
        oldest = oldest.min(Some(version)).or(Some(version));
    }
    oldest.ok_or_else(|| {
        silent.unwrap_or_else(|| RedisFault::Unexpected("there is no primary".into()))
    })
}

fn is(error: &RedisError, kind: ServerErrorKind) -> bool {
    error.kind() == ErrorKind::Server(kind)
}

/// Parses the reply to a single command.
fn only<T: Reply>(mut values: Vec<Value>) -> Result<T, RedisFault> {
    read(values.pop().unwrap_or(Value::Nil))
}

pub(crate) fn read<T: Reply>(value: Value) -> Result<T, RedisFault> {
    redis::from_redis_value(value).map_err(|error| RedisFault::Unexpected(error.to_string()))
}

#[cfg(test)]
mod tests {
    use std::error::Error;

    use super::*;
    use crate::redis::test_server::Server;

    /// Each lane is a connection for one purpose, such as leases. A lane's connection that fails is replaced even if
    /// the server still answers on other connections.
    #[tokio::test]
    async fn hanging_dedicated_connection_is_replaced_while_others_still_answer() {
        let server = Server::start().await;
        let ledger = server.ledger().await;
        let send = async |words: &[&str], lane, ms| {
            let limit = Limit::begin(Duration::from_millis(ms));
            let parcel = Parcel::words(words);
            ledger.conn().0.send(0, &parcel, lane, limit).await
        };
        let hangs = send(&["BLPOP", "nothing", "0"], Lane::Apart, 100).await;
        assert!(
            matches!(hangs, Err(Failure::Fault(RedisFault::TooSlow { .. }))),
            "{hangs:?}"
        );
        for lane in [Lane::Shared, Lane::Apart] {
            let answer = send(&["GET", "nothing"], lane, 2_000).await;
            assert!(answer.is_ok(), "{lane:?}: {answer:?}");
        }
    }

    #[tokio::test]
    async fn invalid_url_is_not_repeated_in_the_error() {
        let error = RedisConn::connect("postgres://u:secret@h/1", RedisSettings::default())
            .await
            .unwrap_err();
        assert!(
            matches!(error, RedisFault::Url(_)) && !error.to_string().contains("secret"),
            "{error}"
        );
    }

    #[tokio::test]
    async fn unreachable_server_is_reported_at_once() {
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
