//! Hardening, "Panics": caught in the call and in its body, over real sockets. The caller is told, the hold
//! is resolved, the connection and the process go on. What `reserve` does alone is in `leaving`.

use std::{net::SocketAddr, time::Duration};

use bytes::Bytes;
use futures_util::FutureExt;
use http::{Request, Response};
use http_body::Frame;
use http_body_util::{BodyExt, Full, StreamBody};
use hyper_util::{client::legacy::Client, rt::TokioExecutor};
use tokio::{net::TcpListener, sync::watch, task::JoinSet};
use tollgate::{
    panics::PanicsLayer,
    server::{RequestBody, ServerSettings, serve},
};
use tollgate_layers::{
    Error,
    body::{AnswerBody, boxed, full},
    call::Format,
    facts::EventStream,
    request_number::RequestNumberLayer,
    reserve::{ReserveLayer, Settler, SettlerSettings, ledger::Bookkeeping, memory::MemoryLedger},
    respond::{Language, RespondLayer},
    usage::Meter,
};
use tower::{ServiceBuilder, service_fn};

use crate::{
    checks::{API, shape},
    harness::{Answer, client, eventually, request, whole},
    leaving::{Flat, Fragile},
    ledger::{HOUR, acme, is_sound, micro, open},
};

/// A server that panics where the path says so, above a ledger with 1000.
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
        assert!(place != "/call", "a panic of the test's");
        async move {
            assert!(place != "/future", "a panic of the test's");
            Ok::<_, Error>(answer(&place))
        }
    });
    let service = ServiceBuilder::new()
        .map_request(|req: Request<RequestBody>| req.map(drop))
        .layer(RequestNumberLayer::new())
        .layer(RespondLayer::new(Language::En))
        .layer(PanicsLayer)
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
            let panics = async { panic!("a panic of the test's") };
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
async fn a_panic_costs_its_own_caller_an_error_and_nobody_else_anything() {
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
        // Not one byte of the body has come: all that is left is to break off.
        let url = format!("http://{address}/body");
        let req = request(http::Method::POST, &url, &[], Bytes::new());
        if let Ok(res) = client.request(req).await {
            let broken = whole(res).await;
            assert!(broken.failed, "{broken:?}");
        }
        let stream = ask("/stream").await;
        let text = stream.text();
        assert!(text.starts_with("data: {}\n\n"), "{text}");
        assert!(
            text.contains("\"error\"") && text.contains("Internal error"),
            "{text}"
        );
        assert!(
            !text.contains("[DONE]") && !text.contains("panic"),
            "{text}"
        );
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

/// One connection, one request after another: the one that panics does not take it along.
#[tokio::test]
async fn a_connection_outlives_the_panic_of_a_call() {
    let mut tasks = JoinSet::new();
    let (address, _ledger, _draining) = start(&mut tasks).await;
    let socket = tokio::net::TcpStream::connect(address).await.unwrap();
    let io = hyper_util::rt::TokioIo::new(socket);
    let (mut sender, connection) = hyper::client::conn::http1::handshake(io).await.unwrap();
    tasks.spawn(connection.map(drop));
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
