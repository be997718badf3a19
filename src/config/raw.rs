//! The shape of the configuration file: names and types of settings. Values are checked in other modules of
//! [`config`](super).
//!
//! Every field is optional, so that [`Document::read`](super::document::Document::read) can remove a field of the wrong
//! shape and read the rest again.
//!
//! The doc comments are the descriptions in the JSON schema and in `docs/settings.md`. A default value follows the last
//! semicolon.
//!
//! No type here is `Debug`, because a file may hold a secret where none belongs.

use std::collections::BTreeMap;

use schemars::JsonSchema;
use serde::Deserialize;

/// Tollgate's configuration. A secret is "${NAME}", an environment variable, or "file:/path"; decimal numbers are
/// quoted.
#[derive(Default, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields, expecting = "a table")]
pub(super) struct RawConfig {
    /// Address that callers connect to, like "0.0.0.0:8080"; "127.0.0.1:8080".
    pub(super) listen: Option<String>,
    /// Lets another process listen on the same ports (SO_REUSEPORT), for an upgrade; false.
    pub(super) reuse_port: Option<bool>,
    /// Name in the paths of the gateway's own API, like the catalog, GET /v1/<service>/models, and /v1/<service>/usage;
    /// "tollgate".
    pub(super) service: Option<String>,
    /// Address shown in the catalog; ends in /v1; absent: the address of listen.
    pub(super) base_url: Option<String>,
    /// Language of error messages, of the page at / and of statements, "ru" or "en"; mails and chats are in Russian;
    /// "ru".
    pub(super) language: Option<String>,
    /// Addresses or networks (CIDR) of proxies whose x-forwarded-for header gives the caller's address. Without them,
    /// all callers behind a proxy share the limits of one address.
    pub(super) trusted_proxies: Vec<String>,
    /// Origins of web pages that may use keys from a browser, like "https://app.example"; "*" allows any origin.
    pub(super) cors_origins: Vec<String>,
    /// Interval at which this file, certificates and secrets in files are checked for changes; 0: only on SIGHUP; 10.
    pub(super) reload_poll_seconds: Option<u64>,
    /// TLS for callers; without this section the listener speaks plain HTTP.
    pub(super) tls: Option<RawTls>,
    /// The operators' listener; without this section there is no such listener.
    pub(super) admin: Option<RawAdmin>,
    /// OpenTelemetry spans of calls, exported by OTLP over HTTP; without this section no spans are exported.
    pub(super) traces: Option<RawTraces>,
    /// The seller that issues statements; without this section statements name no seller.
    pub(super) seller: Option<RawSeller>,
    /// Receivers that events are posted to, signed by the Standard Webhooks scheme.
    pub(super) webhook: Vec<RawWebhook>,
    /// Payments that customers make themselves; without this section only operators book payments.
    pub(super) payments: Option<RawPayments>,
    /// Receivers that events are mailed to, in Russian.
    pub(super) mail: Vec<RawMail>,
    /// Telegram chats that events are sent to, in Russian.
    pub(super) telegram: Vec<RawTelegram>,
    /// The ledger, which stores balances, holds and receipts.
    pub(super) ledger: RawLedger,
    /// Answers stored for calls with an idempotency key, if the caller's key allows it.
    pub(super) idempotency: RawIdempotency,
    /// Limits of requests, bodies and connections.
    pub(super) limits: RawLimits,
    /// The exchange rate: rubles per USDT. The sources are requested in their order; the first answer counts.
    pub(super) rate: RawRate,
    /// How prices in rubles follow from the exchange rate.
    pub(super) tariff: RawTariff,
    /// Vendors that the gateway calls, by name.
    pub(super) vendor: Vec<RawVendor>,
    /// Models, in the order of the catalog.
    pub(super) model: Vec<RawModel>,
    /// Named groups of accounts, for price rules.
    pub(super) account_group: Vec<RawAccountGroup>,
    /// Prices for some customers that replace the general prices.
    pub(super) price_rule: Vec<RawCustomerRule>,
}

/// `[tls]`
#[derive(Default, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields, expecting = "a table")]
pub(super) struct RawTls {
    /// File with the certificate, then its issuers, in PEM.
    pub(super) certificate_file: Option<String>,
    /// File with the certificate's private key, in PEM.
    pub(super) key_file: Option<String>,
}

/// `[admin]`
#[derive(Default, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields, expecting = "a table")]
pub(super) struct RawAdmin {
    /// Address that operators connect to; "127.0.0.1:8081".
    pub(super) listen: Option<String>,
    /// The admin key, 16 characters or more; a secret.
    pub(super) key: Option<String>,
    /// File with the operators who may sign in to the console by a name and a password, written by `tollgate operator
    /// create`; absent: only the admin key and admin.oidc open the console.
    pub(super) operators_file: Option<String>,
    /// Host names (Host header) under which operators reach the listener, like "console.example". Addresses, names
    /// without a dot, names under .localhost and the host of admin.oidc.redirect_url need not be listed. A request for
    /// another name is refused unless it carries the admin key; /livez and /readyz are always answered.
    pub(super) hosts: Vec<String>,
    /// Requires the admin key for /metrics; false.
    pub(super) metrics_key: Option<bool>,
    /// Maximum number of operators' connections. Those that have not signed in get three quarters of them, and one
    /// address a quarter; a new one then closes the one that was silent longest; default: 1/32 of the process's open
    /// file limit, 8 to 256.
    pub(super) connections_max: Option<u64>,
    /// Sign-in to the console by an OpenID provider.
    pub(super) oidc: Option<RawOidc>,
}

