//! Percent-encoding of paths and queries (RFC 3986, 2.1).

/// What `text` stands for; `None` where it is not percent-encoded UTF-8. A plus is a plus, not a space as in
/// forms, so that a time zone may be written plainly.
pub(crate) fn decoded(text: &str) -> Option<String> {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.as_bytes();
    while let [first, behind @ ..] = rest {
        if *first == b'%' {
            let (digits, behind) = behind.split_at_checked(2)?;
            if !digits.iter().all(u8::is_ascii_hexdigit) {
                return None;
            }
            let digits = std::str::from_utf8(digits).ok()?;
            bytes.push(u8::from_str_radix(digits, 16).ok()?);
            rest = behind;
        } else {
            bytes.push(*first);
            rest = behind;
        }
    }
    String::from_utf8(bytes).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_not_encoded_stays_as_it_is() {
        for (text, meant) in [
            ("", Some("")),
            ("a/b+c:~", Some("a/b+c:~")),
            ("a%2Fb%2fc%20%25", Some("a/b/c %")),
            ("%D0%BC", Some("м")),
            ("%", None),
            ("%2", None),
            ("%+1", None),
            ("%zz", None),
            ("%ff", None),
        ] {
            assert_eq!(decoded(text).as_deref(), meant, "{text}");
        }
    }
}
