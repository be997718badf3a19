//! The shape of the file, and nothing about what its values mean.
//!
//! Every field may be absent: [`Document::read`](super::document::Document::read) takes out one of the wrong shape and
//! reads the rest again.
//!
//! What is said of a field here stands in the JSON schema, with its default behind the semicolon.
//!
//! Nothing here is `Debug`: a secret may stand where none should.

use std::collections::BTreeMap;

use schemars::JsonSchema;
use serde::Deserialize;

/// Tollgate's configuration. Secrets are "${NAME}" of the environment or "file:/path"; decimal numbers stand in quotes.
#[derive(Default, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields, expecting = "a table")]
pub(super) struct RawConfig {
    /// Where callers connect, like "0.0.0.0:8080"; "127.0.0.1:8080".
    pub(super) listen: Option<String>,
    /// Let another process listen on the same ports, for an upgrade; false.
    pub(super) reuse_port: Option<bool>,
    /// The catalog's path segment: GET /v1/<service>/models; "tollgate".
    pub(super) service: Option<String>,
    /// The address that the catalog shows; ends in /v1; absent: that of listen.
    pub(super) base_url: Option<String>,
    /// Texts for people: "ru" or "en"; "ru".
    pub(super) language: Option<String>,
    /// Networks (CIDR) whose x-forwarded-for is believed.
    pub(super) trusted_proxies: Vec<String>,
    /// How often this file, certificates and secrets in files are looked at; 0: on SIGHUP alone; 10.
    pub(super) reload_poll_seconds: Option<u64>,
    /// TLS for callers; without this section it is plain HTTP.
    pub(super) tls: Option<RawTls>,
    /// The operators' listener; without this section there is none.
    pub(super) admin: Option<RawAdmin>,
    /// Spans of calls for OpenTelemetry, by OTLP over HTTP; without this section they are sent nowhere.
    pub(super) traces: Option<RawTraces>,
    /// Who statements are from; without this section they name nobody.
    pub(super) seller: Option<RawSeller>,
    /// Where events are posted, signed by the Standard Webhooks scheme.
    pub(super) webhook: Vec<RawWebhook>,
    /// How customers pay by themselves; without this section operators book payments.
    pub(super) payments: Option<RawPayments>,
    /// Whom events are mailed to, in Russian.
    pub(super) mail: Vec<RawMail>,
    /// Chats of Telegram that events are written into, in Russian.
    pub(super) telegram: Vec<RawTelegram>,
    /// Where the money is kept.
    pub(super) ledger: RawLedger,
    /// Answers that are kept for calls with an idempotency key, where a caller's key allows it.
    pub(super) idempotency: RawIdempotency,
    /// Limits.
    pub(super) limits: RawLimits,
    /// Rubles for one USDT.
    pub(super) rate: RawRate,
    /// What stands between the exchange rate and the price.
    pub(super) tariff: RawTariff,
    /// Vendors, by name.
    pub(super) vendor: Vec<RawVendor>,
    /// Models, in the order of the catalog.
    pub(super) model: Vec<RawModel>,
    /// Accounts that price rules name together.
    pub(super) account_group: Vec<RawAccountGroup>,
    /// Prices of some customers in place of everybody's.
    pub(super) price_rule: Vec<RawCustomerRule>,
}

/// `[tls]`
#[derive(Default, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields, expecting = "a table")]
pub(super) struct RawTls {
    /// The certificate and those that signed it, in PEM.
    pub(super) certificate_file: Option<String>,
    /// Its key, in PEM.
    pub(super) key_file: Option<String>,
}

/// `[admin]`
#[derive(Default, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields, expecting = "a table")]
pub(super) struct RawAdmin {
    /// Where operators connect; "127.0.0.1:8081".
    pub(super) listen: Option<String>,
    /// What they show, 16 characters or more; a secret.
    pub(super) key: Option<String>,
    /// The file of those who may sign in to the console by a name; without it the admin key alone opens it.
    pub(super) operators_file: Option<String>,
    /// Operators' connections at a time; 1/32 of the files that the process may open, 8 to 256.
    pub(super) connections_max: Option<u64>,
    /// Signing in to the console by an OpenID provider.
    pub(super) oidc: Option<RawOidc>,
}

