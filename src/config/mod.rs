//! `tollgate.toml`: read once into types that cannot be wrong, all mistakes reported together.
//!
//! The file's shape is `raw`, what it means is `check` and `vendor`, and where secrets come from is
//! `secret`.

use std::{fmt, net::SocketAddr, path::Path, path::PathBuf, sync::Arc, time::Duration};

use bytes::Bytes;
use http::{Method, Uri};
use ipnet::IpNet;
use rust_decimal::Decimal;
use secrecy::SecretString;
use sha2::{Digest, Sha256};
use tollgate_layers::{model::Route, redis_conn::RedisUrl, reserve::HoldMode, respond::Language};

use crate::{select_json::Selector, server::ConnectionLimits};

mod check;
mod error;
mod raw;
mod secret;
mod vendor;

pub use error::{ConfigError, ConfigErrors};

/// The whole configuration.
#[derive(Clone, Debug)]
pub struct Config {
    /// Where callers connect.
    pub listen: SocketAddr,
    /// The path segment of the catalog: `GET /v1/<service>/models`.
    pub service: String,
    /// The address that the catalog shows; it ends in `/v1`.
    pub base_url: String,
    /// The language of texts for people.
    pub language: Language,
    /// Peers whose `x-forwarded-for` is believed.
    pub trusted_proxies: Vec<IpNet>,
    /// The operator's listener, if there is one.
    pub admin: Option<AdminConfig>,
    /// Where money is kept and how much of it a call holds.
    pub ledger: LedgerConfig,
    /// Limits.
    pub limits: Limits,
    /// The part that can be swapped while calls run.
    pub live: LiveConfig,
}

impl Config {
    /// Reads a file, with the secrets of this process' environment.
    ///
    /// # Errors
    /// Every mistake in it.
    pub fn load(path: &Path) -> Result<Self, ConfigErrors> {
        match std::fs::read_to_string(path) {
            Ok(text) => Self::parse(&text, &|name| std::env::var(name).ok()),
            Err(error) => {
                let mut errors = error::Errors::default();
                errors.add("", format!("cannot read {}: {error}", path.display()));
                Err(errors.finish(|_| None))
            }
        }
    }

    /// Reads a text; `env` looks variables of the environment up.
    ///
    /// # Errors
    /// Every mistake in it.
    pub fn parse(text: &str, env: &dyn Fn(&str) -> Option<String>) -> Result<Self, ConfigErrors> {
        let mut errors = error::Errors::default();
        let Some(document) = raw::Document::parse(text, &mut errors) else {
            return Err(errors.finish(|_| None));
        };
        let raw = document.read(&mut errors);
        let mut check = check::Check { errors, env };
        match check.config(raw) {
            Some(config) if check.errors.is_empty() => Ok(config),
            _ => Err(check.errors.finish(|path| document.line_of(path))),
        }
    }
}

/// `[admin]`: the operator's listener.
#[derive(Clone, Debug)]
pub struct AdminConfig {
    /// Where it listens; loopback by default.
    pub listen: SocketAddr,
    /// What operators show.
    pub key: SecretString,
}

/// `[ledger]`.
#[derive(Clone, Debug)]
pub struct LedgerConfig {
    /// Which store.
    pub url: LedgerUrl,
    /// How input is bounded.
    pub hold: HoldMode,
    /// Tokens that an image is held for.
    pub image_tokens: u64,
    /// Tokens that a document is held for.
    pub document_tokens: u64,
    /// How long a hold outlives the longest call.
    pub hold_grace: Duration,
    /// Where a gateway keeps what it has still to tell a ledger on another machine.
    pub outbox: OutboxConfig,
}

/// What begins with `outbox` in `[ledger]`. A ledger on this machine needs none.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OutboxConfig {
    /// The file: one for each gateway.
    pub path: PathBuf,
    /// Charges that may wait for the ledger.
    pub calls_max: usize,
    /// How long a charge may wait before this node is not ready.
    pub age_max: Duration,
}

/// Which store the ledger is.
#[derive(Clone, PartialEq, Eq)]
pub enum LedgerUrl {
    /// `memory:`: gone with the process.
    Memory,
    /// `sqlite:PATH`.
    Sqlite(PathBuf),
    /// `redis://`, `redis-sentinel://` or `redis-cluster://`, or one of them with TLS (`rediss…`), whole;
    /// it may carry a password.
    Redis(String),
}

impl LedgerUrl {
    /// Reads a ledger's address as `ledger.url` is read: one with a password comes as `${NAME}` or
    /// `file:/path`.
    ///
    /// # Errors
    /// What is wrong with it, without repeating it.
    pub fn read(text: &str) -> Result<Self, String> {
        check::ledger_url(text, &|name| std::env::var(name).ok())
    }

