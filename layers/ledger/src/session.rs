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
