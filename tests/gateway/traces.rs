//! Tests of the spans that a collector receives: their content, the callers' traces that they join, and a collector
//! that does not respond, which must not delay calls.

use std::sync::atomic::{AtomicUsize, Ordering};

use futures_util::{StreamExt, stream};
use http::{HeaderValue, Request};
use tokio::{net::TcpListener, time::timeout};
use tollgate::demo::vendor::{Received, ScriptedVendor};

use crate::{prelude::*, secrets::has_secret};

const PARENT: &str = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";

/// Starts a collector that accepts every export.
async fn collector() -> ScriptedVendor {
    let collector = ScriptedVendor::start().await.unwrap();
    collector.script(|_| Reply::json(200, &json!({})));
    collector
}

/// Starts a gateway that exports its spans to this collector.
async fn traced(collector: &str) -> World {
    let section = format!(
        "[traces]\nurl = \"http://{collector}/v1/traces\"\n\
         headers = {{ authorization = \"${{VENDOR_KEY}}\" }}\n[ledger]"
    );
    Setup::default().edit("[ledger]", &section).start().await
}

/// Returns the spans in the exports that a collector has received.
fn spans_in(received: &[Received]) -> Vec<Value> {
    let mut spans = Vec::new();
    for one in received {
        let body = one.json();
        for resource in body["resourceSpans"].as_array().unwrap() {
            for scope in resource["scopeSpans"].as_array().unwrap() {
                spans.extend(scope["spans"].as_array().unwrap().iter().cloned());
            }
        }
    }
    spans
}

/// Stops the gateway. Returns all spans that the collector has received.
async fn spans(world: World, collector: &ScriptedVendor) -> Vec<Value> {
    world.gateway.drain().await.unwrap();
    spans_in(&collector.received())
}

/// Returns the span of a request, and the spans of the request's attempts at vendors.
fn of_call<'s>(spans: &'s [Value], answer: &Answer) -> (&'s Value, Vec<&'s Value>) {
    let is_its = |span: &&Value| attribute(span, "tollgate.request_number") == answer.number();
    let requests: Vec<_> = spans.iter().filter(is_its).collect();
    let [request] = requests[..] else {
        panic!("{} spans of {}", requests.len(), answer.number());
    };
    let attempts = spans
        .iter()
        .filter(|span| span["parentSpanId"] == request["spanId"])
        .collect();
    (request, attempts)
}

/// Returns the value of a span's attribute, of any type; null if the span does not have the attribute.
fn attribute(span: &Value, key: &str) -> Value {
    let attributes = span["attributes"].as_array().unwrap();
    let found = attributes.iter().find(|attribute| attribute["key"] == key);
    let value = found.and_then(|found| found["value"].as_object()?.values().next());
    value.cloned().unwrap_or_default()
}

fn nanos(span: &Value, field: &str) -> u64 {
    span[field].as_str().unwrap().parse().unwrap()
}

/// Adds a header to a request.
fn headed<B>(mut req: Request<B>, name: &'static str, value: &str) -> Request<B> {
    let value = HeaderValue::from_str(value).unwrap();
    req.headers_mut().insert(name, value);
    req
}

/// Makes a call without a key, which the gateway refuses.
async fn refused(world: &World) -> Answer {
    let body = chat_body("x").to_string();
    let headers = [("content-type", "application/json")];
    let url = world.url(Op::Chat.path());
    world
        .ask(request(Method::POST, &url, &headers, body.into()))
        .await
}

async fn dropped(world: &World) -> u64 {
    let scrape = world.admin_get("/metrics").await.text();
    let mut lines = scrape.lines();
    let count = lines.find_map(|line| line.strip_prefix("tollgate_traces_dropped_total "));
    count.unwrap().parse().unwrap()
}

