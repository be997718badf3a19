//! The texts of the pages. They are written in English in the templates and in the code, where [`text`] marks them.

use std::fmt;

use tollgate_layers::respond::Language;

/// Marks a text that a page translates later.
pub(super) const fn text(english: &'static str) -> &'static str {
    english
}

/// A text in a language; one that is not in the table stays as it is.
pub(super) fn translated(english: &str, _: Language) -> &str {
    english
}

/// A translated text with its values in the places `{0}`, `{1}`.
pub(super) fn filled(english: &str, language: Language, values: &[&dyn fmt::Display]) -> String {
    let mut filled = String::new();
    let mut rest = translated(english, language);
    while let Some((before, after)) = rest.split_once('{') {
        filled.push_str(before);
        let Some((place, after)) = after.split_once('}') else {
            filled.push('{');
            rest = after;
            continue;
        };
        let value = place
            .parse()
            .ok()
            .and_then(|place: usize| values.get(place));
        if let Some(value) = value {
            filled.push_str(&value.to_string());
        }
        rest = after;
    }
    filled.push_str(rest);
    filled
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_fill_their_places_once() {
        let filled = |english| filled(english, Language::En, &[&"{1}", &2]);
        assert_eq!(filled("{1} of {0}, {1}"), "2 of {1}, 2");
        assert_eq!(filled("none"), "none");
    }
}
