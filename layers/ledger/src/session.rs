//! The session of a call: a name by which a caller marks calls that belong together. Receipts show it; it has no other
//! effect.

use std::{fmt, ops::Deref, str::FromStr, sync::Arc};

use serde::{Deserialize, Deserializer, Serialize, de};

use crate::account::{IdError, id};

id! {
    /// A caller's name for a session. It has the same syntax as the gateway's own ids, so it can be shown anywhere
    /// safely.
    SessionId
}

/// Reads a session from a stored receipt. A name that only a later version allows becomes `None`, so that the receipt
/// stays readable.
#[cfg(feature = "settle")]
pub(crate) fn stored<'de, D: Deserializer<'de>>(
    deserializer: D,
) -> Result<Option<SessionId>, D::Error> {
    let text: Option<String> = Option::deserialize(deserializer)?;
    Ok(text.and_then(|text| text.parse().ok()))
}
