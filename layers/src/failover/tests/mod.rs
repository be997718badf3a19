//! What callers notice of vendors that fail, on scripted vendors below the layer.

use std::{collections::VecDeque, future::pending};

use futures_util::FutureExt;
use http::{HeaderValue, StatusCode, Uri};
use http_body::{Frame, SizeHint};
use http_body_util::BodyExt;
use serde_json::json;
use tokio::time::advance;
use tower::ServiceExt;

use super::*;
use crate::{
    call::{CacheWrite, Call, Format, InputSize, Spans},
    error::{Problem, VendorAnswered, VendorUnreached},
    facts::Caller,
    key::{KeyDigest, KeyRecord, KeyStatus},
    model::{Dialect, Egress, Model, OnDisconnect, Protocol, Route, Vendor},
    price::{Price, Rate},
    usage::{End, Meter},
};

// --- scripted vendors ---

/// What a vendor does with an attempt.
#[derive(Debug)]
enum Does {
    /// Answers, whole.
    Answers,
    /// Answers a stream of two frames that then ends so; `None`: not at all.
    Streams(Option<End>),
    /// Fails before the first byte.
    Fails(Error),
    /// Is silent for so many seconds, then fails.
    Stalls(u64),
    /// Is silent.
    Nothing,
}

use Does::{Answers, Fails, Nothing, Stalls, Streams};

type Script = dyn Fn(&Attempt) -> Does + Send + Sync;

#[derive(Clone)]
struct Vendors {
    script: Arc<Script>,
    /// `vendor` or, where it has several keys, `vendor#key`.
    asked: Arc<Mutex<Vec<String>>>,
}

impl Service<Request<Attempt>> for Vendors {
    type Response = Response<Scripted>;
    type Error = Error;
    type Future = Pin<Box<dyn Future<Output = Result<Response<Scripted>, Error>> + Send>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Error>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, req: Request<Attempt>) -> Self::Future {
        let attempt = req.into_body();
        let does = (self.script)(&attempt);
        let vendor = &attempt.route.vendor;
        let name = if vendor.credentials.len() > 1 {
            format!("{}#{}", vendor.name, attempt.credential)
        } else {
            vendor.name.to_string()
        };
        self.asked.lock().unwrap().push(name);
        let meter = attempt.priced.meter;
        Box::pin(async move {
            let end = match does {
                Answers => {
                    meter.update(|reading| reading.end = Some(End::Finished));
                    Some(End::Finished)
                }
                Streams(end) => end,
                Fails(error) => {
                    meter.refused();
                    return Err(error);
                }
                Stalls(seconds) => {
                    tokio::time::sleep(Duration::from_secs(seconds)).await;
                    return Err(silent());
                }
                Nothing => pending().await,
            };
            let frames = [&b"one"[..], b"two"].map(Bytes::from_static).into();
            Ok(Response::new(Scripted { frames, end, meter }))
        })
    }
}

#[derive(Debug)]
struct Scripted {
    frames: VecDeque<Bytes>,
    end: Option<End>,
    meter: Meter,
}

impl Body for Scripted {
    type Data = Bytes;
    type Error = Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        _: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Error>>> {
        if let Some(bytes) = self.frames.pop_front() {
            return Poll::Ready(Some(Ok(Frame::data(bytes))));
        }
        let end = self.end;
        self.meter.update(|reading| reading.end = end);
        match end {
            Some(End::Finished) => Poll::Ready(None),
            Some(_) => Poll::Ready(Some(Err(Error::VendorBroken("cut".into())))),
            None => Poll::Pending,
        }
    }

    fn is_end_stream(&self) -> bool {
        false
    }

    fn size_hint(&self) -> SizeHint {
        SizeHint::default()
    }
}

/// A model's routes with the layer over their vendors.
struct World {
    health: Health,
    service: Failover<Vendors>,
    routes: Vec<Arc<Route>>,
    asked: Arc<Mutex<Vec<String>>>,
    sticky: bool,
}

impl World {
    fn new(routes: Vec<Route>, script: impl Fn(&Attempt) -> Does + Send + Sync + 'static) -> Self {
        Self::with(FailoverSettings::default(), routes, script)
    }

    fn with(
        settings: FailoverSettings,
        routes: Vec<Route>,
        script: impl Fn(&Attempt) -> Does + Send + Sync + 'static,
    ) -> Self {
        let (health, asked) = (Health::seeded(7), Arc::default());
        let routes: Vec<Arc<Route>> = routes.into_iter().map(Arc::new).collect();
        health.follow(&routes);
        let vendors = Vendors {
            script: Arc::new(script),
            asked: Arc::clone(&asked),
        };
        Self {
            service: FailoverLayer::new(health.clone(), settings).layer(vendors),
            health,
            routes,
            asked,
            sticky: false,
        }
    }

