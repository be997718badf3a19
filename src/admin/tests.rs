//! Tests of the operators' API as a whole, without its layers.

use std::{
    cell::RefCell,
    convert::Infallible,
    io::{self, Write},
    path::Path,
    sync::{Arc, Once},
    time::Duration,
};

use bytes::Bytes;
use http::{HeaderName, Method, Request, Response, header};
use http_body_util::{BodyExt, Full};
use secrecy::SecretString;
use serde_json::{Value, json};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpListener,
};
use tollgate_layers::{
    Error,
    request_number::RequestNumberLayer,
    reserve::memory::MemoryLedger,
    respond::{Language, RespondLayer},
};
use tollgate_ledger::{
    contract::{EventStore, OnceEvent},
    happening::Happening,
};
use tower::{ServiceBuilder, ServiceExt, service_fn, util::BoxCloneService};
use tracing_subscriber::layer::SubscriberExt as _;

use super::*;
use crate::{
    catalog::snapshot::tests::live,
    config::{
        AdminConfig, PaymentsConfig, ReceiverConfig, WayConfig, WebhookConfig, YooKassaConfig,
    },
    console::ConsoleLayer,
    edge::{head::FramingFault, panics::PanicsLayer, server::OpenConnections},
    events::Tail,
    observe::{log::AuditedLayer, metrics::Metrics, record::Calls},
    payments::Payments,
    stack,
};

thread_local! {
    static LOG: RefCell<Vec<u8>> = const { RefCell::new(Vec::new()) };
}

/// Collects the lines that are logged on this thread: `take` returns the lines since its last call.
///
/// One subscriber receives the lines of all threads. With a subscriber per thread, a line could be lost: while a
/// process has a single subscriber, `tracing` queries only the current thread's subscriber for its interest and caches
/// the result for all threads.
pub(crate) struct Log;

impl Log {
    pub(crate) fn listen() -> Self {
        static BEGUN: Once = Once::new();
        BEGUN.call_once(|| {
            let all = tracing_subscriber::fmt()
                .with_ansi(false)
                .with_writer(|| ThreadLog)
                .finish()
                .with(AuditedLayer);
            tracing::subscriber::set_global_default(all).expect("no other test has set one");
        });
        let log = Self;
        log.take();
        log
    }

    pub(crate) fn take(&self) -> Vec<String> {
        let text = String::from_utf8(LOG.take()).unwrap();
        text.lines().map(str::to_owned).collect()
    }
}

struct ThreadLog;