    /// Which store, in a word.
    #[must_use]
    pub const fn kind(&self) -> &'static str {
        match self {
            Self::Memory => "memory",
            Self::Sqlite(_) => "sqlite",
            Self::Redis(_) => "redis",
        }
    }
}

/// Says which store, and nothing that could be a password.
impl fmt::Debug for LedgerUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Memory => f.write_str("Memory"),
            Self::Sqlite(path) => f.debug_tuple("Sqlite").field(path).finish(),
            Self::Redis(url) => {
                let hosts =
                    RedisUrl::parse(url).map_or_else(|_| "…".to_owned(), |url| url.to_string());
                f.debug_tuple("Redis").field(&hosts).finish()
            }
        }
    }
}

/// `[limits]`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Catalog requests a second from one address.
    pub catalog_requests_per_second: u32,
    /// Other requests a second from one address; `None`: as many as come.
    pub requests_per_second: Option<u32>,
    /// Unknown keys a second that one address may show; beyond it, it is not told any more.
    pub unknown_keys_per_second: u32,
    /// Unknown keys that one address may show at once.
    pub unknown_keys_burst: u32,
    /// Bytes of path and query.
    pub uri_bytes_max: usize,
    /// Most requests at a time.
    pub in_flight_max: usize,
    /// Most bytes of a request's body.
    pub body_bytes_max: u64,
    /// Most bytes of all requests' bodies that are kept at a time.
    pub body_bytes_in_flight_max: u64,
    /// Time for a request's body.
    pub body_timeout: Duration,
    /// Bytes of a request's body that must come each second.
    pub body_rate_min: u64,
    /// Most bytes of an answer that is kept as a whole.
    pub answer_bytes_max: usize,
    /// Most messages of a request.
    pub messages_max: u64,
    /// How patient the server is with connections.
    pub connections: ConnectionLimits,
    /// The longest that a call may take.
    pub call_time_max: Duration,
    /// Time for running calls when the process is told to stop.
    pub drain_timeout: Duration,
}

/// What can be swapped while calls run: models, their prices and ways to vendors.
#[derive(Clone, Debug)]
pub struct LiveConfig {
    /// Where the exchange rate comes from.
    pub rate: RateConfig,
    /// What stands between the exchange rate and the price.
    pub tariff: Tariff,
    /// Models in the order of the catalog. Never empty; ids differ.
    pub models: Vec<ModelConfig>,
}

impl LiveConfig {
    /// A digest of what a tariff version covers: base prices and the multiplier. It stays the same
    /// when models are only reordered, or written with other zeros.
    #[must_use]
    pub fn fingerprint(&self) -> String {
        let mut lines: Vec<String> = self
            .models
            .iter()
            .map(ModelConfig::fingerprint_line)
            .collect();
        lines.sort();
        lines.insert(
            0,
            format!(
                "sell_rate_multiplier {}",
                self.tariff.sell_rate_multiplier.normalize()
            ),
        );
        let digest = Sha256::digest(lines.join("\n"));
        digest.iter().map(|byte| format!("{byte:02x}")).collect()
    }
}

/// `[tariff]`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Tariff {
    /// Price = base price × exchange rate × this. Above zero.
    pub sell_rate_multiplier: Decimal,
}

/// `[rate]`: rubles for one USDT.
#[derive(Clone, Debug)]
pub struct RateConfig {
    /// How old a measured rate may be.
    pub age_max: Duration,
    /// Time between two looks.
    pub refresh: Duration,
    /// The largest change between two looks that is believed, in percent.
    pub step_max_percent: Decimal,
    /// Sources in the order of trust. Never empty.
    pub sources: Vec<RateSource>,
}

/// `[[rate.source]]`.
#[derive(Clone, Debug)]
pub enum RateSource {
    /// The operator's word.
    Fixed(Decimal),
    /// A number in a JSON answer.
    Http(Box<HttpSource>),
}

/// A number in a JSON answer.
#[derive(Clone)]
pub struct HttpSource {
    /// Whom to ask; it may carry a key.
    pub url: Uri,
    /// `GET` or `POST`.
    pub method: Method,
    /// What to send; JSON if not empty.
    pub body: Bytes,
    /// Where the number stands.
    pub select: Selector,
    /// The least number that is believed.
    pub min: Option<Decimal>,
    /// The largest number that is believed.
    pub max: Option<Decimal>,
}

impl HttpSource {
    /// The host: what logs may say about the address.
    #[must_use]
    pub fn host(&self) -> &str {
        self.url.host().unwrap_or_default()
    }
}

/// Without the address, whose query may be a key.
impl fmt::Debug for HttpSource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("HttpSource")
            .field("host", &self.host())
            .field("select", &self.select)
            .field("min", &self.min)
            .field("max", &self.max)
            .finish_non_exhaustive()
    }
}

