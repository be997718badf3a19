//! Finds the vendor's name and prices for the model of a receipt, because a receipt has only the model's catalog name.

use std::collections::{BTreeMap, BTreeSet};

use serde::Deserialize;
use tollgate_layers::price::{
    CallTimes, Condition, Currency, Hours, Label, Moment, Served, Weekdays,
};
use toml::Value;

use super::amount::Nano;
use crate::{
    config::{read_part, without_date},
    text::{similar::hint, time::parse_rfc3339_ms},
};

/// The part of a configuration that contains routes, with the vendors' names for models and the vendors' prices. No
/// other part is read, so no secret is needed.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct Routes {
    vendor: Vec<Vendor>,
    model: Vec<Model>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct Vendor {
    name: String,
    url: String,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct Model {
    id: String,
    usdt_mtok: Table,
    rub_mtok: Table,
    price_rules: Vec<Rule>,
    routes: Vec<Route>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct Route {
    vendor: String,
    model: Option<String>,
    /// The vendor's prices for this route, if they differ from the model's prices.
    cost_usdt_mtok: Table,
    cost_rub_mtok: Table,
    cost_rules: Vec<Rule>,
}

/// A vendor's prices that apply under a condition.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct Rule {
    above_input_tokens: Option<u64>,
    service_tier: Label,
    speed: Label,
    inference_geo: Label,
    hours_utc: Hours,
    weekdays: Weekdays,
    hours_at: Moment,
    valid_from: String,
    usdt_mtok: Table,
    rub_mtok: Table,
}

/// A table of prices, as the configuration writes it.
type Table = BTreeMap<String, Value>;

/// Rates by rate class, in billionths of a USDT or of a ruble, per million tokens or per call.
type Rates = BTreeMap<String, i128>;

/// The vendor's rates for a model: the rates without a condition, and the rates under conditions.
#[derive(Debug, Default)]
pub(super) struct Costs {
    currency: Currency,
    usual: Rates,
    rules: Vec<(Condition, Rates)>,
}

impl Costs {
    /// Returns the rates that apply to a call. They depend on the number of input tokens, on how the vendor served the
    /// call (`served`, known from the price on the receipt), and on the call's times.
    pub(super) fn rates(&self, input_tokens: u64, served: &Served, times: &CallTimes) -> &Rates {
        self.met(input_tokens, served, times).1
    }

    /// Returns whether the call would have another price if the vendor applied the price of another moment: the
    /// request, the first byte or the end.
    pub(super) fn depend_on_moment(&self, input: u64, served: &Served, times: &CallTimes) -> bool {
        let moments = [times.request_ms, times.first_byte_ms, times.end_ms];
        let rules = moments.map(|ms| self.met(input, served, &CallTimes::at(ms)).0);
        rules.iter().any(|rule| *rule != rules[0])
    }

    /// Returns the rates that apply to a call, and the condition of the price rule that supplies them; `None` if no
    /// rule applies.
    fn met(
        &self,
        input_tokens: u64,
        served: &Served,
        times: &CallTimes,
    ) -> (Option<Condition>, &Rates) {
        let holds =
            |(condition, _): &&(Condition, Rates)| condition.holds(input_tokens, served, times);
        let met = self.rules.iter().filter(holds);
        let met = met.max_by_key(|(condition, _)| condition.rank());
        met.map_or((None, &self.usual), |(condition, rates)| {
            (Some(*condition), rates)
        })
    }
}

/// The names that vendors have for models. Names that receipts cannot distinguish form a group, for example two models
/// of a vendor under one catalog name, or an alias and the dated version that the vendor counts it as.
#[derive(Debug, Default)]
pub(super) struct Names {
    /// The known names: by vendor, and then by catalog name.
    known: BTreeMap<String, BTreeMap<String, Known>>,
    /// Groups of vendors' names for models that receipts cannot distinguish.
    groups: Vec<BTreeSet<String>>,
}

#[derive(Debug, Default)]
struct Known {
    /// The vendor's name for the model; if there are several, one of them.
    called: String,
    /// The name under which the comparison lists the model.
    compared_as: String,
    costs: Costs,
}

impl Routes {
    /// Reads the routes of a configuration.
    ///
    /// # Errors
    /// If the configuration is invalid: all mistakes, in one line.
    pub(super) fn read(text: &str) -> Result<Self, String> {
        read_part(text)
    }

    /// Returns the vendors that `name` means: the vendor with this name or else, if the name is `openai` or
    /// `anthropic`, all vendors whose URL is at this company's domain.
    ///
    /// # Errors
    /// If there is no such vendor: a text that lists the configured vendors.
    pub(super) fn vendors(&self, name: &str) -> Result<Vec<String>, String> {
        let names = || self.vendor.iter().map(|vendor| vendor.name.as_str());
        if names().any(|known| known == name) {
            return Ok(vec![name.to_owned()]);
        }
        let domain = match name {
            "openai" => "openai.com",
            "anthropic" => "anthropic.com",
            _ => "",
        };
        let at_domain = |url: &str| {
            let host: Option<http::Uri> = url.parse().ok();
            let host = host.as_ref().and_then(http::Uri::host).unwrap_or_default();
            let before = host.strip_suffix(domain);
            !domain.is_empty()
                && before.is_some_and(|before| before.is_empty() || before.ends_with('.'))
        };
        let there = self.vendor.iter().filter(|vendor| at_domain(&vendor.url));
        let there: Vec<String> = there.map(|vendor| vendor.name.clone()).collect();
        if there.is_empty() {
            let known: Vec<&str> = names().collect();
            return Err(format!(
                "{name}: the configuration has no such vendor; its vendors are {}{}",
                known.join(", "),
                hint(name, known.iter().copied())
            ));
        }
        Ok(there)
    }

    /// Returns these vendors' names for models, together with the names in `also`, which are no longer in the
    /// configuration.
    pub(super) fn names(&self, vendors: &BTreeSet<String>, also: &[(String, String)]) -> Names {
        let mut names = Names::default();
        for model in &self.model {
            let routes = model.routes.iter();
            for route in routes.filter(|route| vendors.contains(&route.vendor)) {
                let called = route.model.as_ref().unwrap_or(&model.id);
                let known = names.add(&route.vendor, &model.id, called);
                if known.costs.usual.is_empty() {
                    let reported = given(&route.cost_usdt_mtok, &route.cost_rub_mtok);
                    let sold = given(&model.usdt_mtok, &model.rub_mtok);
                    let of_rules = match reported {
                        Some(_) => &route.cost_rules,
                        None => &model.price_rules,
                    };
                    known.costs.currency = reported.or(sold).map(|it| it.0).unwrap_or_default();
                    let tables = [sold, reported].into_iter().flatten();
                    let tables = tables.filter(|(currency, _)| *currency == known.costs.currency);
                    let usual: Rates = tables.flat_map(|(_, table)| rates(table)).collect();
                    known.costs.usual = usual;
                    known.costs.rules = of_rules.iter().map(Rule::read).collect();
                }
            }
        }
        for (catalog, called) in also {
            for vendor in vendors {
                names.add(vendor, catalog, called);
            }
        }
        names.join_versions();
        names.settle();
        names
    }
}

impl Rule {
    fn read(&self) -> (Condition, Rates) {
        let condition = Condition {
            above_input_tokens: self.above_input_tokens,
            service_tier: self.service_tier.as_tier(),
            speed: self.speed,
            inference_geo: self.inference_geo,
            hours_utc: self.hours_utc,
            weekdays: self.weekdays,
            hours_at: self.hours_at,
            valid_from_ms: parse_rfc3339_ms(&self.valid_from),
        };
        let table = given(&self.usdt_mtok, &self.rub_mtok);
        let rates = table.map(|(_, table)| rates(table));
        (condition, rates.unwrap_or_default())
    }
}

/// Returns the price table that the configuration gives (in USDT or in rubles), and the currency of this table.
fn given<'t>(usdt: &'t Table, rub: &'t Table) -> Option<(Currency, &'t Table)> {
    let tables = [(Currency::Usdt, usdt), (Currency::Rub, rub)];
    tables.into_iter().find(|(_, table)| !table.is_empty())
}

