//! Authenticates callers by `Authorization: Bearer <key>` or `x-api-key`.
//!
//! ```
//! use http::{Request, Response};
//! use http_body_util::BodyExt;
//! use tollgate_layers::{
//!     Error,
//!     auth::{AuthLayer, KeyList, SecretKey},
//!     body,
//!     facts::Caller,
//! };
//! use tower::{ServiceBuilder, ServiceExt};
//!
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let secret = SecretKey::generate();
//! let keys = KeyList::from_iter([secret.record("laptop".parse()?, "acme".parse()?)]);
//! let service = ServiceBuilder::new()
//!     .layer(AuthLayer::new(keys))
//!     .service_fn(|req: Request<()>| async move {
//!         let Caller(key) = req.extensions().get().expect("auth stands above");
//!         let text = format!("hello {}, on the key {}", key.account, key.id);
//!         Ok::<_, Error>(Response::new(body::full(text)))
//!     });
//!
//! let shown = format!("Bearer {}", secret.expose());
//! let req = Request::builder().header("authorization", shown).body(())?;
//! let answer = service.clone().oneshot(req).await?.into_body().collect().await?;
//! assert_eq!(answer.to_bytes(), "hello acme, on the key laptop");
//!
//! let refused = service.oneshot(Request::new(())).await;
//! assert!(matches!(refused, Err(Error::KeyMissing)));
//! # Ok(())
//! # }
//! ```
//!
//! The layer looks keys up in a [`KeyStore`]: a ledger, a [`KeyList`], or your own implementation of its one function.
//! For keys in other headers or of another form, pass a [`TakeKey`], usually a closure:
//!
//! ```
//! # use http::{HeaderMap, Request, Response};
//! # use tollgate_layers::{Error, auth::{self, AuthLayer, KeyList, SecretKey}, body};
//! # use tollgate_layers::key::{KeyDigest, KeyRecord};
//! # use tower::{ServiceBuilder, ServiceExt};
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let from_cookie = |headers: &mut HeaderMap| -> Result<KeyDigest, Error> {
//!     let cookie = headers.remove("cookie").ok_or(Error::KeyMissing)?;
//!     let secret = cookie.as_bytes().strip_prefix(b"session=").ok_or(Error::KeyMalformed)?;
//!     Ok(auth::digest(secret))
//! };
//! # let record = KeyRecord::new("k".parse()?, "acme".parse()?, auth::digest(b"open sesame"));
//! # let keys = KeyList::from_iter([record]);
//! let service = ServiceBuilder::new()
//!     .layer(AuthLayer::new(keys).taking(from_cookie))
//!     .service_fn(|_| async { Ok::<_, Error>(Response::new(body::full("an answer"))) });
//!
//! let req = Request::builder().header("cookie", "session=open sesame").body(())?;
//! assert!(service.oneshot(req).await.is_ok());
//! # Ok(())
//! # }
//! ```

mod external_keys;
mod list;
mod secret;

use std::{
    fmt,
    net::IpAddr,
    sync::Arc,
    task::{Context, Poll},
};

use http::{HeaderMap, HeaderName, Request, header::AUTHORIZATION};
use tower_layer::Layer;
use tower_service::Service;

pub use self::{
    list::KeyList,
    secret::{SecretKey, digest},
};
pub use crate::forward::{Below, ResponseFuture};
use crate::{
    error::{BoxError, Error},
    facts::{Caller, ClientAddr, IDEMPOTENCY_KEY},
    key::{KeyDigest, KeyRecord, KeyStatus, KeyStore},
    unix_time::unix_ms,
};

const X_API_KEY: HeaderName = HeaderName::from_static("x-api-key");
/// The name of the authorization scheme, with the space that follows it.
const BEARER: &str = "bearer ";

/// Admits requests with a key of the store, and inserts the [`Caller`]. It removes the key from the request, so that no
/// layer below can forward the key.
///
/// A key that is bound to addresses needs a [`ClientAddr`] in the request's extensions.
#[derive(Clone)]
pub struct AuthLayer<K, T = KeyHeaders> {
    keys: K,
    take: T,
}

impl<K> AuthLayer<K> {
    /// Creates a layer that looks up keys in `keys`. Requests must present them as [`KeyHeaders`] describes.
    pub const fn new(keys: K) -> Self {
        let take = KeyHeaders;
        Self { keys, take }
    }
}

impl<K, T> AuthLayer<K, T> {
    /// Replaces the rule by which the layer finds the key in a request's headers.
    pub fn taking<U: TakeKey>(self, take: U) -> AuthLayer<K, U> {
        let keys = self.keys;
        AuthLayer { keys, take }
    }
}

debug_fields!(impl[K: fmt::Debug, T] AuthLayer<K, T> { keys: keys });

/// Finds the caller's key in the headers of a request. A closure that takes the headers implements this trait.
pub trait TakeKey: Clone + Send + Sync + 'static {
    /// Removes the key from the headers, so that the key is not forwarded, and returns the key's [`digest`].
    ///
    /// # Errors
    /// [`Error::KeyMissing`] if the headers have no key, [`Error::KeyMalformed`] if the form of the key is invalid,
    /// [`Error::KeyConflict`] if the headers have two different keys.
    fn take_key(&self, headers: &mut HeaderMap) -> Result<KeyDigest, Error>;

    /// Like [`TakeKey::take_key`], but without checks of the key's form if `is_known` returns true for the key's
    /// digest. A known key is in the layer's cache and needs no checks, which may be slow.
    ///
    /// # Errors
    /// The errors of [`TakeKey::take_key`].
    fn take_key_unless_known(
        &self,
        headers: &mut HeaderMap,
        _: impl FnOnce(&KeyDigest) -> bool,
    ) -> Result<KeyDigest, Error> {
        self.take_key(headers)
    }

    /// Returns the secret that the caller presents, from which the layer derives the key that encrypts stored
    /// responses. The layer calls this before [`TakeKey::take_key`]. Returning `None` is always correct: then no
    /// responses are stored.
    fn secret<'a>(&self, _headers: &'a HeaderMap) -> Option<&'a [u8]> {
        None
    }
}

