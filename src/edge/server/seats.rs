//! Seats for connections of the operators' listener. Strangers, which have shown neither the admin key nor a session,
//! share a part of the seats. If that part is taken, a new connection replaces the stranger that has been silent
//! longest. So even if a stranger keeps many connections open, health probes are answered and operators can sign in.

use std::{
    cmp::Reverse,
    collections::HashMap,
    net::IpAddr,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
};

use ipnet::IpNet;
use tokio::sync::Notify;
use tollgate_layers::{facts::ClientAddr, setting::Setting};

use super::ConnectionLimits;

/// The seats are divided into this many parts. One part is reserved for signed-in connections; the share of an address
/// block is also one part.
const PARTS: usize = 4;

/// The seats of a listener. Clones share them.
#[derive(Clone, Debug)]
pub(super) struct Seats(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    limits: Setting<ConnectionLimits>,
    /// Trusted proxies. Their connections are those of many clients, so an address block's share does not limit them.
    unlimited: Setting<Arc<[IpNet]>>,
    /// Advances with each request and each connection, so that later ones get higher numbers.
    clock: Arc<AtomicU64>,
    taken: Mutex<Vec<Arc<Seat>>>,
}

/// A connection's seat. Each request of the connection has it as an extension.
#[derive(Debug)]
pub struct Seat {
    block: IpAddr,
    is_limited: bool,
    clock: Arc<AtomicU64>,
    /// The clock value of the connection's last request.
    used: AtomicU64,
    has_signed_in: AtomicBool,
    replaced: Notify,
}

impl Seat {
    /// Records that the connection has sent a request.
    pub(super) fn touch(&self) {
        let now = self.clock.fetch_add(1, Ordering::Relaxed);
        self.used.store(now, Ordering::Relaxed);
    }

    /// Marks the connection as signed in by the admin key or a session: it is no longer replaced.
    pub fn sign_in(&self) {
        self.has_signed_in.store(true, Ordering::Relaxed);
    }

    /// Returns whether the connection has signed in.
    #[must_use]
    pub fn has_signed_in(&self) -> bool {
        self.has_signed_in.load(Ordering::Relaxed)
    }

    /// Resolves when a new connection takes over this seat.
    pub(super) async fn replaced(&self) {
        self.replaced.notified().await;
    }
}

/// The right of a connection to its seat. The seat is freed when this value is dropped.
#[derive(Debug)]
pub(super) struct SeatPermit {
    seats: Seats,
    pub(super) seat: Arc<Seat>,
}

impl Seats {
    pub(super) fn new(limits: Setting<ConnectionLimits>, proxies: Setting<Arc<[IpNet]>>) -> Self {
        Self(Arc::new(Inner {
            limits,
            unlimited: proxies,
            clock: Arc::default(),
            taken: Mutex::default(),
        }))
    }

    /// Takes a free seat, or the seat of a connection that has not signed in. Returns `None` if all connections have
    /// signed in.
    pub(super) fn admit(&self, peer: IpAddr) -> Option<SeatPermit> {
        let peer = peer.to_canonical();
        let proxies = self.0.unlimited.get();
        let seat = Arc::new(Seat {
            block: ClientAddr(peer).block(),
            is_limited: !proxies.iter().any(|net| net.contains(&peer)),
            clock: Arc::clone(&self.0.clock),
            used: AtomicU64::default(),
            has_signed_in: AtomicBool::default(),
            replaced: Notify::new(),
        });
        seat.touch();
        let mut taken = self.lock();
        match to_replace(&taken, &seat, self.0.limits.get().max) {
            Replace::Nobody => {}
            Replace::At(place) => {
                let stranger = taken.swap_remove(place);
                tracing::debug!(address = %stranger.block, "connection closed for a newer one: admin.connections_max");
                stranger.replaced.notify_one();
            }
            Replace::NobodyCan => {
                // This happens only if every connection has signed in, so clients that have not signed in cannot cause
                // this log line.
                tracing::warn!(
                    max = taken.len(),
                    "connection refused: admin.connections_max"
                );
                return None;
            }
        }
        taken.push(Arc::clone(&seat));
        let seats = self.clone();
        Some(SeatPermit { seats, seat })
    }

