//! The ledger's events, in one order, and the alert levels: amounts of remaining money at which an event is emitted.

use std::{fmt, str::FromStr};

use serde::{Deserialize, Serialize};

use crate::{
    account::{AccountId, GroupId, KeyId},
    money::MicroRub,
};

/// The largest number of alert levels per account, key or group.
pub const LEVELS_MAX: usize = 4;

/// The part of an account whose remaining money alert levels apply to.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Watched {
    /// The account: the levels apply to its balance.
    Balance,
    /// A key: the levels apply to the amounts that remain under its ceilings.
    Key(KeyId),
    /// A group of keys: the levels apply to the amounts that remain under its ceilings.
    Group(GroupId),
}

/// Alert levels: an event is emitted when the remaining money falls to one of these amounts. For an account, the
/// remaining money is its balance. For a key or a group, it is the amount that remains under each of its ceilings. The
/// levels are sorted from the highest, without duplicates.
///
/// The text form is a list of whole micro-rubles, separated by commas.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Levels([MicroRub; LEVELS_MAX]);

/// The error for amounts that cannot be alert levels.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("levels must be at most {LEVELS_MAX} amounts, all different and above 0")]
pub struct LevelsError;

impl Levels {
    /// No alert levels: no event is emitted.
    pub const NONE: Self = Self([MicroRub::ZERO; LEVELS_MAX]);

    /// Creates alert levels from amounts in any order.
    ///
    /// # Errors
    /// A [`LevelsError`] if there are more than [`LEVELS_MAX`] amounts, if an amount is not above 0, or if two amounts
    /// are equal.
    pub fn new(levels: &[MicroRub]) -> Result<Self, LevelsError> {
        let mut sorted = Self::NONE;
        if levels.len() > LEVELS_MAX || levels.iter().any(|level| *level <= MicroRub::ZERO) {
            return Err(LevelsError);
        }
        sorted.0[..levels.len()].copy_from_slice(levels);
        sorted.0.sort_unstable_by(|a, b| b.cmp(a));
        let mut pairs = sorted.0[..levels.len()].windows(2);
        let twice = pairs.any(|pair| pair[0] == pair[1]);
        if twice { Err(LevelsError) } else { Ok(sorted) }
    }

    /// Returns the levels, the highest first.
    pub fn iter(&self) -> impl Iterator<Item = MicroRub> + '_ {
        let levels = self.0.iter().copied();
        levels.take_while(|level| *level > MicroRub::ZERO)
    }

    /// Returns whether there are no levels.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0[0] == MicroRub::ZERO
    }

    /// Returns the lowest level that an amount reaches or crosses when it falls from `before` to `after`; `None` if it
    /// reaches no level.
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

/// A ceiling counts as reached if at most 1/`REACHED_PARTS` of it remains, because hardly any call fits into a smaller
/// amount.
pub const REACHED_PARTS: i64 = 100;

/// Returns the remaining amount at which a ceiling counts as reached.
#[must_use]
pub fn reached(ceiling: MicroRub) -> MicroRub {
    MicroRub::new(ceiling.micro() / REACHED_PARTS)
}

/// The period that a ceiling of a key or a group covers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum CeilingKind {
    /// The ceiling on the total spending.
    Total,
    /// The ceiling per calendar month.
    Month,
    /// The ceiling per calendar day.
    Day,
}

