//! The wire formats of callers and vendors.

use http::{HeaderValue, header::InvalidHeaderValue};
use serde::{Deserialize, Serialize};

/// The prefix of an instruction line that clients of the Messages format add for their own vendor's billing. The line
/// changes with every call.
#[cfg(any(feature = "failover", feature = "translate"))]
pub(crate) const BILLING_LINE: &str = "x-anthropic-billing-header:";

/// The wire format of a caller or a vendor.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Format {
    /// The Chat Completions format, `POST /v1/chat/completions`.
    Chat,
    /// The Messages format, `POST /v1/messages`.
    Messages,
    /// The Responses format, `POST /v1/responses`.
    Responses,
}

impl Format {
    /// Returns the lowest limit of output tokens that vendors of this format accept. If a caller of another format sets
    /// a lower limit, the gateway raises it to this number.
    #[must_use]
    pub const fn output_tokens_min(self) -> u64 {
        match self {
            Self::Chat | Self::Messages => 1,
            Self::Responses => 16,
        }
    }

    /// Returns the header value that presents a key, marked sensitive: `Bearer` and the key for `authorization`, or the
    /// key alone for `x-api-key`.
    ///
    /// # Errors
    /// An error if the key has non-ASCII characters or a line end.
    pub fn credential(self, key: &str) -> Result<HeaderValue, InvalidHeaderValue> {
        if !key.is_ascii() {
            // No vendor's key has non-ASCII bytes, although header values may have them. A line end is never a valid
            // header value, so this returns the error.
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
