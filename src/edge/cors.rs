//! Adds CORS headers, which let web pages read responses. Pages of any origin may read the price list and the other
//! public documents. Pages of configured origins may read all responses. Without CORS headers, a browser hides the
//! response's body, status and headers from the page.

use std::{
    convert::Infallible,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll, ready},
};

use bytes::Bytes;
use http::{
    HeaderMap, HeaderValue, Method, Request, Response, StatusCode,
    header::{
        ACCESS_CONTROL_ALLOW_HEADERS, ACCESS_CONTROL_ALLOW_METHODS, ACCESS_CONTROL_ALLOW_ORIGIN,
        ACCESS_CONTROL_EXPOSE_HEADERS, ACCESS_CONTROL_MAX_AGE, ACCESS_CONTROL_REQUEST_HEADERS,
        ACCESS_CONTROL_REQUEST_METHOD, ORIGIN, VARY,
    },
};
use pin_project_lite::pin_project;
use tollgate_layers::{
    body::{AnswerBody, full},
    setting::Setting,
};
use tower::{Layer, Service};

use super::routes::{Route, Routes};

const ANY: HeaderValue = HeaderValue::from_static("*");

/// The response headers that a page's script may read.
const EXPOSED: HeaderValue = HeaderValue::from_static(
    "retry-after, x-should-retry, x-request-id, request-id, x-cost-rub, x-estimated, idempotent-replayed, \
     idempotent-stored, x-original-request-id",
);

/// How long a browser may cache the response to a preflight request, in seconds.
const PREFLIGHT_SECONDS: HeaderValue = HeaderValue::from_static("600");

/// The origins of web pages that may send requests with a key from a browser.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Origins(Arc<[HeaderValue]>);

impl Origins {
    /// Returns the value of `access-control-allow-origin` for a page of `origin`; `None` if the origin is not allowed.
    fn allow(&self, origin: &HeaderValue) -> Option<HeaderValue> {
        match self.0.contains(&ANY) {
            true => Some(ANY),
            false => self.0.contains(origin).then(|| origin.clone()),
        }
    }
}

impl FromIterator<HeaderValue> for Origins {
    /// Creates the set of origins, each as browsers send it in the header `origin`. The item `*` allows any origin.
    fn from_iter<I: IntoIterator<Item = HeaderValue>>(origins: I) -> Self {
        Self(origins.into_iter().collect())
    }
}

/// Request extension that marks an allowed preflight request. The router answers such a request with the methods of its
/// path.
#[derive(Clone, Copy, Debug)]
pub(super) struct Preflight;

/// Returns the response to a preflight request for a path with these methods. [`CorsLayer`] adds the header for the
/// origin.
pub(super) fn preflight(methods: &'static str, requested: &HeaderMap) -> Response<AnswerBody> {
    let mut res = Response::new(full(Bytes::new()));
    *res.status_mut() = StatusCode::NO_CONTENT;
    let headers = res.headers_mut();
    let methods = HeaderValue::from_static(methods);
    headers.insert(ACCESS_CONTROL_ALLOW_METHODS, methods);
    // All requested headers are allowed, because clients send various headers of their own. The request that follows
    // the preflight is checked when it arrives.
    if let Some(names) = requested.get(ACCESS_CONTROL_REQUEST_HEADERS) {
        headers.insert(ACCESS_CONTROL_ALLOW_HEADERS, names.clone());
    }
    headers.insert(ACCESS_CONTROL_MAX_AGE, PREFLIGHT_SECONDS);
    let varies = HeaderValue::from_static("access-control-request-headers");
    headers.insert(VARY, varies);
    res
}

/// Layer that adds CORS headers to responses that web pages may read.
#[derive(Clone, Debug)]
pub struct CorsLayer {
    routes: Arc<Routes>,
    origins: Setting<Origins>,
}

impl CorsLayer {
    /// Creates a layer that lets pages of any origin read the responses of the public `routes`, and pages of `origins`
    /// read all responses.
    pub(crate) fn new(routes: Routes, origins: impl Into<Setting<Origins>>) -> Self {
        Self {
            routes: Arc::new(routes),
            origins: origins.into(),
        }
    }

    /// Returns the value of `access-control-allow-origin` for the response to this request; `None` if the page must not
    /// read the response.
    fn allow<B>(&self, req: &Request<B>) -> Option<HeaderValue> {
        let route = self.routes.find(req.uri().path());
        match route.is_some_and(Route::is_public) {
            true => Some(ANY),
            false => self.origins.get().allow(req.headers().get(ORIGIN)?),
        }
    }
}

fn is_preflight<B>(req: &Request<B>) -> bool {
    let headers = req.headers();
    *req.method() == Method::OPTIONS
        && headers.contains_key(ORIGIN)
        && headers.contains_key(ACCESS_CONTROL_REQUEST_METHOD)
}

impl<S> Layer<S> for CorsLayer {
    type Service = Cors<S>;

    fn layer(&self, inner: S) -> Self::Service {
        Cors {
            inner,
            layer: self.clone(),
        }
    }
}

/// The service that [`CorsLayer`] creates.
#[derive(Clone, Debug)]
pub struct Cors<S> {
    inner: S,
    layer: CorsLayer,
}

impl<S, B, A> Service<Request<B>> for Cors<S>
where
    S: Service<Request<B>, Response = Response<A>, Error = Infallible>,
{
    type Response = Response<A>;
    type Error = Infallible;
    type Future = ResponseFuture<S::Future>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        self.inner.poll_ready(cx)
    }

    fn call(&mut self, mut req: Request<B>) -> Self::Future {
        let allow = self.layer.allow(&req);
        if allow.is_some() && is_preflight(&req) {
            req.extensions_mut().insert(Preflight);
        }
        ResponseFuture {
            inner: self.inner.call(req),
            allow,
        }
    }
}

