//! A client's socket that does not wait for ever: a client that takes nothing is cut.

use std::{
    io,
    pin::Pin,
    task::{Context, Poll},
    time::Duration,
};

use tokio::{
    io::{AsyncRead, AsyncWrite, ReadBuf},
    time::{Instant, Sleep},
};

use super::{attend::Activity, framing::Framing, transport::Transport};

/// A socket with a limit on how long a write may stall, that tells what comes in.
#[derive(Debug)]
pub(super) struct Socket {
    inner: Transport,
    write_timeout: Duration,
    /// Running while a write waits. Made at the first stall, then used again.
    stall: Option<Pin<Box<Sleep>>>,
    stalled: bool,
    activity: Activity,
    framing: Framing,
}

impl Socket {
    pub(super) const fn new(
        inner: Transport,
        write_timeout: Duration,
        activity: Activity,
        framing: Framing,
    ) -> Self {
        Self {
            inner,
            write_timeout,
            stall: None,
            stalled: false,
            activity,
            framing,
        }
    }

    /// What came of a write, unless it has stalled for too long.
    fn within_time<T>(
        &mut self,
        cx: &mut Context<'_>,
        written: Poll<io::Result<T>>,
    ) -> Poll<io::Result<T>> {
        if written.is_ready() {
            self.stalled = false;
            return written;
        }
        let until = Instant::now() + self.write_timeout;
        let stall = self
            .stall
            .get_or_insert_with(|| Box::pin(tokio::time::sleep_until(until)));
        if !self.stalled {
            self.stalled = true;
            stall.as_mut().reset(until);
        }
        match stall.as_mut().poll(cx) {
            Poll::Ready(()) => Poll::Ready(Err(io::ErrorKind::TimedOut.into())),
            Poll::Pending => Poll::Pending,
        }
    }
}

impl AsyncRead for Socket {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let before = buf.filled().len();
        let read = Pin::new(&mut self.inner).poll_read(cx, buf);
        if buf.filled().len() > before {
            let bytes = &buf.filled()[before..];
            self.activity.has_read(bytes);
            self.framing.saw(bytes);
        }
        read
    }
}

impl AsyncWrite for Socket {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.inner).poll_write(cx, bytes);
        self.within_time(cx, written)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        parts: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.inner).poll_write_vectored(cx, parts);
        self.within_time(cx, written)
    }

    fn is_write_vectored(&self) -> bool {
        self.inner.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let flushed = Pin::new(&mut self.inner).poll_flush(cx);
        self.within_time(cx, flushed)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        // TLS says good-bye, which has to be taken too.
        let closed = Pin::new(&mut self.inner).poll_shutdown(cx);
        self.within_time(cx, closed)
    }
}
