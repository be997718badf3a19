//! Tests what the meter records if a response is too long to be translated.

use std::sync::Arc;

use http::Uri;
use tower::{ServiceBuilder, ServiceExt};

use super::*;
use crate::{
    body,
    call::{Operation, Priced},
    model::{Model, Route, Vendor},
    parse,
    price::{Price, PriceList},
    usage::{Reading, Usage},
};

/// Answers a Responses call with this response of a Chat Completions vendor. Returns what the meter recorded, and the
/// call's error.
async fn answered(answer: String, usage: Option<Usage>) -> (Reading, Option<Error>) {
    let endpoint = Uri::from_static("https://vendor.example/v1");
    let key = Format::Chat.credential("our key").unwrap();
    let vendor = Vendor::new("vendor", Format::Chat, endpoint, key);
    let route = Arc::new(Route::new(vendor, "large-2"));
    let body = Bytes::from_static(br#"{"model":"large","input":"Hello"}"#);
    let meter = Meter::default();
    let priced = Priced {
        call: Arc::new(parse::call(Operation::Responses, &body, 100).unwrap()),
        model: Arc::new(Model::new("large", 4096).route(Arc::clone(&route))),
        prices: PriceList::from(Price::default()),
        output_tokens: 100,
        meter: meter.clone(),
    };
    let vendor = move |req: Request<Outbound>| {
        // The layer below has read this usage from the vendor's bytes.
        req.body().meter.update(|reading| {
            reading.dispatched = true;
            reading.usage = usage;
            reading.end = Some(End::Finished);
        });
        let answer = answer.clone();
        async { Ok::<_, BoxError>(Response::new(body::full(answer))) }
    };
    let service = ServiceBuilder::new()
        .layer(TranslateLayer::new())
        .service_fn(vendor);
    let attempt = Attempt {
        priced,
        route,
        credential: 0,
    };
    let failure = service.oneshot(Request::new(attempt)).await.err();
    (meter.read(), failure)
}

#[tokio::test]
async fn response_with_too_many_tool_calls_is_charged() {
    let usage = Some(Usage {
        input: 9,
        output: 5,
        ..Usage::default()
    });
    let call = |n: usize| {
        format!(r#"{{"id":"c{n}","type":"function","function":{{"name":"f","arguments":"{{}}"}}}}"#)
    };
    let with = |calls: usize| {
        let calls = (0..calls).map(call).collect::<Vec<_>>().join(",");
        format!(
            r#"{{"id":"1","model":"m","choices":[{{"index":0,"finish_reason":"tool_calls","message":{{"role":"assistant","tool_calls":[{calls}]}}}}]}}"#
        )
    };
    let (reading, failure) = answered(with(1), usage).await;
    assert!(
        failure.is_none() && reading.end == Some(End::Finished),
        "{failure:?}"
    );
    let (reading, failure) = answered(with(5000), usage).await;
    assert!(
        matches!(failure, Some(Error::AnswerTooLong(_))),
        "{failure:?}"
    );
    assert!(reading.dispatched && reading.usage.is_some());
    assert_eq!(reading.end, Some(End::VendorCut));
    for (usage, end) in [(usage, Some(End::VendorCut)), (None, None)] {
        let (reading, failure) = answered(r#"{"choices":7}"#.to_owned(), usage).await;
        assert!(failure.is_some());
        assert_eq!((reading.usage, reading.end), (usage, end));
        assert_eq!(reading.dispatched, usage.is_some());
    }
}
