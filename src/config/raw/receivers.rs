//! Receivers of events and the providers of payments.

use schemars::JsonSchema;
use serde::Deserialize;

/// `[[webhook]]`
#[derive(Default, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields, expecting = "a table")]
pub(in crate::config) struct RawWebhook {
    /// Name of the receiver in the log, metrics and commands: letters, digits, - and _.
    pub(in crate::config) name: Option<String>,
    /// URL that events are posted to; https unless allow_private is set; may be a secret.
    pub(in crate::config) url: Option<String>,
    /// Signing secrets, whsec_ and base64: one, or two while receivers change to the second; secrets.
    pub(in crate::config) secrets: Vec<String>,
    /// Kinds of events to send; absent: all.
    pub(in crate::config) kinds: Vec<String>,
    /// Accounts whose events are sent; absent: all events, including those of no account.
    pub(in crate::config) accounts: Vec<String>,
    /// Allows private, loopback and link-local addresses, and http; false.
    pub(in crate::config) allow_private: Option<bool>,
    /// Certificate authorities to trust instead of Mozilla's list, in PEM.
    pub(in crate::config) ca_file: Option<String>,
    /// Timeout for the receiver's answer; 15.
    pub(in crate::config) answer_seconds: Option<u64>,
    /// How long delivery of an event is retried before the event is dropped for this receiver; 72.
    pub(in crate::config) retry_hours: Option<u64>,
}

/// `[payments]`
#[derive(Default, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields, expecting = "a table")]
pub(in crate::config) struct RawPayments {
    /// Lets the holder of a key start a payment, through the API and on the page /usage; false.
    pub(in crate::config) on_page: Option<bool>,
    /// Smallest payment that a key's holder may start, in rubles; "100".
    pub(in crate::config) min_rub: Option<String>,
    /// Largest payment that a key's holder may start, in rubles; "100000".
    pub(in crate::config) max_rub: Option<String>,
    /// Maximum number of unpaid payments per account; 10.
    pub(in crate::config) open_max: Option<u64>,
    /// Interval at which the provider is polled for unpaid payments, in case a notification was lost; 300.
    pub(in crate::config) poll_seconds: Option<u64>,
    /// Interval at which accounts with an automatic top-up are checked for a low balance; 5.
    pub(in crate::config) auto_check_seconds: Option<u64>,
    /// Pause after a saved card was declined, doubled after each further decline; 3600.
    pub(in crate::config) auto_retry_seconds: Option<u64>,
    /// Number of declines in a row after which a saved card is no longer charged; 3.
    pub(in crate::config) auto_declines_max: Option<u64>,
    /// YooKassa; without this section it is not used.
    pub(in crate::config) yookassa: Option<RawYooKassa>,
    /// CloudPayments; without this section it is not used.
    pub(in crate::config) cloudpayments: Option<RawCloudPayments>,
    /// Stripe; without this section it is not used.
    pub(in crate::config) stripe: Option<RawStripe>,
}

/// `[payments.yookassa]`
#[derive(Default, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields, expecting = "a table")]
pub(in crate::config) struct RawYooKassa {
    /// Shop id at YooKassa.
    pub(in crate::config) shop_id: Option<String>,
    /// Secret key of the shop; a secret.
    pub(in crate::config) secret_key: Option<String>,
    /// Base URL of the provider's API; "https://api.yookassa.ru/v3".
    pub(in crate::config) url: Option<String>,
    /// URL that payers return to, like "https://api.example/usage".
    pub(in crate::config) return_url: Option<String>,
    /// YooKassa's VAT code for fiscal receipts, 1 to 12; absent: no fiscal receipt is requested.
    pub(in crate::config) receipt_vat_code: Option<u64>,
    /// Email address that gets the fiscal receipt if a payment names no address; must be given with receipt_vat_code,
    /// and only then.
    pub(in crate::config) receipt_email: Option<String>,
}

/// `[payments.cloudpayments]`
#[derive(Default, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields, expecting = "a table")]
pub(in crate::config) struct RawCloudPayments {
    /// Public ID of the site.
    pub(in crate::config) public_id: Option<String>,
    /// API Secret of the site, which also verifies notifications; a secret.
    pub(in crate::config) api_secret: Option<String>,
    /// Base URL of the provider's API; "https://api.cloudpayments.ru".
    pub(in crate::config) url: Option<String>,
    /// URL that payers return to, like "https://api.example/usage".
    pub(in crate::config) return_url: Option<String>,
}

/// `[payments.stripe]`
#[derive(Default, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields, expecting = "a table")]
pub(in crate::config) struct RawStripe {
    /// Secret key of the Stripe account; a secret.
    pub(in crate::config) secret_key: Option<String>,
    /// Secret that Stripe signs webhook events with; a secret.
    pub(in crate::config) webhook_secret: Option<String>,
    /// Base URL of the provider's API; "https://api.stripe.com".
    pub(in crate::config) url: Option<String>,
    /// Takes a disputed amount off the account until the dispute is won; false.
    pub(in crate::config) hold_disputed: Option<bool>,
    /// URL that payers return to, like "https://api.example/usage".
    pub(in crate::config) return_url: Option<String>,
}

/// `[[mail]]`
#[derive(Default, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields, expecting = "a table")]
pub(in crate::config) struct RawMail {
    /// Name of the receiver in the log, metrics and commands: letters, digits, - and _.
    pub(in crate::config) name: Option<String>,
    /// Mail server: smtps://user:password@host:465, or smtp://…?tls=required; with a password, a secret.
    pub(in crate::config) server: Option<String>,
    /// Certificate authorities to trust instead of Mozilla's list, in PEM.
    pub(in crate::config) ca_file: Option<String>,
    /// Sender of the mails, like "Tollgate <noreply@example.com>".
    pub(in crate::config) from: Option<String>,
    /// Recipients, at most 16.
    pub(in crate::config) to: Vec<String>,
    /// Kinds of events to send; absent: all.
    pub(in crate::config) kinds: Vec<String>,
    /// Accounts whose events are sent; absent: all events, including those of no account.
    pub(in crate::config) accounts: Vec<String>,
    /// How long delivery of an event is retried before the event is dropped for this receiver; 72.
    pub(in crate::config) retry_hours: Option<u64>,
}

/// `[[telegram]]`
#[derive(Default, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields, expecting = "a table")]
pub(in crate::config) struct RawTelegram {
    /// Name of the receiver in the log, metrics and commands: letters, digits, - and _.
    pub(in crate::config) name: Option<String>,
    /// Token of the bot; a secret.
    pub(in crate::config) token: Option<String>,
    /// Id of the chat, like "-1001234567890", or name of a channel, like "@channel".
    pub(in crate::config) chat: Option<String>,
    /// Base URL of the Bot API; "https://api.telegram.org".
    pub(in crate::config) url: Option<String>,
    /// Certificate authorities to trust instead of Mozilla's list, in PEM.
    pub(in crate::config) ca_file: Option<String>,
    /// Kinds of events to send; absent: all.
    pub(in crate::config) kinds: Vec<String>,
    /// Accounts whose events are sent; absent: all events, including those of no account.
    pub(in crate::config) accounts: Vec<String>,
    /// How long delivery of an event is retried before the event is dropped for this receiver; 72.
    pub(in crate::config) retry_hours: Option<u64>,
}
