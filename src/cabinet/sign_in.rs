//! Sign-in by a link that is sent by email, and sign-out. The session's token is in a cookie.
//!
//! The response to a request for a link is the same for every address, and is sent before the address is looked up and
//! the email is sent. A link works once, within 15 minutes, in the browser that requested it.

use std::{net::IpAddr, sync::Arc, time::Duration};

use askama::Template;
use http::{HeaderMap, HeaderValue, StatusCode, header, request::Parts};
use tokio::sync::mpsc;
use tollgate_layers::{
    Error,
    facts::ClientAddr,
    rate_limit::{Gcra, Limiter, Quota},
};

use super::{
    Answer,
    frame::{Page, bare},
    mails::Wanted,
    see,
};
use crate::{
    catalog::snapshot::Live,
    config::CabinetConfig,
    console::{
        cookie::Cookie,
        form::Form,
        pages::written,
        sign_in::is_tls,
        texts::{chosen, english, filled},
    },
    endpoints::key_info::no_books,
    members::{AGE_MS, MailAddress, Members, SignedIn, random},
    text::time::now_ms,
};

/// The cookie with the session's token. Browsers also send it when a link on another site leads here, so a payer who
/// returns from a payment provider is still signed in. This is safe because a GET changes nothing and each form has the
/// session's token.
const SESSION: Cookie = Cookie {
    name: "tollgate_cabinet",
    path: "/cabinet",
    same_site: "Lax",
};
/// The cookie that binds a sign-in link to the browser that requested it.
const BROWSER: Cookie = Cookie {
    name: "tollgate_cabinet_browser",
    ..SESSION
};
const BROWSER_TIME: Duration = Duration::from_secs(60 * 60);
/// Link requests allowed per IP address: ten at once, then one every 90 seconds.
const LINKS: Quota = Quota {
    count: 10,
    per: Duration::from_secs(15 * 60),
    burst: 10,
};
const ADDRESSES_MAX: usize = 10_000;

/// Signs members in and out.
pub(super) struct SignIn {
    members: Members,
    /// The queue of link requests, which a task of the node processes.
    wanted: mpsc::Sender<Wanted>,
    live: Arc<Live>,
    addresses: Gcra<IpAddr>,
    has_sign_up: bool,
}

#[derive(Template)]
#[template(path = "cabinet_sign_in.html")]
struct SignInHtml<'a> {
    page: Page<'a>,
    mail: &'a str,
    has_sign_up: bool,
}

#[derive(Template)]
#[template(path = "cabinet_sent.html")]
struct SentHtml<'a> {
    page: Page<'a>,
    mail: &'a str,
}

#[derive(Template)]
#[template(path = "cabinet_enter.html")]
struct EnterHtml<'a> {
    page: Page<'a>,
    token: &'a str,
}

impl SignIn {
    pub(super) fn new(
        config: &CabinetConfig,
        wanted: mpsc::Sender<Wanted>,
        members: Members,
        live: Arc<Live>,
    ) -> Self {
        Self {
            members,
            wanted,
            live,
            addresses: Gcra::new(ADDRESSES_MAX),
            has_sign_up: config.terms_url.is_some(),
        }
    }

    /// Returns the signed-in member who sent a request, and the session's token.
    pub(super) async fn who(
        &self,
        headers: &HeaderMap,
    ) -> Result<Option<(String, SignedIn)>, Error> {
        let Some(token) = SESSION.value(headers) else {
            return Ok(None);
        };
        let who = self.members.signed_in(&token, now_ms()).await;
        Ok(who.map_err(no_books)?.map(|who| (token, who)))
    }

    /// Shows the form that requests a sign-in link, or sends the link.
    pub(super) async fn request(
        &self,
        head: &Parts,
        form: &Form,
        posted: bool,
    ) -> Result<Answer, Error> {
        let typed = if posted { form.get("mail") } else { "" };
        let shown = |status, problem: Option<&str>| self.form(status, problem, typed);
        Ok(
            match self.ask_link(head, form, posted, &shown, None).await? {
                Ok(mail) => {
                    let page = bare(english("Check your email"), None);
                    let mail = mail.as_str();
                    written(StatusCode::OK, &SentHtml { page, mail })
                }
                Err(answer) => answer,
            },
        )
    }

    /// Passes a posted form to the task that sends links, and returns the email address in the form. `sign_up` has the
    /// invitation and the company's name of a sign-up, or else the problem in the form. The inner error is the response
    /// if no link is sent: it shows the form with `shown`.
    pub(super) async fn ask_link(
        &self,
        head: &Parts,
        form: &Form,
        posted: bool,
        shown: &impl Fn(StatusCode, Option<&str>) -> Answer,
        sign_up: Option<Result<(String, String), &'static str>>,
    ) -> Result<Result<MailAddress, Answer>, Error> {
        let browser = match self.browser(head, posted, shown)? {
            Ok(browser) => browser,
            Err(answer) => return Ok(Err(answer)),
        };
        let refused = |problem| Ok(Err(shown(StatusCode::UNPROCESSABLE_ENTITY, Some(problem))));
        let Ok(mail) = form.get("mail").parse::<MailAddress>() else {
            let problem = english("Enter an email address, for example name@example.com.");
            return refused(problem);
        };
        let sign_up = match sign_up.transpose() {
            Ok(sign_up) => sign_up,
            Err(problem) => return refused(problem),
        };
        let wanted = Wanted {
            to: mail.clone(),
            browser,
            language: chosen(),
            sign_up,
        };
        Ok(self.admit(head, wanted, shown).await.map(|()| mail))
    }

