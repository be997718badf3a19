//! Events of a ledger, totally ordered, and the levels: amounts of remaining money at which an event is emitted.

use std::{fmt, str::FromStr};

use serde::{Deserialize, Serialize};

use crate::{
    account::{AccountId, GroupId, KeyId},
    money::MicroRub,
};

/// The largest number of levels per account, key or group.
pub const LEVELS_MAX: usize = 4;

/// The owner of alert levels, within an account: the account itself, a key or a group.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Watched {
    /// The levels apply to the account's balance.
    Balance,
    /// The levels apply to the amount left under a key's ceilings.
    Key(KeyId),
    /// The levels apply to the amount left under a group's ceilings.
    Group(GroupId),
}

/// Levels of remaining money at which an event is emitted: remaining balance of an account, or the amount that a key or
/// a group may still spend under each of its ceilings. Sorted from the highest, without duplicates.
///
/// Alert levels as text: whole micro-rubles, separated by commas.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Levels([MicroRub; LEVELS_MAX]);

/// The error of amounts that cannot be used as alert levels.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("levels must be at most {LEVELS_MAX} different amounts above 0")]
pub struct LevelsError;

impl Levels {
    /// No levels, so that no event is emitted.
    pub const NONE: Self = Self([MicroRub::ZERO; LEVELS_MAX]);

    /// Creates levels from amounts in any order.
    ///
    /// # Errors
    /// [`LevelsError`] if there are more than [`LEVELS_MAX`] amounts, if an amount is not above 0, or if two amounts
    /// are equal.
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

    /// Returns the levels, highest first.
    pub fn iter(&self) -> impl Iterator<Item = MicroRub> + '_ {
        self.0
            .iter()
            .copied()
            .take_while(|level| *level > MicroRub::ZERO)
    }

    /// Returns whether no level is set.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0[0] == MicroRub::ZERO
    }

    /// Returns the lowest level that the amount has fallen to, if the amount was above that level before.
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

/// A ceiling counts as reached when at most 1/`REACHED_PARTS` of it is left, since hardly any call fits into a smaller
/// amount.
pub const REACHED_PARTS: i64 = 100;

/// The remaining amount at or below which a ceiling counts as reached.
#[must_use]
pub fn reached(ceiling: MicroRub) -> MicroRub {
    MicroRub::new(ceiling.micro() / REACHED_PARTS)
}

/// The period of a ceiling of a key or a group.
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

/// The content of an event: a movement of money, or something else that operators should know.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case")]
#[non_exhaustive]
pub enum Happening {
    /// A balance has fallen to an alert level.
    BalanceLow {
        /// The lowest of the levels that were passed.
        level_rub: MicroRub,
        /// The balance after the change.
        balance_rub: MicroRub,
        /// The number of the call, or the id of the correction, that lowered the balance.
        by: String,
    },
    /// The remaining amount under a ceiling has fallen to an alert level.
    CeilingLow {
        /// The group that has the ceiling; `None` if the key has it.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        group: Option<GroupId>,
        /// Which ceiling: in total, per month or per day.
        ceiling: CeilingKind,
        /// The amount of the ceiling.
        ceiling_rub: MicroRub,
        /// The lowest of the levels that were passed.
        level_rub: MicroRub,
        /// The amount left under the ceiling.
        left_rub: MicroRub,
        /// The number of the call that was charged.
        by: String,
    },
    /// A ceiling is used up, or almost used up: see [`reached`].
    CeilingReached {
        /// The group that has the ceiling; `None` if the key has it.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        group: Option<GroupId>,
        /// Which ceiling: in total, per month or per day.
        ceiling: CeilingKind,
        /// The amount of the ceiling.
        ceiling_rub: MicroRub,
        /// The amount left under the ceiling.
        left_rub: MicroRub,
        /// The number of the call that was charged.
        by: String,
    },
    /// A payment was added to the balance.
    TopUp {
        /// The payment's id.
        entry: String,
        /// The amount paid.
        amount_rub: MicroRub,
        /// The balance after the payment.
        balance_rub: MicroRub,
    },
    /// A correction was added to the balance.
    Correction {
        /// The correction's id.
        entry: String,
        /// The signed amount of the correction.
        amount_rub: MicroRub,
        /// The reason that the operator gave.
        reason: String,
        /// The balance after the correction.
        balance_rub: MicroRub,
    },
    /// A key is about to expire.
    KeyExpiring {
        /// The time at which the key expires, in Unix milliseconds.
        expires_at_ms: u64,
    },
    /// A gateway has stopped sending calls to a vendor.
    VendorOut {
        /// The vendor's name.
        vendor: String,
    },
    /// All gateways send calls to a vendor again.
    VendorBack {
        /// The vendor's name.
        vendor: String,
    },
    /// A call was charged less than its vendor bills for it.
    MarginNegative {
        /// The model that was called.
        model: String,
        /// The vendor that answered.
        vendor: String,
        /// The amount that the customer was charged.
        charged_rub: MicroRub,
        /// The amount that the vendor bills for the call.
        vendor_cost_rub: MicroRub,
        /// The call's number.
        by: String,
    },
    /// An audit found breaches.
    AuditBreach {
        /// The number of breaches.
        breaches: u64,
        /// The first breach.
        first: String,
    },
    /// The last confirmation of the exchange rate in force is too old.
    RateStale {
        /// The time at which the rate in force was last confirmed, in Unix milliseconds.
        since_ms: u64,
    },
    /// A refund exceeded the free money; the account owes the rest.
    Debt {
        /// The refund's id.
        entry: String,
        /// The amount that the account owes.
        debt_rub: MicroRub,
    },
    /// An automatic top-up failed: the saved card was not charged.
    AutoTopupFailed {
        /// The payment provider that stores the card.
        provider: String,
        /// The amount of the top-up.
        amount_rub: MicroRub,
        /// The reason that the provider gave.
        reason: String,
        /// Whether the automatic top-up is switched off now.
        off: bool,
        /// The URL at which the payer can pay the amount instead, if the provider has such a page.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        url: Option<String>,
    },
    /// The payer's bank disputes a payment that was credited to the account.
    PaymentDisputed {
        /// The payment provider.
        provider: String,
        /// The top-up's id.
        entry: String,
        /// The provider's id of the dispute.
        dispute: String,
        /// The disputed amount.
        amount_rub: MicroRub,
        /// The status of the dispute: `inquiry`, `open`, `won` or `lost`.
        status: String,
    },
    /// A payment provider reports that a payment was canceled, although its money was credited to the account.
    PaymentReversed {
        /// The payment provider.
        provider: String,
        /// The top-up's id.
        entry: String,
        /// The amount that was credited.
        amount_rub: MicroRub,
        /// The reason that the provider gives.
        reason: String,
    },
    /// A kind of event that a later version added.
    #[serde(other)]
    Unknown,
}

impl Happening {
    /// The words for all kinds of event that this version emits.
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

    /// Returns the name of the kind, as in [`Self::KINDS`].
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

/// An event: what happened, when, to whose money, and its number in the order of all events.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Event {
    /// Position among all events: starts at 1 and increases by one.
    pub number: u64,
    /// The time of the event, in Unix milliseconds.
    pub at_ms: u64,
    /// The account that the event is about, if there is one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub account: Option<AccountId>,
    /// The key that the event is about, if there is one.
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
    fn alert_reports_the_lowest_level_that_a_falling_amount_crosses() {
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
