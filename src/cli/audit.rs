//! `tollgate audit`: checks the ledger of a running gateway, or an export, for which no gateway is needed.

use std::{
    fs::File,
    io::{self, BufRead, BufReader, Read},
    path::Path,
};

use http::Method;
use serde::Deserialize;
use serde_json::{Map, Value, json};
use tollgate_layers::{
    key::AccountId,
    money::MicroRub,
    reserve::{
        audit::{AccountAudit, Snapshot},
        ledger::{Audit, Receipt},
    },
};

use super::{
    AdminArgs,
    client::Client,
    failure::Failure,
    show::{self, Cell, counted, rows, table},
};
use crate::admin::export::{FORMAT, VERSION};

/// Maximum length of an export line, in bytes. The line of an account with a million keys is shorter.
const LINE_BYTES_MAX: u64 = 1024 * 1024 * 1024;

/// Audits the ledger of a running gateway. The exit code is 1 only if the audit found a breach.
pub(super) async fn live(admin: &AdminArgs) -> Result<(), Failure> {
    let client = Client::new(admin)?;
    let answer = client.call_patiently(Method::POST, "/admin/v1/audit").await;
    report(admin.json, &answer.map_err(Failure::not_one)?)
}

/// Audits an export from a file, or from standard input if the path is `-`.
pub(super) fn of_export(json: bool, path: &Path) -> Result<(), Failure> {
    let audited = if path.as_os_str() == "-" {
        audit(&mut io::stdin().lock())
    } else {
        let file = File::open(path)
            .map_err(|error| Failure::Io(format!("--export {}: {error}", path.display())))?;
        audit(&mut BufReader::with_capacity(1024 * 1024, file))
    };
    let audit = audited.map_err(|why| match why {
        Unread::Io(error) => Failure::of_file(path, &error),
        wrong => Failure::Data(format!("{}: {wrong}", path.display())),
    })?;
    report(json, &json!(audit))
}

fn report(json: bool, answer: &Value) -> Result<(), Failure> {
    show::print(json, answer, audit_text)?;
    // If a response lacks the list `breaches`, it does not prove that there are no breaches.
    match answer["breaches"].as_array() {
        Some(breaches) if breaches.is_empty() => Ok(()),
        _ => Err(Failure::Found),
    }
}

fn audit_text(answer: &Value) -> String {
    let breaches = rows(answer, "breaches");
    let count = |field: &str, what: &str| counted(answer[field].as_u64().unwrap_or_default(), what);
    let looked_at = [
        count("accounts", "account"),
        count("keys", "key"),
        count("holds_open", "open hold"),
    ]
    .join(", ");
    if breaches.is_empty() {
        return format!("ok: {looked_at}, no breach\n");
    }
    let mut text = table(&[Cell::text("breach", "")], breaches);
    let found = match breaches.len() {
        1 => "1 breach".to_owned(),
        count => format!("{count} breaches"),
    };
    text.push_str(&format!(
        "{found} in {looked_at}: stop selling and investigate\n"
    ));
    text
}

