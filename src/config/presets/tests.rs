use super::*;
use crate::config::testing::{SMALL, parse};

const HEAD: &str = "[admin]\nkey = \"${ADMIN_KEY}\"\n[[rate.source]]\nfixed = \"90.50\"\n[tariff]\n\
                    sell_rate_multiplier = \"1.15\"\nsell_rub_multiplier = \"1.2\"\n";

/// Returns a configuration with a preset's vendor and all models of the preset.
fn whole(preset: &Preset) -> String {
    let models = preset.about.models.keys();
    let models = models.map(|model| format!("[[model]]\npreset = \"{}/{model}\"\n", preset.name));
    let vendor = vendor(preset, None);
    HEAD.to_owned() + &vendor + &models.collect::<String>()
}

/// Returns the section `[[vendor]]` for a preset, with the values that the preset needs.
fn vendor(preset: &Preset, login: Option<&str>) -> String {
    let values = preset.values(login);
    let values = values.map(|(name, about)| format!("{name} = \"{}\"", about.example));
    let values = values.collect::<Vec<_>>().join(", ");
    let values = match values.is_empty() {
        true => String::new(),
        false => format!("values = {{ {values} }}\n"),
    };
    let login = login.map(|name| format!("login = {{ preset = \"{name}\" }}\n"));
    let login = login.unwrap_or_default();
    format!("[[vendor]]\npreset = \"{}\"\n{values}{login}", preset.name)
}

fn with_keys(text: &str) -> Result<crate::config::Config, crate::config::ConfigErrors> {
    crate::config::Config::parse(text, &|name| {
        Some(match name {
            "VERTEX_SERVICE_ACCOUNT" => service_account(),
            _ => format!("{name}-0123456789abcdef"),
        })
    })
}

