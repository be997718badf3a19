//! Room for bodies: how many bytes of them there may be in all, from the first byte that is read until the
//! last slice of the body is dropped.
//!
//! It is taken as bytes come and not as they are declared: whoever declares much and sends little would
//! keep others out for nothing.

use std::sync::Arc;

use bytes::Bytes;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use crate::error::Error;

/// Permits count in these.
const UNIT_BYTES: u64 = 1024;

/// So many bytes in all.
pub(super) fn of(bytes_max: u64) -> Arc<Semaphore> {
    let units = usize::try_from(bytes_max.div_ceil(UNIT_BYTES)).unwrap_or(usize::MAX);
    Arc::new(Semaphore::new(units.min(Semaphore::MAX_PERMITS)))
}

/// One body's part of it.
#[derive(Debug)]
pub(super) struct Room {
    all: Arc<Semaphore>,
    taken: Option<OwnedSemaphorePermit>,
}

impl Room {
    /// Nothing yet.
    pub(super) fn new(all: &Arc<Semaphore>) -> Self {
        Self {
            all: Arc::clone(all),
            taken: None,
        }
    }

    /// Refuses a body at once that would not fit as things are.
    pub(super) fn could_hold(&self, bytes: u64) -> Result<(), Error> {
        if bytes.div_ceil(UNIT_BYTES) > self.all.available_permits() as u64 {
            return Err(Error::Overloaded);
        }
        Ok(())
    }

    /// Takes what is missing to so many bytes.
    pub(super) fn make(&mut self, bytes: usize) -> Result<(), Error> {
        let taken = self
            .taken
            .as_ref()
            .map_or(0, OwnedSemaphorePermit::num_permits);
        let needed = bytes.div_ceil(UNIT_BYTES as usize);
        let Some(more @ 1..) = needed.checked_sub(taken) else {
            return Ok(());
        };
        let more = u32::try_from(more).map_err(|_| Error::Overloaded)?;
        let more = Arc::clone(&self.all)
            .try_acquire_many_owned(more)
            .map_err(|_| Error::Overloaded)?;
        match &mut self.taken {
            Some(taken) => taken.merge(more),
            none => *none = Some(more),
        }
        Ok(())
    }

    /// The body, that gives the room back when its last slice is dropped.
    pub(super) fn kept_by(self, bytes: Bytes) -> Bytes {
        match self.taken {
            Some(room) => Bytes::from_owner(Kept { bytes, _room: room }),
            None => bytes,
        }
    }
}

struct Kept {
    bytes: Bytes,
    _room: OwnedSemaphorePermit,
}

impl AsRef<[u8]> for Kept {
    fn as_ref(&self) -> &[u8] {
        &self.bytes
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn room_is_taken_as_bytes_come_and_given_back_with_the_last_slice() {
        let all = of(10 * UNIT_BYTES);
        let mut room = Room::new(&all);
        room.could_hold(10 * UNIT_BYTES).unwrap();
        assert!(room.could_hold(10 * UNIT_BYTES + 1).is_err());
        for (bytes, left) in [(0, 10), (1, 9), (1024, 9), (1025, 8), (500, 8), (6144, 4)] {
            room.make(bytes).unwrap();
            assert_eq!(all.available_permits(), left, "{bytes}");
        }
        assert!(matches!(room.make(10_241), Err(Error::Overloaded)));
        assert!(room.could_hold(5 * UNIT_BYTES).is_err());
        let body = room.kept_by(Bytes::from_static(b"a body"));
        let slice = body.slice(2..3);
        drop(body);
        assert_eq!(all.available_permits(), 4);
        assert_eq!(slice, "b");
        drop(slice);
        assert_eq!(all.available_permits(), 10);
    }

    #[test]
    fn a_body_that_was_refused_halfway_gives_its_room_back() {
        let all = of(4 * UNIT_BYTES);
        let (mut one, mut two) = (Room::new(&all), Room::new(&all));
        one.make(3000).unwrap();
        assert!(two.make(3000).is_err());
        drop(one);
        two.make(3000).unwrap();
    }
}
