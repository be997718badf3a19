//! One type for all payment providers, so that other modules need not distinguish them.

use http::HeaderMap;

use super::{
    auto::SavedCard,
    cloudpayments::CloudPayments,
    intent::Intent,
    provider::{Charged, Created, Notice, ProviderError, ProviderPayment},
    stripe::Stripe,
    yookassa::YooKassa,
};
use crate::{config::PaymentsConfig, net::https, text::time::now_ms};

/// A configured payment provider; each has its own API.
#[derive(Clone, Debug)]
pub(super) enum Provider {
    YooKassa(YooKassa),
    CloudPayments(CloudPayments),
    Stripe(Stripe),
}

/// Evaluates an expression with the API of a provider, whichever provider it is.
macro_rules! of_each {
    ($provider:expr, $api:ident => $call:expr) => {
        match $provider {
            Provider::YooKassa($api) => $call,
            Provider::CloudPayments($api) => $call,
            Provider::Stripe($api) => $call,
        }
    };
}

impl Provider {
    /// Creates the payment providers that the configuration names.
    pub(super) fn configured(config: &PaymentsConfig) -> Vec<Self> {
        let (mut providers, client) = (Vec::new(), https::client());
        if let Some(config) = config.yookassa.clone() {
            let client = client.clone();
            providers.push(Self::YooKassa(YooKassa { client, config }));
        }
        if let Some(config) = config.cloudpayments.clone() {
            let client = client.clone();
            providers.push(Self::CloudPayments(CloudPayments { client, config }));
        }
        if let Some(config) = config.stripe.clone() {
            providers.push(Self::Stripe(Stripe { client, config }));
        }
        providers
    }

    pub(super) const fn name(&self) -> &'static str {
        match self {
            Self::YooKassa(_) => "yookassa",
            Self::CloudPayments(_) => "cloudpayments",
            Self::Stripe(_) => "stripe",
        }
    }

    /// Creates the payment of an intent at the provider. If called again with the same intent, returns the same
    /// payment.
    pub(super) async fn create(&self, intent: &Intent) -> Result<Created, ProviderError> {
        of_each!(self, api => api.create(intent).await)
    }

    /// Fetches the current state of an intent's payment. Fetches its refunds as well if `refunds` is set, or if the
    /// payment has refunds.
    pub(super) async fn fetch(
        &self,
        intent: &Intent,
        payment: &str,
        refunds: bool,
    ) -> Result<ProviderPayment, ProviderError> {
        match self {
            Self::YooKassa(api) => api.fetch(intent, payment, refunds).await,
            Self::CloudPayments(api) => api.fetch(intent).await,
            Self::Stripe(api) => api.fetch(intent, payment, refunds).await,
        }
    }

    /// Charges a saved card for an intent. If called again with the same intent, does not charge the card a second
    /// time.
    pub(super) async fn charge(
        &self,
        intent: &Intent,
        card: &SavedCard,
    ) -> Result<Charged, ProviderError> {
        of_each!(self, api => api.charge(intent, card).await)
    }

    /// Deletes a saved card at the provider, if the provider's API can do that.
    pub(super) async fn forget(&self, card: &SavedCard) -> Result<(), ProviderError> {
        match self {
            // YooKassa and CloudPayments cannot delete a saved card. When the gateway forgets the handle, the card
            // cannot be charged any more.
            Self::YooKassa(_) | Self::CloudPayments(_) => Ok(()),
            Self::Stripe(stripe) => stripe.forget(card).await,
        }
    }

    /// Returns whether a card that was declined for this reason will be declined for ever.
    pub(super) fn is_permanent(reason: &str) -> bool {
        const PERMANENT: [&str; 14] = [
            // YooKassa's permanent reasons:
            "permission_revoked",
            "card_expired",
            "invalid_card_number",
            "payment_method_restricted",
            // Stripe's permanent reasons:
            "expired_card",
            "lost_card",
            "stolen_card",
            "pickup_card",
            "revocation_of",
            // CloudPayments' permanent reasons:
            "LostCard",
            "StolenCard",
            "ExpiredCard",
            "RestrictedCard",
            "PickUpCard",
        ];
        PERMANENT.iter().any(|word| reason.contains(word))
    }

    /// Fetches the id of the intent to which [`Notice::via`] leads.
    pub(super) async fn intent_of(&self, via: &str) -> Result<Option<String>, ProviderError> {
        match self {
            Self::YooKassa(_) | Self::CloudPayments(_) => Ok(None),
            Self::Stripe(stripe) => stripe.intent_of(via).await,
        }
    }

    /// Fetches the current state of [`Notice::transaction`], if a fetch of the payment could return another
    /// transaction.
    pub(super) async fn transaction(
        &self,
        transaction: &str,
    ) -> Result<Option<ProviderPayment>, ProviderError> {
        match self {
            Self::YooKassa(_) | Self::Stripe(_) => Ok(None),
            Self::CloudPayments(site) => site.transaction(transaction).await,
        }
    }

    /// Cancels an unpaid payment link, if the link would never expire by itself. Returns whether the link was canceled.
    pub(super) async fn withdraw(&self, payment: &str) -> Result<bool, ProviderError> {
        match self {
            // Payment links of YooKassa and Stripe expire by themselves.
            Self::YooKassa(_) | Self::Stripe(_) => Ok(false),
            Self::CloudPayments(site) => site.withdraw(payment).await.map(|()| true),
        }
    }

    /// Parses a notification; `None` if it is malformed, or if its signature is missing or invalid.
    pub(super) fn read(&self, query: &str, headers: &HeaderMap, body: &[u8]) -> Option<Notice> {
        match self {
            Self::YooKassa(_) => YooKassa::read(body),
            Self::CloudPayments(site) => site.read(query, headers, body),
            Self::Stripe(stripe) => stripe.read(headers, body, now_ms()),
        }
    }

    /// Returns the response body that the provider expects after a notification that was handled or needs no handling.
    pub(super) const fn thanks(&self) -> &'static str {
        match self {
            Self::CloudPayments(_) => r#"{"code":0}"#,
            Self::YooKassa(_) | Self::Stripe(_) => "",
        }
    }
}
