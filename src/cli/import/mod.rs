//! `tollgate import`: accounts, payments and keys from a CSV file, by the admin API.
//!
//! All lines are read and checked, then compared with what the gateway has, and only then is anything done.
//! Keys that are made are made here: they are in the file of keys before the gateway hears of their digests,
//! so a broken connection loses none.

use std::{
    collections::{BTreeMap, HashMap, HashSet},
    fs::{self, File, OpenOptions},
    io::{self, Write},
    path::{Path, PathBuf},
};

use clap::Args;
use http::Method;
use serde_json::{Map, Value, json};
use tollgate_layers::{auth::SecretKey, key::AccountId, money::MicroRub};

use super::{
    AdminArgs,
    client::Client,
    csv::{self, quoted},
    failure::Failure,
    progress::Progress,
    show::{self, Cell, counted, table},
};
use crate::{admin, text::similar::hint};

pub(super) const HELP: &str = "\
The first line names the columns, in any order; only account is required:
  account              its id; opened if it is not there
  name                 its name, for people
  balance_rub          a payment into it: decimal rubles
  topup_id             that payment's id; by default import. The same id is booked once, ever
  key_name             a key of the account, by a name of its own
  key_sha256           SHA-256 of a key that its caller has already, as 64 hexadecimal digits; without it the key is made
  key_prefix           its first characters, for people, 16 at most
  ceiling_rub          the most the key may spend in all
  models               models it may call, with spaces between them; none: every one
  addresses            addresses or blocks it may be used from, with spaces between them; none: everywhere
  ceiling_month_rub    the most it may spend in a month
  ceiling_day_rub      the most it may spend in a day
  requests_per_second  the most requests per second
  requests_per_minute  the most requests per minute
  tokens_per_minute    the most tokens per minute
  expires_at           date or time from which it is refused
An account with several keys has several lines; its name and its payment stand on the first.
Any key of 8 to 512 visible ASCII characters that does not begin with tg- can be taken over by its digest:
  printf %s \"$KEY\" | sha256sum

Examples:
  tollgate import customers.csv --dry-run
  tollgate import customers.csv --keys-out made.csv";

/// What to import.
#[derive(Debug, Args)]
pub(super) struct ImportArgs {
    /// The file; - is standard input
    file: PathBuf,
    /// Check everything and say what would be done
    #[arg(long)]
    dry_run: bool,
    /// Where the keys that are made go, as CSV, for your eyes only (mode 0600). One that is there is gone on with
    #[arg(long, value_name = "FILE")]
    keys_out: Option<PathBuf>,
}

/// The largest file that is read.
const FILE_BYTES_MAX: u64 = 256 * 1024 * 1024;
/// So many mistakes are listed; the rest is counted.
const MISTAKES_MAX: usize = 100;
/// The payment's id where the file names none.
const TOPUP_ID: &str = "import";

/// What a key may be given: the columns are the API's fields.
const LIMITS: &[(&str, ReadCell)] = &[
    ("ceiling_rub", |text, _| checked(text, admin::ceiling)),
    ("models", |text, _| list(text, admin::words)),
    ("addresses", |text, _| list(text, admin::address)),
    ("ceiling_month_rub", |text, _| checked(text, admin::ceiling)),
    ("ceiling_day_rub", |text, _| checked(text, admin::ceiling)),
    ("requests_per_second", |text, _| {
        number(text, admin::requests)
    }),
    ("requests_per_minute", |text, _| {
        number(text, admin::requests)
    }),
    ("tokens_per_minute", |text, _| number(text, admin::tokens)),
    ("expires_at", |text, now_ms| {
        checked(text, admin::time_after(now_ms))
    }),
];

/// Reads a cell as the API's field would be, at this time.
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

