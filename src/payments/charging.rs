//! Charges saved cards according to the automatic top-up rules. One gateway does this for all accounts, and no call
//! waits for it. In this module, "charge" always means the charge of a card.
//!
//! Before a charge is requested from the provider, the charge is written into its rule by a compare-and-swap of the
//! rule's version. If several gateways detect the same low balance, only one of them begins a charge. The idempotency
//! key of the request is derived from the charge's id, so a retry by any process repeats the same request. The
//! resulting payment is then fetched from the provider and booked like any other payment. The next charge of a rule
//! begins only when the outcome of the last charge is known. If a process dies during a charge, another process repeats
//! the unfinished part, which still takes effect only once.

use std::{pin::pin, sync::Arc};

use futures_util::{StreamExt, stream};
use parking_lot::Mutex;
use tollgate_layers::{
    key::AccountId,
    reserve::ledger::{BookError, LedgerAdmin},
};
use tollgate_ledger::{calendar::month_of, happening::Happening};

use super::{
    auto::{AutoStatus, AutoTopup, Mark, NOT_SAVED, SavedCard},
    intent::{CardUse, Intent, IntentId, State},
    poll::{CREATING_MS_MAX, Checks, REPEATABLE_MS_MAX},
    provider::Charged,
    providers::Provider,
    service::{PaymentError, Payments},
};
use crate::text::{
    causes::chain,
    time::{millis, now_ms},
};

/// Maximum number of steps that one round takes for a rule.
const STEPS_MAX: usize = 20;
/// Maximum number of rules that are processed at the same time.
const AT_ONCE_MAX: usize = 16;
/// After this number of declines, the pause before the next charge is no longer doubled.
const DOUBLED_MAX: u32 = 6;
/// Name of the leader lease under which one gateway processes the rules of all accounts.
const LEASE: &str = "payments-auto";

/// Maximum wait (ms) for the provider's report of the saved card, after the payer has paid.
const CARD_MS_MAX: u64 = 3_600_000;

/// The reason of a charge that was canceled while it was unknown whether the card was charged.
const NEVER_ANSWERED: &str = "the provider never answered";

/// The requester that is stored in the intents of automatic card charges.
const BY: &str = "auto";

/// The result of one step for a rule: `Again` if the next step can follow now, `Done` if the rule has to wait.
enum Step {
    Again,
    Done,
}

impl Payments {
    /// Processes all automatic top-up rules periodically, while this gateway holds the leader lease. Returns only if
    /// payments are not configured.
    pub async fn keep_topped_up(self) {
        let Some(config) = self.config() else {
            return;
        };
        let checks = Checks {
            lease: LEASE,
            pause: config.auto_check,
            part: "the saved-card check",
            failed: "saved cards could not be checked",
        };
        self.lead(&checks, || self.charge_due()).await;
    }

    /// Charges saved cards: processes each automatic top-up rule once.
    ///
    /// # Errors
    /// [`BookError`] if the ledger cannot be reached. A failure of a provider is only logged; the next round tries
    /// again.
    pub async fn charge_due(&self) -> Result<(), BookError> {
        // A provider that timed out in this round is not called again in the same round.
        let silent = Arc::new(Mutex::new(Vec::new()));
        let rounds = stream::iter(self.0.rules.accounts().await?).map(|account| {
            let (payments, silent) = (self.clone(), Arc::clone(&silent));
            async move { payments.look_after(&account, &silent).await }
        });
        let mut rounds = pin!(rounds.buffer_unordered(AT_ONCE_MAX));
        let mut failed = None;
        while let Some(done) = rounds.next().await {
            match done {
                Ok(()) => {}
                Err(PaymentError::Ledger(error)) => failed = Some(error),
                // The rule's provider may be configured only at another gateway.
                Err(PaymentError::NoProvider(_)) => {}
                Err(error) => {
                    tracing::warn!(error = chain(&error), "a saved card was not charged yet");
                    if let PaymentError::Provider(name, _) = error {
                        silent.lock().push(name.to_owned());
                    }
                }
            }
        }
        failed.map_or(Ok(()), Err)
    }

    /// Processes a rule as far as it can be processed now, in at most `STEPS_MAX` steps.
    pub(super) async fn look_after(
        &self,
        account: &AccountId,
        silent: &Mutex<Vec<String>>,
    ) -> Result<(), PaymentError> {
        for _ in 0..STEPS_MAX {
            let found = self.0.rules.versioned(account).await?;
            let Some(rule) = found.value else {
                return Ok(self.0.rules.unlist(account).await?);
            };
            if silent.lock().contains(&rule.provider) {
                return Ok(());
            }
            match self.step(found.version, rule).await? {
                Step::Again => {}
                Step::Done => return Ok(()),
            }
        }
        Ok(())
    }

    async fn step(&self, version: u64, rule: AutoTopup) -> Result<Step, PaymentError> {
        match (rule.status, rule.charging) {
            (AutoStatus::Waiting, _) => self.wait(version, rule).await,
            (AutoStatus::On | AutoStatus::Off, Some(id)) => self.go_on(version, rule, id).await,
            (AutoStatus::On, None) => self.begin(version, rule).await,
            (AutoStatus::Off, None) => Ok(Step::Done),
        }
    }

