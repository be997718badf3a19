//! Sends a call to its vendor over pooled hyper connections, with the vendor's URL, key and timeouts.
//!
//! Only two headers of the caller are forwarded: `anthropic-version` and `anthropic-beta`. Redirects are not followed.
//!
//! A request is sent once, with one exception: if a pooled connection ends before a byte of a response, the request is
//! sent once more, over a new connection. The failover layer decides about retries after failures of the vendor.
//!
//! ```no_run
//! use std::{sync::Arc, time::Duration};
//!
//! use http::{Request, Uri};
//! use http_body_util::BodyExt;
//! use tollgate_layers::{
//!     call::{Format, Outbound},
//!     model::{ModelKind, Route, Vendor},
//!     upstream::Upstream,
//!     usage::Meter,
//! };
//! use tower::ServiceExt;
//!
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let endpoint = Uri::from_static("https://api.openai.com/v1/chat/completions");
//! let key = Format::Chat.credential(&std::env::var("OPENAI_API_KEY")?)?;
//! let vendor = Vendor::new("openai", Format::Chat, endpoint, key)
//!     .first_byte_timeout(Duration::from_secs(30));
//! let upstream = Upstream::new(Duration::from_secs(900));
//!
//! let outbound = Outbound {
//!     route: Arc::new(Route::new(vendor, "gpt-5-mini")),
//!     credential: 0,
//!     body: r#"{"model":"gpt-5-mini","messages":[{"role":"user","content":"Hello"}]}"#.into(),
//!     stream: false,
//!     choices: 1,
//!     kind: ModelKind::Chat,
//!     strip_usage: false,
//!     meter: Meter::default(),
//! };
//! let answer = upstream.oneshot(Request::new(outbound)).await?.into_body().collect().await?;
//! println!("{}", String::from_utf8_lossy(&answer.to_bytes()));
//! # Ok(())
//! # }
//! ```

mod body;
mod clients;
mod connect;
mod driven;
mod egress;
mod functions;
mod login;
mod refusal;
mod request;

use std::{
    pin::Pin,
    sync::Arc,
    task::{Context, Poll},
    time::Duration,
};

use http::{
    HeaderMap, HeaderName, HeaderValue, Method, Request, Response,
    header::{ACCEPT, ACCEPT_ENCODING, AUTHORIZATION, CONTENT_TYPE, USER_AGENT},
};
use tokio::time::Instant;
use tower_service::Service;

use self::{
    body::Patience,
    clients::{Clients, VendorClient},
    connect::TooSlow,
    request::{BoxRequest, RequestBody},
};
pub use self::{body::ResponseBody, connect::check_authorities, egress::EgressClient};
use crate::{
    call::{Format, Outbound},
    error::{BoxError, Error, VendorUnreached},
    heads::emptied,
    model::{Authentication, Egress, ModelKind, Route, Vendor},
    setting::Setting,
    usage::Meter,
};

const X_API_KEY: HeaderName = HeaderName::from_static("x-api-key");
/// Headers of the Messages format that are forwarded to vendors, because coding tools depend on them.
const ANTHROPIC_VERSION: HeaderName = HeaderName::from_static("anthropic-version");
const ANTHROPIC_BETA: HeaderName = HeaderName::from_static("anthropic-beta");

// Constants are checked at compile time. Other header values would be checked each time they are created.
const JSON: HeaderValue = HeaderValue::from_static("application/json");
const EVENTS: HeaderValue = HeaderValue::from_static("text/event-stream");
const IDENTITY: HeaderValue = HeaderValue::from_static("identity");
const TOLLGATE: HeaderValue =
    HeaderValue::from_static(concat!("tollgate/", env!("CARGO_PKG_VERSION")));
/// The API version that is sent for callers that state none, for example callers of the Chat Completions format.
const VERSION: HeaderValue = HeaderValue::from_static("2023-06-01");

/// The maximum number of headers that are sent to a vendor; it includes `host` and `content-length`.
const HEADERS: usize = 9;

