//! Checks the section `[idempotency]`.

use tollgate_layers::idempotency::IdempotencySettings;
use tollgate_ledger::idempotency::Bounds;

use super::{check::Check, raw::RawIdempotency};

/// Upper bound of an answer that is stored, because an answer is written to the store in one piece.
const ANSWER_BYTES_MAX: u64 = 64 << 20;
const BYTES_MAX: u64 = 1 << 40;

/// The section `[idempotency]`: answers stored for repeated calls.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct IdempotencyConfig {
    /// The way in which a call's answer is recorded.
    pub settings: IdempotencySettings,
    /// The maximum numbers of calls and bytes that are stored.
    pub bounds: Bounds,
}

impl Check<'_> {
    pub(super) fn idempotency(&mut self, raw: &RawIdempotency) -> Option<IdempotencyConfig> {
        let stored = self.seconds(raw.keep_seconds, "idempotency.keep_seconds", 86_400, 1);
        let lease = self.seconds(raw.lease_seconds, "idempotency.lease_seconds", 15, 1);
        let mut bytes = |given, path, default, max| self.whole(given, path, default, 1..=max);
        let answer_bytes_max = bytes(
            raw.answer_bytes_max,
            "idempotency.answer_bytes_max",
            1 << 20,
            ANSWER_BYTES_MAX,
        );
        let running_bytes_max = bytes(
            raw.running_bytes_max,
            "idempotency.running_bytes_max",
            64 << 20,
            BYTES_MAX,
        );
        let account_calls_max = bytes(
            raw.account_calls_max,
            "idempotency.account_calls_max",
            10_000,
            10_000_000,
        );
        let account_bytes_max = bytes(
            raw.account_bytes_max,
            "idempotency.account_bytes_max",
            64 << 20,
            BYTES_MAX,
        );
        let bytes_max = bytes(raw.bytes_max, "idempotency.bytes_max", 1 << 30, BYTES_MAX);
        Some(IdempotencyConfig {
            settings: IdempotencySettings {
                stored: stored?,
                lease: lease?,
                answer_bytes_max: answer_bytes_max?,
                running_bytes_max: running_bytes_max?,
            },
            bounds: Bounds {
                account_calls_max: account_calls_max?,
                account_bytes_max: account_bytes_max?,
                bytes_max: bytes_max?,
            },
        })
    }
}
