//! Reads usage, the end and errors off a vendor's bytes (specification 2.2 and 2.4; the classes as in
//! docs/decisions.md, "Money": cached tokens stand inside the chat format's prompt, and beside the messages
//! format's input).

mod plain;
mod put_in;
mod stream;

pub use self::{
    plain::{embeddings, plain},
    stream::{Reader, Seen},
};
use crate::{error::Error, scrub::scrubbed, usage::Reading, vendor_usage::VendorUsage};

fn note(counts: Option<VendorUsage>, reading: &mut Reading) {
    reading.usage = counts.map(|counts| counts.usage);
    if let Some(counts) = counts {
        reading.cache_write_usual = counts.cache_write_usual;
        reading.served = counts.served;
        reading.unknown = counts.unknown;
    }
}

/// A vendor's own words about an error go to the log, not to the caller.
pub(super) fn vendor_error(error: &str) -> Error {
    let text: String = error.chars().take(500).collect();
    Error::VendorUnavailable(scrubbed(&text).into())
}
