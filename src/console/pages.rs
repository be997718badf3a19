//! Renders the pages: gets each page's data from the API, and fills its template.

use std::{borrow::Borrow, fmt};

use askama::Template;
use http::StatusCode;
use serde_json::Value;
use tollgate_layers::respond::Language;

use super::{
    Answer, Visit,
    api::{Failed, Refused, separate_faults},
    changes::{self, Change},
    events, page, see,
    shown::{self, Safe},
    texts::{chosen, english, filled, translated},
    views::{Configuration, Vendor},
};
use crate::{
    admin::Refusal, endpoints::page::HTML, operators::Right, text::language::say,
    text::percent::encoded,
};

pub(super) const HOUR_MS: u64 = 3_600_000;
pub(crate) const DAY_MS: u64 = 24 * HOUR_MS;
/// The maximum number of days for which a page computes or draws sums.
pub(super) const DAYS_BACK_MAX: u64 = 366;

/// The frame that all pages share: title, navigation, messages.
pub(crate) struct Frame<'a> {
    /// The path below which the page is: `/console` or `/cabinet`.
    pub(crate) base_path: &'static str,
    /// The title, in the page's language.
    pub(crate) title: String,
    /// The name of the page's entry in the navigation.
    pub(crate) section: &'static str,
    pub(crate) who: Option<&'a str>,
    pub(crate) role: &'static str,
    pub(crate) csrf: &'a str,
    pub(crate) problem: Option<&'a str>,
    pub(crate) done: Option<&'static str>,
    pub(crate) rights: [bool; 3],
    pub(crate) language: Language,
    /// The part of the query that is kept when the visitor chooses a language; empty, or ends in `&`.
    pub(crate) kept_query: String,
}

impl Frame<'_> {
    /// Returns the frame of pages for visitors who have not signed in.
    pub(crate) fn bare(title: &'static str, problem: Option<&'static str>) -> Self {
        Self {
            base_path: "/console",
            title: translated(title, chosen()).to_owned(),
            section: "",
            who: None,
            role: "",
            csrf: "",
            problem,
            done: None,
            rights: [false; 3],
            language: chosen(),
            kept_query: String::new(),
        }
    }

    /// Returns the code of the page's language: `ru` or `en`.
    pub(crate) const fn code(&self) -> &'static str {
        say(self.language, "ru", "en")
    }

    /// Returns the languages to choose from: the code, the name, and whether the page is in this language.
    pub(crate) fn languages(&self) -> [(&'static str, &'static str, bool); 2] {
        [("ru", "Русский"), ("en", "English")].map(|(code, name)| (code, name, code == self.code()))
    }

    /// Translates an English text into the page's language.
    pub(crate) fn t<'t>(&self, text: &'t str) -> &'t str {
        translated(text, self.language)
    }

    /// Translates an English text into the page's language, and replaces `{0}` by the value.
    pub(crate) fn fill(&self, text: &str, value: impl fmt::Display) -> String {
        filled(text, self.language, &[&value])
    }

    /// Translates an English text into the page's language, and replaces `{0}` and `{1}` by the values.
    pub(crate) fn fill2(
        &self,
        text: &str,
        first: impl fmt::Display,
        second: impl fmt::Display,
    ) -> String {
        filled(text, self.language, &[&first, &second])
    }

    /// Encodes a name as one segment of a path.
    pub(super) fn segment(&self, name: &str) -> String {
        encoded(name)
    }

    /// Formats an amount of rubles, without the unit.
    pub(crate) fn rub(&self, amount: impl fmt::Display) -> Safe {
        shown::rubles(&amount, self.language)
    }

    /// Formats a number with all of its digits.
    pub(crate) fn exact(&self, number: impl fmt::Display) -> String {
        shown::exact(&number, self.language)
    }

    /// Formats a whole number, grouped by thousands.
    pub(crate) fn count(&self, number: impl Borrow<u64>) -> Safe {
        shown::count(*number.borrow(), self.language)
    }

    /// Formats a time, in UTC.
    pub(crate) fn moment(&self, at: &str) -> Safe {
        shown::moment(at, self.language)
    }

    /// Formats a date or a month.
    pub(crate) fn day(&self, date: &str) -> String {
        shown::day(date, self.language)
    }

    /// Returns the entries of the navigation: the path, the name, and whether the page belongs to the entry.
    pub(crate) fn nav(&self) -> [(&'static str, &'static str, bool); 11] {
        [
            ("/", english("Overview")),
            ("/console/accounts", english("Accounts")),
            ("/console/payments", english("Payments")),
            ("/console/calls", english("Calls")),
            ("/console/usage", english("Usage")),
            ("/console/vendors", english("Vendors")),
            ("/console/prices", english("Models and prices")),
            ("/console/events", english("Events")),
            ("/console/changes", english("Changes")),
            ("/console/audit", english("Audit")),
            ("/console/operators", english("Operators")),
        ]
        .map(|(path, name)| (path, name, name == self.section))
    }

    pub(crate) const fn may_money(&self) -> bool {
        self.rights[0]
    }

    pub(crate) const fn may_support(&self) -> bool {
        self.rights[1]
    }

    pub(crate) const fn may_all(&self) -> bool {
        self.rights[2]
    }
}

