//! Reads `tollgate.toml` once into types that can only be valid, and reports all mistakes together.
//!
//! `raw` has the file's shape; `check` checks the values, with a module per section; `secret` resolves secrets;
//! `settings` lists which changes a running gateway applies.

use std::{
    cell::RefCell, fmt, net::SocketAddr, path::Path, path::PathBuf, sync::Arc, time::Duration,
};

use bytes::Bytes;
use http::{HeaderMap, Method, Uri};
use ipnet::IpNet;
use rust_decimal::Decimal;
use secrecy::SecretString;
use tollgate_layers::{
    model::{ModelKind, Route},
    price::Condition,
    redis_conn::RedisUrl,
    reserve::HoldMode,
    respond::Language,
};

use self::secret::Env;
use crate::{
    edge::{cors::Origins, server::ConnectionLimits, tls::Identity},
    text::select_json::Selector,
};

mod cabinet;
mod check;
mod costs;
mod document;
pub(crate) mod edit;
mod error;
mod files;
mod idempotency;
mod ledger;
mod limits;
mod listen;
mod login;
mod model;
mod oidc;
mod payments;
mod preset_merge;
mod presets;
mod price_diff;
mod price_lists;
mod prices;
mod proxy;
mod rate;
mod raw;
mod receivers;
mod routes;
mod schema;
mod secret;
pub(crate) mod sections;
mod seller;
mod settings;
#[cfg(test)]
mod testing;
mod tls;
mod traces;
mod vendor;
mod webhooks;

pub use self::{
    cabinet::CabinetConfig,
    costs::RouteCostConfig,
    error::{ConfigError, ConfigErrors},
    files::Files,
    idempotency::IdempotencyConfig,
    oidc::OidcConfig,
    payments::{CloudPaymentsConfig, PaymentsConfig, ProviderSecret, StripeConfig, YooKassaConfig},
    presets::{About, LoginAbout, ModelAbout, Preset, ValueAbout, presets},
    price_diff::{PriceChange, PriceDiff, PriceSource},
    price_lists::{CustomerRule, PriceLists, Row},
    prices::{BaseRates, Tariff},
    receivers::{MailConfig, MailTls, ReceiverConfig, SmtpConfig, TelegramConfig, WayConfig},
    schema::schema,
    seller::SellerConfig,
    settings::need_restart,
    webhooks::WebhookConfig,
};
pub(crate) use self::{oidc::safe as safe_address, receivers::kind};

pub(crate) use self::payments::{is_email, is_whole_kopecks};
pub(crate) use self::prices::MULTIPLIER_MAX;

/// The whole configuration of a gateway, checked.
#[derive(Clone, Debug)]
pub struct Config {
    /// The file that the configuration was read from; `None`: it was given as a text.
    pub file: Option<PathBuf>,
    /// The address to which callers connect.
    pub listen: SocketAddr,
    /// Whether another process may listen on the same port (`SO_REUSEPORT`).
    pub reuse_port: bool,
    /// The path segment of the catalog: `GET /v1/<service>/models`.
    pub service: String,
    /// The gateway's address that the catalog shows; ends in `/v1`.
    pub base_url: String,
    /// The language of texts for people.
    pub language: Language,
    /// The networks whose `x-forwarded-for` header is trusted.
    pub trusted_proxies: Vec<IpNet>,
    /// Origins of web pages that may use keys from a browser.
    pub cors_origins: Origins,
    /// The interval at which the files are checked for changes; `None`: only on SIGHUP.
    pub reload_poll: Option<Duration>,
    /// The certificate and the key for TLS; `None` means plain HTTP.
    pub tls: Option<Identity>,
    /// The operators' listener; `None`: operators are not served.
    pub admin: Option<AdminConfig>,
    /// Where spans of calls are exported; `None`: spans are not exported.
    pub traces: Option<TracesConfig>,
    /// The receivers of events.
    pub receivers: Vec<ReceiverConfig>,
    /// Payments by customers; if `None`, only operators book payments.
    pub payments: Option<PaymentsConfig>,
    /// Pages for the members of accounts; `None`: there are no such pages.
    pub cabinet: Option<CabinetConfig>,
    /// Where the ledger is stored, and how holds are computed.
    pub ledger: LedgerConfig,
    /// The answers stored for calls with an idempotency key.
    pub idempotency: IdempotencyConfig,
    /// The limits of requests, bodies and connections.
    pub limits: Limits,
    /// The part that a reload replaces while calls run.
    pub live: LiveConfig,
    /// Likely mistakes that do not make the configuration invalid.
    pub warnings: Vec<ConfigError>,
    /// The presets whose values the file uses.
    pub presets: Vec<&'static Preset>,
}