/// The innermost service. It turns a `Request<Outbound>` into the vendor's response, or into an error that states why
/// there is no response.
#[derive(Clone)]
pub struct Upstream {
    shared: Arc<Shared>,
}

struct Shared {
    call_time_max: Setting<Duration>,
    clients: Clients,
}

impl Upstream {
    /// Creates a service whose responses end at most `call_time_max` after their request.
    #[must_use]
    pub fn new(call_time_max: impl Into<Setting<Duration>>) -> Self {
        Self {
            shared: Arc::new(Shared {
                call_time_max: call_time_max.into(),
                clients: Clients::default(),
            }),
        }
    }

    /// Closes the idle connections of vendors that are not in `vendors`, and drops the clients of these vendors'
    /// proxies. Call this after the configuration was reloaded. Running calls continue unchanged.
    pub fn retain<'a>(&self, vendors: impl IntoIterator<Item = &'a Vendor>) {
        let used: Vec<&Egress> = vendors.into_iter().map(|vendor| &*vendor.egress).collect();
        self.shared.clients.retain(&used);
    }
}

debug_fields!(impl[] Upstream { call_time_max: shared.call_time_max });

impl Service<Request<Outbound>> for Upstream {
    type Response = Response<ResponseBody>;
    type Error = Error;
    type Future = Pin<Box<dyn Future<Output = Result<Self::Response, Error>> + Send>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Error>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, req: Request<Outbound>) -> Self::Future {
        match self.sending(req) {
            Ok(sending) => Box::pin(sending.head()),
            Err(error) => Box::pin(async { Err(error) }),
        }
    }
}

/// A request that is ready to be sent to its vendor, with its timeouts.
struct Sending {
    client: VendorClient,
    route: Arc<Route>,
    req: BoxRequest,
    meter: Meter,
    began: Instant,
    /// The deadline for the head of the response.
    head: Instant,
    patience: Patience,
}

impl Upstream {
    fn sending(&self, req: Request<Outbound>) -> Result<Sending, Error> {
        let (parts, outbound) = req.into_parts();
        let Outbound {
            route,
            credential,
            body,
            stream,
            kind,
            meter,
            ..
        } = outbound;
        let vendor = &*route.vendor;
        let body = match route.dialect.functions {
            true if kind == ModelKind::Chat => functions::request(&body.to_bytes())?.into(),
            _ => body,
        };
        let began = Instant::now();
        let deadline = began + self.shared.call_time_max.get();
        // The head of a plain response arrives only after all tokens have been generated, so its timeout is longer.
        let head = deadline.min(if stream {
            began + vendor.first_byte_timeout
        } else {
            began + vendor.plain_timeout
        });
        let patience = Patience {
            first: stream.then_some(head),
            idle: vendor.idle_timeout,
            deadline,
        };
        let clients = &self.shared.clients;
        let client = clients.get(&vendor.egress).map_err(Error::Internal)?;
        let Some(credential) = vendor.credentials.get(credential).cloned() else {
            let why = "the vendor has no credential with this index";
            return Err(Error::Internal(why.into()));
        };
        let headers = vendor_headers(parts.headers, vendor, stream, credential);
        let mut req = Request::new(RequestBody::new(body, meter.clone()));
        *req.method_mut() = Method::POST;
        *req.headers_mut() = headers;
        Ok(Sending {
            client,
            route,
            req: Box::new(req),
            meter,
            began,
            head,
            patience,
        })
    }
}

