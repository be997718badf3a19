//! Sends requests to token endpoints.

use std::{
    sync::{Arc, OnceLock},
    time::Duration,
};

use bytes::Bytes;
use http::{
    Request, Response, Uri,
    header::{ACCEPT, CONTENT_TYPE},
};
use secrecy::SecretString;
use serde_json::Value;
use tollgate_layers::{error::BoxError, model::Egress, scrub::scrubbed, upstream::EgressClient};

use super::{
    LoginError,
    clock::{Clock, date_ms},
    renewed::{Fetched, Life},
};
use crate::text::{causes::chain, time::parse_rfc3339_ms};

pub(super) const FORM: &str = "application/x-www-form-urlencoded";
pub(super) const JSON: &str = "application/json";

/// The lifetime of a token, if the response of the token endpoint does not state it.
const LIFE_DEFAULT: Duration = Duration::from_secs(600);
const LIFE_MAX: Duration = Duration::from_secs(86_400);
/// The shortest lifetime that is assumed for a token. A token that seems to expire at once is still used, because the
/// clocks of this machine and the server may differ.
const LIFE_MIN: Duration = Duration::from_secs(10);
const WORDS_CHARS_MAX: usize = 200;
/// A time above this number is taken to be in milliseconds. In seconds it would be in the year 5138.
const SECONDS_MAX: u64 = 100_000_000_000;

/// A server that issues tokens or other credentials.
pub(super) struct Endpoint {
    egress: Arc<Egress>,
    /// Created with the first request, because creating it needs a runtime.
    client: OnceLock<EgressClient>,
    pub(super) clock: Clock,
}

impl Endpoint {
    pub(super) fn new(egress: &Egress) -> Self {
        Self {
            egress: Arc::new(egress.clone()),
            client: OnceLock::new(),
            clock: Clock::default(),
        }
    }

    /// Sends a request and returns the response, whatever its status is.
    ///
    /// # Errors
    /// If the server does not respond.
    pub(super) async fn exchange(
        &self,
        req: Request<Bytes>,
    ) -> Result<Response<Bytes>, LoginError> {
        let host = req.uri().host().unwrap_or_default().to_owned();
        let failed = |error: BoxError| LoginError::new(format!("{host}: {}", chain(&*error)));
        let client = match self.client.get() {
            Some(client) => client,
            None => {
                let client = EgressClient::new(&self.egress).map_err(failed)?;
                self.client.get_or_init(|| client)
            }
        };
        let sent = client.send(req, Duration::from_secs(15)).await;
        sent.map_err(failed)
    }
}

/// Returns a POST request for a token, with this body and content type.
pub(super) fn post(address: &Uri, kind: &'static str, body: String) -> Request<Bytes> {
    let req = Request::post(address.clone())
        .header(CONTENT_TYPE, kind)
        .header(ACCEPT, JSON);
    req.body(body.into()).expect("URL and headers are valid")
}

/// Parses the response of an OAuth token endpoint or a similar endpoint.
pub(super) fn token(res: &Response<Bytes>) -> Result<Fetched<SecretString>, LoginError> {
    if !res.status().is_success() {
        return Err(refusal(res));
    }
    let body: Value = serde_json::from_slice(res.body())
        .map_err(|_| LoginError::new("the token endpoint answered something other than JSON"))?;
    let first = |names: &[&str]| names.iter().find_map(|name| body.get(name));
    let token = first(&["access_token", "iamToken", "tok"]).and_then(Value::as_str);
    let token = token.filter(|token| !token.is_empty());
    let token = token.ok_or(LoginError::new("the token endpoint's answer has no token"))?;
    let now_ms = date_ms(res.headers()).unwrap_or_else(crate::text::time::now_ms);
    let life = match body.get("expires_in") {
        Some(seconds) => number(seconds).map(Duration::from_secs),
        None => {
            let at = first(&["expires_at", "expiresAt", "exp"]).and_then(instant_ms);
            at.map(|at| Duration::from_millis(at.saturating_sub(now_ms)))
        }
    };
    Ok(Fetched {
        credential: token.to_owned().into(),
        life: Life::Ends(life.unwrap_or(LIFE_DEFAULT).clamp(LIFE_MIN, LIFE_MAX)),
    })
}

/// Parses a JSON number, or a JSON string that contains a number.
fn number(value: &Value) -> Option<u64> {
    let text = value.as_str().and_then(|text| text.parse().ok());
    value.as_u64().or(text)
}

