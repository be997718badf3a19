//! What the file means: each value is turned into a type that cannot be wrong, or a mistake.
//!
//! A part that is `None` has left its mistake behind, so the checks go on to the end.

use std::{
    collections::HashSet,
    fmt::Display,
    net::{IpAddr, SocketAddr},
    ops::RangeInclusive,
    path::PathBuf,
    time::Duration,
};

use http::{HeaderValue, Uri};
use ipnet::IpNet;
use rust_decimal::Decimal;
use secrecy::{ExposeSecret, SecretString};
use tollgate_layers::{model::Dialect, redis_conn::RedisUrl, reserve::HoldMode, respond::Language};

use super::{
    AdminConfig, Config, LedgerConfig, LedgerUrl, LiveConfig, ModelConfig, OutboxConfig, Tariff,
    UsdtRates,
    error::Errors,
    raw::{RawAdmin, RawConfig, RawLedger, RawModel, RawUsdt},
    secret::{Env, referred, secret},
    vendor::{Vendors, connections_of},
};
use crate::node::files::Shares;

pub(super) const DAY_SECONDS: u64 = 86_400;
const TOKENS_MAX: u64 = 1_000_000_000;
const DISPLAY_NAME_CHARS_MAX: usize = 60;
/// Claude Code shows 100 of what a model says of itself: the price stands behind this, and is not to be cut.
const DESCRIPTION_CHARS_MAX: usize = 40;
/// The longest that a call may take, unless the file says otherwise.
pub(super) const CALL_TIME_MAX: Duration = Duration::from_secs(900);

pub(super) struct Check<'a> {
    pub(super) errors: Errors,
    /// What may be meant, and probably is not.
    pub(super) warnings: Errors,
    pub(super) env: Env<'a>,
}

