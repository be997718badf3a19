//! Functions that record a fact about a request. Each is placed in the stack, by `map_request`, below the layer that
//! determines the fact. It returns the request unchanged.

use http::Request;
use tollgate_layers::{
    call::{Call, Outbound, Priced},
    facts::Caller,
};

use super::call_record::CallRecord;

/// Records that `in_flight` has given the request a permit.
pub(crate) fn admitted<B>(req: Request<B>) -> Request<B> {
    mark(&req, CallRecord::admitted);
    req
}

/// Records the key that `auth` has found for the request.
pub(crate) fn known<B>(req: Request<B>) -> Request<B> {
    if let Some(Caller(key)) = req.extensions().get() {
        mark(&req, |record| record.known(key.clone()));
    }
    req
}

/// Records the model that `parse` has found in the request.
pub(crate) fn parsed(req: Request<Call>) -> Request<Call> {
    mark(&req, |record| record.parsed(req.body()));
    req
}

/// Records that `reserve` has made a hold for the request.
pub(crate) fn granted(req: Request<Priced>) -> Request<Priced> {
    mark(&req, |record| record.granted(&req.body().meter));
    req
}

/// Records that the request is being sent to its vendor.
pub(crate) fn sent(req: Request<Outbound>) -> Request<Outbound> {
    mark(&req, CallRecord::sent);
    req
}

fn mark<B>(req: &Request<B>, write: impl FnOnce(&CallRecord)) {
    if let Some(record) = req.extensions().get() {
        write(record);
    }
}
