//! Checks the section `[limits]`.

use std::{ops::RangeInclusive, time::Duration};

use super::{
    Limits,
    check::{CALL_TIME_MAX, Check, DAY_SECONDS, field_of},
    raw::RawLimits,
};
use crate::edge::server::{ConnectionLimits, H2Limits};

const MANY: u64 = 1_000_000;
const CONNECTIONS: u64 = 10_000_000;
const BYTES: u64 = 1 << 40;
/// Valid HTTP/2 windows in bytes: from the protocol's initial window size to the largest size that it can express.
const WINDOW: RangeInclusive<u64> = 65_535..=0x7fff_ffff;
/// The default of `limits.request_seconds` is this margin plus `limits.call_seconds` and `limits.body_seconds`. A
/// request that takes longer is stuck.
const REQUEST_MARGIN: Duration = Duration::from_secs(300);

/// Calls a check for a field of the section `[limits]`.
macro_rules! field {
    ($($call:tt)+) => {
        field_of!("limits": $($call)+)
    };
}

impl Check<'_> {
    pub(super) fn limits(&mut self, raw: &RawLimits) -> Limits {
        let body_bytes_max: u64 = field!(self.whole(raw.body_bytes_max, 33_554_432, 1..=BYTES));
        // The default budgets have room for at least one body and one response of the maximum size.
        let bodies = body_bytes_max.max(536_870_912);
        let bodies = field!(self.whole(raw.body_bytes_in_flight_max, bodies, 1..=BYTES));
        let answer_bytes_max: usize =
            field!(self.whole(raw.answer_bytes_max, 67_108_864, 1..=BYTES));
        let answers = (answer_bytes_max as u64).max(268_435_456);
        let answers = field!(self.whole(raw.answer_bytes_in_flight_max, answers, 1..=BYTES));
        if bodies < body_bytes_max {
            self.errors.add(
                "limits.body_bytes_in_flight_max",
                "must be at least body_bytes_max: otherwise the largest bodies are never accepted",
            );
        }
        if answers < answer_bytes_max as u64 {
            self.errors.add(
                "limits.answer_bytes_in_flight_max",
                "must be at least answer_bytes_max: otherwise the largest responses are never delivered",
            );
        }
        let body_timeout = field!(self.seconds(raw.body_seconds, 60, 1));
        let call_time_max = field!(self.seconds(raw.call_seconds, CALL_TIME_MAX.as_secs(), 1));
        Limits {
            catalog_requests_per_second: field!(self.whole(
                raw.catalog_requests_per_second,
                10,
                1..=MANY
            )),
            requests_per_second: field!(self.optional(raw.requests_per_second, 1..=MANY)),
            unknown_keys_per_second: field!(self.whole(raw.unknown_keys_per_second, 10, 1..=MANY)),
            unknown_keys_burst: field!(self.whole(raw.unknown_keys_burst, 300, 1..=MANY)),
            uri_bytes_max: field!(self.whole(raw.uri_bytes_max, 2048, 64..=65_536)),
            in_flight_max: field!(self.whole(raw.in_flight_max, 10_000, 1..=MANY)),
            body_bytes_max,
            body_bytes_in_flight_max: bodies,
            body_timeout,
            body_rate_min: field!(self.whole(raw.body_bytes_per_second_min, 1024, 1..=BYTES)),
            answer_bytes_max,
            answer_bytes_in_flight_max: answers,
            messages_max: field!(self.whole(raw.messages_max, 10_000, 1..=MANY)),
            connections: self.connections(raw, call_time_max + body_timeout + REQUEST_MARGIN),
            call_time_max,
            drain_timeout: field!(self.seconds(raw.drain_seconds, 30, 0)),
        }
    }

    fn connections(&mut self, raw: &RawLimits, longest: Duration) -> ConnectionLimits {
        let usual = ConnectionLimits::default();
        let per_address_max = usual.per_address_max as u64;
        let first_byte = usual.first_byte_timeout.as_secs();
        let (head_bytes_max, headers_max) = (usual.head_bytes_max as u64, usual.headers_max as u64);
        let longest = longest.as_secs().min(DAY_SECONDS);
        ConnectionLimits {
            max: field!(self.whole(raw.connections_max, usual.max as u64, 1..=CONNECTIONS)),
            per_address_max: field!(self.whole(
                raw.connections_per_address_max,
                per_address_max,
                1..=CONNECTIONS
            )),
            age_max: field!(self.seconds(raw.connection_age_seconds, usual.age_max.as_secs(), 1)),
            first_byte_timeout: field!(self.seconds(raw.first_byte_seconds, first_byte, 1)),
            head_timeout: field!(self.seconds(raw.head_seconds, usual.head_timeout.as_secs(), 1)),
            idle_timeout: field!(self.seconds(raw.idle_seconds, usual.idle_timeout.as_secs(), 1)),
            write_timeout: field!(self.seconds(
                raw.write_seconds,
                usual.write_timeout.as_secs(),
                1
            )),
            request_timeout: field!(self.seconds(raw.request_seconds, longest, 1)),
            headers_max: field!(self.whole(raw.headers_max, headers_max, 8..=1000)),
            head_bytes_max: field!(self.whole(
                raw.head_bytes_max,
                head_bytes_max,
                4096..=1_048_576
            )),
            h2: self.h2(raw, usual.h2),
        }
    }

    fn h2(&mut self, raw: &RawLimits, usual: H2Limits) -> H2Limits {
        let (stream, connection) = (usual.stream_window_bytes, usual.connection_window_bytes);
        let (ping, timeout) = (usual.ping_interval.as_secs(), usual.ping_timeout.as_secs());
        H2Limits {
            streams_max: field!(self.whole(
                raw.h2_streams_max,
                usual.streams_max.into(),
                1..=10_000
            )),
            stream_window_bytes: field!(self.whole(
                raw.h2_stream_window_bytes,
                stream.into(),
                WINDOW
            )),
            connection_window_bytes: field!(self.whole(
                raw.h2_connection_window_bytes,
                connection.into(),
                WINDOW
            )),
            ping_interval: field!(self.seconds(raw.h2_ping_seconds, ping, 1)),
            ping_timeout: field!(self.seconds(raw.h2_ping_timeout_seconds, timeout, 1)),
        }
    }
}

