use proptest::prelude::*;

use super::precedence::{Who, deciding};
use super::*;
use crate::config::testing::{SMALL, parse};

/// Returns a configuration with these price rules and three models with four rates. One model has a route whose cost is
/// known.
fn with(rules: &str) -> String {
    let tariff = "[tariff]\nsell_rate_multiplier = \"2\"\n[admin]";
    let model = |id: &str, cost: &str| {
        let rates = r#"{ input = "1", cached_input = "0.1", output = "4", cache_write = "1" }"#;
        format!(
            "[[model]]\nid = \"{id}\"\nfamily = \"F\"\nusdt_mtok = {rates}\noutput_tokens_max = 100\n\
             routes = [ {{ vendor = \"v\", model = \"{id}\"{cost} }} ]\n"
        )
    };
    let cost = r#", cost_usdt_mtok = { input = "0.9", cached_input = "0.1", output = "4", cache_write = "1" }"#;
    [
        SMALL.replacen("[admin]", tariff, 1),
        model("gpt-5", cost),
        model("gpt-5-mini", ""),
        rules.to_owned(),
    ]
    .join("\n")
}

fn rule(name: &str, whom: &str, models: &str, price: &str) -> String {
    format!("[[price_rule]]\nname = \"{name}\"\n{whom}\nmodels = [{models}]\n{price}\n")
}

fn group(name: &str, accounts: &str) -> String {
    format!("[[account_group]]\nname = \"{name}\"\naccounts = [{accounts}]\n")
}

fn times(multiplier: &str) -> String {
    format!("sell_rate_multiplier = \"{multiplier}\"")
}

/// Returns the name of the price rule that applies to an account and a model.
fn decides<'a>(lists: &'a PriceLists, account: &str, model: usize) -> Option<&'a str> {
    let row = lists.accounts.get(&account.parse::<AccountId>().unwrap());
    let rule = row.unwrap_or(&lists.others)[model]?;
    Some(&*lists.rules[rule].name)
}

#[test]
fn price_rule_most_specific_to_the_account_and_then_to_the_model_applies() {
    let rules = [
        group("partners", "\"acme\", \"beta\""),
        rule("all", "accounts = [\"*\"]", "\"*\"", &times("3")),
        rule("all-gpt", "accounts = [\"*\"]", "\"gpt-*\"", &times("3")),
        rule(
            "partner",
            "groups = [\"partners\"]",
            "\"gpt-*\"",
            &times("3"),
        ),
        rule(
            "mini",
            "groups = [\"partners\"]",
            "\"gpt-5-*\"",
            &times("3"),
        ),
        rule(
            "acme",
            "accounts = [\"acme\"]",
            "\"gpt-5\", \"gpt-5-*\"",
            &times("3"),
        ),
    ];
    let lists = parse(&with(&rules.concat())).unwrap().live.price_lists;
    for (account, rules) in [
        ("acme", ["all", "acme", "acme"]),
        ("beta", ["all", "partner", "mini"]),
        ("anybody", ["all", "all-gpt", "all-gpt"]),
    ] {
        for (model, rule) in rules.into_iter().enumerate() {
            assert_eq!(decides(&lists, account, model), Some(rule), "{account}");
        }
    }
}

#[test]
fn documented_price_rules_are_accepted_and_apply_as_documented() {
    let page = include_str!("../../../docs/prices.md");
    let section = page.split("## Prices of some customers").nth(1).unwrap();
    let example = section.split("```").nth(1).unwrap();
    let example = example.strip_prefix("toml").unwrap();
    let text = with(example);
    let lists = parse(&text)
        .unwrap_or_else(|errors| panic!("{errors}"))
        .live
        .price_lists;
    // The rules are listed in the order of the models `m`, `gpt-5` and `gpt-5-mini`.
    for (account, rules) in [
        (
            "acme",
            [Some("partners"), Some("partners"), Some("acme mini")],
        ),
        ("beta", [Some("partners"); 3]),
        ("gamma", [None; 3]),
    ] {
        for (model, rule) in rules.into_iter().enumerate() {
            assert_eq!(decides(&lists, account, model), rule, "{account}");
        }
    }
    assert_eq!(lists.rules[2].rate_multiplier, Some(Decimal::ONE));
}

#[test]
fn without_price_rules_every_account_has_the_general_prices() {
    assert!(parse(SMALL).unwrap().live.price_lists.rules.is_empty());
}

