//! Checks of the section `[tls]`, and of the certificate authorities that are trusted for outgoing connections
//! (`ca_file`).

use bytes::Bytes;
use tollgate_layers::upstream::check_authorities;

use super::{
    check::{Check, web_address},
    raw::RawTls,
};
use crate::{
    edge::tls::{Flaw, Identity},
    text::time::{now_ms, rfc3339},
};

/// A certificate that expires within this time causes a warning.
const SOON_MS: u64 = 14 * 86_400_000;

impl Check<'_> {
    /// Returns the certificate authorities in a `ca_file`, in PEM. `None` if the setting is absent, and after a
    /// mistake. If the connection has no TLS (`plain`), any `ca_file` is a mistake.
    pub(super) fn authorities(
        &mut self,
        file: Option<&str>,
        plain: bool,
        at: &str,
    ) -> Option<Bytes> {
        let file = file.filter(|path| !path.is_empty())?;
        if plain {
            let problem = "has no effect without TLS: remove it, or use a URL with TLS, which begins with https, \
                 smtps or rediss";
            return self.refuse(at, problem);
        }
        let read = self.env.read(file);
        let pem = read.map_err(|error| format!("cannot read {file}: {error}; give a PEM file"));
        let pem = pem.and_then(|pem| {
            check_authorities(&pem)
                .map_err(|error| format!("{file} is not a PEM file of certificates: {error}"))?;
            Ok(pem.into())
        });
        self.keep(pem, at)
    }

    /// Returns the certificate and its private key. `base_url` is the URL that is shown to callers, if the file sets
    /// it.
    pub(super) fn tls(&mut self, raw: RawTls, base_url: Option<&str>) -> Option<Identity> {
        const CERTIFICATE: &str = "tls.certificate_file";
        const KEY: &str = "tls.key_file";
        let advice = "give a PEM file with the server's certificate, followed by the certificates of its issuers";
        let certificate = self.file(raw.certificate_file, CERTIFICATE, advice);
        let advice = "give a PEM file with the certificate's private key";
        let key = self.file(raw.key_file, KEY, advice);
        let ((certificate_file, certificate), (key_file, key)) = (certificate?, key?);
        let identity = match Identity::from_pem(&certificate, &key) {
            Ok(identity) => identity,
            Err(Flaw::Certificate(problem)) => {
                let problem = format!("{certificate_file} {problem}");
                return self.refuse(CERTIFICATE, problem);
            }
            Err(Flaw::Key(problem)) => {
                return self.refuse(KEY, format!("{key_file} {problem}"));
            }
        };
        if let Some(end) = identity.expires_at_ms() {
            let now = now_ms();
            let at = rfc3339(end);
            if end <= now {
                let problem = format!(
                    "the certificate in {certificate_file} expired at {at}, so clients refuse it: \
                     renew it"
                );
                self.warnings.add(CERTIFICATE, problem);
            } else if end - now < SOON_MS {
                let problem =
                    format!("the certificate in {certificate_file} expires at {at}: renew it");
                self.warnings.add(CERTIFICATE, problem);
            }
        }
        if let Some(Ok(reported)) = base_url.map(web_address) {
            let host = reported.host().unwrap_or_default();
            let host = host.trim_start_matches('[').trim_end_matches(']');
            if reported.scheme_str() == Some("http") {
                self.warnings.add(
                    "base_url",
                    "begins with http, but [tls] serves callers over TLS: write https",
                );
            } else if !identity.is_for(host) {
                let problem = format!(
                    "the certificate in {certificate_file} is not valid for {host}, the host of \
                     base_url: correct base_url, or use another certificate"
                );
                self.warnings.add(CERTIFICATE, problem);
            }
        }
        Some(identity)
    }

    fn file(
        &mut self,
        given: Option<String>,
        path: &str,
        advice: &str,
    ) -> Option<(String, Vec<u8>)> {
        let file = self.required(given, path, advice)?;
        let held = self.env.read(&file);
        let held = held.map_err(|error| format!("cannot read {file}: {error}; {advice}"));
        let held = self.keep(held, path)?;
        Some((file, held))
    }
}

#[cfg(test)]
mod tests {
    use crate::config::testing::assert_mistakes;

    #[test]
    fn error_about_an_invalid_tls_setting_names_the_setting() {
        assert_mistakes(
            r#"
             | [tls] | tls.certificate_file | missing
             | [tls]\ncertificate_file = "/no/such/c.pem"\nkey_file = "Cargo.toml" | tls.certificate_file | cannot read /no/such/c.pem
             | [tls]\ncertificate_file = "Cargo.toml"\nkey_file = "Cargo.toml" | tls.certificate_file | Cargo.toml has no certificate in PEM
        "#,
        );
    }
}
