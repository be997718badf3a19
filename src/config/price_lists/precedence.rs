//! Decides which price rule applies to which account and model.
//!
//! The most specific rule applies. Rules are compared by account first: the account's id precedes a group, and a group
//! precedes all accounts. Then they are compared by model: the model's id precedes a prefix, a longer prefix precedes a
//! shorter one, and any prefix precedes all models. In this order, a general offer for a model never changes a price
//! that was agreed with a customer.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use tollgate_layers::key::AccountId;

use super::{Groups, PriceLists, Row, Scoped, Which};
use crate::config::{
    ModelConfig,
    check::{Check, all},
};

/// How specifically a rule names accounts. A more specific value is greater.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) enum Who {
    All,
    Group,
    Account,
}

/// Returns the most specific of the matching rules, by account and then by model. `Ok(None)` if no rule matches. If two
/// rules are equally specific, returns both as an error.
pub(super) fn deciding(
    holding: impl Iterator<Item = (usize, Who, Which)> + Clone,
) -> Result<Option<usize>, (usize, usize)> {
    let Some((rule, who, which)) = holding.clone().max_by_key(|(_, who, which)| (*who, *which))
    else {
        return Ok(None);
    };
    let mut others = holding.filter(|(other, ..)| *other != rule);
    match others.find(|(_, its_who, its_which)| (*its_who, *its_which) == (who, which)) {
        None => Ok(Some(rule)),
        Some((other, ..)) => Err((rule.min(other), rule.max(other))),
    }
}

/// Returns, for each account that a rule names, the rules that apply to the account, and how specifically each rule
/// names it.
fn rules_by_account<'a>(
    rules: &'a [Scoped],
    groups: &'a Groups,
) -> BTreeMap<&'a AccountId, BTreeMap<usize, Who>> {
    let mut matching = BTreeMap::<_, BTreeMap<_, _>>::new();
    for (index, rule) in rules.iter().enumerate() {
        let by_group = rule.groups.iter().flat_map(|name| &groups[name]);
        let by_group = by_group.map(|account| (account, Who::Group));
        let by_id = rule.accounts.iter().map(|account| (account, Who::Account));
        for (account, who) in by_group.chain(by_id) {
            let of_account = matching.entry(account).or_default();
            let before = of_account.entry(index).or_insert(who);
            *before = who.max(*before);
        }
    }
    matching
}

impl Check<'_> {
    /// Decides which rule applies to which account and model. Accounts with the same decisions share a row.
    pub(super) fn settled(
        &mut self,
        rules: Vec<Scoped>,
        groups: &Groups,
        models: &[ModelConfig],
    ) -> Option<PriceLists> {
        let matching = rules_by_account(&rules, groups);
        let of_all = rules.iter().enumerate().filter(|(_, rule)| rule.all);
        let of_all: BTreeMap<_, _> = of_all.map(|(index, _)| (index, Who::All)).collect();
        let which = rules.iter().map(|rule| {
            let models = models.iter();
            models
                .map(|it| Which::from_patterns(&rule.models, &it.id))
                .collect()
        });
        let which: Vec<Vec<Option<Which>>> = which.collect();
        let mut rows: HashMap<Vec<(usize, Who)>, Option<Row>> = HashMap::new();
        let mut warned = BTreeSet::new();
        let mut row_of = |account: Option<&AccountId>, matching: &BTreeMap<usize, Who>| {
            let holding = of_all.iter().chain(matching);
            let holding: Vec<_> = holding.map(|(rule, who)| (*rule, *who)).collect();
            let make = |all: &[(usize, Who)]| {
                let row = (0..models.len()).map(|model| {
                    let holding = all
                        .iter()
                        .filter_map(|(rule, who)| Some((*rule, *who, which[*rule][model]?)));
                    deciding(holding).map_err(|pair| (pair, model))
                });
                row.collect::<Result<Row, _>>()
            };
            let row = rows.entry(holding);
            let row = row.or_insert_with_key(|all| {
                let made = make(all);
                if let Err((pair, model)) = made
                    && warned.insert(pair)
                {
                    self.report_ambiguous(&rules, pair, account, &models[model].id);
                }
                made.ok()
            });
            row.clone()
        };
        let others = row_of(None, &BTreeMap::new());
        let accounts = all(matching.iter().map(|(account, matching)| {
            Some(((*account).clone(), row_of(Some(account), matching)?))
        }));
        Some(PriceLists {
            accounts: accounts?,
            others: others?,
            rules: rules.into_iter().map(|scoped| scoped.rule).collect(),
        })
    }

    fn report_ambiguous(
        &mut self,
        rules: &[Scoped],
        (one, other): (usize, usize),
        account: Option<&AccountId>,
        model: &str,
    ) {
        let names = [one, other].map(|it| &rules[it].rule.name);
        let whom = account.map_or("any account".to_owned(), |it| format!("account \"{it}\""));
        let problem = format!(
            "the rules {:?} and {:?} both apply to {whom} and model {model:?}, and are equally specific: remove the \
             account or the model from one of the rules, or add a more specific rule",
            names[0], names[1]
        );
        self.errors.add(format!("price_rule[{other}]"), problem);
    }
}
