//! What carries a client's bytes: TCP, or TLS over it.

use std::{
    io,
    pin::Pin,
    task::{Context, Poll},
};

use tokio::{
    io::{AsyncRead, AsyncWrite, ReadBuf},
    net::TcpStream,
};
use tokio_rustls::server::TlsStream;

/// A connection on which bytes can be sent; TLS has been agreed on.
#[derive(Debug)]
pub(super) enum Transport {
    Plain(TcpStream),
    Tls(Box<TlsStream<TcpStream>>),
}

impl Transport {
    /// What has befallen the socket since it was asked last.
    pub(super) fn take_error(&self) -> io::Result<Option<io::Error>> {
        match self {
            Self::Plain(socket) => socket.take_error(),
            Self::Tls(stream) => stream.get_ref().0.take_error(),
        }
    }
}

/// The same call of whichever it is.
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