pub(crate) fn written(status: StatusCode, template: &impl Template) -> Answer {
    let text = template
        .render()
        .expect("rendering a template to a String cannot fail");
    page(status, HTML, text)
}

/// Shows the page for signing in.
pub(super) fn sign_in(status: StatusCode, problem: Option<&str>, provider: Provider) -> Answer {
    let page = Frame {
        problem,
        ..Frame::bare(english("Sign in"), None)
    };
    written(status, &SignInHtml { page, provider })
}

/// Whether the sign-in page offers an OpenID provider.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Provider {
    None,
    Offered,
    /// The operator has signed out of the console, but may still be signed in at the provider.
    Left,
}

/// Returns the page that is shown when the browser returns from the OpenID provider. The page then loads the console. A
/// redirect could not do this: a browser sends the new cookie (SameSite=Strict) only with requests that a page of this
/// site starts, not with redirects that another site started.
pub(super) fn arrived() -> Answer {
    let page = Frame::bare(english("Signed in"), None);
    written(StatusCode::OK, &ArrivedHtml { page })
}

/// Shows a page that contains only a message.
pub(super) fn message_page(status: StatusCode, problem: &'static str) -> Answer {
    let page = Frame::bare(english("Not done"), Some(problem));
    written(status, &MessageHtml { page })
}

impl Visit {
    /// Returns the page at a path. If a change was posted to the path, makes the change first.
    pub(super) async fn answer(self, segments: &[&str]) -> Result<Answer, Refusal> {
        if !self.posted {
            return self.show(segments, None, None).await;
        }
        if segments == ["console", "configuration"] {
            return self.configure().await;
        }
        if changes::is_unconfirmed(&self.form) {
            let unconfirmed = Refused {
                status: StatusCode::UNPROCESSABLE_ENTITY,
                text: english("Nothing was changed. The action cannot be undone: tick the checkbox to confirm it.")
                    .into(),
            };
            return self.show(segments, Some(&unconfirmed), None).await;
        }
        let Some(change) = changes::wanted(segments, &self.form) else {
            return Ok(self.refused(english("Not done"), &unknown()));
        };
        self.make(segments, change).await
    }

    /// Makes a posted change, and returns the page with its result.
    async fn make(&self, segments: &[&str], change: Change) -> Result<Answer, Refusal> {
        let (path, body) = (&change.path, change.body.as_ref());
        let answer = self.api.change(change.method, path, body).await?;
        let answer: Value = match answer {
            Ok(answer) => answer,
            Err(refused) => return self.show(segments, Some(&refused), None).await,
        };
        match change.done {
            "key" => self.key_made(answer),
            "audit" => Ok(self.audit(None, Some(&answer))),
            "tested" | "invited" => self.show(segments, None, Some(answer)).await,
            "replayed" if events::not_taken(&answer).is_some() => {
                let problem = events::not_taken(&answer);
                self.show(segments, problem.as_ref(), None).await
            }
            done => {
                let is_repeated = answer["repeated"] == true;
                let done = if is_repeated { "repeated" } else { done };
                Ok(see(&changes::after(segments, &self.form, done)))
            }
        }
    }

