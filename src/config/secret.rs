//! Resolves references to secrets: `${NAME}` (an environment variable) or `file:/path`. The configuration file itself
//! never contains a secret.

use std::{cell::RefCell, io, path::Path};

use secrecy::SecretString;

use super::files::Files;

/// Access to the environment variables and files from which secrets are read.
#[derive(Clone, Copy)]
pub(super) struct Env<'a> {
    variable: &'a dyn Fn(&str) -> Option<String>,
    files: &'a RefCell<Files>,
}

impl<'a> Env<'a> {
    /// Creates access to variables and files. `variable` returns the value of an environment variable, and `files`
    /// records each file that is read.
    pub(super) fn new(
        variable: &'a dyn Fn(&str) -> Option<String>,
        files: &'a RefCell<Files>,
    ) -> Self {
        Self { variable, files }
    }

    pub(super) fn read(self, path: &str) -> io::Result<Vec<u8>> {
        self.files.borrow_mut().read(Path::new(path))
    }
}

/// Returns the secret to which `text` refers. The error message never contains the text.
pub(super) fn secret(text: &str, env: Env<'_>) -> Result<SecretString, String> {
    match referred(text, env) {
        Some(value) => value.map(SecretString::from),
        None => Err(
            "a secret must not be in this file: write \"${NAME}\" for an environment variable, or \
             \"file:/path\" for a file"
                .to_owned(),
        ),
    }
}

/// Returns the value to which `text` refers. `None` if `text` is not a reference but a literal value.
pub(super) fn referred(text: &str, env: Env<'_>) -> Option<Result<String, String>> {
    if let Some(rest) = text.strip_prefix("${") {
        return Some(from_environment(rest.strip_suffix('}'), env));
    }
    let path = text.strip_prefix("file:")?;
    Some(from_file(path, env))
}

fn from_environment(name: Option<&str>, env: Env<'_>) -> Result<String, String> {
    let good = |name: &&str| {
        !name.is_empty() && name.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'_')
    };
    let Some(name) = name.filter(good) else {
        return Err("must be \"${NAME}\" alone, with a NAME of letters, digits and '_'".to_owned());
    };
    match (env.variable)(name) {
        None => Err(format!(
            "the environment variable {name} is not set: export it, or write \"file:/path\""
        )),
        Some(value) => not_empty(&value)
            .ok_or_else(|| format!("the environment variable {name} is empty: give it a value")),
    }
}

fn from_file(path: &str, env: Env<'_>) -> Result<String, String> {
    let text = env.read(path).and_then(|bytes| {
        String::from_utf8(bytes).map_err(|_| io::Error::from(io::ErrorKind::InvalidData))
    });
    match text {
        Err(error) => Err(format!(
            "cannot read {path}: {error}; give a file that the gateway's user can read"
        )),
        Ok(value) => not_empty(&value)
            .ok_or_else(|| format!("the file {path} is empty: write the secret into it")),
    }
}

/// Returns the value without spaces and newlines around it, which files and shells may add. `None` if nothing is left.
fn not_empty(value: &str) -> Option<String> {
    let value = value.trim();
    (!value.is_empty()).then(|| value.to_owned())
}

/// Calls a function with access to these environment variables.
#[cfg(test)]
pub(super) fn with_variables<T>(
    variable: &dyn Fn(&str) -> Option<String>,
    look: impl FnOnce(Env<'_>) -> T,
) -> T {
    look(Env::new(variable, &RefCell::default()))
}

#[cfg(test)]
mod tests {
    use secrecy::ExposeSecret;

    use super::*;

    fn read(text: &str) -> Result<SecretString, String> {
        with_variables(&env, |env| secret(text, env))
    }

    fn env(name: &str) -> Option<String> {
        match name {
            "GOOD" => Some("s3cret\n".to_owned()),
            "EMPTY" => Some(" ".to_owned()),
            _ => None,
        }
    }

    #[test]
    fn a_secret_comes_from_the_environment_or_a_file() {
        assert_eq!(read("${GOOD}").unwrap().expose_secret(), "s3cret");
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("key");
        std::fs::write(&path, "from file\n").unwrap();
        assert_eq!(
            read(&format!("file:{}", path.display()))
                .unwrap()
                .expose_secret(),
            "from file"
        );
    }

    #[test]
    fn invalid_secret_reference_is_refused_without_being_printed() {
        for text in [
            "sk-literal",
            "",
            "${EMPTY}",
            "${}",
            "${sk-literal}",
            "${GOOD",
            "${NONE}",
            "file:/no/such/file",
        ] {
            let problem = read(text).unwrap_err();
            assert!(!problem.contains("sk-literal"), "{problem}");
        }
    }
}