/// `[[model]]`.
#[derive(Clone, Debug)]
pub struct ModelConfig {
    /// Name in the request field `model`.
    pub id: String,
    /// Family name, for people.
    pub family: String,
    /// Base prices.
    pub usdt_mtok: UsdtRates,
    /// Most output tokens that it can be asked for.
    pub output_tokens_max: u64,
    /// Fewest output tokens worth a call when funds are short.
    pub output_tokens_min: u64,
    /// Its context window, if known.
    pub input_tokens_max: Option<u64>,
    /// Whether a conversation stays on its route.
    pub sticky: bool,
    /// Ways to a vendor, by priority. Never empty; no two lead to the same model of the same vendor.
    pub routes: Vec<Arc<Route>>,
}

impl ModelConfig {
    fn fingerprint_line(&self) -> String {
        let UsdtRates {
            input,
            cached_input,
            output,
            cache_write,
        } = self.usdt_mtok;
        let [input, cached_input, output, cache_write] =
            [input, cached_input, output, cache_write].map(|rate| rate.normalize());
        format!(
            "{:?} {input} {cached_input} {output} {cache_write}",
            self.id
        )
    }
}

/// Base prices: USDT per million tokens, each above zero.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct UsdtRates {
    /// Ordinary input.
    pub input: Decimal,
    /// Input read from the vendor's cache.
    pub cached_input: Decimal,
    /// Output, reasoning included.
    pub output: Decimal,
    /// Input written to the vendor's cache.
    pub cache_write: Decimal,
}

#[cfg(test)]
mod tests {
    use secrecy::ExposeSecret;
    use tollgate_layers::{
        call::Format,
        model::{Dialect, OnDisconnect, OutputField, Protocol, Thinking},
    };

    use super::*;

    const EXAMPLE: &str = include_str!("../../deploy/tollgate.toml");

    const SMALL: &str = r#"
        [admin]
        key = "${ADMIN_KEY}"
        [[rate.source]]
        fixed = "90.50"
        [[vendor]]
        name = "v"
        format = "chat"
        url = "http://127.0.0.1:9/v1/"
        key = "${VENDOR_KEY}"
        [[model]]
        id = "m"
        family = "M"
        usdt_mtok = { input = "0.25", cached_input = "0.025", output = "2.00", cache_write = "0.25" }
        output_tokens_max = 128000
        routes = [ { vendor = "v", model = "m-1" } ]
    "#;

    fn env(name: &str) -> Option<String> {
        let value = match name {
            "ADMIN_KEY" | "TOLLGATE_ADMIN_KEY" => "admin-secret-0123456789",
            "VENDOR_KEY" | "OPENAI_API_KEY" | "ANTHROPIC_API_KEY" => "sk-vendor-secret",
            "SHORT_KEY" => "0123456789abcde",
            "LEDGER_URL" => "redis://:hunter2@db:6379/0",
            "PROXY_URL" => "http://user:hunter2@proxy:3128",
            _ => return None,
        };
        Some(value.to_owned())
    }

    fn parse(text: &str) -> Result<Config, ConfigErrors> {
        Config::parse(text, &env)
    }

    /// `SMALL` with one line changed.
    fn changed(from: &str, to: &str) -> String {
        assert!(SMALL.contains(from), "{from}");
        SMALL.replacen(from, to, 1)
    }

    #[test]
    fn the_example_is_accepted() {
        let config = parse(EXAMPLE).unwrap_or_else(|errors| panic!("{errors}"));
        assert_eq!(config.service, "tollgate");
        assert_eq!(config.limits.catalog_requests_per_second, 10);
        assert!(config.admin.expect("admin").listen.ip().is_loopback());
    }

    #[test]
    fn absent_fields_have_their_defaults() {
        let config = parse(SMALL).unwrap();
        assert_eq!(config.listen.to_string(), "127.0.0.1:8080");
        assert_eq!(config.base_url, "http://127.0.0.1:8080/v1");
        assert_eq!(config.ledger.url, LedgerUrl::Sqlite("tollgate.db".into()));
        assert_eq!(
            (config.ledger.image_tokens, config.ledger.document_tokens),
            (5_000, 50_000)
        );
        assert_eq!(config.ledger.hold_grace, Duration::from_secs(60));
        assert_eq!(
            config.ledger.outbox,
            OutboxConfig {
                path: "tollgate-outbox.db".into(),
                calls_max: 100_000,
                age_max: Duration::from_secs(3600),
            }
        );
        assert_eq!(
            config.limits,
            Limits {
                catalog_requests_per_second: 10,
                requests_per_second: None,
                unknown_keys_per_second: 10,
                unknown_keys_burst: 300,
                uri_bytes_max: 2048,
                in_flight_max: 10_000,
                body_bytes_max: 33_554_432,
                body_bytes_in_flight_max: 536_870_912,
                body_timeout: Duration::from_secs(60),
                body_rate_min: 1024,
                answer_bytes_max: 67_108_864,
                messages_max: 10_000,
                connections: ConnectionLimits::default(),
                call_time_max: Duration::from_secs(900),
                drain_timeout: Duration::from_secs(30),
            }
        );
        let rate = &config.live.rate;
        assert_eq!((rate.age_max.as_secs(), rate.refresh.as_secs()), (600, 60));
        assert_eq!(config.live.tariff.sell_rate_multiplier, Decimal::ONE);
        let admin = config.admin.unwrap();
        assert_eq!(admin.listen.to_string(), "127.0.0.1:8081");
        assert_eq!(admin.key.expose_secret(), "admin-secret-0123456789");
    }

