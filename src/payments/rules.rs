//! Creates, shows, replaces and removes automatic top-up rules. A card is saved only by a payment that the card's owner
//! makes, because only the owner can consent.

use tollgate_layers::{key::AccountId, money::MicroRub, reserve::ledger::BookError};
use tollgate_ledger::contract::{Documents, Update, Versioned};

use super::{
    auto::{AutoShown, AutoStatus, AutoTopup, NOT_SAVED, SavedCard, rule_name},
    intent::{Intent, IntentId, State},
    service::{NewPayment, PaymentError, Payments},
};
use crate::{
    config::is_whole_kopecks,
    text::{causes::chain, time::now_ms},
};

/// A request to set the automatic top-up rule of an account.
#[derive(Clone, Debug)]
pub struct NewAutoTopup {
    /// The id of the payment that saves the card. If a request is repeated with the same id, no second rule is created.
    pub id: IntentId,
    /// The account that the rule is for.
    pub account: AccountId,
    /// The threshold: the card is charged when the balance falls below this amount.
    pub below: MicroRub,
    /// The amount of each card charge.
    pub amount: MicroRub,
    /// The maximum that the card is charged in a calendar month.
    pub month_max: MicroRub,
    /// The name of the provider; `None` selects the only configured provider.
    pub provider: Option<String>,
    /// The email address for fiscal receipts.
    pub email: Option<String>,
    /// The requester of the rule: an operator's name, or `key:` followed by a key's id.
    pub by: String,
}

impl NewAutoTopup {
    fn check(&self) -> Result<(), PaymentError> {
        let (field, problem) = if !is_whole_kopecks(self.below) || self.below <= MicroRub::ZERO {
            ("below_rub", "must be whole kopecks, above 0")
        } else if self.amount < self.below {
            let problem = "must be at least below_rub: one charge must raise the balance above it";
            ("amount_rub", problem)
        } else if self.month_max < self.amount {
            let problem = "must be at least amount_rub: otherwise no charge would be made";
            ("month_max_rub", problem)
        } else {
            return Ok(());
        };
        Err(PaymentError::Rule(field, problem))
    }

    /// Returns the rule in its first state, in which no card is saved yet.
    fn rule(self, provider: String) -> AutoTopup {
        AutoTopup {
            account: self.account,
            provider,
            below_rub: self.below,
            amount_rub: self.amount,
            month_max_rub: self.month_max,
            email: self.email,
            by: self.by,
            created_ms: now_ms(),
            consent: self.id,
            status: AutoStatus::Waiting,
            reason: None,
            card: None,
            charging: None,
            last: None,
            declines: 0,
            not_before_ms: 0,
            month: 0,
            month_rub: MicroRub::ZERO,
            full_month: None,
        }
    }
}

impl Payments {
    /// Creates the payment that saves a card, and stores the rule according to which this card will be charged. If the
    /// account already has a rule, that rule is replaced, and its saved card is deleted.
    ///
    /// # Errors
    /// Any [`PaymentError`]: if the request is invalid, or the provider or the ledger fails. If the failure is
    /// transient, the request may be repeated.
    pub async fn set_auto(&self, wanted: NewAutoTopup) -> Result<AutoShown, PaymentError> {
        wanted.check()?;
        let consent = self
            .create(NewPayment {
                id: wanted.id,
                account: wanted.account.clone(),
                amount: wanted.amount,
                provider: wanted.provider.clone(),
                email: wanted.email.clone(),
                by: wanted.by.clone(),
                saves_card: true,
            })
            .await?;
        let rule = wanted.rule(consent.provider.clone());
        let rules = &self.0.rules;
        let replace = async |found: Versioned<AutoTopup>| {
            rules.list(&rule.account).await?;
            if let Some(known) = &found.value
                && known.consent == rule.consent
            {
                if !known.is_same(&rule) {
                    return Err(PaymentError::Exists);
                }
                return Ok(Update::Keep((known.clone(), None)));
            }
            if !consent.state.is_open() {
                return Err(PaymentError::Exists);
            }
            // Card charges by the replaced rule count towards the monthly maximum of the new rule.
            let mut rule = rule.clone();
            if let Some(known) = &found.value {
                (rule.month, rule.month_rub) = (known.month, known.month_rub);
            }
            Ok(Update::Write(rule.clone(), (rule, found.value)))
        };
        let name = rule_name(&rule.account);
        let (rule, before) = self.0.store.update_async(&name, replace).await?;
        // Another process may have removed the account from the list before it could read the new rule. So the account
        // is added to the list again.
        rules.list(&rule.account).await?;
        if let Some(before) = before {
            let why = "the automatic top-up rule was replaced by another";
            self.forgotten(before, why).await?;
        }
        self.shown(&rule).await
    }

    /// Returns the automatic top-up rule of an account.
    ///
    /// # Errors
    /// [`PaymentError::NoRule`] if the account has no rule; [`PaymentError::Ledger`] if the ledger cannot be reached.
    pub async fn auto_of(&self, account: &AccountId) -> Result<AutoShown, PaymentError> {
        let found = self.0.rules.find(account).await?;
        let rule = found.ok_or(PaymentError::NoRule)?;
        self.shown(&rule).await
    }

