//! The callers of a fault case. Some read their response to its end, others disconnect earlier.

use std::{net::SocketAddr, time::Duration};

use bytes::Bytes;
use http::{Method, Request, Response, StatusCode, header::HOST};
use http_body_util::{BodyExt, Full};
use hyper::{body::Incoming, client::conn::http1::handshake};
use hyper_util::rt::TokioIo;
use tokio::{io::AsyncWriteExt, net::TcpStream, task::JoinSet, time::timeout};
use tollgate_layers::{call::Format, error::BoxError};

use crate::vendor_log::{Call, VendorLog};

/// A timeout that is longer than any call of a fault case.
const ANSWER_LIMIT: Duration = Duration::from_secs(60);

/// A caller's key, and the account that it belongs to.
#[derive(Clone, Debug)]
pub struct Key {
    pub secret: String,
    pub id: String,
    pub account: String,
}

/// A caller of one gateway. It connects through the proxy in front of the gateway, with a separate connection for each
/// call.
#[derive(Clone)]
pub struct Client {
    pub(crate) gateway: usize,
    pub(crate) front: SocketAddr,
    pub(crate) key: Key,
    pub(crate) vendor: VendorLog,
}

/// The result of a call, as its caller sees it.
#[derive(Clone, Debug)]
pub struct Outcome {
    /// The status of the response; `None` if the head of the response did not arrive.
    pub status: Option<StatusCode>,
    pub number: Option<String>,
    pub body: Bytes,
    /// Whether the complete body of the response arrived.
    pub whole: bool,
}

impl Outcome {
    /// Returns whether a complete response with status 200 arrived.
    pub fn answered(&self) -> bool {
        self.status == Some(StatusCode::OK) && self.whole
    }

    /// Returns whether the gateway answered with a status other than 200.
    pub fn refused(&self) -> bool {
        self.status.is_some_and(|status| status != StatusCode::OK)
    }

    pub fn text(&self) -> String {
        String::from_utf8_lossy(&self.body).into_owned()
    }

    const fn nothing() -> Self {
        Self {
            status: None,
            number: None,
            body: Bytes::new(),
            whole: false,
        }
    }
}

impl Client {
    /// Creates a call to this caller's gateway, and does not send it. The methods of [`Call`] change the options of the
    /// call.
    pub fn call(&self, format: Format) -> Call {
        self.vendor.call(self.gateway, format)
    }

    /// Sends the call, and reads its response to the end.
    pub async fn ask(&self, call: &Call) -> Outcome {
        let answer = async {
            match self.open(call).await {
                Ok(open) => open.rest().await,
                Err(_) => Outcome::nothing(),
            }
        };
        timeout(ANSWER_LIMIT, answer)
            .await
            .unwrap_or(Outcome::nothing())
    }

    /// Sends the call, and reads its response in a task while the case continues.
    pub fn ask_in_background(&self, call: &Call) -> Asked {
        // The call is registered before its task runs, so that the case can wait until the vendor receives the call.
        self.vendor.register(call);
        let (client, call) = (self.clone(), call.clone());
        let mut task = JoinSet::new();
        task.spawn(async move { client.ask(&call).await });
        Asked(task)
    }

    /// Sends the call, and waits for the head of its response.
    pub async fn open(&self, call: &Call) -> Result<Open, BoxError> {
        self.vendor.register(call);
        let socket = TcpStream::connect(self.front).await?;
        socket.set_nodelay(true)?;
        let (mut sender, connection) = handshake(TokioIo::new(socket)).await?;
        let mut driver = JoinSet::new();
        driver.spawn(async move { drop(connection.await) });
        let res = sender.send_request(self.request(call)).await?;
        Ok(Open {
            call: call.clone(),
            res,
            read: Vec::new(),
            ended: None,
            _driver: driver,
        })
    }

    /// Sends the call on a bare socket. The case reads and closes the socket itself.
    pub async fn raw(&self, call: &Call) -> Result<TcpStream, BoxError> {
        self.vendor.register(call);
        let mut socket = TcpStream::connect(self.front).await?;
        socket.set_nodelay(true)?;
        socket.write_all(&self.bytes(call)).await?;
        Ok(socket)
    }