impl Check<'_> {
    pub(super) fn config(&mut self, raw: RawConfig) -> Option<Config> {
        let listen = self.address(raw.listen.as_deref().unwrap_or("127.0.0.1:8080"), "listen");
        let service = self.service(raw.service);
        let scheme = if raw.tls.is_some() { "https" } else { "http" };
        let base_url = self.base_url(raw.base_url.as_deref(), listen, scheme);
        let tls = match raw.tls {
            None => Some(None),
            Some(tls) => self.tls(tls, raw.base_url.as_deref()).map(Some),
        };
        let reload_poll = self.whole(
            raw.reload_poll_seconds,
            "reload_poll_seconds",
            10,
            0..=DAY_SECONDS,
        );
        let language = match raw.language.as_deref() {
            None => Some(Language::Ru),
            Some(text) => self.choice(
                text,
                "language",
                [("ru", Language::Ru), ("en", Language::En)],
            ),
        };
        let trusted_proxies = self.networks(&raw.trusted_proxies);
        let admin = match raw.admin {
            None => Some(None),
            Some(admin) => self.admin(admin, listen).map(Some),
        };
        let traces = match raw.traces {
            None => Some(None),
            Some(traces) => self.traces(traces).map(Some),
        };
        let ledger = self.ledger(&raw.ledger);
        let limits = self.limits(&raw.limits);
        let rate = self.rate(raw.rate);
        let multiplier = self.multiplier(raw.tariff.sell_rate_multiplier.as_deref());
        let names: Vec<_> = raw.vendor.iter().map(|raw| raw.name.clone()).collect();
        let call_time_max = limits.as_ref().map(|limits| limits.call_time_max);
        let vendors = self.vendors(raw.vendor, call_time_max.unwrap_or(CALL_TIME_MAX));
        let limits = limits.map(|mut limits| {
            if raw.limits.connections_max.is_none() {
                limits.connections.max = Shares::of_process(connections_of(&vendors)).callers;
            }
            limits
        });
        let models = self.models(raw.model, &vendors);
        self.unused(&names, models.as_deref());
        Some(Config {
            listen: listen?,
            reuse_port: raw.reuse_port.unwrap_or(false),
            service: service?,
            base_url: base_url?,
            language: language?,
            trusted_proxies: trusted_proxies?,
            reload_poll: Some(Duration::from_secs(reload_poll?)).filter(|time| !time.is_zero()),
            tls: tls?,
            admin: admin?,
            traces: traces?,
            ledger: ledger?,
            limits: limits?,
            live: LiveConfig {
                rate: rate?,
                tariff: Tariff {
                    sell_rate_multiplier: multiplier?,
                },
                models: models?,
            },
            warnings: Vec::new(),
        })
    }

    fn multiplier(&mut self, given: Option<&str>) -> Option<Decimal> {
        const PATH: &str = "tariff.sell_rate_multiplier";
        if given.is_none() {
            self.warnings.add(
                PATH,
                "is absent: models are sold at cost, the base price × the exchange rate; if that is meant, write \"1\"",
            );
        }
        let multiplier = self.decimal(given.unwrap_or("1"), PATH, 6, 1_000)?;
        if multiplier < Decimal::ONE {
            self.warnings.add(
                PATH,
                "is below 1: models are sold for less than their base prices",
            );
        } else if multiplier > Decimal::TEN {
            self.warnings.add(
                PATH,
                "is above 10: models are sold for more than ten times their base prices",
            );
        }
        Some(multiplier)
    }

    /// Notes vendors to which no model has a route.
    fn unused(&mut self, names: &[Option<String>], models: Option<&[ModelConfig]>) {
        let Some(models) = models else { return };
        let routes = || models.iter().flat_map(|model| &model.routes);
        for (index, name) in names.iter().enumerate() {
            let Some(name) = name else { continue };
            if !routes().any(|route| *route.vendor.name == **name) {
                self.warnings.add(
                    format!("vendor[{index}].name"),
                    format!("{name:?} is used by no model: no route leads to it"),
                );
            }
        }
    }

    fn service(&mut self, given: Option<String>) -> Option<String> {
        let service = given.unwrap_or_else(|| "tollgate".to_owned());
        let good = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-';
        if service.is_empty() || !service.bytes().all(good) {
            self.errors.add(
                "service",
                "must be one path segment of a-z, 0-9 and '-', like \"tollgate\"",
            );
            return None;
        }
        if ["chat", "messages", "models"].contains(&service.as_str()) {
            self.errors.add(
                "service",
                "is taken by another path under /v1: choose another name",
            );
            return None;
        }
        Some(service)
    }

    fn base_url(
        &mut self,
        given: Option<&str>,
        listen: Option<SocketAddr>,
        scheme: &str,
    ) -> Option<String> {
        let Some(text) = given else {
            if listen.is_some_and(|listen| listen.ip().is_unspecified()) {
                self.warnings.add(
                    "base_url",
                    "is absent, and the address of listen, which the catalog shows instead, is nobody's",
                );
            }
            return listen.map(|listen| format!("{scheme}://{listen}/v1"));
        };
        let text = text.trim_end_matches('/');
        let uri = web_address(text).and_then(without_query);
        let uri = self.keep(uri, "base_url")?;
        if !uri.path().ends_with("/v1") {
            self.errors.add(
                "base_url",
                "must end in /v1: it is the address that chat-completions clients are given",
            );
            return None;
        }
        Some(text.to_owned())
    }

    fn networks(&mut self, given: &[String]) -> Option<Vec<IpNet>> {
        let network = |text: &String| {
            text.parse::<IpNet>()
                .or_else(|_| text.parse::<IpAddr>().map(IpNet::from))
                .map_err(|_| {
                    "must be a CIDR or an address, like \"10.0.0.0/8\" or \"192.0.2.7\"".to_owned()
                })
        };
        let networks: Vec<_> = given
            .iter()
            .enumerate()
            .map(|(index, text)| self.keep(network(text), &format!("trusted_proxies[{index}]")))
            .collect();
        networks.into_iter().collect()
    }

    fn admin(&mut self, raw: RawAdmin, callers: Option<SocketAddr>) -> Option<AdminConfig> {
        let listen = self.address(
            raw.listen.as_deref().unwrap_or("127.0.0.1:8081"),
            "admin.listen",
        );
        if listen.is_some_and(|listen| listen.port() != 0 && Some(listen) == callers) {
            self.errors.add(
                "admin.listen",
                "is the same as listen: operators and callers need an address each",
            );
        }
        let key = self.secret(
            raw.key,
            "admin.key",
            "operators show it; make one with `openssl rand -hex 32`",
        )?;
        if key.expose_secret().len() < 16 {
            self.errors.add(
                "admin.key",
                "must have at least 16 characters; make one with `openssl rand -hex 32`",
            );
            return None;
        }
        if HeaderValue::from_str(key.expose_secret()).is_err() {
            self.errors
                .add("admin.key", "must be plain ASCII, it is sent in a header");
            return None;
        }
        let connections_max = self.whole(
            raw.connections_max,
            "admin.connections_max",
            Shares::of_process(0).operators as u64,
            1..=1_000_000,
        );
        Some(AdminConfig {
            listen: listen?,
            key,
            connections_max: connections_max?,
        })
    }

    fn ledger(&mut self, raw: &RawLedger) -> Option<LedgerConfig> {
        let url = ledger_url(raw.url.as_deref().unwrap_or("sqlite:tollgate.db"), self.env);
        let url = self.keep(url, "ledger.url");
        let hold = match raw.hold.as_deref() {
            None => Some(HoldMode::Usual),
            Some(text) => self.choice(
                text,
                "ledger.hold",
                [("usual", HoldMode::Usual), ("strict", HoldMode::Strict)],
            ),
        };
        let image_tokens = self.whole(
            raw.image_tokens,
            "ledger.image_tokens",
            5_000,
            1..=TOKENS_MAX,
        );
        let document_tokens = self.whole(
            raw.document_tokens,
            "ledger.document_tokens",
            50_000,
            1..=TOKENS_MAX,
        );
        let hold_grace = self.seconds(raw.hold_grace_seconds, "ledger.hold_grace_seconds", 60, 1);
        let open_wait = self.seconds(raw.open_wait_seconds, "ledger.open_wait_seconds", 0, 0);
        let outbox = raw.outbox.as_deref().unwrap_or("tollgate-outbox.db");
        let outbox = self.keep(outbox_path(outbox), "ledger.outbox");
        let outbox_calls_max = self.whole(
            raw.outbox_calls_max,
            "ledger.outbox_calls_max",
            100_000,
            1..=10_000_000,
        );
        let outbox_age_max = self.seconds(
            raw.outbox_age_max_seconds,
            "ledger.outbox_age_max_seconds",
            3600,
            1,
        );
        Some(LedgerConfig {
            url: url?,
            hold: hold?,
            image_tokens: image_tokens?,
            document_tokens: document_tokens?,
            hold_grace: hold_grace?,
            open_wait: open_wait?,
            outbox: OutboxConfig {
                path: outbox?,
                calls_max: outbox_calls_max?,
                age_max: outbox_age_max?,
            },
        })
    }

    fn models(&mut self, raw: Vec<RawModel>, vendors: &Vendors) -> Option<Vec<ModelConfig>> {
        if raw.is_empty() {
            self.errors
                .missing("model", "add a [[model]], or there is nothing to sell");
            return None;
        }
        let mut ids = HashSet::new();
        let models: Vec<_> = raw
            .into_iter()
            .enumerate()
            .map(|(index, raw)| {
                let path = format!("model[{index}]");
                // Before the rest, whose mistakes must not hide this one.
                if let Some(id) = raw.id.as_ref().filter(|id| !id.is_empty())
                    && !ids.insert(id.clone())
                {
                    self.errors.add(
                        format!("{path}.id"),
                        format!("{id:?} is there already: one model each id"),
                    );
                }
                self.model(raw, &path, vendors)
            })
            .collect();
        models.into_iter().collect()
    }

    fn model(&mut self, raw: RawModel, path: &str, vendors: &Vendors) -> Option<ModelConfig> {
        let at = |field: &str| format!("{path}.{field}");
        let dialect = self.dialect(&raw.dialect(), Dialect::default(), &at);
        let id = self.required(raw.id, &at("id"), "callers name it in the field `model`");
        let family = self.required(
            raw.family,
            &at("family"),
            "the catalog shows it, like \"GPT-5\"",
        );
        let display_name = self.line(
            raw.display_name,
            &at("display_name"),
            DISPLAY_NAME_CHARS_MAX,
        );
        let description = self.line(raw.description, &at("description"), DESCRIPTION_CHARS_MAX);
        let usdt_mtok = self.usdt_rates(raw.usdt_mtok, &at("usdt_mtok"));
        if raw.output_tokens_max.is_none() {
            self.errors.missing(
                &at("output_tokens_max"),
                "give the most output tokens that the model can write",
            );
        }
        let max = self.whole(
            raw.output_tokens_max,
            &at("output_tokens_max"),
            TOKENS_MAX,
            1..=TOKENS_MAX,
        );
        let min_range = 1..=max.unwrap_or(TOKENS_MAX);
        let min = self.whole(
            raw.output_tokens_min,
            &at("output_tokens_min"),
            256_u64.min(*min_range.end()),
            min_range,
        );
        let default = self.optional(
            raw.output_tokens_default,
            &at("output_tokens_default"),
            min.unwrap_or(1)..=max.unwrap_or(TOKENS_MAX),
        );
        let input_tokens_max = self.optional(
            raw.input_tokens_max,
            &at("input_tokens_max"),
            1..=TOKENS_MAX,
        );
        let window = input_tokens_max.flatten().unwrap_or(TOKENS_MAX);
        let input_tokens_priced_max = self.optional(
            raw.input_tokens_priced_max,
            &at("input_tokens_priced_max"),
            1..=window,
        );
        let usual = dialect.unwrap_or_default();
        let routes = self.routes(raw.routes, &at("routes"), id.as_deref(), usual, vendors);
        Some(ModelConfig {
            id: id?,
            family: family?,
            display_name: display_name?,
            description: description?,
            usdt_mtok: usdt_mtok?,
            output_tokens_max: max?,
            output_tokens_min: min?,
            output_tokens_default: default?,
            input_tokens_max: input_tokens_max?,
            input_tokens_priced_max: input_tokens_priced_max?,
            sticky: raw.sticky.unwrap_or(false),
            routes: dialect.and(routes)?,
        })
    }

    fn usdt_rates(&mut self, raw: Option<RawUsdt>, path: &str) -> Option<UsdtRates> {
        let Some(raw) = raw else {
            self.errors.missing(
                path,
                "a model without a full price cannot be called: give input, cached_input, output and cache_write",
            );
            return None;
        };
        let [input, cached_input, output, cache_write] = [
            ("input", raw.input),
            ("cached_input", raw.cached_input),
            ("output", raw.output),
            ("cache_write", raw.cache_write),
        ]
        .map(|(name, given)| {
            let path = format!("{path}.{name}");
            let advice = "a model without a full price cannot be called: give USDT per million tokens, like \"0.25\"";
            let text = self.required(given, &path, advice)?;
            self.decimal(&text, &path, 9, 1_000_000)
        });
        let cache_write_1h = match raw.cache_write_1h {
            None => Some(None),
            Some(text) => {
                let path = format!("{path}.cache_write_1h");
                let rate = self.decimal(&text, &path, 9, 1_000_000);
                if rate
                    .zip(cache_write)
                    .is_some_and(|(long, short)| long < short)
                {
                    let problem = "is below cache_write: what is kept for longer costs more";
                    self.warnings.add(path, problem);
                }
                rate.map(Some)
            }
        };
        if cached_input
            .zip(input)
            .is_some_and(|(cached, input)| cached > input)
        {
            self.warnings.add(
                format!("{path}.cached_input"),
                "is above input: what is read from a cache costs less",
            );
        }
        Some(UsdtRates {
            input: input?,
            cached_input: cached_input?,
            output: output?,
            cache_write: cache_write?,
            cache_write_1h: cache_write_1h?,
        })
    }

    /// Notes the mistake, if it is one.
    pub(super) fn keep<T, E: Display>(&mut self, result: Result<T, E>, path: &str) -> Option<T> {
        result
            .map_err(|problem| self.errors.add(path, problem.to_string()))
            .ok()
    }

    pub(super) fn required(
        &mut self,
        given: Option<String>,
        path: &str,
        advice: &str,
    ) -> Option<String> {
        let given = given.filter(|text| !text.is_empty());
        if given.is_none() {
            self.errors.missing(path, advice);
        }
        given
    }

    /// A short text for people, if there is one.
    fn line(
        &mut self,
        given: Option<String>,
        path: &str,
        chars_max: usize,
    ) -> Option<Option<String>> {
        let fits = given.as_ref().is_none_or(|text| {
            (1..=chars_max).contains(&text.chars().count())
                && text.trim() == text
                && !text.contains(char::is_control)
        });
        if !fits {
            self.errors.add(
                path,
                format!(
                    "must be 1 to {chars_max} characters in one line, without blanks around them"
                ),
            );
        }
        fits.then_some(given)
    }

    pub(super) fn secret(
        &mut self,
        given: Option<String>,
        path: &str,
        advice: &str,
    ) -> Option<SecretString> {
        let text = self.required(given, path, advice)?;
        let value = secret(&text, self.env);
        self.keep(value, path)
    }

    fn address(&mut self, text: &str, path: &str) -> Option<SocketAddr> {
        let address = text
            .parse::<SocketAddr>()
            .map_err(|_| "must be an IP address with a port, like \"127.0.0.1:8080\"");
        self.keep(address, path)
    }

    pub(super) fn choice<T, const N: usize>(
        &mut self,
        text: &str,
        path: &str,
        choices: [(&str, T); N],
    ) -> Option<T> {
        let names = choices
            .each_ref()
            .map(|(name, _)| format!("\"{name}\""))
            .join(" or ");
        let chosen = choices.into_iter().find(|(name, _)| *name == text);
        if chosen.is_none() {
            self.errors.add(path, format!("must be {names}"));
        }
        chosen.map(|(_, value)| value)
    }

    /// A number within a range that a `T` can hold.
    pub(super) fn whole<T: TryFrom<u64>>(
        &mut self,
        given: Option<u64>,
        path: &str,
        default: u64,
        range: RangeInclusive<u64>,
    ) -> Option<T> {
        let number = given.unwrap_or(default);
        if !range.contains(&number) {
            self.errors.add(
                path,
                format!("must be {} to {}", range.start(), range.end()),
            );
            return None;
        }
        T::try_from(number).ok()
    }

    /// The same where there may be none.
    fn optional(
        &mut self,
        given: Option<u64>,
        path: &str,
        range: RangeInclusive<u64>,
    ) -> Option<Option<u64>> {
        match given {
            None => Some(None),
            Some(number) => self.whole(given, path, number, range).map(Some),
        }
    }

    pub(super) fn seconds(
        &mut self,
        given: Option<u64>,
        path: &str,
        default: u64,
        min: u64,
    ) -> Option<Duration> {
        self.whole(given, path, default, min..=DAY_SECONDS)
            .map(Duration::from_secs)
    }

    /// A decimal above zero. Few digits keep base price × rate × multiplier exact for any price that
    /// a model has.
    pub(super) fn decimal(
        &mut self,
        text: &str,
        path: &str,
        digits_max: u32,
        max: u32,
    ) -> Option<Decimal> {
        let value = decimal_above_zero(text, digits_max, max);
        self.keep(value, path)
    }
}

