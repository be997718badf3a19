use std::{
    fmt,
    hash::Hash,
    sync::Arc,
    task::{Context, Poll, Waker},
};

use http::Request;
use tower_layer::Layer;
use tower_service::Service;

use super::{Below, Limiter, Quota, RateLimitLayer, ResponseFuture};
use crate::{
    error::{BoxError, Error},
    undecided::{self, Verdict},
};

/// A [`RateLimitLayer`] that starts the limiter's decision and lets the request continue. A [`RateVerdictLayer`] below
/// awaits the decision, so that the layers between the two work meanwhile. If the limiter can decide without waiting,
/// this layer itself refuses requests over the limit.
///
/// ```
/// use http::{Request, Response};
/// use tollgate_layers::{
///     Error, body,
///     rate_limit::{Gcra, Quota, RateLimitLayer, RateVerdictLayer},
/// };
/// use tower::{ServiceBuilder, ServiceExt};
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Error> {
/// let everybody = |_: &Request<()>| Some(((), Quota::per_second(1)));
/// let service = ServiceBuilder::new()
///     .layer(RateLimitLayer::new(Gcra::new(1), everybody).early())
///     // Slow layers go here.
///     .layer(RateVerdictLayer::new())
///     .service_fn(|_| async { Ok::<_, Error>(Response::new(body::full("an answer"))) });
/// service.clone().oneshot(Request::new(())).await?;
/// let refused = service.oneshot(Request::new(())).await;
/// assert!(matches!(refused, Err(Error::TooManyRequests { .. })));
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug)]
pub struct EarlyRateLimitLayer<L, F> {
    pub(super) limit: RateLimitLayer<L, F>,
}

impl<S, L: Clone, F: Clone> Layer<S> for EarlyRateLimitLayer<L, F> {
    type Service = EarlyRateLimit<S, L, F>;

    fn layer(&self, inner: S) -> Self::Service {
        let layer = Arc::new(self.limit.clone());
        EarlyRateLimit { inner, layer }
    }
}

/// The service of [`EarlyRateLimitLayer`].
#[derive(Clone)]
pub struct EarlyRateLimit<S, L, F> {
    inner: S,
    layer: Arc<RateLimitLayer<L, F>>,
}

debug_fields!(impl[S: fmt::Debug, L, F] EarlyRateLimit<S, L, F> { inner: inner });

impl<S, L, F, K, B> Service<Request<B>> for EarlyRateLimit<S, L, F>
where
    S: Service<Request<B>, Error: Into<BoxError> + 'static>,
    S::Response: 'static,
    L: Limiter<K>,
    F: Fn(&Request<B>) -> Option<(K, Quota)>,
    K: Eq + Hash + Send + 'static,
{
    type Response = S::Response;
    type Error = Error;
    type Future = ResponseFuture<Below<S::Future>>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), Error>> {
        self.inner.poll_ready(cx).map_err(Error::from_below)
    }

    fn call(&mut self, mut req: Request<B>) -> Self::Future {
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
        let limiter = self.layer.limiter.clone();
        let mut verdict: Verdict =
            Box::pin(async move { limiter.admit(id, quota).await.map_err(refused) });
        // This poll sends the command to the store now. `RateVerdict` replaces the noop waker when it polls the future.
        match verdict
            .as_mut()
            .poll(&mut Context::from_waker(Waker::noop()))
        {
            Poll::Ready(Ok(())) => {}
            Poll::Ready(Err(error)) => return ResponseFuture::refused(error),
            Poll::Pending => undecided::add(req.extensions_mut(), verdict),
        }
        ResponseFuture::forwarded(Below::new(self.inner.call(req)))
    }
}

/// Awaits the decisions that [`EarlyRateLimitLayer`]s above have started, and refuses the request if one of them is a
/// refusal.
#[derive(Clone, Copy, Debug, Default)]
pub struct RateVerdictLayer;

impl RateVerdictLayer {
    /// Creates a layer that awaits the decisions of all early rate limits above it.
    #[must_use]
    pub const fn new() -> Self {
        Self
    }
}

