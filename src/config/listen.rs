//! Checks of the listeners and their public addresses: `listen`, `service`, `base_url`, `trusted_proxies`,
//! `cors_origins`, `[admin]`.

use std::{
    collections::BTreeSet,
    net::{IpAddr, SocketAddr},
    path::{Path, PathBuf},
};

use http::HeaderValue;
use ipnet::IpNet;
use secrecy::{ExposeSecret, SecretString};

use super::{
    AdminConfig,
    check::{Check, maybe, web_address, without_query},
    raw::RawAdmin,
};
use crate::{edge::cors::Origins, net::files::Shares, operators::Operators};

impl Check<'_> {
    pub(super) fn service(&mut self, given: Option<String>) -> Option<String> {
        let service = given.unwrap_or_else(|| "tollgate".to_owned());
        let good = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-';
        if service.is_empty() || !service.bytes().all(good) {
            self.errors.add(
                "service",
                "must be one path segment of a-z, 0-9 and '-', like \"tollgate\"",
            );
            return None;
        }
        if ["chat", "messages", "models"].contains(&service.as_str()) {
            self.errors.add(
                "service",
                "is used by another path under /v1: choose another name",
            );
            return None;
        }
        Some(service)
    }

    pub(super) fn base_url(
        &mut self,
        given: Option<&str>,
        listen: Option<SocketAddr>,
        scheme: &str,
    ) -> Option<String> {
        let Some(text) = given else {
            if listen.is_some_and(|listen| listen.ip().is_unspecified()) {
                self.warnings.add(
                    "base_url",
                    "is absent, and the address of listen, which the catalog shows instead, cannot be connected to",
                );
            }
            return listen.map(|listen| format!("{scheme}://{listen}/v1"));
        };
        let text = text.trim_end_matches('/');
        let uri = web_address(text).and_then(without_query);
        let uri = self.keep(uri, "base_url")?;
        if !uri.path().ends_with("/v1") {
            self.errors.add(
                "base_url",
                "must end in /v1: it is the base address of chat-completions clients",
            );
            return None;
        }
        Some(text.to_owned())
    }

    pub(super) fn networks(&mut self, given: &[String]) -> Option<Vec<IpNet>> {
        self.each(given, "trusted_proxies", |text| {
            let network = text.parse::<IpNet>();
            let network = network.or_else(|_| text.parse::<IpAddr>().map(IpNet::from));
            network
                .map_err(|_| "must be a CIDR or an address, like \"10.0.0.0/8\" or \"192.0.2.7\"")
        })
    }

    pub(super) fn origins(&mut self, given: &[String]) -> Option<Origins> {
        let origins = self.each(given, "cors_origins", origin)?;
        Some(origins.into_iter().collect())
    }

    pub(super) fn admin(
        &mut self,
        raw: RawAdmin,
        callers: Option<SocketAddr>,
    ) -> Option<AdminConfig> {
        let listen = self.address(
            raw.listen.as_deref().unwrap_or("127.0.0.1:8081"),
            "admin.listen",
        );
        if listen.is_some_and(|listen| listen.port() != 0 && Some(listen) == callers) {
            self.errors.add(
                "admin.listen",
                "is the same as listen: operators and callers need an address each",
            );
        }
        let key = self.admin_key(raw.key)?;
        let connections_max = self.whole(
            raw.connections_max,
            "admin.connections_max",
            Shares::of_process(0).operators as u64,
            1..=1_000_000,
        );
        if is_weak(key.expose_secret()) {
            self.warnings.add(
                "admin.key",
                "is easily guessed; make another with `openssl rand -hex 32`",
            );
        }
        let hosts = raw.hosts.into_iter().enumerate().map(|(index, name)| {
            let is_name = web_address(&format!("http://{name}"))
                .is_ok_and(|uri| uri.host() == Some(name.as_str()));
            let name = is_name.then(|| name.to_ascii_lowercase());
            let name = name.ok_or("must be a host name without a port, like \"console.example\"");
            self.keep(name, &format!("admin.hosts[{index}]"))
        });
        let hosts: Vec<_> = hosts.collect();
        let operators_file = raw.operators_file.map(PathBuf::from);
        if let Some(path) = &operators_file {
            self.warn_of_operators_file(path);
        }
        let oidc = maybe(raw.oidc, |raw| self.oidc(raw));
        Some(AdminConfig {
            listen: listen?,
            key,
            operators_file,
            oidc: oidc?,
            hosts: hosts.into_iter().collect::<Option<_>>()?,
            metrics_key: raw.metrics_key.unwrap_or(false),
            connections_max: connections_max?,
        })
    }

    fn admin_key(&mut self, given: Option<String>) -> Option<SecretString> {
        let advice = "operators authenticate with it; make one with `openssl rand -hex 32`";
        let key = self.secret(given, "admin.key", advice)?;
        let problem = if key.expose_secret().len() < 16 {
            "must have at least 16 characters; make one with `openssl rand -hex 32`"
        } else if HeaderValue::from_str(key.expose_secret()).is_err() {
            "must be plain ASCII, it is sent in a header"
        } else {
            return Some(key);
        };
        self.errors.add("admin.key", problem);
        None
    }

    /// Warns of mistakes in the operators' file. It is read at each sign-in, and the gateway serves callers without it.
    fn warn_of_operators_file(&mut self, path: &Path) {
        let shown = path.display();
        let problem = match Operators::read(path) {
            Err(error) => {
                format!("{shown}: {error}; until it can be read, sign-in by name is not possible")
            }
            Ok(_) if !path.exists() => format!(
                "there is no {shown} yet: until `tollgate operator create NAME --role ROLE --file {shown}` has made \
                 it, nobody signs in by a name"
            ),
            Ok(_) => return self.warn_of_open_file("admin.operators_file", path),
        };
        self.warnings.add("admin.operators_file", problem);
    }
}

