//! Reuses header maps, so that a call allocates no header map. The map of the caller's request is used for the request
//! to the vendor and then for the answer to the caller. hyper reuses a connection's last map for the next request.

use http::HeaderMap;

/// Maps with a larger capacity are dropped, so that a caller that sends very many headers cannot make the gateway keep
/// the memory.
const CAPACITY_MAX: usize = 24;

/// Empties the map, but keeps its memory for the next head. A map with more than [`CAPACITY_MAX`] is replaced.
pub(crate) fn emptied(mut headers: HeaderMap) -> HeaderMap {
    if headers.capacity() > CAPACITY_MAX {
        return HeaderMap::new();
    }
    headers.clear();
    headers
}

#[cfg(test)]
mod tests {
    use http::{HeaderName, HeaderValue, header::COOKIE};

    use super::*;

    #[test]
    fn header_map_emptied_for_reuse_has_no_headers_and_little_capacity() {
        for (count, stored) in [(1, true), (20, true), (50, false)] {
            let mut headers = HeaderMap::new();
            for index in 0..count {
                let name = HeaderName::try_from(format!("x-{index}")).unwrap();
                headers.append(name, HeaderValue::from_static("1"));
            }
            // `HeaderMap` stores the second and later values of a name in a separate vector.
            headers.append(COOKIE, HeaderValue::from_static("a"));
            headers.append(COOKIE, HeaderValue::from_static("b"));
            let headers = emptied(headers);
            assert!(headers.is_empty() && headers.get(COOKIE).is_none());
            assert_eq!(headers.capacity() > 0, stored, "{count} headers");
        }
    }
}
