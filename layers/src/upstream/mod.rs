//! Sends a call to its vendor: a pooled hyper client, with the vendor's address, key and patience.
//!
//! Headers are built from scratch: what is not named here does not cross. Redirects are not followed.

mod body;
mod refusal;

use std::{
    collections::HashMap,
    fmt,
    pin::Pin,
    sync::{Arc, PoisonError, RwLock},
    task::{Context, Poll},
    time::Duration,
};

use http::{
    HeaderMap, HeaderName, HeaderValue, Method, Request, Response,
    header::{ACCEPT, ACCEPT_ENCODING, AUTHORIZATION, CONTENT_TYPE, USER_AGENT},
};
use hyper::body::Incoming;
use hyper_rustls::{HttpsConnector, HttpsConnectorBuilder};
use hyper_util::{
    client::legacy::{Client, connect::HttpConnector},
    rt::{TokioExecutor, TokioTimer},
};
use tokio::time::{Instant, timeout_at};
use tower::Service;

use self::body::RequestBody;
pub use self::body::ResponseBody;
use crate::{
    call::{Format, Outbound},
    error::Error,
};

const X_API_KEY: HeaderName = HeaderName::from_static("x-api-key");
/// Headers of the messages format that tools depend on.
const ANTHROPIC_VERSION: HeaderName = HeaderName::from_static("anthropic-version");
const ANTHROPIC_BETA: HeaderName = HeaderName::from_static("anthropic-beta");

/// A connection that idles this long is closed: before vendors do.
const POOL_IDLE: Duration = Duration::from_secs(50);

type HttpClient = Client<HttpsConnector<HttpConnector>, RequestBody>;

/// The service at the bottom: `Request<Outbound>` → the vendor's answer, or an error that says what
/// of it was no answer.
#[derive(Clone)]
pub struct Upstream {
    shared: Arc<Shared>,
}

struct Shared {
    tls: rustls::ClientConfig,
    call_time_max: Duration,
    /// By the time that a vendor leaves for a connection, which is the connector's to keep.
    clients: RwLock<HashMap<Duration, HttpClient>>,
}

impl Upstream {
    /// Trusts the certificate authorities of Mozilla's list. No answer takes longer than
    /// `call_time_max`.
    #[must_use]
    pub fn new(call_time_max: Duration) -> Self {
        let tls =
            hyper_rustls::ConfigBuilderExt::with_webpki_roots(rustls::ClientConfig::builder())
                .with_no_client_auth();
        Self {
            shared: Arc::new(Shared {
                tls,
                call_time_max,
                clients: RwLock::default(),
            }),
        }
    }

    fn client(&self, connect_timeout: Duration) -> HttpClient {
        let clients = self
            .shared
            .clients
            .read()
            .unwrap_or_else(PoisonError::into_inner);
        if let Some(client) = clients.get(&connect_timeout) {
            return client.clone();
        }
        drop(clients);
        let mut clients = self
            .shared
            .clients
            .write()
            .unwrap_or_else(PoisonError::into_inner);
        clients
            .entry(connect_timeout)
            .or_insert_with(|| new_client(&self.shared.tls, connect_timeout))
            .clone()
    }
}

impl fmt::Debug for Upstream {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Upstream")
            .field("call_time_max", &self.shared.call_time_max)
            .finish_non_exhaustive()
    }
}

fn new_client(tls: &rustls::ClientConfig, connect_timeout: Duration) -> HttpClient {
    let mut http = HttpConnector::new();
    http.enforce_http(false);
    http.set_nodelay(true);
    http.set_connect_timeout(Some(connect_timeout));
    // HTTP/1.1: an h2 connection shared by many streams of small frames is closed by its budget.
    let https = HttpsConnectorBuilder::new()
        .with_tls_config(tls.clone())
        .https_or_http()
        .enable_http1()
        .wrap_connector(http);
    Client::builder(TokioExecutor::new())
        .pool_idle_timeout(POOL_IDLE)
        .pool_timer(TokioTimer::new())
        .timer(TokioTimer::new())
        .build(https)
}

