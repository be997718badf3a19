//! A scripted vendor that recognises the calls of a case. It logs which part of each response has reached a gateway:
//! the time at which each token was written to the gateway's socket.

use std::{
    collections::{BTreeMap, HashMap},
    net::SocketAddr,
    sync::{
        Arc, Mutex, MutexGuard,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use serde_json::{Value, json};
use tokio::{
    sync::{Notify, watch},
    time::{Instant, timeout},
};
use tollgate::demo::vendor::{Received, Reply, ScriptedVendor, Step};
use tollgate_layers::{call::Format, text_size::TextSize};

/// The point at which a vendor waits until [`VendorLog::open_gate`] is called.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Gate {
    /// The vendor waits before the first byte of the body, so the gateway cannot send a head to the client yet.
    Head,
    /// The vendor waits after this number of tokens.
    Token(u64),
    /// The vendor waits after the usage, before the event that ends the stream.
    Last,
}

/// A call with the options that a case has set. Its id determines its number of input tokens.
#[derive(Clone, Debug)]
pub struct Call {
    pub id: u64,
    pub gateway: usize,
    /// The format of the vendor.
    pub format: Format,
    /// The format of the caller; by default that of the vendor.
    pub caller: Format,
    pub stream: bool,
    /// The number of output tokens of the call.
    pub tokens: u64,
    /// The pause between two tokens.
    pub gap: Duration,
    pub gate: Option<Gate>,
    /// Whether the call is sent to a vendor with `on_disconnect = "drain"`.
    pub drained: bool,
    /// Whether the call holds the same amount as all other calls with this option.
    pub same_hold: bool,
    /// The number of tokens after which the connection to the vendor breaks.
    pub cut: Option<u64>,
    /// Whether the call has an idempotency key, so that a repeat counts as the same call.
    pub once: bool,
}

/// The smallest number of tokens in the text of a call.
const TEXT_TOKENS_MIN: u64 = 50;
/// The number of text tokens of a call with `same_hold`.
const TEXT_TOKENS_SAME: u64 = 600;
/// The additional input tokens of a large call. They cost several rubles, because the gateway lowers a hold only if the
/// reduction is large enough.
const LARGE_INPUT: u64 = 5_000;
/// The number of tokens that the gateway's estimate adds for the only message of a call.
const MESSAGE_TOKENS: u64 = 4;
/// The text of one output token. For vendors and in estimates, N repetitions count as N tokens.
pub(crate) const TOKEN: &str = "777";

impl Call {
    /// Requests a response that is not streamed.
    pub fn plain(mut self) -> Self {
        self.stream = false;
        self
    }

    /// Sets the number of output tokens. The default is 10.
    pub fn tokens(mut self, tokens: u64) -> Self {
        self.tokens = tokens;
        self
    }

    /// Sets the pause between two tokens. By default there is no pause.
    pub fn gap(mut self, gap: Duration) -> Self {
        self.gap = gap;
        self
    }

    pub fn gate(mut self, gate: Gate) -> Self {
        self.gate = Some(gate);
        self
    }

    /// Sends the call to a vendor whose response is read to its end even if the client disconnects.
    pub fn drained(mut self) -> Self {
        self.drained = true;
        self
    }

    /// Sets the format of the caller, if it differs from the vendor's format.
    pub fn from(mut self, caller: Format) -> Self {
        self.caller = caller;
        self
    }

    /// Makes the connection to the vendor break after this number of tokens.
    pub fn cut(mut self, tokens: u64) -> Self {
        self.cut = Some(tokens);
        self
    }

    /// Gives the call a separate idempotency key.
    pub fn once(mut self) -> Self {
        self.once = true;
        self
    }

    /// Adds enough input that the vendor's count lowers the hold. Each call still has a different number of input
    /// tokens.
    pub fn large(mut self) -> Self {
        assert!(self.id < LARGE_INPUT, "more calls than inputs");
        self.id += LARGE_INPUT;
        self
    }

    /// Makes the call hold as much as all other calls of its kind, whatever its id is.
    pub fn same_hold(mut self) -> Self {
        self.same_hold = true;
        self
    }

    /// Returns the number of input tokens, which the vendor counts and the gateway estimates alike. It is different for
    /// each call of a world.
    pub const fn input(&self) -> u64 {
        input_of(self.id)
    }

    /// Returns whether the gateway may have estimated the input of this call at this number of tokens. The gateway
    /// samples texts over 2 KiB, so their estimate is not exact.
    pub fn may_be(&self, input: u64) -> bool {
        const EXACT: u64 = 600;
        let most = match self.input() {
            ..=EXACT => 0,
            more => 2 + more / 200,
        };
        self.input().abs_diff(input) <= most
    }

    /// Returns the cost of the call with `output` output tokens, in micro-rubles.
    pub fn cost(&self, output: u64) -> i64 {
        self.cost_of_input(self.input()) + self.rate(200, 2000) * output.cast_signed()
    }

    /// Returns the cost of this amount of input, in micro-rubles.
    pub fn cost_of_input(&self, input: u64) -> i64 {
        self.rate(100, 1000) * input.cast_signed()
    }

    const fn rate(&self, chat: i64, messages: i64) -> i64 {
        match self.format {
            Format::Chat | Format::Responses => chat,
            Format::Messages => messages,
        }
    }

    /// Returns the cost of the call if it ends normally, in micro-rubles.
    pub fn full_cost(&self) -> i64 {
        self.cost(self.tokens)
    }

    pub fn model(&self) -> &'static str {
        match (self.format, self.drained) {
            (Format::Chat, false) => "chat",
            (Format::Chat, true) => "chat-drained",
            (Format::Messages, false) => "messages",
            (Format::Messages, true) => "messages-drained",
            (Format::Responses, false) => "responses",
            (Format::Responses, true) => "responses-drained",
        }
    }

    /// Returns the body of the request.
    pub fn body(&self) -> String {
        let tokens = if self.same_hold {
            TEXT_TOKENS_SAME
        } else {
            TEXT_TOKENS_MIN + self.id
        };
        let mut text = format!("call {} ", self.id);
        let mut size = TextSize::of(&text);
        while size.milli() < tokens * 1000 {
            text.push('7');
            size.push(b"7");
        }
        let (ceiling, turns) = match self.caller {
            Format::Chat | Format::Messages => ("max_tokens", "messages"),
            Format::Responses => ("max_output_tokens", "input"),
        };
        json!({ "model": self.model(), ceiling: self.tokens.max(1), "stream": self.stream,
            turns: [{ "role": "user", "content": text }] })
        .to_string()
    }

    /// Returns the steps of the vendor's response.
    fn steps(&self, gate: &Arc<Notify>) -> Vec<Step> {
        let wait = |at: Gate| (self.gate == Some(at)).then(|| Step::Hold(Arc::clone(gate)));
        let mut steps: Vec<Step> = wait(Gate::Head).into_iter().collect();
        let send = |text: String| Step::Send(text.into());
        if !self.stream {
            steps.push(send(self.whole().to_string()));
            return steps;
        }
        let (begin, token, end) = self.events();
        steps.extend(begin.into_iter().map(send));
        for count in 1..=self.tokens {
            if count > 1 && !self.gap.is_zero() {
                steps.push(Step::Wait(self.gap));
            }
            steps.push(send(token.clone()));
            steps.extend(wait(Gate::Token(count)));
            if self.cut == Some(count) {
                steps.push(Step::Cut);
                return steps;
            }
        }
        let last = end.len() - 1;
        for (at, event) in end.into_iter().enumerate() {
            if at == last {
                steps.extend(wait(Gate::Last));
            }
            steps.push(send(event));
        }
        steps
    }

    /// Returns the events before the first token, the event of each token, and the events after the last token.
    fn events(&self) -> (Vec<String>, String, Vec<String>) {
        let (served, reported) = (self.mark('t'), self.mark('u'));
        let output = self.tokens;
        match self.format {
            Format::Chat => {
                let chunk = |choices: Value, usage: Value, mark: &str| {
                    let chunk = json!({ "id": format!("c-{}", self.id), "object": "chat.completion.chunk",
                        "created": 1, "model": "vendor-chat", "choices": choices, "usage": usage,
                        "z_mark": mark });
                    format!("data: {chunk}\n\n")
                };
                let delta = |delta: Value, finish: Value, mark: &str| {
                    let choice = json!({ "index": 0, "delta": delta, "finish_reason": finish });
                    chunk(json!([choice]), Value::Null, mark)
                };
                (
                    vec![delta(json!({ "role": "assistant" }), Value::Null, "")],
                    delta(json!({ "content": TOKEN }), Value::Null, &served),
                    vec![
                        delta(json!({}), "stop".into(), ""),
                        chunk(json!([]), self.usage(output), &reported),
                        "data: [DONE]\n\n".to_owned(),
                    ],
                )
            }
            Format::Messages => {
                let event = |data: Value| {
                    let name = data["type"].as_str().unwrap();
                    format!("event: {name}\ndata: {data}\n\n")
                };
                let start = json!({ "id": format!("m-{}", self.id), "type": "message",
                    "role": "assistant", "model": "vendor-messages", "content": [],
                    "stop_reason": null, "stop_sequence": null, "usage": self.usage(1) });
                let block = json!({ "type": "text", "text": "" });
                (
                    vec![
                        event(json!({ "type": "message_start", "message": start })),
                        event(json!({ "type": "content_block_start", "index": 0,
                            "content_block": block })),
                    ],
                    event(json!({ "type": "content_block_delta", "index": 0,
                        "delta": { "type": "text_delta", "text": TOKEN }, "z_mark": served })),
                    vec![
                        event(json!({ "type": "content_block_stop", "index": 0 })),
                        event(json!({ "type": "message_delta",
                            "delta": { "stop_reason": "end_turn", "stop_sequence": null },
                            "usage": { "output_tokens": output }, "z_mark": reported })),
                        event(json!({ "type": "message_stop" })),
                    ],
                )
            }
            Format::Responses => self.responses_events(&served, &reported),
        }
    }

    /// Returns the response to a call that is not streamed.
    fn whole(&self) -> Value {
        let text = TOKEN.repeat(usize::try_from(self.tokens).unwrap());
        let usage = self.usage(self.tokens);
        match self.format {
            Format::Chat => json!({ "id": format!("c-{}", self.id), "object": "chat.completion",
                "created": 1, "model": "vendor-chat", "choices": [{ "index": 0,
                    "finish_reason": "stop", "message": { "role": "assistant", "content": text } }],
                "usage": usage, "z_mark": self.mark('u') }),
            Format::Messages => json!({ "id": format!("m-{}", self.id), "type": "message",
                "role": "assistant", "model": "vendor-messages",
                "content": [{ "type": "text", "text": text }], "stop_reason": "end_turn",
                "stop_sequence": null, "usage": usage, "z_mark": self.mark('u') }),
            Format::Responses => {
                let mut whole = self.response("completed", &text);
                whole["z_mark"] = self.mark('u').into();
                whole
            }
        }
    }

    pub(crate) fn usage(&self, output: u64) -> Value {
        let input = self.input();
        match self.format {
            Format::Chat => json!({ "prompt_tokens": input, "completion_tokens": output,
                "total_tokens": input + output }),
            Format::Messages => json!({ "input_tokens": input, "output_tokens": output }),
            Format::Responses => json!({ "input_tokens": input, "output_tokens": output,
                "total_tokens": input + output }),
        }
    }

    /// Returns a marker in the vendor's response. In the bytes on the wire it shows that a token (`t`) or the usage
    /// (`u`) has passed.
    pub(crate) fn mark(&self, what: char) -> String {
        format!("@{}:{what}@", self.id)
    }

    /// Returns the text in the caller's response that shows that a token has passed.
    pub fn token_mark(&self) -> String {
        let field = match self.caller {
            Format::Chat => "content",
            Format::Messages => "text",
            Format::Responses => "delta",
        };
        format!("\"{field}\":\"{TOKEN}\"")
    }
}

