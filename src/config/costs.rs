//! Checks `cost_usdt_mtok`, `cost_rub_mtok` and `cost_rules` of a route: the prices that the route's vendor charges.
//! Records a warning if a vendor charges more than callers pay.

use std::collections::BTreeSet;

use rust_decimal::Decimal;
use tollgate_layers::{
    model::ModelKind,
    price::{CallTimes, Class, Condition, Currency, Label, Served, Within},
};

use super::{
    BaseRates, ModelConfig, Tariff,
    check::Check,
    prices::{field, minutes_of_week},
    raw::RawRoute,
};

/// The prices that a vendor charges for a model on one route.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RouteCostConfig {
    /// Index of the route in the model's list of routes in the file.
    pub route: usize,
    /// Name of the route's vendor.
    pub vendor: String,
    /// The vendor's name for the model.
    pub model: String,
    /// The cost of a call that meets no condition.
    pub base: BaseRates,
    /// Costs under conditions. No condition is empty, and for every call at most one rule decides.
    pub rules: Vec<(Condition, BaseRates)>,
}

/// The prices at which a model is sold: the general prices, or the prices of a price rule for customers.
pub(super) struct Sale<'a> {
    pub(super) model: &'a ModelConfig,
    /// The base prices, before the multiplier.
    pub(super) usual: &'a BaseRates,
    pub(super) rules: &'a [(Condition, BaseRates)],
    pub(super) tariff: Tariff,
    /// Exchange rate in rubles per USDT, if the file has a fixed one. `None`: prices and costs in different currencies
    /// are not compared.
    pub(super) exchange_rate: Option<Decimal>,
    /// Path of the price rule for customers in the file, if the prices come from such a rule.
    pub(super) customers: Option<&'a str>,
}