impl Service<Request<Outbound>> for Upstream {
    type Response = Response<ResponseBody<Incoming>>;
    type Error = Error;
    type Future = Pin<Box<dyn Future<Output = Result<Self::Response, Error>> + Send>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Error>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, req: Request<Outbound>) -> Self::Future {
        let this = self.clone();
        Box::pin(async move { this.send(req).await })
    }
}

impl Upstream {
    async fn send(
        &self,
        req: Request<Outbound>,
    ) -> Result<Response<ResponseBody<Incoming>>, Error> {
        let (parts, outbound) = req.into_parts();
        let (meter, vendor) = (outbound.meter.clone(), Arc::clone(&outbound.route.vendor));
        let deadline = Instant::now() + self.shared.call_time_max;
        let req = vendor_request(&parts.headers, outbound);
        let patience = deadline.min(Instant::now() + vendor.first_byte_timeout);
        let answer = timeout_at(patience, self.client(vendor.connect_timeout).request(req)).await;
        let failure = match answer {
            Ok(Ok(res)) if res.status() == http::StatusCode::OK => {
                return Ok(res.map(|inner| ResponseBody::new(inner, vendor.idle_timeout, deadline)));
            }
            Ok(Ok(res)) => {
                // What it says about its refusal is short and soon there, or does not matter.
                let patience = deadline.min(Instant::now() + vendor.idle_timeout);
                timeout_at(patience, refusal::read(res))
                    .await
                    .unwrap_or(Error::VendorTimeout {
                        awaited: "next bytes",
                    })
            }
            Ok(Err(error)) => Error::VendorUnavailable(error.into()),
            Err(_) => Error::VendorTimeout {
                awaited: "first byte",
            },
        };
        meter.refused();
        Err(failure)
    }
}

fn vendor_request(client: &HeaderMap, outbound: Outbound) -> Request<RequestBody> {
    let Outbound {
        route,
        body,
        stream,
        meter,
        ..
    } = outbound;
    let vendor = &route.vendor;
    let mut req = Request::new(RequestBody::new(body, meter));
    *req.method_mut() = Method::POST;
    *req.uri_mut() = vendor.endpoint.clone();
    let headers = req.headers_mut();
    headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
    headers.insert(
        ACCEPT,
        HeaderValue::from_static(if stream {
            "text/event-stream"
        } else {
            "application/json"
        }),
    );
    headers.insert(ACCEPT_ENCODING, HeaderValue::from_static("identity"));
    headers.insert(
        USER_AGENT,
        HeaderValue::from_static(concat!("tollgate/", env!("CARGO_PKG_VERSION"))),
    );
    match vendor.format {
        Format::Chat => headers.insert(AUTHORIZATION, vendor.credential.clone()),
        Format::Messages => {
            let version = client.get(ANTHROPIC_VERSION).cloned();
            // A chat caller has none.
            let version = version.unwrap_or(HeaderValue::from_static("2023-06-01"));
            headers.insert(ANTHROPIC_VERSION, version);
            if let Some(betas) = betas(client, &vendor.betas_removed) {
                headers.insert(ANTHROPIC_BETA, betas);
            }
            headers.insert(X_API_KEY, vendor.credential.clone())
        }
    };
    req
}

/// The betas that the caller asks for, less those that change the price.
fn betas(client: &HeaderMap, removed: &[String]) -> Option<HeaderValue> {
    let lines = client
        .get_all(ANTHROPIC_BETA)
        .iter()
        .filter_map(|line| line.to_str().ok());
    let kept: Vec<&str> = lines
        .flat_map(|line| line.split(','))
        .map(str::trim)
        .filter(|beta| !beta.is_empty() && !removed.iter().any(|prefix| beta.starts_with(prefix)))
        .collect();
    HeaderValue::try_from(kept.join(","))
        .ok()
        .filter(|value| !value.is_empty())
}
