//! Changes of the configuration file: parses a requested change, checks the changed file and writes it.

use std::{
    collections::BTreeMap,
    ffi::OsString,
    fmt::Write as _,
    fs, io,
    path::{Path, PathBuf},
};

use rustix::fs::{Access, access};
use secrecy::SecretString;
use serde::Serialize;
use serde_json::Value;
use sha2::{Digest, Sha256};

use super::keys::{NewFile, TYPED, free_key_file, permitted, reference, typed_key};
use crate::{
    admin::{fields::Fields, refusal::Refusal},
    api::fields::{flag, line, words},
    config::{
        Config,
        edit::{Edit, Edited},
        sections::{KEY_FILE, OUTPUT_TOKENS_MAX, VendorArgs, preset, prices},
    },
    net::replace::replace_file,
    text::{
        difference::{Hunk, difference},
        hex::hex,
    },
};

const OF_ALL: [&str; 3] = ["change", "hash", "preview"];
/// The name of the change that restores the previous version of the file.
const RESTORE: &str = "restore";
/// The maximum length of the difference in an audit line, in bytes.
const DIFFERENCE_MAX: usize = 4096;
/// The names of the changes that a request can make, each with the fields that it takes.
const CHANGES: [(&str, &[&str]); 7] = [
    (
        "add_vendor",
        &[
            "preset",
            "name",
            "login",
            "values",
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
    (RESTORE, &[]),
];

/// A requested change of the file.
pub(super) struct Change {
    pub(super) name: &'static str,
    /// The edit of the file's text; `None` restores the previous version of the file.
    edit: Option<Edit>,
    hash: String,
    is_preview: bool,
    /// The reference to the vendor's key, if the request names one.
    reference: Option<String>,
    /// The vendor whose key the request contains, and the key itself. A preview contains no key.
    typed: Option<(String, Option<SecretString>)>,
}

impl Change {
    pub(super) fn parse(body: &[u8]) -> Result<Self, Refusal> {
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
            let problem =
                "send key_value only together with key_in_file, without key, and not in a preview";
            return Err(Refusal::invalid("key_value", problem));
        }
        let variable = is_typed.then(|| format!("${{{TYPED}}}"));
        let edit = match name {
            RESTORE => None,
            name => {
                let key = variable.or_else(|| reference.clone());
                Some(edit(name, &mut fields, key)?)
            }
        };
        let typed = edit.as_ref().filter(|_| is_typed);
        let typed = typed.map(|edit| (edit.subject().to_owned(), key));
        Ok(Self {
            name,
            edit,
            hash,
            is_preview,
            reference,
            typed,
        })
    }

    /// Returns the name of the vendor or model that changes; empty if the previous file is restored.
    pub(super) fn subject(&self) -> &str {
        self.edit.as_ref().map_or("", Edit::subject)
    }

    /// Checks the changed file, and writes it unless this is a preview.
    pub(super) fn make(&self, path: &Path) -> Result<ChangeAnswer, Refusal> {
        let before = read(path)?;
        if hash(&before) != self.hash {
            return Err(Refusal::Conflict(
                "the file has changed since the change was prepared: load the file again and repeat the change".into(),
            ));
        }
        let path = &fs::canonicalize(path).map_err(Refusal::fault)?;
        let folder = path.parent().unwrap_or(Path::new("/"));
        if let Some(reference) = &self.reference {
            permitted(reference, &before, folder)?;
        }
        let edited = match &self.edit {
            Some(edit) => edit
                .apply(&before)
                .map_err(|problem| Refusal::invalid("", problem))?,
            None => Edited {
                text: read(&previous(path))?,
                notes: Vec::new(),
            },
        };
        check(&edited.text, self.typed.is_some())?;
        let mut text = edited.text;
        let (mut key_file, mut key_field) = (None, None);
        if let Some((vendor, _)) = &self.typed {
            let file = free_key_file(folder, vendor)?;
            let typed = format!("${{{TYPED}}}");
            let before = text.split(&format!(" = \"{typed}\"")).next();
            let field = before.and_then(|it| it.rsplit(char::is_whitespace).next());
            key_field = field.map(str::to_owned);
            text = text.replace(&typed, &format!("file:{}", file.display()));
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
            key_field,
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

    /// Writes the file with the typed key, then the configuration. If the configuration is not written, removes the
    /// key's file.
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
            check(text, false)?;
        }
        let written = replace_file(&previous(path), before.as_bytes())
            .and_then(|()| replace_file(path, text.as_bytes()));
        if written.is_ok() {
            made.0 = None;
        }
        Ok(written)
    }
}

/// The response to a requested change: its effect, and whether it was written and applied.
#[derive(Serialize)]
pub(super) struct ChangeAnswer {
    /// The digest of the configuration file after the request.
    pub(super) hash: String,
    /// Whether the change has been written to the file.
    pub(super) written: bool,
    /// Whether the change is in force. If it is written but not in force yet, the gateway applies it at the next check
    /// of the file.
    pub(super) applied: bool,
    /// Whether the process has the permissions to replace the file.
    writable: bool,
    /// Why the file was not written.
    problem: Option<String>,
    difference: Vec<Hunk>,
    notes: Vec<String>,
    /// The file in which the typed key is stored. A preview names the file that would be created.
    key_file: Option<PathBuf>,
    /// The field of the vendor or its login that refers to this file, for example `key` or `key_file`.
    key_field: Option<String>,
}

impl ChangeAnswer {
    /// Returns the removed and added lines for the audit line, as a text of at most [`DIFFERENCE_MAX`] bytes.
    pub(super) fn difference_text(&self) -> String {
        let mut text = String::new();
        for hunk in &self.difference {
            let _ = writeln!(text, "@@ {}", hunk.line);
            let removed = hunk.removed.iter().map(|line| ('-', line));
            for (sign, line) in removed.chain(hunk.added.iter().map(|line| ('+', line))) {
                let _ = writeln!(text, "{sign} {line}");
            }
        }
        if text.len() > DIFFERENCE_MAX {
            text.truncate(text.floor_char_boundary(DIFFERENCE_MAX));
            text.push('…');
        }
        text
    }
}

fn edit(name: &str, fields: &mut Fields, key: Option<String>) -> Result<Edit, Refusal> {
    Ok(match name {
        "add_vendor" => {
            let preset = preset(&fields.required("preset", words)?);
            let preset = preset.map_err(|problem| Refusal::invalid("preset", problem))?;
            let mut args = new_models(fields)?;
            args.name = fields.optional("name", words)?;
            args.url = fields.optional("url", words)?;
            args.login = fields.optional("login", words)?;
            let values = fields.optional("values", texts_by_name)?;
            args.values = values.unwrap_or_default().into_iter().collect();
            if let Some((name, about)) = args.missing(preset).next() {
                let problem = format!(
                    "missing: the {}, like {}. {}",
                    about.title, about.example, about.find
                );
                return Err(Refusal::invalid(format!("values.{name}"), problem));
            }
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
            prices: fields.required("prices", price_list)?,
            valid_from: fields.optional("valid_from", words)?,
        },
    })
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
                "must have the classes input and output, for example {\"input\": \"0.30\", \"output\": \"1.20\"}",
            )
        })?,
        output_tokens_max: OUTPUT_TOKENS_MAX,
        ..VendorArgs::default()
    })
}

