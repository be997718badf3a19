//! Tests of client disconnects at every moment of a call. The call is charged by the rules of docs/decisions.md, its
//! hold ends within a second, and it has at most one receipt (invariants I5, I7 and I8).

use std::{
    future::pending,
    panic::AssertUnwindSafe,
    pin::Pin,
    sync::atomic::{AtomicBool, Ordering},
    task::{Context, Poll},
};

use futures_util::FutureExt;
use http::{HeaderValue, Request, Response, header::HOST};
use http_body::{Body, Frame};
use http_body_util::{BodyExt, Full};
use hyper::{
    body::Incoming,
    client::conn::http1::{SendRequest, handshake},
};
use hyper_util::rt::TokioIo;
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{TcpListener, TcpStream},
    task::JoinSet,
    time::{Instant, timeout},
};
use tollgate_layers::{
    Error,
    body::{AnswerBody, boxed},
    call::Format,
    facts::RequestNumber,
    key::{AccountId, KeyId},
    money::MicroRub,
    reserve::{
        Bill, Quote, ReserveLayer, Settler, SettlerSettings, Tariff,
        ledger::{
            BookError, Hold, Item, Ledger, LedgerAdmin, LedgerError, Refusal, Reserved, Settled,
            Settlement,
        },
        memory::MemoryLedger,
    },
    text_size::TextSize,
    usage::{Meter, Reading},
};
use tower::{Layer, Service, service_fn};

use crate::{
    ledger::{HOUR, acme, hold, is_sound, item, micro, number, open},
    prelude::*,
};

/// The maximum time after a client disconnect until the hold has ended and the vendor's connection is closed.
const SOON: Duration = Duration::from_secs(1);

const SAID: &str = "0123456789012345678901234567890123456789";

/// Returns the estimated input tokens of a message with the text `SAID`: the tokens of the text, and four for the
/// message itself.
fn input_estimated() -> i64 {
    i64::try_from(TextSize::of(SAID).milli() / 1000 + 4).unwrap()
}

const FORMATS: [Format; 3] = [Format::Chat, Format::Messages, Format::Responses];

/// Returns the prices of an input token and of an output token, in micro-rubles.
const fn rates(format: Format) -> (i64, i64) {
    match format {
        Format::Chat | Format::Responses => (100, 200),
        Format::Messages => (1000, 2000),
    }
}

/// The words of the vendor's stream. Its usage is 9 input tokens and 5 output tokens.
const WORDS: [&str; 3] = ["раз ", "два ", "три"];
/// Returns the number of events of the stream, up to and including the event with the second word.
const fn events_to_second_word(format: Format) -> usize {
    match format {
        Format::Chat => 3,
        Format::Messages | Format::Responses => 4,
    }
}

fn output_seen() -> i64 {
    i64::try_from(TextSize::of("раз два ").tokens()).unwrap()
}

fn full_charge(format: Format) -> MicroRub {
    let (input, output) = rates(format);
    micro(9 * input + 5 * output)
}

