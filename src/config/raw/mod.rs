//! Shape of the configuration file: the name and type of every setting. Other modules of [`config`](super) check the
//! values.
//!
//! Every field is optional. This allows [`Document::read`](super::document::Document::read) to remove a field of the
//! wrong type and to deserialize the rest again.
//!
//! The doc comments of the fields are the descriptions in the JSON schema and in `docs/settings.md`. If a setting has a
//! default value, its doc comment ends with "Default: " and this value as JSON.
//!
//! No type here implements `Debug`, because an operator may have written a secret into a field that should not contain
//! one.

mod rates;
mod receivers;
mod vendors;

use std::collections::BTreeMap;

use schemars::JsonSchema;
use serde::Deserialize;

pub(super) use self::{
    rates::RawRates,
    receivers::{
        RawCabinet, RawCloudPayments, RawMail, RawPayments, RawStripe, RawTelegram, RawWebhook,
        RawYooKassa,
    },
    vendors::{
        RawAccountGroup, RawCustomerRule, RawDialect, RawLogin, RawModel, RawPriceRule, RawRoute,
        RawVendor,
    },
};

/// Tollgate's configuration. A secret is never written into this file: write "${NAME}" for the value of an environment
/// variable, or "file:/path" for the content of a file. Decimal numbers are written in quotes.
#[derive(Default, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields, expecting = "a table")]
pub(super) struct RawConfig {
    /// IP address and port at which the gateway accepts callers' connections, for example "0.0.0.0:8080" for all IPv4
    /// addresses of the machine. Default: "127.0.0.1:8080".
    pub(super) listen: Option<String>,
    /// Lets another process of the same user listen at the same addresses (SO_REUSEPORT), so that a new version can
    /// start before the old one stops. Both processes must set it. Default: false.
    pub(super) reuse_port: Option<bool>,
    /// Name of this service in the paths of the gateway's own API, for example GET /v1/<service>/models (the catalog)
    /// and GET /v1/<service>/usage. Valid characters are a-z, 0-9 and -. Default: "tollgate".
    pub(super) service: Option<String>,
    /// Base URL at which callers reach the gateway, as the catalog and the page at / show it. It must end in /v1.
    /// Absent: "http://LISTEN/v1" (with [tls]: "https://LISTEN/v1"), where LISTEN is the value of listen. Set base_url
    /// if listen is 0.0.0.0, because callers cannot connect to that address.
    pub(super) base_url: Option<String>,
    /// Language of error messages, the page at / and statements: "ru" or "en". Mails and Telegram messages are always
    /// in Russian. Default: "ru".
    pub(super) language: Option<String>,
    /// IP addresses or networks (CIDR) of your reverse proxies. For connections from these, the gateway takes the
    /// caller's address from the header x-forwarded-for. If a proxy is not listed, all callers that come through it
    /// share the limits of the proxy's address.
    pub(super) trusted_proxies: Vec<String>,
    /// Origins (CORS) of web pages that may call the gateway from a browser, for example "https://app.example". "*"
    /// allows any origin.
    pub(super) cors_origins: Vec<String>,
    /// Interval, in seconds, at which the gateway checks this file, certificates and files with secrets for changes. 0:
    /// the gateway reads them again only after SIGHUP. Default: 10.
    pub(super) reload_poll_seconds: Option<u64>,
    /// TLS for callers' connections. Without this section, callers connect by plain HTTP. Adding or removing the
    /// section needs a restart.
    pub(super) tls: Option<RawTls>,
    /// Listener for operators, which serves the admin API, the console, /livez, /readyz and /metrics. Without this
    /// section, the gateway does not open this listener.
    pub(super) admin: Option<RawAdmin>,
    /// Export of OpenTelemetry spans for calls, by OTLP over HTTP. Without this section, no spans are exported.
    pub(super) traces: Option<RawTraces>,
    /// The seller that statements and invoices name. Without this section, statements name no seller, and no invoices
    /// can be made.
    pub(super) seller: Option<RawSeller>,
    /// Webhooks: receivers to which the gateway posts events, signed as Standard Webhooks.
    pub(super) webhook: Vec<RawWebhook>,
    /// Payments that customers make through a payment provider. Without this section, only operators book payments.
    pub(super) payments: Option<RawPayments>,
    /// Cabinet: pages at /cabinet for the members of accounts, who sign in with a link sent by mail. Without this
    /// section, the gateway serves no cabinet.
    pub(super) cabinet: Option<RawCabinet>,
    /// Mail receivers, to which the gateway sends events by mail, in Russian.
    pub(super) mail: Vec<RawMail>,
    /// Telegram chats to which the gateway sends events, in Russian.
    pub(super) telegram: Vec<RawTelegram>,
    /// The ledger, which stores balances, holds and receipts.
    pub(super) ledger: RawLedger,
    /// Stored responses, with which the gateway answers a call that is sent again with the same Idempotency-Key header.
    /// Responses are stored only for API keys that are enabled for this (`tollgate key set KEY --idempotency`). They
    /// are stored next to the ledger: in Redis, in a file next to the SQLite file (PATH.answers), or in memory.
    pub(super) idempotency: RawIdempotency,
    /// Limits on requests, bodies and connections. In "per address", an address is an IPv4 address or an IPv6 /64
    /// block.
    pub(super) limits: RawLimits,
    /// The exchange rate, in rubles per USDT. The gateway requests it from the sources in the order of this file, and
    /// uses the first acceptable value.
    pub(super) rate: RawRate,
    /// How prices for callers are computed from base prices.
    pub(super) tariff: RawTariff,
    /// Vendors to which the gateway sends calls. A model's routes refer to a vendor by the vendor's name.
    pub(super) vendor: Vec<RawVendor>,
    /// Models that callers can call, at least one. The catalog and the page at / list models in the order of this file.
    pub(super) model: Vec<RawModel>,
    /// Named groups of accounts, to which price rules ([[price_rule]]) can refer.
    pub(super) account_group: Vec<RawAccountGroup>,
    /// Price rules: prices for some customers, which replace the general prices. If several rules match an account and
    /// a model, only the most specific rule applies (see price_rule.accounts).
    pub(super) price_rule: Vec<RawCustomerRule>,
}

