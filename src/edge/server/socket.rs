//! A client's socket with timeouts: a client that accepts no data is disconnected. The socket distinguishes a client
//! that has only ended its input from a client that is gone.

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
    control_frames::ControlFrames, framing::Framing, half_closed::HalfClosed, supervise::Activity,
    transport::Transport,
};

/// A socket that limits how long a write may stall and reports what arrives. On HTTP/1 the end of the input is withheld
/// until running requests are answered, because hyper treats this end as a disconnect.
#[derive(Debug)]
pub(super) struct Socket {
    inner: Transport,
    write_timeout: Duration,
    /// Timer that runs while a write waits. Created at the first stalled write and then reused.
    stall: Option<Pin<Box<Sleep>>>,
    stalled: bool,
    activity: Activity,
    framing: Framing,
    /// Whether the connection's HTTP version has been determined.
    is_told: bool,
    /// The counter of control frames, if the connection may be HTTP/2.
    control_frames: Option<Box<ControlFrames>>,
    /// Present once the client has ended its input and this end is withheld from hyper.
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
            control_frames: None,
            half_closed: None,
        }
    }

    /// Returns whether a part of an answer is still to be produced or written.
    fn is_answering(&self) -> bool {
        self.stalled || self.activity.is_running()
    }

    /// Withholds the end of the input from hyper until all requests are answered or the client is gone.
    fn poll_end(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        if !self.is_answering() {
            return Poll::Ready(Ok(()));
        }
        // If no write has stalled, hyper has written all of its data, up to the end of a head or a chunk.
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

    /// Returns the result of a write; an error if the write has stalled for too long.
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
                // hyper-util's `auto` first reads into a buffer of its own and looks for the HTTP/2 preface. This read
                // returns no bytes, so `auto` chooses HTTP/1. If it returned bytes, hyper would copy them into its read
                // buffer, which would grow by a page.
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
            self.framing.saw(bytes);
            if let Some(frames) = &mut self.control_frames {
                frames.saw(bytes)?;
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
        // TLS still has to write its close notification, so the time for closing is limited too.
        let closed = Pin::new(&mut self.inner).poll_shutdown(cx);
        self.within_time(cx, closed)
    }
}