fn rates(table: &Table) -> Rates {
    let rate = |value: &Value| Some(value.as_str()?.parse::<Nano>().ok()?.nano());
    let rates = table.iter();
    rates
        .filter_map(|(class, value)| Some((class.clone(), rate(value)?)))
        .collect()
}

impl Names {
    /// Returns the name under which the comparison lists a receipt's model.
    pub(super) fn of_receipt(&self, vendor: &str, catalog: &str) -> String {
        match self.known(vendor, catalog) {
            Some(known) => known.compared_as.clone(),
            None => self.of_vendor(catalog),
        }
    }

    /// Returns the name under which the comparison lists a model of the vendor's bill.
    pub(super) fn of_vendor(&self, called: &str) -> String {
        let group = |name: &str| self.groups.iter().find(|group| group.contains(name));
        let group = group(called)
            .or_else(|| group(undated(called)?))
            .or_else(|| {
                let mut of_versions = self
                    .groups
                    .iter()
                    .filter(|group| group.iter().any(|name| undated(name) == Some(called)));
                // If there are several dated versions, it is unknown which of them the alias means.
                of_versions.next().filter(|_| of_versions.next().is_none())
            });
        match group {
            Some(group) => Vec::from_iter(group.iter().cloned()).join(" + "),
            None => called.to_owned(),
        }
    }

