use tollgate_ledger::price::Condition;

use super::*;
use crate::config::BaseRates;

const HEAD: &str = "[admin]\nkey = \"${ADMIN_KEY}\"\n[[rate.source]]\nfixed = \"90.50\"\n[tariff]\n\
                    sell_rate_multiplier = \"1.15\"\n";

const TARIFF: Tariff = Tariff {
    sell_rate_multiplier: Decimal::from_parts(115, 0, 0, false, 2),
    sell_rub_multiplier: Decimal::TWO,
};

fn diff(text: &str, source: &PriceSource) -> PriceDiff {
    PriceDiff::new(&format!("{HEAD}{text}"), source, TARIFF, None).unwrap()
}

fn parse(text: &str) -> crate::config::Config {
    let config =
        crate::config::Config::parse(text, &|name| Some(format!("{name}-0123456789abcdef")));
    config.unwrap_or_else(|it| panic!("{it}\n{text}"))
}

fn lines(diff: &PriceDiff) -> Vec<String> {
    let lines = diff.changes.iter().map(|it| {
        let margin = it
            .margin_percent
            .map_or("-".to_owned(), |it| it.to_string());
        format!(
            "{}|{}|{}|{}→{}|{}|{margin}",
            it.model, it.when, it.class, it.old, it.new, it.fields
        )
    });
    lines.collect()
}

#[test]
fn prices_in_rubles_are_compared_with_their_own_multiplier() {
    let text = "[[vendor]]\npreset = \"gigachat\"\n[[model]]\npreset = \"GigaChat-2\"\n\
                rub_mtok = { input = \"60\" }\n\
                routes = [{ vendor = \"gigachat\", model = \"GigaChat-2\", cost_rub_mtok = { input = \"60\", \
                cached_input = \"65\", output = \"65\", cache_write = \"65\" } }]\n";
    let changed = diff(text, &PriceSource::Presets);
    assert_eq!(lines(&changed), ["GigaChat-2||input|60→65|price, cost|50"]);
    assert!(changed.text.contains("rub_mtok = { input = \"65\" }"));
    // If the cost is in rubles, a price in USDT is the operator's own and is not compared.
    let own = diff(
        &text.replace(
            "\nrub_mtok = { input = \"60\" }",
            "\nusdt_mtok = { input = \"1\", cached_input = \
                   \"1\", output = \"1\", cache_write = \"1\" }",
        ),
        &PriceSource::Presets,
    );
    assert_eq!(lines(&own), ["GigaChat-2||input|60→65|cost|-"]);
    assert!(
        own.notes
            .iter()
            .any(|it| it.contains("the price is in USDT")),
        "{:?}",
        own.notes
    );
}

/// A file with old prices from the vendor's page: deepseek-flash costs twice its current price.
const OLD: &str = r#"
[[vendor]]
name = "ds"
format = "chat"
url = "https://api.deepseek.com/"   # the preset is found by the address
key = "${DEEPSEEK_API_KEY}"

[[model]]
id = "flash"       # our name
family = "DeepSeek"
usdt_mtok = { input = "0.6", cached_input = "0.006", output = "5", cache_write = "0.6" }  # of May
output_tokens_max = 8192
[[model.routes]]
vendor = "ds"
model = "deepseek-flash"
[model.routes.cost_usdt_mtok]
input = "0.6"
cached_input = "0.006"
output = "2.4"     # not ours
cache_write = "0.6"
"#;

fn flash(map: &str) -> PriceSource {
    PriceSource::from_map(&format!(
        r#"{{ "deepseek-flash": {{ "litellm_provider": "deepseek", "mode": "chat", "input_cost_per_token": 3e-7,
        "cache_read_input_token_cost": 6e-9, "output_cost_per_token": 1.2e-06, "cache_creation_input_token_cost": 0.0 {map} }} }}"#
    ))
    .unwrap()
}

