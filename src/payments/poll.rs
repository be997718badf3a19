//! Fetches the payments of open intents from providers, periodically and at an operator's request.

use std::time::Duration;

use parking_lot::Mutex;
use tollgate_layers::{money::MicroRub, reserve::ledger::BookError};
use tollgate_ledger::contract::LeaderLease;

use super::{
    intent::{CardUse, Intent, IntentId, State},
    provider::{ProviderError, ProviderStatus},
    providers::Provider,
    service::{PaymentError, Payments},
};
use crate::{
    edge::panics::catch_round,
    observe::metrics::payments::Outcome,
    text::{causes::chain, time::now_ms},
};

/// The age (ms) at which an intent in state `Creating` is closed. No payer has received a link for it.
pub(super) const CREATING_MS_MAX: u64 = 3_600_000;
/// How long (ms) an unpaid link is valid, if the provider's links never expire by themselves.
const UNPAID_MS_MAX: u64 = 24 * 3_600_000;
/// How long (ms) every provider remembers an idempotency key.
pub(super) const REPEATABLE_MS_MAX: u64 = 23 * 3_600_000;
/// Name of the leader lease under which one gateway polls payments.
const LEASE: &str = "payments";

/// Periodic checks that one gateway makes for all gateways of a ledger.
pub(super) struct Checks {
    /// The name of the leader lease that a gateway must hold to make these checks.
    pub(super) lease: &'static str,
    pub(super) pause: Duration,
    /// The name of these checks in log lines about a panic.
    pub(super) part: &'static str,
    /// The log message if the checks fail.
    pub(super) failed: &'static str,
}

impl Payments {
    /// Fetches an intent's payment from the provider and books its outcome. After that, if the account owes money for
    /// refunds, takes this money from the account's free money, as far as there is enough.
    ///
    /// # Errors
    /// Any [`PaymentError`]: if the intent is unknown, or the provider or the ledger fails.
    pub async fn check(&self, id: IntentId) -> Result<Intent, PaymentError> {
        let intent = self.find(id).await?;
        let provider = self.provider(Some(&intent.provider))?;
        if intent.state == State::Creating && intent.card == Some(CardUse::Saved) {
            self.look_after(&intent.account, &Mutex::default()).await?;
            self.ask_again(id, &[]).await?;
            return self.find(id).await;
        }
        let young = now_ms().saturating_sub(intent.created_ms) < REPEATABLE_MS_MAX;
        let intent = if intent.state == State::Creating && young {
            self.link(provider, &intent).await?
        } else {
            intent
        };
        let Some(payment) = intent.payment.clone() else {
            return self.cancel(id, "the provider never answered").await;
        };
        let intent = self.look(provider, intent, &payment, true).await?;
        for refund in &intent.refunds {
            if refund.debt() > MicroRub::ZERO {
                self.take(&intent, refund).await?;
            }
        }
        self.find(id).await
    }

    /// Fetches the payment of every open intent from its provider. This is needed because notifications can be lost.
    ///
    /// # Errors
    /// [`BookError`] if the ledger cannot be reached. A failure of a provider is only logged.
    pub async fn poll(&self) -> Result<(), BookError> {
        // A provider that timed out in this round is not called again in the same round.
        let mut silent = Vec::new();
        for open in self.0.intents.open().await? {
            match self.ask_again(open.id, &silent).await {
                Ok(()) => {}
                Err(PaymentError::Ledger(error)) => return Err(error),
                Err(error) => {
                    tracing::warn!(intent = %open.id, error = chain(&error), "an open payment could not be checked");
                    if let PaymentError::Provider(name, error) = error
                        && error.may_pass()
                    {
                        silent.push(name);
                    }
                }
            }
        }
        Ok(())
    }

    async fn ask_again(&self, id: IntentId, silent: &[&str]) -> Result<(), PaymentError> {
        let Some(intent) = self.0.intents.find(id).await? else {
            // The list contains an intent that does not exist. An intent is listed before it is written. So the process
            // that listed it is about to write it, or has died.
            if id.age_ms(now_ms()) > CREATING_MS_MAX {
                self.0.intents.close(id).await?;
            }
            return Ok(());
        };
        if silent.contains(&&*intent.provider) {
            return Ok(());
        }
        match intent.payment.clone() {
            Some(payment) => {
                let provider = self.provider(Some(&intent.provider))?;
                self.look(provider, intent, &payment, false).await?;
            }
            // As long as the rule of a card charge exists, `keep_topped_up` continues the charge.
            None if intent.card == Some(CardUse::Saved) => {
                let rule = self.0.rules.find(&intent.account).await?;
                if rule.is_none_or(|rule| rule.charging != Some(id)) {
                    let why = "the automatic top-up rule was removed";
                    self.cancel(id, why).await?;
                }
            }
            None if now_ms().saturating_sub(intent.created_ms) > CREATING_MS_MAX => {
                self.cancel(id, "the provider never answered").await?;
            }
            None => {}
        }
        Ok(())
    }

    /// Polls open payments periodically, while this gateway holds the leader lease. Returns only if payments are not
    /// configured.
    pub async fn run(self) {
        let Some(config) = self.config() else {
            return;
        };
        let checks = Checks {
            lease: LEASE,
            pause: config.poll,
            part: "the open-payment check",
            failed: "open payments could not be checked",
        };
        self.lead(&checks, || self.poll()).await;
    }

    /// Calls `round` repeatedly, with the pause of `checks` between two rounds, while this gateway holds the leader
    /// lease. Never returns.
    pub(super) async fn lead<F: Future<Output = Result<(), BookError>>>(
        &self,
        checks: &Checks,
        round: impl Fn() -> F,
    ) {
        loop {
            tokio::time::sleep(checks.pause).await;
            let led = async {
                // The leader lease is longer than a round usually takes. If two gateways run rounds at the same time
                // nevertheless, it does no harm.
                let ttl = checks.pause.saturating_mul(2);
                if self.0.store.lead(checks.lease, &self.0.owner, ttl).await? {
                    round().await?;
                }
                Ok::<_, BookError>(())
            };
            if let Some(Err(error)) = catch_round(checks.part, led).await {
                tracing::warn!(error = chain(&error), "{}", checks.failed);
            }
        }
    }

    /// Fetches the payment of an intent and books its outcome.
    pub(super) async fn look(
        &self,
        provider: &Provider,
        intent: Intent,
        payment: &str,
        refunds: bool,
    ) -> Result<Intent, PaymentError> {
        let remote = provider.fetch(&intent, payment, refunds).await;
        let remote = remote.map_err(|error| {
            self.0.counters.count(Outcome::Failed);
            PaymentError::Provider(provider.name(), error)
        })?;
        let intent = if intent.payment.is_none() {
            // So far only the notification has linked this payment to the intent, so the provider must confirm the
            // link.
            if remote.intent.as_deref() != Some(&intent.id.to_string()) {
                let error = ProviderError::NotFound;
                return Err(PaymentError::Provider(provider.name(), error));
            }
            self.adopt(provider, intent.id, payment, None).await?
        } else {
            intent
        };
        let is_over = remote.provider_status == ProviderStatus::Pending
            && intent.state.is_open()
            && intent.url.is_some()
            && now_ms().saturating_sub(intent.created_ms) > UNPAID_MS_MAX;
        if is_over {
            let withdrawn = provider.withdraw(payment).await;
            if withdrawn.map_err(|error| PaymentError::Provider(provider.name(), error))? {
                return self.cancel(intent.id, "not paid in time").await;
            }
        }
        self.settle(intent, remote).await
    }
}
