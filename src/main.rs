//! The `tollgate` binary: sets up the TLS provider, the log and the runtime, then runs the command.

use std::{process::ExitCode, time::Duration};

use rustix::process::{Resource, Rlimit, setrlimit};

#[cfg(feature = "mimalloc")]
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

fn main() -> ExitCode {
    // Rustls accepts only the first provider that a process installs, so no code before this line may start a TLS
    // connection.
    let _ = rustls::crypto::ring::default_provider().install_default();
    let cli = match tollgate::cli::parse() {
        Ok(cli) => cli,
        Err(code) => return code,
    };
    // Values are dropped in reverse order of their declaration. The log's guard is declared first, so it is dropped
    // last, and its drop writes the log lines that are still buffered.
    let _log = cli.start_log();
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
    let code = cli.run(&runtime);
    // The command has already drained all calls. The time limit is for a DNS lookup that hangs on a blocking thread:
    // without the limit, it would keep the process alive.
    runtime.shutdown_timeout(Duration::from_secs(1));
    code
}

/// Disables core dumps. This process has keys and prompts in memory, and a core dump would write them to disk.
fn no_core_dumps() {
    let none = Rlimit {
        current: Some(0),
        maximum: Some(0),
    };
    if let Err(error) = setrlimit(Resource::Core, none) {
        tracing::warn!(%error, "core dumps cannot be disabled");
    }
}
