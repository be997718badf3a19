//! Days and months in UTC, computed without a date library.

/// The number of milliseconds in a day.
pub const DAY_MS: u64 = 86_400_000;
/// The latest time that RFC 3339 can represent: the last millisecond of the year 9999. A year in RFC 3339 has four
/// digits.
const LAST_MS: u64 = 253_402_300_799_999;

/// Returns the number of days from 1970-01-01 to the day of a Unix time in milliseconds.
#[must_use]
pub const fn day_of(ms: u64) -> u64 {
    ms / DAY_MS
}

/// Returns the number of months from January 1970 to the month of a Unix time in milliseconds.
#[must_use]
pub fn month_of(ms: u64) -> u64 {
    let day = i64::try_from(day_of(ms)).expect("the number of days in 2⁶⁴ ms fits in an i64");
    let (year, month, _) = date_of_day(day);
    u64::try_from((year - 1970) * 12 + month - 1)
        .expect("a time in Unix milliseconds is not before 1970")
}

/// Returns the beginning of a day in Unix milliseconds. `day` is the number of days since 1970-01-01.
#[must_use]
pub const fn day_begins_ms(day: u64) -> u64 {
    day.saturating_mul(DAY_MS)
}

/// Returns the beginning of a month in Unix milliseconds. `month` is the number of months since January 1970.
#[must_use]
pub fn month_begins_ms(month: u64) -> u64 {
    // Limited to 2⁴⁰ months, which is later than any time in 64-bit milliseconds.
    let month = i64::try_from(month.min(1 << 40)).expect("2⁴⁰ fits in an i64");
    let day = day_of_date(1970 + month / 12, month % 12 + 1, 1);
    day_begins_ms(u64::try_from(day).expect("a time in Unix milliseconds is not before 1970"))
}

/// Returns the number of days from 1970-01-01 to a date. For the computation, a year begins in March, so that the leap
/// day is its last day, and years are grouped into eras of 400 years, which all have the same number of days.
#[must_use]
pub const fn day_of_date(year: i64, month: i64, day: i64) -> i64 {
    let year = if month <= 2 { year - 1 } else { year };
    let (era, year_of_era) = (year.div_euclid(400), year.rem_euclid(400));
    let day_of_year = (153 * ((month + 9) % 12) + 2) / 5 + day - 1;
    era * 146_097 + year_of_era * 365 + year_of_era / 4 - year_of_era / 100 + day_of_year - 719_468
}

/// Returns the year, the month (from 1) and the day (from 1) that are `days` days after 1970-01-01. The inverse of
/// [`day_of_date`].
#[must_use]
pub const fn date_of_day(days: i64) -> (i64, i64, i64) {
    let days = days + 719_468;
    let (era, day_of_era) = (days.div_euclid(146_097), days.rem_euclid(146_097));
    let year_of_era =
        (day_of_era - day_of_era / 1460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let month_from_march = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * month_from_march + 2) / 5 + 1;
    let month = (month_from_march + 2) % 12 + 1;
    let year = era * 400 + year_of_era;
    (if month <= 2 { year + 1 } else { year }, month, day)
}

/// Formats a time as RFC 3339 in UTC, for example `2027-01-31T00:00:00Z`. Milliseconds are written only if they are not
/// zero.
#[must_use]
pub fn rfc3339(ms: u64) -> String {
    let ms = i64::try_from(ms.min(LAST_MS)).expect("the year 9999 fits in an i64");
    let day_ms = DAY_MS.cast_signed();
    let (year, month, day) = date_of_day(ms / day_ms);
    let (seconds, fraction) = (ms % day_ms / 1000, ms % 1000);
    let (hour, minute, second) = (seconds / 3600, seconds / 60 % 60, seconds % 60);
    let fraction = if fraction == 0 {
        String::new()
    } else {
        format!(".{fraction:03}")
    };
    format!("{year:04}-{month:02}-{day:02}T{hour:02}:{minute:02}:{second:02}{fraction}Z")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn day_number_and_date_convert_to_each_other() {
        for (day, date) in [
            (0, (1970, 1, 1)),
            (-1, (1969, 12, 31)),
            (11_016, (2000, 2, 29)),
            (19_782, (2024, 2, 29)),
            (20_513, (2026, 3, 1)),
        ] {
            assert_eq!(date_of_day(day), date);
            let (year, month, of_month) = date;
            assert_eq!(day_of_date(year, month, of_month), day);
        }
    }

    #[test]
    fn every_millisecond_is_assigned_to_the_right_day_and_month() {
        for (ms, day, month) in [
            (0, 0, 0),
            (DAY_MS - 1, 0, 0),
            (DAY_MS, 1, 0),
            (31 * DAY_MS - 1, 30, 0),
            (31 * DAY_MS, 31, 1),
            // The last millisecond of 2024-02-29, and the first of 2024-03-01.
            (19_783 * DAY_MS - 1, 19_782, 54 * 12 + 1),
            (19_783 * DAY_MS, 19_783, 54 * 12 + 2),
            // The last millisecond of 2026.
            (20_819 * DAY_MS - 1, 20_818, 57 * 12 - 1),
        ] {
            assert_eq!((day_of(ms), month_of(ms)), (day, month), "{ms}");
            assert!(day_begins_ms(day) <= ms && ms < day_begins_ms(day + 1));
            assert!(month_begins_ms(month) <= ms && ms < month_begins_ms(month + 1));
        }
    }

    #[test]
    fn any_millisecond_has_a_date_without_overflow() {
        assert_eq!(day_begins_ms(u64::MAX), u64::MAX);
        assert_eq!(month_begins_ms(u64::MAX), u64::MAX);
        assert_eq!(month_of(u64::MAX) / 12 + 1970, 584_556_019);
    }
}
