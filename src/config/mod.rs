//! `tollgate.toml`: read once into types that cannot be wrong, all mistakes reported together.
//!
//! The file's shape is `raw`; what it means is `check`, with a file for each section; where secrets come from is
//! `secret`; what of it a running gateway takes is `settings`.

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
    catalog::select_json::Selector,
    edge::{server::ConnectionLimits, tls::Identity},
};

mod check;
mod costs;
mod document;
mod error;
mod files;
mod idempotency;
mod ledger;
mod limits;
mod listen;
mod model;
mod oidc;
mod payments;
mod price_lists;
mod prices;
mod proxy;
mod rate;
mod raw;
mod receivers;
mod schema;
mod secret;
mod seller;
mod settings;
#[cfg(test)]
mod testing;
mod tls;
mod traces;
mod vendor;
mod webhooks;

pub(crate) use self::oidc::safe as safe_address;
pub use self::{
    costs::RouteCostConfig,
    error::{ConfigError, ConfigErrors},
    files::Files,
    idempotency::IdempotencyConfig,
    oidc::OidcConfig,
    payments::{CloudPaymentsConfig, PaymentsConfig, ProviderSecret, StripeConfig, YooKassaConfig},
    price_lists::{CustomerRule, PriceLists, Row},
    prices::{Tariff, UsdtRates},
    receivers::{MailConfig, MailTls, ReceiverConfig, TelegramConfig, WayConfig},
    schema::schema,
    seller::SellerConfig,
    settings::need_restart,
    webhooks::WebhookConfig,
};

pub(crate) use self::payments::{is_email, is_whole_kopecks};
pub(crate) use self::prices::MULTIPLIER_MAX;

/// The whole configuration.
#[derive(Clone, Debug)]
pub struct Config {
    /// Where callers connect.
    pub listen: SocketAddr,
    /// Whether another process may listen there too.
    pub reuse_port: bool,
    /// The path segment of the catalog: `GET /v1/<service>/models`.
    pub service: String,
    /// The address that the catalog shows; it ends in `/v1`.
    pub base_url: String,
    /// The language of texts for people.
    pub language: Language,
    /// Peers whose `x-forwarded-for` is believed.
    pub trusted_proxies: Vec<IpNet>,
    /// How often the files are looked at; `None`: when told to.
    pub reload_poll: Option<Duration>,
    /// What callers are shown over TLS; `None`: plain HTTP.
    pub tls: Option<Identity>,
    /// The operator's listener, if there is one.
    pub admin: Option<AdminConfig>,
    /// Where spans of calls are sent; `None`: nowhere.
    pub traces: Option<TracesConfig>,
    /// Who is sent events.
    pub receivers: Vec<ReceiverConfig>,
    /// How customers pay by themselves; `None`: they do not.
    pub payments: Option<PaymentsConfig>,
    /// Where money is kept and how much of it a call holds.
    pub ledger: LedgerConfig,
    /// Answers that are kept.
    pub idempotency: IdempotencyConfig,
    /// Limits.
    pub limits: Limits,
    /// The part that can be swapped while calls run.
    pub live: LiveConfig,
    /// What may be meant, and probably is not.
    pub warnings: Vec<ConfigError>,
}

/// What came of reading a file, and which files that were.
#[derive(Debug)]
pub struct Loaded {
    /// The configuration, or every mistake in it.
    pub config: Result<Config, ConfigErrors>,
    /// The file, and those that it names.
    pub files: Files,
}

impl Config {
    /// Reads a file, with the secrets of this process' environment.
    ///
    /// # Errors
    /// Every mistake in it.
    pub fn load(path: &Path) -> Result<Self, ConfigErrors> {
        Self::read(path).config
    }

    /// The same, with the files that were read.
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
        Loaded {
            config,
            files: files.into_inner(),
        }
    }

    /// Reads a text; `env` looks variables of the environment up.
    ///
    /// # Errors
    /// Every mistake in it.
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
        match check.config(raw) {
            Some(config) if check.errors.is_empty() => Ok(Self {
                warnings: check.warnings.list(|path| document.line_of(path)),
                ..config
            }),
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
    /// Who may sign in to the console by a name; read whenever somebody does.
    pub operators_file: Option<PathBuf>,
    /// Who else may, by an OpenID provider.
    pub oidc: Option<OidcConfig>,
    /// Connections to it.
    pub connections_max: usize,
}

