//! Handles the notifications of payment providers: finds the intent, and fetches its payment from the provider.

use std::time::Duration;

use bytes::Bytes;
use http::HeaderMap;
use tokio::sync::SemaphorePermit;
use tollgate_layers::{
    rate_limit::{Limiter, Quota},
    reserve::ledger::BookError,
};

use super::{
    intent::{CardUse, Intent, IntentId, State},
    provider::{Notice, ProviderError, ProviderRefund, ProviderStatus},
    providers::Provider,
    service::{PaymentError, Payments},
};
use crate::text::causes::chain;

/// How often notifications may cause a fetch of the same intent's payment. The limit is above the number of
/// notifications that a provider sends, and bounds the fetches that forged notifications can cause.
const FETCHES: Quota = Quota {
    count: 1,
    per: Duration::from_secs(1),
    burst: 20,
};

/// The gateway's answer to a notification of a provider.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Notified {
    /// The notification was handled, or it concerns no intent of this ledger. Contains the body of the response.
    Done(&'static str),
    /// The answer to a provider's question whether it may take money; contains the code of the answer.
    Answer(u8),
    /// The notification is malformed, or its signature is not valid.
    Unread,
    /// The provider is not configured at this gateway.
    NoProvider,
    /// The notification cannot be handled now, so the provider should send it again later.
    Later,
}

impl Payments {
    /// Handles a notification that a provider has sent.
    pub(crate) async fn notified(
        &self,
        provider: &str,
        query: &str,
        headers: &HeaderMap,
        body: &Bytes,
    ) -> Notified {
        let Ok(provider) = self.provider(Some(provider)) else {
            return Notified::NoProvider;
        };
        let Some(mut notice) = provider.read(query, headers, body) else {
            return Notified::Unread;
        };
        match self.handle(provider, &mut notice).await {
            Ok(notified) => notified,
            // The provider does not have this payment, so the notification is forged.
            Err(PaymentError::Provider(_, ProviderError::NotFound)) => {
                Notified::Done(provider.thanks())
            }
            Err(error) => {
                tracing::warn!(
                    provider = provider.name(),
                    payment = notice.payment,
                    error = chain(&error),
                    "a payment notification was not handled; the provider should send it again"
                );
                Notified::Later
            }
        }
    }

    async fn handle(
        &self,
        provider: &Provider,
        notice: &mut Notice,
    ) -> Result<Notified, PaymentError> {
        let done = Notified::Done(provider.thanks());
        if let (None, Some(via)) = (&notice.intent, &notice.via) {
            let Ok(_permit) = self.0.at_once.try_acquire() else {
                return Ok(Notified::Later);
            };
            let found = provider.intent_of(via).await;
            notice.intent =
                found.map_err(|error| PaymentError::Provider(provider.name(), error))?;
        }
        let notice = &*notice;
        let found = self.find_notified(provider, notice).await?;
        if let Some(question) = &notice.question {
            let verdict = question.verdict(found.as_ref().map(|(intent, _)| intent));
            return Ok(Notified::Answer(verdict as u8));
        }
        let Some((intent, payment)) = found else {
            return Ok(done);
        };
        let reverses = notice.canceled.is_some() && notice.canceled.as_deref() == paid_by(&intent);
        if intent.state == State::Paid && !notice.is_refund && !reverses {
            let later = self.handle_paid(provider, &intent, notice).await?;
            return Ok(later.unwrap_or(done));
        }
        let Some(_permit) = self.may_fetch(intent.id).await else {
            return Ok(Notified::Later);
        };
        let fetched = self.fetch_notified(provider, intent, &payment, notice);
        let intent = fetched.await?;
        if let Some(refund) = &notice.refund {
            if intent.state != State::Paid {
                return Ok(Notified::Later);
            }
            self.book_refund(&intent, notice, refund).await?;
            return Ok(done);
        }
        let is_early = notice.is_success && intent.state.is_open();
        Ok(if is_early { Notified::Later } else { done })
    }

    /// Handles a notification about an intent that is already paid. Stores the card that the notification reports, and
    /// refuses a second payment for the intent. Returns a response if the second payment cannot be fetched now.
    async fn handle_paid(
        &self,
        provider: &Provider,
        intent: &Intent,
        notice: &Notice,
    ) -> Result<Option<Notified>, PaymentError> {
        self.keep_notified_card(intent, notice).await?;
        match notice.transaction.as_deref() {
            Some(other) if paid_by(intent) != Some(other) => {
                self.paid_again(provider, intent, other).await
            }
            _ => Ok(None),
        }
    }

