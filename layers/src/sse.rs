//! Splits a byte stream into server-sent events (WHATWG HTML, section 9.2).
//!
//! Events keep their raw bytes, with line ends and comments, so that they can be forwarded exactly as the vendor sent
//! them. An event is a slice of its chunk; its bytes are copied only if it spans several chunks.

use std::{borrow::Cow, time::Duration};

use bytes::{Bytes, BytesMut};
use memchr::memchr2;

/// The maximum size of an event, in bytes. A stream with a larger event is malformed.
pub const EVENT_BYTES_MAX: usize = 16 * 1024 * 1024;

/// The maximum size of a line of an event, in bytes: half the maximum size of the event. An image fits into such a
/// line.
pub const LINE_BYTES_MAX: usize = 8 * 1024 * 1024;

/// An event is larger than [`EVENT_BYTES_MAX`], or one of its lines is longer than [`LINE_BYTES_MAX`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "an event is longer than {EVENT_BYTES_MAX} bytes, or one of its lines is longer than {LINE_BYTES_MAX} bytes"
)]
pub struct EventTooLong;

/// After this time without data, the gateway sends a keep-alive, because proxies and clients close streams that are
/// silent for longer.
pub const SILENCE_MAX: Duration = Duration::from_secs(10);

/// Splits a stream of bytes into server-sent events.
#[derive(Debug, Default)]
pub struct Splitter {
    /// The bytes of the event that is not complete yet.
    tail: BytesMut,
    /// The position in `tail` at which the search for the event's end continues.
    cursor: Cursor,
}

/// The position at which the search for an event's end continues, so that no byte is searched twice. Otherwise an
/// endless line that arrives in small pieces would take quadratic time.
#[derive(Clone, Copy, Debug, Default)]
struct Cursor {
    /// The start of the line that has not ended yet.
    line: usize,
    /// The position up to which the unfinished line was searched.
    seen: usize,
}

impl Splitter {
    /// Adds the next chunk, and passes each complete event to `each`. Returns the bytes of these events as one slice of
    /// the chunk. The slice is a copy only if the first event began in an earlier chunk.
    ///
    /// # Errors
    /// [`EventTooLong`] if the unfinished event is longer than [`EVENT_BYTES_MAX`], or its last line is longer than
    /// [`LINE_BYTES_MAX`].
    pub fn push(
        &mut self,
        chunk: &Bytes,
        mut each: impl FnMut(Event),
    ) -> Result<Bytes, EventTooLong> {
        let (mut whole, mut begun) = (chunk.clone(), None);
        if !self.tail.is_empty() {
            self.tail.extend_from_slice(chunk);
            begun = event_end(&self.tail, &mut self.cursor);
            if begun.is_none() {
                return self.check().map(|()| Bytes::new());
            }
            whole = self.tail.split().freeze();
        }
        let mut rest = whole.clone();
        loop {
            let mut cursor = Cursor::default();
            let Some(end) = begun.take().or_else(|| event_end(&rest, &mut cursor)) else {
                self.tail.extend_from_slice(&rest);
                self.cursor = cursor;
                self.check()?;
                whole.truncate(whole.len() - rest.len());
                return Ok(whole);
            };
            each(Event(rest.split_to(end)));
        }
    }

    /// Ends the stream. Returns an unfinished event as if a blank line had ended it, because some vendors omit the last
    /// blank line.
    pub fn finish(&mut self) -> Option<Event> {
        self.cursor = Cursor::default();
        (!self.tail.is_empty()).then(|| Event(self.tail.split().freeze()))
    }

    fn check(&self) -> Result<(), EventTooLong> {
        let line_bytes = self.tail.len() - self.cursor.line;
        if self.tail.len() > EVENT_BYTES_MAX || line_bytes > LINE_BYTES_MAX {
            Err(EventTooLong)
        } else {
            Ok(())
        }
    }
}

/// Returns the position after the first event and its blank line. `cursor` must be passed to the next call.
fn event_end(buffer: &[u8], cursor: &mut Cursor) -> Option<usize> {
    loop {
        let found = memchr2(b'\n', b'\r', &buffer[cursor.seen..]);
        #[cfg(test)]
        tests::looked_at(found.map_or(buffer.len() - cursor.seen, |skipped| skipped + 1));
        let Some(skipped) = found else {
            cursor.seen = buffer.len();
            return None;
        };
        let end = cursor.seen + skipped;
        let length = end - cursor.line;
        let next = match (buffer[end], buffer.get(end + 1)) {
            (b'\r', Some(b'\n')) => end + 2,
            // The buffer ends with the carriage return of a line that is not empty. A line feed may follow in the next
            // chunk, so the search waits for it. An empty line needs no wait: it ends the event. A line feed in the
            // next chunk then forms an empty event, which is ignored.
            (b'\r', None) if length > 0 => {
                cursor.seen = end;
                return None;
            }
            _ => end + 1,
        };
        if length == 0 {
            return Some(next);
        }
        *cursor = Cursor {
            line: next,
            seen: next,
        };
    }
}

