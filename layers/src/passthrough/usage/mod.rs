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
use crate::{price::Label, usage::Reading, vendor_usage::VendorUsage};

/// Writes down what was counted, and at which tier it was served, if that was said beside the counts: it decides the
/// price of what is estimated too.
fn note(counts: Option<VendorUsage>, tier: Label, reading: &mut Reading) {
    reading.usage = counts.map(|counts| counts.usage);
    if let Some(counts) = counts {
        reading.cache_write_usual = counts.cache_write_usual;
        reading.served = counts.served;
        reading.unknown = counts.unknown;
    }
    if reading.served.service_tier.is_empty() {
        reading.served.service_tier = tier;
    }
}
