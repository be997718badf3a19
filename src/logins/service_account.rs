//! Logins by a service account: an assertion (a signed JWT) is exchanged for a token. Google uses RFC 7523 with RS256,
//! Yandex Cloud uses PS256.

use base64::{Engine, engine::general_purpose::URL_SAFE_NO_PAD};
use bytes::Bytes;
use http::{Request, Uri};
use ring::{
    rand::SystemRandom,
    signature::{RSA_PKCS1_SHA256, RSA_PSS_SHA256, RsaKeyPair},
};
use rustls::pki_types::{PrivateKeyDer, pem::PemObject};
use secrecy::{ExposeSecret, SecretString};
use serde::Deserialize;
use serde_json::json;
use tollgate_layers::model::Egress;

use super::{
    LoginError,
    endpoint::{Endpoint, FORM, JSON, post, token},
    renewed::{Fetched, Source},
};
use crate::text::percent::query;

/// The scope of a Google token, if the configuration does not name another.
const GOOGLE_SCOPE: &str = "https://www.googleapis.com/auth/cloud-platform";
const GOOGLE_GRANT: &str = "urn:ietf:params:oauth:grant-type:jwt-bearer";
const YANDEX_TOKENS: &str = "https://iam.api.cloud.yandex.net/iam/v1/tokens";
/// The lifetime of an assertion, in seconds. Both vendors accept at most an hour.
const ASSERTION_S: u64 = 3600;

/// A service account at Google or Yandex Cloud, with its private key.
#[derive(Debug)]
pub(crate) struct ServiceAccount {
    kind: Kind,
    /// The id of the private key, which the assertion names.
    key_id: String,
    key: RsaKeyPair,
    url: Uri,
    /// The text of the key file. A reload compares it to find out whether the account has changed.
    file: SecretString,
}

#[derive(Debug)]
enum Kind {
    Google { email: String, scope: String },
    Yandex { account: String },
}

#[derive(Deserialize)]
#[serde(untagged)]
enum KeyFile {
    Google {
        client_email: String,
        private_key_id: String,
        private_key: String,
        token_uri: String,
    },
    Yandex {
        id: String,
        service_account_id: String,
        private_key: String,
    },
}

impl ServiceAccount {
    /// Parses a key file in Google's or Yandex Cloud's format. If `url` is given, it replaces the address of the token
    /// endpoint.
    ///
    /// # Errors
    /// Why the key file is invalid. The error does not contain the file's content.
    pub(crate) fn new(
        file: SecretString,
        scope: Option<String>,
        url: Option<Uri>,
    ) -> Result<Self, &'static str> {
        const SHAPE: &str = "must be a service account's key in JSON, as Google (client_email, token_uri) or Yandex Cloud \
                             (service_account_id) issues it";
        let parsed = serde_json::from_str(file.expose_secret()).map_err(|_| SHAPE)?;
        let (kind, key_id, pem, address) = match parsed {
            KeyFile::Google {
                client_email: email,
                private_key_id,
                private_key,
                token_uri,
            } => {
                let scope = scope.unwrap_or_else(|| GOOGLE_SCOPE.to_owned());
                let kind = Kind::Google { email, scope };
                (kind, private_key_id, private_key, token_uri)
            }
            KeyFile::Yandex {
                id,
                service_account_id: account,
                private_key,
            } => {
                let kind = Kind::Yandex { account };
                (kind, id, private_key, YANDEX_TOKENS.to_owned())
            }
        };
        let address = address.parse::<Uri>().ok();
        let address = address.filter(|uri| uri.scheme().is_some());
        let url = url.or(address).ok_or("has a token_uri that is not a URL")?;
        let key = key_pair(&pem).ok_or("has a private_key that is not an RSA key in PEM")?;
        Ok(Self {
            kind,
            key_id,
            key,
            url,
            file,
        })
    }

    /// Passes each setting and secret of the login to `add`, so that equal logins can be recognised.
    pub(super) fn describe(&self, add: &mut dyn FnMut(&str)) {
        add(self.file.expose_secret());
        add(&format!("{:?} {}", self.kind, self.url));
    }

    pub(super) fn source(self, egress: &Egress) -> impl Source<Credential = SecretString> {
        ServiceAccountSource {
            endpoint: Endpoint::new(egress),
            account: self,
        }
    }

    fn request(&self, now_s: u64) -> Result<Request<Bytes>, LoginError> {
        let ends_s = now_s + ASSERTION_S;
        // The audience of the assertion is the address in the key file, even if requests are sent to another address.
        Ok(match &self.kind {
            Kind::Google { email, scope } => {
                let claims = json!({
                    "iss": email, "scope": scope, "aud": self.url.to_string(), "iat": now_s, "exp": ends_s,
                });
                let assertion = self.signed("RS256", &claims)?;
                let fields = [("grant_type", GOOGLE_GRANT), ("assertion", &*assertion)];
                post(&self.url, FORM, query(fields))
            }
            Kind::Yandex { account } => {
                let claims =
                    json!({ "iss": account, "aud": YANDEX_TOKENS, "iat": now_s, "exp": ends_s });
                let assertion = self.signed("PS256", &claims)?;
                post(&self.url, JSON, json!({ "jwt": assertion }).to_string())
            }
        })
    }

    /// Returns a signed JWT with these claims.
    fn signed(&self, algorithm: &str, claims: &serde_json::Value) -> Result<String, LoginError> {
        let header = json!({ "typ": "JWT", "alg": algorithm, "kid": self.key_id });
        let encode = |value: &serde_json::Value| URL_SAFE_NO_PAD.encode(value.to_string());
        let text = format!("{}.{}", encode(&header), encode(claims));
        let padding: &dyn ring::signature::RsaEncoding = match algorithm {
            "PS256" => &RSA_PSS_SHA256,
            _ => &RSA_PKCS1_SHA256,
        };
        let mut signature = vec![0; self.key.public().modulus_len()];
        let (random, bytes) = (SystemRandom::new(), text.as_bytes());
        let signed = self.key.sign(padding, &random, bytes, &mut signature);
        signed.map_err(|_| LoginError::new("cannot sign with the service account's key"))?;
        Ok(format!("{text}.{}", URL_SAFE_NO_PAD.encode(signature)))
    }
}

