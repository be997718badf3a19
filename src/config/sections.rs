//! Writes the sections of a vendor and its models from a preset. `tollgate vendor add`, `tollgate init` and the
//! operators' API use it.

use std::{
    collections::BTreeSet,
    fmt::Write as _,
    path::{Path, PathBuf, absolute},
};

use clap::Args;
use serde_json::Value;

use super::{
    document::Document,
    error::ConfigErrors,
    presets::{Preset, ValueAbout, presets},
    price_diff::file::{string, tables},
};
use crate::text::{
    similar::hint,
    time::{now_ms, rfc3339},
};

/// Options that decide what the sections of a vendor and its models contain.
#[derive(Clone, Debug, Default, Args)]
pub(crate) struct VendorArgs {
    /// Name of the vendor in the configuration (default: the name of the preset)
    #[arg(long)]
    pub(crate) name: Option<String>,
    /// Environment variable of the gateway with the key (default: the preset's, for example DEEPSEEK_API_KEY)
    #[arg(long, value_name = "VAR", conflicts_with = "key_file")]
    pub(crate) key_env: Option<String>,
    /// File with the key, which only the gateway's user can read
    #[arg(long, value_name = "FILE")]
    pub(crate) key_file: Option<PathBuf>,
    /// Alternative login of the preset, for example entra (`tollgate preset show azure` lists the logins)
    #[arg(long)]
    pub(crate) login: Option<String>,
    /// Value for a placeholder of the preset, for example resource=acme-eastus2; may be repeated
    #[arg(long = "value", value_name = "NAME=VALUE", value_parser = named_value)]
    pub(crate) values: Vec<(String, String)>,
    /// Base URL that replaces the preset's, for example of another region or of your own server
    #[arg(long, value_name = "URL")]
    pub(crate) url: Option<String>,
    /// PEM file with the certificate authorities to trust for this vendor instead of Mozilla's list
    #[arg(long, value_name = "FILE")]
    pub(crate) ca_file: Option<PathBuf>,
    /// Models, separated by commas (default: all models of the preset). For a model that the preset does not contain:
    /// ID, or ID=NAME if the vendor has another name for it
    #[arg(long, value_delimiter = ',', value_name = "MODEL")]
    pub(crate) models: Vec<String>,
    /// Input and output price in USDT per million tokens, for models that the preset does not contain
    #[arg(long, value_name = "INPUT,OUTPUT", value_parser = prices, conflicts_with = "rub_mtok")]
    pub(crate) usdt_mtok: Option<Prices>,
    /// Input and output price in rubles per million tokens, instead of --usdt-mtok; prices in rubles do not depend on
    /// the exchange rate
    #[arg(long, value_name = "INPUT,OUTPUT", value_parser = prices)]
    pub(crate) rub_mtok: Option<Prices>,
    /// Maximum output in tokens of models that the preset does not contain
    #[arg(long, value_name = "TOKENS", default_value_t = OUTPUT_TOKENS_MAX)]
    pub(crate) output_tokens_max: u64,
}

/// Output limit, in tokens, of a model for which no limit is given. The chat models of every vendor support it. The
/// hold of a call that sets no limit covers this many output tokens.
pub(crate) const OUTPUT_TOKENS_MAX: u64 = 8192;

/// An input price and an output price, as the operator wrote them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Prices {
    input: String,
    output: String,
}

/// Parses `INPUT,OUTPUT`. The check of the configuration decides whether the numbers are valid prices.
pub(crate) fn prices(text: &str) -> Result<Prices, String> {
    let is_number =
        |text: &str| !text.is_empty() && text.bytes().all(|it| it.is_ascii_digit() || it == b'.');
    match text.split_once(',').map(|(it, of)| (it.trim(), of.trim())) {
        Some((input, output)) if is_number(input) && is_number(output) => Ok(Prices {
            input: input.to_owned(),
            output: output.to_owned(),
        }),
        _ => Err(
            "must be INPUT,OUTPUT: the input price, a comma and the output price, like 0.30,1.20"
                .into(),
        ),
    }
}

/// Parses `NAME=VALUE`. The check of the configuration decides whether the preset has this placeholder.
fn named_value(text: &str) -> Result<(String, String), String> {
    let parts = text.split_once('=');
    let (name, value) = parts.ok_or("must be NAME=VALUE, like resource=acme-eastus2")?;
    Ok((name.trim().to_owned(), value.trim().to_owned()))
}

