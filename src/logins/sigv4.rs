//! Signs requests with AWS Signature Version 4. The signature is in the header `authorization`.

use std::fmt::Write as _;

use bytes::Bytes;
use http::{
    HeaderValue,
    header::{AUTHORIZATION, CONTENT_TYPE},
    uri::Uri,
};
use ring::{digest, hmac};
use secrecy::{ExposeSecret, SecretString};
use tollgate_layers::login::Unsigned;

use super::{LoginError, secret_header};
use crate::text::{hex::hex, percent::encoded, time::rfc3339};

const X_AMZ_DATE: &str = "x-amz-date";
const X_AMZ_SECURITY_TOKEN: &str = "x-amz-security-token";
const ALGORITHM: &str = "AWS4-HMAC-SHA256";

/// An AWS access key. A temporary access key also has a session token.
#[derive(Clone, Debug)]
pub(crate) struct AwsKeys {
    pub(crate) access_key_id: String,
    pub(crate) secret_access_key: SecretString,
    pub(crate) session_token: Option<SecretString>,
}

/// The region and the service for which a signature is valid.
#[derive(Clone, Debug)]
pub(super) struct Scope {
    pub(super) region: String,
    pub(super) service: String,
}

/// Adds the date, the session token and the signature to a request. The signature covers the body, `host`,
/// `content-type` and the headers that are added here.
///
/// # Errors
/// If a part of the key is not a valid header value.
pub(super) fn sign(
    request: Unsigned<'_>,
    keys: &AwsKeys,
    scope: &Scope,
    now_ms: u64,
) -> Result<(), LoginError> {
    let time = rfc3339(now_ms / 1000 * 1000).replace(['-', ':'], "");
    let day = &time[..8];
    let mut signed = vec![("host", host(request.address)), (X_AMZ_DATE, time.clone())];
    let kind = request.headers.get(CONTENT_TYPE);
    if let Some(kind) = kind.and_then(|kind| kind.to_str().ok()) {
        signed.push(("content-type", kind.to_owned()));
    }
    if let Some(token) = &keys.session_token {
        signed.push((X_AMZ_SECURITY_TOKEN, token.expose_secret().to_owned()));
    }
    signed.sort_unstable();
    let names: Vec<_> = signed.iter().map(|(name, _)| *name).collect();
    let names = names.join(";");

    let canonical = canonical(&request, &signed, &names);
    let Scope { region, service } = scope;
    let place = format!("{day}/{region}/{service}/aws4_request");
    let canonical = digest::digest(&digest::SHA256, canonical.as_bytes());
    let text = format!("{ALGORITHM}\n{time}\n{place}\n{}", hex(canonical.as_ref()));
    let mut key = format!("AWS4{}", keys.secret_access_key.expose_secret()).into_bytes();
    for part in [day, region, service, "aws4_request"] {
        key = mac(&key, part).as_ref().to_vec();
    }
    let signature = hex(mac(&key, &text).as_ref());

    let id = &keys.access_key_id;
    let authorization = format!(
        "{ALGORITHM} Credential={id}/{place}, SignedHeaders={names}, Signature={signature}"
    );
    let authorization = secret_header("", &authorization.into())?;
    let date = HeaderValue::try_from(time).expect("a date is plain ASCII");
    let headers = request.headers;
    if let Some(token) = &keys.session_token {
        headers.insert(X_AMZ_SECURITY_TOKEN, secret_header("", token)?);
    }
    headers.insert(X_AMZ_DATE, date);
    headers.insert(AUTHORIZATION, authorization);
    Ok(())
}

/// Returns the canonical form of a request, over which the signature is computed.
fn canonical(request: &Unsigned<'_>, signed: &[(&str, String)], names: &str) -> String {
    let mut text = format!(
        "{}\n{}\n{}\n",
        request.method,
        canonical_path(request.address.path()),
        canonical_query(request.address.query().unwrap_or_default()),
    );
    for (name, value) in signed {
        let _ = writeln!(text, "{name}:{}", value.trim());
    }
    let digest = hex(body_digest(request.body).as_ref());
    let _ = write!(text, "\n{names}\n{digest}");
    text
}