#[test]
fn error_about_an_invalid_price_rule_names_the_setting() {
    let acme = "accounts = [\"acme\"]";
    let any = "\"*\"";
    let ok = times("1");
    let rates =
        r#"usdt_mtok = { input = "1", cached_input = "1", output = "4", cache_write = "1" }"#;
    let flex = format!("[[price_rule.price_rules]]\nservice_tier = \"flex\"\n{rates}");
    let two = |one: &str, other: &str| format!("{one}{other}");
    for (rules, path, words) in [
        (rule("", acme, any, &ok), "price_rule[0].name", "missing"),
        (rule("r", "", any, &ok), "price_rule[0].accounts", "for all"),
        (
            rule("r", "accounts = [\"*\", \"acme\"]", any, &ok),
            "price_rule[0].accounts",
            "remove the other ids",
        ),
        (
            rule("r", "accounts = [\"a b\"]", any, &ok),
            "price_rule[0].accounts",
            "not a valid account id",
        ),
        (rule("r", acme, "", &ok), "price_rule[0].models", "prefixes"),
        (
            rule("r", acme, "\"*-mini\"", &ok),
            "price_rule[0].models",
            "at the end",
        ),
        (
            rule("r", acme, any, ""),
            "price_rule[0]",
            "changes no price",
        ),
        (
            rule("r", acme, any, &times("0")),
            "price_rule[0].sell_rate_multiplier",
            "above 0",
        ),
        (
            rule("r", acme, any, &times("-1")),
            "price_rule[0].sell_rate_multiplier",
            "above 0",
        ),
        (
            rule("r", acme, any, &format!("{ok}\n{flex}")),
            "price_rule[0].price_rules",
            "need base prices",
        ),
        (
            rule("r", acme, any, "usdt_mtok = { input = \"1\" }"),
            "price_rule[0].usdt_mtok.output",
            "missing",
        ),
        (
            two(
                &group("partners", "\"acme\""),
                &rule("r", "groups = [\"parners\"]", any, &ok),
            ),
            "price_rule[0].groups",
            "did you mean partners?",
        ),
        (
            two(&group("g", ""), &group("g", "")),
            "account_group[1].name",
            "already",
        ),
        (
            two(
                &rule("r", acme, any, &ok),
                &rule("r", acme, "\"gpt-5\"", &ok),
            ),
            "price_rule[1].name",
            "already",
        ),
        (
            rule(
                "r",
                acme,
                any,
                &rates.replace(" }", ", web_search_call = \"1\" }"),
            ),
            "price_rule[0].usdt_mtok",
            "model \"m\" has no price for web_search_call: remove web_search_call from this rule",
        ),
        (
            rule("r", acme, any, "sell_rate_multipler = \"1\""),
            "price_rule[0].sell_rate_multipler",
            "did you mean",
        ),
    ] {
        let errors = parse(&with(&rules)).expect_err(&rules);
        let found = errors.iter().find(|error| error.path == path);
        let found = found.unwrap_or_else(|| panic!("{rules}: no {path} in\n{errors}"));
        assert!(found.problem.contains(words), "{rules}: {found}");
    }
}

/// A general offer for one model does not change a price that was agreed with a customer.
#[test]
fn price_rule_that_names_the_account_precedes_one_that_names_the_model() {
    let all = |models: &str, name: &str| rule(name, "accounts = [\"*\"]", models, &times("1"));
    let partners =
        |models: &str, name: &str| rule(name, "groups = [\"partners\"]", models, &times("1"));
    let acme = |models: &str, name: &str| rule(name, "accounts = [\"acme\"]", models, &times("1"));
    let rules = [
        group("partners", "\"acme\", \"beta\""),
        all("\"gpt-5-mini\"", "all, id"),
        all("\"*\"", "all, any"),
        partners("\"gpt-*\"", "group, beginning"),
        partners("\"*\"", "group, any"),
        acme("\"*\"", "account, any"),
        acme("\"gpt-5-mini\"", "account, id"),
    ];
    let lists = parse(&with(&rules.concat())).unwrap().live.price_lists;
    // The rules are listed in the order of the models `m`, `gpt-5` and `gpt-5-mini`.
    for (account, rules) in [
        ("acme", ["account, any", "account, any", "account, id"]),
        (
            "beta",
            ["group, any", "group, beginning", "group, beginning"],
        ),
        ("anybody", ["all, any", "all, any", "all, id"]),
    ] {
        for (model, rule) in rules.into_iter().enumerate() {
            assert_eq!(decides(&lists, account, model), Some(rule), "{account}");
        }
    }
}

