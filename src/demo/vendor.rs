//! A vendor that answers by a script: a real HTTP server on a port of its own that speaks both
//! formats. The demonstration, the tests and the benches use it.

use std::{
    convert::Infallible,
    fmt,
    net::SocketAddr,
    pin::Pin,
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicUsize, Ordering},
    },
    task::{Context, Poll},
    time::Duration,
};

use bytes::Bytes;
use http::{HeaderMap, Request, Response, StatusCode};
use http_body::{Body, Frame};
use http_body_util::BodyExt;
use hyper::{body::Incoming, service::service_fn};
use hyper_util::rt::TokioIo;
use serde_json::{Value, json};
use tokio::{
    net::TcpListener,
    sync::Notify,
    task::JoinSet,
    time::{Sleep, sleep},
};

/// What a vendor was sent.
#[derive(Clone, Debug)]
pub struct Received {
    /// Path and query.
    pub path: String,
    /// All headers.
    pub headers: HeaderMap,
    /// The body as it came.
    pub body: Bytes,
}

impl Received {
    /// The body as JSON; null if it is none.
    #[must_use]
    pub fn json(&self) -> Value {
        serde_json::from_slice(&self.body).unwrap_or_default()
    }
}

/// What a vendor answers.
#[derive(Clone, Debug)]
pub struct Reply {
    status: StatusCode,
    headers: Vec<(&'static str, String)>,
    steps: Vec<Step>,
}

/// One step of an answer's body.
#[derive(Clone, Debug)]
pub enum Step {
    /// Send these bytes as one frame.
    Send(Bytes),
    /// Wait so long.
    Wait(Duration),
    /// Wait until somebody notifies.
    Hold(Arc<Notify>),
    /// Cut the connection.
    Cut,
}

impl Reply {
    /// An answer with a JSON body.
    #[must_use]
    pub fn json(status: u16, body: &Value) -> Self {
        Self::raw(
            status,
            "application/json",
            vec![Step::Send(body.to_string().into())],
        )
    }

    /// A stream of events, each a frame of its own.
    pub fn stream(events: impl IntoIterator<Item = String>) -> Self {
        let steps = events
            .into_iter()
            .map(|event| Step::Send(event.into()))
            .collect();
        Self::raw(200, "text/event-stream", steps)
    }

    /// Any answer.
    ///
    /// # Panics
    /// `status` is no HTTP status.
    #[must_use]
    pub fn raw(status: u16, content_type: &str, steps: Vec<Step>) -> Self {
        let status = StatusCode::from_u16(status).expect("a status from 100 to 999");
        Self {
            status,
            headers: vec![("content-type", content_type.to_owned())],
            steps,
        }
    }

    /// With another header.
    #[must_use]
    pub fn header(mut self, name: &'static str, value: impl Into<String>) -> Self {
        self.headers.push((name, value.into()));
        self
    }

    /// With a step at this place among the others.
    #[must_use]
    pub fn with_step(mut self, at: usize, step: Step) -> Self {
        self.steps.insert(at, step);
        self
    }
}

type Script = Arc<dyn Fn(&Received) -> Reply + Send + Sync>;

/// A running vendor. Dropped, it closes its port and all connections.
pub struct ScriptedVendor {
    address: SocketAddr,
    shared: Arc<Shared>,
    _tasks: JoinSet<()>,
}

struct Shared {
    script: Mutex<Script>,
    received: Mutex<Vec<Received>>,
    /// Answers whose body is being sent.
    open: AtomicUsize,
}

/// Before a connection is cut.
const CUT_PAUSE: Duration = Duration::from_millis(20);
/// Of what was received, this much is kept.
const RECEIVED_MAX: usize = 10_000;

impl ScriptedVendor {
    /// Starts a vendor with the script [`polite`], on a free port of the loopback interface.
    ///
    /// # Errors
    /// No port is free.
    pub async fn start() -> std::io::Result<Self> {
        let listener = TcpListener::bind(("127.0.0.1", 0)).await?;
        let address = listener.local_addr()?;
        let shared = Arc::new(Shared {
            script: Mutex::new(Arc::new(polite)),
            received: Mutex::default(),
            open: AtomicUsize::new(0),
        });
        let mut tasks = JoinSet::new();
        tasks.spawn(accept(listener, Arc::clone(&shared)));
        Ok(Self {
            address,
            shared,
            _tasks: tasks,
        })
    }

    /// Where it listens.
    #[must_use]
    pub const fn address(&self) -> SocketAddr {
        self.address
    }

    /// Answers by another script from now on.
    pub fn script(&self, script: impl Fn(&Received) -> Reply + Send + Sync + 'static) {
        *lock(&self.shared.script) = Arc::new(script);
    }