    /// Waits for the payment that saves the card. The rule is turned off if the payer does not pay, or pays by a method
    /// that cannot be saved. Some providers do not report that a method cannot be saved, so the rule is also turned off
    /// if no card has been reported before a deadline.
    async fn wait(&self, version: u64, mut rule: AutoTopup) -> Result<Step, PaymentError> {
        let now = now_ms();
        let reason = match self.0.intents.find(rule.consent).await? {
            Some(consent) => match consent.state {
                State::Canceled | State::Refused => consent.reason,
                State::Creating | State::Open => return Ok(Step::Done),
                State::Paid if rule.not_before_ms == 0 => {
                    rule.not_before_ms = now.saturating_add(CARD_MS_MAX);
                    self.0.rules.put(version, &rule).await?;
                    return Ok(Step::Done);
                }
                State::Paid if rule.not_before_ms > now => return Ok(Step::Done),
                State::Paid => Some(NOT_SAVED.to_owned()),
            },
            None if rule.consent.age_ms(now) > CREATING_MS_MAX => None,
            None => return Ok(Step::Done),
        };
        (rule.status, rule.not_before_ms) = (AutoStatus::Off, 0);
        rule.reason = Some(reason.unwrap_or_else(|| "not paid".to_owned()));
        self.0.rules.put(version, &rule).await?;
        Ok(Step::Done)
    }

    /// Begins a card charge if it is due. The rule was read before the balance. So a top-up between the two reads is
    /// included in the balance; if a charge of this rule caused the top-up, the rule's version has changed as well, and
    /// the new charge is not written.
    async fn begin(&self, version: u64, mut rule: AutoTopup) -> Result<Step, PaymentError> {
        let now = now_ms();
        if rule.not_before_ms > now {
            return Ok(Step::Done);
        }
        let view = match self.0.store.account(&rule.account).await {
            Ok(view) => view,
            Err(BookError::NotFound) => return Ok(Step::Done),
            Err(error) => return Err(error.into()),
        };
        // Calls in flight count with their cost so far, not with the amount that they hold. If holds caused top-ups,
        // the added money would only let calls hold more.
        let used = self.0.running.used(&rule.account);
        let left = view.balance_rub.minus_or_zero(used);
        let spent = view.spent_rub.plus_or_max(used);
        let is_spent = rule.last.is_none_or(|last| last.is_past(spent, left));
        if view.suspended || left >= rule.below_rub || !is_spent {
            return Ok(Step::Done);
        }
        self.provider(Some(&rule.provider))?;
        let month = month_of(now);
        let in_month = rule.charged_in_month(now).plus_or_max(rule.amount_rub);
        if in_month > rule.month_max_rub {
            if rule.full_month == Some(month) {
                return Ok(Step::Done);
            }
            let reason = format!(
                "{} ₽ of the monthly maximum of {} ₽ are charged already",
                rule.charged_in_month(now),
                rule.month_max_rub
            );
            let once = format!("auto_topup_full:{}:{}:{month}", rule.account, rule.consent);
            self.tell_failed(&rule, once, reason, false, None).await?;
            rule.full_month = Some(month);
            self.0.rules.put(version, &rule).await?;
            return Ok(Step::Done);
        }
        (rule.month, rule.month_rub) = (month, in_month);
        rule.charging = Some(IntentId::new());
        rule.last = Some(Mark {
            spent_rub: spent,
            left_rub: left.plus_or_max(rule.amount_rub),
        });
        // If another process has recorded a charge first, this write fails, and the loop continues with that charge.
        self.0.rules.put(version, &rule).await?;
        Ok(Step::Again)
    }

    /// Continues a card charge until its outcome is known.
    async fn go_on(
        &self,
        version: u64,
        rule: AutoTopup,
        id: IntentId,
    ) -> Result<Step, PaymentError> {
        let charge = match self.0.intents.find(id).await? {
            Some(charge) => charge,
            None => self.make_charge(&rule, id).await?,
        };
        match charge.state {
            State::Creating => {
                let age_ms = now_ms().saturating_sub(charge.created_ms);
                match &rule.card {
                    Some(card) if age_ms < REPEATABLE_MS_MAX => {
                        let provider = self.provider(Some(&rule.provider))?;
                        self.charge(provider, charge, card).await?;
                    }
                    // The provider may have forgotten the idempotency key, so a retry could charge the card twice.
                    // Instead, the charge is canceled.
                    _ => drop(self.cancel(id, NEVER_ANSWERED).await?),
                }
                Ok(Step::Again)
            }
            // The payer must confirm the charge at this URL, as with any payment link.
            State::Open if charge.url.is_some() => {
                let reason = "the payer has to confirm the card charge".to_owned();
                self.failed(version, rule, &charge, reason).await
            }
            State::Open => {
                let provider = self.provider(Some(&rule.provider))?;
                let payment = charge.payment.clone().unwrap_or_default();
                let charge = self.look(provider, charge, &payment, false).await?;
                Ok(match charge.state {
                    State::Open => Step::Done,
                    _ => Step::Again,
                })
            }
            State::Paid => {
                let mut rule = rule;
                rule.charging = None;
                (rule.declines, rule.not_before_ms) = (0, 0);
                self.0.rules.put(version, &rule).await?;
                Ok(Step::Again)
            }
            State::Canceled | State::Refused => {
                let reason = charge.reason.clone().unwrap_or_default();
                self.failed(version, rule, &charge, reason).await
            }
        }
    }

