//! `tollgate statement`: writes the statement of an account's month for the customer's accountant, or verifies an
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

/// Maximum size of a statement, in bytes.
const BYTES_MAX: usize = 256 * 1024 * 1024;
/// Maximum number of differences that are printed.
const DIFFERENCES_MAX: usize = 40;

/// Options of `tollgate statement`: the account, the month, and what to do with the statement.
#[derive(Debug, Args)]
pub(super) struct StatementArgs {
    /// Id of the account
    account: AccountId,
    /// The month, for example 2026-11; it begins and ends at midnight in the time zone of seller.utc_offset
    #[arg(long, value_parser = month)]
    month: Month,
    /// The format. Default: by the extension of --output; without --output, a summary is printed
    #[arg(long, value_enum, conflicts_with_all = ["json", "verify"])]
    format: Option<Format>,
    /// Output file; - is standard output
    #[arg(long, value_name = "FILE", conflicts_with = "verify")]
    output: Option<PathBuf>,
    /// Compare this file with the month's statement as the books give it now; without a file, compare the month's
    /// statement with its stored hash. Exit 1 if they differ
    #[arg(long, value_name = "FILE", num_args = 0..=1)]
    verify: Option<Option<PathBuf>>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(super) enum Format {
    /// The API's response, unchanged
    Json,
    /// CSV, for spreadsheets and programs
    Csv,
    /// An HTML page, for reading in a browser
    Html,
    /// A PDF, for printing
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
    Cell::rubles("VAT in spending", "/vat/rub"),
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
    let output = Output {
        format: args.format,
        file: args.output.as_deref(),
    };
    write_document(&client, &path, &output, SUMMARY, admin.json).await
}

/// Where a document is written, and in which format.
pub(super) struct Output<'a> {
    pub(super) format: Option<Format>,
    pub(super) file: Option<&'a Path>,
}