    /// What it was sent so far.
    #[must_use]
    pub fn received(&self) -> Vec<Received> {
        lock(&self.shared.received).clone()
    }

    /// How many answers are being sent now.
    #[must_use]
    pub fn open(&self) -> usize {
        self.shared.open.load(Ordering::SeqCst)
    }
}

impl fmt::Debug for ScriptedVendor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ScriptedVendor")
            .field("address", &self.address)
            .finish_non_exhaustive()
    }
}

fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

async fn accept(listener: TcpListener, shared: Arc<Shared>) {
    let mut connections = JoinSet::new();
    while let Ok((socket, _)) = listener.accept().await {
        let _ = socket.set_nodelay(true);
        let shared = Arc::clone(&shared);
        let service = service_fn(move |req| answer(req, Arc::clone(&shared)));
        connections.spawn(async move {
            // A cut answer ends the connection with an error: that was the script's wish.
            let _ = hyper::server::conn::http1::Builder::new()
                .serve_connection(TokioIo::new(socket), service)
                .await;
        });
        while connections.try_join_next().is_some() {}
    }
}

async fn answer(
    req: Request<Incoming>,
    shared: Arc<Shared>,
) -> Result<Response<ReplyBody>, Infallible> {
    let (parts, body) = req.into_parts();
    let body = body
        .collect()
        .await
        .map(|body| body.to_bytes())
        .unwrap_or_default();
    let received = Received {
        path: parts.uri.to_string(),
        headers: parts.headers,
        body,
    };
    let script = Arc::clone(&lock(&shared.script));
    let reply = script(&received);
    let mut log = lock(&shared.received);
    if log.len() < RECEIVED_MAX {
        log.push(received);
    }
    drop(log);
    let mut res = Response::builder().status(reply.status);
    for (name, value) in reply.headers {
        res = res.header(name, value);
    }
    shared.open.fetch_add(1, Ordering::SeqCst);
    let body = ReplyBody {
        steps: reply.steps.into_iter(),
        pause: None,
        cutting: false,
        shared,
    };
    Ok(res.body(body).expect("the script's headers are headers"))
}

struct ReplyBody {
    steps: std::vec::IntoIter<Step>,
    pause: Option<Pause>,
    cutting: bool,
    shared: Arc<Shared>,
}

enum Pause {
    Wait(Pin<Box<Sleep>>),
    Hold(Pin<Box<dyn Future<Output = ()> + Send>>),
}

impl Body for ReplyBody {
    type Data = Bytes;
    type Error = std::io::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Self::Error>>> {
        loop {
            match &mut self.pause {
                Some(Pause::Wait(wait)) => std::task::ready!(wait.as_mut().poll(cx)),
                Some(Pause::Hold(hold)) => std::task::ready!(hold.as_mut().poll(cx)),
                None => {}
            }
            self.pause = None;
            match self.steps.next() {
                None => return Poll::Ready(None),
                Some(Step::Send(bytes)) => return Poll::Ready(Some(Ok(Frame::data(bytes)))),
                Some(Step::Wait(time)) => self.pause = Some(Pause::Wait(Box::pin(sleep(time)))),
                Some(Step::Hold(notify)) => {
                    self.pause = Some(Pause::Hold(Box::pin(
                        async move { notify.notified().await },
                    )));
                }
                // What was sent is given time to leave first.
                Some(Step::Cut) if !self.cutting => {
                    self.cutting = true;
                    self.pause = Some(Pause::Wait(Box::pin(sleep(CUT_PAUSE))));
                    self.steps = vec![Step::Cut].into_iter();
                }
                Some(Step::Cut) => {
                    return Poll::Ready(Some(Err(std::io::Error::other("cut by the script"))));
                }
            }
        }
    }
}

impl Drop for ReplyBody {
    fn drop(&mut self) {
        self.shared.open.fetch_sub(1, Ordering::SeqCst);
    }
}

