//! `tollgate statement`: writes the statement of an account's month for the customer's accountant, and verifies an
//! existing statement against the ledger.

use std::{
    fs,
    ops::ControlFlow,
    path::{Path, PathBuf},
};

use clap::{Args, ValueEnum};
use http::Method;
use serde_json::{Value, json};
use tollgate_layers::key::AccountId;

use super::{
    AdminArgs,
    client::Client,
    failure::Failure,
    show::{self, Cell, facts},
};
use crate::statement::Month;

/// The largest statement that is read, in bytes.
const BYTES_MAX: usize = 256 * 1024 * 1024;
/// The maximum number of lines with differences that are printed.
const DIFFERENCES_MAX: usize = 40;

/// The account and month, and what to do with the statement.
#[derive(Debug, Args)]
pub(super) struct StatementArgs {
    /// The account
    account: AccountId,
    /// The month, like 2026-11; in the calendar of the configuration's seller.utc_offset
    #[arg(long, value_parser = month)]
    month: Month,
    /// The format; else by the extension of --output, else a summary
    #[arg(long, value_enum, conflicts_with_all = ["json", "verify"])]
    format: Option<Format>,
    /// Output file; - is standard output
    #[arg(long, value_name = "FILE", conflicts_with = "verify")]
    output: Option<PathBuf>,
    /// Compare this file, a statement of the month, with what the books give now; without a file, compare the books
    /// with the hash that was kept of the statement; exit 1 if they differ
    #[arg(long, value_name = "FILE", num_args = 0..=1)]
    verify: Option<Option<PathBuf>>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Format {
    /// The API's answer, byte for byte
    Json,
    /// For spreadsheets and programs
    Csv,
    /// A page for people
    Html,
    /// Pages for paper
    Pdf,
}

const SUMMARY: &[Cell] = &[
    Cell::text("number", "/number"),
    Cell::text("account", "/account"),
    Cell::text("name", "/name"),
    Cell::text("since", "/since"),
    Cell::text("until", "/until"),
    Cell::text("closed", "/closed"),
    Cell::rubles("opening balance", "/opening/rub"),
    Cell::rubles("payments", "/payments/rub"),
    Cell::rubles("corrections", "/corrections/rub"),
    Cell::rubles("spending", "/spending/rub"),
    Cell::rubles("spending, exact", "/spending/exact_rub"),
    Cell::rubles("VAT in it", "/vat/rub"),
    Cell::rubles("closing balance", "/closing/rub"),
    Cell::text("sha256", "/sha256"),
];

fn month(text: &str) -> Result<Month, String> {
    text.parse().map_err(|problem| format!("{problem}"))
}

pub(super) async fn statement(admin: &AdminArgs, args: &StatementArgs) -> Result<(), Failure> {
    let client = Client::new(admin)?;
    let path = format!(
        "/admin/v1/accounts/{}/statements/{}",
        args.account, args.month
    );
    if let Some(file) = &args.verify {
        return match file {
            Some(file) => verify(&client, &path, file, admin.json).await,
            None => verify_kept(&client, &path, admin.json).await,
        };
    }
    let output = args
        .output
        .as_deref()
        .filter(|path| path.as_os_str() != "-");
    let Some(format) = args.format.or_else(|| output.and_then(by_ending)) else {
        if let Some(output) = output {
            let problem = format!(
                "--output {}: does not end in .json, .csv, .html or .pdf; give --format",
                output.display()
            );
            return Err(Failure::Usage(problem));
        }
        let answer = client.call_patiently(Method::GET, &path).await?;
        return show::print(admin.json, &answer, |answer| facts(SUMMARY, answer));
    };
    let made = read(&client, &path, format).await?;
    let Some(output) = output else {
        return show::write_bytes(&made);
    };
    fs::write(output, &made)
        .map_err(|error| Failure::Io(format!("--output {}: {error}", output.display())))?;
    let report = json!({ "file": output.display().to_string(), "bytes": made.len() });
    show::print(admin.json, &report, |_| {
        format!("{}: {} bytes\n", output.display(), made.len())
    })
}

impl Format {
    const fn name(self) -> &'static str {
        match self {
            Self::Json => "json",
            Self::Csv => "csv",
            Self::Html => "html",
            Self::Pdf => "pdf",
        }
    }

