//! Renders the pages: gets each page's data from the API, and fills its template.

use std::{borrow::Borrow, fmt};

use askama::Template;
use futures_util::future::try_join_all;
use http::StatusCode;
use serde_json::Value;
use tollgate_layers::{money::MicroRub, reserve::ledger::AccountView, respond::Language};

use super::{
    Answer, Visit,
    api::Refused,
    changes::{self, Change},
    events,
    form::Form,
    page, plots,
    plots::{Course, Plot},
    see,
    shown::{self, Safe},
    texts::{chosen, english, filled, translated},
    views::{Accounts, Configuration, Counters, Sums, Total, UsageRow, Usages, Vendor, Vendors},
};
use crate::{
    admin::Refusal,
    endpoints::page::{HTML, say},
    operators::Right,
    text::{
        percent::encoded,
        time::{day, now_ms, parse_rfc3339_ms, rfc3339},
    },
};

pub(super) const HOUR_MS: u64 = 3_600_000;
pub(crate) const DAY_MS: u64 = 24 * HOUR_MS;
const DAYS_SUMMED_MS: u64 = 29 * DAY_MS;
const YEAR_MS: u64 = 334 * DAY_MS;
const HOURS_PLOTTED: u64 = 24;
/// The maximum number of days that a page computes or draws.
pub(super) const DAYS_BACK_MAX: u64 = 366;
/// The frame that all pages share: title, navigation, messages.
pub(crate) struct Frame<'a> {
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
    /// The part of the query that a choice of language keeps; empty, or ends in `&`.
    pub(crate) kept_query: String,
}

