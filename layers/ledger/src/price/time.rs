//! Time conditions of prices: hours of the day and weekdays (both in UTC), and the time from which a price is valid.

use std::{fmt, ops::RangeInclusive};

use serde::{Deserialize, Deserializer, Serialize, Serializer, de};

use crate::calendar::{DAY_MS, day_of};

const MINUTE_MS: u64 = 60_000;
const MINUTES_PER_DAY: u16 = 1_440;
const MINUTES_PER_WEEK: u64 = 7 * MINUTES_PER_DAY as u64;

/// Hours of the day in UTC, to the minute. The text form is a list of spans such as `01:00-04:00`. The end of a span is
/// exclusive: `01:00-04:00` contains 03:59 and not 04:00. A span whose end is earlier than its beginning continues
/// after midnight. The default contains every minute of the day.
#[derive(Clone, Copy, Default, PartialEq, Eq, Hash)]
pub struct Hours {
    /// One bit per minute of the day; a set bit excludes the minute. All bits of the default are 0, so it contains
    /// every minute.
    excluded: [u64; WORDS],
}

const WORDS: usize = MINUTES_PER_DAY.div_ceil(64) as usize;

/// Days of the week in UTC. The text form is a list of `mon`, `tue`, `wed`, `thu`, `fri`, `sat` and `sun`. The default
/// contains every day.
#[derive(Clone, Copy, Default, PartialEq, Eq, Hash)]
pub struct Weekdays {
    /// One bit per weekday, Monday first; a set bit excludes the day.
    excluded: u8,
}

/// The moment of a call at which the hours and weekdays of a price are checked.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Moment {
    /// The moment when the request arrived.
    #[default]
    Request,
    /// The moment when the head of the vendor's response arrived.
    FirstByte,
    /// The moment when the response ended.
    End,
}

/// The moments of a call at which a price condition may be checked, in Unix milliseconds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CallTimes {
    /// When the request arrived.
    pub request_ms: u64,
    /// When the head of the vendor's response arrived, or when the call ended if no response arrived.
    pub first_byte_ms: u64,
    /// When the response ended.
    pub end_ms: u64,
}

/// The range of times in which a call that has just arrived can run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PossibleTimes {
    /// When the request arrived, in Unix milliseconds.
    pub request_ms: u64,
    /// The latest time at which the call can end, in Unix milliseconds.
    pub end_max_ms: u64,
}

/// The error for a configured text that is not a span of hours, or not the name of a weekday.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct TimeError(&'static str);

impl Hours {
    /// Returns whether the hours contain every minute of the day.
    #[must_use]
    pub fn is_every(&self) -> bool {
        *self == Self::default()
    }

    /// Parses a list of spans. An empty list contains every minute of the day.
    ///
    /// # Errors
    /// A [`TimeError`] if a text is not a span.
    pub fn from_spans<T: AsRef<str>>(spans: &[T]) -> Result<Self, TimeError> {
        if spans.is_empty() {
            return Ok(Self::default());
        }
        let mut hours = Self {
            excluded: [u64::MAX; WORDS],
        };
        for text in spans {
            let (first, minutes) = span(text.as_ref())?;
            for minute in first..first + minutes {
                let minute = usize::from(minute % MINUTES_PER_DAY);
                hours.excluded[minute / 64] &= !(1 << (minute % 64));
            }
        }
        // The last word of the bit set has more bits than the day has minutes left. These spare bits are always 0, so
        // that equal hours compare as equal.
        hours.excluded[WORDS - 1] &= u64::MAX >> (WORDS * 64 - usize::from(MINUTES_PER_DAY));
        Ok(hours)
    }

    fn contains(&self, minute: u16) -> bool {
        let minute = usize::from(minute);
        self.excluded[minute / 64] >> (minute % 64) & 1 == 0
    }

    fn minutes(&self) -> u32 {
        let excluded: u32 = self.excluded.iter().map(|word| word.count_ones()).sum();
        u32::from(MINUTES_PER_DAY) - excluded
    }

