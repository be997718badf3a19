//! Heads of requests and answers, whose header maps go round: from a request to that of its vendor, back with its
//! answer, and by hyper, which keeps the last one of a connection, to the next request. So none is made for a call.

use http::HeaderMap;

/// A map with room for more is not kept: a caller with very many headers leaves nothing behind.
const CAPACITY_MAX: usize = 24;

/// The map without its headers.
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
    fn no_header_is_left_and_no_large_map() {
        for (count, kept) in [(1, true), (20, true), (50, false)] {
            let mut headers = HeaderMap::new();
            for index in 0..count {
                let name = HeaderName::try_from(format!("x-{index}")).unwrap();
                headers.append(name, HeaderValue::from_static("1"));
            }
            // Two of one name are kept elsewhere in the map.
            headers.append(COOKIE, HeaderValue::from_static("a"));
            headers.append(COOKIE, HeaderValue::from_static("b"));
            let headers = emptied(headers);
            assert!(headers.is_empty() && headers.get(COOKIE).is_none());
            assert_eq!(headers.capacity() > 0, kept, "{count} headers");
        }
    }
}
