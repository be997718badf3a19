//! `tollgate import`: imports accounts, payments and keys from a CSV file through the admin API.
//!
//! Before the import changes anything, it checks all lines, and compares them with the gateway's accounts and keys. A
//! new key is written to the file of keys before its digest is sent to the gateway, so no key is lost if the connection
//! breaks.

mod keys;
mod lines;

use std::{
    collections::{BTreeMap, HashMap, HashSet, hash_map::Entry},
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
    files::read_whole,
    progress::Progress,
    show::{self, Cell, counted, table},
};
use crate::{api::ceilings::CEILINGS, text::time::now_ms};

const HELP_BEGIN: &str = "\
The first line names the columns, in any order; only account is required:
  account              the account's id; the account is created if it does not exist
  name                 the account's name, for display
  balance_rub          the amount of a payment into the account, in decimal rubles
  topup_id             the payment's id (default: import); an id is booked only once
  key_name             the key's name, unique in the account
  key_sha256           SHA-256 of a key that the caller already has, as 64 hexadecimal digits; if empty, a key is created
  key_prefix           the first characters of the key that the caller already has, for display, at most 16";
const HELP_END: &str = "
  models               models that the key may call, separated by spaces; empty: all
  addresses            addresses or networks from which the key may be used, separated by spaces; empty: all
  requests_per_second  the key's maximum requests per second
  requests_per_minute  the key's maximum requests per minute
  tokens_per_minute    the key's maximum tokens per minute
  expires_at           date or time from which the key is refused
For an account with several keys, write several lines; put the account's name and payment on the first of them.
Any key of 8 to 512 visible ASCII characters that does not begin with tg- can be imported by its digest:
  printf %s \"$KEY\" | sha256sum

Examples:
  tollgate import customers.csv --dry-run
  tollgate import customers.csv --keys-out made.csv";

/// Returns the help text: the columns of the file, and examples.
pub(super) fn help() -> String {
    let ceilings = CEILINGS.iter().map(|ceiling| {
        let (field, help) = (ceiling.field(), ceiling.import_help);
        format!("\n  {field:<21}{help}")
    });
    format!("{HELP_BEGIN}{}{HELP_END}", ceilings.collect::<String>())
}

/// Options of `tollgate import`: the file to import, and the file for new keys.
#[derive(Debug, Args)]
pub(super) struct ImportArgs {
    /// The CSV file to import; - is standard input
    file: PathBuf,
    /// Check the file and print what the import would do, without doing it
    #[arg(long)]
    dry_run: bool,
    /// File to which generated keys are written, as CSV that only you can read (mode 0600). If the file exists, keys
    /// are appended
    #[arg(long, value_name = "FILE")]
    keys_out: Option<PathBuf>,
}

/// The maximum number of mistakes that are listed; further ones are only counted.
const MISTAKES_MAX: usize = 100;
/// A line of the file, and the work that the import must do for it.
#[derive(Debug)]
struct Step {
    row: Row,
    opens_account: bool,
    key: Todo,
}

#[derive(Debug, PartialEq, Eq)]
enum Todo {
    Nothing,
    /// The gateway already has the key, so nothing is done.
    There,
    /// The line contains the digest of a key that the caller already has, so this digest is sent.
    TakeOver,
    /// The import generates the key.
    Make,
}

/// Whether this import booked a payment, or an earlier request did.
#[derive(Clone, Copy, Debug)]
enum Paid {
    Now,
    /// The payment was booked before, by an earlier import or by another client that used the same id.
    Before,
}

