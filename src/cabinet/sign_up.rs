//! Sign-up: a person with an invitation opens an account. As in a sign-in, a link confirms the email address.

use askama::Template;
use http::{StatusCode, request::Parts};
use tollgate_layers::Error;

use super::{
    Answer, Cabinet,
    frame::{Page, bare, message_page},
};
use crate::{
    console::{form::Form, pages::written, texts::english},
    endpoints::key_info::no_books,
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
        let (name, code) = (form.get("name"), form.get("code"));
        let sign_up = if name.is_empty() || code.is_empty() {
            Err(english("Enter the company name and the invitation code."))
        } else if form.get("terms").is_empty() {
            Err(english("Accept the terms to open an account."))
        } else {
            Ok((code.to_owned(), name.to_owned()))
        };
        let asked = sign_in.ask_link(head, form, posted, &shown, Some(sign_up));
        Ok(match asked.await? {
            Ok(mail) => {
                let page = bare(english("Check your email"), None);
                let mail = mail.as_str();
                written(StatusCode::OK, &InvitedHtml { page, mail })
            }
            Err(answer) => answer,
        })
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
