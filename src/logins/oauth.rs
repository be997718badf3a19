//! Logins by OAuth 2.0 client credentials (RFC 6749, section 4.4), which GigaChat and Microsoft Entra use.

use http::{HeaderName, HeaderValue, Uri, header::AUTHORIZATION};
use secrecy::{ExposeSecret, SecretString};
use tollgate_layers::model::Egress;
use uuid::{Builder, Uuid};

use super::{
    LoginError,
    endpoint::{Endpoint, FORM, post, token},
    renewed::{Fetched, Source},
    secret_header,
};
use crate::text::percent::query;

/// A token endpoint, and the client's credentials at this endpoint.
pub(crate) struct OAuth {
    pub(crate) url: Uri,
    pub(crate) credentials: ClientCredentials,
    pub(crate) scope: Option<String>,
    /// The value of the field `grant_type` in a request for a token, if the endpoint requires this field.
    pub(crate) grant_type: Option<String>,
    /// The name of a header that gets a new UUID with each request for a token, such as GigaChat's `RqUID`.
    pub(crate) request_id_header: Option<HeaderName>,
}

pub(crate) enum ClientCredentials {
    /// The credentials are sent in the header `authorization`, after `Basic `.
    Basic(SecretString),
    /// The credentials are sent in the body of the request.
    Body { id: String, secret: SecretString },
}

impl OAuth {
    /// Passes each setting and secret of the login to `add`, so that equal logins can be recognised.
    pub(super) fn describe(&self, add: &mut dyn FnMut(&str)) {
        add(&self.url.to_string());
        match &self.credentials {
            ClientCredentials::Basic(key) => add(key.expose_secret()),
            ClientCredentials::Body { id, secret } => {
                add(id);
                add(secret.expose_secret());
            }
        }
        add(self.scope.as_deref().unwrap_or_default());
        add(self.grant_type.as_deref().unwrap_or_default());
        let header = self.request_id_header.as_ref();
        add(header.map_or("", HeaderName::as_str));
    }

    pub(super) fn source(self, egress: &Egress) -> impl Source<Credential = SecretString> {
        OAuthSource {
            endpoint: Endpoint::new(egress),
            oauth: self,
        }
    }

    fn body(&self) -> String {
        let grant_type = self.grant_type.as_deref().map(|text| ("grant_type", text));
        let scope = self.scope.as_deref().map(|text| ("scope", text));
        let mut fields: Vec<_> = grant_type.into_iter().chain(scope).collect();
        if let ClientCredentials::Body { id, secret } = &self.credentials {
            fields.extend([
                ("client_id", id.as_str()),
                ("client_secret", secret.expose_secret()),
            ]);
        }
        query(fields)
    }
}

struct OAuthSource {
    endpoint: Endpoint,
    oauth: OAuth,
}

impl Source for OAuthSource {
    type Credential = SecretString;

    async fn fetch(&self) -> Result<Fetched<SecretString>, LoginError> {
        let oauth = &self.oauth;
        let mut req = post(&oauth.url, FORM, oauth.body());
        let headers = req.headers_mut();
        if let ClientCredentials::Basic(key) = &oauth.credentials {
            headers.insert(AUTHORIZATION, secret_header("Basic ", key)?);
        }
        if let Some(name) = &oauth.request_id_header {
            headers.insert(name, request_id()?);
        }
        token(&self.endpoint.exchange(req).await?)
    }
}

