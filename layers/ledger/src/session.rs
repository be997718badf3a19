//! The session of a call: which calls belong together, according to the caller. Shown on receipts; decides nothing.

use std::{fmt, ops::Deref, str::FromStr, sync::Arc};

use serde::{Deserialize, Deserializer, Serialize, de};

use crate::account::{IdError, id};

id! {
    /// The caller's name of a session. Has the syntax of the gateway's own ids, so that it is safe to show anywhere.
    SessionId
}

/// Reads a stored value. A name that only a later version accepts becomes `None`, since a receipt must stay readable.
#[cfg(feature = "settle")]
pub(crate) fn kept<'de, D: Deserializer<'de>>(
    deserializer: D,
) -> Result<Option<SessionId>, D::Error> {
    let text: Option<String> = Option::deserialize(deserializer)?;
    Ok(text.and_then(|text| text.parse().ok()))
}
