//! Signs requests for AWS. The keys come from the configuration, from a command, or from the role of the EC2 instance.

use std::{fmt, time::Duration};

use bytes::Bytes;
use http::{HeaderMap, HeaderValue, Method, Request, StatusCode, Uri, header::AUTHORIZATION};
use secrecy::{ExposeSecret, SecretString};
use serde::Deserialize;
use serde_json::Value;
use tollgate_layers::{
    error::BoxError,
    login::{Login, LoginFuture, Unsigned},
    model::Egress,
};

pub(crate) use super::sigv4::AwsKeys;
use super::{
    LoginError, RenewedLogin,
    clock::Clock,
    command::CommandLine,
    endpoint::{Endpoint, instant_ms},
    renewed::{CredentialState, Fetched, Life, Renewed, Source},
    sigv4::{Scope, sign},
};
use crate::text::time::now_ms;

/// The service name of Amazon Bedrock in AWS signatures.
pub(crate) const BEDROCK: &str = "bedrock";
/// URL of the EC2 instance metadata service.
pub(crate) const METADATA: &str = "http://169.254.169.254";
const METADATA_TOKEN_SECONDS: &str = "21600";

/// A login at AWS: signs requests for one service in one region.
pub(crate) struct Aws {
    pub(crate) region: String,
    pub(crate) service: String,
    pub(crate) credentials: AwsCredentials,
}

/// The source of the AWS keys that sign requests.
pub(crate) enum AwsCredentials {
    /// The configuration contains the keys.
    Fixed(AwsKeys),
    /// A command prints the keys in the form of `aws configure export-credentials`.
    Command(CommandLine),
    /// The keys of the instance's role, which the metadata service at this URL returns.
    Instance(Uri),
}

impl Aws {
    /// Passes each setting and secret of the login to `add`, so that equal logins can be recognised.
    pub(super) fn describe(&self, add: &mut dyn FnMut(&str)) {
        add(&self.region);
        add(&self.service);
        match &self.credentials {
            AwsCredentials::Fixed(keys) => {
                add(&keys.access_key_id);
                add(keys.secret_access_key.expose_secret());
                let token = keys.session_token.as_ref();
                add(token.map_or("", |token| token.expose_secret()));
            }
            AwsCredentials::Command(command) => command.describe(add),
            AwsCredentials::Instance(address) => add(&address.to_string()),
        }
    }
}

pub(super) struct AwsLogin {
    scope: Scope,
    keys: Keys,
    clock: Clock,
}

enum Keys {
    Fixed(AwsKeys),
    Renewed(Renewed<AwsSource>),
}

enum AwsSource {
    Command(CommandLine),
    Instance(Endpoint, Uri),
}

impl AwsLogin {
    pub(super) fn new(vendor: &str, aws: Aws) -> Self {
        let keys = match aws.credentials {
            AwsCredentials::Fixed(keys) => Keys::Fixed(keys),
            AwsCredentials::Command(command) => {
                Keys::Renewed(Renewed::new(vendor, AwsSource::Command(command)))
            }
            AwsCredentials::Instance(address) => {
                // The vendor's proxy is not used here, because the metadata service answers only this machine.
                let endpoint = Endpoint::new(&Egress::default());
                Keys::Renewed(Renewed::new(vendor, AwsSource::Instance(endpoint, address)))
            }
        };
        Self {
            scope: Scope {
                region: aws.region,
                service: aws.service,
            },
            keys,
            clock: Clock::default(),
        }
    }
}

impl Login for AwsLogin {
    fn sign<'a>(&'a self, request: Unsigned<'a>) -> LoginFuture<'a, Result<(), BoxError>> {
        Box::pin(async move {
            let now_ms = self.clock.now_ms();
            match &self.keys {
                Keys::Fixed(keys) => sign(request, keys, &self.scope, now_ms)?,
                Keys::Renewed(renewed) => {
                    sign(request, &*renewed.get().await?, &self.scope, now_ms)?;
                }
            }
            Ok(())
        })
    }

