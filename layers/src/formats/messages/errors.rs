//! The error with which a stream of the Messages format ends.

use serde_json::json;

use crate::formats::errors::StreamError;

/// Returns the event `error`. A blank line precedes it, because the vendor's stream may have broken off in the middle
/// of an event.
pub(crate) fn events(failure: &StreamError<'_>) -> String {
    let error = json!({ "type": "error", "error": failure.object });
    format!("\n\nevent: error\ndata: {error}\n\n")
}
