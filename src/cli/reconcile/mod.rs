//! `tollgate reconcile`: compares the books with a vendor's own export of usage and costs.
//!
//! The vendor's files are read first, because they determine the period to compare. Then an export of the books is
//! streamed. Of the export, only sums by day and model and a few receipts per sum are kept in memory. The exit code is
//! 1 only if there is drift.

mod amount;
mod books;
mod compare;
mod names;
mod report;
mod vendor_files;

use std::{
    collections::BTreeSet,
    io::{self, Read as _},
    ops::{ControlFlow, Range},
    path::{Path, PathBuf},
};

use clap::Args;
use tollgate_layers::calendar::{day_begins_ms, day_of};

use self::{
    amount::Tolerance,
    books::Books,
    compare::compare,
    names::{Names, Routes},
    report::Compared,
    vendor_files::VendorUsage,
};
use super::{
    AdminArgs,
    client::Client,
    failure::Failure,
    files::{open, read_whole},
    progress::Progress,
    show,
};
use crate::text::time::parse_rfc3339_ms;

pub(super) const HELP: &str = "\
The kind of a file is detected from its content. docs/statements.md shows how to request the files:
  OpenAI     responses of /v1/organization/usage/completions (group_by=model) and of /v1/organization/costs
             (group_by=line_item)
  Anthropic  responses of /v1/organizations/usage_report/messages (group_by[]=model) and of
             /v1/organizations/cost_report (group_by[]=description)
  others     CSV with the columns day,model,class,count,cost:
               day    a date in UTC
               model  the vendor's name of the model
               class  one of input, cached_input, cache_write, cache_write_1h, cache_write_12h, output, input_audio,
                      output_audio, input_image, output_image, cached_input_audio, cached_input_image,
                      output_reasoning, web_search_call, request_call, other, calls
               count  a whole number; may be empty if the cost is given
               cost   an amount in USD (in rubles for a vendor with cost_rub_mtok); may be empty if the count is given
Put all pages of one response into one file, in order. Request only the usage of the gateway's own keys or project.

Exit codes: 0 every difference is within the tolerance; 1 drift was found, and nothing else failed; 65 a file is of
another kind; 74 a file cannot be read; the other exit codes are those of all commands (tollgate --help).

Examples:
  tollgate reconcile --vendor openai --file usage.json --config tollgate.toml
  tollgate reconcile --vendor anthropic --file usage.json --file cost.json --config tollgate.toml --tolerance 0.5
  tollgate reconcile --vendor reseller --file bill.csv --since 2026-11-01 --until 2026-12-01 --route old-mini=gpt-4-mini
  tollgate export --output books.ndjson && tollgate reconcile --vendor openai --file usage.json --export books.ndjson";

const SHORTER: &str = "give a shorter period";
/// How many bytes of an export are read at once.
const PIECE_BYTES: usize = 256 * 1024;

/// Options of `tollgate reconcile`: the vendor, its files, and how to compare them with the books.
#[derive(Debug, Args)]
pub(super) struct ReconcileArgs {
    /// Name of the vendor in the configuration; repeat for vendors that share one account at the same company. With
    /// --config, the names openai and anthropic mean all vendors whose URL belongs to OpenAI or Anthropic
    #[arg(
        long = "vendor",
        value_name = "NAME",
        required = true,
        value_delimiter = ','
    )]
    vendors: Vec<String>,
    /// File with the vendor's usage or costs, as JSON or CSV; - is standard input; repeat for several files
    #[arg(long = "file", value_name = "FILE", required = true)]
    files: Vec<PathBuf>,
    /// How far our numbers may differ from the vendor's, in percent of the vendor's numbers
    #[arg(long, value_name = "PERCENT", default_value = "0")]
    tolerance: Tolerance,
    /// The gateway's configuration; only prices and the vendors' model names are read from it, never secrets. Without
    /// --config, a model's catalog name is assumed to be the vendor's name as well
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
    /// Vendor's name of a model that is no longer in the configuration; repeat for several
    #[arg(long = "route", value_name = "MODEL=NAME", value_parser = route)]
    routes: Vec<(String, String)>,
    /// First day to compare (UTC); default: the first day in the files
    #[arg(long, value_name = "DAY", value_parser = day)]
    since: Option<u64>,
    /// Day before which the comparison ends (UTC); default: the day after the last day in the files
    #[arg(long, value_name = "DAY", value_parser = day)]
    until: Option<u64>,
    /// Read this export of the books instead of calling the gateway; - is standard input
    #[arg(long, value_name = "FILE")]
    export: Option<PathBuf>,
}