impl Write for ThreadLog {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        // A thread that is ending has already destroyed its log, so the lines are dropped.
        let _ = LOG.try_with(|log| log.borrow_mut().extend_from_slice(bytes));
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

pub(crate) type Api = BoxCloneService<Request<Full<Bytes>>, stack::OperatorsAnswer, Infallible>;

/// Returns an API over an empty ledger in memory, the catalog of `live` and its vendor `v`.
pub(crate) fn admin() -> Api {
    admin_over(AnyLedger::Memory(MemoryLedger::new()), None, &[])
}

/// Returns an API over an empty ledger that edits this configuration file. No task applies the file.
pub(crate) fn admin_of_file(file: &Path) -> Api {
    let file = ConfigFile::new(Some(file.to_owned())).0;
    admin_with(
        AnyLedger::Memory(MemoryLedger::new()),
        None,
        &[],
        Some(file),
    )
}

fn admin_over(
    store: AnyLedger,
    payments: Option<PaymentsConfig>,
    receivers: &[ReceiverConfig],
) -> Api {
    admin_with(store, payments, receivers, None)
}

fn admin_with(
    store: AnyLedger,
    payments: Option<PaymentsConfig>,
    receivers: &[ReceiverConfig],
    file: Option<ConfigFile>,
) -> Api {
    let (live, health) = (Arc::new(live()), Health::new());
    let snapshot = live.snapshot();
    health.follow(snapshot.models().flat_map(|(model, _)| &model.routes));
    let (metrics, readiness) = (Arc::new(Metrics::new("tollgate")), Readiness::default());
    let scrape = Scrape {
        calls: Calls::new(Arc::clone(&metrics)),
        live: Arc::clone(&live),
        store: store.clone(),
        rates: crate::state::rates::KeyRates::new(&store).0,
        health: health.clone(),
        readiness: readiness.clone(),
        connections: OpenConnections::default(),
    };
    let config = AdminConfig {
        listen: ([127, 0, 0, 1], 0).into(),
        key: SecretString::from("correct horse".to_owned()),
        operators_file: None,
        oidc: None,
        hosts: Vec::new(),
        metrics_key: false,
        connections_max: 1,
    };
    let console = ConsoleLayer::new(&config, Arc::clone(&live));
    let payments = Payments::new(store.clone(), payments, Language::En);
    let dispatcher = Dispatcher::new(Tail::new(store.clone()), Arc::clone(&metrics));
    // Events are delivered only if a test delivers them itself.
    drop(dispatcher.replace(receivers));
    let admin = Admin::new(store, live, health, readiness, scrape, dispatcher, payments);
    let admin = match file {
        Some(file) => admin.with_configuration(file, stack::one_vendor),
        None => admin,
    };
    BoxCloneService::new(stack::operators(&config, &metrics, admin, console))
}

pub(crate) async fn request(admin: &Api, method: Method, path: &str, body: &str) -> (u16, Value) {
    asked_by(&Operator::default(), admin, method, path, body).await
}

/// Sends a request as the console does, on behalf of an operator.
pub(crate) async fn asked_by(
    who: &Operator,
    admin: &Api,
    method: Method,
    path: &str,
    body: &str,
) -> (u16, Value) {
    let req = Request::builder()
        .extension(who.clone())
        .method(method)
        .uri(format!("/admin/v1/{path}"))
        .header(header::HOST, "operators.example")
        .header(header::AUTHORIZATION, "Bearer correct horse")
        .body(Full::new(Bytes::from(body.to_owned())))
        .unwrap();
    let Ok(res) = admin.clone().oneshot(req).await;
    let status = res.status().as_u16();
    let body = res.into_body().collect().await.unwrap().to_bytes();
    (status, serde_json::from_slice(&body).unwrap_or_default())
}

/// A server that accepts any request and sends every request the same response.
#[allow(
    clippy::disallowed_methods,
    reason = "a test owns the task that it spawns"
)]
async fn answering(body: &'static str) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    tokio::spawn(async move {
        loop {
            let (mut stream, _) = listener.accept().await.unwrap();
            let mut read = Vec::new();
            // Reads until the end of the request: an empty line, or the brace that closes a JSON body.
            while !read.ends_with(b"\r\n\r\n") && !read.ends_with(b"}") {
                stream.read_buf(&mut read).await.unwrap();
            }
            let length = body.len();
            let answer = format!(
                "HTTP/1.1 200 OK\r\ncontent-length: {length}\r\nconnection: close\r\n\r\n{body}"
            );
            stream.write_all(answer.as_bytes()).await.unwrap();
        }
    });
    url
}

/// The YooKassa API's description of a payment that is not paid yet.
const PENDING: &str = r#"{"id":"p-1","status":"pending","amount":{"value":"500.00","currency":"RUB"},
    "confirmation":{"type":"redirect","confirmation_url":"https://pay.example/p-1"},"metadata":{}}"#;

/// Returns an API with a payment provider, a receiver `crm`, and the event 1.
async fn whole_admin() -> Api {
    let url = answering(PENDING).await;
    let payments = PaymentsConfig {
        on_page: false,
        min: "1".parse().unwrap(),
        max: "1000".parse().unwrap(),
        open_max: 9,
        poll: Duration::from_secs(60),
        auto_check: Duration::from_secs(60),
        auto_retry: Duration::from_secs(60),
        auto_declines_max: 3,
        yookassa: Some(YooKassaConfig {
            shop_id: "1".into(),
            secret_key: "secret".into(),
            url: url.clone(),
            return_url: "https://pay.example/usage".into(),
            receipt: None,
        }),
        cloudpayments: None,
        stripe: None,
    };
    let crm = ReceiverConfig {
        name: "crm".into(),
        kinds: Vec::new(),
        accounts: Vec::new(),
        retry_max: Duration::ZERO,
        way: WayConfig::Webhook(WebhookConfig {
            url: url.parse().unwrap(),
            keys: vec![vec![7; 32]],
            allow_private: true,
            answer_timeout: Duration::from_secs(5),
            authorities: None,
        }),
    };
    let store = AnyLedger::Memory(MemoryLedger::new());
    let stale = OnceEvent {
        once: "1".into(),
        account: None,
        key: None,
        what: Happening::RateStale { since_ms: 1 },
    };
    assert!(store.emit_once(&stale).await.unwrap());
    admin_over(store, Some(payments), &[crm])
}

