//! The list of all calls: receipts and calls without a receipt, merged by time. It is shown as a page and exported as
//! CSV.

use std::cmp::Reverse;

use askama::Template;
use serde::Deserialize;
use tollgate_layers::{
    facts::RequestNumber, money::MicroRub, reserve::ledger::AccountView, usage::Usage,
};

use super::{
    Answer, Visit,
    api::{Failed, separate_faults},
    download,
    form::Form,
    pages::{DAY_MS, Frame, status_of, written},
    see,
    texts::english,
};
use crate::{
    ledger::latest::ReceiptsCursor,
    text::{
        csv,
        percent::encoded,
        time::{day, now_ms, parse_rfc3339_ms},
    },
};

/// The states of calls: the API's name, and the words that the page shows. Calls in the last three states have no
/// receipt.
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
/// The number of `STATES` in which a call has a receipt.
const ENDS: usize = 5;
const FILTERS: [&str; 9] = [
    "account", "key", "model", "vendor", "session", "end", "code", "since", "until",
];
/// The value of a cursor of a list that has ended.
const ENDED: &str = "ended";
/// The maximum number of receipts on a page of the console, and the maximum number of calls without a receipt.
const ON_A_PAGE: usize = 50;
/// The maximum number of receipts, and of calls without a receipt, that one step of the CSV export reads: the most that
/// the API returns.
const IN_A_STEP: usize = 500;
/// The maximum number of calls in a CSV file.
const CSV_ROWS_MAX: usize = 10_000;

/// Returns the English words for the state, to be translated.
pub(crate) fn state_in_words(state: &str) -> &str {
    let found = STATES.iter().find(|(name, _)| *name == state);
    found.map_or(state, |(_, words)| words)
}

/// A call in the list: with a receipt, or without one.
#[derive(Deserialize)]
pub(super) struct Row {
    /// The time of the booking if the call has a receipt, of the arrival otherwise.
    pub(super) at: String,
    pub(super) number: String,
    pub(super) account: Option<String>,
    pub(super) key: Option<String>,
    pub(super) model: Option<String>,
    pub(super) vendor: Option<String>,
    pub(super) session: Option<String>,
    #[serde(alias = "end")]
    state: String,
    /// The HTTP status that a call without a receipt got.
    pub(super) status: Option<u16>,
    /// The error code with which the call was refused.
    pub(super) code: Option<String>,
    pub(super) error: Option<String>,
    pub(super) usage: Option<Usage>,
    pub(super) charged_rub: Option<MicroRub>,
    pub(super) margin_rub: Option<MicroRub>,
}

impl Row {
    /// Returns the call's time in Unix milliseconds.
    fn at_ms(&self) -> u64 {
        parse_rfc3339_ms(&self.at).unwrap_or(0)
    }

    pub(super) fn words(&self) -> &str {
        state_in_words(&self.state)
    }

    pub(super) fn is_bad(&self) -> bool {
        !matches!(&*self.state, "finished" | "running")
    }

    fn csv(&self) -> String {
        let usage = self.usage.as_ref();
        [
            csv::shown(&self.number),
            csv::shown(&self.at),
            cell(self.account.as_ref()),
            cell(self.key.as_ref()),
            cell(self.model.as_ref()),
            cell(self.vendor.as_ref()),
            cell(self.session.as_ref()),
            csv::shown(&self.state),
            cell(self.status),
            cell(self.code.as_ref()),
            cell(self.error.as_ref()),
            cell(usage.map(Usage::input_total)),
            cell(usage.map(|usage| usage.output)),
            cell(self.charged_rub),
            cell(self.margin_rub),
        ]
        .join(",")
    }
}

fn cell(value: Option<impl ToString>) -> String {
    value.map_or_else(String::new, |value| csv::shown(&value.to_string()))
}

const CSV_HEAD: &str = "number,at,account,key,model,vendor,session,state,status,code,error,input_tokens,output_tokens,\
    charged_rub,margin_rub";

#[derive(Default, Deserialize)]
struct Receipts {
    receipts: Vec<Row>,
    next: Option<String>,
    searched_since: Option<String>,
}

#[derive(Default, Deserialize)]
struct Unbooked {
    calls: Vec<Row>,
    next: Option<String>,
}

/// The cursors at which the next page begins in each of the two lists: receipts, and calls without a receipt. An empty
/// cursor means that the list begins with its latest item.
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

/// A page of the merged list of calls, latest first.
struct Merged {
    rows: Vec<Row>,
    next: Cursors,
    /// The time since which this page and the earlier pages contain all calls.
    searched_since: Option<String>,
}

