//! Signing in and out: the admin key, or a name and a password; a cookie for the session.

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
    form::Form,
    operators::{ADMIN, Named, Operators},
    pages, see,
    sessions::{AGE_MAX, Session, Sessions, digest, random},
};
use crate::admin::{Operator, Role};

const COOKIE: &str = "tollgate_console";
/// Wrong passwords and keys from an address: so many at once, and one more every twelve seconds.
const GUESSES: Quota = Quota {
    count: 5,
    per: Duration::from_secs(60),
    burst: 5,
};
const ADDRESSES_MAX: usize = 10_000;
/// Passwords that are tried at the same time: each takes 19 MiB.
const TRIED_AT_ONCE_MAX: usize = 2;

/// Who may come in, and who has.
pub(super) struct SignIn {
    key_digest: [u8; 32],
    operators: Option<PathBuf>,
    sessions: Sessions,
    guesses: PostPaid<IpAddr>,
    tried: Semaphore,
}

/// Tried in place of a name that nobody has, so that names cannot be told by the time that they take.
fn nobody() -> Option<&'static Named> {
    static NOBODY: OnceLock<Option<Named>> = OnceLock::new();
    let made = || {
        let password = random().ok()?;
        Named::new("nobody", Role::Read, &password).ok()
    };
    NOBODY.get_or_init(made).as_ref()
}

impl SignIn {
    pub(super) fn new(key_digest: [u8; 32], operators: Option<PathBuf>) -> Self {
        Self {
            key_digest,
            operators,
            sessions: Sessions::default(),
            guesses: PostPaid::new(ADDRESSES_MAX),
            tried: Semaphore::new(TRIED_AT_ONCE_MAX),
        }
    }

    /// Whose session a request belongs to: its token, and what its operator may do now.
    pub(super) async fn who(&self, headers: &HeaderMap) -> Option<(String, Session, Operator)> {
        let token = token(headers)?;
        let session = self.sessions.find(&token)?;
        let operator = match self.proof(&session.name).await {
            Some((role, proof)) if proof == session.proof => Operator::new(&session.name, role),
            // Another password, or a name that is gone: what was shown then opens nothing now.
            _ => {
                self.sessions.end(&token);
                return None;
            }
        };
        Some((token, session, operator))
    }

    /// Whether the session of a token is still open. It is not seen by that.
    pub(super) fn is_in(&self, token: &str) -> bool {
        self.sessions.is_open(token)
    }

    /// What somebody of this name may do, and what the password that counts now is known by.
    async fn proof(&self, name: &str) -> Option<(Role, [u8; 32])> {
        if name == ADMIN {
            return Some((Role::Admin, self.key_digest));
        }
        let named = self.read().await?;
        let one = named.find(name)?;
        Some((one.role, digest(one.password.as_bytes())))
    }

    /// The file as it is now: whoever was taken out of it is out.
    async fn read(&self) -> Option<Operators> {
        let path = self.operators.clone()?;
        let read = tokio::task::spawn_blocking(move || Operators::read(&path)).await;
        match read {
            Ok(Ok(operators)) => Some(operators),
            Ok(Err(error)) => {
                tracing::error!(
                    %error,
                    "admin.operators_file cannot be read: nobody signs in by a name"
                );
                None
            }
            Err(_) => None,
        }
    }

