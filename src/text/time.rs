//! Formats and parses RFC 3339 times by calendar arithmetic, without time zone data.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use tollgate_ledger::calendar::day_of_date;
pub(crate) use tollgate_ledger::calendar::rfc3339;

const DAY_MS: i64 = 86_400_000;

pub(crate) fn now_ms() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH);
    millis(since.unwrap_or_default())
}

pub(crate) fn millis(time: Duration) -> u64 {
    u64::try_from(time.as_millis()).unwrap_or(u64::MAX)
}

/// Parses an RFC 3339 date-time, or a date alone, to Unix milliseconds. A date such as `2027-01-31` is its first moment
/// in UTC. `None` for any other text and for times before 1970.
pub(crate) fn parse_rfc3339_ms(text: &str) -> Option<u64> {
    let (year, rest) = number(text, 4)?;
    let (month, rest) = number(rest.strip_prefix('-')?, 2)?;
    let (day, rest) = number(rest.strip_prefix('-')?, 2)?;
    if !(1..=12).contains(&month) || !(1..=days_of_month(year, month)).contains(&day) {
        return None;
    }
    let midnight = day_of_date(year, month, day) * DAY_MS;
    let ms = if rest.is_empty() {
        midnight
    } else {
        midnight + time_of_day_ms(rest.strip_prefix(['T', 't', ' '])?)?
    };
    u64::try_from(ms).ok()
}

/// Returns a time in a form for people, at this offset from UTC: `23.11.2026 10:15 UTC`, or `23.11.2026 13:15
/// UTC+03:00`.
pub(crate) fn for_people(ms: u64, utc_offset_minutes: i32) -> String {
    let zone = match utc_offset_minutes {
        0 => String::new(),
        minutes => offset(minutes),
    };
    let text = rfc3339(ms.saturating_add_signed(i64::from(utc_offset_minutes) * 60_000));
    let (date, time) = text.split_once('T').unwrap_or((&text, ""));
    let mut date: Vec<_> = date.split('-').collect();
    date.reverse();
    format!(
        "{} {} UTC{zone}",
        date.join("."),
        time.get(..5).unwrap_or_default()
    )
}

/// Formats an offset from UTC, for example `+03:00`.
pub(crate) fn offset(minutes: i32) -> String {
    let sign = if minutes < 0 { '-' } else { '+' };
    let minutes = minutes.unsigned_abs();
    format!("{sign}{:02}:{:02}", minutes / 60, minutes % 60)
}

/// Returns the UTC date of a time: `2027-01-31`.
pub(crate) fn day(ms: u64) -> String {
    let mut text = rfc3339(ms);
    text.truncate("2027-01-31".len());
    text
}

/// Parses `HH:MM:SS`, an optional fraction, and the zone; returns milliseconds since midnight UTC.
fn time_of_day_ms(text: &str) -> Option<i64> {
    let (hour, rest) = number(text, 2)?;
    let (minute, rest) = number(rest.strip_prefix(':')?, 2)?;
    let (second, rest) = number(rest.strip_prefix(':')?, 2)?;
    if hour > 23 || minute > 59 || second > 59 {
        return None;
    }
    let (fraction, zone) = match rest.strip_prefix('.') {
        None => (0, rest),
        Some(rest) => {
            let digits = rest.bytes().take_while(u8::is_ascii_digit).count();
            // Digits of the fraction beyond a millisecond are cut off.
            let ms: String = rest[..digits].chars().chain("00".chars()).take(3).collect();
            if digits == 0 {
                return None;
            }
            (ms.parse::<i64>().ok()?, &rest[digits..])
        }
    };
    Some(((hour * 60 + minute) * 60 + second) * 1000 + fraction - zone_ms(zone)?)
}

