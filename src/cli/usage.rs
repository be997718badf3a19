//! `tollgate usage`: what was used and charged, as a table, CSV or JSON.

use clap::{Args, ValueEnum};
use http::Method;
use serde_json::Value;
use tollgate_layers::{
    endpoint::Endpoint,
    key::{AccountId, KeyId},
    session::SessionId,
};

use super::{
    AdminArgs,
    client::{Client, encoded},
    csv::quoted,
    failure::Failure,
    show::{self, Cell, table},
    time,
};

/// What to add up.
#[derive(Debug, Args)]
pub(super) struct UsageQuery {
    /// Of this account only
    #[arg(long)]
    account: Option<AccountId>,
    /// Of the key with this id only
    #[arg(long)]
    key: Option<KeyId>,
    /// Of this model only, by its catalog name
    #[arg(long)]
    model: Option<String>,
    /// Of this session only, as its caller named it
    #[arg(long)]
    session: Option<SessionId>,
    /// Of calls of this endpoint only: chat/completions, messages, responses or embeddings
    #[arg(long)]
    endpoint: Option<Endpoint>,
    /// From this date or time on: 2026-01-31, 2026-01-31T12:00:00+03:00; by default from the first call
    #[arg(long, value_name = "DATE", value_parser = time)]
    since: Option<String>,
    /// Before this date or time; by default to now
    #[arg(long, value_name = "DATE", value_parser = time)]
    until: Option<String>,
    /// A row for each of these, in this order
    #[arg(
        long,
        value_name = "WORDS",
        value_enum,
        value_delimiter = ',',
        default_values = ["account", "key", "model"]
    )]
    by: Vec<By>,
    /// How to print it
    #[arg(long, value_enum, conflicts_with = "json")]
    format: Option<Format>,
    /// Instead: have the sums made anew that reports are made of, where an audit says that they are wrong
    #[arg(long, conflicts_with_all = ["account", "key", "model", "session", "endpoint", "since", "until", "by", "format"])]
    rebuild: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum By {
    /// The account
    Account,
    /// The key's id
    Key,
    /// The model's catalog name
    Model,
    /// The vendor that answered
    Vendor,
    /// The session that the caller named
    Session,
    /// The endpoint that was called
    Endpoint,
    /// The day, in UTC
    Day,
    /// The hour, in UTC
    Hour,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Format {
    /// Columns for people, with a row for the total
    Table,
    /// For a spreadsheet: a line of names, then the rows, no total
    Csv,
    /// The API's answer
    Json,
}

const SUMS: &[Cell] = &[
    Cell::number("calls", "/calls"),
    Cell::number("input tokens", "/usage/input"),
    Cell::number("cached tokens", "/usage/cached_input"),
    Cell::number("cache write tokens", "/usage/cache_write"),
    Cell::number("output tokens", "/usage/output"),
    Cell::rubles("charged", "/charged_rub"),
    Cell::rubles("loss", "/loss_rub"),
    Cell::number("estimated calls", "/estimated_calls"),
];
/// Of the calls of which it is known what the vendor takes.
const MARGIN: &[Cell] = &[
    Cell::rubles("vendor cost", "/vendor_cost_rub"),
    Cell::rubles("margin", "/margin_rub"),
    Cell::number("cost known", "/cost_known_calls"),
];

/// The names of the same columns where programs read them.
const SUM_NAMES: &[&str] = &[
    "calls",
    "input_tokens",
    "cached_input_tokens",
    "cache_write_tokens",
    "output_tokens",
    "charged_rub",
    "loss_rub",
    "estimated_calls",
    "vendor_cost_rub",
    "margin_rub",
    "cost_known_calls",
];

pub(super) async fn usage(reach: &AdminArgs, wish: &UsageQuery) -> Result<(), Failure> {
    if wish.rebuild {
        let answer = Client::new(reach)?
            .call_patiently(Method::POST, "/admin/v1/usage/rebuild")
            .await?;
        return show::print(reach.json, &answer, |_| {
            "the sums are being made anew; until they are, reports read the journals\n".into()
        });
    }
    let answer = Client::new(reach)?
        .call_patiently(Method::GET, &wish.path())
        .await?;
    let format = if reach.json {
        Format::Json
    } else {
        wish.format.unwrap_or(Format::Table)
    };
    show::write(&match format {
        Format::Json => format!("{answer:#}\n"),
        Format::Csv => csv(&wish.by, &answer),
        Format::Table => text(&wish.by, &answer),
    })
}

impl UsageQuery {
    fn path(&self) -> String {
        let words: Vec<&str> = self.by.iter().map(|by| by.name()).collect();
        let mut path = format!("/admin/v1/usage?group={}", words.join(","));
        for (name, value) in [
            ("account", self.account.as_ref().map(ToString::to_string)),
            ("key", self.key.as_ref().map(ToString::to_string)),
            ("model", self.model.clone()),
            ("session", self.session.as_ref().map(ToString::to_string)),
            ("endpoint", self.endpoint.as_ref().map(ToString::to_string)),
            ("since", self.since.clone()),
            ("until", self.until.clone()),
        ] {
            if let Some(value) = value {
                path.push_str(&format!("&{name}={}", encoded(&value)));
            }
        }
        path
    }
}

impl By {
    const fn name(self) -> &'static str {
        match self {
            Self::Account => "account",
            Self::Key => "key",
            Self::Model => "model",
            Self::Vendor => "vendor",
            Self::Session => "session",
            Self::Endpoint => "endpoint",
            Self::Day => "day",
            Self::Hour => "hour",
        }
    }

    const fn cell(self) -> Cell {
        let cell = match self {
            Self::Account => Cell::text("account", "/account"),
            Self::Key => Cell::text("key", "/key"),
            Self::Model => Cell::text("model", "/model"),
            Self::Vendor => Cell::text("vendor", "/vendor"),
            Self::Session => Cell::text("session", "/session"),
            Self::Endpoint => Cell::text("endpoint", "/endpoint"),
            Self::Day => Cell::text("day (UTC)", "/day"),
            Self::Hour => Cell::text("hour (UTC)", "/hour"),
        };
        // Empty in the row of the total.
        cell.or("")
    }
}

