//! An intent: a payment that was requested from a provider, and its outcome.
//!
//! The ledger books received and refunded money under ids that are derived from the provider's ids. So the outcome of
//! an intent could be reconstructed from the ledger and the provider. Intents are stored because the gateway must know
//! which payments it has to fetch from the provider.

use std::{fmt, str::FromStr};

use serde::{Deserialize, Serialize};
use tollgate_layers::{key::AccountId, money::MicroRub};
use uuid::Uuid;

use crate::text::{time::now_ms, words::words};

/// The id of an intent: a UUIDv7, so ids sort by time.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct IntentId(Uuid);

impl IntentId {
    /// Creates an intent id from the current time.
    #[must_use]
    pub fn new() -> Self {
        Self(Uuid::now_v7())
    }

    /// Returns the age of the intent in milliseconds, according to the time in its id.
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
        // Only the canonical form of a UUID is accepted, because the id is a part of document names.
        id.filter(|id| id.to_string() == text)
            .map(Self)
            .ok_or("must be a UUID in lower case, like 019abcde-0000-7000-8000-000000000000")
    }
}

words! {
    /// The state of a payment intent.
    #[derive(Serialize, Deserialize)]
    #[serde(rename_all = "lowercase")]
    pub enum State {
        /// The provider has not returned a payment link yet, so nobody can have paid.
        Creating = "creating",
        /// The payer has the payment link, and the outcome is unknown.
        Open = "open",
        /// The money was received, and is booked on the account.
        Paid = "paid",
        /// The payment was canceled or has expired.
        Canceled = "canceled",
        /// The received money differs from the requested amount, so an operator must decide what to do.
        Refused = "refused",
    }
}

impl State {
    /// Returns whether the outcome of the payment is still unknown.
    #[must_use]
    pub const fn is_open(self) -> bool {
        matches!(self, Self::Creating | Self::Open)
    }
}

/// How a payment uses a saved card.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum CardUse {
    /// The payer makes the payment, and the provider saves the card.
    Save,
    /// The payment is the charge of a saved card; the payer takes no part.
    Saved,
}

words! {
    /// The state of a dispute between the payer's bank and the seller.
    #[derive(Serialize, Deserialize)]
    #[serde(rename_all = "lowercase")]
    pub enum DisputeStatus {
        /// The payer's bank inquires about the payment, but no money has moved.
        Inquiry = "inquiry",
        /// The bank has taken the money back until the dispute is decided.
        Open = "open",
        /// The dispute was decided for the seller, who keeps the money.
        Won = "won",
        /// The dispute was decided for the payer, so the money is lost.
        Lost = "lost",
    }
}

/// A dispute about a payment, in the state that the provider reported last.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Dispute {
    /// The dispute's id at the provider.
    pub id: String,
    /// The disputed amount.
    pub amount_rub: MicroRub,
    /// The state of the dispute.
    pub status: DisputeStatus,
}

/// Why money was taken off the account after a payment: a refund, or a dispute.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum RefundKind {
    /// The amount was refunded to the payer.
    #[default]
    Refund,
    /// The amount is disputed.
    Dispute,
}

impl RefundKind {
    #[expect(clippy::trivially_copy_pass_by_ref, reason = "serde's signature")]
    fn is_refund(&self) -> bool {
        *self == Self::Refund
    }

    const fn as_str(self) -> &'static str {
        match self {
            Self::Refund => "refund",
            Self::Dispute => "dispute",
        }
    }
}

/// Money that was refunded to the payer, or that is held back for a dispute.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Refund {
    /// The id of the refund or dispute at the provider.
    pub id: String,
    /// Whether the money was refunded or disputed.
    #[serde(default, skip_serializing_if = "RefundKind::is_refund")]
    pub kind: RefundKind,
    /// The amount of the refund or dispute.
    pub amount_rub: MicroRub,
    /// The amounts taken off the account for this refund, one per ledger entry. The first amount may be zero.
    pub taken_rub: Vec<MicroRub>,
    /// Whether the refund failed, so the payer did not get the money. In that case all entries of the refund are
    /// reversed, and no further money is taken.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub failed: bool,
    /// How many of the refund's ledger entries have been reversed.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub returned: usize,
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde's signature")]
fn is_zero(value: &usize) -> bool {
    *value == 0
}