    fn request(&self, text: &str) -> Request<Priced> {
        let body = json!({ "model": "m", "messages": [{ "role": "user", "content": text }] });
        let rate = Rate::new(1);
        let model = Model {
            id: "m".into(),
            family: "f".into(),
            output_tokens_max: 10,
            output_tokens_min: 1,
            output_tokens_default: None,
            input_tokens_max: None,
            input_tokens_priced_max: None,
            sticky: self.sticky,
            routes: self.routes.clone(),
        };
        let call = Call {
            format: Format::Chat,
            body: body.to_string().into(),
            model: "m".into(),
            stream: true,
            output_tokens: None,
            choices: 1,
            usage_asked: false,
            input: InputSize::default(),
            cache_write: CacheWrite::default(),
            spans: Spans::default(),
            session: None,
        };
        Request::new(Priced {
            call: Arc::new(call),
            model: Arc::new(model),
            price: Arc::new(Price {
                input: rate,
                cached_input: rate,
                output: rate,
                cache_write: rate,
                version: 1,
                exchange_rate: "1".into(),
            }),
            output_tokens: 10,
            meter: Meter::default(),
        })
    }

    fn call(&self) -> Calling {
        Box::pin(self.service.clone().oneshot(self.request("x")))
    }

    /// A call with this key.
    fn call_of(&self, key: &str) -> Calling {
        let mut req = self.request(key);
        req.extensions_mut().insert(caller(key));
        Box::pin(self.service.clone().oneshot(req))
    }

    /// A call whose client has left before its future was polled. Its first attempt was begun.
    fn call_and_leave(&self) {
        drop(self.service.clone().call(self.request("x")));
    }

    /// Who was asked since the last time.
    fn asked(&self) -> Vec<String> {
        std::mem::take(&mut *self.asked.lock().unwrap())
    }

    fn vendor(&self, name: &str) -> VendorState {
        let mut all = self.health.snapshot().into_iter();
        all.find(|vendor| &*vendor.name == name).unwrap()
    }

    fn breaker(&self, name: &str) -> BreakerState {
        self.vendor(name).routes[0].breaker
    }

    /// Nothing is held any more.
    fn is_idle(&self) -> bool {
        self.health.snapshot().iter().all(|vendor| {
            vendor.in_flight == 0 && vendor.routes.iter().all(|route| route.in_flight == 0)
        })
    }
}

fn caller(key: &str) -> Caller {
    Caller(Arc::new(KeyRecord {
        id: key.parse().unwrap(),
        account: "acme".parse().unwrap(),
        digest: KeyDigest::new([0; 32]),
        prefix: "tg-x…".into(),
        name: String::new(),
        status: KeyStatus::Active,
        models: vec![],
        addresses: vec![],
        requests_per_second: None,
        requests_per_minute: None,
        tokens_per_minute: None,
        expires_at_ms: None,
        created_at_ms: 0,
        changed_at_ms: 0,
    }))
}

/// Whether it is a call of this key: [`World::call_of`] says so in its text.
fn is_of(attempt: &Attempt, key: &str) -> bool {
    let body = String::from_utf8_lossy(&attempt.priced.call.body);
    body.contains(&format!("\"{key}\""))
}

type Answered = Result<Response<ResponseBody<Scripted>>, Error>;
type Calling = Pin<Box<dyn Future<Output = Answered> + Send>>;

/// The answer's bytes, or the error that it ended with.
async fn read(answered: Answered) -> Result<Bytes, Error> {
    Ok(answered?.into_body().collect().await?.to_bytes())
}

fn egress() -> Egress {
    Egress {
        connect_timeout: Duration::from_secs(3),
        proxy: None,
        authorities: None,
        protocol: Protocol::default(),
        idle_connection_timeout: Duration::from_secs(50),
    }
}

/// A route to a vendor of this name.
fn route(name: &str) -> Route {
    let vendor = Vendor {
        name: name.into(),
        format: Format::Chat,
        endpoint: Uri::from_static("http://vendor.example/v1/chat/completions"),
        credentials: vec![HeaderValue::from_static("one")],
        betas_removed: vec![],
        on_disconnect: OnDisconnect::Cancel,
        egress: Arc::new(egress()),
        first_byte_timeout: Duration::from_secs(120),
        plain_timeout: Duration::from_secs(600),
        head_timeout: Duration::from_secs(10),
        idle_timeout: Duration::from_secs(120),
        connections_max: 100,
    };
    Route {
        vendor: Arc::new(vendor),
        model: "m-1".into(),
        weight: 1,
        priority: 0,
        dialect: Dialect::default(),
    }
}

fn with_vendor(name: &str, change: impl FnOnce(&mut Vendor)) -> Route {
    let mut route = route(name);
    change(Arc::get_mut(&mut route.vendor).unwrap());
    route
}

/// Two keys.
fn with_keys(name: &str) -> Route {
    with_vendor(name, |vendor| {
        vendor.credentials = ["one", "two"].map(HeaderValue::from_static).into();
    })
}

/// `a` is tried before `b`.
fn in_order() -> Vec<Route> {
    let second = Route {
        priority: 1,
        ..route("b")
    };
    vec![route("a"), second]
}

/// The script of a vendor `a` that fails so, among others that answer.
fn a_fails(
    error: impl Fn() -> Error + Send + Sync + 'static,
) -> impl Fn(&Attempt) -> Does + Send + Sync + 'static {
    move |attempt| match &*attempt.route.vendor.name {
        "a" => Fails(error()),
        _ => Answers,
    }
}

fn silent() -> Error {
    Error::VendorTimeout {
        awaited: "first byte",
    }
}

fn down() -> Error {
    Error::VendorUnavailable(VendorUnreached("connection refused".into()).into())
}

fn limit(seconds: u64) -> Error {
    Error::VendorLimit {
        retry_after: Duration::from_secs(seconds),
    }
}

