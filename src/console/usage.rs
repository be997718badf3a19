//! The usage page: charges by day, model, vendor, key and group, compared with the previous period.

use std::{cmp::Reverse, collections::HashMap};

use askama::Template;
use futures_util::future::try_join;
use tollgate_layers::reserve::ledger::AccountView;

use super::{
    Answer, Visit,
    api::{Failed, Refused},
    form::Form,
    pages::{DAY_MS, DAYS_BACK_MAX, Frame, status_of, written},
    plots::{self, Plot},
    shown,
    texts::{english, translated},
    views::{Sums, UsageRow, Usages, micro},
};
use crate::{
    admin::Refusal,
    text::time::{day, now_ms, parse_rfc3339_ms},
};

/// The number of days that the page shows if the query names no dates.
const DAYS_SHOWN: u64 = 30;
const BY_DAY: &str = "day";
/// The columns by which a table can be sorted, with their titles.
const SORTS: [(&str, &str); 5] = [
    ("calls", english("Calls")),
    ("input", english("Input tokens")),
    ("output", english("Output tokens")),
    ("charged", english("Charged, ₽")),
    ("margin", english("Margin, ₽")),
];

#[derive(Template)]
#[template(path = "usage.html")]
struct UsageHtml<'a> {
    page: Frame<'a>,
    form: &'a Form,
    accounts: Vec<AccountView>,
    total: Option<Sums>,
    /// The charges of the previous period if it is compared, and the change in percent.
    total_before: Option<(String, String)>,
    plot: Option<Plot>,
    tables: Vec<Table>,
    /// The page's query without the order of its tables.
    query: String,
}

impl UsageHtml<'_> {
    /// Returns the columns: the word in the query, the title, and whether the tables are sorted by this column.
    fn columns(&self) -> [(&'static str, &'static str, bool); 5] {
        SORTS.map(|(word, title)| (word, title, self.form.get("sort") == word))
    }
}

/// A table of sums grouped by one field.
struct Table {
    title: &'static str,
    is_by_day: bool,
    rows: Vec<Row>,
}

struct Row {
    name: String,
    sums: Sums,
    before_rub: Option<String>,
    /// The change against the previous period in percent; empty if nothing was charged in that period.
    change: String,
    /// The row's charge, in percent of the largest charge in the table.
    bar: i128,
    /// The charge of the previous period, in percent of the largest charge in the table.
    mark: i128,
}

/// The period of a usage report.
#[derive(Clone, Copy)]
struct Period {
    from_ms: u64,
    /// The end of the period, exclusive.
    until_ms: u64,
}

impl Period {
    fn new(form: &Form, now: u64) -> Self {
        let asked = |name| parse_rfc3339_ms(form.get(name));
        let tomorrow = now - now % DAY_MS + DAY_MS;
        let until_ms = asked("until").map_or(tomorrow, |until| until.min(tomorrow));
        let default = tomorrow.saturating_sub(DAYS_SHOWN * DAY_MS);
        Self {
            from_ms: asked("since").unwrap_or(default),
            until_ms,
        }
    }

    fn length_ms(&self) -> u64 {
        self.until_ms.saturating_sub(self.from_ms)
    }

    /// Returns whether the period is short enough to be drawn and compared.
    fn is_compared(&self) -> bool {
        let most = DAYS_BACK_MAX * DAY_MS;
        self.length_ms() > 0 && self.length_ms() <= most && self.length_ms() <= self.from_ms
    }

    /// Returns the previous period, which has the same length.
    fn before(&self) -> Self {
        Self {
            from_ms: self.from_ms.saturating_sub(self.length_ms()),
            until_ms: self.from_ms,
        }
    }

    fn days(&self) -> Vec<String> {
        plots::days(self.from_ms, self.until_ms.saturating_sub(1))
    }
}