    /// Returns the format of an existing statement, recognized by its first bytes.
    fn of(made: &[u8]) -> Option<Self> {
        let begins = |with: &str| made.starts_with(with.as_bytes());
        match () {
            () if begins("{") => Some(Self::Json),
            () if begins("section,") => Some(Self::Csv),
            () if begins("<!doctype html>") => Some(Self::Html),
            () if begins("%PDF-") => Some(Self::Pdf),
            () => None,
        }
    }
}

fn by_ending(path: &Path) -> Option<Format> {
    let ending = path.extension()?.to_str()?;
    Format::from_str(ending, true).ok()
}

async fn read(client: &Client, path: &str, format: Format) -> Result<Vec<u8>, Failure> {
    let mut made = Vec::new();
    let path = format!("{path}?format={}", format.name());
    let take = |piece: &[u8]| {
        made.extend_from_slice(piece);
        match made.len() > BYTES_MAX {
            true => Err(Failure::OutOfReach("the answer is too long".into())),
            false => Ok(ControlFlow::Continue(())),
        }
    };
    let _: ControlFlow<()> = client.read(&path, take).await?;
    Ok(made)
}

/// Verifies that the ledger still yields the stored hash of a closed month. If it does not, the gateway refuses to make
/// the statement, so an answer is the proof.
async fn verify_kept(client: &Client, path: &str, as_json: bool) -> Result<(), Failure> {
    let answer = client.call_patiently(Method::GET, path).await?;
    let (number, sha256) = sealed(&answer)?;
    let report = json!({ "number": number, "sha256": sha256, "same_sha256": true });
    show::print(as_json, &report, |_| {
        format!("ok: the books yield {number} unchanged; sha256 {sha256}\n")
    })
}

/// Returns the number and the hash of a closed month.
fn sealed(answer: &Value) -> Result<(&str, &str), Failure> {
    if answer.get("closed") != Some(&Value::Bool(true)) {
        let problem = "the month is not closed: its statement still changes";
        return Err(Failure::Usage(problem.into()));
    }
    let text = |field: &str| answer.get(field).and_then(Value::as_str);
    Ok((
        text("number").unwrap_or_default(),
        text("sha256").unwrap_or_default(),
    ))
}

/// Compares an existing statement with the one that the ledger yields now.
async fn verify(client: &Client, path: &str, file: &Path, as_json: bool) -> Result<(), Failure> {
    let cannot = |error| Failure::Io(format!("--verify {}: {error}", file.display()));
    let made = fs::read(file).map_err(cannot)?;
    let format = Format::of(&made)
        .ok_or_else(|| Failure::Data(format!("{}: not a statement", file.display())))?;
    let answer = client.call_patiently(Method::GET, path).await?;
    let (number, sha256) = sealed(&answer)?;
    let now = read(client, path, format).await?;
    let same = made == now;
    let says_hash = contains(&made, sha256.as_bytes());
    let differences = if same {
        Vec::new()
    } else {
        differences(format, &made, &now)
    };
    let report = json!({
        "number": number, "sha256": sha256, "same": same, "same_sha256": says_hash, "differences": differences,
    });
    show::print(as_json, &report, |_| {
        verdict(number, sha256, same, says_hash, &differences)
    })?;
    if same { Ok(()) } else { Err(Failure::Differs) }
}

fn verdict(
    number: &str,
    sha256: &str,
    same: bool,
    says_hash: bool,
    differences: &[String],
) -> String {
    if same {
        return format!("ok: {number} agrees with the books, byte for byte; sha256 {sha256}\n");
    }
    let mut text = match says_hash {
        true => format!(
            "{number} names the sha256 that the books have, {sha256}, and is written otherwise: by another version, or it was \
             changed by hand\n"
        ),
        false => format!(
            "{number} is not the statement of that month; the one that was made first has the sha256 {sha256}\n"
        ),
    };
    for line in differences.iter().take(DIFFERENCES_MAX) {
        text.push_str(line);
        text.push('\n');
    }
    if differences.len() > DIFFERENCES_MAX {
        text.push_str(&format!(
            "and {} more\n",
            differences.len() - DIFFERENCES_MAX
        ));
    }
    text
}