/// One line, right by itself.
#[derive(Debug, PartialEq, Eq)]
struct Row {
    line: u64,
    account: AccountId,
    name: String,
    payment: Option<Payment>,
    key: Option<Key>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
struct Payment {
    id: String,
    amount: MicroRub,
}

#[derive(Clone, Debug, PartialEq, Eq)]
struct Key {
    name: String,
    /// The digest of a key that its caller has; without it the key is to be made.
    sha256: Option<String>,
    prefix: Option<String>,
    limits: Map<String, Value>,
}

/// What is to be done for a line.
#[derive(Debug)]
struct Step {
    row: Row,
    opens_account: bool,
    key: Todo,
}

#[derive(Debug, PartialEq, Eq)]
enum Todo {
    Nothing,
    /// It is there already.
    There,
    /// Its caller has it.
    TakeOver,
    /// It is made here.
    Make,
}

/// What came of an account.
#[derive(Debug, Default)]
struct Done {
    opened: bool,
    payments: u64,
    made: u64,
    taken_over: u64,
    there: u64,
}

pub(super) async fn import(reach: &AdminArgs, wish: &ImportArgs) -> Result<(), Failure> {
    let client = Client::new(reach)?;
    let name = wish.file.display().to_string();
    let rows =
        rows(&read(&wish.file)?, admin::now_ms()).map_err(|mistakes| told(&name, &mistakes))?;
    let mut keys = match &wish.keys_out {
        Some(path) => Keys::open(path)?,
        None => Keys::default(),
    };
    let steps = plan(&client, rows, &keys).await?;
    let steps = steps.map_err(|mistakes| told(&name, &mistakes))?;
    let to_make = steps.iter().filter(|step| step.key == Todo::Make).count();
    if to_make > 0 && wish.keys_out.is_none() && !wish.dry_run {
        return Err(Failure::Usage(format!(
            "{} would be made: say with --keys-out FILE where to write them",
            counted(to_make as u64, "key")
        )));
    }
    let mut done = BTreeMap::new();
    let mut progress = Progress::new("lines", Some(steps.len() as u64));
    for (index, step) in steps.iter().enumerate() {
        let of_account = done.entry(step.row.account.clone()).or_default();
        if !wish.dry_run {
            apply(&client, step, &mut keys).await.map_err(|failure| {
                failure.at(&format!(
                    "{name}: line {} (the lines before it are done; import again when this is mended)",
                    step.row.line
                ))
            })?;
        }
        note(of_account, step);
        progress.at(index as u64 + 1);
    }
    drop(progress);
    report(reach.json, wish.dry_run, &done)
}

fn report(json: bool, dry_run: bool, done: &BTreeMap<AccountId, Done>) -> Result<(), Failure> {
    const ROW: &[Cell] = &[
        Cell::text("account", "/account"),
        Cell::text("opened", "/opened"),
        Cell::number("payments", "/payments"),
        Cell::number("keys made", "/keys_made"),
        Cell::number("taken over", "/keys_taken_over"),
        Cell::number("there already", "/keys_there"),
    ];
    let rows: Vec<Value> = done
        .iter()
        .map(|(account, done)| {
            json!({
                "account": account, "opened": done.opened, "payments": done.payments, "keys_made": done.made,
                "keys_taken_over": done.taken_over, "keys_there": done.there,
            })
        })
        .collect();
    let answer = json!({ "dry_run": dry_run, "accounts": rows });
    show::print(json, &answer, |_| {
        let mut text = table(ROW, &rows);
        if dry_run {
            text.push_str("nothing was done: this is what would be\n");
        }
        text
    })
}

fn note(done: &mut Done, step: &Step) {
    done.opened |= step.opens_account;
    done.payments += u64::from(step.row.payment.is_some());
    let count = match step.key {
        Todo::Nothing => return,
        Todo::There => &mut done.there,
        Todo::TakeOver => &mut done.taken_over,
        Todo::Make => &mut done.made,
    };
    *count += 1;
}

/// Does what a line asks for. All of it can be done again.
async fn apply(client: &Client, step: &Step, keys: &mut Keys) -> Result<(), Failure> {
    let Row {
        account,
        name,
        payment,
        key,
        ..
    } = &step.row;
    let path = format!("/admin/v1/accounts/{account}");
    if step.opens_account {
        let body = json!({ "id": account, "name": name });
        client
            .call(Method::POST, "/admin/v1/accounts", Some(body))
            .await?;
    }
    if let Some(Payment { id, amount }) = payment {
        let body = json!({ "id": id, "amount_rub": amount });
        client
            .call(Method::POST, &format!("{path}/topups"), Some(body))
            .await?;
    }
    let Some(key) = key else { return Ok(()) };
    let (sha256, prefix) = match step.key {
        Todo::Nothing | Todo::There => return Ok(()),
        Todo::TakeOver => (key.sha256.clone(), key.prefix.clone()),
        Todo::Make => {
            let secret = keys.secret(account, &key.name)?;
            (Some(secret.digest().to_string()), Some(secret.prefix()))
        }
    };
    let mut body = key.limits.clone();
    body.insert("name".into(), key.name.clone().into());
    body.extend(
        [("sha256", sha256), ("prefix", prefix)]
            .into_iter()
            .filter_map(|(field, value)| Some((field.to_owned(), Value::from(value?)))),
    );
    client
        .call(Method::POST, &format!("{path}/keys"), Some(body.into()))
        .await?;
    Ok(())
}

/// Compares the lines with what the gateway has.
async fn plan(
    client: &Client,
    rows: Vec<Row>,
    keys: &Keys,
) -> Result<Result<Vec<Step>, Vec<Mistake>>, Failure> {
    let there = client.call(Method::GET, "/admin/v1/accounts", None).await?;
    let mut names: HashMap<String, Option<String>> = each(&there, "accounts", "id", "name")
        .into_iter()
        .map(|(id, name)| (id, Some(name)))
        .collect();
    let mut of_account: HashMap<AccountId, HashSet<String>> = HashMap::new();
    let (mut steps, mut mistakes) = (Vec::with_capacity(rows.len()), Vec::new());
    let mut progress = Progress::new("lines checked", Some(rows.len() as u64));
    for (index, row) in rows.into_iter().enumerate() {
        let known = names.get(&*row.account).cloned();
        if let Some(Some(known)) = &known
            && !row.name.is_empty()
            && *known != row.name
        {
            mistakes.push((
                row.line,
                format!(
                    "name: account {} is there already, as {known:?}",
                    row.account
                ),
            ));
        }
        let opens_account = known.is_none();
        if opens_account {
            names.insert(row.account.to_string(), None);
        }
        let there = matches!(known, Some(Some(_)));
        let key = match &row.key {
            None => Todo::Nothing,
            Some(key) => match todo(client, &row.account, there, key, keys, &mut of_account).await?
            {
                Ok(todo) => todo,
                Err(mistake) => {
                    mistakes.push((row.line, mistake));
                    Todo::Nothing
                }
            },
        };
        steps.push(Step {
            row,
            opens_account,
            key,
        });
        progress.at(index as u64 + 1);
    }
    Ok(if mistakes.is_empty() {
        Ok(steps)
    } else {
        Err(mistakes)
    })
}

/// What is to be done for a key.
async fn todo(
    client: &Client,
    account: &AccountId,
    account_there: bool,
    key: &Key,
    keys: &Keys,
    of_account: &mut HashMap<AccountId, HashSet<String>>,
) -> Result<Result<Todo, String>, Failure> {
    let made_before = keys.known(account, &key.name);
    let digest = match (&key.sha256, made_before) {
        (Some(sha256), _) => Some(sha256.clone()),
        (None, Some(secret)) => Some(secret.digest().to_string()),
        (None, None) => None,
    };
    if let Some(digest) = digest {
        let found = client
            .find(&format!("/admin/v1/keys/sha256-{digest}"))
            .await?;
        return Ok(match found {
            None if key.sha256.is_some() => Ok(Todo::TakeOver),
            None => Ok(Todo::Make),
            Some(found) if found["account"] == **account => Ok(Todo::There),
            Some(found) => Err(format!(
                "key_sha256: that key is account {}'s already",
                found["account"].as_str().unwrap_or("?")
            )),
        });
    }
    if !account_there {
        return Ok(Ok(Todo::Make));
    }
    let there = match of_account.get(account) {
        Some(names) => names.contains(&key.name),
        None => {
            let names = key_names(client, account).await?;
            let there = names.contains(&key.name);
            of_account.insert(account.clone(), names);
            there
        }
    };
    Ok(Ok(if there { Todo::There } else { Todo::Make }))
}

/// The names of an account's keys, less the deleted ones.
async fn key_names(client: &Client, account: &AccountId) -> Result<HashSet<String>, Failure> {
    let path = format!("/admin/v1/accounts/{account}/keys");
    let listed = client.call(Method::GET, &path, None).await?;
    let names = each(&listed, "keys", "name", "status").into_iter();
    Ok(names
        .filter(|(_, status)| status != "deleted")
        .map(|(name, _)| name)
        .collect())
}

/// Two texts of each item of a list.
fn each(answer: &Value, list: &str, one: &str, other: &str) -> Vec<(String, String)> {
    let text = |item: &Value, name: &str| item[name].as_str().unwrap_or_default().to_owned();
    let items = answer[list].as_array().map_or(&[][..], Vec::as_slice);
    items
        .iter()
        .map(|item| (text(item, one), text(item, other)))
        .collect()
}

/// The line and what is wrong with it.
type Mistake = (u64, String);

fn told(file: &str, mistakes: &[Mistake]) -> Failure {
    let mut lines: Vec<String> = mistakes
        .iter()
        .take(MISTAKES_MAX)
        .map(|(line, problem)| format!("{file}: line {line}: {problem}"))
        .collect();
    if mistakes.len() > MISTAKES_MAX {
        lines.push(format!("{file}: {} more", mistakes.len() - MISTAKES_MAX));
    }
    lines.push(format!("{file}: nothing was done"));
    Failure::Data(lines.join("\n"))
}

fn read(file: &Path) -> Result<String, Failure> {
    use io::Read as _;

    let mut text = String::new();
    let read = if file.as_os_str() == "-" {
        io::stdin()
            .take(FILE_BYTES_MAX + 1)
            .read_to_string(&mut text)
    } else {
        File::open(file)
            .and_then(|opened| opened.take(FILE_BYTES_MAX + 1).read_to_string(&mut text))
    };
    let name = file.display();
    match read {
        Ok(bytes) if bytes as u64 > FILE_BYTES_MAX => Err(Failure::Data(format!(
            "{name}: more than {FILE_BYTES_MAX} bytes; split it"
        ))),
        Ok(_) => Ok(text),
        Err(error) if error.kind() == io::ErrorKind::InvalidData => Err(Failure::Data(format!(
            "{name}: not UTF-8 text; save it as such"
        ))),
        Err(error) => Err(Failure::Usage(format!("{name}: {error}"))),
    }
}

/// All lines, or every mistake in them.
fn rows(text: &str, now_ms: u64) -> Result<Vec<Row>, Vec<Mistake>> {
    let records = csv::records(text).map_err(|(line, problem)| vec![(line, problem.to_owned())])?;
    let mut records = records.into_iter();
    let Some(head) = records.next() else {
        return Err(vec![(1, "there is no line that names the columns".into())]);
    };
    let mut mistakes = Vec::new();
    let known = || {
        COLUMNS
            .iter()
            .copied()
            .chain(LIMITS.iter().map(|(name, _)| *name))
    };
    for (index, name) in head.cells.iter().enumerate() {
        if !known().any(|column| column == name) {
            let hint = hint(name, known());
            mistakes.push((head.line, format!("{name:?} is no column{hint}")));
        } else if head.cells[..index].contains(name) {
            mistakes.push((head.line, format!("{name}: the column stands there twice")));
        }
    }
    if !head.cells.iter().any(|name| name == "account") {
        mistakes.push((head.line, "there is no column account".into()));
    }
    if !mistakes.is_empty() {
        return Err(mistakes);
    }
    let mut rows = Vec::new();
    let mut before = Before::default();
    for record in records {
        if record.cells.len() > head.cells.len() {
            mistakes.push((
                record.line,
                format!(
                    "{}, but there are {}",
                    counted(record.cells.len() as u64, "cell"),
                    counted(head.cells.len() as u64, "column")
                ),
            ));
            continue;
        }
        let cells: HashMap<&str, &str> = head
            .cells
            .iter()
            .map(String::as_str)
            .zip(record.cells.iter().map(String::as_str))
            .filter(|(_, cell)| !cell.is_empty())
            .collect();
        let mut problems = Vec::new();
        let row = row(record.line, &cells, now_ms, &mut problems);
        if let Some(row) = row {
            before.compare(&row, &mut problems);
            rows.push(row);
        }
        mistakes.extend(problems.into_iter().map(|problem| (record.line, problem)));
    }
    if mistakes.is_empty() {
        Ok(rows)
    } else {
        Err(mistakes)
    }
}

/// A line by itself. `None` where not even its account is known.
fn row(
    line: u64,
    cells: &HashMap<&str, &str>,
    now_ms: u64,
    problems: &mut Vec<String>,
) -> Option<Row> {
    let mut take = |column: &str, read: &dyn Fn(&str) -> Result<Value, String>| {
        let cell = cells.get(column)?;
        match read(cell) {
            Ok(value) => Some(value),
            Err(problem) => {
                problems.push(format!("{column}: {problem}"));
                None
            }
        }
    };
    let text = |value: Option<Value>| match value {
        Some(Value::String(text)) => Some(text),
        _ => None,
    };
    let name = text(take("name", &|cell| checked(cell, admin::line)));
    let topup_id = text(take("topup_id", &|cell| checked(cell, admin::words)));
    let amount = text(take("balance_rub", &|cell| {
        checked(cell, admin::amount).and_then(|value| match cell.parse::<MicroRub>() {
            Ok(amount) if amount > MicroRub::ZERO => Ok(value),
            _ => Err("a payment is more than 0; leave the cell empty where there is none".into()),
        })
    }));
    let key_name = text(take("key_name", &|cell| checked(cell, admin::line)));
    let sha256 = text(take("key_sha256", &|cell| {
        checked(cell, admin::sha256).map(|_| cell.to_ascii_lowercase().into())
    }));
    let prefix = text(take("key_prefix", &|cell| checked(cell, admin::prefix)));
    let limits: Map<String, Value> = LIMITS
        .iter()
        .filter_map(|(column, read)| {
            let value = take(column, &|cell| read(cell, now_ms))?;
            Some(((*column).to_owned(), value))
        })
        .collect();
    let given = |column: &str| cells.contains_key(column);
    let has_key = given("key_name") || given("key_sha256");
    let of_key = LIMITS.iter().map(|(column, _)| *column);
    if !has_key && let Some(column) = of_key.chain(["key_prefix"]).find(|column| given(column)) {
        problems.push(format!(
            "{column}: there is no key on this line; give key_name or key_sha256"
        ));
    } else if given("key_prefix") && !given("key_sha256") {
        problems.push(
            "key_prefix: goes with key_sha256; a key that is made has a prefix of its own".into(),
        );
    }
    if given("topup_id") && !given("balance_rub") {
        problems.push("topup_id: there is no balance_rub on this line".into());
    }
    let Some(account) = cells.get("account") else {
        problems.push("account: is empty".into());
        return None;
    };
    let account = match account.parse::<AccountId>() {
        Ok(account) => account,
        Err(error) => {
            problems.push(format!("account: {error}"));
            return None;
        }
    };
    let payment = amount.and_then(|amount| {
        Some(Payment {
            id: topup_id.unwrap_or_else(|| TOPUP_ID.to_owned()),
            amount: amount.parse().ok()?,
        })
    });
    let key = has_key.then(|| Key {
        name: key_name.unwrap_or_default(),
        sha256,
        prefix,
        limits,
    });
    Some(Row {
        line,
        account,
        name: name.unwrap_or_default(),
        payment,
        key,
    })
}

/// What stood on earlier lines, by which line.
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
                "name: account {} is {first:?} on an earlier line",
                row.account
            ));
        }
        if let Some(payment) = &row.payment {
            let id = (account(), payment.id.clone());
            if let Some(line) = self.payments.insert(id, row.line) {
                problems.push(format!(
                    "topup_id: {:?} is that of line {line} too; give each payment of an account one of its own",
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
            let column = if key.sha256.is_some() {
                "key_sha256"
            } else {
                "key_name"
            };
            problems.push(format!("{column}: the same as on line {line}"));
        }
    }
}

/// A cell that is right, as a JSON string.
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

/// Words with spaces between them.
fn list<T>(text: &str, read: impl Fn(&Value) -> Result<T, String>) -> Result<Value, String> {
    let words = text
        .split_whitespace()
        .map(|word| checked(word, &read).map_err(|problem| format!("{word:?} {problem}")));
    words.collect::<Result<Vec<_>, _>>().map(Value::from)
}

/// The file of the keys that are made here, and what was in it.
#[derive(Debug, Default)]
struct Keys {
    path: PathBuf,
    secrets: HashMap<(String, String), SecretKey>,
    out: Option<File>,
}

const KEYS_HEAD: &str = "account,key_name,key\n";

impl Keys {
    /// Reads what an earlier run left.
    fn open(path: &Path) -> Result<Self, Failure> {
        let mut keys = Self {
            path: path.to_owned(),
            ..Self::default()
        };
        let text = match fs::read_to_string(path) {
            Ok(text) => text,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(keys),
            Err(error) => return Err(keys.cannot(&error)),
        };
        let not_ours = || {
            Failure::Usage(format!(
                "--keys-out {}: the file is there and is none of keys that were made by an import; name another",
                path.display()
            ))
        };
        let records = csv::records(&text).map_err(|_| not_ours())?;
        let mut records = records.into_iter();
        if records
            .next()
            .is_none_or(|head| head.cells.join(",") != KEYS_HEAD.trim())
        {
            return Err(not_ours());
        }
        for record in records {
            let [account, name, key] =
                <[String; 3]>::try_from(record.cells).map_err(|_| not_ours())?;
            let secret = key.parse::<SecretKey>().map_err(|_| not_ours())?;
            keys.secrets.insert((account, name), secret);
        }
        Ok(keys)
    }

    fn known(&self, account: &AccountId, name: &str) -> Option<&SecretKey> {
        self.secrets.get(&(account.to_string(), name.to_owned()))
    }

    /// The key of this name: of an earlier run, or a new one, which is on the disk when it is given.
    fn secret(&mut self, account: &AccountId, name: &str) -> Result<SecretKey, Failure> {
        if let Some(secret) = self.known(account, name) {
            return Ok(secret.clone());
        }
        let secret = SecretKey::generate();
        self.append(&format!("{account},{},{}\n", quoted(name), secret.expose()))
            .map_err(|error| self.cannot(&error))?;
        let id = (account.to_string(), name.to_owned());
        self.secrets.insert(id, secret.clone());
        Ok(secret)
    }

    fn append(&mut self, line: &str) -> io::Result<()> {
        let out = match &mut self.out {
            Some(out) => out,
            none => {
                let mut options = OpenOptions::new();
                options.append(true).create(true);
                #[cfg(unix)]
                std::os::unix::fs::OpenOptionsExt::mode(&mut options, 0o600);
                let mut out = options.open(&self.path)?;
                // What was there before may be for more eyes than these keys are.
                #[cfg(unix)]
                out.set_permissions(std::os::unix::fs::PermissionsExt::from_mode(0o600))?;
                if out.metadata()?.len() == 0 {
                    out.write_all(KEYS_HEAD.as_bytes())?;
                }
                none.insert(out)
            }
        };
        out.write_all(line.as_bytes())?;
        out.sync_all()
    }

    fn cannot(&self, error: &io::Error) -> Failure {
        Failure::Io(format!("--keys-out {}: {error}", self.path.display()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn mistakes(text: &str) -> Vec<Mistake> {
        rows(text, 0).unwrap_err()
    }

    #[test]
    fn lines_become_accounts_payments_and_keys() {
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
    fn every_mistake_is_named_with_its_line_and_column() {
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
            (3, "account: an id is"),
            (4, "balance_rub: a payment is more than 0"),
            (5, "balance_rub: not a decimal number"),
            (6, "topup_id: there is no balance_rub"),
            (7, "key_sha256: must be 64 hexadecimal digits"),
            (8, "key_prefix: goes with key_sha256"),
            (9, "ceiling_rub: there is no key on this line"),
            (10, "ceiling_rub: must not be negative"),
            (11, "requests_per_second: must be a whole number"),
            (12, "expires_at: lies in the past"),
            (14, "name: account b is \"B\" on an earlier line"),
            (14, "topup_id: \"import\" is that of line 13 too"),
            (16, "key_name: the same as on line 15"),
            (18, "key_sha256: the same as on line 17"),
            (19, "12 cells, but there are 11 columns"),
        ] {
            assert!(
                found
                    .iter()
                    .any(|(at, problem)| *at == line && problem.starts_with(says)),
                "line {line}: {says}: {found:#?}"
            );
        }
        assert_eq!(found.len(), 15, "{found:#?}");
        let Failure::Data(text) = told("f.csv", &found) else {
            panic!()
        };
        assert!(text.starts_with("f.csv: line 3: ") && text.ends_with("\nf.csv: nothing was done"));
    }

    #[test]
    fn the_columns_are_checked_first() {
        for (text, says) in [
            ("", "no line that names the columns"),
            ("name\nx\n", "there is no column account"),
            ("account,celing_rub\na,5\n", "did you mean ceiling_rub?"),
            (
                "account,name,name\na\n",
                "name: the column stands there twice",
            ),
            ("account\n\"a\n", "never closed"),
        ] {
            let found = mistakes(text);
            assert!(found[0].1.contains(says), "{text}: {found:?}");
        }
    }

    #[test]
    fn keys_that_were_made_are_their_owners_alone_and_made_once() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("made.csv");
        let account: AccountId = "acme".parse().unwrap();
        let mut keys = Keys::open(&path).unwrap();
        let secret = keys.secret(&account, "a, \"b\"").unwrap();
        let again = keys.secret(&account, "a, \"b\"").unwrap();
        assert_eq!(again.expose(), secret.expose());
        let mut later = Keys::open(&path).unwrap();
        assert_eq!(
            later.secret(&account, "a, \"b\"").unwrap().expose(),
            secret.expose()
        );
        later.secret(&account, "other").unwrap();
        let text = fs::read_to_string(&path).unwrap();
        assert_eq!(text.lines().count(), 3, "{text}");
        #[cfg(unix)]
        {
            use std::os::unix::fs::PermissionsExt;
            assert_eq!(
                fs::metadata(&path).unwrap().permissions().mode() & 0o777,
                0o600
            );
        }
        fs::write(&path, "account,name\n").unwrap();
        assert_eq!(Keys::open(&path).unwrap_err().code(), 64);
    }
}
