//! The session of a call. By this name, the caller marks calls that belong together. It is shown on receipts and has no
//! other effect.

use std::{fmt, ops::Deref, str::FromStr, sync::Arc};

use serde::{Deserialize, Deserializer, Serialize, de};

use crate::account::{IdError, id};

id! {
    /// The caller's name for a session. It has the syntax of the gateway's own ids, so that it can be shown anywhere
    /// safely.
    SessionId
}

/// Reads a session from a stored receipt. A name that only a later version accepts becomes `None`, so that the receipt
/// stays readable.
#[cfg(feature = "settle")]
pub(crate) fn stored<'de, D: Deserializer<'de>>(
    deserializer: D,
) -> Result<Option<SessionId>, D::Error> {
    let text: Option<String> = Option::deserialize(deserializer)?;
    Ok(text.and_then(|text| text.parse().ok()))
}
