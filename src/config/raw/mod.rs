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

mod rates;
mod receivers;
mod vendors;

use std::collections::BTreeMap;

use schemars::JsonSchema;
use serde::Deserialize;

pub(super) use self::{
    rates::RawRates,
    receivers::{
        RawCloudPayments, RawMail, RawPayments, RawStripe, RawTelegram, RawWebhook, RawYooKassa,
    },
    vendors::{
        RawAccountGroup, RawCustomerRule, RawDialect, RawLogin, RawModel, RawPriceRule, RawRoute,
        RawVendor,
    },
};

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
    /// Price in rubles = rub_mtok × this multiplier, for models priced in rubles; "1" sells at cost; "1".
    pub(super) sell_rub_multiplier: Option<String>,
}