impl Check<'_> {
    pub(super) fn route_costs(
        &mut self,
        raw: &mut [RawRoute],
        path: &str,
        id: Option<&str>,
    ) -> Option<Vec<RouteCostConfig>> {
        let mut costs = Vec::new();
        for (route, raw) in raw.iter_mut().enumerate() {
            let path = format!("{path}[{route}]");
            let rules = std::mem::take(&mut raw.cost_rules);
            let tables = (raw.cost_usdt_mtok.take(), raw.cost_rub_mtok.take());
            if let (None, None) = tables {
                if !rules.is_empty() {
                    let path = format!("{path}.cost_usdt_mtok");
                    let advice = "cost_rules need base costs: give cost_usdt_mtok or cost_rub_mtok";
                    self.errors.missing(&path, advice);
                    costs.push(None);
                }
                continue;
            }
            let prefix = format!("{path}.cost_");
            let usual = self.base_rates(tables.0.as_ref(), tables.1.as_ref(), &prefix);
            let rules = self.price_rules(rules, &format!("{path}.cost_rules"), usual.as_ref());
            let model = raw.model.as_deref().filter(|model| !model.is_empty());
            costs.push(usual.zip(rules).map(|(base, rules)| RouteCostConfig {
                route,
                vendor: raw.vendor.clone().unwrap_or_default(),
                model: model.or(id).unwrap_or_default().to_owned(),
                base,
                rules,
            }));
        }
        costs.into_iter().collect()
    }

    /// Records a warning for each rate class that is sold below a vendor's cost, separately for each condition.
    pub(super) fn sold_below_cost(
        &mut self,
        models: &[ModelConfig],
        tariff: Tariff,
        exchange_rate: Option<Decimal>,
    ) {
        for (index, model) in models.iter().enumerate() {
            for cost in &model.route_costs {
                let path = format!("model[{index}].routes[{}]", cost.route);
                self.cost_without_rule(model, cost, &path);
                self.cost_at_another_moment(model, cost, &path);
                let sale = Sale {
                    model,
                    usual: &model.base,
                    rules: &model.price_rules,
                    tariff,
                    exchange_rate,
                    customers: None,
                };
                self.sale_below_cost(&sale, cost, &path);
            }
        }
    }

    /// Records a warning for each service tier that the model sells and the costs do not name. The cost of a call on
    /// such a tier is booked at the highest rate of each rate class.
    fn cost_without_rule(&mut self, model: &ModelConfig, cost: &RouteCostConfig, path: &str) {
        if cost.rules.is_empty() {
            return;
        }
        let sold: BTreeSet<_> = words(&model.price_rules).collect();
        let known: BTreeSet<_> = words(&cost.rules).collect();
        for (field, word) in sold.difference(&known) {
            self.warnings.add(
                format!("{path}.cost_rules"),
                format!(
                    "model {:?} is sold with {field} {word}, but these rules have no price of vendor {:?} for such \
                     calls: add a rule. Until then, their cost is booked at the highest rate of each class",
                    model.id, cost.vendor
                ),
            );
        }
    }

    /// Records a warning if price rules and cost rules with hours have different `hours_at`. A call that is in flight
    /// when the hours end may then be sold at the lower price although the vendor charges the higher cost.
    fn cost_at_another_moment(&mut self, model: &ModelConfig, cost: &RouteCostConfig, path: &str) {
        let moment = |rules: &[(Condition, BaseRates)]| {
            let timed = rules.iter().find(|(condition, _)| condition.has_hours());
            timed.map(|(condition, _)| condition.hours_at.as_str())
        };
        let moments = moment(&model.price_rules).zip(moment(&cost.rules));
        if let Some((sold, taken)) = moments.filter(|(sold, taken)| sold != taken) {
            self.warnings.add(
                format!("{path}.cost_rules"),
                format!(
                    "have hours_at {taken}, but the price_rules of model {:?} have hours_at {sold}. Use the same \
                     hours_at in both: otherwise a call in flight when the hours end may be sold at the lower price \
                     and bought at the higher one",
                    model.id
                ),
            );
        }
    }

    /// Compares the prices of a sale with the costs of one route, and records a warning for each loss. `path` is the
    /// path of the route in the file.
    pub(super) fn sale_below_cost(&mut self, sale: &Sale<'_>, cost: &RouteCostConfig, path: &str) {
        let mut seen = BTreeSet::new();
        for (condition, times) in situations(sale, cost) {
            let (price, sold) = met(sale.usual, sale.rules, &condition, &times);
            let (rule, taken) = met(&cost.base, &cost.rules, &condition, &times);
            if !seen.insert((price, rule)) {
                continue;
            }
            // Adds the conditions of both rules: the warning then names the hours in which both rules apply, even if
            // the compared condition has no hours.
            let met = [(price, sale.rules), (rule, &*cost.rules)].into_iter();
            let met = met.filter_map(|(place, rules)| Some(rules[place?].0));
            let condition = met.fold(condition, |all, it| all.and(&it).unwrap_or(all));
            let table = field(taken.currency);
            let path = match rule {
                None => format!("{path}.cost_{table}"),
                Some(rule) => format!("{path}.cost_rules[{rule}].{table}"),
            };
            let when = match condition.is_empty() {
                true => "a call that meets no condition".to_owned(),
                false => format!("a call with {condition}"),
            };
            let (model, vendor) = (&sale.model.id, &cost.vendor);
            for (class, sold_at, taken_at) in losses(sale, sold, taken) {
                let (sold_at, taken_at) = (sold_at.normalize(), taken_at.normalize());
                let sold_in = sold.currency;
                let charged = match taken.currency == sold_in {
                    true => taken_at.to_string(),
                    false => format!("{taken_at} {}", taken.currency),
                };
                match sale.customers {
                    None => self.warnings.add(
                        format!("{path}.{class}"),
                        format!(
                            "{when} is sold below cost: the price of model {model:?} is {sold_at} {sold_in} including \
                             the multiplier, and vendor {vendor:?} charges {charged}"
                        ),
                    ),
                    Some(rule) => self.warnings.add(
                        rule,
                        format!(
                            "{when} is sold below cost: by this rule, {class} of model {model:?} is sold for \
                             {sold_at} {sold_in} including the multiplier, and vendor {vendor:?} charges {charged}"
                        ),
                    ),
                }
            }
        }
    }
}