/// Returns the `host` header of a request to this address.
fn host(address: &Uri) -> String {
    let host = address.host().unwrap_or_default();
    match (address.port_u16(), address.scheme_str()) {
        (None, _) | (Some(80), Some("http")) | (Some(443), Some("https")) => host.to_owned(),
        (Some(port), _) => format!("{host}:{port}"),
    }
}

/// Returns the path in the form that is signed: each segment is percent-encoded once more. All AWS services except S3
/// require this.
fn canonical_path(path: &str) -> String {
    let segments: Vec<_> = path.split('/').map(encoded).collect();
    segments.join("/")
}

/// Returns the query in the form that is signed: its parameters sorted. They are percent-encoded already.
fn canonical_query(query: &str) -> String {
    let pairs = query.split('&').filter(|pair| !pair.is_empty());
    let pairs = pairs.map(|pair| pair.split_once('=').unwrap_or((pair, "")));
    let mut pairs: Vec<_> = pairs.collect();
    pairs.sort_unstable();
    let pairs = pairs.iter().map(|(name, value)| format!("{name}={value}"));
    pairs.collect::<Vec<_>>().join("&")
}

fn body_digest(body: &[Bytes]) -> digest::Digest {
    let mut digest = digest::Context::new(&digest::SHA256);
    body.iter().for_each(|segment| digest.update(segment));
    digest.finish()
}

fn mac(key: &[u8], text: &str) -> hmac::Tag {
    hmac::sign(&hmac::Key::new(hmac::HMAC_SHA256, key), text.as_bytes())
}

#[cfg(test)]
mod tests {
    use http::{HeaderMap, Method};

    use super::*;

    /// 2015-08-30T12:36:00Z, the time that AWS's test suite uses.
    const TIME_MS: u64 = 1_440_938_160_000;
    const TOKEN: &str = "AQoDYXdzEPT//////////wEXAMPLEtc764bNrC9SAPBSM22wDOk4x4HIZ8j4FZTwdQWLWsKWHGBuFqwAeMicRXmxfpSPfIeoIYRqTflfKD8YUuwthAx7mSEI/qkPpKPi/kMcGdQrmGdeehM4IC1NtBmUpp2wUE8phUZampKsburEDy0KPkyQDYwT7WZ0wq5VSXDvp75YU9HFvlRd8Tx6q6fE8YQcHNVXAkiY9q6d+xo0rKwT38xVqr7ZD0u0iPPkUL64lIZbqBAz+scqKmlzm8FDrypNC9Yjc8fPOLn9FX9KSYvKTr4rvx3iSIlTJabIQwj2ICCR/oLxBA==";

    fn signed(
        method: &str,
        address: &str,
        kind: Option<&str>,
        body: &'static str,
        token: Option<&str>,
    ) -> HeaderMap {
        let keys = AwsKeys {
            access_key_id: "AKIDEXAMPLE".to_owned(),
            secret_access_key: "wJalrXUtnFEMI/K7MDENG+bPxRfiCYEXAMPLEKEY".to_owned().into(),
            session_token: token.map(|token| token.to_owned().into()),
        };
        let scope = Scope {
            region: "us-east-1".to_owned(),
            service: "service".to_owned(),
        };
        let mut headers = HeaderMap::new();
        if let Some(kind) = kind {
            headers.insert(CONTENT_TYPE, kind.parse().unwrap());
        }
        let (method, address): (Method, Uri) = (method.parse().unwrap(), address.parse().unwrap());
        // The body arrives in two segments, and both are signed as one body.
        let (one, other) = body.split_at(body.len() / 2);
        let body = [one, other].map(Bytes::from);
        let unsigned = Unsigned::new(&method, &address, &mut headers, &body);
        sign(unsigned, &keys, &scope, TIME_MS).unwrap();
        headers
    }

