//! Puts a call into its vendor's format: `Request<Attempt>` → `Request<Outbound>`.
//!
//! Where both sides speak the same format, the client's bytes go on as they are but for the spans that
//! must change ([`splice`]). Calls between the formats are refused for now.

pub mod splice;

use std::{
    future::{Ready, ready},
    task::{Context, Poll},
};

use futures_util::future::Either;
use http::Request;
use tower::{Layer, Service};

use crate::{
    call::{Attempt, Format, Outbound},
    error::{Error, Problem},
};

/// Translates calls into the format of the route's vendor.
#[derive(Clone, Copy, Debug, Default)]
pub struct TranslateLayer(());

impl TranslateLayer {
    /// The layer.
    #[must_use]
    pub const fn new() -> Self {
        Self(())
    }
}

impl<S> Layer<S> for TranslateLayer {
    type Service = Translate<S>;

    fn layer(&self, inner: S) -> Self::Service {
        Translate { inner }
    }
}

/// The service of [`TranslateLayer`].
#[derive(Clone, Debug)]
pub struct Translate<S> {
    inner: S,
}

impl<S> Service<Request<Attempt>> for Translate<S>
where
    S: Service<Request<Outbound>, Error = Error>,
{
    type Response = S::Response;
    type Error = Error;
    type Future = Either<S::Future, Ready<Result<S::Response, Error>>>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), Error>> {
        self.inner.poll_ready(cx)
    }

    fn call(&mut self, req: Request<Attempt>) -> Self::Future {
        let (parts, Attempt { priced, route }) = req.into_parts();
        let call = &priced.call;
        if route.vendor.format != call.format {
            return Either::Right(ready(Err(Error::invalid("model", Problem::NotTranslated))));
        }
        let outbound = Outbound {
            body: splice::body(&priced, &route),
            stream: call.stream,
            strip_usage: call.format == Format::Chat && call.stream && !call.usage_asked,
            meter: priced.meter.clone(),
            route,
        };
        Either::Left(self.inner.call(Request::from_parts(parts, outbound)))
    }
}