fn events(format: Format) -> Vec<String> {
    match format {
        Format::Chat => {
            let chunk = |choices: Value, usage: Value| {
                let chunk = json!({ "id": "c1", "object": "chat.completion.chunk", "created": 1,
                    "model": "vendor-chat-1", "choices": choices, "usage": usage });
                format!("data: {chunk}\n\n")
            };
            let delta = |delta: Value, finish: Value| {
                let choice = json!({ "index": 0, "delta": delta, "finish_reason": finish });
                chunk(json!([choice]), Value::Null)
            };
            let mut events = vec![delta(json!({ "role": "assistant" }), Value::Null)];
            events.extend(WORDS.map(|word| delta(json!({ "content": word }), Value::Null)));
            events.push(delta(json!({}), "stop".into()));
            events.push(chunk(json!([]), usage(format)));
            events.push("data: [DONE]\n\n".into());
            events
        }
        Format::Messages => {
            let event = |data: Value| {
                let name = data["type"].as_str().unwrap();
                format!("event: {name}\ndata: {data}\n\n")
            };
            let mut events = vec![
                event(
                    json!({ "type": "message_start", "message": { "id": "m1", "type": "message",
                    "role": "assistant", "model": "vendor-messages-1", "content": [],
                    "stop_reason": null, "usage": { "input_tokens": 9, "output_tokens": 1 } } }),
                ),
                event(json!({ "type": "content_block_start", "index": 0,
                    "content_block": { "type": "text", "text": "" } })),
            ];
            events.extend(WORDS.map(|word| {
                let delta = json!({ "type": "text_delta", "text": word });
                event(json!({ "type": "content_block_delta", "index": 0, "delta": delta }))
            }));
            events.push(event(json!({ "type": "content_block_stop", "index": 0 })));
            events.push(event(json!({ "type": "message_delta",
                "delta": { "stop_reason": "end_turn", "stop_sequence": null },
                "usage": { "output_tokens": 5 } })));
            events.push(event(json!({ "type": "message_stop" })));
            events
        }
        Format::Responses => {
            let mut begun = response();
            begun["status"] = "in_progress".into();
            (begun["output"], begun["usage"]) = (json!([]), Value::Null);
            let begun = json!({ "response": begun });
            let mut events = vec![
                named("response.created", &begun),
                named("response.in_progress", &begun),
            ];
            events.extend(WORDS.map(|word| {
                let delta = json!({ "item_id": "msg_1", "output_index": 0, "content_index": 0, "delta": word });
                named("response.output_text.delta", &delta)
            }));
            events.push(named(
                "response.completed",
                &json!({ "response": response() }),
            ));
            events
        }
    }
}

fn named(kind: &str, fields: &Value) -> String {
    let data = with(fields.clone(), json!({ "type": kind }));
    format!("event: {kind}\ndata: {data}\n\n")
}

/// Returns the complete response of a vendor of the Responses format.
fn response() -> Value {
    json!({ "id": "resp_1", "object": "response", "created_at": 1, "status": "completed",
        "model": "vendor-chat-1", "error": null, "incomplete_details": null,
        "output": [{ "type": "message", "id": "msg_1", "role": "assistant", "status": "completed",
            "content": [{ "type": "output_text", "text": WORDS.concat(), "annotations": [] }] }],
        "usage": usage(Format::Responses) })
}

fn usage(format: Format) -> Value {
    match format {
        Format::Chat => json!({ "prompt_tokens": 9, "completion_tokens": 5, "total_tokens": 14 }),
        Format::Messages => json!({ "input_tokens": 9, "output_tokens": 5 }),
        Format::Responses => json!({ "input_tokens": 9, "output_tokens": 5, "total_tokens": 14 }),
    }
}

fn plain(format: Format) -> String {
    let text = WORDS.concat();
    match format {
        Format::Chat => json!({ "id": "c1", "object": "chat.completion", "created": 1,
            "model": "vendor-chat-1", "choices": [{ "index": 0, "finish_reason": "stop",
                "message": { "role": "assistant", "content": text } }],
            "usage": usage(format) }),
        Format::Messages => json!({ "id": "m1", "type": "message", "role": "assistant",
            "model": "vendor-messages-1", "content": [{ "type": "text", "text": text }],
            "stop_reason": "end_turn", "stop_sequence": null, "usage": usage(format) }),
        Format::Responses => response(),
    }
    .to_string()
}

fn call(world: &World, key: &Key, format: Format, stream: bool) -> Request<Full<Bytes>> {
    let fields = json!({ "stream": stream });
    match format {
        Format::Chat => world.chat_request(key, &with(chat_body(SAID), fields)),
        Format::Messages => world.messages_request(key, &with(messages_body(SAID), fields)),
        Format::Responses => {
            let turn = json!({ "role": "user", "content": SAID });
            let body = json!({ "model": "chat", "input": [turn], "max_output_tokens": 100 });
            let url = world.url("/v1/responses");
            let body = with(body, fields).to_string();
            json_request(Method::POST, &url, &key.secret, body)
        }
    }
}

/// A client with a separate connection. Dropping the client closes its socket.
struct Client {
    sender: SendRequest<Full<Bytes>>,
    socket: JoinSet<()>,
}

