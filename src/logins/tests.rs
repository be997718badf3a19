//! Tests all logins that fetch tokens, against endpoints on real sockets. Time is paused, and the endpoint runs on the
//! test's own thread, so an hour passes in a moment.

use std::{
    sync::{Arc, Mutex},
    time::{Duration, UNIX_EPOCH},
};

use http::{HeaderName, HeaderValue, Response, header::DATE};
use serde_json::json;
use tokio::time::{Instant, sleep};
use tollgate_layers::model::Egress;

use super::{
    Aws, AwsCredentials, BEDROCK, ClientCredentials, Form, OAuth, ServiceAccount, TokenHeader,
    VendorLogin,
    testing::{TokenServer, signed},
};
use crate::text::time::now_ms;

const LIFE_S: u64 = 1800;

/// An endpoint that issues tokens and temporary keys, and stores until when each is valid.
struct Endpoint {
    server: TokenServer,
    issued: Arc<Mutex<Vec<Instant>>>,
}

impl Endpoint {
    /// Starts an endpoint. Its clock differs from this machine's clock by `offset_s`. In the seconds `down` since the
    /// test began, it answers only 503.
    async fn start(offset_s: i64, down: std::ops::Range<u64>) -> Self {
        let issued = Arc::new(Mutex::new(Vec::new()));
        let (began, ends) = (Instant::now(), Arc::clone(&issued));
        let server = TokenServer::start_with(move |_, seen| {
            let now_s = (now_ms() / 1000).saturating_add_signed(offset_s);
            let date = UNIX_EPOCH + Duration::from_secs(now_s);
            let res = Response::builder().header(DATE, httpdate::fmt_http_date(date));
            if down.contains(&began.elapsed().as_secs()) {
                return res.status(503).body(String::new()).unwrap();
            }
            let mut ends = ends.lock().unwrap();
            let number = ends.len();
            let body = match seen.path.as_str() {
                "/latest/api/token" => "imds".to_owned(),
                "/latest/meta-data/iam/security-credentials/" => "role".to_owned(),
                path => {
                    ends.push(Instant::now() + Duration::from_secs(LIFE_S));
                    let at_ms = (now_s + LIFE_S) * 1000;
                    match path {
                        "/expires_in" => {
                            json!({ "access_token": number.to_string(), "expires_in": LIFE_S })
                        }
                        "/expires_at" => {
                            json!({ "access_token": number.to_string(), "expires_at": at_ms })
                        }
                        _ => json!({
                            "AccessKeyId": number.to_string(), "SecretAccessKey": "s", "Token": "t",
                            "Expiration": crate::text::time::rfc3339(at_ms),
                        }),
                    }
                    .to_string()
                }
            };
            res.body(body).unwrap()
        })
        .await;
        Self { server, issued }
    }

    /// Returns whether a signed request has a credential that is valid now.
    fn accepts(&self, authorization: &str) -> bool {
        let (_, number) = authorization.split_once("Bearer ").unwrap_or_else(|| {
            let (_, scope) = authorization.split_once("Credential=").unwrap();
            ("", scope.split_once('/').unwrap().0)
        });
        self.issued.lock().unwrap()[number.parse::<usize>().unwrap()] > Instant::now()
    }

    fn issued(&self) -> usize {
        self.issued.lock().unwrap().len()
    }

    fn login(&self, name: &str) -> (Arc<VendorLogin>, HeaderValue) {
        let oauth = |path, credentials| {
            let oauth = OAuth {
                url: self.server.url(path),
                credentials,
                scope: None,
                grant_type: None,
                request_id_header: Some(HeaderName::from_static("rquid")),
            };
            Form::OAuth(oauth, TokenHeader::default())
        };
        let form = match name {
            "gigachat" => {
                let key = "bm90LWEta2V5".to_owned().into();
                oauth("/expires_at", ClientCredentials::Basic(key))
            }
            "entra" => {
                let (id, secret) = ("app".to_owned(), "secret".to_owned().into());
                oauth("/expires_in", ClientCredentials::Body { id, secret })
            }
            "google" => {
                let url = self.server.url("/expires_in");
                let file = json!({
                    "private_key_id": "1", "private_key": include_str!("test_key.pem"),
                    "client_email": "gate@p.iam.gserviceaccount.com", "token_uri": url.to_string(),
                });
                let account = ServiceAccount::new(file.to_string().into(), None, None).unwrap();
                Form::ServiceAccount(account, TokenHeader::default())
            }
            _ => Form::Aws(Aws {
                region: "us-east-1".to_owned(),
                service: BEDROCK.to_owned(),
                credentials: AwsCredentials::Instance(self.server.url("/")),
            }),
        };
        super::login(name, form, &Egress::default())
    }
}

