//! The future of a layer that mostly forwards: the call below, and a box only for what has to wait first, or is
//! refused.

use std::{
    fmt,
    pin::Pin,
    task::{Context, Poll},
};

use pin_project_lite::pin_project;

use crate::error::Error;

pin_project! {
    /// The future of a layer that forwards a call at once, or once it may.
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
    /// The call below, as it is.
    pub(crate) const fn forwarded(call: F) -> Self {
        Self {
            inner: Inner::Forwarded { call },
        }
    }

    /// What has to wait for something before it calls.
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
    /// An error: nothing is called.
    pub(crate) fn refused(error: Error) -> Self {
        Self::boxed(async { Err(error) })
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
