//! Reads usage, errors and the end of the response from the bytes of a vendor's response, as the format's module in
//! `formats` defines them.

mod plain;
mod stream;

pub use self::{
    plain::{embeddings, plain},
    stream::Reader,
};
pub use crate::formats::metering::Seen;
use crate::{price::Label, usage::Reading, vendor_usage::VendorUsage};

/// Records in the meter the counts that the vendor reported, and the service tier if it was reported outside these
/// counts. The tier also decides the price if the usage must be estimated.
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
