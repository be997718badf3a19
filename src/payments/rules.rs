//! What rules are made, shown, replaced and removed by. A card is saved with a payment that its owner makes: nobody else can
//! agree to that.

use tollgate_layers::{key::AccountId, money::MicroRub, reserve::ledger::BookError};

use super::{
    NewPayment, PaymentError, Payments,
    auto::{AutoShown, AutoStatus, AutoTopup, NOT_SAVED, SavedCard},
    intent::{Intent, IntentId, State},
    shelf::busy,
};
use crate::{admin::now_ms, config::is_whole_kopecks, text::causes::chain};

/// How often a rule is changed while others change it.
const TRIES_MAX: usize = 20;

/// What an account is to be topped up by.
#[derive(Clone, Debug)]
pub struct NewAutoTopup {
    /// The id of the payment that the card is saved with: the same again is the same rule.
    pub id: IntentId,
    /// Whose account it is.
    pub account: AccountId,
    /// When less is free,
    pub below: MicroRub,
    /// the card is charged so much,
    pub amount: MicroRub,
    /// and so much in a month at most.
    pub month_max: MicroRub,
    /// At which provider; `None`: the one that there is.
    pub provider: Option<String>,
    /// Where receipts go.
    pub email: Option<String>,
    /// Who asks.
    pub by: String,
}

impl Payments {
    /// Asks the payer of an account for the payment that saves a card, and keeps the rule by which it is charged then.
    /// One that was there before is replaced, and its card forgotten.
    ///
    /// # Errors
    /// See [`PaymentError`]; after one that may pass, the same may be asked again.
    pub async fn set_auto(&self, wish: NewAutoTopup) -> Result<AutoShown, PaymentError> {
        if !is_whole_kopecks(wish.below) || wish.below <= MicroRub::ZERO {
            return Err(PaymentError::Rule(
                "below_rub",
                "must be whole kopecks, above 0",
            ));
        }
        if wish.amount < wish.below {
            let problem =
                "must be at least below_rub: one charge has to lift what is free above it";
            return Err(PaymentError::Rule("amount_rub", problem));
        }
        if wish.month_max < wish.amount {
            return Err(PaymentError::Rule(
                "month_max_rub",
                "must be at least amount_rub: no charge would be made",
            ));
        }
        let consent = self
            .create(NewPayment {
                id: wish.id,
                account: wish.account.clone(),
                amount: wish.amount,
                provider: wish.provider,
                email: wish.email.clone(),
                by: wish.by.clone(),
                saves_card: true,
            })
            .await?;
        let rule = AutoTopup {
            account: wish.account,
            provider: consent.provider.clone(),
            below_rub: wish.below,
            amount_rub: wish.amount,
            month_max_rub: wish.month_max,
            email: wish.email,
            by: wish.by,
            created_ms: now_ms(),
            consent: wish.id,
            status: AutoStatus::Waiting,
            reason: None,
            card: None,
            charging: None,
            declines: 0,
            not_before_ms: 0,
            month: 0,
            month_rub: MicroRub::ZERO,
            full_month: None,
        };
        let rules = &self.0.rules;
        for _ in 0..TRIES_MAX {
            rules.list(&rule.account).await?;
            let (version, found) = rules.versioned(&rule.account).await?;
            if let Some(known) = &found
                && known.consent == rule.consent
            {
                if !known.is_same(&rule) {
                    return Err(PaymentError::Exists);
                }
                return self.shown(known).await;
            }
            if !consent.state.is_open() {
                return Err(PaymentError::Exists);
            }
            // What was charged by the rule before counts as the month's.
            let mut rule = rule.clone();
            if let Some(known) = &found {
                (rule.month, rule.month_rub) = (known.month, known.month_rub);
            }
            if rules.put(version, &rule).await? {
                // Whoever took the account out of the list meanwhile has not seen the rule.
                rules.list(&rule.account).await?;
                if let Some(before) = found {
                    self.forgotten(before, "another rule was made").await?;
                }
                return self.shown(&rule).await;
            }
        }
        Err(busy("a rule").into())
    }