fn request_id() -> Result<HeaderValue, LoginError> {
    let mut bytes = [0; 16];
    getrandom::fill(&mut bytes).map_err(|error| LoginError::new(error.to_string()))?;
    let id: Uuid = Builder::from_random_bytes(bytes).into_uuid();
    HeaderValue::try_from(id.to_string()).map_err(|error| LoginError::new(error.to_string()))
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::logins::{
        Form, TokenHeader,
        testing::{TokenServer, bearer, signed},
    };

    fn gigachat(server: &TokenServer) -> Form {
        let oauth = OAuth {
            url: server.url("/api/v2/oauth"),
            credentials: ClientCredentials::Basic("bm90LWEta2V5".to_owned().into()),
            scope: Some("GIGACHAT_API_CORP".to_owned()),
            grant_type: None,
            request_id_header: Some(HeaderName::from_static("rquid")),
        };
        Form::OAuth(oauth, TokenHeader::default())
    }

    #[tokio::test]
    async fn gigachat_login_sends_basic_credentials_and_a_request_id() {
        let server = TokenServer::start(|_| {
            (
                200,
                r#"{"access_token":"jwe","expires_at":4102444800000}"#.to_owned(),
            )
        })
        .await;
        let (login, _) = crate::logins::login("gigachat", gigachat(&server), &Egress::default());
        assert_eq!(bearer(&*login).await.unwrap(), "Bearer jwe");
        assert_eq!(bearer(&*login).await.unwrap(), "Bearer jwe");
        let seen = server.seen();
        assert_eq!(seen.len(), 1);
        let seen = &seen[0];
        assert_eq!(seen.head("authorization"), "Basic bm90LWEta2V5");
        assert_eq!(seen.head("content-type"), FORM);
        let id: Uuid = seen.head("rquid").parse().unwrap();
        assert_eq!(id.get_version_num(), 4);
        assert_eq!(seen.body, "scope=GIGACHAT_API_CORP");
    }

    #[tokio::test]
    async fn entra_login_sends_the_client_id_and_client_secret_in_the_body() {
        let server =
            TokenServer::start(|_| (200, r#"{"access_token":"t","expires_in":3599}"#.to_owned()))
                .await;
        let oauth = OAuth {
            url: server.url("/tenant/oauth2/v2.0/token"),
            credentials: ClientCredentials::Body {
                id: "app".to_owned(),
                secret: "s~ec/ret".to_owned().into(),
            },
            scope: Some("https://cognitiveservices.azure.com/.default".to_owned()),
            grant_type: Some("client_credentials".to_owned()),
            request_id_header: None,
        };
        let (login, _) = crate::logins::login(
            "azure",
            Form::OAuth(oauth, TokenHeader::default()),
            &Egress::default(),
        );
        assert_eq!(bearer(&*login).await.unwrap(), "Bearer t");
        let seen = server.seen();
        assert_eq!(
            seen[0].body,
            "grant_type=client_credentials&scope=https%3A%2F%2Fcognitiveservices.azure.com%2F.default\
             &client_id=app&client_secret=s~ec%2Fret"
        );
        assert_eq!(seen[0].path, "/tenant/oauth2/v2.0/token");
    }

    #[tokio::test]
    async fn error_of_a_refused_login_states_the_reason_and_no_secret() {
        let server = TokenServer::start(|_| {
            (
                401,
                r#"{"code":6,"message":"credentials doesn't match db data"}"#.to_owned(),
            )
        })
        .await;
        let (login, _) = crate::logins::login("gigachat", gigachat(&server), &Egress::default());
        let error = bearer(&*login).await.unwrap_err().to_string();
        assert_eq!(
            error,
            "the token endpoint answered 401 Unauthorized: credentials doesn't match db data"
        );
        let shown = format!("{login:?} {error}");
        assert!(!shown.contains("bm90LWEta2V5"), "{shown}");
        // The next call gets the same error, without another request to the token endpoint.
        assert_eq!(bearer(&*login).await.unwrap_err().to_string(), error);
        assert_eq!(server.seen().len(), 1);
    }

    #[tokio::test]
    async fn vendors_with_equal_login_settings_share_one_token() {
        let server = TokenServer::start(|number| {
            (
                200,
                format!(r#"{{"access_token":"t-{number}","expires_in":1800}}"#),
            )
        })
        .await;
        let make = |key: &str| {
            let oauth = OAuth {
                url: server.url("/"),
                credentials: ClientCredentials::Basic(key.to_owned().into()),
                scope: None,
                grant_type: None,
                request_id_header: None,
            };
            crate::logins::login(
                "v",
                Form::OAuth(oauth, TokenHeader::default()),
                &Egress::default(),
            )
        };
        let ((one, first), (two, second), (three, third)) = (make("a"), make("a"), make("b"));
        assert!(Arc::ptr_eq(&one, &two) && !Arc::ptr_eq(&one, &three));
        assert!(first == second && first != third);
        assert_eq!(bearer(&*one).await.unwrap(), "Bearer t-0");
        assert_eq!(bearer(&*two).await.unwrap(), "Bearer t-0");
        assert_eq!(bearer(&*three).await.unwrap(), "Bearer t-1");
    }

    #[tokio::test]
    async fn refused_token_is_renewed_after_a_401_but_not_after_a_400() {
        let server = TokenServer::start(|number| {
            (
                200,
                format!(r#"{{"access_token":"t-{number}","expires_in":1800}}"#),
            )
        })
        .await;
        let (login, _) = crate::logins::login("gigachat", gigachat(&server), &Egress::default());
        let sent = signed(&*login, "http://v/", "{}").await.unwrap();
        tokio::time::sleep(std::time::Duration::from_millis(1100)).await;
        let none = http::HeaderMap::new();
        use tollgate_layers::login::Login as _;
        assert!(!login.is_renewed_after(&sent, http::StatusCode::BAD_REQUEST, &none));
        assert_eq!(bearer(&*login).await.unwrap(), "Bearer t-0");
        assert!(login.is_renewed_after(&sent, http::StatusCode::UNAUTHORIZED, &none));
        assert_eq!(bearer(&*login).await.unwrap(), "Bearer t-1");
    }
}
