//! Handles providers' notifications: finds the intent and fetches its payment.

use std::time::Duration;

use bytes::Bytes;
use http::HeaderMap;
use tokio::sync::SemaphorePermit;
use tollgate_layers::{
    rate_limit::{Limiter, Quota},
    reserve::ledger::BookError,
};

use super::{
    Inner, PaymentError, Payments,
    intent::{CardUse, Intent, IntentId, State},
    provider::{Notice, ProviderError, ProviderStatus},
    providers::Provider,
};
use crate::text::causes::chain;

/// How often notifications may cause a fetch of one intent's payment. The limit allows all notifications that a
/// provider sends, and bounds the fetches that forged notifications can cause.
const FETCHES: Quota = Quota {
    count: 1,
    per: Duration::from_secs(1),
    burst: 20,
};

/// The outcome of handling a notification.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Notified {
    /// The notification was handled, or concerns no intent of this ledger. Contains the body of the answer to the
    /// provider.
    Done(&'static str),
    /// The answer code to a provider's question whether it may take money.
    Answer(u8),
    /// The notification is malformed or its signature is invalid.
    Unread,
    /// The provider is not configured here.
    NoProvider,
    /// The provider should repeat the notification later.
    Later,
}

impl Payments {
    /// Handles a notification of a provider.
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
        match self.heed(provider, &mut notice).await {
            Ok(notified) => notified,
            // The provider has no such payment: the notification is forged.
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

    async fn heed(
        &self,
        provider: &Provider,
        notice: &mut Notice,
    ) -> Result<Notified, PaymentError> {
        let done = Notified::Done(provider.thanks());
        let of_provider = |error| PaymentError::Provider(provider.name(), error);
        if let (None, Some(via)) = (&notice.intent, &notice.via) {
            let Ok(_permit) = self.0.at_once.try_acquire() else {
                return Ok(Notified::Later);
            };
            let found = provider.intent_of(&self.0.client, via).await;
            notice.intent = found.map_err(of_provider)?;
        }
        let notice = &*notice;
        let meant = self.meant(provider, notice).await?;
        if let Some(question) = &notice.question {
            let verdict = question.verdict(meant.as_ref().map(|(intent, _)| intent));
            return Ok(Notified::Answer(verdict as u8));
        }
        let Some((intent, payment)) = meant else {
            return Ok(done);
        };
        let booked = intent.entry.as_deref().unwrap_or_default();
        let number = booked.split_once(':').map(|(_, number)| number);
        let takes_back = notice.canceled.is_some() && notice.canceled.as_deref() == number;
        if intent.state == State::Paid && !notice.is_refund && !takes_back {
            if let (Some(CardUse::Save), Some(card)) = (intent.card, &notice.card) {
                self.keep_card(&intent, Some(card)).await?;
            }
            return Ok(match notice.transaction.as_deref() {
                Some(other) if number != Some(other) => {
                    let reported = self.paid_again(provider, &intent, other).await?;
                    reported.unwrap_or(done)
                }
                _ => done,
            });
        }
        let Some(_permit) = self.may_fetch(intent.id).await else {
            return Ok(Notified::Later);
        };
        let mut intent = self
            .look(provider, intent, &payment, notice.is_refund)
            .await?;
        // If the intent was canceled meanwhile, but its payment has succeeded, the payment is still booked.
        if !matches!(intent.state, State::Paid | State::Refused)
            && let Some(transaction) = &notice.transaction
        {
            // The payer may have made a declined attempt after the paid transaction. So the transaction is fetched by
            // its own id.
            let seen = provider.transaction(&self.0.client, transaction).await;
            if let Some(seen) = seen.map_err(of_provider)? {
                intent = self.settle(intent, seen).await?;
            }
        }
        if let (State::Paid, Some(CardUse::Save), Some(card)) =
            (intent.state, intent.card, &notice.card)
        {
            self.keep_card(&intent, Some(card)).await?;
        }
        if let Some(refund) = &notice.refund {
            if intent.state != State::Paid {
                return Ok(Notified::Later);
            }
            let of = notice.refund_of.as_ref();
            let of = of.map(|payment| format!("{}:{payment}", intent.provider));
            if of.is_some() && of != intent.entry {
                tracing::error!(
                    intent = %intent.id, refund = refund.id, of,
                    "a refund of a payment that was not booked: nothing was taken off the account"
                );
                return Ok(done);
            }
            intent = self.refund(&intent, refund).await?;
            self.0.shelf.close(intent.id).await?;
        }
        let is_early = notice.is_success && intent.state.is_open();
        Ok(if is_early { Notified::Later } else { done })
    }

    /// Refuses another payment for an intent that is already paid. Returns an answer if the payment cannot be fetched
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
        let seen = provider.transaction(&self.0.client, other).await;
        let seen = seen.map_err(|error| PaymentError::Provider(provider.name(), error))?;
        if seen.is_some_and(|seen| {
            seen.provider_status == ProviderStatus::Succeeded
                && seen.intent.as_deref() == Some(&*intent.id.to_string())
        }) {
            let booked = intent.entry.as_deref().unwrap_or_default();
            let why = format!(
                "payment {other} pays again for what payment {booked} has already paid for"
            );
            self.refuse(intent, &why).await?;
        }
        Ok(None)
    }

    /// Returns a permit if a notification may cause a fetch of this intent's payment now.
    async fn may_fetch(&self, id: IntentId) -> Option<SemaphorePermit<'_>> {
        let Inner {
            fetches, at_once, ..
        } = &*self.0;
        fetches.admit(id, FETCHES).await.ok()?;
        at_once.try_acquire().ok()
    }

    /// Returns the intent of a notification and the payment to fetch. Returns `None` if the ledger has no such intent,
    /// so that a forged notification cannot make the gateway fetch arbitrary payments.
    async fn meant(
        &self,
        provider: &Provider,
        notice: &Notice,
    ) -> Result<Option<(Intent, String)>, BookError> {
        let shelf = &self.0.shelf;
        if let Some(payment) = &notice.payment
            && let Some(intent) = shelf.of_payment(provider.name(), payment).await?
        {
            return Ok(Some((intent, payment.clone())));
        }
        // The notification may arrive before the provider's answer that contains the payment's id. Or it may name only
        // the intent.
        let Some(id) = notice.intent.as_deref().and_then(|id| id.parse().ok()) else {
            return Ok(None);
        };
        let Some(intent) = shelf.find(id).await? else {
            return Ok(None);
        };
        let payment = match (&notice.payment, &intent.payment) {
            (Some(reported), None) => reported.clone(),
            (None, Some(known)) => known.clone(),
            (None, None) => match &notice.charge {
                _ if notice.question.is_some() => String::new(),
                // The card was charged, the provider's answer was lost, and the intent is closed. So this payment would
                // not be fetched otherwise.
                Some(reported)
                    if intent.card == Some(CardUse::Saved) && !intent.state.is_open() =>
                {
                    reported.clone()
                }
                // The process that creates the payment will record it soon.
                _ => {
                    return Err(BookError::Unavailable(
                        "the payment is still being created".into(),
                    ));
                }
            },
            (Some(_), Some(_)) => return Ok(None),
        };
        let is_ours = intent.provider == provider.name();
        Ok(is_ours.then_some((intent, payment)))
    }
}
