//! Sends an event as a webhook according to the Standard Webhooks scheme: with the event's id, the time of the attempt,
//! and a signature over the id, the time and the body.

use std::{
    fmt,
    time::{Duration, SystemTime},
};

use base64::{Engine, engine::general_purpose::STANDARD};
use bytes::Bytes;
use http::{
    HeaderName, HeaderValue, Request, StatusCode, Uri,
    header::{CONTENT_TYPE, RETRY_AFTER, USER_AGENT},
};
use http_body_util::{BodyExt, Full, Limited};
use hyper_rustls::{HttpsConnector, HttpsConnectorBuilder};
use hyper_util::{
    client::legacy::{Client, connect::HttpConnector},
    rt::TokioExecutor,
};
use ring::hmac;
use serde::Serialize;
use tollgate_ledger::happening::Event;

use super::event::Shown;
use crate::{
    config::WebhookConfig,
    net::{address::Resolver, https},
    text::{
        causes::chain,
        time::{now_ms, rfc3339},
    },
};

const ID: HeaderName = HeaderName::from_static("webhook-id");
const TIMESTAMP: HeaderName = HeaderName::from_static("webhook-timestamp");
const SIGNATURE: HeaderName = HeaderName::from_static("webhook-signature");
/// The longest pause that a receiver may request before the next attempt.
const RETRY_AFTER_MAX: Duration = Duration::from_secs(24 * 3600);
/// How many bytes of the receiver's response are read, so that the connection can be reused.
const ANSWER_BYTES_MAX: usize = 64 * 1024;

/// The result of one attempt to send an event to a receiver.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Sent {
    /// The receiver has accepted the event.
    Taken,
    /// The receiver has answered 410: it wants no further events.
    Gone,
    /// The attempt failed. Contains the reason, without secrets, and the pause that the receiver requests.
    Failed {
        why: String,
        retry_after: Option<Duration>,
    },
}

/// A receiver that gets events by POST requests to its URL.
pub(super) struct Webhook {
    url: Uri,
    keys: Vec<hmac::Key>,
    timeout: Duration,
    client: Client<HttpsConnector<HttpConnector<Resolver>>, Full<Bytes>>,
}

/// The JSON body of the request to a receiver.
#[derive(Serialize)]
struct Body<'a> {
    r#type: &'static str,
    timestamp: String,
    data: Shown<'a>,
}

impl Webhook {
    pub(super) fn new(config: &WebhookConfig) -> Self {
        let resolver = Resolver {
            allow_private: config.allow_private,
        };
        let mut http = HttpConnector::new_with_resolver(resolver);
        http.enforce_http(false);
        http.set_nodelay(true);
        let https = HttpsConnectorBuilder::new()
            .with_tls_config(https::tls(config.authorities.as_ref()))
            .https_or_http()
            .enable_http1()
            .wrap_connector(http);
        let keys = config.keys.iter();
        let keys = keys.map(|key| hmac::Key::new(hmac::HMAC_SHA256, key));
        Self {
            url: config.url.clone(),
            keys: keys.collect(),
            timeout: config.answer_timeout,
            client: Client::builder(TokioExecutor::new())
                .pool_max_idle_per_host(1)
                .build(https),
        }
    }

    /// Returns the host of the receiver's URL, which may be logged.
    pub(super) fn host(&self) -> &str {
        self.url.host().unwrap_or_default()
    }

    /// Sends an event once, without retries.
    pub(super) async fn send(&self, event: &Event) -> Sent {
        in_time(self.timeout, self.post(event)).await
    }

    async fn post(&self, event: &Event) -> Sent {
        let res = match self.client.request(self.request(event)).await {
            Ok(res) => res,
            Err(error) => return failed(format!("no answer: {}", chain(&error))),
        };
        let (head, body) = res.into_parts();
        let sent = sent(head.status, head.headers.get(RETRY_AFTER));
        // The body of the response is not used. It is read to its end, so that the connection can be reused.
        drop(Limited::new(body, ANSWER_BYTES_MAX).collect().await);
        sent
    }

    fn request(&self, event: &Event) -> Request<Full<Bytes>> {
        let body = Body {
            r#type: event.what.kind(),
            timestamp: rfc3339(event.at_ms),
            data: Shown::from(event),
        };
        let body = serde_json::to_vec(&body).expect("an event serializes to JSON");
        let (id, seconds) = (id(event), now_ms() / 1000);
        let signature = signature(&self.keys, &id, seconds, &body);
        let mut req = Request::post(self.url.clone())
            .header(CONTENT_TYPE, "application/json")
            .header(USER_AGENT, https::USER_AGENT)
            .header(ID, id)
            .header(TIMESTAMP, seconds)
            .body(Full::new(Bytes::from(body)))
            .expect("the configuration has checked the address");
        req.headers_mut().insert(SIGNATURE, signature);
        req
    }
}

/// Leaves out the URL, because it may contain a key.
impl fmt::Debug for Webhook {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Webhook")
            .field("host", &self.host())
            .finish_non_exhaustive()
    }
}

/// Returns the id of an event, which is the same at each attempt. It contains the event's time, because each ledger
/// numbers its events from 1.
pub(super) fn id(event: &Event) -> String {
    format!("evt_{}_{}", event.at_ms, event.number)
}