fn key_refused() -> Error {
    Error::VendorKeyRefused {
        status: StatusCode::UNAUTHORIZED,
    }
}

fn answered(status: u16) -> Error {
    Error::VendorUnavailable(Box::new(VendorAnswered {
        status: StatusCode::from_u16(status).unwrap(),
        text: String::new(),
        retry_after: None,
    }))
}

fn unfit() -> Error {
    Error::invalid("tools", Problem::NotTranslated)
}

// --- before the first byte ---

#[tokio::test(start_paused = true)]
async fn a_vendor_that_fails_before_the_first_byte_is_not_noticed() {
    type Fails = fn() -> Error;
    let failures: [(&str, Fails); 9] = [
        ("refused", down),
        ("silent", silent),
        ("limited", || limit(5)),
        ("404", || answered(404)),
        ("500", || answered(500)),
        ("529", || answered(529)),
        ("broken", || Error::VendorBroken("html".into())),
        ("our key", key_refused),
        ("cannot carry it", unfit),
    ];
    for (name, failure) in failures {
        let world = World::new(in_order(), a_fails(failure));
        let req = world.request("x");
        let meter = req.body().meter.clone();
        let answered = world.service.clone().oneshot(req).await;
        assert_eq!(read(answered).await.unwrap(), "onetwo", "{name}");
        assert_eq!(world.asked(), ["a", "b"], "{name}");
        assert_eq!(meter.read().vendor.as_deref(), Some("b"), "{name}");
        assert!(world.is_idle(), "{name}");
    }
}

#[tokio::test(start_paused = true)]
async fn the_requests_own_fault_is_told_at_once_and_counts_against_nobody() {
    let refused = |status: StatusCode| Error::VendorRefused {
        status,
        text: String::new(),
    };
    for (name, error) in [
        ("400", refused(StatusCode::BAD_REQUEST)),
        ("413", refused(StatusCode::PAYLOAD_TOO_LARGE)),
        ("422", refused(StatusCode::UNPROCESSABLE_ENTITY)),
        ("409", answered(409)),
        ("ours", Error::Internal("bug".into())),
    ] {
        let error = Mutex::new(Some(error));
        let world = World::new(in_order(), move |_| {
            error.lock().unwrap().take().map_or(Answers, Fails)
        });
        assert!(world.call().await.is_err(), "{name}");
        assert_eq!(world.asked(), ["a"], "{name}");
        assert_eq!(world.vendor("a").routes[0].failures, 0, "{name}");
        assert!(world.is_idle(), "{name}");
    }
}

#[tokio::test(start_paused = true)]
async fn when_all_fail_the_most_telling_error_is_told_once() {
    type Make = fn() -> Error;
    let cases: [(Make, Make, Make); 8] = [
        (down, silent, down),
        (silent, down, down),
        (|| limit(9), || limit(3), || limit(3)),
        (down, || limit(60), || limit(60)),
        (key_refused, silent, silent),
        (|| answered(404), silent, silent),
        (unfit, down, down),
        (unfit, unfit, unfit),
    ];
    for (of_a, of_b, told) in cases {
        let world = World::new(in_order(), move |attempt| {
            let is_a = &*attempt.route.vendor.name == "a";
            Fails(if is_a { of_a() } else { of_b() })
        });
        let error = world.call().await.unwrap_err();
        assert_eq!(format!("{error:?}"), format!("{:?}", told()));
        assert_eq!(world.asked(), ["a", "b"]);
    }
}

#[tokio::test(start_paused = true)]
async fn without_budget_the_first_error_is_the_answer() {
    let settings = FailoverSettings {
        budget: BudgetSettings {
            retries_percent: 0,
            retries_per_second: 0,
            retries_max: 1,
        },
        ..FailoverSettings::default()
    };
    let world = World::with(settings, in_order(), a_fails(down));
    assert!(world.call().await.is_ok());
    assert!(matches!(
        world.call().await,
        Err(Error::VendorUnavailable(_))
    ));
    assert_eq!(world.asked(), ["a", "b", "a"]);
    assert!(world.is_idle());

    let world = World::with(settings, in_order(), a_fails(unfit));
    for _ in 0..5 {
        assert!(world.call().await.is_ok(), "nobody was asked in vain");
    }
}

#[tokio::test(start_paused = true)]
async fn a_call_ends_after_some_attempts_and_begins_none_late() {
    let many = || ["a", "b", "c", "d", "e", "f"].map(route).into();
    let world = World::new(many(), |_| Fails(down()));
    assert!(world.call().await.is_err());
    assert_eq!(world.asked().len(), 4);

    // Two minutes of silence leave time for another; four do not.
    for (seconds, asked) in [(120, 2), (151, 1)] {
        let world = World::new(many(), move |_| Stalls(seconds));
        assert!(world.call().await.is_err());
        assert_eq!(world.asked().len(), asked, "{seconds} s");
    }
}

#[tokio::test(start_paused = true)]
async fn for_a_client_that_has_left_no_other_vendor_is_asked() {
    let world = World::new(in_order(), |_| Stalls(1));
    let req = world.request("x");
    let meter = req.body().meter.clone();
    let mut call = Box::pin(world.service.clone().oneshot(req));
    assert!((&mut call).now_or_never().is_none());
    meter.update(|reading| reading.client_gone = true);
    assert!(call.await.is_err());
    assert_eq!(world.asked(), ["a"]);
}

