//! Runs a parsed command.

use std::{pin::Pin, process::ExitCode};

use tokio::runtime::Runtime;

use super::{
    Cli, Command, LedgerCommand, account, audit, check, code, completions, event, export,
    failure::Failure, group, health, import, init, key, lease, ledger_copy, load, member, payment,
    preset, prices, receipt, reconcile, show, statement, usage, vendor, vendor_test,
};
use crate::{
    config::{Config, Loaded},
    observe::log::{self, Calls, Flush},
    text::causes::chain,
};

impl Cli {
    /// Sets up the log of the command. For `serve`, returns a guard that flushes the log when dropped.
    #[must_use = "the last lines are written when this is dropped"]
    pub fn start_log(&self) -> Option<Flush> {
        match self.command {
            Command::Serve { .. } => return log::to_stderr_buffered(),
            Command::Demo { .. } => log::to_stderr(Calls::Elsewhere),
            _ => log::to_stderr(Calls::Here),
        }
        None
    }

    /// Runs the command, prints its answer or its error, and returns the exit code.
    ///
    /// The function is not `async`, and the command's future is boxed: the futures of all commands are then compiled
    /// once, in this crate, and not in each binary that polls them.
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
            Self::Init(args) => init::init(args),
            Self::Serve { config: file } => {
                let Loaded { config, files } = Config::read(&file);
                let config = config.map_err(|errors| check::mistakes(&file, &errors))?;
                crate::node::serve(config, &file, files)
                    .await
                    .map_err(|error| failed(&error))
            }
            Self::Check { config, json, live } => {
                let config = match json {
                    false => check::check(&config)?,
                    true => check::check_as_json(&config)?,
                };
                match live {
                    false => Ok(()),
                    true => vendor_test::all(&config, json).await,
                }
            }
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
            Self::Code { reach, command } => code::code(&reach, command).await,
            Self::Member { reach, command } => member::member(&reach, command).await,
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
            Self::Preset { command } => preset::preset(&command),
            Self::Prices { command } => prices::prices(&command),
            Self::Reconcile { args, reach } => reconcile::reconcile(&reach, &args).await,
            Self::Import { wish, reach } => import::import(&reach, &wish).await,
            Self::Ledger {
                command: LedgerCommand::Copy(wish),
            } => ledger_copy::copy(&wish).await,
            Self::Load(args) => load::load(&args).await,
            Self::Health { wait, url } => health::health(url.as_deref(), wait).await,
            Self::Completions { shell } => completions::completions(shell),
            Self::Man { out } => completions::man(&out),
        }
    }
}

/// Returns a failure whose text is the whole chain of causes, in one line.
fn failed(error: &anyhow::Error) -> Failure {
    Failure::Refused(chain(&**error))
}
