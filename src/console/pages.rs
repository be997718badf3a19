//! The pages: what each asks the API, and what it is written with.

use std::ops::Range;

use askama::Template;
use futures_util::{
    future::try_join_all,
    stream::{self, StreamExt as _, TryStreamExt as _},
};
use http::StatusCode;
use rust_decimal::Decimal;
use serde_json::Value;
use tollgate_layers::{Error, money::MicroRub, reserve::ledger::AccountView};

use super::{
    Answer, Visit,
    api::Refused,
    changes::{self, Change},
    events,
    form::Form,
    history::{Former, Numbered, former_prices, multipliers},
    page, see,
    views::{
        Accounts, Calls, Counters, Course, Plot, Sums, Total, UsageRow, Usages, Vendor, Vendors,
        bars, sum_of,
    },
    what_if::{PricedInterval, Reckoning, WhatIf, asked_for, beyond_reckoning, intervals},
};
use crate::{
    admin::{Right, now_ms},
    endpoints::page::HTML,
    text::{
        percent::encoded,
        time::{day, rfc3339},
    },
};

pub(super) const HOUR_MS: u64 = 3_600_000;
pub(super) const DAY_MS: u64 = 24 * HOUR_MS;
const DAYS_SUMMED_MS: u64 = 29 * DAY_MS;
const YEAR_MS: u64 = 334 * DAY_MS;
const HOURS_PLOTTED: u64 = 24;
/// How many days another multiplier is tried on.
const DAYS_BACK: u64 = 30;
const DAYS_BACK_MAX: u64 = 366;
/// How many reports a page asks the ledger for at the same time.
const REPORTS_AT_ONCE: usize = 4;
/// How many receipts are summed up for an hour in which the multiplier changed.
const RECEIPTS_SUMMED_MAX: u64 = 2_000;
const ENDS: [&str; 5] = [
    "finished",
    "client_left",
    "vendor_cut",
    "vendor_error",
    "gateway_stopped",
];

/// What stands around each page.
pub(super) struct Frame<'a> {
    pub(super) title: String,
    /// Its place in the navigation.
    pub(super) section: &'static str,
    pub(super) who: Option<&'a str>,
    pub(super) role: &'static str,
    pub(super) csrf: &'a str,
    pub(super) problem: Option<&'a str>,
    pub(super) done: Option<&'static str>,
    pub(super) rights: [bool; 3],
}

impl Frame<'_> {
    /// For whoever has not signed in.
    fn bare(title: &str, problem: Option<&'static str>) -> Self {
        Self {
            title: title.to_owned(),
            section: "",
            who: None,
            role: "",
            csrf: "",
            problem,
            done: None,
            rights: [false; 3],
        }
    }

    /// Path, name, and whether that is where this page is.
    pub(super) fn nav(&self) -> [(&'static str, &'static str, bool); 8] {
        [
            ("/", "Overview"),
            ("/console/accounts", "Accounts"),
            ("/console/calls", "Calls"),
            ("/console/usage", "Usage"),
            ("/console/vendors", "Vendors"),
            ("/console/prices", "Prices"),
            ("/console/events", "Events"),
            ("/console/audit", "Audit"),
        ]
        .map(|(path, name)| (path, name, name == self.section))
    }

    pub(super) const fn may_money(&self) -> bool {
        self.rights[0]
    }

    pub(super) const fn may_support(&self) -> bool {
        self.rights[1]
    }

    pub(super) const fn may_all(&self) -> bool {
        self.rights[2]
    }
}

pub(super) fn written(status: StatusCode, template: &impl Template) -> Answer {
    let text = template.render().expect("text is all that is written");
    page(status, HTML, text)
}

/// The page to sign in on.
pub(super) fn sign_in(status: StatusCode, problem: Option<&str>, provider: Provider) -> Answer {
    let page = Frame {
        problem,
        ..Frame::bare("Sign in", None)
    };
    written(status, &SignInHtml { page, provider })
}

/// Whether an OpenID provider may be gone by, too.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Provider {
    None,
    Offered,
    /// Whoever was signed in by it has left, and is still known there.
    Left,
}

/// The page of somebody who has come back from the provider. It leads on by itself: the browser brings the new cookie
/// to requests that a page of ours has begun, and not to those that follow on another site's.
pub(super) fn arrived() -> Answer {
    let page = Frame::bare("Signed in", None);
    written(StatusCode::OK, &ArrivedHtml { page })
}

/// A page that says one thing.
pub(super) fn told(status: StatusCode, problem: &'static str) -> Answer {
    let page = Frame::bare("Not done", Some(problem));
    written(status, &ToldHtml { page })
}

