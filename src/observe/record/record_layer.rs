//! Positions in the stack at which a fact is recorded about a request. Each position is below the layer that determines
//! the fact.

use std::task::{Context, Poll};

use http::Request;
use tollgate_layers::{
    call::{Call, Outbound, Priced},
    facts::Caller,
};
use tower::{Layer, Service};

use super::CallRecord;

/// Passes each request on its way down to one of the functions of this module, which records a fact.
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

/// Records that the request has a permit of `in_flight`.
pub(crate) fn admitted<B>(req: &Request<B>) {
    mark(req, CallRecord::admitted);
}

/// Records that `auth` has found the key.
pub(crate) fn known<B>(req: &Request<B>) {
    if let Some(Caller(key)) = req.extensions().get() {
        mark(req, |record| record.known(key.clone()));
    }
}

/// Records that `parse` has found the model.
pub(crate) fn parsed(req: &Request<Call>) {
    mark(req, |record| record.parsed(req.body()));
}

/// Records that `reserve` holds money for the request.
pub(crate) fn granted(req: &Request<Priced>) {
    mark(req, |record| record.granted(&req.body().meter));
}

/// Records that the request is sent to its vendor.
pub(crate) fn sent(req: &Request<Outbound>) {
    mark(req, CallRecord::sent);
}

fn mark<B>(req: &Request<B>, write: impl FnOnce(&CallRecord)) {
    if let Some(record) = req.extensions().get() {
        write(record);
    }
}
