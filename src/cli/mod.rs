//! The commands of the `tollgate` binary. Most of them send requests to the admin API of a running gateway. The
//! arguments of a command are defined next to the code that runs it.

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
mod files;
mod group;
mod health;
mod import;
mod init;
mod invoice;
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
use tollgate_layers::facts::RequestNumber;

use self::{
    account::AccountCommand, code::CodeCommand, event::EventCommand, failure::USAGE,
    group::GroupCommand, key::KeyCommand, lease::LeaseCommand, member::MemberCommand,
    operator::OperatorCommand, payment::PaymentCommand, preset::PresetCommand,
    prices::PricesCommand, vendor::VendorCommand,
};
use crate::{COMMIT, text::time::parse_rfc3339_ms};

/// Parses the command line. If the command line requests help or is wrong, prints the text and returns the exit code of
/// the process.
///
/// # Errors
/// The exit code: 0 after help, 64 after a usage mistake.
pub fn parse() -> Result<Cli, ExitCode> {
    Cli::try_parse().map_err(|error| {
        // If the help text cannot be printed, this failure cannot be reported either.
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
/// Companies top up accounts, and their programs call models with keys. The gateway reserves money for every call,
/// meters the call, and charges it to the micro-ruble.
#[derive(Debug, Parser)]
#[command(name = "tollgate", version = version(), after_help = HELP)]
pub struct Cli {
    #[command(subcommand)]
    command: Command,
}

/// Returns the version; in a release build, also the commit.
fn version() -> &'static str {
    const VERSION: &str = env!("CARGO_PKG_VERSION");
    match COMMIT {
        // The text is leaked, once, because clap needs it for the whole life of the process.
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
  tollgate invoice acme 10000 --output invoice.pdf
  tollgate statement acme --month 2026-11 --output acme-2026-11.html
  tollgate audit
  tollgate load --url http://127.0.0.1:8080
  tollgate reconcile --vendor openai --file usage.json --config tollgate.toml

Exit codes:
  0   done
  1   the gateway refused; or a difference was found: a breach by audit, drift by reconcile, another price by prices diff,
      another statement by statement --verify
  64  the command line is wrong, or the configuration has mistakes or cannot be read
  65  an input file has mistakes
  69  the gateway or its ledger is out of reach, or not ready
  70  the gateway has an internal fault
  74  a file other than the configuration could not be read or written
  77  the admin key is not the gateway's";

#[derive(Debug, Subcommand)]
enum Command {
    /// Try everything in one process: gateway, scripted vendor, funded key
    ///
    /// Needs no configuration, no network and no other software, and stores nothing. Prints the key and commands that
    /// call the gateway with it; after that, prints one line for each charged call.
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
    /// On a terminal, prompts for the options that are not given: vendor, key at the vendor (hidden), address, rubles
    /// per USDT. Writes tollgate.toml, which uses a SQLite ledger in the same folder, and writes the keys to files that
    /// only you can read. Prints the commands that lead to the first paid call. Sends no request and starts no process.
    /// `tollgate preset list` lists the vendors.
    #[command(after_help = "Examples:\n  tollgate init --dir ~/tollgate\n  \
                            tollgate init --dir /srv/tollgate --vendor deepseek --key-env DEEPSEEK_API_KEY --listen 0.0.0.0:8080 \
                            --rate 90.50\n  \
                            tollgate init --vendor gigachat --key-file sber.key --ca-file russian-root.pem --models GigaChat-2")]
    Init(init::InitArgs),

    /// Run the gateway
    ///
    /// A changed configuration, certificate or secret is applied within seconds, and immediately on SIGHUP. If the new
    /// configuration is invalid, the old one stays in force. If a changed field needs a restart, it is named in the
    /// log. On SIGTERM the gateway accepts no more calls, waits until the calls in flight have ended, settles them and
    /// exits. If the process was started with sockets named public and admin (LISTEN_FDS), it listens on these sockets.
    #[command(after_help = "Example:\n  tollgate serve --config /etc/tollgate/tollgate.toml")]
    Serve {
        /// The configuration file
        #[arg(long, value_name = "FILE")]
        config: PathBuf,
    },

    /// Read a configuration and print every mistake in it
    ///
    /// Also warns about settings that are valid but probably mistaken; warnings do not change the exit code. Reads
    /// secrets from the environment and files as `serve` does, so run it as the user that runs the gateway. Opens no
    /// port. Without --live, connects to nothing.
    #[command(
        after_help = "Example:\n  tollgate check --config tollgate.toml && systemctl reload tollgate"
    )]
    Check {
        /// The configuration file
        #[arg(long, value_name = "FILE")]
        config: PathBuf,
        /// Print the result as JSON
        #[arg(long)]
        json: bool,
        /// Also call each vendor, as `tollgate vendor test` does; the vendors bill these calls
        #[arg(long)]
        live: bool,
    },

    /// Print the JSON schema of the configuration, for editors
    #[command(after_help = "Example:\n  tollgate schema > tollgate.schema.json")]
    Schema,

    /// Customers' accounts: create, list, show, set, suspend, resume, alert
    #[command(
        after_help = "Examples:\n  tollgate account create acme --name \"Acme LLC\"\n  \
                            tollgate account list\n  tollgate account suspend acme"
    )]
    Account(Subcommands<AccountCommand>),

    /// Book a payment into an account
    ///
    /// Use the payment's own id, from the bank or the invoice. If the command fails, repeat it: for the same id and
    /// account, the payment is booked only once.
    #[command(after_help = "Example:\n  tollgate topup acme 1000.50 --id payment-17")]
    Topup(WithAdmin<account::TopupArgs>),

    /// Correct an account's balance, up or down
    ///
    /// The balance cannot go below the money that calls in flight hold. If the command is repeated with the same id,
    /// nothing more is booked.
    #[command(
        after_help = "Examples:\n  tollgate adjust acme -12.50 --id refund-3 --reason \"refund by contract\"\n  \
                            tollgate adjust acme 5 --id goodwill-1 --reason \"outage of 3 May\""
    )]
    Adjust(WithAdmin<account::AdjustArgs>),

    /// Payments that customers make at a provider: create (a payment link), list, check, auto (by a saved card)
    #[command(
        after_help = "Examples:\n  tollgate payment create acme 5000\n  tollgate payment list --account acme"
    )]
    Payment(Subcommands<PaymentCommand>),

    /// Keys: create, list, show, disable, enable, delete, set
    #[command(
        after_help = "Examples:\n  tollgate key create acme --name ci --ceiling 100\n  \
                            tollgate key list acme\n  tollgate key disable k0AbC123dEf456gH"
    )]
    Key(Subcommands<KeyCommand>),

    /// Groups of keys with shared ceilings: create, list, update, remove
    #[command(
        after_help = "Examples:\n  tollgate group create acme support --ceiling-month 5000\n  \
                            tollgate key set k0AbC123dEf456gH --group support\n  tollgate group list acme"
    )]
    Group(Subcommands<GroupCommand>),

    /// Promo codes and invitations: create, list, remove
    #[command(after_help = "Example:\n  tollgate code create --amount 500 --uses 20")]
    Code(Subcommands<CodeCommand>),

    /// Members of an account, who may sign in to its cabinet: add, list, remove
    #[command(
        after_help = "Examples:\n  tollgate member add acme anna@acme.example --role owner\n  \
                            tollgate member list acme"
    )]
    Member(Subcommands<MemberCommand>),

    /// Operators who may sign in to the console by name: create, list, delete
    ///
    /// Edits the file that admin.operators_file in the configuration names. A running gateway reads this file at every
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
    /// The number is in the call's response: in the header x-request-id, or in parentheses at the end of an error text.
    /// If the call was refused, cost nothing or is still in flight, it has no receipt: the command prints what the
    /// gateway that handled the call remembers, and exits with 1.
    #[command(after_help = "Example:\n  tollgate receipt 0190163d-8694-739b-aea5-966c26f8ad91")]
    Receipt {
        /// Request number of the call
        #[arg(value_parser = receipt::number)]
        number: RequestNumber,
        #[command(flatten)]
        admin: AdminArgs,
    },

    /// Sum up usage and charges by account, key, group, model, session, endpoint or day
    ///
    /// Covers all charged calls, unless --since and --until give other bounds. A call counts on the day (UTC) on which
    /// it was charged.
    #[command(
        after_help = "Examples:\n  tollgate usage --account acme --by model\n  \
                            tollgate usage --since 2026-01-01 --until 2026-02-01 --by day,account --format csv"
    )]
    Usage(WithAdmin<usage::UsageQuery>),

    /// An account's monthly statement for its accountant: balances, payments, corrections, spending by model
    ///
    /// Prints a summary, or writes a page, PDF, CSV or JSON with the seller's details from the configuration. A month
    /// is closed two hours after its end; from then on its statement does not change. --verify checks whether an
    /// existing file agrees with the books.
    #[command(
        after_help = "Examples:\n  tollgate statement acme --month 2026-11\n  \
                            tollgate statement acme --month 2026-11 --output acme-2026-11.html\n  \
                            tollgate statement acme --month 2026-11 --verify acme-2026-11.html"
    )]
    Statement(WithAdmin<statement::StatementArgs>),

    /// An invoice for a company that pays by bank transfer; you book the payment when it arrives
    ///
    /// Requires the seller's bank in the configuration. An invoice moves no money and is not stored: its number
    /// consists of account, date and amount. When the money arrives, book it with `tollgate topup` and give the
    /// invoice's number as --id.
    #[command(
        after_help = "Examples:\n  tollgate invoice acme 10000 --output invoice.pdf\n  \
                            tollgate topup acme 10000 --id acme-20261129-1000000"
    )]
    Invoice(WithAdmin<invoice::InvoiceArgs>),

    /// Write accounts, payments and receipts as lines of JSON
    ///
    /// Writes to standard output, or to a file that gets its final name when it is complete. Each account is written
    /// with its keys and open holds at one moment, followed by its journal up to that moment. The last line has the
    /// number of accounts and of lines. The export contains neither secret keys nor prompts.
    #[command(
        after_help = "Examples:\n  tollgate export --output books.ndjson && tollgate audit --export books.ndjson\n  \
                            tollgate export --account acme | jq -r 'select(.kind == \"call\") | [.number, .charged_rub] | @csv'"
    )]
    Export(WithAdmin<export::ExportArgs>),

    /// Events that the ledger has emitted, and the receivers of events: list, receivers, dead, replay, stop, resume
    #[command(
        after_help = "Examples:\n  tollgate event list --account acme\n  tollgate event list --follow"
    )]
    Event(Subcommands<EventCommand>),

    /// Vendors and their routes: add (to a file), test, list, disable, enable
    ///
    /// The state of a vendor, and whether it is disabled, apply to one node only.
    #[command(
        after_help = "Examples:\n  tollgate vendor add deepseek --config tollgate.toml\n  tollgate vendor list\n  \
                            tollgate vendor disable openai-eu"
    )]
    Vendor(Subcommands<VendorCommand>),

    /// Vendors and models that the binary carries, with their settings and prices: list, show
    #[command(
        after_help = "Examples:\n  tollgate preset list\n  tollgate preset show deepseek-flash"
    )]
    Preset {
        #[command(subcommand)]
        command: PresetCommand,
    },

    /// Compare a configuration's prices with newer prices of the vendors: diff, apply
    ///
    /// The newer prices come from this binary's presets, or from a public price map. Needs no running gateway.
    #[command(
        after_help = "Examples:\n  tollgate prices diff --config tollgate.toml\n  \
                            tollgate prices diff --from model_prices_and_context_window.json --config tollgate.toml\n  \
                            tollgate prices apply --config tollgate.toml && tollgate check --config tollgate.toml"
    )]
    Prices {
        #[command(subcommand)]
        command: PricesCommand,
    },

    /// Check that all books of the ledger add up; exit 1 only on a breach
    ///
    /// Checks every account, key, hold and receipt against these rules. I2: the amount held is the sum of the open
    /// holds. I3: the balance is the sum paid in minus the sum charged, and each cost is charge plus loss. I4: the
    /// amount held is between zero and the balance. I5: each hold ends once. I1 (a hold never exceeds the
    /// free balance) is enforced when a hold is made, and can be checked later only through I2 to I5.
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

    /// Compare the books with a vendor's own usage export; exit 1 only on drift
    ///
    /// Prints one row per day (UTC), vendor's model and class, with our count, the vendor's count, and both costs if
    /// they are known. For each drift, lists the receipts that may explain it, for example receipts of calls that broke
    /// off.
    #[command(after_help = reconcile::HELP)]
    Reconcile(WithAdmin<reconcile::ReconcileArgs>),

    /// Import accounts, payments and keys from a CSV file
    ///
    /// All lines are checked first, by themselves and against the gateway's accounts and keys. If any line has a
    /// mistake, nothing is imported. Only one mistake is found later: a payment that the gateway refuses to book, for
    /// example because its id was booked with another amount, ends the import at its line. Accounts, payments and keys
    /// that exist already are not changed, so the same file can be imported again, also after an interrupted import.
    #[command(after_help = import::help())]
    Import(WithAdmin<import::ImportArgs>),

    /// Leases, by which gateways hold accounts' money in advance: list
    #[command(after_help = "Example:\n  tollgate lease list --account acme")]
    Lease(Subcommands<LeaseCommand>),

    /// Copy a ledger into another ledger: copy
    #[command(
        after_help = "Example:\n  tollgate ledger copy --from sqlite:tollgate.db --to redis://127.0.0.1:6379/0"
    )]
    Ledger {
        #[command(subcommand)]
        command: LedgerCommand,
    },

    /// Send calls to a gateway and report how they were answered: latency, statuses, failures
    ///
    /// Sends real calls, which are charged to the key's account: at most --calls-max calls with at most --max-tokens
    /// output tokens each. Prints the number of calls by status, a plot, and percentiles of three times: the whole
    /// call, the time to the first piece of the response, and the time between two pieces.
    #[command(after_help = load::HELP)]
    Load(load::LoadArgs),

    /// Check whether a gateway should get calls: exit 0 if it should, 69 if not
    ///
    /// Needs no key, so that containers and load balancers can use it. If the gateway is not ready, prints the reason.
    #[command(
        after_help = "Examples:\n  tollgate health --url http://127.0.0.1:8081 || echo 'not ready'\n  \
                            tollgate serve --config tollgate.toml & tollgate health --wait 10"
    )]
    Health {
        /// Seconds to wait for the gateway to become ready
        #[arg(long, value_name = "SECONDS", default_value_t = 0)]
        wait: u64,
        /// URL of the gateway's listener for operators. Default: the variable TOLLGATE_ADMIN_URL, otherwise
        /// http://127.0.0.1:8081
        #[arg(long, value_name = "URL")]
        url: Option<String>,
    },

    /// Print a shell's completions of the tollgate commands
    #[command(
        after_help = "Examples:\n  tollgate completions bash >/etc/bash_completion.d/tollgate\n  \
                            tollgate completions zsh >/usr/local/share/zsh/site-functions/_tollgate\n  \
                            tollgate completions fish >~/.config/fish/completions/tollgate.fish"
    )]
    Completions {
        /// Name of the shell
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
    /// Copies accounts, keys, payments, the version of the tariff, and the receipts that are not too old for the target
    /// to keep. No gateway may serve from either ledger meanwhile. The source is audited while it is read, the target
    /// after it is written, and both are compared; only then can a gateway open the target. The source is not changed.
    /// If the copy is interrupted, run the command again: it continues (Redis) or starts from the beginning (a file).
    #[command(after_help = ledger_copy::HELP)]
    Copy(ledger_copy::CopyArgs),
}

