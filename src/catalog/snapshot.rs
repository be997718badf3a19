//! What is sold right now: models with their prices, and the catalog that says so.
//!
//! A [`Snapshot`] is swapped whole. Whoever reads it decides by its own clock whether the exchange
//! rate is still fresh, so prices end in time even if nothing swaps them out.

use std::{collections::HashMap, sync::Arc, time::Duration};

use arc_swap::ArcSwap;
use bytes::Bytes;
use foldhash::fast::FixedState;
use http::HeaderValue;
use rust_decimal::Decimal;
use serde::Serialize;
use sha2::{Digest, Sha256};
use tokio::time::Instant;
use tollgate_layers::{
    model::{Found, Model, Models, Vendor},
    price::{Class, Price, PriceList, Rate, Rates},
    reserve::ledger::TariffVersion,
    respond::Language,
};

use crate::{
    config::{Config, ModelConfig, UsdtRates},
    endpoints::{
        connect::{Connect, Sold},
        openapi, page,
    },
    text::{similar::nearest, time::rfc3339},
};

/// The snapshot in force.
#[derive(Debug)]
pub struct Live {
    snapshot: ArcSwap<Snapshot>,
}

impl Live {
    /// The models of `config` without prices: those come with the first [`Live::set_rate`].
    #[must_use]
    pub fn new(config: &Config, version: TariffVersion) -> Self {
        let front = PublicUrls {
            service: config.service.clone(),
            base_url: config.base_url.clone(),
            language: config.language,
        };
        Self {
            snapshot: ArcSwap::from_pointee(Snapshot::new(config, version, front)),
        }
    }

    /// The snapshot in force.
    #[must_use]
    pub fn snapshot(&self) -> Arc<Snapshot> {
        self.snapshot.load_full()
    }

    /// Computes prices from a rate. Calls that run keep theirs.
    pub fn set_rate(&self, reading: RateReading) {
        self.snapshot.rcu(|snapshot| snapshot.with_rate(reading));
    }

    /// Swaps models, base prices and vendors for those of `config`, priced at the rate in force. Calls
    /// that run keep theirs. Paths and the language stay as they are.
    pub fn replace(&self, config: &Config, version: TariffVersion) {
        let front = PublicUrls {
            base_url: config.base_url.clone(),
            ..PublicUrls::clone(&self.snapshot.load().front)
        };
        let next = Snapshot::new(config, version, front);
        self.snapshot.rcu(|snapshot| match snapshot.rate() {
            Some(rate) => next.with_rate(rate),
            None => next.clone(),
        });
    }

    /// Nobody stands for the rate in force any more: where it was fixed, it gets old from now on like one that was
    /// measured.
    pub fn unfix_rate(&self) {
        self.snapshot.rcu(|snapshot| match snapshot.rate {
            Some(RateReading { rate, at: None }) => {
                Arc::new(snapshot.with_rate(RateReading::measured(rate)))
            }
            _ => Arc::clone(snapshot),
        });
    }

    /// Takes the prices away if their rate is too old. Says whether it did.
    pub fn expire_rate(&self) -> bool {
        let before = self.snapshot.rcu(|snapshot| match snapshot.rate() {
            Some(_) => Arc::clone(snapshot),
            None => Arc::new(snapshot.without_rate()),
        });
        before.rate.is_some() && before.rate().is_none()
    }
}

impl Models for Live {
    fn find_model(&self, id: &str) -> Found {
        let snapshot = self.snapshot.load();
        let Some(entry) = snapshot.entry(id) else {
            return Found::Unknown;
        };
        match (&entry.prices, snapshot.rate()) {
            (Some(prices), Some(_)) => Found::Callable(Arc::clone(&entry.model), prices.clone()),
            _ => Found::Unpriced,
        }
    }

    fn similar(&self, id: &str) -> Option<String> {
        if id.len() > SIMILAR_BYTES_MAX {
            return None;
        }
        let snapshot = self.snapshot.load();
        let known = snapshot.entries.iter().map(|entry| &*entry.model.id);
        nearest(id, known).map(str::to_owned)
    }
}

/// Whoever asks for a model by a longer name has not mistyped one: comparing takes time by the length of both.
const SIMILAR_BYTES_MAX: usize = 128;

/// Rubles for one USDT, as read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RateReading {
    /// Rubles for one USDT.
    pub rate: Decimal,
    /// When it was measured; `None`: the operator fixed it, and it never gets old.
    pub at: Option<Instant>,
}

impl RateReading {
    /// A rate that was measured now.
    #[must_use]
    pub fn measured(rate: Decimal) -> Self {
        Self {
            rate,
            at: Some(Instant::now()),
        }
    }

