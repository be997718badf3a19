//! Writes the sections of a vendor and its models from a preset: for `tollgate vendor add`, `init` and the operators' API.

use std::{
    collections::BTreeSet,
    fmt::Write as _,
    path::{Path, PathBuf, absolute},
};

use clap::Args;
use serde_json::Value;

use super::{
    document::Document,
    error::{ConfigErrors, Errors},
    presets::{Preset, ValueAbout, presets},
    price_diff::file::{string, tables},
};
use crate::text::{
    similar::hint,
    time::{now_ms, rfc3339},
};

/// Options for the sections of a vendor and its models.
#[derive(Clone, Debug, Default, Args)]
pub(crate) struct VendorArgs {
    /// Name of the vendor in the configuration; default: the preset's
    #[arg(long)]
    pub(crate) name: Option<String>,
    /// Variable of the gateway's environment that holds the key; default: the preset's, like DEEPSEEK_API_KEY
    #[arg(long, value_name = "VAR", conflicts_with = "key_file")]
    pub(crate) key_env: Option<String>,
    /// File that holds the key, readable by the gateway's user alone
    #[arg(long, value_name = "FILE")]
    pub(crate) key_file: Option<PathBuf>,
    /// Another login of the preset, like entra: `tollgate preset show azure`
    #[arg(long)]
    pub(crate) login: Option<String>,
    /// Value that the preset needs, like resource=acme-eastus2; may be repeated
    #[arg(long = "value", value_name = "NAME=VALUE", value_parser = named_value)]
    pub(crate) values: Vec<(String, String)>,
    /// Base address instead of the preset's: a region's, or that of your own server
    #[arg(long, value_name = "URL")]
    pub(crate) url: Option<String>,
    /// Certificate authorities to trust for this vendor instead of Mozilla's list, in PEM
    #[arg(long, value_name = "FILE")]
    pub(crate) ca_file: Option<PathBuf>,
    /// Models, separated by commas; default: all of the preset. Of a preset without models: ID, or ID=NAME if the vendor
    /// has another name for it
    #[arg(long, value_delimiter = ',', value_name = "MODEL")]
    pub(crate) models: Vec<String>,
    /// Price in USDT of a million tokens of input and of output, for models that the preset lacks
    #[arg(long, value_name = "INPUT,OUTPUT", value_parser = prices, conflicts_with = "rub_mtok")]
    pub(crate) usdt_mtok: Option<Prices>,
    /// Price in rubles instead, which does not follow the rate of USDT
    #[arg(long, value_name = "INPUT,OUTPUT", value_parser = prices)]
    pub(crate) rub_mtok: Option<Prices>,
    /// Largest output of models that the preset lacks, in tokens
    #[arg(long, value_name = "TOKENS", default_value_t = OUTPUT_TOKENS_MAX)]
    pub(crate) output_tokens_max: u64,
}

/// Models whose limit nobody stated get this ceiling: every vendor's chat models have it, and a call holds its price.
pub(crate) const OUTPUT_TOKENS_MAX: u64 = 8192;

/// A price of input and a price of output, as written.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Prices {
    input: String,
    output: String,
}

