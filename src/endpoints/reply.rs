//! JSON responses that must not be cached, because they are for a single caller.

use http::{
    HeaderValue, Response,
    header::{CACHE_CONTROL, CONTENT_TYPE},
};
use serde::Serialize;
use tollgate_layers::body::{AnswerBody, full};

/// Returns a response with `value` as JSON, which must not be cached.
pub(crate) fn json(value: &impl Serialize) -> Response<AnswerBody> {
    let bytes =
        serde_json::to_vec(value).expect("serializing texts and numbers to JSON cannot fail");
    let mut res = Response::new(full(bytes));
    let headers = res.headers_mut();
    headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
    headers.insert(CACHE_CONTROL, HeaderValue::from_static("no-store"));
    res
}
