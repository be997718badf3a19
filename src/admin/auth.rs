//! Checks the admin key on the routes that require it.

use std::{
    fmt,
    future::{Ready, ready},
    net::{IpAddr, Ipv4Addr},
    sync::Arc,
    task::{Context, Poll},
};

use futures_util::future::Either;
use http::{HeaderMap, HeaderValue, Request, Uri, header};
use prometheus_client::metrics::counter::Counter;
use secrecy::ExposeSecret;
use sha2::{Digest, Sha256};
use subtle::ConstantTimeEq;
use tollgate_layers::{
    facts::ClientAddr,
    rate_limit::{Limiter, PostPaid, Quota},
};
use tower::{Layer, Service};

use super::{refusal::Refusal, routes::needs_key};
use crate::{
    config::AdminConfig,
    edge::server::Seat,
    observe::record::{RefusalLines, Source},
};

/// Wrong admin keys allowed per address: ten at once, then one every six seconds.
const GUESSES: Quota = Quota::per_minute(10).with_burst(9);
/// The maximum number of addresses whose wrong keys are counted.
const ADDRESSES_MAX: usize = 10_000;

/// Refuses requests without the admin key, and removes the key from admitted requests. Refusals are written to the
/// audit log, at most ten in ten seconds per address. An address with too many wrong keys gets 429 for every request,
/// except on connections that have sent the right key before.
#[derive(Clone)]
pub struct AdminAuthLayer {
    /// SHA-256 of the admin key. Digests have equal lengths, so a comparison reveals nothing about the key.
    key_digest: [u8; 32],
    /// Whether `/metrics`, too, requires the admin key.
    metrics_key: bool,
    /// Host names that the listener accepts in addition to its own addresses.
    hosts: Arc<[String]>,
    guesses: PostPaid<IpAddr>,
    limited: Counter,
    lines: RefusalLines,
}

impl AdminAuthLayer {
    /// Creates a layer that admits requests with the admin key. Each 429 is counted in `limited`.
    #[must_use]
    pub fn new(config: &AdminConfig, limited: Counter) -> Self {
        // The OpenID provider redirects browsers to this host after sign-in, so the listener must accept it.
        let redirect_url = config
            .oidc
            .as_ref()
            .map(|oidc| oidc.redirect_url.parse::<Uri>());
        let redirect_host = redirect_url
            .and_then(Result::ok)
            .and_then(|url| url.host().map(str::to_ascii_lowercase));
        Self {
            limited,
            key_digest: digest(config.key.expose_secret().as_bytes()),
            metrics_key: config.metrics_key,
            hosts: config.hosts.iter().cloned().chain(redirect_host).collect(),
            guesses: PostPaid::new(ADDRESSES_MAX),
            lines: RefusalLines::default(),
        }
    }

    fn check<B>(&self, req: &Request<B>) -> Result<(), Refusal> {
        let address = req.extensions().get().map(ClientAddr::block);
        let seat = req.extensions().get::<Arc<Seat>>();
        let is_known = seat.is_some_and(|seat| seat.has_signed_in());
        if let Some(address) = address.filter(|_| !is_known)
            && let Some(Err(wait)) = self.guesses.admit_now(&address, GUESSES)
        {
            self.limited.inc();
            self.log("admin.guessed", Some(address), req);
            let seconds = wait.as_secs() + 1;
            return Err(Refusal::TooManyGuesses { seconds });
        }
        if shows_key(req.headers(), &self.key_digest) {
            if let Some(seat) = seat {
                seat.sign_in();
            }
            return Ok(());
        }
        if let Some(address) = address
            && req.headers().contains_key(header::AUTHORIZATION)
        {
            self.guesses.take(&address, 1);
        }
        self.log("admin.refused", address, req);
        Err(Refusal::KeyRefused)
    }