    #[test]
    fn a_route_leads_to_the_vendors_endpoint_with_its_key() {
        for (format, url, endpoint, credential) in [
            (
                "chat",
                "http://127.0.0.1:9/v1/",
                "http://127.0.0.1:9/v1/chat/completions",
                "Bearer sk-vendor-secret",
            ),
            (
                "messages",
                "https://api.example",
                "https://api.example/v1/messages",
                "sk-vendor-secret",
            ),
        ] {
            let text = changed("format = \"chat\"", &format!("format = \"{format}\""));
            let config = parse(&text.replacen("http://127.0.0.1:9/v1/", url, 1)).unwrap();
            let model = &config.live.models[0];
            assert_eq!(
                (model.output_tokens_max, model.output_tokens_min),
                (128_000, 256)
            );
            let route = &model.routes[0];
            assert_eq!(
                (route.model.as_str(), route.weight, route.priority),
                ("m-1", 1, 0)
            );
            let vendor = &route.vendor;
            assert_eq!(vendor.format == Format::Chat, format == "chat");
            assert_eq!(vendor.endpoint.to_string(), endpoint);
            assert_eq!(vendor.credentials, [credential]);
            assert!(vendor.credentials[0].is_sensitive());
            assert_eq!(vendor.on_disconnect, OnDisconnect::Cancel);
            let seconds = [
                vendor.egress.connect_timeout,
                vendor.first_byte_timeout,
                vendor.plain_timeout,
                vendor.head_timeout,
                vendor.idle_timeout,
                vendor.egress.idle_connection_timeout,
            ]
            .map(|time| time.as_secs());
            assert_eq!(seconds, [3, 120, 900, 30, 120, 50]);
            assert_eq!(vendor.egress.protocol, Protocol::Http1);
            assert!(vendor.egress.proxy.is_none() && vendor.egress.authorities.is_none());
            assert!(!model.sticky);
        }
    }

    #[test]
    fn routes_stand_by_priority_and_a_route_differs_from_its_model_where_it_says_so() {
        let text = changed(
            "routes = [ { vendor = \"v\", model = \"m-1\" } ]",
            r#"sticky = true
            output_field = "max_tokens"
            sampling = false
            routes = [
                { vendor = "v", model = "last", priority = 2, output_field = "max_completion_tokens", thinking = "budget" },
                { vendor = "w", model = "m-1", weight = 7 },
                { vendor = "v", model = "m-1" },
            ]"#,
        );
        let text = format!(
            "{text}\n[[vendor]]\nname = \"w\"\nformat = \"messages\"\nurl = \"http://h\"\nkey = \"${{VENDOR_KEY}}\"\n"
        );
        let config = parse(&text).unwrap_or_else(|errors| panic!("{errors}"));
        let model = &config.live.models[0];
        assert!(model.sticky);
        let places: Vec<_> = model
            .routes
            .iter()
            .map(|route| (&*route.vendor.name, route.model.as_str(), route.weight))
            .collect();
        assert_eq!(places, [("w", "m-1", 7), ("v", "m-1", 1), ("v", "last", 1)]);
        let usual = Dialect::default()
            .output_field(OutputField::MaxTokens)
            .sampling(false);
        let other = usual
            .output_field(OutputField::MaxCompletionTokens)
            .thinking(Thinking::Budget);
        let dialects: Vec<_> = model.routes.iter().map(|route| route.dialect).collect();
        assert_eq!(dialects, [usual, usual, other]);
    }

    #[test]
    fn a_vendor_may_have_several_keys() {
        let keys = "keys = [\"${VENDOR_KEY}\", \"${ADMIN_KEY}\"]";
        let config = parse(&changed("key = \"${VENDOR_KEY}\"", keys)).unwrap();
        let vendor = &config.live.models[0].routes[0].vendor;
        assert_eq!(
            vendor.credentials,
            ["Bearer sk-vendor-secret", "Bearer admin-secret-0123456789"]
        );
        assert!(
            vendor
                .credentials
                .iter()
                .all(http::HeaderValue::is_sensitive)
        );
    }

