//! Suggests the known word that was probably meant by a mistyped word.

/// Returns the most similar known word, if it is similar enough.
pub(crate) fn nearest<'a>(word: &str, known: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
    // At most a third of the letters may differ, so a word of two letters must match exactly.
    let most = word.chars().count() / 3;
    let shortened = |one: &str, other: &str| one.len() >= 4 && other.starts_with(one);
    known
        .into_iter()
        .map(|candidate| {
            let near = shortened(word, candidate) || shortened(candidate, word);
            let edits = strsim::osa_distance(word, candidate);
            (if near { 1 } else { edits }, edits, candidate)
        })
        .filter(|(distance, ..)| (1..=most).contains(distance))
        .min_by_key(|(distance, edits, _)| (*distance, *edits))
        .map(|(.., candidate)| candidate)
}

/// Returns `; did you mean x?`, or an empty text if no known word is similar enough.
pub(crate) fn hint<'a>(word: &str, known: impl IntoIterator<Item = &'a str>) -> String {
    nearest(word, known).map_or_else(String::new, |meant| format!("; did you mean {meant}?"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn typo_gets_a_suggestion_but_an_unrelated_word_does_not() {
        let known = [
            "listen",
            "service",
            "body_bytes_max",
            "sell_rate_multiplier",
        ];
        for (word, meant) in [
            ("lisen", Some("listen")),
            ("litsen", Some("listen")),
            ("body_byte_max", Some("body_bytes_max")),
            ("sell_multiplier", Some("sell_rate_multiplier")),
            ("listen_address", Some("listen")),
            ("sell_rate", Some("sell_rate_multiplier")),
            ("hello", None),
            ("", None),
        ] {
            assert_eq!(nearest(word, known), meant, "{word}");
        }
        let models = ["gpt-5", "gpt-5.4", "gpt-5.4-mini"];
        assert_eq!(nearest("gpt-5.4-minis", models), Some("gpt-5.4-mini"));
        assert_eq!(hint("lisen", known), "; did you mean listen?");
        assert_eq!(hint("x", known), "");
    }
}
