//! `tollgate check`: a configuration's mistakes, all of them.

use std::{collections::BTreeSet, path::Path};

use serde_json::json;

use super::{
    failure::Failure,
    show::{self, counted},
};
use crate::config::{Config, ConfigError, ConfigErrors};

pub(super) fn check(path: &Path) -> Result<(), Failure> {
    let config = Config::load(path).map_err(|errors| mistakes(path, &errors))?;
    for warning in &config.warnings {
        eprintln!("{}: warning: {warning}", path.display());
    }
    let (models, vendors, ledger) = summary(&config);
    show::write(&format!(
        "ok: {}, {}, ledger {ledger}\n",
        counted(models as u64, "model"),
        counted(vendors as u64, "vendor")
    ))
}

pub(super) fn check_as_json(path: &Path) -> Result<(), Failure> {
    match Config::load(path) {
        Ok(config) => {
            let (models, vendors, ledger) = summary(&config);
            let report = json!({
                "ok": true, "models": models, "vendors": vendors, "ledger": ledger, "errors": [],
                "warnings": config.warnings.iter().map(as_json).collect::<Vec<_>>(),
            });
            show::write(&format!("{report:#}\n"))
        }
        Err(errors) => {
            let list: Vec<_> = errors.iter().map(as_json).collect();
            let report = json!({"ok": false, "errors": list});
            show::write(&format!("{report:#}\n"))?;
            Err(mistakes(path, &errors))
        }
    }
}

/// A mistake a line, each with its file.
pub(super) fn mistakes(path: &Path, errors: &ConfigErrors) -> Failure {
    let lines: Vec<String> = errors
        .iter()
        .map(|error| format!("{}: {error}", path.display()))
        .collect();
    Failure::Usage(lines.join("\n"))
}

fn as_json(error: &ConfigError) -> serde_json::Value {
    json!({"path": error.path, "line": error.line, "problem": error.problem})
}

/// How many models, how many vendors that they lead to, and which store.
fn summary(config: &Config) -> (usize, usize, &'static str) {
    let models = &config.live.models;
    let vendors: BTreeSet<&str> = models
        .iter()
        .flat_map(|model| &model.routes)
        .map(|route| route.vendor.name.as_ref())
        .collect();
    (models.len(), vendors.len(), config.ledger.url.kind())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mistake_names_the_file_once() {
        let file = "/no/such/tollgate.toml";
        let failure = check(Path::new(file)).unwrap_err();
        assert!(failure.text().starts_with(file), "{failure:?}");
        assert_eq!(failure.text().matches(file).count(), 1, "{failure:?}");
    }
}
