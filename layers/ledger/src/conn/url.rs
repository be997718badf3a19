//! Redis addresses: one server, a server behind Sentinels, or a Cluster.

use std::fmt;

use redis::{Client, ConnectionAddr, ConnectionInfo, IntoConnectionInfo, TlsCertificates};

use super::{RedisFault, Result};

const PORT: u16 = 6379;
const SENTINEL_PORT: u16 = 26_379;

/// A parsed Redis URL. Its text form contains neither user nor password.
///
/// ```text
/// redis://[user:password@]host[:6379][/database]
/// redis-sentinel://[user:password@]host[:26379],host,.../master[/database]
/// redis-cluster://[user:password@]host[:6379],host,...
/// ```
///
/// The schemes `rediss`, `rediss-sentinel` and `rediss-cluster` use TLS. User and password are those of the Redis
/// servers. They are sent to a Sentinel only if it requires authentication.
#[derive(Clone)]
pub struct RedisUrl {
    pub(super) kind: Kind,
    /// The server, the Sentinels, or some nodes of the Cluster; at least one. Any of the nodes reports all other nodes.
    pub(super) hosts: Vec<Address>,
    /// How to connect to the first host. Only the address differs for the other hosts.
    info: ConnectionInfo,
    has_credentials: bool,
}

/// The kind of deployment: how many servers there are, and which servers report the primaries.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    Single,
    /// A primary behind Sentinels; the text is the primary's name, as configured on the Sentinels.
    Sentinel(String),
    Cluster,
}

/// The host and port of a server.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) struct Address {
    pub(super) host: String,
    pub(super) port: u16,
}

impl RedisUrl {
    /// Parses a Redis URL in any of the supported forms.
    ///
    /// # Errors
    /// [`RedisFault::Url`] with the reason if the text is not a valid Redis URL. The error does not contain the text,
    /// which may include a password.
    pub fn parse(text: &str) -> Result<Self, RedisFault> {
        let (scheme, rest) = text.split_once("://").ok_or(RedisFault::Url(FORM))?;
        let (scheme, kind) = match scheme {
            "redis" | "rediss" => return Self::single(text),
            "redis-sentinel" => ("redis", Kind::Sentinel(String::new())),
            "rediss-sentinel" => ("rediss", Kind::Sentinel(String::new())),
            "redis-cluster" => ("redis", Kind::Cluster),
            "rediss-cluster" => ("rediss", Kind::Cluster),
            _ => return Err(RedisFault::Url(FORM)),
        };
        if rest.contains(['?', '#']) {
            return Err(RedisFault::Url(
                "a '?' or a '#' is not allowed: percent-encode it in a password, and remove it elsewhere",
            ));
        }
        let (authority, path) = rest.split_once('/').unwrap_or((rest, ""));
        let (credentials, hosts) = match authority.rsplit_once('@') {
            Some((credentials, hosts)) => (Some(credentials), hosts),
            None => (None, authority),
        };
        let (kind, port, database) = match kind {
            Kind::Cluster if !matches!(path, "" | "0" | "0/") => {
                return Err(RedisFault::Url(
                    "a Cluster has only database 0: write nothing after the hosts, and percent-encode a '/' in a \
                     password",
                ));
            }
            Kind::Sentinel(_) => {
                let (name, database) = path.split_once('/').unwrap_or((path, ""));
                let name = master_name(name)?;
                (Kind::Sentinel(name), SENTINEL_PORT, database_of(database)?)
            }
            kind => (kind, PORT, 0),
        };
        let hosts = hosts
            .split(',')
            .map(|host| Address::parse(host, port))
            .collect::<Option<Vec<_>>>()
            .ok_or(RedisFault::Url(
                "the hosts must have a form such as a:7000,b:7001 or [::1]:7000; percent-encode a password",
            ))?;
        // The `redis` crate parses user, password and database, but accepts only one host.
        let mut one = format!("{scheme}://");
        if let Some(credentials) = credentials {
            one = format!("{one}{credentials}@");
        }
        let one = format!("{one}{}/{database}", hosts[0]);
        let info = one.into_connection_info().map_err(|_| {
            RedisFault::Url("write user and password as user:password@, percent-encoded")
        })?;
        Ok(Self {
            kind,
            hosts,
            info,
            has_credentials: credentials.is_some(),
        })
    }

    /// Trusts only the certificate authorities in this PEM text.
    pub(super) fn trusting(self, pem: &[u8]) -> Result<Self> {
        let certificates = TlsCertificates {
            client_tls: None,
            root_cert: Some(pem.to_vec()),
        };
        let client = Client::build_with_tls(self.info, certificates).map_err(|_| {
            RedisFault::Url(
                "certificate authorities need an address with TLS (rediss://) and a file of PEM certificates",
            )
        })?;
        Ok(Self {
            info: client.get_connection_info().clone(),
            ..self
        })
    }