    /// Returns the currency in which the vendors bill.
    ///
    /// # Errors
    /// If the vendors bill in several currencies: a text that names a model for each of two currencies.
    pub(super) fn currency(&self) -> Result<Currency, String> {
        let known = self.known.values().flatten();
        let mut known = known.filter(|(_, it)| !it.costs.usual.is_empty());
        let Some((first, one)) = known.next() else {
            return Ok(Currency::default());
        };
        let currency = one.costs.currency;
        match known.find(|(_, it)| it.costs.currency != currency) {
            None => Ok(currency),
            Some((other, it)) => Err(format!(
                "the costs of {first:?} are in {currency}, and the costs of {other:?} in {}: compare the bills of each currency separately",
                it.costs.currency
            )),
        }
    }

    pub(super) fn costs(&self, vendor: &str, catalog: &str) -> Option<&Costs> {
        Some(&self.known(vendor, catalog)?.costs)
    }

    fn known(&self, vendor: &str, catalog: &str) -> Option<&Known> {
        self.known.get(vendor)?.get(catalog)
    }

    fn add(&mut self, vendor: &str, catalog: &str, called: &str) -> &mut Known {
        let of_vendor = self.known.entry(vendor.to_owned()).or_default();
        let known = of_vendor.entry(catalog.to_owned()).or_default();
        if known.called.is_empty() {
            called.clone_into(&mut known.called);
        }
        let first = known.called.clone();
        self.join(&first, called);
        let known = self
            .known
            .get_mut(vendor)
            .and_then(|of| of.get_mut(catalog));
        known.expect("the name was inserted above")
    }

    /// Sets the name under which the comparison lists each model. Must be called when all groups are complete.
    fn settle(&mut self) {
        let mut known = std::mem::take(&mut self.known);
        for one in known.values_mut().flat_map(BTreeMap::values_mut) {
            one.compared_as = self.of_vendor(&one.called);
        }
        self.known = known;
    }

    /// Puts two names into the same group. If the names were in different groups, these groups become one.
    fn join(&mut self, one: &str, other: &str) {
        let (joined, apart): (Vec<_>, Vec<_>) = std::mem::take(&mut self.groups)
            .into_iter()
            .partition(|group| group.contains(one) || group.contains(other));
        self.groups = apart;
        let mut all: BTreeSet<String> = joined.into_iter().flatten().collect();
        all.extend([one.to_owned(), other.to_owned()]);
        self.groups.push(all);
    }

    fn join_versions(&mut self) {
        let known: BTreeSet<String> = self.groups.iter().flatten().cloned().collect();
        for name in &known {
            if let Some(alias) = undated(name).filter(|alias| known.contains(*alias)) {
                self.join(alias, name);
            }
        }
    }
}

