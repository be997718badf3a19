//! Limits the connections of the operators' listener. Each connection takes a seat. Connections that have not signed
//! in, by the admin key or a session, share a part of the seats. When that part is full, a new connection replaces the
//! connection in that part that has been idle longest. So a stranger who keeps many connections open cannot prevent
//! health probes or operators' sign-ins.

use std::{
    cmp::Reverse,
    collections::HashMap,
    net::IpAddr,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
};

use ipnet::IpNet;
use parking_lot::Mutex;
use tokio::sync::Notify;
use tollgate_layers::{facts::ClientAddr, setting::Setting};

use super::limits::ConnectionLimits;

/// The seats are divided into this many parts. One part is reserved for connections that have signed in. The share of
/// one address block has the size of one part.
const PARTS: usize = 4;

/// The seats of one listener. Clones share them.
#[derive(Clone, Debug)]
pub(super) struct Seats(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    limits: Setting<ConnectionLimits>,
    /// The networks of trusted proxies. A proxy carries the connections of many clients, so the share of an address
    /// block does not limit it.
    unlimited: Setting<Arc<[IpNet]>>,
    /// Counts requests and new connections. Its value serves as a time by which seats are compared.
    clock: Arc<AtomicU64>,
    taken: Mutex<Vec<Arc<Seat>>>,
}

/// The seat of one connection. Each request of the connection carries it as an extension.
#[derive(Debug)]
pub struct Seat {
    block: IpAddr,
    is_limited: bool,
    clock: Arc<AtomicU64>,
    /// The value of `clock` at the connection's last request.
    used: AtomicU64,
    has_signed_in: AtomicBool,
    replaced: Notify,
}

impl Seat {
    /// Records that the connection has sent a request, so it is not idle.
    pub(super) fn touch(&self) {
        let now = self.clock.fetch_add(1, Ordering::Relaxed);
        self.used.store(now, Ordering::Relaxed);
    }

    /// Marks the connection as signed in, by the admin key or a session. New connections no longer replace it.
    pub fn sign_in(&self) {
        self.has_signed_in.store(true, Ordering::Relaxed);
    }

    /// Returns whether the connection has signed in.
    #[must_use]
    pub fn has_signed_in(&self) -> bool {
        self.has_signed_in.load(Ordering::Relaxed)
    }

    /// Completes when a new connection takes over this seat.
    pub(super) async fn replaced(&self) {
        self.replaced.notified().await;
    }
}

/// Permission for a connection to use its seat. The seat is freed when this permit is dropped.
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

    /// Returns a free seat, or the seat of a connection that has not signed in; that connection is then closed. Returns
    /// `None` if all connections have signed in.
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
        let mut taken = self.0.taken.lock();
        match to_replace(&taken, &seat, self.0.limits.get().max) {
            Replace::Nobody => {}
            Replace::At(index) => {
                let stranger = taken.swap_remove(index);
                tracing::debug!(
                    address = %stranger.block,
                    "connection closed to admit a newer one: admin.connections_max is reached"
                );
                stranger.replaced.notify_one();
            }
            Replace::NobodyCan => {
                // This line is logged only if all open connections have signed in. So clients that have not signed in
                // cannot fill the log.
                tracing::warn!(
                    max = taken.len(),
                    "connection refused: admin.connections_max is reached"
                );
                return None;
            }
        }
        taken.push(Arc::clone(&seat));
        let seats = self.clone();
        Some(SeatPermit { seats, seat })
    }
}

enum Replace {
    Nobody,
    At(usize),
    NobodyCan,
}

/// Chooses the seat that a new connection takes over. If the new connection's address block already has its share of
/// the seats, chooses a seat of that block; otherwise a seat of the block with the most seats.
fn to_replace(taken: &[Arc<Seat>], newcomer: &Seat, max: usize) -> Replace {
    let share = (max / PARTS).max(1);
    let seats = || taken.iter().enumerate();
    let strangers = || seats().filter(|(_, seat)| !seat.has_signed_in());
    let mut by_block: HashMap<IpAddr, usize> = HashMap::new();
    strangers().for_each(|(_, seat)| *by_block.entry(seat.block).or_default() += 1);
    let taken_by_block = by_block.get(&newcomer.block).copied().unwrap_or_default();
    let last_used = |(_, seat): &(usize, &Arc<Seat>)| seat.used.load(Ordering::Relaxed);
    let found = if newcomer.is_limited && taken_by_block >= share {
        let of_block = strangers().filter(|(_, seat)| seat.block == newcomer.block);
        of_block.min_by_key(last_used)
    } else if strangers().count() >= (max - max / PARTS).max(1) || taken.len() >= max {
        strangers().min_by_key(|seat| (Reverse(by_block[&seat.1.block]), last_used(seat)))
    } else {
        return Replace::Nobody;
    };
    found.map_or(Replace::NobodyCan, |(index, _)| Replace::At(index))
}

impl Drop for SeatPermit {
    fn drop(&mut self) {
        let mut taken = self.seats.0.taken.lock();
        taken.retain(|seat| !Arc::ptr_eq(seat, &self.seat));
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
    fn new_connection_above_the_share_of_its_address_replaces_the_longest_idle_connection() {
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
        assert_eq!(seats.0.taken.lock().len(), 5);
        drop(stored);
        assert_eq!(
            seats.0.taken.lock().len(),
            2,
            "a seat that was replaced is not freed twice"
        );
    }

    #[test]
    fn signed_in_connection_is_never_replaced() {
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
    fn connections_without_a_key_leave_a_quarter_of_all_seats_free() {
        let seats = seats(16);
        let one = admit(&seats, "192.0.2.1").unwrap();
        let greedy: Vec<_> = (0..3)
            .map(|_| admit(&seats, "192.0.2.2").unwrap())
            .collect();
        let _others: Vec<_> = (10..18)
            .map(|nth| admit(&seats, &format!("192.0.2.{nth}")).unwrap())
            .collect();
        assert_eq!(seats.0.taken.lock().len(), 12);
        let _newest = admit(&seats, "192.0.2.3").unwrap();
        assert_eq!(seats.0.taken.lock().len(), 12);
        assert!(!is_replaced(&one) && is_replaced(&greedy[0]));
    }

    #[test]
    fn trusted_proxy_may_have_more_connections_than_the_share_of_one_address() {
        let seats = seats(16);
        let stored: Vec<_> = (0..12)
            .map(|_| admit(&seats, "10.0.0.1").unwrap())
            .collect();
        assert!(!stored.iter().any(is_replaced));
    }
}
