//! The `tollgate` binary: what a process sets up once, then the command.

use std::{
    io::{self, IsTerminal},
    process::ExitCode,
    time::Duration,
};

use rustix::process::{Resource, Rlimit, setrlimit};
use tracing_subscriber::{
    EnvFilter,
    filter::{Directive, LevelFilter},
};

#[cfg(feature = "mimalloc")]
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

fn main() -> ExitCode {
    // The first one stays: nothing before this line may have started a TLS connection.
    let _ = rustls::crypto::ring::default_provider().install_default();
    let cli = match tollgate::cli::parse() {
        Ok(cli) => cli,
        Err(code) => return code,
    };
    log_to_stderr();
    no_core_dumps();
    let runtime = match tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .build()
    {
        Ok(runtime) => runtime,
        Err(error) => {
            eprintln!("error: cannot start threads: {error}");
            return ExitCode::FAILURE;
        }
    };
    let code = runtime.block_on(cli.run());
    // Whatever must end well has ended; a name lookup that hangs must not keep the process.
    runtime.shutdown_timeout(Duration::from_secs(1));
    code
}

/// Keys and prompts are in this process' memory, and a core dump would write them to a disk.
fn no_core_dumps() {
    let none = Rlimit {
        current: Some(0),
        maximum: Some(0),
    };
    if let Err(error) = setrlimit(Resource::Core, none) {
        tracing::warn!(%error, "core dumps cannot be switched off");
    }
}

/// Text for a person at a terminal, JSON for a log collector. `RUST_LOG` chooses what; the audit
/// lines cannot be switched off.
fn log_to_stderr() {
    let audit: Directive = "audit=info".parse().expect("a fixed directive");
    let filter = EnvFilter::builder()
        .with_default_directive(LevelFilter::INFO.into())
        .from_env_lossy()
        .add_directive(audit);
    let log = tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_writer(io::stderr);
    if io::stderr().is_terminal() {
        log.with_ansi(true).init();
    } else {
        log.json().flatten_event(true).init();
    }
}
