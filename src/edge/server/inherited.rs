//! Sockets that whoever started this process has opened for it: systemd's protocol (`sd_listen_fds(3)`).

use std::net::TcpListener;

use anyhow::{Context as _, bail, ensure};
use listenfd::ListenFd;

/// Listening sockets that were there before this process, and stay open when it has ended.
#[derive(Debug, Default)]
pub struct InheritedSockets {
    /// Where callers connect.
    pub public: Option<TcpListener>,
    /// Where operators connect.
    pub admin: Option<TcpListener>,
}

impl InheritedSockets {
    /// Those that `LISTEN_FDS` counts, if it was meant for this process (`LISTEN_PID`). `LISTEN_FDNAMES` says
    /// which is which: `public`, `admin`; a single one of any other name is the public one.
    ///
    /// # Errors
    /// A name is unknown or there twice, or what was passed is no TCP socket.
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

/// What each of so many sockets is for.
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
                "LISTEN_FDNAMES: {name:?}: name the sockets \"public\" and \"admin\" \
                 (FileDescriptorName= of a systemd socket)"
            ),
        };
        ensure!(
            !roles.contains(&role),
            "LISTEN_FDNAMES: one socket of a name is served, and no more"
        );
        roles.push(role);
    }
    Ok(roles)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sockets_are_told_apart_by_their_names() {
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
