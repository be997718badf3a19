//! The list of all calls: receipts of the ledger, and calls without a receipt of which this gateway has a record,
//! merged by time; as a page and as CSV.

use std::cmp::Reverse;

use askama::Template;
use serde::Deserialize;
use tollgate_layers::{money::MicroRub, reserve::ledger::AccountView, usage::Usage};

use super::{
    Answer, Visit,
    api::Refused,
    download,
    form::Form,
    pages::{DAY_MS, Frame, status_of, written},
    see,
    texts::english,
};
use crate::{
    admin::Refusal,
    ledger::latest::ReceiptsCursor,
    text::{
        csv,
        percent::encoded,
        time::{day, now_ms, parse_rfc3339_ms},
    },
};

/// The states of calls: the API's name, and words for people. Calls with the last three states have no receipt.
const STATES: [(&str, &str); 8] = [
    ("finished", english("finished")),
    ("client_left", english("client disconnected")),
    ("vendor_cut", english("cut off by the vendor")),
    ("vendor_error", english("vendor error")),
    ("gateway_stopped", english("gateway stopped")),
    ("refused", english("refused")),
    ("released", english("cost nothing")),
    ("running", english("running")),
];
/// How many of `STATES` are ends of calls that have a receipt.
const ENDS: usize = 5;
const FILTERS: [&str; 9] = [
    "account", "key", "model", "vendor", "session", "end", "code", "since", "until",
];
/// Value of a cursor whose list has ended.
const ENDED: &str = "ended";
/// The maximum number of receipts, and of calls without a receipt, on a page of the console.
const ON_A_PAGE: usize = 50;
/// The maximum number of receipts, and of calls without a receipt, that one step of the CSV reads: the most that the
/// API returns.
const IN_A_STEP: usize = 500;
/// The maximum number of calls in a CSV file.
const CSV_ROWS_MAX: usize = 10_000;

/// Returns the state in words, to be translated.
pub(crate) fn state_in_words(state: &str) -> &str {
    let found = STATES.iter().find(|(name, _)| *name == state);
    found.map_or(state, |(_, words)| words)
}

/// A call in the list: with a receipt, or without one.
pub(super) struct Row {
    /// When the call was booked, or, without a receipt, when it arrived; in Unix milliseconds.
    at_ms: u64,
    pub(super) at: String,
    pub(super) number: String,
    pub(super) account: Option<String>,
    pub(super) key: Option<String>,
    pub(super) model: Option<String>,
    pub(super) vendor: Option<String>,
    pub(super) session: Option<String>,
    state: String,
    /// The status with which a call without a receipt was answered.
    pub(super) status: Option<u16>,
    /// The code of the error with which the call was refused.
    pub(super) code: Option<String>,
    pub(super) error: Option<String>,
    pub(super) usage: Option<Usage>,
    pub(super) charged_rub: Option<MicroRub>,
    pub(super) margin_rub: Option<MicroRub>,
}

impl Row {
    pub(super) fn words(&self) -> &str {
        state_in_words(&self.state)
    }

    pub(super) fn is_bad(&self) -> bool {
        !matches!(&*self.state, "finished" | "running")
    }

    fn csv(&self) -> String {
        let text = |text: &Option<String>| csv::shown(text.as_deref().unwrap_or_default());
        let number = |number: Option<u64>| number.map_or_else(String::new, |it| it.to_string());
        let rubles =
            |amount: Option<MicroRub>| amount.map_or_else(String::new, |it| it.to_string());
        let usage = self.usage.as_ref();
        [
            csv::shown(&self.number),
            csv::shown(&self.at),
            text(&self.account),
            text(&self.key),
            text(&self.model),
            text(&self.vendor),
            text(&self.session),
            csv::shown(&self.state),
            number(self.status.map(u64::from)),
            text(&self.code),
            text(&self.error),
            number(usage.map(Usage::input_total)),
            number(usage.map(|usage| usage.output)),
            rubles(self.charged_rub),
            rubles(self.margin_rub),
        ]
        .join(",")
    }
}

