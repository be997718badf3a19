//! Endpoint for usage: sums of receipts over a period, by account, key, group, model, vendor, session, endpoint, month,
//! day or hour.
//!
//! The sums are read from the roll-up. Sums by session, and sums by hour of one account, are not in the roll-up and are
//! computed from the journal.

use std::{collections::BTreeMap, ops::ControlFlow, sync::Arc};

use serde::{Deserialize, Serialize, Serializer};
use tollgate_layers::{
    endpoint::{Endpoint, EndpointError},
    key::{AccountId, KeyId},
    reserve::ledger::{BookError, JournalPart, LedgerAdmin},
    session::SessionId,
    usage::Usage,
};
use tollgate_ledger::rollup::{self, CallScope, Part, Rollup};

use super::{
    Admin, Answer, Right,
    accounts::find_account,
    fields::Fields,
    keys::find_key,
    ok,
    query::{self, Query},
    refusal::{OrRefuse as _, Refusal},
    route::{AdminRequest, Route, routes},
};
use crate::{
    ledger::{AnyLedger, latest::charged},
    text::{
        rubles::Rubles,
        time::{day, rfc3339},
    },
};

pub(super) const ROUTES: &[Route] = routes! {
    get "/admin/v1/usage" => show_usage .with_query();
    post "/admin/v1/usage/rebuild" => rebuild_usage .needs(Right::Everything);
};

/// The largest number of rows in a response.
const ROWS_MAX: usize = 100_000;
const HOUR_MS: u64 = 3_600_000;
/// The length of `2026-01`, the year and month at the beginning of a day's name.
const MONTH_CHARS: usize = "2026-01".len();

impl Admin {
    async fn show_usage(self: Arc<Self>, request: AdminRequest) -> Result<Answer, Refusal> {
        let query = UsageQuery::parse(request.query())?;
        ok(&query.fulfil(&self.store).await?)
    }

    /// Deletes the roll-up's sums. The gateways compute them again; until then reports read the journals.
    async fn rebuild_usage(self: Arc<Self>, request: AdminRequest) -> Result<Answer, Refusal> {
        let who = request.who();
        let body = request.body().await?;
        if !body.trim_ascii().is_empty() {
            Fields::parse(&body, &[])?;
        }
        self.store.clear_sums().await.or_refuse("sums")?;
        tracing::info!(target: "audit", who = who.name(), what = "usage.rebuild");
        ok(&serde_json::json!({}))
    }
}

/// The parameters of a usage report.
#[derive(Debug)]
struct UsageQuery {
    account: Option<AccountId>,
    key: Option<KeyId>,
    model: Option<String>,
    session: Option<SessionId>,
    endpoint: Option<Endpoint>,
    since_ms: Option<u64>,
    until_ms: Option<u64>,
    /// For each requested report, the fields by which it is grouped.
    groups: Vec<Vec<Dimension>>,
}

/// The fields by which rows are grouped.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
enum Dimension {
    Account,
    Key,
    /// Group of the charged key. Empty if the key was in no group.
    #[serde(rename = "group")]
    KeyGroup,
    Model,
    /// The vendor that answered.
    Vendor,
    /// The session; empty if the caller named none.
    Session,
    /// The endpoint of the call; empty if the receipt does not contain the endpoint.
    Endpoint,
    Month,
    Day,
    Hour,
}

impl UsageQuery {
    /// Reads the parameters `account`, `key`, `model`, `session`, `endpoint`, `since`, `until` and `group`.
    fn parse(query: Option<&str>) -> Result<Self, Refusal> {
        const KNOWN: &[&str] = &[
            "account", "key", "model", "session", "endpoint", "since", "until", "group",
        ];
        let mut query = Query::parse(query, KNOWN)?;
        let query = Self {
            account: query.optional("account", query::id)?,
            key: query.optional("key", query::id)?,
            model: query.optional("model", |text| Ok(text.to_owned()))?,
            session: query.optional("session", query::id)?,
            endpoint: query.optional("endpoint", endpoint)?,
            since_ms: query.optional("since", query::time)?,
            until_ms: query.optional("until", query::time)?,
            groups: query
                .optional("group", |text| text.split(';').map(group).collect())?
                .unwrap_or_else(|| {
                    vec![vec![Dimension::Account, Dimension::Key, Dimension::Model]]
                }),
        };
        match (query.since_ms, query.until_ms) {
            (Some(since), Some(until)) if until <= since => Err(Refusal::invalid(
                "until",
                "must be later than the parameter since",
            )),
            _ => Ok(query),
        }
    }

