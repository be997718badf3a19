//! The commands. Those for operators call a running gateway's admin API and hold no state. The arguments of a group of
//! commands are defined in its file, next to the code that runs it.

mod account;
mod ask;
mod audit;
mod ceilings;
mod check;
mod client;
mod code;
mod completions;
mod csv;
mod event;
mod export;
mod failure;
mod group;
mod health;
mod import;
mod init;
mod key;
mod key_id;
mod lease;
mod ledger_copy;
mod load;
mod member;
mod operator;
mod payment;
mod preset;
mod prices;
mod progress;
mod receipt;
mod reconcile;
mod run;
mod show;
mod statement;
#[cfg(test)]
mod tests;
mod usage;
mod vendor;
mod vendor_add;
mod vendor_test;

use std::{net::SocketAddr, path::PathBuf, process::ExitCode};

use clap::{Args, Parser, Subcommand};
use clap_complete::Shell;
use tollgate_layers::{facts::RequestNumber, key::AccountId, money::MicroRub};

use self::{
    account::AccountCommand, code::CodeCommand, event::EventCommand, failure::USAGE,
    group::GroupCommand, key::KeyCommand, lease::LeaseCommand, member::MemberCommand,
    operator::OperatorCommand, payment::PaymentCommand, preset::PresetCommand,
    prices::PricesCommand, vendor::VendorCommand,
};
use crate::{COMMIT, text::time::parse_rfc3339_ms};

/// Parses the command line. For help and for a usage mistake, prints the text and returns the exit code with which the
/// process ends.
///
/// # Errors
/// The exit code: 0 for help, 64 for a mistake.
pub fn parse() -> Result<Cli, ExitCode> {
    Cli::try_parse().map_err(|error| {
        // If the text cannot be printed, the failure cannot be reported either.
        let _ = error.print();
        if error.use_stderr() {
            ExitCode::from(USAGE)
        } else {
            ExitCode::SUCCESS
        }
    })
}

/// A prepaid gateway for language models
///
/// Companies top up accounts; their programs call models with keys; for every call, money is held, then the call is
/// metered and charged to the micro-ruble.
#[derive(Debug, Parser)]
#[command(name = "tollgate", version = version(), after_help = HELP)]
pub struct Cli {
    #[command(subcommand)]
    command: Command,
}

/// Returns the version, with the commit in a release build.
fn version() -> &'static str {
    const VERSION: &str = env!("CARGO_PKG_VERSION");
    match COMMIT {
        // The text is leaked once, because clap keeps it for the life of the process.
        Some(commit) => format!("{VERSION} ({commit})").leak(),
        None => VERSION,
    }
}

const HELP: &str = "\
Try it:
  tollgate demo

Run it:
  tollgate init
  tollgate check --config tollgate.toml
  tollgate serve --config tollgate.toml

Operate it, from a shell with TOLLGATE_ADMIN_KEY set:
  tollgate account create acme --name \"Acme LLC\"
  tollgate topup acme 1000 --id payment-17
  tollgate key create acme --name ci --ceiling 100 --ceiling-day 10

Look into it:
  tollgate usage --since 2026-01-01 --until 2026-02-01 --by account --format csv
  tollgate statement acme --month 2026-11 --output acme-2026-11.html
  tollgate audit
  tollgate load --url http://127.0.0.1:8080
  tollgate reconcile --vendor openai --file usage.json --config tollgate.toml

Exit codes: 0 done; 1 refused by the gateway, a breach found by the audit, drift found by reconcile, prices that differ in prices diff, or a statement that differs; 64 wrong use, or a configuration with mistakes or that cannot be read; \
65 mistakes in a file that was given to read; 69 the gateway or its ledger is out of reach, or not ready; 70 the \
gateway's own fault; 74 another file could not be read or written; 77 not the gateway's admin key.";