/// `[admin.oidc]`
#[derive(Default, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields, expecting = "a table")]
pub(super) struct RawOidc {
    /// Issuer URL, exactly as the provider states it.
    pub(super) issuer: Option<String>,
    /// Client id of the console at the provider.
    pub(super) client_id: Option<String>,
    /// Client secret of the console; a secret. Absent: a public client.
    pub(super) client_secret: Option<String>,
    /// Redirect URL for browsers: the console's address followed by /console/oidc/back.
    pub(super) redirect_url: Option<String>,
    /// Scopes requested in addition to openid, like ["email", "groups"].
    pub(super) scopes: Vec<String>,
    /// Claim with the person's name; absent: "email", which the provider must mark as verified (email_verified).
    pub(super) name_claim: Option<String>,
    /// Claim with the person's groups, as a text or a list; "groups".
    pub(super) role_claim: Option<String>,
    /// Groups that are given each role.
    pub(super) roles: RawOidcRoles,
}

/// `[admin.oidc.roles]`
#[derive(Default, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields, expecting = "a table")]
pub(super) struct RawOidcRoles {
    /// Groups that may do everything.
    pub(super) admin: Vec<String>,
    /// Groups that may read everything and manage money.
    pub(super) finance: Vec<String>,
    /// Groups that may read everything and change accounts and keys.
    pub(super) support: Vec<String>,
    /// Groups that may only read.
    pub(super) read: Vec<String>,
}

/// `[traces]`
#[derive(Default, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields, expecting = "a table")]
pub(super) struct RawTraces {
    /// URL that spans are posted to, like "http://127.0.0.1:4318/v1/traces".
    pub(super) url: Option<String>,
    /// Share of calls that are traced, above "0" and at most "1", like "0.05"; "1".
    pub(super) sample: Option<String>,
    /// Headers added to each export, by name; their values are secrets.
    pub(super) headers: BTreeMap<String, String>,
}

/// `[seller]`
#[derive(Default, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields, expecting = "a table")]
pub(super) struct RawSeller {
    /// Full name of the seller.
    pub(super) name: Option<String>,
    /// Taxpayer number (ИНН), 10 or 12 digits.
    pub(super) inn: Option<String>,
    /// Registration code (КПП), 9 digits.
    pub(super) kpp: Option<String>,
    /// Number in the state register (ОГРН, ОГРНИП), 13 or 15 digits.
    pub(super) ogrn: Option<String>,
    /// Address of the seller.
    pub(super) address: Option<String>,
    /// Name of the seller's bank.
    pub(super) bank: Option<String>,
    /// Code of the bank (БИК), 9 digits.
    pub(super) bik: Option<String>,
    /// Account at the bank, 20 digits.
    pub(super) bank_account: Option<String>,
    /// The bank's correspondent account, 20 digits.
    pub(super) correspondent_account: Option<String>,
    /// Contact for customers, printed on statements.
    pub(super) contact: Option<String>,
    /// VAT rate of the seller in percent, included in the prices; absent: statements say that no VAT is charged.
    pub(super) vat_percent: Option<String>,
    /// Text for statements without VAT, like the article of the law; absent: "without VAT", in the statement's
    /// language.
    pub(super) vat_note: Option<String>,
    /// UTC offset of the seller's calendar: bounds of a statement's month, times in mails and chats; "+00:00".
    pub(super) utc_offset: Option<String>,
}

/// `[[webhook]]`
#[derive(Default, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields, expecting = "a table")]
pub(super) struct RawWebhook {
    /// Name of the receiver in the log, metrics and commands: letters, digits, - and _.
    pub(super) name: Option<String>,
    /// URL that events are posted to; https unless allow_private is set; may be a secret.
    pub(super) url: Option<String>,
    /// Signing secrets, whsec_ and base64: one, or two while receivers change to the second; secrets.
    pub(super) secrets: Vec<String>,
    /// Kinds of events to send; absent: all.
    pub(super) kinds: Vec<String>,
    /// Accounts whose events are sent; absent: all events, including those of no account.
    pub(super) accounts: Vec<String>,
    /// Allows private, loopback and link-local addresses, and http; false.
    pub(super) allow_private: Option<bool>,
    /// Certificate authorities to trust instead of Mozilla's list, in PEM.
    pub(super) ca_file: Option<String>,
    /// Timeout for the receiver's answer; 15.
    pub(super) answer_seconds: Option<u64>,
    /// How long delivery of an event is retried before the event is dropped for this receiver; 72.
    pub(super) retry_hours: Option<u64>,
}

/// `[payments]`
#[derive(Default, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields, expecting = "a table")]
pub(super) struct RawPayments {
    /// Lets the holder of a key start a payment, through the API and on the page /usage; false.
    pub(super) on_page: Option<bool>,
    /// Smallest payment that a key's holder may start, in rubles; "100".
    pub(super) min_rub: Option<String>,
    /// Largest payment that a key's holder may start, in rubles; "100000".
    pub(super) max_rub: Option<String>,
    /// Maximum number of unpaid payments per account; 10.
    pub(super) open_max: Option<u64>,
    /// Interval at which the provider is polled for unpaid payments, in case a notification was lost; 300.
    pub(super) poll_seconds: Option<u64>,
    /// Interval at which accounts with an automatic top-up are checked for a low balance; 5.
    pub(super) auto_check_seconds: Option<u64>,
    /// Pause after a saved card was declined, doubled after each further decline; 3600.
    pub(super) auto_retry_seconds: Option<u64>,
    /// Number of declines in a row after which a saved card is no longer charged; 3.
    pub(super) auto_declines_max: Option<u64>,
    /// YooKassa; without this section it is not used.
    pub(super) yookassa: Option<RawYooKassa>,
    /// CloudPayments; without this section it is not used.
    pub(super) cloudpayments: Option<RawCloudPayments>,
    /// Stripe; without this section it is not used.
    pub(super) stripe: Option<RawStripe>,
}