fn decimal_above_zero(text: &str, digits_max: u32, max: u32) -> Result<Decimal, String> {
    let plain = text
        .bytes()
        .all(|byte| byte.is_ascii_digit() || byte == b'.' || byte == b'-');
    let value = plain.then(|| Decimal::from_str_exact(text).ok()).flatten();
    let value = value
        .ok_or("must be a decimal number in quotes, like \"1.15\"")?
        .normalize();
    if value <= Decimal::ZERO {
        return Err("must be above 0, so that nothing is free by accident".to_owned());
    }
    if value.scale() > digits_max {
        return Err(format!(
            "must have at most {digits_max} digits behind the point"
        ));
    }
    if value > Decimal::from(max) {
        return Err(format!("must be at most {max}"));
    }
    Ok(value)
}

/// An address of http or https, without user and password. What is said never repeats the text.
pub(super) fn web_address(text: &str) -> Result<Uri, String> {
    let advice = "must be an address like https://host/path";
    let uri: Uri = text.parse().map_err(|_| advice.to_owned())?;
    if !matches!(uri.scheme_str(), Some("http" | "https")) || uri.host().is_none_or(str::is_empty) {
        return Err(format!("{advice}, with http or https"));
    }
    if uri
        .authority()
        .is_some_and(|authority| authority.as_str().contains('@'))
    {
        return Err(
            "has a user or a password in it: take them out, a key goes into a field of its own"
                .to_owned(),
        );
    }
    if text.contains('#') {
        return Err("has a '#' in it: take away what begins there".to_owned());
    }
    Ok(uri)
}

