//! Pages for the members of accounts, on the callers' listener: `/cabinet` and everything below it.
//!
//! A member signs in by a link that is sent by email. Each page acts for the session's account alone: it calls the
//! callers' endpoints as an owner key of that account would, so no page can read or change another account. Pages are
//! rendered on the server; only the playground needs a script.

mod calls;
mod forms;
mod frame;
mod invoices;
mod mails;
mod pages;
pub(crate) mod playground;
mod sign_in;
mod sign_up;

use std::{fmt, sync::Arc};

use http::{HeaderValue, Method, Request, StatusCode, header::ALLOW, request::Parts};
use http_body_util::BodyExt;
use serde::de::DeserializeOwned;
use serde_json::Value;
use tokio::sync::{Semaphore, mpsc};
use tollgate_layers::{
    Error,
    facts::{Caller, RequestNumber},
    key::{KeyDigest, KeyRecord},
    respond::{Language, Refused},
};
use tollgate_ledger::account::OWNER_MARK;

pub use self::mails::Mails;
use self::{
    frame::message_page,
    mails::{Links, WAITING_MAX},
    sign_in::SignIn,
};
use crate::{
    catalog::snapshot::Live,
    codes::Codes,
    config::CabinetConfig,
    console::{
        Answer,
        form::Form,
        page, see, shown,
        sign_in::is_from_here,
        texts::{self, english},
    },
    edge::{
        body_limit::UnreadBody,
        routes::{Matched, Route},
    },
    endpoints::{handler::Handler, own_keys::OwnKeys, payments::KeyPayments, receipts::Receipts},
    events::Mailer,
    ledger::AnyLedger,
    members::{MemberRole, Members, SignedIn},
    observe::record::Calls,
    payments::Payments,
    text::causes::chain,
};

/// Content security policy that allows only the cabinet's own styles and forms and an inline empty icon; no script
/// runs.
const POLICY: &str = "default-src 'none'; style-src 'self'; img-src data:; form-action 'self'; base-uri 'none'; \
    frame-ancestors 'none'";
/// Content security policy like [`POLICY`] that also allows the cabinet's own script to call the cabinet.
const POLICY_OF_PLAYGROUND: &str = "default-src 'none'; script-src 'self'; connect-src 'self'; style-src 'self'; \
    img-src data:; form-action 'self'; base-uri 'none'; frame-ancestors 'none'";
/// The console's style sheet, which the cabinet shares, followed by the cabinet's own rules.
const STYLE: &str = concat!(
    include_str!("../endpoints/design.css"),
    include_str!("../console/style.css"),
    include_str!("cabinet.css")
);
const FOREIGN: &str =
    english("This form was sent from outside the cabinet, so nothing was changed.");
const FORGED: &str =
    english("This form belongs to another session, so nothing was changed. Reload the page.");
const NOT_ALLOWED: &str =
    english("Your role in this account does not allow this action. Ask an account owner.");
/// The maximum number of reports that are computed concurrently.
const REPORTS_MAX: usize = 4;

/// Serves the cabinet.
#[derive(Clone)]
pub struct Cabinet(Arc<Inner>);

struct Inner {
    members: Members,
    codes: Codes,
    /// The URL of the terms that people accept when they sign up; `None` if nobody can sign up.
    terms: Option<String>,
    store: AnyLedger,
    live: Arc<Live>,
    calls: Calls,
    keys: OwnKeys,
    receipts: Receipts,
    payments: KeyPayments,
    sign_in: SignIn,
    reports: Semaphore,
}