#[tokio::test(start_paused = true)]
async fn the_meter_knows_whether_the_vendor_that_answers_is_read_to_its_end() {
    let mut routes = in_order();
    routes[1] = Route {
        priority: 1,
        ..with_vendor("b", |vendor| vendor.on_disconnect = OnDisconnect::Drain)
    };
    let world = World::new(routes, |attempt| match &*attempt.route.vendor.name {
        "a" => Stalls(1),
        _ => Streams(None),
    });
    let req = world.request("x");
    let meter = req.body().meter.clone();
    let mut call = Box::pin(world.service.clone().oneshot(req));
    assert!((&mut call).now_or_never().is_none());
    assert!(!meter.read().outlives_client);
    let answer = call.await.unwrap();
    assert!(meter.read().outlives_client);
    drop(answer);
}

#[tokio::test(start_paused = true)]
async fn a_model_without_a_route_is_an_error() {
    let world = World::new(vec![], |_| Answers);
    assert!(matches!(
        world.call().await,
        Err(Error::VendorUnavailable(_))
    ));
}

// --- after the first byte ---

#[tokio::test(start_paused = true)]
async fn a_stream_that_was_begun_is_never_begun_again_and_its_cut_counts() {
    let world = World::new(in_order(), |attempt| match &*attempt.route.vendor.name {
        "a" => Streams(Some(End::VendorCut)),
        _ => Answers,
    });
    for _ in 0..5 {
        assert_eq!(world.breaker("a"), BreakerState::Closed);
        assert!(read(world.call().await).await.is_err());
        assert_eq!(world.asked(), ["a"]);
    }
    assert_eq!(world.breaker("a"), BreakerState::Open);
    assert!(read(world.call().await).await.is_ok());
    assert_eq!(world.asked(), ["b"]);
}

/// It may be about what the caller asked for.
#[tokio::test(start_paused = true)]
async fn an_error_inside_a_stream_that_was_begun_shuts_no_route() {
    let world = World::new(in_order(), |_| Streams(Some(End::VendorError)));
    for _ in 0..20 {
        assert!(read(world.call().await).await.is_err());
        assert_eq!(world.asked(), ["a"]);
    }
    assert_eq!(world.breaker("a"), BreakerState::Closed);
}

#[tokio::test(start_paused = true)]
async fn a_client_that_leaves_a_stream_says_nothing_about_the_vendor() {
    let world = World::new(in_order(), |_| Streams(None));
    for _ in 0..20 {
        drop(world.call().await.unwrap());
    }
    let route = &world.vendor("a").routes[0];
    assert_eq!((route.breaker, route.failures), (BreakerState::Closed, 0));
    assert!(world.is_idle());
}

// --- health ---

#[tokio::test(start_paused = true)]
async fn a_sick_route_is_left_alone_and_one_call_looks_whether_it_is_back() {
    let sick = Arc::new(Mutex::new(true));
    let is_sick = Arc::clone(&sick);
    let world = World::new(in_order(), move |attempt| {
        match (&*attempt.route.vendor.name, *is_sick.lock().unwrap()) {
            ("a", true) => Fails(down()),
            ("a", false) => Nothing,
            _ => Answers,
        }
    });
    for _ in 0..5 {
        assert!(world.call().await.is_ok());
    }
    world.asked();
    assert!(world.call().await.is_ok());
    assert_eq!(world.asked(), ["b"]);
    let open_for = world.vendor("a").routes[0].open_for.unwrap();
    assert!(open_for <= Duration::from_secs(1) && open_for >= Duration::from_millis(500));

    advance(Duration::from_secs(1)).await;
    assert_eq!(world.breaker("a"), BreakerState::HalfOpen);
    assert!(
        world.call().await.is_ok(),
        "the probe's failure is not noticed"
    );
    assert_eq!(world.asked(), ["a", "b"]);
    assert_eq!(world.breaker("a"), BreakerState::Open);

    advance(Duration::from_secs(2)).await;
    *sick.lock().unwrap() = false;
    let mut probe = world.call();
    assert!((&mut probe).now_or_never().is_none());
    for _ in 0..3 {
        assert!(world.call().await.is_ok());
    }
    assert_eq!(world.asked(), ["a", "b", "b", "b"], "exactly one probe");
    // Its client leaves: the next call is the probe.
    drop(probe);
    world.call_and_leave();
    assert_eq!(world.asked(), ["a"]);
    let mut probe = world.call();
    assert!((&mut probe).now_or_never().is_none());
    assert_eq!(world.asked(), ["a"]);
    drop(probe);
    assert!(world.is_idle());
}

#[tokio::test(start_paused = true)]
async fn a_probe_that_is_answered_lets_everybody_in() {
    let sick = Arc::new(Mutex::new(true));
    let is_sick = Arc::clone(&sick);
    let world = World::new(in_order(), move |attempt| {
        match (&*attempt.route.vendor.name, *is_sick.lock().unwrap()) {
            ("a", true) => Fails(down()),
            _ => Streams(None),
        }
    });
    for _ in 0..5 {
        drop(world.call().await.unwrap());
    }
    *sick.lock().unwrap() = false;
    advance(Duration::from_secs(1)).await;
    world.asked();
    // The probe's stream goes on.
    let streams = [
        world.call().await.unwrap(),
        world.call().await.unwrap(),
        world.call().await.unwrap(),
    ];
    assert_eq!(world.asked(), ["a", "a", "a"]);
    assert_eq!(world.vendor("a").in_flight, 3);
    drop(streams);
    assert!(world.is_idle());
}