    #[test]
    fn how_connections_are_made_is_the_vendors() {
        let of = |lines: &str, url: &str| {
            let text = changed("name = \"v\"", &format!("name = \"v\"\n{lines}"));
            let config = parse(&text.replacen("http://127.0.0.1:9/v1/", url, 1));
            let config = config.unwrap_or_else(|errors| panic!("{errors}"));
            Arc::clone(&config.live.models[0].routes[0].vendor.egress)
        };
        let (http, https) = ("http://h/v1", "https://h/v1");
        let proxy = of("proxy = \"${PROXY_URL}\"", https).proxy.clone();
        assert_eq!(proxy.unwrap().expose(), "http://user:hunter2@proxy:3128");
        assert_eq!(of("http2 = true", https).protocol, Protocol::Http2Offered);
        assert_eq!(of("http2 = true", http).protocol, Protocol::Http2);
        assert_eq!(of("proxy = \"\"\nca_file = \"\"", http), of("", http));
        assert_ne!(of("connect_seconds = 4", http), of("", http));
    }

    #[test]
    fn every_mistake_is_named_with_its_field() {
        for (from, to, path, word) in [
            ("[admin]", "listen = \"8080\"\n[admin]", "listen", "address"),
            ("[admin]", "listen = 8080\n[admin]", "listen", "text"),
            (
                "[admin]",
                "lisen = \"127.0.0.1:80\"\n[admin]",
                "lisen",
                "unknown field",
            ),
            ("[admin]", "service = \"Chat\"\n[admin]", "service", "a-z"),
            (
                "[admin]",
                "service = \"messages\"\n[admin]",
                "service",
                "taken",
            ),
            (
                "[admin]",
                "base_url = \"http://h/api\"\n[admin]",
                "base_url",
                "/v1",
            ),
            (
                "[admin]",
                "language = \"de\"\n[admin]",
                "language",
                "\"ru\"",
            ),
            (
                "[admin]",
                "trusted_proxies = [\"10.0.0.0/8\", \"ten\"]\n[admin]",
                "trusted_proxies[1]",
                "CIDR",
            ),
            (
                "[admin]",
                "trusted_proxies = [1]\n[admin]",
                "trusted_proxies",
                "text",
            ),
            (
                "key = \"${ADMIN_KEY}\"",
                "key = \"0123456789abcdef0123456789abcdef\"",
                "admin.key",
                "${NAME}",
            ),
            (
                "key = \"${ADMIN_KEY}\"",
                "key = \"${NO_SUCH}\"",
                "admin.key",
                "NO_SUCH",
            ),
            (
                "key = \"${ADMIN_KEY}\"",
                "key = \"${SHORT_KEY}\"",
                "admin.key",
                "at least 16",
            ),
            ("key = \"${ADMIN_KEY}\"", "", "admin.key", "missing"),
            (
                "key = \"${ADMIN_KEY}\"",
                "key = \"${ADMIN_KEY}\"\nlisten = \"127.0.0.1:8080\"",
                "admin.listen",
                "same",
            ),
            (
                "[admin]",
                "[ledger]\nurl = \"redis-cluster://a:1,,b:2\"\n[admin]",
                "ledger.url",
                "a:7000,b:7001",
            ),
            (
                "[admin]",
                "[ledger]\nurl = \"redis-cluster://a:1/2\"\n[admin]",
                "ledger.url",
                "database 0 only",
            ),
            (
                "[admin]",
                "[ledger]\nurl = \"redis-cluster://:hunter2@a:1\"\n[admin]",
                "ledger.url",
                "password",
            ),
            (
                "[admin]",
                "[ledger]\nurl = \"rediss-sentinel://a,b\"\n[admin]",
                "ledger.url",
                "/mymaster",
            ),
            (
                "[admin]",
                "[ledger]\nurl = \"redis-ring://a\"\n[admin]",
                "ledger.url",
                "redis-cluster://",
            ),
            (
                "[admin]",
                "[ledger]\nurl = \"redis://\"\n[admin]",
                "ledger.url",
                "redis://user:password@host:port",
            ),
            (
                "[admin]",
                "[ledger]\nurl = \"postgres://a\"\n[admin]",
                "ledger.url",
                "sqlite:PATH",
            ),
            (
                "[admin]",
                "[ledger]\nurl = \"redis://:hunter2@h\"\n[admin]",
                "ledger.url",
                "password",
            ),
            (
                "[admin]",
                "[ledger]\nhold = \"loose\"\n[admin]",
                "ledger.hold",
                "\"strict\"",
            ),
            (
                "[admin]",
                "[limits]\nin_flight_max = 0\n[admin]",
                "limits.in_flight_max",
                "1 to",
            ),
            (
                "[admin]",
                "[limits]\nin_flight_max = \"9\"\n[admin]",
                "limits.in_flight_max",
                "whole number",
            ),
            (
                "[admin]",
                "[tariff]\nsell_rate_multiplier = 1.15\n[admin]",
                "tariff.sell_rate_multiplier",
                "quotes",
            ),
            (
                "[admin]",
                "[tariff]\nsell_rate_multiplier = \"0\"\n[admin]",
                "tariff.sell_rate_multiplier",
                "above 0",
            ),
            (
                "[admin]",
                "[rate]\nstep_max_percent = \"-1\"\n[admin]",
                "rate.step_max_percent",
                "above 0",
            ),
            (
                "[admin]",
                "[rate]\nrefresh_seconds = 700\n[admin]",
                "rate.refresh_seconds",
                "max_age_seconds",
            ),
            (
                "fixed = \"90.50\"",
                "fixed = \"ninety\"",
                "rate.source[0].fixed",
                "decimal",
            ),
            (
                "fixed = \"90.50\"",
                "fixed = \"90\"\nurl = \"http://h\"",
                "rate.source[0]",
                "one of them",
            ),
            ("fixed = \"90.50\"", "", "rate.source[0]", "fixed"),
            (
                "fixed = \"90.50\"",
                "url = \"http://h\"",
                "rate.source[0].select",
                "missing",
            ),
            (
                "fixed = \"90.50\"",
                "url = \"http://h\"\nselect = \"a\"",
                "rate.source[0].select",
                "begin",
            ),
            (
                "fixed = \"90.50\"",
                "url = \"ftp://h\"\nselect = \"/a\"",
                "rate.source[0].url",
                "http",
            ),
            (
                "fixed = \"90.50\"",
                "url = \"http://h\"\nselect = \"/a\"\nmin = \"9\"\nmax = \"1\"",
                "rate.source[0].min",
                "max",
            ),
            ("name = \"v\"", "", "vendor[0].name", "missing"),
            (
                "format = \"chat\"",
                "format = \"grpc\"",
                "vendor[0].format",
                "\"messages\"",
            ),
            (
                "http://127.0.0.1:9/v1/",
                "http://user:hunter2@h/v1",
                "vendor[0].url",
                "key",
            ),
            (
                "http://127.0.0.1:9/v1/",
                "http://h/v1?a=b",
                "vendor[0].url",
                "?",
            ),
            (
                "key = \"${VENDOR_KEY}\"",
                "key = 5",
                "vendor[0].key",
                "text",
            ),
            (
                "name = \"v\"",
                "name = \"v\"\nproxy = \"http://user:hunter2@p:1\"",
                "vendor[0].proxy",
                "${NAME}",
            ),
            (
                "name = \"v\"",
                "name = \"v\"\nproxy = \"p:1\"",
                "vendor[0].proxy",
                "socks5://",
            ),
            (
                "name = \"v\"",
                "name = \"v\"\nca_file = \"ca.pem\"",
                "vendor[0].ca_file",
                "https",
            ),
            (
                "name = \"v\"\n        format = \"chat\"\n        url = \"http://127.0.0.1:9/v1/\"",
                "name = \"v\"\nformat = \"chat\"\nurl = \"https://h\"\nca_file = \"/no/such/ca.pem\"",
                "vendor[0].ca_file",
                "cannot read /no/such/ca.pem",
            ),
            (
                "name = \"v\"\n        format = \"chat\"\n        url = \"http://127.0.0.1:9/v1/\"",
                "name = \"v\"\nformat = \"chat\"\nurl = \"https://h\"\nca_file = \"Cargo.toml\"",
                "vendor[0].ca_file",
                "no certificate",
            ),
            (
                "name = \"v\"",
                "name = \"v\"\nhttp2 = \"yes\"",
                "vendor[0].http2",
                "true or false",
            ),
            (
                "name = \"v\"",
                "name = \"v\"\nidle_connection_seconds = 0",
                "vendor[0].idle_connection_seconds",
                "1 to 3600",
            ),
            (
                "key = \"${VENDOR_KEY}\"",
                "key = \"${VENDOR_KEY}\"\nkeys = [\"${VENDOR_KEY}\"]",
                "vendor[0].keys",
                "keep one of them",
            ),
            (
                "key = \"${VENDOR_KEY}\"",
                "keys = []",
                "vendor[0].keys",
                "1 to",
            ),
            (
                "key = \"${VENDOR_KEY}\"",
                "keys = [\"${VENDOR_KEY}\", \"0123456789abcdef\"]",
                "vendor[0].keys[1]",
                "${NAME}",
            ),
            (
                "key = \"${VENDOR_KEY}\"",
                "keys = [\"${VENDOR_KEY}\", \"${ADMIN_KEY}\", \"${VENDOR_KEY}\"]",
                "vendor[0].keys[2]",
                "keys[0]",
            ),
            (
                "name = \"v\"",
                "name = \"v\"\non_disconnect = \"hold\"",
                "vendor[0].on_disconnect",
                "\"drain\"",
            ),
            (
                "name = \"v\"",
                "name = \"v\"\nconnect_seconds = -3",
                "vendor[0].connect_seconds",
                "-3",
            ),
            ("id = \"m\"", "id = \"\"", "model[0].id", "missing"),
            ("family = \"M\"", "", "model[0].family", "missing"),
            (
                ", cache_write = \"0.25\"",
                "",
                "model[0].usdt_mtok.cache_write",
                "without a full price",
            ),
            (
                "cache_write = \"0.25\"",
                "cache_write = \"0\"",
                "model[0].usdt_mtok.cache_write",
                "above 0",
            ),
            (
                "input = \"0.25\"",
                "input = 0.25",
                "model[0].usdt_mtok.input",
                "quotes",
            ),
            (
                "input = \"0.25\"",
                "inputs = \"0.25\"",
                "model[0].usdt_mtok.inputs",
                "unknown field",
            ),
            (
                "output_tokens_max = 128000",
                "",
                "model[0].output_tokens_max",
                "missing",
            ),
            (
                "family = \"M\"",
                "family = \"M\"\noutput_tokens_min = 200000",
                "model[0].output_tokens_min",
                "128000",
            ),
            (
                "vendor = \"v\"",
                "vendor = \"w\"",
                "model[0].routes[0].vendor",
                "\"w\": did you mean \"v\"?",
            ),
            (
                "vendor = \"v\"",
                "vendor = \"anthropic\"",
                "model[0].routes[0].vendor",
                "add it",
            ),
            (
                "model = \"m-1\" }",
                "model = \"m-1\" }, { vendor = \"v\", model = \"m-1\", weight = 2 }",
                "model[0].routes[1]",
                "routes[0]",
            ),
            (
                "model = \"m-1\" }",
                "model = \"m-1\", thinking = \"hard\" }",
                "model[0].routes[0].thinking",
                "\"budget\"",
            ),
            (
                "model = \"m-1\"",
                "model = \"m-1\", weight = 0",
                "model[0].routes[0].weight",
                "1 to",
            ),
            (
                "[ { vendor = \"v\", model = \"m-1\" } ]",
                "[]",
                "model[0].routes",
                "missing",
            ),
            (
                "[admin]",
                "[limits]\nbody_bytes_in_flight_max = 1000\n[admin]",
                "limits.body_bytes_in_flight_max",
                "body_bytes_max",
            ),
            (
                "[admin]",
                "[limits]\nh2_stream_window_bytes = 1000\n[admin]",
                "limits.h2_stream_window_bytes",
                "65535",
            ),
            (
                "[admin]",
                "[limits]\nhead_bytes_max = 100\n[admin]",
                "limits.head_bytes_max",
                "4096",
            ),
        ] {
            let errors = parse(&changed(from, to)).expect_err(to);
            let found = errors.iter().find(|error| error.path == path);
            let found = found.unwrap_or_else(|| panic!("{to}: no {path} in\n{errors}"));
            assert!(found.problem.contains(word), "{to}: {found}");
            assert!(found.line.is_some(), "{to}: {found}");
            let shown = format!("{errors} {errors:?}");
            for secret in ["hunter2", "0123456789abcdef", "sk-vendor-secret"] {
                assert!(!shown.contains(secret), "{shown}");
            }
        }
    }

