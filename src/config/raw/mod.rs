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
        RawCabinet, RawCloudPayments, RawMail, RawPayments, RawStripe, RawTelegram, RawWebhook,
        RawYooKassa,
    },
    vendors::{
        RawAccountGroup, RawCustomerRule, RawDialect, RawLogin, RawModel, RawPriceRule, RawRoute,
        RawVendor,
    },
};

/// Tollgate's configuration. A secret is written as "${NAME}", the value of an environment variable, or as "file:/path",
/// the content of a file. Decimal numbers are written in quotes.
#[derive(Default, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields, expecting = "a table")]
pub(super) struct RawConfig {
    /// IP address and port at which the gateway accepts callers' connections, like "0.0.0.0:8080" for all IPv4
    /// addresses of the machine; "127.0.0.1:8080".
    pub(super) listen: Option<String>,
    /// Lets another process of the same user listen at the same addresses (SO_REUSEPORT), so that a new version can
    /// start before the old one stops. Both processes must set it; false.
    pub(super) reuse_port: Option<bool>,
    /// Name that the paths of the gateway's own API contain, such as GET /v1/<service>/models (the catalog) and GET
    /// /v1/<service>/usage: a-z, 0-9 and -; "tollgate".
    pub(super) service: Option<String>,
    /// Address at which callers reach the gateway, shown in the catalog and on the page at /; it must end in /v1.
    /// Absent: "http://LISTEN/v1" (with [tls]: "https://LISTEN/v1"), where LISTEN is the value of listen; callers
    /// cannot use that if listen is 0.0.0.0.
    pub(super) base_url: Option<String>,
    /// Language of error messages, of the page at / and of statements: "ru" or "en". Mails and Telegram messages are
    /// always in Russian; "ru".
    pub(super) language: Option<String>,
    /// Addresses or networks (CIDR) of proxies whose x-forwarded-for header gives the caller's address. Without them,
    /// all callers behind a proxy share the limits of one address.
    pub(super) trusted_proxies: Vec<String>,
    /// Origins of web pages that may use keys from a browser, like "https://app.example"; "*" allows any origin.
    pub(super) cors_origins: Vec<String>,
    /// Interval at which this file, certificates and files with secrets are checked for changes; 0: they are read again
    /// only after SIGHUP; 10.
    pub(super) reload_poll_seconds: Option<u64>,
    /// TLS for callers; without this section the listener speaks plain HTTP. Adding or removing the section needs a
    /// restart.
    pub(super) tls: Option<RawTls>,
    /// The operators' listener, for the admin API, the console, /livez, /readyz and /metrics; without this section
    /// there is no such listener.
    pub(super) admin: Option<RawAdmin>,
    /// OpenTelemetry spans of calls, exported by OTLP over HTTP; without this section no spans are exported.
    pub(super) traces: Option<RawTraces>,
    /// The seller that issues statements; without this section statements name no seller.
    pub(super) seller: Option<RawSeller>,
    /// Receivers to which events are posted, signed by the Standard Webhooks scheme.
    pub(super) webhook: Vec<RawWebhook>,
    /// Payments that customers make themselves, through a provider; without this section only operators book payments.
    pub(super) payments: Option<RawPayments>,
    /// Pages for the members of accounts at /cabinet, who sign in by a link sent by mail; without this section there are
    /// no such pages.
    pub(super) cabinet: Option<RawCabinet>,
    /// Receivers to which events are mailed, in Russian.
    pub(super) mail: Vec<RawMail>,
    /// Telegram chats to which events are sent, in Russian.
    pub(super) telegram: Vec<RawTelegram>,
    /// The ledger, which stores balances, holds and receipts.
    pub(super) ledger: RawLedger,
    /// Answers that are stored in case their call is sent again: those of calls with the header Idempotency-Key whose
    /// API key has this permission (`tollgate key set KEY --idempotency`). They are stored where the ledger is: in
    /// Redis, next to the SQLite file (PATH.answers), or in memory.
    pub(super) idempotency: RawIdempotency,
    /// Limits of requests, bodies and connections. An address, as in "per address", is an IPv4 address or an IPv6 /64
    /// block.
    pub(super) limits: RawLimits,
    /// The exchange rate: rubles per USDT. The sources are requested in their order; the first acceptable rate counts.
    pub(super) rate: RawRate,
    /// How prices in rubles are computed from base prices in USDT.
    pub(super) tariff: RawTariff,
    /// Vendors to which the gateway sends calls. Routes refer to a vendor by its name.
    pub(super) vendor: Vec<RawVendor>,
    /// Models that callers can call, at least one. Their order in this file is their order in the catalog and on the
    /// page at /.
    pub(super) model: Vec<RawModel>,
    /// Named groups of accounts, to which price rules can refer.
    pub(super) account_group: Vec<RawAccountGroup>,
    /// Prices for some customers that replace the general prices. If several rules match an account and a model, only
    /// the most specific rule applies: see accounts.
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
    /// IP address and port at which the gateway accepts operators' connections; "127.0.0.1:8081".
    pub(super) listen: Option<String>,
    /// The admin key, 16 characters or more; a secret.
    pub(super) key: Option<String>,
    /// File with the operators who may sign in to the console by a name and a password, written by `tollgate operator
    /// create`. Its content is read at each request: only another path needs a restart. Absent: operators sign in with
    /// the admin key or through admin.oidc.
    pub(super) operators_file: Option<String>,
    /// Host names (Host header) under which operators reach the listener, like "console.example". Addresses, names
    /// without a dot, names under .localhost and the host of admin.oidc.redirect_url need not be listed. A request for
    /// another name is refused unless it carries the admin key; /livez and /readyz are always answered.
    pub(super) hosts: Vec<String>,
    /// true: /metrics requires the admin key; false.
    pub(super) metrics_key: Option<bool>,
    /// Maximum number of connections to the operators' listener. Connections that have not signed in may use three
    /// quarters of it, and each IPv4 address or IPv6 /64 block a quarter. Beyond that, a new connection replaces the
    /// one that has been silent longest of those that have not signed in; signed-in connections are never replaced.
    /// Absent: 1/32 of the process's open file limit, at least 8 and at most 256.
    pub(super) connections_max: Option<u64>,
    /// Sign-in to the console through an OpenID provider.
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
    /// Client secret of the console at the provider; a secret. Absent: a public client, with PKCE only.
    pub(super) client_secret: Option<String>,
    /// URL to which the provider sends browsers back: the console's address followed by /console/oidc/back.
    pub(super) redirect_url: Option<String>,
    /// Scopes requested in addition to openid, like ["email", "groups"].
    pub(super) scopes: Vec<String>,
    /// OpenID claim with the person's name. Absent: "email", which the provider must mark as verified (email_verified).
    pub(super) name_claim: Option<String>,
    /// OpenID claim with the person's groups, as a text or a list; "groups".
    pub(super) role_claim: Option<String>,
    /// Groups that give each role; at least one group must be listed. A person whose groups give several roles gets the
    /// first of admin, finance, support and read; a person without a role cannot sign in.
    pub(super) roles: RawOidcRoles,
}