    /// A rate that the operator fixed.
    #[must_use]
    pub const fn fixed(rate: Decimal) -> Self {
        Self { rate, at: None }
    }
}

/// What callers are told beside models and prices.
#[derive(Clone, Debug)]
pub(crate) struct PublicUrls {
    /// The path segment of the service.
    pub(crate) service: String,
    /// Ends in `/v1`.
    pub(crate) base_url: String,
    pub(crate) language: Language,
}

impl PublicUrls {
    /// The base address of clients that append `/v1` themselves.
    pub(crate) fn root_url(&self) -> &str {
        self.base_url.strip_suffix("/v1").unwrap_or(&self.base_url)
    }
}

/// Models and prices that belong together.
#[derive(Clone, Debug)]
pub struct Snapshot {
    /// In the order of the catalog.
    entries: Vec<Entry>,
    /// Callers only look up here: what they ask for cannot fill it with names that collide.
    places: Arc<HashMap<String, usize, FixedState>>,
    version: TariffVersion,
    multiplier: Decimal,
    rate_age_max: Duration,
    front: Arc<PublicUrls>,
    openapi: Document,
    rate: Option<RateReading>,
    /// The catalog with the prices of `rate`.
    priced: Option<Page>,
    unpriced: Page,
}

impl Snapshot {
    fn new(config: &Config, version: TariffVersion, front: PublicUrls) -> Self {
        let config = &config.live;
        let entries: Vec<Entry> = config.models.iter().map(Entry::new).collect();
        let places = entries
            .iter()
            .enumerate()
            .map(|(place, entry)| (entry.model.id.clone(), place))
            .collect();
        let multiplier = config.tariff.sell_rate_multiplier;
        Self {
            unpriced: Page::new(&entries, version, multiplier, &front, false),
            entries,
            places: Arc::new(places),
            version,
            multiplier,
            rate_age_max: config.rate.age_max,
            openapi: Document::new(openapi::public(&front).into()),
            front: Arc::new(front),
            rate: None,
            priced: None,
        }
    }

    /// The exchange rate, unless it is too old.
    #[must_use]
    pub fn rate(&self) -> Option<RateReading> {
        self.rate
            .filter(|rate| rate.at.is_none_or(|at| at.elapsed() <= self.rate_age_max))
    }

    /// The tariff version in force.
    #[must_use]
    pub const fn version(&self) -> TariffVersion {
        self.version
    }

    /// Every model in the order of the catalog, with its prices now.
    pub fn models(&self) -> impl Iterator<Item = (&Arc<Model>, Option<&PriceList>)> {
        let fresh = self.rate().is_some();
        self.entries
            .iter()
            .map(move |entry| (&entry.model, entry.prices.as_ref().filter(|_| fresh)))
    }

    /// The same as they are listed for a key.
    pub(crate) fn listed(&self) -> impl Iterator<Item = Listed<'_>> {
        let language = self.front.language;
        self.models()
            .zip(&self.entries)
            .map(move |((model, price), entry)| Listed {
                id: &model.id,
                display_name: entry.display_name.as_deref().unwrap_or(&model.id),
                description: entry.description.as_deref(),
                price: price.map(|prices| &*prices.usual),
                language,
            })
    }

    /// The vendor of each route of each model; one comes as often as it has routes.
    pub fn vendors(&self) -> impl Iterator<Item = &Arc<Vendor>> {
        let routes = self.entries.iter().flat_map(|entry| &entry.model.routes);
        routes.map(|route| &route.vendor)
    }

    /// The public catalog now.
    pub(crate) fn page(&self) -> &Page {
        match (&self.priced, self.rate()) {
            (Some(page), Some(_)) => page,
            _ => &self.unpriced,
        }
    }

    /// What callers can ask for; no rate changes it.
    pub(crate) const fn openapi(&self) -> &Document {
        &self.openapi
    }

    fn entry(&self, id: &str) -> Option<&Entry> {
        self.entries.get(*self.places.get(id)?)
    }

    fn with_rate(&self, reading: RateReading) -> Self {
        let mut next = self.clone();
        let same = self.priced.is_some() && self.rate.is_some_and(|rate| rate.rate == reading.rate);
        next.rate = Some(reading);
        if same {
            return next;
        }
        for entry in &mut next.entries {
            let prices = entry
                .usdt
                .prices(reading.rate, self.multiplier, self.version.id);
            if prices.is_none() {
                tracing::error!(model = entry.model.id, rate = %reading.rate, "price out of range, model not callable");
            }
            // Calls that hold the old one keep sharing it.
            if prices != entry.prices {
                entry.prices = prices;
            }
        }
        next.priced = Some(Page::new(
            &next.entries,
            self.version,
            self.multiplier,
            &self.front,
            true,
        ));
        next
    }

    fn without_rate(&self) -> Self {
        let mut next = self.clone();
        next.rate = None;
        next.priced = None;
        for entry in &mut next.entries {
            entry.prices = None;
        }
        next
    }
}

