//! Wire formats of callers and vendors.

use http::{HeaderValue, header::InvalidHeaderValue};
use serde::{Deserialize, Serialize};

/// The prefix of an instruction line that messages clients add for their own vendor's billing. The line changes with
/// every call.
#[cfg(any(feature = "failover", feature = "translate"))]
pub(crate) const BILLING_LINE: &str = "x-anthropic-billing-header:";

/// A wire format.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Format {
    /// `POST /v1/chat/completions`.
    Chat,
    /// `POST /v1/messages`.
    Messages,
    /// `POST /v1/responses`.
    Responses,
}

impl Format {
    /// Returns the lowest output-token ceiling that vendors of this format accept. The gateway raises a lower ceiling
    /// of a caller of another format to this minimum.
    #[must_use]
    pub const fn output_tokens_min(self) -> u64 {
        match self {
            Self::Chat | Self::Messages => 1,
            Self::Responses => 16,
        }
    }

    /// Returns the header value that carries a key: `Bearer` and the key for `authorization`, or the key alone for
    /// `x-api-key`. Marked sensitive.
    ///
    /// # Errors
    /// If the key has non-ASCII characters or a line end.
    pub fn credential(self, key: &str) -> Result<HeaderValue, InvalidHeaderValue> {
        if !key.is_ascii() {
            // A header value may have non-ASCII bytes, but no vendor's key has them. A line end makes the value
            // invalid.
            return HeaderValue::from_bytes(b"\n");
        }
        let mut value = match self {
            Self::Chat | Self::Responses => HeaderValue::from_str(&format!("Bearer {key}")),
            Self::Messages => HeaderValue::from_str(key),
        }?;
        value.set_sensitive(true);
        Ok(value)
    }
}
