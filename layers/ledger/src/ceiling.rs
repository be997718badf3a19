//! Spending limits of keys and groups: in total, per month, per day. Months and days are in UTC.

use std::{fmt, str::FromStr};

#[cfg(feature = "serde")]
use serde::{Deserialize, Serialize};

use crate::{
    calendar::{date_of_day, day_begins_ms, day_of, month_begins_ms},
    money::MicroRub,
};

/// The most that a key or a group may spend. `None` means no limit.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(Serialize, Deserialize))]
pub struct Ceilings {
    /// The limit of spending in total.
    pub total: Option<MicroRub>,
    /// The limit of spending per calendar month.
    pub month: Option<MicroRub>,
    /// The limit of spending per calendar day.
    pub day: Option<MicroRub>,
}

impl Ceilings {
    /// Ceilings that limit nothing.
    pub const NONE: Self = Self {
        total: None,
        month: None,
        day: None,
    };

    /// Creates ceilings that limit only the total spending.
    #[must_use]
    pub const fn total(amount: MicroRub) -> Self {
        Self {
            total: Some(amount),
            ..Self::NONE
        }
    }
}

/// Which ceiling refused a hold: a ceiling of the key, or a ceiling of the key's group.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(Serialize, Deserialize))]
pub enum Ceiling {
    /// The key's ceiling on its total spending.
    Total,
    /// The key's ceiling for the current month.
    Month {
        /// The time at which the next month begins, in Unix milliseconds.
        resets_at_ms: u64,
    },
    /// The key's ceiling for the current day.
    Day {
        /// The time at which the next day begins, in Unix milliseconds.
        resets_at_ms: u64,
    },
    /// The group's ceiling on its total spending.
    GroupTotal,
    /// The group's ceiling for the current month.
    GroupMonth {
        /// The time at which the next month begins, in Unix milliseconds.
        resets_at_ms: u64,
    },
    /// The group's ceiling for the current day.
    GroupDay {
        /// The time at which the next day begins, in Unix milliseconds.
        resets_at_ms: u64,
    },
}

impl Ceiling {
    /// Returns the ceiling of the key's group over the same period.
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

    /// Returns when the ceiling resets, in Unix milliseconds. `None` if it never does.
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

    /// Creates the ceiling of a month, given as months after January 1970.
    #[must_use]
    pub fn of_month(month: u64) -> Self {
        Self::Month {
            resets_at_ms: month_begins_ms(month.saturating_add(1)),
        }
    }

    /// Creates the ceiling of a day, given as days after 1970-01-01.
    #[must_use]
    pub const fn of_day(day: u64) -> Self {
        Self::Day {
            resets_at_ms: day_begins_ms(day.saturating_add(1)),
        }
    }

    /// Returns the day on which the ceiling resets at 00:00 UTC, as `2027-01-31`. `None` if it never does.
    #[must_use]
    pub fn resets_on(&self) -> Option<String> {
        let day = i64::try_from(day_of(self.resets_at_ms()?)).ok()?;
        let (year, month, day) = date_of_day(day);
        Some(format!("{year:04}-{month:02}-{day:02}"))
    }
}

/// A day or a month, with the usage that a key had before this period began. The key's spending in the period is its
/// present usage minus its usage before the period.
///
/// The text form of a period is `<index>:<micro-rubles>`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Period {
    /// The period's index: days after 1970-01-01, or months after January 1970.
    pub index: u64,
    /// The spending before the period began.
    pub before: MicroRub,
}

impl Period {
    /// Returns the period that contains `now`: this period, or a new period that begins with the usage `used`, so that
    /// its spending is zero.
    ///
    /// If the clock goes back over midnight, as after a failover to another server, the stored period continues and its
    /// spending is not reset.
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

    /// Returns the spending in the period, if the key's present usage is `used`.
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

/// The error of a text that does not describe a period.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("a period is two whole numbers with a colon between them")]
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
    fn reset_period_of_a_ceiling_round_trips_as_text() {
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
