//! Endpoints for the configuration file: its vendors and models, changes of them, and test calls to vendors.
//!
//! The file stays the only place of these settings. A change edits its text, is checked as a whole, and replaces the
//! file; then the file is applied like any other version of it. The previous version is kept next to the file.

use std::{
    collections::BTreeMap,
    fs,
    io::{self, Write as _},
    os::unix::fs::OpenOptionsExt as _,
    path::{Component, Path, PathBuf},
    sync::Arc,
};

use rustix::fs::{Access, access};
use secrecy::{ExposeSecret, SecretString};
use serde::Serialize;
use serde_json::{Value, json};
use sha2::{Digest, Sha256};
use tokio::{sync::Mutex, task::spawn_blocking};

use super::{
    Admin, Answer,
    fields::Fields,
    ok,
    refusal::Refusal,
    route::{AdminRequest, Route},
    vendor_test::{OneVendor, calls, target},
};
use crate::{
    api::fields::{line, words},
    config::{
        Config,
        edit::{Described, Edit, foreign_references},
        presets,
        sections::{OUTPUT_TOKENS_MAX, VendorArgs, preset, prices},
    },
    net::replace::replace_file,
    state::config_file::ConfigFile,
    text::{
        difference::{Hunk, difference},
        percent,
    },
};

pub(super) const ROUTES: &[Route] = &[
    Route::get("/admin/v1/configuration", |admin, _| {
        Box::pin(admin.show_configuration())
    }),
    Route::post("/admin/v1/configuration/changes", |admin, request| {
        Box::pin(admin.change_configuration(request))
    }),
    Route::post(
        "/admin/v1/configuration/vendors/{vendor}/test",
        |admin, request| Box::pin(admin.test_vendor(request)),
    ),
];

const OF_ALL: [&str; 3] = ["change", "hash", "preview"];
/// The changes, each with its own fields.
const CHANGES: [(&str, &[&str]); 6] = [
    (
        "add_vendor",
        &[
            "preset",
            "name",
            "url",
            "key",
            "key_in_file",
            "key_value",
            "models",
            "prices",
        ],
    ),
    (
        "change_vendor",
        &["vendor", "url", "key", "key_in_file", "key_value"],
    ),
    ("remove_vendor", &["vendor"]),
    ("add_models", &["vendor", "models", "prices"]),
    ("remove_model", &["model"]),
    ("change_price", &["model", "prices", "valid_from"]),
];
const KEY_CHARS_MAX: usize = 8192;
/// Stands for a typed key in a text that is checked before the key's file exists.
const TYPED: &str = "TOLLGATE_TYPED_KEY";
/// The maximum number of key files of one vendor.
const KEY_FILES_MAX: usize = 100;

/// The file of this process, and what its changes need.
pub(super) struct Configuration {
    file: ConfigFile,
    path: PathBuf,
    one_vendor: OneVendor,
    /// Held while the file is read, changed and applied.
    changing: Mutex<()>,
    /// Held while a vendor is tested, because each test is billed.
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
    #[serde(flatten)]
    described: Described,
    presets: Vec<PresetAnswer>,
}

#[derive(Serialize)]
struct PresetAnswer {
    name: &'static str,
    title: &'static str,
    key_variable: &'static str,
    key_page: Option<&'static str>,
    models: Vec<&'static str>,
}

/// The effect of a change.
#[derive(Serialize)]
struct ChangeAnswer {
    /// The digest of the file as it is now.
    hash: String,
    /// Whether the file has the change.
    written: bool,
    /// Whether the change is in force; if it is written and not in force yet, the next check of the file applies it.
    applied: bool,
    /// Whether the process may replace the file.
    writable: bool,
    /// Why the file was not written.
    problem: Option<String>,
    difference: Vec<Hunk>,
    notes: Vec<String>,
    /// The file that holds the typed key, or will.
    key_file: Option<PathBuf>,
}

impl Admin {
    fn configuration(&self) -> Result<&Configuration, Refusal> {
        self.configuration.as_ref().ok_or_else(|| {
            Refusal::Conflict("this gateway was started without a configuration file: nothing can be changed here".into())
        })
    }

