//! The timing of a call: when its money was held, which vendors were tried, when the first byte arrived, and when the
//! call ended.
//!
//! A receipt stores the timing as a line of text of about twenty bytes, `3 4 1063 5003 200`. The first four numbers are
//! times in milliseconds since the request arrived: hold, last attempt, first byte, end. The fifth is the status of the
//! answer. A `-` means a missing value. Each earlier, failed attempt follows after a `|`: its beginning, its duration,
//! the status and the error code that callers would get for it, and the vendor:
//! `|4 1059 502 vendor_unavailable acme-eu`.

use std::{fmt, str::FromStr, sync::Arc};

use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// The largest number of failed attempts that are stored; calls have fewer.
pub const FAILED_MAX: usize = 16;

/// The timing of a call. Times are in milliseconds since its request arrived.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Timeline {
    /// The time at which the call's money was held.
    pub held_ms: u32,
    /// When the request was sent to the vendor that answered; `None` if no vendor answered.
    pub asked_ms: Option<u32>,
    /// The time at which the first byte of the answer arrived.
    pub first_byte_ms: Option<u32>,
    /// The time at which the call ended and was settled.
    pub whole_ms: u32,
    /// The status of the answer to the client; `None` if no vendor answered. In that case the last of `failed` has the
    /// status that the client got, unless it had disconnected.
    pub status: Option<u16>,
    /// The attempts that failed, in order.
    pub failed: Vec<FailedAttempt>,
}

/// An attempt that failed before the first byte of its answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FailedAttempt {
    /// The time at which the attempt began.
    pub at_ms: u32,
    /// How long the attempt took, in milliseconds.
    pub took_ms: u32,
    /// The status that callers get for this failure, if it is the last.
    pub status: u16,
    /// The error code that callers get for this failure, if it is the last.
    pub code: Arc<str>,
    /// The vendor's name.
    pub vendor: Arc<str>,
}

impl Timeline {
    /// Adds a failed attempt. Ignores it if there are [`FAILED_MAX`] already.
    pub fn failed(&mut self, attempt: FailedAttempt) {
        if self.failed.len() < FAILED_MAX {
            self.failed.push(attempt);
        }
    }
}

impl fmt::Display for Timeline {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let or_none = |f: &mut fmt::Formatter<'_>, value: Option<u32>| match value {
            Some(value) => write!(f, "{value} "),
            None => f.write_str("- "),
        };
        write!(f, "{} ", self.held_ms)?;
        or_none(f, self.asked_ms)?;
        or_none(f, self.first_byte_ms)?;
        write!(f, "{} ", self.whole_ms)?;
        match self.status {
            Some(status) => write!(f, "{status}")?,
            None => f.write_str("-")?,
        }
        for attempt in &self.failed {
            let FailedAttempt {
                at_ms,
                took_ms,
                status,
                code,
                vendor,
            } = attempt;
            // The separator does not appear in names that the gateway makes. In an operator's name of a vendor it is
            // replaced.
            let vendor = vendor.replace('|', "/");
            write!(f, "|{at_ms} {took_ms} {status} {code} {vendor}")?;
        }
        Ok(())
    }
}

/// The error of a text that is not a valid timeline.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the text is not a call's timeline")]
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

/// Reads a timeline from a stored receipt. A text that only a later version can parse becomes `None`, so that the
/// receipt stays readable.
#[cfg(feature = "settle")]
pub(crate) fn stored<'de, D: Deserializer<'de>>(
    deserializer: D,
) -> Result<Option<Timeline>, D::Error> {
    let text: Option<String> = Option::deserialize(deserializer)?;
    Ok(text.and_then(|text| text.parse().ok()))
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
        // A later version may add fields after the status, which are ignored.
        assert!("0 - - 0 - 7".parse::<Timeline>().is_ok());
        for bad in ["", "1", "x - - 0 -", "0 - - 0 -|", "0 - - 0 -|1 2 502 code"] {
            assert_eq!(bad.parse::<Timeline>(), Err(TimelineError), "{bad}");
        }
    }

    #[test]
    fn timeline_replaces_separators_in_vendor_names_and_limits_its_attempts() {
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