/// Returns each rate class for which callers pay less than the vendor charges, with both prices.
fn losses(
    sale: &Sale<'_>,
    sold: &BaseRates,
    taken: &BaseRates,
) -> Vec<(&'static str, Decimal, Decimal)> {
    let has_input_alone = sale.model.kind == ModelKind::Embedding;
    let classes = taken.by_name();
    let classes = classes.filter(|(class, _)| !has_input_alone || *class == "input");
    let losses = classes.filter_map(|(class, taken_at)| {
        let multiplier = sale.tariff.multiplier(sold.currency);
        let sold_at = sold.of_class(class)?.checked_mul(multiplier)?;
        let least = match (taken.currency, sold.currency, sale.exchange_rate) {
            (Currency::Usdt, Currency::Rub, Some(rate)) => taken_at.checked_mul(rate),
            (Currency::Rub, Currency::Usdt, Some(rate)) => taken_at.checked_div(rate),
            _ => Some(taken_at).filter(|_| taken.currency == sold.currency),
        };
        (least? > sold_at).then_some((class, sold_at, taken_at))
    });
    losses.collect()
}

/// Returns the calls for which prices and costs are compared. For each pair of a price rule and a cost rule, returns
/// the smallest call that meets both conditions, once for each time of the week at which a different set of rules
/// applies.
fn situations(sale: &Sale<'_>, cost: &RouteCostConfig) -> Vec<(Condition, CallTimes)> {
    let with_usual = |rules: &[(Condition, BaseRates)]| {
        let conditions = rules.iter().map(|(condition, _)| *condition);
        Vec::from_iter(std::iter::once(Condition::default()).chain(conditions))
    };
    let (sales, costs) = (with_usual(sale.rules), with_usual(&cost.rules));
    let sold: BTreeSet<_> = words(sale.rules).collect();
    let known: BTreeSet<_> = words(&cost.rules).collect();
    let pairs = sales
        .iter()
        .flat_map(|price| costs.iter().filter_map(|cost| price.and(cost)));
    let moments = moments(sale.rules, &cost.rules);
    let pairs = pairs.flat_map(|condition| {
        let moments = moments.iter().copied();
        moments.map(move |times| (condition, times))
    });
    pairs
        .filter(|(condition, times)| condition.holds_at(times))
        .filter(|(condition, _)| {
            // Calls with more input than this are refused, and so are calls with a tier that the model does not sell.
            let priced = sale.model.input_tokens_priced_max.unwrap_or(u64::MAX);
            condition
                .above_input_tokens
                .is_none_or(|above| above < priced)
                && words_of(condition).all(|word| {
                    sold.contains(&word) && (cost.rules.is_empty() || known.contains(&word))
                })
        })
        .collect()
}

/// Returns times at which different sets of rules apply because of the rules' dates, hours and weekdays: one time for
/// each set.
fn moments(sales: &[(Condition, BaseRates)], costs: &[(Condition, BaseRates)]) -> Vec<CallTimes> {
    let conditions = sales.iter().chain(costs).map(|(condition, _)| condition);
    let timed: Vec<_> = conditions.filter(|it| it.has_time()).collect();
    let mut seen = BTreeSet::new();
    let dates = timed.iter().filter_map(|it| it.valid_from_ms);
    let weeks = std::iter::once(0).chain(dates);
    let minutes = weeks.flat_map(minutes_of_week).filter(|times| {
        let apply: Vec<_> = timed.iter().map(|it| it.holds_at(times)).collect();
        seen.insert(apply)
    });
    minutes.collect()
}

