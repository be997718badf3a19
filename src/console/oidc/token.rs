//! Verifies the provider's tokens: each must be signed by the provider, for this client and for this sign-in.
//! `jsonwebtoken` parses and checks the tokens; signatures are verified with ring, which the gateway already uses for
//! TLS.

use std::sync::Once;

use jsonwebtoken::{
    Algorithm, DecodingKey, EncodingKey, Validation,
    crypto::{CryptoProvider, JwtSigner, JwtVerifier, KeyUtils},
    decode, decode_header,
    errors::{Error as JwtError, ErrorKind},
    jwk::{Jwk, JwkSet, PublicKeyUse},
};
use ring::signature as sig;
use serde_json::{Map, Value};
use signature::{Error as SignatureError, Verifier};
use subtle::ConstantTimeEq;

/// The accepted signature algorithms, all asymmetric. HS256 and its variants are not accepted: their key is the
/// client secret, so everyone who has the secret could sign.
const ALGORITHMS: [Algorithm; 9] = [
    Algorithm::RS256,
    Algorithm::RS384,
    Algorithm::RS512,
    Algorithm::PS256,
    Algorithm::PS384,
    Algorithm::PS512,
    Algorithm::ES256,
    Algorithm::ES384,
    Algorithm::EdDSA,
];

/// The values that a token's claims must have.
#[derive(Clone, Copy, Debug)]
pub(super) struct Expected<'a> {
    pub(super) issuer: &'a str,
    pub(super) client_id: &'a str,
    pub(super) nonce: &'a str,
}

/// The reason why a token is rejected.
#[derive(Debug, thiserror::Error)]
pub(super) enum TokenError {
    /// The cached keys of the provider do not include the key that the token names.
    #[error("the token is signed by a key that admin.oidc.issuer does not publish")]
    KeyUnknown,
    #[error("the token's signature algorithm is not accepted ({0:?})")]
    Algorithm(Algorithm),
    #[error("the token's claim {0} does not have the expected value")]
    Claim(&'static str),
    #[error(transparent)]
    Jwt(#[from] JwtError),
}

/// Returns the claims of a token that one of these keys has signed, for this client and this sign-in.
pub(super) fn claims(
    token: &str,
    keys: &JwkSet,
    expected: Expected<'_>,
) -> Result<Map<String, Value>, TokenError> {
    static INSTALLED: Once = Once::new();
    // This fails if another crate has installed a crypto provider. That provider can verify signatures too, so the
    // result is ignored.
    INSTALLED.call_once(|| {
        let _ = RING.install_default();
    });
    let header = decode_header(token)?;
    if !ALGORITHMS.contains(&header.alg) {
        return Err(TokenError::Algorithm(header.alg));
    }
    let key = key_of(keys, header.kid.as_deref()).ok_or(TokenError::KeyUnknown)?;
    let key = DecodingKey::from_jwk(key)?;
    let mut validation = Validation::new(header.alg);
    validation.set_issuer(&[expected.issuer]);
    validation.set_audience(&[expected.client_id]);
    validation.set_required_spec_claims(&["exp", "iss", "aud", "sub"]);
    validation.validate_nbf = true;
    let claims = decode::<Map<String, Value>>(token, &key, &validation)?.claims;
    let text = |name: &str| claims.get(name).and_then(Value::as_str);
    let nonce = text("nonce").unwrap_or_default().as_bytes();
    if !bool::from(nonce.ct_eq(expected.nonce.as_bytes())) {
        return Err(TokenError::Claim("nonce"));
    }
    // OpenID Connect Core 1.0, 3.1.3.7: if there are several audiences, `azp` must name this client.
    let audiences = claims.get("aud").and_then(Value::as_array);
    let shared = audiences.is_some_and(|list| list.len() > 1);
    match text("azp") {
        Some(party) if party != expected.client_id => return Err(TokenError::Claim("azp")),
        None if shared => return Err(TokenError::Claim("azp")),
        _ => {}
    }
    Ok(claims)
}

/// Returns the key with this id; without an id, the signing key if there is only one.
fn key_of<'a>(keys: &'a JwkSet, id: Option<&str>) -> Option<&'a Jwk> {
    let mut signing = keys.keys.iter().filter(|key| {
        let usage = key.common.public_key_use.as_ref();
        usage.is_none_or(|usage| *usage == PublicKeyUse::Signature)
    });
    match id {
        Some(id) => signing.find(|key| key.common.key_id.as_deref() == Some(id)),
        None => match (signing.next(), signing.next()) {
            (Some(only), None) => Some(only),
            _ => None,
        },
    }
}

