//! Checks the sections `[[webhook]]`.

use std::{fmt, net::IpAddr, time::Duration};

use base64::{Engine, engine::general_purpose::STANDARD};
use bytes::Bytes;
use http::Uri;
use secrecy::ExposeSecret;

use super::{
    check::{Check, web_address},
    raw::RawWebhook,
    secret::{referred, secret},
};
use crate::net::address;

/// Prefix of a signing secret for webhooks.
const PREFIX: &str = "whsec_";
const KEY_BYTES_MIN: usize = 24;
const KEY_BYTES_MAX: usize = 64;

/// The section `[[webhook]]`: events are posted to a URL.
#[derive(Clone, PartialEq, Eq)]
pub struct WebhookConfig {
    /// URL of the receiver. It may contain a key.
    pub url: Uri,
    /// Signing keys, at least one. Each request is signed with all of them.
    pub keys: Vec<Vec<u8>>,
    /// Whether the URL may have a private, loopback or link-local address.
    pub allow_private: bool,
    /// Certificate authorities, in PEM, that are trusted instead of Mozilla's list.
    pub authorities: Option<Bytes>,
    /// Timeout for the receiver's response to an event.
    pub answer_timeout: Duration,
}

/// Prints neither the signing keys nor the URL, which may contain a key.
impl fmt::Debug for WebhookConfig {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("WebhookConfig")
            .field("host", &self.url.host().unwrap_or_default())
            .field("allow_private", &self.allow_private)
            .field("answer_timeout", &self.answer_timeout)
            .finish_non_exhaustive()
    }
}

impl Check<'_> {
    pub(super) fn webhook(&mut self, raw: &RawWebhook, at: &str) -> Option<WebhookConfig> {
        let path = |field: &str| format!("{at}.{field}");
        let allow_private = raw.allow_private.unwrap_or(false);
        let advice = "give the URL to which events are posted, like https://host/path";
        let url = self.required(raw.url.clone(), &path("url"), advice);
        let url = url.and_then(|url| {
            let url = referred(&url, self.env).unwrap_or(Ok(url));
            let url = url.and_then(|url| web_address(&url));
            let url = url.and_then(|url| reachable(url, allow_private));
            self.keep(url, &path("url"))
        });
        let scheme = url.as_ref().and_then(Uri::scheme_str);
        let plain = scheme == Some("http");
        let authorities = self.authorities(raw.ca_file.as_deref(), plain, &path("ca_file"));
        let keys = self.signing_keys(&raw.secrets, &path("secrets"));
        let answer = self.whole(raw.answer_seconds, &path("answer_seconds"), 15, 1..=20);
        Some(WebhookConfig {
            url: url?,
            keys: keys?,
            allow_private,
            authorities,
            answer_timeout: Duration::from_secs(answer),
        })
    }

    fn signing_keys(&mut self, given: &[String], path: &str) -> Option<Vec<Vec<u8>>> {
        if given.is_empty() || given.len() > 2 {
            let problem = "give one signing secret as \"${NAME}\" or \"file:/path\", or two while the receiver \
                 changes to the second; to make one, run: echo \"whsec_$(openssl rand -base64 32)\"";
            match given.is_empty() {
                true => self.errors.missing(path, problem),
                false => self.errors.add(path, problem),
            }
            return None;
        }
        self.items(given, path, |check, text, path| {
            let key = secret(text, check.env).and_then(|value| signing_key(value.expose_secret()));
            check.keep(key, path)
        })
    }
}

/// Checks whether events may be posted to a URL. The addresses of a host name are not checked here, but at each
/// connection.
fn reachable(url: Uri, allow_private: bool) -> Result<Uri, String> {
    if allow_private {
        return Ok(url);
    }
    if url.scheme_str() != Some("https") {
        return Err(
            "must begin with https, because events contain accounts and amounts; in a private network, allow_private \
             = true permits http"
                .to_owned(),
        );
    }
    let host = url.host().unwrap_or_default();
    let literal = host.trim_matches(['[', ']']).parse::<IpAddr>();
    match literal {
        Ok(ip) if !address::is_public(ip) => Err(
            "is a private, loopback or link-local address: set allow_private = true if this is intended"
                .to_owned(),
        ),
        _ => Ok(url),
    }
}