/// Gets a document from the gateway and writes it to the output. If no format is given, prints a summary instead.
pub(super) async fn write_document(
    client: &Client,
    path: &str,
    output: &Output<'_>,
    summary: &[Cell],
    as_json: bool,
) -> Result<(), Failure> {
    let file = output.file.filter(|path| path.as_os_str() != "-");
    let Some(format) = output.format.or_else(|| file.and_then(by_ending)) else {
        if let Some(file) = file {
            let problem = format!(
                "--output {}: does not end in .json, .csv, .html or .pdf; give --format",
                file.display()
            );
            return Err(Failure::Usage(problem));
        }
        let answer = client.call_patiently(Method::GET, path).await?;
        return show::print(as_json, &answer, |answer| facts(summary, answer));
    };
    let made = read(client, path, format).await?;
    let Some(file) = file else {
        return show::write_bytes(&made);
    };
    fs::write(file, &made)
        .map_err(|error| Failure::Io(format!("--output {}: {error}", file.display())))?;
    let report = json!({ "file": file.display().to_string(), "bytes": made.len() });
    show::print(as_json, &report, |_| {
        format!("{}: {} bytes\n", file.display(), made.len())
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

    /// Detects the format of an existing statement by its first bytes.
    fn from_bytes(made: &[u8]) -> Option<Self> {
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
    let separator = if path.contains('?') { '&' } else { '?' };
    let path = format!("{path}{separator}format={}", format.name());
    let take = |piece: &[u8]| {
        made.extend_from_slice(piece);
        match made.len() > BYTES_MAX {
            true => Err(Failure::OutOfReach("the statement is too long".into())),
            false => Ok(ControlFlow::Continue(())),
        }
    };
    let _: ControlFlow<()> = client.read(&path, take).await?;
    Ok(made)
}

/// Verifies that the statement of a closed month still has the stored hash. If it does not, the gateway returns an
/// error instead of the statement.
async fn verify_kept(client: &Client, path: &str, as_json: bool) -> Result<(), Failure> {
    let answer = client.call_patiently(Method::GET, path).await?;
    let (number, sha256) = sealed(&answer)?;
    let report = json!({ "number": number, "sha256": sha256, "same_sha256": true });
    show::print(as_json, &report, |_| {
        format!("ok: the books still yield statement {number} unchanged; sha256 {sha256}\n")
    })
}

/// Returns the number and the SHA-256 of a statement; an error if the month is not closed.
fn sealed(answer: &Value) -> Result<(&str, &str), Failure> {
    if answer["closed"] != true {
        let problem = "the month is not closed yet: its statement can still change";
        return Err(Failure::Usage(problem.into()));
    }
    let text = |field: &str| answer[field].as_str().unwrap_or_default();
    Ok((text("number"), text("sha256")))
}

/// Compares a statement file with the statement that the ledger gives now.
async fn verify(client: &Client, path: &str, file: &Path, as_json: bool) -> Result<(), Failure> {
    let cannot = |error| Failure::Io(format!("--verify {}: {error}", file.display()));
    let made = fs::read(file).map_err(cannot)?;
    let format = Format::from_bytes(&made)
        .ok_or_else(|| Failure::Data(format!("{}: not a statement", file.display())))?;
    let answer = client.call_patiently(Method::GET, path).await?;
    let (number, sha256) = sealed(&answer)?;
    let now = read(client, path, format).await?;
    let same = made == now;
    let found = memchr::memmem::find(&made, sha256.as_bytes());
    let says_hash = found.is_some() && !sha256.is_empty();
    let differences = differences(format, &made, &now);
    let report = json!({
        "number": number, "sha256": sha256, "same": same, "same_sha256": says_hash, "differences": differences,
    });
    show::print(as_json, &report, |_| {
        verdict(number, sha256, same, says_hash, &differences)
    })?;
    if same { Ok(()) } else { Err(Failure::Found) }
}

fn verdict(
    number: &str,
    sha256: &str,
    same: bool,
    says_hash: bool,
    differences: &[String],
) -> String {
    if same {
        return format!(
            "ok: the file is statement {number} and agrees with the books, byte for byte; sha256 {sha256}\n"
        );
    }
    let mut text = match says_hash {
        true => format!(
            "the file contains the sha256 of statement {number}, {sha256}, but its other bytes differ: another version wrote \
             the file, or somebody edited it\n"
        ),
        false => format!(
            "the file is not statement {number}: the first statement of that month has the sha256 {sha256}\n"
        ),
    };
    for line in differences.iter().take(DIFFERENCES_MAX) {
        text.push_str(line);
        text.push('\n');
    }
    if differences.len() > DIFFERENCES_MAX {
        let more = differences.len() - DIFFERENCES_MAX;
        text.push_str(&format!("and {more} more\n"));
    }
    text
}

/// Returns the lines that only one of the two statements has: with `-` if only the file `made` has the line, with `+`
/// if only the current statement has it.
fn differences(format: Format, made: &[u8], now: &[u8]) -> Vec<String> {
    let lines = |bytes: &[u8]| -> Vec<String> {
        match format {
            Format::Json => leaves(bytes),
            Format::Csv | Format::Html => {
                let text = String::from_utf8_lossy(bytes);
                text.lines().map(str::to_owned).collect()
            }
            // The content of a PDF is compressed, so its lines are not compared. The other formats show which texts
            // differ.
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

/// Returns every leaf value of a JSON document, each with its path.
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn statement_format_is_detected_by_extension_and_first_bytes() {
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
            assert_eq!(Format::from_bytes(bytes.as_bytes()), format, "{bytes}");
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
        assert!(text.starts_with("the file is not statement n: "), "{text}");
        assert!(text.ends_with("- 39\nand 10 more\n"), "{text}");
        assert!(verdict("n", "5eed", false, true, &[]).contains("its other bytes differ"));
        assert!(
            verdict("n", "5eed", true, true, &[])
                .starts_with("ok: the file is statement n and agrees with")
        );
    }
}