    fn is_renewed_after(&self, sent: &HeaderMap, status: StatusCode, answer: &HeaderMap) -> bool {
        if !matches!(status, StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN) {
            return false;
        }
        // A signature is valid only for five minutes around its time. So if the clock was wrong, that explains the
        // refusal.
        if self.clock.correct(answer) {
            return true;
        }
        let kind = answer.get("x-amzn-errortype");
        let kind = kind.and_then(|kind| kind.to_str().ok()).unwrap_or_default();
        let mut of_keys = ["ExpiredToken", "UnrecognizedClient", "InvalidClientTokenId"].iter();
        let is_of_keys = of_keys.any(|known| kind.starts_with(known));
        let sent = sent.get(AUTHORIZATION);
        let sent = sent.and_then(|value| value.to_str().ok());
        match &self.keys {
            Keys::Renewed(renewed) if is_of_keys => renewed.refuse(|keys| {
                let credential = format!("Credential={}/", keys.access_key_id);
                sent.is_some_and(|sent| sent.contains(&credential))
            }),
            _ => false,
        }
    }
}

impl RenewedLogin for AwsLogin {
    fn state(&self) -> Option<CredentialState> {
        match &self.keys {
            Keys::Fixed(_) => None,
            Keys::Renewed(renewed) => Some(renewed.state()),
        }
    }
}

impl fmt::Debug for AwsLogin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("AwsLogin")
            .field("scope", &self.scope)
            .finish_non_exhaustive()
    }
}

/// Keys in the JSON form in which commands print them and the metadata service returns them.
#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
struct PrintedKeys {
    access_key_id: String,
    secret_access_key: String,
    #[serde(alias = "Token")]
    session_token: Option<String>,
    expiration: Option<Value>,
}

impl Source for AwsSource {
    type Credential = AwsKeys;

    async fn fetch(&self) -> Result<Fetched<AwsKeys>, LoginError> {
        match self {
            Self::Command(command) => {
                let found = keys(command.output().await?.as_bytes(), command.refresh);
                let problem = || format!("{} printed no AWS keys in JSON", command.program);
                found.ok_or_else(|| LoginError::new(problem()))
            }
            Self::Instance(endpoint, address) => {
                let found = instance_keys(endpoint, address).await?;
                let found = keys(&found, Duration::from_secs(600));
                found.ok_or_else(|| LoginError::new("the metadata service returned no AWS keys"))
            }
        }
    }
}

/// Parses keys. If they do not state their expiry, they are renewed after `refresh`.
fn keys(text: &[u8], refresh: Duration) -> Option<Fetched<AwsKeys>> {
    let keys: PrintedKeys = serde_json::from_slice(text).ok()?;
    let life = match keys.expiration.as_ref().and_then(instant_ms) {
        Some(ends_ms) => Life::Ends(Duration::from_millis(ends_ms.saturating_sub(now_ms()))),
        None => Life::Unknown(refresh),
    };
    let credential = AwsKeys {
        access_key_id: keys.access_key_id,
        secret_access_key: keys.secret_access_key.into(),
        session_token: keys.session_token.map(SecretString::from),
    };
    Some(Fetched { credential, life })
}

