//! Parses the URL of a proxy for connections to a vendor.

use http::Uri;
use tollgate_layers::model::Proxy;

use super::secret::{Env, referred};

/// Maximum length of a proxy's user name or password, in bytes. It is the maximum in SOCKS5 (RFC 1929).
const PROXY_WORD_MAX: usize = 255;

/// Parses the URL of a proxy, or the reference to a secret with the URL. The error message never contains the given
/// text.
pub(super) fn proxy(text: &str, env: Env<'_>) -> Result<Proxy, String> {
    const ADVICE: &str = "must be a URL like http://host:port or socks5://host:port";
    let reference = referred(text, env);
    let literal = reference.is_none();
    let address = reference.unwrap_or_else(|| Ok(text.to_owned()))?;
    let advice = || format!("{ADVICE}; if it contains a password, percent-encode the password");
    let uri: Uri = address.parse().map_err(|_| advice())?;
    let scheme = match uri.scheme_str() {
        Some("http") => "http",
        // With either scheme, the proxy resolves host names.
        Some("socks5" | "socks5h") => "socks5",
        Some("https") => {
            return Err(format!(
                "{ADVICE}: TLS to the proxy itself is not supported"
            ));
        }
        _ => return Err(advice()),
    };
    let Some(authority) = uri.authority().filter(|it| !it.host().is_empty()) else {
        return Err(advice());
    };
    let Some(port) = authority.port_u16().filter(|port| *port != 0) else {
        return Err(format!("{ADVICE}: its port is missing"));
    };
    if !uri.path().trim_matches('/').is_empty() || uri.query().is_some() {
        return Err(format!("{ADVICE}: remove everything after the port"));
    }
    let user = match authority.as_str().rsplit_once('@') {
        None => String::new(),
        Some(_) if literal => {
            return Err(
                "contains a password: put the whole URL into an environment variable or a file, and write \"${NAME}\" \
                 or \"file:/path\" here"
                    .to_owned(),
            );
        }
        Some((user, _)) => {
            if user.split(':').any(|word| word.len() > PROXY_WORD_MAX) {
                return Err(format!(
                    "has a user name or a password of more than {PROXY_WORD_MAX} characters"
                ));
            }
            format!("{user}@")
        }
    };
    Ok(Proxy::new(format!(
        "{scheme}://{user}{}:{port}",
        authority.host()
    )))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::secret::with_variables;

    fn read(text: &str) -> Result<Proxy, String> {
        let variable = |name: &str| {
            Some(match name {
                "PROXY" => "socks5h://user:hunter2@proxy.example:1080/".to_owned(),
                "LONG" => format!("http://user:hunter2{}@proxy.example:1", "x".repeat(255)),
                _ => return None,
            })
        };
        with_variables(&variable, |env| proxy(text, env))
    }

    #[test]
    fn proxy_url_needs_a_scheme_and_a_host_and_a_port() {
        for (text, address) in [
            ("http://10.0.0.1:3128", "http://10.0.0.1:3128"),
            ("http://10.0.0.1:3128/", "http://10.0.0.1:3128"),
            ("socks5://[::1]:1080", "socks5://[::1]:1080"),
            ("socks5h://proxy:1080", "socks5://proxy:1080"),
            ("${PROXY}", "socks5://user:hunter2@proxy.example:1080"),
        ] {
            assert_eq!(read(text).unwrap().expose(), address, "{text}");
        }
        for (text, word) in [
            ("proxy", "like http://"),
            ("ftp://proxy:21", "like http://"),
            ("socks4://proxy:1080", "like http://"),
            ("https://proxy:443", "TLS"),
            ("http://proxy", "port"),
            ("http://proxy:0", "port"),
            ("http://proxy:1/x", "after the port"),
            ("http://user:hunter2@proxy:1", "${NAME}"),
            ("${NONE}", "NONE"),
            ("${LONG}", "255"),
        ] {
            let problem = read(text).unwrap_err();
            assert!(problem.contains(word), "{text}: {problem}");
            assert!(!problem.contains("hunter2"), "{problem}");
        }
    }
}