    /// Admits a request if its route needs no admin key, or if the request has the key. Without the key, the host must
    /// be one that an attacker cannot register. This protects routes without a key from DNS rebinding: otherwise, a web
    /// page whose host name an attacker resolves to this address could read them. Probes reveal nothing, so they are
    /// served for any host.
    fn admit<B>(&self, req: &Request<B>) -> Result<(), Refusal> {
        let path = req.uri().path();
        if matches!(path, "/livez" | "/readyz") {
            return Ok(());
        }
        let host = req.headers().get(header::HOST).map(HeaderValue::as_bytes);
        let host = host.or_else(|| Some(req.uri().authority()?.as_str().as_bytes()));
        let is_ours = host.is_none_or(|host| is_ours(host, &self.hosts));
        let shows_key = req.headers().contains_key(header::AUTHORIZATION);
        if needs_key(req) || (path == "/metrics" && self.metrics_key) || (!is_ours && shows_key) {
            return self.check(req);
        }
        if is_ours {
            Ok(())
        } else {
            Err(Refusal::HostUnknown)
        }
    }

    fn log<B>(&self, what: &'static str, address: Option<IpAddr>, req: &Request<B>) {
        let source = Source {
            address,
            account: None,
            cause: what,
        };
        if self.lines.admit(source) {
            let address = address.map(tracing::field::display);
            tracing::warn!(target: "audit", what, address, method = %req.method(), path = req.uri().path());
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
    S: Service<Request<B>, Error = Refusal>,
{
    type Response = S::Response;
    type Error = Refusal;
    type Future = Either<S::Future, Ready<Result<S::Response, Refusal>>>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), Refusal>> {
        self.inner.poll_ready(cx)
    }

    fn call(&mut self, mut req: Request<B>) -> Self::Future {
        if let Err(refusal) = self.layer.admit(&req) {
            return Either::Right(ready(Err(refusal)));
        }
        req.headers_mut().remove(header::AUTHORIZATION);
        Either::Left(self.inner.call(req))
    }
}

/// Returns whether a host is an address, a name without a dot, a name of this machine, or one of `hosts`.
fn is_ours(host: &[u8], hosts: &[String]) -> bool {
    let host = String::from_utf8_lossy(host).to_ascii_lowercase();
    let is_port = |text: &str| text.bytes().all(|byte| byte.is_ascii_digit());
    let name = match host.rsplit_once(':') {
        Some((name, port)) if is_port(port) => name,
        _ => &host,
    };
    let name = name.strip_suffix('.').unwrap_or(name);
    name.starts_with('[')
        || name.parse::<Ipv4Addr>().is_ok()
        || !name.contains('.')
        || name.ends_with(".localhost")
        || hosts.iter().any(|known| known == name)
}

fn digest(bytes: &[u8]) -> [u8; 32] {
    Sha256::digest(bytes).into()
}

/// Returns whether the single `authorization` header has the bearer key with this digest.
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
    use super::*;

    #[test]
    fn only_the_admin_key_is_accepted() {
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

    fn layer(key: &str, metrics_key: bool, hosts: &[&str]) -> AdminAuthLayer {
        let config = AdminConfig {
            listen: ([127, 0, 0, 1], 0).into(),
            key: key.to_owned().into(),
            operators_file: None,
            oidc: None,
            hosts: hosts.iter().map(|name| (*name).to_owned()).collect(),
            metrics_key,
            connections_max: 8,
        };
        AdminAuthLayer::new(&config, Counter::default())
    }

    #[test]
    fn request_to_an_unknown_host_needs_the_admin_key() {
        let (open, closed) = (
            layer("correct horse", false, &["console.example"]),
            layer("correct horse", true, &[]),
        );
        let of = |path: &'static str, host: &'static str, key: Option<&'static str>| {
            let mut req = Request::get(path).header("host", host);
            if let Some(key) = key {
                req = req.header("authorization", format!("Bearer {key}"));
            }
            req.body(()).unwrap()
        };
        let asks = |host, key| of("/metrics", host, key);
        for (host, ours) in [
            ("127.0.0.1:8081", true),
            ("10.1.2.3", true),
            ("[::1]:8081", true),
            ("localhost:8081", true),
            ("a.localhost", true),
            ("tollgate:8081", true),
            ("Console.example.:8081", true),
            ("console.example", true),
            ("evil.example:8081", false),
            ("console.example.evil.example", false),
            ("127.0.0.1.evil.example", false),
            ("localhost.evil.example:8081", false),
        ] {
            let expected = if ours {
                Ok(())
            } else {
                Err(Refusal::HostUnknown)
            };
            for path in ["/metrics", "/", "/console/sign-in", "/openapi.yaml"] {
                assert_eq!(open.admit(&of(path, host, None)), expected, "{host} {path}");
                let with_key = of(path, host, Some("correct horse"));
                assert_eq!(open.admit(&with_key), Ok(()), "{host} {path}");
            }
            for path in ["/livez", "/readyz"] {
                assert_eq!(open.admit(&of(path, host, None)), Ok(()), "{host} {path}");
            }
            let wrong = of("/", host, Some("wrong"));
            let expected = if ours {
                Ok(())
            } else {
                Err(Refusal::KeyRefused)
            };
            assert_eq!(open.admit(&wrong), expected, "{host}");
        }
        // In HTTP/2 the host is part of the request target, so this request has no `host` line.
        let target = Request::get("http://evil.example:8081/").body(()).unwrap();
        assert_eq!(open.admit(&target), Err(Refusal::HostUnknown));
        assert_eq!(
            closed.admit(&asks("localhost", None)),
            Err(Refusal::KeyRefused)
        );
        assert_eq!(
            closed.admit(&asks("localhost", Some("wrong"))),
            Err(Refusal::KeyRefused)
        );
        assert_eq!(
            closed.admit(&asks("localhost", Some("correct horse"))),
            Ok(())
        );
    }

    fn asks(key: &str, address: &str) -> Request<()> {
        let address: IpAddr = address.parse().unwrap();
        let path = "/admin/v1/accounts";
        let req = Request::get(path).header("authorization", format!("Bearer {key}"));
        let mut req = req.body(()).unwrap();
        req.extensions_mut().insert(ClientAddr(address));
        req
    }

    #[tokio::test(start_paused = true)]
    async fn admin_key_guesses_are_limited_to_ten_at_once_then_one_every_six_seconds() {
        const RIGHT: &str = "correct horse";
        let layer = layer(RIGHT, false, &[]);
        let (here, elsewhere) = ("192.0.2.1", "192.0.2.2");
        let refused = |key, from| layer.check(&asks(key, from)).unwrap_err();
        for _ in 0..100 {
            assert_eq!(
                layer.check(&asks(RIGHT, here)),
                Ok(()),
                "good keys are not counted"
            );
        }
        for _ in 0..10 {
            assert_eq!(refused("wrong", here), Refusal::KeyRefused);
        }
        for key in ["wrong", RIGHT] {
            let refusal = refused(key, here);
            assert_eq!(refusal, Refusal::TooManyGuesses { seconds: 7 });
            assert_eq!(refusal.answer().headers()["retry-after"], "7");
        }
        assert_eq!(layer.limited.get(), 2);
        assert_eq!(
            layer.check(&asks(RIGHT, elsewhere)),
            Ok(()),
            "other addresses are not limited"
        );
        tokio::time::advance(std::time::Duration::from_secs(7)).await;
        assert_eq!(layer.check(&asks(RIGHT, here)), Ok(()));
    }

    #[tokio::test]
    async fn request_without_an_admin_key_does_not_count_as_a_guess() {
        let layer = layer("correct horse", false, &[]);
        let mut req = asks("", "192.0.2.1");
        req.headers_mut().clear();
        for _ in 0..100 {
            assert_eq!(layer.check(&req), Err(Refusal::KeyRefused));
        }
        assert_eq!(layer.check(&asks("correct horse", "192.0.2.1")), Ok(()));
    }
}