/// The reason why an export could not be audited.
#[derive(Debug, thiserror::Error)]
enum Unread {
    #[error(transparent)]
    Io(#[from] io::Error),
    #[error("line {line}: {problem}")]
    NotAnExport { line: u64, problem: String },
}

/// Checks that this program can read an export with this header.
pub(super) fn check_header(format: &str, version: u64) -> Result<(), String> {
    match format == FORMAT && version == VERSION {
        true => Ok(()),
        false => Err(format!(
            "the export has format {format:?}, version {version}, but this program reads only {FORMAT:?}, version {VERSION}"
        )),
    }
}

/// A line of an export: only the fields that an audit needs.
#[derive(Debug, Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case")]
enum Line {
    Header {
        format: String,
        version: u64,
    },
    Account(Box<Snapshot>),
    Entry {
        id: String,
        account: AccountId,
        amount_rub: MicroRub,
    },
    Call(Box<Receipt>),
    End {
        accounts: u64,
        lines: u64,
    },
}

/// Reads an export to its end. Of each call, only the request number (16 bytes) stays in memory.
fn audit(export: &mut impl BufRead) -> Result<Audit, Unread> {
    let mut auditor = Auditor::default();
    let mut line = Vec::new();
    loop {
        line.clear();
        let mut next = export.by_ref().take(LINE_BYTES_MAX);
        next.read_until(b'\n', &mut line)?;
        if line.is_empty() {
            break;
        }
        auditor.lines += 1;
        auditor.line(&line).map_err(|problem| Unread::NotAnExport {
            line: auditor.lines,
            problem,
        })?;
    }
    if auditor.stage == Stage::End {
        return Ok(auditor.audit);
    }
    Err(Unread::NotAnExport {
        line: auditor.lines + 1,
        problem: "the export has no end line, so it was cut off: export again".into(),
    })
}

#[derive(Debug, Default)]
struct Auditor {
    stage: Stage,
    lines: u64,
    audit: Audit,
    /// The account whose journal is being read.
    account: Option<(AccountId, AccountAudit)>,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Stage {
    #[default]
    Header,
    Accounts,
    End,
}

impl Auditor {
    fn line(&mut self, line: &[u8]) -> Result<(), String> {
        if self.stage == Stage::End {
            return Err(
                "the export continues after its end line: check one export at a time".into(),
            );
        }
        let line: Line = serde_json::from_slice(line)
            .map_err(|error| format!("not a line of an export: {}", mistake(line, &error)))?;
        if (self.stage == Stage::Header) != matches!(line, Line::Header { .. }) {
            return Err("an export must have exactly one header, on its first line".into());
        }
        match line {
            Line::Header { format, version } => {
                check_header(&format, version)?;
                self.stage = Stage::Accounts;
            }
            Line::Account(books) => self.begin(*books)?,
            Line::Entry {
                id,
                account,
                amount_rub,
            } => self.account(&account)?.entry(&id, amount_rub),
            Line::Call(receipt) => self.account(&receipt.account)?.call(&receipt),
            Line::End { accounts, lines } => {
                self.close();
                if (accounts, lines) != (self.audit.accounts, self.lines) {
                    return Err(format!(
                        "the end line counts {accounts} accounts and {lines} lines, but the export has {} accounts and {} \
                         lines: lines were lost or added",
                        self.audit.accounts, self.lines
                    ));
                }
                self.stage = Stage::End;
            }
        }
        Ok(())
    }

    fn begin(&mut self, books: Snapshot) -> Result<(), String> {
        if let Some((before, _)) = &self.account
            && *before >= books.id
        {
            return Err(format!(
                "account {} comes after account {before}: an export lists each account once, ordered by id",
                books.id
            ));
        }
        self.close();
        self.audit.accounts += 1;
        self.audit.keys += books.keys.len() as u64;
        self.audit.holds_open += books.holds.len() as u64;
        let id = books.id.clone();
        self.account = Some((id, AccountAudit::new(books).keeping_numbers()));
        Ok(())
    }

    /// Returns the account whose journal is being read; an error if `id`, which the line names, is another account.
    fn account(&mut self, id: &AccountId) -> Result<&mut AccountAudit, String> {
        match &mut self.account {
            Some((open, audit)) if open == id => Ok(audit),
            _ => Err(format!(
                "a line of account {id} is outside the journal of that account"
            )),
        }
    }

