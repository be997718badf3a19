//! Handlers: endpoints that answer each request from state of their own.

use std::task::{Context, Poll};

use futures_util::future::BoxFuture;
use http::{Request, Response};
use tollgate_layers::{Error, body::AnswerBody};
use tower::Service;

/// An endpoint, cloned for each request.
pub trait Handler<B>: Clone + Send + 'static {
    /// Answers a request.
    fn handle(
        self,
        req: Request<B>,
    ) -> impl Future<Output = Result<Response<AnswerBody>, Error>> + Send;
}

/// The service of a handler. It is always ready.
#[derive(Clone, Debug)]
pub struct HandlerService<H>(pub H);

impl<H: Handler<B>, B: Send + 'static> Service<Request<B>> for HandlerService<H> {
    type Response = Response<AnswerBody>;
    type Error = Error;
    type Future = BoxFuture<'static, Result<Response<AnswerBody>, Error>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Error>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, req: Request<B>) -> Self::Future {
        Box::pin(self.0.clone().handle(req))
    }
}