/// Returns the prices of a call that just meets `condition`, and the index of the rule that supplies them. The index is
/// `None` if the base prices apply.
fn met<'a>(
    usual: &'a BaseRates,
    rules: &'a [(Condition, BaseRates)],
    call: &Condition,
    times: &CallTimes,
) -> (Option<usize>, &'a BaseRates) {
    let input = call.above_input_tokens.map_or(0, |above| above + 1);
    let served = Served {
        service_tier: call.service_tier,
        speed: call.speed,
        inference_geo: call.inference_geo,
    };
    let met = rules.iter().enumerate();
    let met = met.filter(|(_, (condition, _))| condition.holds(input, &served, times));
    let met = met.max_by_key(|(_, (condition, _))| condition.rank());
    met.map_or((None, usual), |(place, (_, rates))| (Some(place), rates))
}

/// Returns the service tiers, speeds and regions that price rules name, each with its field.
fn words(rules: &[(Condition, BaseRates)]) -> impl Iterator<Item = (&'static str, String)> {
    rules.iter().flat_map(|(condition, _)| words_of(condition))
}

fn words_of(condition: &Condition) -> impl Iterator<Item = (&'static str, String)> + use<> {
    let words: [(_, Label); 3] = [
        ("service_tier", condition.service_tier),
        ("speed", condition.speed),
        ("inference_geo", condition.inference_geo),
    ];
    words
        .into_iter()
        .filter(|(_, word)| !word.is_empty())
        .map(|(field, word)| (field, word.to_string()))
}

impl BaseRates {
    fn by_name(&self) -> impl Iterator<Item = (&'static str, Decimal)> {
        let four = [
            ("input", self.input),
            ("cached_input", self.cached_input),
            ("output", self.output),
            ("cache_write", self.cache_write),
        ];
        let others = self.classes.iter();
        let others = others.filter_map(|(class, rate)| Some((class.name(), rate?)));
        four.into_iter().chain(others)
    }

    /// Returns the price that callers pay for a rate class, before the multiplier. `None` if a call that needs this
    /// class is refused.
    fn of_class(&self, name: &str) -> Option<Decimal> {
        let own = self.by_name().find(|(class, _)| *class == name);
        let own = own.map(|(_, rate)| rate);
        own.or_else(|| match Class::named(name)?.within()? {
            Within::Input => Some(self.input),
            Within::CachedInput => Some(self.cached_input),
            Within::Output => Some(self.output),
            Within::Class(class) => self.of_class(class.name()),
            Within::Nothing => Some(Decimal::ZERO),
        })
    }
}

#[cfg(test)]
mod tests {
    use crate::config::testing::{SMALL, parse};

    fn rates(rate: &str) -> String {
        format!(
            "{{ input = \"{rate}\", cached_input = \"{rate}\", output = \"{rate}\", cache_write = \"{rate}\" }}"
        )
    }

    /// Returns a configuration with a model that is sold at 2 and a multiplier of 1.5. `rules` are the model's price
    /// rules, each with its condition and its rate, and `costs` are the cost settings of the model's route.
    fn config(rules: &[(&str, &str)], costs: &str) -> String {
        let rules = rules.iter().map(|(condition, rate)| {
            format!(
                "[[model.price_rules]]\n{condition}\nusdt_mtok = {}\n",
                rates(rate)
            )
        });
        let usual = "{ input = \"0.25\", cached_input = \"0.025\", output = \"2.00\", cache_write = \"0.25\" }";
        assert!(SMALL.contains(usual) && SMALL.contains("model = \"m-1\" }"));
        SMALL
            .replace(usual, &rates("2"))
            .replace("model = \"m-1\" }", &format!("model = \"m-1\", {costs} }}"))
            .replace(
                "[admin]",
                "[tariff]\nsell_rate_multiplier = \"1.5\"\n[admin]",
            )
            + "\n"
            + &rules.collect::<String>()
    }

    /// Returns each warning about costs, with its path and its text.
    fn noted(text: &str) -> Vec<String> {
        let config = parse(text).unwrap_or_else(|errors| panic!("{errors}"));
        let noted = config.warnings.iter().map(ToString::to_string);
        noted.filter(|text| text.contains(".cost_")).collect()
    }

