//! Automatic top-up: a rule of an account, kept beside its payments. When free money falls below a bound, a card that the
//! provider keeps is charged; here stands the provider's handle of it, and never the card's number.
//!
//! `payment-auto/<account>` is a rule, and `payments-auto` names the accounts that may have one, by the rule of the other
//! lists: an account is named there before its rule is written, and taken out after it is gone.

use std::fmt;

use serde::{Deserialize, Serialize};
use tollgate_layers::{key::AccountId, money::MicroRub, reserve::ledger::BookError};
use tollgate_ledger::{calendar::month_of, contract::Feed};

use super::{
    intent::IntentId,
    shelf::{busy, read, text},
};
use crate::{ledger::AnyLedger, text::time::rfc3339};

/// How often a change is tried while others change the same.
const TRIES_MAX: usize = 100;
/// How many accounts may be topped up by cards.
const RULES_MAX: usize = 10_000;
const LIST: &str = "payments-auto";
/// In the place of a rule that was taken away.
const GONE: &str = "-";

/// Whether a card is charged.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum AutoStatus {
    /// The payer has not made the payment yet that the card is saved with.
    Waiting,
    /// It is, where it has to be.
    On,
    /// It is not any more.
    Off,
}

impl AutoStatus {
    /// Its name.
    #[must_use]
    pub(crate) const fn as_str(self) -> &'static str {
        match self {
            Self::Waiting => "waiting",
            Self::On => "on",
            Self::Off => "off",
        }
    }
}

/// A card that a provider keeps. Whoever has the handle and the shop's key can charge it: it is written where rules are
/// kept, and is sent to the provider alone.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct SavedCard {
    /// The provider's handle of it.
    pub(super) handle: String,
    /// Whose it is there, where the provider asks for that too.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) customer: Option<String>,
    /// The last digits, as the provider tells them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) last4: Option<String>,
}

impl SavedCard {
    /// With what a provider said of its number: four digits, or nothing.
    pub(super) fn new(handle: String, customer: Option<String>, last4: Option<String>) -> Self {
        let plain = |last4: &String| last4.len() == 4 && last4.bytes().all(|b| b.is_ascii_digit());
        Self {
            handle,
            customer,
            last4: last4.filter(plain),
        }
    }

    /// For people.
    fn shown(&self) -> String {
        format!("····{}", self.last4.as_deref().unwrap_or_default())
    }
}

impl fmt::Debug for SavedCard {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("SavedCard").field(&self.shown()).finish()
    }
}

/// Why a rule is off whose payer has paid.
pub(super) const NOT_SAVED: &str = "it was paid in a way that cannot be saved";

/// A rule: who agreed to what, and what has come of it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct AutoTopup {
    pub(super) account: AccountId,
    /// Who keeps the card.
    pub(super) provider: String,
    /// It is charged when less is free,
    pub(super) below_rub: MicroRub,
    /// so much at once,
    pub(super) amount_rub: MicroRub,
    /// and so much in a month at most.
    pub(super) month_max_rub: MicroRub,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) email: Option<String>,
    pub(super) by: String,
    pub(super) created_ms: u64,
    /// The payment by which the payer agrees.
    pub(super) consent: IntentId,
    pub(super) status: AutoStatus,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) reason: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) card: Option<SavedCard>,
    /// What the card is charged by now. It stands here before the provider is asked, and until all of it is known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) charging: Option<IntentId>,
    /// How often it was declined since it was charged last.
    #[serde(default)]
    pub(super) declines: u32,
    /// Until then it is not charged; while a card is waited for that its payer has paid by, it is waited for until then.
    #[serde(default)]
    pub(super) not_before_ms: u64,
    /// The month, since January 1970, and what was charged or asked for in it.
    #[serde(default)]
    pub(super) month: u64,
    #[serde(default)]
    pub(super) month_rub: MicroRub,
    /// The month in which it was told that no more may be charged.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) full_month: Option<u64>,
}

/// A rule for people: without the handle.
#[derive(Debug, Serialize)]
pub struct AutoShown {
    pub(crate) account: AccountId,
    provider: String,
    below_rub: MicroRub,
    amount_rub: MicroRub,
    month_max_rub: MicroRub,
    /// What was charged or asked for in this month.
    month_rub: MicroRub,
    pub(crate) status: AutoStatus,
    reason: Option<String>,
    /// The card's last digits.
    card: Option<String>,
    /// The payment by which the payer agrees.
    payment: IntentId,
    /// Where it is made, while it is waited for.
    pub(crate) url: Option<String>,
    declines: u32,
    next_try_at: Option<String>,
    created_at: String,
    by: String,
}