/// Parses a signing secret. The error message never contains the given text.
fn signing_key(text: &str) -> Result<Vec<u8>, String> {
    let key = text.strip_prefix(PREFIX);
    let key = key.and_then(|text| STANDARD.decode(text).ok());
    let fits = |key: &Vec<u8>| (KEY_BYTES_MIN..=KEY_BYTES_MAX).contains(&key.len());
    key.filter(fits).ok_or_else(|| {
        format!(
            "must be {PREFIX} followed by {KEY_BYTES_MIN} to {KEY_BYTES_MAX} bytes in base64; to make one, run: echo \
             \"{PREFIX}$(openssl rand -base64 32)\""
        )
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::{
        Config, ConfigErrors, WayConfig,
        testing::{SMALL, parse, rows},
    };

    fn with(lines: &str) -> Result<Config, ConfigErrors> {
        parse(&format!("{SMALL}\n{lines}"))
    }

    const GOOD: &str = "[[webhook]]\nname = \"crm\"\nurl = \"https://crm.example/hooks\"\n\
                        secrets = [\"${WEBHOOK_SECRET}\"]\n";

    #[test]
    fn webhook_settings_are_parsed_and_their_secrets_are_not_shown() {
        let config = with(&format!(
            "{GOOD}kinds = [\"top_up\", \"debt\"]\naccounts = [\"acme\"]\n"
        ));
        let config = config.unwrap_or_else(|errors| panic!("{errors}"));
        let receiver = &config.receivers[0];
        assert_eq!(receiver.kinds, ["top_up", "debt"]);
        assert_eq!(receiver.retry_max, Duration::from_secs(72 * 3600));
        let WayConfig::Webhook(hook) = &receiver.way else {
            panic!("{receiver:?}");
        };
        assert_eq!(hook.keys, [b"0123456789abcdefghijklmnopqrstuv".to_vec()]);
        let shown = format!("{hook:?}");
        assert!(
            shown.contains("crm.example") && !shown.contains("hooks") && !shown.contains("48, 49"),
            "{shown}"
        );
    }

    #[test]
    fn error_in_a_webhook_setting_names_the_field_and_shows_no_secret() {
        for [from, to, field] in rows(
            r#"
            https://crm.example | http://crm.example | webhook[0].url
            crm.example | 127.0.0.1 | webhook[0].url
            crm.example | [::1] | webhook[0].url
            crm.example | 169.254.169.254 | webhook[0].url
            crm.example | [::ffff:10.0.0.1] | webhook[0].url
            "crm" | "c r m" | webhook[0].name
            ["${WEBHOOK_SECRET}"] | [] | webhook[0].secrets
            ${WEBHOOK_SECRET} | whsec_c2hvcnQ= | webhook[0].secrets[0]
            ${WEBHOOK_SECRET} | ${ADMIN_KEY} | webhook[0].secrets[0]
            secrets | kinds = ["low"]\nsecrets | webhook[0].kinds[0]
            secrets | accounts = ["a/b"]\nsecrets | webhook[0].accounts[0]
            secrets | retry_hours = 0\nsecrets | webhook[0].retry_hours
            secrets | ca_file = "/no/such/ca.pem"\nsecrets | webhook[0].ca_file
            secrets | ca_file = "Cargo.toml"\nsecrets | webhook[0].ca_file
            https://crm.example/hooks" | http://127.0.0.1/hooks"\nallow_private = true\nca_file = "Cargo.toml" | webhook[0].ca_file
        "#,
        ) {
            assert!(GOOD.contains(from), "{from}");
            let errors = with(&GOOD.replace(from, to)).expect_err(to);
            let errors = errors.to_string();
            assert!(errors.contains(field), "{to}: {errors}");
            assert!(
                !errors.contains("admin-secret") && !errors.contains("c2hvcnQ"),
                "{errors}"
            );
        }
        let twice = with(&format!("{GOOD}{GOOD}")).unwrap_err().to_string();
        assert!(twice.contains("webhook[1].name"), "{twice}");
        let private = GOOD.replace("https://crm.example", "http://127.0.0.1:9");
        let private = with(&format!("{private}allow_private = true\n"));
        assert!(private.is_ok());
    }
}