    #[test]
    fn sale_below_the_vendors_cost_is_reported_by_class_and_condition() {
        let long = ("above_input_tokens = 100", "4");
        let flex = ("service_tier = \"flex\"", "1");
        let both = ("service_tier = \"flex\"\nabove_input_tokens = 100", "2");
        // With the multiplier of 1.5, the price covers the cost.
        let fits = format!("cost_usdt_mtok = {}", rates("3"));
        assert_eq!(noted(&config(&[long], &fits)), [""; 0]);
        // In this configuration, the base price of one class is below the vendor's cost.
        let input = fits.replace("output = \"3\"", "output = \"3.01\"");
        let notes = noted(&config(&[long], &input));
        assert_eq!(notes.len(), 1, "{notes:#?}");
        for part in [
            "model[0].routes[0].cost_usdt_mtok.output",
            "a call that meets no condition",
            "model \"m\" is 3 USDT",
            "\"v\" charges 3.01",
        ] {
            assert!(notes[0].contains(part), "{part}: {notes:#?}");
        }
        // A cost without conditions also applies to the tier flex. This tier is sold more cheaply, so each rate class
        // causes a warning.
        let notes = noted(&config(&[long, flex, both], &fits));
        assert_eq!(notes.len(), 4, "{notes:#?}");
        assert!(
            notes[0].contains("a call with service_tier flex is sold below cost"),
            "{notes:#?}"
        );
        assert!(
            notes[0].contains("is 1.5 USDT") && notes[0].contains("charges 3"),
            "{notes:#?}"
        );
        // The vendor's rules set lower costs for the tier flex, and higher costs for long input.
        let rules = format!(
            "{fits}, cost_rules = [ {{ service_tier = \"flex\", usdt_mtok = {} }}, {{ above_input_tokens = 50, usdt_mtok = {} }}, \
             {{ service_tier = \"flex\", above_input_tokens = 50, usdt_mtok = {} }} ]",
            rates("1.5"),
            rates("6"),
            rates("3")
        );
        let notes = noted(&config(&[long, flex, both], &rules));
        // The vendor charges 6 from 51 tokens on, but the price rises only from 101 tokens on.
        assert_eq!(notes.len(), 8, "{notes:#?}");
        let of_long = notes
            .iter()
            .filter(|note| note.contains("a call with above_input_tokens 50 is"));
        assert_eq!(of_long.count(), 4, "{notes:#?}");
        assert!(
            notes
                .iter()
                .any(|note| note.contains("routes[0].cost_rules[1].usdt_mtok.input")),
            "{notes:#?}"
        );
        // Calls of this tier are refused, so they cannot be sold below cost.
        let refused = config(&[flex], &rules).replace(
            "family = \"M\"",
            "family = \"M\"\ninput_tokens_priced_max = 50",
        );
        assert_eq!(noted(&refused), [""; 0]);
    }

    #[test]
    fn missing_vendor_cost_of_a_sold_tier_causes_a_warning() {
        let costs = format!(
            "cost_usdt_mtok = {}, cost_rules = [ {{ above_input_tokens = 100, usdt_mtok = {} }} ]",
            rates("1"),
            rates("2")
        );
        let notes = noted(&config(&[("speed = \"fast\"", "9")], &costs));
        assert_eq!(notes.len(), 1, "{notes:#?}");
        assert!(
            notes[0].contains("sold with speed fast") && notes[0].contains("highest rate"),
            "{notes:#?}"
        );
    }

