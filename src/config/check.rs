//! Checks of the settings' values. Each check turns a value into a type that can only hold valid values, or records a
//! mistake.
//!
//! After a mistake, the checks continue, because all mistakes are reported together. For an invalid value, a check
//! returns `None` or any valid value. The recorded mistake causes the configuration to be rejected in any case.

use std::{
    fmt::Display, net::SocketAddr, ops::RangeInclusive, path::Path, sync::Arc, time::Duration,
};

use http::Uri;
use rust_decimal::Decimal;
use secrecy::SecretString;
use tollgate_layers::respond::Language;

use super::{
    Config, LiveConfig, ModelConfig, RateConfig, SellerConfig,
    error::Errors,
    raw::RawConfig,
    secret::{Env, secret},
    vendor::{Vendors, connections_of},
};
use crate::net::files::Shares;

pub(super) const DAY_SECONDS: u64 = 86_400;
pub(super) const TOKENS_MAX: u64 = 1_000_000_000;
/// Default of `limits.call_seconds`, the maximum duration of a call.
pub(super) const CALL_TIME_MAX: Duration = Duration::from_secs(900);

pub(super) struct Check<'a> {
    pub(super) errors: Errors,
    /// Likely mistakes that do not make the configuration invalid.
    pub(super) warnings: Errors,
    pub(super) env: Env<'a>,
}

/// Calls a check for a field of a section, with the field's path in the file, for example `ledger.hold`.
macro_rules! field_of {
    ($section:literal: $check:ident.$kind:ident($raw:ident.$field:ident, $($rest:expr),+ $(,)?)) => {
        $check.$kind($raw.$field, concat!($section, ".", stringify!($field)), $($rest),+)
    };
}

pub(super) use field_of;

/// Returns all values, or `None` if one is missing. All values are computed first, so that every mistake is recorded.
pub(super) fn all<T, C: FromIterator<T>>(checked: impl Iterator<Item = Option<T>>) -> Option<C> {
    let checked: Vec<_> = checked.collect();
    checked.into_iter().collect()
}

/// Checks a part of the configuration that may be absent. Returns `Some(None)` if it is absent, and `None` after a
/// mistake.
pub(super) fn maybe<T, U>(
    given: Option<T>,
    check: impl FnOnce(T) -> Option<U>,
) -> Option<Option<U>> {
    given.map_or(Some(None), |given| check(given).map(Some))
}