const CSV_HEAD: &str = "number,at,account,key,model,vendor,session,state,status,code,error,input_tokens,output_tokens,\
    charged_rub,margin_rub";

#[derive(Deserialize)]
struct Receipts {
    receipts: Vec<Booked>,
    next: Option<String>,
    searched_since: Option<String>,
}

#[derive(Deserialize)]
struct Booked {
    number: String,
    at: String,
    account: String,
    key: String,
    model: String,
    vendor: String,
    end: String,
    charged_rub: MicroRub,
    margin_rub: Option<MicroRub>,
    session: Option<String>,
    usage: Usage,
}

#[derive(Deserialize)]
struct Unbooked {
    calls: Vec<WithoutReceipt>,
    next: Option<String>,
}

#[derive(Deserialize)]
struct WithoutReceipt {
    number: String,
    at: String,
    state: String,
    account: Option<String>,
    key: Option<String>,
    model: Option<String>,
    session: Option<String>,
    vendor: Option<String>,
    status: Option<u16>,
    code: Option<String>,
    error: Option<String>,
}

impl From<Booked> for Row {
    fn from(call: Booked) -> Self {
        Self {
            at_ms: parse_rfc3339_ms(&call.at).unwrap_or(0),
            at: call.at,
            number: call.number,
            account: Some(call.account),
            key: Some(call.key),
            model: Some(call.model),
            vendor: Some(call.vendor),
            session: call.session,
            state: call.end,
            status: None,
            code: None,
            error: None,
            usage: Some(call.usage),
            charged_rub: Some(call.charged_rub),
            margin_rub: call.margin_rub,
        }
    }
}

impl From<WithoutReceipt> for Row {
    fn from(call: WithoutReceipt) -> Self {
        Self {
            at_ms: parse_rfc3339_ms(&call.at).unwrap_or(0),
            at: call.at,
            number: call.number,
            account: call.account,
            key: call.key,
            model: call.model,
            vendor: call.vendor,
            session: call.session,
            state: call.state,
            status: call.status,
            code: call.code,
            error: call.error,
            usage: None,
            charged_rub: None,
            margin_rub: None,
        }
    }
}

/// Where the next page begins in each of the two lists: receipts, and calls without a receipt. Empty: at the latest
/// call.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Cursors {
    receipts: String,
    unbooked: String,
}

impl Cursors {
    fn have_ended(&self) -> bool {
        self.receipts == ENDED && self.unbooked == ENDED
    }
}

/// A page of the merged list, latest first.
struct Merged {
    rows: Vec<Row>,
    next: Cursors,
    /// This page and the pages before it contain all calls since this time.
    searched_since: Option<String>,
}