#[tokio::test(start_paused = true)]
async fn when_none_can_be_reached_each_is_tried_four_times_a_second_and_others_are_told_when() {
    let world = World::new(in_order(), |_| Fails(down()));
    for _ in 0..5 {
        assert!(world.call().await.is_err());
    }
    world.asked();
    for _ in 0..100 {
        let Err(Error::RoutesOut { retry_after }) = world.call().await else {
            panic!("somebody was asked");
        };
        assert!(world.asked().is_empty());
        assert!(retry_after <= Duration::from_millis(250), "{retry_after:?}");
        advance(retry_after).await;
        let refused = world.call().await;
        assert!(matches!(refused, Err(Error::VendorUnavailable(_))));
        assert_eq!(world.asked().len(), 2);
    }
}

#[tokio::test(start_paused = true)]
async fn a_lone_route_is_never_shut_by_what_its_vendor_answers() {
    type Make = fn() -> Does;
    let cases: [Make; 4] = [
        || Fails(answered(500)),
        || Fails(Error::VendorBroken("html".into())),
        || Fails(answered(404)),
        || Streams(Some(End::VendorCut)),
    ];
    for does in cases {
        let world = World::new(vec![route("a")], move |attempt| {
            if is_of(attempt, "well") {
                Answers
            } else {
                does()
            }
        });
        for number in 0..20 {
            let call = world.call_of(["one", "two", "three"][number % 3]).await;
            assert!(read(call).await.is_err());
            assert_eq!(world.asked(), ["a"], "{:?}: each call is asked", does());
        }
        assert!(world.call_of("well").await.is_ok(), "{:?}", does());
        assert!(world.is_idle());
    }
}

#[tokio::test(start_paused = true)]
async fn one_callers_requests_take_no_route_from_another() {
    type Make = fn() -> Does;
    let cases: [Make; 5] = [
        || Fails(answered(500)),
        || Fails(silent()),
        || Fails(Error::VendorBroken("html".into())),
        || Fails(answered(404)),
        || Streams(Some(End::VendorCut)),
    ];
    for does in cases {
        let world = World::new(in_order(), move |attempt| {
            if is_of(attempt, "poison") && &*attempt.route.vendor.name == "a" {
                does()
            } else {
                Answers
            }
        });
        for _ in 0..20 {
            let _ = read(world.call_of("poison").await).await;
        }
        world.asked();
        assert!(world.call_of("poison").await.is_ok());
        assert_eq!(world.asked(), ["b"], "{:?}: it fails over at once", does());
        for key in ["one", "two"] {
            assert!(world.call_of(key).await.is_ok());
            assert_eq!(world.asked(), ["a"], "{:?}, {key}", does());
        }
    }
}

#[tokio::test(start_paused = true)]
async fn what_two_callers_meet_shuts_a_route_for_all_that_have_another() {
    let world = World::new(in_order(), a_fails(|| answered(500)));
    for key in ["one", "two", "one", "two", "one"] {
        assert!(world.call_of(key).await.is_ok());
    }
    world.asked();
    assert!(world.call_of("three").await.is_ok());
    assert_eq!(world.asked(), ["b"]);
}

#[tokio::test(start_paused = true)]
async fn of_several_that_are_shut_the_one_that_answers_is_found() {
    let well = Arc::new(Mutex::new(""));
    let which = Arc::clone(&well);
    let world = World::new(in_order(), move |attempt| {
        if *attempt.route.vendor.name == **which.lock().unwrap() {
            Answers
        } else {
            Fails(answered(500))
        }
    });
    for _ in 0..20 {
        assert!(world.call().await.is_err());
    }
    for name in ["b", "a"] {
        *well.lock().unwrap() = name;
        world.asked();
        let mut calls = 1_usize;
        while world.call().await.is_err() {
            calls += 1;
            advance(Duration::from_millis(100)).await;
            assert!(calls < 20, "{name} is asked at last");
        }
        // Sick vendors are not sent a multiple of the calls.
        assert!(world.asked().len() <= calls + calls.div_ceil(2));
        assert_eq!(world.breaker(name), BreakerState::Closed);
        // Back to where both are shut.
        *well.lock().unwrap() = "";
        for _ in 0..20 {
            assert!(world.call().await.is_err());
        }
    }
}

#[tokio::test(start_paused = true)]
async fn once_a_vendor_is_reached_again_nobody_waits_for_its_first_answer() {
    let sick = Arc::new(Mutex::new(true));
    let is_sick = Arc::clone(&sick);
    let world = World::new(vec![route("a")], move |attempt| {
        if *is_sick.lock().unwrap() {
            return Fails(down());
        }
        // It thinks.
        attempt.priced.meter.dispatched();
        Nothing
    });
    for _ in 0..5 {
        assert!(world.call().await.is_err());
    }
    *sick.lock().unwrap() = false;
    assert!(matches!(world.call().await, Err(Error::RoutesOut { .. })));
    advance(Duration::from_millis(250)).await;
    world.asked();
    let mut calls = [world.call(), world.call(), world.call()];
    for call in &mut calls {
        assert!(call.now_or_never().is_none());
    }
    assert_eq!(world.asked(), ["a", "a", "a"]);
    drop(calls);
    assert!(world.is_idle());
}

