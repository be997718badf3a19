//! The prices in a configuration file, each with its position in the text.

use std::{collections::BTreeMap, ops::Range};

use rust_decimal::Decimal;
use tollgate_layers::price::Currency;
use toml::de::{DeTable, DeValue};

use super::listed::When;
use crate::config::prices::field;

/// A price, with its range in the file's text. The range is empty if the price comes from a preset.
#[derive(Debug)]
pub(in crate::config) struct Rate {
    pub(in crate::config) value: Decimal,
    pub(in crate::config) place: Range<usize>,
}

/// The base prices and price rules of a model, or the costs and cost rules of a route.
pub(in crate::config) struct Prices<'p> {
    pub(in crate::config) currency: Currency,
    pub(in crate::config) lists: Vec<(When, BTreeMap<&'p str, Rate>)>,
}

impl<'p> Prices<'p> {
    pub(in crate::config) fn read(
        table: &'p DeTable<'p>,
        prefix: &str,
        rules: &str,
    ) -> Option<Self> {
        let given = |currency: &Currency| format!("{prefix}{}", field(*currency));
        let has = |currency: &Currency| table.get(given(currency).as_str()).is_some();
        let currency = Currency::ALL.into_iter().find(has)?;
        let rates = |table: &'p DeTable<'p>, field: &str| -> BTreeMap<&'p str, Rate> {
            let own = table.get(field).and_then(|it| it.get_ref().as_table());
            let entries = own.into_iter().flatten();
            let entries = entries.filter_map(|(class, value)| {
                let number = value.get_ref().as_str()?;
                let value_of = Decimal::from_str_exact(number).ok()?.normalize();
                Some((
                    class.get_ref().as_ref(),
                    Rate {
                        value: value_of,
                        place: value.span(),
                    },
                ))
            });
            entries.collect()
        };
        let usual = rates(table, &given(&currency));
        let rules = tables(table, rules).into_iter();
        let rules = rules.map(|rule| (condition(rule), rates(rule, field(currency))));
        Some(Self {
            currency,
            lists: std::iter::once((When::new(), usual)).chain(rules).collect(),
        })
    }

    pub(in crate::config) fn under(&self, when: &When) -> Option<&BTreeMap<&'p str, Rate>> {
        self.lists
            .iter()
            .find(|(known, _)| known == when)
            .map(|(_, rates)| rates)
    }
}

/// Returns the fields of a price rule that state its condition: all fields except the prices.
fn condition(rule: &DeTable<'_>) -> When {
    let fields = rule
        .iter()
        .filter(|(name, _)| !name.get_ref().ends_with("_mtok"));
    let fields = fields.map(|(name, value)| (name.get_ref().to_string(), plain(value.get_ref())));
    fields.collect()
}

fn plain(value: &DeValue<'_>) -> String {
    match value {
        DeValue::String(text) => format!("\"{text}\""),
        DeValue::Integer(number) => number.to_string(),
        DeValue::Boolean(flag) => flag.to_string(),
        DeValue::Array(items) => {
            let items: Vec<_> = items.iter().map(|it| plain(it.get_ref())).collect();
            format!("[{}]", items.join(", "))
        }
        _ => String::new(),
    }
}

pub(in crate::config) fn string<'t>(table: &'t DeTable<'_>, name: &str) -> Option<&'t str> {
    table.get(name)?.get_ref().as_str()
}

/// Returns the tables in a list. Returns no tables if the field is not a list.
pub(in crate::config) fn tables<'t, 'i>(
    table: &'t DeTable<'i>,
    name: &str,
) -> Vec<&'t DeTable<'i>> {
    let items = table.get(name).and_then(|it| it.get_ref().as_array());
    let items = items.into_iter().flat_map(|items| items.iter());
    items.filter_map(|it| it.get_ref().as_table()).collect()
}