/// Merges a page of receipts with a page of calls without a receipt. If a list has a next page, its calls before this
/// page are not known yet. Rows of the other list from that earlier time are therefore left for the next merged page.
fn merge(receipts: Receipts, unbooked: Unbooked, from: &Cursors) -> Merged {
    let searched_since = receipts.searched_since.as_deref();
    let searched_since = searched_since.filter(|_| receipts.next.is_some());
    let booked_since_ms = searched_since.and_then(parse_rfc3339_ms).unwrap_or(0);
    let others_since_ms = unbooked.next.as_deref().map_or(0, time_of);
    // If the page of receipts ends at a later time than the page of the other calls, all of the receipts are shown now.
    let receipts_since_ms = match others_since_ms > booked_since_ms {
        true => others_since_ms,
        false => 0,
    };
    let split = |rows: Vec<Row>, since_ms: u64| -> (Vec<Row>, Vec<Row>) {
        rows.into_iter().partition(|row| row.at_ms() >= since_ms)
    };
    let (mut rows, receipts_left) = split(receipts.receipts, receipts_since_ms);
    let (others, others_left) = split(unbooked.calls, booked_since_ms);
    let next = Cursors {
        receipts: match receipts_left.is_empty() {
            // Receipts that are left for the next page are read again when that page is requested.
            false => ReceiptsCursor::before(receipts_since_ms).to_string(),
            true => receipts.next.unwrap_or_else(|| ENDED.to_owned()),
        },
        unbooked: match others_left.is_empty() {
            true => unbooked.next.unwrap_or_else(|| ENDED.to_owned()),
            false => match others.last() {
                Some(last) => last.number.clone(),
                None => from.unbooked.clone(),
            },
        },
    };
    rows.extend(others);
    rows.sort_by_cached_key(|row| Reverse(row.at_ms()));
    Merged {
        rows,
        searched_since: receipts.searched_since.filter(|_| !next.have_ended()),
        next,
    }
}

/// Returns the time in Unix milliseconds that a call's number contains.
fn time_of(number: &str) -> u64 {
    let number = number.parse::<RequestNumber>();
    number.map_or(0, |number| number.unix_ms())
}

/// A period that the page offers as a link: its label, its first day, and the day after its last day.
struct Preset {
    label: &'static str,
    query: String,
    is_chosen: bool,
}

#[derive(Template)]
#[template(path = "calls.html")]
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
    /// The query of the link to the CSV file.
    query: String,
    csv_rows_max: u64,
}

impl Visit {
    pub(super) async fn calls(&self) -> Result<Answer, Failed> {
        let form = &self.form;
        let number = form.get("number");
        if !number.is_empty() {
            return Ok(see(&format!("/console/calls/{}", encoded(number))));
        }
        let from = Cursors {
            receipts: form.get("after").to_owned(),
            unbooked: form.get("before").to_owned(),
        };
        let query = form.query(&FILTERS);
        let (mut rows, mut next, mut searched_since) = (None, String::new(), None);
        let mut problem = None;
        match separate_faults(self.merged(&from, ON_A_PAGE).await)? {
            Ok(found) => {
                if !found.next.have_ended() {
                    let Cursors { receipts, unbooked } = &found.next;
                    let (after, before) = (encoded(receipts), encoded(unbooked));
                    next = format!("{query}&after={after}&before={before}");
                }
                (rows, searched_since) = (Some(found.rows), found.searched_since);
            }
            Err(refused) => problem = Some(refused),
        }
        let problem = problem.as_ref();
        let html = CallsHtml {
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
        };
        Ok(written(status_of(problem), &html))
    }

    /// Returns all calls that match the filters, at most [`CSV_ROWS_MAX`]. If more calls match, the file's name
    /// contains that limit.
    pub(super) async fn calls_csv(&self) -> Result<Answer, Failed> {
        let (mut from, mut lines) = (Cursors::default(), vec![CSV_HEAD.to_owned()]);
        while !from.have_ended() && lines.len() <= CSV_ROWS_MAX {
            let found = self.merged(&from, IN_A_STEP).await?;
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
        Ok(download("text/csv; charset=utf-8", text, &name))
    }

    /// Returns the calls from the cursors `from` on that match the form's filters.
    async fn merged(&self, from: &Cursors, limit: usize) -> Result<Merged, Failed> {
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
        // A call with a receipt has no error code, so receipts are skipped if an error code is requested.
        let wants_receipts = !is_state && form.get("code").is_empty() && from.receipts != ENDED;
        let wants_others = !is_end && from.unbooked != ENDED;
        let mut receipts = Receipts::default();
        if wants_receipts {
            let query = query(
                &[
                    "account", "key", "model", "vendor", "session", "end", "since", "until",
                ],
                &after(&from.receipts),
            );
            let path = format!("/admin/v1/receipts?{query}");
            receipts = self.api.get(&path).await??;
        }
        let mut unbooked = Unbooked::default();
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
            unbooked = self.api.get(&format!("/admin/v1/calls?{query}")).await??;
        }
        Ok(merge(receipts, unbooked, from))
    }

    /// Returns the periods that the page offers: today, the last days, this month.
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

