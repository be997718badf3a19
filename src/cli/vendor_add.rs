//! `tollgate vendor add`: writes a vendor and its models from a preset into a configuration file.

use std::{
    cell::RefCell,
    collections::BTreeSet,
    fmt::Write as _,
    fs,
    path::{Path, PathBuf, absolute},
};

use clap::Args;
use serde_json::{Value, json};

use super::{
    check::mistakes,
    failure::Failure,
    show::{self, counted},
};
use crate::{
    config::{Config, ConfigError, Preset, presets},
    net::replace::replace_file,
    text::{
        similar::hint,
        time::{now_ms, rfc3339},
    },
};

/// Options for the sections of a vendor and its models.
#[derive(Clone, Debug, Default, Args)]
pub(super) struct VendorArgs {
    /// Name of the vendor in the configuration; default: the preset's
    #[arg(long)]
    pub(super) name: Option<String>,
    /// Variable of the gateway's environment that holds the key; default: the preset's, like DEEPSEEK_API_KEY
    #[arg(long, value_name = "VAR", conflicts_with = "key_file")]
    pub(super) key_env: Option<String>,
    /// File that holds the key, readable by the gateway's user alone
    #[arg(long, value_name = "FILE")]
    pub(super) key_file: Option<PathBuf>,
    /// Base address instead of the preset's: a region's, or that of your own server
    #[arg(long, value_name = "URL")]
    pub(super) url: Option<String>,
    /// Certificate authorities to trust for this vendor instead of Mozilla's list, in PEM
    #[arg(long, value_name = "FILE")]
    pub(super) ca_file: Option<PathBuf>,
    /// Models, separated by commas; default: all of the preset. Of a preset without models: ID, or ID=NAME if the vendor
    /// has another name for it
    #[arg(long, value_delimiter = ',', value_name = "MODEL")]
    pub(super) models: Vec<String>,
    /// Price in USDT of a million tokens of input and of output, for models that the preset lacks
    #[arg(long, value_name = "INPUT,OUTPUT", value_parser = prices)]
    pub(super) usdt_mtok: Option<Prices>,
    /// Largest output of models that the preset lacks, in tokens
    #[arg(long, value_name = "TOKENS", default_value_t = OUTPUT_TOKENS_MAX)]
    pub(super) output_tokens_max: u64,
}

/// Models whose limit nobody stated get this ceiling: every vendor's chat models have it, and a call holds its price.
pub(super) const OUTPUT_TOKENS_MAX: u64 = 8192;

/// A price of input and a price of output, as written.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Prices {
    input: String,
    output: String,
}

/// Parses `INPUT,OUTPUT`. The configuration's check decides whether the numbers are prices.
pub(super) fn prices(text: &str) -> Result<Prices, String> {
    let is_number =
        |text: &str| !text.is_empty() && text.bytes().all(|it| it.is_ascii_digit() || it == b'.');
    match text.split_once(',').map(|(it, of)| (it.trim(), of.trim())) {
        Some((input, output)) if is_number(input) && is_number(output) => Ok(Prices {
            input: input.to_owned(),
            output: output.to_owned(),
        }),
        _ => {
            Err("write the price of input, a comma and the price of output, like 0.30,1.20".into())
        }
    }
}

/// Returns the preset with this name.
///
/// # Errors
/// If there is none.
pub(super) fn preset(name: &str) -> Result<&'static Preset, Failure> {
    Preset::named(name).ok_or_else(|| {
        let hint = hint(name, presets().iter().map(|it| it.name));
        Failure::Usage(format!(
            "{name:?} is not a preset{hint}; `tollgate preset list` lists them"
        ))
    })
}

/// The sections of a vendor and its models, and what their reader should know.
#[derive(Debug)]
pub(super) struct Sections {
    pub(super) text: String,
    /// The vendor's name.
    pub(super) name: String,
    /// Ids of the models that are written.
    pub(super) models: Vec<String>,
    /// Ids of the preset's models that the file has already.
    pub(super) present: Vec<String>,
}

impl Sections {
    /// Writes the sections. `taken` are the ids of models that the file has.
    ///
    /// # Errors
    /// If a model is neither of the preset nor priced.
    pub(super) fn new(
        preset: &'static Preset,
        args: &VendorArgs,
        taken: &BTreeSet<String>,
    ) -> Result<Self, Failure> {
        let name = args.name.as_deref().unwrap_or(preset.name);
        let mut text = format!("[[vendor]]\npreset = \"{}\"\n", preset.name);
        let mut field = |name: &str, value: &str| {
            let _ = writeln!(text, "{name} = {}", quoted(value));
        };
        if name != preset.name {
            field("name", name);
        }
        if let Some(url) = &args.url {
            field("url", url);
        }
        if let Some(file) = &args.ca_file {
            field("ca_file", &full(file)?);
        }
        if let Some(key) = key_reference(args)? {
            match preset.key_setting().as_deref().map(|it| it.split_once('.')) {
                Some(Some((table, name))) => {
                    let _ = writeln!(text, "{table} = {{ {name} = {} }}", quoted(&key));
                }
                _ => field("key", &key),
            }
        }
        let mut sections = Self {
            text,
            name: name.to_owned(),
            models: Vec::new(),
            present: Vec::new(),
        };
        let all: Vec<String> = offered(preset).map(str::to_owned).collect();
        let wanted = if args.models.is_empty() {
            &all
        } else {
            &args.models
        };
        if wanted.is_empty() {
            let title = &preset.about.title;
            return Err(Failure::Usage(format!(
                "the preset {:?} has no models: name yours and its price, like --models MODEL --usdt-mtok 0.30,1.20 \
                 (USDT per million tokens, by your contract with {title})",
                preset.name
            )));
        }
        for model in wanted {
            sections.model(preset, model.trim(), args, taken)?;
        }
        Ok(sections)
    }

