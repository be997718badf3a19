use super::*;
use crate::config::testing::{SMALL, parse};

const HEAD: &str = "[admin]\nkey = \"${ADMIN_KEY}\"\n[[rate.source]]\nfixed = \"90.50\"\n[tariff]\n\
                    sell_rate_multiplier = \"1.15\"\nsell_rub_multiplier = \"1.2\"\n";

/// Returns a file with one vendor and each of its models, all from the preset, and the environment that the file needs.
fn whole(preset: &Preset) -> String {
    let models = preset.about.models.keys();
    let models = models.map(|model| {
        let own = format!("[[model]]\npreset = \"{0}/{model}\"\n", preset.name);
        match preset.about.folder {
            None => own,
            Some(_) => {
                let called = preset.vendor_model(model).unwrap().replace(FOLDER, "b1g");
                own + &format!(
                    "routes = [{{ vendor = \"{0}\", preset = \"{0}/{model}\", model = \"{called}\" }}]\n",
                    preset.name
                )
            }
        }
    });
    let vendor = format!("[[vendor]]\npreset = \"{}\"\n", preset.name);
    HEAD.to_owned() + &vendor + &models.collect::<String>()
}

fn with_keys(text: &str) -> Result<crate::config::Config, crate::config::ConfigErrors> {
    crate::config::Config::parse(text, &|name| Some(format!("{name}-0123456789abcdef")))
}

#[test]
fn every_preset_is_a_valid_vendor_with_valid_models() {
    for preset in presets() {
        assert!(day_number(&preset.about.date).is_some(), "{}", preset.name);
        if preset.about.models.is_empty() {
            continue;
        }
        let config = with_keys(&whole(preset)).unwrap_or_else(|it| panic!("{}: {it}", preset.name));
        assert_eq!(config.live.models.len(), preset.about.models.len());
        for model in &config.live.models {
            assert_eq!(model.routes.len(), 1);
            assert_eq!(model.route_costs.len(), 1, "the vendor's price is the cost");
            let text = preset.model_text(&model.id).unwrap();
            assert!(
                text.starts_with(&format!("[model.\"{}\"]", model.id)),
                "{text}"
            );
        }
        let below = config
            .warnings
            .iter()
            .find(|it| it.problem.contains("below cost"));
        assert!(below.is_none(), "{below:?}");
    }
}

#[test]
fn configured_field_replaces_the_field_of_the_preset() {
    let text = HEAD.to_owned()
        + "[[vendor]]\npreset = \"anthropic\"\nname = \"claude\"\nconnect_seconds = 7\n\
           [[model]]\npreset = \"claude-haiku-4-5\"\nid = \"haiku\"\noutput_tokens_max = 1000\n\
           usdt_mtok = { output = \"9\" }\n";
    let config = with_keys(&text).unwrap();
    let model = &config.live.models[0];
    assert_eq!(
        (model.id.as_str(), model.output_tokens_max),
        ("haiku", 1000)
    );
    // A class that the configuration does not set has the preset's price. The preset's price rules are dropped, because
    // they belong to the price that the configuration replaces.
    assert_eq!(model.base.output.to_string(), "9");
    assert_eq!(model.base.input.to_string(), "1");
    assert!(model.price_rules.is_empty());
    // The route leads to the vendor that has the preset, uses the vendor's name of the model, and has the vendor's
    // cost.
    let route = &model.routes[0];
    assert_eq!(
        (&*route.vendor.name, &*route.model),
        ("claude", "claude-haiku-4-5")
    );
    assert_eq!(model.route_costs[0].base.output.to_string(), "5");
}