/// The section `[tls]`: the certificate for callers' TLS.
#[derive(Default, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields, expecting = "a table")]
pub(super) struct RawTls {
    /// PEM file with the gateway's certificate, followed by the certificates of its issuers.
    pub(super) certificate_file: Option<String>,
    /// PEM file with the private key of the certificate in certificate_file.
    pub(super) key_file: Option<String>,
}

/// The section `[admin]`: the listener for operators.
#[derive(Default, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields, expecting = "a table")]
pub(super) struct RawAdmin {
    /// IP address and port at which the gateway accepts operators' connections. Default: "127.0.0.1:8081".
    pub(super) listen: Option<String>,
    /// The admin key, at least 16 characters. Must be a secret ("${NAME}" or "file:/path").
    pub(super) key: Option<String>,
    /// File with the operators who may sign in to the console with a name and a password. `tollgate operator create`
    /// writes this file. The gateway reads it at each request: a change in the file applies at once, but a change of
    /// this path needs a restart. Absent: no operator can sign in with a name and a password. Operators can always sign
    /// in with the admin key or through admin.oidc.
    pub(super) operators_file: Option<String>,
    /// Host names (header Host) under which operators reach the operators' listener, for example "console.example". IP
    /// addresses, names without a dot, names under .localhost and the host of admin.oidc.redirect_url are always
    /// accepted. A request with any other Host is refused, unless it carries the admin key or is for /livez or /readyz.
    pub(super) hosts: Vec<String>,
    /// Whether /metrics requires the admin key. Default: false.
    pub(super) metrics_key: Option<bool>,
    /// Maximum number of connections to the operators' listener. Connections that have not signed in may use at most
    /// three quarters of this number, and at most one quarter per IPv4 address or IPv6 /64 block (except
    /// trusted_proxies). If no place is left for a new connection, it replaces a connection that has not signed in: the
    /// longest idle connection of the address or block with the most connections. Signed-in connections are never
    /// replaced. Absent: 1/32 of the process's open file limit, at least 8 and at most 256.
    pub(super) connections_max: Option<u64>,
    /// Sign-in to the console through an OpenID provider.
    pub(super) oidc: Option<RawOidc>,
}

