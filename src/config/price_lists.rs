//! Checks of `[[price_rule]]` and `[[account_group]]`. These sections decide which price rule applies to which model
//! for which account. All decisions are made when the configuration is read, for every model and every named account. A
//! call only looks up the decision.

mod precedence;

use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    sync::Arc,
};

use rust_decimal::Decimal;
use tollgate_layers::{
    key::AccountId,
    model::ModelKind,
    price::{Condition, Currency},
};

use super::{
    BaseRates, ModelConfig, Tariff,
    check::{Check, all},
    costs::Sale,
    prices::{field, fingerprint},
    raw::{RawAccountGroup, RawCustomerRule},
};
use crate::text::similar::hint;

const NAME_CHARS_MAX: usize = 60;
/// The entry in `accounts` that means all accounts.
const ALL: &str = "*";

/// All sections `[[price_rule]]`, resolved to at most one rule per account and model.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PriceLists {
    /// The price rules, in the order of the file.
    pub rules: Vec<CustomerRule>,
    /// The row of each account that a rule names, by its id or by a group.
    pub accounts: HashMap<AccountId, Row>,
    /// The row that applies to every other account.
    pub others: Row,
}

/// For each model, in the order of the catalog, the index of the price rule that applies. `None`: no rule applies, and
/// the model has its general price. An empty row means that all models have their general prices.
pub type Row = Arc<[Option<usize>]>;

/// A price rule: the prices that apply only to some customers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CustomerRule {
    /// Name of the rule, which receipts show.
    pub name: Arc<str>,
    /// Multiplier that replaces `tariff.sell_rate_multiplier`. It is above zero.
    pub rate_multiplier: Option<Decimal>,
    /// Multiplier that replaces `tariff.sell_rub_multiplier`. It is above zero.
    pub rub_multiplier: Option<Decimal>,
    /// Base prices, and prices under conditions, that replace the models' own.
    pub base: Option<(BaseRates, Vec<(Condition, BaseRates)>)>,
}

impl CustomerRule {
    /// Returns `tariff` with the multipliers that this rule replaces.
    #[must_use]
    pub fn tariff(&self, tariff: Tariff) -> Tariff {
        Tariff {
            sell_rate_multiplier: self.rate_multiplier.unwrap_or(tariff.sell_rate_multiplier),
            sell_rub_multiplier: self.rub_multiplier.unwrap_or(tariff.sell_rub_multiplier),
        }
    }
}

impl PriceLists {
    /// Returns each pair of a rule and a model, by index, that applies to at least one account.
    #[must_use]
    pub fn used(&self) -> BTreeSet<(usize, usize)> {
        let rows = self.accounts.values().chain([&self.others]);
        // Several accounts share a row: comparing the memory addresses of rows finds each row once.
        let rows: BTreeMap<_, _> = rows.map(|row| (row.as_ptr(), row)).collect();
        let pairs = |row: &Row| {
            let models = row.iter().enumerate();
            let ruled = models.filter_map(|(model, rule)| Some(((*rule)?, model)));
            ruled.collect::<Vec<_>>()
        };
        rows.into_values().flat_map(pairs).collect()
    }

    /// Returns the lines that the price rules add to the tariff's fingerprint. The lines do not contain the accounts
    /// and models of a rule, because the tariff version and the rule's name on a receipt determine the price.
    pub(super) fn fingerprint_lines(&self) -> impl Iterator<Item = String> {
        self.rules.iter().map(|rule| {
            let mut line = format!("price_rule {:?}", rule.name);
            for (name, multiplier) in [
                ("sell_rate_multiplier", rule.rate_multiplier),
                ("sell_rub_multiplier", rule.rub_multiplier),
            ] {
                if let Some(multiplier) = multiplier {
                    line += &format!(" {name} {}", multiplier.normalize());
                }
            }
            if let Some((usual, rules)) = &rule.base {
                line += &format!(" {} {}", field(usual.currency), fingerprint(usual, rules));
            }
            line
        })
    }
}

/// How specifically a rule names models. A more specific value is greater.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Which {
    /// The rule names a prefix of the model's id, with this length in bytes.
    Prefix(usize),
    Exact,
}

impl Which {
    /// Returns how specific the most specific matching pattern is. `None` if no pattern matches the model.
    fn from_patterns(patterns: &[String], model: &str) -> Option<Self> {
        let matching = patterns
            .iter()
            .filter_map(|pattern| match pattern.strip_suffix('*') {
                Some(start) => model
                    .starts_with(start)
                    .then_some(Self::Prefix(start.len())),
                None => (pattern == model).then_some(Self::Exact),
            });
        matching.max()
    }
}