    /// Fetches the payment that the notification is about, and books its outcome.
    async fn fetch_notified(
        &self,
        provider: &Provider,
        intent: Intent,
        payment: &str,
        notice: &Notice,
    ) -> Result<Intent, PaymentError> {
        let looked = self.look(provider, intent, payment, notice.is_refund);
        let mut intent = looked.await?;
        // If the payment succeeded although its intent has been canceled in the meantime, the payment is still booked.
        if !matches!(intent.state, State::Paid | State::Refused)
            && let Some(transaction) = &notice.transaction
        {
            // The payer may have made another attempt, which was declined, after the transaction that paid. So the
            // transaction is fetched by its own id.
            let found = provider.transaction(transaction).await;
            let found = found.map_err(|error| PaymentError::Provider(provider.name(), error))?;
            if let Some(remote) = found {
                intent = self.settle(intent, remote).await?;
            }
        }
        if intent.state == State::Paid {
            self.keep_notified_card(&intent, notice).await?;
        }
        Ok(intent)
    }

    /// Stores the card that a notification reports, if the intent's payment was to save a card.
    async fn keep_notified_card(&self, intent: &Intent, notice: &Notice) -> Result<(), BookError> {
        match (intent.card, &notice.card) {
            (Some(CardUse::Save), Some(card)) => self.keep_card(intent, Some(card)).await,
            _ => Ok(()),
        }
    }

    /// Takes a refund off the account, if it is a refund of the payment that was booked for the intent.
    async fn book_refund(
        &self,
        intent: &Intent,
        notice: &Notice,
        refund: &ProviderRefund,
    ) -> Result<(), PaymentError> {
        let of = notice.refund_of.as_ref();
        let of = of.map(|payment| format!("{}:{payment}", intent.provider));
        if of.is_some() && of != intent.entry {
            tracing::error!(
                intent = %intent.id, refund = refund.id, of,
                "a payment that was not booked was refunded: nothing was taken off the account"
            );
            return Ok(());
        }
        let intent = self.refund(intent, refund).await?;
        Ok(self.0.intents.close(intent.id).await?)
    }

    /// Refuses a second payment for an intent that is already paid. Returns a response if the payment cannot be fetched
    /// now.
    async fn paid_again(
        &self,
        provider: &Provider,
        intent: &Intent,
        other: &str,
    ) -> Result<Option<Notified>, PaymentError> {
        let Some(_permit) = self.may_fetch(intent.id).await else {
            return Ok(Some(Notified::Later));
        };
        let remote = provider.transaction(other).await;
        let remote = remote.map_err(|error| PaymentError::Provider(provider.name(), error))?;
        if remote.is_some_and(|remote| {
            remote.provider_status == ProviderStatus::Succeeded
                && remote.intent.as_deref() == Some(&*intent.id.to_string())
        }) {
            let booked = intent.entry.as_deref().unwrap_or_default();
            let why = format!(
                "payment {other} pays a second time for what payment {booked} has already paid"
            );
            self.refuse(intent, &why).await?;
        }
        Ok(None)
    }

    /// Returns a permit if the notification may cause a fetch of this intent's payment now; `None` if the limits do not
    /// allow it.
    async fn may_fetch(&self, id: IntentId) -> Option<SemaphorePermit<'_>> {
        self.0.fetches.admit(id, FETCHES).await.ok()?;
        self.0.at_once.try_acquire().ok()
    }

    /// Returns the intent that a notification is about, and the payment to fetch. Returns `None` if the ledger has no
    /// such intent, so that forged notifications cannot make the gateway fetch arbitrary payments.
    async fn find_notified(
        &self,
        provider: &Provider,
        notice: &Notice,
    ) -> Result<Option<(Intent, String)>, BookError> {
        let intents = &self.0.intents;
        if let Some(payment) = &notice.payment
            && let Some(intent) = intents.find_by_payment(provider.name(), payment).await?
        {
            return Ok(Some((intent, payment.clone())));
        }
        // The notification may name only the intent. Or it may arrive before the provider's response that contains the
        // payment's id.
        let Some(id) = notice.intent.as_deref().and_then(|id| id.parse().ok()) else {
            return Ok(None);
        };
        let Some(intent) = intents.find(id).await? else {
            return Ok(None);
        };
        let payment = match (&notice.payment, &intent.payment) {
            (Some(payment), None) => payment.clone(),
            (None, Some(known)) => known.clone(),
            (None, None) => match &notice.charge {
                _ if notice.question.is_some() => String::new(),
                // The card was charged, but the provider's response was lost, and the intent has been closed. So no
                // poll would fetch this payment.
                Some(charge) if intent.card == Some(CardUse::Saved) && !intent.state.is_open() => {
                    charge.clone()
                }
                // The process that is creating the payment will soon record the payment's id.
                _ => {
                    let problem = "the payment is still being created";
                    return Err(BookError::Unavailable(problem.into()));
                }
            },
            (Some(_), Some(_)) => return Ok(None),
        };
        let is_ours = intent.provider == provider.name();
        Ok(is_ours.then_some((intent, payment)))
    }
}

/// Returns the id, at the provider, of the transaction that paid the intent.
fn paid_by(intent: &Intent) -> Option<&str> {
    let entry = intent.entry.as_deref().unwrap_or_default();
    entry.split_once(':').map(|(_, number)| number)
}
