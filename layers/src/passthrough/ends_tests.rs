//! Tests what the meter records for responses whose callers get an error.

use std::{io, sync::Arc};

use http::Uri;
use http_body_util::StreamBody;
use tower::{ServiceBuilder, ServiceExt};

use super::*;
use crate::{
    body,
    call::Format,
    model::{Route, Vendor},
    usage::{Attempted, Meter, Reading, Usage},
};

const BYTES_MAX: usize = 1 << 20;

/// Forwards this response. Returns what the meter recorded, and the error with which the call failed.
async fn read(format: Format, answer: impl Into<Bytes>, stream: bool) -> (Reading, Option<Error>) {
    let meter = Meter::default();
    let outbound = outbound(format, stream, &meter);
    let (answer, reported) = (answer.into(), meter.clone());
    let vendor = move |_: Request<Outbound>| {
        reported.dispatched();
        let mut res = Response::new(body::full(answer.clone()));
        let kind = if stream { EVENTS } else { JSON };
        res.headers_mut().insert(CONTENT_TYPE, kind);
        async { Ok::<_, BoxError>(res) }
    };
    let service = ServiceBuilder::new()
        .layer(PassthroughLayer::new(BYTES_MAX))
        .service_fn(vendor);
    let failure = match service.oneshot(Request::new(outbound)).await {
        Ok(res) => res.into_body().collect().await.err(),
        Err(error) => Some(error),
    };
    (meter.read(), failure)
}

/// Creates a request whose meter counts the first attempt of a call.
fn outbound(format: Format, stream: bool, meter: &Meter) -> Outbound {
    let endpoint = Uri::from_static("https://vendor.example/v1");
    let key = format.credential("our key").unwrap();
    let route = Arc::new(Route::new(
        Vendor::new("vendor", format, endpoint, key),
        "large-2",
    ));
    meter.attempt(Attempted {
        vendor: Arc::clone(&route.vendor.name),
        model: None,
        translated: false,
        outlives_client: false,
    });
    Outbound {
        route,
        credential: 0,
        body: "{}".into(),
        stream,
        choices: 1,
        kind: ModelKind::Chat,
        strip_usage: false,
        meter: meter.clone(),
    }
}

#[tokio::test]
async fn error_that_is_not_a_layer_error_becomes_an_internal_error() {
    for (stream, breaks) in [(false, false), (false, true), (true, false), (true, true)] {
        let vendor = move |_: Request<Outbound>| async move {
            if !breaks {
                return Err(io::Error::other("disk full"));
            }
            let frames = [Err::<http_body::Frame<Bytes>, _>(io::Error::other(
                "disk full",
            ))];
            let mut res = Response::new(StreamBody::new(futures_util::stream::iter(frames)));
            let kind = if stream { EVENTS } else { JSON };
            res.headers_mut().insert(CONTENT_TYPE, kind);
            Ok(res)
        };
        let service = ServiceBuilder::new()
            .layer(PassthroughLayer::new(BYTES_MAX))
            .service_fn(vendor);
        let outbound = outbound(Format::Chat, stream, &Meter::default());
        let failure = match service.oneshot(Request::new(outbound)).await {
            Ok(res) => res.into_body().collect().await.err(),
            Err(error) => Some(error),
        };
        let cause = failure.as_ref().and_then(std::error::Error::source);
        let cause = cause.map(ToString::to_string);
        assert!(matches!(failure, Some(Error::Internal(_))), "{failure:?}");
        assert_eq!(cause.as_deref(), Some("disk full"), "{stream} {breaks}");
    }
}

fn counted() -> Usage {
    Usage {
        input: 9,
        output: 5,
        ..Usage::default()
    }
}

