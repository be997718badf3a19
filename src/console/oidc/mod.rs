//! Sign-in through an OpenID provider: the authorization code with PKCE (OpenID Connect Core 1.0, 3.1; RFC 7636).
//!
//! The gateway stores nothing for a sign-in in progress. The browser has a cookie with a random value, and the state,
//! the nonce and the code verifier are derived from this value. So an authorization code is useless in another browser,
//! and unfinished sign-ins use no memory.

mod provider;
mod token;

use std::time::Duration;

use base64::{Engine, engine::general_purpose::URL_SAFE_NO_PAD};
use http::{HeaderMap, HeaderValue, StatusCode, header, request::Parts};
use serde_json::{Map, Value};
use subtle::ConstantTimeEq;
use tokio::sync::Semaphore;

use self::provider::{Provider, ProviderError};
use super::{
    Answer,
    cookie::{Cookie, single},
    form::Form,
    pages, see,
    sessions::digest,
    sign_in::is_tls,
};
use crate::{
    config::OidcConfig,
    operators::Role,
    text::{hex::random, percent::query},
};

/// The cookie with the random value of a sign-in in progress. It is `SameSite=Lax`, because the provider redirects the
/// browser back from another site, and the browser must send the cookie with that request.
const COOKIE: Cookie = Cookie {
    name: "tollgate_console_oidc",
    path: "/console/oidc",
    same_site: "Lax",
};
/// The maximum time that a sign-in at the provider may take.
const AGE_MAX: Duration = Duration::from_secs(600);
/// The maximum number of concurrent requests to the provider.
const ASKED_AT_ONCE_MAX: usize = 8;
const NAME_CHARS_MAX: usize = 200;

/// The OpenID provider and its configuration.
pub(super) struct Oidc {
    config: OidcConfig,
    provider: Provider,
    requested: Semaphore,
}

/// An operator whom the provider has authenticated, and who has a role in the console.
pub(super) struct Known {
    /// The operator's name in audit lines, with the prefix `oidc:`. No name in an operators file can have this prefix.
    pub(super) name: String,
    pub(super) role: Role,
}

/// The refusal of a sign-in, as shown to the person. The log has the details.
pub(super) struct Refused {
    pub(super) status: StatusCode,
    pub(super) text: String,
    /// Whether the gateway called the provider for this sign-in. Only such a sign-in may count as a wrong guess.
    pub(super) requested: bool,
}

impl Oidc {
    pub(super) fn new(config: OidcConfig) -> Self {
        Self {
            config,
            provider: Provider::new(),
            requested: Semaphore::new(ASKED_AT_ONCE_MAX),
        }
    }

    /// Redirects a browser to the OpenID provider.
    pub(super) async fn start(&self, head: &Parts) -> Answer {
        let Ok(_permit) = self.requested.try_acquire() else {
            return busy().page();
        };
        let (ends, word) = match (self.provider.ends(&self.config).await, random()) {
            (Ok(ends), Ok(word)) => (ends, word),
            (Err(error), _) => return failed(&error).page(),
            (_, Err(error)) => {
                tracing::error!(%error, "a sign-in through the OpenID provider cannot begin: the operating system returned no random bytes");
                return page(
                    StatusCode::INTERNAL_SERVER_ERROR,
                    "Gateway error: see the gateway’s log.",
                );
            }
        };
        let way = Way::of(&word);
        let scopes = self.config.scopes.iter().map(String::as_str);
        let scopes: Vec<&str> = ["openid"].into_iter().chain(scopes).collect();
        let to = with_query(
            &ends.authorization_endpoint,
            &[
                ("response_type", "code"),
                ("client_id", &self.config.client_id),
                ("redirect_uri", &self.config.redirect_url),
                ("scope", &scopes.join(" ")),
                ("state", &way.state),
                ("nonce", &way.nonce),
                ("code_challenge", &way.challenge()),
                ("code_challenge_method", "S256"),
            ],
        );
        let Ok(to) = HeaderValue::from_str(&to) else {
            tracing::error!("admin.oidc.issuer: its authorization_endpoint is not a URL");
            return page(
                StatusCode::BAD_GATEWAY,
                "The identity provider's address is invalid; see the gateway's log.",
            );
        };
        let mut res = see("/");
        res.headers_mut().insert(header::LOCATION, to);
        COOKIE.set(res, &word, AGE_MAX, is_tls(&head.headers))
    }