/// The content of an event: a movement of money, or another incident that operators must notice.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case")]
#[non_exhaustive]
#[allow(missing_docs, reason = "the fields have descriptive names")]
pub enum Happening {
    /// An account's balance has fallen to an alert level.
    BalanceLow {
        /// The lowest level that the balance has fallen to.
        level_rub: MicroRub,
        balance_rub: MicroRub,
        /// The cause: the number of the call, or the id of the correction, that lowered the balance.
        by: String,
    },
    /// The amount that remains under a ceiling has fallen to an alert level.
    CeilingLow {
        /// The group that has the ceiling; `None` if the key has it.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        group: Option<GroupId>,
        ceiling: CeilingKind,
        ceiling_rub: MicroRub,
        /// The lowest level that the remaining amount has fallen to.
        level_rub: MicroRub,
        left_rub: MicroRub,
        by: String,
    },
    /// A ceiling is used up or nearly used up (see [`reached`]).
    CeilingReached {
        /// The group that has the ceiling; `None` if the key has it.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        group: Option<GroupId>,
        ceiling: CeilingKind,
        ceiling_rub: MicroRub,
        left_rub: MicroRub,
        by: String,
    },
    /// A payment was booked.
    TopUp {
        entry: String,
        amount_rub: MicroRub,
        balance_rub: MicroRub,
    },
    /// A correction was booked.
    Correction {
        entry: String,
        amount_rub: MicroRub,
        reason: String,
        balance_rub: MicroRub,
    },
    /// A key will expire soon.
    KeyExpiring { expires_at_ms: u64 },
    /// A gateway has stopped sending calls to a vendor, because the vendor fails.
    VendorOut { vendor: String },
    /// All gateways send calls to a vendor again.
    VendorBack { vendor: String },
    /// A call was charged less than the vendor bills for it.
    MarginNegative {
        model: String,
        vendor: String,
        charged_rub: MicroRub,
        vendor_cost_rub: MicroRub,
        by: String,
    },
    /// An audit found breaches.
    AuditBreach { breaches: u64, first: String },
    /// The exchange rate in force was last confirmed too long ago.
    RateStale {
        /// When the exchange rate in force was last confirmed, in Unix milliseconds.
        since_ms: u64,
    },
    /// A refund exceeded the account's free money, so the account owes the remainder.
    Debt { entry: String, debt_rub: MicroRub },
    /// An automatic top-up failed: the saved card could not be charged.
    AutoTopupFailed {
        /// The payment provider that stores the card.
        provider: String,
        amount_rub: MicroRub,
        reason: String,
        /// Whether the automatic top-up was switched off because of this failure.
        off: bool,
        /// The page on which the payer can pay the amount instead, if the provider has such a page.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        url: Option<String>,
    },
    /// The payer's bank disputes a payment that was booked on the account.
    PaymentDisputed {
        provider: String,
        entry: String,
        dispute: String,
        amount_rub: MicroRub,
        /// The status of the dispute: `inquiry`, `open`, `won` or `lost`.
        status: String,
    },
    /// A payment provider reports that a payment was canceled after its amount was booked on the account.
    PaymentReversed {
        provider: String,
        entry: String,
        amount_rub: MicroRub,
        reason: String,
    },
    /// An event kind of a later version.
    #[serde(other)]
    Unknown,
}

impl Happening {
    /// The names of all event kinds that this version emits.
    pub const KINDS: [&str; 15] = [
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
        "payment_disputed",
        "payment_reversed",
    ];

    /// Returns the name of the event kind, one of [`Self::KINDS`].
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
            Self::PaymentDisputed { .. } => "payment_disputed",
            Self::PaymentReversed { .. } => "payment_reversed",
            Self::Unknown => "unknown",
        }
    }
}

/// An event: its number, its time, the account and key that it is about, and its content.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Event {
    /// The event's position in the order of all events. The first event has number 1, and each event has the next
    /// number.
    pub number: u64,
    /// When the event was emitted, in Unix milliseconds.
    pub at_ms: u64,
    /// The account that the event is about, if it is about an account.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub account: Option<AccountId>,
    /// The key that the event is about, if it is about a key.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub key: Option<KeyId>,
    /// The kind and content of the event.
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
    fn alert_levels_round_trip_as_sorted_text() {
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
    fn alert_names_the_lowest_level_that_the_amount_has_fallen_to() {
        let some = levels(&[100, 50, 10]).unwrap();
        for (before, after, reported) in [
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
            assert_eq!(passed, reported.map(MicroRub::new), "{before} to {after}");
        }
        assert_eq!(Levels::NONE.passed(MicroRub::MAX, MicroRub::ZERO), None);
    }

    #[test]
    fn event_of_a_later_version_is_read_as_an_unknown_event() {
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