#[test]
fn error_about_equally_specific_price_rules_names_both() {
    let acme = rule("ours", "accounts = [\"acme\"]", "\"*\"", &times("1"));
    let partner = rule("partner", "groups = [\"g\"]", "\"gpt-5\"", &times("1"));
    let other = rule("other", "groups = [\"h\"]", "\"gpt-5\"", &times("1"));
    let groups = group("g", "\"acme\"") + &group("h", "\"acme\"");
    for (rules, one, two) in [
        (
            acme.clone() + &acme.replace("ours", "again"),
            "ours",
            "again",
        ),
        (groups + &partner + &other, "partner", "other"),
    ] {
        let errors = parse(&with(&rules)).expect_err(&rules);
        let warned: Vec<_> = errors.iter().collect();
        assert_eq!(warned.len(), 1, "{errors}");
        assert_eq!(warned[0].path, "price_rule[1]");
        for word in [one, two, "acme"] {
            assert!(warned[0].problem.contains(&format!("{word:?}")), "{errors}");
        }
        assert!(!warned[0].problem.contains("AccountId"), "{errors}");
        // A third rule that is more specific than both equally specific rules resolves the conflict.
        let more = rule("more", "accounts = [\"acme\"]", "\"gpt-5\"", &times("1"));
        if one == "partner" {
            let lists = parse(&with(&(rules + &more))).unwrap().live.price_lists;
            assert_eq!(decides(&lists, "acme", 1), Some("more"));
        }
    }
}

#[test]
fn customer_price_rule_with_base_prices_needs_each_condition_of_the_models_price_rules() {
    let rates =
        r#"usdt_mtok = { input = "1", cached_input = "1", output = "4", cache_write = "1" }"#;
    let long = format!("above_input_tokens = 9\n{rates}\n");
    let text = |rule: &str| {
        let model = "[[model]]\nid = \"gpt-5\"";
        let text = with(rule);
        let (before, after) = text.split_once(model).unwrap();
        format!("{before}[[model.price_rules]]\n{long}{model}{after}")
    };
    let without = rule("r", "accounts = [\"acme\"]", "\"m\"", rates);
    let errors = parse(&text(&without)).unwrap_err().to_string();
    assert!(
        errors.contains("price_rule[0].price_rules: model \"m\" has a price rule with"),
        "{errors}"
    );
    let whole = format!("{without}[[price_rule.price_rules]]\n{long}");
    let lists = parse(&text(&whole)).unwrap().live.price_lists;
    assert_eq!(lists.rules[0].base.as_ref().unwrap().1.len(), 1);
}

#[test]
fn error_about_a_price_rule_names_the_missing_class_of_the_model() {
    let usual =
        r#"{ input = "0.25", cached_input = "0.025", output = "2.00", cache_write = "0.25" }"#;
    let more = usual.replace(" }", ", input_audio = \"1\" }");
    let rule = rule(
        "r",
        "accounts = [\"acme\"]",
        "\"m\"",
        &format!("usdt_mtok = {usual}"),
    );
    let text = with(&rule).replacen(usual, &more, 1);
    let errors = parse(&text).unwrap_err().to_string();
    let says = "price_rule[0].usdt_mtok: model \"m\" has a price for input_audio: add input_audio to this rule";
    assert!(errors.contains(says), "{errors}");
}

#[test]
fn multiplier_of_a_wrong_type_is_reported_once() {
    let price = "sell_rate_multiplier = 1.05";
    let text = with(&rule("r", "accounts = [\"acme\"]", "\"m\"", price));
    let errors = parse(&text).unwrap_err();
    let paths: Vec<_> = errors.iter().map(|error| error.path.as_str()).collect();
    assert_eq!(paths, ["price_rule[0].sell_rate_multiplier"], "{errors}");
}