/// The section `[admin.oidc]`: sign-in to the console through an OpenID provider.
#[derive(Default, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields, expecting = "a table")]
pub(super) struct RawOidc {
    /// Issuer URL of the OpenID provider, exactly as the provider states it.
    pub(super) issuer: Option<String>,
    /// Client id under which the console is registered at the OpenID provider.
    pub(super) client_id: Option<String>,
    /// Client secret of the console at the OpenID provider. Must be a secret ("${NAME}" or "file:/path"). Absent: the
    /// console is a public client, which uses PKCE only.
    pub(super) client_secret: Option<String>,
    /// URL to which the OpenID provider redirects browsers after the sign-in: the console's base URL followed by
    /// /console/oidc/back.
    pub(super) redirect_url: Option<String>,
    /// OpenID scopes that the console requests in addition to openid, for example ["email", "groups"].
    pub(super) scopes: Vec<String>,
    /// OpenID claim with the operator's name. Absent: the claim "email" is used, and the provider must mark it as
    /// verified (email_verified).
    pub(super) name_claim: Option<String>,
    /// OpenID claim with the operator's groups, as a text or a list. Default: "groups".
    pub(super) role_claim: Option<String>,
    /// Groups of the OpenID provider that give each role. At least one group must be listed. If a person's groups give
    /// several roles, the person gets the first of these, in the order admin, finance, support, read. A person without
    /// a role cannot sign in.
    pub(super) roles: RawOidcRoles,
}

/// The section `[admin.oidc.roles]`: groups of the OpenID provider that give each role.
#[derive(Default, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields, expecting = "a table")]
pub(super) struct RawOidcRoles {
    /// Role admin: groups whose members may do everything in the console.
    pub(super) admin: Vec<String>,
    /// Role finance: groups whose members may read everything, book payments and corrections, and run the audit.
    pub(super) finance: Vec<String>,
    /// Role support: groups whose members may read everything, and may change accounts and keys, but not balances.
    pub(super) support: Vec<String>,
    /// Role read: groups whose members may read everything and change nothing.
    pub(super) read: Vec<String>,
}

/// The section `[traces]`: export of OpenTelemetry spans.
#[derive(Default, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields, expecting = "a table")]
pub(super) struct RawTraces {
    /// OTLP URL to which the gateway posts spans, for example "http://127.0.0.1:4318/v1/traces".
    pub(super) url: Option<String>,
    /// Share of calls that are traced: above "0" and at most "1", with at most 6 digits after the point, for example
    /// "0.05". Default: "1".
    pub(super) sample: Option<String>,
    /// Headers that the gateway adds to each request that exports spans, by name. Each value must be a secret
    /// ("${NAME}" or "file:/path").
    pub(super) headers: BTreeMap<String, String>,
}

/// The section `[seller]`: the seller that statements and invoices name.
#[derive(Default, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields, expecting = "a table")]
pub(super) struct RawSeller {
    /// Full name of the seller, as statements and invoices state it.
    pub(super) name: Option<String>,
    /// Taxpayer number (ИНН) of the seller, 10 or 12 digits. Invoices require it.
    pub(super) inn: Option<String>,
    /// Tax registration code (КПП) of the seller, 9 digits.
    pub(super) kpp: Option<String>,
    /// Number of the seller in the state register: ОГРН, 13 digits, or ОГРНИП, 15 digits.
    pub(super) ogrn: Option<String>,
    /// Postal address of the seller, as statements and invoices state it.
    pub(super) address: Option<String>,
    /// Name of the seller's bank. Invoices require it.
    pub(super) bank: Option<String>,
    /// Code of the seller's bank (БИК), 9 digits. Invoices require it.
    pub(super) bik: Option<String>,
    /// Number of the seller's account at the bank, 20 digits. Invoices require it.
    pub(super) bank_account: Option<String>,
    /// Number of the correspondent account of the seller's bank, 20 digits. Invoices require it.
    pub(super) correspondent_account: Option<String>,
    /// Contact for customers, printed on statements.
    pub(super) contact: Option<String>,
    /// VAT rate that the prices include, in percent, with at most 2 digits after the point. Absent: statements state
    /// that no VAT is charged.
    pub(super) vat_percent: Option<String>,
    /// Reason why no VAT is charged, as statements state it, for example "НДС не облагается: п. 2 ст. 346.11 НК РФ". It
    /// is valid only if vat_percent is absent. Absent: statements state "without VAT" in their language.
    pub(super) vat_note: Option<String>,
    /// UTC offset of the seller's time zone, for example "+03:00". It decides when the month of a statement begins.
    /// Mails and Telegram messages show times in this zone. Default: "+00:00".
    pub(super) utc_offset: Option<String>,
}

