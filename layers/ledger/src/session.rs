//! Which calls belong together, by their caller's own word. A hint: it stands on receipts and decides nothing.

use std::{fmt, ops::Deref, str::FromStr, sync::Arc};

use serde::{Deserialize, Deserializer, Serialize, de};

use crate::account::{IdError, id};

id! {
    /// What a caller's tool calls one of its sessions. Written like our own ids, so that it is safe wherever it is
    /// shown.
    SessionId
}

/// Reads what a ledger has kept. A later version may take more for an id than this one does: money that is
/// booked must be read all the same.
#[cfg(feature = "settle")]
pub(crate) fn kept<'de, D: Deserializer<'de>>(
    deserializer: D,
) -> Result<Option<SessionId>, D::Error> {
    let text: Option<String> = Option::deserialize(deserializer)?;
    Ok(text.and_then(|text| text.parse().ok()))
}