/// `[admin.oidc]`
#[derive(Default, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields, expecting = "a table")]
pub(super) struct RawOidc {
    /// The provider's address, as it calls itself.
    pub(super) issuer: Option<String>,
    /// The name by which it knows the console.
    pub(super) client_id: Option<String>,
    /// What the console shows it; a secret. Absent: a public client.
    pub(super) client_secret: Option<String>,
    /// Where it sends browsers back to: the console's address with /console/oidc/back behind it.
    pub(super) redirect_url: Option<String>,
    /// What is asked for beside openid, like ["email", "groups"].
    pub(super) scopes: Vec<String>,
    /// The claim that says what somebody is called; "email", which must be verified.
    pub(super) name_claim: Option<String>,
    /// The claim that has their groups, as a text or a list; "groups".
    pub(super) role_claim: Option<String>,
    /// Groups by the role that they have.
    pub(super) roles: RawOidcRoles,
}

/// `[admin.oidc.roles]`
#[derive(Default, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields, expecting = "a table")]
pub(super) struct RawOidcRoles {
    /// Who may do all of it.
    pub(super) admin: Vec<String>,
    /// Who may look, and do what is about money.
    pub(super) finance: Vec<String>,
    /// Who may look, and change accounts and keys.
    pub(super) support: Vec<String>,
    /// Who may look.
    pub(super) read: Vec<String>,
}

/// `[traces]`
#[derive(Default, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields, expecting = "a table")]
pub(super) struct RawTraces {
    /// Where they are posted, like "http://127.0.0.1:4318/v1/traces".
    pub(super) url: Option<String>,
    /// The share of calls that is traced; "1".
    pub(super) sample: Option<String>,
    /// Headers by their names; their values are secrets.
    pub(super) headers: BTreeMap<String, String>,
}

/// `[seller]`
#[derive(Default, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields, expecting = "a table")]
pub(super) struct RawSeller {
    /// Its name in full.
    pub(super) name: Option<String>,
    /// Its taxpayer number (ИНН), 10 or 12 digits.
    pub(super) inn: Option<String>,
    /// Its registration code (КПП), 9 digits.
    pub(super) kpp: Option<String>,
    /// Its number in the state register (ОГРН, ОГРНИП), 13 or 15 digits.
    pub(super) ogrn: Option<String>,
    /// Its address.
    pub(super) address: Option<String>,
    /// The name of its bank.
    pub(super) bank: Option<String>,
    /// That bank's number (БИК), 9 digits.
    pub(super) bik: Option<String>,
    /// Its account there, 20 digits.
    pub(super) bank_account: Option<String>,
    /// The bank's correspondent account, 20 digits.
    pub(super) correspondent_account: Option<String>,
    /// How customers reach it.
    pub(super) contact: Option<String>,
    /// The VAT within what is charged, in percent, like "20"; absent: statements say that there is none.
    pub(super) vat_percent: Option<String>,
    /// What they say in that case, like the article of the law; absent: "without VAT", in their language.
    pub(super) vat_note: Option<String>,
    /// How far its calendar is ahead of UTC, by which months of statements begin and end; "+00:00".
    pub(super) utc_offset: Option<String>,
}

/// `[[webhook]]`
#[derive(Default, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields, expecting = "a table")]
pub(super) struct RawWebhook {
    /// Its name, for the log, metrics and commands: letters, digits, - and _.
    pub(super) name: Option<String>,
    /// Where events are posted, by https unless allow_private says otherwise; may be a secret.
    pub(super) url: Option<String>,
    /// What they are signed with, whsec_ and base64: one, or two while receivers change to the second; secrets.
    pub(super) secrets: Vec<String>,
    /// The kinds of events that are sent; absent: all.
    pub(super) kinds: Vec<String>,
    /// The accounts whose events are sent; absent: all, and what is no account's.
    pub(super) accounts: Vec<String>,
    /// Send to private, loopback and link-local addresses too, and by http; false.
    pub(super) allow_private: Option<bool>,
    /// Authorities that are trusted in place of Mozilla's list, in PEM.
    pub(super) ca_file: Option<String>,
    /// Time for an answer; 15.
    pub(super) answer_seconds: Option<u64>,
    /// How long an event is tried before it is given up; 72.
    pub(super) retry_hours: Option<u64>,
}