/// Returns the lines that only one of the two statements has: `-` for the existing one, `+` for the one made now.
fn differences(format: Format, made: &[u8], now: &[u8]) -> Vec<String> {
    let lines = |bytes: &[u8]| -> Vec<String> {
        match format {
            Format::Json => leaves(bytes),
            Format::Csv | Format::Html => {
                let text = String::from_utf8_lossy(bytes);
                text.lines().map(str::to_owned).collect()
            }
            // A PDF is compressed, so its lines are not compared; another format shows the texts that differ.
            Format::Pdf => Vec::new(),
        }
    };
    let (made, now) = (lines(made), lines(now));
    let not_in = |some: &[String], others: &[String], sign: char| -> Vec<String> {
        let others: std::collections::HashSet<&String> = others.iter().collect();
        let missing = some.iter().filter(|line| !others.contains(line));
        missing.map(|line| format!("{sign} {line}")).collect()
    };
    let mut differences = not_in(&made, &now, '-');
    differences.extend(not_in(&now, &made, '+'));
    differences
}

/// Returns every leaf value of a JSON document, with its path.
fn leaves(json: &[u8]) -> Vec<String> {
    fn walk(value: &Value, path: &str, leaves: &mut Vec<String>) {
        match value {
            Value::Object(fields) => fields
                .iter()
                .for_each(|(name, value)| walk(value, &format!("{path}/{name}"), leaves)),
            Value::Array(items) => items
                .iter()
                .enumerate()
                .for_each(|(index, value)| walk(value, &format!("{path}/{index}"), leaves)),
            leaf => leaves.push(format!("{path}: {leaf}")),
        }
    }
    let mut found = Vec::new();
    match serde_json::from_slice::<Value>(json) {
        Ok(value) => walk(&value, "", &mut found),
        Err(_) => found.push("not JSON".to_owned()),
    }
    found
}

fn contains(bytes: &[u8], part: &[u8]) -> bool {
    !part.is_empty() && memchr::memmem::find(bytes, part).is_some()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn statement_form_is_recognised_by_extension_and_first_bytes() {
        for (file, format) in [
            ("a.json", Some(Format::Json)),
            ("b/a.CSV", Some(Format::Csv)),
            ("a.html", Some(Format::Html)),
            ("a.pdf", Some(Format::Pdf)),
            ("a.txt", None),
            ("csv", None),
        ] {
            assert_eq!(by_ending(Path::new(file)), format, "{file}");
        }
        for (bytes, format) in [
            ("{\"version\":1", Some(Format::Json)),
            ("section,item", Some(Format::Csv)),
            ("<!doctype html>\n", Some(Format::Html)),
            ("%PDF-1.7\n", Some(Format::Pdf)),
            ("PK", None),
            ("", None),
        ] {
            assert_eq!(Format::of(bytes.as_bytes()), format, "{bytes}");
        }
    }

    #[test]
    fn fields_that_differ_are_listed_from_both_statements() {
        assert_eq!(
            differences(Format::Csv, b"a,1\nb,2\nc,3\n", b"a,1\nb,3\nc,3\nd,4\n"),
            ["- b,2", "+ b,3", "+ d,4"]
        );
        assert_eq!(
            differences(
                Format::Json,
                br#"{"a":{"b":["1",2]},"c":true}"#,
                br#"{"c":true,"a":{"b":["1",3]}}"#
            ),
            ["- /a/b/1: 2", "+ /a/b/1: 3"]
        );
        let many: Vec<String> = (0..50).map(|n| format!("- {n}")).collect();
        let text = verdict("n", "5eed", false, false, &many);
        assert!(text.starts_with("n is not the statement"), "{text}");
        assert!(text.ends_with("- 39\nand 10 more\n"), "{text}");
        assert!(verdict("n", "5eed", false, true, &[]).contains("written otherwise"));
        assert!(verdict("n", "5eed", true, true, &[]).starts_with("ok: n agrees with"));
    }
}
