//! Starts a gateway with a scripted vendor on free ports, and provides a client for it.

use std::{
    net::SocketAddr,
    path::{Path, PathBuf},
    time::Duration,
};

use bytes::Bytes;
use http::{HeaderMap, Method, Request, Response, StatusCode};
use http_body_util::{BodyExt, Full};
use hyper::body::Incoming;
use hyper_util::{
    client::legacy::{Client, connect::HttpConnector},
    rt::TokioExecutor,
};
use serde_json::{Value, json};
use tokio::{io::AsyncReadExt, net::TcpStream};
use tollgate::{
    Gateway,
    config::Config,
    demo::vendor::{Reply, ScriptedVendor},
};
use tollgate_layers::reserve::{
    Event,
    ledger::{KeyChange, LedgerAdmin},
};

use crate::{
    secrets::{self, Folder},
    support::config::{ConfigText, edited},
};

pub use crate::{
    secrets::{ADMIN_KEY, BOT_TOKEN, VENDOR_KEY, WEBHOOK_SECRET},
    support::redis::RedisServer,
};

/// Changes to the usual configuration of a test's gateway.
#[derive(Default)]
pub struct Setup {
    /// The value of the setting `ledger.url`; by default the ledger is in memory.
    pub ledger: Option<String>,
    /// Texts of the configuration, each with its replacement.
    pub edits: Vec<(String, String)>,
    /// The file to which the configuration is written; by default it is not written to a file.
    pub file: Option<PathBuf>,
}

impl Setup {
    pub fn edit(mut self, from: &str, to: &str) -> Self {
        self.edits.push((from.to_owned(), to.to_owned()));
        self
    }

    pub fn ledger(mut self, url: &str) -> Self {
        self.ledger = Some(url.to_owned());
        self
    }

    pub fn in_file(mut self, file: &Path) -> Self {
        self.file = Some(file.to_owned());
        self
    }

    /// Starts the gateway, and creates the key of [`World::key`].
    pub async fn start_with_key(self) -> (World, Key) {
        let world = self.start().await;
        let key = world.key().await;
        (world, key)
    }

    pub async fn start(self) -> World {
        secrets::watch_the_log();
        let vendor = ScriptedVendor::start().await.unwrap();
        let dir = Folder::create();
        let text = config_text(
            vendor.address(),
            self.ledger.as_deref().unwrap_or("memory:"),
            dir.path().join("outbox.db"),
        );
        let text = edited(text, &self.edits);
        let mut config = Config::parse(&text, &secret).unwrap_or_else(|errors| panic!("{errors}"));
        if let Some(file) = self.file {
            std::fs::write(&file, text).unwrap();
            config.file = Some(file);
        }
        let gateway = Gateway::build(&config, note).await.unwrap();
        World {
            gateway,
            vendor,
            client: client(),
            dir,
        }
    }
}

fn note(event: &Event<'_>) {
    tollgate::node::log_event(event);
}

/// Returns the usual configuration of a test's gateway: see [`ConfigText::chat_and_messages`].
pub fn config_text(vendor: SocketAddr, ledger: &str, outbox: impl AsRef<Path>) -> String {
    ConfigText::over(ledger)
        .admin()
        .outbox(outbox.as_ref())
        .chat_and_messages(vendor, "", "")
        .text()
}

/// Returns the value of an environment variable that the configuration of a test names.
pub fn secret(name: &str) -> Option<String> {
    match name {
        "ADMIN_KEY" => Some(ADMIN_KEY.to_owned()),
        "VENDOR_KEY" => Some(VENDOR_KEY.to_owned()),
        "BOT_TOKEN" => Some(BOT_TOKEN.to_owned()),
        "WEBHOOK_SECRET" => Some(WEBHOOK_SECRET.to_owned()),
        _ => None,
    }
}

pub type HttpClient = Client<HttpConnector, Full<Bytes>>;

pub fn client() -> HttpClient {
    Client::builder(TokioExecutor::new()).build_http()
}

/// A running gateway and its vendor.
pub struct World {
    pub gateway: Gateway,
    pub vendor: ScriptedVendor,
    pub client: HttpClient,
    /// The folder that contains the gateway's outbox.
    pub dir: Folder,
}

