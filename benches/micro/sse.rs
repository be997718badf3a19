//! Measures the time that a streamed chunk takes in the gateway before it can be forwarded.
//!
//! Each line is a chat stream of 100 events; criterion's `elem/s` are events per second. The first lines are the parts
//! of passthrough. Then come the answer body with the whole layer, and the same body without the layer. `cut`: each
//! event begins in one chunk and ends in the next, the only case in which bytes are copied. `in 1 KiB`: the stream is
//! cut into chunks of that size, so that most chunks end within an event and contain many whole events.

#[path = "../fixtures/mod.rs"]
mod fixtures;

use std::{
    hint::black_box,
    net::{Ipv4Addr, SocketAddr},
    pin::pin,
    sync::Arc,
    time::Duration,
};

use bytes::{Bytes, BytesMut};
use criterion::{BatchSize, BenchmarkGroup, Criterion, Throughput, measurement::WallTime};
use http::Request;
use http_body::Body;
use http_body_util::BodyExt;
use tokio::runtime::Runtime;
use tollgate_layers::{
    Error,
    call::{Format, Outbound},
    facts::RequestNumber,
    model::ModelKind,
    passthrough::{PassthroughLayer, usage::Reader},
    sse::{Event, Splitter},
    translate::{
        Origin, chat, messages,
        responses::{ChatEvents, IntoChat, IntoMessages, MessagesEvents, RequestEcho},
        wire::AnswerCx,
    },
    usage::Meter,
};
use tower::{Layer, ServiceExt};

use crate::fixtures::{
    Canned, EVENTS, answers::Answers, chat_events, config, messages_events, responses_events,
};

fn main() {
    let mut criterion = Criterion::default()
        .sample_size(50)
        .warm_up_time(Duration::from_millis(300))
        .measurement_time(Duration::from_secs(1))
        .configure_from_args();
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .expect("a runtime starts");
    let mut group = criterion.benchmark_group("sse");
    group.throughput(Throughput::Elements(EVENTS as u64));
    for (name, chunks) in [
        ("one chunk", one_chunk()),
        ("a chunk an event", chat_events()),
        ("cut", cut()),
        ("in 1 KiB", in_pieces()),
    ] {
        splitter(&mut group, name, &chunks);
        reader(&mut group, name, &chunks);
        passthrough(&mut group, &runtime, name, &chunks);
        translated(&mut group, name, &chunks);
    }
    from_others(&mut group);
    group.finish();
    criterion.final_summary();
}

// --- what is timed ---

fn splitter(group: &mut BenchmarkGroup<'_, WallTime>, name: &str, chunks: &[Bytes]) {
    group.bench_function(format!("splitter, {name}"), |bencher| {
        bencher.iter(|| split(chunks, |event| drop(black_box(event))));
    });
}

/// Splits the bytes into events, and reads their usage.
fn reader(group: &mut BenchmarkGroup<'_, WallTime>, name: &str, chunks: &[Bytes]) {
    group.bench_function(format!("splitter and usage, {name}"), |bencher| {
        bencher.iter(|| {
            let mut reader = Reader::new(Format::Chat);
            split(chunks, |event| drop(black_box(reader.event(&event))));
            assert!(reader.finished(), "the stream was not read to its end");
            reader.usage()
        });
    });
}

const ANSWER: AnswerCx = AnswerCx {
    created: 1_790_000_000,
    usage_asked: true,
    thinking_asked: true,
};

/// Measures a stream translated to another format, from its first event to the events added at its end.
macro_rules! translation {
    ($group:expr, $to:literal, $name:expr, $chunks:expr, $events:expr) => {
        $group.bench_function(
            format!("splitter and translation {}, {}", $to, $name),
            |bencher| {
                bencher.iter(|| {
                    let mut events = $events;
                    let mut out = BytesMut::new();
                    split($chunks, |event| {
                        events.event(&event, &mut out).expect("a good event")
                    });
                    events.end(&mut out).expect("a whole stream");
                    black_box(out)
                });
            },
        )
    };
}

/// Translates chunks of a chat vendor for callers of the other formats. The responses format repeats the whole answer
/// at its end.
fn translated(group: &mut BenchmarkGroup<'_, WallTime>, name: &str, chunks: &[Bytes]) {
    translation!(
        group,
        "to messages",
        name,
        chunks,
        messages::Events::new(Origin::default(), ANSWER)
    );
    let requested = requested();
    translation!(
        group,
        "to responses",
        name,
        chunks,
        ChatEvents::new(requested.clone())
    );
}

