//! Gives each request its number before any other layer runs, so that every refusal can contain it.
//!
//! ```
//! use http::{Request, Response};
//! use tollgate_layers::{facts::RequestNumber, request_number::RequestNumberLayer};
//! use tower::{ServiceBuilder, ServiceExt};
//!
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let service = ServiceBuilder::new()
//!     .layer(RequestNumberLayer::new())
//!     .service_fn(async |req: Request<()>| {
//!         let number = req.extensions().get::<RequestNumber>().copied();
//!         Ok::<_, std::convert::Infallible>(Response::new(number))
//!     });
//!
//! let first = service.clone().oneshot(Request::new(())).await?.into_body();
//! let second = service.oneshot(Request::new(())).await?.into_body();
//!
//! assert!(first.is_some() && second.is_some());
//! assert_ne!(first, second);
//! # Ok(())
//! # }
//! ```
//!
//! Place this layer above [`respond`](crate::respond), which returns the number to the caller.

use std::task::{Context, Poll};

use http::Request;
use tower_layer::Layer;
use tower_service::Service;

use crate::facts::RequestNumber;

/// Inserts a new [`RequestNumber`] into each request. Numbers in request headers are ignored.
#[derive(Clone, Copy, Debug, Default)]
pub struct RequestNumberLayer(());

impl RequestNumberLayer {
    /// Creates a layer that numbers requests.
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
