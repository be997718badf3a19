//! Parses the lines of the imported file, and checks each line by itself and against the earlier lines.

use std::collections::HashMap;

use serde_json::{Map, Value};
use tollgate_layers::{key::AccountId, money::MicroRub};

use crate::{
    api::{ceilings, fields},
    cli::{csv, show::counted},
    text::similar::hint,
};

/// The payment's id, if the line gives none.
const TOPUP_ID: &str = "import";

/// Returns the columns that limit a key, each with the function that parses the column's cells. A column has the same
/// name as the API's field.
fn limits() -> impl Iterator<Item = (&'static str, ReadCell)> {
    let read: ReadCell = |text, _| checked(text, fields::ceiling);
    let ceilings = ceilings::fields().map(move |field| (field, read));
    ceilings.chain(LIMITS.iter().copied())
}

/// The columns that limit a key, except its ceilings.
const LIMITS: &[(&str, ReadCell)] = &[
    ("models", |text, _| list(text, fields::words)),
    ("addresses", |text, _| list(text, fields::address)),
    ("requests_per_second", |text, _| {
        number(text, fields::requests)
    }),
    ("requests_per_minute", |text, _| {
        number(text, fields::requests)
    }),
    ("tokens_per_minute", |text, _| number(text, fields::tokens)),
    ("expires_at", |text, now_ms| {
        checked(text, fields::time_after(now_ms))
    }),
];

/// Parses a cell as the API would parse its field. The arguments are the cell's text and the current Unix time (ms).
type ReadCell = fn(&str, u64) -> Result<Value, String>;

const COLUMNS: &[&str] = &[
    "account",
    "name",
    "balance_rub",
    "topup_id",
    "key_name",
    "key_sha256",
    "key_prefix",
];

/// A line of the file whose cells are all valid. The line may still contradict an earlier line.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Row {
    pub(super) line: u64,
    pub(super) account: AccountId,
    pub(super) name: String,
    pub(super) payment: Option<Payment>,
    pub(super) key: Option<Key>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Payment {
    pub(super) id: String,
    pub(super) amount: MicroRub,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Key {
    pub(super) name: String,
    /// The digest of a key that a caller already has; `None` if the import generates the key.
    pub(super) sha256: Option<String>,
    pub(super) prefix: Option<String>,
    pub(super) limits: Map<String, Value>,
}

/// A mistake in the file: its line number and its text.
pub(super) type Mistake = (u64, String);

/// Parses all lines of the file, or returns all mistakes in them.
pub(super) fn rows(text: &str, now_ms: u64) -> Result<Vec<Row>, Vec<Mistake>> {
    let records = csv::records(text).map_err(|(line, problem)| vec![(line, problem.to_owned())])?;
    let mut records = records.into_iter();
    let Some(head) = records.next() else {
        return Err(vec![(
            1,
            "the file is empty: its first line must name the columns".into(),
        )]);
    };
    let mut mistakes = wrong_columns(&head);
    if !mistakes.is_empty() {
        return Err(mistakes);
    }
    let mut rows = Vec::new();
    let mut before = Before::default();
    for record in records {
        if record.cells.len() > head.cells.len() {
            let cells = counted(record.cells.len() as u64, "cell");
            let columns = counted(head.cells.len() as u64, "column");
            let mistake = format!("the line has {cells}, but the header has {columns}");
            mistakes.push((record.line, mistake));
            continue;
        }
        let mut line = Line::new(&head, &record);
        if let Some(row) = line.row(record.line, now_ms) {
            before.compare(&row, &mut line.problems);
            rows.push(row);
        }
        let problems = line.problems.into_iter();
        mistakes.extend(problems.map(|problem| (record.line, problem)));
    }
    if mistakes.is_empty() {
        Ok(rows)
    } else {
        Err(mistakes)
    }
}

/// Returns the mistakes in the header line.
fn wrong_columns(head: &csv::Record) -> Vec<Mistake> {
    let mut mistakes = Vec::new();
    let limits = || limits().map(|(name, _)| name);
    let known = || COLUMNS.iter().copied().chain(limits());
    for (index, name) in head.cells.iter().enumerate() {
        if !known().any(|column| column == name) {
            let hint = hint(name, known());
            mistakes.push((head.line, format!("{name:?} is not a column{hint}")));
        } else if head.cells[..index].contains(name) {
            mistakes.push((head.line, format!("{name}: the column occurs twice")));
        }
    }
    if !head.cells.iter().any(|name| name == "account") {
        mistakes.push((head.line, "the required column account is missing".into()));
    }
    mistakes
}

/// A line that is being parsed: its non-empty cells by column, and the mistakes found so far.
struct Line<'a> {
    cells: HashMap<&'a str, &'a str>,
    problems: Vec<String>,
}

impl<'a> Line<'a> {
    fn new(head: &'a csv::Record, record: &'a csv::Record) -> Self {
        let columns = head.cells.iter().map(String::as_str);
        let cells = columns.zip(record.cells.iter().map(String::as_str));
        Self {
            cells: cells.filter(|(_, cell)| !cell.is_empty()).collect(),
            problems: Vec::new(),
        }
    }