    /// Returns the spans, earliest first. A span that continues after midnight is the last one.
    #[must_use]
    pub fn spans(&self) -> Vec<String> {
        if self.is_every() {
            return Vec::new();
        }
        let at = |minute: u16| self.contains(minute % MINUTES_PER_DAY);
        let begins = |minute: &u16| at(*minute) && !at(*minute + MINUTES_PER_DAY - 1);
        let spans = (0..MINUTES_PER_DAY).filter(begins).map(|first| {
            let end = (first..).find(|minute| !at(*minute)).unwrap_or(first);
            // A span until midnight ends with `24:00`: with `00:00`, the span `00:00-00:00` would look empty.
            let end = match end {
                MINUTES_PER_DAY => MINUTES_PER_DAY,
                end => end % MINUTES_PER_DAY,
            };
            let [first, end] = [first, end].map(|it| format!("{:02}:{:02}", it / 60, it % 60));
            format!("{first}-{end}")
        });
        spans.collect()
    }

    fn and(self, other: Self) -> Self {
        let mut both = self;
        for (one, other) in both.excluded.iter_mut().zip(other.excluded) {
            *one |= other;
        }
        both
    }
}

/// Parses a span of hours. Returns its first minute of the day, and the number of its minutes.
fn span(text: &str) -> Result<(u16, u16), TimeError> {
    let wrong = TimeError("not a span of hours: write for example \"01:00-04:00\"");
    let minute = |text: &str| {
        let (hour, minute) = text.split_once(':')?;
        let number = |text: &str| match text.as_bytes() {
            [b'0'..=b'9', b'0'..=b'9'] => text.parse::<u16>().ok(),
            _ => None,
        };
        let (hour, minute) = (number(hour)?, number(minute)?);
        let at = hour * 60 + minute;
        (minute < 60 && at <= MINUTES_PER_DAY).then_some(at)
    };
    let (first, end) = text.split_once('-').ok_or(wrong)?;
    let (first, end) = minute(first).zip(minute(end)).ok_or(wrong)?;
    if first == MINUTES_PER_DAY {
        return Err(wrong);
    }
    if first == end {
        return Err(TimeError(
            "an empty span of hours: its beginning equals its end",
        ));
    }
    let minutes = match first < end {
        true => end - first,
        false => end + MINUTES_PER_DAY - first,
    };
    Ok((first, minutes))
}

impl Weekdays {
    const NAMES: [&'static str; 7] = ["mon", "tue", "wed", "thu", "fri", "sat", "sun"];

    /// Returns whether the weekdays contain every day.
    #[must_use]
    pub fn is_every(&self) -> bool {
        self.excluded == 0
    }

    /// Parses a list of weekdays. An empty list contains every day.
    ///
    /// # Errors
    /// A [`TimeError`] if a text is not a weekday.
    pub fn from_names<T: AsRef<str>>(names: &[T]) -> Result<Self, TimeError> {
        if names.is_empty() {
            return Ok(Self::default());
        }
        let mut days = Self { excluded: 0x7f };
        for name in names {
            let day = Self::NAMES.iter().position(|it| *it == name.as_ref());
            let day = day.ok_or(TimeError(
                "not a weekday: write mon, tue, wed, thu, fri, sat or sun",
            ))?;
            days.excluded &= !(1 << day);
        }
        Ok(days)
    }

    /// Returns the names of the days, Monday first. The list is empty if every day is contained.
    #[must_use]
    pub fn names(&self) -> Vec<&'static str> {
        if self.is_every() {
            return Vec::new();
        }
        let days = (0..7).filter(|day| self.contains(*day));
        days.map(|day| Self::NAMES[usize::from(day)]).collect()
    }

    fn contains(&self, day: u8) -> bool {
        self.excluded >> day & 1 == 0
    }
}

/// The part of a price condition that depends on time. A call meets it if every field matches.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct TimeCondition {
    pub(super) hours: Hours,
    pub(super) weekdays: Weekdays,
    pub(super) at: Moment,
    /// The request arrives at this Unix time in milliseconds, or later.
    pub(super) valid_from_ms: Option<u64>,
}

impl TimeCondition {
    pub(super) fn is_always(&self) -> bool {
        !self.has_hours() && self.valid_from_ms.is_none()
    }

    pub(super) fn has_hours(&self) -> bool {
        !(self.hours.is_every() && self.weekdays.is_every())
    }

    fn is_valid(&self, request_ms: u64) -> bool {
        self.valid_from_ms.is_none_or(|from| request_ms >= from)
    }