#[tokio::test(flavor = "current_thread")]
async fn repeated_top_up_changes_nothing_and_is_logged_as_a_repetition() {
    let log = Log::listen();
    let admin = admin();
    let entered = async |what: &str, body: Value| {
        log.take();
        let path = format!("accounts/acme/{what}");
        let (status, answer) = request(&admin, Method::POST, &path, &body.to_string()).await;
        let lines = log.take();
        let audited = lines.into_iter().find(|line| line.contains("audit"));
        (status, answer, audited)
    };
    request(&admin, Method::POST, "accounts", r#"{"id":"acme"}"#).await;
    let paid = json!({"id": "p1", "amount_rub": "5"});
    let corrected = json!({"id": "c1", "amount_rub": "5", "reason": "a mistake"});
    for (what, body, balance) in [
        ("topups", &paid, "5.00"),
        ("adjustments", &corrected, "10.00"),
    ] {
        for repeated in [false, true] {
            let (status, answer, audited) = entered(what, body.clone()).await;
            assert_eq!(status, 200, "{answer}");
            // A repeated request is logged, too, because the process of the first request may have ended before it
            // logged.
            let reported = format!("repeated={repeated}");
            assert!(
                audited.is_some_and(|line| line.contains(&reported)),
                "{reported}"
            );
            assert_eq!(answer["repeated"], repeated, "{answer}");
            assert_eq!(answer["balance_rub"], balance, "{answer}");
        }
    }
    let correction = |id: &str, why: &str| json!({"id": id, "amount_rub": "5", "reason": why});
    for (what, body, says) in [
        (
            "adjustments",
            correction("p1", "a mistake"),
            "another kind (payment)",
        ),
        (
            "topups",
            json!({"id": "c1", "amount_rub": "5"}),
            "another kind (correction)",
        ),
        (
            "adjustments",
            correction("c1", "another"),
            "with another reason",
        ),
        (
            "topups",
            json!({"id": "p1", "amount_rub": "6"}),
            "with another amount",
        ),
    ] {
        let (status, answer, audited) = entered(what, body).await;
        assert_eq!((status, audited), (409, None), "{answer}");
        let text = answer["error"]["message"].as_str().unwrap();
        assert!(text.contains(says), "{text}");
    }
    let (_, account) = request(&admin, Method::GET, "accounts/acme", "").await;
    assert_eq!(account["balance_rub"], "10.00");
}

#[tokio::test(flavor = "current_thread")]
async fn every_admin_change_leaves_one_audit_line_with_actor_and_values() {
    let log = Log::listen();
    let admin = whole_admin().await;
    let anna = &Operator::new("anna", Role::Finance);
    let boris = &Operator::new("boris", Role::Support);
    let vera = &Operator::new("vera", Role::Admin);
    let made = async |who: &Operator, method: &Method, path: &str, body: &str| {
        log.take();
        let (status, answer) = asked_by(who, &admin, method.clone(), path, body).await;
        assert_eq!(status, 200, "{path}: {answer}");
        (answer, log.take())
    };
    let (post, put, patch) = (&Method::POST, &Method::PUT, &Method::PATCH);

    let account = r#"{"id":"acme","name":"Acme"}"#;
    let (_, lines) = made(boris, post, "accounts", account).await;
    let words = ["account=acme", r#"name="Acme""#];
    audited(&lines, boris, "account.create", &words);
    let topup = r#"{"id":"p1","amount_rub":"10"}"#;
    let (_, lines) = made(anna, post, "accounts/acme/topups", topup).await;
    let money = ["balance_before_rub=0.00", "balance_rub=10.00", r#"id="p1""#];
    audited(&lines, anna, "account.topup", &money);
    let adjustment = r#"{"id":"c1","amount_rub":"-4","reason":"a mistake"}"#;
    let (_, lines) = made(anna, post, "accounts/acme/adjustments", adjustment).await;
    let money = ["balance_before_rub=10.00", "balance_rub=6.00", "a mistake"];
    audited(&lines, anna, "account.adjust", &money);
    for (body, change) in [
        (r#"{"name":"Acme Ltd"}"#, r#"name: \"Acme\" → \"Acme Ltd\""#),
        (r#"{"status":"suspended"}"#, r#"\"active\" → \"suspended\""#),
        (r#"{"status":"active"}"#, r#"\"suspended\" → \"active\""#),
        (r#"{"status":"active"}"#, "nothing"),
    ] {
        let (_, lines) = made(boris, patch, "accounts/acme", body).await;
        audited(&lines, boris, "account.change", &["account=acme", change]);
    }

    let groups = "accounts/acme/groups";
    let group = r#"{"id":"ci","ceiling_rub":"9"}"#;
    let (_, lines) = made(boris, post, groups, group).await;
    let words = [
        "account=acme",
        "group=ci",
        r#"ceiling_rub: null → \"9.00\""#,
    ];
    audited(&lines, boris, "group.create", &words);
    let group = "accounts/acme/groups/ci";
    let (_, lines) = made(boris, patch, group, r#"{"ceiling_rub":null}"#).await;
    let words = ["group=ci", r#"ceiling_rub: \"9.00\" → null"#];
    audited(&lines, boris, "group.change", &words);

    let limits = r#"{"name":"ci","ceiling_day_rub":"5","models":["z-first"]}"#;
    let (key, lines) = made(boris, post, "accounts/acme/keys", limits).await;
    let id = key["id"].as_str().unwrap();
    let path = format!("keys/{id}");
    let words = [id, r#"ceiling_day_rub: null → \"5.00\""#, "z-first"];
    audited(&lines, boris, "key.create", &words);
    assert!(!lines[0].contains(key["key"].as_str().unwrap()));
    for (body, change) in [
        (
            r#"{"ceiling_day_rub":null}"#,
            r#"ceiling_day_rub: \"5.00\" → null"#,
        ),
        (
            r#"{"ceiling_month_rub":"7"}"#,
            r#"ceiling_month_rub: null → \"7.00\""#,
        ),
        (r#"{"tokens_per_minute":9}"#, "tokens_per_minute: null → 9"),
        (r#"{"group":"ci"}"#, r#"group: null → \"ci\""#),
        (r#"{"concurrency":3}"#, "concurrency: null → 3"),
        (r#"{"idempotency":true}"#, "idempotency: false → true"),
        (r#"{"growing_holds":true}"#, "growing_holds: false → true"),
        (r#"{"name":"build"}"#, r#"name: \"ci\" → \"build\""#),
        (
            r#"{"status":"disabled"}"#,
            r#"status: \"active\" → \"disabled\""#,
        ),
    ] {
        let (_, lines) = made(boris, patch, &path, body).await;
        audited(&lines, boris, "key.change", &[id, "account=acme", change]);
    }
    let levels = r#"{"levels_rub":["100","20"]}"#;
    let (_, lines) = made(boris, put, "accounts/acme/alerts", levels).await;
    let words = ["account=acme", r#"levels="100.00, 20.00""#];
    audited(&lines, boris, "account.alerts", &words);
    let (_, lines) = made(boris, put, &format!("{path}/alerts"), levels).await;
    audited(&lines, boris, "key.alerts", &[id, words[1]]);
    let (_, lines) = made(boris, &Method::DELETE, &path, "").await;
    let change = r#"status: \"disabled\" → \"deleted\""#;
    audited(&lines, boris, "key.delete", &[id, change]);
    let (_, lines) = made(boris, &Method::DELETE, group, "").await;
    let change = r#"status: \"active\" → \"removed\""#;
    audited(&lines, boris, "group.remove", &["group=ci", change]);

    let body = r#"{"account":"acme","amount_rub":"500"}"#;
    let (payment, lines) = made(anna, post, "payments", body).await;
    let intent = payment["id"].as_str().unwrap();
    let words = ["account=acme", intent, "amount_rub=500.00"];
    audited(&lines, anna, "payment.create", &words);
    assert_eq!(payment["by"], "anna");
    let (_, lines) = made(anna, post, &format!("payments/{intent}/check"), "").await;
    audited(&lines, anna, "payment.check", &[intent, r#"state="open""#]);

    let (_, lines) = made(boris, post, "receivers/crm/replays", r#"{"number":1}"#).await;
    let words = [r#"receiver="crm""#, "number=1", "replayed=Accepted"];
    audited(&lines, boris, "receiver.replay", &words);
    for (status, what) in [("stopped", "receiver.stop"), ("active", "receiver.resume")] {
        let body = format!(r#"{{"status":"{status}"}}"#);
        let (_, lines) = made(vera, patch, "receivers/crm", &body).await;
        audited(&lines, vera, what, &[r#"receiver="crm""#]);
    }
    let (_, lines) = made(vera, patch, "vendors/v", r#"{"status":"disabled"}"#).await;
    let change = r#"status: \"active\" → \"disabled\""#;
    audited(&lines, vera, "vendor.change", &[r#"vendor="v""#, change]);
    let (_, lines) = made(vera, post, "usage/rebuild", "").await;
    audited(&lines, vera, "usage.rebuild", &[]);
    let (_, lines) = made(anna, post, "audit", "").await;
    audited(&lines, anna, "audit", &["breaches=0"]);
    // The holder of the admin key has no name, so the log line has no name.
    let key = &Operator::default();
    let (_, lines) = made(key, post, "audit", "").await;
    audited(&lines, key, "audit", &["breaches=0"]);
    assert_eq!(key.name(), "admin");

    // Reads, and changes that conflict with the ledger's state, leave no line in the audit log. A request that the
    // operator's role does not allow leaves one.
    let looks = ["accounts", "accounts/acme", "accounts/acme/keys", "vendors"];
    for path in looks.into_iter().chain([path.as_str()]) {
        let (_, lines) = made(anna, &Method::GET, path, "").await;
        assert_eq!(lines, Vec::<String>::new(), "{path}");
    }
    let name = r#"{"name":"x"}"#;
    let (status, _) = asked_by(boris, &admin, Method::PATCH, &path, name).await;
    assert_eq!((status, log.take()), (409, Vec::new()));
    let (status, _) = asked_by(anna, &admin, Method::PATCH, &path, name).await;
    assert_eq!(status, 403);
    audited(&log.take(), anna, "admin.refused", &["PATCH", &path]);
}

/// Asserts that the audit log has one line, by this operator about this object, with these words.
fn audited(lines: &[String], who: &Operator, what: &str, words: &[&str]) {
    let [line] = lines else {
        panic!("{what}: {lines:?}");
    };
    let (who, what) = (
        format!("who=\"{}\"", who.name()),
        format!("what=\"{what}\""),
    );
    let always = ["audit: ", who.as_str(), what.as_str()];
    for word in always.iter().chain(words) {
        assert!(line.contains(word), "{word}: {line}");
    }
}

#[tokio::test]
async fn unknown_model_is_refused_with_a_suggestion() {
    let admin = admin();
    request(&admin, Method::POST, "accounts", r#"{"id":"acme"}"#).await;
    let keys = "accounts/acme/keys";
    for (models, says) in [
        (
            r#"["a-second","z-frist"]"#,
            r#"models[1]: the catalog has no model "z-frist"; did you mean "z-first"?"#,
        ),
        (
            r#"["gpt-5"]"#,
            r#"models[0]: the catalog has no model "gpt-5"; its models are z-first, a-second"#,
        ),
    ] {
        let body = format!(r#"{{"models":{models}}}"#);
        let (status, answer) = request(&admin, Method::POST, keys, &body).await;
        assert_eq!(status, 400, "{answer}");
        assert_eq!(answer["error"]["message"], says);
    }
    let (_, key) = request(&admin, Method::POST, keys, r#"{"models":["z-first"]}"#).await;
    let path = format!("keys/{}", key["id"].as_str().unwrap());
    let (status, _) = request(&admin, Method::PATCH, &path, r#"{"models":["x"]}"#).await;
    assert_eq!(status, 400);
    let (_, shown) = request(&admin, Method::GET, &path, "").await;
    assert_eq!(shown["models"], json!(["z-first"]));
}

#[tokio::test]
async fn ambiguous_request_head_is_refused_in_the_error_format_for_operators() {
    let admin = admin();
    let host = |host: &[&'static str]| {
        let mut req = Request::get("/livez").body(Full::default()).unwrap();
        for host in host {
            req.headers_mut()
                .append(header::HOST, header::HeaderValue::from_static(host));
        }
        req
    };
    let mut two_lengths = host(&["h"]);
    two_lengths
        .extensions_mut()
        .insert(FramingFault::TwoLengths);
    let mut bad_authority = host(&[]);
    *bad_authority.version_mut() = http::Version::HTTP_2;
    *bad_authority.uri_mut() = "http://a:b@h/livez".parse().unwrap();
    let mut other_authority = host(&["h"]);
    *other_authority.version_mut() = http::Version::HTTP_2;
    *other_authority.uri_mut() = "http://g/livez".parse().unwrap();
    for (req, says) in [
        (
            two_lengths,
            "content-length: is sent together with transfer-encoding: send only one of the two headers",
        ),
        (host(&[]), "host: HTTP/1.1 requires this header: send it"),
        (
            host(&["h", "h"]),
            "host: occurs twice: send this header once",
        ),
        (
            host(&["a b"]),
            "host: not a host: send a name, IPv4 or [IPv6], and :port where needed",
        ),
        (
            bad_authority,
            "host: not a host: send a name, IPv4 or [IPv6], and :port where needed",
        ),
        (
            other_authority,
            "host: differs from :authority: send only one of the two headers",
        ),
    ] {
        let Ok(res) = admin.clone().oneshot(req).await;
        assert_eq!(res.status(), 400, "{says}");
        let names: Vec<&HeaderName> = res.headers().keys().collect();
        assert_eq!(names, [header::CONTENT_TYPE, header::CACHE_CONTROL]);
        let body = res.into_body().collect().await.unwrap().to_bytes();
        let expected = format!(
            "{{\"error\":{{\"message\":\"{says}\",\"type\":\"invalid_request_error\",\"code\":\"\"}}}}"
        );
        assert_eq!(body, expected);
    }
}

#[tokio::test(flavor = "current_thread")]
async fn panicked_admin_request_returns_its_number_and_is_named_in_the_log() {
    let log = Log::listen();
    let broken = service_fn(async |req: Request<()>| {
        assert_ne!(req.uri().path(), "/call", "panicked on purpose");
        let pieces = futures_util::stream::repeat_with(|| panic!("panicked on purpose"));
        Ok::<_, Error>(Response::new(streamed(pieces)))
    });
    let service = ServiceBuilder::new()
        .layer(RequestNumberLayer::new())
        .layer(
            RespondLayer::new(Language::En)
                .shaped_by(OperatorsShape)
                .without_log(),
        )
        .layer(PanicsLayer::new().witnessed_by::<WhichCall>())
        .service(broken);

    let req = Request::get("/call").body(()).unwrap();
    let Ok(res) = service.clone().oneshot(req).await;
    assert_eq!(res.status(), 500);
    let number = res.headers()["x-request-id"].to_str().unwrap().to_owned();
    let body = res.into_body().collect().await.unwrap().to_bytes();
    let body: Value = serde_json::from_slice(&body).unwrap();
    let text = "an internal error of the gateway, and the change may have been made; see the gateway's log";
    assert_eq!(body["error"]["message"], format!("{text} ({number})"));
    let logged = |words: &[&str]| {
        let lines = log.take();
        let reported = lines
            .iter()
            .any(|line| words.iter().all(|word| line.contains(word)));
        assert!(reported, "{words:?}: {lines:?}");
    };
    logged(&[
        "the handler of an admin API request panicked",
        &number,
        "GET",
        "/call",
    ]);

    let req = Request::get("/body").body(()).unwrap();
    let Ok(res) = service.oneshot(req).await;
    assert_eq!(res.status(), 200);
    assert!(res.into_body().collect().await.is_err());
    logged(&[
        "the handler of an admin API request panicked",
        "GET",
        "/body",
    ]);
}
