//! Errors in a vendor's response, and the errors with which the gateway ends a stream.

#[cfg(feature = "passthrough")]
use std::time::Duration;

#[cfg(feature = "passthrough")]
use http::StatusCode;
#[cfg(any(feature = "passthrough", feature = "respond"))]
use serde_json::Value;

#[cfg(feature = "respond")]
use super::{chat, messages, responses};

use crate::error::Error;
#[cfg(feature = "respond")]
use crate::{call::Format, facts::RequestNumber, stream_progress::StreamProgress};
#[cfg(any(feature = "passthrough", feature = "translate"))]
use crate::{error::BoxError, scrub::scrubbed};
#[cfg(feature = "passthrough")]
use crate::{error::TOO_LONG, vendor_words::Words};

/// An error with which the gateway ends a stream.
#[cfg(feature = "respond")]
#[derive(Debug)]
pub(crate) struct StreamError<'a> {
    pub(crate) error: &'a Error,
    /// The object `error`, which is the same in a plain response.
    pub(crate) object: Value,
    pub(crate) kind: &'static str,
    pub(crate) message: String,
    pub(crate) number: RequestNumber,
    /// How far the stream has got, if its format has sequence numbers.
    pub(crate) progress: Option<&'a StreamProgress>,
}

#[cfg(feature = "respond")]
impl StreamError<'_> {
    /// Writes the error in this format, as the last event or events of a stream. Neither `[DONE]` nor `message_stop`
    /// follows them.
    pub(crate) fn written(&self, format: Format) -> String {
        match format {
            Format::Chat => chat::errors::events(self),
            Format::Messages => messages::errors::events(self),
            Format::Responses => responses::errors::events(self),
        }
    }
}

/// Writes events whose name equals their field `type`.
#[cfg(any(feature = "passthrough", feature = "respond"))]
pub(crate) fn named_events(events: &[Value]) -> String {
    let event = |event: &Value| {
        let kind = event["type"].as_str().unwrap_or_default();
        format!("event: {kind}\ndata: {event}\n\n")
    };
    events.iter().map(event).collect()
}

/// Creates the error of a vendor's response that violates its format: a 502.
#[cfg(any(feature = "passthrough", feature = "translate"))]
pub(crate) fn broken(why: impl Into<BoxError>) -> Error {
    Error::VendorBroken(why.into())
}

/// Creates an error with the vendor's own message. Only the beginning of the message is logged.
#[cfg(any(feature = "passthrough", feature = "translate"))]
pub(crate) fn unavailable(words: &str) -> Error {
    let words: String = words.chars().take(ERROR_CHARS_MAX).collect();
    Error::VendorUnavailable(scrubbed(&words).into())
}

/// The wait before a retry, if the vendor's rate limit is reached and the vendor states no wait.
#[cfg(feature = "passthrough")]
const RETRY_AFTER: Duration = Duration::from_secs(1);

/// The maximum number of characters of a vendor's error that are logged.
#[cfg(any(feature = "passthrough", feature = "translate"))]
const ERROR_CHARS_MAX: usize = 500;

/// Converts a vendor's error, given as JSON. The code of the error (or its type, if it has no code) decides its class,
/// as the HTTP status of a vendor's response would. The caller gets the vendor's text only if a change of the request
/// can help. All other texts are only logged.
#[cfg(feature = "passthrough")]
pub(crate) fn vendor_error(error: &str) -> Error {
    let words = Words::read(error.as_bytes());
    let code = words.code();
    let is_refusal = REFUSALS.contains(&code)
        || (code == FORBIDDEN && words.is_flagged())
        || words.is_too_long();
    match code {
        "rate_limit_exceeded" | "rate_limit_error" | "429" => Error::VendorLimit {
            retry_after: RETRY_AFTER,
        },
        _ if is_refusal && !words.is_about_operator() => Error::VendorRefused {
            status: StatusCode::BAD_REQUEST,
            too_long: words.is_too_long(),
            text: scrubbed(words.text()),
        },
        _ => unavailable(error),
    }
}

/// The code of errors about a key without permission, or about flagged input.
#[cfg(feature = "passthrough")]
const FORBIDDEN: &str = "403";

/// Codes and types of errors that the caller's request has caused.
#[cfg(feature = "passthrough")]
const REFUSALS: &[&str] = &[
    "invalid_request_error",
    "invalid_prompt",
    TOO_LONG,
    "400",
    "409",
    "413",
    "422",
    "451",
    // The following codes are about images in the request.
    "invalid_image",
    "invalid_image_format",
    "invalid_base64_image",
    "invalid_image_url",
    "invalid_image_mode",
    "image_too_large",
    "image_too_small",
    "image_parse_error",
    "image_content_policy_violation",
    "image_file_too_large",
    "image_file_not_found",
    "unsupported_image_media_type",
    "empty_image_file",
    "failed_to_download_image",
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn vendor_error_is_classified_by_its_code_or_without_a_code_by_its_type() {
        for (error, means) in [
            (r#"{"type":"rate_limit_error","message":"slow"}"#, "limit"),
            (
                r#"{"code":"rate_limit_exceeded","message":"slow"}"#,
                "limit",
            ),
            (r#"{"code":429,"message":"slow"}"#, "limit"),
            (r#"{"type":"invalid_request_error","message":"bad"}"#, "bad"),
            (
                r#"{"type":"invalid_request_error","code":null,"message":"bad"}"#,
                "bad",
            ),
            (
                r#"{"code":"context_length_exceeded","message":"bad"}"#,
                "bad",
            ),
            (r#"{"code":400,"message":"bad"}"#, "bad"),
            (r#"{"code":"image_too_large","message":"bad"}"#, "bad"),
            // This error is about the operator's key or account, but has the type of an invalid request.
            (
                r#"{"type":"invalid_request_error","code":"invalid_api_key","message":"bad"}"#,
                "unavailable",
            ),
            (
                r#"{"type":"invalid_request_error","message":"Your credit balance is too low to access the API."}"#,
                "unavailable",
            ),
            (
                r#"{"type":"overloaded_error","message":"x"}"#,
                "unavailable",
            ),
            (r#"{"code":500,"message":"x"}"#, "unavailable"),
            (r#"{"code":403,"message":"forbidden"}"#, "unavailable"),
            (
                r#"{"code":403,"message":"the input was flagged"}"#,
                "the input was flagged",
            ),
            (r#"{"code":451,"message":"bad"}"#, "bad"),
            (
                r#"{"code":400,"message":"Provider returned error","metadata":{"raw":"{\"error\":{\"message\":\"bad\"}}"}}"#,
                "bad",
            ),
            (
                r#"{"type":"invalid_request_error","message":{"detail":[{"loc":["body","n"],"msg":"bad"}]}}"#,
                "n: bad",
            ),
            (
                r#"{"code":502,"message":"prompt is too long: 9 tokens > 8 maximum"}"#,
                "prompt is too long: 9 tokens > 8 maximum",
            ),
            (r#""boom""#, "unavailable"),
            ("boom", "unavailable"),
        ] {
            match (vendor_error(error), means) {
                (Error::VendorLimit { .. }, "limit")
                | (Error::VendorUnavailable(_), "unavailable") => {}
                (Error::VendorRefused { text, .. }, means) => assert_eq!(text, means, "{error}"),
                (other, _) => panic!("{error}: {other:?}"),
            }
        }
    }
}
