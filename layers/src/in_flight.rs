//! Limits the calls in flight on this node. A call keeps its permit until the response's body ends. tower's
//! `ConcurrencyLimit` differs: it frees the permit when the response's head is returned, which for a stream is only the
//! beginning.
//!
//! ```
//! use http::{Request, Response};
//! use tollgate_layers::{Error, body, in_flight::InFlightLayer};
//! use tower::{ServiceBuilder, ServiceExt};
//!
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() -> Result<(), Error> {
//! let service = ServiceBuilder::new()
//!     .layer(InFlightLayer::new(1))
//!     .service_fn(async |_: Request<()>| Ok::<_, Error>(Response::new(body::full("an answer"))));
//!
//! let answer = service.clone().oneshot(Request::new(())).await?;
//! // The answer has arrived, but its body is not read yet.
//! let refused = service.clone().oneshot(Request::new(())).await;
//! assert!(matches!(refused, Err(Error::Overloaded)));
//!
//! drop(answer);
//! assert!(service.oneshot(Request::new(())).await.is_ok());
//! # Ok(())
//! # }
//! ```
//!
//! Clones of a layer share its permits, so that several paths can share one limit. The maximum is a [`Setting`]. If it
//! is lowered, in-flight calls continue, and new calls are refused until enough calls have ended.

use std::{
    pin::Pin,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    task::{Context, Poll, ready},
};

use bytes::Bytes;
use http::{Request, Response};
use http_body::{Body, SizeHint};
use pin_project_lite::pin_project;
use tower_layer::Layer;
use tower_service::Service;

use crate::{
    body::PolledFrame,
    error::{BoxError, Error},
    setting::Setting,
};

/// Allows at most N calls in flight. A further call fails immediately with [`Error::Overloaded`].
#[derive(Clone, Debug)]
pub struct InFlightLayer {
    permits: Arc<Permits>,
}

impl InFlightLayer {
    /// Allows at most `max` calls in flight, summed over all services that this layer makes.
    #[must_use]
    pub fn new(max: impl Into<Setting<usize>>) -> Self {
        Self {
            permits: Arc::new(Permits {
                max: max.into(),
                taken: AtomicUsize::new(0),
            }),
        }
    }
}

/// The permits are a counter and not a semaphore, because a semaphore cannot be lowered while its permits are in use.
#[derive(Debug)]
struct Permits {
    max: Setting<usize>,
    taken: AtomicUsize,
}

impl Permits {
    fn take(self: &Arc<Self>) -> Option<Permit> {
        let max = self.max.get();
        let one_more = |taken: usize| (taken < max).then_some(taken + 1);
        self.taken
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, one_more)
            .ok()?;
        Some(Permit(Arc::clone(self)))
    }
}

/// The permit of one call in flight. Dropping it lets another call begin.
#[derive(Debug)]
struct Permit(Arc<Permits>);

impl Drop for Permit {
    fn drop(&mut self) {
        self.0.taken.fetch_sub(1, Ordering::Relaxed);
    }
}

impl<S> Layer<S> for InFlightLayer {
    type Service = InFlight<S>;

    fn layer(&self, inner: S) -> Self::Service {
        let permits = Arc::clone(&self.permits);
        InFlight { inner, permits }
    }
}

/// The service of [`InFlightLayer`].
#[derive(Clone, Debug)]
pub struct InFlight<S> {
    inner: S,
    permits: Arc<Permits>,
}

impl<S, B, A> Service<Request<B>> for InFlight<S>
where
    S: Service<Request<B>, Response = Response<A>, Error: Into<BoxError> + 'static>,
{
    type Response = Response<ResponseBody<A>>;
    type Error = Error;
    type Future = ResponseFuture<S::Future>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), Error>> {
        self.inner.poll_ready(cx).map_err(Error::from_below)
    }

    fn call(&mut self, req: Request<B>) -> Self::Future {
        let permit = self.permits.take();
        let inner = permit.is_some().then(|| self.inner.call(req));
        ResponseFuture { inner, permit }
    }
}

pin_project! {
    /// The future of [`InFlight`].
    #[derive(Debug)]
    pub struct ResponseFuture<F> {
        #[pin]
        inner: Option<F>,
        permit: Option<Permit>,
    }
}

impl<F, A, E> Future for ResponseFuture<F>
where
    F: Future<Output = Result<Response<A>, E>>,
    E: Into<BoxError> + 'static,
{
    type Output = Result<Response<ResponseBody<A>>, Error>;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let this = self.project();
        let Some(inner) = this.inner.as_pin_mut() else {
            return Poll::Ready(Err(Error::Overloaded));
        };
        let res = ready!(inner.poll(cx)).map_err(Error::from_below)?;
        let permit = this.permit.take();
        Poll::Ready(Ok(res.map(|inner| ResponseBody { inner, permit })))
    }
}

pin_project! {
    /// A response body that keeps its permit until it is dropped.
    #[derive(Debug)]
    pub struct ResponseBody<A> {
        #[pin]
        inner: A,
        permit: Option<Permit>,
    }
}

impl<A> ResponseBody<A> {
    /// Wraps a response body that needs no permit. It then has the same type as a body with a permit.
    #[must_use]
    pub const fn without_permit(inner: A) -> Self {
        let permit = None;
        Self { inner, permit }
    }
}

impl<A: Body<Data = Bytes>> Body for ResponseBody<A> {
    type Data = Bytes;
    type Error = A::Error;

    fn poll_frame(self: Pin<&mut Self>, cx: &mut Context<'_>) -> PolledFrame<A::Error> {
        self.project().inner.poll_frame(cx)
    }

    fn is_end_stream(&self) -> bool {
        self.inner.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.inner.size_hint()
    }
}

#[cfg(test)]
mod tests {
    use http_body_util::Full;
    use tower::ServiceExt;

    use super::*;

    #[tokio::test]
    async fn permit_is_kept_until_the_response_body_is_dropped() {
        let service = InFlightLayer::new(1).layer(tower::service_fn(async |_: Request<()>| {
            Ok::<_, Error>(Response::new(Full::new(Bytes::from_static(b"x"))))
        }));
        let first = service.clone().oneshot(Request::new(())).await.unwrap();
        assert!(matches!(
            service.clone().oneshot(Request::new(())).await,
            Err(Error::Overloaded)
        ));
        drop(first);
        assert!(service.oneshot(Request::new(())).await.is_ok());
    }

    #[tokio::test]
    async fn in_flight_limit_can_change_while_calls_run() {
        let max = Setting::new(2_usize);
        let service =
            InFlightLayer::new(max.clone()).layer(tower::service_fn(async |_: Request<()>| {
                Ok::<_, Error>(Response::new(Full::new(Bytes::new())))
            }));
        let ask = || service.clone().oneshot(Request::new(()));
        let (first, second) = (ask().await.unwrap(), ask().await.unwrap());
        max.set(1);
        drop(first);
        assert!(matches!(ask().await, Err(Error::Overloaded)));
        max.set(2);
        let _third = ask().await.unwrap();
        assert!(matches!(ask().await, Err(Error::Overloaded)));
        drop(second);
        assert!(ask().await.is_ok());
    }
}
