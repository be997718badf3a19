//! Sign-in and sign-out: by the admin key, by name and password, or through an OpenID provider. The session's token is
//! in a cookie.

use std::{net::IpAddr, path::PathBuf, sync::OnceLock, time::Duration};

use http::{HeaderMap, HeaderValue, StatusCode, header, request::Parts};
use subtle::ConstantTimeEq;
use tokio::sync::Semaphore;
use tollgate_layers::{
    facts::ClientAddr,
    rate_limit::{Limiter, PostPaid, Quota},
};

use super::{
    Answer,
    cookie::Cookie,
    form::Form,
    oidc::{Known, Oidc},
    pages::{self, Provider},
    see,
    sessions::{AGE_MAX, Session, Sessions, digest},
    texts::{chosen, english, filled},
};
use crate::{
    config::OidcConfig,
    operators::{ADMIN, Named, Operator, Operators, Role},
    text::hex::random,
};

/// The cookie with the session's token. The browser sends it only with requests of this origin.
pub(super) const COOKIE: Cookie = Cookie {
    name: "tollgate_console",
    path: "/",
    same_site: "Strict",
};
/// Wrong passwords and keys allowed per IP address: five at once, then one every twelve seconds.
const GUESSES: Quota = Quota {
    count: 5,
    per: Duration::from_secs(60),
    burst: 5,
};
const ADDRESSES_MAX: usize = 10_000;
/// The maximum number of concurrent password checks. Each check takes 19 MiB of memory.
const TRIED_AT_ONCE_MAX: usize = 2;

/// The credentials that the console accepts, and its sessions.
pub(super) struct SignIn {
    key_digest: [u8; 32],
    pub(super) operators: Option<PathBuf>,
    oidc: Option<Oidc>,
    sessions: Sessions,
    guesses: PostPaid<IpAddr>,
    pub(super) tried: Semaphore,
}

/// Returns a made-up operator, whose password is checked if the typed name is unknown. Without this check, the time of
/// a response would reveal which names exist.
fn nobody() -> Option<&'static Named> {
    static NOBODY: OnceLock<Option<Named>> = OnceLock::new();
    let made = || {
        let password = random().ok()?;
        Named::new("nobody", Role::Read, &password).ok()
    };
    NOBODY.get_or_init(made).as_ref()
}

impl SignIn {
    pub(super) fn new(
        key_digest: [u8; 32],
        operators: Option<PathBuf>,
        oidc: Option<OidcConfig>,
    ) -> Self {
        Self {
            key_digest,
            operators,
            oidc: oidc.map(Oidc::new),
            sessions: Sessions::default(),
            guesses: PostPaid::new(ADDRESSES_MAX),
            tried: Semaphore::new(TRIED_AT_ONCE_MAX),
        }
    }

    /// Returns the session of a request: its token, and the operator with the role that the operator has at this
    /// moment.
    pub(super) async fn who(&self, headers: &HeaderMap) -> Option<(String, Session, Operator)> {
        let token = COOKIE.value(headers)?;
        let session = self.sessions.find(&token)?;
        if let Some(role) = session.role {
            let operator = Operator::new(&session.name, role);
            return Some((token, session, operator));
        }
        let operator = match self.proof(&session.name).await {
            Some((role, proof)) if proof == session.proof => Operator::new(&session.name, role),
            // The operator's password was changed, or the operator removed, so the session's proof is no longer valid.
            _ => {
                self.sessions.end(&token);
                return None;
            }
        };
        Some((token, session, operator))
    }

    /// Returns whether the session of a token is still open, without marking it as used.
    pub(super) fn is_in(&self, token: &str) -> bool {
        self.sessions.is_open(token)
    }

    /// Returns the role of an operator, and the digest of the operator's current password.
    async fn proof(&self, name: &str) -> Option<(Role, [u8; 32])> {
        if name == ADMIN {
            return Some((Role::Admin, self.key_digest));
        }
        let named = self.read().await?;
        let one = named.find(name)?;
        Some((one.role, digest(one.password.as_bytes())))
    }

    /// Reads the operators file. Called at each request, so that a removed operator is signed out immediately.
    pub(super) async fn read(&self) -> Option<Operators> {
        let path = self.operators.clone()?;
        let read = tokio::task::spawn_blocking(move || Operators::read(&path)).await;
        match read {
            Ok(Ok(operators)) => Some(operators),
            Ok(Err(error)) => {
                tracing::error!(
                    %error,
                    "admin.operators_file cannot be read, so operators cannot sign in by name"
                );
                None
            }
            Err(_) => None,
        }
    }