impl Client {
    async fn dial(world: &World) -> Self {
        let socket = TcpStream::connect(world.gateway.address()).await.unwrap();
        let (sender, connection) = handshake(TokioIo::new(socket)).await.unwrap();
        let mut socket = JoinSet::new();
        socket.spawn(async move { drop(connection.await) });
        Self { sender, socket }
    }

    /// Sends a request, and waits for the head of the response.
    async fn ask(&mut self, req: Request<Full<Bytes>>) -> Response<Incoming> {
        self.sender.send_request(in_origin_form(req)).await.unwrap()
    }

    /// Sends a request, and does not wait for the response.
    fn send(&mut self, req: Request<Full<Bytes>>) {
        let answer = self.sender.send_request(in_origin_form(req));
        self.socket.spawn(async move { drop(answer.await) });
    }

    /// Disconnects the client. Returns the time at which it was disconnected.
    fn leave(self) -> Instant {
        drop(self);
        Instant::now()
    }
}

fn in_origin_form(req: Request<Full<Bytes>>) -> Request<Full<Bytes>> {
    let (mut parts, body) = req.into_parts();
    parts.uri = parts.uri.path().parse().unwrap();
    parts
        .headers
        .insert(HOST, HeaderValue::from_static("gateway.example"));
    Request::from_parts(parts, body)
}

/// Reads a stream until `last` has arrived.
async fn read_until(res: &mut Response<Incoming>, last: &str) {
    let mut read = Vec::new();
    while !String::from_utf8_lossy(&read).contains(last) {
        let frame = timeout(5 * SOON, res.body_mut().frame()).await;
        let frame = frame.unwrap_or_else(|_| panic!("no {last:?} in five seconds"));
        let frame = frame.unwrap_or_else(|| panic!("no {last:?} up to the end"));
        read.extend_from_slice(&frame.unwrap().into_data().unwrap());
    }
}

fn number_of(res: &Response<Incoming>) -> String {
    res.headers()["x-request-id"].to_str().unwrap().to_owned()
}

/// Returns the setup of a gateway whose vendor has this format. For the Responses format, the Chat Completions vendor
/// is configured with it.
fn selling(format: Format) -> Setup {
    match format {
        Format::Chat | Format::Messages => Setup::default(),
        Format::Responses => Setup::default().edit("format = \"chat\"", "format = \"responses\""),
    }
}

/// Returns the setup of a gateway that admits one call at a time. So if the gateway admits another call, it has
/// detected the disconnect of the previous client.
fn one_at_a_time(format: Format) -> Setup {
    selling(format).edit("[ledger]", "[limits]\nin_flight_max = 1\n[ledger]")
}

async fn leave_is_noticed(world: &World) {
    eventually("the leave is noticed", async || {
        let answer = world.get("/nowhere", &[]).await;
        (answer.status.as_u16() == 404).then_some(())
    })
    .await;
}

async fn vendor_is_left(world: &World, left: Instant) {
    eventually("the vendor's connection is closed", async || {
        (world.vendor.open() == 0).then_some(())
    })
    .await;
    assert!(left.elapsed() < SOON, "{:?}", left.elapsed());
}

/// Checks that one second after `left`, nothing is held and the account was charged exactly this amount.
async fn has_paid(world: &World, key: &Key, left: Instant, charge: MicroRub) {
    let account = world.settled(key).await;
    assert!(left.elapsed() < SOON, "{:?}", left.elapsed());
    assert_eq!(account["spent_rub"], charge.to_string(), "{account}");
    let rest = MicroRub::rubles(1000).checked_sub(charge).unwrap();
    assert_eq!(account["balance_rub"], rest.to_string(), "{account}");
    assert_eq!(account["loss_rub"], "0.00", "{account}");
    is_sound(world.gateway.store()).await;
}

async fn receipt_says(world: &World, number: &str, charge: MicroRub, end: &str, estimated: bool) {
    let receipt = world.receipt(number).await;
    assert_eq!(receipt["charged_rub"], charge.to_string(), "{receipt}");
    assert_eq!(receipt["end"], end, "{receipt}");
    assert_eq!(receipt["estimated"], estimated, "{receipt}");
    assert_eq!(receipt["booked"], "held", "{receipt}");
}