/// Price rules for embedding models have only an input price, like the models.
#[test]
fn price_rule_for_an_embedding_model_has_only_an_input_price() {
    let embedding = "[[model]]\nid = \"emb\"\nfamily = \"E\"\nkind = \"embedding\"\nusdt_mtok = { input = \"0.02\" }\n\
                     routes = [ { vendor = \"v\", cost_usdt_mtok = { input = \"0.015\" }, \
                     cost_rules = [ { service_tier = \"flex\", usdt_mtok = { input = \"0.012\" } } ] } ]\n\
                     [[model.price_rules]]\nservice_tier = \"flex\"\nusdt_mtok = { input = \"0.01\" }\n";
    let of = |models: &str, price: &str| {
        let flex =
            "[[price_rule.price_rules]]\nservice_tier = \"flex\"\nusdt_mtok = { input = \"0.01\" }";
        let price = format!("{price}\n{flex}");
        let rule = rule("r", "accounts = [\"acme\"]", models, &price);
        parse(&(with("") + embedding + &rule))
    };
    let config = of("\"emb\"", "usdt_mtok = { input = \"0.005\" }").unwrap();
    let (usual, rules) = config.live.price_lists.rules[0].base.as_ref().unwrap();
    assert_eq!(usual.input.to_string(), "0.005");
    assert_eq!(rules[0].1.input.to_string(), "0.01");
    // The model has only the class input, and the rule sells it below cost.
    let warnings = config.warnings.iter().map(ToString::to_string);
    let below: Vec<_> = warnings.filter(|it| it.contains("below cost")).collect();
    assert_eq!(below.len(), 1, "{below:?}");
    assert!(below[0].contains("is sold for 0.01 USDT"), "{below:?}");

    let refused = "usdt_mtok = { input = \"0.01\", output = \"1\" }";
    let errors = of("\"emb*\"", refused).unwrap_err();
    let paths: Vec<_> = errors.iter().map(|error| error.path.as_str()).collect();
    assert_eq!(paths, ["price_rule[0].usdt_mtok.output"], "{errors}");
    // A rule that also applies to chat models needs all four classes.
    let errors = of("\"*\"", "usdt_mtok = { input = \"0.01\" }").unwrap_err();
    assert!(
        errors
            .to_string()
            .contains("price_rule[0].usdt_mtok.output: missing"),
        "{errors}"
    );
    // If the model is invalid, only the model's mistake is reported, not the rule's.
    let wrong = embedding.replace("family = \"E\"\n", "");
    let rule = rule(
        "r",
        "accounts = [\"acme\"]",
        "\"emb\"",
        "usdt_mtok = { input = \"0.01\" }",
    );
    let errors = parse(&(with("") + &wrong + &rule)).unwrap_err();
    let paths: Vec<_> = errors.iter().map(|error| error.path.as_str()).collect();
    assert_eq!(paths, ["model[3].family"], "{errors}");
}