static RING: CryptoProvider = CryptoProvider {
    signer_factory: no_signer,
    verifier_factory: verifier,
    key_utils: KeyUtils::new_unimplemented(),
};

/// Refuses to sign: the gateway signs no tokens, but `jsonwebtoken` requires a signer.
fn no_signer(_: &Algorithm, _: &EncodingKey) -> Result<Box<dyn JwtSigner>, JwtError> {
    Err(ErrorKind::InvalidAlgorithm.into())
}

fn verifier(algorithm: &Algorithm, key: &DecodingKey) -> Result<Box<dyn JwtVerifier>, JwtError> {
    if algorithm.family() != key.family() {
        return Err(ErrorKind::InvalidKeyFormat.into());
    }
    Ok(Box::new(RingVerifier {
        algorithm: *algorithm,
        key: key.clone(),
    }))
}

struct RingVerifier {
    algorithm: Algorithm,
    key: DecodingKey,
}

impl RingVerifier {
    fn by_rsa(
        &self,
        how: &sig::RsaParameters,
        message: &[u8],
        signed: &[u8],
    ) -> Result<(), SignatureError> {
        use jsonwebtoken::DecodingKeyKind::{RsaModulusExponent, SecretOrDer};
        let verified = match self.key.kind() {
            RsaModulusExponent { n, e } => {
                sig::RsaPublicKeyComponents { n, e }.verify(how, message, signed)
            }
            SecretOrDer(_) => return Err(SignatureError::new()),
        };
        verified.map_err(|_| SignatureError::new())
    }

    fn by_point(
        &self,
        how: &'static dyn sig::VerificationAlgorithm,
        message: &[u8],
        signed: &[u8],
    ) -> Result<(), SignatureError> {
        let point = self.key.try_get_as_bytes();
        let point = point.map_err(|_| SignatureError::new())?;
        let verified = sig::UnparsedPublicKey::new(how, point).verify(message, signed);
        verified.map_err(|_| SignatureError::new())
    }
}

impl Verifier<Vec<u8>> for RingVerifier {
    fn verify(&self, message: &[u8], signed: &Vec<u8>) -> Result<(), SignatureError> {
        match self.algorithm {
            Algorithm::RS256 => self.by_rsa(&sig::RSA_PKCS1_2048_8192_SHA256, message, signed),
            Algorithm::RS384 => self.by_rsa(&sig::RSA_PKCS1_2048_8192_SHA384, message, signed),
            Algorithm::RS512 => self.by_rsa(&sig::RSA_PKCS1_2048_8192_SHA512, message, signed),
            Algorithm::PS256 => self.by_rsa(&sig::RSA_PSS_2048_8192_SHA256, message, signed),
            Algorithm::PS384 => self.by_rsa(&sig::RSA_PSS_2048_8192_SHA384, message, signed),
            Algorithm::PS512 => self.by_rsa(&sig::RSA_PSS_2048_8192_SHA512, message, signed),
            Algorithm::ES256 => self.by_point(&sig::ECDSA_P256_SHA256_FIXED, message, signed),
            Algorithm::ES384 => self.by_point(&sig::ECDSA_P384_SHA384_FIXED, message, signed),
            Algorithm::EdDSA => self.by_point(&sig::ED25519, message, signed),
            _ => Err(SignatureError::new()),
        }
    }
}

impl JwtVerifier for RingVerifier {
    fn algorithm(&self) -> Algorithm {
        self.algorithm
    }
}

#[cfg(test)]
mod tests {
    use base64::{Engine, engine::general_purpose::URL_SAFE_NO_PAD};
    use ring::{
        rand::SystemRandom,
        signature::{ECDSA_P256_SHA256_FIXED_SIGNING, EcdsaKeyPair, KeyPair},
    };
    use serde_json::json;

    use super::*;

    struct Provider {
        pair: EcdsaKeyPair,
    }