/// The vendor has sent nothing when the client disconnects. The gateway charges the input and closes the vendor's
/// connection at once.
#[tokio::test]
async fn client_that_disconnects_before_the_stream_headers_arrive_pays_for_the_input() {
    for format in FORMATS {
        let vendor = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let world = beside(&vendor, format, "").await;
        let key = world.key().await;
        let mut client = Client::dial(&world).await;
        client.send(call(&world, &key, format, true));
        let mut socket = requested(&vendor).await;
        let left = client.leave();
        let closed = timeout(5 * SOON, socket.read(&mut [0; 64])).await.unwrap();
        assert!(matches!(closed, Ok(0) | Err(_)), "{closed:?}");
        assert!(left.elapsed() < SOON, "{:?}", left.elapsed());
        let (input, _) = rates(format);
        has_paid(&world, &key, left, micro(input_estimated() * input)).await;
    }
}

/// Starts a gateway whose vendor is this listener instead of the scripted vendor.
async fn beside(vendor: &TcpListener, format: Format, more: &str) -> World {
    let (name, path) = match format {
        Format::Chat => ("chat", "/v1"),
        Format::Messages => ("messages", ""),
        Format::Responses => ("responses", "/v1"),
    };
    let address = vendor.local_addr().unwrap();
    let from = format!("format = \"{name}\"\nurl = \"");
    // The address of the scripted vendor follows on this line. The `#` turns it into a comment.
    let to = format!("format = \"{name}\"\n{more}\nurl = \"http://{address}{path}\" # ");
    one_at_a_time(format).edit(&from, &to).start().await
}

/// Accepts the gateway's connection, and reads one request from it to its end.
async fn requested(vendor: &TcpListener) -> TcpStream {
    let (mut socket, _) = vendor.accept().await.unwrap();
    let (mut read, mut buffer) = (Vec::new(), [0; 4096]);
    while !read.ends_with(b"}") {
        let count = timeout(5 * SOON, socket.read(&mut buffer)).await;
        let count = count.unwrap().unwrap();
        assert!(count > 0, "the connection was closed too early");
        read.extend_from_slice(&buffer[..count]);
    }
    socket
}

/// The gateway reads a plain response to its end and charges it in full, even if the client disconnects before the
/// vendor's headers, before the body, or in the middle of the body.
#[tokio::test]
async fn client_that_disconnects_during_a_plain_answer_pays_in_full() {
    for format in FORMATS {
        for sent in [0, 1, 2] {
            let (hold, body) = (Arc::new(Notify::new()), Bytes::from(plain(format)));
            let half = body.len() / 2;
            let mut steps = vec![
                Step::Send(body.slice(..half)),
                Step::Send(body.slice(half..)),
            ];
            // The vendor waits before the first half of the body, before the second half, or before the end.
            steps.insert(sent, Step::Hold(Arc::clone(&hold)));
            let reply = Reply::raw(200, "application/json", steps);
            let world = one_at_a_time(format).start().await;
            world.vendor_sends(reply);
            let key = world.key().await;
            let mut client = Client::dial(&world).await;
            client.send(call(&world, &key, format, false));
            eventually("the vendor answers", async || {
                (world.vendor.open() == 1).then_some(())
            })
            .await;
            client.leave();
            leave_is_noticed(&world).await;
            assert_eq!(world.vendor.open(), 1, "the vendor is not left");
            assert_ne!(world.account(&key).await["held_rub"], "0.00");
            let finished = Instant::now();
            hold.notify_one();
            has_paid(&world, &key, finished, full_charge(format)).await;
        }
    }
}

/// The client of a plain call disconnects before the vendor has begun to respond.
#[tokio::test]
async fn client_that_disconnects_before_the_headers_of_a_plain_answer_pays_in_full() {
    finishes_without_its_client(false, "").await;
}

/// With `on_disconnect = "drain"`, the gateway reads the stream to its end even if the client disconnects before the
/// stream begins.
#[tokio::test]
async fn client_that_disconnects_before_the_headers_of_a_stream_read_to_the_end_pays_in_full() {
    finishes_without_its_client(true, "on_disconnect = \"drain\"").await;
}

