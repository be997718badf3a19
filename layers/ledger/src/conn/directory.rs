//! Finds the primaries, that is the servers that accept writes: one fixed server, or the servers that Sentinels or
//! Cluster nodes report.

use std::{
    collections::HashMap,
    future::Future,
    sync::{Arc, Mutex, PoisonError, RwLock},
    time::Duration,
};

use futures_util::stream::{FuturesUnordered, StreamExt};
use redis::{RedisError, Value};
use tokio::time::{Instant, timeout_at};

use super::{
    RedisFault, Result,
    map::{Map, Range},
    node::{Failure, Lane, Limit, Node, Parcel},
    url::{Address, Kind, RedisUrl},
};

/// The shortest time between two look-ups of the primaries while calls fail.
const LOOK_EVERY: Duration = Duration::from_millis(100);
/// How long a look-up waits for Sentinels or nodes that have not answered.
const LOOK_LIMIT: Duration = Duration::from_millis(300);

/// The current primaries, and the servers from which they are requested.
pub(super) struct Directory {
    url: RedisUrl,
    connections: usize,
    map: RwLock<Arc<Map>>,
    /// All known servers, by address. A server keeps its connections when the primaries are looked up again.
    nodes: Mutex<HashMap<Address, Arc<Node>>>,
    sentinels: Vec<Sentinel>,
    /// Locked during a look-up. Contains the time of the last look-up.
    looked: tokio::sync::Mutex<Option<Instant>>,
}

/// Two connections to one Sentinel: one without a password, and one with the password of the Redis servers.
struct Sentinel {
    plain: Node,
    known: Node,
}

/// Ranges of slots: the first slot, the last slot, and the address of the server that owns them.
type Slots = Vec<(u16, u16, Address)>;

/// The behaviour of a task while another task looks the primaries up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Patience {
    /// The task waits for the result of the look-up.
    Wait,
    /// The task continues with the primaries of the last completed look-up.
    None,
}

impl Directory {
    /// Looks the primaries up for the first time.
    ///
    /// # Errors
    /// A [`RedisFault`] if no Sentinel or node reports the primaries before the deadline.
    pub(super) async fn begin(url: RedisUrl, connections: usize, limit: Duration) -> Result<Self> {
        let sentinels = match url.kind {
            Kind::Sentinel(_) => url
                .hosts
                .iter()
                .map(|address| {
                    let node = |with| Node::new(address.clone(), url.sentinel(address, with), 1);
                    Ok(Sentinel {
                        plain: node(false)?,
                        known: node(true)?,
                    })
                })
                .collect::<Result<Vec<_>>>()?,
            Kind::Single | Kind::Cluster => Vec::new(),
        };
        let directory = Self {
            url,
            connections,
            map: RwLock::new(Arc::new(Map::new(Vec::new()))),
            nodes: Mutex::new(HashMap::new()),
            sentinels,
            looked: tokio::sync::Mutex::new(None),
        };
        if directory.is_single() {
            let node = directory.node(&directory.url.hosts[0])?;
            directory.put(Map::whole(node));
        } else {
            match directory.find(None, limit).await {
                Some(found) => directory.accept(found)?,
                None => return Err(directory.lookup_error(limit).await),
            }
        }
        Ok(directory)
    }

    /// Returns the primaries found by the last look-up.
    pub(super) fn map(&self) -> Arc<Map> {
        Arc::clone(&self.map.read().unwrap_or_else(PoisonError::into_inner))
    }

    /// Returns whether the Redis keys are distributed over several servers.
    pub(super) fn is_cluster(&self) -> bool {
        self.url.kind == Kind::Cluster
    }

    /// Returns whether there is one fixed server.
    pub(super) fn is_single(&self) -> bool {
        self.url.kind == Kind::Single
    }

    /// Looks the primaries up, unless the map has changed since `seen` was read, or a look-up has just begun. `except`
    /// is a server that has just failed and may have outdated information: it gets the request only if no other server
    /// is available.
    pub(super) async fn look(
        &self,
        seen: &Arc<Map>,
        except: Option<&Arc<Node>>,
        patience: Patience,
    ) -> Arc<Map> {
        if self.is_single() {
            return self.map();
        }
        let mut looked = match patience {
            Patience::Wait => self.looked.lock().await,
            Patience::None => match self.looked.try_lock() {
                Ok(looked) => looked,
                Err(_) => return self.map(),
            },
        };
        let (now, map) = (Instant::now(), self.map());
        let recently = looked.is_some_and(|last| now < last + LOOK_EVERY);
        if recently || !Arc::ptr_eq(&map, seen) {
            return map;
        }
        *looked = Some(now);
        if let Some(found) = self.find(except, LOOK_LIMIT).await {
            // If a reported address is invalid, the current map is kept.
            let _ = self.accept(found);
        }
        self.map()
    }

