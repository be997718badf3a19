//! Checks the section `[payments]`.

use std::time::Duration;

use http::Uri;
use secrecy::{ExposeSecret, SecretString};
use tollgate_layers::money::MicroRub;

use super::{
    check::{Check, field_of, web_address, without_query},
    raw::{RawCloudPayments, RawPayments, RawStripe, RawYooKassa},
};

/// A kopeck in micro-rubles. It is the smallest amount that payment providers can represent.
const KOPECK: i64 = 10_000;

/// The section `[payments]`: payments that customers make through payment providers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PaymentsConfig {
    /// Whether the holder of a key may start a payment.
    pub on_page: bool,
    /// Smallest amount of a payment that the holder of a key may start.
    pub min: MicroRub,
    /// Largest amount of a payment that the holder of a key may start.
    pub max: MicroRub,
    /// Maximum number of unpaid payments per account.
    pub open_max: usize,
    /// Interval at which the gateway polls providers for unpaid payments.
    pub poll: Duration,
    /// Interval at which the gateway checks the balances of accounts with an automatic top-up.
    pub auto_check: Duration,
    /// Time for which a saved card is not charged after its first decline. It doubles after each further decline.
    pub auto_retry: Duration,
    /// Number of consecutive declines after which a saved card is no longer charged.
    pub auto_declines_max: u32,
    /// Settings of YooKassa. `None`: YooKassa is not used.
    pub yookassa: Option<YooKassaConfig>,
    /// Settings of CloudPayments. `None`: CloudPayments is not used.
    pub cloudpayments: Option<CloudPaymentsConfig>,
    /// Settings of Stripe. `None`: Stripe is not used.
    pub stripe: Option<StripeConfig>,
}

impl PaymentsConfig {
    /// Returns whether the holder of a key can start a payment: `on_page` is true, and a provider is configured.
    #[must_use]
    pub const fn is_offered(&self) -> bool {
        self.on_page
            && (self.yookassa.is_some() || self.cloudpayments.is_some() || self.stripe.is_some())
    }
}

/// The section `[payments.yookassa]`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct YooKassaConfig {
    /// Id of the operator's shop at YooKassa.
    pub shop_id: String,
    /// Secret key of the shop at YooKassa.
    pub secret_key: ProviderSecret,
    /// Base URL of the provider's API, without a trailing slash.
    pub url: String,
    /// URL to which payers return after a payment.
    pub return_url: String,
    /// VAT code of fiscal receipts, and the email address that gets a fiscal receipt if the payment has no address.
    /// `None`: no fiscal receipts are requested.
    pub receipt: Option<(u8, String)>,
}

/// The section `[payments.cloudpayments]`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CloudPaymentsConfig {
    /// Public ID of the operator's site at CloudPayments.
    pub public_id: String,
    /// API Secret of the site. CloudPayments' notifications are verified with it too.
    pub api_secret: ProviderSecret,
    /// Base URL of the provider's API, without a trailing slash.
    pub url: String,
    /// URL to which payers return after a payment.
    pub return_url: String,
}

/// The section `[payments.stripe]`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StripeConfig {
    /// Secret key of the operator's Stripe account.
    pub secret_key: ProviderSecret,
    /// Signing secret of the webhook at Stripe.
    pub webhook_secret: ProviderSecret,
    /// Whether a disputed amount is taken off the customer's account until the dispute is won.
    pub hold_disputed: bool,
    /// Base URL of the provider's API, without a trailing slash.
    pub url: String,
    /// URL to which payers return after a payment.
    pub return_url: String,
}

/// The secret of a payment provider or an OpenID provider. It can be compared, because a reload must detect a changed
/// secret.
#[derive(Clone, Debug)]
pub struct ProviderSecret(pub(super) SecretString);

impl ProviderSecret {
    /// Returns the secret in plain text, for requests to the provider.
    pub(crate) fn expose(&self) -> &str {
        self.0.expose_secret()
    }
}

impl From<&str> for ProviderSecret {
    fn from(text: &str) -> Self {
        Self(text.into())
    }
}

impl PartialEq for ProviderSecret {
    fn eq(&self, other: &Self) -> bool {
        self.expose() == other.expose()
    }
}

impl Eq for ProviderSecret {}

/// Calls a check for a field of the section `[payments]`.
macro_rules! field {
    ($($call:tt)+) => {
        field_of!("payments": $($call)+)
    };
}

