//! Reads the current time from the system's clock.

use std::time::SystemTime;

/// Returns the current time in Unix milliseconds. If the system's clock is before 1970, returns 0.
pub(crate) fn unix_ms() -> u64 {
    let since = SystemTime::now()
        .duration_since(SystemTime::UNIX_EPOCH)
        .unwrap_or_default();
    u64::try_from(since.as_millis()).unwrap_or(u64::MAX)
}
