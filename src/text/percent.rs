//! Percent-encoding of paths and queries (RFC 3986, 2.1).

use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, percent_decode_str, utf8_percent_encode};

/// All characters except the unreserved ones (RFC 3986, 2.3).
const RESERVED: &AsciiSet = &NON_ALPHANUMERIC
    .remove(b'-')
    .remove(b'.')
    .remove(b'_')
    .remove(b'~');

/// Encodes `text` as one segment of a path, or as one value of a query.
pub(crate) fn encoded(text: &str) -> String {
    utf8_percent_encode(text, RESERVED).to_string()
}

/// Writes a query or a form: names, and values that are percent-encoded.
pub(crate) fn query<'t>(pairs: impl IntoIterator<Item = (&'t str, &'t str)>) -> String {
    let pairs = pairs.into_iter();
    let pairs = pairs.map(|(name, value)| format!("{name}={}", encoded(value)));
    pairs.collect::<Vec<_>>().join("&")
}

/// Decodes `text`; `None` if it is not percent-encoded UTF-8. A plus is not decoded to a space as in forms, so that
/// `+03:00` in a time needs no encoding.
pub(crate) fn decoded(text: &str) -> Option<String> {
    let is_encoded = |behind: &str| {
        let digits = behind.as_bytes().first_chunk::<2>();
        digits.is_some_and(|digits| digits.iter().all(u8::is_ascii_hexdigit))
    };
    // The crate accepts a percent sign that encodes no byte; here such a sign is an error.
    if !text.split('%').skip(1).all(is_encoded) {
        return None;
    }
    let text = percent_decode_str(text).decode_utf8().ok()?;
    Some(text.into_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_percent_escapes_are_decoded() {
        for (text, meant) in [
            ("", Some("")),
            ("a/b+c:~", Some("a/b+c:~")),
            ("a%2Fb%2fc%20%25", Some("a/b/c %")),
            ("%D0%BC", Some("м")),
            ("%", None),
            ("%2", None),
            ("%2%41", None),
            ("%+1", None),
            ("%zz", None),
            ("%ff", None),
        ] {
            assert_eq!(decoded(text).as_deref(), meant, "{text}");
        }
    }

    #[test]
    fn any_text_round_trips_through_percent_encoding() {
        for (text, encoding) in [
            ("gpt-5.1_x~", "gpt-5.1_x~"),
            ("a b/c%?#&=+", "a%20b%2Fc%25%3F%23%26%3D%2B"),
            ("м", "%D0%BC"),
        ] {
            assert_eq!(encoded(text), encoding);
            assert_eq!(decoded(encoding).as_deref(), Some(text));
        }
    }
}
