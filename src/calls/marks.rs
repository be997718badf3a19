//! Where in the stack a request's record is written to: each stands below the layer that finds the fact
//! out.

use http::Request;
use tollgate_layers::{
    call::{Call, Outbound, Priced},
    facts::Caller,
};

use super::CallRecord;

/// It has a permit of `in_flight`.
pub(crate) fn admitted<B>(req: Request<B>) -> Request<B> {
    mark(&req, CallRecord::admitted);
    req
}

/// `auth` knows its key.
pub(crate) fn known<B>(req: Request<B>) -> Request<B> {
    if let Some(Caller(key)) = req.extensions().get() {
        mark(&req, |record| record.known(key.clone()));
    }
    req
}

/// `parse` knows its model.
pub(crate) fn parsed(req: Request<Call>) -> Request<Call> {
    let call = req.body();
    mark(&req, |record| record.parsed(call));
    req
}

/// `reserve` holds money for it.
pub(crate) fn granted(req: Request<Priced>) -> Request<Priced> {
    mark(&req, CallRecord::granted);
    req
}

/// It goes to its vendor.
pub(crate) fn sent(req: Request<Outbound>) -> Request<Outbound> {
    mark(&req, CallRecord::sent);
    req
}

fn mark<B>(req: &Request<B>, write: impl FnOnce(&CallRecord)) {
    if let Some(record) = req.extensions().get() {
        write(record);
    }
}