/// Merges a page of each list. If a list has a next page, its older calls are not known yet, so older rows of the other
/// list are left for the next merged page.
fn merge(receipts: Receipts, unbooked: Unbooked, from: &Cursors) -> Merged {
    let searched_ms = |since: &Option<String>| {
        let ms = since.as_deref().and_then(parse_rfc3339_ms);
        ms.unwrap_or(0)
    };
    let booked_since_ms = match receipts.next {
        Some(_) => searched_ms(&receipts.searched_since),
        None => 0,
    };
    let booked: Vec<Row> = receipts.receipts.into_iter().map(Row::from).collect();
    let others: Vec<Row> = unbooked.calls.into_iter().map(Row::from).collect();
    let others_since_ms = match unbooked.next {
        Some(_) => others.last().map_or(0, |call| call.at_ms),
        None => 0,
    };
    // If the page of receipts ends at a later time than the other list's page, all of its receipts are shown now.
    let receipts_since_ms = match others_since_ms > booked_since_ms {
        true => others_since_ms,
        false => 0,
    };
    let split = |rows: Vec<Row>, since_ms: u64| -> (Vec<Row>, bool) {
        let all = rows.len();
        let shown = rows.into_iter().filter(|row| row.at_ms >= since_ms);
        let shown: Vec<Row> = shown.collect();
        let has_waiting = shown.len() < all;
        (shown, has_waiting)
    };
    let (mut rows, receipts_wait) = split(booked, receipts_since_ms);
    let (others, others_wait) = split(others, booked_since_ms);
    let next = Cursors {
        receipts: match (receipts_wait, receipts.next) {
            // Receipts that are left for the next page are read again there.
            (true, _) => ReceiptsCursor::before(receipts_since_ms).to_string(),
            (false, next) => next.unwrap_or_else(|| ENDED.to_owned()),
        },
        unbooked: match (others_wait, &unbooked.next) {
            (false, None) => ENDED.to_owned(),
            _ => match others.last() {
                Some(last) => last.number.clone(),
                None => from.unbooked.clone(),
            },
        },
    };
    rows.extend(others);
    rows.sort_by_key(|row| Reverse(row.at_ms));
    Merged {
        rows,
        searched_since: receipts.searched_since.filter(|_| !next.have_ended()),
        next,
    }
}

/// A span of time that the page offers: label, first day, and the day after the last.
struct Preset {
    label: &'static str,
    query: String,
    is_chosen: bool,
}

#[derive(Template)]
#[template(path = "calls.html", config = "src/console/templates/askama.toml")]
struct CallsHtml<'a> {
    page: Frame<'a>,
    form: &'a Form,
    accounts: Vec<AccountView>,
    presets: Vec<Preset>,
    states: &'static [(&'static str, &'static str)],
    rows: Option<Vec<Row>>,
    searched_since: Option<String>,
    /// The query of the next page; empty if this is the last page.
    next: String,
    /// The query that the link to the CSV file has.
    query: String,
    csv_rows_max: u64,
}

impl Visit {
    pub(super) async fn calls(&self) -> Result<Result<Answer, Refused>, Refusal> {
        let form = &self.form;
        let number = form.get("number");
        if !number.is_empty() {
            return Ok(Ok(see(&format!("/console/calls/{}", encoded(number)))));
        }
        let from = Cursors {
            receipts: form.get("after").to_owned(),
            unbooked: form.get("before").to_owned(),
        };
        let (found, problem) = match self.merged(&from, ON_A_PAGE).await? {
            Ok(found) => (Some(found), None),
            Err(refused) => (None, Some(refused)),
        };
        let query = form.query(&FILTERS);
        let (mut rows, mut next, mut searched_since) = (None, String::new(), None);
        if let Some(found) = found {
            if !found.next.have_ended() {
                let Cursors { receipts, unbooked } = &found.next;
                next = format!(
                    "{query}&after={}&before={}",
                    encoded(receipts),
                    encoded(unbooked)
                );
            }
            (rows, searched_since) = (Some(found.rows), found.searched_since);
        }
        let problem = problem.as_ref();
        Ok(Ok(written(
            status_of(problem),
            &CallsHtml {
                page: self.frame(english("Calls"), "Calls", problem),
                form,
                accounts: self.offered_accounts().await?,
                presets: self.presets(),
                states: &STATES,
                rows,
                searched_since,
                next,
                query,
                csv_rows_max: CSV_ROWS_MAX as u64,
            },
        )))
    }

    /// Returns all calls that the filters find, at most [`CSV_ROWS_MAX`]. If there are more, the name of the file has
    /// that limit.
    pub(super) async fn calls_csv(&self) -> Result<Result<Answer, Refused>, Refusal> {
        let (mut from, mut lines) = (Cursors::default(), vec![CSV_HEAD.to_owned()]);
        while !from.have_ended() && lines.len() <= CSV_ROWS_MAX {
            let found = match self.merged(&from, IN_A_STEP).await? {
                Ok(found) => found,
                Err(refused) => return Ok(Err(refused)),
            };
            lines.extend(found.rows.iter().map(Row::csv));
            from = found.next;
        }
        let is_cut = !from.have_ended() || lines.len() > CSV_ROWS_MAX + 1;
        lines.truncate(CSV_ROWS_MAX + 1);
        let name = match is_cut {
            true => format!("calls-newest-{CSV_ROWS_MAX}.csv"),
            false => "calls.csv".to_owned(),
        };
        let mut text = lines.join("\r\n");
        text.push_str("\r\n");
        Ok(Ok(download("text/csv; charset=utf-8", text, &name)))
    }

