//! The response future of a layer that usually forwards a call at once. It is boxed only if the layer must wait before
//! it forwards the call. If the layer refuses the call, the future fails at once.

use std::{
    pin::Pin,
    task::{Context, Poll, ready},
};

use http::Response;
use pin_project_lite::pin_project;

use crate::error::{BoxError, Error};

pin_project! {
    /// The future of a layer that either forwards a call (at once, or after a wait) or refuses it.
    pub struct ResponseFuture<F>
    where
        F: Future,
    {
        #[pin]
        inner: Inner<F>,
    }
}

pin_project! {
    #[project = Projected]
    enum Inner<F>
    where
        F: Future,
    {
        Forwarded { #[pin] call: F },
        Boxed { call: Pin<Box<dyn Future<Output = F::Output> + Send>> },
    }
}

impl<F: Future> ResponseFuture<F> {
    /// Creates a future that polls the inner service's future directly, without a box.
    pub(crate) const fn forwarded(call: F) -> Self {
        let inner = Inner::Forwarded { call };
        Self { inner }
    }

    /// Creates a future that does more than forward a call, for example waits before it does. It is boxed.
    pub(crate) fn boxed(call: impl Future<Output = F::Output> + Send + 'static) -> Self {
        Self {
            inner: Inner::Boxed {
                call: Box::pin(call),
            },
        }
    }
}

impl<F, R> ResponseFuture<F>
where
    F: Future<Output = Result<R, Error>>,
{
    /// Creates a future that fails with this error; the inner service is not called.
    pub(crate) fn refused(error: Error) -> Self {
        Self::boxed(async { Err(error) })
    }
}

pin_project! {
    /// The future of the service below, with its error converted into an [`Error`].
    #[derive(Debug)]
    pub struct Below<F> {
        #[pin]
        call: F,
    }
}

impl<F> Below<F> {
    pub(crate) const fn new(call: F) -> Self {
        Self { call }
    }
}

impl<F, R, E> Future for Below<F>
where
    F: Future<Output = Result<R, E>>,
    E: Into<BoxError> + 'static,
{
    type Output = Result<R, Error>;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        self.project().call.poll(cx).map_err(Error::from_below)
    }
}

impl<F: Future> Future for ResponseFuture<F> {
    type Output = F::Output;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<F::Output> {
        match self.project().inner.project() {
            Projected::Forwarded { call } => call.poll(cx),
            Projected::Boxed { call } => call.as_mut().poll(cx),
        }
    }
}

debug_fields!(impl[F: Future] ResponseFuture<F> {});

pin_project! {
    /// The future of the service below a layer that converts the response's body, and errors by [`Error::from_below`].
    #[derive(Debug)]
    pub struct Mapped<F, A, B> {
        #[pin]
        call: F,
        map: fn(A) -> B,
    }
}

impl<F, A, B> Mapped<F, A, B> {
    pub(crate) const fn new(call: F, map: fn(A) -> B) -> Self {
        Self { call, map }
    }
}

impl<F, A, B, E> Future for Mapped<F, A, B>
where
    F: Future<Output = Result<Response<A>, E>>,
    E: Into<BoxError> + 'static,
{
    type Output = Result<Response<B>, Error>;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let this = self.project();
        let res = ready!(this.call.poll(cx)).map_err(Error::from_below)?;
        Poll::Ready(Ok(res.map(*this.map)))
    }
}
