//! `tollgate import`: accounts, payments and keys from a CSV file, through the admin API.
//!
//! All lines are read and checked, then compared with what the gateway has. Only after that does the import change
//! anything. It generates new keys and writes them to the file of keys before it sends their digests to the gateway, so
//! a broken connection loses no key.

mod keys;
mod lines;

use std::{
    collections::{BTreeMap, HashMap, HashSet},
    fs::File,
    io,
    path::{Path, PathBuf},
};

use clap::Args;
use http::Method;
use serde_json::{Value, json};
use tollgate_layers::key::AccountId;

use self::{
    keys::Keys,
    lines::{Key, Mistake, Payment, Row, rows},
};
use super::{
    AdminArgs,
    client::Client,
    failure::Failure,
    progress::Progress,
    show::{self, Cell, counted, table},
};
use crate::{api::ceilings::CEILINGS, text::time::now_ms};

const HELP_BEGIN: &str = "\
The first line names the columns, in any order; only account is required:
  account              its id; the account is created if it does not exist
  name                 its name, for display
  balance_rub          a payment into it: decimal rubles
  topup_id             that payment's id; by default import. An id is booked only once
  key_name             a new key's name, unique in the account
  key_sha256           SHA-256 of an existing key of the caller, as 64 hexadecimal digits; if empty, a key is created
  key_prefix           its first characters, for display, at most 16";
const HELP_END: &str = "
  models               models it may call, separated by spaces; empty: all
  addresses            addresses or networks it may be used from, separated by spaces; empty: all
  requests_per_second  maximum requests per second
  requests_per_minute  maximum requests per minute
  tokens_per_minute    maximum tokens per minute
  expires_at           date or time from which it is refused
An account with several keys has several lines; its name and its payment are on the first.
Any key of 8 to 512 visible ASCII characters that does not begin with tg- can be imported by its digest:
  printf %s \"$KEY\" | sha256sum

Examples:
  tollgate import customers.csv --dry-run
  tollgate import customers.csv --keys-out made.csv";

/// Returns the columns of the file, with examples.
pub(super) fn help() -> String {
    let ceilings = CEILINGS.iter().map(|ceiling| {
        let (field, help) = (ceiling.field(), ceiling.import_help);
        format!("\n  {field:<21}{help}")
    });
    [
        HELP_BEGIN.to_owned(),
        ceilings.collect(),
        HELP_END.to_owned(),
    ]
    .concat()
}

/// The file to import, and where new keys are written.
#[derive(Debug, Args)]
pub(super) struct ImportArgs {
    /// The file; - is standard input
    file: PathBuf,
    /// Check everything and print what would be done
    #[arg(long)]
    dry_run: bool,
    /// File for the keys that are made, as CSV, readable by you alone (mode 0600). An existing file is continued
    #[arg(long, value_name = "FILE")]
    keys_out: Option<PathBuf>,
}

/// The largest file that is read, in bytes.
const FILE_BYTES_MAX: u64 = 256 * 1024 * 1024;
/// The maximum number of mistakes that are listed; further ones are only counted.
const MISTAKES_MAX: usize = 100;
/// The work that the import must do for one line of the file.
#[derive(Debug)]
struct Step {
    row: Row,
    opens_account: bool,
    key: Todo,
}

#[derive(Debug, PartialEq, Eq)]
enum Todo {
    Nothing,
    /// The gateway already has the key.
    There,
    /// The caller already has the secret, so only its digest is sent.
    TakeOver,
    /// The import generates the key.
    Make,
}

/// Whether a payment was booked by this import or before.
#[derive(Clone, Copy, Debug)]
enum Paid {
    Now,
    /// An earlier import, or another client under the same id, booked the payment.
    Before,
}

/// The counts of what the import has done for an account.
#[derive(Debug, Default)]
struct Done {
    opened: bool,
    payments: u64,
    payments_there: u64,
    made: u64,
    taken_over: u64,
    there: u64,
}

pub(super) async fn import(admin: &AdminArgs, args: &ImportArgs) -> Result<(), Failure> {
    let client = Client::new(admin)?;
    let name = args.file.display().to_string();
    let rows = rows(&read(&args.file)?, now_ms()).map_err(|mistakes| reported(&name, &mistakes))?;
    let mut keys = match &args.keys_out {
        Some(path) => Keys::open(path)?,
        None => Keys::default(),
    };
    let steps = plan(&client, rows, &keys).await?;
    let steps = steps.map_err(|mistakes| reported(&name, &mistakes))?;
    let to_make = steps.iter().filter(|step| step.key == Todo::Make).count();
    if to_make > 0 && args.keys_out.is_none() && !args.dry_run {
        return Err(Failure::Usage(format!(
            "{} would be created: give --keys-out FILE to write the keys to",
            counted(to_make as u64, "key")
        )));
    }
    let mut done = BTreeMap::new();
    let mut progress = Progress::new("lines", Some(steps.len() as u64));
    for (index, step) in steps.iter().enumerate() {
        let of_account: &mut Done = done.entry(step.row.account.clone()).or_default();
        let payment = match args.dry_run {
            true => step.row.payment.as_ref().map(|_| Paid::Now),
            false => apply(&client, step, &mut keys).await.map_err(|failure| {
                failure.at(&format!(
                    "{name}: line {} (earlier lines were imported; correct this line and import again)",
                    step.row.line
                ))
            })?,
        };
        note(of_account, step, payment);
        progress.at(index as u64 + 1);
    }
    drop(progress);
    report(admin.json, args.dry_run, &done)
}

