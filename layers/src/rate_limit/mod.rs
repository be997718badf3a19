//! Limits requests per second or minute by the generic cell rate algorithm (GCRA, ITU-T I.371): one
//! instant per caller, the *theoretical arrival time*, in a bounded table.
//!
//! Whom a request counts for, and at which rate, is a closure's to say:
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
//! // One request a second for each tenant, two at once. Nobody else is counted.
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
//! [`by_address`] is the closure for the client's address. [`Gcra`] counts in this process, and so does
//! [`PostPaid`], what requests use; whatever else counts is a [`Limiter`]: the feature `redis` has the count
//! over many processes to write one with, `redis::RedisLimiter`, and `shared` the limits of busy callers over many
//! processes, which mostly ask nobody.

mod early;
mod gcra;
mod post_paid;
#[cfg(feature = "redis")]
pub mod redis;
mod refusals;
#[cfg(feature = "redis")]
pub mod shared;

use std::{
    fmt,
    hash::Hash,
    net::IpAddr,
    sync::Arc,
    task::{Context, Poll},
    time::Duration,
};

use http::Request;
use tower::{Layer, Service};

pub use self::{
    early::{EarlyRateLimit, EarlyRateLimitLayer, RateVerdict, RateVerdictLayer},
    gcra::Gcra,
    post_paid::PostPaid,
    refusals::{RefusalFuture, RefusalLimit, RefusalLimitLayer},
};
pub use crate::forward::ResponseFuture;
use crate::{
    error::{Error, Limit},
    facts::ClientAddr,
};

/// So many requests in such a time, and so many at once.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Quota {
    /// How many, at least 1.
    pub count: u32,
    /// In what time.
    pub per: Duration,
    /// How many may come at once, at least 1.
    pub burst: u32,
}

impl Quota {
    /// `count` requests a second, as many at once.
    #[must_use]
    pub const fn per_second(count: u32) -> Self {
        Self {
            count,
            per: Duration::from_secs(1),
            burst: count,
        }
    }

    /// `count` requests a minute, those of ten seconds at once.
    #[must_use]
    pub const fn per_minute(count: u32) -> Self {
        Self {
            count,
            per: Duration::from_secs(60),
            burst: count.div_ceil(6),
        }
    }

    /// The same, and so many at once.
    #[must_use]
    pub const fn with_burst(self, burst: u32) -> Self {
        Self { burst, ..self }
    }
}

/// Counts for the client's address, an IPv6 one by its /64, as [`ClientAddr`] has it; a request without
/// one passes uncounted.
pub fn by_address<B>(
    quota: Quota,
) -> impl Fn(&Request<B>) -> Option<(IpAddr, Quota)> + Clone + Send + Sync {
    move |req| Some((req.extensions().get::<ClientAddr>()?.block(), quota))
}

/// Counts requests.
pub trait Limiter<K>: Clone + Send + Sync + 'static {
    /// Lets a request of `id` in, or says how long it should wait.
    fn admit(&self, id: K, quota: Quota) -> impl Future<Output = Result<(), Duration>> + Send;

    /// What [`Limiter::admit`] would do, if it can be done without waiting: then no future is made for it.
    /// `None`, which is always right: nothing was counted, and it has to be asked.
    fn admit_now(&self, _id: &K, _quota: Quota) -> Option<Result<(), Duration>> {
        None
    }
}

/// Refuses with [`Error::TooManyRequests`] what goes over the quota.
///
/// `by` says whom a request counts for and with which quota; `None` lets it pass uncounted.
#[derive(Clone)]
pub struct RateLimitLayer<L, F> {
    limiter: L,
    by: F,
    limit: Limit,
}

impl<L, F> RateLimitLayer<L, F> {
    /// Counts with `limiter` for whom `by` says.
    pub const fn new(limiter: L, by: F) -> Self {
        Self {
            limiter,
            by,
            limit: Limit::Requests,
        }
    }

    /// Tells whoever is refused that it is this limit.
    #[must_use]
    pub fn named(self, limit: Limit) -> Self {
        Self { limit, ..self }
    }

    /// Asks here, and refuses further below: see [`EarlyRateLimitLayer`].
    #[must_use]
    pub const fn early(self) -> EarlyRateLimitLayer<L, F> {
        EarlyRateLimitLayer::new(self)
    }
}

impl<L: fmt::Debug, F> fmt::Debug for RateLimitLayer<L, F> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RateLimitLayer")
            .field("limiter", &self.limiter)
            .finish_non_exhaustive()
    }
}

impl<S, L: Clone, F: Clone> Layer<S> for RateLimitLayer<L, F> {
    type Service = RateLimit<S, L, F>;

    fn layer(&self, inner: S) -> Self::Service {
        RateLimit {
            inner,
            layer: Arc::new(self.clone()),
        }
    }
}

/// The service of [`RateLimitLayer`].
#[derive(Clone)]
pub struct RateLimit<S, L, F> {
    inner: S,
    /// One for all clones, of which each call makes some.
    layer: Arc<RateLimitLayer<L, F>>,
}

impl<S: fmt::Debug, L, F> fmt::Debug for RateLimit<S, L, F> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RateLimit")
            .field("inner", &self.inner)
            .finish_non_exhaustive()
    }
}

impl<S, L, F, K, B> Service<Request<B>> for RateLimit<S, L, F>
where
    S: Service<Request<B>, Error = Error> + Clone + Send + 'static,
    S::Future: Send,
    S::Response: 'static,
    L: Limiter<K>,
    F: Fn(&Request<B>) -> Option<(K, Quota)> + Send + Sync + 'static,
    K: Eq + Hash + Send + 'static,
    B: Send + 'static,
{
    type Response = S::Response;
    type Error = Error;
    type Future = ResponseFuture<S::Future>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), Error>> {
        self.inner.poll_ready(cx)
    }

    fn call(&mut self, req: Request<B>) -> Self::Future {
        let Some((id, quota)) = (self.layer.by)(&req) else {
            return ResponseFuture::forwarded(self.inner.call(req));
        };
        let limit = self.layer.limit;
        let refused = move |retry_after| Error::TooManyRequests { limit, retry_after };
        match self.layer.limiter.admit_now(&id, quota) {
            Some(Ok(())) => return ResponseFuture::forwarded(self.inner.call(req)),
            Some(Err(wait)) => return ResponseFuture::refused(refused(wait)),
            None => {}
        }
        let next = self.inner.clone();
        let mut inner = std::mem::replace(&mut self.inner, next);
        let layer = Arc::clone(&self.layer);
        ResponseFuture::boxed(async move {
            layer.limiter.admit(id, quota).await.map_err(refused)?;
            inner.call(req).await
        })
    }
}