fn route(text: &str) -> Result<(String, String), String> {
    match text.split_once('=') {
        Some((catalog, called)) if !catalog.is_empty() && !called.is_empty() => {
            Ok((catalog.to_owned(), called.to_owned()))
        }
        _ => Err("write CATALOG-NAME=VENDOR-NAME, for example mini=gpt-5-mini-2025-08-07".into()),
    }
}

fn day(text: &str) -> Result<u64, String> {
    let ms = parse_rfc3339_ms(text).filter(|_| text.len() == "2026-11-20".len());
    ms.map(day_of)
        .ok_or_else(|| "not a day like 2026-11-20".into())
}

pub(super) async fn reconcile(admin: &AdminArgs, args: &ReconcileArgs) -> Result<(), Failure> {
    let vendor = read_files(&args.files)?;
    let (vendors, names) = read_config(args)?;
    let time = time(args, &vendor)?;
    let mut books = Books::new(&vendors, &names, time.clone());
    match &args.export {
        Some(path) => read_export(path, &mut books)?,
        None => ask(admin, &mut books).await.map_err(Failure::not_one)?,
    }
    warn(&vendor, &books, &vendors);
    let rows = compare(&books, &vendor, &names, &time, args.tolerance);
    let compared = Compared {
        vendors: vendors.iter().map(String::as_str).collect(),
        since_ms: time.start,
        until_ms: time.end,
        tolerance: args.tolerance,
        rows: &rows,
    };
    show::print(admin.json, &compared.as_json(&books), report::text)?;
    match compared.drifts() {
        0 => Ok(()),
        _ => Err(Failure::Found),
    }
}

fn read_files(files: &[PathBuf]) -> Result<VendorUsage, Failure> {
    let mut vendor = VendorUsage::default();
    let mut last = String::new();
    for path in files {
        last = path.display().to_string();
        let bytes = read_whole(path, SHORTER)?;
        vendor
            .read(&bytes)
            .map_err(|problem| Failure::Data(format!("{last}: {problem}")))?;
    }
    vendor
        .whole()
        .map_err(|problem| Failure::Data(format!("{last}: {problem}")))?;
    Ok(vendor)
}

/// Returns the vendors to compare, and these vendors' names for models.
fn read_config(args: &ReconcileArgs) -> Result<(BTreeSet<String>, Names), Failure> {
    let Some(path) = &args.config else {
        let vendors: BTreeSet<String> = args.vendors.iter().cloned().collect();
        let names = Routes::default().names(&vendors, &args.routes);
        return Ok((vendors, names));
    };
    let wrong = |problem: &str| Failure::Data(format!("{}: {problem}", path.display()));
    let text = String::from_utf8(read_whole(path, SHORTER)?)
        .map_err(|_| wrong("the file is not UTF-8 text"))?;
    let routes = Routes::read(&text).map_err(|problem| wrong(&problem))?;
    let mut vendors = BTreeSet::new();
    for name in &args.vendors {
        let meant = routes.vendors(name);
        vendors.extend(meant.map_err(|problem| Failure::Usage(format!("--vendor {problem}")))?);
    }
    let names = routes.names(&vendors, &args.routes);
    names.currency().map_err(|problem| wrong(&problem))?;
    Ok((vendors, names))
}

/// Returns the period to compare, in Unix milliseconds.
fn time(args: &ReconcileArgs, vendor: &VendorUsage) -> Result<Range<u64>, Failure> {
    let (since, until) = (args.since.map(day_begins_ms), args.until.map(day_begins_ms));
    let (start, end) = match (&vendor.covered, since, until) {
        (_, Some(since), Some(until)) => (since, until),
        (Some(covered), since, until) => {
            (since.unwrap_or(covered.start), until.unwrap_or(covered.end))
        }
        (None, _, _) => {
            return Err(Failure::Data(
                "the vendor's files contain no day; give --since and --until".into(),
            ));
        }
    };
    if end <= start {
        return Err(Failure::Usage(
            "--until must be after --since, and the period must overlap the days of the vendor's files".into(),
        ));
    }
    Ok(start..end)
}

fn read_export(path: &Path, books: &mut Books<'_>) -> Result<(), Failure> {
    let wrong =
        |problem: &dyn std::fmt::Display| Failure::Data(format!("{}: {problem}", path.display()));
    let mut file = open(path).map_err(|error| Failure::of_file(path, &error))?;
    let mut piece = vec![0; PIECE_BYTES];
    loop {
        match file.read(&mut piece) {
            Ok(0) => break,
            Ok(size) => books
                .push(&piece[..size])
                .map_err(|problem| wrong(&problem))?,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(Failure::of_file(path, &error)),
        }
    }
    match books.is_whole() {
        true => Ok(()),
        false => Err(wrong(
            &"the export has no end line, so it was cut off: export again",
        )),
    }
}

