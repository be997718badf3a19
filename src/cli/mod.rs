//! The commands. Those for operators talk to a running gateway's admin API and hold no state. What a group of commands
//! takes stands in its file, beside what runs it.

mod account;
mod audit;
mod check;
mod client;
mod completions;
mod csv;
mod event;
mod export;
mod failure;
mod group;
mod health;
mod import;
mod key;
mod key_id;
mod lease;
mod ledger_copy;
mod operator;
mod payment;
mod progress;
mod receipt;
mod reconcile;
mod show;
mod statement;
#[cfg(test)]
mod tests;
mod usage;
mod vendor;

use std::{net::SocketAddr, path::PathBuf, process::ExitCode};

use clap::{Args, Parser, Subcommand};
use clap_complete::Shell;
use tollgate_layers::{facts::RequestNumber, key::AccountId, money::MicroRub};

use self::{
    account::AccountCommand,
    event::EventCommand,
    failure::{Failure, USAGE},
    group::GroupCommand,
    key::KeyCommand,
    lease::LeaseCommand,
    operator::OperatorCommand,
    payment::PaymentCommand,
    vendor::VendorCommand,
};
use crate::{
    config::{Config, Loaded},
    observe::log::{self, Calls, Flush},
    text::{causes::chain, time::parse_rfc3339_ms},
};

