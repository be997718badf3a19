//! The file to which an import writes the keys that it generates. A key is written to the file before its digest is
//! sent to the gateway.

use std::{
    collections::HashMap,
    fs::{self, File, OpenOptions},
    io::{self, Write},
    path::{Path, PathBuf},
};

use tollgate_layers::{auth::SecretKey, key::AccountId};

use crate::cli::{
    csv::{self, quoted},
    failure::Failure,
};

/// The file of generated keys, and the keys that earlier runs wrote to it.
#[derive(Debug, Default)]
pub(super) struct Keys {
    path: PathBuf,
    secrets: HashMap<(String, String), SecretKey>,
    out: Option<File>,
}

const KEYS_HEAD: &str = "account,key_name,key\n";

impl Keys {
    /// Reads the keys that an earlier run wrote.
    pub(super) fn open(path: &Path) -> Result<Self, Failure> {
        let mut keys = Self {
            path: path.to_owned(),
            ..Self::default()
        };
        let text = match fs::read_to_string(path) {
            Ok(text) => text,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(keys),
            Err(error) => return Err(keys.cannot(&error)),
        };
        let not_ours = || {
            Failure::Usage(format!(
                "--keys-out {}: the file exists and does not contain keys created by an import; give another file",
                path.display()
            ))
        };
        let records = csv::records(&text).map_err(|_| not_ours())?;
        let mut records = records.into_iter();
        if records
            .next()
            .is_none_or(|head| head.cells.join(",") != KEYS_HEAD.trim())
        {
            return Err(not_ours());
        }
        for record in records {
            let [account, name, key] =
                <[String; 3]>::try_from(record.cells).map_err(|_| not_ours())?;
            let secret = key.parse::<SecretKey>().map_err(|_| not_ours())?;
            keys.secrets.insert((account, name), secret);
        }
        Ok(keys)
    }

    pub(super) fn known(&self, account: &AccountId, name: &str) -> Option<&SecretKey> {
        self.secrets.get(&(account.to_string(), name.to_owned()))
    }

    /// Returns the key with this name: the one that an earlier run wrote, or else a new one. A new key is on disk
    /// before it is returned.
    pub(super) fn secret(&mut self, account: &AccountId, name: &str) -> Result<SecretKey, Failure> {
        if let Some(secret) = self.known(account, name) {
            return Ok(secret.clone());
        }
        let secret = SecretKey::generate();
        self.append(&format!("{account},{},{}\n", quoted(name), secret.expose()))
            .map_err(|error| self.cannot(&error))?;
        let id = (account.to_string(), name.to_owned());
        self.secrets.insert(id, secret.clone());
        Ok(secret)
    }

    fn append(&mut self, line: &str) -> io::Result<()> {
        let out = match &mut self.out {
            Some(out) => out,
            none => {
                let mut options = OpenOptions::new();
                options.append(true).create(true);
                #[cfg(unix)]
                std::os::unix::fs::OpenOptionsExt::mode(&mut options, 0o600);
                let mut out = options.open(&self.path)?;
                // If the file existed before, its permissions may be too wide for a file of keys, so they are set here.
                #[cfg(unix)]
                out.set_permissions(std::os::unix::fs::PermissionsExt::from_mode(0o600))?;
                if out.metadata()?.len() == 0 {
                    out.write_all(KEYS_HEAD.as_bytes())?;
                }
                none.insert(out)
            }
        };
        out.write_all(line.as_bytes())?;
        out.sync_all()
    }

    fn cannot(&self, error: &io::Error) -> Failure {
        Failure::Io(format!("--keys-out {}: {error}", self.path.display()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn generated_keys_are_stored_once_in_a_file_that_only_the_user_can_read() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("made.csv");
        let account: AccountId = "acme".parse().unwrap();
        let mut keys = Keys::open(&path).unwrap();
        let secret = keys.secret(&account, "a, \"b\"").unwrap();
        let again = keys.secret(&account, "a, \"b\"").unwrap();
        assert_eq!(again.expose(), secret.expose());
        let mut later = Keys::open(&path).unwrap();
        assert_eq!(
            later.secret(&account, "a, \"b\"").unwrap().expose(),
            secret.expose()
        );
        later.secret(&account, "other").unwrap();
        let text = fs::read_to_string(&path).unwrap();
        assert_eq!(text.lines().count(), 3, "{text}");
        #[cfg(unix)]
        {
            use std::os::unix::fs::PermissionsExt;
            assert_eq!(
                fs::metadata(&path).unwrap().permissions().mode() & 0o777,
                0o600
            );
        }
        fs::write(&path, "account,name\n").unwrap();
        assert_eq!(Keys::open(&path).unwrap_err().code(), 64);
    }
}