#[test]
fn price_equal_to_the_vendors_cost_changes_with_it_and_any_other_price_is_kept() {
    let diff = diff(OLD, &flash(""));
    // A price of 0.3 × 1.15 at a cost of 0.3 leaves a margin of 13 %. A price of 5 × 1.15 at a cost of 1.2 leaves 79.1
    // %.
    assert_eq!(
        lines(&diff),
        [
            "flash||cache_write|0.6→0.3|price, cost|13",
            "flash||input|0.6→0.3|price, cost|13",
            "flash||output|2.4→1.2|cost|79.1",
        ]
    );
    assert_eq!(diff.notes, [""; 0]);
    // Only the numbers change: the file's comments, order and spaces are kept.
    let expected = format!("{HEAD}{OLD}")
        .replace("\"0.6\"", "\"0.3\"")
        .replace("\"2.4\"", "\"1.2\"");
    assert_eq!(diff.text, expected);
    parse(&diff.text);
}

#[test]
fn applied_price_diff_leaves_no_difference() {
    let once = diff(OLD, &flash(""));
    let twice = PriceDiff::new(&once.text, &flash(""), Tariff::AT_COST, None).unwrap();
    assert_eq!((lines(&twice), twice.text), (Vec::new(), once.text));
}

#[test]
fn vendor_price_that_the_file_lacks_is_reported_in_a_note() {
    let map = flash(
        r#", "cache_creation_input_token_cost_above_1hr": 5e-7, "input_cost_per_token_flex": 1e-7,
        "output_cost_per_token_flex": 4e-7, "off_peak_pricing": {}, "input_cost_per_second": 1, "odd_cost": 2"#,
    );
    let notes = diff(OLD, &map).notes.join("\n");
    for part in [
        "flash: the vendor bills cache_write_1h at 0.5, but the file has no price for it",
        "flash: the vendor has a price for service_tier = \"flex\", but the file has no rule for it",
        "flash: the source has off_peak_pricing, which the configuration cannot express",
        "flash: the source has odd_cost, which the configuration cannot express",
    ] {
        assert!(notes.contains(part), "{part}:\n{notes}");
    }
    assert!(!notes.contains("per_second"), "no call has it: {notes}");
    let elsewhere = OLD.replace("https://api.deepseek.com/", "https://example.com/v1");
    let diff = diff(&elsewhere, &flash(""));
    assert_eq!(
        diff.notes,
        ["flash: not compared, because no preset contains the prices of vendor \"ds\""]
    );
    let other = OLD.replace("\"deepseek-flash\"", "\"deepseek-none\"");
    assert_eq!(
        self::diff(&other, &flash("")).notes,
        [
            "flash: not compared, because the source has no price for model \"deepseek-none\" of deepseek"
        ]
    );
}

