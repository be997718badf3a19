//! History of tariffs: the ledger keeps one document per tariff version, with its base prices, its multiplier and the
//! vendors' costs. The first gateway that runs a version writes the document; other gateways find it in the ledger.

use std::collections::BTreeMap;

use rust_decimal::Decimal;
use serde::{Deserialize, Serialize};
use tollgate_ledger::contract::{BookError, Documents, TariffVersion};

use crate::{
    config::{LiveConfig, UsdtRates},
    ledger::AnyLedger,
};

const PREFIX: &str = "tariff/";

/// A tariff version, as it was recorded when it came into force.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Tariff {
    /// The time at which the version came into force, in Unix milliseconds.
    pub(crate) since_ms: u64,
    pub(crate) multiplier: Decimal,
    pub(crate) models: BTreeMap<String, Prices>,
}

/// The base prices of a model, in USDT per million tokens.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Prices {
    #[serde(flatten)]
    pub(crate) usual: Rates,
    /// The vendor cost of the model's first route with a known cost.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) cost: Option<Rates>,
    /// Whether the model also has prices under conditions, or prices of further classes.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub(crate) more: bool,
}

/// The four rates that every model has.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Rates {
    pub(crate) input: Decimal,
    pub(crate) cached_input: Decimal,
    pub(crate) output: Decimal,
    pub(crate) cache_write: Decimal,
}

impl Rates {
    fn of(rates: &UsdtRates) -> Self {
        Self {
            input: rates.input.normalize(),
            cached_input: rates.cached_input.normalize(),
            output: rates.output.normalize(),
            cache_write: rates.cache_write.normalize(),
        }
    }
}

impl Tariff {
    fn of(version: TariffVersion, config: &LiveConfig) -> Self {
        let prices = config.models.iter().map(|model| {
            let cost = model.route_costs.first();
            let others = model.usdt_mtok.classes.iter();
            let prices = Prices {
                usual: Rates::of(&model.usdt_mtok),
                cost: cost.map(|cost| Rates::of(&cost.usdt_mtok)),
                more: !model.price_rules.is_empty()
                    || others.filter(|(_, rate)| rate.is_some()).count() > 0,
            };
            (model.id.clone(), prices)
        });
        Self {
            since_ms: version.effective_from_ms,
            multiplier: config.tariff.sell_rate_multiplier.normalize(),
            models: prices.collect(),
        }
    }
}

/// Records the tariff version in force, unless the ledger already has it. No call waits for this. If the ledger is out
/// of reach, the gateway sells anyway, and its next start records the version.
pub(crate) async fn keep(store: &AnyLedger, version: TariffVersion, config: &LiveConfig) {
    let name = format!("{PREFIX}{:020}", version.id);
    // `false`: another gateway has recorded this version, or this gateway did at an earlier start.
    if let Err(error) = store
        .write_value(&name, 0, &Tariff::of(version, config))
        .await
    {
        tracing::warn!(%error, version = version.id, "the prices of a tariff version are not recorded yet");
    }
}

/// Returns all recorded versions with their numbers, newest first.
pub(crate) async fn kept(store: &AnyLedger) -> Result<Vec<(u64, Tariff)>, BookError> {
    let found = store.documents(PREFIX).await?;
    let mut tariffs: Vec<(u64, Tariff)> = found
        .iter()
        .filter_map(|document| {
            let id = document.name.strip_prefix(PREFIX)?.parse().ok()?;
            // A record that cannot be parsed is skipped, because a later release may have written it.
            Some((id, document.parse().ok()?))
        })
        .collect();
    tariffs.sort_by_key(|(id, _)| std::cmp::Reverse(*id));
    Ok(tariffs)
}
