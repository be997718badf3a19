//! Compares the prices in a configuration with the prices in presets or in a public price map, and writes the
//! differences into the configuration's text.
//!
//! This module works on the text of the configuration and not on the checked configuration, because a change replaces a
//! value at its position in the text.

mod dated;
pub(super) mod file;
mod listed;
mod map;
mod off_peak;
mod source;
mod warnings;

use std::{collections::BTreeMap, ops::Range};

use rust_decimal::Decimal;
use tollgate_layers::price::Currency;
use toml::{
    Spanned,
    de::{DeTable, DeValue},
};

pub use self::source::PriceSource;
pub(crate) use self::source::without_date;
pub(super) use self::warnings::warnings;
use self::{
    file::{Prices, Rate, string, tables},
    listed::{Listed, Rates, When},
    source::vendors,
};
use super::{Tariff, document::Document, error::ConfigErrors, presets::Preset, prices::field};

/// The differences between the prices in a configuration and the prices of a source.
#[derive(Debug)]
pub struct PriceDiff {
    /// The prices and costs that change, in the order of the file.
    pub changes: Vec<PriceChange>,
    /// A note for each price that was not compared or cannot be written, with the reason.
    pub notes: Vec<String>,
    /// The configuration's text with the changes. Comments and order are kept.
    pub text: String,
}

/// A difference in one rate class of a model's price or cost.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PriceChange {
    /// Id of the model.
    pub model: String,
    /// Name of the vendor whose price is compared.
    pub vendor: String,
    /// Condition of the price rule, for example `service_tier flex`. Empty for the base price.
    pub when: String,
    /// Rate class, for example `input`.
    pub class: String,
    /// Price or cost in the configuration, per million tokens.
    pub old: Decimal,
    /// Price in the source, per million tokens.
    pub new: Decimal,
    /// The changed part: `price`, `cost` or `price, cost`.
    pub fields: &'static str,
    /// Margin after the change, in percent of what customers pay. `None` if the configuration has no price for this
    /// class.
    pub margin_percent: Option<Decimal>,
}

impl PriceDiff {
    /// Compares the prices in a configuration's text with a source. If `from` is given, for example
    /// 2027-01-01T00:00:00Z, the changes are written as price rules that come into force at that time.
    ///
    /// # Errors
    /// If the text is not valid TOML.
    pub fn new(
        text: &str,
        source: &PriceSource,
        tariff: Tariff,
        from: Option<&str>,
    ) -> Result<Self, ConfigErrors> {
        let document = Document::open(text)?;
        let root = document.merged();
        let mut comparison = Comparison {
            source,
            tariff,
            is_dated: from.is_some(),
            vendors: vendors(root),
            edits: Vec::new(),
            diff: Self {
                changes: Vec::new(),
                notes: Vec::new(),
                text: text.to_owned(),
            },
        };
        for model in tables(root, "model") {
            comparison.model(model);
        }
        let Comparison {
            mut edits,
            mut diff,
            ..
        } = comparison;
        if let Some(from) = from {
            let (dated, unwritten) = dated::rules(root, text, edits, from);
            edits = dated;
            diff.notes.extend(unwritten);
        }
        edits.sort_by_key(|(place, _)| place.start);
        for (place, new) in edits.into_iter().rev() {
            diff.text.replace_range(place, &new);
        }
        Ok(diff)
    }
}

struct Comparison<'a> {
    source: &'a PriceSource,
    tariff: Tariff,
    /// Whether the changes are written as price rules with a date.
    is_dated: bool,
    /// The vendors by name, each with the preset that contains the vendor's prices.
    vendors: BTreeMap<&'a str, Option<&'static Preset>>,
    edits: Vec<(Range<usize>, String)>,
    /// The result. Its text is the unchanged text of the configuration until the end of the comparison.
    diff: PriceDiff,
}

impl<'a> Comparison<'a> {
    fn remark(&mut self, model: &str, note: &str) {
        self.diff.notes.push(format!("{model}: {note}"));
    }

