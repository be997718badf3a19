//! The providers of payments, behind one type.

use http::HeaderMap;

use super::{
    auto::SavedCard,
    cloudpayments::CloudPayments,
    intent::Intent,
    provider::{Charged, Created, Notice, ProviderError, Seen},
    stripe::Stripe,
    yookassa::YooKassa,
};
use crate::{net::https::HttpsClient, text::time::now_ms};

/// A provider of payments, with its own API.
#[derive(Clone, Debug)]
pub(super) enum Provider {
    YooKassa(YooKassa),
    CloudPayments(CloudPayments),
    Stripe(Stripe),
}

impl Provider {
    pub(super) const fn name(&self) -> &'static str {
        match self {
            Self::YooKassa(_) => "yookassa",
            Self::CloudPayments(_) => "cloudpayments",
            Self::Stripe(_) => "stripe",
        }
    }

    /// Creates a payment for an intent. A repeated call with the same intent returns the same payment.
    pub(super) async fn create(
        &self,
        client: &HttpsClient,
        intent: &Intent,
    ) -> Result<Created, ProviderError> {
        match self {
            Self::YooKassa(shop) => shop.create(client, intent).await,
            Self::CloudPayments(site) => site.create(client, intent).await,
            Self::Stripe(stripe) => stripe.create(client, intent).await,
        }
    }

    /// Returns the current state of an intent's payment. Includes refunds if `refunds` is set or the payment has
    /// refunds.
    pub(super) async fn fetch(
        &self,
        client: &HttpsClient,
        intent: &Intent,
        payment: &str,
        refunds: bool,
    ) -> Result<Seen, ProviderError> {
        match self {
            Self::YooKassa(shop) => shop.fetch(client, intent, payment, refunds).await,
            Self::CloudPayments(site) => site.fetch(client, intent).await,
            Self::Stripe(stripe) => stripe.fetch(client, intent, payment, refunds).await,
        }
    }

    /// Charges a saved card for an intent. A repeated call with the same intent does not charge the card again.
    pub(super) async fn charge(
        &self,
        client: &HttpsClient,
        intent: &Intent,
        card: &SavedCard,
    ) -> Result<Charged, ProviderError> {
        match self {
            Self::YooKassa(shop) => shop.charge(client, intent, card).await,
            Self::CloudPayments(site) => site.charge(client, intent, card).await,
            Self::Stripe(stripe) => stripe.charge(client, intent, card).await,
        }
    }

    /// Deletes a saved card at the provider, if the provider supports that.
    pub(super) async fn forget(
        &self,
        client: &HttpsClient,
        card: &SavedCard,
    ) -> Result<(), ProviderError> {
        match self {
            // YooKassa and CloudPayments cannot delete a card; without the handle nobody can charge it.
            Self::YooKassa(_) | Self::CloudPayments(_) => Ok(()),
            Self::Stripe(stripe) => stripe.forget(client, card).await,
        }
    }

    /// Returns whether a decline for this reason is permanent.
    pub(super) fn is_for_good(reason: &str) -> bool {
        const FOR_GOOD: [&str; 14] = [
            // YooKassa's reasons:
            "permission_revoked",
            "card_expired",
            "invalid_card_number",
            "payment_method_restricted",
            // Stripe's reasons:
            "expired_card",
            "lost_card",
            "stolen_card",
            "pickup_card",
            "revocation_of",
            // CloudPayments' reasons:
            "LostCard",
            "StolenCard",
            "ExpiredCard",
            "RestrictedCard",
            "PickUpCard",
        ];
        FOR_GOOD.iter().any(|word| reason.contains(word))
    }

    /// Requests from the provider the id of the intent to which [`Notice::via`] leads.
    pub(super) async fn intent_of(
        &self,
        client: &HttpsClient,
        via: &str,
    ) -> Result<Option<String>, ProviderError> {
        match self {
            Self::YooKassa(_) | Self::CloudPayments(_) => Ok(None),
            Self::Stripe(stripe) => stripe.intent_of(client, via).await,
        }
    }

    /// Returns the current state of [`Notice::transaction`], if a fetch of the payment may return another transaction.
    pub(super) async fn transaction(
        &self,
        client: &HttpsClient,
        transaction: &str,
    ) -> Result<Option<Seen>, ProviderError> {
        match self {
            Self::YooKassa(_) | Self::Stripe(_) => Ok(None),
            Self::CloudPayments(site) => site.transaction(client, transaction).await,
        }
    }

    /// Cancels an unpaid link that would never expire by itself.
    pub(super) async fn withdraw(
        &self,
        client: &HttpsClient,
        payment: &str,
    ) -> Result<bool, ProviderError> {
        match self {
            // Links of YooKassa and Stripe expire by themselves.
            Self::YooKassa(_) | Self::Stripe(_) => Ok(false),
            Self::CloudPayments(site) => site.withdraw(client, payment).await.map(|()| true),
        }
    }

    /// Reads a notification; `None` if it is malformed or its signature is missing or invalid.
    pub(super) fn read(&self, query: &str, headers: &HeaderMap, body: &[u8]) -> Option<Notice> {
        match self {
            Self::YooKassa(_) => YooKassa::read(body),
            Self::CloudPayments(site) => site.read(query, headers, body),
            Self::Stripe(stripe) => stripe.read(headers, body, now_ms()),
        }
    }

    /// The answer body for a notification that was handled or needs no handling.
    pub(super) const fn thanks(&self) -> &'static str {
        match self {
            Self::CloudPayments(_) => r#"{"code":0}"#,
            Self::YooKassa(_) | Self::Stripe(_) => "",
        }
    }
}
