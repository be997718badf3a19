//! JSON answers of the gateway itself, each for a single caller, so they must not be cached.

use http::{
    HeaderValue, Response,
    header::{CACHE_CONTROL, CONTENT_TYPE},
};
use serde::Serialize;
use tollgate_layers::body::{AnswerBody, full};

/// Answers with `value` as JSON, which must not be cached.
pub(crate) fn json(value: &impl Serialize) -> Response<AnswerBody> {
    let bytes = serde_json::to_vec(value).expect("texts and numbers serialize to JSON");
    let mut res = Response::new(full(bytes));
    let headers = res.headers_mut();
    headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
    headers.insert(CACHE_CONTROL, HeaderValue::from_static("no-store"));
    res
}