/// `[payments.yookassa]`
#[derive(Default, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields, expecting = "a table")]
pub(super) struct RawYooKassa {
    /// Shop id at YooKassa.
    pub(super) shop_id: Option<String>,
    /// Secret key of the shop; a secret.
    pub(super) secret_key: Option<String>,
    /// Base URL of the provider's API; "https://api.yookassa.ru/v3".
    pub(super) url: Option<String>,
    /// URL that payers return to, like "https://api.example/usage".
    pub(super) return_url: Option<String>,
    /// YooKassa's VAT code for fiscal receipts, 1 to 12; absent: no fiscal receipt is requested.
    pub(super) receipt_vat_code: Option<u64>,
    /// Email address that gets the fiscal receipt if a payment names no address; must be given with receipt_vat_code,
    /// and only then.
    pub(super) receipt_email: Option<String>,
}

/// `[payments.cloudpayments]`
#[derive(Default, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields, expecting = "a table")]
pub(super) struct RawCloudPayments {
    /// Public ID of the site.
    pub(super) public_id: Option<String>,
    /// API Secret of the site, which also verifies notifications; a secret.
    pub(super) api_secret: Option<String>,
    /// Base URL of the provider's API; "https://api.cloudpayments.ru".
    pub(super) url: Option<String>,
    /// URL that payers return to, like "https://api.example/usage".
    pub(super) return_url: Option<String>,
}

/// `[payments.stripe]`
#[derive(Default, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields, expecting = "a table")]
pub(super) struct RawStripe {
    /// Secret key of the Stripe account; a secret.
    pub(super) secret_key: Option<String>,
    /// Secret that Stripe signs webhook events with; a secret.
    pub(super) webhook_secret: Option<String>,
    /// Base URL of the provider's API; "https://api.stripe.com".
    pub(super) url: Option<String>,
    /// Takes a disputed amount off the account until the dispute is won; false.
    pub(super) hold_disputed: Option<bool>,
    /// URL that payers return to, like "https://api.example/usage".
    pub(super) return_url: Option<String>,
}

/// `[[mail]]`
#[derive(Default, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields, expecting = "a table")]
pub(super) struct RawMail {
    /// Name of the receiver in the log, metrics and commands: letters, digits, - and _.
    pub(super) name: Option<String>,
    /// Mail server: smtps://user:password@host:465, or smtp://…?tls=required; with a password, a secret.
    pub(super) server: Option<String>,
    /// Certificate authorities to trust instead of Mozilla's list, in PEM.
    pub(super) ca_file: Option<String>,
    /// Sender of the mails, like "Tollgate <noreply@example.com>".
    pub(super) from: Option<String>,
    /// Recipients, at most 16.
    pub(super) to: Vec<String>,
    /// Kinds of events to send; absent: all.
    pub(super) kinds: Vec<String>,
    /// Accounts whose events are sent; absent: all events, including those of no account.
    pub(super) accounts: Vec<String>,
    /// How long delivery of an event is retried before the event is dropped for this receiver; 72.
    pub(super) retry_hours: Option<u64>,
}

/// `[[telegram]]`
#[derive(Default, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields, expecting = "a table")]
pub(super) struct RawTelegram {
    /// Name of the receiver in the log, metrics and commands: letters, digits, - and _.
    pub(super) name: Option<String>,
    /// Token of the bot; a secret.
    pub(super) token: Option<String>,
    /// Id of the chat, like "-1001234567890", or name of a channel, like "@channel".
    pub(super) chat: Option<String>,
    /// Base URL of the Bot API; "https://api.telegram.org".
    pub(super) url: Option<String>,
    /// Certificate authorities to trust instead of Mozilla's list, in PEM.
    pub(super) ca_file: Option<String>,
    /// Kinds of events to send; absent: all.
    pub(super) kinds: Vec<String>,
    /// Accounts whose events are sent; absent: all events, including those of no account.
    pub(super) accounts: Vec<String>,
    /// How long delivery of an event is retried before the event is dropped for this receiver; 72.
    pub(super) retry_hours: Option<u64>,
}

/// `[ledger]`
#[derive(Default, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields, expecting = "a table")]
pub(super) struct RawLedger {
    /// URL of the ledger: memory:, sqlite:PATH, redis://, redis-sentinel:// or redis-cluster://; "sqlite:tollgate.db".
    pub(super) url: Option<String>,
    /// Redis over TLS only: certificate authorities to trust instead of Mozilla's list, in PEM.
    pub(super) ca_file: Option<String>,
    /// Upper bound of a text's input tokens, which a hold pays for: "usual" (one token per 1.5 bytes) or "strict" (one
    /// per byte, and a whole context window per document: for callers that you do not trust); "usual".
    pub(super) hold: Option<String>,
    /// Tokens held for a full-size image; smaller images hold fewer; 5000.
    pub(super) image_tokens: Option<u64>,
    /// Minimum tokens held per document; more if its pages or bytes need more; 50000.
    pub(super) document_tokens: Option<u64>,
    /// Tokens held for the results of each web search that the vendor may run; 15000.
    pub(super) search_tokens: Option<u64>,
    /// Maximum number of conversations for which the gateway keeps the vendor's count of input tokens in memory, about
    /// 100 bytes each. The next call then holds that count and what was added, not the bound by bytes; 0: none; 32768.
    pub(super) hold_conversations_max: Option<u64>,
    /// A hold expires limits.call_seconds plus this time after it was made or last renewed. Running calls renew theirs;
    /// the holds of a gateway that is lost end at that time; 60.
    pub(super) hold_grace_seconds: Option<u64>,
    /// How long the start waits for another gateway to release the ledger's file or the outbox; 0.
    pub(super) open_wait_seconds: Option<u64>,
    /// Redis only: file that stores charges not yet acknowledged by Redis, one file per gateway; "tollgate-outbox.db".
    pub(super) outbox: Option<String>,
    /// Redis only: maximum number of ended calls that wait in the outbox for Redis; beyond it new calls get 503;
    /// 100000.
    pub(super) outbox_calls_max: Option<u64>,
    /// Redis only: if a charge has waited longer than this for Redis, /readyz reports that the node is not ready; calls
    /// are still served; 3600.
    pub(super) outbox_age_max_seconds: Option<u64>,
    /// Redis only: the longest time, in milliseconds, for which a gateway holds money of busy keys in its own memory (a
    /// lease) without an answer from Redis. A failover of Redis may lose what was held in that time; 0: every hold
    /// waits for Redis; 1000.
    pub(super) lease_ms_max: Option<u64>,
}