/// Parses a private key in PEM. Text before the PEM block is ignored, because Yandex Cloud writes a warning there.
fn key_pair(pem: &str) -> Option<RsaKeyPair> {
    match PrivateKeyDer::from_pem_slice(pem.as_bytes()).ok()? {
        PrivateKeyDer::Pkcs8(der) => RsaKeyPair::from_pkcs8(der.secret_pkcs8_der()).ok(),
        PrivateKeyDer::Pkcs1(der) => RsaKeyPair::from_der(der.secret_pkcs1_der()).ok(),
        _ => None,
    }
}

struct ServiceAccountSource {
    endpoint: Endpoint,
    account: ServiceAccount,
}

impl Source for ServiceAccountSource {
    type Credential = SecretString;

    async fn fetch(&self) -> Result<Fetched<SecretString>, LoginError> {
        let clock = &self.endpoint.clock;
        let send = || async {
            let req = self.account.request(clock.now_ms() / 1000)?;
            self.endpoint.exchange(req).await
        };
        let mut res = send().await?;
        // The server refuses an assertion with a wrong time. So if the clock was wrong, that explains the refusal.
        if clock.correct(res.headers()) && res.status().is_client_error() {
            res = send().await?;
        }
        token(&res)
    }
}

#[cfg(test)]
mod tests {
    use http::{Response, header::DATE};
    use ring::signature::{
        RSA_PKCS1_2048_8192_SHA256, RSA_PSS_2048_8192_SHA256, UnparsedPublicKey,
        VerificationAlgorithm,
    };
    use serde_json::Value;

    use super::*;
    use crate::{
        logins::{
            Form, TokenHeader, login,
            testing::{TokenServer, bearer},
        },
        text::time::now_ms,
    };

    /// A private key that was generated for these tests and is not registered at any server.
    const PEM: &str = include_str!("test_key.pem");

    fn google(token_uri: &str) -> SecretString {
        let file = json!({
            "type": "service_account", "project_id": "p", "private_key_id": "kid-1", "private_key": PEM,
            "client_email": "gate@p.iam.gserviceaccount.com", "client_id": "1", "token_uri": token_uri,
        });
        file.to_string().into()
    }

    fn yandex() -> SecretString {
        let pem = format!("PLEASE DO NOT REMOVE THIS LINE! Yandex.Cloud SA Key ID <aje>\n{PEM}");
        let file = json!({
            "id": "aje-key", "service_account_id": "aje-account", "created_at": "2026-01-01T00:00:00Z",
            "key_algorithm": "RSA_2048", "public_key": "", "private_key": pem,
        });
        file.to_string().into()
    }

    /// Checks the signature of a JWT, and returns its header and claims.
    fn verified(jwt: &str, algorithm: &'static dyn VerificationAlgorithm) -> (Value, Value) {
        let (text, signature) = jwt.rsplit_once('.').unwrap();
        let key = key_pair(PEM).unwrap();
        let key = UnparsedPublicKey::new(algorithm, key.public().as_ref());
        let signature = URL_SAFE_NO_PAD.decode(signature).unwrap();
        key.verify(text.as_bytes(), &signature).unwrap();
        let (header, claims) = text.split_once('.').unwrap();
        let json =
            |part: &str| serde_json::from_slice(&URL_SAFE_NO_PAD.decode(part).unwrap()).unwrap();
        (json(header), json(claims))
    }

