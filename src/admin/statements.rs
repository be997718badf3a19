//! Endpoint for statements: what an account used and paid in a month, for the customer's accountant.

use std::{collections::BTreeMap, sync::Arc};

use futures_util::stream::{self, StreamExt as _, TryStreamExt as _};
use http::{HeaderValue, header};
use serde::Serialize;
use tollgate_layers::{
    body::full,
    key::AccountId,
    money::MicroRub,
    reserve::ledger::{AccountView, LedgerAdmin},
};
use tollgate_ledger::statement::{LINES_MAX, Moved, Statement, StatementError};

use super::{
    Admin, Answer,
    accounts::account_id,
    ok,
    query::{Query, id, one_of, up_to},
    refusal::{OrRefuse as _, Refusal, response},
    route::{AdminRequest, Route, routes},
};
use crate::{
    endpoints::page::HTML,
    statement::{IssueError, Month, issue},
    text::{percent::decoded, rubles::Rubles, time::rfc3339},
};

pub(super) const ROUTES: &[Route] = routes! {
    get "/admin/v1/accounts/{account}/statements/{month}" => show_statement .with_query();
    get "/admin/v1/statements/{month}" => list_month .with_query();
    get "/admin/v1/entries/{entry}" => find_entry;
};

/// The maximum number of accounts in one response about a month, and the number if the request names none.
const ACCOUNTS_MAX: usize = 500;
/// The maximum number of accounts that are read concurrently.
const ACCOUNTS_AT_ONCE: usize = 8;

/// The sums of all accounts in a month.
#[derive(Serialize)]
struct MonthAnswer {
    month: String,
    since: String,
    until: String,
    accounts: Vec<MonthOfAccount>,
    /// The last account of this response; the next response continues after it.
    next_after: Option<AccountId>,
}

/// An account's sums in a month. They are exact, whereas the account's statement rounds them to kopecks.
#[derive(Serialize)]
struct MonthOfAccount {
    account: AccountId,
    name: String,
    opening_rub: String,
    payments_rub: String,
    corrections_rub: String,
    charged_rub: String,
    closing_rub: String,
    entries: Vec<EntryAnswer>,
    /// The reason why the account's sums are missing.
    problem: Option<String>,
}

/// A payment; or a correction, which has a reason.
#[derive(Serialize)]
struct EntryAnswer {
    #[serde(skip_serializing_if = "Option::is_none")]
    account: Option<AccountId>,
    id: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    at: Option<String>,
    amount_rub: MicroRub,
    reason: Option<String>,
}

impl From<Moved> for EntryAnswer {
    fn from(moved: Moved) -> Self {
        Self {
            account: None,
            id: moved.id,
            at: Some(rfc3339(moved.at_ms)),
            amount_rub: moved.amount_rub,
            reason: moved.reason,
        }
    }
}

impl MonthOfAccount {
    fn new(view: AccountView, read: Result<Statement, StatementError>) -> Self {
        let (statement, problem) = match read {
            Ok(statement) => (statement, None),
            Err(error) => (Statement::default(), Some(error.to_string())),
        };
        let sum = |moved: &[Moved]| {
            let amounts = moved.iter().map(|it| i128::from(it.amount_rub.micro()));
            amounts.sum()
        };
        let charged = statement.models.values().map(|it| it.charged_micro).sum();
        let rubles = |micro: i128| Rubles(micro).to_string();
        Self {
            account: view.id,
            name: view.name,
            opening_rub: rubles(statement.opening_micro),
            payments_rub: rubles(sum(&statement.payments)),
            corrections_rub: rubles(sum(&statement.corrections)),
            charged_rub: rubles(charged),
            closing_rub: rubles(statement.closing_micro),
            entries: (statement.payments.into_iter().chain(statement.corrections))
                .map(EntryAnswer::from)
                .collect(),
            problem,
        }
    }
}

impl Admin {
    /// Returns the payments, corrections and sums of all accounts in a month.
    async fn list_month(self: Arc<Self>, request: AdminRequest) -> Result<Answer, Refusal> {
        let mut query = Query::parse(request.query(), &["after", "limit"])?;
        let after = query.optional("after", id::<AccountId>)?;
        let limit = query
            .optional("limit", up_to(ACCOUNTS_MAX))?
            .unwrap_or(ACCOUNTS_MAX);
        let month = month_named(request.named())?;
        let snapshot = self.live.snapshot();
        let seller = snapshot.seller();
        let time = month.time(seller.map_or(0, |seller| seller.utc_offset_minutes));
        let mut views = self.store.accounts().await.or_refuse("accounts")?;
        views.retain(|view| after.as_ref().is_none_or(|after| view.id > *after));
        let is_more = views.len() > limit;
        views.truncate(limit);
        let next_after = views.last().filter(|_| is_more).map(|view| view.id.clone());
        let read = stream::iter(views).map(|view| {
            let (store, time) = (&self.store, time.clone());
            async move {
                let read = Statement::read(store, &view.id, time).await;
                if let Err(StatementError::Ledger(error)) = &read {
                    return Err(Refusal::of_ledger(error, &format!("account {}", view.id)));
                }
                Ok(MonthOfAccount::new(view, read))
            }
        });
        ok(&MonthAnswer {
            month: month.to_string(),
            since: rfc3339(time.start),
            until: rfc3339(time.end),
            accounts: read.buffered(ACCOUNTS_AT_ONCE).try_collect().await?,
            next_after,
        })
    }