impl Check<'_> {
    pub(super) fn config(&mut self, mut raw: RawConfig) -> Option<Config> {
        let listen = self.address(raw.listen.as_deref().unwrap_or("127.0.0.1:8080"), "listen");
        let service = self.service(raw.service.take());
        let scheme = if raw.tls.is_some() { "https" } else { "http" };
        let base_url = self.base_url(raw.base_url.as_deref(), listen, scheme);
        let tls = raw.tls.take();
        let tls = tls.and_then(|tls| self.tls(tls, raw.base_url.as_deref()));
        let reuse_port = raw.reuse_port.unwrap_or(false);
        let reload_poll = self.seconds(raw.reload_poll_seconds, "reload_poll_seconds", 10, 0);
        let languages = [("ru", Language::Ru), ("en", Language::En)];
        let language = self.choice_or(raw.language.as_deref(), Language::Ru, "language", languages);
        let trusted_proxies = self.networks(&raw.trusted_proxies);
        let cors_origins = self.origins(&raw.cors_origins);
        let admin = raw.admin.take().and_then(|admin| self.admin(admin, listen));
        let traces = raw.traces.take().and_then(|traces| self.traces(traces));
        let seller = raw.seller.take().and_then(|seller| self.seller(seller));
        let utc_offset = seller.as_ref().map_or(0, |it| it.utc_offset_minutes);
        let receivers = self.receivers(&mut raw, utc_offset);
        let payments = raw.payments.take();
        let payments = payments.and_then(|payments| self.payments(payments));
        let cabinet = raw.cabinet.take().and_then(|cabinet| self.cabinet(cabinet));
        let ledger = self.ledger(&raw.ledger);
        let idempotency = self.idempotency(&raw.idempotency);
        let mut limits = self.limits(&raw.limits);
        let names: Vec<_> = raw.vendor.iter().map(|raw| raw.name.clone()).collect();
        let vendors = self.vendors(std::mem::take(&mut raw.vendor), limits.call_time_max);
        if raw.limits.connections_max.is_none() {
            limits.connections.max = Shares::of_process(connections_of(&vendors)).callers;
        }
        let live = self.live(raw, &vendors, &names, seller);
        Some(Config {
            file: None,
            listen: listen?,
            reuse_port,
            service: service?,
            base_url: base_url?,
            language,
            trusted_proxies,
            cors_origins,
            reload_poll: Some(reload_poll).filter(|time| !time.is_zero()),
            tls,
            admin,
            traces,
            receivers: receivers?,
            payments,
            cabinet,
            ledger: ledger?,
            idempotency,
            limits,
            live: live?,
            warnings: Vec::new(),
            presets: Vec::new(),
        })
    }

    /// Checks the part of the configuration that a reload replaces while calls are in flight.
    fn live(
        &mut self,
        raw: RawConfig,
        vendors: &Vendors,
        names: &[Option<String>],
        seller: Option<SellerConfig>,
    ) -> Option<LiveConfig> {
        let rate = self.rate(&raw.rate);
        let tariff = self.tariff(&raw.tariff, &raw.model);
        let exchange_rate = rate.as_ref().and_then(RateConfig::fixed);
        let models = self.models(raw.model, vendors);
        self.unused(names, models.as_deref());
        if let Some((models, tariff)) = models.as_deref().zip(tariff) {
            self.sold_below_cost(models, tariff, exchange_rate);
        }
        let price_lists = self.price_lists(
            raw.account_group,
            raw.price_rule,
            models.as_deref(),
            tariff,
            exchange_rate,
        );
        Some(LiveConfig {
            rate: rate?,
            tariff: tariff?,
            models: models?,
            price_lists: price_lists?,
            seller: seller.map(Arc::new),
        })
    }

    /// Records a warning for each vendor to which no model has a route.
    fn unused(&mut self, names: &[Option<String>], models: Option<&[ModelConfig]>) {
        let Some(models) = models else { return };
        let routes = || models.iter().flat_map(|model| &model.routes);
        for (index, name) in names.iter().enumerate() {
            let Some(name) = name else { continue };
            if !routes().any(|route| *route.vendor.name == **name) {
                self.warnings.add(
                    format!("vendor[{index}].name"),
                    format!("no model has a route to the vendor {name:?}: add a route or remove the vendor"),
                );
            }
        }
    }

    /// Returns the value of `result`, or records its error as a mistake in the field at `path`.
    pub(super) fn keep<T, E: Display>(&mut self, result: Result<T, E>, path: &str) -> Option<T> {
        result
            .map_err(|problem| self.errors.add(path, problem.to_string()))
            .ok()
    }

    /// Records a mistake in the field at `path`, and returns `None`.
    pub(super) fn refuse<T>(
        &mut self,
        path: impl Into<String>,
        problem: impl Into<String>,
    ) -> Option<T> {
        self.errors.add(path, problem);
        None
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

    pub(super) fn secret(
        &mut self,
        given: Option<String>,
        path: &str,
        advice: &str,
    ) -> Option<SecretString> {
        let text = self.required(given, path, advice)?;
        let value = secret(&text, self.env);
        if let Some(file) = text.strip_prefix("file:") {
            self.warn_of_open_file(path, Path::new(file));
        }
        self.keep(value, path)
    }

    /// Records a warning about a file with a secret, if users other than its owner and group can read the file, or if
    /// any user other than its owner can write it.
    pub(super) fn warn_of_open_file(&mut self, path: &str, file: &Path) {
        use std::os::unix::fs::PermissionsExt as _;

        const OTHERS: u32 = 0o007;
        const GROUP_WRITES: u32 = 0o020;
        let Ok(metadata) = std::fs::metadata(file) else {
            return;
        };
        let mode = metadata.permissions().mode() & 0o777;
        if mode & (OTHERS | GROUP_WRITES) != 0 {
            let shown = file.display();
            self.warnings.add(
                path,
                format!("{shown} is open to other users of this machine (mode {mode:03o}): chmod 600 {shown}"),
            );
        }
    }

    /// Returns the value of the choice that `given` names, or the default `usual` if the setting is absent. An unknown
    /// name is recorded as a mistake, and `usual` is returned.
    pub(super) fn choice_or<T, const N: usize>(
        &mut self,
        given: Option<&str>,
        usual: T,
        path: &str,
        choices: [(&str, T); N],
    ) -> T {
        let chosen = given.and_then(|text| self.choice(text, path, choices));
        chosen.unwrap_or(usual)
    }

    /// Checks each item of the list at `path`. Returns `None` if an item has a mistake.
    pub(super) fn items<R, T>(
        &mut self,
        raw: impl IntoIterator<Item = R>,
        path: &str,
        mut check: impl FnMut(&mut Self, R, &str) -> Option<T>,
    ) -> Option<Vec<T>> {
        let items = raw.into_iter().enumerate();
        all(items.map(|(index, raw)| check(self, raw, &format!("{path}[{index}]"))))
    }

    /// Parses each text in a list. Invalid texts are recorded as mistakes and omitted from the result.
    pub(super) fn each<T, E: Display>(
        &mut self,
        given: &[String],
        path: &str,
        read: impl Fn(&str) -> Result<T, E>,
    ) -> Vec<T> {
        let texts = given.iter().enumerate();
        texts
            .filter_map(|(index, text)| self.keep(read(text), &format!("{path}[{index}]")))
            .collect()
    }

    pub(super) fn address(&mut self, text: &str, path: &str) -> Option<SocketAddr> {
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
        let names = choices.each_ref().map(|(name, _)| format!("\"{name}\""));
        match choices.into_iter().find(|(name, _)| *name == text) {
            Some((_, value)) => Some(value),
            None => self.refuse(path, format!("must be {}", names.join(" or "))),
        }
    }

    /// Returns the given number, or the default if none is given. If the number is out of range, records a mistake and
    /// returns the nearest number in the range.
    pub(super) fn whole<T: TryFrom<u64>>(
        &mut self,
        given: Option<u64>,
        path: &str,
        default: u64,
        range: RangeInclusive<u64>,
    ) -> T {
        let number = given.unwrap_or(default);
        let (least, most) = range.into_inner();
        if !(least..=most).contains(&number) {
            self.errors.add(path, format!("must be {least} to {most}"));
        }
        let number = T::try_from(number.clamp(least, most)).ok();
        number.expect("the range of a setting fits its type")
    }

    /// Checks a number like `whole`, for a setting without a default. Returns `None` if the setting is absent, and
    /// after a mistake.
    pub(super) fn optional<T: TryFrom<u64>>(
        &mut self,
        given: Option<u64>,
        path: &str,
        range: RangeInclusive<u64>,
    ) -> Option<T> {
        let is_valid = range.contains(&given?);
        let number = self.whole(given, path, 0, range);
        is_valid.then_some(number)
    }

    pub(super) fn seconds(
        &mut self,
        given: Option<u64>,
        path: &str,
        default: u64,
        min: u64,
    ) -> Duration {
        Duration::from_secs(self.whole(given, path, default, min..=DAY_SECONDS))
    }

    /// Parses a percentage that is above zero, is at most `max`, and has at most `digits_max` digits after the point.
    pub(super) fn percent(
        &mut self,
        text: &str,
        path: &str,
        digits_max: u32,
        max: u32,
    ) -> Option<Decimal> {
        let value = decimal_above_zero(text, digits_max, max, "must be above 0");
        self.keep(value, path)
    }

    /// Parses a price, a cost, an exchange rate or a multiplier: a decimal above zero. The number of digits is bounded:
    /// this makes the product of base price, exchange rate and multiplier exact.
    pub(super) fn decimal(
        &mut self,
        text: &str,
        path: &str,
        digits_max: u32,
        max: u32,
    ) -> Option<Decimal> {
        let free = "must be above 0: with 0, something would be free by accident";
        let value = decimal_above_zero(text, digits_max, max, free);
        self.keep(value, path)
    }
}

