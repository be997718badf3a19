//! Converts a vendor's response with an error status into the error that the caller gets.

use std::time::{Duration, SystemTime};

use bytes::Bytes;
use http::{HeaderMap, Response, StatusCode, header::RETRY_AFTER};
use http_body::Body;
use http_body_util::{BodyExt, Limited};
use tokio::time::{Instant, timeout_at};

use crate::{
    error::{BoxError, Error, VendorAnswered},
    scrub::scrubbed,
    vendor_words::Words,
};

/// The maximum number of bytes of an error's body that are read. A longer body is ignored.
const BODY_BYTES_MAX: usize = 64 * 1024;

/// The maximum wait for the body of an error. If the body arrives later, only the status is used.
const BODY_TIME_MAX: Duration = Duration::from_secs(5);

/// Converts a response with a status other than 200 into an error. Waits for the response's body until `until` at most.
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
    let words = Words::read(body);
    match status.as_u16() {
        401 | 402 => Error::VendorKeyRefused { status },
        403 if !words.is_flagged() => Error::VendorKeyRefused { status },
        400 | 403 | 409 | 413 | 422 | 451 => refused(status, &words),
        429 => Error::VendorLimit {
            retry_after: retry_after(headers).unwrap_or(Duration::from_secs(1)),
        },
        200..400 => Error::VendorBroken(format!("answered {status}").into()),
        // Some proxies of vendors answer with a 5xx whatever status the vendor returned.
        500.. if words.is_too_long() => refused(status, &words),
        _ => Error::VendorUnavailable(Box::new(VendorAnswered {
            status,
            text: text(status, &words),
            retry_after: retry_after(headers),
        })),
    }
}

/// Returns the error of a request that the vendor would refuse again. If the message is about the operator's key,
/// returns the error of a refused key.
fn refused(status: StatusCode, words: &Words) -> Error {
    if words.is_about_operator() {
        return Error::VendorKeyRefused { status };
    }
    Error::VendorRefused {
        // A 403 or a 5xx would be wrong here: the gateway's 403 means that the caller's key lacks a permission, and the
        // gateway's 5xx means that a retry may help.
        status: match status.as_u16() {
            403 | 500.. => StatusCode::BAD_REQUEST,
            _ => status,
        },
        too_long: words.is_too_long(),
        text: text(status, words),
    }
}

/// Returns the vendor's message without secrets. If there is no message, returns the name of the status.
fn text(status: StatusCode, words: &Words) -> String {
    match words.text() {
        "" => status.to_string(),
        words => scrubbed(words),
    }
}

fn retry_after(headers: &HeaderMap) -> Option<Duration> {
    let number = |name: &str| headers.get(name)?.to_str().ok()?.trim().parse::<f64>().ok();
    let seconds = |count: f64| Duration::try_from_secs_f64(count).ok();
    let until = || {
        let date = headers.get(RETRY_AFTER)?.to_str().ok()?;
        let at = httpdate::parse_http_date(date.trim()).ok()?;
        Some(at.duration_since(SystemTime::now()).unwrap_or_default())
    };
    let wait = number("retry-after-ms")
        .and_then(|count| seconds(count / 1000.0))
        .or_else(|| number(RETRY_AFTER.as_str()).and_then(seconds))
        .or_else(until);
    wait.map(|wait| wait.min(Duration::from_secs(3600)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_error_status_of_a_vendor_becomes_the_expected_error() {
        let of = |status: u16| {
            classify(
                StatusCode::from_u16(status).unwrap(),
                &HeaderMap::new(),
                b"{}",
            )
        };
        for status in [400, 409, 413, 422, 451] {
            assert!(
                matches!(of(status), Error::VendorRefused { status: stored, .. } if stored == status),
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
    async fn refusal_without_its_text_is_classified_by_status() {
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
    fn refusal_text_is_the_vendors_message_or_else_the_name_of_the_status() {
        for (body, stored) in [
            (
                r#"{"detail":[{"msg":"max_tokens: 99 > 64"}]}"#,
                "max_tokens: 99 > 64",
            ),
            ("<html>", "400 Bad Request"),
            // An empty message is replaced by the name of the status.
            (r#"{"error":{"message":""}}"#, "400 Bad Request"),
        ] {
            match classify(StatusCode::BAD_REQUEST, &HeaderMap::new(), body.as_bytes()) {
                Error::VendorRefused { text, .. } => assert_eq!(text, stored, "{body}"),
                other => panic!("{body}: {other:?}"),
            }
        }
    }

    #[test]
    fn vendors_403_becomes_400_for_flagged_input_and_an_operator_error_for_a_refused_key() {
        let of = |status: u16, words: &str| {
            let body = serde_json::json!({ "error": { "message": words } }).to_string();
            let status = StatusCode::from_u16(status).unwrap();
            classify(status, &HeaderMap::new(), body.as_bytes())
        };
        match of(403, "the input was flagged by moderation") {
            Error::VendorRefused { status, text, .. } => {
                assert_eq!(
                    (status.as_u16(), &*text),
                    (400, "the input was flagged by moderation")
                );
            }
            other => panic!("{other:?}"),
        }
        for (status, words) in [
            (403, "your account is not allowed to use this model"),
            (451, "Incorrect API key provided: x."),
            (409, "This organization has been disabled."),
        ] {
            let error = of(status, words);
            assert!(
                matches!(error, Error::VendorKeyRefused { .. }),
                "{status} {words}: {error:?}"
            );
        }
    }

    #[test]
    fn vendor_error_about_too_many_tokens_becomes_a_4xx_whatever_status_the_vendor_sent() {
        let body = br#"{"error":{"message":"prompt is too long: 9 tokens > 8 maximum"}}"#;
        for (status, reported) in [(400, 400), (413, 413), (422, 422), (500, 400), (502, 400)] {
            let status = StatusCode::from_u16(status).unwrap();
            match classify(status, &HeaderMap::new(), body) {
                Error::VendorRefused {
                    status,
                    too_long: true,
                    ..
                } => assert_eq!(status, reported),
                other => panic!("{status}: {other:?}"),
            }
        }
    }

    #[test]
    fn too_long_request_is_recognised_by_its_code() {
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
    fn error_about_the_operators_vendor_account_is_not_a_refusal_of_the_request() {
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
            // The words before the colon are the name of a caller's field, so this text is not about the operator's
            // account.
            "your credit balance is too low: Extra inputs are not permitted",
        ] {
            let body = serde_json::json!({ "error": { "message": words } }).to_string();
            let error = classify(StatusCode::BAD_REQUEST, &HeaderMap::new(), body.as_bytes());
            assert!(matches!(error, Error::VendorRefused { .. }), "{error:?}");
        }
    }

    #[test]
    fn vendors_retry_after_header_may_be_a_date() {
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
    fn vendors_retry_after_header_is_used() {
        let headers = |name: &'static str, value: &'static str| {
            HeaderMap::from_iter([(
                http::HeaderName::from_static(name),
                http::HeaderValue::from_static(value),
            )])
        };
        for (name, value, wait) in [
            ("retry-after", "7", Some(Duration::from_secs(7))),
            ("retry-after-ms", "250", Some(Duration::from_millis(250))),
            ("retry-after", "2.5", Some(Duration::from_millis(2500))),
            ("retry-after", "86400", Some(Duration::from_secs(3600))),
            ("retry-after", "-1", None),
            ("retry-after", "NaN", None),
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