/// A response that was read to its end. `failed` is true if the body ended too early.
#[derive(Clone, Debug)]
pub struct Answer {
    pub status: StatusCode,
    pub headers: HeaderMap,
    pub body: Bytes,
    pub failed: bool,
}

impl Answer {
    /// Checks the status, and returns the response.
    #[track_caller]
    pub fn expect(self, status: u16) -> Self {
        assert_eq!(self.status, status, "{self:?}");
        self
    }

    pub fn json(&self) -> Value {
        serde_json::from_slice(&self.body).unwrap_or_else(|error| panic!("{error}: {self:?}"))
    }

    pub fn text(&self) -> String {
        String::from_utf8(self.body.to_vec()).unwrap()
    }

    /// Returns the text of `error.message` without the request number at its end. Checks that this number is also in
    /// the header `x-request-id`.
    pub fn refusal(&self) -> String {
        let message = self.json()["error"]["message"].as_str().unwrap().to_owned();
        let number = format!(" ({})", self.headers["x-request-id"].to_str().unwrap());
        message
            .strip_suffix(&number)
            .unwrap_or_else(|| panic!("{message} does not end with{number}"))
            .to_owned()
    }

    pub fn number(&self) -> String {
        self.headers["x-request-id"].to_str().unwrap().to_owned()
    }
}

/// A key that was created for a test.
#[derive(Clone, Debug)]
pub struct Key {
    pub secret: String,
    pub id: String,
    pub account: String,
}

impl World {
    pub async fn start() -> Self {
        Setup::default().start().await
    }

    /// Starts the usual gateway, and creates the key of [`Self::key`].
    pub async fn start_with_key() -> (Self, Key) {
        Setup::default().start_with_key().await
    }

    pub fn url(&self, path: &str) -> String {
        format!("http://{}{path}", self.gateway.address())
    }

    /// Sends a request, and reads the head of the response.
    pub async fn send(&self, req: Request<Full<Bytes>>) -> Response<Incoming> {
        self.client.request(req).await.unwrap()
    }

    /// Sends a request, and reads the response to its end.
    pub async fn ask(&self, req: Request<Full<Bytes>>) -> Answer {
        whole(self.send(req).await).await
    }

    /// Sends a `GET` request to the callers' port.
    pub async fn get(&self, path: &str, headers: &[(&str, &str)]) -> Answer {
        self.ask(request(Method::GET, &self.url(path), headers, Bytes::new()))
            .await
    }

    /// Makes the vendor answer all further requests with this reply.
    pub fn vendor_sends(&self, reply: Reply) {
        self.vendor.script(move |_| reply.clone());
    }

    /// Sends a `GET` request to the callers' port with a key.
    pub async fn get_by(&self, key: &Key, path: &str) -> Answer {
        let bearer = format!("Bearer {}", key.secret);
        self.get(path, &[("authorization", &bearer)]).await
    }

    /// Makes a chat call with a key.
    pub async fn chat(&self, key: &Key, body: &Value) -> Answer {
        self.ask(self.chat_request(key, body)).await
    }

    pub fn chat_request(&self, key: &Key, body: &Value) -> Request<Full<Bytes>> {
        let url = self.url("/v1/chat/completions");
        json_request(Method::POST, &url, &key.secret, body.to_string())
    }

    /// Sends a JSON body to this path of the callers' port, with a key.
    pub async fn post(&self, path: &str, key: &Key, body: impl Into<Bytes>) -> Answer {
        let url = self.url(path);
        self.ask(json_request(Method::POST, &url, &key.secret, body))
            .await
    }

    /// Makes a messages call with a key.
    pub async fn messages(&self, key: &Key, body: &Value) -> Answer {
        self.ask(self.messages_request(key, body)).await
    }

    pub fn messages_request(&self, key: &Key, body: &Value) -> Request<Full<Bytes>> {
        let headers = [
            ("x-api-key", key.secret.as_str()),
            ("anthropic-version", "2026-10-21"),
            ("content-type", "application/json"),
        ];
        request(
            Method::POST,
            &self.url("/v1/messages"),
            &headers,
            body.to_string().into(),
        )
    }

