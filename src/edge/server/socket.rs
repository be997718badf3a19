//! A client's socket that does not wait for ever: a client that takes nothing is cut. One that sends nothing
//! more is told from one that has gone.

use std::{
    io,
    pin::Pin,
    task::{Context, Poll, ready},
    time::Duration,
};

use tokio::{
    io::{AsyncRead, AsyncWrite, ReadBuf},
    time::{Instant, Sleep},
};

use super::{framing::Framing, half_closed::HalfClosed, supervise::Activity, transport::Transport};

/// A socket with a limit on how long a write may stall, that tells what comes in. On HTTP/1 its end comes in
/// when what runs is answered: hyper takes it for the client's leave.
#[derive(Debug)]
pub(super) struct Socket {
    inner: Transport,
    write_timeout: Duration,
    /// Running while a write waits. Made at the first stall, then used again.
    stall: Option<Pin<Box<Sleep>>>,
    stalled: bool,
    activity: Activity,
    framing: Framing,
    /// It has been looked which HTTP comes in.
    is_told: bool,
    /// The end has come, and is kept back.
    half_closed: Option<Box<HalfClosed>>,
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
            is_told: false,
            half_closed: None,
        }
    }

    /// Whether something of an answer is still to be made or to be written.
    fn is_answering(&self) -> bool {
        self.stalled || self.activity.is_running()
    }

    /// Keeps the end of what comes in back until all is answered, or the client is seen to be gone.
    fn poll_end(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        if !self.is_answering() {
            return Poll::Ready(Ok(()));
        }
        // hyper has written all that it has where no write has stalled, to the end of a head or of a chunk.
        let stage = (!self.stalled).then(|| self.activity.stage());
        let half_closed = self.half_closed.get_or_insert_with(Box::default);
        half_closed.poll_gone(cx, &mut self.inner, stage).map(Err)
    }

    fn wrote(&mut self, written: &Poll<io::Result<usize>>) {
        if let Some(half_closed) = &mut self.half_closed
            && matches!(written, Poll::Ready(Ok(1..)))
        {
            half_closed.wrote();
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
        if !self.is_told {
            let is_http1 = ready!(self.inner.poll_is_http1(cx))?;
            self.is_told = true;
            if is_http1 {
                // `auto` asks first, with a buffer for the preface of HTTP/2 alone: one that stays empty is HTTP/1 for it. Filled,
                // it would go before all else into hyper's own buffer, which would have to grow by another page for the rest.
                return Poll::Ready(Ok(()));
            }
        }
        if self.half_closed.is_some() {
            return self.poll_end(cx);
        }
        let before = buf.filled().len();
        let read = Pin::new(&mut self.inner).poll_read(cx, buf);
        if buf.filled().len() > before {
            let bytes = &buf.filled()[before..];
            self.activity.has_read(bytes);
            self.framing.saw(bytes);
        } else if matches!(read, Poll::Ready(Ok(())))
            && buf.remaining() > 0
            && self.framing.is_between_requests()
        {
            return self.poll_end(cx);
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
        self.wrote(&written);
        self.within_time(cx, written)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        parts: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.inner).poll_write_vectored(cx, parts);
        self.wrote(&written);
        self.within_time(cx, written)
    }

    fn is_write_vectored(&self) -> bool {
        self.inner.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let flushed = Pin::new(&mut self.inner).poll_flush(cx);
        let flushed = self.within_time(cx, flushed);
        let is_over = self.half_closed.is_some() && !self.is_answering();
        if is_over && let Some(half_closed) = &mut self.half_closed {
            half_closed.answered();
        }
        flushed
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        // TLS says good-bye, which has to be taken too.
        let closed = Pin::new(&mut self.inner).poll_shutdown(cx);
        self.within_time(cx, closed)
    }
}