/// Returns the model's name without its date suffix (`-2025-08-07`, `-20250514`, `@20250514`); `None` if there is no
/// such suffix.
fn undated(name: &str) -> Option<&str> {
    without_date(name, &['-', '@'])
}

#[cfg(test)]
mod tests {
    use super::*;

    const CONFIG: &str = r#"
        listen = "127.0.0.1:8080"
        [admin]
        key = "${TOLLGATE_ADMIN_KEY}"
        [[vendor]]
        name = "openai-eu"
        format = "chat"
        url = "https://eu.api.openai.com/v1"
        key = "${NOT_SET}"
        [[vendor]]
        name = "openai-us"
        url = "https://api.openai.com/v1"
        [[vendor]]
        name = "reseller"
        url = "https://notopenai.com/v1"
        [[model]]
        id = "mini"
        usdt_mtok = { input = "0.25", cached_input = "0.025", output = "2.00", cache_write = "0.25" }
        routes = [
          { vendor = "openai-eu", model = "gpt-5-mini-2025-08-07", weight = 3 },
          { vendor = "reseller", model = "openai/gpt-5-mini", cost_usdt_mtok = { input = "0.2" }, cost_rules = [
            { above_input_tokens = 100, usdt_mtok = { input = "0.4" } },
            { service_tier = "Flex", usdt_mtok = { input = "0.1" } },
            { hours_utc = ["01:00-04:00"], hours_at = "end", usdt_mtok = { input = "0.8" } } ] },
        ]
        [[model]]
        id = "gpt-4o"
        routes = [ { vendor = "openai-us" }, { vendor = "openai-us", model = "gpt-4o-mini" } ]
        [[model]]
        id = "alias"
        routes = [ { vendor = "openai-us", model = "gpt-6" }, { vendor = "openai-eu", model = "gpt-6-2026-03-01" } ]
    "#;

    fn set(names: &[&str]) -> BTreeSet<String> {
        names.iter().map(|name| (*name).to_owned()).collect()
    }

    #[test]
    fn vendor_is_found_by_its_name_or_by_the_name_of_its_company() {
        let routes = Routes::read(CONFIG).unwrap();
        assert_eq!(routes.vendors("reseller").unwrap(), ["reseller"]);
        assert_eq!(
            routes.vendors("openai").unwrap(),
            ["openai-eu", "openai-us"]
        );
        let error = routes.vendors("reselller").unwrap_err();
        assert!(
            error.ends_with(
                "its vendors are openai-eu, openai-us, reseller; did you mean reseller?"
            ),
            "{error}"
        );
        assert!(routes.vendors("anthropic").is_err());
        let error = Routes::read("[[model]]\nid = \n").unwrap_err();
        assert!(error.contains("line 2"), "{error}");
    }

    #[test]
    fn presets_provide_the_vendors_model_names_and_prices() {
        let config = "[[vendor]]\npreset = \"deepseek\"\n[[model]]\npreset = \"deepseek-flash\"\n";
        let routes = Routes::read(config).unwrap();
        assert_eq!(routes.vendors("deepseek").unwrap(), ["deepseek"]);
        let names = routes.names(&set(&["deepseek"]), &[]);
        let costs = names.costs("deepseek", "deepseek-flash").unwrap();
        assert!(costs.usual.contains_key("output"), "{costs:?}");
    }

    #[test]
    fn receipts_and_vendor_lines_of_one_model_get_the_same_name() {
        let routes = Routes::read(CONFIG).unwrap();
        let also = [("old".to_owned(), "gpt-3".to_owned())];
        let names = routes.names(&set(&["openai-eu", "openai-us"]), &also);
        for (vendor, catalog, called) in [
            ("openai-eu", "mini", "gpt-5-mini-2025-08-07"),
            // The configuration has the dated version, and the vendor's file has the alias.
            ("openai-eu", "mini", "gpt-5-mini"),
            // The configuration has the alias, and the vendor's file has the dated version.
            ("openai-us", "gpt-4o", "gpt-4o-2024-08-06"),
            // The vendor has two models that are sold under one catalog name.
            ("openai-us", "gpt-4o", "gpt-4o-mini-2024-07-18"),
            // One vendor's configuration has the alias, and the other vendor's has the dated version.
            ("openai-us", "alias", "gpt-6-2026-03-01"),
            ("openai-eu", "alias", "gpt-6-2026-05-01"),
            ("openai-us", "old", "gpt-3-20230101"),
            // The configuration does not have this name, but the receipt and the vendor's file have the same name.
            ("openai-us", "whisper", "whisper"),
        ] {
            assert_eq!(
                names.of_receipt(vendor, catalog),
                names.of_vendor(called),
                "{catalog} {called}"
            );
        }
        assert_eq!(names.of_vendor("gpt-4o"), "gpt-4o + gpt-4o-mini");
        assert_ne!(names.of_vendor("gpt-5"), names.of_vendor("gpt-5-mini"));
    }