    impl Provider {
        fn new() -> Self {
            let random = SystemRandom::new();
            let how = &ECDSA_P256_SHA256_FIXED_SIGNING;
            let document = EcdsaKeyPair::generate_pkcs8(how, &random).unwrap();
            let pair = EcdsaKeyPair::from_pkcs8(how, document.as_ref(), &random).unwrap();
            Self { pair }
        }

        fn keys(&self, id: &str) -> JwkSet {
            let (x, y) = self.pair.public_key().as_ref()[1..].split_at(32);
            let [x, y] = [x, y].map(|part| URL_SAFE_NO_PAD.encode(part));
            let key =
                json!({ "kty": "EC", "crv": "P-256", "kid": id, "use": "sig", "x": x, "y": y });
            serde_json::from_value(json!({ "keys": [key] })).unwrap()
        }

        fn token(&self, header: &Value, claims: &Value) -> String {
            let [header, claims] =
                [header, claims].map(|part| URL_SAFE_NO_PAD.encode(part.to_string()));
            let message = format!("{header}.{claims}");
            let signed = self.pair.sign(&SystemRandom::new(), message.as_bytes());
            format!("{message}.{}", URL_SAFE_NO_PAD.encode(signed.unwrap()))
        }
    }

    const EXPECTED: Expected<'_> = Expected {
        issuer: "https://login.example",
        client_id: "tollgate",
        nonce: "n-1",
    };

    fn good() -> Value {
        json!({
            "iss": "https://login.example", "aud": "tollgate", "sub": "1", "nonce": "n-1",
            "exp": jsonwebtoken::get_current_timestamp() + 60, "email": "anna@example.com",
        })
    }

    #[test]
    fn openid_token_for_another_client_or_sign_in_is_rejected() {
        let provider = Provider::new();
        let keys = provider.keys("k1");
        let header = json!({ "alg": "ES256", "kid": "k1" });
        let read = |header: &Value, claims: &Value| {
            super::claims(&provider.token(header, claims), &keys, EXPECTED)
        };
        assert_eq!(read(&header, &good()).unwrap()["email"], "anna@example.com");
        assert!(
            read(&json!({ "alg": "ES256" }), &good()).is_ok(),
            "the only key"
        );
        let two = json!({ "aud": ["tollgate", "other"], "azp": "tollgate" });
        for (change, fine) in [
            (two, true),
            (json!({ "aud": ["tollgate", "other"] }), false),
            (json!({ "azp": "other" }), false),
            (json!({ "iss": "https://login.example/" }), false),
            (json!({ "aud": "other" }), false),
            (json!({ "aud": null }), false),
            (json!({ "sub": null }), false),
            (json!({ "nonce": "n-2" }), false),
            (json!({ "nonce": null }), false),
            (json!({ "exp": 1_000_000_000 }), false),
            (json!({ "exp": null }), false),
            (
                json!({ "nbf": jsonwebtoken::get_current_timestamp() + 600 }),
                false,
            ),
        ] {
            let mut claims = good();
            for (name, value) in change.as_object().unwrap() {
                match value {
                    Value::Null => drop(claims.as_object_mut().unwrap().remove(name)),
                    value => claims[name] = value.clone(),
                }
            }
            assert_eq!(read(&header, &claims).is_ok(), fine, "{change}");
        }
        for header in [
            json!({ "alg": "none" }),
            json!({ "alg": "HS256", "kid": "k1" }),
            json!({ "alg": "RS256", "kid": "k1" }),
            json!({ "alg": "ES256", "kid": "k2" }),
        ] {
            assert!(read(&header, &good()).is_err(), "{header}");
        }
        let other = Provider::new().token(&header, &good());
        assert!(
            super::claims(&other, &keys, EXPECTED).is_err(),
            "another's signature"
        );
        let token = provider.token(&header, &good());
        let (head, rest) = token.split_once('.').unwrap();
        let (_, signed) = rest.split_once('.').unwrap();
        let mut forged = good();
        forged["email"] = "eve@example.com".into();
        let forged = URL_SAFE_NO_PAD.encode(forged.to_string());
        let forged = format!("{head}.{forged}.{signed}");
        assert!(super::claims(&forged, &keys, EXPECTED).is_err());
    }
}