    #[test]
    fn hours_in_which_a_sale_is_below_cost_cause_a_warning() {
        let peak = "hours_utc = [\"01:00-04:00\"]";
        let costs = |hours_at: &str, peak: &str| {
            format!(
                "cost_usdt_mtok = {}, cost_rules = [ {{ {peak}, hours_at = \"{hours_at}\", usdt_mtok = {} }} ]",
                rates("3"),
                rates("6")
            )
        };
        // The columns are: the hours of the prices; the costs; the number of warnings; texts that the first warning
        // contains.
        for (sold, costs, warnings, parts) in [
            (
                None,
                costs("request", peak),
                4,
                &[
                    "a call with hours_utc 01:00-04:00 is sold below cost",
                    "charges 6",
                ][..],
            ),
            (Some(peak), costs("request", peak), 0, &[]),
            (
                Some("hours_utc = [\"01:00-03:00\"]"),
                costs("request", peak),
                4,
                &["a call with hours_utc 01:00-04:00 is sold below cost"],
            ),
            (
                Some(peak),
                costs(
                    "request",
                    "hours_utc = [\"01:00-04:00\"], weekdays = [\"mon\"]",
                ),
                0,
                &[],
            ),
            (
                Some(peak),
                costs("end", peak),
                1,
                &["hours_at end", "have hours_at request"],
            ),
            // From 2027 on, the vendor charges more, but the price stays the same.
            (
                None,
                costs("request", peak).replace(
                    &format!("{peak}, hours_at = \"request\""),
                    "valid_from = \"2027-01-01T00:00:00Z\"",
                ),
                4,
                &["valid_from 2027-01-01T00:00:00Z is sold below cost"],
            ),
        ] {
            let sold: Vec<_> = sold.map(|hours| (hours, "4")).into_iter().collect();
            let notes = noted(&config(&sold, &costs));
            assert_eq!(notes.len(), warnings, "{notes:#?}");
            for part in parts {
                assert!(notes[0].contains(part), "{part}: {notes:#?}");
            }
        }
    }

    #[test]
    fn costs_in_another_currency_are_compared_at_a_fixed_exchange_rate() {
        // The model is sold for 3 USDT including the multiplier, at 90.50 ₽ per USDT.
        let cost = |rate: &str| format!("cost_rub_mtok = {}", rates(rate));
        assert_eq!(noted(&config(&[], &cost("271.5"))), [""; 0]);
        let dear = config(&[], &cost("271.6"));
        let notes = noted(&dear);
        assert_eq!(notes.len(), 4, "{notes:#?}");
        assert!(
            notes[0].contains("routes[0].cost_rub_mtok.input: ")
                && notes[0].contains(
                    "is 3 USDT including the multiplier, and vendor \"v\" charges 271.6 ₽"
                ),
            "{notes:#?}"
        );
        // An exchange rate that is not fixed is unknown until the gateway runs.
        let fed = dear.replace(
            "fixed = \"90.50\"",
            "url = \"https://rates.example/\"\nselect = \"/rate\"",
        );
        assert_eq!(noted(&fed), [""; 0]);
    }

    #[test]
    fn error_about_an_invalid_vendor_cost_names_the_setting() {
        let rule = |condition: &str, more: &str| {
            let rates = rates("1").replace(" }", &format!("{more} }}"));
            format!("cost_rules = [ {{ {condition}usdt_mtok = {rates} }} ]")
        };
        let usual = format!("cost_usdt_mtok = {}, ", rates("1"));
        for (costs, field, problem) in [
            (
                rule("speed = \"fast\", ", ""),
                "model[0].routes[0].cost_usdt_mtok",
                "need base costs",
            ),
            (
                usual.clone() + &rule("", ""),
                "model[0].routes[0].cost_rules[0]",
                "no condition",
            ),
            (
                usual + &rule("speed = \"fast\", ", ", cache_write_1h = \"2\""),
                "model[0].routes[0].cost_rules[0].usdt_mtok",
                "the base price has no cache_write_1h: remove cache_write_1h here, or add it to the base price",
            ),
        ] {
            let errors = parse(&config(&[], &costs)).unwrap_err().to_string();
            assert!(
                errors.contains(&format!("{field}:")) && errors.contains(problem),
                "{errors}"
            );
        }
    }
}