async fn ask(admin: &AdminArgs, books: &mut Books<'_>) -> Result<(), Failure> {
    let client = Client::new(admin)?;
    let mut progress = Progress::new("lines", None);
    let read = client.read("/admin/v1/export", |piece| {
        books
            .push(piece)
            .map_err(|problem| Failure::Internal(format!("the gateway's export: {problem}")))?;
        progress.at(books.lines());
        Ok(ControlFlow::Continue(()))
    });
    let _: ControlFlow<()> = read.await?;
    drop(progress);
    match books.is_whole() {
        true => Ok(()),
        false => Err(Failure::OutOfReach(format!(
            "the export was cut off after {} lines; see the gateway's log and try again",
            books.lines()
        ))),
    }
}

/// Prints warnings about facts that may cause drift although nobody made a mistake.
fn warn(vendor: &VendorUsage, books: &Books<'_>, vendors: &BTreeSet<String>) {
    for field in &vendor.unknown {
        eprintln!(
            "warning: {field}: this version does not know this count of the vendor, so it is not compared"
        );
    }
    if books.journals_cut > 0 {
        let accounts = show::counted(books.journals_cut, "account");
        eprintln!(
            "warning: the ledger no longer has the oldest receipts of {accounts}: our counts for early days may be too low"
        );
    }
    if books.calls == 0 {
        let list = |names: &BTreeSet<String>| Vec::from_iter(names.iter().cloned()).join(", ");
        let seen = match books.vendors_seen.is_empty() {
            true => "none".into(),
            false => list(&books.vendors_seen),
        };
        eprintln!(
            "warning: the books have no call to {} in the compared time; vendors with calls at any time: {seen}",
            list(vendors)
        );
    }
}

#[cfg(test)]
mod tests {
    use tollgate_layers::calendar::DAY_MS;

    use super::*;

    fn args() -> ReconcileArgs {
        ReconcileArgs {
            vendors: vec!["v".into()],
            files: Vec::new(),
            tolerance: Tolerance::default(),
            config: None,
            routes: Vec::new(),
            since: None,
            until: None,
            export: None,
        }
    }

    #[test]
    fn compared_days_are_those_of_the_vendors_files_unless_options_set_them() {
        let mut vendor = VendorUsage::default();
        let error = time(&args(), &vendor).unwrap_err();
        assert_eq!(error.code(), 65);
        vendor
            .read(b"day,model,class,count\n2026-11-20,m,input,1\n2026-11-22,m,input,1\n")
            .unwrap();
        let first = day("2026-11-20").unwrap();
        let begins = |days: u64| (first + days) * DAY_MS;
        assert_eq!(time(&args(), &vendor).unwrap(), begins(0)..begins(3));
        let of = |since: Option<u64>, until: Option<u64>| {
            let args = ReconcileArgs {
                since: since.map(|days| first + days),
                until: until.map(|days| first + days),
                ..args()
            };
            time(&args, &vendor)
        };
        assert_eq!(of(Some(1), None).unwrap(), begins(1)..begins(3));
        assert_eq!(of(Some(1), Some(9)).unwrap(), begins(1)..begins(9));
        assert_eq!(of(Some(3), None).unwrap_err().code(), 64);
    }

    #[test]
    fn command_exits_with_74_for_an_unreadable_file_and_with_65_for_an_invalid_file() {
        let folder = tempfile::tempdir().unwrap();
        let (missing, wrong) = (folder.path().join("no"), folder.path().join("wrong"));
        std::fs::write(&wrong, "nothing\n").unwrap();
        let of_config = |path: &Path| {
            let args = ReconcileArgs {
                config: Some(path.to_owned()),
                ..args()
            };
            read_config(&args).err().unwrap().code()
        };
        let of_export = |path: &Path| {
            let vendors = BTreeSet::new();
            let names = Routes::default().names(&vendors, &[]);
            let mut books = Books::new(&vendors, &names, 0..1);
            read_export(path, &mut books).unwrap_err().code()
        };
        for (path, code) in [(&missing, 74), (&wrong, 65)] {
            let of_files = read_files(std::slice::from_ref(path)).unwrap_err().code();
            assert_eq!(
                (of_files, of_config(path), of_export(path)),
                (code, code, code)
            );
        }
        // A folder can be opened like a file, but reading it fails.
        assert_eq!(of_export(folder.path()), 74);
    }

    #[test]
    fn flags_are_checked_before_anything_is_read() {
        assert_eq!(route("a=b=c"), Ok(("a".into(), "b=c".into())));
        for text in ["a", "=b", "a="] {
            assert!(route(text).is_err(), "{text}");
        }
        for text in ["2026-11-31", "2026-11-20T00:00:00Z", "yesterday"] {
            assert!(day(text).is_err(), "{text}");
        }
    }
}