impl Visit {
    /// The page of a path, after what was posted to it.
    pub(super) async fn answer(self, segments: &[&str]) -> Result<Answer, Error> {
        let change = if self.posted {
            match changes::wanted(segments, &self.form) {
                Some(change) => Some(change),
                None => return Ok(self.refused("Not done", &unknown())),
            }
        } else {
            None
        };
        let mut problem = None;
        if let Some(change) = change {
            let Change {
                method,
                path,
                body,
                done,
            } = change;
            let answer = self
                .api
                .change::<Value>(method, &path, body.as_ref())
                .await?;
            match answer {
                Ok(answer) if done == "key" => return self.key_made(answer),
                Ok(answer) if done == "audit" => return Ok(self.audited(&answer)),
                Ok(answer) if done == "replayed" && events::not_taken(&answer).is_some() => {
                    problem = events::not_taken(&answer);
                }
                Ok(answer) if answer["repeated"] == true => {
                    return Ok(see(&changes::after(segments, &self.form, "repeated")));
                }
                Ok(_) => return Ok(see(&changes::after(segments, &self.form, done))),
                Err(refused) => problem = Some(refused),
            }
        }
        let problem = problem.as_ref();
        let shown = match segments {
            [""] => self.overview(problem).await?,
            ["console", "accounts"] => self.accounts(problem).await?,
            ["console", "accounts", id] => self.account(id, problem).await?,
            ["console", "keys", id] => self.key(id, problem).await?,
            ["console", "calls"] => self.calls().await?,
            ["console", "calls", number] => self.call(number).await?,
            ["console", "usage"] => self.usage().await?,
            ["console", "vendors"] => self.vendors(problem).await?,
            ["console", "prices"] => self.prices().await?,
            ["console", "events"] => self.events(problem).await?,
            ["console", "audit"] => Ok(self.audit(problem, None)),
            _ => Err(unknown()),
        };
        Ok(shown.unwrap_or_else(|refused| {
            // What became of a change comes first: it may have been made.
            let refused = problem.unwrap_or(&refused);
            let title = match refused.status {
                StatusCode::NOT_FOUND => "Not found",
                _ => "Not shown",
            };
            self.refused(title, refused)
        }))
    }

