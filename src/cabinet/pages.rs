//! Pages that show an account's balance, spending and statements.

use std::{
    collections::{BTreeMap, HashMap},
    ops::ControlFlow,
};

use askama::Template;
use http::StatusCode;
use tollgate_layers::{
    Error,
    error::Problem,
    key::KeyId,
    money::MicroRub,
    reserve::ledger::{AccountView, LedgerAdmin},
    usage::Usage,
};
use tollgate_ledger::{
    rollup::{self, CallScope, Sums},
    statement::StatementError,
};

use super::{Answer, Visit, frame::Page, playground::is_playground};
use crate::{
    console::{
        download,
        pages::{DAY_MS, written},
        plots::{self, Plot},
        statements::{Statement, month_of, months},
        texts::english,
    },
    endpoints::key_info::no_books,
    statement::{IssueError, Month, issue},
    text::{
        rubles::Rubles,
        time::{day, now_ms},
    },
};

/// The periods, in days, that the spending page offers.
const SPANS: [u64; 3] = [30, 7, 90];

/// The charges of an account's calls, by day, model and key.
#[derive(Default)]
struct Spent {
    total: Sums,
    days: BTreeMap<String, Sums>,
    models: HashMap<String, Sums>,
    keys: HashMap<KeyId, Sums>,
}

/// A row of a table of sums.
pub(super) struct Row {
    name: String,
    /// The path of the page about the key that the row names; `None` for the rows of a model, of a day and of totals.
    path: Option<String>,
    calls: u64,
    usage: Usage,
    charged: Rubles,
}

impl Row {
    fn new(name: String, path: Option<String>, sums: &Sums) -> Self {
        Self {
            name,
            path,
            calls: sums.calls,
            usage: sums.usage,
            charged: Rubles(sums.charged_micro),
        }
    }
}

#[derive(Template)]
#[template(path = "cabinet_overview.html")]
struct OverviewHtml<'a> {
    page: Page<'a>,
    view: AccountView,
    today: Rubles,
    month: Rubles,
    /// The plot of the latest days' charges; `None` if there were no charges.
    plot: Option<Plot>,
    /// Whether the account has a key with which models can be called.
    has_key: bool,
    may_pay: bool,
    may_change_keys: bool,
    /// Whether the account can be topped up through the pages.
    pays: bool,
    contact: Option<String>,
    root: String,
}

impl OverviewHtml<'_> {
    fn is_empty(&self) -> bool {
        self.view.free_rub <= MicroRub::ZERO
    }
}

#[derive(Template)]
#[template(path = "cabinet_spending.html")]
struct SpendingHtml<'a> {
    page: Page<'a>,
    spans: [(u64, bool); 3],
    total: Row,
    plot: Plot,
    tables: Vec<(&'static str, Vec<Row>)>,
}

#[derive(Template)]
#[template(path = "cabinet_statement.html")]
struct StatementHtml<'a> {
    page: Page<'a>,
    month: String,
    months: Vec<String>,
    statement: Option<Statement>,
}

impl Visit {
    pub(super) async fn answer(&self, segments: &[&str]) -> Result<Answer, Error> {
        match (segments, self.posted) {
            ([] | [""], _) => self.overview().await,
            (["spending"], _) => self.spending().await,
            (["calls"], _) => self.calls_page().await,
            (["calls", number], _) => self.call_page(number).await,
            (["keys"], _) => self.keys_page().await,
            (["keys", id], _) => self.key_page(id).await,
            (["playground"], _) => self.playground_page().await,
            (["payments"], _) => self.payments_page().await,
            (["payments", "invoice"], false) => self.invoice().await,
            (["statements"], _) => self.statement_page().await,
            (["statements", file], _) => self.statement_file(file).await,
            (["members"], _) => self.members_page().await,
            (["account"], true) => self.change_account().await,
            _ => Ok(self.message_page(StatusCode::NOT_FOUND, english("Page not found."))),
        }
    }