#[derive(Debug, Subcommand)]
enum Command {
    /// Try everything in one process: gateway, scripted vendor, funded key
    ///
    /// Needs no configuration, no network and no other software; stores nothing. Prints the key and how to call the
    /// gateway with it, then one line for each call.
    #[command(
        after_help = "Examples:\n  tollgate demo\n  tollgate demo --listen 127.0.0.1:9090\n  \
                            tollgate demo --vendor-only --listen 127.0.0.1:9099"
    )]
    Demo {
        /// Address for callers to connect to; port 0 picks a free port
        #[arg(long, value_name = "ADDR", default_value = "127.0.0.1:8080")]
        listen: SocketAddr,
        /// Start only the scripted vendor, to test your own configuration against it
        #[arg(long)]
        vendor_only: bool,
    },

    /// Set up a gateway in a folder: configuration, admin key, first vendor
    ///
    /// On a terminal, requests what is not given: vendor, its key (not shown), address, rate of USDT. Writes tollgate.toml,
    /// with a ledger in SQLite in the same folder, and files with the keys, readable by you alone; prints the commands that
    /// lead to the first paid call. Calls nobody and starts nothing. `tollgate preset list` lists the vendors.
    #[command(after_help = "Examples:\n  tollgate init --dir ~/tollgate\n  \
                            tollgate init --dir /srv/tollgate --vendor deepseek --key-env DEEPSEEK_API_KEY --listen 0.0.0.0:8080 \
                            --rate 90.50\n  \
                            tollgate init --vendor gigachat --key-file sber.key --ca-file russian-root.pem --models GigaChat-2")]
    Init(init::InitArgs),

    /// Run the gateway
    ///
    /// Applies a changed configuration, certificate or secret within seconds, and immediately on SIGHUP; keeps the old
    /// configuration if the new one is invalid, and reports which fields need a restart. On SIGTERM it stops accepting
    /// calls, lets the running ones end, settles them and exits. If the process was started with sockets named public
    /// and admin (LISTEN_FDS), it listens on them.
    #[command(after_help = "Example:\n  tollgate serve --config /etc/tollgate/tollgate.toml")]
    Serve {
        /// The configuration file
        #[arg(long, value_name = "FILE")]
        config: PathBuf,
    },

    /// Read a configuration and print every mistake in it
    ///
    /// Warns about settings that are allowed but probably not meant; with warnings alone the exit code is 0. Reads
    /// secrets from the environment and files as `serve` would, so run it as the same user. Opens no port and connects
    /// to nothing.
    #[command(
        after_help = "Example:\n  tollgate check --config tollgate.toml && systemctl reload tollgate"
    )]
    Check {
        /// The configuration file
        #[arg(long, value_name = "FILE")]
        config: PathBuf,
        /// Print JSON
        #[arg(long)]
        json: bool,
        /// Also call each vendor, as `tollgate vendor test` does; the vendors bill it
        #[arg(long)]
        live: bool,
    },

    /// Print the JSON schema of the configuration, for editors
    #[command(after_help = "Example:\n  tollgate schema > tollgate.schema.json")]
    Schema,

    /// Companies' accounts: create, list, show, rename, suspend, resume, alert
    #[command(
        after_help = "Examples:\n  tollgate account create acme --name \"Acme LLC\"\n  \
                            tollgate account list\n  tollgate account suspend acme"
    )]
    Account {
        #[command(flatten)]
        admin: AdminArgs,
        #[command(subcommand)]
        command: AccountCommand,
    },

    /// Book a payment into an account
    ///
    /// Use the payment's own id, from the bank or the invoice. Repeating the command with the same id for the same
    /// account changes nothing, so if the answer is lost, run the command again.
    #[command(after_help = "Example:\n  tollgate topup acme 1000.50 --id payment-17")]
    Topup {
        /// The account
        account: AccountId,
        /// Decimal rubles, more than 0
        #[arg(allow_negative_numbers = true, value_parser = account::payment)]
        rubles: MicroRub,
        /// The payment's id
        #[arg(long, value_name = "PAYMENT-ID")]
        id: String,
        #[command(flatten)]
        admin: AdminArgs,
    },

    /// Correct an account's balance, up or down
    ///
    /// The balance cannot go below what running calls hold. The same id again changes nothing.
    #[command(
        after_help = "Examples:\n  tollgate adjust acme -12.50 --id refund-3 --reason \"refund by contract\"\n  \
                            tollgate adjust acme 5 --id goodwill-1 --reason \"outage of 3 May\""
    )]
    Adjust {
        /// The account
        account: AccountId,
        /// Decimal rubles; a negative amount is taken off the balance
        #[arg(allow_negative_numbers = true)]
        rubles: MicroRub,
        /// The correction's id
        #[arg(long)]
        id: String,
        /// The reason, for the books
        #[arg(long, value_name = "TEXT")]
        reason: String,
        #[command(flatten)]
        admin: AdminArgs,
    },

    /// Payments that customers make at a provider: create (a link), list, check, auto (by a saved card)
    #[command(
        after_help = "Examples:\n  tollgate payment create acme 5000\n  tollgate payment list --account acme"
    )]
    Payment {
        #[command(flatten)]
        admin: AdminArgs,
        #[command(subcommand)]
        command: PaymentCommand,
    },

    /// Keys: create, list, show, disable, enable, delete, set
    #[command(
        after_help = "Examples:\n  tollgate key create acme --name ci --ceiling 100\n  \
                            tollgate key list acme\n  tollgate key disable k0AbC123dEf456gH"
    )]
    Key {
        #[command(flatten)]
        admin: AdminArgs,
        #[command(subcommand)]
        command: KeyCommand,
    },

    /// Groups of keys with shared ceilings: create, list, update, remove
    #[command(
        after_help = "Examples:\n  tollgate group create acme support --ceiling-month 5000\n  \
                            tollgate key set k0AbC123dEf456gH --group support\n  tollgate group list acme"
    )]
    Group {
        #[command(flatten)]
        admin: AdminArgs,
        #[command(subcommand)]
        command: GroupCommand,
    },

    /// Promo codes and invitations: create, list, remove
    #[command(after_help = "Example:\n  tollgate code create --amount 500 --uses 20")]
    Code {
        #[command(flatten)]
        admin: AdminArgs,
        #[command(subcommand)]
        command: CodeCommand,
    },

    /// Members of an account, who may sign in to its cabinet: add, list, remove
    #[command(
        after_help = "Examples:\n  tollgate member add acme anna@acme.example --role owner\n  \
                            tollgate member list acme"
    )]
    Member {
        #[command(flatten)]
        admin: AdminArgs,
        #[command(subcommand)]
        command: MemberCommand,
    },

    /// Operators who may sign in to the console by name: create, list, delete
    ///
    /// Edits the file that admin.operators_file of the configuration names. A running gateway reads the file at every
    /// sign-in and every page.
    #[command(
        after_help = "Examples:\n  tollgate operator create anna --role finance --file /etc/tollgate/operators.toml\n  \
                            tollgate operator list --file /etc/tollgate/operators.toml"
    )]
    Operator {
        #[command(subcommand)]
        command: OperatorCommand,
    },

    /// Show what a call cost, and why
    ///
    /// The number is the one that the caller saw: in the header x-request-id of the answer, or in parentheses at the
    /// end of an error. If the call has no receipt, because it was refused, cost nothing or still runs, prints what its
    /// gateway remembers of it and exits with status 1.
    #[command(after_help = "Example:\n  tollgate receipt 0190163d-8694-739b-aea5-966c26f8ad91")]
    Receipt {
        /// The call's number
        #[arg(value_parser = receipt::number)]
        number: RequestNumber,
        #[command(flatten)]
        admin: AdminArgs,
    },

    /// Add up what was used and charged, by account, key, group, model, session, endpoint or day
    ///
    /// Covers calls that were charged, from the first one to now unless --since and --until give other bounds. A call
    /// counts for the day, in UTC, on which it was charged.
    #[command(
        after_help = "Examples:\n  tollgate usage --account acme --by model\n  \
                            tollgate usage --since 2026-01-01 --until 2026-02-01 --by day,account --format csv"
    )]
    Usage {
        #[command(flatten)]
        args: usage::UsageQuery,
        #[command(flatten)]
        admin: AdminArgs,
    },

    /// An account's monthly statement for its accountant: balances, payments, corrections, spending by model
    ///
    /// As a page, PDF, CSV or JSON, with the seller's details from the configuration. The statement of a closed month
    /// (two hours after its end) does not change any more: --verify reports whether an existing file agrees with the
    /// books.
    #[command(
        after_help = "Examples:\n  tollgate statement acme --month 2026-11\n  \
                            tollgate statement acme --month 2026-11 --output acme-2026-11.html\n  \
                            tollgate statement acme --month 2026-11 --verify acme-2026-11.html"
    )]
    Statement {
        #[command(flatten)]
        args: statement::StatementArgs,
        #[command(flatten)]
        admin: AdminArgs,
    },

    /// Write accounts, payments and receipts as lines of JSON
    ///
    /// To standard output, or to a file that gets its name once it is complete. Every account comes with its keys and
    /// open holds as of one moment, then its journal up to that moment; the last line counts them all. Contains no key
    /// and no prompt.
    #[command(
        after_help = "Examples:\n  tollgate export --output books.ndjson && tollgate audit --export books.ndjson\n  \
                            tollgate export --account acme | jq -r 'select(.kind == \"call\") | [.number, .charged_rub] | @csv'"
    )]
    Export {
        /// Only this account
        #[arg(long)]
        account: Option<AccountId>,
        /// Output file; - is standard output
        #[arg(long, value_name = "FILE")]
        output: Option<PathBuf>,
        #[command(flatten)]
        admin: AdminArgs,
    },

    /// Events that the ledger has emitted, and their receivers: list, receivers, dead, replay, stop, resume
    #[command(
        after_help = "Examples:\n  tollgate event list --account acme\n  tollgate event list --follow"
    )]
    Event {
        #[command(flatten)]
        admin: AdminArgs,
        #[command(subcommand)]
        command: EventCommand,
    },

    /// Vendors and their routes: add (to a file), test, list, disable, enable
    ///
    /// Each node has its own view of its vendors, and its own switch.
    #[command(
        after_help = "Examples:\n  tollgate vendor add deepseek --config tollgate.toml\n  tollgate vendor list\n  \
                            tollgate vendor disable openai-eu"
    )]
    Vendor {
        #[command(flatten)]
        admin: AdminArgs,
        #[command(subcommand)]
        command: VendorCommand,
    },

    /// Vendors and models that the binary carries, with their settings and prices: list, show
    #[command(
        after_help = "Examples:\n  tollgate preset list\n  tollgate preset show deepseek-flash"
    )]
    Preset {
        #[command(subcommand)]
        command: PresetCommand,
    },

    /// Compare the prices of a configuration with the vendors' newer ones: diff, apply
    ///
    /// The newer prices are those of this binary's presets, or of a public price map. Needs no running gateway.
    #[command(
        after_help = "Examples:\n  tollgate prices diff --config tollgate.toml\n  \
                            tollgate prices diff --from model_prices_and_context_window.json --config tollgate.toml\n  \
                            tollgate prices apply --config tollgate.toml && tollgate check --config tollgate.toml"
    )]
    Prices {
        #[command(subcommand)]
        command: PricesCommand,
    },

    /// Check that the whole ledger adds up; exit 1 on a breach, and only then
    ///
    /// Checks every account, key, hold and receipt. I2: the amount held is the sum of the open holds. I3: the balance
    /// is what was paid in less what was charged, and each cost is charge plus loss. I4: the amount held is between
    /// zero and the balance. I5: each hold has ended once. I1 (a hold never exceeds the free balance) is decided when a
    /// hold is made and leaves no trace other than these.
    #[command(after_help = "Examples:\n  tollgate audit\n  \
                            tollgate audit >audit.txt; [ $? != 1 ] || mail -s 'ledger in breach' ops@example.com <audit.txt\n  \
                            tollgate export | tollgate audit --export -")]
    Audit {
        /// Check this export instead of a running gateway's ledger; - is standard input
        #[arg(long, value_name = "FILE")]
        export: Option<PathBuf>,
        #[command(flatten)]
        admin: AdminArgs,
    },

    /// Compare the books with a vendor's own usage export; exit 1 on drift, and only then
    ///
    /// By day (UTC), vendor's model and class: our count, the vendor's, and the costs if both are known. For each
    /// drift, names the receipts that may explain it: estimated, bounded, cut, left by their client.
    #[command(after_help = reconcile::HELP)]
    Reconcile {
        #[command(flatten)]
        args: reconcile::ReconcileArgs,
        #[command(flatten)]
        admin: AdminArgs,
    },

    /// Import accounts, payments and keys from a CSV file
    ///
    /// All lines are checked first, here and against the gateway's accounts and keys; if any line has a mistake,
    /// nothing is done. Only booking a payment shows whether it can be booked: a payment that is refused, for example
    /// because its id was booked with another amount, ends the import at its line. Existing items are left as they
    /// are, so the same file can be imported again, also after an interrupted import.
    #[command(after_help = import::help())]
    Import {
        #[command(flatten)]
        args: import::ImportArgs,
        #[command(flatten)]
        admin: AdminArgs,
    },

    /// Leases of gateways on accounts' money: list
    #[command(after_help = "Example:\n  tollgate lease list --account acme")]
    Lease {
        #[command(flatten)]
        admin: AdminArgs,
        #[command(subcommand)]
        command: LeaseCommand,
    },

    /// The ledger itself: copy it elsewhere
    #[command(
        after_help = "Example:\n  tollgate ledger copy --from sqlite:tollgate.db --to redis://127.0.0.1:6379/0"
    )]
    Ledger {
        #[command(subcommand)]
        command: LedgerCommand,
    },

    /// Send calls to a gateway and report how they were answered: latency, statuses, failures
    ///
    /// Real calls, which cost the key's owner money: at most --calls-max of them, of --max-tokens output tokens each.
    /// Prints counts by status, percentiles of the whole call, of the time to the first piece of the answer and between
    /// its pieces, and a plot.
    #[command(after_help = load::HELP)]
    Load(load::LoadArgs),

    /// Check whether a gateway should get calls: exit 0 if so, 69 if not
    ///
    /// Needs no key: for health checks of containers and load balancers. Prints the reason if not.
    #[command(
        after_help = "Examples:\n  tollgate health --url http://127.0.0.1:8081 || echo 'not ready'\n  \
                            tollgate serve --config tollgate.toml & tollgate health --wait 10"
    )]
    Health {
        /// Wait at most this long for the gateway to get ready
        #[arg(long, value_name = "SECONDS", default_value_t = 0)]
        wait: u64,
        /// The gateway's operator's listener; else the variable TOLLGATE_ADMIN_URL, else http://127.0.0.1:8081
        #[arg(long, value_name = "URL")]
        url: Option<String>,
    },

    /// Print a shell's completions of these commands
    #[command(
        after_help = "Examples:\n  tollgate completions bash >/etc/bash_completion.d/tollgate\n  \
                            tollgate completions zsh >/usr/local/share/zsh/site-functions/_tollgate\n  \
                            tollgate completions fish >~/.config/fish/completions/tollgate.fish"
    )]
    Completions {
        /// The shell
        shell: Shell,
    },

    /// Write the manual pages, one for each command
    #[command(
        after_help = "Example:\n  tollgate man --out /usr/local/share/man/man1 && man tollgate-key-create"
    )]
    Man {
        /// The folder to write to; created if it does not exist
        #[arg(long, value_name = "DIR")]
        out: PathBuf,
    },
}