/// The result of reading a file, and the files that were read.
#[derive(Debug)]
pub struct Loaded {
    /// The configuration, or every mistake in it.
    pub config: Result<Config, ConfigErrors>,
    /// The configuration file and the files that it names.
    pub files: Files,
}

impl Config {
    /// Reads a file, with secrets from this process's environment.
    ///
    /// # Errors
    /// All mistakes in the file, if there are any.
    pub fn load(path: &Path) -> Result<Self, ConfigErrors> {
        Self::read(path).config
    }

    /// Reads a file like [`load`](Self::load), and also returns the files that were read.
    #[must_use]
    pub fn read(path: &Path) -> Loaded {
        let files = RefCell::<Files>::default();
        let text = files.borrow_mut().read(path);
        let text = text.map_err(|error| error.to_string());
        let text = text.and_then(|bytes| {
            String::from_utf8(bytes).map_err(|_| "it is not text in UTF-8".to_owned())
        });
        let config = match text {
            Ok(text) => Self::check(&text, Env::new(&|name| std::env::var(name).ok(), &files)),
            Err(error) => {
                let mut errors = error::Errors::default();
                errors.add("", format!("cannot be read: {error}"));
                Err(errors.finish(|_| None))
            }
        };
        let config = config.map(|config| Self {
            file: Some(path.to_owned()),
            ..config
        });
        Loaded {
            config,
            files: files.into_inner(),
        }
    }

    /// Parses a text; `env` looks up environment variables.
    ///
    /// # Errors
    /// All mistakes in the text, if there are any.
    pub fn parse(text: &str, env: &dyn Fn(&str) -> Option<String>) -> Result<Self, ConfigErrors> {
        Self::check(text, Env::new(env, &RefCell::default()))
    }

    fn check(text: &str, env: Env<'_>) -> Result<Self, ConfigErrors> {
        let mut errors = error::Errors::default();
        let Some(document) = document::Document::parse(text, &mut errors) else {
            return Err(errors.finish(|_| None));
        };
        let raw = document.read(&mut errors);
        let mut check = check::Check {
            errors,
            warnings: error::Errors::default(),
            env,
        };
        for (path, problem) in price_diff::warnings(document.merged()) {
            check.warnings.add(path, problem);
        }
        match check.config(raw) {
            Some(config) if check.errors.is_empty() => Ok(Self {
                warnings: document.locate(check.warnings),
                presets: document.presets(),
                ..config
            }),
            _ => Err(ConfigErrors(document.locate(check.errors))),
        }
    }
}

/// The section `[admin]`: the operators' listener.
#[derive(Clone, Debug)]
pub struct AdminConfig {
    /// The address of the operators' listener, loopback by default.
    pub listen: SocketAddr,
    /// The admin key, which permits everything.
    pub key: SecretString,
    /// File with the operators who may sign in to the console by name; read at each sign-in.
    pub operators_file: Option<PathBuf>,
    /// Sign-in to the console by an OpenID provider; `None`: not offered.
    pub oidc: Option<OidcConfig>,
    /// Host names of the listener in lower case, in addition to the addresses and names of this machine, which are
    /// always accepted.
    pub hosts: Vec<String>,
    /// Whether `/metrics` requires the admin key.
    pub metrics_key: bool,
    /// The largest number of connections of operators.
    pub connections_max: usize,
}

