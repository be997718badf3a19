//! What a key may spend: in all, in a day, in a month. Days and months are those of UTC.

use std::{fmt, str::FromStr};

use serde::{Deserialize, Serialize};

use crate::{
    calendar::{date_of_day, day_begins_ms, day_of, month_begins_ms},
    money::MicroRub,
};

/// The most that a key may spend, where it is limited.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Ceilings {
    /// In all.
    pub total: Option<MicroRub>,
    /// In a month.
    pub month: Option<MicroRub>,
    /// In a day.
    pub day: Option<MicroRub>,
}

impl Ceilings {
    /// No limit.
    pub const NONE: Self = Self {
        total: None,
        month: None,
        day: None,
    };

    /// So much in all.
    #[must_use]
    pub const fn total(amount: MicroRub) -> Self {
        Self {
            total: Some(amount),
            ..Self::NONE
        }
    }
}

/// One of a key's ceilings, or of its group's.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Ceiling {
    /// Of all that it spends.
    Total,
    /// Of the current month.
    Month {
        /// When the next one begins, in Unix milliseconds.
        resets_at_ms: u64,
    },
    /// Of the current day.
    Day {
        /// When the next one begins, in Unix milliseconds.
        resets_at_ms: u64,
    },
    /// Of all that the keys of its group spend together.
    GroupTotal,
    /// Of what they spend in the current month.
    GroupMonth {
        /// When the next one begins, in Unix milliseconds.
        resets_at_ms: u64,
    },
    /// Of what they spend in the current day.
    GroupDay {
        /// When the next one begins, in Unix milliseconds.
        resets_at_ms: u64,
    },
}

impl Ceiling {
    /// The same of the key's group.
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

    /// When it begins anew, in Unix milliseconds. `None` where it never does.
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

    /// That of the month which comes so many after January 1970.
    #[must_use]
    pub fn of_month(month: u64) -> Self {
        Self::Month {
            resets_at_ms: month_begins_ms(month.saturating_add(1)),
        }
    }

    /// That of the day which comes so many after 1970-01-01.
    #[must_use]
    pub const fn of_day(day: u64) -> Self {
        Self::Day {
            resets_at_ms: day_begins_ms(day.saturating_add(1)),
        }
    }

    /// The day on which it begins anew, as `2027-01-31`; at 00:00 UTC. `None` where it never does.
    #[must_use]
    pub fn resets_on(&self) -> Option<String> {
        let day = i64::try_from(day_of(self.resets_at_ms()?)).ok()?;
        let (year, month, day) = date_of_day(day);
        Some(format!("{year:04}-{month:02}-{day:02}"))
    }
}

/// A day or a month of a key: which one, and what the key had used before it began. What it has spent in
/// it is the difference to what it has used by now.
///
/// As text it is `<index>:<micro-rubles>`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Period {
    /// So many days or months after the first of 1970.
    pub index: u64,
    /// Used before it.
    pub before: MicroRub,
}

impl Period {
    /// The current period, where the clock says `now`: this one, or a new one if a key that has used so
    /// much has spent nothing in it yet.
    ///
    /// A clock that goes back over midnight, as after a failover to another server, does not begin the
    /// last period anew.
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

    /// What a key that has used so much by now has spent in it.
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

/// The text is no period's.
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
    fn a_ceiling_says_when_it_begins_anew() {
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
    fn a_period_lasts_until_the_next_one() {
        let period = Period::default().at(20, micro(70));
        assert_eq!(period.spent(micro(70)), micro(0));
        assert_eq!(period.at(20, micro(100)).spent(micro(100)), micro(30));
        assert_eq!(period.at(21, micro(100)).spent(micro(100)), micro(0));
        // The clock went back a little, or was wrong altogether.
        assert_eq!(period.at(19, micro(100)).spent(micro(100)), micro(30));
        assert_eq!(period.at(18, micro(100)).spent(micro(100)), micro(0));
    }

    #[test]
    fn a_period_comes_back_from_its_text() {
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
