//! "Did you mean": what a mistyped word was likely meant to be.

/// The one of these words that is nearest, if it is near enough.
pub(crate) fn nearest<'a>(word: &str, known: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
    // A third of the letters may be wrong; of a word of two, none.
    let most = word.chars().count() / 3;
    let shortened = |one: &str, other: &str| one.len() >= 4 && other.starts_with(one);
    known
        .into_iter()
        .map(|candidate| {
            let near = shortened(word, candidate) || shortened(candidate, word);
            let distance = if near {
                1
            } else {
                strsim::osa_distance(word, candidate)
            };
            (distance, candidate)
        })
        .filter(|(distance, _)| (1..=most).contains(distance))
        .min_by_key(|(distance, _)| *distance)
        .map(|(_, candidate)| candidate)
}

/// `; did you mean x?`, or nothing.
pub(crate) fn hint<'a>(word: &str, known: impl IntoIterator<Item = &'a str>) -> String {
    nearest(word, known).map_or_else(String::new, |meant| format!("; did you mean {meant}?"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_slip_is_put_right_and_a_stranger_is_not_guessed_at() {
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
        assert_eq!(hint("lisen", known), "; did you mean listen?");
        assert_eq!(hint("x", known), "");
    }
}