pub(super) fn without_query(uri: Uri) -> Result<Uri, String> {
    match uri.query() {
        None => Ok(uri),
        Some(_) => {
            Err("has a '?' in it: take away what begins there, paths are put behind it".to_owned())
        }
    }
}

fn outbox_path(text: &str) -> Result<PathBuf, String> {
    if text.is_empty() || text.contains(':') {
        return Err(
            "must be the path of a file, like tollgate-outbox.db: one for each gateway".into(),
        );
    }
    Ok(PathBuf::from(text))
}

pub(super) fn ledger_url(text: &str, env: Env<'_>) -> Result<LedgerUrl, String> {
    let reference = referred(text, env);
    let literal = reference.is_none();
    let url = reference.unwrap_or_else(|| Ok(text.to_owned()))?;
    if url == "memory:" {
        return Ok(LedgerUrl::Memory);
    }
    if let Some(path) = url.strip_prefix("sqlite:") {
        return match path {
            "" => Err("needs a path: sqlite:PATH, like sqlite:tollgate.db".to_owned()),
            path => Ok(LedgerUrl::Sqlite(path.into())),
        };
    }
    let schemes = ["redis", "redis-sentinel", "redis-cluster"];
    let is_redis = url
        .split_once("://")
        .map(|(scheme, _)| scheme.replacen("rediss", "redis", 1))
        .is_some_and(|scheme| schemes.contains(&scheme.as_str()));
    if !is_redis {
        return Err(
            "must be memory:, sqlite:PATH, redis://HOST:PORT/DB, redis-sentinel://HOST:PORT,HOST:PORT/MASTER \
             or redis-cluster://HOST:PORT,HOST:PORT; rediss://, rediss-sentinel:// and rediss-cluster:// \
             for TLS"
                .to_owned(),
        );
    }
    let parsed = RedisUrl::parse(&url).map_err(|error| error.to_string())?;
    if literal && parsed.has_credentials() {
        return Err(
            "has a password in it: put the whole address into the environment and write \"${NAME}\" here".to_owned()
        );
    }
    Ok(LedgerUrl::Redis(url))
}
