//! Opens listening sockets and closes them.

use std::{
    io,
    net::{SocketAddr, TcpListener as StdListener},
};

use tokio::net::{TcpListener, TcpSocket, TcpStream};

/// The maximum number of connections that wait in the kernel to be accepted.
const BACKLOG: u32 = 1024;

/// A socket on which the gateway listens.
#[derive(Debug)]
pub struct Listener {
    socket: TcpListener,
    /// Whether another process continues to listen on this socket after this process has ended.
    inherited: bool,
}

impl Listener {
    /// Binds a socket to an address. With `reuse_port`, another process of the same user may bind the same address, if
    /// it sets this option, too. The kernel then distributes new connections between the processes.
    ///
    /// # Errors
    /// An error if the address is in use, or is not an address of this machine.
    pub fn bind(address: SocketAddr, reuse_port: bool) -> io::Result<Self> {
        let socket = if address.is_ipv4() {
            TcpSocket::new_v4()?
        } else {
            TcpSocket::new_v6()?
        };
        socket.set_reuseaddr(true)?;
        if reuse_port {
            socket.set_reuseport(true)?;
        }
        socket.bind(address)?;
        Ok(Self::from(socket.listen(BACKLOG)?))
    }

    /// Listens on a socket that the parent process has opened and keeps open.
    ///
    /// # Errors
    /// An error if the socket cannot be made non-blocking.
    pub fn inherited(socket: StdListener) -> io::Result<Self> {
        socket.set_nonblocking(true)?;
        Ok(Self {
            socket: TcpListener::from_std(socket)?,
            inherited: true,
        })
    }

    /// Returns the address that the socket is bound to.
    ///
    /// # Errors
    /// An error if the kernel cannot return the address.
    pub fn local_addr(&self) -> io::Result<SocketAddr> {
        self.socket.local_addr()
    }

    pub(super) async fn accept(&self) -> io::Result<(TcpStream, SocketAddr)> {
        self.socket.accept().await
    }

    /// Stops listening. Returns the connections that wait to be accepted, because closing the socket would reset them.
    /// If the socket is inherited, the waiting connections are left to the next process, and none are returned.
    pub(super) fn close(self) -> io::Result<Vec<(TcpStream, SocketAddr)>> {
        let mut waiting = Vec::new();
        if self.inherited {
            return Ok(waiting);
        }
        let socket = self.socket.into_std()?;
        // The number of accepted connections is bounded, because further connections may arrive meanwhile.
        for _ in 0..BACKLOG * 2 {
            match socket.accept() {
                Ok((stream, peer)) => {
                    stream.set_nonblocking(true)?;
                    waiting.push((TcpStream::from_std(stream)?, peer));
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => break,
                // The connection cannot be accepted, because its client has disconnected or because no file descriptor
                // is free.
                Err(error) => tracing::debug!(%error, "cannot accept a connection"),
            }
        }
        Ok(waiting)
    }
}

impl From<TcpListener> for Listener {
    fn from(socket: TcpListener) -> Self {
        Self {
            socket,
            inherited: false,
        }
    }
}

#[cfg(test)]
mod tests {
    use tokio::io::AsyncReadExt;

    use super::*;

    fn any() -> SocketAddr {
        SocketAddr::from(([127, 0, 0, 1], 0))
    }

    #[tokio::test]
    async fn pending_connections_are_accepted_before_the_listening_socket_closes() {
        let listener = Listener::bind(any(), false).unwrap();
        let address = listener.local_addr().unwrap();
        let mut clients = Vec::new();
        for _ in 0..50 {
            clients.push(TcpStream::connect(address).await.unwrap());
        }
        let waiting = listener.close().unwrap();
        assert_eq!(waiting.len(), 50);
        assert!(TcpStream::connect(address).await.is_err());
        drop(waiting);
        for mut client in clients {
            // The connection of the waiting client is closed with FIN, not with a reset.
            assert_eq!(client.read(&mut [0]).await.unwrap(), 0);
        }
    }

    #[tokio::test]
    async fn two_processes_may_listen_on_one_port_if_both_opt_in() {
        let first = Listener::bind(any(), true).unwrap();
        let address = first.local_addr().unwrap();
        assert!(Listener::bind(address, false).is_err());
        let second = Listener::bind(address, true).unwrap();
        first.close().unwrap();
        let client = TcpStream::connect(address).await.unwrap();
        let (_, peer) = second.accept().await.unwrap();
        assert_eq!(peer, client.local_addr().unwrap());
    }

    #[tokio::test]
    async fn pending_connections_of_an_inherited_socket_are_left_to_the_next_process() {
        let stored = StdListener::bind(any()).unwrap();
        let inherited = Listener::inherited(stored.try_clone().unwrap()).unwrap();
        let address = inherited.local_addr().unwrap();
        let client = TcpStream::connect(address).await.unwrap();
        assert!(inherited.close().unwrap().is_empty());
        let next = Listener::inherited(stored).unwrap();
        let (_, peer) = next.accept().await.unwrap();
        assert_eq!(peer, client.local_addr().unwrap());
    }
}
