//! An intent: a payment that somebody was asked for, and what has come of it.
//!
//! That money came in or went back is in the ledger, under ids that are made of the provider's own. What stands here
//! can be told again from there and from the provider; it says what is still to be asked.

use std::{fmt, str::FromStr};

use serde::{Deserialize, Serialize};
use tollgate_layers::{key::AccountId, money::MicroRub};
use uuid::Uuid;

/// An intent's id: a UUID of version 7, so that later ones stand behind earlier ones.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct IntentId(Uuid);

impl IntentId {
    /// A new one.
    #[must_use]
    pub fn new() -> Self {
        Self(Uuid::now_v7())
    }

    /// How long ago it was made, as it says itself.
    pub(super) fn age_ms(self, now_ms: u64) -> u64 {
        let made = self.0.get_timestamp().map_or((0, 0), |at| at.to_unix());
        now_ms.saturating_sub(made.0.saturating_mul(1000))
    }
}

impl Default for IntentId {
    fn default() -> Self {
        Self::new()
    }
}

impl fmt::Display for IntentId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl FromStr for IntentId {
    type Err = &'static str;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let id = text.parse::<Uuid>().ok();
        // As we write it, and no other way: it is part of names.
        id.filter(|id| id.to_string() == text)
            .map(Self)
            .ok_or("must be a UUID in lower case, like 019abcde-0000-7000-8000-000000000000")
    }
}

/// How far an intent is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum State {
    /// The provider has not told its address yet: nobody can have paid by it.
    Creating,
    /// The payer has a link.
    Open,
    /// The money is on the account.
    Paid,
    /// There will be none.
    Canceled,
    /// Money came, and it is not what was asked for: it waits for an operator.
    Refused,
}

impl State {
    /// All there are.
    pub(crate) const ALL: [Self; 5] = [
        Self::Creating,
        Self::Open,
        Self::Paid,
        Self::Canceled,
        Self::Refused,
    ];

    /// Whether something is still to come.
    #[must_use]
    pub const fn is_open(self) -> bool {
        matches!(self, Self::Creating | Self::Open)
    }

    /// Its name.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Creating => "creating",
            Self::Open => "open",
            Self::Paid => "paid",
            Self::Canceled => "canceled",
            Self::Refused => "refused",
        }
    }
}

/// What a payment has to do with a card that the provider keeps.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum CardUse {
    /// The provider keeps the card that it is made by.
    Save,
    /// It is made by the card that the provider keeps, and nobody is asked.
    Saved,
}

/// Money that went back to the payer.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Refund {
    /// The provider's id for it.
    pub id: String,
    /// How much.
    pub amount_rub: MicroRub,
    /// What was taken off the account for it, one entry after the other. The first may be nothing.
    pub taken_rub: Vec<MicroRub>,
}

impl Refund {
    /// What could not be taken: the account had spent it.
    #[must_use]
    pub fn debt(&self) -> MicroRub {
        let taken = self.taken_rub.iter().copied();
        let taken = taken.fold(MicroRub::ZERO, MicroRub::plus_or_max);
        self.amount_rub.minus_or_zero(taken)
    }
}

/// A payment that somebody was asked for.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Intent {
    /// Its id, which the provider gets as the key of idempotency.
    pub id: IntentId,
    /// Whose account it is for.
    pub account: AccountId,
    /// How much.
    pub amount_rub: MicroRub,
    /// Who takes the money.
    pub provider: String,
    /// Unix time in milliseconds when it was made.
    pub created_ms: u64,
    /// Who asked: an operator's name, or `key:` and a key's id.
    pub by: String,
    /// Where the receipt goes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub email: Option<String>,
    /// What it has to do with a card that the provider keeps; usually nothing.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub card: Option<CardUse>,
    /// How far it is.
    pub state: State,
    /// Why it is canceled or refused.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    /// The provider's id for it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub payment: Option<String>,
    /// Where the payer pays.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub url: Option<String>,
    /// The id of the top-up.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub entry: Option<String>,
    /// What went back.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub refunds: Vec<Refund>,
}

impl Intent {
    /// What the account owes for refunds.
    #[must_use]
    pub fn debt(&self) -> MicroRub {
        let debts = self.refunds.iter().map(Refund::debt);
        debts.fold(MicroRub::ZERO, MicroRub::plus_or_max)
    }

    /// Whether the same was asked for.
    pub(super) fn is_same(&self, other: &Self) -> bool {
        (&self.account, self.amount_rub, &self.provider, self.card)
            == (
                &other.account,
                other.amount_rub,
                &other.provider,
                other.card,
            )
    }

    /// The id under which a refund is taken off: that of the refund, and a number behind it for what could be taken
    /// later only.
    pub(super) fn correction(&self, refund: &str, taken_before: usize) -> String {
        let id = format!("{}:refund:{refund}", self.provider);
        match taken_before {
            0 => id,
            count => format!("{id}:{}", count + 1),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_id_is_written_in_one_way() {
        let id = IntentId::new();
        assert_eq!(id.to_string().parse(), Ok(id));
        for bad in [
            id.to_string().to_uppercase(),
            format!("{{{id}}}"),
            String::new(),
            "a/*".to_owned(),
        ] {
            assert!(bad.parse::<IntentId>().is_err(), "{bad}");
        }
        assert!(IntentId::new() > id);
    }

    #[test]
    fn what_could_not_be_taken_is_a_debt() {
        let rub = MicroRub::rubles;
        let refund = |taken: &[i64]| Refund {
            id: "r".into(),
            amount_rub: rub(10),
            taken_rub: taken.iter().copied().map(rub).collect(),
        };
        assert_eq!(refund(&[]).debt(), rub(10));
        assert_eq!(refund(&[0, 4]).debt(), rub(6));
        assert_eq!(refund(&[10]).debt(), rub(0));
    }
}
