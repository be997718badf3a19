//! Takes over sockets that the parent process passes by systemd's protocol (`sd_listen_fds(3)`).

use std::net::TcpListener;

use anyhow::{Context as _, bail, ensure};
use listenfd::ListenFd;

/// Listening sockets that were opened before this process started, and stay open when it ends.
#[derive(Debug, Default)]
pub struct InheritedSockets {
    /// The socket on which callers are served.
    pub public: Option<TcpListener>,
    /// The socket on which operators are served.
    pub admin: Option<TcpListener>,
}

impl InheritedSockets {
    /// Takes over the sockets that the parent process passed. `LISTEN_FDS` is their number, and `LISTEN_PID` the
    /// process that they are for. `LISTEN_FDNAMES` contains the purpose of each socket: `public` or `admin`. A single
    /// socket may have any name, and is the public socket unless its name is `admin`.
    ///
    /// # Errors
    /// An error if a socket's name is unknown or repeated, or if a descriptor is not a TCP socket.
    pub fn from_env() -> anyhow::Result<Self> {
        let names = std::env::var("LISTEN_FDNAMES").unwrap_or_default();
        let mut sockets = ListenFd::from_env();
        let mut passed = Self::default();
        for (index, role) in roles(sockets.len(), &names)?.into_iter().enumerate() {
            let socket = sockets
                .take_tcp_listener(index)
                .with_context(|| format!("LISTEN_FDS: socket {}", index + 1))?;
            match role {
                Role::Public => passed.public = socket,
                Role::Admin => passed.admin = socket,
            }
        }
        Ok(passed)
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Role {
    Public,
    Admin,
}

/// Returns the purpose of each socket, in the order of the descriptors.
fn roles(count: usize, names: &str) -> anyhow::Result<Vec<Role>> {
    let names: Vec<&str> = names.split(':').collect();
    if count == 1 && names != ["admin"] {
        return Ok(vec![Role::Public]);
    }
    let mut roles = Vec::new();
    for index in 0..count {
        let role = match names.get(index).copied().unwrap_or_default() {
            "public" => Role::Public,
            "admin" => Role::Admin,
            name => bail!(
                "LISTEN_FDNAMES: unknown socket name {name:?}: a socket's name must be \"public\" or \"admin\" \
                 (FileDescriptorName= in its systemd unit)"
            ),
        };
        ensure!(
            !roles.contains(&role),
            "LISTEN_FDNAMES: two sockets have the same name; pass one socket per name"
        );
        roles.push(role);
    }
    Ok(roles)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn inherited_sockets_are_distinguished_by_their_names() {
        use Role::{Admin, Public};
        for (count, names, expected) in [
            (0, "", Some(vec![])),
            (1, "", Some(vec![Public])),
            (1, "tollgate.socket", Some(vec![Public])),
            (1, "public", Some(vec![Public])),
            (1, "admin", Some(vec![Admin])),
            (2, "public:admin", Some(vec![Public, Admin])),
            (2, "admin:public", Some(vec![Admin, Public])),
            (2, "", None),
            (2, "public", None),
            (2, "public:public", None),
            (2, "tollgate.socket:tollgate.socket", None),
            (3, "public:admin:public", None),
        ] {
            assert_eq!(roles(count, names).ok(), expected, "{count} {names}");
        }
    }
}
