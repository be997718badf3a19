//! Request numbers: the number of a call is also the id of its hold and of its receipt.

use std::{fmt, str::FromStr};

#[cfg(feature = "serde")]
use serde::{Deserialize, Serialize};
use uuid::Uuid;

/// A request number: a UUIDv7 that the gateway generates for each request. It is also the id of the call's hold and
/// receipt, and customers quote it to support.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[cfg_attr(feature = "serde", derive(Serialize, Deserialize), serde(transparent))]
pub struct RequestNumber(Uuid);

impl RequestNumber {
    /// Generates a request number. Numbers from the same millisecond are in no particular order.
    #[cfg(feature = "numbers")]
    #[must_use]
    pub fn now_v7() -> Self {
        use std::time::{SystemTime, UNIX_EPOCH};

        let now = SystemTime::now().duration_since(UNIX_EPOCH);
        let now = now.unwrap_or_default();
        // `Uuid::now_v7` would take a lock that all threads share, to add a counter.
        let time = uuid::Timestamp::from_unix_time(now.as_secs(), now.subsec_nanos(), 0, 0);
        Self(Uuid::new_v7(time))
    }

    /// Creates a request number from a UUID.
    #[must_use]
    pub const fn from_uuid(uuid: Uuid) -> Self {
        Self(uuid)
    }

    /// Returns a lower bound for the numbers that are generated at this time or later. No request has this number
    /// itself.
    #[cfg(feature = "settle")]
    pub(crate) fn first_at(unix_ms: u64) -> Self {
        const MS_MAX: u64 = (1 << 48) - 1;
        Self(Uuid::from_u128(u128::from(unix_ms.min(MS_MAX)) << 80))
    }

    /// Returns the next higher number.
    #[cfg(feature = "settle")]
    pub(crate) const fn next(self) -> Self {
        Self(Uuid::from_u128(self.0.as_u128().saturating_add(1)))
    }

    /// Returns the number as a UUID (version 7).
    #[must_use]
    pub const fn uuid(&self) -> &Uuid {
        &self.0
    }

    /// Returns when the number was generated, in Unix milliseconds; 0 if it is not a UUIDv7.
    #[must_use]
    pub fn unix_ms(&self) -> u64 {
        self.0.get_timestamp().map_or(0, |time| {
            let (seconds, nanos) = time.to_unix();
            seconds * 1000 + u64::from(nanos) / 1_000_000
        })
    }
}

impl fmt::Display for RequestNumber {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.as_hyphenated().fmt(f)
    }
}

impl FromStr for RequestNumber {
    type Err = uuid::Error;

    fn from_str(text: &str) -> Result<Self, uuid::Error> {
        Uuid::try_parse(text).map(Self)
    }
}

#[cfg(all(test, feature = "numbers"))]
mod tests {
    use super::*;

    #[test]
    fn request_number_contains_its_creation_time() {
        let number = RequestNumber::now_v7();
        assert!(number.unix_ms() > 1_700_000_000_000);
        assert_eq!(number.to_string().parse::<RequestNumber>().unwrap(), number);
    }
}
