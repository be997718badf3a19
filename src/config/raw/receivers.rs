//! Shape of the configuration tables for event receivers, payment providers and the cabinet.

use schemars::JsonSchema;
use serde::Deserialize;

/// The section `[[webhook]]`: a receiver to which events are posted.
#[derive(Default, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields, expecting = "a table")]
pub(in crate::config) struct RawWebhook {
    /// Name of the receiver in the log, metrics and commands. Valid characters are letters, digits, - and _.
    pub(in crate::config) name: Option<String>,
    /// URL to which the gateway posts events. It must begin with https, unless allow_private is true. If the URL
    /// contains a key, write it as a secret ("${NAME}" or "file:/path").
    pub(in crate::config) url: Option<String>,
    /// One or two signing secrets. Each is "whsec_" followed by 24 to 64 bytes in base64, and must be a secret
    /// ("${NAME}" or "file:/path"). If two are given, each event is signed with both, which allows a receiver to change
    /// from the first secret to the second.
    pub(in crate::config) secrets: Vec<String>,
    /// Kinds of events that this receiver gets, for example "balance_low" or "top_up" (docs/events.md lists them).
    /// Absent: all kinds.
    pub(in crate::config) kinds: Vec<String>,
    /// Ids of the accounts whose events this receiver gets. Absent: the events of all accounts, and events that belong
    /// to no account.
    pub(in crate::config) accounts: Vec<String>,
    /// Whether url may have a private, loopback or link-local address, and may begin with http. Default: false.
    pub(in crate::config) allow_private: Option<bool>,
    /// PEM file with the certificate authorities that the gateway trusts for this receiver instead of Mozilla's list.
    pub(in crate::config) ca_file: Option<String>,
    /// Timeout, in seconds, for the receiver's response to an event. Default: 15.
    pub(in crate::config) answer_seconds: Option<u64>,
    /// How long, in hours, the gateway tries to deliver an event to this receiver. After this time the event is a dead
    /// letter, which only a command sends again. Default: 72.
    pub(in crate::config) retry_hours: Option<u64>,
}

/// The section `[payments]`: customers' payments through payment providers.
#[derive(Default, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields, expecting = "a table")]
pub(in crate::config) struct RawPayments {
    /// Whether the holder of a key may start a payment on the page /usage and through the API. false: only operators
    /// create payment links (`tollgate payment create`). Default: false.
    pub(in crate::config) on_page: Option<bool>,
    /// Smallest payment that the holder of a key may start, in rubles with whole kopecks. Default: "100".
    pub(in crate::config) min_rub: Option<String>,
    /// Largest payment that the holder of a key may start, in rubles with whole kopecks. Default: "100000".
    pub(in crate::config) max_rub: Option<String>,
    /// Maximum number of unpaid payments per account. Beyond it, a new payment is refused (the holder of a key gets
    /// 429). Default: 10.
    pub(in crate::config) open_max: Option<u64>,
    /// Interval, in seconds, at which the gateway polls the payment provider for unpaid payments, in case a
    /// notification was lost. Default: 300.
    pub(in crate::config) poll_seconds: Option<u64>,
    /// Interval, in seconds, at which the gateway checks the balances of accounts with an automatic top-up. Default: 5.
    pub(in crate::config) auto_check_seconds: Option<u64>,
    /// Time, in seconds, for which the gateway does not charge a saved card after a decline. It doubles after each
    /// further decline. Default: 3600.
    pub(in crate::config) auto_retry_seconds: Option<u64>,
    /// Number of declines in a row after which a saved card is no longer charged. Default: 3.
    pub(in crate::config) auto_declines_max: Option<u64>,
    /// Payment provider YooKassa. Without this section, the gateway does not use YooKassa.
    pub(in crate::config) yookassa: Option<RawYooKassa>,
    /// Payment provider CloudPayments. Without this section, the gateway does not use CloudPayments.
    pub(in crate::config) cloudpayments: Option<RawCloudPayments>,
    /// Payment provider Stripe. Without this section, the gateway does not use Stripe.
    pub(in crate::config) stripe: Option<RawStripe>,
}

/// The section `[payments.yookassa]`: the payment provider YooKassa.
#[derive(Default, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields, expecting = "a table")]
pub(in crate::config) struct RawYooKassa {
    /// Id of your shop at YooKassa.
    pub(in crate::config) shop_id: Option<String>,
    /// Secret key of your shop at YooKassa. Must be a secret ("${NAME}" or "file:/path").
    pub(in crate::config) secret_key: Option<String>,
    /// Base URL of YooKassa's API. Default: "https://api.yookassa.ru/v3".
    pub(in crate::config) url: Option<String>,
    /// URL to which the payment page sends the payer back after a payment, for example "https://api.example/usage".
    pub(in crate::config) return_url: Option<String>,
    /// YooKassa's VAT code for fiscal receipts, 1 to 12. Absent: no fiscal receipt is requested.
    pub(in crate::config) receipt_vat_code: Option<u64>,
    /// Email address to which the fiscal receipt is sent if the payment has no email address. It is valid only with
    /// receipt_vat_code.
    pub(in crate::config) receipt_email: Option<String>,
}