#[test]
fn price_rules_with_the_same_condition_are_compared() {
    let rules = "\n[[model.price_rules]]\nservice_tier = \"flex\"\nusdt_mtok = { input = \"0.2\", cached_input = \"0.1\", \
                 output = \"0.8\", cache_write = \"0.2\" }\n[[model.price_rules]]\nabove_input_tokens = 200000\nusdt_mtok = \
                 { input = \"9\", cached_input = \"9\", output = \"9\", cache_write = \"9\" }\n";
    let without_cost = OLD.split("[model.routes.cost_usdt_mtok]").next().unwrap();
    let text = without_cost.replace("[[model.routes]]", &format!("{rules}[[model.routes]]"));
    let map = flash(r#", "input_cost_per_token_flex": 1e-7, "output_cost_per_token_flex": 4e-7"#);
    let diff = diff(&text, &map);
    assert!(diff.text.contains("usdt_mtok = { input = \"0.1\", cached_input = \"0.1\", output = \"0.4\", cache_write = \"0.1\" }"), "{}", diff.text);
    assert_eq!(
        diff.notes,
        ["flash: the source has no price for above_input_tokens = 200000"]
    );
    assert!(
        lines(&diff).contains(&"flash|service_tier = \"flex\"|output|0.8→0.4|price|13".to_owned()),
        "{:?}",
        lines(&diff)
    );
}

#[test]
fn preset_has_no_difference_to_itself_and_a_newer_price_map_replaces_all_its_prices() {
    let text = "[[vendor]]\npreset = \"deepseek\"\n\n[[model]]\npreset = \"deepseek-flash\"   # ours\n\n# the end\n";
    assert!(diff(text, &PriceSource::Presets).changes.is_empty());
    let dearer = PriceSource::from_map(
        r#"{ "deepseek/deepseek-flash": { "input_cost_per_token": 4e-7, "cache_read_input_token_cost": 1e-8,
        "output_cost_per_token": 2e-6, "input_cost_per_token_flex": 2e-7, "output_cost_per_token_flex": 1e-6 } }"#,
    )
    .unwrap();
    let diff = diff(text, &dearer);
    let has_rules = !parse(&format!("{HEAD}{text}")).live.models[0]
        .price_rules
        .is_empty();
    if has_rules {
        // The map does not have the preset's price rules, so replacing all prices would lose them.
        assert!(
            diff.notes.iter().any(|it| it.contains("by hand")),
            "{:?}",
            diff.notes
        );
        return;
    }
    assert!(
        diff.text
            .contains("preset = \"deepseek-flash\"   # ours\nusdt_mtok = { "),
        "{}",
        diff.text
    );
    assert!(diff.text.ends_with("]\n\n# the end\n"), "{}", diff.text);
    let model = &parse(&diff.text).live.models[0];
    assert_eq!(model.base.output.to_string(), "2");
    assert_eq!(model.price_rules.len(), 1);
    assert_eq!(model.route_costs[0].base.input.to_string(), "0.4");
    assert_eq!(model.route_costs[0].rules.len(), 1);
}

#[test]
fn date_at_the_end_of_a_model_name_is_ignored() {
    assert_eq!(
        without_date("gpt-5-mini-2025-08-07", &['-']),
        Some("gpt-5-mini")
    );
    assert_eq!(
        without_date("claude-haiku-4-5-20251001", &['-']),
        Some("claude-haiku-4-5")
    );
    assert_eq!(without_date("gpt-5-mini", &['-']), None);
    let example = include_str!("../../../deploy/tollgate.toml");
    let diff = PriceDiff::new(example, &PriceSource::Presets, Tariff::AT_COST, None).unwrap();
    assert!(
        !diff
            .notes
            .iter()
            .any(|it| it.contains("no price for model \"")),
        "{:?}",
        diff.notes
    );
}

#[test]
fn price_map_is_converted_into_prices_and_price_rules() {
    let map = serde_json::json!({ "claude-x": {
        "litellm_provider": "anthropic", "input_cost_per_token": 1e-6, "output_cost_per_token": 5e-6,
        "cache_read_input_token_cost": 1e-7, "cache_creation_input_token_cost": 1.25e-6,
        "input_cost_per_token_above_200k_tokens": 2e-6, "output_cost_per_token_above_200k_tokens": 7.5e-6,
        "search_context_cost_per_query": { "search_context_size_high": 0.01, "search_context_size_low": 0.01 },
        "provider_specific_entry": { "us": 1.1 },
    }});
    let listed = map::prices(map.as_object().unwrap(), "anthropic", "claude-x").unwrap();
    let shown = |rates: &Rates| -> String {
        let rates: Vec<_> = rates
            .iter()
            .map(|(class, rate)| format!("{class} {rate}"))
            .collect();
        rates.join(", ")
    };
    assert_eq!(
        shown(&listed.rates),
        "cache_write 1.25, cached_input 0.1, input 1, output 5, web_search_call 0.01"
    );
    let rules: Vec<_> = listed
        .rules
        .iter()
        .map(|(when, rates)| (conditions(when), shown(rates)))
        .collect();
    let usual = "cache_write 1.375, cached_input 0.11, input 1.1, output 5.5, web_search_call 0.01";
    let long = "cache_write 2, cached_input 2, input 2, output 7.5, web_search_call 0.01";
    let both = "cache_write 2.2, cached_input 2.2, input 2.2, output 8.25, web_search_call 0.01";
    let expected = [
        ("inference_geo = \"us\"", usual),
        ("above_input_tokens = 200000", long),
        ("above_input_tokens = 200000, inference_geo = \"us\"", both),
    ];
    let expected: Vec<_> = expected
        .map(|(when, rates)| (when.to_owned(), rates.to_owned()))
        .into();
    assert_eq!(rules, expected);
}