fn signature(keys: &[hmac::Key], id: &str, seconds: u64, body: &[u8]) -> HeaderValue {
    let signatures = keys.iter().map(|key| {
        let mut signed = hmac::Context::with_key(key);
        signed.update(format!("{id}.{seconds}.").as_bytes());
        signed.update(body);
        format!("v1,{}", STANDARD.encode(signed.sign()))
    });
    let signatures = signatures.collect::<Vec<_>>().join(" ");
    HeaderValue::try_from(signatures).expect("base64 is plain ASCII")
}

fn sent(status: StatusCode, retry_after: Option<&HeaderValue>) -> Sent {
    if status.is_success() {
        return Sent::Taken;
    }
    if status == StatusCode::GONE {
        return Sent::Gone;
    }
    let why = match status.is_redirection() {
        true => format!("answered {status}: redirects are not followed; give the final URL"),
        false => format!("answered {status}"),
    };
    let wait = retry_after.and_then(|it| wait_of(it.to_str().ok()?.trim(), SystemTime::now()));
    Sent::Failed {
        why,
        retry_after: wait.map(|wait| wait.min(RETRY_AFTER_MAX)),
    }
}

/// Parses the header `retry-after`: seconds or an HTTP date (RFC 9110, section 10.2.3). For a date in the past, returns
/// zero.
fn wait_of(text: &str, now: SystemTime) -> Option<Duration> {
    if let Ok(seconds) = text.parse() {
        return Some(Duration::from_secs(seconds));
    }
    let until = httpdate::parse_http_date(text).ok()?;
    Some(until.duration_since(now).unwrap_or_default())
}

/// Waits for the result of an attempt, which fails if it takes longer than `time_max`.
pub(super) async fn in_time(time_max: Duration, attempt: impl Future<Output = Sent>) -> Sent {
    let sent = tokio::time::timeout(time_max, attempt).await;
    sent.unwrap_or_else(|_| failed(format!("no answer within {} s", time_max.as_secs())))
}

pub(super) fn failed(why: String) -> Sent {
    Sent::Failed {
        why,
        retry_after: None,
    }
}

#[cfg(test)]
mod tests {
    use tollgate_ledger::happening::Happening;

    use super::*;

    /// Checks the signature against the example in the documentation of Standard Webhooks.
    #[test]
    fn webhook_signature_follows_the_standard_webhooks_specification() {
        let secret = STANDARD.decode("MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw").unwrap();
        let keys = [hmac::Key::new(hmac::HMAC_SHA256, &secret)];
        let body = br#"{"test": 2432232314}"#;
        let signed = signature(&keys, "msg_p5jXN8AQM9LWM0D4loKWxJek", 1_614_265_330, body);
        assert_eq!(signed, "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE=");
        let two = [
            keys[0].clone(),
            hmac::Key::new(hmac::HMAC_SHA256, b"another"),
        ];
        let both = signature(&two, "a", 1, b"b");
        assert_eq!(both.to_str().unwrap().matches("v1,").count(), 2);
    }

    #[test]
    fn status_of_the_receivers_response_decides_whether_a_delivery_is_retried() {
        let of = |status: u16, after: Option<&'static str>| {
            let after = after.map(HeaderValue::from_static);
            sent(StatusCode::from_u16(status).unwrap(), after.as_ref())
        };
        for status in [200, 201, 204, 299] {
            assert_eq!(of(status, None), Sent::Taken);
        }
        assert_eq!(of(410, None), Sent::Gone);
        for (status, after, seconds) in [
            (500, None, None),
            (404, None, None),
            (301, None, None),
            (429, Some("7"), Some(7)),
            (503, Some("9999999"), Some(86_400)),
            (503, Some("soon"), None),
        ] {
            let Sent::Failed { why, retry_after } = of(status, after) else {
                panic!("{status}");
            };
            assert!(why.contains(&status.to_string()), "{why}");
            assert_eq!(retry_after, seconds.map(Duration::from_secs), "{status}");
        }
    }

    #[test]
    fn retry_after_of_a_receiver_may_be_seconds_or_a_date() {
        let now = SystemTime::UNIX_EPOCH + Duration::from_secs(784_111_777);
        for (text, seconds) in [
            ("120", Some(120)),
            ("Sun, 06 Nov 1994 08:51:37 GMT", Some(120)),
            ("Sunday, 06-Nov-94 08:51:37 GMT", Some(120)),
            ("Sun Nov  6 08:51:37 1994", Some(120)),
            ("Sun, 06 Nov 1994 08:49:37 GMT", Some(0)),
            ("Sat, 06 Nov 1993 08:49:37 GMT", Some(0)),
            ("-1", None),
            ("tomorrow", None),
        ] {
            let wait = wait_of(text, now);
            assert_eq!(wait, seconds.map(Duration::from_secs), "{text}");
        }
    }

    #[test]
    fn webhook_event_has_the_same_id_at_each_attempt() {
        let event = Event {
            number: 7,
            at_ms: 5,
            account: None,
            key: None,
            what: Happening::RateStale { since_ms: 1 },
        };
        assert_eq!(id(&event), "evt_5_7");
        let shown = serde_json::to_value(Shown::from(&event)).unwrap();
        assert_eq!(shown["number"], 7);
    }
}
