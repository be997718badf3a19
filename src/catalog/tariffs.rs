//! History of tariffs. The ledger keeps one document per tariff version, with the base prices, the multipliers and the
//! vendors' costs. The first gateway that runs a version writes the document; other gateways find it in the ledger.

use std::collections::BTreeMap;

use rust_decimal::Decimal;
use serde::{Deserialize, Serialize};
use tollgate_ledger::{
    contract::{BookError, Documents, TariffVersion},
    price::Currency,
};

use crate::{
    config::{BaseRates, LiveConfig},
    ledger::AnyLedger,
};

const PREFIX: &str = "tariff/";

/// A tariff version, as it was recorded when it came into force.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Tariff {
    /// The time at which the version came into force, in Unix milliseconds.
    pub(crate) since_ms: u64,
    /// The multiplier of base prices in USDT.
    pub(crate) multiplier: Decimal,
    /// The multiplier of base prices in rubles.
    #[serde(default = "one", skip_serializing_if = "is_one")]
    pub(crate) rub_multiplier: Decimal,
    pub(crate) models: BTreeMap<String, Prices>,
}

/// The base prices of a model, per million tokens.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Prices {
    #[serde(flatten)]
    pub(crate) usual: Rates,
    /// The vendor cost of the model's first route whose cost is known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) cost: Option<Rates>,
    /// Whether the model also has conditional prices, or prices of further token classes.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub(crate) more: bool,
}

/// The four basic rates that every model has.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Rates {
    #[serde(default, skip_serializing_if = "Currency::is_default")]
    pub(crate) currency: Currency,
    pub(crate) input: Decimal,
    pub(crate) cached_input: Decimal,
    pub(crate) output: Decimal,
    pub(crate) cache_write: Decimal,
}

const fn one() -> Decimal {
    Decimal::ONE
}

fn is_one(multiplier: &Decimal) -> bool {
    *multiplier == Decimal::ONE
}

impl Rates {
    fn new(rates: &BaseRates) -> Self {
        Self {
            currency: rates.currency,
            input: rates.input.normalize(),
            cached_input: rates.cached_input.normalize(),
            output: rates.output.normalize(),
            cache_write: rates.cache_write.normalize(),
        }
    }
}

impl Tariff {
    pub(crate) const fn multiplier_of(&self, currency: Currency) -> Decimal {
        match currency {
            Currency::Usdt => self.multiplier,
            Currency::Rub => self.rub_multiplier,
        }
    }

    fn new(version: TariffVersion, config: &LiveConfig) -> Self {
        let prices = config.models.iter().map(|model| {
            let cost = model.route_costs.first();
            let others = model.base.classes.iter();
            let prices = Prices {
                usual: Rates::new(&model.base),
                cost: cost.map(|cost| Rates::new(&cost.base)),
                more: !model.price_rules.is_empty()
                    || others.filter(|(_, rate)| rate.is_some()).count() > 0,
            };
            (model.id.clone(), prices)
        });
        Self {
            since_ms: version.effective_from_ms,
            multiplier: config.tariff.sell_rate_multiplier.normalize(),
            rub_multiplier: config.tariff.sell_rub_multiplier.normalize(),
            models: prices.collect(),
        }
    }
}

/// Records the tariff version in force, unless the ledger already has it. No call waits for this. If the ledger is out
/// of reach, the gateway sells without the record, and its next start records the version.
pub(crate) async fn keep(store: &AnyLedger, version: TariffVersion, config: &LiveConfig) {
    let name = format!("{PREFIX}{:020}", version.id);
    // `Ok(false)` means that another gateway, or this gateway at an earlier start, has recorded this version.
    let tariff = Tariff::new(version, config);
    if let Err(error) = store.write_value(&name, 0, &tariff).await {
        tracing::warn!(%error, version = version.id, "the prices of the tariff version could not be recorded; the next start of the gateway tries again");
    }
}

/// Returns all recorded versions with their numbers, newest first.
pub(crate) async fn stored(store: &AnyLedger) -> Result<Vec<(u64, Tariff)>, BookError> {
    let found = store.documents(PREFIX).await?;
    let tariffs = found.iter().filter_map(|document| {
        let id = document.name.strip_prefix(PREFIX)?.parse().ok()?;
        // A record that cannot be parsed is skipped, because a later release may have written it.
        Some((id, document.parse().ok()?))
    });
    let mut tariffs: Vec<(u64, Tariff)> = tariffs.collect();
    tariffs.sort_by_key(|(id, _)| std::cmp::Reverse(*id));
    Ok(tariffs)
}
