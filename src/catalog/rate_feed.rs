//! Reads the exchange rate from the configured sources, in their order, and checks each response.

use std::{fmt, future::Future, pin::pin, sync::Arc, time::Duration};

use http::{
    HeaderValue, Request, StatusCode,
    header::{ACCEPT, ACCEPT_ENCODING, CONTENT_TYPE, USER_AGENT},
};
use http_body_util::{BodyExt, Full, Limited};
use rust_decimal::Decimal;
use tollgate_layers::error::BoxError;

use crate::{
    catalog::snapshot::{Live, RateReading},
    config::{HttpSource, RateConfig, RateSource},
    edge::panics::catch_round,
    net::https::{self, HttpsClient},
    text::{causes::chain, select_json::SelectError},
};

/// The time limit for a source's whole response.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(10);
/// The largest response that is read from a source, in bytes.
const ANSWER_BYTES_MAX: usize = 1024 * 1024;
/// The number of decimal places of a rate that are kept, so that prices can be computed exactly.
const RATE_DIGITS: u32 = 6;

const JSON: &str = "application/json";

/// Reads the exchange rate from the configured sources.
pub struct RateFeed {
    sources: Vec<RateSource>,
    step_max_percent: Decimal,
    refresh: Duration,
    client: HttpsClient,
    /// The last accepted rate that a source measured. A rate that the operator fixed is not compared with this rate and
    /// does not replace it.
    last: Option<Decimal>,
}

impl RateFeed {
    /// Creates a feed with the sources of `config`.
    #[must_use]
    pub fn new(config: &RateConfig) -> Self {
        Self {
            sources: config.sources.clone(),
            step_max_percent: config.step_max_percent,
            refresh: config.refresh,
            client: https::client(),
            last: None,
        }
    }

    /// Returns the rate of the first source whose response is acceptable; `None` if no response is. For each rejected
    /// response the reason is logged.
    pub async fn refresh(&mut self) -> Option<RateReading> {
        for source in &self.sources {
            let source = match source {
                RateSource::Fixed(rate) => return Some(RateReading::fixed(*rate)),
                RateSource::Http(source) => source,
            };
            let answer = tokio::time::timeout(ANSWER_TIMEOUT, self.ask(source)).await;
            let rate = answer.unwrap_or(Err(RateError::Timeout));
            match rate.and_then(|rate| self.believe(source, rate)) {
                Ok(rate) => {
                    self.last = Some(rate);
                    return Some(RateReading::measured(rate));
                }
                Err(error @ RateError::Step { .. }) => {
                    tracing::error!(host = source.host(), %error, "the exchange rate is refused");
                }
                Err(error) => tracing::warn!(
                    host = source.host(),
                    error = chain(&error),
                    "the exchange rate could not be read"
                ),
            }
        }
        None
    }

    /// Refreshes once and stores the rate in `live`. Runs before the gateway serves, so that the first call has a
    /// price.
    pub async fn refresh_into(&mut self, live: &Live) {
        let round = async {
            let reading = self.refresh().await;
            reading.map(|reading| live.set_rate(reading)).is_some()
        };
        if catch_round("the exchange rate", round).await == Some(true) {
            return;
        }
        if live.expire_rate() {
            tracing::error!(
                "the last exchange rate is too old: models have no prices until a source returns a rate"
            );
        } else {
            tracing::error!("no source returned an exchange rate");
        }
    }

    /// Refreshes periodically until `shutdown` completes.
    pub async fn run(mut self, live: Arc<Live>, shutdown: impl Future<Output = ()>) {
        let mut shutdown = pin!(shutdown);
        let mut wait = match live.snapshot().rate() {
            Some(_) => self.wait(),
            None => Duration::ZERO,
        };
        loop {
            let round = async {
                tokio::time::sleep(wait).await;
                self.refresh_into(&live).await;
            };
            tokio::select! {
                () = &mut shutdown => return,
                () = round => {}
            }
            wait = self.wait();
        }
    }

