//! Limits requests per second or minute by the generic cell rate algorithm (GCRA, ITU-T I.371). For each caller, the
//! limiter stores one instant, the *theoretical arrival time*, in a table of bounded size.
//!
//! A closure decides for which caller a request counts, and which quota that caller has:
//!
//! ```
//! use http::{Request, Response};
//! use tollgate_layers::{
//!     Error, body,
//!     rate_limit::{Gcra, Quota, RateLimitLayer},
//! };
//! use tower::{ServiceBuilder, ServiceExt};
//!
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() -> Result<(), Error> {
//! // One request per second for each tenant, burst 2. Requests without a tenant are not counted.
//! let by_tenant = |req: &Request<()>| {
//!     let tenant = req.headers().get("x-tenant")?.to_str().ok()?;
//!     Some((tenant.to_owned(), Quota::per_second(1).with_burst(2)))
//! };
//! let service = ServiceBuilder::new()
//!     .layer(RateLimitLayer::new(Gcra::new(10_000), by_tenant))
//!     .service_fn(|_| async { Ok::<_, Error>(Response::new(body::full("an answer"))) });
//! let of = |tenant: &str| Request::builder().header("x-tenant", tenant).body(()).unwrap();
//!
//! service.clone().oneshot(of("acme")).await?;
//! service.clone().oneshot(of("acme")).await?;
//! let refused = service.clone().oneshot(of("acme")).await;
//! assert!(matches!(refused, Err(Error::TooManyRequests { retry_after, .. }) if !retry_after.is_zero()));
//! service.oneshot(of("other")).await?;
//! # Ok(())
//! # }
//! ```
//!
//! [`by_address`] is the closure for limits by client address. [`Gcra`] counts requests in this process. [`PostPaid`]
//! counts what requests use, such as tokens. To count in another way, implement [`Limiter`]. With the feature `redis`,
//! `redis::RedisLimiter` and the limiters of `shared` count over several processes; those of `shared` decide most
//! requests of busy callers in memory.

mod early;
mod gcra;
mod post_paid;
#[cfg(feature = "redis")]
pub mod redis;
mod refusals;
#[cfg(feature = "redis")]
pub mod shared;

use std::{
    convert::Infallible,
    fmt,
    hash::Hash,
    net::IpAddr,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    task::{Context, Poll},
    time::Duration,
};

use http::Request;
use quick_cache::sync::Cache;
use tower_layer::Layer;
use tower_service::Service;

pub use self::{
    early::{EarlyRateLimit, EarlyRateLimitLayer, RateVerdict, RateVerdictLayer},
    gcra::Gcra,
    post_paid::PostPaid,
    refusals::{RefusalFuture, RefusalLimit, RefusalLimitLayer},
};
pub use crate::forward::{Below, ResponseFuture};
use crate::{
    error::{BoxError, Error, Limit},
    facts::ClientAddr,
};

/// A rate limit of `count` requests per `per`, of which `burst` may arrive at once.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Quota {
    /// The number of requests per period `per`, at least 1.
    pub count: u32,
    /// The period for which `count` requests are allowed.
    pub per: Duration,
    /// The number of requests that may arrive at once, at least 1.
    pub burst: u32,
}

impl Quota {
    /// Creates a quota of `count` requests per second, all of which may arrive at once.
    #[must_use]
    pub const fn per_second(count: u32) -> Self {
        Self {
            count,
            per: Duration::from_secs(1),
            burst: count,
        }
    }

    /// Creates a quota of `count` requests per minute. The burst is the number of requests in ten seconds, `count` / 6.
    #[must_use]
    pub const fn per_minute(count: u32) -> Self {
        Self {
            count,
            per: Duration::from_secs(60),
            burst: count.div_ceil(6),
        }
    }

    /// Returns a quota with the same rate and this burst.
    #[must_use]
    pub const fn with_burst(self, burst: u32) -> Self {
        Self { burst, ..self }
    }
}

