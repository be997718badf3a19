//! Handlers: endpoints that answer each request from state of their own.

use http::{Request, Response};
use tollgate_layers::{Error, body::AnswerBody};
use tower::service_fn;

use crate::edge::router::{Answering, BoxedService, from_boxed};

/// An endpoint, cloned for each request.
pub trait Handler<B>: Clone + Send + Sync + 'static {
    /// Answers a request.
    fn handle(
        self,
        req: Request<B>,
    ) -> impl Future<Output = Result<Response<AnswerBody>, Error>> + Send;
}

/// Boxes a handler as a service, which is always ready.
pub(crate) fn handled<B: Send + 'static>(handler: impl Handler<B>) -> BoxedService<B> {
    from_boxed(service_fn(move |req| -> Answering<AnswerBody, Error> {
        Box::pin(handler.clone().handle(req))
    }))
}