/// Reads the command line. For help and for mistakes there is nothing left to run: they have been
/// printed, and the exit code is given.
///
/// # Errors
/// The exit code: 0 for help, 64 for a mistake.
pub fn parse() -> Result<Cli, ExitCode> {
    Cli::try_parse().map_err(|error| {
        // Nobody is left to tell if this cannot be printed.
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
/// Companies top up accounts; their programs call models with keys; every call is held for, metered
/// and charged to the micro-ruble.
#[derive(Debug, Parser)]
#[command(name = "tollgate", version, after_help = HELP)]
pub struct Cli {
    #[command(subcommand)]
    command: Command,
}

const HELP: &str = "\
Try it:
  tollgate demo

Run it:
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
  tollgate reconcile --vendor openai --file usage.json --config tollgate.toml

Exit codes: 0 done; 1 refused by the gateway, a breach found by the audit, drift found by reconcile, or a statement that differs; 64 wrong use, or a configuration with mistakes or that cannot be read; \
65 mistakes in a file that was given to read; 69 the gateway or its ledger is out of reach, or not ready; 70 the \
gateway's own fault; 74 another file could not be read or written; 77 not the gateway's admin key.";

#[derive(Debug, Subcommand)]
enum Command {
    /// Try everything in one process: gateway, scripted vendor, funded key
    ///
    /// Needs no configuration, no network and nothing installed; keeps nothing. Prints the key and
    /// how to call the gateway with it, then one line for each call.
    #[command(
        after_help = "Examples:\n  tollgate demo\n  tollgate demo --listen 127.0.0.1:9090\n  \
                            tollgate demo --vendor-only --listen 127.0.0.1:9099"
    )]
    Demo {
        /// Where callers connect; with port 0, a free one
        #[arg(long, value_name = "ADDR", default_value = "127.0.0.1:8080")]
        listen: SocketAddr,
        /// Start the scripted vendor alone, to try a configuration of your own against
        #[arg(long)]
        vendor_only: bool,
    },

    /// Run the gateway
    ///
    /// Takes a changed configuration, certificate or secret within seconds, and at once on SIGHUP; keeps the old one
    /// if it is wrong, and says which fields need a restart. SIGTERM stops taking calls, lets the running ones end,
    /// settles them and exits. Listens on the sockets named public and admin if it is started with some
    /// (LISTEN_FDS).
    #[command(after_help = "Example:\n  tollgate serve --config /etc/tollgate/tollgate.toml")]
    Serve {
        /// The configuration
        #[arg(long, value_name = "FILE")]
        config: PathBuf,
    },

    /// Read a configuration and print every mistake in it
    ///
    /// Warns of what is allowed and probably not meant; a warning is no mistake: exit 0. Reads secrets from
    /// the environment and files as `serve` would, so run it as the same user. Opens no port and asks
    /// nobody.
    #[command(
        after_help = "Example:\n  tollgate check --config tollgate.toml && systemctl reload tollgate"
    )]
    Check {
        /// The configuration
        #[arg(long, value_name = "FILE")]
        config: PathBuf,
        /// Print JSON
        #[arg(long)]
        json: bool,
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
        reach: AdminArgs,
        #[command(subcommand)]
        command: AccountCommand,
    },

    /// Book a payment into an account
    ///
    /// The id is the payment's own, from the bank or the invoice: the same id again, for the same account, changes nothing,
    /// so a lost answer is mended by repeating the command.
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
        reach: AdminArgs,
    },

    /// Correct an account's balance, up or down
    ///
    /// Never below what running calls hold. The same id again changes nothing.
    #[command(
        after_help = "Examples:\n  tollgate adjust acme -12.50 --id refund-3 --reason \"refund by contract\"\n  \
                            tollgate adjust acme 5 --id goodwill-1 --reason \"outage of 3 May\""
    )]
    Adjust {
        /// The account
        account: AccountId,
        /// Decimal rubles; negative takes money off
        #[arg(allow_negative_numbers = true)]
        rubles: MicroRub,
        /// The correction's id
        #[arg(long)]
        id: String,
        /// Why, for the books
        #[arg(long, value_name = "TEXT")]
        reason: String,
        #[command(flatten)]
        reach: AdminArgs,
    },

    /// Payments that customers make at a provider: create (a link), list, check, auto (by a saved card)
    #[command(
        after_help = "Examples:\n  tollgate payment create acme 5000\n  tollgate payment list --account acme"
    )]
    Payment {
        #[command(flatten)]
        reach: AdminArgs,
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
        reach: AdminArgs,
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
        reach: AdminArgs,
        #[command(subcommand)]
        command: GroupCommand,
    },

    /// Who may sign in to the console by a name: create, list, delete
    ///
    /// Works on the file that admin.operators_file of the configuration names. A running gateway reads it whenever
    /// somebody signs in or asks for a page.
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
    /// The number is the one that the caller saw: in the header x-request-id of the answer, or in
    /// parentheses at the end of an error. Of a call without a receipt, since it was refused, cost nothing or still
    /// runs, it says what its gateway remembers, and ends with status 1.
    #[command(after_help = "Example:\n  tollgate receipt 0190163d-8694-739b-aea5-966c26f8ad91")]
    Receipt {
        /// The call's number
        #[arg(value_parser = receipt::number)]
        number: RequestNumber,
        #[command(flatten)]
        reach: AdminArgs,
    },

    /// Add up what was used and charged, by account, key, group, model, session, endpoint or day
    ///
    /// Of calls that were charged, from the first one to now unless --since and --until say otherwise; what is
    /// counted as of a day was charged on that day, in UTC.
    #[command(
        after_help = "Examples:\n  tollgate usage --account acme --by model\n  \
                            tollgate usage --since 2026-01-01 --until 2026-02-01 --by day,account --format csv"
    )]
    Usage {
        #[command(flatten)]
        wish: usage::UsageQuery,
        #[command(flatten)]
        reach: AdminArgs,
    },

    /// An account's month for its accountant: balances, payments, corrections, spending by model
    ///
    /// As a page, PDF, CSV or JSON, with the seller's details from the configuration. The statement of a closed month (two
    /// hours after its end) does not change any more: --verify says whether a file that was made says what the books say.
    #[command(
        after_help = "Examples:\n  tollgate statement acme --month 2026-11\n  \
                            tollgate statement acme --month 2026-11 --output acme-2026-11.html\n  \
                            tollgate statement acme --month 2026-11 --verify acme-2026-11.html"
    )]
    Statement {
        #[command(flatten)]
        args: statement::StatementArgs,
        #[command(flatten)]
        reach: AdminArgs,
    },

    /// Write accounts, payments and receipts as lines of JSON
    ///
    /// To standard output, or to a file that gets its name once it is whole. Every account comes with its
    /// keys and open holds as they stood at one moment, then its journal up to that moment; the last line
    /// counts them all. It holds no key and no prompt.
    #[command(
        after_help = "Examples:\n  tollgate export --output books.ndjson && tollgate audit --export books.ndjson\n  \
                            tollgate export --account acme | jq -r 'select(.kind == \"call\") | [.number, .charged_rub] | @csv'"
    )]
    Export {
        /// This account only
        #[arg(long)]
        account: Option<AccountId>,
        /// Where to; - is standard output
        #[arg(long, value_name = "FILE")]
        output: Option<PathBuf>,
        #[command(flatten)]
        reach: AdminArgs,
    },

    /// What the ledger has told, and who is sent it: list, receivers, dead, replay, stop, resume
    #[command(
        after_help = "Examples:\n  tollgate event list --account acme\n  tollgate event list --follow"
    )]
    Event {
        #[command(flatten)]
        reach: AdminArgs,
        #[command(subcommand)]
        command: EventCommand,
    },

    /// Vendors and their routes: list, disable, enable
    ///
    /// Each node has its own view of its vendors, and its own switch.
    #[command(
        after_help = "Examples:\n  tollgate vendor list\n  tollgate vendor disable openai-eu"
    )]
    Vendor {
        #[command(flatten)]
        reach: AdminArgs,
        #[command(subcommand)]
        command: VendorCommand,
    },

    /// Check that the whole ledger adds up; exit 1 on a breach, and on nothing else
    ///
    /// Over every account, key, hold and receipt: I2 what is held is the sum of the open holds; I3 the balance
    /// is what was paid in less what was charged, and each cost is charge and loss; I4 what is held lies
    /// between nothing and the balance; I5 a hold has ended once. I1, nothing is held beyond what is free, is
    /// decided when a hold is made and leaves no trace but these.
    #[command(after_help = "Examples:\n  tollgate audit\n  \
                            tollgate audit >audit.txt; [ $? != 1 ] || mail -s 'ledger in breach' ops@example.com <audit.txt\n  \
                            tollgate export | tollgate audit --export -")]
    Audit {
        /// Check this export instead of asking the gateway; - is standard input
        #[arg(long, value_name = "FILE")]
        export: Option<PathBuf>,
        #[command(flatten)]
        reach: AdminArgs,
    },

    /// Hold the books against a vendor's own export of what was used; exit 1 on drift, and on nothing else
    ///
    /// By day of UTC, the vendor's model and class: our count, the vendor's, and the costs where both are known. For
    /// each drift the receipts are named that may explain it: estimated, bounded, cut, left by their client.
    #[command(after_help = reconcile::HELP)]
    Reconcile {
        #[command(flatten)]
        args: reconcile::ReconcileArgs,
        #[command(flatten)]
        reach: AdminArgs,
    },

    /// Take accounts, payments and keys over from a CSV file
    ///
    /// All lines are checked first, here and against the gateway's accounts and keys: with a mistake in any, nothing is
    /// done. Whether a payment can be booked only its booking shows: one that is refused, as where its id has another
    /// amount, ends the import at its line. What is there already is left as it is, so the file can be imported again,
    /// also after it was broken off.
    #[command(after_help = import::HELP)]
    Import {
        #[command(flatten)]
        wish: import::ImportArgs,
        #[command(flatten)]
        reach: AdminArgs,
    },

    /// What gateways hold of accounts by themselves: list
    #[command(after_help = "Example:\n  tollgate lease list --account acme")]
    Lease {
        #[command(flatten)]
        reach: AdminArgs,
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

    /// Ask a gateway whether it should get calls: exit 0 if so, 69 if not
    ///
    /// Needs no key: for health checks of containers and load balancers. Says why not.
    #[command(
        after_help = "Example:\n  tollgate health --url http://127.0.0.1:8081 || echo 'not ready'"
    )]
    Health {
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
        /// The folder to write them to; made if it is not there
        #[arg(long, value_name = "DIR")]
        out: PathBuf,
    },
}