impl Cabinet {
    /// Creates the pages, and the task that emails links, which the node runs. The pages read accounts from `store`,
    /// models from `live` and refused calls from `calls`.
    #[must_use]
    pub fn new(
        config: &CabinetConfig,
        store: &AnyLedger,
        live: &Arc<Live>,
        calls: &Calls,
        payments: &Payments,
    ) -> (Self, Mails) {
        let members = Members::new(store.clone());
        let codes = Codes::new(store.clone(), members.clone());
        let (want, wanted) = mpsc::channel(WAITING_MAX);
        let links = Links {
            members: members.clone(),
            codes: codes.clone(),
            mailer: Mailer::new(&config.smtp),
            live: Arc::clone(live),
        };
        let mails = Mails { wanted, links };
        let cabinet = Self(Arc::new(Inner {
            sign_in: SignIn::new(config, want, members.clone(), Arc::clone(live)),
            codes,
            terms: config.terms_url.clone(),
            members,
            keys: OwnKeys {
                live: Arc::clone(live),
                store: store.clone(),
            },
            receipts: Receipts(store.clone()),
            payments: KeyPayments(payments.clone()),
            store: store.clone(),
            live: Arc::clone(live),
            calls: calls.clone(),
            reports: Semaphore::new(REPORTS_MAX),
        }));
        (cabinet, mails)
    }
}

impl fmt::Debug for Cabinet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Cabinet").finish_non_exhaustive()
    }
}

impl Handler<UnreadBody> for Cabinet {
    async fn handle(self, req: Request<UnreadBody>) -> Result<Answer, Error> {
        let (head, body) = req.into_parts();
        let number = head.extensions.get().copied();
        let policy = match head.uri.path() {
            "/cabinet/playground" => POLICY_OF_PLAYGROUND,
            _ => POLICY,
        };
        let page = async |head| {
            let answer = self.answer(head, body).await;
            Ok(answer.unwrap_or_else(|error| refused(&error, number)))
        };
        shown(head, policy, page).await
    }
}

impl Cabinet {
    async fn answer(self, head: Parts, body: UnreadBody) -> Result<Answer, Error> {
        let posted = head.method == Method::POST;
        let path = head.uri.path().to_owned();
        let segments: Vec<&str> = path.split('/').skip(2).collect();
        match segments[..] {
            ["style.css"] if !posted => {
                return Ok(page(StatusCode::OK, "text/css; charset=utf-8", STYLE));
            }
            ["playground.js"] if !posted => {
                let kind = "text/javascript; charset=utf-8";
                return Ok(page(StatusCode::OK, kind, playground::SCRIPT));
            }
            _ => {}
        }
        if posted && !is_from_here(&head.headers) {
            tracing::warn!(target: "audit", what = "cabinet.foreign", path);
            return Ok(message_page(StatusCode::FORBIDDEN, FOREIGN));
        }
        let form = if posted {
            Form::parse(&String::from_utf8_lossy(&body.whole().await?))
        } else {
            Form::parse(head.uri.query().unwrap_or_default())
        };
        let sign_in = &self.0.sign_in;
        match segments[..] {
            ["sign-in"] => return sign_in.request(&head, &form, posted).await,
            ["sign-up"] => return self.sign_up(&head, &form, posted).await,
            ["welcome"] => return self.welcome(&head, &form, posted).await,
            ["enter"] => return sign_in.enter(&head, &form, posted).await,
            _ => {}
        }
        let Some((token, who)) = sign_in.who(&head.headers).await? else {
            return Ok(see("/cabinet/sign-in"));
        };
        if posted && !who.session.is_csrf(form.get("csrf")) {
            tracing::warn!(target: "audit", who = who.mail.as_str(), what = "cabinet.forged", path);
            return Ok(message_page(StatusCode::FORBIDDEN, FORGED));
        }
        let number = head.extensions.get().copied();
        let visit = Visit {
            cabinet: self,
            who,
            form,
            posted,
            number,
            language: texts::chosen(),
        };
        match segments[..] {
            ["sign-out"] if posted => visit.leave(&head, &token).await,
            _ => match may(visit.who.role, segments.first().unwrap_or(&""), posted) {
                None => Ok(visit.message_page(StatusCode::NOT_FOUND, english("Page not found."))),
                Some(false) => {
                    tracing::warn!(target: "audit", who = visit.who.mail.as_str(), what = "cabinet.refused", path);
                    Ok(visit.message_page(StatusCode::FORBIDDEN, NOT_ALLOWED))
                }
                Some(true) => visit.answer(&segments).await,
            },
        }
    }
}