/// The section `[ledger]`: the ledger's store, and the sizes and lifetimes of holds.
#[derive(Default, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields, expecting = "a table")]
pub(super) struct RawLedger {
    /// URL of the ledger: memory: (the ledger is lost when the process ends), sqlite:PATH, redis://HOST:PORT/DATABASE,
    /// redis-sentinel://HOST:PORT,HOST:PORT/MASTER or redis-cluster://HOST:PORT,HOST:PORT. For TLS, the schemes are
    /// rediss, rediss-sentinel and rediss-cluster. A URL with a password (user:password@ before the hosts) must be a
    /// secret ("${NAME}" or "file:/path"). Default: "sqlite:tollgate.db".
    pub(super) url: Option<String>,
    /// Only for Redis over TLS: PEM file with the certificate authorities that the gateway trusts instead of Mozilla's
    /// list.
    pub(super) ca_file: Option<String>,
    /// How many input tokens a hold assumes for a text. "usual": one token per 1.5 bytes, which is enough for ordinary
    /// text. "strict": one token per byte, which is enough for any text, and a whole context window for a call with
    /// attached documents. Choose "strict" if you do not trust the callers. The setting model.hold decides how much
    /// output a hold covers. Default: "usual".
    pub(super) hold: Option<String>,
    /// Number of input tokens that a hold assumes for an image of unknown size, for example an image given by a URL.
    /// For an image of known size, a hold assumes at most this number. If a request sets detail = "original" for an
    /// image, the hold assumes this number of tokens in addition. Default: 5000.
    pub(super) image_tokens: Option<u64>,
    /// Minimum number of input tokens that a hold assumes for each attached document, for example a PDF. A hold assumes
    /// more if the document's pages or bytes require more. Default: 50000.
    pub(super) document_tokens: Option<u64>,
    /// Number of input tokens that a hold assumes for the results of each web search that a request allows the vendor
    /// to run. Default: 15000.
    pub(super) search_tokens: Option<u64>,
    /// Maximum number of conversations for which the gateway remembers how many input tokens the vendor counted in the
    /// last call (about 100 bytes of memory each). For the next call of the conversation, the hold covers this count
    /// plus the upper bound for the added text. This is less than the upper bound for the whole text. 0: no count is
    /// remembered. Default: 32768.
    pub(super) hold_conversations_max: Option<u64>,
    /// Grace period in seconds. A hold expires if it has not been renewed for limits.call_seconds plus this time. The
    /// gateway renews the holds of its calls in flight, so a hold expires only if its gateway is lost. Default: 60.
    pub(super) hold_grace_seconds: Option<u64>,
    /// How long, in seconds, a starting gateway waits for another process to release the SQLite file or the outbox. 0:
    /// the start fails immediately. Default: 0.
    pub(super) open_wait_seconds: Option<u64>,
    /// Maximum number of calls without a charge (refused, failed or free) that are stored. Operators and customers can
    /// then look up why a call was refused. These calls are stored in Redis (about 1 KB each), next to the SQLite file
    /// (PATH.calls), or in memory. Beyond the maximum, the oldest stored calls of the account with the most stored
    /// calls are deleted. 0: none is stored. Default: 100000.
    pub(super) refused_calls_max: Option<u64>,
    /// Number of days for which a call without a charge (refused, failed or free) is stored. 0: none is stored.
    /// Default: 30.
    pub(super) refused_calls_days: Option<u64>,
    /// Only for Redis: file on a local disk that stores the charges that Redis has not acknowledged yet (the outbox).
    /// Each gateway needs its own file. Default: "tollgate-outbox.db".
    pub(super) outbox: Option<String>,
    /// Only for Redis: maximum number of ended calls whose charges wait in the outbox for Redis. If more are waiting,
    /// new calls get 503. Default: 100000.
    pub(super) outbox_calls_max: Option<u64>,
    /// Only for Redis: if a charge has waited in the outbox longer than this number of seconds, /readyz reports that
    /// this gateway is not ready. The gateway still serves calls. Default: 3600.
    pub(super) outbox_age_max_seconds: Option<u64>,
    /// Only for Redis: how long, in milliseconds, a gateway may grant holds from its leases without a response from
    /// Redis. A lease is money of a busy key that one gateway has reserved, to grant holds from it in memory. If a
    /// Redis failover loses the latest data, calls that were granted in this time may remain unpaid, at the operator's
    /// loss. 0: no leases are used, and every hold waits for Redis. Default: 1000.
    pub(super) lease_ms_max: Option<u64>,
}