    #[test]
    fn vendor_costs_come_from_the_route_or_else_from_the_model() {
        let routes = Routes::read(CONFIG).unwrap();
        let names = routes.names(&set(&["openai-eu", "reseller"]), &[]);
        let flex = Served {
            service_tier: "flex".into(),
            ..Served::default()
        };
        let rate = |vendor: &str, tokens: u64, served: &Served, class: &str| {
            let costs = names.costs(vendor, "mini")?;
            let times = CallTimes::at(0);
            costs.rates(tokens, served, &times).get(class).copied()
        };
        let at_one = CallTimes {
            end_ms: 3_600_000,
            ..CallTimes::at(3_599_999)
        };
        let costs = names.costs("reseller", "mini").unwrap();
        assert_eq!(
            costs.rates(1, &Served::default(), &at_one)["input"],
            800_000_000
        );
        let usual = Served::default();
        for (vendor, tokens, served, class, expected) in [
            ("openai-eu", 101, &flex, "input", Some(250_000_000)),
            ("reseller", 100, &usual, "input", Some(200_000_000)),
            ("reseller", 101, &usual, "input", Some(400_000_000)),
            ("reseller", 101, &flex, "input", Some(100_000_000)),
            ("reseller", 1, &usual, "output", Some(2_000_000_000)),
            ("reseller", 1, &usual, "input_audio", None),
            ("openai-us", 1, &usual, "input", None),
        ] {
            assert_eq!(
                rate(vendor, tokens, served, class),
                expected,
                "{vendor} {tokens} {class}"
            );
        }
    }

    #[test]
    fn costs_of_a_vendor_that_bills_in_rubles_are_read_in_rubles() {
        let of = |model: &str| {
            let config = format!(
                "[[model]]\nid = \"giga\"\nusdt_mtok = {{ input = \"9\" }}\n\
                 routes = [ {{ vendor = \"sber\", cost_rub_mtok = {{ output = \"65\" }} }} ]\n{model}"
            );
            Routes::read(&config).unwrap().names(&set(&["sber"]), &[])
        };
        let names = of("");
        assert_eq!(names.currency(), Ok(Currency::Rub));
        let rates = names.costs("sber", "giga").unwrap();
        let rates = rates.rates(1, &Served::default(), &CallTimes::at(0));
        // The model's price is in USDT and the vendor's costs are in rubles, so the price does not replace a missing
        // cost.
        assert_eq!(
            rates.iter().collect::<Vec<_>>(),
            [(&"output".to_owned(), &65_000_000_000)]
        );
        let both = of(
            "[[model]]\nid = \"other\"\nusdt_mtok = { input = \"9\" }\nroutes = [ { vendor = \"sber\" } ]",
        );
        let problem = both.currency().unwrap_err();
        assert!(
            problem.contains("\"giga\" are in ₽, and the costs of \"other\" in USDT"),
            "{problem}"
        );
    }

    #[test]
    fn date_suffix_of_a_model_name_is_recognised() {
        for (name, bare) in [
            ("gpt-4o-2024-08-06", Some("gpt-4o")),
            ("claude-sonnet-4-20250514", Some("claude-sonnet-4")),
            ("claude-sonnet-4@20250514", Some("claude-sonnet-4")),
            ("gpt-4o", None),
            ("gpt-4o-2024_08_06", None),
            ("2024-08-06", None),
            ("модель", None),
        ] {
            assert_eq!(undated(name), bare, "{name}");
        }
    }
}