    /// Returns the operator whom the provider has authenticated and redirected back. If this gateway did not send the
    /// browser to the provider, the provider is not called.
    pub(super) async fn back(&self, headers: &HeaderMap, form: &Form) -> Result<Known, Refused> {
        let way = cookie(headers).map(|word| Way::of(&word));
        let state = form.get("state").as_bytes();
        let Some(way) = way.filter(|way| bool::from(way.state.as_bytes().ct_eq(state))) else {
            let text = "This browser did not start this sign-in, or the sign-in took longer than ten minutes. Try again.";
            return Err(Refused::by_gateway(StatusCode::BAD_REQUEST, text));
        };
        // RFC 9207: a response of another issuer is refused.
        let issuer = form.get("iss");
        if !issuer.is_empty() && issuer != self.config.issuer {
            let text = "The sign-in came from an identity provider other than admin.oidc.issuer.";
            return Err(Refused::by_gateway(StatusCode::BAD_REQUEST, text));
        }
        let code = form.get("code");
        if code.is_empty() {
            let word: String = form.get("error").chars().take(60).collect();
            tracing::warn!(target: "audit", what = "console.refused", by = "oidc", error = word);
            let text = format!("The identity provider refused the sign-in ({word}).");
            return Err(Refused::by_gateway(StatusCode::FORBIDDEN, text));
        }
        let Ok(_permit) = self.requested.try_acquire() else {
            return Err(busy());
        };
        let claims = self
            .provider
            .claims(&self.config, code, &way.verifier, &way.nonce)
            .await
            .map_err(|error| failed(&error))?;
        self.known(&claims)
    }

    /// Returns the operator's name and role according to the claims.
    fn known(&self, claims: &Map<String, Value>) -> Result<Known, Refused> {
        let OidcConfig {
            name_claim,
            role_claim,
            ..
        } = &self.config;
        let refused = |text: String| {
            tracing::warn!(target: "audit", what = "console.refused", by = "oidc", why = text);
            Refused {
                status: StatusCode::FORBIDDEN,
                text,
                requested: true,
            }
        };
        let name = claims.get(name_claim).and_then(Value::as_str);
        let plain = |name: &&str| {
            let plain = |c: char| c.is_ascii_alphanumeric() || "-_.@+".contains(c);
            !name.is_empty() && name.len() <= NAME_CHARS_MAX && name.chars().all(plain)
        };
        let Some(name) = name.filter(plain) else {
            return Err(refused(format!(
                "The identity provider does not report a usable name: the claim {name_claim:?} (admin.oidc.name_claim) is \
                 missing, or has characters other than letters, digits, '.', '-', '_', '+' and '@'. admin.oidc.scopes \
                 may have to request this claim."
            )));
        };
        // Some providers send the claim `email_verified` as text.
        let verified = |reported: &Value| reported == true || reported == "true";
        if name_claim == "email" && !claims.get("email_verified").is_some_and(verified) {
            return Err(refused(format!(
                "The identity provider has not verified the email address {name}."
            )));
        }
        let groups: Vec<&str> = match claims.get(role_claim) {
            Some(Value::String(one)) => vec![one],
            Some(Value::Array(all)) => all.iter().filter_map(Value::as_str).collect(),
            _ => Vec::new(),
        };
        let Some(role) = self.config.role_of(&groups) else {
            return Err(refused(format!(
                "{name} has no role in the console: the identity provider's claim {role_claim:?} (admin.oidc.role_claim) \
                 contains none of the groups in admin.oidc.roles."
            )));
        };
        Ok(Known {
            name: format!("oidc:{name}"),
            role,
        })
    }

    /// Redirects a browser to the provider's page for signing out.
    pub(super) async fn leave(&self) -> Answer {
        let ends = match self.provider.ends(&self.config).await {
            Ok(ends) => ends,
            Err(error) => return failed(&error).page(),
        };
        let Some(end) = &ends.end_session_endpoint else {
            return page(
                StatusCode::OK,
                "You are signed out of the console. The identity provider has no sign-out page.",
            );
        };
        let to = with_query(end, &[("client_id", &self.config.client_id)]);
        let mut res = see("/console/sign-in");
        if let Ok(to) = HeaderValue::from_str(&to) {
            res.headers_mut().insert(header::LOCATION, to);
        }
        res
    }

    /// Deletes the sign-in's cookie, because the browser has returned from the provider.
    pub(super) fn arrived(res: Answer, headers: &HeaderMap) -> Answer {
        COOKIE.set(res, "", Duration::ZERO, is_tls(headers))
    }
}

impl Refused {
    /// A refusal for which the provider was not called.
    fn by_gateway(status: StatusCode, text: impl Into<String>) -> Self {
        Self {
            status,
            text: text.into(),
            requested: false,
        }
    }

    pub(super) fn page(&self) -> Answer {
        page(self.status, &self.text)
    }
}

fn page(status: StatusCode, says: &str) -> Answer {
    pages::sign_in(status, Some(says), pages::Provider::Offered)
}

fn busy() -> Refused {
    let text = "Too many people are signing in at the moment. Try again.";
    Refused::by_gateway(StatusCode::SERVICE_UNAVAILABLE, text)
}

/// Logs an error in full, and returns a short text for the person.
fn failed(error: &ProviderError) -> Refused {
    tracing::error!(%error, "a sign-in through the OpenID provider failed");
    // An invalid code is a guess by the browser; an unreachable provider is not the browser's fault.
    let (setting, status) = match error {
        ProviderError::Client(_) => ("admin.oidc.client_id", StatusCode::BAD_GATEWAY),
        ProviderError::Code(_) => ("admin.oidc.redirect_url", StatusCode::FORBIDDEN),
        ProviderError::Token(_) => ("admin.oidc.issuer", StatusCode::FORBIDDEN),
        _ => ("admin.oidc.issuer", StatusCode::BAD_GATEWAY),
    };
    Refused {
        status,
        text: format!(
            "The identity provider did not answer, or its answer is invalid; see the gateway's log, and check {setting}."
        ),
        requested: true,
    }
}

