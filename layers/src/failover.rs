//! Chooses the route of a call: `Request<Priced>` → `Request<Attempt>`.
//!
//! For now it takes the route that stands first; trying the next one before the first byte, under the
//! same hold and number, has its place here.

use std::{
    future::{Ready, ready},
    sync::Arc,
    task::{Context, Poll},
};

use futures_util::future::Either;
use http::Request;
use tower::{Layer, Service};

use crate::{
    call::{Attempt, Priced},
    error::Error,
};

/// Sends each call to a route of its model.
#[derive(Clone, Copy, Debug, Default)]
pub struct FailoverLayer(());

impl FailoverLayer {
    /// The layer.
    #[must_use]
    pub const fn new() -> Self {
        Self(())
    }
}

impl<S> Layer<S> for FailoverLayer {
    type Service = Failover<S>;

    fn layer(&self, inner: S) -> Self::Service {
        Failover { inner }
    }
}

/// The service of [`FailoverLayer`].
#[derive(Clone, Debug)]
pub struct Failover<S> {
    inner: S,
}

impl<S> Service<Request<Priced>> for Failover<S>
where
    S: Service<Request<Attempt>, Error = Error>,
{
    type Response = S::Response;
    type Error = Error;
    type Future = Either<S::Future, Ready<Result<S::Response, Error>>>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), Error>> {
        self.inner.poll_ready(cx)
    }

    fn call(&mut self, req: Request<Priced>) -> Self::Future {
        let Some(route) = req.body().model.routes.first().map(Arc::clone) else {
            return Either::Right(ready(Err(Error::VendorUnavailable(
                "the model has no route".into(),
            ))));
        };
        Either::Left(self.inner.call(req.map(|priced| Attempt { priced, route })))
    }
}
