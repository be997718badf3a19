//! Statements: an account's month for its accountant.

use std::sync::Arc;

use bytes::Bytes;
use http::{HeaderValue, header};
use tollgate_layers::{key::AccountId, reserve::ledger::LedgerAdmin};
use tollgate_ledger::statement::{LINES_MAX, Statement, StatementError};

use super::{
    Admin, Answer,
    accounts::account_id,
    body::AnswerBody,
    now_ms,
    query::Query,
    refusal::{Refusal, response},
    routes::{Asked, Route},
};
use crate::{
    endpoints::page::HTML,
    statement::{About, Document, Month},
};

pub(super) const ROUTES: &[Route] = &[Route::get(
    "/admin/v1/accounts/{account}/statements/{month}",
    |admin, asked| Box::pin(admin.show_statement(asked)),
)
.with_query()];

/// What a statement comes as.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Form {
    Json,
    Csv,
    Html,
    Pdf,
}

impl Admin {
    async fn show_statement(self: Arc<Self>, asked: Asked) -> Result<Answer, Refusal> {
        let form = Query::parse(asked.query(), &["format"])?.optional("format", form)?;
        let account = account_id(asked.named())?;
        let month: Month = (asked.second_named().parse())
            .map_err(|problem| Refusal::invalid("month", format!("{problem}")))?;
        let snapshot = self.live.snapshot();
        let seller = snapshot.seller().map(|seller| &**seller);
        let time = month.time(seller.map_or(0, |seller| seller.utc_offset_minutes));
        let now_ms = now_ms();
        if time.start > now_ms {
            return Err(Refusal::invalid("month", "has not begun yet"));
        }
        let view = self.store.account(&account).await;
        let view =
            view.map_err(|error| Refusal::of_ledger(&error, &format!("account {account}")))?;
        let read = Statement::read(&self.store, &account, time).await;
        let statement = read.map_err(|error| refusal(&error, &account))?;
        let about = About {
            account: &account,
            name: &view.name,
            month,
            seller,
            now_ms,
        };
        let document = Document::new(&about, statement);
        tracing::info!(target: "audit", who = asked.who().name(), what = "statement", number = document.number());
        let form = form.unwrap_or(Form::Json);
        let bytes = match form {
            Form::Json => document.json(),
            Form::Csv => document.csv().into_bytes(),
            Form::Html => document.html(snapshot.language()).into_bytes(),
            Form::Pdf => document.pdf(snapshot.language()),
        };
        let (kind, ending) = match form {
            Form::Json => ("application/json", "json"),
            Form::Csv => ("text/csv; charset=utf-8", "csv"),
            Form::Html => (HTML, "html"),
            Form::Pdf => ("application/pdf", "pdf"),
        };
        let mut answer = response(AnswerBody::from(Bytes::from(bytes)), kind);
        let file = format!("attachment; filename=\"{}.{ending}\"", document.number());
        let file = HeaderValue::try_from(file).expect("an id and a month are plain ASCII");
        answer
            .headers_mut()
            .insert(header::CONTENT_DISPOSITION, file);
        Ok(answer)
    }
}

fn form(text: &str) -> Result<Form, String> {
    match text {
        "json" => Ok(Form::Json),
        "csv" => Ok(Form::Csv),
        "html" => Ok(Form::Html),
        "pdf" => Ok(Form::Pdf),
        _ => Err("must be json, csv, html or pdf".into()),
    }
}

fn refusal(error: &StatementError, account: &AccountId) -> Refusal {
    match error {
        StatementError::Ledger(error) => Refusal::of_ledger(error, &format!("account {account}")),
        StatementError::Forgotten => Refusal::Conflict(format!(
            "the journal of account {account} may not reach back to the beginning of that month, so its sums cannot be \
             told; take them from the statement that was made while it did, or from an export"
        )),
        _ => Refusal::Conflict(format!(
            "the month has more than {LINES_MAX} payments and corrections, or models; take them from tollgate export"
        )),
    }
}