impl<F> TakeKey for F
where
    F: Fn(&mut HeaderMap) -> Result<KeyDigest, Error> + Clone + Send + Sync + 'static,
{
    fn take_key(&self, headers: &mut HeaderMap) -> Result<KeyDigest, Error> {
        self(headers)
    }
}

/// Takes a key from `Authorization: Bearer <key>`, from `x-api-key`, or the same key from both headers. If one header
/// has a [`SecretKey`], the other header may have any credential of another form. Both headers are removed from the
/// request.
///
/// A value that begins with `tg-` must be a [`SecretKey`] with a valid checksum. Any other value of 8 to 512 visible
/// ASCII characters may be a key of another service, which the store finds by its [`digest`].
#[derive(Clone, Copy, Debug, Default)]
pub struct KeyHeaders;

impl TakeKey for KeyHeaders {
    fn take_key(&self, headers: &mut HeaderMap) -> Result<KeyDigest, Error> {
        self.take_key_unless_known(headers, |_| false)
    }

    fn take_key_unless_known(
        &self,
        headers: &mut HeaderMap,
        is_known: impl FnOnce(&KeyDigest) -> bool,
    ) -> Result<KeyDigest, Error> {
        let digest = external_keys::digest_of(shown(headers)?, is_known)?;
        headers.remove(AUTHORIZATION);
        headers.remove(X_API_KEY);
        Ok(digest)
    }

    fn secret<'a>(&self, headers: &'a HeaderMap) -> Option<&'a [u8]> {
        shown(headers).ok().map(str::as_bytes)
    }
}

impl<S, K: Clone, T: Clone> Layer<S> for AuthLayer<K, T> {
    type Service = Auth<S, K, T>;

    fn layer(&self, inner: S) -> Self::Service {
        let layer = Arc::new(self.clone());
        Auth { inner, layer }
    }
}

