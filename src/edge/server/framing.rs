//! Tracks where requests begin and end on an HTTP/1 connection. Records the first request that has both
//! `content-length` and `transfer-encoding`, or an unsupported transfer coding.
//!
//! By itself, hyper does not refuse a request whose end is ambiguous. If the request has both `content-length` and
//! `transfer-encoding`, hyper drops `content-length`; if it has several transfer codings, hyper checks only the last
//! one (RFC 9112, sections 6.1 and 6.3). A proxy in front of the gateway may decide differently, and would then treat
//! the rest of the body as another client's request. So the gateway refuses the request. Because hyper changes the
//! headers, only the byte stream shows which request is ambiguous.

use std::sync::{Arc, OnceLock};

use memchr::memchr;

use crate::edge::head::FramingFault;

/// The maximum number of bytes of a line that are stored. Valid lines that the parser needs are shorter.
const LINE_BYTES_MAX: usize = 1024;

/// The index of the connection's first ambiguous request, and the reason why it is ambiguous. Clones share the value.
#[derive(Clone, Debug, Default)]
pub(super) struct AmbiguousFraming(Arc<OnceLock<(usize, FramingFault)>>);

impl AmbiguousFraming {
    /// Returns the fault of the connection's `nth` request, counted from 1, or of an earlier request.
    pub(super) fn at_request(&self, nth: usize) -> Option<FramingFault> {
        let (first, fault) = self.0.get()?;
        (*first <= nth).then_some(*fault)
    }
}

/// Parses the framing of the requests on a connection.
#[derive(Debug)]
pub(super) struct Framing {
    ambiguous: AmbiguousFraming,
    state: State,
    /// The received bytes of a line whose end has not arrived yet.
    line: Vec<u8>,
    /// The number of complete request heads that were parsed.
    heads: usize,
}

#[derive(Clone, Copy, Debug)]
enum State {
    Head(Head),
    /// In a body: `bytes` remain of the body, or of a chunk and the line end after it.
    Body {
        bytes: u64,
        chunked: bool,
    },
    ChunkSize,
    Trailers,
    /// The connection speaks HTTP/2, or the input is neither valid for this parser nor for hyper, which then closes the
    /// connection.
    Off,
}

#[derive(Clone, Copy, Debug, Default)]
struct Head {
    begun: bool,
    length: Option<u64>,
    chunked: bool,
    /// Whether the head has several transfer codings, or one that is not supported.
    coded: bool,
    too_long: bool,
}

impl Framing {
    pub(super) fn new(ambiguous: AmbiguousFraming) -> Self {
        Self {
            ambiguous,
            state: State::Head(Head::default()),
            line: Vec::new(),
            heads: 0,
        }
    }

    /// Parses bytes that the connection has received.
    pub(super) fn received(&mut self, mut bytes: &[u8]) {
        while !bytes.is_empty() {
            match &mut self.state {
                State::Off => return,
                State::Body {
                    bytes: left,
                    chunked,
                } => {
                    let step = usize::try_from(*left).unwrap_or(usize::MAX);
                    let step = step.min(bytes.len());
                    *left -= step as u64;
                    bytes = &bytes[step..];
                    if *left == 0 {
                        self.state = match chunked {
                            true => State::ChunkSize,
                            false => State::Head(Head::default()),
                        };
                    }
                }
                State::Head(_) | State::ChunkSize | State::Trailers => {
                    let end = memchr(b'\n', bytes);
                    let part = &bytes[..end.unwrap_or(bytes.len())];
                    let part = &part[..part.len().min(LINE_BYTES_MAX - self.line.len())];
                    let Some(end) = end else {
                        self.line.extend_from_slice(part);
                        return;
                    };
                    bytes = &bytes[end + 1..];
                    // Most lines arrive in one piece, so they are parsed without a copy.
                    if self.line.is_empty() {
                        self.end_of_line(part);
                        continue;
                    }
                    let mut line = std::mem::take(&mut self.line);
                    line.extend_from_slice(part);
                    self.end_of_line(&line);
                    line.clear();
                    self.line = line;
                }
            }
        }
    }

    /// Returns whether the bytes so far are complete HTTP/1 requests, of which none is ambiguous.
    pub(super) fn is_between_requests(&self) -> bool {
        matches!(self.state, State::Head(head) if !head.begun) && self.line.is_empty()
    }

