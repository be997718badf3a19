//! Which host a request is for: said once and as a host is written, or the request is refused (RFC 9112,
//! section 3.2; RFC 9113, section 8.3.1). Nothing is decided by it here; whoever stands before us may decide by
//! it, and must not have read another one.

use std::net::Ipv6Addr;

use http::{HeaderMap, Uri, Version, header::HOST, uri::Scheme};

/// Why nobody can say which host is meant.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum HostFault {
    /// HTTP/1.1 without a line of it.
    Missing,
    /// More lines than one, be they equal.
    Twice,
    /// No host, or no port behind it.
    Malformed,
    /// The same of the target's own: with a user in it, for one.
    TargetMalformed,
    /// On HTTP/2, another one than the target's own.
    Contradicts,
}

/// Checks what a request says of its host.
///
/// An empty line is taken: so says a client that its target has no authority, and whoever serves one site on
/// all names may go on with that (RFC 9112, section 3.3).
pub(crate) fn check(version: Version, uri: &Uri, headers: &HeaderMap) -> Result<(), HostFault> {
    let mut lines = headers.get_all(HOST).iter();
    let host = lines.next();
    if lines.next().is_some() {
        return Err(HostFault::Twice);
    }
    match host {
        None if version == Version::HTTP_11 => return Err(HostFault::Missing),
        Some(host) if !host.is_empty() && !is_host(host.as_bytes()) => {
            return Err(HostFault::Malformed);
        }
        _ => {}
    }
    let Some(target) = uri.authority() else {
        return Ok(());
    };
    if !is_host(target.as_str().as_bytes()) {
        return Err(HostFault::TargetMalformed);
    }
    // On HTTP/1.1 the target counts, and the line beside it does not (RFC 9112, section 3.2.2).
    if version == Version::HTTP_2
        && let Some(host) = host
        && !is_same(host.as_bytes(), target.as_str().as_bytes(), uri.scheme())
    {
        return Err(HostFault::Contradicts);
    }
    Ok(())
}

/// `uri-host [ ":" port ]`, and the host is not empty (RFC 9110, sections 4.2.1 and 7.2).
fn is_host(text: &[u8]) -> bool {
    let (well_named, port) = match text.strip_prefix(b"[") {
        Some(rest) => {
            let Some(end) = memchr::memchr(b']', rest) else {
                return false;
            };
            let address = std::str::from_utf8(&rest[..end]).unwrap_or_default();
            (address.parse::<Ipv6Addr>().is_ok(), &rest[end + 1..])
        }
        None => {
            let end = memchr::memchr(b':', text).unwrap_or(text.len());
            (is_name(&text[..end]), &text[end..])
        }
    };
    well_named && is_port(port)
}

/// `reg-name` (RFC 3986, section 3.2.2); an IPv4 address is one, too.
fn is_name(name: &[u8]) -> bool {
    let mut rest = name;
    while let [first, behind @ ..] = rest {
        rest = match (first, behind) {
            (b'%', [high, low, behind @ ..])
                if high.is_ascii_hexdigit() && low.is_ascii_hexdigit() =>
            {
                behind
            }
            (b'-' | b'.' | b'_' | b'~' | b'!' | b'$' | b'&' | b'\'' | b'(' | b')', _) => behind,
            (b'*' | b'+' | b',' | b';' | b'=', _) => behind,
            (byte, _) if byte.is_ascii_alphanumeric() => behind,
            _ => return false,
        };
    }
    !name.is_empty()
}

/// Nothing, or a colon and a port, which may be left out.
fn is_port(text: &[u8]) -> bool {
    let Some((colon, digits)) = text.split_first() else {
        return true;
    };
    *colon == b':'
        && digits.iter().all(u8::is_ascii_digit)
        && std::str::from_utf8(digits)
            .is_ok_and(|digits| digits.is_empty() || digits.parse::<u16>().is_ok())
}

/// Whether both name one host and port: in whatever case, with the scheme's own port or without.
fn is_same(host: &[u8], target: &[u8], scheme: Option<&Scheme>) -> bool {
    let usual: &[u8] = match scheme {
        Some(scheme) if *scheme == Scheme::HTTPS => b":443",
        _ => b":80",
    };
    without_port(host, usual).eq_ignore_ascii_case(without_port(target, usual))
}

fn without_port<'a>(text: &'a [u8], usual: &[u8]) -> &'a [u8] {
    let without = text.strip_suffix(usual).or(text.strip_suffix(b":"));
    without.unwrap_or(text)
}