/// A model in a key's list, for people who choose from it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Listed<'a> {
    pub(crate) id: &'a str,
    pub(crate) display_name: &'a str,
    /// What the operator says of it.
    pub(crate) description: Option<&'a str>,
    /// Its price now.
    pub(crate) price: Option<&'a Price>,
    pub(crate) language: Language,
}

#[derive(Clone, Debug)]
struct Entry {
    model: Arc<Model>,
    display_name: Option<Arc<str>>,
    description: Option<Arc<str>>,
    usdt: UsdtRates,
    prices: Option<PriceList>,
}

impl Entry {
    fn new(config: &ModelConfig) -> Self {
        let mut model = Model::new(&*config.id, config.output_tokens_max)
            .family(&*config.family)
            .output_tokens_min(config.output_tokens_min)
            .sticky(config.sticky);
        model.output_tokens_default = config.output_tokens_default;
        model.input_tokens_max = config.input_tokens_max;
        model.input_tokens_priced_max = config.input_tokens_priced_max;
        model.routes.clone_from(&config.routes);
        Self {
            model: Arc::new(model),
            display_name: config.display_name.as_deref().map(Arc::from),
            description: config.description.as_deref().map(Arc::from),
            usdt: config.usdt_mtok,
            prices: None,
        }
    }
}

impl UsdtRates {
    /// What is asked for them, for clients that reckon in dollars. `None` past what a decimal can be.
    fn times(&self, multiplier: Decimal) -> Option<Self> {
        let times = |usdt: Decimal| Some(usdt.checked_mul(multiplier)?.normalize());
        Some(Self {
            input: times(self.input)?,
            cached_input: times(self.cached_input)?,
            output: times(self.output)?,
            cache_write: times(self.cache_write)?,
            cache_write_1h: match self.cache_write_1h {
                None => None,
                Some(usdt) => Some(times(usdt)?),
            },
        })
    }

    /// `usdt × rate × multiplier`, rounded up at the sixth digit. `None` past what money can be.
    fn prices(&self, rate: Decimal, multiplier: Decimal, version: u64) -> Option<PriceList> {
        let rubles = |usdt: Decimal| {
            let product = usdt.checked_mul(rate)?.checked_mul(multiplier)?;
            Rate::from_decimal_rounded_up(product)
        };
        let hour = match self.cache_write_1h {
            None => None,
            Some(usdt) => Some(rubles(usdt)?),
        };
        Some(PriceList::from(Price {
            input: rubles(self.input)?,
            cached_input: rubles(self.cached_input)?,
            output: rubles(self.output)?,
            cache_write: rubles(self.cache_write)?,
            version,
            exchange_rate: rate.normalize().to_string(),
            classes: Rates::default().with(Class::CacheWrite1h, hour),
            ..Price::default()
        }))
    }
}

/// The catalog's answers, ready to be sent.
#[derive(Clone, Debug)]
pub(crate) struct Page {
    /// For programs: specification 2.6.
    pub(crate) json: Document,
    /// For people.
    pub(crate) html: Document,
    /// For clients, ready-made.
    pub(crate) connect: Arc<Connect>,
    pub(crate) priced: bool,
}

impl Page {
    fn new(
        entries: &[Entry],
        version: TariffVersion,
        multiplier: Decimal,
        front: &PublicUrls,
        priced: bool,
    ) -> Self {
        let catalog = CatalogJson {
            base_url: &front.base_url,
            priced,
            price_version: VersionJson {
                id: version.id,
                effective_from: rfc3339(version.effective_from_ms),
            },
            sell_rate_multiplier: multiplier.normalize().to_string(),
            models: entries
                .iter()
                .map(|entry| ModelJson::new(entry, priced))
                .collect(),
        };
        let json = serde_json::to_vec(&catalog).expect("text and numbers are always JSON");
        let models = entries.iter().map(|entry| {
            let prices = entry.prices.as_ref().filter(|_| priced);
            (&*entry.model, prices)
        });
        let html = page::render(front, version, priced, models);
        let sold = entries.iter().map(|entry| Sold {
            model: &entry.model,
            usd_mtok: entry
                .prices
                .as_ref()
                .filter(|_| priced)
                .and_then(|_| entry.usdt.times(multiplier)),
        });
        Self {
            json: Document::new(json.into()),
            html: Document::new(html.into()),
            connect: Arc::new(Connect::new(front, sold)),
            priced,
        }
    }
}

