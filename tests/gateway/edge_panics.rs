//! Tests of panics: the gateway catches a panic in a call or in the body of its response. The caller gets an error, the
//! hold ends, and the connection and the process continue. The admin API and the background tasks survive a panic, too,
//! except the settler (see `readiness`). `leaving` tests panics in the `reserve` layer without the other layers.

use std::{
    convert::Infallible,
    fmt,
    net::SocketAddr,
    sync::atomic::{AtomicBool, Ordering},
    task::{Context, Poll},
};

use futures_util::FutureExt;
use http::{Request, Response, StatusCode};
use http_body::Frame;
use http_body_util::{BodyExt, Full, StreamBody};
use hyper::client::conn::http1::{SendRequest, handshake};
use hyper_util::{
    client::legacy::Client,
    rt::{TokioExecutor, TokioIo},
};
use tokio::{
    net::{TcpListener, TcpStream},
    sync::watch,
    task::JoinSet,
};
use tollgate::{
    config::{Config, Loaded},
    edge::{
        panics::PanicsLayer,
        server::{RequestBody, ServerSettings, serve},
    },
    node::reload::Reload,
};
use tollgate_layers::{
    Error,
    body::{AnswerBody, boxed, full},
    call::Format,
    facts::EventStream,
    request_number::RequestNumberLayer,
    reserve::{ReserveLayer, Settler, SettlerSettings, ledger::LedgerAdmin, memory::MemoryLedger},
    respond::{Language, RespondLayer},
    usage::Meter,
};
use tower::{Service, ServiceBuilder, service_fn};
use tracing::{
    Event, Metadata, Subscriber,
    field::{Field, Visit},
    level_filters::LevelFilter,
    span,
    subscriber::DefaultGuard,
};

use crate::{
    leaving::{Flat, Fragile},
    ledger::{HOUR, acme, is_sound, micro, open},
    prelude::*,
};

/// Starts a server that panics in the part of a call that the path names. Its ledger contains 1000 µ₽.
async fn start(tasks: &mut JoinSet<()>) -> (SocketAddr, MemoryLedger, watch::Sender<bool>) {
    let ledger = MemoryLedger::new();
    open(&ledger, 1000).await;
    let (settler, settling) = Settler::new(ledger.clone(), SettlerSettings::default(), |_| {});
    tasks.spawn(settling.run());
    let meter = Meter::default();
    meter.dispatched();
    let tariff = Flat {
        meter,
        finish_without_client: false,
    };
    let place = |req: &Request<()>| req.uri().path().to_owned();
    let inner = service_fn(move |req: Request<()>| {
        let place = place(&req);
        assert!(place != "/call", "panicked on purpose");
        async move {
            assert!(place != "/future", "panicked on purpose");
            Ok::<_, Error>(answer(&place))
        }
    });
    let service = ServiceBuilder::new()
        .map_request(|req: Request<RequestBody>| req.map(drop))
        .layer(RequestNumberLayer::new())
        .layer(RespondLayer::new(Language::En))
        .layer(PanicsLayer::new())
        .layer(ReserveLayer::new(ledger.clone(), tariff, settler, HOUR))
        .service(inner);
    let listener = TcpListener::bind(("127.0.0.1", 0)).await.unwrap();
    let address = listener.local_addr().unwrap();
    let settings = ServerSettings::default();
    let (draining, drained) = watch::channel(false);
    tasks.spawn(serve(listener, service, settings, drained));
    (address, ledger, draining)
}

fn answer(place: &str) -> Response<AnswerBody> {
    let mut res = match place {
        "/body" => Response::new(boxed(Fragile)),
        "/stream" => {
            let first = Ok::<_, Error>(Frame::data(Bytes::from_static(b"data: {}\n\n")));
            let panics = async { panic!("panicked on purpose") };
            let frames = futures_util::stream::StreamExt::chain(
                futures_util::stream::iter([first]),
                panics.into_stream(),
            );
            Response::new(boxed(StreamBody::new(frames)))
        }
        _ => Response::new(full("good")),
    };
    if place == "/stream" {
        res.extensions_mut().insert(EventStream(Format::Chat));
    }
    res
}

