//! Sign-in by a link that is sent by mail, and sign-out. The session's token is in a cookie.
//!
//! The answer to a request for a link is the same for every address, and does not wait: the address is looked up, and
//! the mail sent, after the answer. A link works once, within 15 minutes, in the browser that requested it.

use std::{net::IpAddr, sync::Arc, time::Duration};

use askama::Template;
use http::{HeaderMap, HeaderValue, StatusCode, header, request::Parts};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tollgate_layers::{
    Error,
    facts::ClientAddr,
    rate_limit::{Gcra, Limiter, Quota},
    respond::Language,
};

use super::{
    Answer,
    frame::{Page, bare, written},
    see,
};
use crate::{
    catalog::snapshot::Live,
    config::CabinetConfig,
    console::{
        form::Form,
        sign_in::{cookie, is_tls},
        texts::{chosen, english, filled, translated},
    },
    endpoints::key_info::no_books,
    events::Mailer,
    members::{AGE_MS, LINK_MS, MailAddress, Members, SignedIn, random},
    text::time::now_ms,
};

/// The cookie with the session's token.
const SESSION: &str = "tollgate_cabinet";
/// The cookie that binds a sign-in link to the browser that requested it.
const BROWSER: &str = "tollgate_cabinet_browser";
const BROWSER_TIME: Duration = Duration::from_secs(60 * 60);
/// Requests for links that an address may make: ten at once, then one every 90 seconds.
const LINKS: Quota = Quota {
    count: 10,
    per: Duration::from_secs(15 * 60),
    burst: 10,
};
const ADDRESSES_MAX: usize = 10_000;
/// The maximum number of requests for links that are processed at once.
const MAILS_MAX: usize = 32;

/// Signs members in and out.
pub(super) struct SignIn {
    members: Members,
    mailer: Arc<Mailer>,
    live: Arc<Live>,
    addresses: Gcra<IpAddr>,
    mails: Arc<Semaphore>,
    has_sign_up: bool,
}

#[derive(Template)]
#[template(
    path = "cabinet_sign_in.html",
    config = "src/cabinet/templates/askama.toml"
)]
struct SignInHtml<'a> {
    page: Page<'a>,
    mail: &'a str,
    has_sign_up: bool,
}

#[derive(Template)]
#[template(
    path = "cabinet_sent.html",
    config = "src/cabinet/templates/askama.toml"
)]
struct SentHtml<'a> {
    page: Page<'a>,
    mail: &'a str,
}

#[derive(Template)]
#[template(
    path = "cabinet_enter.html",
    config = "src/cabinet/templates/askama.toml"
)]
struct EnterHtml<'a> {
    page: Page<'a>,
    token: &'a str,
}

impl SignIn {
    pub(super) fn new(config: &CabinetConfig, members: Members, live: Arc<Live>) -> Self {
        Self {
            members,
            mailer: Arc::new(Mailer::new(&config.smtp)),
            live,
            addresses: Gcra::new(ADDRESSES_MAX),
            mails: Arc::new(Semaphore::new(MAILS_MAX)),
            has_sign_up: config.terms_url.is_some(),
        }
    }

    /// Returns the signed-in member of a request, and the token of the session.
    pub(super) async fn who(
        &self,
        headers: &HeaderMap,
    ) -> Result<Option<(String, SignedIn)>, Error> {
        let Some(token) = cookie(headers, SESSION) else {
            return Ok(None);
        };
        let who = self.members.signed_in(&token, now_ms()).await;
        Ok(who.map_err(no_books)?.map(|who| (token, who)))
    }

