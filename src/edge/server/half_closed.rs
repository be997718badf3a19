//! A client that has said that it will send nothing more, while its answer is still under way.
//!
//! It may have closed its sending side alone, and read on; or its socket, and be gone. What comes in is the
//! same, so it is asked: it is sent a few bytes that mean nothing. Whoever reads on passes over them, and the
//! kernel of one that is gone says so, with a reset.

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

/// Before it is asked. Most answers have come by then, and nothing is sent beside them.
const FIRST_CHECK: Duration = Duration::from_millis(250);
/// The wait between the first and the second probe; doubled each time. A proxy in between may learn only from a second
/// write that the client is gone.
const CHECK_MIN: Duration = Duration::from_millis(100);
/// The longest wait between two probes: a client that reads on may still leave later.
const CHECK_MAX: Duration = Duration::from_secs(10);

/// Before an answer: a client passes over it where it did not wait for it (RFC 9110, section 15.2).
const BEFORE: &[u8] = b"HTTP/1.1 100 Continue\r\n\r\n";
/// Between two chunks: the next one's size begins with it (RFC 9112, section 7.1).
const BETWEEN: &[u8] = b"0";
/// Leading zeros per chunk size: with eight digits behind them that makes sixteen, which every client accepts.
const BETWEEN_MAX: usize = 8;

/// Looks whether such a client is there.
#[derive(Debug)]
pub(super) struct HalfClosed {
    next_check: Pin<Box<Sleep>>,
    wait: Duration,
    /// Something of the answer was written since the last check: that asks as well.
    written: bool,
    /// How often it was asked since then.
    asked: usize,
    /// Whoever waits for what comes in: nothing, and the end of it once the answer is sent.
    reader: Option<Waker>,
}

impl Default for HalfClosed {
    fn default() -> Self {
        Self {
            next_check: Box::pin(tokio::time::sleep(FIRST_CHECK)),
            wait: CHECK_MIN,
            written: false,
            asked: 0,
            reader: None,
        }
    }
}

impl HalfClosed {
    /// Something of the answer was written.
    pub(super) const fn wrote(&mut self) {
        self.written = true;
        self.asked = 0;
    }

    /// The answer is sent.
    pub(super) fn answered(&mut self) {
        if let Some(reader) = self.reader.take() {
            reader.wake();
        }
    }

    /// Looks when it is time to. Resolves when the client is gone. Nothing is sent where the answer is at no
    /// `stage` for it, or some of it waits to be written.
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
                Some(Stage::InChunks) if self.asked < BETWEEN_MAX => Some(BETWEEN),
                _ => None,
            };
            self.written = false;
            if let Some(question) = question {
                self.asked += 1;
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

/// Sends these few bytes, unless there is no room for them: then the client is seen by what waits already.
fn ask(cx: &mut Context<'_>, client: &mut Transport, bytes: &[u8]) -> io::Result<()> {
    match Pin::new(&mut *client).poll_write(cx, bytes) {
        Poll::Ready(Ok(count)) if count == bytes.len() => {}
        // Half of it would spoil what comes next.
        Poll::Ready(Ok(_)) => return Err(io::ErrorKind::WriteZero.into()),
        Poll::Ready(Err(error)) => return Err(error),
        Poll::Pending => return Ok(()),
    }
    match Pin::new(client).poll_flush(cx) {
        Poll::Ready(flushed) => flushed,
        Poll::Pending => Ok(()),
    }
}
