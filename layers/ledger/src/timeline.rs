//! How a call went, in time: when its money was held, which vendors were tried, when the first byte came, when it ended.
//!
//! A receipt keeps it as a line of text of some twenty bytes, `3 4 1063 5003 200`: money held, the last vendor asked, its
//! first byte, the end, all in milliseconds since the request came in, then the status of the answer; `-` where there is
//! none. Each attempt that failed before stands behind a `|`: when it began, how long it took, the status and the code
//! that its failure has for callers, the vendor: `|4 1059 502 vendor_unavailable acme-eu`.

use std::{fmt, str::FromStr, sync::Arc};

use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// How many failed attempts are kept; a call has fewer.
pub const FAILED_MAX: usize = 16;

/// How a call went. Times are milliseconds since its request came in.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Timeline {
    /// When money was held for it.
    pub held_ms: u32,
    /// When the vendor was asked that answered; `None` where none did.
    pub asked_ms: Option<u32>,
    /// When the first byte of its answer was there.
    pub first_byte_ms: Option<u32>,
    /// When the call ended, and was settled.
    pub whole_ms: u32,
    /// The status that its client was answered with; `None` where there was no answer from a vendor: then the last of
    /// `failed` says what was told, unless the client had left.
    pub status: Option<u16>,
    /// Attempts that failed, in their order.
    pub failed: Vec<FailedAttempt>,
}

/// An attempt that failed before its first byte.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FailedAttempt {
    /// When it began.
    pub at_ms: u32,
    /// How long it took.
    pub took_ms: u32,
    /// The status that its failure has for callers.
    pub status: u16,
    /// The code that it has for them.
    pub code: Arc<str>,
    /// Who was asked.
    pub vendor: Arc<str>,
}

impl Timeline {
    /// Notes an attempt that failed; beyond [`FAILED_MAX`] nothing.
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
            // What parts attempts is in no name of ours; in an operator's it gives way.
            let vendor = vendor.replace('|', "/");
            write!(f, "|{at_ms} {took_ms} {status} {code} {vendor}")?;
        }
        Ok(())
    }
}

/// A text is no timeline.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("is no timeline of a call")]
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

/// Reads what a ledger has kept. A later version may tell of more than this one understands: money that is booked must
/// be read all the same.
#[cfg(feature = "settle")]
pub(crate) fn kept<'de, D: Deserializer<'de>>(
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
    fn a_timeline_is_a_short_line_and_is_read_as_it_was_written() {
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
        // What comes later may say more behind the status.
        assert!("0 - - 0 - 7".parse::<Timeline>().is_ok());
        for bad in ["", "1", "x - - 0 -", "0 - - 0 -|", "0 - - 0 -|1 2 502 code"] {
            assert_eq!(bad.parse::<Timeline>(), Err(TimelineError), "{bad}");
        }
    }

    #[test]
    fn a_name_that_would_part_attempts_gives_way_and_there_are_not_too_many() {
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