    /// Returns the bytes of the HTTP request.
    pub fn bytes(&self, call: &Call) -> Vec<u8> {
        let (parts, _) = self.request(call).into_parts();
        let body = call.body();
        let mut text = format!("POST {} HTTP/1.1\r\n", parts.uri);
        for (name, value) in &parts.headers {
            text.push_str(&format!("{name}: {}\r\n", value.to_str().unwrap()));
        }
        let length = body.len();
        text.push_str(&format!(
            "connection: close\r\ncontent-length: {length}\r\n\r\n{body}"
        ));
        text.into_bytes()
    }

    fn request(&self, call: &Call) -> Request<Full<Bytes>> {
        let req = match call.caller {
            Format::Chat => Request::builder()
                .uri("/v1/chat/completions")
                .header("authorization", format!("Bearer {}", self.key.secret)),
            Format::Messages => Request::builder()
                .uri("/v1/messages")
                .header("x-api-key", &self.key.secret)
                .header("anthropic-version", "2023-06-01"),
            Format::Responses => Request::builder()
                .uri("/v1/responses")
                .header("authorization", format!("Bearer {}", self.key.secret)),
        };
        let req = match call.once {
            true => req.header("idempotency-key", format!("call-{}", call.id)),
            false => req,
        };
        req.method(Method::POST)
            .header(HOST, "gateway.example")
            .header("content-type", "application/json")
            .body(Full::new(call.body().into()))
            .unwrap()
    }
}

/// A call whose response is read by a task. Dropping it closes the connection.
pub struct Asked(JoinSet<Outcome>);

impl Asked {
    pub async fn outcome(mut self) -> Outcome {
        self.0.join_next().await.unwrap().unwrap()
    }
}

/// A response whose head has arrived. Dropping it closes the connection.
pub struct Open {
    pub call: Call,
    res: Response<Incoming>,
    read: Vec<u8>,
    /// Whether the body has ended normally; `None` while the body has not ended.
    ended: Option<bool>,
    _driver: JoinSet<()>,
}

impl Open {
    pub fn status(&self) -> StatusCode {
        self.res.status()
    }

    pub fn number(&self) -> Option<String> {
        let number = self.res.headers().get("x-request-id")?;
        Some(number.to_str().ok()?.to_owned())
    }

    /// Returns the text that was read so far.
    pub fn text(&self) -> String {
        String::from_utf8_lossy(&self.read).into_owned()
    }

    /// Reads the response until this number of tokens has arrived.
    pub async fn read_tokens(&mut self, count: usize) {
        let mark = self.call.token_mark();
        self.read_until(&format!("{count} tokens"), |text| {
            text.matches(&mark).count() >= count
        })
        .await;
    }

    /// Reads the response up to and including the event that ends the stream.
    pub async fn read_last_event(&mut self) {
        self.read_until("the last event", |text| {
            text.contains("[DONE]")
                || text.contains("\"message_stop\"")
                || (text.contains("event: response.completed") && text.ends_with("\n\n"))
        })
        .await;
    }

    async fn read_until(&mut self, what: &str, is_there: impl Fn(&str) -> bool) {
        let came = timeout(Duration::from_secs(20), async {
            while !is_there(&self.text()) {
                assert!(self.frame().await, "{what} did not come: {}", self.text());
            }
        });
        came.await
            .unwrap_or_else(|_| panic!("twenty seconds without {what}"));
    }

    /// Reads a piece of the body. Returns false at the end of the body.
    async fn frame(&mut self) -> bool {
        match self.res.body_mut().frame().await {
            Some(Ok(frame)) => {
                self.read
                    .extend_from_slice(&frame.into_data().unwrap_or_default());
                true
            }
            last => {
                self.ended.get_or_insert(last.is_none());
                false
            }
        }
    }

    /// Reads the rest of the response to its end.
    pub async fn rest(mut self) -> Outcome {
        while self.ended.is_none() && self.frame().await {}
        let text = self.text();
        // A stream may end with an error event. It then does not count as a complete response.
        let ends = ["[DONE]", "message_stop", "response.completed"];
        let last = !self.call.stream || ends.iter().any(|end| text.contains(end));
        let error = text.contains("\"error\"") && !text.contains("\"error\":null");
        Outcome {
            status: Some(self.status()),
            number: self.number(),
            whole: self.ended == Some(true) && last && !error,
            body: self.read.into(),
        }
    }
}
