//! A scripted vendor that recognises the calls of a case. It logs which part of each answer has reached a gateway: the
//! time at which each token was written to the gateway's socket.

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

/// The point at which a vendor waits for [`VendorLog::open_gate`].
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
    /// The vendor's format.
    pub format: Format,
    /// The caller's format, by default the vendor's.
    pub caller: Format,
    pub stream: bool,
    /// The number of output tokens.
    pub tokens: u64,
    /// Pause between two tokens.
    pub gap: Duration,
    pub gate: Option<Gate>,
    /// Whether the call goes to a vendor with `on_disconnect = "drain"`.
    pub drained: bool,
    /// Whether the call holds the same amount as all other calls with this option.
    pub same_hold: bool,
    /// The number of tokens after which the vendor's connection breaks.
    pub cut: Option<u64>,
    /// Whether the call has an idempotency key, so that a repeat counts as the same call.
    pub once: bool,
}

/// The smallest number of tokens in a call's text.
const TEXT_TOKENS_MIN: u64 = 50;
/// Text tokens of a call with `same_hold`.
const TEXT_TOKENS_SAME: u64 = 600;
/// Additional input tokens of a large call. They cost several rubles, so that the gateway lowers the hold: it does not
/// make small reductions.
const LARGE_INPUT: u64 = 5_000;
/// Tokens that the gateway's estimate adds for the call's only message.
const MESSAGE_TOKENS: u64 = 4;
/// The text of one output token. N repetitions count as N tokens, for vendors and in estimates.
pub(crate) const TOKEN: &str = "777";

impl Call {
    /// Requests an answer that is not streamed.
    pub fn plain(mut self) -> Self {
        self.stream = false;
        self
    }

    /// Sets the number of output tokens; the default is 10.
    pub fn tokens(mut self, tokens: u64) -> Self {
        self.tokens = tokens;
        self
    }

    /// Sets the pause between two tokens; by default there is no pause.
    pub fn gap(mut self, gap: Duration) -> Self {
        self.gap = gap;
        self
    }

    pub fn gate(mut self, gate: Gate) -> Self {
        self.gate = Some(gate);
        self
    }

    /// Sends the call to a vendor whose answer is read to its end if the client disconnects.
    pub fn drained(mut self) -> Self {
        self.drained = true;
        self
    }

    /// Sets the caller's format, if it differs from the vendor's.
    pub fn from(mut self, caller: Format) -> Self {
        self.caller = caller;
        self
    }

    /// Lets the vendor's connection break after this number of tokens.
    pub fn cut(mut self, tokens: u64) -> Self {
        self.cut = Some(tokens);
        self
    }

    /// Gives the call an idempotency key of its own.
    pub fn once(mut self) -> Self {
        self.once = true;
        self
    }

    /// Adds enough input for the vendor's count to lower the hold. Each call still has a different number of input
    /// tokens.
    pub fn large(mut self) -> Self {
        assert!(self.id < LARGE_INPUT, "more calls than inputs");
        self.id += LARGE_INPUT;
        self
    }

    /// Makes the call hold as much as all other calls of its kind, whatever its id.
    pub fn same_hold(mut self) -> Self {
        self.same_hold = true;
        self
    }

    /// The number of input tokens, as the vendor counts them and as they are estimated before. Unique for each call of
    /// a world.
    pub const fn input(&self) -> u64 {
        input_of(self.id)
    }

    /// Whether the gateway may have estimated the input of this call at this number of tokens. Texts over 2 KiB are
    /// sampled, so their estimate is not exact.
    pub fn may_be(&self, input: u64) -> bool {
        const EXACT: u64 = 600;
        let most = match self.input() {
            ..=EXACT => 0,
            more => 2 + more / 200,
        };
        self.input().abs_diff(input) <= most
    }

    /// The cost of the call with `output` output tokens, in micro-rubles.
    pub fn cost(&self, output: u64) -> i64 {
        self.cost_of_input(self.input()) + self.rate(200, 2000) * output.cast_signed()
    }

