//! `POST /v1/messages/count_tokens`: asked of a vendor that speaks the messages format, estimated for
//! any other. Free, so nothing is held.

use std::{
    pin::Pin,
    sync::Arc,
    task::{Context, Poll},
};

use bytes::Bytes;
use http::{HeaderValue, Request, Response, Uri, header::CONTENT_TYPE};
use http_body::Body;
use http_body_util::{BodyExt, Limited};
use serde_json::{Value, json};
use tollgate_layers::{
    Error,
    body::{AnswerBody, full},
    call::{Format, Outbound, Priced},
    model::{ModelKind, Route},
    translate::{messages::estimate_input_tokens, splice},
};
use tower::Service;

/// A count is a number and some words around it.
const ANSWER_BYTES_MAX: usize = 64 * 1024;

/// Counts the input tokens of a messages request.
#[derive(Clone, Debug)]
pub struct CountTokens<S> {
    upstream: S,
}

impl<S> CountTokens<S> {
    /// Asks vendors through `upstream`.
    pub const fn new(upstream: S) -> Self {
        Self { upstream }
    }
}

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
        self.upstream.poll_ready(cx)
    }

    fn call(&mut self, req: Request<Priced>) -> Self::Future {
        let (parts, priced) = req.into_parts();
        let routes = priced.model.routes.iter();
        let mut spoken = routes.map(|route| route.speaking(Format::Messages));
        let Some(route) = spoken.find(|route| route.vendor.format == Format::Messages) else {
            let tokens = estimate_input_tokens(&priced.call.input);
            return Box::pin(async move { Ok(answer(tokens)) });
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
        let call = self.upstream.call(Request::from_parts(parts, outbound));
        Box::pin(async move {
            let body = Limited::new(call.await?.into_body(), ANSWER_BYTES_MAX);
            let bytes = body
                .collect()
                .await
                .map_err(Error::VendorBroken)?
                .to_bytes();
            let counted: Value = serde_json::from_slice(&bytes).unwrap_or_default();
            let tokens = counted["input_tokens"].as_u64();
            tokens
                .map(answer)
                .ok_or_else(|| Error::VendorBroken("no input_tokens".into()))
        })
    }
}

/// The route, with the vendor's address for counting.
fn counting(route: &Route) -> Result<Route, Error> {
    let endpoint: Uri = format!("{}/count_tokens", route.vendor.endpoint)
        .parse()
        .map_err(|error: http::uri::InvalidUri| Error::Internal(error.into()))?;
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
