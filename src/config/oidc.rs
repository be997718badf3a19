//! Checks the section `[admin.oidc]`.

use http::{Uri, uri::Scheme};
use secrecy::{ExposeSecret, SecretString};

use super::{
    check::{Check, web_address},
    raw::RawOidc,
};
use crate::operators::Role;

/// The path of the console to which the provider redirects browsers after sign-in.
pub(crate) const BACK: &str = "/console/oidc/back";

/// `[admin.oidc]`: sign-in to the console by an OpenID provider.
#[derive(Clone, Debug)]
pub struct OidcConfig {
    /// The issuer, exactly as the provider states it.
    pub issuer: String,
    /// The client id of the console.
    pub client_id: String,
    /// Client secret of the console; `None`: a public client, with PKCE only.
    pub client_secret: Option<SecretString>,
    /// The full URL of the console to which the provider redirects browsers after sign-in.
    pub redirect_url: String,
    /// The scopes that are requested in addition to `openid`.
    pub scopes: Vec<String>,
    /// The claim that has the person's name.
    pub name_claim: String,
    /// The claim that has the person's groups.
    pub role_claim: String,
    /// Groups of each role, the most powerful role first.
    pub roles: Vec<(Role, Vec<String>)>,
}

impl OidcConfig {
    /// Returns the most powerful role that one of these groups has.
    pub(crate) fn role_of(&self, groups: &[&str]) -> Option<Role> {
        let found = self
            .roles
            .iter()
            .find(|(_, named)| named.iter().any(|group| groups.contains(&group.as_str())));
        found.map(|(role, _)| *role)
    }

    /// Returns whether both configurations are equal, including the secret.
    pub(super) fn is(&self, other: &Self) -> bool {
        let parts = |it: &Self| {
            let secret = it.client_secret.as_ref();
            let secret = secret.map(|secret| secret.expose_secret().to_owned());
            let names = [&it.issuer, &it.client_id, &it.redirect_url]
                .map(String::clone)
                .to_vec();
            let claims = [it.name_claim.clone(), it.role_claim.clone()];
            (names, claims, secret, it.scopes.clone(), it.roles.clone())
        };
        parts(self) == parts(other)
    }
}

impl Check<'_> {
    pub(super) fn oidc(&mut self, raw: RawOidc) -> Option<OidcConfig> {
        let advice = "give the provider's issuer URL, as in its discovery document";
        let issuer = self.required(raw.issuer, "admin.oidc.issuer", advice);
        let issuer = issuer.filter(|text| self.keep(safe(text), "admin.oidc.issuer").is_some());
        let advice = "give the console's client id at the provider";
        let client_id = self.required(raw.client_id, "admin.oidc.client_id", advice);
        let client_secret = match raw.client_secret {
            None => Some(None),
            given => self.secret(given, "admin.oidc.client_secret", "").map(Some),
        };
        let path = "admin.oidc.redirect_url";
        let advice = "give the console's address for browsers followed by /console/oidc/back, as registered at the provider";
        let redirect_url = self.required(raw.redirect_url, path, advice);
        let redirect_url = redirect_url.filter(|text| {
            let back = safe(text).and_then(|url| match url.path() {
                BACK if url.query().is_none() => Ok(()),
                _ => Err(format!("must end with {BACK}")),
            });
            self.keep(back, path).is_some()
        });
        let groups = [
            (Role::Admin, raw.roles.admin),
            (Role::Finance, raw.roles.finance),
            (Role::Support, raw.roles.support),
            (Role::Read, raw.roles.read),
        ];
        if groups.iter().all(|(_, groups)| groups.is_empty()) {
            let problem = "names no group, so that nobody could sign in; give the groups of a role, like admin = [\"tollgate-admins\"]";
            self.errors.add("admin.oidc.roles", problem);
            return None;
        }
        for scope in &raw.scopes {
            if scope.is_empty() || scope.contains(|c: char| c.is_whitespace() || c.is_control()) {
                let problem = format!("{scope:?} is not a scope: give one word each");
                self.errors.add("admin.oidc.scopes", problem);
                return None;
            }
        }
        Some(OidcConfig {
            issuer: issuer?,
            client_id: client_id?,
            client_secret: client_secret?,
            redirect_url: redirect_url?,
            scopes: raw.scopes,
            name_claim: raw.name_claim.unwrap_or_else(|| "email".into()),
            role_claim: raw.role_claim.unwrap_or_else(|| "groups".into()),
            roles: groups.into(),
        })
    }
}

/// Parses a URL whose requests cannot be intercepted: https, or a loopback address.
pub(crate) fn safe(text: &str) -> Result<Uri, String> {
    let url = web_address(text).map_err(|problem| problem.to_string())?;
    let host = url.host().unwrap_or_default();
    let own = matches!(host, "localhost" | "127.0.0.1" | "[::1]");
    if url.scheme() == Some(&Scheme::HTTPS) || own {
        Ok(url)
    } else {
        Err("must begin with https://; http is allowed only for this machine".into())
    }
}

#[cfg(test)]
mod tests {
    use crate::config::testing::assert_mistakes;

    const GOOD: &str = "[admin.oidc]\nissuer = \"https://login.example\"\nclient_id = \"tollgate\"\n\
        redirect_url = \"https://console.example/console/oidc/back\"\n[admin.oidc.roles]\nadmin = [\"a\"]\n";

    #[test]
    fn openid_error_names_the_setting() {
        let with = |from: &str, to: &str| format!("{}[admin]", GOOD.replacen(from, to, 1));
        let cases = [
            (
                "https://login",
                "http://login",
                "admin.oidc.issuer",
                "https",
            ),
            (
                "https://login.example",
                "login",
                "admin.oidc.issuer",
                "http",
            ),
            (
                "client_id = \"tollgate\"\n",
                "",
                "admin.oidc.client_id",
                "client id",
            ),
            (
                "oidc/back",
                "oidc",
                "admin.oidc.redirect_url",
                "/console/oidc/back",
            ),
            (
                "https://console",
                "http://console",
                "admin.oidc.redirect_url",
                "https",
            ),
            ("[\"a\"]", "[]", "admin.oidc.roles", "no group"),
            (
                "issuer",
                "scopes = [\"a b\"]\nissuer",
                "admin.oidc.scopes",
                "one word",
            ),
            (
                "issuer",
                "client_secret = \"plain\"\nissuer",
                "admin.oidc.client_secret",
                "secret",
            ),
        ];
        for (from, to, path, says) in cases {
            assert_mistakes(&[("[admin]", &with(from, to), path, says)]);
        }
    }
}
