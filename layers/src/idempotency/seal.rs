//! Derives keys from the caller's secret, and encrypts stored responses with them.
//!
//! HKDF (RFC 5869) derives the keys from the secret that the caller presents, which is stored nowhere. Responses are
//! encrypted with ChaCha20-Poly1305 (RFC 8439). Each claim has its own key, so no pair of a key and a random 96-bit
//! nonce is used twice.

use bytes::Bytes;
use http::{HeaderMap, HeaderName, HeaderValue, StatusCode, response::Parts};
use ring::{
    aead::{self, Aad, LessSafeKey, Nonce, UnboundKey},
    error::Unspecified,
    hkdf, hmac,
};
use tollgate_ledger::idempotency::Digest;

use crate::{
    call::Format,
    error::{BoxError, Error},
    facts::{AnswerKey, EventStream},
    key::KeyRecord,
};

const VERSION: u8 = 1;

/// The id under which the store keeps the response for a caller's idempotency key, and the key that encrypts this
/// response.
pub(super) struct Seal {
    pub(super) id: Digest,
    fingerprints: hmac::Key,
    key: LessSafeKey,
}

impl Seal {
    pub(super) fn new(
        secret: &AnswerKey,
        caller: &KeyRecord,
        presented: &[u8],
    ) -> Result<Self, Error> {
        let secret = hkdf::Prk::new_less_safe(hkdf::HKDF_SHA256, &secret.0);
        let underived = |_: Unspecified| {
            Error::Internal("the key that encrypts stored responses could not be derived".into())
        };
        let expand = |what: &[&[u8]]| -> Result<[u8; 32], Error> {
            let mut bytes = [0; 32];
            let filled = secret
                .expand(what, hkdf::HKDF_SHA256)
                .and_then(|okm| okm.fill(&mut bytes));
            filled.map_err(underived)?;
            Ok(bytes)
        };
        let ids = hmac::Key::new(hmac::HMAC_SHA256, &expand(&[b"id"])?);
        // The separator is a byte that cannot be in the ids or in the presented idempotency key.
        let name = [caller.account.as_bytes(), caller.id.as_bytes(), presented].join(&b'\0');
        let id = digest(hmac::sign(&ids, &name));
        let key = expand(&[b"answer", &id.0])?;
        let key = UnboundKey::new(&aead::CHACHA20_POLY1305, &key).map_err(underived)?;
        Ok(Self {
            id,
            fingerprints: hmac::Key::new(hmac::HMAC_SHA256, &expand(&[b"fingerprint"])?),
            key: LessSafeKey::new(key),
        })
    }

    /// Returns a hash of all parts of the request that determine the response.
    pub(super) fn fingerprint(&self, path: &str, headers: &HeaderMap, body: &[u8]) -> Digest {
        const BETA: HeaderName = HeaderName::from_static("anthropic-beta");
        let mut context = hmac::Context::with_key(&self.fingerprints);
        context.update(path.as_bytes());
        for beta in headers.get_all(BETA) {
            context.update(b"\n");
            context.update(beta.as_bytes());
        }
        context.update(b"\0");
        context.update(body);
        digest(context.sign())
    }

    /// Encrypts a response. Only a request with the same secret and the same fingerprint can decrypt it.
    pub(super) fn seal(&self, fingerprint: &Digest, answer: Vec<u8>) -> Result<Vec<u8>, BoxError> {
        let mut nonce = [0; aead::NONCE_LEN];
        getrandom::fill(&mut nonce)?;
        let mut sealed = answer;
        let tag = self
            .key
            .seal_in_place_separate_tag(
                Nonce::assume_unique_for_key(nonce),
                Aad::from(&fingerprint.0),
                &mut sealed,
            )
            .map_err(|_| "a response could not be encrypted for the store")?;
        sealed.extend_from_slice(tag.as_ref());
        sealed.extend_from_slice(&nonce);
        Ok(sealed)
    }

    /// Decrypts a stored response. `None` if it was modified or belongs to another request.
    pub(super) fn open(&self, fingerprint: &Digest, mut sealed: Vec<u8>) -> Option<Bytes> {
        let at = sealed.len().checked_sub(aead::NONCE_LEN)?;
        let nonce = Nonce::try_assume_unique_for_key(&sealed[at..]).ok()?;
        sealed.truncate(at);
        let aad = Aad::from(&fingerprint.0);
        let bytes = self.key.open_in_place(nonce, aad, &mut sealed).ok()?.len();
        sealed.truncate(bytes);
        Some(sealed.into())
    }
}

fn digest(tag: hmac::Tag) -> Digest {
    let mut bytes = [0; 32];
    bytes.copy_from_slice(tag.as_ref());
    Digest(bytes)
}

/// Serializes a response for the store: its status, the format of its event stream, its headers and its body.
pub(super) fn encode(head: &Parts, chunks: &[Bytes]) -> Vec<u8> {
    let body: usize = chunks.iter().map(Bytes::len).sum();
    let mut out = Vec::with_capacity(body + 1024);
    out.push(VERSION);
    out.extend_from_slice(&head.status.as_u16().to_be_bytes());
    let stream = head.extensions.get::<EventStream>();
    out.push(match stream.map(|stream| stream.0) {
        None => 0,
        Some(Format::Chat) => 1,
        Some(Format::Messages) => 2,
        Some(Format::Responses) => 3,
    });
    let count = u16::try_from(head.headers.len()).unwrap_or(u16::MAX);
    out.extend_from_slice(&count.to_be_bytes());
    for (name, value) in head.headers.iter().take(count.into()) {
        for part in [name.as_str().as_bytes(), value.as_bytes()] {
            // The limits on headers keep each part far below 4 GiB.
            let length = u32::try_from(part.len()).unwrap_or(u32::MAX);
            out.extend_from_slice(&length.to_be_bytes());
            out.extend_from_slice(part);
        }
    }
    for chunk in chunks {
        out.extend_from_slice(chunk);
    }
    out
}