/// `[traces]`: spans of calls, exported by OTLP over HTTP.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TracesConfig {
    /// The URL to which spans are posted.
    pub url: Uri,
    /// Headers added to each export. Values are marked sensitive.
    pub headers: HeaderMap,
    /// The number of calls that are traced, per million.
    pub calls_per_million: u32,
}

/// `[ledger]`: the store, and the sizes and lifetimes of holds.
#[derive(Clone, Debug)]
pub struct LedgerConfig {
    /// The kind and the address of the store.
    pub url: LedgerUrl,
    /// PEM of the certificate authorities to trust for Redis, instead of Mozilla's list.
    pub authorities: Option<Arc<[u8]>>,
    /// How a hold's input tokens are bounded.
    pub hold: HoldMode,
    /// The tokens that are held for a full-size image.
    pub image_tokens: u64,
    /// The smallest number of tokens that are held per document.
    pub document_tokens: u64,
    /// Tokens held for the results of a web search, in addition to the price of the search.
    pub search_tokens: u64,
    /// The maximum number of remembered conversations. For each, the vendor's count of its input bounds the next hold.
    pub hold_conversations_max: usize,
    /// How much longer than the longest call a hold lasts.
    pub hold_grace: Duration,
    /// How long the start waits for another process to release the ledger's file or the outbox.
    pub open_wait: Duration,
    /// The file for charges that a remote ledger has not acknowledged.
    pub outbox: OutboxConfig,
    /// The time for which a gateway may grant holds from a local lease without hearing from the ledger; zero disables
    /// leases.
    pub lease_max: Duration,
}

impl LedgerConfig {
    /// Whether gateways take leases. An embedded ledger has none.
    #[must_use]
    pub fn has_leases(&self) -> bool {
        matches!(self.url, LedgerUrl::Redis(_)) && !self.lease_max.is_zero()
    }
}

/// The settings of the outbox (`ledger.outbox…`), which stores charges that a remote ledger has not acknowledged. An
/// embedded ledger needs no outbox.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OutboxConfig {
    /// The path of the outbox file; each gateway has its own.
    pub path: PathBuf,
    /// The maximum number of calls that the ledger has not acknowledged.
    pub calls_max: usize,
    /// The age of the oldest unacknowledged charge beyond which this node is not ready.
    pub age_max: Duration,
}

/// The kind and the address of the ledger's store.
#[derive(Clone, PartialEq, Eq)]
pub enum LedgerUrl {
    /// `memory:`, which is lost when the process ends.
    Memory,
    /// `sqlite:PATH`, an SQLite file.
    Sqlite(PathBuf),
    /// `redis://`, `redis-sentinel://` or `redis-cluster://`, or their TLS forms (`rediss…`): the whole URL, which may
    /// contain a password.
    Redis(String),
}

impl LedgerUrl {
    /// Parses a ledger URL by the rules of `ledger.url`: a URL with a password must be given as `${NAME}` or
    /// `file:/path`.
    ///
    /// # Errors
    /// What is wrong with the URL, without the URL itself.
    pub fn read(text: &str) -> Result<Self, String> {
        let files = RefCell::default();
        ledger::ledger_url(text, Env::new(&|name| std::env::var(name).ok(), &files))
    }

    /// Returns the name of the kind of store.
    #[must_use]
    pub const fn kind(&self) -> &'static str {
        match self {
            Self::Memory => "memory",
            Self::Sqlite(_) => "sqlite",
            Self::Redis(_) => "redis",
        }
    }
}

/// Shows only the kind of store, because the URL may contain a password.
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