/// Counts requests by the client's [`ClientAddr`], an IPv6 address by its /64. A request without this extension is not
/// counted. The first such request logs a warning, because it means that no layer above inserts the address.
pub fn by_address<B>(
    quota: Quota,
) -> impl Fn(&Request<B>) -> Option<(IpAddr, Quota)> + Clone + Send + Sync {
    let has_warned = Arc::new(AtomicBool::new(false));
    move |req| {
        let address = req.extensions().get::<ClientAddr>();
        if address.is_none() && !has_warned.swap(true, Ordering::Relaxed) {
            tracing::warn!(
                "requests without a ClientAddr extension are not limited by address: insert ClientAddr in a layer above"
            );
        }
        Some((address?.block(), quota))
    }
}

/// Counts requests per caller, and decides whether a request is within the caller's quota.
pub trait Limiter<K>: Clone + Send + Sync + 'static {
    /// Admits and counts a request of the caller `id`, or returns how long the caller should wait.
    fn admit(&self, id: K, quota: Quota) -> impl Future<Output = Result<(), Duration>> + Send;

    /// Decides like [`Limiter::admit`], if that is possible without waiting, which saves a future. Returning `None` is
    /// always correct: it means that nothing was counted, and that `admit` must decide.
    fn admit_now(&self, _id: &K, _quota: Quota) -> Option<Result<(), Duration>> {
        None
    }
}

/// Refuses requests over the quota with [`Error::TooManyRequests`].
///
/// The closure `by` returns the caller for which a request counts, and the caller's quota. If it returns `None`, the
/// request is not counted and passes.
#[derive(Clone)]
pub struct RateLimitLayer<L, F> {
    limiter: L,
    by: F,
    limit: Limit,
}

impl<L, F> RateLimitLayer<L, F> {
    /// Creates a layer that counts requests with `limiter`, for the caller that `by` returns.
    pub const fn new(limiter: L, by: F) -> Self {
        let limit = Limit::Requests;
        Self { limiter, by, limit }
    }

    /// Sets the limit that the error's text names to the caller.
    #[must_use]
    pub fn named(self, limit: Limit) -> Self {
        Self { limit, ..self }
    }

    /// Converts this layer into an [`EarlyRateLimitLayer`], which only starts the limiter's decision. A
    /// [`RateVerdictLayer`] further below awaits the decision and refuses requests.
    #[must_use]
    pub const fn early(self) -> EarlyRateLimitLayer<L, F> {
        EarlyRateLimitLayer { limit: self }
    }
}

debug_fields!(impl[L: fmt::Debug, F] RateLimitLayer<L, F> { limiter: limiter });

impl<S, L: Clone, F: Clone> Layer<S> for RateLimitLayer<L, F> {
    type Service = RateLimit<S, L, F>;

    fn layer(&self, inner: S) -> Self::Service {
        let layer = Arc::new(self.clone());
        RateLimit { inner, layer }
    }
}

/// The service of [`RateLimitLayer`].
#[derive(Clone)]
pub struct RateLimit<S, L, F> {
    inner: S,
    /// The layer. All clones of the service share it, because every call clones the service.
    layer: Arc<RateLimitLayer<L, F>>,
}

debug_fields!(impl[S: fmt::Debug, L, F] RateLimit<S, L, F> { inner: inner });

impl<S, L, F, K, B> Service<Request<B>> for RateLimit<S, L, F>
where
    S: Service<Request<B>, Error: Into<BoxError> + 'static> + Clone + Send + 'static,
    S::Future: Send,
    S::Response: 'static,
    L: Limiter<K>,
    F: Fn(&Request<B>) -> Option<(K, Quota)> + Send + Sync + 'static,
    K: Eq + Hash + Send + 'static,
    B: Send + 'static,
{
    type Response = S::Response;
    type Error = Error;
    type Future = ResponseFuture<Below<S::Future>>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), Error>> {
        self.inner.poll_ready(cx).map_err(Error::from_below)
    }

    fn call(&mut self, req: Request<B>) -> Self::Future {
        let Some((id, quota)) = (self.layer.by)(&req) else {
            return ResponseFuture::forwarded(Below::new(self.inner.call(req)));
        };
        let limit = self.layer.limit;
        let refused = move |retry_after| Error::TooManyRequests { limit, retry_after };
        match self.layer.limiter.admit_now(&id, quota) {
            Some(Ok(())) => return ResponseFuture::forwarded(Below::new(self.inner.call(req))),
            Some(Err(wait)) => return ResponseFuture::refused(refused(wait)),
            None => {}
        }
        let next = self.inner.clone();
        let mut inner = std::mem::replace(&mut self.inner, next);
        let layer = Arc::clone(&self.layer);
        ResponseFuture::boxed(async move {
            layer.limiter.admit(id, quota).await.map_err(refused)?;
            inner.call(req).await.map_err(Error::from_below)
        })
    }
}

