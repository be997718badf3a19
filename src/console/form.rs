//! Parses the forms that a browser sends: `application/x-www-form-urlencoded`.

use crate::text::percent::{decoded, query};

/// Names and values, in the order in which they were sent.
#[derive(Clone, Debug, Default)]
pub(crate) struct Form(Vec<(String, String)>);

impl Form {
    /// A form without fields.
    pub(crate) const EMPTY: Self = Self(Vec::new());

    /// Parses a body or a query. A pair with an invalid encoding is left out, so that its field counts as missing.
    pub(crate) fn parse(text: &str) -> Self {
        let pairs = text.split('&').filter_map(|pair| {
            let (name, value) = pair.split_once('=').unwrap_or((pair, ""));
            let plain = |text: &str| decoded(&text.replace('+', "%20"));
            Some((plain(name)?, plain(value)?))
        });
        Self(pairs.filter(|(name, _)| !name.is_empty()).collect())
    }

    /// Returns all fields, in the order in which they were sent.
    pub(crate) fn pairs(&self) -> impl Iterator<Item = (&str, &str)> {
        self.0.iter().map(|(name, value)| (&**name, &**value))
    }

    /// Returns the value of a field, trimmed; empty if it is missing.
    pub(crate) fn get(&self, name: &str) -> &str {
        self.exact(name).trim()
    }

    /// Returns an amount in the form that the API accepts. People put spaces between thousands, and a comma before the
    /// kopecks. A comma before three digits is ambiguous, so such an amount is passed on unchanged, and the API refuses
    /// it.
    pub(crate) fn rubles(&self, name: &str) -> String {
        let text: String = self.get(name).split_whitespace().collect();
        match text.split_once(',') {
            Some((_, after)) if after.len() == 3 || after.contains([',', '.']) => text,
            Some((whole, kopecks)) if !whole.contains('.') => format!("{whole}.{kopecks}"),
            _ => text,
        }
    }

    /// Returns the value of a field as typed, not trimmed: a password may begin with a space.
    pub(crate) fn exact(&self, name: &str) -> &str {
        let found = self.0.iter().find(|(given, _)| given == name);
        found.map_or("", |(_, value)| value)
    }

    /// Returns a query with the named fields that are not empty.
    pub(crate) fn query(&self, names: &[&str]) -> String {
        let pairs = names.iter().map(|name| (*name, self.get(name)));
        query(pairs.filter(|(_, value)| !value.is_empty()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn amounts_are_read_as_people_write_them() {
        for (typed, read) in [
            ("1000,50", "1000.50"),
            ("1+000,5", "1000.5"),
            ("1%C2%A0000%E2%80%AF000", "1000000"),
            ("-1,25", "-1.25"),
            ("1000.50", "1000.50"),
            ("", ""),
            // The comma may separate thousands or decimals, so the text is passed on unchanged and the API refuses it.
            ("1,000", "1,000"),
            ("1,000.50", "1,000.50"),
            ("1,2,3", "1,2,3"),
        ] {
            assert_eq!(
                Form::parse(&format!("a={typed}")).rubles("a"),
                read,
                "{typed}"
            );
        }
    }

    #[test]
    fn form_is_parsed_as_browsers_encode_it() {
        let form = Form::parse("name=Acme+%26+Co&id=a%2Bb&empty=&pass=+x+&bad=%zz&name=other");
        assert_eq!(form.get("name"), "Acme & Co");
        assert_eq!(form.get("id"), "a+b");
        assert_eq!(
            (form.get("empty"), form.get("none"), form.get("bad")),
            ("", "", "")
        );
        assert_eq!((form.get("pass"), form.exact("pass")), ("x", " x "));
        assert_eq!(
            form.query(&["id", "empty", "name"]),
            "id=a%2Bb&name=Acme%20%26%20Co"
        );
    }
}
