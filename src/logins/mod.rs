//! Logins at vendors that do not accept a fixed key. Such vendors require a token that expires, or a signature on each
//! request.
//!
//! A token is requested when the first call needs it. All calls share it. It is renewed before it expires, and after a
//! vendor has refused it (see [`renewed`]). `Debug` output, log lines and errors never contain a secret.

mod aws;
mod clock;
mod command;
mod endpoint;
mod oauth;
mod renewed;
mod service_account;
mod sigv4;
#[cfg(test)]
mod testing;
#[cfg(test)]
mod tests;
mod token;

use std::{
    collections::HashMap,
    fmt,
    sync::{Arc, LazyLock, Mutex, PoisonError, Weak},
};

use http::{HeaderMap, HeaderName, HeaderValue, StatusCode, header::InvalidHeaderValue};
use ring::hmac;
use secrecy::{ExposeSecret, SecretString};
use tollgate_layers::{
    error::BoxError,
    login::{Login, LoginFuture, Unsigned},
    model::Egress,
};

use self::{aws::AwsLogin, token::TokenLogin};
pub(crate) use self::{
    aws::{Aws, AwsCredentials, AwsKeys, BEDROCK, METADATA},
    command::CommandLine,
    oauth::{ClientCredentials, OAuth},
    renewed::CredentialState,
    service_account::ServiceAccount,
};
use crate::text::hex::hex;

/// How the gateway gets the credential for a vendor.
pub(crate) enum Form {
    /// A token from an OAuth token endpoint.
    OAuth(OAuth, TokenHeader),
    /// A token that a token endpoint issues for a signed assertion of a service account.
    ServiceAccount(ServiceAccount, TokenHeader),
    /// A token that a command prints on its standard output.
    Command(CommandLine, TokenHeader),
    /// No token: each request is signed with AWS Signature Version 4.
    Aws(Aws),
}

/// The header in which a token is sent.
#[derive(Clone, Debug)]
pub(crate) struct TokenHeader {
    pub(crate) name: HeaderName,
    /// The text before the token in the header's value, for example `Bearer `.
    pub(crate) prefix: String,
}

/// The login at a vendor. Two logins with the same settings and secrets are equal.
pub(crate) struct VendorLogin {
    form: &'static str,
    identity: Identity,
    inner: Box<dyn RenewedLogin>,
}

/// A login whose credential can expire.
trait RenewedLogin: Login {
    /// Returns the state of the login's credential; `None` if the credential never expires.
    fn state(&self) -> Option<CredentialState>;
}

/// A digest of a login's settings and secrets. It is keyed with random bytes of this process, so it reveals nothing
/// about the secrets.
#[derive(Clone, PartialEq, Eq, Hash)]
struct Identity(String);

/// The logins in use, by identity. If a reload of the configuration does not change a login, the login and its token
/// are kept.
static IN_USE: LazyLock<Mutex<HashMap<Identity, Weak<VendorLogin>>>> =
    LazyLock::new(Mutex::default);

/// Returns the login at a vendor, and a value that identifies the login. Sends no request.
pub(crate) fn login(vendor: &str, form: Form, egress: &Egress) -> (Arc<VendorLogin>, HeaderValue) {
    let identity = Identity::new(vendor, &form, egress);
    let value = HeaderValue::from_str(&identity.0).expect("hexadecimal digits are plain ASCII");
    let mut in_use = IN_USE.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(login) = in_use.get(&identity).and_then(Weak::upgrade) {
        return (login, value);
    }
    in_use.retain(|_, login| login.strong_count() > 0);
    let (name, inner): (_, Box<dyn RenewedLogin>) = match form {
        Form::OAuth(oauth, header) => {
            let login = TokenLogin::new(vendor, oauth.source(egress), header);
            ("oauth", Box::new(login))
        }
        Form::ServiceAccount(account, header) => {
            let login = TokenLogin::new(vendor, account.source(egress), header);
            ("service_account", Box::new(login))
        }
        Form::Command(command, header) => {
            let login = TokenLogin::new(vendor, command, header);
            ("command", Box::new(login))
        }
        Form::Aws(aws) => ("aws", Box::new(AwsLogin::new(vendor, aws))),
    };
    let login = Arc::new(VendorLogin {
        form: name,
        identity: identity.clone(),
        inner,
    });
    in_use.insert(identity, Arc::downgrade(&login));
    (login, value)
}

