//! TLS on the callers' listener. The certificate can be replaced without closing connections.

use std::{fmt, sync::Arc};

use arc_swap::ArcSwap;
use rustls::{
    InconsistentKeys, ServerConfig,
    client::verify_server_name,
    crypto::ring,
    pki_types::{CertificateDer, PrivateKeyDer, ServerName, pem::PemObject},
    server::{ClientHello, ParsedCertificate, ResolvesServerCert},
    sign::CertifiedKey,
};
use tokio_rustls::TlsAcceptor;

use crate::text::time::parse_rfc3339_ms;

/// The protocols that the server offers to clients. If a client supports both, HTTP/2 is used.
const PROTOCOLS: [&[u8]; 2] = [b"h2", b"http/1.1"];

/// The TLS settings with which the server accepts connections. Clones share the certificate.
#[derive(Clone)]
pub struct Tls {
    acceptor: TlsAcceptor,
    certificate: Arc<Certificate>,
}

impl Tls {
    /// Creates TLS settings with this certificate. They allow TLS 1.2 and 1.3, and accept no data before the handshake
    /// is complete.
    #[must_use]
    pub fn new(identity: &Identity) -> Self {
        let certificate = Arc::new(Certificate(ArcSwap::new(Arc::clone(&identity.key))));
        let resolver: Arc<dyn ResolvesServerCert> = certificate.clone();
        let mut config = ServerConfig::builder_with_provider(Arc::new(ring::default_provider()))
            .with_safe_default_protocol_versions()
            .expect("ring supports the default TLS versions of rustls")
            .with_no_client_auth()
            .with_cert_resolver(resolver);
        config.alpn_protocols = PROTOCOLS.map(<[u8]>::to_vec).to_vec();
        Self {
            acceptor: TlsAcceptor::from(Arc::new(config)),
            certificate,
        }
    }

    /// Replaces the certificate for new connections. Open connections continue.
    pub fn renew(&self, identity: &Identity) {
        self.certificate.0.store(Arc::clone(&identity.key));
    }

    pub(crate) const fn acceptor(&self) -> &TlsAcceptor {
        &self.acceptor
    }
}

impl fmt::Debug for Tls {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Tls").finish_non_exhaustive()
    }
}

/// The certificate that new connections get. It can be replaced while the server runs.
#[derive(Debug)]
struct Certificate(ArcSwap<CertifiedKey>);

impl ResolvesServerCert for Certificate {
    fn resolve(&self, _: ClientHello<'_>) -> Option<Arc<CertifiedKey>> {
        Some(self.0.load_full())
    }
}

/// A certificate chain with its private key.
#[derive(Clone)]
pub struct Identity {
    key: Arc<CertifiedKey>,
    expires_at_ms: Option<u64>,
}

/// Which file is invalid, the certificate or the key, and why. The text never quotes the content of the file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Flaw {
    /// The certificate file is invalid. The text is the reason.
    Certificate(String),
    /// The key file is invalid. The text is the reason.
    Key(String),
}

impl Identity {
    /// Parses a certificate chain and its private key, both in PEM. The server's own certificate must be the first of
    /// the chain.
    ///
    /// # Errors
    /// [`Flaw::Certificate`] if the chain is invalid. [`Flaw::Key`] if the key is invalid or does not belong to the
    /// certificate.
    pub fn from_pem(chain: &[u8], key: &[u8]) -> Result<Self, Flaw> {
        const NO_CHAIN: &str =
            "has no certificate in PEM: put the server's certificate first, then its issuers";
        let chain: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(chain).collect();
        let chain = chain.map_err(|_| Flaw::Certificate("is not valid PEM".to_owned()))?;
        let Some(own) = chain.first() else {
            return Err(Flaw::Certificate(NO_CHAIN.to_owned()));
        };
        let unfit = |error: rustls::Error| {
            Flaw::Certificate(format!("has a certificate that cannot be used: {error}"))
        };
        ParsedCertificate::try_from(own).map_err(unfit)?;
        let expires_at_ms = not_after_ms(own);
        let unfit = |flaw: &str| Flaw::Key(flaw.to_owned());
        let key = PrivateKeyDer::from_pem_slice(key)
            .map_err(|_| unfit("has no private key in PEM, or the key is encrypted"))?;
        let key = CertifiedKey::from_der(chain, key, &ring::default_provider());
        let key = key.map_err(|error| match error {
            rustls::Error::InconsistentKeys(InconsistentKeys::KeyMismatch) => {
                unfit("is not the private key of the certificate")
            }
            _ => unfit("has an unsupported kind of key: use RSA, ECDSA or Ed25519"),
        })?;
        Ok(Self {
            key: Arc::new(key),
            expires_at_ms,
        })
    }

    /// Returns when the certificate expires, in Unix milliseconds; `None` if this time cannot be parsed.
    #[must_use]
    pub const fn expires_at_ms(&self) -> Option<u64> {
        self.expires_at_ms
    }

    /// Returns whether the certificate is valid for this host name or IP address.
    #[must_use]
    pub fn is_for(&self, host: &str) -> bool {
        let (Ok(name), Some(own)) = (ServerName::try_from(host), self.key.cert.first()) else {
            return false;
        };
        ParsedCertificate::try_from(own).is_ok_and(|own| verify_server_name(&own, &name).is_ok())
    }
}

