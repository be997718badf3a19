//! What a ledger tells of itself: events in one order, and the levels at which it tells that money runs low.

use std::{fmt, str::FromStr};

use serde::{Deserialize, Serialize};

use crate::{
    account::{AccountId, GroupId, KeyId},
    money::MicroRub,
};

/// How many levels an account, a key or a group has at most.
pub const LEVELS_MAX: usize = 4;

/// Of what levels are, within an account.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Watched {
    /// Its balance.
    Balance,
    /// What is left under the ceilings of a key.
    Key(KeyId),
    /// What is left under the ceilings of a group.
    Group(GroupId),
}

/// What is left when somebody wants to know: of an account's balance, or of what a key or a group of keys may still spend
/// under each of its ceilings. Highest first, none twice.
///
/// As text they are whole micro-rubles with a comma between them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Levels([MicroRub; LEVELS_MAX]);

/// Why amounts are no levels.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("levels are up to {LEVELS_MAX} amounts above 0, none twice")]
pub struct LevelsError;

impl Levels {
    /// Nothing is told.
    pub const NONE: Self = Self([MicroRub::ZERO; LEVELS_MAX]);

    /// These levels, in any order.
    ///
    /// # Errors
    /// There are too many, one is not above 0, or stands there twice.
    pub fn new(levels: &[MicroRub]) -> Result<Self, LevelsError> {
        let mut sorted = Self::NONE;
        if levels.len() > LEVELS_MAX || levels.iter().any(|level| *level <= MicroRub::ZERO) {
            return Err(LevelsError);
        }
        sorted.0[..levels.len()].copy_from_slice(levels);
        sorted.0.sort_unstable_by(|a, b| b.cmp(a));
        let twice = sorted
            .iter()
            .zip(sorted.iter().skip(1))
            .any(|(a, b)| a == b);
        if twice { Err(LevelsError) } else { Ok(sorted) }
    }

    /// The levels, highest first.
    pub fn iter(&self) -> impl Iterator<Item = MicroRub> + '_ {
        self.0
            .iter()
            .copied()
            .take_while(|level| *level > MicroRub::ZERO)
    }

    /// Whether there is none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0[0] == MicroRub::ZERO
    }

    /// The lowest level that what is left has come down to, from above it.
    #[must_use]
    pub fn passed(&self, before: MicroRub, after: MicroRub) -> Option<MicroRub> {
        self.iter()
            .filter(|level| after <= *level && *level < before)
            .last()
    }
}

impl fmt::Display for Levels {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, level) in self.iter().enumerate() {
            let comma = if index > 0 { "," } else { "" };
            write!(f, "{comma}{}", level.micro())?;
        }
        Ok(())
    }
}

impl FromStr for Levels {
    type Err = LevelsError;

    fn from_str(text: &str) -> Result<Self, LevelsError> {
        let levels = text.split_terminator(',');
        let levels = levels.map(|level| level.parse().map(MicroRub::new).map_err(|_| LevelsError));
        Self::new(&levels.collect::<Result<Vec<_>, _>>()?)
    }
}

impl Serialize for Levels {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_seq(self.iter())
    }
}

/// A ceiling counts as reached when no more than so many parts of it are left: what is left beyond that pays for
/// hardly any call.
pub const REACHED_PARTS: i64 = 100;

/// What is left of a ceiling when it counts as reached.
#[must_use]
pub fn reached(ceiling: MicroRub) -> MicroRub {
    MicroRub::new(ceiling.micro() / REACHED_PARTS)
}

/// Which of the ceilings of a key, or of a group.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum CeilingKind {
    /// Of all that it spends.
    Total,
    /// Of the month.
    Month,
    /// Of the day.
    Day,
}

/// Something that happened to money, or to what earns it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case")]
#[non_exhaustive]
pub enum Happening {
    /// A balance has come down to a level.
    BalanceLow {
        /// The lowest level that was passed.
        level_rub: MicroRub,
        /// What is left.
        balance_rub: MicroRub,
        /// The call's number, or the correction's id.
        by: String,
    },
    /// What may be spent under a ceiling has come down to a level.
    CeilingLow {
        /// The group whose ceiling it is; `None` where it is the key's own.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        group: Option<GroupId>,
        /// Which ceiling.
        ceiling: CeilingKind,
        /// The ceiling.
        ceiling_rub: MicroRub,
        /// The lowest level that was passed.
        level_rub: MicroRub,
        /// What is left under it.
        left_rub: MicroRub,
        /// The call's number.
        by: String,
    },
    /// A ceiling is reached: see [`reached`].
    CeilingReached {
        /// The group whose ceiling it is; `None` where it is the key's own.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        group: Option<GroupId>,
        /// Which ceiling.
        ceiling: CeilingKind,
        /// The ceiling.
        ceiling_rub: MicroRub,
        /// What is left under it.
        left_rub: MicroRub,
        /// The call's number.
        by: String,
    },
    /// A payment.
    TopUp {
        /// Its id.
        entry: String,
        /// How much.
        amount_rub: MicroRub,
        /// The balance behind it.
        balance_rub: MicroRub,
    },
    /// A correction.
    Correction {
        /// Its id.
        entry: String,
        /// How much, signed.
        amount_rub: MicroRub,
        /// Why.
        reason: String,
        /// The balance behind it.
        balance_rub: MicroRub,
    },
    /// A key will not be let in soon.
    KeyExpiring {
        /// From when on, in Unix milliseconds.
        expires_at_ms: u64,
    },
    /// No call is sent to a vendor by one of the gateways.
    VendorOut {
        /// Which one.
        vendor: String,
    },
    /// Calls are sent to a vendor again, by all gateways.
    VendorBack {
        /// Which one.
        vendor: String,
    },
    /// A call was sold below its cost.
    MarginNegative {
        /// Its model.
        model: String,
        /// Who answered.
        vendor: String,
        /// What was charged.
        charged_rub: MicroRub,
        /// What the vendor takes.
        vendor_cost_rub: MicroRub,
        /// The call's number.
        by: String,
    },
    /// An audit found breaches.
    AuditBreach {
        /// How many.
        breaches: u64,
        /// The first.
        first: String,
    },
    /// The exchange rate has not been read for too long.
    RateStale {
        /// Since when the rate in force has not been confirmed, in Unix milliseconds.
        since_ms: u64,
    },
    /// Refunded money that the balance could not give back: somebody owes it.
    Debt {
        /// The refund's id.
        entry: String,
        /// How much is owed.
        debt_rub: MicroRub,
    },
    /// Money was not had by the saved card that an account is topped up by.
    AutoTopupFailed {
        /// Who keeps the card.
        provider: String,
        /// How much was asked for.
        amount_rub: MicroRub,
        /// Why.
        reason: String,
        /// Whether the card is not tried any more.
        off: bool,
        /// Where the payer may pay it instead.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        url: Option<String>,
    },
    /// What a later version tells, and this one does not know.
    #[serde(other)]
    Unknown,
}