impl Check<'_> {
    pub(super) fn payments(&mut self, raw: RawPayments) -> Option<PaymentsConfig> {
        let min = self.rubles(raw.min_rub.as_deref(), "payments.min_rub", "100");
        let max = self.rubles(raw.max_rub.as_deref(), "payments.max_rub", "100000");
        if min.zip(max).is_some_and(|(min, max)| min > max) {
            self.errors
                .add("payments.max_rub", "must be at least payments.min_rub");
        }
        let open_max = field!(self.whole(raw.open_max, 10, 1..=1000));
        let poll = field!(self.seconds(raw.poll_seconds, 300, 1));
        let auto_check = field!(self.seconds(raw.auto_check_seconds, 5, 1));
        let auto_retry = field!(self.seconds(raw.auto_retry_seconds, 3600, 1));
        let auto_declines_max = field!(self.whole(raw.auto_declines_max, 3, 1..=20));
        let has_provider =
            raw.yookassa.is_some() || raw.cloudpayments.is_some() || raw.stripe.is_some();
        let yookassa = raw.yookassa.and_then(|raw| self.yookassa(raw));
        let cloudpayments = raw.cloudpayments.and_then(|raw| self.cloudpayments(raw));
        let stripe = raw.stripe.and_then(|raw| self.stripe(raw));
        let on_page = raw.on_page.unwrap_or(false);
        if on_page && !has_provider {
            let problem = "has no effect without a provider: add [payments.yookassa], [payments.cloudpayments] or \
                 [payments.stripe]; until then, nobody can pay on the page";
            self.warnings.add("payments.on_page", problem);
        }
        Some(PaymentsConfig {
            on_page,
            min: min?,
            max: max?,
            open_max,
            poll,
            auto_check,
            auto_retry,
            auto_declines_max,
            yookassa,
            cloudpayments,
            stripe,
        })
    }

    fn yookassa(&mut self, raw: RawYooKassa) -> Option<YooKassaConfig> {
        let advice = "give the shop id from the shop's settings at YooKassa";
        let shop_id = self.required(raw.shop_id, "payments.yookassa.shop_id", advice);
        let advice = "give the shop's secret key: \"${NAME}\" or \"file:/path\"";
        let secret_key = self.secret(raw.secret_key, "payments.yookassa.secret_key", advice);
        let url = self.provider_url(
            raw.url.as_deref(),
            "payments.yookassa.url",
            "https://api.yookassa.ru/v3",
        );
        let return_url = self.return_url(raw.return_url, "payments.yookassa.return_url");
        let path = "payments.yookassa.receipt_vat_code";
        let code = self.optional(raw.receipt_vat_code, path, 1..=12);
        let receipt = match (code, raw.receipt_email) {
            (None, None) => None,
            (Some(code), Some(email)) if is_email(&email) => Some((code, email)),
            _ if code.is_none() && raw.receipt_vat_code.is_some() => return None,
            (None, Some(_)) => {
                let problem = "has no effect without receipt_vat_code: give receipt_vat_code too";
                return self.refuse("payments.yookassa.receipt_email", problem);
            }
            (Some(_), _) => {
                let problem = "must be an email address like buh@example.com: it gets the fiscal receipt if a payment \
                     has no email address";
                return self.refuse("payments.yookassa.receipt_email", problem);
            }
        };
        Some(YooKassaConfig {
            shop_id: shop_id?,
            secret_key: ProviderSecret(secret_key?),
            url: url?,
            return_url: return_url?,
            receipt,
        })
    }

    fn cloudpayments(&mut self, raw: RawCloudPayments) -> Option<CloudPaymentsConfig> {
        let advice = "give the Public ID from the site's settings at CloudPayments";
        let public_id = self.required(raw.public_id, "payments.cloudpayments.public_id", advice);
        let advice = "give the site's API Secret: \"${NAME}\" or \"file:/path\"";
        let api_secret = self.secret(raw.api_secret, "payments.cloudpayments.api_secret", advice);
        let usual = "https://api.cloudpayments.ru";
        let url = self.provider_url(raw.url.as_deref(), "payments.cloudpayments.url", usual);
        let return_url = self.return_url(raw.return_url, "payments.cloudpayments.return_url");
        Some(CloudPaymentsConfig {
            public_id: public_id?,
            api_secret: ProviderSecret(api_secret?),
            url: url?,
            return_url: return_url?,
        })
    }

    fn stripe(&mut self, raw: RawStripe) -> Option<StripeConfig> {
        let advice = "give the account's secret key: \"${NAME}\" or \"file:/path\"";
        let secret_key = self.secret(raw.secret_key, "payments.stripe.secret_key", advice);
        let advice = "give the signing secret of the webhook: \"${NAME}\" or \"file:/path\"";
        let webhook = self.secret(raw.webhook_secret, "payments.stripe.webhook_secret", advice);
        let url = self.provider_url(
            raw.url.as_deref(),
            "payments.stripe.url",
            "https://api.stripe.com",
        );
        let return_url = self.return_url(raw.return_url, "payments.stripe.return_url");
        Some(StripeConfig {
            secret_key: ProviderSecret(secret_key?),
            webhook_secret: ProviderSecret(webhook?),
            hold_disputed: raw.hold_disputed.unwrap_or(false),
            url: url?,
            return_url: return_url?,
        })
    }

    /// Parses an amount in rubles that must be above 0 and in whole kopecks.
    fn rubles(&mut self, given: Option<&str>, path: &str, default: &str) -> Option<MicroRub> {
        let amount = given.unwrap_or(default).parse::<MicroRub>().ok();
        let amount = amount.filter(|amount| *amount > MicroRub::ZERO && is_whole_kopecks(*amount));
        self.keep(
            amount.ok_or("must be an amount above 0 in rubles with whole kopecks, in quotes, like \"100.00\""),
            path,
        )
    }

    fn provider_url(&mut self, given: Option<&str>, path: &str, usual: &str) -> Option<String> {
        let url = web_address(given.unwrap_or(usual)).and_then(without_query);
        let url = self.keep(url, path)?;
        Some(url.to_string().trim_end_matches('/').to_owned())
    }

    fn return_url(&mut self, given: Option<String>, path: &str) -> Option<String> {
        let advice =
            "give the URL to which payers return after a payment, like https://api.example/usage";
        let given = self.required(given, path, advice)?;
        let url: Option<Uri> = self.keep(web_address(&given), path);
        url.map(|_| given)
    }
}

