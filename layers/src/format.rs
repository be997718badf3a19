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
}

impl Format {
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
            Self::Chat => HeaderValue::from_str(&format!("Bearer {key}")),
            Self::Messages => HeaderValue::from_str(key),
        }?;
        value.set_sensitive(true);
        Ok(value)
    }
}
