//! Runs a parsed command.

use std::{net::SocketAddr, path::Path, pin::Pin, process::ExitCode};

use tokio::runtime::Runtime;

use super::{
    Cli, Command, LedgerCommand, Subcommands, WithAdmin, account, audit, check, code, completions,
    event, export, failure::Failure, group, health, import, init, invoice, key, lease, ledger_copy,
    load, member, payment, preset, prices, receipt, reconcile, show, statement, usage, vendor,
    vendor_test,
};
use crate::{
    config::{Config, Loaded},
    observe::log::{self, Calls, Flush},
    text::causes::chain,
};

impl Cli {
    /// Sets up the log for the command. For `serve`, returns a guard that writes all buffered log lines when it is
    /// dropped.
    #[must_use = "the last lines are written when this is dropped"]
    pub fn start_log(&self) -> Option<Flush> {
        match self.command {
            Command::Serve { .. } => return log::to_stderr_buffered(),
            Command::Demo { .. } => log::to_stderr(Calls::Elsewhere),
            _ => log::to_stderr(Calls::Here),
        }
        None
    }

    /// Runs the command, prints its result or its error, and returns the exit code.
    ///
    /// The function is not `async`, and the future of the command is boxed. The futures of all commands are then
    /// compiled once, in this crate, instead of in each binary that polls them.
    pub fn run(self, runtime: &Runtime) -> ExitCode {
        let command: Pin<Box<dyn Future<Output = _>>> = Box::pin(self.command.run());
        match runtime.block_on(command) {
            Ok(()) => ExitCode::SUCCESS,
            Err(failure) => failure.report(),
        }
    }
}

impl Command {
    pub(super) async fn run(self) -> Result<(), Failure> {
        match self {
            Self::Demo {
                listen,
                vendor_only,
            } => demo(listen, vendor_only).await,
            Self::Init(args) => init::init(args),
            Self::Serve { config } => serve(&config).await,
            Self::Check { config, json, live } => check(&config, json, live).await,
            Self::Schema => show::write(&format!("{:#}\n", crate::config::schema())),
            Self::Account(Subcommands { admin, command }) => {
                account::account(&admin, command).await
            }
            Self::Topup(WithAdmin { args, admin }) => account::top_up(&admin, &args).await,
            Self::Adjust(WithAdmin { args, admin }) => account::adjust(&admin, &args).await,
            Self::Payment(Subcommands { admin, command }) => {
                payment::payment(&admin, command).await
            }
            Self::Operator { command } => command.run(),
            Self::Key(Subcommands { admin, command }) => key::key(&admin, command).await,
            Self::Group(Subcommands { admin, command }) => group::group(&admin, command).await,
            Self::Code(Subcommands { admin, command }) => code::code(&admin, command).await,
            Self::Member(Subcommands { admin, command }) => member::member(&admin, command).await,
            Self::Receipt { number, admin } => receipt::receipt(&admin, number).await,
            Self::Usage(WithAdmin { args, admin }) => usage::usage(&admin, &args).await,
            Self::Invoice(WithAdmin { args, admin }) => invoice::invoice(&admin, &args).await,
            Self::Statement(WithAdmin { args, admin }) => statement::statement(&admin, &args).await,
            Self::Export(WithAdmin { args, admin }) => export::export(&admin, &args).await,
            Self::Audit { export, admin } => match export {
                Some(file) => audit::of_export(admin.json, &file),
                None => audit::live(&admin).await,
            },
            Self::Lease(Subcommands { admin, command }) => lease::lease(&admin, command).await,
            Self::Event(Subcommands { admin, command }) => event::event(&admin, command).await,
            Self::Vendor(Subcommands { admin, command }) => vendor::vendor(&admin, command).await,
            Self::Preset { command } => preset::preset(&command),
            Self::Prices { command } => prices::prices(&command),
            Self::Reconcile(WithAdmin { args, admin }) => reconcile::reconcile(&admin, &args).await,
            Self::Import(WithAdmin { args, admin }) => import::import(&admin, &args).await,
            Self::Ledger {
                command: LedgerCommand::Copy(args),
            } => ledger_copy::copy(&args).await,
            Self::Load(args) => load::load(&args).await,
            Self::Health { wait, url } => health::health(url.as_deref(), wait).await,
            Self::Completions { shell } => completions::completions(shell),
            Self::Man { out } => completions::man(&out),
        }
    }
}

async fn demo(listen: SocketAddr, vendor_only: bool) -> Result<(), Failure> {
    let done = match vendor_only {
        false => crate::demo::run(listen).await,
        true => crate::demo::run_vendor(listen).await,
    };
    done.map_err(|error| failed(&error))
}

async fn serve(file: &Path) -> Result<(), Failure> {
    let Loaded { config, files } = Config::read(file);
    let config = config.map_err(|errors| check::mistakes(file, &errors))?;
    let served = crate::node::serve(config, file, files).await;
    served.map_err(|error| failed(&error))
}

async fn check(file: &Path, json: bool, live: bool) -> Result<(), Failure> {
    let config = match json {
        false => check::check(file)?,
        true => check::check_as_json(file)?,
    };
    match live {
        false => Ok(()),
        true => vendor_test::all(&config, json).await,
    }
}

/// Returns a failure whose text has the error and all its causes, in one line.
fn failed(error: &anyhow::Error) -> Failure {
    Failure::Refused(chain(&**error))
}