/// Bytes and the name that clients keep them under.
#[derive(Clone, Debug)]
pub(crate) struct Document {
    pub(crate) bytes: Bytes,
    /// Strong: the same tag means the same bytes.
    pub(crate) etag: HeaderValue,
}

impl Document {
    pub(crate) fn new(bytes: Bytes) -> Self {
        let digest = Sha256::digest(&bytes);
        let etag: String = digest
            .iter()
            .take(16)
            .map(|byte| format!("{byte:02x}"))
            .collect();
        Self {
            bytes,
            etag: HeaderValue::from_str(&format!("\"{etag}\""))
                .expect("hexadecimal digits fit in a header"),
        }
    }
}

/// Specification 2.6.
#[derive(Serialize)]
struct CatalogJson<'a> {
    base_url: &'a str,
    priced: bool,
    price_version: VersionJson,
    sell_rate_multiplier: String,
    models: Vec<ModelJson<'a>>,
}

#[derive(Serialize)]
struct VersionJson {
    id: u64,
    effective_from: String,
}

#[derive(Serialize)]
struct ModelJson<'a> {
    id: &'a str,
    family: &'a str,
    input_rub_mtok: Option<Rate>,
    cached_input_rub_mtok: Option<Rate>,
    output_rub_mtok: Option<Rate>,
    cache_write_rub_mtok: Option<Rate>,
    #[serde(skip_serializing_if = "Option::is_none")]
    cache_write_1h_rub_mtok: Option<Rate>,
}