/// `[admin.oidc.roles]`
#[derive(Default, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields, expecting = "a table")]
pub(super) struct RawOidcRoles {
    /// Groups whose members may do everything.
    pub(super) admin: Vec<String>,
    /// Groups whose members may read everything, book payments and corrections, and run the audit.
    pub(super) finance: Vec<String>,
    /// Groups whose members may read everything, and change accounts and keys, but not their money.
    pub(super) support: Vec<String>,
    /// Groups whose members may only read.
    pub(super) read: Vec<String>,
}

/// `[traces]`
#[derive(Default, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields, expecting = "a table")]
pub(super) struct RawTraces {
    /// URL to which spans are posted, like "http://127.0.0.1:4318/v1/traces".
    pub(super) url: Option<String>,
    /// Share of calls that are traced, above "0" and at most "1", like "0.05", with at most 6 digits after the point;
    /// "1".
    pub(super) sample: Option<String>,
    /// Headers added to each export, by name; each value must be a secret.
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
    /// VAT rate of the seller in percent, included in the prices, with at most 2 digits after the point. Absent:
    /// statements state that no VAT is charged.
    pub(super) vat_percent: Option<String>,
    /// Why no VAT is charged, as statements state it, like "НДС не облагается: п. 2 ст. 346.11 НК РФ"; only without
    /// vat_percent. Absent: "without VAT", in the language of the statement.
    pub(super) vat_note: Option<String>,
    /// UTC offset of the seller's time zone, which decides when a statement's month begins, and in which the times in
    /// mails and Telegram messages are written; "+00:00".
    pub(super) utc_offset: Option<String>,
}

