//! Adapts a service that does not use [`Error`] (axum, tonic, your own) to a layer of yours that expects it, or to
//! `idempotency`, `failover`, `translate` and `passthrough`. The other layers take a service with any error.
//!
//! Place it lowest. An error of the service or of its body becomes an [`Error::Internal`]; an [`Error`] that was boxed
//! on the way is restored.
//!
//! ```
//! use std::convert::Infallible;
//!
//! use bytes::Bytes;
//! use http::{Request, Response};
//! use http_body_util::{BodyExt, Full};
//! use tollgate_layers::{Error, adapt::AdaptLayer};
//! use tower::{ServiceBuilder, ServiceExt};
//!
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() -> Result<(), Box<dyn std::error::Error>> {
//! // Neither its error nor its body's error is an `Error`.
//! let hello = tower::service_fn(async |_: Request<()>| {
//!     Ok::<_, Infallible>(Response::new(Full::new(Bytes::from_static(b"hello"))))
//! });
//! let service = ServiceBuilder::new().layer(AdaptLayer::new()).service(hello);
//!
//! let answer: Result<Response<_>, Error> = service.oneshot(Request::new(())).await;
//!
//! assert_eq!(answer?.into_body().collect().await?.to_bytes(), "hello");
//! # Ok(())
//! # }
//! ```

use std::{
    pin::Pin,
    task::{Context, Poll, ready},
};

use bytes::Bytes;
use http::{Request, Response};
use http_body::{Body, Frame, SizeHint};
use pin_project_lite::pin_project;
use tower_layer::Layer;
use tower_service::Service;

use crate::error::{BoxError, Error};

/// Converts the errors of a service and of its answers' bodies into [`Error`].
#[derive(Clone, Copy, Debug, Default)]
pub struct AdaptLayer(());

impl AdaptLayer {
    /// Creates the layer.
    #[must_use]
    pub const fn new() -> Self {
        Self(())
    }
}

impl<S> Layer<S> for AdaptLayer {
    type Service = Adapt<S>;

    fn layer(&self, inner: S) -> Self::Service {
        Adapt { inner }
    }
}

/// The service of [`AdaptLayer`].
#[derive(Clone, Debug)]
pub struct Adapt<S> {
    inner: S,
}

impl<S, B, A> Service<Request<B>> for Adapt<S>
where
    S: Service<Request<B>, Response = Response<A>>,
    S::Error: Into<BoxError> + 'static,
{
    type Response = Response<ResponseBody<A>>;
    type Error = Error;
    type Future = ResponseFuture<S::Future>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), Error>> {
        self.inner.poll_ready(cx).map_err(Error::from_below)
    }

    fn call(&mut self, req: Request<B>) -> Self::Future {
        ResponseFuture {
            inner: self.inner.call(req),
        }
    }
}

pin_project! {
    /// The future of [`Adapt`].
    #[derive(Debug)]
    pub struct ResponseFuture<F> {
        #[pin]
        inner: F,
    }
}

impl<F, A, E> Future for ResponseFuture<F>
where
    F: Future<Output = Result<Response<A>, E>>,
    E: Into<BoxError> + 'static,
{
    type Output = Result<Response<ResponseBody<A>>, Error>;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let res = ready!(self.project().inner.poll(cx)).map_err(Error::from_below)?;
        Poll::Ready(Ok(res.map(|inner| ResponseBody { inner })))
    }
}

pin_project! {
    /// An answer's body whose error is [`Error`].
    #[derive(Clone, Debug, Default)]
    pub struct ResponseBody<A> {
        #[pin]
        inner: A,
    }
}

impl<A> Body for ResponseBody<A>
where
    A: Body<Data = Bytes>,
    A::Error: Into<BoxError> + 'static,
{
    type Data = Bytes;
    type Error = Error;

    fn poll_frame(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Error>>> {
        let frame = ready!(self.project().inner.poll_frame(cx));
        Poll::Ready(frame.map(|frame| frame.map_err(Error::from_below)))
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
    use http_body_util::{BodyExt, StreamBody};
    use tower::ServiceExt;

    use super::*;

    type Fails = fn() -> BoxError;

    #[tokio::test]
    async fn foreign_errors_are_internal_and_own_errors_are_kept() {
        type IsRight = fn(&Error) -> bool;
        let cases: [(Fails, IsRight); 2] = [
            (
                || "disk full".into(),
                |error| matches!(error, Error::Internal(cause) if cause.to_string() == "disk full"),
            ),
            (
                || Error::Overloaded.into(),
                |error| matches!(error, Error::Overloaded),
            ),
        ];
        for (fails, is_right) in cases {
            let refuses =
                tower::service_fn(
                    move |_: Request<()>| async move { Err::<Response<()>, _>(fails()) },
                );
            let refused = AdaptLayer::new().layer(refuses);
            let Err(error) = refused.oneshot(Request::new(())).await else {
                panic!("it was refused");
            };
            assert!(is_right(&error), "{error:?}");

            let frames = futures_util::stream::iter([Err::<Frame<Bytes>, _>(fails())]);
            let body = ResponseBody {
                inner: StreamBody::new(frames),
            };
            let Err(error) = body.collect().await else {
                panic!("the body broke off");
            };
            assert!(is_right(&error), "{error:?}");
        }
    }
}
