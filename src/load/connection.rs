//! Connections that use hyper directly, to have as little overhead as possible.

use std::{fmt, net::SocketAddr, sync::LazyLock, time::Duration};

use bytes::Bytes;
use http::{
    HeaderMap, HeaderName, HeaderValue, Method, Request, StatusCode, Uri,
    header::{ACCEPT, AUTHORIZATION, CONTENT_TYPE, HOST, USER_AGENT},
};
use http_body_util::{BodyExt, Full};
use hyper::{
    body::Incoming,
    client::conn::http1::{self, SendRequest},
    rt::{Read, Write},
};
use hyper_rustls::{HttpsConnector, HttpsConnectorBuilder};
use hyper_util::{client::legacy::connect::HttpConnector, rt::TokioIo};
use memchr::memmem::Finder;
use tokio::{net::TcpStream, task::JoinSet};
use tollgate_layers::{call::Format, error::BoxError};
use tower::ServiceExt;

use crate::text::causes::chain;

const X_API_KEY: HeaderName = HeaderName::from_static("x-api-key");
const ANTHROPIC_VERSION: HeaderName = HeaderName::from_static("anthropic-version");
/// How long connecting to a host on another machine may take.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);
/// How many characters of a refusal's text are kept.
const TEXT_CHARS_MAX: usize = 300;
/// The first bytes of error events, for each of the three streaming formats.
static ERROR_EVENTS: LazyLock<[Finder<'static>; 3]> = LazyLock::new(|| {
    ["data: {\"error\"", "event: error", "event: response.failed"].map(Finder::new)
});

/// The server to which a load sends its calls.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub enum Origin {
    /// The server is a process on this machine.
    Loopback(SocketAddr),
    /// The server is a gateway at a URL.
    Url(HttpsConnector<HttpConnector>, Uri),
}

impl Origin {
    /// Creates the origin from the scheme, host and port of a URL. Certificates are checked against Mozilla's list.
    #[must_use]
    pub fn url(uri: Uri) -> Self {
        let mut http = HttpConnector::new();
        http.enforce_http(false);
        http.set_nodelay(true);
        http.set_connect_timeout(Some(CONNECT_TIMEOUT));
        let connector = HttpsConnectorBuilder::new()
            .with_webpki_roots()
            .https_or_http()
            .enable_http1()
            .wrap_connector(http);
        Self::Url(connector, uri)
    }
}

/// A call that is encoded once and can be sent many times.
#[derive(Debug)]
#[non_exhaustive]
pub struct Prepared {
    /// The method of the request: `POST`, unless it is changed.
    pub method: Method,
    /// The path of the request, without scheme and host.
    pub uri: Uri,
    /// All headers of the request, except the content length.
    pub headers: HeaderMap,
    /// The complete body of the request.
    pub body: Bytes,
}

impl Prepared {
    /// Creates a POST request to `path`. The key is sent in the header that clients of this format use.
    ///
    /// # Errors
    /// If the host or the key is not a valid header value, or the path is not a URI.
    pub fn post(
        host: &str,
        path: &str,
        caller: Format,
        key: &str,
        body: Bytes,
    ) -> Result<Self, http::Error> {
        let mut headers = HeaderMap::new();
        headers.insert(HOST, host.try_into()?);
        headers.insert(USER_AGENT, HeaderValue::from_static("tollgate-load"));
        headers.insert(ACCEPT, HeaderValue::from_static("*/*"));
        headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
        match caller {
            Format::Chat | Format::Responses => {
                headers.insert(AUTHORIZATION, format!("Bearer {key}").try_into()?);
            }
            Format::Messages => {
                headers.insert(X_API_KEY, key.try_into()?);
                headers.insert(ANTHROPIC_VERSION, HeaderValue::from_static("2023-06-01"));
            }
        }
        Ok(Self {
            method: Method::POST,
            uri: path.parse()?,
            headers,
            body,
        })
    }
}

/// Why a call of a load counts as failed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum CallError {
    /// No connection could be made.
    #[error("no connection: {}", chain(&**.0))]
    Connect(#[source] BoxError),
    /// The server returned a status other than 200.
    #[error("{0}: {1}")]
    Status(StatusCode, String),
    /// The response is a stream with an error event.
    #[error("error event: {0}")]
    Event(String),
    /// The connection or the response broke off.
    #[error("the connection broke off: {}", chain(.0))]
    Broken(#[source] hyper::Error),
    /// The response has no body.
    #[error("empty answer")]
    Empty,
    /// The response did not end within the time limit.
    #[error("the answer did not end within {0:?}")]
    TimedOut(Duration),
}

impl CallError {
    /// Returns the kind of the error, in one or two words.
    #[must_use]
    pub const fn kind(&self) -> &'static str {
        match self {
            Self::Connect(_) => "no connection",
            Self::Status(..) => "status",
            Self::Event(_) => "error event",
            Self::Broken(_) => "broken off",
            Self::Empty => "empty answer",
            Self::TimedOut(_) => "timed out",
        }
    }

    /// Returns the status of the response, if the error is that the status was not 200.
    #[must_use]
    pub const fn status(&self) -> Option<StatusCode> {
        match self {
            Self::Status(status, _) => Some(*status),
            _ => None,
        }
    }
}