/// Returns whether an amount has no fraction of a kopeck, which providers cannot represent.
pub(crate) fn is_whole_kopecks(amount: MicroRub) -> bool {
    amount.micro() % KOPECK == 0
}

/// Returns whether a text looks like an email address to which a fiscal receipt can be sent. The provider checks the
/// address fully.
pub(crate) fn is_email(text: &str) -> bool {
    let plain = text.len() <= 254
        && text
            .bytes()
            .all(|byte| byte.is_ascii_graphic() && !matches!(byte, b'<' | b'>' | b'"' | b','));
    plain
        && text.split_once('@').is_some_and(|(name, host)| {
            !name.is_empty() && host.contains('.') && !host.contains('@')
        })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::testing::{SMALL, parse};

    fn payments(lines: &str) -> Result<PaymentsConfig, String> {
        let config = parse(&format!("[payments]\n{lines}\n{SMALL}"));
        let config = config.map_err(|errors| errors.to_string())?;
        Ok(config.payments.unwrap())
    }

    const SHOP: &str = "[payments.yookassa]\nshop_id = \"1\"\nsecret_key = \"${VENDOR_KEY}\"\n\
                        return_url = \"https://pay.example/usage\"\n";

    #[test]
    fn payment_provider_settings_are_read_with_their_defaults() {
        let config = payments(SHOP).unwrap();
        assert_eq!(
            (config.on_page, config.min, config.max, config.open_max),
            (false, MicroRub::rubles(100), MicroRub::rubles(100_000), 10)
        );
        let shop = config.yookassa.unwrap();
        assert_eq!(shop.url, "https://api.yookassa.ru/v3");
        assert_eq!(shop.receipt, None);
        assert!(!format!("{shop:?}").contains("sk-vendor-secret"));
        assert!(parse(SMALL).unwrap().payments.is_none());

        let receipt = format!("{SHOP}receipt_vat_code = 4\nreceipt_email = \"buh@example.com\"");
        let shop = payments(&receipt).unwrap().yookassa.unwrap();
        assert_eq!(shop.receipt, Some((4, "buh@example.com".to_owned())));
    }

    #[test]
    fn error_about_an_invalid_payment_setting_names_the_setting() {
        let more = |line: &str| format!("{SHOP}{line}");
        for (lines, says) in [
            ("min_rub = \"0\"", "payments.min_rub: must be an amount"),
            ("min_rub = \"0.001\"", "payments.min_rub: must be an amount"),
            ("max_rub = \"99\"", "payments.max_rub: must be at least"),
            ("open_max = 0", "payments.open_max"),
            ("[payments.yookassa]", "payments.yookassa.shop_id: missing"),
            (
                "[payments.yookassa]",
                "payments.yookassa.secret_key: missing",
            ),
            (
                "[payments.yookassa]",
                "payments.yookassa.return_url: missing",
            ),
            (&more("url = \"ftp://x\""), "payments.yookassa.url: must be"),
            (
                &more("receipt_vat_code = 13\nreceipt_email = \"a@b.c\""),
                "payments.yookassa.receipt_vat_code",
            ),
            (
                &more("receipt_vat_code = 1"),
                "payments.yookassa.receipt_email: must be an email address",
            ),
            (
                &more("receipt_email = \"a@b.c\""),
                "payments.yookassa.receipt_email: has no effect without receipt_vat_code",
            ),
        ] {
            let errors = payments(lines).unwrap_err();
            assert!(errors.contains(says), "{lines}: {errors}");
        }
    }
}