    #[tokio::test]
    async fn google_login_sends_an_assertion_signed_with_rs256() {
        let server = TokenServer::start(|_| {
            (
                200,
                r#"{"access_token":"ya29.t","expires_in":3599}"#.to_owned(),
            )
        })
        .await;
        let url = server.url("/token");
        let account = ServiceAccount::new(google(&url.to_string()), None, None).unwrap();
        let form = Form::ServiceAccount(account, TokenHeader::default());
        let (login, _) = login("vertex", form, &Egress::default());
        assert_eq!(bearer(&*login).await.unwrap(), "Bearer ya29.t");
        let seen = server.seen();
        let (grant, assertion) = seen[0].body.split_once("&assertion=").unwrap();
        assert_eq!(
            grant,
            "grant_type=urn%3Aietf%3Aparams%3Aoauth%3Agrant-type%3Ajwt-bearer"
        );
        let (header, claims) = verified(assertion, &RSA_PKCS1_2048_8192_SHA256);
        assert_eq!(
            header,
            json!({ "typ": "JWT", "alg": "RS256", "kid": "kid-1" })
        );
        assert_eq!(claims["iss"], "gate@p.iam.gserviceaccount.com");
        assert_eq!(
            (&claims["aud"], &claims["scope"]),
            (&json!(url.to_string()), &json!(GOOGLE_SCOPE))
        );
        assert_eq!(
            claims["exp"].as_u64().unwrap() - claims["iat"].as_u64().unwrap(),
            3600
        );
        assert!(claims["iat"].as_u64().unwrap().abs_diff(now_ms() / 1000) < 10);
    }

    #[tokio::test]
    async fn yandex_login_sends_an_assertion_signed_with_ps256() {
        let server = TokenServer::start(|_| {
            (
                200,
                r#"{"iamToken":"t1.iam","expiresAt":"2099-01-01T00:00:00Z"}"#.to_owned(),
            )
        })
        .await;
        let account =
            ServiceAccount::new(yandex(), None, Some(server.url("/iam/v1/tokens"))).unwrap();
        let form = Form::ServiceAccount(account, TokenHeader::default());
        let (login, _) = login("yandexgpt", form, &Egress::default());
        assert_eq!(bearer(&*login).await.unwrap(), "Bearer t1.iam");
        let body: Value = serde_json::from_str(&server.seen()[0].body).unwrap();
        let (header, claims) = verified(body["jwt"].as_str().unwrap(), &RSA_PSS_2048_8192_SHA256);
        assert_eq!(
            header,
            json!({ "typ": "JWT", "alg": "PS256", "kid": "aje-key" })
        );
        assert_eq!(claims["iss"], "aje-account");
        assert_eq!(claims["aud"], YANDEX_TOKENS);
    }

    #[tokio::test]
    async fn clock_that_is_five_minutes_wrong_is_corrected() {
        let server = TokenServer::start_with(|_, seen| {
            let server_s = now_ms() / 1000 + 300;
            let (_, assertion) = seen.body.split_once("&assertion=").unwrap();
            let (_, claims) = verified(assertion, &RSA_PKCS1_2048_8192_SHA256);
            let is_right = claims["iat"].as_u64().unwrap().abs_diff(server_s) < 30;
            let at = std::time::UNIX_EPOCH + std::time::Duration::from_secs(server_s);
            let (status, body) = match is_right {
                true => (200, r#"{"access_token":"t","expires_in":3599}"#),
                false => (400, r#"{"error":"invalid_grant"}"#),
            };
            let res = Response::builder().status(status);
            res.header(DATE, httpdate::fmt_http_date(at))
                .body(body.to_owned())
                .unwrap()
        })
        .await;
        let account =
            ServiceAccount::new(google(&server.url("/").to_string()), None, None).unwrap();
        let form = Form::ServiceAccount(account, TokenHeader::default());
        let (login, _) = login("vertex", form, &Egress::default());
        assert_eq!(bearer(&*login).await.unwrap(), "Bearer t");
        assert_eq!(server.seen().len(), 2);
    }

    #[test]
    fn file_that_is_not_a_service_account_is_refused_without_printing_its_content() {
        let mut no_key: Value = serde_json::from_str(yandex().expose_secret()).unwrap();
        no_key["private_key"] =
            "-----BEGIN PRIVATE KEY-----\nAAAA\n-----END PRIVATE KEY-----\n".into();
        for (file, problem) in [
            ("{}".to_owned(), "service_account_id"),
            ("sk-123".to_owned(), "service_account_id"),
            (no_key.to_string(), "RSA key"),
            (google("nowhere").expose_secret().to_owned(), "token_uri"),
        ] {
            let error = ServiceAccount::new(file.into(), None, None)
                .map(drop)
                .unwrap_err();
            assert!(error.contains(problem), "{error}");
        }
    }
}