/// Returns a key file of a Google service account.
fn service_account() -> String {
    let key = include_str!("../../logins/test_key.pem");
    serde_json::json!({
        "type": "service_account", "private_key_id": "1", "private_key": key,
        "client_email": "gate@p.iam.gserviceaccount.com", "token_uri": "https://oauth2.googleapis.com/token",
    })
    .to_string()
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
fn values_of_a_cloud_preset_are_used_in_urls_and_authentication() {
    let route = |name: &str, login: Option<&str>| {
        let preset = Preset::named(name).unwrap();
        let model = preset.about.models.keys().next().unwrap();
        let model = format!("[[model]]\npreset = \"{name}/{model}\"\n");
        let config = with_keys(&format!("{HEAD}{}{model}", vendor(preset, login))).unwrap();
        std::sync::Arc::clone(&config.live.models[0].routes[0])
    };
    for (name, address, model) in [
        (
            "azure",
            "https://acme-eastus2.openai.azure.com/openai/v1/chat/completions",
            "gpt-4.1",
        ),
        (
            "vertex",
            "https://aiplatform.googleapis.com/v1/projects/acme-prod-421/locations/global/endpoints/openapi/chat/completions",
            "google/gemini-3.1-flash-lite",
        ),
        (
            "vertex-claude",
            "https://aiplatform.googleapis.com/v1/projects/acme-prod-421/locations/global/publishers/anthropic/models/\
             claude-fable-5:streamRawPredict",
            "claude-fable-5",
        ),
        (
            "bedrock",
            "https://bedrock-runtime.us-east-1.amazonaws.com/openai/v1/chat/completions",
            "deepseek.v3.2",
        ),
        (
            "bedrock-claude",
            "https://bedrock-runtime.us-east-1.amazonaws.com/anthropic/v1/messages",
            "global.anthropic.claude-fable-5",
        ),
        (
            "yandexgpt",
            "https://ai.api.cloud.yandex.net/v1/chat/completions",
            "gpt://b1gexample0123456789/aliceai-llm",
        ),
    ] {
        let preset = Preset::named(name).unwrap();
        let logins = preset.about.logins.keys().map(|name| Some(name.as_str()));
        for login in std::iter::once(None).chain(logins) {
            let route = route(name, login);
            assert_eq!(route.vendor.endpoint, address, "{name} {login:?}");
            assert_eq!(&*route.model, model);
            let is_login = matches!(
                route.vendor.authentication,
                tollgate_layers::model::Authentication::Login(_)
            );
            let is_signed = login.is_some() || name.starts_with("vertex");
            assert_eq!(is_login, is_signed, "{name} {login:?}");
        }
    }
    let header = |name| route(name, None).vendor.credentials[0].clone();
    assert_eq!(header("azure"), "AZURE_OPENAI_API_KEY-0123456789abcdef");
    assert_eq!(
        header("bedrock-claude"),
        "Bearer AWS_BEARER_TOKEN_BEDROCK-0123456789abcdef"
    );
}

#[test]
fn missing_value_of_a_cloud_preset_is_reported_once_with_where_to_find_it() {
    let errors = |vendor: &str| {
        let text = format!("{HEAD}[[vendor]]\n{vendor}\n[[model]]\npreset = \"azure/gpt-5.4\"\n");
        with_keys(&text).unwrap_err().to_string()
    };
    let missing = errors("preset = \"azure\"");
    assert_eq!(
        missing,
        "line 8: vendor[0].values.resource: missing; give the Azure resource name, like values = { resource = \
         \"acme-eastus2\" }. In the Azure portal, on the resource's page Keys and Endpoint: the first part of the \
         endpoint's host name"
    );
    for (vendor, problem) in [
        (
            "preset = \"azure\"\nvalues = { resurce = \"a\", resource = \"a\" }",
            "vendor[0].values.resurce: the preset \"azure\" has no placeholder of this name; did you mean resource?",
        ),
        (
            "preset = \"azure\"\nvalues = { resource = \"a/b\" }",
            "vendor[0].values.resource: must contain only letters",
        ),
        (
            "preset = \"azure\"\nvalues = { resource = \"a\" }\nlogin = { preset = \"entr\" }",
            "vendor[0].login.preset: \"entr\" is not a preset; did you mean entra?",
        ),
        (
            "preset = \"azure\"\nvalues = { resource = \"a\" }\nlogin = { preset = \"entra\" }",
            "vendor[0].values.client: missing; give the Entra application ID",
        ),
        (
            "name = \"azure\"\nvalues = { resource = \"a\" }",
            "vendor[0].values: has no effect without preset",
        ),
    ] {
        let errors = errors(vendor);
        assert!(errors.contains(problem), "{errors}");
    }
    // If the operator writes the URL, the placeholders of the preset's URL need no values.
    let own = "preset = \"azure\"\nurl = \"https://eu.example/openai/v1\"\n";
    let text = format!("{HEAD}[[vendor]]\n{own}[[model]]\npreset = \"azure/gpt-5.4\"\n");
    assert_eq!(with_keys(&text).unwrap().live.models.len(), 1);
}

#[test]
fn model_name_on_a_route_contains_the_preset_values_of_the_routes_vendor() {
    let vendors = "[[vendor]]\npreset = \"yandexgpt\"\nvalues = { folder = \"b1g1\" }\n\
                   [[vendor]]\npreset = \"yandexgpt\"\nname = \"second\"\nvalues = { folder = \"b1g2\" }\n";
    let routes = |model: &str| {
        let config = with_keys(&format!("{HEAD}{vendors}[[model]]\n{model}")).unwrap();
        let routes = config.live.models[0].routes.iter();
        routes.map(|it| it.model.to_string()).collect::<Vec<_>>()
    };
    let preset = "preset = \"aliceai-llm\"\n";
    assert_eq!(
        routes(preset),
        ["gpt://b1g1/aliceai-llm", "gpt://b1g2/aliceai-llm"]
    );
    let own = "routes = [{ vendor = \"second\", preset = \"aliceai-llm\" }]\n";
    assert_eq!(
        routes(&format!("{preset}{own}")),
        ["gpt://b1g2/aliceai-llm"]
    );

    let text = format!("{HEAD}[[vendor]]\npreset = \"yandexgpt\"\n[[model]]\n{preset}");
    let errors = with_keys(&text).unwrap_err().to_string();
    assert!(
        errors.contains("vendor[0].values.folder: missing"),
        "{errors}"
    );
    let foreign = "[[vendor]]\npreset = \"openai\"\nname = \"second\"\n[[model]]\n";
    let errors = with_keys(&format!("{HEAD}{foreign}{preset}{own}"));
    let errors = errors.unwrap_err().to_string();
    assert!(
        errors.contains("model[0].routes[0].model: missing; write the vendor's name for the model"),
        "{errors}"
    );
}

#[test]
fn model_of_a_cloud_preset_is_found_only_by_a_name_with_the_preset_as_prefix() {
    assert_eq!(Preset::of_model("gpt-5.4")[0].0.name, "openai");
    assert_eq!(Preset::of_model("gpt-5.4").len(), 1);
    assert_eq!(Preset::of_model("azure/gpt-5.4")[0].0.name, "azure");
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
    // A rate class that the configuration does not set has the preset's price. The preset's price rules are dropped,
    // because they belong to the base prices that the configuration replaces.
    assert_eq!(model.base.output.to_string(), "9");
    assert_eq!(model.base.input.to_string(), "1");
    assert!(model.price_rules.is_empty());
    // The route leads to the vendor with this preset, uses the vendor's name for the model, and has the vendor's costs.
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
fn error_about_an_invalid_use_of_a_preset_names_the_field() {
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
fn configuration_without_presets_reports_no_preset_in_use() {
    assert!(parse(SMALL).unwrap().presets.is_empty());
    let config = with_keys(&whole(Preset::named("deepseek").unwrap())).unwrap();
    let names: Vec<_> = config.presets.iter().map(|preset| preset.name).collect();
    assert_eq!(names, ["deepseek"]);
}

#[test]
fn each_login_of_a_preset_refers_to_one_secret_in_a_known_setting() {
    for preset in presets() {
        assert!(preset.key_setting(None).is_some(), "{}", preset.name);
        let mut secrets = 1;
        for (name, login) in &preset.about.logins {
            let setting = preset.key_setting(Some(name));
            assert_eq!(setting.is_some(), login.key_env.is_some(), "{name}");
            secrets += usize::from(setting.is_some());
        }
        assert_eq!(
            preset.text.matches("${").count(),
            secrets,
            "{}",
            preset.name
        );
    }
    let setting = |name| Preset::named(name).unwrap().key_setting(None).unwrap();
    assert_eq!(setting("deepseek"), "key");
    assert_eq!(setting("gigachat"), "login.basic");
}

#[test]
fn fields_common_to_all_models_of_a_preset_are_returned_as_toml_lines() {
    let text = |name| Preset::named(name).unwrap().every_model_text();
    assert!(text("gigachat").starts_with("output_field = \"max_tokens\"\nfunctions = true\n"));
    assert_eq!(text("openrouter"), "output_field = \"max_tokens\"\n");
    assert_eq!(text("openai"), "");
}

#[test]
fn age_of_a_preset_is_counted_in_days_since_its_date() {
    let preset = &presets()[0];
    let taken = day_number(&preset.about.date).unwrap();
    assert_eq!(preset.age_days((taken + 12) * DAY_MS + 5), 12);
    assert_eq!(preset.age_days(0), 0);
    assert_eq!(day_number("2026-11-29"), Some(20_786));
}
