//! The models on sale with their current prices, and the documents that show them.
//!
//! A [`Snapshot`] is replaced as a whole. Every read checks by the clock whether the exchange rate is still fresh, so
//! prices expire in time even if no task replaces the snapshot.

use std::{collections::HashMap, sync::Arc, time::Duration};

use arc_swap::ArcSwap;
use foldhash::fast::FixedState;
use rust_decimal::Decimal;
use tokio::time::Instant;
use tollgate_layers::{
    key::AccountId,
    model::{Found, Model, ModelKind, Models, Vendor},
    price::PriceList,
    reserve::ledger::TariffVersion,
    respond::Language,
};

use super::{
    customers::{Customers, OwnPrices},
    documents::{
        ByLanguage, CatalogView, Document, ModelView, PriceDocuments, PublicUrls, Renderers,
    },
    prices::{BasePrices, Markup},
};
use crate::{
    config::{Config, LiveConfig, ModelConfig, PaymentsConfig, SellerConfig, Tariff},
    text::{similar::nearest, time::now_ms},
};

/// Holds the snapshot of models and prices that is in force.
#[derive(Debug)]
pub struct Live {
    snapshot: ArcSwap<Snapshot>,
}

impl Live {
    /// Creates the models of `config` without prices. The first [`Live::set_rate`] computes the prices.
    #[must_use]
    pub fn new(config: &Config, version: TariffVersion, renderers: Renderers) -> Self {
        let urls = PublicUrls {
            pays: (config.payments.as_ref()).is_some_and(PaymentsConfig::is_offered),
            service: config.service.clone(),
            base_url: config.base_url.clone(),
            language: config.language,
        };
        Self {
            snapshot: ArcSwap::from_pointee(Snapshot::new(&config.live, version, urls, renderers)),
        }
    }

    /// Returns the snapshot that is in force. If a time-dependent price has come into force since the snapshot's
    /// documents were rendered, renders them again.
    #[must_use]
    pub fn snapshot(&self) -> Arc<Snapshot> {
        let snapshot = self.snapshot.load_full();
        let now_ms = now_ms();
        if snapshot.changes_at_ms.is_none_or(|at_ms| now_ms < at_ms) {
            return snapshot;
        }
        self.snapshot
            .rcu(|snapshot| Snapshot::clone(snapshot).rendered(now_ms));
        self.snapshot.load_full()
    }

    /// Computes all prices from a new exchange rate. Calls in flight keep the prices that they began with.
    pub fn set_rate(&self, reading: RateReading) {
        self.snapshot.rcu(|snapshot| snapshot.with_rate(reading));
    }

    /// Replaces models, base prices and vendors by those of `config`, priced at the exchange rate in force. Calls in
    /// flight keep the old ones. Paths and the language do not change.
    pub fn replace(&self, config: &Config, version: TariffVersion) {
        let now = self.snapshot.load();
        let urls = PublicUrls {
            base_url: config.base_url.clone(),
            ..PublicUrls::clone(&now.urls)
        };
        let next = Snapshot::new(&config.live, version, urls, now.renderers);
        self.snapshot.rcu(|snapshot| match snapshot.rate() {
            Some(rate) => next.with_rate(rate),
            None => next.clone(),
        });
    }

    /// Lets a fixed exchange rate become stale from now on, like a measured one. Called when a new configuration no
    /// longer fixes the rate.
    pub fn unfix_rate(&self) {
        self.snapshot.rcu(|snapshot| match snapshot.rate {
            Some(RateReading { rate, at: None }) => {
                Arc::new(snapshot.with_rate(RateReading::measured(rate)))
            }
            _ => Arc::clone(snapshot),
        });
    }

    /// Removes all prices if the exchange rate is too old. Returns whether the prices were removed.
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
        self.snapshot.load().find(id, None)
    }

    fn find_model_for(&self, id: &str, payer: &AccountId) -> Found {
        self.snapshot.load().find(id, Some(payer))
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

/// The maximum length of an unknown model name for which similar names are searched. The time of a comparison grows
/// with both names' lengths, and a longer name is not a typo.
const SIMILAR_BYTES_MAX: usize = 128;

/// An exchange rate, and the time at which it was read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RateReading {
    /// The rubles for one USDT.
    pub rate: Decimal,
    /// When a source measured the rate; `None` for a rate that the operator fixed, which never becomes stale.
    pub at: Option<Instant>,
}