impl AutoTopup {
    /// What was charged or asked for in the month of this time.
    pub(super) fn charged_in_month(&self, now_ms: u64) -> MicroRub {
        if self.month == month_of(now_ms) {
            self.month_rub
        } else {
            MicroRub::ZERO
        }
    }

    /// Whether the same was asked for.
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

/// Rules, and how they are changed.
#[derive(Clone, Debug)]
pub(super) struct Rules {
    store: AnyLedger,
}

impl Rules {
    pub(super) const fn new(store: AnyLedger) -> Self {
        Self { store }
    }

    /// The rule of an account.
    pub(super) async fn find(&self, account: &AccountId) -> Result<Option<AutoTopup>, BookError> {
        Ok(self.versioned(account).await?.1)
    }

    /// The same, and the version to change it by.
    pub(super) async fn versioned(
        &self,
        account: &AccountId,
    ) -> Result<(u64, Option<AutoTopup>), BookError> {
        match self.store.note(&name(account)).await? {
            None => Ok((0, None)),
            Some(note) if note.text == GONE => Ok((note.version, None)),
            Some(note) => Ok((note.version, Some(read(&note.text)?))),
        }
    }

    /// Writes a rule where that is still of this version. Says whether it was.
    pub(super) async fn put(&self, version: u64, rule: &AutoTopup) -> Result<bool, BookError> {
        self.write(&name(&rule.account), version, &text(rule)?)
            .await
    }

    /// Takes a rule away where it is still of this version. Says whether it was. Versions go on behind it: who has read a
    /// rule that is gone does not write it in the place of another.
    pub(super) async fn take(&self, account: &AccountId, version: u64) -> Result<bool, BookError> {
        self.write(&name(account), version, GONE).await
    }

    /// The accounts that may have a rule.
    pub(super) async fn accounts(&self) -> Result<Vec<AccountId>, BookError> {
        Ok(self.listed().await?.1)
    }

    /// Puts an account among them.
    pub(super) async fn list(&self, account: &AccountId) -> Result<(), BookError> {
        for _ in 0..TRIES_MAX {
            let (version, mut accounts) = self.listed().await?;
            if accounts.contains(account) {
                // Written all the same: who is about to take it out looks again.
                if self.write(LIST, version, &text(&accounts)?).await? {
                    return Ok(());
                }
                continue;
            }
            if accounts.len() >= RULES_MAX {
                return Err(BookError::Unavailable(
                    format!("{RULES_MAX} accounts are topped up by cards: no more may be").into(),
                ));
            }
            accounts.push(account.clone());
            if self.write(LIST, version, &text(&accounts)?).await? {
                return Ok(());
            }
        }
        Err(busy("the accounts that are topped up by cards"))
    }

    /// Takes an account out of the list, if it has no rule.
    pub(super) async fn unlist(&self, account: &AccountId) -> Result<(), BookError> {
        for _ in 0..TRIES_MAX {
            let (version, mut accounts) = self.listed().await?;
            let count = accounts.len();
            accounts.retain(|one| one != account);
            if accounts.len() == count
                || self.find(account).await?.is_some()
                || self.write(LIST, version, &text(&accounts)?).await?
            {
                return Ok(());
            }
        }
        Err(busy("the accounts that are topped up by cards"))
    }

    async fn listed(&self) -> Result<(u64, Vec<AccountId>), BookError> {
        match self.store.note(LIST).await? {
            None => Ok((0, Vec::new())),
            Some(note) => Ok((note.version, read(&note.text)?)),
        }
    }

    async fn write(&self, name: &str, version: u64, text: &str) -> Result<bool, BookError> {
        match self.store.put_note(name, version, text).await {
            Ok(()) => Ok(true),
            Err(BookError::Exists) => {
                tokio::task::yield_now().await;
                Ok(false)
            }
            Err(error) => Err(error),
        }
    }
}

fn name(account: &AccountId) -> String {
    format!("payment-auto/{account}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cards_handle_is_shown_to_nobody() {
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
        let kept: AutoTopup = read(&text(&rule).unwrap()).unwrap();
        assert_eq!(kept, rule);
    }

    #[test]
    fn no_more_than_four_digits_of_a_card_are_kept() {
        for (told, kept) in [
            (Some("4242"), Some("4242")),
            (Some("4242424242424242"), None),
            (Some("42é"), None),
            (None, None),
        ] {
            let card = SavedCard::new("h".into(), None, told.map(str::to_owned));
            assert_eq!(card.last4.as_deref(), kept, "{told:?}");
        }
    }
}
