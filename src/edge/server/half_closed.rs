//! Detects whether a client that has closed its sending side is still there while its answer is in progress.
//!
//! The client may have closed only its sending side and still read, or it may have closed its socket; both look the
//! same. So the gateway probes the client with a few bytes that have no meaning. A client that reads ignores them; if
//! the client is gone, its kernel answers with a reset.

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

use super::{supervise::Stage, transport::Transport};

/// The delay before the first probe. Most answers have been sent by then, so most clients are never probed.
const FIRST_CHECK: Duration = Duration::from_millis(250);
/// Delay between the first and the second probe; each further delay is twice as long. A proxy in front of the gateway
/// may notice only at the second write that the client is gone.
const CHECK_MIN: Duration = Duration::from_millis(100);
/// The maximum delay between two probes. Probes continue, because a client that still reads may disconnect later.
const CHECK_MAX: Duration = Duration::from_secs(10);

/// Probe sent before an answer: a client that does not expect `100 Continue` ignores it (RFC 9110, section 15.2).
const BEFORE: &[u8] = b"HTTP/1.1 100 Continue\r\n\r\n";
/// Probe sent between two chunks: a leading zero of the next chunk's size (RFC 9112, section 7.1).
const BETWEEN: &[u8] = b"0";
/// The maximum number of probes, each a leading zero, before one chunk's size: with eight more digits that makes
/// sixteen, which every client accepts.
const BETWEEN_MAX: usize = 8;

/// Probes whether a half-closed client is still there.
#[derive(Debug)]
pub(super) struct HalfClosed {
    next_check: Pin<Box<Sleep>>,
    wait: Duration,
    /// Whether a part of the answer was written since the last check. Such a write serves as a probe.
    written: bool,
    /// The number of probes since the last write.
    requested: usize,
    /// Task that waits for input. It is woken when the answer has been sent, and then gets the end of the input.
    reader: Option<Waker>,
}

impl Default for HalfClosed {
    fn default() -> Self {
        Self {
            next_check: Box::pin(tokio::time::sleep(FIRST_CHECK)),
            wait: CHECK_MIN,
            written: false,
            requested: 0,
            reader: None,
        }
    }
}

impl HalfClosed {
    /// Records that a part of the answer was written.
    pub(super) const fn wrote(&mut self) {
        self.written = true;
        self.requested = 0;
    }

    /// Wakes the reader when the answer has been sent.
    pub(super) fn answered(&mut self) {
        if let Some(reader) = self.reader.take() {
            reader.wake();
        }
    }

    /// Sends a probe when a probe is due, and resolves when the client is gone. Sends no probe if the answer's `stage`
    /// does not allow one, or if data waits to be written.
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
            let question = match stage {
                _ if self.written => None,
                Some(Stage::Awaited) => Some(BEFORE),
                Some(Stage::InChunks) if self.requested < BETWEEN_MAX => Some(BETWEEN),
                _ => None,
            };
            self.written = false;
            if let Some(question) = question {
                self.requested += 1;
                if let Err(error) = ask(cx, client, question) {
                    return Poll::Ready(error);
                }
            }
            self.next_check.as_mut().reset(Instant::now() + self.wait);
            self.wait = CHECK_MAX.min(self.wait * 2);
        }
        Poll::Pending
    }
}

/// Sends a probe. If the send buffer is full, nothing is sent: the data in the buffer serves as the probe.
fn ask(cx: &mut Context<'_>, client: &mut Transport, bytes: &[u8]) -> io::Result<()> {
    match Pin::new(&mut *client).poll_write(cx, bytes) {
        Poll::Ready(Ok(count)) if count == bytes.len() => {}
        // A partly written probe would corrupt the next chunk, so the connection fails.
        Poll::Ready(Ok(_)) => return Err(io::ErrorKind::WriteZero.into()),
        Poll::Ready(Err(error)) => return Err(error),
        Poll::Pending => return Ok(()),
    }
    match Pin::new(client).poll_flush(cx) {
        Poll::Ready(flushed) => flushed,
        Poll::Pending => Ok(()),
    }
}