/// The service of [`AuthLayer`].
#[derive(Clone)]
pub struct Auth<S, K, T = KeyHeaders> {
    inner: S,
    /// The layer. All clones of the service share it, because every call clones the service.
    layer: Arc<AuthLayer<K, T>>,
}

debug_fields!(impl[S: fmt::Debug, K: fmt::Debug, T] Auth<S, K, T> { inner: inner, keys: layer.keys });

impl<S, K, T, B> Service<Request<B>> for Auth<S, K, T>
where
    S: Service<Request<B>, Error: Into<BoxError> + 'static> + Clone + Send + 'static,
    S::Future: Send,
    S::Response: 'static,
    K: KeyStore,
    T: TakeKey,
    B: Send + 'static,
{
    type Response = S::Response;
    type Error = Error;
    type Future = ResponseFuture<Below<S::Future>>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), Error>> {
        self.inner.poll_ready(cx).map_err(Error::from_below)
    }

    fn call(&mut self, mut req: Request<B>) -> Self::Future {
        let AuthLayer { keys, take } = &*self.layer;
        // Few requests have an idempotency key. The secret is read before the caller's key is removed from the headers,
        // because only the later look-up shows whether the caller's key permits stored responses.
        let secret: Option<Box<[u8]>> = match req.headers().contains_key(IDEMPOTENCY_KEY) {
            true => take.secret(req.headers()).map(Box::from),
            false => None,
        };
        let mut found = None;
        let is_known = |shown: &KeyDigest| {
            found = keys.find_key_now(shown);
            matches!(found, Some(Ok(Some(_))))
        };
        let shown = match take.take_key_unless_known(req.headers_mut(), is_known) {
            Ok(shown) => shown,
            Err(error) => return ResponseFuture::refused(error),
        };
        if let Some(found) = found.or_else(|| keys.find_key_now(&shown)) {
            return match let_in(&mut req, found, secret.as_deref()) {
                Ok(()) => ResponseFuture::forwarded(Below::new(self.inner.call(req))),
                Err(error) => ResponseFuture::refused(error),
            };
        }
        let next = self.inner.clone();
        let mut inner = std::mem::replace(&mut self.inner, next);
        let layer = Arc::clone(&self.layer);
        ResponseFuture::boxed(async move {
            let found = layer.keys.find_key(&shown).await;
            let_in(&mut req, found, secret.as_deref())?;
            inner.call(req).await.map_err(Error::from_below)
        })
    }
}

/// Checks that the key may be used, and inserts the caller into the request.
fn let_in<B>(
    req: &mut Request<B>,
    found: Result<Option<Arc<KeyRecord>>, BoxError>,
    secret: Option<&[u8]>,
) -> Result<(), Error> {
    let found = found.map_err(Error::LedgerUnavailable)?;
    let record = found.ok_or(Error::KeyUnknown)?;
    let address = req.extensions().get::<ClientAddr>();
    check(&record, address.map(|address| address.0))?;
    if let Some(secret) = secret.filter(|_| record.idempotency) {
        req.extensions_mut().insert(secret::answer_key(secret));
    }
    req.extensions_mut().insert(Caller(record));
    Ok(())
}

/// Returns the key that the caller presents. If one header has a key of this gateway, the other header may have any
/// other credential, because a client that also has a vendor's key configured sends both.
fn shown(headers: &HeaderMap) -> Result<&str, Error> {
    let bearer = match one(headers, &AUTHORIZATION)? {
        Some(value) => bearer(value)?,
        None => None,
    };
    let api_key = one(headers, &X_API_KEY)?.map(str::trim);
    let is_ours = |key: &str| key.starts_with(secret::PREFIX);
    match (bearer, api_key) {
        (None, None) => Err(Error::KeyMissing),
        (Some(bearer), Some(api_key)) if bearer != api_key => {
            match (is_ours(bearer), is_ours(api_key)) {
                (true, false) => Ok(bearer),
                (false, true) => Ok(api_key),
                (true, true) | (false, false) => Err(Error::KeyConflict),
            }
        }
        (Some(key), _) | (None, Some(key)) => Ok(key),
    }
}