#[cfg(test)]
mod tests {
    use crate::{
        config::testing::{SMALL, assert_mistakes, changed, parse},
        net::files::Shares,
    };

    #[test]
    fn limit_outside_its_range_is_refused_with_the_range() {
        assert_mistakes(
            r#"
             | [limits]\nin_flight_max = 0 | limits.in_flight_max | 1 to
             | [limits]\nbody_bytes_in_flight_max = 1000 | limits.body_bytes_in_flight_max | body_bytes_max
             | [limits]\nanswer_bytes_in_flight_max = 1000 | limits.answer_bytes_in_flight_max | answer_bytes_max
             | [limits]\nh2_stream_window_bytes = 1000 | limits.h2_stream_window_bytes | 65535
             | [limits]\nhead_bytes_max = 100 | limits.head_bytes_max | 4096
        "#,
        );
    }

    #[test]
    fn connection_limit_defaults_to_the_open_files_that_connections_to_vendors_leave_free() {
        let callers = |text: &str| parse(text).unwrap().limits.connections.max;
        let of_vendor = "name = \"v\"\nconnections_max = 7";
        let few = changed("name = \"v\"", of_vendor);
        assert_eq!(callers(&few), Shares::of_process(7).callers);
        assert!(callers(&few) > callers(SMALL));
        let given = few.replace("[admin]", "[limits]\nconnections_max = 5\n[admin]");
        assert_eq!(callers(&given), 5);
        let text = changed("[admin]", "[admin]\nconnections_max = 3");
        assert_eq!(parse(&text).unwrap().admin.unwrap().connections_max, 3);
    }
}