/// Parses a decimal above zero. `not_above` is the message for a value of zero or less.
fn decimal_above_zero(
    text: &str,
    digits_max: u32,
    max: u32,
    not_above: &str,
) -> Result<Decimal, String> {
    let is_plain = |byte: u8| byte.is_ascii_digit() || byte == b'.' || byte == b'-';
    let value = Decimal::from_str_exact(text).ok();
    let value = value.filter(|_| text.bytes().all(is_plain));
    let value = value
        .ok_or("must be a decimal number in quotes, like \"1.15\"")?
        .normalize();
    if value <= Decimal::ZERO {
        return Err(not_above.to_owned());
    }
    if value.scale() > digits_max {
        return Err(format!(
            "must have at most {digits_max} digits after the point"
        ));
    }
    if value > Decimal::from(max) {
        return Err(format!("must be at most {max}"));
    }
    Ok(value)
}

/// Parses an http or https URL without user name and password. The error message never contains the given text.
pub(super) fn web_address(text: &str) -> Result<Uri, String> {
    let advice = "must be a URL like https://host/path";
    let uri: Uri = text.parse().map_err(|_| advice.to_owned())?;
    if !matches!(uri.scheme_str(), Some("http" | "https")) || uri.host().is_none_or(str::is_empty) {
        return Err(format!("{advice}, with http or https"));
    }
    if uri.authority().is_some_and(|it| it.as_str().contains('@')) {
        return Err(
            "contains a user name or a password: remove it; a key has its own setting".to_owned(),
        );
    }
    if text.contains('#') {
        return Err("contains a '#': remove it and everything after it".to_owned());
    }
    Ok(uri)
}

pub(super) fn without_query(uri: Uri) -> Result<Uri, String> {
    match uri.query() {
        None => Ok(uri),
        Some(_) => {
            Err("contains a '?': remove it and everything after it, because the gateway appends paths to this URL".to_owned())
        }
    }
}

