//! `tollgate check`: prints all mistakes in a configuration.

use std::{collections::BTreeSet, path::Path};

use serde_json::json;

use super::{
    failure::Failure,
    show::{self, counted},
};
use crate::{
    config::{Config, ConfigError, ConfigErrors, Preset},
    text::time::now_ms,
};

pub(super) fn check(path: &Path) -> Result<Config, Failure> {
    let config = Config::load(path).map_err(|errors| mistakes(path, &errors))?;
    for warning in &config.warnings {
        eprintln!("{}: warning: {warning}", path.display());
    }
    for preset in &config.presets {
        let (name, date) = (preset.name, &preset.about.date);
        let age = counted(preset.age_days(now_ms()), "day");
        eprintln!(
            "{}: preset {name:?} is {age} old: its facts and prices date from {date}",
            path.display()
        );
    }
    let (models, vendors, ledger) = summary(&config);
    show::write(&format!(
        "ok: {}, {}, ledger {ledger}\n",
        counted(models as u64, "model"),
        counted(vendors as u64, "vendor")
    ))?;
    Ok(config)
}

pub(super) fn check_as_json(path: &Path) -> Result<Config, Failure> {
    match Config::load(path) {
        Ok(config) => {
            let (models, vendors, ledger) = summary(&config);
            let report = json!({
                "ok": true, "models": models, "vendors": vendors, "ledger": ledger, "errors": [],
                "presets": config.presets.iter().map(|it| preset(it)).collect::<Vec<_>>(),
                "warnings": config.warnings.iter().map(as_json).collect::<Vec<_>>(),
            });
            show::write(&format!("{report:#}\n"))?;
            Ok(config)
        }
        Err(errors) => {
            let list: Vec<_> = errors.iter().map(as_json).collect();
            let report = json!({"ok": false, "errors": list});
            show::write(&format!("{report:#}\n"))?;
            Err(mistakes(path, &errors))
        }
    }
}

/// Returns a failure with one line per mistake, each with the file's name.
pub(super) fn mistakes(path: &Path, errors: &ConfigErrors) -> Failure {
    let lines = errors
        .iter()
        .map(|error| format!("{}: {error}", path.display()));
    Failure::Usage(lines.collect::<Vec<_>>().join("\n"))
}

fn preset(preset: &Preset) -> serde_json::Value {
    json!({"name": preset.name, "date": preset.about.date, "age_days": preset.age_days(now_ms())})
}

fn as_json(error: &ConfigError) -> serde_json::Value {
    json!({"path": error.path, "line": error.line, "problem": error.problem})
}

/// Returns how many models there are, how many vendors they are routed to, and which store is configured.
fn summary(config: &Config) -> (usize, usize, &'static str) {
    let models = &config.live.models;
    let routes = models.iter().flat_map(|model| &model.routes);
    let vendors: BTreeSet<&str> = routes.map(|route| route.vendor.name.as_ref()).collect();
    (models.len(), vendors.len(), config.ledger.url.kind())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn error_about_a_missing_file_names_the_file_once() {
        let file = "/no/such/tollgate.toml";
        let failure = check(Path::new(file)).unwrap_err();
        assert!(failure.text().starts_with(file), "{failure:?}");
        assert_eq!(failure.text().matches(file).count(), 1, "{failure:?}");
    }
}
