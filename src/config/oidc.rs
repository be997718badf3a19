//! Checks the section `[admin.oidc]`.

use http::{Uri, uri::Scheme};

use super::{
    ProviderSecret,
    check::{Check, web_address},
    raw::RawOidc,
};
use crate::operators::Role;

/// The console's path to which the OpenID provider redirects browsers after the sign-in.
pub(crate) const BACK: &str = "/console/oidc/back";

/// The section `[admin.oidc]`: sign-in to the console through an OpenID provider.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OidcConfig {
    /// Issuer URL of the provider, exactly as the provider states it.
    pub issuer: String,
    /// Client id under which the console is registered at the provider.
    pub client_id: String,
    /// Client secret of the console. `None`: the console is a public client, which uses PKCE only.
    pub client_secret: Option<ProviderSecret>,
    /// Full URL to which the provider redirects browsers after the sign-in.
    pub redirect_url: String,
    /// Scopes that the console requests in addition to `openid`.
    pub scopes: Vec<String>,
    /// OpenID claim that contains the operator's name.
    pub name_claim: String,
    /// OpenID claim that contains the operator's groups.
    pub role_claim: String,
    /// The provider's groups that give each role, with the most powerful role first.
    pub roles: Vec<(Role, Vec<String>)>,
}

impl OidcConfig {
    /// Returns the most powerful role that one of these groups gives.
    pub(crate) fn role_of(&self, groups: &[&str]) -> Option<Role> {
        let found = self
            .roles
            .iter()
            .find(|(_, named)| named.iter().any(|group| groups.contains(&group.as_str())));
        found.map(|(role, _)| *role)
    }
}

impl Check<'_> {
    pub(super) fn oidc(&mut self, raw: RawOidc) -> Option<OidcConfig> {
        let advice = "give the issuer URL exactly as the provider's discovery document states it";
        let issuer = self.required(raw.issuer, "admin.oidc.issuer", advice);
        let issuer = issuer.filter(|text| self.keep(safe(text), "admin.oidc.issuer").is_some());
        let advice = "give the client id under which the console is registered at the provider";
        let client_id = self.required(raw.client_id, "admin.oidc.client_id", advice);
        let client_secret = raw.client_secret.and_then(|text| {
            let secret = self.secret(Some(text), "admin.oidc.client_secret", "");
            secret.map(ProviderSecret)
        });
        let path = "admin.oidc.redirect_url";
        let advice =
            "give the console's URL followed by /console/oidc/back, as registered at the provider";
        let redirect_url = self.required(raw.redirect_url, path, advice);
        let redirect_url = redirect_url.filter(|text| {
            let back = safe(text).and_then(|url| match url.path() {
                BACK if url.query().is_none() => Ok(()),
                _ => Err(format!("must end in {BACK}")),
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
            let problem = "contains no group, so nobody could sign in: give the groups of at least one role, like \
                 admin = [\"tollgate-admins\"]";
            return self.refuse("admin.oidc.roles", problem);
        }
        for scope in &raw.scopes {
            if scope.is_empty() || scope.contains(|c: char| c.is_whitespace() || c.is_control()) {
                let problem = format!(
                    "{scope:?} is not a valid scope: write each scope as a separate word in the list"
                );
                return self.refuse("admin.oidc.scopes", problem);
            }
        }
        Some(OidcConfig {
            issuer: issuer?,
            client_id: client_id?,
            client_secret,
            redirect_url: redirect_url?,
            scopes: raw.scopes,
            name_claim: raw.name_claim.unwrap_or_else(|| "email".into()),
            role_claim: raw.role_claim.unwrap_or_else(|| "groups".into()),
            roles: groups.into(),
        })
    }
}

/// Parses a URL. Requests to it must be safe from interception: it must begin with https, or have a loopback address.
pub(crate) fn safe(text: &str) -> Result<Uri, String> {
    let url = web_address(text)?;
    let host = url.host().unwrap_or_default();
    let own = matches!(host, "localhost" | "127.0.0.1" | "[::1]");
    if url.scheme() == Some(&Scheme::HTTPS) || own {
        Ok(url)
    } else {
        Err("must begin with https://; http:// is valid only for an address of this machine".into())
    }
}

#[cfg(test)]
mod tests {
    use crate::config::testing::{assert_mistake, rows};

    const GOOD: &str = "[admin.oidc]\nissuer = \"https://login.example\"\nclient_id = \"tollgate\"\n\
        redirect_url = \"https://console.example/console/oidc/back\"\n[admin.oidc.roles]\nadmin = [\"a\"]\n";

    #[test]
    fn error_about_an_invalid_openid_setting_names_the_setting() {
        let with = |from: &str, to: &str| format!("{}[admin]", GOOD.replacen(from, to, 1));
        for [from, to, path, says] in rows(
            r#"
            https://login | http://login | admin.oidc.issuer | https
            https://login.example | login | admin.oidc.issuer | http
            client_id = "tollgate"\n |  | admin.oidc.client_id | client id
            oidc/back | oidc | admin.oidc.redirect_url | /console/oidc/back
            https://console | http://console | admin.oidc.redirect_url | https
            ["a"] | [] | admin.oidc.roles | no group
            issuer | scopes = ["a b"]\nissuer | admin.oidc.scopes | separate word
            issuer | client_secret = "plain"\nissuer | admin.oidc.client_secret | secret
        "#,
        ) {
            assert_mistake("[admin]", &with(from, to), path, says);
        }
    }
}
