//! What an error inside a vendor's answer means to the caller.

use std::{borrow::Cow, time::Duration};

use http::StatusCode;
use serde::Deserialize;
use serde_json::value::RawValue;

use crate::{
    error::Error,
    scrub::scrubbed,
    vendor_words::{TOO_LONG, is_about_operator, is_too_long},
};

/// What a vendor at its limit is given where it names no time.
const RETRY_AFTER: Duration = Duration::from_secs(1);

const TEXT_CHARS_MAX: usize = 500;

/// What an error, JSON, means. Of most the words are for the log; where the caller can mend it, they are his. It is told
/// by its code, or by its type where it has none, as vendors that answer a status have it.
pub(super) fn vendor_error(error: &str) -> Error {
    let said = serde_json::from_str::<Said<'_>>(error).unwrap_or_default();
    let message = said.message.unwrap_or_default();
    let text = |words: &str| scrubbed(&words.chars().take(TEXT_CHARS_MAX).collect::<String>());
    let word = match word(said.code) {
        "" | "null" => word(said.kind),
        code => code,
    };
    match word {
        "rate_limit_exceeded" | "rate_limit_error" | "429" => Error::VendorLimit {
            retry_after: RETRY_AFTER,
        },
        word if REFUSALS.contains(&word) && !is_about_operator(&message) => Error::VendorRefused {
            status: StatusCode::BAD_REQUEST,
            too_long: is_too_long(word, &message),
            text: text(&message),
        },
        _ => Error::VendorUnavailable(text(error).into()),
    }
}

/// A string without its quotes, or a number.
fn word(json: Option<&RawValue>) -> &str {
    json.map_or("", |json| json.get().trim_matches('"'))
}

/// Codes and types of what is wrong with the request.
const REFUSALS: &[&str] = &[
    "invalid_request_error",
    "invalid_prompt",
    TOO_LONG,
    "400",
    "413",
    "422",
    // With an image in it.
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

#[derive(Default, Deserialize)]
struct Said<'a> {
    #[serde(borrow, rename = "type")]
    kind: Option<&'a RawValue>,
    #[serde(borrow)]
    code: Option<&'a RawValue>,
    #[serde(borrow)]
    message: Option<Cow<'a, str>>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_error_is_what_its_code_says_or_else_its_type() {
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
            // A key of ours, or an account, in the words of a faulty request.
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