/// Parses `INPUT,OUTPUT`. The configuration's check decides whether the numbers are prices.
pub(crate) fn prices(text: &str) -> Result<Prices, String> {
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

/// Parses `NAME=VALUE`. The configuration's check decides whether the preset has such a value.
fn named_value(text: &str) -> Result<(String, String), String> {
    let (name, value) = text
        .split_once('=')
        .ok_or("write a name, = and the value, like resource=acme-eastus2")?;
    Ok((name.trim().to_owned(), value.trim().to_owned()))
}

impl VendorArgs {
    /// Returns the values that the preset needs and these options lack, by name.
    pub(crate) fn missing<'a>(
        &'a self,
        preset: &'a Preset,
    ) -> impl Iterator<Item = (&'a str, &'a ValueAbout)> {
        let values = preset.values(self.login.as_deref());
        values.filter(|(name, _)| self.values.iter().all(|(given, _)| given != name))
    }

    /// Returns the fields of the vendor's section that name its login, its values and its key.
    fn login_text(&self, preset: &Preset) -> Result<String, String> {
        let login = self.login.as_deref();
        if let Some(name) = login
            && !preset.about.logins.contains_key(name)
        {
            let logins = preset.about.logins.keys().map(String::as_str);
            return Err(format!(
                "the preset {:?} has no login {name:?}{}; `tollgate preset show {0}` has its logins",
                preset.name,
                hint(name, logins)
            ));
        }
        if let Some((name, about)) = self.missing(preset).next() {
            return Err(format!(
                "the {} is missing: add --value {name}=…, like {name}={}. {}",
                about.title, about.example, about.find
            ));
        }
        let setting = preset.key_setting(login);
        if setting.as_deref() == Some(KEY_FILE) && self.key_file.is_none() {
            let variable = self.key_env.as_deref().or(preset.key_env(login));
            if variable.is_none_or(|name| std::env::var_os(name).is_none()) {
                let page = preset.about.key_page.as_deref().unwrap_or_default();
                return Err(format!(
                    "the key of the service account is missing: give its JSON file with --key-file; it is created at {page}"
                ));
            }
        }
        let mut text = String::new();
        if !self.values.is_empty() {
            let values = self.values.iter();
            let values = values.map(|(name, value)| format!("{name} = {}", quoted(value)));
            let values = values.collect::<Vec<_>>().join(", ");
            let _ = writeln!(text, "values = {{ {values} }}");
        }
        let key = key_reference(self)?;
        let mut fields = Vec::from_iter(login.map(|name| format!("preset = {}", quoted(name))));
        match (key, setting.as_deref()) {
            (None, _) | (_, None) => {}
            (Some(key), Some(setting)) => match setting.split_once('.') {
                Some((_, field)) => fields.push(format!("{field} = {}", quoted(&key))),
                None => {
                    let _ = writeln!(text, "key = {}", quoted(&key));
                }
            },
        }
        if !fields.is_empty() {
            let _ = writeln!(text, "login = {{ {} }}", fields.join(", "));
        }
        Ok(text)
    }
}

/// The setting of a key that is a file with several fields, not a line.
pub(crate) const KEY_FILE: &str = "login.key_file";

/// Returns the preset with this name.
///
/// # Errors
/// If there is none.
pub(crate) fn preset(name: &str) -> Result<&'static Preset, String> {
    Preset::named(name).ok_or_else(|| {
        let hint = hint(name, presets().iter().map(|it| it.name));
        format!("{name:?} is not a preset{hint}; `tollgate preset list` lists them")
    })
}

/// The sections of a vendor and its models, and what their reader should know.
#[derive(Debug)]
pub(crate) struct Sections {
    pub(crate) text: String,
    /// The vendor's name.
    pub(crate) name: String,
    /// Ids of the models that are written.
    pub(crate) models: Vec<String>,
    /// Ids of the preset's models that the file has already.
    pub(crate) present: Vec<String>,
}

impl Sections {
    /// Writes the sections. `taken` are the ids of models that the file has.
    ///
    /// # Errors
    /// If a model is neither of the preset nor priced.
    pub(crate) fn new(
        preset: &'static Preset,
        args: &VendorArgs,
        taken: &BTreeSet<String>,
    ) -> Result<Self, String> {
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
        text += &args.login_text(preset)?;
        let mut sections = Self {
            text,
            name: name.to_owned(),
            models: Vec::new(),
            present: Vec::new(),
        };
        sections.add_models(preset, args, taken)?;
        Ok(sections)
    }

    /// Writes only sections of models, for the vendor `name` that the file has.
    ///
    /// # Errors
    /// If a model is neither of the preset nor priced.
    pub(crate) fn of_models(
        preset: &'static Preset,
        name: &str,
        args: &VendorArgs,
        taken: &BTreeSet<String>,
    ) -> Result<Self, String> {
        let mut sections = Self {
            text: String::new(),
            name: name.to_owned(),
            models: Vec::new(),
            present: Vec::new(),
        };
        sections.add_models(preset, args, taken)?;
        Ok(sections)
    }