    /// A name and a password, or the admin key without a name, against a new session.
    pub(super) async fn enter(&self, head: &Parts, form: &Form) -> Answer {
        let address = head.extensions.get().map(ClientAddr::block);
        if let Some(address) = address
            && let Err(wait) = self.guesses.admit(address, GUESSES).await
        {
            let seconds = wait.as_secs() + 1;
            let said = format!("Too many wrong tries from your address. Try again in {seconds} s.");
            let mut res = pages::sign_in(StatusCode::TOO_MANY_REQUESTS, Some(&said));
            res.headers_mut()
                .insert(header::RETRY_AFTER, HeaderValue::from(seconds));
            return res;
        }
        let name = match form.get("name") {
            "" => ADMIN,
            name => name,
        };
        let Ok(proof) = self.check(name, form.exact("password")).await else {
            return pages::sign_in(
                StatusCode::SERVICE_UNAVAILABLE,
                Some("Others are signing in right now. Try again."),
            );
        };
        let Some(proof) = proof else {
            if let Some(address) = address {
                self.guesses.take(&address, 1);
            }
            let name: String = name.chars().take(64).collect();
            let address = address.map(tracing::field::display);
            tracing::warn!(target: "audit", what = "console.refused", name, address);
            return pages::sign_in(
                StatusCode::UNAUTHORIZED,
                Some("The name or the password is wrong."),
            );
        };
        // The browser's old session ends: a token that was known before is worth nothing after.
        if let Some(token) = token(&head.headers) {
            self.sessions.end(&token);
        }
        let token = match self.sessions.begin(name, proof) {
            Ok(token) => token,
            Err(error) => {
                tracing::error!(%error, "no session can be begun");
                return pages::sign_in(
                    StatusCode::INTERNAL_SERVER_ERROR,
                    Some("Our own fault; the log says more."),
                );
            }
        };
        let address = address.map(tracing::field::display);
        tracing::info!(target: "audit", who = name, what = "console.sign_in", address);
        with_cookie(see("/"), &head.headers, &token, AGE_MAX)
    }

    /// What the password proves; `None`: nothing. `Err`: it was not tried.
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
        with_cookie(see("/console/sign-in"), &head.headers, "", Duration::ZERO)
    }
}

/// The one token that a request brings: of two, somebody else has set one.
fn token(headers: &HeaderMap) -> Option<String> {
    let cookies = headers.get_all(header::COOKIE).iter();
    let mut tokens = cookies
        .filter_map(|value| value.to_str().ok())
        .flat_map(|list| list.split(';'))
        .filter_map(|pair| pair.trim().split_once('='))
        .filter(|(name, _)| *name == COOKIE);
    match (tokens.next(), tokens.next()) {
        (Some((_, token)), None) => Some(token.to_owned()),
        _ => None,
    }
}

/// Only this origin's own requests bring it, no script reads it, and over TLS it comes by TLS alone.
fn with_cookie(mut res: Answer, headers: &HeaderMap, token: &str, age: Duration) -> Answer {
    // The listener has no TLS; a proxy before it says whether it has. Whoever lies has a cookie that is sent less.
    let is_tls = headers
        .get("x-forwarded-proto")
        .is_some_and(|scheme| scheme.as_bytes().eq_ignore_ascii_case(b"https"));
    let secure = if is_tls { "; Secure" } else { "" };
    let age = age.as_secs();
    let cookie =
        format!("{COOKIE}={token}; Path=/; Max-Age={age}; HttpOnly; SameSite=Strict{secure}");
    let cookie = HeaderValue::from_str(&cookie).expect("digits and letters");
    res.headers_mut().insert(header::SET_COOKIE, cookie);
    res
}

/// Whether a form comes from a page of this host, as far as the browser says where from.
pub(super) fn is_from_here(headers: &HeaderMap) -> bool {
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
    fn of_two_tokens_none_counts() {
        for (cookies, found) in [
            (&["tollgate_console=abc"][..], Some("abc")),
            (&["a=b; tollgate_console=abc; c=d"], Some("abc")),
            (&["tollgate_console=abc; tollgate_console=def"], None),
            (&["tollgate_console=abc", "tollgate_console=abc"], None),
            (&["xtollgate_console=abc"], None),
            (&[], None),
        ] {
            let given: Vec<_> = cookies.iter().map(|value| ("cookie", *value)).collect();
            assert_eq!(token(&headers(&given)).as_deref(), found, "{cookies:?}");
        }
    }

    #[test]
    fn a_form_of_another_page_is_told_by_what_browsers_send() {
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