/// Answers like a model that is good at listening: it repeats the last text, calls `get_weather` when
/// that tool is offered, and repeats a tool's result.
///
/// Words in the text make it fail: `vendor-400`, `vendor-429`, `vendor-500`, `vendor-cut`.
#[must_use]
pub fn polite(received: &Received) -> Reply {
    let req = received.json();
    let messages = received.path.contains("/messages");
    let (said, is_result) = last_said(&req);
    let refuse = |status: u16, text: &str| {
        Reply::json(
            status,
            &json!({ "error": { "message": text, "type": "scripted", "code": null } }),
        )
    };
    if said.contains("vendor-400") {
        return refuse(400, "the script refuses this request");
    } else if said.contains("vendor-429") {
        return refuse(429, "slow down").header("retry-after", "1");
    } else if said.contains("vendor-500") {
        return refuse(500, "the script fails");
    }
    let model = req["model"].as_str().unwrap_or_default();
    let calls = if is_result {
        Vec::new()
    } else {
        tool_calls(&req, said.contains("parallel"))
    };
    let text = if is_result {
        format!("Результат: {said}")
    } else {
        format!("Вы написали: {said}")
    };
    // No more than the ceiling allows, as a vendor does: here a word is a token.
    let ceiling = ["max_completion_tokens", "max_tokens"]
        .iter()
        .find_map(|name| req[*name].as_u64())
        .unwrap_or(1000);
    let words: Vec<String> = if calls.is_empty() {
        text.split_inclusive(' ').map(str::to_owned).collect()
    } else {
        vec![]
    };
    let kept: Vec<String> = words
        .iter()
        .take(usize::try_from(ceiling).unwrap_or(usize::MAX))
        .cloned()
        .collect();
    let answer = Answer {
        model: model.to_owned(),
        full: kept.len() == words.len(),
        words: kept,
        calls,
        input: 8 + said.chars().count() as u64 / 4,
        cut: said.contains("vendor-cut"),
    };
    match (messages, req["stream"] == true) {
        (false, false) => answer.chat(),
        (false, true) => answer.chat_stream(req["stream_options"]["include_usage"] == true),
        (true, false) => answer.messages(),
        (true, true) => answer.messages_stream(),
    }
}

/// The last text of a user or a tool, and whether it is a tool's result.
fn last_said(req: &Value) -> (String, bool) {
    let messages = req["messages"]
        .as_array()
        .map(Vec::as_slice)
        .unwrap_or_default();
    let speaks = |message: &&Value| message["role"] == "user" || message["role"] == "tool";
    let last = messages.iter().rev().find(speaks).unwrap_or(&Value::Null);
    let is_tool = last["role"] == "tool";
    if let Some(text) = last["content"].as_str() {
        return (text.to_owned(), is_tool);
    }
    let part = last["content"]
        .as_array()
        .and_then(|parts| parts.last())
        .unwrap_or(&Value::Null);
    if part["type"] == "tool_result" {
        let text = part["content"]
            .as_str()
            .or_else(|| part["content"][0]["text"].as_str());
        return (text.unwrap_or_default().to_owned(), true);
    }
    (
        part["text"].as_str().unwrap_or_default().to_owned(),
        is_tool,
    )
}

/// Calls of the tool `get_weather`, if it is there.
fn tool_calls(req: &Value, two: bool) -> Vec<&'static str> {
    let tools = req["tools"]
        .as_array()
        .map(Vec::as_slice)
        .unwrap_or_default();
    let offered = tools
        .iter()
        .any(|tool| tool["name"] == "get_weather" || tool["function"]["name"] == "get_weather");
    match (offered, two) {
        (false, _) => vec![],
        (true, false) => vec!["call_1"],
        (true, true) => vec!["call_1", "call_2"],
    }
}

/// The arguments of each tool call, in the pieces that a stream brings them in.
const ARGUMENTS: [&str; 2] = ["{\"city\":", "\"Москва\"}"];
const ID: &str = "scripted-1";
const CREATED: u64 = 1_790_000_000;

struct Answer {
    model: String,
    words: Vec<String>,
    full: bool,
    calls: Vec<&'static str>,
    input: u64,
    cut: bool,
}

impl Answer {
    fn output(&self) -> u64 {
        (self.words.len() + 8 * self.calls.len()) as u64
    }