    fn end_of_line(&mut self, line: &[u8]) {
        let line = line.strip_suffix(b"\r").unwrap_or(line);
        self.state = match self.state {
            State::Head(head) => self.in_head(head, line),
            State::ChunkSize => match chunk_size(line) {
                None => State::Off,
                Some(0) => State::Trailers,
                // The bytes to skip include the line end that follows the chunk.
                Some(bytes) => State::Body {
                    bytes: bytes.saturating_add(2),
                    chunked: true,
                },
            },
            State::Trailers if line.is_empty() => State::Head(Head::default()),
            other => other,
        };
    }

    fn in_head(&mut self, mut head: Head, line: &[u8]) -> State {
        if !head.begun {
            // Empty lines before a request are skipped, as RFC 9112, section 2.2 recommends.
            head.begun = !line.is_empty();
            if line == b"PRI * HTTP/2.0" {
                return State::Off;
            }
            return State::Head(head);
        }
        if line.is_empty() {
            return self.end_of_head(head);
        }
        if let Some(value) = value_of(line, b"content-length") {
            let value = std::str::from_utf8(value).unwrap_or_default();
            head.length = Some(value.trim().parse().unwrap_or(0));
            head.too_long |= line.len() >= LINE_BYTES_MAX;
        } else if let Some(value) = value_of(line, b"transfer-encoding") {
            let is_chunked = value.trim_ascii().eq_ignore_ascii_case(b"chunked");
            head.coded |= head.chunked || !is_chunked || line.len() >= LINE_BYTES_MAX;
            head.chunked = true;
        }
        State::Head(head)
    }

    fn end_of_head(&mut self, head: Head) -> State {
        self.heads += 1;
        let fault = match head {
            Head { too_long: true, .. }
            | Head {
                length: Some(_),
                chunked: true,
                ..
            } => Some(FramingFault::TwoLengths),
            Head { coded: true, .. } => Some(FramingFault::Coding),
            _ => None,
        };
        if let Some(fault) = fault {
            // Parsing stops at the first fault of a connection, so faults of later requests are not recorded.
            let _ = self.ambiguous.0.set((self.heads, fault));
            return State::Off;
        }
        match head {
            Head { chunked: true, .. } => State::ChunkSize,
            Head {
                length: Some(bytes @ 1..),
                ..
            } => State::Body {
                bytes,
                chunked: false,
            },
            _ => State::Head(Head::default()),
        }
    }
}

/// Returns the value of a header line if the header has this name. The value is empty if the line contains only the
/// name.
fn value_of<'a>(line: &'a [u8], name: &[u8]) -> Option<&'a [u8]> {
    let (begin, rest) = line.split_at_checked(name.len())?;
    if !begin.eq_ignore_ascii_case(name) {
        return None;
    }
    match rest {
        [] => Some(rest),
        [b':', value @ ..] => Some(value),
        _ => None,
    }
}

