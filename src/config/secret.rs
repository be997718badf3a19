//! Where secrets come from: `${NAME}` of the environment or `file:/path`, never the file itself.

use secrecy::SecretString;

/// Looks a variable of the environment up.
pub(super) type Env<'a> = &'a dyn Fn(&str) -> Option<String>;

/// The secret that `text` refers to. What is said about a mistake never repeats the text.
pub(super) fn secret(text: &str, env: Env<'_>) -> Result<SecretString, String> {
    match referred(text, env) {
        Some(value) => value.map(SecretString::from),
        None => Err("a secret does not stand in this file: write \"${NAME}\" for a variable of the environment \
                     or \"file:/path\" for a file"
            .to_owned()),
    }
}

/// What `text` refers to; `None` when it refers to nothing and stands for itself.
pub(super) fn referred(text: &str, env: Env<'_>) -> Option<Result<String, String>> {
    if let Some(rest) = text.strip_prefix("${") {
        return Some(from_environment(rest.strip_suffix('}'), env));
    }
    text.strip_prefix("file:").map(from_file)
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
    match env(name) {
        None => Err(format!(
            "the environment has no {name}: export it, or use \"file:/path\""
        )),
        Some(value) => not_empty(&value)
            .ok_or_else(|| format!("{name} of the environment is empty: give it a value")),
    }
}

fn from_file(path: &str) -> Result<String, String> {
    match std::fs::read_to_string(path) {
        Err(error) => Err(format!(
            "cannot read {path}: {error}; give a file that this user can read"
        )),
        Ok(value) => {
            not_empty(&value).ok_or_else(|| format!("{path} is empty: put the secret into it"))
        }
    }
}

/// Files and shells leave a newline behind a value.
fn not_empty(value: &str) -> Option<String> {
    let value = value.trim();
    (!value.is_empty()).then(|| value.to_owned())
}

#[cfg(test)]
mod tests {
    use secrecy::ExposeSecret;

    use super::*;

    fn env(name: &str) -> Option<String> {
        match name {
            "GOOD" => Some("s3cret\n".to_owned()),
            "EMPTY" => Some(" ".to_owned()),
            _ => None,
        }
    }

    #[test]
    fn a_secret_comes_from_the_environment_or_a_file() {
        assert_eq!(secret("${GOOD}", &env).unwrap().expose_secret(), "s3cret");
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("key");
        std::fs::write(&path, "from file\n").unwrap();
        assert_eq!(
            secret(&format!("file:{}", path.display()), &env)
                .unwrap()
                .expose_secret(),
            "from file"
        );
    }

    #[test]
    fn anything_else_is_refused_without_being_repeated() {
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
            let problem = secret(text, &env).unwrap_err();
            assert!(!problem.contains("sk-literal"), "{problem}");
        }
    }
}