#[test]
fn off_peak_windows_of_a_price_map_become_the_peak_hour_rules_of_the_preset() {
    let map = |windows: &str| {
        let map = format!(
            r#"{{ "deepseek-flash": {{ "litellm_provider": "deepseek", "input_cost_per_token": 3e-7, "output_cost_per_token": 1.2e-6,
            "cache_read_input_token_cost": 6e-9, "off_peak_pricing": {{ "input_cost_per_token": 1.5e-7,
            "output_cost_per_token": 6e-7, "cache_read_input_token_cost": 3e-9, "windows": {windows} }} }} }}"#
        );
        let map: serde_json::Value = serde_json::from_str(&map).unwrap();
        map::prices(map.as_object().unwrap(), "deepseek", "deepseek-flash").unwrap()
    };
    let windows = r#"[{ "hours_utc": ["00:00-01:00", "04:00-06:00", "10:00-00:00"], "weekdays": [1, 2, 3, 4, 5] },
                      { "hours_utc": "00:00-00:00", "weekdays": [6, 7] }]"#;
    let listed = map(windows);
    let preset = Preset::named("deepseek").unwrap();
    let of_preset = source::preset_prices(preset, "deepseek-flash").unwrap();
    assert_eq!(
        (&listed.rates, &listed.rules),
        (&of_preset.rates, &of_preset.rules)
    );
    assert_eq!(listed.unread, [""; 0]);
    // A window that continues after midnight ends on the next day.
    let rules = map(r#"[{ "hours_utc": "22:00-02:00" }]"#).rules;
    assert_eq!(rules.len(), 1);
    assert_eq!(rules[0].0["hours_utc"], "[\"02:00-22:00\"]");
    // A window of an unknown form is noted, and the higher prices apply.
    let listed = map(r#"[{ "days": "all" }]"#);
    assert_eq!(
        (listed.rules.len(), &*listed.unread[0]),
        (0, "off_peak_pricing")
    );
    assert_eq!(listed.rates["input"].to_string(), "0.3");
}

fn warned(text: &str) -> Vec<String> {
    let config = parse(&format!("{HEAD}{text}"));
    // The admin key of these tests is weak, which causes another warning.
    let warnings = config
        .warnings
        .iter()
        .filter(|it| it.path != "admin.key")
        .map(|it| format!("{}: {}", it.path, it.problem));
    warnings.collect()
}

#[test]
fn price_per_token_instead_of_per_million_tokens_causes_a_warning() {
    let copied = OLD.replace("input = \"0.6\"", "input = \"0.0000006\"");
    let found = warned(&copied);
    let of = |path: &str| {
        found
            .iter()
            .find(|it| it.starts_with(path))
            .cloned()
            .unwrap_or_default()
    };
    assert!(
        of("model[0].usdt_mtok:").contains("below 0.001: input 0.0000006. If"),
        "{found:?}"
    );
    assert!(
        of("model[0].routes[0].cost_usdt_mtok:").contains("input 0.0000006"),
        "{found:?}"
    );
    assert_eq!(warned(OLD), [""; 0]);
}

#[test]
fn vendor_url_without_the_version_of_the_presets_url_causes_a_warning() {
    for (url, preset) in [
        ("https://api.openai.com", Some("openai")),
        ("https://api.groq.com/", Some("groq")),
        ("https://api.groq.com/openai", Some("groq")),
        ("https://api.openai.com/v1/", None),
        ("https://api.deepseek.com", None),
        ("https://example.com", None),
    ] {
        let found = warned(&OLD.replace("https://api.deepseek.com/", url));
        let is_warned = |name| {
            let problem = format!("vendor[0].url: is shorter than the URL of preset {name:?}");
            found.iter().any(|it| it.starts_with(&problem))
        };
        assert_eq!(found.is_empty(), preset.is_none(), "{url}: {found:?}");
        assert!(preset.is_none_or(is_warned), "{url}: {found:?}");
    }
}

#[test]
fn billed_class_without_a_price_causes_a_warning() {
    let text = OLD
        .replace("https://api.deepseek.com/", "https://api.openai.com/v1")
        .replace("deepseek-flash", "gpt-5.4-mini");
    let found = warned(&text).join("\n");
    assert!(
        found.contains(
            "model[0].usdt_mtok: lacks prices for classes that the vendor \"ds\" bills: "
        ),
        "{found}"
    );
    assert!(found.contains("web_search_call 0.01"), "{found}");
}

#[test]
fn dated_price_change_is_added_as_a_rule_and_keeps_the_current_price() {
    const FROM: &str = "2027-01-01T00:00:00Z";
    let dated = |text: &str| {
        let text = format!("{HEAD}{text}");
        PriceDiff::new(&text, &flash(""), Tariff::AT_COST, Some(FROM)).unwrap()
    };
    let new = r#"usdt_mtok = { cache_write = "0.3", cached_input = "0.006", input = "0.3", output = "1.2" }"#;
    let inline_route = OLD.split("[[model.routes]]").next().unwrap().to_owned()
        + r#"price_rules = [ { service_tier = "flex", usdt_mtok = { input = "0.6", cached_input = "0.006", output = "2", cache_write = "0.6" } } ]
routes = [ { vendor = "ds", model = "deepseek-flash", cost_usdt_mtok = { input = "0.6", cached_input = "0.006", output = "2.4", cache_write = "0.6" } } ] # ours
"#;
    let hours = "\n[[model.price_rules]] # at night\nhours_utc = [\"01:00-04:00\"]\nusdt_mtok = { input = \"0.6\", \
                 cached_input = \"0.006\", output = \"2\", cache_write = \"0.6\" } # dear\n";
    let tables = OLD
        .split("[model.routes.cost_usdt_mtok]")
        .next()
        .unwrap()
        .to_owned()
        + hours;
    for (text, rules, costs) in [(inline_route.as_str(), 2, 1), (&tables, 2, 0)] {
        let diff = dated(text);
        assert!(!diff.changes.is_empty());
        // The dated rules are added to the text, and no line is removed.
        let mut rest = diff.text.chars();
        let is_kept = format!("{HEAD}{text}")
            .chars()
            .all(|it| rest.any(|stored| stored == it));
        assert!(is_kept, "{}", diff.text);
        if costs > 0 {
            assert!(diff.text.contains(new), "{}", diff.text);
        }
        let config = parse(&diff.text);
        let model = &config.live.models[0];
        let dated_of = |rules: &[(Condition, BaseRates)]| {
            let dated = rules
                .iter()
                .filter(|(when, _)| when.valid_from_ms.is_some());
            dated.count()
        };
        assert_eq!(dated_of(&model.price_rules), rules, "{}", diff.text);
        assert_eq!(model.base.input.to_string(), "0.6");
        let dated_costs = model.route_costs.iter().map(|it| dated_of(&it.rules));
        assert_eq!(dated_costs.sum::<usize>(), costs, "{}", diff.text);
        // If the same change is made to the changed file, nothing changes: the file already has the rules.
        let again = PriceDiff::new(&diff.text, &flash(""), Tariff::AT_COST, Some(FROM)).unwrap();
        assert_eq!(again.text, diff.text);
        assert!(
            again.notes.join("\n").contains("already"),
            "{:?}",
            again.notes
        );
    }
    // If the costs are in a separate table, a rule cannot be inserted after them.
    let notes = dated(OLD).notes.join("\n");
    assert!(
        notes.contains("write cost_rules by hand: { valid_from"),
        "{notes}"
    );
}