    #[test]
    fn all_mistakes_are_told_at_once_each_with_its_line() {
        let text = concat!(
            "listen = 8080\n",
            "languge = \"ru\"\n",
            "[limits]\n",
            "in_flight_max = \"many\"\n",
            "body_bytes_max = 0\n",
            "[[vendor]]\n",
            "name = \"v\"\n",
            "format = \"chat\"\n",
            "url = \"nowhere\"\n",
            "key = \"sk-literal\"\n",
            "[[vendor]]\n",
            "name = \"v\"\n",
            "[[model]]\n",
            "id = \"m\"\n",
            "usdt_mtok = { input = 1.0, output = \"0\" }\n",
        );
        let errors = parse(text).unwrap_err();
        let shown = errors.to_string();
        for start in [
            "line 1: listen: ",
            "line 2: languge: ",
            "line 4: limits.in_flight_max: ",
            "line 5: limits.body_bytes_max: ",
            "line 9: vendor[0].url: ",
            "line 10: vendor[0].key: ",
            "line 12: vendor[1].name: ",
            "line 11: vendor[1].format: ",
            "line 13: model[0].family: ",
            "line 15: model[0].usdt_mtok.input: ",
            "line 15: model[0].usdt_mtok.output: ",
            "line 15: model[0].usdt_mtok.cache_write: ",
        ] {
            assert!(
                shown.lines().any(|line| line.starts_with(start)),
                "{start} is not in\n{shown}"
            );
        }
        assert!(
            shown
                .lines()
                .any(|line| line.contains("rate.source: missing")),
            "{shown}"
        );
        assert!(!shown.contains("sk-literal"), "{shown}");
        assert_eq!(shown.lines().count(), errors.iter().count());
        assert_eq!(shown.matches("usdt_mtok.input:").count(), 1, "{shown}");
    }