#[tokio::test]
async fn call_and_vendor_attempt_are_separate_spans() {
    let collector = collector().await;
    let world = traced(&collector.address().to_string()).await;
    let key = world.key().await;
    let mut calls = Vec::new();
    for op in BOTH {
        for stream in [false, true] {
            if stream {
                world.vendor_sends(Reply::stream(events(op, &["a reply"], 9, 2)));
            } else {
                world.vendor_sends(plain_reply(op, "a reply", 9, 2));
            }
            let body = with(op.body("a prompt"), json!({ "stream": stream }));
            let answer = op.call(&world, &key, &body).await.expect(200);
            calls.push((op, stream, answer));
        }
    }
    world.settled(&key).await;
    let vendor = world.vendor.address();
    let spans = spans(world, &collector).await;
    assert_eq!(spans.len(), 8, "{spans:#?}");
    for (op, stream, answer) in calls {
        let (request, attempts) = of_call(&spans, &answer);
        assert_eq!(request["traceId"], answer.number().replace('-', ""));
        assert_eq!(request["parentSpanId"], Value::Null);
        assert_eq!(request["kind"], 2);
        assert_eq!(request["name"], format!("POST {}", op.path()));
        assert_eq!(request["status"], json!({}));
        let charged = match op {
            Op::Chat => "0.0013",
            Op::Messages => "0.013",
        };
        for (name, expected) in [
            ("http.route", json!(op.path())),
            ("http.response.status_code", json!("200")),
            ("gen_ai.request.model", json!(op.model())),
            ("gen_ai.usage.input_tokens", Value::Null),
            ("tollgate.account", json!("acme")),
            ("tollgate.end", json!("finished")),
            ("tollgate.estimated", json!(false)),
            ("tollgate.charged_rub", json!(charged)),
            ("error.type", Value::Null),
        ] {
            assert_eq!(attribute(request, name), expected, "{name}: {request:#}");
        }
        let prefix = attribute(request, "tollgate.key.prefix");
        let prefix = prefix.as_str().unwrap();
        assert!(prefix.starts_with(&key.secret[..9]), "{prefix}");
        assert!(prefix.len() < key.secret.len(), "{prefix}");

        let [attempt] = attempts[..] else {
            panic!("{attempts:#?}");
        };
        assert_eq!(attempt["traceId"], request["traceId"]);
        assert_ne!(attempt["spanId"], request["spanId"]);
        assert_eq!(attempt["kind"], 3);
        assert_eq!(attempt["name"], format!("chat {}", op.vendor_model()));
        for (name, expected) in [
            ("gen_ai.operation.name", json!("chat")),
            (
                "gen_ai.provider.name",
                json!(format!("{}-vendor", op.model())),
            ),
            ("gen_ai.request.model", json!(op.vendor_model())),
            ("gen_ai.request.stream", json!(stream)),
            ("gen_ai.request.max_tokens", json!("100")),
            ("gen_ai.usage.input_tokens", json!("9")),
            ("gen_ai.usage.output_tokens", json!("2")),
            ("server.address", json!(vendor.ip().to_string())),
            ("server.port", json!(vendor.port().to_string())),
            ("error.type", Value::Null),
        ] {
            assert_eq!(attribute(attempt, name), expected, "{name}: {attempt:#}");
        }
        let times = [
            nanos(request, "startTimeUnixNano"),
            nanos(attempt, "startTimeUnixNano"),
            nanos(attempt, "endTimeUnixNano"),
            nanos(request, "endTimeUnixNano"),
        ];
        assert!(times.is_sorted() && times[0] < times[3], "{times:?}");
    }
    assert_nothing_is_told(&collector, &key);
}

/// Checks that the exports contain no content of calls, and no secret except the header for the collector itself.
fn assert_nothing_is_told(collector: &ScriptedVendor, key: &Key) {
    let received = collector.received();
    assert!(!received.is_empty());
    for one in received {
        assert_eq!(one.path, "/v1/traces");
        assert_eq!(one.headers["content-type"], "application/json");
        assert_eq!(one.headers["authorization"], VENDOR_KEY);
        let sent = one.json();
        let resource = &sent["resourceSpans"][0]["resource"];
        assert_eq!(attribute(resource, "service.name"), "tollgate");
        let body = String::from_utf8(one.body.to_vec()).unwrap();
        assert!(!has_secret(&body) && !body.contains(&key.secret), "{body}");
        for reported in ["a prompt", "a reply", "out of order"] {
            assert!(!body.contains(reported), "{body}");
        }
    }
}

#[tokio::test]
async fn call_joins_the_callers_trace_and_the_vendor_gets_no_trace_headers() {
    let collector = collector().await;
    let world = traced(&collector.address().to_string()).await;
    let key = world.key().await;
    let ask = async |traceparent: &str| {
        let req = world.chat_request(&key, &chat_body("x"));
        let req = headed(req, "traceparent", traceparent);
        world.ask(headed(req, "tracestate", "a=b")).await
    };
    let joined = ask(PARENT).await;
    let alone = ask("rubbish").await;
    let unkept = ask(&PARENT.replace("-01", "-00")).await;
    for answer in [&joined, &alone, &unkept] {
        assert_eq!(answer.status, 200, "{answer:?}");
    }
    world.settled(&key).await;
    for received in world.vendor.received() {
        let headers = received.headers;
        assert!(!headers.contains_key("traceparent"), "{headers:?}");
        assert!(!headers.contains_key("tracestate"), "{headers:?}");
    }
    let spans = spans(world, &collector).await;
    assert_eq!(spans.len(), 4, "{spans:#?}");
    let (request, attempts) = of_call(&spans, &joined);
    assert_eq!(request["parentSpanId"], "00f067aa0ba902b7");
    for span in attempts.into_iter().chain([request]) {
        assert_eq!(span["traceId"], "4bf92f3577b34da6a3ce929d0e0e4736");
    }
    let (request, _) = of_call(&spans, &alone);
    assert_eq!(request["traceId"], alone.number().replace('-', ""));
    let number = unkept.number();
    assert!(!format!("{spans:?}").contains(&number), "{number}");
}

