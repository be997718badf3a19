//! `tollgate prices`: compares a configuration's prices with newer prices of the vendors, and writes the differences
//! into the configuration file.

use std::{
    fs,
    path::{Path, PathBuf},
};

use clap::{Args, Subcommand};
use serde_json::{Value, json};

use super::{
    check::mistakes,
    failure::Failure,
    files::replace,
    show::{self, Cell, counted, table},
    vendor_add::checked,
};
use crate::config::{PriceChange, PriceDiff, PriceSource};

#[derive(Debug, Subcommand)]
pub(super) enum PricesCommand {
    /// Print the prices and costs that differ from the vendors' newer prices; exit 1 if there are any
    ///
    /// If a model's price equals the cost of its first route, or this route has no cost, the price follows the vendor's
    /// new price. Any other price is your own: it stays, and only the cost changes. The margin is computed after the
    /// change, in percent of the selling price. Prices that cannot be compared are listed on standard error.
    #[command(
        after_help = "Examples:\n  tollgate prices diff --config tollgate.toml\n  \
                      tollgate prices diff --from model_prices_and_context_window.json --config tollgate.toml"
    )]
    Diff(PricesArgs),
    /// Write the vendors' newer prices into the configuration file; comments and order stay
    ///
    /// The result is checked before it replaces the file. A running gateway reads the file by itself and gives its
    /// tariff a new version. A rate class or a price rule that the file lacks is not added, because the gateway would
    /// then sell it; the output only names it.
    #[command(
        after_help = "Examples:\n  tollgate prices diff --config tollgate.toml || tollgate prices apply --config tollgate.toml\n  \
                      tollgate prices apply --valid-from 2027-01-01 --config tollgate.toml"
    )]
    Apply {
        #[command(flatten)]
        args: PricesArgs,
        /// Write the newer prices as rules that come into force at this time, and keep the old prices until then:
        /// 2027-01-01 (UTC) or 2027-01-01T00:00:00+03:00
        #[arg(long, value_name = "DATE", value_parser = valid_from)]
        valid_from: Option<String>,
    },
}

/// Accepts text that can be a date or a time; the check of the configuration parses it.
fn valid_from(text: &str) -> Result<String, String> {
    let is_date = text.len() == 10 && text.bytes().all(|it| it.is_ascii_digit() || it == b'-');
    let is_time = text.contains('T') && !text.contains(['"', '\\']);
    match (is_date, is_time) {
        (true, _) => Ok(format!("{text}T00:00:00Z")),
        (_, true) => Ok(text.to_owned()),
        _ => Err("write a date like 2027-01-01, or a time like 2027-01-01T00:00:00+03:00".into()),
    }
}

#[derive(Debug, Args)]
pub(super) struct PricesArgs {
    /// Compare with a public price map instead of this binary's presets: JSON in the form of LiteLLM's
    /// model_prices_and_context_window.json
    #[arg(long, value_name = "FILE")]
    from: Option<PathBuf>,
    /// The configuration file
    #[arg(long, value_name = "FILE")]
    config: PathBuf,
    /// Print the result as JSON
    #[arg(long)]
    json: bool,
}

const CHANGE: &[Cell] = &[
    Cell::text("model", "/model"),
    Cell::text("vendor", "/vendor"),
    Cell::text("when", "/when"),
    Cell::text("class", "/class"),
    Cell::number("old", "/old"),
    Cell::number("new", "/new"),
    Cell::text("changes", "/changes"),
    Cell::number("margin, %", "/margin_percent"),
];