/// Returns the caller's entry. A caller without an entry gets a new one, which may evict the entry of another caller.
fn get_or_insert<K, V: Clone>(cache: &Cache<K, V>, id: &K, new: impl FnOnce() -> V) -> V
where
    K: Eq + Hash + Clone,
{
    let Ok(value) = cache.get_or_insert_with(id, || Ok::<_, Infallible>(new()));
    value
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicU32;

    use http::Response;
    use tower::{ServiceBuilder, ServiceExt};
    use tracing::span;

    use super::*;

    /// Counts how often the warning about a missing address was logged.
    struct Logged(Arc<AtomicU32>);

    impl tracing::Subscriber for Logged {
        fn enabled(&self, _: &tracing::Metadata<'_>) -> bool {
            true
        }

        fn new_span(&self, _: &span::Attributes<'_>) -> span::Id {
            span::Id::from_u64(1)
        }

        fn record(&self, _: &span::Id, _: &span::Record<'_>) {}

        fn record_follows_from(&self, _: &span::Id, _: &span::Id) {}

        fn event(&self, _: &tracing::Event<'_>) {
            self.0.fetch_add(1, Ordering::Relaxed);
        }

        fn enter(&self, _: &span::Id) {}

        fn exit(&self, _: &span::Id) {}
    }

    #[test]
    fn requests_without_a_client_address_are_not_counted_and_one_warning_is_logged() {
        let logged = Arc::new(AtomicU32::new(0));
        let by = by_address(Quota::per_second(1));
        tracing::subscriber::with_default(Logged(Arc::clone(&logged)), || {
            let mut req = Request::new(());
            for by in [by.clone(), by] {
                assert_eq!(by(&req), None);
            }
            let address = IpAddr::from([192, 0, 2, 7]);
            req.extensions_mut().insert(ClientAddr(address));
            let by = by_address(Quota::per_second(1));
            assert_eq!(by(&req), Some((address, Quota::per_second(1))));
        });
        assert_eq!(logged.load(Ordering::Relaxed), 1);
    }

    #[tokio::test]
    async fn error_of_any_type_from_the_inner_service_is_passed_on() {
        type Case = (Result<(), &'static str>, fn(&Result<(), Error>) -> bool);
        let cases: [Case; 2] = [
            (Ok(()), |answer| answer.is_ok()),
            (
                Err("disk full"),
                |answer| matches!(answer, Err(Error::Internal(cause)) if cause.to_string() == "disk full"),
            ),
        ];
        for (answer, is_right) in cases {
            let everybody = |_: &Request<()>| Some(((), Quota::per_second(9)));
            let service = ServiceBuilder::new()
                .layer(RateLimitLayer::new(Gcra::new(1), everybody))
                .service_fn(move |_: Request<()>| async move { answer.map(Response::new) });
            let answered = service.oneshot(Request::new(())).await.map(|_| ());
            assert!(is_right(&answered), "{answered:?}");
        }
        // The service below may have any error type, for example `Infallible`, which axum's routes have.
        let nobody = |_: &Request<()>| None::<((), Quota)>;
        let service = ServiceBuilder::new()
            .layer(RateLimitLayer::new(Gcra::new(1), nobody))
            .service_fn(async |_: Request<()>| Ok::<_, Infallible>(Response::new(())));
        assert!(service.oneshot(Request::new(())).await.is_ok());
    }
}
