//! What a vendor's refusal is to the caller (docs/decisions.md, "Status table").

use std::time::{Duration, SystemTime};

use bytes::Bytes;
use http::{HeaderMap, Response, StatusCode, header::RETRY_AFTER};
use http_body::Body;
use http_body_util::{BodyExt, Limited};
use serde_json::Value;
use tokio::time::{Instant, timeout_at};

use crate::{
    error::{BoxError, Error, VendorAnswered},
    scrub::scrubbed,
    vendor_words::{is_about_operator, is_too_long},
};

/// An error's text is not longer than this, or it is none.
const BODY_BYTES_MAX: usize = 64 * 1024;
const TEXT_CHARS_MAX: usize = 1000;

/// What a vendor says about its refusal is soon there, or does not matter: its status tells what to do.
const BODY_TIME_MAX: Duration = Duration::from_secs(5);

/// The error that an answer other than 200 stands for. Its text is waited for until then at most.
pub(super) async fn read<A>(res: Response<A>, until: Instant) -> Error
where
    A: Body<Data = Bytes>,
    A::Error: Into<BoxError>,
{
    let (parts, body) = res.into_parts();
    let until = until.min(Instant::now() + BODY_TIME_MAX);
    let whole = timeout_at(until, Limited::new(body, BODY_BYTES_MAX).collect()).await;
    let body = match whole {
        Ok(Ok(body)) => body.to_bytes(),
        Ok(Err(_)) | Err(_) => Bytes::new(),
    };
    classify(parts.status, &parts.headers, &body)
}

fn classify(status: StatusCode, headers: &HeaderMap, body: &[u8]) -> Error {
    match status.as_u16() {
        400 | 413 | 422 => {
            let (code, text) = said(body, status);
            if status == StatusCode::BAD_REQUEST && is_about_operator(&text) {
                return Error::VendorKeyRefused { status };
            }
            Error::VendorRefused {
                status,
                too_long: is_too_long(&code, &text),
                text: scrubbed(&text),
            }
        }
        401..=403 => Error::VendorKeyRefused { status },
        429 => Error::VendorLimit {
            retry_after: retry_after(headers).unwrap_or(Duration::from_secs(1)),
        },
        200..400 => Error::VendorBroken(format!("answered {status}").into()),
        _ => Error::VendorUnavailable(Box::new(VendorAnswered {
            status,
            text: scrubbed(&said(body, status).1),
            retry_after: retry_after(headers),
        })),
    }
}

/// The code, if there is one, and the text of an error's body, in any format.
fn said(body: &[u8], status: StatusCode) -> (String, String) {
    let json: Value = serde_json::from_slice(body).unwrap_or_default();
    // One vendor has it in an array.
    let json = json.get(0).unwrap_or(&json);
    let error = &json["error"];
    let found = [&error["message"], error, &json["message"], &json["detail"]]
        .into_iter()
        .filter_map(Value::as_str)
        .find(|text| !text.trim().is_empty());
    let text = found.map_or_else(
        || status.to_string(),
        |text| text.chars().take(TEXT_CHARS_MAX).collect(),
    );
    let code = error["code"].as_str().unwrap_or_default();
    (code.to_owned(), text)
}

