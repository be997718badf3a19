//! Refuses a request that does not name its host exactly once and in valid form (RFC 9112, section 3.2; RFC 9113,
//! section 8.3.1). The gateway itself does not use the host. But a proxy in front of the gateway may choose a backend
//! by the host, and may read from an ambiguous request another host than other HTTP software does.

use std::net::Ipv6Addr;

use http::{HeaderMap, Uri, Version, header::HOST, uri::Scheme};

/// The reason why it is ambiguous which host a request is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum HostFault {
    /// The request is HTTP/1.1 and has no `host` header.
    Missing,
    /// The request has more than one `host` header, even if all have the same value.
    Twice,
    /// The host is missing or invalid, or its port is invalid.
    Malformed,
    /// The authority in the request target is invalid. For example, it contains a user name.
    TargetMalformed,
    /// On HTTP/2, the `host` header differs from the authority of the request target.
    Contradicts,
}

/// Checks that a request names its host exactly once and in valid form.
///
/// An empty `host` header is accepted: it means that the request target has no authority, which a server with a single
/// site may accept (RFC 9112, section 3.3).
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
    // On HTTP/1.1, the authority of the request target takes precedence over the `host` header (RFC 9112, section
    // 3.2.2).
    if version == Version::HTTP_2
        && let Some(host) = host
        && !is_same(host.as_bytes(), target.as_str().as_bytes(), uri.scheme())
    {
        return Err(HostFault::Contradicts);
    }
    Ok(())
}

/// Returns whether the text is `uri-host [ ":" port ]` and the host is not empty (RFC 9110, sections 4.2.1 and 7.2).
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

/// Returns whether the text is a `reg-name` (RFC 3986, section 3.2.2). An IPv4 address is a `reg-name`, too.
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

/// Returns whether the text is empty, or a colon that a port may follow.
fn is_port(text: &[u8]) -> bool {
    let Some((colon, digits)) = text.split_first() else {
        return true;
    };
    *colon == b':'
        && digits.iter().all(u8::is_ascii_digit)
        && std::str::from_utf8(digits)
            .is_ok_and(|digits| digits.is_empty() || digits.parse::<u16>().is_ok())
}

/// Returns whether both texts name the same host and port. Upper and lower case are equal, and a missing port is equal
/// to the scheme's default port.
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
    fn http_1_1_requires_exactly_one_host_header_and_other_versions_allow_at_most_one() {
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
        // HTTP/1.1 requires a `host` header even if the request target has an authority.
        let found = checked(Version::HTTP_11, "http://a/", &[]);
        assert_eq!(found, Err(Missing));
    }

    #[test]
    fn host_header_has_a_name_or_an_address_and_optionally_a_port() {
        let good = "gateway.example gateway.example. GATEWAY.example:8080 gateway_1:65535 \
                    gateway.example: 192.0.2.1:80 xn--e1afmkfd.example %D0%BF.example [::1] \
                    [2001:db8::1]:8443 [::ffff:192.0.2.1]:";
        for good in good.split(' ') {
            assert_eq!(checked(Version::HTTP_11, "/", &[good]), Ok(()), "{good}");
        }
        let bad = "user@a user:word@a a/b a?b a#b http://a a\\b a:b a:80:80 a:-1 a:+80 a:65536 \
                    :80 : %d %zz п.example ::1 [::1 [::1]80 [::1]] [::1]:x [::g] [192.0.2.1] \
                    [fe80::1%25eth0] [] a[::1] <a> \"a\"";
        for bad in bad.split(' ').chain(["a b", "a, b"]) {
            let found = checked(Version::HTTP_11, "/", &[bad]);
            assert_eq!(found, Err(HostFault::Malformed), "{bad}");
        }
    }

    #[test]
    fn http_2_host_header_must_match_the_request_target() {
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