/// A server-sent event: its raw bytes, including the blank line that ends it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Event(Bytes);

impl Event {
    /// Creates an event with these raw bytes.
    pub(crate) const fn of(raw: Bytes) -> Self {
        Self(raw)
    }

    /// Returns the raw bytes of the event, unchanged.
    #[must_use]
    pub fn raw(&self) -> &Bytes {
        &self.0
    }

    /// Returns the event's name, from the field `event`; empty if the event has no name.
    #[must_use]
    pub fn name(&self) -> &[u8] {
        self.parts().0
    }

    /// Returns the event's data, with its lines joined by line feeds. `None` for an event without data, for example a
    /// comment.
    #[must_use]
    pub fn data(&self) -> Option<Cow<'_, [u8]>> {
        self.parts().1
    }

    /// Returns the event's name and data, parsed in one pass.
    #[must_use]
    pub fn parts(&self) -> (&[u8], Option<Cow<'_, [u8]>>) {
        let (mut name, mut data) = (&b""[..], None::<Cow<'_, [u8]>>);
        for (field, value) in self.fields() {
            match (field, &mut data) {
                (b"event", _) => name = value,
                (b"data", None) => data = Some(Cow::Borrowed(value)),
                (b"data", Some(data)) => {
                    let data = data.to_mut();
                    data.push(b'\n');
                    data.extend_from_slice(value);
                }
                _ => {}
            }
        }
        (name, data)
    }

    /// Returns the event's bytes with its data replaced by this JSON.
    #[cfg(feature = "passthrough")]
    pub(crate) fn with_data(&self, data: &[u8]) -> Bytes {
        let (name, old) = self.parts();
        if let Some(Cow::Borrowed(old)) = old {
            let start = old.as_ptr().addr() - self.0.as_ptr().addr();
            let (before, after) = (&self.0[..start], &self.0[start + old.len()..]);
            return [before, data, after].concat().into();
        }
        // The data must stay on one line; in JSON, a space can replace a line end.
        let line = |byte: &u8| if *byte == b'\n' { b' ' } else { *byte };
        let data: Vec<u8> = data.iter().map(line).collect();
        let field = if name.is_empty() {
            &b""[..]
        } else {
            b"event: "
        };
        let end = if name.is_empty() { &b""[..] } else { b"\n" };
        Bytes::from([field, name, end, b"data: ", &data, b"\n\n"].concat())
    }

    /// Iterates over the names and values of the event's fields, without comments.
    fn fields(&self) -> impl Iterator<Item = (&[u8], &[u8])> {
        let mut rest = self.0.strip_prefix(b"\xef\xbb\xbf").unwrap_or(&self.0);
        let lines = std::iter::from_fn(move || {
            if rest.is_empty() {
                return None;
            }
            let end = memchr2(b'\n', b'\r', rest).unwrap_or(rest.len());
            let line = &rest[..end];
            rest = rest.get(end + 1..).unwrap_or_default();
            Some(line)
        });
        lines.filter(|line| !line.is_empty()).map(|line| {
            let Some(colon) = memchr::memchr(b':', line) else {
                return (line, &line[line.len()..]);
            };
            let value = &line[colon + 1..];
            (&line[..colon], value.strip_prefix(b" ").unwrap_or(value))
        })
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use super::*;

    thread_local! {
        static LOOKED_AT: Cell<usize> = const { Cell::new(0) };
    }

    /// Counts the bytes that were searched for a line end.
    pub(super) fn looked_at(bytes: usize) {
        LOOKED_AT.set(LOOKED_AT.get() + bytes);
    }

    type Named = (Vec<u8>, Option<Vec<u8>>);

    fn events(chunks: &[&[u8]]) -> (Vec<Named>, Vec<u8>) {
        let mut splitter = Splitter::default();
        let (mut events, mut raw) = (Vec::new(), Vec::new());
        let mut take = |event: Event| {
            raw.extend_from_slice(event.raw());
            if let Some(data) = event.data() {
                events.push((event.name().to_vec(), Some(data.into_owned())));
            }
        };
        for chunk in chunks {
            splitter
                .push(&Bytes::copy_from_slice(chunk), &mut take)
                .unwrap();
        }
        if let Some(event) = splitter.finish() {
            take(event);
        }
        (events, raw)
    }

    const STREAMS: [&[u8]; 6] = [
        b"event: a\ndata: {\"x\":1}\n\ndata: [DONE]\n\n",
        b": comment\r\n\r\nevent: b\r\ndata: 1\r\ndata:2\r\n\r\n",
        b"data: cr\r\revent: x\rdata: y\r\r",
        b"\xef\xbb\xbfdata: bom\n\n",
        "data: {\"т\":\"ё🦀\"}   \n\n\n\ndata: no blank line at the end".as_bytes(),
        b"id: 7\nretry: 10\ndata\n\nunknown\n\n",
    ];

    #[test]
    fn events_are_parsed_as_the_sse_standard_requires() {
        let (seen, _) = events(&[STREAMS[1]]);
        assert_eq!(seen, [(b"b".to_vec(), Some(b"1\n2".to_vec()))]);
        let (seen, _) = events(&[STREAMS[2]]);
        assert_eq!(
            seen,
            [
                (vec![], Some(b"cr".to_vec())),
                (b"x".to_vec(), Some(b"y".to_vec()))
            ]
        );
        let (seen, _) = events(&[STREAMS[3]]);
        assert_eq!(seen, [(vec![], Some(b"bom".to_vec()))]);
        let (seen, _) = events(&[STREAMS[5]]);
        assert_eq!(seen, [(vec![], Some(vec![]))]);
    }

    #[test]
    fn stream_split_at_any_two_bytes_has_the_same_events() {
        for stream in STREAMS {
            let whole = events(&[stream]);
            assert_eq!(whole.1, stream, "every byte is in an event");
            for a in 0..=stream.len() {
                for b in a..=stream.len() {
                    let cut = events(&[&stream[..a], &stream[a..b], &stream[b..]]);
                    assert_eq!(cut, whole, "cut at {a} and {b}");
                }
            }
        }
    }

    #[test]
    fn event_within_one_chunk_is_not_copied() {
        let chunk = Bytes::from_static(b"data: 1\n\ndata: 2\n\n");
        let mut at = Vec::new();
        Splitter::default()
            .push(&chunk, |event| at.push(event.raw().as_ptr()))
            .unwrap();
        assert_eq!(at, [chunk.as_ptr(), chunk[9..].as_ptr()]);
    }

    #[test]
    fn complete_events_are_one_slice_however_the_stream_is_split() {
        let pushed = |splitter: &mut Splitter, chunk: &Bytes| {
            let mut events = Vec::new();
            let whole = splitter
                .push(chunk, |event| events.extend_from_slice(event.raw()))
                .unwrap();
            assert_eq!(whole, events);
            whole
        };
        let mut splitter = Splitter::default();
        let chunk = Bytes::from_static(b"data: 1\n\ndata: 2\n\nda");
        let whole = pushed(&mut splitter, &chunk);
        assert_eq!((whole.as_ptr(), whole.len()), (chunk.as_ptr(), 18));
        assert!(pushed(&mut splitter, &Bytes::from_static(b"ta: 3")).is_empty());
        let chunk = Bytes::from_static(b"\n\ndata: 4\n\ndata");
        assert_eq!(pushed(&mut splitter, &chunk), "data: 3\n\ndata: 4\n\n");
        let rest = splitter.finish().unwrap();
        assert_eq!(rest.raw(), "data");
    }

    #[test]
    fn an_endless_event_is_refused() {
        let mut splitter = Splitter::default();
        let mut line = vec![b'a'; 1023];
        line.push(b'\n');
        let chunk = Bytes::from(line.repeat(EVENT_BYTES_MAX / 4 / 1024));
        let results: Vec<_> = (0..5).map(|_| splitter.push(&chunk, |_| {})).collect();
        assert_eq!(results[3], Ok(Bytes::new()));
        assert_eq!(results[4], Err(EventTooLong));
    }

    #[test]
    fn an_endless_line_is_refused_before_the_event_is_too_long() {
        let mut splitter = Splitter::default();
        let chunk = Bytes::from(vec![b'a'; LINE_BYTES_MAX / 4]);
        let results: Vec<_> = (0..5).map(|_| splitter.push(&chunk, |_| {})).collect();
        assert_eq!(results[3], Ok(Bytes::new()));
        assert_eq!(results[4], Err(EventTooLong));
    }

    #[test]
    fn line_that_arrives_in_many_pieces_is_scanned_once() {
        for piece in [&b"x"[..], b"xyz", b"0123456789"] {
            let mut splitter = Splitter::default();
            let mut bytes = 0;
            LOOKED_AT.set(0);
            for _ in 0..20_000 {
                bytes += piece.len();
                let piece = Bytes::from_static(b"0123456789").slice(..piece.len());
                splitter.push(&piece, |_| panic!("no event")).unwrap();
            }
            let mut events = 0;
            splitter
                .push(&Bytes::from_static(b"\n\n"), |_| events += 1)
                .unwrap();
            assert_eq!(events, 1);
            let looked_at = LOOKED_AT.get();
            assert!(looked_at <= bytes + 2, "{looked_at} for {bytes} bytes");
        }
    }

    #[test]
    fn carriage_returns_without_line_feeds_are_scanned_at_most_twice() {
        let mut splitter = Splitter::default();
        LOOKED_AT.set(0);
        let mut events = 0;
        for byte in b"data: 1\rdata: 2\r\rdata: 3\r\n\r\n" {
            let piece = Bytes::copy_from_slice(&[*byte]);
            splitter.push(&piece, |_| events += 1).unwrap();
        }
        assert!(events >= 2, "{events}");
        assert!(LOOKED_AT.get() <= 2 * 32, "{}", LOOKED_AT.get());
    }
}