#[derive(Debug, Subcommand)]
enum LedgerCommand {
    /// Copy all books into an empty ledger, for example to move from a file to Redis or back
    ///
    /// Copies accounts, keys, payments, receipts as far as the target keeps them, and the version of the tariff. No
    /// gateway may serve from either ledger meanwhile. The source is audited while it is read, the target after it is
    /// written, and both are compared; only then can a gateway open the target. The source is not changed. After an
    /// interruption, a second run continues (Redis) or starts again (a file).
    #[command(after_help = ledger_copy::HELP)]
    Copy(ledger_copy::CopyArgs),
}

/// How a command reaches the gateway, and how it prints the answer. Help lists these options after the command's own.
#[derive(Debug, Args)]
struct AdminArgs {
    /// The gateway's admin API; else the variable TOLLGATE_ADMIN_URL, else http://127.0.0.1:8081
    #[arg(long, global = true, display_order = 100, value_name = "URL")]
    admin_url: Option<String>,
    /// File that holds the admin key, instead of the variable TOLLGATE_ADMIN_KEY
    #[arg(long, global = true, display_order = 101, value_name = "FILE")]
    admin_key_file: Option<PathBuf>,
    /// Print the API's JSON
    #[arg(long, global = true, display_order = 102)]
    json: bool,
}

/// Checks a date or time argument, and returns it as it was written.
fn time(text: &str) -> Result<String, String> {
    match parse_rfc3339_ms(text) {
        Some(_) => Ok(text.to_owned()),
        None => Err("not a date like 2027-01-31 or a time like 2027-01-31T12:00:00Z".into()),
    }
}