    /// Returns the cookie value to which a link is bound: the value of the browser that posts the form. For a browser
    /// without a value, and for a GET, the inner error is the response: it shows the form with `shown` and sets the
    /// cookie.
    fn browser(
        &self,
        head: &Parts,
        posted: bool,
        shown: &impl Fn(StatusCode, Option<&str>) -> Answer,
    ) -> Result<Result<String, Answer>, Error> {
        // A browser keeps its cookie value until it signs in, so that a second visit does not invalidate a sent link.
        let value = match (self.known_browser(head), posted) {
            (Some(browser), true) => return Ok(Ok(browser)),
            (Some(browser), false) => browser,
            (None, _) => random().map_err(no_books)?,
        };
        let problem =
            english("Your browser did not send this page’s cookie. Allow cookies and try again.");
        let res = match posted {
            true => shown(StatusCode::FORBIDDEN, Some(problem)),
            false => shown(StatusCode::OK, None),
        };
        let is_tls = self.is_tls(&head.headers);
        Ok(Err(BROWSER.set(res, &value, BROWSER_TIME, is_tls)))
    }

    /// Returns the browser's cookie value, if it has the form of a value that the gateway sets.
    pub(super) fn known_browser(&self, head: &Parts) -> Option<String> {
        let is_ours = |value: &String| {
            value.len() == 64 && value.bytes().all(|byte| byte.is_ascii_hexdigit())
        };
        BROWSER.value(&head.headers).filter(is_ours)
    }

    /// Counts a link request, and passes it to the task that sends links. The error is the response to a client that
    /// has sent too many link requests.
    async fn admit(
        &self,
        head: &Parts,
        wanted: Wanted,
        shown: &impl Fn(StatusCode, Option<&str>) -> Answer,
    ) -> Result<(), Answer> {
        if let Some(address) = head.extensions.get().map(ClientAddr::block)
            && let Err(wait) = self.addresses.admit(address, LINKS).await
        {
            let seconds = wait.as_secs() + 1;
            let text = english("Too many requests from your address. Try again in {0} s.");
            let text = filled(text, chosen(), &[&seconds]);
            let mut res = shown(StatusCode::TOO_MANY_REQUESTS, Some(&text));
            res.headers_mut()
                .insert(header::RETRY_AFTER, HeaderValue::from(seconds));
            return Err(res);
        }
        self.wanted.try_send(wanted).map_err(|_| {
            let problem = english("Too many people are signing in at the moment. Try again.");
            shown(StatusCode::SERVICE_UNAVAILABLE, Some(problem))
        })
    }

    fn form(&self, status: StatusCode, problem: Option<&str>, mail: &str) -> Answer {
        let page = bare(english("Sign in"), problem);
        let html = SignInHtml {
            page,
            mail,
            has_sign_up: self.has_sign_up,
        };
        written(status, &html)
    }

    /// Shows the page of a sign-in link, or signs in by the link. A GET changes nothing, because mail servers open
    /// links, too.
    pub(super) async fn enter(
        &self,
        head: &Parts,
        form: &Form,
        posted: bool,
    ) -> Result<Answer, Error> {
        let token = form.get("token");
        let browser = self.known_browser(head).unwrap_or_default();
        if !posted {
            let is_link = self.members.is_link(token, &browser, now_ms()).await;
            if is_link.map_err(no_books)? {
                let page = bare(english("Sign in"), None);
                return Ok(written(StatusCode::OK, &EnterHtml { page, token }));
            }
            return Ok(self.no_link());
        }
        self.begin(head, token, &browser).await
    }

    /// Uses up a link and begins a session.
    pub(super) async fn begin(
        &self,
        head: &Parts,
        token: &str,
        browser: &str,
    ) -> Result<Answer, Error> {
        let before = SESSION.value(&head.headers);
        let entered = self
            .members
            .enter(token, browser, before.as_deref(), now_ms())
            .await;
        let address = head.extensions.get().map(ClientAddr::block);
        let address = address.map(tracing::field::display);
        let Some(session) = entered.map_err(no_books)? else {
            tracing::warn!(target: "audit", what = "cabinet.no_link", address);
            return Ok(self.no_link());
        };
        let (who, _) = session.split_once('.').unwrap_or_default();
        tracing::info!(target: "audit", who, what = "cabinet.sign_in", address);
        let age = Duration::from_millis(AGE_MS);
        let is_tls = self.is_tls(&head.headers);
        let res = SESSION.set(see("/cabinet"), &session, age, is_tls);
        Ok(BROWSER.set(res, "", Duration::ZERO, is_tls))
    }

    pub(super) fn no_link(&self) -> Answer {
        let problem = english(
            "This link does not work: it was already used, is older than 15 minutes, or was requested in another browser. Request another link.",
        );
        self.form(StatusCode::FORBIDDEN, Some(problem), "")
    }

    pub(super) async fn leave(
        &self,
        head: &Parts,
        token: &str,
        who: &SignedIn,
        everywhere: bool,
    ) -> Result<Answer, Error> {
        let left = match everywhere {
            true => self.members.end_all(&who.mail).await,
            false => self.members.end(token).await,
        };
        left.map_err(no_books)?;
        tracing::info!(target: "audit", who = %who.mail.person(), what = "cabinet.sign_out", everywhere);
        let is_tls = self.is_tls(&head.headers);
        Ok(SESSION.set(see("/cabinet/sign-in"), "", Duration::ZERO, is_tls))
    }

    /// Returns whether browsers use TLS for the cabinet.
    fn is_tls(&self, headers: &HeaderMap) -> bool {
        self.live.snapshot().urls().root_url().starts_with("https:") || is_tls(headers)
    }
}
