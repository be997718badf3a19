//! Prices as a vendor lists them.

use std::collections::BTreeMap;

use rust_decimal::Decimal;
use tollgate_layers::price::Currency;

/// A vendor's prices of a model.
#[derive(Debug, Default)]
pub(super) struct Listed {
    pub(super) currency: Currency,
    pub(super) rates: Rates,
    pub(super) rules: Vec<(When, Rates)>,
    /// Prices of the source that have no form here.
    pub(super) unread: Vec<String>,
}

/// Prices per million tokens by class.
pub(super) type Rates = BTreeMap<String, Decimal>;

/// The fields of a rule that state its condition; empty for the usual price.
pub(in crate::config) type When = BTreeMap<String, String>;