/// `[payments]`
#[derive(Default, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields, expecting = "a table")]
pub(super) struct RawPayments {
    /// Whether the holder of a key may ask for a payment, by the API and on the page /usage; false.
    pub(super) on_page: Option<bool>,
    /// The least that a key's holder may pay at once, in rubles; "100".
    pub(super) min_rub: Option<String>,
    /// The most that a key's holder may pay at once, in rubles; "100000".
    pub(super) max_rub: Option<String>,
    /// Payments of an account that may wait for their money at the same time; 10.
    pub(super) open_max: Option<u64>,
    /// How often payments that wait are asked for at their provider, for notifications that were lost; 300.
    pub(super) poll_seconds: Option<u64>,
    /// How often it is looked whether an account that is topped up by a saved card needs it; 5.
    pub(super) auto_check_seconds: Option<u64>,
    /// How long a saved card is left alone that was declined; twice as long after the next time; 3600.
    pub(super) auto_retry_seconds: Option<u64>,
    /// How often a saved card may be declined, one time after the other, before it is not tried any more; 3.
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
    /// The shop's number.
    pub(super) shop_id: Option<String>,
    /// The shop's key; a secret.
    pub(super) secret_key: Option<String>,
    /// Where its API is; "https://api.yookassa.ru/v3".
    pub(super) url: Option<String>,
    /// Where payers come back to, like "https://api.example/usage".
    pub(super) return_url: Option<String>,
    /// The code of VAT on fiscal receipts, as YooKassa counts them, 1 to 12; absent: no receipt is asked for.
    pub(super) receipt_vat_code: Option<u64>,
    /// Who gets the receipt where a payment names nobody.
    pub(super) receipt_email: Option<String>,
}

/// `[payments.cloudpayments]`
#[derive(Default, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields, expecting = "a table")]
pub(super) struct RawCloudPayments {
    /// The site's Public ID.
    pub(super) public_id: Option<String>,
    /// The site's API Secret, which signs notifications too; a secret.
    pub(super) api_secret: Option<String>,
    /// Where its API is; "https://api.cloudpayments.ru".
    pub(super) url: Option<String>,
    /// Where payers come back to, like "https://api.example/usage".
    pub(super) return_url: Option<String>,
}

/// `[payments.stripe]`
#[derive(Default, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields, expecting = "a table")]
pub(super) struct RawStripe {
    /// The account's key; a secret.
    pub(super) secret_key: Option<String>,
    /// What its webhook's events are signed with; a secret.
    pub(super) webhook_secret: Option<String>,
    /// Where its API is; "https://api.stripe.com".
    pub(super) url: Option<String>,
    /// Where payers come back to, like "https://api.example/usage".
    pub(super) return_url: Option<String>,
}

/// `[[mail]]`
#[derive(Default, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields, expecting = "a table")]
pub(super) struct RawMail {
    /// Its name, for the log, metrics and commands: letters, digits, - and _.
    pub(super) name: Option<String>,
    /// The mail server: smtps://user:password@host:465, or smtp://…?tls=required; with a password, a secret.
    pub(super) server: Option<String>,
    /// Authorities that are trusted in place of Mozilla's list, in PEM.
    pub(super) ca_file: Option<String>,
    /// Whom mails are from, like "Tollgate <noreply@example.com>".
    pub(super) from: Option<String>,
    /// Whom they go to, up to 16.
    pub(super) to: Vec<String>,
    /// The kinds of events that are sent; absent: all.
    pub(super) kinds: Vec<String>,
    /// The accounts whose events are sent; absent: all, and what is no account's.
    pub(super) accounts: Vec<String>,
    /// How long an event is tried before it is given up; 72.
    pub(super) retry_hours: Option<u64>,
}

/// `[[telegram]]`
#[derive(Default, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields, expecting = "a table")]
pub(super) struct RawTelegram {
    /// Its name, for the log, metrics and commands: letters, digits, - and _.
    pub(super) name: Option<String>,
    /// The bot's token; a secret.
    pub(super) token: Option<String>,
    /// The chat's id, like "-1001234567890", or a channel's name, like "@channel".
    pub(super) chat: Option<String>,
    /// Where the Bot API is; "https://api.telegram.org".
    pub(super) url: Option<String>,
    /// Authorities that are trusted in place of Mozilla's list, in PEM.
    pub(super) ca_file: Option<String>,
    /// The kinds of events that are sent; absent: all.
    pub(super) kinds: Vec<String>,
    /// The accounts whose events are sent; absent: all, and what is no account's.
    pub(super) accounts: Vec<String>,
    /// How long an event is tried before it is given up; 72.
    pub(super) retry_hours: Option<u64>,
}

