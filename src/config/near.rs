//! Names that were probably meant.

/// Of the known names the one that was probably meant.
pub(crate) fn near<'a>(name: &str, known: impl Iterator<Item = &'a str>) -> Option<&'a str> {
    let far = 1 + name.chars().count() / 3;
    known
        .map(|known| (distance(name, known), known))
        .filter(|(distance, _)| *distance <= far)
        .min()
        .map(|(_, known)| known)
}

/// How many letters must be put in, taken out or changed, in whatever case they are.
fn distance(one: &str, other: &str) -> usize {
    let other: Vec<char> = other.to_lowercase().chars().collect();
    let mut row: Vec<usize> = (0..=other.len()).collect();
    for (line, letter) in one.to_lowercase().chars().enumerate() {
        let mut before = line;
        row[0] = line + 1;
        for (column, compared) in other.iter().enumerate() {
            let changed = before + usize::from(letter != *compared);
            before = row[column + 1];
            row[column + 1] = changed.min(before + 1).min(row[column] + 1);
        }
    }
    row[other.len()]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_name_that_was_meant_is_found() {
        let names = ["openai", "anthropic", "mistral-eu"];
        for (name, meant) in [
            ("opneai", Some("openai")),
            ("OpenAI", Some("openai")),
            ("antropic", Some("anthropic")),
            ("mistral", Some("mistral-eu")),
            ("grok", None),
        ] {
            assert_eq!(near(name, names.into_iter()), meant, "{name}");
        }
    }

    #[test]
    fn distances() {
        for (one, other, apart) in [
            ("", "", 0),
            ("a", "", 1),
            ("kitten", "sitting", 3),
            ("ab", "ba", 2),
        ] {
            assert_eq!(distance(one, other), apart, "{one} {other}");
        }
    }
}
