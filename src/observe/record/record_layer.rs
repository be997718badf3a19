//! Layers that record a fact about a request. Each is placed in the stack below the layer that determines the fact.

use std::task::{Context, Poll};

use http::Request;
use tollgate_layers::{
    call::{Call, Outbound, Priced},
    facts::Caller,
};
use tower::{Layer, Service};

use super::call_record::CallRecord;

/// Calls a function with each request before the request is passed to the inner service. The function, one of this
/// module's, records a fact about the request.
#[derive(Clone, Copy, Debug)]
pub(crate) struct RecordLayer<M>(pub(crate) M);

impl<S, M: Clone> Layer<S> for RecordLayer<M> {
    type Service = Recording<S, M>;

    fn layer(&self, inner: S) -> Self::Service {
        Recording {
            inner,
            mark: self.0.clone(),
        }
    }
}

/// The service of [`RecordLayer`].
#[derive(Clone, Copy, Debug)]
pub(crate) struct Recording<S, M> {
    inner: S,
    mark: M,
}

impl<S, M, B> Service<Request<B>> for Recording<S, M>
where
    S: Service<Request<B>>,
    M: Fn(&Request<B>),
{
    type Response = S::Response;
    type Error = S::Error;
    type Future = S::Future;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), S::Error>> {
        self.inner.poll_ready(cx)
    }

    fn call(&mut self, req: Request<B>) -> S::Future {
        (self.mark)(&req);
        self.inner.call(req)
    }
}

/// Records that `in_flight` has given the request a permit.
pub(crate) fn admitted<B>(req: &Request<B>) {
    mark(req, CallRecord::admitted);
}

/// Records the key that `auth` has found for the request.
pub(crate) fn known<B>(req: &Request<B>) {
    if let Some(Caller(key)) = req.extensions().get() {
        mark(req, |record| record.known(key.clone()));
    }
}

/// Records the model that `parse` has found in the request.
pub(crate) fn parsed(req: &Request<Call>) {
    mark(req, |record| record.parsed(req.body()));
}

/// Records that `reserve` has made a hold for the request.
pub(crate) fn granted(req: &Request<Priced>) {
    mark(req, |record| record.granted(&req.body().meter));
}

/// Records that the request is being sent to its vendor.
pub(crate) fn sent(req: &Request<Outbound>) {
    mark(req, CallRecord::sent);
}

fn mark<B>(req: &Request<B>, write: impl FnOnce(&CallRecord)) {
    if let Some(record) = req.extensions().get() {
        write(record);
    }
}