/// `[idempotency]`
#[derive(Default, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields, expecting = "a table")]
pub(super) struct RawIdempotency {
    /// How long an answer is stored; 86400.
    pub(super) keep_seconds: Option<u64>,
    /// Time after which the claim of a running call expires if its gateway does not renew it; then another gateway may
    /// take the call over; 15.
    pub(super) lease_seconds: Option<u64>,
    /// Largest answer that is stored, in bytes; a longer one is sent, but not stored; 1048576.
    pub(super) answer_bytes_max: Option<u64>,
    /// Maximum bytes of answers of calls with an idempotency key in this gateway's memory, at most half of it for one
    /// account; beyond it an answer is sent, but not stored; 67108864.
    pub(super) running_bytes_max: Option<u64>,
    /// Maximum number of calls with an idempotency key stored per account; beyond it calls are made as if they had
    /// none; 10000.
    pub(super) account_calls_max: Option<u64>,
    /// Maximum bytes of answers stored per account; 67108864.
    pub(super) account_bytes_max: Option<u64>,
    /// Maximum bytes of answers stored for all accounts; 1073741824.
    pub(super) bytes_max: Option<u64>,
}

/// `[limits]`
#[derive(Default, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields, expecting = "a table")]
pub(super) struct RawLimits {
    /// Catalog requests per second, per address; 10.
    pub(super) catalog_requests_per_second: Option<u64>,
    /// Requests per second, per address, not counting the catalog's; absent: unlimited.
    pub(super) requests_per_second: Option<u64>,
    /// Requests with unknown keys per second, per address; 10.
    pub(super) unknown_keys_per_second: Option<u64>,
    /// Burst of requests with unknown keys, per address; 300.
    pub(super) unknown_keys_burst: Option<u64>,
    /// Maximum number of requests in flight; 10000.
    pub(super) in_flight_max: Option<u64>,
    /// Maximum bytes of a request's body; 33554432.
    pub(super) body_bytes_max: Option<u64>,
    /// Maximum bytes in memory of all request bodies; beyond it 503. An account may use half of what the others leave,
    /// or two of the largest bodies. At least body_bytes_max; 536870912.
    pub(super) body_bytes_in_flight_max: Option<u64>,
    /// Timeout for receiving a request's body; 60.
    pub(super) body_seconds: Option<u64>,
    /// Minimum bytes per second at which a body must arrive; 1024.
    pub(super) body_bytes_per_second_min: Option<u64>,
    /// Maximum bytes of an answer that is not streamed; 67108864.
    pub(super) answer_bytes_max: Option<u64>,
    /// Maximum bytes in memory of all answers that are not streamed. An account may use half of what the others leave,
    /// or two of the largest answers. Answers beyond these limits wait. At least answer_bytes_max; 268435456.
    pub(super) answer_bytes_in_flight_max: Option<u64>,
    /// Maximum number of messages in a conversation; 10000.
    pub(super) messages_max: Option<u64>,
    /// Maximum time that a vendor's answer may take; 900.
    pub(super) call_seconds: Option<u64>,
    /// Maximum time for a request and its whole answer; default: call_seconds + body_seconds + 300.
    pub(super) request_seconds: Option<u64>,
    /// Maximum number of callers' connections; default: nine tenths of the process's open file limit, less the
    /// connections of operators and vendors.
    pub(super) connections_max: Option<u64>,
    /// Maximum number of connections per IPv4 address or IPv6 /64; 256.
    pub(super) connections_per_address_max: Option<u64>,
    /// Age after which a connection is closed once its running answers have ended; 3600.
    pub(super) connection_age_seconds: Option<u64>,
    /// Timeout for a new connection's first byte, and for the TLS handshake; 5.
    pub(super) first_byte_seconds: Option<u64>,
    /// Timeout for receiving the head of a connection's first request; later heads on HTTP/1.1 have idle_seconds; 10.
    pub(super) head_seconds: Option<u64>,
    /// Maximum idle time between two requests on a connection; 75.
    pub(super) idle_seconds: Option<u64>,
    /// How long a client may accept no data before it is disconnected; 30.
    pub(super) write_seconds: Option<u64>,
    /// Maximum bytes of a request's path and query; 2048.
    pub(super) uri_bytes_max: Option<u64>,
    /// Maximum number of header lines in a request; 64.
    pub(super) headers_max: Option<u64>,
    /// Maximum bytes of a request's head; 32768.
    pub(super) head_bytes_max: Option<u64>,
    /// Maximum number of concurrent requests per HTTP/2 connection; 100.
    pub(super) h2_streams_max: Option<u64>,
    /// HTTP/2 flow-control window per stream: unread bytes of one request's body; 65536.
    pub(super) h2_stream_window_bytes: Option<u64>,
    /// HTTP/2 flow-control window per connection: unread bytes of all its bodies; 1048576.
    pub(super) h2_connection_window_bytes: Option<u64>,
    /// Interval between the gateway's HTTP/2 pings; 30.
    pub(super) h2_ping_seconds: Option<u64>,
    /// Timeout for the answer to a ping; 20.
    pub(super) h2_ping_timeout_seconds: Option<u64>,
    /// Time after SIGTERM within which running calls and their charges may finish; 30.
    pub(super) drain_seconds: Option<u64>,
}

