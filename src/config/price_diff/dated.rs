//! Writes changed prices as rules that come into force at a time, next to the prices that are in force until then.

use std::{collections::BTreeMap, ops::Range};

use toml::{
    Spanned,
    de::{DeTable, DeValue},
};

use super::{
    super::prices::field,
    conditions,
    file::{Prices, string, tables},
};

/// A place in the text, and its new content.
pub(super) type Edit = (Range<usize>, String);

/// Returns the edits that add the rules in place of `edits`, which replace rates, and notes about rules that cannot be
/// added.
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

/// A model's prices, or the costs of a route.
struct PriceTable<'t> {
    table: &'t DeTable<'t>,
    is_inline: bool,
    /// Text before `usdt_mtok` in the name of the usual rates.
    prefix: &'static str,
    rules: &'static str,
    /// The header of a rule that is a table of its own.
    header: &'static str,
}

struct Dated<'a> {
    text: &'a str,
    from: String,
    /// New rates by the places of the old ones.
    changed: BTreeMap<usize, String>,
    edits: Vec<Edit>,
    notes: Vec<String>,
}

impl Dated<'_> {
    /// Adds a dated copy of each list of rates of this place, if one of its rates changes.
    fn add(&mut self, id: &str, place: &PriceTable<'_>) {
        let Some(prices) = Prices::read(place.table, place.prefix, place.rules) else {
            return;
        };
        let changes = |it: &Range<usize>| !it.is_empty() && self.changed.contains_key(&it.start);
        let mut rates = prices.lists.iter().flat_map(|(_, rates)| rates.values());
        if !rates.any(|rate| changes(&rate.place)) {
            return;
        }
        let mut rules = Vec::new();
        for (when, rates) in &prices.lists {
            let mut when = when.clone();
            if when.contains_key("valid_from") {
                continue;
            }
            when.insert("valid_from".to_owned(), self.from.clone());
            if prices.under(&when).is_some() {
                let problem = format!("{id}: has a rule for {} already", conditions(&when));
                self.notes.push(problem);
                return;
            }
            let rates = rates.iter().map(|(class, rate)| {
                let new = self.changed.get(&rate.place.start);
                let stored = format!("\"{}\"", rate.value);
                format!("{class} = {}", new.unwrap_or(&stored))
            });
            let rates = rates.collect::<Vec<_>>().join(", ");
            rules.push((when, format!("{} = {{ {rates} }}", field(prices.currency))));
        }
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
                let problem = format!("{id}: write {} by hand: {}", place.rules, inline.join(", "));
                self.notes.push(problem);
                return;
            }
        };
        self.edits.push((edit.0..edit.0, edit.1));
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

/// Returns where the last value of a table ends.
fn end(table: &Spanned<DeValue<'_>>) -> usize {
    match table.get_ref() {
        DeValue::Table(fields) => fields.values().map(end).max().unwrap_or(table.span().end),
        _ => table.span().end,
    }
}
