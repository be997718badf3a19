use std::{
    fmt,
    pin::Pin,
    task::{Context, Poll, ready},
};

use http::Response;
use pin_project_lite::pin_project;

use super::ResponseBody;
use crate::error::{BoxError, Error};

pin_project! {
    /// The future of [`Translate`](super::Translate).
    pub struct ResponseFuture<F, A> {
        #[pin]
        inner: Inner<F, A>,
    }
}

type BoxAnswer<A> = Pin<Box<dyn Future<Output = Result<Response<ResponseBody<A>>, Error>> + Send>>;

pin_project! {
    #[project = Projected]
    enum Inner<F, A> {
        Same { #[pin] call: F },
        Translated { answer: BoxAnswer<A> },
    }
}

impl<F, A> ResponseFuture<F, A> {
    /// Creates the future of a call whose caller and vendor use the same format.
    pub(super) const fn same(call: F) -> Self {
        Self {
            inner: Inner::Same { call },
        }
    }

    /// Creates the future of a call whose response must be translated, or whose request could not be translated.
    pub(super) fn translated(
        answer: impl Future<Output = Result<Response<ResponseBody<A>>, Error>> + Send + 'static,
    ) -> Self {
        Self {
            inner: Inner::Translated {
                answer: Box::pin(answer),
            },
        }
    }
}

impl<F, A, E> Future for ResponseFuture<F, A>
where
    F: Future<Output = Result<Response<A>, E>>,
    E: Into<BoxError> + 'static,
{
    type Output = Result<Response<ResponseBody<A>>, Error>;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        match self.project().inner.project() {
            Projected::Same { call } => {
                let res = ready!(call.poll(cx)).map_err(Error::from_below)?;
                Poll::Ready(Ok(res.map(ResponseBody::same)))
            }
            Projected::Translated { answer } => answer.as_mut().poll(cx),
        }
    }
}

impl<F, A> fmt::Debug for ResponseFuture<F, A> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ResponseFuture").finish_non_exhaustive()
    }
}
