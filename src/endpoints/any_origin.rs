//! Lets pages of any origin read a refusal of what they may read: the price list, and what stands beside it. A
//! browser would tell them of a failed connection otherwise, and of no limit to wait for.

use std::{
    convert::Infallible,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll, ready},
};

use http::{
    HeaderValue, Request, Response,
    header::{ACCESS_CONTROL_ALLOW_ORIGIN, ACCESS_CONTROL_EXPOSE_HEADERS},
};
use pin_project_lite::pin_project;
use tower::{Layer, Service};

use super::router::Names;

/// Marks refusals of public documents.
#[derive(Clone, Debug)]
pub struct AnyOriginLayer {
    names: Arc<Names>,
}

impl AnyOriginLayer {
    /// `service` is the path segment that names the service.
    #[must_use]
    pub fn new(service: &str) -> Self {
        Self {
            names: Arc::new(Names::new(service)),
        }
    }
}

impl<S> Layer<S> for AnyOriginLayer {
    type Service = AnyOrigin<S>;

    fn layer(&self, inner: S) -> Self::Service {
        AnyOrigin {
            inner,
            names: Arc::clone(&self.names),
        }
    }
}

/// The service of [`AnyOriginLayer`].
#[derive(Clone, Debug)]
pub struct AnyOrigin<S> {
    inner: S,
    names: Arc<Names>,
}

impl<S, B, A> Service<Request<B>> for AnyOrigin<S>
where
    S: Service<Request<B>, Response = Response<A>, Error = Infallible>,
{
    type Response = Response<A>;
    type Error = Infallible;
    type Future = ResponseFuture<S::Future>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        self.inner.poll_ready(cx)
    }

    fn call(&mut self, req: Request<B>) -> Self::Future {
        let is_public = self.names.is_public(req.uri().path());
        ResponseFuture {
            inner: self.inner.call(req),
            is_public,
        }
    }
}

pin_project! {
    /// The answer's future.
    #[derive(Debug)]
    pub struct ResponseFuture<F> {
        #[pin]
        inner: F,
        is_public: bool,
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
        let status = res.status();
        if *this.is_public && (status.is_client_error() || status.is_server_error()) {
            let anybody = HeaderValue::from_static("*");
            let headers = res.headers_mut();
            headers.insert(ACCESS_CONTROL_ALLOW_ORIGIN, anybody);
            let told = HeaderValue::from_static("retry-after, x-request-id");
            headers.insert(ACCESS_CONTROL_EXPOSE_HEADERS, told);
        }
        Poll::Ready(Ok(res))
    }
}

#[cfg(test)]
mod tests {
    use http::StatusCode;
    use tower::{ServiceExt, service_fn};

    use super::*;

    #[tokio::test]
    async fn refusals_of_public_documents_alone_may_be_read_from_anywhere() {
        for (path, status, marked) in [
            ("/v1/tollgate/models", 429, true),
            ("/v1/tollgate/models", 405, true),
            ("/v1/tollgate/models", 503, true),
            ("/v1/tollgate/models", 200, false),
            ("/v1/tollgate/connect/zed", 429, true),
            ("/openapi.yaml", 429, true),
            ("/v1/other/models", 404, false),
            ("/v1/models", 401, false),
            ("/v1/tollgate/key", 429, false),
            ("/v1/chat/completions", 429, false),
        ] {
            let answers = service_fn(move |_: Request<()>| async move {
                let mut res = Response::new(());
                *res.status_mut() = StatusCode::from_u16(status).unwrap();
                Ok(res)
            });
            let service = AnyOriginLayer::new("tollgate").layer(answers);
            let req = Request::get(path).body(()).unwrap();
            let Ok(res) = service.oneshot(req).await;
            let found = res.headers().get(ACCESS_CONTROL_ALLOW_ORIGIN);
            assert_eq!(found.is_some(), marked, "{path} {status}");
            let told = res.headers().get(ACCESS_CONTROL_EXPOSE_HEADERS);
            assert_eq!(told.is_some(), marked, "{path} {status}");
        }
    }
}