    fn model(
        &mut self,
        preset: &Preset,
        wanted: &str,
        args: &VendorArgs,
        taken: &BTreeSet<String>,
    ) -> Result<(), Failure> {
        let (id, at_vendor) = wanted.split_once('=').unwrap_or((wanted, wanted));
        if taken.contains(id) {
            self.present.push(id.to_owned());
            return Ok(());
        }
        self.models.push(id.to_owned());
        if preset.about.models.contains_key(wanted) {
            let name = match Preset::of_model(wanted)[..] {
                [(only, _)] if only.name == preset.name => wanted.to_owned(),
                _ => format!("{}/{wanted}", preset.name),
            };
            let _ = write!(self.text, "\n[[model]]\npreset = {}\n", quoted(&name));
            return Ok(());
        }
        let Some(Prices { input, output }) = &args.usdt_mtok else {
            let models = preset.about.models.keys().map(String::as_str);
            return Err(Failure::Usage(format!(
                "the preset {:?} has no model {id:?}{}: add its price, like --usdt-mtok 0.30,1.20 (USDT per million tokens)",
                preset.name,
                hint(id, models)
            )));
        };
        let (vendor, family) = (quoted(&self.name), quoted(&preset.about.title));
        let _ = write!(
            self.text,
            "\n[[model]]\nid = {}\nfamily = {family}\n\
             # USDT per million tokens; cached input and cache writes are priced as input until you write their prices\n\
             usdt_mtok = {{ input = \"{input}\", cached_input = \"{input}\", output = \"{output}\", cache_write = \"{input}\" }}\n\
             output_tokens_max = {}\n{}\
             routes = [ {{ vendor = {vendor}, model = {}, cost_usdt_mtok = {{ input = \"{input}\", cached_input = \"{input}\", \
             output = \"{output}\", cache_write = \"{input}\" }} }} ]\n",
            quoted(id),
            args.output_tokens_max,
            preset.every_model_text(),
            quoted(at_vendor),
        );
        Ok(())
    }
}

/// Returns the preset's models that the vendor has not withdrawn.
fn offered(preset: &Preset) -> impl Iterator<Item = &str> {
    let today = rfc3339(now_ms());
    let models = preset.about.models.iter();
    models.filter_map(move |(name, about)| {
        let retires = about.retires.as_deref();
        retires
            .is_none_or(|day| *day > *today)
            .then_some(name.as_str())
    })
}

/// Returns the reference to the key that the configuration contains; `None`: the preset's own.
fn key_reference(args: &VendorArgs) -> Result<Option<String>, Failure> {
    if let Some(file) = &args.key_file {
        return Ok(Some(format!("file:{}", full(file)?)));
    }
    let variable = args.key_env.as_ref();
    Ok(variable.map(|name| format!("${{{name}}}")))
}

/// Returns the whole path, because the gateway may run in another folder.
pub(super) fn full(path: &Path) -> Result<String, Failure> {
    let path = absolute(path).map_err(|error| unusable(path, &error))?;
    let text = path.to_str().map(str::to_owned);
    text.ok_or_else(|| Failure::Usage(format!("{}: is not text in UTF-8", path.display())))
}

pub(super) fn unusable(path: &Path, error: &std::io::Error) -> Failure {
    Failure::Io(format!("{}: {error}", path.display()))
}

/// Returns a TOML string. JSON's escapes are a part of TOML's.
fn quoted(text: &str) -> String {
    Value::from(text).to_string()
}

