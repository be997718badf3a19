//! Limits the number of open connections, in total and per address block.

use std::{collections::HashMap, net::IpAddr, sync::Arc, time::Duration};

use ipnet::IpNet;
use parking_lot::Mutex;
use tokio::time::Instant;
use tollgate_layers::{facts::ClientAddr, setting::Setting};

use super::limits::ConnectionLimits;

/// The minimum time between two warnings that the limit on connections is reached.
const WARN_EVERY: Duration = Duration::from_secs(1);

/// Counts open connections. The table has a row for each address block with at least one open connection, so the limit
/// on all connections also bounds the table.
#[derive(Clone, Debug)]
pub(super) struct Peers(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    limits: Setting<ConnectionLimits>,
    /// The networks of trusted proxies. A trusted proxy carries the connections of many clients, so the limit per
    /// address block does not apply to it.
    unlimited: Setting<Arc<[IpNet]>>,
    counts: Mutex<Counts>,
}

#[derive(Debug, Default)]
struct Counts {
    all: usize,
    /// When the last warning about a reached limit was logged.
    warned: Option<Instant>,
    by_block: HashMap<IpAddr, usize>,
}

/// Permission for a connection to be open. The connection is counted until this permit is dropped.
#[derive(Debug)]
pub(super) struct ConnectionPermit {
    peers: Peers,
    block: IpAddr,
}

impl Peers {
    pub(super) fn new(limits: Setting<ConnectionLimits>, proxies: Setting<Arc<[IpNet]>>) -> Self {
        Self(Arc::new(Inner {
            limits,
            unlimited: proxies,
            counts: Mutex::default(),
        }))
    }

    /// Admits a connection from `peer`, unless a limit is reached.
    pub(super) fn admit(&self, peer: IpAddr) -> Option<ConnectionPermit> {
        let peer = peer.to_canonical();
        let limits = self.0.limits.get();
        let max = limits.max;
        let proxies = self.0.unlimited.get();
        let is_proxy = proxies.iter().any(|net| net.contains(&peer));
        let block = ClientAddr(peer).block();
        let mut counts = self.0.counts.lock();
        if counts.all >= max {
            // This warning is logged at intervals, so that a flood of connections does not flood the log.
            let now = Instant::now();
            if counts.warned.is_none_or(|at| now >= at + WARN_EVERY) {
                counts.warned = Some(now);
                tracing::warn!(max, "connection refused: limits.connections_max is reached");
            }
            return None;
        }
        let count = counts.by_block.entry(block).or_default();
        if *count >= limits.per_address_max && !is_proxy {
            tracing::debug!(%peer, "connection refused: limits.connections_per_address_max is reached");
            return None;
        }
        *count += 1;
        counts.all += 1;
        Some(ConnectionPermit {
            peers: self.clone(),
            block,
        })
    }
}

impl Drop for ConnectionPermit {
    fn drop(&mut self) {
        let mut counts = self.peers.0.counts.lock();
        counts.all -= 1;
        if let Some(count) = counts.by_block.get_mut(&self.block) {
            *count -= 1;
            if *count == 0 {
                counts.by_block.remove(&self.block);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn connections_are_limited_per_address_block_and_in_total() {
        let limits = ConnectionLimits {
            max: 4,
            per_address_max: 2,
            ..ConnectionLimits::default()
        };
        let none: Arc<[IpNet]> = Arc::new([]);
        let peers = Peers::new(limits.into(), none.into());
        let admit = |address: &str| peers.admit(address.parse().unwrap());
        let first = admit("192.0.2.1").unwrap();
        let _second = admit("::ffff:192.0.2.1").unwrap();
        assert!(admit("192.0.2.1").is_none());
        // Two IPv6 addresses of the same /64 belong to one address block.
        let _third = admit("2001:db8::1").unwrap();
        let _fourth = admit("2001:db8::2").unwrap();
        assert!(admit("198.51.100.7").is_none());
        drop(first);
        assert!(admit("198.51.100.7").is_some());
        assert_eq!(peers.0.counts.lock().by_block.len(), 2);
    }

    #[test]
    fn trusted_proxy_may_use_all_connections_of_the_server() {
        let limits = ConnectionLimits {
            max: 3,
            per_address_max: 1,
            ..ConnectionLimits::default()
        };
        let proxies: Arc<[IpNet]> = Arc::new(["10.0.0.0/8".parse().unwrap()]);
        let peers = Peers::new(limits.into(), proxies.into());
        let admit = |address: &str| peers.admit(address.parse().unwrap());
        let _kept = [admit("10.0.0.1").unwrap(), admit("10.0.0.1").unwrap()];
        let _third = admit("192.0.2.1").unwrap();
        assert!(admit("10.0.0.1").is_none());
    }
}
