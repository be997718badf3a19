//! Reads the session id that a client sends with a call. The id is only shown on receipts and decides nothing. So an
//! invalid id is ignored, and the call is not refused.

use http::{HeaderMap, HeaderName};
pub use tollgate_ledger::session::SessionId;

/// Headers that may contain a session id, in order of preference. The first valid id is used.
static HEADERS: [HeaderName; 4] = [
    HeaderName::from_static("x-claude-code-session-id"),
    // A header for callers that choose the session id themselves.
    HeaderName::from_static("x-session-id"),
    // The header of opencode, and of other clients that use it for sticky sessions on one server.
    HeaderName::from_static("x-session-affinity"),
    // The header that Codex sends.
    HeaderName::from_static("session-id"),
];

/// Reads the session id from `x-claude-code-session-id`, `x-session-id`, `x-session-affinity` or `session-id`.
#[must_use]
pub fn from_headers(headers: &HeaderMap) -> Option<SessionId> {
    // Most requests have no session header. For them, one scan over all header names is faster than four look-ups.
    let may_be_one = |name: &HeaderName| {
        let name = name.as_str();
        name.ends_with("session-id") || name.ends_with("session-affinity")
    };
    if !headers.keys().any(may_be_one) {
        return None;
    }
    let named = |name| headers.get(name)?.to_str().ok()?.parse().ok();
    HEADERS.iter().find_map(named)
}

#[cfg(test)]
mod tests {
    use http::HeaderValue;

    use super::*;

    const UUID: &str = "0198c2de-7f10-7c3e-9d0e-6b1f2a3c4d5e";

    fn named(headers: &[(&'static str, &[u8])]) -> Option<String> {
        let mut map = HeaderMap::new();
        for (name, value) in headers {
            map.append(*name, HeaderValue::from_bytes(value).unwrap());
        }
        from_headers(&map).map(|session| session.to_string())
    }

    #[test]
    fn session_id_is_read_from_the_first_header_that_has_a_valid_one() {
        let [claude, plain, affinity] = [
            "x-claude-code-session-id",
            "x-session-id",
            "x-session-affinity",
        ];
        for (headers, expected) in [
            (vec![], None),
            (vec![(claude, UUID)], Some(UUID)),
            (vec![(plain, "nightly_7")], Some("nightly_7")),
            (vec![(affinity, "ses_2f")], Some("ses_2f")),
            (vec![("session-id", UUID)], Some(UUID)),
            (vec![("session-id", "d"), (affinity, "c")], Some("c")),
            (
                vec![(affinity, "c"), (plain, "b"), (claude, "a")],
                Some("a"),
            ),
            (vec![(affinity, "c"), (plain, "b")], Some("b")),
            (vec![(claude, "no id"), (plain, "b")], Some("b")),
            (vec![("x-claude-code-agent-id", "a")], None),
            (vec![("x-claude-code-prompt-id", "a")], None),
        ] {
            let bytes: Vec<_> = headers
                .iter()
                .map(|(name, value)| (*name, value.as_bytes()))
                .collect();
            assert_eq!(named(&bytes).as_deref(), expected, "{headers:?}");
        }
    }

    #[test]
    fn invalid_session_id_is_ignored() {
        let (longest, longer) = ("s".repeat(64), "s".repeat(65));
        assert_eq!(
            named(&[("x-session-id", longest.as_bytes())]),
            Some(longest.clone())
        );
        for value in [
            b"" as &[u8],
            b" ",
            b"a b",
            b"-a",
            b"_a",
            b"=1+1",
            b"a,b",
            b"a\tb",
            b"<b>",
            b"{\"a\":1}",
            b"\"a\"",
            b"a/b",
            b"%41",
            "сессия".as_bytes(),
            b"\xff\xfe",
            longer.as_bytes(),
        ] {
            assert_eq!(named(&[("x-session-id", value)]), None, "{value:?}");
        }
    }
}