/// The section `[payments.cloudpayments]`: the payment provider CloudPayments.
#[derive(Default, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields, expecting = "a table")]
pub(in crate::config) struct RawCloudPayments {
    /// Public ID of your site at CloudPayments.
    pub(in crate::config) public_id: Option<String>,
    /// API Secret of your site at CloudPayments. The gateway also verifies CloudPayments' notifications with it. Must
    /// be a secret ("${NAME}" or "file:/path").
    pub(in crate::config) api_secret: Option<String>,
    /// Base URL of CloudPayments' API. Default: "https://api.cloudpayments.ru".
    pub(in crate::config) url: Option<String>,
    /// URL to which the payment page sends the payer back after a payment, for example "https://api.example/usage".
    pub(in crate::config) return_url: Option<String>,
}

/// The section `[payments.stripe]`: the payment provider Stripe.
#[derive(Default, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields, expecting = "a table")]
pub(in crate::config) struct RawStripe {
    /// Secret key of your Stripe account. Must be a secret ("${NAME}" or "file:/path").
    pub(in crate::config) secret_key: Option<String>,
    /// Signing secret of the webhook at Stripe. Must be a secret ("${NAME}" or "file:/path").
    pub(in crate::config) webhook_secret: Option<String>,
    /// Base URL of Stripe's API. Default: "https://api.stripe.com".
    pub(in crate::config) url: Option<String>,
    /// Whether a disputed amount is taken off the account until the dispute is won. Default: false.
    pub(in crate::config) hold_disputed: Option<bool>,
    /// URL to which the payment page sends the payer back after a payment, for example "https://api.example/usage".
    pub(in crate::config) return_url: Option<String>,
}

/// The section `[cabinet]`: pages for the members of accounts.
#[derive(Default, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields, expecting = "a table")]
pub(in crate::config) struct RawCabinet {
    /// URL of the mail server that sends sign-in links: smtps://HOST:465 (TLS), smtp://HOST:587?tls=required (STARTTLS)
    /// or smtp://HOST:25 (not encrypted). If it contains a password (user:password@ before the host), the whole URL
    /// must be a secret ("${NAME}" or "file:/path"), and TLS or STARTTLS is required.
    pub(in crate::config) server: Option<String>,
    /// PEM file with the certificate authorities that the gateway trusts for this mail server instead of Mozilla's
    /// list.
    pub(in crate::config) ca_file: Option<String>,
    /// Sender address of the mails, for example "Tollgate <noreply@example.com>".
    pub(in crate::config) from: Option<String>,
    /// URL of the terms that a person accepts when opening an account with an invitation (`tollgate code`). Absent:
    /// nobody can open an account with an invitation.
    pub(in crate::config) terms_url: Option<String>,
}

/// The section `[[mail]]`: a receiver of events by mail.
#[derive(Default, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields, expecting = "a table")]
pub(in crate::config) struct RawMail {
    /// Name of the receiver in the log, metrics and commands. Valid characters are letters, digits, - and _.
    pub(in crate::config) name: Option<String>,
    /// URL of the mail server that sends events: smtps://HOST:465 (TLS), smtp://HOST:587?tls=required (STARTTLS) or
    /// smtp://HOST:25 (not encrypted). If it contains a password (user:password@ before the host), the whole URL must
    /// be a secret ("${NAME}" or "file:/path"), and TLS or STARTTLS is required.
    pub(in crate::config) server: Option<String>,
    /// PEM file with the certificate authorities that the gateway trusts for this receiver instead of Mozilla's list.
    pub(in crate::config) ca_file: Option<String>,
    /// Sender address of the mails, for example "Tollgate <noreply@example.com>".
    pub(in crate::config) from: Option<String>,
    /// Email addresses of the recipients, at most 16.
    pub(in crate::config) to: Vec<String>,
    /// Kinds of events that this receiver gets, for example "balance_low" or "top_up" (docs/events.md lists them).
    /// Absent: all kinds.
    pub(in crate::config) kinds: Vec<String>,
    /// Ids of the accounts whose events this receiver gets. Absent: the events of all accounts, and events that belong
    /// to no account.
    pub(in crate::config) accounts: Vec<String>,
    /// How long, in hours, the gateway tries to deliver an event to this receiver. After this time the event is a dead
    /// letter, which only a command sends again. Default: 72.
    pub(in crate::config) retry_hours: Option<u64>,
}

/// The section `[[telegram]]`: a Telegram chat that gets events.
#[derive(Default, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields, expecting = "a table")]
pub(in crate::config) struct RawTelegram {
    /// Name of the receiver in the log, metrics and commands. Valid characters are letters, digits, - and _.
    pub(in crate::config) name: Option<String>,
    /// Token of the Telegram bot. Must be a secret ("${NAME}" or "file:/path").
    pub(in crate::config) token: Option<String>,
    /// Telegram chat that gets the events: the id of a chat, for example "-1001234567890", or the name of a channel,
    /// for example "@channel".
    pub(in crate::config) chat: Option<String>,
    /// Base URL of Telegram's Bot API. Default: "https://api.telegram.org".
    pub(in crate::config) url: Option<String>,
    /// PEM file with the certificate authorities that the gateway trusts for this receiver instead of Mozilla's list.
    pub(in crate::config) ca_file: Option<String>,
    /// Kinds of events that this receiver gets, for example "balance_low" or "top_up" (docs/events.md lists them).
    /// Absent: all kinds.
    pub(in crate::config) kinds: Vec<String>,
    /// Ids of the accounts whose events this receiver gets. Absent: the events of all accounts, and events that belong
    /// to no account.
    pub(in crate::config) accounts: Vec<String>,
    /// How long, in hours, the gateway tries to deliver an event to this receiver. After this time the event is a dead
    /// letter, which only a command sends again. Default: 72.
    pub(in crate::config) retry_hours: Option<u64>,
}
