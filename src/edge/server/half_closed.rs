//! Detects whether a client that has closed the sending side of its connection still waits for its response.
//!
//! A client that has closed only its sending side, and still reads, looks the same as a client that has closed its
//! socket. So the gateway sends a probe: a few bytes without meaning. A client that still reads ignores them. If the
//! client is gone, its kernel answers with a reset.

use std::{
    io,
    pin::Pin,
    task::{Context, Poll, Waker},
    time::Duration,
};

use tokio::{
    io::AsyncWrite,
    time::{Instant, Sleep},
};

use super::{activity::Stage, transport::Transport};

/// The pause before the first probe. Most responses have been sent by then, so most clients are never probed.
const FIRST_CHECK: Duration = Duration::from_millis(250);
/// The pause between the first and the second probe. Each further pause is twice as long. A second probe is needed
/// because a proxy in front of the gateway may notice only at the second write that the client is gone.
const CHECK_MIN: Duration = Duration::from_millis(100);
/// The maximum pause between two probes. Probes continue until the response is sent, because a client that still reads
/// may disconnect later.
const CHECK_MAX: Duration = Duration::from_secs(10);

/// The probe before a response begins: an interim response, which a client that does not expect `100 Continue` ignores
/// (RFC 9110, section 15.2).
const BEFORE: &[u8] = b"HTTP/1.1 100 Continue\r\n\r\n";
/// The probe between two chunks of a response: a leading zero of the next chunk's size (RFC 9112, section 7.1).
const BETWEEN: &[u8] = b"0";
/// The maximum number of probes before one chunk; each adds a leading zero to the chunk's size. With the eight digits
/// of the size itself, the client receives at most sixteen digits, which every client accepts.
const BETWEEN_MAX: usize = 8;

/// Sends probes to find out whether a half-closed client is still there.
#[derive(Debug)]
pub(super) struct HalfClosed {
    next_check: Pin<Box<Sleep>>,
    wait: Duration,
    /// Whether a part of the response was written since the last check. If so, that write served as a probe.
    written: bool,
    /// The number of probes that were sent since the last part of the response.
    probes: usize,
    /// The task that waits for input. When the response has been sent, it is woken to read the end of the input.
    reader: Option<Waker>,
}

impl Default for HalfClosed {
    fn default() -> Self {
        Self {
            next_check: Box::pin(tokio::time::sleep(FIRST_CHECK)),
            wait: CHECK_MIN,
            written: false,
            probes: 0,
            reader: None,
        }
    }
}

impl HalfClosed {
    pub(super) const fn wrote(&mut self) {
        self.written = true;
        self.probes = 0;
    }

    /// Wakes the task that waits for input, because the response has been sent.
    pub(super) fn answered(&mut self) {
        self.reader.take().into_iter().for_each(Waker::wake);
    }

    /// Sends probes when they are due. Completes when the client is gone. `stage` is `None` while response data waits
    /// to be written, because no probe can be sent then.
    pub(super) fn poll_gone(
        &mut self,
        cx: &mut Context<'_>,
        client: &mut Transport,
        stage: Option<Stage>,
    ) -> Poll<io::Error> {
        self.reader = Some(cx.waker().clone());
        while self.next_check.as_mut().poll(cx).is_ready() {
            if let Ok(Some(error)) | Err(error) = client.take_error() {
                return Poll::Ready(error);
            }
            let probe = match stage {
                _ if self.written => None,
                Some(Stage::Awaited) => Some(BEFORE),
                Some(Stage::InChunks) if self.probes < BETWEEN_MAX => Some(BETWEEN),
                _ => None,
            };
            self.written = false;
            if let Some(probe) = probe {
                self.probes += 1;
                if let Err(error) = send_probe(cx, client, probe) {
                    return Poll::Ready(error);
                }
            }
            self.next_check.as_mut().reset(Instant::now() + self.wait);
            self.wait = CHECK_MAX.min(self.wait * 2);
        }
        Poll::Pending
    }
}

/// Sends a probe. If the send buffer is full, sends nothing, because the data in the buffer serves as a probe.
fn send_probe(cx: &mut Context<'_>, client: &mut Transport, bytes: &[u8]) -> io::Result<()> {
    match Pin::new(&mut *client).poll_write(cx, bytes) {
        Poll::Ready(Ok(count)) if count == bytes.len() => {}
        // A probe that was written only in part would corrupt the next chunk, so the connection must fail.
        Poll::Ready(Ok(_)) => return Err(io::ErrorKind::WriteZero.into()),
        Poll::Ready(Err(error)) => return Err(error),
        Poll::Pending => return Ok(()),
    }
    match Pin::new(client).poll_flush(cx) {
        Poll::Ready(flushed) => flushed,
        Poll::Pending => Ok(()),
    }
}
