//! Bounds the memory of all request and response bodies together. A byte counts from the time it is read until the last
//! slice of its body is dropped.
//!
//! The budget reserves bytes as they arrive, and not as `content-length` declares them. Otherwise a sender that
//! declares a large body and sends little could block other senders.
//!
//! Each account and each key has a share. After each reservation, an account may have at most as many bytes as remain
//! free, and a key at most half as many. So an account that uses its full share leaves room for others. Even if a share
//! is smaller, an account or a key may always reserve two bodies of the maximum size.

#[cfg(feature = "passthrough")]
use std::time::Duration;
use std::{
    collections::HashMap,
    hash::Hash,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use bytes::Bytes;
#[cfg(feature = "passthrough")]
use tokio::sync::{Notify, OwnedMutexGuard};

use crate::{
    error::Error,
    key::{AccountId, KeyId, KeyRecord},
};

/// The number of bytes of all bodies in memory. Clones share the count.
#[derive(Clone, Debug, Default)]
pub(crate) struct BodyBudget(Arc<Shared>);

#[derive(Debug, Default)]
struct Shared {
    bodies: Mutex<Bodies>,
    /// Notifies waiting bodies that a body has returned bytes to the budget.
    #[cfg(feature = "passthrough")]
    freed: Notify,
    /// The single permit to exceed the budget. At most one body has it at a time.
    #[cfg(feature = "passthrough")]
    lane: Arc<tokio::sync::Mutex<()>>,
}

#[derive(Debug, Default)]
struct Bodies {
    all: u64,
    accounts: HashMap<AccountId, u64>,
    keys: HashMap<KeyId, u64>,
}

impl BodyBudget {
    /// Returns the number of bytes that are reserved now.
    #[cfg(test)]
    pub(crate) fn taken(&self) -> u64 {
        self.lock().all
    }

    fn lock(&self) -> MutexGuard<'_, Bodies> {
        self.0.bodies.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The bytes that are reserved for one body. Dropping this returns them to the budget.
#[derive(Debug)]
pub(crate) struct ReservedBytes {
    all: BodyBudget,
    /// The key whose caller sends the body, if it is known.
    key: Option<Arc<KeyRecord>>,
    /// The maximum number of bytes that all bodies together may reserve.
    bytes_max: u64,
    /// The lower bound of an account's or a key's share, in bytes.
    share_min: u64,
    bytes: u64,
    /// The permit to exceed the budget, if this body has it. Only one body at a time can have it.
    #[cfg(feature = "passthrough")]
    lane: Option<OwnedMutexGuard<()>>,
}

impl ReservedBytes {
    /// Creates the reservation of a body, with no bytes yet. `body_bytes_max` limits this body, and `bytes_max` all
    /// bodies together.
    pub(crate) fn new(
        all: &BodyBudget,
        key: Option<Arc<KeyRecord>>,
        body_bytes_max: u64,
        bytes_max: u64,
    ) -> Self {
        Self {
            all: all.clone(),
            key,
            bytes_max,
            share_min: body_bytes_max.saturating_mul(2),
            bytes: 0,
            #[cfg(feature = "passthrough")]
            lane: None,
        }
    }

    /// Checks whether this number of bytes would fit into the budget now, without reserving them.
    #[cfg(feature = "parse")]
    pub(crate) fn could_hold(&self, bytes: u64) -> Result<(), Error> {
        self.check(&self.all.lock(), bytes)
    }

    /// Extends the reservation to this total number of bytes. Fails if the budget has no room.
    pub(crate) fn make(&mut self, bytes: u64) -> Result<(), Error> {
        let Some(more @ 1..) = bytes.checked_sub(self.bytes) else {
            return Ok(());
        };
        let mut bodies = self.all.lock();
        if !self.has_lane() {
            self.check(&bodies, more)?;
        }
        bodies.all += more;
        if let Some(key) = &self.key {
            *bodies.accounts.entry(key.account.clone()).or_default() += more;
            *bodies.keys.entry(key.id.clone()).or_default() += more;
        }
        drop(bodies);
        self.bytes = bytes;
        Ok(())
    }

    /// Extends the reservation to this total number of bytes, if necessary after waiting until other bodies return
    /// bytes to the budget. The body that has waited longest may exceed the budget; then the other waiting bodies wait
    /// until that body is dropped. So every body that has begun can complete, and the budget is exceeded by at most one
    /// body.
    ///
    /// # Errors
    /// An error if the budget has no room for the bytes within `patience`.
    #[cfg(feature = "passthrough")]
    pub(crate) async fn wait_for(&mut self, bytes: u64, patience: Duration) -> Result<(), Error> {
        if self.make(bytes).is_ok() {
            return Ok(());
        }
        let all = self.all.clone();
        let waits = async {
            loop {
                let freed = all.0.freed.notified();
                if self.make(bytes).is_ok() {
                    return;
                }
                tokio::select! {
                    lane = Arc::clone(&all.0.lane).lock_owned() => self.lane = Some(lane),
                    () = freed => {}
                }
            }
        };
        let waited = tokio::time::timeout(patience, Box::pin(waits)).await;
        waited.map_err(|_| Error::Overloaded)
    }

    #[cfg(feature = "passthrough")]
    const fn has_lane(&self) -> bool {
        self.lane.is_some()
    }

    #[cfg(not(feature = "passthrough"))]
    const fn has_lane(&self) -> bool {
        false
    }

    fn check(&self, bodies: &Bodies, more: u64) -> Result<(), Error> {
        let all = bodies.all.saturating_add(more);
        let free = self.bytes_max.checked_sub(all).ok_or(Error::Overloaded)?;
        let Some(key) = &self.key else {
            return Ok(());
        };
        let Bodies { accounts, keys, .. } = bodies;
        let of_account = accounts.get(&key.account).copied().unwrap_or_default();
        let of_key = keys.get(&key.id).copied().unwrap_or_default();
        let fits = |taken: u64, share: u64| taken.saturating_add(more) <= share.max(self.share_min);
        if fits(of_account, free) && fits(of_key, free / 2) {
            Ok(())
        } else {
            Err(Error::Overloaded)
        }
    }

    /// Returns the body's bytes with the reservation attached to them. Dropping the last slice of the bytes ends the
    /// reservation.
    #[cfg(feature = "parse")]
    pub(crate) fn kept_by(self, bytes: Bytes) -> Bytes {
        if self.bytes == 0 {
            return bytes;
        }
        Bytes::from_owner(Kept {
            bytes,
            _reserved: self,
        })
    }
}

/// Extension of a plain response: the reservation of the response's bytes. `passthrough` inserts it; `translate`
/// attaches it to the translated response.
#[cfg(feature = "passthrough")]
#[derive(Clone, Debug)]
pub(crate) struct AnswerRoom(Arc<ReservedBytes>);

#[cfg(feature = "passthrough")]
impl AnswerRoom {
    pub(crate) fn new(reserved: ReservedBytes) -> Self {
        Self(Arc::new(reserved))
    }

    /// Returns the response's bytes with the reservation attached to them. Dropping the last slice of the bytes ends
    /// the reservation.
    pub(crate) fn kept_by(self, bytes: Bytes) -> Bytes {
        Bytes::from_owner(Kept {
            bytes,
            _reserved: self.0,
        })
    }
}

impl Drop for ReservedBytes {
    fn drop(&mut self) {
        if self.bytes == 0 {
            return;
        }
        let mut bodies = self.all.lock();
        bodies.all -= self.bytes;
        if let Some(key) = &self.key {
            give_back(&mut bodies.accounts, &key.account, self.bytes);
            give_back(&mut bodies.keys, &key.id, self.bytes);
        }
        drop(bodies);
        #[cfg(feature = "passthrough")]
        self.all.0.freed.notify_waiters();
    }
}

fn give_back<K: Eq + Hash>(taken: &mut HashMap<K, u64>, whose: &K, bytes: u64) {
    if let Some(left) = taken.get_mut(whose) {
        *left -= bytes;
        if *left == 0 {
            taken.remove(whose);
        }
    }
}

struct Kept<R> {
    bytes: Bytes,
    _reserved: R,
}

impl<R> AsRef<[u8]> for Kept<R> {
    fn as_ref(&self) -> &[u8] {
        &self.bytes
    }
}

#[cfg(feature = "parse")]
#[cfg(test)]
mod tests {
    use super::*;
    use crate::key::KeyDigest;

    /// Creates a reservation that is limited only by the budget, not by the shares of accounts and keys.
    fn room(all: &BodyBudget, bytes_max: u64) -> ReservedBytes {
        ReservedBytes::new(all, None, bytes_max, bytes_max)
    }

    fn taken(all: &BodyBudget) -> u64 {
        all.taken()
    }

    #[test]
    fn body_memory_is_reserved_as_bytes_arrive_and_released_with_the_last_slice() {
        let all = BodyBudget::default();
        let mut room = room(&all, 10_000);
        room.could_hold(10_000).unwrap();
        assert!(room.could_hold(10_001).is_err());
        for (bytes, now) in [(0, 0), (1, 1), (1024, 1024), (500, 1024), (6000, 6000)] {
            room.make(bytes).unwrap();
            assert_eq!(taken(&all), now, "{bytes}");
        }
        assert!(matches!(room.make(10_001), Err(Error::Overloaded)));
        assert!(room.could_hold(4001).is_err());
        let body = room.kept_by(Bytes::from_static(b"a body"));
        let slice = body.slice(2..3);
        drop(body);
        assert_eq!(taken(&all), 6000);
        assert_eq!(slice, "b");
        drop(slice);
        assert_eq!(taken(&all), 0);
    }

    #[test]
    fn body_refused_while_it_is_read_releases_its_memory() {
        let all = BodyBudget::default();
        let (mut one, mut two) = (room(&all, 4000), room(&all, 4000));
        one.make(3000).unwrap();
        two.make(1000).unwrap();
        assert!(two.make(1001).is_err());
        drop(one);
        two.make(3000).unwrap();
        drop(two);
        assert_eq!(taken(&all), 0);
    }

    #[test]
    fn neither_one_key_nor_one_account_can_use_all_body_memory() {
        let all = BodyBudget::default();
        let key = |id: &str, account: &str| {
            Arc::new(KeyRecord::new(
                id.parse().unwrap(),
                account.parse().unwrap(),
                KeyDigest::new([0; 32]),
            ))
        };
        // Adds bodies of ten bytes until a body does not fit into the budget.
        let mut rooms = Vec::new();
        let mut fill = |key: &Arc<KeyRecord>| {
            let mut bodies = 0;
            loop {
                let mut room = ReservedBytes::new(&all, Some(Arc::clone(key)), 10, 1000);
                if room.make(10).is_err() {
                    return bodies;
                }
                rooms.push(room);
                bodies += 1;
            }
        };
        let first = key("a", "acme");
        assert_eq!(fill(&first), 33, "one key may use a third of the budget");
        assert_eq!(fill(&first), 0);
        let others: i32 = ["b", "c", "d", "e"]
            .map(|id| fill(&key(id, "acme")))
            .iter()
            .sum();
        assert_eq!(
            others, 17,
            "all keys of an account may use half of the budget"
        );
        // A key of a second account gets a third of the bytes that remain. Then a key of a third account gets a third
        // of the rest.
        assert_eq!(fill(&key("f", "other")), 16);
        assert_eq!(fill(&key("g", "third")), 11);
        drop(rooms);
        assert_eq!(taken(&all), 0);
        let bodies = all.lock();
        assert!(bodies.accounts.is_empty() && bodies.keys.is_empty());
    }

    #[cfg(feature = "passthrough")]
    #[tokio::test(start_paused = true)]
    async fn bodies_waiting_for_memory_finish_one_after_another() {
        const PATIENCE: Duration = Duration::from_secs(30);
        let all = BodyBudget::default();
        let most = Arc::new(Mutex::new(0));
        let mut tasks = tokio::task::JoinSet::new();
        // Each of six bodies reserves half of its bytes before any body continues.
        for _ in 0..6 {
            let (all, most) = (all.clone(), Arc::clone(&most));
            tasks.spawn(async move {
                let mut body = room(&all, 90);
                for bytes in [15, 30, 60] {
                    body.wait_for(bytes, PATIENCE).await.unwrap();
                    {
                        let mut most = most.lock().unwrap();
                        *most = taken(&all).max(*most);
                    }
                    tokio::task::yield_now().await;
                }
            });
        }
        while let Some(ended) = tasks.join_next().await {
            ended.unwrap();
        }
        assert_eq!(taken(&all), 0);
        let most = *most.lock().unwrap();
        assert!(
            most <= 90 + 60,
            "the bodies had {most} bytes, more than the budget plus one body"
        );
        // Waiting for room in the budget fails after `patience`.
        let (mut one, mut two) = (room(&all, 90), room(&all, 90));
        one.make(90).unwrap();
        let mut three = room(&all, 90);
        two.wait_for(10, PATIENCE).await.unwrap();
        assert!(three.wait_for(10, PATIENCE).await.is_err());
    }

    /// Polls a future this many times and then drops it. Returns whether the future completed before that.
    #[cfg(feature = "passthrough")]
    async fn dropped_after(polls: usize, future: impl Future) -> bool {
        let mut future = Box::pin(future);
        for _ in 0..polls {
            let polled = std::future::poll_fn(|cx| {
                std::task::Poll::Ready(future.as_mut().poll(cx).is_ready())
            });
            if polled.await {
                return true;
            }
            tokio::task::yield_now().await;
        }
        false
    }

    #[cfg(feature = "passthrough")]
    #[tokio::test(start_paused = true)]
    async fn body_dropped_while_waiting_for_memory_does_not_block_others() {
        const PATIENCE: Duration = Duration::from_secs(30);
        for polls in 0..4 {
            let all = BodyBudget::default();
            let (mut first, mut second) = (room(&all, 90), room(&all, 90));
            first.make(90).unwrap();
            // The second body has the permit to exceed the budget, and the third body waits for that permit.
            second.wait_for(10, PATIENCE).await.unwrap();
            let waits = async {
                let mut third = room(&all, 90);
                third.wait_for(10, PATIENCE).await.unwrap();
                std::future::pending::<()>().await;
            };
            assert!(!dropped_after(polls, waits).await);
            assert_eq!(taken(&all), 100, "{polls}");
            drop(second);
            let mut fourth = room(&all, 90);
            fourth.wait_for(10, PATIENCE).await.unwrap();
            drop((first, fourth));
            assert_eq!(taken(&all), 0, "{polls}");
        }
    }
}