    fn add_models(
        &mut self,
        preset: &'static Preset,
        args: &VendorArgs,
        taken: &BTreeSet<String>,
    ) -> Result<(), String> {
        let all: Vec<String> = offered(preset).map(str::to_owned).collect();
        let wanted = if args.models.is_empty() {
            &all
        } else {
            &args.models
        };
        if wanted.is_empty() {
            let title = &preset.about.title;
            return Err(format!(
                "the preset {:?} has no models: name yours and its price, like --models MODEL --usdt-mtok 0.30,1.20 \
                 (USDT per million tokens, by your contract with {title})",
                preset.name
            ));
        }
        for model in wanted {
            self.model(preset, model.trim(), args, taken)?;
        }
        Ok(())
    }

    fn model(
        &mut self,
        preset: &Preset,
        wanted: &str,
        args: &VendorArgs,
        taken: &BTreeSet<String>,
    ) -> Result<(), String> {
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
        let (table, currency, given) = match &args.rub_mtok {
            Some(prices) => ("rub_mtok", "Rubles", Some(prices)),
            None => ("usdt_mtok", "USDT", args.usdt_mtok.as_ref()),
        };
        let Some(Prices { input, output }) = given else {
            let models = preset.about.models.keys().map(String::as_str);
            return Err(format!(
                "the preset {:?} has no model {id:?}{}: add its price, like --usdt-mtok 0.30,1.20 (USDT per million tokens) or --rub-mtok",
                preset.name,
                hint(id, models)
            ));
        };
        let (vendor, family) = (quoted(&self.name), quoted(&preset.about.title));
        let _ = write!(
            self.text,
            "\n[[model]]\nid = {}\nfamily = {family}\n\
             # {currency} per million tokens; cached input and cache writes are priced as input until you write their prices\n\
             {table} = {{ input = \"{input}\", cached_input = \"{input}\", output = \"{output}\", cache_write = \"{input}\" }}\n\
             output_tokens_max = {}\n{}\
             routes = [ {{ vendor = {vendor}, model = {}, cost_{table} = {{ input = \"{input}\", cached_input = \"{input}\", \
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
fn key_reference(args: &VendorArgs) -> Result<Option<String>, String> {
    if let Some(file) = &args.key_file {
        return Ok(Some(format!("file:{}", full(file)?)));
    }
    let variable = args.key_env.as_ref();
    Ok(variable.map(|name| format!("${{{name}}}")))
}

/// Returns the whole path, because the gateway may run in another folder.
pub(crate) fn full(path: &Path) -> Result<String, String> {
    let path = absolute(path).map_err(|error| format!("{}: {error}", path.display()))?;
    let text = path.to_str().map(str::to_owned);
    text.ok_or_else(|| format!("{}: is not text in UTF-8", path.display()))
}

/// Returns a TOML string. JSON's escapes are a part of TOML's.
fn quoted(text: &str) -> String {
    Value::from(text).to_string()
}

/// The names that a file uses, those of its presets included.
pub(crate) struct Taken {
    pub(crate) vendors: BTreeSet<String>,
    pub(crate) models: BTreeSet<String>,
}

impl Taken {
    /// Reads the names from a configuration's text.
    ///
    /// # Errors
    /// If the text is not TOML.
    pub(crate) fn read(text: &str) -> Result<Self, ConfigErrors> {
        let mut errors = Errors::default();
        let Some(document) = Document::parse(text, &mut errors) else {
            return Err(errors.finish(|_| None));
        };
        let names = |list: &str, name: &str| {
            let tables = tables(document.merged(), list).into_iter();
            let names = tables.filter_map(|table| string(table, name).map(str::to_owned));
            names.collect()
        };
        Ok(Self {
            vendors: names("vendor", "name"),
            models: names("model", "id"),
        })
    }
}
