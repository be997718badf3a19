//! Reuses header maps, so that a call allocates none. The map of the caller's request becomes that of the request to
//! the vendor, and then that of the response to the caller. hyper then reuses it for the next request on the
//! connection.

use http::HeaderMap;

/// A map with a larger capacity is dropped. Otherwise a caller that sends very many headers could make the gateway keep
/// the memory.
const CAPACITY_MAX: usize = 24;

/// Empties the map but keeps its memory for the next head. Replaces the map if its capacity exceeds [`CAPACITY_MAX`].
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
            // `HeaderMap` stores all values of a name except the first in a separate vector.
            headers.append(COOKIE, HeaderValue::from_static("a"));
            headers.append(COOKIE, HeaderValue::from_static("b"));
            let headers = emptied(headers);
            assert!(headers.is_empty() && headers.get(COOKIE).is_none());
            assert_eq!(headers.capacity() > 0, stored, "{count} headers");
        }
    }
}
