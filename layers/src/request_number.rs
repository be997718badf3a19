//! Gives each request its number, before anything can fail.

use std::task::{Context, Poll};

use http::Request;
use tower::{Layer, Service};

use crate::facts::RequestNumber;

/// Inserts a new [`RequestNumber`] into each request. A number in a header is never believed.
///
/// ```
/// # use tower::{Layer, ServiceExt};
/// # use tollgate_layers::{request_number::RequestNumberLayer, facts::RequestNumber};
/// # let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
/// # runtime.block_on(async {
/// let service = tower::service_fn(async |req: http::Request<()>| {
///     Ok::<_, std::convert::Infallible>(req.extensions().get::<RequestNumber>().copied())
/// });
/// let number = RequestNumberLayer::new().layer(service).oneshot(http::Request::new(())).await.unwrap();
/// assert!(number.is_some());
/// # });
/// ```
#[derive(Clone, Copy, Debug, Default)]
pub struct RequestNumberLayer(());

impl RequestNumberLayer {
    /// The layer.
    #[must_use]
    pub const fn new() -> Self {
        Self(())
    }
}

impl<S> Layer<S> for RequestNumberLayer {
    type Service = RequestNumbers<S>;

    fn layer(&self, inner: S) -> Self::Service {
        RequestNumbers { inner }
    }
}

/// The service of [`RequestNumberLayer`].
#[derive(Clone, Debug)]
pub struct RequestNumbers<S> {
    inner: S,
}

impl<S, B> Service<Request<B>> for RequestNumbers<S>
where
    S: Service<Request<B>>,
{
    type Response = S::Response;
    type Error = S::Error;
    type Future = S::Future;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), S::Error>> {
        self.inner.poll_ready(cx)
    }

    fn call(&mut self, mut req: Request<B>) -> S::Future {
        req.extensions_mut().insert(RequestNumber::now_v7());
        self.inner.call(req)
    }
}
