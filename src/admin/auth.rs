//! Lets only whoever shows the admin key through to what needs it.

use std::{
    fmt,
    future::{Ready, ready},
    task::{Context, Poll},
};

use futures_util::future::Either;
use http::{HeaderMap, Request, header};
use secrecy::{ExposeSecret, SecretString};
use sha2::{Digest, Sha256};
use subtle::ConstantTimeEq;
use tollgate_layers::Error;
use tower::{Layer, Service};

use super::{refusal::Refusal, routes::needs_key};

/// Refuses calls without the admin key, and takes it off those that have it. A refusal leaves a line for the audit.
#[derive(Clone)]
pub struct AdminAuthLayer {
    /// SHA-256 of the admin key: digests are of one length, so comparing them tells nothing.
    key_digest: [u8; 32],
}

impl AdminAuthLayer {
    /// Lets the holder of `key` through.
    #[must_use]
    pub fn new(key: &SecretString) -> Self {
        Self {
            key_digest: digest(key.expose_secret().as_bytes()),
        }
    }
}

impl fmt::Debug for AdminAuthLayer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("AdminAuthLayer").finish_non_exhaustive()
    }
}

impl<S> Layer<S> for AdminAuthLayer {
    type Service = AdminAuth<S>;

    fn layer(&self, inner: S) -> Self::Service {
        AdminAuth {
            inner,
            layer: self.clone(),
        }
    }
}

/// The service of [`AdminAuthLayer`].
#[derive(Clone, Debug)]
pub struct AdminAuth<S> {
    inner: S,
    layer: AdminAuthLayer,
}

impl<S, B> Service<Request<B>> for AdminAuth<S>
where
    S: Service<Request<B>, Error = Error>,
{
    type Response = S::Response;
    type Error = Error;
    type Future = Either<S::Future, Ready<Result<S::Response, Error>>>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), Error>> {
        self.inner.poll_ready(cx)
    }

    fn call(&mut self, mut req: Request<B>) -> Self::Future {
        if needs_key(&req) && !shows_key(req.headers(), &self.layer.key_digest) {
            tracing::warn!(
                target: "audit", what = "admin.refused", method = %req.method(), path = req.uri().path()
            );
            return Either::Right(ready(Err(Refusal::KeyRefused.into())));
        }
        req.headers_mut().remove(header::AUTHORIZATION);
        Either::Left(self.inner.call(req))
    }
}

fn digest(bytes: &[u8]) -> [u8; 32] {
    Sha256::digest(bytes).into()
}

/// Whether the one `authorization` header is the bearer form of the key with this digest.
fn shows_key(headers: &HeaderMap, key_digest: &[u8; 32]) -> bool {
    let mut values = headers.get_all(header::AUTHORIZATION).iter();
    let (Some(value), None) = (values.next(), values.next()) else {
        return false;
    };
    let Some((scheme, key)) = value.as_bytes().split_at_checked("Bearer ".len()) else {
        return false;
    };
    scheme.eq_ignore_ascii_case(b"Bearer ")
        && bool::from(digest(key).as_slice().ct_eq(key_digest.as_slice()))
}

#[cfg(test)]
mod tests {
    use http::HeaderValue;

    use super::*;

    #[test]
    fn only_the_admin_key_is_let_in() {
        let key_digest = digest(b"correct horse");
        let cases: [(&[&'static str], bool); 10] = [
            (&["Bearer correct horse"], true),
            (&["bearer correct horse"], true),
            (&[], false),
            (&["Bearer "], false),
            (&["Bearer"], false),
            (&["Bearer correct hors"], false),
            (&["Bearer correct horse "], false),
            (&["Basic correct horse"], false),
            (&["correct horse"], false),
            (&["Bearer correct horse", "Bearer correct horse"], false),
        ];
        for (values, let_in) in cases {
            let mut headers = HeaderMap::new();
            for value in values {
                headers.append(header::AUTHORIZATION, HeaderValue::from_static(value));
            }
            assert_eq!(shows_key(&headers, &key_digest), let_in, "{values:?}");
        }
    }
}
