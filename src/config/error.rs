//! The mistakes in a configuration file, which are all reported together.

use std::fmt;

/// A mistake in the configuration, with its location and a message.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ConfigError {
    /// Path of the field, for example `vendor[0].url`. Empty if the mistake concerns the file as a whole.
    pub path: String,
    /// Line in the file, counted from 1. `None` if it is unknown.
    pub line: Option<usize>,
    /// Message for the operator: the mistake, and how to correct it.
    pub problem: String,
}

impl fmt::Display for ConfigError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(line) = self.line {
            write!(f, "line {line}: ")?;
        }
        if !self.path.is_empty() {
            write!(f, "{}: ", self.path)?;
        }
        f.write_str(&self.problem)
    }
}

/// All mistakes in a configuration, ordered by line. There is at least one, and none contains a secret.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ConfigErrors(pub(super) Vec<ConfigError>);

impl ConfigErrors {
    /// Returns the mistakes, ordered by line.
    pub fn iter(&self) -> impl Iterator<Item = &ConfigError> {
        self.0.iter()
    }
}

/// Writes one mistake per line.
impl fmt::Display for ConfigErrors {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, error) in self.0.iter().enumerate() {
            if index > 0 {
                f.write_str("\n")?;
            }
            error.fmt(f)?;
        }
        Ok(())
    }
}

impl std::error::Error for ConfigErrors {}

/// Returns whether `path` is the path `outer`, or the path of a field in the table or list at `outer`.
pub(super) fn is_within(path: &str, outer: &str) -> bool {
    let rest = path.strip_prefix(outer);
    rest.is_some_and(|rest| rest.is_empty() || rest.starts_with(['.', '[']))
}

/// Collects the mistakes that the checks find.
#[derive(Debug, Default)]
pub(super) struct Errors(Vec<ConfigError>);

impl Errors {
    pub(super) fn add(&mut self, path: impl Into<String>, problem: impl Into<String>) {
        self.0.push(ConfigError {
            path: path.into(),
            line: None,
            problem: problem.into(),
        });
    }

    pub(super) fn add_at(
        &mut self,
        line: usize,
        path: impl Into<String>,
        problem: impl Into<String>,
    ) {
        self.0.push(ConfigError {
            path: path.into(),
            line: Some(line),
            problem: problem.into(),
        });
    }

    /// Records a missing field. Does nothing if a mistake in this field is already recorded: the field is then not
    /// missing in the file, but was removed from the file's values because of that mistake.
    pub(super) fn missing(&mut self, path: &str, advice: &str) {
        if !self.has_reported(path) {
            self.add(path, format!("missing; {advice}"));
        }
    }

    /// Returns whether a mistake is already recorded for a field or for a table that contains it.
    pub(super) fn has_reported(&self, path: &str) -> bool {
        let contains = |outer: &str| !outer.is_empty() && is_within(path, outer);
        self.0.iter().any(|error| contains(&error.path))
    }

    /// Adds the preset's name to each mistake in a value that comes from a preset.
    pub(super) fn name_origins(&mut self, origin: impl Fn(&str) -> Option<&'static str>) {
        for error in &mut self.0 {
            if let Some(preset) = origin(&error.path) {
                error.problem += &format!(
                    "; this value is from preset {preset:?}: to replace it, write the setting into this file"
                );
            }
        }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Returns the mistakes ordered by line. `line_of` returns the line of a field by its path.
    pub(super) fn finish(self, line_of: impl Fn(&str) -> Option<usize>) -> ConfigErrors {
        ConfigErrors(self.list(line_of))
    }

    /// Returns the mistakes ordered by line, like `finish`, but as a list that may be empty.
    pub(super) fn list(mut self, line_of: impl Fn(&str) -> Option<usize>) -> Vec<ConfigError> {
        for error in &mut self.0 {
            if error.line.is_none() {
                error.line = line_of(&error.path);
            }
        }
        self.0.sort_by_key(|error| error.line);
        self.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn invalid_field_is_not_also_reported_as_missing() {
        let mut errors = Errors::default();
        errors.add("model[0].usdt_mtok", "must be a table");
        errors.missing("model[0].usdt_mtok.input", "give it");
        errors.missing("model[0].usdt_mtok", "give it");
        errors.missing("model[0].usdt_mtok_other", "give it");
        assert_eq!(errors.0.len(), 2);
    }

    #[test]
    fn configuration_errors_are_printed_one_per_line_in_the_order_of_the_file() {
        let mut errors = Errors::default();
        errors.add("b", "is wrong");
        errors.add_at(1, "a", "is wrong");
        errors.add("", "cannot be read");
        let shown = errors.finish(|path| (path == "b").then_some(7)).to_string();
        assert_eq!(
            shown,
            "cannot be read\nline 1: a: is wrong\nline 7: b: is wrong"
        );
    }
}