/// Returns the key in the `authorization` header. `None` if the key is empty, for example because the client's
/// environment variable is not set.
fn bearer(value: &str) -> Result<Option<&str>, Error> {
    if value.trim().eq_ignore_ascii_case(BEARER.trim()) {
        return Ok(None);
    }
    // The scheme is case-insensitive (RFC 9110, section 11.1). Another scheme, or a missing scheme, is refused like a
    // missing key, because the error text for a missing key explains the header.
    match value.split_at_checked(BEARER.len()) {
        Some((scheme, key)) if scheme.eq_ignore_ascii_case(BEARER) => Ok(Some(key.trim())),
        _ => Err(Error::KeyMissing),
    }
}

/// Returns the value of the header as text. Several different values of the header are an error.
fn one<'a>(headers: &'a HeaderMap, name: &HeaderName) -> Result<Option<&'a str>, Error> {
    let mut values = headers.get_all(name).iter();
    let Some(first) = values.next() else {
        return Ok(None);
    };
    if values.any(|other| other != first) {
        return Err(Error::KeyConflict);
    }
    first.to_str().map(Some).map_err(|_| Error::KeyMalformed)
}

fn check(record: &KeyRecord, address: Option<IpAddr>) -> Result<(), Error> {
    if record.status != KeyStatus::Active {
        return Err(Error::KeyDisabled);
    }
    if record.expires_at_ms.is_some_and(|at| at <= unix_ms()) {
        return Err(Error::KeyExpired);
    }
    // A key that is bound to addresses is refused if the client's address is unknown.
    let mut nets = record.addresses.iter();
    let allowed = |address: IpAddr| nets.any(|net| net.contains(&address.to_canonical()));
    if !record.addresses.is_empty() && !address.is_some_and(allowed) {
        return Err(Error::AddressNotAllowed { address });
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use tower::{ServiceExt, service_fn};

    use super::*;
    use crate::key::KeyId;

    /// A key store for tests whose look-ups are always pending at first.
    #[derive(Clone)]
    struct Elsewhere(KeyList);

    impl KeyStore for Elsewhere {
        async fn find_key(&self, digest: &KeyDigest) -> Result<Option<Arc<KeyRecord>>, BoxError> {
            self.0.find_key(digest).await
        }
    }

    /// Authenticates a request with `key` and returns the key's id.
    async fn caller<K: KeyStore + Clone>(keys: K, key: &SecretKey) -> Result<KeyId, Error> {
        let service = AuthLayer::new(keys).layer(service_fn(|req: Request<()>| async move {
            assert!(req.headers().is_empty());
            let Caller(key) = req.extensions().get().unwrap();
            Ok::<_, Error>(key.id.clone())
        }));
        let shown = format!("Bearer {}", key.expose());
        let req = Request::builder().header(AUTHORIZATION, shown);
        service.oneshot(req.body(()).unwrap()).await
    }

    #[tokio::test]
    async fn known_key_is_accepted_whether_its_lookup_is_immediate_or_pending() {
        let (known, unknown) = (SecretKey::generate(), SecretKey::generate());
        let id: KeyId = "k".parse().unwrap();
        let record = known.record(id.clone(), "acme".parse().unwrap());
        let here = KeyList::from_iter([record]);
        let elsewhere = Elsewhere(here.clone());
        assert_eq!(caller(here.clone(), &known).await.unwrap(), id);
        assert_eq!(caller(elsewhere.clone(), &known).await.unwrap(), id);
        for refused in [
            caller(here, &unknown).await,
            caller(elsewhere, &unknown).await,
        ] {
            assert!(matches!(refused, Err(Error::KeyUnknown)), "{refused:?}");
        }
    }

    /// A key store that fails the test if it is called, for requests that must be refused without a look-up.
    #[derive(Clone)]
    struct NeverAsked;

    impl KeyStore for NeverAsked {
        async fn find_key(&self, _: &KeyDigest) -> Result<Option<Arc<KeyRecord>>, BoxError> {
            panic!("a key was looked up")
        }
    }

    #[tokio::test]
    async fn mistyped_key_is_refused_without_a_lookup() {
        let mut typo = SecretKey::generate().expose().to_owned();
        let last = typo.pop();
        typo.push(if last == Some('x') { 'y' } else { 'x' });
        let service = AuthLayer::new(NeverAsked)
            .layer(service_fn(|_: Request<()>| async { Ok::<_, Error>(()) }));
        let req = Request::builder().header(X_API_KEY, typo);
        let refused = service.oneshot(req.body(()).unwrap()).await;
        assert!(matches!(refused, Err(Error::KeyMalformed)), "{refused:?}");
    }

    fn headers(lines: &[(&'static str, &str)]) -> HeaderMap {
        lines
            .iter()
            .map(|(name, value)| (HeaderName::from_static(name), value.parse().unwrap()))
            .collect()
    }

    #[test]
    fn key_is_read_from_authorization_or_x_api_key_and_removed_from_the_request() {
        let key = SecretKey::generate();
        let (bearer, lower) = (
            format!("Bearer {}", key.expose()),
            format!("bearer  {}", key.expose()),
        );
        for lines in [
            vec![("authorization", bearer.as_str())],
            vec![("authorization", lower.as_str())],
            vec![("x-api-key", key.expose())],
            vec![
                ("authorization", bearer.as_str()),
                ("x-api-key", key.expose()),
            ],
        ] {
            let mut headers = headers(&lines);
            assert_eq!(
                KeyHeaders.take_key(&mut headers).unwrap(),
                key.digest(),
                "{lines:?}"
            );
            assert!(headers.is_empty());
        }
    }

    #[test]
    fn callers_key_is_accepted_even_if_the_request_has_another_credential() {
        let key = SecretKey::generate();
        let bearer = format!("Bearer {}", key.expose());
        for other in ["sk-ant-api03-stale", ""] {
            let lines = [("authorization", bearer.as_str()), ("x-api-key", other)];
            let mut headers = headers(&lines);
            let taken = KeyHeaders.take_key(&mut headers).unwrap();
            assert_eq!(taken, key.digest(), "{other}");
            assert!(headers.is_empty());
        }
        for other in ["Bearer sk-ant-api03-stale", "Bearer"] {
            let mut headers = headers(&[("authorization", other), ("x-api-key", key.expose())]);
            let taken = KeyHeaders.take_key(&mut headers).unwrap();
            assert_eq!(taken, key.digest(), "{other}");
            assert!(headers.is_empty());
        }
    }

    #[test]
    fn invalid_key_is_refused_with_its_reason() {
        let (a, b) = (SecretKey::generate(), SecretKey::generate());
        let bearer = format!("Bearer {}", a.expose());
        let refusal =
            |lines: &[(&'static str, &str)]| KeyHeaders.take_key(&mut headers(lines)).unwrap_err();
        assert!(matches!(refusal(&[]), Error::KeyMissing));
        for schemeless in [
            "Basic eDp5",
            "Bearer",
            "Baerer sk-123",
            "Token sk-123",
            a.expose(),
        ] {
            assert!(matches!(
                refusal(&[("authorization", schemeless)]),
                Error::KeyMissing
            ));
        }
        assert!(matches!(
            refusal(&[("authorization", "Bearer sk-123")]),
            Error::KeyMalformed
        ));
        let typo = format!("{}x", b.expose());
        for (authorization, api_key) in [
            (&*bearer, b.expose()),
            (&*bearer, &*typo),
            // Neither key has a checksum, so each may be a key of another service.
            ("Bearer sk-12345678", "sk-87654321"),
        ] {
            let refused = refusal(&[("authorization", authorization), ("x-api-key", api_key)]);
            assert!(matches!(refused, Error::KeyConflict), "{refused:?}");
        }
    }
}
