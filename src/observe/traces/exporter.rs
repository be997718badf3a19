//! Sends queued spans to the OpenTelemetry collector in batches. If the collector does not accept a batch in time, the
//! batch is dropped and counted.

use std::time::Duration;

use bytes::Bytes;
use http::{
    HeaderMap, HeaderValue, Method, Request, StatusCode, Uri,
    header::{CONTENT_TYPE, USER_AGENT},
};
use http_body_util::{BodyExt, Full, Limited};
use prometheus_client::metrics::counter::Counter;
use tokio::{
    sync::mpsc,
    task::JoinSet,
    time::{sleep, timeout},
};

use super::otlp::{Attributes, Span, encode};
use crate::{
    config::TracesConfig,
    edge::panics::catch_round,
    net::https::{self, HttpsClient},
    text::causes::chain,
};

/// Maximum number of calls in a batch of spans.
const BATCH_CALLS_MAX: usize = 512;
/// How long a batch waits for further calls.
const BATCH_TIME: Duration = Duration::from_secs(1);
/// How long to wait for the collector's response.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(10);
/// How many bytes of the collector's response are read, so that the connection can be reused.
const ANSWER_BYTES_MAX: usize = 64 * 1024;
/// Pauses before the retries of a batch. Meanwhile, new calls wait in the queue.
const RETRY_PAUSES: [Duration; 2] = [Duration::from_secs(1), Duration::from_secs(4)];
/// How long a shutdown waits until the queued spans are sent.
const FLUSH_TIMEOUT: Duration = Duration::from_secs(5);

/// An entry in the queue of spans.
pub(super) enum Item {
    /// The spans of one call.
    Call(Vec<Span>),
    /// The last entry, after which the exporter ends.
    End,
}

/// The task that sends queued spans to the collector, and the queue to this task.
#[derive(Debug)]
pub(crate) struct Exporter {
    queue: mpsc::Sender<Item>,
    task: JoinSet<()>,
}

impl Exporter {
    pub(super) fn start(
        config: &TracesConfig,
        service: &str,
        queue: mpsc::Sender<Item>,
        waiting: mpsc::Receiver<Item>,
        dropped: Counter,
    ) -> Self {
        let mut headers = config.headers.clone();
        headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
        headers.insert(USER_AGENT, https::USER_AGENT);
        let sender = Sender {
            client: https::client(),
            url: config.url.clone(),
            headers,
            resource: Attributes::default()
                .with("service.name", service)
                .with("service.version", env!("CARGO_PKG_VERSION")),
            dropped,
            is_failing: false,
        };
        let mut task = JoinSet::new();
        task.spawn(sender.run(waiting));
        Self { queue, task }
    }

    /// Sends the queued spans when the gateway stops. Gives up after a time limit.
    pub(crate) async fn flush(mut self) {
        let sent = async {
            // Sending fails only if the exporter's task has already ended.
            let _ = self.queue.send(Item::End).await;
            self.task.join_next().await;
        };
        if timeout(FLUSH_TIMEOUT, sent).await.is_err() {
            tracing::warn!("the collector did not accept the last traces in time");
        }
    }
}

struct Sender {
    client: HttpsClient,
    url: Uri,
    headers: HeaderMap,
    resource: Attributes,
    dropped: Counter,
    /// Whether the previous batch was dropped. If it was, a further failure is not logged.
    is_failing: bool,
}

impl Sender {
    async fn run(mut self, mut waiting: mpsc::Receiver<Item>) {
        let mut ended = false;
        while !ended {
            let mut calls = Vec::new();
            let fill = async {
                while calls.len() < BATCH_CALLS_MAX {
                    match waiting.recv().await {
                        Some(Item::Call(spans)) => calls.push(spans),
                        Some(Item::End) | None => return true,
                    }
                }
                false
            };
            ended = timeout(BATCH_TIME, fill).await.unwrap_or(false);
            if !calls.is_empty() {
                let delivered = catch_round("the trace exporter", self.deliver(&calls)).await;
                delivered.unwrap_or_else(|| self.drop_spans_of(&calls));
            }
        }
    }

    /// Sends a batch until the collector accepts it, or the last retry has failed.
    async fn deliver(&mut self, calls: &[Vec<Span>]) {
        let body = Bytes::from(encode(&self.resource, calls));
        let mut pauses = RETRY_PAUSES.into_iter();
        loop {
            let answer = timeout(ANSWER_TIMEOUT, self.post(body.clone())).await;
            let problem = match answer.unwrap_or_else(|_| Err(Problem::passing("no answer"))) {
                Ok(()) => {
                    if std::mem::take(&mut self.is_failing) {
                        let host = self.url.host();
                        tracing::info!(host, "the collector accepts traces again");
                    }
                    return;
                }
                Err(problem) => problem,
            };
            if let Some(pause) = pauses.next().filter(|_| problem.may_pass) {
                sleep(pause).await;
                continue;
            }
            self.drop_spans_of(calls);
            if !std::mem::replace(&mut self.is_failing, true) {
                let (host, error) = (self.url.host(), problem.text);
                tracing::warn!(host, error, "the collector does not accept traces");
            }
            return;
        }
    }

    fn drop_spans_of(&self, calls: &[Vec<Span>]) {
        self.dropped.inc_by(calls.len() as u64);
    }

    async fn post(&self, body: Bytes) -> Result<(), Problem> {
        let mut req = Request::new(Full::new(body));
        *req.method_mut() = Method::POST;
        *req.uri_mut() = self.url.clone();
        *req.headers_mut() = self.headers.clone();
        let res = self.client.request(req).await;
        let res = res.map_err(|error| Problem::passing(chain(&error)))?;
        let status = res.status();
        let body = Limited::new(res.into_body(), ANSWER_BYTES_MAX);
        // The body of the response is ignored. Only the status decides whether the batch is sent again.
        drop(body.collect().await);
        if status.is_success() {
            return Ok(());
        }
        Err(Problem {
            may_pass: matches!(
                status,
                StatusCode::TOO_MANY_REQUESTS
                    | StatusCode::BAD_GATEWAY
                    | StatusCode::SERVICE_UNAVAILABLE
                    | StatusCode::GATEWAY_TIMEOUT
            ),
            text: format!("the collector answered {status}"),
        })
    }
}

/// Why the collector did not accept a batch.
struct Problem {
    may_pass: bool,
    text: String,
}

impl Problem {
    fn passing(text: impl Into<String>) -> Self {
        Self {
            may_pass: true,
            text: text.into(),
        }
    }
}