fn price_list(value: &Value) -> Result<BTreeMap<String, String>, String> {
    match value.as_object() {
        Some(all) if !all.is_empty() => texts_by_name(value),
        _ => Err(
            "must be prices by class, for example {\"input\": \"0.30\", \"output\": \"1.20\"}"
                .into(),
        ),
    }
}

fn texts_by_name(value: &Value) -> Result<BTreeMap<String, String>, String> {
    let all = value.as_object();
    let all =
        all.ok_or("must be an object with text values, for example {\"region\": \"us-east-1\"}")?;
    let all = all.iter().map(|(name, text)| {
        let text = words(text).map_err(|problem| format!("{name}: {problem}"))?;
        Ok((name.clone(), text))
    });
    all.collect()
}

/// Checks a configuration text as `tollgate check` does. If a service account's JSON is still `to_be_typed`, its file
/// does not exist yet and is not checked.
fn check(text: &str, to_be_typed: bool) -> Result<(), Refusal> {
    let checked = Config::parse(text, &|name| match name {
        TYPED => Some(TYPED.to_owned()),
        name => std::env::var(name).ok(),
    });
    let Err(errors) = checked else {
        return Ok(());
    };
    let is_unknown = |path: &str| to_be_typed && path.ends_with(KEY_FILE);
    match errors.iter().all(|error| is_unknown(&error.path)) {
        true => Ok(()),
        false => Err(Refusal::invalid("", errors.to_string())),
    }
}

pub(super) fn read(path: &Path) -> Result<String, Refusal> {
    fs::read_to_string(path)
        .map_err(|error| Refusal::Conflict(format!("{} cannot be read: {error}", path.display())))
}

/// Returns the path at which the previous version of a file is kept.
pub(super) fn previous(path: &Path) -> PathBuf {
    let mut name = OsString::from(path);
    name.push(".previous");
    name.into()
}

pub(super) fn is_writable(path: &Path) -> bool {
    let place = fs::canonicalize(path);
    let folder = place.as_deref().ok().and_then(Path::parent);
    folder.is_some_and(|folder| access(folder, Access::WRITE_OK).is_ok())
}

pub(super) fn hash(text: &str) -> String {
    hex(&Sha256::digest(text))
}
