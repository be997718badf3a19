//! Automatic top-up: an account's rule, stored next to its payments. When the balance minus the running calls' cost so
//! far falls below the rule's threshold, a saved card is charged. The rule contains the provider's handle of the card,
//! never the card's number.
//!
//! The document `payment-auto/<account>` is a rule, and `payments-auto` lists the accounts that may have a rule. An
//! account is added to the list before its rule is written, and removed after its rule is deleted.

use std::fmt;

use serde::{Deserialize, Serialize};
use tollgate_layers::{key::AccountId, money::MicroRub, reserve::ledger::BookError};
use tollgate_ledger::{
    calendar::month_of,
    contract::{Documents, Update, Versioned},
};

use super::intent::IntentId;
use crate::{ledger::AnyLedger, text::time::rfc3339};

/// The largest number of accounts with a rule.
const RULES_MAX: usize = 10_000;
const LIST: &str = "payments-auto";

/// The state of a rule.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum AutoStatus {
    /// The payer has not yet made the payment that saves the card.
    Waiting,
    /// The card is charged when the balance is low.
    On,
    /// The card is no longer charged.
    Off,
}

impl AutoStatus {
    /// Returns the name of the state.
    #[must_use]
    pub(crate) const fn as_str(self) -> &'static str {
        match self {
            Self::Waiting => "waiting",
            Self::On => "on",
            Self::Off => "off",
        }
    }
}

/// A card saved at a provider. The handle together with the shop's key is enough to charge it, so it is stored only
/// with the rule and sent only to the provider.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct SavedCard {
    /// The provider's handle of the card.
    pub(super) handle: String,
    /// The provider's id of the customer, if the provider requires one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) customer: Option<String>,
    /// Last four digits of the card, if the provider reports them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) last4: Option<String>,
}

impl SavedCard {
    /// Creates a card; keeps `last4` only if it has four digits.
    pub(super) fn new(handle: String, customer: Option<String>, last4: Option<String>) -> Self {
        let plain = |last4: &String| last4.len() == 4 && last4.bytes().all(|b| b.is_ascii_digit());
        Self {
            handle,
            customer,
            last4: last4.filter(plain),
        }
    }

    /// Returns the card's last digits as they are shown to people.
    fn shown(&self) -> String {
        format!("····{}", self.last4.as_deref().unwrap_or_default())
    }
}

impl fmt::Debug for SavedCard {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("SavedCard").field(&self.shown()).finish()
    }
}

/// The reason that is stored in a rule that is off although the payer has made the payment that should save the card.
pub(super) const NOT_SAVED: &str = "it was paid by a method that cannot be saved";

/// A rule: its terms, the consent to them, and its state.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct AutoTopup {
    pub(super) account: AccountId,
    /// The provider that has saved the card.
    pub(super) provider: String,
    /// The threshold: the card is charged when the balance falls below it.
    pub(super) below_rub: MicroRub,
    /// The amount of each card charge.
    pub(super) amount_rub: MicroRub,
    /// The most that the card may be charged in a month.
    pub(super) month_max_rub: MicroRub,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) email: Option<String>,
    pub(super) by: String,
    pub(super) created_ms: u64,
    /// The payment by which the payer consented to the rule.
    pub(super) consent: IntentId,
    pub(super) status: AutoStatus,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) reason: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) card: Option<SavedCard>,
    /// The card charge in progress. It is stored before the request to the provider, and kept until its outcome is
    /// known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) charging: Option<IntentId>,
    /// The account's spending and balance when the last card charge began; `None` if that card charge failed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) last: Option<Mark>,
    /// The number of declines since the last successful card charge.
    #[serde(default)]
    pub(super) declines: u32,
    /// The card is not charged before this time, in Unix milliseconds. In state `Waiting`, once the payer has paid,
    /// this is the time until which the provider may still report the saved card.
    #[serde(default)]
    pub(super) not_before_ms: u64,
    /// The month of `month_rub`, counted from January 1970.
    #[serde(default)]
    pub(super) month: u64,
    /// The amount that was charged to the card, or requested, in `month`.
    #[serde(default)]
    pub(super) month_rub: MicroRub,
    /// The month for which an event has reported that the monthly maximum is reached.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) full_month: Option<u64>,
}

/// An account's spending and balance when a card charge began. The next card charge waits until money has been spent
/// since then.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Mark {
    /// The cost of the account's calls, including running calls.
    pub(super) spent_rub: MicroRub,
    /// The account's balance once the card charge is booked as a top-up.
    pub(super) left_rub: MicroRub,
}

impl Mark {
    /// Returns whether a call or a correction has reduced the account's money since this card charge began.
    pub(super) fn is_past(&self, spent: MicroRub, left: MicroRub) -> bool {
        spent > self.spent_rub || left < self.left_rub
    }
}

/// A rule as it is shown to people, without the card's handle.
#[derive(Debug, Serialize)]
pub struct AutoShown {
    pub(crate) account: AccountId,
    provider: String,
    below_rub: MicroRub,
    amount_rub: MicroRub,
    month_max_rub: MicroRub,
    /// The amount that was charged or requested in this month.
    month_rub: MicroRub,
    pub(crate) status: AutoStatus,
    reason: Option<String>,
    /// The last digits of the card.
    card: Option<String>,
    /// The payment by which the payer gives consent.
    payment: IntentId,
    /// The URL of the payment that saves the card, while it is unpaid.
    pub(crate) url: Option<String>,
    declines: u32,
    next_try_at: Option<String>,
    created_at: String,
    by: String,
}

impl AutoTopup {
    /// Returns the amount charged or requested in the month of this time.
    pub(super) fn charged_in_month(&self, now_ms: u64) -> MicroRub {
        if self.month == month_of(now_ms) {
            self.month_rub
        } else {
            MicroRub::ZERO
        }
    }