/// The section `[limits]`: limits of requests, bodies and connections.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Limits {
    /// The maximum number of catalog requests per second, per address.
    pub catalog_requests_per_second: u32,
    /// The maximum number of other requests per second, per address; `None` means unlimited.
    pub requests_per_second: Option<u32>,
    /// The maximum number of requests with unknown keys per second, per address.
    pub unknown_keys_per_second: u32,
    /// The burst of requests with unknown keys, per address.
    pub unknown_keys_burst: u32,
    /// The largest length of a request's path and query, in bytes.
    pub uri_bytes_max: usize,
    /// The largest number of requests in flight.
    pub in_flight_max: usize,
    /// The largest size of a request's body, in bytes.
    pub body_bytes_max: u64,
    /// The largest size of all request bodies in memory, in bytes.
    pub body_bytes_in_flight_max: u64,
    /// The timeout for receiving a request's body.
    pub body_timeout: Duration,
    /// The minimum bytes per second at which a body must arrive.
    pub body_rate_min: u64,
    /// The maximum bytes of an answer that is not streamed and therefore in memory as a whole.
    pub answer_bytes_max: usize,
    /// The maximum bytes of all answers in memory that are not streamed.
    pub answer_bytes_in_flight_max: u64,
    /// The largest number of messages in a request.
    pub messages_max: u64,
    /// The limits and timeouts of connections.
    pub connections: ConnectionLimits,
    /// The longest duration of a call.
    pub call_time_max: Duration,
    /// The time that running calls have to finish after SIGTERM.
    pub drain_timeout: Duration,
}

/// The part that a reload replaces while calls run: models, their prices and their routes to vendors.
#[derive(Clone, Debug)]
pub struct LiveConfig {
    /// The sources of the exchange rate.
    pub rate: RateConfig,
    /// The way in which prices follow from the exchange rate.
    pub tariff: Tariff,
    /// Models in the order of the catalog. Never empty; ids are unique.
    pub models: Vec<ModelConfig>,
    /// The prices that apply only to some customers.
    pub price_lists: PriceLists,
    /// The seller that issues statements; `None`: statements name no seller.
    pub seller: Option<Arc<SellerConfig>>,
}

/// The section `[rate]`: rubles per USDT.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RateConfig {
    /// The age at which a rate becomes stale, so that models have no prices.
    pub age_max: Duration,
    /// The interval between two requests to the sources.
    pub refresh: Duration,
    /// The largest change from one rate to the next that is accepted, in percent.
    pub step_max_percent: Decimal,
    /// The sources in order of preference, at least one.
    pub sources: Vec<RateSource>,
}

impl RateConfig {
    /// Returns the rate, if the operator fixes it before any other source.
    #[must_use]
    pub fn fixed(&self) -> Option<Decimal> {
        match self.sources.first()? {
            RateSource::Fixed(rate) => Some(*rate),
            RateSource::Http(_) => None,
        }
    }
}

/// A section `[[rate.source]]`: a source of the exchange rate.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RateSource {
    /// The operator fixes the rate.
    Fixed(Decimal),
    /// The rate is a number in a JSON answer of a source.
    Http(Box<HttpSource>),
}

/// A source that answers with JSON, which contains the rate as a number.
#[derive(Clone, PartialEq, Eq)]
pub struct HttpSource {
    /// The URL of the source; its query may contain a key.
    pub url: Uri,
    /// The method of the request: `GET` or `POST`.
    pub method: Method,
    /// The body of the request, which is JSON if not empty.
    pub body: Bytes,
    /// The location of the number in the answer.
    pub select: Selector,
    /// The lowest rate that is accepted.
    pub min: Option<Decimal>,
    /// The highest rate that is accepted.
    pub max: Option<Decimal>,
}

impl HttpSource {
    /// Returns the host, which is the part of the URL that logs may contain.
    #[must_use]
    pub fn host(&self) -> &str {
        self.url.host().unwrap_or_default()
    }
}

/// Omits the URL, whose query may contain a key.
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