/// Checks a configuration. Variables that this shell lacks get a made-up value, because the gateway may run with another
/// environment; returns their names.
///
/// # Errors
/// All mistakes, with the file's name.
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
/// If the name is taken, or the result would be invalid; the file is then unchanged.
pub(super) fn vendor_add(
    preset_name: &str,
    args: &VendorArgs,
    file: &Path,
    as_json: bool,
) -> Result<(), Failure> {
    let preset = preset(preset_name)?;
    let before = fs::read_to_string(file).map_err(|error| unusable(file, &error))?;
    let own = Taken::read(&before, file)?;
    let sections = Sections::new(preset, args, &own.models)?;
    let name = &sections.name;
    if own.vendors.contains(name) {
        return Err(Failure::Usage(format!(
            "{}: has a vendor {name:?} already; give this one another --name",
            file.display()
        )));
    }
    let text = format!("{}\n\n{}", before.trim_end(), sections.text);
    let (config, missing) = checked(&text, file)?;
    let is_new = |warning: &&ConfigError| warning.line > Some(before.trim_end().lines().count());
    for warning in config.warnings.iter().filter(is_new) {
        eprintln!("{}: warning: {warning}", file.display());
    }
    // A link stays a link.
    let place = fs::canonicalize(file).map_err(|error| unusable(file, &error))?;
    replace_file(&place, text.as_bytes()).map_err(|error| unusable(file, &error))?;
    if as_json {
        let written = json!({
            "vendor": name, "models": sections.models, "models_present": sections.present,
            "variables_missing": missing, "notes": preset.about.notes,
        });
        return show::write(&format!("{written:#}\n"));
    }
    let models = counted(sections.models.len() as u64, "model");
    let shown = file.display();
    let mut said = format!("{shown}: added vendor {name:?} and {models}\n");
    if !sections.present.is_empty() {
        let _ = writeln!(
            said,
            "already there: {}. A model without routes of its own is now routed to {name:?} too; to others add a route",
            sections.present.join(", ")
        );
    }
    said += &advice(preset, &missing);
    let _ = writeln!(
        said,
        "next: tollgate vendor test {name} --config {shown}   # two tiny calls, which the vendor bills; a running gateway \
         reads the file by itself"
    );
    show::write(&said)
}

/// Returns the preset's notes, and which variables the gateway needs.
pub(super) fn advice(preset: &Preset, missing: &BTreeSet<String>) -> String {
    let (title, source, date) = (
        &preset.about.title,
        &preset.about.source,
        &preset.about.date,
    );
    let mut text = match preset.about.models.is_empty() {
        true => String::new(),
        false => format!("prices are {title}'s of {date}, compare them: {source}\n"),
    };
    for note in &preset.about.notes {
        let _ = writeln!(text, "note: {note}");
    }
    for name in missing {
        let key = match (&preset.about.key_page, *name == preset.about.key_env) {
            (Some(page), true) => format!(", a key from {page}"),
            _ => String::new(),
        };
        let _ = writeln!(
            text,
            "set {name} where the gateway runs{key}: this shell has no such variable"
        );
    }
    text
}

/// The names that a file uses.
struct Taken {
    vendors: BTreeSet<String>,
    models: BTreeSet<String>,
}

impl Taken {
    fn read(text: &str, file: &Path) -> Result<Self, Failure> {
        let Ok(root) = toml::from_str::<toml::Table>(text) else {
            // The parser's own message may quote a secret; the check's does not.
            let mistake = checked(text, file).err();
            return Err(mistake
                .unwrap_or_else(|| Failure::Usage(format!("{}: is not TOML", file.display()))));
        };
        let names = |list: &str, name: &str| -> BTreeSet<String> {
            let tables = root.get(list).and_then(toml::Value::as_array);
            let names = tables.into_iter().flatten().filter_map(|table| {
                let text = |field| table.get(field).and_then(toml::Value::as_str);
                // The preset's name of a model may follow the vendor's.
                let of_preset = || {
                    let preset = text("preset")?;
                    let model = Preset::of_model(preset).first().map(|(_, model)| *model);
                    Some(model.unwrap_or(preset))
                };
                Some(text(name).or_else(of_preset)?.to_owned())
            });
            names.collect()
        };
        Ok(Self {
            vendors: names("vendor", "name"),
            models: names("model", "id"),
        })
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _};

    use tempfile::TempDir;

    use super::*;

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

    #[test]
    fn sections_are_appended_and_the_rest_is_kept() {
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
    fn key_goes_to_the_setting_of_the_login_and_models_get_the_presets_fields() {
        let args = VendorArgs {
            key_env: Some("SBER_KEY".into()),
            models: vec!["GigaChat-2".into(), "max=GigaChat-2-Max".into()],
            usdt_mtok: Some(prices("0.72, 0.72").unwrap()),
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
        assert_eq!(model.usdt_mtok.cached_input.to_string(), "0.72");
        assert!(
            model.routes[0].dialect.functions,
            "as the preset says of every model"
        );
    }

    #[test]
    fn refusals_leave_the_file_as_it_was() {
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
                "has a vendor \"deepseek\" already; give this one another --name",
            ),
            (
                "openai",
                named("deepseek"),
                "has a vendor \"deepseek\" already",
            ),
            ("opnai", args(), "did you mean openai?"),
            ("openai", of("gpt-5.4-minis"), "did you mean gpt-5.4-mini?"),
            (
                "gigachat",
                args(),
                "has no models: name yours and its price",
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
        for preset in presets() {
            let mut args = args();
            args.name = Some("another".into());
            if preset.about.models.is_empty() {
                args.models = vec!["a model".into()];
                args.usdt_mtok = Some(prices("1,2").unwrap());
            }
            let text = added(preset.name, &args).unwrap();
            assert!(text.contains("name = \"another\""), "{text}");
        }
    }
}