impl<S> Layer<S> for RateVerdictLayer {
    type Service = RateVerdict<S>;

    fn layer(&self, inner: S) -> Self::Service {
        RateVerdict { inner }
    }
}

/// The service of [`RateVerdictLayer`].
#[derive(Clone, Debug)]
pub struct RateVerdict<S> {
    inner: S,
}

impl<S, B> Service<Request<B>> for RateVerdict<S>
where
    S: Service<Request<B>, Error: Into<BoxError> + 'static> + Clone + Send + 'static,
    S::Future: Send,
    S::Response: 'static,
    B: Send + 'static,
{
    type Response = S::Response;
    type Error = Error;
    type Future = ResponseFuture<Below<S::Future>>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), Error>> {
        self.inner.poll_ready(cx).map_err(Error::from_below)
    }

    fn call(&mut self, mut req: Request<B>) -> Self::Future {
        let verdicts = undecided::take(req.extensions_mut());
        if verdicts.is_none() {
            return ResponseFuture::forwarded(Below::new(self.inner.call(req)));
        }
        let next = self.inner.clone();
        let mut inner = std::mem::replace(&mut self.inner, next);
        ResponseFuture::boxed(async move {
            undecided::decided(verdicts).await?;
            inner.call(req).await.map_err(Error::from_below)
        })
    }
}

#[cfg(test)]
mod tests {
    use std::{sync::Mutex, time::Duration};

    use http::Response;
    use tokio::sync::watch;
    use tower::{ServiceBuilder, ServiceExt};

    use super::*;
    use crate::body;

    /// A limiter that waits until the test sets its decision.
    #[derive(Clone)]
    struct Slow(watch::Receiver<Option<Result<(), Duration>>>);

    impl Limiter<()> for Slow {
        async fn admit(&self, (): (), _: Quota) -> Result<(), Duration> {
            let mut reported = self.0.clone();
            reported.wait_for(Option::is_some).await.unwrap().unwrap()
        }
    }

    /// Sends a request through two early rate limits, which decide only when the request is between them and the
    /// [`RateVerdictLayer`]. Returns whether the request was answered, and whether it reached the service.
    async fn answer(first: Result<(), Duration>, second: Result<(), Duration>) -> (bool, bool) {
        let everybody = |_: &Request<()>| Some(((), Quota::per_second(1)));
        let ((tell_first, told_first), (tell_second, told_second)) =
            (watch::channel(None), watch::channel(None));
        let between = Arc::new(Mutex::new(Some((tell_first, tell_second))));
        let reached = Arc::new(Mutex::new(false));
        let (passes, arrives) = (Arc::clone(&between), Arc::clone(&reached));
        let service = ServiceBuilder::new()
            .layer(RateLimitLayer::new(Slow(told_first), everybody).early())
            .layer(RateLimitLayer::new(Slow(told_second), everybody).early())
            .map_request(move |req: Request<()>| {
                // The request has passed both early limits now, and neither limit has decided yet.
                let (tell_first, tell_second) = passes.lock().unwrap().take().unwrap();
                tell_second.send_replace(Some(second));
                tell_first.send_replace(Some(first));
                req
            })
            .layer(RateVerdictLayer::new())
            .service_fn(move |_| {
                *arrives.lock().unwrap() = true;
                async { Ok::<_, Error>(Response::new(body::full("an answer"))) }
            });
        let answered = service.oneshot(Request::new(())).await;
        let reached = *reached.lock().unwrap();
        (answered.is_ok(), reached)
    }

    #[tokio::test]
    async fn layers_between_an_early_rate_limit_and_its_verdict_run_while_the_limit_decides() {
        let no = Err(Duration::from_secs(1));
        assert_eq!(answer(Ok(()), Ok(())).await, (true, true));
        assert_eq!(answer(no, Ok(())).await, (false, false));
        assert_eq!(answer(Ok(()), no).await, (false, false));
    }
}