/// A connection, and the task that drives it. Dropping the connection ends the task.
pub struct Connection {
    requests: SendRequest<Full<Bytes>>,
    _driver: JoinSet<()>,
}

impl fmt::Debug for Connection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Connection").finish_non_exhaustive()
    }
}

impl Connection {
    /// Opens a connection and starts the task that drives it.
    ///
    /// # Errors
    /// [`CallError::Connect`] with the reason, if no connection could be made.
    pub async fn open(origin: &Origin) -> Result<Self, CallError> {
        match origin {
            Origin::Loopback(address) => {
                let failed = |error: std::io::Error| CallError::Connect(error.into());
                let socket = TcpStream::connect(address).await.map_err(failed)?;
                socket.set_nodelay(true).map_err(failed)?;
                Self::over(TokioIo::new(socket)).await
            }
            Origin::Url(connector, uri) => {
                let connected = connector.clone().oneshot(uri.clone()).await;
                Self::over(connected.map_err(CallError::Connect)?).await
            }
        }
    }

    async fn over(io: impl Read + Write + Unpin + Send + 'static) -> Result<Self, CallError> {
        let shaken = http1::handshake(io).await;
        let (requests, connection) = shaken.map_err(|error| CallError::Connect(error.into()))?;
        let mut driver = JoinSet::new();
        driver.spawn(async move { drop(connection.await) });
        Ok(Self {
            requests,
            _driver: driver,
        })
    }

    /// Waits until the connection can take a call. Returns `false` if it is closed.
    pub async fn is_ready(&mut self) -> bool {
        self.requests.ready().await.is_ok()
    }

    /// Sends a call and reads the response to its end. Each piece of the response is passed to `each`.
    ///
    /// # Errors
    /// [`CallError`] if the response has a status other than 200, breaks off, has no body, or contains an error event.
    pub async fn send(
        &mut self,
        call: &Prepared,
        mut each: impl FnMut(&Bytes),
    ) -> Result<(), CallError> {
        let mut body = self.begin(call).await?;
        let (mut bytes, mut failure) = (0, None);
        while let Some(data) = next(&mut body).await? {
            each(&data);
            bytes += data.len();
            if failure.is_none() {
                failure = error_event(&data);
            }
        }
        match failure {
            Some(event) => Err(CallError::Event(event)),
            None if bytes == 0 => Err(CallError::Empty),
            None => Ok(()),
        }
    }

    /// Sends a call, and returns its response when the head has arrived.
    ///
    /// # Errors
    /// [`CallError`] if the connection broke off, or the status is not 200.
    pub async fn begin(&mut self, call: &Prepared) -> Result<Incoming, CallError> {
        let mut req = Request::new(Full::new(call.body.clone()));
        req.method_mut().clone_from(&call.method);
        req.uri_mut().clone_from(&call.uri);
        req.headers_mut().clone_from(&call.headers);
        self.requests.ready().await.map_err(CallError::Broken)?;
        let sent = self.requests.send_request(req).await;
        let res = sent.map_err(CallError::Broken)?;
        let status = res.status();
        let body = res.into_body();
        if status != StatusCode::OK {
            let bytes = body.collect().await.map_err(CallError::Broken)?.to_bytes();
            return Err(CallError::Status(status, excerpt(&bytes)));
        }
        Ok(body)
    }
}

/// Returns the next piece of a response's body.
///
/// # Errors
/// [`CallError::Broken`] if the response broke off.
pub async fn next(body: &mut Incoming) -> Result<Option<Bytes>, CallError> {
    while let Some(frame) = body.frame().await {
        if let Ok(data) = frame.map_err(CallError::Broken)?.into_data() {
            return Ok(Some(data));
        }
    }
    Ok(None)
}

/// Returns the beginning of the error event in a piece of a stream, if it contains one. Servers send an event in one
/// piece. An event whose first bytes are split over two pieces is not found.
fn error_event(data: &[u8]) -> Option<String> {
    let at = ERROR_EVENTS.iter().find_map(|begin| begin.find(data))?;
    // If the text is in the middle of a line, it is not an event but content, which a model may have written.
    (at == 0 || data[at - 1] == b'\n').then(|| excerpt(&data[at..]))
}

/// Returns the beginning of a text that a server sent, in one line and without control characters.
fn excerpt(bytes: &[u8]) -> String {
    let text = String::from_utf8_lossy(bytes);
    let letters = text.trim().chars().take(TEXT_CHARS_MAX);
    letters
        .map(|letter| if letter.is_control() { ' ' } else { letter })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn error_events_of_all_formats_are_found_and_content_is_not_mistaken_for_an_error() {
        for (data, fails) in [
            ("data: {\"error\":{\"message\":\"no\"}}\n\n", true),
            ("event: ping\ndata: {}\n\nevent: error\ndata: {}\n\n", true),
            ("event: response.failed\ndata: {}\n\n", true),
            ("data: {\"delta\":\"event: error\"}\n\n", false),
            ("data: [DONE]\n\n", false),
        ] {
            assert_eq!(error_event(data.as_bytes()).is_some(), fails, "{data}");
        }
    }
}