    /// The rule of an account.
    ///
    /// # Errors
    /// See [`PaymentError`].
    pub async fn auto_of(&self, account: &AccountId) -> Result<AutoShown, PaymentError> {
        let found = self.0.rules.find(account).await?;
        let rule = found.ok_or(PaymentError::NoRule)?;
        self.shown(&rule).await
    }

    /// All rules, by account.
    ///
    /// # Errors
    /// See [`PaymentError`].
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

    /// Takes a rule away, and forgets its card.
    ///
    /// # Errors
    /// See [`PaymentError`].
    pub async fn remove_auto(&self, account: &AccountId) -> Result<AutoShown, PaymentError> {
        let rules = &self.0.rules;
        for _ in 0..TRIES_MAX {
            let (version, found) = rules.versioned(account).await?;
            let rule = found.ok_or(PaymentError::NoRule)?;
            if !rules.take(account, version).await? {
                continue;
            }
            rules.unlist(account).await?;
            let mut shown = rule.shown(None, now_ms());
            shown.status = AutoStatus::Off;
            self.forgotten(rule, "the rule was removed").await?;
            return Ok(shown);
        }
        Err(busy("a rule").into())
    }

    /// Lets a card be charged again that was declined too often.
    ///
    /// # Errors
    /// See [`PaymentError`].
    pub async fn resume_auto(&self, account: &AccountId) -> Result<AutoShown, PaymentError> {
        for _ in 0..TRIES_MAX {
            let (version, found) = self.0.rules.versioned(account).await?;
            let mut rule = found.ok_or(PaymentError::NoRule)?;
            if rule.card.is_none() {
                return Err(PaymentError::NoCard);
            }
            (rule.status, rule.reason) = (AutoStatus::On, None);
            (rule.declines, rule.not_before_ms) = (0, 0);
            if self.0.rules.put(version, &rule).await? {
                return self.shown(&rule).await;
            }
        }
        Err(busy("a rule").into())
    }

    /// A rule, with the address of the payment that it waits for.
    async fn shown(&self, rule: &AutoTopup) -> Result<AutoShown, PaymentError> {
        let url = match rule.status {
            AutoStatus::Waiting => {
                let consent = self.0.shelf.find(rule.consent).await?;
                consent.filter(|consent| consent.state.is_open())
            }
            AutoStatus::On | AutoStatus::Off => None,
        };
        Ok(rule.shown(url.and_then(|consent| consent.url), now_ms()))
    }

    /// Ends what a rule has begun that is no more: what nobody has answered yet is not asked for again.
    async fn forgotten(&self, rule: AutoTopup, why: &str) -> Result<(), PaymentError> {
        if let Some(id) = rule.charging
            && let Some(charge) = self.0.shelf.find(id).await?
            && charge.state == State::Creating
        {
            self.cancel(id, why).await?;
        }
        if let (Some(card), Ok(provider)) = (&rule.card, self.provider(Some(&rule.provider))) {
            let forgotten = provider.forget(&self.0.client, card).await;
            if let Err(error) = forgotten {
                tracing::warn!(
                    account = %rule.account, provider = rule.provider, error = chain(&error),
                    "a card is forgotten here, and its provider was not told so"
                );
            }
        }
        Ok(())
    }

    /// The payer has agreed: from now on the card is charged. `None`: it cannot be.
    pub(super) async fn keep_card(
        &self,
        consent: &Intent,
        card: Option<&SavedCard>,
    ) -> Result<(), BookError> {
        for _ in 0..TRIES_MAX {
            let (version, found) = self.0.rules.versioned(&consent.account).await?;
            let Some(mut rule) = found else {
                return Ok(());
            };
            if rule.consent != consent.id || rule.status != AutoStatus::Waiting {
                return Ok(());
            }
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
            if self.0.rules.put(version, &rule).await? {
                tracing::info!(
                    target: "audit", who = consent.provider, what = "payment.auto", account = %rule.account,
                    intent = %consent.id, status = rule.status.as_str()
                );
                return Ok(());
            }
        }
        Err(busy("a rule"))
    }
}
