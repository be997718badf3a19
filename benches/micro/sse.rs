//! Measures how long the gateway works on a chunk of a stream before the chunk can be forwarded.
//!
//! Each line of the results is a Chat Completions stream of 100 events; criterion's `elem/s` are events per second. The
//! first lines measure the parts of passthrough. The next lines measure the response body with the whole layer, and the
//! same body without the layer. In lines named `cut`, each event begins in one chunk and ends in the next. This is the
//! only case in which bytes are copied. In lines named `in 1 KiB`, the stream is cut into chunks of that size, so that
//! most chunks end within an event and contain many complete events.

#[path = "../fixtures/mod.rs"]
mod fixtures;

use std::{
    hint::black_box,
    net::{Ipv4Addr, SocketAddr},
    pin::pin,
    sync::Arc,
};

use bytes::{Bytes, BytesMut};
use criterion::{BatchSize, BenchmarkGroup, Throughput, measurement::WallTime};
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
    translate::{Origin, RequestEcho, Translator, wire::AnswerCx},
    usage::Meter,
};
use tower::{Layer, ServiceExt};

use crate::fixtures::{
    Canned, EVENTS, answers::Answers, chat_events, config, layer_criterion, messages_events,
    one_thread, responses_events,
};

fn main() {
    let mut criterion = layer_criterion();
    let runtime = one_thread().expect("a runtime starts");
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

/// Splits the bytes into events, and reads the usage that the events contain.
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

/// Measures a stream that is translated to another format, from its first event to the events that the translation adds
/// at its end.
fn translation(
    group: &mut BenchmarkGroup<'_, WallTime>,
    name: &str,
    chunks: &[Bytes],
    translator: impl Fn() -> Translator,
) {
    group.bench_function(format!("splitter and translation {name}"), |bencher| {
        bencher.iter(|| {
            let mut events = translator();
            let mut out = BytesMut::new();
            split(chunks, |event| {
                events.event(&event, &mut out).expect("a good event")
            });
            events.end(&mut out).expect("a whole stream");
            black_box(out)
        });
    });
}

fn to_chat(vendor: Format) -> Translator {
    Translator::to_chat(vendor, Origin::default(), ANSWER, false)
}

fn to_messages(vendor: Format) -> Translator {
    Translator::to_messages(vendor, Origin::default(), ANSWER, false)
}

/// Measures the translation of a Chat Completions vendor's chunks for callers of the other formats. In the Responses
/// format, the last event repeats the whole response.
fn translated(group: &mut BenchmarkGroup<'_, WallTime>, name: &str, chunks: &[Bytes]) {
    let messages = format!("to messages, {name}");
    translation(group, &messages, chunks, || to_messages(Format::Chat));
    let (responses, requested) = (format!("to responses, {name}"), requested());
    translation(group, &responses, chunks, || {
        Translator::to_responses(Format::Chat, requested.clone(), false)
    });
}

/// Measures the translation of streams whose vendors use the other formats. All streams have the same number of events.
fn from_others(group: &mut BenchmarkGroup<'_, WallTime>) {
    let (chunks, requested) = (messages_events(), requested());
    let name = |way: &str| format!("{way}, a chunk an event");
    translation(group, &name("to chat"), &chunks, || {
        to_chat(Format::Messages)
    });
    translation(group, &name("from messages to responses"), &chunks, || {
        Translator::to_responses(Format::Messages, requested.clone(), false)
    });
    let chunks = responses_events();
    translation(group, &name("from responses to chat"), &chunks, || {
        to_chat(Format::Responses)
    });
    translation(group, &name("from responses to messages"), &chunks, || {
        to_messages(Format::Responses)
    });
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

/// Measures the body that a caller's connection polls: once if the usage chunk is forwarded, and once if it is removed.
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
                // The measured time includes the response's head, because the head is returned only together with the
                // first frame.
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

/// A streamed call to a Chat Completions vendor, in the form in which the passthrough layer receives it.
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

/// Cuts the stream in the middle of each event, so that a chunk contains the end of one event and the beginning of the
/// next.
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

/// Cuts the stream into chunks of 1 KiB, regardless of where events end.
fn in_pieces() -> Vec<Bytes> {
    let stream = chat_events().concat();
    stream.chunks(1024).map(Bytes::copy_from_slice).collect()
}