    fn lock(&self) -> MutexGuard<'_, Vec<Arc<Seat>>> {
        self.0.taken.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

enum Replace {
    Nobody,
    At(usize),
    NobodyCan,
}

/// Returns the seat that a new connection takes over. It is a seat of the connection's own address block if that block
/// already has its share, otherwise a seat of the block with the most seats.
fn to_replace(taken: &[Arc<Seat>], newcomer: &Seat, max: usize) -> Replace {
    let share = (max / PARTS).max(1);
    let strangers = || {
        taken
            .iter()
            .enumerate()
            .filter(|(_, seat)| !seat.has_signed_in())
    };
    let mut by_block: HashMap<IpAddr, usize> = HashMap::new();
    strangers().for_each(|(_, seat)| *by_block.entry(seat.block).or_default() += 1);
    let of_block = by_block.get(&newcomer.block).copied().unwrap_or_default();
    let silent_longest = |(_, seat): &(usize, &Arc<Seat>)| seat.used.load(Ordering::Relaxed);
    let found = if newcomer.is_limited && of_block >= share {
        strangers()
            .filter(|(_, seat)| seat.block == newcomer.block)
            .min_by_key(silent_longest)
    } else if strangers().count() >= (max - max / PARTS).max(1) || taken.len() >= max {
        strangers().min_by_key(|seat| (Reverse(by_block[&seat.1.block]), silent_longest(seat)))
    } else {
        return Replace::Nobody;
    };
    found.map_or(Replace::NobodyCan, |(place, _)| Replace::At(place))
}

impl Drop for SeatPermit {
    fn drop(&mut self) {
        let mut taken = self.seats.lock();
        let place = taken.iter().position(|seat| Arc::ptr_eq(seat, &self.seat));
        if let Some(place) = place {
            taken.swap_remove(place);
        }
    }
}

#[cfg(test)]
mod tests {
    use futures_util::FutureExt;

    use super::*;

    fn seats(max: usize) -> Seats {
        let limits = ConnectionLimits {
            max,
            ..ConnectionLimits::default()
        };
        let proxies: Arc<[IpNet]> = Arc::new(["10.0.0.0/8".parse().unwrap()]);
        Seats::new(limits.into(), proxies.into())
    }

    fn admit(seats: &Seats, address: &str) -> Option<SeatPermit> {
        seats.admit(address.parse().unwrap())
    }

    fn is_replaced(permit: &SeatPermit) -> bool {
        permit.seat.replaced().now_or_never().is_some()
    }

    #[test]
    fn address_beyond_its_share_loses_its_longest_silent_connection_without_a_key() {
        let seats = seats(16);
        let other = admit(&seats, "192.0.2.9").unwrap();
        let stored: Vec<_> = (0..4)
            .map(|_| admit(&seats, "192.0.2.1").unwrap())
            .collect();
        assert!(!stored.iter().any(is_replaced));
        stored[0].seat.touch();
        let _newest = admit(&seats, "::ffff:192.0.2.1").unwrap();
        let replaced: Vec<_> = stored.iter().map(is_replaced).collect();
        assert_eq!(replaced, [false, true, false, false]);
        assert!(!is_replaced(&other));
        assert_eq!(seats.lock().len(), 5);
        drop(stored);
        assert_eq!(
            seats.lock().len(),
            2,
            "a seat that was replaced is not freed twice"
        );
    }

    #[test]
    fn connection_with_a_key_is_never_evicted_and_may_use_every_slot() {
        let seats = seats(8);
        let known: Vec<_> = (0..6)
            .map(|_| {
                let permit = admit(&seats, "192.0.2.1").unwrap();
                permit.seat.sign_in();
                permit
            })
            .collect();
        let strangers = [
            admit(&seats, "192.0.2.2").unwrap(),
            admit(&seats, "192.0.2.3").unwrap(),
        ];
        let newest = admit(&seats, "192.0.2.4").unwrap();
        assert!(is_replaced(&strangers[0]) && !is_replaced(&strangers[1]));
        newest.seat.sign_in();
        strangers[1].seat.sign_in();
        assert!(admit(&seats, "192.0.2.5").is_none());
        assert!(!known.iter().any(is_replaced));
    }

    #[test]
    fn connections_without_a_key_leave_a_quarter_of_all_slots_free() {
        let seats = seats(16);
        let one = admit(&seats, "192.0.2.1").unwrap();
        let greedy: Vec<_> = (0..3)
            .map(|_| admit(&seats, "192.0.2.2").unwrap())
            .collect();
        let _others: Vec<_> = (10..18)
            .map(|nth| admit(&seats, &format!("192.0.2.{nth}")).unwrap())
            .collect();
        assert_eq!(seats.lock().len(), 12);
        let _newest = admit(&seats, "192.0.2.3").unwrap();
        assert_eq!(seats.lock().len(), 12);
        assert!(!is_replaced(&one) && is_replaced(&greedy[0]));
    }

    #[test]
    fn trusted_proxy_is_not_limited_to_an_addresss_share() {
        let seats = seats(16);
        let stored: Vec<_> = (0..12)
            .map(|_| admit(&seats, "10.0.0.1").unwrap())
            .collect();
        assert!(!stored.iter().any(is_replaced));
    }
}
