//! Reads usage, the end and errors from the bytes of a vendor's answer. In the chat format, the prompt includes cached
//! tokens; in the messages format, the input does not.

pub(super) mod ceiling;
mod plain;
mod put_in;
mod stream;

use std::ops::Range;

pub use self::{
    plain::{embeddings, plain},
    stream::{Reader, Seen},
};
use crate::{price::Label, usage::Reading, vendor_usage::VendorUsage};

/// Returns the byte range of `part`, which must be a slice of `whole`.
pub(super) fn within(whole: &[u8], part: &str) -> Range<usize> {
    let start = part.as_ptr().addr() - whole.as_ptr().addr();
    start..start + part.len()
}

/// Records in the meter the vendor's counts, and a service tier that was reported outside of these counts. The tier
/// also decides the price if the usage must be estimated.
fn note(counts: Option<VendorUsage>, tier: Label, reading: &mut Reading) {
    reading.usage = counts.map(|counts| counts.usage);
    if let Some(counts) = counts {
        reading.others = counts.others;
        reading.cache_write_usual = counts.cache_write_usual;
        reading.reasoning = counts.reasoning.unwrap_or(0);
        reading.served = counts.served;
        reading.unknown = counts.unknown;
    }
    if reading.served.service_tier.is_empty() {
        reading.served.service_tier = tier;
    }
}