    async fn ask(&self, source: &HttpSource) -> Result<Decimal, RateError> {
        let mut req = Request::new(Full::new(source.body.clone()));
        *req.method_mut() = source.method.clone();
        *req.uri_mut() = source.url.clone();
        let headers = req.headers_mut();
        headers.insert(ACCEPT, HeaderValue::from_static(JSON));
        headers.insert(ACCEPT_ENCODING, HeaderValue::from_static("identity"));
        let agent = concat!("tollgate/", env!("CARGO_PKG_VERSION"));
        headers.insert(USER_AGENT, HeaderValue::from_static(agent));
        if !source.body.is_empty() {
            headers.insert(CONTENT_TYPE, HeaderValue::from_static(JSON));
        }
        let sent = self.client.request(req).await;
        let res = sent.map_err(|error| RateError::Http(error.into()))?;
        if res.status() != StatusCode::OK {
            return Err(RateError::Status(res.status()));
        }
        let body = Limited::new(res.into_body(), ANSWER_BYTES_MAX)
            .collect()
            .await;
        let body = body.map_err(RateError::Http)?.to_bytes();
        let rate = source.select.select(&body).map_err(RateError::Select)?;
        Ok(rate.round_dp(RATE_DIGITS).normalize())
    }

    fn believe(&self, source: &HttpSource, rate: Decimal) -> Result<Decimal, RateError> {
        let low = source.min.map_or(rate <= Decimal::ZERO, |min| rate < min);
        if low || source.max.is_some_and(|max| rate > max) {
            return Err(RateError::Bounds { rate });
        }
        match self.last {
            Some(last) if is_beyond(self.step_max_percent, last, rate) => {
                Err(RateError::Step { last, rate })
            }
            _ => Ok(rate),
        }
    }

    /// Returns the interval until the next refresh, varied by up to a tenth, so that many nodes do not send requests at
    /// the same time.
    fn wait(&self) -> Duration {
        let permille = 900 + getrandom::u32().unwrap_or(100) % 201;
        self.refresh * permille / 1000
    }
}

impl fmt::Debug for RateFeed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RateFeed")
            .field("sources", &self.sources)
            .field("last", &self.last)
            .finish_non_exhaustive()
    }
}

/// The reason why the rate of a source is rejected.
#[derive(Debug, thiserror::Error)]
enum RateError {
    #[error("the rate source did not answer within {} s", ANSWER_TIMEOUT.as_secs())]
    Timeout,
    #[error("no answer")]
    Http(#[source] BoxError),
    #[error("answered {0}")]
    Status(StatusCode),
    #[error("{0}")]
    Select(SelectError),
    #[error("the rate {rate} is outside the source's min and max")]
    Bounds { rate: Decimal },
    #[error(
        "the rate change from {last} to {rate} exceeds step_max_percent: if the new rate is right, raise \
        step_max_percent or restart the gateway"
    )]
    Step { last: Decimal, rate: Decimal },
}

fn is_beyond(step_max_percent: Decimal, last: Decimal, rate: Decimal) -> bool {
    let step = (rate - last).abs().checked_mul(Decimal::ONE_HUNDRED);
    let allowed = last.checked_mul(step_max_percent);
    match (step, allowed) {
        (Some(step), Some(allowed)) => step > allowed,
        _ => true,
    }
}

#[cfg(test)]
#[allow(
    clippy::disallowed_methods,
    reason = "a test owns the tasks that it spawns"
)]
mod tests {
    use std::sync::Mutex;

    use tokio::{
        io::{AsyncReadExt, AsyncWriteExt},
        net::TcpListener,
        sync::oneshot,
    };

    use super::*;
    use crate::{
        catalog::snapshot::tests::{decimal, live},
        config::Config,
    };

    /// A server that sends each of `answers` once, in order, and then closes.
    struct Source {
        url: String,
        heads: Arc<Mutex<Vec<String>>>,
    }

