//! Presets: vendors and models whose settings and prices the binary carries.
//!
//! Each file `NAME.toml` of this directory is a vendor's preset. `[vendor]` has fields of `[[vendor]]`,
//! `[model."NAME"]` fields of `[[model]]`, as an operator would write them; the other keys describe the preset. With
//! `preset = "NAME"` an operator's table takes from the preset every field that it does not have
//! (`config::preset_merge`).

use std::{collections::BTreeMap, sync::LazyLock};

use serde::{Deserialize, de::IgnoredAny};
use tollgate_ledger::calendar::{DAY_MS, day_of_date};

/// A vendor whose settings are included in the binary.
#[derive(Debug)]
pub struct Preset {
    /// The name that `[[vendor]] preset` uses.
    pub name: &'static str,
    /// The text of the file, in TOML.
    pub text: &'static str,
    /// The keys of the file that describe the preset.
    pub about: About,
}

/// Description of a preset. The settings themselves are merged as TOML.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct About {
    /// The vendor's name, for people.
    pub title: String,
    /// Day on which facts and prices were taken from the vendor's pages, like 2026-11-29.
    pub date: String,
    /// The address of the page with the vendor's prices.
    pub source: String,
    /// Environment variable that holds the key at the vendor.
    pub key_env: String,
    /// Whether the preset's models need the preset before a slash, because the preset of their maker has the same names.
    #[serde(default)]
    pub qualified: bool,
    /// Facts of a customer's account, like the name of a resource, by their placeholders in the settings.
    #[serde(default)]
    pub values: BTreeMap<String, ValueAbout>,
    /// Other logins than that of the settings, by name.
    #[serde(default)]
    pub logins: BTreeMap<String, LoginAbout>,
    /// Page on which the vendor issues keys; absent: the vendor issues none.
    pub key_page: Option<String>,
    /// Advice for operators, in Markdown.
    pub notes: Vec<String>,
    /// The models of the preset, by name.
    #[serde(default, rename = "model")]
    pub models: BTreeMap<String, ModelAbout>,
    #[serde(rename = "vendor")]
    _vendor: IgnoredAny,
    /// The fields that every model of the preset has.
    #[serde(rename = "every_model")]
    _every_model: Option<IgnoredAny>,
}

/// A value that the operator writes into `vendor.values`.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ValueAbout {
    /// Its name, for people.
    pub title: String,
    /// The vendor's page that shows it.
    pub find: String,
    /// A value of this form.
    pub example: String,
}

/// The description of another login; the table's other fields are settings of `vendor.login`.
#[derive(Debug, Deserialize)]
pub struct LoginAbout {
    /// The credential, for people.
    pub title: String,
    /// Environment variable that holds the secret; absent: the login has none.
    pub key_env: Option<String>,
}

/// The description of a model of the preset.
#[derive(Debug, Deserialize)]
pub struct ModelAbout {
    /// The page with the model's prices; absent: the page of the preset.
    pub source: Option<String>,
    /// Day on which the vendor withdraws the model, if it has announced one.
    pub retires: Option<String>,
}

/// Keys of a login's table that are not settings: those of [`LoginAbout`].
pub(super) const ABOUT_LOGIN: [&str; 2] = ["title", "key_env"];

/// Keys of a model's table that are not settings: those of [`ModelAbout`], and the vendor's name of the model.
pub(super) const ABOUT_MODEL: [&str; 3] = ["source", "retires", "model"];

macro_rules! presets {
    ($($name:literal),* $(,)?) => {
        [$(($name, include_str!(concat!($name, ".toml")))),*]
    };
}

static ALL: LazyLock<Vec<Preset>> = LazyLock::new(|| {
    presets![
        "openai",
        "anthropic",
        "google",
        "xai",
        "deepseek",
        "qwen",
        "moonshot",
        "zai",
        "mistral",
        "groq",
        "openrouter",
        "azure",
        "vertex",
        "vertex-claude",
        "bedrock",
        "bedrock-claude",
        "gigachat",
        "yandexgpt",
        "ollama",
        "vllm",
    ]
    .into_iter()
    .map(|(name, text)| Preset {
        name,
        text,
        about: toml::from_str(text).expect("a test reads every preset"),
    })
    .collect()
});

/// Returns all presets.
#[must_use]
pub fn presets() -> &'static [Preset] {
    &ALL
}