    /// Checks a name and a password, or the admin key without a name, and begins a session.
    pub(super) async fn enter(&self, head: &Parts, form: &Form) -> Answer {
        let address = head.extensions.get().map(ClientAddr::block);
        if let Some(res) = self.too_often(address).await {
            return res;
        }
        let name = match form.get("name") {
            "" => ADMIN,
            name => name,
        };
        let Ok(proof) = self.check(name, form.exact("password")).await else {
            return self.page(
                StatusCode::SERVICE_UNAVAILABLE,
                Some(english(
                    "Too many people are signing in at the moment. Try again.",
                )),
            );
        };
        let Some(proof) = proof else {
            self.guessed(address);
            let name: String = name.chars().take(64).collect();
            let address = address.map(tracing::field::display);
            tracing::warn!(target: "audit", what = "console.refused", name, address);
            return self.page(
                StatusCode::UNAUTHORIZED,
                Some(english("The name or password is wrong.")),
            );
        };
        self.begin(head, name, proof, None, see("/"))
    }

    fn fault(&self) -> Answer {
        let reported = english("Gateway error: see the gateway’s log.");
        self.page(StatusCode::INTERNAL_SERVER_ERROR, Some(reported))
    }

    /// Counts a wrong guess that came from an IP address.
    pub(super) fn guessed(&self, address: Option<IpAddr>) {
        if let Some(address) = address {
            self.guesses.take(&address, 1);
        }
    }

    /// Returns the refusal for an IP address from which too many wrong guesses came.
    pub(super) async fn too_often(&self, address: Option<IpAddr>) -> Option<Answer> {
        let wait = self.guesses.admit(address?, GUESSES).await.err()?;
        let seconds = wait.as_secs() + 1;
        let reported = english("Too many failed attempts from your address. Try again in {0} s.");
        let reported = filled(reported, chosen(), &[&seconds]);
        let mut res = self.page(StatusCode::TOO_MANY_REQUESTS, Some(&reported));
        res.headers_mut()
            .insert(header::RETRY_AFTER, HeaderValue::from(seconds));
        Some(res)
    }

    /// Begins a session and returns `res` with its cookie. The browser's old session ends, so a token that was stolen
    /// before the sign-in is useless afterwards.
    pub(super) fn begin(
        &self,
        head: &Parts,
        name: &str,
        proof: [u8; 32],
        role: Option<Role>,
        res: Answer,
    ) -> Answer {
        if let Some(token) = COOKIE.value(&head.headers) {
            self.sessions.end(&token);
        }
        let token = match self.sessions.begin(name, proof, role) {
            Ok(token) => token,
            Err(error) => {
                tracing::error!(%error, "a console session cannot be created");
                return self.fault();
            }
        };
        let address = head.extensions.get().map(ClientAddr::block);
        let address = address.map(tracing::field::display);
        let role = role.map(Role::as_str);
        tracing::info!(target: "audit", who = name, what = "console.sign_in", role, address);
        COOKIE.set(res, &token, AGE_MAX, is_tls(&head.headers))
    }

    /// Shows the page for signing in.
    pub(super) fn page(&self, status: StatusCode, problem: Option<&str>) -> Answer {
        let provider = match self.oidc {
            Some(_) => Provider::Offered,
            None => Provider::None,
        };
        pages::sign_in(status, problem, provider)
    }

    /// Returns the sign-in page that is shown after signing out. The page depends on the query of the request.
    pub(super) fn page_after(&self, form: &Form) -> Answer {
        match &self.oidc {
            Some(_) if form.get("left") == "oidc" => {
                pages::sign_in(StatusCode::OK, None, Provider::Left)
            }
            _ => self.page(StatusCode::OK, None),
        }
    }

    /// Serves a path of the sign-in through an OpenID provider; `None` if the path has no such page.
    pub(super) async fn by_provider(
        &self,
        segment: &str,
        head: &Parts,
        form: &Form,
    ) -> Option<Answer> {
        let oidc = self.oidc.as_ref()?;
        let address = head.extensions.get().map(ClientAddr::block);
        if let Some(res) = self.too_often(address).await {
            return Some(res);
        }
        match segment {
            "" => Some(oidc.start(head).await),
            "/out" => Some(oidc.leave().await),
            "/back" => Some(match oidc.back(&head.headers, form).await {
                Ok(Known { name, role }) => {
                    let proof = digest(name.as_bytes());
                    let res = self.begin(head, &name, proof, Some(role), pages::arrived());
                    Oidc::arrived(res, &head.headers)
                }
                Err(refused) => {
                    // The sign-in counts as a guess only if the provider was called and refused. An unreachable
                    // provider is not a guess, nor is a request that any web page can make a browser send.
                    let guessed = refused.requested && refused.status.is_client_error();
                    self.guessed(address.filter(|_| guessed));
                    refused.page()
                }
            }),
            _ => None,
        }
    }