/// Translates streams of vendors of the other formats, with the same number of events.
fn from_others(group: &mut BenchmarkGroup<'_, WallTime>) {
    const EACH: &str = "a chunk an event";
    let chunks = messages_events();
    translation!(group, "to chat", EACH, &chunks, chat::Events::new(ANSWER));
    let requested = requested();
    translation!(
        group,
        "from messages to responses",
        EACH,
        &chunks,
        MessagesEvents::new(requested.clone())
    );
    let chunks = responses_events();
    translation!(
        group,
        "from responses to chat",
        EACH,
        &chunks,
        IntoChat::new(Origin::default(), ANSWER)
    );
    translation!(
        group,
        "from responses to messages",
        EACH,
        &chunks,
        IntoMessages::new(Origin::default(), ANSWER)
    );
}

fn requested() -> RequestEcho {
    let number = RequestNumber::now_v7().uuid().simple();
    let body = br#"{"model":"m","input":"x","stream":true}"#;
    RequestEcho::read(body, number, ANSWER.created, "vendor").expect("it is a request")
}

fn split(chunks: &[Bytes], mut each: impl FnMut(Event)) {
    let mut splitter = Splitter::default();
    for chunk in chunks {
        splitter
            .push(chunk, &mut each)
            .expect("no event of the bench is too long");
    }
}

/// Measures the body that a caller's connection polls: once with the usage chunk forwarded, once with it taken out.
fn passthrough(
    group: &mut BenchmarkGroup<'_, WallTime>,
    runtime: &Runtime,
    name: &str,
    chunks: &[Bytes],
) {
    let answers = Answers::stream(chunks);
    let layer = PassthroughLayer::new(1 << 20);
    for (how, strip_usage) in [("as it is", false), ("usage taken out", true)] {
        let outbound = outbound(strip_usage);
        group.bench_function(format!("passthrough {how}, {name}"), |bencher| {
            bencher.iter_batched(
                || (layer.layer(answers.clone()), Request::new(outbound.clone())),
                // The time includes the answer's head, which is returned only together with the first frame.
                |(service, req)| {
                    runtime.block_on(async {
                        let res = service.oneshot(req).await;
                        read(res.expect("the bench's own answer is one").into_body()).await;
                    });
                },
                BatchSize::SmallInput,
            );
        });
    }
    group.bench_function(format!("nothing, {name}"), |bencher| {
        bencher.iter_batched(
            || answers.body(),
            |body| runtime.block_on(read(body)),
            BatchSize::SmallInput,
        );
    });
}

async fn read<A: Body<Data = Bytes, Error = Error>>(body: A) {
    let mut body = pin!(body);
    while let Some(frame) = body.frame().await {
        black_box(frame.expect("the bench's own stream does not fail"));
    }
}

/// A streamed call, as the passthrough layer gets it, to a chat vendor.
fn outbound(strip_usage: bool) -> Outbound {
    let nowhere = SocketAddr::from((Ipv4Addr::LOCALHOST, 9));
    let models = config(nowhere, "memory:").live.models;
    let model = models
        .iter()
        .find(|model| model.id == Canned::Stream.name())
        .expect("the config has it");
    Outbound {
        route: Arc::clone(&model.routes[0]),
        credential: 0,
        body: Bytes::new().into(),
        stream: true,
        choices: 1,
        kind: ModelKind::Chat,
        strip_usage,
        meter: Meter::default(),
    }
}

// --- the stream in different chunks ---

fn one_chunk() -> Vec<Bytes> {
    vec![chat_events().concat().into()]
}

/// The stream in chunks that end in the middle of each event, so that a chunk has the end of one event and the
/// beginning of the next.
fn cut() -> Vec<Bytes> {
    let mut chunks = Vec::new();
    let mut begun = BytesMut::new();
    for event in chat_events() {
        let middle = event.len() / 2;
        begun.extend_from_slice(&event[..middle]);
        chunks.push(begun.split().freeze());
        begun.extend_from_slice(&event[middle..]);
    }
    chunks.push(begun.freeze());
    chunks
}

/// The stream in chunks of 1 KiB, regardless of where events end.
fn in_pieces() -> Vec<Bytes> {
    let stream = chat_events().concat();
    stream.chunks(1024).map(Bytes::copy_from_slice).collect()
}