/// Counts of the work that the import has done for an account.
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
            "the import would create {}: give --keys-out FILE, the file to which it writes them",
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
    let rows = done.iter().map(|(account, done)| {
        json!({
            "account": account, "opened": done.opened, "payments": done.payments,
            "payments_there": done.payments_there, "keys_made": done.made, "keys_taken_over": done.taken_over,
            "keys_there": done.there,
        })
    });
    let rows: Vec<Value> = rows.collect();
    let answer = json!({ "dry_run": dry_run, "accounts": rows });
    show::print(json, &answer, |_| {
        let mut text = table(ROW, &rows);
        if dry_run {
            text.push_str(
                "nothing was done: the table shows what the import would do without --dry-run\n",
            );
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

/// Carries out a step; repeating any part of it is harmless. Returns whether the payment was booked now or before.
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
        let path = "/admin/v1/accounts";
        client.call(Method::POST, path, Some(body)).await?;
    }
    let mut paid = None;
    if let Some(Payment { id, amount }) = payment {
        let body = json!({ "id": id, "amount_rub": amount });
        let path = format!("{path}/topups");
        let answer = client.call(Method::POST, &path, Some(body)).await?;
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
    for (field, value) in [("sha256", sha256), ("prefix", prefix)] {
        body.extend(value.map(|value| (field.to_owned(), value.into())));
    }
    let path = format!("{path}/keys");
    client.call(Method::POST, &path, Some(body.into())).await?;
    Ok(paid)
}

/// Compares the file's lines with the accounts and keys of the gateway, and returns what must be done.
async fn plan(
    client: &Client,
    rows: Vec<Row>,
    keys: &Keys,
) -> Result<Result<Vec<Step>, Vec<Mistake>>, Failure> {
    let there = client.call(Method::GET, "/admin/v1/accounts", None).await?;
    let names = each(&there, "accounts", "id", "name").into_iter();
    let mut names: HashMap<_, _> = names.map(|(id, name)| (id, Some(name))).collect();
    let mut of_account: HashMap<AccountId, HashSet<String>> = HashMap::new();
    let (mut steps, mut mistakes) = (Vec::with_capacity(rows.len()), Vec::new());
    let mut progress = Progress::new("lines checked", Some(rows.len() as u64));
    for (index, row) in rows.into_iter().enumerate() {
        let known = names.get(&*row.account).cloned();
        if let Some(Some(known)) = &known
            && !row.name.is_empty()
            && *known != row.name
        {
            let account = &row.account;
            let mistake = format!("name: account {account} already exists with the name {known:?}");
            mistakes.push((row.line, mistake));
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
    Ok(match mistakes.is_empty() {
        true => Ok(steps),
        false => Err(mistakes),
    })
}

/// Returns what must be done for the key of a line.
async fn todo(
    client: &Client,
    account: &AccountId,
    account_there: bool,
    key: &Key,
    keys: &Keys,
    of_account: &mut HashMap<AccountId, HashSet<String>>,
) -> Result<Result<Todo, String>, Failure> {
    let made_before = keys.known(account, &key.name);
    let digest = || made_before.map(|secret| secret.digest().to_string());
    if let Some(digest) = key.sha256.clone().or_else(digest) {
        let found = client
            .find(&format!("/admin/v1/keys/sha256-{digest}"))
            .await?;
        return Ok(match found {
            None if key.sha256.is_some() => Ok(Todo::TakeOver),
            None => Ok(Todo::Make),
            Some(found) if found["status"] == "deleted" => Err(match &key.sha256 {
                Some(_) => {
                    "key_sha256: this key was deleted, and a deleted key cannot be imported again"
                        .to_owned()
                }
                None => format!(
                    "key_name: an earlier import made a key {:?}, which was deleted: give the new key another name",
                    key.name
                ),
            }),
            Some(found) if found["account"] == **account => Ok(Todo::There),
            Some(found) => Err(format!(
                "key_sha256: this key already belongs to account {}",
                found["account"].as_str().unwrap_or("?")
            )),
        });
    }
    if !account_there {
        return Ok(Ok(Todo::Make));
    }
    let names = match of_account.entry(account.clone()) {
        Entry::Occupied(known) => known.into_mut(),
        Entry::Vacant(unknown) => unknown.insert(key_names(client, account).await?),
    };
    let there = names.contains(&key.name);
    Ok(Ok(if there { Todo::There } else { Todo::Make }))
}

/// Returns the names of an account's keys, except deleted keys.
async fn key_names(client: &Client, account: &AccountId) -> Result<HashSet<String>, Failure> {
    let path = format!("/admin/v1/accounts/{account}/keys");
    let listed = client.call(Method::GET, &path, None).await?;
    let names = each(&listed, "keys", "name", "status").into_iter();
    let names = names.filter(|(_, status)| status != "deleted");
    Ok(names.map(|(name, _)| name).collect())
}

/// Returns the text fields `one` and `other` of each item in the list.
fn each(answer: &Value, list: &str, one: &str, other: &str) -> Vec<(String, String)> {
    let text = |item: &Value, name: &str| item[name].as_str().unwrap_or_default().to_owned();
    let items = show::rows(answer, list).iter();
    items
        .map(|item| (text(item, one), text(item, other)))
        .collect()
}

fn reported(file: &str, mistakes: &[Mistake]) -> Failure {
    let lines = mistakes.iter().take(MISTAKES_MAX);
    let lines = lines.map(|(line, problem)| format!("{file}: line {line}: {problem}"));
    let mut lines: Vec<String> = lines.collect();
    if mistakes.len() > MISTAKES_MAX {
        lines.push(format!("{file}: {} more", mistakes.len() - MISTAKES_MAX));
    }
    lines.push(format!("{file}: nothing was imported"));
    Failure::Data(lines.join("\n"))
}

fn read(file: &Path) -> Result<String, Failure> {
    let bytes = read_whole(file, "split it")?;
    String::from_utf8(bytes).map_err(|_| {
        let name = file.display();
        Failure::Data(format!("{name}: not UTF-8 text; save the file in UTF-8"))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn errors_in_an_import_are_listed_by_line_and_nothing_is_changed() {
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
            text.ends_with("\nf.csv: 1 more\nf.csv: nothing was imported"),
            "{text}"
        );
    }
}