    pub(super) fn frame<'a>(
        &'a self,
        title: impl Into<String>,
        section: &'static str,
        problem: Option<&'a Refused>,
    ) -> Frame<'a> {
        let role = self.operator.role();
        let done = if self.posted {
            ""
        } else {
            self.form.get("done")
        };
        Frame {
            title: title.into(),
            section,
            who: Some(self.operator.name()),
            role: role.as_str(),
            csrf: self.session.csrf(),
            problem: problem.map(|refused| &*refused.text),
            done: changes::said(done),
            rights: [Right::Money, Right::Support, Right::Everything].map(|right| role.may(right)),
        }
    }

    /// A page that says why there is none.
    fn refused(&self, title: &str, refused: &Refused) -> Answer {
        let page = self.frame(title, "", Some(refused));
        written(refused.status, &ToldHtml { page })
    }

    async fn overview(&self, problem: Option<&Refused>) -> Result<Result<Answer, Refused>, Error> {
        let accounts = match self.api.get::<Accounts>("/admin/v1/accounts").await? {
            Ok(Accounts { accounts }) => accounts,
            Err(refused) => return Ok(Err(refused)),
        };
        let vendors = match self.api.get::<Vendors>("/admin/v1/vendors").await? {
            Ok(Vendors { vendors }) => vendors,
            Err(refused) => return Ok(Err(refused)),
        };
        let metrics = self.api.text("/metrics").await?.unwrap_or_default();
        let readiness = self.api.get::<Value>("/readyz").await?.unwrap_or_default();
        let ready = match readiness["reason"].as_str() {
            Some(reason) => format!("not ready: {reason}"),
            None => "ready".to_owned(),
        };
        let (sold, courses) = match self.sold().await? {
            Ok(sold) => sold,
            Err(refused) => return Ok(Err(refused)),
        };
        let mut quiet = Vec::new();
        for vendor in &vendors {
            for route in vendor
                .routes
                .iter()
                .filter(|route| route.state != "answering")
            {
                quiet.push((&*vendor.name, &*route.model, &*route.state));
            }
        }
        let sum = |of: fn(&AccountView) -> MicroRub| {
            let micro = accounts
                .iter()
                .map(|account| i128::from(of(account).micro()));
            crate::text::rubles::Rubles(micro.sum()).to_string()
        };
        Ok(Ok(written(
            status_of(problem),
            &OverviewHtml {
                page: self.frame("Overview", "Overview", problem),
                ready,
                accounts: accounts.len(),
                balance: sum(|account| account.balance_rub),
                held: sum(|account| account.held_rub),
                spent: sum(|account| account.spent_rub),
                loss: sum(|account| account.loss_rub),
                sold,
                courses,
                node: Counters::of(&metrics),
                quiet,
            },
        )))
    }

    /// What was sold to all accounts: today, this month, in a year; and by hour, day and month.
    async fn sold(&self) -> Result<Result<Sold, Refused>, Error> {
        let now = now_ms();
        let today = now - now % DAY_MS;
        let hours_from = rfc3339(now - now % HOUR_MS - (HOURS_PLOTTED - 1) * HOUR_MS);
        // From the first of a month on.
        let year_ago = day(today.saturating_sub(YEAR_MS));
        let days_from = format!("{}-01", &year_ago[..7]);
        let month = &day(now)[..7];
        let recent = day(today.saturating_sub(DAYS_SUMMED_MS));
        let asked = [
            ("hour", "by hour, the last 24", &hours_from),
            ("day", "by day, the last 30", &recent),
            ("month", "by month, the last 12", &days_from),
        ];
        // Together: each waits for the ledger.
        let reports = try_join_all(asked.map(|(group, by, since)| async move {
            let path = format!("/admin/v1/usage?group={group}&since={}", encoded(since));
            Ok::<_, Error>((by, self.api.get::<Usages>(&path).await?))
        }));
        let (mut courses, told) = (Vec::new(), reports.await?);
        let mut reports = Vec::new();
        for (by, report) in told {
            let rows = match report {
                Ok(report) => report.rows,
                Err(refused) => return Ok(Err(refused)),
            };
            courses.push(Course::of(by, &rows));
            reports.extend(rows);
        }
        let today = day(now);
        let of_day = |row: &&UsageRow| row.day.as_ref() == Some(&today);
        let of_month = |row: &&UsageRow| row.month.as_deref() == Some(month);
        let of_year = |row: &&UsageRow| row.month.is_some();
        let sold = vec![
            ("Today", Total::of(reports.iter().filter(of_day))),
            ("This month", Total::of(reports.iter().filter(of_month))),
            ("In a year", Total::of(reports.iter().filter(of_year))),
        ];
        Ok(Ok((sold, courses)))
    }

    async fn calls(&self) -> Result<Result<Answer, Refused>, Error> {
        const FILTERS: [&str; 8] = [
            "account", "key", "model", "vendor", "session", "end", "since", "until",
        ];
        let form = &self.form;
        let number = form.get("number");
        if !number.is_empty() {
            return Ok(Ok(see(&format!("/console/calls/{}", encoded(number)))));
        }
        let (mut calls, mut problem) = (None, None);
        let query = form.query(&[&FILTERS[..], &["after"]].concat());
        let path = format!("/admin/v1/receipts?{query}");
        match self.api.get::<Calls>(&path).await? {
            Ok(found) => calls = Some(found),
            Err(refused) => problem = Some(refused),
        }
        let next = match calls.as_ref().and_then(|calls| calls.next.as_ref()) {
            Some(next) => format!("{}&after={}", form.query(&FILTERS), encoded(next)),
            None => String::new(),
        };
        Ok(Ok(written(
            status_of(problem.as_ref()),
            &CallsHtml {
                page: self.frame("Calls", "Calls", problem.as_ref()),
                form,
                ends: &ENDS,
                calls,
                next,
            },
        )))
    }

    async fn usage(&self) -> Result<Result<Answer, Refused>, Error> {
        let form = &self.form;
        let (mut total, mut days, mut tables) = (None, Vec::new(), Vec::new());
        let mut problem = None;
        let mut query = form.query(&["account", "since", "until"]);
        if form.get("since").is_empty() {
            let since = day(now_ms().saturating_sub(DAYS_SUMMED_MS));
            query = format!("{query}&since={since}");
        }
        let mut groups = vec![("day", "By day"), ("model", "By model")];
        if !form.get("account").is_empty() {
            // An account names its own groups.
            groups.push(("group", "By group of keys"));
        }
        for (group, title) in groups {
            let path = format!("/admin/v1/usage?{query}&group={group}");
            let report = match self.api.get::<Usages>(&path).await? {
                Ok(report) => report,
                Err(refused) => {
                    problem = Some(refused);
                    break;
                }
            };
            if group == "group" && report.rows.iter().all(|row| row.group.is_none()) {
                continue;
            }
            let name = |row: UsageRow| {
                let name = row.day.or(row.model).or(row.group);
                (name.unwrap_or_else(|| "none".into()), row.sums)
            };
            let rows: Vec<(String, Sums)> = report.rows.into_iter().map(name).collect();
            if group == "day" {
                let charged = rows.iter();
                days = charged
                    .map(|(day, sums)| (day.clone(), sums.charged_rub.clone()))
                    .collect();
            }
            tables.push((title, rows));
            total = Some(report.total);
        }
        let problem = problem.as_ref();
        Ok(Ok(written(
            status_of(problem),
            &UsageHtml {
                page: self.frame("Usage", "Usage", problem),
                form,
                total,
                plot: Plot {
                    by: "by day",
                    bars: bars(&days),
                    charged: sum_of(&days),
                    table: "; the table below has the numbers",
                },
                tables,
            },
        )))
    }

    async fn vendors(&self, problem: Option<&Refused>) -> Result<Result<Answer, Refused>, Error> {
        let vendors = match self.api.get::<Vendors>("/admin/v1/vendors").await? {
            Ok(Vendors { vendors }) => vendors,
            Err(refused) => return Ok(Err(refused)),
        };
        let page = self.frame("Vendors", "Vendors", problem);
        Ok(Ok(written(
            status_of(problem),
            &VendorsHtml { page, vendors },
        )))
    }

    async fn prices(&self) -> Result<Result<Answer, Refused>, Error> {
        let form = &self.form;
        let snapshot = self.live.snapshot();
        let days = form.get("days").parse().ok();
        let days = days.filter(|days| (1..=DAYS_BACK_MAX).contains(days));
        let days = days.unwrap_or(DAYS_BACK);
        let now_has = snapshot.multiplier();
        let (then, problem) = match asked_for(form.get("multiplier"), now_has) {
            Ok(then) => (then, None),
            Err(refused) => (now_has, Some(refused)),
        };
        let tariffs = match self.tariffs().await? {
            Ok(tariffs) => tariffs,
            Err(refused) => return Ok(Err(refused)),
        };
        let sold = match self.sold_at(days, then, now_has, &tariffs).await? {
            Ok(sold) => sold,
            Err(refused) => return Ok(Err(refused)),
        };
        let version = snapshot.version();
        let rows = snapshot.models().map(|(model, prices)| {
            let price = prices.map(|prices| &prices.usual);
            let rates = [
                ("Input", price.map(|price| price.input)),
                ("Cached input", price.map(|price| price.cached_input)),
                ("Output", price.map(|price| price.output)),
                ("Cache write", price.map(|price| price.cache_write)),
            ];
            let vendors: Vec<&str> = model
                .routes
                .iter()
                .map(|route| &*route.vendor.name)
                .collect();
            PriceRow {
                model: model.id.clone(),
                rates: rates.map(|(name, rate)| {
                    (
                        name,
                        rate.map_or_else(|| "—".to_owned(), |rate| rate.to_string()),
                    )
                }),
                vendors: vendors.join(", "),
            }
        });
        Ok(Ok(written(
            status_of(problem.as_ref()),
            &PricesHtml {
                page: self.frame("Prices", "Prices", problem.as_ref()),
                days,
                days_max: DAYS_BACK_MAX,
                now_has: now_has.to_string(),
                then_has: then.to_string(),
                sold,
                version: version.id,
                since: rfc3339(version.effective_from_ms),
                rate: snapshot.rate().map(|reading| reading.rate.to_string()),
                rows: rows.collect(),
                former: former_prices(&tariffs),
            },
        )))
    }

    /// What was sold in the last days, and what it would have come to at another multiplier.
    async fn sold_at(
        &self,
        days: u64,
        then: Decimal,
        now_has: Decimal,
        tariffs: &[Numbered],
    ) -> Result<Result<Vec<WhatIf>, Refused>, Error> {
        let now = now_ms();
        let today = now - now % DAY_MS;
        let time = today.saturating_sub((days - 1) * DAY_MS)..today + DAY_MS;
        let mut changes = multipliers(tariffs);
        if changes.is_empty() {
            changes.push((0, now_has));
        }
        let intervals = intervals(time, &changes);
        let asked = stream::iter(intervals).map(|interval| self.sold_in(interval));
        let mut asked = asked.buffered(REPORTS_AT_ONCE);
        let mut sold = Reckoning::default();
        while let Some(parts) = asked.try_next().await? {
            let parts = match parts {
                Ok(parts) => parts,
                Err(refused) => return Ok(Err(refused)),
            };
            for (rows, from) in &parts {
                for row in rows {
                    if sold.add(row, *from, then).is_none() {
                        return Ok(Err(beyond_reckoning()));
                    }
                }
            }
        }
        Ok(Ok(sold.rows()))
    }

    /// What was sold in an interval, by model, and at which multipliers.
    async fn sold_in(
        &self,
        interval: PricedInterval,
    ) -> Result<Result<Vec<SoldAt>, Refused>, Error> {
        let whole = match self.usage_by_model(&interval.time()).await? {
            Ok(rows) => rows,
            Err(refused) => return Ok(Err(refused)),
        };
        let calls: u64 = whole.iter().map(|row| row.sums.calls).sum();
        // A part of an hour is summed up from its receipts, which may be a million.
        if interval.parts().len() == 1 || calls > RECEIPTS_SUMMED_MAX {
            return Ok(Ok(vec![(whole, interval.mostly())]));
        }
        let mut sold = Vec::new();
        for (part, from) in interval.parts() {
            match self.usage_by_model(part).await? {
                Ok(rows) => sold.push((rows, *from)),
                Err(refused) => return Ok(Err(refused)),
            }
        }
        Ok(Ok(sold))
    }

    async fn usage_by_model(
        &self,
        time: &Range<u64>,
    ) -> Result<Result<Vec<UsageRow>, Refused>, Error> {
        let (since, until) = (rfc3339(time.start), rfc3339(time.end));
        let path = format!("/admin/v1/usage?group=model&since={since}&until={until}");
        let report = self.api.get::<Usages>(&path).await?;
        Ok(report.map(|report| report.rows))
    }

    fn audited(&self, answer: &Value) -> Answer {
        self.audit(None, Some(answer))
    }

    fn audit(&self, problem: Option<&Refused>, answer: Option<&Value>) -> Answer {
        let breaches = answer.map(|answer| &answer["breaches"]);
        let breaches = breaches.and_then(Value::as_array).into_iter().flatten();
        let facts = answer.and_then(Value::as_object).map(|fields| {
            let plain = fields.iter().filter(|(name, _)| *name != "breaches");
            plain
                .map(|(name, value)| {
                    let value = value
                        .as_str()
                        .map_or_else(|| value.to_string(), str::to_owned);
                    (&**name, value)
                })
                .collect()
        });
        written(
            status_of(problem),
            &AuditHtml {
                page: self.frame("Audit", "Audit", problem),
                breaches: breaches.filter_map(Value::as_str).collect(),
                facts,
            },
        )
    }
}

