//! Room for bodies: how many bytes of them there may be in all, from the first byte that is read until the
//! last slice of the body is dropped.
//!
//! It is taken as bytes come and not as they are declared: whoever declares much and sends little would
//! keep others out for nothing.

use std::sync::{
    Arc,
    atomic::{AtomicU64, Ordering},
};

use bytes::Bytes;

use crate::error::Error;

/// Bytes of all bodies that are there now. Clones share the count.
#[derive(Clone, Debug, Default)]
pub(super) struct Taken(Arc<AtomicU64>);

/// One body's part of them; dropped, they are free again.
#[derive(Debug)]
pub(super) struct Room {
    all: Taken,
    /// All together may have so many.
    bytes_max: u64,
    bytes: u64,
}

impl Room {
    /// Nothing yet.
    pub(super) fn new(all: &Taken, bytes_max: u64) -> Self {
        Self {
            all: all.clone(),
            bytes_max,
            bytes: 0,
        }
    }

    /// Refuses a body at once that would not fit as things are.
    pub(super) fn could_hold(&self, bytes: u64) -> Result<(), Error> {
        let taken = self.all.0.load(Ordering::Relaxed);
        if taken.saturating_add(bytes) > self.bytes_max {
            return Err(Error::Overloaded);
        }
        Ok(())
    }

    /// Takes what is missing to so many bytes.
    pub(super) fn make(&mut self, bytes: u64) -> Result<(), Error> {
        let Some(more @ 1..) = bytes.checked_sub(self.bytes) else {
            return Ok(());
        };
        let take = |taken: u64| {
            let taken = taken.checked_add(more)?;
            (taken <= self.bytes_max).then_some(taken)
        };
        self.all
            .0
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, take)
            .map_err(|_| Error::Overloaded)?;
        self.bytes = bytes;
        Ok(())
    }

    /// The body, that gives the room back when its last slice is dropped.
    pub(super) fn kept_by(self, bytes: Bytes) -> Bytes {
        if self.bytes == 0 {
            return bytes;
        }
        Bytes::from_owner(Kept { bytes, _room: self })
    }
}

impl Drop for Room {
    fn drop(&mut self) {
        self.all.0.fetch_sub(self.bytes, Ordering::Relaxed);
    }
}

struct Kept {
    bytes: Bytes,
    _room: Room,
}

impl AsRef<[u8]> for Kept {
    fn as_ref(&self) -> &[u8] {
        &self.bytes
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn taken(all: &Taken) -> u64 {
        all.0.load(Ordering::Relaxed)
    }

    #[test]
    fn room_is_taken_as_bytes_come_and_given_back_with_the_last_slice() {
        let all = Taken::default();
        let mut room = Room::new(&all, 10_000);
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
    fn a_body_that_was_refused_halfway_gives_its_room_back() {
        let all = Taken::default();
        let (mut one, mut two) = (Room::new(&all, 4000), Room::new(&all, 4000));
        one.make(3000).unwrap();
        two.make(1000).unwrap();
        assert!(two.make(1001).is_err());
        drop(one);
        two.make(3000).unwrap();
        drop(two);
        assert_eq!(taken(&all), 0);
    }
}
