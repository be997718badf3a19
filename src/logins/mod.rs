//! Logins at vendors that accept no fixed key: tokens that expire, and signed requests.
//!
//! A token is requested when the first call needs it, shared by all calls, and renewed before it ends and after a
//! refusal ([`renewed`]). No secret is in `Debug`, a log line or an error.

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

/// How a vendor's credential is obtained.
pub(crate) enum Form {
    /// A token from an OAuth token endpoint.
    OAuth(OAuth, TokenHeader),
    /// A token for the signed assertion of a service account.
    ServiceAccount(ServiceAccount, TokenHeader),
    /// A token that a command prints on its standard output.
    Command(CommandLine, TokenHeader),
    /// Each request is signed by AWS Signature Version 4.
    Aws(Aws),
}

/// The header that carries a token.
#[derive(Clone, Debug)]
pub(crate) struct TokenHeader {
    pub(crate) name: HeaderName,
    /// Text before the token, like `Bearer `.
    pub(crate) prefix: String,
}

/// A vendor's login. Logins with the same settings and secrets are equal.
pub(crate) struct VendorLogin {
    form: &'static str,
    identity: Identity,
    inner: Box<dyn RenewedLogin>,
}

/// A login whose credential may expire.
trait RenewedLogin: Login {
    /// Returns the state of the credential; `None` if it never expires.
    fn state(&self) -> Option<CredentialState>;
}

/// Digest of all settings and secrets, keyed with random bytes of this process, so that the digest reveals nothing
/// about them.
#[derive(Clone, PartialEq, Eq, Hash)]
struct Identity(String);

/// The logins in use. A reload that does not change a login keeps its token.
static IN_USE: LazyLock<Mutex<HashMap<Identity, Weak<VendorLogin>>>> =
    LazyLock::new(Mutex::default);

/// Returns the login of a vendor, and a value that identifies the login. Sends no request.
pub(crate) fn login(vendor: &str, form: Form, egress: &Egress) -> (Arc<VendorLogin>, HeaderValue) {
    let identity = Identity::new(vendor, &form, egress);
    let value = HeaderValue::from_str(&identity.0).expect("hexadecimal digits are plain ASCII");
    let mut in_use = IN_USE.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(login) = in_use.get(&identity).and_then(Weak::upgrade) {
        return (login, value);
    }
    in_use.retain(|_, login| login.strong_count() > 0);
    let (name, inner): (_, Box<dyn RenewedLogin>) = match form {
        Form::OAuth(oauth, header) => (
            "oauth",
            Box::new(TokenLogin::new(vendor, oauth.source(egress), header)),
        ),
        Form::ServiceAccount(account, header) => (
            "service_account",
            Box::new(TokenLogin::new(vendor, account.source(egress), header)),
        ),
        Form::Command(command, header) => (
            "command",
            Box::new(TokenLogin::new(vendor, command, header)),
        ),
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

/// Returns the state of the credential of the login with this identity; `None` if the login has no credential that
/// expires.
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
        let hex = digest.sign();
        Self(
            hex.as_ref()
                .iter()
                .map(|byte| format!("{byte:02x}"))
                .collect(),
        )
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

/// The reason why there is no credential. Contains no secret.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub(crate) struct LoginError(Arc<str>);

impl LoginError {
    fn new(text: impl Into<String>) -> Self {
        Self(text.into().into())
    }
}

/// Returns a header value with a secret.
fn secret_header(prefix: &str, secret: &SecretString) -> Result<HeaderValue, LoginError> {
    let header = TokenHeader {
        name: http::header::AUTHORIZATION,
        prefix: prefix.to_owned(),
    };
    let value = header.value(secret.expose_secret());
    value.map_err(|_| LoginError::new("the token is not plain ASCII on one line"))
}

impl TokenHeader {
    /// Returns the header's value for a key, marked sensitive.
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
