//! `tollgate usage`: prints what was used and charged, as a table, CSV or JSON.

use clap::{Args, ValueEnum};
use http::Method;
use serde_json::Value;
use tollgate_layers::{
    endpoint::Endpoint,
    key::{AccountId, KeyId},
    price::{Class, Kind},
    session::SessionId,
};

use super::{
    AdminArgs,
    client::{Client, with_query},
    csv::shown,
    failure::Failure,
    key_id::IdNotKey,
    show::{self, Cell, rows, table},
    time,
};

/// Options of `tollgate usage`: which calls to sum up, and by what.
#[derive(Debug, Args)]
pub(super) struct UsageQuery {
    /// Count only calls of this account
    #[arg(long)]
    account: Option<AccountId>,
    /// Count only calls with the key of this id
    #[arg(long, value_parser = IdNotKey)]
    key: Option<KeyId>,
    /// Count only calls of this model, by its catalog name
    #[arg(long)]
    model: Option<String>,
    /// Count only calls of this session, by the name that the caller gave it
    #[arg(long)]
    session: Option<SessionId>,
    /// Count only calls of this endpoint: chat/completions, messages, responses or embeddings
    #[arg(long)]
    endpoint: Option<Endpoint>,
    /// Count calls from this date or time on: 2026-01-31, 2026-01-31T12:00:00+03:00; default: from the first call
    #[arg(long, value_name = "DATE", value_parser = time)]
    since: Option<String>,
    /// Count calls before this date or time; default: now
    #[arg(long, value_name = "DATE", value_parser = time)]
    until: Option<String>,
    /// Group the report by these words: print one row for each combination of their values, with columns in this order
    #[arg(
        long,
        value_name = "WORDS",
        value_enum,
        value_delimiter = ',',
        default_values = ["account", "key", "model"]
    )]
    by: Vec<By>,
    /// Output format
    #[arg(long, value_enum, conflicts_with = "json")]
    format: Option<Format>,
    /// Print no report, but rebuild the sums from which reports are made; use it after an audit has found these sums
    /// wrong
    #[arg(long, conflicts_with_all = ["account", "key", "model", "session", "endpoint", "since", "until", "by", "format"])]
    rebuild: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum By {
    /// Id of the account
    Account,
    /// The key's id
    Key,
    /// The group of the key, together with the account if the report has several accounts, because group ids are unique
    /// only in an account
    Group,
    /// The model's catalog name
    Model,
    /// The vendor that served the call
    Vendor,
    /// The session that the caller named
    Session,
    /// The endpoint that was called
    Endpoint,
    /// The month, in UTC
    Month,
    /// The day, in UTC
    Day,
    /// The hour, in UTC
    Hour,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Format {
    /// A table for people, with a row for the total
    Table,
    /// CSV for spreadsheets: a line with column names, then the rows, without a total
    Csv,
    /// The API's response
    Json,
}

/// A column of the usage table, and its name in CSV.
type Column = (Cell, &'static str);

const SUMS: &[Column] = &[
    (Cell::number("calls", "/calls"), "calls"),
    (Cell::number("input tokens", "/usage/input"), "input_tokens"),
    (
        Cell::number("cached tokens", "/usage/cached_input"),
        "cached_input_tokens",
    ),
    (
        Cell::number("cache write tokens", "/usage/cache_write"),
        "cache_write_tokens",
    ),
    (
        Cell::number("output tokens", "/usage/output"),
        "output_tokens",
    ),
    (Cell::rubles("charged", "/charged_rub"), "charged_rub"),
    (Cell::rubles("loss", "/loss_rub"), "loss_rub"),
    (
        Cell::number("estimated calls", "/estimated_calls"),
        "estimated_calls",
    ),
];
/// Columns that count only the calls whose vendor cost is known.
const MARGIN: &[Column] = &[
    (
        Cell::rubles("vendor cost", "/vendor_cost_rub"),
        "vendor_cost_rub",
    ),
    (Cell::rubles("margin", "/margin_rub"), "margin_rub"),
    (
        Cell::number("cost known", "/cost_known_calls"),
        "cost_known_calls",
    ),
];

/// Returns the column of a rate class that is not one of the basic four. These columns come after all others, so that
/// programs that read columns by position keep working.
fn class_column(class: Class) -> Column {
    let label = match class {
        Class::CacheWrite1h => "1 h cache write tokens",
        Class::CacheWrite12h => "12 h cache write tokens",
        Class::InputAudio => "input audio tokens",
        Class::InputImage => "input image tokens",
        Class::CachedInputAudio => "cached audio tokens",
        Class::CachedInputImage => "cached image tokens",
        Class::OutputReasoning => "reasoning tokens",
        Class::RequestCall => "billed requests",
        Class::OutputAudio => "output audio tokens",
        Class::OutputImage => "output image tokens",
        _ => "web searches",
    };
    let name = match class.kind() {
        Kind::Call => format!("{class}s"),
        _ => format!("{class}_tokens"),
    };
    // The texts are leaked, once, because a cell borrows its texts for the whole life of the process.
    let pointer = format!("/usage/classes/{class}").leak();
    (Cell::number(label, pointer), name.leak())
}

pub(super) async fn usage(admin: &AdminArgs, args: &UsageQuery) -> Result<(), Failure> {
    if let Some(by) = twice(&args.by) {
        let problem = format!("--by: {} is given twice; leave one out", by.name());
        return Err(Failure::Usage(problem));
    }
    let client = Client::new(admin)?;
    if args.rebuild {
        let path = "/admin/v1/usage/rebuild";
        let answer = client.call_patiently(Method::POST, path).await?;
        return show::print(admin.json, &answer, |_| {
            "the roll-up is being rebuilt; until it is complete, reports read the journals\n".into()
        });
    }
    let by = args.columns();
    let answer = client.call_patiently(Method::GET, &args.path(&by)).await?;
    let is_json = admin.json || args.format == Some(Format::Json);
    show::print(is_json, &answer, |answer| match args.format {
        Some(Format::Csv) => csv(&by, answer),
        _ => text(&by, answer),
    })
}

/// Returns the first grouping that `by` contains twice.
fn twice(by: &[By]) -> Option<By> {
    let mut places = by.iter().enumerate();
    places.find_map(|(place, word)| by[..place].contains(word).then_some(*word))
}

impl UsageQuery {
    /// Returns the groupings of the rows. If rows are grouped by group, the account is added before the group, because
    /// group ids are unique only in an account. The account is not added if the report covers one account, or already
    /// groups by account.
    fn columns(&self) -> Vec<By> {
        let mut by = self.by.clone();
        let of_one = self.account.is_some() || self.key.is_some() || by.contains(&By::Account);
        if let Some(place) = by.iter().position(|by| *by == By::Group)
            && !of_one
        {
            by.insert(place, By::Account);
        }
        by
    }

    fn path(&self, by: &[By]) -> String {
        let words: Vec<&str> = by.iter().map(|by| by.name()).collect();
        let parameters = [
            ("account", self.account.as_ref().map(ToString::to_string)),
            ("key", self.key.as_ref().map(ToString::to_string)),
            ("model", self.model.clone()),
            ("session", self.session.as_ref().map(ToString::to_string)),
            ("endpoint", self.endpoint.as_ref().map(ToString::to_string)),
            ("since", self.since.clone()),
            ("until", self.until.clone()),
        ];
        with_query(
            &format!("/admin/v1/usage?group={}", words.join(",")),
            parameters,
        )
    }
}

impl By {
    /// Returns the grouping's name, which is also the name of its field in a row.
    fn name(self) -> &'static str {
        self.cell().pointer.trim_start_matches('/')
    }

    const fn cell(self) -> Cell {
        let cell = match self {
            Self::Account => Cell::text("account", "/account"),
            Self::Key => Cell::text("key", "/key"),
            Self::Group => Cell::text("group", "/group"),
            Self::Model => Cell::text("model", "/model"),
            Self::Vendor => Cell::text("vendor", "/vendor"),
            Self::Session => Cell::text("session", "/session"),
            Self::Endpoint => Cell::text("endpoint", "/endpoint"),
            Self::Month => Cell::text("month (UTC)", "/month"),
            Self::Day => Cell::text("day (UTC)", "/day"),
            Self::Hour => Cell::text("hour (UTC)", "/hour"),
        };
        // In the row of the total, this cell is empty.
        cell.or("")
    }
}

/// Returns the columns of a report. The vendor cost columns are left out if no call has a known vendor cost. The column
/// of a rate class is left out if no call used the class.
fn columns(by: &[By], answer: &Value) -> Vec<Column> {
    let margin = if cost_known(answer) == 0 { &[] } else { MARGIN };
    let sums = SUMS.iter().chain(margin).copied();
    let names = by.iter().map(|by| (by.cell(), by.name()));
    let classes = classes(answer).map(class_column);
    names.chain(sums).chain(classes).collect()
}

/// Returns the rate classes, except the basic four, that at least one row has.
fn classes(answer: &Value) -> impl Iterator<Item = Class> {
    let all = rows(answer, "rows").iter().chain(answer.get("total"));
    let has = move |class: &Class| {
        let count = |row: &Value| row["usage"]["classes"][class.name()].as_u64();
        all.clone().any(|row| count(row).is_some_and(|it| it > 0))
    };
    Class::ALL.into_iter().filter(has)
}

/// Adds to a row a zero for each rate class that only other rows have.
fn with_zeros(mut row: Value, answer: &Value) -> Value {
    for class in classes(answer) {
        if row["usage"]["classes"][class.name()].is_null() {
            row["usage"]["classes"][class.name()] = 0.into();
        }
    }
    row
}

/// Returns for how many calls the vendor cost is known.
fn cost_known(answer: &Value) -> u64 {
    let known = answer.pointer("/total/cost_known_calls");
    known.and_then(Value::as_u64).unwrap_or(0)
}

fn text(by: &[By], answer: &Value) -> String {
    let rows = rows(answer, "rows").iter().cloned();
    let mut rows: Vec<_> = rows.map(|row| with_zeros(row, answer)).collect();
    if rows.is_empty() {
        return "no call was charged in this time with these filters; --since and --until are in UTC unless they have an offset like +03:00\n"
            .into();
    }
    // In contrast to the row of the total, a row without a value gets a dash: its calls named no session, or the value
    // is unknown.
    for row in &mut rows {
        for word in by {
            if let Some(word) = row.get_mut(word.name()).filter(|word| word.is_null()) {
                *word = "-".into();
            }
        }
    }
    let mut total = answer.get("total").cloned().unwrap_or_default();
    if let (Some(first), Some(total)) = (by.first(), total.as_object_mut()) {
        total.insert(first.name().into(), "total".into());
    }
    let calls = total["calls"].as_u64().unwrap_or(0);
    rows.push(with_zeros(total, answer));
    let columns = columns(by, answer).into_iter().map(|(cell, _)| cell);
    let mut text = table(&columns.collect::<Vec<_>>(), &rows);
    let known = cost_known(answer);
    if known > 0 && known < calls {
        text.push_str(&format!(
            "cost known for {known} of {calls} calls: vendor cost and margin cover only these calls\n"
        ));
    }
    text
}

/// Returns the report as CSV (RFC 4180), but with plain line feeds.
fn csv(by: &[By], answer: &Value) -> String {
    let columns = columns(by, answer);
    let names = columns.iter().map(|(_, name)| *name);
    let mut text = names.collect::<Vec<_>>().join(",");
    text.push('\n');
    for row in rows(answer, "rows") {
        let row = with_zeros(row.clone(), answer);
        let cells = columns.iter().map(|(cell, _)| shown(&cell.raw(&row)));
        text.push_str(&cells.collect::<Vec<_>>().join(","));
        text.push('\n');
    }
    text
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn answer() -> Value {
        let row = |model: &str, calls: u64, charged: &str| {
            json!({
                "account": "acme", "model": model, "calls": calls,
                "usage": {"input": 10, "cached_input": 2, "cache_write": 0, "output": 31},
                "charged_rub": charged, "loss_rub": "0.00", "estimated_calls": 1,
            })
        };
        json!({
            "rows": [row("a \"b\", c", 12, "1.50"), row("модель", 3, "0.000001")],
            "total": {
                "calls": 15, "usage": {"input": 20, "cached_input": 4, "cache_write": 0, "output": 62},
                "charged_rub": "1.500001", "loss_rub": "0.00", "estimated_calls": 2,
            },
        })
    }

    #[test]
    fn usage_as_csv_has_exact_amounts() {
        assert_eq!(
            csv(&[By::Model, By::Account], &answer()),
            "model,account,calls,input_tokens,cached_input_tokens,cache_write_tokens,output_tokens,\
             charged_rub,loss_rub,estimated_calls\n\
             \"a \"\"b\"\", c\",acme,12,10,2,0,31,1.50,0.00,1\n\
             модель,acme,3,10,2,0,31,0.000001,0.00,1\n"
        );
        let names_only = csv(&[By::Day], &json!({"rows": []}));
        assert!(names_only.starts_with("day,calls,") && names_only.lines().count() == 1);
    }

    #[test]
    fn usage_table_ends_with_a_total() {
        let text = text(&[By::Model], &answer());
        assert_eq!(
            text,
            "MODEL     CALLS  INPUT TOKENS  CACHED TOKENS  CACHE WRITE TOKENS  OUTPUT TOKENS  CHARGED, ₽  LOSS, ₽  ESTIMATED CALLS\n\
             a \"b\", c     12            10              2                   0             31        1.50     0.00                1\n\
             модель        3            10              2                   0             31    0.000001     0.00                1\n\
             total        15            20              4                   0             62    1.500001     0.00                2\n"
        );
    }

    #[test]
    fn calls_without_a_session_or_an_endpoint_or_a_group_have_a_separate_row() {
        let row = |word: &str, of: Value, calls: u64| json!({word: of, "calls": calls});
        for (by, head) in [
            (By::Session, "SESSION   CALLS"),
            (By::Endpoint, "ENDPOINT  CALLS"),
            (By::Group, "GROUP     CALLS"),
        ] {
            let name = by.name();
            let answer = json!({
                "rows": [row(name, Value::Null, 2), row(name, "messages".into(), 3)], "total": {"calls": 5},
            });
            let text = text(&[by], &answer);
            let begins: Vec<&str> = text.lines().map(|line| line[..15].trim_end()).collect();
            assert_eq!(
                begins,
                [
                    head,
                    "-             2",
                    "messages      3",
                    "total         5"
                ]
            );
            let csv = csv(&[by], &answer);
            let lines: Vec<_> = csv.lines().skip(1).collect();
            assert_eq!(lines, [",2,,,,,,,", "messages,3,,,,,,,"]);
        }
    }

    #[test]
    fn calls_with_unknown_vendor_cost_are_counted_separately() {
        let sums = |calls: u64, known: u64, cost: Value, margin: Value| {
            json!({
                "model": "m", "calls": calls, "cost_known_calls": known, "vendor_cost_rub": cost, "margin_rub": margin,
            })
        };
        let answer = |calls: u64| {
            json!({
                "rows": [sums(2, 2, "1.00".into(), "-0.25".into()), sums(calls - 2, 0, Value::Null, Value::Null)],
                "total": sums(calls, 2, "1.00".into(), "-0.25".into()),
            })
        };
        let text = text(&[By::Model], &answer(5));
        let lines: Vec<&str> = text.lines().collect();
        assert!(
            lines[0].ends_with("  VENDOR COST, ₽  MARGIN, ₽  COST KNOWN"),
            "{text}"
        );
        assert!(lines[1].ends_with("1.00      -0.25           2"), "{text}");
        assert!(lines[2].ends_with("   -          -           0"), "{text}");
        assert_eq!(
            lines[4],
            "cost known for 2 of 5 calls: vendor cost and margin cover only these calls"
        );
        let csv = csv(&[By::Model], &answer(5));
        let lines: Vec<_> = csv.lines().skip(1).collect();
        assert_eq!(lines, ["m,2,,,,,,,,1.00,-0.25,2", "m,3,,,,,,,,,,0"]);
    }

    #[test]
    fn further_rate_class_has_a_column_if_a_call_used_it() {
        let mut answer = answer();
        answer["rows"][0]["usage"]["classes"] = json!({"cache_write_1h": 7000});
        answer["rows"][1]["usage"]["classes"] = json!({"web_search_call": 2});
        answer["total"]["usage"]["classes"] =
            json!({"cache_write_1h": 7000, "web_search_call": 2, "input_audio": 0});
        let text = text(&[By::Model], &answer);
        let ends: Vec<_> = text.lines().map(|line| &line[line.len() - 39..]).collect();
        assert_eq!(
            ends,
            [
                "S  1 H CACHE WRITE TOKENS  WEB SEARCHES",
                "1                    7000             0",
                "1                       0             2",
                "2                    7000             2",
            ],
            "{text}"
        );
        let csv = csv(&[By::Model], &answer);
        let lines: Vec<_> = csv.lines().collect();
        assert!(
            lines[0].ends_with(",estimated_calls,cache_write_1h_tokens,web_search_calls"),
            "{csv}"
        );
        assert!(lines[1].ends_with(",0.00,1,7000,0"), "{csv}");
        assert!(lines[2].ends_with(",0.00,1,0,2"), "{csv}");
    }

    #[test]
    fn every_further_rate_class_has_its_own_column() {
        for class in Class::ALL {
            let (cell, name) = class_column(class);
            let row = json!({"usage": {"classes": {class.name(): 5}}});
            assert_eq!(cell.raw(&row), "5", "{class}");
            assert!(name.starts_with(class.name()), "{class}: {name}");
        }
    }

    #[test]
    fn groups_of_several_accounts_are_shown_with_their_account() {
        let args = |account: Option<&str>, by: &[By]| UsageQuery {
            account: account.map(|id| id.parse().unwrap()),
            key: None,
            model: None,
            session: None,
            endpoint: None,
            since: None,
            until: None,
            by: by.to_vec(),
            format: None,
            rebuild: false,
        };
        for (account, by, columns) in [
            (
                None,
                &[By::Day, By::Group][..],
                &[By::Day, By::Account, By::Group][..],
            ),
            (None, &[By::Group, By::Account], &[By::Group, By::Account]),
            (Some("acme"), &[By::Group], &[By::Group]),
            (None, &[By::Day], &[By::Day]),
        ] {
            assert_eq!(args(account, by).columns(), columns);
        }
    }

    #[test]
    fn empty_usage_report_prints_that_there_are_no_calls() {
        let text = text(&[By::Model], &json!({"rows": [], "total": {"calls": 0}}));
        assert!(text.starts_with("no call was charged"), "{text}");
    }

    #[test]
    fn options_of_the_usage_command_become_query_parameters() {
        let args = UsageQuery {
            account: Some("acme".parse().unwrap()),
            key: None,
            model: Some("m 1&2".into()),
            session: Some("s-1".parse().unwrap()),
            endpoint: Some(Endpoint::ChatCompletions),
            since: Some("2026-01-31T00:00:00+03:00".into()),
            until: None,
            by: vec![By::Day, By::Key],
            format: None,
            rebuild: false,
        };
        assert_eq!(
            args.path(&args.columns()),
            "/admin/v1/usage?group=day,key&account=acme&model=m%201%262&session=s-1&endpoint=chat%2Fcompletions&since=2026-01-31T00%3A00%3A00%2B03%3A00"
        );
    }
}
