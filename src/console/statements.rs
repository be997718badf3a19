//! Two statements pages. One shows an account's month: payments, corrections and spending, and the statement as files.
//! The other shows all accounts in a month.

use askama::Template;
use http::StatusCode;
use serde::Deserialize;
use tollgate_layers::money::MicroRub;

use super::{
    Answer, Visit,
    api::{Failed, separate_faults},
    download,
    form::Form,
    pages::{DAY_MS, Frame, status_of, written},
    texts::english,
};
use crate::{
    endpoints::page::HTML,
    text::{
        csv::shown,
        percent::encoded,
        time::{day, now_ms},
    },
};

/// The number of accounts on a page, and in one response of the API while a file is written. To show an account, its
/// statement of the month is computed.
const ACCOUNTS_SHOWN: usize = 10;
const ACCOUNTS_READ: usize = 500;

/// The number of months that the page offers, including the current one.
const MONTHS_OFFERED: usize = 13;

#[derive(Deserialize)]
pub(crate) struct Statement {
    pub(crate) since: String,
    pub(crate) until: String,
    /// Whether the month's statement can no longer change.
    pub(crate) closed: bool,
    pub(crate) opening: Amount,
    pub(crate) payments: Entries,
    pub(crate) corrections: Entries,
    pub(crate) spending: Spending,
    pub(crate) closing: Amount,
}

impl Statement {
    /// Returns the lists of payments and of corrections, each with its title.
    pub(crate) fn entries(&self) -> [(&'static str, &[Entry]); 2] {
        [
            (english("Payments"), &*self.payments.entries),
            (english("Corrections"), &*self.corrections.entries),
        ]
    }
}

#[derive(Deserialize)]
pub(crate) struct Amount {
    pub(crate) exact_rub: String,
}

#[derive(Deserialize)]
pub(crate) struct Entries {
    pub(crate) exact_rub: String,
    pub(crate) entries: Vec<Entry>,
}

#[derive(Deserialize)]
pub(crate) struct Entry {
    pub(crate) id: String,
    pub(crate) at: String,
    pub(crate) amount_rub: MicroRub,
    pub(crate) reason: Option<String>,
}

#[derive(Deserialize)]
pub(crate) struct Spending {
    pub(crate) exact_rub: String,
    pub(crate) models: Vec<OfModel>,
}

#[derive(Deserialize)]
pub(crate) struct OfModel {
    pub(crate) model: String,
    pub(crate) calls: u64,
    pub(crate) exact_rub: String,
}

#[derive(Template)]
#[template(path = "statement.html")]
struct StatementHtml<'a> {
    page: Frame<'a>,
    account: &'a str,
    month: String,
    months: Vec<String>,
    statement: Option<Statement>,
}

/// A page of accounts with their sums in a month, and the cursor of the next page.
#[derive(Default, Deserialize)]
struct MonthOfAll {
    accounts: Vec<OfAccount>,
    next_after: Option<String>,
}

#[derive(Deserialize)]
struct OfAccount {
    account: String,
    name: String,
    opening_rub: String,
    payments_rub: String,
    corrections_rub: String,
    charged_rub: String,
    closing_rub: String,
    entries: Vec<Booked>,
    problem: Option<String>,
}

/// A payment or a correction of any account.
#[derive(Clone, Deserialize)]
struct Booked {
    #[serde(default)]
    account: String,
    id: String,
    at: Option<String>,
    amount_rub: MicroRub,
    reason: Option<String>,
}

#[derive(Template)]
#[template(path = "payments.html")]
struct PaymentsHtml<'a> {
    page: Frame<'a>,
    id: &'a str,
    month: String,
    months: Vec<String>,
    /// Payments and corrections, latest first.
    booked: Vec<Booked>,
    accounts: Vec<OfAccount>,
    /// Whether the page has only some of the accounts.
    is_part: bool,
    next_after: Option<String>,
}

/// Returns the current month and the months before it, latest first.
pub(crate) fn months() -> Vec<String> {
    let mut at_ms = now_ms();
    let mut months = Vec::new();
    while months.len() < MONTHS_OFFERED {
        let date = day(at_ms);
        months.push(date[..7].to_owned());
        let of_month: u64 = date[8..].parse().unwrap_or(1);
        at_ms = at_ms.saturating_sub(of_month * DAY_MS);
    }
    months
}

/// Returns the month that a form names, or else the first of `months`.
pub(crate) fn month_of(form: &Form, months: &[String]) -> String {
    match form.get("month") {
        "" => months[0].clone(),
        month => month.to_owned(),
    }
}

fn newest_first(booked: &mut [Booked]) {
    booked.sort_by(|a, b| b.at.cmp(&a.at));
}

impl Visit {
    /// Shows the payments and the sums of accounts in a month, page by page. If an id was entered, shows the payments and
    /// corrections with this id instead.
    pub(super) async fn payments(&self) -> Result<Answer, Failed> {
        let (months, id) = (months(), self.form.get("id"));
        let month = month_of(&self.form, &months);
        let (mut all, mut booked, mut problem) = (MonthOfAll::default(), Vec::new(), None);
        if id.is_empty() {
            let after = self.form.get("after");
            let found = self.month_of_all(&month, after, ACCOUNTS_SHOWN).await;
            match separate_faults(found)? {
                Ok((found, entries)) => (all, booked) = (found, entries),
                Err(refused) => problem = Some(refused),
            }
        } else {
            let path = format!("/admin/v1/entries/{}", encoded(id));
            match self.api.list(&path).await? {
                Ok(entries) => booked = entries,
                Err(refused) => problem = Some(refused),
            }
        }
        let problem = problem.as_ref();
        let html = PaymentsHtml {
            page: self.frame("Payments", "Payments", problem),
            id,
            month,
            months,
            booked,
            accounts: all.accounts,
            is_part: all.next_after.is_some() || !self.form.get("after").is_empty(),
            next_after: all.next_after,
        };
        Ok(written(status_of(problem), &html))
    }

