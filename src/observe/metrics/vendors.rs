//! Vendors: how soon they answer, and how often they do not.

use std::{
    collections::HashMap,
    pin::Pin,
    sync::{Arc, PoisonError, RwLock},
    task::{Context, Poll},
};

use foldhash::fast::FixedState;
use http::{Request, Response};
use pin_project_lite::pin_project;
use prometheus_client::{
    encoding::EncodeLabelSet,
    metrics::{counter::Counter, family::Family, histogram::Histogram},
    registry::Registry,
};
use tokio::time::Instant;
use tollgate_layers::{Error, call::Attempt};
use tower::{Layer, Service};

use super::{Metrics, histograms, requests::HEAD_SECONDS};
use crate::{catalog::snapshot::Snapshot, observe::record::CallRecord};

#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
struct Vendor {
    vendor: Arc<str>,
}

/// The counters of vendors.
#[derive(Debug)]
pub(crate) struct Vendors {
    /// By the name in the config; those of earlier configs stay.
    counts: RwLock<HashMap<Arc<str>, Arc<Counts>, FixedState>>,
    head: Family<Vendor, Histogram>,
    failures: Family<Vendor, Counter>,
}

#[derive(Debug)]
struct Counts {
    head: Histogram,
    failures: Counter,
}

impl Vendors {
    pub(super) fn register(registry: &mut Registry) -> Self {
        let vendors = Self {
            counts: RwLock::default(),
            head: histograms(|| Histogram::new(HEAD_SECONDS)),
            failures: Family::default(),
        };
        registry.register(
            "tollgate_vendor_head_seconds",
            "From a request to a vendor to the beginning of its answer: the first event of a stream, all of a \
             plain answer",
            vendors.head.clone(),
        );
        registry.register(
            "tollgate_vendor_failures",
            "Requests to a vendor that it did not answer: unreachable, too slow, broken, at its limit, or our \
             key refused; a model that it does not have is not counted",
            vendors.failures.clone(),
        );
        vendors
    }

    pub(super) fn follow(&self, snapshot: &Snapshot) {
        let mut counts = self.counts.write().unwrap_or_else(PoisonError::into_inner);
        for vendor in snapshot.vendors() {
            let name = &vendor.name;
            if !counts.contains_key(name) {
                let labels = Vendor {
                    vendor: Arc::clone(name),
                };
                let made = Counts {
                    head: self.head.get_or_create(&labels).clone(),
                    failures: self.failures.get_or_create(&labels).clone(),
                };
                counts.insert(Arc::clone(name), Arc::new(made));
            }
        }
    }

    fn of(&self, vendor: &str) -> Option<Arc<Counts>> {
        let counts = self.counts.read().unwrap_or_else(PoisonError::into_inner);
        counts.get(vendor).cloned()
    }
}

/// Counts each attempt at a vendor, and notes whose it was. Stands below `failover`.
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
        let route = &req.body().route;
        let record = req.extensions().get::<CallRecord>();
        ResponseFuture {
            traced: record.and_then(|record| record.attempt(route)),
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
        traced: Option<CallRecord>,
        counts: Option<Arc<Counts>>,
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
        // Looked at where it lies: an answer is large.
        let polled = this.inner.poll(cx);
        let Poll::Ready(result) = &polled else {
            return polled;
        };
        if let (Err(error), Some(record)) = (result, this.traced) {
            record.attempt_failed(error);
        }
        if let Some(counts) = this.counts {
            match result {
                Ok(_) => counts.head.observe(this.began.elapsed().as_secs_f64()),
                // A mistake in the configuration is not to look like an outage.
                Err(error) if error.is_the_vendors() && !error.is_model_unknown_to_vendor() => {
                    counts.failures.inc();
                }
                Err(_) => {}
            }
        }
        polled
    }
}
