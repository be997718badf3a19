//! Measures the time that each layer adds to a call, in nanoseconds.
//!
//! Each line of the results is one layer over a service that responds immediately. The time of the layer itself is the
//! time in its line minus the time in the line `nothing` with the same response. The timed part is what a server does
//! for a request: clone the service, call it, and read the response's body to its end. Creating the request is not
//! timed.
//!
//! The ledger is in memory. Callers do not wait for settlement, so only those lines whose name ends in `settled`
//! include it.

#[path = "../fixtures/mod.rs"]
mod fixtures;

use std::{
    fmt::Debug,
    future::{Ready, ready},
    hint::black_box,
    net::{IpAddr, Ipv4Addr, SocketAddr},
    pin::pin,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use criterion::{BenchmarkGroup, measurement::WallTime};
use http::{HeaderValue, Method, Request, Response, header::CONTENT_TYPE};
use http_body::Body;
use http_body_util::{BodyExt, Full};
use tokio::{runtime::Runtime, time::Instant};
use tollgate::catalog::snapshot::Live;
use tollgate_layers::{
    Error,
    auth::AuthLayer,
    body::boxed,
    call::{Attempt, Call, Outbound, Priced},
    error::BoxError,
    facts::{Caller, ClientAddr, RequestNumber},
    failover::{FailoverLayer, FailoverSettings, Health},
    idempotency::{
        AnswerKey, Fate, IDEMPOTENCY_KEY, Idempotency, IdempotencyLayer, IdempotencySettings, Money,
    },
    in_flight::InFlightLayer,
    key::{AccountId, KeyId, KeyStore as _},
    parse::{ParseLayer, ParseLimits},
    passthrough::PassthroughLayer,
    rate_limit::{Gcra, RateLimitLayer},
    request_number::RequestNumberLayer,
    reserve::{
        HoldMode, ReserveLayer, Settler, SettlerSettings,
        memory::MemoryLedger,
        redis::{RedisLedger, RedisSettings},
        tokens::ByTokens,
    },
    respond::{Language, RespondLayer},
    select::SelectLayer,
    translate::TranslateLayer,
    usage::{End, Meter, Usage},
};
use tollgate_ledger::idempotency::{
    AnswerStore, Bounds, MemoryAnswers, RedisAnswers, SqliteAnswers,
};
use tower::{Layer, Service, ServiceBuilder, ServiceExt, service_fn};

use crate::fixtures::{
    Canned, Rich, answers::Answers, by_address, chat_events, chat_request, directory, funded_key,
    layer_criterion, messages_request, one_thread, priced, redis_server,
    support::redis::RedisServer,
};

/// The number of calls between two readings of the clock. At most this number of calls waits for the settler at any
/// time.
const BATCH: u64 = 256;
/// The size of the memory that is read to empty the caches of a core. It is larger than the core's first and second
/// cache, and smaller than the shared cache.
const OTHERS_BYTES: usize = 4 << 20;
const LINE_BYTES: usize = 64;
const HOLD_TTL: Duration = Duration::from_secs(960);
const ADDRESS: IpAddr = IpAddr::V4(Ipv4Addr::LOCALHOST);

fn main() {
    let mut criterion = layer_criterion();
    let runtime = one_thread().expect("a runtime starts");
    let desk = runtime.block_on(Desk::open());
    // The settler runs on the same runtime as the calls. It settles calls only while `settled` waits.
    let (settler, settling) = {
        let ended = Arc::clone(&desk.ended);
        let settings = SettlerSettings::default();
        Settler::new(desk.ledger.clone(), settings, move |_| {
            ended.fetch_add(1, Ordering::Relaxed);
        })
    };
    let settling = runtime.spawn(settling.run());

    {
        let mut lines = Lines {
            runtime: &runtime,
            group: criterion.benchmark_group("layer"),
            ended: &desk.ended,
        };
        before_parsing(&mut lines, &desk);
        parsing(&mut lines);
        idempotency(&mut lines, &desk);
        after_parsing(&mut lines, &desk, &settler);
        passthrough(&mut lines, &desk);
        all(&mut lines, &desk, &settler);
        lines.group.finish();
    }
    settling.abort();
    criterion.final_summary();
}

/// Measures the layers that process a request before it is parsed.
fn before_parsing(lines: &mut Lines<'_, '_>, desk: &Desk) {
    let empty = Answers::empty();
    let request = || {
        let mut req = Request::new(());
        req.extensions_mut().insert(ClientAddr(ADDRESS));
        req.extensions_mut().insert(RequestNumber::now_v7());
        req
    };
    lines.time("nothing", &empty, request);
    let request_number = RequestNumberLayer::new().layer(empty.clone());
    lines.time("request_number", &request_number, request);
    let respond = RespondLayer::new(Language::Ru).layer(empty.clone());
    lines.time("respond", &respond, request);
    let in_flight = InFlightLayer::new(10_000).layer(empty.clone());
    lines.time("in_flight", &in_flight, request);
    let rate_limit = RateLimitLayer::new(Gcra::new(100_000), by_address).layer(empty.clone());
    lines.time("rate_limit", &rate_limit, request);
    let auth = AuthLayer::new(desk.ledger.clone()).layer(empty);
    lines.time("auth", &auth, || desk.request((), Canned::Plain));
}

fn parsing(lines: &mut Lines<'_, '_>) {
    let service = ParseLayer::new(ParseLimits::default()).layer(Answers::empty());
    for (name, canned, body) in [
        (
            "parse, chat of 300 bytes",
            Canned::Plain,
            chat_request("plain", false),
        ),
        (
            "parse, messages of 76 KB",
            Canned::Messages,
            messages_request("messages"),
        ),
    ] {
        lines.time(name, &service, || posted(canned, Full::new(body.clone())));
    }
}

/// Measures calls without an idempotency key, calls with such a key, and repeated calls. A call with an idempotency key
/// is claimed, runs in its own task, and its response is encrypted and stored. Each kind of store is measured.
fn idempotency(lines: &mut Lines<'_, '_>, desk: &Desk) {
    let called = desk.called(lines.runtime, Canned::Plain, false);
    let answers = ServiceBuilder::new()
        .map_response(|res: Response<_>| res.map(boxed))
        .service(Answers::json(400));
    lines.time("nothing, JSON of 400 bytes", &answers, || called.clone());
    let bounds = Bounds {
        account_calls_max: u64::MAX,
        account_bytes_max: u64::MAX,
        bytes_max: u64::MAX,
    };
    let of_memory = with_answers(MemoryAnswers::new(bounds), answers.clone());
    lines.time("idempotency, no header", &of_memory, || called.clone());
    let keyed = |presented: &str| {
        let mut req = called.clone();
        let presented = HeaderValue::from_str(presented).expect("digits");
        req.headers_mut().insert(IDEMPOTENCY_KEY, presented);
        req.extensions_mut().insert(AnswerKey([7; 32]));
        req.extensions_mut().insert(RequestNumber::now_v7());
        req
    };
    let next = AtomicU64::new(0);
    let new = || keyed(&next.fetch_add(1, Ordering::Relaxed).to_string());
    lines.time("idempotency, a new key", &of_memory, new);
    lines.time("idempotency, the same key again", &of_memory, || {
        keyed("same")
    });

    let place = directory().and_then(tempfile::tempdir_in);
    let place = place.expect("there is room for its files");
    let store = SqliteAnswers::new(&place.path().join("answers"), bounds);
    let of_sqlite = with_answers(store, answers.clone());
    lines.time("idempotency, a new key, sqlite", &of_sqlite, new);
    if !RedisServer::is_installed() {
        eprintln!("no redis-server on the PATH: no line of idempotency with it");
        return;
    }
    let (conn, _server) = lines.runtime.block_on(async {
        let server = redis_server().await.expect("there is room for its files");
        let ledger = RedisLedger::connect(&server.url(), RedisSettings::default()).await;
        (ledger.expect("the server is there").conn().clone(), server)
    });
    let of_redis = with_answers(RedisAnswers::new(conn, bounds), answers);
    lines.time("idempotency, a new key, redis", &of_redis, new);
}

fn with_answers<A: AnswerStore, S>(store: A, inner: S) -> Idempotency<S, A, NobodyDied> {
    let settings = IdempotencySettings {
        // The responses are stored for a short time only, so that millions of them do not accumulate. About one
        // repeated call in ten thousand finds no stored response and runs as a new call.
        stored: Duration::from_millis(100),
        ..IdempotencySettings::default()
    };
    IdempotencyLayer::new(store, NobodyDied, settings, |_| {}).layer(inner)
}

#[derive(Clone, Copy)]
struct NobodyDied;

impl Money for NobodyDied {
    async fn abandon(&self, _: RequestNumber, _: &AccountId, _: &KeyId) -> Result<Fate, BoxError> {
        Ok(Fate::Open)
    }

    async fn permits(&self, _: &AccountId, _: &KeyId) -> Result<bool, BoxError> {
        Ok(true)
    }
}

/// Measures the layers that process a parsed call.
fn after_parsing(lines: &mut Lines<'_, '_>, desk: &Desk, settler: &Settler) {
    let called = desk.called(lines.runtime, Canned::Plain, false);
    let priced = desk.priced(lines.runtime, Canned::Plain, false);
    let select = SelectLayer::new(Arc::clone(&desk.live), Rich).layer(Answers::empty());
    lines.time("select", &select, || called.clone());

    let empty = Answers::empty();
    let reserve = reserve_layer(desk, settler).layer(service_fn(move |req: Request<Priced>| {
        req.body().meter.update(|reading| {
            reading.dispatched = true;
            reading.end = Some(End::Finished);
            reading.usage = Some(Usage {
                input: 31,
                output: 40,
                ..Usage::default()
            });
        });
        ready(Ok::<_, Error>(empty.answer()))
    }));
    lines.time_settled("reserve", &reserve, || fresh(&priced));

    let failover = failover_layer().layer(Answers::empty());
    lines.time("failover", &failover, || priced.clone());
    for (name, canned, stream) in [
        (
            "translate, the model's name in 300 bytes",
            Canned::Plain,
            false,
        ),
        (
            "translate, the name and usage in 300 bytes",
            Canned::Stream,
            true,
        ),
        (
            "translate, the model's name in 76 KB",
            Canned::Messages,
            false,
        ),
    ] {
        let attempt = desk.attempt(lines.runtime, canned, stream);
        let service = TranslateLayer::new().layer(Answers::empty());
        lines.time(name, &service, || attempt.clone());
    }
}

/// Measures the layer `passthrough`. Its lines are compared with the lines `nothing`, which have the same responses
/// without the layer.
fn passthrough(lines: &mut Lines<'_, '_>, desk: &Desk) {
    let cases = [
        ("JSON of 1 KB", Canned::Plain, false, Answers::json(1024)),
        (
            "stream of 100 chunks",
            Canned::Stream,
            true,
            Answers::stream(&chat_events()),
        ),
    ];
    for (name, canned, stream, answers) in cases {
        let outbound = desk.outbound(lines.runtime, canned, stream);
        lines.time(&format!("nothing, {name}"), &answers, || outbound.clone());
        let service = PassthroughLayer::new(1 << 20).layer(answers);
        lines.time(&format!("passthrough, {name}"), &service, || {
            outbound.clone()
        });
    }
}

/// Measures a request through all layers in the gateway's order. The result is the sum of all layers, plus the cost of
/// boxing and of moves between layers.
fn all(lines: &mut Lines<'_, '_>, desk: &Desk, settler: &Settler) {
    let cases = [
        (
            "all, JSON of 400 bytes",
            Canned::Plain,
            chat_request("plain", false),
            Answers::json(400),
        ),
        (
            "all, stream of 100 chunks",
            Canned::Stream,
            chat_request("stream", true),
            Answers::stream(&chat_events()),
        ),
    ];
    for (name, canned, body, answers) in cases {
        let service = ServiceBuilder::new()
            .layer(RequestNumberLayer::new())
            .layer(RespondLayer::new(Language::Ru))
            .layer(InFlightLayer::new(10_000))
            .layer(RateLimitLayer::new(Gcra::new(100_000), by_address))
            .layer(AuthLayer::new(desk.ledger.clone()))
            .layer(ParseLayer::new(ParseLimits::default()))
            .layer(SelectLayer::new(Arc::clone(&desk.live), Rich))
            .layer(reserve_layer(desk, settler))
            .layer(failover_layer())
            .layer(TranslateLayer::new())
            .layer(PassthroughLayer::new(1 << 20))
            .service(service_fn(move |req: Request<Outbound>| {
                req.body().meter.dispatched();
                ready(Ok::<_, Error>(answers.answer()))
            }));
        let request = || desk.request(Full::new(body.clone()), canned);
        lines.time_settled(name, &service, request);
        lines.time_cold(&format!("{name}, settled, caches cold"), &service, request);
    }
}

fn failover_layer() -> FailoverLayer {
    FailoverLayer::new(Health::new(), FailoverSettings::default())
}

fn reserve_layer(desk: &Desk, settler: &Settler) -> ReserveLayer<MemoryLedger, ByTokens> {
    ReserveLayer::new(
        desk.ledger.clone(),
        ByTokens::new(HoldMode::Usual, 5_000, 50_000),
        settler.clone(),
        HOLD_TTL,
    )
}

// --- timing ---

/// The benchmark group to which the lines are added.
struct Lines<'a, 'c> {
    runtime: &'a Runtime,
    group: BenchmarkGroup<'c, WallTime>,
    /// The number of calls whose hold has ended.
    ended: &'a AtomicU64,
}

impl Lines<'_, '_> {
    /// Measures calls that hold no money.
    fn time<B>(
        &mut self,
        name: &str,
        service: &impl Measured<B>,
        request: impl Fn() -> Request<B>,
    ) {
        self.measure(name, service, &request, &async |_| {}, |took| took.calls);
    }

    /// Measures calls that hold money, with and without their settlement.
    fn time_settled<B>(
        &mut self,
        name: &str,
        service: &impl Measured<B>,
        request: impl Fn() -> Request<B>,
    ) {
        let ended = self.ended;
        let settled = async |calls: u64| {
            while ended.load(Ordering::Relaxed) < calls {
                tokio::task::yield_now().await;
            }
            ended.store(0, Ordering::Relaxed);
        };
        self.measure(name, service, &request, &settled, |took| took.calls);
        let name = format!("{name}, settled");
        let both = |took: Took| took.calls + took.settling;
        self.measure(&name, service, &request, &settled, both);
    }

    fn measure<B>(
        &mut self,
        name: &str,
        service: &impl Measured<B>,
        request: &impl Fn() -> Request<B>,
        settled: &impl AsyncFn(u64),
        part: fn(Took) -> Duration,
    ) {
        let runtime = self.runtime;
        self.group.bench_function(name, |bencher| {
            bencher.iter_custom(|calls| {
                part(runtime.block_on(timed(calls, service, request, settled)))
            });
        });
    }

    /// Measures calls that hold money, with their settlement. Before each call, other memory is read into the core's
    /// first and second cache, because in a gateway other work runs between two calls as well.
    fn time_cold<B>(
        &mut self,
        name: &str,
        service: &impl Measured<B>,
        request: impl Fn() -> Request<B>,
    ) {
        let (runtime, ended) = (self.runtime, self.ended);
        let mut others = vec![1u8; OTHERS_BYTES];
        self.group.bench_function(name, |bencher| {
            bencher.iter_custom(|calls| {
                runtime.block_on(async {
                    let mut took = Duration::ZERO;
                    for _ in 0..calls {
                        let req = request();
                        others
                            .iter_mut()
                            .step_by(LINE_BYTES)
                            .for_each(|byte| *byte ^= 1);
                        black_box(&mut others);
                        let began = Instant::now();
                        answered(service, req).await;
                        while ended.load(Ordering::Relaxed) == 0 {
                            tokio::task::yield_now().await;
                        }
                        took += began.elapsed();
                        ended.store(0, Ordering::Relaxed);
                    }
                    took
                })
            });
        });
    }
}

/// A service whose calls are measured.
trait Measured<B>:
    Service<Request<B>, Response = Response<Self::Answer>, Error: Debug> + Clone
{
    type Answer: Body<Error: Debug>;
}

impl<S, B, A> Measured<B> for S
where
    S: Service<Request<B>, Response = Response<A>, Error: Debug> + Clone,
    A: Body<Error: Debug>,
{
    type Answer = A;
}

struct Took {
    calls: Duration,
    settling: Duration,
}

async fn answered<B>(service: &impl Measured<B>, req: Request<B>) {
    let res = service.clone().oneshot(req).await;
    let res = res.expect("the bench's own call is answered");
    let mut body = pin!(res.into_body());
    while let Some(frame) = body.frame().await {
        black_box(frame.expect("the bench's own answer does not fail"));
    }
}

async fn timed<B>(
    calls: u64,
    service: &impl Measured<B>,
    request: &impl Fn() -> Request<B>,
    settled: &impl AsyncFn(u64),
) -> Took {
    let mut took = Took {
        calls: Duration::ZERO,
        settling: Duration::ZERO,
    };
    let mut left = calls;
    while left > 0 {
        let batch = left.min(BATCH);
        let requests: Vec<_> = (0..batch).map(|_| request()).collect();
        let began = Instant::now();
        for req in requests {
            answered(service, req).await;
        }
        took.calls += began.elapsed();
        let began = Instant::now();
        settled(batch).await;
        took.settling += began.elapsed();
        left -= batch;
    }
    took
}

// --- the requests for each layer, made by the layers above it ---

/// The catalog, the ledger and the funded key that all measurements use.
struct Desk {
    live: Arc<Live>,
    ledger: MemoryLedger,
    ended: Arc<AtomicU64>,
    bearer: HeaderValue,
    caller: Caller,
}

impl Desk {
    async fn open() -> Self {
        let nowhere = SocketAddr::from((Ipv4Addr::LOCALHOST, 9));
        let ledger = MemoryLedger::new();
        let secret = funded_key(&ledger, "bench").await;
        let secret = secret.expect("the books are in memory");
        let found = ledger.find_key(&secret.digest()).await;
        let record = found.expect("the books are in memory");
        Self {
            live: Arc::new(priced(nowhere)),
            ledger,
            ended: Arc::default(),
            bearer: HeaderValue::try_from(format!("Bearer {}", secret.expose()))
                .expect("a key is a header value"),
            caller: Caller(record.expect("it was made")),
        }
    }

    /// A request with the key, in the form in which the gateway's server passes it to the first layer.
    fn request<B>(&self, body: B, canned: Canned) -> Request<B> {
        let mut req = posted(canned, body);
        req.headers_mut()
            .insert("authorization", self.bearer.clone());
        req
    }

    fn called(&self, runtime: &Runtime, canned: Canned, stream: bool) -> Request<Call> {
        let body = match canned {
            Canned::Messages => messages_request(canned.name()),
            _ => chat_request(canned.name(), stream),
        };
        let layer = ParseLayer::new(ParseLimits::default());
        let mut req = runtime
            .block_on(
                layer
                    .layer(service_fn(stored::<Call>))
                    .oneshot(posted(canned, Full::new(body))),
            )
            .expect("the bench's request is well-formed");
        req.extensions_mut().insert(self.caller.clone());
        req
    }

    fn priced(&self, runtime: &Runtime, canned: Canned, stream: bool) -> Request<Priced> {
        let layer = SelectLayer::new(Arc::clone(&self.live), Rich);
        let req = self.called(runtime, canned, stream);
        runtime
            .block_on(layer.layer(service_fn(stored::<Priced>)).oneshot(req))
            .expect("the model is in the catalog")
    }

    fn attempt(&self, runtime: &Runtime, canned: Canned, stream: bool) -> Request<Attempt> {
        self.priced(runtime, canned, stream).map(|priced| Attempt {
            route: Arc::clone(&priced.model.routes[0]),
            credential: 0,
            priced,
        })
    }

    fn outbound(&self, runtime: &Runtime, canned: Canned, stream: bool) -> Request<Outbound> {
        let req = self.attempt(runtime, canned, stream);
        let slot = Arc::new(std::sync::Mutex::new(None));
        let stored = Arc::clone(&slot);
        let vendor = service_fn(move |req: Request<Outbound>| {
            *stored.lock().expect("nobody panics") = Some(req);
            ready(Ok::<_, Error>(Response::new(tollgate_layers::body::full(
                "",
            ))))
        });
        let answered = runtime.block_on(TranslateLayer::new().layer(vendor).oneshot(req));
        drop(answered.expect("both sides speak the same format"));
        let sent = slot.lock().expect("nobody panics").take();
        sent.expect("the vendor was asked")
    }
}

/// The service below a layer. It returns the request that the layer has passed on.
fn stored<T>(req: Request<T>) -> Ready<Result<Request<T>, Error>> {
    ready(Ok(req))
}

/// Returns the call with a new number and a new meter. With its old number, it would get no second hold.
fn fresh(priced: &Request<Priced>) -> Request<Priced> {
    let mut req = priced.clone();
    req.extensions_mut().insert(RequestNumber::now_v7());
    req.body_mut().meter = Meter::default();
    req
}

fn posted<B>(canned: Canned, body: B) -> Request<B> {
    let path = match canned {
        Canned::Messages => "/v1/messages",
        _ => "/v1/chat/completions",
    };
    let mut req = Request::new(body);
    *req.method_mut() = Method::POST;
    *req.uri_mut() = path.parse().expect("a path");
    req.headers_mut()
        .insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
    if canned == Canned::Messages {
        req.headers_mut()
            .insert("anthropic-version", HeaderValue::from_static("2023-06-01"));
    }
    req.extensions_mut().insert(ClientAddr(ADDRESS));
    req
}
