//! Handlers: endpoints that allocate one boxed future per request.

use http::{Request, Response};
use tollgate_layers::{Error, body::AnswerBody};
use tower::service_fn;

use crate::edge::router::{BoxedService, ResponseFuture, from_boxed};

/// An endpoint. It is cloned for each request.
pub trait Handler<B>: Clone + Send + Sync + 'static {
    /// Answers a request.
    fn handle(
        self,
        req: Request<B>,
    ) -> impl Future<Output = Result<Response<AnswerBody>, Error>> + Send;
}

/// Boxes a handler as a service, which is always ready.
pub(crate) fn handled<B: Send + 'static>(handler: impl Handler<B>) -> BoxedService<B> {
    from_boxed(service_fn(
        move |req| -> ResponseFuture<AnswerBody, Error> { Box::pin(handler.clone().handle(req)) },
    ))
}