impl Preset {
    /// Returns the preset with this name.
    #[must_use]
    pub fn named(name: &str) -> Option<&'static Self> {
        presets().iter().find(|preset| preset.name == name)
    }

    /// Returns the presets that have this model, each with the model's name in that preset. `vendor/model` names the
    /// model of one preset, which some presets require.
    #[must_use]
    pub fn of_model(name: &str) -> Vec<(&'static Self, &'static str)> {
        let model_of = |preset: &'static Self, model: &str| {
            let (model, _) = preset.about.models.get_key_value(model)?;
            Some((preset, model.as_str()))
        };
        let qualified = name.split_once('/');
        let qualified = qualified.and_then(|(vendor, model)| model_of(Self::named(vendor)?, model));
        match qualified {
            Some(found) => vec![found],
            None => presets()
                .iter()
                .filter(|preset| !preset.about.qualified)
                .filter_map(|preset| model_of(preset, name))
                .collect(),
        }
    }

    /// Returns the days between the preset's date and `now_ms`.
    #[must_use]
    pub fn age_days(&self, now_ms: u64) -> u64 {
        let today = now_ms / DAY_MS;
        let taken = day_number(&self.about.date).unwrap_or(today);
        today.saturating_sub(taken)
    }

    /// Returns the vendor's base address, with the placeholders of the preset's values.
    #[must_use]
    pub fn vendor_url(&self) -> Option<String> {
        Some(self.vendor(None).get("url")?.as_str()?.to_owned())
    }

    /// Returns whether the models' prices are in rubles.
    #[must_use]
    pub fn is_in_rubles(&self) -> bool {
        let mut lines = self.text.lines();
        lines.any(|line| line.starts_with("rub_mtok = "))
    }

    /// Returns the fields of `[[vendor]]` with one of the preset's other logins, or with its usual one.
    fn vendor(&self, login: Option<&str>) -> toml::Table {
        let mut file: toml::Table = toml::from_str(self.text).expect("a test reads every preset");
        let mut table = |name: &str| match file.remove(name) {
            Some(toml::Value::Table(table)) => table,
            _ => toml::Table::new(),
        };
        let (mut vendor, mut logins) = (table("vendor"), table("logins"));
        if let Some(toml::Value::Table(mut login)) = login.and_then(|name| logins.remove(name)) {
            login.retain(|name, _| !ABOUT_LOGIN.contains(&name));
            vendor.remove("key");
            vendor.insert("login".to_owned(), login.into());
        }
        vendor
    }

    /// Returns the variable that holds the secret of a login; `None` if that login has none.
    #[must_use]
    pub fn key_env(&self, login: Option<&str>) -> Option<&str> {
        match login.and_then(|name| self.about.logins.get(name)) {
            Some(login) => login.key_env.as_deref(),
            None => Some(&self.about.key_env),
        }
    }

    /// Returns the values that the vendor's settings with a login, or its names of models, need, by name.
    pub fn values(&self, login: Option<&str>) -> impl Iterator<Item = (&str, &ValueAbout)> {
        let models = self.text.lines().filter(|it| it.starts_with("model = "));
        let settings = format!("{:?}", self.vendor(login)) + &models.collect::<String>();
        let values = self.about.values.iter();
        let values = values.filter(move |(name, _)| settings.contains(&format!("{{{name}}}")));
        values.map(|(name, about)| (name.as_str(), about))
    }

    /// Returns the setting of `[[vendor]]` that refers to the secret of a login, like `key` or `login.basic`; `None` if
    /// the login has none.
    #[must_use]
    pub fn key_setting(&self, login: Option<&str>) -> Option<String> {
        let reference = format!("${{{}}}", self.key_env(login)?);
        let vendor = self.vendor(login);
        vendor.iter().find_map(|(name, value)| match value {
            toml::Value::String(text) => (*text == reference).then(|| name.clone()),
            toml::Value::Table(inner) => {
                let (field, _) = inner
                    .iter()
                    .find(|(_, it)| it.as_str() == Some(&reference))?;
                Some(format!("{name}.{field}"))
            }
            _ => None,
        })
    }

    /// Returns the fields that every model of the preset has, in TOML, one per line; empty if there are none.
    #[must_use]
    pub fn every_model_text(&self) -> String {
        let mut lines = self.text.lines().skip_while(|it| *it != "[every_model]");
        lines.next();
        let fields = lines.take_while(|it| !it.starts_with(['[', '#']) && !it.is_empty());
        fields.map(|line| format!("{line}\n")).collect()
    }

    /// Returns the part of the file that is about one model.
    #[must_use]
    pub fn model_text(&self, model: &str) -> Option<&'static str> {
        let head = format!("[model.\"{model}\"]");
        let start = self.text.find(&head)?;
        let rest = &self.text[start..];
        let end = rest[1..]
            .find("\n[model.")
            .map_or(rest.len(), |end| end + 2);
        Some(rest[..end].trim_end())
    }
}

/// Parses a date like 2026-11-29 to days since 1970.
pub(crate) fn day_number(date: &str) -> Option<u64> {
    let mut parts = date.splitn(3, '-').map(str::parse::<i64>);
    let mut next = || parts.next()?.ok();
    let (year, month, day) = (next()?, next()?, next()?);
    u64::try_from(day_of_date(year, month, day)).ok()
}

#[cfg(test)]
mod page;
#[cfg(test)]
mod tests;
