//! Where the gateway listens, and what it is called there: `listen`, `service`, `base_url`, `trusted_proxies`, `[admin]`.

use std::{
    net::{IpAddr, SocketAddr},
    path::PathBuf,
};

use http::HeaderValue;
use ipnet::IpNet;
use secrecy::ExposeSecret;

use super::{
    AdminConfig,
    check::{Check, web_address, without_query},
    raw::RawAdmin,
};
use crate::{console::operators::Operators, node::files::Shares};

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
                "is taken by another path under /v1: choose another name",
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
                    "is absent, and the address of listen, which the catalog shows instead, is nobody's",
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
                "must end in /v1: it is the address that chat-completions clients are given",
            );
            return None;
        }
        Some(text.to_owned())
    }

    pub(super) fn networks(&mut self, given: &[String]) -> Option<Vec<IpNet>> {
        let network = |text: &String| {
            text.parse::<IpNet>()
                .or_else(|_| text.parse::<IpAddr>().map(IpNet::from))
                .map_err(|_| {
                    "must be a CIDR or an address, like \"10.0.0.0/8\" or \"192.0.2.7\"".to_owned()
                })
        };
        let networks: Vec<_> = given
            .iter()
            .enumerate()
            .map(|(index, text)| self.keep(network(text), &format!("trusted_proxies[{index}]")))
            .collect();
        networks.into_iter().collect()
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
        let key = self.secret(
            raw.key,
            "admin.key",
            "operators show it; make one with `openssl rand -hex 32`",
        )?;
        if key.expose_secret().len() < 16 {
            self.errors.add(
                "admin.key",
                "must have at least 16 characters; make one with `openssl rand -hex 32`",
            );
            return None;
        }
        if HeaderValue::from_str(key.expose_secret()).is_err() {
            self.errors
                .add("admin.key", "must be plain ASCII, it is sent in a header");
            return None;
        }
        let connections_max = self.whole(
            raw.connections_max,
            "admin.connections_max",
            Shares::of_process(0).operators as u64,
            1..=1_000_000,
        );
        let operators_file = raw.operators_file.map(PathBuf::from);
        // It is read at each sign-in, and not now: the gateway serves callers without it.
        let problem = operators_file.as_deref().and_then(|path| {
            let shown = path.display();
            match Operators::read(path) {
                Err(error) => Some(format!(
                    "{shown}: {error}; until it can be read nobody signs in by a name"
                )),
                Ok(_) if !path.exists() => Some(format!(
                    "there is no {shown} yet: until `tollgate operator create NAME --role ROLE --file {shown}` has made \
                     it, nobody signs in by a name"
                )),
                Ok(_) => None,
            }
        });
        if let Some(problem) = problem {
            self.warnings.add("admin.operators_file", problem);
        }
        let oidc = match raw.oidc {
            None => Some(None),
            Some(raw) => self.oidc(raw).map(Some),
        };
        Some(AdminConfig {
            listen: listen?,
            key,
            operators_file,
            oidc: oidc?,
            connections_max: connections_max?,
        })
    }
}

#[cfg(test)]
mod tests {
    use crate::config::testing::assert_mistakes;

    #[test]
    fn mistakes_of_addresses_and_names_are_named() {
        assert_mistakes(&[
            ("[admin]", "listen = \"8080\"\n[admin]", "listen", "address"),
            ("[admin]", "service = \"Chat\"\n[admin]", "service", "a-z"),
            (
                "[admin]",
                "service = \"messages\"\n[admin]",
                "service",
                "taken",
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