/// `[ledger]`
#[derive(Default, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields, expecting = "a table")]
pub(super) struct RawLedger {
    /// Which store: memory:, sqlite:PATH, redis://, redis-sentinel://, redis-cluster://; "sqlite:tollgate.db".
    pub(super) url: Option<String>,
    /// With Redis over TLS: authorities that are trusted in place of Mozilla's list, in PEM.
    pub(super) ca_file: Option<String>,
    /// How input is bounded: "usual" (text bytes / 1.5) or "strict" (text bytes); "usual".
    pub(super) hold: Option<String>,
    /// Tokens that are held for each image; 5000.
    pub(super) image_tokens: Option<u64>,
    /// Tokens that are held for each document; 50000.
    pub(super) document_tokens: Option<u64>,
    /// Tokens that are held for what each search of the web brings that the vendor may run; 15000.
    pub(super) search_tokens: Option<u64>,
    /// How long a hold outlives limits.call_seconds; 60.
    pub(super) hold_grace_seconds: Option<u64>,
    /// How long a start waits for another gateway to let go of the ledger's file or the outbox; 0.
    pub(super) open_wait_seconds: Option<u64>,
    /// With Redis: this gateway's own file of what Redis has still to be told; "tollgate-outbox.db".
    pub(super) outbox: Option<String>,
    /// Charges that may wait for Redis; 100000.
    pub(super) outbox_calls_max: Option<u64>,
    /// When one has waited for longer, the node is not ready; 3600.
    pub(super) outbox_age_max_seconds: Option<u64>,
    /// With Redis: for how long a gateway may hold money by itself after it told Redis last, in ms; 0: never; 0.
    pub(super) lease_ms_max: Option<u64>,
}

/// `[idempotency]`
#[derive(Default, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields, expecting = "a table")]
pub(super) struct RawIdempotency {
    /// How long an answer is kept; 86400.
    pub(super) keep_seconds: Option<u64>,
    /// How long a call is taken to run whose gateway says nothing of it; 15.
    pub(super) lease_seconds: Option<u64>,
    /// The longest answer that is kept, in bytes; 1048576.
    pub(super) answer_bytes_max: Option<u64>,
    /// Bytes of answers that are on their way at the same time, on this node, half of it for one account; 67108864.
    pub(super) running_bytes_max: Option<u64>,
    /// Calls that are kept for one account; 10000.
    pub(super) account_calls_max: Option<u64>,
    /// Bytes of answers that are kept for one account; 67108864.
    pub(super) account_bytes_max: Option<u64>,
    /// Bytes of answers that are kept for all accounts; 1073741824.
    pub(super) bytes_max: Option<u64>,
}

/// `[limits]`
#[derive(Default, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields, expecting = "a table")]
pub(super) struct RawLimits {
    /// Catalog requests a second from one address; 10.
    pub(super) catalog_requests_per_second: Option<u64>,
    /// Other requests a second from one address; absent: as many as come.
    pub(super) requests_per_second: Option<u64>,
    /// Unknown keys a second that one address may show; 10.
    pub(super) unknown_keys_per_second: Option<u64>,
    /// Unknown keys that one address may show at once; 300.
    pub(super) unknown_keys_burst: Option<u64>,
    /// Requests at a time; 10000.
    pub(super) in_flight_max: Option<u64>,
    /// Bytes of a request's body; 33554432.
    pub(super) body_bytes_max: Option<u64>,
    /// Bytes of all bodies at a time; 536870912.
    pub(super) body_bytes_in_flight_max: Option<u64>,
    /// Time for a request's body; 60.
    pub(super) body_seconds: Option<u64>,
    /// Bytes of a body that must come each second; 1024.
    pub(super) body_bytes_per_second_min: Option<u64>,
    /// Bytes of an answer that is no stream; 67108864.
    pub(super) answer_bytes_max: Option<u64>,
    /// Messages of a conversation; 10000.
    pub(super) messages_max: Option<u64>,
    /// The longest that a vendor's answer may take; 900.
    pub(super) call_seconds: Option<u64>,
    /// The longest that a request with all of its answer may take; call_seconds + body_seconds + 300.
    pub(super) request_seconds: Option<u64>,
    /// Connections in all; nine tenths of the files that the process may open.
    pub(super) connections_max: Option<u64>,
    /// Connections of one IPv4 address or IPv6 /64; 256.
    pub(super) connections_per_address_max: Option<u64>,
    /// Age at which a connection is closed after its running answers; 3600.
    pub(super) connection_age_seconds: Option<u64>,
    /// Time for a new connection's first byte, and for agreeing on TLS; 5.
    pub(super) first_byte_seconds: Option<u64>,
    /// Time for a request's head; 10.
    pub(super) head_seconds: Option<u64>,
    /// Time between two requests; 75.
    pub(super) idle_seconds: Option<u64>,
    /// Time for the client to take what is written; 30.
    pub(super) write_seconds: Option<u64>,
    /// Bytes of path and query; 2048.
    pub(super) uri_bytes_max: Option<u64>,
    /// Lines of a request's head; 64.
    pub(super) headers_max: Option<u64>,
    /// Bytes of a request's head; 32768.
    pub(super) head_bytes_max: Option<u64>,
    /// Requests at a time on one HTTP/2 connection; 100.
    pub(super) h2_streams_max: Option<u64>,
    /// Bytes of one request's body that may be under way on HTTP/2; 65536.
    pub(super) h2_stream_window_bytes: Option<u64>,
    /// Bytes of all bodies that may be under way on one HTTP/2 connection; 1048576.
    pub(super) h2_connection_window_bytes: Option<u64>,
    /// Time between two pings of ours on HTTP/2; 30.
    pub(super) h2_ping_seconds: Option<u64>,
    /// Time for the answer to a ping; 20.
    pub(super) h2_ping_timeout_seconds: Option<u64>,
    /// Time for running calls and their charges after SIGTERM; 30.
    pub(super) drain_seconds: Option<u64>,
}