    fn model(&mut self, table: &'a DeTable<'a>) {
        let id = string(table, "id").unwrap_or_default();
        let sale = Prices::read(table, "", "price_rules");
        let mut is_first = true;
        let mut whole = Vec::new();
        for route in tables(table, "routes") {
            let vendor = string(route, "vendor").unwrap_or_default();
            let name = string(route, "model").unwrap_or(id);
            let Some(preset) = self.vendors.get(vendor).copied().flatten() else {
                let note = format!(
                    "not compared, because no preset contains the prices of vendor {vendor:?}"
                );
                self.remark(id, &note);
                continue;
            };
            let Some(listed) = self.source.listed(preset, name) else {
                let note = "not compared, because the source has no price for model";
                self.remark(id, &format!("{note} {name:?} of {}", preset.name));
                continue;
            };
            for field in &listed.unread {
                let note = "which the configuration cannot express: compare it by hand";
                self.remark(id, &format!("the source has {field}, {note}"));
            }
            let cost = Prices::read(route, "cost_", "cost_rules");
            let known = [("price", sale.as_ref()), ("cost", cost.as_ref())];
            let [sale, cost] = known.map(|(name, prices)| {
                let other = prices.filter(|it| it.currency != listed.currency);
                if let Some(other) = other {
                    let (one, other) = (other.currency, listed.currency);
                    let note =
                        format!("the {name} is in {one}, but the source's prices are in {other}");
                    self.remark(id, &format!("{note}: compare them by hand"));
                }
                prices.filter(|it| it.currency == listed.currency)
            });
            let place = PricedRoute {
                model: id,
                vendor,
                sale,
                cost,
                currency: listed.currency,
                // If the cost is in another currency than the price, the price is the operator's own and is not
                // compared.
                is_first: is_first && cost.is_some() == known[1].1.is_some(),
            };
            let is_outside = self.route(&place, &listed);
            whole.extend(is_outside.then_some((vendor, name, listed)));
            is_first = false;
        }
        if !whole.is_empty() {
            self.write_whole(table, id, &whole);
        }
    }

    /// Compares the prices of one route. Returns true if a changed price comes from a preset, so that the file does not
    /// contain it.
    fn route(&mut self, place: &PricedRoute<'_>, listed: &Listed) -> bool {
        let known = [place.sale, place.cost];
        if known.iter().all(Option::is_none) {
            return false;
        }
        let mut is_outside = false;
        let usual = (When::new(), listed.rates.clone());
        let lists: Vec<_> = std::iter::once(&usual).chain(&listed.rules).collect();
        for (when, rates) in &lists {
            let sale = place.sale.and_then(|it| it.under(when));
            let cost = place.cost.and_then(|it| it.under(when));
            if sale.is_none() && cost.is_none() {
                let when = shown(when);
                let note =
                    format!("the vendor has a price for {when}, but the file has no rule for it");
                self.remark(place.model, &note);
                continue;
            }
            for (class, new) in rates {
                let [sale, cost] = [sale, cost].map(|it| it?.get(class.as_str()));
                is_outside |= self.class(place, (when, class), *new, sale, cost);
            }
        }
        for (when, rates) in known.into_iter().flatten().flat_map(|it| &it.lists) {
            let Some((_, new)) = lists.iter().find(|(known, _)| known == when) else {
                let note = format!("the source has no price for {}", shown(when));
                self.remark(place.model, &note);
                continue;
            };
            for class in rates.keys().filter(|class| !new.contains_key(**class)) {
                let note = format!("the source has no price for {class}{}", under(when));
                self.remark(place.model, &note);
            }
        }
        self.diff.notes.dedup();
        is_outside
    }

    /// Compares one rate class. Returns true if a changed price comes from a preset, so that the file does not contain
    /// it.
    fn class(
        &mut self,
        place: &PricedRoute<'_>,
        (when, class): (&When, &str),
        new: Decimal,
        sale: Option<&Rate>,
        cost: Option<&Rate>,
    ) -> bool {
        if sale.is_none() && cost.is_none() {
            let when = under(when);
            let note = format!(
                "the vendor bills {class} at {new}{when}, but the file has no price for it"
            );
            self.remark(place.model, &note);
            return false;
        }
        // A price that equals the cost follows the vendor's price. A price that differs from the cost is the operator's
        // own and does not change.
        let follows = place.is_first
            && cost.is_none_or(|cost| sale.is_some_and(|sale| sale.value == cost.value));
        let sale_changes = sale.filter(|it| follows && it.value != new);
        let cost_changes = cost.filter(|it| it.value != new);
        let fields = match (sale_changes, cost_changes) {
            (None, None) => return false,
            (Some(_), None) => "price",
            (None, Some(_)) => "cost",
            (Some(_), Some(_)) => "price, cost",
        };
        let mut is_outside = false;
        for rate in [sale_changes, cost_changes].into_iter().flatten() {
            match rate.place.is_empty() {
                true => is_outside = true,
                false => self.edits.push((rate.place.clone(), format!("\"{new}\""))),
            }
        }
        let sold = sale_changes.map_or_else(|| sale.map(|it| it.value), |_| Some(new));
        let multiplier = self.tariff.multiplier(place.currency);
        let margin_percent = sold.and_then(|sold| margin_percent(sold, multiplier, new));
        let old = cost_changes.or(sale_changes).map_or(new, |it| it.value);
        self.diff.changes.push(PriceChange {
            model: place.model.to_owned(),
            vendor: place.vendor.to_owned(),
            when: conditions(when),
            class: class.to_owned(),
            old,
            new,
            fields,
            margin_percent,
        });
        is_outside
    }