    /// Returns whether both rules have the same terms.
    pub(super) fn is_same(&self, other: &Self) -> bool {
        (
            &self.provider,
            self.below_rub,
            self.amount_rub,
            self.month_max_rub,
        ) == (
            &other.provider,
            other.below_rub,
            other.amount_rub,
            other.month_max_rub,
        )
    }

    pub(super) fn shown(&self, url: Option<String>, now_ms: u64) -> AutoShown {
        let waits = self.status == AutoStatus::On && self.not_before_ms > now_ms;
        AutoShown {
            account: self.account.clone(),
            provider: self.provider.clone(),
            below_rub: self.below_rub,
            amount_rub: self.amount_rub,
            month_max_rub: self.month_max_rub,
            month_rub: self.charged_in_month(now_ms),
            status: self.status,
            reason: self.reason.clone(),
            card: self.card.as_ref().map(SavedCard::shown),
            payment: self.consent,
            url,
            declines: self.declines,
            next_try_at: waits.then(|| rfc3339(self.not_before_ms)),
            created_at: rfc3339(self.created_ms),
            by: self.by.clone(),
        }
    }
}

/// Reads and changes the rules of automatic top-ups in the ledger.
#[derive(Clone, Debug)]
pub(super) struct Rules {
    store: AnyLedger,
}

impl Rules {
    pub(super) const fn new(store: AnyLedger) -> Self {
        Self { store }
    }

    /// Returns the rule of an account.
    pub(super) async fn find(&self, account: &AccountId) -> Result<Option<AutoTopup>, BookError> {
        Ok(self.versioned(account).await?.value)
    }

    /// Returns the rule of an account, and the rule's version, which a change requires.
    pub(super) async fn versioned(
        &self,
        account: &AccountId,
    ) -> Result<Versioned<AutoTopup>, BookError> {
        self.store.read_value(&rule_name(account)).await
    }

    /// Writes a rule if the stored version is still `version`. Returns whether the rule was written.
    pub(super) async fn put(&self, version: u64, rule: &AutoTopup) -> Result<bool, BookError> {
        let name = rule_name(&rule.account);
        self.store.write_value(&name, version, rule).await
    }

    /// Returns the accounts that may have a rule.
    pub(super) async fn accounts(&self) -> Result<Vec<AccountId>, BookError> {
        let accounts = self.store.read_value(LIST).await?;
        Ok(accounts.value.unwrap_or_default())
    }

    /// Adds an account to the list. The list is written even if it already contains the account: a concurrent removal
    /// then fails on its version and checks again.
    pub(super) async fn list(&self, account: &AccountId) -> Result<(), BookError> {
        let add = |accounts: Option<Vec<AccountId>>| {
            let mut accounts = accounts.unwrap_or_default();
            if !accounts.contains(account) {
                if accounts.len() >= RULES_MAX {
                    return Err(BookError::Unavailable(
                        format!("at most {RULES_MAX} accounts can have automatic top-up").into(),
                    ));
                }
                accounts.push(account.clone());
            }
            Ok(Update::Write(accounts, ()))
        };
        self.store.update(LIST, add).await
    }

    /// Removes an account from the list, if it has no rule.
    pub(super) async fn unlist(&self, account: &AccountId) -> Result<(), BookError> {
        let remove = async |found: Versioned<Vec<AccountId>>| {
            let mut accounts = found.value.unwrap_or_default();
            let count = accounts.len();
            accounts.retain(|one| one != account);
            // The rule is read after the list. If a rule is created later, that changes the list, and this update runs
            // again.
            Ok(
                match accounts.len() == count || self.find(account).await?.is_some() {
                    true => Update::Keep(()),
                    false => Update::Write(accounts, ()),
                },
            )
        };
        self.store.update_async(LIST, remove).await
    }
}

/// Returns the name of the document that stores an account's rule.
pub(super) fn rule_name(account: &AccountId) -> String {
    format!("payment-auto/{account}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn handle_of_a_saved_card_is_never_shown() {
        let card = SavedCard::new(
            "pm-secret".into(),
            Some("cus-secret".into()),
            Some("4242".into()),
        );
        let rule = AutoTopup {
            account: "acme".parse().unwrap(),
            provider: "stripe".into(),
            below_rub: MicroRub::rubles(1),
            amount_rub: MicroRub::rubles(2),
            month_max_rub: MicroRub::rubles(3),
            email: None,
            by: "admin".into(),
            created_ms: 0,
            consent: IntentId::new(),
            status: AutoStatus::On,
            reason: None,
            card: Some(card),
            charging: None,
            last: None,
            declines: 0,
            not_before_ms: 0,
            month: 0,
            month_rub: MicroRub::ZERO,
            full_month: None,
        };
        let shown = serde_json::to_string(&rule.shown(None, 1)).unwrap();
        assert!(shown.contains("····4242"), "{shown}");
        for text in [shown, format!("{rule:?}")] {
            assert!(!text.contains("secret"), "{text}");
        }
        let text = serde_json::to_string(&rule).unwrap();
        assert_eq!(serde_json::from_str::<AutoTopup>(&text).unwrap(), rule);
    }

    #[test]
    fn no_more_than_four_digits_of_a_card_are_kept() {
        for (reported, stored) in [
            (Some("4242"), Some("4242")),
            (Some("4242424242424242"), None),
            (Some("42é"), None),
            (None, None),
        ] {
            let card = SavedCard::new("h".into(), None, reported.map(str::to_owned));
            assert_eq!(card.last4.as_deref(), stored, "{reported:?}");
        }
    }
}
