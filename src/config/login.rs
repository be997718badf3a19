//! Checks of `vendor.login`: how the gateway authenticates its calls to a vendor.

use std::{sync::Arc, time::Duration};

use http::{HeaderName, HeaderValue, Uri, header::AUTHORIZATION};
use secrecy::{ExposeSecret, SecretString};
use tollgate_layers::{
    login::Login,
    model::{Authentication, Egress},
};

use super::{
    check::{Check, web_address},
    raw::{RawLogin, RawVendor},
    secret::referred,
};
use crate::logins::{
    self, Aws, AwsCredentials, AwsKeys, BEDROCK, ClientCredentials, CommandLine, Form, METADATA,
    OAuth, ServiceAccount, TokenHeader,
};

pub(super) const NOT_PRINTABLE: &str =
    "must be plain ASCII on one line, because it is sent in a header";

/// How the gateway authenticates its requests to a vendor.
pub(super) enum VendorLogin {
    /// Each request carries one of these API keys. There is at least one key; each is paired with the path of its
    /// setting.
    Keys {
        keys: Vec<(String, SecretString)>,
        /// Header that carries the key, and the text before the key. `None`: the header of the vendor's format.
        header: Option<TokenHeader>,
    },
    /// Each request carries a token or a signature of this login. The header value identifies the login.
    Login(Arc<dyn Login>, HeaderValue),
    /// The requests carry no authentication.
    None,
}

impl VendorLogin {
    pub(super) fn authentication(&self) -> Authentication {
        match self {
            Self::Keys { header: None, .. } => Authentication::Key,
            Self::Keys {
                header: Some(header),
                ..
            } => Authentication::Header(header.name.clone()),
            Self::Login(login, _) => Authentication::Login(Arc::clone(login)),
            Self::None => Authentication::None,
        }
    }
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Kind {
    Key,
    None,
    Command,
    OAuth,
    ServiceAccount,
    Aws,
}

const KINDS: [(&str, Kind); 6] = [
    ("key", Kind::Key),
    ("none", Kind::None),
    ("command", Kind::Command),
    ("oauth", Kind::OAuth),
    ("service_account", Kind::ServiceAccount),
    ("aws", Kind::Aws),
];

impl Check<'_> {
    pub(super) fn vendor_login(
        &mut self,
        raw: &RawVendor,
        egress: &Egress,
        at: &dyn Fn(&str) -> String,
    ) -> Option<VendorLogin> {
        let Some(login) = &raw.login else {
            let keys = self.keys(raw, at)?;
            return Some(VendorLogin::Keys { keys, header: None });
        };
        let vendor_at = at;
        let at = |field: &str| vendor_at(&format!("login.{field}"));
        let kind = match login.kind.as_deref() {
            None => Some(Kind::Key),
            Some(text) => self.choice(text, &at("kind"), KINDS),
        };
        let header = self.login_header(login, &at);
        let refresh = login.refresh_seconds;
        let refresh = self.seconds(refresh, &at("refresh_seconds"), 1800, 1);
        let (kind, header) = (kind?, header?);
        if kind != Kind::Key && (raw.key.is_some() || raw.keys.is_some()) {
            let problem = "has no effect with this login.kind: remove it";
            self.warnings.add(vendor_at("key"), problem);
        }
        let token_header = || header.clone().unwrap_or_default();
        let form = match kind {
            Kind::Key => {
                let keys = self.keys(raw, vendor_at)?;
                return Some(VendorLogin::Keys { keys, header });
            }
            Kind::None => return Some(VendorLogin::None),
            Kind::Command => Form::Command(self.command(login, refresh, &at)?, token_header()),
            Kind::OAuth => Form::OAuth(self.oauth(login, &at)?, token_header()),
            Kind::ServiceAccount => {
                Form::ServiceAccount(self.service_account(login, &at)?, token_header())
            }
            Kind::Aws => Form::Aws(self.aws(login, refresh, &at)?),
        };
        let name = raw.name.as_deref().unwrap_or_default();
        let (login, identity) = logins::login(name, form, egress);
        Some(VendorLogin::Login(login, identity))
    }

    /// Returns the header that carries the key or token. `Some(None)` is the header of the vendor's format.
    fn login_header(
        &mut self,
        raw: &RawLogin,
        at: &dyn Fn(&str) -> String,
    ) -> Option<Option<TokenHeader>> {
        let prefix = raw.prefix.clone();
        if let Some(prefix) = &prefix
            && HeaderValue::from_str(prefix).is_err()
        {
            return self.refuse(at("prefix"), "must be plain ASCII");
        }
        let name = match &raw.header {
            None if prefix.is_none() => return Some(None),
            None => AUTHORIZATION,
            Some(name) => self.header_name(name, &at("header"))?,
        };
        let prefix = prefix.unwrap_or_default();
        Some(Some(TokenHeader { name, prefix }))
    }

