//! Takes out of a vendor's words what is the vendor's or the operator's own, before a caller or a log
//! sees them.

/// Beginnings of keys and of ids of organisations and projects.
const PREFIXES: [&str; 11] = [
    "sk-", "tg-", "pk-", "key-", "org-", "org_", "proj-", "proj_", "gsk_", "xai-", "req_",
];
/// Last labels that make a word with points an address rather than the path of a field.
const DOMAINS: [&str; 14] = [
    "com", "net", "org", "io", "ai", "dev", "app", "cloud", "co", "ru", "cn", "eu", "local",
    "internal",
];
/// A word of so many letters and digits is no word.
const OPAQUE_CHARS: usize = 24;

/// The text without addresses, keys, and ids.
#[must_use]
pub fn scrubbed(text: &str) -> String {
    let in_word = |c: char| c.is_alphanumeric() || matches!(c, '_' | '-' | '.' | '*');
    let mut clean = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(c) = rest.chars().next() {
        let end = match in_word(c) {
            true => rest.find(|c| !in_word(c)).unwrap_or(rest.len()),
            false => c.len_utf8(),
        };
        let (piece, behind) = rest.split_at(end);
        let word = piece.trim_end_matches('.');
        let address = behind.starts_with('@') || clean.ends_with('@') || clean.ends_with("://");
        if is_secret(word) || (in_word(c) && address) {
            clean.push('…');
            clean.push_str(&piece[word.len()..]);
        } else {
            clean.push_str(piece);
        }
        rest = behind;
    }
    clean
}

fn is_secret(word: &str) -> bool {
    let lower = word.to_ascii_lowercase();
    let digits = word.chars().any(|c| c.is_ascii_digit());
    let opaque = word.len() >= OPAQUE_CHARS && digits && !word.contains('.');
    let host = match lower.rsplit_once('.') {
        Some((_, last)) => DOMAINS.contains(&last) || is_ip(&lower),
        None => false,
    };
    opaque || host || PREFIXES.iter().any(|prefix| lower.starts_with(prefix))
}

fn is_ip(word: &str) -> bool {
    word.parse::<std::net::Ipv4Addr>().is_ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_text_keeps_its_sense_and_loses_what_is_not_the_callers() {
        for (said, kept) in [
            ("max_tokens: 99 > 64", "max_tokens: 99 > 64"),
            (
                "messages.0.content.1: wrong type.",
                "messages.0.content.1: wrong type.",
            ),
            (
                "tools.0.custom.input_schema is bad",
                "tools.0.custom.input_schema is bad",
            ),
            (
                "Key sk-proj-abc of org-XyZ123 (see https://vendor.example/keys, a@b.example) is bad: 'model'",
                "Key … of … (see https://…/keys, …@…) is bad: 'model'",
            ),
            ("id 0123456789abcdef0123456789abcdef.", "id …."),
            ("api_key:sk-live-abcdef1234567890", "api_key:…"),
            ("Bearer:sk-proj-aaa", "Bearer:…"),
            ("organization:org-abcdef", "organization:…"),
            ("api.openai.com/v1/x", "…/v1/x"),
            ("id=00000000-0000-0000-0000-000000000000;sk-ab", "id=…;…"),
            ("project[proj_123]/org-77", "project[…]/…"),
            ("at 10.0.0.1:8080", "at …:8080"),
            ("Неверный ключ: sk-1", "Неверный ключ: …"),
        ] {
            assert_eq!(scrubbed(said), kept, "{said}");
        }
    }
}