/// The section `[idempotency]`: limits of stored responses.
#[derive(Default, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields, expecting = "a table")]
pub(super) struct RawIdempotency {
    /// How long, in seconds, a response is stored, counted from the beginning of its call. Default: 86400.
    pub(super) keep_seconds: Option<u64>,
    /// Time, in seconds, after which a claim expires unless it is renewed. A claim records which gateway runs a call
    /// with an idempotency key. After the claim has expired, another gateway may take the call over. Claims are not
    /// related to the leases of the ledger. Default: 15.
    pub(super) lease_seconds: Option<u64>,
    /// Maximum size, in bytes, of a stored response. A longer response is sent to the caller, but not stored: if the
    /// call is sent again, it gets 409. Default: 1048576.
    pub(super) answer_bytes_max: Option<u64>,
    /// Maximum size, in bytes, of all responses in this gateway's memory that are being received or sent for calls with
    /// an idempotency key. One account may use at most half of it. A response beyond this limit is sent to the caller,
    /// but not stored: if the call is sent again, it gets 409. Default: 67108864.
    pub(super) running_bytes_max: Option<u64>,
    /// Maximum number of calls with an idempotency key that are stored per account. Beyond it, the header
    /// Idempotency-Key has no effect: the response is not stored, and a call that is sent again is made and charged
    /// again. Default: 10000.
    pub(super) account_calls_max: Option<u64>,
    /// Maximum size, in bytes, of all responses stored per account. If a response does not fit into the rest of the
    /// limit, it is sent to the caller, but not stored: if the call is sent again, it gets 409. If no rest is left when
    /// a call begins, the header Idempotency-Key has no effect on this call: if the call is sent again, it is made and
    /// charged again. Default: 67108864.
    pub(super) account_bytes_max: Option<u64>,
    /// Maximum size, in bytes, of the responses stored for all accounts. A response beyond this limit is sent to the
    /// caller, but not stored: if the call is sent again, it gets 409. Default: 1073741824.
    pub(super) bytes_max: Option<u64>,
}