async fn finishes_without_its_client(stream: bool, more: &str) {
    for format in FORMATS {
        let vendor = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let world = beside(&vendor, format, more).await;
        let key = world.key().await;
        let mut client = Client::dial(&world).await;
        client.send(call(&world, &key, format, stream));
        let mut socket = requested(&vendor).await;
        client.leave();
        leave_is_noticed(&world).await;
        assert_ne!(world.account(&key).await["held_rub"], "0.00");
        let (kind, body) = if stream {
            ("text/event-stream", events(format).concat())
        } else {
            ("application/json", plain(format))
        };
        let head = format!(
            "HTTP/1.1 200 OK\r\ncontent-type: {kind}\r\ncontent-length: {}\r\n\r\n",
            body.len()
        );
        let finished = Instant::now();
        socket.write_all((head + &body).as_bytes()).await.unwrap();
        has_paid(&world, &key, finished, full_charge(format)).await;
    }
}

/// The gateway closes the vendor's connection at once, and charges the input and the output that was received so far.
#[tokio::test]
async fn client_that_disconnects_within_a_stream_pays_for_input_and_received_output() {
    for format in FORMATS {
        let hold = Arc::new(Notify::new());
        let reply = Reply::stream(events(format))
            .with_step(events_to_second_word(format), Step::Hold(hold));
        let world = selling(format).start().await;
        world.vendor_sends(reply);
        let key = world.key().await;
        let mut client = Client::dial(&world).await;
        let mut res = client.ask(call(&world, &key, format, true)).await;
        read_until(&mut res, WORDS[1]).await;
        let left = client.leave();
        vendor_is_left(&world, left).await;
        let (input, output) = rates(format);
        // A Messages vendor reports the input in the first event. Vendors of the other formats report it at the end, so
        // the input is estimated.
        let tokens_in = match format {
            Format::Chat | Format::Responses => input_estimated(),
            Format::Messages => 9,
        };
        let charge = micro(tokens_in * input + output_seen() * output);
        has_paid(&world, &key, left, charge).await;
        receipt_says(&world, &number_of(&res), charge, "client_left", true).await;
    }
}

/// After the last event, the call is finished, even if the vendor keeps its connection open.
#[tokio::test]
async fn client_that_disconnects_after_the_last_event_counts_as_finished() {
    for format in FORMATS {
        let (hold, events) = (Arc::new(Notify::new()), events(format));
        let last = events.len();
        let reply = Reply::stream(events).with_step(last, Step::Hold(hold));
        let world = selling(format).start().await;
        world.vendor_sends(reply);
        let key = world.key().await;
        let mut client = Client::dial(&world).await;
        let mut res = client.ask(call(&world, &key, format, true)).await;
        let last = match format {
            Format::Chat => "[DONE]\n\n",
            Format::Messages => "{\"type\":\"message_stop\"}\n\n",
            Format::Responses => "\"type\":\"response.completed\"}\n\n",
        };
        read_until(&mut res, last).await;
        let left = client.leave();
        vendor_is_left(&world, left).await;
        has_paid(&world, &key, left, full_charge(format)).await;
        let charge = full_charge(format);
        receipt_says(&world, &number_of(&res), charge, "finished", false).await;
    }
}

/// With `on_disconnect = "drain"`, the gateway reads the stream to its end and charges the vendor's usage.
#[tokio::test]
async fn client_that_disconnects_from_a_stream_read_to_the_end_pays_for_the_true_usage() {
    for (format, name) in FORMATS.into_iter().zip(["chat", "messages", "responses"]) {
        let hold = Arc::new(Notify::new());
        let reply = Reply::stream(events(format))
            .with_step(events_to_second_word(format), Step::Hold(Arc::clone(&hold)));
        let from = format!("format = \"{name}\"\n");
        let to = format!("{from}on_disconnect = \"drain\"\n");
        let world = one_at_a_time(format).edit(&from, &to).start().await;
        world.vendor_sends(reply);
        let key = world.key().await;
        let mut client = Client::dial(&world).await;
        let mut res = client.ask(call(&world, &key, format, true)).await;
        read_until(&mut res, WORDS[1]).await;
        client.leave();
        leave_is_noticed(&world).await;
        assert_eq!(world.vendor.open(), 1, "the vendor is not left");
        assert_ne!(world.account(&key).await["held_rub"], "0.00");
        let finished = Instant::now();
        hold.notify_one();
        has_paid(&world, &key, finished, full_charge(format)).await;
        let charge = full_charge(format);
        receipt_says(&world, &number_of(&res), charge, "finished", false).await;
    }
}