impl Frame<'_> {
    /// Returns the frame of pages before anybody has signed in.
    pub(crate) fn bare(title: &'static str, problem: Option<&'static str>) -> Self {
        Self {
            title: title.to_owned(),
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

    /// Returns the code of the page's language.
    pub(crate) const fn code(&self) -> &'static str {
        say(self.language, "ru", "en")
    }

    /// Returns the languages to choose from: code, name, and whether it is the language of the page.
    pub(crate) fn languages(&self) -> [(&'static str, &'static str, bool); 2] {
        [("ru", "Русский"), ("en", "English")].map(|(code, name)| (code, name, code == self.code()))
    }

    /// Returns a text in the page's language.
    pub(crate) fn t<'t>(&self, text: &'t str) -> &'t str {
        translated(text, self.language)
    }

    /// Fills a text with one value.
    pub(crate) fn fill(&self, text: &str, value: impl fmt::Display) -> String {
        filled(text, self.language, &[&value])
    }

    /// Fills a text with two values.
    pub(crate) fn fill2(
        &self,
        text: &str,
        first: impl fmt::Display,
        second: impl fmt::Display,
    ) -> String {
        filled(text, self.language, &[&first, &second])
    }

    /// Encodes a name as a segment of a path.
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

    /// Returns the entries of the navigation: path, name, and whether the page belongs to the entry.
    pub(crate) fn nav(&self) -> [(&'static str, &'static str, bool); 10] {
        [
            ("/", english("Overview")),
            ("/console/accounts", english("Accounts")),
            ("/console/payments", english("Payments")),
            ("/console/calls", english("Calls")),
            ("/console/usage", english("Usage")),
            ("/console/vendors", english("Vendors")),
            ("/console/prices", english("Models and prices")),
            ("/console/events", english("Events")),
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

pub(super) fn written(status: StatusCode, template: &impl Template) -> Answer {
    let text = template.render().expect("only text is written");
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
    /// The operator has signed out of the console, and may still be signed in at the provider.
    Left,
}

/// Returns the page that is shown when the browser comes back from the provider. The page itself loads the console: a
/// browser sends the new cookie (SameSite=Strict) with requests that a page of this site starts, but not with redirects
/// that another site started.
pub(super) fn arrived() -> Answer {
    let page = Frame::bare(english("Signed in"), None);
    written(StatusCode::OK, &ArrivedHtml { page })
}

/// Shows a page with nothing but a message.
pub(super) fn message_page(status: StatusCode, problem: &'static str) -> Answer {
    let page = Frame::bare(english("Not done"), Some(problem));
    written(status, &MessageHtml { page })
}

impl Visit {
    /// Returns the page of a path. If a change was posted to the path, makes the change first.
    pub(super) async fn answer(self, segments: &[&str]) -> Result<Answer, Refusal> {
        let mut problem = None;
        if self.posted && segments == ["console", "configuration"] {
            return self.configure().await;
        }
        let mut made = None;
        let change = if self.posted && changes::is_unconfirmed(&self.form) {
            problem = Some(Refused {
                status: StatusCode::UNPROCESSABLE_ENTITY,
                text: english(
                    "Nothing was changed. This cannot be undone: tick the box to confirm.",
                )
                .into(),
            });
            None
        } else if self.posted {
            match changes::wanted(segments, &self.form) {
                Some(change) => Some(change),
                None => return Ok(self.refused(english("Not done"), &unknown())),
            }
        } else {
            None
        };
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
                Ok(answer) if matches!(done, "tested" | "invited") => made = Some(answer),
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
            ["console", "accounts", id, "statements"] => self.statement(id).await?,
            ["console", "accounts", id, "statements", file] => {
                self.statement_file(id, file).await?
            }
            ["console", "keys", id] => self.key(id, problem).await?,
            ["console", "payments"] => self.payments().await?,
            ["console", "payments.csv"] => self.payments_csv().await?,
            ["console", "calls"] => self.calls().await?,
            ["console", "calls.csv"] => self.calls_csv().await?,
            ["console", "calls", number] => self.call(number).await?,
            ["console", "usage"] => self.usage().await?,
            ["console", "vendors"] => self.vendors(problem).await?,
            ["console", "vendors", name] => self.vendor(name, problem, made).await?,
            ["console", "models", id] => self.model(id).await?,
            ["console", "prices"] => self.prices().await?,
            ["console", "events"] => self.events(problem).await?,
            ["console", "audit"] => Ok(self.audit(problem, None)),
            ["console", "operators"] => self.operators(problem, made).await?,
            _ => Err(unknown()),
        };
        Ok(shown.unwrap_or_else(|refused| {
            // The refusal of the change takes precedence, because the change may have been made.
            let refused = problem.unwrap_or(&refused);
            let title = match refused.status {
                StatusCode::NOT_FOUND => english("Not found"),
                _ => english("Cannot be shown"),
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
            done: changes::reported(done),
            rights: [Right::Money, Right::Support, Right::Everything].map(|right| role.may(right)),
            language: self.language,
            kept_query: String::new(),
        }
    }

    /// Shows a page with a refusal of the admin API.
    pub(super) fn refused(&self, title: &'static str, refused: &Refused) -> Answer {
        let page = self.frame(title, "", Some(refused));
        written(refused.status, &MessageHtml { page })
    }

    async fn overview(
        &self,
        problem: Option<&Refused>,
    ) -> Result<Result<Answer, Refused>, Refusal> {
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
            Some(reason) => self.fill(english("not ready: {0}"), &[reason]),
            None => english("ready").to_owned(),
        };
        let (sold, courses) = match self.sold().await? {
            Ok(sold) => sold,
            Err(refused) => return Ok(Err(refused)),
        };
        let mut quiet = Vec::new();
        for vendor in &vendors {
            for route in vendor.routes.iter().filter(|route| !route.is_well()) {
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
                accounts: accounts.len() as u64,
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

    /// Returns the sales of all accounts: today, this month, within a year; and by hour, day and month.
    async fn sold(&self) -> Result<Result<Sold, Refused>, Refusal> {
        let now = now_ms();
        let today = now - now % DAY_MS;
        let first_hour = now - now % HOUR_MS - (HOURS_PLOTTED - 1) * HOUR_MS;
        let first_day = today.saturating_sub(DAYS_SUMMED_MS);
        let year_ago = today.saturating_sub(YEAR_MS);
        let month = &day(now)[..7];
        // The year begins with the first day of a month.
        let first_month = format!("{}-01", &day(year_ago)[..7]);
        let requested = [
            ("hour", plots::HOURS, rfc3339(first_hour)),
            ("day", plots::DAYS, day(first_day)),
            ("month", plots::MONTHS, first_month),
        ];
        let times = [
            plots::hours(first_hour, now),
            plots::days(first_day, now),
            plots::months(year_ago, now),
        ];
        // The reports are requested concurrently, because each one waits for the ledger.
        let reports = try_join_all(requested.map(|(group, span, since)| async move {
            let path = format!("/admin/v1/usage?group={group}&since={}", encoded(&since));
            Ok::<_, Refusal>((span, self.api.get::<Usages>(&path).await?))
        }));
        let (mut courses, message_page) = (Vec::new(), reports.await?);
        let mut reports = Vec::new();
        for ((span, report), times) in message_page.into_iter().zip(times) {
            let rows = match report {
                Ok(report) => report.rows,
                Err(refused) => return Ok(Err(refused)),
            };
            courses.push(Course::new(span, &times, &rows, self.language));
            reports.extend(rows);
        }
        let today = day(now);
        let of_day = |row: &&UsageRow| row.day.as_ref() == Some(&today);
        let of_month = |row: &&UsageRow| row.month.as_deref() == Some(month);
        let of_year = |row: &&UsageRow| row.month.is_some();
        let sold = vec![
            (english("Today"), Total::of(reports.iter().filter(of_day))),
            (
                english("This month"),
                Total::of(reports.iter().filter(of_month)),
            ),
            (
                english("Last 12 months"),
                Total::of(reports.iter().filter(of_year)),
            ),
        ];
        Ok(Ok((sold, courses)))
    }

    async fn usage(&self) -> Result<Result<Answer, Refused>, Refusal> {
        let form = &self.form;
        let (mut total, mut days, mut tables) = (None, Vec::new(), Vec::new());
        let mut problem = None;
        let mut query = form.query(&["account", "since", "until"]);
        let now = now_ms();
        if form.get("since").is_empty() {
            let since = day(now.saturating_sub(DAYS_SUMMED_MS));
            query = format!("{query}&since={since}");
        }
        let mut groups = vec![("day", english("By day")), ("model", english("By model"))];
        if !form.get("account").is_empty() {
            // Group ids are unique only within an account.
            groups.push(("group", english("By group of keys")));
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
                (
                    name.unwrap_or_else(|| translated(english("none"), self.language).to_owned()),
                    row.sums,
                )
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
        let asked_ms = |name| parse_rfc3339_ms(form.get(name));
        let sold = days.iter().filter_map(|(day, _)| parse_rfc3339_ms(day));
        // A range of up to a year is drawn from its requested first day; a longer range is drawn from the first day
        // with calls.
        let from = asked_ms("since").unwrap_or(now.saturating_sub(DAYS_SUMMED_MS));
        let until = asked_ms("until").map_or(now, |until| until.saturating_sub(1).min(now));
        let from = match sold.min() {
            Some(first) if until.saturating_sub(from) > DAYS_BACK_MAX * DAY_MS => first,
            _ => from,
        };
        let times = plots::days(from, until);
        let problem = problem.as_ref();
        Ok(Ok(written(
            status_of(problem),
            &UsageHtml {
                page: self.frame("Usage", "Usage", problem),
                form,
                accounts: self.offered_accounts().await?,
                total,
                plot: (!days.is_empty()).then(|| {
                    Plot::charged(english("Charged by day, ₽"), &times, &days, self.language)
                }),
                tables,
            },
        )))
    }

    async fn vendors(&self, problem: Option<&Refused>) -> Result<Result<Answer, Refused>, Refusal> {
        let vendors = match self.api.get::<Vendors>("/admin/v1/vendors").await? {
            Ok(Vendors { vendors }) => vendors,
            Err(refused) => return Ok(Err(refused)),
        };
        let page = self.frame("Vendors", "Vendors", problem);
        // A gateway without a file has no configuration to change.
        let configuration = self.configuration().await?.ok();
        Ok(Ok(written(
            status_of(problem),
            &VendorsHtml {
                page,
                vendors,
                configuration,
            },
        )))
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
                    (name.replace('_', " "), value)
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

pub(super) fn unknown() -> Refused {
    Refused {
        status: StatusCode::NOT_FOUND,
        text: english("Page not found.").into(),
    }
}

pub(super) fn status_of(problem: Option<&Refused>) -> StatusCode {
    problem.map_or(StatusCode::OK, |refused| refused.status)
}

/// Sums over spans of time, and the plots of their development.
type Sold = (Vec<(&'static str, Total)>, Vec<Course>);

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
    MessageHtml "told.html" {}
    OverviewHtml "overview.html" {
        ready: String,
        accounts: u64,
        balance: String,
        held: String,
        spent: String,
        loss: String,
        sold: Vec<(&'static str, Total)>,
        courses: Vec<Course>,
        node: Counters,
        quiet: Vec<(&'a str, &'a str, &'a str)>,
    }
    UsageHtml "usage.html" {
        form: &'a Form,
        accounts: Vec<AccountView>,
        total: Option<Sums>,
        plot: Option<Plot>,
        tables: Vec<(&'static str, Vec<(String, Sums)>)>,
    }
    VendorsHtml "vendors.html" { vendors: Vec<Vendor>, configuration: Option<Configuration> }
    AuditHtml "audit.html" { breaches: Vec<&'a str>, facts: Option<Vec<(String, String)>> }
}