/// `[rate]`
#[derive(Default, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields, expecting = "a table")]
pub(super) struct RawRate {
    /// Age beyond which the last rate is not used: there are no prices then, and calls get 503. A fixed rate does not
    /// age; 600.
    pub(super) max_age_seconds: Option<u64>,
    /// Interval between two requests for the rate; default: half of max_age_seconds, at most 60.
    pub(super) refresh_seconds: Option<u64>,
    /// Largest change from the last accepted rate, in percent. A larger one is rejected and logged until this is raised
    /// or the gateway restarts; "20".
    pub(super) step_max_percent: Option<String>,
    /// Sources of the rate, in order of preference.
    pub(super) source: Vec<RawSource>,
}

/// `[[rate.source]]`
#[derive(Default, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields, expecting = "a table")]
pub(super) struct RawSource {
    /// A rate fixed by the operator, like "90.50".
    pub(super) fixed: Option<String>,
    /// URL that returns the rate; may be a secret.
    pub(super) url: Option<String>,
    /// Location of the number in the JSON answer, like /data[symbol=USDT/RUB]/askPrice.
    pub(super) select: Option<String>,
    /// HTTP method, "GET" or "POST"; "GET".
    pub(super) method: Option<String>,
    /// Body of a POST request.
    pub(super) body: Option<String>,
    /// Lowest rate that is accepted.
    pub(super) min: Option<String>,
    /// Highest rate that is accepted.
    pub(super) max: Option<String>,
}

/// `[tariff]`
#[derive(Default, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields, expecting = "a table")]
pub(super) struct RawTariff {
    /// Price in rubles = usdt_mtok × rubles per USDT ([rate]) × this multiplier; "1" sells at cost; "1".
    pub(super) sell_rate_multiplier: Option<String>,
}

/// `[[vendor]]`
#[derive(Default, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields, expecting = "a table")]
pub(super) struct RawVendor {
    /// Preset whose settings apply to fields that are not written here, like "deepseek": `tollgate preset list`;
    /// absent: only what is written.
    pub(super) preset: Option<String>,
    /// Name of the vendor, for routes.
    pub(super) name: Option<String>,
    /// Format that the vendor speaks: "chat", "messages" or "responses".
    pub(super) format: Option<String>,
    /// Several formats instead of format: a call uses the caller's own format if it is listed, else the first one.
    pub(super) formats: Option<Vec<String>>,
    /// Base URL: POST {url}/chat/completions, {url}/v1/messages or {url}/responses.
    pub(super) url: Option<String>,
    /// Path of calls after url, instead of the format's own; {model} is replaced by the vendor's name of the model, like
    /// "/deployments/{model}/chat/completions"; absent: the format's own.
    pub(super) path: Option<String>,
    /// Query of calls, like { api-version = "2024-10-21" }.
    pub(super) query: BTreeMap<String, String>,
    /// Headers of calls, like { OpenAI-Project = "proj_1" }; a value may be a secret.
    pub(super) headers: BTreeMap<String, String>,
    /// API key at the vendor; a secret.
    pub(super) key: Option<String>,
    /// Several API keys instead of key, used in turn; secrets.
    pub(super) keys: Option<Vec<String>>,
    /// How requests are authenticated; absent: by key, in the header of the format.
    pub(super) login: Option<RawLogin>,
    /// If a client leaves its stream: "cancel" closes the vendor's stream, and the output so far is charged; "drain"
    /// reads it to the end, and all that the vendor counts is charged; "cancel".
    pub(super) on_disconnect: Option<String>,
    /// Messages vendors: names in the caller's anthropic-beta header that begin with one of these are not forwarded,
    /// because they change the price; ["context-1m"].
    pub(super) betas_removed: Option<Vec<String>>,
    /// Proxy for connections to the vendor: http://host:port or socks5://host:port; with a password, a secret.
    pub(super) proxy: Option<String>,
    /// Certificate authorities to trust instead of Mozilla's list, in PEM.
    pub(super) ca_file: Option<String>,
    /// Uses HTTP/2 if the vendor offers it; false.
    pub(super) http2: Option<bool>,
    /// Maximum number of concurrent calls; 1024.
    pub(super) connections_max: Option<u64>,
    /// Timeout for connecting; 3.
    pub(super) connect_seconds: Option<u64>,
    /// Timeout for the head of a streamed answer; 120.
    pub(super) first_byte_seconds: Option<u64>,
    /// Timeout from the request to the head of an answer that is not streamed, which a vendor sends after the last
    /// token; default: limits.call_seconds.
    pub(super) plain_seconds: Option<u64>,
    /// How long the head of a stream waits for the first event before the caller gets it; until then an error keeps its
    /// status and the next route can be tried; 0: the caller gets it at once; 30.
    pub(super) head_seconds: Option<u64>,
    /// Maximum time between two frames of an answer; 120.
    pub(super) idle_seconds: Option<u64>,
    /// Idle time after which a pooled connection is closed; 50.
    pub(super) idle_connection_seconds: Option<u64>,
}

