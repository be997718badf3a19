//! `POST /v1/messages/count_tokens`: a vendor that uses the Messages format counts a request's input tokens. If the
//! model has no such vendor, or the vendor does not count tokens, the gateway estimates the number and marks the
//! response with a header. Counting is free, so nothing is held.

use std::{
    pin::Pin,
    sync::Arc,
    task::{Context, Poll},
};

use bytes::Bytes;
use http::{
    HeaderName, HeaderValue, Request, Response, StatusCode, Uri, header::CONTENT_TYPE,
    uri::PathAndQuery,
};
use http_body::Body;
use http_body_util::{BodyExt, Limited};
use serde_json::{Value, json};
use tollgate_layers::{
    Error,
    body::{AnswerBody, full},
    call::{Format, Outbound, Priced},
    error::VendorAnswered,
    model::{ModelKind, Route},
    translate::{messages::estimate_input_tokens, splice},
};
use tower::Service;

/// The maximum size of a vendor's response with a token count, in bytes. The response is a small JSON object with one
/// number.
const ANSWER_BYTES_MAX: usize = 64 * 1024;

/// The header that marks a count as an estimate of the gateway.
pub(crate) const ESTIMATED: HeaderName = HeaderName::from_static("x-estimated");

/// Counts the input tokens of a request in the Messages format.
///
/// Contains the service through which requests are sent to vendors.
#[derive(Clone, Debug)]
pub struct CountTokens<S>(pub(crate) S);

impl<S, A> Service<Request<Priced>> for CountTokens<S>
where
    S: Service<Request<Outbound>, Response = Response<A>, Error = Error>,
    S::Future: Send + 'static,
    A: Body<Data = Bytes, Error = Error> + Send + 'static,
{
    type Response = Response<AnswerBody>;
    type Error = Error;
    type Future = Pin<Box<dyn Future<Output = Result<Self::Response, Error>> + Send>>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), Error>> {
        self.0.poll_ready(cx)
    }

    fn call(&mut self, req: Request<Priced>) -> Self::Future {
        let (parts, priced) = req.into_parts();
        let routes = priced.model.routes.iter();
        let mut spoken = routes.map(|route| route.speaking(Format::Messages));
        let estimate = estimate_input_tokens(&priced.call);
        let Some(route) = spoken.find(|route| route.vendor.format == Format::Messages) else {
            return Box::pin(async move { Ok(estimated(estimate)) });
        };
        let route = match counting(&route) {
            Ok(route) => route,
            Err(error) => return Box::pin(async { Err(error) }),
        };
        let outbound = Outbound {
            body: splice::body(&priced, &route),
            stream: false,
            choices: 1,
            kind: ModelKind::Chat,
            strip_usage: false,
            meter: priced.meter.clone(),
            credential: 0,
            route: Arc::new(route),
        };
        let call = self.0.call(Request::from_parts(parts, outbound));
        Box::pin(async move {
            let res = match call.await {
                Ok(res) => res,
                Err(error) if does_not_count(&error) => return Ok(estimated(estimate)),
                Err(error) => return Err(error),
            };
            let body = Limited::new(res.into_body(), ANSWER_BYTES_MAX);
            let body = body.collect().await.map_err(Error::VendorBroken)?;
            let counted: Value = serde_json::from_slice(&body.to_bytes()).unwrap_or_default();
            let answer = counted["input_tokens"].as_u64().map(answer);
            answer.ok_or_else(|| Error::VendorBroken("the answer has no input_tokens".into()))
        })
    }
}

/// Returns whether the vendor lacks the path for counting tokens, although it serves calls in the Messages format.
fn does_not_count(error: &Error) -> bool {
    const LACKING: [StatusCode; 3] = [
        StatusCode::NOT_FOUND,
        StatusCode::METHOD_NOT_ALLOWED,
        StatusCode::NOT_IMPLEMENTED,
    ];
    let Error::VendorUnavailable(cause) = error else {
        return false;
    };
    let answered = cause.downcast_ref::<VendorAnswered>();
    answered.is_some_and(|answered| LACKING.contains(&answered.status))
}

/// Returns the route with the vendor's URL for counting tokens.
fn counting(route: &Route) -> Result<Route, Error> {
    let endpoint = &route.vendor.endpoint;
    let query = endpoint.query().map(|query| format!("?{query}"));
    let query = query.unwrap_or_default();
    let path = format!("{}/count_tokens{query}", endpoint.path());
    let mut parts = endpoint.clone().into_parts();
    let path = path.parse::<PathAndQuery>();
    parts.path_and_query = Some(path.map_err(|error| Error::Internal(error.into()))?);
    let endpoint = Uri::from_parts(parts).map_err(|error| Error::Internal(error.into()))?;
    let mut route = route.clone();
    Arc::make_mut(&mut route.vendor).endpoint = endpoint;
    Ok(route)
}

fn answer(tokens: u64) -> Response<AnswerBody> {
    let mut res = Response::new(full(json!({ "input_tokens": tokens }).to_string()));
    res.headers_mut()
        .insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
    res
}

fn estimated(tokens: u64) -> Response<AnswerBody> {
    let mut res = answer(tokens);
    let marked = HeaderValue::from_static("true");
    res.headers_mut().insert(ESTIMATED, marked);
    res
}