    /// Returns the number of a call without a receipt that arrived at this second.
    fn number(second: u64) -> String {
        let at = parse_rfc3339_ms(&format!("2026-11-29T07:00:{second:02}Z")).unwrap();
        let number: RequestNumber = format!("{at:012x}70008{second:015}").parse().unwrap();
        number.to_string()
    }

    /// Returns a page of receipts and a page of calls without a receipt, built from times in seconds. The search for
    /// calls without a receipt has reached the second `others_more`.
    fn pages(
        booked: &[u64],
        more: Option<u64>,
        others: &[u64],
        others_more: Option<u64>,
    ) -> (Receipts, Unbooked) {
        let at = |second: &u64| format!("2026-11-29T07:00:{second:02}Z");
        let receipts = booked.iter().map(|second| {
            json!({
                "number": format!("r{second}"), "at": at(second), "account": "a", "key": "k", "model": "m",
                "vendor": "v", "end": "finished", "charged_rub": "1", "usage": Usage::default(),
            })
        });
        let calls = others.iter().map(
            |second| json!({ "number": number(*second), "at": at(second), "state": "refused" }),
        );
        let receipts = json!({
            "receipts": receipts.collect::<Vec<_>>(), "next": more.map(|_| "next"),
            "searched_since": more.as_ref().map(at),
        });
        let unbooked = json!({
            "calls": calls.collect::<Vec<_>>(), "next": others_more.map(number),
        });
        (
            serde_json::from_value(receipts).unwrap(),
            serde_json::from_value(unbooked).unwrap(),
        )
    }

    #[test]
    fn merged_pages_of_calls_contain_every_call() {
        let from = Cursors {
            receipts: String::new(),
            unbooked: number(59),
        };
        let before = ReceiptsCursor::before;
        let of = |second: u64| parse_rfc3339_ms(&format!("2026-11-29T07:00:{second:02}Z")).unwrap();
        let label = |row: &Row| match row.usage {
            Some(_) => row.number.clone(),
            None => format!("u{}", row.at_ms() / 1000 % 60),
        };
        for ((booked, more, others, others_more), shown, receipts, unbooked) in [
            // Neither list has a further page.
            (
                (&[9, 5][..], None, &[8, 3][..], None),
                "r9 u8 r5 u3",
                ENDED.to_owned(),
                ENDED.to_owned(),
            ),
            // The receipts continue before second 5, so refusals before second 5 are left for the next page.
            (
                (&[9, 5], Some(5), &[8, 3], None),
                "r9 u8 r5",
                "next".to_owned(),
                number(8),
            ),
            // No receipt was found since second 4, and all refusals are older, so the next page reads the refusals
            // again.
            (
                (&[], Some(4), &[3, 2], None),
                "",
                "next".to_owned(),
                number(59),
            ),
            // The refusals continue before second 7, so the next page reads receipts before second 7 again.
            (
                (&[9, 5], None, &[8, 7], Some(7)),
                "r9 u8 u7",
                before(of(7)).to_string(),
                number(7),
            ),
            // The receipts continue before second 2, but the refusals before second 6, so receipt 5 is left for the
            // next page.
            (
                (&[9, 5], Some(2), &[8, 6], Some(6)),
                "r9 u8 u6",
                before(of(6)).to_string(),
                number(6),
            ),
            (
                (&[9], Some(2), &[8, 6], Some(6)),
                "r9 u8 u6",
                "next".to_owned(),
                number(6),
            ),
            // The search for refusals has reached second 4 and continues, although it found none since second 8.
            (
                (&[9, 3], None, &[8], Some(4)),
                "r9 u8",
                before(of(4)).to_string(),
                number(4),
            ),
            // The page of receipts ends within a second; the next page has the other receipts of that second.
            (
                (&[9, 9], Some(10), &[8], None),
                "r9 r9",
                "next".to_owned(),
                number(59),
            ),
        ] {
            let (of_ledger, of_gateway) = pages(booked, more, others, others_more);
            let merged = merge(of_ledger, of_gateway, &from);
            let labels: Vec<String> = merged.rows.iter().map(label).collect();
            assert_eq!(labels.join(" "), shown);
            assert_eq!(merged.next, Cursors { receipts, unbooked }, "{shown}");
        }
    }

    #[test]
    fn csv_cells_of_calls_cannot_be_spreadsheet_formulas() {
        let (_, unbooked) = pages(&[], None, &[3], None);
        let mut row = unbooked.calls.into_iter().next().unwrap();
        (row.model, row.error) = (Some("=1+1".into()), Some("model \"x\", or none".into()));
        assert_eq!(
            row.csv().replace(&number(3), "u3"),
            "u3,2026-11-29T07:00:03Z,,,'=1+1,,,refused,,,\"model \"\"x\"\", or none\",,,,"
        );
        assert_eq!(
            row.csv().matches(',').count(),
            CSV_HEAD.matches(',').count() + 1
        );
    }
}
