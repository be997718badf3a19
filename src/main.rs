//! The `tollgate` binary: what a process sets up once, then the command.

use std::{process::ExitCode, time::Duration};

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
    tollgate::log::to_stderr(cli.calls_logged());
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
