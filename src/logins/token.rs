//! A login that sends its token in a header.

use std::fmt;

use http::{HeaderMap, StatusCode};
use secrecy::{ExposeSecret, SecretString};
use tollgate_layers::{
    error::BoxError,
    login::{Login, LoginFuture, Unsigned},
};

use super::{
    RenewedLogin, TokenHeader,
    renewed::{CredentialState, Renewed, Source},
    secret_header,
};

pub(super) struct TokenLogin<S: Source> {
    tokens: Renewed<S>,
    header: TokenHeader,
}

impl<S: Source<Credential = SecretString>> TokenLogin<S> {
    pub(super) fn new(vendor: &str, source: S, header: TokenHeader) -> Self {
        Self {
            tokens: Renewed::new(vendor, source),
            header,
        }
    }
}

impl<S: Source<Credential = SecretString>> Login for TokenLogin<S> {
    fn sign<'a>(&'a self, request: Unsigned<'a>) -> LoginFuture<'a, Result<(), BoxError>> {
        Box::pin(async move {
            let token = self.tokens.get().await?;
            let value = secret_header(&self.header.prefix, &token)?;
            request.headers.insert(self.header.name.clone(), value);
            Ok(())
        })
    }

    fn is_renewed_after(&self, sent: &HeaderMap, status: StatusCode, _: &HeaderMap) -> bool {
        let sent = sent.get(&self.header.name).map(|value| value.as_bytes());
        status == StatusCode::UNAUTHORIZED
            && self.tokens.refuse(|token| {
                let token = token.expose_secret().as_bytes();
                sent.and_then(|sent| sent.strip_prefix(self.header.prefix.as_bytes()))
                    == Some(token)
            })
    }
}

impl<S: Source<Credential = SecretString>> RenewedLogin for TokenLogin<S> {
    fn state(&self) -> Option<CredentialState> {
        Some(self.tokens.state())
    }
}

impl<S: Source> fmt::Debug for TokenLogin<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TokenLogin").finish_non_exhaustive()
    }
}
