//! The gateway's HTTP client for the OpenID provider: discovers the provider's endpoints and signing keys, and
//! exchanges a code for a token.

use std::{
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use base64::{Engine, engine::general_purpose::STANDARD};
use bytes::Bytes;
use http::{HeaderValue, Method, Request, StatusCode, header};
use http_body_util::{BodyExt, Full, Limited};
use jsonwebtoken::jwk::JwkSet;

use serde::{Deserialize, de::DeserializeOwned};
use serde_json::{Map, Value};
use tokio::time::{Instant, timeout};
use tollgate_layers::error::BoxError;

use super::token::{self, Expected, TokenError};
use crate::{
    config::{OidcConfig, safe_address},
    net::https::{self, HttpsClient},
    text::percent::{encoded, query},
};

/// The time limit for a whole response of the OpenID provider.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(10);
const ANSWER_BYTES_MAX: usize = 256 * 1024;
/// The time for which the discovered endpoints and keys are cached.
const KNOWN_FOR: Duration = Duration::from_secs(3600);

/// The gateway's HTTP client for the OpenID provider, with the cached discovery document.
pub(super) struct Provider {
    client: HttpsClient,
    known: Mutex<Option<Known>>,
}

#[derive(Clone)]
struct Known {
    ends: Arc<Ends>,
    keys: Arc<JwkSet>,
    since: Instant,
}

/// The provider's endpoints, from its discovery document (OpenID Connect Discovery 1.0, section 3).
#[derive(Debug, Deserialize)]
pub(super) struct Ends {
    issuer: String,
    pub(super) authorization_endpoint: String,
    token_endpoint: String,
    jwks_uri: String,
    pub(super) end_session_endpoint: Option<String>,
    #[serde(default)]
    token_endpoint_auth_methods_supported: Vec<String>,
}

/// The reason why a sign-in failed, for the log. Each text names the setting to check.
#[derive(Debug, thiserror::Error)]
pub(super) enum ProviderError {
    #[error("admin.oidc.issuer: no answer from {url}: {source}")]
    OutOfReach { url: String, source: BoxError },
    #[error("admin.oidc.issuer: {url} answered {status}{reported}")]
    Answered {
        url: String,
        status: StatusCode,
        reported: String,
    },
    #[error(
        "admin.oidc.issuer is {wanted:?}, but the provider's discovery document states {given:?}: set \
         admin.oidc.issuer to the document's value"
    )]
    Issuer { wanted: String, given: String },
    #[error("the provider rejected admin.oidc.client_id or admin.oidc.client_secret{0}")]
    Client(String),
    #[error(
        "the provider rejected the sign-in code{0}; check that admin.oidc.redirect_url equals the redirect URL registered \
         at the provider"
    )]
    Code(String),
    #[error("the provider's token is invalid: {0}")]
    Token(#[from] TokenError),
}

/// The provider's error response (RFC 6749, section 5.2).
#[derive(Default, Deserialize)]
struct Said {
    #[serde(default)]
    error: String,
    #[serde(default)]
    error_description: String,
}

impl Said {
    fn of(bytes: &[u8]) -> Self {
        serde_json::from_slice(bytes).unwrap_or_default()
    }

    /// Returns the error as text for the log, shortened.
    fn text(&self) -> String {
        let parts = [&self.error, &self.error_description];
        let parts = parts.map(|part| part.chars().filter(|c| !c.is_control()).take(200));
        let [error, why] = parts.map(Iterator::collect::<String>);
        match (error.as_str(), why.as_str()) {
            ("", _) => String::new(),
            (error, "") => format!(" ({error})"),
            (error, why) => format!(" ({error}: {why})"),
        }
    }
}

#[derive(Deserialize)]
struct Given {
    id_token: String,
}

impl Provider {
    pub(super) fn new() -> Self {
        Self {
            client: https::client(),
            known: Mutex::default(),
        }
    }

    /// Returns the provider's endpoints.
    pub(super) async fn ends(&self, config: &OidcConfig) -> Result<Arc<Ends>, ProviderError> {
        Ok(self.known(config, true).await?.ends)
    }

    /// Returns the provider's endpoints and keys. If `remembered` is true and the cached endpoints and keys are fresh,
    /// returns those without a request.
    async fn known(&self, config: &OidcConfig, remembered: bool) -> Result<Known, ProviderError> {
        let lock = || self.known.lock().unwrap_or_else(PoisonError::into_inner);
        let fresh = |known: &Known| remembered && known.since.elapsed() < KNOWN_FOR;
        if let Some(known) = lock().clone().filter(fresh) {
            return Ok(known);
        }
        let issuer = config.issuer.trim_end_matches('/');
        let ends: Ends = self
            .get(&format!("{issuer}/.well-known/openid-configuration"))
            .await?;
        if ends.issuer != config.issuer {
            return Err(ProviderError::Issuer {
                wanted: config.issuer.clone(),
                given: ends.issuer.chars().take(200).collect(),
            });
        }
        let keys: JwkSet = self.get(&ends.jwks_uri).await?;
        let known = Known {
            ends: Arc::new(ends),
            keys: Arc::new(keys),
            since: Instant::now(),
        };
        *lock() = Some(known.clone());
        Ok(known)
    }