/// Fetches the keys of the instance's role from the metadata service, version 2.
async fn instance_keys(endpoint: &Endpoint, address: &Uri) -> Result<Bytes, LoginError> {
    let base = address.to_string();
    let base = base.trim_end_matches('/');
    let get = async |method: Method, path: &str, header: (&'static str, HeaderValue)| {
        let req = Request::builder()
            .method(method)
            .uri(format!("{base}{path}"))
            .header(header.0, header.1)
            .body(Bytes::new())
            .map_err(|error| LoginError::new(error.to_string()))?;
        let res = endpoint.exchange(req).await?;
        match res.status() {
            StatusCode::OK => Ok(res.into_body()),
            status => Err(LoginError::new(format!(
                "the metadata service answered {status} to {path}: the instance needs a role"
            ))),
        }
    };
    let seconds = HeaderValue::from_static(METADATA_TOKEN_SECONDS);
    let ttl = ("x-aws-ec2-metadata-token-ttl-seconds", seconds);
    let token = get(Method::PUT, "/latest/api/token", ttl).await?;
    let mut token = HeaderValue::from_maybe_shared(token)
        .map_err(|_| LoginError::new("the metadata service returned an invalid token"))?;
    token.set_sensitive(true);
    let roles = "/latest/meta-data/iam/security-credentials/";
    let header = || ("x-aws-ec2-metadata-token", token.clone());
    let role = get(Method::GET, roles, header()).await?;
    let role = String::from_utf8_lossy(&role);
    let role = role.lines().next().unwrap_or_default();
    get(Method::GET, &format!("{roles}{role}"), header()).await
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, UNIX_EPOCH};

    use http::{Response, header::DATE};

    use super::*;
    use crate::logins::{
        Form, login,
        testing::{TokenServer, signed},
    };

    fn aws(credentials: AwsCredentials) -> Form {
        Form::Aws(Aws {
            region: "us-east-1".to_owned(),
            service: BEDROCK.to_owned(),
            credentials,
        })
    }

    fn fixed() -> AwsCredentials {
        AwsCredentials::Fixed(AwsKeys {
            access_key_id: "AKIDEXAMPLE".to_owned(),
            secret_access_key: "wJalrXUtnFEMI".to_owned().into(),
            session_token: None,
        })
    }

    #[tokio::test]
    async fn request_is_signed_with_aws_keys_from_a_command() {
        let printed = r#"{"Version":1,"AccessKeyId":"ASIA1","SecretAccessKey":"s","SessionToken":"t","Expiration":"2099-01-01T00:00:00+00:00"}"#;
        let command = CommandLine {
            program: "echo".to_owned(),
            arguments: vec![printed.to_owned()],
            refresh: Duration::from_secs(60),
        };
        let (login, _) = login(
            "b1",
            aws(AwsCredentials::Command(command)),
            &Egress::default(),
        );
        let headers = signed(
            &*login,
            "https://bedrock-runtime.us-east-1.amazonaws.com/openai/v1/chat/completions",
            "{}",
        )
        .await
        .unwrap();
        let authorization = headers[AUTHORIZATION].to_str().unwrap();
        assert!(
            authorization.contains("Credential=ASIA1/")
                && authorization.contains("/us-east-1/bedrock/aws4_request")
        );
        assert_eq!(headers["x-amz-security-token"], "t");
    }

    #[tokio::test]
    async fn request_is_signed_with_aws_keys_of_the_instances_role() {
        let server = TokenServer::start_with(|_, seen| {
            let ours = seen.head("x-aws-ec2-metadata-token") == "imds";
            let body = match (seen.path.as_str(), ours) {
                ("/latest/api/token", _) if seen.head("x-aws-ec2-metadata-token-ttl-seconds") == "21600" => "imds",
                ("/latest/meta-data/iam/security-credentials/", true) => "gate\n",
                ("/latest/meta-data/iam/security-credentials/gate", true) => {
                    r#"{"Code":"Success","AccessKeyId":"ASIA2","SecretAccessKey":"s","Token":"t","Expiration":"2099-01-01T00:00:00Z"}"#
                }
                other => panic!("{other:?}"),
            };
            Response::new(body.to_owned())
        })
        .await;
        let (login, _) = login(
            "b2",
            aws(AwsCredentials::Instance(server.url("/"))),
            &Egress::default(),
        );
        let headers = signed(&*login, "https://h/", "{}").await.unwrap();
        assert!(
            headers[AUTHORIZATION]
                .to_str()
                .unwrap()
                .contains("Credential=ASIA2/")
        );
        assert_eq!(server.seen().len(), 3);
    }

    #[tokio::test]
    async fn error_states_that_the_instance_needs_a_role() {
        let server = TokenServer::start(|number| {
            if number == 0 {
                (200, "imds".to_owned())
            } else {
                (404, String::new())
            }
        })
        .await;
        let (login, _) = login(
            "b3",
            aws(AwsCredentials::Instance(server.url("/"))),
            &Egress::default(),
        );
        let error = signed(&*login, "https://h/", "{}")
            .await
            .unwrap_err()
            .to_string();
        assert!(
            error.contains("404") && error.contains("needs a role"),
            "{error}"
        );
    }

    #[tokio::test]
    async fn clock_that_is_five_minutes_wrong_is_corrected_after_a_refusal() {
        let (login, _) = login("b4", aws(fixed()), &Egress::default());
        let sent = signed(&*login, "https://h/", "{}").await.unwrap();
        let at = UNIX_EPOCH + Duration::from_millis(now_ms() + 300_000);
        let answer = HeaderMap::from_iter([(DATE, httpdate::fmt_http_date(at).parse().unwrap())]);
        assert!(!login.is_renewed_after(&sent, StatusCode::BAD_REQUEST, &answer));
        assert!(login.is_renewed_after(&sent, StatusCode::FORBIDDEN, &answer));
        let again = signed(&*login, "https://h/", "{}").await.unwrap();
        assert!(again["x-amz-date"] > sent["x-amz-date"]);
        // The clock is right now, so a further refusal must have another cause.
        assert!(!login.is_renewed_after(&again, StatusCode::FORBIDDEN, &answer));
        assert!(!format!("{login:?}").contains("wJalrXUtnFEMI"));
    }
}
