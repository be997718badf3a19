//! Resolves secrets from `${NAME}` (an environment variable) or `file:/path`; a secret is never in the configuration
//! file.

use std::{cell::RefCell, io, path::Path};

use secrecy::SecretString;

use super::files::Files;

/// Access to environment variables and files, from which secrets are read.
#[derive(Clone, Copy)]
pub(super) struct Env<'a> {
    variable: &'a dyn Fn(&str) -> Option<String>,
    files: &'a RefCell<Files>,
}

impl<'a> Env<'a> {
    /// Creates the source: `variable` looks up environment variables; `files` records each file that is read.
    pub(super) fn new(
        variable: &'a dyn Fn(&str) -> Option<String>,
        files: &'a RefCell<Files>,
    ) -> Self {
        Self { variable, files }
    }

    /// Reads a file and records that it was read.
    pub(super) fn read(self, path: &str) -> io::Result<Vec<u8>> {
        self.files.borrow_mut().read(Path::new(path))
    }
}

/// Returns the secret that `text` refers to. The problem never repeats the text.
pub(super) fn secret(text: &str, env: Env<'_>) -> Result<SecretString, String> {
    match referred(text, env) {
        Some(value) => value.map(SecretString::from),
        None => Err("a secret must not be in this file: write \"${NAME}\" for a variable of the environment \
                     or \"file:/path\" for a file"
            .to_owned()),
    }
}

/// Returns the value that `text` refers to; `None` if `text` is not a reference but a literal.
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
        return Err(
            "write \"${NAME}\" with a name of letters, digits and '_', and nothing around it"
                .to_owned(),
        );
    };
    match (env.variable)(name) {
        None => Err(format!(
            "the environment has no {name}: export it, or use \"file:/path\""
        )),
        Some(value) => not_empty(&value)
            .ok_or_else(|| format!("{name} of the environment is empty: give it a value")),
    }
}

fn from_file(path: &str, env: Env<'_>) -> Result<String, String> {
    let text = env.read(path).and_then(|bytes| {
        String::from_utf8(bytes).map_err(|_| io::Error::from(io::ErrorKind::InvalidData))
    });
    match text {
        Err(error) => Err(format!(
            "cannot read {path}: {error}; give a file that this user can read"
        )),
        Ok(value) => {
            not_empty(&value).ok_or_else(|| format!("{path} is empty: put the secret into it"))
        }
    }
}

/// Returns the value without the trailing newline that files and shells add; `None` if it is empty.
fn not_empty(value: &str) -> Option<String> {
    let value = value.trim();
    (!value.is_empty()).then(|| value.to_owned())
}

/// Runs a function that sees these environment variables.
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

    fn of(text: &str) -> Result<SecretString, String> {
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
        assert_eq!(of("${GOOD}").unwrap().expose_secret(), "s3cret");
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("key");
        std::fs::write(&path, "from file\n").unwrap();
        assert_eq!(
            of(&format!("file:{}", path.display()))
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
            let problem = of(text).unwrap_err();
            assert!(!problem.contains("sk-literal"), "{problem}");
        }
    }
}
