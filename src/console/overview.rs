//! The overview page: sums over all accounts, sales by hour, day and month, and the state of this node.

use askama::Template;
use futures_util::future::try_join_all;
use serde_json::Value;
use tollgate_layers::{money::MicroRub, reserve::ledger::AccountView};

use super::{
    Answer, Visit,
    api::{Failed, Refused},
    pages::{DAY_MS, Frame, HOUR_MS, status_of, written},
    plots::{self, Course, Span},
    texts::english,
    views::{Counters, Total, UsageRow, Usages, Vendor},
};
use crate::text::{
    percent::encoded,
    rubles::Rubles,
    time::{day, now_ms},
};

const HOURS_PLOTTED: u64 = 24;
const DAYS_PLOTTED: u64 = 30;
/// 334 days in milliseconds. The time 334 days before any day of a month is in the month eleven months earlier.
const YEAR_MS: u64 = 334 * DAY_MS;

/// Sums over periods, and the plots of these sums over time.
type Sold = (Vec<(&'static str, Total)>, Vec<Course>);

#[derive(Template)]
#[template(path = "overview.html")]
struct OverviewHtml<'a> {
    page: Frame<'a>,
    ready: String,
    accounts: u64,
    balance: String,
    held: String,
    spent: String,
    loss: String,
    sold: Vec<(&'static str, Total)>,
    courses: Vec<Course>,
    node: Counters,
    /// The vendor, the model and the state of each route that does not answer.
    quiet: Vec<(&'a str, &'a str, &'a str)>,
}

/// A report that the overview plots, with the names of its hours, days or months (`times`), and those of the previous
/// period (`before`).
struct Drawn {
    group: &'static str,
    span: &'static Span,
    times: Vec<String>,
    before: Vec<String>,
}

impl Drawn {
    /// Returns the reports of the last hours, the last days and the last months.
    fn all(now: u64) -> [Self; 3] {
        let today = now - now % DAY_MS;
        let hour = now - now % HOUR_MS - (HOURS_PLOTTED - 1) * HOUR_MS;
        let first_day = today.saturating_sub((DAYS_PLOTTED - 1) * DAY_MS);
        let months = plots::months(today.saturating_sub(YEAR_MS), now);
        [
            Self {
                group: "hour",
                span: plots::HOURS,
                times: plots::hours(hour, now),
                before: plots::hours(
                    hour.saturating_sub(HOURS_PLOTTED * HOUR_MS),
                    hour.saturating_sub(1),
                ),
            },
            Self {
                group: "day",
                span: plots::DAYS,
                times: plots::days(first_day, now),
                before: plots::days(
                    first_day.saturating_sub(DAYS_PLOTTED * DAY_MS),
                    first_day.saturating_sub(1),
                ),
            },
            Self {
                group: "month",
                span: plots::MONTHS,
                before: months.iter().map(|month| year_before(month)).collect(),
                times: months,
            },
        ]
    }

    /// Returns the first time of the previous period, in the form that the API accepts.
    fn since(&self) -> String {
        let first = self.before.first().map_or("", String::as_str);
        match self.group {
            "month" => format!("{first}-01"),
            _ => first.to_owned(),
        }
    }
}

/// Returns the same month of the previous year.
fn year_before(month: &str) -> String {
    let (year, month) = month.split_once('-').unwrap_or_default();
    format!("{:04}-{month}", year.parse::<u32>().unwrap_or(1) - 1)
}

impl Visit {
    pub(super) async fn overview(&self, problem: Option<&Refused>) -> Result<Answer, Failed> {
        let accounts: Vec<AccountView> = self.api.list("/admin/v1/accounts").await??;
        let vendors: Vec<Vendor> = self.api.list("/admin/v1/vendors").await??;
        let node = self.api.counters().await?;
        let readiness = self.api.get::<Value>("/readyz").await?.unwrap_or_default();
        let ready = match readiness["reason"].as_str() {
            Some(reason) => self.fill(english("not ready: {0}"), &[reason]),
            None => english("ready").to_owned(),
        };
        let (sold, courses) = self.sold().await?;
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
            Rubles(micro.sum()).to_string()
        };
        let html = OverviewHtml {
            page: self.frame("Overview", "Overview", problem),
            ready,
            accounts: accounts.len() as u64,
            balance: sum(|account| account.balance_rub),
            held: sum(|account| account.held_rub),
            spent: sum(|account| account.spent_rub),
            loss: sum(|account| account.loss_rub),
            sold,
            courses,
            node,
            quiet,
        };
        Ok(written(status_of(problem), &html))
    }

    /// Returns the sales of all accounts: the sums of today, of this month and of the last twelve months, and the
    /// charts by hour, day and month.
    async fn sold(&self) -> Result<Sold, Failed> {
        let now = now_ms();
        let drawn = Drawn::all(now);
        // The reports are requested concurrently, because each one waits for the ledger.
        let reports = try_join_all(drawn.iter().map(|it| async move {
            let since = encoded(&it.since());
            let path = format!("/admin/v1/usage?group={}&since={since}", it.group);
            self.api.get::<Usages>(&path).await
        }));
        let (mut courses, mut rows) = (Vec::new(), Vec::new());
        for (report, drawn) in reports.await?.into_iter().zip(&drawn) {
            let report = report?.rows;
            let (times, before) = (&drawn.times, &drawn.before);
            let course = Course::new(drawn.span, times, before, &report, self.language);
            courses.push(course);
            let is_now = |row: &UsageRow| times.iter().any(|time| time == row.time());
            rows.extend(report.into_iter().filter(is_now));
        }
        let today = day(now);
        let month = &today[..7];
        let of_day = |row: &&UsageRow| row.day.as_ref() == Some(&today);
        let of_month = |row: &&UsageRow| row.month.as_deref() == Some(month);
        let of_year = |row: &&UsageRow| row.month.is_some();
        let total = |is_in: &dyn Fn(&&UsageRow) -> bool| Total::of(rows.iter().filter(is_in));
        let sold = vec![
            (english("Today"), total(&of_day)),
            (english("This month"), total(&of_month)),
            (english("Last 12 months"), total(&of_year)),
        ];
        Ok((sold, courses))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn previous_period_ends_where_the_plotted_one_begins_and_has_as_many_points() {
        let now = 1_795_953_600_000 + 7 * HOUR_MS; // 2026-11-29, 19:00
        let [hours, days, months] = Drawn::all(now);
        for (drawn, since, last, first) in [
            (
                &hours,
                "2026-11-27T20:00:00Z",
                "2026-11-28T19:00:00Z",
                "2026-11-28T20:00:00Z",
            ),
            (&days, "2026-10-01", "2026-10-30", "2026-10-31"),
            (&months, "2024-12-01", "2025-11", "2025-12"),
        ] {
            assert_eq!(drawn.since(), since);
            assert_eq!(drawn.before.last().unwrap(), last);
            assert_eq!(drawn.times[0], first);
            assert_eq!(drawn.before.len(), drawn.times.len());
        }
    }
}