/// `[ledger]`
#[derive(Default, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields, expecting = "a table")]
pub(super) struct RawLedger {
    /// URL of the ledger: memory: (lost when the process ends), sqlite:PATH, redis://HOST:PORT/DATABASE,
    /// redis-sentinel://HOST:PORT,HOST:PORT/MASTER or redis-cluster://HOST:PORT,HOST:PORT. For TLS the schemes are
    /// rediss, rediss-sentinel and rediss-cluster. A URL with a password (user:password@ before the hosts) must be a
    /// secret; "sqlite:tollgate.db".
    pub(super) url: Option<String>,
    /// Redis over TLS only: PEM file with the certificate authorities to trust instead of Mozilla's list.
    pub(super) ca_file: Option<String>,
    /// Upper bound that a hold assumes for the input tokens of a text: "usual" (one token per 1.5 bytes) or "strict"
    /// (one token per byte, and each attached document fills the whole context window). Choose "strict" if you do not
    /// trust the callers. How a hold covers the output is set by model.hold; "usual".
    pub(super) hold: Option<String>,
    /// Tokens held for an image of unknown size, such as one that is given by its address. An image whose size is known
    /// holds at most this many, and fewer if it has few pixels. With detail = "original", this many are held in
    /// addition; 5000.
    pub(super) image_tokens: Option<u64>,
    /// Minimum number of tokens held for each attached document, such as a PDF; more are held if its pages or bytes
    /// require more; 50000.
    pub(super) document_tokens: Option<u64>,
    /// Tokens held for the results of each web search that a request allows the vendor to run; 15000.
    pub(super) search_tokens: Option<u64>,
    /// Maximum number of conversations for which the gateway remembers how many input tokens the vendor counted last
    /// (about 100 bytes of memory each). The next call of such a conversation holds that count and the bound of the
    /// added text, instead of the larger bound of all its text; 0: no count is remembered; 32768.
    pub(super) hold_conversations_max: Option<u64>,
    /// A hold expires when limits.call_seconds and this time have passed since it was made or last renewed. A running
    /// call renews its hold, so only holds of a gateway that was lost expire; 60.
    pub(super) hold_grace_seconds: Option<u64>,
    /// How long a start waits for another process to release the SQLite file or the outbox; 0: the start fails at once;
    /// 0.
    pub(super) open_wait_seconds: Option<u64>,
    /// Redis only: file on a local disk that stores the charges that Redis has not acknowledged yet. Each gateway needs
    /// its own file; "tollgate-outbox.db".
    pub(super) outbox: Option<String>,
    /// Redis only: maximum number of ended calls whose charges wait in the outbox for Redis; beyond it new calls get
    /// 503; 100000.
    pub(super) outbox_calls_max: Option<u64>,
    /// Redis only: if a charge has waited in the outbox longer than this, /readyz reports that this gateway is not
    /// ready; it still serves calls; 3600.
    pub(super) outbox_age_max_seconds: Option<u64>,
    /// Redis only: how long, in milliseconds, a gateway may grant holds from its leases (money of busy keys that it
    /// holds in its own memory) without an answer from Redis. If a failover of Redis loses the latest data, the calls
    /// granted in that time may remain unpaid, at the operator's loss; 0: no leases, so every hold waits for Redis;
    /// 1000.
    pub(super) lease_ms_max: Option<u64>,
}

/// `[idempotency]`
#[derive(Default, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields, expecting = "a table")]
pub(super) struct RawIdempotency {
    /// How long an answer is stored, counted from the beginning of its call; 86400.
    pub(super) keep_seconds: Option<u64>,
    /// Lifetime of a claim, the record of which gateway runs a call, unless that gateway renews it. After that, another
    /// gateway may take the call over. Claims have nothing to do with the ledger's leases; 15.
    pub(super) lease_seconds: Option<u64>,
    /// Largest answer that is stored, in bytes. A longer answer is sent, but not stored: if its call is sent again,
    /// that request gets 409; 1048576.
    pub(super) answer_bytes_max: Option<u64>,
    /// Maximum bytes of answers in this gateway's memory that are arriving from vendors or being read by their callers,
    /// of all calls with an idempotency key; one account may use half. An answer beyond it is sent, but not stored, as
    /// with answer_bytes_max; 67108864.
    pub(super) running_bytes_max: Option<u64>,
    /// Maximum number of calls with an idempotency key that are stored per account. Beyond it, the header has no
    /// effect: the answer is not stored, and a call that is sent again is made and charged again; 10000.
    pub(super) account_calls_max: Option<u64>,
    /// Maximum bytes of answers stored per account. An answer that would exceed it is not stored, as with
    /// answer_bytes_max; once it is reached, the header has no effect, as with account_calls_max; 67108864.
    pub(super) account_bytes_max: Option<u64>,
    /// Maximum bytes of answers stored for all accounts. An answer beyond it is sent, but not stored, as with
    /// answer_bytes_max; 1073741824.
    pub(super) bytes_max: Option<u64>,
}

