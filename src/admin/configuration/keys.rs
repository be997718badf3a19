//! Vendors' keys in requests that change the configuration: which references a request may name, and the files for keys
//! that the request contains.

use std::{
    fs,
    io::{self, Write as _},
    os::unix::fs::OpenOptionsExt as _,
    path::{Component, Path, PathBuf},
};

use secrecy::{ExposeSecret, SecretString};
use serde_json::Value;

use crate::{admin::refusal::Refusal, api::fields::words, config::described::foreign_references};

const KEY_CHARS_MAX: usize = 8192;
/// A placeholder for a typed key. A configuration is checked with it before the key's file exists.
pub(super) const TYPED: &str = "TOLLGATE_TYPED_KEY";
/// The maximum number of key files of one vendor.
const KEY_FILES_MAX: usize = 100;

/// Parses a reference to a key. The error text does not repeat the reference, because it may be the key itself.
pub(super) fn reference(value: &Value) -> Result<String, String> {
    let problem = "must be \"${NAME}\" for an environment variable of the gateway or \"file:/path\" for a file; \
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

/// Parses a typed key: one line, or a service account's JSON.
pub(super) fn typed_key(value: &Value) -> Result<SecretString, String> {
    let text = value.as_str().map(str::trim).unwrap_or_default();
    let is_plain = text.starts_with('{') || !text.contains(char::is_control);
    match is_plain && (1..=KEY_CHARS_MAX).contains(&text.len()) {
        true => Ok(text.into()),
        false => Err(format!(
            "must be one line of at most {KEY_CHARS_MAX} characters, or a service account's JSON"
        )),
    }
}

/// Refuses references by which a vendor would get another secret of this machine as its key. These are references to
/// the gateway's own secrets and to files outside the configuration folder.
pub(super) fn permitted(reference: &str, text: &str, folder: &Path) -> Result<(), Refusal> {
    let refused = |problem: &str| Err(Refusal::invalid("key", problem));
    let foreign = foreign_references(text).map_err(|problem| Refusal::invalid("", problem))?;
    if foreign.contains(reference) {
        return refused("this names another secret of the gateway: name the vendor's own key");
    }
    let Some(path) = reference.strip_prefix("file:").map(Path::new) else {
        return Ok(());
    };
    let is_plain = path
        .components()
        .all(|it| matches!(it, Component::RootDir | Component::Normal(_)));
    // A symbolic link in the folder may lead out of it.
    let place = fs::canonicalize(path).unwrap_or_else(|_| path.to_owned());
    let is_foreign = |it: &String| {
        let other = it.strip_prefix("file:").map(fs::canonicalize);
        matches!(other, Some(Ok(other)) if other == place)
    };
    if !is_plain || !place.starts_with(folder) || foreign.iter().any(is_foreign) {
        return refused(
            "the key file must be in the configuration folder and must not be another secret of the gateway. To use a \
             key file elsewhere, edit the configuration by hand",
        );
    }
    Ok(())
}

/// Returns an unused path for a new key file. Characters of the vendor's name that could lead out of the folder are
/// replaced.
pub(super) fn free_key_file(folder: &Path, vendor: &str) -> Result<PathBuf, Refusal> {
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
            "the configuration folder has {KEY_FILES_MAX} key files of this vendor already: remove some"
        ))
    })
}

/// A new file that is removed when this value is dropped, unless the path is taken out first.
pub(super) struct NewFile(pub(super) Option<PathBuf>);

impl NewFile {
    pub(super) fn write(&mut self, path: &Path, key: &SecretString) -> io::Result<()> {
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