#[tokio::test(start_paused = true)]
async fn a_vendor_that_was_passed_by_is_not_reached_by_what_the_next_one_is_sent() {
    let sick = Arc::new(Mutex::new(true));
    let is_sick = Arc::clone(&sick);
    let world = World::new(in_order(), move |attempt| {
        if *is_sick.lock().unwrap() {
            return Fails(down());
        }
        if &*attempt.route.vendor.name == "a" {
            return Fails(unfit());
        }
        attempt.priced.meter.dispatched();
        Nothing
    });
    for _ in 0..5 {
        assert!(world.call().await.is_err());
    }
    *sick.lock().unwrap() = false;
    advance(Duration::from_millis(250)).await;
    world.asked();
    // Both are shut, and its last resort.
    let mut first = world.call();
    assert!((&mut first).now_or_never().is_none());
    assert_eq!(world.asked(), ["a", "b"]);
    let mut second = world.call();
    assert!((&mut second).now_or_never().is_none());
    assert_eq!(
        world.asked(),
        ["b"],
        "nobody knows yet that a can be reached"
    );
    drop((first, second));
    assert!(world.is_idle());
}

#[tokio::test(start_paused = true)]
async fn a_vendor_without_the_model_rests_and_is_no_outage() {
    let world = World::new(in_order(), a_fails(|| answered(404)));
    for _ in 0..3 {
        assert!(world.call().await.is_ok());
    }
    assert_eq!(world.asked(), ["a", "b", "b", "b"]);
    let route = &world.vendor("a").routes[0];
    assert!(route.model_unknown);
    assert_eq!((route.breaker, route.failures), (BreakerState::Closed, 0));
    assert_eq!(route.rests_for, Some(Duration::from_secs(30)));
    advance(Duration::from_secs(30)).await;
    for _ in 0..2 {
        assert!(world.call().await.is_ok());
    }
    assert_eq!(world.asked(), ["a", "b", "b"], "now and then");
    assert!(world.vendor("a").routes[0].model_unknown);

    // The operator has mended it, or the vendor has.
    let first = Mutex::new(Some(Fails(answered(404))));
    let world = World::new(vec![self::route("a")], move |_| {
        first.lock().unwrap().take().unwrap_or(Answers)
    });
    assert!(world.call().await.is_err());
    assert!(world.vendor("a").routes[0].model_unknown);
    assert!(world.call().await.is_ok());
    let route = &world.vendor("a").routes[0];
    assert!(!route.model_unknown);
    assert_eq!(route.rests_for, None);
}

#[tokio::test(start_paused = true)]
async fn a_limited_route_rests_for_as_long_as_its_vendor_says() {
    let world = World::new(in_order(), a_fails(|| limit(30)));
    assert!(world.call().await.is_ok());
    advance(Duration::from_secs(29)).await;
    assert!(world.call().await.is_ok());
    let rests_for = world.vendor("a").routes[0].rests_for;
    assert_eq!(rests_for, Some(Duration::from_secs(1)));
    advance(Duration::from_secs(1)).await;
    assert!(world.call().await.is_ok());
    assert_eq!(world.asked(), ["a", "b", "b", "a", "b"]);
    assert_eq!(world.breaker("a"), BreakerState::Closed, "no sickness");

    let endless = World::new(in_order(), a_fails(|| limit(3600)));
    assert!(endless.call().await.is_ok());
    let rests_for = endless.vendor("a").routes[0].rests_for;
    assert_eq!(rests_for, Some(Duration::from_secs(300)), "bounded");
}

#[tokio::test(start_paused = true)]
async fn a_lone_route_that_rests_is_tried_by_one_call_at_a_time() {
    let calls = Mutex::new(VecDeque::from([Fails(limit(30)), Nothing, Fails(limit(7))]));
    let world = World::new(vec![route("a")], move |_| {
        calls.lock().unwrap().pop_front().unwrap_or(Answers)
    });
    assert!(matches!(world.call().await, Err(Error::VendorLimit { .. })));
    let mut waiting = world.call();
    assert!((&mut waiting).now_or_never().is_none());
    advance(Duration::from_secs(5)).await;
    let Err(Error::VendorLimit { retry_after }) = world.call().await else {
        panic!("a second call was let in");
    };
    assert_eq!(retry_after, Duration::from_secs(25));
    assert_eq!(world.asked(), ["a", "a"]);
    drop(waiting);
    // What the vendor says now is the answer, and does not shorten the rest.
    let Err(Error::VendorLimit { retry_after }) = world.call().await else {
        panic!("the place was not given back");
    };
    assert_eq!(retry_after, Duration::from_secs(7));
    let rests_for = world.vendor("a").routes[0].rests_for;
    assert_eq!(rests_for, Some(Duration::from_secs(25)));
    // An answer ends it.
    assert!(world.call().await.is_ok());
    assert_eq!(world.vendor("a").routes[0].rests_for, None);
}