    fn chat_finish(&self) -> &'static str {
        match (self.calls.is_empty(), self.full) {
            (false, _) => "tool_calls",
            (true, true) => "stop",
            (true, false) => "length",
        }
    }

    fn chat_usage(&self) -> Value {
        let (input, output) = (self.input, self.output());
        json!({ "prompt_tokens": input, "completion_tokens": output, "total_tokens": input + output,
            "prompt_tokens_details": { "cached_tokens": 0 } })
    }

    fn chat(&self) -> Reply {
        let mut message =
            json!({ "role": "assistant", "content": self.words.concat(), "refusal": null });
        if !self.calls.is_empty() {
            message["content"] = Value::Null;
            message["tool_calls"] = self
                .calls
                .iter()
                .map(|id| chat_call(id, &ARGUMENTS.concat()))
                .collect();
        }
        Reply::json(
            200,
            &json!({ "id": ID, "object": "chat.completion", "created": CREATED, "model": self.model,
                "choices": [{ "index": 0, "message": message, "logprobs": null, "finish_reason": self.chat_finish() }],
                "usage": self.chat_usage() }),
        )
    }

    fn chat_stream(&self, with_usage: bool) -> Reply {
        let chunk = |choices: Value, usage: Value| {
            let mut chunk = json!({ "id": ID, "object": "chat.completion.chunk", "created": CREATED,
                "model": self.model, "choices": choices });
            if with_usage {
                chunk["usage"] = usage;
            }
            format!("data: {chunk}\n\n")
        };
        let delta = |delta: Value, finish: Value| {
            chunk(
                json!([{ "index": 0, "delta": delta, "finish_reason": finish }]),
                Value::Null,
            )
        };
        let mut events = vec![delta(
            json!({ "role": "assistant", "content": "" }),
            Value::Null,
        )];
        events.extend(
            self.words
                .iter()
                .map(|word| delta(json!({ "content": word }), Value::Null)),
        );
        for (index, id) in self.calls.iter().enumerate() {
            let mut call = chat_call(id, "");
            call["index"] = index.into();
            events.push(delta(json!({ "tool_calls": [call] }), Value::Null));
            for piece in ARGUMENTS {
                let call = json!({ "index": index, "function": { "arguments": piece } });
                events.push(delta(json!({ "tool_calls": [call] }), Value::Null));
            }
        }
        if self.cut {
            return cut_in_the_middle(events);
        }
        events.push(delta(json!({}), self.chat_finish().into()));
        if with_usage {
            events.push(chunk(json!([]), self.chat_usage()));
        }
        events.push("data: [DONE]\n\n".to_owned());
        Reply::stream(events)
    }

    fn messages_stop(&self) -> &'static str {
        match (self.calls.is_empty(), self.full) {
            (false, _) => "tool_use",
            (true, true) => "end_turn",
            (true, false) => "max_tokens",
        }
    }

    fn messages(&self) -> Reply {
        let text = (!self.words.is_empty())
            .then(|| json!({ "type": "text", "text": self.words.concat() }));
        let arguments: Value = serde_json::from_str(&ARGUMENTS.concat()).unwrap_or_default();
        let calls = self.calls.iter().map(
            |id| json!({ "type": "tool_use", "id": id, "name": "get_weather", "input": arguments }),
        );
        let content: Vec<Value> = text.into_iter().chain(calls).collect();
        Reply::json(
            200,
            &json!({ "id": ID, "type": "message", "role": "assistant", "model": self.model, "content": content,
                "stop_reason": self.messages_stop(), "stop_sequence": null, "usage": self.messages_usage(self.output()) }),
        )
    }

    fn messages_usage(&self, output: u64) -> Value {
        json!({ "input_tokens": self.input, "cache_creation_input_tokens": 0, "cache_read_input_tokens": 0,
            "output_tokens": output })
    }

    fn messages_stream(&self) -> Reply {
        let event = |data: Value| {
            format!(
                "event: {}\ndata: {data}\n\n",
                data["type"].as_str().unwrap_or_default()
            )
        };
        let start = json!({ "id": ID, "type": "message", "role": "assistant", "model": self.model, "content": [],
            "stop_reason": null, "stop_sequence": null, "usage": self.messages_usage(1) });
        let mut events = vec![event(json!({ "type": "message_start", "message": start }))];
        let mut block = |start: Value, deltas: Vec<Value>, index: usize| {
            events.push(event(
                json!({ "type": "content_block_start", "index": index, "content_block": start }),
            ));
            for delta in deltas {
                events.push(event(
                    json!({ "type": "content_block_delta", "index": index, "delta": delta }),
                ));
            }
            events.push(event(
                json!({ "type": "content_block_stop", "index": index }),
            ));
        };
        if !self.words.is_empty() {
            let deltas = self
                .words
                .iter()
                .map(|word| json!({ "type": "text_delta", "text": word }))
                .collect();
            block(json!({ "type": "text", "text": "" }), deltas, 0);
        }
        for (index, id) in self.calls.iter().enumerate() {
            let pieces =
                ARGUMENTS.map(|piece| json!({ "type": "input_json_delta", "partial_json": piece }));
            block(
                json!({ "type": "tool_use", "id": id, "name": "get_weather", "input": {} }),
                pieces.to_vec(),
                index,
            );
        }
        if self.cut {
            return cut_in_the_middle(events);
        }
        events.insert(1, event(json!({ "type": "ping" })));
        let delta = json!({ "stop_reason": self.messages_stop(), "stop_sequence": null });
        events.push(event(json!({ "type": "message_delta", "delta": delta, "usage": { "output_tokens": self.output() } })));
        events.push(event(json!({ "type": "message_stop" })));
        Reply::stream(events)
    }
}

fn chat_call(id: &str, arguments: &str) -> Value {
    json!({ "id": id, "type": "function", "function": { "name": "get_weather", "arguments": arguments } })
}

fn cut_in_the_middle(mut events: Vec<String>) -> Reply {
    events.truncate(events.len().div_ceil(2).max(2));
    let reply = Reply::stream(events);
    let end = reply.steps.len();
    reply.with_step(end, Step::Cut)
}
