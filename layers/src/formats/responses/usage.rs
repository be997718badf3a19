//! The `usage` object of the Responses format. Its input includes cached and cache-written tokens, and its output
//! includes reasoning tokens.

#[cfg(any(feature = "passthrough", feature = "translate"))]
use crate::formats::counts::Counts;
use crate::{formats::chat, vendor_usage::VendorUsage};

/// Reads the `usage` object of a response in the Responses format, given as JSON. Its input includes cached and
/// cache-written tokens, and its output includes reasoning. `None` if the text is not a usage object or counts nothing.
#[must_use]
pub fn responses_usage(json: &str) -> Option<VendorUsage> {
    chat::usage::read(
        json,
        [
            "input_tokens",
            "output_tokens",
            "total_tokens",
            "input_tokens_details",
            "output_tokens_details",
        ],
    )
}

/// Writes a usage object of the Responses format.
#[cfg(any(feature = "passthrough", feature = "translate"))]
pub(crate) fn write(counts: &Counts) -> String {
    let (written, cached, output) = (counts.written, counts.cached, counts.output);
    let (input, total) = (counts.input(), counts.total());
    let reasoning = counts.reasoning.unwrap_or(0);
    format!(
        "{{\"input_tokens\":{input},\"input_tokens_details\":{{\"cached_tokens\":{cached},\
         \"cache_write_tokens\":{written}}},\"output_tokens\":{output},\
         \"output_tokens_details\":{{\"reasoning_tokens\":{reasoning}}},\"total_tokens\":{total}}}"
    )
}