    /// Returns the server at an address that the server `by` reported.
    pub(super) fn named(&self, address: &str, by: &Node) -> Option<Arc<Node>> {
        self.node(&Address::reported(address, by.address())?).ok()
    }

    fn node(&self, address: &Address) -> Result<Arc<Node>> {
        let mut nodes = self.nodes.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(node) = nodes.get(address) {
            return Ok(Arc::clone(node));
        }
        let info = self.url.server(address);
        let node = Arc::new(Node::new(address.clone(), info, self.connections)?);
        nodes.insert(address.clone(), Arc::clone(&node));
        Ok(node)
    }

    fn put(&self, map: Map) {
        *self.map.write().unwrap_or_else(PoisonError::into_inner) = Arc::new(map);
    }

    /// Replaces the map by `found`, if they differ.
    fn accept(&self, found: Slots) -> Result<()> {
        let map = self.map();
        let known = map
            .ranges()
            .iter()
            .map(|range| (range.first, range.last, range.node.address()));
        if known.eq(found
            .iter()
            .map(|(first, last, address)| (*first, *last, address)))
        {
            return Ok(());
        }
        let ranges = found
            .into_iter()
            .map(|(first, last, address)| {
                let node = self.node(&address)?;
                Ok(Range { first, last, node })
            })
            .collect::<Result<Vec<_>>>()?;
        let map = Map::new(ranges);
        let primaries = map.primaries();
        self.nodes
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .retain(|address, node| {
                self.url.hosts.contains(address)
                    || primaries.iter().any(|primary| Arc::ptr_eq(primary, node))
            });
        self.put(map);
        Ok(())
    }

    /// Requests the primaries from all Sentinels or nodes.
    async fn find(&self, except: Option<&Arc<Node>>, limit: Duration) -> Option<Slots> {
        match &self.url.kind {
            Kind::Single => None,
            Kind::Sentinel(name) => {
                let requested = self.sentinels.iter().map(|sentinel| sentinel.primary(name));
                let primary = majority(requested, limit).await?;
                Some(vec![(0, u16::MAX, primary)])
            }
            Kind::Cluster => {
                let mut nodes = self.map().primaries();
                for host in &self.url.hosts {
                    let node = self.node(host).ok()?;
                    if !nodes.iter().any(|known| Arc::ptr_eq(known, &node)) {
                        nodes.push(node);
                    }
                }
                if let Some(except) = except
                    && nodes.len() > 1
                {
                    nodes.retain(|node| !Arc::ptr_eq(node, except));
                }
                majority(nodes.iter().map(|node| slots_as_seen_by(node)), limit).await
            }
        }
    }

    /// Sends the request once more to the first Sentinel or node, to get an error that explains why the look-up failed.
    async fn lookup_error(&self, limit: Duration) -> RedisFault {
        let reported = |cause: &str, node: &Node| RedisFault::out_of_reach(node.shown(), cause);
        let limit = Limit::begin(limit);
        if let (Kind::Sentinel(name), Some(Sentinel { plain, known })) =
            (&self.url.kind, self.sentinels.first())
        {
            let question = question(name);
            let answer = match plain.send(&question, Lane::Shared, limit).await {
                Err(Failure::Reply(_, error)) if wants_password(&error) => {
                    known.send(&question, Lane::Shared, limit).await
                }
                answer => answer,
            };
            return match answer {
                Err(failure) => failure.into(),
                Ok(_) => reported("the Sentinels have no primary with this name", plain),
            };
        }
        match self.node(&self.url.hosts[0]) {
            Err(fault) => fault,
            Ok(node) => match node.send(&slots_question(), Lane::Shared, limit).await {
                Err(failure) => failure.into(),
                Ok(_) => reported(
                    "the server is not part of a Cluster whose slots are assigned",
                    &node,
                ),
            },
        }
    }
}

impl Sentinel {
    async fn primary(&self, name: &str) -> Option<Address> {
        let question = question(name);
        let answer = match self.plain.ask_anyway(&question).await {
            Err(error) if wants_password(&error) => self.known.ask_anyway(&question).await,
            answer => answer,
        };
        // A Sentinel that has no primary with this name answers with nil instead of a pair.
        let (host, port) = redis::from_redis_value(answer.ok()?.pop()?).ok()?;
        Some(Address { host, port })
    }
}

fn question(name: &str) -> Parcel {
    Parcel::words(&["SENTINEL", "GET-MASTER-ADDR-BY-NAME", name])
}

fn wants_password(error: &RedisError) -> bool {
    matches!(error.code(), Some("NOAUTH" | "NOPERM"))
}

fn slots_question() -> Parcel {
    Parcel::words(&["CLUSTER", "SLOTS"])
}

async fn slots_as_seen_by(node: &Node) -> Option<Slots> {
    let answer = node.ask_anyway(&slots_question()).await.ok()?.pop()?;
    slots_of(answer, node.address())
}

