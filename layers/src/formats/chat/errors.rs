//! The error with which a stream of the Chat Completions format ends.

use serde_json::json;

use crate::formats::errors::StreamError;

/// Returns a chunk with the error. A blank line precedes it, because the vendor's stream may have broken off in the
/// middle of an event.
pub(crate) fn events(failure: &StreamError<'_>) -> String {
    format!("\n\ndata: {}\n\n", json!({ "error": failure.object }))
}