    /// Returns whether a call at these times meets the condition.
    pub(super) fn holds(&self, times: &CallTimes) -> bool {
        let ms = match self.at {
            Moment::Request => times.request_ms,
            Moment::FirstByte => times.first_byte_ms,
            Moment::End => times.end_ms,
        };
        self.is_valid(times.request_ms)
            && (!self.has_hours() || self.contains_minute(ms / MINUTE_MS))
    }

    /// Returns whether a call with these possible times can meet the condition. If `times` is `None`, the call may run
    /// at any time.
    pub(super) fn can_hold(&self, times: Option<&PossibleTimes>) -> bool {
        times.is_none_or(|times| self.is_valid(times.request_ms))
            && self
                .minutes(times)
                .is_none_or(|mut minutes| minutes.any(|minute| self.contains_minute(minute)))
    }

    /// Returns whether a call meets the condition at each of its possible times.
    pub(super) fn must_hold(&self, times: Option<&PossibleTimes>) -> bool {
        let is_valid = times.is_some_and(|times| self.is_valid(times.request_ms));
        (is_valid || self.valid_from_ms.is_none())
            && (!self.has_hours()
                || self
                    .minutes(times)
                    .is_some_and(|mut minutes| minutes.all(|minute| self.contains_minute(minute))))
    }

    /// Returns the range of minutes in which the deciding moment of the call can be, counted from 1970. `None` if it
    /// can be any minute of a week.
    fn minutes(&self, times: Option<&PossibleTimes>) -> Option<RangeInclusive<u64>> {
        let times = times?;
        let first = times.request_ms / MINUTE_MS;
        let last = match self.at {
            Moment::Request => first,
            Moment::FirstByte | Moment::End => (times.end_max_ms / MINUTE_MS).max(first),
        };
        (last - first < MINUTES_PER_WEEK).then_some(first..=last)
    }

    fn contains_minute(&self, minute: u64) -> bool {
        let ms = minute.saturating_mul(MINUTE_MS);
        let of_day = u16::try_from(ms % DAY_MS / MINUTE_MS).expect("a day has 1440 minutes");
        self.weekdays.contains(weekday(ms)) && self.hours.contains(of_day)
    }

    /// Returns the condition that a call meets if it meets both `self` and `other`; `None` if no minute meets both.
    pub(super) fn and(&self, other: &Self) -> Option<Self> {
        let both = Self {
            hours: self.hours.and(other.hours),
            weekdays: Weekdays {
                excluded: self.weekdays.excluded | other.weekdays.excluded,
            },
            at: if self.has_hours() { self.at } else { other.at },
            valid_from_ms: self.valid_from_ms.max(other.valid_from_ms),
        };
        (both.minutes_per_week() > 0).then_some(both)
    }

    /// Returns how many minutes of a week meet the condition. The fewer minutes, the more specific the condition.
    pub(super) fn minutes_per_week(&self) -> u32 {
        let days = 7 - self.weekdays.excluded.count_ones();
        days * self.hours.minutes()
    }
}

/// Returns the weekday of a Unix time in milliseconds: 0 for Monday, 6 for Sunday.
fn weekday(ms: u64) -> u8 {
    // 1 January 1970 was a Thursday.
    u8::try_from((day_of(ms) + 3) % 7).expect("a week has seven days")
}

impl CallTimes {
    /// Returns the times of a call that begins and ends at the same moment.
    #[must_use]
    pub const fn at(ms: u64) -> Self {
        Self {
            request_ms: ms,
            first_byte_ms: ms,
            end_ms: ms,
        }
    }
}

impl PossibleTimes {
    /// Returns the times of a call whose response head arrived at `first_byte_ms` and that ended at `end_ms`. A time
    /// outside the possible times, which occurs if the system clock was changed, is replaced by the nearest possible
    /// time. Otherwise a clock change could make a call cost more than its hold.
    #[must_use]
    pub fn narrowed(&self, first_byte_ms: Option<u64>, end_ms: u64) -> CallTimes {
        let (first, last) = (self.request_ms, self.end_max_ms.max(self.request_ms));
        let end_ms = end_ms.clamp(first, last);
        CallTimes {
            request_ms: first,
            first_byte_ms: first_byte_ms.unwrap_or(end_ms).clamp(first, end_ms),
            end_ms,
        }
    }
}