impl<'a> ModelJson<'a> {
    fn new(entry: &'a Entry, priced: bool) -> Self {
        let prices = entry.prices.as_ref().filter(|_| priced);
        let price = prices.map(|prices| &prices.usual);
        Self {
            id: &entry.model.id,
            family: &entry.model.family,
            input_rub_mtok: price.map(|price| price.input),
            cached_input_rub_mtok: price.map(|price| price.cached_input),
            output_rub_mtok: price.map(|price| price.output),
            cache_write_rub_mtok: price.map(|price| price.cache_write),
            cache_write_1h_rub_mtok: price.and_then(|price| price.classes.get(Class::CacheWrite1h)),
        }
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use serde_json::{Value, json};

    use super::*;

    const CONFIG: &str = r#"
        base_url = "https://api.example/v1"
        [rate]
        max_age_seconds = 600
        [[rate.source]]
        fixed = "90.50"
        [tariff]
        sell_rate_multiplier = "1.150"
        [[vendor]]
        name = "v"
        format = "chat"
        url = "http://127.0.0.1:9/v1"
        key = "${KEY}"
        [[model]]
        id = "z-first"
        family = "Z"
        usdt_mtok = { input = "0.25", cached_input = "0.025", output = "2.00", cache_write = "0.25" }
        output_tokens_max = 128000
        routes = [ { vendor = "v", model = "m-1" } ]
        [[model]]
        id = "a-second"
        family = "A"
        usdt_mtok = { input = "0.000000001", cached_input = "1", output = "1", cache_write = "1" }
        output_tokens_max = 100
        routes = [ { vendor = "v" } ]
    "#;

    pub(crate) fn live() -> Live {
        let config = Config::parse(CONFIG, &|_| Some("sk-secret".to_owned())).unwrap();
        let version = TariffVersion {
            id: 7,
            effective_from_ms: 1_767_323_045_678,
        };
        Live::new(&config, version)
    }

    pub(crate) fn decimal(text: &str) -> Decimal {
        text.parse().unwrap()
    }

    fn catalog(live: &Live) -> Value {
        serde_json::from_slice(&live.snapshot().page().json.bytes).unwrap()
    }

    fn price(live: &Live, id: &str) -> Option<Arc<Price>> {
        match live.find_model(id) {
            Found::Callable(model, prices) => {
                assert_eq!(model.id, id);
                Some(prices.usual)
            }
            Found::Unpriced => None,
            Found::Unknown => panic!("{id} is unknown"),
        }
    }

    #[tokio::test(start_paused = true)]
    async fn the_catalog_is_the_specifications_and_shows_what_is_charged() {
        let live = live();
        live.set_rate(RateReading::measured(decimal("90.50")));
        assert_eq!(
            catalog(&live),
            json!({
                "base_url": "https://api.example/v1",
                "priced": true,
                "price_version": {"id": 7, "effective_from": "2026-01-02T03:04:05.678Z"},
                "sell_rate_multiplier": "1.15",
                "models": [
                    {
                        "id": "z-first",
                        "family": "Z",
                        "input_rub_mtok": "26.01875",
                        "cached_input_rub_mtok": "2.601875",
                        "output_rub_mtok": "208.15",
                        "cache_write_rub_mtok": "26.01875",
                    },
                    {
                        "id": "a-second",
                        "family": "A",
                        "input_rub_mtok": "0.000001",
                        "cached_input_rub_mtok": "104.075",
                        "output_rub_mtok": "104.075",
                        "cache_write_rub_mtok": "104.075",
                    },
                ],
            })
        );
        let price = price(&live, "z-first").unwrap();
        assert_eq!(price.input.to_string(), "26.01875");
        assert_eq!((price.version, price.exchange_rate.as_str()), (7, "90.5"));
    }

    #[tokio::test(start_paused = true)]
    async fn without_a_rate_nothing_has_a_price() {
        let live = live();
        let catalog = catalog(&live);
        assert_eq!(catalog["priced"], false);
        assert_eq!(catalog["price_version"]["id"], 7);
        for model in catalog["models"].as_array().unwrap() {
            for field in [
                "input_rub_mtok",
                "cached_input_rub_mtok",
                "output_rub_mtok",
                "cache_write_rub_mtok",
            ] {
                assert_eq!(model[field], Value::Null);
            }
        }
        assert_eq!(price(&live, "z-first"), None);
        assert!(matches!(live.find_model("Z-first"), Found::Unknown));
    }

    #[tokio::test(start_paused = true)]
    async fn an_old_rate_ends_the_prices_even_if_nobody_expires_it() {
        let live = live();
        live.set_rate(RateReading::measured(decimal("90")));
        tokio::time::advance(Duration::from_secs(599)).await;
        assert!(price(&live, "z-first").is_some());
        assert!(!live.expire_rate());
        tokio::time::advance(Duration::from_secs(2)).await;
        assert_eq!(price(&live, "z-first"), None);
        assert_eq!(catalog(&live)["priced"], false);
        assert!(live.snapshot().models().all(|(_, price)| price.is_none()));
        assert!(live.expire_rate(), "the first one takes the prices away");
        assert!(!live.expire_rate());
        live.set_rate(RateReading::measured(decimal("90")));
        assert!(price(&live, "z-first").is_some());
        assert_eq!(catalog(&live)["priced"], true);
    }

    #[tokio::test(start_paused = true)]
    async fn a_fixed_rate_never_gets_old() {
        let live = live();
        live.set_rate(RateReading::fixed(decimal("90")));
        tokio::time::advance(Duration::from_secs(1_000_000)).await;
        assert!(!live.expire_rate());
        assert!(price(&live, "z-first").is_some());
    }

    #[tokio::test(start_paused = true)]
    async fn a_fixed_rate_that_is_fixed_no_more_gets_old() {
        let live = live();
        live.set_rate(RateReading::fixed(decimal("90")));
        live.unfix_rate();
        assert!(price(&live, "z-first").is_some());
        tokio::time::advance(Duration::from_secs(601)).await;
        assert_eq!(price(&live, "z-first"), None);
    }

    #[tokio::test(start_paused = true)]
    async fn a_price_is_the_same_one_until_it_changes() {
        let live = live();
        live.set_rate(RateReading::measured(decimal("90.5")));
        let (first, tag) = (
            price(&live, "z-first").unwrap(),
            live.snapshot().page().json.etag.clone(),
        );
        live.set_rate(RateReading::measured(decimal("90.50")));
        assert!(Arc::ptr_eq(&first, &price(&live, "z-first").unwrap()));
        assert_eq!(live.snapshot().page().json.etag, tag);
        live.set_rate(RateReading::measured(decimal("90.51")));
        assert!(!Arc::ptr_eq(&first, &price(&live, "z-first").unwrap()));
        assert_ne!(live.snapshot().page().json.etag, tag);
        assert_eq!(
            first.input.to_string(),
            "26.01875",
            "a call keeps the price that it was admitted with"
        );
    }

    #[tokio::test(start_paused = true)]
    async fn a_price_past_what_money_can_be_is_no_price() {
        let live = live();
        live.set_rate(RateReading::measured(decimal("100000000000")));
        assert_eq!(price(&live, "z-first"), None);
        assert_eq!(catalog(&live)["models"][0]["input_rub_mtok"], Value::Null);
    }
}