    /// Returns the entries with the requested id, from all accounts.
    async fn find_entry(self: Arc<Self>, request: AdminRequest) -> Result<Answer, Refusal> {
        let id = decoded(request.named()).unwrap_or_default();
        let views = self.store.accounts().await.or_refuse("accounts")?;
        let found = stream::iter(views).map(|view| {
            let (store, id) = (&self.store, &id);
            async move {
                let entry = store.entry(&view.id, id).await;
                let entry = entry.or_refuse("entries")?;
                Ok::<_, Refusal>(entry.map(|entry| EntryAnswer {
                    account: Some(view.id),
                    id: entry.id,
                    at: None,
                    amount_rub: entry.amount,
                    reason: entry.reason,
                }))
            }
        });
        let found: Vec<_> = found.buffered(ACCOUNTS_AT_ONCE).try_collect().await?;
        let found: Vec<_> = found.into_iter().flatten().collect();
        ok(&BTreeMap::from([("entries", found)]))
    }

    async fn show_statement(self: Arc<Self>, request: AdminRequest) -> Result<Answer, Refusal> {
        let formats = one_of(&["json", "csv", "html", "pdf"]);
        let format = Query::parse(request.query(), &["format"])?.optional("format", formats)?;
        let account = account_id(request.named())?;
        let month = month_named(request.second_named())?;
        let snapshot = self.live.snapshot();
        let seller = snapshot.seller();
        let issued = issue(&self.store, seller, snapshot.language(), &account, month).await;
        let (document, language) = issued.map_err(|error| refusal(&error, &account, month))?;
        tracing::info!(target: "audit", who = request.who().name(), what = "statement", number = document.number());
        let format = format.unwrap_or("json");
        let (bytes, kind) = match format {
            "csv" => (document.csv().into_bytes(), "text/csv; charset=utf-8"),
            "html" => (document.html(language).into_bytes(), HTML),
            "pdf" => (document.pdf(language), "application/pdf"),
            _ => (document.json(), "application/json"),
        };
        let file = format!("{}.{format}", document.number());
        Ok(attachment(bytes, kind, &file))
    }
}

fn month_named(text: &str) -> Result<Month, Refusal> {
    let month = text.parse();
    month.map_err(|problem| Refusal::invalid("month", format!("{problem}")))
}

/// Returns a document as a file download. The file's name must be ASCII.
pub(super) fn attachment(bytes: Vec<u8>, kind: &'static str, name: &str) -> Answer {
    let mut answer = response(full(bytes), kind);
    let file = HeaderValue::try_from(format!("attachment; filename=\"{name}\""));
    let file = file.expect("a file name of ids, dates and amounts is a valid header value");
    answer
        .headers_mut()
        .insert(header::CONTENT_DISPOSITION, file);
    answer
}

fn refusal(error: &IssueError, account: &AccountId, month: Month) -> Refusal {
    match error {
        IssueError::Ledger(error) | IssueError::Sums(StatementError::Ledger(error), _) => {
            Refusal::of_ledger(error, &format!("account {account}"))
        }
        IssueError::NotBegun => Refusal::invalid("month", "this month has not begun yet"),
        IssueError::Sums(StatementError::Forgotten, closed) => Refusal::Conflict(format!(
            "the journal of account {account} may no longer have all lines of the requested month, so the month's \
             sums may be incomplete. Take the sums from the statement that was made earlier{}, or from an export",
            (closed.as_ref()).map_or_else(String::new, |sha256| format!(" (its sha256 is {sha256})"))
        )),
        IssueError::Sums(..) => Refusal::Conflict(format!(
            "the month has more than {LINES_MAX} models, or payments and corrections: use tollgate export instead of a \
             statement"
        )),
        IssueError::Changed(sha256) => {
            tracing::error!(target: "audit", what = "statement_changed", %account, %month, sha256);
            Refusal::Conflict(format!(
                "the statement {account}-{month} was made with the sha256 {sha256}, but the journal no longer yields a \
                 statement with this hash: run tollgate audit, and take the sums from the earlier statement"
            ))
        }
        IssueError::Busy => Refusal::LedgerOutOfReach(
            "other requests are storing and deleting this month's statement at the same time; try again".into(),
        ),
    }
}
