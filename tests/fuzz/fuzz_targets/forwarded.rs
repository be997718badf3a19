//! `x-forwarded-for`: the lines of the header are trusted only if a trusted peer sent them.
#![no_main]

use std::net::IpAddr;

use http::{HeaderMap, HeaderValue};
use ipnet::IpNet;
use libfuzzer_sys::fuzz_target;
use tollgate::edge::server::client_address;

fuzz_target!(|data: &[u8]| {
    let mut headers = HeaderMap::new();
    for line in data.split(|byte| *byte == b'\n').take(64) {
        if let Ok(value) = HeaderValue::from_bytes(line) {
            headers.append("x-forwarded-for", value);
        }
    }
    let trusted: Vec<IpNet> = ["10.0.0.0/8", "::1/128"]
        .iter()
        .map(|net| net.parse().expect("a network"))
        .collect();
    let is_trusted = |address: IpAddr| trusted.iter().any(|net| net.contains(&address));
    let stranger: IpAddr = "192.0.2.1".parse().expect("an address");
    assert_eq!(client_address(stranger, &headers, &trusted), stranger);
    let proxy: IpAddr = "10.0.0.1".parse().expect("an address");
    assert_eq!(client_address(proxy, &headers, &[]), proxy);
    let client = client_address(proxy, &headers, &trusted);
    assert_eq!(client, client.to_canonical());

    // Entries that a client writes before those of the proxy change nothing.
    let mut appended = headers.clone();
    appended.append("x-forwarded-for", HeaderValue::from_static("203.0.113.9"));
    let nearest: IpAddr = "203.0.113.9".parse().expect("an address");
    assert_eq!(client_address(proxy, &appended, &trusted), nearest);
    assert!(!is_trusted(nearest));
});