const fn input_of(id: u64) -> u64 {
    TEXT_TOKENS_MIN + id + MESSAGE_TOKENS
}

/// Returns the id of the call whose receipt has this number of input tokens.
pub fn id_of(input: u64) -> Option<u64> {
    input.checked_sub(TEXT_TOKENS_MIN + MESSAGE_TOKENS)
}

/// The part of a call's response that has reached a gateway.
#[derive(Clone, Debug)]
pub struct Served {
    pub call: Call,
    /// The number of requests to a vendor for this call.
    pub requested: u32,
    /// The time at which each token was written to the gateway's socket.
    pub tokens: Vec<Instant>,
    /// In the Responses format: whether the event that ends the text was written.
    pub output: bool,
    /// The time at which the usage was written.
    pub reported: Option<Instant>,
    /// The time at which the client sent the call.
    pub sent: Instant,
    gate: Arc<Notify>,
}

/// A running vendor and its log. Clones share both.
#[derive(Clone)]
pub struct VendorLog(Arc<Inner>);

struct Inner {
    server: ScriptedVendor,
    shared: Arc<Shared>,
    next: AtomicU64,
}

struct Shared {
    calls: Mutex<BTreeMap<u64, Served>>,
    /// The last bytes of each connection, if they may be the beginning of a marker.
    begun: Mutex<HashMap<(usize, u64), Vec<u8>>>,
    news: watch::Sender<u64>,
}

