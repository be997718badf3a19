//! Renders `docs/vendors/NAME.md` for each preset.

use std::fmt::Write as _;

use super::{ModelAbout, Preset, ValueAbout, presets};

const PAGES: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/docs/vendors/");

fn page(preset: &Preset) -> String {
    let about = &preset.about;
    let mut page = format!("# {}\n\n", about.title);
    let _ = writeln!(
        page,
        "This page describes the preset `{}`. Its settings and prices are as of {}, and their source is <{}>.\n",
        preset.name, about.date, about.source
    );
    if let Some(keys) = &about.key_page {
        let _ = writeln!(
            page,
            "**Key.** Create a key at <{keys}>, and put it into the gateway's environment variable `{}`.\n",
            about.key_env
        );
    }
    let mut values = Vec::new();
    let mut command = String::new();
    for (name, about) in preset.values(None) {
        let ValueAbout {
            title,
            find,
            example,
        } = about;
        let _ = writeln!(
            page,
            "**Value `{name}`.** It is the {title}. Where to find it: {find}.\n"
        );
        let _ = write!(command, " --value {name}={example}");
        values.push(format!("{name} = \"{example}\""));
    }
    let values = match values.is_empty() {
        true => String::new(),
        false => format!("values = {{ {} }}\n", values.join(", ")),
    };
    let example = about.models.keys().next();
    let model = match example {
        Some(model) if about.qualified => {
            format!("[[model]]\npreset = \"{}/{model}\"\n", preset.name)
        }
        Some(model) => format!("[[model]]\npreset = \"{model}\"\n"),
        None => format!(
            "[[model]]\nid     = \"my-model\"\nfamily = \"My models\"\nusdt_mtok = {{ input = \"0.10\", cached_input = \"0.01\", output = \"0.40\", \
             cache_write = \"0.10\" }}\ninput_tokens_max  = 32768\noutput_tokens_max = 8192\nroutes = [ {{ vendor = \"{}\" }} ]\n",
            preset.name
        ),
    };
    if example.is_none() {
        command += " --models MODEL --usdt-mtok INPUT,OUTPUT";
    }
    let _ = writeln!(
        page,
        "**Configuration.** Run `tollgate vendor add {}{command} --config tollgate.toml`, or write these sections into `tollgate.toml`:\n\n```toml\n[[vendor]]\npreset = \"{}\"\n{values}\n{model}```\n\nA field that you write replaces the preset's value for this field \
         ([how presets apply](../prices.md#presets)).\n",
        preset.name, preset.name
    );
    page += &logins(preset);
    if !about.notes.is_empty() {
        page += "**Notes**\n\n";
        for note in &about.notes {
            let _ = writeln!(page, "- {note}");
        }
        page.push('\n');
    }
    if !about.models.is_empty() {
        page += &models(preset);
    }
    page + "This page is generated. To update it, run `SETTINGS_WRITE=1 cargo test --lib --all-features config::`.\n"
}

fn logins(preset: &Preset) -> String {
    let mut page = String::new();
    for (name, login) in &preset.about.logins {
        let secret = login.key_env.as_ref();
        let secret = secret.map_or(String::new(), |variable| {
            format!(" Put the login's secret into the gateway's environment variable `{variable}`.")
        });
        let _ = writeln!(
            page,
            "**Login `{name}`.** It uses {}. To select this login, add `--login {name}` to `tollgate vendor add`, or write `login = {{ preset = \"{name}\" }}` into the vendor's section.{secret}\n",
            login.title
        );
        let usual: Vec<_> = preset.values(None).map(|(value, _)| value).collect();
        for (value, about) in preset
            .values(Some(name))
            .filter(|(it, _)| !usual.contains(it))
        {
            let _ = writeln!(
                page,
                "- The value `{value}` is the {}. Where to find it: {}.",
                about.title, about.find
            );
        }
        page.push('\n');
    }
    page.replace("\n\n\n", "\n\n")
}

fn models(preset: &Preset) -> String {
    let file: toml::Table = toml::from_str(preset.text).unwrap();
    let currency = |model: &toml::Table| match model.contains_key("rub_mtok") {
        true => "rub_mtok",
        false => "usdt_mtok",
    };
    let mut page = "**Models.** Prices are per million tokens; `web_search_call` is per search. A row without a model has prices of the model above it, which apply if the condition in this row is met.\n\n| model | context window | maximum output | condition | price |\n|---|---:|---:|---|---|\n".to_owned();
    for (name, ModelAbout { retires, .. }) in &preset.about.models {
        let model = file["model"][name].as_table().unwrap();
        let number = |field: &str| model.get(field).map_or("–".to_owned(), plain);
        let retires = retires.as_ref().map(|day| format!(" (until {day})"));
        let price = currency(model);
        let _ = writeln!(
            page,
            "| `{name}`{} | {} | {} | | {} |",
            retires.unwrap_or_default(),
            number("input_tokens_max"),
            number("output_tokens_max"),
            rates(&model[price], price)
        );
        let rules = model.get("price_rules").and_then(toml::Value::as_array);
        for rule in rules.into_iter().flatten() {
            let rule = rule.as_table().unwrap();
            let when = rule.iter().filter(|(field, _)| !field.ends_with("_mtok"));
            let when: Vec<_> = when
                .map(|(field, value)| format!("{field} {}", plain(value)))
                .collect();
            let _ = writeln!(
                page,
                "| | | | {} | {} |",
                when.join(", "),
                rates(&rule[price], price)
            );
        }
    }
    page.push('\n');
    page
}

fn rates(rates: &toml::Value, currency: &str) -> String {
    let unit = if currency == "rub_mtok" { "₽" } else { "$" };
    let rates = rates.as_table().unwrap().iter();
    let rates: Vec<_> = rates
        .map(|(class, rate)| format!("{class} {}", plain(rate)))
        .collect();
    format!("{unit}: {}", rates.join(", "))
}

fn plain(value: &toml::Value) -> String {
    match value {
        toml::Value::String(text) => text.clone(),
        toml::Value::Array(items) => items.iter().map(plain).collect::<Vec<_>>().join(" "),
        toml::Value::Integer(number) => number.to_string(),
        other => format!("{other:?}"),
    }
}

#[test]
fn every_preset_has_a_page_in_the_docs() {
    for preset in presets() {
        let (path, page) = (format!("{PAGES}{}.md", preset.name), page(preset));
        if std::env::var_os("SETTINGS_WRITE").is_some() {
            std::fs::create_dir_all(PAGES).unwrap();
            std::fs::write(&path, &page).unwrap();
        }
        let stored = std::fs::read_to_string(&path).unwrap_or_default();
        assert!(
            stored == page,
            "{path} is outdated. To update it, run SETTINGS_WRITE=1 cargo test --lib --all-features config::"
        );
    }
}