/// Signs `calls` requests, one per `step`. Returns how many of them failed or carried a credential that was no longer
/// valid.
async fn failed(endpoint: &Endpoint, login: &VendorLogin, calls: u32, step: Duration) -> u32 {
    let mut failed = 0;
    for _ in 0..calls {
        sleep(step).await;
        let headers = signed(login, "https://v/", "{}").await;
        let is_good = headers.is_ok_and(|it| {
            let authorization = it[http::header::AUTHORIZATION].to_str().unwrap();
            endpoint.accepts(authorization)
        });
        failed += u32::from(!is_good);
    }
    failed
}

#[tokio::test(start_paused = true)]
async fn none_of_100_000_calls_fails_during_fifty_renewals_of_a_token() {
    let endpoint = Endpoint::start(0, 0..0).await;
    let (login, _) = endpoint.login("gigachat");
    let step = Duration::from_millis(800);
    assert_eq!(failed(&endpoint, &login, 100_000, step).await, 0);
    let issued = endpoint.issued();
    assert!((50..70).contains(&issued), "{issued}");
}

#[tokio::test(start_paused = true)]
async fn no_call_fails_while_the_token_endpoint_is_down_for_two_minutes() {
    for name in ["gigachat", "entra", "google", "role"] {
        // The token endpoint is down when the login must renew its first token.
        let endpoint = Endpoint::start(0, 1400..1520).await;
        let (login, _) = endpoint.login(name);
        let step = Duration::from_secs(1);
        assert_eq!(failed(&endpoint, &login, 4000, step).await, 0, "{name}");
        assert!(endpoint.issued() >= 3, "{name}");
    }
}

#[tokio::test(start_paused = true)]
async fn no_call_fails_if_the_clock_of_the_token_endpoint_is_five_minutes_off() {
    for offset_s in [-300, 300] {
        for name in ["gigachat", "entra", "google"] {
            let endpoint = Endpoint::start(offset_s, 0..0).await;
            let (login, _) = endpoint.login(name);
            let step = Duration::from_secs(10);
            assert_eq!(
                failed(&endpoint, &login, 1000, step).await,
                0,
                "{name} {offset_s}"
            );
            let issued = endpoint.issued();
            assert!((6..9).contains(&issued), "{name} {offset_s}: {issued}");
        }
    }
}

#[tokio::test(start_paused = true)]
async fn metrics_report_the_age_of_a_token_and_its_failed_renewals() {
    let endpoint = Endpoint::start(0, 2000..9000).await;
    let (login, identity) = endpoint.login("entra");
    let state = || super::credential_state(&identity).unwrap();
    let seconds = |time: Option<Duration>| time.map(|it| it.as_secs());
    assert_eq!(
        (state().age, state().left, state().failures),
        (None, None, 0)
    );
    assert_eq!(
        failed(&endpoint, &login, 1, Duration::from_secs(1)).await,
        0
    );
    sleep(Duration::from_secs(100)).await;
    assert_eq!(seconds(state().age), Some(100));
    assert_eq!(seconds(state().left), Some(LIFE_S - 10 - 100));
    let failed = failed(&endpoint, &login, 400, Duration::from_secs(10)).await;
    assert!((60..100).contains(&failed), "{failed}");
    assert!(state().failures > 3, "{:?}", state());
    assert_eq!(seconds(state().left), Some(0));
    drop(login);
    assert!(super::credential_state(&identity).is_none());
}
