//! Transports a client's bytes, either over TCP or over TLS.

use std::{
    io,
    pin::Pin,
    task::{Context, Poll, ready},
};

use tokio::{
    io::{AsyncRead, AsyncWrite, ReadBuf},
    net::TcpStream,
};
use tokio_rustls::server::TlsStream;

/// The first bytes of every HTTP/2 connection. No HTTP/1 method begins like this (RFC 9113, section 3.4).
pub(super) const PREFACE: &[u8] = b"PRI";

/// A connection that is ready for data. If it uses TLS, the handshake is complete.
#[derive(Debug)]
pub(super) enum Transport {
    Plain(TcpStream),
    Tls(Box<TlsStream<TcpStream>>),
}

impl Transport {
    /// Returns whether the connection certainly speaks HTTP/1: TLS has negotiated it, or the first bytes cannot begin
    /// HTTP/2 (RFC 9113, section 3.4). Returns false if this cannot be determined yet. Consumes no bytes.
    pub(super) fn poll_is_http1(&self, cx: &mut Context<'_>) -> Poll<io::Result<bool>> {
        Poll::Ready(Ok(match self {
            Self::Plain(socket) => {
                let mut bytes = [0; PREFACE.len()];
                let mut begin = ReadBuf::new(&mut bytes);
                ready!(socket.poll_peek(cx, &mut begin))?;
                !PREFACE.starts_with(begin.filled())
            }
            Self::Tls(stream) => stream.get_ref().1.alpn_protocol() == Some(b"http/1.1"),
        }))
    }

    /// Returns the error that the socket has reported since the last call, if any.
    pub(super) fn take_error(&self) -> io::Result<Option<io::Error>> {
        match self {
            Self::Plain(socket) => socket.take_error(),
            Self::Tls(stream) => stream.get_ref().0.take_error(),
        }
    }
}

/// Calls a method on the stream that the transport contains.
macro_rules! carry {
    ($transport:expr, $io:ident => $call:expr) => {
        match $transport.get_mut() {
            Transport::Plain(socket) => {
                let $io = Pin::new(socket);
                $call
            }
            Transport::Tls(stream) => {
                let $io = Pin::new(&mut **stream);
                $call
            }
        }
    };
}

impl AsyncRead for Transport {
    fn poll_read(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        carry!(self, io => io.poll_read(cx, buf))
    }
}

impl AsyncWrite for Transport {
    fn poll_write(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        carry!(self, io => io.poll_write(cx, bytes))
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        parts: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        carry!(self, io => io.poll_write_vectored(cx, parts))
    }

    fn is_write_vectored(&self) -> bool {
        match self {
            Self::Plain(socket) => socket.is_write_vectored(),
            Self::Tls(stream) => stream.is_write_vectored(),
        }
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        carry!(self, io => io.poll_flush(cx))
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        carry!(self, io => io.poll_shutdown(cx))
    }
}