/// `[traces]`: spans of calls, by OTLP over HTTP.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TracesConfig {
    /// Where they are posted.
    pub url: Uri,
    /// What is sent along. Values are marked sensitive.
    pub headers: HeaderMap,
    /// Of a million calls so many are traced.
    pub calls_per_million: u32,
}

/// `[ledger]`.
#[derive(Clone, Debug)]
pub struct LedgerConfig {
    /// Which store.
    pub url: LedgerUrl,
    /// PEM of the certificate authorities that Redis is trusted by, in place of Mozilla's list.
    pub authorities: Option<Arc<[u8]>>,
    /// How input is bounded.
    pub hold: HoldMode,
    /// Tokens that an image is held for.
    pub image_tokens: u64,
    /// Tokens that a document is held for.
    pub document_tokens: u64,
    /// Tokens that a search of the web is held for, beside its own price.
    pub search_tokens: u64,
    /// How long a hold outlives the longest call.
    pub hold_grace: Duration,
    /// How long a start waits for another process to let go of the ledger's file or the outbox.
    pub open_wait: Duration,
    /// Where a gateway keeps what it has still to tell a ledger on another machine.
    pub outbox: OutboxConfig,
    /// For how long a gateway may hold money by itself after it told the ledger last; zero: never.
    pub lease_max: Duration,
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
        let files = RefCell::default();
        ledger::ledger_url(text, Env::new(&|name| std::env::var(name).ok(), &files))
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
    /// What some customers pay for them.
    pub price_lists: PriceLists,
    /// Who statements are from; `None`: they name nobody.
    pub seller: Option<Arc<SellerConfig>>,
}

/// `[rate]`: rubles for one USDT.
#[derive(Clone, Debug, PartialEq, Eq)]
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
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RateSource {
    /// The operator's word.
    Fixed(Decimal),
    /// A number in a JSON answer.
    Http(Box<HttpSource>),
}

/// A number in a JSON answer.
#[derive(Clone, PartialEq, Eq)]
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
    /// What it makes.
    pub kind: ModelKind,
    /// Its own name, for people who choose from a client's list.
    pub display_name: Option<String>,
    /// What it is for, in front of its price there.
    pub description: Option<String>,
    /// Base prices.
    pub usdt_mtok: UsdtRates,
    /// Base prices under conditions, none of which is empty, and none ambiguous.
    pub price_rules: Vec<(Condition, UsdtRates)>,
    /// What the vendors take, where it is known.
    pub route_costs: Vec<RouteCostConfig>,
    /// Most output tokens that it can be asked for.
    pub output_tokens_max: u64,
    /// Fewest output tokens worth a call when funds are short.
    pub output_tokens_min: u64,
    /// Output tokens of a call without a ceiling; `None`: the most.
    pub output_tokens_default: Option<u64>,
    /// Its context window, if known.
    pub input_tokens_max: Option<u64>,
    /// Input tokens up to which the prices hold; `None`: all.
    pub input_tokens_priced_max: Option<u64>,
    /// Whether a conversation stays on its route.
    pub sticky: bool,
    /// Ways to a vendor, by priority. Never empty; no two lead to the same model of the same vendor.
    pub routes: Vec<Arc<Route>>,
}

#[cfg(test)]
mod tests {
    use super::{
        testing::{EXAMPLE, changed, parse},
        *,
    };

    #[test]
    fn the_example_is_accepted() {
        let config = parse(EXAMPLE).unwrap_or_else(|errors| panic!("{errors}"));
        assert_eq!(config.service, "tollgate");
        assert_eq!(config.limits.catalog_requests_per_second, 10);
        assert!(config.admin.expect("admin").listen.ip().is_loopback());
    }

    #[test]
    fn a_file_that_is_not_there_cannot_be_read() {
        let errors = Config::load(Path::new("/no/such/tollgate.toml")).unwrap_err();
        assert!(
            errors.to_string().starts_with("cannot be read: "),
            "{errors}"
        );
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
    fn the_files_that_a_config_names_are_known() {
        let dir = tempfile::tempdir().unwrap();
        let write = |name: &str, text: &str| {
            let path = dir.path().join(name);
            std::fs::write(&path, text).unwrap();
            path
        };
        let (admin, vendor) = (
            write("admin", "admin-secret-0123456789"),
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