    /// Returns the calls after `from` that pass the form's filters.
    async fn merged(
        &self,
        from: &Cursors,
        limit: usize,
    ) -> Result<Result<Merged, Refused>, Refusal> {
        let form = &self.form;
        let end = form.get("end");
        let is_end = STATES[..ENDS].iter().any(|(name, _)| *name == end);
        let is_state = STATES[ENDS..].iter().any(|(name, _)| *name == end);
        let query = |names: &[&str], extra: &str| {
            let query = form.query(names);
            format!("{query}&limit={limit}{extra}")
        };
        let after = |cursor: &str| match cursor {
            "" => String::new(),
            cursor => format!("&after={}", encoded(cursor)),
        };
        // A call with a receipt has no code, so receipts are skipped if a code is requested.
        let wants_receipts = !is_state && form.get("code").is_empty() && from.receipts != ENDED;
        let wants_others = !is_end && from.unbooked != ENDED;
        let mut receipts = Receipts {
            receipts: Vec::new(),
            next: None,
            searched_since: None,
        };
        if wants_receipts {
            let query = query(
                &[
                    "account", "key", "model", "vendor", "session", "end", "since", "until",
                ],
                &after(&from.receipts),
            );
            receipts = match self
                .api
                .get::<Receipts>(&format!("/admin/v1/receipts?{query}"))
                .await?
            {
                Ok(receipts) => receipts,
                Err(refused) => return Ok(Err(refused)),
            };
        }
        let mut unbooked = Unbooked {
            calls: Vec::new(),
            next: None,
        };
        if wants_others {
            let state = match is_state {
                true => format!("&state={end}"),
                false => String::new(),
            };
            let query = query(
                &[
                    "account", "key", "model", "vendor", "session", "code", "since", "until",
                ],
                &format!("{state}{}", after(&from.unbooked)),
            );
            unbooked = match self
                .api
                .get::<Unbooked>(&format!("/admin/v1/calls?{query}"))
                .await?
            {
                Ok(unbooked) => unbooked,
                Err(refused) => return Ok(Err(refused)),
            };
        }
        Ok(Ok(merge(receipts, unbooked, from)))
    }