fn unknown() -> Refused {
    Refused {
        status: StatusCode::NOT_FOUND,
        text: "There is no such page.".into(),
    }
}

pub(super) fn status_of(problem: Option<&Refused>) -> StatusCode {
    problem.map_or(StatusCode::OK, |refused| refused.status)
}

/// Rows of what was sold, and the multiplier in force then.
type SoldAt = (Vec<UsageRow>, Decimal);

/// Sums of times, and how they came about.
type Sold = (Vec<(&'static str, Total)>, Vec<Course>);

struct PriceRow {
    model: String,
    rates: [(&'static str, String); 4],
    vendors: String,
}

macro_rules! pages {
    ($($name:ident $path:tt { $($field:ident: $kind:ty),* $(,)? })*) => {
        $(
            #[derive(Template)]
            #[template(path = $path, config = "src/console/templates/askama.toml")]
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
    ToldHtml "told.html" {}
    OverviewHtml "overview.html" {
        ready: String,
        accounts: usize,
        balance: String,
        held: String,
        spent: String,
        loss: String,
        sold: Vec<(&'static str, Total)>,
        courses: Vec<Course>,
        node: Counters,
        quiet: Vec<(&'a str, &'a str, &'a str)>,
    }
    CallsHtml "calls.html" {
        form: &'a Form,
        ends: &'static [&'static str],
        calls: Option<Calls>,
        next: String,
    }
    UsageHtml "usage.html" {
        form: &'a Form,
        total: Option<Sums>,
        plot: Plot,
        tables: Vec<(&'static str, Vec<(String, Sums)>)>,
    }
    VendorsHtml "vendors.html" { vendors: Vec<Vendor> }
    PricesHtml "prices.html" {
        days: u64,
        days_max: u64,
        now_has: String,
        then_has: String,
        sold: Vec<WhatIf>,
        version: u64,
        since: String,
        rate: Option<String>,
        rows: Vec<PriceRow>,
        former: Vec<Former>,
    }
    AuditHtml "audit.html" { breaches: Vec<&'a str>, facts: Option<Vec<(&'a str, String)>> }
}
