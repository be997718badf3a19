//! Extracts the vendors and models from the text of a configuration, for the operators' API and the console.

use std::collections::{BTreeMap, BTreeSet};

use serde::{Deserialize, Serialize};
use toml::de::{DeTable, DeValue};

use super::{
    document::Document,
    price_diff::file::{Prices, string, tables},
    prices::field,
};

/// Vendors and models of a configuration, including the values that presets supply.
#[derive(Debug, Deserialize, Serialize)]
pub(crate) struct Described {
    pub(crate) vendors: Vec<DescribedVendor>,
    pub(crate) models: Vec<DescribedModel>,
}

#[derive(Debug, Deserialize, Serialize)]
pub(crate) struct DescribedVendor {
    pub(crate) name: String,
    pub(crate) preset: Option<String>,
    pub(crate) url: Option<String>,
    /// The reference to the vendor's key, for example `${NAME}`. It never contains the key itself.
    pub(crate) key: Option<String>,
}

#[derive(Debug, Deserialize, Serialize)]
pub(crate) struct DescribedModel {
    pub(crate) id: String,
    pub(crate) preset: Option<String>,
    pub(crate) routes: Vec<DescribedRoute>,
    /// The setting that contains the base prices: `usdt_mtok` or `rub_mtok`.
    pub(crate) currency: Option<String>,
    pub(crate) prices: BTreeMap<String, String>,
    pub(crate) rules: Vec<DescribedRule>,
}

#[derive(Debug, Deserialize, Serialize)]
pub(crate) struct DescribedRoute {
    pub(crate) vendor: String,
    pub(crate) model: String,
}

/// One of a model's price rules: prices that apply under a condition.
#[derive(Debug, Deserialize, Serialize)]
pub(crate) struct DescribedRule {
    pub(crate) when: String,
    pub(crate) prices: BTreeMap<String, String>,
}

impl Described {
    /// Parses the text of a configuration and returns its vendors and models.
    ///
    /// # Errors
    /// If the text is not valid TOML.
    pub(crate) fn read(text: &str) -> Result<Self, String> {
        let document = Document::open(text).map_err(|errors| errors.to_string())?;
        let root = document.merged();
        let vendors = tables(root, "vendor").into_iter();
        let models = tables(root, "model").into_iter();
        Ok(Self {
            vendors: vendors.filter_map(described_vendor).collect(),
            models: models.filter_map(described_model).collect(),
        })
    }
}

fn described_vendor(table: &DeTable<'_>) -> Option<DescribedVendor> {
    let text = |name: &str| string(table, name).map(str::to_owned);
    let login = table.get("login").and_then(|it| it.get_ref().as_table());
    let login = login.into_iter().flat_map(|it| it.values());
    let login = login.filter_map(|it| it.get_ref().as_str());
    let mut keys = string(table, "key").into_iter().chain(login);
    Some(DescribedVendor {
        name: text("name")?,
        preset: text("preset"),
        url: text("url"),
        key: keys.find(|it| is_reference(it)).map(str::to_owned),
    })
}

fn described_model(table: &DeTable<'_>) -> Option<DescribedModel> {
    let text = |name: &str| string(table, name).map(str::to_owned);
    let id = text("id")?;
    let routes = tables(table, "routes").into_iter().filter_map(|route| {
        Some(DescribedRoute {
            vendor: string(route, "vendor")?.to_owned(),
            model: string(route, "model").unwrap_or(&id).to_owned(),
        })
    });
    let routes = routes.collect();
    let known = Prices::read(table, "", "price_rules");
    let currency = known.as_ref().map(|known| field(known.currency).to_owned());
    let lists = known.into_iter().flat_map(|known| known.lists);
    let mut lists = lists.map(|(when, rates)| {
        let when = when.iter().map(|(field, it)| format!("{field} {it}"));
        let prices = rates.iter();
        DescribedRule {
            when: when.collect::<Vec<_>>().join(", "),
            prices: prices
                .map(|(class, it)| ((*class).to_owned(), it.value.to_string()))
                .collect(),
        }
    });
    let usual = lists.next().map(|usual| usual.prices);
    Some(DescribedModel {
        preset: text("preset"),
        routes,
        currency,
        prices: usual.unwrap_or_default(),
        rules: lists.collect(),
        id,
    })
}

pub(crate) fn is_reference(text: &str) -> bool {
    text.starts_with("${") || text.starts_with("file:")
}

/// Returns the references to secrets that the file uses outside `[[vendor]]`. The console must not use one of them as a
/// vendor's key, because the gateway would then send this secret to the vendor.
///
/// # Errors
/// If the text is not valid TOML.
pub(crate) fn foreign_references(text: &str) -> Result<BTreeSet<String>, String> {
    fn collect(value: &DeValue<'_>, into: &mut BTreeSet<String>) {
        match value {
            DeValue::String(text) if is_reference(text) => drop(into.insert(text.to_string())),
            DeValue::Array(items) => items.iter().for_each(|it| collect(it.get_ref(), into)),
            DeValue::Table(table) => table.values().for_each(|it| collect(it.get_ref(), into)),
            _ => {}
        }
    }
    let document = Document::open(text).map_err(|errors| errors.to_string())?;
    let mut found = BTreeSet::new();
    for (name, value) in document.merged().iter() {
        if name.get_ref() != "vendor" {
            collect(value.get_ref(), &mut found);
        }
    }
    Ok(found)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::edit::tests::FILE;

    #[test]
    fn description_of_a_configuration_has_preset_values_and_references_to_keys() {
        let described = serde_json::to_value(Described::read(FILE).unwrap()).unwrap();
        assert_eq!(described["vendors"][0]["url"], "https://api.deepseek.com");
        assert_eq!(described["vendors"][0]["key"], "${DEEPSEEK_API_KEY}");
        assert_eq!(described["models"][0]["id"], "deepseek-flash");
        assert_eq!(described["models"][0]["rules"].as_array().unwrap().len(), 1);
        assert_eq!(described["models"][1]["routes"][1]["model"], "m");
        let foreign = foreign_references(FILE).unwrap();
        assert_eq!(Vec::from_iter(foreign), ["${ADMIN}"]);
    }
}