/// A price rule, with the accounts and models to which it applies.
struct Scoped {
    rule: CustomerRule,
    all: bool,
    accounts: Vec<AccountId>,
    groups: Vec<String>,
    models: Vec<String>,
}

type Groups = BTreeMap<String, Vec<AccountId>>;

/// The two multipliers of a price rule for customers, and the rule's base prices with the rule's prices under
/// conditions.
type Prices = (
    Option<Decimal>,
    Option<Decimal>,
    Option<(BaseRates, Vec<(Condition, BaseRates)>)>,
);

impl Check<'_> {
    pub(super) fn price_lists(
        &mut self,
        groups: Vec<RawAccountGroup>,
        rules: Vec<RawCustomerRule>,
        models: Option<&[ModelConfig]>,
        tariff: Option<Tariff>,
        exchange_rate: Option<Decimal>,
    ) -> Option<PriceLists> {
        let groups = self.account_groups(groups);
        let mut names = BTreeSet::new();
        let scoped = self.items(rules, "price_rule", |check, raw, path| {
            let name = raw.name.clone().filter(|name| !name.is_empty());
                if name.is_some_and(|name| !names.insert(name)) {
                    let problem = "is already the name of another rule: give each rule its own name, by which \
                         receipts identify it";
                    check.errors.add(format!("{path}.name"), problem);
            }
            check.customer_rule(raw, path, groups.as_ref(), models)
        });
        let (scoped, groups) = (scoped?, groups?);
        self.unused_groups(&groups, &scoped);
        let models = models?;
        self.unmatched_models(&scoped, models);
        let lists = self.settled(scoped, &groups, models)?;
        let fits = lists.used().into_iter().map(|(rule, model)| {
            let path = format!("price_rule[{rule}]");
            let (rule, model) = (&lists.rules[rule], &models[model]);
            self.warn_rule_below_cost(rule, model, (tariff?, exchange_rate), &path);
            self.warn_without_effect(rule, model, &path);
            self.fits_model(rule, model, &path).then_some(())
        });
        all::<(), ()>(fits)?;
        Some(lists)
    }

    fn account_groups(&mut self, raw: Vec<RawAccountGroup>) -> Option<Groups> {
        let mut groups = Groups::new();
        let mut whole = true;
        for (index, RawAccountGroup { name, accounts }) in raw.into_iter().enumerate() {
            let path = format!("account_group[{index}]");
            let advice = "give the group a name, by which price rules refer to it";
            let name = self.required(name, &format!("{path}.name"), advice);
            let accounts = self.account_ids(&accounts, &format!("{path}.accounts"));
            let (Some(name), Some(accounts)) = (name, accounts) else {
                whole = false;
                continue;
            };
            if accounts.is_empty() {
                let problem = "is empty: a price rule for this group applies to no account";
                self.warnings.add(format!("{path}.accounts"), problem);
            }
            if groups.contains_key(&name) {
                let problem = format!(
                    "{name:?} is already the name of another group: give each group its own name"
                );
                self.errors.add(format!("{path}.name"), problem);
                whole = false;
            }
            groups.insert(name, accounts);
        }
        whole.then_some(groups)
    }

    fn account_ids(&mut self, given: &[String], path: &str) -> Option<Vec<AccountId>> {
        let ids = given.iter().map(|id| {
            let parsed = id.parse::<AccountId>();
            let parsed =
                parsed.map_err(|error| format!("{id:?} is not a valid account id: {error}"));
            self.keep(parsed, path)
        });
        let ids = all(ids);
        let mut seen = BTreeSet::new();
        for id in given.iter().filter(|id| !seen.insert(*id)) {
            let problem = format!("{id:?} is listed twice: remove one");
            self.warnings.add(path, problem);
        }
        ids
    }

    fn customer_rule(
        &mut self,
        mut raw: RawCustomerRule,
        path: &str,
        groups: Option<&Groups>,
        catalog: Option<&[ModelConfig]>,
    ) -> Option<Scoped> {
        let at = |field: &str| format!("{path}.{field}");
        self.rates_of_embeddings(&mut raw, path, catalog);
        let advice = "give the rule a name, which receipts show";
        let name = self.required(raw.name.take(), &at("name"), advice);
        let name = self.line(name, &at("name"), NAME_CHARS_MAX);
        let all = raw.accounts == [ALL];
        let accounts = match all {
            true => Some(Vec::new()),
            false if raw.accounts.iter().any(|account| account == ALL) => {
                let problem =
                    "\"*\" means all accounts: remove the other ids from the list, or remove \"*\"";
                self.refuse(at("accounts"), problem)
            }
            false => self.account_ids(&raw.accounts, &at("accounts")),
        };
        if raw.accounts.is_empty() && raw.groups.is_empty() {
            let advice = "give accounts or groups, or accounts = [\"*\"] for all";
            self.errors.missing(&at("accounts"), advice);
            return None;
        }
        let known = self.known_groups(&raw.groups, &at("groups"), groups);
        let models = self.model_patterns(std::mem::take(&mut raw.models), &at("models"));
        let groups = std::mem::take(&mut raw.groups);
        let prices = self.customer_prices(raw, path);
        let (name, (rate_multiplier, rub_multiplier, base)) = (name?, prices?);
        known.then_some(Scoped {
            rule: CustomerRule {
                name: name.into(),
                rate_multiplier,
                rub_multiplier,
                base,
            },
            all,
            accounts: accounts?,
            groups,
            models: models?,
        })
    }

    /// Checks the prices of a price rule: its multipliers, its base prices, or both.
    fn customer_prices(&mut self, raw: RawCustomerRule, path: &str) -> Option<Prices> {
        let at = |field: &str| format!("{path}.{field}");
        let multipliers = [
            ("sell_rate_multiplier", &raw.sell_rate_multiplier),
            ("sell_rub_multiplier", &raw.sell_rub_multiplier),
        ];
        let [rate_multiplier, rub_multiplier] =
            multipliers.map(|(name, given)| self.multiplier_at(given.as_deref()?, &at(name)));
        let tables = (raw.usdt_mtok.as_ref(), raw.rub_mtok.as_ref());
        let has_base = tables.0.or(tables.1).is_some();
        if !has_base && multipliers.iter().all(|(_, given)| given.is_none()) {
            // Invalid fields were removed, and their mistakes were recorded. The fields must not be reported as
            // missing, too.
            let names = multipliers.map(|(name, _)| name);
            let mut fields = names.into_iter().chain(Currency::ALL.map(field));
            if !fields.any(|field| self.errors.has_reported(&at(field))) {
                let problem = "changes no price: give sell_rate_multiplier, sell_rub_multiplier, usdt_mtok or rub_mtok";
                self.errors.add(path, problem);
            }
            return None;
        }
        let base = match has_base {
            false if raw.price_rules.is_empty() => None,
            false => {
                let problem = "need base prices in the same rule: give usdt_mtok or rub_mtok";
                return self.refuse(at("price_rules"), problem);
            }
            true => {
                let usual = self.base_rates(tables.0, tables.1, &at(""));
                let rules = self.price_rules(raw.price_rules, &at("price_rules"), usual.as_ref());
                Some((usual?, rules?))
            }
        };
        Some((rate_multiplier, rub_multiplier, base))
    }

    /// Checks the rates of a rule that applies only to embedding models. Such a rule has only an input price, like the
    /// models themselves. If the models are unknown because they are invalid, only their mistakes are reported.
    fn rates_of_embeddings(
        &mut self,
        raw: &mut RawCustomerRule,
        path: &str,
        catalog: Option<&[ModelConfig]>,
    ) {
        let models = catalog.unwrap_or_default().iter();
        let mut meant = models
            .filter(|it| Which::from_patterns(&raw.models, &it.id).is_some())
            .map(|it| it.kind)
            .peekable();
        let is_known = meant.peek().is_some();
        if meant.any(|kind| kind != ModelKind::Embedding) {
            return;
        }
        let tables = [&mut raw.usdt_mtok, &mut raw.rub_mtok];
        self.rates_of_input(tables, &format!("{path}."), is_known);
        let rules = format!("{path}.price_rules");
        self.rules_of_input(&mut raw.price_rules, &rules, is_known);
    }

    fn known_groups(&mut self, given: &[String], path: &str, groups: Option<&Groups>) -> bool {
        // If account groups are invalid, only the mistakes of the groups are reported.
        let Some(groups) = groups else { return false };
        let mut known = true;
        for name in given.iter().filter(|name| !groups.contains_key(*name)) {
            let hint = hint(name, groups.keys().map(String::as_str));
            let problem = format!("there is no [[account_group]] with the name {name:?}{hint}");
            self.errors.add(path, problem);
            known = false;
        }
        known
    }

    fn model_patterns(&mut self, given: Vec<String>, path: &str) -> Option<Vec<String>> {
        if given.is_empty() {
            let advice = "give ids, prefixes like \"gpt-5-*\", or [\"*\"] for all";
            self.errors.missing(path, advice);
            return None;
        }
        let wrong = |it: &&String| {
            it.is_empty() || it.strip_suffix('*').unwrap_or(it.as_str()).contains('*')
        };
        if let Some(pattern) = given.iter().find(wrong) {
            let problem = format!(
                "{pattern:?} is not a valid model pattern: give a model id, or a prefix with one \"*\" at the end"
            );
            return self.refuse(path, problem);
        }
        Some(given)
    }

    fn unused_groups(&mut self, groups: &Groups, rules: &[Scoped]) {
        for name in groups.keys() {
            if !rules.iter().any(|rule| rule.groups.contains(name)) {
                let problem = format!(
                    "no price_rule names the group {name:?}: add it to a rule, or remove the group"
                );
                self.warnings.add("account_group", problem);
            }
        }
    }

    fn unmatched_models(&mut self, rules: &[Scoped], models: &[ModelConfig]) {
        for (index, rule) in rules.iter().enumerate() {
            for pattern in &rule.models {
                let one = std::slice::from_ref(pattern);
                let is_matched = |it: &ModelConfig| Which::from_patterns(one, &it.id).is_some();
                if models.iter().any(is_matched) {
                    continue;
                }
                let hint = hint(pattern, models.iter().map(|it| it.id.as_str()));
                let problem = format!("{pattern:?} matches no model of this file{hint}");
                let path = format!("price_rule[{index}].models");
                self.warnings.add(path, problem);
            }
        }
    }

    /// Returns whether a rule's prices have the same rate classes and conditions as the model's prices. If not, records
    /// a mistake: a missing rate class or condition would be sold at a price that the rule does not state.
    fn fits_model(&mut self, rule: &CustomerRule, model: &ModelConfig, path: &str) -> bool {
        let Some((usual, rules)) = &rule.base else {
            return true;
        };
        if let Some((class, is_surplus)) = usual.class_apart(&model.base) {
            let id = &model.id;
            let problem = match is_surplus {
                true => {
                    format!("model {id:?} has no price for {class}: remove {class} from this rule")
                }
                false => format!("model {id:?} has a price for {class}: add {class} to this rule"),
            };
            let path = format!("{path}.{}", field(usual.currency));
            self.errors.add(path, problem);
            return false;
        }
        let priced = |condition: &Condition| rules.iter().any(|(it, _)| it == condition);
        let mut conditions = model.price_rules.iter().map(|(condition, _)| condition);
        if let Some(condition) = conditions.find(|condition| !priced(condition)) {
            let problem = format!(
                "model {:?} has a price rule with {condition}: add prices with the same condition to this rule",
                model.id
            );
            self.errors.add(format!("{path}.price_rules"), problem);
            return false;
        }
        true
    }

    fn warn_rule_below_cost(
        &mut self,
        rule: &CustomerRule,
        model: &ModelConfig,
        (tariff, exchange_rate): (Tariff, Option<Decimal>),
        path: &str,
    ) {
        let (usual, rules) = match &rule.base {
            Some((usual, rules)) => (usual, rules),
            None => (&model.base, &model.price_rules),
        };
        let sale = Sale {
            model,
            usual,
            rules,
            tariff: rule.tariff(tariff),
            exchange_rate,
            customers: Some(path),
        };
        for cost in &model.route_costs {
            self.sale_below_cost(&sale, cost, path);
        }
    }

    /// Records a warning if a rule has no multiplier for the currency of a model's prices.
    fn warn_without_effect(&mut self, rule: &CustomerRule, model: &ModelConfig, path: &str) {
        let (given, other) = match model.base.currency {
            Currency::Usdt => (rule.rate_multiplier, "sell_rate_multiplier"),
            Currency::Rub => (rule.rub_multiplier, "sell_rub_multiplier"),
        };
        if rule.base.is_none() && given.is_none() {
            let problem = format!(
                "does not change the price of model {:?}, because this price is in {}: give {other}, or remove the \
                 model from this rule",
                model.id, model.base.currency
            );
            self.warnings.add(path, problem);
        }
    }
}

#[cfg(test)]
mod tests;