    /// The cost of this much input, in micro-rubles.
    pub fn cost_of_input(&self, input: u64) -> i64 {
        self.rate(100, 1000) * input.cast_signed()
    }

    const fn rate(&self, chat: i64, messages: i64) -> i64 {
        match self.format {
            Format::Chat | Format::Responses => chat,
            Format::Messages => messages,
        }
    }

    /// The cost of the call if it ends normally, in micro-rubles.
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

    /// The request's body.
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

    /// The steps of the vendor's answer.
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

    /// The events before the first token, the event of each token, and the events after the last.
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

    /// The answer of a call that is not streamed.
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

    /// A marker in the vendor's answer. In the bytes on the wire it shows that a token (`t`) or the usage (`u`) has
    /// passed.
    pub(crate) fn mark(&self, what: char) -> String {
        format!("@{}:{what}@", self.id)
    }

    /// The text in the caller's answer that shows that a token has passed.
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

/// The id of the call whose receipt has this many input tokens.
pub fn id_of(input: u64) -> Option<u64> {
    input.checked_sub(TEXT_TOKENS_MIN + MESSAGE_TOKENS)
}

/// The part of a call's answer that reached a gateway.
#[derive(Clone, Debug)]
pub struct Served {
    pub call: Call,
    /// The number of requests to a vendor.
    pub requested: u32,
    /// The time at which each token was written to the gateway's socket.
    pub tokens: Vec<Instant>,
    /// Responses format: whether the event that ends the text was written.
    pub output: bool,
    /// The time at which the usage was written.
    pub reported: Option<Instant>,
    /// The time at which the client sent the call.
    pub sent: Instant,
    gate: Arc<Notify>,
}

/// A running vendor and its log. Clones share it.
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

    /// The number of answers being sent now.
    pub fn open(&self) -> usize {
        self.0.server.open()
    }

    /// Creates a call that is not sent yet: a stream of ten tokens.
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

    /// Returns a function to be called with the bytes that a proxy has written to this gateway.
    pub fn tap(&self, gateway: usize) -> impl Fn(u64, &[u8]) + Send + Sync + 'static + use<> {
        let shared = Arc::clone(&self.0.shared);
        move |connection, bytes| shared.saw((gateway, connection), bytes)
    }

    /// The log of every call that was sent.
    pub fn all(&self) -> Vec<Served> {
        self.0.shared.lock().values().cloned().collect()
    }

    /// The log of one call.
    pub fn of(&self, call: &Call) -> Option<Served> {
        self.0.shared.lock().get(&call.id).cloned()
    }

    /// The number of tokens of a call that were written to its gateway.
    pub fn served(&self, call: &Call) -> u64 {
        self.of(call).map_or(0, |served| served.tokens.len() as u64)
    }

    /// Whether the call's usage was written to its gateway.
    pub fn reported(&self, call: &Call) -> bool {
        self.of(call)
            .is_some_and(|served| served.reported.is_some())
    }

    /// The number of requests that a vendor got for the call.
    pub fn requested(&self, call: &Call) -> u32 {
        self.of(call).map_or(0, |served| served.requested)
    }

    /// Lets the vendor continue a call that waits at its gate.
    pub fn open_gate(&self, call: &Call) {
        if let Some(served) = self.0.shared.lock().get(&call.id) {
            served.gate.notify_one();
        }
    }

    /// Waits until this number of tokens of the call was written to its gateway.
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

    /// Waits until everything except the usage was written to the call's gateway. For a vendor that reports usage in
    /// its last event.
    pub async fn wait_said(&self, call: &Call) {
        self.wait(&format!("all of {call:?}"), || {
            self.of(call).is_some_and(|served| served.output)
        })
        .await;
    }

    /// Waits until the call's usage was written to its gateway.
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

    /// Searches the bytes that passed a proxy for markers.
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
                // An answer that is not streamed arrives with its usage, so that all tokens have arrived.
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