/// The values that a sign-in sends to the provider and gets back. They are derived from the random value in the cookie.
struct Way {
    state: String,
    nonce: String,
    verifier: String,
}

impl Way {
    fn of(word: &str) -> Self {
        let part = |name: &str| URL_SAFE_NO_PAD.encode(digest(format!("{name} {word}").as_bytes()));
        Self {
            state: part("state"),
            nonce: part("nonce"),
            verifier: part("verifier"),
        }
    }

    /// Returns the code challenge for this verifier (S256; RFC 7636, 4.2).
    fn challenge(&self) -> String {
        URL_SAFE_NO_PAD.encode(digest(self.verifier.as_bytes()))
    }
}

fn with_query(url: &str, fields: &[(&str, &str)]) -> String {
    let sign = if url.contains('?') { '&' } else { '?' };
    format!("{url}{sign}{}", query(fields.iter().copied()))
}

/// Returns the random value of a sign-in in progress: 64 hexadecimal digits.
fn cookie(headers: &HeaderMap) -> Option<String> {
    single(COOKIE.values(headers).filter(|word| word.len() == 64))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn oidc() -> Oidc {
        Oidc::new(OidcConfig {
            issuer: "https://login.example".into(),
            client_id: "tollgate".into(),
            client_secret: None,
            redirect_url: "https://console.example/console/oidc/back".into(),
            scopes: Vec::new(),
            name_claim: "email".into(),
            role_claim: "groups".into(),
            roles: vec![
                (Role::Admin, vec!["ops".into()]),
                (Role::Finance, vec!["money".into(), "boss".into()]),
                (Role::Read, vec!["all".into()]),
            ],
        })
    }

    #[tokio::test]
    async fn openid_claims_give_name_and_highest_role_and_a_refusal_names_the_setting_at_fault() {
        let oidc = oidc();
        let known = |claims: Value| {
            let known = oidc.known(claims.as_object().unwrap());
            known
                .map(|known| (known.name, known.role))
                .map_err(|refused| refused.text)
        };
        let anna = |groups: Value| json!({ "email": "anna@example.com", "email_verified": true, "groups": groups });
        for (groups, role) in [
            (json!(["all", "ops"]), Role::Admin),
            (json!(["boss", "all"]), Role::Finance),
            (json!("all"), Role::Read),
        ] {
            assert_eq!(
                known(anna(groups)),
                Ok(("oidc:anna@example.com".into(), role))
            );
        }
        for (claims, says) in [
            (anna(json!(["other"])), "admin.oidc.roles"),
            (anna(json!(7)), "admin.oidc.role_claim"),
            (json!({ "groups": ["ops"] }), "admin.oidc.name_claim"),
            (
                json!({ "email": "a\nb", "groups": ["ops"] }),
                "admin.oidc.name_claim",
            ),
            (
                json!({ "email": "a@b", "email_verified": false, "groups": ["ops"] }),
                "not verified",
            ),
            (json!({ "email": "a@b", "groups": ["ops"] }), "not verified"),
        ] {
            let refused = known(claims).unwrap_err();
            assert!(refused.contains(says), "{refused}");
        }
    }

    #[test]
    fn openid_state_nonce_and_verifier_are_derived_from_one_secret() {
        let (one, other) = (Way::of("a"), Way::of("b"));
        assert_eq!(one.state, Way::of("a").state);
        assert_ne!(one.state, other.state);
        assert!(one.state != one.nonce && one.nonce != one.verifier);
        // RFC 7636, section 4.1, requires verifiers of at least 43 characters.
        assert_eq!((one.verifier.len(), one.challenge().len()), (43, 43));
    }

    #[tokio::test]
    async fn openid_sign_in_without_a_matching_request_is_refused() {
        let oidc = oidc();
        let mut headers = HeaderMap::new();
        let form = |word: &str| Form::parse(&format!("code=x&state={}", Way::of(word).state));
        let word = "0".repeat(64);
        let refused = oidc.back(&headers, &form(&word)).await.err().unwrap();
        assert_eq!(refused.status, 400);
        let value = format!("{}={word}", COOKIE.name);
        headers.insert(header::COOKIE, HeaderValue::from_str(&value).unwrap());
        let refused = oidc.back(&headers, &form("1")).await.err().unwrap();
        assert_eq!(refused.status, 400);
        let state = Way::of(&word).state;
        for (query, says) in [
            ("error=access_denied", "access_denied"),
            ("code=x&iss=https%3A%2F%2Fevil.example", "admin.oidc.issuer"),
        ] {
            let form = Form::parse(&format!("{query}&state={state}"));
            let refused = oidc.back(&headers, &form).await.err().unwrap();
            assert!(refused.text.contains(says), "{}", refused.text);
        }
    }
}
