//! `tollgate reconcile`: compares the books with the vendor's own export of what was used.
//!
//! The vendor's files are read first, because they determine the time to compare. Then an export of the books is
//! streamed; only sums by day and model and a few receipts for each are kept of it. Exit code 1 means drift only.

mod amount;
mod books;
mod compare;
mod names;
mod report;
mod vendor_files;

use std::{
    collections::BTreeSet,
    fs::File,
    io::{self, Read},
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
use super::{AdminArgs, client::Client, failure::Failure, progress::Progress, show};
use crate::text::time::parse_rfc3339_ms;

pub(super) const HELP: &str = "\
Files, whose kind is recognised; docs/statements.md shows how to request them:
  OpenAI     answers of /v1/organization/usage/completions (group_by=model) and of /v1/organization/costs
             (group_by=line_item)
  Anthropic  answers of /v1/organizations/usage_report/messages (group_by[]=model) and of
             /v1/organizations/cost_report (group_by[]=description)
  others     CSV with the columns day,model,class,count,cost: a day of UTC, the vendor's model, one of input,
             cached_input, cache_write, cache_write_1h, cache_write_12h, output, input_audio, output_audio, input_image,
             output_image, cached_input_audio, cached_input_image, output_reasoning, web_search_call, request_call, other,
             calls; the count, the cost in USD (in rubles for a vendor with cost_rub_mtok), or both
Put all pages of one answer into one file, in order. Request usage of only the gateway's keys or project.

Exit codes: 0 all within the tolerance; 1 drift, and no other error; 65 a file of another kind; 74 a file that cannot be
read; the others as for all commands.

Examples:
  tollgate reconcile --vendor openai --file usage.json --config tollgate.toml
  tollgate reconcile --vendor anthropic --file usage.json --file cost.json --config tollgate.toml --tolerance 0.5
  tollgate reconcile --vendor reseller --file bill.csv --since 2026-11-01 --until 2026-12-01 --route old-mini=gpt-4-mini
  tollgate export --output books.ndjson && tollgate reconcile --vendor openai --file usage.json --export books.ndjson";

/// Largest file of a vendor that is read, in bytes.
const FILE_BYTES_MAX: u64 = 256 * 1024 * 1024;
/// The size of the pieces in which an export is read, in bytes.
const PIECE_BYTES: usize = 256 * 1024;

/// The vendor, its files, and how to compare them with the books.
#[derive(Debug, Args)]
pub(super) struct ReconcileArgs {
    /// The vendor, by its name in the configuration; repeat for several that share one account at the vendor. With
    /// --config, openai and anthropic mean all vendors at these companies' addresses
    #[arg(
        long = "vendor",
        value_name = "NAME",
        required = true,
        value_delimiter = ','
    )]
    vendors: Vec<String>,
    /// The vendor's export, as JSON or CSV; - is standard input; repeat for usage and costs
    #[arg(long = "file", value_name = "FILE", required = true)]
    files: Vec<PathBuf>,
    /// How far our numbers may be from the vendor's, in percent of the vendor's
    #[arg(long, value_name = "PERCENT", default_value = "0")]
    tolerance: Tolerance,
    /// The gateway's configuration, for the vendor's names of models and for prices; none of its secrets is read.
    /// Without it, the vendor's name of a model is assumed to be its catalog name
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
    /// The vendor's name of a model that is no longer in the configuration; repeat for several
    #[arg(long = "route", value_name = "MODEL=NAME", value_parser = route)]
    routes: Vec<(String, String)>,
    /// From this day (UTC) on; by default from the first day in the files
    #[arg(long, value_name = "DAY", value_parser = day)]
    since: Option<u64>,
    /// Before this day; by default to the end of the last day in the files
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
        _ => {
            Err("write the catalog's name, =, and the vendor's: mini=gpt-5-mini-2025-08-07".into())
        }
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
        _ => Err(Failure::Drift),
    }
}

fn read_files(files: &[PathBuf]) -> Result<VendorUsage, Failure> {
    let mut vendor = VendorUsage::default();
    let mut last = String::new();
    for path in files {
        last = path.display().to_string();
        let bytes = read_whole(path)?;
        vendor
            .read(&bytes)
            .map_err(|problem| Failure::Data(format!("{last}: {problem}")))?;
    }
    vendor
        .whole()
        .map_err(|problem| Failure::Data(format!("{last}: {problem}")))?;
    Ok(vendor)
}