    /// Returns the verified claims about the person to whom the provider issued this code.
    pub(super) async fn claims(
        &self,
        config: &OidcConfig,
        code: &str,
        verifier: &str,
        nonce: &str,
    ) -> Result<Map<String, Value>, ProviderError> {
        let known = self.known(config, true).await?;
        let token = self.exchange(config, &known.ends, code, verifier).await?;
        let expected = Expected {
            issuer: &config.issuer,
            client_id: &config.client_id,
            nonce,
        };
        match token::claims(&token, &known.keys, expected) {
            // The provider may have rotated its keys, so they are fetched again.
            Err(TokenError::KeyUnknown) => {
                let known = self.known(config, false).await?;
                Ok(token::claims(&token, &known.keys, expected)?)
            }
            claims => Ok(claims?),
        }
    }

    /// Exchanges a code for an id token (RFC 6749, section 4.1.3; RFC 7636, section 4.5).
    async fn exchange(
        &self,
        config: &OidcConfig,
        ends: &Ends,
        code: &str,
        verifier: &str,
    ) -> Result<String, ProviderError> {
        let mut fields = vec![
            ("grant_type", "authorization_code"),
            ("code", code),
            ("redirect_uri", &config.redirect_url),
            ("code_verifier", verifier),
        ];
        let methods = &ends.token_endpoint_auth_methods_supported;
        let takes = |name: &str| methods.iter().any(|method| method == name);
        // A provider that lists no methods accepts HTTP Basic (OpenID Connect Discovery 1.0, 3).
        let in_body = takes("client_secret_post") && !takes("client_secret_basic");
        let mut basic = None;
        match &config.client_secret {
            None => fields.push(("client_id", &config.client_id)),
            Some(secret) if in_body => {
                fields.push(("client_id", &config.client_id));
                fields.push(("client_secret", secret.expose()));
            }
            Some(secret) => {
                let secret = encoded(secret.expose());
                let pair = STANDARD.encode(format!("{}:{secret}", encoded(&config.client_id)));
                let mut value = HeaderValue::from_str(&format!("Basic {pair}")).ok();
                value.iter_mut().for_each(|value| value.set_sensitive(true));
                basic = value;
            }
        }
        let (url, body) = (&ends.token_endpoint, query(fields));
        let (status, answer) = self.send(url, Method::POST, body, basic).await?;
        if status == StatusCode::OK {
            let given: Given = parsed(url, status, &answer)?;
            return Ok(given.id_token);
        }
        let reported = Said::of(&answer);
        Err(match &*reported.error {
            "invalid_client" | "unauthorized_client" => ProviderError::Client(reported.text()),
            "invalid_grant" => ProviderError::Code(reported.text()),
            _ => ProviderError::Answered {
                url: url.clone(),
                status,
                reported: reported.text(),
            },
        })
    }

    async fn get<T: DeserializeOwned>(&self, url: &str) -> Result<T, ProviderError> {
        let (status, answer) = self.send(url, Method::GET, String::new(), None).await?;
        if status != StatusCode::OK {
            return Err(ProviderError::Answered {
                url: url.to_owned(),
                status,
                reported: Said::of(&answer).text(),
            });
        }
        parsed(url, status, &answer)
    }

    async fn send(
        &self,
        url: &str,
        method: Method,
        body: String,
        authorization: Option<HeaderValue>,
    ) -> Result<(StatusCode, Bytes), ProviderError> {
        let out_of_reach = |source: BoxError| ProviderError::OutOfReach {
            url: url.to_owned(),
            source,
        };
        // URLs that the provider publishes must satisfy the same rules as the configured URL.
        let uri = safe_address(url).map_err(|problem| out_of_reach(problem.into()))?;
        let mut req = Request::new(Full::new(Bytes::from(body)));
        let headers = req.headers_mut();
        headers.insert(header::ACCEPT, HeaderValue::from_static("application/json"));
        if method == Method::POST {
            let form = HeaderValue::from_static("application/x-www-form-urlencoded");
            headers.insert(header::CONTENT_TYPE, form);
        }
        if let Some(authorization) = authorization {
            headers.insert(header::AUTHORIZATION, authorization);
        }
        *req.method_mut() = method;
        *req.uri_mut() = uri;
        let answer = async {
            let res = self.client.request(req).await?;
            let status = res.status();
            let body = Limited::new(res.into_body(), ANSWER_BYTES_MAX);
            Ok::<_, BoxError>((status, body.collect().await?.to_bytes()))
        };
        match timeout(ANSWER_TIMEOUT, answer).await {
            Ok(answer) => answer.map_err(out_of_reach),
            Err(error) => Err(out_of_reach(error.into())),
        }
    }
}

fn parsed<T: DeserializeOwned>(
    url: &str,
    status: StatusCode,
    answer: &[u8],
) -> Result<T, ProviderError> {
    serde_json::from_slice(answer).map_err(|error| ProviderError::Answered {
        url: url.to_owned(),
        status,
        // The text contains only the error's position, because the response itself may contain a token.
        reported: format!(
            ", but the response cannot be parsed at line {}, column {}",
            error.line(),
            error.column()
        ),
    })
}
