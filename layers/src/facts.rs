//! What is ambient in a request or an answer: named extensions, each with its inserter.

use std::{
    fmt,
    net::IpAddr,
    str::FromStr,
    sync::Arc,
    time::{SystemTime, UNIX_EPOCH},
};

use serde::{Deserialize, Serialize};
use uuid::{Timestamp, Uuid};

use crate::{call::Format, key::KeyRecord};

/// The number that support looks a call up by: a UUIDv7 made by us. It is also the id of the call's
/// hold and receipt. Inserted by `request_number`.
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

/// The client's address, already seen through trusted proxies. Inserted by the server.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct ClientAddr(pub IpAddr);

impl ClientAddr {
    /// The block that limits count: an IPv4 address, or an IPv6 /64.
    #[must_use]
    pub fn block(&self) -> IpAddr {
        match self.0.to_canonical() {
            IpAddr::V4(address) => IpAddr::V4(address),
            IpAddr::V6(address) => IpAddr::V6((u128::from(address) >> 64 << 64).into()),
        }
    }
}

/// Who calls: the key that was shown and its account. Inserted by `auth`.
#[derive(Clone, Debug)]
pub struct Caller(pub Arc<KeyRecord>);

/// On an answer: its body is an event stream of this format, so an error inside it must take this
/// shape. Inserted by `passthrough`; `translate` puts the caller's format in its place.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EventStream(pub Format);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_number_tells_when_it_was_made() {
        let number = RequestNumber::now_v7();
        assert!(number.unix_ms() > 1_700_000_000_000);
        assert_eq!(number.to_string().parse::<RequestNumber>().unwrap(), number);
    }

    #[test]
    fn ipv6_counts_by_64_bits_and_mapped_ipv4_as_ipv4() {
        let block = |text: &str| ClientAddr(text.parse().unwrap()).block().to_string();
        assert_eq!(block("2001:db8:1:2:3:4:5:6"), "2001:db8:1:2::");
        assert_eq!(block("::ffff:192.0.2.7"), "192.0.2.7");
    }
}