    /// Returns the payments and corrections of all accounts in a month as CSV.
    pub(super) async fn payments_csv(&self) -> Result<Answer, Failed> {
        let month = month_of(&self.form, &months());
        let (mut booked, mut after) = (Vec::new(), Some(String::new()));
        while let Some(from) = after {
            let (all, entries) = self.month_of_all(&month, &from, ACCOUNTS_READ).await?;
            booked.extend(entries);
            after = all.next_after;
        }
        newest_first(&mut booked);
        let mut text = String::from("at,account,id,amount_rub,reason\r\n");
        for it in &booked {
            let at = it.at.as_deref().unwrap_or_default();
            let [account, id, reason] = [
                &*it.account,
                &it.id,
                it.reason.as_deref().unwrap_or_default(),
            ]
            .map(shown);
            text += &format!("{at},{account},{id},{},{reason}\r\n", it.amount_rub);
        }
        let name = format!("payments-{month}.csv");
        Ok(download("text/csv; charset=utf-8", text, &name))
    }

    /// Returns a page of accounts with their sums, and these accounts' payments and corrections, latest first.
    async fn month_of_all(
        &self,
        month: &str,
        after: &str,
        limit: usize,
    ) -> Result<(MonthOfAll, Vec<Booked>), Failed> {
        let after = match after {
            "" => String::new(),
            after => format!("&after={}", encoded(after)),
        };
        let month = encoded(month);
        let path = format!("/admin/v1/statements/{month}?limit={limit}{after}");
        let mut all = self.api.get::<MonthOfAll>(&path).await??;
        let mut booked = Vec::new();
        for of in &mut all.accounts {
            let account = of.account.clone();
            booked.extend(of.entries.drain(..).map(|entry| Booked {
                account: account.clone(),
                ..entry
            }));
        }
        newest_first(&mut booked);
        Ok((all, booked))
    }

    /// Shows an account's month: the month that the form names, or the current one.
    pub(super) async fn statement(&self, account: &str) -> Result<Answer, Failed> {
        let months = months();
        let month = month_of(&self.form, &months);
        let name = encoded(&month);
        let path = format!("/admin/v1/accounts/{account}/statements/{name}");
        let (statement, problem) = match self.api.get::<Statement>(&path).await? {
            Ok(statement) => (Some(statement), None),
            Err(refused) if refused.status == StatusCode::NOT_FOUND => return Err(refused.into()),
            Err(refused) => (None, Some(refused)),
        };
        let title = self.fill(english("Payments and statements of {0}"), &[account]);
        let problem = problem.as_ref();
        let html = StatementHtml {
            page: self.frame(title, "Accounts", problem),
            account,
            month,
            months,
            statement,
        };
        Ok(written(status_of(problem), &html))
    }

    /// Returns the statement of a month as a file: `2026-11.pdf` or `2026-11.csv`.
    pub(super) async fn statement_file(&self, account: &str, file: &str) -> Result<Answer, Failed> {
        let (month, format, kind) = match file.rsplit_once('.') {
            Some((month, "pdf")) => (month, "pdf", "application/pdf"),
            Some((month, "csv")) => (month, "csv", "text/csv; charset=utf-8"),
            _ => return Err(super::pages::unknown().into()),
        };
        let path = format!("/admin/v1/accounts/{account}/statements/{month}?format={format}");
        let bytes = self.api.bytes(&path).await??;
        let name = format!("{account}-{month}.{format}");
        Ok(download(kind, bytes, &name))
    }
}

/// An invoice, as the API returns it.
#[derive(Deserialize)]
struct Invoice {
    number: String,
    date: String,
}

impl Visit {
    /// Returns an invoice as a file, in the format that the form names.
    pub(super) async fn invoice(&self, account: &str) -> Result<Answer, Failed> {
        let amount = encoded(&self.form.rubles("amount_rub"));
        let path = format!("/admin/v1/accounts/{account}/invoice?amount_rub={amount}");
        let invoice = self.api.get::<Invoice>(&path).await??;
        let (kind, ending) = match self.form.get("format") {
            "html" => (HTML, "html"),
            _ => ("application/pdf", "pdf"),
        };
        let path = format!("{path}&date={}&format={ending}", invoice.date);
        let bytes = self.api.bytes(&path).await??;
        let name = format!("{}.{ending}", invoice.number);
        Ok(download(kind, bytes, &name))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn months_offered_for_a_statement_are_consecutive() {
        let months = months();
        assert_eq!(months.len(), MONTHS_OFFERED);
        assert_eq!(months[0], day(now_ms())[..7]);
        let number = |month: &String| {
            let (year, month) = month.split_once('-').unwrap();
            year.parse::<u32>().unwrap() * 12 + month.parse::<u32>().unwrap()
        };
        assert!(
            months
                .windows(2)
                .all(|pair| number(&pair[0]) == number(&pair[1]) + 1),
            "{months:?}"
        );
    }
}
