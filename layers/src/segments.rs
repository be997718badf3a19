//! A body that consists of several byte slices, which are never joined.

use std::{collections::VecDeque, io::IoSlice, iter};

use bytes::{Buf, Bytes, BytesMut};

/// A body as a list of byte slices. Unchanged parts are slices of the original body, so a change of a few fields copies
/// only these fields.
///
/// The type implements [`Buf`]. A connection with vectored writes sends all segments in one write.
///
/// ```
/// use bytes::Bytes;
/// use tollgate_layers::call::Segments;
///
/// let client = Bytes::from_static(br#"{"model":"large"}"#);
/// let mut body = Segments::from(client.slice(..10));
/// body.push("large-2".into());
/// body.push(client.slice(15..));
/// assert_eq!(body.to_bytes(), r#"{"model":"large-2"}"#);
/// ```
#[derive(Clone, Debug, Default)]
pub struct Segments {
    /// The first segment. It is empty only if the body is empty.
    first: Bytes,
    /// The segments after the first. None of them is empty.
    rest: VecDeque<Bytes>,
}

impl Segments {
    /// Appends a segment. An empty segment is ignored.
    pub fn push(&mut self, segment: Bytes) {
        if self.first.is_empty() {
            self.first = segment;
        } else if !segment.is_empty() {
            self.rest.push_back(segment);
        }
    }

    /// Returns the segments in order. None of them is empty.
    pub fn iter(&self) -> impl Iterator<Item = &Bytes> {
        let all = iter::once(&self.first).chain(&self.rest);
        all.filter(|segment| !segment.is_empty())
    }

    /// Returns the length of the body in bytes.
    #[must_use]
    pub fn len(&self) -> usize {
        self.iter().map(Bytes::len).sum()
    }

    /// Returns whether the body has no bytes.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.first.is_empty()
    }

    /// Returns the body as one slice. Copies the bytes only if there are several segments.
    #[must_use]
    pub fn to_bytes(&self) -> Bytes {
        if self.rest.is_empty() {
            return self.first.clone();
        }
        let mut joined = BytesMut::with_capacity(self.len());
        for segment in self.iter() {
            joined.extend_from_slice(segment);
        }
        joined.freeze()
    }
}

impl From<Bytes> for Segments {
    fn from(only: Bytes) -> Self {
        Self {
            first: only,
            rest: VecDeque::new(),
        }
    }
}

impl From<&'static str> for Segments {
    fn from(only: &'static str) -> Self {
        Bytes::from_static(only.as_bytes()).into()
    }
}

impl Buf for Segments {
    fn remaining(&self) -> usize {
        self.len()
    }

    fn chunk(&self) -> &[u8] {
        &self.first
    }

    fn chunks_vectored<'a>(&'a self, slices: &mut [IoSlice<'a>]) -> usize {
        let mut count = 0;
        for (slice, segment) in slices.iter_mut().zip(self.iter()) {
            *slice = IoSlice::new(segment);
            count += 1;
        }
        count
    }

    fn advance(&mut self, mut count: usize) {
        while count >= self.first.len()
            && let Some(next) = self.rest.pop_front()
        {
            count -= self.first.len();
            self.first = next;
        }
        self.first.advance(count);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn segments(texts: &[&'static str]) -> Segments {
        let mut segments = Segments::default();
        for text in texts {
            segments.push(Bytes::from_static(text.as_bytes()));
        }
        segments
    }

    #[test]
    fn empty_segments_are_not_stored() {
        let body = segments(&["", "ab", "", "c", ""]);
        assert!(body.iter().eq(["ab", "c"]));
        assert_eq!((body.len(), body.is_empty()), (3, false));
        for nothing in [segments(&[]), segments(&["", ""]), "".into()] {
            assert_eq!((nothing.iter().count(), nothing.len()), (0, 0));
            assert!(nothing.is_empty() && nothing.to_bytes().is_empty());
        }
    }

    #[test]
    fn segments_of_a_body_are_read_in_order_at_any_step_size() {
        const ALL: &[u8] = b"abcdefgh";
        let body = segments(&["ab", "c", "defg", "h"]);
        assert_eq!(body.to_bytes(), ALL);
        for step in 1..=ALL.len() {
            let mut left = body.clone();
            for taken in (0..ALL.len()).step_by(step) {
                assert_eq!(left.remaining(), ALL.len() - taken);
                assert!(!left.chunk().is_empty() && ALL[taken..].starts_with(left.chunk()));
                let mut slices = [IoSlice::new(&[]); 16];
                let count = left.chunks_vectored(&mut slices);
                let seen = slices[..count].iter().flat_map(|slice| slice.iter());
                assert!(seen.eq(&ALL[taken..]), "{taken} by {step}");
                assert_eq!(left.chunks_vectored(&mut slices[..1]), 1);
                left.advance(step.min(left.remaining()));
            }
            assert!(!left.has_remaining() && left.is_empty());
        }
    }

    #[test]
    fn advancing_a_clone_of_a_body_leaves_the_original_unchanged() {
        let body = segments(&["ab", "c"]);
        body.clone().advance(3);
        assert_eq!(body.to_bytes(), "abc");
    }
}
