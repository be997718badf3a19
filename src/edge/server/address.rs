//! Determines a client's address: the address of the socket, or the address that a trusted proxy reports.

use std::net::{IpAddr, SocketAddr};

use http::{HeaderMap, HeaderValue};
use ipnet::IpNet;

/// Returns the client's address. It is the address of the socket, unless that address belongs to a trusted proxy. Then
/// it is the rightmost entry of `x-forwarded-for` that is not a trusted proxy.
#[must_use]
pub fn client_address(peer: IpAddr, headers: &HeaderMap, trusted: &[IpNet]) -> IpAddr {
    let is_trusted = |address: &IpAddr| trusted.iter().any(|net| net.contains(address));
    let peer = peer.to_canonical();
    if trusted.is_empty() || !is_trusted(&peer) {
        return peer;
    }
    let lines = headers.get_all("x-forwarded-for").iter();
    let lines = lines.map(HeaderValue::as_bytes).rev();
    let mut nearest = peer;
    // Entries are split as bytes, not as text, so that an invalid byte from the client cannot hide the entry that the
    // proxy appended.
    for entry in lines.flat_map(|line| line.rsplit(|byte| *byte == b',')) {
        // If an entry is invalid, the entries to its left are not trusted.
        let text = std::str::from_utf8(entry).unwrap_or_default();
        let Some(address) = parse_address(text.trim()) else {
            return nearest;
        };
        if !is_trusted(&address) {
            return address;
        }
        nearest = address;
    }
    nearest
}

/// Parses an IP address that a port may follow.
fn parse_address(text: &str) -> Option<IpAddr> {
    let bare = text.trim_start_matches('[').trim_end_matches(']');
    let socket = text.parse::<SocketAddr>().map(|socket| socket.ip());
    let address: IpAddr = bare.parse().ok().or(socket.ok())?;
    Some(address.to_canonical())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn forwarded_client_address_is_accepted_only_from_trusted_proxies() {
        let trusted: Vec<IpNet> = vec!["10.0.0.0/8".parse().unwrap(), "::1/128".parse().unwrap()];
        for (peer, forwarded, client) in [
            ("192.0.2.1", &["203.0.113.9"][..], "192.0.2.1"),
            ("10.0.0.1", &[], "10.0.0.1"),
            ("10.0.0.1", &["203.0.113.9"], "203.0.113.9"),
            ("10.0.0.1", &["1.1.1.1, 203.0.113.9"], "203.0.113.9"),
            ("10.0.0.1", &["203.0.113.9, 10.0.0.2"], "203.0.113.9"),
            ("10.0.0.1", &["1.1.1.1", "203.0.113.9:4711"], "203.0.113.9"),
            ("10.0.0.1", &["1.1.1.1, nonsense, 10.0.0.3"], "10.0.0.3"),
            ("10.0.0.1", &["nonsense"], "10.0.0.1"),
            ("10.0.0.1", &["6.6.6.6, ÿ, 203.0.113.9"], "203.0.113.9"),
            ("10.0.0.1", &["6.6.6.6", "ÿ", "10.0.0.3"], "10.0.0.3"),
            ("::ffff:10.0.0.1", &["[2001:db8::1]:80"], "2001:db8::1"),
            ("::1", &["2001:db8::2"], "2001:db8::2"),
        ] {
            let mut headers = HeaderMap::new();
            for line in forwarded {
                let value = HeaderValue::from_bytes(line.as_bytes()).unwrap();
                headers.append("x-forwarded-for", value);
            }
            let found = client_address(peer.parse().unwrap(), &headers, &trusted);
            assert_eq!(found.to_string(), client, "{peer} {forwarded:?}");
        }
    }
}
