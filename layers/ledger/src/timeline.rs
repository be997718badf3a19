//! The timing of a call: when its money was held, which vendors were tried, when the first byte arrived, and when the
//! call ended.
//!
//! A receipt stores the timing as a line of about twenty bytes, for example `3 4 1063 5003 200`. The first four numbers
//! are times in milliseconds since the request arrived: the hold, the last attempt, the first byte, the end. The fifth
//! number is the status of the response. A `-` means a missing value. A part such as `|4 1059 502 vendor_unavailable
//! acme-eu` follows for each failed attempt: its beginning, its duration, the status and the error code that the caller
//! would get for it, and the vendor.

use std::{fmt, str::FromStr, sync::Arc};

use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// The largest number of failed attempts that a timeline stores. No call makes this many attempts.
pub const FAILED_MAX: usize = 16;

/// The timing of a call. All times are in milliseconds since the request arrived.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Timeline {
    /// When the money for the call was held.
    pub held_ms: u32,
    /// When the request was sent to the vendor that served the call; `None` if no vendor answered.
    pub asked_ms: Option<u32>,
    /// When the first byte of the response arrived; `None` if none arrived.
    pub first_byte_ms: Option<u32>,
    /// When the call ended and was settled.
    pub whole_ms: u32,
    /// The status of the response to the client; `None` if no vendor answered. In this case the client got the status
    /// of the last attempt in `failed`, unless it had disconnected.
    pub status: Option<u16>,
    /// The failed attempts, in order.
    pub failed: Vec<FailedAttempt>,
}

/// An attempt that failed before the first byte of a response arrived.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FailedAttempt {
    /// When the attempt began, in milliseconds since the request arrived.
    pub at_ms: u32,
    /// How long the attempt took, in milliseconds.
    pub took_ms: u32,
    /// The status that the caller gets for this failure if no later attempt succeeds.
    pub status: u16,
    /// The error code that the caller gets for this failure if no later attempt succeeds.
    pub code: Arc<str>,
    /// The vendor's name.
    pub vendor: Arc<str>,
}

impl Timeline {
    /// Adds a failed attempt. It is ignored if [`FAILED_MAX`] attempts are stored already.
    pub fn failed(&mut self, attempt: FailedAttempt) {
        if self.failed.len() < FAILED_MAX {
            self.failed.push(attempt);
        }
    }
}

impl fmt::Display for Timeline {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let or_dash = |value: Option<u32>| {
            fmt::from_fn(move |f| match value {
                Some(value) => write!(f, "{value}"),
                None => f.write_str("-"),
            })
        };
        let (held_ms, asked_ms) = (self.held_ms, or_dash(self.asked_ms));
        let (first_byte_ms, whole_ms) = (or_dash(self.first_byte_ms), self.whole_ms);
        let status = or_dash(self.status.map(u32::from));
        write!(
            f,
            "{held_ms} {asked_ms} {first_byte_ms} {whole_ms} {status}"
        )?;
        for attempt in &self.failed {
            // Names that the gateway makes do not contain the separator. Operators choose the vendors' names, so a
            // separator in a vendor's name is replaced.
            let vendor = attempt.vendor.replace('|', "/");
            let (at_ms, took_ms) = (attempt.at_ms, attempt.took_ms);
            let (status, code) = (attempt.status, &attempt.code);
            write!(f, "|{at_ms} {took_ms} {status} {code} {vendor}")?;
        }
        Ok(())
    }
}

/// The error for a text that is not a valid timeline.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the text is not a valid timeline of a call")]
pub struct TimelineError;

impl FromStr for Timeline {
    type Err = TimelineError;

    fn from_str(text: &str) -> Result<Self, TimelineError> {
        let mut parts = text.split('|');
        let mut times = parts.next().unwrap_or_default().split(' ');
        let mut next = || times.next().ok_or(TimelineError);
        let line = Self {
            held_ms: number(next()?)?,
            asked_ms: or_none(next()?)?,
            first_byte_ms: or_none(next()?)?,
            whole_ms: number(next()?)?,
            status: or_none(next()?)?,
            failed: parts.map(attempt).collect::<Result<_, _>>()?,
        };
        Ok(line)
    }
}

fn attempt(text: &str) -> Result<FailedAttempt, TimelineError> {
    let mut fields = text.splitn(5, ' ');
    let mut next = || fields.next().ok_or(TimelineError);
    Ok(FailedAttempt {
        at_ms: number(next()?)?,
        took_ms: number(next()?)?,
        status: number(next()?)?,
        code: next()?.into(),
        vendor: next()?.into(),
    })
}

fn number<T: FromStr>(text: &str) -> Result<T, TimelineError> {
    text.parse().map_err(|_| TimelineError)
}

fn or_none<T: FromStr>(text: &str) -> Result<Option<T>, TimelineError> {
    match text {
        "-" => Ok(None),
        text => number(text).map(Some),
    }
}

impl Serialize for Timeline {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for Timeline {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        text.parse().map_err(serde::de::Error::custom)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn full() -> Timeline {
        let failed = |at_ms, vendor: &str| FailedAttempt {
            at_ms,
            took_ms: 1059,
            status: 502,
            code: "vendor_unavailable".into(),
            vendor: vendor.into(),
        };
        Timeline {
            held_ms: 3,
            asked_ms: Some(1063),
            first_byte_ms: Some(1500),
            whole_ms: 5003,
            status: Some(200),
            failed: vec![failed(4, "acme eu"), failed(1063, "b")],
        }
    }

    #[test]
    fn timeline_round_trips_as_a_short_line() {
        let usual = Timeline {
            failed: Vec::new(),
            ..full()
        };
        for (line, text) in [
            (usual, "3 1063 1500 5003 200"),
            (
                full(),
                "3 1063 1500 5003 200|4 1059 502 vendor_unavailable acme eu|1063 1059 502 vendor_unavailable b",
            ),
            (Timeline::default(), "0 - - 0 -"),
        ] {
            assert_eq!(line.to_string(), text);
            assert_eq!(text.parse(), Ok(line.clone()));
            let json = serde_json::to_string(&line).unwrap();
            assert_eq!(serde_json::from_str::<Timeline>(&json).unwrap(), line);
        }
        // A later version may add fields after the status. They are ignored.
        assert!("0 - - 0 - 7".parse::<Timeline>().is_ok());
        for bad in ["", "1", "x - - 0 -", "0 - - 0 -|", "0 - - 0 -|1 2 502 code"] {
            assert_eq!(bad.parse::<Timeline>(), Err(TimelineError), "{bad}");
        }
    }

    #[test]
    fn timeline_replaces_separators_in_vendor_names_and_limits_the_number_of_attempts() {
        let mut line = full();
        line.failed[0].vendor = "a|b".into();
        let read: Timeline = line.to_string().parse().unwrap();
        assert_eq!(&*read.failed[0].vendor, "a/b");
        for _ in 0..2 * FAILED_MAX {
            line.failed(full().failed.remove(0));
        }
        assert_eq!(line.failed.len(), FAILED_MAX);
    }
}
