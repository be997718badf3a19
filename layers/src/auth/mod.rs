//! Finds out who calls: `Authorization: Bearer <key>` or `x-api-key` (docs/decisions.md, "Names").
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
//! Keys come from a [`KeyStore`]: a ledger is one, a [`KeyList`] is one, yours is one function. Keys that
//! are shown elsewhere or look otherwise are found by a [`TakeKey`], most shortly a closure:
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
//! # let record = SecretKey::generate().record("k".parse()?, "acme".parse()?);
//! # let keys = KeyList::from_iter([KeyRecord { digest: auth::digest(b"open sesame"), ..record }]);
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
    time::SystemTime,
};

use http::{HeaderMap, HeaderName, Request, header::AUTHORIZATION};
use tower::{Layer, Service};

pub use self::{
    list::KeyList,
    secret::{SecretKey, digest},
};
pub use crate::forward::ResponseFuture;
use crate::{
    error::{BoxError, Error},
    facts::{Caller, ClientAddr, IDEMPOTENCY_KEY},
    key::{KeyDigest, KeyRecord, KeyStatus, KeyStore},
};

const X_API_KEY: HeaderName = HeaderName::from_static("x-api-key");
/// With the space behind it.
const BEARER: &str = "bearer ";

/// Lets in whoever shows a key of the store, and inserts the [`Caller`]. The key itself is taken out
/// of the request: no layer below can pass it on.
///
/// A key that is bound to addresses needs a [`ClientAddr`] in the request's extensions.
#[derive(Clone)]
pub struct AuthLayer<K, T = KeyHeaders> {
    keys: K,
    take: T,
}

impl<K> AuthLayer<K> {
    /// Keys are looked up in `keys`, and shown in [`KeyHeaders`].
    pub const fn new(keys: K) -> Self {
        Self {
            keys,
            take: KeyHeaders,
        }
    }
}

impl<K, T> AuthLayer<K, T> {
    /// Keys are shown where `take` finds them.
    pub fn taking<U: TakeKey>(self, take: U) -> AuthLayer<K, U> {
        AuthLayer {
            keys: self.keys,
            take,
        }
    }
}

impl<K: fmt::Debug, T> fmt::Debug for AuthLayer<K, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("AuthLayer")
            .field("keys", &self.keys)
            .finish_non_exhaustive()
    }
}

/// Where a request shows its key. A closure over the headers is one.
pub trait TakeKey: Clone + Send + Sync + 'static {
    /// Takes the key out of the headers and says its digest: [`digest`] computes it.
    ///
    /// # Errors
    /// [`Error::KeyMissing`], [`Error::KeyMalformed`] or [`Error::KeyConflict`].
    fn take_key(&self, headers: &mut HeaderMap) -> Result<KeyDigest, Error>;

    /// The same, where `is_known` says whether a digest is that of a key at hand: such a key needs no other proof of
    /// its form, if that takes long to look at.
    ///
    /// # Errors
    /// Those of [`TakeKey::take_key`].
    fn take_key_unless_known(
        &self,
        headers: &mut HeaderMap,
        _: impl FnOnce(&KeyDigest) -> bool,
    ) -> Result<KeyDigest, Error> {
        self.take_key(headers)
    }

    /// The key itself, before it is taken: what answers are sealed with that are kept for the caller is derived from it.
    /// `None`, which is always right: none are kept.
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

/// A key in `Authorization: Bearer <key>` or in `x-api-key`, or the same one in both.
///
/// What begins with `tg-` is a [`SecretKey`] and must carry its checksum. Anything else of 8 to 512
/// visible ASCII characters may be a key that somebody else issued, known by its [`digest`].
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
        Auth {
            inner,
            layer: Arc::new(self.clone()),
        }
    }
}

/// The service of [`AuthLayer`].
#[derive(Clone)]
pub struct Auth<S, K, T = KeyHeaders> {
    inner: S,
    /// One for all clones, of which each call makes some.
    layer: Arc<AuthLayer<K, T>>,
}

impl<S: fmt::Debug, K: fmt::Debug, T> fmt::Debug for Auth<S, K, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Auth")
            .field("inner", &self.inner)
            .field("keys", &self.layer.keys)
            .finish_non_exhaustive()
    }
}