    /// Computes the usage reports. The ledger is read once for all of them.
    async fn fulfil(self, store: &AnyLedger) -> Result<Reports, Refusal> {
        let reports = self.groups.iter();
        let mut reports: Vec<Report> = reports.map(|group| Report::new(&self, group)).collect();
        let by_account = self.account.is_some()
            || self.key.is_some()
            || [Dimension::Account, Dimension::Key, Dimension::KeyGroup]
                .into_iter()
                .any(|group| self.groups_by(group));
        let of_sessions = self.session.is_some() || self.groups_by(Dimension::Session);
        if !by_account && !of_sessions {
            let call_scope =
                match [Dimension::Hour, Dimension::Day].map(|step| self.groups_by(step)) {
                    [true, _] => CallScope::AllByHour,
                    [false, true] => CallScope::All,
                    [false, false] => CallScope::AllByMonth,
                };
            self.read(store, call_scope, None, &mut reports).await?;
        } else {
            let in_journals = of_sessions || self.groups_by(Dimension::Hour);
            for account in self.accounts(store).await? {
                if in_journals {
                    self.add_lines(store, &account, &mut reports).await?;
                } else {
                    let call_scope = CallScope::Account(&account);
                    self.read(store, call_scope, Some(&account), &mut reports)
                        .await?;
                }
            }
        }
        let mut reports: Vec<Report> = reports.into_iter().map(Report::added_up).collect();
        Ok(match reports.len() {
            1 => Reports::One(Box::new(reports.remove(0))),
            _ => Reports::Several { reports },
        })
    }

    /// Returns whether any report is grouped by this field.
    fn groups_by(&self, group: Dimension) -> bool {
        self.groups.iter().flatten().any(|it| *it == group)
    }

    fn time(&self) -> std::ops::Range<u64> {
        self.since_ms.unwrap_or(0)..self.until_ms.unwrap_or(u64::MAX)
    }

    /// Adds the sums of the roll-up, and the receipts that are not in the roll-up yet.
    async fn read(
        &self,
        store: &AnyLedger,
        call_scope: CallScope<'_>,
        account: Option<&AccountId>,
        reports: &mut [Report],
    ) -> Result<(), Refusal> {
        let mut full = Ok(());
        let read = rollup::read(store, call_scope, self.time(), |part| {
            if self.asks_for(part) {
                let mut reports = reports.iter_mut();
                full = reports.try_for_each(|report| report.add(account, None, part));
            }
            match full {
                Ok(()) => ControlFlow::Continue(()),
                Err(_) => ControlFlow::Break(()),
            }
        });
        read.await.or_refuse("usage")?;
        full
    }

    async fn accounts(&self, store: &AnyLedger) -> Result<Vec<AccountId>, Refusal> {
        if let Some(key) = &self.key {
            let owner = find_key(store, key).await?.record.account;
            return match &self.account {
                Some(account) if *account != owner => Err(Refusal::invalid(
                    "key",
                    format!("does not belong to account {account}"),
                )),
                _ => Ok(vec![owner]),
            };
        }
        if let Some(account) = &self.account {
            find_account(store, account).await?;
            return Ok(vec![account.clone()]);
        }
        let views = store.accounts().await.or_refuse("accounts")?;
        Ok(views.into_iter().map(|view| view.id).collect())
    }

    /// Adds an account's receipts one by one.
    async fn add_lines(
        &self,
        store: &AnyLedger,
        account: &AccountId,
        reports: &mut [Report],
    ) -> Result<(), Refusal> {
        let mut after: Option<String> = None;
        loop {
            let time = self.time();
            let part = JournalPart {
                since_ms: time.start,
                until_ms: time.end,
                after: after.as_deref(),
                ..JournalPart::whole()
            };
            let page = match store.journal(account, &part).await {
                Ok(page) => page,
                Err(BookError::NotFound) => return Ok(()),
                Err(error) => {
                    return Err(Refusal::of_ledger(&error, &format!("account {account}")));
                }
            };
            for receipt in page.lines.iter().filter_map(charged) {
                let session = receipt.item.session.as_ref();
                let sums = rollup::Sums::from_receipt(receipt);
                let part = Part::from_receipt(receipt, &sums);
                if self.asks_for(&part)
                    && (self.session.is_none() || self.session.as_ref() == session)
                {
                    for report in &mut *reports {
                        report.add(Some(account), session, &part)?;
                    }
                }
            }
            after = page.next;
            if after.is_none() {
                return Ok(());
            }
            // The embedded ledgers reply without waiting, so the task yields to let other tasks run.
            tokio::task::yield_now().await;
        }
    }