    /// Sends a request to the admin API.
    pub async fn admin(&self, method: Method, path: &str, body: Option<Value>) -> Answer {
        let url = format!("http://{}{path}", self.gateway.admin_address().unwrap());
        let body = body.map(|body| body.to_string()).unwrap_or_default();
        self.ask(json_request(method, &url, ADMIN_KEY, body)).await
    }

    /// Sends a `GET` request to the admin API.
    pub async fn admin_get(&self, path: &str) -> Answer {
        self.admin(Method::GET, path, None).await
    }

    /// Sends a `POST` request to the admin API.
    pub async fn admin_post(&self, path: &str, body: Value) -> Answer {
        self.admin(Method::POST, path, Some(body)).await
    }

    /// Sends a `PATCH` request to the admin API.
    pub async fn admin_patch(&self, path: &str, body: Value) -> Answer {
        self.admin(Method::PATCH, path, Some(body)).await
    }

    /// Creates an account with this number of rubles, and a key with these additional fields.
    pub async fn key_with(&self, account: &str, rubles: &str, fields: Value) -> Key {
        let named = json!({ "id": account, "name": account });
        let made = self.admin_post("/admin/v1/accounts", named).await;
        assert!(made.status.is_success(), "{made:?}");
        if rubles != "0" {
            let path = format!("/admin/v1/accounts/{account}/topups");
            let payment = json!({ "id": "first", "amount_rub": rubles });
            let paid = self.admin_post(&path, payment).await;
            assert!(paid.status.is_success(), "{paid:?}");
        }
        self.another_key(account, fields).await
    }

    /// Creates an additional key of an existing account.
    pub async fn another_key(&self, account: &str, fields: Value) -> Key {
        let path = format!("/admin/v1/accounts/{account}/keys");
        let made = self.admin_post(&path, fields).await;
        assert!(made.status.is_success(), "{made:?}");
        let made = made.json();
        let text = |field: &str| made[field].as_str().unwrap().to_owned();
        Key {
            secret: text("key"),
            id: text("id"),
            account: account.to_owned(),
        }
    }

    /// Limits a key to these models by changing the ledger directly. The API would refuse models that are not in the
    /// catalog.
    pub async fn only_for(&self, key: &Key, models: &[&str]) {
        let change = KeyChange {
            models: Some(models.iter().map(|model| (*model).to_owned()).collect()),
            ..KeyChange::default()
        };
        let id = key.id.parse().unwrap();
        let store = self.gateway.store();
        store.change_key(&id, &change).await.unwrap();
    }

    /// Creates an account `acme` with 1000 ₽, and a key without limits.
    pub async fn key(&self) -> Key {
        self.key_with("acme", "1000", json!({})).await
    }

    /// Returns the account as the admin API shows it.
    pub async fn account(&self, key: &Key) -> Value {
        let path = format!("/admin/v1/accounts/{}", key.account);
        self.admin_get(&path).await.json()
    }

    /// Waits until the account holds nothing, because calls are settled after their response. Returns the account.
    pub async fn settled(&self, key: &Key) -> Value {
        eventually("nothing is held", async || {
            let account = self.account(key).await;
            (account["held_rub"] == "0.00").then_some(account)
        })
        .await
    }

    /// Waits until the call is settled, and returns its receipt.
    pub async fn receipt(&self, number: &str) -> Value {
        eventually("there is a receipt", async || {
            let path = format!("/admin/v1/receipts/{number}");
            let receipt = self.admin_get(&path).await;
            receipt.status.is_success().then(|| receipt.json())
        })
        .await
    }
}

pub fn request(
    method: Method,
    url: &str,
    headers: &[(&str, &str)],
    body: Bytes,
) -> Request<Full<Bytes>> {
    let mut req = Request::builder().method(method).uri(url);
    for (name, value) in headers {
        req = req.header(*name, *value);
    }
    req.body(Full::new(body)).unwrap()
}

/// Returns a request with a JSON body, and with this key in the header `authorization`.
pub fn json_request(
    method: Method,
    url: &str,
    key: &str,
    body: impl Into<Bytes>,
) -> Request<Full<Bytes>> {
    let bearer = format!("Bearer {key}");
    let headers = [
        ("authorization", bearer.as_str()),
        ("content-type", "application/json"),
    ];
    request(method, url, &headers, body.into())
}