/// Parses bytes that [`encode`] wrote. `None` if another version of the gateway wrote them in another form.
pub(super) fn decode(mut stored: Bytes) -> Option<(Parts, Bytes)> {
    fn take(stored: &mut Bytes, bytes: usize) -> Option<Bytes> {
        (stored.len() >= bytes).then(|| stored.split_to(bytes))
    }
    fn part(stored: &mut Bytes) -> Option<Bytes> {
        let length = u32::from_be_bytes(take(stored, 4)?[..].try_into().ok()?);
        take(stored, length.try_into().ok()?)
    }
    let (mut head, ()) = http::Response::new(()).into_parts();
    if take(&mut stored, 1)?[0] != VERSION {
        return None;
    }
    let status = u16::from_be_bytes(take(&mut stored, 2)?[..].try_into().ok()?);
    head.status = StatusCode::from_u16(status).ok()?;
    let format = match take(&mut stored, 1)?[0] {
        0 => None,
        1 => Some(Format::Chat),
        2 => Some(Format::Messages),
        3 => Some(Format::Responses),
        _ => return None,
    };
    if let Some(format) = format {
        head.extensions.insert(EventStream(format));
    }
    let count = u16::from_be_bytes(take(&mut stored, 2)?[..].try_into().ok()?);
    for _ in 0..count {
        let (name, value) = (part(&mut stored)?, part(&mut stored)?);
        let name = HeaderName::from_bytes(&name).ok()?;
        head.headers
            .append(name, HeaderValue::from_maybe_shared(value).ok()?);
    }
    Some((head, stored))
}

#[cfg(feature = "auth")]
#[cfg(test)]
mod tests {
    use super::*;
    use crate::auth::SecretKey;

    fn seal(secret: &str, key: &str, presented: &[u8]) -> Seal {
        let record = SecretKey::generate().record(key.parse().unwrap(), "acme".parse().unwrap());
        let mut bytes = [0; 32];
        bytes[..secret.len()].copy_from_slice(secret.as_bytes());
        Seal::new(&AnswerKey(bytes), &record, presented).unwrap()
    }

    #[test]
    fn stored_response_decrypts_only_with_the_same_secret_and_request() {
        let one = seal("tg-secret", "k", b"1");
        let requested = one.fingerprint("/v1/messages", &HeaderMap::new(), b"hello");
        let sealed = one.seal(&requested, b"the answer".to_vec()).unwrap();
        assert!(!sealed.windows(6).any(|bytes| bytes == b"answer"));
        assert_ne!(
            sealed,
            one.seal(&requested, b"the answer".to_vec()).unwrap()
        );
        let again = seal("tg-secret", "k", b"1");
        assert_eq!(again.id, one.id);
        assert_eq!(
            again.open(&requested, sealed.clone()).unwrap(),
            "the answer"
        );
        for other in [
            seal("tg-other", "k", b"1"),
            seal("tg-secret", "l", b"1"),
            seal("tg-secret", "k", b"2"),
        ] {
            assert_ne!(other.id, one.id);
            assert_eq!(other.open(&requested, sealed.clone()), None);
        }
        let other = one.fingerprint("/v1/messages", &HeaderMap::new(), b"hallo");
        assert_eq!(one.open(&other, sealed.clone()), None);
        let mut broken = sealed.clone();
        broken[0] ^= 1;
        assert_eq!(one.open(&requested, broken), None);
        assert_eq!(one.open(&requested, sealed[..5].to_vec()), None);
    }

    #[test]
    fn request_fingerprint_depends_on_everything_that_determines_the_response() {
        let one = seal("tg-secret", "k", b"1");
        let none = HeaderMap::new();
        let beta: HeaderMap = [("anthropic-beta", "b")]
            .into_iter()
            .map(|(name, value)| {
                (
                    HeaderName::from_static(name),
                    HeaderValue::from_static(value),
                )
            })
            .collect();
        let all = [
            one.fingerprint("/v1/messages", &none, b"{}"),
            one.fingerprint("/v1/chat/completions", &none, b"{}"),
            one.fingerprint("/v1/messages", &beta, b"{}"),
            one.fingerprint("/v1/messages", &none, b"{} "),
        ];
        for (index, this) in all.iter().enumerate() {
            assert!(!all[..index].contains(this));
        }
    }

    #[test]
    fn stored_response_is_decrypted_unchanged() {
        let mut res = http::Response::builder()
            .status(201)
            .header("content-type", "text/event-stream")
            .header("x-cost-rub", "1.25")
            .header("set", "a")
            .header("set", "b")
            .body(())
            .unwrap();
        res.extensions_mut().insert(EventStream(Format::Messages));
        let (head, ()) = res.into_parts();
        let stored = encode(&head, &[Bytes::from("ab"), Bytes::from("c")]);
        let (read, body) = decode(stored.clone().into()).unwrap();
        assert_eq!((read.status, &read.headers), (head.status, &head.headers));
        assert_eq!(
            read.extensions.get::<EventStream>(),
            Some(&EventStream(Format::Messages))
        );
        assert_eq!(body, "abc");
        for length in 0..stored.len() - 3 {
            assert!(decode(Bytes::copy_from_slice(&stored[..length])).is_none());
        }
    }
}
