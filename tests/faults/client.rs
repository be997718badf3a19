//! The callers of a case. Some read their answer to its end, others disconnect before.

use std::{net::SocketAddr, time::Duration};

use bytes::Bytes;
use http::{Method, Request, Response, StatusCode, header::HOST};
use http_body_util::{BodyExt, Full};
use hyper::{body::Incoming, client::conn::http1::handshake};
use hyper_util::rt::TokioIo;
use tokio::{io::AsyncWriteExt, net::TcpStream, task::JoinSet, time::timeout};
use tollgate_layers::{call::Format, error::BoxError};

use crate::vendor_log::{Call, VendorLog};

/// A timeout that is longer than any call of a case.
const ANSWER_LIMIT: Duration = Duration::from_secs(60);

/// A key and its account.
#[derive(Clone, Debug)]
pub struct Key {
    pub secret: String,
    pub id: String,
    pub account: String,
}

/// A caller of one gateway, through the proxy in front of the gateway. Each call has a connection of its own.
#[derive(Clone)]
pub struct Client {
    pub(crate) gateway: usize,
    pub(crate) front: SocketAddr,
    pub(crate) key: Key,
    pub(crate) vendor: VendorLog,
}

/// The result of a call.
#[derive(Clone, Debug)]
pub struct Outcome {
    /// The status; `None` if the head of the answer did not arrive.
    pub status: Option<StatusCode>,
    pub number: Option<String>,
    pub body: Bytes,
    /// Whether the body arrived completely.
    pub whole: bool,
}

impl Outcome {
    /// Whether a complete answer with status 200 arrived.
    pub fn answered(&self) -> bool {
        self.status == Some(StatusCode::OK) && self.whole
    }

    /// Whether the gateway answered with a status other than 200.
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
    /// Creates a call to this caller's gateway, without sending it. The methods of [`Call`] change its options.
    pub fn call(&self, format: Format) -> Call {
        self.vendor.call(self.gateway, format)
    }

    /// Sends the call and reads the answer to its end.
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

    /// Sends the call and reads its answer in a task, while the case continues.
    pub fn ask_in_background(&self, call: &Call) -> Asked {
        // Registered before the task runs, so that the case can wait until the vendor receives the call.
        self.vendor.register(call);
        let (client, call) = (self.clone(), call.clone());
        let mut task = JoinSet::new();
        task.spawn(async move { client.ask(&call).await });
        Asked(task)
    }

    /// Sends the call and waits for the head of the answer.
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

    /// Sends the call on a bare socket, which the case reads and closes itself.
    pub async fn raw(&self, call: &Call) -> Result<TcpStream, BoxError> {
        self.vendor.register(call);
        let mut socket = TcpStream::connect(self.front).await?;
        socket.set_nodelay(true)?;
        socket.write_all(&self.bytes(call)).await?;
        Ok(socket)
    }

    /// The bytes of the HTTP request.
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

/// A call whose answer a task reads. Its drop closes the connection.
pub struct Asked(JoinSet<Outcome>);

impl Asked {
    pub async fn outcome(mut self) -> Outcome {
        self.0.join_next().await.unwrap().unwrap()
    }
}

/// An answer whose head has arrived. Its drop closes the connection.
pub struct Open {
    pub call: Call,
    res: Response<Incoming>,
    read: Vec<u8>,
    /// Whether the body has ended normally; `None` while it has not ended.
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

    /// The text read so far.
    pub fn text(&self) -> String {
        String::from_utf8_lossy(&self.read).into_owned()
    }

    /// Reads until this number of tokens has arrived.
    pub async fn read_tokens(&mut self, count: usize) {
        let mark = self.call.token_mark();
        self.read_until(&format!("{count} tokens"), |text| {
            text.matches(&mark).count() >= count
        })
        .await;
    }

    /// Reads until the event that ends the stream, and no further.
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

    /// Reads a piece of the body. Returns false at its end.
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

    /// Reads the answer to its end.
    pub async fn rest(mut self) -> Outcome {
        while self.ended.is_none() && self.frame().await {}
        let text = self.text();
        // A stream may also end with an error event, which is not an answer.
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
