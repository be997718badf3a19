//! The response future of a layer that usually forwards a call at once. It is boxed only if the layer must wait before
//! it forwards the call. If the layer refuses the call, the future fails at once.

use std::{
    fmt,
    pin::Pin,
    task::{Context, Poll},
};

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
        Self {
            inner: Inner::Forwarded { call },
        }
    }

    /// Creates a future that must wait before it calls the inner service. It is boxed.
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

impl<F: Future> fmt::Debug for ResponseFuture<F> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ResponseFuture").finish_non_exhaustive()
    }
}