#[derive(Debug, Subcommand)]
enum LedgerCommand {
    /// Copy all books into an empty ledger, as when moving from a file to Redis or back
    ///
    /// Accounts, keys, payments, receipts as far as the target keeps them, and the version of the tariff. No
    /// gateway may serve from either. The source is audited while it is read, the target behind it, and both
    /// are compared; only then can a gateway open the target. The source stays as it is. Run again after it was
    /// broken off, it goes on (Redis) or begins anew (a file).
    #[command(after_help = ledger_copy::HELP)]
    Copy(ledger_copy::CopyArgs),
}

/// How a command reaches the gateway, and how it prints the answer. Help shows this behind what is the command's own.
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

/// A date or a time, as it was written.
fn time(text: &str) -> Result<String, String> {
    match parse_rfc3339_ms(text) {
        Some(_) => Ok(text.to_owned()),
        None => Err("not a date like 2027-01-31 or a time like 2027-01-31T12:00:00Z".into()),
    }
}

impl Cli {
    /// Sets up the log of the command. A gateway's is written to its end when the answer is dropped.
    #[must_use = "what was logged last is written when this is dropped"]
    pub fn start_log(&self) -> Option<Flush> {
        match self.command {
            Command::Serve { .. } => return log::to_stderr_buffered(),
            Command::Demo { .. } => log::to_stderr(Calls::Elsewhere),
            _ => log::to_stderr(Calls::Here),
        }
        None
    }

