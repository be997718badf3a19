//! The number of a call, which is the id of its hold and of its receipt.

use std::{
    fmt,
    str::FromStr,
    time::{SystemTime, UNIX_EPOCH},
};

use serde::{Deserialize, Serialize};
use uuid::{Timestamp, Uuid};

/// The number that support looks a call up by: a UUIDv7 made by us. It is also the id of the call's
/// hold and receipt.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct RequestNumber(Uuid);

impl RequestNumber {
    /// A new number. Those of one millisecond are in no order.
    #[must_use]
    pub fn now_v7() -> Self {
        let now = SystemTime::now().duration_since(UNIX_EPOCH);
        let now = now.unwrap_or_default();
        // Without the counter of `Uuid::now_v7`, for which all threads would wait for one lock.
        let time = Timestamp::from_unix_time(now.as_secs(), now.subsec_nanos(), 0, 0);
        Self(Uuid::new_v7(time))
    }

    /// Wraps a UUID.
    #[must_use]
    pub const fn from_uuid(uuid: Uuid) -> Self {
        Self(uuid)
    }

    /// The UUID.
    #[must_use]
    pub const fn uuid(&self) -> &Uuid {
        &self.0
    }

    /// When the number was made, in milliseconds since the Unix epoch; 0 if it is no UUIDv7.
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_number_tells_when_it_was_made() {
        let number = RequestNumber::now_v7();
        assert!(number.unix_ms() > 1_700_000_000_000);
        assert_eq!(number.to_string().parse::<RequestNumber>().unwrap(), number);
    }
}