impl Visit {
    pub(super) async fn usage(&self) -> Result<Answer, Failed> {
        let form = &self.form;
        let period = Period::new(form, now_ms());
        let mut groups = vec![
            (BY_DAY, english("By day")),
            ("model", english("By model")),
            ("vendor", english("By vendor")),
        ];
        if !form.get("account").is_empty() {
            // Keys and groups are shown only for a single account: all accounts together have too many keys, and group
            // ids are unique only within an account.
            groups.extend([
                ("key", english("By key")),
                ("group", english("By key group")),
            ]);
        }
        let (mut total, mut tables, mut plot, mut problem) = (None, Vec::new(), None, None);
        let mut total_before = None;
        let names: Vec<&str> = groups.iter().map(|(group, _)| *group).collect();
        let reports = self.reports(&names.join(";"), &period).await?;
        let reports = reports.unwrap_or_else(|refused| {
            problem = Some(refused);
            Vec::new()
        });
        for ((group, title), (now, before)) in groups.into_iter().zip(reports) {
            if group == "group" && now.rows.iter().all(|row| row.group.is_none()) {
                continue;
            }
            if group == BY_DAY {
                plot = self.day_plot(&period, &now, before.as_ref());
                total_before = before.as_ref().map(|it| {
                    let before = it.total.charged_rub.clone();
                    let change = change(&now.total.charged_rub, &before);
                    (before, change)
                });
            }
            total = Some(now.total);
            tables.push(self.table(title, group == BY_DAY, &period, now.rows, before));
        }
        let problem = problem.as_ref();
        let query = form.query(&["account", "since", "until"]);
        let mut page = self.frame("Usage", "Usage", problem);
        page.kept_query = form.query(&["account", "since", "until", "sort"]) + "&";
        let html = UsageHtml {
            page,
            form,
            accounts: self.offered_accounts().await?,
            total,
            total_before,
            plot,
            tables,
            query,
        };
        Ok(written(status_of(problem), &html))
    }

    /// For each of the groups, returns the report of the period, and the report of the previous period if the two are
    /// compared.
    async fn reports(
        &self,
        groups: &str,
        period: &Period,
    ) -> Result<Result<Vec<(Usages, Option<Usages>)>, Refused>, Refusal> {
        let mut query = self.form.query(&["account", "since", "until"]);
        if self.form.get("since").is_empty() {
            query = format!("{query}&since={}", day(period.from_ms));
        }
        let now = self.grouped(groups, &query);
        if !period.is_compared() {
            let now = now.await?;
            return Ok(now.map(|now| now.into_iter().map(|now| (now, None)).collect()));
        }
        let Period { from_ms, until_ms } = period.before();
        let account = self.form.query(&["account"]);
        let query = format!("{account}&since={}&until={}", day(from_ms), day(until_ms));
        let (now, before) = try_join(now, self.grouped(groups, &query)).await?;
        Ok(now.and_then(|now| Ok(now.into_iter().zip(before?.into_iter().map(Some)).collect())))
    }

    async fn grouped(
        &self,
        groups: &str,
        query: &str,
    ) -> Result<Result<Vec<Usages>, Refused>, Refusal> {
        let path = format!("/admin/v1/usage?{query}&group={groups}");
        self.api.list(&path).await
    }

    fn day_plot(&self, period: &Period, now: &Usages, before: Option<&Usages>) -> Option<Plot> {
        let charged = |usages: &Usages| -> Vec<(String, String)> {
            let rows = usages.rows.iter();
            rows.map(|row| (row.time().to_owned(), row.sums.charged_rub.clone()))
                .collect()
        };
        let days = charged(now);
        let (first, _) = days.first()?;
        // If the period is too long to be plotted, the plot begins with the first day that has calls.
        let drawn = match period.length_ms() > DAYS_BACK_MAX * DAY_MS {
            true => Period {
                from_ms: parse_rfc3339_ms(first)?,
                ..*period
            },
            false => *period,
        };
        let found: HashMap<String, String> = before.map(charged).into_iter().flatten().collect();
        let earlier = period.before().days().into_iter();
        let earlier: Vec<String> = match before {
            Some(_) => earlier
                .map(|day| found.get(&day).cloned().unwrap_or_default())
                .collect(),
            None => Vec::new(),
        };
        let title = english("Charged by day, ₽");
        Some(Plot::compared(
            title,
            &drawn.days(),
            &days,
            &earlier,
            self.language,
        ))
    }