    /// Returns the digest that the session stores as proof of the password; `None` if the password is wrong. `Err` if
    /// the password was not checked, because too many checks are running.
    async fn check(&self, name: &str, password: &str) -> Result<Option<[u8; 32]>, ()> {
        if name == ADMIN {
            let shown = digest(password.trim().as_bytes());
            let is_key = bool::from(shown.ct_eq(&self.key_digest));
            return Ok(is_key.then_some(self.key_digest));
        }
        let _permit = self.tried.try_acquire().map_err(drop)?;
        let named = self.read().await;
        let found = named.as_ref().and_then(|named| named.find(name)).cloned();
        let password = password.to_owned();
        let tried = tokio::task::spawn_blocking(move || match found {
            Some(one) => one
                .is_password(&password)
                .then(|| digest(one.password.as_bytes())),
            None => {
                nobody().map(|nobody| nobody.is_password(&password));
                None
            }
        });
        Ok(tried.await.ok().flatten())
    }

    pub(super) fn leave(
        &self,
        head: &Parts,
        token: &str,
        session: &Session,
        everywhere: bool,
    ) -> Answer {
        let ended = if everywhere {
            self.sessions.end_all(&session.name)
        } else {
            self.sessions.end(token);
            1
        };
        tracing::info!(target: "audit", who = &*session.name, what = "console.sign_out", sessions = ended);
        let page = match session.role {
            Some(_) => "/console/sign-in?left=oidc",
            None => "/console/sign-in",
        };
        COOKIE.set(see(page), "", Duration::ZERO, is_tls(&head.headers))
    }
}

/// Returns whether the browser uses TLS. The listener itself has no TLS, so a proxy in front of it reports this in a
/// header. A false header harms only its sender, whose browser then sends the cookie in fewer cases.
pub(crate) fn is_tls(headers: &HeaderMap) -> bool {
    let scheme = headers.get("x-forwarded-proto");
    scheme.is_some_and(|scheme| scheme.as_bytes().eq_ignore_ascii_case(b"https"))
}

/// Returns the console's address, as the browser sees it.
pub(super) fn origin(headers: &HeaderMap) -> String {
    let host = headers
        .get(header::HOST)
        .and_then(|host| host.to_str().ok());
    let scheme = if is_tls(headers) { "https" } else { "http" };
    format!("{scheme}://{}", host.unwrap_or_default())
}

/// Returns whether a form comes from a page of this host. If the browser reports no origin, the form is accepted.
pub(crate) fn is_from_here(headers: &HeaderMap) -> bool {
    let text = |name: &str| headers.get(name).map(HeaderValue::as_bytes);
    if !matches!(
        text("sec-fetch-site"),
        None | Some(b"same-origin" | b"none")
    ) {
        return false;
    }
    match (text("origin"), text("host")) {
        (None, _) => true,
        (Some(origin), Some(host)) => {
            let behind = |scheme: &[u8]| origin.strip_prefix(scheme) == Some(host);
            behind(b"http://") || behind(b"https://")
        }
        (Some(_), None) => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn headers(given: &[(&'static str, &str)]) -> HeaderMap {
        let mut headers = HeaderMap::new();
        for (name, value) in given {
            headers.append(*name, HeaderValue::from_str(value).unwrap());
        }
        headers
    }

    #[test]
    fn duplicate_session_cookie_is_rejected() {
        for (cookies, found) in [
            (&["tollgate_console=abc"][..], Some("abc")),
            (&["a=b; tollgate_console=abc; c=d"], Some("abc")),
            (&["tollgate_console=abc; tollgate_console=def"], None),
            (&["tollgate_console=abc", "tollgate_console=abc"], None),
            (&["xtollgate_console=abc"], None),
            (&[], None),
        ] {
            let given: Vec<_> = cookies.iter().map(|value| ("cookie", *value)).collect();
            assert_eq!(
                COOKIE.value(&headers(&given)).as_deref(),
                found,
                "{cookies:?}"
            );
        }
    }

    #[test]
    fn form_sent_from_another_origin_is_detected_by_its_headers() {
        for (given, here) in [
            (&[][..], true),
            (
                &[
                    ("origin", "http://127.0.0.1:8081"),
                    ("host", "127.0.0.1:8081"),
                ],
                true,
            ),
            (
                &[
                    ("origin", "https://console.example"),
                    ("host", "console.example"),
                ],
                true,
            ),
            (&[("sec-fetch-site", "same-origin")], true),
            (
                &[
                    ("origin", "http://evil.example"),
                    ("host", "127.0.0.1:8081"),
                ],
                false,
            ),
            (&[("origin", "null"), ("host", "127.0.0.1:8081")], false),
            (
                &[
                    ("origin", "http://127.0.0.1:8080"),
                    ("host", "127.0.0.1:8081"),
                ],
                false,
            ),
            (&[("sec-fetch-site", "cross-site")], false),
            (&[("sec-fetch-site", "same-site")], false),
        ] {
            assert_eq!(is_from_here(&headers(given)), here, "{given:?}");
        }
    }
}