/// Parses a time, which is in seconds, in milliseconds or in RFC 3339. Returns Unix milliseconds.
pub(super) fn instant_ms(value: &Value) -> Option<u64> {
    match number(value) {
        Some(number) if number > SECONDS_MAX => Some(number),
        Some(number) => Some(number * 1000),
        None => {
            // Some servers write times with a fraction down to nanoseconds.
            let text = value.as_str()?;
            let whole = (text.trim_end_matches('Z'), "");
            let (seconds, _) = text.split_once('.').unwrap_or(whole);
            parse_rfc3339_ms(&format!("{seconds}Z")).or_else(|| parse_rfc3339_ms(text))
        }
    }
}

/// Returns the error for a token endpoint's refusal. It contains the status and the endpoint's own text.
pub(super) fn refusal(res: &Response<Bytes>) -> LoginError {
    let body: Value = serde_json::from_slice(res.body()).unwrap_or_default();
    let words = ["/error_description", "/message", "/error/message", "/error"];
    let words = words.iter().find_map(|at| body.pointer(at)?.as_str());
    let words = words.unwrap_or_default().chars();
    let words: String = words.take(WORDS_CHARS_MAX).collect();
    let words = scrubbed(&words.replace(char::is_control, " "));
    let separator = if words.is_empty() { "" } else { ": " };
    let status = res.status();
    LoginError::new(format!(
        "the token endpoint answered {status}{separator}{words}"
    ))
}

#[cfg(test)]
mod tests {
    use http::header::DATE;
    use secrecy::ExposeSecret;

    use super::*;

    fn answer(status: u16, body: &str) -> Response<Bytes> {
        Response::builder()
            .status(status)
            .header(DATE, "Tue, 23 Jan 2024 15:37:06 GMT")
            .body(body.to_owned().into())
            .unwrap()
    }

    #[test]
    fn token_and_its_lifetime_are_read_under_each_vendors_field_names() {
        for (body, life_s) in [
            (
                r#"{"access_token":"t","expires_in":3599,"token_type":"Bearer"}"#,
                3599,
            ),
            (r#"{"access_token":"t","expires_in":"3599"}"#, 3599),
            // GigaChat returns the expiry in milliseconds, by its own clock.
            (r#"{"access_token":"t","expires_at":1706026026000}"#, 1800),
            (r#"{"tok":"t","exp":1706026026}"#, 1800),
            // A response of Yandex Cloud's IAM.
            (
                r#"{"iamToken":"t","expiresAt":"2024-01-23T16:37:06.123456789Z"}"#,
                3600,
            ),
            (
                r#"{"iamToken":"t","expiresAt":"2024-01-23T16:37:06Z"}"#,
                3600,
            ),
            (r#"{"access_token":"t"}"#, 600),
            (r#"{"access_token":"t","expires_in":99999999}"#, 86_400),
            (r#"{"access_token":"t","expires_at":1}"#, 10),
        ] {
            let fetched = token(&answer(200, body)).unwrap();
            assert_eq!(fetched.credential.expose_secret(), "t", "{body}");
            let Life::Ends(life) = fetched.life else {
                panic!("{body}");
            };
            assert_eq!(life.as_secs(), life_s, "{body}");
        }
    }

    #[test]
    fn error_of_a_refused_login_has_the_status_and_text_without_secrets() {
        for (body, words) in [
            (
                r#"{"error":"invalid_client","error_description":"AADSTS7000215: Invalid client secret"}"#,
                ": AADSTS7000215: Invalid client secret",
            ),
            (
                r#"{"code":4,"message":"Authorization error: header is incorrect"}"#,
                ": Authorization error: header is incorrect",
            ),
            (r#"{"error":{"message":"no"}}"#, ": no"),
            ("<html>", ""),
        ] {
            let error = token(&answer(401, body)).map(drop).unwrap_err().to_string();
            assert_eq!(
                error,
                format!("the token endpoint answered 401 Unauthorized{words}")
            );
        }
        let echoed = r#"{"message":"bad key MTIzNDU2Nzg5MDEyMzQ1Njc4OTAxMjM0"}"#;
        let error = token(&answer(400, echoed))
            .map(drop)
            .unwrap_err()
            .to_string();
        assert!(!error.contains("MTIzNDU2"), "{error}");
        for body in ["{}", "no", r#"{"access_token":""}"#] {
            assert!(token(&answer(200, body)).is_err(), "{body}");
        }
    }
}
