//! `tollgate preset`: prints the vendors and models that the binary contains.

use clap::Subcommand;
use serde_json::{Value, json};

use super::{
    failure::Failure,
    show::{self, Cell, table},
};
use crate::{
    config::{Preset, presets},
    text::{similar::hint, time::now_ms},
};

#[derive(Debug, Subcommand)]
pub(super) enum PresetCommand {
    /// List the vendors that have presets, with the date of their prices and the number of their models
    #[command(after_help = "Example:\n  tollgate preset list --json | jq '.presets[].models[]'")]
    List {
        /// Print the result as JSON
        #[arg(long)]
        json: bool,
    },
    /// Print the settings and prices of a vendor or of a model
    ///
    /// The output is a part of a configuration, from which you can copy the fields that you want to change.
    #[command(
        after_help = "Examples:\n  tollgate preset show deepseek\n  tollgate preset show deepseek-flash"
    )]
    Show {
        /// The preset's name, as in vendor.preset or model.preset
        name: String,
    },
}

const PRESET: &[Cell] = &[
    Cell::text("preset", "/name"),
    Cell::text("vendor", "/title"),
    Cell::number("models", "/count"),
    Cell::text("date", "/date"),
    Cell::text("key", "/key_env"),
    Cell::text("source", "/source"),
];

pub(super) fn preset(command: &PresetCommand) -> Result<(), Failure> {
    match command {
        PresetCommand::List { json: as_json } => {
            let rows: Vec<_> = presets().iter().map(row).collect();
            show::print(*as_json, &json!({"presets": rows}), |_| {
                table(PRESET, &rows)
            })
        }
        PresetCommand::Show { name } => show::write(&text(name)?),
    }
}

fn row(preset: &Preset) -> Value {
    let about = &preset.about;
    json!({
        "name": preset.name, "title": about.title, "date": about.date, "age_days": preset.age_days(now_ms()),
        "source": about.source, "key_env": about.key_env, "key_page": about.key_page, "count": about.models.len(),
        "models": about.models.keys().collect::<Vec<_>>(),
    })
}

fn text(name: &str) -> Result<String, Failure> {
    if let Some(preset) = Preset::named(name) {
        return Ok(preset.text.to_owned());
    }
    let texts = Preset::of_model(name)
        .into_iter()
        .filter_map(|(preset, model)| {
            let (text, date) = (preset.model_text(model)?, &preset.about.date);
            Some(format!("# {}, {date}\n{text}\n", preset.name))
        });
    let texts: Vec<_> = texts.collect();
    if texts.is_empty() {
        let models = presets().iter().flat_map(|it| it.about.models.keys());
        let known = presets().iter().map(|it| it.name);
        let hint = hint(name, known.chain(models.map(String::as_str)));
        let problem =
            format!("{name:?} is not a preset{hint}; tollgate preset list lists the vendors");
        return Err(Failure::Usage(problem));
    }
    Ok(texts.join("\n"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn preset_is_found_by_its_own_name_or_by_a_model() {
        assert!(text("openai").unwrap().contains("[vendor]"));
        let model = text("gpt-5.4-mini").unwrap();
        assert!(
            model.starts_with("# openai, 20") && model.contains("usdt_mtok"),
            "{model}"
        );
        assert!(!model.contains("gpt-5.4-nano"), "{model}");
        let failure = text("claude-haiku-4-6").unwrap_err();
        assert!(
            failure.text().contains("did you mean claude-haiku-4-5?"),
            "{failure:?}"
        );
    }

    #[test]
    fn list_of_presets_shows_their_dates_and_ages() {
        for preset in presets() {
            let row = row(preset);
            assert!(row["age_days"].is_u64() && row["date"] == preset.about.date.as_str());
        }
    }
}