impl Refund {
    /// Returns the part of the refund that could not be taken off the account, because the account had spent it.
    #[must_use]
    pub fn debt(&self) -> MicroRub {
        if self.failed {
            return MicroRub::ZERO;
        }
        let taken = self.taken_rub.iter().copied();
        let taken = taken.fold(MicroRub::ZERO, MicroRub::plus_or_max);
        self.amount_rub.minus_or_zero(taken)
    }
}

/// A payment that was requested from a provider, and its outcome.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Intent {
    /// The id of the intent. It is also the idempotency key of the request to the provider.
    pub id: IntentId,
    /// The account that the payment is credited to.
    pub account: AccountId,
    /// The requested amount.
    pub amount_rub: MicroRub,
    /// The name of the provider that collects the payment.
    pub provider: String,
    /// The time at which the intent was created, in Unix milliseconds.
    pub created_ms: u64,
    /// The requester of the payment: an operator's name, or `key:` followed by a key's id.
    pub by: String,
    /// The email address to which the fiscal receipt is sent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub email: Option<String>,
    /// How the payment uses a saved card; `None` if it does not.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub card: Option<CardUse>,
    /// The state of the intent.
    pub state: State,
    /// Why the intent was canceled or refused.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    /// The payment's id at the provider, once the provider has created the payment.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub payment: Option<String>,
    /// The payment link: the URL at which the payer pays.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub url: Option<String>,
    /// The id of the top-up in the ledger, once the payment is booked.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub entry: Option<String>,
    /// The refunds of the payment, and the disputes whose amount is held back.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub refunds: Vec<Refund>,
    /// The disputes about the payment.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub disputes: Vec<Dispute>,
}

impl Intent {
    /// Returns a new intent, whose payment has not been created at the provider yet. It has no email address and uses
    /// no saved card.
    pub(super) fn new(
        id: IntentId,
        account: &AccountId,
        amount_rub: MicroRub,
        provider: &str,
        by: &str,
    ) -> Self {
        Self {
            id,
            account: account.clone(),
            amount_rub,
            provider: provider.to_owned(),
            created_ms: now_ms(),
            by: by.to_owned(),
            email: None,
            card: None,
            state: State::Creating,
            reason: None,
            payment: None,
            url: None,
            entry: None,
            refunds: Vec::new(),
            disputes: Vec::new(),
        }
    }

    /// Returns the account's debt for refunds of this payment: the part that could not be taken off the account.
    #[must_use]
    pub fn debt(&self) -> MicroRub {
        let debts = self.refunds.iter().map(Refund::debt);
        debts.fold(MicroRub::ZERO, MicroRub::plus_or_max)
    }

    /// Returns whether two intents request the same payment.
    pub(super) fn is_same(&self, other: &Self) -> bool {
        self.account == other.account
            && self.amount_rub == other.amount_rub
            && self.provider == other.provider
            && self.card == other.card
    }

    /// Returns the idempotency key of the request for a payment link. If the intent is a charge of a saved card, the
    /// request for the charge has already used the intent's id as its idempotency key.
    pub(super) fn link_key(&self) -> String {
        match self.card {
            Some(CardUse::Saved) => format!("{}-link", self.id),
            _ => self.id.to_string(),
        }
    }

    /// Returns the text that the payer sees at the provider.
    pub(super) fn description(&self) -> String {
        format!("Пополнение счёта {}", self.account)
    }

    /// Returns the refund or dispute with this id.
    pub(super) fn refund(&self, id: &str) -> Option<&Refund> {
        self.refunds.iter().find(|refund| refund.id == id)
    }

    /// Returns the id of the ledger entry for a refund. The first entry has the refund's id. The id of a later entry,
    /// for an amount that could not be taken earlier, is the refund's id with a number appended.
    pub(super) fn correction(&self, refund: &Refund, taken_before: usize) -> String {
        let id = format!("{}:{}:{}", self.provider, refund.kind.as_str(), refund.id);
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
    fn payment_id_has_exactly_one_accepted_spelling() {
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
    fn refunded_money_that_was_already_spent_becomes_a_debt() {
        let rub = MicroRub::rubles;
        let refund = |taken: &[i64]| Refund {
            id: "r".into(),
            kind: RefundKind::Refund,
            amount_rub: rub(10),
            taken_rub: taken.iter().copied().map(rub).collect(),
            failed: false,
            returned: 0,
        };
        assert_eq!(refund(&[]).debt(), rub(10));
        assert_eq!(refund(&[0, 4]).debt(), rub(6));
        assert_eq!(refund(&[10]).debt(), rub(0));
    }
}