    #[test]
    fn a_text_that_is_not_toml_is_refused_with_the_line_but_not_its_text() {
        let errors = parse("listen = \"127.0.0.1:80\"\nkey = sk-literal oops\n").unwrap_err();
        let shown = errors.to_string();
        assert!(shown.starts_with("line 2: not TOML: "), "{shown}");
        assert!(!shown.contains("sk-literal"), "{shown}");
    }

    #[test]
    fn duplicate_models_and_vendors_are_refused() {
        let twice = format!("{SMALL}\n{}", &SMALL[SMALL.find("[[vendor]]").unwrap()..]);
        let errors = parse(&twice).unwrap_err();
        let paths: Vec<_> = errors.iter().map(|error| error.path.as_str()).collect();
        assert_eq!(paths, ["vendor[1].name", "model[1].id"], "{errors}");
    }

    #[test]
    fn a_file_that_is_not_there_is_named() {
        let errors = Config::load(Path::new("/no/such/tollgate.toml")).unwrap_err();
        assert!(
            errors.to_string().contains("/no/such/tollgate.toml"),
            "{errors}"
        );
    }

    #[test]
    fn ledger_urls() {
        for (text, url) in [
            ("memory:", LedgerUrl::Memory),
            ("sqlite:a/b.db", LedgerUrl::Sqlite("a/b.db".into())),
            (
                "redis://host:6379/0",
                LedgerUrl::Redis("redis://host:6379/0".into()),
            ),
            ("rediss://host", LedgerUrl::Redis("rediss://host".into())),
            (
                "redis-sentinel://a,b:26380/mymaster",
                LedgerUrl::Redis("redis-sentinel://a,b:26380/mymaster".into()),
            ),
            (
                "rediss-cluster://a:7000,b:7001",
                LedgerUrl::Redis("rediss-cluster://a:7000,b:7001".into()),
            ),
            (
                "${LEDGER_URL}",
                LedgerUrl::Redis("redis://:hunter2@db:6379/0".into()),
            ),
        ] {
            let config = parse(&changed(
                "[admin]",
                &format!("[ledger]\nurl = \"{text}\"\n[admin]"),
            ))
            .expect(text);
            assert_eq!(config.ledger.url, url);
        }
    }

