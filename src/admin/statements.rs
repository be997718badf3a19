//! Endpoint for statements: what an account used and paid in a month, for the customer's accountant.

use std::sync::Arc;

use bytes::Bytes;
use http::{HeaderValue, header};
use tollgate_layers::{
    key::AccountId,
    reserve::ledger::{BookError, LedgerAdmin},
    respond::Language,
};
use tollgate_ledger::statement::{LINES_MAX, Statement, StatementError};

use super::{
    Admin, Answer,
    accounts::account_id,
    body::AnswerBody,
    now_ms,
    query::Query,
    refusal::{Refusal, response},
    route::{Asked, Route, routes},
};
use crate::{
    config::SellerConfig,
    endpoints::page::HTML,
    statement::{About, Document, Kept, Month},
};

/// The maximum number of attempts to store a month's statement. An attempt fails if another gateway stores the
/// statement at the same time.
const TRIES_MAX: usize = 3;

pub(super) const ROUTES: &[Route] = routes! {
    get "/admin/v1/accounts/{account}/statements/{month}" => show_statement .with_query();
};

/// The file format of a statement.
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
        let (document, language) = self.statement_of(&account, month).await?;
        tracing::info!(target: "audit", who = asked.who().name(), what = "statement", number = document.number());
        let form = form.unwrap_or(Form::Json);
        let bytes = match form {
            Form::Json => document.json(),
            Form::Csv => document.csv().into_bytes(),
            Form::Html => document.html(language).into_bytes(),
            Form::Pdf => document.pdf(language),
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

    /// Returns the statement and its language. The statement of a closed month keeps the content and language that it
    /// was first issued with.
    async fn statement_of(
        &self,
        account: &AccountId,
        month: Month,
    ) -> Result<(Document, Language), Refusal> {
        let of_ledger =
            |error: BookError| Refusal::of_ledger(&error, &format!("account {account}"));
        let snapshot = self.live.snapshot();
        for _ in 0..TRIES_MAX {
            let view = self.store.account(account).await.map_err(of_ledger)?;
            let kept = Kept::find(&self.store, account, month).await;
            let kept = kept.map_err(of_ledger)?;
            let seller = match &kept {
                Some(kept) => kept.seller(),
                None => snapshot.seller().map(|seller| SellerConfig::clone(seller)),
            };
            let time = month.time(
                seller
                    .as_ref()
                    .map_or(0, |seller| seller.utc_offset_minutes),
            );
            let now_ms = now_ms();
            if kept.is_none() && time.start > now_ms {
                return Err(Refusal::invalid("month", "has not begun yet"));
            }
            let read = Statement::read(&self.store, account, time).await;
            let statement = read.map_err(|error| refusal(&error, account, kept.as_ref()))?;
            if let Some(kept) = kept {
                let again = kept.again(account, month, statement);
                let document = again.ok_or_else(|| changed(account, month, &kept))?;
                return Ok((document, kept.language()));
            }
            let about = About {
                account,
                name: &view.name,
                month,
                seller: seller.as_ref(),
                now_ms,
            };
            let (document, language) = (Document::new(&about, statement), snapshot.language());
            if !document.is_closed() {
                return Ok((document, language));
            }
            let kept = Kept::of(&document, &about, language);
            let first = kept.keep(&self.store, account, month).await;
            if first.map_err(of_ledger)? {
                return Ok((document, language));
            }
        }
        Err(Refusal::LedgerOutOfReach(
            "the month is being stored and deleted at the same time; try again".into(),
        ))
    }
}

fn changed(account: &AccountId, month: Month, kept: &Kept) -> Refusal {
    let sha256 = kept.sha256();
    tracing::error!(target: "audit", what = "statement_changed", %account, %month, sha256);
    Refusal::Conflict(format!(
        "the statement {account}-{month} was made with the sha256 {sha256}, and the journal does not give that any more: \
         run tollgate audit, and take the sums from the statement that was made"
    ))
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

fn refusal(error: &StatementError, account: &AccountId, kept: Option<&Kept>) -> Refusal {
    match error {
        StatementError::Ledger(error) => Refusal::of_ledger(error, &format!("account {account}")),
        StatementError::Forgotten => Refusal::Conflict(format!(
            "the journal of account {account} may not reach back to the beginning of that month, so its sums may be \
             incomplete; take them from the statement that was made while it did{}, or from an export",
            kept.map(|kept| format!(" (its sha256 is {})", kept.sha256()))
                .unwrap_or_default()
        )),
        _ => Refusal::Conflict(format!(
            "the month has more than {LINES_MAX} payments and corrections, or models; take them from tollgate export"
        )),
    }
}