#[cfg(test)]
mod tests {
    use http::HeaderValue;

    use super::*;

    fn checked(version: Version, uri: &str, lines: &[&str]) -> Result<(), HostFault> {
        let mut headers = HeaderMap::new();
        for line in lines {
            headers.append(HOST, HeaderValue::from_bytes(line.as_bytes()).unwrap());
        }
        check(version, &uri.parse().unwrap(), &headers)
    }

    #[test]
    fn a_host_is_said_once_on_http_1_1_and_once_at_most_elsewhere() {
        use HostFault::{Missing, Twice};
        for (version, lines, found) in [
            (Version::HTTP_11, &[][..], Err(Missing)),
            (Version::HTTP_11, &["a"], Ok(())),
            (Version::HTTP_11, &[""], Ok(())),
            (Version::HTTP_11, &["a", "a"], Err(Twice)),
            (Version::HTTP_11, &["a", "b"], Err(Twice)),
            (Version::HTTP_10, &[], Ok(())),
            (Version::HTTP_10, &["a", "a"], Err(Twice)),
            (Version::HTTP_2, &[], Ok(())),
            (Version::HTTP_2, &["a", "a"], Err(Twice)),
        ] {
            assert_eq!(checked(version, "/", lines), found, "{version:?} {lines:?}");
        }
        // Whatever the target says: the line has to be there.
        let found = checked(Version::HTTP_11, "http://a/", &[]);
        assert_eq!(found, Err(Missing));
    }

    #[test]
    fn a_host_is_a_name_or_an_address_and_a_port_behind_it_is_one() {
        for good in [
            "gateway.example",
            "gateway.example.",
            "GATEWAY.example:8080",
            "gateway_1:65535",
            "gateway.example:",
            "192.0.2.1:80",
            "xn--e1afmkfd.example",
            "%D0%BF.example",
            "[::1]",
            "[2001:db8::1]:8443",
            "[::ffff:192.0.2.1]:",
        ] {
            assert_eq!(checked(Version::HTTP_11, "/", &[good]), Ok(()), "{good}");
        }
        for bad in [
            "a b",
            "a, b",
            "user@a",
            "user:word@a",
            "a/b",
            "a?b",
            "a#b",
            "http://a",
            "a\\b",
            "a:b",
            "a:80:80",
            "a:-1",
            "a:+80",
            "a:65536",
            ":80",
            ":",
            "%d",
            "%zz",
            "п.example",
            "::1",
            "[::1",
            "[::1]80",
            "[::1]]",
            "[::1]:x",
            "[::g]",
            "[192.0.2.1]",
            "[fe80::1%25eth0]",
            "[]",
            "a[::1]",
            "<a>",
            "\"a\"",
        ] {
            let found = checked(Version::HTTP_11, "/", &[bad]);
            assert_eq!(found, Err(HostFault::Malformed), "{bad}");
        }
    }

    #[test]
    fn a_target_has_a_host_as_well_and_on_http_2_the_line_says_no_other() {
        use HostFault::{Contradicts, TargetMalformed};
        let (one, two) = (Version::HTTP_11, Version::HTTP_2);
        for (version, uri, lines, found) in [
            (one, "http://a.example/x", &["a.example"][..], Ok(())),
            (one, "http://a.example/x", &["b.example"], Ok(())),
            (
                one,
                "http://u@a.example/x",
                &["a.example"],
                Err(TargetMalformed),
            ),
            (two, "http://a.example/x", &[], Ok(())),
            (two, "http://a.example/x", &["A.EXAMPLE"], Ok(())),
            (two, "http://a.example/x", &["a.example:80"], Ok(())),
            (two, "https://a.example:443/x", &["a.example"], Ok(())),
            (
                two,
                "https://a.example/x",
                &["a.example:80"],
                Err(Contradicts),
            ),
            (
                two,
                "http://a.example:8080/x",
                &["a.example"],
                Err(Contradicts),
            ),
            (two, "http://a.example/x", &["b.example"], Err(Contradicts)),
            (two, "http://a.example/x", &[""], Err(Contradicts)),
            (two, "http://u:w@a.example/x", &[], Err(TargetMalformed)),
            (two, "http://[::1]:80/x", &["[::1]"], Ok(())),
        ] {
            assert_eq!(
                checked(version, uri, lines),
                found,
                "{version:?} {uri} {lines:?}"
            );
        }
    }
}