    #[test]
    fn debug_shows_no_secret() {
        let text = changed("[admin]", "[ledger]\nurl = \"${LEDGER_URL}\"\n[admin]");
        let text = text.replacen("name = \"v\"", "name = \"v\"\nproxy = \"${PROXY_URL}\"", 1);
        let text = text.replace(
            "fixed = \"90.50\"",
            "url = \"https://rates.example/?key=query-secret\"\nselect = \"/rate\"",
        );
        let shown = format!("{:?}", parse(&text).unwrap());
        for secret in ["hunter2", "admin-secret", "sk-vendor", "query-secret"] {
            assert!(!shown.contains(secret), "{shown}");
        }
        assert!(
            shown.contains("rates.example") && shown.contains("db") && shown.contains("proxy:3128"),
            "{shown}"
        );
    }

    #[test]
    fn the_fingerprint_follows_prices_and_nothing_else() {
        let fingerprint = |text: &str| parse(text).unwrap().live.fingerprint();
        let first = fingerprint(SMALL);
        assert_eq!(first.len(), 64);
        for (from, to) in [
            ("output = \"2.00\"", "output = \"2\""),
            ("fixed = \"90.50\"", "fixed = \"91\""),
            ("family = \"M\"", "family = \"N\""),
            ("model = \"m-1\"", "model = \"m-2\""),
        ] {
            assert_eq!(fingerprint(&changed(from, to)), first, "{to}");
        }
        for (from, to) in [
            ("output = \"2.00\"", "output = \"2.01\""),
            ("id = \"m\"", "id = \"m2\""),
            (
                "[admin]",
                "[tariff]\nsell_rate_multiplier = \"1.15\"\n[admin]",
            ),
        ] {
            assert_ne!(fingerprint(&changed(from, to)), first, "{to}");
        }
    }
}