    /// Shows the form for a sign-in link, or sends a link.
    pub(super) async fn request(
        &self,
        head: &Parts,
        form: &Form,
        posted: bool,
    ) -> Result<Answer, Error> {
        let typed = if posted { form.get("mail") } else { "" };
        let shown = |status, problem: Option<&str>| self.form(status, problem, typed);
        let browser = match self.browser(head, posted, &shown)? {
            Ok(browser) => browser,
            Err(answer) => return Ok(answer),
        };
        let Ok(mail) = typed.parse::<MailAddress>() else {
            let problem = english("Enter a mail address, like name@example.com.");
            return Ok(shown(StatusCode::UNPROCESSABLE_ENTITY, Some(problem)));
        };
        let permit = match self.admit(head, &shown).await {
            Ok(permit) => permit,
            Err(answer) => return Ok(answer),
        };
        let (members, mailer) = (self.members.clone(), self.mailer());
        let root = self.live.snapshot().urls().root_url().to_owned();
        let (language, to) = (chosen(), mail.clone());
        #[expect(
            clippy::disallowed_methods,
            reason = "the answer must not wait for the mail; permits bound the tasks"
        )]
        tokio::spawn(async move {
            send_link(&members, &mailer, &root, &to, &browser, language).await;
            drop(permit);
        });
        let page = bare(english("Check your mail"), None);
        let mail = mail.as_str();
        Ok(written(StatusCode::OK, &SentHtml { page, mail }))
    }

    /// Returns the value that binds a link to the browser which posts a form. The inner error is the answer to a browser
    /// that has no value yet, or to a GET; it sets the value. `shown` shows the form.
    pub(super) fn browser(
        &self,
        head: &Parts,
        posted: bool,
        shown: &impl Fn(StatusCode, Option<&str>) -> Answer,
    ) -> Result<Result<String, Answer>, Error> {
        // A browser keeps its value until it signs in, so that a second visit does not make a sent link useless.
        let value = match (self.known_browser(head), posted) {
            (Some(browser), true) => return Ok(Ok(browser)),
            (Some(browser), false) => browser,
            (None, _) => random().map_err(no_books)?,
        };
        let problem = english(
            "Your browser did not send the cookie of this page. Allow cookies, and try again.",
        );
        let res = match posted {
            true => shown(StatusCode::FORBIDDEN, Some(problem)),
            false => shown(StatusCode::OK, None),
        };
        let res = self.with_cookie(res, &head.headers, BROWSER, &value, BROWSER_TIME);
        Ok(Err(res))
    }

    /// Returns the value of a browser, if the gateway may have set it.
    pub(super) fn known_browser(&self, head: &Parts) -> Option<String> {
        let is_ours = |value: &String| {
            value.len() == 64 && value.bytes().all(|byte| byte.is_ascii_hexdigit())
        };
        cookie(&head.headers, BROWSER).filter(is_ours)
    }

    /// Counts a request for a link. The error is the answer to a client that sends too many.
    pub(super) async fn admit(
        &self,
        head: &Parts,
        shown: &impl Fn(StatusCode, Option<&str>) -> Answer,
    ) -> Result<OwnedSemaphorePermit, Answer> {
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
        let permit = Arc::clone(&self.mails).try_acquire_owned();
        permit.map_err(|_| {
            let problem = english("Too many sign-ins at the moment. Try again.");
            shown(StatusCode::SERVICE_UNAVAILABLE, Some(problem))
        })
    }

    pub(super) fn mailer(&self) -> Arc<Mailer> {
        Arc::clone(&self.mailer)
    }

    fn form(&self, status: StatusCode, problem: Option<&str>, mail: &str) -> Answer {
        let page = bare(english("Sign in"), problem);
        written(
            status,
            &SignInHtml {
                page,
                mail,
                has_sign_up: self.has_sign_up,
            },
        )
    }

    /// Shows the page of a link, or signs in by it. A GET changes nothing, because mail servers open links, too.
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
        let before = cookie(&head.headers, SESSION);
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
        let res = self.with_cookie(see("/cabinet"), &head.headers, SESSION, &session, age);
        Ok(self.with_cookie(res, &head.headers, BROWSER, "", Duration::ZERO))
    }

    pub(super) fn no_link(&self) -> Answer {
        let problem = english(
            "This link does not work: it was used, it is older than 15 minutes, or it was requested in another browser. Request another link.",
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
        let res = see("/cabinet/sign-in");
        Ok(self.with_cookie(res, &head.headers, SESSION, "", Duration::ZERO))
    }

    /// Sets a cookie that scripts cannot read. It is sent with links from other sites, so that a payer who returns from
    /// a payment provider is still signed in; a GET changes nothing, and each form has the session's token.
    fn with_cookie(
        &self,
        mut res: Answer,
        headers: &HeaderMap,
        name: &str,
        value: &str,
        age: Duration,
    ) -> Answer {
        let root = self.live.snapshot();
        let is_secure = root.urls().root_url().starts_with("https:") || is_tls(headers);
        let secure = if is_secure { "; Secure" } else { "" };
        let age = age.as_secs();
        let cookie =
            format!("{name}={value}; Path=/cabinet; Max-Age={age}; HttpOnly; SameSite=Lax{secure}");
        let cookie = HeaderValue::from_str(&cookie)
            .expect("a cookie of letters and digits is a valid header value");
        res.headers_mut().append(header::SET_COOKIE, cookie);
        res
    }
}

/// Makes a link and mails it, if a member has this address.
async fn send_link(
    members: &Members,
    mailer: &Mailer,
    root: &str,
    to: &MailAddress,
    browser: &str,
    language: Language,
) {
    let token = match members.new_link(to, browser, now_ms()).await {
        Ok(Some(token)) => token,
        Ok(None) => {
            tracing::info!(target: "audit", who = %to.person(), what = "cabinet.link_not_sent");
            return;
        }
        Err(error) => {
            tracing::warn!(%error, "a sign-in link could not be stored");
            return;
        }
    };
    let text = english(
        "To sign in, open this link in the browser in which you requested it: {0} The link works once, within {1} minutes. If you did not request it, ignore this mail: without your browser the link is useless.",
    );
    let link = format!("{root}/cabinet/enter?token={token}");
    mail_link(mailer, to, (&link, text), language).await;
}

/// Mails a link; `text` is an English text with places for the link and for its minutes.
pub(super) async fn mail_link(
    mailer: &Mailer,
    to: &MailAddress,
    (link, text): (&str, &str),
    language: Language,
) {
    let minutes = LINK_MS / 60_000;
    let link = format!("\n\n{link}\n\n");
    let text = filled(text, language, &[&link, &minutes]);
    // The link is in a paragraph of its own, without the spaces around it.
    let text = text.replace(" \n\n", "\n\n").replace("\n\n ", "\n\n");
    let subject = translated(english("Sign-in link"), language);
    let who = to.person();
    let message = to.as_str().parse().map(|address| {
        let message = mailer.message().to(address).subject(subject);
        message.body(text).map_err(|error| error.to_string())
    });
    let sent = match message {
        Ok(Ok(message)) => mailer.send(message).await,
        Ok(Err(error)) => Err(error),
        Err(error) => Err(error.to_string()),
    };
    match sent {
        Ok(()) => tracing::info!(target: "audit", %who, what = "cabinet.link_sent"),
        Err(error) => tracing::warn!(error, "a sign-in link could not be mailed"),
    }
}
