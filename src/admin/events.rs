//! Endpoints for events: in pages, or as a stream.

use std::{sync::Arc, time::Duration};

use bytes::Bytes;
use futures_util::{Stream, stream};
use http::{HeaderMap, header};
use serde::Serialize;
use tollgate_layers::error::BoxError;
use tollgate_ledger::happening::Event;

use super::{
    Admin, Answer,
    accounts::find_account,
    ok,
    query::{self, Query},
    refusal::{OrRefuse as _, Refusal, response},
    route::{AdminRequest, Route, routes},
    streamed,
};
use crate::{
    config::kind,
    events::{Filter, Page, Shown, Tail},
};

pub(super) const ROUTES: &[Route] = routes! {
    get "/admin/v1/events" => list_events .with_query();
};

const PARAMETERS: &[&str] = &["after", "limit", "account", "kind", "wait"];
const LIMIT: usize = 100;
const LIMIT_MAX: usize = 1000;
/// The maximum time that a response waits for an event; below the timeouts of common proxies.
const WAIT_SECONDS_MAX: u64 = 50;
/// The interval of keep-alive comments in a stream.
const KEEP_ALIVE: Duration = Duration::from_secs(15);
const LAST_EVENT_ID: &str = "last-event-id";

impl Admin {
    async fn list_events(self: Arc<Self>, request: AdminRequest) -> Result<Answer, Refusal> {
        let mut query = Query::parse(request.query(), PARAMETERS)?;
        let after = query.optional("after", place)?.unwrap_or_default();
        let limit = query.optional("limit", |text| number(text, 1, LIMIT_MAX as u64))?;
        let limit = limit.map_or(LIMIT, |limit| usize::try_from(limit).unwrap_or(LIMIT_MAX));
        let wait = query.optional("wait", |text| number(text, 0, WAIT_SECONDS_MAX))?;
        let filter = Filter {
            accounts: query.optional("account", query::id)?.into_iter().collect(),
            kinds: query.optional("kind", kinds)?.unwrap_or_default(),
        };
        for account in &filter.accounts {
            find_account(&self.store, account).await?;
        }
        // The response contains all events that were emitted before this request.
        let last = self.dispatcher.tail().last().await;
        let last = last.or_refuse("events")?;
        if wants_stream(request.headers()) {
            if wait.is_some() {
                return Err(Refusal::invalid(
                    "wait",
                    "not valid for a stream, which waits for events anyway: remove wait",
                ));
            }
            let after = last_seen(request.headers())?.unwrap_or(after);
            let stream = pieces(self.dispatcher.tail().clone(), filter, after);
            return Ok(response(streamed(stream), "text/event-stream"));
        }
        let wait = Duration::from_secs(wait.unwrap_or_default());
        let page = next_page(self.dispatcher.tail(), after, limit, &filter, wait).await?;
        ok(&EventsAnswer {
            events: page.events.iter().map(Shown::from).collect(),
            next_after: page.until,
            last: last.max(page.until),
        })
    }
}

#[derive(Serialize)]
struct EventsAnswer<'a> {
    events: Vec<Shown<'a>>,
    next_after: u64,
    last: u64,
}

/// Returns the next events; if there are none yet, waits for them up to a time limit.
async fn next_page(
    tail: &Tail,
    after: u64,
    limit: usize,
    filter: &Filter,
    wait: Duration,
) -> Result<Page, Refusal> {
    let read = async |after| tail.read(after, limit, filter).await.or_refuse("events");
    let mut page = read(after).await?;
    let patience = tokio::time::sleep(wait);
    tokio::pin!(patience);
    while page.events.is_empty() && !wait.is_zero() {
        tokio::select! {
            () = &mut patience => break,
            () = tail.beyond(page.until) => {}
        }
        page = read(page.until).await?;
    }
    Ok(page)
}