/// `[limits]`
#[derive(Default, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields, expecting = "a table")]
pub(super) struct RawLimits {
    /// Maximum number of requests for the catalog per second and address. Beyond it, a request gets 429; 10.
    pub(super) catalog_requests_per_second: Option<u64>,
    /// Maximum number of requests per second and address, not counting those for the catalog. Beyond it, a request gets
    /// 429. Absent: unlimited.
    pub(super) requests_per_second: Option<u64>,
    /// Maximum number of requests with unknown keys per second and address. Beyond it, a request gets 429; 10.
    pub(super) unknown_keys_per_second: Option<u64>,
    /// Maximum number of requests with unknown keys that an address may send at once, after a pause; 300.
    pub(super) unknown_keys_burst: Option<u64>,
    /// Maximum number of requests in flight. Beyond it, a request gets 503; 10000.
    pub(super) in_flight_max: Option<u64>,
    /// Maximum bytes of a request's body. Beyond it, a request gets 413; 33554432.
    pub(super) body_bytes_max: Option<u64>,
    /// Maximum bytes of all request bodies in memory; must be at least body_bytes_max. An account may use at most half
    /// of what other accounts leave free, and a key at most a third of what other keys leave free, but each may always
    /// have two bodies of body_bytes_max. A body beyond these limits gets 503; 536870912.
    pub(super) body_bytes_in_flight_max: Option<u64>,
    /// Maximum time in which the whole body of a request must arrive; a later body gets 408; 60.
    pub(super) body_seconds: Option<u64>,
    /// Minimum average rate, in bytes per second, at which a body must arrive after its first 5 seconds; a slower body
    /// gets 408 even before body_seconds have passed; 1024.
    pub(super) body_bytes_per_second_min: Option<u64>,
    /// Maximum bytes of an answer that is not streamed. If an answer is longer, the caller gets 502 instead, and the
    /// call is charged; 67108864.
    pub(super) answer_bytes_max: Option<u64>,
    /// Maximum bytes of all answers in memory that are not streamed; must be at least answer_bytes_max. Accounts and
    /// keys have shares as in body_bytes_in_flight_max, at least two answers of answer_bytes_max. Answers beyond these
    /// limits wait, except one at a time; after 30 seconds the caller of such an answer gets 502, and the call is
    /// charged; 268435456.
    pub(super) answer_bytes_in_flight_max: Option<u64>,
    /// Maximum number of messages in a request, or of inputs in an embeddings request. Beyond it, a request gets 400;
    /// 10000.
    pub(super) messages_max: Option<u64>,
    /// Maximum time from sending a call to a vendor to the end of the vendor's answer; then the answer is cut off. It
    /// begins again if the call is sent on another route; 900.
    pub(super) call_seconds: Option<u64>,
    /// Maximum time from the head of a request to the end of its answer; then its connection is closed. Absent:
    /// call_seconds + body_seconds + 300, at most 86400.
    pub(super) request_seconds: Option<u64>,
    /// Maximum number of callers' connections; a further one is closed at once. Absent: nine tenths of the process's
    /// open file limit, less the default of admin.connections_max, less the connections_max of all vendors, which count
    /// for at most half of the rest.
    pub(super) connections_max: Option<u64>,
    /// Maximum number of connections per address, except for trusted_proxies; a further one is closed at once; 256.
    pub(super) connections_per_address_max: Option<u64>,
    /// Age after which a connection accepts no further request, and is closed once its running answers have ended; up
    /// to a tenth is added at random; 3600.
    pub(super) connection_age_seconds: Option<u64>,
    /// Timeout for the first byte on a new connection, and for its TLS handshake; 5.
    pub(super) first_byte_seconds: Option<u64>,
    /// Timeout for the whole head of a connection's first request, in addition to first_byte_seconds. The head of a
    /// later request on HTTP/1.1 must arrive within idle_seconds; 10.
    pub(super) head_seconds: Option<u64>,
    /// Maximum time from the end of an answer to the next request on the same connection; 75.
    pub(super) idle_seconds: Option<u64>,
    /// How long a client may accept no data before it is disconnected; 30.
    pub(super) write_seconds: Option<u64>,
    /// Maximum bytes of a request's path and query. Beyond it, a request gets 414; 2048.
    pub(super) uri_bytes_max: Option<u64>,
    /// Maximum number of header lines in a request. Beyond it, a request gets 431; 64.
    pub(super) headers_max: Option<u64>,
    /// Maximum bytes of a request's head. Beyond it, a request gets 431; 32768.
    pub(super) head_bytes_max: Option<u64>,
    /// Maximum number of concurrent requests per HTTP/2 connection; 100.
    pub(super) h2_streams_max: Option<u64>,
    /// HTTP/2 flow-control window per stream: how many bytes of a request's body may be unread; 65536.
    pub(super) h2_stream_window_bytes: Option<u64>,
    /// HTTP/2 flow-control window per connection: how many bytes of all its requests' bodies may be unread; 1048576.
    pub(super) h2_connection_window_bytes: Option<u64>,
    /// HTTP/2: interval between two pings that the gateway sends on a connection; 30.
    pub(super) h2_ping_seconds: Option<u64>,
    /// HTTP/2: timeout for the answer to a ping; then the connection is closed; 20.
    pub(super) h2_ping_timeout_seconds: Option<u64>,
    /// How long, after SIGTERM, running calls may go on and charges may be written before the process ends; 30.
    pub(super) drain_seconds: Option<u64>,
}

