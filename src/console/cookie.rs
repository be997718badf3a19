//! Cookies of the console and of the customer portal.

use std::time::Duration;

use http::{HeaderMap, HeaderValue, Response, header};

/// A cookie that the browser hides from scripts.
pub(crate) struct Cookie {
    pub(crate) name: &'static str,
    /// The path below which the browser sends the cookie.
    pub(crate) path: &'static str,
    pub(crate) same_site: &'static str,
}

impl Cookie {
    /// Returns all values that a request has for this cookie.
    pub(crate) fn values<'h>(&self, headers: &'h HeaderMap) -> impl Iterator<Item = &'h str> {
        let lists = headers.get_all(header::COOKIE).iter();
        let lists = lists.filter_map(|value| value.to_str().ok());
        let pairs = lists.flat_map(|list| list.split(';'));
        let pairs = pairs.filter_map(|pair| pair.trim().split_once('='));
        pairs.filter_map(|(name, value)| (name == self.name).then_some(value))
    }

    /// Returns the value of the cookie. `None` if the cookie occurs twice, because then another site has set one of the
    /// two.
    pub(crate) fn value(&self, headers: &HeaderMap) -> Option<String> {
        single(self.values(headers))
    }

    /// Sets the cookie. A cookie that was set over TLS is sent only over TLS.
    pub(crate) fn set<B>(
        &self,
        mut res: Response<B>,
        value: &str,
        age: Duration,
        is_tls: bool,
    ) -> Response<B> {
        let Self {
            name,
            path,
            same_site,
        } = self;
        let (age, secure) = (age.as_secs(), if is_tls { "; Secure" } else { "" });
        let cookie = format!(
            "{name}={value}; Path={path}; Max-Age={age}; HttpOnly; SameSite={same_site}{secure}"
        );
        let cookie = HeaderValue::from_str(&cookie)
            .expect("a cookie of letters and digits is a valid header value");
        res.headers_mut().append(header::SET_COOKIE, cookie);
        res
    }
}

/// Returns the value if there is exactly one.
pub(super) fn single<'v>(mut values: impl Iterator<Item = &'v str>) -> Option<String> {
    match (values.next(), values.next()) {
        (Some(value), None) => Some(value.to_owned()),
        _ => None,
    }
}