    /// Returns whether a part of the roll-up's sums passes all filters except the session filter.
    fn asks_for(&self, part: &Part<'_>) -> bool {
        self.key.as_ref().is_none_or(|key| Some(key) == part.key)
            && (self.model.as_ref()).is_none_or(|model| *model == part.model)
            && (self.endpoint.is_none() || self.endpoint == part.endpoint)
    }
}

fn endpoint(text: &str) -> Result<Endpoint, String> {
    text.parse()
        .map_err(|error: EndpointError| error.to_string())
}

/// Parses the fields by which one report is grouped.
fn group(text: &str) -> Result<Vec<Dimension>, String> {
    let mut groups = Vec::new();
    for word in text.split(',') {
        let group: Dimension = serde_json::from_value(word.into()).map_err(|_| {
            "must be a comma-separated list of account, key, group, model, vendor, session, endpoint, month, day, hour"
        })?;
        if groups.contains(&group) {
            return Err(format!("has {word} twice"));
        }
        groups.push(group);
    }
    Ok(groups)
}

/// The response: the report, or a list if several were requested.
#[derive(Debug, Serialize)]
#[serde(untagged)]
enum Reports {
    One(Box<Report>),
    Several { reports: Vec<Report> },
}

/// A usage report, with all rows and totals.
#[derive(Debug, Serialize)]
struct Report {
    since: Option<String>,
    until: Option<String>,
    group: Vec<Dimension>,
    #[serde(serialize_with = "rows")]
    rows: Rows,
    #[serde(serialize_with = "total")]
    total: rollup::Sums,
}

/// Sums of receipts by row. The map's key contains the values of the fields by which the report is grouped, in the
/// order of these fields.
type Rows = BTreeMap<Vec<(Dimension, String)>, rollup::Sums>;

/// Sums of receipts, as the API returns them.
#[derive(Serialize)]
struct Sums {
    calls: u64,
    /// The number of calls that failed at the vendor or that the vendor cut off.
    failed_calls: u64,
    usage: Usage,
    charged_rub: Rubles,
    loss_rub: Rubles,
    /// The number of calls whose usage is estimated.
    estimated_calls: u64,
    /// The number of calls with a known vendor cost. `vendor_cost_rub` and `margin_rub` cover only these calls.
    cost_known_calls: u64,
    /// Sum of the vendor costs; null if no call has a known one.
    vendor_cost_rub: Option<Rubles>,
    /// The charges for the calls with a known vendor cost, minus the vendor cost of these calls.
    margin_rub: Option<Rubles>,
    /// Time from the request to the end of the response; null if no receipt contains this time.
    whole: Option<Latency>,
    /// Time from the request to the first byte of the response; null if no receipt contains this time.
    first_byte: Option<Latency>,
}

/// The distribution of the calls' durations, in milliseconds.
#[derive(Serialize)]
struct Latency {
    /// The number of calls whose duration is known.
    calls: u64,
    /// Median; at most an eighth above the exact value.
    p50_ms: Option<u32>,
    /// 99th percentile; at most an eighth above the exact value.
    p99_ms: Option<u32>,
}

impl Latency {
    fn of(stored: &rollup::Latency) -> Option<Self> {
        (!stored.is_none()).then(|| Self {
            calls: stored.calls(),
            p50_ms: stored.percentile_ms(50),
            p99_ms: stored.percentile_ms(99),
        })
    }
}

impl Report {
    fn new(query: &UsageQuery, group: &[Dimension]) -> Self {
        Self {
            since: query.since_ms.map(rfc3339),
            until: query.until_ms.map(rfc3339),
            group: group.to_vec(),
            rows: Rows::new(),
            total: rollup::Sums::default(),
        }
    }