/// The section `[limits]`: limits on requests, bodies and connections.
#[derive(Default, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields, expecting = "a table")]
pub(super) struct RawLimits {
    /// Maximum number of catalog requests per second and address. Beyond it, a request gets 429. Default: 10.
    pub(super) catalog_requests_per_second: Option<u64>,
    /// Maximum number of requests per second and address, not counting catalog requests. Beyond it, a request gets
    /// 429. Absent: unlimited.
    pub(super) requests_per_second: Option<u64>,
    /// Maximum number of requests with unknown keys per second and address. Beyond it, a request gets 429. Default: 10.
    pub(super) unknown_keys_per_second: Option<u64>,
    /// Maximum number of requests with unknown keys that an address may send at once if it has sent none for a while.
    /// Beyond it, a request gets 429. Default: 300.
    pub(super) unknown_keys_burst: Option<u64>,
    /// Maximum number of requests in flight at this gateway. Beyond it, a request gets 503. Default: 10000.
    pub(super) in_flight_max: Option<u64>,
    /// Maximum size, in bytes, of a request's body. A request with a larger body gets 413. Default: 33554432.
    pub(super) body_bytes_max: Option<u64>,
    /// Maximum size, in bytes, of all request bodies in memory. It must be at least body_bytes_max. An account may use
    /// at most half of what other accounts leave free, and a key at most a third of what other keys leave free. Each
    /// account and each key may always have two bodies of body_bytes_max. A request beyond these limits gets 503.
    /// Default: 536870912.
    pub(super) body_bytes_in_flight_max: Option<u64>,
    /// Timeout, in seconds, for receiving the whole body of a request. If it expires, the request gets 408. Default:
    /// 60.
    pub(super) body_seconds: Option<u64>,
    /// Minimum average speed, in bytes per second, of a request's body after the first 5 seconds. A request with a
    /// slower body gets 408 even before body_seconds have passed. Default: 1024.
    pub(super) body_bytes_per_second_min: Option<u64>,
    /// Maximum size, in bytes, of a response that is not streamed. If the vendor's response is larger, the caller gets
    /// 502, and the call is charged. Default: 67108864.
    pub(super) answer_bytes_max: Option<u64>,
    /// Maximum size, in bytes, of all responses in memory that are not streamed. It must be at least answer_bytes_max.
    /// Accounts and keys have the same shares as in body_bytes_in_flight_max, but each may always have two responses of
    /// answer_bytes_max. A response beyond these limits waits. The response that has waited longest may exceed the
    /// limits, one response at a time. If a response has waited for 30 seconds, the caller gets 502, and the call is
    /// charged. Default: 268435456.
    pub(super) answer_bytes_in_flight_max: Option<u64>,
    /// Maximum number of messages in a request, or of inputs in an embeddings request. Beyond it, a request gets 400.
    /// Default: 10000.
    pub(super) messages_max: Option<u64>,
    /// Maximum time, in seconds, from sending a call to a vendor until the end of the vendor's response. After this
    /// time the gateway cuts the response off. If the call is sent on another route, the time begins again. Default:
    /// 900.
    pub(super) call_seconds: Option<u64>,
    /// Maximum time, in seconds, from the head of a request until the end of its response. After this time the gateway
    /// closes the connection. Absent: call_seconds + body_seconds + 300, at most 86400.
    pub(super) request_seconds: Option<u64>,
    /// Maximum number of callers' connections. A further connection is closed immediately. Absent: R - min(V, R / 2),
    /// where R is 0.9 × the process's open file limit - the default of admin.connections_max, and V is the sum of all
    /// vendors' connections_max.
    pub(super) connections_max: Option<u64>,
    /// Maximum number of connections per address. Addresses in trusted_proxies have no such limit. A further connection
    /// is closed immediately. Default: 256.
    pub(super) connections_per_address_max: Option<u64>,
    /// Age, in seconds, after which a connection accepts no further request. The connection is closed once its
    /// responses in flight have ended. For each connection, up to a tenth of this time is added at random, to avoid
    /// that all connections close at once. Default: 3600.
    pub(super) connection_age_seconds: Option<u64>,
    /// Timeout, in seconds, for the TLS handshake of a new connection, and then for the first byte of the first
    /// request. Default: 5.
    pub(super) first_byte_seconds: Option<u64>,
    /// Timeout, in seconds, for the whole head of a connection's first request, in addition to first_byte_seconds. On
    /// HTTP/1.1, the head of each later request must arrive within idle_seconds. Default: 10.
    pub(super) head_seconds: Option<u64>,
    /// Maximum time, in seconds, from the end of a response to the next request on the same connection. Default: 75.
    pub(super) idle_seconds: Option<u64>,
    /// Maximum time, in seconds, for which a client may accept none of the data that the gateway sends. After this time
    /// the gateway closes the connection. Default: 30.
    pub(super) write_seconds: Option<u64>,
    /// Maximum length, in bytes, of a request's path and query. Beyond it, a request gets 414. Default: 2048.
    pub(super) uri_bytes_max: Option<u64>,
    /// Maximum number of header lines in a request. Beyond it, a request gets 431. Default: 64.
    pub(super) headers_max: Option<u64>,
    /// Maximum size, in bytes, of a request's head. Beyond it, a request gets 431. Default: 32768.
    pub(super) head_bytes_max: Option<u64>,
    /// Maximum number of concurrent requests per HTTP/2 connection. Default: 100.
    pub(super) h2_streams_max: Option<u64>,
    /// HTTP/2 flow-control window per stream: maximum number of body bytes that one request may send before the gateway
    /// has read them. Default: 65536.
    pub(super) h2_stream_window_bytes: Option<u64>,
    /// HTTP/2 flow-control window per connection: maximum number of body bytes that all requests of a connection may
    /// send before the gateway has read them. Default: 1048576.
    pub(super) h2_connection_window_bytes: Option<u64>,
    /// HTTP/2: interval, in seconds, between two pings that the gateway sends on a connection. Default: 30.
    pub(super) h2_ping_seconds: Option<u64>,
    /// HTTP/2: timeout, in seconds, for the acknowledgement of a ping. If it expires, the gateway closes the
    /// connection. Default: 20.
    pub(super) h2_ping_timeout_seconds: Option<u64>,
    /// Maximum time, in seconds, from SIGTERM until the process ends. In this time, calls in flight may continue, and
    /// charges are written. Default: 30.
    pub(super) drain_seconds: Option<u64>,
}