fn report(json: bool, dry_run: bool, done: &BTreeMap<AccountId, Done>) -> Result<(), Failure> {
    const ROW: &[Cell] = &[
        Cell::text("account", "/account"),
        Cell::text("opened", "/opened"),
        Cell::number("payments", "/payments"),
        Cell::number("paid before", "/payments_there"),
        Cell::number("keys made", "/keys_made"),
        Cell::number("taken over", "/keys_taken_over"),
        Cell::number("there already", "/keys_there"),
    ];
    let rows: Vec<Value> = done
        .iter()
        .map(|(account, done)| {
            json!({
                "account": account, "opened": done.opened, "payments": done.payments,
                "payments_there": done.payments_there, "keys_made": done.made, "keys_taken_over": done.taken_over,
                "keys_there": done.there,
            })
        })
        .collect();
    let answer = json!({ "dry_run": dry_run, "accounts": rows });
    show::print(json, &answer, |_| {
        let mut text = table(ROW, &rows);
        if dry_run {
            text.push_str("nothing was done; without --dry-run this would be done:\n");
        }
        text
    })
}

fn note(done: &mut Done, step: &Step, payment: Option<Paid>) {
    done.opened |= step.opens_account;
    match payment {
        None => {}
        Some(Paid::Now) => done.payments += 1,
        Some(Paid::Before) => done.payments_there += 1,
    }
    let count = match step.key {
        Todo::Nothing => return,
        Todo::There => &mut done.there,
        Todo::TakeOver => &mut done.taken_over,
        Todo::Make => &mut done.made,
    };
    *count += 1;
}

/// Carries out a step, of which every part can be repeated. Returns whether the payment was booked now or earlier.
async fn apply(client: &Client, step: &Step, keys: &mut Keys) -> Result<Option<Paid>, Failure> {
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
    let mut paid = None;
    if let Some(Payment { id, amount }) = payment {
        let body = json!({ "id": id, "amount_rub": amount });
        let answer = client
            .call(Method::POST, &format!("{path}/topups"), Some(body))
            .await?;
        paid = Some(match answer["repeated"] == true {
            true => Paid::Before,
            false => Paid::Now,
        });
    }
    let Some(key) = key else { return Ok(paid) };
    let (sha256, prefix) = match step.key {
        Todo::Nothing | Todo::There => return Ok(paid),
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
    Ok(paid)
}

/// Compares the file's lines with what the gateway has, and returns the steps.
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
                format!("name: account {} exists already, as {known:?}", row.account),
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

/// Returns the step for the key of a line.
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
            Some(found) if found["status"] == "deleted" => Err(match &key.sha256 {
                Some(_) => {
                    "key_sha256: that key was deleted, and cannot be taken over again".to_owned()
                }
                None => format!(
                    "key_name: the key {:?} that was made before was deleted: give this one another name",
                    key.name
                ),
            }),
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

/// Returns the names of an account's keys, without the deleted ones.
async fn key_names(client: &Client, account: &AccountId) -> Result<HashSet<String>, Failure> {
    let path = format!("/admin/v1/accounts/{account}/keys");
    let listed = client.call(Method::GET, &path, None).await?;
    let names = each(&listed, "keys", "name", "status").into_iter();
    Ok(names
        .filter(|(_, status)| status != "deleted")
        .map(|(name, _)| name)
        .collect())
}

/// Returns two text fields of each item of a list.
fn each(answer: &Value, list: &str, one: &str, other: &str) -> Vec<(String, String)> {
    let text = |item: &Value, name: &str| item[name].as_str().unwrap_or_default().to_owned();
    let items = answer[list].as_array().map_or(&[][..], Vec::as_slice);
    items
        .iter()
        .map(|item| (text(item, one), text(item, other)))
        .collect()
}

fn reported(file: &str, mistakes: &[Mistake]) -> Failure {
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
            "{name}: not UTF-8 text; save the file in UTF-8"
        ))),
        Err(error) => Err(Failure::Io(format!("{name}: {error}"))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn import_with_errors_lists_them_by_line_and_changes_nothing() {
        let mistakes: Vec<Mistake> = (0..=MISTAKES_MAX as u64)
            .map(|line| (line + 3, "wrong".into()))
            .collect();
        let Failure::Data(text) = reported("f.csv", &mistakes) else {
            panic!()
        };
        assert!(
            text.starts_with("f.csv: line 3: wrong\nf.csv: line 4: "),
            "{text}"
        );
        assert!(
            text.ends_with("\nf.csv: 1 more\nf.csv: nothing was done"),
            "{text}"
        );
    }
}