    /// Adds the totals. They are computed from the rows, because there are fewer rows than parts of the
    /// roll-up's sums.
    fn added_up(mut self) -> Self {
        for sums in self.rows.values() {
            self.total.add(sums);
        }
        self
    }

    fn add(
        &mut self,
        account: Option<&AccountId>,
        session: Option<&SessionId>,
        part: &Part<'_>,
    ) -> Result<(), Refusal> {
        let words = self.group.iter().map(|group| {
            let word = match group {
                Dimension::Account => account.map(ToString::to_string),
                Dimension::Key => part.key.map(ToString::to_string),
                Dimension::KeyGroup => part.group.map(ToString::to_string),
                Dimension::Model => Some(part.model.to_owned()),
                Dimension::Vendor => Some(part.vendor.to_owned()),
                Dimension::Session => session.map(ToString::to_string),
                Dimension::Endpoint => part.endpoint.map(|endpoint| endpoint.as_str().to_owned()),
                Dimension::Month => Some(day(part.at_ms)[..MONTH_CHARS].to_owned()),
                Dimension::Day => Some(day(part.at_ms)),
                Dimension::Hour => Some(rfc3339(part.at_ms - part.at_ms % HOUR_MS)),
            };
            (*group, word.unwrap_or_default())
        });
        self.rows.entry(words.collect()).or_default().add(part.sums);
        if self.rows.len() > ROWS_MAX {
            return Err(Refusal::invalid(
                "group",
                format!(
                    "the report has more than {ROWS_MAX} rows; group by fewer fields, or choose one account or a shorter period"
                ),
            ));
        }
        Ok(())
    }
}

impl From<&rollup::Sums> for Sums {
    fn from(sums: &rollup::Sums) -> Self {
        let known = |micro| (sums.cost_known_calls > 0).then_some(Rubles(micro));
        Self {
            calls: sums.calls,
            failed_calls: sums.failed_calls,
            usage: sums.usage,
            charged_rub: Rubles(sums.charged_micro),
            loss_rub: Rubles(sums.loss_micro),
            estimated_calls: sums.estimated_calls,
            cost_known_calls: sums.cost_known_calls,
            vendor_cost_rub: known(sums.vendor_cost_micro),
            margin_rub: known(sums.margin_micro),
            whole: Latency::of(&sums.whole),
            first_byte: Latency::of(&sums.first_byte),
        }
    }
}

fn total<S: Serializer>(sums: &rollup::Sums, serializer: S) -> Result<S::Ok, S::Error> {
    Sums::from(sums).serialize(serializer)
}