/// Returns the credential state of the login with this identity; `None` if this login has no credential that expires.
pub(crate) fn credential_state(identity: &HeaderValue) -> Option<CredentialState> {
    let identity = Identity(identity.to_str().ok()?.to_owned());
    let in_use = IN_USE.lock().unwrap_or_else(PoisonError::into_inner);
    let login = in_use.get(&identity).and_then(Weak::upgrade)?;
    login.inner.state()
}

impl Identity {
    fn new(vendor: &str, form: &Form, egress: &Egress) -> Self {
        static KEY: LazyLock<hmac::Key> = LazyLock::new(|| {
            let random = ring::rand::SystemRandom::new();
            hmac::Key::generate(hmac::HMAC_SHA256, &random).expect("the system has random numbers")
        });
        let mut digest = hmac::Context::with_key(&KEY);
        let mut add = |text: &str| {
            digest.update(&text.len().to_be_bytes());
            digest.update(text.as_bytes());
        };
        add(vendor);
        add(&format!("{egress:?}"));
        add(egress.proxy.as_ref().map_or("", |proxy| proxy.expose()));
        let header = match form {
            Form::OAuth(oauth, header) => {
                oauth.describe(&mut add);
                Some(header)
            }
            Form::ServiceAccount(account, header) => {
                account.describe(&mut add);
                Some(header)
            }
            Form::Command(command, header) => {
                command.describe(&mut add);
                Some(header)
            }
            Form::Aws(aws) => {
                aws.describe(&mut add);
                None
            }
        };
        add(&format!("{header:?}"));
        Self(hex(digest.sign().as_ref()))
    }
}

impl Login for VendorLogin {
    fn sign<'a>(&'a self, request: Unsigned<'a>) -> LoginFuture<'a, Result<(), BoxError>> {
        self.inner.sign(request)
    }

    fn is_renewed_after(&self, sent: &HeaderMap, status: StatusCode, answer: &HeaderMap) -> bool {
        self.inner.is_renewed_after(sent, status, answer)
    }
}

impl fmt::Debug for VendorLogin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Login")
            .field("form", &self.form)
            .field("identity", &self.identity.0)
            .finish()
    }
}

/// Why there is no credential for a vendor. Contains no secret.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub(crate) struct LoginError(Arc<str>);

impl LoginError {
    fn new(text: impl Into<String>) -> Self {
        Self(text.into().into())
    }
}

/// Returns a header value that consists of `prefix` and a secret, marked as sensitive.
fn secret_header(prefix: &str, secret: &SecretString) -> Result<HeaderValue, LoginError> {
    let header = TokenHeader {
        name: http::header::AUTHORIZATION,
        prefix: prefix.to_owned(),
    };
    let value = header.value(secret.expose_secret());
    value.map_err(|_| LoginError::new("the token is not plain ASCII on one line"))
}

impl TokenHeader {
    /// Returns the value of the token's header for this key, marked as sensitive.
    pub(crate) fn value(&self, key: &str) -> Result<HeaderValue, InvalidHeaderValue> {
        if !key.is_ascii() {
            return HeaderValue::from_bytes(b"\n");
        }
        let mut value = HeaderValue::from_str(&format!("{}{key}", self.prefix))?;
        value.set_sensitive(true);
        Ok(value)
    }
}

impl Default for TokenHeader {
    fn default() -> Self {
        Self {
            name: http::header::AUTHORIZATION,
            prefix: "Bearer ".to_owned(),
        }
    }
}
