//! Decides to which addresses events may be sent. Only public addresses are allowed, unless the operator allows others.
//! The connection is made to exactly the address that was checked, so a host name that resolves to another address a
//! moment later cannot bypass the check.

use std::{
    io,
    net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr},
    task::{Context, Poll},
    vec,
};

use futures_util::future::BoxFuture;
use hyper_util::client::legacy::connect::dns::Name;
use tower::Service;

pub(crate) fn is_public(ip: IpAddr) -> bool {
    match ip {
        IpAddr::V4(ip) => is_public_v4(ip),
        IpAddr::V6(ip) => is_public_v6(ip),
    }
}

/// Returns whether an IPv4 address is public: outside the special-purpose networks of RFC 6890 and of its later
/// updates.
fn is_public_v4(ip: Ipv4Addr) -> bool {
    let [a, b, c, _] = ip.octets();
    let special = matches!(
        (a, b, c),
        (0 | 10 | 127 | 224..=255, _, _) // this network, private, loopback, multicast, reserved
            | (100, 64..=127, _) // shared by carriers
            | (169, 254, _) // link-local: metadata services of clouds
            | (172, 16..=31, _)
            | (192, 168, _)
            | (192, 0, 0 | 2)
            | (192, 88, 99)
            | (198, 18 | 19, _) // benchmarks
            | (198, 51, 100)
            | (203, 0, 113)
    );
    !special
}

/// Returns whether an IPv6 address is public: global unicast, except addresses for documentation, tunnels and
/// protocols. If an IPv4 address is embedded in it, the embedded address decides.
fn is_public_v6(ip: Ipv6Addr) -> bool {
    let segments = ip.segments();
    let [high, low] = [segments[6], segments[7]].map(u16::to_be_bytes);
    let carried = Ipv4Addr::new(high[0], high[1], low[0], low[1]);
    match segments {
        [0, 0, 0, 0, 0, 0xffff, _, _] | [0x64, 0xff9b, 0, 0, 0, 0, _, _] => is_public_v4(carried),
        [0x2002, one, two, ..] => {
            let ([a, b], [c, d]) = (one.to_be_bytes(), two.to_be_bytes());
            is_public_v4(Ipv4Addr::new(a, b, c, d))
        }
        [0x2001, second, ..] => second >= 0x200 && second != 0xdb8,
        [0x3fff, second, ..] => second >= 0x1000,
        [first, ..] => (0x2000..0x4000).contains(&first),
    }
}

/// A resolver that returns only those addresses of a host name to which events may be sent.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Resolver {
    pub(crate) allow_private: bool,
}

impl Service<Name> for Resolver {
    type Response = vec::IntoIter<SocketAddr>;
    type Error = io::Error;
    type Future = BoxFuture<'static, io::Result<Self::Response>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, name: Name) -> Self::Future {
        let allow_private = self.allow_private;
        Box::pin(async move {
            let found = tokio::net::lookup_host((name.as_str(), 0)).await?;
            let allowed = allowed(found, allow_private)?;
            Ok(allowed.into_iter())
        })
    }
}

/// The error if all addresses of a host name are addresses to which events must not be sent.
#[derive(Debug, thiserror::Error)]
#[error(
    "the host name resolves to a private, loopback or link-local address, and allow_private is not set"
)]
pub(crate) struct Private;

fn allowed(
    found: impl Iterator<Item = SocketAddr>,
    allow_private: bool,
) -> io::Result<Vec<SocketAddr>> {
    let is_allowed = |address: &SocketAddr| allow_private || is_public(address.ip());
    let (allowed, private): (Vec<_>, Vec<_>) = found.partition(is_allowed);
    if allowed.is_empty() && !private.is_empty() {
        return Err(io::Error::new(io::ErrorKind::PermissionDenied, Private));
    }
    Ok(allowed)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_globally_routable_addresses_count_as_public() {
        for public in [
            "8.8.8.8",
            "1.1.1.1",
            "100.63.0.1",
            "100.128.0.1",
            "172.15.0.1",
            "172.32.0.1",
            "192.0.1.1",
            "2606:4700::1111",
            "2a00:1450::1",
            "::ffff:8.8.8.8",
            "64:ff9b::808:808",
            "2002:808:808::1",
            "2001:4860::8888",
        ] {
            assert!(is_public(public.parse().unwrap()), "{public}");
        }
        for private in [
            "0.0.0.0",
            "10.1.2.3",
            "100.64.0.1",
            "127.0.0.1",
            "127.255.0.1",
            "169.254.169.254",
            "172.16.0.1",
            "172.31.255.255",
            "192.168.0.1",
            "192.0.0.8",
            "192.0.2.1",
            "198.18.0.1",
            "198.51.100.1",
            "203.0.113.9",
            "224.0.0.1",
            "240.0.0.1",
            "255.255.255.255",
            "::",
            "::1",
            "fc00::1",
            "fd12::1",
            "fe80::1",
            "fec0::1",
            "ff02::1",
            "::ffff:127.0.0.1",
            "::ffff:169.254.169.254",
            "::127.0.0.1",
            "64:ff9b::a00:1",
            "64:ff9b:1::1",
            "2002:7f00:1::1",
            "2002:a9fe:a9fe::",
            "2001::1",
            "2001:db8::1",
            "3fff::1",
            "100::1",
            "5f00::1",
        ] {
            assert!(!is_public(private.parse().unwrap()), "{private}");
        }
    }

    fn addresses(ips: &[&str]) -> Vec<SocketAddr> {
        let ips = ips.iter().map(|ip| ip.parse::<IpAddr>().unwrap());
        ips.map(|ip| SocketAddr::new(ip, 0)).collect()
    }

    /// Even if a host name resolves to a public address when it is checked, and to a private address when the
    /// connection is made, the connection goes only to a public address.
    #[test]
    fn private_addresses_of_a_receiver_are_skipped_and_a_receiver_with_no_other_is_refused() {
        let mixed = addresses(&["10.0.0.1", "8.8.8.8", "::1"]);
        let stored = allowed(mixed.clone().into_iter(), false).unwrap();
        assert_eq!(stored, addresses(&["8.8.8.8"]));
        assert_eq!(allowed(mixed.clone().into_iter(), true).unwrap(), mixed);
        let private = addresses(&["127.0.0.1", "::1"]);
        let refused = allowed(private.into_iter(), false).unwrap_err();
        assert!(refused.to_string().contains("allow_private"), "{refused}");
        assert!(allowed(std::iter::empty(), false).unwrap().is_empty());
    }

    #[tokio::test]
    async fn event_receiver_on_localhost_is_refused() {
        let name: Name = "localhost".parse().unwrap();
        let mut resolver = Resolver {
            allow_private: false,
        };
        let refused = resolver.call(name.clone()).await.unwrap_err();
        assert_eq!(refused.kind(), io::ErrorKind::PermissionDenied);
        let mut resolver = Resolver {
            allow_private: true,
        };
        assert!(resolver.call(name).await.unwrap().count() > 0);
    }
}