/// `vendor.login`
#[derive(Default, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields, expecting = "a table")]
pub(super) struct RawLogin {
    /// "key"; "none"; "command": a token that a program prints; "oauth": client credentials; "service_account": a key file
    /// of Google or Yandex Cloud; "aws": signed requests; "key".
    pub(super) kind: Option<String>,
    /// Header that carries the key or token, like "api-key"; default: authorization, or x-api-key for a key of the
    /// messages format.
    pub(super) header: Option<String>,
    /// Text before the key or token in its header, like "Api-Key "; default: none if header is set or the header is
    /// x-api-key, else "Bearer ".
    pub(super) prefix: Option<String>,
    /// command, aws: program that prints the token, or keys of AWS as `aws configure export-credentials` does, with its
    /// arguments; run without a shell, for at most 15 seconds.
    pub(super) command: Option<Vec<String>>,
    /// command, aws: interval at which the program is run again; default: half an hour.
    pub(super) refresh_seconds: Option<u64>,
    /// oauth: token endpoint. service_account: token endpoint instead of the vendor's. aws: metadata service instead of
    /// http://169.254.169.254.
    pub(super) url: Option<String>,
    /// oauth: key for Basic authentication at url, like GigaChat's authorization key; a secret.
    pub(super) basic: Option<String>,
    /// oauth: client id, sent in the body; with client_secret instead of basic.
    pub(super) client_id: Option<String>,
    /// oauth: client secret, sent in the body; a secret.
    pub(super) client_secret: Option<String>,
    /// oauth, service_account: scope of the token; default for Google: https://www.googleapis.com/auth/cloud-platform.
    pub(super) scope: Option<String>,
    /// oauth: field grant_type of the request for a token; "": none; "client_credentials".
    pub(super) grant_type: Option<String>,
    /// oauth: header that carries a new UUID per request for a token, like "RqUID"; absent: none.
    pub(super) request_id_header: Option<String>,
    /// service_account: the key file that the vendor issued, in JSON; a secret.
    pub(super) key_file: Option<String>,
    /// aws: region, like "us-east-1".
    pub(super) region: Option<String>,
    /// aws: service that requests are signed for; "bedrock".
    pub(super) service: Option<String>,
    /// aws: id of an access key; absent: keys of command, or of the role of the instance.
    pub(super) access_key_id: Option<String>,
    /// aws: secret of the access key; a secret.
    pub(super) secret_access_key: Option<String>,
    /// aws: token of a temporary access key; a secret.
    pub(super) session_token: Option<String>,
}

/// `[[model]]`
#[derive(Default, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields, expecting = "a table")]
pub(super) struct RawModel {
    /// Preset whose id, limits, prices and route apply to fields that are not written here, like "deepseek-flash" or
    /// "deepseek/deepseek-flash"; absent: only what is written.
    pub(super) preset: Option<String>,
    /// Name that callers put in the field model.
    pub(super) id: Option<String>,
    /// Name of the model's family, for display.
    pub(super) family: Option<String>,
    /// "chat" or "embedding"; an embedding model has only a price of input, no output_tokens_max, and vendors of the
    /// format "chat"; "chat".
    pub(super) kind: Option<String>,
    /// Name shown in lists of models that people choose from; default: the id.
    pub(super) display_name: Option<String>,
    /// Description shown before the price in lists of models that people choose from; absent: only the price.
    pub(super) description: Option<String>,
    /// Base prices, in USDT per million tokens unless a class states otherwise.
    pub(super) usdt_mtok: Option<RawUsdt>,
    /// Base prices that apply under conditions. All conditions of a rule must be met. A rule has the same classes as
    /// usdt_mtok.
    pub(super) price_rules: Vec<RawPriceRule>,
    /// Largest number of output tokens that a call may request.
    pub(super) output_tokens_max: Option<u64>,
    /// If the money is too short for a call that sets no output limit, the gateway lowers the limit, but not below this
    /// many tokens: then it refuses the call; 256.
    pub(super) output_tokens_min: Option<u64>,
    /// Output limit of a call that sets none, in tokens; absent: output_tokens_max, so that one call may hold the whole
    /// of a small balance.
    pub(super) output_tokens_default: Option<u64>,
    /// Largest number of output tokens that the model generates per second, reasoning included, at any of its vendors;
    /// needed for holds that grow; absent: unknown.
    pub(super) output_tokens_per_second_max: Option<u64>,
    /// "whole": a hold covers the whole output limit from the start; "growing": the hold of a stream covers a part of
    /// the output and is raised ahead of need, and if the money is short, the stream ends as at its output limit. Not
    /// for vendors with on_disconnect = "drain", nor for vendors that bill output after a cancellation; "whole".
    pub(super) hold: Option<String>,
    /// Context window in tokens, which bounds what a call holds; absent: not known, and calls with documents of unknown
    /// size are refused with 400.
    pub(super) input_tokens_max: Option<u64>,
    /// Largest input, in tokens, that usdt_mtok applies to, for vendors that bill longer input at other rates: a call
    /// whose input may be longer, by the bound of its hold, is refused with 400; absent: unlimited.
    pub(super) input_tokens_priced_max: Option<u64>,
    /// Chat vendors: the field for the limit of output tokens that the model accepts, "max_completion_tokens" or
    /// "max_tokens"; "max_completion_tokens".
    pub(super) output_field: Option<String>,
    /// Role of instructions sent to vendors, "system" or "developer"; absent: the caller's own role if the vendor
    /// speaks the caller's format, else "system".
    pub(super) system_role: Option<String>,
    /// false: calls translated to the chat or responses format are sent without reasoning_effort (reasoning.effort);
    /// calls in the vendor's own format keep it; true.
    pub(super) reasoning_effort: Option<bool>,
    /// false: translated calls are sent without temperature, top_p and top_k; calls in the vendor's own format keep
    /// them; true.
    pub(super) sampling: Option<bool>,
    /// Messages vendors: how translated calls request reasoning, "effort" (output_config.effort), "budget"
    /// (thinking.budget_tokens) or "none" (the model does not reason); "effort".
    pub(super) thinking: Option<String>,
    /// false: a translated call that requests structured output (a JSON schema) is refused with 400; calls in the
    /// vendor's own format are forwarded; true.
    pub(super) json_schema: Option<bool>,
    /// true: calls translated from the responses to the chat format keep text.verbosity, as verbosity; false: they are
    /// sent without it; false.
    pub(super) verbosity: Option<bool>,
    /// Responses vendors. true: if a messages caller requests thinking, they are requested to return a summary of their
    /// reasoning; false: for models that refuse this; true.
    pub(super) reasoning_summary: Option<bool>,
    /// Responses vendors. true: for callers that can send it back with the next call, they are requested to return
    /// their reasoning, encrypted (include: reasoning.encrypted_content); false: for models that refuse this; true.
    pub(super) encrypted_reasoning: Option<bool>,
    /// Marks (cache_control) up to which a messages vendor caches a translated call: "auto" adds them if the caller
    /// sets none, "never" forwards only the caller's; cache writes cost usdt_mtok.cache_write; "auto".
    pub(super) cache_marks: Option<String>,
    /// true: tools are sent to a chat vendor as functions, as GigaChat requires; false.
    pub(super) functions: Option<bool>,
    /// Translated calls to chat and responses vendors. true: they carry the caller's prompt_cache_key, or else a hash
    /// of the session; false: they carry none; absent: the caller's own, and the hash only for responses vendors.
    pub(super) prompt_cache_key: Option<bool>,
    /// Keeps a conversation on its route; false.
    pub(super) sticky: Option<bool>,
    /// Routes to vendors. A call takes the first route that is healthy, and the next one if that fails before it answers.
    pub(super) routes: Vec<RawRoute>,
}

