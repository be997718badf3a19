//! Parses `tollgate.toml` into types that can only hold valid values, and reports all mistakes of the file together.
//!
//! The module `raw` has the shape of the file. `check` checks the values, with one module per section. `secret`
//! resolves references to secrets. `settings` states which changes of the file a running gateway applies.

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
use tollgate_ledger::unbooked::UnbookedBounds;

use self::secret::Env;
use crate::{
    edge::{cors::Origins, server::ConnectionLimits, tls::Identity},
    text::select_json::Selector,
};

mod cabinet;
mod check;
mod costs;
pub(crate) mod described;
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
pub(crate) mod testing;
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
pub(crate) use self::{
    document::read_part,
    oidc::safe as safe_address,
    payments::{is_email, is_whole_kopecks},
    price_diff::without_date,
    prices::MULTIPLIER_MAX,
    receivers::kind,
};

/// The whole checked configuration of a gateway.
#[derive(Clone, Debug)]
pub struct Config {
    /// Path of the file from which the configuration was read. `None` if the configuration was parsed from a text.
    pub file: Option<PathBuf>,
    /// IP address and port at which the gateway accepts callers' connections.
    pub listen: SocketAddr,
    /// Whether another process may listen at the same address and port (`SO_REUSEPORT`).
    pub reuse_port: bool,
    /// The segment `<service>` in paths of the gateway's own API, for example `GET /v1/<service>/models`.
    pub service: String,
    /// Base URL of the gateway, as the catalog shows it. It ends in `/v1`.
    pub base_url: String,
    /// Language of error messages, the page at `/` and statements.
    pub language: Language,
    /// Networks of proxies. The header `x-forwarded-for` is trusted only on connections from these networks.
    pub trusted_proxies: Vec<IpNet>,
    /// Origins of web pages that may call the gateway from a browser (CORS).
    pub cors_origins: Origins,
    /// Interval at which the configuration file and the files that it names are checked for changes. `None`: they are
    /// read again only after SIGHUP.
    pub reload_poll: Option<Duration>,
    /// Certificate and private key for callers' TLS. `None`: callers connect by plain HTTP.
    pub tls: Option<Identity>,
    /// The operators' listener. `None`: this listener is not opened.
    pub admin: Option<AdminConfig>,
    /// Export of call spans over OTLP. `None`: no spans are exported.
    pub traces: Option<TracesConfig>,
    /// The receivers of events.
    pub receivers: Vec<ReceiverConfig>,
    /// Customers' payments through providers. `None`: only operators book payments.
    pub payments: Option<PaymentsConfig>,
    /// The cabinet: pages for the members of accounts. `None`: the gateway serves no cabinet.
    pub cabinet: Option<CabinetConfig>,
    /// The ledger's store, and the sizes and lifetimes of holds.
    pub ledger: LedgerConfig,
    /// Limits of the responses that are stored for calls with an idempotency key.
    pub idempotency: IdempotencyConfig,
    /// Limits on requests, bodies and connections.
    pub limits: Limits,
    /// The part of the configuration that a reload replaces while calls are in flight.
    pub live: LiveConfig,
    /// Likely mistakes that do not make the configuration invalid.
    pub warnings: Vec<ConfigError>,
    /// Presets from which the file takes values.
    pub presets: Vec<&'static Preset>,
}

/// The result of reading a configuration file, and the files that were read for it.
#[derive(Debug)]
pub struct Loaded {
    /// The configuration, or every mistake in it.
    pub config: Result<Config, ConfigErrors>,
    /// The configuration file and the files that it names, such as certificates and secrets.
    pub files: Files,
}

impl Config {
    /// Reads a configuration file. References to environment variables are resolved in this process's environment.
    ///
    /// # Errors
    /// Returns all mistakes in the file.
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
            String::from_utf8(bytes).map_err(|_| "the file is not text in UTF-8".to_owned())
        });
        let config = match text {
            Ok(text) => Self::check(&text, Env::new(&|name| std::env::var(name).ok(), &files)),
            Err(error) => {
                let mut errors = error::Errors::default();
                errors.add("", format!("cannot read the file: {error}"));
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

    /// Parses the text of a configuration file. `env` returns the value of an environment variable.
    ///
    /// # Errors
    /// Returns all mistakes in the text.
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
    /// IP address and port of the operators' listener, by default on loopback.
    pub listen: SocketAddr,
    /// The admin key. Its holder has every right.
    pub key: SecretString,
    /// File with the operators who may sign in to the console with a name and a password. The console reads it at each
    /// request.
    pub operators_file: Option<PathBuf>,
    /// Sign-in to the console through an OpenID provider. `None`: the console does not offer it.
    pub oidc: Option<OidcConfig>,
    /// Accepted host names of the operators' listener, in lower case. The addresses and names of this machine are
    /// always accepted.
    pub hosts: Vec<String>,
    /// Whether `/metrics` requires the admin key.
    pub metrics_key: bool,
    /// Maximum number of connections to the operators' listener.
    pub connections_max: usize,
}

/// The section `[traces]`: export of call spans by OTLP over HTTP.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TracesConfig {
    /// The URL to which spans are posted.
    pub url: Uri,
    /// Headers added to each request that exports spans. Their values are marked as sensitive.
    pub headers: HeaderMap,
    /// Number of calls per million that are traced.
    pub calls_per_million: u32,
}