/// `[rate]`
#[derive(Default, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields, expecting = "a table")]
pub(super) struct RawRate {
    /// Older than this there are no prices; 600.
    pub(super) max_age_seconds: Option<u64>,
    /// Time between two looks; half of max_age_seconds, at most 60.
    pub(super) refresh_seconds: Option<u64>,
    /// The largest change between two looks that is believed, in percent; "20".
    pub(super) step_max_percent: Option<String>,
    /// Sources, in the order of trust.
    pub(super) source: Vec<RawSource>,
}

/// `[[rate.source]]`
#[derive(Default, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields, expecting = "a table")]
pub(super) struct RawSource {
    /// A rate that the operator fixes, like "90.50".
    pub(super) fixed: Option<String>,
    /// Whom to ask; may be a secret.
    pub(super) url: Option<String>,
    /// Where the number stands in the JSON, like /data[symbol=USDT/RUB]/askPrice.
    pub(super) select: Option<String>,
    /// "GET" or "POST"; "GET".
    pub(super) method: Option<String>,
    /// What to post.
    pub(super) body: Option<String>,
    /// The least number that is believed.
    pub(super) min: Option<String>,
    /// The largest number that is believed.
    pub(super) max: Option<String>,
}

/// `[tariff]`
#[derive(Default, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields, expecting = "a table")]
pub(super) struct RawTariff {
    /// Price = usdt_mtok × rate × this; "1".
    pub(super) sell_rate_multiplier: Option<String>,
}

/// `[[vendor]]`
#[derive(Default, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields, expecting = "a table")]
pub(super) struct RawVendor {
    /// Its name, for routes.
    pub(super) name: Option<String>,
    /// What it speaks: "chat", "messages" or "responses".
    pub(super) format: Option<String>,
    /// Several of them in place of format: each caller's own, else the first.
    pub(super) formats: Option<Vec<String>>,
    /// Its base address: POST {url}/chat/completions, {url}/v1/messages or {url}/responses.
    pub(super) url: Option<String>,
    /// Our key there; a secret.
    pub(super) key: Option<String>,
    /// Several keys in place of key, used in turn; secrets.
    pub(super) keys: Option<Vec<String>>,
    /// When a client leaves its stream: "cancel" the vendor's or "drain" it; "cancel".
    pub(super) on_disconnect: Option<String>,
    /// Beginnings of betas that are not passed on; ["context-1m"].
    pub(super) betas_removed: Option<Vec<String>>,
    /// A way out: http://host:port or socks5://host:port; with a password, a secret.
    pub(super) proxy: Option<String>,
    /// Authorities that are trusted in place of Mozilla's list, in PEM.
    pub(super) ca_file: Option<String>,
    /// Speak HTTP/2 where it is offered; false.
    pub(super) http2: Option<bool>,
    /// Calls at a time; 1024.
    pub(super) connections_max: Option<u64>,
    /// Time for a connection; 3.
    pub(super) connect_seconds: Option<u64>,
    /// Time for the head of a stream; 120.
    pub(super) first_byte_seconds: Option<u64>,
    /// Time for the head of an answer that is no stream; 900.
    pub(super) plain_seconds: Option<u64>,
    /// Time for a stream's first event after its head; 30.
    pub(super) head_seconds: Option<u64>,
    /// Time between two frames; 120.
    pub(super) idle_seconds: Option<u64>,
    /// Time after which an idle connection is closed; 50.
    pub(super) idle_connection_seconds: Option<u64>,
}