/// `model.usdt_mtok`: USDT per million tokens
#[derive(Clone, Default, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields, expecting = "a table")]
pub(super) struct RawUsdt {
    /// Ordinary input, in USDT per million tokens, like the other rates of this table.
    pub(super) input: Option<String>,
    /// Input read from the vendor's cache.
    pub(super) cached_input: Option<String>,
    /// Output, including reasoning.
    pub(super) output: Option<String>,
    /// Input written to the vendor's cache.
    pub(super) cache_write: Option<String>,
    /// Input written to the vendor's cache for one hour (cache_control.ttl "1h"). If model.usdt_mtok has no such rate,
    /// a call that requests it is refused with 400, or translated without it.
    pub(super) cache_write_1h: Option<String>,
    /// Input written to the vendor's cache for twelve hours (prompt_cache_options.ttl "12h"). If model.usdt_mtok has no
    /// such rate, a call that requests it is refused with 400.
    pub(super) cache_write_12h: Option<String>,
    /// Audio input (input_audio); absent: a call with it is refused with 400.
    pub(super) input_audio: Option<String>,
    /// Image input; absent: priced as other input.
    pub(super) input_image: Option<String>,
    /// Audio output (modalities, audio); absent: a call that requests it is refused with 400.
    pub(super) output_audio: Option<String>,
    /// Image output (modalities); absent: a call that requests it is refused with 400.
    pub(super) output_image: Option<String>,
    /// USDT per web search that the vendor runs, not per million. If model.usdt_mtok has no such rate, a call with such
    /// a tool is refused with 400.
    pub(super) web_search_call: Option<String>,
}

/// `model.price_rules[]`: all conditions of a rule must be met
#[derive(Default, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields, expecting = "a table")]
pub(super) struct RawPriceRule {
    /// The call has more input tokens than this, counting also those read from and written to the cache; the rule then
    /// prices all tokens of the call.
    pub(super) above_input_tokens: Option<u64>,
    /// The call ran on this service tier, like "flex". A request for a tier that no rule in model.price_rules names is
    /// refused with 400.
    pub(super) service_tier: Option<String>,
    /// The call ran at this speed, like "fast". A request for a speed that no rule in model.price_rules names is
    /// refused with 400.
    pub(super) speed: Option<String>,
    /// The call ran in this region, like "us". A request for a region that no rule in model.price_rules names is
    /// refused with 400.
    pub(super) inference_geo: Option<String>,
    /// Hours of the day in UTC, like ["01:00-04:00", "06:00-10:00"]: each from its first minute to before its last; a
    /// span may continue after midnight; absent: all hours.
    pub(super) hours_utc: Vec<String>,
    /// Days in UTC, like ["mon", "tue", "wed", "thu", "fri"]; after midnight the next day counts; absent: all days.
    pub(super) weekdays: Vec<String>,
    /// The moment of the call that hours_utc and weekdays are compared with: "request" (its arrival), "first_byte" (the
    /// beginning of the vendor's answer) or "end" (the end of the answer); the same in all rules of a list; absent: "request".
    pub(super) hours_at: Option<String>,
    /// Time at which these prices come into force, for calls whose request arrives then or later, like
    /// "2027-01-01T00:00:00Z"; absent: they are in force already.
    pub(super) valid_from: Option<String>,
    /// Base prices under these conditions, in USDT per million tokens unless a class states otherwise.
    pub(super) usdt_mtok: Option<RawUsdt>,
}

/// `[[account_group]]`
#[derive(Default, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields, expecting = "a table")]
pub(super) struct RawAccountGroup {
    /// Name of the group, for price rules.
    pub(super) name: Option<String>,
    /// Ids of the accounts; they need not exist yet.
    pub(super) accounts: Vec<String>,
}

