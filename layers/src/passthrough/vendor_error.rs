//! Converts an error within a vendor's answer into the error that the caller gets.

use std::time::Duration;

use http::StatusCode;

use crate::{
    error::{Error, TOO_LONG},
    scrub::scrubbed,
    vendor_words::Words,
};

/// The wait before a retry, if a vendor's rate limit is reached and the vendor states no wait.
const RETRY_AFTER: Duration = Duration::from_secs(1);

/// The largest number of characters of an error that are logged.
const ERROR_CHARS_MAX: usize = 500;

/// Converts a vendor's error, given as JSON. The text of most errors is only logged; the caller gets the text if a
/// change of the request can help. The error is classified by its code or, without a code, by its type, in the same way
/// as an HTTP status of a vendor.
pub(super) fn vendor_error(error: &str) -> Error {
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
        _ => {
            let stored: String = error.chars().take(ERROR_CHARS_MAX).collect();
            Error::VendorUnavailable(scrubbed(&stored).into())
        }
    }
}

/// The code of errors about a key without permission, or about flagged input.
const FORBIDDEN: &str = "403";

/// Codes and types of errors that the caller's request caused.
const REFUSALS: &[&str] = &[
    "invalid_request_error",
    "invalid_prompt",
    TOO_LONG,
    "400",
    "409",
    "413",
    "422",
    "451",
    // The codes that follow are about images in the request.
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
    fn vendor_error_is_classified_by_its_code_or_else_by_its_type() {
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