#[tokio::test(start_paused = true)]
async fn who_comes_while_a_lone_route_is_tried_is_told_why_it_rests() {
    let asks_for_time = || {
        Error::VendorUnavailable(Box::new(VendorAnswered {
            status: StatusCode::SERVICE_UNAVAILABLE,
            text: String::new(),
            retry_after: Some(Duration::from_secs(9)),
        }))
    };
    type Make = fn() -> Error;
    let cases: [(Make, Make); 3] = [
        (|| limit(9), || limit(9)),
        (asks_for_time, || Error::RoutesOut {
            retry_after: Duration::from_secs(9),
        }),
        (key_refused, || Error::RoutesOut {
            retry_after: Duration::from_secs(30),
        }),
    ];
    for (said, told) in cases {
        let first = Mutex::new(Some(Fails(said())));
        let world = World::new(vec![route("a")], move |_| {
            first.lock().unwrap().take().unwrap_or(Nothing)
        });
        assert!(world.call().await.is_err());
        let mut trying = world.call();
        assert!((&mut trying).now_or_never().is_none());
        let error = world.call().await.unwrap_err();
        assert_eq!(format!("{error:?}"), format!("{:?}", told()));
    }
}

#[tokio::test(start_paused = true)]
async fn keys_are_used_in_turn_and_a_refused_one_is_parked() {
    let world = World::new(vec![with_keys("a")], |_| Answers);
    for _ in 0..4 {
        assert!(world.call().await.is_ok());
    }
    assert_eq!(world.asked(), ["a#0", "a#1", "a#0", "a#1"]);

    let world = World::new(vec![with_keys("a")], |attempt| match attempt.credential {
        0 => Fails(key_refused()),
        _ => Answers,
    });
    for _ in 0..3 {
        assert!(world.call().await.is_ok(), "nobody notices");
    }
    assert_eq!(world.asked(), ["a#0", "a#1", "a#1", "a#1"]);
    let vendor = world.vendor("a");
    assert_eq!((vendor.keys, vendor.keys_parked), (2, 1));
    advance(Duration::from_secs(300)).await;
    for _ in 0..2 {
        assert!(world.call().await.is_ok());
    }
    assert_eq!(
        world.asked(),
        ["a#0", "a#1", "a#1"],
        "tried again, and parked"
    );
}

#[tokio::test(start_paused = true)]
async fn a_limit_of_one_key_leaves_the_other_to_be_used() {
    let world = World::new(vec![with_keys("a")], |attempt| match attempt.credential {
        0 => Fails(limit(60)),
        _ => Answers,
    });
    for _ in 0..3 {
        assert!(world.call().await.is_ok());
    }
    assert_eq!(world.asked(), ["a#0", "a#1", "a#1", "a#1"]);
    assert_eq!(
        world.vendor("a").routes[0].rests_for,
        None,
        "not as a whole"
    );
}

#[tokio::test(start_paused = true)]
async fn a_full_vendor_is_passed_by_until_a_stream_ends() {
    let full = |name: &str| with_vendor(name, |vendor| vendor.connections_max = 1);
    let second = Route {
        priority: 1,
        ..full("b")
    };
    let world = World::new(vec![full("a"), second], |_| Streams(None));
    let first = world.call().await.unwrap();
    let second = world.call().await.unwrap();
    assert!(matches!(world.call().await, Err(Error::Overloaded)));
    assert_eq!(world.asked(), ["a", "b"]);
    drop(second);
    drop(world.call().await.unwrap());
    drop(first);
    drop(world.call().await.unwrap());
    assert_eq!(world.asked(), ["b", "a"]);
    assert!(world.is_idle());
}

#[tokio::test(start_paused = true)]
async fn a_plain_answer_gives_its_place_back_before_the_client_takes_it() {
    let lone = with_vendor("a", |vendor| vendor.connections_max = 1);
    let world = World::new(vec![lone], |_| Answers);
    let answer = world.call().await.unwrap();
    assert!(world.is_idle());
    assert_eq!(read(Ok(answer)).await.unwrap(), "onetwo");
}

#[tokio::test(start_paused = true)]
async fn wherever_a_call_is_dropped_its_places_are_given_back() {
    let world = World::new(in_order(), |_| Nothing);
    world.call_and_leave();
    assert_eq!(world.asked(), ["a"]);
    assert!(world.is_idle(), "before anybody polled it");
    // Before the first byte, of the first attempt and of the second; and in the body, frame by frame.
    for polls in 0..3 {
        let world = World::new(in_order(), |attempt| match &*attempt.route.vendor.name {
            "a" => Stalls(1),
            _ => Nothing,
        });
        let mut call = world.call();
        for _ in 0..polls {
            assert!((&mut call).now_or_never().is_none());
            advance(Duration::from_secs(2)).await;
        }
        drop(call);
        assert!(world.is_idle(), "{polls}");
    }
    for frames in 0..=2 {
        let world = World::new(in_order(), |_| Streams(Some(End::Finished)));
        let mut body = world.call().await.unwrap().into_body();
        for _ in 0..frames {
            assert!(body.frame().await.unwrap().is_ok());
        }
        assert!(!world.is_idle());
        drop(body);
        assert!(world.is_idle(), "{frames}");
    }
    let world = World::new(in_order(), |_| Streams(Some(End::Finished)));
    let mut body = world.call().await.unwrap().into_body();
    while body.frame().await.is_some() {}
    assert!(world.is_idle(), "at its end, whoever keeps it");
}