    /// Sums up the charges of the account's calls since a time.
    async fn spent(&self, since_ms: u64) -> Result<Spent, Error> {
        let inner = &self.cabinet.0;
        let _permit = inner.reports.try_acquire().map_err(|_| Error::Overloaded)?;
        let mut spent = Spent::default();
        let call_scope = CallScope::Account(&self.who.session.account);
        let read = rollup::read(&inner.store, call_scope, since_ms..u64::MAX, |part| {
            spent.total.add(part.sums);
            let days = spent.days.entry(day(part.at_ms)).or_default();
            days.add(part.sums);
            let models = spent.models.entry(part.model.to_owned()).or_default();
            models.add(part.sums);
            if let Some(key) = part.key {
                spent.keys.entry(key.clone()).or_default().add(part.sums);
            }
            ControlFlow::Continue(())
        });
        read.await.map_err(no_books)?;
        Ok(spent)
    }

    /// Draws the charges of the latest days.
    fn plot(&self, title: &'static str, days: &BTreeMap<String, Sums>, since_ms: u64) -> Plot {
        let charged = days.iter();
        let charged =
            charged.map(|(day, sums)| (day.clone(), Rubles(sums.charged_micro).to_string()));
        let charged: Vec<_> = charged.collect();
        let times = plots::days(since_ms, now_ms());
        Plot::compared(title, &times, &charged, &[], self.language)
    }

    async fn overview(&self) -> Result<Answer, Error> {
        let (inner, account) = (&self.cabinet.0, &self.who.session.account);
        let now_ms = now_ms();
        // The current month may have begun 31 days ago.
        let spent = self.spent(days_ago(now_ms, 31)).await?;
        let view = inner.store.account(account).await.map_err(no_books)?;
        let keys = inner.store.keys(account).await.map_err(no_books)?;
        let (today, month) = (day(now_ms), day(now_ms)[..7].to_owned());
        let of = |begin: &str| {
            let days = spent.days.iter().filter(|(day, _)| day.starts_with(begin));
            Rubles(days.map(|(_, sums)| sums.charged_micro).sum())
        };
        let snapshot = inner.live.snapshot();
        let title = match &*view.name {
            "" => view.id.to_string(),
            name => name.to_owned(),
        };
        let html = OverviewHtml {
            page: self.page(&title, english("Overview"), None),
            today: of(&today),
            month: of(&month),
            plot: (!spent.days.is_empty()).then(|| {
                let title = english("Charged per day, last 30 days, ₽");
                self.plot(title, &spent.days, days_ago(now_ms, 30))
            }),
            has_key: (keys.iter().map(|key| &key.record))
                .any(|key| key.may_hold() && !is_playground(&key.id)),
            may_pay: self.who.role.may_pay(),
            may_change_keys: self.who.role.may_change_keys(),
            pays: snapshot.urls().pays,
            contact: snapshot.seller().and_then(|seller| seller.contact.clone()),
            root: snapshot.urls().root_url().to_owned(),
            view,
        };
        Ok(written(StatusCode::OK, &html))
    }

    async fn spending(&self) -> Result<Answer, Error> {
        let inner = &self.cabinet.0;
        let requested = self.form.get("days").parse().ok();
        let requested = requested.filter(|days| SPANS.contains(days));
        let days = requested.unwrap_or(SPANS[0]);
        let since_ms = days_ago(now_ms(), days);
        let spent = self.spent(since_ms).await?;
        let keys = inner.store.keys(&self.who.session.account).await;
        let names = keys.map_err(no_books)?.into_iter();
        let names = names.map(|key| (key.record.id, key.record.name));
        let names: HashMap<KeyId, String> = names.collect();
        let plot = self.plot(english("Charged by day, ₽"), &spent.days, since_ms);
        let by_key = spent.keys.iter().map(|(id, sums)| {
            let name = names.get(id).filter(|name| !name.is_empty());
            let name = name.cloned().unwrap_or_else(|| id.to_string());
            Row::new(name, Some(format!("/cabinet/keys/{id}")), sums)
        });
        let by_model =
            (spent.models.iter()).map(|(model, sums)| Row::new(model.clone(), None, sums));
        let by_day = (spent.days.iter().rev()).map(|(day, sums)| Row::new(day.clone(), None, sums));
        let tables = vec![
            (english("By key"), dearest(by_key)),
            (english("By model"), dearest(by_model)),
            (english("By day"), by_day.collect()),
        ];
        let html = SpendingHtml {
            page: self.page(english("Spending"), english("Spending"), None),
            spans: SPANS.map(|span| (span, span == days)),
            total: Row::new(String::new(), None, &spent.total),
            plot,
            tables,
        };
        Ok(written(StatusCode::OK, &html))
    }