/// Serializes each row: one field for each field by which the report is grouped, then the sums.
fn rows<S: Serializer>(rows: &Rows, serializer: S) -> Result<S::Ok, S::Error> {
    #[derive(Serialize)]
    struct Row<'a> {
        /// The values by field. A missing group, session or endpoint is null.
        #[serde(flatten)]
        names: BTreeMap<Dimension, Option<&'a str>>,
        #[serde(flatten)]
        sums: Sums,
    }

    serializer.collect_seq(rows.iter().map(|(words, sums)| {
        let names = words.iter().map(|(group, word)| {
            let may_be_null = matches!(
                group,
                Dimension::KeyGroup | Dimension::Session | Dimension::Endpoint
            );
            let is_null = may_be_null && word.is_empty();
            (*group, (!is_null).then_some(word.as_str()))
        });
        Row {
            names: names.collect(),
            sums: Sums::from(sums),
        }
    }))
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};
    use tollgate_layers::{
        facts::RequestNumber,
        money::MicroRub,
        reserve::ledger::{Booked, Item, Receipt},
        usage::End,
    };

    use super::*;

    #[test]
    fn usage_report_parameters_are_parsed_and_errors_name_invalid_ones() {
        let query =
            UsageQuery::parse(Some("group=day,model&since=2026-01-31&until=2026-02-01")).unwrap();
        assert_eq!(query.groups, [[Dimension::Day, Dimension::Model]]);
        assert_eq!(
            query.until_ms.unwrap() - query.since_ms.unwrap(),
            86_400_000
        );
        let query = UsageQuery::parse(None).unwrap();
        assert_eq!(
            query.groups,
            [[Dimension::Account, Dimension::Key, Dimension::Model]]
        );
        let query = UsageQuery::parse(Some("group=day,model;vendor")).unwrap();
        assert_eq!(
            query.groups,
            [
                vec![Dimension::Day, Dimension::Model],
                vec![Dimension::Vendor]
            ]
        );
        for (query, begins) in [
            (
                "groups=day",
                "groups: unknown parameter; this call takes account, key,",
            ),
            (
                "group=week",
                "group: must be a comma-separated list of account, key, group, model, vendor, session, endpoint, month, day, hour",
            ),
            ("group=day,", "group: must be a comma-separated list"),
            ("group=day,day", "group: has day twice"),
            ("account=a/b", "account: an id must have"),
            (
                "endpoint=/v1/messages",
                "endpoint: must be one of chat/completions, messages,",
            ),
            ("since=31.01.2026", "since: must be a date"),
            (
                "since=2026-02-01&until=2026-02-01",
                "until: must be later than the parameter since",
            ),
        ] {
            let message = UsageQuery::parse(Some(query)).unwrap_err().message();
            assert!(message.starts_with(begins), "{query}: {message}");
        }
    }

    #[test]
    fn usage_rows_are_sorted_by_the_values_that_they_are_grouped_by() {
        let query = UsageQuery::parse(None).unwrap();
        let mut report = Report::new(&query, &[Dimension::Day, Dimension::Model]);
        for (at_ms, model, charged, estimated, vendor_cost) in [
            (86_400_000, "a", 5, false, Some(7)),
            (0, "b", 1_000_000, true, Some(400_000)),
            (86_399_999, "a", 2, false, None),
            (86_400_001, "a", 3, true, None),
        ] {
            let receipt = Receipt {
                number: RequestNumber::now_v7(),
                at_ms,
                account: "acme".parse().unwrap(),
                key: "k1".parse().unwrap(),
                group: None,
                held_rub: MicroRub::ZERO,
                cost_rub: MicroRub::ZERO,
                charged_rub: MicroRub::new(charged),
                loss_rub: MicroRub::new(1),
                booked: Booked::Held,
                item: Item {
                    usage: Usage {
                        input: 1,
                        cached_input: 2,
                        cache_write: 3,
                        output: 4,
                        ..Usage::default()
                    },
                    estimated,
                    vendor_cost_rub: vendor_cost.map(MicroRub::new),
                    timeline: "1 - - 16 -".parse().ok(),
                    ..Item::new(model, "v", End::Finished)
                },
            };
            let sums = rollup::Sums::from_receipt(&receipt);
            let part = Part::from_receipt(&receipt, &sums);
            report.add(Some(&receipt.account), None, &part).unwrap();
        }
        let sums = |calls: u64,
                    charged: &str,
                    loss: &str,
                    estimated: u64,
                    known: (u64, Value, Value)| {
            json!({
                "calls": calls, "failed_calls": 0,
                "usage": {"input": calls, "cached_input": 2 * calls, "cache_write": 3 * calls, "output": 4 * calls},
                "charged_rub": charged, "loss_rub": loss, "estimated_calls": estimated,
                "cost_known_calls": known.0, "vendor_cost_rub": known.1, "margin_rub": known.2,
                "whole": {"calls": calls, "p50_ms": 17, "p99_ms": 17}, "first_byte": null,
            })
        };
        let row = |day: &str, model: &str, mut sums: Value| {
            sums["day"] = day.into();
            sums["model"] = model.into();
            sums
        };
        assert_eq!(
            serde_json::to_value(report.added_up()).unwrap(),
            json!({
                "since": null, "until": null, "group": ["day", "model"],
                "rows": [
                    row("1970-01-01", "a", sums(1, "0.000002", "0.000001", 0, (0, Value::Null, Value::Null))),
                    row("1970-01-01", "b", sums(1, "1.00", "0.000001", 1, (1, "0.40".into(), "0.60".into()))),
                    row("1970-01-02", "a", sums(2, "0.000008", "0.000002", 1, (1, "0.000007".into(), "-0.000002".into()))),
                ],
                "total": sums(4, "1.00001", "0.000004", 2, (2, "0.400007".into(), "0.599998".into())),
            })
        );
    }
}