#[tokio::test(start_paused = true)]
async fn a_vendor_can_be_taken_out_and_put_back_by_hand() {
    let world = World::new(in_order(), |_| Streams(None));
    let running = world.call().await.unwrap();
    assert!(world.health.enable("a", false));
    assert!(!world.health.enable("nobody", false));
    drop(world.call().await.unwrap());
    assert_eq!(world.asked(), ["a", "b"]);
    assert_eq!(world.vendor("a").in_flight, 1, "what runs goes on");
    assert!(world.health.enable("b", false));
    assert!(matches!(world.call().await, Err(Error::RoutesOut { .. })));
    // The config is read again.
    world.health.follow(&world.routes);
    assert!(world.vendor("a").disabled);
    assert!(world.health.enable("a", true));
    drop(world.call().await.unwrap());
    assert_eq!(world.asked(), ["a"]);
    drop(running);
    assert!(world.is_idle());
}

#[tokio::test(start_paused = true)]
async fn a_reload_keeps_what_is_known_of_routes_that_stay_and_forgets_the_others() {
    let world = World::new(in_order(), |_| Fails(down()));
    for _ in 0..5 {
        assert!(world.call().await.is_err());
    }
    let running = world.health.clone();
    let larger = with_vendor("a", |vendor| {
        vendor.connections_max = 7;
        vendor.credentials.push(HeaderValue::from_static("two"));
    });
    running.follow(&[Arc::new(larger), Arc::new(route("c"))]);
    let all = running.snapshot();
    let names: Vec<&str> = all.iter().map(|vendor| &*vendor.name).collect();
    assert_eq!(names, ["a", "c"]);
    assert_eq!(all[0].routes[0].breaker, BreakerState::Open);
    assert_eq!((all[0].connections_max, all[0].keys), (7, 2));
    let other = Route {
        model: "m-2".into(),
        ..route("a")
    };
    running.follow(&[Arc::new(other)]);
    let all = running.snapshot();
    assert_eq!(all.len(), 1);
    assert_eq!(all[0].routes.len(), 1);
    assert_eq!(all[0].routes[0].model, "m-2");
    assert_eq!(all[0].routes[0].breaker, BreakerState::Closed);
}

#[tokio::test(start_paused = true)]
async fn the_last_error_that_was_the_vendors_is_kept_with_its_status() {
    type Make = fn() -> Error;
    let cases: [(Make, Option<StatusCode>); 6] = [
        (|| answered(404), Some(StatusCode::NOT_FOUND)),
        (|| answered(500), Some(StatusCode::INTERNAL_SERVER_ERROR)),
        (|| limit(5), Some(StatusCode::TOO_MANY_REQUESTS)),
        (key_refused, Some(StatusCode::UNAUTHORIZED)),
        (down, None),
        (silent, None),
    ];
    for (error, status) in cases {
        let first = Mutex::new(Some(Fails(error())));
        let world = World::new(vec![route("a")], move |_| {
            first.lock().unwrap().take().unwrap_or(Answers)
        });
        assert!(world.call().await.is_err());
        advance(Duration::from_secs(400)).await;
        assert!(world.call().await.is_ok());
        let ago = Duration::from_secs(400);
        let last = world.vendor("a").routes[0].last_error;
        assert_eq!(last, Some(LastError { ago, status }), "{:?}", error());
    }

    let world = World::new(vec![route("a")], |_| Streams(Some(End::VendorCut)));
    assert!(read(world.call().await).await.is_err());
    let last = world.vendor("a").routes[0].last_error;
    assert_eq!(
        last.map(|last| last.status),
        Some(None),
        "a stream that was cut"
    );

    // Not the vendor's.
    let cases: [Make; 3] = [
        unfit,
        || Error::Internal("bug".into()),
        || Error::VendorRefused {
            status: StatusCode::BAD_REQUEST,
            text: String::new(),
        },
    ];
    for error in cases {
        let world = World::new(vec![route("a")], move |_| Fails(error()));
        assert!(world.call().await.is_err());
        assert_eq!(
            world.vendor("a").routes[0].last_error,
            None,
            "{:?}",
            error()
        );
    }
}

// --- choice ---

#[tokio::test(start_paused = true)]
async fn a_sticky_models_conversation_stays_unless_its_vendor_is_out() {
    let mut world = World::new(["a", "b", "c"].map(route).into(), |_| Answers);
    world.sticky = true;
    let ask = async |text: &str| {
        let call = world.service.clone().oneshot(world.request(text));
        call.await.unwrap();
        world.asked().remove(0)
    };
    let mut homes = Vec::new();
    for number in 0..20 {
        let text = format!("conversation {number}");
        let home = ask(&text).await;
        for _ in 0..5 {
            assert_eq!(ask(&text).await, home);
        }
        world.health.enable(&home, false);
        assert_ne!(ask(&text).await, home);
        world.health.enable(&home, true);
        assert_eq!(ask(&text).await, home, "it comes back");
        homes.push(home);
    }
    homes.sort();
    homes.dedup();
    assert_eq!(homes.len(), 3, "conversations are spread");
}

#[tokio::test(start_paused = true)]
async fn calls_go_where_fewer_run() {
    let world = World::new(["a", "b", "c", "d"].map(route).into(), |_| Streams(None));
    let mut streams = Vec::new();
    for _ in 0..300 {
        streams.push(world.call().await.unwrap());
    }
    for vendor in world.health.snapshot() {
        let count = vendor.in_flight;
        assert!((70..=80).contains(&count), "{}: {count}", vendor.name);
    }
}