impl VendorLog {
    pub async fn start() -> Self {
        let server = ScriptedVendor::start().await.unwrap();
        let shared = Arc::new(Shared {
            calls: Mutex::default(),
            begun: Mutex::default(),
            news: watch::channel(0).0,
        });
        let script = Arc::clone(&shared);
        server.script(move |received| script.reply(received));
        Self(Arc::new(Inner {
            server,
            shared,
            next: AtomicU64::new(1),
        }))
    }

    pub fn address(&self) -> SocketAddr {
        self.0.server.address()
    }

    /// Returns the number of responses that are being sent now.
    pub fn open(&self) -> usize {
        self.0.server.open()
    }

    /// Creates a call, which is not sent yet: a stream of ten tokens.
    pub fn call(&self, gateway: usize, format: Format) -> Call {
        Call {
            id: self.0.next.fetch_add(1, Ordering::SeqCst),
            gateway,
            format,
            caller: format,
            stream: true,
            tokens: 10,
            gap: Duration::ZERO,
            gate: None,
            drained: false,
            same_hold: false,
            cut: None,
            once: false,
        }
    }

    /// Registers a call that is about to be sent.
    pub fn register(&self, call: &Call) {
        self.0
            .shared
            .lock()
            .entry(call.id)
            .or_insert_with(|| Served {
                call: call.clone(),
                requested: 0,
                tokens: Vec::new(),
                output: false,
                reported: None,
                sent: Instant::now(),
                gate: Arc::new(Notify::new()),
            });
    }