    async fn show_configuration(self: Arc<Self>) -> Result<Answer, Refusal> {
        let path = self.configuration()?.path.clone();
        let shown = off_thread(move || {
            let text = read(&path)?;
            Ok(ConfigurationAnswer {
                hash: hash(&text),
                writable: is_writable(&path),
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
        let (name, subject) = (change.name, change.edit.subject().to_owned());
        let _guard = configuration.changing.lock().await;
        let mut answer = off_thread(move || change.make(&path)).await?;
        if answer.written {
            answer.applied = configuration.file.apply().await;
            let lines: usize = (answer.difference.iter())
                .map(|hunk| hunk.removed.len() + hunk.added.len())
                .sum();
            tracing::info!(
                target: "audit", who = who.name(), what = "configuration.change", change = name, subject, lines,
                hash = answer.hash, applied = answer.applied
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

impl From<&'static crate::config::Preset> for PresetAnswer {
    fn from(preset: &'static crate::config::Preset) -> Self {
        let about = &preset.about;
        Self {
            name: preset.name,
            title: &about.title,
            key_variable: &about.key_env,
            key_page: about.key_page.as_deref(),
            models: about.models.keys().map(String::as_str).collect(),
        }
    }
}

/// A requested change of the file.
struct Change {
    name: &'static str,
    edit: Edit,
    hash: String,
    is_preview: bool,
    /// The reference to a key that the request names.
    reference: Option<String>,
    /// The vendor whose key is typed, and the key; a preview has none.
    typed: Option<(String, Option<SecretString>)>,
}

impl Change {
    fn parse(body: &[u8]) -> Result<Self, Refusal> {
        let requested: Value = serde_json::from_slice(body).unwrap_or_default();
        let requested = requested["change"].as_str().unwrap_or_default();
        let found = CHANGES.into_iter().find(|(name, _)| *name == requested);
        let (name, own) = found.ok_or_else(|| {
            let names = CHANGES.map(|(name, _)| name).join(", ");
            Refusal::invalid("change", format!("must be one of {names}"))
        })?;
        let mut fields = Fields::parse(body, &[&OF_ALL, own].concat())?;
        let hash = fields.required("hash", line)?;
        let is_preview = fields.optional("preview", flag)?.unwrap_or_default();
        let reference = fields.optional("key", reference)?;
        let is_typed = fields.optional("key_in_file", flag)?.unwrap_or_default();
        let key = fields.optional("key_value", typed_key)?;
        if is_typed && (reference.is_some() || key.is_none() != is_preview) {
            let problem = "send it with key_in_file, without key, and not in a preview";
            return Err(Refusal::invalid("key_value", problem));
        }
        let variable = is_typed.then(|| format!("${{{TYPED}}}"));
        let edit = edit(name, &mut fields, variable.or_else(|| reference.clone()))?;
        let typed = is_typed.then(|| (edit.subject().to_owned(), key));
        Ok(Self {
            name,
            edit,
            hash,
            is_preview,
            reference,
            typed,
        })
    }

    /// Checks the change, and writes the file unless this is a preview.
    fn make(&self, path: &Path) -> Result<ChangeAnswer, Refusal> {
        let before = read(path)?;
        if hash(&before) != self.hash {
            return Err(Refusal::Conflict(
                "the file has changed since this was requested: load it again and repeat the change".into(),
            ));
        }
        let path = &fs::canonicalize(path).map_err(Refusal::fault)?;
        let folder = path.parent().unwrap_or(Path::new("/"));
        if let Some(reference) = &self.reference {
            permitted(reference, &before, folder)?;
        }
        let edited = self.edit.apply(&before);
        let edited = edited.map_err(|problem| Refusal::invalid("", problem))?;
        check(&edited.text)?;
        let mut text = edited.text;
        let mut key_file = None;
        if let Some((vendor, _)) = &self.typed {
            let file = free_key_file(folder, vendor)?;
            let reference = format!("file:{}", file.display());
            text = text.replace(&format!("${{{TYPED}}}"), &reference);
            key_file = Some(file);
        }
        let mut answer = ChangeAnswer {
            hash: self.hash.clone(),
            written: false,
            applied: false,
            writable: is_writable(path),
            problem: None,
            difference: difference(&before, &text),
            notes: edited.notes,
            key_file,
        };
        if self.is_preview {
            return Ok(answer);
        }
        match self.write(path, &before, &text, answer.key_file.as_deref())? {
            Ok(()) => (answer.written, answer.hash) = (true, hash(&text)),
            Err(error) => answer.problem = Some(format!("{}: {error}", path.display())),
        }
        Ok(answer)
    }

    /// Writes the typed key and the file. The key's file is removed if the file is not written.
    fn write(
        &self,
        path: &Path,
        before: &str,
        text: &str,
        key_file: Option<&Path>,
    ) -> Result<io::Result<()>, Refusal> {
        let typed = self.typed.as_ref().and_then(|(_, key)| key.as_ref());
        let mut made = NewFile(None);
        if let (Some(file), Some(key)) = (key_file, typed) {
            if let Err(error) = made.write(file, key) {
                return Ok(Err(error));
            }
            check(text)?;
        }
        let mut previous = path.as_os_str().to_owned();
        previous.push(".previous");
        let written = replace_file(Path::new(&previous), before.as_bytes())
            .and_then(|()| replace_file(path, text.as_bytes()));
        if written.is_ok() {
            made.0 = None;
        }
        Ok(written)
    }
}

/// A file that is removed when dropped, unless it is taken out.
struct NewFile(Option<PathBuf>);

impl NewFile {
    fn write(&mut self, path: &Path, key: &SecretString) -> io::Result<()> {
        let mut options = fs::OpenOptions::new();
        let mut file = (options.write(true).create_new(true).mode(0o600)).open(path)?;
        self.0 = Some(path.to_owned());
        file.write_all(key.expose_secret().as_bytes())?;
        file.sync_all()
    }
}

impl Drop for NewFile {
    fn drop(&mut self) {
        if let Some(path) = &self.0 {
            let _ = fs::remove_file(path);
        }
    }
}

fn edit(name: &str, fields: &mut Fields, key: Option<String>) -> Result<Edit, Refusal> {
    let prices_of = |fields: &mut Fields| fields.optional("prices", price_list);
    Ok(match name {
        "add_vendor" => {
            let preset = fields.required("preset", words)?;
            let preset = preset_named(&preset)?;
            let mut args = new_models(fields)?;
            args.name = fields.optional("name", words)?;
            args.url = fields.optional("url", words)?;
            if let Some(key) = key {
                let variable = key.strip_prefix("${").and_then(|it| it.strip_suffix('}'));
                args.key_env = variable.map(str::to_owned);
                args.key_file = key.strip_prefix("file:").map(PathBuf::from);
            }
            Edit::AddVendor { preset, args }
        }
        "change_vendor" => Edit::SetVendor {
            vendor: fields.required("vendor", words)?,
            url: fields.optional("url", line)?,
            key,
        },
        "remove_vendor" => Edit::RemoveVendor {
            vendor: fields.required("vendor", words)?,
        },
        "add_models" => Edit::AddModels {
            vendor: fields.required("vendor", words)?,
            args: new_models(fields)?,
        },
        "remove_model" => Edit::RemoveModel {
            model: fields.required("model", words)?,
        },
        _ => Edit::SetPrice {
            model: fields.required("model", words)?,
            prices: prices_of(fields)?.ok_or_else(|| Refusal::invalid("prices", "required"))?,
            valid_from: fields.optional("valid_from", words)?,
        },
    })
}

fn preset_named(name: &str) -> Result<&'static crate::config::Preset, Refusal> {
    preset(name).map_err(|problem| Refusal::invalid("preset", problem))
}

fn new_models(fields: &mut Fields) -> Result<VendorArgs, Refusal> {
    let given = fields.optional("prices", price_list)?;
    let usdt_mtok = given.map(|given| {
        let class = |name: &str| given.get(name).map_or("", String::as_str);
        prices(&format!("{},{}", class("input"), class("output")))
    });
    Ok(VendorArgs {
        models: fields.list("models", words)?.unwrap_or_default(),
        usdt_mtok: usdt_mtok.transpose().map_err(|_| {
            Refusal::invalid(
                "prices",
                "must have input and output, like {\"input\": \"0.30\", \"output\": \"1.20\"}",
            )
        })?,
        output_tokens_max: OUTPUT_TOKENS_MAX,
        ..VendorArgs::default()
    })
}

fn price_list(value: &Value) -> Result<BTreeMap<String, String>, String> {
    let all = value.as_object().filter(|all| !all.is_empty());
    let all =
        all.ok_or("must be prices by class, like {\"input\": \"0.30\", \"output\": \"1.20\"}")?;
    let all = all.iter().map(|(class, price)| {
        let price = words(price).map_err(|problem| format!("{class}: {problem}"))?;
        Ok((class.clone(), price))
    });
    all.collect()
}

fn flag(value: &Value) -> Result<bool, String> {
    value
        .as_bool()
        .ok_or_else(|| "must be true or false".into())
}

/// Parses a reference to a key. The problem does not repeat the text, which may be the key itself.
fn reference(value: &Value) -> Result<String, String> {
    let problem = "must be \"${NAME}\" for a variable of the gateway's environment or \"file:/path\" for a file; \
        to store a key, send it as key_value with key_in_file";
    let text = words(value).map_err(|_| problem)?;
    let name = text.strip_prefix("${").and_then(|it| it.strip_suffix('}'));
    let is_name = |it: &str| {
        !it.is_empty()
            && it
                .bytes()
                .all(|byte| byte.is_ascii_alphanumeric() || byte == b'_')
    };
    let is_file = text
        .strip_prefix("file:")
        .is_some_and(|it| it.starts_with('/'));
    match is_file || name.is_some_and(|it| is_name(it) && it != TYPED) {
        true => Ok(text),
        false => Err(problem.into()),
    }
}

fn typed_key(value: &Value) -> Result<SecretString, String> {
    let text = value
        .as_str()
        .map(str::trim)
        .filter(|text| !text.is_empty());
    let is_plain = |text: &&str| text.len() <= KEY_CHARS_MAX && !text.contains(char::is_control);
    let text = text.filter(is_plain);
    text.map(SecretString::from)
        .ok_or_else(|| format!("must be one line of at most {KEY_CHARS_MAX} characters"))
}

/// Refuses references by which a vendor would get another secret of this machine as its key: the gateway's own secrets,
/// and files outside the folder of the configuration.
fn permitted(reference: &str, text: &str, folder: &Path) -> Result<(), Refusal> {
    let refused = |problem: &str| Err(Refusal::invalid("key", problem));
    let foreign = foreign_references(text).map_err(|problem| Refusal::invalid("", problem))?;
    if foreign.contains(reference) {
        return refused("this is another secret of the gateway: give the vendor's own key");
    }
    let Some(path) = reference.strip_prefix("file:").map(Path::new) else {
        return Ok(());
    };
    let is_plain = path
        .components()
        .all(|it| matches!(it, Component::RootDir | Component::Normal(_)));
    // A link may lead out of the folder.
    let place = fs::canonicalize(path).unwrap_or_else(|_| path.to_owned());
    let is_foreign = |it: &String| {
        let other = it.strip_prefix("file:").map(fs::canonicalize);
        matches!(other, Some(Ok(other)) if other == place)
    };
    if !is_plain || !place.starts_with(folder) || foreign.iter().any(is_foreign) {
        return refused(
            "the file must be in the folder of the configuration, and not one of the gateway's other secrets; a key in \
             another place is named in the configuration by hand",
        );
    }
    Ok(())
}

/// Returns a path for a new key file. The vendor's name cannot lead out of the folder.
fn free_key_file(folder: &Path, vendor: &str) -> Result<PathBuf, Refusal> {
    let plain = |letter: char| match letter {
        'a'..='z' | 'A'..='Z' | '0'..='9' | '-' => letter,
        _ => '_',
    };
    let stem: String = vendor.chars().take(64).map(plain).collect();
    let mut names = (1..=KEY_FILES_MAX).map(|number| match number {
        1 => folder.join(format!("{stem}.key")),
        number => folder.join(format!("{stem}-{number}.key")),
    });
    let free = names.find(|path| fs::symlink_metadata(path).is_err());
    free.ok_or_else(|| {
        Refusal::Conflict(format!(
            "there are {KEY_FILES_MAX} key files of this vendor: remove some"
        ))
    })
}

fn check(text: &str) -> Result<(), Refusal> {
    let checked = Config::parse(text, &|name| match name {
        TYPED => Some(TYPED.to_owned()),
        name => std::env::var(name).ok(),
    });
    let checked = checked.map(drop);
    checked.map_err(|errors| Refusal::invalid("", errors.to_string()))
}

fn read(path: &Path) -> Result<String, Refusal> {
    fs::read_to_string(path)
        .map_err(|error| Refusal::Conflict(format!("{} cannot be read: {error}", path.display())))
}

fn is_writable(path: &Path) -> bool {
    let place = fs::canonicalize(path);
    let folder = place.as_deref().ok().and_then(Path::parent);
    folder.is_some_and(|folder| access(folder, Access::WRITE_OK).is_ok())
}

fn hash(text: &str) -> String {
    let digest = Sha256::digest(text);
    digest.iter().map(|byte| format!("{byte:02x}")).collect()
}

async fn off_thread<T: Send + 'static>(
    work: impl FnOnce() -> Result<T, Refusal> + Send + 'static,
) -> Result<T, Refusal> {
    spawn_blocking(work).await.map_err(Refusal::fault)?
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::{PermissionsExt as _, symlink};

    use http::Method;
    use tempfile::TempDir;

    use super::*;
    use crate::{
        admin::tests::{Api, Log, admin_of_file, asked_by, request},
        operators::{Operator, Role},
    };

    const FILE: &str = "# ours\n[admin]\nkey = \"file:DIR/admin.key\"   # kept\n[[rate.source]]\nfixed = \"90\"\n\
        [tariff]\nsell_rate_multiplier = \"1.15\"\n\n[[vendor]]\nname = \"v\"\nformat = \"chat\"\n\
        url = \"http://127.0.0.1:9/v1\"\nkey = \"file:DIR/v.key\"\n\n[[model]]\nid = \"m\"\nfamily = \"F\"\n\
        usdt_mtok = { input = \"1\", cached_input = \"1\", output = \"1\", cache_write = \"1\" }   # sold\n\
        output_tokens_max = 1000\nroutes = [ { vendor = \"v\" } ]\n";
    const SECRET: &str = "sk-typed-Zq7Kx2vW9mT4rB3L";

    fn folder() -> (TempDir, PathBuf, Api) {
        let dir = TempDir::new().unwrap();
        let file = dir.path().join("tollgate.toml");
        for name in ["admin.key", "v.key"] {
            fs::write(dir.path().join(name), "x".repeat(24)).unwrap();
        }
        fs::write(
            &file,
            FILE.replace("DIR", &dir.path().display().to_string()),
        )
        .unwrap();
        let api = admin_of_file(&file);
        (dir, file, api)
    }

    async fn change(api: &Api, fields: &str) -> (u16, Value) {
        let (_, shown) = request(api, Method::GET, "configuration", "").await;
        let body = format!("{{\"hash\": {}, {fields}}}", shown["hash"]);
        request(api, Method::POST, "configuration/changes", &body).await
    }

    #[tokio::test]
    async fn previewed_change_is_written_once_and_the_previous_file_is_kept() {
        let log = Log::listen();
        let (_dir, file, api) = folder();
        let before = fs::read_to_string(&file).unwrap();
        let (_, shown) = request(&api, Method::GET, "configuration", "").await;
        assert_eq!(shown["vendors"][0]["name"], "v");
        assert_eq!(shown["writable"], true);
        let price = r#""change": "change_price", "model": "m", "prices": {"output": "2.5"}"#;
        let (status, preview) = change(&api, &format!("{price}, \"preview\": true")).await;
        assert_eq!(
            (status, &preview["written"]),
            (200, &json!(false)),
            "{preview}"
        );
        assert_eq!(fs::read_to_string(&file).unwrap(), before);
        let body = format!("{{\"hash\": {}, {price}}}", preview["hash"]);
        log.take();
        let post = async || request(&api, Method::POST, "configuration/changes", &body).await;
        tokio::time::pause();
        let (status, done) = post().await;
        assert_eq!((status, &done["written"]), (200, &json!(true)), "{done}");
        assert_eq!(done["difference"], preview["difference"]);
        let text = fs::read_to_string(&file).unwrap();
        assert!(
            text.contains("output = \"2.5\", cache_write = \"1\" }   # sold"),
            "{text}"
        );
        let previous = file.with_file_name("tollgate.toml.previous");
        assert_eq!(fs::read_to_string(previous).unwrap(), before);
        let lines = log.take().join("\n");
        assert!(
            lines.contains("configuration.change") && lines.contains("change_price"),
            "{lines}"
        );
        // The same request again is about a file that is no longer there.
        assert_eq!(post().await.0, 409);
        assert_eq!(fs::read_to_string(&file).unwrap(), text);
    }

    #[tokio::test(start_paused = true)]
    async fn typed_key_is_stored_for_the_owner_alone_and_never_shown() {
        let log = Log::listen();
        let (dir, file, api) = folder();
        let add = r#""change": "add_vendor", "preset": "deepseek", "name": "../../e vil", "key_in_file": true"#;
        let (status, preview) = change(&api, &format!("{add}, \"preview\": true")).await;
        assert_eq!(status, 200, "{preview}");
        let key = dir.path().join("______e_vil.key");
        assert_eq!(
            preview["key_file"],
            json!(key.canonicalize().unwrap_or(key.clone()))
        );
        assert!(!key.exists());
        let (status, done) = change(&api, &format!("{add}, \"key_value\": \"{SECRET}\"")).await;
        assert_eq!((status, &done["written"]), (200, &json!(true)), "{done}");
        assert_eq!(fs::read_to_string(&key).unwrap(), SECRET);
        assert_eq!(
            fs::metadata(&key).unwrap().permissions().mode() & 0o777,
            0o600
        );
        let (_, shown) = request(&api, Method::GET, "configuration", "").await;
        assert_eq!(
            shown["vendors"][1]["key"],
            json!(format!("file:{}", key.display()))
        );
        for text in [
            done.to_string(),
            shown.to_string(),
            log.take().join("\n"),
            fs::read_to_string(file).unwrap(),
        ] {
            assert!(!text.contains(SECRET), "{text}");
        }
        // Another key does not replace the first one's file.
        let again = add
            .replace("add_vendor", "change_vendor")
            .replace("\"name\"", "\"vendor\"");
        let again = again.replace("\"preset\": \"deepseek\", ", "");
        let (status, done) = change(&api, &format!("{again}, \"key_value\": \"another\"")).await;
        assert_eq!(status, 200, "{done}");
        assert!(
            done["key_file"]
                .as_str()
                .unwrap()
                .ends_with("______e_vil-2.key"),
            "{done}"
        );
        assert_eq!(fs::read_to_string(&key).unwrap(), SECRET);
    }

    #[tokio::test]
    async fn file_that_cannot_be_replaced_stays_and_the_answer_has_the_lines() {
        let (dir, file, api) = folder();
        let before = fs::read_to_string(&file).unwrap();
        // A folder in the place of the temporary file: the file cannot be replaced, even by root.
        fs::create_dir(dir.path().join("tollgate.toml.new")).unwrap();
        let add = r#""change": "add_vendor", "preset": "deepseek", "key_in_file": true"#;
        let (status, done) = change(&api, &format!("{add}, \"key_value\": \"{SECRET}\"")).await;
        assert_eq!((status, &done["written"]), (200, &json!(false)), "{done}");
        assert!(
            done["problem"].as_str().unwrap().contains("tollgate.toml"),
            "{done}"
        );
        let added = done["difference"][0]["added"].to_string();
        assert!(added.contains("preset = \\\"deepseek\\\""), "{added}");
        assert_eq!(fs::read_to_string(&file).unwrap(), before);
        assert!(
            !dir.path().join("deepseek.key").exists(),
            "no key is left without its vendor"
        );
    }

    #[tokio::test]
    async fn no_key_reference_leads_to_another_secret_of_the_machine() {
        let (dir, file, api) = folder();
        let before = fs::read_to_string(&file).unwrap();
        let at = |name: &str| dir.path().join(name).display().to_string();
        symlink("/etc/passwd", at("link")).unwrap();
        symlink(at("admin.key"), at("other")).unwrap();
        for key in [
            "file:/etc/passwd".to_owned(),
            format!("file:{}", at("../passwd")),
            format!("file:{}", at("link")),
            format!("file:{}", at("other")),
            format!("file:{}", at("admin.key")),
            "file:v.key".into(),
            "${TOLLGATE_TYPED_KEY}".into(),
            "${}".into(),
            SECRET.into(),
        ] {
            let fields = format!(r#""change": "change_vendor", "vendor": "v", "key": "{key}""#);
            let (status, refused) = change(&api, &fields).await;
            assert_eq!(status, 400, "{key}: {refused}");
            assert!(!refused.to_string().contains(SECRET), "{refused}");
        }
        assert_eq!(fs::read_to_string(&file).unwrap(), before);
    }

    #[tokio::test]
    async fn invalid_change_is_refused_with_the_words_of_check() {
        let (dir, file, api) = folder();
        let before = fs::read_to_string(&file).unwrap();
        for (fields, says) in [
            (r#""change": "drop""#, "change: must be one of"),
            (
                r#""change": "remove_model", "model": "m""#,
                "model: missing",
            ),
            (
                r#""change": "remove_vendor", "vendor": "x""#,
                "the file has no vendor",
            ),
            (
                r#""change": "change_price", "model": "m", "prices": {"inptu": "1"}"#,
                "inptu",
            ),
            (
                r#""change": "change_price", "model": "m", "prices": {"input": "1\"\nx = 1"}"#,
                "prices: input: must be one line",
            ),
            (
                r#""change": "change_price", "model": "m", "prices": {"input": "-1"}"#,
                "usdt_mtok.input",
            ),
            (
                r#""change": "change_vendor", "vendor": "v", "url": "ftp://x""#,
                "vendor[0].url",
            ),
            (
                r#""change": "add_vendor", "preset": "opnai""#,
                "did you mean openai?",
            ),
            (
                r#""change": "add_vendor", "preset": "openai", "key_in_file": true"#,
                "key_value",
            ),
            (
                r#""change": "add_vendor", "preset": "openai", "key": "${TOLLGATE_NO_SUCH}""#,
                "TOLLGATE_NO_SUCH",
            ),
        ] {
            let (status, refused) = change(&api, fields).await;
            assert_eq!(status, 400, "{fields}: {refused}");
            assert!(refused.to_string().contains(says), "{says}: {refused}");
        }
        assert_eq!(fs::read_to_string(&file).unwrap(), before);
        let files = fs::read_dir(dir.path()).unwrap();
        assert_eq!(files.count(), 3, "no other file is left");
    }

    #[tokio::test]
    async fn only_admins_change_the_configuration_and_test_vendors() {
        let (_dir, _file, api) = folder();
        for role in [Role::Read, Role::Finance, Role::Support] {
            let who = Operator::new("anna", role);
            for path in ["configuration/changes", "configuration/vendors/v/test"] {
                let (status, _) = asked_by(&who, &api, Method::POST, path, "{}").await;
                assert_eq!(status, 403, "{role} {path}");
            }
            let (status, _) = asked_by(&who, &api, Method::GET, "configuration", "").await;
            assert_eq!(status, 200);
        }
    }
}
