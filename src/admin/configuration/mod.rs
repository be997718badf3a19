//! Endpoints for the configuration file: list its vendors and models, change them, and make test calls to vendors.
//!
//! Vendors and models are stored only in the file. A change edits the file's text. The edited text is checked as a
//! whole, replaces the file, and is then applied as after an edit by hand. The previous version is kept next to the
//! file.

mod change;
mod keys;
#[cfg(test)]
mod tests;

use std::{fs, path::PathBuf, sync::Arc};

use serde::Serialize;
use serde_json::json;
use tokio::{sync::Mutex, task::spawn_blocking};

use self::change::{Change, hash, is_writable, previous, read};
use super::{
    Admin, Answer,
    fields::Fields,
    ok,
    refusal::Refusal,
    route::{AdminRequest, Route, routes},
    vendor_test::{OneVendor, calls, target},
};
use crate::{
    api::fields::words,
    config::{Config, Preset, ValueAbout, described::Described, presets},
    state::config_file::ConfigFile,
    text::percent,
};

pub(super) const ROUTES: &[Route] = routes! {
    get "/admin/v1/configuration" => show_configuration;
    post "/admin/v1/configuration/changes" => change_configuration;
    post "/admin/v1/configuration/vendors/{vendor}/test" => test_vendor;
};

/// The configuration file of this process, and what is needed to change and apply it.
pub(super) struct Configuration {
    file: ConfigFile,
    path: PathBuf,
    one_vendor: OneVendor,
    /// Lock held while the file is read, changed and applied.
    changing: Mutex<()>,
    /// Lock held while a vendor is tested: each test is billed, so tests do not run concurrently.
    testing: Mutex<()>,
}

impl Configuration {
    /// Returns `None` if the process was started without a file.
    pub(super) fn new(file: ConfigFile, one_vendor: OneVendor) -> Option<Self> {
        Some(Self {
            path: file.path()?.to_owned(),
            file,
            one_vendor,
            changing: Mutex::default(),
            testing: Mutex::default(),
        })
    }
}

#[derive(Serialize)]
struct ConfigurationAnswer {
    file: PathBuf,
    hash: String,
    writable: bool,
    /// Whether a previous version of the file is kept.
    previous: bool,
    #[serde(flatten)]
    described: Described,
    presets: Vec<PresetAnswer>,
}

/// A preset, and the values that a vendor needs when it is added from this preset.
#[derive(Serialize)]
struct PresetAnswer {
    name: &'static str,
    title: &'static str,
    key_variable: &'static str,
    key_page: Option<&'static str>,
    models: Vec<&'static str>,
    logins: Vec<LoginAnswer>,
}

/// A login (authentication method) of a preset's vendor.
#[derive(Serialize)]
struct LoginAnswer {
    /// The login's name; absent for the preset's default login.
    name: Option<&'static str>,
    title: Option<&'static str>,
    /// The environment variable that has the secret if the request names no other; absent if the login has no secret.
    key_variable: Option<&'static str>,
    /// The setting that refers to the secret, for example `key` or `login.key_file`.
    key_setting: Option<String>,
    values: Vec<ValueAnswer>,
}

#[derive(Serialize)]
struct ValueAnswer {
    name: &'static str,
    #[serde(flatten)]
    about: &'static ValueAbout,
}

impl Admin {
    fn configuration(&self) -> Result<&Configuration, Refusal> {
        self.configuration.as_ref().ok_or_else(|| {
            Refusal::Conflict("this gateway was started without a configuration file: nothing can be changed here".into())
        })
    }

    async fn show_configuration(self: Arc<Self>, _: AdminRequest) -> Result<Answer, Refusal> {
        let path = self.configuration()?.path.clone();
        let shown = off_thread(move || {
            let text = read(&path)?;
            Ok(ConfigurationAnswer {
                hash: hash(&text),
                writable: is_writable(&path),
                previous: fs::canonicalize(&path).is_ok_and(|path| previous(&path).exists()),
                described: Described::read(&text)
                    .map_err(|problem| Refusal::invalid("", problem))?,
                presets: presets().iter().map(PresetAnswer::from).collect(),
                file: path,
            })
        });
        ok(&shown.await?)
    }

    async fn change_configuration(
        self: Arc<Self>,
        request: AdminRequest,
    ) -> Result<Answer, Refusal> {
        let configuration = self.configuration()?;
        let who = request.who();
        let change = Change::parse(&request.body().await?)?;
        let path = configuration.path.clone();
        let (name, subject) = (change.name, change.subject().to_owned());
        let _guard = configuration.changing.lock().await;
        let mut answer = off_thread(move || change.make(&path)).await?;
        if answer.written {
            answer.applied = configuration.file.apply().await;
            tracing::info!(
                target: "audit", who = who.name(), what = "configuration.change", change = name, subject,
                difference = answer.difference_text(), hash = answer.hash, applied = answer.applied
            );
        }
        ok(&answer)
    }

    async fn test_vendor(self: Arc<Self>, request: AdminRequest) -> Result<Answer, Refusal> {
        let configuration = self.configuration()?;
        let who = request.who();
        let vendor = percent::decoded(request.named()).unwrap_or_default();
        let mut fields = Fields::parse(&request.body().await?, &["model"])?;
        let model = fields.optional("model", words)?;
        let Ok(_guard) = configuration.testing.try_lock() else {
            return Err(Refusal::Conflict(
                "a test runs already: wait until it ends".into(),
            ));
        };
        let path = configuration.path.clone();
        let config = off_thread(move || {
            let config = Config::load(&path);
            config.map_err(|errors| Refusal::Conflict(format!("the file has mistakes: {errors}")))
        });
        let config = config.await?;
        let target = target(&config, &vendor, model.as_deref()).map_err(Refusal::NotFound)?;
        let calls = calls(configuration.one_vendor, &[target]).await;
        tracing::info!(
            target: "audit", who = who.name(), what = "vendor.test", vendor, model = target.1.model,
            ok = calls.iter().all(|call| call["result"] == "ok")
        );
        ok(&json!({ "calls": calls }))
    }
}

impl From<&'static Preset> for PresetAnswer {
    fn from(preset: &'static Preset) -> Self {
        let about = &preset.about;
        let others = about.logins.keys().map(|name| Some(name.as_str()));
        let logins = [None].into_iter().chain(others);
        Self {
            name: preset.name,
            title: &about.title,
            key_variable: &about.key_env,
            key_page: about.key_page.as_deref(),
            models: about.models.keys().map(String::as_str).collect(),
            logins: logins.map(|name| LoginAnswer::new(preset, name)).collect(),
        }
    }
}

impl LoginAnswer {
    fn new(preset: &'static Preset, name: Option<&'static str>) -> Self {
        let values = preset.values(name);
        Self {
            name,
            title: name.map(|name| &*preset.about.logins[name].title),
            key_variable: preset.key_env(name),
            key_setting: preset.key_setting(name),
            values: values
                .map(|(name, about)| ValueAnswer { name, about })
                .collect(),
        }
    }
}

async fn off_thread<T: Send + 'static>(
    work: impl FnOnce() -> Result<T, Refusal> + Send + 'static,
) -> Result<T, Refusal> {
    spawn_blocking(work).await.map_err(Refusal::fault)?
}
