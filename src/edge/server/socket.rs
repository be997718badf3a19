//! The socket of a client's connection. It disconnects a client that reads no data. It distinguishes a client that has
//! closed only its sending side from a client that is gone.

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

use super::{
    activity::Activity, control_frames::ControlFrames, framing::Framing, half_closed::HalfClosed,
    transport::Transport,
};

/// A socket that limits how long a write may stall, and that records the received bytes. On HTTP/1, the end of the
/// input is hidden from hyper until all requests in flight are answered, because hyper treats this end as a client
/// disconnect.
#[derive(Debug)]
pub(super) struct Socket {
    inner: Transport,
    write_timeout: Duration,
    /// The timer for stalled writes. It is created when a write stalls for the first time, and then reused.
    stall: Option<Pin<Box<Sleep>>>,
    stalled: bool,
    activity: Activity,
    framing: Framing,
    /// Whether it is known if the connection speaks HTTP/1 or HTTP/2.
    is_version_known: bool,
    /// The counter of HTTP/2 control frames; `None` if the connection cannot be HTTP/2.
    control_frames: Option<Box<ControlFrames>>,
    /// Present while the end of the client's input is hidden from hyper.
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
            is_version_known: false,
            control_frames: None,
            half_closed: None,
        }
    }

    /// Returns whether a response must still be produced or written, at least in part.
    fn is_answering(&self) -> bool {
        self.stalled || self.activity.has_requests()
    }

    /// Hides the end of the input from hyper until all requests are answered or the client is gone.
    fn poll_end(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        if !self.is_answering() {
            return Poll::Ready(Ok(()));
        }
        // If no write has stalled, hyper has written all of its data. So the last bytes sent were the end of a head or
        // of a chunk.
        let stage = (!self.stalled).then(|| self.activity.stage());
        let half_closed = self.half_closed.get_or_insert_with(Box::default);
        half_closed.poll_gone(cx, &mut self.inner, stage).map(Err)
    }

    fn wrote(&mut self, written: &Poll<io::Result<usize>>) {
        if let Some(frames) = &mut self.control_frames
            && let Poll::Ready(Ok(bytes)) = written
        {
            frames.wrote(*bytes);
        }
        if let Some(half_closed) = &mut self.half_closed
            && matches!(written, Poll::Ready(Ok(1..)))
        {
            half_closed.wrote();
        }
    }

    /// Returns the result of a write. If the write has stalled for too long, the result is an error.
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
        let timed_out = stall.as_mut().poll(cx);
        timed_out.map(|()| Err(io::ErrorKind::TimedOut.into()))
    }
}

impl AsyncRead for Socket {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        if !self.is_version_known {
            let is_http1 = ready!(self.inner.poll_is_http1(cx))?;
            self.is_version_known = true;
            if is_http1 {
                // The `auto` server of hyper-util first reads into its own buffer and looks for the HTTP/2 preface.
                // This read returns no bytes, so `auto` chooses HTTP/1 at once. If the read returned bytes, hyper would
                // copy them into its read buffer, which would grow by a page.
                return Poll::Ready(Ok(()));
            }
            self.control_frames = Some(Box::new(ControlFrames::new()));
        }
        if self.half_closed.is_some() {
            return self.poll_end(cx);
        }
        let before = buf.filled().len();
        let read = Pin::new(&mut self.inner).poll_read(cx, buf);
        if buf.filled().len() > before {
            let bytes = &buf.filled()[before..];
            self.activity.has_read(bytes);
            self.framing.received(bytes);
            if let Some(frames) = &mut self.control_frames {
                frames.received(bytes)?;
            }
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
        // After the shutdown, TLS must still write its close notification. So the time for closing is limited, too.
        let closed = Pin::new(&mut self.inner).poll_shutdown(cx);
        self.within_time(cx, closed)
    }
}