impl VendorArgs {
    /// Returns the values that the preset needs and that these options do not give, by name.
    pub(crate) fn missing<'a>(
        &'a self,
        preset: &'a Preset,
    ) -> impl Iterator<Item = (&'a str, &'a ValueAbout)> {
        let values = preset.values(self.login.as_deref());
        values.filter(|(name, _)| self.values.iter().all(|(given, _)| given != name))
    }

    /// Checks that the key file of a service account is given if the preset's login needs one.
    ///
    /// # Errors
    /// If neither an option nor the environment of this process gives the key file.
    pub(crate) fn check_service_account(&self, preset: &Preset) -> Result<(), String> {
        let login = self.login.as_deref();
        let needs_file = preset.key_setting(login).as_deref() == Some(KEY_FILE);
        let variable = self.key_env.as_deref().or(preset.key_env(login));
        let is_set = variable.is_some_and(|name| std::env::var_os(name).is_some());
        if !needs_file || self.key_file.is_some() || is_set {
            return Ok(());
        }
        let page = preset.about.key_page.as_deref().unwrap_or_default();
        Err(format!(
            "the service account's key is missing: create its JSON file at {page}, and give it with --key-file"
        ))
    }

    /// Returns the TOML of the vendor's values, login and key.
    fn login_text(&self, preset: &Preset) -> Result<String, String> {
        let login = self.login.as_deref();
        if let Some(name) = login
            && !preset.about.logins.contains_key(name)
        {
            let logins = preset.about.logins.keys().map(String::as_str);
            return Err(format!(
                "the preset {:?} has no login {name:?}{}; `tollgate preset show {0}` lists the logins",
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
        let mut text = String::new();
        if !self.values.is_empty() {
            let values = self.values.iter();
            let values = values.map(|(name, value)| format!("{name} = {}", quoted(value)));
            let values = values.collect::<Vec<_>>().join(", ");
            text += &format!("values = {{ {values} }}\n");
        }
        let key = key_reference(self)?;
        let mut fields = Vec::from_iter(login.map(|name| format!("preset = {}", quoted(name))));
        if let Some(key) = key.map(|key| quoted(&key)) {
            let Some(setting) = setting else {
                let login = login.unwrap_or_default();
                return Err(format!(
                    "the login {login:?} uses no key: omit the options for the key"
                ));
            };
            match setting.split_once('.') {
                Some((_, field)) => fields.push(format!("{field} = {key}")),
                None => text += &format!("key = {key}\n"),
            }
        }
        if !fields.is_empty() {
            text += &format!("login = {{ {} }}\n", fields.join(", "));
        }
        Ok(text)
    }
}

/// The setting whose secret is a JSON file with several fields, not a single line.
pub(crate) const KEY_FILE: &str = "login.key_file";

/// Returns the preset with this name.
///
/// # Errors
/// If there is no preset with this name. The error message suggests a similar name.
pub(crate) fn preset(name: &str) -> Result<&'static Preset, String> {
    Preset::named(name).ok_or_else(|| {
        let hint = hint(name, presets().iter().map(|it| it.name));
        format!("{name:?} is not a preset{hint}; `tollgate preset list` lists the valid names")
    })
}

/// The written sections of a vendor and its models, with the names in them.
#[derive(Debug)]
pub(crate) struct Sections {
    pub(crate) text: String,
    /// Name of the vendor.
    pub(crate) name: String,
    /// Ids of the models that the sections contain.
    pub(crate) models: Vec<String>,
    /// Ids of requested models that the file already has, and that were therefore not written.
    pub(crate) present: Vec<String>,
}

impl Sections {
    /// Writes the sections of a vendor and its models. `taken` are the ids of the models that the file already has.
    ///
    /// # Errors
    /// If a model is not in the preset and no price is given for it.
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
        Self::of_models(text, preset, name, args, taken)
    }

    /// Writes only sections of models after `text`, for the vendor `name`, which the file or `text` has.
    ///
    /// # Errors
    /// If a model is not in the preset and no price is given for it.
    pub(crate) fn of_models(
        text: String,
        preset: &'static Preset,
        name: &str,
        args: &VendorArgs,
        taken: &BTreeSet<String>,
    ) -> Result<Self, String> {
        let mut sections = Self {
            text,
            name: name.to_owned(),
            models: Vec::new(),
            present: Vec::new(),
        };
        let mut wanted = args.models.clone();
        if wanted.is_empty() {
            wanted.extend(offered(preset).map(str::to_owned));
        }
        if wanted.is_empty() {
            let title = &preset.about.title;
            return Err(format!(
                "the preset {:?} has no models: give your model and its price, like --models MODEL --usdt-mtok \
                 0.30,1.20 (input and output price in USDT per million tokens, from your contract with {title})",
                preset.name
            ));
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
                "the preset {:?} has no price for {id:?}{}: give one, like --usdt-mtok 0.30,1.20 (input and output \
                 price in USDT per million tokens) or --rub-mtok 30,120 (in rubles)",
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

/// Returns the models of the preset that the vendor has not withdrawn yet.
fn offered(preset: &Preset) -> impl Iterator<Item = &str> {
    let today = rfc3339(now_ms());
    let models = preset.about.models.iter();
    models.filter_map(move |(name, about)| {
        let is_offered = about.retires.as_ref().is_none_or(|day| *day > today);
        is_offered.then_some(name.as_str())
    })
}

/// Returns the key reference to write into the configuration. `None`: the preset's reference applies.
fn key_reference(args: &VendorArgs) -> Result<Option<String>, String> {
    if let Some(file) = &args.key_file {
        return Ok(Some(format!("file:{}", full(file)?)));
    }
    let variable = args.key_env.as_ref();
    Ok(variable.map(|name| format!("${{{name}}}")))
}

/// Returns the absolute path of a file, because the gateway may run in another folder.
pub(crate) fn full(path: &Path) -> Result<String, String> {
    let path = absolute(path).map_err(|error| format!("{}: {error}", path.display()))?;
    let text = path.to_str().map(str::to_owned);
    text.ok_or_else(|| format!("{}: is not text in UTF-8", path.display()))
}

/// Returns a text as a TOML string. JSON's escapes can be used because TOML has the same ones.
fn quoted(text: &str) -> String {
    Value::from(text).to_string()
}

/// The names of vendors and models in a file, including those that come from presets.
pub(crate) struct Taken {
    pub(crate) vendors: BTreeSet<String>,
    pub(crate) models: BTreeSet<String>,
}

impl Taken {
    /// Reads the names from a configuration's text.
    ///
    /// # Errors
    /// If the text is not valid TOML.
    pub(crate) fn read(text: &str) -> Result<Self, ConfigErrors> {
        let document = Document::open(text)?;
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
