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

use bytes::Bytes;
use http::{HeaderValue, Method, Uri};
use ipnet::IpNet;
use rust_decimal::Decimal;
use secrecy::{ExposeSecret, SecretString};
use tollgate_layers::{model::Dialect, redis_conn::RedisUrl, reserve::HoldMode, respond::Language};

use super::{
    AdminConfig, Config, HttpSource, LedgerConfig, LedgerUrl, Limits, LiveConfig, ModelConfig,
    OutboxConfig, RateConfig, RateSource, Tariff, UsdtRates,
    error::Errors,
    raw::{RawAdmin, RawConfig, RawLedger, RawLimits, RawModel, RawRate, RawSource, RawUsdt},
    secret::{Env, referred, secret},
    vendor::Vendors,
};
use crate::{
    select_json::Selector,
    server::{ConnectionLimits, H2Limits},
};

const DAY_SECONDS: u64 = 86_400;
const TOKENS_MAX: u64 = 1_000_000_000;

pub(super) struct Check<'a> {
    pub(super) errors: Errors,
    pub(super) env: Env<'a>,
}

impl Check<'_> {
    pub(super) fn config(&mut self, raw: RawConfig) -> Option<Config> {
        let listen = self.address(raw.listen.as_deref().unwrap_or("127.0.0.1:8080"), "listen");
        let service = self.service(raw.service);
        let base_url = self.base_url(raw.base_url.as_deref(), listen);
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
        let ledger = self.ledger(&raw.ledger);
        let limits = self.limits(&raw.limits);
        let rate = self.rate(raw.rate);
        let multiplier = raw.tariff.sell_rate_multiplier.as_deref().unwrap_or("1");
        let multiplier = self.decimal(multiplier, "tariff.sell_rate_multiplier", 6, 1_000);
        let vendors = self.vendors(raw.vendor);
        let models = self.models(raw.model, &vendors);
        Some(Config {
            listen: listen?,
            service: service?,
            base_url: base_url?,
            language: language?,
            trusted_proxies: trusted_proxies?,
            admin: admin?,
            ledger: ledger?,
            limits: limits?,
            live: LiveConfig {
                rate: rate?,
                tariff: Tariff {
                    sell_rate_multiplier: multiplier?,
                },
                models: models?,
            },
        })
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

    fn base_url(&mut self, given: Option<&str>, listen: Option<SocketAddr>) -> Option<String> {
        let Some(text) = given else {
            return listen.map(|listen| format!("http://{listen}/v1"));
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
        Some(AdminConfig {
            listen: listen?,
            key,
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
            outbox: OutboxConfig {
                path: outbox?,
                calls_max: usize::try_from(outbox_calls_max?).ok()?,
                age_max: outbox_age_max?,
            },
        })
    }

    fn limits(&mut self, raw: &RawLimits) -> Option<Limits> {
        const MANY: u64 = 1_000_000;
        const BYTES: u64 = 1 << 40;
        let catalog = self.whole(
            raw.catalog_requests_per_second,
            "limits.catalog_requests_per_second",
            10,
            1..=MANY,
        );
        let requests = match raw.requests_per_second {
            None => Some(None),
            some => self
                .whole(some, "limits.requests_per_second", 1, 1..=MANY)
                .map(Some),
        };
        let unknown_keys = self.whole(
            raw.unknown_keys_per_second,
            "limits.unknown_keys_per_second",
            10,
            1..=MANY,
        );
        let unknown_keys_burst = self.whole(
            raw.unknown_keys_burst,
            "limits.unknown_keys_burst",
            300,
            1..=MANY,
        );
        let uri_bytes_max =
            self.whole(raw.uri_bytes_max, "limits.uri_bytes_max", 2048, 64..=65_536);
        let in_flight = self.whole(raw.in_flight_max, "limits.in_flight_max", 10_000, 1..=MANY);
        let body_bytes_max = self.whole(
            raw.body_bytes_max,
            "limits.body_bytes_max",
            33_554_432,
            1..=BYTES,
        );
        let in_flight_bytes = self.whole(
            raw.body_bytes_in_flight_max,
            "limits.body_bytes_in_flight_max",
            // Room for one body at least, or none could ever come.
            body_bytes_max.unwrap_or_default().max(536_870_912),
            1..=BYTES,
        );
        if let (Some(one), Some(all)) = (body_bytes_max, in_flight_bytes)
            && all < one
        {
            self.errors.add(
                "limits.body_bytes_in_flight_max",
                "must be at least body_bytes_max, or the largest bodies are never taken",
            );
        }
        let body_timeout = self.seconds(raw.body_seconds, "limits.body_seconds", 60, 1);
        let body_rate_min = self.whole(
            raw.body_bytes_per_second_min,
            "limits.body_bytes_per_second_min",
            1024,
            1..=BYTES,
        );
        let answer_bytes_max = self.whole(
            raw.answer_bytes_max,
            "limits.answer_bytes_max",
            67_108_864,
            1..=BYTES,
        );
        let messages_max = self.whole(raw.messages_max, "limits.messages_max", 10_000, 1..=MANY);
        let call_time_max = self.seconds(raw.call_seconds, "limits.call_seconds", 900, 1);
        let drain_timeout = self.seconds(raw.drain_seconds, "limits.drain_seconds", 30, 0);
        // All attempts at a call take no longer than this; what does is stuck.
        let longest = [call_time_max, body_timeout].into_iter().flatten();
        let longest = longest.sum::<Duration>() + Duration::from_secs(300);
        let request_timeout = self.seconds(
            raw.request_seconds,
            "limits.request_seconds",
            longest.as_secs().min(DAY_SECONDS),
            1,
        );
        let connections = self.connections(raw, request_timeout);
        Some(Limits {
            connections: connections?,
            catalog_requests_per_second: u32::try_from(catalog?).ok()?,
            requests_per_second: match requests? {
                None => None,
                Some(requests) => Some(u32::try_from(requests).ok()?),
            },
            unknown_keys_per_second: u32::try_from(unknown_keys?).ok()?,
            unknown_keys_burst: u32::try_from(unknown_keys_burst?).ok()?,
            uri_bytes_max: usize::try_from(uri_bytes_max?).ok()?,
            in_flight_max: usize::try_from(in_flight?).ok()?,
            body_bytes_in_flight_max: in_flight_bytes?,
            body_bytes_max: body_bytes_max?,
            body_timeout: body_timeout?,
            body_rate_min: body_rate_min?,
            answer_bytes_max: usize::try_from(answer_bytes_max?).ok()?,
            messages_max: messages_max?,
            call_time_max: call_time_max?,
            drain_timeout: drain_timeout?,
        })
    }

    fn connections(
        &mut self,
        raw: &RawLimits,
        request_timeout: Option<Duration>,
    ) -> Option<ConnectionLimits> {
        let usual = ConnectionLimits::default();
        let max = self.whole(
            raw.connections_max,
            "limits.connections_max",
            usual.max as u64,
            1..=10_000_000,
        );
        let per_address_max = self.whole(
            raw.connections_per_address_max,
            "limits.connections_per_address_max",
            usual.per_address_max as u64,
            1..=10_000_000,
        );
        let mut seconds = |given, name: &str, usual: Duration| {
            self.seconds(given, &format!("limits.{name}_seconds"), usual.as_secs(), 1)
        };
        let age_max = seconds(raw.connection_age_seconds, "connection_age", usual.age_max);
        let first_byte = seconds(
            raw.first_byte_seconds,
            "first_byte",
            usual.first_byte_timeout,
        );
        let head = seconds(raw.head_seconds, "head", usual.head_timeout);
        let idle = seconds(raw.idle_seconds, "idle", usual.idle_timeout);
        let write = seconds(raw.write_seconds, "write", usual.write_timeout);
        let headers_max = self.whole(
            raw.headers_max,
            "limits.headers_max",
            usual.headers_max as u64,
            8..=1000,
        );
        let head_bytes_max = self.whole(
            raw.head_bytes_max,
            "limits.head_bytes_max",
            usual.head_bytes_max as u64,
            4096..=1_048_576,
        );
        let h2 = self.h2(raw, usual.h2);
        Some(ConnectionLimits {
            headers_max: usize::try_from(headers_max?).ok()?,
            head_bytes_max: usize::try_from(head_bytes_max?).ok()?,
            h2: h2?,
            max: usize::try_from(max?).ok()?,
            per_address_max: usize::try_from(per_address_max?).ok()?,
            first_byte_timeout: first_byte?,
            head_timeout: head?,
            idle_timeout: idle?,
            age_max: age_max?,
            request_timeout: request_timeout?,
            write_timeout: write?,
        })
    }

    fn h2(&mut self, raw: &RawLimits, usual: H2Limits) -> Option<H2Limits> {
        // What HTTP/2 itself begins with is the least, and what it can express the most.
        const WINDOW: RangeInclusive<u64> = 65_535..=0x7fff_ffff;
        let streams_max = self.whole(
            raw.h2_streams_max,
            "limits.h2_streams_max",
            usual.streams_max.into(),
            1..=10_000,
        );
        let stream_window = self.whole(
            raw.h2_stream_window_bytes,
            "limits.h2_stream_window_bytes",
            usual.stream_window_bytes.into(),
            WINDOW,
        );
        let connection_window = self.whole(
            raw.h2_connection_window_bytes,
            "limits.h2_connection_window_bytes",
            usual.connection_window_bytes.into(),
            WINDOW,
        );
        let ping_interval = self.seconds(
            raw.h2_ping_seconds,
            "limits.h2_ping_seconds",
            usual.ping_interval.as_secs(),
            1,
        );
        let ping_timeout = self.seconds(
            raw.h2_ping_timeout_seconds,
            "limits.h2_ping_timeout_seconds",
            usual.ping_timeout.as_secs(),
            1,
        );
        Some(H2Limits {
            streams_max: u32::try_from(streams_max?).ok()?,
            stream_window_bytes: u32::try_from(stream_window?).ok()?,
            connection_window_bytes: u32::try_from(connection_window?).ok()?,
            ping_interval: ping_interval?,
            ping_timeout: ping_timeout?,
        })
    }

    fn rate(&mut self, raw: RawRate) -> Option<RateConfig> {
        let age_max = self.seconds(raw.max_age_seconds, "rate.max_age_seconds", 600, 1);
        // Two looks within the age, so that one lost answer does not take the prices away.
        let often = age_max.map_or(60, |age| (age.as_secs() / 2).clamp(1, 60));
        let refresh = self.seconds(raw.refresh_seconds, "rate.refresh_seconds", often, 1);
        if let (Some(age_max), Some(refresh)) = (age_max, refresh)
            && refresh > age_max
        {
            self.errors.add(
                "rate.refresh_seconds",
                "must be less than max_age_seconds, or prices come and go",
            );
        }
        let step = raw.step_max_percent.as_deref().unwrap_or("20");
        let step_max_percent = self.decimal(step, "rate.step_max_percent", 6, 1_000_000);
        if raw.source.is_empty() {
            self.errors.missing(
                "rate.source",
                "add [[rate.source]] with fixed = \"90.50\", or with url and select",
            );
        }
        let sources: Vec<_> = raw
            .source
            .into_iter()
            .enumerate()
            .map(|(index, source)| self.rate_source(source, &format!("rate.source[{index}]")))
            .collect();
        Some(RateConfig {
            age_max: age_max?,
            refresh: refresh?,
            step_max_percent: step_max_percent?,
            sources: sources.into_iter().collect::<Option<_>>()?,
        })
    }

    fn rate_source(&mut self, raw: RawSource, path: &str) -> Option<RateSource> {
        let url = match (raw.fixed, raw.url) {
            (Some(fixed), None) => {
                for (name, given) in [
                    ("select", raw.select.is_some()),
                    ("method", raw.method.is_some()),
                    ("body", raw.body.is_some()),
                    ("min", raw.min.is_some()),
                    ("max", raw.max.is_some()),
                ] {
                    if given {
                        self.errors.add(
                            format!("{path}.{name}"),
                            "means nothing beside fixed: take it out",
                        );
                    }
                }
                return self
                    .rate_decimal(&fixed, &format!("{path}.fixed"))
                    .map(RateSource::Fixed);
            }
            (None, Some(url)) => url,
            (Some(_), Some(_)) => {
                self.errors
                    .add(path, "has fixed and url: keep one of them, and give the other its own [[rate.source]]");
                return None;
            }
            (None, None) => {
                self.errors
                    .missing(path, "give fixed = \"90.50\", or url and select");
                return None;
            }
        };
        // The address may be a reference: some sources take their key in the query.
        let url = referred(&url, self.env)
            .unwrap_or(Ok(url))
            .and_then(|url| web_address(&url));
        let url = self.keep(url, &format!("{path}.url"));
        let select = self.required(
            raw.select,
            &format!("{path}.select"),
            "say where the number stands, like /data/price",
        );
        let select =
            select.and_then(|text| self.keep(text.parse::<Selector>(), &format!("{path}.select")));
        let method = match raw.method.as_deref() {
            None => Some(Method::GET),
            Some(text) => self.choice(
                text,
                &format!("{path}.method"),
                [("GET", Method::GET), ("POST", Method::POST)],
            ),
        };
        let body = raw.body.unwrap_or_default();
        if !body.is_empty() && method == Some(Method::GET) {
            self.errors.add(
                format!("{path}.body"),
                "is only sent with method = \"POST\"",
            );
        }
        let min = self.bound(raw.min.as_deref(), &format!("{path}.min"));
        let max = self.bound(raw.max.as_deref(), &format!("{path}.max"));
        if let (Some(Some(min)), Some(Some(max))) = (min, max)
            && min > max
        {
            self.errors.add(
                format!("{path}.min"),
                "is above max: no rate would be believed",
            );
        }
        Some(RateSource::Http(Box::new(HttpSource {
            url: url?,
            method: method?,
            body: Bytes::from(body),
            select: select?,
            min: min?,
            max: max?,
        })))
    }

    fn bound(&mut self, given: Option<&str>, path: &str) -> Option<Option<Decimal>> {
        match given {
            None => Some(None),
            Some(text) => self.rate_decimal(text, path).map(Some),
        }
    }

    fn rate_decimal(&mut self, text: &str, path: &str) -> Option<Decimal> {
        self.decimal(text, path, 6, 1_000_000)
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
                let model = self.model(raw, &path, vendors)?;
                if !ids.insert(model.id.clone()) {
                    self.errors.add(
                        format!("{path}.id"),
                        format!("{:?} is there already: one model each id", model.id),
                    );
                }
                Some(model)
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
        let input_tokens_max = match raw.input_tokens_max {
            None => Some(None),
            some => self
                .whole(some, &at("input_tokens_max"), 1, 1..=TOKENS_MAX)
                .map(Some),
        };
        let usual = dialect.unwrap_or_default();
        let routes = self.routes(raw.routes, &at("routes"), id.as_deref(), usual, vendors);
        Some(ModelConfig {
            id: id?,
            family: family?,
            usdt_mtok: usdt_mtok?,
            output_tokens_max: max?,
            output_tokens_min: min?,
            input_tokens_max: input_tokens_max?,
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
        Some(UsdtRates {
            input: input?,
            cached_input: cached_input?,
            output: output?,
            cache_write: cache_write?,
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

    pub(super) fn whole(
        &mut self,
        given: Option<u64>,
        path: &str,
        default: u64,
        range: RangeInclusive<u64>,
    ) -> Option<u64> {
        let number = given.unwrap_or(default);
        if !range.contains(&number) {
            self.errors.add(
                path,
                format!("must be {} to {}", range.start(), range.end()),
            );
            return None;
        }
        Some(number)
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
    fn decimal(&mut self, text: &str, path: &str, digits_max: u32, max: u32) -> Option<Decimal> {
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