/// The section `[rate]`: the exchange rate in rubles per USDT.
#[derive(Default, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields, expecting = "a table")]
pub(super) struct RawRate {
    /// Maximum age of the exchange rate, in seconds. If no source has returned a newer value, models priced in USDT
    /// have no prices, and calls to these models get 503. A fixed exchange rate does not age. Default: 600.
    pub(super) max_age_seconds: Option<u64>,
    /// Interval, in seconds, between two requests for the exchange rate. It is at most max_age_seconds. Absent: half of
    /// max_age_seconds, at most 60.
    pub(super) refresh_seconds: Option<u64>,
    /// Largest accepted change from the last accepted exchange rate, in percent. A larger change is rejected and logged
    /// until this setting is raised or the gateway restarts. Default: "20".
    pub(super) step_max_percent: Option<String>,
    /// Sources of the exchange rate, at least one. The gateway requests them in the order of this file until one
    /// returns an acceptable value.
    pub(super) source: Vec<RawSource>,
}

/// The section `[[rate.source]]`: a source of the exchange rate.
#[derive(Default, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields, expecting = "a table")]
pub(super) struct RawSource {
    /// A fixed exchange rate in rubles per USDT, for example "90.50": above 0, at most 1000000, with at most 6 digits
    /// after the point. If it is given, no other setting of this table is valid.
    pub(super) fixed: Option<String>,
    /// URL that returns the exchange rate as JSON. If the URL contains a key, write it as a secret.
    pub(super) url: Option<String>,
    /// Path of the exchange rate in the JSON that url returns, for example "/data[symbol=USDT/RUB]/askPrice". /name
    /// selects a field. [name=value] selects the first element whose field has this value. [0] selects the element with
    /// this index. [] selects all elements: the exchange rate is the median of their numbers.
    pub(super) select: Option<String>,
    /// HTTP method of the request to url: "GET" or "POST". Default: "GET".
    pub(super) method: Option<String>,
    /// Body of the request to url. It is valid only with method = "POST". Absent: the request has no body.
    pub(super) body: Option<String>,
    /// Lowest exchange rate that is accepted from url. If the value is lower, the next source is requested. Absent: any
    /// value above 0.
    pub(super) min: Option<String>,
    /// Highest exchange rate that is accepted from url. If the value is higher, the next source is requested. Absent:
    /// any value.
    pub(super) max: Option<String>,
}

/// The section `[tariff]`: the multipliers for prices.
#[derive(Default, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields, expecting = "a table")]
pub(super) struct RawTariff {
    /// Multiplier for models priced in USDT, with at most 6 digits after the point. The price in rubles is usdt_mtok ×
    /// rubles per USDT ([rate]) × this multiplier. "1": models are sold at their base prices. Default: "1".
    pub(super) sell_rate_multiplier: Option<String>,
    /// Multiplier for models priced in rubles, with at most 6 digits after the point. The price in rubles is rub_mtok ×
    /// this multiplier. "1": models are sold at their base prices. Default: "1".
    pub(super) sell_rub_multiplier: Option<String>,
}