pin_project! {
    /// The future of [`Cors`], which adds CORS headers if the page may read the response.
    #[derive(Debug)]
    pub struct ResponseFuture<F> {
        #[pin]
        inner: F,
        allow: Option<HeaderValue>,
    }
}

impl<F, A> Future for ResponseFuture<F>
where
    F: Future<Output = Result<Response<A>, Infallible>>,
{
    type Output = F::Output;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<F::Output> {
        let this = self.project();
        let Ok(mut res) = ready!(this.inner.poll(cx));
        if let Some(allow) = this.allow.take() {
            let headers = res.headers_mut();
            if allow != ANY {
                headers.append(VARY, HeaderValue::from_static("origin"));
            }
            headers.insert(ACCESS_CONTROL_ALLOW_ORIGIN, allow);
            headers.insert(ACCESS_CONTROL_EXPOSE_HEADERS, EXPOSED);
        }
        Poll::Ready(Ok(res))
    }
}

#[cfg(test)]
mod tests {
    use tower::{ServiceExt, service_fn};

    use super::*;

    const PAGE: &str = "https://app.example";

    /// Sends a request from a page of `origin`. Returns the headers of the response, and whether the request was an
    /// allowed preflight.
    async fn requested(
        origins: &[&'static str],
        (method, path, origin): (&str, &str, Option<&str>),
        status: u16,
    ) -> (HeaderMap, bool) {
        let origins: Origins = origins
            .iter()
            .map(|origin| HeaderValue::from_static(origin))
            .collect();
        let answers = service_fn(move |req: Request<()>| async move {
            let mut res = Response::new(req.extensions().get::<Preflight>().is_some());
            *res.status_mut() = StatusCode::from_u16(status).unwrap();
            Ok(res)
        });
        let service = CorsLayer::new(Routes::new("tollgate"), origins).layer(answers);
        let mut req = Request::builder().method(method).uri(path);
        if let Some(origin) = origin {
            req = req.header(ORIGIN, origin);
        }
        if method == "OPTIONS" {
            req = req.header(ACCESS_CONTROL_REQUEST_METHOD, "POST");
        }
        let Ok(res) = service.oneshot(req.body(()).unwrap()).await;
        (res.headers().clone(), *res.body())
    }

    #[tokio::test]
    async fn pages_of_any_origin_read_public_documents_and_only_allowed_origins_read_the_rest() {
        const CHAT: &str = "/v1/chat/completions";
        for (origins, path, origin, allowed) in [
            (&[][..], "/v1/tollgate/models", None, Some("*")),
            (
                &[PAGE],
                "/v1/tollgate/models",
                Some("https://other.example"),
                Some("*"),
            ),
            (&[], "/v1/tollgate/connect/zed", None, Some("*")),
            (&[], "/openapi.yaml", None, Some("*")),
            (&[], CHAT, Some(PAGE), None),
            (&[], "/v1/tollgate/key", Some(PAGE), None),
            (&[], "/v1/other/models", Some(PAGE), None),
            (&[PAGE], CHAT, Some(PAGE), Some(PAGE)),
            (&[PAGE], "/v1/tollgate/key", Some(PAGE), Some(PAGE)),
            (&[PAGE], "/v1/models", Some(PAGE), Some(PAGE)),
            (
                &[PAGE],
                CHAT,
                Some("https://app.example.evil.example"),
                None,
            ),
            (&[PAGE], CHAT, Some("http://app.example"), None),
            (&[PAGE], CHAT, Some("null"), None),
            (&[PAGE], CHAT, None, None),
            (&["*"], CHAT, Some("https://other.example"), Some("*")),
        ] {
            for status in [200, 401, 429, 503] {
                let (headers, _) = requested(origins, ("POST", path, origin), status).await;
                let found = headers.get(ACCESS_CONTROL_ALLOW_ORIGIN);
                let what = format!("{origins:?} {path} {origin:?} {status}");
                assert_eq!(
                    found.map(|value| value.to_str().unwrap()),
                    allowed,
                    "{what}"
                );
                assert_eq!(
                    headers.contains_key(ACCESS_CONTROL_EXPOSE_HEADERS),
                    allowed.is_some(),
                    "{what}"
                );
                assert_eq!(headers.contains_key(VARY), allowed == Some(PAGE), "{what}");
            }
        }
    }

    #[tokio::test]
    async fn preflight_request_is_answered_for_allowed_origins() {
        for (origins, method, path, origin, is_preflight) in [
            (&[PAGE][..], "OPTIONS", "/v1/messages", Some(PAGE), true),
            (&["*"], "OPTIONS", "/v1/messages", Some(PAGE), true),
            (&[], "OPTIONS", "/v1/tollgate/models", Some(PAGE), true),
            (&[], "OPTIONS", "/v1/messages", Some(PAGE), false),
            (
                &[PAGE],
                "OPTIONS",
                "/v1/messages",
                Some("https://other.example"),
                false,
            ),
            (&[PAGE], "OPTIONS", "/v1/messages", None, false),
            (&[PAGE], "POST", "/v1/messages", Some(PAGE), false),
        ] {
            let (_, marked) = requested(origins, (method, path, origin), 200).await;
            assert_eq!(
                marked, is_preflight,
                "{origins:?} {method} {path} {origin:?}"
            );
        }
    }
}
