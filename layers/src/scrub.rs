//! Removes secrets, and identifiers of the vendor and the operator, from a vendor's message, before the message reaches
//! a caller or a log.

use std::net::Ipv4Addr;

/// Prefixes of API keys and of the ids of organisations and projects.
const PREFIXES: [&str; 11] = [
    "sk-", "tg-", "pk-", "key-", "org-", "org_", "proj-", "proj_", "gsk_", "xai-", "req_",
];
/// Top-level domains. A dotted word that ends with one of them is a host name, not the path of a request's field.
const DOMAINS: [&str; 14] = [
    "com", "net", "org", "io", "ai", "dev", "app", "cloud", "co", "ru", "cn", "eu", "local",
    "internal",
];
/// A word with at least this many letters and digits counts as opaque, that is, as a key or an id.
const OPAQUE_CHARS: usize = 24;
/// A word with more letters than this cannot belong to a name that people chose.
const WORD_CHARS_MAX: usize = 16;

/// Returns the text with addresses, keys and ids removed.
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
    // A key may be `id.secret` or a token of three dotted parts, so each dotted part is checked by itself.
    let opaque = word
        .split('.')
        .any(|part| part.len() >= OPAQUE_CHARS && has_digit(part) && !is_dated_name(part));
    let host = match lower.rsplit_once('.') {
        Some((_, last)) => DOMAINS.contains(&last) || lower.parse::<Ipv4Addr>().is_ok(),
        None => false,
    };
    opaque || host || PREFIXES.iter().any(|prefix| lower.starts_with(prefix))
}

/// Returns whether the text is the name of a beta, a tool or a model that contains a date, for example
/// `context-management-2025-06-27` or `clear_tool_uses_20250919`. Such a name is not secret, and clients need it to
/// know what to omit in a retry.
fn is_dated_name(word: &str) -> bool {
    let parts: Vec<&str> = word.split(['-', '_']).collect();
    let is_number = |part: &str, digits: usize| {
        part.len() == digits && part.bytes().all(|byte| byte.is_ascii_digit())
    };
    let is_year = |part: &str| is_number(part, 4) && part.starts_with("20");
    let name = match parts.as_slice() {
        [name @ .., date] if is_number(date, 8) && date.starts_with("20") => name,
        [name @ .., year, month, day]
            if is_year(year) && is_number(month, 2) && is_number(day, 2) =>
        {
            name
        }
        _ => return false,
    };
    let is_word = |part: &&str| {
        let letters = part.bytes().all(|byte| byte.is_ascii_lowercase());
        let version = part.len() <= 4
            && part
                .bytes()
                .all(|byte| byte.is_ascii_lowercase() || byte.is_ascii_digit());
        !part.is_empty() && (version || (letters && part.len() <= WORD_CHARS_MAX))
    };
    // A key that is written in groups has digits in most groups; a name has digits in few of its parts.
    let numbered = name.iter().filter(|part| has_digit(part)).count();
    numbered <= 2 && name.iter().all(is_word)
}

fn has_digit(text: &str) -> bool {
    text.bytes().any(|byte| byte.is_ascii_digit())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_with_separators_or_several_parts_are_scrubbed() {
        for secret in [
            "a1b2-c3d4-e5f6-a7b8-20250514",
            "9f3c-11ab-77d0-2e5e-4b1a-20997788",
            "0123456789abcdef0123456789abcdef.AbCdEf1234567890",
            "eyJhbGciOiJIUzI1NiIsInR5cCI6IkpXVCJ9.eyJzdWIiOiIxMjM0NTY3ODkwIn0.c2lnbmF0dXJlMTIzNDU2Nzg5MA",
        ] {
            let text = scrubbed(&format!("bad key {secret}"));
            assert!(
                !text.contains(secret) && !text.contains(&secret[..16]),
                "{text}"
            );
        }
    }

    #[test]
    fn secrets_and_host_names_are_scrubbed_from_a_vendors_message_without_losing_its_meaning() {
        for (reported, stored) in [
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
            assert_eq!(scrubbed(reported), stored, "{reported}");
        }
    }

    #[test]
    fn dated_model_names_are_kept_but_keys_that_resemble_them_are_scrubbed() {
        for name in [
            "clear_thinking_20251015",
            "clear_tool_uses_20250919",
            "tool_search_tool_bm25_20251119",
            "claude-opus-4-5-20251101",
            "claude-3-5-sonnet-20241022",
            "interleaved-thinking-2025-05-14",
            "mid-conversation-system-clear-at-2026-08-21",
            "long-context-1m-2025-08-07",
        ] {
            let reported = format!("Unexpected value(s) `{name}` for the `anthropic-beta` header");
            assert_eq!(scrubbed(&reported), reported);
        }
        for secret in [
            "0123456789abcdef01234567-2025-05-14",
            "AKIAIOSFODNN7EXAMPLE-20250514",
            "acme-production-ai-platform-391204",
            "acme-production-platform-2025-0514",
            "acme-production-platform-19991231",
            "123e4567-e89b-42d3-a456-426614174000",
            "abcdefghijklmnopqrstuvwxyz_20250514",
        ] {
            assert_eq!(scrubbed(&format!("see {secret}.")), "see ….", "{secret}");
        }
    }
}