    /// Returns the statement of a month as JSON, and as the file that the browser requested.
    async fn issued(&self, month: &str, format: &str) -> Result<(Vec<u8>, String), Error> {
        let wrong = || Error::invalid("month", Problem::WrongType("2026-11"));
        let month: Month = month.parse().map_err(|_| wrong())?;
        let (inner, account) = (&self.cabinet.0, &self.who.session.account);
        let snapshot = inner.live.snapshot();
        let seller = snapshot.seller();
        let issued = issue(&inner.store, seller, snapshot.language(), account, month).await;
        let (document, language) = issued.map_err(|error| match error {
            IssueError::Ledger(error) | IssueError::Sums(StatementError::Ledger(error), _) => {
                no_books(error)
            }
            IssueError::NotBegun => wrong(),
            IssueError::Busy => Error::Overloaded,
            IssueError::Sums(error, _) => Error::Internal(error.into()),
            IssueError::Changed(sha256) => {
                tracing::error!(target: "audit", what = "statement_changed", %account, %month, sha256);
                Error::Internal("the account's journal no longer gives the sums of the stored statement".into())
            }
        })?;
        let bytes = match format {
            "pdf" => document.pdf(language),
            "csv" => document.csv().into_bytes(),
            _ => document.json(),
        };
        Ok((bytes, document.number().to_owned()))
    }

    async fn statement_page(&self) -> Result<Answer, Error> {
        let months = months();
        let month = month_of(&self.form, &months);
        let (statement, problem) = match self.issued(&month, "json").await {
            Ok((json, _)) => {
                let read = serde_json::from_slice(&json).map(Some);
                (read.map_err(|error| Error::Internal(error.into()))?, None)
            }
            Err(error) => (None, Some(self.text_of(&error))),
        };
        let (status, text) = problem.unzip();
        let title = english("Payments and statements");
        let html = StatementHtml {
            page: self.page(title, english("Statements"), text.as_deref()),
            month,
            months,
            statement,
        };
        Ok(written(status.unwrap_or(StatusCode::OK), &html))
    }

    /// Returns the statement of a month as a file: `2026-11.pdf` or `2026-11.csv`.
    async fn statement_file(&self, name: &str) -> Result<Answer, Error> {
        let (month, format, kind) = match name.rsplit_once('.') {
            Some((month, "pdf")) => (month, "pdf", "application/pdf"),
            Some((month, "csv")) => (month, "csv", "text/csv; charset=utf-8"),
            _ => return Ok(self.message_page(StatusCode::NOT_FOUND, english("Page not found."))),
        };
        let (bytes, number) = self.issued(month, format).await?;
        let who = self.who.mail.as_str();
        tracing::info!(target: "audit", who, what = "statement", number);
        Ok(download(kind, bytes, &format!("{number}.{format}")))
    }
}

/// Returns the beginning of the first of the latest `days` UTC days, today included.
const fn days_ago(now_ms: u64, days: u64) -> u64 {
    (now_ms / DAY_MS + 1).saturating_sub(days) * DAY_MS
}

/// Sorts rows by their charge, highest first.
fn dearest(rows: impl Iterator<Item = Row>) -> Vec<Row> {
    let mut rows: Vec<Row> = rows.collect();
    rows.sort_by(|one, other| (other.charged.0, &one.name).cmp(&(one.charged.0, &other.name)));
    rows
}
