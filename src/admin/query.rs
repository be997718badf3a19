//! Query parameters of the admin API, read one by one, so that every error names its parameter and no parameter is
//! ignored.

use super::refusal::Refusal;
use crate::text::{percent::decoded, time::parse_rfc3339_ms};

/// Parameters of a request that have not been read yet.
#[derive(Debug)]
pub(super) struct Query(Vec<(String, String)>);

impl Query {
    /// Parses a query. Refuses repeated parameters, and parameters that are not in `known`.
    pub(super) fn parse(query: Option<&str>, known: &[&str]) -> Result<Self, Refusal> {
        let mut parameters: Vec<(String, String)> = Vec::new();
        for pair in query.unwrap_or_default().split('&') {
            if pair.is_empty() {
                continue;
            }
            let (name, value) = pair.split_once('=').unwrap_or((pair, ""));
            let name = decoded(name).unwrap_or_else(|| name.to_owned());
            if !known.contains(&name.as_str()) {
                return Err(Refusal::unknown("parameter", "none", &name, known));
            }
            if parameters.iter().any(|(earlier, _)| *earlier == name) {
                let problem = "occurs twice; send this parameter once";
                return Err(Refusal::invalid(name, problem));
            }
            let problem = match decoded(value) {
                Some(value) if !value.is_empty() => {
                    parameters.push((name, value));
                    continue;
                }
                Some(_) => "is empty; leave the parameter out instead",
                None => "is not percent-encoded UTF-8",
            };
            return Err(Refusal::invalid(name, problem));
        }
        Ok(Self(parameters))
    }

    /// Reads an optional parameter.
    pub(super) fn optional<T>(
        &mut self,
        name: &str,
        read: impl FnOnce(&str) -> Result<T, String>,
    ) -> Result<Option<T>, Refusal> {
        let Some(index) = self.0.iter().position(|(given, _)| given == name) else {
            return Ok(None);
        };
        let (_, value) = self.0.swap_remove(index);
        let read = read(&value).map(Some);
        read.map_err(|problem| Refusal::invalid(name, problem))
    }
}

/// Parses an id of any type, such as an account's or a key's.
pub(super) fn id<T: std::str::FromStr<Err: std::fmt::Display>>(text: &str) -> Result<T, String> {
    text.parse::<T>().map_err(|error| error.to_string())
}

/// Returns a parser of whole numbers from 1 to `max`.
pub(super) fn up_to(max: usize) -> impl FnOnce(&str) -> Result<usize, String> {
    move |text| {
        let number = text.parse().ok();
        let number = number.filter(|number| (1..=max).contains(number));
        number.ok_or_else(|| format!("must be a whole number from 1 to {max}"))
    }
}

/// Returns a parser of one of these words.
pub(super) fn one_of(
    words: &'static [&'static str],
) -> impl FnOnce(&str) -> Result<&'static str, String> {
    move |text| {
        let found = words.iter().copied().find(|word| *word == text);
        found.ok_or_else(|| {
            let (last, others) = words.split_last().unwrap_or((&"", &[]));
            format!("must be {} or {last}", others.join(", "))
        })
    }
}

/// Parses a time to Unix milliseconds.
pub(super) fn time(text: &str) -> Result<u64, String> {
    parse_rfc3339_ms(text).ok_or_else(|| {
        "must be a date, for example 2026-01-31, or a time, for example 2026-01-31T12:00:00Z".into()
    })
}

#[cfg(test)]
mod tests {
    use tollgate_layers::key::AccountId;

    use super::*;

    const KNOWN: &[&str] = &["account", "model", "since"];

    type Read = (Option<AccountId>, Option<String>, Option<u64>);

    fn read(query: &str) -> Result<Read, Refusal> {
        let mut query = Query::parse(Some(query), KNOWN)?;
        Ok((
            query.optional("account", id)?,
            query.optional("model", |text| Ok(text.to_owned()))?,
            query.optional("since", time)?,
        ))
    }

    #[test]
    fn error_names_the_invalid_query_parameter() {
        for (query, begins) in [
            (
                "acount=a",
                "acount: unknown parameter; this call takes account, model, since",
            ),
            ("account=a&account=b", "account: occurs twice"),
            ("account=a&%61ccount=b", "account: occurs twice"),
            ("account=", "account: is empty"),
            ("account", "account: is empty"),
            ("account=a/b", "account: an id must have"),
            ("model=%zz", "model: is not percent-encoded"),
            ("model=%2", "model: is not percent-encoded"),
            ("model=%+1", "model: is not percent-encoded"),
            ("model=%ff", "model: is not percent-encoded"),
            ("since=soon", "since: must be a date"),
        ] {
            let message = read(query).unwrap_err().message();
            assert!(message.starts_with(begins), "{query}: {message}");
        }
        let none = Query::parse(Some("x=1"), &[]).unwrap_err().message();
        assert_eq!(none, "x: unknown parameter; this call takes none");
        assert!(Query::parse(None, &[]).is_ok() && Query::parse(Some(""), &[]).is_ok());
    }

    #[test]
    fn valid_query_parameters_are_accepted() {
        let (account, model, since) =
            read("account=acme&&model=%D0%BC%20a+b&since=1970-01-01T03:00:01+03:00").unwrap();
        assert_eq!(account.as_deref(), Some("acme"));
        assert_eq!(model.as_deref(), Some("м a+b"));
        assert_eq!(since, Some(1000));
        assert_eq!(read("").unwrap(), (None, None, None));
    }
}