pub(super) fn prices(command: &PricesCommand) -> Result<(), Failure> {
    let (args, from) = match command {
        PricesCommand::Diff(args) => (args, None),
        PricesCommand::Apply { args, valid_from } => (args, valid_from.as_deref()),
    };
    let file = &args.config;
    let before = fs::read_to_string(file).map_err(|error| Failure::of_file(file, &error))?;
    let (config, _) = checked(&before, file)?;
    let source = match &args.from {
        None => PriceSource::Presets,
        Some(map) => source(map)?,
    };
    let diff = PriceDiff::new(&before, &source, config.live.tariff, from);
    let diff = diff.map_err(|errors| mistakes(file, &errors))?;
    if !args.json {
        for note in &diff.notes {
            eprintln!("{}: {note}", file.display());
        }
    }
    let is_applied = matches!(command, PricesCommand::Apply { .. }) && diff.text != before;
    if is_applied {
        checked(&diff.text, file)?;
        replace(file, &diff.text)?;
    }
    let rows: Vec<_> = diff.changes.iter().map(row).collect();
    let report = json!({ "changes": rows, "notes": diff.notes, "written": is_applied });
    show::print(args.json, &report, |_| {
        let count = counted(rows.len() as u64, "difference");
        let mut text = match rows.is_empty() {
            true => "no price differs\n".to_owned(),
            false => table(CHANGE, &rows),
        };
        if is_applied && !rows.is_empty() {
            text += &format!("{count} written to {}\n", file.display());
        }
        text
    })?;
    match command {
        PricesCommand::Diff(_) if !diff.changes.is_empty() => Err(Failure::Found),
        _ => Ok(()),
    }
}

fn source(map: &Path) -> Result<PriceSource, Failure> {
    let text = fs::read_to_string(map).map_err(|error| Failure::of_file(map, &error))?;
    PriceSource::from_map(&text)
        .map_err(|error| Failure::Data(format!("{}: not a price map: {error}", map.display())))
}

fn row(change: &PriceChange) -> Value {
    json!({
        "model": change.model, "vendor": change.vendor, "when": change.when, "class": change.class,
        "old": change.old.to_string(), "new": change.new.to_string(), "changes": change.fields,
        "margin_percent": change.margin_percent.map(|it| it.to_string()),
    })
}

#[cfg(test)]
mod tests {
    use clap::Parser as _;
    use tempfile::TempDir;

    use super::*;
    use crate::cli::{Cli, Command};

    const FILE: &str = "[admin]\nkey = \"${ADMIN_KEY}\"\n[[rate.source]]\nfixed = \"90.50\"\n[tariff]\nsell_rate_multiplier = \"1.15\"\n\
                        [[vendor]]\npreset = \"groq\"\n[[model]]\nid = \"oss\"   # ours\nfamily = \"GPT-OSS\"\n\
                        usdt_mtok = { input = \"9\", cached_input = \"9\", output = \"9\", cache_write = \"9\" } # of May\n\
                        output_tokens_max = 8192\nroutes = [ { vendor = \"groq\", model = \"openai/gpt-oss-20b\" } ]\n";

    /// Runs `prices apply` with these options on a file. Returns the result and the file's text after the command.
    fn applied(options: &str) -> (Result<(), Failure>, String) {
        let dir = TempDir::new().unwrap();
        let file = dir.path().join("tollgate.toml");
        fs::write(&file, FILE).unwrap();
        let line = format!(
            "tollgate prices apply {options} --config {}",
            file.display()
        );
        let cli = Cli::try_parse_from(line.split_whitespace()).unwrap();
        let Command::Prices { command } = cli.command else {
            panic!("{line}")
        };
        (prices(&command), fs::read_to_string(&file).unwrap())
    }

    #[test]
    fn prices_valid_from_a_later_day_are_added_after_the_prices_in_force() {
        let (result, text) = applied("--valid-from 2027-01-01");
        assert!(result.is_ok(), "{result:?}");
        let (before, after) = text.split_once("price_rules = [\n").unwrap();
        assert!(FILE.starts_with(before.trim_end()), "{before}");
        let (rules, after) = after.split_once("]\n").unwrap();
        assert!(FILE.ends_with(after), "{after}");
        assert!(
            rules.contains("valid_from = \"2027-01-01T00:00:00Z\"") && !rules.contains("\"9\""),
            "{rules}"
        );
    }

    #[test]
    fn prices_with_an_invalid_start_date_do_not_change_the_file() {
        let (result, text) = applied("--valid-from 2027-13-01");
        let failure = result.unwrap_err();
        assert!(failure.text().contains("valid_from"), "{failure:?}");
        assert_eq!(text, FILE);
        assert!(valid_from("tomorrow").is_err());
    }
}
