//! The rules for automatic top-up. An account's rule is stored next to the account's payments. When the balance minus
//! the cost so far of calls in flight falls below the rule's threshold, a saved card is charged. The rule contains the
//! provider's handle of the card, never the card's number.
//!
//! The document `payment-auto/<account>` stores the rule of an account. The document `payments-auto` lists the accounts
//! that may have a rule: an account is added before its rule is written, and removed after its rule is deleted.

use std::fmt;

use serde::{Deserialize, Serialize};
use tollgate_layers::{key::AccountId, money::MicroRub, reserve::ledger::BookError};
use tollgate_ledger::{
    calendar::month_of,
    contract::{Documents, Update, Versioned},
};

use super::intent::IntentId;
use crate::{ledger::AnyLedger, text::time::rfc3339};

/// Maximum number of accounts that have a rule for automatic top-up.
const RULES_MAX: usize = 10_000;
const LIST: &str = "payments-auto";

/// The state of an automatic top-up rule.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum AutoStatus {
    /// The payment that saves the card has not been made yet.
    Waiting,
    /// The card is charged when the balance is low.
    On,
    /// The card is not charged any more; the rule contains the reason.
    Off,
}

impl AutoStatus {
    /// Returns the name of the rule's state, as the API and the documents have it.
    #[must_use]
    pub(crate) const fn as_str(self) -> &'static str {
        match self {
            Self::Waiting => "waiting",
            Self::On => "on",
            Self::Off => "off",
        }
    }
}

/// A card that a provider has saved. With the handle and the shop's key, anybody can charge the card. So the handle is
/// stored only in the rule, and sent only to the provider.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct SavedCard {
    /// The provider's handle of the saved card.
    pub(super) handle: String,
    /// The customer's id at the provider, if the provider requires one to charge the card.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) customer: Option<String>,
    /// The last four digits of the card, if the provider reports them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) last4: Option<String>,
}

impl SavedCard {
    /// Creates a saved card. `last4` is kept only if it consists of four digits.
    pub(super) fn new(handle: String, customer: Option<String>, last4: Option<String>) -> Self {
        let plain = |last4: &String| last4.len() == 4 && last4.bytes().all(|b| b.is_ascii_digit());
        Self {
            handle,
            customer,
            last4: last4.filter(plain),
        }
    }

    /// Returns the last digits of the card, as they are shown to people.
    fn shown(&self) -> String {
        format!("····{}", self.last4.as_deref().unwrap_or_default())
    }
}

impl fmt::Debug for SavedCard {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("SavedCard").field(&self.shown()).finish()
    }
}

/// The reason in a rule that is off because the payer's payment method cannot be saved.
pub(super) const NOT_SAVED: &str = "the payer used a payment method that cannot be saved";

/// A rule for automatic top-up: its terms, the payer's consent, and its state.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct AutoTopup {
    pub(super) account: AccountId,
    /// The provider that saves and charges the card.
    pub(super) provider: String,
    /// The threshold: when the balance minus the cost of calls in flight falls below it, the card is charged.
    pub(super) below_rub: MicroRub,
    /// The amount of each card charge.
    pub(super) amount_rub: MicroRub,
    /// The maximum that the card is charged in a calendar month.
    pub(super) month_max_rub: MicroRub,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) email: Option<String>,
    pub(super) by: String,
    pub(super) created_ms: u64,
    /// The payment by which the payer has consented to the rule.
    pub(super) consent: IntentId,
    pub(super) status: AutoStatus,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) reason: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) card: Option<SavedCard>,
    /// The card charge in progress. It is stored before the request to the provider is sent, and removed when its
    /// outcome is known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) charging: Option<IntentId>,
    /// The account's spending and balance when the last card charge began; `None` if that charge failed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) last: Option<Mark>,
    /// How often in a row the card was declined.
    #[serde(default)]
    pub(super) declines: u32,
    /// The Unix time (ms) before which the card is not charged. In state `Waiting`, after the payer has paid, this
    /// field is the time until which the provider may still report the saved card.
    #[serde(default)]
    pub(super) not_before_ms: u64,
    /// The month that `month_rub` is about, counted from January 1970.
    #[serde(default)]
    pub(super) month: u64,
    /// The sum of the card charges in `month`, including a charge whose outcome is unknown.
    #[serde(default)]
    pub(super) month_rub: MicroRub,
    /// The month in which an event has reported that the monthly maximum is reached.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) full_month: Option<u64>,
}