    fn close(&mut self) {
        if let Some((_, audit)) = self.account.take() {
            self.audit.breaches.extend(audit.finish());
        }
    }
}

/// Returns what is wrong with a line of an export, with the name of the invalid field.
fn mistake(line: &[u8], error: &serde_json::Error) -> String {
    // Serde buffers all fields of a tagged enum before it parses them, so the position in its error is not the
    // position of the wrong field.
    let Ok(Value::Object(fields)) = serde_json::from_slice::<Value>(line) else {
        return "the line is not a JSON object".into();
    };
    let complaint = |fields: &Map<String, Value>| {
        let read = Line::deserialize(Value::Object(fields.clone()));
        read.err().map(|error| error.to_string())
    };
    let reported = complaint(&fields).unwrap_or_else(|| error.to_string());
    let quoted = |text: &str| text.split('`').nth(1).unwrap_or_default().to_owned();
    if reported.starts_with("missing field") {
        return format!("{}: the field is missing", quoted(&reported));
    }
    // The wrong field is the field whose removal changes the error text.
    let culprit = fields.keys().find(|name| {
        let mut others = fields.clone();
        others.remove(*name);
        complaint(&others).as_ref() != Some(&reported)
    });
    let problem = match reported.split_once(", expected one of ") {
        Some((unknown, known)) if unknown.starts_with("unknown variant") => {
            let known = known.replace('`', "");
            format!("{:?} is not one of {known}", quoted(unknown))
        }
        _ => reported.clone(),
    };
    match culprit {
        Some(name) => format!("{name}: {problem}"),
        None => problem,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NUMBERS: [&str; 3] = [
        "01a1f9e6-bc69-7767-a285-af3e6bb9c9e1",
        "01a1f9e6-bc69-7767-a285-af3e6bb9c9e2",
        "01a1f9e6-bc69-7767-a285-af3e6bb9c9e3",
    ];

    /// Returns an export of two accounts. The first account has entries of 150, charges of 9, a loss of 1 and 30 held;
    /// the second account is empty.
    fn export() -> Vec<Value> {
        let call = |number: &str, cost: &str, charged: &str, loss: &str, booked: &str| {
            json!({
                "kind": "call", "number": number, "at_ms": 5, "account": "acme", "key": "k1", "held_rub": "20.00",
                "cost_rub": cost, "charged_rub": charged, "loss_rub": loss, "booked": booked, "model": "m",
                "vendor": "v", "usage": {"input": 1, "cached_input": 0, "cache_write": 0, "output": 2},
                "price": null, "estimated": false, "end": "finished",
            })
        };
        let entry = |id: &str, amount: &str| {
            json!({
                "kind": "entry", "id": id, "at_ms": 1, "account": "acme", "amount_rub": amount, "reason": null,
            })
        };
        vec![
            json!({"kind": "header", "format": "tollgate-export", "version": 1, "made_at": "2026-01-31T00:00:00Z"}),
            json!({
                "kind": "account", "id": "acme", "name": "Acme", "status": "active", "balance_rub": "141.00",
                "held_rub": "30.00", "free_rub": "111.00", "spent_rub": "9.00", "loss_rub": "1.00",
                "entered_rub": "150.00",
                "keys": [
                    {"id": "k1", "spent_rub": "9.00", "held_rub": "30.00", "ceiling_rub": null},
                    {"id": "k2", "spent_rub": "0.00", "held_rub": "0.00", "ceiling_rub": "5.00"},
                ],
                "holds": [{"number": NUMBERS[2], "key": "k1", "held_rub": "30.00", "due_ms": 9}],
                "journal_end": "9", "journal_complete": true,
            }),
            entry("p1", "200.00"),
            call(NUMBERS[0], "7.00", "6.00", "1.00", "held"),
            call(NUMBERS[1], "3.00", "0.00", "0.00", "stale"),
            entry("c1", "-50.00"),
            call(NUMBERS[1], "3.00", "3.00", "0.00", "forced"),
            json!({
                "kind": "account", "id": "beta", "balance_rub": "0.00", "held_rub": "0.00", "spent_rub": "0.00",
                "loss_rub": "0.00", "entered_rub": "0.00", "keys": [], "holds": [], "journal_complete": true,
            }),
            json!({"kind": "end", "accounts": 2, "lines": 9}),
        ]
    }

    fn text(lines: &[Value]) -> String {
        lines.iter().map(|line| format!("{line}\n")).collect()
    }

    fn audited(text: &str) -> Result<Audit, Unread> {
        audit(&mut text.as_bytes())
    }

    #[test]
    fn consistent_export_has_no_breach() {
        let audit = audited(&text(&export())).unwrap();
        assert_eq!(
            audit,
            Audit {
                accounts: 2,
                keys: 2,
                holds_open: 1,
                breaches: Vec::new()
            }
        );
    }

    #[test]
    fn export_that_breaks_an_invariant_is_reported_with_the_name_of_the_invariant() {
        type Edit = fn(&mut Vec<Value>);
        let add: fn(&mut Vec<Value>, Value) = |lines, line| {
            lines.insert(7, line);
            lines[9]["lines"] = json!(10);
        };
        let cases: [(Edit, &str); 16] = [
            (
                |lines| lines[1]["held_rub"] = json!("29.00"),
                "I2 account acme: held",
            ),
            (
                |lines| lines[1]["keys"][0]["held_rub"] = json!("31.00"),
                "I2 key k1: held",
            ),
            (
                |lines| lines[1]["holds"][0]["key"] = json!("k2"),
                "I2 key k1: held",
            ),
            (
                |lines| lines[1]["holds"][0]["held_rub"] = json!("31.00"),
                "I2 account acme: held",
            ),
            (
                |lines| lines[1]["balance_rub"] = json!("141.000001"),
                "I3 account acme: balance",
            ),
            (
                |lines| lines[1]["keys"][0]["spent_rub"] = json!("8.00"),
                "I3 key k1: used",
            ),
            (
                |lines| lines[1]["spent_rub"] = json!("8.00"),
                "I3 account acme: spent",
            ),
            (
                |lines| lines[1]["loss_rub"] = json!("0.00"),
                "I3 account acme: loss",
            ),
            (
                |lines| lines[3]["cost_rub"] = json!("8.00"),
                "I3 key k1: call",
            ),
            (
                |lines| lines[3]["key"] = json!("k9"),
                "I3 key k9: account acme has no such key",
            ),
            (
                |lines| lines[4]["charged_rub"] = json!("3.00"),
                "I3 key k1: call",
            ),
            (
                |lines| lines[2]["amount_rub"] = json!("201.00"),
                "I3 account acme: entered",
            ),
            (
                |lines| lines[1]["held_rub"] = json!("142.00"),
                "I4 account acme: held",
            ),
            (
                |lines| lines[6]["number"] = json!(NUMBERS[0]),
                "I5 account acme: call",
            ),
            (
                |lines| lines[1]["holds"][0]["number"] = json!(NUMBERS[0]),
                "I5 account acme: hold",
            ),
            (
                |lines| lines[5]["id"] = json!("p1"),
                "I10 account acme: entry \"p1\"",
            ),
        ];
        for (index, (edit, says)) in cases.into_iter().enumerate() {
            let mut lines = export();
            edit(&mut lines);
            let breaches = audited(&text(&lines)).unwrap().breaches;
            assert!(
                breaches.iter().any(|breach| breach.starts_with(says)),
                "{index}: {says}: {breaches:?}"
            );
        }

        // The export lacks one call and contains another call twice; the line count in its end line is adjusted.
        let mut lines = export();
        lines.remove(6);
        lines[7]["lines"] = json!(8);
        let breaches = audited(&text(&lines)).unwrap().breaches;
        assert!(
            breaches[0].starts_with("I3 key k1: used 9000000"),
            "{breaches:?}"
        );
        let mut lines = export();
        let call = lines[3].clone();
        add(&mut lines, call);
        let breaches = audited(&text(&lines)).unwrap().breaches;
        assert!(
            breaches[0].starts_with("I5 account acme: call"),
            "{breaches:?}"
        );
    }

    #[test]
    fn call_with_a_wrong_cost_is_reported_with_its_request_number() {
        let with = |input: &str, classes: Value| {
            let mut lines = export();
            // The usage is 1 token of input, 2 tokens of output, and a one-hour cache write of 1 token.
            lines[3]["usage"]["classes"] = json!({"cache_write_1h": 1});
            lines[3]["price"] = json!({
                "input": input, "cached_input": "0.00", "output": "1000000.00", "cache_write": "0.00",
                "classes": classes, "version": 1, "exchange_rate": "90", "rule": "acme 2026",
            });
            audited(&text(&lines)).unwrap().breaches
        };
        let hour = || json!({"cache_write_1h": "2000000.00"});
        let sound = with("3000000.00", hour());
        assert_eq!(sound, Vec::<String>::new());
        let call = format!("I3 key k1: call {} cost 7000000 µ₽", NUMBERS[0]);
        let dearer = with("3000000.000001", hour());
        let says = format!("{call}, but its usage at its prices comes to 7000001");
        assert_eq!(dearer, [says]);
        let free = with("3000000.00", json!({}));
        assert_eq!(free, [format!("{call} without a price of cache_write_1h")]);
    }

    #[test]
    fn foreign_or_truncated_export_is_rejected_with_a_line_number() {
        let good = text(&export());
        let lines: Vec<&str> = good.lines().collect();
        let joined = |lines: &[&str]| lines.join("\n");
        for (text, line, says) in [
            (String::new(), 1, "the export has no end line"),
            (joined(&lines[..8]), 9, "the export has no end line"),
            (joined(&lines[..4]), 5, "the export has no end line"),
            (
                joined(&[lines[0], &lines[1][..100]]),
                2,
                "not a line of an export",
            ),
            (joined(&lines[1..]), 1, "exactly one header"),
            (joined(&[lines[0], lines[0]]), 2, "exactly one header"),
            (
                format!("{good}{}", lines[0]),
                10,
                "continues after its end line",
            ),
            (
                joined(&[lines[0], lines[2]]),
                2,
                "outside the journal of that account",
            ),
            (
                joined(&[lines[0], lines[1], lines[1]]),
                3,
                "comes after account acme",
            ),
            (
                joined(&[&lines[..4], &lines[5..]].concat()),
                8,
                "counts 2 accounts and 9 lines",
            ),
            (
                good.replace("\"version\":1", "\"version\":2"),
                1,
                "version 2",
            ),
            (
                good.replace("\"entered_rub\":\"150.00\",", ""),
                2,
                "not a line of an export: entered_rub: the field is missing",
            ),
            (
                good.replace("\"stale\"", "\"lent\""),
                5,
                "not a line of an export: booked: \"lent\" is not one of held, late,",
            ),
            (
                good.replace("\"kind\":\"end\"", "\"kind\":\"fin\""),
                9,
                "kind: \"fin\" is not one of header, account, entry, call, end",
            ),
            (
                good.replacen("\"held_rub\":\"30.00\",", "\"held_rub\":true,", 1),
                2,
                "held_rub: invalid type: boolean `true`",
            ),
            (
                good.replace("\"cost_rub\":\"7.00\"", "\"cost_rub\":\"1e3\""),
                4,
                "cost_rub: not a decimal number",
            ),
            ("PK\u{3}\u{4}\u{0}\n".into(), 1, "not a line of an export"),
            ("\n".into(), 1, "not a line of an export"),
        ] {
            let error = audited(&text).unwrap_err();
            let Unread::NotAnExport {
                line: found,
                problem,
            } = error
            else {
                panic!("{error}")
            };
            assert!(
                found == line && problem.contains(says),
                "{says}: line {found}: {problem}"
            );
        }
    }

    #[test]
    fn audit_report_lists_its_breaches() {
        let clean = json!({"accounts": 2, "keys": 3, "holds_open": 0, "breaches": []});
        assert_eq!(
            audit_text(&clean),
            "ok: 2 accounts, 3 keys, 0 open holds, no breach\n"
        );
        let breach = json!({"accounts": 2, "keys": 3, "holds_open": 0, "breaches": ["I2: acme holds 5, not 4"]});
        assert!(audit_text(&breach).contains("\nI2: acme holds 5, not 4\n1 breach in 2 accounts,"));
    }
}