/// `[[price_rule]]`: prices of some models for some accounts
#[derive(Default, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields, expecting = "a table")]
pub(super) struct RawCustomerRule {
    /// Name of the rule; shown on receipts, also to callers.
    pub(super) name: Option<String>,
    /// Ids of the accounts, or ["*"] for all. For each model, a rule with the account's id comes first, then a rule
    /// with its group, then "*".
    pub(super) accounts: Vec<String>,
    /// Groups whose accounts the rule applies to.
    pub(super) groups: Vec<String>,
    /// Models: ids, prefixes like "gpt-5-*", or "*".
    pub(super) models: Vec<String>,
    /// Price in rubles = usdt_mtok × rubles per USDT ([rate]) × this multiplier; must be given if usdt_mtok is not;
    /// default: tariff.sell_rate_multiplier.
    pub(super) sell_rate_multiplier: Option<String>,
    /// Base prices that replace the models' own, with the same classes, in USDT per million tokens unless a class states
    /// otherwise; default: the models' own.
    pub(super) usdt_mtok: Option<RawUsdt>,
    /// With usdt_mtok only: base prices under conditions, which must cover all conditions that the models have.
    pub(super) price_rules: Vec<RawPriceRule>,
}

/// `model.routes[]`
#[derive(Default, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields, expecting = "a table")]
pub(super) struct RawRoute {
    /// Preset of a model whose name and costs at the vendor apply if they are not written here; absent: only what is
    /// written.
    pub(super) preset: Option<String>,
    /// Name of the vendor.
    pub(super) vendor: Option<String>,
    /// The vendor's name of the model; default: the id.
    pub(super) model: Option<String>,
    /// Share of calls among routes of the same priority; if all weights are equal, calls go to the route with less
    /// load; 1.
    pub(super) weight: Option<u64>,
    /// Priority; routes with the lowest number are tried first; 0.
    pub(super) priority: Option<u64>,
    /// The vendor's own prices, in USDT per million tokens, never shown to callers; absent: not known.
    pub(super) cost_usdt_mtok: Option<RawUsdt>,
    /// The vendor's own prices under conditions. All conditions of a rule must be met. A rule has the same classes as
    /// cost_usdt_mtok.
    pub(super) cost_rules: Vec<RawPriceRule>,
    /// Field in which the gateway sends its output limit: "max_completion_tokens" or "max_tokens"; absent: as in the
    /// model.
    pub(super) output_field: Option<String>,
    /// Role of instructions, "system" or "developer"; absent: as in the model.
    pub(super) system_role: Option<String>,
    /// false: calls translated to the chat or responses format are sent without reasoning_effort (reasoning.effort);
    /// calls in the vendor's own format keep it; absent: as in the model.
    pub(super) reasoning_effort: Option<bool>,
    /// false: translated calls are sent without temperature, top_p and top_k; calls in the vendor's own format keep
    /// them; absent: as in the model.
    pub(super) sampling: Option<bool>,
    /// How thinking is requested: "effort", "budget" or "none"; absent: as in the model.
    pub(super) thinking: Option<String>,
    /// false: a translated call that requests structured output (a JSON schema) is refused with 400; calls in the
    /// vendor's own format are forwarded; absent: as in the model.
    pub(super) json_schema: Option<bool>,
    /// true: verbosity is forwarded in the chat format; absent: as in the model.
    pub(super) verbosity: Option<bool>,
    /// false: a vendor of the responses format is not requested to summarise its reasoning; absent: as in the model.
    pub(super) reasoning_summary: Option<bool>,
    /// false: a vendor of the responses format is not requested to return its reasoning, encrypted; absent: as in the
    /// model.
    pub(super) encrypted_reasoning: Option<bool>,
    /// Cache marks for a messages vendor: "auto" or "never"; absent: as in the model.
    pub(super) cache_marks: Option<String>,
    /// true: tools are sent to a chat vendor as functions, as GigaChat requires; default: the model's.
    pub(super) functions: Option<bool>,
    /// Translated calls to chat and responses vendors. true: they carry the caller's prompt_cache_key, or else a hash
    /// of the session; false: they carry none; absent: as in the model.
    pub(super) prompt_cache_key: Option<bool>,
}

/// Settings of a vendor's dialect, of a model or a route. Not `serde(flatten)`, which would accept unknown fields.
pub(super) struct RawDialect<'a> {
    pub(super) output_field: Option<&'a str>,
    pub(super) system_role: Option<&'a str>,
    pub(super) reasoning_effort: Option<bool>,
    pub(super) sampling: Option<bool>,
    pub(super) thinking: Option<&'a str>,
    pub(super) json_schema: Option<bool>,
    pub(super) verbosity: Option<bool>,
    pub(super) reasoning_summary: Option<bool>,
    pub(super) encrypted_reasoning: Option<bool>,
    pub(super) cache_marks: Option<&'a str>,
    pub(super) functions: Option<bool>,
    pub(super) prompt_cache_key: Option<bool>,
}

impl RawModel {
    pub(super) fn dialect(&self) -> RawDialect<'_> {
        RawDialect {
            output_field: self.output_field.as_deref(),
            system_role: self.system_role.as_deref(),
            reasoning_effort: self.reasoning_effort,
            sampling: self.sampling,
            thinking: self.thinking.as_deref(),
            json_schema: self.json_schema,
            verbosity: self.verbosity,
            reasoning_summary: self.reasoning_summary,
            encrypted_reasoning: self.encrypted_reasoning,
            cache_marks: self.cache_marks.as_deref(),
            functions: self.functions,
            prompt_cache_key: self.prompt_cache_key,
        }
    }
}

impl RawRoute {
    pub(super) fn dialect(&self) -> RawDialect<'_> {
        RawDialect {
            output_field: self.output_field.as_deref(),
            system_role: self.system_role.as_deref(),
            reasoning_effort: self.reasoning_effort,
            sampling: self.sampling,
            thinking: self.thinking.as_deref(),
            json_schema: self.json_schema,
            verbosity: self.verbosity,
            reasoning_summary: self.reasoning_summary,
            encrypted_reasoning: self.encrypted_reasoning,
            cache_marks: self.cache_marks.as_deref(),
            functions: self.functions,
            prompt_cache_key: self.prompt_cache_key,
        }
    }
}