    /// Writes into the file all prices and routes of a model that takes them from a preset.
    fn write_whole(&mut self, table: &DeTable<'_>, id: &str, routes: &[(&str, &str, Listed)]) {
        const OF_PRESET: [&str; 4] = ["usdt_mtok", "rub_mtok", "price_rules", "routes"];
        let is_own = |(key, _): &(&Spanned<_>, &Spanned<DeValue<'_>>)| !key.span().is_empty();
        let own: Vec<_> = table.iter().filter(is_own).collect();
        let is_written = own
            .iter()
            .any(|(key, _)| OF_PRESET.contains(&key.get_ref().as_ref()));
        // Replacing all prices would lose price rules that the source does not have.
        let lacks = |it: &Prices<'_>, listed: &Listed| {
            let mut rules = it.lists.iter().filter(|(when, _)| !when.is_empty());
            rules.any(|(when, _)| listed.rules.iter().all(|(known, _)| known != when))
        };
        let sale = Prices::read(table, "", "price_rules");
        let loses = sale.is_some_and(|sale| routes.iter().any(|(.., listed)| lacks(&sale, listed)));
        let end = own.iter().map(|(_, value)| value.span().end).max();
        let is_written = is_written || self.is_dated;
        let (Some(end), false, false) = (end, is_written, loses) else {
            let note = "the prices are in a preset, and the file can only replace all of them: write usdt_mtok, \
                price_rules and routes by hand";
            self.remark(id, note);
            return;
        };
        let line = self.diff.text[end..].find('\n');
        let end = line.map_or(self.diff.text.len(), |line| end + line);
        let (_, _, first) = &routes[0];
        let mut text = fields(first, "", "price_rules", "\n");
        let routes = routes.iter().map(|(vendor, name, listed)| {
            let costs = fields(listed, "cost_", "cost_rules", ", ");
            format!("  {{ vendor = \"{vendor}\", model = \"{name}\"{costs} }},\n")
        });
        text += &format!("\nroutes = [\n{}]", routes.collect::<String>());
        self.edits.push((end..end, text));
    }
}

/// Returns the margin in percent of what customers pay. `None` if they pay nothing.
fn margin_percent(price: Decimal, multiplier: Decimal, cost: Decimal) -> Option<Decimal> {
    let sold = price.checked_mul(multiplier).filter(|it| !it.is_zero())?;
    let percent = (sold - cost) * Decimal::ONE_HUNDRED / sold;
    Some(percent.round_dp(1).normalize())
}

/// A route, with the model's prices and the route's costs in the file.
struct PricedRoute<'p> {
    model: &'p str,
    vendor: &'p str,
    sale: Option<&'p Prices<'p>>,
    cost: Option<&'p Prices<'p>>,
    /// Currency of the source's prices. Only prices in this currency are compared.
    currency: Currency,
    /// Whether the model's price is compared with the price of this route's vendor. Only the first compared route
    /// decides whether the model's price changes.
    is_first: bool,
}

/// Returns the TOML of the prices and the price rules, with `between` before each field.
fn fields(listed: &Listed, prefix: &str, rules: &str, between: &str) -> String {
    let currency = field(listed.currency);
    let table = |rates: &Rates| {
        let classes = rates
            .iter()
            .map(|(class, rate)| format!("{class} = \"{rate}\""));
        format!("{{ {} }}", classes.collect::<Vec<_>>().join(", "))
    };
    let mut text = format!("{between}{prefix}{currency} = {}", table(&listed.rates));
    if !listed.rules.is_empty() {
        let each = listed.rules.iter().map(|(when, rates)| {
            format!(
                "  {{ {}, {currency} = {} }},\n",
                conditions(when),
                table(rates)
            )
        });
        text += &format!("{between}{rules} = [\n{}]", each.collect::<String>());
    }
    text
}

fn conditions(when: &When) -> String {
    let fields = when
        .iter()
        .map(|(field, value)| format!("{field} = {value}"));
    fields.collect::<Vec<_>>().join(", ")
}

fn shown(when: &When) -> String {
    match when.is_empty() {
        true => "a call that meets no condition".to_owned(),
        false => conditions(when),
    }
}

fn under(when: &When) -> String {
    match when.is_empty() {
        true => String::new(),
        false => format!(" under {}", conditions(when)),
    }
}

#[cfg(test)]
mod tests;