#[test]
fn likely_mistakes_in_price_rules_cause_warnings() {
    let warnings = |rules: &str| -> Vec<String> {
        let config = parse(&with(rules)).unwrap_or_else(|errors| panic!("{rules}: {errors}"));
        let warnings = config.warnings.iter().map(ToString::to_string);
        warnings
            .filter(|it| it.contains("price_rule") || it.contains("account_group"))
            .collect()
    };
    let acme = "accounts = [\"acme\"]";
    let rates = |input: &str| {
        format!(
            "usdt_mtok = {{ input = \"{input}\", cached_input = \"0.1\", output = \"2\", cache_write = \"1\" }}"
        )
    };
    for (rules, words) in [
        (rule("r", acme, "\"gpt-5\"", &times("1.05")), &[][..]),
        (
            rule("r", acme, "\"gtp-5\"", &times("1.05")),
            &["did you mean gpt-5?"],
        ),
        (
            rule("r", acme, "\"claude-*\"", &times("1.05")),
            &["matches no model"],
        ),
        (group("g", "\"acme\""), &["no price_rule names the group"]),
        (
            group("g", "\"acme\", \"beta\", \"acme\"")
                + &rule("r", "groups = [\"g\"]", "\"gpt-5\"", &times("1.05")),
            &["account_group[0].accounts: \"acme\" is listed twice"],
        ),
        (
            rule(
                "r",
                "accounts = [\"acme\", \"acme\"]",
                "\"gpt-5\"",
                &times("1.05"),
            ),
            &["price_rule[0].accounts: \"acme\" is listed twice"],
        ),
        (
            rule("r", acme, "\"gpt-5\"", &times("0.95")),
            &[
                "by this rule, cached_input of model \"gpt-5\" is sold for 0.095 USDT including the multiplier, and vendor \"v\" charges 0.1",
                "output of model \"gpt-5\" is sold for 3.8 USDT",
                "cache_write of model \"gpt-5\" is sold for 0.95 USDT",
                "below 1",
            ],
        ),
        // No route of the model has a known cost, so the check only warns of a multiplier below 1.
        (
            rule("r", acme, "\"gpt-5-mini\"", &times("0.95")),
            &["below 1"],
        ),
        // The rule has no multiplier, so the tariff's multiplier of 2 applies.
        (rule("r", acme, "\"gpt-5\"", &rates("0.45")), &[]),
        (
            rule("r", acme, "\"gpt-5\"", &rates("0.44")),
            &[
                "a call that meets no condition is sold below cost: by this rule, input of model \"gpt-5\" is sold for 0.88 USDT",
            ],
        ),
        (
            rule(
                "r",
                acme,
                "\"gpt-5\"",
                &format!("{}\n{}", rates("1"), times("1")),
            ),
            &["output of model \"gpt-5\" is sold for 2 USDT"],
        ),
    ] {
        let warned = warnings(&rules);
        assert_eq!(warned.len(), words.len(), "{rules}: {warned:?}");
        for (warned, word) in warned.iter().zip(words) {
            assert!(warned.contains(word), "{rules}: {warned}");
        }
    }
    // The vendor's cost for long input is higher than the rule's price.
    let dear = r#"cache_write = "1" }, cost_rules = [{ above_input_tokens = 1000, usdt_mtok = { input = "1.06", cached_input = "0.1", output = "4", cache_write = "1" } }] }"#;
    let text = with(&rule("r", acme, "\"gpt-5\"", &times("1.05")));
    let warned = parse(&text.replacen(r#"cache_write = "1" } }"#, dear, 1))
        .unwrap()
        .warnings;
    let warned: Vec<_> = warned.iter().map(ToString::to_string).collect();
    let word = "a call with above_input_tokens 1000 is sold below cost: by this rule, input of model \"gpt-5\" is sold for 1.05 USDT";
    assert!(
        warned
            .iter()
            .any(|it| it.contains("price_rule[0]: ") && it.contains(word)),
        "{warned:?}"
    );
    // A rule that applies to no account sells nothing, so it causes no warning.
    let exception =
        rule("r", acme, "\"*\"", &times("0.9")) + &rule("e", acme, "\"gpt-5\"", &times("1"));
    assert!(
        !warnings(&exception)
            .iter()
            .any(|it| it.contains("below cost"))
    );
}

#[test]
fn tariff_fingerprint_depends_on_the_prices_of_price_rules_but_not_on_their_accounts() {
    let of = |rules: &str| parse(&with(rules)).unwrap().live.fingerprint();
    let first = of(&rule(
        "r",
        "accounts = [\"acme\"]",
        "\"gpt-5\"",
        &times("1.05"),
    ));
    assert_ne!(first, of(""));
    let same = rule("r", "accounts = [\"beta\"]", "\"*\"", &times("1.050"));
    assert_eq!(first, of(&same));
    for (name, price) in [("r", "1.06"), ("s", "1.05")] {
        assert_ne!(
            first,
            of(&rule(
                name,
                "accounts = [\"acme\"]",
                "\"gpt-5\"",
                &times(price)
            ))
        );
    }
}

fn who() -> impl Strategy<Value = Who> {
    prop::sample::select(vec![Who::All, Who::Group, Who::Account])
}

fn which() -> impl Strategy<Value = Which> {
    prop::sample::select(vec![
        Which::Prefix(0),
        Which::Prefix(4),
        Which::Prefix(6),
        Which::Exact,
    ])
}

proptest! {
    /// The applied rule names the account more specifically than every other rule, or names it equally specifically and
    /// names the model more specifically. If no rule is the most specific, two equally specific rules are reported.
    #[test]
    fn two_equally_specific_price_rules_are_refused(matching in prop::collection::vec((who(), which()), 0..6)) {
        let holding = matching.iter().enumerate().map(|(rule, (who, which))| (rule, *who, *which));
        let beats = |one: usize, other: usize| {
            let (one, other) = (matching[one], matching[other]);
            one.0 > other.0 || (one.0 == other.0 && one.1 > other.1)
        };
        let best = (0..matching.len()).find(|one| (0..matching.len()).all(|it| it == *one || beats(*one, it)));
        match deciding(holding) {
            Ok(found) => prop_assert_eq!(found, best),
            Err((one, other)) => {
                prop_assert_eq!(best, None);
                prop_assert!(one < other && matching[one] == matching[other]);
            }
        }
    }

    /// Compares the resolved rules of a whole file with a simple implementation. `says` returns how specifically a rule
    /// names an account and a model.
    #[test]
    fn each_account_gets_the_most_specific_price_rule_or_the_file_is_refused(
        rules in prop::collection::vec((0usize..5, 0usize..6), 0..5),
    ) {
        const WHOM: [&str; 5] = [
            "accounts = [\"*\"]",
            "groups = [\"g\"]",
            "groups = [\"h\"]",
            "accounts = [\"acme\"]",
            "groups = [\"h\"]\naccounts = [\"acme\"]",
        ];
        const MODELS: [&str; 6] = ["*", "gpt-*", "gpt-5-*", "gpt-5", "gpt-5-mini", "m"];
        let group_g_is_acme_and_beta = group("g", "\"acme\", \"beta\"");
        let group_h_is_beta = group("h", "\"beta\"");
        let named = rules.iter().enumerate().map(|(nth, (whom, models))| {
            rule(&nth.to_string(), WHOM[*whom], &format!("{:?}", MODELS[*models]), &times("1"))
        });
        let text = with(&(group_g_is_acme_and_beta + &group_h_is_beta + &named.collect::<String>()));
        let says_of_account = |whom: usize, account: &str| match (whom, account) {
            (3 | 4, "acme") => 3,
            (1, "acme" | "beta") | (2 | 4, "beta") => 2,
            (0, _) => 1,
            _ => 0,
        };
        let says_of_model = |pattern: usize, model: &str| match (pattern, model) {
            (3, "gpt-5") | (4, "gpt-5-mini") | (5, "m") => 4,
            (2, "gpt-5-mini") => 3,
            (1, "gpt-5" | "gpt-5-mini") => 2,
            (0, _) => 1,
            _ => 0,
        };
        let mut expected = Some(Vec::new());
        for account in ["acme", "beta", "gamma"] {
            for model in ["m", "gpt-5", "gpt-5-mini"] {
                let matching: Vec<_> = rules
                    .iter()
                    .map(|(whom, models)| (says_of_account(*whom, account), says_of_model(*models, model)))
                    .enumerate()
                    .filter(|(_, (whom, models))| *whom > 0 && *models > 0)
                    .collect();
                let most_of_account = matching.iter().map(|(_, it)| it.0).max();
                let of_it = matching.iter().filter(|(_, it)| Some(it.0) == most_of_account);
                let most_of_model = of_it.clone().map(|(_, it)| it.1).max();
                let mut best = of_it.filter(|(_, it)| Some(it.1) == most_of_model);
                let best = match (best.next(), best.next()) {
                    (Some((nth, _)), None) => Some(*nth),
                    _ => None,
                };
                expected = match matching.is_empty() || best.is_some() {
                    true => expected.map(|mut all| { all.push(best); all }),
                    false => None,
                };
            }
        }
        match (parse(&text), expected) {
            (Ok(config), Some(expected)) => {
                let lists = &config.live.price_lists;
                let found = ["acme", "beta", "gamma"].into_iter().flat_map(|account| {
                    (0..3).map(move |model| decides(lists, account, model).map(|name| name.parse().unwrap()))
                });
                prop_assert_eq!(found.collect::<Vec<Option<usize>>>(), expected);
            }
            (Err(errors), None) => {
                for error in errors.iter() {
                    prop_assert!(error.problem.contains("are equally specific"), "{}", errors);
                }
            }
            (found, expected) => prop_assert!(false, "{:?} {:?}\n{}", found.err(), expected, text),
        }
    }

    /// The order of rules in the file does not matter.
    #[test]
    fn order_of_price_rules_does_not_matter(
        matching in prop::collection::vec((who(), which()), 1..6),
        turned in 0usize..6,
    ) {
        let chosen = |matching: &[(Who, Which)]| {
            let holding = matching.iter().enumerate().map(|(rule, (who, which))| (rule, *who, *which));
            deciding(holding).ok().flatten().map(|rule| matching[rule])
        };
        let mut other = matching.clone();
        other.rotate_left(turned % matching.len());
        prop_assert_eq!(chosen(&matching), chosen(&other));
    }

    /// A model's id is more specific than any prefix, and a longer prefix is more specific than a shorter one.
    #[test]
    fn price_rule_with_the_longest_model_pattern_applies(model in "[a-c]{1,6}", cuts in prop::collection::vec(0usize..7, 0..4), exact: bool) {
        let lengths: Vec<_> = cuts.iter().map(|cut| (*cut).min(model.len())).collect();
        let mut patterns: Vec<_> = lengths.iter().map(|length| format!("{}*", &model[..*length])).collect();
        patterns.push("zzz*".to_owned());
        if exact {
            patterns.push(model.clone());
        }
        let expected = match exact {
            true => Some(Which::Exact),
            false => lengths.iter().max().map(|length| Which::Prefix(*length)),
        };
        prop_assert_eq!(Which::from_patterns(&patterns, &model), expected);
    }
}
