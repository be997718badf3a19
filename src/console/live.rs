//! Live numbers of the overview page: while the page is open, the gateway sends this node's counters at intervals.
//!
//! A script shows the numbers on the page. Without scripts, the page shows the numbers at the time when it was
//! rendered.

use std::time::Duration;

use bytes::Bytes;
use futures_util::stream;
use http::{HeaderValue, Response, header};
use tollgate_layers::error::BoxError;

use super::{Answer, api::Api};
use crate::admin::{Refusal, streamed};

pub(super) const SCRIPT: &str = include_str!("live.js");

/// The interval at which the numbers are sent.
const EVERY: Duration = Duration::from_secs(2);
/// The number of events after which the stream ends: a quarter of an hour at one event per `EVERY`. Without this limit,
/// a page that is left open would keep its session open for ever.
const TIMES_MAX: u32 = 450;

/// Returns a stream of counters that continues while `is_in` returns true, which means that the operator is still
/// signed in. The stream does not count as activity of the session.
pub(super) fn answer(api: Api, is_in: impl Fn() -> bool + Send + 'static) -> Answer {
    let events = stream::unfold((api, is_in, 0), |(api, is_in, message_page)| async move {
        if message_page > TIMES_MAX {
            return None;
        }
        if message_page > 0 {
            tokio::time::sleep(EVERY).await;
        }
        if message_page == TIMES_MAX || !is_in() {
            // After this event, the script does not reconnect.
            let last = Bytes::from_static(b"event: end\ndata:\n\n");
            return Some((Ok(last), (api, is_in, TIMES_MAX + 1)));
        }
        let event = match told_now(&api).await {
            Ok(event) => Ok(event),
            Err(error) => Err(BoxError::from(error.to_string())),
        };
        Some((event, (api, is_in, message_page + 1)))
    });
    let mut res = Response::new(streamed(events));
    let kind = HeaderValue::from_static("text/event-stream");
    res.headers_mut().insert(header::CONTENT_TYPE, kind);
    res
}

async fn told_now(api: &Api) -> Result<Bytes, Refusal> {
    let counters = api.counters().await?;
    let counters = serde_json::to_string(&counters).map_err(Refusal::fault)?;
    Ok(format!("data: {counters}\n\n").into())
}

#[cfg(test)]
mod tests {
    use std::sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    };

    use futures_util::future::BoxFuture;
    use http::Request;
    use http_body_util::BodyExt;
    use tollgate_layers::body::full;
    use tower::service_fn;

    use super::*;
    use crate::{
        edge::{body_limit::UnreadBody, router::from_boxed},
        operators::Operator,
    };

    fn api() -> Api {
        let service = service_fn(|_: Request<UnreadBody>| {
            let text = "tollgate_in_flight 3\n";
            let res = Response::new(full(text));
            let answer: BoxFuture<'static, Result<Answer, Refusal>> =
                Box::pin(std::future::ready(Ok(res)));
            answer
        });
        Api::new(from_boxed(service), Operator::default())
    }

    async fn next(answer: &mut Answer) -> Option<String> {
        let frame = answer.body_mut().frame().await?.unwrap();
        let bytes = frame.into_data().unwrap();
        Some(String::from_utf8(bytes.to_vec()).unwrap())
    }

    #[tokio::test(start_paused = true)]
    async fn live_numbers_are_sent_until_sign_out() {
        let is_in = Arc::new(AtomicBool::new(true));
        let requested = Arc::clone(&is_in);
        let mut answer = answer(api(), move || requested.load(Ordering::Relaxed));
        for _ in 0..3 {
            let event = next(&mut answer).await.unwrap();
            assert!(
                event.starts_with("data: {") && event.contains("\"in_flight\":3"),
                "{event}"
            );
        }
        is_in.store(false, Ordering::Relaxed);
        assert!(next(&mut answer).await.unwrap().starts_with("event: end\n"));
        assert_eq!(next(&mut answer).await, None);
    }

    #[tokio::test(start_paused = true)]
    async fn stream_of_live_numbers_ends_after_its_maximum_number_of_events() {
        let mut answer = answer(api(), || true);
        let mut events = 0;
        while next(&mut answer).await.is_some() {
            events += 1;
        }
        assert_eq!(events, TIMES_MAX + 1);
    }
}