impl RateReading {
    /// Creates the reading of an exchange rate that a source measured just now.
    #[must_use]
    pub fn measured(rate: Decimal) -> Self {
        Self {
            rate,
            at: Some(Instant::now()),
        }
    }

    /// Creates the reading of an exchange rate that the operator has fixed.
    #[must_use]
    pub const fn fixed(rate: Decimal) -> Self {
        Self { rate, at: None }
    }
}

/// All models with their prices, computed from one exchange rate and one tariff.
#[derive(Clone, Debug)]
pub struct Snapshot {
    /// The models, in the order of the catalog.
    entries: Vec<Entry>,
    /// The index of each model by name. Callers can only look names up, so they cannot fill the map with colliding
    /// names.
    places: Arc<HashMap<String, usize, FixedState>>,
    /// Customers with their own prices; `None` if there are none.
    customers: Option<Arc<Customers>>,
    version: TariffVersion,
    seller: Option<Arc<SellerConfig>>,
    markup: Markup,
    rate_age_max: Duration,
    rate: Option<RateReading>,
    urls: Arc<PublicUrls>,
    renderers: Renderers,
    openapi: Document,
    usage_page: ByLanguage,
    /// The rendered documents, with prices at the stored exchange rate.
    priced: Option<PriceDocuments>,
    /// When a price that the rendered documents do not show yet comes into force, in Unix milliseconds.
    changes_at_ms: Option<u64>,
    unpriced: PriceDocuments,
}

impl Snapshot {
    fn new(
        config: &LiveConfig,
        version: TariffVersion,
        urls: PublicUrls,
        renderers: Renderers,
    ) -> Self {
        let mut entries: Vec<Entry> = config.models.iter().map(Entry::new).collect();
        let customers = Customers::new(config, version, |model, prices| {
            let own = &mut entries[model].own;
            own.push(prices);
            own.len() - 1
        });
        let places = entries.iter().enumerate();
        let places = places
            .map(|(place, entry)| (entry.model.id.clone(), place))
            .collect();
        let markup = Markup {
            tariff: config.tariff,
            version: version.id,
        };
        let unpriced = CatalogView {
            urls: &urls,
            version,
            tariff: markup.tariff,
            priced: false,
            models: entries.iter().map(Entry::unpriced).collect(),
        };
        Self {
            unpriced: (renderers.prices)(&unpriced),
            openapi: (renderers.openapi)(&urls),
            usage_page: (renderers.usage_page)(&urls),
            entries,
            places: Arc::new(places),
            customers: customers.map(Arc::new),
            version,
            seller: config.seller.clone(),
            markup,
            rate_age_max: config.rate.age_max,
            rate: None,
            urls: Arc::new(urls),
            renderers,
            priced: None,
            changes_at_ms: None,
        }
    }

    /// Returns the exchange rate, if it is not too old.
    #[must_use]
    pub fn rate(&self) -> Option<RateReading> {
        self.rate
            .filter(|rate| rate.at.is_none_or(|at| at.elapsed() <= self.rate_age_max))
    }

    /// Returns the version of the tariff in force.
    #[must_use]
    pub const fn version(&self) -> TariffVersion {
        self.version
    }

    /// Returns the tariff's multipliers: the factor between a base price and the price that customers pay.
    #[must_use]
    pub const fn tariff(&self) -> Tariff {
        self.markup.tariff
    }

    /// Returns the seller's details, if the configuration has them.
    #[must_use]
    pub fn seller(&self) -> Option<&SellerConfig> {
        self.seller.as_deref()
    }

    pub(crate) fn urls(&self) -> &PublicUrls {
        &self.urls
    }

    /// Returns the language of texts for people.
    #[must_use]
    pub fn language(&self) -> Language {
        self.urls.language
    }