    /// Returns the parsed row of the line; `None` if the line has no valid account.
    fn row(&mut self, line: u64, now_ms: u64) -> Option<Row> {
        let name = self.text("name", |cell| checked(cell, fields::line));
        let payment = self.payment();
        let key = self.key(now_ms);
        self.check_what_belongs_together();
        let account = self.account()?;
        Some(Row {
            line,
            account,
            name: name.unwrap_or_default(),
            payment,
            key,
        })
    }

    fn account(&mut self) -> Option<AccountId> {
        let account: Result<AccountId, String> = match self.cells.get("account") {
            None => Err("account: the cell is empty".into()),
            Some(cell) => cell
                .parse::<AccountId>()
                .map_err(|error| format!("account: {error}")),
        };
        account.map_err(|problem| self.problems.push(problem)).ok()
    }

    fn payment(&mut self) -> Option<Payment> {
        let id = self.text("topup_id", |cell| checked(cell, fields::words));
        let amount = self.text("balance_rub", |cell| {
            checked(cell, fields::amount).and_then(|value| match cell.parse::<MicroRub>() {
                Ok(amount) if amount > MicroRub::ZERO => Ok(value),
                _ => Err(
                    "a payment must be more than 0; for no payment, leave the cell empty".into(),
                ),
            })
        })?;
        Some(Payment {
            id: id.unwrap_or_else(|| TOPUP_ID.to_owned()),
            amount: amount.parse().ok()?,
        })
    }

    fn key(&mut self, now_ms: u64) -> Option<Key> {
        let name = self.text("key_name", |cell| checked(cell, fields::line));
        let sha256 = self.text("key_sha256", |cell| {
            checked(cell, fields::sha256).map(|_| cell.to_ascii_lowercase().into())
        });
        let prefix = self.text("key_prefix", |cell| checked(cell, fields::prefix));
        let mut limits = Map::new();
        for (column, read) in self::limits() {
            if let Some(value) = self.take(column, |cell| read(cell, now_ms)) {
                limits.insert(column.to_owned(), value);
            }
        }
        self.has_key().then(|| Key {
            name: name.unwrap_or_default(),
            sha256,
            prefix,
            limits,
        })
    }

    fn check_what_belongs_together(&mut self) {
        let of_key = limits().map(|(column, _)| column);
        let stray = of_key
            .chain(["key_prefix"])
            .find(|column| self.gives(column))
            .filter(|_| !self.has_key());
        if let Some(column) = stray {
            self.problems.push(format!(
                "{column}: the line has no key to which the cell could apply; give key_name or key_sha256"
            ));
        } else if self.gives("key_prefix") && !self.gives("key_sha256") {
            self.problems.push(
                "key_prefix: valid only with key_sha256; the prefix of a new key is generated"
                    .into(),
            );
        }
        if self.gives("topup_id") && !self.gives("balance_rub") {
            self.problems.push(
                "topup_id: the line has no payment that the id could name; give balance_rub".into(),
            );
        }
    }

    fn has_key(&self) -> bool {
        self.gives("key_name") || self.gives("key_sha256")
    }

    fn gives(&self, column: &str) -> bool {
        self.cells.contains_key(column)
    }

    fn take(
        &mut self,
        column: &str,
        read: impl FnOnce(&str) -> Result<Value, String>,
    ) -> Option<Value> {
        match read(self.cells.get(column)?) {
            Ok(value) => Some(value),
            Err(problem) => {
                self.problems.push(format!("{column}: {problem}"));
                None
            }
        }
    }

    fn text(
        &mut self,
        column: &str,
        read: impl FnOnce(&str) -> Result<Value, String>,
    ) -> Option<String> {
        match self.take(column, read)? {
            Value::String(text) => Some(text),
            _ => None,
        }
    }
}

/// The contents of earlier lines of the file, with line numbers, to detect contradictions and duplicates.
#[derive(Debug, Default)]
struct Before {
    names: HashMap<AccountId, String>,
    payments: HashMap<(AccountId, String), u64>,
    digests: HashMap<String, u64>,
    made: HashMap<(AccountId, String), u64>,
}

impl Before {
    fn compare(&mut self, row: &Row, problems: &mut Vec<String>) {
        let account = || row.account.clone();
        let first = self
            .names
            .entry(account())
            .or_insert_with(|| row.name.clone());
        if !row.name.is_empty() && *first != row.name {
            problems.push(format!(
                "name: an earlier line gives account {} the name {first:?}",
                row.account
            ));
        }
        if let Some(payment) = &row.payment {
            let id = (account(), payment.id.clone());
            if let Some(line) = self.payments.insert(id, row.line) {
                problems.push(format!(
                    "topup_id: {:?} is also on line {line}; give each payment of an account its own id",
                    payment.id
                ));
            }
        }
        let Some(key) = &row.key else { return };
        let earlier = match &key.sha256 {
            Some(sha256) => self.digests.insert(sha256.clone(), row.line),
            None => self.made.insert((account(), key.name.clone()), row.line),
        };
        if let Some(line) = earlier {
            let column = key.sha256.as_ref().map_or("key_name", |_| "key_sha256");
            problems.push(format!("{column}: line {line} already has this value"));
        }
    }
}

