//! Tests what callers get when vendors fail. The vendors are scripted services below the layer.

mod breakers;
mod choice;
mod first_byte;
mod rests;
mod streams;

use std::{collections::VecDeque, future::pending};

use futures_util::FutureExt;
use http::{HeaderMap, HeaderValue, StatusCode, Uri};
use http_body::{Frame, SizeHint};
use http_body_util::BodyExt;
use serde_json::json;
use tokio::time::advance;
use tower::ServiceExt;

use super::*;
use crate::{
    call::{Call, Format, InputSize, Spans},
    error::{Problem, VendorAnswered, VendorUnreached},
    facts::Caller,
    key::{KeyDigest, KeyRecord},
    model::{
        Authentication, Dialect, Egress, Model, ModelKind, OnDisconnect, Protocol, Route, Vendor,
    },
    price::{Price, PriceList, Rate},
    usage::{End, Meter},
};

/// The behaviour of a scripted vendor when it gets an attempt.
#[derive(Debug)]
enum Does {
    /// The vendor sends a plain response.
    Answers,
    /// The vendor sends a stream of two frames, which ends as the [`End`] states. If `None`, the stream does not end.
    Streams(Option<End>),
    /// The vendor sends a stream as for `Streams`, but its first frame is a keep-alive of the gateway. If the stream
    /// ends, the second frame is a keep-alive too.
    Idles(Option<End>),
    /// The vendor fails before the first byte.
    Fails(Error),
    /// The vendor is silent for this many seconds, and then fails.
    Stalls(u64),
    /// The vendor never answers.
    Nothing,
}

use Does::{Answers, Fails, Idles, Nothing, Stalls, Streams};

type Script = dyn Fn(&Attempt) -> Does + Send + Sync;

#[derive(Clone)]
struct Vendors {
    script: Arc<Script>,
    /// The vendors that received a call, as `vendor` or, if the vendor has several API keys, as `vendor#key`.
    requested: Arc<Mutex<Vec<String>>>,
}

impl Service<Request<Attempt>> for Vendors {
    type Response = Response<Scripted>;
    // The error is boxed. The layer must recover the error in the box.
    type Error = BoxError;
    type Future = Pin<Box<dyn Future<Output = Result<Response<Scripted>, BoxError>> + Send>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), BoxError>> {
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
        self.requested.lock().unwrap().push(name);
        let meter = attempt.priced.meter;
        Box::pin(async move {
            let spoken = !matches!(does, Idles(_));
            let end = match does {
                Answers => {
                    meter.update(|reading| reading.end = Some(End::Finished));
                    Some(End::Finished)
                }
                Streams(end) | Idles(end) => end,
                Fails(error) => {
                    meter.refused();
                    return Err(error.into());
                }
                Stalls(seconds) => {
                    tokio::time::sleep(Duration::from_secs(seconds)).await;
                    return Err(silent().into());
                }
                Nothing => pending().await,
            };
            let frames = [&b"one"[..], b"two"].map(Bytes::from_static).into();
            let says = spoken || end.is_none();
            let mut res = Response::new(Scripted {
                frames,
                end,
                meter,
                says,
            });
            if !spoken {
                res.extensions_mut().insert(NothingSaid);
            }
            Ok(res)
        })
    }
}

#[derive(Debug)]
struct Scripted {
    frames: VecDeque<Bytes>,
    end: Option<End>,
    meter: Meter,
    /// Whether the second frame comes from the vendor and is not a keep-alive.
    says: bool,
}