/// Parses the reply to `CLUSTER SLOTS`. `None` if it has another form, or if the node is not in a cluster yet.
fn slots_of(answer: Value, by: &Address) -> Option<Slots> {
    let Value::Array(rows) = answer else {
        return None;
    };
    let mut slots = Slots::new();
    for row in rows {
        // Each row contains the first slot, the last slot, the primary and its replicas. A server is an array of host,
        // port and further fields.
        let Value::Array(fields) = row else {
            return None;
        };
        let [
            Value::Int(first),
            Value::Int(last),
            Value::Array(primary),
            ..,
        ] = fields.as_slice()
        else {
            return None;
        };
        let [host, Value::Int(port), ..] = primary.as_slice() else {
            return None;
        };
        let host: Option<String> = redis::from_redis_value_ref(host).ok()?;
        let host = match host.as_deref() {
            None | Some("" | "?") => by.host.clone(),
            Some(host) => host.to_owned(),
        };
        let port = u16::try_from(*port).ok()?;
        let [first, last] = [first, last].map(|slot| u16::try_from(*slot));
        slots.push((first.ok()?, last.ok()?, Address { host, port }));
    }
    slots.sort_unstable();
    (!slots.is_empty()).then_some(slots)
}

/// Returns the most frequent answer of the servers: immediately once more than half of them agree, otherwise when all
/// have answered or the time is up. So a server that is cut off and has outdated information cannot decide the result.
async fn majority<T: PartialEq>(
    requested: impl Iterator<Item = impl Future<Output = Option<T>>>,
    limit: Duration,
) -> Option<T> {
    let until = Instant::now() + limit;
    let mut requested: FuturesUnordered<_> = requested.collect();
    let half = requested.len() / 2;
    let mut answers: Vec<(T, usize)> = Vec::new();
    while let Ok(Some(answer)) = timeout_at(until, requested.next()).await {
        let Some(answer) = answer else { continue };
        let index = match answers.iter().position(|(known, _)| *known == answer) {
            Some(index) => index,
            None => {
                answers.push((answer, 0));
                answers.len() - 1
            }
        };
        answers[index].1 += 1;
        if answers[index].1 > half {
            break;
        }
    }
    // If several answers are equally frequent, the answer that arrived first is chosen.
    let best = answers.into_iter().rev().max_by_key(|(_, count)| *count);
    best.map(|(answer, _)| answer)
}

#[cfg(test)]
mod tests {
    use std::future::{pending, ready};

    use futures_util::FutureExt;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn answer_that_most_servers_give_is_returned_without_waiting_for_the_other_servers() {
        let limit = LOOK_LIMIT;
        let say = |answers: &[Option<u8>]| {
            let answers = answers.to_vec();
            majority(answers.into_iter().map(ready), limit)
        };
        assert_eq!(say(&[Some(1), Some(2), Some(2)]).await, Some(2));
        assert_eq!(say(&[None, Some(2), None]).await, Some(2));
        assert_eq!(say(&[Some(1), Some(2)]).await, Some(1));
        assert_eq!(say(&[None, None]).await, None);
        assert_eq!(say(&[]).await, None);

        let begin = Instant::now();
        let two_of_three = [
            ready(Some(1)).boxed(),
            pending().boxed(),
            ready(Some(1)).boxed(),
        ];
        assert_eq!(majority(two_of_three.into_iter(), limit).await, Some(1));
        assert_eq!(begin.elapsed(), Duration::ZERO);
        let one_of_three = [ready(Some(1)).boxed(), pending().boxed(), pending().boxed()];
        assert_eq!(majority(one_of_three.into_iter(), limit).await, Some(1));
        assert_eq!(begin.elapsed(), limit);
    }

    #[test]
    fn cluster_slots_answer_is_parsed() {
        let by = Address {
            host: "me".into(),
            port: 1,
        };
        let text = |text: &str| Value::BulkString(text.into());
        let server = |host: Value, port| Value::Array(vec![host, Value::Int(port), text("id")]);
        let row =
            |first, last, server| Value::Array(vec![Value::Int(first), Value::Int(last), server]);
        let answer = Value::Array(vec![
            row(100, 16_383, server(text("b"), 7001)),
            row(0, 99, server(Value::Nil, 7000)),
        ]);
        let address = |host: &str, port| Address {
            host: host.into(),
            port,
        };
        assert_eq!(
            slots_of(answer, &by).unwrap(),
            [
                (0, 99, address("me", 7000)),
                (100, 16_383, address("b", 7001))
            ]
        );
        for nothing in [
            Value::Array(Vec::new()),
            Value::Nil,
            Value::Array(vec![row(0, 16_384 * 4, server(text("b"), 7001))]),
            Value::Array(vec![row(0, 9, text("b"))]),
        ] {
            assert_eq!(slots_of(nothing.clone(), &by), None, "{nothing:?}");
        }
    }
}
