//! Presets: vendors and models whose settings and prices the binary contains.
//!
//! Each file `NAME.toml` in this directory is a preset of a vendor. Its table `[vendor]` has fields of `[[vendor]]`,
//! and its tables `[model."NAME"]` have fields of `[[model]]`, as an operator would write them. All other keys describe
//! the preset. If an operator's table contains `preset = "NAME"`, it takes from the preset every field that it does not
//! have (`config::preset_merge`).

use std::{collections::BTreeMap, sync::LazyLock};

use serde::{Deserialize, Serialize, de::IgnoredAny};
use tollgate_ledger::calendar::DAY_MS;

use crate::text::time::parse_rfc3339_ms;

/// The preset of a vendor, which the binary contains.
#[derive(Debug)]
pub struct Preset {
    /// Name of the preset, which operators write into `vendor.preset`.
    pub name: &'static str,
    /// Text of the preset's file, in TOML.
    pub text: &'static str,
    /// The keys of the preset's file that are not settings but describe the preset.
    pub about: About,
}

/// Description of a preset: the keys of its file that are not settings. (The settings are merged as TOML, without a
/// type of their own.)
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct About {
    /// Name of the vendor, as people know it.
    pub title: String,
    /// Day on which settings and prices were taken from the vendor's pages, for example 2026-11-29.
    pub date: String,
    /// URL of the page with the vendor's prices.
    pub source: String,
    /// Name of the environment variable with the gateway's key at the vendor.
    pub key_env: String,
    /// Whether the preset's models are named `PRESET/MODEL`, because the preset of the models' maker uses the same
    /// model names.
    #[serde(default)]
    pub qualified: bool,
    /// Values that the operator must supply, for example the name of a cloud resource, by the names of their
    /// placeholders in the settings.
    #[serde(default)]
    pub values: BTreeMap<String, ValueAbout>,
    /// Alternatives to the login in `[vendor]`, by name.
    #[serde(default)]
    pub logins: BTreeMap<String, LoginAbout>,
    /// URL of the page on which the vendor issues keys. `None`: the vendor issues no keys.
    pub key_page: Option<String>,
    /// Notes for operators, in Markdown.
    pub notes: Vec<String>,
    /// Descriptions of the preset's models, by model name.
    #[serde(default, rename = "model")]
    pub models: BTreeMap<String, ModelAbout>,
    #[serde(rename = "vendor")]
    _vendor: IgnoredAny,
    /// The fields that every model of the preset has.
    #[serde(rename = "every_model")]
    _every_model: Option<IgnoredAny>,
}

/// Description of a value that the operator writes into `vendor.values`.
#[derive(Debug, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub struct ValueAbout {
    /// Name of the value, for people, for example "region of AWS".
    pub title: String,
    /// Where the operator finds the value, for example on which page of the vendor.
    pub find: String,
    /// An example of the value.
    pub example: String,
}

/// Description of an alternative login. The other fields of its table are settings of `vendor.login`.
#[derive(Debug, Deserialize)]
pub struct LoginAbout {
    /// Description of the login, for people, for example "an access key of AWS".
    pub title: String,
    /// Name of the environment variable with the login's secret. `None`: the login has no secret.
    pub key_env: Option<String>,
}

/// Description of a model in the preset.
#[derive(Debug, Deserialize)]
pub struct ModelAbout {
    /// URL of the page with the model's prices. `None`: the page of the preset.
    pub source: Option<String>,
    /// Day on which the vendor withdraws the model. `None`: the vendor has announced no such day.
    pub retires: Option<String>,
}

/// Keys in a login's table that are not settings: the fields of [`LoginAbout`].
pub(super) const ABOUT_LOGIN: [&str; 2] = ["title", "key_env"];

/// Keys in a model's table that are not settings of `[[model]]`: the fields of [`ModelAbout`], and `model`, the
/// vendor's name for the model.
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
        about: toml::from_str(text).expect("the tests parse every preset"),
    })
    .collect()
});

/// Returns all presets that the binary contains.
#[must_use]
pub fn presets() -> &'static [Preset] {
    &ALL
}

impl Preset {
    /// Returns the preset with this name. `None` if there is no such preset.
    #[must_use]
    pub fn named(name: &str) -> Option<&'static Self> {
        presets().iter().find(|preset| preset.name == name)
    }

    /// Returns the presets that contain a model, each with the model's name in the preset. The name can be
    /// `PRESET/MODEL`, which selects one preset, and which some presets require.
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

    /// Returns the age of the preset in days: from its date until `now_ms`.
    #[must_use]
    pub fn age_days(&self, now_ms: u64) -> u64 {
        let today = now_ms / DAY_MS;
        let taken = day_number(&self.about.date).unwrap_or(today);
        today.saturating_sub(taken)
    }

    /// Returns the vendor's base URL. It contains the placeholders of the preset's values.
    #[must_use]
    pub fn vendor_url(&self) -> Option<String> {
        Some(self.vendor(None).get("url")?.as_str()?.to_owned())
    }

    /// Returns whether the prices of the preset's models are in rubles.
    #[must_use]
    pub fn is_in_rubles(&self) -> bool {
        let mut lines = self.text.lines();
        lines.any(|line| line.starts_with("rub_mtok = "))
    }

    /// Returns the vendor's fields from the preset, with the alternative login of this name, or with the preset's
    /// default login.
    fn vendor(&self, login: Option<&str>) -> toml::Table {
        let mut file: toml::Table =
            toml::from_str(self.text).expect("the tests parse every preset");
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

    /// Returns the name of the environment variable with the secret of a login. `None` if this login has no secret.
    #[must_use]
    pub fn key_env(&self, login: Option<&str>) -> Option<&str> {
        match login.and_then(|name| self.about.logins.get(name)) {
            Some(login) => login.key_env.as_deref(),
            None => Some(&self.about.key_env),
        }
    }

    /// Returns the descriptions, by name, of the values that the operator must supply for the vendor's settings with
    /// this login, and for the vendor's model names.
    pub fn values(&self, login: Option<&str>) -> impl Iterator<Item = (&str, &ValueAbout)> {
        let models = self.text.lines().filter(|it| it.starts_with("model = "));
        let settings = format!("{:?}", self.vendor(login)) + &models.collect::<String>();
        let values = self.about.values.iter();
        let values = values.filter(move |(name, _)| settings.contains(&format!("{{{name}}}")));
        values.map(|(name, about)| (name.as_str(), about))
    }

    /// Returns the setting of `[[vendor]]` that refers to the secret of a login, for example `key` or `login.basic`.
    /// `None` if the login has no secret.
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

    /// Returns the fields that every model of the preset has, in TOML, one per line. The text is empty if there are no
    /// such fields.
    #[must_use]
    pub fn every_model_text(&self) -> String {
        let mut lines = self.text.lines().skip_while(|it| *it != "[every_model]");
        lines.next();
        let fields = lines.take_while(|it| !it.starts_with(['[', '#']) && !it.is_empty());
        fields.map(|line| format!("{line}\n")).collect()
    }

    /// Returns the part of the preset's file that describes one model.
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

/// Parses a date, for example 2026-11-29, and returns it as days since 1970-01-01.
pub(crate) fn day_number(date: &str) -> Option<u64> {
    Some(parse_rfc3339_ms(date)? / DAY_MS)
}

#[cfg(test)]
mod page;
#[cfg(test)]
mod tests;
