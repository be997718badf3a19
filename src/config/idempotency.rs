//! Checks the section `[idempotency]`.

use tollgate_layers::idempotency::IdempotencySettings;
use tollgate_ledger::idempotency::Bounds;

use super::{
    check::{Check, field_of},
    raw::RawIdempotency,
};

/// Upper bound of `answer_bytes_max`, because a response is written to the store in one piece.
const ANSWER_BYTES_MAX: u64 = 64 << 20;
const BYTES_MAX: u64 = 1 << 40;

/// The section `[idempotency]`: limits of the responses that are stored for calls with an idempotency key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct IdempotencyConfig {
    /// How long, and up to which size, a response is stored.
    pub settings: IdempotencySettings,
    /// Maximum number of calls and bytes that are stored.
    pub bounds: Bounds,
}

/// Calls a check for a field of the section `[idempotency]`.
macro_rules! field {
    ($($call:tt)+) => {
        field_of!("idempotency": $($call)+)
    };
}

impl Check<'_> {
    pub(super) fn idempotency(&mut self, raw: &RawIdempotency) -> IdempotencyConfig {
        let answer = 1..=ANSWER_BYTES_MAX;
        IdempotencyConfig {
            settings: IdempotencySettings {
                stored: field!(self.seconds(raw.keep_seconds, 86_400, 1)),
                lease: field!(self.seconds(raw.lease_seconds, 15, 1)),
                answer_bytes_max: field!(self.whole(raw.answer_bytes_max, 1 << 20, answer)),
                running_bytes_max: field!(self.whole(
                    raw.running_bytes_max,
                    64 << 20,
                    1..=BYTES_MAX
                )),
            },
            bounds: Bounds {
                account_calls_max: field!(self.whole(
                    raw.account_calls_max,
                    10_000,
                    1..=10_000_000
                )),
                account_bytes_max: field!(self.whole(
                    raw.account_bytes_max,
                    64 << 20,
                    1..=BYTES_MAX
                )),
                bytes_max: field!(self.whole(raw.bytes_max, 1 << 30, 1..=BYTES_MAX)),
            },
        }
    }
}