#[tokio::test]
async fn panic_in_a_call_is_an_error_only_for_its_caller() {
    let mut tasks = JoinSet::new();
    let (address, ledger, _draining) = start(&mut tasks).await;
    let h2 = Client::builder(TokioExecutor::new())
        .http2_only(true)
        .build_http::<Full<Bytes>>();
    for client in [client(), h2] {
        let ask = async |path: &str| -> Answer {
            let url = format!("http://{address}{path}");
            let req = request(http::Method::POST, &url, &[], Bytes::new());
            whole(client.request(req).await.unwrap()).await
        };
        for place in ["/call", "/future"] {
            let refused = ask(place).await;
            let text = shape(place, &refused, 500, API, "");
            assert!(!text.contains("panic"), "{text}");
        }
        // The head of the response was sent before the body panicked, so the server can only cut off the response.
        let url = format!("http://{address}/body");
        let req = request(http::Method::POST, &url, &[], Bytes::new());
        if let Ok(res) = client.request(req).await {
            let broken = whole(res).await;
            assert!(broken.failed, "{broken:?}");
        }
        let stream = ask("/stream").await;
        let text = stream.text();
        assert!(text.starts_with("data: {}\n\n"), "{text}");
        has(&text, "\"error\"");
        has(&text, "Internal error");
        assert!(!text.contains("[DONE]"), "{text}");
        assert!(!text.contains("panic"), "{text}");
        let good = ask("/good").await;
        assert_eq!((good.status.as_u16(), &good.body[..]), (200, &b"good"[..]));
        eventually("nothing is held", async || {
            let account = ledger.account(&acme()).await.unwrap();
            (account.held_rub == micro(0)).then_some(())
        })
        .await;
    }
    is_sound(&ledger).await;
}

async fn connect(address: SocketAddr, tasks: &mut JoinSet<()>) -> SendRequest<Full<Bytes>> {
    let socket = TcpStream::connect(address).await.unwrap();
    let (sender, connection) = handshake(TokioIo::new(socket)).await.unwrap();
    tasks.spawn(connection.map(drop));
    sender
}

/// Sends requests one after another on one connection. A panic must not close it.
#[tokio::test]
async fn connection_continues_after_a_call_panics() {
    let mut tasks = JoinSet::new();
    let (address, _ledger, _draining) = start(&mut tasks).await;
    let mut sender = connect(address, &mut tasks).await;
    for (path, status) in [
        ("/call", 500),
        ("/future", 500),
        ("/good", 200),
        ("/future", 500),
    ] {
        let req = Request::post(path)
            .header("host", "gateway.example")
            .body(Full::new(Bytes::new()))
            .unwrap();
        let answered = tokio::time::timeout(Duration::from_secs(5), sender.send_request(req));
        let res = answered.await.unwrap().expect("the connection is there");
        assert_eq!(res.status(), status, "{path}");
        drop(res.into_body().collect().await.unwrap());
        sender.ready().await.unwrap();
    }
}

