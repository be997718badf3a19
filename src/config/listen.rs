//! Checks of the listeners and their public URLs: `listen`, `service`, `base_url`, `trusted_proxies`, `cors_origins`
//! and `[admin]`.

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
    check::{Check, web_address, without_query},
    raw::RawAdmin,
};
use crate::{edge::cors::Origins, net::files::Shares, operators::Operators};

impl Check<'_> {
    pub(super) fn service(&mut self, given: Option<String>) -> Option<String> {
        let service = given.unwrap_or_else(|| "tollgate".to_owned());
        let good = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-';
        if service.is_empty() || !service.bytes().all(good) {
            return self.refuse(
                "service",
                "must be one path segment of a-z, 0-9 and '-', like \"tollgate\"",
            );
        }
        if ["chat", "messages", "models"].contains(&service.as_str()) {
            return self.refuse(
                "service",
                "is already the name of another path under /v1: choose another name",
            );
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
                    "is absent, so the catalog shows the address in the setting listen, to which callers cannot \
                     connect: set base_url",
                );
            }
            return listen.map(|listen| format!("{scheme}://{listen}/v1"));
        };
        let text = text.trim_end_matches('/');
        let uri = web_address(text).and_then(without_query);
        let uri = self.keep(uri, "base_url")?;
        if !uri.path().ends_with("/v1") {
            return self.refuse(
                "base_url",
                "must end in /v1, because Chat Completions clients append their paths to a base URL with /v1",
            );
        }
        Some(text.to_owned())
    }

    pub(super) fn networks(&mut self, given: &[String]) -> Vec<IpNet> {
        self.each(given, "trusted_proxies", |text| {
            let network = text.parse::<IpNet>();
            let network = network.or_else(|_| text.parse::<IpAddr>().map(IpNet::from));
            network
                .map_err(|_| "must be an IP address or a network (CIDR), like \"10.0.0.0/8\" or \"192.0.2.7\"")
        })
    }

    pub(super) fn origins(&mut self, given: &[String]) -> Origins {
        let origins = self.each(given, "cors_origins", origin);
        origins.into_iter().collect()
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
                "is the same as the setting listen: give operators another port than callers",
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
                "is easy to guess: make a random key with `openssl rand -hex 32`",
            );
        }
        let hosts = self.each(&raw.hosts, "admin.hosts", |name| {
            let is_name =
                web_address(&format!("http://{name}")).is_ok_and(|uri| uri.host() == Some(name));
            let name = is_name.then(|| name.to_ascii_lowercase());
            name.ok_or("must be a host name without a port, like \"console.example\"")
        });
        let operators_file = raw.operators_file.map(PathBuf::from);
        if let Some(path) = &operators_file {
            self.warn_of_operators_file(path);
        }
        let oidc = raw.oidc.and_then(|raw| self.oidc(raw));
        Some(AdminConfig {
            listen: listen?,
            key,
            operators_file,
            oidc,
            hosts,
            metrics_key: raw.metrics_key.unwrap_or(false),
            connections_max,
        })
    }

    fn admin_key(&mut self, given: Option<String>) -> Option<SecretString> {
        let advice = "operators authenticate with this key: make one with `openssl rand -hex 32`";
        let key = self.secret(given, "admin.key", advice)?;
        let problem = if key.expose_secret().len() < 16 {
            "must have at least 16 characters: make a key with `openssl rand -hex 32`"
        } else if HeaderValue::from_str(key.expose_secret()).is_err() {
            "must be plain ASCII, because operators send it in a header"
        } else {
            return Some(key);
        };
        self.refuse("admin.key", problem)
    }

    /// Records warnings about the operators file. Mistakes in this file are no errors, because the gateway reads the
    /// file again at each request to the console, and can serve callers without it.
    fn warn_of_operators_file(&mut self, path: &Path) {
        let shown = path.display();
        let problem = match Operators::read(path) {
            Err(error) => {
                format!(
                    "cannot read {shown}: {error}; until the gateway can read it, operators cannot sign in with a \
                     name and a password"
                )
            }
            Ok(_) if !path.exists() => format!(
                "the file {shown} does not exist, so nobody can sign in with a name and a password: create it with \
                 `tollgate operator create NAME --role ROLE --file {shown}`"
            ),
            Ok(_) => return self.warn_of_open_file("admin.operators_file", path),
        };
        self.warnings.add("admin.operators_file", problem);
    }
}

/// Parses an origin in the form in which browsers send it: scheme and host, and the port unless it is the scheme's
/// default port.
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
        .ok_or("must be an origin in lower case without a path, like \"https://app.example\", or \"*\"")
}

/// Words that operators write as a placeholder for a secret, for example "changeme".
const WORDS: [&str; 14] = [
    "changeme", "change", "password", "passwd", "secret", "admin", "tollgate", "default",
    "example", "qwerty", "letmein", "test", "key", "me",
];

/// Returns whether an admin key is easy to guess: too few characters are left if common words and runs of characters
/// are removed.
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
    fn error_about_an_invalid_listener_or_admin_key_names_the_setting() {
        assert_mistakes(
            r#"
             | listen = "8080" | listen | address
             | service = "Chat" | service | a-z
             | service = "messages" | service | name of another path
             | base_url = "http://h/api" | base_url | /v1
             | trusted_proxies = ["10.0.0.0/8", "ten"] | trusted_proxies[1] | CIDR
             | cors_origins = ["*", "https://app.example/"] | cors_origins[1] | without a path
            key = "${ADMIN_KEY}" | key = "0123456789abcdef0123456789abcdef" | admin.key | ${NAME}
            key = "${ADMIN_KEY}" | key = "${NO_SUCH}" | admin.key | NO_SUCH
            key = "${ADMIN_KEY}" | key = "${SHORT_KEY}" | admin.key | at least 16
            key = "${ADMIN_KEY}" |  | admin.key | missing
            key = "${ADMIN_KEY}" | key = "${ADMIN_KEY}"\nlisten = "127.0.0.1:8080" | admin.listen | same
        "#,
        );
    }
}