fn retry_after(headers: &HeaderMap) -> Option<Duration> {
    let number = |name: &str| headers.get(name)?.to_str().ok()?.trim().parse::<u64>().ok();
    let until = || {
        let date = headers.get(RETRY_AFTER)?.to_str().ok()?;
        let at = httpdate::parse_http_date(date.trim()).ok()?;
        Some(at.duration_since(SystemTime::now()).unwrap_or_default())
    };
    let wait = number("retry-after-ms")
        .map(Duration::from_millis)
        .or_else(|| number(RETRY_AFTER.as_str()).map(Duration::from_secs))
        .or_else(until);
    wait.map(|wait| wait.min(Duration::from_secs(3600)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_status_is_what_the_table_says() {
        let of = |status: u16| {
            classify(
                StatusCode::from_u16(status).unwrap(),
                &HeaderMap::new(),
                b"{}",
            )
        };
        for status in [400, 413, 422] {
            assert!(
                matches!(of(status), Error::VendorRefused { status: kept, .. } if kept == status),
                "{status}"
            );
        }
        for status in [401, 402, 403] {
            assert!(
                matches!(of(status), Error::VendorKeyRefused { .. }),
                "{status}"
            );
        }
        assert!(matches!(of(429), Error::VendorLimit { .. }));
        for status in [204, 301, 307] {
            assert!(matches!(of(status), Error::VendorBroken(_)), "{status}");
        }
        for status in [404, 408, 500, 503, 529] {
            assert!(
                matches!(of(status), Error::VendorUnavailable(_)),
                "{status}"
            );
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_refusal_whose_text_does_not_come_is_one_by_its_status() {
        let stalled = http_body_util::StreamBody::new(futures_util::stream::pending::<
            Result<http_body::Frame<Bytes>, BoxError>,
        >());
        let res = Response::builder()
            .status(StatusCode::TOO_MANY_REQUESTS)
            .header(RETRY_AFTER, "30")
            .body(stalled)
            .unwrap();
        let began = Instant::now();
        let error = read(res, began + Duration::from_secs(120)).await;
        assert_eq!(began.elapsed(), BODY_TIME_MAX);
        assert!(
            matches!(error, Error::VendorLimit { retry_after } if retry_after.as_secs() == 30),
            "{error:?}"
        );
    }

    #[test]
    fn a_text_is_found_in_each_formats_body() {
        for (said, kept) in [
            (
                r#"{"error":{"message":"max_tokens: 99 > 64"}}"#,
                "max_tokens: 99 > 64",
            ),
            (
                r#"{"type":"error","error":{"type":"x","message":"bad"}}"#,
                "bad",
            ),
            (r#"{"error":"plain"}"#, "plain"),
            ("<html>", "400 Bad Request"),
            // A caller is told something.
            (r#"{"error":{"message":""}}"#, "400 Bad Request"),
            (
                r#"{"error":{"message":" \n"},"message":"too long"}"#,
                "too long",
            ),
        ] {
            let (_, text) = super::said(said.as_bytes(), StatusCode::BAD_REQUEST);
            assert_eq!(text, kept, "{said}");
        }
    }

    #[test]
    fn a_request_that_is_too_long_is_told_by_its_code() {
        let too_long = |error: &str| {
            let body = format!(r#"{{"error":{error}}}"#);
            match classify(StatusCode::BAD_REQUEST, &HeaderMap::new(), body.as_bytes()) {
                Error::VendorRefused { too_long, .. } => too_long,
                other => panic!("{error}: {other:?}"),
            }
        };
        assert!(too_long(
            r#"{"code":"context_length_exceeded","message":"bad"}"#
        ));
        assert!(too_long(
            r#"{"message":"prompt is too long: 9 tokens > 8 maximum"}"#
        ));
        assert!(!too_long(r#"{"code":"invalid_value","message":"bad"}"#));
    }

    #[test]
    fn what_is_wrong_with_our_account_is_no_fault_of_the_request() {
        for text in [
            "Your credit balance is too low to access the Anthropic API. Please go to Plans & Billing to upgrade.",
            "This organization has been disabled.",
            "You have reached your specified API usage limits. You will regain access on 2026-12-01.",
            "Incorrect API key provided: xa***9.",
            "API key not valid. Please pass a valid API key.",
        ] {
            for body in [
                serde_json::json!({ "error": { "message": text } }),
                serde_json::json!({ "error": text }),
            ] {
                let body = body.to_string();
                let error = classify(StatusCode::BAD_REQUEST, &HeaderMap::new(), body.as_bytes());
                assert!(matches!(error, Error::VendorKeyRefused { .. }), "{body}");
            }
        }
        let array = br#"[{"error":{"code":400,"message":"API key not valid. Please pass a valid API key."}}]"#;
        let error = classify(StatusCode::BAD_REQUEST, &HeaderMap::new(), array);
        assert!(matches!(error, Error::VendorKeyRefused { .. }), "{error:?}");
        for words in [
            "Invalid value: 'Incorrect API key provided: x'.",
            // The name of the caller's field comes first.
            "your credit balance is too low: Extra inputs are not permitted",
        ] {
            let body = serde_json::json!({ "error": { "message": words } }).to_string();
            let error = classify(StatusCode::BAD_REQUEST, &HeaderMap::new(), body.as_bytes());
            assert!(matches!(error, Error::VendorRefused { .. }), "{error:?}");
        }
    }

    #[test]
    fn a_wait_may_be_a_date() {
        let of = |at: SystemTime| {
            let date = httpdate::fmt_http_date(at);
            let headers = HeaderMap::from_iter([(RETRY_AFTER, date.parse().unwrap())]);
            retry_after(&headers).unwrap().as_secs()
        };
        let now = SystemTime::now();
        assert!((58..=60).contains(&of(now + Duration::from_secs(60))));
        assert_eq!(of(now - Duration::from_secs(60)), 0);
    }

    #[test]
    fn the_wait_is_the_vendors() {
        let headers = |name: &'static str, value: &'static str| {
            HeaderMap::from_iter([(
                http::HeaderName::from_static(name),
                http::HeaderValue::from_static(value),
            )])
        };
        for (name, value, wait) in [
            ("retry-after", "7", Some(Duration::from_secs(7))),
            ("retry-after-ms", "250", Some(Duration::from_millis(250))),
            ("retry-after", "86400", Some(Duration::from_secs(3600))),
            ("retry-after", "soon", None),
        ] {
            assert_eq!(retry_after(&headers(name, value)), wait, "{name}: {value}");
        }
        for status in [429, 503] {
            let wait = match classify(
                StatusCode::from_u16(status).unwrap(),
                &headers("retry-after", "7"),
                b"",
            ) {
                Error::VendorLimit { retry_after } => Some(retry_after),
                Error::VendorUnavailable(cause) => {
                    let answered = cause.downcast::<VendorAnswered>().unwrap();
                    assert_eq!(answered.status, status);
                    answered.retry_after
                }
                other => panic!("{status}: {other}"),
            };
            assert_eq!(wait, Some(Duration::from_secs(7)), "{status}");
        }
    }
}