    /// Returns all models in the order of the catalog, with their prices now.
    pub fn models(&self) -> impl Iterator<Item = (&Arc<Model>, Option<&PriceList>)> {
        let fresh = self.rate().is_some();
        self.entries
            .iter()
            .map(move |entry| (&entry.model, entry.prices.as_ref().filter(|_| fresh)))
    }

    /// Returns the models whose vendor cost is known.
    pub fn models_with_costs(&self) -> impl Iterator<Item = &Arc<Model>> {
        let costed = |entry: &&Entry| !entry.base.costs.is_empty();
        let entries = self.entries.iter();
        entries.filter(costed).map(|entry| &entry.model)
    }

    /// Returns all models as a key of this account sees them: with the account's own prices.
    pub(crate) fn listed(&self, payer: &AccountId) -> impl Iterator<Item = Listed<'_>> {
        let language = self.urls.language;
        let fresh = self.rate().is_some();
        let row = self.row(payer);
        let entries = self.entries.iter().enumerate();
        entries.map(move |(place, entry)| Listed {
            id: &entry.model.id,
            kind: entry.model.kind,
            input_tokens_max: entry.model.input_tokens_max,
            output_tokens_max: entry.model.output_tokens_max,
            display_name: entry.display_name.as_deref().unwrap_or(&entry.model.id),
            description: entry.description.as_deref(),
            prices: entry
                .prices_at(row.and_then(|row| row[place]))
                .filter(|_| fresh),
            language,
        })
    }

    /// Returns the vendors of all routes of all models. A vendor occurs once for each of its routes.
    pub fn vendors(&self) -> impl Iterator<Item = &Arc<Vendor>> {
        let routes = self.entries.iter().flat_map(|entry| &entry.model.routes);
        routes.map(|route| &route.vendor)
    }

    /// Returns the documents to show now. They have prices if models have prices now.
    pub(crate) fn documents(&self) -> &PriceDocuments {
        match (&self.priced, self.rate()) {
            (Some(documents), Some(_)) => documents,
            _ => &self.unpriced,
        }
    }

    /// Returns the page on which people see a key's spending. The page does not depend on the exchange rate.
    pub(crate) const fn usage_page(&self) -> &ByLanguage {
        &self.usage_page
    }

    /// Returns the OpenAPI document, which does not depend on the exchange rate.
    pub(crate) const fn openapi(&self) -> &Document {
        &self.openapi
    }

    fn find(&self, id: &str, payer: Option<&AccountId>) -> Found {
        let Some(&place) = self.places.get(id) else {
            return Found::Unknown;
        };
        let entry = &self.entries[place];
        let row = payer.and_then(|payer| self.row(payer));
        match (entry.prices_at(row.and_then(|row| row[place])), self.rate()) {
            (Some(prices), Some(_)) => Found::Callable(Arc::clone(&entry.model), prices.clone()),
            _ => Found::Unpriced,
        }
    }

    /// Returns the indexes of the account's own prices, one per model; `None` if no customer has its own prices.
    fn row(&self, payer: &AccountId) -> Option<&[Option<usize>]> {
        self.customers.as_ref().map(|it| it.row(payer))
    }

    fn with_rate(&self, reading: RateReading) -> Self {
        let mut next = self.clone();
        let same = self.priced.is_some() && self.rate.is_some_and(|rate| rate.rate == reading.rate);
        next.rate = Some(reading);
        if same {
            return next;
        }
        let update = |markup: &Markup,
                      base: &BasePrices,
                      prices: &mut Option<PriceList>,
                      id: &str| {
            let new = markup.rubles(base, reading.rate);
            if new.is_none() {
                let rule = base.rule.as_deref();
                tracing::error!(model = id, rule, rate = %reading.rate, "a price in rubles is out of range, so the model cannot be called");
            }
            // The new snapshot shares unchanged prices with the old one, which calls in flight still use.
            if new != *prices {
                *prices = new;
            }
        };
        for entry in &mut next.entries {
            let id = &entry.model.id;
            update(&self.markup, &entry.base, &mut entry.prices, id);
            for own in &mut entry.own {
                update(&own.markup, &own.base, &mut own.prices, id);
            }
        }
        next.rendered(now_ms())
    }

    /// Renders the documents that show the prices in force at this time.
    fn rendered(mut self, now_ms: u64) -> Self {
        let Some(reading) = self.rate else {
            return self;
        };
        let entries = self.entries.iter();
        let models = entries.map(|entry| entry.priced(&self.markup, reading.rate, now_ms));
        let models: Vec<_> = models.collect();
        let changes_at_ms = models.iter().filter_map(|view| view.changes_at_ms).min();
        let priced = CatalogView {
            urls: &self.urls,
            version: self.version,
            tariff: self.markup.tariff,
            priced: true,
            models,
        };
        self.priced = Some((self.renderers.prices)(&priced));
        self.changes_at_ms = changes_at_ms;
        self
    }

    fn without_rate(&self) -> Self {
        let mut next = Self {
            rate: None,
            priced: None,
            changes_at_ms: None,
            ..self.clone()
        };
        for entry in &mut next.entries {
            entry.prices = None;
            entry.own.iter_mut().for_each(|own| own.prices = None);
        }
        next
    }
}