    /// Returns whether the URL contains a user or a password.
    #[must_use]
    pub const fn has_credentials(&self) -> bool {
        self.has_credentials
    }

    fn single(text: &str) -> Result<Self> {
        let info = text
            .into_connection_info()
            .map_err(|_| RedisFault::Url(FORM))?;
        let (host, port) = match info.addr() {
            ConnectionAddr::Tcp(host, port) | ConnectionAddr::TcpTls { host, port, .. } => {
                (host.clone(), *port)
            }
            _ => return Err(RedisFault::Url(FORM)),
        };
        let settings = info.redis_settings();
        let has_credentials = settings.username().is_some() || settings.password().is_some();
        Ok(Self {
            kind: Kind::Single,
            hosts: vec![Address { host, port }],
            info,
            has_credentials,
        })
    }

    /// Returns how to connect to a server at this address.
    pub(super) fn server(&self, address: &Address) -> ConnectionInfo {
        let Address { host, port } = address.clone();
        let addr = match self.info.addr() {
            ConnectionAddr::TcpTls {
                insecure,
                tls_params,
                ..
            } => ConnectionAddr::TcpTls {
                host,
                port,
                insecure: *insecure,
                tls_params: tls_params.clone(),
            },
            _ => ConnectionAddr::Tcp(host, port),
        };
        self.info.clone().set_addr(addr)
    }

    /// Returns how to connect to a Sentinel at this address. A Sentinel has no databases, and often no password.
    pub(super) fn sentinel(&self, address: &Address, with_credentials: bool) -> ConnectionInfo {
        let info = self.server(address);
        let settings = if with_credentials {
            info.redis_settings().clone().set_db(0)
        } else {
            redis::RedisConnectionInfo::default()
        };
        info.set_redis_settings(settings)
    }
}

/// Writes the list of hosts and ports.
impl fmt::Display for RedisUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, host) in self.hosts.iter().enumerate() {
            let comma = if index == 0 { "" } else { "," };
            write!(f, "{comma}{host}")?;
        }
        Ok(())
    }
}

impl fmt::Debug for RedisUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "RedisUrl({:?} {self})", self.kind)
    }
}

const FORM: &str = "write redis://user:password@host:port/database, or rediss:// for TLS, \
                    redis-sentinel://host:port,host:port/master or redis-cluster://host:port,host:port";

fn master_name(name: &str) -> Result<String> {
    let good = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'.' | b'-' | b'_');
    if !name.is_empty() && name.bytes().all(good) {
        Ok(name.to_owned())
    } else {
        Err(RedisFault::Url(
            "after the addresses, add the name of the primary as configured on the Sentinels, for example /mymaster",
        ))
    }
}

fn database_of(text: &str) -> Result<u32> {
    match text {
        "" => Ok(0),
        text => text.parse().map_err(|_| {
            RedisFault::Url("only a database number may follow the name of the primary, for example /mymaster/0")
        }),
    }
}

impl Address {
    /// Parses `host`, `host:port`, `[v6]` or `[v6]:port`.
    fn parse(text: &str, default_port: u16) -> Option<Self> {
        let (host, port) = match text.strip_prefix('[') {
            Some(rest) => {
                let (host, rest) = rest.split_once(']')?;
                host.parse::<std::net::Ipv6Addr>().ok()?;
                let port = match rest {
                    "" => None,
                    rest => Some(rest.strip_prefix(':')?),
                };
                (host, port)
            }
            None => match text.split_once(':') {
                Some((host, port)) => (host, Some(port)),
                None => (text, None),
            },
        };
        let good = |byte: u8| byte.is_ascii_alphanumeric() || b".-_:".contains(&byte);
        if host.is_empty() || !host.bytes().all(good) {
            return None;
        }
        let port = match port {
            None => default_port,
            Some(port) => port.parse().ok().filter(|port| *port != 0)?,
        };
        Some(Self {
            host: host.to_owned(),
            port,
        })
    }