/// `[[model]]`
#[derive(Default, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields, expecting = "a table")]
pub(super) struct RawModel {
    /// What callers write in the field model.
    pub(super) id: Option<String>,
    /// Its family, for people.
    pub(super) family: Option<String>,
    /// What it makes: "chat", or "embedding", which has a price of input alone, no output_tokens_max, and vendors of the
    /// format "chat"; "chat".
    pub(super) kind: Option<String>,
    /// Its own name, for people, where clients let them choose; the id.
    pub(super) display_name: Option<String>,
    /// What it is for, in front of its price there; absent: the price alone.
    pub(super) description: Option<String>,
    /// Base prices.
    pub(super) usdt_mtok: Option<RawUsdt>,
    /// Base prices that hold under a condition instead: each with the same classes as usdt_mtok.
    pub(super) price_rules: Vec<RawPriceRule>,
    /// Most output tokens that it can be asked for.
    pub(super) output_tokens_max: Option<u64>,
    /// Fewest output tokens worth a call when funds are short; 256.
    pub(super) output_tokens_min: Option<u64>,
    /// Output of a call that names no ceiling; absent: output_tokens_max.
    pub(super) output_tokens_default: Option<u64>,
    /// Its context window; absent: not known.
    pub(super) input_tokens_max: Option<u64>,
    /// Input up to which usdt_mtok holds: a call that may have more is a 400; absent: all.
    pub(super) input_tokens_priced_max: Option<u64>,
    /// Where a ceiling of ours is written: "max_completion_tokens" or "max_tokens"; "max_completion_tokens".
    pub(super) output_field: Option<String>,
    /// Who speaks instructions: "system" or "developer"; "system".
    pub(super) system_role: Option<String>,
    /// false: reasoning_effort is dropped; true.
    pub(super) reasoning_effort: Option<bool>,
    /// false: temperature, top_p and top_k are dropped; true.
    pub(super) sampling: Option<bool>,
    /// How thinking is asked for: "effort", "budget" or "none"; "effort".
    pub(super) thinking: Option<String>,
    /// false: a wish for structured output is a 400; true.
    pub(super) json_schema: Option<bool>,
    /// true: verbosity is passed on in the chat format; false.
    pub(super) verbosity: Option<bool>,
    /// false: a vendor of the responses format is not asked to sum its reasoning up; true.
    pub(super) reasoning_summary: Option<bool>,
    /// false: it is not asked to hand its reasoning out, encrypted; true.
    pub(super) encrypted_reasoning: Option<bool>,
    /// Whether a conversation stays on its route; false.
    pub(super) sticky: Option<bool>,
    /// Ways to a vendor.
    pub(super) routes: Vec<RawRoute>,
}

/// `model.usdt_mtok`: USDT per million tokens
#[derive(Clone, Default, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields, expecting = "a table")]
pub(super) struct RawUsdt {
    /// Input.
    pub(super) input: Option<String>,
    /// Input that was read from the vendor's cache.
    pub(super) cached_input: Option<String>,
    /// Output, reasoning included.
    pub(super) output: Option<String>,
    /// Input that was written to the vendor's cache.
    pub(super) cache_write: Option<String>,
    /// The same where it is kept for an hour (cache_control.ttl "1h"); absent: a call that asks for it is a 400.
    pub(super) cache_write_1h: Option<String>,
    /// The same for twelve hours (prompt_cache_options.ttl "12h").
    pub(super) cache_write_12h: Option<String>,
    /// Input that is sound (input_audio); absent: a call with it is a 400.
    pub(super) input_audio: Option<String>,
    /// Input that is an image; absent: it costs what other input does.
    pub(super) input_image: Option<String>,
    /// Output that is sound (modalities, audio); absent: a call that asks for it is a 400.
    pub(super) output_audio: Option<String>,
    /// Output that is an image (modalities), likewise.
    pub(super) output_image: Option<String>,
    /// One search of the web that the vendor runs, not a million; absent: such a tool is a 400.
    pub(super) web_search_call: Option<String>,
}