    /// Returns all automatic top-up rules, ordered by account.
    ///
    /// # Errors
    /// [`PaymentError::Ledger`] if the ledger cannot be reached.
    pub async fn autos(&self) -> Result<Vec<AutoShown>, PaymentError> {
        let mut shown = Vec::new();
        for account in self.0.rules.accounts().await? {
            if let Some(rule) = self.0.rules.find(&account).await? {
                shown.push(self.shown(&rule).await?);
            }
        }
        shown.sort_by(|a, b| a.account.cmp(&b.account));
        Ok(shown)
    }

    /// Removes the automatic top-up rule of an account, and deletes the saved card.
    ///
    /// # Errors
    /// [`PaymentError::NoRule`] if the account has no rule; another [`PaymentError`] if the provider or the ledger
    /// fails.
    pub async fn remove_auto(&self, account: &AccountId) -> Result<AutoShown, PaymentError> {
        let remove = |found: Option<AutoTopup>| {
            let rule = found.ok_or(PaymentError::NoRule)?;
            Ok::<_, PaymentError>(Update::Remove(rule))
        };
        let rule: AutoTopup = self.0.store.update(&rule_name(account), remove).await?;
        self.0.rules.unlist(account).await?;
        let mut shown = rule.shown(None, now_ms());
        shown.status = AutoStatus::Off;
        let why = "the automatic top-up rule was removed";
        self.forgotten(rule, why).await?;
        Ok(shown)
    }

    /// Turns the account's rule on again after its card was declined too often.
    ///
    /// # Errors
    /// [`PaymentError::NoRule`] if the account has no rule; [`PaymentError::NoCard`] if the rule has no saved card;
    /// [`PaymentError::Ledger`] if the ledger cannot be reached.
    pub async fn resume_auto(&self, account: &AccountId) -> Result<AutoShown, PaymentError> {
        let resume = |found: Option<AutoTopup>| {
            let mut rule = found.ok_or(PaymentError::NoRule)?;
            if rule.card.is_none() {
                return Err(PaymentError::NoCard);
            }
            (rule.status, rule.reason) = (AutoStatus::On, None);
            (rule.declines, rule.not_before_ms) = (0, 0);
            Ok(Update::Write(rule.clone(), rule))
        };
        let rule = self.0.store.update(&rule_name(account), resume).await?;
        self.shown(&rule).await
    }

    /// Returns a rule as it is shown to people, with the link of the payment that the rule waits for.
    async fn shown(&self, rule: &AutoTopup) -> Result<AutoShown, PaymentError> {
        let url = match rule.status {
            AutoStatus::Waiting => {
                let consent = self.0.intents.find(rule.consent).await?;
                consent.filter(|consent| consent.state.is_open())
            }
            AutoStatus::On | AutoStatus::Off => None,
        };
        Ok(rule.shown(url.and_then(|consent| consent.url), now_ms()))
    }

    /// Cancels the card charge of a removed rule, if the provider has not answered the charge yet, so that the charge
    /// is not requested again. After that, deletes the card at the provider.
    async fn forgotten(&self, rule: AutoTopup, why: &str) -> Result<(), PaymentError> {
        if let Some(id) = rule.charging
            && let Some(charge) = self.0.intents.find(id).await?
            && charge.state == State::Creating
        {
            self.cancel(id, why).await?;
        }
        if let (Some(card), Ok(provider)) = (&rule.card, self.provider(Some(&rule.provider))) {
            let forgotten = provider.forget(card).await;
            if let Err(error) = forgotten {
                tracing::warn!(
                    account = %rule.account, provider = rule.provider, error = chain(&error),
                    "a saved card was deleted in the ledger, but not at its provider"
                );
            }
        }
        Ok(())
    }

    /// Stores the card and turns the rule on: by paying, the payer has consented. If `card` is `None`, the payment
    /// method cannot be saved, and the rule is turned off.
    pub(super) async fn keep_card(
        &self,
        consent: &Intent,
        card: Option<&SavedCard>,
    ) -> Result<(), BookError> {
        let keep = |found: Option<AutoTopup>| {
            let waits =
                |rule: &AutoTopup| rule.consent == consent.id && rule.status == AutoStatus::Waiting;
            let Some(mut rule) = found.filter(waits) else {
                return Ok(Update::Keep(None));
            };
            rule.not_before_ms = 0;
            match card {
                Some(card) => {
                    rule.status = AutoStatus::On;
                    rule.card = Some(card.clone());
                }
                None => {
                    rule.status = AutoStatus::Off;
                    rule.reason = Some(NOT_SAVED.to_owned());
                }
            }
            let status = rule.status;
            Ok::<_, BookError>(Update::Write(rule, Some(status)))
        };
        let account = &consent.account;
        let stored = self.0.store.update(&rule_name(account), keep).await?;
        if let Some(status) = stored {
            tracing::info!(
                target: "audit", who = consent.provider, what = "payment.auto", %account,
                intent = %consent.id, status = status.as_str()
            );
        }
        Ok(())
    }
}