#[cfg(test)]
mod tests {
    use secrecy::ExposeSecret;

    use super::*;
    use crate::{
        config::{
            LedgerUrl, Limits, OutboxConfig,
            testing::{SMALL, assert_mistake, changed, parse, rows},
        },
        edge::server::ConnectionLimits,
    };

    #[test]
    fn unknown_language_is_refused() {
        assert_mistake(
            "[admin]",
            "language = \"de\"\n[admin]",
            "language",
            "\"ru\"",
        );
    }

    #[test]
    fn absent_settings_have_their_defaults() {
        let config = parse(SMALL).unwrap();
        assert_eq!(config.listen.to_string(), "127.0.0.1:8080");
        assert_eq!(config.base_url, "http://127.0.0.1:8080/v1");
        assert_eq!(config.ledger.url, LedgerUrl::Sqlite("tollgate.db".into()));
        assert_eq!(
            (config.ledger.image_tokens, config.ledger.document_tokens),
            (5_000, 50_000)
        );
        assert_eq!(config.ledger.search_tokens, 15_000);
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
                answer_bytes_in_flight_max: 268_435_456,
                messages_max: 10_000,
                connections: ConnectionLimits {
                    max: Shares::of_process(1024).callers,
                    ..ConnectionLimits::default()
                },
                call_time_max: Duration::from_secs(900),
                drain_timeout: Duration::from_secs(30),
            }
        );
        let rate = &config.live.rate;
        assert_eq!((rate.age_max.as_secs(), rate.refresh.as_secs()), (600, 60));
        assert_eq!(config.live.tariff.sell_rate_multiplier, Decimal::ONE);
        let admin = config.admin.unwrap();
        assert_eq!(admin.listen.to_string(), "127.0.0.1:8081");
        assert_eq!(admin.key.expose_secret(), "admin-7Kq2vW9xT4mZ8rB3");
        assert_eq!(admin.connections_max, Shares::of_process(0).operators);
    }

    #[test]
    fn all_configuration_errors_are_reported_at_once_with_their_lines() {
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
    fn likely_mistakes_in_the_configuration_cause_warnings() {
        let paths = |text: &str| -> Vec<String> {
            let config = parse(text).unwrap_or_else(|errors| panic!("{text}: {errors}"));
            config
                .warnings
                .into_iter()
                .map(|warning| warning.path)
                .collect()
        };
        let priced = changed("[admin]", "[tariff]\nsell_rate_multiplier = \"1\"\n[admin]");
        assert!(paths(&priced).is_empty());
        assert_eq!(paths(SMALL), ["tariff.sell_rate_multiplier"]);
        assert_eq!(
            paths(&format!("listen = \"0.0.0.0:80\"\n{priced}")),
            ["base_url"]
        );
        let cheap = "cache_write = \"0.25\", cache_write_1h = \"0.24\"";
        assert_eq!(
            paths(&priced.replace("cache_write = \"0.25\"", cheap)),
            ["model[0].usdt_mtok.cache_write_1h"]
        );
        let idle = "[[vendor]]\nname = \"idle\"\nformat = \"messages\"\n\
                url = \"https://h/v1\"\nkey = \"${VENDOR_KEY}\"\n";
        assert_eq!(
            paths(&format!("{priced}{idle}")),
            ["vendor[1].name", "vendor[1].url"]
        );
        for [idle, path] in rows(
            r#"
            [ledger]\nurl = "memory:"\nlease_ms_max = 1000\n | ledger.lease_ms_max
            [payments]\non_page = true\n | payments.on_page
            [admin]\noperators_file = "/none/operators.toml"\n | admin.operators_file
            [admin]\noperators_file = "/"\n | admin.operators_file
        "#,
        ) {
            let text = match idle.strip_prefix("[admin]\n") {
                None => format!("{priced}{idle}"),
                Some(field) => priced.replace("[admin]", &format!("[admin]\n{field}")),
            };
            assert_eq!(paths(&text), [path]);
        }
        let used = "[ledger]\nurl = \"${LEDGER_URL}\"\nlease_ms_max = 1000\n";
        assert!(paths(&format!("{priced}{used}")).is_empty());
    }

    #[test]
    fn leases_are_on_by_default_only_with_redis() {
        let has_leases = |ledger: &str| {
            let config = parse(&format!("{SMALL}[ledger]\n{ledger}\n")).unwrap();
            config.ledger.has_leases()
        };
        assert!(has_leases("url = \"${LEDGER_URL}\""));
        assert!(!has_leases("url = \"${LEDGER_URL}\"\nlease_ms_max = 0"));
        assert!(!has_leases("url = \"memory:\""));
    }
}