    pub(super) fn header_name(&mut self, name: &str, path: &str) -> Option<HeaderName> {
        let parsed = name.parse::<HeaderName>();
        self.keep(parsed.map_err(|_| "is not a valid header name"), path)
    }

    fn command(
        &mut self,
        raw: &RawLogin,
        refresh: Duration,
        at: &dyn Fn(&str) -> String,
    ) -> Option<CommandLine> {
        let words = raw.command.clone().unwrap_or_default();
        let mut words = words.into_iter();
        let program = self.required(
            words.next(),
            &at("command"),
            "give the program and its arguments, like [\"gcloud\", \"auth\", \"print-access-token\"]",
        )?;
        Some(CommandLine {
            program,
            arguments: words.collect(),
            refresh,
        })
    }

    fn oauth(&mut self, raw: &RawLogin, at: &dyn Fn(&str) -> String) -> Option<OAuth> {
        const BASIC: &str =
            "give the credentials for Basic authentication, or client_id and client_secret";
        if raw.url.is_none() {
            let advice = "give the URL of the token endpoint";
            self.errors.missing(&at("url"), advice);
        }
        let url = self.login_url(raw, at);
        let request_id_header = raw.request_id_header.as_ref();
        let request_id_header =
            request_id_header.and_then(|name| self.header_name(name, &at("request_id_header")));
        let credentials = match (&raw.basic, &raw.client_id) {
            (Some(_), Some(_)) => {
                let problem = "is set together with client_id: remove one of the two";
                self.refuse(at("basic"), problem)
            }
            (None, Some(id)) => {
                let advice = "give the client secret as \"${NAME}\" or \"file:/path\"";
                let secret = self.secret(raw.client_secret.clone(), &at("client_secret"), advice);
                let id = referred(id, self.env).unwrap_or_else(|| Ok(id.clone()));
                let id = self.keep(id, &at("client_id"));
                id.zip(secret)
                    .map(|(id, secret)| ClientCredentials::Body { id, secret })
            }
            (basic, None) => {
                let basic = self.secret(basic.clone(), &at("basic"), BASIC);
                let basic = basic.and_then(|basic| self.printable(basic, &at("basic")));
                basic.map(ClientCredentials::Basic)
            }
        };
        let grant_type = raw.grant_type.as_deref().unwrap_or("client_credentials");
        Some(OAuth {
            url: url?,
            credentials: credentials?,
            scope: raw.scope.clone(),
            grant_type: Some(grant_type.to_owned()).filter(|text| !text.is_empty()),
            request_id_header,
        })
    }

    fn service_account(
        &mut self,
        raw: &RawLogin,
        at: &dyn Fn(&str) -> String,
    ) -> Option<ServiceAccount> {
        let advice = "give the key file that the vendor issued, as \"file:/path\"";
        let url = self.login_url(raw, at);
        let file = self.secret(raw.key_file.clone(), &at("key_file"), advice)?;
        let account = ServiceAccount::new(file, raw.scope.clone(), url);
        self.keep(account, &at("key_file"))
    }

    fn aws(
        &mut self,
        raw: &RawLogin,
        refresh: Duration,
        at: &dyn Fn(&str) -> String,
    ) -> Option<Aws> {
        let region = self.required(raw.region.clone(), &at("region"), "like \"us-east-1\"");
        let url = self.login_url(raw, at);
        let credentials = if let Some(id) = &raw.access_key_id {
            let advice = "give the secret access key as \"${NAME}\" or \"file:/path\"";
            let id = referred(id, self.env).unwrap_or_else(|| Ok(id.clone()));
            let id = self.keep(id, &at("access_key_id"));
            let secret = self.secret(
                raw.secret_access_key.clone(),
                &at("secret_access_key"),
                advice,
            );
            let (token, path) = (raw.session_token.clone(), at("session_token"));
            let token = token.and_then(|text| self.secret(Some(text), &path, advice));
            let token = token.and_then(|token| self.printable(token, &path));
            AwsCredentials::Fixed(AwsKeys {
                access_key_id: id?,
                secret_access_key: secret?,
                session_token: token,
            })
        } else if raw.command.is_some() {
            AwsCredentials::Command(self.command(raw, refresh, at)?)
        } else {
            let metadata = Uri::from_static(METADATA);
            AwsCredentials::Instance(url.unwrap_or(metadata))
        };
        Some(Aws {
            region: region?,
            service: raw.service.clone().unwrap_or_else(|| BEDROCK.to_owned()),
            credentials,
        })
    }

    fn login_url(&mut self, raw: &RawLogin, at: &dyn Fn(&str) -> String) -> Option<Uri> {
        let url = web_address(raw.url.as_ref()?);
        self.keep(url, &at("url"))
    }