/// Does not print the private key.
impl fmt::Debug for Identity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Identity")
            .field("expires_at_ms", &self.expires_at_ms)
            .finish_non_exhaustive()
    }
}

/// Returns `notAfter` of a certificate, the time at which it expires (RFC 5280, section 4.1). It is parsed here because
/// rustls checks `notAfter` only in clients.
fn not_after_ms(certificate: &[u8]) -> Option<u64> {
    const VERSION: u8 = 0xa0;
    let (_, certificate, _) = element(certificate)?;
    let (_, mut to_be_signed, _) = element(certificate)?;
    if to_be_signed.first() == Some(&VERSION) {
        (_, _, to_be_signed) = element(to_be_signed)?;
    }
    // The validity is preceded by the serial number, the algorithm and the issuer, which are skipped.
    for _ in 0..3 {
        (_, _, to_be_signed) = element(to_be_signed)?;
    }
    let (_, validity, _) = element(to_be_signed)?;
    let (_, _, behind_not_before) = element(validity)?;
    let (kind, time, _) = element(behind_not_before)?;
    time_ms(kind, std::str::from_utf8(time).ok()?)
}

/// Splits off the first DER element. Returns its tag, its content, and the bytes after it.
fn element(der: &[u8]) -> Option<(u8, &[u8], &[u8])> {
    let (&[tag, length], rest) = der.split_first_chunk::<2>()?;
    let (length, rest) = if length < 0x80 {
        (usize::from(length), rest)
    } else {
        let (digits, rest) = rest.split_at_checked(usize::from(length & 0x7f))?;
        if digits.len() > 4 {
            return None;
        }
        let digit = |number: usize, digit: &u8| number << 8 | usize::from(*digit);
        (digits.iter().fold(0, digit), rest)
    };
    let (content, rest) = rest.split_at_checked(length)?;
    Some((tag, content, rest))
}

/// Parses a time in the format `YYMMDDHHMMSSZ` or `YYYYMMDDHHMMSSZ`.
fn time_ms(kind: u8, text: &str) -> Option<u64> {
    const UTC_TIME: u8 = 0x17;
    let text = match kind {
        UTC_TIME if text < "50" => format!("20{text}"),
        UTC_TIME => format!("19{text}"),
        _ => text.to_owned(),
    };
    let part = |range: std::ops::Range<usize>| text.get(range);
    parse_rfc3339_ms(&format!(
        "{}-{}-{}T{}:{}:{}",
        part(0..4)?,
        part(4..6)?,
        part(6..8)?,
        part(8..10)?,
        part(10..12)?,
        text.get(12..)?
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn der(tag: u8, content: &[u8]) -> Vec<u8> {
        let length = u8::try_from(content.len()).unwrap();
        let head = if length < 0x80 {
            vec![tag, length]
        } else {
            vec![tag, 0x81, length]
        };
        [&head, content].concat()
    }

    #[test]
    fn expiry_time_of_a_certificate_is_parsed() {
        let text = |text: &str| text.as_bytes().to_vec();
        for (version, kind, not_after, expected) in [
            (true, 0x17, "270131120000Z", Some("2027-01-31T12:00:00Z")),
            (false, 0x17, "491231235959Z", Some("2049-12-31T23:59:59Z")),
            (true, 0x18, "20500101000000Z", Some("2050-01-01T00:00:00Z")),
            (true, 0x18, "99991231235959Z", Some("9999-12-31T23:59:59Z")),
            (true, 0x17, "500101000000Z", None),
            (true, 0x17, "27013112", None),
            (true, 0x17, "", None),
            (true, 0x17, "2701311200ßZ", None),
        ] {
            let validity = [
                der(0x17, &text("260131120000Z")),
                der(kind, &text(not_after)),
            ];
            let fields = [
                if version {
                    der(0xa0, &[2, 1, 2])
                } else {
                    Vec::new()
                },
                der(0x02, &[1]),
                der(0x30, &[0; 10]),
                der(0x30, &[0; 30]),
                der(0x30, &validity.concat()),
            ];
            let certificate = der(0x30, &der(0x30, &fields.concat()));
            let expected = expected.and_then(parse_rfc3339_ms);
            assert_eq!(not_after_ms(&certificate), expected, "{not_after}");
            // Parsing a truncated certificate must not read beyond its end.
            for length in 0..certificate.len() {
                let _ = not_after_ms(&certificate[..length]);
            }
        }
    }

    #[test]
    fn error_about_an_invalid_pem_names_the_file() {
        for chain in [
            "",
            "certificate",
            "-----BEGIN PRIVATE KEY-----\nAAAA\n-----END PRIVATE KEY-----\n",
        ] {
            let flaw = Identity::from_pem(chain.as_bytes(), b"").unwrap_err();
            assert!(
                matches!(&flaw, Flaw::Certificate(why) if why.contains("no certificate")),
                "{flaw:?}"
            );
        }
        let broken = "-----BEGIN CERTIFICATE-----\nAAAA\n";
        let flaw = Identity::from_pem(broken.as_bytes(), b"").unwrap_err();
        assert!(matches!(&flaw, Flaw::Certificate(_)), "{flaw:?}");
    }
}
