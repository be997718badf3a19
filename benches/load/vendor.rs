//! A vendor with its answers ready. Its CPU time is not counted, but it takes it from the same cores,
//! so it does as little as it can.

use std::{
    convert::Infallible,
    sync::Arc,
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use bytes::Bytes;
use futures_util::{Stream, StreamExt, stream};
use http::{HeaderValue, Request, Response, StatusCode, header::CONTENT_TYPE};
use http_body::Frame;
use http_body_util::{BodyExt, Full, StreamBody, combinators::UnsyncBoxBody};
use hyper::body::Incoming;
use tokio::{runtime, time::interval};

use crate::{
    fixtures::{Canned, chat_answer, chat_events, closing_events, messages_answer, stamped_event},
    role,
};

/// Chunks of a stream with a pace, the closing ones apart, and how often they come.
const DRIP_CHUNKS: usize = 10;
const DRIP_EVERY: Duration = Duration::from_millis(5);

type AnswerBody = UnsyncBoxBody<Bytes, Infallible>;
type Chunk = Result<Frame<Bytes>, Infallible>;

/// Runs the vendor, on one thread.
pub(crate) fn play() -> anyhow::Result<()> {
    role::play(&mut runtime::Builder::new_current_thread(), async {
        let (listener, address) = role::listen().await?;
        let ready = Arc::new(Ready {
            plain: chat_answer(400),
            messages: messages_answer(400),
            stream: chat_events().into(),
        });
        role::say("address", &address);
        role::ready();
        let answer = move |req| answer(Arc::clone(&ready), req);
        tokio::select! {
            served = role::serve(listener, answer) => served,
            () = role::until_told_to_stop() => Ok(()),
        }
    })
}

/// Answers that are not made anew.
struct Ready {
    plain: Bytes,
    messages: Bytes,
    stream: Arc<[Bytes]>,
}

async fn answer(
    ready: Arc<Ready>,
    req: Request<Incoming>,
) -> Result<Response<AnswerBody>, Infallible> {
    let model = req.uri().path().split('/').nth(1).unwrap_or_default();
    let canned = Canned::ALL
        .into_iter()
        .find(|canned| canned.name() == model);
    // A connection is used again only when the request was read to its end.
    let mut body = req.into_body();
    while let Some(Ok(_)) = body.frame().await {}

    let (content_type, body) = match canned {
        Some(Canned::Plain) => ("application/json", whole(&ready.plain)),
        Some(Canned::Messages) => ("application/json", whole(&ready.messages)),
        Some(Canned::Stream) => (
            "text/event-stream",
            StreamBody::new(back_to_back(Arc::clone(&ready.stream))).boxed_unsync(),
        ),
        Some(Canned::Drip) => ("text/event-stream", StreamBody::new(drip()).boxed_unsync()),
        None => {
            let mut res = Response::new(whole(&Bytes::from_static(b"no such answer")));
            *res.status_mut() = StatusCode::NOT_FOUND;
            return Ok(res);
        }
    };
    let mut res = Response::new(body);
    res.headers_mut()
        .insert(CONTENT_TYPE, HeaderValue::from_static(content_type));
    Ok(res)
}

fn whole(bytes: &Bytes) -> AnswerBody {
    Full::new(bytes.clone()).boxed_unsync()
}

fn back_to_back(chunks: Arc<[Bytes]>) -> impl Stream<Item = Chunk> {
    stream::iter((0..chunks.len()).map(move |index| Chunk::Ok(Frame::data(chunks[index].clone()))))
}

fn drip() -> impl Stream<Item = Chunk> {
    let begin = (0, interval(DRIP_EVERY));
    let paced = stream::unfold(begin, |(index, mut ticks)| async move {
        if index == DRIP_CHUNKS {
            return None;
        }
        ticks.tick().await;
        let chunk = stamped_event(index, unix_ns());
        Some((Chunk::Ok(Frame::data(chunk)), (index + 1, ticks)))
    });
    paced.chain(stream::iter(
        closing_events().map(|chunk| Chunk::Ok(Frame::data(chunk))),
    ))
}

/// The one clock that two processes share.
pub(crate) fn unix_ns() -> u64 {
    let since_epoch = SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .unwrap_or_default();
    u64::try_from(since_epoch.as_nanos()).unwrap_or(u64::MAX)
}
