//! Limits the number of HTTP/2 control frames. A PRIORITY or WINDOW_UPDATE frame costs the client almost nothing, but
//! costs the gateway some work. If a client sends many more of these frames than its responses justify, its connection
//! is closed.

use std::io;

use tokio::time::Instant;

/// The connection preface of HTTP/2 clients (RFC 9113, section 3.4).
const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
const HEAD_BYTES: usize = 9;
const PRIORITY: u8 = 2;
const WINDOW_UPDATE: u8 = 8;

/// The number of control frames that every connection may send. `FRAMES_PER_SECOND` and `BYTES_PER_FRAME` allow further
/// frames in proportion to the time and to the bytes of responses, because some clients enlarge both flow-control
/// windows after each small piece of a response.
const FRAMES_FREE: u64 = 10_000;
const FRAMES_PER_SECOND: u64 = 100;
const BYTES_PER_FRAME: u64 = 32;

/// Counts the control frames in the bytes that a client sends.
#[derive(Debug)]
pub(super) struct ControlFrames {
    state: State,
    began: Instant,
    count: u64,
    /// The number of bytes of responses that were sent.
    written: u64,
}

#[derive(Debug)]
enum State {
    /// The number of bytes of the connection preface that have arrived.
    Preface(usize),
    /// The head of a frame, and the number of its bytes that have arrived.
    Head([u8; HEAD_BYTES], usize),
    /// The number of bytes of the frame's payload that are still to arrive.
    Payload(usize),
    /// The connection does not speak HTTP/2, so nothing is counted.
    Off,
}

impl ControlFrames {
    pub(super) fn new() -> Self {
        Self {
            state: State::Preface(0),
            began: Instant::now(),
            count: 0,
            written: 0,
        }
    }

    pub(super) const fn wrote(&mut self, bytes: usize) {
        self.written = self.written.saturating_add(bytes as u64);
    }

    /// Parses received bytes and counts the control frames in them.
    ///
    /// # Errors
    /// An error if the client has sent too many control frames.
    pub(super) fn received(&mut self, mut bytes: &[u8]) -> io::Result<()> {
        let before = self.count;
        while !bytes.is_empty() {
            let taken = match &mut self.state {
                State::Off => return Ok(()),
                State::Preface(seen) => {
                    let rest = &PREFACE[*seen..];
                    let part = rest.len().min(bytes.len());
                    self.state = match rest[..part] == bytes[..part] {
                        false => State::Off,
                        true if part < rest.len() => State::Preface(*seen + part),
                        true => State::Head([0; HEAD_BYTES], 0),
                    };
                    part
                }
                State::Head(head, seen) => {
                    let part = (HEAD_BYTES - *seen).min(bytes.len());
                    head[*seen..*seen + part].copy_from_slice(&bytes[..part]);
                    *seen += part;
                    if *seen == HEAD_BYTES {
                        self.count += u64::from(matches!(head[3], PRIORITY | WINDOW_UPDATE));
                        let length = u32::from_be_bytes([0, head[0], head[1], head[2]]);
                        self.state = State::Payload(length as usize);
                    }
                    part
                }
                State::Payload(left) => {
                    let part = (*left).min(bytes.len());
                    *left -= part;
                    part
                }
            };
            if let State::Payload(0) = self.state {
                self.state = State::Head([0; HEAD_BYTES], 0);
            }
            bytes = &bytes[taken..];
        }
        if self.count > before && self.count > self.allowed() {
            let problem = "the client sent too many PRIORITY or WINDOW_UPDATE frames";
            return Err(io::Error::other(problem));
        }
        Ok(())
    }

    fn allowed(&self) -> u64 {
        if self.count <= FRAMES_FREE {
            return FRAMES_FREE;
        }
        let seconds = self.began.elapsed().as_secs();
        FRAMES_FREE + seconds * FRAMES_PER_SECOND + self.written / BYTES_PER_FRAME
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    fn frame(kind: u8, payload: &[u8]) -> Vec<u8> {
        let mut frame = vec![0, 0, payload.len() as u8, kind, 0, 0, 0, 0, 0];
        frame.extend(payload);
        frame
    }

    #[tokio::test(start_paused = true)]
    async fn control_frames_are_counted_in_any_split_of_the_bytes_and_a_flood_is_refused() {
        for (kind, piece) in [(PRIORITY, 1), (WINDOW_UPDATE, 7), (WINDOW_UPDATE, 100_000)] {
            let mut frames = ControlFrames::new();
            // A DATA frame is not counted, even if its payload looks like a control frame.
            let mut bytes = [PREFACE, &frame(0, &frame(PRIORITY, b"12345"))].concat();
            for _ in 0..FRAMES_FREE {
                bytes.extend(frame(kind, b"1234"));
                bytes.extend(frame(6, b"12345678"));
            }
            bytes
                .chunks(piece)
                .for_each(|piece| frames.received(piece).unwrap());
            assert_eq!(frames.count, FRAMES_FREE);
            assert!(frames.received(&frame(kind, b"1234")).is_err());
            frames.received(&frame(6, b"12345678")).unwrap();
            frames.wrote(320);
            frames.received(&frame(kind, b"1234").repeat(5)).unwrap();
            tokio::time::advance(Duration::from_secs(1)).await;
            frames.received(&frame(kind, b"1234").repeat(100)).unwrap();
            assert!(frames.received(&frame(kind, b"1234").repeat(10)).is_err());
        }
    }

    #[tokio::test]
    async fn control_frames_are_counted_on_http2_only() {
        let mut frames = ControlFrames::new();
        frames.received(b"PRI * HTTP/1.1\r\n").unwrap();
        assert!(matches!(frames.state, State::Off));
    }
}