    /// Returns a function that must be called with the bytes that a proxy has written to this gateway.
    pub fn tap(&self, gateway: usize) -> impl Fn(u64, &[u8]) + Send + Sync + 'static + use<> {
        let shared = Arc::clone(&self.0.shared);
        move |connection, bytes| shared.saw((gateway, connection), bytes)
    }

    /// Returns the log of every call that was sent.
    pub fn all(&self) -> Vec<Served> {
        self.0.shared.lock().values().cloned().collect()
    }

    /// Returns the log of one call.
    pub fn of(&self, call: &Call) -> Option<Served> {
        self.0.shared.lock().get(&call.id).cloned()
    }

    /// Returns how many tokens of a call were written to its gateway.
    pub fn served(&self, call: &Call) -> u64 {
        self.of(call).map_or(0, |served| served.tokens.len() as u64)
    }

    /// Returns whether the usage of a call was written to its gateway.
    pub fn reported(&self, call: &Call) -> bool {
        self.of(call)
            .is_some_and(|served| served.reported.is_some())
    }

    /// Returns how many requests for the call a vendor has received.
    pub fn requested(&self, call: &Call) -> u32 {
        self.of(call).map_or(0, |served| served.requested)
    }

    /// Lets the vendor continue a call that waits at its gate.
    pub fn open_gate(&self, call: &Call) {
        if let Some(served) = self.0.shared.lock().get(&call.id) {
            served.gate.notify_one();
        }
    }

    /// Waits until this number of the call's tokens was written to its gateway.
    pub async fn wait_served(&self, call: &Call, tokens: u64) {
        self.wait(&format!("{tokens} tokens of {call:?}"), || {
            self.served(call) >= tokens
        })
        .await;
    }

    /// Waits until the vendor has received the call.
    pub async fn wait_asked(&self, call: &Call) {
        self.wait(&format!("{call:?} is asked for"), || {
            self.requested(call) > 0
        })
        .await;
    }

    /// Waits until everything except the usage was written to the call's gateway. Used for a vendor that reports usage
    /// in its last event.
    pub async fn wait_said(&self, call: &Call) {
        self.wait(&format!("all of {call:?}"), || {
            self.of(call).is_some_and(|served| served.output)
        })
        .await;
    }

    /// Waits until the usage of the call was written to its gateway.
    pub async fn wait_told(&self, call: &Call) {
        self.wait(&format!("the usage of {call:?}"), || self.reported(call))
            .await;
    }

    async fn wait(&self, what: &str, is_so: impl Fn() -> bool) {
        let mut news = self.0.shared.news.subscribe();
        let so = timeout(Duration::from_secs(20), async {
            loop {
                news.borrow_and_update();
                if is_so() || news.changed().await.is_err() {
                    return;
                }
            }
        });
        so.await
            .unwrap_or_else(|_| panic!("twenty seconds at the vendor without {what}"));
    }
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, BTreeMap<u64, Served>> {
        self.calls.lock().unwrap()
    }

    fn reply(&self, received: &Received) -> Reply {
        let req = received.json();
        let turn = [&req["messages"][0], &req["input"][0]];
        let output = turn.iter().find_map(|turn| {
            let content = &turn["content"];
            content.as_str().or_else(|| content[0]["text"].as_str())
        });
        let output = output.or(req["input"].as_str()).unwrap_or_default();
        let id = output
            .strip_prefix("call ")
            .and_then(|rest| rest.split(' ').next()?.parse::<u64>().ok());
        let steps = id.and_then(|id| {
            let mut calls = self.lock();
            let served = calls.get_mut(&id)?;
            served.requested += 1;
            Some((served.call.stream, served.call.steps(&served.gate)))
        });
        self.news.send_modify(|count| *count += 1);
        match steps {
            None => Reply::json(400, &json!({ "error": { "message": "no call of ours" } })),
            Some((true, steps)) => Reply::raw(200, "text/event-stream", steps),
            Some((false, steps)) => Reply::raw(200, "application/json", steps),
        }
    }

    /// Searches for markers in the bytes that have passed a proxy.
    fn saw(&self, connection: (usize, u64), bytes: &[u8]) {
        let now = Instant::now();
        let mut begun = self.begun.lock().unwrap();
        let seen = begun.entry(connection).or_default();
        seen.extend_from_slice(bytes);
        let (marks, rest) = marks(seen);
        seen.drain(..rest);
        drop(begun);
        if marks.is_empty() {
            return;
        }
        let mut calls = self.lock();
        for (id, what) in marks {
            let Some(served) = calls.get_mut(&id) else {
                continue;
            };
            if what == "t" {
                served.tokens.push(now);
            } else if what == "d" {
                served.output = true;
            } else {
                served.reported.get_or_insert(now);
                // A response that is not streamed arrives together with its usage. So when the usage has arrived, all
                // tokens have arrived.
                if !served.call.stream {
                    served.tokens = (0..served.call.tokens).map(|_| now).collect();
                }
            }
        }
        drop(calls);
        self.news.send_modify(|count| *count += 1);
    }
}

/// Returns the markers in these bytes, and the position from which the next marker may begin.
pub fn marks(bytes: &[u8]) -> (Vec<(u64, String)>, usize) {
    let (mut marks, mut at) = (Vec::new(), 0);
    let next = |from: usize| Some(from + bytes[from..].iter().position(|byte| *byte == b'@')?);
    while let Some(start) = next(at) {
        let Some(end) = next(start + 1) else {
            return (marks, start);
        };
        at = end + 1;
        let mark = str::from_utf8(&bytes[start + 1..end]).ok();
        let mark = mark.and_then(|mark| mark.split_once(':'));
        if let Some((id, what)) = mark
            && let Ok(id) = id.parse()
        {
            marks.push((id, what.to_owned()));
        }
    }
    (marks, bytes.len())
}
