//! Observes when each attempt at a vendor begins and ends, in a layer directly below `failover`.

use std::{
    pin::Pin,
    sync::Arc,
    task::{Context, Poll},
};

use http::{Request, Response};
use pin_project_lite::pin_project;
use tokio::time::Instant;
use tollgate_layers::{Error, call::Attempt, usage::Meter};
use tower::{Layer, Service};

use super::call_record::CallRecord;
use crate::observe::metrics::{Metrics, vendors::VendorCounts};

/// Counts each attempt at a vendor, and notes its vendor in the request's record. The layer must be below `failover`,
/// which makes the attempts.
#[derive(Clone, Debug)]
pub(crate) struct AttemptsLayer(pub(crate) Arc<Metrics>);

impl<S> Layer<S> for AttemptsLayer {
    type Service = Attempts<S>;

    fn layer(&self, inner: S) -> Self::Service {
        Attempts {
            inner,
            metrics: Arc::clone(&self.0),
        }
    }
}

/// The service of [`AttemptsLayer`].
#[derive(Clone, Debug)]
pub(crate) struct Attempts<S> {
    inner: S,
    metrics: Arc<Metrics>,
}

impl<S, A> Service<Request<Attempt>> for Attempts<S>
where
    S: Service<Request<Attempt>, Response = Response<A>, Error = Error>,
{
    type Response = Response<A>;
    type Error = Error;
    type Future = ResponseFuture<S::Future>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), Error>> {
        self.inner.poll_ready(cx)
    }

    fn call(&mut self, req: Request<Attempt>) -> Self::Future {
        let Attempt { priced, route, .. } = req.body();
        let record = req.extensions().get::<CallRecord>();
        if let Some(record) = record {
            record.attempt(route);
        }
        ResponseFuture {
            record: record.cloned(),
            meter: priced.meter.clone(),
            vendor: Arc::clone(&route.vendor.name),
            counts: self.metrics.vendors.find(&route.vendor.name),
            began: Instant::now(),
            inner: self.inner.call(req),
        }
    }
}

pin_project! {
    /// The future of [`Attempts`].
    #[derive(Debug)]
    pub(crate) struct ResponseFuture<F> {
        #[pin]
        inner: F,
        record: Option<CallRecord>,
        meter: Meter,
        vendor: Arc<str>,
        counts: Option<Arc<VendorCounts>>,
        began: Instant,
    }
}

impl<F, A> Future for ResponseFuture<F>
where
    F: Future<Output = Result<Response<A>, Error>>,
{
    type Output = F::Output;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let this = self.project();
        // The response is inspected where it is, because it is large and slow to move.
        let polled = this.inner.poll(cx);
        let Poll::Ready(result) = &polled else {
            return polled;
        };
        if let Some(record) = this.record {
            match result {
                Ok(res) => record.attempt_answered(res.status().as_u16(), *this.began, this.meter),
                Err(error) => record.attempt_failed(error, this.vendor, *this.began, this.meter),
            }
        }
        if let Some(counts) = this.counts {
            match result {
                Ok(_) => counts.answered(this.began.elapsed()),
                // If the vendor does not have the model, the configuration is wrong. This must not look like an outage
                // of the vendor.
                Err(error) if error.is_the_vendors() && !error.is_model_unknown_to_vendor() => {
                    counts.failed();
                }
                Err(_) => {}
            }
        }
        polled
    }
}