/// Returns the cell as a JSON string, if `read` accepts it.
fn checked<T>(text: &str, read: impl Fn(&Value) -> Result<T, String>) -> Result<Value, String> {
    let value = Value::from(text);
    read(&value).map(|_| value)
}

fn number<T>(text: &str, read: impl Fn(&Value) -> Result<T, String>) -> Result<Value, String> {
    let number = text
        .parse::<u64>()
        .map_or_else(|_| text.into(), Value::from);
    read(&number).map(|_| number)
}

/// Parses a cell with words separated by spaces, each word with `read`.
fn list<T>(text: &str, read: impl Fn(&Value) -> Result<T, String>) -> Result<Value, String> {
    let words = text
        .split_whitespace()
        .map(|word| checked(word, &read).map_err(|problem| format!("{word:?} {problem}")));
    words.collect::<Result<Vec<_>, _>>().map(Value::from)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn mistakes(text: &str) -> Vec<Mistake> {
        rows(text, 0).unwrap_err()
    }

    #[test]
    fn import_lines_become_accounts_and_payments_and_keys() {
        let sha256 = "AB".repeat(32);
        let text = format!(
            "account,name,balance_rub,key_name,key_sha256,key_prefix,ceiling_rub,models,addresses,requests_per_second\n\
             acme,Acme,1000.50,ci,{sha256},sk-AbC,100,gpt-5 gpt-5-mini,10.0.0.0/8 ::1,5\n\
             acme,,,web\n\
             beta\n"
        );
        let rows = rows(&text, 0).unwrap();
        assert_eq!(rows.len(), 3);
        assert_eq!(
            rows[0].payment,
            Some(Payment {
                id: "import".into(),
                amount: MicroRub::new(1_000_500_000)
            })
        );
        let key = rows[0].key.as_ref().unwrap();
        assert_eq!(key.sha256, Some("ab".repeat(32)));
        assert_eq!(
            Value::Object(key.limits.clone()),
            json!({
                "ceiling_rub": "100", "models": ["gpt-5", "gpt-5-mini"], "addresses": ["10.0.0.0/8", "::1"],
                "requests_per_second": 5,
            })
        );
        assert_eq!(rows[1].key.as_ref().unwrap().name, "web");
        assert_eq!((rows[2].line, &rows[2].key), (4, &None));
    }

    #[test]
    fn every_import_error_has_its_line_and_column() {
        let head = "account,name,balance_rub,topup_id,key_name,key_sha256,key_prefix,ceiling_rub,models,\
                    requests_per_second,expires_at";
        let digest = "ab".repeat(32);
        let text = format!(
            "{head}\n,\na/b\na,,-5\na,,1e3\na,,,p7\na,,,,k0,xyz\na,,,,k,,sk-\na,,,,,,,5\na,,,,k2,,,-1\na,,,,k3,,,,,0\n\
             a,,,,k4,,,,,,1970-01-01\nb,B,1\nb,C,2\nc,,,,k\nc,,,,k\nc,,,,x,{digest}\nd,,,,x,{digest}\n\
             e,,,,,,,,,,,too many\n"
        );
        let found = mistakes(&text);
        for (line, says) in [
            (3, "account: an id must have"),
            (4, "balance_rub: a payment must be more than 0"),
            (5, "balance_rub: not a decimal number"),
            (6, "topup_id: the line has no payment"),
            (7, "key_sha256: must be 64 hexadecimal digits"),
            (8, "key_prefix: valid only with key_sha256"),
            (9, "ceiling_rub: the line has no key"),
            (10, "ceiling_rub: must not be negative"),
            (11, "requests_per_second: must be a whole number"),
            (12, "expires_at: is in the past"),
            (14, "name: an earlier line gives account b the name \"B\""),
            (14, "topup_id: \"import\" is also on line 13"),
            (16, "key_name: line 15 already has this value"),
            (18, "key_sha256: line 17 already has this value"),
            (19, "the line has 12 cells, but the header has 11 columns"),
        ] {
            assert!(
                found
                    .iter()
                    .any(|(at, problem)| *at == line && problem.starts_with(says)),
                "line {line}: {says}: {found:#?}"
            );
        }
        assert_eq!(found.len(), 15, "{found:#?}");
    }

    #[test]
    fn columns_of_an_import_are_checked_before_its_lines() {
        for (text, says) in [
            ("", "its first line must name the columns"),
            ("name\nx\n", "the required column account is missing"),
            ("account,celing_rub\na,5\n", "did you mean ceiling_rub?"),
            ("account,name,name\na\n", "name: the column occurs twice"),
            ("account\n\"a\n", "never closed"),
        ] {
            let found = mistakes(text);
            assert!(found[0].1.contains(says), "{text}: {found:?}");
        }
    }
}