/// `[rate]`
#[derive(Default, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields, expecting = "a table")]
pub(super) struct RawRate {
    /// Maximum age of the exchange rate. If no source has returned a newer one, models have no prices, and calls get
    /// 503. A fixed rate does not age; 600.
    pub(super) max_age_seconds: Option<u64>,
    /// Interval between two requests for the rate, at most max_age_seconds. Absent: half of max_age_seconds, at most
    /// 60.
    pub(super) refresh_seconds: Option<u64>,
    /// Largest accepted change from the last accepted rate, in percent. A larger change is rejected and logged until
    /// this setting is raised or the gateway restarts; "20".
    pub(super) step_max_percent: Option<String>,
    /// Sources of the rate, in the order in which they are requested; at least one must be given.
    pub(super) source: Vec<RawSource>,
}

/// `[[rate.source]]`
#[derive(Default, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields, expecting = "a table")]
pub(super) struct RawSource {
    /// A rate that you fix, like "90.50": above 0, at most 1000000, with at most 6 digits after the point. The other
    /// settings of this table are for url only.
    pub(super) fixed: Option<String>,
    /// URL that returns the rate as JSON. If it contains a key, write it as a secret.
    pub(super) url: Option<String>,
    /// Path of the number in the JSON answer, like "/data[symbol=USDT/RUB]/askPrice": /name is a field, [name=value]
    /// the first element with this field, [0] the element with this index, and [] all elements, of whose numbers the
    /// median is taken.
    pub(super) select: Option<String>,
    /// HTTP method: "GET" or "POST"; "GET".
    pub(super) method: Option<String>,
    /// Body of the request, with method = "POST" only. Absent: no body.
    pub(super) body: Option<String>,
    /// Lowest rate that is accepted from url; if the answer is lower, the next source is requested. Absent: any rate
    /// above 0.
    pub(super) min: Option<String>,
    /// Highest rate that is accepted from url; if the answer is higher, the next source is requested. Absent: any rate.
    pub(super) max: Option<String>,
}

/// `[tariff]`
#[derive(Default, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields, expecting = "a table")]
pub(super) struct RawTariff {
    /// Price in rubles = usdt_mtok × rubles per USDT ([rate]) × this multiplier, which has at most 6 digits after the
    /// point; "1": models are sold at their base prices; "1".
    pub(super) sell_rate_multiplier: Option<String>,
    /// Price in rubles = rub_mtok × this multiplier, for models priced in rubles; "1" sells at cost; "1".
    pub(super) sell_rub_multiplier: Option<String>,
}
