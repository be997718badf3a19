//! Earlier prices on the prices page: what each tariff version changed, and the margin at its prices.

use std::collections::BTreeSet;

use rust_decimal::Decimal;
use serde::Deserialize;
use tollgate_layers::price::Currency;

use super::texts::english;
use crate::{
    catalog::tariffs::{Prices, Rates, Tariff},
    config,
};

#[derive(Deserialize)]
pub(super) struct Numbered {
    version: u64,
    since: String,
    #[serde(flatten)]
    tariff: Tariff,
}

/// A tariff version, compared with the previous version.
pub(super) struct Former {
    pub(super) version: u64,
    pub(super) since: String,
    pub(super) multiplier: Cell,
    /// Whether the previous version is known. If so, only the changes are listed; otherwise all prices are listed.
    pub(super) compared: bool,
    pub(super) rows: Vec<FormerRow>,
}

/// The prices of a model in a tariff version.
pub(super) struct FormerRow {
    pub(super) model: String,
    /// `new` or `gone` if this version added or removed the model, otherwise empty.
    pub(super) mark: &'static str,
    pub(super) cells: Vec<(&'static str, Cell)>,
}

/// A value in this version, and the value in the previous version if the two differ.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Cell {
    pub(super) was: Option<String>,
    pub(super) now: String,
}

impl Cell {
    fn of(was: Option<String>, now: String) -> Self {
        Self {
            was: was.filter(|was| *was != now),
            now,
        }
    }
}

/// Returns the changes of each version, newest first.
pub(super) fn former_prices(tariffs: &[Numbered]) -> Vec<Former> {
    let before = tariffs.iter().skip(1).map(Some).chain([None]);
    let pairs = tariffs.iter().zip(before);
    pairs
        .map(|(it, before)| {
            // If the version before this one is missing, the changes cannot be listed.
            let before = before.filter(|before| before.version + 1 == it.version);
            former(it, before.map(|before| &before.tariff))
        })
        .collect()
}

/// Returns the tariff multipliers with the times (ms) at which they came into force, earliest first.
pub(super) fn multipliers(tariffs: &[Numbered]) -> Vec<(u64, config::Tariff)> {
    let earliest_first = tariffs.iter().rev();
    let changes = earliest_first.map(|it| {
        let multipliers = config::Tariff {
            sell_rate_multiplier: it.tariff.multiplier,
            sell_rub_multiplier: it.tariff.rub_multiplier,
        };
        (it.tariff.since_ms, multipliers)
    });
    changes.collect()
}

/// Returns the models whose newest recorded price is in rubles.
pub(super) fn priced_in_rubles(tariffs: &[Numbered]) -> BTreeSet<&str> {
    let mut seen = BTreeSet::new();
    let models = tariffs.iter().flat_map(|it| &it.tariff.models);
    let newest = models.filter(|(model, _)| seen.insert(model.as_str()));
    let in_rubles = newest.filter(|(_, prices)| prices.usual.currency == Currency::Rub);
    in_rubles.map(|(model, _)| model.as_str()).collect()
}

fn former(it: &Numbered, before: Option<&Tariff>) -> Former {
    let Numbered {
        version,
        since,
        tariff,
    } = it;
    let is_repriced = |prices: &Prices| {
        let multiplier = |tariff: &Tariff| tariff.multiplier_of(prices.usual.currency);
        before.is_some_and(|before| multiplier(before) != multiplier(tariff))
    };
    let mut rows = Vec::new();
    for (model, prices) in &tariff.models {
        let was = before.map(|before| before.models.get(model));
        if was == Some(Some(prices)) && !is_repriced(prices) {
            continue;
        }
        let earlier = was.flatten().zip(before);
        let earlier = earlier.map(|(was, before)| cells_of(was, before));
        let now = cells_of(prices, tariff);
        let cells = now.into_iter().enumerate().map(|(at, (name, now))| {
            let was = earlier.as_ref().map(|earlier| earlier[at].1.clone());
            (name, Cell::of(was, now))
        });
        rows.push(FormerRow {
            model: model.clone(),
            mark: if was == Some(None) { "new" } else { "" },
            cells: cells.collect(),
        });
    }
    let gone = before.into_iter().flat_map(|before| &before.models);
    for (model, was) in gone.filter(|(model, _)| !tariff.models.contains_key(*model)) {
        let cells = cells_of(was, before.unwrap_or(tariff)).into_iter();
        rows.push(FormerRow {
            model: model.clone(),
            mark: "gone",
            cells: cells
                .map(|(name, was)| (name, Cell::of(Some(was), "—".into())))
                .collect(),
        });
    }
    Former {
        version: *version,
        since: since.clone(),
        multiplier: Cell::of(before.map(shown_multipliers), shown_multipliers(tariff)),
        compared: before.is_some(),
        rows,
    }
}