/// A section `[[model]]`: a model that is sold.
#[derive(Clone, Debug)]
pub struct ModelConfig {
    /// The model's name in the request field `model`.
    pub id: String,
    /// The name of the model's family, for people.
    pub family: String,
    /// Whether the model answers chats or makes embeddings.
    pub kind: ModelKind,
    /// Name shown where a client lets people choose a model.
    pub display_name: Option<String>,
    /// Description of the model, shown before its price where a client lets people choose a model.
    pub description: Option<String>,
    /// The base prices of the model.
    pub base: BaseRates,
    /// Base prices under conditions; no condition is empty and no two are ambiguous.
    pub price_rules: Vec<(Condition, BaseRates)>,
    /// The costs at the model's vendors, if they are known.
    pub route_costs: Vec<RouteCostConfig>,
    /// The largest number of output tokens that a call may request.
    pub output_tokens_max: u64,
    /// The smallest output worth a call when the balance is low, in tokens.
    pub output_tokens_min: u64,
    /// Output limit of a call that sets none, in tokens; `None`: `output_tokens_max`.
    pub output_tokens_default: Option<u64>,
    /// The largest number of output tokens per second, if it is known.
    pub output_tokens_per_second_max: Option<u64>,
    /// Whether the holds of streams grow with their output.
    pub hold_grows: bool,
    /// The context window in tokens, if it is known.
    pub input_tokens_max: Option<u64>,
    /// The largest input that the model's prices apply to, in tokens; `None`: unlimited.
    pub input_tokens_priced_max: Option<u64>,
    /// Whether all calls of a conversation stay on one route.
    pub sticky: bool,
    /// Routes to vendors, by priority. Never empty; no two routes have the same vendor and the same model of that
    /// vendor.
    pub routes: Vec<Arc<Route>>,
}

#[cfg(test)]
mod tests {
    use super::{
        testing::{EXAMPLE, changed, parse},
        *,
    };

    #[test]
    fn example_configuration_is_accepted() {
        let config = parse(EXAMPLE).unwrap_or_else(|errors| panic!("{errors}"));
        assert_eq!(config.service, "tollgate");
        assert_eq!(config.limits.catalog_requests_per_second, 10);
        assert!(config.admin.expect("admin").listen.ip().is_loopback());
    }

    #[test]
    fn missing_configuration_file_is_an_error() {
        let errors = Config::load(Path::new("/no/such/tollgate.toml")).unwrap_err();
        assert!(
            errors.to_string().starts_with("cannot be read: "),
            "{errors}"
        );
    }

    #[test]
    fn debug_output_of_the_configuration_shows_no_secret() {
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
    fn files_named_by_the_configuration_are_recorded() {
        let dir = tempfile::tempdir().unwrap();
        let write = |name: &str, text: &str| {
            let path = dir.path().join(name);
            std::fs::write(&path, text).unwrap();
            path
        };
        let (admin, vendor) = (
            write("admin", "admin-7Kq2vW9xT4mZ8rB3"),
            dir.path().join("vendor"),
        );
        let refer = |path: &Path| format!("file:{}", path.display());
        let text =
            changed("${ADMIN_KEY}", &refer(&admin)).replace("${VENDOR_KEY}", &refer(&vendor));
        let config = write("tollgate.toml", &text);
        let Loaded {
            config: refused,
            files,
        } = Config::read(&config);
        assert!(refused.is_err(), "one of its files is missing");
        assert_eq!(files.look(), files);
        write("vendor", "sk-vendor-secret");
        assert_ne!(files.look(), files);
        let Loaded { config, files } = Config::read(&config);
        assert!(config.is_ok());
        for name in ["tollgate.toml", "admin", "vendor"] {
            let path = dir.path().join(name);
            let held = std::fs::read(&path).unwrap();
            std::fs::write(&path, "another").unwrap();
            assert_ne!(files.look(), files, "{name}");
            std::fs::write(&path, held).unwrap();
            assert_eq!(files.look(), files, "{name}");
        }
        assert!(!format!("{files:?}").contains("secret"));
    }
}
