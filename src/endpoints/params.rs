//! Query parameters of callers' reports. A misspelt parameter is refused: if a filter were ignored, the report would
//! contain calls that the caller did not want.

use tollgate_layers::{Error, error::Problem};

use crate::text::{percent::decoded, time::parse_rfc3339_ms};

const NAME_CHARS_MAX: usize = 64;

/// Returns the error for an unknown parameter or field.
pub(super) fn unknown_field(name: &str) -> Error {
    let name: String = name.chars().take(NAME_CHARS_MAX).collect();
    Error::invalid(name, Problem::Unsupported)
}

/// The query parameters of a report that have values.
#[derive(Debug)]
pub(crate) struct Params(Vec<(&'static str, String)>);

impl Params {
    /// Parses a query. Refuses parameters that are not in `known`, repeated parameters and empty ones.
    pub(crate) fn parse(query: Option<&str>, known: &[&'static str]) -> Result<Self, Error> {
        let mut params: Vec<(&'static str, String)> = Vec::new();
        for pair in query.unwrap_or_default().split('&') {
            if pair.is_empty() {
                continue;
            }
            let (name, value) = pair.split_once('=').unwrap_or((pair, ""));
            let Some(name) = known.iter().copied().find(|known| *known == name) else {
                return Err(unknown_field(name));
            };
            if params.iter().any(|(earlier, _)| *earlier == name) {
                return Err(Error::invalid(name, Problem::Duplicate));
            }
            if value.is_empty() {
                return Err(Error::invalid(name, Problem::Empty));
            }
            let wrong = || Error::invalid(name, Problem::WrongType("UTF-8"));
            params.push((name, decoded(value).ok_or_else(wrong)?));
        }
        Ok(Self(params))
    }

    /// Returns an optional parameter. `wanted` describes a valid value for the error text.
    pub(crate) fn optional<T>(
        &self,
        name: &'static str,
        wanted: &'static str,
        read: impl FnOnce(&str) -> Option<T>,
    ) -> Result<Option<T>, Error> {
        let wrong = || Error::invalid(name, Problem::WrongType(wanted));
        let found = self.0.iter().find(|(given, _)| *given == name);
        found
            .map(|(_, value)| read(value).ok_or_else(wrong))
            .transpose()
    }

    /// Parses a number from 1 to `max`.
    pub(crate) fn number(&self, name: &'static str, max: u64) -> Result<Option<u64>, Error> {
        match self.optional(name, "integer", |text| text.parse::<u64>().ok())? {
            Some(0) => Err(Error::invalid(name, Problem::BelowMin(1))),
            Some(number) if number > max => Err(Error::invalid(name, Problem::AboveMax(max))),
            number => Ok(number),
        }
    }

    /// Parses a time to Unix milliseconds.
    pub(crate) fn time(&self, name: &'static str) -> Result<Option<u64>, Error> {
        self.optional(name, "RFC 3339", parse_rfc3339_ms)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const KNOWN: &[&str] = &["days", "model", "since"];

    #[test]
    fn query_parameters_are_decoded_and_may_be_left_out() {
        let params = Params::parse(Some("days=7&model=a%2Fb&"), KNOWN).unwrap();
        let model = |text: &str| Some(text.to_owned());
        assert_eq!(params.number("days", 31).unwrap(), Some(7));
        assert_eq!(
            params
                .optional("model", "string", model)
                .unwrap()
                .as_deref(),
            Some("a/b")
        );
        assert_eq!(params.time("since").unwrap(), None);
        assert!(Params::parse(None, KNOWN).unwrap().0.is_empty());
    }

    #[test]
    fn error_names_an_unknown_or_invalid_parameter() {
        for (query, field) in [
            ("modle=a", "modle"),
            ("modle", "modle"),
            ("days=1&days=2", "days"),
            ("days=1&since=", "since"),
            ("days=%zz", "days"),
        ] {
            let refused = Params::parse(Some(query), KNOWN).unwrap_err();
            assert!(
                matches!(&refused, Error::Invalid { field: named, .. } if named == field),
                "{query}: {refused:?}"
            );
        }
        for query in ["days=0", "days=32", "days=x", "since=x"] {
            let params = Params::parse(Some(query), KNOWN).unwrap();
            let refused = params.number("days", 31).and(params.time("since"));
            assert!(refused.is_err(), "{query}");
        }
    }
}