/// The section `[ledger]`: the ledger's store, and the sizes and lifetimes of holds.
#[derive(Clone, Debug)]
pub struct LedgerConfig {
    /// Kind and address of the ledger's store.
    pub url: LedgerUrl,
    /// Certificate authorities, in PEM, that are trusted for Redis instead of Mozilla's list.
    pub authorities: Option<Arc<[u8]>>,
    /// How the upper bound of a hold's input tokens is computed.
    pub hold: HoldMode,
    /// Number of input tokens that a hold assumes for an image of unknown size.
    pub image_tokens: u64,
    /// Minimum number of input tokens that a hold assumes for each attached document.
    pub document_tokens: u64,
    /// Number of input tokens that a hold assumes for the results of one web search. The price of the search itself is
    /// held too.
    pub search_tokens: u64,
    /// Maximum number of conversations for which the gateway remembers how many input tokens the vendor last counted.
    /// This count bounds the hold of the conversation's next call.
    pub hold_conversations_max: usize,
    /// A hold expires when the longest duration of a call plus this time has passed since the hold was made or last
    /// renewed.
    pub hold_grace: Duration,
    /// How long a starting gateway waits for another process to release the ledger's file or the outbox.
    pub open_wait: Duration,
    /// Limits of the stored calls without a charge (refused, failed or free). `None`: none is stored.
    pub refused_calls: Option<UnbookedBounds>,
    /// Settings of the outbox, which stores charges that a remote ledger has not acknowledged.
    pub outbox: OutboxConfig,
    /// How long a gateway may grant holds from a lease without a response from the ledger. Zero disables leases.
    pub lease_max: Duration,
}

impl LedgerConfig {
    /// Returns whether the gateway uses leases. A ledger inside the gateway process (memory or SQLite) has none.
    #[must_use]
    pub fn has_leases(&self) -> bool {
        matches!(self.url, LedgerUrl::Redis(_)) && !self.lease_max.is_zero()
    }
}

/// Settings of the outbox (`ledger.outbox…`), which stores charges that a remote ledger has not acknowledged. A ledger
/// inside the gateway process (memory or SQLite) needs no outbox.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OutboxConfig {
    /// Path of the outbox file. Each gateway needs its own file.
    pub path: PathBuf,
    /// Maximum number of ended calls whose charges the ledger has not acknowledged.
    pub calls_max: usize,
    /// If the oldest unacknowledged charge is older than this, the node reports that it is not ready.
    pub age_max: Duration,
}

/// The kind and the address of the ledger's store.
#[derive(Clone, PartialEq, Eq)]
pub enum LedgerUrl {
    /// `memory:`: the ledger is in memory, and is lost when the process ends.
    Memory,
    /// `sqlite:PATH`: the ledger is the SQLite file at this path.
    Sqlite(PathBuf),
    /// URL with `redis://`, `redis-sentinel://` or `redis-cluster://`, or with their TLS forms (`rediss…`). It may
    /// contain a password.
    Redis(String),
}

impl LedgerUrl {
    /// Parses a ledger URL by the rules of `ledger.url`: a URL with a password must be given as `${NAME}` or
    /// `file:/path`.
    ///
    /// # Errors
    /// Returns what is wrong with the URL. The message does not contain the URL.
    pub fn read(text: &str) -> Result<Self, String> {
        let files = RefCell::default();
        ledger::ledger_url(text, Env::new(&|name| std::env::var(name).ok(), &files))
    }

    /// Returns the name of the store's kind: `memory`, `sqlite` or `redis`.
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

/// The section `[limits]`: limits on requests, bodies and connections.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Maximum number of catalog requests per second and client address.
    pub catalog_requests_per_second: u32,
    /// Maximum number of requests per second and client address, not counting catalog requests. `None`: unlimited.
    pub requests_per_second: Option<u32>,
    /// Maximum number of requests with unknown keys per second and client address.
    pub unknown_keys_per_second: u32,
    /// Maximum burst of requests with unknown keys from a client address.
    pub unknown_keys_burst: u32,
    /// Maximum length of a request's path and query, in bytes.
    pub uri_bytes_max: usize,
    /// Maximum number of requests in flight at this gateway.
    pub in_flight_max: usize,
    /// Maximum size of a request's body, in bytes.
    pub body_bytes_max: u64,
    /// Maximum size of all request bodies in memory together, in bytes.
    pub body_bytes_in_flight_max: u64,
    /// Timeout for receiving the whole body of a request.
    pub body_timeout: Duration,
    /// Minimum speed at which a request's body must arrive, in bytes per second.
    pub body_rate_min: u64,
    /// Maximum size of a response that is not streamed, in bytes. Such a response is in memory as a whole.
    pub answer_bytes_max: usize,
    /// Maximum size of all responses in memory that are not streamed, in bytes.
    pub answer_bytes_in_flight_max: u64,
    /// Maximum number of messages in a request, or of inputs in an embeddings request.
    pub messages_max: u64,
    /// Limits and timeouts of callers' connections.
    pub connections: ConnectionLimits,
    /// Maximum time from sending a call to a vendor until the end of the vendor's response.
    pub call_time_max: Duration,
    /// How long calls in flight may continue after SIGTERM.
    pub drain_timeout: Duration,
}

