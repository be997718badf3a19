//! The prices of a model as a source (a preset or a price map) lists them.

use std::collections::BTreeMap;

use rust_decimal::Decimal;
use tollgate_layers::price::Currency;

/// A vendor's prices for a model.
#[derive(Debug, Default)]
pub(super) struct Listed {
    pub(super) currency: Currency,
    pub(super) rates: Rates,
    pub(super) rules: Vec<(When, Rates)>,
    /// Price fields of the source that a configuration cannot express.
    pub(super) unread: Vec<String>,
}

/// Prices per million tokens, by rate class.
pub(super) type Rates = BTreeMap<String, Decimal>;

/// The fields of a price rule that state its condition. Empty for the base prices.
pub(in crate::config) type When = BTreeMap<String, String>;