    async fn source(answers: Vec<String>) -> Source {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}/market", listener.local_addr().unwrap());
        let heads = Arc::new(Mutex::new(Vec::new()));
        let seen = Arc::clone(&heads);
        tokio::spawn(async move {
            for answer in answers {
                let (mut stream, _) = listener.accept().await.unwrap();
                let mut head = Vec::new();
                while !head.windows(4).any(|bytes| bytes == b"\r\n\r\n") {
                    assert_ne!(
                        stream.read_buf(&mut head).await.unwrap(),
                        0,
                        "the request broke off"
                    );
                }
                seen.lock()
                    .unwrap()
                    .push(String::from_utf8_lossy(&head).to_lowercase());
                // The client may stop reading early and close the connection itself, so a failed write is ignored.
                let _ = stream.write_all(answer.as_bytes()).await;
                let _ = stream.shutdown().await;
                let _ = stream.read_to_end(&mut Vec::new()).await;
            }
        });
        Source { url, heads }
    }

    fn answer(status: &str, body: &str) -> String {
        format!(
            "HTTP/1.1 {status}\r\ncontent-length: {}\r\nconnection: close\r\n\r\n{body}",
            body.len()
        )
    }

    fn rate(text: &str) -> String {
        answer(
            "200 OK",
            &format!(r#"{{"data":[{{"symbol":"USDT/RUB","askPrice":{text}}}]}}"#),
        )
    }

    fn feed(sources: &str) -> RateFeed {
        let text = format!(
            r#"
            {sources}
            [[vendor]]
            name = "v"
            format = "chat"
            url = "http://127.0.0.1:9/v1"
            key = "${{KEY}}"
            [[model]]
            id = "m"
            family = "M"
            usdt_mtok = {{ input = "1", cached_input = "1", output = "1", cache_write = "1" }}
            output_tokens_max = 100
            routes = [ {{ vendor = "v" }} ]
            "#
        );
        let config = Config::parse(&text, &|_| Some("sk-secret".to_owned()))
            .unwrap_or_else(|e| panic!("{e}"));
        RateFeed::new(&config.live.rate)
    }

    fn http(url: &str, more: &str) -> String {
        format!(
            "[[rate.source]]\nurl = \"{url}\"\nselect = \"/data[symbol=USDT/RUB]/askPrice\"\n{more}\n"
        )
    }

    async fn refreshed(feed: &mut RateFeed) -> Option<Decimal> {
        feed.refresh().await.map(|reading| reading.rate)
    }

    #[tokio::test]
    async fn exchange_rate_is_parsed_from_the_response_of_a_source() {
        let source = source(vec![rate("81.43210009")]).await;
        let reading = feed(&http(&source.url, "")).refresh().await.unwrap();
        assert_eq!(reading.rate, decimal("81.4321"));
        assert!(reading.at.is_some());
        let heads = source.heads.lock().unwrap();
        assert!(
            heads[0].starts_with("get /market http/1.1\r\n"),
            "{heads:?}"
        );
        assert!(
            heads[0].contains("accept: application/json\r\n"),
            "{heads:?}"
        );
    }

    #[tokio::test]
    async fn exchange_rate_source_can_be_read_with_a_post_request() {
        let source = source(vec![rate("\"81.5\"")]).await;
        let mut feed = feed(&http(
            &source.url,
            "method = \"POST\"\nbody = '{\"coin\":\"usdt\"}'",
        ));
        assert_eq!(refreshed(&mut feed).await, Some(decimal("81.5")));
        let heads = source.heads.lock().unwrap();
        assert!(
            heads[0].starts_with("post /market http/1.1\r\n"),
            "{heads:?}"
        );
        assert!(
            heads[0].contains("content-type: application/json\r\n"),
            "{heads:?}"
        );
        assert!(heads[0].contains("content-length: 15\r\n"), "{heads:?}");
    }

    #[tokio::test]
    async fn source_with_an_implausible_exchange_rate_is_skipped() {
        for bad in [
            answer("500 Internal Server Error", r#"{"data":[{"symbol":"USDT/RUB","askPrice":80}]}"#),
            "HTTP/1.1 302 Found\r\nlocation: /elsewhere\r\ncontent-length: 0\r\nconnection: close\r\n\r\n".to_owned(),
            answer("200 OK", "<html>"),
            answer("200 OK", r#"{"data":[]}"#),
            answer("200 OK", &" ".repeat(ANSWER_BYTES_MAX + 1)),
            "nonsense\r\n\r\n".to_owned(),
            rate("49.99"),
            rate("200.01"),
            rate("0"),
            rate("-80"),
        ] {
            let source = source(vec![bad.clone()]).await;
            let fallback = "[[rate.source]]\nfixed = \"77\"";
            let mut feed = feed(&(http(&source.url, "min = \"50\"\nmax = \"200\"") + fallback));
            let reading = feed.refresh().await.unwrap();
            assert_eq!(reading, RateReading::fixed(decimal("77")), "{}", &bad[..bad.len().min(200)]);
        }
    }

    #[tokio::test]
    async fn exchange_rate_is_missing_if_no_source_returns_a_plausible_value() {
        let source = source(vec![rate("0")]).await;
        let mut feed = feed(&http(&source.url, ""));
        assert_eq!(refreshed(&mut feed).await, None);
        // The server stops after its only response, so this second refresh gets no rate.
        assert_eq!(refreshed(&mut feed).await, None);
    }

    #[tokio::test]
    async fn exchange_rate_that_changed_beyond_the_limit_is_refused() {
        let source = source(["100", "120", "96", "95.99", "96.1"].map(rate).to_vec()).await;
        let mut feed = feed(&http(&source.url, ""));
        for believed in [
            Some("100"),
            Some("120"),
            Some("96"),
            Some("95.99"),
            Some("96.1"),
        ] {
            assert_eq!(refreshed(&mut feed).await, believed.map(decimal));
        }
        for (last, rate, beyond) in [
            ("100", "120", false),
            ("100", "120.000001", true),
            ("100", "80", false),
            ("100", "79.99", true),
        ] {
            assert_eq!(
                is_beyond(decimal("20"), decimal(last), decimal(rate)),
                beyond,
                "{last} to {rate}"
            );
        }
    }

    #[tokio::test]
    async fn new_exchange_rate_is_compared_with_the_last_accepted_one() {
        let source = source(["100", "130", "110"].map(rate).to_vec()).await;
        let mut feed = feed(&http(&source.url, ""));
        for believed in [Some("100"), None, Some("110")] {
            assert_eq!(refreshed(&mut feed).await, believed.map(decimal));
        }
    }

    #[tokio::test]
    async fn panic_in_a_rate_refresh_keeps_the_rate_and_the_next_refresh_runs() {
        let source = source(["80", "81"].map(rate).to_vec()).await;
        let (live, mut feed) = (live(), feed(&http(&source.url, "")));
        let in_force = || live.snapshot().rate().map(|reading| reading.rate);
        live.set_rate(RateReading::measured(decimal("79")));
        // The difference between this rate and the next one does not fit into a decimal, so its computation panics.
        feed.last = Some(Decimal::MIN);
        feed.refresh_into(&live).await;
        assert_eq!(in_force(), Some(decimal("79")));
        feed.last = None;
        feed.refresh_into(&live).await;
        assert_eq!(in_force(), Some(decimal("81")));
    }

    #[tokio::test(start_paused = true)]
    async fn exchange_rate_refresh_starts_immediately_and_ends_at_shutdown() {
        let live = Arc::new(live());
        let (stop, stopped) = oneshot::channel::<()>();
        let running = tokio::spawn(feed("[[rate.source]]\nfixed = \"90.5\"").run(
            Arc::clone(&live),
            async {
                let _ = stopped.await;
            },
        ));
        // Time is paused, so the sleep returns when the refresh loop is idle.
        tokio::time::sleep(Duration::from_millis(1)).await;
        assert_eq!(
            live.snapshot().rate().map(|reading| reading.rate),
            Some(decimal("90.5"))
        );
        stop.send(()).unwrap();
        running.await.unwrap();
    }

    #[test]
    fn exchange_rate_refresh_intervals_differ_between_nodes() {
        let feed = feed("[rate]\nrefresh_seconds = 100\n[[rate.source]]\nfixed = \"90.5\"");
        for _ in 0..100 {
            assert!((Duration::from_secs(90)..=Duration::from_secs(110)).contains(&feed.wait()));
        }
    }
}
