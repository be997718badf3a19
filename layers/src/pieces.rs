//! Joins the frames of a body into one buffer.

use bytes::{Bytes, BytesMut};

/// Byte slices that become one. If there are several, they are copied into one buffer; a single slice is not copied.
#[derive(Debug, Default)]
pub(crate) struct Pieces {
    only: Bytes,
    more: BytesMut,
}

impl Pieces {
    #[cfg(feature = "passthrough")]
    pub(crate) fn push(&mut self, piece: Bytes) {
        self.push_within(piece, 0);
    }

    pub(crate) fn len(&self) -> usize {
        self.only.len() + self.more.len()
    }

    /// Adds a piece. If this makes a copy necessary, allocates at least `least` bytes.
    pub(crate) fn push_within(&mut self, piece: Bytes, least: usize) {
        if piece.is_empty() {
            return;
        }
        if self.only.is_empty() && self.more.is_empty() {
            self.only = piece;
            return;
        }
        if self.more.capacity() < least {
            self.more.reserve(least - self.more.len());
        }
        self.more.extend_from_slice(&std::mem::take(&mut self.only));
        self.more.extend_from_slice(&piece);
    }

    pub(crate) fn joined(self) -> Bytes {
        if self.more.is_empty() {
            self.only
        } else {
            self.more.freeze()
        }
    }
}