    /// Shows the page at a path. `problem` is shown as an error; `made` is the API's response to a change that was just
    /// made.
    async fn show(
        &self,
        segments: &[&str],
        problem: Option<&Refused>,
        made: Option<Value>,
    ) -> Result<Answer, Refusal> {
        let shown = match segments {
            [""] => self.overview(problem).await,
            ["console", "accounts"] => self.accounts(problem).await,
            ["console", "accounts", id] => self.account(id, problem).await,
            ["console", "accounts", id, "statements"] => self.statement(id).await,
            ["console", "accounts", id, "statements", file] => self.statement_file(id, file).await,
            ["console", "accounts", id, "invoice"] => self.invoice(id).await,
            ["console", "keys", id] => self.key(id, problem).await,
            ["console", "payments"] => self.payments().await,
            ["console", "payments.csv"] => self.payments_csv().await,
            ["console", "calls"] => self.calls().await,
            ["console", "calls.csv"] => self.calls_csv().await,
            ["console", "calls", number] => self.call(number).await,
            ["console", "usage"] => self.usage().await,
            ["console", "vendors"] => self.vendors(problem).await,
            ["console", "new-vendor"] => self.new_vendor(problem).await,
            ["console", "vendors", name] => self.vendor(name, problem, made).await,
            ["console", "models", id] => self.model(id).await,
            ["console", "prices"] => self.prices().await,
            ["console", "events"] => self.events(problem).await,
            ["console", "changes"] => self.past_changes().await,
            ["console", "audit"] => Ok(self.audit(problem, None)),
            ["console", "operators"] => self.operators(problem, made).await,
            _ => Err(unknown().into()),
        };
        Ok(separate_faults(shown)?.unwrap_or_else(|refused| {
            // If the change failed as well, its error is shown instead of the page's, because the change may have been
            // made despite the error.
            let refused = problem.unwrap_or(&refused);
            let title = match refused.status {
                StatusCode::NOT_FOUND => english("Not found"),
                _ => english("Page cannot be shown"),
            };
            self.refused(title, refused)
        }))
    }

    /// Returns the value of a query's field; empty if a form was posted.
    pub(super) fn asked(&self, name: &str) -> &str {
        if self.posted { "" } else { self.form.get(name) }
    }

    pub(super) fn frame<'a>(
        &'a self,
        title: impl Into<String>,
        section: &'static str,
        problem: Option<&'a Refused>,
    ) -> Frame<'a> {
        let title: String = title.into();
        let role = self.operator.role();
        Frame {
            base_path: "/console",
            title: translated(&title, self.language).to_owned(),
            section,
            who: Some(self.operator.name()),
            role: role.as_str(),
            csrf: self.session.csrf(),
            problem: problem.map(|refused| &*refused.text),
            done: changes::reported(self.asked("done")),
            rights: [Right::Money, Right::Support, Right::Everything].map(|right| role.may(right)),
            language: self.language,
            kept_query: String::new(),
        }
    }

    /// Shows a page that contains only a refusal of the admin API.
    pub(super) fn refused(&self, title: &'static str, refused: &Refused) -> Answer {
        let page = self.frame(title, "", Some(refused));
        written(refused.status, &MessageHtml { page })
    }

    async fn vendors(&self, problem: Option<&Refused>) -> Result<Answer, Failed> {
        let vendors = self.api.list("/admin/v1/vendors").await??;
        let page = self.frame("Vendors", "Vendors", problem);
        // A gateway that runs without a configuration file has no configuration that the page could change.
        let configuration = self.configuration().await?.ok();
        let html = VendorsHtml {
            page,
            vendors,
            configuration,
        };
        Ok(written(status_of(problem), &html))
    }

    fn audit(&self, problem: Option<&Refused>, answer: Option<&Value>) -> Answer {
        let breaches = answer.map(|answer| &answer["breaches"]);
        let breaches = breaches.and_then(Value::as_array).into_iter().flatten();
        let facts = answer.and_then(Value::as_object).map(|fields| {
            let plain = fields.iter().filter(|(name, _)| *name != "breaches");
            let shown = plain.map(|(name, value)| {
                let text = value.as_str().map(str::to_owned);
                let text = text.unwrap_or_else(|| value.to_string());
                (name.replace('_', " "), text)
            });
            shown.collect()
        });
        let html = AuditHtml {
            page: self.frame("Audit", "Audit", problem),
            breaches: breaches.filter_map(Value::as_str).collect(),
            facts,
        };
        written(status_of(problem), &html)
    }
}

pub(super) fn unknown() -> Refused {
    Refused {
        status: StatusCode::NOT_FOUND,
        text: english("Page not found.").into(),
    }
}

pub(super) fn status_of(problem: Option<&Refused>) -> StatusCode {
    problem.map_or(StatusCode::OK, |refused| refused.status)
}

macro_rules! pages {
    ($($name:ident $path:tt { $($field:ident: $kind:ty),* $(,)? })*) => {
        $(
            #[derive(Template)]
            #[template(path = $path)]
            struct $name<'a> {
                page: Frame<'a>,
                $($field: $kind,)*
            }
        )*
    };
}

pages! {
    SignInHtml "sign_in.html" { provider: Provider }
    ArrivedHtml "arrived.html" {}
    MessageHtml "told.html" {}
    VendorsHtml "vendors.html" { vendors: Vec<Vendor>, configuration: Option<Configuration> }
    AuditHtml "audit.html" { breaches: Vec<&'a str>, facts: Option<Vec<(String, String)>> }
}
