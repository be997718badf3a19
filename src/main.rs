//! The `tollgate` binary: what a process sets up once, then the command.

use std::{process::ExitCode, time::Duration};

use rustix::process::{Resource, Rlimit, setrlimit};

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
    // Dropped last: then what was logged last is written.
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