    /// Carries the command out, prints its answer or its error, and gives the exit code.
    pub async fn run(self) -> ExitCode {
        match self.command.run().await {
            Ok(()) => ExitCode::SUCCESS,
            Err(failure) => failure.report(),
        }
    }
}

impl Command {
    async fn run(self) -> Result<(), Failure> {
        match self {
            Self::Demo {
                listen,
                vendor_only: false,
            } => crate::demo::run(listen)
                .await
                .map_err(|error| failed(&error)),
            Self::Demo {
                listen,
                vendor_only: true,
            } => crate::demo::run_vendor(listen)
                .await
                .map_err(|error| failed(&error)),
            Self::Serve { config: file } => {
                let Loaded { config, files } = Config::read(&file);
                let config = config.map_err(|errors| check::mistakes(&file, &errors))?;
                crate::node::serve(config, &file, files)
                    .await
                    .map_err(|error| failed(&error))
            }
            Self::Check {
                config,
                json: false,
            } => check::check(&config),
            Self::Check { config, json: true } => check::check_as_json(&config),
            Self::Schema => show::write(&format!("{:#}\n", crate::config::schema())),
            Self::Account { reach, command } => account::account(&reach, command).await,
            Self::Topup {
                account,
                rubles,
                id,
                reach,
            } => account::top_up(&reach, &account, rubles, &id).await,
            Self::Adjust {
                account,
                rubles,
                id,
                reason,
                reach,
            } => account::adjust(&reach, &account, rubles, &id, &reason).await,
            Self::Payment { reach, command } => payment::payment(&reach, command).await,
            Self::Operator { command } => command.run(),
            Self::Key { reach, command } => key::key(&reach, command).await,
            Self::Group { reach, command } => group::group(&reach, command).await,
            Self::Receipt { number, reach } => receipt::receipt(&reach, number).await,
            Self::Usage { wish, reach } => usage::usage(&reach, &wish).await,
            Self::Statement { args, reach } => statement::statement(&reach, &args).await,
            Self::Export {
                account,
                output,
                reach,
            } => export::export(&reach, account.as_ref(), output.as_deref()).await,
            Self::Audit {
                export: Some(file),
                reach,
            } => audit::of_export(reach.json, &file),
            Self::Audit {
                export: None,
                reach,
            } => audit::live(&reach).await,
            Self::Lease { reach, command } => lease::lease(&reach, command).await,
            Self::Event { reach, command } => event::event(&reach, command).await,
            Self::Vendor { reach, command } => vendor::vendor(&reach, command).await,
            Self::Reconcile { args, reach } => reconcile::reconcile(&reach, &args).await,
            Self::Import { wish, reach } => import::import(&reach, &wish).await,
            Self::Ledger {
                command: LedgerCommand::Copy(wish),
            } => ledger_copy::copy(&wish).await,
            Self::Health { url } => health::health(url.as_deref()).await,
            Self::Completions { shell } => completions::completions(shell),
            Self::Man { out } => completions::man(&out),
        }
    }
}

/// The whole chain of causes, in one line.
fn failed(error: &anyhow::Error) -> Failure {
    Failure::Refused(chain(&**error))
}
