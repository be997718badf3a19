//! What `[limits]` means.

use std::{ops::RangeInclusive, time::Duration};

use super::{
    Limits,
    check::{CALL_TIME_MAX, Check, DAY_SECONDS},
    raw::RawLimits,
};
use crate::server::{ConnectionLimits, H2Limits};

impl Check<'_> {
    pub(super) fn limits(&mut self, raw: &RawLimits) -> Option<Limits> {
        const MANY: u64 = 1_000_000;
        const BYTES: u64 = 1 << 40;
        let catalog = self.whole(
            raw.catalog_requests_per_second,
            "limits.catalog_requests_per_second",
            10,
            1..=MANY,
        );
        let requests = match raw.requests_per_second {
            None => Some(None),
            some => self
                .whole(some, "limits.requests_per_second", 1, 1..=MANY)
                .map(Some),
        };
        let unknown_keys = self.whole(
            raw.unknown_keys_per_second,
            "limits.unknown_keys_per_second",
            10,
            1..=MANY,
        );
        let unknown_keys_burst = self.whole(
            raw.unknown_keys_burst,
            "limits.unknown_keys_burst",
            300,
            1..=MANY,
        );
        let uri_bytes_max =
            self.whole(raw.uri_bytes_max, "limits.uri_bytes_max", 2048, 64..=65_536);
        let in_flight = self.whole(raw.in_flight_max, "limits.in_flight_max", 10_000, 1..=MANY);
        let body_bytes_max = self.whole(
            raw.body_bytes_max,
            "limits.body_bytes_max",
            33_554_432,
            1..=BYTES,
        );
        let in_flight_bytes = self.whole(
            raw.body_bytes_in_flight_max,
            "limits.body_bytes_in_flight_max",
            // Room for one body at least, or none could ever come.
            body_bytes_max.unwrap_or_default().max(536_870_912),
            1..=BYTES,
        );
        if let (Some(one), Some(all)) = (body_bytes_max, in_flight_bytes)
            && all < one
        {
            self.errors.add(
                "limits.body_bytes_in_flight_max",
                "must be at least body_bytes_max, or the largest bodies are never taken",
            );
        }
        let body_timeout = self.seconds(raw.body_seconds, "limits.body_seconds", 60, 1);
        let body_rate_min = self.whole(
            raw.body_bytes_per_second_min,
            "limits.body_bytes_per_second_min",
            1024,
            1..=BYTES,
        );
        let answer_bytes_max = self.whole(
            raw.answer_bytes_max,
            "limits.answer_bytes_max",
            67_108_864,
            1..=BYTES,
        );
        let messages_max = self.whole(raw.messages_max, "limits.messages_max", 10_000, 1..=MANY);
        let call_time_max = self.seconds(
            raw.call_seconds,
            "limits.call_seconds",
            CALL_TIME_MAX.as_secs(),
            1,
        );
        let drain_timeout = self.seconds(raw.drain_seconds, "limits.drain_seconds", 30, 0);
        // All attempts at a call take no longer than this; what does is stuck.
        let longest = [call_time_max, body_timeout].into_iter().flatten();
        let longest = longest.sum::<Duration>() + Duration::from_secs(300);
        let request_timeout = self.seconds(
            raw.request_seconds,
            "limits.request_seconds",
            longest.as_secs().min(DAY_SECONDS),
            1,
        );
        let connections = self.connections(raw, request_timeout);
        Some(Limits {
            connections: connections?,
            catalog_requests_per_second: u32::try_from(catalog?).ok()?,
            requests_per_second: match requests? {
                None => None,
                Some(requests) => Some(u32::try_from(requests).ok()?),
            },
            unknown_keys_per_second: u32::try_from(unknown_keys?).ok()?,
            unknown_keys_burst: u32::try_from(unknown_keys_burst?).ok()?,
            uri_bytes_max: usize::try_from(uri_bytes_max?).ok()?,
            in_flight_max: usize::try_from(in_flight?).ok()?,
            body_bytes_in_flight_max: in_flight_bytes?,
            body_bytes_max: body_bytes_max?,
            body_timeout: body_timeout?,
            body_rate_min: body_rate_min?,
            answer_bytes_max: usize::try_from(answer_bytes_max?).ok()?,
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
        let usual = ConnectionLimits::default();
        let max = self.whole(
            raw.connections_max,
            "limits.connections_max",
            usual.max as u64,
            1..=10_000_000,
        );
        let per_address_max = self.whole(
            raw.connections_per_address_max,
            "limits.connections_per_address_max",
            usual.per_address_max as u64,
            1..=10_000_000,
        );
        let mut seconds = |given, name: &str, usual: Duration| {
            self.seconds(given, &format!("limits.{name}_seconds"), usual.as_secs(), 1)
        };
        let age_max = seconds(raw.connection_age_seconds, "connection_age", usual.age_max);
        let first_byte = seconds(
            raw.first_byte_seconds,
            "first_byte",
            usual.first_byte_timeout,
        );
        let head = seconds(raw.head_seconds, "head", usual.head_timeout);
        let idle = seconds(raw.idle_seconds, "idle", usual.idle_timeout);
        let write = seconds(raw.write_seconds, "write", usual.write_timeout);
        let headers_max = self.whole(
            raw.headers_max,
            "limits.headers_max",
            usual.headers_max as u64,
            8..=1000,
        );
        let head_bytes_max = self.whole(
            raw.head_bytes_max,
            "limits.head_bytes_max",
            usual.head_bytes_max as u64,
            4096..=1_048_576,
        );
        let h2 = self.h2(raw, usual.h2);
        Some(ConnectionLimits {
            headers_max: usize::try_from(headers_max?).ok()?,
            head_bytes_max: usize::try_from(head_bytes_max?).ok()?,
            h2: h2?,
            max: usize::try_from(max?).ok()?,
            per_address_max: usize::try_from(per_address_max?).ok()?,
            first_byte_timeout: first_byte?,
            head_timeout: head?,
            idle_timeout: idle?,
            age_max: age_max?,
            request_timeout: request_timeout?,
            write_timeout: write?,
        })
    }

    fn h2(&mut self, raw: &RawLimits, usual: H2Limits) -> Option<H2Limits> {
        // What HTTP/2 itself begins with is the least, and what it can express the most.
        const WINDOW: RangeInclusive<u64> = 65_535..=0x7fff_ffff;
        let streams_max = self.whole(
            raw.h2_streams_max,
            "limits.h2_streams_max",
            usual.streams_max.into(),
            1..=10_000,
        );
        let stream_window = self.whole(
            raw.h2_stream_window_bytes,
            "limits.h2_stream_window_bytes",
            usual.stream_window_bytes.into(),
            WINDOW,
        );
        let connection_window = self.whole(
            raw.h2_connection_window_bytes,
            "limits.h2_connection_window_bytes",
            usual.connection_window_bytes.into(),
            WINDOW,
        );
        let ping_interval = self.seconds(
            raw.h2_ping_seconds,
            "limits.h2_ping_seconds",
            usual.ping_interval.as_secs(),
            1,
        );
        let ping_timeout = self.seconds(
            raw.h2_ping_timeout_seconds,
            "limits.h2_ping_timeout_seconds",
            usual.ping_timeout.as_secs(),
            1,
        );
        Some(H2Limits {
            streams_max: u32::try_from(streams_max?).ok()?,
            stream_window_bytes: u32::try_from(stream_window?).ok()?,
            connection_window_bytes: u32::try_from(connection_window?).ok()?,
            ping_interval: ping_interval?,
            ping_timeout: ping_timeout?,
        })
    }
}