impl Body for Scripted {
    type Data = Bytes;
    type Error = BoxError;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        _: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BoxError>>> {
        if let Some(bytes) = self.frames.pop_front() {
            if self.says && self.frames.is_empty() {
                self.meter.update(|reading| reading.text_bytes += 3);
            }
            return Poll::Ready(Some(Ok(Frame::data(bytes))));
        }
        let end = self.end;
        self.meter.update(|reading| reading.end = end);
        match end {
            Some(End::Finished) => Poll::Ready(None),
            Some(_) => Poll::Ready(Some(Err(Error::VendorBroken("cut".into()).into()))),
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

/// A model's routes, and a failover layer over scripted vendors.
struct World {
    health: Health,
    service: Failover<Vendors>,
    routes: Vec<Arc<Route>>,
    requested: Arc<Mutex<Vec<String>>>,
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
        let (health, requested) = (Health::seeded(7), Arc::default());
        let routes: Vec<Arc<Route>> = routes.into_iter().map(Arc::new).collect();
        health.follow(&routes);
        let vendors = Vendors {
            script: Arc::new(script),
            requested: Arc::clone(&requested),
        };
        Self {
            service: FailoverLayer::new(health.clone(), settings).layer(vendors),
            health,
            routes,
            requested,
            sticky: false,
        }
    }

    fn request(&self, text: &str) -> Request<Priced> {
        let body = json!({ "model": "m", "messages": [{ "role": "user", "content": text }] });
        let rate = Rate::new(1);
        let model = Model {
            id: "m".into(),
            family: "f".into(),
            kind: ModelKind::Chat,
            output_tokens_max: 10,
            output_tokens_min: 1,
            output_tokens_default: None,
            output_tokens_per_second_max: None,
            hold_grows: false,
            input_tokens_max: None,
            input_tokens_priced_max: None,
            sticky: self.sticky,
            routes: self.routes.clone(),
        };
        let call = Call {
            format: Format::Chat,
            kind: ModelKind::Chat,
            body: body.to_string().into(),
            model: "m".into(),
            stream: true,
            output_tokens: None,
            choices: 1,
            usage_asked: false,
            input: InputSize::default(),
            texts: crate::text_sample::TextSample::default(),
            asks: None,
            spans: Spans::default(),
            session: None,
        };
        Request::new(Priced {
            call: Arc::new(call),
            model: Arc::new(model),
            prices: PriceList::from(Price {
                input: rate,
                cached_input: rate,
                output: rate,
                cache_write: rate,
                version: 1,
                exchange_rate: "1".into(),
                ..Price::default()
            }),
            output_tokens: 10,
            meter: Meter::default(),
        })
    }

    fn call(&self) -> Calling {
        Box::pin(self.service.clone().oneshot(self.request("x")))
    }

    /// Sends a call by the caller with this key.
    fn call_of(&self, key: &str) -> Calling {
        let mut req = self.request(key);
        req.extensions_mut().insert(caller(key));
        Box::pin(self.service.clone().oneshot(req))
    }

    /// Sends a call and disconnects before the call's future is polled. The call's first attempt has begun
    /// nevertheless.
    fn call_and_leave(&self) {
        drop(self.service.clone().call(self.request("x")));
    }

    /// Returns the vendors that were called since this function was last called.
    fn requested(&self) -> Vec<String> {
        std::mem::take(&mut *self.requested.lock().unwrap())
    }

    fn vendor(&self, name: &str) -> VendorState {
        let mut all = self.health.snapshot().into_iter();
        all.find(|vendor| &*vendor.name == name).unwrap()
    }

    fn breaker(&self, name: &str) -> BreakerState {
        self.vendor(name).routes[0].breaker
    }

    /// Returns whether no vendor and no route has a call in flight.
    fn is_idle(&self) -> bool {
        self.health.snapshot().iter().all(|vendor| {
            vendor.in_flight == 0 && vendor.routes.iter().all(|route| route.in_flight == 0)
        })
    }
}

fn caller(key: &str) -> Caller {
    Caller(Arc::new(KeyRecord::new(
        key.parse().unwrap(),
        "acme".parse().unwrap(),
        KeyDigest::new([0; 32]),
    )))
}

/// Returns whether this attempt belongs to a call that [`World::call_of`] sent with this key. The call's text contains
/// the key.
fn is_of(attempt: &Attempt, key: &str) -> bool {
    let body = String::from_utf8_lossy(&attempt.priced.call.body);
    body.contains(&format!("\"{key}\""))
}

type Answered = Result<Response<ResponseBody<Scripted>>, Error>;
type Calling = Pin<Box<dyn Future<Output = Answered> + Send>>;

/// Returns the bytes of the response, or the error that ended it.
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

/// Creates a route to a vendor of this name.
fn route(name: &str) -> Route {
    let vendor = Vendor {
        name: name.into(),
        format: Format::Chat,
        endpoint: Uri::from_static("http://vendor.example/v1/chat/completions"),
        credentials: vec![HeaderValue::from_static("one")],
        authentication: Authentication::default(),
        headers: HeaderMap::new(),
        anthropic_version: None,
        betas_removed: vec![],
        on_disconnect: OnDisconnect::Cancel,
        egress: Arc::new(egress()),
        first_byte_timeout: Duration::from_secs(120),
        plain_timeout: Duration::from_secs(600),
        head_timeout: Duration::from_secs(10),
        idle_timeout: Duration::from_secs(120),
        connections_max: 100,
        others: vec![],
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

/// Creates a route whose vendor has two API keys.
fn with_keys(name: &str) -> Route {
    with_vendor(name, |vendor| {
        vendor.credentials = ["one", "two"].map(HeaderValue::from_static).into();
    })
}

/// Creates two routes, `a` and `b`; `a` is tried first.
fn in_order() -> Vec<Route> {
    let second = Route {
        priority: 1,
        ..route("b")
    };
    vec![route("a"), second]
}

/// Returns a script in which the vendor `a` fails with this error, and the other vendors answer.
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
