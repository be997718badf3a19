//! The sources of new prices, and the look-up of a vendor's prices in a source.

use std::collections::BTreeMap;

use toml::{
    Spanned,
    de::{DeTable, DeValue},
};

use super::{
    file::{Prices, string, tables},
    listed::{Listed, Rates},
    map,
};
use crate::config::presets::{Preset, presets};

/// A source of new prices.
#[derive(Debug)]
pub enum PriceSource {
    /// The presets that the binary contains.
    Presets,
    /// A price map in the form of LiteLLM's `model_prices_and_context_window.json`.
    Map(serde_json::Map<String, serde_json::Value>),
}

impl PriceSource {
    /// Parses the JSON of a price map.
    ///
    /// # Errors
    /// If the text is not a JSON object.
    pub fn from_map(text: &str) -> Result<Self, serde_json::Error> {
        serde_json::from_str(text).map(Self::Map)
    }

    pub(super) fn listed(&self, preset: &Preset, model: &str) -> Option<Listed> {
        let named = |name: &str| match self {
            Self::Presets => preset_prices(preset, name),
            Self::Map(map) => map::prices(map, preset.name, name),
        };
        named(model).or_else(|| named(without_date(model, &['-'])?))
    }
}

pub(super) fn preset_prices(preset: &Preset, name: &str) -> Option<Listed> {
    let file = DeTable::parse(preset.text).expect("the tests parse every preset");
    let models = file.get_ref().get("model")?.get_ref().as_table()?;
    let is_named = |table: &&Spanned<DeValue<'_>>| {
        let table = table.get_ref().as_table();
        table.is_some_and(|it| string(it, "model") == Some(name))
    };
    let model = models
        .get(name)
        .or_else(|| models.values().find(is_named))?;
    let prices = Prices::read(model.get_ref().as_table()?, "", "price_rules")?;
    let mut lists = prices.lists.into_iter().map(|(when, rates)| {
        let rates = rates.into_iter();
        let rates = rates.map(|(class, rate)| (class.to_owned(), rate.value));
        (when, rates.collect::<Rates>())
    });
    let (_, rates) = lists.next()?;
    Some(Listed {
        currency: prices.currency,
        rates,
        rules: lists.collect(),
        unread: Vec::new(),
    })
}

/// Returns the vendors by name, each with the preset that contains the vendor's prices.
pub(super) fn vendors<'t>(root: &'t DeTable<'_>) -> BTreeMap<&'t str, Option<&'static Preset>> {
    let vendors = tables(root, "vendor").into_iter();
    let vendors = vendors.filter_map(|table| {
        let name = string(table, "name")?;
        Some((name, preset_of(table, name)))
    });
    vendors.collect()
}

/// Returns the preset that contains a vendor's prices: the preset that the vendor names, or else the preset with the
/// vendor's URL, or else the preset with the vendor's name.
pub(super) fn preset_of(vendor: &DeTable<'_>, name: &str) -> Option<&'static Preset> {
    if let Some(preset) = string(vendor, "preset") {
        return Preset::named(preset);
    }
    let url = string(vendor, "url").map(|url| url.trim_end_matches('/'));
    let mut all = presets().iter();
    let at_url = all.find(|it| url.is_some() && it.vendor_url().as_deref() == url);
    at_url.or_else(|| Preset::named(name))
}

/// Returns a model name without the date at its end, for example `gpt-5-mini` for `gpt-5-mini-2025-08-07`. Before the
/// date is one of the separators. `None` if the name has no such date.
pub(crate) fn without_date<'n>(name: &'n str, separators: &[char]) -> Option<&'n str> {
    let is_date = |text: &str, shape: &str| {
        text.bytes()
            .zip(shape.bytes())
            .all(|(byte, of_shape)| match of_shape {
                b'-' => byte == b'-',
                _ => byte.is_ascii_digit(),
            })
    };
    ["2025-08-07", "20250807"].into_iter().find_map(|shape| {
        let (before, date) = name.split_at_checked(name.len().checked_sub(shape.len())?)?;
        let before = before.strip_suffix(separators)?;
        (is_date(date, shape) && !before.is_empty()).then_some(before)
    })
}