    /// Compares signatures with the test vectors that AWS published for Signature Version 4.
    #[test]
    fn aws_signatures_equal_those_of_the_published_test_suite() {
        const HOST: &str = "https://example.amazonaws.com";
        const FORM: &str = "application/x-www-form-urlencoded";
        let name = "-._~0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz";
        let unreserved = format!("/?{name}={name}");
        for (case, method, path, kind, body, token, names, signature) in [
            (
                "get-vanilla",
                "GET",
                "/",
                None,
                "",
                None,
                "host;x-amz-date",
                "5fa00fa31553b73ebf1942676e86291e8372ff2a2260956d9b8aae1d763fbf31",
            ),
            (
                "get-vanilla-query-order-key-case",
                "GET",
                "/?Param2=value2&Param1=value1",
                None,
                "",
                None,
                "host;x-amz-date",
                "b97d918cfa904a5beff61c982a1b6f458b799221646efd99d3219ec94cdf2500",
            ),
            (
                "get-vanilla-query-unreserved",
                "GET",
                unreserved.as_str(),
                None,
                "",
                None,
                "host;x-amz-date",
                "9c3e54bfcdf0b19771a7f523ee5669cdf59bc7cc0884027167c21bb143a40197",
            ),
            (
                "get-vanilla-empty-query-key",
                "GET",
                "/?Param1=value1",
                None,
                "",
                None,
                "host;x-amz-date",
                "a67d582fa61cc504c4bae71f336f98b97f1ea3c7a6bfe1b6e45aec72011b9aeb",
            ),
            (
                "post-vanilla",
                "POST",
                "/",
                None,
                "",
                None,
                "host;x-amz-date",
                "5da7c1a2acd57cee7505fc6676e4e544621c30862966e37dddb68e92efbe5d6b",
            ),
            (
                "post-vanilla-query",
                "POST",
                "/?Param1=value1",
                None,
                "",
                None,
                "host;x-amz-date",
                "28038455d6de14eafc1f9222cf5aa6f1a96197d7deb8263271d420d138af7f11",
            ),
            (
                "post-x-www-form-urlencoded",
                "POST",
                "/",
                Some(FORM),
                "Param1=value1",
                None,
                "content-type;host;x-amz-date",
                "ff11897932ad3f4e8b18135d722051e5ac45fc38421b1da7b9d196a0fe09473a",
            ),
            (
                "post-sts-header-before",
                "POST",
                "/",
                None,
                "",
                Some(TOKEN),
                "host;x-amz-date;x-amz-security-token",
                "85d96828115b5dc0cfc3bd16ad9e210dd772bbebba041836c64533a82be05ead",
            ),
        ] {
            let headers = signed(method, &format!("{HOST}{path}"), kind, body, token);
            assert_eq!(headers[X_AMZ_DATE], "20150830T123600Z", "{case}");
            assert_eq!(
                headers[AUTHORIZATION],
                format!(
                    "AWS4-HMAC-SHA256 Credential=AKIDEXAMPLE/20150830/us-east-1/service/aws4_request, \
                     SignedHeaders={names}, Signature={signature}"
                ),
                "{case}"
            );
            assert_eq!(headers.contains_key(X_AMZ_SECURITY_TOKEN), token.is_some());
            assert!(headers[AUTHORIZATION].is_sensitive());
        }
    }

    #[test]
    fn aws_signature_covers_the_port_and_percent_encodes_the_path_a_second_time() {
        assert_eq!(
            canonical_path("/model/anthropic.claude-3-5-sonnet-20241022-v2%3A0/converse"),
            "/model/anthropic.claude-3-5-sonnet-20241022-v2%253A0/converse"
        );
        for (address, expected) in [
            ("https://h/x", "h"),
            ("https://h:443/x", "h"),
            ("http://h:443/x", "h:443"),
            ("http://127.0.0.1:9/", "127.0.0.1:9"),
        ] {
            assert_eq!(host(&address.parse().unwrap()), expected);
        }
    }
}
