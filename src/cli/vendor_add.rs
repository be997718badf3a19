//! `tollgate vendor add`: adds a vendor and its models from a preset to a configuration file.

use std::{cell::RefCell, collections::BTreeSet, fmt::Write as _, fs, path::Path};

use serde_json::json;

use super::{
    ask::ask_values,
    check::mistakes,
    failure::Failure,
    files::replace,
    show::{self, counted},
};
use crate::config::{
    Config, ConfigError, Preset,
    sections::{Sections, Taken, VendorArgs, preset},
};

/// Checks a configuration. The gateway may run with other environment variables than this shell. So a variable that
/// this shell lacks gets a made-up value, and its name is returned.
///
/// # Errors
/// If the configuration is invalid: all mistakes, each with the name of the file.
pub(super) fn checked(text: &str, file: &Path) -> Result<(Config, BTreeSet<String>), Failure> {
    let missing = RefCell::new(BTreeSet::new());
    let config = Config::parse(text, &|name| {
        std::env::var(name).ok().or_else(|| {
            missing.borrow_mut().insert(name.to_owned());
            Some(MADE_UP.to_owned())
        })
    });
    let config = config.map_err(|errors| mistakes(file, &errors))?;
    Ok((config, missing.into_inner()))
}

const MADE_UP: &str = "not-set-Zq7Kx2vW9mT4rB3L";

/// Adds a vendor to a configuration file.
///
/// # Errors
/// If the vendor's name is taken, or the resulting configuration would be invalid. The file is then unchanged.
pub(super) fn vendor_add(
    preset_name: &str,
    args: &VendorArgs,
    file: &Path,
    as_json: bool,
) -> Result<(), Failure> {
    let preset = preset(preset_name).map_err(Failure::Usage)?;
    let mut args = args.clone();
    ask_values(&mut args, preset)?;
    let before = fs::read_to_string(file).map_err(|error| Failure::of_file(file, &error))?;
    let own = Taken::read(&before).map_err(|errors| mistakes(file, &errors))?;
    let sections = Sections::new(preset, &args, &own.models).map_err(Failure::Usage)?;
    args.check_service_account(preset).map_err(Failure::Usage)?;
    let name = &sections.name;
    if own.vendors.contains(name) {
        return Err(Failure::Usage(format!(
            "{}: already has a vendor {name:?}; give the new vendor another name with --name",
            file.display()
        )));
    }
    let text = format!("{}\n\n{}", before.trim_end(), sections.text);
    let (config, missing) = checked(&text, file)?;
    let is_new = |warning: &&ConfigError| warning.line > Some(before.trim_end().lines().count());
    for warning in config.warnings.iter().filter(is_new) {
        eprintln!("{}: warning: {warning}", file.display());
    }
    replace(file, &text)?;
    let written = json!({
        "vendor": name, "models": sections.models, "models_present": sections.present,
        "variables_missing": missing, "notes": preset.about.notes,
    });
    show::print(as_json, &written, |_| {
        report(preset, &sections, file, &missing)
    })
}

/// Returns a text about what was added, and what to do next.
fn report(preset: &Preset, sections: &Sections, file: &Path, missing: &BTreeSet<String>) -> String {
    let name = &sections.name;
    let models = counted(sections.models.len() as u64, "model");
    let shown = file.display();
    let mut reported = format!("{shown}: added vendor {name:?} and {models}\n");
    if let [model, ..] = &sections.present[..] {
        let routes = match preset.about.qualified {
            true => format!(
                "To sell these models from {name:?} too, add routes like {{ vendor = {name:?}, preset = \"{}/{model}\" }}",
                preset.name
            ),
            false => format!(
                "Those without their own routes are now routed to {name:?} too; add a route to each of the others"
            ),
        };
        let _ = writeln!(
            reported,
            "these models were in the file already: {}. {routes}",
            sections.present.join(", ")
        );
    }
    reported += &advice(preset, missing);
    let _ = writeln!(
        reported,
        "next: tollgate vendor test {name} --config {shown}   # two tiny calls, which the vendor bills; a running gateway \
         reads the file by itself"
    );
    reported
}