/// The arguments of a command that sends requests to the admin API.
#[derive(Debug, Args)]
struct WithAdmin<T: Args> {
    #[command(flatten)]
    args: T,
    #[command(flatten)]
    admin: AdminArgs,
}

/// A group of commands that send requests to the admin API.
#[derive(Debug, Args)]
struct Subcommands<T: Subcommand> {
    #[command(flatten)]
    admin: AdminArgs,
    #[command(subcommand)]
    command: T,
}

/// Options of the commands that use the admin API: where it is, and how to print its response. Help lists these options
/// after the command's own options.
#[derive(Debug, Args)]
struct AdminArgs {
    /// URL of the gateway's admin API. Default: the variable TOLLGATE_ADMIN_URL, otherwise http://127.0.0.1:8081
    #[arg(long, global = true, display_order = 100, value_name = "URL")]
    admin_url: Option<String>,
    /// File that contains the admin key, instead of the variable TOLLGATE_ADMIN_KEY
    #[arg(long, global = true, display_order = 101, value_name = "FILE")]
    admin_key_file: Option<PathBuf>,
    /// Print the API's response as JSON
    #[arg(long, global = true, display_order = 102)]
    json: bool,
}

/// Checks that an argument is a date or a time, and returns it unchanged.
fn time(text: &str) -> Result<String, String> {
    match parse_rfc3339_ms(text) {
        Some(_) => Ok(text.to_owned()),
        None => Err("not a date like 2027-01-31 or a time like 2027-01-31T12:00:00Z".into()),
    }
}