/// A log subscriber that panics when a log line with these words is written.
struct Trap(&'static str);

impl Subscriber for Trap {
    fn enabled(&self, _: &Metadata<'_>) -> bool {
        true
    }

    fn max_level_hint(&self) -> Option<LevelFilter> {
        Some(LevelFilter::INFO)
    }

    fn new_span(&self, _: &span::Attributes<'_>) -> span::Id {
        span::Id::from_u64(1)
    }

    fn record(&self, _: &span::Id, _: &span::Record<'_>) {}

    fn record_follows_from(&self, _: &span::Id, _: &span::Id) {}

    fn event(&self, event: &Event<'_>) {
        let mut words = Words(String::new());
        event.record(&mut words);
        assert!(!words.0.contains(self.0), "panicked on purpose");
    }

    fn enter(&self, _: &span::Id) {}

    fn exit(&self, _: &span::Id) {}
}

/// Collects the text of a log line.
struct Words(String);

impl Visit for Words {
    fn record_debug(&mut self, _: &Field, value: &dyn fmt::Debug) {
        self.0 += &format!("{value:?} ");
    }
}

/// Until the guard is dropped, a log line with these words causes a panic. This applies to the current thread, which is
/// the only thread of the test.
fn trap(words: &'static str) -> DefaultGuard {
    tracing::subscriber::set_default(Trap(words))
}

#[tokio::test]
async fn panic_in_the_admin_api_is_answered_with_500_and_the_connection_stays_open() {
    let world = World::start().await;
    let mut tasks = JoinSet::new();
    let mut sender = connect(world.gateway.admin_address().unwrap(), &mut tasks).await;
    let mut create = async || {
        let bearer = format!("Bearer {ADMIN_KEY}");
        let headers = [
            ("authorization", bearer.as_str()),
            ("content-type", "application/json"),
            ("host", "gateway.example"),
        ];
        let account = json!({ "id": "acme", "name": "Acme" }).to_string();
        let path = "/admin/v1/accounts";
        let req = request(Method::POST, path, &headers, account.into());
        let res = sender.send_request(req).await;
        let answer = whole(res.expect("the connection is there")).await;
        sender.ready().await.unwrap();
        answer
    };
    // The handler logs this line after it has created the account. So the account exists although the handler panics.
    let trapped = trap("account.create");
    let refused = create().await;
    drop(trapped);
    assert_eq!(refused.status, 500, "{refused:?}");
    assert_eq!(refused.json()["error"]["type"], API);
    let text = refused.refusal();
    assert_eq!(
        text,
        "an internal error of the gateway, and the change may have been made; see the gateway's log"
    );
    let made = create().await.expect(200);
    assert_eq!(made.json()["id"], "acme");
}

#[tokio::test]
async fn reload_that_panics_counts_as_failed_and_the_next_reload_works() {
    let mut world = World::start().await;
    let dir = tempfile::tempdir().unwrap();
    let path = |name: &str| dir.path().join(name);
    let mut text = config_text(world.vendor.address(), "memory:", "outbox.db");
    for (name, secret) in [("ADMIN_KEY", ADMIN_KEY), ("VENDOR_KEY", VENDOR_KEY)] {
        std::fs::write(path(name), secret).unwrap();
        let from_file = format!("file:{}", path(name).display());
        text = text.replace(&format!("${{{name}}}"), &from_file);
    }
    let file = path("tollgate.toml");
    std::fs::write(&file, &text).unwrap();
    let Loaded { config, files } = Config::read(&file);
    let config = config.unwrap_or_else(|errors| panic!("{errors}"));
    let mut reload = Reload::new(&file, config, files);

    // The gateway logs that the file is invalid, and the trap makes this log line panic.
    std::fs::write(&file, "listen = 1").unwrap();
    let trapped = trap("configuration not reloaded");
    reload.now(&mut world.gateway).await;
    drop(trapped);
    std::fs::write(&file, &text).unwrap();
    reload.now(&mut world.gateway).await;
    let url = format!("http://{}/metrics", world.gateway.admin_address().unwrap());
    let scraped = world.ask(request(Method::GET, &url, &[], Bytes::new()));
    let scraped = scraped.await.text();
    for result in ["failed", "ok"] {
        let counted = format!("tollgate_config_reloads_total{{result=\"{result}\"}} 1\n");
        assert!(scraped.contains(&counted), "{scraped}");
    }
}

/// A service whose next clone panics if `breaks` is true.
struct Brittle<S> {
    inner: S,
    breaks: Arc<AtomicBool>,
}

impl<S: Clone> Clone for Brittle<S> {
    fn clone(&self) -> Self {
        let breaks = self.breaks.swap(false, Ordering::SeqCst);
        assert!(!breaks, "panicked on purpose");
        Self {
            inner: self.inner.clone(),
            breaks: Arc::clone(&self.breaks),
        }
    }
}

impl<S: Service<R>, R> Service<R> for Brittle<S> {
    type Response = S::Response;
    type Error = S::Error;
    type Future = S::Future;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), S::Error>> {
        self.inner.poll_ready(cx)
    }

    fn call(&mut self, req: R) -> S::Future {
        self.inner.call(req)
    }
}

#[tokio::test]
async fn panic_while_accepting_a_connection_affects_no_other_connection() {
    let listener = TcpListener::bind(("127.0.0.1", 0)).await.unwrap();
    let address = listener.local_addr().unwrap();
    let breaks = Arc::new(AtomicBool::new(false));
    let service = Brittle {
        inner: service_fn(|_: Request<RequestBody>| async {
            Ok::<_, Infallible>(Response::new(full("good")))
        }),
        breaks: Arc::clone(&breaks),
    };
    let (_draining, drained) = watch::channel(false);
    let mut tasks = JoinSet::new();
    tasks.spawn(serve(listener, service, ServerSettings::default(), drained));
    let ask = async |sender: &mut SendRequest<Full<Bytes>>| {
        let host = [("host", "gateway.example")];
        let req = request(Method::GET, "/", &host, Bytes::new());
        let answer = whole(sender.send_request(req).await.ok()?).await;
        sender.ready().await.ok()?;
        Some(answer.status)
    };
    let mut before = connect(address, &mut tasks).await;
    assert_eq!(ask(&mut before).await, Some(StatusCode::OK));
    breaks.store(true, Ordering::SeqCst);
    let mut broken = connect(address, &mut tasks).await;
    assert_eq!(ask(&mut broken).await, None);
    let mut after = connect(address, &mut tasks).await;
    assert_eq!(ask(&mut before).await, Some(StatusCode::OK));
    assert_eq!(ask(&mut after).await, Some(StatusCode::OK));
}