/// Returns the multiplier for USDT prices, and the multiplier for ruble prices if it is not 1.
fn shown_multipliers(tariff: &Tariff) -> String {
    match tariff.rub_multiplier == Decimal::ONE {
        true => tariff.multiplier.to_string(),
        false => format!("{} (₽: {})", tariff.multiplier, tariff.rub_multiplier),
    }
}

fn cells_of(prices: &Prices, tariff: &Tariff) -> [(&'static str, String); 6] {
    let Rates {
        currency,
        input,
        cached_input,
        output,
        cache_write,
    } = prices.usual;
    let multiplier = tariff.multiplier_of(currency);
    let shown = |rate: Decimal| match currency {
        Currency::Usdt => rate.to_string(),
        Currency::Rub => format!("{rate} {currency}"),
    };
    let margin = |rate: Decimal, cost: fn(&Rates) -> Decimal| {
        // The exchange rate at that time is not known, so only amounts in the same currency are compared.
        let known = prices.cost.as_ref().filter(|it| it.currency == currency);
        let cost = known.map(cost);
        cost.and_then(|cost| margin(rate, multiplier, cost))
            .unwrap_or_else(|| "—".into())
    };
    [
        (english("Input"), shown(input)),
        (english("Cached input"), shown(cached_input)),
        (english("Output"), shown(output)),
        (english("Cache write"), shown(cache_write)),
        (english("Input margin"), margin(input, |cost| cost.input)),
        (english("Output margin"), margin(output, |cost| cost.output)),
    ]
}

/// Returns the margin as a share of the price, such as `13.0 %`.
fn margin(rate: Decimal, multiplier: Decimal, cost: Decimal) -> Option<String> {
    let price = rate.checked_mul(multiplier)?;
    let left = price.checked_sub(cost)?.checked_mul(Decimal::ONE_HUNDRED)?;
    let mut percent = left.checked_div(price)?.round_dp(1);
    percent.rescale(1);
    Some(format!("{percent} %"))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn numbered(version: u64, multiplier: &str, models: &serde_json::Value) -> Numbered {
        let tariff = json!({
            "version": version, "since": "x", "since_ms": 1, "multiplier": multiplier, "models": models,
        });
        serde_json::from_value(tariff).unwrap()
    }

    fn model(output: &str) -> serde_json::Value {
        let rates =
            json!({ "input": "1", "cached_input": "0.1", "output": output, "cache_write": "1" });
        let mut model = rates.clone();
        model["cost"] = rates;
        model["cost"]["output"] = "2".into();
        model
    }

    #[test]
    fn tariff_version_shows_only_what_it_changed() {
        let one = numbered(
            1,
            "1.15",
            &json!({ "a": model("2"), "b": model("2"), "c": model("2") }),
        );
        let two = numbered(
            2,
            "1.15",
            &json!({ "a": model("4"), "b": model("2"), "d": model("2") }),
        );
        let first = former(&one, None);
        assert!(!first.compared && first.rows.len() == 3);
        let margin = &first.rows[0].cells[5].1;
        assert_eq!((margin.was.as_deref(), &*margin.now), (None, "13.0 %"));

        let second = former(&two, Some(&one.tariff));
        let marks: Vec<_> = second
            .rows
            .iter()
            .map(|row| (&*row.model, row.mark))
            .collect();
        assert_eq!(marks, [("a", ""), ("d", "new"), ("c", "gone")]);
        let cell = |at: usize| &second.rows[0].cells[at].1;
        assert_eq!((cell(2).was.as_deref(), &*cell(2).now), (Some("2"), "4"));
        assert_eq!(cell(0).was, None);
        assert_eq!(
            (cell(5).was.as_deref(), &*cell(5).now),
            (Some("13.0 %"), "56.5 %")
        );
        assert_eq!(second.multiplier, Cell::of(None, "1.15".into()));

        let dearer = numbered(
            3,
            "1.3",
            &json!({ "a": model("4"), "b": model("2"), "d": model("2") }),
        );
        let third = former(&dearer, Some(&two.tariff));
        assert_eq!(third.multiplier.was.as_deref(), Some("1.15"));
        assert_eq!(third.rows.len(), 3, "all are dearer");
    }
}