impl Moment {
    /// Returns the moment's name in configuration and receipts.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Request => "request",
            Self::FirstByte => "first_byte",
            Self::End => "end",
        }
    }

    /// Returns whether this is the arrival of the request: the default, which receipts omit.
    #[expect(
        clippy::trivially_copy_pass_by_ref,
        reason = "serde requires a reference"
    )]
    pub(super) fn is_request(&self) -> bool {
        *self == Self::Request
    }
}

/// Returns the start of each minute of a week, in Unix milliseconds, beginning with the minute of `from_ms`.
pub(super) fn week_from(from_ms: u64) -> impl Iterator<Item = u64> {
    let first = from_ms / MINUTE_MS;
    (first..=first + MINUTES_PER_WEEK).map(|minute| minute * MINUTE_MS)
}

impl fmt::Debug for Hours {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.spans().fmt(f)
    }
}

impl fmt::Debug for Weekdays {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.names().fmt(f)
    }
}

impl Serialize for Hours {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_seq(self.spans())
    }
}

impl<'de> Deserialize<'de> for Hours {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        Self::from_spans(&Vec::<String>::deserialize(deserializer)?).map_err(de::Error::custom)
    }
}

impl Serialize for Weekdays {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_seq(self.names())
    }
}

impl<'de> Deserialize<'de> for Weekdays {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        Self::from_names(&Vec::<String>::deserialize(deserializer)?).map_err(de::Error::custom)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn price_hours_are_read_and_written_as_time_spans() {
        for (given, written) in [
            (
                &["01:00-04:00", "06:00-10:00"][..],
                "01:00-04:00 06:00-10:00",
            ),
            (&["06:00-10:00", "03:00-06:30"], "03:00-10:00"),
            (&["22:00-24:00"], "22:00-24:00"),
            (&["22:00-00:00"], "22:00-24:00"),
            (&["16:30-00:30"], "16:30-00:30"),
            (&["22:00-24:00", "00:00-01:00"], "22:00-01:00"),
            (&["23:59-00:01", "12:00-12:01"], "12:00-12:01 23:59-00:01"),
            (&["00:00-24:00"], ""),
            (&[], ""),
        ] {
            let hours = Hours::from_spans(given).unwrap();
            assert_eq!(hours.spans().join(" "), written);
            let json = serde_json::to_string(&hours).unwrap();
            assert_eq!(serde_json::from_str::<Hours>(&json).unwrap(), hours);
        }
        for wrong in [
            "",
            "1:00-2:00",
            "01:00",
            "01:00-25:00",
            "01:60-02:00",
            "24:00-01:00",
            "01:00-01:00",
            "+1:00-02:00",
            "01:00-24:01",
            "01:00–04:00",
        ] {
            assert!(Hours::from_spans(&[wrong]).is_err(), "{wrong}");
        }
    }