/// `model.price_rules[]`: what is said of a call has to be so, all of it
#[derive(Default, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields, expecting = "a table")]
pub(super) struct RawPriceRule {
    /// It has more input tokens than this, cached and written ones included; then all its classes cost this.
    pub(super) above_input_tokens: Option<u64>,
    /// The vendor says that it served it so, like "flex"; a request for what no rule names is a 400.
    pub(super) service_tier: Option<String>,
    /// At this speed, like "fast".
    pub(super) speed: Option<String>,
    /// In this part of the world, like "us".
    pub(super) inference_geo: Option<String>,
    /// Base prices.
    pub(super) usdt_mtok: Option<RawUsdt>,
}

/// `[[account_group]]`
#[derive(Default, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields, expecting = "a table")]
pub(super) struct RawAccountGroup {
    /// Its name, for price rules.
    pub(super) name: Option<String>,
    /// The accounts' ids; some may not be there yet.
    pub(super) accounts: Vec<String>,
}

/// `[[price_rule]]`: what some accounts pay for some models
#[derive(Default, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields, expecting = "a table")]
pub(super) struct RawCustomerRule {
    /// Its name: receipts say it, to callers too.
    pub(super) name: Option<String>,
    /// For these accounts, or ["*"] for all that no other rule is for.
    pub(super) accounts: Vec<String>,
    /// For the accounts of these groups.
    pub(super) groups: Vec<String>,
    /// For these models: ids, beginnings like "gpt-5-*", or "*".
    pub(super) models: Vec<String>,
    /// Price = usdt_mtok × rate × this; tariff.sell_rate_multiplier.
    pub(super) sell_rate_multiplier: Option<String>,
    /// Base prices in place of the models' own, with the same classes; the models' own.
    pub(super) usdt_mtok: Option<RawUsdt>,
    /// Beside usdt_mtok: base prices under conditions, at least under those that the models have.
    pub(super) price_rules: Vec<RawPriceRule>,
}

/// `model.routes[]`
#[derive(Default, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields, expecting = "a table")]
pub(super) struct RawRoute {
    /// The vendor's name.
    pub(super) vendor: Option<String>,
    /// The vendor's name for the model; the id.
    pub(super) model: Option<String>,
    /// Its share among routes of one priority; 1.
    pub(super) weight: Option<u64>,
    /// The lowest is tried first; 0.
    pub(super) priority: Option<u64>,
    /// What the vendor takes, USDT per million tokens; absent: not known. Callers are not told.
    pub(super) cost_usdt_mtok: Option<RawUsdt>,
    /// What it takes under a condition instead: each with the same classes as cost_usdt_mtok.
    pub(super) cost_rules: Vec<RawPriceRule>,
    /// Where a ceiling of ours is written: "max_completion_tokens" or "max_tokens"; absent: as of the model.
    pub(super) output_field: Option<String>,
    /// Who speaks instructions: "system" or "developer"; absent: as of the model.
    pub(super) system_role: Option<String>,
    /// false: reasoning_effort is dropped; absent: as of the model.
    pub(super) reasoning_effort: Option<bool>,
    /// false: temperature, top_p and top_k are dropped; absent: as of the model.
    pub(super) sampling: Option<bool>,
    /// How thinking is asked for: "effort", "budget" or "none"; absent: as of the model.
    pub(super) thinking: Option<String>,
    /// false: a wish for structured output is a 400; absent: as of the model.
    pub(super) json_schema: Option<bool>,
    /// true: verbosity is passed on in the chat format; absent: as of the model.
    pub(super) verbosity: Option<bool>,
    /// false: a vendor of the responses format is not asked to sum its reasoning up; absent: as of the model.
    pub(super) reasoning_summary: Option<bool>,
    /// false: it is not asked to hand its reasoning out, encrypted; absent: as of the model.
    pub(super) encrypted_reasoning: Option<bool>,
}

/// The switches of a dialect, of a model or a route: `serde(flatten)` would let unknown fields pass.
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
        }
    }
}