    /// Checks a secret that the gateway sends in a header: it must be plain ASCII on one line.
    fn printable(&mut self, secret: SecretString, path: &str) -> Option<SecretString> {
        let text = secret.expose_secret();
        if text.is_ascii() && HeaderValue::from_str(text).is_ok() {
            return Some(secret);
        }
        self.refuse(path, NOT_PRINTABLE)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::testing::{assert_mistake, changed, parse, rows};

    const KEY: &str = "key = \"${VENDOR_KEY}\"";

    fn authentication(login: &str) -> Authentication {
        let text = changed(KEY, login);
        let config = parse(&text).unwrap_or_else(|errors| panic!("{login}: {errors}"));
        let vendor = &config.live.models[0].routes[0].vendor;
        assert_eq!(vendor.credentials.len(), 1);
        assert!(vendor.credentials[0].is_sensitive());
        vendor.authentication.clone()
    }

    #[test]
    fn each_kind_of_login_is_read() {
        let key = |login: &str| authentication(&format!("{KEY}\n{login}"));
        assert!(matches!(key(""), Authentication::Key));
        assert!(matches!(key("login = {}"), Authentication::Key));
        assert!(matches!(
            key("login = { header = \"api-key\" }"),
            Authentication::Header(name) if name == "api-key"
        ));
        assert!(matches!(
            authentication("login = { kind = \"none\" }"),
            Authentication::None
        ));
        for login in [
            "kind = \"command\", command = [\"gcloud\", \"auth\", \"print-access-token\"]",
            "kind = \"oauth\", url = \"https://h/oauth\", basic = \"${VENDOR_KEY}\", scope = \"S\", request_id_header = \"RqUID\"",
            "kind = \"oauth\", url = \"https://h/token\", client_id = \"app\", client_secret = \"${VENDOR_KEY}\"",
            "kind = \"aws\", region = \"us-east-1\"",
            "kind = \"aws\", region = \"us-east-1\", command = [\"aws\", \"configure\", \"export-credentials\"]",
            "kind = \"aws\", region = \"us-east-1\", access_key_id = \"AKIA\", secret_access_key = \"${VENDOR_KEY}\"",
        ] {
            let read = authentication(&format!("login = {{ {login} }}"));
            assert!(
                matches!(read, Authentication::Login(_)),
                "{login}: {read:?}"
            );
            assert!(!format!("{read:?}").contains("sk-vendor-secret"));
        }
    }

    #[test]
    fn vendor_key_is_sent_with_the_configured_prefix() {
        for (login, value) in [
            ("login = { header = \"api-key\" }", "sk-vendor-secret"),
            (
                "login = { prefix = \"Api-Key \" }",
                "Api-Key sk-vendor-secret",
            ),
        ] {
            let config = parse(&changed(KEY, &format!("{KEY}\n{login}"))).unwrap();
            let vendor = &config.live.models[0].routes[0].vendor;
            assert_eq!(vendor.credentials, [value]);
            assert!(vendor.credentials[0].is_sensitive());
        }
    }

    #[test]
    fn error_about_an_invalid_vendor_login_names_the_setting() {
        for [login, field, word] in rows(
            r#"
            kind = "magic" | kind | "service_account"
            kind = "command" | command | missing
            kind = "command", command = [] | command | missing
            kind = "oauth", basic = "${VENDOR_KEY}" | url | missing
            kind = "oauth", url = "https://h" | basic | client_id
            kind = "oauth", url = "https://h", basic = "sk-vendor-secret" | basic | must not be in this file
            kind = "oauth", url = "https://h", client_id = "a" | client_secret | missing
            kind = "oauth", url = "https://h", client_id = "a", basic = "${VENDOR_KEY}" | basic | one of the two
            kind = "oauth", url = "nowhere", basic = "${VENDOR_KEY}" | url | https
            kind = "service_account" | key_file | missing
            kind = "service_account", key_file = "${VENDOR_KEY}" | key_file | client_email
            kind = "aws" | region | us-east-1
            kind = "aws", region = "r", access_key_id = "A" | secret_access_key | missing
            header = "a b" | header | header name
            refresh_seconds = 0 | refresh_seconds | 1 to 86400
        "#,
        ) {
            let text = format!("{KEY}\nlogin = {{ {login} }}");
            let path = format!("vendor[0].login.{field}");
            assert_mistake(KEY, &text, &path, word);
        }
    }

    #[test]
    fn vendor_key_that_no_login_uses_causes_a_warning() {
        let config = parse(&changed(
            KEY,
            &format!("{KEY}\nlogin = {{ kind = \"none\" }}"),
        ))
        .unwrap();
        assert!(config.warnings.iter().any(|it| it.path == "vendor[0].key"));
    }
}