/// Parses an origin as browsers send it: the scheme, the host, and the port unless it is the scheme's default.
fn origin(text: &str) -> Result<HeaderValue, &'static str> {
    let is_origin = |(scheme, host): (&str, &str)| {
        let is_scheme = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || "+-.".contains(c);
        let is_host =
            |c: char| c.is_ascii_graphic() && !c.is_ascii_uppercase() && !"/@?#*".contains(c);
        !scheme.is_empty()
            && scheme.chars().all(is_scheme)
            && !host.is_empty()
            && host.chars().all(is_host)
    };
    let is_known = text == "*" || text.split_once("://").is_some_and(is_origin);
    is_known
        .then(|| HeaderValue::from_str(text).ok())
        .flatten()
        .ok_or("must be an origin without a path, in small letters, like \"https://app.example\", or \"*\"")
}

/// Placeholder words that people write instead of a secret.
const WORDS: [&str; 14] = [
    "changeme", "change", "password", "passwd", "secret", "admin", "tollgate", "default",
    "example", "qwerty", "letmein", "test", "key", "me",
];

/// Returns whether a key is short once common words and runs of characters are removed.
fn is_weak(key: &str) -> bool {
    let mut rest = key.to_ascii_lowercase();
    for word in WORDS {
        rest = rest.replace(word, "");
    }
    let is_run = |pair: &[u8]| matches!(pair[1].wrapping_sub(pair[0]), 0 | 1 | 0xff);
    let bytes = rest.as_bytes();
    let unlike = bytes.windows(2).filter(|pair| !is_run(pair)).count();
    let distinct: BTreeSet<_> = bytes.iter().collect();
    unlike < 7 || distinct.len() < 6
}

#[cfg(test)]
mod tests {
    use super::is_weak;
    use crate::config::testing::{assert_mistakes, changed, parse};

    #[test]
    fn world_readable_secret_file_causes_a_warning() {
        use std::os::unix::fs::PermissionsExt as _;

        let dir = tempfile::tempdir().unwrap();
        let (key, operators) = (dir.path().join("key"), dir.path().join("operators.toml"));
        std::fs::write(&key, "9f86d081884c7d659a2feaa0c55ad015").unwrap();
        std::fs::write(&operators, "").unwrap();
        let text = changed(
            "key = \"${ADMIN_KEY}\"",
            &format!(
                "key = \"file:{}\"\noperators_file = {operators:?}",
                key.display()
            ),
        );
        for (mode, warned) in [
            (0o600, false),
            (0o640, false),
            (0o644, true),
            (0o602, true),
            (0o660, true),
        ] {
            for file in [&key, &operators] {
                std::fs::set_permissions(file, std::fs::Permissions::from_mode(mode)).unwrap();
            }
            let warnings = format!("{:?}", parse(&text).unwrap().warnings);
            for (field, file) in [("admin.key", &key), ("admin.operators_file", &operators)] {
                let advice = format!("chmod 600 {}", file.display());
                let is_warned = warnings.contains(field) && warnings.contains(&advice);
                assert_eq!(is_warned, warned, "{mode:o} {field}: {warnings}");
            }
        }
    }

    #[test]
    fn common_admin_key_is_reported_as_weak() {
        for key in [
            "changemechangeme",
            "ChangeMe-ChangeMe",
            "passwordpassword1",
            "aaaaaaaaaaaaaaaa",
            "0123456789012345",
            "admin-secret-key-1234",
            "abababababababab",
            "tollgate-admin-key",
        ] {
            assert!(is_weak(key), "{key}");
        }
        for key in [
            "9f86d081884c7d659a2feaa0c55ad015",
            "admin-key-of-the-tests",
            "correct horse battery staple",
            "kR7-vv2Qp_wLx91s",
        ] {
            assert!(!is_weak(key), "{key}");
        }
    }

    #[test]
    fn invalid_listen_address_or_name_is_refused_by_name() {
        assert_mistakes(&[
            ("[admin]", "listen = \"8080\"\n[admin]", "listen", "address"),
            ("[admin]", "service = \"Chat\"\n[admin]", "service", "a-z"),
            (
                "[admin]",
                "service = \"messages\"\n[admin]",
                "service",
                "used by another path",
            ),
            (
                "[admin]",
                "base_url = \"http://h/api\"\n[admin]",
                "base_url",
                "/v1",
            ),
            (
                "[admin]",
                "trusted_proxies = [\"10.0.0.0/8\", \"ten\"]\n[admin]",
                "trusted_proxies[1]",
                "CIDR",
            ),
            (
                "[admin]",
                "cors_origins = [\"*\", \"https://app.example/\"]\n[admin]",
                "cors_origins[1]",
                "without a path",
            ),
            (
                "key = \"${ADMIN_KEY}\"",
                "key = \"0123456789abcdef0123456789abcdef\"",
                "admin.key",
                "${NAME}",
            ),
            (
                "key = \"${ADMIN_KEY}\"",
                "key = \"${NO_SUCH}\"",
                "admin.key",
                "NO_SUCH",
            ),
            (
                "key = \"${ADMIN_KEY}\"",
                "key = \"${SHORT_KEY}\"",
                "admin.key",
                "at least 16",
            ),
            ("key = \"${ADMIN_KEY}\"", "", "admin.key", "missing"),
            (
                "key = \"${ADMIN_KEY}\"",
                "key = \"${ADMIN_KEY}\"\nlisten = \"127.0.0.1:8080\"",
                "admin.listen",
                "same",
            ),
        ]);
    }
}