/// Returns the time by which a zone is ahead of UTC, in milliseconds.
fn zone_ms(text: &str) -> Option<i64> {
    if matches!(text, "Z" | "z") {
        return Some(0);
    }
    let (sign, rest) = match text.strip_prefix('+') {
        Some(rest) => (1, rest),
        None => (-1, text.strip_prefix('-')?),
    };
    let (hour, rest) = number(rest, 2)?;
    let (minute, rest) = number(rest.strip_prefix(':')?, 2)?;
    (hour <= 23 && minute <= 59 && rest.is_empty()).then_some(sign * (hour * 60 + minute) * 60_000)
}

/// Returns a number of exactly `digits` digits, and the text after it.
fn number(text: &str, digits: usize) -> Option<(i64, &str)> {
    let (number, rest) = text.split_at_checked(digits)?;
    let is_plain = number.bytes().all(|byte| byte.is_ascii_digit());
    is_plain.then_some((number.parse().ok()?, rest))
}

fn days_of_month(year: i64, month: i64) -> i64 {
    match month {
        2 if year % 4 == 0 && (year % 100 != 0 || year % 400 == 0) => 29,
        2 => 28,
        4 | 6 | 9 | 11 => 30,
        _ => 31,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_round_trip_as_text() {
        for (text, ms, shown) in [
            ("1970-01-01", 0, "1970-01-01T00:00:00Z"),
            ("2024-02-29", 1_709_164_800_000, "2024-02-29T00:00:00Z"),
            (
                "2000-03-01T00:00:00Z",
                951_868_800_000,
                "2000-03-01T00:00:00Z",
            ),
            (
                "2001-09-09T01:46:40Z",
                1_000_000_000_000,
                "2001-09-09T01:46:40Z",
            ),
            (
                "2027-01-31t23:59:59.5z",
                1_801_439_999_500,
                "2027-01-31T23:59:59.500Z",
            ),
            (
                "2027-01-31 23:59:59.1239Z",
                1_801_439_999_123,
                "2027-01-31T23:59:59.123Z",
            ),
            (
                "2027-02-01T02:00:00+03:00",
                1_801_436_400_000,
                "2027-01-31T23:00:00Z",
            ),
            (
                "2027-01-31T20:30:00-02:30",
                1_801_436_400_000,
                "2027-01-31T23:00:00Z",
            ),
            (
                "9999-12-31T23:59:59.999Z",
                253_402_300_799_999,
                "9999-12-31T23:59:59.999Z",
            ),
        ] {
            assert_eq!(parse_rfc3339_ms(text), Some(ms), "{text}");
            assert_eq!(rfc3339(ms), shown);
        }
    }

    #[test]
    fn every_date_round_trips_as_text() {
        for day in 0..200_000 {
            let ms = day * DAY_MS.unsigned_abs();
            assert_eq!(parse_rfc3339_ms(&rfc3339(ms)), Some(ms));
        }
    }

    #[test]
    fn invalid_rfc_3339_time_is_refused() {
        for text in [
            "",
            "tomorrow",
            "2027",
            "2027-1-31",
            "2027-02-29",
            "2027-13-01",
            "2027-00-01",
            "2027-01-00",
            "1969-12-31",
            "31.01.2027",
            "2027-01-31T",
            "2027-01-31T24:00:00Z",
            "2027-01-31T00:00Z",
            "2027-01-31T00:00:00",
            "2027-01-31T00:00:00.Z",
            "2027-01-31T00:00:00+3",
            "2027-01-31T00:00:00Z ",
            "2027-01-ё1",
            "+027-01-31",
        ] {
            assert_eq!(parse_rfc3339_ms(text), None, "{text}");
        }
    }

    #[test]
    fn displayed_times_are_local_times_with_their_utc_offset() {
        for (minutes, text) in [
            (0, "18.11.2026 11:06 UTC"),
            (180, "18.11.2026 14:06 UTC+03:00"),
            (-690, "17.11.2026 23:36 UTC-11:30"),
        ] {
            assert_eq!(for_people(1_795_000_000_000, minutes), text);
        }
    }

    #[test]
    fn times_after_the_year_9999_are_clamped() {
        assert_eq!(rfc3339(u64::MAX), "9999-12-31T23:59:59.999Z");
    }
}