impl Sending {
    /// Waits for the head of the response.
    ///
    /// This is not an `async fn`, because its future would store all fields of `Sending` twice.
    fn head(self) -> impl Future<Output = Result<Response<ResponseBody>, Error>> + Send {
        let Self {
            client,
            route,
            req,
            meter,
            began,
            head,
            patience,
        } = self;
        async move {
            let address = &route.vendor.endpoint;
            let sent = match &route.vendor.authentication {
                // This future is boxed because few vendors have logins. Otherwise every call's future would reserve
                // space for it.
                Authentication::Login(login) => {
                    Box::pin(login::send(&**login, &client, address, req, began, head)).await
                }
                _ => client.send(address, req, began, head).await,
            };
            let failure = match sent {
                Ok(Some(res)) => {
                    if res.status() == http::StatusCode::OK {
                        let has_functions = route.dialect.functions;
                        let body = |inner| ResponseBody::new(inner, patience, has_functions);
                        return Ok(res.map(body));
                    }
                    let until = patience.deadline.min(Instant::now() + patience.idle);
                    // This future is boxed because few calls are refused. Otherwise every call's future would reserve
                    // space for it.
                    Box::pin(refusal::read(res, until)).await
                }
                Ok(None) => Error::VendorTimeout {
                    awaited: "first byte",
                },
                Err(error) => {
                    let sent = meter.look(|reading| reading.dispatched);
                    no_answer(&error, sent)
                }
            };
            meter.refused();
            Err(failure)
        }
    }
}

fn no_answer(error: &BoxError, sent: bool) -> Error {
    // The text contains all causes of the error, so that the log shows, for example, whether the proxy or a certificate
    // failed.
    let mut text = String::new();
    let mut next: Option<&(dyn std::error::Error + 'static)> = Some(&**error);
    while let Some(cause) = next {
        if cause.is::<TooSlow>() {
            return Error::VendorTimeout {
                awaited: "connection",
            };
        }
        let separator = if text.is_empty() { "" } else { ": " };
        text = format!("{text}{separator}{cause}");
        next = cause.source();
    }
    Error::VendorUnavailable(if sent {
        text.into()
    } else {
        VendorUnreached(text).into()
    })
}

/// Builds the headers of the request to the vendor. Of the caller's headers, only `anthropic-version` and
/// `anthropic-beta` are forwarded.
fn vendor_headers(
    caller: HeaderMap,
    vendor: &Vendor,
    stream: bool,
    credential: HeaderValue,
) -> HeaderMap {
    let messages = match vendor.format {
        Format::Chat | Format::Responses => None,
        Format::Messages => {
            let version = caller.get(ANTHROPIC_VERSION).cloned();
            Some((version, betas(&caller, &vendor.betas_removed)))
        }
    };
    let mut headers = emptied(caller);
    headers.reserve(HEADERS);
    headers.insert(CONTENT_TYPE, JSON);
    headers.insert(ACCEPT, if stream { EVENTS } else { JSON });
    headers.insert(ACCEPT_ENCODING, IDENTITY);
    headers.insert(USER_AGENT, TOLLGATE);
    let key_header = match messages {
        None => AUTHORIZATION,
        Some((version, betas)) => {
            headers.insert(ANTHROPIC_VERSION, version.unwrap_or(VERSION));
            if let Some(betas) = betas {
                headers.insert(ANTHROPIC_BETA, betas);
            }
            X_API_KEY
        }
    };
    match &vendor.authentication {
        Authentication::Key => drop(headers.insert(key_header, credential)),
        Authentication::Header(name) => drop(headers.insert(name.clone(), credential)),
        Authentication::Login(_) | Authentication::None => {}
    }
    for (name, value) in &vendor.headers {
        headers.insert(name.clone(), value.clone());
    }
    headers
}

/// Returns whether the beta's name begins with this prefix. Upper and lower case are equal, because a vendor may ignore
/// the case.
fn begins_with(beta: &str, prefix: &str) -> bool {
    let begin = beta.as_bytes().get(..prefix.len());
    begin.is_some_and(|begin| begin.eq_ignore_ascii_case(prefix.as_bytes()))
}

/// Returns the betas that the caller requests, without those that change the price.
fn betas(client: &HeaderMap, removed: &[String]) -> Option<HeaderValue> {
    let lines = client.get_all(ANTHROPIC_BETA).iter();
    let lines = lines.filter_map(|line| line.to_str().ok());
    let stored: Vec<&str> = lines
        .flat_map(|line| line.split(','))
        .map(str::trim)
        .filter(|beta| !beta.is_empty() && !removed.iter().any(|prefix| begins_with(beta, prefix)))
        .collect();
    HeaderValue::try_from(stored.join(","))
        .ok()
        .filter(|value| !value.is_empty())
}