/// An account's spending and balance when a card charge began. The next card charge must wait until money has been
/// spent since then.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Mark {
    /// The cost of all the account's calls, including the cost so far of its calls in flight.
    pub(super) spent_rub: MicroRub,
    /// The account's balance after the card charge has been booked as a top-up.
    pub(super) left_rub: MicroRub,
}

impl Mark {
    /// Returns whether calls or a correction have reduced the account's money since this card charge began.
    pub(super) fn is_past(&self, spent: MicroRub, left: MicroRub) -> bool {
        spent > self.spent_rub || left < self.left_rub
    }
}

/// An automatic top-up rule as it is shown to people, without the handle of the card.
#[derive(Debug, Serialize)]
pub struct AutoShown {
    pub(crate) account: AccountId,
    provider: String,
    below_rub: MicroRub,
    amount_rub: MicroRub,
    month_max_rub: MicroRub,
    /// The sum of the card charges in this month, including a charge whose outcome is unknown.
    month_rub: MicroRub,
    pub(crate) status: AutoStatus,
    reason: Option<String>,
    /// The last digits of the saved card.
    card: Option<String>,
    /// The payment by which the payer consents to the rule.
    payment: IntentId,
    /// The link of the payment that saves the card; `None` after the payment is paid.
    pub(crate) url: Option<String>,
    declines: u32,
    next_try_at: Option<String>,
    created_at: String,
    by: String,
}

impl AutoTopup {
    /// Returns the sum of the card charges in the month of `now_ms`, including a charge whose outcome is unknown.
    pub(super) fn charged_in_month(&self, now_ms: u64) -> MicroRub {
        match self.month == month_of(now_ms) {
            true => self.month_rub,
            false => MicroRub::ZERO,
        }
    }

    /// Returns whether two rules have the same terms.
    pub(super) fn is_same(&self, other: &Self) -> bool {
        self.provider == other.provider
            && self.below_rub == other.below_rub
            && self.amount_rub == other.amount_rub
            && self.month_max_rub == other.month_max_rub
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

/// Reads and changes the automatic top-up rules that the ledger stores.
#[derive(Clone, Debug)]
pub(super) struct Rules {
    pub(super) store: AnyLedger,
}

impl Rules {
    /// Returns the rule of an account.
    pub(super) async fn find(&self, account: &AccountId) -> Result<Option<AutoTopup>, BookError> {
        Ok(self.versioned(account).await?.value)
    }

    /// Returns an account's rule with its version. To change the rule, this version must be passed to `put`.
    pub(super) async fn versioned(
        &self,
        account: &AccountId,
    ) -> Result<Versioned<AutoTopup>, BookError> {
        self.store.read_value(&rule_name(account)).await
    }

    /// Writes a rule, if the stored version is still `version`. Returns whether it was written.
    pub(super) async fn put(&self, version: u64, rule: &AutoTopup) -> Result<bool, BookError> {
        let name = rule_name(&rule.account);
        self.store.write_value(&name, version, rule).await
    }

    /// Returns the accounts that may have an automatic top-up rule.
    pub(super) async fn accounts(&self) -> Result<Vec<AccountId>, BookError> {
        let accounts = self.store.read_value(LIST).await?;
        Ok(accounts.value.unwrap_or_default())
    }

    /// Adds an account to the list of accounts with a rule. The list is written even if it already contains the
    /// account. This changes the list's version, so a concurrent removal of the account fails, and checks again whether
    /// the account has a rule.
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

    /// Removes an account from the list of accounts with a rule, if it has no rule.
    pub(super) async fn unlist(&self, account: &AccountId) -> Result<(), BookError> {
        let remove = async |found: Versioned<Vec<AccountId>>| {
            let mut accounts = found.value.unwrap_or_default();
            let count = accounts.len();
            accounts.retain(|one| one != account);
            // The rule is read after the list. If a rule is created later, the list in the ledger changes. Then writing
            // this list fails, and this update runs again.
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

/// Returns the name of the document that stores the account's rule.
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