fn chunk_size(line: &[u8]) -> Option<u64> {
    let end = line.iter().position(|byte| !byte.is_ascii_hexdigit());
    let digits = &line[..end.unwrap_or(line.len())];
    u64::from_str_radix(std::str::from_utf8(digits).ok()?, 16).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns the index of the first ambiguous request in these bytes, and the reason. Asserts that the result is the
    /// same however the bytes are split.
    fn first(bytes: &[u8]) -> Option<(usize, FramingFault)> {
        let found = |pieces: &mut dyn Iterator<Item = &[u8]>| {
            let ambiguous = AmbiguousFraming::default();
            let mut framing = Framing::new(ambiguous.clone());
            for piece in pieces {
                framing.received(piece);
            }
            ambiguous.0.get().copied()
        };
        let whole = found(&mut std::iter::once(bytes));
        for size in [1, 2, 3, 7] {
            assert_eq!(found(&mut bytes.chunks(size)), whole, "in pieces of {size}");
        }
        whole
    }

    #[test]
    fn request_with_both_length_and_transfer_encoding_is_found_after_valid_requests() {
        let both = "POST / HTTP/1.1\r\nContent-Length: 4\r\nTransfer-Encoding: chunked\r\n\r\n";
        let plain = "POST / HTTP/1.1\r\ncontent-length: 39\r\n\r\n\
                     content-length: 1\r\ntransfer-encoding: x";
        let chunked = "POST / HTTP/1.1\r\ntransfer-encoding: chunked\r\n\r\n\
                       1f;x=y\r\n\r\n\r\ncontent-length: 1\r\n\r\nabcdef\r\n0\r\ncontent-length: 1\r\n\r\n";
        let empty = "GET / HTTP/1.1\r\nhost: a\r\n\r\n";
        for (bytes, nth) in [
            (both.to_owned(), 1),
            (format!("\r\n\n{both}"), 1),
            (both.replace("\r\n", "\n"), 1),
            (
                "POST / HTTP/1.1\r\ntransfer-encoding: chunked\r\nCONTENT-LENGTH:4\r\n\r\n"
                    .to_owned(),
                1,
            ),
            (format!("{empty}{both}"), 2),
            (format!("{empty}{plain}"), 0),
            (format!("{plain}{both}"), 2),
            (format!("{chunked}{both}"), 2),
            (format!("{chunked}{plain}{empty}{chunked}{both}"), 5),
            (
                format!(
                    "POST / HTTP/1.1\r\ncontent-length: {}4\r\n\r\n",
                    "0".repeat(2000)
                ),
                1,
            ),
            (format!("PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n{both}"), 0),
        ] {
            let expected = (nth > 0).then_some((nth, FramingFault::TwoLengths));
            assert_eq!(first(bytes.as_bytes()), expected, "{bytes:?}");
        }
    }

    #[test]
    fn transfer_encoding_is_accepted_only_if_it_is_exactly_chunked() {
        for (lines, understood) in [
            ("transfer-encoding: chunked", true),
            ("Transfer-Encoding:\tCHUNKED ", true),
            ("transfer-encoding: gzip, chunked", false),
            ("transfer-encoding: chunked, chunked", false),
            ("transfer-encoding: chunked;q=1", false),
            ("transfer-encoding: ,chunked", false),
            ("transfer-encoding: chunked,", false),
            ("transfer-encoding: \"chunked\"", false),
            ("transfer-encoding: ", false),
            (
                "transfer-encoding: gzip\r\ntransfer-encoding: chunked",
                false,
            ),
            (
                "transfer-encoding: chunked\r\nTransfer-Encoding: chunked",
                false,
            ),
            (
                &format!("transfer-encoding: chunked{}", " ".repeat(1000)),
                false,
            ),
        ] {
            let bytes = format!("POST / HTTP/1.1\r\n{lines}\r\n\r\n0\r\n\r\n");
            let expected = (!understood).then_some((1, FramingFault::Coding));
            assert_eq!(first(bytes.as_bytes()), expected, "{lines}");
        }
    }

    #[test]
    fn connection_is_between_requests_only_after_a_complete_request() {
        let whole = "POST / HTTP/1.1\r\ncontent-length: 2\r\n\r\nab";
        let chunked = "POST / HTTP/1.1\r\ntransfer-encoding: chunked\r\n\r\n1\r\na\r\n0\r\n\r\n";
        for bytes in [whole, chunked] {
            for end in 1..=bytes.len() {
                let mut framing = Framing::new(AmbiguousFraming::default());
                framing.received(&bytes.as_bytes()[..end]);
                assert_eq!(framing.is_between_requests(), end == bytes.len(), "{end}");
            }
        }
        for (bytes, between) in [
            ("", true),
            ("\r\n", true),
            ("PRI * HTTP/2.0\r\n\r\n", false),
        ] {
            let mut framing = Framing::new(AmbiguousFraming::default());
            framing.received(bytes.as_bytes());
            assert_eq!(framing.is_between_requests(), between, "{bytes:?}");
        }
    }

    #[test]
    fn header_name_is_the_text_before_the_first_colon() {
        for (line, value) in [
            ("content-length: 4", Some(" 4")),
            ("Content-LENGTH:4:5", Some("4:5")),
            ("content-length:", Some("")),
            ("content-length", Some("")),
            ("content-length : 4", None),
            ("content-lengths: 4", None),
            (" content-length: 4", None),
            ("x-content-length: 4", None),
            ("content", None),
            ("", None),
        ] {
            let found = value_of(line.as_bytes(), b"content-length");
            assert_eq!(found, value.map(str::as_bytes), "{line:?}");
        }
    }

    #[test]
    fn ambiguous_request_invalidates_later_requests_on_the_connection() {
        let ambiguous = AmbiguousFraming::default();
        assert_eq!(ambiguous.at_request(1), None);
        ambiguous.0.set((2, FramingFault::Coding)).unwrap();
        let found = [1, 2, 3].map(|nth| ambiguous.at_request(nth));
        let fault = Some(FramingFault::Coding);
        assert_eq!(found, [None, fault, fault]);
    }
}
