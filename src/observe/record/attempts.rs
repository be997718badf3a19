//! Observes the beginning and end of every attempt at a vendor, in the layer below `failover`.

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

use super::CallRecord;
use crate::observe::metrics::{Metrics, vendors::VendorCounts};

/// Counts each attempt at a vendor, and records which vendor it was. The layer must be below `failover`.
#[derive(Clone, Debug)]
pub(crate) struct AttemptsLayer {
    metrics: Arc<Metrics>,
}

impl AttemptsLayer {
    pub(crate) const fn new(metrics: Arc<Metrics>) -> Self {
        Self { metrics }
    }
}

impl<S> Layer<S> for AttemptsLayer {
    type Service = Attempts<S>;

    fn layer(&self, inner: S) -> Self::Service {
        Attempts {
            inner,
            metrics: Arc::clone(&self.metrics),
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
            counts: self.metrics.vendors.of(&route.vendor.name),
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
        // The answer is inspected in place, because it is large to move.
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
                // A model name that the vendor does not know is a configuration mistake and must not look like an
                // outage.
                Err(error) if error.is_the_vendors() && !error.is_model_unknown_to_vendor() => {
                    counts.failed();
                }
                Err(_) => {}
            }
        }
        polled
    }
}