    /// Parses the address in a redirection: `host:port`, in which an IPv6 host has no brackets. If the host is missing,
    /// the redirection means the server `by` that sent it.
    pub(super) fn reported(text: &str, by: &Self) -> Option<Self> {
        let (host, port) = text.rsplit_once(':')?;
        let host = match host {
            "" | "?" => &by.host,
            host => host,
        };
        Some(Self {
            host: host.to_owned(),
            port: port.parse().ok()?,
        })
    }
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { host, port } = self;
        if host.contains(':') {
            write!(f, "[{host}]:{port}")
        } else {
            write!(f, "{host}:{port}")
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn user_and_password(url: &RedisUrl) -> (Option<&str>, Option<&str>) {
        let settings = url.info.redis_settings();
        (settings.username(), settings.password())
    }

    #[test]
    fn redis_url_is_parsed_in_every_form() {
        let sentinel = || Kind::Sentinel("mymaster".to_owned());
        for (text, kind, hosts, credentials, database, tls) in [
            ("redis://h", Kind::Single, "h:6379", (None, None), 0, false),
            (
                "rediss://u:p@h:7000/2",
                Kind::Single,
                "h:7000",
                (Some("u"), Some("p")),
                2,
                true,
            ),
            (
                "redis-cluster://a:7000,b:7001",
                Kind::Cluster,
                "a:7000,b:7001",
                (None, None),
                0,
                false,
            ),
            (
                "rediss-cluster://:p%40%2f@a,[::1]:7001,10.0.0.3/0",
                Kind::Cluster,
                "a:6379,[::1]:7001,10.0.0.3:6379",
                (None, Some("p@/")),
                0,
                true,
            ),
            (
                "redis-sentinel://s1,s2:26380/mymaster",
                sentinel(),
                "s1:26379,s2:26380",
                (None, None),
                0,
                false,
            ),
            (
                "rediss-sentinel://u:p@s1:5000/mymaster/3",
                sentinel(),
                "s1:5000",
                (Some("u"), Some("p")),
                3,
                true,
            ),
        ] {
            let url = RedisUrl::parse(text).expect(text);
            assert_eq!(url.kind, kind, "{text}");
            assert_eq!(url.to_string(), hosts, "{text}");
            assert_eq!(user_and_password(&url), credentials, "{text}");
            assert_eq!(url.has_credentials(), credentials != (None, None), "{text}");
            let server = url.server(&url.hosts[0]);
            assert_eq!(server.redis_settings().db(), database, "{text}");
            let is_tls = matches!(server.addr(), ConnectionAddr::TcpTls { .. });
            assert_eq!(is_tls, tls, "{text}");
        }
    }

    #[test]
    fn url_errors_do_not_contain_the_password() {
        for (text, message) in [
            ("postgres://u:hunter2@h/1", "redis-cluster://"),
            ("hunter2", "redis-cluster://"),
            ("redis://u:hunter2@h/x", "redis://user"),
            ("redis://:hunter2@", "redis://user"),
            ("redis-cluster://", "a:7000,b:7001"),
            ("redis-cluster://:hunter2@", "a:7000,b:7001"),
            ("redis-cluster://:hunter2@a,,b", "a:7000,b:7001"),
            ("redis-cluster://:hunter2@a:x", "a:7000,b:7001"),
            ("redis-cluster://:hunter2@a:0", "a:7000,b:7001"),
            ("redis-cluster://:hunter2@::1:7000", "a:7000,b:7001"),
            ("redis-cluster://:hunter2@[::1:7000", "a:7000,b:7001"),
            ("redis-cluster://:hunter2@[a]:7000", "a:7000,b:7001"),
            ("redis-cluster://:hunter2@a:1/2", "database 0"),
            ("redis-cluster://:hun?ter2@a:1", "percent-encode"),
            ("redis-cluster://:hunter2@a:1#insecure", "'#'"),
            ("redis-cluster://:hunter2/@a:1", "percent-encode"),
            ("redis-sentinel://:hunter2@a:1", "/mymaster"),
            ("redis-sentinel://:hunter2@a:1/", "/mymaster"),
            ("redis-sentinel://:hunter2@a:1/my master", "/mymaster"),
            (
                "redis-sentinel://:hunter2@a:1/m/x",
                "only a database number",
            ),
            ("redis-sentinel:///mymaster", "a:7000,b:7001"),
        ] {
            let error = RedisUrl::parse(text).expect_err(text).to_string();
            assert!(error.contains(message), "{text}: {error}");
            assert!(!error.contains("hun"), "{text}: {error}");
        }
        let url = RedisUrl::parse("redis-cluster://root:hunter2@a:1,b:2").unwrap();
        let shown = format!("{url:?} {url}");
        assert_eq!(shown, "RedisUrl(Cluster a:1,b:2) a:1,b:2");
    }

    #[test]
    fn connection_to_a_sentinel_uses_the_password_in_the_url_only_if_requested() {
        let url = RedisUrl::parse("redis-sentinel://u:p@s1/m/3").unwrap();
        for (with, user, password) in [(false, None, None), (true, Some("u"), Some("p"))] {
            let info = url.sentinel(&url.hosts[0], with);
            let settings = info.redis_settings();
            assert_eq!(
                (settings.username(), settings.password(), settings.db()),
                (user, password, 0)
            );
        }
    }

    #[test]
    fn redirection_without_a_host_leads_to_the_server_that_sent_it() {
        let by = Address::parse("h:1", PORT).unwrap();
        for (text, reported) in [
            ("10.0.0.1:7000", Some("10.0.0.1:7000")),
            (":7000", Some("h:7000")),
            ("?:7000", Some("h:7000")),
            ("::1:7000", Some("[::1]:7000")),
            ("h", None),
            ("h:x", None),
        ] {
            let address = Address::reported(text, &by).map(|address| address.to_string());
            assert_eq!(address.as_deref(), reported, "{text}");
        }
    }
}
