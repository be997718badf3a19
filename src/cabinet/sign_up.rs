//! Sign-up: a person with an invitation opens an account. As in a sign-in, a link confirms the email address.

use askama::Template;
use http::{StatusCode, request::Parts};
use tollgate_layers::Error;

use super::{
    Answer, Cabinet,
    frame::{Page, bare, message_page},
    mails::Wanted,
};
use crate::{
    console::{
        form::Form,
        pages::written,
        texts::{chosen, english},
    },
    endpoints::key_info::no_books,
    members::MailAddress,
    text::time::now_ms,
};

#[derive(Template)]
#[template(path = "cabinet_sign_up.html")]
struct SignUpHtml<'a> {
    page: Page<'a>,
    terms: &'a str,
    mail: &'a str,
    name: &'a str,
    code: &'a str,
}

#[derive(Template)]
#[template(path = "cabinet_invited.html")]
struct InvitedHtml<'a> {
    page: Page<'a>,
    mail: &'a str,
}

#[derive(Template)]
#[template(path = "cabinet_welcome.html")]
struct WelcomeHtml<'a> {
    page: Page<'a>,
    token: &'a str,
}

impl Cabinet {
    /// Shows the sign-up form, or sends a link that confirms the email address. The response is the same for every
    /// address and every code, and does not wait for the ledger or the mail server.
    pub(super) async fn sign_up(
        &self,
        head: &Parts,
        form: &Form,
        posted: bool,
    ) -> Result<Answer, Error> {
        let Some(terms) = self.0.terms.as_deref() else {
            return Ok(message_page(
                StatusCode::NOT_FOUND,
                english("Page not found."),
            ));
        };
        let sign_in = &self.0.sign_in;
        let typed = |name| if posted { form.get(name) } else { "" };
        let shown = |status, problem: Option<&str>| {
            let page = bare(english("Open an account"), problem);
            let html = SignUpHtml {
                page,
                terms,
                mail: typed("mail"),
                name: typed("name"),
                code: typed("code"),
            };
            written(status, &html)
        };
        let browser = match sign_in.browser(head, posted, &shown)? {
            Ok(browser) => browser,
            Err(answer) => return Ok(answer),
        };
        let unprocessable = StatusCode::UNPROCESSABLE_ENTITY;
        let Ok(mail) = form.get("mail").parse::<MailAddress>() else {
            let problem = english("Enter an email address, for example name@example.com.");
            return Ok(shown(unprocessable, Some(problem)));
        };
        if form.get("name").is_empty() || form.get("code").is_empty() {
            let problem = english("Enter the company name and the invitation code.");
            return Ok(shown(unprocessable, Some(problem)));
        }
        if form.get("terms").is_empty() {
            let problem = english("Accept the terms to open an account.");
            return Ok(shown(unprocessable, Some(problem)));
        }
        let wanted = Wanted {
            to: mail.clone(),
            browser,
            language: chosen(),
            sign_up: Some((form.get("code").to_owned(), form.get("name").to_owned())),
        };
        if let Err(answer) = sign_in.admit(head, wanted, &shown).await {
            return Ok(answer);
        }
        let page = bare(english("Check your email"), None);
        let mail = mail.as_str();
        Ok(written(StatusCode::OK, &InvitedHtml { page, mail }))
    }

    /// Shows the page of a link that confirms a sign-up; or opens the account and signs its owner in.
    pub(super) async fn welcome(
        &self,
        head: &Parts,
        form: &Form,
        posted: bool,
    ) -> Result<Answer, Error> {
        let sign_in = &self.0.sign_in;
        let token = form.get("token");
        let browser = sign_in.known_browser(head).unwrap_or_default();
        if !posted {
            let is_link = self.0.codes.is_link(token, &browser, now_ms()).await;
            if self.0.terms.is_some() && is_link.map_err(no_books)? {
                let page = bare(english("Open an account"), None);
                return Ok(written(StatusCode::OK, &WelcomeHtml { page, token }));
            }
            return Ok(sign_in.no_link());
        }
        let opened = match self.0.terms {
            Some(_) => self.0.codes.open(token, &browser, now_ms()).await,
            None => Ok(None),
        };
        let Some(mail) = opened.map_err(no_books)? else {
            return Ok(sign_in.no_link());
        };
        tracing::info!(target: "audit", who = %mail.person(), mail = mail.as_str(), what = "cabinet.account_opened");
        let link = self.0.members.new_link(&mail, &browser, now_ms()).await;
        match link.map_err(no_books)? {
            Some(token) => sign_in.begin(head, &token, &browser).await,
            // The person already has the maximum number of unused sign-in links, and can sign in by one of them.
            None => Ok(super::see("/cabinet/sign-in")),
        }
    }
}