#[test]
fn route_takes_its_vendor_costs_from_a_preset() {
    let text = HEAD.to_owned()
        + "[[vendor]]\npreset = \"openai\"\n[[vendor]]\nname = \"eu\"\npreset = \"openai\"\nurl = \"https://eu.api.openai.com/v1\"\n\
           [[model]]\npreset = \"gpt-5.4\"\n[[model]]\npreset = \"gpt-5.4-mini\"\nid = \"mini\"\n\
           routes = [{ vendor = \"eu\", preset = \"gpt-5.4-mini\", weight = 2 }]\n";
    let config = with_keys(&text).unwrap();
    let routes = |index: usize| -> Vec<_> {
        let routes = config.live.models[index].routes.iter();
        routes
            .map(|it| (it.vendor.name.to_string(), it.model.to_string()))
            .collect()
    };
    let pair = |vendor: &str, model: &str| (vendor.to_owned(), model.to_owned());
    assert_eq!(
        routes(0),
        [pair("openai", "gpt-5.4"), pair("eu", "gpt-5.4")]
    );
    assert_eq!(routes(1), [pair("eu", "gpt-5.4-mini")]);
    assert_eq!(config.live.models[1].route_costs.len(), 1);
}

#[test]
fn invalid_use_of_a_preset_is_refused_by_name() {
    let vendor = "[[vendor]]\npreset = \"openai\"\n";
    for (text, path, problem) in [
        (
            "[[vendor]]\npreset = \"opnai\"\n[[model]]\npreset = \"gpt-5.4\"\n".to_owned(),
            "vendor[0].preset",
            "did you mean openai?",
        ),
        (
            format!("{vendor}[[model]]\npreset = \"claude-haiku-4-6\"\n"),
            "model[0].preset",
            "did you mean claude-haiku-4-5?",
        ),
        (
            format!("{vendor}[[model]]\npreset = \"gpt-5.4\"\noutput_tokens_min = 200000\n"),
            "model[0].output_tokens_min",
            "128000",
        ),
        (
            format!("{vendor}[[model]]\npreset = \"gpt-5.4\"\nkind = \"embedding\"\n"),
            "model[0].output_tokens_max",
            "this value is from preset \"openai\"",
        ),
        (
            format!("{vendor}[[model]]\npreset = 5\n"),
            "model[0].preset",
            "must be text",
        ),
    ] {
        let errors = with_keys(&format!("{HEAD}{text}")).unwrap_err().to_string();
        assert!(
            errors.contains(&format!("{path}:")) && errors.contains(problem),
            "{errors}"
        );
    }
}

#[test]
fn configuration_without_presets_uses_none() {
    assert!(parse(SMALL).unwrap().presets.is_empty());
    let config = with_keys(&whole(Preset::named("deepseek").unwrap())).unwrap();
    let names: Vec<_> = config.presets.iter().map(|preset| preset.name).collect();
    assert_eq!(names, ["deepseek"]);
}

#[test]
fn key_is_the_only_secret_of_a_preset_and_its_setting_is_known() {
    for preset in presets() {
        let setting = preset.key_setting();
        assert!(setting.is_some(), "{}", preset.name);
        assert_eq!(preset.text.matches("${").count(), 1, "{}", preset.name);
    }
    let setting = |name| Preset::named(name).unwrap().key_setting().unwrap();
    assert_eq!(setting("deepseek"), "key");
    assert_eq!(setting("gigachat"), "login.basic");
}

#[test]
fn fields_of_every_model_are_cut_out_of_the_preset() {
    let text = |name| Preset::named(name).unwrap().every_model_text();
    assert!(text("gigachat").starts_with("output_field = \"max_tokens\"\nfunctions = true\n"));
    assert_eq!(text("openrouter"), "output_field = \"max_tokens\"\n");
    assert_eq!(text("openai"), "");
}

#[test]
fn age_is_counted_in_days_since_the_preset_was_taken() {
    let preset = &presets()[0];
    let taken = day_number(&preset.about.date).unwrap();
    assert_eq!(preset.age_days((taken + 12) * DAY_MS + 5), 12);
    assert_eq!(preset.age_days(0), 0);
    assert_eq!(day_number("2026-11-29"), Some(20_786));
}