/// The part of the configuration that a reload replaces while calls are in flight: models, their prices and their
/// routes to vendors.
#[derive(Clone, Debug)]
pub struct LiveConfig {
    /// The sources of the exchange rate.
    pub rate: RateConfig,
    /// How prices for callers are computed from base prices and the exchange rate.
    pub tariff: Tariff,
    /// The models, in the order of the catalog. There is at least one, and no two have the same id.
    pub models: Vec<ModelConfig>,
    /// The prices that apply only to some customers.
    pub price_lists: PriceLists,
    /// The seller that statements name. `None`: statements name no seller.
    pub seller: Option<Arc<SellerConfig>>,
}

/// The section `[rate]`: the exchange rate in rubles per USDT.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RateConfig {
    /// Maximum age of the exchange rate. If it is older, models priced in USDT have no prices.
    pub age_max: Duration,
    /// Interval between two requests for the exchange rate.
    pub refresh: Duration,
    /// Largest accepted change from the last accepted exchange rate, in percent.
    pub step_max_percent: Decimal,
    /// Sources of the exchange rate in order of preference, at least one.
    pub sources: Vec<RateSource>,
}

impl RateConfig {
    /// Returns the exchange rate if the first source is a fixed one.
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
    /// A fixed exchange rate from the configuration file, in rubles per USDT.
    Fixed(Decimal),
    /// A URL that returns JSON with the exchange rate.
    Http(Box<HttpSource>),
}

/// A source of the exchange rate: a URL that returns JSON, and the path of the number in this JSON.
#[derive(Clone, PartialEq, Eq)]
pub struct HttpSource {
    /// URL of the source. Its query may contain a secret key.
    pub url: Uri,
    /// Method of the request to the source: `GET` or `POST`.
    pub method: Method,
    /// Body of the request to the source. If it is not empty, it is sent as JSON.
    pub body: Bytes,
    /// Path of the exchange rate in the source's response.
    pub select: Selector,
    /// Lowest exchange rate that is accepted from this source.
    pub min: Option<Decimal>,
    /// Highest exchange rate that is accepted from this source.
    pub max: Option<Decimal>,
}

impl HttpSource {
    /// Returns the host of the URL. It is the only part of the URL that logs may contain.
    #[must_use]
    pub fn host(&self) -> &str {
        self.url.host().unwrap_or_default()
    }
}

/// Prints the source without its URL, whose query may contain a secret key.
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

/// A section `[[model]]`: a model that callers can call.
#[derive(Clone, Debug)]
pub struct ModelConfig {
    /// Id of the model, which callers write into the request field `model`.
    pub id: String,
    /// Name of the model's family, as the catalog and the page at `/` show it.
    pub family: String,
    /// Whether the model is for chats or for embeddings.
    pub kind: ModelKind,
    /// Name of the model in `GET /v1/models`, which clients show in their model lists.
    pub display_name: Option<String>,
    /// Text before the price in `GET /v1/models`, which clients show in their model lists.
    pub description: Option<String>,
    /// The base prices of the model.
    pub base: BaseRates,
    /// Price rules: base prices under conditions. No condition is empty, and for every call at most one rule decides.
    pub price_rules: Vec<(Condition, BaseRates)>,
    /// Prices that the vendors of the model's routes charge, for the routes whose costs are known.
    pub route_costs: Vec<RouteCostConfig>,
    /// Maximum number of output tokens of a call.
    pub output_tokens_max: u64,
    /// Smallest output limit, in tokens, to which the gateway lowers the limit of a call if the balance is low.
    pub output_tokens_min: u64,
    /// Output limit, in tokens, of a call that sets no output limit. `None`: `output_tokens_max`.
    pub output_tokens_default: Option<u64>,
    /// Maximum number of output tokens that the model generates per second. `None`: unknown.
    pub output_tokens_per_second_max: Option<u64>,
    /// Whether the hold of a stream grows with the stream's output.
    pub hold_grows: bool,
    /// Context window of the model, in tokens. `None`: unknown.
    pub input_tokens_max: Option<u64>,
    /// Maximum number of input tokens to which the model's prices apply. `None`: unlimited.
    pub input_tokens_priced_max: Option<u64>,
    /// Whether all calls of a conversation stay on one route.
    pub sticky: bool,
    /// Routes to vendors, ordered by priority. There is at least one, and no two have both the same vendor and the same
    /// model name at this vendor.
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
            errors.to_string().starts_with("cannot read the file: "),
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