/// A refused call costs nothing and leaves no hold, even if its client disconnects (invariant I9).
#[tokio::test]
async fn client_that_disconnects_after_a_refusal_pays_nothing() {
    let world = World::start().await;
    let key = world.key_with("acme", "0.01", json!({})).await;
    let mut client = Client::dial(&world).await;
    let res = client.ask(call(&world, &key, Format::Chat, true)).await;
    assert_eq!(res.status(), 403);
    client.leave();
    let account = world.settled(&key).await;
    assert_eq!(account["balance_rub"], "0.01");
    let path = format!("/admin/v1/receipts/{}", number_of(&res));
    assert_eq!(world.admin_get(&path).await.status, 404);
    assert_eq!(world.vendor.received().len(), 0);
}

/// A tariff with fixed amounts: a call holds 100 µ₽, and costs 30 µ₽ once a vendor has received it.
#[derive(Clone)]
pub struct Flat {
    pub meter: Meter,
    pub finish_without_client: bool,
}

pub struct FlatBill;

impl Tariff<()> for Flat {
    type Bill = FlatBill;

    fn quote(&self, _: &Request<()>) -> Result<Quote<FlatBill>, Error> {
        let Hold {
            account, key, want, ..
        } = hold(1, "k1", 100);
        let mut quote = Quote::new(account, key, want, FlatBill);
        quote.meter = self.meter.clone();
        quote.finish_without_client = self.finish_without_client;
        Ok(quote)
    }

    fn granted(&self, _: &mut Request<()>, _: &mut FlatBill, _: MicroRub) {}
}

impl Bill for FlatBill {
    fn charge(&self, reading: &Reading) -> Option<(MicroRub, Item)> {
        reading.dispatched.then(|| (micro(30), item(30)))
    }
}

fn numbered(n: u128) -> Request<()> {
    let mut req = Request::new(());
    req.extensions_mut().insert(number(n));
    req
}

/// A ledger that makes each hold but never answers to `reserve`.
#[derive(Clone)]
struct Mute(MemoryLedger);

impl Ledger for Mute {
    async fn reserve(&self, hold: &Hold) -> Result<Reserved, LedgerError> {
        self.0.reserve(hold).await?;
        pending().await
    }

    async fn settle(&self, settlement: &Settlement) -> Result<Settled, LedgerError> {
        self.0.settle(settlement).await
    }

    async fn release(
        &self,
        number: RequestNumber,
        account: &AccountId,
        key: &KeyId,
    ) -> Result<(), LedgerError> {
        self.0.release(number, account, key).await
    }

    async fn extend(
        &self,
        number: RequestNumber,
        account: &AccountId,
        ttl: Duration,
    ) -> Result<bool, LedgerError> {
        self.0.extend(number, account, ttl).await
    }

    async fn probe(&self, account: &AccountId, key: &KeyId) -> Result<(), LedgerError> {
        self.0.probe(account, key).await
    }

    async fn expire(&self) -> Result<usize, LedgerError> {
        self.0.expire().await
    }
}

