//! Checks the section `[limits]`.

use std::{ops::RangeInclusive, time::Duration};

use super::{
    Limits,
    check::{CALL_TIME_MAX, Check, DAY_SECONDS, field_of},
    raw::RawLimits,
};
use crate::edge::server::{ConnectionLimits, H2Limits};

/// Reads a field of `[limits]`.
macro_rules! field {
    ($($call:tt)+) => {
        field_of!("limits": $($call)+)
    };
}

impl Check<'_> {
    pub(super) fn limits(&mut self, raw: &RawLimits) -> Option<Limits> {
        const MANY: u64 = 1_000_000;
        const BYTES: u64 = 1 << 40;
        let catalog = field!(self.whole(raw.catalog_requests_per_second, 10, 1..=MANY));
        let requests = match raw.requests_per_second {
            None => Some(None),
            Some(_) => field!(self.whole(raw.requests_per_second, 1, 1..=MANY)).map(Some),
        };
        let unknown_keys = field!(self.whole(raw.unknown_keys_per_second, 10, 1..=MANY));
        let unknown_keys_burst = field!(self.whole(raw.unknown_keys_burst, 300, 1..=MANY));
        let uri_bytes_max = field!(self.whole(raw.uri_bytes_max, 2048, 64..=65_536));
        let in_flight = field!(self.whole(raw.in_flight_max, 10_000, 1..=MANY));
        let body_bytes_max: Option<u64> =
            field!(self.whole(raw.body_bytes_max, 33_554_432, 1..=BYTES));
        let in_flight_bytes: Option<u64> = field!(self.whole(
            raw.body_bytes_in_flight_max,
            // The default has room for at least one body; otherwise the largest body would never be accepted.
            body_bytes_max.unwrap_or_default().max(536_870_912),
            1..=BYTES,
        ));
        if let (Some(one), Some(all)) = (body_bytes_max, in_flight_bytes)
            && all < one
        {
            self.errors.add(
                "limits.body_bytes_in_flight_max",
                "must be at least body_bytes_max, or the largest bodies are never accepted",
            );
        }
        let body_timeout = field!(self.seconds(raw.body_seconds, 60, 1));
        let body_rate_min = field!(self.whole(raw.body_bytes_per_second_min, 1024, 1..=BYTES));
        let answer_bytes_max = field!(self.whole(raw.answer_bytes_max, 67_108_864, 1..=BYTES));
        let answers_in_flight: Option<u64> = field!(
            self.whole(
                raw.answer_bytes_in_flight_max,
                // The default has room for at least one answer of the largest size.
                answer_bytes_max
                    .map_or(0, |bytes: usize| bytes as u64)
                    .max(268_435_456),
                1..=BYTES,
            )
        );
        if let (Some(one), Some(all)) = (answer_bytes_max, answers_in_flight)
            && all < one as u64
        {
            self.errors.add(
                "limits.answer_bytes_in_flight_max",
                "must be at least answer_bytes_max, or the longest answers are never delivered",
            );
        }
        let messages_max = field!(self.whole(raw.messages_max, 10_000, 1..=MANY));
        let call_time_max = field!(self.seconds(raw.call_seconds, CALL_TIME_MAX.as_secs(), 1));
        let drain_timeout = field!(self.seconds(raw.drain_seconds, 30, 0));
        // All attempts of a call together take at most this long, so a request that takes longer is stuck.
        let longest = [call_time_max, body_timeout].into_iter().flatten();
        let longest = longest.sum::<Duration>() + Duration::from_secs(300);
        let request_timeout =
            field!(self.seconds(raw.request_seconds, longest.as_secs().min(DAY_SECONDS), 1));
        let connections = self.connections(raw, request_timeout);
        Some(Limits {
            connections: connections?,
            catalog_requests_per_second: catalog?,
            requests_per_second: requests?,
            unknown_keys_per_second: unknown_keys?,
            unknown_keys_burst: unknown_keys_burst?,
            uri_bytes_max: uri_bytes_max?,
            in_flight_max: in_flight?,
            body_bytes_in_flight_max: in_flight_bytes?,
            body_bytes_max: body_bytes_max?,
            body_timeout: body_timeout?,
            body_rate_min: body_rate_min?,
            answer_bytes_max: answer_bytes_max?,
            answer_bytes_in_flight_max: answers_in_flight?,
            messages_max: messages_max?,
            call_time_max: call_time_max?,
            drain_timeout: drain_timeout?,
        })
    }

    fn connections(
        &mut self,
        raw: &RawLimits,
        request_timeout: Option<Duration>,
    ) -> Option<ConnectionLimits> {
        const MANY: u64 = 10_000_000;
        let usual = ConnectionLimits::default();
        let max = field!(self.whole(raw.connections_max, usual.max as u64, 1..=MANY));
        let per_address_max = field!(self.whole(
            raw.connections_per_address_max,
            usual.per_address_max as u64,
            1..=MANY,
        ));
        let age_max = field!(self.seconds(raw.connection_age_seconds, usual.age_max.as_secs(), 1));
        let first_byte = field!(self.seconds(
            raw.first_byte_seconds,
            usual.first_byte_timeout.as_secs(),
            1,
        ));
        let head = field!(self.seconds(raw.head_seconds, usual.head_timeout.as_secs(), 1));
        let idle = field!(self.seconds(raw.idle_seconds, usual.idle_timeout.as_secs(), 1));
        let write = field!(self.seconds(raw.write_seconds, usual.write_timeout.as_secs(), 1));
        let headers_max = field!(self.whole(raw.headers_max, usual.headers_max as u64, 8..=1000));
        let head_bytes_max = field!(self.whole(
            raw.head_bytes_max,
            usual.head_bytes_max as u64,
            4096..=1_048_576,
        ));
        let h2 = self.h2(raw, usual.h2);
        Some(ConnectionLimits {
            headers_max: headers_max?,
            head_bytes_max: head_bytes_max?,
            h2: h2?,
            max: max?,
            per_address_max: per_address_max?,
            first_byte_timeout: first_byte?,
            head_timeout: head?,
            idle_timeout: idle?,
            age_max: age_max?,
            request_timeout: request_timeout?,
            write_timeout: write?,
        })
    }

    fn h2(&mut self, raw: &RawLimits, usual: H2Limits) -> Option<H2Limits> {
        // The range goes from HTTP/2's initial window size to the largest size that the protocol can express.
        const WINDOW: RangeInclusive<u64> = 65_535..=0x7fff_ffff;
        let streams_max =
            field!(self.whole(raw.h2_streams_max, usual.streams_max.into(), 1..=10_000));
        let stream_window = field!(self.whole(
            raw.h2_stream_window_bytes,
            usual.stream_window_bytes.into(),
            WINDOW,
        ));
        let connection_window = field!(self.whole(
            raw.h2_connection_window_bytes,
            usual.connection_window_bytes.into(),
            WINDOW,
        ));
        let ping_interval =
            field!(self.seconds(raw.h2_ping_seconds, usual.ping_interval.as_secs(), 1));
        let ping_timeout =
            field!(self.seconds(raw.h2_ping_timeout_seconds, usual.ping_timeout.as_secs(), 1,));
        Some(H2Limits {
            streams_max: streams_max?,
            stream_window_bytes: stream_window?,
            connection_window_bytes: connection_window?,
            ping_interval: ping_interval?,
            ping_timeout: ping_timeout?,
        })
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
        assert_mistakes(&[
            (
                "[admin]",
                "[limits]\nin_flight_max = 0\n[admin]",
                "limits.in_flight_max",
                "1 to",
            ),
            (
                "[admin]",
                "[limits]\nbody_bytes_in_flight_max = 1000\n[admin]",
                "limits.body_bytes_in_flight_max",
                "body_bytes_max",
            ),
            (
                "[admin]",
                "[limits]\nanswer_bytes_in_flight_max = 1000\n[admin]",
                "limits.answer_bytes_in_flight_max",
                "answer_bytes_max",
            ),
            (
                "[admin]",
                "[limits]\nh2_stream_window_bytes = 1000\n[admin]",
                "limits.h2_stream_window_bytes",
                "65535",
            ),
            (
                "[admin]",
                "[limits]\nhead_bytes_max = 100\n[admin]",
                "limits.head_bytes_max",
                "4096",
            ),
        ]);
    }

    #[test]
    fn connection_limit_defaults_to_the_open_files_that_vendors_leave_free() {
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