/// The columns of an answer. Who declares no costs has none of them.
fn columns(by: &[By], answer: &Value) -> Vec<Cell> {
    let margin = if cost_known(answer) == 0 { &[] } else { MARGIN };
    let sums = SUMS.iter().chain(margin);
    by.iter().map(|by| by.cell()).chain(sums.copied()).collect()
}

/// Of how many calls it is known what the vendor takes.
fn cost_known(answer: &Value) -> u64 {
    let known = answer.pointer("/total/cost_known_calls");
    known.and_then(Value::as_u64).unwrap_or(0)
}

fn rows(answer: &Value) -> &[Value] {
    answer
        .get("rows")
        .and_then(Value::as_array)
        .map_or(&[], Vec::as_slice)
}

fn text(by: &[By], answer: &Value) -> String {
    let mut rows = rows(answer).to_vec();
    if rows.is_empty() {
        return "no call was charged in this time with these filters; --since and --until are in UTC unless they name a zone\n"
            .into();
    }
    // Not as empty as the row of the total: calls that named no session, or of which nothing is known.
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
    let calls = total.get("calls").and_then(Value::as_u64).unwrap_or(0);
    rows.push(total);
    let mut text = table(&columns(by, answer), &rows);
    let known = cost_known(answer);
    if known > 0 && known < calls {
        text.push_str(&format!(
            "cost known for {known} of {calls} calls: vendor cost and margin are of these alone\n"
        ));
    }
    text
}

/// RFC 4180, with plain line ends.
fn csv(by: &[By], answer: &Value) -> String {
    let columns = columns(by, answer);
    let names = by.iter().map(|by| by.name());
    let names = names.chain(SUM_NAMES.iter().copied()).take(columns.len());
    let mut text = names.collect::<Vec<_>>().join(",");
    text.push('\n');
    for row in rows(answer) {
        let cells = columns.iter().map(|column| quoted(&column.raw(row)));
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
    fn csv_is_exact() {
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
    fn a_table_ends_with_its_total() {
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
    fn calls_without_a_session_or_an_endpoint_have_a_row_of_their_own() {
        let row = |word: &str, of: Value, calls: u64| json!({word: of, "calls": calls});
        for (by, head) in [
            (By::Session, "SESSION   CALLS"),
            (By::Endpoint, "ENDPOINT  CALLS"),
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
    fn calls_without_a_known_cost_are_told_apart() {
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
            "cost known for 2 of 5 calls: vendor cost and margin are of these alone"
        );
        let csv = csv(&[By::Model], &answer(5));
        let lines: Vec<_> = csv.lines().skip(1).collect();
        assert_eq!(lines, ["m,2,,,,,,,,1.00,-0.25,2", "m,3,,,,,,,,,,0"]);
    }

    #[test]
    fn nothing_is_said_to_be_nothing() {
        let text = text(&[By::Model], &json!({"rows": [], "total": {"calls": 0}}));
        assert!(text.starts_with("no call was charged"), "{text}");
    }

    #[test]
    fn a_wish_becomes_parameters() {
        let wish = UsageQuery {
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
            wish.path(),
            "/admin/v1/usage?group=day,key&account=acme&model=m%201%262&session=s-1&endpoint=chat%2Fcompletions&since=2026-01-31T00%3A00%3A00%2B03%3A00"
        );
    }
}