#[tokio::test]
async fn refused_and_failed_calls_have_their_code_in_the_span() {
    let collector = collector().await;
    let world = traced(&collector.address().to_string()).await;
    let key = world.key().await;
    let unknown = with(chat_body("a prompt"), json!({ "model": "x".repeat(100) }));
    let unknown = world.chat(&key, &unknown).await;
    let no_key = refused(&world).await;
    world.vendor_sends(refusal(500, "out of order"));
    let failed = world.chat(&key, &chat_body("a prompt")).await;
    world.settled(&key).await;
    let spans = spans(world, &collector).await;
    for (answer, status, code, is_error) in [
        (&no_key, 401, "invalid_api_key", false),
        (&unknown, 503, "model_not_found", true),
        (&failed, 503, "vendor_unavailable", true),
    ] {
        assert_eq!(answer.status, status, "{answer:?}");
        let (request, attempts) = of_call(&spans, answer);
        assert_eq!(attribute(request, "error.type"), code, "{request:#}");
        assert_eq!(
            attribute(request, "http.response.status_code"),
            status.to_string()
        );
        let expected = if is_error {
            json!({ "code": 2 })
        } else {
            json!({})
        };
        assert_eq!(request["status"], expected, "{request:#}");
        assert_eq!(attribute(request, "tollgate.charged_rub"), Value::Null);
        assert_eq!(attempts.is_empty(), answer.number() != failed.number());
        for attempt in attempts {
            assert_eq!(attempt["status"], json!({ "code": 2 }), "{attempt:#}");
            assert!(attribute(attempt, "error.type").is_string(), "{attempt:#}");
            assert_eq!(
                attribute(attempt, "gen_ai.usage.output_tokens"),
                Value::Null
            );
        }
    }
    let (request, _) = of_call(&spans, &failed);
    assert_eq!(attribute(request, "tollgate.end"), "released");
    let (request, _) = of_call(&spans, &unknown);
    let model = attribute(request, "gen_ai.request.model");
    assert_eq!(model.as_str().map(str::len), Some(64), "{model}");
    assert_nothing_is_told(&collector, &key);
}

#[tokio::test]
async fn rejected_batch_of_spans_is_sent_again() {
    let collector = ScriptedVendor::start().await.unwrap();
    let requested = AtomicUsize::new(0);
    collector.script(move |_| {
        let first = requested.fetch_add(1, Ordering::SeqCst) == 0;
        Reply::json(if first { 503 } else { 200 }, &json!({}))
    });
    let world = traced(&collector.address().to_string()).await;
    let answer = refused(&world).await;
    let received = eventually("it is sent again", async || {
        let received = collector.received();
        (received.len() == 2).then_some(received)
    })
    .await;
    assert_eq!(received[0].body, received[1].body);
    of_call(&spans_in(&received[1..]), &answer);
    assert_eq!(dropped(&world).await, 0);
}

#[tokio::test]
async fn permanently_rejected_batch_of_spans_is_dropped_and_counted() {
    let collector = ScriptedVendor::start().await.unwrap();
    collector.script(|_| Reply::json(400, &json!({})));
    let world = traced(&collector.address().to_string()).await;
    refused(&world).await;
    eventually("it is counted", async || {
        (dropped(&world).await == 1).then_some(())
    })
    .await;
    assert_eq!(collector.received().len(), 1);
}

#[tokio::test]
async fn hanging_trace_collector_delays_neither_calls_nor_shutdown() {
    /// This number of calls makes more spans than fit into the queue and one batch.
    const CALLS: usize = 2_700;
    // The listener never accepts these connections: the kernel completes them, but no process reads from them.
    let silent = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let world = traced(&silent.local_addr().unwrap().to_string()).await;
    let key = world.key().await;
    stream::iter(0..CALLS)
        .for_each_concurrent(32, |_| async {
            assert_eq!(refused(&world).await.status, 401);
        })
        .await;
    eventually("the queue was full", async || {
        (dropped(&world).await > 0).then_some(())
    })
    .await;
    let call = timeout(Duration::from_secs(2), world.chat(&key, &chat_body("x"))).await;
    assert_eq!(call.unwrap().status, 200);
    world.settled(&key).await;
    let stop = timeout(Duration::from_secs(15), world.gateway.drain()).await;
    stop.unwrap().unwrap();
}
