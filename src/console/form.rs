//! What a browser sends of a form: `application/x-www-form-urlencoded`.

use crate::text::percent::{decoded, encoded};

/// Names and values, in their order.
#[derive(Clone, Debug, Default)]
pub(crate) struct Form(Vec<(String, String)>);

impl Form {
    /// Nothing was sent.
    pub(crate) const EMPTY: Self = Self(Vec::new());

    /// Reads a body or a query. What is not encoded text is left out, and so refused by whoever needs it.
    pub(crate) fn parse(text: &str) -> Self {
        let pairs = text.split('&').filter_map(|pair| {
            let (name, value) = pair.split_once('=').unwrap_or((pair, ""));
            let plain = |text: &str| decoded(&text.replace('+', "%20"));
            Some((plain(name)?, plain(value)?))
        });
        Self(pairs.filter(|(name, _)| !name.is_empty()).collect())
    }

    /// The value of a field without blanks around it; empty where there is none.
    pub(crate) fn get(&self, name: &str) -> &str {
        let found = self.0.iter().find(|(given, _)| given == name);
        found.map_or("", |(_, value)| value.trim())
    }

    /// A value as it was typed: a password may begin with a blank.
    pub(crate) fn exact(&self, name: &str) -> &str {
        let found = self.0.iter().find(|(given, _)| given == name);
        found.map_or("", |(_, value)| value)
    }

    /// Those of these fields that say something, as a query.
    pub(crate) fn query(&self, names: &[&str]) -> String {
        let given = names.iter().filter(|name| !self.get(name).is_empty());
        let pairs: Vec<String> = given
            .map(|name| format!("{name}={}", encoded(self.get(name))))
            .collect();
        pairs.join("&")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_form_is_read_as_browsers_write_it() {
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
