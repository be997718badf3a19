//! Writes changed prices as price rules that come into force at a given time. The prices in force until then stay in
//! the file.

use std::{collections::BTreeMap, ops::Range};

use toml::{
    Spanned,
    de::{DeTable, DeValue},
};

use super::{
    super::prices::field,
    conditions,
    file::{Prices, string, tables},
    listed::When,
};

/// A range of the file's text, and the text that replaces it.
pub(super) type Edit = (Range<usize>, String);

/// Converts `edits`, which replace rates, into edits that add dated price rules with the new rates. Also returns a note
/// about each rule that cannot be added.
pub(super) fn rules(
    root: &DeTable<'_>,
    text: &str,
    edits: Vec<Edit>,
    from: &str,
) -> (Vec<Edit>, Vec<String>) {
    let changed = edits.into_iter().map(|(place, new)| (place.start, new));
    let mut dated = Dated {
        text,
        from: format!("\"{from}\""),
        changed: changed.collect(),
        edits: Vec::new(),
        notes: Vec::new(),
    };
    for model in tables(root, "model") {
        let id = string(model, "id").unwrap_or_default();
        let sale = PriceTable {
            table: model,
            is_inline: false,
            prefix: "",
            rules: "price_rules",
            header: "model.price_rules",
        };
        dated.add(id, &sale);
        let routes = model.get("routes").and_then(|it| it.get_ref().as_array());
        for route in routes.into_iter().flat_map(|routes| routes.iter()) {
            let Some(table) = route.get_ref().as_table() else {
                continue;
            };
            let cost = PriceTable {
                table,
                is_inline: dated.is_inline(route),
                prefix: "cost_",
                rules: "cost_rules",
                header: "model.routes.cost_rules",
            };
            dated.add(id, &cost);
        }
    }
    (dated.edits, dated.notes)
}

/// The prices of a model, or the costs of a route, as a table in the file.
struct PriceTable<'t> {
    table: &'t DeTable<'t>,
    is_inline: bool,
    /// Text before `usdt_mtok` in the name of the base prices: empty or `cost_`.
    prefix: &'static str,
    rules: &'static str,
    /// Header of a price rule that is written as a separate table, for example `model.price_rules`.
    header: &'static str,
}

struct Dated<'a> {
    text: &'a str,
    from: String,
    /// The new rates, by the position of the old rate in the text.
    changed: BTreeMap<usize, String>,
    edits: Vec<Edit>,
    notes: Vec<String>,
}

impl Dated<'_> {
    /// If a rate of this price table changes, adds a dated copy of the table's base prices and of each of the table's
    /// rules.
    fn add(&mut self, id: &str, place: &PriceTable<'_>) {
        let Some(prices) = Prices::read(place.table, place.prefix, place.rules) else {
            return;
        };
        let changes = |it: &Range<usize>| !it.is_empty() && self.changed.contains_key(&it.start);
        let mut rates = prices.lists.iter().flat_map(|(_, rates)| rates.values());
        if !rates.any(|rate| changes(&rate.place)) {
            return;
        }
        let rules = match self.dated_rules(&prices) {
            Ok(rules) => rules,
            Err(problem) => {
                self.notes.push(format!("{id}: {problem}"));
                return;
            }
        };
        let inline = rules.iter();
        let inline = inline.map(|(when, rates)| format!("{{ {}, {rates} }}", conditions(when)));
        let inline: Vec<_> = inline.collect();
        let own = |name: &str| place.table.get(name).filter(|it| !it.span().is_empty());
        let usual = own(&format!("{}{}", place.prefix, field(prices.currency)));
        let edit = match (own(place.rules).and_then(last), usual) {
            (Some(last), _) if self.is_inline(last) => {
                (last.span().end, format!(",\n  {}", inline.join(",\n  ")))
            }
            (Some(last), _) => {
                let rules = rules.iter().map(|(when, rates)| {
                    let when = when
                        .iter()
                        .map(|(field, value)| format!("{field} = {value}\n"));
                    format!(
                        "\n\n[[{}]]\n{}{rates}",
                        place.header,
                        when.collect::<String>()
                    )
                });
                (self.line_end(end(last)), rules.collect())
            }
            (None, Some(usual)) if self.is_inline(usual) => {
                let rules = format!("{} = [\n  {},\n]", place.rules, inline.join(",\n  "));
                match place.is_inline {
                    true => (usual.span().end, format!(", {rules}")),
                    false => (self.line_end(usual.span().end), format!("\n{rules}")),
                }
            }
            _ => {
                let problem = format!(
                    "{id}: the new prices could not be inserted into the file: write {} by hand: {}",
                    place.rules,
                    inline.join(", ")
                );
                self.notes.push(problem);
                return;
            }
        };
        self.edits.push((edit.0..edit.0, edit.1));
    }

    /// Returns the dated rules of a price table: the condition of each, and its new rates in TOML. If the rules cannot
    /// be dated, returns the reason.
    fn dated_rules(&self, prices: &Prices<'_>) -> Result<Vec<(When, String)>, String> {
        let mut rules = Vec::new();
        for (when, rates) in &prices.lists {
            let mut when = when.clone();
            if when.contains_key("valid_from") {
                continue;
            }
            when.insert("valid_from".to_owned(), self.from.clone());
            if prices.under(&when).is_some() {
                return Err(format!(
                    "the file already has a price rule with {}, so no rule was added",
                    conditions(&when)
                ));
            }
            let rates = rates.iter().map(|(class, rate)| {
                let new = self.changed.get(&rate.place.start);
                let stored = format!("\"{}\"", rate.value);
                format!("{class} = {}", new.unwrap_or(&stored))
            });
            let rates = rates.collect::<Vec<_>>().join(", ");
            rules.push((when, format!("{} = {{ {rates} }}", field(prices.currency))));
        }
        Ok(rules)
    }

    fn is_inline(&self, value: &Spanned<DeValue<'_>>) -> bool {
        self.text[value.span()].starts_with('{')
    }

    fn line_end(&self, place: usize) -> usize {
        let rest = self.text[place..].find('\n');
        rest.map_or(self.text.len(), |length| place + length)
    }
}

fn last<'t>(rules: &'t Spanned<DeValue<'t>>) -> Option<&'t Spanned<DeValue<'t>>> {
    rules.get_ref().as_array()?.iter().last()
}

/// Returns the position in the text at which the last value of a table ends.
fn end(table: &Spanned<DeValue<'_>>) -> usize {
    match table.get_ref() {
        DeValue::Table(fields) => fields.values().map(end).max().unwrap_or(table.span().end),
        _ => table.span().end,
    }
}