/// A model in the list from which a key's holder chooses.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Listed<'a> {
    pub(crate) id: &'a str,
    pub(crate) kind: ModelKind,
    /// The model's context window in tokens, if it is known.
    pub(crate) input_tokens_max: Option<u64>,
    pub(crate) output_tokens_max: u64,
    pub(crate) display_name: &'a str,
    /// The operator's description of the model.
    pub(crate) description: Option<&'a str>,
    /// The prices in force for this account; `None` if the model has no price now.
    pub(crate) prices: Option<&'a PriceList>,
    pub(crate) language: Language,
}

#[derive(Clone, Debug)]
struct Entry {
    model: Arc<Model>,
    display_name: Option<Arc<str>>,
    description: Option<Arc<str>>,
    base: Arc<BasePrices>,
    prices: Option<PriceList>,
    /// Prices that apply only to some customers.
    own: Vec<OwnPrices>,
}

impl Entry {
    fn new(config: &ModelConfig) -> Self {
        let mut model = Model::new(&*config.id, config.output_tokens_max)
            .family(&*config.family)
            .kind(config.kind)
            .output_tokens_min(config.output_tokens_min)
            .hold_grows(config.hold_grows)
            .sticky(config.sticky);
        model.output_tokens_default = config.output_tokens_default;
        model.output_tokens_per_second_max = config.output_tokens_per_second_max;
        model.input_tokens_max = config.input_tokens_max;
        model.input_tokens_priced_max = config.input_tokens_priced_max;
        model.routes.clone_from(&config.routes);
        Self {
            model: Arc::new(model),
            display_name: config.display_name.as_deref().map(Arc::from),
            description: config.description.as_deref().map(Arc::from),
            base: Arc::new(config.into()),
            prices: None,
            own: Vec::new(),
        }
    }

    /// Returns a customer's own prices if `slot` is their index, and the prices that apply to everybody otherwise. If a
    /// customer's own price is out of range, the model has no price for this customer.
    fn prices_at(&self, slot: Option<usize>) -> Option<&PriceList> {
        match slot {
            None => self.prices.as_ref(),
            Some(slot) => self.own[slot].prices.as_ref(),
        }
    }

    fn unpriced(&self) -> ModelView<'_> {
        ModelView {
            model: &self.model,
            prices: None,
            in_force: None,
            changes_at_ms: None,
            usd_mtok: None,
        }
    }

    fn priced(&self, markup: &Markup, exchange_rate: Decimal, now_ms: u64) -> ModelView<'_> {
        let prices = self.prices.as_ref();
        let in_force = prices.map(|prices| &**prices.in_force(now_ms));
        let base = in_force.map(|price| self.base.under(&price.condition));
        ModelView {
            model: &self.model,
            prices,
            in_force,
            changes_at_ms: prices.and_then(|prices| prices.changes_at(now_ms)),
            usd_mtok: base.and_then(|base| markup.dollars(base, exchange_rate)),
        }
    }
}

#[cfg(test)]
pub(crate) mod tests;
