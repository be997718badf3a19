//! Reads usage, the end and errors from a vendor's bytes. The chat format's prompt includes cached tokens, the messages
//! format's input excludes them.

mod plain;
mod put_in;
mod stream;

use std::ops::Range;

pub use self::{
    plain::{embeddings, plain},
    stream::{Reader, Seen},
};
use crate::{price::Label, usage::Reading, vendor_usage::VendorUsage};

/// Byte range of a part of JSON in the whole.
pub(super) fn within(whole: &[u8], part: &str) -> Range<usize> {
    let start = part.as_ptr().addr() - whole.as_ptr().addr();
    start..start + part.len()
}

/// Records the counts, and the service tier if it was reported outside the counts; the tier also decides the price of
/// an estimate.
fn note(counts: Option<VendorUsage>, tier: Label, reading: &mut Reading) {
    reading.usage = counts.map(|counts| counts.usage);
    if let Some(counts) = counts {
        reading.others = counts.others;
        reading.cache_write_usual = counts.cache_write_usual;
        reading.served = counts.served;
        reading.unknown = counts.unknown;
    }
    if reading.served.service_tier.is_empty() {
        reading.served.service_tier = tier;
    }
}
