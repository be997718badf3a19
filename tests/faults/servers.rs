//! The servers of the ledger.

use std::net::SocketAddr;

use crate::{
    plan::{LedgerKind, Plan},
    support::redis::{RedisCluster, RedisSentinels, RedisServer},
};

/// The servers of the ledger in a world.
pub(crate) enum Servers {
    None,
    One(RedisServer),
    Two {
        primary: RedisServer,
        replica: RedisServer,
        sentinels: Option<RedisSentinels>,
    },
    Cluster(RedisCluster),
}

impl Servers {
    pub(crate) async fn start(plan: &Plan) -> Self {
        let args: Vec<&str> = plan.redis_args.iter().map(String::as_str).collect();
        match plan.ledger {
            LedgerKind::Sqlite => Self::None,
            LedgerKind::Redis => Self::One(RedisServer::start_with(&args).await),
            LedgerKind::RedisReplica | LedgerKind::Sentinel => {
                let primary = RedisServer::start_with(&args).await;
                let replica = RedisServer::replica_of(&primary).await;
                let sentinels = match plan.ledger {
                    LedgerKind::Sentinel => Some(RedisSentinels::start(&primary).await),
                    _ => None,
                };
                Self::Two {
                    primary,
                    replica,
                    sentinels,
                }
            }
            LedgerKind::Cluster {
                primaries,
                replicas,
            } => Self::Cluster(RedisCluster::start_with(primaries, replicas, &args).await),
        }
    }

    /// Returns the address of the ledger's server if it is a single server, so that proxies can be put in front of it.
    pub(crate) fn behind_proxy(&self) -> Option<SocketAddr> {
        match self {
            Self::One(server)
            | Self::Two {
                primary: server,
                sentinels: None,
                ..
            } => Some(address_of(server)),
            _ => None,
        }
    }
}

/// Returns the address of a server, as the target of a proxy.
pub fn address_of(server: &RedisServer) -> SocketAddr {
    ([127, 0, 0, 1], server.port()).into()
}