/// Returns a stream of the events after a position. The stream ends if the ledger cannot be reached; the client then
/// reconnects with the last position that it received.
fn pieces(
    tail: Tail,
    filter: Filter,
    after: u64,
) -> impl Stream<Item = Result<Bytes, BoxError>> + Send + 'static {
    let begin = (tail, filter, after, true);
    stream::unfold(begin, |(tail, filter, mut after, begins)| async move {
        if begins {
            // Sends the response's head immediately, and makes a disconnected client reconnect after one second.
            let piece = Bytes::from_static(b"retry: 1000\n\n");
            return Some((Ok(piece), (tail, filter, after, false)));
        }
        let alive = tokio::time::sleep(KEEP_ALIVE);
        tokio::pin!(alive);
        let mut piece = Vec::new();
        loop {
            let page = match tail.read(after, LIMIT, &filter).await {
                Ok(page) => page,
                Err(error) => {
                    tracing::warn!(%error, "an event stream ended with an error");
                    return None;
                }
            };
            after = page.until;
            for event in &page.events {
                write(&mut piece, event);
            }
            if !piece.is_empty() {
                break;
            }
            tokio::select! {
                () = &mut alive => {
                    // The keep-alive carries the position, so that a reconnecting client does not read the skipped
                    // events again.
                    piece.extend_from_slice(format!(": alive\nid: {after}\n\n").as_bytes());
                    break;
                }
                () = tail.beyond(after) => {}
            }
        }
        Some((Ok(Bytes::from(piece)), (tail, filter, after, false)))
    })
}

fn write(piece: &mut Vec<u8>, event: &Event) {
    let data = serde_json::to_string(&Shown::from(event))
        .expect("serializing an event to JSON cannot fail");
    let (number, kind) = (event.number, event.what.kind());
    let lines = format!("id: {number}\nevent: {kind}\ndata: {data}\n\n");
    piece.extend_from_slice(lines.as_bytes());
}

fn wants_stream(headers: &HeaderMap) -> bool {
    let accept = headers.get(header::ACCEPT);
    let accept = accept.and_then(|value| value.to_str().ok());
    accept.is_some_and(|accept| {
        let mut kinds = accept.split(',');
        kinds.any(|kind| kind.split(';').next().unwrap_or_default().trim() == "text/event-stream")
    })
}

fn last_seen(headers: &HeaderMap) -> Result<Option<u64>, Refusal> {
    let Some(value) = headers.get(LAST_EVENT_ID) else {
        return Ok(None);
    };
    let place = place(value.to_str().unwrap_or_default());
    place
        .map(Some)
        .map_err(|problem| Refusal::invalid(LAST_EVENT_ID, problem))
}

fn place(text: &str) -> Result<u64, String> {
    number(text, 0, i64::MAX as u64).map_err(|_| "must be the number of an event, or 0".into())
}

fn number(text: &str, least: u64, most: u64) -> Result<u64, String> {
    let number = text.parse::<u64>().ok();
    number
        .filter(|number| (least..=most).contains(number))
        .ok_or_else(|| format!("must be {least} to {most}"))
}

fn kinds(text: &str) -> Result<Vec<&'static str>, String> {
    text.split(',').map(kind).collect()
}

#[cfg(test)]
mod tests {
    use http::HeaderValue;

    use super::*;

    #[test]
    fn request_that_accepts_an_event_stream_gets_a_stream() {
        for (accept, wants) in [
            ("text/event-stream", true),
            ("application/json, text/event-stream;q=0.9", true),
            ("*/*", false),
            ("application/json", false),
        ] {
            let headers =
                HeaderMap::from_iter([(header::ACCEPT, HeaderValue::from_static(accept))]);
            assert_eq!(wants_stream(&headers), wants, "{accept}");
        }
        assert!(!wants_stream(&HeaderMap::new()));
    }

    #[test]
    fn event_query_with_an_invalid_number_or_kind_is_refused() {
        assert_eq!(place("17"), Ok(17));
        for bad in ["", "-1", "x", "1 ", "9223372036854775808"] {
            assert!(place(bad).is_err(), "{bad}");
        }
        assert_eq!(kinds("top_up,debt"), Ok(vec!["top_up", "debt"]));
        assert!(kinds("top_up,").is_err());
    }
}