    #[test]
    fn weekdays_are_read_and_written_as_names() {
        let days = Weekdays::from_names(&["fri", "mon"]).unwrap();
        assert_eq!(serde_json::to_string(&days).unwrap(), r#"["mon","fri"]"#);
        assert_eq!(
            serde_json::from_str::<Weekdays>(r#"["mon","fri"]"#).unwrap(),
            days
        );
        assert!(Weekdays::from_names(&Weekdays::NAMES).unwrap().is_every());
        assert!(Weekdays::from_names(&["Mon"]).is_err());
    }

    /// Compares every minute of two weeks with a clock that counts minutes instead of dividing: is the minute in
    /// DeepSeek's peak hours?
    #[test]
    fn price_hours_of_every_minute_of_two_weeks_agree_with_an_independent_clock() {
        let peak = TimeCondition {
            hours: Hours::from_spans(&["01:00-04:00", "06:00-10:00"]).unwrap(),
            weekdays: Weekdays::from_names(&["mon", "tue", "wed", "thu", "fri"]).unwrap(),
            ..TimeCondition::default()
        };
        let night = TimeCondition {
            hours: Hours::from_spans(&["22:30-01:30"]).unwrap(),
            weekdays: Weekdays::from_names(&["sun"]).unwrap(),
            ..TimeCondition::default()
        };
        // Monday, 30 November 2026, 00:00 UTC, as `date -ud 2026-11-30 +%s` prints it.
        let mut ms = 1_795_996_800_000_u64;
        assert_eq!(ms % 86_400_000, 0);
        let (mut peak_minutes, mut night_minutes) = (0, 0);
        for day in ["mo", "tu", "we", "th", "fr", "sa", "su"].repeat(2) {
            for hour in 0..24 {
                for minute in 0..60 {
                    let is_peak = day != "sa" && day != "su" && matches!(hour, 1..=3 | 6..=9);
                    let clock = (hour, minute);
                    // The weekday of the minute itself decides. After midnight, this is not the weekday on which the
                    // span began.
                    let is_night = day == "su" && !((1, 30)..(22, 30)).contains(&clock);
                    // The first and the last millisecond of the minute are classified alike.
                    for at in [ms, ms + 59_999].map(CallTimes::at) {
                        assert_eq!(peak.holds(&at), is_peak, "{day} {clock:?}");
                        assert_eq!(night.holds(&at), is_night, "{day} {clock:?}");
                    }
                    peak_minutes += u32::from(is_peak);
                    night_minutes += u32::from(is_night);
                    ms += 60_000;
                }
            }
        }
        assert_eq!(peak_minutes, 2 * peak.minutes_per_week());
        assert_eq!(night_minutes, 2 * night.minutes_per_week());
        assert_eq!((peak_minutes, night_minutes), (2 * 35 * 60, 2 * 180));
    }

    #[test]
    fn price_hours_are_checked_for_the_whole_span_from_the_request_to_the_calls_latest_end() {
        let second = |hour: u64, minute: u64| 1_795_996_800_000 + (hour * 60 + minute) * 60_000;
        let peak = |at| TimeCondition {
            hours: Hours::from_spans(&["01:00-04:00"]).unwrap(),
            at,
            ..TimeCondition::default()
        };
        // The columns are: the time of the request; the latest end; whether the call can meet the condition, and
        // whether it must meet it, if the time of the first byte or of the end decides.
        for (request, end, may, must) in [
            ((0, 40), (0, 59), false, false),
            ((0, 40), (1, 0), true, false),
            ((1, 0), (3, 59), true, true),
            ((3, 50), (4, 0), true, false),
            ((4, 0), (4, 20), false, false),
        ] {
            let times = PossibleTimes {
                request_ms: second(request.0, request.1),
                end_max_ms: second(end.0, end.1),
            };
            for at in [Moment::FirstByte, Moment::End] {
                assert_eq!(peak(at).can_hold(Some(&times)), may, "{times:?}");
                assert_eq!(peak(at).must_hold(Some(&times)), must, "{times:?}");
            }
            // If the time of the request decides, this time is known, so the call certainly meets the condition or
            // certainly does not.
            let by_request = peak(Moment::Request);
            let is_peak = by_request.holds(&CallTimes::at(times.request_ms));
            assert_eq!(by_request.can_hold(Some(&times)), is_peak);
            assert_eq!(by_request.must_hold(Some(&times)), is_peak);
        }
        let at_end = peak(Moment::End);
        assert!(at_end.can_hold(None) && !at_end.must_hold(None));
        let whole_week = PossibleTimes {
            request_ms: second(12, 0),
            end_max_ms: u64::MAX,
        };
        assert!(at_end.can_hold(Some(&whole_week)) && !at_end.must_hold(Some(&whole_week)));
    }

    #[test]
    fn impossible_times_of_a_call_are_moved_into_the_possible_range() {
        let times = PossibleTimes {
            request_ms: 1_000,
            end_max_ms: 5_000,
        };
        for (first_byte, end, expected) in [
            (Some(2_000), 3_000, [2_000, 3_000]),
            (None, 3_000, [3_000, 3_000]),
            // The system clock was set back in the first of these two cases, and forward in the second.
            (Some(2_000), 10, [1_000, 1_000]),
            (Some(9_000), 9_000, [5_000, 5_000]),
        ] {
            let narrowed = times.narrowed(first_byte, end);
            assert_eq!(narrowed.request_ms, 1_000);
            assert_eq!([narrowed.first_byte_ms, narrowed.end_ms], expected);
        }
    }
}