/// The client disconnects before the ledger has answered. The hold may have been made, so it is released. If the
/// request for the hold arrives later than the release, it is refused.
#[tokio::test]
async fn hold_is_released_if_the_client_disconnects_before_the_ledger_has_answered() {
    for finish_without_client in [false, true] {
        let books = MemoryLedger::new();
        open(&books, 1000).await;
        let ledger = Mute(books.clone());
        let (settler, task) = Settler::new(ledger.clone(), SettlerSettings::default(), |_| {});
        let mut tasks = JoinSet::new();
        tasks.spawn(task.run());
        let tariff = Flat {
            meter: Meter::default(),
            finish_without_client,
        };
        let reached = Arc::new(AtomicBool::new(false));
        let vendor = Arc::clone(&reached);
        let inner = service_fn(move |_: Request<()>| {
            vendor.store(true, Ordering::SeqCst);
            async { Err::<Response<AnswerBody>, _>(Error::Draining) }
        });
        let mut service = ReserveLayer::new(ledger, tariff, settler, HOUR).layer(inner);
        let mut call = service.call(numbered(1));
        assert!((&mut call).now_or_never().is_none());
        let held = books.account(&acme()).await.unwrap().held_rub;
        assert_eq!(held, micro(100));

        let left = Instant::now();
        drop(call);
        eventually("the hold is gone", async || {
            let account = books.account(&acme()).await.unwrap();
            (account.held_rub == micro(0)).then_some(())
        })
        .await;
        assert!(left.elapsed() < SOON, "{:?}", left.elapsed());
        assert!(!reached.load(Ordering::SeqCst), "I6");
        let late = books.reserve(&hold(1, "k1", 100)).await;
        assert!(
            matches!(late, Err(LedgerError::Refused(Refusal::Gone))),
            "{late:?}"
        );
        let receipt = books.receipt(number(1)).await;
        assert!(matches!(receipt, Err(BookError::NotFound)), "{receipt:?}");
        is_sound(&books).await;
    }
}

/// The place at which a call panics: in the `call` method of the service, in its future, or in the body of the
/// response.
#[derive(Clone, Copy, Debug, PartialEq)]
enum At {
    Call,
    Future,
    Body,
}

/// A response body that panics.
pub struct Fragile;

impl Body for Fragile {
    type Data = Bytes;
    type Error = Error;

    fn poll_frame(
        self: Pin<&mut Self>,
        _: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Error>>> {
        panic!("panicked on purpose");
    }
}

/// If a call panics, its hold ends, and later calls are settled as usual.
#[tokio::test]
async fn panic_in_a_call_ends_its_hold() {
    for at in [At::Call, At::Future, At::Body] {
        for dispatched in [false, true] {
            for finish_without_client in [false, true] {
                panic_resolves_the_hold(at, dispatched, finish_without_client).await;
            }
        }
    }
}

async fn panic_resolves_the_hold(at: At, dispatched: bool, finish_without_client: bool) {
    let name = format!("{at:?}, {dispatched}, {finish_without_client}");
    let ledger = MemoryLedger::new();
    open(&ledger, 1000).await;
    let (settler, task) = Settler::new(ledger.clone(), SettlerSettings::default(), |_| {});
    let mut tasks = JoinSet::new();
    tasks.spawn(task.run());
    let meter = Meter::default();
    let tariff = Flat {
        meter: meter.clone(),
        finish_without_client,
    };
    let inner = service_fn(move |_: Request<()>| {
        if dispatched {
            meter.dispatched();
        }
        assert!(at != At::Call, "panicked on purpose");
        async move {
            assert!(at != At::Future, "panicked on purpose");
            Ok::<_, Error>(Response::new(boxed(Fragile)))
        }
    });
    let mut service = ReserveLayer::new(ledger.clone(), tariff, settler, HOUR).layer(inner);
    for n in [1, 2] {
        let call = service.call(numbered(n));
        let panicked = AssertUnwindSafe(async move {
            let mut body = call.await.unwrap().into_body();
            drop(body.frame().await);
        });
        assert!(panicked.catch_unwind().await.is_err(), "{name}");
        let left = Instant::now();
        eventually(&format!("the hold is gone: {name}"), async || {
            let account = ledger.account(&acme()).await.unwrap();
            (account.held_rub == micro(0)).then_some(())
        })
        .await;
        assert!(left.elapsed() < SOON, "{name}: {:?}", left.elapsed());
        let receipt = ledger.receipt(number(n)).await;
        if dispatched {
            assert_eq!(receipt.unwrap().charged_rub, micro(30), "{name}");
        } else {
            assert!(matches!(receipt, Err(BookError::NotFound)), "{name}");
        }
        let spent = i64::from(dispatched) * 30 * i64::try_from(n).unwrap();
        let account = ledger.account(&acme()).await.unwrap();
        assert_eq!(account.spent_rub, micro(spent), "{name}");
    }
    is_sound(&ledger).await;
}
