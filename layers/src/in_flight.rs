//! Refuses what is more than this node can carry. The permit is kept until the answer's body ends:
//! tower's `ConcurrencyLimit` frees it at the headers, which for a stream is its beginning.
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
//! // The answer is there, but nobody has read it yet.
//! let refused = service.clone().oneshot(Request::new(())).await;
//! assert!(matches!(refused, Err(Error::Overloaded)));
//!
//! drop(answer);
//! assert!(service.oneshot(Request::new(())).await.is_ok());
//! # Ok(())
//! # }
//! ```
//!
//! Clones of a layer share its permits, so that several paths can be limited together.

use std::{
    pin::Pin,
    sync::Arc,
    task::{Context, Poll, ready},
};

use bytes::Bytes;
use http::{Request, Response};
use http_body::{Body, Frame, SizeHint};
use pin_project_lite::pin_project;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tower::{Layer, Service};

use crate::error::Error;

/// Lets at most so many calls run at a time; the next one is [`Error::Overloaded`], at once.
#[derive(Clone, Debug)]
pub struct InFlightLayer {
    permits: Arc<Semaphore>,
}

impl InFlightLayer {
    /// At most `max` calls at a time, over all services that this layer makes.
    #[must_use]
    pub fn new(max: usize) -> Self {
        Self {
            permits: Arc::new(Semaphore::new(max.min(Semaphore::MAX_PERMITS))),
        }
    }
}

impl<S> Layer<S> for InFlightLayer {
    type Service = InFlight<S>;

    fn layer(&self, inner: S) -> Self::Service {
        InFlight {
            inner,
            permits: Arc::clone(&self.permits),
        }
    }
}

/// The service of [`InFlightLayer`].
#[derive(Clone, Debug)]
pub struct InFlight<S> {
    inner: S,
    permits: Arc<Semaphore>,
}

impl<S, B, A> Service<Request<B>> for InFlight<S>
where
    S: Service<Request<B>, Response = Response<A>, Error = Error>,
{
    type Response = Response<ResponseBody<A>>;
    type Error = Error;
    type Future = ResponseFuture<S::Future>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), Error>> {
        self.inner.poll_ready(cx)
    }

    fn call(&mut self, req: Request<B>) -> Self::Future {
        match Arc::clone(&self.permits).try_acquire_owned() {
            Ok(permit) => ResponseFuture {
                inner: Some(self.inner.call(req)),
                permit: Some(permit),
            },
            Err(_) => ResponseFuture {
                inner: None,
                permit: None,
            },
        }
    }
}

pin_project! {
    /// The future of [`InFlight`].
    #[derive(Debug)]
    pub struct ResponseFuture<F> {
        #[pin]
        inner: Option<F>,
        permit: Option<OwnedSemaphorePermit>,
    }
}

impl<F, A> Future for ResponseFuture<F>
where
    F: Future<Output = Result<Response<A>, Error>>,
{
    type Output = Result<Response<ResponseBody<A>>, Error>;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let this = self.project();
        let Some(inner) = this.inner.as_pin_mut() else {
            return Poll::Ready(Err(Error::Overloaded));
        };
        let res = ready!(inner.poll(cx))?;
        let permit = this.permit.take();
        Poll::Ready(Ok(res.map(|inner| ResponseBody { inner, permit })))
    }
}

pin_project! {
    /// An answer's body that keeps its permit until it is dropped.
    #[derive(Debug)]
    pub struct ResponseBody<A> {
        #[pin]
        inner: A,
        permit: Option<OwnedSemaphorePermit>,
    }
}

impl<A: Body<Data = Bytes>> Body for ResponseBody<A> {
    type Data = Bytes;
    type Error = A::Error;

    fn poll_frame(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, A::Error>>> {
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
    async fn the_permit_is_kept_until_the_body_is_dropped() {
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
}