/// Returns the preset's notes, and the names of variables that must still be set for the gateway.
pub(super) fn advice(preset: &Preset, missing: &BTreeSet<String>) -> String {
    let about = &preset.about;
    let mut text = match about.models.is_empty() {
        true => String::new(),
        false => format!(
            "the prices are those of {} on {}; compare them with {}\n",
            about.title, about.date, about.source
        ),
    };
    for note in &about.notes {
        let _ = writeln!(text, "note: {note}");
    }
    for name in missing {
        let _ = match (&preset.about.key_page, *name == preset.about.key_env) {
            (Some(page), true) => writeln!(
                text,
                "set the variable {name} where the gateway runs, to a key from {page}: this shell lacks the variable"
            ),
            _ => writeln!(
                text,
                "set the variable {name} where the gateway runs: this shell lacks the variable"
            ),
        };
    }
    text
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _};

    use tempfile::{NamedTempFile, TempDir};
    use tollgate_layers::price::Currency;

    use super::*;
    use crate::config::{
        presets,
        sections::{KEY_FILE, OUTPUT_TOKENS_MAX, prices},
    };

    const FILE: &str = "# ours\n[admin]\nkey = \"${TOLLGATE_NO_ADMIN_KEY}\"   # kept\n[[rate.source]]\nfixed = \"90.50\"\n\
                        [tariff]\nsell_rate_multiplier = \"1.15\"\n\n[[vendor]]\npreset = \"deepseek\"\n\
                        [[model]]\npreset = \"deepseek-flash\"\n\n# the end\n";

    fn added(preset: &str, args: &VendorArgs) -> Result<String, (String, String)> {
        let dir = TempDir::new().unwrap();
        let file = dir.path().join("tollgate.toml");
        fs::write(&file, FILE).unwrap();
        fs::set_permissions(&file, fs::Permissions::from_mode(0o640)).unwrap();
        let done = vendor_add(preset, args, &file, true);
        let text = fs::read_to_string(&file).unwrap();
        assert_eq!(fs::metadata(&file).unwrap().mode() & 0o777, 0o640);
        assert_eq!(
            fs::read_dir(dir.path()).unwrap().count(),
            1,
            "no file is left beside it"
        );
        match done {
            Ok(()) => Ok(text),
            Err(failure) => Err((failure.text().to_owned(), text)),
        }
    }

    fn args() -> VendorArgs {
        VendorArgs {
            output_tokens_max: OUTPUT_TOKENS_MAX,
            ..VendorArgs::default()
        }
    }

    /// Returns a file that contains the key of a service account.
    fn service_account() -> NamedTempFile {
        let key = include_str!("../logins/test_key.pem");
        let account = json!({
            "private_key_id": "1", "private_key": key, "client_email": "gate@p.iam.gserviceaccount.com",
            "token_uri": "https://oauth2.googleapis.com/token",
        });
        let file = NamedTempFile::new().unwrap();
        fs::write(&file, account.to_string()).unwrap();
        file
    }

    #[test]
    fn cloud_vendor_is_added_with_its_preset_values_and_the_chosen_login() {
        let pair = |name: &str, value: &str| (name.to_owned(), value.to_owned());
        let args = VendorArgs {
            login: Some("entra".into()),
            values: vec![
                pair("resource", "acme"),
                pair("tenant", "t-1"),
                pair("client", "c-1"),
            ],
            key_env: Some("OUR_SECRET".into()),
            models: vec!["gpt-5.4".into()],
            ..args()
        };
        let text = added("azure", &args).unwrap();
        let rest = text.strip_prefix(FILE.trim_end()).unwrap();
        assert_eq!(
            rest,
            "\n\n[[vendor]]\npreset = \"azure\"\nvalues = { resource = \"acme\", tenant = \"t-1\", client = \"c-1\" }\n\
             login = { preset = \"entra\", client_secret = \"${OUR_SECRET}\" }\n\n[[model]]\npreset = \"azure/gpt-5.4\"\n"
        );
        let (failure, _) = added("bedrock", &self::args()).unwrap_err();
        assert_eq!(
            failure,
            "the AWS region is missing: add --value region=…, like region=us-east-1. In the Amazon Bedrock console: \
             the region at the top of the page. The region must offer the models that you sell"
        );
        let args = VendorArgs {
            values: vec![pair("project", "p-1")],
            ..self::args()
        };
        let (failure, _) = added("vertex", &args).unwrap_err();
        assert!(failure.contains("--key-file"), "{failure}");
        let args = VendorArgs {
            login: Some("role".into()),
            values: vec![pair("region", "us-east-1")],
            key_env: Some("OUR_SECRET".into()),
            ..self::args()
        };
        let (failure, _) = added("bedrock", &args).unwrap_err();
        assert!(failure.contains("\"role\" uses no key"), "{failure}");
    }

    #[test]
    fn new_sections_are_appended_and_the_other_text_is_kept() {
        let text = added("anthropic", &args()).unwrap();
        let rest = text.strip_prefix(FILE.trim_end()).expect("what was there");
        assert!(
            rest.starts_with("\n\n[[vendor]]\npreset = \"anthropic\"\n\n[[model]]\n"),
            "{rest}"
        );
        assert!(
            rest.contains("[[model]]\npreset = \"claude-haiku-4-5\"\n"),
            "{rest}"
        );
        assert!(
            !rest.contains("key ="),
            "the preset's variable applies: {rest}"
        );
    }

    #[test]
    fn second_vendor_of_a_preset_has_its_own_name_and_key_and_shares_models() {
        let args = VendorArgs {
            name: Some("deepseek-2".into()),
            key_env: Some("OTHER_KEY".into()),
            url: Some("https://example.com/v1".into()),
            models: vec!["deepseek-flash".into(), "deepseek-v4-pro".into()],
            ..args()
        };
        let text = added("deepseek", &args).unwrap();
        let rest = text.strip_prefix(FILE.trim_end()).unwrap();
        assert_eq!(
            rest,
            "\n\n[[vendor]]\npreset = \"deepseek\"\nname = \"deepseek-2\"\nurl = \"https://example.com/v1\"\nkey = \"${OTHER_KEY}\"\n\
             \n[[model]]\npreset = \"deepseek-v4-pro\"\n"
        );
        let (config, missing) = checked(&text, Path::new("f")).unwrap();
        assert_eq!(
            config.live.models[0].routes.len(),
            2,
            "the first model has both vendors"
        );
        assert!(missing.contains("OTHER_KEY") && missing.contains("TOLLGATE_NO_ADMIN_KEY"));
    }

    #[test]
    fn models_get_the_presets_fields_and_the_key_is_written_to_the_setting_of_the_login() {
        let args = VendorArgs {
            key_env: Some("SBER_KEY".into()),
            models: vec!["GigaChat-2".into(), "max=GigaChat-2-Max".into()],
            rub_mtok: Some(prices("70, 72").unwrap()),
            ..args()
        };
        let text = added("gigachat", &args).unwrap();
        assert!(
            text.contains("login = { basic = \"${SBER_KEY}\" }\n"),
            "{text}"
        );
        let (config, _) = checked(&text, Path::new("f")).unwrap();
        let model = &config.live.models[2];
        assert_eq!(
            (&*model.id, &*model.routes[0].model),
            ("max", "GigaChat-2-Max")
        );
        let base = &model.base;
        assert_eq!(
            (base.cached_input.to_string(), base.currency),
            ("70".into(), Currency::Rub)
        );
        // The other model has the price of the preset, which is the vendor's price.
        assert_eq!(config.live.models[1].base.input.to_string(), "65");
        assert!(
            model.routes[0].dialect.functions,
            "as the preset says of every model"
        );
    }

    #[test]
    fn refused_vendor_add_command_does_not_change_the_file() {
        let named = |name: &str| VendorArgs {
            name: Some(name.into()),
            ..args()
        };
        let of = |model: &str| VendorArgs {
            models: vec![model.into()],
            ..args()
        };
        let file = VendorArgs {
            key_file: Some("/no/such/key".into()),
            ..args()
        };
        for (preset, args, says) in [
            (
                "deepseek",
                args(),
                "already has a vendor \"deepseek\"; give the new vendor another name with --name",
            ),
            (
                "openai",
                named("deepseek"),
                "already has a vendor \"deepseek\"",
            ),
            ("opnai", args(), "did you mean openai?"),
            ("openai", of("gpt-5.4-minis"), "did you mean gpt-5.4-mini?"),
            (
                "vllm",
                args(),
                "has no models: give your model and its price",
            ),
            (
                "yandexgpt",
                args(),
                "the Yandex Cloud folder ID is missing: add --value folder=…",
            ),
            ("openai", file, "vendor[1].key: cannot read /no/such/key"),
        ] {
            let (failure, text) = added(preset, &args).unwrap_err();
            assert!(failure.contains(says), "{failure}");
            assert_eq!(text, FILE);
        }
    }

    #[test]
    fn every_preset_can_be_added() {
        let account = service_account();
        for preset in presets() {
            let mut args = args();
            args.name = Some("another".into());
            let values = preset.values(None);
            args.values = values
                .map(|(name, about)| (name.to_owned(), about.example.clone()))
                .collect();
            if preset.key_setting(None).as_deref() == Some(KEY_FILE) {
                args.key_file = Some(account.path().to_owned());
            }
            if preset.about.models.is_empty() {
                args.models = vec!["a model".into()];
                args.usdt_mtok = Some(prices("1,2").unwrap());
            }
            let text = added(preset.name, &args).unwrap();
            assert!(text.contains("name = \"another\""), "{text}");
        }
    }
}