/// Returns whether a role may see a page, or post a form to it; `None` if there is no such page.
fn may(role: MemberRole, page: &str, posted: bool) -> Option<bool> {
    match page {
        "" | "spending" | "calls" if !posted => Some(true),
        "account" if posted => Some(true),
        "keys" => Some(!posted || role.may_change_keys()),
        "playground" if !posted => Some(role.may_change_keys()),
        "payments" => Some(role.may_pay()),
        "statements" if !posted => Some(role.may_pay()),
        "members" => Some(role.may_change_members()),
        _ => None,
    }
}

/// A request of a signed-in member: to see a page, or to post a form to it.
struct Visit {
    cabinet: Cabinet,
    who: SignedIn,
    /// The posted form, or the query.
    form: Form,
    posted: bool,
    number: Option<RequestNumber>,
    language: Language,
}

impl Visit {
    /// Returns the record of a fictitious owner key of the session's account. With this record the callers' endpoints
    /// act for the account.
    fn as_owner_key(&self) -> KeyRecord {
        let (id, account) = (self.who.mail.person().as_key(), &self.who.session.account);
        let mut record = KeyRecord::new(id, account.clone(), KeyDigest::new([0; 32]));
        record.models = vec![OWNER_MARK.to_owned()];
        record
    }

    /// Calls an endpoint of the callers for the session's account, and parses the response.
    async fn call<T: DeserializeOwned>(
        &self,
        endpoint: impl Handler<UnreadBody>,
        (method, route, parameter): (Method, Route, Option<&str>),
        query: &str,
        body: Option<&Value>,
    ) -> Result<T, Error> {
        let body = body.map(Value::to_string).unwrap_or_default();
        let req = Request::builder().method(method).uri(format!("/?{query}"));
        let mut req = req
            .body(UnreadBody::read(body.into()))
            .map_err(|error| Error::Internal(error.into()))?;
        let parameter = parameter.map(Into::into);
        req.extensions_mut().insert(Matched { route, parameter });
        let key = Arc::new(self.as_owner_key());
        req.extensions_mut().insert(Caller(key));
        let answer = endpoint.handle(req).await?.into_body().collect().await;
        let bytes = answer?.to_bytes();
        serde_json::from_slice(&bytes).map_err(|error| Error::Internal(error.into()))
    }

    /// Returns the text of a refusal in the language of the visit.
    fn text_of(&self, error: &Error) -> (StatusCode, String) {
        worded(error, self.number)
    }

    async fn leave(&self, head: &Parts, token: &str) -> Result<Answer, Error> {
        let everywhere = !self.form.get("everywhere").is_empty();
        let sign_in = &self.cabinet.0.sign_in;
        sign_in.leave(head, token, &self.who, everywhere).await
    }
}

/// Returns the status and the text of an error.
fn worded(error: &Error, number: Option<RequestNumber>) -> (StatusCode, String) {
    let number = number.unwrap_or_else(RequestNumber::now_v7);
    let refused = Refused::new(error, number, texts::chosen());
    if refused.status().is_server_error() {
        tracing::warn!(error = chain(error), %number, "a page of the cabinet could not be shown");
    }
    (refused.status(), refused.message())
}

fn refused(error: &Error, number: Option<RequestNumber>) -> Answer {
    let (status, text) = worded(error, number);
    let mut res = message_page(status, &text);
    if let Error::MethodNotAllowed { allow } = error {
        res.headers_mut()
            .insert(ALLOW, HeaderValue::from_static(allow));
    }
    res
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_page_of_the_cabinet_opens_only_for_the_roles_that_may_see_it() {
        let all = "owner finance developer";
        for (page, seen_by, posted_by) in [
            ("", all, ""),
            ("spending", all, ""),
            ("calls", all, ""),
            ("keys", all, "owner developer"),
            ("playground", "owner developer", ""),
            ("payments", "owner finance", "owner finance"),
            ("statements", "owner finance", ""),
            ("members", "owner", "owner"),
            ("account", "", all),
            ("sign-out", "", ""),
            ("no-such-page", "", ""),
        ] {
            for (posted, roles) in [(false, seen_by), (true, posted_by)] {
                for role in MemberRole::ALL {
                    let allowed = may(role, page, posted) == Some(true);
                    let expected = roles.split(' ').any(|one| one == role.as_str());
                    assert_eq!(allowed, expected, "{page} {posted} {role:?}");
                }
            }
        }
    }
}