/// Reads an HTTP request from a connection. Returns its head and its body, or `None` if the connection closes early.
pub async fn read_request(stream: &mut TcpStream) -> Option<(String, String)> {
    let mut bytes = Vec::new();
    let end = loop {
        match bytes.windows(4).position(|part| part == b"\r\n\r\n") {
            Some(end) => break end + 4,
            None if stream.read_buf(&mut bytes).await.unwrap_or(0) == 0 => return None,
            None => {}
        }
    };
    let head = String::from_utf8(bytes[..end].to_vec()).unwrap();
    let length = field(&head, "content-length");
    let length: usize = length.map_or(0, |length| length.parse().unwrap());
    while bytes.len() < end + length {
        if stream.read_buf(&mut bytes).await.unwrap_or(0) == 0 {
            return None;
        }
    }
    let body = String::from_utf8(bytes[end..].to_vec()).unwrap();
    Some((head, body))
}

/// Returns the value of a header in the head of a request.
pub fn field<'a>(head: &'a str, name: &str) -> Option<&'a str> {
    let mut lines = head.lines().filter_map(|line| line.split_once(": "));
    let found = lines.find(|(given, _)| given.eq_ignore_ascii_case(name));
    found.map(|(_, value)| value)
}

/// Returns a text in the encoding of query strings and forms.
pub fn encoded(text: &str) -> String {
    let byte = |byte: u8| match byte {
        b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'-' | b'.' | b'_' => {
            char::from(byte).to_string()
        }
        other => format!("%{other:02X}"),
    };
    text.bytes().map(byte).collect()
}

/// Returns the body of a form with these fields.
pub fn form(pairs: &[(&str, &str)]) -> String {
    let pairs = pairs
        .iter()
        .map(|(name, value)| format!("{}={}", encoded(name), encoded(value)));
    pairs.collect::<Vec<_>>().join("&")
}

pub async fn whole(res: Response<Incoming>) -> Answer {
    let (parts, mut body) = res.into_parts();
    let (mut bytes, mut failed) = (Vec::new(), false);
    while let Some(frame) = body.frame().await {
        match frame {
            Ok(frame) => bytes.extend_from_slice(&frame.into_data().unwrap_or_default()),
            Err(_) => failed = true,
        }
    }
    let answer = Answer {
        status: parts.status,
        headers: parts.headers,
        body: bytes.into(),
        failed,
    };
    let reported = secrets::are_answered(&answer.headers, &answer.body);
    assert!(!reported, "a secret is answered: {answer:?}");
    answer
}

/// Reads the next frame of a body as text. Returns `None` at the end of the body.
pub async fn next_text(body: &mut Incoming) -> Option<String> {
    let frame = body.frame().await?.unwrap();
    Some(String::from_utf8(frame.into_data().unwrap().to_vec()).unwrap())
}

/// Returns a chat body with one user turn.
pub fn chat_body(text: &str) -> Value {
    json!({ "model": "chat", "max_tokens": 100, "messages": [{ "role": "user", "content": text }] })
}

/// Returns a messages body with one user turn.
pub fn messages_body(text: &str) -> Value {
    json!({ "model": "messages", "max_tokens": 100, "messages": [{ "role": "user", "content": text }] })
}

/// Returns the body with these fields added or replaced.
pub fn with(mut body: Value, fields: Value) -> Value {
    for (name, value) in fields.as_object().unwrap() {
        body[name] = value.clone();
    }
    body
}

/// Repeats `probe` until it returns a value. Panics if this takes more than five seconds.
pub async fn eventually<T>(what: &str, probe: impl AsyncFnMut() -> Option<T>) -> T {
    within(Duration::from_secs(5), what, probe).await
}

/// Repeats `probe` until it returns a value. Panics if this takes more than `patience`.
pub async fn within<T>(
    patience: Duration,
    what: &str,
    mut probe: impl AsyncFnMut() -> Option<T>,
) -> T {
    let found = tokio::time::timeout(patience, async {
        loop {
            if let Some(value) = probe().await {
                return value;
            }
            tokio::task::yield_now().await;
        }
    });
    found
        .await
        .unwrap_or_else(|_| panic!("{patience:?}, and it is still not true that {what}"))
}
