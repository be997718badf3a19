//! Wire formats: of callers, and of vendors.

use http::{HeaderValue, header::InvalidHeaderValue};
use serde::{Deserialize, Serialize};

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
    /// The lowest ceiling on output tokens that vendors of this format take. A lower one of a caller of another
    /// format is raised to it.
    #[must_use]
    pub const fn output_tokens_min(self) -> u64 {
        match self {
            Self::Chat | Self::Messages => 1,
            Self::Responses => 16,
        }
    }

    /// What the header that carries a key says: `Bearer` and the key in `authorization`, or the key in
    /// `x-api-key`. Marked sensitive.
    ///
    /// # Errors
    /// The key is not plain ASCII on one line.
    pub fn credential(self, key: &str) -> Result<HeaderValue, InvalidHeaderValue> {
        if !key.is_ascii() {
            // A header can carry such bytes; no vendor's key has any.
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
