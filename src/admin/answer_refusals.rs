//! Turns each [`Refusal`] of the admin API into its HTTP response. Layers above this one therefore see no refusals.
//! They handle only errors of layers that the operators' and the callers' listeners share.

use std::task::{Context, Poll};

use futures_util::{FutureExt, future::Map};
use http::Request;
use tollgate_layers::{Error, body::full};
use tower::{Layer, Service};

use super::{Answer, refusal::Refusal};

/// Turns refusals into HTTP responses with error texts for operators.
#[derive(Clone, Copy, Debug, Default)]
pub struct AnswerRefusalsLayer;

impl<S> Layer<S> for AnswerRefusalsLayer {
    type Service = AnswerRefusals<S>;

    fn layer(&self, inner: S) -> Self::Service {
        AnswerRefusals { inner }
    }
}

/// The service of [`AnswerRefusalsLayer`].
#[derive(Clone, Debug)]
pub struct AnswerRefusals<S> {
    inner: S,
}

impl<S, B> Service<Request<B>> for AnswerRefusals<S>
where
    S: Service<Request<B>, Response = Answer, Error = Refusal>,
{
    type Response = Answer;
    type Error = Error;
    type Future = Map<S::Future, fn(Result<Answer, Refusal>) -> Result<Answer, Error>>;

    /// Ignores readiness errors of the inner service: if that service must refuse a request, its `call` does so.
    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), Error>> {
        self.inner.poll_ready(cx).map(|_| Ok(()))
    }

    fn call(&mut self, req: Request<B>) -> Self::Future {
        self.inner.call(req).map(answered as fn(_) -> _)
    }
}

fn answered(result: Result<Answer, Refusal>) -> Result<Answer, Error> {
    Ok(result.unwrap_or_else(|refusal| refusal.answer().map(full)))
}