impl<S, K, T, B> Service<Request<B>> for Auth<S, K, T>
where
    S: Service<Request<B>, Error = Error> + Clone + Send + 'static,
    S::Future: Send,
    S::Response: 'static,
    K: KeyStore,
    T: TakeKey,
    B: Send + 'static,
{
    type Response = S::Response;
    type Error = Error;
    type Future = ResponseFuture<S::Future>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), Error>> {
        self.inner.poll_ready(cx)
    }

    fn call(&mut self, mut req: Request<B>) -> Self::Future {
        let AuthLayer { keys, take } = &*self.layer;
        // Seldom there; the key is gone from the headers by the time it is known whether it is allowed to.
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
                Ok(()) => ResponseFuture::forwarded(self.inner.call(req)),
                Err(error) => ResponseFuture::refused(error),
            };
        }
        let next = self.inner.clone();
        let mut inner = std::mem::replace(&mut self.inner, next);
        let layer = Arc::clone(&self.layer);
        ResponseFuture::boxed(async move {
            let found = layer.keys.find_key(&shown).await;
            let_in(&mut req, found, secret.as_deref())?;
            inner.call(req).await
        })
    }
}

/// Inserts the caller, if the key that was found is good.
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

/// The key that the headers show.
fn shown(headers: &HeaderMap) -> Result<&str, Error> {
    let bearer = match one(headers, &AUTHORIZATION)? {
        None => None,
        Some(value) => {
            // An empty variable leaves the scheme alone, without the blank behind it.
            if value.trim().eq_ignore_ascii_case(BEARER.trim()) {
                return Err(Error::KeyMissing);
            }
            // The scheme's name is case-insensitive (RFC 9110, section 11.1). Whoever writes another one, or none, is
            // told how the header has to look.
            match value.split_at_checked(BEARER.len()) {
                Some((scheme, key)) if scheme.eq_ignore_ascii_case(BEARER) => Some(key.trim()),
                _ => return Err(Error::KeyMissing),
            }
        }
    };
    let api_key = one(headers, &X_API_KEY)?.map(str::trim);
    match (bearer, api_key) {
        (None, None) => Err(Error::KeyMissing),
        (Some(bearer), Some(api_key)) if bearer != api_key => Err(Error::KeyConflict),
        (Some(key), _) | (None, Some(key)) => Ok(key),
    }
}

/// The header's only value, as text.
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
    // A key that is bound to addresses is not good for a client whose address nobody knows.
    let allowed = |address: IpAddr| {
        record
            .addresses
            .iter()
            .any(|net| net.contains(&address.to_canonical()))
    };
    if !record.addresses.is_empty() && !address.is_some_and(allowed) {
        return Err(Error::AddressNotAllowed { address });
    }
    Ok(())
}

fn unix_ms() -> u64 {
    let since = SystemTime::now()
        .duration_since(SystemTime::UNIX_EPOCH)
        .unwrap_or_default();
    u64::try_from(since.as_millis()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use tower::{ServiceExt, service_fn};

    use super::*;
    use crate::key::KeyId;

    /// Keys that can only be waited for.
    #[derive(Clone)]
    struct Elsewhere(KeyList);

    impl KeyStore for Elsewhere {
        async fn find_key(&self, digest: &KeyDigest) -> Result<Option<Arc<KeyRecord>>, BoxError> {
            self.0.find_key(digest).await
        }
    }

    /// Who is let in with `key`.
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
    async fn a_key_is_good_whether_it_is_at_hand_or_has_to_be_waited_for() {
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

    /// Looks for no key.
    #[derive(Clone)]
    struct NeverAsked;

    impl KeyStore for NeverAsked {
        async fn find_key(&self, _: &KeyDigest) -> Result<Option<Arc<KeyRecord>>, BoxError> {
            panic!("a key was looked for")
        }
    }

    #[tokio::test]
    async fn a_typo_is_seen_before_a_key_is_waited_for() {
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
    fn a_key_is_taken_from_either_header_and_out_of_the_request() {
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
    fn what_is_no_key_is_refused_by_what_is_wrong_with_it() {
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
        assert!(matches!(
            refusal(&[("authorization", &bearer), ("x-api-key", b.expose())]),
            Error::KeyConflict
        ));
    }
}