    /// Writes the intent of a card charge, before the charge is requested from the provider.
    async fn make_charge(&self, rule: &AutoTopup, id: IntentId) -> Result<Intent, PaymentError> {
        let intents = &self.0.intents;
        let charge = Intent {
            email: rule.email.clone(),
            card: Some(CardUse::Saved),
            ..Intent::new(id, &rule.account, rule.amount_rub, &rule.provider, BY)
        };
        if !intents.add_open(&charge, usize::MAX).await? {
            return Err(PaymentError::TooMany(usize::MAX));
        }
        tracing::info!(
            target: "audit", who = BY, what = "payment.charge", account = %charge.account, intent = %charge.id,
            provider = charge.provider, amount_rub = %charge.amount_rub
        );
        Ok(intents.create(&charge).await?)
    }

    /// Requests a card charge from the provider and records the response. The money is booked only after the payment
    /// has been fetched from the provider.
    async fn charge(
        &self,
        provider: &Provider,
        charge: Intent,
        card: &SavedCard,
    ) -> Result<(), PaymentError> {
        let of_provider = |error| PaymentError::Provider(provider.name(), error);
        let id = charge.id;
        match provider.charge(&charge, card).await {
            Ok(Charged::Made { payment, url }) => {
                let url = url.as_deref();
                let charge = self.adopt(provider, id, &payment, url).await?;
                self.look(provider, charge, &payment, false).await?;
            }
            Ok(Charged::NeedsPayer) => {
                let link = match provider.create(&charge).await {
                    Ok(link) => link,
                    Err(error) if error.may_pass() => return Err(of_provider(error)),
                    Err(_) => {
                        let why = "the payer has to confirm the card charge";
                        return self.cancel(id, why).await.map(drop);
                    }
                };
                let url = Some(link.url.as_str());
                self.adopt(provider, id, &link.payment, url).await?;
            }
            Ok(Charged::Declined(why)) => drop(self.cancel(id, &why).await?),
            Err(error) if error.may_pass() => return Err(of_provider(error)),
            Err(error) => drop(self.cancel(id, &error.to_string()).await?),
        }
        Ok(())
    }

    /// Handles a failed card charge: emits an event, and delays the next charge or turns the rule off.
    async fn failed(
        &self,
        version: u64,
        mut rule: AutoTopup,
        charge: &Intent,
        reason: String,
    ) -> Result<Step, PaymentError> {
        let config = self.config();
        let declines_max = config.map_or(1, |config| config.auto_declines_max);
        let retry_ms = config.map_or(0, |config| millis(config.auto_retry));
        let now = now_ms();
        rule.declines = rule.declines.saturating_add(1);
        let off = rule.declines >= declines_max
            || charge.state == State::Refused
            || Provider::is_permanent(&reason);
        let once = format!("auto_topup_failed:{}", charge.id);
        let url = charge.url.clone().filter(|_| charge.state == State::Open);
        // The event is emitted before the failure is recorded. If this process dies in between, the next process emits
        // the event again. Both have the same id, so the ledger stores the event once.
        self.tell_failed(&rule, once, reason.clone(), off, url)
            .await?;
        tracing::warn!(
            account = %rule.account, provider = rule.provider, intent = %charge.id, reason, off,
            "a saved card was not charged"
        );
        let doubled = 1u64 << rule.declines.saturating_sub(1).min(DOUBLED_MAX);
        rule.not_before_ms = now.saturating_add(retry_ms.saturating_mul(doubled));
        (rule.charging, rule.last) = (None, None);
        if rule.month == month_of(now) && reason != NEVER_ANSWERED && charge.state != State::Refused
        {
            rule.month_rub = rule.month_rub.minus_or_zero(charge.amount_rub);
        }
        rule.reason = Some(reason);
        if off {
            rule.status = AutoStatus::Off;
        }
        self.0.rules.put(version, &rule).await?;
        Ok(Step::Done)
    }

    async fn tell_failed(
        &self,
        rule: &AutoTopup,
        once: String,
        reason: String,
        off: bool,
        url: Option<String>,
    ) -> Result<(), BookError> {
        let what = Happening::AutoTopupFailed {
            provider: rule.provider.clone(),
            amount_rub: rule.amount_rub,
            reason,
            off,
            url,
        };
        self.emit_once(once, &rule.account, what).await.map(drop)
    }
}