    /// Returns the spans of time that the page offers: today, the last days, this month.
    fn presets(&self) -> Vec<Preset> {
        let today = now_ms() - now_ms() % DAY_MS;
        let days_ago = |days: u64| day(today.saturating_sub(days * DAY_MS));
        let month = format!("{}-01", &day(today)[..7]);
        let others = self.form.query(&[
            "account", "key", "model", "vendor", "session", "end", "code",
        ]);
        [
            (english("All"), String::new()),
            (english("Today"), days_ago(0)),
            (english("7 days"), days_ago(6)),
            (english("30 days"), days_ago(29)),
            (english("This month"), month),
            (english("90 days"), days_ago(89)),
        ]
        .map(|(label, since)| Preset {
            label,
            is_chosen: self.form.get("since") == since && self.form.get("until").is_empty(),
            query: match since.is_empty() {
                true => others.clone(),
                false => format!("{others}&since={since}"),
            },
        })
        .into()
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    /// Returns a page of receipts and a page of calls without a receipt, built from times in seconds.
    fn pages(
        booked: &[u64],
        more: Option<u64>,
        others: &[u64],
        has_more: bool,
    ) -> (Receipts, Unbooked) {
        let at = |second: &u64| format!("2026-11-29T07:00:{second:02}Z");
        let receipts = booked.iter().map(|second| {
            json!({
                "number": format!("r{second}"), "at": at(second), "account": "a", "key": "k", "model": "m",
                "vendor": "v", "end": "finished", "charged_rub": "1", "usage": Usage::default(),
            })
        });
        let calls = others.iter().map(|second| {
            json!({ "number": format!("u{second}"), "at": at(second), "state": "refused" })
        });
        let receipts = json!({
            "receipts": receipts.collect::<Vec<_>>(), "next": more.map(|_| "next"),
            "searched_since": more.as_ref().map(at),
        });
        let next = others.last().filter(|_| has_more);
        let unbooked = json!({
            "calls": calls.collect::<Vec<_>>(), "next": next.map(|second| format!("u{second}")),
        });
        (
            serde_json::from_value(receipts).unwrap(),
            serde_json::from_value(unbooked).unwrap(),
        )
    }

    #[test]
    fn merged_page_of_calls_skips_none_before_the_next_page() {
        let from = Cursors {
            receipts: String::new(),
            unbooked: "u59".to_owned(),
        };
        let before = ReceiptsCursor::before;
        let of = |second: u64| parse_rfc3339_ms(&format!("2026-11-29T07:00:{second:02}Z")).unwrap();
        for ((booked, more, others, has_more), shown, receipts, unbooked) in [
            // Neither list has a further page.
            (
                (&[9, 5][..], None, &[8, 3][..], false),
                "r9 u8 r5 u3",
                ENDED.to_owned(),
                ENDED,
            ),
            // The receipts continue before 5, so refusals before 5 are left for the next page.
            (
                (&[9, 5], Some(5), &[8, 3], false),
                "r9 u8 r5",
                "next".to_owned(),
                "u8",
            ),
            // No receipt was found since 4, and all refusals are older, so the refusals of this page are read again.
            ((&[], Some(4), &[3, 2], false), "", "next".to_owned(), "u59"),
            // The refusals continue before 7, so the next page reads receipts before 7 again.
            (
                (&[9, 5], None, &[8, 7], true),
                "r9 u8 u7",
                before(of(7)).to_string(),
                "u7",
            ),
            // The refusals continue before 6, and the receipts before 2.
            (
                (&[9, 5], Some(2), &[8, 6], true),
                "r9 u8 u6",
                before(of(6)).to_string(),
                "u6",
            ),
            (
                (&[9], Some(2), &[8, 6], true),
                "r9 u8 u6",
                "next".to_owned(),
                "u6",
            ),
            // The page of receipts ends within a second; the next page has the other receipts of that second.
            (
                (&[9, 9], Some(10), &[8], false),
                "r9 r9",
                "next".to_owned(),
                "u59",
            ),
        ] {
            let (of_ledger, of_gateway) = pages(booked, more, others, has_more);
            let merged = merge(of_ledger, of_gateway, &from);
            let numbers: Vec<&str> = merged.rows.iter().map(|row| &*row.number).collect();
            assert_eq!(numbers.join(" "), shown);
            let unbooked = unbooked.to_owned();
            assert_eq!(merged.next, Cursors { receipts, unbooked }, "{shown}");
        }
    }

    #[test]
    fn csv_cells_of_calls_cannot_be_spreadsheet_formulas() {
        let (_, unbooked) = pages(&[], None, &[3], false);
        let mut row = Row::from(unbooked.calls.into_iter().next().unwrap());
        (row.model, row.error) = (Some("=1+1".into()), Some("model \"x\", or none".into()));
        assert_eq!(
            row.csv(),
            "u3,2026-11-29T07:00:03Z,,,'=1+1,,,refused,,,\"model \"\"x\"\", or none\",,,,"
        );
        assert_eq!(
            row.csv().matches(',').count(),
            CSV_HEAD.matches(',').count() + 1
        );
    }
}
