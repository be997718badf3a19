use std::{
    fmt,
    hash::Hash,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll, ready},
};

use http::Request;
use pin_project_lite::pin_project;
use tower_layer::Layer;
use tower_service::Service;

use super::{Limiter, Quota};
use crate::error::{BoxError, Error, Limit};

/// Limits how often a caller is refused with certain errors. When the quota is used up, [`Error::TooManyRequests`]
/// replaces such an error, while valid requests of the caller continue. This slows down the guessing of keys.
///
/// Place this layer above the layer that refuses. When this layer sees a refusal, the look-up for the request is
/// already done; this layer only replaces the error. The closure `by` returns the caller for which a request counts,
/// and the caller's quota. If it returns `None`, the refusal is not counted.
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
    /// Creates a layer that counts the errors for which `counts` returns true. `limiter` counts them, for the caller
    /// that `by` returns.
    pub const fn new(limiter: L, by: F, counts: C) -> Self {
        Self {
            limiter,
            by,
            counts,
        }
    }
}

debug_fields!(impl[L: fmt::Debug, F, C] RefusalLimitLayer<L, F, C> { limiter: limiter });

impl<S, L: Clone, F: Clone, C: Clone> Layer<S> for RefusalLimitLayer<L, F, C> {
    type Service = RefusalLimit<S, L, F, C>;

    fn layer(&self, inner: S) -> Self::Service {
        let layer = Arc::new(self.clone());
        RefusalLimit { inner, layer }
    }
}

/// The service of [`RefusalLimitLayer`].
#[derive(Clone)]
pub struct RefusalLimit<S, L, F, C> {
    inner: S,
    /// The layer. All clones of the service share it, because every call clones the service.
    layer: Arc<RefusalLimitLayer<L, F, C>>,
}

debug_fields!(impl[S: fmt::Debug, L, F, C] RefusalLimit<S, L, F, C> { inner: inner });

impl<S, L, F, C, K, B> Service<Request<B>> for RefusalLimit<S, L, F, C>
where
    S: Service<Request<B>, Error: Into<BoxError> + 'static>,
    L: Limiter<K>,
    F: Fn(&Request<B>) -> Option<(K, Quota)>,
    C: Fn(&Error) -> bool,
    K: Eq + Hash + Send + 'static,
{
    type Response = S::Response;
    type Error = Error;
    type Future = RefusalFuture<S::Future, L, F, C, K>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), Error>> {
        self.inner.poll_ready(cx).map_err(Error::from_below)
    }

    fn call(&mut self, req: Request<B>) -> Self::Future {
        let counted = (self.layer.by)(&req);
        RefusalFuture {
            call: self.inner.call(req),
            counted: counted.map(|(id, quota)| (id, quota, Arc::clone(&self.layer))),
            refusing: None,
        }
    }
}

pin_project! {
    /// The future of [`RefusalLimit`].
    pub struct RefusalFuture<A, L, F, C, K> {
        #[pin]
        call: A,
        // The caller for which a refusal counts, and its quota.
        counted: Option<(K, Quota, Arc<RefusalLimitLayer<L, F, C>>)>,
        // The future that counts the refusal; present once the request is refused. It is boxed because refusals are
        // rare.
        refusing: Option<Pin<Box<dyn Future<Output = Error> + Send>>>,
    }
}

debug_fields!(impl[A, L, F, C, K] RefusalFuture<A, L, F, C, K> {});

impl<A, R, E, L, F, C, K> Future for RefusalFuture<A, L, F, C, K>
where
    A: Future<Output = Result<R, E>>,
    E: Into<BoxError> + 'static,
    L: Limiter<K>,
    C: Fn(&Error) -> bool,
    K: Send + 'static,
{
    type Output = Result<R, Error>;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let this = self.project();
        if this.refusing.is_none() {
            let answered = ready!(this.call.poll(cx)).map_err(Error::from_below);
            match (answered, this.counted.take()) {
                (Err(error), Some((id, quota, layer))) if (layer.counts)(&error) => {
                    let limiter = layer.limiter.clone();
                    *this.refusing = Some(Box::pin(refusal(limiter, id, quota, error)));
                }
                (answered, _) => return Poll::Ready(answered),
            }
        }
        let refusing = this
            .refusing
            .as_mut()
            .expect("the state of a refused request is present until the refusal is returned");
        refusing.as_mut().poll(cx).map(Err)
    }
}

/// Returns the error for a request that was refused with `error`: the same error, or [`Error::TooManyRequests`] if the
/// caller's quota of refusals is used up.
async fn refusal<L: Limiter<K>, K>(limiter: L, id: K, quota: Quota, error: Error) -> Error {
    match limiter.admit(id, quota).await {
        Ok(()) => error,
        Err(retry_after) => Error::TooManyRequests {
            limit: Limit::Requests,
            retry_after,
        },
    }
}
