//! Searches the `debug` logs, responses and folders of all gateways in this test binary for the operator's key, the
//! vendor's key and any caller's key.
//!
//! `edge_headers` makes the same search with a vendor that repeats everything, and with a gateway in a separate
//! process.

use std::{
    io,
    ops::Deref,
    path::{Path, PathBuf},
    sync::{Mutex, Once, PoisonError},
};

use http::HeaderMap;
use serde_json::Value;
use tempfile::TempDir;
use tollgate_layers::auth::SecretKey;
use tracing_subscriber::{
    filter::Targets, layer::SubscriberExt as _, util::SubscriberInitExt as _,
};

pub use crate::support::process::{ADMIN_KEY, BOT_TOKEN, VENDOR_KEY, WEBHOOK_SECRET};

/// The beginning of the tokens that fake token endpoints issue.
pub const TOKEN: &str = "login-token-Xb81kQ";

/// The form of a caller's key: `tg-` and 48 letters and digits.
const KEY_BYTES: usize = 51;

/// The secrets that were found in the log. The log writer stores them and does not panic, because a panic would look
/// like a fault of the code that logs.
static LOGGED: Mutex<Vec<String>> = Mutex::new(Vec::new());

/// From this call on, every log line of this process is searched for secrets.
pub fn watch_the_log() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        let levels: Targets = "info,tollgate=debug,tollgate_layers=debug".parse().unwrap();
        let lines = tracing_subscriber::fmt::layer().json().with_writer(|| Net);
        tracing_subscriber::registry()
            .with(levels)
            .with(lines)
            .init();
    });
}

/// Returns whether a response contains a secret. A new key is not counted in the response that shows it to its
/// operator.
pub fn are_answered(headers: &HeaderMap, body: &[u8]) -> bool {
    let made = serde_json::from_slice::<Value>(body).unwrap_or_default();
    let body = String::from_utf8_lossy(body);
    let page = body.split_once("<code id=\"secret\">");
    let on_page = page.and_then(|(_, behind)| behind.split('<').next());
    let made = made["key"].as_str().or(on_page);
    has_secret(&format!("{headers:?}")) || secrets_in(&body).any(|secret| Some(secret) != made)
}

pub fn has_secret(text: &str) -> bool {
    secrets_in(text).next().is_some()
}

fn secrets_in(text: &str) -> impl Iterator<Item = &str> {
    let known = [ADMIN_KEY, BOT_TOKEN, TOKEN, VENDOR_KEY, WEBHOOK_SECRET]
        .into_iter()
        .filter(move |secret| text.contains(secret));
    let keys = text.match_indices("tg-").filter_map(move |(at, _)| {
        let key = text.get(at..at + KEY_BYTES)?;
        key.parse::<SecretKey>().is_ok().then_some(key)
    });
    known.chain(keys)
}

/// The folder of a gateway. When it is dropped, its files and the log so far are searched for secrets.
pub struct Folder(TempDir);

impl Folder {
    pub fn create() -> Self {
        Self(tempfile::tempdir().unwrap())
    }
}

impl Deref for Folder {
    type Target = TempDir;

    fn deref(&self) -> &TempDir {
        &self.0
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        if std::thread::panicking() {
            return;
        }
        for (file, bytes) in files_in(self.0.path()) {
            let text = String::from_utf8_lossy(&bytes);
            assert!(!has_secret(&text), "a secret is in {}", file.display());
        }
        let logged = LOGGED.lock().unwrap_or_else(PoisonError::into_inner);
        assert!(logged.is_empty(), "a secret is logged: {logged:?}");
    }
}

/// Returns all files in a folder and its subfolders.
pub fn files_in(folder: &Path) -> Vec<(PathBuf, Vec<u8>)> {
    let mut files = Vec::new();
    for entry in std::fs::read_dir(folder).into_iter().flatten().flatten() {
        let path = entry.path();
        if path.is_dir() {
            files.extend(files_in(&path));
        } else if let Ok(bytes) = std::fs::read(&path) {
            files.push((path, bytes));
        }
    }
    files
}

struct Net;

impl io::Write for Net {
    fn write(&mut self, line: &[u8]) -> io::Result<usize> {
        let text = String::from_utf8_lossy(line);
        if has_secret(&text) {
            let mut logged = LOGGED.lock().unwrap_or_else(PoisonError::into_inner);
            logged.push(text.into_owned());
        }
        Ok(line.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[test]
fn secret_scan_finds_only_whole_secrets() {
    let key = SecretKey::generate();
    let key = key.expose();
    for secret in [ADMIN_KEY, VENDOR_KEY, key] {
        let text = format!("tg-{{\"said\":\"Bearer {secret}\"}}");
        assert!(has_secret(&text), "{text}");
        let cut = &secret[..secret.len() - 1];
        assert!(!has_secret(cut), "{cut}");
    }
    // The part of a key that is displayed is not secret.
    assert!(!has_secret(&key[..9]) && !has_secret("tg-") && !has_secret(""));

    let none = HeaderMap::new();
    let answered = |body: String| are_answered(&none, body.as_bytes());
    assert!(!answered(format!("{{\"key\":\"{key}\"}}")));
    assert!(answered(format!("{{\"keys\":\"{key}\"}}")));
    assert!(answered(format!(
        "{{\"key\":\"{key}\",\"of\":\"{ADMIN_KEY}\"}}"
    )));
    let mut headers = none.clone();
    headers.insert("x-told", key.parse().unwrap());
    assert!(are_answered(&headers, b""));
}
