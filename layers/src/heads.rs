//! Reuses header maps, so that a call allocates none: the caller's map carries the vendor's request, returns with its
//! answer, and hyper keeps the connection's last map for the next request.

use http::HeaderMap;

/// Maps with a larger capacity are dropped, so that a caller with very many headers cannot pin memory.
const CAPACITY_MAX: usize = 24;

/// Clears the map and keeps its allocation, up to [`CAPACITY_MAX`].
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
    fn emptied_map_has_no_headers_and_little_capacity() {
        for (count, kept) in [(1, true), (20, true), (50, false)] {
            let mut headers = HeaderMap::new();
            for index in 0..count {
                let name = HeaderName::try_from(format!("x-{index}")).unwrap();
                headers.append(name, HeaderValue::from_static("1"));
            }
            // `HeaderMap` stores further values of a name in a separate vector.
            headers.append(COOKIE, HeaderValue::from_static("a"));
            headers.append(COOKIE, HeaderValue::from_static("b"));
            let headers = emptied(headers);
            assert!(headers.is_empty() && headers.get(COOKIE).is_none());
            assert_eq!(headers.capacity() > 0, kept, "{count} headers");
        }
    }
}
