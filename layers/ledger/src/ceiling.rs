//! Ceilings: limits of what a key or a group may spend in total, per month and per day. Months and days are in UTC.

use std::{fmt, str::FromStr};

#[cfg(feature = "serde")]
use serde::{Deserialize, Serialize};

use crate::{
    calendar::{date_of_day, day_begins_ms, day_of, month_begins_ms},
    money::MicroRub,
};

/// The most that a key or a group may spend. A field that is `None` sets no limit.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(Serialize, Deserialize))]
pub struct Ceilings {
    /// The limit of the total spending.
    pub total: Option<MicroRub>,
    /// The limit of the spending per calendar month.
    pub month: Option<MicroRub>,
    /// The limit of the spending per calendar day.
    pub day: Option<MicroRub>,
}

impl Ceilings {
    /// No ceilings: nothing is limited.
    pub const NONE: Self = Self {
        total: None,
        month: None,
        day: None,
    };

    /// Creates ceilings that limit only the total spending to `amount`.
    #[must_use]
    pub const fn total(amount: MicroRub) -> Self {
        Self {
            total: Some(amount),
            ..Self::NONE
        }
    }
}

/// The ceiling that refused a hold: a ceiling of the key, or of the key's group.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(Serialize, Deserialize))]
pub enum Ceiling {
    /// The key's ceiling on its total spending.
    Total,
    /// The key's ceiling for the current month.
    Month {
        /// Unix time in milliseconds at which the next month begins.
        resets_at_ms: u64,
    },
    /// The key's ceiling for the current day.
    Day {
        /// Unix time in milliseconds at which the next day begins.
        resets_at_ms: u64,
    },
    /// The group's ceiling on its total spending.
    GroupTotal,
    /// The group's ceiling for the current month.
    GroupMonth {
        /// Unix time in milliseconds at which the next month begins.
        resets_at_ms: u64,
    },
    /// The group's ceiling for the current day.
    GroupDay {
        /// Unix time in milliseconds at which the next day begins.
        resets_at_ms: u64,
    },
}

impl Ceiling {
    /// Returns the ceiling with the same period, but of the key's group.
    #[must_use]
    pub const fn of_group(self) -> Self {
        match self {
            Self::Total | Self::GroupTotal => Self::GroupTotal,
            Self::Month { resets_at_ms } | Self::GroupMonth { resets_at_ms } => {
                Self::GroupMonth { resets_at_ms }
            }
            Self::Day { resets_at_ms } | Self::GroupDay { resets_at_ms } => {
                Self::GroupDay { resets_at_ms }
            }
        }
    }

    /// Returns when the ceiling resets, in Unix milliseconds. `None` for a ceiling on total spending, which never
    /// resets.
    #[must_use]
    pub const fn resets_at_ms(self) -> Option<u64> {
        match self {
            Self::Total | Self::GroupTotal => None,
            Self::Month { resets_at_ms }
            | Self::Day { resets_at_ms }
            | Self::GroupMonth { resets_at_ms }
            | Self::GroupDay { resets_at_ms } => Some(resets_at_ms),
        }
    }

    /// Creates a key's ceiling for a month. `month` is the number of months since January 1970.
    #[must_use]
    pub fn of_month(month: u64) -> Self {
        Self::Month {
            resets_at_ms: month_begins_ms(month.saturating_add(1)),
        }
    }

    /// Creates a key's ceiling for a day. `day` is the number of days since 1970-01-01.
    #[must_use]
    pub const fn of_day(day: u64) -> Self {
        Self::Day {
            resets_at_ms: day_begins_ms(day.saturating_add(1)),
        }
    }

    /// Returns the date on which the ceiling resets (at 00:00 UTC), for example `2027-01-31`. `None` if it never
    /// resets.
    #[must_use]
    pub fn resets_on(&self) -> Option<String> {
        let day = i64::try_from(day_of(self.resets_at_ms()?)).ok()?;
        let (year, month, day) = date_of_day(day);
        Some(format!("{year:04}-{month:02}-{day:02}"))
    }
}

/// A day or a month, with the total spending of a key before it began. The spending in the period is the present total
/// minus this value.
///
/// The text form is `<index>:<micro-rubles>`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Period {
    /// Which day or month it is: days since 1970-01-01, or months since January 1970.
    pub index: u64,
    /// The total spending before the period began.
    pub before: MicroRub,
}

impl Period {
    /// Returns the period with the index `now`. If that period is new, its spending begins at zero: `used`, the present
    /// total spending, is stored as the spending before it.
    ///
    /// If the clock goes back by one period, for example over midnight after a failover to another server, the stored
    /// period continues and its spending is not reset.
    #[must_use]
    pub fn at(self, now: u64, used: MicroRub) -> Self {
        if self.index == now || self.index == now.saturating_add(1) {
            self
        } else {
            Self {
                index: now,
                before: used,
            }
        }
    }

    /// Returns the spending in the period. `used` is the present total spending.
    #[must_use]
    pub fn spent(self, used: MicroRub) -> MicroRub {
        used.minus_or_zero(self.before)
    }
}

impl fmt::Display for Period {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.index, self.before.micro())
    }
}

/// The error for a text that is not a period.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("a period must be two whole numbers with a colon between them")]
pub struct PeriodError;

impl FromStr for Period {
    type Err = PeriodError;

    fn from_str(text: &str) -> Result<Self, PeriodError> {
        let (index, before) = text.split_once(':').ok_or(PeriodError)?;
        Ok(Self {
            index: index.parse().map_err(|_| PeriodError)?,
            before: MicroRub::new(before.parse().map_err(|_| PeriodError)?),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const fn micro(amount: i64) -> MicroRub {
        MicroRub::new(amount)
    }

    #[test]
    fn ceiling_reports_the_time_of_its_next_reset() {
        let (day, month) = (Ceiling::of_day(20_512), Ceiling::of_month(56 * 12 + 11));
        assert_eq!(
            day,
            Ceiling::Day {
                resets_at_ms: 20_513 * 86_400_000
            }
        );
        assert_eq!(day.resets_on().as_deref(), Some("2026-03-01"));
        assert_eq!(month.resets_on().as_deref(), Some("2027-01-01"));
        assert_eq!(day.of_group().resets_on(), day.resets_on());
        assert_eq!(Ceiling::Total.resets_on(), None);
        assert_eq!(Ceiling::Total.of_group().resets_on(), None);
    }

    #[test]
    fn spending_against_a_ceiling_is_reset_when_its_day_or_month_ends() {
        let period = Period::default().at(20, micro(70));
        assert_eq!(period.spent(micro(70)), micro(0));
        assert_eq!(period.at(20, micro(100)).spent(micro(100)), micro(30));
        assert_eq!(period.at(21, micro(100)).spent(micro(100)), micro(0));
        // If the clock goes back by one period, the spending is kept. If it goes back further, the spending is reset.
        assert_eq!(period.at(19, micro(100)).spent(micro(100)), micro(30));
        assert_eq!(period.at(18, micro(100)).spent(micro(100)), micro(0));
    }

    #[test]
    fn period_of_a_ceiling_round_trips_as_text() {
        let period = Period {
            index: 20_513,
            before: MicroRub::MAX,
        };
        assert_eq!(period.to_string(), "20513:9007199254740991");
        assert_eq!(period.to_string().parse(), Ok(period));
        for text in ["", "1", ":", "1:", ":1", "a:1", "-1:1"] {
            assert_eq!(text.parse::<Period>(), Err(PeriodError), "{text}");
        }
    }
}