#[tokio::test]
async fn usage_that_a_vendor_error_reports_is_charged() {
    let usage = r#""usage":{"input_tokens":9,"output_tokens":5}"#;
    let created = r#"data: {"type":"response.created","response":{"id":"resp_1"}}"#;
    for (format, answer, stream) in [
        (
            Format::Responses,
            format!(r#"{{"status":"failed",{usage}}}"#),
            false,
        ),
        (
            Format::Responses,
            format!(r#"{{"status":"cancelled",{usage}}}"#),
            false,
        ),
        (
            Format::Responses,
            format!(
                r#"{{"status":"failed","error":{{"code":"server_error","message":"x"}},{usage}}}"#
            ),
            false,
        ),
        (
            Format::Chat,
            r#"{"error":{"message":"x"},"usage":{"prompt_tokens":9,"completion_tokens":5}}"#
                .to_owned(),
            false,
        ),
        (
            Format::Responses,
            format!(
                "{created}\n\ndata: {{\"type\":\"response.failed\",\"response\":{{\"status\":\"failed\",{usage}}}}}\n\n"
            ),
            true,
        ),
    ] {
        let (reading, failure) = read(format, answer.clone(), stream).await;
        assert!(
            matches!(failure, Some(Error::VendorUnavailable(_))),
            "{answer} {failure:?}"
        );
        assert!(reading.dispatched, "{answer}");
        assert_eq!(reading.usage, Some(counted()), "{answer}");
        assert_eq!(reading.end, Some(End::VendorError), "{answer}");
    }
}

/// The caller's request may have caused the vendor's error. So the error must not open the route's breaker for other
/// callers.
#[tokio::test]
async fn error_event_that_the_request_may_have_caused_is_recorded_as_a_vendor_error() {
    let chat = |error: &str| {
        format!(
            "data: {{\"choices\":[{{\"delta\":{{\"content\":\"a\"}}}}]}}\n\ndata: {{\"error\":{error}}}\n\n"
        )
    };
    for error in [
        r#"{"code":400,"message":"bad"}"#,
        r#"{"code":429,"message":"slow down"}"#,
        r#"{"code":500,"message":"boom"}"#,
    ] {
        let (reading, failure) = read(Format::Chat, chat(error), true).await;
        assert!(failure.is_some(), "{error}");
        assert_eq!(reading.end, Some(End::VendorError), "{error} {failure:?}");
    }
}

/// In the Responses format, an error event may have usage too, which is charged. In the other formats, a stream that
/// begins with an error is a rejection, which is free even if it has usage.
#[tokio::test]
async fn stream_that_begins_with_an_error_counts_as_a_refusal_and_is_free() {
    for (format, answer) in [
        (
            Format::Chat,
            r#"data: {"error":{"message":"x"},"usage":{"prompt_tokens":9,"completion_tokens":5}}"#,
        ),
        (
            Format::Messages,
            r#"data: {"type":"error","error":{"message":"x"},"usage":{"input_tokens":9,"output_tokens":5}}"#,
        ),
    ] {
        let (reading, failure) = read(format, format!("{answer}\n\n"), true).await;
        assert!(failure.is_some(), "{answer}");
        assert_eq!(reading.usage, None, "{answer}");
    }
}

#[tokio::test]
async fn vendor_error_without_usage_is_free() {
    let created = r#"data: {"type":"response.created","response":{"id":"resp_1"}}"#;
    let zero = r#""usage":{"input_tokens":0,"output_tokens":0}"#;
    for (answer, stream) in [
        (r#"{"status":"failed","usage":null}"#.to_owned(), false),
        (format!(r#"{{"status":"failed",{zero}}}"#), false),
        (
            format!(
                "{created}\n\ndata: {{\"type\":\"response.failed\",\"response\":{{\"status\":\"failed\"}}}}\n\n"
            ),
            true,
        ),
        (
            format!(
                "{created}\n\ndata: {{\"type\":\"response.failed\",\"response\":{{\"status\":\"failed\",{zero}}}}}\n\n"
            ),
            true,
        ),
    ] {
        let (reading, failure) = read(Format::Responses, answer.clone(), stream).await;
        assert!(failure.is_some(), "{answer}");
        assert_eq!(reading.usage, None, "{answer}");
        assert!(!reading.answered, "{answer}");
    }
}

#[tokio::test]
async fn response_that_is_too_long_is_charged_although_it_is_not_delivered() {
    let long = "x".repeat(crate::sse::LINE_BYTES_MAX + 1);
    // The event is incomplete, but its received part is already longer than the maximum.
    let created =
        format!("data: {{\"type\":\"response.created\",\"response\":{{\"instructions\":\"{long}");
    let plain = format!("{{\"instructions\":\"{long}\"}}");
    for (answer, stream) in [(created, true), (plain, false)] {
        let (reading, failure) = read(Format::Responses, answer, stream).await;
        assert!(
            matches!(failure, Some(Error::AnswerTooLong(_))),
            "{failure:?}"
        );
        assert!(reading.dispatched && reading.answered, "stream = {stream}");
        assert_eq!(reading.end, Some(End::VendorCut));
    }
}

#[tokio::test]
async fn plain_response_dropped_at_any_await_releases_its_memory() {
    const ANSWER: &[u8] = br#"{"choices":[{"message":{"content":"Hello, and more"}}],"usage":{}}"#;
    let mut most = 0;
    for translated in [false, true] {
        for polls in 0..12 {
            let layer = PassthroughLayer::new(BYTES_MAX);
            let taken = layer.taken.clone();
            let service = layer.layer(tower::service_fn(|_: Request<Outbound>| async {
                tokio::task::yield_now().await;
                let pieces = ANSWER.chunks(16).map(Bytes::from_static);
                let pieces = futures_util::stream::unfold(pieces, async |mut pieces| {
                    tokio::task::yield_now().await;
                    let piece = pieces.next()?;
                    Some((Ok::<_, Error>(http_body::Frame::data(piece)), pieces))
                });
                let mut res = Response::new(Box::pin(StreamBody::new(pieces)));
                res.headers_mut().insert(CONTENT_TYPE, JSON);
                Ok::<_, Error>(res)
            }));
            let endpoint = Uri::from_static("https://vendor.example/v1");
            let key = Format::Chat.credential("our key").unwrap();
            let vendor = Vendor::new("vendor", Format::Chat, endpoint, key);
            let meter = Meter::default();
            meter.update(|reading| reading.translated = translated);
            let outbound = Outbound {
                route: Arc::new(Route::new(vendor, "large-2")),
                credential: 0,
                body: "{}".into(),
                stream: false,
                choices: 1,
                kind: ModelKind::Chat,
                strip_usage: false,
                meter,
            };
            let mut call = Box::pin(service.oneshot(Request::new(outbound)));
            let mut answer = None;
            for _ in 0..polls {
                let polled = std::future::poll_fn(|cx| Poll::Ready(call.as_mut().poll(cx))).await;
                if let Poll::Ready(res) = polled {
                    answer = Some(res.unwrap());
                    break;
                }
            }
            most = taken.taken().max(most);
            drop((call, answer));
            assert_eq!(taken.taken(), 0, "{polls}");
        }
    }
    assert_eq!(most, ANSWER.len() as u64, "some were dropped while read");
}