impl Happening {
    /// The words for all that are made now.
    pub const KINDS: [&str; 13] = [
        "balance_low",
        "ceiling_low",
        "ceiling_reached",
        "top_up",
        "correction",
        "key_expiring",
        "vendor_out",
        "vendor_back",
        "margin_negative",
        "audit_breach",
        "rate_stale",
        "debt",
        "auto_topup_failed",
    ];

    /// Its word.
    #[must_use]
    pub const fn kind(&self) -> &'static str {
        match self {
            Self::BalanceLow { .. } => "balance_low",
            Self::CeilingLow { .. } => "ceiling_low",
            Self::CeilingReached { .. } => "ceiling_reached",
            Self::TopUp { .. } => "top_up",
            Self::Correction { .. } => "correction",
            Self::KeyExpiring { .. } => "key_expiring",
            Self::VendorOut { .. } => "vendor_out",
            Self::VendorBack { .. } => "vendor_back",
            Self::MarginNegative { .. } => "margin_negative",
            Self::AuditBreach { .. } => "audit_breach",
            Self::RateStale { .. } => "rate_stale",
            Self::Debt { .. } => "debt",
            Self::AutoTopupFailed { .. } => "auto_topup_failed",
            Self::Unknown => "unknown",
        }
    }
}

/// An event: what happened, to whom, and its place among all.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Event {
    /// Its place: each is one more than that of the event before it, from 1.
    pub number: u64,
    /// Unix time in milliseconds.
    pub at_ms: u64,
    /// Whose money, where it is an account's.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub account: Option<AccountId>,
    /// On which key, where it is one's.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub key: Option<KeyId>,
    /// What happened.
    #[serde(flatten)]
    pub what: Happening,
}

#[cfg(test)]
mod tests {
    use super::*;

    fn levels(amounts: &[i64]) -> Result<Levels, LevelsError> {
        let amounts: Vec<_> = amounts.iter().copied().map(MicroRub::new).collect();
        Levels::new(&amounts)
    }

    #[test]
    fn levels_come_back_from_their_text_in_order() {
        let some = levels(&[5, 100, 20]).unwrap();
        assert_eq!(some.to_string(), "100,20,5");
        assert_eq!("5,20,100".parse(), Ok(some));
        assert_eq!("".parse(), Ok(Levels::NONE));
        assert!(Levels::NONE.is_empty() && !some.is_empty());
        for bad in [&[1, 1][..], &[0], &[-1], &[1, 2, 3, 4, 5]] {
            assert_eq!(levels(bad), Err(LevelsError), "{bad:?}");
        }
        assert_eq!("x".parse::<Levels>(), Err(LevelsError));
    }

    #[test]
    fn a_level_is_passed_on_the_way_down_alone_and_the_lowest_is_told() {
        let some = levels(&[100, 50, 10]).unwrap();
        for (before, after, told) in [
            (200, 101, None),
            (200, 100, Some(100)),
            (100, 99, None),
            (200, 50, Some(50)),
            (101, 0, Some(10)),
            (10, 0, None),
            (10, 200, None),
            (50, 50, None),
        ] {
            let passed = some.passed(MicroRub::new(before), MicroRub::new(after));
            assert_eq!(passed, told.map(MicroRub::new), "{before} to {after}");
        }
        assert_eq!(Levels::NONE.passed(MicroRub::MAX, MicroRub::ZERO), None);
    }

    #[test]
    fn an_event_of_a_later_version_is_read_as_unknown() {
        let json = r#"{"number":7,"at_ms":1,"account":"acme","kind":"from_later","x":[1]}"#;
        let event: Event = serde_json::from_str(json).unwrap();
        assert_eq!((event.number, event.what), (7, Happening::Unknown));
        let happened = Happening::RateStale { since_ms: 5 };
        let event = Event {
            number: 1,
            at_ms: 2,
            account: None,
            key: None,
            what: happened,
        };
        let json = serde_json::to_string(&event).unwrap();
        assert_eq!(
            json,
            r#"{"number":1,"at_ms":2,"kind":"rate_stale","since_ms":5}"#
        );
        assert_eq!(serde_json::from_str::<Event>(&json).unwrap(), event);
    }
}
