//! Receivers of events and the providers of payments.

use schemars::JsonSchema;
use serde::Deserialize;

/// `[[webhook]]`
#[derive(Default, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields, expecting = "a table")]
pub(in crate::config) struct RawWebhook {
    /// Name of the receiver in the log, metrics and commands: letters, digits, - and _.
    pub(in crate::config) name: Option<String>,
    /// URL to which events are posted, with https unless allow_private is set. If it contains a key, write it as a
    /// secret.
    pub(in crate::config) url: Option<String>,
    /// One or two signing secrets, each "whsec_" followed by 24 to 64 bytes in base64, and each written as a secret.
    /// With two, each event is signed with both, so that receivers can change to the second.
    pub(in crate::config) secrets: Vec<String>,
    /// Kinds of events to send, like "balance_low" or "top_up": docs/events.md lists them. Absent: all kinds.
    pub(in crate::config) kinds: Vec<String>,
    /// Ids of the accounts whose events are sent. Absent: all events, including those of no account.
    pub(in crate::config) accounts: Vec<String>,
    /// true: url may have a private, loopback or link-local address, and may begin with http; false.
    pub(in crate::config) allow_private: Option<bool>,
    /// PEM file with the certificate authorities to trust instead of Mozilla's list.
    pub(in crate::config) ca_file: Option<String>,
    /// Timeout for the receiver's answer; 15.
    pub(in crate::config) answer_seconds: Option<u64>,
    /// How long delivery of an event to this receiver is retried. After that, the event is a dead letter: only a
    /// command sends it again; 72.
    pub(in crate::config) retry_hours: Option<u64>,
}

/// `[payments]`
#[derive(Default, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields, expecting = "a table")]
pub(in crate::config) struct RawPayments {
    /// true: the holder of a key may start a payment, on the page /usage and through the API. false: only operators
    /// create payment links (`tollgate payment create`); false.
    pub(in crate::config) on_page: Option<bool>,
    /// Smallest payment that the holder of a key may start, in rubles with whole kopecks; "100".
    pub(in crate::config) min_rub: Option<String>,
    /// Largest payment that the holder of a key may start, in rubles with whole kopecks; "100000".
    pub(in crate::config) max_rub: Option<String>,
    /// Maximum number of payments per account that are started and not paid; a further one is refused (a holder of a
    /// key gets 429); 10.
    pub(in crate::config) open_max: Option<u64>,
    /// Interval at which the provider is polled for unpaid payments, in case a notification was lost; 300.
    pub(in crate::config) poll_seconds: Option<u64>,
    /// Interval at which the balances of accounts with an automatic top-up are checked; 5.
    pub(in crate::config) auto_check_seconds: Option<u64>,
    /// Pause after a saved card was declined; after each further decline the pause is doubled; 3600.
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
    /// URL to which payers return after a payment, like "https://api.example/usage".
    pub(in crate::config) return_url: Option<String>,
    /// YooKassa's VAT code for fiscal receipts, 1 to 12. Absent: no fiscal receipt is requested.
    pub(in crate::config) receipt_vat_code: Option<u64>,
    /// Email address that gets the fiscal receipt if a payment names no address. It is only valid with
    /// receipt_vat_code.
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
    /// URL to which payers return after a payment, like "https://api.example/usage".
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
    /// true: a disputed amount is taken off the account until the dispute is won; false.
    pub(in crate::config) hold_disputed: Option<bool>,
    /// URL to which payers return after a payment, like "https://api.example/usage".
    pub(in crate::config) return_url: Option<String>,
}

/// `[cabinet]`
#[derive(Default, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields, expecting = "a table")]
pub(in crate::config) struct RawCabinet {
    /// Mail server for sign-in links: smtps://user:password@host:465, or smtp://…?tls=required; with a password, a
    /// secret.
    pub(in crate::config) server: Option<String>,
    /// Certificate authorities to trust instead of Mozilla's list, in PEM.
    pub(in crate::config) ca_file: Option<String>,
    /// Sender of the mails, like "Tollgate <noreply@example.com>".
    pub(in crate::config) from: Option<String>,
    /// URL of the terms that people accept who open an account by an invitation (`tollgate code`); absent: nobody can
    /// sign up.
    pub(in crate::config) terms_url: Option<String>,
}

/// `[[mail]]`
#[derive(Default, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields, expecting = "a table")]
pub(in crate::config) struct RawMail {
    /// Name of the receiver in the log, metrics and commands: letters, digits, - and _.
    pub(in crate::config) name: Option<String>,
    /// URL of the mail server: smtps://HOST:465 (TLS), smtp://HOST:587?tls=required (STARTTLS) or smtp://HOST:25 (not
    /// encrypted). With a password (user:password@ before the host), the whole URL must be a secret, and TLS or
    /// STARTTLS is required.
    pub(in crate::config) server: Option<String>,
    /// PEM file with the certificate authorities to trust instead of Mozilla's list.
    pub(in crate::config) ca_file: Option<String>,
    /// Sender of the mails, like "Tollgate <noreply@example.com>".
    pub(in crate::config) from: Option<String>,
    /// Recipients, at most 16.
    pub(in crate::config) to: Vec<String>,
    /// Kinds of events to send, like "balance_low" or "top_up": docs/events.md lists them. Absent: all kinds.
    pub(in crate::config) kinds: Vec<String>,
    /// Ids of the accounts whose events are sent. Absent: all events, including those of no account.
    pub(in crate::config) accounts: Vec<String>,
    /// How long delivery of an event to this receiver is retried. After that, the event is a dead letter: only a
    /// command sends it again; 72.
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
    /// PEM file with the certificate authorities to trust instead of Mozilla's list.
    pub(in crate::config) ca_file: Option<String>,
    /// Kinds of events to send, like "balance_low" or "top_up": docs/events.md lists them. Absent: all kinds.
    pub(in crate::config) kinds: Vec<String>,
    /// Ids of the accounts whose events are sent. Absent: all events, including those of no account.
    pub(in crate::config) accounts: Vec<String>,
    /// How long delivery of an event to this receiver is retried. After that, the event is a dead letter: only a
    /// command sends it again; 72.
    pub(in crate::config) retry_hours: Option<u64>,
}