    fn table(
        &self,
        title: &'static str,
        is_by_day: bool,
        period: &Period,
        rows: Vec<UsageRow>,
        before: Option<Usages>,
    ) -> Table {
        let none = translated(english("none"), self.language);
        let is_compared = before.is_some();
        let before = before.into_iter().flat_map(|it| it.rows);
        let before: HashMap<String, String> = before
            .map(|row| (name(&row, none), row.sums.charged_rub))
            .collect();
        // A day is compared with the corresponding day of the previous period. Any other row is compared with the row
        // of the same name.
        let places: HashMap<String, String> = match is_by_day {
            true => period
                .days()
                .into_iter()
                .zip(period.before().days())
                .collect(),
            false => HashMap::new(),
        };
        let row = |row: UsageRow| {
            let name = name(&row, none);
            let earlier = before.get(places.get(&name).unwrap_or(&name)).cloned();
            let earlier = earlier.or_else(|| is_compared.then(|| "0.00".to_owned()));
            let now = &row.sums.charged_rub;
            Row {
                change: earlier
                    .as_ref()
                    .map_or_else(String::new, |before| change(now, before)),
                before_rub: earlier,
                sums: row.sums,
                name,
                bar: 0,
                mark: 0,
            }
        };
        let mut rows: Vec<Row> = rows.into_iter().map(row).collect();
        let charges = |row: &Row| {
            let before = row.before_rub.as_deref().map_or(0, micro);
            [micro(&row.sums.charged_rub), before]
        };
        let most = rows.iter().flat_map(charges).max().unwrap_or(0).max(1);
        for row in &mut rows {
            [row.bar, row.mark] = charges(row).map(|micro| micro.max(0) * 100 / most);
        }
        self.sort(&mut rows);
        Table {
            title,
            is_by_day,
            rows,
        }
    }

    /// Sorts rows by the column that the query names, largest first. If the query names no column, the rows stay sorted
    /// by name.
    fn sort(&self, rows: &mut [Row]) {
        let value: fn(&Sums) -> i128 = match self.form.get("sort") {
            "calls" => |sums| sums.calls.into(),
            "input" => |sums| sums.usage.input_total().into(),
            "output" => |sums| sums.usage.output.into(),
            "charged" => |sums| micro(&sums.charged_rub),
            "margin" => |sums| sums.margin_rub.as_deref().map_or(i128::MIN, micro),
            _ => return,
        };
        rows.sort_by_key(|row| Reverse(value(&row.sums)));
    }
}

fn name(row: &UsageRow, none: &str) -> String {
    let names = [&row.day, &row.model, &row.vendor, &row.key, &row.group];
    let name = names.into_iter().flatten().next();
    name.cloned().unwrap_or_else(|| none.to_owned())
}

/// Returns the change of a charge in percent; empty if the earlier charge was zero.
fn change(now: &str, before: &str) -> String {
    let (now, before) = (micro(now), micro(before));
    if before <= 0 {
        return String::new();
    }
    shown::change((now - before) * 100 / before)
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOON: u64 = 1_795_953_600_000; // 2026-11-29, 12:00

    #[test]
    fn previous_period_ends_where_the_reported_one_begins_and_has_as_many_days() {
        for (query, days, first, before) in [
            ("", 30, "2026-10-31", "2026-10-01"),
            ("since=2026-11-01", 29, "2026-11-01", "2026-10-03"),
            (
                "since=2026-11-01&until=2026-11-08",
                7,
                "2026-11-01",
                "2026-10-25",
            ),
            (
                "since=2026-11-28&until=2027-01-01",
                2,
                "2026-11-28",
                "2026-11-26",
            ),
        ] {
            let period = Period::new(&Form::parse(query), NOON);
            let all = period.days();
            assert_eq!((all.len(), &*all[0]), (days, first), "{query}");
            let earlier = period.before().days();
            assert_eq!((earlier.len(), &*earlier[0]), (days, before), "{query}");
            assert!(period.is_compared());
        }
        for query in ["since=2020-01-01", "since=2026-11-08&until=2026-11-01"] {
            let period = Period::new(&Form::parse(query), NOON);
            assert!(!period.is_compared(), "{query}");
        }
    }

    #[test]
    fn usage_change_is_shown_in_whole_percent() {
        for (now, before, shown) in [
            ("15.00", "10.00", "+50\u{a0}%"),
            ("5.00", "10.00", "−50\u{a0}%"),
            ("10.001", "10.00", "0\u{a0}%"),
            ("5.00", "0.00", ""),
        ] {
            assert_eq!(change(now, before), shown);
        }
    }
}