fn read_whole(path: &Path) -> Result<Vec<u8>, Failure> {
    let mut bytes = Vec::new();
    let read = open(path).and_then(|file| file.take(FILE_BYTES_MAX + 1).read_to_end(&mut bytes));
    match read {
        Err(error) => Err(unread(path, &error)),
        Ok(size) if size as u64 > FILE_BYTES_MAX => Err(Failure::Data(format!(
            "{}: more than {FILE_BYTES_MAX} bytes; give a shorter period",
            path.display()
        ))),
        Ok(_) => Ok(bytes),
    }
}

fn unread(path: &Path, error: &io::Error) -> Failure {
    Failure::Io(format!("{}: {error}", path.display()))
}

fn open(path: &Path) -> io::Result<Box<dyn Read>> {
    if path.as_os_str() == "-" {
        return Ok(Box::new(io::stdin().lock()));
    }
    Ok(Box::new(File::open(path)?))
}

/// Returns the vendors to compare, and their names for models.
fn read_config(args: &ReconcileArgs) -> Result<(BTreeSet<String>, Names), Failure> {
    let Some(path) = &args.config else {
        let vendors: BTreeSet<String> = args.vendors.iter().cloned().collect();
        let names = Routes::default().names(&vendors, &args.routes);
        return Ok((vendors, names));
    };
    let wrong = |problem: &str| Failure::Data(format!("{}: {problem}", path.display()));
    let text =
        String::from_utf8(read_whole(path)?).map_err(|_| wrong("it is not text in UTF-8"))?;
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

/// Returns the time range that is compared, in Unix milliseconds.
fn time(args: &ReconcileArgs, vendor: &VendorUsage) -> Result<Range<u64>, Failure> {
    let (since, until) = (args.since.map(day_begins_ms), args.until.map(day_begins_ms));
    let (start, end) = match (&vendor.covered, since, until) {
        (_, Some(since), Some(until)) => (since, until),
        (Some(covered), since, until) => {
            (since.unwrap_or(covered.start), until.unwrap_or(covered.end))
        }
        (None, _, _) => {
            return Err(Failure::Data(
                "the files name no day; give --since and --until".into(),
            ));
        }
    };
    if end <= start {
        return Err(Failure::Usage(
            "--until must be after --since, with the files' days between them".into(),
        ));
    }
    Ok(start..end)
}

fn read_export(path: &Path, books: &mut Books<'_>) -> Result<(), Failure> {
    let wrong =
        |problem: &dyn std::fmt::Display| Failure::Data(format!("{}: {problem}", path.display()));
    let mut file = open(path).map_err(|error| unread(path, &error))?;
    let mut piece = vec![0; PIECE_BYTES];
    loop {
        match file.read(&mut piece) {
            Ok(0) => break,
            Ok(size) => books
                .push(&piece[..size])
                .map_err(|problem| wrong(&problem))?,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(unread(path, &error)),
        }
    }
    match books.is_whole() {
        true => Ok(()),
        false => Err(wrong(
            &"the end is missing: the export was cut off; export again",
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

/// Prints warnings about facts that are not mistakes but may cause drift.
fn warn(vendor: &VendorUsage, books: &Books<'_>, vendors: &BTreeSet<String>) {
    for field in &vendor.unknown {
        eprintln!(
            "warning: {field}: this count of the vendor is unknown to this version and not compared"
        );
    }
    if books.journals_cut > 0 {
        let accounts = show::counted(books.journals_cut, "account");
        eprintln!(
            "warning: the oldest receipts of {accounts} are gone from the ledger: early days may lack some"
        );
    }
    if books.calls == 0 {
        let list = |names: &BTreeSet<String>| {
            names
                .iter()
                .map(String::as_str)
                .collect::<Vec<_>>()
                .join(", ")
        };
        let seen = match books.vendors_seen.is_empty() {
            true => "none".into(),
            false => list(&books.vendors_seen),
        };
        eprintln!(
            "warning: the books have no call of {} in that time; vendors with calls at any time: {seen}",
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
    fn unreadable_file_exits_with_74_and_invalid_file_with_65() {
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
        // A folder can be opened, but reading it fails.
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
