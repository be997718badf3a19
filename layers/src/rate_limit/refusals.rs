use std::{
    fmt,
    hash::Hash,
    task::{Context, Poll},
};

use futures_util::future::{BoxFuture, Either};
use http::Request;
use tower::{Layer, Service};

use super::{Limiter, Quota};
use crate::error::{Error, Limit};

/// Counts refusals of one kind and no other request: whoever guesses is told [`Error::TooManyRequests`] in
/// place of the refusal once the quota is used up, while good requests of the same caller go on.
///
/// It stands above the layer that refuses, so what is refused has cost a look-up already; what it takes
/// away is the answer. `by` says whom a request counts for and with which quota; `None` lets its refusal
/// pass uncounted.
///
/// ```
/// use http::{Request, Response};
/// use tollgate_layers::{
///     Error, body,
///     rate_limit::{Gcra, Quota, RefusalLimitLayer},
/// };
/// use tower::{ServiceBuilder, ServiceExt};
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Error> {
/// let everybody = |_: &Request<bool>| Some(((), Quota::per_second(1).with_burst(2)));
/// let guesses = |error: &Error| matches!(error, Error::KeyUnknown);
/// let service = ServiceBuilder::new()
///     .layer(RefusalLimitLayer::new(Gcra::new(10_000), everybody, guesses))
///     .service_fn(|req: Request<bool>| async move {
///         if req.into_body() { Ok(Response::new(body::full("an answer"))) } else { Err(Error::KeyUnknown) }
///     });
/// let ask = |good| service.clone().oneshot(Request::new(good));
///
/// assert!(matches!(ask(false).await, Err(Error::KeyUnknown)));
/// assert!(matches!(ask(false).await, Err(Error::KeyUnknown)));
/// assert!(matches!(ask(false).await, Err(Error::TooManyRequests { .. })));
/// assert!(ask(true).await.is_ok());
/// # Ok(())
/// # }
/// ```
#[derive(Clone)]
pub struct RefusalLimitLayer<L, F, C> {
    limiter: L,
    by: F,
    counts: C,
}

impl<L, F, C> RefusalLimitLayer<L, F, C> {
    /// Counts with `limiter`, for whom `by` says, the errors that `counts` picks.
    pub const fn new(limiter: L, by: F, counts: C) -> Self {
        Self {
            limiter,
            by,
            counts,
        }
    }
}

impl<L: fmt::Debug, F, C> fmt::Debug for RefusalLimitLayer<L, F, C> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RefusalLimitLayer")
            .field("limiter", &self.limiter)
            .finish_non_exhaustive()
    }
}

impl<S, L: Clone, F: Clone, C: Clone> Layer<S> for RefusalLimitLayer<L, F, C> {
    type Service = RefusalLimit<S, L, F, C>;

    fn layer(&self, inner: S) -> Self::Service {
        RefusalLimit {
            inner,
            limiter: self.limiter.clone(),
            by: self.by.clone(),
            counts: self.counts.clone(),
        }
    }
}

/// The service of [`RefusalLimitLayer`].
#[derive(Clone)]
pub struct RefusalLimit<S, L, F, C> {
    inner: S,
    limiter: L,
    by: F,
    counts: C,
}

impl<S: fmt::Debug, L, F, C> fmt::Debug for RefusalLimit<S, L, F, C> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RefusalLimit")
            .field("inner", &self.inner)
            .finish_non_exhaustive()
    }
}

impl<S, L, F, C, K, B> Service<Request<B>> for RefusalLimit<S, L, F, C>
where
    S: Service<Request<B>, Error = Error>,
    S::Future: Send + 'static,
    S::Response: 'static,
    L: Limiter<K>,
    F: Fn(&Request<B>) -> Option<(K, Quota)>,
    C: Fn(&Error) -> bool + Clone + Send + 'static,
    K: Eq + Hash + Send + 'static,
{
    type Response = S::Response;
    type Error = Error;
    type Future = Either<S::Future, BoxFuture<'static, Result<S::Response, Error>>>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), Error>> {
        self.inner.poll_ready(cx)
    }

    fn call(&mut self, req: Request<B>) -> Self::Future {
        let Some((id, quota)) = (self.by)(&req) else {
            return Either::Left(self.inner.call(req));
        };
        let call = self.inner.call(req);
        let (limiter, counts) = (self.limiter.clone(), self.counts.clone());
        Either::Right(Box::pin(async move {
            let error = match call.await {
                Err(error) if counts(&error) => error,
                answered => return answered,
            };
            match limiter.admit(id, quota).await {
                Ok(()) => Err(error),
                Err(retry_after) => Err(Error::TooManyRequests {
                    limit: Limit::Requests,
                    retry_after,
                }),
            }
        }))
    }
}
